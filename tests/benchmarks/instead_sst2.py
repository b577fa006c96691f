"""ELMo against what one would take instead: sentiment (SST-2) with 100, 1,000 and all 6,920 labels
(study: When to use ELMo, and when not).

    python tests/benchmarks/instead_sst2.py --sentence-python PYTHON      # half an hour of one core

PYTHON has the sentence transformer's packages (see instead_sides.py); without it its rows are left
out. Which vectors and counts is chosen on dev, with 100 and with 1,000 labels by the first draws;
with all labels it is what 1,000 labels chose. The test part is read once.
"""
import tempfile
from functools import cache
from pathlib import Path
import numpy as np, torch
from fastcore.script import call_parse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from harness import RESULTS, log, processor, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.practice.embed import ElmoVectorizer
from instead_sides import LETTERS, PAIRS, Side
from learners import balanced
from sst2 import sst2

CS = 10.**np.arange(-1, 5)     # for rows with a length of about 1
# vectors to counts, in a sum of what both say
SHARES = {'1 to 3': .25, '1 to 1': .5, '3 to 1': .75}
CHOOSE = 3                                       # draws that choose
COUNTED = dict(counts={'words': dict(token_pattern=r'\S+'), 'words and pairs': PAIRS},
               letters={'2 to 5 letters': LETTERS})
POOLS = {'mean': ['mean'], 'max': ['max'], 'mean and max': ['mean', 'max']}

def head(features, x, y, train):
    "Logistic regression on features of `x`, with the C that is best in parts of the training part"
    model = make_pipeline(features, LogisticRegression(max_iter=500))
    grid = dict(logisticregression__C=CS/(x.shape[1] if x.ndim > 1 else 1))
    folds = StratifiedKFold(5 if len(train) <= 1000 else 3, shuffle=True, random_state=0)
    return GridSearchCV(model, grid, cv=folds).fit(x[train], y[train])

class Run:
    def __init__(self, sentence_python, draws):
        gold, self.sentence_python, self.draws = sst2().gold, sentence_python, draws
        self.texts = np.array([row.text for rows in gold.values() for row in rows], object)
        self.y = np.array([int(row.label) for rows in gold.values() for row in rows])
        ends = np.cumsum([*map(len, gold.values())])
        self.places = {k: np.arange(end - len(gold[k]), end) for k,end in zip(gold, ends)}
        self.all = len(gold['train'])
        self.elmo = Elmo.from_pretrained('mini-en')
        # of (side, labels): decisions on dev and on test of each draw; what was chosen
        self.said, self.best = {}, {}
        self.found = dict(rows=[], chosen=[], processor=processor(),
                          sentences={k: len(v) for k,v in gold.items()})

    def draw(self, n, seed):
        train = self.places['train']
        return train if n >= self.all else balanced(n, seed, train, self.y)

    def minilm(self):
        with (tempfile.TemporaryDirectory() as tmp,
              Side('minilm', python=self.sentence_python) as side):
            side('vectors', texts=[*self.texts], bs=32, out=f'{tmp}/v.npy')
            return np.load(f'{tmp}/v.npy')

    @cache
    def layers(self, pool):
        vectorizer = ElmoVectorizer(self.elmo, layers='all', pool=pool).fit(None)
        return vectorizer.transform(self.texts).reshape(len(self.y), self.elmo.n_layers, -1)

    def pooled(self, layers, pools):
        parts = [self.layers(pool)[:, layers].reshape(len(self.y), -1) for pool in pools]
        return np.concatenate(parts, 1)

    @cache
    def variants(self, side):
        "Name → (features, what they are made of), of what may be chosen"
        if side in COUNTED:
            return {name: (TfidfVectorizer(sublinear_tf=True, **how), self.texts)
                    for name,how in COUNTED[side].items()}
        if side == 'minilm': found = {'the sentence vector': self.minilm()}
        elif side == 'static':
            found = {f'layer 0, {k}': self.pooled([0], pools) for k,pools in POOLS.items()}
        else:
            found = {f'all layers, {k}': self.pooled([0, 1, 2], o) for k,o in POOLS.items()}
            found |= {f'layer {i}, mean and max': self.pooled([i], POOLS['mean and max'])
                      for i in (1, 2)}
        return {name: (StandardScaler(), vectors) for name,vectors in found.items()}

    def chosen(self, side, n, dev):
        "The best of `dev`, or what 1,000 labels chose"
        name = self.best[side, 1000] if n == self.all else max(dev, key=dev.get)
        dev = {v: round(float(accuracy), 4) for v,accuracy in dev.items()}
        self.best[side, n] = name
        self.found['chosen'].append(dict(side=side, labels=n, name=name, dev=dev))
        log(self.found['chosen'][-1])
        return name

    def note(self, side, n, decisions):
        "A row a draw: the accuracy on test; with all labels also which sentences were right"
        for draw,scores in enumerate(decisions):
            right = self.right(scores, 'test')
            kept = dict(right=np.packbits(right).tobytes().hex()) if n == self.all else {}
            test = round(float(np.mean(right)), 4)
            self.found['rows'].append(dict(side=side, labels=n, draw=draw, test=test, **kept))

    def right(self, decisions, part): return (decisions > 0) == self.y[self.places[part]]

    def regression(self, side, n):
        variants = self.variants(side)
        if n == self.all:
            name = self.best[side, 1000]
            variants = {name: variants[name]}
        train = [self.draw(n, d) for d in range(1 if n == self.all else self.draws)]
        def said(name, part):
            features, x = variants[name]
            model = head(features, x, self.y, part)
            return [model.decision_function(x[self.places[k]]) for k in ('valid', 'test')]
        heads = {name: [said(name, part) for part in train[:CHOOSE]] for name in variants}
        dev = {name: np.mean([self.right(valid, 'valid').mean() for valid,_ in found])
               for name,found in heads.items()}
        best = self.chosen(side, n, dev)
        heads[best] += [said(best, part) for part in train[CHOOSE:]]
        self.said[side, n] = heads[best]
        self.note(side, n, [test for _,test in heads[best]])

    def together(self, side, n):
        pairs = list(zip(self.said[side.split(' + ')[0], n], self.said['counts', n]))
        def summed(share, vectors, counts, i):
            return share*vectors[i]/vectors[0].std() + (1 - share)*counts[i]/counts[0].std()
        dev = {name: np.mean([self.right(summed(share, *pair, 0), 'valid').mean()
                              for pair in pairs[:CHOOSE]]) for name,share in SHARES.items()}
        share = SHARES[self.chosen(side, n, dev)]
        self.note(side, n, [summed(share, *pair, 1) for pair in pairs])

@call_parse
def main(
    sentence_python:str=None,               # the Python that has the sentence transformer
    draws:int=10,                           # of 100 and 1,000 labels
    json:Path=RESULTS/'instead_sst2.json'   # file of the figures
):
    "Measure all sides and write their figures"
    torch.set_num_threads(1)
    run = Run(sentence_python, draws)
    sides = ['counts', 'letters', 'static', 'box', 'box + counts']
    if sentence_python: sides += ['minilm', 'minilm + counts']
    for side in sides:
        for n in (100, 1000, run.all):
            (run.together if '+' in side else run.regression)(side, n)
    run.found['rows'].sort(key=lambda r: (r['labels'], r['side'], r['draw']))
    write_figures(json, run.found)
