"""Train the small biLM on half a novel, and keep its losses after each pass (lesson 09).

    python tests/benchmarks/half_a_book.py                         # a minute and a half of one core
    python tests/benchmarks/half_a_book.py --epochs 1 --json F     # does it work?

The first half of The Secret Garden is the text, the sentences after it are held out.
"""
import math
from dataclasses import replace
from pathlib import Path
import torch
from fastai.basics import Callback, set_seed
from fastcore.script import call_parse
from harness import RESULTS, log, write_figures
from elmo_fastai.batches import StreamDataLoader, EncodedText, ElmoDataLoaders
from elmo_fastai.bilm import ELMO_TINY
from elmo_fastai.learner import evaluate, CarryState, bilm_learner
from elmo_fastai.text.corpora import local_copy
from elmo_fastai.text.read import Corpus, lines_of
from elmo_fastai.text.tokenizers import get_tokenizer
from learners import NoValidation
from made import quietly
import books

BOOK = 'Burnett_Garden_1911'
N_MEASURED = 800            # sentences to measure on, of those that were read and of those held out

def half_a_book():
    book, = [book for book in books.BOOKS if book.name == BOOK]
    text = ''.join(lines_of(books.book_file(book, local_copy('novels'))))
    sents = books.book_sentences(text, book.start)
    half = len(sents)//2
    return Corpus('half a book', dict(train=sents[:half], valid=sents[half:half + N_MEASURED]))

class Note(Callback):
    "Nats per prediction before the first pass and after each, in evaluation mode"
    def __init__(self, **texts): self.texts, self.rows = texts, []
    def before_fit(self): self.note(0)
    def after_epoch(self): self.note(self.epoch + 1)
    def note(self, passes):
        row = dict(passes=passes)
        for name,dl in self.texts.items():
            found = evaluate(self.learn.model, dl)
            row[name] = [round(math.log(found[d]), 4) for d in ('fwd', 'bwd')]
        self.rows.append(row)
        log(row)

@call_parse
def main(
    epochs:int=12,                        # passes over the text
    json:Path=RESULTS/'half_a_book.json'  # file of the figures
):
    "Train the model and write its figures"
    torch.set_num_threads(1)
    corpus = half_a_book()
    set_seed(0)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=16, seq_len=32, min_freq=2, seed=0,
                                      device='cpu')
    tok = get_tokenizer(corpus.tokenizer)
    read = EncodedText([tok(sent) for sent in corpus.train[:N_MEASURED]], dls.types)
    note = Note(read=StreamDataLoader(read, bs=16, seq_len=64),
                held=StreamDataLoader(dls.valid.text, bs=16, seq_len=64))
    learn = bilm_learner(dls, replace(ELMO_TINY, dropout=0.),
                         cbs=[CarryState(), note, NoValidation()])
    quietly(learn, 'fit_one_cycle', epochs, 5e-3)
    write_figures(json, dict(runs=[dict(passes=note.rows)]))
