"""ELMo against what one would take instead: sentiment (SST-2) with 100, 1,000 and all 6,920 labels.

    python tests/benchmarks/instead_sst2.py --sentence-python PYTHON      # half an hour of one core
    python tests/benchmarks/instead_sst2.py --quick          # does it work? Nothing is written

PYTHON has the sentence transformer's packages (see instead_sides.py); without it its rows are left
out. The text is SST-2 from ELMO_FASTAI_DATA/sst2, else from its home. A folder WORK keeps the
vectors of all sentences.

- `counts`, `letters`: TF-IDF of words and pairs, or of 2 to 5 letters inside words
- `box`: vectors of the model in the package, through `ElmoVectorizer`; `static`: those of its token
  layer alone
- `minilm`: vectors of all-MiniLM-L6-v2, through sentence-transformers
- `box + counts`, `minilm + counts`: the sum of what both say, each divided by its spread on dev
- `classifier`: the library's, on the box, by one of RECIPES

All but the last have one head: logistic regression on standardised vectors or on counts, its C
chosen by cross-validation among the labels of the draw. Which vectors, counts and recipe is chosen
on dev, with 100 and with 1,000 labels by the first draws; with all labels it is what 1,000 labels
chose. The test part is read once. Each side gets the same draws, as many sentences of each class.
With all labels there is one draw; the classifier then has several seeds.
"""
import os, tempfile, time
from functools import cache, cached_property
from pathlib import Path
import numpy as np, torch
from fastai.torch_core import set_seed
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler
from elmo_fastai.elmo import Elmo
from elmo_fastai.practice.vectorizer import ElmoVectorizer
from elmo_fastai.tagger import LayerCache
from elmo_fastai.learner import bf16_is_fast
from harness import RESULTS, opt, options, processor, read_figures, write_figures
from instead_sides import Side, with_python
from learners import (
    ADAMW, NoValidation, as_table, balanced, classifier_learner, review_loaders, unfreeze)
from sst2 import sst2

# rows of vectors and of counts have a length of about 1
CS = [10.**e for e in range(-1, 5)]
# vectors to counts, in a sum of what both say
SHARES = {'1 to 3': .25, '1 to 1': .5, '3 to 1': .75}
CHOOSE, CHOOSE_TRAINED = 3, 1                   # draws that choose
COUNTS = {'words': dict(token_pattern=r'\S+'),
          'words and pairs': dict(token_pattern=r'\S+', ngram_range=(1, 2))}
LETTERS = {'2 to 5 letters': dict(analyzer='char_wb', ngram_range=(2, 5), min_df=2)}
POOLS = {'mean': ['mean'], 'max': ['max'], 'mean and max': ['mean', 'max']}
HEAD = dict(pool='attention+max', dropout=.5, wd=.01)
STEPS = 30                                      # an epoch counts for so many steps at least
# words: (freeze_to, rate, epochs) one after the other
RECIPES = {
    'frozen': (64, [(-1, 3e-3, 4)]), 'frozen, no word vectors': (0, [(-1, 3e-3, 4)]),
    'phases': (64, [(-1, 3e-3, 1), (-2, 2e-3, 1), (-4, 2e-3, 2)]),
    'phases, no word vectors': (0, [(-1, 3e-3, 1), (-2, 2e-3, 1), (-4, 2e-3, 2)])}

def arguments():
    return options(__doc__,
        sentence_python=opt(None, "the Python that has the sentence transformer's packages"),
        data=opt(os.environ.get('ELMO_FASTAI_DATA'), 'folder with sst2'),
        draws=opt(10, 'draws of 100 and 1,000 labels'),
        trained=opt(5, 'draws of the classifier'),
        seeds=opt(3, 'seeds of the classifier with all labels'),
        sides=opt(None, 'only these; rows of others stay in the file', nargs='+'),
        work=opt(None, 'folder that keeps the vectors'),
        json=RESULTS/'instead_sst2.json',
        quick=opt(False, 'a tenth of the sentences, 100 labels, two draws'))

# The text

class Text:
    "All sentences in a row, with the places of each part"
    def __init__(self, data, quick=False):
        gold = sst2(Path(data)/'sst2' if data else None).gold
        step = 10 if quick else 1
        parts = {k: [(row.text, int(row.label)) for row in rows][::step] for k,rows in gold.items()}
        self.texts = [text for rows in parts.values() for text,_ in rows]
        self.labels = np.array([label for rows in parts.values() for _,label in rows])
        ends = np.cumsum([len(rows) for rows in parts.values()])
        self.places = {k: np.arange(end - len(parts[k]), end) for k,end in zip(parts, ends)}

    def draw(self, n, seed):
        """Places of `n` training sentences, as many of each class; a smaller draw is part of a
        larger one"""
        train = self.places['train']
        return train if n >= len(train) else balanced(n, seed, train, self.labels)

# Heads

class Counts:
    "Counts of texts, weighed as the training part says"
    def __init__(self, texts, kind):
        self.texts = texts
        self.kind = kind
    def fit(self, places):
        self.tfidf = TfidfVectorizer(sublinear_tf=True,
                                     **self.kind).fit([self.texts[i] for i in places])
        return self
    def rows(self, places): return self.tfidf.transform([self.texts[i] for i in places])

class Vectors:
    "Vectors [N, D], each number standardised by the training part, and then divided by √D"
    def __init__(self, vectors): self.vectors = vectors
    def fit(self, places):
        self.scaler = StandardScaler().fit(self.vectors[places])
        self.basis = None
        # what a regression learns lies in the span of its rows: N numbers do for D > N
        if len(places) < self.vectors.shape[1]: self.basis = np.linalg.qr(self.rows(places).T)[0]
        return self
    def rows(self, places):
        rows = self.scaler.transform(self.vectors[places])/np.float32(self.vectors.shape[1]**.5)
        return rows if self.basis is None else rows @ self.basis

class Head:
    "Logistic regression with the C that is best in parts of the training part"
    def __init__(self, features, y, train):
        folds = StratifiedKFold(5 if len(train) <= 1000 else 3, shuffle=True,
                                random_state=0).split(train, y[train])
        right = np.mean([self.scores(features, y, train[i], train[j]) for i,j in folds], 0)
        self.C = CS[right.argmax()]
        self.features = features.fit(train)
        self.model = LogisticRegression(C=self.C, max_iter=500).fit(features.rows(train), y[train])
    def scores(self, features, y, train, held):
        "The accuracy on `held` for each C"
        features.fit(train)
        x, other = features.rows(train), features.rows(held)
        model = LogisticRegression(max_iter=500, warm_start=True)
        return [model.set_params(C=C).fit(x, y[train]).score(other, y[held]) for C in CS]
    def __call__(self, places): return self.model.decision_function(self.features.rows(places))

# The measurement

class Run:
    def __init__(self, args):
        self.args = args
        self.text = Text(args.data, args.quick)
        self.y = self.text.labels
        self.all = len(self.text.places['train'])
        self.sizes = [100] if args.quick else [100, 1000, self.all]
        self.elmo = Elmo.from_pretrained('mini-en')
        # (side, labels) → decisions on dev and test of each draw
        self.said = {}
        nothing = dict(rows=[], chosen=[])
        self.found = read_figures(args.json, nothing) if args.sides else nothing
        self.found |= dict(processor=processor(),
                           versions=with_python('torch', 'scikit-learn', 'fastai'),
                           sentences={k: len(v) for k,v in self.text.places.items()})

    def kept(self, name, make):
        "An array from WORK, made if it is not there"
        file = (
            Path(self.args.work)/f'{name}.npy' if self.args.work and not self.args.quick else None)
        if file and file.exists(): return np.load(file)
        made = make()
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, made)
        return made

    @cached_property
    def minilm(self):
        "Vectors of all sentences"
        def ask():
            with (tempfile.TemporaryDirectory() as tmp,
                  Side('minilm', python=self.args.sentence_python) as side):
                side('vectors', texts=self.text.texts, bs=32, out=f'{tmp}/v.npy')
                return np.load(f'{tmp}/v.npy')

        return self.kept('minilm', ask)

    @cache
    def layers(self, pool):
        "Pooled vectors of all layers, [sentences, layers, numbers]"
        vectorizer = ElmoVectorizer(self.elmo, layers='all', pool=pool).fit(None)
        return self.kept(f'box-{pool}',
                         lambda: vectorizer.transform(self.text.texts)).reshape(len(self.y),
                                                                                self.elmo.n_layers,
                                                                                -1)

    def pooled(self, layers, pools):
        parts = [self.layers(pool)[:, layers].reshape(len(self.y), -1) for pool in pools]
        return np.concatenate(parts, 1)

    @cache
    def variants(self, side):
        "Name → features, of what may be chosen"
        if side == 'counts':
            return {name: Counts(self.text.texts, kind) for name,kind in COUNTS.items()}
        if side == 'letters':
            return {name: Counts(self.text.texts, kind) for name,kind in LETTERS.items()}
        if side == 'minilm': return {'the sentence vector': Vectors(self.minilm)}
        if side == 'static':
            return {f'layer 0, {pool}': Vectors(self.pooled([0], pools))
                    for pool,pools in POOLS.items()}
        kinds = {f'all layers, {pool}': ([0, 1, 2], pools) for pool,pools in POOLS.items()}
        kinds |= {f'layer {i}, mean and max': ([i], POOLS['mean and max']) for i in (1, 2)}
        return {name: Vectors(self.pooled(layers, pools)) for name,(layers, pools) in kinds.items()}

    def choice(self, side, n):
        return next(c['name'] for c in self.found['chosen'] if c['side'] == side
                    and c['labels'] == n)

    def note(self, side, n, dev, rows):
        "Keeps a choice, by the mean on dev, and its rows; `rows` makes them from its name"
        best = (self.choice(side, 1000) if n == self.all and not self.args.quick
                else max(dev, key=dev.get))
        for table in ('rows', 'chosen'):
            self.found[table] = [r for r in self.found[table]
                                 if (r['side'], r['labels']) != (side, n)]
        dev = {v: round(float(accuracy), 4) for v,accuracy in dev.items()}
        self.found['chosen'].append(dict(side=side, labels=n, name=best, dev=dev))
        new = rows(best)
        self.found['rows'] += new
        print(f"{time.process_time():6.0f} s  {side:17}{n:6,}  test "
              f"{np.mean([r['test'] for r in new]):.4f}  {best}  {dev}", flush=True)
        self.save()

    def row(self, side, n, draw, right, **more):
        "A row with the accuracy on test; with all labels also which sentences were right"
        kept = dict(right=np.packbits(right).tobytes().hex()) if n == self.all else {}
        return dict(side=side, labels=n, draw=draw, test=round(float(np.mean(right)), 4), **more,
                    **kept)

    def right(self, decisions, part): return (decisions > 0) == self.y[self.text.places[part]]

    def regression(self, side, n):
        places = self.text.places
        draws = range(1 if n == self.all else self.args.draws)
        variants = self.variants(side)
        if n == self.all and not self.args.quick:
            variants = {k: v for k,v in variants.items() if k == self.choice(side, 1000)}
        train = [self.text.draw(n, d) for d in draws]
        heads, dev = {}, {}
        for name,features in variants.items():
            found = []
            for part in train[:CHOOSE]:
                head = Head(features, self.y, part)
                found.append((head.C, head(places['valid']), head(places['test'])))
            heads[name] = found
            dev[name] = np.mean([self.right(valid, 'valid').mean() for _,valid,_ in found])
        def rows(best):
            for part in train[len(heads[best]):]:
                head = Head(variants[best], self.y, part)
                heads[best].append((head.C, head(places['valid']), head(places['test'])))
            self.said[side, n] = heads[best]
            return [self.row(side, n, d, self.right(test, 'test'), C=C)
                    for d,(C, _, test) in enumerate(heads[best])]
        self.note(side, n, dev, rows)

    def together(self, side, n):
        pairs = list(zip(self.said[side.split(' + ')[0], n], self.said['counts', n]))
        def summed(share, vectors, counts, i):
            return share*vectors[i]/vectors[1].std() + (1 - share)*counts[i]/counts[1].std()
        dev = {name: np.mean([self.right(summed(share, *pair, 1), 'valid').mean()
                              for pair in pairs[:CHOOSE]]) for name,share in SHARES.items()}
        def rows(best):
            return [self.row(side, n, d, self.right(summed(SHARES[best], *pair, 2), 'test'))
                    for d,pair in enumerate(pairs)]
        self.note(side, n, dev, rows)

    def train(self, recipe, n, draw):
        "The classifier after a recipe: which answers on dev and on test are right"
        words, phases = RECIPES[recipe]
        def rows_at(places): return [(self.text.texts[i], int(self.y[i])) for i in places]
        rows = dict(train=rows_at(self.text.draw(n, draw)),
                    valid=rows_at(self.text.places['valid']),
                    test=rows_at(self.text.places['test']))
        elmo = Elmo.from_pretrained('mini-en', norm='token', dropout=.4, tokenizer='space')
        set_seed(draw)
        dls = review_loaders(rows, char_vocab=elmo.char_vocab)
        learn = classifier_learner(dls, elmo, words=words, cache=self.cache, opt_func=ADAMW,
                                   **HEAD)
        if bf16_is_fast('cpu'): learn.to_bf16()
        times = -(-STEPS//len(dls.train))
        for to,rate,epochs in phases:
            unfreeze(learn, to, rate, epochs*times, cbs=NoValidation())
        with learn.no_bar(), learn.no_logging():
            answers = [learn.get_preds(dl=dls.test_dl(as_table(rows[split]), with_labels=True))
                       for split in ('valid', 'test')]
        return [(scores.argmax(1) == targets).numpy() for scores,targets in answers]

    def classifier(self, n):
        self.cache = LayerCache()
        several = 1 if self.args.quick else self.args.seeds if n == self.all else self.args.trained
        recipes = RECIPES
        if n == self.all and not self.args.quick: recipes = [self.choice('classifier', 1000)]
        found = {name: [self.train(name, n, d) for d in range(min(several, CHOOSE_TRAINED))]
                 for name in recipes}
        dev = {name: np.mean([valid.mean() for valid,_ in answers])
               for name,answers in found.items()}
        def rows(best):
            answers = found[best]
            answers += [self.train(best, n, d) for d in range(len(answers), several)]
            return [self.row('classifier', n, d, test) for d,(_, test) in enumerate(answers)]
        self.note('classifier', n, dev, rows)

    def save(self):
        if self.args.quick: return
        self.found['rows'].sort(key=lambda r: (r['labels'], r['side'], r['draw']))
        write_figures(self.args.json, self.found)

def main(args):
    if args.quick: args.draws = 3
    torch.set_num_threads(1)
    run = Run(args)
    sides = ['counts', 'letters', 'static', 'box', 'box + counts']
    if args.sentence_python: sides += ['minilm', 'minilm + counts']
    else: print('minilm is left out: name the Python that has its packages with --sentence-python')
    for side in sides + ['classifier']:
        if args.sides and side not in args.sides: continue
        for n in run.sizes:
            if side == 'classifier': run.classifier(n)
            elif side.endswith(' + counts'): run.together(side, n)
            else: run.regression(side, n)
    run.save()
    return run.found

if __name__ == '__main__': main(arguments())
