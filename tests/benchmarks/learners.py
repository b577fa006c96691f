"What the benchmarks share that train a head on a biLM"
from functools import partial

import numpy as np, pandas as pd, torch
from fastai.basics import Callback, CancelValidException
from elmo_fastai.blocks import ClassifyDataLoaders
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.learner import TorchOptimizer
from made import quietly

# as fastai's Adam, in one pass over the word vectors
ADAMW = partial(TorchOptimizer, opt=torch.optim.AdamW, betas=(.9, .99), fused=True)

class NoValidation(Callback):
    "The end is enough"
    def before_validate(self): raise CancelValidException

def unfreeze(learn, to, rate, epochs, **kw):
    "Train what `freeze_to` leaves; each group below the head learns at half the rate"
    learn.freeze_to(to)
    low = rate/2**(len(learn.opt.param_lists) - 1)
    quietly(learn, 'fit_one_cycle', epochs, slice(low, rate), pct_start=.2, **kw)

def as_table(rows): return pd.DataFrame(rows, columns=['text', 'label'])

def review_loaders(rows, **kwargs):
    "Loaders of (text, label) by split, with blanks between the words of a text"
    return ClassifyDataLoaders.from_df(as_table(rows['train']), as_table(rows['valid']),
                                       tokenizer='space', device='cpu', **kwargs)

def accuracy_on(learn, rows):
    "The accuracy on other rows"
    dl = learn.dls.test_dl(as_table(rows), with_labels=True)
    return float(quietly(learn, 'validate', dl=dl)[-1])

def balanced(n, seed, among, y):
    "`n` of the places `among`, as many of each class; a smaller draw is a part of a larger one"
    rng, among = np.random.default_rng(seed), np.asarray(among)
    return np.concatenate([rng.permutation(among[y[among] == c])[:n//2] for c in (0, 1)])

def toy_reviews():
    "(text, label) by split; those to validate and to test on are none of those to train on"
    gold = toy_corpus(n_train=16000, n_valid=8000, n_test=8000).gold
    reviews = {k: [(s.text, s.label) for s in gold[k] if s.label is not None]
               for k in ('train', 'valid', 'test')}
    seen = {text for text,_ in reviews['train']}
    return {k: [row for row in rows if k == 'train' or row[0] not in seen]
            for k,rows in reviews.items()}
