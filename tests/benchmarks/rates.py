"""Learning rate, schedule and start, one changed at a time: perplexity of the small biLM on
held-out toy sentences (lesson 09; study: A hundred thousand words to choose from).

    python tests/benchmarks/rates.py             # some twenty minutes of one core
    python tests/benchmarks/rates.py --seeds 1
"""
from itertools import product
from pathlib import Path
import torch
from fastai.basics import set_seed
from fastcore.script import call_parse
from harness import RESULTS, fill, read_figures, write_figures
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.learner import evaluate, bilm_learner
from elmo_fastai.text.corpora import toy_corpus
from learners import NoValidation
from made import quietly

# passes, begin at the words' frequencies?, rate, schedule
SCHEDULES = 'constant', 'one cycle'
SETTINGS = [*product([1], [False, True], [1e-3, 3e-3, 1e-2, 3e-2, 1e-1], SCHEDULES),
            *product([3], [True], [3e-3, 1e-2, 3e-2], SCHEDULES)]

def run(corpus, seed, passes, counts, lr, schedule):
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=seed, device='cpu')
    set_seed(seed)
    learn = bilm_learner(dls, bf16=False, from_counts=counts, cbs=NoValidation())
    quietly(learn, 'fit' if schedule == 'constant' else 'fit_one_cycle', passes, lr)
    found = evaluate(learn.model, dls.valid)
    return dict(forward=round(found['fwd'], 2), backward=round(found['bwd'], 2))

@call_parse
def main(
    seeds:int=4,                    # of each setting
    json:Path=RESULTS/'rates.json'  # file of the rows
):
    "Add the rows that the file lacks"
    torch.set_num_threads(1)
    corpus = toy_corpus(n_train=8000, n_valid=1000)
    names = 'seed', 'passes', 'counts', 'lr', 'schedule'
    keys = [dict(zip(names, (seed, *o))) for seed in range(seeds) for o in SETTINGS]
    rows = read_figures(json, [])
    fill(rows, keys, lambda **key: run(corpus, **key), lambda: write_figures(json, rows))
