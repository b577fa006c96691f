"Loaders against slow, obvious references; fastai's machinery around them; wrong input"
import pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st
from fastai.data.all import (
    ColReader,
    DataBlock,
    DataLoaders,
    Datasets,
    L,
    RandomSplitter,
    TfmdLists,
    set_seed,
)
from fastai.callback.progress import ProgressCallback # it adds `no_bar` to Learner
from fastai.learner import Learner
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.base.options import ReadOptions
from elmo_fastai.text.corpora import Corpus, Sentence, all_lines
from elmo_fastai.text.tokens import BOS, CharVocab, EOS, PAD, SPECIALS, WordVocab
from elmo_fastai.data.batches import NeighbourDataLoader, SentenceDataLoader, StreamDataLoader
from elmo_fastai.data.blog import BiLMBlock, ElmoPadChunk, ElmoTokens, ElmoTransform
from elmo_fastai.data.buffered import BufferedDataLoader, Reader
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders

torch.set_num_threads(1)
nasty = [
    '.',
    'bank',
    'the',
    '👨‍👩‍👧',
    'cafe\u0301',
    'نَهْر',
    '河岸',
    '\x00',
    'x' * 10_000,
    '<s>',
    '</s>',
    '<pad>',
    '<unk>',
    '\u200b',
    '\ud800',
    '',
]
token = st.one_of(st.sampled_from(nasty), st.text(max_size=6))
corpora = st.lists(st.lists(token, max_size=7), min_size=1, max_size=9).filter(any)
common = settings(deadline=None, max_examples=60)

def encode(ss, min_freq=1, **kw):
    return EncodedText(ss, TokenTypes(WordVocab.build(ss, min_freq)), **kw)


def key(chars): return bytes(np.asarray(chars))

def reference(ss, text):
    "Every token with its next and its previous word, one by one"
    v, cv = text.types.vocab, text.types.char_vocab
    pad,bos,eos = map(key, cv.specials)
    for s in ss:
        rows = [bos, *(key(cv.encode([t])[0]) for t in s), eos]
        ids = [2, *v.encode(s), 3]
        yield from zip(rows, [*ids[1:], 0], [0, *ids[:-1]])

def found(dl):
    for b in dl:
        x,f,bw = b[0], *b[-2:]
        assert (
            x.dtype == torch.int16
            and f.dtype == bw.dtype == torch.int64
            and x.shape[:2] == f.shape == bw.shape
        )
        real = x[...,0] != 0
        assert not f[~real].any() and not bw[~real].any() and not x[~real].any()
        yield from ((key(x[i,j]), int(f[i,j]), int(bw[i,j])) for i,j in real.nonzero().tolist())

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
        dl
    )
    for l, (x, *_) in zip(lens, batches):
        assert (l.diff() >= 0).all() and len(l) <= bs and x.shape[1] == l.max()
        assert max_tokens is None or x.shape[0] == 1 or x.shape[0] * x.shape[1] <= max_tokens


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
        b[0].shape[0] == bs and b[0].shape[1] <= seq_len for b in dl
    )


@given(corpora, st.integers(1, 4), st.integers(1, 6))
@common
def test_rows_of_streams_go_on(ss, bs, seq_len):
    "Row r of a batch goes on where row r of the last one ended, so a state may be carried along"
    text = encode(ss)
    if -(-len(text.ids)//bs) < seq_len: return
    rows = torch.cat([x for x, *_ in StreamDataLoader(text, bs=bs, seq_len=seq_len)], 1).flatten(
        0, 1
    )
    assert (
        list(map(key, rows[: len(text.ids)])) == list(map(key, text.types.chars[text.ids]))
        and not rows[len(text.ids) :].any()
    )


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
    assert (
        got == ref
        and dl.examples == sum(ref.values())
        and dl.skipped == sum(len(s) + 2 < 2 * k + 1 for s in ss)
    )
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

# order

ss = [[f'w{i%7}']*(i%11+1) for i in range(60)]
loaders = [
    (SentenceDataLoader, dict(bs=4)),
    (StreamDataLoader, dict(bs=4, seq_len=8)),
    (NeighbourDataLoader, dict(bs=16, context_size=1)),
]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for p, q in zip(a, b) for x, y in zip(p, q))


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
    assert (
        n == 5
        and len(types.chars) == len(types.words) == 6
        and types.tokens == [PAD, BOS, EOS, 'a', 'b', 'c']
    )
    assert types.char_vocab.decode(types.chars) == types.tokens and types.words.tolist() == [
        0,
        2,
        3,
        4,
        1,
        1,
    ]


def test_learned_alphabet():
    cv = CharVocab.build(ss, max_chars=6)
    text = EncodedText(ss, TokenTypes(WordVocab.build(ss), cv))
    x,*_ = SentenceDataLoader(text).one_batch()
    assert x.shape[-1] == 6 and cv.decode(x[0])[1] == 'w0'

# fastai

class Count(torch.nn.Module):
    "Predicts the length of each row"
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.ones(1))
    def forward(self, x, *_): return (x.flatten(1) != 0).float().sum(1)*self.w

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
        assert (
            len(dls.train.text) == 48
            and len(dls.valid.text) == 12
            and dls.train.text.cuts.words > 0
        )
        assert dls.valid.types is dls.train.types and len(dls.one_batch()) == 3
        assert (
            len(pickle.loads(pickle.dumps(dls)).train) == len(dls.train)
            and len(dls.new_empty().train) == 0
        )
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
        pairs = (
            zip(df['target'], df['tags'])
            if kind == 'cbow'
            else [
                p
                for a, b in zip(df['text'], df['tags'])
                for p in zip(a.split(), b.split(), strict=True)
            ]
        )
        assert all(p in gold or (p[0] in SPECIALS and p[1]=='·') for p in pairs)
    b = dl.one_batch()
    assert list(dl.show_batch(b, show=False).columns) == ['left', 'target', 'right']

def test_readable_rows():
    df = SentenceDataLoader(encode([['a', 'b']])).show_batch(show=False)
    assert df.values.tolist() == [['<s> a b </s>', 'a b </s> ·', '· <s> a b']]

# padding samples

@given(
    st.lists(st.lists(token, max_size=5), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(0, 9),
)
@common
def test_pad_chunk_and_back(ss, multiple, spare):
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    items = [tfm(s) for s in ss]
    pad = ElmoPadChunk(multiple=multiple, spare=spare)
    out = pad([(o, i) for i, o in enumerate(items)])
    W = max(
        min(len(t.encode('utf-8', 'replace')), 48) + 2 for s in [*ss, ['x']] for t in s or ['x']
    )
    T = max(len(s) + 2 for s in ss)
    for i, ((o, j), old) in enumerate(zip(out, items)):
        assert (
            i == j
            and o.words.shape == (-(-T // multiple) * multiple,)
            and o.chars.shape[1] == -(-min(W + spare, 50) // multiple) * multiple
        )
        (back,) = pad.decode((o,))
        assert torch.equal(back.words, old.words)
        w = min(back.chars.shape[1], 50)
        assert (
            torch.equal(back.chars[:, :w], old.chars[:, :w])
            and (back.chars[:, w:] == 261).all()
            and (old.chars[:, w:] == 261).all()
        )
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

# factories

def test_from_corpus():
    c = Corpus('c', dict(train=['a b', '', '  ', 'b c d e'], valid=['a z', '']), 'space')
    dls = ElmoDataLoaders.from_corpus(c, bs=2, max_words=3)
    assert dls.skipped == {'blank lines': 3} and dls.cuts['train'] == (1, 1, 0) and dls.corpus is c
    assert dls.vocab.itos[4:] == ['b', 'a', 'c', 'd'] and 'z' in dls.types.tokens
    given_vocab = WordVocab.build([['z']])
    assert ElmoDataLoaders.from_corpus(c, vocab=given_vocab).vocab is given_vocab
    s = ElmoDataLoaders.from_corpus(c, kind='stream', bs=2, seq_len=4)
    assert (
        s.valid.size == 1
        and sum(int((f != 0).sum()) for _, f, _ in s.valid) == 3
        and not s.train.shuffle
    )
    assert (
        ElmoDataLoaders.from_corpus(c).train.shuffle
        and not ElmoDataLoaders.from_corpus(c).valid.shuffle
    )


def test_the_corpus_says_how_it_was_cut_into_words():
    "Whoever counts on the same text, as a report does, takes the tokenizer of the loaders"
    c = Corpus('c', dict(train=["didn't go"]*20), 'space')
    dls = ElmoDataLoaders.from_corpus(c, tokenizer='words', valid_pct=.25)
    assert dls.corpus.tokenizer == 'words' and c.tokenizer == 'space' and 'did' in dls.vocab.o2i
    assert (
        (len(dls.train.text), len(dls.valid.text))
        == (len(dls.corpus.train), len(dls.corpus.valid))
        == (15, 5)
    )


@pytest.mark.parametrize(
    'splits,message',
    [
        (dict(train=['a']), "too short to split: 1 line"),
        (dict(train=['a'], valid=['']), "'valid'.*not one word"),
        (dict(train=[], valid=['a']), "no lines to train on|'train'.*empty"),
        (dict(train=['', ' \t'], valid=['a']), "'train'.*2 lines and not one word"),
    ],
)
def test_from_corpus_refuses(splits, message):
    with pytest.raises(CorpusError, match=message):
        ElmoDataLoaders.from_corpus(Corpus('c', splits, 'space'))


def test_kinds_and_sizes_refused():
    c = Corpus('c', dict(train=['a b c']*9, valid=['a']), 'space')
    with pytest.raises(ValueError, match="kind='lm'"): ElmoDataLoaders.from_corpus(c, kind='lm')
    with pytest.raises(ValueError, match="kind='lm'"): BiLMBlock('lm')
    for kw in (dict(bs=0), dict(bs=2.5), dict(max_tokens=-1)):
        with pytest.raises(ValueError, match='whole number'):
            ElmoDataLoaders.from_corpus(c, **{'bs': 2, **kw})
    with pytest.raises(CorpusError, match='context_size=5.*longest here has 3'):
        ElmoDataLoaders.from_corpus(c, kind='cbow', context_size=5)
    with pytest.raises(CorpusError, match='seq_len=500'):
        ElmoDataLoaders.from_corpus(c, kind='stream', bs=1, seq_len=500)
    with pytest.raises(TypeError, match='ElmoTransform'): SentenceDataLoader(['a b'])

def test_no_sentences_are_no_batches():
    text = EncodedText([], TokenTypes(WordVocab(SPECIALS)))
    for cls in (SentenceDataLoader, StreamDataLoader, NeighbourDataLoader):
        assert not len(text) and not list(cls(text))


def test_from_df():
    df = pd.DataFrame(
        {'review': ['a b', None, 'c\nd', float('nan'), pd.NA, 'e', 'f'], 'v': [0, 0, 0, 1, 1, 1, 1]}
    )
    dls = ElmoDataLoaders.from_df(df, valid_col='v')
    assert (
        dls.skipped['missing rows'] == 3 and len(dls.train.text) == 3 and len(dls.valid.text) == 2
    )
    dls = ElmoDataLoaders.from_df(df, valid_pct=.5)        # whole rows, of which one has two lines
    assert len(dls.train.text) + len(dls.valid.text) == 5
    with pytest.raises(CorpusError, match="'body'.*'review'"):
        ElmoDataLoaders.from_df(df, text_col='body')
    with pytest.raises(CorpusError, match='text_col'): ElmoDataLoaders.from_df(df[['v']])
    with pytest.raises(CorpusError, match='row 1.*int 7'):
        ElmoDataLoaders.from_df(pd.DataFrame({'text': ['a', 7]}))
    with pytest.raises(CorpusError, match='valid_pct=0'): ElmoDataLoaders.from_df(df, valid_pct=0)

def test_from_dataset():
    datasets = pytest.importorskip('datasets')
    d = datasets.Dataset.from_dict({'content': ['a b', 'c', None, 'd', 'e']})
    dls = ElmoDataLoaders.from_dataset(d, valid_pct=.25)
    assert (
        dls.skipped['missing rows'] == 1 and len(dls.train.text) == 3 and len(dls.valid.text) == 1
    )
    dls = ElmoDataLoaders.from_dataset(datasets.DatasetDict(train=d, test=d.select([0])))
    assert len(dls.train.text) == 3 and len(dls.valid.text) == 1 and len(dls.corpus.test) == 1
    it = d.to_iterable_dataset()
    assert len(ElmoDataLoaders.from_dataset(it, n_rows=2, valid_pct=.5).train.text) == 1
    with pytest.raises(CorpusError, match='n_rows'): ElmoDataLoaders.from_dataset(it)
    with pytest.raises(CorpusError, match="'content'"):
        ElmoDataLoaders.from_dataset(d, text_col='text')
    with pytest.raises(CorpusError, match="'train'"): ElmoDataLoaders.from_dataset({'test': d})

def test_parts_without_one_for_validation_are_split():
    "Whatever else is in the dictionary; of 🤗's IMDB, for instance, `unsupervised`"
    datasets = pytest.importorskip('datasets')

    def D(n, word='w'):
        return datasets.Dataset.from_dict({'text': [f'{word}{i} .' for i in range(n)]})

    def sizes(parts):
        dls = ElmoDataLoaders.from_dataset(
            parts, valid_pct=0.25, tokenizer='space', device='cpu'
        )
        assert not set(dls.corpus.train) & set(dls.corpus.valid)
        return len(dls.corpus.train), len(dls.corpus.valid)
    assert sizes(dict(train=D(40), unsupervised=D(20, 'u'))) == (30, 10)
    assert sizes(dict(training=D(40))) == sizes(dict(training=D(40), more=D(20, 'u'))) == (30, 10)
    assert sizes(dict(train=D(40), test=D(5, 't'), unsupervised=D(20, 'u'))) == (30, 10)
    assert sizes(dict(train=D(40), test=D(5, 't'), dev=D(3, 'v'))) == (40, 3)
    parts = dict(train=D(40), test=D(5, 't'), dev=D(3, 'v'))
    assert len(ElmoDataLoaders.from_dataset(parts).corpus.test) == 5


def test_from_files(tmp_path):
    (tmp_path / 'a.txt').write_bytes('\ufeffa b\r\n\r\nc d\r\n'.encode('utf-8'))
    (tmp_path / 'b.txt').write_text('e\nf')
    kw = dict(bs=2, valid=tmp_path/'b.txt')
    for path in (tmp_path/'a.txt', str(tmp_path/'a*'), [tmp_path/'a.txt']):
        dls = ElmoDataLoaders.from_files(path, **kw)
        assert (
            dls.vocab.itos[4:] == ['a', 'b', 'c', 'd']
            and len(dls.valid.text) == 2
            and dls.skipped == {'blank lines': 1}
        )
    dls = ElmoDataLoaders.from_files(tmp_path, valid_pct=.25)
    assert len(dls.train.text) == 3 and len(dls.valid.text) == 1
    with pytest.raises(CorpusError, match='no file or folder.*c.txt'):
        ElmoDataLoaders.from_files(tmp_path / 'c.txt')
    (tmp_path/'a.txt').write_bytes(b'ok\n\xff')
    with pytest.raises(CorpusError, match="a.txt', line 2 is not UTF-8"):
        ElmoDataLoaders.from_files(tmp_path)


def test_from_files_with_files_to_validate_on_leaves_the_test_file_alone(tmp_path):
    for k in ('train', 'valid', 'test'):
        (tmp_path / f'{k}.txt').write_text(''.join(f'{k} {i}\n' for i in range(4)))
    dls = ElmoDataLoaders.from_files(tmp_path, valid=tmp_path/'valid.txt', bs=2, tokenizer='space')
    assert len(dls.corpus.train) == 4 and 'test' not in dls.vocab.itos
    c = ElmoDataLoaders.from_corpus(
        Corpus('c', dict(train=[f'a {i}' for i in range(20)], test=['b'])), bs=2
    ).corpus
    assert c.splits['test'] == ['b'] and len(c.splits['valid']) == 2

def test_from_files_that_are_called_after_their_splits(tmp_path):
    for k, n in (('train', 6), ('valid', 3), ('test', 2)):
        (tmp_path / f'wiki.{k}.tokens').write_text('\n'.join(f'{k} {i}' for i in range(n)))
    for path in (tmp_path, str(tmp_path/'*.tokens'), L(tmp_path.iterdir())):
        dls = ElmoDataLoaders.from_files(path, bs=2, tokenizer='space')
        assert (
            len(dls.train.text) == 6 and len(dls.valid.text) == 3 and 'test' not in dls.vocab.o2i
        ), 'the test file is not trained on'


# every door, every kind of loader, every kind of wrong input

KINDS = dict(sentences=dict(bs=2), stream=dict(bs=2, seq_len=4), cbow=dict(bs=2, context_size=1))
each_kind = pytest.mark.parametrize('kind', KINDS)
LINES = ['a b c d', 'b c d e f', 'c d e', 'd e f a b', 'e f', 'f a b c d e']*3

def doors(lines, tmp_path):
    """The loaders of the same lines through each factory; all lines are for training, and the first
    two for validation too"""
    datasets = pytest.importorskip('datasets')
    (tmp_path / 't.txt').write_text('\n'.join(lines))
    (tmp_path / 'v.txt').write_text('\n'.join(lines[:2]))
    D = lambda o: datasets.Dataset.from_dict({'text': o})
    both = datasets.DatasetDict(train=D(lines), validation=D(lines[:2]))
    df = pd.DataFrame({'text': lines + lines[:2], 'held': [False]*len(lines) + [True]*2})
    F = ElmoDataLoaders
    return dict(
        corpus=lambda **kw: F.from_corpus(Corpus('c', dict(train=lines, valid=lines[:2])), **kw),
        df=lambda **kw: F.from_df(df, valid_col='held', **kw),
        files=lambda **kw: F.from_files(tmp_path / 't.txt', valid=tmp_path / 'v.txt', **kw),
        dataset=lambda **kw: F.from_dataset(both, **kw),
    )


@each_kind
@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_each_factory_for_each_loader(kind, door, tmp_path):
    make = doors(LINES, tmp_path)[door]
    dls, ref = (
        make(kind=kind, **KINDS[kind]),
        doors(LINES, tmp_path)['corpus'](kind=kind, **KINDS[kind]),
    )
    assert dls.vocab.itos == ref.vocab.itos and len(dls.train) == len(ref.train)
    def bag(dl):
        if kind == 'cbow':
            return Counter((tuple(w.tolist()), key(c), int(y)) for b in dl for w, c, y in zip(*b))
        return Counter(found(dl))
    assert bag(dls.train) == bag(ref.train) and bag(dls.valid) == bag(ref.valid)
    assert len(dls.train.show_batch(show=False)) and dls.corpus.splits.keys() >= {'train', 'valid'}
    assert (
        len(pickle.loads(pickle.dumps(dls)).train) == len(ref.train)
        and len(dls.new_empty().train) == 0
    )


@each_kind
def test_worker_processes_through_the_factory(kind):
    c = Corpus('c', dict(train=LINES, valid=LINES[:3]), 'space')
    one, two = [
        list(
            ElmoDataLoaders.from_corpus(
                c, kind=kind, seed=1, shuffle=True, num_workers=n, **KINDS[kind]
            ).train
        )
        for n in (0, 2)
    ]
    assert same(one, two)

bad_rows = [
    ('a\0b', 'NUL character at position 1'),
    ('a\ud800', 'surrogate'),
    (7, 'int 7, not text'),
    (b'abc', "bytes b'abc', not text"),
]


@pytest.mark.parametrize('bad,message', bad_rows)
def test_rows_that_are_no_text(bad, message):
    df = pd.DataFrame({'text': ['a b', 'c', bad, 'd']}, dtype=object)
    with pytest.raises(CorpusError, match=f'row 2 of the table.*{message}'):
        ElmoDataLoaders.from_df(df, valid_pct=0.5)
    block = DataBlock(
        blocks=BiLMBlock(), get_x=ColReader('text'), splitter=lambda o: ([0, 1, 2], [3])
    )
    with pytest.raises(CorpusError, match=f"row 2.*{message}"): block.dataloaders(df, bs=2)
    lines = [dict(text=o) for o in df['text']]
    dl = BufferedDataLoader.counted(lines, WordVocab.build([['a']]), tokenizer='space')
    assert (
        dl.skipped == {'rows that are no text': 1}
        and sum(len(b[0]) for b in dl) == 3
        and dl.skipped == {'rows that are no text': 1}
    )


@pytest.mark.parametrize('bad', [None, float('nan'), pd.NA, pd.NaT])
def test_missing_rows(bad):
    df = pd.DataFrame({'text': ['a b', 'c', bad, 'd']}, dtype=object, index=[10, 11, 12, 13])
    dls = ElmoDataLoaders.from_df(df, valid_pct=.5)
    assert dls.skipped['missing rows'] == 1
    for held in ([3], [2]):  # in the training items, in the validation items
        block = DataBlock(
            blocks=BiLMBlock(),
            get_x=ColReader('text'),
            splitter=lambda o: ([i for i in range(4) if i not in held], held),
        )
        with pytest.raises(CorpusError, match='row 12 has no text but'): block.dataloaders(df, bs=2)
    dl = BufferedDataLoader.counted([dict(text=o) for o in df['text']], WordVocab.build([['a']]))
    assert dl.skipped == {'missing rows': 1}

@each_kind
def test_blank_texts_are_counted_at_each_door(kind, tmp_path):
    lines = [*LINES[:5], '', ' \t ', *LINES[5:]]
    for name,make in doors(lines, tmp_path).items():
        dls = make(kind=kind, **KINDS[kind])
        assert dls.skipped['blank lines'] == 2, name

@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_nothing_but_white_space(door, tmp_path):
    with pytest.raises(
        CorpusError, match="no lines to train on|0 lines|not one word|only white space|too short"
    ):
        doors([' ', '\t'], tmp_path)[door]()


@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_windows_that_do_not_fit(door, tmp_path):
    make = doors(LINES, tmp_path)[door]
    with pytest.raises(CorpusError, match='context_size=9.*longest.* 6'):
        make(kind='cbow', context_size=9)
    with pytest.raises(CorpusError, match='seq_len=5000'): make(kind='stream', bs=1, seq_len=5000)

@pytest.mark.parametrize('door', ['df', 'dataset'])
def test_text_column_missing(door, tmp_path):
    with pytest.raises(CorpusError, match="no column 'body' among 'text'"):
        doors(LINES, tmp_path)[door](text_col='body')


def test_text_column_missing_in_block_and_stream():
    df = pd.DataFrame({'text': LINES})
    block = DataBlock(blocks=BiLMBlock(), get_x=ColReader('body'), splitter=RandomSplitter(seed=1))
    with pytest.raises((AttributeError, KeyError), match='body'): block.dataloaders(df)
    with pytest.raises(CorpusError, match="no column 'body' among 'text'"):
        BufferedDataLoader.counted(Reader([dict(text='a')], ReadOptions(text_col='body')))


def test_nul_and_wrong_bytes_in_files(tmp_path):
    for raw, message in (
        (b'a\nb\0c' * 5, 'NUL|binary data'),
        (b'a\n\xff', 'line 2 is not UTF-8'),
        (b' \n', 'only white space'),
    ):
        (tmp_path / 'x.txt').write_bytes(raw)
        with pytest.raises(CorpusError, match=f"x.txt'.*({message})"):
            ElmoDataLoaders.from_files(tmp_path)


def test_valid_col_needs_values():
    df = pd.DataFrame({'text': ['a', 'b'], 'held': [True, None]})
    with pytest.raises(CorpusError, match="'held' has no value in row 1"):
        ElmoDataLoaders.from_df(df, valid_col='held')
    with pytest.raises(CorpusError, match="no column 'x'"):
        ElmoDataLoaders.from_df(df, valid_col='x')
    df['held'] = False
    with pytest.raises(CorpusError, match="'held' is true in no row"):
        ElmoDataLoaders.from_df(df, valid_col='held')


@pytest.mark.parametrize(
    'values',
    [
        ['True', 'False', 'true', 'false'],
        ['yes', 'no', 'Yes', 'No'],
        ['1', '0', '1', '0'],
        [1, 0, 1, 0],
        [1.0, 0.0, 1.0, 0.0],
        [True, False, True, False],
        ['t', 'f', 'T', 'F'],
        ['y', 'n', ' Y', 'N '],
    ],
    ids=str,
)
@pytest.mark.parametrize('kind', ['object', 'own'])
def test_a_valid_col_of_text_means_what_it_says(values, kind):
    df = pd.DataFrame(
        {
            'text': ['a', 'b', 'c', 'd'],
            'held': pd.Series(values, dtype=object) if kind == 'object' else values,
        }
    )
    dls = ElmoDataLoaders.from_df(df, valid_col='held')
    assert dls.corpus.splits == dict(train=['b', 'd'], valid=['a', 'c'])

@pytest.mark.parametrize(
    'values,says',
    [
        (['train', 'valid'], "'held' holds 'train' in row 0"),
        ([0, 2], "'held' holds 2 in row 1"),
        ([0.5, 1], "holds 0.5 in row 0"),
        (['', 'yes'], "holds '' in row 0"),
        (['yes', 'yes'], 'true in all rows: there is none to train on'),
    ],
)
def test_a_valid_col_that_is_neither_true_nor_false(values, says):
    df = pd.DataFrame({'text': ['a', 'b'], 'held': values})
    with pytest.raises(CorpusError, match=says):
        ElmoDataLoaders.from_df(df, valid_col='held')


def test_validation_too_short_for_the_context():
    c = Corpus('c', dict(train=LINES, valid=['a b']), 'space')
    with pytest.raises(CorpusError, match='context_size=2.*longest here has 2'):
        ElmoDataLoaders.from_corpus(c, kind='cbow')


def test_limits_are_reported():
    c = Corpus('c', dict(train=['a b c d', 'x'*100], valid=['a b c']), 'space')
    dls = ElmoDataLoaders.from_corpus(c, max_words=2)
    assert dls.cuts == dict(train=(1, 2, 1), valid=(1, 1, 0))

def test_a_budget_of_tokens_also_in_the_order_of_the_text():
    text = encode([['a']*n for n in (2, 50, 1, 1, 1, 30, 2, 2)])
    dl = SentenceDataLoader(text, bs=3, max_tokens=60, sort=False)
    assert dl.order.tolist() == list(range(8))
    assert [tuple(x.shape[:2]) for x,*_ in dl] == [(1, 4), (1, 52), (3, 3), (1, 32), (2, 4)]

def test_notes_are_dropped_for_other_tokens():
    "A `Corpus` refuses notes that do not fit its own tokens; another tokenizer makes others"
    gold = [Sentence(['a', 'b'], ['X', 'Y']), Sentence(['it', "isn't"], ['X', 'Y'])]
    c = Corpus('c', dict(train=[s.text for s in gold], valid=['a']), 'space', dict(train=gold))
    assert ElmoDataLoaders.from_corpus(c).train.text.notes
    assert not ElmoDataLoaders.from_corpus(c, tokenizer='words').train.text.notes

# a text that does not fit

@pytest.mark.parametrize('kind', ['sentences', 'stream', 'cbow'])
def test_buffered(kind):
    lines = [' '.join(s) for s in ss]
    kw = dict(sentences=dict(bs=5), stream=dict(bs=2, seq_len=4), cbow=dict(bs=8, context_size=1))[
        kind
    ]
    vocab = WordVocab.build(ss)
    make = lambda n, **o: BufferedDataLoader(
        lines, vocab, n_batches=n, buffer=25, kind=kind, tokenizer='space', **{**kw, **o}
    )
    chunks = [encode(ss)] and [EncodedText(ss[i:i+25], TokenTypes(vocab)) for i in (0, 25, 50)]
    cls = dict(sentences=SentenceDataLoader, stream=StreamDataLoader,
               cbow=NeighbourDataLoader)[kind]
    ref = [b for t in chunks for b in cls(t, **kw)]
    dl = make(len(ref), shuffle=False)
    # the next epoch is the next round
    assert same(list(dl), ref) and same(list(dl), ref)
    half = make(len(ref)//2, shuffle=False)
    # an epoch goes on where the last one stopped
    assert same([*half, *half], ref[:len(ref)//2*2])
    assert same(list(make(9, seed=1)), list(make(9, seed=1))) and not same(
        list(make(9, seed=1)), list(make(9, seed=2))
    )
    assert same(list(pickle.loads(pickle.dumps(dl))), ref) and same(list(dl.new()), ref)
    assert dl.n_inp == (2 if kind=='cbow' else 1) and len(dl.show_batch(show=False, max_n=2)) == 2
    dls = DataLoaders(dl, dl)
    assert len(dls.new_empty().train) == 0 and dls.vocab is vocab
    learn = Learner(dls, Count(), loss_func=lambda p,*y: p.mean())
    with learn.no_bar(), learn.no_logging(): learn.fit(1)

def test_buffered_rows_and_nothing():
    datasets = pytest.importorskip('datasets')
    d = datasets.Dataset.from_dict({'text': ['a b', None, 'c']}).to_iterable_dataset()
    dl = BufferedDataLoader(d, WordVocab.build([['a']]), n_batches=1, tokenizer='space')
    assert next(iter(dl))[0].shape[0] == 2
    with pytest.raises(CorpusError, match='not one word'):
        BufferedDataLoader(['', ' '], dl.vocab, n_batches=1).one_batch()
    with pytest.raises(ValueError, match="kind='lm'"):
        BufferedDataLoader([], dl.vocab, 1, kind='lm')


def test_buffered_memory_does_not_grow():
    "Ten times the text, the same peak: only a buffer is held"
    import tracemalloc
    datasets = pytest.importorskip('datasets')
    def lines(n):
        for i in range(n): yield dict(text=f'a b c{i} d e f')
    def peak(n):
        dl = BufferedDataLoader(
            datasets.IterableDataset.from_generator(lines, gen_kwargs=dict(n=n)),
            WordVocab.build([['a', 'b']]),
            n_batches=n // 50,
            buffer=500,
            bs=50,
            tokenizer='space',
        )
        tracemalloc.start()
        for _ in dl: pass
        p = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return p
    peak(1000)
    assert peak(20_000) < 1.2*peak(2_000)

@given(corpora, st.sampled_from(['sentences', 'stream', 'cbow']), st.integers(1, 4), st.booleans())
@common
def test_buffered_reads_everything_once(ss, kind, buffer, shuffle):
    "One epoch without `n_batches` is one reading; blocks of lines are blocks of the plain loader"
    vocab = WordVocab.build(ss)
    kw = dict(sentences=dict(bs=2), stream=dict(bs=2, seq_len=3), cbow=dict(bs=3, context_size=1))[
        kind
    ]
    lines = ['\x1f'.join(s) for s in ss] # a separator that no token of ours has
    tok = lambda o: o.split('\x1f') if o else []
    make = lambda: BufferedDataLoader.counted(
        lines, vocab, buffer=buffer, kind=kind, tokenizer=tok, shuffle=shuffle, seed=3, **kw
    )
    ss = [
        t
        for o in lines
        if not any(c in o for c in '\0\ud800')
        for line in all_lines(o)
        if (t := tok(line))
    ]
    if not any(len(s) >= 1 for s in ss):
        with pytest.raises(CorpusError, match='not one word'): make()
        return
    dl = make()
    text = EncodedText(ss, TokenTypes(vocab))

    def bag(b):
        return (
            Counter((tuple(w.tolist()), key(c), int(y)) for o in b for w, c, y in zip(*o))
            if kind == 'cbow'
            else Counter(found(b))
        )

    ref = NeighbourDataLoader(text, context_size=1) if kind=='cbow' else SentenceDataLoader(text)
    batches = list(dl)
    assert len(batches) == len(dl) and bag(batches) == bag(ref) and bag(list(dl)) == bag(ref)

def test_buffered_skips_a_block_that_is_too_short():
    lines = ['a', 'b']*5 + ['a b c d e']
    dl = BufferedDataLoader.counted(lines, buffer=5, kind='cbow', tokenizer='space', context_size=2)
    assert sum(len(b[-1]) for b in dl) == 3
    assert dl.skipped == {'lines too short for the context': 10}
    with pytest.raises(CorpusError, match='context_size=3.*longest here has 4'):
        BufferedDataLoader(
            ['a b c d'] * 3,
            WordVocab.build([['a']]),
            5,
            kind='cbow',
            tokenizer='space',
            context_size=3,
        ).one_batch()


def test_buffered_takes_tables_and_no_iterators():
    df = pd.DataFrame({'text': ['a b', None, 'c'], 'n': [1, 2, 3]})
    dl = BufferedDataLoader.counted(df, tokenizer='space')
    assert (
        len(dl) == 1
        and dl.skipped == {'missing rows': 1}
        and sorted(dl.vocab.itos[4:]) == ['a', 'b', 'c']
    )
    with pytest.raises(TypeError, match='again and again.*list_iterator'):
        BufferedDataLoader.counted(iter(['a']))
    with pytest.raises(CorpusError, match="no column 'body' among 'text', 'n'"):
        BufferedDataLoader.counted(Reader(df, ReadOptions(text_col='body')))


def test_a_shuffled_stream_changes_its_order():
    datasets = pytest.importorskip('datasets')
    it = (
        datasets.Dataset.from_dict({'text': [f'w{i}' for i in range(30)]})
        .to_iterable_dataset()
        .shuffle(seed=1, buffer_size=30)
    )
    dl = BufferedDataLoader.counted(it, buffer=5, bs=1, tokenizer='space', shuffle=False)
    def order(): return [dl.char_vocab.decode(x[0])[1] for x,*_ in dl]
    a, b = order(), order()
    assert sorted(a) == sorted(b) == sorted(f'w{i}' for i in range(30)) and a != b

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


def test_misspelt_arguments():
    c = Corpus('c', dict(train=['a b c']*4, valid=['a b c']), 'space')
    with pytest.raises(TypeError, match="no loader has an argument 'contxt_size'"):
        ElmoDataLoaders.from_corpus(c, kind='cbow', contxt_size=1)
    with pytest.raises(ValueError, match='bs must be'): ElmoDataLoaders.from_corpus(c, valid_bs=0)

def n_asked(dl): return sum(int((b[1] != 0).sum()) for b in dl)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_a_look_takes_nothing_from_an_epoch(kind):
    lines = [f'line number {i} of many' for i in range(50)]
    dl = BufferedDataLoader.counted(
        lines,
        buffer=10,
        kind=kind,
        tokenizer='space',
        bs=4,
        **(dict(seq_len=5) if kind == 'stream' else {}),
    )
    dl.one_batch()
    assert [n_asked(dl), dl.one_batch() and n_asked(dl)] == [50*6]*2
    it = iter(dl); first = next(it)
    dl.show_batch(show=False)
    assert int((first[1] != 0).sum()) + sum(int((b[1] != 0).sum()) for b in it) == 50*6
    counted = BufferedDataLoader(
        [*lines, ' '], dl.vocab, n_batches=12, buffer=10, tokenizer='space', bs=4
    )
    for i,_ in enumerate(counted):
        if i == 10: counted.one_batch()
    assert counted.skipped['blank lines'] <= 1

def test_an_error_in_reading_does_not_end_the_loader(monkeypatch):
    dl = BufferedDataLoader.counted([f'line {i}' for i in range(30)], buffer=5, tokenizer='space',
                                    bs=5)
    def down(self): raise ConnectionError('down')
    with monkeypatch.context() as m:
        m.setattr(type(dl.lines), 'open', down)
        with pytest.raises(CorpusError, match="can't be read on: ConnectionError: down"): list(dl)
    assert n_asked(dl) == n_asked(dl) == 30*3

def test_lines_of_the_buffered_loader():
    with pytest.raises(CorpusError, match='no file or folder'):
        BufferedDataLoader.counted('hello world')
    assert BufferedDataLoader.counted([None, {'text': 'a b'}, {'text': 'c'}], bs=2).skipped == {
        'missing rows': 1
    }

@each_kind
def test_a_loader_of_other_text(kind):
    "In its order, by the same words; what is no list of texts is refused"
    dls = ElmoDataLoaders.from_corpus(Corpus('c', dict(train=LINES, valid=LINES)), kind=kind,
                                      **KINDS[kind])
    n = len(dls.types)
    dl = dls.test_dl(['a b c d e f g', ['f', 'a', 'b', 'c', 'd']])
    assert sum(len(b[-1]) for b in dl) and len(dls.types) == n and dl.vocab is dls.vocab
    for wrong in ('a text', [], None):
        with pytest.raises(TypeError, match='put one text into a list'): dls.test_dl(wrong)
    with pytest.raises(CorpusError, match='not one word'): dls.test_dl([' '])
