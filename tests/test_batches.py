"Loaders against slow, obvious references; fastai's machinery around them; wrong input"
import pickle
from collections import Counter
import pytest, torch
from hypothesis import given, strategies as st
from fastai.data.all import DataLoaders, set_seed
from fastai.learner import Learner
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import Corpus, Sentence
from elmo_fastai.text.tokens import CharVocab, SPECIALS, WordVocab
from elmo_fastai.data.batches import (
    LOADERS, NeighbourDataLoader, SentenceDataLoader, StreamDataLoader)
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from loading import Count, common, corpora, encode, found, key, reference, same, ss

torch.set_num_threads(1)

# multisets

@given(corpora, st.sampled_from(['sentences', 'stream', 'cbow']), st.integers(1, 5),
       st.integers(1, 7), st.booleans())
@common
def test_no_batch_has_a_false_end(ss, kind, bs, max_words, shuffle):
    text = encode(ss, max_words=max_words)
    kw = dict(sentences={}, stream=dict(seq_len=2), cbow=dict(context_size=1))[kind]
    try: dl = LOADERS[kind](text, bs=bs, shuffle=shuffle, **kw)
    except CorpusError: return                                   # too short for it
    if kind == 'cbow':
        ends = sum(int((words[:, 1] == 3).sum()) for words,_,_ in dl)
        assert ends == sum(0 < len(s) <= max_words for s in ss)
        return
    assert Counter(found(dl)) == Counter(reference(ss, text, max_words))
    ss = [s for s in ss if s]                                    # a blank has no target
    n = sum(min(len(s), max_words) + (len(s) <= max_words) for s in ss)
    assert [sum(int((b[i] != 0).sum()) for b in dl) for i in (1, 2)] == [n, n]
    assert sum(int((b[1] == 3).sum()) for b in dl) == sum(len(s) <= max_words for s in ss)

def test_a_text_of_cut_sentences_is_too_short_for_cbow():
    text = encode([list('abcdef')]*3, max_words=3)
    with pytest.raises(CorpusError, match='context_size=2.*one more.*cut.*longest here has 3'):
        NeighbourDataLoader(text, context_size=2)
    [batch] = NeighbourDataLoader(encode([list('abcdef')], max_words=4), context_size=2)
    assert len(batch[-1]) == 1

def test_notes_of_cut_sentences_are_shown_beside_their_tokens():
    text = encode([['a', 'b', 'c'], ['d']], max_words=2, tags=[['A', 'B', 'C'], ['D']])
    for dl in (SentenceDataLoader(text, sort=False), StreamDataLoader(text, bs=1, seq_len=6)):
        shown = dl.show_batch(show=False)
        assert ' '.join(shown.tags).split() == '· A B · D ·'.split()
        assert ' '.join(shown['forward targets']).split() == 'a b · d </s> ·'.split()

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
