"How many threads a command computes with"
import random
from dataclasses import asdict

import numpy as np, pytest, torch

from elmo_fastai.base.errors import CommandError
from elmo_fastai.base.processes import from_main, use_threads
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tasks.embed import EmbedSettings
from elmo_fastai.train.command import pretrain, settings_for

@pytest.mark.parametrize('wrong', [0, -1, 'many', 'free', 1.5, 1.5j, True])
def test_numbers_that_can_not_be(wrong):
    with pytest.raises(CommandError, match='--threads must be'):
        settings_for('my.txt', dict(threads=wrong))

@pytest.fixture
def usual():
    "The number of threads that PyTorch has, whatever else the machine does"
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)

def test_threads_are_as_before_afterwards(usual):
    with pytest.raises(KeyError), use_threads(3):
        assert torch.get_num_threads() == 3
        raise KeyError
    assert torch.get_num_threads() == usual
    with use_threads(None): assert torch.get_num_threads() == usual

@pytest.mark.parametrize('more,n', [({}, 2), (dict(threads=1), 1), (dict(threads=3), 3)])
def test_elmo_embed_takes_the_threads_that_were_said(usual, monkeypatch, tmp_path, capsys, more, n):
    import elmo_fastai.elmo.file as module
    def embed_file(*args, **kwargs): return torch.get_num_threads()
    monkeypatch.setattr(module, 'embed_file', embed_file)
    settings = dict(source='in.txt', out=str(tmp_path/'o.npz'), model='mini-en', device='cpu')
    assert module.embed_named(**asdict(EmbedSettings.of(settings | more))) == n
    assert torch.get_num_threads() == usual and not capsys.readouterr().out

NANO = dict(model='tiny', config=dict(char_dim=4, filters=[[1, 8]], proj_dim=8, hidden_dim=8),
            epochs=1, bs=16, device='cpu', bf16=False)

@pytest.mark.parametrize('more,n', [({}, 2), (dict(threads=1), 1)])
def test_a_training_notes_its_threads(usual, tmp_path, more, n):
    told = []
    pretrain(toy_corpus(64, 16, 1, 1), out=tmp_path/'m', say=told.append, **NANO, **more)
    assert torch.get_num_threads() == usual and not any('--threads' in line for line in told)
    assert f'threads: {n}' in (tmp_path/'m'/'run.toml').read_text()

def test_a_training_leaves_threads_and_random_numbers_alone(tmp_path):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    how = dict(NANO, out=tmp_path/'m', say=lambda *o: None)
    random.seed(7); np.random.seed(7); torch.manual_seed(7)
    before, threads = state(), torch.get_num_threads()
    pretrain(toy_corpus(64, 16, 1, 1), **how, threads=threads+1)
    assert state() == before and torch.get_num_threads() == threads
    with pytest.raises(ValueError): pretrain('nowhere.txt', **how)
    assert state() == before

def test_alone_the_main_process_is_asked_at_once(): assert from_main(lambda: 7, 'cpu') == 7
