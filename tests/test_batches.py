"Loaders against slow, obvious references; fastai's machinery around them; wrong input"
import pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, strategies as st
from fastai.data.all import (ColReader, DataBlock, DataLoaders, Datasets, RandomSplitter, TfmdLists,
                             set_seed)
from fastai.learner import Learner
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import Corpus, Sentence
from elmo_fastai.text.tokens import BOS, CharVocab, EOS, PAD, SPECIALS, WordVocab
from elmo_fastai.data.batches import NeighbourDataLoader, SentenceDataLoader, StreamDataLoader
from elmo_fastai.data.blog import BiLMBlock, ElmoPadChunk, ElmoTokens, ElmoTransform
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from loading import Count, common, corpora, encode, found, key, same, ss, token

torch.set_num_threads(1)

def reference(ss, text):
    "Every token with its next and its previous word, one by one"
    v, cv = text.types.vocab, text.types.char_vocab
    pad,bos,eos = map(key, cv.specials)
    for s in ss:
        rows = [bos, *(key(cv.encode([t])[0]) for t in s), eos]
        ids = [2, *v.encode(s), 3]
        yield from zip(rows, [*ids[1:], 0], [0, *ids[:-1]])

# multisets

@given(
    corpora, st.integers(1, 5), st.booleans(), st.sampled_from([None, 1, 9, 40]), st.integers(1, 2)
)
@common
def test_sentences(ss, bs, shuffle, max_tokens, min_freq):
    text = encode(ss, min_freq)
    dl = SentenceDataLoader(text, bs=bs, shuffle=shuffle, max_tokens=max_tokens)
    assert Counter(found(dl)) == Counter(reference(ss, text))
    batches = list(dl)
    lens = [(x[..., 0] != 0).sum(1) for x, *_ in batches]
    assert torch.cat(lens).tolist() == [len(ss[i]) + 2 for i in dl.order] and len(batches) == len(
        dl)
    for l, (x, *_) in zip(lens, batches):
        assert (l.diff() >= 0).all() and len(l) <= bs and x.shape[1] == l.max()
        assert max_tokens is None or x.shape[0] == 1 or x.shape[0]*x.shape[1] <= max_tokens


@given(corpora, st.integers(1, 5), st.integers(1, 12), st.booleans())
@common
def test_streams(ss, bs, seq_len, shuffle):
    text = encode(ss)
    if -(-len(text.ids)//bs) < seq_len:
        with pytest.raises(CorpusError, match=f'seq_len={seq_len}'):
            StreamDataLoader(text, bs=bs, seq_len=seq_len)
        return
    dl = StreamDataLoader(text, bs=bs, seq_len=seq_len, shuffle=shuffle)
    assert Counter(found(dl)) == Counter(reference(ss, text))
    assert len(list(dl)) == len(dl) and all(
        b[0].shape[0] == bs and b[0].shape[1] <= seq_len for b in dl)


@given(corpora, st.integers(1, 4), st.integers(1, 6))
@common
def test_rows_of_streams_go_on(ss, bs, seq_len):
    "Row r of a batch goes on where row r of the last one ended, so a state may be carried along"
    text = encode(ss)
    if -(-len(text.ids)//bs) < seq_len: return
    rows = torch.cat([x for x, *_ in StreamDataLoader(text, bs=bs, seq_len=seq_len)], 1).flatten(
        0, 1)
    assert (list(map(key, rows[:len(text.ids)])) == list(map(key, text.types.chars[text.ids]))
            and not rows[len(text.ids):].any())


@given(corpora, st.integers(1, 5), st.integers(1, 4), st.booleans())
@common
def test_cbow(ss, bs, k, shuffle):
    text = encode(ss)
    v, cv = text.types.vocab, text.types.char_vocab
    ref = Counter()
    for s in ss:
        ids, rows = [2, *v.encode(s), 3], [cv.specials[1], *cv.encode(s), cv.specials[2]]
        for i in range(k, len(ids)-k):
            around = [*range(i-k, i), *range(i+1, i+k+1)]
            ref[tuple(ids[j] for j in around), tuple(key(rows[j]) for j in around), ids[i]] += 1
    if not ref:
        with pytest.raises(CorpusError, match=f'context_size={k}'):
            NeighbourDataLoader(text, context_size=k)
        return
    dl = NeighbourDataLoader(text, bs=bs, context_size=k, shuffle=shuffle)
    got = Counter((tuple(w.tolist()), tuple(map(key, c)), int(y)) for b in dl for w,c,y in zip(*b))
    assert (got == ref and dl.examples == sum(ref.values())
            and dl.skipped == sum(len(s) + 2 < 2*k + 1 for s in ss))
    assert not {0, 2, 3} & {y for *_,y in got}

def test_marks_typed_in_a_text_count():
    ss = [['<pad>', '</s>', '<s>', 'a']]
    text = encode(ss)
    assert text.types.vocab.itos[4:] == ['a'] and len(text.types) == 3+4
    _, fwd, bwd = text.take(np.arange(6))
    assert fwd.tolist() == [1, 1, 1, 4, 3, 0] and bwd.tolist() == [0, 2, 1, 1, 1, 4]

def test_flat_targets():
    text = encode([['a', 'b'], []])
    assert text.ids.tolist() == [1, 3, 4, 2, 1, 2] and text.offsets.tolist() == [0, 4, 6]
    _, fwd, bwd = text.take(np.arange(6))
    assert fwd.tolist() == [4, 5, 3, 0, 3, 0] and bwd.tolist() == [0, 2, 4, 5, 0, 2]

loaders = [
    (SentenceDataLoader, dict(bs=4)),
    (StreamDataLoader, dict(bs=4, seq_len=8)),
    (NeighbourDataLoader, dict(bs=16, context_size=1)),
]


@pytest.mark.parametrize('cls,kw', loaders)
def test_shuffling(cls, kw):
    text = encode(ss)
    make = lambda **o: cls(text, **{**kw, 'shuffle': True, **o})
    a,b = make(seed=1), make(seed=1)
    first = list(a)
    assert same(first, list(b)) and same(list(a), list(b))       # epoch by epoch
    assert not same(first, list(a)) and not same(first, list(make(seed=2)))
    def run(): set_seed(3); return list(make())
    assert same(run(), run())
    assert same(list(make(shuffle=False)), list(make(shuffle=False, seed=9)))

@pytest.mark.parametrize('cls,kw', loaders)
def test_worker_processes_change_nothing(cls, kw):
    text = encode(ss)
    make = lambda n: cls(text, **kw, shuffle=True, seed=1, num_workers=n)
    one, two = list(make(0)), list(make(2))
    assert same(one, two)

@pytest.mark.parametrize('cls,kw', loaders)
def test_pickle_new_and_empty(cls, kw):
    dl = cls(encode(ss), **kw, shuffle=True, seed=1)
    assert same(list(pickle.loads(pickle.dumps(dl))), list(dl))
    assert all(
        getattr(dl.new(), k) == getattr(dl, k) for k in ('size', 'seed', 'shuffle', *dl._own)
    )
    other = EncodedText([['new', 'w1', 'w2', 'w3']*9], dl.types)
    assert dl.new(other, shuffle=False, bs=1).types is dl.types
    empty = dl.new(dl.dataset.new_empty())
    assert len(empty) == 0 and list(empty) == [] and empty.vocab is dl.vocab
    with pytest.raises(ValueError, match='does not contain any batches'): empty.one_batch()

def test_table_grows_for_new_text():
    types = TokenTypes(WordVocab.build([['a']]))
    a, n = EncodedText([['a', 'b']], types), len(types.chars)
    b = EncodedText([['c', 'a']], types)
    assert (n == 5 and len(types.chars) == len(types.words) == 6
            and types.tokens == [PAD, BOS, EOS, 'a', 'b', 'c'])
    assert types.char_vocab.decode(types.chars) == types.tokens and types.words.tolist() == [
        0, 2, 3, 4, 1, 1]


def test_learned_alphabet():
    cv = CharVocab.build(ss, max_chars=6)
    text = EncodedText(ss, TokenTypes(WordVocab.build(ss), cv))
    x,*_ = SentenceDataLoader(text).one_batch()
    assert x.shape[-1] == 6 and cv.decode(x[0])[1] == 'w0'

@pytest.mark.parametrize('cls,kw', loaders)
def test_learner_trains_and_exports(cls, kw, tmp_path):
    text = encode(ss)
    dls = DataLoaders(cls(text, **kw, shuffle=True), cls(text, **kw))
    assert dls.n_inp == (2 if cls is NeighbourDataLoader else 1)
    learn = Learner(dls, Count(), loss_func=lambda p,*y: p.mean(), path=tmp_path)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    learn.export('l.pkl')
    back = torch.load(tmp_path/'l.pkl', weights_only=False)
    assert len(back.dls.train) == 0 and back.dls.vocab.itos == text.types.vocab.itos

def test_get_preds_in_the_order_of_the_text():
    text = encode(ss)
    for kw in (dict(bs=4), dict(bs=50, max_tokens=40)):
        dls = DataLoaders(*[SentenceDataLoader(text, shuffle=True, **kw) for _ in range(2)])
        learn = Learner(dls, Count(), loss_func=lambda p,*y: p.mean())
        with learn.no_bar(): p = learn.get_preds(1)[0]
        assert p.tolist() == [50*n for n in text.lens]

def test_datasets_and_blocks():
    df = pd.DataFrame({'body': [' '.join(s) for s in ss]})
    for kind,kw in dict(sentences={}, stream=dict(seq_len=8), cbow=dict(context_size=1)).items():
        block = DataBlock(
            blocks=BiLMBlock(kind, tokenizer='space', max_words=5, **kw),
            get_x=ColReader('body'),
            splitter=RandomSplitter(seed=1),
        )
        dls = block.dataloaders(df, bs=4)
        assert (len(dls.train.text) == 48 and len(dls.valid.text) == 12
                and dls.train.text.cuts.words > 0)
        assert dls.valid.types is dls.train.types and len(dls.one_batch()) == 3
        assert (len(pickle.loads(pickle.dumps(dls)).train) == len(dls.train)
                and len(dls.new_empty().train) == 0)
    ds = Datasets(df, [[ColReader('body'), ElmoTransform('space')]])
    text = SentenceDataLoader(ds).text
    assert Counter(found(SentenceDataLoader(ds, bs=5))) == Counter(reference(ss, text))
    tl = TfmdLists([' '.join(s) for s in ss], ElmoTransform('space'))
    assert Counter(found(SentenceDataLoader(tl, bs=5))) == Counter(reference(ss, text))

def test_show_batch():
    gold = [Sentence(s, [f'T{len(s)}']*len(s), ['s/1', *[None]*(len(s)-1)]) for s in ss]
    c = Corpus('c', dict(train=[s.text for s in gold], valid=['', 'a b c d']), 'space')
    c.gold = {'train': gold}
    for kind in ('sentences', 'stream', 'cbow'):
        kw = dict(seq_len=16, bs=4) if kind=='stream' else {}
        dl = ElmoDataLoaders.from_corpus(c, kind=kind, seed=1, shuffle=True, **kw).train
        df = dl.show_batch(show=False, max_n=4)
        assert len(df) == 4 and {'tags', 'senses'} <= set(df.columns)
        gold = {(t,g) for s in c.gold['train'] for t,g in zip(s.tokens, s.tags)}
        pairs = (zip(df['target'], df['tags']) if kind == 'cbow' else [p
            for a, b in zip(df['text'], df['tags'])
            for p in zip(a.split(), b.split(), strict=True)])
        assert all(p in gold or (p[0] in SPECIALS and p[1]=='·') for p in pairs)
    b = dl.one_batch()
    assert list(dl.show_batch(b, show=False).columns) == ['left', 'target', 'right']

def test_readable_rows():
    df = SentenceDataLoader(encode([['a', 'b']])).show_batch(show=False)
    assert df.values.tolist() == [['<s> a b </s>', 'a b </s> ·', '· <s> a b']]

# padding samples

@given(st.lists(st.lists(token, max_size=5), min_size=1, max_size=4), st.integers(1, 8),
       st.integers(0, 9))
@common
def test_pad_chunk_and_back(ss, multiple, spare):
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    items = [tfm(s) for s in ss]
    pad = ElmoPadChunk(multiple=multiple, spare=spare)
    out = pad([(o, i) for i, o in enumerate(items)])
    W = max(min(len(t.encode('utf-8', 'replace')), 48) + 2 for s in [*ss, ['x']]
            for t in s or ['x'])
    T = max(len(s) + 2 for s in ss)
    for i, ((o, j), old) in enumerate(zip(out, items)):
        assert (i == j and o.words.shape == (-(-T // multiple)*multiple,)
                and o.chars.shape[1] == -(-min(W + spare, 50) // multiple)*multiple)
        (back,) = pad.decode((o,))
        assert torch.equal(back.words, old.words)
        w = min(back.chars.shape[1], 50)
        assert (torch.equal(back.chars[:,:w], old.chars[:,:w])
                and (back.chars[:, w:] == 261).all() and (old.chars[:, w:] == 261).all())
        empty = o.chars[:,0].as_subclass(torch.Tensor) == 0
        assert (o.words[empty] == 0).all() and (o.chars[empty] == 0).all()
        assert (empty[:-1] <= empty[1:]).all()

def test_pad_chunk_in_datasets():
    ds = Datasets([' '.join(s) for s in ss], [[ElmoTransform('space')]])
    dls = ds.dataloaders(bs=4, before_batch=ElmoPadChunk(), num_workers=0, shuffle=False)
    o, = dls.one_batch()
    assert type(o) is ElmoTokens and o.words.shape == o.chars.shape[:2] == (4, 6)
    assert dls.train.decode_batch(dls.one_batch())[1] == (' '.join(ss[1]),)

def test_spare_columns_keep_the_maxima():
    torch.manual_seed(0)
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    emb, conv = torch.nn.Embedding(262, 4), torch.nn.Conv1d(4, 8, 7)
    enc = lambda c: conv(emb(torch.as_tensor(np.asarray(c)).long()).transpose(1, 2)).amax(-1)
    o = tfm(['bank', 'of', 'the'])
    (p,), = ElmoPadChunk()([(o,)])
    assert p.chars.shape[1] < 50 and torch.allclose(enc(p.chars), enc(o.chars), atol=1e-6)

def test_no_sentences_are_no_batches():
    text = EncodedText([], TokenTypes(WordVocab(SPECIALS)))
    for cls in (SentenceDataLoader, StreamDataLoader, NeighbourDataLoader):
        assert not len(text) and not list(cls(text))

def test_a_budget_of_tokens_also_in_the_order_of_the_text():
    text = encode([['a']*n for n in (2, 50, 1, 1, 1, 30, 2, 2)])
    dl = SentenceDataLoader(text, bs=3, max_tokens=60, sort=False)
    assert dl.order.tolist() == list(range(8))
    assert [tuple(x.shape[:2]) for x,*_ in dl] == [(1, 4), (1, 52), (3, 3), (1, 32), (2, 4)]

# wrong input that once slipped through

def test_sentences_from_the_end():
    text = encode([['a'], ['b', 'c']])
    assert text[-1].tolist() == text[1].tolist() and len(text[np.int64(1)]) == 4
    with pytest.raises(IndexError): text[2]
    assert len(list(text)) == 2

def test_nothing_to_pad():
    for samples in ([], [('a',)]):
        with pytest.raises(TypeError, match=f'none of these {len(samples)} samples'):
            ElmoPadChunk()(samples)
