"""Which preset, batch and rate for WikiText-2, by perplexity after the same time?

    python tests/benchmarks/presets.py                           # SETTINGS that are not there yet
    python tests/benchmarks/presets.py --settings tiny/64/32/0.016/0/counts --seconds 1800
    python tests/benchmarks/presets.py --table                   # only print what there is

A setting is preset/strips/window/rate/dropout/beginning (`counts`: with the words' frequencies;
`alike`). Each is trained for the same processor time of one thread and then asked for the
perplexity
of the held-out text, in windows of 64 tokens whatever it was trained on. Rows are written to
nbs/results/presets.json as they end, and what is there is not done again. In bfloat16 where the
processor is fast at it: a file has rows of one kind.
"""
import time
from dataclasses import replace
from itertools import product
import torch
from fastai.torch_core import set_seed
from elmo_fastai.text.corpora import wikitext2
from elmo_fastai.nn.bilm import elmo_configs, evaluate
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.train.learner import StopOnSignal, TimeBudget, bf16_is_fast, bilm_learner
from attention import NoValidation

from harness import RESULTS, opt, options, read_figures, write_figures
SETTINGS = ['small/20/64/0.006/0.1/counts', 'small/40/32/0.008/0/counts',
            'tiny/64/32/0.016/0/alike', 'tiny/64/32/0.016/0/counts']

def loaders(bs, seq_len):
    return ElmoDataLoaders.from_corpus(wikitext2(), kind='stream', bs=bs, seq_len=seq_len,
                                       min_freq=1, seed=0, device='cpu')

def run(preset, bs, seq_len, lr, dropout, beginning, seconds, seed, bf16):
    set_seed(seed)
    dls = loaders(bs, seq_len)
    budget = TimeBudget(seconds, time.process_time)
    counts = beginning == 'counts'
    config = replace(elmo_configs[preset], dropout=dropout, bias=counts)
    learn = bilm_learner(dls, config, bf16=bf16, from_counts=counts, cbs=[budget, NoValidation()])
    learn.remove_cb(StopOnSignal)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(TimeBudget.epochs, lr)
    found = evaluate(learn.model, loaders(20, 64).valid)
    return dict(tokens=learn.throughput.tokens, stopped=learn.stopped and str(learn.stopped),
                fwd=found['fwd'],
                bwd=found['bwd'], perplexity=found['mean'])

def table(rows):
    for r in sorted(rows, key=lambda r: (r['seconds'], r['perplexity'])):
        print(f"{r['seconds']:5.0f} s  {r['setting']:34} seed {r['seed']}  "
              f"{r['tokens']/r['seconds']:6,.0f} tokens/s  {r['perplexity']:6.1f}")

def arguments():
    return options(__doc__,
        settings=opt(SETTINGS, nargs='+'),
        seconds=opt(600, 'processor time of a training', type=float),
        seeds=opt([0], nargs='+'),
        json=RESULTS/'presets.json',
        table=False)

def main(a):
    torch.set_num_threads(1)
    bf16 = bf16_is_fast(torch.device('cpu'))
    d = read_figures(a.json, dict(bf16=bf16, rows=[]))
    if a.table: return table(d['rows'])
    if d['bf16'] != bf16:
        raise SystemExit(f'{a.json} is of another kind of processor: name another file with --json')
    for setting, seed in product(a.settings, a.seeds):
        key = dict(setting=setting, seconds=a.seconds, seed=seed)
        if any(key.items() <= r.items() for r in d['rows']): continue
        preset, bs, seq_len, lr, dropout, beginning = setting.split('/')
        found = run(preset, int(bs), int(seq_len), float(lr), float(dropout), beginning,
                    a.seconds, seed, bf16)
        d['rows'].append(key | found)
        write_figures(a.json, d)
        table(d['rows'][-1:])

if __name__ == '__main__': main(arguments())
