"""AI2's files: against their own vectors, against a slow reference over all options, with faults
that must be found, and files that are not what they seem"""
import hashlib, json, os, signal
from copy import deepcopy
from dataclasses import replace
from multiprocessing import get_context
import h5py, numpy as np, pytest, requests, torch
import ai2_reference as ref, make_fixtures
from elmo_fastai.elmo import Elmo
from elmo_fastai.errors import ModelFileError
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.practice import ai2
from elmo_fastai.tokens import ByteCharVocab, CharVocab
from copies import local
from made import forks
from make_fixtures import CASES, FOLDER, SENTENCES

SENTS = ["She sat on the bank .".split(), ['.'], [], ['é'*40, 'x'*200, 'a'*47 + 'ß', 'bank'],
         ['ბანკი', '🏦', 'नदी', '', '<s>', '\x00\xff']]

def read(*args, **settings): return Elmo.from_ai2(*args, dropout=0, **settings)

@torch.no_grad()
def vectors(elmo, sents=SENTS):
    "An array [L+1, T, 2P] for each sentence of a batch"
    if isinstance(elmo, BiLM): elmo = Elmo(elmo, nfc=False).eval()
    layers, mask = elmo.layers(sents)
    return [torch.stack(layers)[:, i, mask[i]].double().numpy() for i in range(len(sents))]

def check_vectors(found, wanted, atol=3e-5, rtol=1e-4):
    for a,b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=rtol)

def slow(options, file, sents=SENTS):
    return [ref.layers(file, options, tokens)[:, 1:-1] for tokens in sents]

def arrays(path):
    "All arrays of an HDF5 file by name"
    found = {}
    def add(name, item):
        if isinstance(item, h5py.Dataset): found[name] = item[()]
    with h5py.File(path) as f: f.visititems(add)
    return found

def small(folder, name='base', seed=0):
    "(options, arrays, the paths of both) of a random model, written into a folder"
    file = ref.random_file(OPTIONS[name], seed)
    return OPTIONS[name], file, ref.write(folder, OPTIONS[name], file)

OPTIONS = dict(
    base=ref.options(),
    keys_left_out=ref.options(drop=['use_skip_connections', 'n_highway', 'n_layers', 'cell_clip',
                                    'proj_clip']),
    no_lstm_projection=ref.options(lstm=dict(dim=6), cnn=dict(n_highway=None)),
    more_features_than_filters=ref.options(lstm=dict(projection_dim=18), drop=['proj_clip']),
    three_highways=ref.options(cnn=dict(n_highway=3, max_characters_per_token=120)),
    one_layer=ref.options(lstm=dict(n_layers=1), cnn=dict(filters=[[3, 9]])),
    everything_else=ref.options(
        cnn=dict(activation='tanh', n_highway=0, max_characters_per_token=20),
        lstm=dict(use_skip_connections=False, n_layers=4, cell_clip=None, dim=15,
                  projection_dim=15)))

@pytest.mark.parametrize('name', OPTIONS)
def test_all_options_and_layers(name, tmp_path):
    options, file, paths = small(tmp_path, name, len(name))
    elmo = read(*paths)
    assert not elmo.training and elmo.lm.head is None
    check_vectors(vectors(elmo), slow(options, file))
    written = arrays(elmo.to_ai2(tmp_path/'again')/'weights.hdf5')
    for k,v in file.items(): assert written[k].dtype == v.dtype and np.array_equal(written[k], v), k
    again = read(tmp_path/'again')
    assert again.lm.config == replace(elmo.lm.config, name='weights')
    check_vectors(vectors(again), vectors(elmo), 0, 0)

# published small files, made by `make_fixtures`, with the vectors that a reader must find

def fixture(name, folder=FOLDER):
    with h5py.File(folder/'vectors'/f'{name}.hdf5') as f:
        return [f[str(i)][()] for i in range(len(f))]

@pytest.mark.parametrize('name', CASES)
def test_fixtures(name):
    elmo = Elmo.from_ai2(FOLDER/name/'options.json', FOLDER/name/'weights.hdf5')
    for dtype,tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        found = [vectors(elmo.to(dtype), [s])[0] for s in SENTENCES]
        check_vectors(found, fixture(name), tolerance, 0)

def test_the_script_makes_the_fixtures_again(tmp_path):
    make_fixtures.write(tmp_path)
    for name in CASES:
        options = f'{name}/options.json'
        assert (tmp_path/options).read_bytes() == (FOLDER/options).read_bytes()
        check_vectors(fixture(name, tmp_path), fixture(name), 1e-12, 1e-12)
    for line in (FOLDER/'SHA256SUMS').read_text().splitlines():
        digest, file = line.split('  ')
        assert hashlib.sha256((FOLDER/file).read_bytes()).hexdigest() == digest

# AI2's own vectors

def right_sentences(elmo, reset=False):
    """How many of AI2's thirty sentences have their vectors? Ten batches of three, the state
    carried through all of them"""
    folder = local('ai2_fixture')
    sents = json.loads((folder/'sentences.json').read_text())
    right = 0
    for i in range(10):
        batch = [sents[k][i].split() for k in range(3)]
        if reset: elmo.reset()
        for k,found in enumerate(vectors(elmo, batch)):
            with h5py.File(folder/f'lm_embeddings_{k}.hdf5') as f:
                right += np.allclose(found[-1], np.concatenate(f[str(i)][()], -1), 1e-5, 1e-6)
    return right

def test_ai2s_own_vectors():
    folder = local('ai2_fixture')
    elmo = read(folder/'options.json', folder/'lm_weights.hdf5', carry=True)
    assert right_sentences(elmo) == 30 and right_sentences(elmo, reset=True) == 3

def test_the_reference_has_ai2s_vectors_too():
    "Who watches the watchman?"
    folder, state = local('ai2_fixture'), {}
    options = json.loads((folder/'options.json').read_text())
    file = arrays(folder/'lm_weights.hdf5')
    sents = json.loads((folder/'sentences.json').read_text())
    for i in (0, 1):
        y = ref.layers(file, options, sents[1][i].split(), state)[-1, 1:-1]
        with h5py.File(folder/'lm_embeddings_1.hdf5') as f:
            np.testing.assert_allclose(y, np.concatenate(f[str(i)][()], -1), atol=2e-6, rtol=1e-5)

@pytest.mark.parametrize('name', ['base', 'no_lstm_projection'])
def test_carried_state(name, tmp_path):
    "Row by row from batch to batch; rows that a batch lacks keep theirs"
    options, file, paths = small(tmp_path, name, 3)
    elmo, states = read(*paths, carry=True), [{}, {}, {}]
    for batch in (SENTS[:3], SENTS[:1], SENTS[2:]):
        wanted = [ref.layers(file, options, s, state)[:, 1:-1] for s,state in zip(batch, states)]
        check_vectors(vectors(elmo, batch), wanted, 5e-5)

# what else a file may be

def test_other_names_floats_and_arrays(tmp_path):
    options, file, paths = small(tmp_path, 'one_layer')
    wanted = read(*paths).state_dict()
    def shorter(name): return name.replace('MultiRNNCell/Cell0/', '')      # TensorFlow's, of one
    more = {'softmax/W': np.zeros((9, 6), 'f4'), 'softmax/b': np.zeros(9, 'f4')}   # not read
    for changes in (dict(rename=shorter), dict(dtype='>f4'), dict(dtype='f8'),
                    dict(compression='gzip', shuffle=True), dict(file=file | more)):
        other = read(*ref.write(tmp_path/'b', options, **dict(file=file) | changes))
        assert all(v.dtype == torch.float32 and v.equal(other.state_dict()[k])
                   for k,v in wanted.items())

# trained here

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (3,8)), proj_dim=16, hidden_dim=20)

def trained(seed=0, n_words=0, **changes):
    "An Elmo with statistics in its normalisation and weights that differ from their start"
    torch.manual_seed(seed)
    lm = BiLM(replace(CFG, **changes), n_words)
    elmo = Elmo(lm, dropout=0, nfc=False)
    for _ in range(3):
        with torch.no_grad():
            lm.train().encode(elmo.marked(elmo.to_chars(SENTS)))
            for p in lm.parameters(): p.add_(.3*torch.randn_like(p)*p.requires_grad)
    lm.requires_grad_(True)
    return Elmo(lm, dropout=0, nfc=False).eval()

OURS = [dict(), dict(norm=False), dict(hidden_dim=16), dict(residual=False, n_layers=3),
        dict(n_highway=0, activation='tanh'), dict(cell_clip=.4, proj_clip=.2, n_words=9),
        dict(proj_dim=24, hidden_dim=24), dict(proj_dim=24, hidden_dim=24, char_proj=False),
        dict(proj_dim=40, hidden_dim=40, n_highway=0, norm=False)]

@pytest.mark.parametrize('changes', OURS, ids=str)
def test_models_trained_here(changes, tmp_path):
    "The reference reads them, and so does one that demands every array that AllenNLP demands"
    elmo = trained(**changes)
    before = deepcopy(elmo.state_dict())
    folder = elmo.to_ai2(tmp_path/'m')
    assert all(v.equal(before[k]) for k,v in elmo.state_dict().items())        # not changed
    assert sorted(path.name for path in folder.iterdir()) == ['options.json', 'weights.hdf5']
    found, file = vectors(elmo), arrays(folder/'weights.hdf5')
    options = json.loads((folder/'options.json').read_text())
    check_vectors(vectors(read(folder)), found, 2e-5)
    check_vectors(slow(options, file), found, 2e-4)
    theirs = [ref.allennlp_layers(file, options, tokens)[:, 1:-1] for tokens in SENTS]
    check_vectors(theirs, found, 2e-4)

@pytest.mark.parametrize('changes,why', [
    (dict(share_encoder=False), 'one CharCNN'), (dict(n_chars=None), 'alphabet'),
    (dict(hidden_dim=16, proj_clip=1.), 'proj_clip')])
def test_what_the_format_cannot_hold(changes, why, tmp_path):
    chars = CharVocab.build([['abc']]) if 'n_chars' in changes else ByteCharVocab()
    config = replace(CFG, n_chars=chars.n_chars, max_chars=chars.max_chars)
    if 'n_chars' not in changes: config = replace(config, **changes)
    with pytest.raises(ValueError, match=why): Elmo(BiLM(config, 0, chars)).to_ai2(tmp_path/'m')
    assert not [*tmp_path.iterdir()]

@pytest.mark.parametrize('name', ['options.json', 'weights.hdf5'])
def test_foreign_files_stay(name, tmp_path):
    (tmp_path/name).write_text('{"mine": 1}')
    with pytest.raises(ModelFileError, match='take another'): trained().to_ai2(tmp_path)
    assert [(o.name, o.read_text()) for o in tmp_path.iterdir()] == [(name, '{"mine": 1}')]

def write_and_die(folder):
    "Killed between the first file and the second"
    replace, done = os.replace, []
    def once(*args):
        if done: os.kill(os.getpid(), signal.SIGKILL)
        done.append(replace(*args))
    os.replace = once
    trained(1).to_ai2(folder)

@forks
def test_a_killed_write_mixes_no_models(tmp_path):
    folder = trained().to_ai2(tmp_path/'m')
    process = get_context('fork').Process(target=write_and_die, args=[folder])
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(ModelFileError, match='no folder of one'): read(folder)

# files that are not what they seem

def zeros(*shape, dtype='f4'): return dict(data=np.zeros(shape, dtype))
W0, B = ref.cell_name(1, 1) + '/W_0', 'CNN_proj/b_proj'

@pytest.mark.parametrize('name,value,why', [
    (W0, None, f'{W0} should be .* found none'),
    ('CNN_high_2/W_carry', zeros(15, 15), 'CNN_high_2/W_carry should be none'),
    ('char_embed', zeros(262, 5), r'should be \(261, 5\)'), (B, zeros(6, dtype='c8'), 'read'),
    (B, dict(data=['x']*6), 'read'), (B, dict(data=np.array([np.nan]*6)), 'not finite')])
def test_damaged_weights(tmp_path, name, value, why):
    options, weights = small(tmp_path)[2]
    with h5py.File(weights, 'r+') as f:
        if name in f: del f[name]
        if value: f.create_dataset(name, **value)
    with pytest.raises(ModelFileError, match=why): read(options, weights)

def test_huge_options_cost_nothing(tmp_path):
    "Options of a model of terabytes"
    small(tmp_path)
    options = ref.options(lstm=dict(dim=10**6, projection_dim=10**6),
                          cnn=dict(filters=[[1, 10**6]], n_highway=0))
    (tmp_path/'options.json').write_text(json.dumps(options))
    with pytest.raises(ModelFileError, match='by the options'): read(tmp_path)

def test_links(tmp_path):
    "A loop does no harm"
    options, weights = small(tmp_path)[2]
    with h5py.File(weights, 'r+') as f:
        f['CNN/again'], f['CNN/none'] = map(h5py.SoftLink, ('/CNN', '/none'))
    read(options, weights)

def test_what_is_no_hdf5(tmp_path):
    options, weights = small(tmp_path)[2]
    raw, bad = weights.read_bytes(), tmp_path/'bad'
    for data in (b'', raw[:100], raw[:-1]):
        bad.write_bytes(data)
        with pytest.raises(ModelFileError, match="bad can't be read"): read(options, bad)
    for path in (tmp_path/'nothing', tmp_path):
        with pytest.raises(ModelFileError, match="can't be read"): read(options, path)

def test_a_flipped_bit(tmp_path):
    "In what is written here it is found; elsewhere it may give another number, and no crash"
    rng = np.random.default_rng(0)
    folder = trained().to_ai2(tmp_path/'m')
    with h5py.File(folder/'weights.hdf5') as f:
        places = [f[name].id.get_chunk_info(0) for name in ('char_embed', W0)]
    places = [(info.byte_offset, info.size, True) for info in places]
    options, weights = small(tmp_path/'theirs')[2]
    places += [(0, 6000, False)]*8
    for start,size,is_ours in places:
        paths = (folder/'options.json', folder/'weights.hdf5') if is_ours else (options, weights)
        raw = bytearray(paths[1].read_bytes())
        raw[start + rng.integers(size)] ^= 1 << rng.integers(8)
        (tmp_path/'bad').write_bytes(raw)
        try: read(paths[0], tmp_path/'bad')
        except ModelFileError: continue
        assert not is_ours

@pytest.mark.parametrize('part,key,value,why', [
    ('char_cnn', 'activation', 'gelu', 'activation'), ('char_cnn', 'filters', [[1, -4]], 'filters'),
    ('char_cnn', 'filters', [[60, 4]], 'wider'), ('char_cnn', 'n_highway', 10**9, 'n_highway'),
    ('char_cnn', 'embedding', 16, 'read'), ('lstm', 'dim', 5, 'hidden_dim=5'),
    ('lstm', 'cell_clip', float('nan'), 'cell_clip'),
    ('lstm', 'use_skip_connections', 'yes', 'residual'), ('lstm', 'cell-clip', 3,
                                                          'unknown.*cell-clip')])
def test_options_that_cannot_be(tmp_path, part, key, value, why):
    small(tmp_path)
    options = ref.options()
    options[part][key] = value
    (tmp_path/'options.json').write_text(json.dumps(options))
    with pytest.raises(ModelFileError, match=f'options.json.*{why}'): read(tmp_path)

@pytest.mark.parametrize('text', ['', '[]', '['*100000, '\udcff'])
def test_options_that_are_none(tmp_path, text):
    small(tmp_path)
    (tmp_path/'options.json').write_bytes(text.encode('utf-8', 'surrogateescape'))
    with pytest.raises(ModelFileError, match="options.json can't be read"): read(tmp_path)

def test_a_projection_between_equal_sizes_must_change_nothing(tmp_path):
    folder = trained(hidden_dim=16).to_ai2(tmp_path/'m')
    read(folder)
    with h5py.File(folder/'weights.hdf5', 'r+') as f: f[ref.cell_name(0, 0) + '/W_P_0'][0, 1] = .5
    with pytest.raises(ModelFileError, match='W_P_0 should change nothing'): read(folder)

# where the files are

def test_folders(tmp_path):
    options, weights = small(tmp_path/'m')[2]
    assert read(str(tmp_path/'m')).lm.config.name == 'weights'
    (tmp_path/'m'/'second.hdf5').write_bytes(weights.read_bytes())
    for path in (tmp_path/'m', tmp_path, 'smal'):
        with pytest.raises(ModelFileError, match='small, medium.*no folder of one'): read(path)

def test_downloads(tmp_path, monkeypatch):
    paths = small(tmp_path/'there')[2]
    def retrieve(url, known_hash, fname, path, progressbar):
        if '_2x1024_' not in fname: raise requests.ConnectionError('no network')
        assert url.endswith(f"/{ai2.PUBLISHED['small']}/{fname}")
        return paths[fname.endswith('hdf5')]
    monkeypatch.setattr('pooch.retrieve', retrieve)
    check_vectors(vectors(read('small')), vectors(read(tmp_path/'there')), 0, 0)
    with pytest.raises(ModelFileError, match='name their folder.*no network'): read('medium')
