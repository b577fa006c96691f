"""AI2's files: against their own vectors, against a slow reference over all options, with faults
that must be found, and files that are not what they seem"""

import gzip, json, os, shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
import h5py, numpy as np, pytest, requests, torch
import addresses
import ai2_reference as ref
from elmo_fastai.elmo import ai2
from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.text.tokens import ByteCharVocab, SPECIALS, WordVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, ELMO_ORIGINAL
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.elmo.ai2 import ai2_config, ai2_files, ai2_options, ai2_vocab, load_ai2, save_ai2
import made
from copies import local
from pages import page

def chars_of(sents, W=50):
    "A batch [B, T, W] with both ends of each sentence; padding is zeros"
    cv = ByteCharVocab(W)
    rows = [np.concatenate([cv.specials[1:2], cv.encode(s), cv.specials[2:]]) for s in sents]
    out = np.zeros((len(rows), max(map(len, rows)), W), np.int16)
    for o,r in zip(out, rows): o[:len(r)] = r
    return torch.tensor(out)

@torch.no_grad()
def encode(model, sents, state=None):
    "(a [L+1, T+2, 2P] array for each sentence, the new state)"
    chars = chars_of(sents, model.config.max_chars)
    layers, state = (
        model.encode_state(chars, state) if state is not None else (model.encode(chars), None))
    y = torch.stack([torch.cat(l, -1) for l in layers]).double().numpy()
    return [y[:,i,:len(s)+2] for i,s in enumerate(sents)], state

def same_vectors(a, b, atol=1e-5, rtol=1e-7):
    for x,y in zip(encode(a, SENTS)[0], encode(b, SENTS)[0]):
        np.testing.assert_allclose(x, y, atol=atol, rtol=rtol)

def same_weights(a, b, atol=0):
    theirs = b.state_dict()
    return all(torch.allclose(v, theirs[k], atol=atol, rtol=0) for k,v in a.state_dict().items())

def arrays(path):
    "All arrays of an HDF5 file by name"
    found = {}
    def note(name, item):
        if isinstance(item, h5py.Dataset): found[name] = item[()]
    with h5py.File(path) as f: f.visititems(note)
    return found

def small(folder, name='base', seed=0, **kwargs):
    "(options, arrays, the paths of both) of a random model, written into a folder"
    o = OPTIONS[name]
    file = ref.random_file(o, seed, **kwargs)
    return o, file, ref.write(folder, o, file)

# AI2's own vectors

def fixture(): return local('ai2_fixture')

def right_sentences(model, reset=False, ends=True):
    """How many of AI2's thirty sentences have their vectors? Ten batches of three, the state
    carried through all of them"""
    sents = json.loads((fixture()/'sentences.json').read_text())
    right, state, cv = 0, model.lstm.init_state(), ByteCharVocab()
    with torch.no_grad():
        for i in range(10):
            batch = [sents[k][i].split() for k in range(3)]
            chars = (chars_of(batch) if ends else torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(cv.encode(s)) for s in batch], batch_first=True))
            layers, state = model.encode_state(chars, model.lstm.init_state() if reset else state)
            top = torch.cat(layers[-1], -1).numpy()
            for k,s in enumerate(batch):
                with h5py.File(fixture()/f'lm_embeddings_{k}.hdf5') as f:
                    want = np.concatenate(f[str(i)][()], -1)
                right += np.allclose(top[k,int(ends):][:len(s)], want, atol=1e-6, rtol=1e-5)
    return right

def test_ai2s_own_vectors():
    model = load_ai2(fixture()/'options.json', fixture()/'lm_weights.hdf5')
    assert right_sentences(model) == 30
    # nothing is remembered from call to call
    assert right_sentences(load_ai2(fixture()/'options.json', fixture()/'lm_weights.hdf5')) == 30

def fixture_file():
    return arrays(fixture()/'lm_weights.hdf5'), json.loads((fixture()/'options.json').read_text())

def halves(file):
    return {k: np.roll(v, len(v)//2, 0) if k.endswith('/W_0') else v for k,v in file.items()}

def negative_gate(sd):
    return {k: torch.cat([v.chunk(2)[0], -v.chunk(2)[1]]) if 'highway' in k else v
            for k,v in sd.items()}

def config(**kwargs): return lambda c: replace(c, **kwargs)
def same(o): return o

told = page('library/ai2')                                   # where the first of them are explained
FAULTS = dict(
    gate_order=(told.swapped, same, same), no_forget_bias=(same, told.no_forget_bias, same),
    highway_branches=(lambda file: told.renamed(file, 'carry', 'transform'), same, same),
    highway_gate=(same, negative_gate, same), input_and_state=(halves, same, same),
    ids=(same, told.no_padding_row, same), no_residual=(same, same, config(residual=False)),
    no_cell_clip=(same, same, config(cell_clip=None)),
    no_proj_clip=(same, same, config(proj_clip=None)),
    no_clips=(same, same, config(cell_clip=None, proj_clip=None)),
    activation=(same, same, config(activation='tanh')), no_fault=(same, same, same))

def broken(file, options, fault):
    "A model with one of the faults"
    on_file, on_state, on_config = FAULTS[fault]
    c = ai2_config(options)
    m = BiLM(on_config(c), 0).eval()
    m.load_state_dict(on_state(ai2.to_ours(on_file(file), c)))
    return m

@pytest.mark.parametrize('fault', [o for o in FAULTS if o not in ('no_cell_clip', 'no_proj_clip')])
def test_a_single_fault_fails_against_ai2s_vectors(fault):
    file, options = fixture_file()
    assert right_sentences(broken(file, options, fault)) == (30 if fault == 'no_fault' else 0)

def test_state_and_ends_of_sentences_matter():
    model = load_ai2(fixture()/'options.json', fixture()/'lm_weights.hdf5')
    assert right_sentences(model, reset=True) == 3 and right_sentences(model, ends=False) == 0

def test_our_reference_has_ai2s_vectors_too():
    "Who watches the watchman?"
    file, options = fixture_file()
    sents = json.loads((fixture()/'sentences.json').read_text())
    state = {}
    for i in (0, 1):
        tokens = sents[1][i].split()
        y = ref.layers(file, options, tokens, state)[-1,1:-1]
        with h5py.File(fixture()/'lm_embeddings_1.hdf5') as f:
            np.testing.assert_allclose(y, np.concatenate(f[str(i)][()], -1), atol=2e-6, rtol=1e-5)

# the reference, over all options

SENTS = ["She sat on the bank .".split(), ['.'], [], ['é'*40, 'x'*200, 'a'*47 + 'ß', 'bank'],
    ['ბანკი', '🏦', 'नदी', '', '<s>', '\x00\xff']]
OPTIONS = dict(
    base=ref.options(),
    published=ref.options(bidirectional=True, dropout=0.1, n_tokens_vocab=793471, unroll_steps=20,
                          cnn=dict(n_characters=261)),
    no_residual=ref.options(lstm=dict(use_skip_connections=False)),
    residual_left_out=ref.options(drop=['use_skip_connections']),
    no_cnn_projection=ref.options(lstm=dict(projection_dim=15)),
    no_lstm_projection=ref.options(lstm=dict(dim=6)),
    no_projection=ref.options(lstm=dict(dim=15, projection_dim=15)),
    more_features_than_filters=ref.options(lstm=dict(projection_dim=18)),
    no_highway=ref.options(cnn=dict(n_highway=0)),
    highway_left_out=ref.options(drop=['n_highway']),
    highway_null=ref.options(cnn=dict(n_highway=None)),
    three_highways=ref.options(cnn=dict(n_highway=3)),
    tanh=ref.options(cnn=dict(activation='tanh')),
    one_layer=ref.options(lstm=dict(n_layers=1)),
    layers_left_out=ref.options(drop=['n_layers']),
    three_layers=ref.options(lstm=dict(n_layers=3)),
    no_clips=ref.options(lstm=dict(cell_clip=None, proj_clip=None)),
    clips_left_out=ref.options(drop=['cell_clip', 'proj_clip']),
    cell_clip_only=ref.options(drop=['proj_clip']),
    proj_clip_only=ref.options(lstm=dict(cell_clip=None)),
    short_words=ref.options(cnn=dict(max_characters_per_token=7)),
    shortest=ref.options(cnn=dict(max_characters_per_token=4)),
    long_words=ref.options(cnn=dict(max_characters_per_token=120)),
    one_filter=ref.options(cnn=dict(filters=[[3, 9]])),
    everything_else=ref.options(
        cnn=dict(activation='tanh', n_highway=0, max_characters_per_token=20),
        lstm=dict(use_skip_connections=False, n_layers=4, cell_clip=None, dim=15,
                  projection_dim=15)))

@pytest.mark.parametrize('name', OPTIONS)
def test_all_options_and_layers(name, tmp_path):
    o, file, paths = small(tmp_path, name, len(name))
    model = load_ai2(*paths)
    assert not model.training and model.head is None and model.n_words == 0
    for sents in (SENTS, SENTS[:1]):
        for s,y in zip(sents, encode(model, sents)[0]):
            want = ref.layers(file, o, s)
            assert y.shape == want.shape
            # one batch of all, and alone
            np.testing.assert_allclose(y, want, atol=3e-5, rtol=1e-4)
    # and the same after writing it
    again = load_ai2(save_ai2(tmp_path/'again', model))
    same_vectors(model, again)
    third = load_ai2(save_ai2(tmp_path/'third', again))
    assert same_weights(again, third, 1e-5) and third.config == again.config
    if name != 'more_features_than_filters':
        written = arrays(tmp_path/'again'/'weights.hdf5')
        for k, v in file.items():
            assert written[k].dtype == np.float32 and np.array_equal(written[k], v), k

@pytest.mark.parametrize('fault', FAULTS)
def test_a_single_fault_fails_against_the_reference(fault):
    o = ref.options()
    file = ref.random_file(o)
    off = max(np.abs(y - ref.layers(file, o, s)).max()
              for s, y in zip(SENTS, encode(broken(file, o, fault), SENTS)[0]))
    assert off < 3e-5 if fault == 'no_fault' else off > 3e-2, off

@pytest.mark.parametrize('name', ['base', 'no_lstm_projection', 'three_layers'])
def test_carried_state(name, tmp_path):
    "Row by row from batch to batch; rows that a batch lacks keep theirs"
    o, file, paths = small(tmp_path, name, 3)
    model, states = load_ai2(*paths), [{}, {}, {}]
    state = model.lstm.init_state()
    for batch in (SENTS[:3], SENTS[3:], SENTS[:1], SENTS[2:]):
        ys, state = encode(model, batch, state)
        for s, y, st in zip(batch, ys, states):
            np.testing.assert_allclose(y, ref.layers(file, o, s, st), atol=5e-5, rtol=1e-4)

def test_one_layer_as_tensorflow_names_it(tmp_path):
    "A cell that is alone has no MultiRNNCell around it"
    o, file, paths = small(tmp_path/'a', 'one_layer')
    named = ref.write(tmp_path/'b', o, file, rename=lambda k: k.replace('MultiRNNCell/Cell0/', ''))
    assert same_weights(load_ai2(*paths), load_ai2(*named))

def test_weights_lie_where_pytorch_would_put_them(tmp_path):
    "NumPy's arrays lie elsewhere, where products may round otherwise"
    *_, paths = small(tmp_path, 'one_layer')
    with addresses.usual(): lm = load_ai2(*paths)
    assert {weight.data_ptr() % 64 for weight in lm.state_dict().values()} == {0}

def test_other_floats_and_compression(tmp_path):
    o, file, paths = small(tmp_path/'a')
    for kw in dict(dtype='>f4'), dict(dtype='f8'), dict(compression='gzip', shuffle=True):
        other = load_ai2(*ref.write(tmp_path/'b', o, file, **kw))
        assert same_weights(load_ai2(*paths), other)
        assert {v.dtype for v in other.state_dict().values()} == {torch.float32}

def test_the_loaded_model_is_an_ordinary_one(tmp_path):
    "It trains, is copied, saved and moved to other types like one that was trained here"
    model = load_ai2(*small(tmp_path)[2])
    assert all(p.requires_grad != ('bias_hh' in k) for k,p in model.named_parameters())
    before = encode(model, SENTS)[0]
    loaded, vocab = load_bilm(save_bilm(tmp_path/'ours', model, None))
    assert vocab is None
    for m in (deepcopy(model), loaded): same_vectors(model, m)
    sum(y.sum() for y in model.train().encode(chars_of(SENTS))[-1]).backward()
    assert (model.lstm.fwd[1].weight_hh_l0.grad.abs().sum() > 0
            and model.chars.convs[0].weight.grad.abs().sum() > 0)

# the softmax and its words

WORDS = '<S>\n</S>\n<UNK>\nthe\nbank\nriver\n'

def scores_by_hand(file, o, tokens, order):
    """Log-probabilities of the words in `order` (lines of the vocabulary file) after each position,
    forward"""
    P = o['lstm']['projection_dim']
    h = ref.layers(file, o, tokens)[-1][:,:P]
    z = h @ file['softmax/W'].astype(float).T + file['softmax/b']
    z -= np.log(np.exp(z).sum(-1, keepdims=True))
    return z[:,order]

def test_softmax_with_a_vocabulary_file(tmp_path):
    o, file, paths = small(tmp_path, n_words=8)
    # marks anywhere, and a line that the original skips
    text = 'the\n<UNK>\nbank\n</S>\nriver\n!!!MAXTERMID\n<S>\n.\nß\n'
    (tmp_path/'words.txt').write_text(text, encoding='utf-8')
    model, vocab = load_ai2(*paths, vocab=tmp_path/'words.txt'), ai2_vocab(tmp_path/'words.txt')
    assert vocab.itos == [*SPECIALS, 'the', 'bank', 'river', '.', 'ß'] and model.n_words == 9
    s = SENTS[0]
    with torch.no_grad():
        lp = model.head.log_prob(model.encode(chars_of([s]))[-1][0][0]).double().numpy()
    want = scores_by_hand(file, o, s, [1, 5, 3, 0, 2, 4, 6, 7])
    np.testing.assert_allclose(lp[:,1:], want, atol=3e-5)
    assert (np.exp(lp[:,0]) == 0).all()                                        # padding is no word
    fwd = torch.tensor([[4, 5, 1, 3, 6, 7, 8, 0]])
    nll = model(chars_of([s]), fwd, torch.zeros_like(fwd))[0].detach().numpy()
    np.testing.assert_allclose(nll, -lp[range(7), fwd[0,:7]], atol=1e-5)

def test_softmax_round_trip(tmp_path):
    _, file, _ = small(tmp_path, n_words=6)
    (tmp_path/'vocab.txt').write_text(WORDS)
    # the folder's vocab.txt is found
    model, vocab = load_ai2(tmp_path), ai2_vocab(tmp_path/'vocab.txt')
    for v,name in ((vocab, 'a'), (None, 'b')):
        folder = save_ai2(tmp_path/name, model, v)
        written = arrays(folder/'weights.hdf5')
        for k in file: assert np.array_equal(written[k], file[k]), k
        assert same_weights(model, load_ai2(folder), 1e-5)
        assert (folder/'vocab.txt').exists() == (v is not None)
    assert (tmp_path/'a'/'vocab.txt').read_bytes() == WORDS.encode()
    assert json.loads((tmp_path/'a'/'options.json').read_text())['n_tokens_vocab'] == 6

@pytest.mark.parametrize('name', ['vocab.txt', 'vocab.txt.gz'])
@pytest.mark.parametrize('mark', ['', '\ufeff'])
@pytest.mark.parametrize('named', [False, True])
def test_a_vocabulary_beside_the_weights(tmp_path, name, mark, named):
    "Packed or not, with a byte-order mark or without, whether the folder is named or both files"
    *_, paths = small(tmp_path, n_words=6)
    data = (mark + WORDS).encode()
    (tmp_path/name).write_bytes(gzip.compress(data) if name.endswith('.gz') else data)
    _, vocab = ai2.read_ai2(*(paths if named else [tmp_path]))
    assert (vocab.itos == [*SPECIALS, 'the', 'bank', 'river']
            and ai2_vocab(tmp_path/name).itos == vocab.itos)
    (tmp_path/name).write_bytes(b'\xff\xfe<S>')
    with pytest.raises(ModelFileError, match=f"{name} can't be read"): load_ai2(tmp_path)
    (tmp_path/name).write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(ModelFileError, match=name): load_ai2(tmp_path)

@pytest.mark.parametrize('text,message', [
    ('the\n<S>\n</S>\n', '<UNK> is missing'), ('', 'is missing'), (WORDS + 'more\n', '6 words'),
    ('<S>\n</S>\n<UNK>\n', '6 words')])
def test_wrong_vocabulary_files(tmp_path, text, message):
    *_, paths = small(tmp_path, n_words=6)
    (tmp_path/'v').write_text(text)
    with pytest.raises(ModelFileError, match=message):
        load_ai2(*paths, vocab=tmp_path/'v')
    (tmp_path/'v').write_bytes(b'\xff\xfe<S>')
    with pytest.raises(ModelFileError, match="can't be read"):
        load_ai2(*paths, vocab=tmp_path/'v')
    with pytest.raises(ModelFileError, match="can't be read"):
        load_ai2(*paths, vocab=tmp_path/'nothing')

def test_words_that_clash_with_our_marks_keep_their_rows(tmp_path):
    (tmp_path/'v').write_text('<S>\n</S>\n<UNK>\nthe\n<unk>\n<pad>\nthe\n\n<s>\n', encoding='utf-8')
    v, rows = ai2.read_vocab(tmp_path/'v')
    assert rows == [2, 0, 1, 3, 4, 5, 6, 7, 8] and len(set(v.itos)) == len(v) == 10
    assert v.encode(['the', '<unk>', '<pad>', 'cat']) == [4, 1, 1, 1]

# trained here

CFG = BiLMConfig(
    'nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=16, hidden_dim=20, dropout=0.1
)
VOCAB = WordVocab([*SPECIALS, 'the', 'bank', 'river', '.', 'ß'])

def trained(seed=0, **kwargs):
    "A biLM with statistics in its normalisation and weights that differ from their start"
    torch.manual_seed(seed)
    m = BiLM(replace(CFG, **kwargs), len(VOCAB)).train()
    for _ in range(3):
        with torch.no_grad():
            m.encode(chars_of(SENTS))
            for p in m.parameters(): p.add_(.3*torch.randn_like(p)) if p.requires_grad else None
    return m.eval()

OURS = [dict(), dict(norm=False), dict(hidden_dim=16), dict(residual=False, n_layers=3),
        dict(n_highway=0, activation='tanh'), dict(cell_clip=0.4, proj_clip=0.2),
        dict(proj_dim=24, hidden_dim=24), dict(proj_dim=24, hidden_dim=24, char_proj=False),
        dict(proj_dim=24, hidden_dim=30, char_proj=False, norm=False),
        dict(proj_dim=40, hidden_dim=40), dict(proj_dim=40, hidden_dim=40, n_highway=0, norm=False),
        dict(cutoffs=())]

@pytest.mark.parametrize('kwargs', OURS)
def test_models_trained_here(kwargs, tmp_path):
    model = trained(**kwargs)
    state = {k: v.clone() for k,v in model.state_dict().items()}
    loaded = load_ai2(save_ai2(tmp_path/'m', model, VOCAB))
    # not changed
    assert (all(torch.equal(v, model.state_dict()[k]) for k, v in state.items())
            and model.chars.norm is None or model.config.norm)
    file = arrays(tmp_path/'m'/'weights.hdf5')
    o = json.loads((tmp_path/'m'/'options.json').read_text())
    n, P = sum(k for _,k in o['char_cnn']['filters']), o['lstm']['projection_dim']
    assert 'CNN_proj/W_proj' in file and n >= P     # AllenNLP wants it always
    same_vectors(model, loaded, 2e-5, 1e-4)
    for s,a in zip(SENTS, encode(model, SENTS)[0]):
        np.testing.assert_allclose(ref.layers(file, o, s), a, atol=2e-4, rtol=1e-4)
    h = torch.randn(4, P)
    torch.testing.assert_close(model.head(h)[:,1:], loaded.head(h)[:,1:])
    assert ai2_vocab(tmp_path/'m'/'vocab.txt').itos == VOCAB.itos
    again = load_ai2(save_ai2(tmp_path/'again', loaded, VOCAB))
    assert same_weights(loaded, again, 1e-5)

def test_adaptive_softmax_is_left_out_with_a_warning(tmp_path):
    model = trained(cutoffs=(6,))
    with pytest.warns(UserWarning, match='adaptive softmax'): save_ai2(tmp_path/'m', model, VOCAB)
    loaded = load_ai2(tmp_path/'m')
    assert loaded.head is None
    same_vectors(model, loaded, 2e-5, 1e-4)

def test_what_the_format_cannot_hold(tmp_path):
    def refused(match, model=None, vocab=VOCAB, to='m'):
        with pytest.raises(ValueError, match=match):
            save_ai2(tmp_path/to, model or trained(), vocab)

    refused('one character encoder', trained(share_encoder=False))
    refused('one character encoder', trained(share_softmax=False))
    refused('4 words', vocab=WordVocab(SPECIALS))
    for w in ('<S>', '</S>', '<UNK>', '!!!MAXTERMID', 'two\nlines', 'two\rlines', ' space',
              'nbsp\u00a0'):
        refused("can't stand", vocab=WordVocab([*VOCAB.itos[:-1], w]))
    (tmp_path/'full').mkdir(); (tmp_path/'full'/'thesis.tex').write_text('important')
    refused('thesis.tex', to='full')
    assert (tmp_path/'full'/'thesis.tex').read_text() == 'important' and [
        o.name for o in tmp_path.iterdir()] == ['full']

def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    model = trained()
    save_ai2(tmp_path/'m', model, VOCAB)
    before = {o.name: o.read_bytes() for o in (tmp_path/'m').iterdir()}
    def full(*args, **kwargs): raise OSError(28, 'No space left on device')
    with monkeypatch.context() as mp:
        mp.setattr(h5py.Group, 'create_dataset', full)
        with pytest.raises(OSError, match='No space'): save_ai2(tmp_path/'m', trained(1), VOCAB)
    assert {o.name: o.read_bytes() for o in (tmp_path/'m').iterdir()} == before and len(
        list(tmp_path.iterdir())) == 1
    # an older model of ours is replaced as a whole
    save_ai2(tmp_path/'m', trained(1), None)
    assert sorted(o.name for o in (tmp_path/'m').iterdir()) == [
        'SHA256SUMS', 'options.json', 'weights.hdf5']

def test_half_precision_is_written_in_full(tmp_path):
    model = trained().bfloat16()
    loaded = load_ai2(save_ai2(tmp_path/'m', model, VOCAB))
    assert loaded.lstm.fwd[0].weight_hh_l0.dtype == torch.float32
    assert torch.equal(loaded.lstm.fwd[0].weight_ih_l0, model.lstm.fwd[0].weight_ih_l0.float())

# files that are not what they seem

@pytest.fixture
def good(tmp_path):
    return small(tmp_path/'good')[2]

def changed(good, tmp_path, change):
    paths = [tmp_path/p.name for p in good]
    for p,q in zip(good, paths): shutil.copy(p, q)
    with h5py.File(paths[1], 'r+') as f: change(f)
    return paths

def put(f, k, v):
    "In place of an array another one, the arguments for one, or (None) nothing"
    if k in f: del f[k]
    if v is not None: f.create_dataset(k, **(v if isinstance(v, dict) else dict(data=v)))

def zeros(*shape, dtype='f4'): return np.zeros(shape, dtype)

W0 = ref.cell_name(1, 1) + '/W_0'
B = 'CNN_proj/b_proj'
HUGE = dict(dtype='f4', chunks=True)

@pytest.mark.parametrize('change,message', [
    ({W0: None}, f'{W0} is missing'),
    ({'RNN_1': None}, 'RNN_1/.* is missing'),
    ({'CNN_high_2/W_carry': zeros(15, 15)}, 'CNN_high_2/W_carry is not part'),
    (dict(global_step=17), 'global_step is not part'),
    (dict(char_embed=zeros(262, 5)),
     r'char_embed should be \(261, 5\) by the options, found \(262, 5\)'),
    (dict(char_embed=zeros(5, 261)), r'found \(5, 261\)'),
    ({B: zeros(6, 1)}, r'CNN_proj/b_proj should be \(6,\)'),
    ({B: zeros(6, dtype='i4')}, 'should hold floats, found int32'),
    ({B: zeros(6, dtype='c8')}, 'should hold floats, found complex64'),
    ({B: np.array([b'x']*6)}, 'should hold floats'),
    ({B: dict(data=['x']*6, dtype=h5py.string_dtype())}, 'should hold floats'),
    ({B: np.array([1, 2, np.nan, 4, 5, 6], 'f4')}, f'{B} holds numbers that are not finite'),
    ({B: np.array([1e300]*6)}, 'not finite'),
    ({'softmax/W': zeros(9, 6)}, 'softmax/b is missing'),
    ({'softmax/b': zeros(9)}, 'softmax/W is missing'),
    ({'softmax/b': zeros(9), 'softmax/W': zeros(8, 6)}, r'softmax/W should be \(9, 6\)'),
    ({'softmax/b': zeros(0), 'softmax/W': zeros(0, 6)}, 'softmax'),
    ({'softmax/b': zeros(2), 'softmax/W': zeros(2, 6)}, '2 words'),
    ({'softmax/b': zeros(), 'softmax/W': zeros(2, 6)}, 'softmax'),
    ({'softmax/b': dict(shape=10**10, **HUGE), 'softmax/W': dict(shape=(10**10, 6), **HUGE)},
     'declares 280,000,')])
def test_damaged_weights(good, tmp_path, change, message):
    def put_all(f):
        for k,v in change.items(): put(f, k, v)
    with pytest.raises(ModelFileError, match=message): load_ai2(*changed(good, tmp_path, put_all))

def test_huge_sizes_cost_nothing(good, tmp_path):
    "Options and file agree on a model of terabytes, and the file has a few kilobytes"
    o = ref.options(
        lstm=dict(dim=10**6, projection_dim=10**6), cnn=dict(filters=[[1, 10**6]], n_highway=0)
    )
    (tmp_path/'options.json').write_text(json.dumps(o))
    with h5py.File(tmp_path/'weights.hdf5', 'w') as f:
        for k, s in ai2.array_shapes(ai2_config(o)).items():
            f.create_dataset(k, s, 'f4', chunks=tuple(min(1000, n) for n in s))
    with pytest.raises(ModelFileError, match='declares'):
        load_ai2(tmp_path/'options.json', tmp_path/'weights.hdf5')

def test_no_other_file_is_read(good, tmp_path):
    secret = tmp_path/'secret'
    secret.write_bytes(np.arange(6, dtype='f4').tobytes())
    with h5py.File(tmp_path/'other.hdf5', 'w') as f: f['b'] = np.zeros(6, 'f4')

    def external(f):
        del f['CNN_proj/b_proj']
        f.create_dataset('CNN_proj/b_proj', (6,), 'f4', external=[(str(secret), 0, 24)])

    def virtual(f):
        del f['CNN_proj/b_proj']
        layout = h5py.VirtualLayout((6,), 'f4')
        layout[:] = h5py.VirtualSource(str(tmp_path/'other.hdf5'), 'b', (6,))
        f.create_virtual_dataset('CNN_proj/b_proj', layout)

    def link(f):
        del f['CNN_proj/b_proj']
        f['CNN_proj/b_proj'] = h5py.ExternalLink(str(tmp_path/'other.hdf5'), '/b')

    for change, message in ((external, 'lies in another file'), (virtual, 'lies in another file'),
                            (link, 'b_proj is missing')):
        with pytest.raises(ModelFileError, match=message):
            load_ai2(*changed(good, tmp_path, change))

def test_loops_of_links(good, tmp_path):
    def loop(f):
        f['CNN/again'] = h5py.SoftLink('/CNN')
        f['CNN/nowhere'] = h5py.SoftLink('/nowhere')
        f['RNN_0/up'] = f['/']

    load_ai2(*changed(good, tmp_path, loop))

def test_no_hdf5(good, tmp_path):
    raw = good[1].read_bytes()
    bad = tmp_path/'bad'
    for data in (b'', b'\x89HDF', b'<html>no</html>'*500, raw[:100], raw[:len(raw) // 2],
                 raw[:-1], b'x' + raw[1:], os.urandom(5000)):
        bad.write_bytes(data)
        with pytest.raises(ModelFileError, match='bad'):
            load_ai2(good[0], bad)
    with pytest.raises(ModelFileError, match='nothing.*can.t be read'):
        load_ai2(good[0], tmp_path/'nothing')
    with pytest.raises(ModelFileError, match="can't be read"): load_ai2(good[0], tmp_path)

def test_flipped_bytes_never_crash(good, tmp_path):
    "Anywhere in the file: either an error for people, or a model of the right shape"
    raw, rng, bad = good[1].read_bytes(), np.random.default_rng(0), tmp_path/'bad'
    for at in rng.integers(0, 6000, 60).tolist():
        data = bytearray(raw); data[at] ^= 0xff
        bad.write_bytes(data)
        try: assert isinstance(load_ai2(good[0], bad), BiLM)
        except ModelFileError: pass

@pytest.mark.parametrize('cnn,lstm,message', [
    (dict(activation='gelu'), {}, 'activation'),
    (dict(filters=[]), {}, 'filters|biLM'),
    (dict(filters=[[1, -4]]), {}, 'filters'),
    (dict(filters='no'), {}, 'biLM'),
    (dict(filters=[[1, 4, 4]]), {}, 'biLM'),
    (dict(filters=[[60, 4]]), {}, 'wider'),
    (dict(filters=[[1, 10**30]]), {}, 'filters'),
    (dict(n_highway=-1), {}, 'n_highway'),
    (dict(n_highway=10**9), {}, 'n_highway'),
    (dict(n_characters=60), {}, '60'),
    (dict(n_characters='262'), {}, '262'),
    (dict(max_characters_per_token=2), {}, 'max_chars'),
    (dict(embedding=16), {}, 'biLM'),
    (dict(embedding={}), {}, "'dim'"),
    ({}, dict(dim=0), 'hidden_dim'),
    ({}, dict(dim=5), 'hidden_dim=5'),
    ({}, dict(dim=20.0), 'hidden_dim'),
    ({}, dict(dim=True), 'hidden_dim'),
    ({}, dict(projection_dim=-6), 'proj_dim'),
    ({}, dict(projection_dim='6'), 'biLM'),
    ({}, dict(n_layers=0), 'n_layers'),
    ({}, dict(n_layers=10**9), 'n_layers'),
    ({}, dict(cell_clip=-3), 'cell_clip'),
    ({}, dict(cell_clip=0), 'cell_clip'),
    ({}, dict(cell_clip=float('nan')), 'cell_clip'),
    ({}, dict(use_skip_connections='yes'), 'residual'),
    (None, {}, "'char_cnn'"), (False, {}, 'one direction')])
def test_options_that_cannot_be(good, tmp_path, cnn, lstm, message):
    p = tmp_path/'o.json'
    o = ref.options(cnn=cnn or {}, lstm=lstm)
    if cnn is None: del o['char_cnn']                            # a model of words
    if cnn is False: o['bidirectional'] = False
    p.write_text(json.dumps(o))
    with pytest.raises(ModelFileError, match=message):
        load_ai2(p, good[1])

@pytest.mark.parametrize('text,message', [
    ('', "can't be read"),
    ('[]', 'list'),
    ('null', 'NoneType'),
    ('{}', "'char_cnn'"),
    ('{"lstm": 3, "char_cnn": 4}', 'biLM'),
    ('['*100000, "can't be read"),
    ('{"lstm": {}, "char_cnn": {}}', "'filters'"),
    ('{"lstm": ' + ' '*2_000_000 + '{}}', 'too many'),
    ('\ud800'.encode('utf-8', 'surrogatepass').decode('latin1'), "can't be read")])
def test_options_that_are_none(good, tmp_path, text, message):
    p = tmp_path/'o.json'
    p.write_text(text, encoding='utf-8')
    with pytest.raises(ModelFileError, match=message):
        load_ai2(p, good[1])

def test_folders(good, tmp_path):
    folder = good[0].parent
    assert isinstance(load_ai2(str(folder)), BiLM)
    shutil.copy(good[1], folder/'second.hdf5')
    with pytest.raises(ModelFileError, match='has 2'): load_ai2(folder)
    with pytest.raises(ModelFileError, match='has 0'): load_ai2(tmp_path)
    with pytest.raises(ModelFileError, match='small, medium, original, original_5.5B'):
        load_ai2('smal')

# downloads

LONG = '2x24_6_15cnn_2xhighway'
OPT = ref.options(lstm=dict(cell_clip=3., proj_clip=3., dim=24))

class Publisher:
    "In the place of pooch's downloader: has `files`, and writes down what was asked"
    def __init__(self, **kwargs): pass
    asked, files = [], {}
    def __call__(self, url, path, pooch):
        name = url.rpartition('/')[2]
        self.asked.append(name)
        if name not in self.files: raise requests.ConnectionError('no network')
        Path(path).write_bytes(self.files[name])

@pytest.fixture
def server(tmp_path, monkeypatch):
    "The publisher of one small model"
    paths = ref.write(tmp_path/'there', OPT, ref.random_file(OPT))
    monkeypatch.setattr(Publisher, 'files', {
        f'elmo_{LONG}_{path.name}': path.read_bytes() for path in paths})
    monkeypatch.setattr(Publisher, 'asked', [])
    monkeypatch.setattr('pooch.HTTPDownloader', Publisher)
    monkeypatch.setitem(ai2.AI2_MODELS, 'mini', LONG)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return Publisher

def test_download_once(server, tmp_path):
    model = load_ai2('mini')
    assert model.config.hidden_dim == 24 and len(server.asked) == 2
    options, weights = ai2_files('mini')
    assert len(server.asked) == 2 and weights.read_bytes() == server.files[weights.name]
    assert str(tmp_path/'cache') in str(weights)
    # nothing is left lying about
    assert {o.suffix for o in weights.parent.iterdir()} == {'.json', '.hdf5'}
    same_vectors(model, load_ai2(tmp_path/'there'))

def test_another_file_under_the_right_name(server, tmp_path):
    """A page of a server that moved, or a model of another shape: found before anything is built
    from it"""
    good = dict(server.files)
    server.files[f'elmo_{LONG}_weights.hdf5'] = b'<html>moved</html>'
    with pytest.raises(ModelFileError, match="weights.hdf5 can't be read as HDF5"): load_ai2('mini')
    assert not list((tmp_path/'cache').rglob('*.hdf5'))                       # and never kept
    server.files[f'elmo_{LONG}_options.json'] = b'<html>Please log in</html>'
    shutil.rmtree(tmp_path/'cache')
    with pytest.raises(ModelFileError, match='options.json is not the file that it should be'):
        load_ai2('mini')
    assert not list((tmp_path/'cache').rglob('*.json'))
    server.files = {
        **good,
        f'elmo_{LONG}_options.json': json.dumps(ref.options(lstm=dict(dim=30))).encode(),
    }
    with pytest.raises(ModelFileError, match='should be .* by the options'): load_ai2('mini')

def test_what_to_do_without_the_server(server):
    server.files.clear()
    with pytest.raises(ModelFileError, match='no connection.*folder'): ai2_files('mini')

def test_local_copies(server, tmp_path):
    folder = tmp_path/'mine'; folder.mkdir()
    for k,v in server.files.items(): (folder/k).write_bytes(v)
    options, weights = ai2_files('mini', folder)
    assert (not server.asked and weights.parent == folder
            and isinstance(load_ai2(options, weights), BiLM))
    assert isinstance(load_ai2(folder), BiLM)
    # or downloaded to where you say
    ai2_files('mini', tmp_path/'elsewhere')
    assert (tmp_path/'elsewhere'/weights.name).exists() and not (tmp_path/'cache').exists()

# the published models

def published(long):
    "The configuration that the name of a published model states"
    C, P, _, n = (
        int(''.join(filter(str.isdecimal, o))) for o in long.removeprefix('2x').split('_')[:4])
    return replace(ELMO_ORIGINAL, n_highway=n, proj_dim=P, hidden_dim=C, cutoffs=())

def test_the_published_shapes():
    sizes = {k: sum(int(np.prod(s)) for s in ai2.array_shapes(published(v)).values())
             for k, v in ai2.AI2_MODELS.items()}
    assert sizes == {'small': 13_593_296, 'medium': 28_027_728, 'original': 93_600_848,
                     'original_5.5B': 93_600_848}
    for c in map(published, ai2.AI2_MODELS.values()):
        assert replace(ai2_config(ai2_options(c)), name='original') == replace(c, dropout=0.0)

# what AllenNLP demands

@pytest.mark.parametrize('part,key', [
    ('lstm', 'use_skip_conections'), ('lstm', 'cell-clip'), ('char_cnn', 'n_highways')])
def test_a_misspelt_option_is_refused(part, key):
    options = ai2_options(trained().config)
    options[part][key] = 1
    with pytest.raises(ModelFileError, match=f"{part} has an unknown key '{key}'"):
        ai2_config(options)

def test_a_projection_between_equal_sizes_must_change_nothing(tmp_path):
    folder = save_ai2(tmp_path/'m', trained(hidden_dim=trained().config.proj_dim), None)
    (folder/'SHA256SUMS').unlink()
    with h5py.File(folder/'weights.hdf5', 'r+') as f:
        f['RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_P_0'][0, 1] = .5
    with pytest.raises(ModelFileError, match='W_P_0 should change nothing'): load_ai2(folder)

@pytest.mark.parametrize('name', ['options.json', 'weights.hdf5', 'vocab.txt', 'SHA256SUMS'])
def test_a_flipped_bit_is_refused(tmp_path, name):
    file = save_ai2(tmp_path/'m', trained(), VOCAB)/name
    raw = file.read_bytes()
    for i in np.random.default_rng(0).choice(8*len(raw), 12, replace=False).tolist():
        damaged = bytearray(raw)
        damaged[i//8] ^= 1 << i % 8
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError): load_ai2(tmp_path/'m')

@pytest.mark.parametrize('kwargs', OURS, ids=str)
def test_a_reader_as_allennlps_gets_the_vectors(tmp_path, kwargs):
    "A reader that demands every projection and both clips; it shares no line with the library"
    model = trained(**kwargs)
    folder = Elmo(model, VOCAB).to_ai2(tmp_path/'m')
    options = json.loads((folder/'options.json').read_text())
    file = arrays(folder/'weights.hdf5')
    for sentence, found in zip(SENTS[:4], encode(model, SENTS[:4])[0]):
        np.testing.assert_allclose(
            ref.allennlp_layers(file, options, sentence), found, atol=1e-5, rtol=1e-5)

# AI2's files

def test_ai2_round_trip(tmp_path):
    elmo = made.make(cfg=dict(cell_clip=3., proj_clip=3.))
    again = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'), dropout=0.)
    assert made.close(again(made.S)[0][0], elmo(made.S)[0][0])
    assert set(again.vocab.itos) == set(made.VOCAB.itos)
    by_path = Elmo.from_ai2(tmp_path/'ai2'/'options.json', tmp_path/'ai2'/'weights.hdf5',
                            dropout=0.0, carry=True, n_reps=2)
    assert made.close(by_path(made.S)[0][1], elmo(made.S)[0][0]) and by_path.carry
    kept = by_path.save_pretrained(tmp_path/'ours')
    assert made.close(Elmo.from_pretrained(kept)(made.S)[0][1], elmo(made.S)[0][0])
    with pytest.raises(ModelFileError): Elmo.from_ai2(tmp_path/'nothing')

def test_ai2s_own_vectors_through_the_module():
    elmo = Elmo.from_ai2(fixture()/'options.json', fixture()/'lm_weights.hdf5', tokenizer='space',
                         carry=True)
    sents = json.loads((fixture()/'sentences.json').read_text())
    for i in range(10):
        layers, mask = elmo.layers([s[i] for s in sents])
        for k in range(3):
            with h5py.File(fixture()/f'lm_embeddings_{k}.hdf5') as f:
                wanted = np.concatenate(f[str(i)][:], -1)
            assert made.close(layers[-1][k, mask[k]], wanted)
