"""Text that is in no memory as a whole: lines, their place, their parts, loaders, and a limit on
the memory"""
import json, os, subprocess, sys
from itertools import islice
from pathlib import Path

import datasets, numpy as np, pandas as pd, pytest

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.nn.bilm import BiLMConfig
from elmo_fastai.data.buffered import BufferedDataLoader, Reader
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.train.learner import bilm_learner
from loading import ALL_LINES, MIXED, lines_of, mixed, rows, seen, text

ROOT = Path(__file__).resolve().parents[1]
NANO = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), proj_dim=16, hidden_dim=16)

def load(source, *valid, **how):
    return stream_loaders(source, *valid, **dict(tokenizer='space', bs=8, device='cpu') | how)

def blocks(lines, **how):
    how = dict(tokenizer='space', bs=8, device='cpu') | how
    return BufferedDataLoader.counted(lines, **how)

@pytest.mark.parametrize('n', [25, 39, 40, 1000])
@pytest.mark.parametrize('shuffle', [True, False])
def test_loaders_hold_out_the_first_rows_of_the_last_file(folder, n, shuffle):
    "What else is in it is counted and trained on"
    dls = load(folder, buffer=30, n_valid=n, shuffle=shuffle)
    assert dls.corpus.valid == lines_of(3)[:n]
    rest = sorted(l for i in range(4) for l in lines_of(i) if l not in dls.corpus.valid)
    assert seen(dls.train) == rest == seen(dls.train)
    assert len(dls.train) == len(list(dls.train)) and dls.train.n_tokens == 8*len(rest)
    assert ('39' in dls.vocab.o2i) and ('3' in dls.vocab.o2i)

def test_the_rest_of_the_last_file_is_dealt_out_too(folder):
    dls = load(folder, n_valid=25)
    parts = [[text(o) for o in dls.train.lines.shard(i, 3)] for i in range(3)]
    assert all(parts) and sorted(sum(parts, [])) == sorted(
        l for i in range(4) for l in lines_of(i) if l not in dls.corpus.valid)


def same_file(folder, how):
    "The file 1.txt of `folder` by another name"
    f = folder/'1.txt'
    if how == 'link': (folder/'9.txt').symlink_to(f); return folder/'9.txt'
    return dict(string=str(f), relative=os.path.relpath(f), dots=folder/'..'/folder.name/'1.txt')[
        how]


@pytest.mark.parametrize('how', ['string', 'relative', 'dots', 'link'])
def test_loaders_refuse_to_train_on_a_file_that_is_held_out(tmp_path, how):
    (tmp_path/'all').mkdir()
    for i in range(3): (tmp_path/'all'/f'{i}.txt').write_text('\n'.join(lines_of(i)))
    valid = same_file(tmp_path/'all', how)
    for source in (tmp_path/'all', [tmp_path/'all'/'1.txt', tmp_path/'all'/'2.txt']):
        with pytest.raises(CorpusError, match='1.txt is both trained on and held out'): load(source, valid)
    dls = load([tmp_path/'all'/'0.txt', tmp_path/'all'/'2.txt'], valid)
    assert dls.corpus.valid == lines_of(1) and seen(dls.train) == sorted(lines_of(0) + lines_of(2))


def test_loaders_hold_out_the_first_rows_of_one_file(folder):
    dls = load(folder/'1.txt', buffer=30, n_valid=25)
    assert dls.corpus.valid == lines_of(1)[:25] and seen(dls.train) == sorted(lines_of(1)[25:])

def test_loaders_with_a_text_to_validate_on(folder, tmp_path):
    (tmp_path/'v.txt').write_text('a b c\nfile 1 .\n')
    dls = load(folder, tmp_path/'v.txt')
    assert dls.corpus.valid == ['a b c', 'file 1 .'] and len(seen(dls.train)) == 160
    (tmp_path/'all').mkdir()
    for name in ('train', 'validation', 'test'):
        (tmp_path/'all'/f'{name}.txt').write_text(f'{name} one\n{name} two\n')
    dls = load(tmp_path/'all', bs=2)
    assert dls.corpus.valid == ['validation one', 'validation two'] and seen(dls.train) == [
        'train one', 'train two']


def test_json_lines_and_a_column(tmp_path):
    (tmp_path/'a.jsonl').write_text(
        '\n'.join(json.dumps(dict(id=i, body=f'row {i} .')) for i in range(20)))
    dls = load(tmp_path/'a.jsonl', text_col='body', bs=4, n_valid=5)
    assert seen(dls.train) == sorted(f'row {i} .' for i in range(5, 20))
    with pytest.raises(CorpusError, match='text'):
        load(tmp_path/'a.jsonl', bs=4, n_valid=5)


def test_nothing_is_read_before_when_all_is_given(folder, monkeypatch):
    vocab = WordVocab.build([l.split() for l in lines_of(0)])
    read = []
    was = Reader.open
    monkeypatch.setattr(Reader, 'open', lambda self: (read.append(1), was(self))[1])
    dls = load(folder, vocab=vocab, n_batches=4, n_valid=5)
    # what is held out, twice; whether more is there; a sample for the report
    n = len(read)
    assert n <= 4 and len(list(dls.train)) == 4 and len(read) == n+1

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_training_and_position(folder, kind):
    "A learner trains on it, and a loader that was set to a place goes on as the other would have"
    from fastai.basics import set_seed

    kw = dict(kind=kind, bs=4, buffer=30, n_valid=5, seed=1,
              **(dict(seq_len=10) if kind == 'stream' else {}))
    set_seed(1)
    dls = load(folder, **kw)
    learn = bilm_learner(dls, NANO, bf16=False)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, 1e-2)
    assert learn.stopped is None and len(learn.recorder.losses) == len(dls.train)
    def batches(dl, n): return [b[0].tolist() for b in islice(iter(dl), n)]
    k = len(dls.train)*3//2
    a,b = (load(folder, **kw).train for _ in range(2))
    for _ in range(2): batches(a, 10**6)
    it = iter(a); [next(it) for _ in range(len(a)//2)]
    place,rest = a.state_dict(),[o[0].tolist() for o in it]
    assert 'mark' in place
    b.load_state_dict(place)
    assert batches(b, len(rest)) == rest


def numbers(dl): return [int(dl.char_vocab.decode(r[2:3])[0]) for b in dl for r in b[0]]
def numbers_of(lines): return {int(l.split()[1]) for l in lines}

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
@pytest.mark.parametrize('how', MIXED)
def test_a_stream_never_trains_on_what_validates(how, kind):
    "In no epoch, however the stream is mixed"
    dls = load(mixed()[how], bs=4, n_valid=50, buffer=30,
                         kind=kind, **(dict(seq_len=16) if kind == 'stream' else {}))
    held = [' '.join(l.split()) for l in dls.corpus.valid]
    assert len(held) == 50
    read = [[r['text'] for r in (dls.train.lines.set_epoch(e) or dls.train.lines)]
            for e in range(4)]
    assert all(not set(held) & set(lines) and len(lines) >= 100 for lines in read)
    if kind == 'sentences':
        assert not any(numbers_of(held) & set(numbers(dls.train)) for _ in range(4))


@pytest.mark.parametrize('how', MIXED)
def test_nor_does_one_that_was_divided_by_hand(how):
    "Also where the stream was mixed first and divided then"
    s = mixed()[how]
    dls = load(s.skip(50), s.take(50), bs=4, buffer=30)
    held = numbers_of(dls.corpus.valid)
    assert len(held) == 50 and not any(held & set(numbers(dls.train)) for _ in range(4))

def test_the_order_of_files_changes_and_what_validates_is_left_out(folder):
    dls = load(folder, n_valid=15, buffer=30)
    rest = sorted(l for i in range(4) for l in lines_of(i) if l not in lines_of(3)[:15])
    order = []
    for e in range(4):
        dls.train.lines.set_epoch(e)
        order.append([text(o) for o in dls.train.lines])
        assert sorted(order[-1]) == rest
    assert len(set(map(tuple, order))) > 1

def test_a_stream_in_no_order_is_refused():
    import random
    def drawn():
        for i in random.sample(range(200), 200): yield dict(text=f'line {i} .')

    with pytest.raises(CorpusError, match='other rows.*skip'):
        load(datasets.IterableDataset.from_generator(drawn), bs=4, n_valid=50)
    with pytest.raises(CorpusError, match='shuffle'):
        Reader(rows(9).to_iterable_dataset(), skip=3, shuffle=True)

@pytest.mark.parametrize('how', MIXED)
@pytest.mark.parametrize('door', ['loaders', 'lines'])
def test_a_mixed_stream_trains_on_where_it_was(how, door):
    def new():
        if door == 'loaders':
            return load(mixed()[how], n_valid=50, buffer=30, seed=1).train
        return blocks(mixed()[how], buffer=30, seed=1)

    a, b = new(), new()
    batches = [x[0].tolist() for _ in range(2) for x in a]
    a = new()
    list(a)
    it = iter(a)
    for _ in range(5): next(it)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    b.skip(5)
    assert [x[0].tolist() for x in b] == batches[len(a)+5:]

def test_lines_that_have_changed_are_refused(tmp_path):
    "Where the block that is read again is another one, nothing goes on as if it were not"
    (tmp_path/'a.txt').write_text('\n'.join(f'line {i} .' for i in range(300)))

    def new():
        return load(tmp_path/'a.txt', n_valid=50, buffer=30, seed=1).train

    a = new()
    it = iter(a)
    for _ in range(9): next(it)
    place = a.state_dict()
    b = new()
    b.load_state_dict(place)
    assert len(next(iter(b))[0]) == 8
    (tmp_path/'a.txt').write_text('\n'.join(f'line {i + (i > 80)} .' for i in range(300)))
    c = new()
    c.load_state_dict(place)
    with pytest.raises(CorpusError, match='not those'): next(iter(c))

    def unseeded():
        return blocks(rows(300).to_iterable_dataset().shuffle(), buffer=30, seed=1)

    d, e = unseeded(), unseeded()
    next(iter(d))
    e.load_state_dict(d.state_dict())
    with pytest.raises(CorpusError, match='not those.*seed'): next(iter(e))

def test_one_line_is_all_the_text(tmp_path):
    "It validates, and nothing is left: the message says so"
    (tmp_path/'a.txt').write_text(' '.join(f'w{i % 50}' for i in range(24_000)))
    for kind in ('sentences', 'stream'):
        with pytest.raises(CorpusError, match=r'n_valid=5 leaves nothing to train on .*: 1\)'):
            load(tmp_path/'a.txt', n_valid=5, kind=kind)
    (tmp_path/'a.txt').write_text('a b c\n'*5 + ' '.join(f'w{i % 50}' for i in range(24_000)))
    for kind in ('sentences', 'stream'):
        assert len(load(tmp_path/'a.txt', n_valid=5, kind=kind).train)


def test_rows_that_are_lists():
    "Lists of tokens stay as they are"
    sents = [['New York', 'b', 'c']]*60
    lists = datasets.Dataset.from_dict(dict(tokens=sents))
    for source in (lists.to_iterable_dataset(), lists, sents):
        dls = load(source, n_valid=5, tokenizer=None)
        assert dls.vocab.itos[4:] == ['New York', 'b', 'c'] and dls.corpus.valid == sents[:5]

def test_all_forms_give_the_same_batches(folder, tmp_path):
    "Text, JSON lines, Parquet, a data set and a list"
    lines = lines_of(0)
    (tmp_path/'a.txt').write_text('\n'.join(lines) + '\n')
    (tmp_path/'a.jsonl').write_text(''.join(json.dumps(dict(id=1, text=line)) + '\n' for line in lines))
    pd.DataFrame(dict(id=1, text=lines)).to_parquet(tmp_path/'a.parquet')
    data = datasets.Dataset.from_dict(dict(text=lines))
    data.save_to_disk(tmp_path/'saved')
    def batches(source): return [x.tolist() for x,*_ in load(source, n_valid=5, buffer=10).train]
    first = batches(tmp_path/'a.txt')
    for source in (tmp_path/'a.jsonl', tmp_path/'a.parquet', tmp_path/'saved', data.to_iterable_dataset(), lines):
        assert batches(source) == first

# faults

def test_faults(tmp_path, folder):
    with pytest.raises(CorpusError, match='no file'): Reader([tmp_path/'none.txt'])
    with pytest.raises(CorpusError, match='as a stream: take .txt, .jsonl, .parquet'): Reader([tmp_path/'a.csv'])
    with pytest.raises(CorpusError, match='DataFrame can.t be read as a stream'): load(pd.DataFrame(dict(text=['a'])))
    (tmp_path/'test.txt').write_text('a\n')
    with pytest.raises(CorpusError, match='never validates'): load(folder, tmp_path/'test.txt')
    (tmp_path/'empty.txt').write_text('')
    with pytest.raises((CorpusError, ValueError)):
        load(tmp_path/'empty.txt')
    (tmp_path/'latin.txt').write_bytes('caf\xe9 au lait\n'.encode('latin-1')*50)
    with pytest.raises(CorpusError, match='latin.txt is not UTF-8: its byte 3'):
        load(tmp_path/'latin.txt', n_valid=5)
    (tmp_path/'bad.jsonl').write_text('{"text": "a b"}\nnot json\n')
    with pytest.raises(CorpusError): load(tmp_path/'bad.jsonl', n_valid=1)
    # nothing left to train on
    with pytest.raises(CorpusError): load(folder/'1.txt', n_valid=40)
    with pytest.raises(TypeError, match='seqlen'):
        load(folder, n_valid=5, seqlen=5)


@pytest.mark.parametrize('how', ['no parquet', 'cut off', 'empty'])
def test_a_broken_parquet_file(tmp_path, how):
    import pandas as pd

    for name in 'ab':
        pd.DataFrame(dict(text=[f'row {i} .' for i in range(5000)])).to_parquet(
            tmp_path/f'{name}.parquet')
    whole = (tmp_path/'b.parquet').read_bytes()
    (tmp_path/'b.parquet').write_bytes(
        {'no parquet': b'text '*2000, 'cut off': whole[:len(whole) // 2], 'empty': b''}[how])
    for source in (tmp_path/'b.parquet', tmp_path):
        with pytest.raises(CorpusError, match="can't be read"):
            load(source, n_valid=5)

# memory

PROGRAM = '''
import os, resource, sys, torch
from elmo_fastai.all import *
from elmo_fastai.nn.bilm import *
from elmo_fastai.train.learner import *
from elmo_fastai.data.streams import *
import datasets
torch.set_num_threads(1)
folder = sys.argv[1]
config = BiLMConfig('nano', char_dim=4, filters=((1,4),(2,4)), proj_dim=8, hidden_dim=8)
def train(dls):
    learn = bilm_learner(dls, config, bf16=False)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    return len(learn.recorder.losses)
def stream(path, n):
    return stream_loaders(path, n_batches=n, tokenizer='space', device='cpu', buffer=2000,
                          max_vocab=2000, n_valid=100, bs=16)
with open(folder + '/0.txt') as f:
    open(folder + '/first', 'w').writelines(l for l,_ in zip(f, range(3000)))
os.rename(folder + '/first', sys.argv[3])
train(stream(sys.argv[3], 20))     # whatever libraries load and keep when they are first used
now = int(next(l for l in open('/proc/self/status') if l.startswith('VmData')).split()[1])*1024
resource.setrlimit(resource.RLIMIT_DATA, (now + 200*2**20,)*2)
try:
    if sys.argv[2] == 'whole':
        dls = ElmoDataLoaders.from_files(folder, tokenizer='space', bs=16, device='cpu')
    else: dls = stream(folder, 30)
    print('trained', train(dls), len(dls.vocab))
except MemoryError: print('MemoryError')
'''


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != 'linux', reason='the limit on the memory of data is a matter of Linux'
)
def test_a_text_larger_than_the_memory(tmp_path):
    """A text whose tokens do not fit is trained on as a stream; read as a whole, it fails under the
    same limit"""
    rng = np.random.default_rng(0)
    words = np.array([f'w{i}' for i in range(60_000)])
    for i in range(4):
        ranks = np.exp(rng.random((37_500, 20))*np.log(len(words))).astype(int) - 1
        (tmp_path/f'{i}.txt').write_text('\n'.join(map(' '.join, words[ranks])) + '\n')

    def run(how):
        env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
        r = subprocess.run([sys.executable, '-c', PROGRAM, str(tmp_path), how,
                            str(tmp_path/'..'/f'{how}-small.txt')], capture_output=True,
                           text=True, env=env, timeout=600)
        assert r.stdout, r.stderr[-2000:]
        return r.stdout.split()
    assert run('whole') == ['MemoryError']
    assert run('stream') == ['trained', '30', '2000']

def test_frequencies_of_a_text_that_is_not_in_memory(folder):
    "Counted in the sample; the stream is where it was, and the model begins there"
    dls = load(folder, n_valid=20)
    assert not len(dls.train.text)
    log_p, lines = dls.log_frequencies(), [*dls.corpus.train]
    words = [w for l in lines for w in ['<s>', *l.split(), '</s>']]
    n, V = len(words), len(dls.vocab)
    for w in ('<s>', '</s>', 'file', 'w3', '.'):
        assert log_p[dls.vocab.itos.index(w)].item() == pytest.approx(
            np.log((words.count(w) + 1)/(n + V)), rel=1e-4)
    learn = bilm_learner(dls, NANO, from_counts=True)
    assert learn.model.head.log_prob(learn.model.head.weight.new_zeros(1, 16))[0].allclose(
        log_p, atol=1e-5)
    other = load(folder, n_valid=20)
    assert dls.train.one_batch()[0].equal(other.train.one_batch()[0])
