"Texts, loaders and what is in their batches, for several files of tests"
import datasets, numpy as np, torch
import fastai.callback.progress # it adds `no_bar` to Learner
from hypothesis import settings, strategies as st
from elmo_fastai.batches import EncodedText, TokenTypes
from elmo_fastai.tokens import WordVocab

nasty = ['.', 'bank', 'the', '👨‍👩‍👧', 'cafe\u0301', 'نَهْر', '河岸', '\x00', 'x' * 10_000, '<s>',
         '</s>', '<pad>', '<unk>', '\u200b', '\ud800', '']

token = st.one_of(st.sampled_from(nasty), st.text(max_size=6))

corpora = st.lists(st.lists(token, max_size=7), min_size=1, max_size=9).filter(any)

common = settings(max_examples=30)

def encode(ss, min_freq=1, **kw):
    return EncodedText(ss, TokenTypes(WordVocab.build(ss, min_freq)), **kw)

def key(chars): return bytes(np.asarray(chars))

def found(dl):
    for b in dl:
        x,f,bw = b[0], *b[-2:]
        assert (x.dtype == torch.int16 and f.dtype == bw.dtype == torch.int64
                and x.shape[:2] == f.shape == bw.shape)
        real = x[...,0] != 0
        assert not f[~real].any() and not bw[~real].any() and not x[~real].any()
        yield from ((key(x[i,j]), int(f[i,j]), int(bw[i,j])) for i,j in real.nonzero().tolist())

# order

ss = [[f'w{i%7}']*(i%11+1) for i in range(60)]

def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for p, q in zip(a, b) for x, y in zip(p, q))

def lines_of(i, n=40): return [f'file {i} line {j} w{j%7} .' for j in range(n)]

ALL_LINES = [line for i in range(4) for line in lines_of(i)]

def seen(dl):
    v = dl.char_vocab
    return sorted(' '.join(v.decode(r[(r[:, 0] != 0).numpy()])[1:-1]) for b in dl for r in b[0])

# what validates is not trained on

def rows(n, first=0):
    return datasets.Dataset.from_dict(dict(text=[f'line {i} .' for i in range(first, first + n)]))

def mixed():
    "Streams that come in another order when their epoch is another, or that are drawn at random"
    it, other = (rows(200).to_iterable_dataset(num_shards=4),
                 rows(200, 200).to_iterable_dataset(num_shards=2))
    return dict(
        plain=it, shuffled=it.shuffle(seed=1, buffer_size=30),
        entirely=it.shuffle(seed=1, buffer_size=1000), mapped=it.shuffle(seed=4).map(lambda r: r),
        interleaved=datasets.interleave_datasets([it, other], probabilities=[0.5, 0.5], seed=3),
        by_turns=datasets.interleave_datasets([it.shuffle(seed=1), other]),
        shuffled_twice=datasets.interleave_datasets(
            [it, other.shuffle(seed=2)], probabilities=[0.3, 0.7], seed=3).shuffle(
                seed=5, buffer_size=50))

MIXED = ['plain', 'shuffled', 'entirely', 'mapped', 'interleaved', 'by_turns', 'shuffled_twice']

def reference(ss, text, max_words=None):
    """Every token with its next and its previous word, one by one; a blank has none

    A sentence that is cut ends nowhere: it has no mark there, and nothing comes next."""
    v, cv = text.types.vocab, text.types.char_vocab
    pad,bos,eos = map(key, cv.specials)
    for s in ss:
        kept = s[:max_words]
        is_whole = len(kept) == len(s)
        rows = [bos, *(key(cv.encode([t])[0]) for t in kept), *[eos]*is_whole]
        ids = [2, *v.encode(kept), *[3]*is_whole]
        if not s: ids = [0, 0]
        yield from zip(rows, [*ids[1:], 0], [0, *ids[:-1]])
