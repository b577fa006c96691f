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
import time
import numpy as np, torch
from fastai.basics import Callback, CancelValidException
from fastai.torch_core import set_seed
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train.learner import toy_bilm
from elmo_fastai.tasks.classify import LayerCache, elmo_classifier_learner, random_elmo
from harness import opt, options, read_figures, write_figures

RATES, DROPOUTS, EPOCHS = (4e-3, 2e-3, 8e-3), (.3, .1), (6, 12)
SIDES = 'pretrained', 'random'
FEW, FEW_EPOCHS, FEW_BS = (100,), 60, 20

class NoValidation(Callback):
    "The end is enough"
    def before_validate(self): raise CancelValidException

class Run:
    def __init__(self, a):
        self.a, self.start = a, time.perf_counter()
        self.rows = read_figures(a.json, dict(rows=[]))['rows'] if a.json else []
        lm, vocab, _ = toy_bilm()
        gold = toy_corpus(n_train=16000, n_valid=8000, n_test=8000).gold
        def texts(sents): return [(s.text, s.label) for s in sents if s.label is not None]
        self.reviews = {k: texts(gold[k]) for k in ('train', 'valid', 'test')}
        # a quarter of the others are equal to one
        seen = {text for text,_ in self.reviews['train']}
        for k in ('valid', 'test'):
            self.reviews[k] = [row for row in self.reviews[k] if row[0] not in seen]
        self.elmo = Elmo(lm, vocab, norm='token', dropout=.2)
        self.caches = {k: LayerCache() for k in SIDES}

    def draw(self, n, seed):
        "`n` of the training reviews, as many of each class"
        rows, rng = self.reviews['train'], np.random.default_rng(seed)
        by = [[o for o in rows if o[1] == c] for c in (0, 1)]
        return {**self.reviews, 'train': [o[i] for o in by for i in rng.permutation(len(o))[:n//2]]}

    def backbone(self, side, seed):
        "The biLM, or one of its shape that has learned nothing but the statistics of the texts"
        if side == 'pretrained': return self.elmo
        return random_elmo(self.elmo, seed, [t for t,_ in self.reviews['train']])

    def once(self, **key):
        "Is there no such row yet?"
        return not any(all(r.get(k) == v for k,v in key.items()) for r in self.rows)

    def note(self, key, right):
        self.rows.append({**key, **{k: round(float(v), 4) for k,v in right.items()}})
        print(f'{time.perf_counter() - self.start:6.0f} s', self.rows[-1], flush=True)
        sizes = {k: len(v) for k,v in self.reviews.items()}
        write_figures(self.a.json, dict(texts=sizes, few_epochs=FEW_EPOCHS, rows=self.rows))

    def train(self, data, side, seed, epochs, lr, dropout, elmo, bs=32):
        "Accuracy on the validation and on the test reviews"
        settings = dict(tokenizer='space', bs=bs, valid_bs=256, seed=seed, device='cpu')
        dls = ClassifyDataLoaders.from_data(data, **settings)
        set_seed(seed)
        learn = elmo_classifier_learner(dls, elmo, cache=self.caches[side], dropout=dropout)
        with learn.no_bar(), learn.no_logging():
            learn.fit_one_cycle(epochs, lr, cbs=NoValidation())
            return {k: learn.validate(ds_idx=i)[1] for i,k in ((1, 'valid'), (2, 'test'))}

def settings(r):
    for side in SIDES:
        for seed in range(r.a.seeds):
            elmo = r.backbone(side, seed)
            for epochs in EPOCHS if side == 'pretrained' else EPOCHS[-1:]:
                for dropout in DROPOUTS if side == 'pretrained' else DROPOUTS[-1:]:
                    for lr in RATES:
                        key = dict(part='settings', side=side, seed=seed, epochs=epochs,
                                   dropout=dropout, lr=lr)
                        if r.once(**key):
                            r.note(key, r.train(r.reviews, side, seed, epochs, lr, dropout, elmo))

def probe(r):
    "A linear classifier on the mean of all layers' vectors side by side"
    for side,seed in [('pretrained', 0), *(('random', s) for s in range(r.a.seeds))]:
        key, elmo = dict(part='probe', side=side, seed=seed), r.backbone(side, seed)
        if not r.once(**key): continue
        def mean(texts): return np.stack([v.mean(1).ravel() for v in elmo.embed(texts, 'all')])
        x, y = {}, {}
        for k,v in r.reviews.items(): x[k], y[k] = mean([t.split() for t,_ in v]), [c for _,c in v]
        r.note(key, best_C(StandardScaler, x, y))

def best_C(features, x, y):
    "Accuracies of the logistic regression that is best on the validation texts"
    def scores(C):
        model = make_pipeline(features(), LogisticRegression(C=C, max_iter=1000))
        model.fit(x['train'], y['train'])
        return {k: model.score(x[k], y[k]) for k in ('valid', 'test')}
    return max(map(scores, (.01, .1, 1, 10, 100)), key=lambda o: o['valid'])

def few(r):
    def triples(): return CountVectorizer(token_pattern=r'\S+', ngram_range=(1, 3))
    for n in FEW:
        for seed in range(r.a.seeds):
            data = r.draw(n, seed)
            key = dict(part='few', side='counts of triples', labels=n, seed=seed)
            x, y = ({k: [o[i] for o in v] for k,v in data.items()} for i in (0, 1))
            if r.once(**key): r.note(key, best_C(triples, x, y))
            for side in SIDES:
                elmo = r.backbone(side, seed)
                for lr in RATES:
                    key = dict(part='few', side=side, labels=n, seed=seed, lr=lr)
                    if r.once(**key):
                        r.note(key, r.train(data, side, seed, FEW_EPOCHS, lr, .1, elmo, FEW_BS))

if __name__ == '__main__':
    a = options(__doc__,
        json=opt(None, 'file to write'),
        seeds=5,
        only=opt(None, 'these parts', nargs='*', choices=('settings', 'few', 'probe')))
    torch.set_num_threads(1)
    r = Run(a)
    for part in (settings, probe, few):
        if not a.only or part.__name__ in a.only: part(r)
