"""Attention beside recurrence: networks of the same size, trained for the same processor time.

    python tests/benchmarks/attention.py                  # all of it: some nine hours of one core
    python tests/benchmarks/attention.py --parts speed memory --again      # measure these anew
    python tests/benchmarks/attention.py --quick          # does it work? Nothing is kept

The same command goes on after an interruption; --seeds and --seconds add cells. A training ends by
the processor time of its one thread. The rate of each network is found first, on the validation
sentences with a seed of its own: halved and doubled until the best one lies inside. WikiText-2 and
UD-EWT are read from ELMO_FASTAI_DATA; without them that part is left out, and said. Speed wants a
machine that does nothing else: each cell keeps the load it was measured under.
"""
import math, os, time
from itertools import product
from pathlib import Path
import numpy as np, torch
from torch import nn
from fastai.torch_core import set_seed
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import evaluate, evaluating
from elmo_fastai.text.corpora import toy_corpus, treebank, wikitext2
from elmo_fastai.ngrams import KneserNey
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.batches import (
    ElmoDataLoaders, EncodedText, SentenceDataLoader, StreamDataLoader)
from elmo_fastai.elmo import Elmo
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.tagger import LayerCache
from harness import RESULTS, in_process, log, opt, options, peak_bytes, read_figures, write_figures
from learners import NoValidation
from made import quietly
from pages import page

CURVES = page('studies/learning_curves')
PROBES = page('studies/probes')
STUDY = page('studies/attention')
POSITIONS, Block, HideWords = STUDY.POSITIONS, STUDY.Block, STUDY.HideWords
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
PARTS = 'tune', 'norms', 'toy', 'goal', 'positions', 'wikitext', 'speed', 'memory'
LENGTHS = 8, 16, 32, 64, 128, 256, 512
TUNED = dict(lstm=1.6e-2, attention=4e-3)         # where the search for a rate begins
MASKED_SHARE, TUNE_SEED = .3, 1000

def arguments():
    a = options(__doc__,
        parts=opt(PARTS, nargs='*', choices=PARTS),
        designs=opt(list(DESIGNS), nargs='*', choices=list(DESIGNS)),
        seeds=opt([0, 1, 2], nargs='*'),
        seconds=opt(180, 'processor time of a training, toy', type=float),
        tune_seconds=opt(None, 'of a rate that is tried (default: a quarter)', type=float),
        minutes=opt(15, 'of a training on WikiText-2', type=float),
        width=opt(128, 'of the toy models'),
        widths=opt([128, 512], 'of the part speed', nargs='*'),
        probed=opt(300, 'sentences that a probe learns from'),
        sentences=opt(100_000, 'of the toy language, to train'),
        json=RESULTS/'attention.json',
        again=opt(False, 'measure these parts anew'),
        quick=False,
        job=opt(hidden=True))              # a process of the part memory: design, length
    if a.quick:
        a.seeds, a.seconds, a.minutes, a.sentences, a.width = [0], 3, .05, 2000, 32
        a.widths = [a.width]
    a.tune_seconds = a.tune_seconds or a.seconds/4
    return a

# what is kept

class Cells:
    "Finished cells by name, in a file that is whole at every moment"
    def __init__(self, a):
        self.file = None if a.quick else a.json
        self.d = read_figures(self.file, {}) if self.file else {}

    def __contains__(self, key): return key in self.d
    def __getitem__(self, key): return self.d[key]
    def forget(self, a):
        "What `a` measures anew; of the part speed, the widths that are asked for"
        def goes(part, width=None, *_):
            return part in a.parts and (part != 'speed' or int(width) in a.widths)
        self.d = {k: v for k,v in self.d.items() if not goes(*k.split('/'))}
        self.save()

    def put(self, key, value):
        log(key, value)
        if self.file and self.file.exists():        # another process may have added to it meanwhile
            self.d = read_figures(self.file)
        self.d[key] = value
        self.save()

    def save(self): write_figures(self.file, dict(sorted(self.d.items())))

# training

def config_of(design, width, n_layers=2, dropout=0., **kwargs):
    w, (network, depth, goal) = width, DESIGNS[design]
    filters = (1, w//8), (2, w//4), (3, w//2), (4, w//2)
    base = BiLMConfig(design, filters=filters, proj_dim=w, hidden_dim=w, n_layers=n_layers,
                      dropout=dropout)
    return STUDY.same_size(base, network, depth, goal=goal, **kwargs)

class NormFirst(Block):
    "Normalised before each part and not after it; what leaves the last layer once more"
    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)
        return self.last(x + self.alone(self.norm2(x)))

def norms_first(model):
    "Make the blocks of an attention model `NormFirst`"
    for blocks in (model.lstm.fwd, model.lstm.bwd):
        for i,block in enumerate(blocks):
            block.__class__ = NormFirst
            last = i == len(blocks) - 1
            block.last = nn.LayerNorm(model.lstm.width) if last else nn.Identity()

def train(dls, config, seconds, lr, seed, change=None, share=MASKED_SHARE):
    "(learner, what it took); `change` is given the model before it has learned anything"
    set_seed(seed)
    for dl in dls: dl.rng.seed(seed)
    budget = TimeBudget(seconds, time.process_time)
    cbs = [budget, NoValidation()]
    if config.goal == 'masked': cbs.append(HideWords(share))
    learn = bilm_learner(dls, config, bf16=False, from_counts=False, cbs=cbs)
    if change: change(learn.model)
    quietly(learn, 'fit_one_cycle', 999, lr)
    m = learn.model
    layers = [p for p in m.lstm.parameters() if p.requires_grad]
    used = dict(seconds=budget.elapsed, tokens=learn.throughput.tokens, lr=lr,
                weights=sum(p.numel() for p in m.parameters() if p.requires_grad),
                weights_layers=sum(p.numel() for p in layers))
    return learn, used

def validate(learn):
    "Nats a prediction on the validation sentences; masked: with fixed gaps"
    learn.remove_cb(NoValidation)
    return float(quietly(learn, 'validate')[0])

def tuned(cells, key, design, dls, config, seconds, change=None):
    "The best highest rate by validation; tries go on until the best is not at an end"
    def loss(lr):
        k = f'tune/{key}/{seconds:g}s/{design}/{lr:g}'
        if k not in cells:
            learn, used = train(dls, config, seconds, lr, TUNE_SEED, change)
            value = validate(learn) if not used['stopped'] else math.inf
            cells.put(k, dict(nats=min(value, 99.), **used))
        return cells[k]['nats']
    start = TUNED[config.network]
    rates = [start/2, start, 2*start]
    while True:
        best = min(rates, key=loss)
        if best == rates[0] and best > 1e-4: rates.insert(0, best/2)
        elif best == rates[-1] and best < .1: rates.append(best*2)
        else: return best

# the toy language

def toy_data(a):
    corpus = toy_corpus(n_train=a.sentences, n_valid=1000, n_test=2000, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=32, seed=0, device='cpu')
    return corpus, dls

OTHER = {'is': 'are', 'are': 'is', 'was': 'were', 'were': 'was'}

def agreement(model, dls, sents, prior):
    "Share of verbs whose right number is found likelier, near and across another noun"
    right = {}
    def encoded(tokens):
        text = EncodedText([tokens], dls.types)
        return [torch.as_tensor(o)[None] for o in text.take(np.arange(len(text.ids)))]
    with evaluating(model) as model:
        for s in sents:
            i = next((i for i,w in enumerate(s) if w in OTHER), None)
            if i is None or s[0] == 'there': continue
            kind = 'near'
            if {'near', 'behind', 'beside'} & set(s[1:i]):
                same = s[i-1].endswith('s') == (s[i] in ('are', 'were'))
                kind = 'across the same number' if same else 'across another number'
            wrong, words = [*s[:i], OTHER[s[i]], *s[i+1:]], []
            for o in (s, wrong):
                words.append(torch.zeros(1, len(s)+2, dtype=torch.long))
                words[-1][0, i+1] = dls.vocab.encode([o[i]])[0]
            chars = encoded(s)[0]
            gap = [STUDY.gap_nats(model, chars, w, prior).item() for w in words]
            right.setdefault(f'both sides, {kind}', []).append(gap[0] < gap[1])
            if model.config.goal == 'masked': continue
            whole = [model(*encoded(o)) for o in (s, wrong)]
            for d,name in enumerate(('forward', 'backward')):
                good, bad = (o[d].sum().item() for o in whole)
                right.setdefault(f'{name}, {kind}', []).append(good < bad)
    return {k: dict(right=float(np.mean(v)), n=len(v)) for k,v in right.items()}

def control(train, dev):
    "The same questions with tags that each word got by lot (Hewitt and Liang 2019)"
    rng = np.random.default_rng(0)
    words = sorted({w for s in [*train, *dev] for w in s.tokens})
    by = dict(zip(words, rng.choice([t for s in train for t in s.tags], len(words))))
    return [[(s.tokens, [by[w] for w in s.tokens]) for s in o] for o in (train, dev)]

def positions_of(*parts):
    "The how manieth word of its sentence is it?"
    return [[(s.tokens, [min(t, 9) for t in range(len(s.tokens))]) for s in o] for o in parts]

def tagged(train, test, elmo, cache, seed, **kwargs):
    "Accuracy of a tagger that has nothing but ELMo's vectors"
    learn = CURVES.train_tagger(train, test, elmo, 'input', epochs=3, seed=seed, words=0,
                                cache=cache, device='cpu', **kwargs)
    return learn.recorder.values[-1][2]

def measure_toy(model, corpus, dls, a, seed):
    "All that is asked of a trained model"
    gold = corpus.gold
    n = 4 if a.quick else 1
    test = SentenceDataLoader(EncodedText([s.tokens for s in gold['test'][::n]], dls.types), bs=64)
    prior, goal, res = dls.log_frequencies(), model.config.goal, {}
    if goal == 'next':
        res['perplexity'] = evaluate(model, test)
        res['ratio'] = res['perplexity']['mean']/corpus.floor('test')
    some = SentenceDataLoader(EncodedText([s.tokens for s in gold['test'][:500]], dls.types), bs=64)
    res['gap'] = STUDY.gap_perplexity(model, some, prior)
    asked = [s.tokens for s in [*gold['valid'], *gold['test']]][::n]
    res['agreement'] = agreement(model, dls, asked, prior)
    elmo = Elmo(model, dls.vocab, norm='token').eval()
    some = (gold[k][:8000//n] for k in ('train', 'test'))
    commonest, *acc = PROBES.sense_probe(elmo, *some, seeds=1, share=1., whiten=True).accuracy
    res |= dict(senses=acc, senses_commonest=commonest)
    tr, dv = gold['train'][:a.probed//n], gold['test'][:a.probed//n]
    tags = PROBES.linear_probe(elmo, tr, dv, seeds=1, share=1.)
    res |= dict(probed=len(tr), probe_names=[*tags.index], probe_tags=tags.accuracy.tolist())
    for name,data in dict(position=positions_of(tr, dv), control=control(tr, dv)).items():
        found = PROBES.linear_probe(elmo, *data, seeds=1, share=1.)
        res[f'probe_{name}'] = found.accuracy.tolist()
    cache, pool = LayerCache(mb=1500), gold['train'][:4000//n]
    for share in (.01, 1.):
        some = CURVES.subset(pool, share, seed)
        res[f'tagging_{share:g}'] = tagged(some, gold['test'][:1000//n], elmo, cache, seed,
                                           steps=100, hidden=64)
    return res

def toy(cells, a):
    corpus, dls = toy_data(a)
    if 'toy/floors' not in cells:
        cells.put('toy/floors', dict(test=corpus.floor('test'),
                                     gap=STUDY.gap_floor(corpus, 'test', 500)))
    for seed,design in product(a.seeds, a.designs):
        key = f'toy/{a.seconds:g}s/{design}/seed {seed}'
        if key in cells: continue
        config = config_of(design, a.width)
        lr = tuned(cells, 'toy', design, dls, config, a.tune_seconds)
        learn, used = train(dls, config, a.seconds, lr, seed)
        cells.put(key, dict(used, **measure_toy(learn.model.eval(), corpus, dls, a, seed)))

def tune(cells, a):
    _, dls = toy_data(a)
    for design in a.designs:
        tuned(cells, 'toy', design, dls, config_of(design, a.width), a.tune_seconds)

def norms(cells, a):
    "Is it where the norms stand? Tries of the rate with norms first (Xiong et al. 2020)"
    _, dls = toy_data(a)
    for design in ('attention', 'attention, meeting, masked'):
        config = config_of(design, a.width)
        tuned(cells, 'norms first', design, dls, config, a.tune_seconds, norms_first)

def goal(cells, a):
    "Less time for the LSTMs, so that they read or are asked as little as others; more to guess"
    corpus, dls = toy_data(a)
    def batches(sents):
        return SentenceDataLoader(EncodedText([s.tokens for s in sents], dls.types), bs=64)
    test, prior = corpus.gold['test'], dls.log_frequencies()
    masked = 'LSTM, meeting, masked'
    tries = [('LSTM', 'LSTM', part, 0) for part in (2/3, 1/3, 1/6, 1/12, 1/24)]
    tries += [(f'{masked}, {o:g}', masked, 1, o) for o in (.15, .5)]
    for name,design,part,share in tries:
        for seed in a.seeds:
            key = f'goal/{a.seconds*part:g}s/{name}/seed {seed}'
            if key in cells: continue
            config = config_of(design, a.width)
            lr = tuned(cells, 'toy', design, dls, config, a.tune_seconds)
            learn, used = train(dls, config, a.seconds*part, lr, seed, share=share)
            res = dict(used, share=share)
            res['gap'] = STUDY.gap_perplexity(learn.model.eval(), batches(test[:500]), prior)
            if not share:
                res['ratio'] = evaluate(learn.model, batches(test))['mean']/corpus.floor('test')
            cells.put(key, res)

# positions

def positions(cells, a):
    "Windows of 32 tokens in training, longer ones in use"
    corpus = toy_corpus(n_train=a.sentences, n_valid=1000, n_test=2000, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=32, seq_len=32, seed=0,
                                      shuffle=True, device='cpu')
    text = EncodedText([s.tokens for s in corpus.gold['test']], dls.types)
    for seed in a.seeds:
        for how in ('LSTM', *POSITIONS):
            key = f'positions/{a.seconds/2:g}s/{how}/seed {seed}'
            if key in cells: continue
            design = 'LSTM' if how == 'LSTM' else 'attention'
            config = config_of(design, a.width, longest=LENGTHS[-1])
            if how != 'LSTM': config.positions = how
            lr = tuned(cells, 'stream', how, dls, config, a.tune_seconds)
            learn, used = train(dls, config, a.seconds/2, lr, seed)
            ppl = {}
            for T in LENGTHS[2:]:
                dl = StreamDataLoader(text, bs=max(1, 512//T), seq_len=T)
                ppl[str(T)] = evaluate(learn.model, dl)['mean']
            cells.put(key, dict(used, perplexity=ppl))

# real text

def wikitext(cells, a):
    "Perplexity on WikiText-2, then UD-EWT's tags by the same model"
    try: corpus, gold = wikitext2(), treebank('UD_English-EWT').gold
    except Exception as e:
        print(f'WikiText-2 or UD-EWT is not here, this part is left out: {e}')
        return
    if a.quick: corpus.splits['train'] = corpus.splits['train'][:3000]
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=32, seq_len=64, min_freq=2, seed=0,
                                      shuffle=True, device='cpu')
    tok = [l.split() for l in corpus.splits['test'] if l.split()][:300 if a.quick else None]
    test = EncodedText(tok, dls.types)
    prior = dls.log_frequencies()
    if (key := 'wikitext/counting') not in cells:
        train_ids = [dls.vocab.encode(l.split()) for l in corpus.splits['train'] if l.split()]
        kn = KneserNey(5, vocab_size=len(dls.vocab) - 2).fit(train_ids)
        cells.put(key, kn.perplexity(map(dls.vocab.encode, tok)))
    for seed in a.seeds:
        for design in [d for d in REAL if d in a.designs]:
            key = f'wikitext/{a.minutes:g}min/{design}/seed {seed}'
            if key in cells: continue
            config = config_of(design, a.width, dropout=.1)
            lr = tuned(cells, 'wikitext', design, dls, config, 60*a.minutes/5)
            learn, used = train(dls, config, 60*a.minutes, lr, seed)
            model, res = learn.model.eval(), dict(used)
            if config.goal == 'next':
                res['perplexity'] = evaluate(model, StreamDataLoader(test, bs=8, seq_len=64))
            short = [s for s in tok if 5 < len(s) < 60][:100]
            some = SentenceDataLoader(EncodedText(short, dls.types), bs=16)
            res['gap'] = STUDY.gap_perplexity(model, some, prior)
            elmo, cache = Elmo(model, dls.vocab, norm='token').eval(), LayerCache(mb=3000)
            train_sents, dev = (gold[k][::40 if a.quick else 1] for k in ('train', 'valid'))
            for share in (.01, .3):
                some = CURVES.subset(train_sents, share, seed)
                res[f'tagging_{share:g}'] = tagged(some, dev, elmo, cache, seed,
                                                   steps=200, hidden=96)
            cells.put(key, res)

# speed and memory

def windows(T, tokens=2048, n_types=4000):
    "A batch of `tokens` invented words in rows of T, and what follows and precedes"
    rng = np.random.default_rng(0)
    words = [''.join(chr(97 + c) for c in rng.integers(0, 26, 6)) for _ in range(n_types)]
    chars = torch.from_numpy(ByteCharVocab().encode(words))
    ids = torch.from_numpy(rng.integers(4, n_types, (tokens//T, T)))
    return chars[ids], ids, ids

def speed(cells, a):
    """Tokens a second in training, in embedding, and through the layers alone: the best of
    several turns"""
    for width in a.widths:
        turns = 2 if a.quick else 1 + 2048//width                    # the first warms up
        models = {d: config_of(d, width).model(4000) for d in REAL}
        for T in LENGTHS:
            key = f'speed/{width}/{T}'
            if key in cells: continue
            batch = windows(T)
            n, res = batch[0].shape[0]*T, {}
            def train_step(m):
                masked = m.config.goal == 'masked'
                args = (batch[0], batch[1]*(torch.rand(batch[1].shape) < MASKED_SHARE)) \
                    if masked else batch
                torch.cat(m.train()(*args)).mean().backward()
                for p in m.parameters(): p.grad = None
            def embed(m):
                with torch.no_grad(): m.eval().encode(batch[0])
            x = torch.randn(n//T, T, width)
            def layers(m):
                with torch.no_grad(): m.eval().lstm(x)
            jobs = dict(train=train_step, embed=embed, layers=layers)
            for turn in range(turns):
                for d,m in models.items():
                    for name,job in jobs.items():
                        start = time.process_time()
                        job(m)
                        took = time.process_time() - start
                        if turn: res.setdefault(name, {}).setdefault(d, []).append(n/took)
            best = {k: {d: max(v) for d,v in o.items()} for k,o in res.items()}
            cells.put(key, dict(best, load=os.getloadavg()[0]))

def forget(): Path('/proc/self/clear_refs').write_text('5')

def peak(a):
    "In a process of its own: MB that a training step on 8,192 tokens needs beyond what was there"
    design, T = a.job.rsplit(' ', 1)
    T = int(T)
    model, batch = config_of(design, a.width).model(4000), windows(T, 8192)
    if model.config.goal == 'masked': batch = batch[:2]
    def step(batch): torch.cat(model(*batch)).mean().backward()
    step([o[:1,:8] for o in batch])                                # libraries, kernels
    forget()
    before = peak_bytes()
    step(batch)
    print((peak_bytes() - before)/2**20)

def memory(cells, a):
    for T in LENGTHS[2::2]:
        for design in REAL:
            key = f'memory/{a.width}/{T}/{design}'
            if key in cells: continue
            cells.put(key, in_process(f'{design} {T}', '--width', a.width))

def main(a):
    torch.set_num_threads(1)
    if a.job: return peak(a)
    cells = Cells(a)
    parts = dict(tune=tune, norms=norms, toy=toy, goal=goal, positions=positions,
                 wikitext=wikitext, speed=speed, memory=memory)
    if a.again: cells.forget(a)
    instructions = torch.backends.cpu.get_cpu_capability()
    cells.put('about', dict(torch=torch.__version__, instructions=instructions, threads=1))
    for k in a.parts: parts[k](cells, a)

if __name__ == '__main__': main(arguments())
