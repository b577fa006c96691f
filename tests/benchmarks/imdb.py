"""How many labels is a language model worth? IMDb's reviews, of 100 to 25,000 labels (a study, which
says what the backbones and the ways are).

    python tests/benchmarks/imdb.py --adapt         # first: go on with the pretraining, hours
    python tests/benchmarks/imdb.py                 # all rows that are not there yet: hours
    python tests/benchmarks/imdb.py --parts films   # or reading, pooling, paired, sst

Texts come from ELMO_FASTAI_DATA/imdb, else from the hub; what is made on the way is kept in WORK,
one folder for each adapted model. C is chosen on 2,500 of the training reviews, with draws of
labels that are not reported, once for a number of labels. A row reads the test part once.
"""
import json, math, re
from functools import cache, cached_property, lru_cache
from itertools import product
from pathlib import Path
import numpy as np, pandas as pd, torch
from torch import nn
from fastai.basics import noop
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from joblib import Memory
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from harness import RESULTS, fill, log, read_figures, several, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.text.corpora import local_copy
from elmo_fastai.text.read import from_hub
from elmo_fastai.text.tokenizers import get_tokenizer
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
N_TEST = 5000                                   # reviews asked where the draw matters more
WORDS = 200, 200                                # of a longer review: from its beginning, its end
POOLS = dict(mean=np.mean, spread=np.std, max=np.max)
FROZEN = 'mean', 'spread'
READ = {'all': (10**6, 0), 'first 200 and last 200': (200, 200), 'first 400': (400, 0),
        'first 100 and last 100': (100, 100), 'first 200': (200, 0), 'last 200': (0, 200)}
SUMS = dict(together='counts', beside='lsa')
BACKBONES = 'random', 'box', 'adapted'
N_RANDOM = 3                                    # different random backbones
COUNTED = dict(token_pattern=r'\S+', ngram_range=(1, 2), sublinear_tf=True)
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
def scaled(scores): return scores/(scores.std() or 1)
def plain(text): return ' '.join(text.replace('<br />', ' ').split())
def cut(tokens, head=WORDS[0], tail=WORDS[1]):
    return tokens if len(tokens) <= head + tail else tokens[:head] + tokens[len(tokens)-tail:]

class Reviews:
    def __init__(self):
        folder, names = local_copy('imdb'), dict(train='train', test='test', unsup='unsupervised')
        def local(k): return pd.read_parquet(folder/f'{k}.parquet')
        def hub(k): return from_hub(f'hub:stanfordnlp/imdb::{names[k]}').shuffle(seed=0).to_pandas()
        parts = {k: (local if folder else hub)(k) for k in names}
        self.texts = {k: [plain(o) for o in df.text] for k,df in parts.items()}
        self.labels = {k: parts[k].label.to_numpy() for k in ('train', 'test')}
        self.all = np.arange(len(self.labels['train']))
        self.valid = np.sort(self.some(min(N_VALID, len(self.all)//4), 'valid', self.all))
        self.pool = np.setdiff1d(self.all, self.valid)
        # what is asked: a part, and its places
        self.held, self.test = ('train', self.valid), ('test', np.arange(len(self.labels['test'])))

    def some(self, n, seed, among):
        return balanced(n, [*str(seed).encode()], among, self.labels['train'])

    def draw(self, n, seed):
        "Places of the reviews whose labels are known; none of those that validate, if it may be"
        if n < len(self.pool): return self.some(n, seed, self.pool)
        return self.pool if seed in OTHER else self.all

    @cache
    def tokens(self, split): return [*map(get_tokenizer('words'), self.texts[split])]

    @cache
    def joined(self, split): return np.array([' '.join(o) for o in self.tokens(split)], object)

    @cached_property
    def directions(self):
        "What `LSA` keeps of each labelled review, [N, 300], learned where the adapted model reads"
        tok, (texts, _) = get_tokenizer('words'), self.unlabelled()
        weigh = TfidfVectorizer(**COUNTED, min_df=LSA['min_df'])
        model = make_pipeline(weigh, TruncatedSVD(LSA['size'], random_state=0), Normalizer())
        model.fit([' '.join(tok(o)) for o in texts])
        return {k: model.transform(self.joined(k)) for k in ('train', 'test')}

    def unlabelled(self):
        """The reviews to go on with, and how many are left out: reviews of the test part, and those
        with a sentence of SST-2, dev or test (or a part of one, from mark to mark)"""
        texts, sst = self.texts['unsup'], sst2().gold
        test = set(map(letters, self.texts['test']))
        theirs = set().union(*(clauses(s.text) for k in ('valid', 'test') for s in sst[k]))
        seen = {i for i,o in enumerate(texts) if letters(o) in test}
        held = {i for i,o in enumerate(texts) if clauses(o) & theirs}
        kept = [o for i,o in enumerate(texts) if i not in seen | held]
        return kept, dict(in_test=len(seen), with_sst=len(held), reviews=len(kept))

def go_on(folder):
    """What the command makes of reviews without labels, in two files:

        elmo_pretrain reviews --from mini-en --min-freq 3 --max-vocab 20000 --bs 32 --epochs 2
    """
    texts, about = Reviews().unlabelled()
    n, made = len(texts) - 1000, folder.with_name('reviews')
    made.mkdir(parents=True, exist_ok=True)
    for split,o in dict(train=texts[:n], valid=texts[n:]).items():
        (made/f'{split}.txt').write_text('\n'.join(o) + '\n', encoding='utf-8')
    pretrain(str(made), folder, From='mini-en', device='cpu', **ADAPT)
    f = json.loads((folder/'report.json').read_text(encoding='utf-8'))
    about |= dict(fwd=f['perplexity_fwd'], bwd=f['perplexity_bwd'],
                  hours=round(f['seconds']/3600, 2),
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
    def __init__(self, out, work):
        self.out, self.work, self.reviews = out, work, Reviews()
        self.bf16 = bf16_is_fast(torch.device('cpu'))
        self.box = Elmo.from_pretrained('mini-en', norm='token', dropout=.4)
        memory = Memory(work, verbose=0)
        self.pooled = memory.cache(self.pooled, ignore=['self'])
        self.decisions = memory.cache(self.decisions, ignore=['self'])
        parts = {k: [] for k in ('rows', 'pooling', 'reading', 'sst', 'films', 'paired')}
        self.d = parts | read_figures(out, {})
        adapted = read_figures(work/'adapted.json', self.d.get('adaptation'))
        self.d |= dict(model='mini-en', adaptation=adapted, words=WORDS,
                       parameters=sum(p.numel() for p in self.box.lm.parameters()))

    def save(self): write_figures(self.out, self.d)
    def fill(self, part, keys, make): fill(self.d[part], keys, make, self.save)

    @cache
    def backbone(self, side, seed):
        if side == 'random':
            return random_elmo(self.box, seed % N_RANDOM, self.reviews.texts['train'])
        if side == 'adapted':
            return Elmo.from_pretrained(self.work/side, norm='token', dropout=.4)
        return self.box

    def right(self, scores, split, places):
        return float(np.mean((scores > 0) == self.reviews.labels[split][places]))

    # counts, and frozen vectors: a logistic regression

    def pooled(self, side, seed, split):
        "Each of `POOLS` of each layer over each review, [N, 3, L+1, D] in half precision; kept"
        return self.pool_of(self.backbone(side, seed), self.reviews.tokens(split))

    def pool_of(self, elmo, toks):
        vecs = elmo.embed_iter(toks, 'all', bf16=self.bf16)
        res = [np.stack([f(v, 1) for f in POOLS.values()]).astype(np.float16) for v in vecs]
        return np.stack(res)

    @lru_cache(1)
    def features(self, side, seed, pools):
        "Pooled vectors of both parts, standardised by those to learn from"
        x = {}
        for split in ('train', 'test'):
            found = self.pooled(side, seed, split)[:, [*map([*POOLS].index, pools)]]
            x[split] = found.astype(np.float32).reshape(len(found), -1)
        mean, std = x['train'].mean(0), x['train'].std(0) + 1e-3           # no label is needed
        return {split: (o - mean)/std for split,o in x.items()}

    def scores(self, way, side, seed, train, C, asked, pools=FROZEN):
        "How much each asked review, (split, places), looks like praise"
        r, (split, places) = self.reviews, asked
        model = LogisticRegression(C=C, max_iter=300)
        if way == 'counts':      # the words and pairs, and how rare they are, are those of the draw
            model = make_pipeline(TfidfVectorizer(**COUNTED), model)
            x = {k: r.joined(k) for k in ('train', split)}
        elif way == 'lsa': x = r.directions
        else: x = self.features(side, seed % N_RANDOM if side == 'random' else 0, pools)
        model.fit(x['train'][train], r.labels['train'][train])
        return model.decision_function(x[split][places])

    @cache
    def choose(self, way, side, n):
        "C, once for a number of labels, and never on a draw that is reported"
        held = self.reviews.held
        draws = [self.reviews.draw(n, d) for d in (OTHER[:1] if n >= 5000 else OTHER)]
        mean = {C: np.mean([self.right(self.scores(way, side, 0, o, C, held), *held)
                            for o in draws]).round(4) for C in GRID[way]}
        return max(mean, key=mean.get)

    # the classifier, trained

    def asked_of(self, split, places):
        toks, y = self.reviews.tokens(split), self.reviews.labels[split]
        return [(' '.join(cut(toks[i])), int(y[i])) for i in places]

    def asked(self, n):
        "Places of the test reviews to read: fewer where the draw of the labels matters more"
        places = self.reviews.test[1]
        if n >= 5000: return places
        return np.sort(np.random.default_rng(0).permutation(len(places))[:N_TEST])

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
            epochs = rounds*math.ceil(STEPS/len(dls.train))
            unfreeze(learn, to if side else -1, lr, epochs, cbs=NoValidation())
        with learn.no_bar(), learn.no_logging():
            learn.model.cache = None                    # what it is asked, it is asked once
            toks, res = [self.reviews.tokens(held[0])[i] for i in held[1]], []
            for o in ([*map(cut, toks)], toks):
                y, _ = learn.get_preds(dl=dls.test_dl([*map(' '.join, o)]), act=noop)
                res.append((y[:, 1] - y[:, 0]).float().numpy())
        return np.stack(res)

    def decisions(self, way, side, n, draw):
        "What `phases`, or a control, says of the asked reviews, [2, N]; kept"
        words = 0 if way == 'bare' else HEAD['words']
        train, held = self.reviews.draw(n, draw), ('test', self.asked(n))
        return self.phases(side, draw, train, held, words)

    def row(self, way, side, labels, draw):
        train, test = self.reviews.draw(labels, draw), self.reviews.test
        part = 'test', self.asked(labels)
        def alone(way, side=None):
            C = self.choose(way, side, labels)
            return self.scores(way, side, draw, train, C, test)
        if way in GRID: found = alone(way, side)
        elif way in SUMS: found = scaled(alone(SUMS[way])) + scaled(alone('frozen', side))
        else:
            short, _ = self.decisions(way, side, labels, draw)
            return dict(accuracy=round(self.right(short, *part), 4))
        return dict(accuracy=round(self.right(found, *test), 4),
                    part=round(self.right(found[part[1]], *part), 4))

    def rows(self, ways, sizes, draws):
        keys = []
        for way in ways:
            sides = [None] if way in ('counts', 'lsa', 'words') else BACKBONES
            keys += [dict(way=way, side=side, labels=n, draw=draw)
                     for side,draw,n in product(sides, range(draws), sizes)
                     if draw < DRAWS.get(n, 5)]
        self.fill('rows', keys, self.row)

    # smaller questions, on the reviews that validate

    def pooling(self, n=1000):
        "How the vectors of a review become one, on the frozen backbones"
        held, draws = self.reviews.held, [self.reviews.draw(n, d) for d in OTHER]
        def make(side, pool):
            pools = tuple(pool.split(' + '))
            found = [[self.right(self.scores('frozen', side, 0, o, C, held, pools), *held)
                      for o in draws] for C in GRID['frozen']]
            return dict(labels=n, accuracy=max(found, key=np.mean))
        names = [' + '.join(o) for o in (*((o,) for o in POOLS), FROZEN, ('mean', 'max'), POOLS)]
        self.fill('pooling', [dict(side=s, pool=o) for s in BACKBONES for o in names], make)

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
        train = self.reviews.draw(n, OTHER[0])
        def make(way):
            def right(asked):
                if way == 'words':
                    scores, _ = self.phases(None, 0, train, asked, HEAD['words'])
                else: scores = self.scores(way, None, 0, train, self.choose(way, None, n), asked)
                return self.right(scores, *asked)
            return dict(same=right(self.reviews.held), other=right(self.reviews.test))
        self.fill('films', [dict(way=o) for o in ('counts', 'lsa', 'words')], make)

    def paired(self, n=25_000):
        """What was trained on all labels, against counts on the same test reviews: points, and half
        of the 95 % interval of these reviews (from those that only one of the two gets right)"""
        y, C = self.reviews.labels['test'], self.choose('counts', None, n)
        counts = self.scores('counts', None, 0, self.reviews.draw(n, 0), C, self.reviews.test)
        x = {}
        for way,side in (('words', None), ('phases', 'adapted'), ('bare', 'adapted')):
            x[way], x[f'{way}, whole'] = self.decisions(way, side, n, 0)
        both = {f'counts + {k}': scaled(counts) + scaled(v) for k,v in x.items()}
        def row(who, a, against, b):
            d = ((a > 0) == y).astype(int) - ((b > 0) == y)
            half = 1.96*d.std()/len(d)**.5
            return dict(who=who, against=against, accuracy=round(float(((a > 0) == y).mean()), 4),
                        points=round(100*float(d.mean()), 2), half=round(100*float(half), 2))
        self.d['paired'] = [row(k, v, 'counts', counts) for k,v in (x | both).items()]
        self.d['paired'].append(row('bare', x['bare'], 'phases', x['phases']))

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
    work:Path=Path('models/imdb'),    # what is made on the way
    json:Path=RESULTS/'imdb.json'     # file of the figures
):
    "Add what the file lacks"
    torch.set_num_threads(1)
    if adapt: return go_on(work/'adapted')
    work.mkdir(parents=True, exist_ok=True)
    run = Run(json, work)
    for part in parts:
        if part == 'rows': run.rows(ways, sizes, draws)
        else: getattr(run, part)()
        log(part)
        run.save()
