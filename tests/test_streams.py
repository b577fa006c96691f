"Text that need not fit into memory: what is read, held out and refused, and where it goes on"
import io, pickle, threading, tracemalloc
from collections import Counter
from itertools import islice

import datasets, numpy as np, pandas as pd, pytest, torch
from hypothesis import given, strategies as st

from elmo_fastai.errors import CorpusError
from elmo_fastai.batches import EncodedText, LOADERS, TokenTypes
from elmo_fastai.learner import bilm_learner
from elmo_fastai.practice import streams
from elmo_fastai.practice.streams import BufferedDataLoader, rows_of, stream_loaders
from elmo_fastai.tokens import WordVocab
from loading import (
    ALL_LINES, MIXED, common, corpora, found, lines_of, mixed, reference, rows, same, seen)
from made import CFG
from sources import SOURCES, source, written

SIZES = dict(sentences={}, stream=dict(seq_len=3))

def load(source, *valid, **how):
    return stream_loaders(source, *valid, **dict(tokenizer='space', bs=8, device='cpu') | how)

def batches(dl, n=None): return [[x.tolist() for x in batch] for batch in islice(iter(dl), n)]

def texts_of(dl): return [text for _,texts in dl.blocks(streams.START) for text in texts]

# what is in the batches

@given(corpora, st.sampled_from(list(SIZES)), st.integers(1, 4), st.booleans(),
       st.sampled_from([None, 2]))
@common
def test_an_epoch_is_one_reading(sents, kind, buffer, shuffle, max_words):
    "Of each block the batches are those of the plain loader; a cut sentence ends nowhere"
    vocab = WordVocab.build(sents)
    kept = [[s for s in sents[i:i+buffer] if s] for i in range(0, len(sents), buffer)]
    texts = [EncodedText(some, TokenTypes(vocab), max_words) for some in kept if some]
    sizes = dict(bs=2, **SIZES[kind])
    stream = datasets.IterableDataset.from_generator(
        lambda rows: (dict(text=row) for row in rows), gen_kwargs=dict(rows=tuple(sents)))
    dl = BufferedDataLoader(
        stream, vocab, 0, 'text', buffer, kind, 'space', shuffle=shuffle, seed=3,
        max_words=max_words, **sizes)
    dl.count(vocab)
    first, second = list(dl), list(dl)
    assert len(first) == len(dl) == len(second)
    assert dl.n_tokens == sum(len(text.ids) for text in texts)
    assert dl.cuts == tuple(map(sum, zip(*(text.cuts for text in texts))))
    if kind == 'sentences':
        wanted = Counter(x for some in kept if some for x in reference(
            some, EncodedText(some, TokenTypes(vocab)), max_words))
        assert Counter(found(first)) == Counter(found(second)) == wanted
    if not shuffle:
        def fit(text):
            return streams.fit_stream(len(text.ids), **sizes) if kind == 'stream' else sizes
        plain = [LOADERS[kind](text, **fit(text)) for text in texts]
        assert same(first, [b for loader in plain for b in loader])

def test_the_same_seed_is_the_same_order_and_epochs_differ(folder):
    def new(seed, **how): return load(folder, n_valid=9, buffer=30, seed=seed, **how).train
    first, again, other = new(1), new(1), new(2)
    epochs = [batches(first) for _ in range(3)]
    assert epochs == [batches(again) for _ in range(3)] and batches(other) != epochs[0]
    assert epochs[0] != epochs[1] != epochs[2] and seen(first) == seen(again)
    half = new(1, n_batches=len(first)//2)
    assert (batches(half) + batches(half))[:len(first)] == epochs[0][:len(first)//2*2]
    files = [(folder/f'{i}.txt', 0) for i in range(4)]
    starts = {next(iter(rows_of(files, None, seed)))['text'] for seed in range(9)}
    assert len(starts) > 1 and all(start.endswith('line 0 w0 .') for start in starts)

@pytest.mark.parametrize('what', SOURCES)
def test_all_forms_give_the_same_batches(what, tmp_path):
    how = dict(n_valid=25, buffer=30, tokenizer=None if what == 'tokens' else 'space')
    dls = load(source(what, tmp_path), **how)
    (tmp_path/'one').mkdir()
    plain = load(written(tmp_path/'one', 'txt'), n_valid=25, buffer=30)
    assert [batches(dls.train) for _ in range(2)] == [batches(plain.train) for _ in range(2)]
    assert batches(dls.valid) == batches(plain.valid) and dls.vocab.itos == plain.vocab.itos
    assert (dls.train.n_tokens, dls.cuts, dict(dls.skipped)) == (
        plain.train.n_tokens, plain.cuts, {})
    assert 'read as a stream' in repr(dls)
    empty = pickle.loads(pickle.dumps(dls.new_empty()))
    assert len(empty.train) == 0 and str(tmp_path).encode() not in pickle.dumps(empty)
    assert batches(pickle.loads(pickle.dumps(dls.train.new()))) == batches(plain.train.new())

# what is held out

@pytest.mark.parametrize('n', [25, 39, 40, 1000])
@pytest.mark.parametrize('shuffle', [True, False])
def test_the_first_rows_of_the_last_file_are_held_out(folder, n, shuffle):
    dls = load(folder, buffer=30, n_valid=n, shuffle=shuffle)
    assert dls.corpus.valid == lines_of(3)[:n]
    rest = sorted({*ALL_LINES} - {*dls.corpus.valid})
    assert seen(dls.train) == rest == seen(dls.train) and dls.train.n_tokens == 8*len(rest)

def test_what_validates_is_said(folder, tmp_path):
    (tmp_path/'v.txt').write_text('a b c\nfile 1 .\n')
    assert load(folder, tmp_path/'v.txt').corpus.valid == ['a b c', 'file 1 .']
    (tmp_path/'all').mkdir()
    for name in ('train', 'validation', 'test'):
        (tmp_path/'all'/f'{name}.txt').write_text(f'{name} 1\n\n{name} 2\n')
    dls = load(tmp_path/'all', bs=2)
    assert dls.corpus.valid == ['validation 1', 'validation 2']
    assert seen(dls.train) == ['train 1', 'train 2']
    data = datasets.DatasetDict(train=rows(9), test=rows(9, 20))
    assert load(data, n_valid=3).corpus.valid == ['line 0 .', 'line 1 .', 'line 2 .']

@pytest.mark.parametrize('by_hand', [False, True])
@pytest.mark.parametrize('how', [*MIXED, 'later'])
def test_a_stream_never_trains_on_what_validates(how, by_hand):
    "In no epoch, however it is shuffled, also if it was divided before, or is in a later epoch"
    stream = mixed()['shuffled' if how == 'later' else how]
    if how == 'later': stream.set_epoch(3)
    some = (stream.skip(50), stream.take(50)) if by_hand else (stream,)
    dls = load(*some, bs=4, n_valid=50, buffer=30)
    held = {' '.join(line.split()) for line in dls.corpus.valid}
    assert len(held) == 50
    for _ in range(3):
        epoch = seen(dls.train)
        assert not held & {*epoch} and len(epoch) >= 100

# where it goes on

def as_kept(place):
    "As a checkpoint keeps it"
    torch.save(place, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)

@pytest.mark.parametrize('what', [*SOURCES, 'folder', *MIXED])
def test_a_place_is_found_again(what, folder, tmp_path_factory):
    "Before, within and after a block, and from a place in a reading that began at a place"
    text = folder if what == 'folder' else source(what, tmp_path_factory.mktemp('source'))
    dls = load(text, bs=4, n_valid=9, buffer=20, n_batches=60,
               tokenizer=None if what == 'tokens' else 'space')
    def new(): return dls.train.new()
    whole, first = batches(new()), new()
    it = iter(first)
    for k in range(4, 54, 7):
        for _ in range(4 if k == 4 else 7): next(it)
        second, third = new(), new()
        second.load_state_dict(as_kept(first.state_dict()))
        assert batches(second, 3) == whole[k:k + 3]
        third.load_state_dict(as_kept(second.state_dict()))
        assert batches(third, 3) == whole[k + 3:k + 6]

def test_lines_that_have_changed_are_refused(tmp_path):
    def write(changed): (tmp_path/'a.txt').write_text(
        ''.join(f'line {i + (i > 80)*changed} .\n' for i in range(300)))
    def of_file(): return load(tmp_path/'a.txt', n_valid=50, buffer=30, seed=1).train
    def of_stream():
        return load(rows(99, 300).to_iterable_dataset().shuffle(), rows(9), buffer=30).train
    write(False)
    for make in (of_file, of_stream):
        dl = make()
        for _ in islice(iter(dl), 9): pass
        write(True)
        other = make()
        other.load_state_dict(dl.state_dict())
        with pytest.raises(CorpusError, match='not those'): batches(other, 1)

def test_an_error_in_reading_does_not_end_the_loader(monkeypatch, tmp_path):
    dl = load(written(tmp_path, 'txt'), n_valid=9, buffer=30, seed=1).train
    whole = batches(dl.new())
    assert batches(dl, 5) == whole[:5]
    def down(*args): raise ConnectionError('down')
    with monkeypatch.context() as m:
        m.setattr(streams, 'rows_of', down)
        with pytest.raises(CorpusError, match='ConnectionError: down'): batches(dl)
    assert batches(dl, len(whole) - 5) == whole[5:]

def test_a_stream_is_copied_in_another_thread():
    "It refers to a cache of file systems, which has one for each thread"
    from huggingface_hub import HfFileSystem
    kept, read = HfFileSystem(), []
    stream = rows(2).to_iterable_dataset()
    thread = threading.Thread(target=lambda: read.extend(rows_of(stream)))
    thread.start()
    thread.join()
    assert len(read) == 2 and kept

# what is refused

def of(name, text):
    def make(folder):
        (folder/name).write_text(text)
        return folder/name
    return make

def two(folder): return [of('a.txt', 'a b\n'*9)(folder), of('b.jsonl', '{"text": "a"}\n'*9)(folder)]
def linked(folder):
    (folder/'9.txt').symlink_to(folder/'a.txt')
    return folder/'9.txt'
def drawn():
    for i in np.random.permutation(200): yield dict(text=f'line {i} .')
def flagged(folder):
    pd.DataFrame(dict(text=['a b']*20, is_valid=[0, 1]*10)).to_parquet(folder/'a.parquet')
    return folder/'a.parquet'

NINE = of('a.txt', 'a b\n'*9)
REFUSED = {         # beside those of test_doors: what → (its source, arguments, words)
    'no files': (lambda d: [d/'none.txt'], {}, 'no file'),
    'two endings': (two, {}, 'ending'),
    'a list': (lambda d: ['a b']*9, {}, 'from_corpus'),
    'a table': (lambda d: pd.DataFrame(dict(text=['a'])), {}, 'DataFrame'),
    'an iterator': (lambda d: iter(['a']), {}, 'stream'),
    'nothing': (of('a.txt', ''), {}, 'leaves nothing'),
    'blanks': (of('a.txt', 'a\n'*5 + ' \n'*9), {}, 'no lines to train on'),
    'no JSON': (of('a.jsonl', '{"text": "a"}\n'*99 + 'b\n'), {}, 'line 100'),
    'a wrong column': (NINE, dict(text_col='body'), "'body'"),
    'no Parquet': (of('a.parquet', 'text '*99), {}, "a.parquet can't be read"),
    'flags': (flagged, {}, 'is_valid'), 'too little': (NINE, dict(n_valid=9), 'leaves nothing'),
    'a link to it': (NINE, dict(valid=linked), 'both trained on and held out'),
    'another kind': (NINE, dict(kind='lm'), "kind='lm'"),
    'an unknown word': (NINE, dict(seqlen=5), "'seqlen'"),
    'no order': (lambda d: datasets.IterableDataset.from_generator(drawn), {}, 'seed')}

@pytest.mark.parametrize('what', REFUSED)
def test_refused(what, tmp_path):
    make, how, words = REFUSED[what]
    text = make(tmp_path)
    how = {name: value(tmp_path) if callable(value) else value for name,value in how.items()}
    with pytest.raises((ValueError, TypeError)) as e: load(text, **dict(n_valid=5) | how)
    assert words in str(e.value) and '\n' not in str(e.value), str(e.value)

# the rest

def test_nothing_is_counted_when_all_is_given(folder, monkeypatch):
    vocab = WordVocab.build([line.split() for line in ALL_LINES])
    monkeypatch.setattr(BufferedDataLoader, 'count', lambda *args: pytest.fail('read'))
    dls = load(folder, vocab=vocab, n_batches=4, n_valid=5)
    assert len(list(dls.train)) == 4 and dls.vocab is vocab

def test_frequencies_of_a_text_that_is_not_in_memory(folder):
    "Counted in a sample as it is cut; the stream is where it was, and the model begins there"
    dls = load(folder, n_valid=20, max_words=3)
    log_p, V = dls.log_frequencies(), len(dls.vocab)
    words = [word for line in dls.corpus.train for word in ['<s>', *line.split()[:3]]]
    for word in ('<s>', 'file', 'line'):
        wanted = np.log((words.count(word) + 1)/(len(words) + V))
        assert log_p[dls.vocab.itos.index(word)].item() == pytest.approx(wanted, rel=1e-4)
    head = bilm_learner(dls, CFG, from_counts=True).model.head
    assert head.log_prob(head.weight.new_zeros(1, 8))[0].allclose(log_p, atol=1e-5)
    again = load(folder, n_valid=20, max_words=3)
    assert dls.train.one_batch()[0].equal(again.train.one_batch()[0])

def test_memory_does_not_grow():
    "Ten times the text, the same peak: only a block is held"
    def lines(n):
        for i in range(n): yield dict(text=f'a b c{i} d e f')
    def peak(n):
        stream = datasets.IterableDataset.from_generator(lines, gen_kwargs=dict(n=n))
        dl = BufferedDataLoader(stream, WordVocab.build([['a', 'b']]), n//20, buffer=200, bs=20,
                                tokenizer='space')
        tracemalloc.start()
        for _ in dl: pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most
    peak(400)
    assert peak(8_000) < 1.2*peak(800)
