"The biLM: what it must not see, what must not change it, its loss and its settings"
import json, math
from dataclasses import replace

import numpy as np, pytest, torch

from elmo_fastai import recurrent
from elmo_fastai.tokens import ByteCharVocab, WordVocab
from elmo_fastai.bilm import BiLM, BiLMConfig, BiLSTMStack, elmo_configs
from elmo_fastai.charcnn import CharCNN
from elmo_fastai.learner import evaluate
from elmo_fastai.batches import (
    SentenceDataLoader, StreamDataLoader, EncodedText, TokenTypes)
from test_recurrent import by_equations

CFG = BiLMConfig(
    'test', char_dim=4, filters=((1, 6), (2, 6), (3, 6)), proj_dim=20, hidden_dim=20, dropout=0.3)
SHAPES = dict(
    plain=CFG, clipped=replace(CFG, hidden_dim=24, cell_clip=0.2, proj_clip=0.1),
    straight=replace(CFG, n_layers=3, n_highway=2, residual=False, norm=False, cutoffs=(6, 11)),
    separate=replace(CFG, share_encoder=False, share_softmax=False))
WORDS = 'a bank of the river spring springs café 河岸 <s> </s> <pad> . extraordinarily'.split() + [
    'x'*80, '👨‍👩‍👧']
SENTS = [WORDS[i%5:i%5+n] for i,n in enumerate((5, 1, 12, 3, 8, 12, 2, 7))] + [['the']*4, ['x'*80]]
N = sum(len(sent) + 1 for sent in SENTS)               # predictions of a direction
close = dict(atol=1e-5, rtol=1e-5)

@pytest.fixture(scope='module')
def types(): return TokenTypes(WordVocab.build(SENTS), ByteCharVocab())

@pytest.fixture(scope='module')
def batch(types): return next(iter(SentenceDataLoader(EncodedText(SENTS, types), bs=len(SENTS))))

@pytest.fixture(params=SHAPES)
def model(request, types, batch): return make(SHAPES[request.param], types, batch)

def make(config, types, batch, seed=0):
    "A model whose normalisation has seen something"
    torch.manual_seed(seed)
    m = BiLM(config, len(types.vocab))
    with torch.no_grad():
        for _ in range(3): m(*batch)
    return m.eval()

@torch.no_grad()
def layers(m, chars):
    "[layers, 2, B, T, P]"
    return torch.stack([torch.stack(both) for both in m.encode(chars)])

def same(a, b, **kwargs): torch.testing.assert_close(a, b, **close | kwargs)

def slow_nats(m, batch):
    "One softmax a position, in a loop"
    chars, *targets = batch
    return [[-head.log_prob(h[i, t][None])[0, y[i, t]].item() for i,t in y.nonzero().tolist()]
            for head,h,y in zip(m.heads, m.encode(chars)[-1], targets)]

class Own:
    "Subclasses, as a reader writes them"
    class Config(BiLMConfig): pass
    class Lm(BiLM): pass
    class Chars(CharCNN): pass
    class Stack(BiLSTMStack):
        def layer(self): return torch.nn.GRU(self.dim, self.dim, batch_first=True)

def test_only_the_library_s_own_parts_are_plain():
    def as_(o, kind): o.__class__ = kind
    for change in (lambda m: as_(m, Own.Lm), lambda m: as_(m.chars, Own.Chars),
                   lambda m: as_(m.chars_bwd, Own.Chars), lambda m: as_(m.lstm, Own.Stack),
                   lambda m: setattr(m, 'config', Own.Config(**vars(m.config)))):
        m = BiLM(SHAPES['separate'], 9)
        assert m.is_plain
        change(m)
        assert not m.is_plain

def test_all_that_a_layer_of_one_s_own_uses_is_trained():
    m = BiLM(CFG, 9)
    m.lstm = Own.Stack(CFG.proj_dim)
    trained = {id(p) for group in m.groups for p in group}
    assert trained == {id(p) for p in m.parameters()}

# what a direction must not see

def test_no_state_moves_before_or_after_a_changed_token(model, batch, types):
    "Bit for bit, while the set of distinct tokens stays: other sets may round otherwise"
    chars, real = batch[0], batch[0][...,0] != 0
    B, T, W = chars.shape
    every = torch.as_tensor(types.chars[1:])           # rows of every token, which never change
    every = torch.cat([every, every.new_zeros(-len(every)%T, W)]).view(-1, T, W)
    before = layers(model, torch.cat([chars, every]))
    spring, bank = torch.as_tensor(types.char_vocab.encode(['spring', 'bank']))
    for t in range(T):
        changed = chars.clone()
        new = torch.where((chars[:,t] == spring).all(-1)[:,None], bank, spring)
        changed[real[:,t], t] = new[real[:,t]]
        after = layers(model, torch.cat([changed, every]))
        assert torch.equal(before[:,0,:,:t], after[:,0,:,:t]), f'a forward state before {t}'
        assert torch.equal(before[:,1,:,t+1:], after[:,1,:,t+1:]), f'a backward state after {t}'
        was, now = (h[:,:,:B][:,:,real[:,t],t] for h in (before, after))
        assert not torch.isclose(was, now, **close).all(-1).any(), f'the states at {t} should move'

# what must not change anything

def test_padding_order_and_company_change_nothing(model, batch):
    chars = batch[0]
    ours, (B, T, W) = layers(model, chars), chars.shape
    wide = layers(model, torch.cat([chars, chars.new_zeros(B, 9, W)], 1))
    same(wide[...,:T,:], ours)
    assert wide[...,T:,:].eq(0).all()
    order = torch.randperm(B, generator=torch.Generator().manual_seed(3))
    same(layers(model, chars[order]), ours[:,:,order])
    same(layers(model, chars.repeat(3, 1, 1))[:,:,-B:], ours)
    for i,n in enumerate((chars[...,0] != 0).sum(1)):
        same(layers(model, chars[[i],:n])[:,:,0], ours[:,:,i,:n])          # alone
    with pytest.raises(ValueError, match='padding before a token'):
        model.encode(torch.cat([chars.new_zeros(B, 3, W), chars], 1))

def test_a_carried_state_is_one_pass(model, batch, cut=4):
    "Forward from piece to piece, backward from the last to the first, within each length"
    chars, c = batch[0], model.config
    whole, pieces = layers(model, chars), (chars[:,:cut], chars[:,cut:])
    for d,(one,two) in enumerate((pieces, pieces[::-1])):
        with torch.no_grad():
            first, state = model.encode_state(one)
            second, after = model.encode_state(two, state)
        parts = [torch.stack([both[d] for both in part]) for part in (first, second)]
        same(torch.cat(parts[::-1] if d else parts, 2), whole[:,d], rtol=1e-4)
        assert [tuple(s.shape) for s in after] == [
            (c.n_layers, 2, len(chars), size) for size in (c.proj_dim, c.hidden_dim)]

# separate and missing parts

def test_separate_models_share_nothing(types, batch):
    "TagLM's way: each direction's loss reaches its own parameters only"
    m = make(SHAPES['separate'], types, batch)
    for i,names in enumerate((('chars.', 'lstm.fwd', 'head.'),
                              ('chars_bwd.', 'lstm.bwd', 'head_bwd.'))):
        m.zero_grad()
        m(*batch)[i].sum().backward()
        got = [k for k,p in m.named_parameters() if p.grad is not None and p.grad.ne(0).any()]
        assert all(k.startswith(names) for k in got)
        assert all(any(k.startswith(name) for k in got) for name in names)

def test_a_model_without_an_output_layer(batch):
    m = BiLM(CFG, 0).eval()
    assert m.head is None and m.exact
    for ask in (lambda: m(*batch), lambda: evaluate(m, [batch])):
        with pytest.raises(ValueError, match='predicts no words'): ask()

# the loss

def test_loss_is_the_slow_one(model, batch):
    with torch.no_grad():
        ours, slow = model(*batch), slow_nats(model, batch)
        for a,b in zip(ours, slow): same(a, torch.tensor(b))
        assert [len(nats) for nats in ours] == [N, N]
        f, _ = model(batch[0], batch[1], torch.zeros_like(batch[2]))     # one direction alone
        same(f, ours[0])
    assert torch.equal(layers(model, batch[0]), layers(model, batch[0]))
    model.train()
    assert not torch.equal(model(*batch)[0], model(*batch)[0])           # dropout

def test_training_reaches_every_parameter(model, batch):
    model.train()
    torch.cat(model(*batch)).mean().backward()
    still = {k for k,p in model.named_parameters() if p.requires_grad and not p.grad.ne(0).any()}
    assert still <= {'chars.proj.bias', 'chars_bwd.proj.bias'}          # a norm comes after it

def test_bfloat16(model, batch):
    with torch.no_grad(): exact = torch.cat(model(*batch)).mean()
    with torch.autocast('cpu', torch.bfloat16): nats = torch.cat(model(*batch))
    assert nats.dtype == torch.float32
    same(nats.mean(), exact, atol=.1, rtol=.03)
    nats.mean().backward()
    assert all(p.grad is None or (p.grad.dtype == torch.float32 and p.grad.isfinite().all())
               for p in model.parameters())

@torch.no_grad()
def test_the_start_is_the_originals():
    m = BiLM(BiLMConfig('x', proj_dim=64, hidden_dim=96, norm=False), 500)
    letters, lstm, highway = m.chars.embed.weight, m.lstm.fwd[0], m.chars.highway.layers[0]
    tanh = BiLM(BiLMConfig('x', activation='tanh'), 0).chars.convs[3]
    for found, wanted in (
        (letters[1:].std(), 3**-.5), (m.chars.proj.weight.std(), 192**-.5),
        (m.head.weight.std(), 64**-.5), (highway.weight.std(), 192**-.5),
        (tanh.weight.std(), (16*4)**-.5), (m.chars.convs[0].weight.abs().max(), .05),
        (lstm.weight_ih_l0.abs().max(), (6/(128 + 4*96))**.5),
        (lstm.weight_hh_l0.abs().max(), (6/(128 + 4*96))**.5)):
        assert math.isclose(found, wanted, rel_tol=.05)
    for zero in (letters[0], m.head.bias, m.chars.proj.bias, *(c.bias for c in m.chars.convs)):
        assert zero.eq(0).all()
    assert highway.bias[192:].eq(-2).all()
    assert lstm.bias_ih_l0[96:192].eq(1).all() and lstm.bias_ih_l0.sum() == 96

# perplexity

def test_evaluate_is_the_slow_sum_whatever_the_batches(model, types, batch):
    text = EncodedText(SENTS, types)
    nats = [sum(direction)/N for direction in slow_nats(model, batch)]
    wanted = [math.exp(mean) for mean in (*nats, sum(nats)/2)]
    for dl in (SentenceDataLoader(text, bs=1), SentenceDataLoader(text, bs=4, max_tokens=20),
               SentenceDataLoader(text, bs=3, shuffle=True, seed=1)):
        found = evaluate(model, dl)
        assert found['predictions'] == N
        assert [found[k] for k in ('fwd', 'bwd', 'mean')] == pytest.approx(wanted, rel=1e-5)
    for bs,seq_len in ((1, 10), (4, 16)):     # other contexts, the same predictions
        assert evaluate(model, StreamDataLoader(text, bs=bs, seq_len=seq_len))['predictions'] == N

# configurations

def test_config_through_json():
    for config in (*elmo_configs.values(), *SHAPES.values()):
        assert BiLMConfig.from_dict(json.loads(json.dumps(vars(config)))) == config
    with pytest.raises(ValueError, match='proj_size'): BiLMConfig.from_dict(dict(proj_size=64))

def test_the_published_model_has_its_size():
    with torch.device('meta'): lm = BiLM(elmo_configs['original'], 0)
    trained = sum(p.numel() for group in lm.groups for p in group)
    assert trained == 93_600_848 + 16              # the published model, and the row of padding

ABSURD = dict(
    n_layers=[0, 'a', None, 2.0, 10**9, True], proj_dim=[0, 8.0, 10**12],
    hidden_dim=[0, 4, 'x', 10**12], char_dim=[0, None, 10**12],
    filters=[[], None, [[1]], [[0, 8]], [[1, -8]], [['a', 'b']], [[1, 10**12]], 'abc'],
    n_highway=[-1, 'a', 10**9], n_chars=[6, None, 2**16], activation=['gelu', None],
    max_chars=[2, 'x', 10**9], norm=[None, 5], residual=['x'], cell_clip=['x', 0, math.nan],
    proj_clip=[-1, math.inf], dropout=[-1, 1, 'x', math.nan], softmax=['none', None], bias=[1],
    div_value=['x', 0.5, math.nan], n_negative=[0, 2.5], char_proj=[1, False], share_encoder=[0],
    share_softmax=['x'], cutoffs=[5, [0], [5, 4], ['a'], [3, 3]], name=[5, None])

@pytest.mark.parametrize('k', ABSURD)
def test_absurd_settings_are_named(k):
    for v in ABSURD[k]:
        with pytest.raises(ValueError, match=k): BiLMConfig.from_dict(vars(CFG) | {k: v})
    if k == 'max_chars':
        with pytest.raises(ValueError, match='width 5'):
            replace(CFG, filters=((5, 8),), max_chars=3)

# the stack alone, on vectors of four numbers

KINDS = [dict(), dict(n_layers=1), dict(n_layers=3, residual=False), dict(cell_clip=0.4),
         dict(n_layers=3, hidden_dim=7, cell_clip=0.4, proj_clip=0.2)]
LENS = (6, 3, 1, 5)
each_kind = pytest.mark.parametrize('kwargs', KINDS)
exact = dict(rtol=1e-11, atol=1e-11)

def make_stack(dtype=torch.float32, scale=3., **kwargs):
    "Large weights: gates at work, clips that take hold"
    torch.manual_seed(0)
    m = BiLSTMStack(4, **kwargs)
    for p in m.parameters(): p.data *= scale
    return m.to(dtype).eval()

def slow_stack(m, x):
    "One sentence [T, P] by the equations: (forward, backward) of each layer"
    def run(lstm, xs):
        start = np.zeros(4), np.zeros(lstm.hidden_size)
        return by_equations(lstm, xs, *start, m.cell_clip, m.proj_clip)[0]
    f, b, layers = x.double().numpy(), x.double().numpy()[::-1], []
    for i,(right,left) in enumerate(zip(m.fwd, m.bwd)):
        new_f, new_b = run(right, f), run(left, b)
        f, b = (new_f + f, new_b + b) if i and m.residual else (new_f, new_b)
        layers.append((f, b[::-1]))
    return layers

def vectors(dtype=torch.float32, lens=LENS, seed=0, fill=0.):
    torch.manual_seed(seed)
    mask = torch.arange(max(lens)) < torch.tensor(lens)[:,None]
    x = torch.randn(*mask.shape, 4).double().masked_fill(~mask[...,None], fill)
    return x.to(dtype), mask

def numbers(layers): return [h for both in layers for h in both]

@each_kind
@pytest.mark.parametrize('dtype,eps', [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_stack_follows_the_equations(kwargs, dtype, eps):
    m, (x, mask) = make_stack(dtype, **kwargs), vectors(dtype)
    layers, state = m(x, mask)
    assert state is None and len(layers) == m.n_layers
    clipped = 0
    for r,n in enumerate(LENS):
        for fast,slow in zip(numbers(layers), numbers(slow_stack(m, x[r,:n]))):
            np.testing.assert_allclose(fast[r,:n].detach(), slow, atol=eps, rtol=eps)
            assert not fast[r,n:].any()
            if m.proj_clip: clipped += (np.abs(slow) == m.proj_clip).sum()
    assert clipped or not m.proj_clip                          # or one would not see the clip
    with torch.no_grad():
        for a,b in zip(numbers(m(x, mask)[0]), numbers(layers)): same(a, b, atol=eps)

@each_kind
@pytest.mark.parametrize('dtype', ['float32', 'autocast'])
def test_no_bit_moves_on_the_other_side(kwargs, dtype):
    kind = torch.float32 if dtype == 'autocast' else getattr(torch, dtype)
    m, (x, _) = make_stack(kind, scale=1., **kwargs), vectors(kind, lens=(7, 7, 7))
    with torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'autocast'):
        before = m(x)[0]
        for t in range(7):
            y = x.clone()
            y[:,t] = -2*y[:,t] + .5
            for (f,b),(g,c) in zip(before, m(y)[0]):
                assert torch.equal(f[:,:t], g[:,:t]) and torch.equal(b[:,t+1:], c[:,t+1:])
                assert not torch.equal(f[:,t], g[:,t]) and not torch.equal(b[:,t], c[:,t])

@each_kind
def test_what_stands_in_the_padding_is_never_read(kwargs):
    m, (x, mask) = make_stack(**kwargs), vectors()
    for fill in (1e6, float('nan')):
        for a,b in zip(numbers(m(x, mask)[0]), numbers(m(*vectors(fill=fill))[0])): same(a, b)
    m(x.requires_grad_(), mask)[0][-1][1].sum().backward()
    assert not x.grad[~mask].any() and x.grad[mask].any()
    for wrong, why in (([[0, 1, 1]], 'padding before'), ([[1, 1, 0], [1, 0, 1]], 'padding before'),
                       ([[1, 1]], 'one entry per token')):
        with pytest.raises(ValueError, match=why):
            m(torch.randn(len(wrong), 3, 4), torch.tensor(wrong).bool())
    with pytest.raises(ValueError, match='must not be less'): BiLSTMStack(8, 4)

@each_kind
def test_each_row_carries_its_own_state(kwargs):
    "Rows that a batch lacks keep theirs, new rows begin with zeros; nothing else is remembered"
    m = make_stack(torch.float64, **kwargs)
    fresh = numbers(m(*vectors(torch.float64))[0])
    state, alone = m.init_state(), [m.init_state(1) for _ in range(3)]
    for seed,lens in enumerate([(3, 5), (2, 6, 1), (4,), (0, 2, 3)]):
        x, mask = vectors(torch.float64, lens, seed)
        layers, state = m(x, mask, state)
        for r,n in enumerate(lens):
            if not n: continue
            one, alone[r] = m(x[r:r+1,:n], None, alone[r])
            for a,b in zip(numbers(layers), numbers(one)): same(a[r,:n], b[0], **exact)
    for s,parts in zip(state, zip(*alone)): same(s, torch.cat(parts, 2), **exact)
    for a,b in zip(fresh, numbers(m(*vectors(torch.float64))[0])): assert torch.equal(a, b)

@pytest.mark.parametrize('kwargs', [dict(), KINDS[-1]])
def test_gradients_are_those_of_differences(kwargs):
    m, (x, mask) = make_stack(torch.float64, scale=2., **kwargs), vectors(torch.float64, (3, 2))
    names, weights = zip(*[(n, p) for n,p in m.named_parameters() if p.requires_grad])
    def f(x, *weights):
        layers, _ = torch.func.functional_call(m, dict(zip(names, weights)), (x, mask))
        return numbers(layers)
    assert torch.autograd.gradcheck(f, (x.requires_grad_(), *weights), fast_mode=True)

def test_autocast_where_the_processor_has_no_lstm_for_it(monkeypatch):
    "There it computes in full precision; PyTorch would stop with an error about primitives"
    m, (x, mask) = make_stack(), vectors()
    def run(): return [*numbers(m(x, mask)[0]), *m(x, state=m.init_state(len(x)))[1]]
    plain = run()
    monkeypatch.setattr(recurrent, 'processor_has_lstm', lambda dtype: False)
    with torch.autocast('cpu', torch.bfloat16):
        for a,b in zip(plain, run()): same(a, b)
        assert torch.is_autocast_enabled('cpu')
