"Scalar mix and module: what both guarantee"
import copy, math, pickle, re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from fastai.basics import DataLoaders, Learner

from elmo_fastai.tokens import CharVocab
from elmo_fastai.bilm import BiLM
from elmo_fastai.elmo import Elmo, MixPenalty, ScalarMix, elmo_split
from made import CFG, Mine, S, bilm, close, make, quietly, same

@pytest.fixture()
def elmo(): return make()

@pytest.mark.parametrize('make_it,error,says', [
    *[(lambda kw=kw: make(**kw), ValueError, next(iter(kw))) for kw in (
        dict(shares=(0, 1, 1)), dict(shares=(1, 1)), dict(norm='layer'), dict(markers='none'),
        dict(n_reps=0), dict(tokenizer='nltk'), dict(char_vocab=CharVocab.build([['abc']])))],
    (lambda: make()(torch.zeros(2, 50)), ValueError, 'B, T, W'),
    (lambda: make()(torch.full((1, 2, 50), 300)), ValueError, 'outside'),
    (lambda: make(markers='given')([['<S>', 'a', '</S>']]), ValueError, "markers='add'"),
    (lambda: make(markers='given').embed(['a']), ValueError, "markers='add'")])
def test_what_can_not_be(make_it, error, says):
    with pytest.raises(error, match=says): make_it()

def marked(elmo, tokens):
    "Char ids of a sentence with its marks, [T+2, W]"
    _, bos, eos = elmo.char_vocab.specials
    rows = [[bos], elmo.char_vocab.encode(tokens), [eos]] if tokens else [[bos], [eos]]
    return torch.from_numpy(np.concatenate(rows))

# the mix

def test_the_mix_is_equation_1():
    h = [torch.randn(2, 5, 6, dtype=torch.float64) for _ in range(4)]
    mix = ScalarMix(4, shares=(.1, .2, .3, .4), gamma=1.5).double()
    powers = [math.exp(w) for w in mix.w.tolist()]
    loop = sum(1.5*power/sum(powers)*layer for power,layer in zip(powers, h))
    assert close(mix(h), loop) and close(mix.shares, np.array([.1, .2, .3, .4]), 1e-6)
    with pytest.raises(ValueError, match='shorter'): mix(h[:2])

@pytest.mark.parametrize('s,g', [(True, False), (False, True), (False, False)])
def test_shares_and_gamma_freeze_by_themselves(s, g):
    mix = ScalarMix(3, train_shares=s, train_gamma=g)
    assert (mix.w.requires_grad, mix.gamma.requires_grad) == (s, g)
    out = mix([torch.randn(1, 2, 4) for _ in range(3)]).sum()
    assert out.requires_grad == (s or g)
    if s or g: out.backward()
    assert (mix.w.grad is not None, mix.gamma.grad is not None) == (s, g)

def test_token_norm_looks_at_the_token_alone():
    h = [torch.randn(3, 5, 8)*k for k in (1, 10, .1)]
    mix = ScalarMix(3, norm='token')
    def normed(o):
        return (o - o.mean(-1, keepdim=True))/(o.var(-1, False, keepdim=True) + 1e-5).sqrt()
    assert close(mix(h), sum(map(normed, h))/3)
    assert close(mix([o[1:2, 3:4] for o in h]), mix(h)[1:2, 3:4], 1e-6)

def test_batch_norm_is_the_originals():
    """Against bilm-tf's formula, written out: one mean and one variance over all real tokens and
    features"""
    h, mask = torch.randn(3, 5, 8)*3 + 1, torch.arange(5) < torch.tensor([[5], [2], [0]])
    h = h*mask[..., None]
    real = h[mask]
    expected = (h - real.mean())/(real.var(unbiased=False) + 1e-12).sqrt()
    out = ScalarMix(1, norm='batch')([h], mask)
    assert torch.allclose(out[mask], expected[mask], atol=1e-5) and not out[~mask].any()
    assert torch.isfinite(ScalarMix(1, norm='batch')([h*0], mask*False)).all()

def test_penalty_callback_counts_every_mix_in_training_only():
    model = nn.ModuleList([ScalarMix(3, shares=(.7, .2, .1)), ScalarMix(3, shares=(.1, .1, .8))])
    assert model[0].penalty(2.).item() == pytest.approx(2*model[0].w.square().sum().item())
    assert ScalarMix(3).penalty() == 0
    cb = MixPenalty(.5)
    for training in (True, False):
        cb.learn = SimpleNamespace(model=model, training=training, loss_grad=torch.tensor(1.))
        cb.after_loss()
        expected = 1 + training*sum(mix.penalty(.5).item() for mix in model)
        assert cb.learn.loss_grad.item() == pytest.approx(expected)

# the module

@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(n_layers=3, residual=False, max_chars=12),
    dict(cell_clip=0.5, proj_clip=0.3, norm=False, activation='tanh')], ids=str)
def test_vectors_are_the_bilms(cfg):
    elmo = make(cfg=cfg)
    layers, mask = elmo.layers(S)
    assert len(layers) == elmo.n_layers == elmo.lm.config.n_layers + 1
    assert layers[0].shape == (5, 12, 16) and mask.sum(1).tolist() == [len(s) for s in S]
    for i,s in enumerate(S):
        with torch.no_grad(): direct = elmo.lm.encode(marked(elmo, s)[None])
        for h,o in zip(layers, direct):
            assert close(h[i,:len(s)], torch.cat(o, -1)[0, 1:-1]) and not h[i, len(s):].any()
    (mixed,), _ = elmo(S)
    assert close(mixed, sum(layers)/len(layers))

def test_padding_in_front_or_within_is_refused(elmo):
    chars = elmo.to_chars(S[:2])
    holes = torch.zeros(2, 8, 50, dtype=chars.dtype)
    holes[0, [0, 2, 3, 6, 7]] = chars[0]
    for wrong in (chars.flip(1), holes):
        with pytest.raises(ValueError, match='padding before a token'): elmo(wrong)

@pytest.mark.parametrize('shape', [(0, 0), (0, 5), (3, 0)])
@pytest.mark.parametrize('markers', ['add', 'given'])
def test_nothing_to_embed(shape, markers):
    elmo = make(markers=markers)
    (v,), mask = elmo(torch.zeros(*shape, 50, dtype=torch.int16))
    assert v.shape == (*shape, 16) and mask.shape == shape
    assert elmo([[], []])[0][0].shape == (2, 0, 16) and elmo([''])[1].shape == (1, 0)
    make(carry=True, markers=markers)([[]])

def test_markers_given():
    a, b = make(), make(markers='given')
    full = marked(a, S[0])[None]
    (v,), mask = b(full)
    assert not close(a([['<s>']])[0][0], a([['</s>']])[0][0], 1e-3), 'a text is no mark'
    assert v.shape[1] == 7 and mask.all() and close(v[:, 1:-1], a([S[0]])[0][0])
    with pytest.raises(ValueError, match="markers='given'"): a(full)

def test_several_mixes():
    model = make(n_reps=3)
    with torch.no_grad():
        model.mixes[1].w.copy_(torch.tensor([9.0, 0.0, 0.0]))
        model.mixes[2].gamma.fill_(2.0)
    vecs, _ = model(S)
    layers, mask = make().layers(S)
    for v,m in zip(vecs, model.mixes, strict=True): assert close(v, m(layers, mask))
    assert close(vecs[2], 2*vecs[0]) and not close(vecs[1], vecs[0], 1e-3)

# frozen

def kept(f):
    "How many tensors PyTorch keeps for a backward pass of `f()`"
    n = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: n.append(t) or t, lambda t: t):
        out = f()
    return len(n), out

@pytest.mark.parametrize('training', [False, True])
def test_a_frozen_bilm_keeps_no_gradient_memory(training):
    elmo = make(train_shares=False, train_gamma=False, dropout=.5).train(training)
    n, ((v,), _) = kept(lambda: elmo(S))
    assert n == 0 and not v.requires_grad
    elmo = make()
    n, ((v,), _) = kept(lambda: elmo(S))
    # what equation 1 needs, and nothing of the biLM
    assert v.requires_grad and 0 < n < 12
    v.sum().backward()
    assert all(p.grad is None for p in elmo.lm.parameters()) and elmo.mixes[0].w.grad is not None

def test_a_frozen_bilm_stays_as_it_is_in_training_mode(elmo):
    before = {k: v.clone() for k,v in elmo.lm.state_dict().items()}
    quiet = elmo(S)[0]
    assert elmo.training is False
    elmo.train()
    assert elmo.training and not any(m.training for m in elmo.lm.modules())
    assert same(elmo(S)[0], quiet)                                      # no dropout inside
    (v,), mask = make(dropout=.5).train()(S)
    assert .3 < (v[mask] == 0).float().mean() < .7, 'it is on the vectors'
    assert all(torch.equal(v, before[k]) for k,v in elmo.lm.state_dict().items())

@pytest.mark.parametrize('shared', [True, False])
def test_unfreeze_opens_exactly_so_many_groups(shared):
    elmo = Elmo(BiLM(replace(CFG, n_layers=3, share_encoder=shared), 0))

    def n_open():
        return [[f(p.requires_grad for p in group) for group in elmo.groups()] for f in (all, any)]
    for n in (2, 4, 0, 1, 3):                                           # also fewer than before
        elmo.unfreeze(top=n)
        assert n_open() == [[False]*(4-n) + [True]*n]*2 and elmo.trainable == (n > 0)
    with pytest.raises(ValueError, match='top=5'): elmo.unfreeze(top=5)
    elmo.unfreeze(top=1).train()
    assert elmo.lm.lstm.training and elmo.lm.drop.training and not elmo.lm.chars.training
    elmo.freeze()
    assert not elmo.trainable and not elmo.lm.lstm.training and elmo.training
    assert all(elmo.unfreeze() and n_open()[0]) and elmo.lm.chars.training

# groups

def test_groups_cover_what_can_be_trained():
    elmo = make(train_gamma=False)
    groups = elmo_split(Mine(elmo))
    ids = [id(p) for group in groups for p in group]
    assert len(groups) == 4 and len(set(ids)) == len(ids)
    left = [k for k,p in Mine(elmo).named_parameters() if id(p) not in ids and 'lin' not in k]
    assert all('head' in k or 'bias_hh' in k or k.endswith('gamma') for k in left), left
    with pytest.raises(ValueError, match='no Elmo'): elmo_split(nn.Linear(1, 1))

def test_a_plain_learner_freezes_and_opens_groups():
    elmo = make()
    items = [(x, torch.tensor([0, 1])) for x in elmo.to_chars([['the', 'bank'], ['a', 'river']]*8)]
    learn = Learner(DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0),
                    Mine(elmo), splitter=elmo_split,
                    loss_func=lambda pred, y: F.cross_entropy(pred.flatten(0, 1), y.flatten()))
    before = {k: v.clone() for k,v in elmo.lm.state_dict().items()}
    def moved(): return {k for k,v in elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    quietly(learn, 'fit', 1, 1e-2)
    assert not moved() and elmo.mixes[0].w.abs().sum() > 0
    learn.freeze_to(-2)
    quietly(learn, 'fit', 1, slice(1e-4, 1e-2))
    assert moved() and all(re.match(r'lstm\.(fwd|bwd)\.1\.', k) for k in moved())
    learn.unfreeze()
    quietly(learn, 'fit', 1, 1e-3)
    assert {'chars.embed.weight', 'chars.norm.running_mean'} <= moved()

# state

def test_carried_state_is_the_reference_of_the_bilm():
    "As `BiLM.encode_state`, batch after batch, rows coming and going"
    old, state, lm = make(carry=True), None, bilm()
    for batch in ([S[0], S[1]], [S[3], S[0], S[1]], [S[1]], [S[0], S[4], S[3], S[1]]):
        layers, mask = old.layers(batch)
        rows = [marked(old, s) for s in batch]
        with torch.no_grad():
            direct, state = lm.encode_state(
                nn.utils.rnn.pad_sequence(rows, batch_first=True), state
            )
        for h,o in zip(layers, direct):
            o = torch.cat(o, -1)[:, 1:-1]
            assert close(h[mask], o[mask])
    old.reset()
    assert close(old([S[0]])[0][0], make()([S[0]])[0][0])

def test_carried_state_keeps_no_graph_and_is_not_saved(tmp_path):
    old = make(carry=True).unfreeze().train()
    old(S)[0][0].sum().backward()
    assert all(not o.requires_grad for o in old.state)
    # no backward through the first batch
    old(S)[0][0].sum().backward()
    assert pickle.loads(pickle.dumps(old)).state is None and copy.deepcopy(old).state is None
    assert not any('state' in k for k in old.state_dict())

# an Elmo owns its flags, not its argument's

def test_the_users_model_keeps_its_flags_and_its_mode():
    lm = bilm().train()
    flags = [p.requires_grad for p in lm.parameters()]
    first = Elmo(lm)
    assert [p.requires_grad for p in lm.parameters()] == flags and any(flags)
    assert lm.training and lm.chars.training
    first.unfreeze().train()
    second = Elmo(first.lm)
    assert first.trainable and not second.trainable and first.lm.training
    first.freeze()
    assert [p.requires_grad for p in lm.parameters()] == flags
    with torch.no_grad(): lm.chars.embed.weight[5] += 1
    assert torch.equal(first.lm.chars.embed.weight, lm.chars.embed.weight), 'weights are shared'

