"Files that are whole or not there, state in plain types, the lock, and exports for any system"
import multiprocessing, os, pickle, random
from pathlib import Path

import numpy as np, pytest, torch
from fastcore.foundation import L

from elmo_fastai.practice.files import (
    from_here, load_plain, lock_folder, plain, save_plain, whole_file)
from made import forks, posix

def mode(path): return path.stat().st_mode & 0o777

@posix
def test_modes_and_links(tmp_path):
    "An old file keeps its mode, a new one has the usual, and what a link points to is written"
    disk, link = tmp_path/'disk'/'a.txt', tmp_path/'link.txt'
    link.symlink_to(disk)
    for text in ('first', 'second'):
        with whole_file(link) as part: part.write_text(text)
        assert link.is_symlink() and disk.read_text() == text
        (tmp_path/'usual').write_text('')
        assert mode(disk) == (mode(tmp_path/'usual') if text == 'first' else 0o640)
        disk.chmod(0o640)
    assert [o.name for o in disk.parent.iterdir()] == ['a.txt']

@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError, MemoryError])
def test_what_was_there_stays_when_writing_stops(tmp_path, error):
    (tmp_path/'a').write_text('old')
    for name in ('a', 'b'):
        with pytest.raises(error), whole_file(tmp_path/name) as part:
            part.write_text('half')
            raise error
    assert [(o.name, o.read_text()) for o in tmp_path.iterdir()] == [('a', 'old')]

def test_contents_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    seen, opened = [], {}
    real = {name: getattr(os, name) for name in ('open', 'fsync', 'replace')}
    def open_(path, *args, **kwargs):
        number = real['open'](path, *args, **kwargs)
        opened[number] = Path(path).name
        # Windows keeps only what is open for writing, and opens no folder
        assert Path(path).is_dir() or args[0] & os.O_RDWR
        return number
    def noted(what):
        def call(first, *args):
            seen.append((what, opened.get(first) or Path(first).name))
            return real[what](first, *args)
        return call
    with monkeypatch.context() as patch:
        patch.setattr(os, 'open', open_)
        for what in ('fsync', 'replace'): patch.setattr(os, what, noted(what))
        with whole_file(tmp_path/'a') as part: part.write_text('x')
    assert seen == [('fsync', part.name), ('replace', part.name), ('fsync', tmp_path.name)]

@forks
def test_a_lock_ends_with_its_process(tmp_path):
    fork = multiprocessing.get_context('fork')
    inside = fork.Event()
    def child():
        with lock_folder(tmp_path/'m'):
            inside.set()
            fork.Event().wait()
    process = fork.Process(target=child)
    process.start()
    assert inside.wait(60)
    with pytest.raises(ValueError, match='in use by'), lock_folder(tmp_path/'m'): pass
    process.kill()
    process.join()
    with pytest.raises(KeyError), lock_folder(tmp_path/'m'): raise KeyError
    with lock_folder(tmp_path/'m'): pass
    assert not (tmp_path/'m').exists()

# state

class Code:
    def __reduce__(self): return os.mkdir, ('sprung',)

STATE = dict(a=[1, 2., True, None, 'é', (3, [])],
             b={'x': torch.arange(3), 1: torch.ones(2, 2).half()})

def test_plain_types_come_back(tmp_path):
    given = STATE | dict(c=L(np.float64(.5), np.arange(2)), d=torch.nn.Parameter(torch.ones(2)))
    want = STATE | dict(c=[.5, [0, 1]], d=torch.ones(2))
    save_plain(given, tmp_path/'deep'/'s.pt')
    assert repr(load_plain(tmp_path/'deep'/'s.pt')) == repr(want) == repr(plain(given))
    assert [o.name for o in (tmp_path/'deep').iterdir()] == ['s.pt']

@pytest.mark.parametrize('value,place', [
    (Code(), 'state'), (dict(a=[dict(b=Code())]), 'state.a.b'), (dict(a={1, 2}), 'state.a'),
    (dict(a=Path('x')), 'state.a')], ids=['object', 'inner object', 'set', 'path'])
def test_what_is_not_plain_is_not_written(tmp_path, value, place):
    with pytest.raises(TypeError, match=f'{place} is of type'): save_plain(value, tmp_path/'s.pt')
    assert not [*tmp_path.iterdir()]

def test_damage_is_found_and_nothing_runs(tmp_path):
    save_plain(dict(w=torch.arange(999.), **STATE), file := tmp_path/'s.pt')
    good, want = file.read_bytes(), repr(load_plain(file))
    torch.save(dict(a=Code()), tmp_path/'code')
    changed = [(tmp_path/'code').read_bytes(), pickle.dumps(Code()), b'', good[:-9], good[:99],
               bytes(999)]
    for bit in random.Random(0).sample(range(8*len(good)), 200):
        changed.append(bytearray(good))
        changed[-1][bit//8] ^= 1 << bit % 8
    refused = 0
    for data in changed:
        file.write_bytes(data)
        try: assert repr(load_plain(file)) == want           # a date, say, means nothing
        except (ValueError, RuntimeError, OSError, EOFError, KeyError): refused += 1
    assert refused > 150 and not Path('sprung').exists()

@pytest.mark.parametrize('message', ['No space left on device', None])
def test_a_disk_that_is_full_says_so(tmp_path, monkeypatch, message):
    def full(value, file):
        try: raise OSError(28, message)
        finally: raise RuntimeError('unexpected pos 64 vs 0')
    (tmp_path/'s.pt').write_bytes(b'old')
    monkeypatch.setattr(torch, 'save', full)
    with pytest.raises(OSError): save_plain(STATE, tmp_path/'s.pt')
    assert [(o.name, o.read_bytes()) for o in tmp_path.iterdir()] == [('s.pt', b'old')]

def test_a_path_is_shown_from_here(tmp_path):
    assert from_here(tmp_path/'a'/'b') == Path('a/b')
    assert from_here(tmp_path.parent/'c') == tmp_path.parent/'c'
