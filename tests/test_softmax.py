"""Output layers: the same numbers in parts, distributions, a sampled loss that tends to the full
one, and what is held in memory"""
import copy, math
import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from elmo_fastai import softmax
from elmo_fastai.softmax import (
    AdaptiveSoftmax, FullSoftmax, SampledSoftmax, inclusion, log_uniform, output_layer)

KINDS = dict(full={}, adaptive=dict(cutoffs=(6, 20)), sampled=dict(n_negative=15))
each_kind = pytest.mark.parametrize('kind', KINDS)

def head(kind, dim=16, n=50, **settings):
    torch.manual_seed(0)
    return output_layer(dim, n, kind, **KINDS[kind] | settings)

def states(n=40, dim=16, words=50):
    g = torch.Generator().manual_seed(1)
    return 2*torch.randn(n, dim, generator=g), torch.randint(words, (n,), generator=g)

def check_distribution(m, h, y):
    "The probabilities of all words add up to 1, and `nll` has those of the targets"
    with torch.no_grad(): logp, nll = m.log_prob(h), m.nll(h, y)
    total = logp.double().exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
    torch.testing.assert_close(nll, -logp[range(len(y)), y], atol=1e-4, rtol=1e-5)

@each_kind
def test_distributions_and_their_likelihoods(kind): check_distribution(head(kind).eval(), *states())

@pytest.mark.parametrize('n,cutoffs,wanted', [
    (7, (), FullSoftmax), (50, (49,), AdaptiveSoftmax), (50, (10, 50, 60), AdaptiveSoftmax),
    (50, (60,), FullSoftmax), (4000, None, FullSoftmax), (4001, None, AdaptiveSoftmax)])
def test_auto_chooses_by_size_and_cutoffs(n, cutoffs, wanted):
    torch.manual_seed(n)
    m = output_layer(20, n, cutoffs=cutoffs)
    assert type(m) is wanted and m.exact
    check_distribution(m, 3*torch.randn(5, 20), torch.tensor([0, 1, n//2, n-2, n-1]))

def test_names_decide():
    assert type(output_layer(20, 100, 'full', (10,))) is FullSoftmax
    assert not output_layer(20, 100, 'sampled').exact
    m = output_layer(20, 100, 'adaptive', (10, 30, 200), div_value=2.)
    assert m.cutoffs == [10, 30, 100] and [tail[0].out_features for tail in m.tail] == [10, 5]
    for make,why in {lambda: output_layer(8, 10, 'hierarchical'): 'hierarchical',
                     lambda: AdaptiveSoftmax(8, 50, (6, 20)): 'size 0',
                     lambda: SampledSoftmax(4, 10, 0): 'n_negative'}.items():
        with pytest.raises(ValueError, match=why): make()

# in parts

@pytest.mark.parametrize('kind', ['full', 'adaptive'])
@pytest.mark.parametrize('max_scores', [1, 333])
def test_parts_change_nothing(kind, max_scores, monkeypatch):
    "Loss and every gradient are PyTorch's, in double precision, however few scores are held"
    monkeypatch.setattr(softmax, 'MAX_SCORES', max_scores)
    h, y = states()
    results = []
    for name in ('nll', 'log_prob'):
        m, x = head(kind).double(), h.double().requires_grad_()
        nll = m.nll(x, y) if name == 'nll' else -m.log_prob(x)[range(40), y]
        (nll*torch.arange(1, 41)).sum().backward()          # another weight for each position
        results.append([nll, x.grad, *(p.grad for p in m.parameters())])
    for a,b in zip(*results): torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)

class Sizes(TorchDispatchMode):
    "The number of elements of the largest tensor that is made"
    most = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor): self.most = max(self.most, x.numel())
        return out

@pytest.mark.parametrize('kind,settings', [
    ('full', {}), ('adaptive', dict(cutoffs=(2000,))), ('sampled', dict(n_negative=2500))])
def test_scores_are_never_held(kind, settings, monkeypatch):
    "200 positions of 10,000 words would be 2 million scores"
    monkeypatch.setattr(softmax, 'MAX_SCORES', 50_000)
    m = head(kind, 16, 10_000, **settings)
    h, y = torch.randn(200, 16, requires_grad=True), torch.randint(10_000, (200,))
    for train in (True, False):
        with Sizes() as sizes: m.train(train).nll(h, y).mean().backward()
        assert sizes.most <= 10_000*16, sizes.most                 # the gradient of the weights

@each_kind
def test_number_formats(kind, monkeypatch):
    monkeypatch.setattr(softmax, 'MAX_SCORES', 100)
    (h, y), m = states(), head(kind)
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
    with torch.autocast('cpu', torch.bfloat16): nll, found = loss(m, h)
    assert nll.dtype == torch.float32
    torch.testing.assert_close(nll.mean().double(), exact.mean(), atol=.05, rtol=.05)
    for a,b in zip(found, grads):
        assert F.cosine_similarity(a.flatten().double(), b.flatten(), dim=0) > .99

@each_kind
@pytest.mark.parametrize('train', [True, False])
def test_targets_that_are_no_words(kind, train):
    m, (h, y) = head(kind).train(train), states(3)
    for bad in (50, 10**9):
        with pytest.raises(IndexError): m.nll(h, torch.tensor([0, bad, 1]))
    assert m.nll(h[:0], y[:0]).shape == (0,)

# adaptive

@pytest.mark.parametrize('y', [None, [49]*5, [7], []])
def test_adaptive_is_pytorchs(y):
    "The same losses and gradients on the same weights, also where a group has no target"
    m, torchs = head('adaptive'), nn.AdaptiveLogSoftmaxWithLoss(16, 50, [6, 20])
    torchs.load_state_dict(m.state_dict())
    h, targets = states()
    if y is not None: h, targets = h[:len(y)], torch.tensor(y, dtype=torch.long)
    nll, wanted = m.nll(h, targets), -torchs.log_prob(h)[range(len(h)), targets]
    torch.testing.assert_close(nll, wanted, atol=1e-5, rtol=1e-5)
    nll.sum().backward()
    wanted.sum().backward()
    for (name, a), b in zip(m.named_parameters(), torchs.parameters()):
        a = torch.zeros_like(a) if a.grad is None else a.grad
        torch.testing.assert_close(a, b.grad, msg=name, atol=1e-5, rtol=1e-4)

@pytest.mark.parametrize('kind,cutoffs', [('full', ()), ('sampled', ()), ('auto', (6, 20))])
def test_a_layer_begins_with_what_counting_knows(kind, cutoffs):
    log_p = torch.randn(31, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    layer = output_layer(16, 31, kind, cutoffs, n_negative=15, bias=True).eval()
    layer.begin_at(log_p)
    torch.testing.assert_close(layer.log_prob(torch.zeros(1, 16))[0], log_p)
    torch.testing.assert_close(layer.nll(torch.zeros(31, 16), torch.arange(31)), -log_p)

# sampled

def test_chances_are_those_of_drawing_word_by_word():
    "As in the original: draw with replacement until there are n different words"
    rng, p, n, counts = np.random.default_rng(0), log_uniform(60), 20, np.zeros(60)
    for _ in range(1000):
        draws = rng.choice(60, 400, p=p)
        first = np.sort(np.unique(draws, return_index=True)[1])[n-1]     # of the n-th word
        counts[np.unique(draws[:first+1])] += 1
    assert abs(counts/1000 - inclusion(p, n)).max() < .06

def slow_sampled_loss(m, h, y, sample):
    "For each position the sample without the target, and the target, one by one"
    losses = []
    for x,t in zip(h, y.tolist()):
        words = [t, *(w for w in sample if w != t)]
        z = [m.weight[w] @ x + m.bias[w] - m.q[w].log() for w in words]
        losses.append(torch.stack(z).logsumexp(0) - z[0])
    return torch.stack(losses)

def test_sampled_loss_is_the_slow_one():
    m, (h, y) = SampledSoftmax(16, 50, 15).double(), states()
    h = h.double()
    for seed in range(5):
        torch.manual_seed(seed)
        sample = (torch.rand_like(m.q) < m.q).nonzero()[:,0].tolist()
        assert set(sample) & set(y.tolist()) and set(y.tolist()) - set(sample)
        torch.manual_seed(seed)
        torch.testing.assert_close(m.train().nll(h, y), slow_sampled_loss(m, h, y, sample))

def test_sampled_loss_tends_to_the_full_one():
    (h, y), losses = states(200, 16, 400), []
    torch.manual_seed(0)
    weights = SampledSoftmax(16, 400).state_dict()
    for n in (10, 150, 380, 400):
        m = SampledSoftmax(16, 400, n)
        m.load_state_dict(weights)
        losses.append(torch.stack([m.train().nll(h, y).mean() for _ in range(30)]).mean().item())
    assert all(a < b for a,b in zip(losses, losses[1:]))
    full = FullSoftmax(16, 400)
    full.load_state_dict(weights)
    for layer in (m, full): layer.nll(h, y).mean().backward()
    assert math.isclose(losses[-1], full.nll(h, y).mean().item(), rel_tol=1e-5)
    torch.testing.assert_close(m.weight.grad, full.weight.grad, atol=1e-6, rtol=1e-4)

def test_sampled_is_exact_in_evaluation():
    m, (h, y) = head('sampled'), states()
    full = FullSoftmax(16, 50)
    full.load_state_dict(m.state_dict())
    assert torch.allclose(m.eval().nll(h, y), full.nll(h, y), atol=1e-5)
    assert not torch.equal(m.train().nll(h, y), m.nll(h, y))            # a new sample each time
