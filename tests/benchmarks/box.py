"""Train the English model of the package, measure it, compare shapes at equal time, and make its
box (library: The model in the box).

    python tests/benchmarks/box.py MODEL --train     # by RECIPE: some hours of one core
    python tests/benchmarks/box.py MODEL             # half an hour; figures go to MODEL/box.json
    python tests/benchmarks/box.py MODEL --shapes    # SHAPES, some minutes each, into the same file
    python tests/benchmarks/box.py MODEL --make      # write the box; then run its page

MODEL is the folder to write or to read; its text is that of tests/books.py.
"""
import json, tempfile, time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
import numpy as np, torch
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from harness import ROOT, log, read_figures, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.text.corpora import toy_corpus, treebank
from elmo_fastai.ngrams import KneserNey
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import bilm_learner, evaluate
from elmo_fastai.practice.folder import Folder, load_bilm, save_bilm, write_files
from elmo_fastai.batches import ElmoDataLoaders, EncodedText, SentenceDataLoader, TokenTypes
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.practice.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.classifier import elmo_classifier_learner, random_elmo
from elmo_fastai.tagger import LayerCache
from books import english
from learners import accuracy_on, review_loaders
from sst2 import sst2
from made import quietly
from pages import page

box, probes = page('library/box'), page('studies/probes')
HELD = 'valid', 'plays', 'wiki'     # held-out splits: two novels, plays, Wikipedia
CONFIG = BiLMConfig('mini-en', filters=((1,32), (2,64), (3,96), (4,96)), proj_dim=352,
                    hidden_dim=352, dropout=.05, cutoffs=(1000, 5000), div_value=2.)
RECIPE = dict(epochs=6, lr=6e-3, bs=32)
SHAPES = {'352': {}, '224': dict(size=224), '288': dict(size=288),
          '256, three layers': dict(size=256, n_layers=3), '352, rate 0.003': dict(lr=3e-3),
          '352, smaller output': dict(cutoffs=None, div_value=4.),
          '352, batches of 64': dict(bs=64), '352, dropout 0.1': dict(dropout=.1),
          '352, again': {}}

def loaders(corpus, bs, vocab=None):
    return ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=bs, seq_len=64, max_vocab=20_000,
                                       vocab=vocab, seed=42, device='cpu')

def train_box(folder):
    set_seed(42)
    dls, run = loaders(english(), RECIPE['bs']), Path(f'{folder}.run')
    learn = bilm_learner(dls, CONFIG, cbs=Checkpoints(run))
    if checkpoints_in(run): resume(learn, run, log)
    quietly(learn, 'fit_one_cycle', RECIPE['epochs'], RECIPE['lr'])
    rows = [dict(zip(learn.recorder.metric_names[1:-1], row)) for row in learn.recorder.values]
    epochs = [dict(epoch=i, forward=row['perplexity_fwd'], backward=row['perplexity_bwd'])
              for i,row in enumerate(rows, 1)]
    about = dict(train_seconds=learn.throughput.seconds,
                 tokens_per_second=learn.throughput.per_second,
                 steps=len(learn.recorder.losses), device='cpu', epochs=epochs)
    save_bilm(folder, learn.model, dls.vocab, extra={'training.json': json.dumps(about)})

# what a trained model is measured by

def perplexities(lm, vocab, toks):
    types, res = TokenTypes(vocab, ByteCharVocab(lm.config.max_chars)), {}
    for k in HELD:
        ppl = evaluate(lm, SentenceDataLoader(EncodedText(toks[k], types), bs=64))
        res[k] = dict(sentences=[ppl['fwd'], ppl['bwd']])
    return res

def counting(vocab, toks):
    "The same of Kneser–Ney 5-grams on the same vocabulary"
    ids = {k: [o for s in v if (o := vocab.encode(s))] for k,v in toks.items()}
    models = [KneserNey(5, vocab_size=len(vocab)-2, backward=backward).fit(ids['train'])
              for backward in (False, True)]
    return {k: [kn.perplexity(ids[k]) for kn in models] for k in HELD}

def read(corpus, vocab):
    tok = get_tokenizer(corpus.tokenizer)
    toks = {k: [*map(tok, v)] for k,v in corpus.splits.items()}
    about = {k: dict(sentences=len(v), words=sum(map(len, v)),
                     unknown=float(np.mean([w not in vocab.o2i for s in v for w in s])))
             for k,v in toks.items()}
    about['train']['sha256'] = sha256('\n'.join(corpus.train).encode()).hexdigest()
    return toks, about

def probed(table):
    rows = [dict(what=k, **{c: float(v) for c,v in r.items() if v == v})
            for k,r in table.iterrows()]
    return dict(rows=rows, **table.attrs)

def tags(elmo, every=1, max_tokens=100_000):
    gold = treebank('UD_English-EWT').gold
    return probed(probes.linear_probe(elmo, gold['train'], gold['valid'][::every], seeds=1,
                                      share=1., max_tokens=max_tokens))

def senses(elmo, n=3000):
    gold = toy_corpus(n_train=n, n_valid=n//3, n_test=1, n_unseen=1).gold
    return probed(probes.sense_probe(elmo, gold['train'], gold['valid'], seeds=1, share=1.))

def classify(elmo, data, seed, cache, epochs=5):
    "(accuracy on dev, on test) of a classifier on the frozen mix with attention pooling"
    set_seed(seed)
    dls = review_loaders(data, bs=64, char_vocab=elmo.char_vocab)
    learn = elmo_classifier_learner(dls, elmo, cache=cache, dropout=.3)
    quietly(learn, 'fit_one_cycle', epochs, 3e-3)
    return [accuracy_on(learn, data[split]) for split in ('valid', 'test')]

def sentiment(elmo, seeds=5):
    """SST-2 sentences: the pretrained backbone against a normalised random one, of another seed
    each time"""
    data = {k: [(s.text, s.label) for s in v] for k,v in sst2().gold.items()}
    cache, texts = LayerCache(6000), [t for t,_ in data['train']]
    found = [(classify(elmo, data, seed, cache),
              classify(random_elmo(elmo, seed, texts), data, seed, True)) for seed in range(seeds)]
    positive = [np.mean([label for _,label in data[k]]) for k in ('valid', 'test')]
    return dict(zip(('pretrained', 'random'), map(list, zip(*found))),
                commonest=[max(o, 1 - o) for o in positive])

def measure(folder):
    lm, vocab = load_bilm(folder)
    elmo, small = Elmo(lm, vocab).eval(), box_of(lm, vocab)
    boxed = Elmo(small, vocab).eval()
    n = sum(p.numel() for p in small.parameters())
    output = sum(p.numel() for k,p in small.named_parameters() if k.startswith('head'))
    f = dict(model=dict(parameters=dict(encoder=n - output, output=output), words=len(vocab)))
    toks, f['text'] = read(english(), vocab)
    f['perplexity'], fivegram = perplexities(small, vocab, toks), counting(vocab, toks)
    for k,ppl in f['perplexity'].items(): ppl['5-gram'] = fivegram[k]
    sents = [o.split() for o in ('It was a bright cold day in April .',
                                 'The bank refused the loan , and the river rose .')]
    trained = perplexities(lm, vocab, toks)['valid']['sentences']
    f['bytes'] = dict(moved=box.moved(elmo, boxed, sents).tolist(), perplexity={
        'as trained': trained, 'in the box': f['perplexity']['valid']['sentences']})
    del toks
    return f | dict(senses=senses(boxed), tags=tags(boxed), sentiment=sentiment(boxed),
                    training=json.loads(Folder(folder).read('training.json')))

def box_of(lm, vocab):
    with tempfile.TemporaryDirectory() as tmp:
        return load_bilm(write_files(tmp, *box.pack(lm, vocab, lm.config.name)))[0]

def shape(corpus, name, minutes, size=352, lr=RECIPE['lr'], bs=RECIPE['bs'], **changes):
    "Train a shape for some minutes of one core: perplexities of held-out sentences, tags, senses"
    set_seed(42)
    dls = loaders(corpus, bs)
    config = replace(CONFIG, name=name, proj_dim=size, hidden_dim=size, **changes)
    learn = bilm_learner(dls, config, cbs=TimeBudget(60*minutes, clock=time.process_time))
    quietly(learn, 'fit_one_cycle', 999, lr)
    lm, valid = learn.model.eval(), [get_tokenizer('words')(s) for s in corpus.valid[::3]]
    elmo = Elmo(lm, dls.vocab).eval()
    ppl = evaluate(lm, SentenceDataLoader(EncodedText(valid, TokenTypes(dls.vocab)), bs=64))
    return dict(name=name, tokens=int(learn.throughput.tokens),
                parameters=sum(p.numel() for p in elmo.lm.parameters()),
                fwd=ppl['fwd'], bwd=ppl['bwd'],
                tags=[o['accuracy'] for o in tags(elmo, 4, 15_000)['rows'][2:]],
                senses=[o['accuracy'] for o in senses(elmo, 500)['rows'][1:]])

@call_parse(pos=['model'])
def main(
    model:Path,         # its folder
    train:bool=False,   # train it first
    shapes:bool=False,  # train and measure several shapes at equal time
    minutes:float=2.5,  # of one core, for each shape
    make:bool=False,    # write the box with the figures that are there
    out:Path=ROOT/'elmo_fastai'/'box'/'mini-en' # the box to write
):
    "Do what is asked; without a word: measure"
    torch.set_num_threads(1)
    file = model/'box.json'
    if train: train_box(model)
    found = read_figures(file, read_figures(out/'figures.json', {}))
    if shapes:
        corpus = english()
        found['shapes'] = [shape(corpus, name, minutes, **how) for name,how in SHAPES.items()]
    if not (shapes or make): found |= measure(model)
    write_figures(file, found)
    if make: log(box.make_box(model, out, found))
