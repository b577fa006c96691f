"""What comes from someone else: only files that end are read, their sizes are looked at first, and no
model asks for more memory than its files explain"""
import json, os, shutil, signal, socket, subprocess, sys
from pathlib import Path
import numpy as np, pytest, torch
from safetensors.torch import load_file, save_file
from elmo_fastai.base.errors import CheckpointError, CommandError, CorpusError, Interrupted, ModelFileError
from elmo_fastai.base.files import load_plain, regular_file, save_plain
from elmo_fastai.elmo.ai2 import ai2_vocab, load_ai2
from elmo_fastai.elmo.folder import load_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.tasks.cbow import WordVectors
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.text.tokens import ByteCharVocab, WordVocab
from elmo_fastai.train.checkpoint import FILE, find_checkpoint, read_checkpoint
from elmo_fastai.train.command import pretrain

ROOT = Path(__file__).resolve().parents[1]

CHANGES = dict(name='nano', char_dim=4, filters=[[1,8], [2,8]], proj_dim=16, hidden_dim=16)

NANO = BiLMConfig.from_dict(CHANGES)

posix = pytest.mark.skipif(os.name != 'posix', reason='pipes and devices of Unix')

@pytest.fixture(autouse=True)
def in_time():
    "A door that waits for ever fails"
    if not hasattr(signal, 'SIGALRM'): yield; return
    def late(*args): raise TimeoutError('the door waits')
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)

@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    "Folders with models and checkpoints, and files with words and vectors"
    d = tmp_path_factory.mktemp('saved')
    torch.manual_seed(0)
    vocab = WordVocab.build([['the', 'bank', 'of', 'river']])
    lm = BiLM(NANO, len(vocab), ByteCharVocab()).eval()
    Elmo(lm, vocab).save_pretrained(d/'elmo')
    Elmo(lm, vocab).to_ai2(d/'ai2')
    WordVectors(['a', 'b'], np.eye(2)).save(d/'vectors.safetensors')
    WordVectors(['a', 'b'], np.eye(2)).save(d/'vectors.txt')
    return d

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "A training of the command that was interrupted"
    d = tmp_path_factory.mktemp('run')
    text = d/'text.txt'
    text.write_text('\n'.join(toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).train) +
        '\n')
    with pytest.MonkeyPatch.context() as mp:
        from elmo_fastai.train import script as module
        from steps import At
        old = module.bilm_learner
        def stop(cb): signal.raise_signal(signal.SIGINT)

        mp.setattr(module, 'bilm_learner', lambda *args, cbs=None, **kw: old(*args, cbs=[*cbs, At(3,
            stop, 'before_batch')], **kw))
        with pytest.raises(Interrupted):
            pretrain(str(text), d/'m', model='tiny', config=CHANGES, device='cpu', say=str, bs=4,
                seq_len=8, epochs=2)
    return d

def place(kind, path):
    "Put something that is no file at `path`"
    path.unlink(missing_ok=True)
    if kind == 'device': path.symlink_to('/dev/zero')
    elif kind == 'pipe': os.mkfifo(path)
    elif kind == 'folder': path.mkdir()
    else:
        s, here = socket.socket(socket.AF_UNIX), os.getcwd()
        # a socket's name must be short
        os.chdir(path.parent)
        try: s.bind(path.name)
        finally: os.chdir(here)
        s.close()

KINDS = {'device': 'device', 'pipe': 'pipe', 'socket': 'socket', 'folder': '[Dd]irectory'}

each_kind = pytest.mark.parametrize('kind', KINDS)

@posix
@each_kind
def test_only_files_that_end_are_files(kind, tmp_path):
    place(kind, tmp_path/'f')
    with pytest.raises(OSError, match=KINDS[kind]): regular_file(tmp_path/'f')

def test_sizes_are_looked_at_first(tmp_path):
    with pytest.raises(FileNotFoundError): regular_file(tmp_path/'none')
    with open(tmp_path/'f', 'wb') as f: f.truncate(10**9)
    assert regular_file(tmp_path/'f') == tmp_path/'f' == regular_file(str(tmp_path/'f'), most=10**9)
    with pytest.raises(OSError, match='1,000,000,000 bytes, too many: at most 999,999,999'):
        regular_file(tmp_path/'f', most=10**9 - 1)
    (tmp_path/'link').symlink_to(tmp_path/'f')
    assert regular_file(tmp_path/'link')

MODEL = ['config.json', 'model.safetensors', 'vocab.json', 'chars.json', 'elmo.json',
    'mix.safetensors']

@posix
@each_kind
@pytest.mark.parametrize('name', MODEL)
def test_files_of_a_model(name, kind, saved, tmp_path):
    shutil.copytree(saved/'elmo', tmp_path/'m')
    place(kind, tmp_path/'m'/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'):
        Elmo.from_pretrained(tmp_path/'m')

@pytest.mark.parametrize('name', ['config.json', 'vocab.json', 'chars.json', 'elmo.json',
    'mix.safetensors'])
def test_small_files_of_a_model_are_small(name, saved, tmp_path):
    "Files without an end on paper: a terabyte of zeros, which takes no room on the disk"
    shutil.copytree(saved/'elmo', tmp_path/'m')
    with open(tmp_path/'m'/name, 'wb') as f:
        f.truncate(10**12)
    with pytest.raises(ModelFileError, match=f'{name}.*1,000,000,000,000 bytes'):
        Elmo.from_pretrained(tmp_path/'m')

def test_weights_that_the_model_does_not_have_are_refused(saved, tmp_path):
    "A tensor of another shape, or one too many"
    shutil.copytree(saved/'elmo', tmp_path/'m')
    weights = load_file(saved/'elmo'/'model.safetensors')
    file = tmp_path/'m'/'model.safetensors'
    for more in ({'extra': torch.zeros(10)}, {'lstm.fwd.0.weight_ih_l0': torch.zeros(64, 17)}):
        save_file(weights | more, file)
        with pytest.raises(ModelFileError, match=f"{[*more][0]}|unknown tensor"):
            load_bilm(tmp_path/'m')

@posix
@each_kind
@pytest.mark.parametrize('name', ['options.json', 'weights.hdf5', 'vocab.txt'])
def test_files_of_ai2(name, kind, saved, tmp_path):
    shutil.copytree(saved/'ai2', tmp_path/'m')
    place(kind, tmp_path/'m'/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'): load_ai2(tmp_path/'m')
    if name == 'vocab.txt':
        with pytest.raises(ModelFileError, match=KINDS[kind]): ai2_vocab(tmp_path/'m'/name)

@posix
@each_kind
@pytest.mark.parametrize('name', ['vectors.safetensors', 'vectors.txt'])
def test_files_of_word_vectors(name, kind, saved, tmp_path):
    assert len(WordVectors.load(saved/name)) == 2
    place(kind, tmp_path/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'):
        WordVectors.load(tmp_path/name)

@posix
@each_kind
def test_files_of_a_checkpoint(kind, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    for o in (tmp_path/'m.run').glob('0*-*'): place(kind, o/FILE)
    for f in (lambda: read_checkpoint(o), lambda: find_checkpoint(tmp_path/'m.run'), lambda:
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)):
        with pytest.raises(CheckpointError, match=FILE):
            f()

LIMITED = '''
import resource, sys
from elmo_fastai.all import *
import fastai.callback.all, datasets
now = int(next(l for l in open('/proc/self/status') if l.startswith('VmData')).split()[1])*1024
resource.setrlimit(resource.RLIMIT_DATA, (now + {mb}*2**20,)*2)
from elmo_fastai.train.command import elmo_pretrain
sys.argv = ['elmo_pretrain', sys.argv[1], '--out', sys.argv[2], '--device', 'cpu',
            '--model', 'tiny']
elmo_pretrain()
'''

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux',
    reason='the limit on the memory of data is a matter of Linux')
@pytest.mark.parametrize('mb', [30, 100])
def test_a_text_for_which_the_memory_is_not_enough(tmp_path, mb):
    "Wherever it ends: one sentence"
    signal.alarm(0)
    words = ' '.join(f'w{i}' for i in range(20))
    (tmp_path/'a.txt').write_text(f'{words}\n'*350_000)
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
    (tmp_path/'run.py').write_text(LIMITED.format(mb=mb))
    p = subprocess.run([sys.executable, tmp_path/'run.py', tmp_path/'a.txt', tmp_path/'m'],
        capture_output=True, text=True, env=env, timeout=500)
    assert p.returncode == 1 and 'Traceback' not in p.stderr, p.stderr[-3000:]
    assert 'memory' in p.stderr and '--stream' in p.stderr and not (tmp_path/'m').exists()

def edit(run, **changes):
    "Other settings in the plans of all checkpoints"
    for o in run.glob('0*-*'):
        fields = load_plain(o/FILE)
        for k,v in changes.items():
            where = fields['run']
            *path, last = k.split('__')
            for p in path: where = where[p]
            where[last] = v
        save_plain(fields, o/FILE)

@pytest.mark.parametrize('change', [dict(model__hidden_dim=10**6), dict(model__proj_dim=10**6,
    model__hidden_dim=10**6), dict(model__n_layers=99), dict(model__char_dim=10**6),
    dict(model__filters=[[1, 10**6]]), dict(model__filters=[[1, 8]]*10**4),
    dict(model__n_highway=99), dict(model__n_chars=2**15), dict(text__words=10**9),
    dict(text__words='x'), dict(model__max_chars=2**15 - 1)], ids=str)
def test_a_plan_asks_for_no_more_than_its_weights(change, run, tmp_path):
    "Refused by comparing shapes, before text is read and a model is made"
    import resource

    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    edit(tmp_path/'m.run', **change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CommandError, match='checkpoint, but|other'):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    assert find_checkpoint(tmp_path/'m.run') and not (tmp_path/'m').exists()

@pytest.mark.parametrize('change', [dict(hidden_dim=10**6), dict(filters=[[1, 8]]*10**4),
    dict(n_layers=99), dict(n_chars=2**15), dict(max_chars=2**15 - 1)], ids=str)
def test_a_configuration_asks_for_no_more_than_its_weights(change, saved, tmp_path):
    import resource

    shutil.copytree(saved/'elmo', tmp_path/'m')
    head = json.loads((tmp_path/'m'/'config.json').read_text())
    head['config'] |= change
    (tmp_path/'m'/'config.json').write_text(json.dumps(head))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError):
        load_bilm(tmp_path/'m')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000

@pytest.mark.parametrize('out', ['', '.', '/', '..', 'a/..', 7, None])
def test_a_plan_with_a_folder_that_can_not_be(out, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    edit(tmp_path/'m.run', settings__out=out)
    with pytest.raises(CommandError, match='not of a training that elmo_pretrain began'):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)

@pytest.mark.parametrize('missing', ['run', 'valid_loss', 'saved', 'machine', 'position', 'state'])
def test_a_checkpoint_that_lacks_something(missing, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    for o in (tmp_path/'m.run').glob('0*-*'):
        fields = load_plain(o/FILE)
        del fields[missing]
        save_plain(fields, o/FILE)
    with pytest.raises(CheckpointError, match=missing): read_checkpoint(o)
    with pytest.raises(CheckpointError, match=missing):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)

@pytest.mark.slow
def test_resume_from_here(run, tmp_path, monkeypatch):
    "`--resume .` in the folder of the run goes on with it; elsewhere it says that there is nothing"
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for place in ('.', '', '/', '..'):
        with pytest.raises((CommandError, CheckpointError), match='[Tt]here is no'):
            pretrain(resume=place, device='cpu', say=str)
    monkeypatch.chdir(tmp_path/'m.run')
    edit(Path('.'), corpus=str(tmp_path/'text.txt'))
    assert pretrain(resume='.', device='cpu', say=str) == tmp_path/'m' and load_bilm(tmp_path/'m')
