"""Ways to unfreeze a biLM on the toy reviews, six epochs each (lesson 11).

    # some ten minutes of one core
    python tests/benchmarks/phases.py --json nbs/results/phases.json

Validation accuracy at the end of each stage, three seeds per plan. A stage is what is trained
(the head, the top LSTM layer too, everything), its epochs and its rate, or the rates of the
lowest and the highest group.
"""
import torch
from fastai.torch_core import set_seed
from elmo_fastai.elmo import Elmo
from elmo_fastai.learner import toy_bilm
from elmo_fastai.classifier import elmo_classifier_learner
from harness import opt, options, write_figures
from learners import review_loaders, toy_reviews
from made import quietly

RISING = slice(1e-3, 3e-3)
PLANS = {
    'head only': [('head', 6, 4e-3)],
    'from the top': [('head', 2, 4e-3), ('top', 1, RISING), ('all', 3, RISING)],
    'all at once, .001 to .003': [('all', 6, RISING)],
    'all at once, .004': [('all', 6, 4e-3)],
    'all at once, .01': [('all', 6, 1e-2)],
}

def train(plan, seed, lm, vocab, reviews):
    "Accuracy after each stage"
    set_seed(seed)
    dls = review_loaders(reviews)
    learn = elmo_classifier_learner(dls, Elmo(lm, vocab, norm='token', dropout=.2))
    accuracies = []
    for part,epochs,lr in plan:
        if part == 'top': learn.freeze_to(-2)
        if part == 'all': learn.unfreeze()
        quietly(learn, 'fit_one_cycle', epochs, lr)
        accuracies.append(round(learn.recorder.values[-1][-1], 3))
    return accuracies

def rates(lr): return [lr.start, lr.stop] if isinstance(lr, slice) else lr

if __name__ == '__main__':
    a = options(__doc__, json=opt(None, 'file to write'), seeds=3)
    torch.set_num_threads(1)
    lm, vocab, _ = toy_bilm()
    reviews, rows = toy_reviews(), []
    for name,plan in PLANS.items():
        stages = [[part, epochs, rates(lr)] for part,epochs,lr in plan]
        for seed in range(a.seeds):
            valid = train(plan, seed, lm, vocab, reviews)
            rows.append(dict(plan=name, stages=stages, seed=seed, valid=valid))
            print(rows[-1], flush=True)
    write_figures(a.json, dict(rows=rows))
