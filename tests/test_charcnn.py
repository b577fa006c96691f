"The character encoder against a slow reference in numpy, and what must not change its vectors"
from dataclasses import replace
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close
from elmo_fastai import charcnn, softmax
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.charcnn import CharCNN, TokenNorm, cut_columns, pad_rows
from elmo_fastai.tokens import ByteCharVocab

cv = ByteCharVocab()
SENTS = ["She sat on the bank .".split(), "She put money in the bank .".split(),
         ["naïve", "日本語", "x"*60, "🙂"], ["a"]]
FILTERS = ((1,4), (2,3), (4,5))
each_mode = pytest.mark.parametrize('training', [False, True])

def batch(sents=SENTS, extra=0):
    "Sentences as [B, T, W] with rows of zeros as padding"
    out = torch.zeros(len(sents), max(map(len, sents)) + extra, cv.max_chars, dtype=torch.int16)
    for rows,sent in zip(out, sents): rows[:len(sent)] = torch.as_tensor(cv.encode(sent))
    return out

def model(dtype=torch.float64, **kwargs):
    "An encoder whose statistics are not the identity"
    torch.manual_seed(0)
    m = CharCNN(**{**dict(proj_dim=6, char_dim=3, filters=FILTERS), **kwargs})
    if m.norm is not None:
        m.norm.running_mean.normal_(); m.norm.running_var.uniform_(.5, 2)
        m.norm.weight.data.uniform_(.5, 2); m.norm.bias.data.normal_(); m.norm.steps.fill_(100)
    return m.to(dtype)

def reference(m, ids, activation='relu'):
    "One token, by loops"
    p = {k: v.detach().double().numpy() for k,v in m.state_dict().items() if v.is_floating_point()}
    act = dict(relu=lambda x: max(x, 0.), tanh=np.tanh)[activation]
    letters, x = [p['embed.weight'][i] for i in ids], []
    for i in range(len(m.convs)):
        for W,b in zip(p[f'convs.{i}.weight'], p[f'convs.{i}.bias']):
            w = W.shape[1]
            x.append(act(max(b + sum(W[:,j] @ letters[s+j] for j in range(w))
                             for s in range(len(ids) - w + 1))))
    x = np.array(x)
    for i in range(len(m.highway.layers)):
        y = p[f'highway.layers.{i}.weight'] @ x + p[f'highway.layers.{i}.bias']
        g = 1/(1 + np.exp(-y[len(x):]))
        x = g*np.maximum(y[:len(x)], 0) + (1-g)*x
    if m.proj is not None: x = p['proj.weight'] @ x + p['proj.bias']
    if m.norm is None: return x
    x = (x - p['norm.running_mean'])/np.sqrt(p['norm.running_var'] + m.norm.eps)
    return x*p['norm.weight'] + p['norm.bias']

@pytest.mark.parametrize('kwargs', [
    dict(), dict(activation='tanh', n_highway=2), dict(proj_dim=None),
    dict(norm=False, proj_dim=None, n_highway=0), dict(filters=((3, 7),))])
def test_reference(kwargs, eps=1e-12):
    "Also with the normalisation folded away"
    m, chars = model(**kwargs).eval(), batch()
    wanted = [[reference(m, ids.tolist(), kwargs.get('activation', 'relu')) for ids in row[:len(s)]]
              for row,s in zip(chars, SENTS)]
    for y in (m(chars), m.fold_norm()(chars)):
        for found,rows in zip(y.detach().double().numpy(), wanted):
            np.testing.assert_allclose(found[:len(rows)], rows, atol=eps, rtol=eps)
            assert not found[len(rows):].any()

def step(m, chars):
    "Vectors, gradients and statistics"
    y = m(chars)
    (y*torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), *(p.grad for p in m.parameters()), *m.buffers()]

@each_mode
@pytest.mark.parametrize('norm', [False, True])
def test_savings_are_exact(training, norm):
    sides = [model(norm=norm).train(training) for _ in range(2)]
    sides[0].savings = False
    for a,b in zip(*(step(m, torch.cat([batch(), batch()])) for m in sides)):
        assert_close(a, b, rtol=1e-10, atol=1e-10)

@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.data())
def test_cut_columns_keeps_all_windows(n, w, widest, n_ids, data):
    "For any ids and any padding id: the set of windows of each row stays the same"
    row = st.lists(st.integers(0, n_ids), min_size=w, max_size=w)
    rows = torch.tensor(data.draw(st.lists(row, min_size=n, max_size=n)))
    rows = torch.cat([rows, rows.new_full((n, data.draw(st.integers(0, 6))), 7)], 1)
    cut = cut_columns(rows, widest)
    for width in range(1, min(widest, rows.shape[1])+1):
        windows = [[{*map(tuple, row.unfold(0, width, 1).tolist())} for row in some]
                   for some in (rows, cut)]
        assert windows[0] == windows[1]

@each_mode
def test_padding_order_and_company_change_nothing(training):
    def get(chars): return model().train(training)(chars)
    y, left = get(batch()), batch(extra=9).roll(9, 1)
    for row,sent in zip(y, SENTS):
        assert_close(row[:len(sent)], get(batch([sent]))[0], rtol=1e-6, atol=1e-6)
    for found in (get(batch(extra=9))[:,:-9], get(batch(SENTS[::-1])).flip(0), get(left)[:,9:]):
        assert_close(found, y, rtol=1e-12, atol=1e-12)

@each_mode
def test_no_token_and_one_token(training):
    for shape in ((2, 3, 50), (0, 3, 50), (2, 0, 50)):
        y = model().train(training)(torch.zeros(shape, dtype=torch.int16))
        assert y.shape == (*shape[:-1], 6) and not y.any()
    y = CharCNN(6, 3, FILTERS).train(training)(torch.as_tensor(cv.encode(['a'])))
    assert y.isfinite().all() and y.shape == (1, 6)
    y.sum().backward()

def test_what_is_refused():
    with pytest.raises(ValueError, match='another character vocabulary'): model()(batch() + 10)
    with pytest.raises(ValueError, match="'relu' or 'tanh'"): CharCNN(6, activation='gelu')

# the normalisation

def test_token_norm_has_the_gradient_of_batch_norm():
    norm, bn = TokenNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    norm.running_mean.normal_(); norm.running_var.uniform_(.5, 2); norm.steps.fill_(5)
    x, dy = torch.randn(7, 4).double().requires_grad_(), torch.randn(7, 4).double()
    r = ((x.var(0, unbiased=False) + 1e-5)/(norm.running_var + 1e-5)).sqrt().detach()
    wanted, = torch.autograd.grad(bn(x), x, dy*r)
    value = norm.running(x.detach())
    y = norm(x)
    assert_close(y, value)
    assert_close(torch.autograd.grad(y, x, dy)[0], wanted)

def test_token_norm_statistics():
    norm, xs = TokenNorm(3), [torch.randn(50, 3)*(i+1) + i for i in range(4)]
    for x in xs: norm(x)
    assert_close(norm.running_mean, torch.stack([x.mean(0) for x in xs]).mean(0))
    before = norm.running_mean.clone()
    norm(xs[0][:1]); norm.eval()(xs[0])
    assert torch.equal(norm.running_mean, before)
    norm.train(); norm.steps.fill_(1000); norm(xs[0])
    assert_close(norm.running_mean, before.lerp(xs[0].mean(0), norm.momentum))

def test_what_the_normalisation_takes_away_is_not_trained():
    "A bias before it has a gradient of rounding errors, which AdamW blows up to full steps"
    for norm in (True, False):
        cnn = CharCNN(8, norm=norm).train()
        cnn(torch.randint(1, 262, (30, 12))).square().sum().backward()
        assert (cnn.proj.bias.grad == 0).all() == norm and cnn.proj.weight.grad.abs().max() > 1e-3

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (4,8)), proj_dim=8, hidden_dim=12)

@pytest.mark.parametrize('changes', [
    dict(softmax='adaptive', cutoffs=(8, 20), div_value=2.), dict(norm=False),
    dict(softmax='sampled', n_negative=10, share_encoder=False)], ids=str)
def test_padded_rows_change_nothing(changes, monkeypatch):
    "Likelihoods, gradients and statistics of a training step, in double precision"
    assert pad_rows(torch.ones(3, 1)).tolist() == [[1], [1], [1], [0]]
    chars = batch()
    targets = torch.randint(4, 40, (2, *chars.shape[:2]))
    def train():
        torch.manual_seed(0)
        m = BiLM(replace(CONFIG, **changes), 40).double().train()
        nats = m(chars, *targets)
        (nats[0].sum() + 2*nats[1].mean()).backward()
        return [*nats, *(p.grad for p in m.parameters() if p.grad is not None), *m.buffers()]
    padded = train()
    for module in (charcnn, softmax): monkeypatch.setattr(module, 'pad_rows', lambda x: x)
    for a,b in zip(padded, train(), strict=True): assert_close(a, b, rtol=1e-9, atol=1e-9)
