"""Write the toy language's model of the package, elmo_fastai/box/mini-toy: the model that lesson 09
trains, with a card.

    # train it as the lesson does, some four minutes of one core; writes models/mine
    python tests/benchmarks/mini_toy.py --train
    # or take what the lesson's slow cell has written
    python tests/benchmarks/mini_toy.py nbs/course/models/mine
"""
from pathlib import Path
import torch
from elmo_fastai.learner import evaluate, generate
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.ngrams import KneserNey
from elmo_fastai.practice.folder import load_bilm, save_bilm
from elmo_fastai.text.corpora import toy_corpus
from fastcore.script import call_parse
from harness import ROOT
from pages import page

CARD = '''---
library_name: elmo_fastai
language: en
license: apache-2.0
tags: [elmo, contextual-embeddings, feature-extraction]
---
# mini-toy: a biLM of the toy language

The model that lesson 09 of the course trains: a bidirectional language model over characters
(Peters et al. 2018) with {n:,} parameters, for the lessons that go on with it and for small
experiments. It comes with the package `elmo_fastai`.

    from elmo_fastai.all import Elmo, load_bilm
    lm, vocab = load_bilm('mini-toy')
    elmo = Elmo.from_pretrained('mini-toy')
    (vectors,), mask = elmo(['the boat lay at the bank .'])

It knows one language, and nobody speaks it: sentences that the grammar of
`elmo_fastai.text.toy` draws, split at blanks, {words:,} words with its four marks. Of English it
knows nothing else; `mini-en` has read books.

## Recipe

`pretrained` in `nbs/course/09_learner.ipynb`: {settings[n_train]:,} sentences, each once, in
batches of {settings[bs]}; AdamW, one cycle up to {settings[lr]:g}; seed 0. Some four minutes of
one processor core. The weights are stored in single precision.

## Figures

Perplexity of {sentences:,} held-out sentences, every word and every end of a sentence counted once:

| | forward | backward |
|---|---:|---:|
| mini-toy | {fwd:.2f} | {bwd:.2f} |
| Kneser–Ney trigram, of the first 20,000 sentences | {kn_fwd:.2f} | {kn_bwd:.2f} |
| floor: the grammar itself | {floor:.2f} | {floor:.2f} |

It writes:

{writes}

From one training; the sentences above are drawn with the seeds 0, 1 and 2.
'''

def trigram(corpus, backward):
    train, valid = (list(corpus.sentences(split)) for split in ('train', 'valid'))
    return KneserNey(3, backward=backward).fit(train).perplexity(valid)

def card_of(lm, vocab, settings):
    corpus = toy_corpus(n_train=20_000)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', vocab=vocab, device='cpu')
    texts = generate(lm, vocab, lm.char_vocab, ['']*3, seed=0)
    return CARD.format(
        n=sum(p.numel() for p in lm.parameters()), words=len(vocab), settings=settings,
        sentences=len(corpus.valid), floor=corpus.floor('valid'), **evaluate(lm, dls.valid),
        kn_fwd=trigram(corpus, False), kn_bwd=trigram(corpus, True),
        writes='\n'.join(f'- *{text}*' for text in texts))

@call_parse(pos=['model'])
def main(
    model:Path=Path('models/mine'),               # a folder
    train:bool=False,                             # train it first
    out:Path=ROOT/'elmo_fastai'/'box'/'mini-toy'  # the folder to write
):
    "Write the model and its card"
    torch.set_num_threads(1)
    lesson = page('course/09_learner')
    if train:
        learn, _ = lesson.pretrained(**lesson.PRETRAIN)
        save_bilm(model, learn.model, learn.dls.vocab)
    lm, vocab = load_bilm(model)
    save_bilm(out, lm, vocab, extra={'README.md': card_of(lm, vocab, lesson.PRETRAIN)})
