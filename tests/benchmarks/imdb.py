"""How many labels is a language model worth? IMDb's reviews, of 100 to 25,000 labels (a study, which
says what the backbones and the ways are).

    python tests/benchmarks/imdb.py --adapt         # go on with the pretraining, on reviews: hours
    python tests/benchmarks/imdb.py                 # all rows that are not there yet: hours
    python tests/benchmarks/imdb.py --parts films   # or reading, pooling, paired, sst
    python tests/benchmarks/imdb.py --quick         # a trial of every way

Texts come from ELMO_FASTAI_DATA/imdb, else from the hub; what is made on the way is kept in WORK. C
is chosen on 2,500 of the training reviews, with draws of labels that are not reported, once for a
number of labels. A row reads the test part once.
"""
import json, math, re, time
from functools import cached_property
from itertools import product
from pathlib import Path
import numpy as np, pandas as pd, torch
from torch import nn
from fastai.basics import noop
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from joblib import Memory
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from harness import RESULTS, fill, log, read_figures, several, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.text.corpora import local_copy
from elmo_fastai.text.read import from_hub
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.practice.folder import load_bilm
from elmo_fastai.practice.embed import digest
from elmo_fastai.practice.command import pretrain
from elmo_fastai.learner import bf16_is_fast
from elmo_fastai.classifier import random_elmo
from elmo_fastai.tagger import LayerCache
from learners import (
    ADAMW, BesideWords, NoValidation, accuracy_on, balanced, classifier_learner, review_loaders,
    unfreeze)
import classify
from sst2 import sst2

SIZES = 100, 200, 500, 1000, 5000, 25_000
DRAWS = {5000: 3, 25_000: 1}                    # others: 5
N_VALID, OTHER = 2500, (100, 101, 102)          # draws to choose with, and not to report
WORDS = 200, 200                                # of a longer review: from its beginning, its end
POOLS = dict(mean=np.mean, spread=np.std, max=np.max)
FROZEN = 'mean', 'spread'
READ = {'all': (10**6, 0), 'first 200 and last 200': (200, 200), 'first 400': (400, 0),
        'first 100 and last 100': (100, 100), 'first 200': (200, 0), 'last 200': (0, 200)}
SUMS = dict(together='counts', beside='lsa')
BACKBONES = 'random', 'box', 'adapted'
N_RANDOM = 3                                    # different random backbones
COUNTED = dict(token_pattern=r'\S+', ngram_range=(1, 2))
LSA = dict(size=300, min_df=10)
GRID = dict(counts=(1, 3, 10, 30, 100), lsa=(.3, 1, 3, 10, 30),
            frozen=(1e-4, 1e-3, 3e-3, 1e-2, 3e-2))
ADAPT = dict(epochs=2, lr=4e-3, bs=32, seq_len=64, min_freq=3, max_vocab=20_000)
HEAD = dict(pool='attention+max', words=64, dropout=.5, wd=.01)
PHASES = ((-1, 3e-3, 1), (-2, 2e-3, 1), (-4, 2e-3, 2))    # freeze_to, rate, rounds
STEPS = 100                                     # a round has so many at least, and an epoch

def letters(text): return re.sub('[^a-z0-9]', '', text.lower())
def clauses(text):
    "What stands between two marks, if it is long enough to be somebody's own"
    return {o for o in map(letters, re.split('[.!?:;()"]', text)) if len(o) >= 20}
def spread(scores): return scores.std() or 1
def plain(text): return ' '.join(text.replace('<br />', ' ').split())

class Reviews:
    def __init__(self, most=None):
        folder, names = local_copy('imdb'), dict(train='train', test='test', unsup='unsupervised')
        def local(k): return pd.read_parquet(folder/f'{k}.parquet')
        def hub(k): return from_hub(f'hub:stanfordnlp/imdb::{names[k]}').shuffle(seed=0).to_pandas()
        parts = {k: (local if folder else hub)(k) for k in names}
        parts = {k: df if k == 'unsup' else df[:most] for k,df in parts.items()}
        self.texts = {k: [plain(o) for o in df.text] for k,df in parts.items()}
        self.labels = {k: parts[k].label.to_numpy() for k in ('train', 'test')}
        self.all = np.arange(len(self.labels['train']))
        self.valid = np.sort(self.some(min(N_VALID, len(self.all)//4), 'valid', self.all))
        self.pool = np.setdiff1d(self.all, self.valid)
        self.kept = {}

    def some(self, n, seed, among):
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
    return tokens if len(tokens) <= head + tail else tokens[:head] + tokens[len(tokens)-tail:]

def go_on(folder, quick):
    """What the command makes of reviews without labels, in two files:

        elmo_pretrain reviews --from mini-en --min-freq 3 --max-vocab 20000 --bs 32 --epochs 2
    """
    texts, about = Reviews().unlabelled()
    how = dict(ADAPT, From='mini-en', device='cpu')
    if quick: texts, how = texts[:3000], how | dict(epochs=None, time='30s')
    n, made = len(texts) - min(1000, len(texts)//10), folder.with_name('reviews')
    made.mkdir(parents=True, exist_ok=True)
    for split,o in dict(train=texts[:n], valid=texts[n:]).items():
        (made/f'{split}.txt').write_text('\n'.join(o) + '\n', encoding='utf-8')
    pretrain(str(made), folder, **how)
    f = json.loads((folder/'report.json').read_text(encoding='utf-8'))
    about |= dict(ADAPT, fwd=f['perplexity_fwd'], bwd=f['perplexity_bwd'],
                  words=len(load_bilm(folder)[1]), hours=round(f['seconds']/3600, 2),
                  tokens=round(f['seconds']*f['tokens_per_second']))
    write_figures(folder.with_suffix('.json'), about)

class OnlyWords(BesideWords):
    def __init__(self, *args, words, proj_dim=128, **kwargs):
        super().__init__(*args, words=words, proj_dim=proj_dim, **kwargs)
        self.proj = nn.Sequential(nn.Linear(words, proj_dim), nn.ReLU())

    def vectors(self, chars):
        chars = chars.as_subclass(torch.Tensor)
        return self.proj(self.elmo.drop(self.words(chars))), chars[..., 0] != 0

class Run:
    def __init__(self, out, work, quick=False):
        self.out, self.work = out, work
        self.n_test, self.steps = (100, 3) if quick else (5000, STEPS)
        self.reviews = Reviews(600 if quick else None)
        self.bf16 = bf16_is_fast(torch.device('cpu'))
        self.made, self.last = {}, (None, None)
        self.box = Elmo.from_pretrained('mini-en', norm='token', dropout=.4)
        memory = Memory(work, verbose=0)
        self.pooled = memory.cache(self.pooled, ignore=['self'])
        self.decisions = memory.cache(self.decisions, ignore=['self'])
        parts = {k: [] for k in ('rows', 'pooling', 'reading', 'sst', 'films', 'paired')}
        self.d = dict(chosen={}, **parts) | read_figures(out, {})
        adapted = read_figures(work/'adapted.json', self.d.get('adaptation'))
        self.d |= dict(model='mini-en', trial=quick, adaptation=adapted, words=WORDS, head=HEAD,
                       phases=PHASES, steps=self.steps, valid=len(self.reviews.valid),
                       parameters=sum(p.numel() for p in self.box.lm.parameters()))

    def save(self): write_figures(self.out, self.d)
    def fill(self, part, keys, make): fill(self.d[part], keys, make, self.save)

    def backbone(self, side, seed=0):
        if side in (None, 'box'): return self.box
        key = side, seed % N_RANDOM
        if side == 'random' and key not in self.made:
            self.made[key] = random_elmo(self.box, key[1], self.reviews.texts['train'])
        elif key not in self.made:
            self.made[key] = Elmo.from_pretrained(self.work/side, norm='token', dropout=.4)
        return self.made[key]

    def sides(self): return [o for o in BACKBONES if o != 'adapted' or (self.work/o).is_dir()]

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

    def frozen(self, side, seed, train, C, test, pools=FROZEN):
        return self.regression(self.features(side, seed, pools), train, C, test)

    def right(self, scores, split, places):
        return float(np.mean((scores > 0) == self.reviews.labels[split][places]))
    def right_valid(self, scores): return self.right(scores, 'train', self.reviews.valid)

    def pooled(self, weights, side, seed, split):
        "Each of `POOLS` of each layer over each review, [N, 3, L+1, D] in half precision; kept"
        return self.pool_of(self.backbone(side, seed), self.reviews.tokens(split))

    def pool_of(self, elmo, toks):
        vecs = elmo.embed_iter(toks, 'all', bf16=self.bf16)
        res = [np.stack([f(v, 1) for f in POOLS.values()]).astype(np.float16) for v in vecs]
        return np.stack(res)

    def features(self, side, seed, pools):
        "Pooled vectors of both parts, standardised by those to learn from; the last ones are kept"
        seed = seed % N_RANDOM if side == 'random' else 0
        if (side, seed, pools) != self.last[0]:
            self.last, x = (None, None), {}
            for split in ('train', 'test'):
                at, weights = [*map([*POOLS].index, pools)], digest(self.backbone(side, seed))
                x[split] = self.pooled(weights, side, seed, split)[:, at].astype(np.float32)
                x[split] = x[split].reshape(len(x[split]), -1)
            mean, std = x['train'].mean(0), x['train'].std(0) + 1e-3       # no label is needed
            for o in x.values():
                o -= mean
                o /= std
            self.last = (side, seed, pools), x
        return self.last[1]

    def asked_of(self, split, places):
        toks, y = self.reviews.tokens(split), self.reviews.labels[split]
        return [(' '.join(cut(toks[i])), int(y[i])) for i in places]

    def asked(self, n):
        "Places of the test reviews to read: fewer where the draw of the labels matters more"
        y = self.reviews.labels['test']
        if n >= 5000: return np.arange(len(y))
        return np.sort(np.random.default_rng(0).permutation(len(y))[:self.n_test])

    def phases(self, side, seed, train, held, words):
        """How much each of the reviews `held`, (split, places), looks like praise, after gradual
        unfreezing, [2, N]: with a cut and without; no side: `OnlyWords`"""
        elmo, n = self.backbone(side, seed), len(train)
        data = dict(train=self.asked_of('train', train), valid=self.asked_of(*held))
        set_seed(seed)
        dls = review_loaders(data, bs=32 if n >= 1000 else 16, val_bs=64,
                             char_vocab=elmo.char_vocab)
        head = HEAD | dict(words=words)
        learn = classifier_learner(dls, elmo, cache=LayerCache(4000) if n <= 1000 else False,
                                   opt_func=ADAMW, **head)
        if not side:
            head.pop('wd')
            learn.model = OnlyWords(learn.model.elmo, len(dls.vocab), **head)
            learn.create_opt()                          # of this model's parameters
        if self.bf16: learn.to_bf16()
        for to,lr,rounds in PHASES:
            epochs = rounds*math.ceil(self.steps/len(dls.train))
            unfreeze(learn, to if side else -1, lr, epochs, cbs=NoValidation())
        with learn.no_bar(), learn.no_logging():
            learn.model.cache = None                    # what it is asked, it is asked once
            toks, res = [self.reviews.tokens(held[0])[i] for i in held[1]], []
            for o in ([*map(cut, toks)], toks):
                y, _ = learn.get_preds(dl=dls.test_dl([*map(' '.join, o)]), act=noop)
                res.append((y[:, 1] - y[:, 0]).float().numpy())
        return np.stack(res)

    def decisions(self, weights, way, side, n, draw):
        "What `phases`, or a control, says of the asked reviews, [2, N]; kept"
        held = 'test', self.asked(n)
        words = 0 if way == 'bare' else HEAD['words']
        return self.phases(side, draw, self.reviews.draw(n, draw), held, words)

    def said(self, way, side, n, draw):
        weights = digest(self.backbone(side, draw)) if side else None
        return self.decisions(weights, way, side, n, draw)

    def choose(self, way, n, side=None):
        "C, once for a number of labels, and never on a draw that is reported"
        name = ' '.join(filter(None, (way, side, str(n))))
        if name not in self.d['chosen']:
            draws = [self.reviews.draw(n, d) for d in (OTHER[:1] if n >= 5000 else OTHER)]
            def score(C, o):
                if side: return self.right_valid(self.frozen(side, 0, o, C, 'valid'))
                return self.right_valid(getattr(self, way)(o, C, 'valid'))
            mean = {C: round(float(np.mean([score(C, o) for o in draws])), 4) for C in GRID[way]}
            self.d['chosen'][name] = dict(C=max(mean, key=mean.get), valid=mean)
        return self.d['chosen'][name]['C']

    def row(self, way, side, labels, draw):
        start, train = time.perf_counter(), self.reviews.draw(labels, draw)
        def alone(way): return getattr(self, way)(train, self.choose(way, labels), 'test')
        def frozen():
            return self.frozen(side, draw, train, self.choose('frozen', labels, side), 'test')
        if way in ('counts', 'lsa'): found = self.found(alone(way), labels)
        elif way == 'frozen': found = self.found(frozen(), labels)
        elif way in SUMS:
            both = alone(SUMS[way]), frozen()
            found = self.found(sum(o/spread(o) for o in both), labels)
        else:
            asked = self.asked(labels)
            cut, whole = (round(self.right(o, 'test', asked), 4)
                          for o in self.said(way, side, labels, draw))
            found = dict(accuracy=cut, whole=whole, test=len(asked))
        return dict(found, seconds=round(time.perf_counter() - start, 1))

    def found(self, scores, n):
        right, asked = (scores > 0) == self.reviews.labels['test'], self.asked(n)
        part = dict(part=round(float(right[asked].mean()), 4)) if len(asked) < len(right) else {}
        return dict(accuracy=round(float(right.mean()), 4), test=len(right), **part)

    def rows(self, ways, sizes, draws):
        keys = []
        for way in ways:
            sides = [None] if way in ('counts', 'lsa', 'words') else self.sides()
            keys += [dict(way=way, side=side, labels=n, draw=draw)
                     for side,draw,n in product(sides, range(draws), sizes)
                     if draw < DRAWS.get(n, 5)]
        self.fill('rows', keys, self.row)

    # smaller questions, on the reviews that validate

    def pooling(self, n=1000):
        "How the vectors of a review become one, on the frozen backbones"
        def make(side, pool):
            pools = tuple(pool.split(' + '))
            def right(C, d):
                return self.right_valid(
                    self.frozen(side, 0, self.reviews.draw(n, d), C, 'valid', pools))
            got = {C: [right(C, d) for d in OTHER] for C in GRID['frozen']}
            return dict(labels=n, accuracy=max(got.values(), key=np.mean))
        names = [' + '.join(o) for o in (*((o,) for o in POOLS), FROZEN, ('mean', 'max'), POOLS)]
        self.fill('pooling', [dict(side=s, pool=o) for s in self.sides() for o in names], make)

    def reading(self, n=1000):
        r, draws = self.reviews, [self.reviews.draw(n, d) for d in OTHER]
        need = np.unique(np.concatenate([*draws, r.valid]))
        toks, y = [r.tokens('train')[i] for i in need], r.labels['train'][need]
        valid, *draws = [np.searchsorted(need, o) for o in (r.valid, *draws)]
        def make(read):
            some = [cut(o, *READ[read]) for o in toks]
            x = self.pool_of(self.box, some)[:,:len(FROZEN)].reshape(len(need), -1)
            x = x.astype(np.float32)
            x = (x - x.mean(0))/(x.std(0) + 1e-3)
            def score(C, train):
                model = LogisticRegression(C=C, max_iter=300).fit(x[train], y[train])
                return model.score(x[valid], y[valid])
            best = max(([score(C, o) for o in draws] for C in GRID['frozen']), key=np.mean)
            share = sum(map(len, some))/sum(map(len, toks))
            return dict(accuracy=best, share=round(share, 3), labels=n)
        self.fill('reading', [dict(read=o) for o in READ], make)

    def films(self, n=25_000):
        """What is learned of single films? Reviews that validate are of films that were learned
        from, those of the test part of others"""
        r = self.reviews
        train, places = r.draw(n, OTHER[0]), np.arange(len(r.labels['test']))
        def make(way):
            def right(split, places):
                if way == 'words':
                    return self.right(self.phases(None, 0, train, (split, places),
                                                  HEAD['words'])[0], split, places)
                part = 'valid' if split == 'train' else 'test'
                scores = getattr(self, way)(train, self.choose(way, n), part)
                return self.right(scores, split, places)
            same, other = right('train', r.valid), right('test', places)
            return dict(labels=len(train), same=same, other=other)
        self.fill('films', [dict(way=o) for o in ('counts', 'lsa', 'words')], make)

    def paired(self, n=25_000):
        """What was trained on all labels, against counts on the same test reviews: points, and half
        of the 95 % interval of these reviews (from those that only one of the two gets right)"""
        train, y = self.reviews.draw(n, 0), self.reviews.labels['test'][self.asked(n)]
        counts = self.counts(train, self.choose('counts', n), 'test')[self.asked(n)]
        x = {}
        for way,side in (('words', None), ('phases', 'adapted'), ('bare', 'adapted')):
            x[way], x[f'{way}, whole'] = self.said(way, side, n, 0)
        both = {f'counts + {k}': counts/spread(counts) + v/spread(v) for k,v in x.items()}
        def row(a, b):
            d = ((a > 0) == y).astype(int) - ((b > 0) == y)
            half = 1.96*d.std()/len(d)**.5
            return dict(points=round(100*float(d.mean()), 2), half=round(100*float(half), 2))
        self.d['paired'] = [
            dict(who=k, against='counts', accuracy=round(float(((v > 0) == y).mean()), 4),
                 **row(v, counts)) for k,v in (x | both).items()]
        self.d['paired'].append(dict(who='bare', against='phases', **row(x['bare'], x['phases'])))

    def sst(self, seeds=range(5)):
        "SST-2, whole sentences, on the adapted backbone: the rows of classify.py"
        r = classify.Reviews(self.work/'adapted')
        alone = [classify.last(r.phase1(s, **classify.ALONE)) for s in seeds]
        both = [r.both_phases(s) for s in seeds]
        dev = [*map(classify.last, both)]
        with both[0].no_bar(): test = accuracy_on(both[0], r.rows['test'])
        self.d['sst'].append(dict(side='adapted', frozen=alone, dev=dev, test=test,
                                  adaptation=self.d['adaptation']))

WAYS = 'counts', 'lsa', 'frozen', 'together', 'beside', 'phases', 'words', 'bare'

@call_parse
def main(
    parts:several(str)=('rows',),     # or reading, pooling, films, paired, sst
    ways:several(str)=WAYS,           # of the rows
    sizes:several(int)=SIZES,         # numbers of labels
    draws:int=5,                      # of labels, at most
    adapt:bool=False,                 # go on with the pretraining
    quick:bool=False,                 # a trial: one draw, 100 labels, all in WORK/quick
    work:Path=Path('models/imdb'),    # what is made on the way
    json:Path=RESULTS/'imdb.json'     # file of the figures
):
    "Add what the file lacks"
    torch.set_num_threads(1)
    if quick: work, sizes, draws = work/'quick', [100], 1
    if adapt: return go_on(work/'adapted', quick)
    work.mkdir(parents=True, exist_ok=True)
    run = Run(work/'figures.json' if quick else json, work, quick)
    for part in parts:
        if part == 'rows': run.rows(ways, sizes, draws)
        else: getattr(run, part)()
        log(part)
        run.save()
