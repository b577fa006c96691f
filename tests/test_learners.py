"""Paths in exports; exports themselves are in test_pickle, encoders in test_tasks_learner, files of
word vectors in test_cbow"""
import pickle
from collections import OrderedDict
from pathlib import Path

import cloudpickle, pytest, torch
from fastai.basics import DataLoaders

from elmo_fastai.practice.learners import portable
from elmo_fastai.train.learner import FitLearner

@pytest.mark.parametrize('module', [pickle, cloudpickle], ids=['pickle', 'cloudpickle'])
def test_a_portable_pickle_holds_no_path_of_this_system(tmp_path, module):
    closed = open(tmp_path/'log', 'w')
    closed.close()
    home = Path('/books/ann')
    value = dict(a=home, b=home/'x'/'y', c=Path('/disk/z'), d=Path('m/n'), log=closed, other=OrderedDict(x=1))
    torch.save(value, tmp_path/'f', pickle_module=portable(module, Path('/none'), home))
    data = (tmp_path/'f').read_bytes()
    assert b'pathlib' not in data and b'Posix' not in data and b'books' not in data and b'disk' not in data
    assert torch.load(tmp_path/'f', weights_only=False) == dict(
        a=Path('.'), b=Path('x/y'), c=Path('z'), d=Path('m/n'), log=None, other=OrderedDict(x=1))

def test_weights_are_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    learn = FitLearner(DataLoaders([], []), torch.nn.Linear(2, 3), torch.nn.MSELoss(), path=tmp_path)
    learn.create_opt()
    file = learn.save('best', with_opt=False)
    was = file.read_bytes()
    assert file == tmp_path/'models'/'best.pth'
    with torch.no_grad(): learn.model.weight.zero_()
    def fail(*args, **kwargs):
        args[1].write(b'half') if hasattr(args[1], 'write') else Path(args[1]).write_bytes(b'half')
        raise OSError('disk full')
    with monkeypatch.context() as m, pytest.raises(OSError):
        m.setattr(torch, 'save', fail)
        learn.save('best')
    assert file.read_bytes() == was and [*file.parent.iterdir()] == [file]
    learn.load('best', with_opt=False)
    assert learn.model.weight.any()
