"Files and folders that are whole or not there: links, modes, what stays, kills, checksums"
import multiprocessing, os, re, shutil, time

import pytest

import elmo_fastai.base.files as files
from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.base.files import SavedFiles, read_saved, whole_file, whole_folder

posix = pytest.mark.skipif(os.name != 'posix', reason='modes and links of Unix')

def mode(path): return path.stat().st_mode & 0o777

@posix
def test_a_file_keeps_its_mode(tmp_path):
    file = tmp_path/'a.txt'
    file.write_text('old')
    file.chmod(0o640)
    with whole_file(file) as part: part.write_text('new')
    assert (file.read_text(), mode(file)) == ('new', 0o640)

@posix
def test_a_new_file_has_the_mode_that_others_have(tmp_path):
    (tmp_path/'a.txt').write_text('')
    with whole_file(tmp_path/'b.txt') as part: part.write_text('')
    assert mode(tmp_path/'a.txt') == mode(tmp_path/'b.txt')

@posix
@pytest.mark.parametrize('exists', [True, False])
def test_a_link_stays_a_link(tmp_path, exists):
    "What it points to is written, also where it is not there yet"
    (tmp_path/'disk').mkdir()
    file = tmp_path/'disk'/'a.txt'
    link = tmp_path/'link.txt'
    link.symlink_to(file)
    if exists: file.write_text('old')
    with whole_file(link) as part: part.write_text('new')
    assert link.is_symlink() and file.read_text() == 'new'
    assert [o.name for o in file.parent.iterdir()] == ['a.txt']

@posix
def test_a_folder_keeps_its_mode_and_a_link_to_it_stays(tmp_path):
    folder, link = tmp_path/'model', tmp_path/'link'
    folder.mkdir()
    folder.chmod(0o700)
    link.symlink_to(folder)
    with whole_folder(link) as new: (new/'a.txt').write_text('new')
    assert link.is_symlink() and mode(folder) == 0o700 and (folder/'a.txt').read_text() == 'new'
    assert sorted(o.name for o in tmp_path.iterdir()) == ['link', 'model']

@pytest.mark.parametrize('writer', [whole_file, whole_folder])
def test_what_was_there_stays_when_writing_stops(tmp_path, writer):
    path = tmp_path/'a'
    if writer is whole_file: path.write_text('old')
    else: path.mkdir()
    with pytest.raises(KeyboardInterrupt):
        with writer(path): raise KeyboardInterrupt
    assert [o.name for o in tmp_path.iterdir()] == ['a']

# folders of a model

def ours(folder): return ['config', 'weights', 'words'] if (folder/'config').exists() else []

def write(folder, texts, **kwargs):
    with whole_folder(folder, ours, **kwargs) as new:
        for name, text in texts.items(): (new/name).write_text(text)

def contents(folder):
    "What a reader finds, by the names that the checksums list"
    def read(found): return {name: found.read(name).decode() for name in found.sums}
    return read_saved(folder, read)

OLD, NEW = {'config': 'old', 'weights': 'old', 'words': 'old'}, {'config': 'new', 'weights': 'new'}

def names(folder): return sorted(file.name for file in folder.iterdir())

def test_foreign_files_stay_and_older_ones_of_ours_go(tmp_path):
    write(tmp_path/'m', OLD)
    (tmp_path/'m'/'notes.txt').write_text('mine')
    (tmp_path/'m'/'data').mkdir()
    write(tmp_path/'m', NEW)
    assert names(tmp_path/'m') == ['SHA256SUMS', 'config', 'data', 'notes.txt', 'weights']
    assert contents(tmp_path/'m') == NEW and names(tmp_path) == ['m']

def test_a_foreign_file_of_the_same_name_is_not_replaced(tmp_path):
    for before in ({'words': 'mine'}, {'words': 'mine', 'SHA256SUMS': f"{'0'*64}  words\n"}):
        folder = tmp_path/f'{len(before)}'
        folder.mkdir()
        for name, text in before.items(): (folder/name).write_text(text)
        with pytest.raises(ValueError, match='words is no file of a model of ours'):
            write(folder, OLD)
        assert {file.name: file.read_text() for file in folder.iterdir()} == before

@pytest.mark.parametrize('edited', [True, False])
def test_a_card_that_was_edited_stays(tmp_path, edited):
    write(tmp_path/'m', {**OLD, 'README.md': 'old'})
    if edited: (tmp_path/'m'/'README.md').write_text('mine')
    write(tmp_path/'m', {**NEW, 'README.md': 'new'})
    write(tmp_path/'m', {**NEW, 'README.md': 'newer'})
    assert (tmp_path/'m'/'README.md').read_text() == ('mine' if edited else 'newer')
    write(tmp_path/'m', NEW)
    assert (tmp_path/'m'/'README.md').exists() == edited

def test_more_files_of_ours(tmp_path):
    write(tmp_path/'m', NEW)
    write(tmp_path/'m', {'report': 'x'}, keep=True)
    assert contents(tmp_path/'m') == {**NEW, 'report': 'x'}

@pytest.mark.parametrize('where', ['here', 'empty', 'home'])
def test_the_working_directory_is_never_replaced(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    if where == 'home': (tmp_path/'.profile').write_text('mine')
    inode = tmp_path.stat().st_ino
    write('.', OLD)
    write('.', NEW)
    assert tmp_path.stat().st_ino == inode == os.stat('.').st_ino and contents(tmp_path) == NEW
    assert (where != 'home') or (tmp_path/'.profile').read_text() == 'mine'

def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path/'m').write_text('mine')
    with pytest.raises(NotADirectoryError, match='is a file'): write(tmp_path/'m', OLD)
    assert (tmp_path/'m').read_text() == 'mine' and names(tmp_path) == ['m']

# the order on the disk

def recorded(monkeypatch):
    "A list of what is asked of the disk from now on: (what, name)"
    seen = []
    opened = {}
    real = {name: getattr(os, name) for name in ('open', 'fsync', 'replace', 'rename', 'unlink')}
    def open_(path, *args, **kwargs):
        number = real['open'](path, *args, **kwargs)
        opened[number] = os.path.basename(path)
        return number
    def fsync(number):
        seen.append(('sync', opened[number]))
        return real['fsync'](number)
    def noted(what):
        def call(path, *args, **kwargs):
            seen.append((what, os.path.basename(args[0]) if args else os.path.basename(path)))
            return real[what](path, *args, **kwargs)
        return call
    monkeypatch.setattr(os, 'open', open_)
    monkeypatch.setattr(os, 'fsync', fsync)
    for what in ('replace', 'rename', 'unlink'): monkeypatch.setattr(os, what, noted(what))
    return seen

def test_contents_reach_the_disk_before_the_name(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        with whole_file(tmp_path/'a') as part: part.write_text('x')
    assert [what for what, _ in seen][:3] == ['sync', 'replace', 'sync']
    assert seen[0][1].startswith('.a-') and seen[1][1] == 'a' and seen[2][1] == tmp_path.name

def test_the_order_of_a_folder(tmp_path, monkeypatch):
    write(tmp_path/'m', OLD)
    with monkeypatch.context() as patch:
        seen = recorded(patch)
        write(tmp_path/'m', NEW)
    seen = [step for step in seen if 'lock' not in step[1]]
    n_files = 3
    assert {name for _, name in seen[:n_files]} == {'config', 'weights', 'SHA256SUMS'}
    assert [what for what, _ in seen[:n_files]] == ['sync']*n_files
    assert seen[n_files:] == [
        ('sync', files.NEW), ('rename', files.COMPLETE), ('sync', 'm'),
        ('replace', 'config'), ('replace', 'weights'), ('unlink', 'words'), ('sync', 'm'),
        ('replace', 'SHA256SUMS'), ('sync', 'm')]

# kills

STEPS = ('mkdir', 'fsync', 'rename', 'replace', 'unlink', 'rmdir')

def killed_write(folder, texts, step):
    "In a process of its own: die before so many calls of the system; returns whether it did"
    def child():
        left = step
        def dying(real):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left < 0: os._exit(9)
                return real(*args, **kwargs)
            return call
        for name in STEPS: setattr(os, name, dying(getattr(os, name)))
        write(folder, texts)
    process = multiprocessing.get_context('fork').Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode in (0, 9)
    return process.exitcode == 9

@posix
@pytest.mark.parametrize('there', ['with', 'without', 'nothing'])
def test_a_kill_at_any_step_leaves_one_of_the_two(tmp_path, there):
    step = 0
    seen = []
    while True:
        folder = tmp_path/f'{step}'/'m'
        if there != 'nothing': write(folder, OLD)
        if there == 'without': (folder/'SHA256SUMS').unlink()
        if there != 'nothing': (folder/'notes').write_text('mine')
        died = killed_write(folder, NEW, step)
        if folder.exists():
            found = read_saved(folder, lambda found: {
                name: found.read(name).decode() for name in OLD if name in found})
            assert found in (OLD, NEW), step
            seen.append(found['config'])
        else: assert there == 'nothing'
        write(folder, {**NEW, 'more': 'x'})                          # the next one completes it
        assert contents(folder) == {**NEW, 'more': 'x'}
        notes = [] if there == 'nothing' else ['notes']
        assert names(folder) == ['SHA256SUMS', 'config', 'more', *notes, 'weights']
        assert set(names(folder.parent)) <= {'m', '.m.elmo-new.lock'}   # empty, and taken again
        if not died: break
        step += 1
    assert step > 8 and 'new' in seen and seen == sorted(seen, reverse=True)

@posix
def test_two_processes_save_one_after_the_other(tmp_path):
    "Eight at once: each says nothing, one model is there, and no copy is left"
    def child(i):
        write(tmp_path/'m', {'config': f'{i}', 'weights': f'{i}', f'only{i}': f'{i}'})
    fork = multiprocessing.get_context('fork')
    processes = [fork.Process(target=child, args=(i,)) for i in range(8)]
    for process in processes: process.start()
    for process in processes: process.join(60)
    assert [process.exitcode for process in processes] == [0]*8
    found = contents(tmp_path/'m')
    assert len(found) == 3 and len(set(found.values())) == 1
    assert names(tmp_path/'m') == sorted([*found, 'SHA256SUMS']) and names(tmp_path) == ['m']

@posix
def test_a_reader_beside_a_writer_finds_one_model(tmp_path):
    write(tmp_path/'m', {'config': '0', 'weights': '0'})
    def child():
        for i in range(30): write(tmp_path/'m', {'config': f'{i}', 'weights': f'{i}'})
    process = multiprocessing.get_context('fork').Process(target=child)
    process.start()
    n = 0
    while process.is_alive():
        assert len(set(contents(tmp_path/'m').values())) == 1
        n += 1
    process.join()
    assert process.exitcode == 0 and n > 3

def test_who_waits_too_long_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(files, 'WAIT', .1)
    with whole_folder(tmp_path/'m'):
        with pytest.raises(TimeoutError, match='Another process has been writing'):
            write(tmp_path/'m', OLD)

# checksums

@pytest.mark.parametrize('name', ['config', 'weights', 'words', 'SHA256SUMS'])
def test_a_flipped_bit_is_found(tmp_path, name):
    write(tmp_path/'m', OLD)
    file = tmp_path/'m'/name
    raw = file.read_bytes()
    for i in range(8*len(raw)):
        bytes_ = bytearray(raw)
        bytes_[i//8] ^= 1 << i % 8
        file.write_bytes(bytes_)
        def read(found): return [found.read(name) for name in OLD if name in found]
        with pytest.raises((ModelFileError, OSError)): read_saved(tmp_path/'m', read)

def test_sums_are_those_of_sha256sum(tmp_path):
    write(tmp_path/'m', OLD)
    if shutil.which('sha256sum'):
        assert os.system(f"cd {tmp_path/'m'} && sha256sum -c --quiet SHA256SUMS") == 0
    lines = (tmp_path/'m'/'SHA256SUMS').read_text().splitlines()
    assert [line.split('  ')[1] for line in lines] == sorted(OLD)
    assert all(re.fullmatch('[0-9a-f]{64}  .+', line) for line in lines)

def test_a_folder_without_sums_is_read(tmp_path):
    write(tmp_path/'m', OLD)
    (tmp_path/'m'/'SHA256SUMS').unlink()
    (tmp_path/'m'/'words').write_text('changed')
    found = SavedFiles(tmp_path/'m')
    assert found.read('words') == b'changed' and 'nothing' not in found
    found.check()

@posix
def test_who_waits_for_a_first_save_leaves_no_lock(tmp_path):
    fork = multiprocessing.get_context('fork')
    started = fork.Event()
    def child():
        started.set()
        write(tmp_path/'m', NEW)
    process = fork.Process(target=child)
    with whole_folder(tmp_path/'m', ours) as new:
        process.start()
        assert started.wait(30)
        time.sleep(.3)                             # it waits for the lock
        for name, text in OLD.items(): (new/name).write_text(text)
    process.join(60)
    assert process.exitcode == 0 and contents(tmp_path/'m') == NEW
    assert names(tmp_path) == ['m'] and not [n for n in names(tmp_path/'m') if 'lock' in n]
