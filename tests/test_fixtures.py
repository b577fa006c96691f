"""The published fixtures in AI2's format: whole, made as their script says, and ours is a reader
that finds their vectors"""
import hashlib, json
import h5py, numpy as np, pytest, torch
import make_fixtures
from elmo_fastai.elmo import Elmo
from make_fixtures import CASES, FOLDER, SENTENCES

def vectors(name, folder=FOLDER):
    with h5py.File(folder/'vectors'/f'{name}.hdf5') as f:
        return [f[str(i)][()] for i in range(len(f))]

def differences(name, dtype, options=None):
    "The largest difference of each sentence, alone"
    options = options or FOLDER/name/'options.json'
    elmo = Elmo.from_ai2(options, FOLDER/name/'weights.hdf5').to(dtype)
    with torch.no_grad(): found = [torch.cat(elmo.layers([s])[0]).numpy() for s in SENTENCES]
    return [np.abs(a - b).max() for a,b in zip(found, vectors(name), strict=True)]

@pytest.mark.parametrize('dtype,tolerance', [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize('name', CASES)
def test_ours_finds_the_vectors(name, dtype, tolerance):
    assert max(differences(name, dtype)) <= tolerance

CHANGES = dict(
    two_highways=('char_cnn', 'activation', 'tanh'), tanh=('char_cnn', 'activation', 'relu'),
    no_skip_connections=('lstm', 'use_skip_connections', True),
    published=('lstm', 'use_skip_connections', False), no_clips=('lstm', 'cell_clip', 0.6),
    cell_clip=('lstm', 'cell_clip', None), projection_clip=('lstm', 'proj_clip', None),
    other_filters=('char_cnn', 'max_characters_per_token', 50))

@pytest.mark.parametrize('name', CHANGES)
def test_a_reader_that_reads_an_option_wrong_is_found_out(name, tmp_path):
    part, key, value = CHANGES[name]
    options = json.loads((FOLDER/name/'options.json').read_text())
    assert options[part].get(key) != value
    options[part][key] = value
    (tmp_path/'options.json').write_text(json.dumps(options))
    assert max(differences(name, torch.float64, tmp_path/'options.json')) > 1e-2

def test_the_files_are_those_of_the_hashes():
    sums = dict(line.split('  ')[::-1] for line in (FOLDER/'SHA256SUMS').read_text().splitlines())
    files = [file for file in FOLDER.rglob('*')
             if file.is_file() and file.name not in ('README.md', 'SHA256SUMS')]
    assert {file.relative_to(FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files} == sums
    text = (FOLDER/'README.md').read_text(encoding='utf-8')
    for name in CASES: assert f'`{name}`' in text

def test_the_script_makes_them_again(tmp_path):
    make_fixtures.write(tmp_path)
    for name in ('sentences.json', *(f'{name}/options.json' for name in CASES)):
        assert (tmp_path/name).read_bytes() == (FOLDER/name).read_bytes()
    for name in CASES:
        for a,b in zip(vectors(name, tmp_path), vectors(name), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
