"Files and folders that are whole or not there: links, modes, what stays when writing stops"
import os

import pytest

from elmo_fastai.base.files import whole_file, whole_folder

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
