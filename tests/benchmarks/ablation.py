"""What each part of the recipe is worth: one part taken away at a time, all rows with the same
processor time, on WikiText-2.

    # 4 minutes of one core a row, and a minute to measure it
    python tests/benchmarks/ablation.py
    python tests/benchmarks/ablation.py --minutes 10 --rows "full recipe,plain design"
    # does it work? a few seconds a row, on the toy corpus
    python tests/benchmarks/ablation.py --quick

The clock is the processor time of this process, not the time on the wall: other programs on the
machine change nothing. The learning rate runs
through its cycle by that clock, so that a slower design ends its cycle, too. Each row is written as
soon as it is there; the same command goes
on after an interruption. The recipe is the command's own for WikiText-2 (`elmo_pretrain
wikitext2`); the figure of the course, fifteen minutes
of two cores, is that command's, and `--minutes 30 --rows "full recipe"` is the same amount of
processor time.

WikiText-2 is read from ELMO_FASTAI_DATA or ../shared/data; without it the script says so and stops.
"""
import json, math, platform, sys, time
from dataclasses import replace
from harness import RESULTS, data_folder, fill, kept, opt, options, write_figures

FIGURES = RESULTS/'ablation.json'

# name → what is different: of the configuration, of the recipe, of the encoder, or of the training
ROWS = {'full recipe': {},
        'every token encoded': dict(encoder=dict(share=False)),
        'full softmax': dict(config=dict(softmax='full')),
        'fp32': dict(bf16=False),
        'token vectors not normalised': dict(config=dict(norm=False)),
        'constant rate': dict(flat=True),
        'no dropout': dict(config=dict(dropout=0.)),
        'half the batch': dict(scale=dict(bs=.5)),
        'twice the batch': dict(scale=dict(bs=2)),
        'half the sequence': dict(scale=dict(seq_len=.5)),
        'twice the sequence': dict(scale=dict(seq_len=2)),
        'plain design': dict(config=dict(softmax='full'), encoder=dict(share=False, cut=False),
                             bf16=False),
        'plain, not normalised, constant': dict(
            config=dict(softmax='full', norm=False), encoder=dict(share=False, cut=False),
            bf16=False, flat=True)}

def arguments():
    return options(__doc__,
        minutes=opt(4., 'processor time of each training'),
        rows=opt(None, f"names with commas between them (default: all): {', '.join(ROWS)}"),
        threads=opt(1, 'threads; their processor time is added up'),
        seed=42,
        settings=opt('{}', 'JSON in place of the recipe, such as {"lr": 0.006, "config": '
                           '{"dropout": 0.1}}'),
        quick=opt(False, 'two seconds a row on the toy corpus, nothing is kept'),
        json=opt(FIGURES, 'file of the rows'))

def get_text(quick):
    "The corpus, or the reason why there is none"
    from elmo_fastai.text.corpora import toy_corpus, wikitext2
    if quick: return toy_corpus(n_train=8000, n_valid=300, n_test=1, n_unseen=1)
    folder = data_folder('wikitext-2')
    if folder: return wikitext2(folder)
    sys.exit("There is no WikiText-2 here: put train.txt, valid.txt and test.txt into a folder "
             "wikitext-2, and name the folder above it by the variable ELMO_FASTAI_DATA")

def recipe(quick, settings):
    "The settings of the full recipe"
    from elmo_fastai.train.command import settings_for
    r = vars(settings_for('wikitext2', {}))
    if quick: r.update(model='tiny', bs=20, seq_len=32, lr=1e-2, config={})
    return {**r, **settings, 'config': {**(r.get('config') or {}), **settings.get('config', {})}}

def train_row(name, corpus, r, args, seconds):
    "One row of the table"
    from fastai.torch_core import set_seed
    from fastai.callback.all import ParamScheduler
    from elmo_fastai.data.loaders import ElmoDataLoaders
    from elmo_fastai.train.learner import TimeBudget, bilm_learner
    from elmo_fastai.nn.bilm import elmo_configs, evaluate
    from learners import early
    change = ROWS[name]
    r = {**r, **{k: max(1, round(r[k]*f)) for k,f in change.get('scale', {}).items()}}
    config = elmo_configs[r['model']]
    kw = {k: tuple(tuple(o) if isinstance(o, list) else o for o in v) if isinstance(v, list) else v
          for k,v in {**r['config'], **change.get('config', {})}.items()}
    config = replace(config, **kw)
    set_seed(args.seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=r['bs'], seq_len=r['seq_len'],
                                      min_freq=r['min_freq'], max_vocab=r.get('max_vocab'),
                                      seed=args.seed, device='cpu')
    clock = TimeBudget(seconds, clock=time.process_time)
    learn = bilm_learner(dls, config, bf16=change.get('bf16'), from_counts=False,
                         **{k: r[k] for k in ('wd',) if k in r})
    for k,v in change.get('encoder', {}).items(): setattr(learn.model.chars, k, v)
    with learn.no_bar(), learn.no_logging():
        if not change.get('flat'): learn.fit_one_cycle(TimeBudget.epochs, r['lr'], cbs=clock)
        # a constant rate needs a start, too
        else:
            learn.fit(TimeBudget.epochs, r['lr'],
                      cbs=[clock, ParamScheduler({'lr': lambda done: r['lr']*min(1, done/.02)})])
    bf16 = any(type(o).__name__ == 'BF16' for o in learn.cbs)
    p = evaluate(learn.model, dls.valid)
    ok = lambda o: o if math.isfinite(o) else None
    return dict(fwd=ok(p['fwd']), bwd=ok(p['bwd']), mean=ok(p['mean']),
                predictions=p['predictions'], tokens=learn.throughput.tokens,
                epochs=learn.throughput.tokens/len(dls.train.text.ids),
                steps=len(learn.recorder.losses), seconds=clock.elapsed,
                tokens_per_second=learn.throughput.tokens/clock.elapsed,
                parameters=sum(o.numel() for o in learn.model.parameters()), words=len(dls.vocab),
                bs=r['bs'], seq_len=r['seq_len'], bf16=bf16,
                stopped=early(learn))

def main(args):
    names = args.rows.split(',') if args.rows else list(ROWS)
    strange = [o for o in names if o not in ROWS]
    if strange: sys.exit(f"There is no row {strange[0]!r}: take some of {', '.join(ROWS)}")
    import torch
    torch.set_num_threads(args.threads)
    corpus = get_text(args.quick)
    r = recipe(args.quick, json.loads(args.settings))
    seconds = 2. if args.quick else 60*args.minutes
    found = dict(corpus=corpus.name, seconds=seconds, threads=args.threads, seed=args.seed,
                 recipe=r, rows=[])
    if not args.quick: found['rows'] = kept(args.json, found)
    found.update(torch=torch.__version__, machine=platform.machine())
    fill(found['rows'], [dict(name=name) for name in names],
         lambda name: train_row(name, corpus, r, args, seconds),
         lambda: write_figures(None if args.quick else args.json, found))

if __name__ == '__main__': main(arguments())
