"Encoded text, padding and loaders against slow, obvious references; each door; wrong input"
import pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import (
    ColReader, DataBlock, Datasets, RandomSplitter, TensorCategory, TfmdLists,
    set_seed)
from hypothesis import given, strategies as st
from elmo_fastai.batches import (
    BiLMBlock, ElmoDataLoaders as Loaders, ElmoPadChunk, EncodedText,
    SentenceDataLoader, StreamDataLoader, TokenTypes)
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import Corpus
from elmo_fastai.tokens import (
    ElmoTransform, SPECIALS, TensorChars, TensorTokens, WordVocab)
from loading import common, corpora, encode, found, key, reference, same, ss, token

KINDS = dict(sentences=dict(bs=2), stream=dict(bs=2, seq_len=4))
each_kind = pytest.mark.parametrize('kind', KINDS)
each_loader = pytest.mark.parametrize('cls,kw', [
    (SentenceDataLoader, dict(bs=4)), (StreamDataLoader, dict(bs=4, seq_len=8))])

# the text as an array

@pytest.mark.parametrize('ss,max_words,ids,fwd,bwd,cuts', [
    ([['<pad>', '</s>', '<s>', 'a']], None, [1, 3, 4, 5, 6, 2],
     [1, 1, 1, 4, 3, 0], [0, 2, 1, 1, 1, 4], (0, 0, 0)),         # typed marks are text
    ([['a', 'b'], []], None, [1, 3, 4, 2, 1, 2], [4, 5, 3, 0, 0, 0], [0, 2, 4, 5, 0, 0],
     (0, 0, 0)),                                                 # a blank predicts nothing
    ([['a', 'b', 'c'], ['b'], ['c', 'a', 'b']], 2, [1, 3, 4, 1, 4, 2, 1, 5, 3],
     [5, 4, 0, 4, 3, 0, 6, 5, 0], [0, 2, 5, 0, 2, 4, 0, 2, 6], (2, 2, 0)), # a cut is no end
    ([['a', 'b']], 2, [1, 3, 4, 2], [4, 5, 3, 0], [0, 2, 4, 5], (0, 0, 0)),
    ([['x'*99]], None, [1, 3, 2], [4, 3, 0], [0, 2, 4], (0, 0, 1))])
def test_an_encoded_text(ss, max_words, ids, fwd, bwd, cuts):
    text = encode(ss, max_words=max_words)
    _, *targets = text.take(np.arange(len(ids)))
    assert text.ids.tolist() == ids and [t.tolist() for t in targets] == [fwd, bwd]
    assert text.cuts == cuts and len(text) == len(ss) == len(list(text))
    assert text[-1].tolist() == text[np.int64(len(ss) - 1)].tolist()
    with pytest.raises(IndexError): text[len(ss)]

# loaders: the multiset of examples, the order

@given(corpora, st.integers(1, 5), st.booleans(), st.sampled_from([None, 1, 9, 40]),
       st.integers(1, 2), st.sampled_from([None, 1, 3]))
@common
def test_sentences(ss, bs, shuffle, max_tokens, min_freq, max_words):
    text = encode(ss, min_freq, max_words=max_words)
    dl = SentenceDataLoader(text, bs=bs, shuffle=shuffle, max_tokens=max_tokens)
    batches = list(dl)
    assert Counter(found(batches)) == Counter(reference(ss, text, max_words))
    lens = [(x[..., 0] != 0).sum(1) for x, *_ in batches]
    assert torch.cat(lens).tolist() == text.lens[dl.order].tolist() and len(batches) == len(dl)
    for l, (x, *_) in zip(lens, batches):
        assert (l.diff() >= 0).all() and len(l) <= bs and x.shape[1] == l.max()
        assert max_tokens is None or len(x) == 1 or x[..., 0].numel() <= max_tokens

@given(corpora, st.integers(1, 5), st.integers(1, 12), st.booleans(), st.sampled_from([None, 2]))
@common
def test_streams(ss, bs, seq_len, shuffle, max_words):
    "Row r of a batch goes on where row r of the last one ended, so a state may be carried along"
    text = encode(ss, max_words=max_words)
    def make(): return StreamDataLoader(text, bs=bs, seq_len=seq_len, shuffle=shuffle)
    if -(-len(text.ids)//bs) < seq_len:
        with pytest.raises(CorpusError, match=f'seq_len={seq_len}'): make()
        return
    dl = make()
    batches = list(dl)
    assert Counter(found(batches)) == Counter(reference(ss, text, max_words))
    assert len(batches) == len(dl) and {len(x) for x, *_ in batches} == {bs}
    assert max(x.shape[1] for x, *_ in batches) <= seq_len
    if shuffle: return
    rows = torch.cat([x for x, *_ in batches], 1).flatten(0, 1)
    n = len(text.ids)
    assert [*map(key, rows[:n])] == [*map(key, text.types.chars[text.ids])] and not rows[n:].any()

@each_loader
def test_shuffling(cls, kw):
    text = encode(ss)
    def make(**args): return cls(text, **{**kw, 'shuffle': True, **args})
    a, b, workers = make(seed=1), make(seed=1), make(seed=1, num_workers=2)
    first = list(a)
    assert same(first, list(b)) and same(list(a), list(b))       # epoch by epoch
    assert same(first, list(workers))
    assert not same(first, list(a)) and not same(first, list(make(seed=2)))
    def run(): set_seed(3); return list(make())
    assert same(run(), run())

@each_loader
def test_pickle_new_and_empty(cls, kw):
    dl = cls(encode(ss), **kw, shuffle=True, seed=1)
    assert same(list(pickle.loads(pickle.dumps(dl))), list(dl))
    again = dl.new()
    for k in ('size', 'seed', 'shuffle', *dl._own): assert getattr(again, k) == getattr(dl, k)
    for empty in (dl.new(dl.dataset.new_empty()),
                  cls(EncodedText([], TokenTypes(WordVocab(SPECIALS))))):
        assert len(empty) == 0 and list(empty) == []

def test_a_budget_of_tokens_also_in_the_order_of_the_text():
    text = encode([['a']*n for n in (2, 50, 1, 1, 1, 30, 2, 2)])
    dl = SentenceDataLoader(text, bs=3, max_tokens=60, sort=False)
    assert dl.order.tolist() == list(range(8))
    assert [tuple(x.shape[:2]) for x,*_ in dl] == [(1, 4), (1, 52), (3, 3), (1, 32), (2, 4)]

def test_a_batch_as_text():
    text = encode([['a', 'b', 'c'], ['d']], max_words=2, tags=[['A', 'B', 'C'], ['D']])
    for dl in (SentenceDataLoader(text, sort=False), StreamDataLoader(text, bs=1, seq_len=6)):
        shown = dl.show_batch(show=False)
        assert ' '.join(shown.tags).split() == '· A B · D ·'.split()
        assert ' '.join(shown['forward targets']).split() == 'a b · d </s> ·'.split()

# padding, and fastai's own pipeline

@given(st.lists(st.lists(token, max_size=5), min_size=1, max_size=4))
@common
def test_pad_chunk_and_back(ss):
    tfm, pad = ElmoTransform(vocab=WordVocab.build([['a']])), ElmoPadChunk()
    items = [tfm(s) for s in ss]
    T = max(len(s) + 2 for s in ss)
    for i, ((o, j), old) in enumerate(zip(pad([(o, i) for i, o in enumerate(items)]), items)):
        assert i == j and o.words.shape == (T,) and o.chars.shape == (T, 50)
        back, _ = pad.decode((o, i))
        assert torch.equal(back.words, old.words) and torch.equal(back.chars, old.chars)
        assert not o.words[len(back.words):].any() and not o.chars[len(back.words):].any()

def test_every_part_with_a_row_per_token_is_padded():
    class Marks(TensorTokens): fill = 7
    sample = [(TensorChars(torch.ones(n, 4).short()), Marks(torch.ones(n)), TensorCategory(1),
               'text') for n in (3, 0, 1)]
    for (chars, marks, label, text), n in zip(ElmoPadChunk()(sample), (3, 0, 1)):
        assert chars.dtype == torch.int16 and type(marks) is Marks and not chars[n:].any()
        assert marks.tolist() == [1]*n + [7]*(3 - n) and (label, text) == (1, 'text')
        assert [len(part) for part in ElmoPadChunk().decode((chars, marks))] == [n]*2

def test_pipelines_of_fastai():
    df = pd.DataFrame({'body': [' '.join(s) for s in ss]})
    ds = Datasets(df, [[ColReader('body'), ElmoTransform('space')]])
    tl = TfmdLists([*df.body], ElmoTransform('space'))
    for items in (ds, tl):
        dl = SentenceDataLoader(items, bs=5)
        assert Counter(found(dl)) == Counter(reference(ss, dl.text))
    dls = ds.dataloaders(bs=4, before_batch=ElmoPadChunk(), num_workers=0, shuffle=False)
    assert dls.train.decode_batch(dls.one_batch())[1] == (' '.join(ss[1]),)
    for kind,kw in dict(sentences={}, stream=dict(seq_len=8)).items():
        block = DataBlock(BiLMBlock(kind, tokenizer='space', max_words=5, **kw),
                          get_x=ColReader('body'), splitter=RandomSplitter(seed=1))
        dls = block.dataloaders(df, bs=4)
        assert (len(dls.train.text), len(dls.valid.text)) == (48, 12)
        assert dls.train.text.cuts.words > 0 and dls.valid.types is dls.train.types
        assert len(dls.one_batch()) == 3 and len(dls.new_empty().train) == 0

# loaders of a corpus: each door for each kind

LINES = ['a b c d', 'b c d e f', 'c d e', 'd e f a b', 'e f', 'f a b c d e']*3
SMALL = Corpus('c', dict(train=['a b c']*9, valid=['a']), 'space')

def test_what_a_corpus_says():
    c = Corpus('c', dict(train=['a b', '', '  ', 'b c d e'], valid=['a z', '', 'x'*99]), 'space')
    dls = Loaders.from_corpus(c, bs=2, max_words=3)
    assert dls.skipped == {'blank lines': 3} and dls.corpus is c
    assert dls.cuts == dict(train=(1, 1, 0), valid=(0, 0, 1))
    assert dls.vocab.itos[4:] == ['b', 'a', 'c', 'd'] and 'z' in dls.types.tokens
    assert dls.train.shuffle and not dls.valid.shuffle
    vocab = WordVocab.build([['z']])
    assert Loaders.from_corpus(c, vocab=vocab).vocab is vocab
    s = Loaders.from_corpus(c, kind='stream', bs=2, seq_len=4)
    assert s.valid.size == 1 and not s.train.shuffle
    assert sum(int((f != 0).sum()) for _, f, _ in s.valid) == 5

def of_lines(**splits): return Loaders.from_corpus(Corpus('c', splits, 'space'))

@pytest.mark.parametrize('call,error,why', [
    (lambda: encode([['a']], max_words=-1), ValueError, 'max_words=-1'),
    (lambda: ElmoPadChunk()([]), TypeError, 'none of these 0 samples'),
    (lambda: ElmoPadChunk()([('a',)]), TypeError, 'none of these 1 samples'),
    (lambda: ElmoPadChunk()([(TensorChars(torch.ones(3, 4)), TensorTokens(torch.ones(2)))]),
     CorpusError, '3 and 2 rows'),
    (lambda: SentenceDataLoader(['a b']), TypeError, 'ElmoTransform'),
    *[(lambda kw=kw: Loaders.from_corpus(SMALL, **kw), ValueError, why) for kw,why in (
        (dict(kind='lm'), "kind='lm'"), (dict(bs=2.5), 'bs must be a whole number'),
        (dict(max_tokens=-1), 'whole number'), (dict(val_bs=0), 'bs must be'))],
    (lambda: BiLMBlock('lm'), ValueError, "kind='lm'"),
    (lambda: Loaders.from_corpus(SMALL, kind='stream', seqlen=1), TypeError, "argument 'seqlen'"),
    (lambda: Loaders.from_corpus(SMALL, valid=['a']), CorpusError, 'splits of its own'),
    (lambda: of_lines(train=['a']), CorpusError, "1 lines with text can't be split"),
    (lambda: of_lines(train=['a'], valid=['']), CorpusError, "'valid'.*not one word"),
    (lambda: of_lines(train=[], valid=['a']), CorpusError, 'no lines to train on'),
    (lambda: Loaders.from_corpus(['a b', 'c'], valid_pct=0), CorpusError, 'missing or empty')])
def test_refuses(call, error, why):
    with pytest.raises(error, match=why): call()

@pytest.mark.parametrize('bad', [7, None, pd.NA])
@pytest.mark.parametrize('held', [2, 3])        # among the validation items, the training items
def test_a_block_refuses_rows_that_are_no_text(bad, held):
    df = pd.DataFrame(dict(text=['a b', 'c', bad, 'd']), dtype=object, index=[10, 11, 12, 13])
    block = DataBlock(BiLMBlock(), get_x=ColReader('text'),
                      splitter=lambda o: ([i for i in range(4) if i != held], [held]))
    with pytest.raises(TypeError, match='Sentence 12 is'): block.dataloaders(df, bs=2)
