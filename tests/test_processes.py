"How many threads a command takes on a busy machine"
import random, subprocess, sys, time
from dataclasses import asdict

import numpy as np, pytest, torch

import elmo_fastai.base.processes as processes
from elmo_fastai.base.errors import CommandError
from elmo_fastai.base.processes import choose_threads, free_cores, own_cores, use_threads
from elmo_fastai.nn.bilm import BiLMConfig
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tasks.embed import EmbedSettings
from elmo_fastai.train.command import pretrain, settings_for

@pytest.fixture
def eight_threads(monkeypatch):
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'): monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 8)

@pytest.mark.parametrize('free,n', [
    (8.0, 8), (7.7, 8), (7.2, 7), (5.9, 6), (3.4, 3), (0.9, 1), (0.0, 1)])
def test_as_many_threads_as_there_are_free_cores(eight_threads, monkeypatch, free, n):
    told = []
    monkeypatch.setattr(processes, 'free_cores', lambda: free)
    assert choose_threads(told.append) == n
    assert len(told) == (n < 8) and all('--threads' in line for line in told)


def test_what_somebody_has_set_stays(eight_threads, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '8')
    monkeypatch.setattr(processes, 'free_cores', lambda: pytest.fail('it was asked'))
    assert choose_threads(pytest.fail) == 8

def test_a_busy_core_is_not_free():
    n = len(own_cores())
    loops = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2*n)]
    try:
        time.sleep(.5)
        assert 0 <= free_cores() < .5
    finally:
        for loop in loops: loop.kill()

def test_where_the_system_does_not_tell(monkeypatch):
    def nowhere(cores): raise FileNotFoundError
    monkeypatch.setattr(processes, 'idle_seconds', nowhere)
    assert 0 <= free_cores() <= len(own_cores())

@pytest.mark.parametrize('wrong', [0, -1, 'many', 1.5j, True])
def test_numbers_that_can_not_be(wrong):
    with pytest.raises(CommandError, match='--threads must be'):
        settings_for('my.txt', dict(threads=wrong))

@pytest.fixture
def busy(monkeypatch):
    "Two threads are usual, and other programs leave one core free"
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'): monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes, 'free_cores', lambda: 1.)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

def test_threads_are_as_before_afterwards(busy):
    told = []
    with pytest.raises(KeyError), use_threads('free', told.append) as n:
        assert n == torch.get_num_threads() == 1
        raise KeyError
    with use_threads(3, told.append): assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == 2 and len(told) == 1

@pytest.mark.parametrize('more,n', [({}, 1), (dict(threads='2'), 2), (dict(threads=3), 3)])
def test_elmo_embed_chooses_its_threads(busy, monkeypatch, tmp_path, capsys, more, n):
    import elmo_fastai.elmo.file as module
    def embed_file(*args, **kwargs): return torch.get_num_threads()
    monkeypatch.setattr(module, 'embed_file', embed_file)
    settings = dict(source='in.txt', out=str(tmp_path/'o.npz'), model='mini-en', device='cpu')
    assert module.embed_named(**asdict(EmbedSettings.of(settings | more))) == n
    assert torch.get_num_threads() == 2 and ('--threads 2' in capsys.readouterr().out) == (not more)

def test_a_training_keeps_the_threads_that_it_chose(busy, tmp_path):
    nano = dict(char_dim=4, filters=[[1, 8]], proj_dim=8, hidden_dim=8)
    told = []
    pretrain(toy_corpus(64, 16, 1, 1), out=tmp_path/'m', model='tiny', config=nano, epochs=1,
             bs=16, device='cpu', bf16=False, say=told.append)
    assert '--threads 2 changes that' in told[0] and torch.get_num_threads() == 2
    assert 'threads: 1' in (tmp_path/'m'/'run.toml').read_text()

def test_a_training_leaves_threads_and_random_numbers_alone(tmp_path):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    nano = dict(char_dim=4, filters=[[1, 8]], proj_dim=8, hidden_dim=8)
    how = dict(
        out=tmp_path/'m', model='tiny', config=nano, epochs=1, bs=16, device='cpu', bf16=False
    )
    random.seed(7); np.random.seed(7); torch.manual_seed(7)
    before, threads = state(), torch.get_num_threads()
    pretrain(toy_corpus(64, 16, 1, 1), **how, say=lambda *o: None, threads=threads+1)
    assert state() == before and torch.get_num_threads() == threads
    with pytest.raises(ValueError): pretrain('nowhere.txt', **how, say=lambda *o: None)
    assert state() == before
