"""Learning rate, schedule and start, one changed at a time: perplexity of the small biLM on
held-out toy sentences, over several seeds.

    # figures go to nbs/results/rates.json: some twenty minutes of one core; again: goes on
    python tests/benchmarks/rates.py
    python tests/benchmarks/rates.py --seeds 1   # one seed

The lesson nbs/course/09_pretraining.ipynb shows the figures. Corpus, batches and model are those of
the lesson.
"""
import sys
import torch
from fastai.basics import Callback, CancelValidException, set_seed
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.nn.bilm import evaluate
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.train.learner import bilm_learner
from harness import RESULTS, options, read_figures, write_figures

# passes, begin at the words' frequencies?, rate, schedule
SCHEDULES = 'constant', 'one cycle'
ONE_PASS = [(1, counts, lr, schedule) for counts in (False, True)
            for lr in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1) for schedule in SCHEDULES]
THREE_PASSES = [(3, True, lr, schedule) for lr in (3e-3, 1e-2, 3e-2) for schedule in SCHEDULES]

class NoValidation(Callback):
    def before_validate(self): raise CancelValidException()

def run(corpus, seed, passes, counts, lr, schedule):
    "Perplexity of both directions after a training"
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=seed, device='cpu')
    set_seed(seed)
    learn = bilm_learner(dls, bf16=False, from_counts=counts, cbs=NoValidation())
    fit = learn.fit if schedule == 'constant' else learn.fit_one_cycle
    with learn.no_bar(), learn.no_logging(): fit(passes, lr)
    found = evaluate(learn.model, dls.valid)
    return dict(forward=round(found['fwd'], 2), backward=round(found['bwd'], 2))

def main():
    args = options(__doc__, seeds=4, json=RESULTS/'rates.json')
    torch.set_num_threads(1)
    rows = read_figures(args.json, [])
    corpus = toy_corpus(n_train=8000, n_valid=1000)
    for seed in range(args.seeds):
        for passes, counts, lr, schedule in ONE_PASS + THREE_PASSES:
            key = dict(seed=seed, passes=passes, counts=counts, lr=lr, schedule=schedule)
            if any(key.items() <= row.items() for row in rows): continue
            rows.append(key | run(corpus, **key))
            print(rows[-1], flush=True)
            write_figures(args.json, rows, lines=True)

if __name__ == '__main__': sys.exit(main())
