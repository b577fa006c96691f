"""Text that need not fit into memory: what is read, held out and refused, and how a training goes on
that was killed"""
import io, json, multiprocessing, os, pickle, re, signal, subprocess, sys, threading, warnings
from collections import Counter
from itertools import islice
from pathlib import Path

import datasets, numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, set_seed
from hypothesis import given, strategies as st

from elmo_fastai.errors import CorpusError
from elmo_fastai.batches import EncodedText, LOADERS, TokenTypes
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.practice import streams
from elmo_fastai.practice.streams import BufferedDataLoader, rows_of, stream_loaders
from elmo_fastai.tokens import WordVocab
from elmo_fastai.practice.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.learner import bilm_learner
from loading import (
    ALL_LINES, MIXED, common, corpora, found, lines_of, mixed, reference, rows, same, seen)

ROOT = Path(__file__).resolve().parents[1]
NANO = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), proj_dim=16, hidden_dim=16)
SIZES = dict(sentences={}, stream=dict(seq_len=3))

def load(source, *valid, **how):
    return stream_loaders(source, *valid, **dict(tokenizer='space', bs=8, device='cpu') | how)

def from_rows(rows):
    "A stream of texts or lists of tokens"
    return datasets.IterableDataset.from_generator(
        lambda rows: (dict(text=row) for row in rows), gen_kwargs=dict(rows=tuple(rows))), 0

def blocks(rows, vocab=None, **how):
    dl = BufferedDataLoader(rows, vocab or WordVocab.build([['a']]), 0, **dict(tokenizer='space') | how)
    dl.count(vocab)
    return dl

def batches(dl, n=None): return [[x.tolist() for x in batch] for batch in islice(iter(dl), n)]

# what is in the batches

@given(corpora, st.sampled_from(list(SIZES)), st.integers(1, 4), st.booleans(),
       st.sampled_from([None, 2]), st.sampled_from([(0, 1), (1, 2)]))
@common
def test_an_epoch_is_one_reading(sents, kind, buffer, shuffle, max_words, part):
    "Of each block the batches are those of the plain loader; a cut sentence ends nowhere"
    number, n = part
    vocab = WordVocab.build(sents)
    kept = [[s for s in sents[i:i+buffer][number::n] if s] for i in range(0, len(sents), buffer)]
    texts = [EncodedText(some, TokenTypes(vocab), max_words) for some in kept if some]
    def make(): return blocks(from_rows(sents), vocab, buffer=buffer, kind=kind, shuffle=shuffle,
                              seed=3, bs=2, max_words=max_words, part=part, **SIZES[kind])
    if not texts or kind == 'stream' and sum(len(text.ids) for text in texts) < 3:
        with pytest.raises(CorpusError, match='not one word|fewer than'): make()
        return
    dl = make()
    first, second = list(dl), list(dl)
    assert len(first) == len(dl) == len(second) and dl.n_tokens == sum(len(text.ids) for text in texts)
    assert dl.cuts == tuple(map(sum, zip(*(text.cuts for text in texts))))
    def bag(batches): return Counter(found(batches))
    if kind == 'sentences':
        wanted = Counter(x for some in kept if some for x in reference(
            some, EncodedText(some, TokenTypes(vocab)), max_words))
        assert bag(first) == bag(second) == wanted
    if not shuffle:
        sizes = dict(bs=2, **SIZES[kind])
        plain = [LOADERS[kind](text, **(streams.fit_stream(len(text.ids), **sizes) if kind == 'stream'
                                        else sizes)) for text in texts]
        assert same(first, [b for loader in plain for b in loader])

def test_the_same_seed_is_the_same_order_and_epochs_differ(folder):
    first, again, other = (load(folder, n_valid=9, buffer=30, seed=seed).train for seed in (1, 1, 2))
    epochs = [batches(first) for _ in range(3)]
    assert epochs == [batches(again) for _ in range(3)] and batches(other) != epochs[0]
    assert epochs[0] != epochs[1] != epochs[2] and seen(first) == seen(again)
    half = load(folder, n_valid=9, buffer=30, seed=1, n_batches=len(first)//2).train
    assert (batches(half) + batches(half))[:len(first)] == epochs[0][:len(first)//2*2]
    files = [{row['text'].split()[1] for row in islice(rows_of([(folder/f'{i}.txt', 0) for i in range(4)],
             None, seed), 40)} for seed in range(9)]
    assert all(len(some) == 1 for some in files) and len(set().union(*files)) > 1

def as_hub(folder):
    "A data set as the hub has it, in Parquet, of three files"
    (folder/'hub'/'set').mkdir(parents=True)
    for i in range(3):
        part = pd.DataFrame(dict(id=i, text=ALL_LINES[i*54:(i + 1)*54]))
        part.to_parquet(folder/'hub'/'set'/f'train-0000{i}-of-00003.parquet')
    return f"hub:{folder/'hub'/'set'}"

def written(folder, ending):
    path = folder/f'a.{ending}'
    df = pd.DataFrame(dict(id=1, text=ALL_LINES))
    if ending == 'parquet': df.to_parquet(path, row_group_size=50)
    elif ending == 'jsonl': df.to_json(path, orient='records', lines=True)
    else: path.write_text('\ufeff' + '\r\n'.join(ALL_LINES))
    return path

def saved(folder):
    datasets.Dataset.from_dict(dict(text=ALL_LINES)).save_to_disk(folder/'saved')
    return folder/'saved'

SOURCES = dict(
    text=lambda d: written(d, 'txt'), jsonl=lambda d: written(d, 'jsonl'), parquet=lambda d: written(d, 'parquet'),
    hub=as_hub, saved=saved, table=lambda d: datasets.Dataset.from_dict(dict(text=ALL_LINES)),
    stream=lambda d: datasets.Dataset.from_dict(dict(text=ALL_LINES)).to_iterable_dataset(num_shards=3),
    tokens=lambda d: datasets.Dataset.from_dict(dict(tokens=[line.split() for line in ALL_LINES])))
FILES = 'text', 'jsonl', 'parquet', 'hub'

@pytest.mark.parametrize('what', SOURCES)
def test_all_forms_give_the_same_batches(what, tmp_path):
    dls = load(SOURCES[what](tmp_path), n_valid=25, buffer=30, tokenizer=None if what == 'tokens' else 'space')
    (tmp_path/'one').mkdir()
    plain = load(written(tmp_path/'one', 'txt'), n_valid=25, buffer=30)
    assert [batches(dls.train) for _ in range(2)] == [batches(plain.train) for _ in range(2)]
    assert batches(dls.valid) == batches(plain.valid) and dls.vocab.itos == plain.vocab.itos
    assert (dls.train.n_tokens, dls.cuts, dict(dls.skipped)) == (plain.train.n_tokens, plain.cuts, {})
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
    for n in (2, 3):
        parts = [[text for _,texts in dls.train.new(part=(i, n)).blocks(streams.START) for text in texts]
                 for i in range(n)]
        assert sorted(sum(parts, [])) == rest and all(parts)

def test_what_validates_is_said(folder, tmp_path):
    (tmp_path/'v.txt').write_text('a b c\nfile 1 .\n')
    assert load(folder, tmp_path/'v.txt').corpus.valid == ['a b c', 'file 1 .']
    (tmp_path/'all').mkdir()
    for name in ('train', 'validation', 'test'): (tmp_path/'all'/f'{name}.txt').write_text(f'{name} 1\n\n{name} 2\n')
    dls = load(tmp_path/'all', bs=2)
    assert dls.corpus.valid == ['validation 1', 'validation 2'] and seen(dls.train) == ['train 1', 'train 2']
    data = datasets.DatasetDict(train=rows(9), test=rows(9, 20))
    assert load(data, n_valid=3).corpus.valid == ['line 0 .', 'line 1 .', 'line 2 .']

@pytest.mark.parametrize('by_hand', [False, True])
@pytest.mark.parametrize('how', MIXED)
def test_a_stream_never_trains_on_what_validates(how, by_hand):
    "In no epoch, however it is shuffled, also if it was divided before"
    stream = mixed()[how]
    some = (stream.skip(50), stream.take(50)) if by_hand else (stream,)
    dls = load(*some, bs=4, n_valid=50, buffer=30)
    held = {' '.join(line.split()) for line in dls.corpus.valid}
    assert len(held) == 50
    for _ in range(3):
        epoch = seen(dls.train)
        assert not held & {*epoch} and len(epoch) >= 100

# what goes on

def weights_only(place):
    "As a checkpoint keeps it"
    torch.save(place, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=True)

@pytest.mark.parametrize('part', [(0, 1), (1, 2)])
@pytest.mark.parametrize('what', [*SOURCES, 'folder', *MIXED])
def test_a_place_is_found_again(what, part, folder, tmp_path_factory):
    "Before, within and after a block, and from a place in a reading that began at a place"
    source = {**mixed(), 'folder': folder}.get(what) or SOURCES[what](tmp_path_factory.mktemp('source'))
    how = dict(bs=4, n_valid=9, buffer=20, tokenizer=None if what == 'tokens' else 'space', n_batches=60)
    dls = load(source, **how)
    def new(): return dls.train.new(part=part)
    whole = batches(new())
    first = new()
    it = iter(first)
    for k in range(5, 54, 5):
        for _ in range(5): next(it)
        second, third = new(), new()
        second.load_state_dict(weights_only(first.state_dict()))
        assert batches(second, 3) == whole[k:k + 3]
        third.load_state_dict(weights_only(second.state_dict()))
        assert batches(third, 3) == whole[k + 3:k + 6]

def test_rows_in_a_buffer_are_in_no_state():
    "Who says that a stream is exact, and it isn't, is told so"
    def make(): return load(rows(300).to_iterable_dataset().shuffle(seed=1, buffer_size=50), n_valid=9, buffer=30,
                            is_exact=True).train
    dl, other = make(), make()
    for _ in islice(iter(dl), 9): pass
    other.load_state_dict(dl.state_dict())
    with pytest.raises(CorpusError, match='not those'): batches(other, 1)

def test_lines_that_have_changed_are_refused(tmp_path):
    def write(changed): (tmp_path/'a.txt').write_text(''.join(f'line {i + (i > 80)*changed} .\n' for i in range(300)))
    def make(): return load(tmp_path/'a.txt', n_valid=50, buffer=30, seed=1).train
    write(False)
    dl = make()
    for _ in islice(iter(dl), 9): pass
    place = dl.state_dict()
    write(True)
    other = make()
    other.load_state_dict(place)
    with pytest.raises(CorpusError, match='not those.*a file has changed'): batches(other, 1)
    one, two = (load(rows(99, 300).to_iterable_dataset().shuffle(), rows(9), buffer=30).train for _ in range(2))
    batches(one, 1)
    two.load_state_dict(one.state_dict())
    with pytest.raises(CorpusError, match='not those.*without a seed'): batches(two, 1)

def test_an_error_in_reading_does_not_end_the_loader(monkeypatch, tmp_path):
    dl = load(written(tmp_path, 'txt'), n_valid=9, buffer=30, seed=1).train
    whole = batches(dl.new())
    assert batches(dl, 5) == whole[:5]
    def down(*args): raise ConnectionError('down')
    with monkeypatch.context() as m:
        m.setattr(streams, 'open_rows', down)
        with pytest.raises(CorpusError, match="can't be read on: ConnectionError: down"): batches(dl)
    assert batches(dl, len(whole) - 5) == whole[5:]

@pytest.mark.parametrize('ending', ['jsonl', 'parquet'])
def test_a_column_of_flags_decides_nothing_in_a_stream(ending, tmp_path):
    df = pd.DataFrame(dict(text=['a b c']*20, is_valid=[0, 1]*10))
    if ending == 'jsonl': df.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    else: df.to_parquet(tmp_path/'a.parquet')
    with pytest.raises(CorpusError, match='is_valid does not decide in a stream'):
        load(tmp_path/f'a.{ending}', n_valid=5)

def test_a_shuffled_stream_in_a_later_epoch_holds_out_what_it_shows():
    stream = rows(400).to_iterable_dataset(num_shards=4).shuffle(seed=1)
    stream.set_epoch(3)
    dls = load(stream, n_valid=20, buffer=50)
    read = {text for _,texts in dls.train.blocks(streams.START) for text in texts}
    assert len(read) == 380 and read.isdisjoint(dls.corpus.valid)

def test_a_stream_is_copied_in_another_thread():
    "It refers to a cache of file systems, which has one for each thread"
    from huggingface_hub import HfFileSystem
    kept = HfFileSystem()
    stream, read = rows(2).to_iterable_dataset(), []
    thread = threading.Thread(target=lambda: read.extend(row['text'] for row in rows_of((stream, 0))))
    thread.start()
    thread.join()
    assert read == ['line 0 .', 'line 1 .'] and kept

# a training that is killed

class Kill(Callback):
    order = 95               # after the checkpoint is written
    def after_batch(self):
        if self.training and self.epoch*self.n_iter + self.iter == 12: os.kill(os.getpid(), signal.SIGKILL)

def train(source, run, out, kind='sentences', kill=False):
    "Begin or go on; in the end write the weights"
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    set_seed(1 + bool(checkpoints_in(run)))
    dls = load(source, n_valid=25, buffer=30, kind=kind, n_batches=8, **dict(seq_len=5) if kind == 'stream' else {})
    learn = bilm_learner(dls, NANO, bf16=False, cbs=[Checkpoints(run, minutes=0)])
    if checkpoints_in(run): resume(learn, run)
    with learn.no_bar(), learn.no_logging(), learn.added_cbs([Kill()]*kill): learn.fit_one_cycle(3, 1e-2)
    torch.save([*learn.model.state_dict().values(), learn.recorder.losses], out)

def in_process(*args):
    process = multiprocessing.get_context('fork').Process(target=train, args=args)
    process.start()
    process.join()
    return process.exitcode

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
@pytest.mark.parametrize('what', [*FILES, 'shuffled_twice'])
def test_a_killed_training_ends_with_the_same_weights(what, kind, tmp_path):
    source = mixed()[what] if what in MIXED else SOURCES[what](tmp_path)
    assert in_process(source, tmp_path/'run', tmp_path/'whole', kind) == 0
    assert in_process(source, tmp_path/'run2', tmp_path/'killed', kind, True) == -signal.SIGKILL
    assert in_process(source, tmp_path/'run2', tmp_path/'killed', kind) == 0
    whole, killed = (torch.load(tmp_path/name, weights_only=False) for name in ('whole', 'killed'))
    assert whole[-1] == killed[-1] and all(map(torch.equal, whole[:-1], killed[:-1]))

@pytest.mark.slow
def test_two_killed_processes_end_with_the_same_weights(tmp_path):
    sources = [str(SOURCES[what](tmp_path)) for what in FILES]
    def launch(out, step, *sources):
        cmd = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2',
               ROOT/'tests'/'two_processes.py', tmp_path/out, str(step), *sources]
        env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
        return subprocess.run(cmd, env=env, capture_output=True, text=True, timeout=600)
    for step,source in enumerate(sources):
        r = launch(f'killed{step}', step + 2, source)
        assert r.returncode and checkpoints_in(tmp_path/f'killed{step}-0.run') and 'Signal 9' in r.stderr, r.stderr[-2000:]
        r = launch(f'killed{step}', -1, source)
        assert not r.returncode, r.stderr[-2000:]
    r = launch('whole', -1, *sources)
    assert not r.returncode, r.stderr[-2000:]
    for i in range(len(sources)):
        whole, killed = (torch.load(tmp_path/name, weights_only=False) for name in (f'whole-{i}', f'killed{i}-0'))
        assert whole[-1] == killed[-1] and all(map(torch.equal, whole[:-1], killed[:-1]))

# what is refused

def of(name, text):
    def make(folder):
        (folder/name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder/name
    return make

def two(folder): return [of('a.txt', 'a b\n'*9)(folder), of('b.jsonl', '{"text": "a"}\n'*9)(folder)]
def drawn():
    for i in np.random.permutation(200): yield dict(text=f'line {i} .')

REFUSED = {         # what → (its source, arguments, words of the line)
    'no file': (lambda d: d/'none.txt', {}, 'no file'), 'another ending': (of('a.csv', 'text\na\n'), {}, 'take .txt, .jsonl, .parquet'),
    'two endings': (two, {}, 'files of one ending'), 'a list': (lambda d: ['a b']*9, {}, 'ElmoDataLoaders.from_corpus'),
    'a table': (lambda d: pd.DataFrame(dict(text=['a'])), {}, "DataFrame can't be read as a stream"),
    'an iterator': (lambda d: iter(['a']), {}, "can't be read as a stream"), 'nothing': (of('a.txt', ''), {}, 'leaves nothing'),
    'Latin-1': (of('a.txt', b'caf\xe9\n'*50), {}, 'a.txt is not UTF-8: its byte 3'), 'UTF-16': (of('a.txt', 'a\n'.encode('utf-16-le')*9), {}, 'NUL'),
    'blanks': (of('a.txt', 'a\n'*5 + ' \n'*9), {}, 'not one word'), 'no JSON': (of('a.jsonl', '{"text": "a"}\n'*99 + 'b\n'), {}, 'a.jsonl, line 100'),
    'no column': (of('a.jsonl', '{"body": "a"}\n'*9), {}, "the columns are 'body': say text_col"),
    'a wrong column': (of('a.txt', 'a\n'*9), dict(text_col='body'), "no column 'body'; the columns are 'text'"),
    'two columns': (of('a.jsonl', '{"text": "a", "review": "b"}\n'*9), {}, "'text' and 'review' are columns"),
    'numbers': (of('a.jsonl', '{"text": 3}\n'*9), {}, '3 is no text'), 'no Parquet': (of('a.parquet', 'text '*99), {}, "a.parquet can't be read"),
    'too little': (of('a.txt', 'a b\n'*5), {}, 'n_valid=5 leaves nothing to train on (rows in all: 5)'),
    'a short text': (of('a.txt', 'a b\n'*9), dict(kind='stream', seq_len=500), 'fewer than seq_len=500'),
    'a test set': (of('a.txt', 'a b\n'*9), dict(valid=of('test.txt', 'a\n')), 'what is called test never validates'),
    'training text': (of('a.txt', 'a b\n'*9), dict(valid=of('a.txt', 'a b\n'*9)), 'both trained on and held out'),
    'another kind': (of('a.txt', 'a b\n'*9), dict(kind='lm'), "kind='lm'"), 'an unknown word': (of('a.txt', 'a b\n'*9), dict(seqlen=5), "'seqlen'"),
    'no order': (lambda d: datasets.IterableDataset.from_generator(drawn), {}, 'other rows each time it is read: shuffle it with a seed')}

@pytest.mark.parametrize('what', REFUSED)
def test_refused(what, tmp_path):
    make, how, words = REFUSED[what]
    how = {name: value(tmp_path) if callable(value) else value for name,value in how.items()}
    with pytest.raises((ValueError, TypeError)) as e: load(make(tmp_path), **dict(n_valid=5) | how)
    assert words in str(e.value) and '\n' not in str(e.value), str(e.value)

@pytest.mark.parametrize('how', ['string', 'relative', 'dots', 'link'])
def test_a_file_by_another_name_is_not_held_out(tmp_path, how):
    file = of('1.txt', 'a b\n'*9)(tmp_path)
    (tmp_path/'9.txt').symlink_to(file)
    valid = dict(string=str(file), relative=os.path.relpath(file), dots=tmp_path/'..'/tmp_path.name/'1.txt', link=tmp_path/'9.txt')[how]
    with pytest.raises(CorpusError, match='1.txt is both trained on and held out'): load([file], valid)

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
    learn = bilm_learner(dls, NANO, from_counts=True)
    assert learn.model.head.log_prob(learn.model.head.weight.new_zeros(1, 16))[0].allclose(log_p, atol=1e-5)
    assert dls.train.one_batch()[0].equal(load(folder, n_valid=20, max_words=3).train.one_batch()[0])

def test_memory_does_not_grow():
    "Ten times the text, the same peak: only a block is held"
    import tracemalloc
    def lines(n):
        for i in range(n): yield dict(text=f'a b c{i} d e f')
    def peak(n):
        stream = datasets.IterableDataset.from_generator(lines, gen_kwargs=dict(n=n))
        dl = BufferedDataLoader((stream, 0), WordVocab.build([['a', 'b']]), n//50, buffer=500, bs=50, tokenizer='space')
        tracemalloc.start()
        for _ in dl: pass
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most
    peak(1000)
    assert peak(20_000) < 1.2*peak(2_000)

PROGRAM = '''
import os, resource, sys, torch
from elmo_fastai.all import *
from elmo_fastai.bilm import *
from elmo_fastai.learner import *
from elmo_fastai.practice.streams import *
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
