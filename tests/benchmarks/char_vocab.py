"""Bytes or an alphabet learned from the text? The same biLM with each, equal steps, the same seeds
(study: One recipe, many scripts).

    # three alphabets, three seeds: some three minutes of one core each
    python tests/benchmarks/char_vocab.py
    # does it work?
    python tests/benchmarks/char_vocab.py --seeds 1 --lines 500 --tokens 2000 --json F

Each row: a biLM reads the first lines of WikiText-2 once, as a stream; perplexity is that of the
whole validation part. Then a linear classifier reads parts of speech (UD English EWT) off each
layer: once over all tokens of the dev part, once over those whose form neither the biLM's text nor
the classifier's has.
"""
from pathlib import Path
import numpy as np, torch
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from harness import RESULTS, fill, read_figures, write_figures
from elmo_fastai.all import (
    BiLMConfig, ByteCharVocab, CharVocab, Elmo, ElmoDataLoaders, bilm_learner)
from elmo_fastai.learner import evaluate
from elmo_fastai.text.corpora import treebank, wikitext2
from elmo_fastai.text.read import Corpus
from pages import page

STUDY = page('studies/probes')
# name → arguments of `CharVocab.build`; None: bytes
ROWS = {'bytes': None, 'letters': {}, 'pairs of letters': dict(n=2, max_symbols=4000)}
SHAPE = dict(filters=((1,32), (2,64), (3,96), (4,96)), proj_dim=128, hidden_dim=128, dropout=.1)

def tags(elmo, train, dev, known, n_tokens, seed):
    "Accuracy of each layer over all tokens and over those with a form that is new"
    data = [(s.tokens, s.tags) for s in train]
    tr = STUDY.collect(elmo, [data[i] for i in STUDY.some_sentences(data, seed, 1., n_tokens)])
    dv = STUDY.collect(elmo, dev)
    new = ~np.isin(dv.words.astype(str), [*known, *set(tr.words)])
    right = [STUDY.probe(x, tr.labels).predict(q) == dv.labels
             for x,q in zip(tr.layers.values(), dv.layers.values())]
    return dict(tags=[float(o.mean()) for o in right],
                tags_new=[float(o[new].mean()) for o in right])

def train_row(name, seed, lines, tokens):
    wiki, gold = wikitext2(), treebank('UD_English-EWT').gold
    corpus = Corpus(wiki.name, dict(train=wiki.train[:lines], valid=wiki.valid), wiki.tokenizer)
    sents = [o.split() for o in corpus.train]
    chars = ByteCharVocab() if ROWS[name] is None else CharVocab.build(sents, **ROWS[name])
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, min_freq=2,
                                      char_vocab=chars, seed=seed, device='cpu')
    learn = bilm_learner(dls, BiLMConfig(name, **SHAPE), from_counts=False)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, 6e-3)
    elmo, known = Elmo(learn.model, dls.vocab).eval(), {w for s in sents for w in s}
    return dict(**evaluate(learn.model, dls.valid),
                **tags(elmo, gold['train'], gold['valid'], known, tokens, seed))

@call_parse
def main(
    seeds:int=3,                        # of each alphabet
    lines:int=12_000,                   # to train on
    tokens:int=20_000,                  # tagged tokens that the classifier learns from
    json:Path=RESULTS/'char_vocab.json' # file of the rows
):
    "Add the rows that the file lacks"
    torch.set_num_threads(1)
    found = read_figures(json, dict(rows=[]))
    fill(found['rows'], [dict(name=name, seed=seed) for seed in range(seeds) for name in ROWS],
         lambda **key: train_row(**key, lines=lines, tokens=tokens),
         lambda: write_figures(json, found))
