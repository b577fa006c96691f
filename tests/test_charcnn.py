"The character encoder against a slow reference in numpy, and what must not change its vectors"
from dataclasses import replace
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from elmo_fastai import softmax
from elmo_fastai.nn import charcnn
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.nn.charcnn import CharCNN, TokenNorm, cut_columns, pad_rows
from elmo_fastai.text.tokens import ByteCharVocab

torch.set_num_threads(1)
cv = ByteCharVocab()
SENTS = ["She sat on the bank of the river .".split(), "She put the money in the bank .".split(),
         ["naïve", "日本語", "x"*60, "🙂"], ["a"]]
FILTERS = ((1,4), (2,3), (4,5))

def batch(sents=SENTS, left=False, extra=0):
    "Sentences as [B, T, W] with rows of zeros as padding"
    T = max(map(len, sents)) + extra
    out = torch.zeros(len(sents), T, cv.max_chars, dtype=torch.int16)
    for r,s in zip(out, sents):
        rows = torch.as_tensor(cv.encode(s))
        if left: r[T-len(s):] = rows
        else: r[:len(s)] = rows
    return out

def model(dtype=torch.float32, seed=0, savings=True, **kwargs):
    torch.manual_seed(seed)
    m = CharCNN(**{**dict(proj_dim=6, char_dim=3, filters=FILTERS), **kwargs})
    m.savings = savings
    # statistics that are not the identity
    if m.norm is not None:
        m.norm.running_mean.normal_(); m.norm.running_var.uniform_(.5, 2)
        m.norm.weight.data.uniform_(.5, 2); m.norm.bias.data.normal_(); m.norm.steps.fill_(100)
    return m.to(dtype)

def reference(m, ids, activation='relu'):
    "One token, by loops, in float64"
    p = {k: v.detach().double().numpy() for k,v in m.state_dict().items() if v.is_floating_point()}
    act = dict(relu=lambda x: max(x, 0.), tanh=np.tanh)[activation]
    letters, x = [p['embed.weight'][i] for i in ids], []
    for i in range(len(m.convs)):
        W, b = p[f'convs.{i}.weight'], p[f'convs.{i}.bias']
        for k in range(len(b)):
            windows = [b[k] + sum(W[k,:, j] @ letters[s + j] for j in range(W.shape[2]))
                       for s in range(len(ids) - W.shape[2] + 1)]
            x.append(act(max(windows)))
    x = np.array(x)
    for l in range(len(m.highway.layers)):
        W, b = p[f'highway.layers.{l}.weight'], p[f'highway.layers.{l}.bias']
        n = len(x)
        t, g = np.maximum(W[:n] @ x + b[:n], 0), 1/(1 + np.exp(-(W[n:] @ x + b[n:])))
        x = g*t + (1-g)*x
    if m.proj is not None: x = p['proj.weight'] @ x + p['proj.bias']
    if m.norm is not None:
        x = (x - p['norm.running_mean'])/np.sqrt(p['norm.running_var'] + m.norm.eps)*p[
            'norm.weight'] + p['norm.bias']
    return x

@pytest.mark.parametrize('kwargs', [
    dict(), dict(activation='tanh'), dict(n_highway=0), dict(n_highway=2), dict(proj_dim=None),
    dict(norm=False), dict(norm=False, proj_dim=None, n_highway=0), dict(filters=((3, 7),))])
@pytest.mark.parametrize('dtype,eps', [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_reference(kwargs, dtype, eps):
    m, chars = model(dtype, **kwargs).eval(), batch()
    y = m(chars).detach().double().numpy()
    for b, s in enumerate(SENTS):
        for t in range(len(s)):
            np.testing.assert_allclose(
                y[b, t], reference(m, chars[b, t].tolist(), kwargs.get('activation', 'relu')),
                atol=eps, rtol=eps)
        assert not y[b,len(s):].any()

def all_grads(m, chars):
    m.zero_grad()
    y = m(chars)
    (y*torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), *(p.grad for p in m.parameters()), *m.buffers()]

@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('norm', [False, True])
def test_savings_are_exact(training, norm):
    plain, saving = (all_grads(model(torch.float64, savings=o, norm=norm).train(training),
                               torch.cat([batch(), batch()])) for o in (False, True))
    for a,b in zip(plain, saving): torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.data())
def test_cut_columns_keeps_all_windows(n, w, widest, n_ids, data):
    "For any ids and any padding id: the set of windows of each row stays the same"
    rows = torch.tensor(data.draw(
        st.lists(st.lists(st.integers(0, n_ids), min_size=w, max_size=w), min_size=n, max_size=n)))
    rows = torch.cat([rows, rows.new_full((n, data.draw(st.integers(0, 6))), 7)], 1)
    cut = cut_columns(rows, widest)
    assert cut.shape[1] <= rows.shape[1]
    for width in range(1, min(widest, rows.shape[1])+1):
        for a,b in zip(rows.tolist(), cut.tolist()):
            assert {tuple(a[i:i + width]) for i in range(len(a) - width + 1)} == {
                tuple(b[i:i + width]) for i in range(len(b) - width + 1)}

@pytest.mark.parametrize('training', [False, True])
def test_padding_order_and_company_change_nothing(training):
    get = lambda: model(torch.float64).train(training)
    y = get()(batch())
    for b,s in enumerate(SENTS):
        alone = get()(batch([s]))[0]
        torch.testing.assert_close(y[b,:len(s)], alone, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(get()(batch(extra=9))[:,:-9], y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(get()(batch(SENTS[::-1])).flip(0), y, rtol=1e-12, atol=1e-12)
    left, mask = batch(left=True), batch(left=True)[...,0] != 0
    torch.testing.assert_close(get()(left)[mask], y[batch()[...,0] != 0], rtol=1e-12, atol=1e-12)

@pytest.mark.parametrize('training', [False, True])
def test_no_token_and_one_token(training):
    m = model().train(training)
    for shape in ((2, 3, 50), (0, 3, 50), (2, 0, 50)):
        assert torch.equal(m(torch.zeros(shape, dtype=torch.int16)), torch.zeros(*shape[:-1], 6))
    fresh = CharCNN(6, 3, FILTERS).train(training)
    y = fresh(torch.as_tensor(cv.encode(['a'])))
    assert y.isfinite().all() and y.shape == (1, 6)
    y.sum().backward()

@pytest.mark.parametrize('kwargs', [
    dict(), dict(norm=False, activation='tanh', n_highway=2), dict(proj_dim=None)])
def test_gradcheck(kwargs):
    m, chars = (model(torch.float64, filters=((1, 2), (2, 3)), char_dim=2,
                      **{'proj_dim': 3, **kwargs}).eval(),
                torch.as_tensor(cv.encode(['ab', 'ba', 'ab', 'c']))[None,:,:9])
    names, ps = zip(*[(n, p) for n, p in m.named_parameters() if n != 'embed.weight'])
    assert torch.autograd.gradcheck(
        lambda *ps: torch.func.functional_call(m, dict(zip(names, ps)), (chars,)), ps)
    used = torch.tensor(sorted(set(chars.flatten().tolist())))
    rows = m.embed.weight.detach()[used].clone().requires_grad_()
    f = lambda rows: torch.func.functional_call(
        m, {'embed.weight': m.embed.weight.detach().index_copy(0, used, rows)}, (chars,))
    assert torch.autograd.gradcheck(f, rows)

def test_types_of_numbers():
    chars = batch()
    ref = model(torch.float64).eval()(chars)
    with torch.autocast('cpu', torch.bfloat16): auto = model().eval()(chars)
    for y, eps in ((auto, 0.1), (model(torch.bfloat16).eval()(chars), 0.2),
                   (model().eval()(chars.long()), 1e-5)):
        assert (y.double() - ref).abs().max() < eps*ref.abs().max()
    assert auto.dtype == torch.bfloat16
    m = model()
    with torch.autocast('cpu', torch.bfloat16): m(chars).float().sum().backward()
    assert all(p.grad.isfinite().all() for p in m.parameters())

@pytest.mark.parametrize('proj_dim', [6, None])
def test_fold_norm(proj_dim):
    m, chars = model(proj_dim=proj_dim).eval(), batch()
    y = m(chars)
    assert m.fold_norm() is m and m.norm is None
    torch.testing.assert_close(m(chars), y, rtol=1e-5, atol=1e-5)
    assert m.fold_norm() is m
    plain = CharCNN(y.shape[-1], 3, FILTERS, norm=False)
    plain.load_state_dict(m.state_dict())
    torch.testing.assert_close(plain(chars), y, rtol=1e-5, atol=1e-5)

def test_token_norm_has_the_gradient_of_batch_norm():
    torch.manual_seed(0)
    norm, bn = TokenNorm(4).double(), torch.nn.BatchNorm1d(4).double()
    norm.running_mean.normal_(); norm.running_var.uniform_(.5, 2); norm.steps.fill_(5)
    x, dy = torch.randn(7, 4).double().requires_grad_(), torch.randn(7, 4).double()
    r = ((x.var(0, unbiased=False) + 1e-5)/(norm.running_var + 1e-5)).sqrt().detach()
    g, = torch.autograd.grad(norm(x), x, dy)
    g2, = torch.autograd.grad(bn(x), x, dy*r)
    torch.testing.assert_close(g, g2)

def test_token_norm_statistics():
    torch.manual_seed(0)
    norm, xs = TokenNorm(3), [torch.randn(50, 3)*(i+1) + i for i in range(4)]
    for x in xs: norm(x)
    torch.testing.assert_close(norm.running_mean, torch.stack([x.mean(0) for x in xs]).mean(0))
    before = norm.running_mean.clone()
    norm(xs[0][:1]); norm.eval()(xs[0])
    assert torch.equal(norm.running_mean, before)
    norm.train(); norm.steps.fill_(1000); norm(xs[0])
    torch.testing.assert_close(norm.running_mean, before.lerp(xs[0].mean(0), norm.momentum))

def test_token_norm_counts():
    "A vector that counts three times is the vector three times"
    torch.manual_seed(0)
    x, counts, dy = (torch.randn(6, 3).double(), torch.tensor([1, 3, 1, 1, 2, 1]),
                     torch.randn(9, 3).double())
    rows = torch.arange(6).repeat_interleave(counts)
    res = []
    for use in (True, False):
        norm, xi = TokenNorm(3).double(), x.clone().requires_grad_()
        norm(x.flip(0)); norm.steps += 3
        y = norm(xi, counts)[rows] if use else norm(xi[rows])
        y.backward(dy)
        res.append([y, xi.grad, norm.running_mean, norm.running_var])
    for a,b in zip(*res): torch.testing.assert_close(a, b)

def test_what_the_normalisation_takes_away_is_not_trained():
    """A bias before it has a gradient of nothing but rounding errors, which AdamW blows up to steps
    of full size"""
    cnn = CharCNN(8).train()
    x = torch.randint(1, 262, (30, 12))
    cnn(x).square().sum().backward()
    assert (cnn.proj.bias.grad == 0).all() and cnn.proj.weight.grad.abs().max() > 1e-3
    cnn = CharCNN(8, norm=False).train()
    cnn(x).square().sum().backward()
    assert cnn.proj.bias.grad.abs().max() > 1e-3

# few sizes

def test_pooling_is_that_of_a_plain_convolution():
    torch.manual_seed(0)
    m = model(torch.float64)
    x = torch.randn(7, 9, 3, dtype=torch.float64, requires_grad=True)
    for conv in m.convs:
        found, wanted = m.pool(conv, x), conv(x.transpose(1, 2)).amax(-1)
        some = torch.randn_like(wanted)
        torch.testing.assert_close(found, wanted)
        for a,b in zip(*(torch.autograd.grad((y*some).sum(), [x, *conv.parameters()])
                         for y in (found, wanted))): torch.testing.assert_close(a, b)

def test_few_numbers_of_rows():
    sizes = [len(pad_rows(torch.ones(n, 2))) for n in range(5000)]
    assert len(set(sizes)) < 90 and all(n <= size < n + 64 for n,size in enumerate(sizes))
    assert [sizes[n] for n in (1, 2, 3, 33, 64, 65, 129)] == [1, 2, 4, 64, 64, 128, 192]
    x = torch.arange(6).view(3, 2)
    assert pad_rows(x).tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (4,8)), proj_dim=8, hidden_dim=12)

@pytest.mark.parametrize('changes', [
    {}, dict(softmax='adaptive', cutoffs=(8, 20), div_value=2.), dict(norm=False),
    dict(softmax='sampled', n_negative=10), dict(share_encoder=False)], ids=str)
def test_padded_rows_change_nothing(changes, monkeypatch):
    "Likelihoods, gradients and statistics of a training step, in double precision"
    chars = batch()
    targets = torch.randint(4, 40, (2, *chars.shape[:2]))
    def step():
        torch.manual_seed(0)
        m = BiLM(replace(CONFIG, **changes), 40).double().train()
        nats = m(chars, *targets)
        (nats[0].sum() + 2*nats[1].mean()).backward()
        return [*nats, *(p.grad for p in m.parameters() if p.grad is not None), *m.buffers()]
    padded = step()
    for module in (charcnn, softmax): monkeypatch.setattr(module, 'pad_rows', lambda x: x)
    for a,b in zip(padded, step(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
