"""Attention beside recurrence: networks of the same size, trained for the same processor time (a
study).

    python tests/benchmarks/attention.py                  # all of it: some nine hours of one core
    python tests/benchmarks/attention.py --parts wikitext --minutes 5

Cells that are in the file are not measured again. A training ends by the processor time of its one
thread. The rate of each network is found first, on the validation sentences with a seed of its own:
halved and doubled until the best one lies inside. Speed wants a machine that does nothing else:
each cell keeps the load it was measured under.
"""
import math, os, time
from itertools import product
from pathlib import Path
import numpy as np, torch
from torch import nn
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from harness import RESULTS, in_process, log, peak_gb, read_figures, several, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import bilm_learner, evaluate, evaluating
from elmo_fastai.text.corpora import toy_corpus, treebank, wikitext2
from elmo_fastai.ngrams import KneserNey
from elmo_fastai.probe import random_tags
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.batches import (
    ElmoDataLoaders, EncodedText, SentenceDataLoader, StreamDataLoader)
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.tagger import LayerCache
from learners import NoValidation
from made import quietly
from pages import page

CURVES = page('studies/learning_curves')
PROBES = page('studies/probes')
STUDY = page('studies/attention')
DESIGNS = {                                       # name → network, depth, goal
    'LSTM':                      ('lstm', 'apart', 'next'),
    'attention':                 ('attention', 'apart', 'next'),
    'LSTM, one stack':           ('lstm', 'one', 'next'),
    'attention, one stack':      ('attention', 'one', 'next'),
    'LSTM, apart, masked':       ('lstm', 'apart', 'masked'),
    'attention, apart, masked':  ('attention', 'apart', 'masked'),
    'LSTM, meeting, masked':     ('lstm', 'meet', 'masked'),
    'attention, meeting, masked':('attention', 'meet', 'masked')}
REAL = 'LSTM', 'attention', 'LSTM, meeting, masked', 'attention, meeting, masked'
LENGTHS = 8, 16, 32, 64, 128, 256, 512
TUNED = dict(lstm=1.6e-2, attention=4e-3)         # where the search for a rate begins
MASKED_SHARE, TUNE_SEED = .3, 1000
WIDTH, SEEDS = 128, range(3)
SECONDS = 180                                     # of a training on the toy language

class Cells(dict):
    def __init__(self, file):
        super().__init__(read_figures(file, {}))
        self.file = file
    def make(self, key, f):
        "The figures of a cell, measured by `f` if they are not there"
        if key not in self:
            self[key] = f()
            log(key, self[key])
            write_figures(self.file, dict(sorted(self.items())))
        return self[key]

# training

def config_of(design, width=WIDTH, dropout=0., **kwargs):
    w, (network, depth, goal) = width, DESIGNS[design]
    base = BiLMConfig(design, filters=((1, w//8), (2, w//4), (3, w//2), (4, w//2)), proj_dim=w,
                      hidden_dim=w, n_layers=2, dropout=dropout)
    return STUDY.same_size(base, network, depth, goal=goal, **kwargs)

class NormFirst(STUDY.Block):
    "Normalised before each part and not after it; what leaves the last layer once more"
    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)
        return self.last(x + self.alone(self.norm2(x)))

def norms_first(model):
    for blocks in (model.lstm.fwd, model.lstm.bwd):
        for i,block in enumerate(blocks):
            block.__class__ = NormFirst
            last = i == len(blocks) - 1
            block.last = nn.LayerNorm(model.lstm.width) if last else nn.Identity()

def train(dls, config, seconds, lr, seed, change=None, share=MASKED_SHARE):
    set_seed(seed)
    for dl in dls: dl.rng.seed(seed)
    budget = TimeBudget(seconds, time.process_time)
    cbs = [budget, NoValidation()]
    if config.goal == 'masked': cbs.append(STUDY.HideWords(share))
    learn = bilm_learner(dls, config, bf16=False, from_counts=False, cbs=cbs)
    if change: change(learn.model)
    quietly(learn, 'fit_one_cycle', 999, lr)
    return learn, dict(seconds=budget.elapsed, tokens=learn.throughput.tokens, lr=lr,
                       stopped=None if learn.pct_train == 1 else 'no number',
                       weights_layers=sum(p.numel() for p in learn.model.lstm.parameters()
                                          if p.requires_grad))

def tuned(cells, key, design, dls, config, seconds, change=None):
    "The best highest rate by validation; tries go on until the best is not at an end"
    def tried(lr):
        learn, used = train(dls, config, seconds, lr, TUNE_SEED, change)
        learn.remove_cb(NoValidation)
        nats = math.inf if used['stopped'] else float(quietly(learn, 'validate')[0])
        return dict(nats=min(nats, 99.), **used)
    def nats(lr):
        return cells.make(f'tune/{key}/{seconds:g}s/{design}/{lr:g}', lambda: tried(lr))['nats']
    start = TUNED[config.network]
    rates = [start/2, start, 2*start]
    while True:
        best = min(rates, key=nats)
        if best == rates[0] and best > 1e-4: rates.insert(0, best/2)
        elif best == rates[-1] and best < .1: rates.append(best*2)
        else: return best

# the toy language

OTHER = {'is': 'are', 'are': 'is', 'was': 'were', 'were': 'was'}

def agreement(model, dls, sents, prior):
    "Share of verbs whose right number is found likelier, across a noun of another number"
    right = {}
    def encoded(tokens):
        text = EncodedText([tokens], dls.types)
        return [torch.as_tensor(o)[None] for o in text.take(np.arange(len(text.ids)))]
    with evaluating(model) as model:
        for s in sents:
            i = next((i for i,w in enumerate(s) if w in OTHER), None)
            if i is None or s[0] == 'there': continue
            if not {'near', 'behind', 'beside'} & set(s[1:i]): continue
            if s[i-1].endswith('s') == (s[i] in ('are', 'were')): continue
            wrong, words = [*s[:i], OTHER[s[i]], *s[i+1:]], []
            for o in (s, wrong):
                words.append(torch.zeros(1, len(s)+2, dtype=torch.long))
                words[-1][0, i+1] = dls.vocab.encode([o[i]])[0]
            gap = [STUDY.gap_nats(model, encoded(s)[0], w, prior).item() for w in words]
            right.setdefault('both sides', []).append(gap[0] < gap[1])
            if model.config.goal == 'masked': continue
            good, bad = (model(*encoded(o))[0].sum().item() for o in (s, wrong))
            right.setdefault('forward', []).append(good < bad)
    return {f'{k}, across another number': dict(right=float(np.mean(v)), n=len(v))
            for k,v in right.items()}

def control(train, dev):
    "The same questions with a random tag for each word"
    by = random_tags([w for s in train + dev for w in s.tokens], [t for s in train for t in s.tags])
    return [[(s.tokens, [by[w] for w in s.tokens]) for s in part] for part in (train, dev)]

def tagged(train, test, elmo, cache, seed, **kwargs):
    learn = CURVES.train_tagger(train, test, elmo, 'input', epochs=3, seed=seed, words=0,
                                cache=cache, device='cpu', **kwargs)
    return learn.recorder.values[-1][2]

class Toy:
    def __init__(self, cells, designs):
        self.cells, self.designs = cells, designs
        self.corpus = toy_corpus(n_train=100_000, n_valid=1000, n_test=2000, n_unseen=1)
        self.gold = self.corpus.gold
        self.dls = ElmoDataLoaders.from_corpus(self.corpus, kind='sentences', bs=32, seed=0,
                                               device='cpu')
        self.prior = self.dls.log_frequencies()

    def batches(self, sents):
        text = EncodedText([s.tokens for s in sents], self.dls.types)
        return SentenceDataLoader(text, bs=64)

    def tuned(self, design, key='toy', change=None):
        config = config_of(design)
        return config, tuned(self.cells, key, design, self.dls, config, SECONDS/4, change)

    def of_test(self, model):
        "Perplexity in gaps, and the ratio to the floor where there is one"
        test = self.gold['test']
        found = dict(gap=STUDY.gap_perplexity(model, self.batches(test[:500]), self.prior))
        if model.config.goal == 'masked': return found
        return found | dict(ratio=evaluate(model, self.batches(test))['mean']
                                  /self.corpus.floor('test'))

    def measure(self, model, seed):
        gold, res = self.gold, self.of_test(model)
        asked = [s.tokens for s in [*gold['valid'], *gold['test']]]
        res['agreement'] = agreement(model, self.dls, asked, self.prior)
        elmo = Elmo(model, self.dls.vocab, norm='token').eval()
        some = (gold[k][:8000] for k in ('train', 'test'))
        _, *res['senses'] = PROBES.sense_probe(elmo, *some, seeds=1, share=1., whiten=True).accuracy
        tr, dv = gold['train'][:300], gold['test'][:300]
        asked = dict(tags=(tr, dv), position=map(PROBES.places, (tr, dv)), control=control(tr, dv))
        for name,data in asked.items():
            found = PROBES.linear_probe(elmo, *data, seeds=1, share=1.)
            res[f'probe_{name}'] = found.accuracy.tolist()
            if name == 'tags': res['probe_names'] = [*found.index]
        cache, pool = LayerCache(mb=1500), gold['train'][:4000]
        for share in (.01, 1.):
            some = CURVES.subset(pool, share, seed)
            res[f'tagging_{share:g}'] = tagged(some, gold['test'][:1000], elmo, cache, seed,
                                               steps=100, hidden=64)
        return res

    def toy(self):
        gap = lambda: dict(test=self.corpus.floor('test'),
                           gap=STUDY.gap_floor(self.corpus, 'test', 500))
        self.cells.make('toy/floors', gap)
        for seed,design in product(SEEDS, self.designs):
            config, lr = self.tuned(design)
            def figures():
                learn, used = train(self.dls, config, SECONDS, lr, seed)
                return used | self.measure(learn.model.eval(), seed)
            self.cells.make(f'toy/{SECONDS:g}s/{design}/seed {seed}', figures)

    def norms(self):
        "Is it where the norms stand? Tries of the rate with norms first (Xiong et al. 2020)"
        for design in ('attention', 'attention, meeting, masked'):
            self.tuned(design, 'norms first', norms_first)

    def goal(self):
        "Less time for the LSTMs, so that they read or are asked as little as others; more to guess"
        masked = 'LSTM, meeting, masked'
        tries = [('LSTM', 'LSTM', part, 0) for part in (2/3, 1/3, 1/6, 1/12, 1/24)]
        tries += [(f'{masked}, {o:g}', masked, 1, o) for o in (.15, .5)]
        for (name,design,part,share),seed in product(tries, SEEDS):
            config, lr = self.tuned(design)
            def figures():
                learn, used = train(self.dls, config, SECONDS*part, lr, seed, share=share)
                return used | dict(share=share) | self.of_test(learn.model.eval())
            self.cells.make(f'goal/{SECONDS*part:g}s/{name}/seed {seed}', figures)

    def positions(self):
        "Windows of 32 tokens in training, longer ones in use"
        dls = ElmoDataLoaders.from_corpus(self.corpus, kind='stream', bs=32, seq_len=32, seed=0,
                                          shuffle=True, device='cpu')
        text = EncodedText([s.tokens for s in self.gold['test']], dls.types)
        for seed,how in product(SEEDS, ('LSTM', *STUDY.POSITIONS)):
            config = config_of('LSTM' if how == 'LSTM' else 'attention', longest=LENGTHS[-1])
            if how != 'LSTM': config.positions = how
            def figures():
                lr = tuned(self.cells, 'stream', how, dls, config, SECONDS/4)
                learn, used = train(dls, config, SECONDS/2, lr, seed)
                def ppl(T):
                    dl = StreamDataLoader(text, bs=max(1, 512//T), seq_len=T)
                    return evaluate(learn.model, dl)['mean']
                return dict(used, perplexity={str(T): ppl(T) for T in LENGTHS[2:]})
            self.cells.make(f'positions/{SECONDS/2:g}s/{how}/seed {seed}', figures)

# real text

def wikitext(cells, designs, minutes):
    "Perplexity on WikiText-2, then UD-EWT's tags by the same model"
    corpus, gold = wikitext2(), treebank('UD_English-EWT').gold
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=32, seq_len=64, min_freq=2, seed=0,
                                      shuffle=True, device='cpu')
    tok = [l.split() for l in corpus.splits['test'] if l.split()]
    test, prior = EncodedText(tok, dls.types), dls.log_frequencies()
    def counting():
        train_ids = [dls.vocab.encode(l.split()) for l in corpus.splits['train'] if l.split()]
        kn = KneserNey(5, vocab_size=len(dls.vocab) - 2).fit(train_ids)
        return kn.perplexity(map(dls.vocab.encode, tok))
    cells.make('wikitext/counting', counting)
    for seed,design in product(SEEDS, [d for d in REAL if d in designs]):
        config = config_of(design, dropout=.1)
        def figures():
            lr = tuned(cells, 'wikitext', design, dls, config, 60*minutes/5)
            learn, res = train(dls, config, 60*minutes, lr, seed)
            model = learn.model.eval()
            if config.goal == 'next':
                res['perplexity'] = evaluate(model, StreamDataLoader(test, bs=8, seq_len=64))
            short = [s for s in tok if 5 < len(s) < 60][:100]
            some = SentenceDataLoader(EncodedText(short, dls.types), bs=16)
            res['gap'] = STUDY.gap_perplexity(model, some, prior)
            elmo, cache = Elmo(model, dls.vocab, norm='token').eval(), LayerCache(mb=3000)
            for share in (.01, .3):
                some = CURVES.subset(gold['train'], share, seed)
                res[f'tagging_{share:g}'] = tagged(some, gold['valid'], elmo, cache, seed,
                                                   steps=200, hidden=96)
            return res
        cells.make(f'wikitext/{minutes:g}min/{design}/seed {seed}', figures)

# speed and memory

def windows(T, tokens=2048, n_types=4000):
    "A batch of `tokens` invented words in rows of T, and what follows and precedes"
    rng = np.random.default_rng(0)
    words = [''.join(chr(97 + c) for c in rng.integers(0, 26, 6)) for _ in range(n_types)]
    chars = torch.from_numpy(ByteCharVocab().encode(words))
    ids = torch.from_numpy(rng.integers(4, n_types, (tokens//T, T)))
    return chars[ids], ids, ids

def speeds(models, T, width, reps):
    """Tokens a second in training, in embedding, and through the layers alone: the best of
    several turns"""
    batch, best = windows(T), {}
    x, n = torch.randn(*batch[1].shape, width), batch[1].numel()
    def train_step(m):
        hidden = batch[0], batch[1]*(torch.rand(batch[1].shape) < MASKED_SHARE)
        torch.cat(m.train()(*hidden if m.config.goal == 'masked' else batch)).mean().backward()
        for p in m.parameters(): p.grad = None
    @torch.no_grad()
    def embed(m): m.eval().encode(batch[0])
    @torch.no_grad()
    def layers(m): m.eval().lstm(x)
    for turn in range(reps):
        for d,m in models.items():
            for job in (train_step, embed, layers):
                start = time.process_time()
                job(m)
                rate, found = n/(time.process_time() - start), best.setdefault(job.__name__, {})
                if turn: found[d] = max(rate, found.get(d, 0))               # the first warms up
    return dict(train=best.pop('train_step'), **best, load=os.getloadavg()[0])

def speed(cells):
    for width in (WIDTH, 512):
        models = {d: config_of(d, width).model(4000) for d in REAL}
        for T in LENGTHS:
            cells.make(f'speed/{width}/{T}', lambda: speeds(models, T, width, 1 + 2048//width))

def peak(design, T):
    "MB that a training step on 8,192 tokens needs beyond what was there"
    torch.set_num_threads(1)
    model, batch = config_of(design).model(4000), windows(T, 8192)
    if model.config.goal == 'masked': batch = batch[:2]
    def step(batch): torch.cat(model(*batch)).mean().backward()
    step([o[:1,:8] for o in batch])                                # libraries, kernels
    Path('/proc/self/clear_refs').write_text('5')                  # the peak begins anew
    before = peak_gb()
    step(batch)
    return (peak_gb() - before)*1e9/2**20

def memory(cells):
    for T,design in product(LENGTHS[2::2], REAL):
        cells.make(f'memory/{WIDTH}/{T}/{design}', lambda: in_process(peak, design, T))

OF_TOY = 'norms', 'toy', 'goal', 'positions'

@call_parse
def main(
    parts:several(str)=(*OF_TOY, 'wikitext', 'speed', 'memory'),  # of the measurement
    designs:several(str)=tuple(DESIGNS),                          # networks
    minutes:float=15.,                                            # of a training on WikiText-2
    json:Path=RESULTS/'attention.json'                            # file of the cells
):
    "Measure the cells that the file lacks"
    torch.set_num_threads(1)
    cells = Cells(json)
    toy = Toy(cells, designs) if {*parts} & {*OF_TOY} else None
    others = dict(wikitext=lambda: wikitext(cells, designs, minutes), speed=lambda: speed(cells),
                  memory=lambda: memory(cells))
    for part in parts: (getattr(toy, part) if part in OF_TOY else others[part])()
