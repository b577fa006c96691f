"Jobs in portions, that stop, go on, and keep out of each other's way"
import threading
from itertools import islice
from pathlib import Path

import numpy as np, pytest

from elmo_fastai.base.errors import CheckpointError, CommandError, UsageError
from elmo_fastai.base.portions import Portions
from test_files import recorded

class Unplugged(BaseException): pass

def square(out, numbers=range(100), stop=None, overwrite=False, reads_again=True, wait=None, **job):
    "A job that squares numbers, ten in a portion; returns how many were done before"
    portions = Portions(out, 'elmo_fastai.squares.1', job, overwrite)
    with portions.opened():
        rest = portions.rest(lambda: iter(numbers), reads_again)
        begun = portions.totals['lines']
        while window := list(islice(rest, 10)):
            if wait: wait()
            if stop in window: raise Unplugged
            portions.add(np.square(window), [f'"{n}" é' for n in window], tokens=len(window))
        assert [*portions.abouts()][-1][-1] == f'"{numbers[-1]}" é'
        portions.finish(lambda path: np.save(path, np.concatenate([*portions.values()])))
    assert not portions.folder.exists() and np.load(out).tolist() == [n**2 for n in numbers]
    return begun

@pytest.fixture
def out(tmp_path): return tmp_path/'o.npy'

def stopped(out, stop, **kw):
    with pytest.raises(Unplugged): square(out, stop=stop, **kw)
    assert not out.exists()
    return {f.name: f.read_bytes() for f in Path(f'{out}.part').iterdir() if 'lock' not in f.name}

def test_goes_on_where_it_stopped(out):
    for stop in (23, 55, 74): stopped(out, stop)
    assert square(out) == 70

@pytest.mark.parametrize('change', [
    dict(unit='cm'), dict(numbers=range(1, 101)), dict(numbers=range(20))], ids=str)
def test_another_job_is_not_mixed_in(out, change):
    kept = stopped(out, 35)
    with pytest.raises(CommandError, match='--overwrite'): square(out, **change)
    assert stopped(out, 39) == kept
    assert square(out, overwrite=True, **change) == 0

def test_lines_that_can_not_be_read_again(out):
    stopped(out, 35)
    with pytest.raises(CommandError, match='delete .*o.npy.part to start again'):
        square(out, range(1, 101), overwrite=True, reads_again=False)
    assert square(out, overwrite=True, reads_again=False) == 30

def test_nothing_is_left_where_nothing_was_done(out):
    with pytest.raises(Unplugged): square(out, stop=5)
    assert not Path(f'{out}.part').exists()

def test_an_output_that_is_there(out):
    out.write_text('old')
    with pytest.raises(UsageError, match='--overwrite'): square(out)
    with pytest.raises(Unplugged): square(out, stop=35, overwrite=True)
    assert out.read_text() == 'old' and square(out, overwrite=True) == 30

def test_places_that_are_in_use(out):
    folder = Path(f'{out}.part')
    folder.mkdir()
    (folder/'thesis.txt').write_text('precious')
    with pytest.raises(CommandError, match='not of a job of ours'): square(out, overwrite=True)
    assert [f.name for f in folder.iterdir()] == ['thesis.txt']
    with pytest.raises(CommandError, match="Can't write into"): square(folder/'thesis.txt'/'o.npy')

def test_a_damaged_portion(out):
    stopped(out, 35)
    last = max(Path(f'{out}.part').glob('0*.npz'))
    last.write_bytes(last.read_bytes()[:100])
    for _ in range(2):
        with pytest.raises(CommandError, match='damaged.*delete the folder') as kept: square(out)
        assert kept, 'its traceback holds no lock'

def test_one_job_a_time(out):
    "Also of jobs that start at the same moment, again and again"
    for i in range(15):
        barrier = threading.Barrier(4)
        ended = threading.Event()
        results = []
        def job():
            barrier.wait()
            try: results.append(square(out.with_name(f'{i}.npy'), wait=lambda: ended.wait(20)))
            except CheckpointError as error: results.append(str(error))
            if len(results) == 3: ended.set()                            # those that were refused
        threads = [threading.Thread(target=job) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert results.count(0) == 1 and sum('in use by' in str(r) for r in results) == 3, results

def test_the_output_is_on_the_disk_before_its_portions_go(out, monkeypatch):
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        square(out)
    renamed = seen.index(('replace', out.name))
    assert seen[renamed-1] == ('sync', 'out.npy')
    assert seen[renamed+1] == ('sync', out.parent.name)
    deleted = [i for i,(what, name) in enumerate(seen) if what == 'unlink' and name[0] == '0']
    assert len(deleted) == 10 and min(deleted) > renamed + 1
