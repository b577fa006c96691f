"Text that is in no memory as a whole: rows from a place, and batches a block at a time"
import datasets, json, pandas as pd, pickle, pytest, threading
from collections import Counter
from copy import copy
from hypothesis import given, strategies as st
from fastai.data.all import DataLoaders
from fastai.learner import Learner
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.read import split_lines
from elmo_fastai.text.tokens import WordVocab, to_nfc
from elmo_fastai.data.batches import LOADERS, NeighbourDataLoader, SentenceDataLoader
from elmo_fastai.data.buffered import BufferedDataLoader, Reader
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from loading import (
    ALL_LINES, Count, MIXED, common, corpora, found, key, lines_of, mixed, reference, same, ss,
    text)
from itertools import islice

def blocks(lines, *vocab, **how):
    return BufferedDataLoader.counted(lines, *vocab, **dict(tokenizer='space') | how)

def size(kind, bs=2, seq_len=4):
    "Arguments of each kind of loader"
    more = dict(sentences={}, stream=dict(seq_len=seq_len), cbow=dict(context_size=1))
    return dict(bs=bs, **more[kind])

# a text that does not fit

@pytest.mark.parametrize('kind', ['sentences', 'stream', 'cbow'])
def test_buffered(kind):
    lines = [' '.join(s) for s in ss]
    kw = size(kind)
    vocab = WordVocab.build(ss)
    make = lambda n, **o: BufferedDataLoader(
        lines, vocab, n_batches=n, buffer=25, kind=kind, tokenizer='space', **{**kw, **o})
    texts = [EncodedText(ss[i:i+25], TokenTypes(vocab)) for i in (0, 25, 50)]
    ref = [b for text in texts for b in LOADERS[kind](text, **kw)]
    dl = make(len(ref), shuffle=False)
    # the next epoch is the next round
    assert same(list(dl), ref) and same(list(dl), ref)
    half = make(len(ref)//2, shuffle=False)
    # an epoch goes on where the last one stopped
    assert same([*half, *half], ref[:len(ref)//2*2])
    assert same(list(make(9, seed=1)), list(make(9, seed=1))) and not same(
        list(make(9, seed=1)), list(make(9, seed=2)))
    assert same(list(pickle.loads(pickle.dumps(dl))), ref) and same(list(dl.new()), ref)
    assert dl.n_inp == (2 if kind=='cbow' else 1) and len(dl.show_batch(show=False, max_n=2)) == 2
    dls = DataLoaders(dl, dl)
    assert len(dls.new_empty().train) == 0 and dls.vocab is vocab
    learn = Learner(dls, Count(), loss_func=lambda p,*y: p.mean())
    with learn.no_bar(), learn.no_logging(): learn.fit(1)

def test_buffered_rows_and_nothing():
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
    def lines(n):
        for i in range(n): yield dict(text=f'a b c{i} d e f')
    def peak(n):
        dl = BufferedDataLoader(datasets.IterableDataset.from_generator(
            lines, gen_kwargs=dict(n=n)), WordVocab.build([['a', 'b']]), n_batches=n // 50,
                                buffer=500, bs=50, tokenizer='space')
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
    kw = size(kind, seq_len=3)
    lines = ['\x1f'.join(s) for s in ss] # a separator that no token of ours has
    tok = lambda o: o.split('\x1f') if o else []
    make = lambda: blocks(lines, vocab, buffer=buffer, kind=kind, tokenizer=tok, seed=3,
                          shuffle=shuffle, **kw)
    ss = [t for o in lines for line in split_lines(o) if (t := tok(to_nfc(line)))]
    if not any(len(s) >= 1 for s in ss):
        with pytest.raises(CorpusError, match='not one word'): make()
        return
    dl = make()
    text = EncodedText(ss, TokenTypes(vocab))

    def bag(b):
        return (Counter((tuple(w.tolist()), key(c), int(y)) for o in b for w, c, y in zip(*o))
                if kind == 'cbow' else Counter(found(b)))

    ref = NeighbourDataLoader(text, context_size=1) if kind=='cbow' else SentenceDataLoader(text)
    batches = list(dl)
    assert len(batches) == len(dl) and bag(batches) == bag(ref) and bag(list(dl)) == bag(ref)

def test_buffered_blocks_have_no_false_ends():
    lines = [' '.join(s) for s in ss]
    for kind,kw in dict(sentences={}, stream=dict(seq_len=4)).items():
        dl = blocks(lines, kind=kind, buffer=25, max_words=5, bs=2, **kw)
        text = EncodedText(ss, TokenTypes(dl.vocab), max_words=5)
        assert Counter(found(dl)) == Counter(reference(ss, text, 5))
        assert dl.cuts[:2] == text.cuts[:2] and dl.n_tokens == len(text.ids)

def test_a_cut_block_may_be_too_short_for_cbow():
    dl = blocks(['a b c d e']*2 + ['a b c'], buffer=2, kind='cbow', max_words=3)
    assert sum(len(b[-1]) for b in dl) == 1
    assert dl.skipped == {'lines too short for the context': 2}

def test_frequencies_are_those_of_the_cut_text():
    corpus = Corpus('c', dict(train=['a b c', 'a']*9, valid=['a b']), 'space')
    whole = ElmoDataLoaders.from_corpus(corpus, max_words=2)
    read = copy(corpus)
    read.splits = dict(corpus.splits, train=Reader(corpus.train))
    for dls in (whole, ElmoDataLoaders.from_corpus(read, vocab=whole.vocab, max_words=2)):
        counts = dls.log_frequencies().exp()
        assert torch.allclose(counts/counts[0], torch.tensor([1., 1, 19, 10, 19, 10]))

def test_buffered_skips_a_block_that_is_too_short():
    lines = ['a', 'b']*5 + ['a b c d e']
    dl = blocks(lines, buffer=5, kind='cbow', context_size=2)
    assert sum(len(b[-1]) for b in dl) == 3
    assert dl.skipped == {'lines too short for the context': 10}
    with pytest.raises(CorpusError, match='context_size=3.*longest here has 4'):
        BufferedDataLoader(['a b c d']*3, WordVocab.build([['a']]), 5, kind='cbow',
                           tokenizer='space', context_size=3).one_batch()

def test_buffered_takes_tables_and_no_iterators():
    data = datasets.Dataset.from_dict({'text': ['a b', None, 'c'], 'n': [1, 2, 3]})
    dl = blocks(data)
    assert (len(dl) == 1 and dl.skipped == {'missing rows': 1}
            and sorted(dl.vocab.itos[4:]) == ['a', 'b', 'c'])
    with pytest.raises(TypeError, match='again and again.*list_iterator'):
        blocks(iter(['a']))
    with pytest.raises(CorpusError, match="no column 'body'; the columns are 'text', 'n'"):
        blocks(Reader(data, 'body'))

def test_a_shuffled_stream_changes_its_order():
    words = datasets.Dataset.from_dict(dict(text=[f'w{i}' for i in range(30)]))
    it = words.to_iterable_dataset().shuffle(seed=1, buffer_size=30)
    dl = blocks(it, buffer=5, bs=1, shuffle=False)
    def order(): return [dl.char_vocab.decode(x[0])[1] for x,*_ in dl]
    a, b = order(), order()
    assert sorted(a) == sorted(b) == sorted(words['text']) and a != b

def n_asked(dl): return sum(int((b[1] != 0).sum()) for b in dl)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_a_look_takes_nothing_from_an_epoch(kind):
    lines = [f'line number {i} of many' for i in range(50)]
    dl = blocks(lines, buffer=10, kind=kind, bs=4,
                                    **(dict(seq_len=5) if kind == 'stream' else {}))
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
    dl = blocks([f'line {i}' for i in range(30)], buffer=5,
                                    bs=5)
    def down(self): raise ConnectionError('down')
    with monkeypatch.context() as m:
        m.setattr(type(dl.lines), 'open', down)
        with pytest.raises(CorpusError, match="can't be read on: ConnectionError: down"): list(dl)
    assert n_asked(dl) == n_asked(dl) == 30*3

def test_lines_of_the_buffered_loader():
    with pytest.raises(CorpusError, match="no list of files or texts"): blocks('hello world')
    assert blocks([None, 'a b', ['c d', 'e']], bs=2).skipped == {'missing rows': 1}

def files_in(folder): return sorted(folder.iterdir())

def begun(folder, **kwargs):
    "All files, of the last one without its first rows"
    res = Reader(files_in(folder), **kwargs)
    res.skip = 7
    return res

def sources(folder):
    table = datasets.Dataset.from_dict(dict(text=[l for i in range(4) for l in lines_of(i)]))
    return dict(
        folder=Reader(files_in(folder)),
        shuffled=Reader(files_in(folder), shuffle=True),
        one=Reader([folder/'1.txt']),
        skipped=Reader([folder/'1.txt'], skip=7),
        begun=begun(folder),
        begun_shuffled=begun(folder, shuffle=True),
        stream=Reader(table.to_iterable_dataset(num_shards=4)),
        stream_skipped=Reader(table.to_iterable_dataset(num_shards=4), skip=7),
        list=Reader(list(table['text'])))

KINDS = ['folder', 'shuffled', 'one', 'skipped', 'begun', 'begun_shuffled', 'stream',
         'stream_skipped', 'list']

def test_reads_all_lines(folder):
    s = sources(folder)
    for k in ('folder', 'stream'):
        assert [text(o) for o in s[k]] == ALL_LINES == [text(o) for o in s[k]]
    assert sorted(text(o) for o in s['shuffled']) == sorted(ALL_LINES)
    # the file whose first rows are left out comes first
    assert [text(o) for o in s['begun']] == lines_of(3)[7:] + lines_of(0) + lines_of(1) + lines_of(
        2)
    assert sorted(text(o) for o in s['begun_shuffled']) == sorted(text(o) for o in s['begun'])
    assert [text(o) for o in s['skipped']] == lines_of(1)[7:] and [
        text(o) for o in s['stream_skipped']] == ALL_LINES[7:]

def test_order_of_files_changes_with_the_epoch(folder):
    s = Reader(files_in(folder), shuffle=True)
    def at(e): s.set_epoch(e); return [text(o) for o in s]
    assert at(1) == at(1) and len({tuple(at(e)) for e in range(5)}) > 1
    assert Reader(files_in(folder), shuffle=True, seed=7).seed == 7

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('n', [1, 2, 3])
def test_parts_are_a_partition(folder, kind, n):
    s = sources(folder)[kind]
    parts = [[text(o) for o in s.shard(i, n)] for i in range(n)]
    assert sorted(sum(parts, [])) == sorted(text(o) for o in s) and all(parts)

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('part', [(0, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize('k', [0, 1, 6])
def test_a_place_is_found_again(folder, kind, part, k):
    """Also from a place in a reading that began at a place; a reading that begins anew begins at
    the beginning"""

    def new():
        s = sources(folder)[kind].shard(*part)
        s.set_epoch(3)
        return s
    a = new()
    full = [text(o) for o in new()]
    it = iter(a)
    assert [text(o) for o in islice(it, k)] == full[:k]
    place = json.loads(json.dumps(a.state_dict()))
    assert (place is None) == (k == 0)
    b = new()
    b.load_state_dict(place)
    assert b.state_dict() == place
    it = iter(b)
    assert b.state_dict() == place
    assert [text(next(it)) for _ in range(2)] == full[k:k+2]
    c = new()
    c.load_state_dict(json.loads(json.dumps(b.state_dict())))
    assert [text(o) for o in c] == full[k+2:]
    assert [text(o) for o in c] == full
    iter(c)
    assert c.state_dict() is None

# resumed

@pytest.mark.parametrize('how', MIXED)
def test_a_mixed_stream_goes_on_where_it_was(how):
    "A shuffle buffer is in no `state_dict` of datasets: its rows would be lost"
    a, b = Reader(mixed()[how]), Reader(mixed()[how])
    it = iter(a)
    for _ in range(60): next(it)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert [text(o) for o in b] == [text(o) for o in it]

def test_a_stream_is_copied_in_another_thread():
    """A data set refers to a cache of file systems, which has one for each thread: it grew while it
    was copied"""
    from huggingface_hub import HfFileSystem
    kept = HfFileSystem()
    rows = datasets.Dataset.from_dict(dict(text=['a', 'b'])).to_iterable_dataset()
    found = []
    thread = threading.Thread(target=lambda: found.extend(row['text'] for row in Reader(rows)))
    thread.start()
    thread.join()
    assert found == ['a', 'b'] and kept

def test_nothing_is_read_before_it_is_asked_for(tmp_path, monkeypatch):
    "Neither by a reader nor by a loader; to count is a method of its own"
    (tmp_path/'a.txt').write_text('\n'.join(lines_of(0)))
    opened = []
    was = Reader.open
    monkeypatch.setattr(Reader, 'open', lambda self: (opened.append(1), was(self))[1])
    vocab = WordVocab.build([line.split() for line in lines_of(0)])
    lines = Reader([tmp_path/'a.txt'])
    dl = BufferedDataLoader(lines, vocab, n_batches=2, tokenizer='space', bs=20)
    assert not opened and len(list(dl)) == 2 and len(opened) == 1
    counted = blocks(lines, bs=20)
    assert len(opened) == 2 and len(counted) == 2 and counted.vocab.itos[4:] == vocab.itos[4:]
    assert counted.n_tokens == sum(len(line.split()) + 2 for line in lines_of(0))
