"""Tokens a second of our loaders against a plain per-character Python loader that makes the same arrays, in one run.

    python tests/benchmarks/bench_batches.py
"""
import time
import numpy as np, torch
from elmo_fastai.corpora import toy_corpus
from elmo_fastai.tokens import *
from elmo_fastai.batches import *

class PlainLoader:
    "Sentences of like length, every letter of every token handled in Python"
    def __init__(self, sents, vocab, bs): self.sents, self.vocab, self.bs = sents, vocab, bs
    def row(self, t):
        if t in (BOS, EOS): ids = [259, 257 if t==BOS else 258, 260]
        else: ids = [259] + [b+1 for b in t.encode()][:48] + [260]
        return ids + [261]*(50-len(ids))
    def __iter__(self):
        order = sorted(range(len(self.sents)), key=lambda i: len(self.sents[i]))
        for i in range(0, len(order), self.bs):
            some = [[BOS, *self.sents[j], EOS] for j in order[i:i+self.bs]]
            T = max(map(len, some))
            x, f, b = [], [], []
            for s in some:
                ids = [2, *self.vocab.encode(s[1:-1]), 3]; pad = [0]*(T-len(s))
                x.append([self.row(t) for t in s] + [[0]*50 for _ in pad])
                f.append(ids[1:] + [0] + pad); b.append([0] + ids[:-1] + pad)
            yield torch.tensor(x, dtype=torch.int16), torch.tensor(f), torch.tensor(b)

def timed(f):
    t = time.perf_counter(); res = f()
    return res, time.perf_counter()-t

def main(n_train=10_000, bs=64):
    sents = [o.split() for o in toy_corpus(n_train=n_train, n_valid=1, n_test=1, n_unseen=1).train]
    vocab, n = WordVocab.build(sents), sum(len(s)+2 for s in sents)
    plain, slow = timed(lambda: list(PlainLoader(sents, vocab, bs)))
    ours, fast = timed(lambda: list(SentenceDataLoader(EncodedText(sents, TokenTypes(vocab)), bs=bs)))
    assert len(plain) == len(ours) and all(torch.equal(a, b) for p,o in zip(plain, ours) for a,b in zip(p, o)), "the arrays differ"
    print(f"{n:,} tokens | plain {n/slow:,.0f} tokens/s | ours {n/fast:,.0f} tokens/s (numericalising and batching) | {slow/fast:.1f} times as fast")
    return slow/fast

if __name__ == '__main__': assert main() >= 5, "less than 5 times the plain loader"
