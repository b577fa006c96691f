"""Which preset, batch and rate for WikiText-2, by perplexity after the same time?

    python tests/benchmarks/presets.py                           # SETTINGS that are not there yet
    python tests/benchmarks/presets.py --settings tiny/64/32/0.016/0/counts --seconds 1800

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
from harness import RESULTS, fill, opt, options, read_figures, write_figures
from learners import NoValidation, early
from made import quietly

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
    quietly(learn, 'fit_one_cycle', TimeBudget.epochs, lr)
    found = evaluate(learn.model, loaders(20, 64).valid)
    return dict(tokens=learn.throughput.tokens, stopped=early(learn), fwd=found['fwd'],
                bwd=found['bwd'], perplexity=found['mean'])

def arguments():
    return options(__doc__,
        settings=opt(SETTINGS, nargs='+'),
        seconds=opt(600, 'processor time of a training', type=float),
        seeds=opt([0], nargs='+'),
        json=RESULTS/'presets.json')

def main(a):
    torch.set_num_threads(1)
    bf16 = bf16_is_fast(torch.device('cpu'))
    d = read_figures(a.json, dict(bf16=bf16, rows=[]))
    if d['bf16'] != bf16:
        raise SystemExit(f'{a.json} is of another kind of processor: name another file with --json')
    def make(setting, seconds, seed):
        preset, bs, seq_len, lr, dropout, beginning = setting.split('/')
        return run(preset, int(bs), int(seq_len), float(lr), float(dropout), beginning, seconds,
                   seed, bf16)
    keys = [dict(setting=setting, seconds=a.seconds, seed=seed)
            for setting,seed in product(a.settings, a.seeds)]
    fill(d['rows'], keys, make, lambda: write_figures(a.json, d))

if __name__ == '__main__': main(arguments())
