"""How many labels is a language model worth? IMDb's reviews, of 100 to 25,000 labels (a study).

    python tests/benchmarks/imdb.py --adapt         # go on with the pretraining, on reviews: hours
    python tests/benchmarks/imdb.py                 # all rows that are not there yet: hours
    python tests/benchmarks/imdb.py --dry           # what is to be done
    python tests/benchmarks/imdb.py --quick         # a trial of every kind of row
    python tests/benchmarks/imdb.py --again         # with another adapted model, all of its rows

A run that was stopped, also in the middle of the pretraining, goes on where it was. Texts come from
ELMO_FASTAI_DATA/imdb, else from the hub; what is made on the way is kept in WORK.

- Three backbones of one shape: `random`, normalised; `box`, the model MODEL; `adapted`, the same
  gone on with its pretraining on the reviews that have no label.
- Five ways: `counts`, TF-IDF of words and pairs with logistic regression; `lsa`, what 300
  directions keep of the counts, found on the reviews that have no label (Deerwester et al. 1990);
  `frozen`, logistic regression on the mean and the spread of each layer; `together`, the sum of
  what `counts` and `frozen` say, each divided by its spread; `phases`, the classifier of the
  library, first on the frozen backbone, then with all of it.
- Three more, where `--ways` names them: `beside`, as `together`, with `lsa` for the counts; and two
  controls of `phases`: `words`, without a backbone, and `bare`, without word vectors of its own.
- What has to be chosen is chosen on 2,500 of the training reviews, with draws of labels that are
  not reported, once for a number of labels. A row reads the test part once.
"""
import json, math, os, re, time
from functools import cached_property
from itertools import product
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, torch
from torch import nn
from fastai.basics import noop
from fastai.torch_core import set_seed
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from elmo_fastai.text.read import from_hub
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.practice.folder import load_bilm
from elmo_fastai.practice.embed import digest
from elmo_fastai.elmo import Elmo
from elmo_fastai.practice.command import pretrain
from elmo_fastai.learner import bf16_is_fast
from elmo_fastai.practice.checkpoint import checkpoints_in
from elmo_fastai.classifier import random_elmo
from elmo_fastai.tagger import LayerCache
from harness import RESULTS, has, log, opt, options, read_figures, write_figures
from learners import (
    ADAMW, BesideWords, NoValidation, accuracy_on, balanced, classifier_learner, review_loaders,
    unfreeze)
from sst2 import sst2

SIZES = 100, 200, 500, 1000, 5000, 25_000
DRAWS = {5000: 3, 25_000: 1}                    # others: 5
N_VALID, OTHER = 2500, (100, 101, 102)          # draws to choose with, and not to report
WORDS = 200, 200                                # of a longer review: from its beginning, its end
POOLS = dict(mean=np.mean, spread=np.std, max=np.max)
FROZEN = 'mean', 'spread'
READ = {'all': (10**6, 0), 'first 200 and last 200': (200, 200), 'first 400': (400, 0),
        'first 100 and last 100': (100, 100), 'first 200': (200, 0), 'last 200': (0, 200)}
TOGETHER = dict(together='counts', beside='lsa')
BACKBONES, CHUNK = ('random', 'box', 'adapted'), 2500
COUNTED = dict(token_pattern=r'\S+', ngram_range=(1, 2))
LSA = dict(size=300, min_df=10)
GRID = dict(counts=(1, 3, 10, 30, 100), lsa=(.3, 1, 3, 10, 30),
            frozen=(1e-4, 1e-3, 3e-3, 1e-2, 3e-2))
ADAPT = dict(epochs=2, lr=4e-3, bs=32, seq_len=64, min_freq=3, max_vocab=20_000)
HEAD = dict(pool='attention+max', words=64, dropout=.5, wd=.01)
PHASES = ((-1, 3e-3, 1), (-2, 2e-3, 1), (-4, 2e-3, 2))    # freeze_to, rate, rounds
STEPS = 100                                     # a round has so many at least, and an epoch
VARIANTS = {'as for SST-2': {}, 'no word vectors': dict(words=0),
            'mean + max': dict(pool='mean+max'), 'half the rates': dict(rate=.5),
            'half the steps': dict(steps=STEPS//2), 'twice the steps': dict(steps=2*STEPS)}

def letters(text): return re.sub('[^a-z0-9]', '', text.lower())
def clauses(text):
    "What stands between two marks, if it is long enough to be somebody's own"
    return {o for o in map(letters, re.split('[.!?:;()"]', text)) if len(o) >= 20}
def spread(scores): return scores.std() or 1
def plain(text): return ' '.join(text.replace('<br />', ' ').split())

# ---- text
class Reviews:
    "The parts of IMDb: texts, tokens, labels"
    def __init__(self, data=None, most=None):
        folder = Path(data)/'imdb' if data else None
        names = dict(train='train', test='test', unsup='unsupervised')
        def local(k): return pd.read_parquet(folder/f'{k}.parquet')
        def hub(k): return from_hub(f'hub:stanfordnlp/imdb::{names[k]}').shuffle(seed=0).to_pandas()
        parts = {k: (local if folder and folder.is_dir() else hub)(k) for k in names}
        parts = {k: df if k == 'unsup' else df[:most] for k,df in parts.items()}
        self.texts = {k: [plain(o) for o in df.text] for k,df in parts.items()}
        self.labels = {k: parts[k].label.to_numpy() for k in ('train', 'test')}
        self.all = np.arange(len(self.labels['train']))
        self.valid = np.sort(self.some(min(N_VALID, len(self.all)//4), 'valid', self.all))
        self.pool = np.setdiff1d(self.all, self.valid)
        self.kept = {}

    def some(self, n, seed, among):
        "`n` training reviews, as many of each class; a smaller draw is a part of a larger one"
        return balanced(n, [*str(seed).encode()], among, self.labels['train'])

    def draw(self, n, seed):
        "Places of the reviews whose labels are known; none of those that validate, if it may be"
        if n < len(self.pool): return self.some(n, seed, self.pool)
        return self.pool if seed in OTHER else self.all

    def tokens(self, split):
        if split not in self.kept:
            tok = get_tokenizer('words')
            self.kept[split] = [tok(o) for o in self.texts[split]]
        return self.kept[split]

    def joined(self, split): return [' '.join(o) for o in self.tokens(split)]

    @cached_property
    def counted(self):
        "How often each word and pair stands in the labelled reviews: counted once for all rows"
        count = CountVectorizer(**COUNTED)
        x = dict(train=count.fit_transform(self.joined('train')))
        return x | dict(test=count.transform(self.joined('test')))

    @cached_property
    def directions(self):
        "What `LSA` keeps of each labelled review, [N, 300], learned where the adapted model reads"
        tok, (texts, _) = get_tokenizer('words'), self.unlabelled()
        weigh = TfidfVectorizer(**COUNTED, sublinear_tf=True, min_df=LSA['min_df'])
        model = make_pipeline(weigh, TruncatedSVD(LSA['size'], random_state=0), Normalizer())
        model.fit([' '.join(tok(o)) for o in texts])
        return {k: model.transform(self.joined(k)) for k in ('train', 'test')}

    def unlabelled(self):
        """The reviews to go on with, and what is left out: reviews of the test part, and those
        with a sentence of SST-2, dev or test (or a part of one, from mark to mark)"""
        texts, sst = self.texts['unsup'], sst2().gold
        test, mine = set(map(letters, self.texts['test'])), [clauses(o) for o in texts]
        seen = {i for i,o in enumerate(texts) if letters(o) in test}
        all_of = set().union(*mine)
        found = {k: [clauses(s.text) & all_of for s in sst[k]] for k in ('valid', 'test')}
        theirs = set().union(*found['valid'], *found['test'])
        held = {i for i,o in enumerate(mine) if o & theirs}
        about = dict(in_test=len(seen), with_sst=len(held), reviews=len(texts) - len(seen | held),
                     sst_dev=sum(map(bool, found['valid'])), sst_test=sum(map(bool, found['test'])))
        return [o for i,o in enumerate(texts) if i not in seen | held], about

def cut(tokens, head=WORDS[0], tail=WORDS[1]):
    "A long review without its middle"
    return tokens if len(tokens) <= head + tail else tokens[:head] + tokens[len(tokens)-tail:]

# ---- going on with the pretraining
def adapt(a, reviews, folder):
    """What the command makes of reviews without labels, in two files:

        elmo_pretrain reviews --from mini-en --min-freq 3 --max-vocab 20000 --bs 32 --epochs 2
    """
    texts, about = reviews.unlabelled()
    how = dict(ADAPT, From=a.model, device='cpu')
    if a.quick: texts, a.minutes = texts[:3000], .5
    if a.minutes: how = {**how, 'time': 60*a.minutes, 'epochs': None}
    n, run = len(texts) - min(1000, len(texts)//10), folder.with_name('adapted.run')
    if checkpoints_in(run): pretrain(resume=run, device='cpu')
    else:
        made = folder.with_name('reviews')
        made.mkdir(parents=True, exist_ok=True)
        for split,o in dict(train=texts[:n], valid=texts[n:]).items():
            (made/f'{split}.txt').write_text('\n'.join(o) + '\n', encoding='utf-8')
        pretrain(str(made), folder, **how)
    f = json.loads((folder/'report.json').read_text(encoding='utf-8'))
    epochs = None if a.minutes else ADAPT['epochs']
    about |= dict(ADAPT, epochs=epochs, fwd=f['perplexity_fwd'], bwd=f['perplexity_bwd'],
                  words=len(load_bilm(folder)[1]), hours=round(f['seconds']/3600, 2),
                  tokens=round(f['seconds']*f['tokens_per_second']),
                  tokens_per_second=round(f['tokens_per_second']))
    write_figures(folder.with_suffix('.json'), about)
    log(json.dumps(about))

# ---- rows
class OnlyWords(BesideWords):
    "The classifier with vectors of words, without those of its backbone"
    def __init__(self, *args, words, proj_dim=128, **kwargs):
        super().__init__(*args, words=words, proj_dim=proj_dim, **kwargs)
        self.proj = nn.Sequential(nn.Linear(words, proj_dim), nn.ReLU())

    def vectors(self, chars):
        chars = chars.as_subclass(torch.Tensor)
        return self.proj(self.elmo.drop(self.words(chars))), chars[..., 0] != 0

class Run:
    def __init__(self, a):
        self.a, self.out, self.work = a, Path(a.json), Path(a.work)
        self.reviews = Reviews(a.data, a.most)
        self.bf16 = bf16_is_fast(torch.device('cpu'))
        self.made, self.last = {}, (None, None)
        self.box = Elmo.from_pretrained(a.model, norm='token', dropout=.4)
        old = read_figures(self.out, {})
        now = dict(model=self.box.lm.config.name, trial=a.trial or a.quick)
        if old and not old['trial'] and now['trial']:
            raise SystemExit(f'{self.out} is no trial: name another file with --json')
        nothing = dict(pooling=[], reading=[], sst=[], settings=[], films=[], paired=[])
        self.d = dict(rows=[], chosen={}, **nothing) | old | now
        if any(old.get(k, v) != v for k,v in now.items()):       # what another backbone gave
            rows = [r for r in self.d['rows'] if r['way'] in ('counts', 'lsa')]
            chosen = {k: v for k,v in self.d['chosen'].items() if k.startswith(('counts', 'lsa'))}
            self.d |= dict(rows=rows, chosen=chosen, **nothing)
            self.d.pop('adaptation', None)
        self.adapted = read_figures(self.work/'adapted.json', {})
        if self.adapted and not any(r.get('side') == 'adapted' for r in self.d['rows']):
            self.d['adaptation'] = self.adapted
        self.mixes = bool(self.adapted) and self.d.get('adaptation') != self.adapted
        if self.mixes and a.again: self.set_aside()
        if self.mixes: log('the rows have another adaptation: only --more sst takes this one')
        self.d |= dict(valid=len(self.reviews.valid), words=WORDS, phases=PHASES, steps=STEPS,
                       head=HEAD, parameters=sum(p.numel() for p in self.box.lm.parameters()))

    def set_aside(self):
        "What another adapted model gave moves to `earlier`; the one that is there begins anew"
        mine = [r for r in self.d['rows'] if r['side'] == 'adapted']
        self.d['earlier'] = dict(adaptation=self.d['adaptation'], rows=mine)
        self.d['rows'] = [r for r in self.d['rows'] if r['side'] != 'adapted']
        self.d['pooling'] = [r for r in self.d['pooling'] if r['side'] != 'adapted']
        self.d['chosen'] = {k: v for k,v in self.d['chosen'].items() if 'adapted' not in k}
        self.d['adaptation'], self.mixes = self.adapted, False

    def save(self): write_figures(self.out, self.d)

    def backbone(self, side, seed=0):
        "A frozen `Elmo`"
        if side == 'box': return self.box
        if side == 'random':
            key = side, seed % self.a.random
            if key not in self.made:
                self.made[key] = random_elmo(self.box, key[1], self.reviews.texts['train'])
            return self.made[key]
        if side not in self.made:
            self.made[side] = Elmo.from_pretrained(self.work/side, norm='token', dropout=.4)
        return self.made[side]

    def sides(self):
        there = (self.work/'adapted').is_dir() and not self.mixes
        return [o for o in self.a.backbones if there or o != 'adapted']

    # -- counts
    def counts(self, train, C, test):
        """How much each asked review looks like praise. As with `TfidfVectorizer`: words and pairs,
        and how rare they are, are those of the draw"""
        x, y, valid = self.reviews.counted, self.reviews.labels, self.reviews.valid
        known = np.flatnonzero(x['train'][train].getnnz(0))
        regression = LogisticRegression(C=C, max_iter=300)
        model = make_pipeline(TfidfTransformer(sublinear_tf=True), regression)
        model.fit(x['train'][train][:, known], y['train'][train])
        asked = x['train'][valid] if test == 'valid' else x['test']
        return model.decision_function(asked[:, known])

    def regression(self, x, train, C, test):
        "How much each asked review looks like praise, by its row in `x`"
        y, valid = self.reviews.labels['train'], self.reviews.valid
        model = LogisticRegression(C=C, max_iter=300).fit(x['train'][train], y[train])
        return model.decision_function(x['train'][valid] if test == 'valid' else x['test'])

    def lsa(self, train, C, test): return self.regression(self.reviews.directions, train, C, test)

    def right(self, scores, split, places):
        "The share of these reviews that `scores` put on their side of zero"
        return float(np.mean((scores > 0) == self.reviews.labels[split][places]))
    def right_valid(self, scores): return self.right(scores, 'train', self.reviews.valid)

    # -- frozen
    def name(self, side, seed): return f"{side}-{digest(self.backbone(side, seed))[:12]}"

    def pooled(self, side, seed, split):
        "Each of `POOLS` of each layer over each review, [N, 3, L+1, D] in half precision"
        elmo, name = self.backbone(side, seed), self.name(side, seed)
        toks = self.reviews.tokens(split)
        def chunk(i):
            f = self.work/name/f'{split}-{i:05}.npy'
            if not f.exists():
                f.parent.mkdir(parents=True, exist_ok=True)
                res = self.pool_of(elmo, toks[i:i+CHUNK])
                np.save(f.with_name(f'.{f.name}'), res)
                f.with_name(f'.{f.name}').rename(f)
            return np.load(f)
        return np.concatenate([chunk(i) for i in range(0, len(toks), CHUNK)])

    def pool_of(self, elmo, toks):
        vecs = elmo.embed_iter(toks, 'all', bf16=self.bf16)
        res = [np.stack([f(v, 1) for f in POOLS.values()]).astype(np.float16) for v in vecs]
        return np.stack(res)

    def features(self, side, seed, pools):
        "Pooled vectors of both parts, standardised by those to learn from; the last ones are kept"
        key = side, seed % self.a.random if side == 'random' else 0, pools
        if key != self.last[0]:
            self.last, x = (None, None), {}
            for split in ('train', 'test'):
                at = [*map([*POOLS].index, pools)]
                x[split] = self.pooled(side, seed, split)[:, at].astype(np.float32)
                x[split] = x[split].reshape(len(x[split]), -1)
            mean, std = x['train'].mean(0), x['train'].std(0) + 1e-3       # no label is needed
            for o in x.values():
                o -= mean
                o /= std
            self.last = key, x
        return self.last[1]

    def frozen(self, side, seed, train, C, test, pools=FROZEN):
        return self.regression(self.features(side, seed, pools), train, C, test)

    # -- two phases
    def asked_of(self, split, places):
        toks, y = self.reviews.tokens(split), self.reviews.labels[split]
        return [(' '.join(cut(toks[i])), int(y[i])) for i in places]

    def asked(self, n):
        "Places of the test reviews to read: fewer where the draw of the labels matters more"
        y = self.reviews.labels['test']
        if n >= 5000: return np.arange(len(y))
        return np.sort(np.random.default_rng(0).permutation(len(y))[:self.a.test])

    def phases(self, side, seed, train, held, rate=1, steps=STEPS, whole=False, **head):
        """How much each of the reviews `held`, (split, places), looks like praise, after gradual
        unfreezing; no side: `words`. `whole`: two rows, the second one without a cut"""
        elmo, n = self.backbone(side or 'box', seed), len(train)
        data = dict(train=self.asked_of('train', train), valid=self.asked_of(*held))
        set_seed(seed)
        dls = review_loaders(data, bs=32 if n >= 1000 else 16, val_bs=64, char_vocab=elmo.char_vocab)
        cache = LayerCache(4000) if n <= 1000 else False
        head = HEAD | head
        learn = classifier_learner(dls, elmo, cache=cache, opt_func=ADAMW, **head)
        if not side:
            head.pop('wd')
            learn.model = OnlyWords(learn.model.elmo, len(dls.vocab), **head)
            learn.create_opt()                          # of this model's parameters
        if self.bf16: learn.to_bf16()
        for to,lr,rounds in PHASES:
            epochs = rounds*math.ceil(steps/len(dls.train))
            unfreeze(learn, to if side else -1, rate*lr, epochs, cbs=NoValidation())
        with learn.no_bar(), learn.no_logging():
            learn.model.cache = None                    # what it is asked, it is asked once
            toks, res = [self.reviews.tokens(held[0])[i] for i in held[1]], []
            for o in ([*map(cut, toks)], toks)[:1 + whole]:
                y, _ = learn.get_preds(dl=dls.test_dl([*map(' '.join, o)]), act=noop)
                res.append((y[:, 1] - y[:, 0]).float().numpy())
            return np.stack(res) if whole else res[0]

    def file_of(self, way, side, n, draw):
        name = self.name(side, draw) if side else 'none'
        return self.work/'scores'/f'{way}-{name}-{n}-{draw}.npy'

    def said(self, way, side, n, draw):
        "What `phases`, or a control, says of the asked reviews, cut and whole, [2, N]; kept"
        f, how = self.file_of(way, side, n, draw), self.best_settings()
        if way == 'words': how = how | dict(words=HEAD['words'])
        if way == 'bare': how = how | dict(words=0)
        if not f.exists():
            f.parent.mkdir(parents=True, exist_ok=True)
            train, held = self.reviews.draw(n, draw), ('test', self.asked(n))
            np.save(f.with_name(f'.{f.name}'),
                    self.phases(side, draw, train, held, whole=True, **how))
            f.with_name(f'.{f.name}').rename(f)
        return np.load(f)

    def settings(self, n=1000):
        "Settings of the two phases, on the reviews that validate; the rows take the best"
        for name,how in VARIANTS.items():
            if has(self.d['settings'], dict(name=name)): continue
            held = 'train', self.reviews.valid[::self.a.skip]
            got = [self.right(self.phases('box', d, self.reviews.draw(n, d), held, **how), *held)
                   for d in OTHER[:2]]
            self.note('settings', dict(name=name, labels=n, accuracy=got))

    def best_settings(self):
        tried = self.d['settings']
        return VARIANTS[max(tried, key=lambda r: np.mean(r['accuracy']))['name']] if tried else {}

    # -- what is chosen, once for a number of labels, and never on a draw that is reported
    def choose(self, way, n, side=None):
        name = ' '.join(filter(None, (way, side, str(n))))
        if name not in self.d['chosen']:
            draws = [self.reviews.draw(n, d) for d in (OTHER[:1] if n >= 5000 else OTHER)]
            def score(C, o):
                if side: return self.right_valid(self.frozen(side, 0, o, C, 'valid'))
                return self.right_valid(getattr(self, way)(o, C, 'valid'))
            mean = {C: round(float(np.mean([score(C, o) for o in draws])), 4) for C in GRID[way]}
            self.d['chosen'][name] = dict(C=max(mean, key=mean.get), valid=mean)
            self.save()
            log('chosen', name, self.d['chosen'][name])
        return self.d['chosen'][name]['C']

    # -- rows
    def plan(self):
        "What is to be done: dictionaries, those that are there left out"
        todo = []
        for way in self.a.ways:
            sides = [None] if way in ('counts', 'lsa', 'words') else self.sides()
            for side,draw,n in product(sides, range(self.a.draws), self.a.sizes):
                if draw >= DRAWS.get(n, 5): continue
                todo.append(dict(way=way, side=side, labels=n, draw=draw))
        return [o for o in todo if not has(self.d['rows'], o)]

    def row(self, way, side, labels, draw):
        train = self.reviews.draw(labels, draw)
        def alone(way): return getattr(self, way)(train, self.choose(way, labels), 'test')
        def frozen():
            return self.frozen(side, draw, train, self.choose('frozen', labels, side), 'test')
        if way in ('counts', 'lsa'): return self.found(alone(way), labels)
        if way == 'frozen': return self.found(frozen(), labels)
        if way in TOGETHER:
            both = alone(TOGETHER[way]), frozen()
            return self.found(sum(o/spread(o) for o in both), labels)
        asked = self.asked(labels)
        def right(scores): return round(self.right(scores, 'test', asked), 4)
        cut, whole = self.said(way, side, labels, draw)
        return dict(accuracy=right(cut), whole=right(whole), test=len(asked))

    def found(self, scores, n):
        "Accuracy on the test reviews; `part`, on those that the two phases are asked, where fewer"
        right, asked = (scores > 0) == self.reviews.labels['test'], self.asked(n)
        part = dict(part=round(float(right[asked].mean()), 4)) if len(asked) < len(right) else {}
        return dict(accuracy=round(float(right.mean()), 4), test=len(right), **part)

    def all(self):
        todo = self.plan()
        log(f'{len(todo)} rows')
        for o in todo:
            log(*o.values())
            if self.a.dry: continue
            start = time.perf_counter()
            found = self.row(**o)
            self.d['rows'].append(dict(o, **found, seconds=round(time.perf_counter() - start, 1)))
            self.save()
            log(*o.values(), found)

    def note(self, part, row):
        self.d[part].append(row)
        self.save()
        log(row)

    # -- smaller questions, on the reviews that validate
    def pooling(self, n=1000):
        "How the vectors of a review become one: frozen, on the reviews that validate"
        for side in self.sides():
            for pools in [*((o,) for o in POOLS), FROZEN, ('mean', 'max'), tuple(POOLS)]:
                name = ' + '.join(pools)
                if has(self.d['pooling'], dict(side=side, pool=name)): continue
                def right(C, d):
                    o = self.frozen(side, 0, self.reviews.draw(n, d), C, 'valid', pools)
                    return self.right_valid(o)
                got = {C: [right(C, d) for d in OTHER] for C in GRID['frozen']}
                best = max(got.values(), key=np.mean)
                self.note('pooling', dict(side=side, pool=name, labels=n, accuracy=best))

    def reading(self, n=1000):
        "How much of a review is read: frozen, box, on the reviews that validate"
        r, draws = self.reviews, [self.reviews.draw(n, d) for d in OTHER]
        need = np.unique(np.concatenate([*draws, r.valid]))
        toks, y = [r.tokens('train')[i] for i in need], r.labels['train'][need]
        valid, *draws = [np.searchsorted(need, o) for o in (r.valid, *draws)]
        for name,how in READ.items():
            if has(self.d['reading'], dict(read=name)): continue
            some = [cut(o, *how) for o in toks]
            x = self.pool_of(self.box, some)[:,:len(FROZEN)].reshape(len(need), -1)
            x = x.astype(np.float32)
            x = (x - x.mean(0))/(x.std(0) + 1e-3)
            def score(C, train):
                model = LogisticRegression(C=C, max_iter=300).fit(x[train], y[train])
                return model.score(x[valid], y[valid])
            best = max(([score(C, o) for o in draws] for C in GRID['frozen']), key=np.mean)
            share = sum(map(len, some))/sum(map(len, toks))
            row = dict(read=name, accuracy=best, share=round(share, 3), labels=n)
            self.note('reading', row)

    def films(self, n=25_000):
        """What is learned of single films? Reviews that validate are of films that were learned
        from, those of the test part of others"""
        r = self.reviews
        train, places = r.draw(n, OTHER[0]), np.arange(len(r.labels['test']))
        held = [('train', r.valid), ('test', places)]
        for way in ('counts', 'lsa', 'words'):
            if has(self.d['films'], dict(way=way)): continue
            def said(split, places):
                how = dict(words=HEAD['words'])
                if way == 'words': return self.phases(None, 0, train, (split, places), **how)
                C = self.choose(way, n)
                return getattr(self, way)(train, C, split.replace('train', 'valid'))
            same, other = (self.right(said(*o), *o) for o in held)
            self.note('films', dict(way=way, labels=len(train), same=same, other=other))

    def paired(self, n=25_000):
        """What was trained on all labels, against counts on the same test reviews: points, and half
        of the 95 % interval of these reviews (from those that only one of the two gets right)"""
        train, y = self.reviews.draw(n, 0), self.reviews.labels['test'][self.asked(n)]
        counts = self.counts(train, self.choose('counts', n), 'test')[self.asked(n)]
        x = {}
        for way,side in (('words', None), ('phases', 'adapted'), ('bare', 'adapted')):
            if side in (None, *self.sides()):
                x[way], x[f'{way}, whole'] = self.said(way, side, n, 0)
        both = {f'counts + {k}': counts/spread(counts) + v/spread(v) for k,v in x.items()}
        def row(a, b):
            d = ((a > 0) == y).astype(int) - ((b > 0) == y)
            half = 1.96*d.std()/len(d)**.5
            return dict(points=round(100*float(d.mean()), 2), half=round(100*float(half), 2))
        found = [dict(who=k, against='counts', accuracy=round(float(((v > 0) == y).mean()), 4),
                      **row(v, counts)) for k,v in (x | both).items()]
        if 'bare' in x:
            found.append(dict(who='bare', against='phases', **row(x['bare'], x['phases'])))
        self.d['paired'] = found
        self.save()
        for o in found: log(o)

    def sst(self):
        "SST-2, whole sentences, both phases with learned word vectors: the script classify.py"
        import classify
        done = [r['side'] for r in self.d['sst']]
        for side in (o for o in ('box', 'adapted') if o in self.a.backbones and o not in done):
            if side == 'adapted' and not (self.work/side).is_dir(): continue
            model = self.a.model if side == 'box' else self.work/side
            how = dict(data=self.a.data, quick=self.a.quick, json=None)
            c, seeds = classify.Run(SimpleNamespace(model=model, **how)), range(self.a.draws)
            alone = [classify.last(c.phase1(c.elmo, s, **classify.ALONE)) for s in seeds]
            learners = [c.phase1(c.elmo, s, **classify.SHORT) for s in seeds]
            dev = [c.phase2(o)[-1] for o in learners]
            with learners[0].no_bar(): test = accuracy_on(learners[0], c.rows['test'])
            row = dict(side=side, frozen=alone, dev=dev, test=test)
            if side == 'adapted': row['adaptation'] = self.adapted
            self.note('sst', row)

def arguments():
    return options(__doc__,
        model=opt('mini-en', 'the box: a folder, or a name'),
        data=opt(os.environ.get('ELMO_FASTAI_DATA'), 'has imdb and sst2'),
        work=opt('models/imdb', 'what is made on the way'),
        json=RESULTS/'imdb.json',
        adapt=opt(False, 'go on with the pretraining'),
        again=opt(False, 'set the rows of another adaptation aside'),
        minutes=opt(None, 'of --adapt, in the place of a whole epoch', type=float),
        ways=opt(['counts', 'lsa', 'frozen', 'together', 'phases'], nargs='*'),
        backbones=opt(BACKBONES, nargs='+', choices=BACKBONES),
        sizes=opt(SIZES, type=int, nargs='+'),
        draws=opt(5, 'of labels, at most'),
        random=opt(3, 'different random backbones'),
        test=opt(5000, 'reviews that `phases` is asked, up to 1,000 labels'),
        skip=opt(1, 'ask every so many of the reviews that validate, for --more settings'),
        most=opt(None, 'so many labelled reviews of each part, for a trial', type=int),
        more=opt([], 'smaller questions', nargs='*', type=str,
                 choices=['reading', 'pooling', 'settings', 'films', 'paired', 'sst']),
        trial=opt(False, 'mark the figures as those of a trial'),
        quick=opt(False, 'a trial: one draw, 100 labels'),
        dry=opt(False, 'only say what is to be done'))

def main(a):
    torch.set_num_threads(1)
    if a.adapt: return adapt(a, Reviews(a.data), Path(a.work)/'adapted')
    if a.quick: a.sizes, a.draws, a.random, a.test, a.most = [100], 1, 1, 500, CHUNK
    r = Run(a)
    if not (r.work/'adapted').is_dir(): log('there is no adapted model yet: --adapt makes it')
    r.all()
    for o in a.more: getattr(r, o)()

if __name__ == '__main__': main(arguments())
