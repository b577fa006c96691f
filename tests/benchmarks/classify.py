"""Sentiment of SST-2's sentences: counts, static vectors, the frozen backbone, pretrained and random,
its layers, and both phases beside learned word vectors (lesson 12; study: How many labels is a
language model worth?).

    python tests/benchmarks/classify.py          # some two hours of one core

Everything is chosen on the dev set; the test set is looked at once, by one two-phase model and by
the counts of letters. An accuracy comes with its seeds.
"""
from pathlib import Path
import numpy as np
from fastai.basics import DataLoaders, set_seed
from fastcore.script import call_parse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from harness import RESULTS, log, write_figures
from elmo_fastai.all import Elmo, WordVocab
from elmo_fastai.cbow import ELMODataLoader, cbow_learner, word_vectors
from elmo_fastai.classifier import random_elmo
from elmo_fastai.tagger import LayerCache
from elmo_fastai.text.corpora import wikitext2
from elmo_fastai.text.tokenizers import space_tokenize
from learners import ADAMW, accuracy_on, classifier_learner, review_loaders, unfreeze
from sst2 import sst2
from made import quietly

PHASE1 = dict(epochs=4, lr=3e-3)
HEAD = dict(pool='attention+max', words=64, dropout=.5, wd=.01, lam=1e-3)
# the network in which backbones are compared
ALONE = dict(words=0, pool='attention', dropout=.3)
# phase 1 before phase 2: what has learned its texts by heart has nothing left to learn from
SHORT = dict(epochs=1, lr=3e-3)
# freeze_to, epochs, rate of the new parts; each group below learns at half the rate
PHASE2 = [(-2, 1, 2e-3), (-4, 2, 2e-3)]
COUNTED = {'TF-IDF, logistic regression': dict(token_pattern=r'\S+'),
           'TF-IDF with pairs, logistic regression': dict(token_pattern=r'\S+', ngram_range=(1, 2)),
           'TF-IDF of letters, logistic regression': dict(analyzer='char', ngram_range=(1, 5))}

class Reviews:
    def __init__(self, model='mini-en'):
        self.rows = {k: [(s.text, s.label) for s in v] for k,v in sst2().gold.items()}
        self.elmo = Elmo.from_pretrained(model, norm='token', dropout=.4, tokenizer='space')
        self.cache = LayerCache()

    def phase1(self, seed, elmo=None, cache=None, epochs=PHASE1['epochs'], lr=PHASE1['lr'], **kw):
        if cache is None: cache = self.cache
        set_seed(seed)
        dls = review_loaders(self.rows, bs=32, char_vocab=self.elmo.char_vocab)
        learn = classifier_learner(dls, elmo or self.elmo, cache=cache, opt_func=ADAMW, **HEAD | kw)
        quietly(learn, 'fit_one_cycle', epochs, lr)
        return learn

    def both_phases(self, seed, *backbone):
        "The same after a shorter first phase and gradual unfreezing"
        learn = self.phase1(seed, *backbone, **SHORT)
        for to,epochs,lr in PHASE2: unfreeze(learn, to, lr, epochs)
        return learn

# of the training; `validate` writes there, too
def last(learn): return learn.recorder.values[-1][-1]

def counts(rows):
    (x, y), (vx, vy), (tx, ty) = ([list(o) for o in zip(*rows[k])]
                                  for k in ('train', 'valid', 'test'))
    found = {}
    for name,settings in COUNTED.items():
        features = TfidfVectorizer(sublinear_tf=True, **settings)
        train, valid = features.fit_transform(x), features.transform(vx)
        models = [LogisticRegression(C=C, max_iter=300).fit(train, y) for C in (1, 3, 10)]
        best = max(models, key=lambda model: model.score(valid, vy))
        found[name] = [best.score(valid, vy)]
    return found | {'test set, TF-IDF of letters': [best.score(features.transform(tx), ty)]}

def static(rows, more):
    "Accuracy on dev of a logistic regression on the mean of a text's CBOW vectors"
    (x, y), (vx, vy) = ([list(o) for o in zip(*rows[k])] for k in ('train', 'valid'))
    train, valid = ([space_tokenize(line) for line in lines] for lines in ([*x, *more], vx))
    vocab = WordVocab.build(train, min_freq=2, max_vocab=30_000)
    set_seed(0)
    dls = DataLoaders(*(ELMODataLoader([[2, *vocab.encode(words), 3] for words in sents],
                                       vocab=vocab,
                                       bs=1024, shuffle=sents is train) for sents in (train,
                                                                                      valid)))
    learn = cbow_learner(dls, dim=100)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    vectors = word_vectors(learn)
    def mean(texts):
        return np.stack([vectors.encode(t.split(), unknown='zero').mean(0) for t in texts])
    return max(LogisticRegression(C=C, max_iter=300).fit(mean(x), y).score(mean(vx), vy)
               for C in (1, 10, 100))

@call_parse
def main(
    seeds:int=5,                       # of each network
    json:Path=RESULTS/'classify.json'  # file of the figures
):
    "Measure everything and write the figures"
    r, found = Reviews(), {}
    def note(name, values):
        found[name] = dict(accuracy=[round(float(o), 4) for o in values])
        log(name, found[name])
    for name,values in counts(r.rows).items(): note(name, values)
    note('static CBOW vectors, mean', [static(r.rows, wikitext2().train)])
    seeds = range(seeds)
    # ELMo alone, frozen: pretrained against random, same seeds, same steps
    note('phase 1, pretrained', [last(r.phase1(s, **ALONE)) for s in seeds])
    texts, other = [t for t,_ in r.rows['train']], LayerCache()
    note('phase 1, random', [last(r.phase1(s, random_elmo(r.elmo, s, texts), other, **ALONE))
                             for s in seeds])
    n = r.elmo.n_layers
    shares = {f'layer {i}': [1. if i == j else 1e-6 for j in range(n)] for i in range(n)}
    for name,s in (shares | {'learned shares': None}).items():
        elmo = Elmo(r.elmo.lm, dropout=.4, tokenizer='space', char_vocab=r.elmo.char_vocab,
                    norm='token', shares=s, train_shares=s is None)
        note(f'layers: {name}', [last(r.phase1(seed, elmo, **ALONE)) for seed in seeds[:3]])
    # beside learned word vectors, as in the paper: [x; ELMo]
    note('phase 1, pretrained, with word vectors', [last(r.phase1(s)) for s in seeds])
    note('both phases, random, with word vectors',
         [last(r.both_phases(s, random_elmo(r.elmo, s, texts), other)) for s in seeds[:2]])
    both = [r.both_phases(s) for s in seeds]
    note('both phases, pretrained, with word vectors', map(last, both))
    # by its number, not by its result
    with both[0].no_bar():
        note('test set, the first of these', [accuracy_on(both[0], r.rows['test'])])
    write_figures(json, dict(results=found))
