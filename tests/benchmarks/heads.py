"""The head on a frozen biLM: settings that work with every seed, and few labels (lesson 11).

    python tests/benchmarks/heads.py --json nbs/results/heads.json     # some 25 minutes of one core
    python tests/benchmarks/heads.py --only settings --seeds 2        # a part of it

The toy corpus's reviews, the small biLM of lesson 10, `elmo_classifier_learner`; a run that was
stopped goes on where it was. Two questions:

- settings: which rate, dropout and number of epochs? All labels.
- few: what is pretraining worth with 100 labels? Each seed draws other labels, another random
  backbone and another head; each side takes the rate that is best for it on the validation reviews.
  Beside it, logistic regression on counts of words, pairs and triples, its C chosen likewise.
"""
from itertools import product
import numpy as np, torch
from fastai.torch_core import set_seed
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from elmo_fastai.elmo import Elmo
import elmo_fastai.practice.embed, elmo_fastai.practice.folder    # methods of `Elmo`
from elmo_fastai.learner import toy_bilm
from elmo_fastai.classifier import elmo_classifier_learner, random_elmo
from elmo_fastai.tasks import LayerCache
from harness import fill, opt, options, read_figures, write_figures
from learners import NoValidation, accuracy_on, balanced, review_loaders, toy_reviews

RATES, DROPOUTS, EPOCHS = (4e-3, 2e-3, 8e-3), (.3, .1), (6, 12)
SIDES = 'pretrained', 'random'
FEW, FEW_EPOCHS, FEW_BS = (100,), 60, 20

class Run:
    def __init__(self, a):
        self.a, self.reviews = a, toy_reviews()
        self.rows = read_figures(a.json, dict(rows=[]))['rows'] if a.json else []
        lm, vocab, _ = toy_bilm()
        self.elmo = Elmo(lm, vocab, norm='token', dropout=.2)
        self.caches = {k: LayerCache() for k in SIDES}

    def draw(self, n, seed):
        "`n` of the training reviews, as many of each class"
        rows = self.reviews['train']
        labels = [label for _,label in rows]
        places = balanced(n, seed, np.arange(len(rows)), np.array(labels))
        return {**self.reviews, 'train': [rows[i] for i in places]}

    def backbone(self, side, seed):
        "The biLM, or one of its shape that has learned nothing but the statistics of the texts"
        if side == 'pretrained': return self.elmo
        return random_elmo(self.elmo, seed, [t for t,_ in self.reviews['train']])

    def fill(self, keys, make):
        "The rows of a part that are missing"
        sizes = {k: len(v) for k,v in self.reviews.items()}
        def rounded(**key): return {k: round(float(v), 4) for k,v in make(**key).items()}
        def save():
            write_figures(self.a.json, dict(texts=sizes, few_epochs=FEW_EPOCHS, rows=self.rows))
        fill(self.rows, keys, rounded, save)

    def train(self, data, side, seed, epochs, lr, dropout, elmo, bs=32):
        "Accuracy on the validation and on the test reviews"
        set_seed(seed)
        dls = review_loaders(data, bs=bs, val_bs=256)
        learn = elmo_classifier_learner(dls, elmo, cache=self.caches[side], dropout=dropout)
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(epochs, lr, cbs=NoValidation())
            return {k: accuracy_on(learn, data[k]) for k in ('valid', 'test')}

def settings(r):
    def make(side, seed, epochs, dropout, lr, **_):
        return r.train(r.reviews, side, seed, epochs, lr, dropout, r.backbone(side, seed))
    kinds = [('pretrained', *o) for o in product(EPOCHS, DROPOUTS)]
    for seed in range(r.a.seeds):
        r.fill([dict(part='settings', side=side, seed=seed, epochs=epochs, dropout=dropout, lr=lr)
                for side,epochs,dropout in [*kinds, ('random', EPOCHS[-1], DROPOUTS[-1])]
                for lr in RATES], make)

def probe(r):
    "A linear classifier on the mean of all layers' vectors side by side"
    def make(side, seed, **_):
        elmo, x, y = r.backbone(side, seed), {}, {}
        for k,v in r.reviews.items():
            vectors = elmo.embed([t.split() for t,_ in v], 'all')
            x[k], y[k] = np.stack([v.mean(1).ravel() for v in vectors]), [c for _,c in v]
        return best_C(StandardScaler, x, y)
    sides = [('pretrained', 0), *(('random', s) for s in range(r.a.seeds))]
    r.fill([dict(part='probe', side=side, seed=seed) for side,seed in sides], make)

def best_C(features, x, y):
    "Accuracies of the logistic regression that is best on the validation texts"
    def scores(C):
        model = make_pipeline(features(), LogisticRegression(C=C, max_iter=1000))
        model.fit(x['train'], y['train'])
        return {k: model.score(x[k], y[k]) for k in ('valid', 'test')}
    return max(map(scores, (.01, .1, 1, 10, 100)), key=lambda o: o['valid'])

def few(r):
    def triples(): return CountVectorizer(token_pattern=r'\S+', ngram_range=(1, 3))
    for n,seed in product(FEW, range(r.a.seeds)):
        data = r.draw(n, seed)
        x, y = ({k: [o[i] for o in v] for k,v in data.items()} for i in (0, 1))
        def make(side, lr=None, **_):
            if side not in SIDES: return best_C(triples, x, y)
            elmo = r.backbone(side, seed)
            return r.train(data, side, seed, FEW_EPOCHS, lr, .1, elmo, FEW_BS)
        key = dict(part='few', labels=n, seed=seed)
        keys = [key | dict(side=side, lr=lr) for side,lr in product(SIDES, RATES)]
        r.fill([key | dict(side='counts of triples'), *keys], make)

if __name__ == '__main__':
    a = options(__doc__,
        json=opt(None, 'file to write'),
        seeds=5,
        only=opt(None, 'these parts', nargs='*', choices=('settings', 'few', 'probe')))
    torch.set_num_threads(1)
    r = Run(a)
    for part in (settings, probe, few):
        if not a.only or part.__name__ in a.only: part(r)
