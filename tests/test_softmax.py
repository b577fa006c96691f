"""Output layers: the same numbers in parts, distributions, a sampled loss that tends to the full
one, and what is held in memory"""

import copy, math
import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elmo_fastai.nn.softmax import (AdaptiveSoftmax, FullSoftmax, SampledSoftmax, default_cutoffs,
                                    inclusion, log_uniform, output_layer)

KINDS = dict(
    full=dict(softmax='full'),
    adaptive=dict(softmax='adaptive', cutoffs=(6, 20)),
    sampled=dict(softmax='sampled', n_negative=15),
)

def head(kind, dim=16, n=50, **kw):
    torch.manual_seed(0)
    return output_layer(dim, n, **{**KINDS[kind], **kw})

def states(n=40, dim=16, words=50, seed=1):
    g = torch.Generator().manual_seed(seed)
    return 2*torch.randn(n, dim, generator=g), torch.randint(words, (n,), generator=g)

class Sizes(TorchDispatchMode):
    "The number of elements of the largest tensor that is made"
    most = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(o, torch.Tensor): self.most = max(self.most, o.numel())
        return out

# distributions

def check_distribution(m, h, y):
    "The probabilities of all words add up to 1, and `nll` has those of the targets"
    with torch.no_grad(): logp, nll = m.log_prob(h), m.nll(h, y)
    total = logp.double().exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
    torch.testing.assert_close(nll, -logp[range(len(y)), y], atol=1e-4, rtol=1e-5)

@pytest.mark.parametrize('kind', KINDS)
def test_distributions_and_their_likelihoods(kind): check_distribution(head(kind).eval(), *states())

@pytest.mark.parametrize('n,cutoffs', [
    (7, ()), (7, (3,)), (50, (10, 20)), (50, (1,)), (50, (49,)), (50, (10, 50, 60)), (4000, None),
    (4001, None), (25_000, None)])
def test_auto_chooses_by_size_and_cutoffs(n, cutoffs):
    torch.manual_seed(n)
    m, h = output_layer(20, n, cutoffs=cutoffs), 3*torch.randn(5, 20)
    check_distribution(m, h, torch.tensor([0, 1, n//2, n-2, n-1]))
    wants = {4000: FullSoftmax, 4001: AdaptiveSoftmax, 25_000: AdaptiveSoftmax}.get(n) or (
        FullSoftmax if not [c for c in cutoffs if c < n] else AdaptiveSoftmax)
    assert type(m) is wants and m.exact

def test_names_decide():
    assert (type(output_layer(20, 100_000, 'full')) is FullSoftmax
            and type(output_layer(20, 100, 'sampled')) is SampledSoftmax)
    assert type(output_layer(20, 100, 'full', (10,))) is FullSoftmax
    m = output_layer(20, 100, 'adaptive', (10, 30, 200), div_value=2.)
    assert (type(m) is AdaptiveSoftmax and m.cutoffs == [10, 30, 100]
            and [o[0].out_features for o in m.tail] == [10, 5])
    # no word is beyond the first cutoff
    assert type(output_layer(20, 1000, 'adaptive')) is FullSoftmax
    assert (default_cutoffs(4000) == () and all(c < 5000 for c in default_cutoffs(5000))
            and default_cutoffs(5000))
    assert not SampledSoftmax(4, 10, 3).exact
    with pytest.raises(ValueError, match='hierarchical'): output_layer(8, 10, 'hierarchical')

# in parts

@pytest.mark.parametrize('kind', ['full', 'adaptive'])
@pytest.mark.parametrize('max_scores', [1, 30, 333])
def test_parts_change_nothing(kind, max_scores):
    "Loss and every gradient as the plain ones, in double precision, however few scores are held"
    (h, y), plain, blocks = states(), head(kind).double(), head(kind).double()
    blocks.max_scores = max_scores
    res = []
    for m in (plain, blocks):
        x = h.double().requires_grad_()
        nll = m.nll(x, y)
        # another weight for each position
        (nll*torch.arange(1, 41)).sum().backward()
        res.append([nll, x.grad, *(p.grad for p in m.parameters())])
    for a,b in zip(*res): torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)

@pytest.mark.parametrize('kind', KINDS)
def test_finite_differences(kind):
    (h, y), m = states(6, 4, 50), head(kind, 16 if kind == 'adaptive' else 4).double()
    if kind == 'adaptive': h = states(6, 16)[0]
    m.max_scores = 20
    names = [k for k,_ in m.named_parameters()]
    def f(h, *ps):
        torch.manual_seed(3)                                            # the same sample every time
        return torch.func.functional_call(Call(m, y), {f'm.{k}': p for k,p in zip(names, ps)}, (h,))

    assert torch.autograd.gradcheck(f, [
        h.double().requires_grad_(),
        *(p.detach().clone().requires_grad_() for p in m.parameters())])

class Call(nn.Module):
    "`m.nll` as a module"
    def __init__(self, m, y): super().__init__(); self.m,self.y = m,y
    def forward(self, h): return self.m.nll(h, self.y)

def test_extreme_scores():
    m = FullSoftmax(1, 6)
    with torch.no_grad():
        m.weight.copy_(torch.tensor([[1e4], [-1e4], [0.0], [1e4], [1.0], [2.0]]))
        m.bias.zero_()
    h, y = torch.ones(3, 1, requires_grad=True), torch.tensor([0, 1, 3])
    m.max_scores = 2
    nll = m.nll(h, y)
    torch.testing.assert_close(
        nll, torch.tensor([math.log(2), 2e4, math.log(2)]), rtol=1e-4, atol=1e-3
    )
    nll.sum().backward()
    assert h.grad.isfinite().all() and m.weight.grad.isfinite().all()

# memory

@pytest.mark.parametrize('kind,kw', [
    ('full', {}), ('adaptive', dict(cutoffs=(2000,))), ('sampled', dict(n_negative=5000))])
def test_scores_are_never_held(kind, kw):
    """400 positions of 20,000 words would be 8 million scores; what is made is no larger than the
    weights, in training and in evaluation"""
    m = head(kind, 16, 20_000, **kw)
    m.max_scores = 100_000
    h, y = torch.randn(400, 16, requires_grad=True), torch.randint(20_000, (400,))
    for train in (True, False):
        with Sizes() as sizes:
            m.train(train).nll(h, y).mean().backward()
        assert sizes.most <= max(m.max_scores, 20_000*16), sizes.most
    with Sizes() as sizes:
        F.cross_entropy(F.linear(h, torch.randn(20_000, 16)), y)
    # the instrument sees them where they are
    assert sizes.most == 8_000_000

# adaptive

def test_adaptive_is_pytorchs():
    "The same losses and gradients as `nn.AdaptiveLogSoftmaxWithLoss` on the same weights"
    m, (h, y) = head('adaptive'), states()
    torchs = nn.AdaptiveLogSoftmaxWithLoss(16, 50, [6, 20])
    torchs.load_state_dict(m.state_dict())
    m.nll(h, y).sum().backward(); (-torchs(h, y).output).sum().backward()
    torch.testing.assert_close(m.nll(h, y), -torchs(h, y).output)
    for (k, a), (_, b) in zip(m.named_parameters(), torchs.named_parameters()):
        torch.testing.assert_close(a.grad, b.grad, msg=k, atol=1e-5, rtol=1e-4)
    # weights saved by either load into the other
    assert [*m.state_dict()] == [*torchs.state_dict()]

@pytest.mark.parametrize('y', [[0]*5, [49]*5, [7]*5, [3], []])
def test_adaptive_with_groups_that_nobody_asks_for(y):
    m, h = head('adaptive'), torch.randn(len(y), 16)
    y = torch.tensor(y, dtype=torch.long)
    torch.testing.assert_close(m.nll(h, y), -m.log_prob(h)[range(len(y)), y], atol=1e-5, rtol=1e-5)

def test_adaptive_groups_need_room():
    with pytest.raises(ValueError, match='size 0'): AdaptiveSoftmax(8, 50, (6, 20))
    with pytest.raises(ValueError): AdaptiveSoftmax(16, 50, (6, 50))

# sampled

@pytest.mark.parametrize('n', [1, 2, 10, 1000])
def test_log_uniform_is_the_originals(n):
    p = log_uniform(n)
    assert p.shape == (n,) and math.isclose(p.sum(), 1) and (np.diff(p) < 0).all()
    for k in {0, n // 2, n - 1}:
        assert math.isclose(p[k], (math.log(k + 2) - math.log(k + 1))/math.log(n + 1))

@pytest.mark.parametrize('n_words,n', [
    (10, 3), (1000, 1), (1000, 999), (100_000, 8192), (50, 50), (50, 60)])
def test_inclusion_adds_up(n_words, n):
    q = inclusion(log_uniform(n_words), n)
    assert (math.isclose(q.sum(), min(n, n_words), rel_tol=1e-6) and q.min() > 0 and q.max() <= 1
            and (np.diff(q) <= 1e-12).all())

def test_inclusion_is_that_of_drawing_word_by_word():
    "As in the original: draw with replacement until there are n different words"
    rng, p, n, tries, counts = np.random.default_rng(0), log_uniform(60), 20, [], np.zeros(60)
    for _ in range(2000):
        draws = rng.choice(60, 400, p=p)
        # where the n-th different word appears
        first = np.sort(np.unique(draws, return_index=True)[1])[n-1]
        counts[np.unique(draws[:first+1])] += 1
    q = inclusion(p, n)
    assert abs(counts/2000 - q).max() < .04 and math.isclose(counts.sum()/2000, q.sum())

def test_the_sums_estimate_is_unbiased():
    m = SampledSoftmax(8, 300, n_negative=60).double()
    torch.manual_seed(0)
    z = m(torch.randn(8).double()).detach()
    draws = torch.rand(20_000, 300, dtype=torch.float64) < m.q
    est = (draws*(z - m.q.log()).exp()).sum(1)/z.exp().sum()
    assert abs(est.mean() - 1) < 4*est.std()/20_000**.5 and est.std() > .05
    # without the correction it is far off
    wrong = (draws*z.exp()).sum(1)/z.exp().sum()
    assert abs(wrong.mean() - 1) > 20*wrong.std()/20_000**.5

def slow_sampled_loss(m, h, y, sample):
    """As in the literature: for each position the sample without the target, and the target, one by
    one"""
    res = []
    for x,t in zip(h, y.tolist()):
        z = [(m.weight[w] @ x + m.bias[w] - m.q[w].log())
             for w in [t, *(w for w in sample if w != t)]]
        res.append(torch.stack(z).logsumexp(0) - z[0])
    return torch.stack(res)

def test_sampled_loss_is_the_slow_one():
    m, (h, y) = SampledSoftmax(16, 50, 15).double(), states()
    h = h.double()
    for seed in range(5):
        torch.manual_seed(seed)
        sample = (torch.rand_like(m.q) < m.q).nonzero()[:,0].tolist()
        # hits, and targets outside
        assert set(sample) & set(y.tolist()) and set(y.tolist()) - set(sample)
        torch.manual_seed(seed)
        torch.testing.assert_close(m.train().nll(h, y), slow_sampled_loss(m, h, y, sample))

def test_sampled_loss_tends_to_the_full_one():
    (h, y), losses = states(200, 16, 400), []
    torch.manual_seed(0)
    weights = SampledSoftmax(16, 400).state_dict()
    for n in (10, 40, 150, 300, 380, 400):
        m = SampledSoftmax(16, 400, n)
        m.load_state_dict(weights)
        losses.append(torch.stack([m.train().nll(h, y).mean() for _ in range(30)]).mean().item())
    full = m.eval().nll(h, y).mean().item()
    assert all(a < b for a,b in zip(losses, losses[1:])) and losses[0] < full - .5
    assert math.isclose(losses[-1], full, rel_tol=1e-5)
    m.train(); grads = []
    for f in (lambda: m.nll(h, y), lambda: FullSoftmax.nll(m.eval(), h, y)):
        m.zero_grad(); f().mean().backward(); grads.append(m.weight.grad.clone())
    # with all words drawn, the gradient too
    torch.testing.assert_close(*grads, atol=1e-6, rtol=1e-4)

def test_sampled_is_exact_in_evaluation():
    m, (h, y) = head('sampled'), states()
    full = FullSoftmax(16, 50); full.load_state_dict(m.state_dict())
    assert torch.allclose(m.eval().nll(h, y), full.nll(h, y), atol=1e-5) and torch.equal(
        m.nll(h, y), m.nll(h, y))
    assert not torch.equal(m.train().nll(h, y), m.nll(h, y))            # a new sample each time
    torch.manual_seed(4); a = m.nll(h, y)
    torch.manual_seed(4); assert torch.equal(a, m.nll(h, y))

def test_sampled_learns_the_words_not_drawn_as_targets():
    m = SampledSoftmax(4, 1000, 5)
    m.nll(torch.randn(3, 4), torch.tensor([999, 998, 997])).sum().backward()
    assert m.weight.grad[997:].ne(0).any(1).all() and m.weight.grad.ne(0).any(1).sum() < 40

def test_a_sample_may_be_empty():
    "Drawing two words on average sometimes draws none: then the target has no competitor"
    m, (h, y) = SampledSoftmax(16, 50, 2), states()
    m.q = torch.full((50,), 1e-9, dtype=torch.float64)
    loss = m.nll(h.requires_grad_(), y)
    loss.sum().backward()
    assert loss.eq(0).all() and h.grad.eq(0).all() and m.weight.grad.isfinite().all()

@pytest.mark.parametrize('n', [0, -3])
def test_a_sample_has_words(n):
    with pytest.raises(ValueError, match='n_negative'): SampledSoftmax(4, 10, n)

# wrong input

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('train', [True, False])
def test_targets_that_are_no_words(kind, train):
    m, (h, y) = head(kind).train(train), states(3)
    for bad in (-1, 50, 10**9):
        with pytest.raises(ValueError, match=rf'Target {bad} is outside 0 to 49'):
            m.nll(h, torch.tensor([0, bad, 1]))
    assert m.nll(h[:0], y[:0]).shape == (0,)

# number formats

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('max_scores', [10**9, 100])
def test_number_formats(kind, max_scores):
    (h, y), m = states(), head(kind)
    m.max_scores = max_scores
    def loss(m, h):
        torch.manual_seed(5)
        m.zero_grad()
        nll = m.nll(h, y)
        nll.mean().backward()
        return nll, [p.grad for p in m.parameters()]
    exact, grads = loss(copy.deepcopy(m).double(), h.double())
    single, _ = loss(m, h)
    assert exact.dtype == torch.float64 and single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, atol=1e-5, rtol=1e-5)
    with torch.autocast('cpu', torch.bfloat16): nll = m.nll(h, y)
    assert nll.dtype == torch.float32
    half, gh = loss(copy.deepcopy(m).bfloat16(), h.bfloat16())
    with torch.autocast('cpu', torch.bfloat16): auto, ga = loss(m, h)
    for x in (half, auto):
        assert x.dtype == torch.float32 and x.isfinite().all()
        torch.testing.assert_close(x.mean().double(), exact.mean(), atol=.05, rtol=.05)
    for a,b,g in zip(ga, gh, grads):
        assert a.dtype == torch.float32 and b.dtype == torch.bfloat16
        for o in (a, b): assert F.cosine_similarity(o.flatten().double(), g.flatten(), dim=0) > .99

@pytest.mark.parametrize('cutoffs', [(), (10,), (6, 20)])
@pytest.mark.parametrize('kind', ['full', 'sampled', 'auto'])
def test_a_layer_begins_with_what_counting_knows(kind, cutoffs):
    log_p = torch.randn(31, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    layer = output_layer(16, 31, kind, cutoffs, n_negative=15, bias=True).eval()
    layer.begin_at(log_p)
    torch.testing.assert_close(layer.log_prob(torch.zeros(1, 16))[0], log_p)
    torch.testing.assert_close(layer.nll(torch.zeros(31, 16), torch.arange(31)), -log_p)

def test_an_adaptive_layer_has_a_bias_only_if_it_is_asked_to():
    "Models of earlier versions load, and draw the same weights as before"
    layers = []
    for bias in (False, True):
        torch.manual_seed(0)
        layers.append(AdaptiveSoftmax(16, 31, (6, 20), bias=bias))
    plain, more = (o.state_dict() for o in layers)
    assert set(more) - set(plain) == {'head.bias', 'tail.0.1.bias', 'tail.1.1.bias'}
    assert all(more[k].equal(v) for k, v in plain.items()) and not any(
        more[k].any() for k in set(more) - set(plain))
    assert layers[1].head.bias.requires_grad

def test_biases_have_the_gradients_of_the_plain_way():
    layer = AdaptiveSoftmax(16, 31, (6, 20), bias=True).double()
    with torch.no_grad():
        for p in layer.parameters(): p.normal_()
    h, y = torch.randn(40, 16, dtype=torch.double), torch.arange(40) % 31
    layer.nll(h, y).sum().backward()
    got = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    (-layer.log_prob(h).gather(1, y[:, None]).sum()).backward()
    for a,p in zip(got, layer.parameters()): torch.testing.assert_close(a, p.grad)
