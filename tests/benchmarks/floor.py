"""How near a recipe comes to the toy language's floor in so many seconds of one thread (study: How
near to the floor?).

    python tests/benchmarks/floor.py               # an hour and a quarter of one core
    python tests/benchmarks/floor.py --seeds 1 --seconds 10 --json=
"""
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
import torch
from fastai.basics import set_seed
from fastcore.script import call_parse
from harness import RESULTS, fill, processor, read_figures, write_figures
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.bilm import ELMO_TINY
from elmo_fastai.learner import bilm_learner, evaluate
from elmo_fastai.practice.learners import TimeBudget, muon
from elmo_fastai.text.corpora import toy_corpus
from learners import NoValidation
from made import quietly

BEFORE = dict(opt='adamw', cutoffs=None, lr=.014, bs=96, warm=.25)
RECIPE = BEFORE | dict(opt='muon', cutoffs=(150,))
CHANGES = {
    'before': BEFORE,
    'the recipe': RECIPE,
    'AdamW in place of Muon': RECIPE | dict(opt='adamw'),
    'one softmax over all words': RECIPE | dict(cutoffs=None),
    'Muon for the LSTMs alone': RECIPE | dict(opt='muon of the LSTMs'),
    'Muon for the output layer, too': RECIPE | dict(opt='muon of all'),
    'batches of 48, rate .01': RECIPE | dict(bs=48, lr=.01),
    'a tenth of the time to warm up': RECIPE | dict(warm=.1),
    'groups from 60 and from 300': RECIPE | dict(cutoffs=(60, 300))}
MAIN = [*CHANGES][:4]

def optimizer(model, name):
    "The `opt_func` of a change that has Muon"
    opt_func = muon(model)
    matrices = opt_func.keywords['opt'].keywords['matrices']
    if name == 'muon of the LSTMs': matrices[:] = [p for p in model.lstm.parameters() if p.ndim == 2]
    if name == 'muon of all': matrices += [p for p in model.head.parameters() if p.ndim == 2]
    return opt_func

def run(corpus, floor, change, seconds, seed):
    "The ratio to the floor after so many seconds of the processor"
    o = CHANGES[change]
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=o['bs'], min_freq=1, seed=seed,
                                      val_bs=256, device='cpu')
    config = replace(ELMO_TINY, bias=True)
    if o['cutoffs']: config = replace(config, softmax='adaptive', cutoffs=o['cutoffs'], div_value=1.)
    set_seed(seed)
    learn = bilm_learner(dls, config, bf16=False, cbs=NoValidation())
    if o['opt'] != 'adamw': learn.opt_func = optimizer(learn.model, o['opt'])
    budget = TimeBudget(seconds, time.process_time)
    quietly(learn, 'fit_one_cycle', 999, o['lr'], pct_start=o['warm'], cbs=budget)
    return dict(ratio=round(evaluate(learn.model, dls.valid)['mean']/floor, 4),
                steps=len(learn.recorder.losses), tokens=int(learn.throughput.tokens),
                processor=processor())

@call_parse
def main(
    seeds:int=3,                    # of the four main changes; of the others one
    seconds:float=150.,             # of one thread; before and after are measured at twice as many, too
    json:Path=RESULTS/'floor.json'  # file of the rows
):
    "Add the rows that the file lacks"
    torch.set_num_threads(1)
    corpus = toy_corpus(n_train=325_000)
    floor = corpus.floor('valid')
    keys = [dict(change=change, seconds=time, seed=seed) for seed in range(seeds)
            for time in (seconds, 2*seconds) for change in (MAIN if time == seconds else MAIN[:2])]
    keys += [dict(change=change, seconds=seconds, seed=0) for change in CHANGES if change not in MAIN]
    rows = read_figures(json, []) if json.name else []
    save = (lambda: write_figures(json, rows)) if json.name else (lambda: None)
    fill(rows, keys, partial(run, corpus, floor), save)
