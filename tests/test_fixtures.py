"""The published fixtures in AI2's format: whole, made as their script says, and ours is a loader
that finds their vectors"""

import hashlib, json
from pathlib import Path
import h5py, numpy as np, pytest, torch
import ai2_reference as ref, make_fixtures
from elmo_fastai.elmo import Elmo
from elmo_fastai.elmo.ai2 import load_ai2
from make_fixtures import CASES, FOLDER, SENTENCES

def vectors(name):
    with h5py.File(FOLDER/'vectors'/f'{name}.hdf5') as f:
        return [f[str(i)][()] for i in range(len(f))]


def found(name, dtype, options=None):
    "What this library finds: an array [layers, T, 2P] for each sentence"
    lm = load_ai2(options or FOLDER/name/'options.json', FOLDER/name/'weights.hdf5')
    elmo = Elmo(lm, tokenizer='space').eval().to(dtype)
    res = []
    with torch.no_grad():
        for tokens in json.loads((FOLDER/'sentences.json').read_text(encoding='utf-8')):
            layers, mask = elmo.layers([tokens])
            assert mask.all() and mask.shape == (1, len(tokens))
            res.append(torch.cat(layers).numpy())
    return res

@pytest.mark.parametrize('dtype,tolerance', [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize('name', CASES)
def test_ours_finds_the_vectors(name, dtype, tolerance):
    for v,wanted in zip(found(name, dtype), vectors(name), strict=True):
        assert v.shape == wanted.shape and np.abs(v - wanted).max() <= tolerance

@pytest.mark.parametrize('name', CASES)
def test_ours_finds_them_in_one_batch(name):
    elmo = Elmo.from_ai2(FOLDER/name, tokenizer='space')
    for v, wanted in zip(elmo.embed(SENTENCES, layers='all'), vectors(name), strict=True):
        np.testing.assert_allclose(v, wanted, atol=1e-5)


CHANGES = dict(
    two_highways=('char_cnn', 'activation', 'tanh'),
    tanh=('char_cnn', 'activation', 'relu'),
    no_skip_connections=('lstm', 'use_skip_connections', True),
    published=('lstm', 'use_skip_connections', False),
    no_clips=('lstm', 'cell_clip', 0.6),
    cell_clip=('lstm', 'cell_clip', None),
    projection_clip=('lstm', 'proj_clip', None),
    other_filters=('char_cnn', 'max_characters_per_token', 50))


@pytest.mark.parametrize('name', CHANGES)
def test_a_loader_that_reads_an_option_wrong_is_found_out(name, tmp_path):
    part, key, value = CHANGES[name]
    options = json.loads((FOLDER/name/'options.json').read_text())
    assert options[part].get(key) != value
    options[part][key] = value
    (tmp_path/'options.json').write_text(json.dumps(options))
    off = max(np.abs(v - wanted).max() for v, wanted in zip(
        found(name, torch.float64, tmp_path/'options.json'), vectors(name)))
    assert off > 1e-2

def test_the_files_are_those_of_the_hashes():
    sums = dict(line.split('  ')[::-1] for line in (FOLDER/'SHA256SUMS').read_text().splitlines())
    files = [file for file in FOLDER.rglob('*')
             if file.is_file() and file.name not in ('README.md', 'SHA256SUMS')]
    assert {file.relative_to(FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files} == sums
    assert sum(file.stat().st_size for file in FOLDER.rglob('*') if file.is_file()) < 300_000
    assert {file.parent.name for file in files} - {'ai2'} == {*CASES, 'vectors'}

def test_the_script_makes_them_again(tmp_path):
    make_fixtures.write(tmp_path)
    assert (tmp_path/'sentences.json').read_bytes() == (FOLDER/'sentences.json').read_bytes()
    for name in CASES:
        assert (tmp_path/name/'options.json').read_bytes() == (
            FOLDER/name/'options.json').read_bytes()
        for file in (f'{name}/weights.hdf5', f'vectors/{name}.hdf5'):
            old, new = {}, {}
            for folder,arrays in ((FOLDER, old), (tmp_path, new)):
                with h5py.File(folder/file) as f:
                    f.visititems(lambda k, d: (
                        arrays.update({k: d[()]}) if isinstance(d, h5py.Dataset) else None))
            assert old.keys() == new.keys()
            for k in old:
                np.testing.assert_allclose(new[k], old[k], rtol=1e-12, err_msg=f'{file} {k}')


def test_the_page_of_the_folder_names_every_case():
    text = (FOLDER/'README.md').read_text(encoding='utf-8')
    for name in CASES: assert f'`{name}`' in text
