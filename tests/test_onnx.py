"""An Elmo as an ONNX file: the same vectors for any batch, models of every shape, and what is
refused"""
import subprocess, sys
from dataclasses import replace
import numpy as np, pytest, torch
import ai2_reference as reference
from elmo_fastai.all import *

CFG = BiLMConfig(
    'nano', char_dim=4, filters=((1, 8), (3, 8), (5, 4)), proj_dim=8, hidden_dim=8, dropout=.3)
SHAPES = dict(
    plain=CFG, projected=replace(CFG, hidden_dim=24),
    clipped=replace(CFG, hidden_dim=24, cell_clip=0.3, proj_clip=0.1),
    cell_clipped=replace(CFG, cell_clip=0.2, residual=False, norm=False),
    deep=replace(CFG, n_layers=3, n_highway=2, activation='tanh', share_encoder=False),
    shallow=replace(CFG, n_layers=1, n_highway=0, filters=((1, 4), (2, 4)), char_proj=False))
WORDS = 'a bank of the river springs café 河岸 <s> </s> <pad> . extraordinarily 👨‍👩‍👧'.split() + [
    '', 'x'*80]

def make(config=CFG, char_vocab=None, **settings):
    "A model in which nothing idles"
    torch.manual_seed(0)
    elmo = Elmo(BiLM(config, 0, char_vocab), **settings)
    with torch.no_grad():
        for k,p in elmo.named_parameters():
            if 'bias' in k or 'mixes' in k: p.add_(.3*torch.randn_like(p))
            elif 'lstm' in k or 'embed' in k: p.mul_(2)
        for cnn in elmo.lm.encoders:
            if cnn.norm is None: continue
            cnn.norm.running_mean.normal_()
            cnn.norm.running_var.uniform_(.5, 2.)
    return elmo.eval()

def session(file):
    "What runs a file, on one thread"
    pytest.importorskip('onnx', reason='onnx is not installed: pip install elmo_fastai[onnx]')
    runtime = pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return runtime.InferenceSession(str(file), options, providers=['CPUExecutionProvider'])

def batches(elmo):
    "Char ids in all forms that a batch can have"
    rng = np.random.default_rng(0)
    def sent(n): return [WORDS[i] for i in rng.integers(len(WORDS), size=n)]
    several = elmo.to_chars([sent(n) for n in (5, 0, 1, 12, 3, 12)])
    yield 'several lengths, an empty one', several
    yield 'one token', elmo.to_chars([sent(1)])
    yield 'long, one row padding alone', elmo.to_chars([sent(60), []])
    yield 'nothing but padding', several[1:2]
    yield 'no columns at all', several[:,:0]
    ids = rng.integers(1, elmo.lm.chars.n_chars, (4, 6, elmo.char_vocab.max_chars))
    yield 'random ids', torch.from_numpy(np.where(ids == elmo.char_vocab.bos, 1, ids))

@torch.no_grad()
def wanted(elmo, chars, layers='mix'):
    hs, mask = elmo.layers(chars)
    if layers == 'mix': return elmo(chars)[0][0], mask
    return (torch.stack(hs, 1) if layers == 'all' else hs[layers]), mask

def agree(elmo, folder, layers='mix', eps=1e-5):
    run = session(elmo.to_onnx(folder/'model.onnx', layers))
    for what,chars in batches(elmo):
        vectors, mask = run.run(None, {'chars': chars.int().numpy()})
        want, real = wanted(elmo, chars, layers)
        assert vectors.shape == tuple(want.shape) and vectors.dtype == np.float32, what
        assert np.array_equal(mask, real.numpy()), what
        if vectors.size: assert np.abs(vectors - want.numpy()).max() <= eps, what

# the same vectors

@pytest.mark.parametrize('shape', SHAPES)
def test_models_of_every_shape_agree(shape, tmp_path): agree(make(SHAPES[shape]), tmp_path)

@pytest.mark.parametrize('layers', ['all', 0, -1])
def test_layers(layers, tmp_path): agree(make(norm='batch'), tmp_path, layers)

def test_a_mix_with_settings(tmp_path):
    agree(make(n_reps=2, norm='token', shares=(.6, .3, .1), gamma=1.7), tmp_path)

def test_another_alphabet(tmp_path):
    vocab = CharVocab.build([WORDS], max_chars=12)
    agree(make(replace(CFG, n_chars=vocab.n_chars, max_chars=12), vocab), tmp_path)

@pytest.mark.parametrize('lstm', [{}, dict(cell_clip=None, proj_clip=None)], ids=str)
def test_ai2s_models_agree_with_ai2s_equations(tmp_path, lstm):
    options = reference.options(lstm=lstm)
    file = reference.random_file(options)
    elmo = Elmo.from_ai2(*reference.write(tmp_path, options, file), dropout=0.)
    agree(elmo, tmp_path)
    sents = [WORDS[:9], WORDS[3:5]]
    run = session(elmo.to_onnx(tmp_path/'all.onnx', 'all'))
    made, _ = run.run(None, {'chars': elmo.to_chars(sents).int().numpy()})
    for s,got in zip(sents, made):
        want = reference.layers(file, options, s)[:, 1:-1]          # without the marks
        assert np.abs(got[:,:len(s)] - want).max() < 1e-5

def test_what_would_give_wrong_vectors_stops_the_run(tmp_path):
    "A graph can't raise an error; wrong vectors would be worse"
    elmo = make()
    run = session(elmo.to_onnx(tmp_path/'model.onnx'))
    chars = elmo.to_chars([WORDS[:3], WORDS[:5], []]).int().numpy()
    between = chars.copy()
    between[1, 2] = 0
    for bad in (chars[:,::-1], between, np.concatenate([chars[:, -1:], chars], 1)):
        with pytest.raises(Exception, match='out of data bounds'):
            run.run(None, {'chars': np.ascontiguousarray(bad)})
    with pytest.raises(Exception, match='Expected: 50'): run.run(None, {'chars': chars[..., :20]})
    run.run(None, {'chars': chars})

# the file

def test_the_file_is_sound_and_the_model_stays_as_it_is(tmp_path):
    elmo = make(SHAPES['clipped']).train()
    before = {k: v.clone() for k,v in elmo.state_dict().items()}
    file = elmo.to_onnx(tmp_path/'new'/'model.onnx', 'all')
    assert elmo.training and all(v.equal(before[k]) for k,v in elmo.state_dict().items())
    onnx = pytest.importorskip('onnx')
    onnx.checker.check_model(str(file), full_check=True)
    model = onnx.load(file)
    sizes = {o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim]
             for o in [*model.graph.input, *model.graph.output]}
    assert sizes == dict(chars=['sentences', 'tokens', 50], mask=['sentences', 'tokens'],
                         vectors=['sentences', 3, 'tokens', 16])

WITHOUT_TORCH = '''
import sys
for name in ('torch', 'fastai', 'elmo_fastai', 'onnx'): sys.modules[name] = None
import numpy as np, onnxruntime
def spell(token, width=50):
    row = [259, *(byte + 1 for byte in token.encode())][:width-1] + [260]
    return row + [261]*(width - len(row))
chars = np.array([[spell(token) for token in 'She sat on the bank .'.split()]], np.int32)
vectors, mask = onnxruntime.InferenceSession(sys.argv[1]).run(None, {'chars': chars})
np.save(sys.argv[1] + '.npy', vectors)
'''

def test_it_runs_without_pytorch(tmp_path):
    elmo = make()
    file = elmo.to_onnx(tmp_path/'model.onnx')
    session(file)
    command = [sys.executable, '-c', WITHOUT_TORCH, file]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    want, _ = wanted(elmo, elmo.to_chars(['She sat on the bank.']))
    assert np.abs(np.load(f'{file}.npy') - want.numpy()).max() < 1e-5

# what is refused

@pytest.mark.parametrize('settings,layers,why', [
    (dict(carry=True), 'mix', 'carry=False'),
    (dict(norm='batch'), 'mix', "norm='batch'"), ({}, 7, 'layers=7')], ids=str)
def test_what_cannot_be_written(settings, layers, why, tmp_path):
    with pytest.raises(ValueError, match=why): make(**settings).to_onnx(tmp_path/'m.onnx', layers)
    assert not [*tmp_path.iterdir()]
