"""Measure a pretrained model on real English, compare shapes at equal time, and make the box of the
package (the page library/box).

    # train it by RECIPE: some hours of one core; again: goes on
    python tests/benchmarks/box.py MODEL --train
    # measure it: figures in MODEL/box.json; half an hour of one core
    python tests/benchmarks/box.py MODEL
    # the same on small samples, to see that it works: about a minute
    python tests/benchmarks/box.py MODEL --quick
    # train each of SHAPES for so many minutes of one core, and measure them
    python tests/benchmarks/box.py --shapes --minutes 2.5
    # the same (what MODEL/box.json has is not measured again), then write the box with its card,
    # and run its page
    python tests/benchmarks/box.py MODEL --make

MODEL is a folder that `--train` wrote, of the text that tests/books.py makes. The
texts (novels, tiny_shakespeare, wikitext-2, ud-ewt, sst2) are those of the
library's corpora: from ELMO_FASTAI_DATA where that is set, else downloaded.
"""
import json, subprocess, sys, tempfile, time
from hashlib import sha256
from pathlib import Path
import numpy as np, torch
from fastai.torch_core import set_seed
from elmo_fastai.text.corpora import toy_corpus, treebank
from elmo_fastai.ngrams import KneserNey
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import evaluate
from elmo_fastai.practice.folder import Folder, load_bilm, save_bilm, write_files
from elmo_fastai.batches import (
    ElmoDataLoaders, EncodedText, SentenceDataLoader, StreamDataLoader, TokenTypes)
from elmo_fastai.all import Elmo
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.practice.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.classifier import elmo_classifier_learner, random_elmo
from elmo_fastai.tagger import LayerCache

from harness import ROOT, environment, log, opt, options, read_figures, write_figures
from learners import accuracy_on, review_loaders
from sst2 import sst2
from made import quietly
from books import english
from pages import page
box = page('library/box')                          # how a box is made stands on its page
probes = page('studies/probes')
# held-out splits of english: two novels, plays, Wikipedia
HELD = 'valid', 'plays', 'wiki'
CONFIG = BiLMConfig('mini-en', filters=((1,32), (2,64), (3,96), (4,96)), proj_dim=352, hidden_dim=352,
                    dropout=.05, cutoffs=(1000, 5000), div_value=2.)
RECIPE = dict(epochs=6, lr=6e-3, bs=32)

# ---- text
def read_text_of(corpus, quick):
    "Tokenised sentences by split"
    tok = get_tokenizer(corpus.tokenizer)
    keep = {k: slice(None, None, 20 if k == 'train' else 10) if quick else slice(None)
            for k in corpus.splits}
    return {k: [tok(s) for s in v[keep[k]]] for k,v in corpus.splits.items()}

# ---- perplexity
def counting(toks, vocab):
    "Perplexities of Kneser–Ney 5-grams on the same vocabulary, [forward, backward] by split"
    ids = {k: [o for s in v if (o := vocab.encode(s))] for k,v in toks.items()}
    models = [KneserNey(5, vocab_size=len(vocab)-2, backward=backward).fit(ids['train'])
              for backward in (False, True)]
    return {k: [kn.perplexity(ids[k]) for kn in models] for k in HELD}

def reading(lm, vocab, toks, char_vocab):
    """The biLM's perplexities by split: sentence by sentence, as the 5-grams read, and as
    running text"""
    res = {}
    for k in HELD:
        text = EncodedText(toks[k], TokenTypes(vocab, char_vocab))
        for how,dl in (('sentences', SentenceDataLoader(text, bs=64)),
                       ('running text', StreamDataLoader(text, bs=4, seq_len=256))):
            ppl = evaluate(lm, dl)
            res.setdefault(k, {})[how] = [ppl['fwd'], ppl['bwd']]
            res[k]['predictions'] = ppl['predictions']
    return res

# ---- what the layers know
def rows(table):
    return [dict(what=k, **{c: float(v) for c,v in r.items() if v == v})
            for k,r in table.iterrows()]

def tags(elmo, quick):
    "Universal tags of UD-EWT: a linear probe on each layer, all of dev"
    gold = treebank('UD_English-EWT').gold
    n = 5_000 if quick else 100_000
    table = probes.linear_probe(elmo, gold['train'], gold['valid'][:200 if quick else None],
                                seeds=1, share=1., max_tokens=n)
    return dict(rows=rows(table), train=table.attrs['train'], dev=table.attrs['dev'])

def senses(elmo, quick):
    "Senses of the toy corpus's ambiguous words: the nearest mean"
    n = 500 if quick else 3000
    gold = toy_corpus(n_train=n, n_valid=n//3, n_test=1, n_unseen=1).gold
    table = probes.sense_probe(elmo, gold['train'], gold['valid'], seeds=1, share=1.)
    return dict(rows=rows(table), train=table.attrs['train'], dev=table.attrs['dev'],
                words=table.attrs['words'])

def classify(elmo, data, seed, cache, epochs):
    "(accuracy on dev, on test) of a classifier on the frozen mix with attention pooling"
    set_seed(seed)
    dls = review_loaders(data, bs=64, char_vocab=elmo.char_vocab)
    learn = elmo_classifier_learner(dls, elmo, cache=cache, dropout=.3)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(epochs, 3e-3)
        return [accuracy_on(learn, data[split]) for split in ('valid', 'test')]

def reviews(quick):
    return {k: [(s.text, s.label) for s in v[::15 if quick else 1]] for k,v in sst2().gold.items()}

def sentiment(elmo, quick, seeds=5, random=()):
    """SST-2 sentences: the pretrained backbone against a normalised random one, of another seed
    each time"""
    data, epochs, n_seeds = reviews(quick), 1 if quick else 5, 2 if quick else seeds
    cache, res = LayerCache(6000), dict(pretrained=[], random=[*random])
    for seed in range(n_seeds):
        res['pretrained'].append(classify(elmo, data, seed, cache, epochs))
        if len(res['random']) <= seed: res['random'].append(untrained(elmo, data, seed, epochs))
        log('  seed', seed, {k: v[seed] for k,v in res.items()})
    res['commonest'] = [max(np.mean([l == o for _,l in data[k]]) for o in (0, 1))
                        for k in ('valid', 'test')]
    n = {k: len(data[v]) for k,v in dict(train='train', dev='valid', test='test').items()}
    return dict(**res, **n, epochs=epochs, normalised=True)

def untrained(elmo, data, seed, epochs):
    """The same classifier on the same network with random weights, its token vectors normalised:
    the weights of `elmo` don't matter"""
    return classify(random_elmo(elmo, seed, [t for t,_ in data['train']]), data, seed, True, epochs)

# ---- all of it
def loaders(corpus, bs, vocab=None):
    return ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=bs, seq_len=64, max_vocab=20_000,
                                       vocab=vocab, seed=42, device='cpu')

def train(folder):
    "The model of the box, from its text; goes on where it was stopped"
    set_seed(42)
    dls, run = loaders(english(), RECIPE['bs']), Path(f'{folder}.run')
    learn = bilm_learner(dls, CONFIG, cbs=Checkpoints(run))
    if checkpoints_in(run): resume(learn, run, log)
    quietly(learn, 'fit_one_cycle', RECIPE['epochs'], RECIPE['lr'])
    rows = [dict(zip(learn.recorder.metric_names[1:-1], row)) for row in learn.recorder.values]
    epochs = [dict(epoch=i, forward=row['perplexity_fwd'], backward=row['perplexity_bwd'])
              for i,row in enumerate(rows, 1)]
    about = dict(train_seconds=learn.throughput.seconds, tokens_per_second=learn.throughput.per_second,
                 steps=len(learn.recorder.losses), device='cpu', epochs=epochs)
    save_bilm(folder, learn.model, dls.vocab, extra={'training.json': json.dumps(about)})

def measure(folder, quick=False):
    """All figures of a trained model, kept in MODEL/box.json as they come: a run that was
    stopped goes on where it was"""
    kept, start = Path(folder)/'box.json', time.perf_counter()
    of = dict(weights=sha256((Path(folder)/'model.safetensors').read_bytes()).hexdigest(),
              quick=quick)
    f = read_figures(kept, {})
    # what does not depend on the weights holds for other weights, too
    if f.get('of') != of:
        shape = json.loads(json.dumps(vars(load_bilm(folder)[0].config)))
        same = f.get('of', {}).get('quick') == quick and f['model']['config'] == shape
        f = dict(of=of, **{k: f[k] for k in ('text', '5-gram', 'untrained') if same and k in f})
    def step(name, make):
        if name in f: return
        f[name] = make()
        write_figures(kept, f)
        log(f'{name}: {json.dumps(f[name])[:300]}')
    lm, vocab = load_bilm(folder)
    if vocab is None:
        raise SystemExit(f'{folder} has no output layer: give the folder that was trained')
    with tempfile.TemporaryDirectory() as tmp:
        small, _ = load_bilm(write_files(tmp, *box.pack(lm, vocab, lm.config.name)))  # as in the box
    elmo, before = Elmo(small, vocab).eval(), Elmo(lm, vocab).eval()
    def model():
        n = sum(p.numel() for p in small.parameters())
        output = sum(p.numel() for k,p in small.named_parameters() if k.startswith('head'))
        return dict(parameters=dict(encoder=n - output, output=output), words=len(vocab),
                    config=vars(lm.config))
    def as_bytes():
        sents = [o.split() for o in ('It was a bright cold day in April .',
                                     'The bank refused the loan , and the river rose .')]
        text = EncodedText(toks['valid'], TokenTypes(vocab, ByteCharVocab(lm.config.max_chars)))
        ppl = {k: evaluate(m, SentenceDataLoader(text, bs=64))
               for k,m in {'as trained': lm, 'in the box': small}.items()}
        return dict(moved=box.moved(before, elmo, sents).tolist(),
                    perplexity={k: [v['fwd'], v['bwd']] for k,v in ppl.items()})
    def text():
        res = {k: dict(sentences=len(v), words=sum(map(len, v)),
                       unknown=float(np.mean([w not in vocab.o2i for s in v for w in s])))
                       for k,v in toks.items()}
        res['train']['sha256'] = sha256('\n'.join(corpus.train).encode()).hexdigest()
        return res
    def perplexity():
        read = reading(small, vocab, toks, ByteCharVocab(lm.config.max_chars))
        return {k: {**v, '5-gram': f['5-gram'][k]} for k,v in read.items()}
    step('model', model)
    if not {'perplexity', 'bytes', 'text', '5-gram'} <= {*f}:
        corpus = english()
        toks = read_text_of(corpus, quick)
        step('text', text)
        step('bytes', as_bytes)
        step('5-gram', lambda: counting(toks, vocab))
        step('perplexity', perplexity)
        del toks
    step('senses', lambda: senses(elmo, quick)); step('tags', lambda: tags(elmo, quick))
    step('untrained', lambda: [untrained(elmo, reviews(quick), seed, 1 if quick else 5)
                               for seed in range(2 if quick else 5)])
    step('sentiment', lambda: sentiment(elmo, quick, random=f['untrained']))
    f['training'] = json.loads(Folder(folder).read('training.json')) | dict(quick=quick)
    step('measured', lambda: dict(seconds=time.perf_counter() - start, torch=torch.__version__,
                                  threads=torch.get_num_threads()))
    log(f"{f['measured']['seconds']:.0f} s")
    return f

# ---- shapes at equal time
def shape(name, size=352, layers=2, lr=6e-3, bs=32, dropout=.05, cutoffs=(1000, 5000),
          div_value=2.):
    config = BiLMConfig(name, filters=((1,32), (2,64), (3,96), (4,96)), proj_dim=size,
                        hidden_dim=size, n_layers=layers, residual=True,
                        dropout=dropout, cutoffs=cutoffs, div_value=div_value)
    return config, lr, bs

SHAPES = [shape('352'), shape('224', 224), shape('288', 288), shape('256, three layers', 256, 3),
          shape('352, rate 0.003', lr=3e-3),
          shape('352, smaller output', cutoffs=None, div_value=4.),
          shape('352, batches of 64', bs=64), shape('352, dropout 0.1', dropout=.1),
          shape('352, again')]

def measure_shape(folder, valid):
    """A small measurement of a trained folder: perplexities of some held-out sentences, tags and
    senses by layer"""
    lm, vocab = load_bilm(folder)
    elmo, gold = Elmo(lm, vocab).eval(), treebank('UD_English-EWT').gold
    ppl = evaluate(lm, SentenceDataLoader(EncodedText(valid, TokenTypes(vocab)), bs=64))
    table = probes.linear_probe(elmo, gold['train'], gold['valid'][::4], seeds=1, share=1.,
                                max_tokens=15_000)
    return dict(config=vars(lm.config), parameters=sum(p.numel() for p in elmo.lm.parameters()),
                fwd=ppl['fwd'], bwd=ppl['bwd'],
                tags=table.accuracy.tolist()[2:],
                senses=[o['accuracy'] for o in senses(elmo, True)['rows'][1:]])

def shapes(minutes, rows, only=None):
    """Train and measure SHAPES one after the other; what is in the file `rows` already is not
    done again"""
    rows = Path(rows)
    done = read_figures(rows, [])
    names = {o['name'] for o in done}
    todo = [(i, *o) for i,o in enumerate(SHAPES) if o[0].name not in names
            and (not only or o[0].name in only)]
    if not todo: return
    corpus, vocab = english(), None
    valid = [get_tokenizer('words')(s) for s in corpus.valid[::3]]
    for i,c,lr,bs in todo:
        log(f'{c.name}: {minutes:g} minutes')
        set_seed(42)
        dls = loaders(corpus, bs, vocab)
        vocab = dls.vocab
        learn, folder = bilm_learner(dls, c), rows.with_name(f'shape-{i}')
        # others on the machine don't count
        budget = TimeBudget(60*minutes, clock=time.process_time)
        quietly(learn, 'fit_one_cycle', 999, lr, cbs=budget)
        save_bilm(folder, learn.model, dls.vocab)
        done.append(dict(name=c.name, minutes=minutes, lr=lr, bs=bs,
                         tokens=int(learn.throughput.tokens), **measure_shape(folder, valid)))
        write_figures(rows, done)
        log(json.dumps({k: v for k,v in done[-1].items() if k != 'config'}))

if __name__ == '__main__':
    a = options(__doc__,
        model=opt(None, 'the folder of the model', positional=True, nargs='?'),
        train=opt(False, 'train it first'),
        quick=opt(False, 'small samples'),
        make=opt(False, 'write the box of the package, and run its page'),
        again=opt(False, 'measure all anew, whatever MODEL/box.json has'),
        out=opt(ROOT/'elmo_fastai'/'box'/'mini-en', 'the box to write'),
        shapes=opt(False, 'train and measure several shapes at equal time'),
        minutes=opt(2.5, 'of one core, for each shape'),
        only=opt(None, 'names of shapes', nargs='*'),
        rows=opt('models/shapes/shapes.json', 'where the figures of the shapes are'))
    torch.set_num_threads(1)
    if a.shapes: shapes(a.minutes, a.rows, a.only)
    if not a.model: sys.exit()
    if a.train: train(a.model)
    if a.again: (Path(a.model)/'box.json').unlink(missing_ok=True)
    f = measure(a.model, a.quick)
    if a.make:
        # the shapes are compared once, and their figures stay with the box
        old = Path(a.out)/'figures.json'
        f['shapes'] = read_figures(a.rows) or read_figures(old, {}).get('shapes', [])
        folder = box.make_box(a.model, a.out, f)
        log(f"{folder}: {sum(o.stat().st_size for o in folder.iterdir())/1e6:.2f} MB")
        if Path(a.out).resolve() == (ROOT/'elmo_fastai'/'box'/'mini-en').resolve():
            subprocess.run([sys.executable, '-m', 'jupyter', 'nbconvert', '--log-level=ERROR',
                            '--to', 'notebook', '--execute', '--inplace', 'library/box.ipynb'],
                           cwd=ROOT/'nbs', check=True, env=environment(threads=1))
            subprocess.run([Path(sys.executable).parent/'nbdev-clean', '--fname',
                            'nbs/library/box.ipynb'], cwd=ROOT, check=True)
            log('its page is executed')
