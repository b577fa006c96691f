"The recurrent stack against a slow reference in numpy, and what must not change its states"
import os, subprocess, sys
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from elmo_fastai.nn import recurrent
from elmo_fastai.nn.recurrent import BiLSTMStack, LockedDropout, lstm_loop, reverse_padded

torch.set_num_threads(1)
KINDS = [dict(), dict(hidden_dim=7), dict(n_layers=1), dict(n_layers=3, residual=False),
         dict(cell_clip=0.4), dict(hidden_dim=7, cell_clip=0.4, proj_clip=0.2),
         dict(n_layers=3, hidden_dim=7, proj_clip=0.2)]
LENS = (6, 3, 1, 5)

def stack(dtype=torch.float32, seed=0, scale=3., **kwargs):
    torch.manual_seed(seed)
    m = BiLSTMStack(4, **kwargs)
    # large weights: gates at work, clips that take hold
    for p in m.parameters(): p.data *= scale
    return m.to(dtype).eval()

def batch(dtype=torch.float32, lens=LENS, T=None, seed=0, fill=0.):
    torch.manual_seed(seed)
    T = T or max(lens)
    x, mask = torch.full((len(lens), T, 4), fill, dtype=dtype), torch.zeros(len(lens), T).bool()
    for r,n in enumerate(lens):
        x[r,:n] = torch.randn(n, 4).double().to(dtype)
        mask[r,:n] = True
    return x, mask

def reference(m, x):
    "One sentence [T, P] by the equations, in float64"
    sigm = lambda v: 1/(1 + np.exp(-v))
    def run(lstm, xs):
        w = {k: v.detach().double().numpy() for k,v in lstm.state_dict().items()}
        H = lstm.hidden_size
        h, c, ys = np.zeros(lstm.proj_size or H), np.zeros(H), []
        for x in xs:
            z = w['weight_ih_l0'] @ x + w['weight_hh_l0'] @ h + w['bias_ih_l0'] + w['bias_hh_l0']
            i, f, g, o = sigm(z[:H]), sigm(z[H:2*H]), np.tanh(z[2*H:3*H]), sigm(z[3*H:])
            c = f*c + i*g
            if m.cell_clip: c = np.clip(c, -m.cell_clip, m.cell_clip)
            h = o*np.tanh(c)
            if lstm.proj_size: h = w['weight_hr_l0'] @ h
            if m.proj_clip: h = np.clip(h, -m.proj_clip, m.proj_clip)
            ys.append(h)
        return np.array(ys)
    f, b, out = x.double().numpy(), x.double().numpy()[::-1], []
    for i in range(m.n_layers):
        yf, yb = run(m.fwd[i], f), run(m.bwd[i], b)
        f, b = (yf+f, yb+b) if i and m.residual else (yf, yb)
        out.append((f, b[::-1]))
    return out

@pytest.mark.parametrize('kwargs', KINDS)
@pytest.mark.parametrize('dtype,eps', [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize('learns', [True, False])
def test_reference(kwargs, dtype, eps, learns):
    m, (x, mask) = stack(dtype, **kwargs), batch(dtype)
    with torch.set_grad_enabled(learns): layers, state = m(x, mask)
    assert state is None and len(layers) == m.n_layers
    clipped = 0
    for r,n in enumerate(LENS):
        for fast,slow in zip(layers, reference(m, x[r,:n])):
            for a,s in zip(fast, slow):
                np.testing.assert_allclose(a[r,:n].detach().double().numpy(), s, atol=eps, rtol=eps)
                assert not a[r,n:].any()
                if m.proj_clip: clipped += (np.abs(s) == m.proj_clip).sum()
    # or the test would not see the clip
    if m.proj_clip: assert clipped

@pytest.mark.parametrize('kwargs', KINDS)
def test_the_two_paths_agree(kwargs):
    "Clips that never take hold lead through the loop, and must change nothing; gradients included"
    free = {k: v for k,v in kwargs.items() if 'clip' not in k}
    res = []
    for clips in (dict(), dict(cell_clip=1e9), dict(proj_clip=1e9)):
        m, (x, mask) = stack(torch.float64, **free, **clips), batch(torch.float64)
        x.requires_grad_()
        layers, _ = m(x, mask)
        sum((y*torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum() for l in layers
            for y in l).backward()
        res.append([x.grad, *(y.detach() for l in layers for y in l),
                    *(p.grad for p in m.parameters() if p.requires_grad)])
    for other in res[1:]:
        for a,b in zip(res[0], other): torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16', 'autocast'])
@pytest.mark.parametrize('kwargs', KINDS)
def test_no_leak_bitwise(kwargs, dtype):
    dt = torch.float32 if dtype == 'autocast' else getattr(torch, dtype)
    m, (x, _) = stack(dt, scale=1., **kwargs), batch(dt, lens=(7, 7, 7))
    with torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'autocast'):
        before = m(x)[0]
        for t in range(7):
            y = x.clone(); y[:,t] = -2*y[:,t] + .5
            for (f,b),(g,c) in zip(before, m(y)[0]):
                assert torch.equal(f[:,:t], g[:,:t]) and torch.equal(b[:,t+1:], c[:,t+1:])
                assert not torch.equal(f[:,t], g[:,t]) and not torch.equal(b[:,t], c[:,t])

def test_autocast_where_the_processor_has_no_lstm_for_it(monkeypatch):
    "There it computes in full precision; PyTorch would stop with an error about primitives"
    m, (x, mask) = stack(), batch()
    def run(): return [*sum(m(x, mask)[0], ()), *m(x, state=m.init_state(len(x)))[1]]
    plain = run()
    monkeypatch.setattr(recurrent, 'processor_has_lstm', lambda dtype: False)
    with torch.autocast('cpu', torch.bfloat16):
        half = run()
        assert torch.is_autocast_enabled('cpu')
    for a,b in zip(plain, half): assert a.dtype == b.dtype and torch.allclose(a, b, atol=1e-5)

@pytest.mark.slow
def test_a_processor_of_many_laptops():
    "With AVX2 and no more, bfloat16 is slow and works, in training and in use"
    code = '''
import torch
from test_recurrent import batch, stack
m, (x, mask) = stack(), batch()
before = torch.get_rng_state()
with torch.autocast('cpu', torch.bfloat16): top = torch.cat(m(x, mask)[0][-1], -1)
top.sum().backward()
with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
    again = torch.cat(m(x, mask)[0][-1], -1)
assert torch.equal(torch.get_rng_state(), before)
assert all(p.grad.any() for p in m.parameters() if p.requires_grad)
torch.testing.assert_close(top, again, atol=.02, rtol=.02)
torch.testing.assert_close(top.float(), torch.cat(m(x, mask)[0][-1], -1), atol=.02, rtol=.02)
'''
    here = Path(__file__).parent
    env = {**os.environ, 'ONEDNN_MAX_CPU_ISA': 'AVX2',
           'PYTHONPATH': os.pathsep.join([str(here.parent), str(here),
                                          os.environ.get('PYTHONPATH', '')])}
    p = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=env)
    assert p.returncode == 0, p.stderr

@pytest.mark.parametrize('rows', [[[0, 1, 1]], [[1, 1, 0], [1, 0, 1]]])
def test_padding_before_a_token_is_refused(rows):
    "It would be read, and change every state behind it"
    mask = torch.tensor(rows).bool()
    with pytest.raises(ValueError, match='padding before a token'):
        stack()(torch.randn(*mask.shape, 4), mask)

@pytest.mark.parametrize('kwargs', KINDS)
def test_what_stands_in_the_padding_is_never_read(kwargs):
    m = stack(**kwargs)
    for fill in (1e6, float('nan')):
        for a,b in zip(m(*batch())[0], m(*batch(fill=fill))[0]):
            for y,z in zip(a, b): torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5)
    x, mask = batch(); x.requires_grad_()
    m(x, mask)[0][-1][1].sum().backward()
    # what is clipped hands no gradient on
    clipped = kwargs.get('cell_clip') or kwargs.get('proj_clip')
    assert not x.grad[~mask].any() and (x.grad[mask].any(-1).all() or clipped)

def test_mask_of_ones_is_no_mask():
    m, x = stack(), torch.randn(3, 5, 4)
    for mask in (torch.ones(3, 5).bool(), torch.ones(3, 5), torch.ones(3, 5).long()):
        for a, b in zip(m(x)[0], m(x, mask)[0]):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

@pytest.mark.parametrize('kwargs', KINDS)
def test_state_over_chunks_is_one_long_pass(kwargs):
    m, x = stack(torch.float64, **kwargs), torch.randn(2, 9, 4).double()
    whole = m(x)[0]
    state, parts = m.init_state(), []
    for sl in (slice(0, 3), slice(3, 4), slice(4, 9)):
        layers, state = m(x[:,sl], state=state)
        parts.append(layers)
    for i in range(m.n_layers):
        torch.testing.assert_close(
            torch.cat([p[i][0] for p in parts], 1), whole[i][0], rtol=1e-12, atol=1e-12
        )
    state, parts = m.init_state(2), []
    for sl in (slice(4, 9), slice(3, 4), slice(0, 3)):
        layers, state = m(x[:,sl], torch.ones(2, sl.stop-sl.start), state)
        parts.append(layers)
    for i in range(m.n_layers):
        torch.testing.assert_close(
            torch.cat([p[i][1] for p in parts[::-1]], 1), whole[i][1], rtol=1e-12, atol=1e-12
        )

@pytest.mark.parametrize('kwargs', KINDS)
def test_state_of_unequal_sentences_and_rows(kwargs):
    """Each row carries the state of its own sentence; rows that a batch lacks keep theirs; new rows
    start at zeros"""
    m = stack(torch.float64, **kwargs)
    batches = [batch(torch.float64, lens, seed=i)
               for i, lens in enumerate([(3, 5), (2, 6, 1), (4,), (0, 2, 3)])]
    state, alone = m.init_state(), [m.init_state(1) for _ in range(3)]
    for x,mask in batches:
        layers, state = m(x, mask, state)
        for r in range(len(x)):
            if not (n := int(mask[r].sum())): continue
            one, alone[r] = m(x[r:r+1,:n], None, alone[r])
            for l,o in zip(layers, one):
                for a, b in zip(l, o):
                    torch.testing.assert_close(a[r,:n], b[0], rtol=1e-12, atol=1e-12)
    for s, parts in zip(state, zip(*alone)):
        torch.testing.assert_close(s, torch.cat(parts, 2), rtol=1e-12, atol=1e-12)

def test_nothing_is_remembered_unless_asked():
    m, x = stack(), torch.randn(2, 5, 4)
    first = m(x)[0]; m(torch.randn(2, 5, 4), state=m.init_state())
    for a,b in zip(first, m(x)[0]): assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])

def test_truncated_backpropagation():
    m, x = stack().train(), torch.randn(2, 8, 4)
    _, state = m(x[:,:4], state=m.init_state())
    layers, _ = m(x[:,4:], state=tuple(s.detach() for s in state))
    layers[-1][0].sum().backward()
    assert m.fwd[0].weight_hh_l0.grad.abs().sum() > 0

@pytest.mark.parametrize('kwargs', [
    dict(), dict(hidden_dim=5), dict(hidden_dim=5, cell_clip=0.4, proj_clip=0.2)])
def test_gradcheck(kwargs):
    m = stack(torch.float64, scale=2.0, n_layers=2, **kwargs)
    x, mask = batch(torch.float64, lens=(3, 2))
    names, ps = zip(*[(n, p) for n, p in m.named_parameters() if p.requires_grad])

    def f(x, *ps):
        return [
            y for l in torch.func.functional_call(m, dict(zip(names, ps)), (x, mask))[0] for y in l]

    assert torch.autograd.gradcheck(f, (x.requires_grad_(), *ps), fast_mode=True)

@pytest.mark.parametrize('proj', [0, 3])
def test_loop_is_pytorchs_lstm_on_packed_sentences(proj):
    torch.manual_seed(0)
    lstm, (x, mask) = nn.LSTM(4, 6, proj_size=proj, batch_first=True).double(), batch(torch.float64)
    h, c = torch.randn(4, proj or 6).double(), torch.randn(4, 6).double()
    y, (hn, cn) = lstm_loop(lstm, x, (h, c), mask)
    packed, (h2, c2) = lstm(
        pack_padded_sequence(x, torch.tensor(LENS), batch_first=True, enforce_sorted=False),
        (h[None], c[None]))
    torch.testing.assert_close(y*mask[..., None], pad_packed_sequence(packed, batch_first=True)[0],
                               rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(hn, h2[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cn, c2[0], rtol=1e-12, atol=1e-12)

@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_reverse_padded(lens):
    x = torch.arange(len(lens)*6*2).view(len(lens), 6, 2)
    y = reverse_padded(x, torch.tensor(lens))
    for r, n in enumerate(lens):
        assert torch.equal(y[r,:n], x[r,:n].flip(0)) and torch.equal(y[r, n:], x[r, n:])
    assert torch.equal(reverse_padded(y, torch.tensor(lens)), x)
    assert torch.equal(reverse_padded(x, None), x.flip(1))

@pytest.mark.parametrize('kwargs', [
    dict(), dict(hidden_dim=8), dict(hidden_dim=8, cell_clip=3.0, proj_clip=3.0)])
def test_types_of_numbers(kwargs):
    x, mask = batch(torch.float64)
    ref = stack(torch.float64, scale=1.0, **kwargs)(x, mask)[0][-1]
    m = stack(scale=1.0, **kwargs)
    with torch.autocast('cpu', torch.bfloat16):
        auto, state = m(x.float(), mask, m.init_state())
        again, _ = m(x.float(), mask, state)
        sum(y.float().sum() for y in again[-1]).backward()
    assert state[0].dtype == torch.float32 and all(
        p.grad.isfinite().all() for p in m.parameters() if p.requires_grad)
    pure = stack(torch.bfloat16, scale=1.0, **kwargs)(x.bfloat16(), mask)[0][-1]
    for y in (auto[-1], pure):
        for a,b in zip(y, ref): assert (a.double() - b).abs().max() < .03

def test_locked_dropout():
    torch.manual_seed(0)
    drop, x = LockedDropout(.3), torch.ones(400, 5, 10)
    y = drop(x)
    assert torch.equal(y, y[:,:1].expand_as(y)) and abs(y.mean() - 1) < .05
    assert set(y.unique().tolist()) == {0., y.max().item()} and not torch.equal(y[0], y[1])
    assert drop.eval()(x) is x and LockedDropout(0.)(x) is x
    for p in (-.1, 1, 1.5):
        with pytest.raises(ValueError, match='less than 1'): LockedDropout(p)

def test_dropout_between_layers_only():
    m, x = stack(dropout=.5).train(), torch.randn(2, 5, 4)
    a, b = m(x)[0], m(x)[0]
    assert torch.equal(a[0][0], b[0][0]) and not torch.equal(a[1][0], b[1][0])
    m.eval()
    assert torch.equal(m(x)[0][1][0], m(x)[0][1][0])

def test_start_and_parameters():
    m = BiLSTMStack(4, 7)
    for l in [*m.fwd, *m.bwd]:
        assert ((l.bias_ih_l0[7:14] == 1).all() and l.bias_ih_l0.sum() == 7
                and not l.bias_hh_l0.any() and not l.bias_hh_l0.requires_grad)
    # the original's count: gates from input and from output, one bias, projection
    assert sum(p.numel() for p in m.parameters() if p.requires_grad) == 2*2*(4*7*(4+4) + 4*7 + 7*4)

def test_errors_are_for_people():
    with pytest.raises(ValueError, match='must not be less'): BiLSTMStack(8, 4)
    with pytest.raises(ValueError, match='one entry per token'):
        stack()(torch.randn(2, 5, 4), torch.ones(2, 4))
