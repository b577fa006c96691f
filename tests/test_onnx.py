"""An Elmo as an ONNX file: the same vectors for any batch, models of every shape, and what is
refused"""

import os, subprocess, sys
from dataclasses import replace
from pathlib import Path

import numpy as np, pytest, torch

from elmo_fastai.text.tokens import CharVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo import Elmo
from elmo_fastai.elmo import onnx as module
import ai2_reference as reference

def runtime():
    "`onnxruntime`, where it and `onnx` are installed"
    pytest.importorskip('onnx', reason='onnx is not installed: pip install elmo_fastai[onnx]')
    return pytest.importorskip(
        'onnxruntime', reason='onnxruntime is not installed: pip install elmo_fastai[onnx]'
    )

CFG = BiLMConfig(
    'nano', char_dim=4, filters=((1, 8), (3, 8), (5, 4)), proj_dim=8, hidden_dim=8, dropout=0.3
)
SHAPES = dict(
    plain=CFG, projected=replace(CFG, hidden_dim=24),
    clipped=replace(CFG, hidden_dim=24, cell_clip=0.3, proj_clip=0.1),
    cell_clipped=replace(CFG, cell_clip=0.2), straight=replace(CFG, residual=False, norm=False),
    deep=replace(CFG, n_layers=3, n_highway=2, activation='tanh'),
    shallow=replace(CFG, n_layers=1, n_highway=0), separate=replace(CFG, share_encoder=False),
    unprojected=replace(CFG, filters=((1, 4), (2, 4)), char_proj=False))
WORDS = 'a bank of the river springs café 河岸 <s> </s> <pad> . extraordinarily 👨‍👩‍👧'.split() + [
    '', 'x'*80]

def make(config=CFG, seed=0, **kw):
    "A model in which nothing idles"
    torch.manual_seed(seed)
    elmo = Elmo(BiLM(config, 0, kw.pop('char_vocab', None)), **kw)
    with torch.no_grad():
        for k,p in elmo.named_parameters():
            if 'bias' in k or 'mixes' in k: p.add_(.3*torch.randn_like(p))
            elif 'lstm' in k or 'embed' in k: p.mul_(2)
        for cnn in (elmo.lm.chars, elmo.lm.chars_bwd):
            if cnn is not None and cnn.norm is not None:
                cnn.norm.running_mean.normal_(); cnn.norm.running_var.uniform_(.5, 2.)
    return elmo.eval()

def session(model):
    "What runs a model, or a file, on one thread"
    ort = runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    what = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(what, options, providers=['CPUExecutionProvider'])

def batches(elmo, seed=0):
    "Char ids in all forms that a batch can have"
    rng = np.random.default_rng(seed)
    def sent(n): return [WORDS[i] for i in rng.integers(len(WORDS), size=n)]
    several = elmo.to_chars([sent(n) for n in (5, 0, 1, 12, 3, 12)])
    least = max(elmo.lm.chars.widest, 3)
    yield 'several lengths, an empty one', several
    yield 'one sentence', elmo.to_chars([sent(7)])
    yield 'one token', elmo.to_chars([sent(1)])
    yield 'long, one row padding alone', elmo.to_chars([sent(60), []])
    yield 'nothing but padding', several[1:2]
    yield 'no columns at all', several[:,:0]
    yield 'tokens as narrow as the widest filter', several[...,:least]
    yield 'cut within the longest token', several[...,:20]
    yield 'wider tokens', torch.cat([several, several[..., -1:].expand(-1, -1, 9)], -1)
    ids = rng.integers(1, elmo.lm.chars.n_chars, (4, 6, 11))
    # a mark would be refused
    yield 'random ids', torch.from_numpy(np.where(ids == elmo.char_vocab.bos, 1, ids))

@torch.no_grad()
def wanted(elmo, chars, layers='mix', mix=0):
    mixed, mask = elmo(chars)
    if layers == 'mix': return mixed[mix], mask
    hs, mask = elmo.layers(chars)
    return (torch.stack(hs, 1) if layers == 'all' else hs[layers]), mask

def agree(elmo, layers='mix', mix=0, seed=0, eps=1e-5):
    run = session(module.onnx_model(elmo, layers, mix))
    for what,chars in batches(elmo, seed):
        vectors, mask = run.run(None, {'chars': chars.int().numpy()})
        want, real = wanted(elmo, chars, layers, mix)
        assert vectors.shape == tuple(want.shape) and vectors.dtype == np.float32, what
        assert np.array_equal(mask, real.numpy()), what
        if vectors.size: assert np.abs(vectors - want.numpy()).max() <= eps, what

# the same vectors

@pytest.mark.parametrize('shape', SHAPES)
def test_models_of_every_shape_agree(shape): agree(make(SHAPES[shape]))

@pytest.mark.parametrize('layers', ['all', 0, 1, -1])
def test_layers(layers): agree(make(), layers)

@pytest.mark.parametrize('shape', ['plain', 'clipped'])
def test_marks_that_are_there(shape): agree(make(SHAPES[shape], markers='given'))

def test_mixes():
    agree(make(n_reps=2, norm='token', shares=(.6, .3, .1), gamma=1.7), mix=1)
    two = make(n_reps=2)
    assert len({module.onnx_model(two, mix=i).SerializeToString() for i in (0, 1)}) == 2

def test_another_alphabet():
    vocab = CharVocab.build([WORDS], max_chars=12)
    agree(make(replace(CFG, n_chars=vocab.n_chars, max_chars=12), char_vocab=vocab))

def test_the_model_in_the_box(): agree(Elmo.from_pretrained('mini-en'))

@pytest.mark.parametrize('lstm', [{}, dict(dim=6), dict(cell_clip=None, proj_clip=None)], ids=str)
def test_ai2s_models_agree_with_ai2s_equations(tmp_path, lstm):
    options = reference.options(lstm=lstm)
    elmo = Elmo.from_ai2(
        *reference.write(tmp_path, options, reference.random_file(options)), dropout=0.0
    )
    agree(elmo)
    sents = [WORDS[:9], WORDS[3:5]]
    made, _ = session(module.onnx_model(elmo, 'all')).run(None, {
        'chars': elmo.to_chars(sents).int().numpy()})
    for s,got in zip(sents, made):
        # without the marks
        want = reference.layers(reference.random_file(options), options, s)[:, 1:-1]
        assert np.abs(got[:,:len(s)] - want).max() < 1e-5

@pytest.mark.parametrize('markers', ['add', 'given'])
def test_padding_before_a_token_stops_the_run(markers):
    "A graph can't raise an error; wrong vectors would be worse"
    elmo = make(markers=markers)
    run, chars = (session(module.onnx_model(elmo)),
                  elmo.to_chars([WORDS[:3], WORDS[:5], []]).int().numpy())
    between = chars.copy()
    between[1, 2] = 0
    for bad in (chars[:,::-1], between, np.concatenate([chars[:, -1:], chars], 1)):
        with pytest.raises(Exception, match='out of data bounds'):
            run.run(None, {'chars': np.ascontiguousarray(bad)})
    run.run(None, {'chars': chars})

# the file

def test_the_file_is_sound(tmp_path):
    runtime()
    import onnx
    elmo = make(SHAPES['clipped'])
    file = elmo.to_onnx(tmp_path/'new'/'model.onnx', 'all')
    assert file == tmp_path/'new'/'model.onnx' and [*file.parent.iterdir()] == [file]
    onnx.checker.check_model(str(file), full_check=True)
    model = onnx.load(file)
    sizes = {o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim]
             for o in [*model.graph.input, *model.graph.output]}
    assert sizes == dict(
        chars=['sentences', 'tokens', 'characters'],
        vectors=['sentences', 3, 'tokens', 16],
        mask=['sentences', 'tokens'],
    )
    assert file.stat().st_size < 1.2*4*sum(p.numel() for p in elmo.parameters()) + 20_000, (
        'each weight once')

def test_the_model_stays_as_it_is():
    elmo = make().train()
    elmo.unfreeze()
    before, modes = ({k: v.clone() for k, v in elmo.state_dict().items()}, [
        m.training for m in elmo.modules()])
    model = module.onnx_model(elmo)
    assert modes == [m.training for m in elmo.modules()] and all(
        torch.equal(v, before[k]) for k, v in elmo.state_dict().items())
    assert model.SerializeToString() == module.onnx_model(elmo.eval()).SerializeToString()

def test_half_precision_is_written_as_float32():
    elmo = make()
    halves = session(module.onnx_model(make().bfloat16()))
    chars = elmo.to_chars([WORDS])
    got, _ = halves.run(None, {'chars': chars.int().numpy()})
    assert np.abs(got - wanted(elmo, chars)[0].numpy()).max() < .1

def test_it_runs_without_pytorch(tmp_path):
    elmo = Elmo.from_pretrained('mini-en')
    file, sents = elmo.to_onnx(tmp_path/'model.onnx'), ['She sat on the bank .'.split(), ['naïve']]
    code = '''
import sys
class Blocked:
    "What `pip install numpy onnxruntime fastcore filelock` does not bring is not there"
    allowed = sys.stdlib_module_names | {
        'elmo_fastai', 'numpy', 'onnxruntime', 'fastcore', 'filelock', 'packaging', 'flatbuffers',
        'google'}
    def find_spec(self, name, *_):
        if name.split('.')[0] not in self.allowed:
            raise ModuleNotFoundError(f'no module {name}', name=name)
sys.meta_path.insert(0, Blocked())
import numpy as np, onnxruntime
from elmo_fastai.text.tokens import ByteCharVocab, word_tokenize
assert word_tokenize('It is.') == ['It', 'is', '.']
vocab, sents = ByteCharVocab(), eval(sys.argv[2])
chars = np.zeros((len(sents), max(map(len, sents)), 50), np.int32)
for row,s in zip(chars, sents): row[:len(s)] = vocab.encode(s)
vectors, mask = onnxruntime.InferenceSession(sys.argv[1]).run(None, {'chars': chars})
np.save(sys.argv[1] + '.npy', vectors)
'''
    runtime()
    path = [str(Path(module.__file__).parents[2]), os.environ.get('PYTHONPATH', '')]
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(path)}
    p = subprocess.run([sys.executable, '-c', code, str(file), ascii(sents)], capture_output=True,
                       text=True, env=env)
    assert p.returncode == 0, p.stderr
    assert (
        np.abs(np.load(f'{file}.npy') - wanted(elmo, elmo.to_chars(sents))[0].numpy()).max() < 1e-5)

# what is refused

@pytest.mark.parametrize('kw,args,says', [
    (dict(carry=True), {}, 'carry=False'), (dict(norm='batch'), {}, "norm='batch'"),
    ({}, dict(layers=7), 'layers=7'), ({}, dict(mix=1), 'mix=1')], ids=str)
def test_what_cannot_be_written(kw, args, says, tmp_path):
    with pytest.raises(ValueError, match=says): make(**kw).to_onnx(tmp_path/'model.onnx', **args)
    assert not [*tmp_path.iterdir()]

def test_layers_of_a_batch_normalised_mix_can_be_written():
    runtime()
    agree(make(norm='batch'), 'all')

def test_without_onnx(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'onnx', None)
    with pytest.raises(ImportError, match=r'pip install elmo_fastai\[onnx\]'):
        make().to_onnx(tmp_path/'model.onnx')
    assert not [*tmp_path.iterdir()]
