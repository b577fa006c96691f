"""Train the small biLM on half a novel, with and without dropout, and keep losses and sentences
after each pass (lesson 09).

    python tests/benchmarks/half_a_book.py                         # some minutes of one core
    python tests/benchmarks/half_a_book.py --epochs 1 --json F     # does it work?

The first half of The Secret Garden is the text, the sentences after it are held out.
"""
import math, time
from dataclasses import replace
from itertools import product
from pathlib import Path
import torch
from fastai.basics import Callback, set_seed
from fastcore.script import call_parse
from harness import RESULTS, log, write_figures
from elmo_fastai.batches import StreamDataLoader, EncodedText, ElmoDataLoaders
from elmo_fastai.bilm import ELMO_TINY
from elmo_fastai.learner import evaluate, CarryState, bilm_learner, generate
from elmo_fastai.text.corpora import local_copy
from elmo_fastai.text.read import Corpus, lines_of
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.practice.report import counting
from learners import NoValidation
from made import quietly
import books

BOOK = 'Burnett_Garden_1911'
N_MEASURED = 800            # sentences to measure on, of those that were read and of those held out
DROPOUTS = 0., .3
LR = 5e-3

def half_a_book():
    book, = [book for book in books.BOOKS if book.name == BOOK]
    text = ''.join(lines_of(books.book_file(book, local_copy('novels'))))
    sents = books.book_sentences(text, book.start)
    half = len(sents)//2
    return Corpus('half a book', dict(train=sents[:half],
                                      valid=sents[half:half + N_MEASURED])), book.title

class Note(Callback):
    "Measure the model before the first pass and after each, and let it write"
    def __init__(self, **texts): self.texts, self.rows = texts, []
    def before_fit(self): self.note(0)
    def after_epoch(self): self.note(self.epoch + 1)
    def note(self, passes):
        "Nats per prediction in evaluation mode, and some sentences"
        model, dls, row = self.learn.model, self.learn.dls, dict(passes=passes)
        for name,dl in self.texts.items():
            found = evaluate(model, dl)
            row[name] = [round(math.log(found[d]), 4) for d in ('fwd', 'bwd')]
        row['says'] = [generate(model, dls.vocab, dls.char_vocab, '', 14, temperature=.5,
                                seed=seed)[0] for seed in range(3)]
        self.rows.append(row)
        log(row)

def run(corpus, dropout, seed, epochs):
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=16, seq_len=32, min_freq=2,
                                      seed=seed, device='cpu')
    tok = get_tokenizer(corpus.tokenizer)
    read = EncodedText([tok(sent) for sent in corpus.train[:N_MEASURED]], dls.types)
    note = Note(read=StreamDataLoader(read, bs=16, seq_len=64),
                held=StreamDataLoader(dls.valid.text, bs=16, seq_len=64))
    learn = bilm_learner(dls, replace(ELMO_TINY, dropout=dropout),
                         cbs=[CarryState(), note, NoValidation()])
    start = time.process_time()
    quietly(learn, 'fit_one_cycle', epochs, LR)
    return dls, dict(dropout=dropout, seed=seed, cpu_seconds=round(time.process_time() - start),
                     passes=note.rows)

@call_parse
def main(
    epochs:int=12,                        # passes over the text
    seeds:int=1,                          # of each model
    threads:int=1,                        # of the processor
    json:Path=RESULTS/'half_a_book.json'  # file of the figures
):
    "Train all models and write their figures"
    torch.set_num_threads(threads)
    corpus, title = half_a_book()
    runs = []
    for seed,dropout in product(range(seeds), DROPOUTS):
        dls, found = run(corpus, dropout, seed, epochs)
        runs.append(found)
    counted = counting(dls.train.text, dls.valid.text)
    write_figures(json, dict(
        book=title, lr=LR, threads=threads, sentences=len(corpus.train),
        tokens=len(dls.train.text.ids), words=len(dls.vocab),
        counting={name: round(ppl, 2) for name,ppl in counted.items()}, runs=runs))
