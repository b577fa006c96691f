"""Sentiment of whole sentences (SST-2) with a pretrained and with a random backbone, and what each
choice is worth (library: Classifying sentences).

    python tests/benchmarks/classify.py --model MODEL --data DATA --json nbs/results/classify.json
    # one seed, a part of the data
    python tests/benchmarks/classify.py --model MODEL --data DATA --quick

MODEL is a folder of `Elmo.from_pretrained`, or the name of a packaged model (default: mini-en);
DATA the folder with the data sets (default: the environment's ELMO_FASTAI_DATA). Everything is
chosen on the dev set; the test set is looked at once, by one two-phase model and by the counts of
letters. An accuracy comes with its seeds.
"""
import os, time
from pathlib import Path
import numpy as np
from fastai.basics import DataLoaders, set_seed
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from elmo_fastai.text.corpora import wikitext2
from elmo_fastai.text.tokenizers import space_tokenize
from elmo_fastai.tokens import WordVocab
from elmo_fastai.elmo import Elmo
import elmo_fastai.practice.folder                         # `Elmo.from_pretrained`
from elmo_fastai.cbow import ELMODataLoader, cbow_learner, word_vectors
from elmo_fastai.classifier import random_elmo
from elmo_fastai.tagger import LayerCache
from harness import opt, options, write_figures
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

class Run:
    def __init__(self, a):
        corpus = sst2(Path(a.data)/'sst2' if a.data else None)
        self.rows = {k: [(s.text, s.label) for s in v] for k,v in corpus.gold.items()}
        if a.quick:
            order = np.random.default_rng(0).permutation(len(self.rows['train']))
            self.rows['train'] = [self.rows['train'][i] for i in order[:1500]]
        self.a, self.start, self.results = a, time.perf_counter(), {}
        self.elmo = Elmo.from_pretrained(a.model, norm='token', dropout=.4, tokenizer='space')
        self.cache, self.other = LayerCache(), LayerCache()

    def loaders(self):
        return review_loaders(self.rows, bs=32, char_vocab=self.elmo.char_vocab)

    def note(self, name, values, **more):
        values = [float(o) for o in values]
        self.results[name] = dict(accuracy=[round(o, 4) for o in values], **more)
        print(f"{time.perf_counter() - self.start:6.0f} s  {name:44} {np.mean(values):.3f}  "
              f"{self.results[name]['accuracy']}", flush=True)

    def phase1(self, elmo, seed, cache=None, epochs=None, lr=None, **kw):
        set_seed(seed)
        dls = self.loaders()
        learn = classifier_learner(dls, elmo, cache=self.cache if cache is None else cache,
                                   opt_func=ADAMW, **{**HEAD, **kw})
        quietly(learn, 'fit_one_cycle', epochs or PHASE1['epochs'], lr or PHASE1['lr'])
        return learn

    def phase2(self, learn, steps=PHASE2):
        "Gradual unfreezing; the accuracy on dev after each step"
        res = []
        for to,epochs,lr in steps:
            unfreeze(learn, to, lr, epochs)
            res += [v[-1] for v in learn.recorder.values]
        return res

    def by_heart(self, learn):
        "Accuracy on the sentences that it has learned from"
        dl = learn.dls.train.new(shuffle=False, drop_last=False)
        with learn.no_bar(): return round(float(learn.validate(dl=dl)[-1]), 4)

    def random(self, seed): return random_elmo(self.elmo, seed, [t for t,_ in self.rows['train']])
    def save(self):
        "Write what there is"
        d = dict(model=self.elmo.lm.config.name, phase1=PHASE1, head=HEAD, short=SHORT,
                 phase2=PHASE2, seconds=round(time.perf_counter() - self.start),
                 texts={k: len(v) for k,v in self.rows.items()}, results=self.results)
        write_figures(self.a.json, d)

# of the training; `validate` writes there, too
def last(learn): return learn.recorder.values[-1][-1]

WORDS = dict(token_pattern=r'\S+')
COUNTED = {
    'TF-IDF, logistic regression': WORDS | dict(ngram_range=(1, 1)),
    'TF-IDF with pairs, logistic regression': WORDS | dict(ngram_range=(1, 2)),
    'TF-IDF with triples, logistic regression': WORDS | dict(ngram_range=(1, 3)),
    'TF-IDF of letters, logistic regression': dict(analyzer='char', ngram_range=(1, 5)),
}

def counts(r):
    """Logistic regressions on words, on words in a row, and on up to five letters in a row; the
    last one on the test set, too"""
    (x, y), (vx, vy), (tx, ty) = ([list(o) for o in zip(*r.rows[k])]
                                  for k in ('train', 'valid', 'test'))
    for name,settings in COUNTED.items():
        features = TfidfVectorizer(sublinear_tf=True, **settings)
        train, valid = features.fit_transform(x), features.transform(vx)
        models = [LogisticRegression(C=C, max_iter=300).fit(train, y) for C in (1, 3, 10)]
        best = max(models, key=lambda model: model.score(valid, vy))
        r.note(name, [best.score(valid, vy)])
    r.note('test set, TF-IDF of letters', [best.score(features.transform(tx), ty)])

def baselines(r):
    (x, y), (vx, vy) = ([list(o) for o in zip(*r.rows[k])] for k in ('train', 'valid'))
    r.note('the commoner class', [np.mean(np.array(vy) == max(set(y), key=y.count))])
    counts(r)
    text = list(x)
    if r.a.data and not r.a.quick: text += wikitext2(Path(r.a.data)/'wikitext-2').train
    train, valid = ([space_tokenize(line) for line in lines] for lines in (text, vx))
    vocab = WordVocab.build(train, min_freq=2, max_vocab=30_000)
    set_seed(0)
    dls = DataLoaders(*(ELMODataLoader([[2, *vocab.encode(words), 3] for words in sents], vocab=vocab,
                                       bs=1024, shuffle=sents is train) for sents in (train, valid)))
    learn = cbow_learner(dls, dim=100)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    static = word_vectors(learn)
    def mean(texts):
        return np.stack([static.encode(t.split(), unknown='zero').mean(0) for t in texts])

    r.note('static CBOW vectors, mean', [
        max(LogisticRegression(C=C, max_iter=300).fit(mean(x), y).score(mean(vx), vy)
            for C in (1, 10, 100))])

def main():
    a = options(__doc__,
        model=opt('mini-en', 'folder or name of the pretrained model'),
        data=opt(os.environ.get('ELMO_FASTAI_DATA'), 'folder with sst2 and wikitext-2'),
        json=opt(None, 'file to write'),
        seeds=5,
        seeds2=opt(3, 'seeds of phase 2'),
        seeds3=opt(3, 'seeds of the smaller questions'),
        quick=False)
    if a.quick: a.seeds = a.seeds2 = a.seeds3 = 1
    r = Run(a)
    baselines(r)

    # ELMo alone, frozen: pretrained against random, same seeds, same steps
    pre = [r.phase1(r.elmo, s, **ALONE) for s in range(a.seeds)]
    r.note('phase 1, pretrained', map(last, pre),
           shares=np.mean([l.model.elmo.mixes[0].shares.tolist() for l in pre],
                          0).round(3).tolist())
    r.note('phase 1, random', [last(r.phase1(r.random(s), s, r.other, **ALONE))
                               for s in range(a.seeds)])
    # beside learned word vectors, as in the paper: [x; ELMo]
    pre = [r.phase1(r.elmo, s) for s in range(a.seeds2)]
    r.note('phase 1, pretrained, with word vectors', [last(l) for l in pre],
           train=r.by_heart(pre[0]))
    r.note('phase 1, random, with word vectors',
           [last(r.phase1(r.random(s), s, r.other)) for s in range(min(a.seeds2, 2))])
    r.other.clear()
    r.save()
    # phase 2, from a short phase 1
    short = [r.phase1(r.elmo, s, **SHORT) for s in range(a.seeds)]
    r.note('short phase 1, pretrained, with word vectors', [last(l) for l in short],
           train=r.by_heart(short[0]))
    twos = [r.phase2(l) for l in short]
    r.note('both phases, pretrained, with word vectors', [o[-1] for o in twos],
           curve=np.mean(twos, 0).round(4).tolist())
    # by its number, not by its result
    with short[0].no_bar():
        r.note('test set, the first of these', [accuracy_on(short[0], r.rows['test'])])
    r.save()
    two = [r.phase2(r.phase1(r.random(s), s, r.other, **SHORT)) for s in range(min(a.seeds2, 2))]
    r.note('both phases, random, with word vectors', [o[-1] for o in two],
           curve=np.mean(two, 0).round(4).tolist())
    pre = short = None

    def several(name, elmo=None, **kw):
        found = [r.phase1(elmo or r.elmo, s, **ALONE | kw) for s in range(a.seeds3)]
        r.note(name, map(last, found))
    for pool in ('attention', 'mean', 'max', 'attention+max'):
        several(f'pooling: {pool}', pool=pool)
    n = r.elmo.n_layers
    for name,s in [*((f'layer {i}', [1. if i == j else 1e-6 for j in range(n)]) for i in range(n)),
                   ('equal shares', [1.]*n), ('learned shares', None)]:
        e = Elmo(r.elmo.lm, dropout=.4, tokenizer='space', char_vocab=r.elmo.char_vocab,
                 norm='token', shares=s, train_shares=s is None)
        several(f'layers: {name}', e)
    for lam in (0., 1e-3, 1.): several(f'λ = {lam:g}', lam=lam)
    for wd in (0., .01, .1): several(f'weight decay {wd:g}', wd=wd)
    r.save()

if __name__ == '__main__': main()
