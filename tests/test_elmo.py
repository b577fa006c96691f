"Scalar mix, the module, saving and loading: every guarantee, and files by strangers"
import copy, json, math, os, pickle, random, re, shutil, subprocess, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from hypothesis import given, settings, strategies as st
from fastai.basics import DataLoaders, load_learner
from fastai.torch_core import set_seed
import huggingface_hub
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from elmo_fastai.elmo import folder as folders, module as module
from elmo_fastai.base.errors import ModelFileError, UsageError
from elmo_fastai.text.corpora import Sentence, ToyCorpus, toy_corpus
from elmo_fastai.text.tokens import (
    ByteCharVocab, CharVocab, SPECIALS, UNK, WordVocab, get_tokenizer, word_tokenize)
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.nn.charcnn import CharCNN
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.encoded import TensorChars
from elmo_fastai.elmo.module import Elmo, ScalarMix, elmo_split
from elmo_fastai.train.learner import _trained_toy, bilm_learner, toy_bilm
from elmo_fastai.tasks.learner import ElmoLearner, MixPenalty, load_encoder, save_encoder

CFG = BiLMConfig(
    'nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=8, hidden_dim=12, dropout=0.3
)
VOCAB = WordVocab([*SPECIALS, 'the', 'bank', 'of', 'river'])
S = ['the bank of the river'.split(), ['bank'], [],
    'a much longer sentence than the others , is it not ?'.split(),
        ['naïve', '<s>', '</s>', '', 'x' * 80]]


def bilm(seed=0, **kw):
    set_seed(seed)
    lm = BiLM(replace(CFG, **kw), len(VOCAB))
    # statistics that do something
    if lm.chars.norm is not None:
        lm.chars.norm.running_mean.normal_()
        lm.chars.norm.running_var.uniform_(0.5, 2.0)
        lm.chars.norm.steps += 5
    return lm.eval()

def make(seed=0, cfg={}, **kw):
    return Elmo(bilm(seed, **cfg), VOCAB, **{**dict(dropout=0.0), **kw}).eval()


@pytest.fixture()
def elmo(): return make()
def close(a, b, eps=1e-5): return a.shape == b.shape and torch.allclose(a, b, atol=eps, rtol=0)
def same(a, b): return all(close(x, y) for x,y in zip(a, b, strict=True))

def test_the_original_normalisation_in_half_precision():
    h = torch.randn(4, 100, 512)
    a, b = (module.normalise(o, None, 'batch') for o in (h, h.half()))
    assert b.dtype == torch.float16 and close(a, b.float(), 5e-3)

# the mix

def test_the_mix_is_equation_1():
    h = [torch.randn(2, 5, 6, dtype=torch.float64) for _ in range(4)]
    mix = ScalarMix(4, shares=(.1, .2, .3, .4), gamma=1.5).double()
    loop = torch.zeros(2, 5, 6, dtype=torch.float64)
    for b in range(2):
        for t in range(5):
            for j in range(4):
                loop[b, t] += (1.5 * (
                    math.exp(mix.w[j].item()) / sum(math.exp(w.item()) for w in mix.w)) * h[j][
                        b, t])
    assert torch.allclose(mix(h), loop, atol=1e-5)
    assert torch.allclose(
        mix.shares, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), atol=1e-6
    )


def test_initial_shares_are_trainable():
    mix = ScalarMix(3, shares=(.6, .3, .1), gamma=2.)
    assert [tuple(p.shape) for p in mix.parameters()] == [(3,), (1,)] and all(
        p.requires_grad for p in mix.parameters())
    mix([torch.randn(2, 3, 4) for _ in range(3)])[0, 0, 0].backward()
    assert mix.w.grad.abs().sum() > 0 and mix.gamma.grad.abs() > 0

@pytest.mark.parametrize('s,g', [(True, False), (False, True), (False, False)])
def test_shares_and_gamma_freeze_by_themselves(s, g):
    mix = ScalarMix(3, train_shares=s, train_gamma=g)
    assert (mix.w.requires_grad, mix.gamma.requires_grad) == (s, g)
    out = mix([torch.randn(1, 2, 4) for _ in range(3)]).sum()
    assert out.requires_grad == (s or g)
    if s or g: out.backward()
    assert (mix.w.grad is not None, mix.gamma.grad is not None) == (s, g)

@pytest.mark.parametrize('kw', [
    dict(shares=(0, 1, 1)), dict(shares=(1, 1)), dict(shares=(1, -1, 1)),
    dict(shares=(1, math.inf, 1)), dict(shares=(math.nan, 1, 1)), dict(norm='layer')], ids=str)
def test_mixes_that_can_not_be(kw):
    with pytest.raises(ValueError, match='shares|norm'):
        ScalarMix(3, **kw)


def test_a_mix_of_other_layers():
    with pytest.raises(ValueError, match='shorter'): ScalarMix(3)([torch.zeros(1, 1, 2)]*2)

def test_token_norm_looks_at_the_token_alone():
    h = [torch.randn(3, 5, 8)*k for k in (1, 10, .1)]
    mix = ScalarMix(3, norm='token')
    whole = mix(h)
    for i in range(3):
        for t in range(5):
            assert close(mix([o[i : i + 1, t : t + 1] for o in h]), whole[i : i + 1, t : t + 1],
                         1e-6)
    assert torch.allclose(
        whole,
        sum(
            (o - o.mean(-1, keepdim=True)) / (o.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            for o in h
        )
        / 3,
        atol=1e-5,
    )


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

def test_penalty_pulls_to_the_average():
    mix = ScalarMix(3, shares=(.7, .2, .1))
    assert (mix.penalty(2.0).item() == pytest.approx(2 * mix.w.square().sum().item())
            and ScalarMix(3).penalty() == 0)
    opt = torch.optim.SGD(mix.parameters(), .1)
    for _ in range(200): opt.zero_grad(); mix.penalty(1.).backward(); opt.step()
    assert torch.allclose(mix.shares, torch.ones(3)/3, atol=1e-3)

def test_penalty_callback_counts_every_mix_in_training_only():
    model = nn.ModuleList([ScalarMix(3, shares=(.7, .2, .1)), ScalarMix(3, shares=(.1, .1, .8))])
    cb = MixPenalty(.5)
    cb.learn = SimpleNamespace(model=model, training=True, loss_grad=torch.tensor(1.))
    cb.after_loss()
    assert cb.learn.loss_grad.item() == pytest.approx(1 + sum(m.penalty(.5).item() for m in model))
    cb.learn.training = False
    before = cb.learn.loss_grad
    cb.after_loss()
    assert cb.learn.loss_grad is before

# the module

def test_vectors_are_the_bilms(elmo):
    layers, mask = elmo.layers(S)
    assert (len(layers) == 3 and layers[0].shape == (5, 12, 16)
            and mask.sum(1).tolist() == [len(s) for s in S])
    _,bos,eos = elmo.char_vocab.specials
    for i,s in enumerate(S):
        chars = (
            np.concatenate([[bos], elmo.char_vocab.encode(s), [eos]]) if s else np.stack([bos, eos])
        )
        with torch.no_grad(): direct = elmo.lm.encode(torch.from_numpy(chars)[None])
        for h,o in zip(layers, direct):
            assert close(h[i, :len(s)], torch.cat(o, -1)[0, 1:-1]) and not h[i, len(s):].any()
    (mixed,), _ = elmo(S)
    assert close(mixed, sum(layers)/3)

@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.text(max_size=6), max_size=7), min_size=1, max_size=5), st.randoms())
def test_company_padding_and_order_change_nothing(sents, rnd):
    elmo = make()
    (whole,), mask = elmo(sents)
    order = rnd.sample(range(len(sents)), len(sents))
    (other,), _ = elmo([sents[i] for i in order])
    for r,i in enumerate(order):
        (alone,), m = elmo([sents[i]])
        assert m.all() and alone.shape[1] == len(sents[i])
        assert (close(whole[i, : len(sents[i])], alone[0])
                and close(other[r, : len(sents[i])], alone[0])
                and not whole[i, len(sents[i]) :].any())


def test_ids_and_lists_agree(elmo):
    chars = elmo.to_chars(S)
    assert chars.dtype == torch.int16 and chars.shape == (5, 12, 50)
    assert same(elmo(chars)[0], elmo(S)[0]) and close(elmo(chars.long())[0][0], elmo(S)[0][0])
    assert (close(elmo(TensorChars(chars))[0][0], elmo(S)[0][0])
            and type(elmo(TensorChars(chars))[0][0]) is torch.Tensor)


def test_fewer_columns_change_nothing(elmo):
    sents = [s for s in S[:4]]
    chars = elmo.to_chars(sents)
    assert close(elmo(chars[..., :20])[0][0], elmo(sents)[0][0])
    assert close(
        elmo(F.pad(chars, (0, 3), value=261) * (chars[..., :1] != 0))[0][0], elmo(sents)[0][0]
    )


def test_padding_in_front_or_within_is_refused(elmo):
    chars = elmo.to_chars(S[:2])
    holes = torch.zeros(2, 8, 50, dtype=chars.dtype)
    holes[0, [0, 2, 3, 6, 7]] = chars[0]
    for markers in ('add', 'given'):
        elmo.markers = markers
        for wrong in (chars.flip(1), holes):
            with pytest.raises(ValueError, match='padding before a token'): elmo(wrong)
    elmo.markers = 'add'

def test_texts_are_split_by_the_tokenizer():
    a, b = make(), make(tokenizer='space')
    text = "The bank didn't open."
    assert same(a([text])[0], a([word_tokenize(text)])[0]) and same(
        b([text])[0], b([text.split()])[0])


@pytest.mark.parametrize('shape', [(0, 0), (0, 5), (3, 0)])
@pytest.mark.parametrize('markers', ['add', 'given'])
def test_nothing_to_embed(shape, markers):
    elmo = make(markers=markers)
    (v,), mask = elmo(torch.zeros(*shape, 50, dtype=torch.int16))
    assert v.shape == (*shape, 16) and mask.shape == shape
    assert (elmo([])[0][0].shape == (0, 0, 16) and elmo([[], []])[0][0].shape == (2, 0, 16)
            and elmo([''])[1].shape == (1, 0))
    carried = make(carry=True, markers=markers)
    carried([]); carried([[]])

def test_markers_given():
    a, b = make(), make(markers='given')
    _,bos,eos = a.char_vocab.specials
    full = torch.from_numpy(np.concatenate([[bos], a.char_vocab.encode(S[0]), [eos]]))[None]
    (v,), mask = b(full)
    assert v.shape[1] == 7 and mask.all() and close(v[:, 1:-1], a([S[0]])[0][0])
    with pytest.raises(ValueError, match="markers='given'"): a(full)
    dls = ElmoDataLoaders.from_corpus(toy_corpus(n_train=30, n_valid=10, n_test=1, n_unseen=1),
                                      kind='sentences', bs=4, device='cpu')
    chars, *_ = dls.valid.one_batch()
    with pytest.raises(ValueError, match='given'): a(chars)
    assert b(chars)[0][0].shape[:2] == chars.shape[:2]

def test_text_that_looks_like_a_mark_is_text(elmo):
    assert not close(elmo([['<s>']])[0][0], elmo([['</s>']])[0][0], 1e-3)
    assert elmo([['<s>', 'a', '</s>', '<pad>']])[1].sum() == 4

@pytest.mark.parametrize('bad,error,says', [
    ('one text', TypeError, 'put it into a list'),
    ([3], TypeError, 'Sentence 0 is int 3'),
    ([['a'], None], TypeError, 'Sentence 1 is NoneType'),
    ([b'bytes'], TypeError, 'Sentence 0 is bytes'),
    ([['a', 3]], TypeError, 'Sentence 0 is list'),
    ([{'a': 1}], TypeError, 'dict'),
    (torch.zeros(2, 50), ValueError, r'\[B, T, W\]'),
    (torch.full((1, 2, 50), 300), ValueError, 'outside 0 to 261')], ids=str)
def test_input_that_can_not_be(elmo, bad, error, says):
    with pytest.raises(error, match=says):
        elmo(bad)


@pytest.mark.parametrize('kw', [
    dict(markers='none'), dict(n_reps=0), dict(norm='x'), dict(shares=(1, 1)),
    dict(tokenizer='nltk'), dict(char_vocab=CharVocab.build([['abc']]))], ids=str)
def test_settings_that_can_not_be(kw):
    with pytest.raises(ValueError):
        make(**kw)


def test_several_mixes_one_pass(elmo, monkeypatch):
    model, calls = make(n_reps=3), []
    with torch.no_grad():
        model.mixes[1].w.copy_(torch.tensor([9.0, 0.0, 0.0]))
        model.mixes[2].gamma.fill_(2.0)
    forward = type(model.lm.lstm).forward
    monkeypatch.setattr(type(model.lm.lstm), 'forward',
                        lambda self, *a, **k: calls.append(1) or forward(self, *a, **k))
    vecs, _ = model(S)
    layers, mask = make().layers(S)
    # one for each of the two calls above
    assert len(vecs) == 3 and len(calls) == 2
    for v,m in zip(vecs, model.mixes): assert close(v, m(layers, mask))
    assert close(vecs[2], 2*vecs[0]) and not close(vecs[1], vecs[0], 1e-3)

@pytest.mark.parametrize('cfg', [
    dict(share_encoder=False), dict(n_layers=1), dict(n_layers=3, residual=False),
    dict(cell_clip=0.5, proj_clip=0.3), dict(norm=False, activation='tanh'), dict(max_chars=12)],
        ids=str)
def test_shapes_of_bilm(cfg):
    elmo = make(cfg=cfg)
    layers, mask = elmo.layers(S)
    assert len(layers) == elmo.lm.config.n_layers + 1 == elmo.n_layers
    _, bos, eos = elmo.char_vocab.specials
    chars = torch.from_numpy(np.concatenate([[bos], elmo.char_vocab.encode(S[3]), [eos]]))[None]
    with torch.no_grad():
        direct = elmo.lm.encode(chars)
    for h, o in zip(layers, direct):
        assert close(h[3:4], torch.cat(o, -1)[:, 1:-1])


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
    n, (layers, _) = kept(lambda: elmo.layers(S))
    assert n == 0 and not any(h.requires_grad or h.grad_fn for h in layers)
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
    assert all(torch.equal(v, before[k]) for k,v in elmo.lm.state_dict().items())

def test_dropout_is_on_the_vectors_in_training():
    elmo = make(dropout=.5)
    assert all(map(torch.equal, elmo(S)[0], elmo(S)[0]))
    (v,), mask = elmo.train()(S)
    assert .3 < (v[mask] == 0).float().mean() < .7

@pytest.mark.parametrize('name', ['space', 'words', 'spacy', 'fastai'])
def test_every_tokenizer_with_a_name_is_kept(name, tmp_path):
    again = Elmo.from_pretrained(make(tokenizer=name).save_pretrained(tmp_path/'m'))
    assert again.tokenizer == name and again.tokenize is get_tokenizer(name)

def test_unfreeze_from_the_top():
    elmo = make()

    def open_():
        return {re.sub(r'\.(weight|bias).*', '', k) for k, p in elmo.lm.named_parameters()
                if p.requires_grad}

    elmo.unfreeze(top=1)
    assert open_() == {'lstm.fwd.1', 'lstm.bwd.1'} and elmo.trainable
    elmo.train()
    assert elmo.lm.lstm.training and elmo.lm.drop.training and not elmo.lm.chars.training
    elmo.freeze()
    assert not open_() and not elmo.trainable and not elmo.lm.lstm.training and elmo.training
    elmo.unfreeze()
    assert {o.split('.')[0] for o in open_()} == {'lstm', 'chars'} and elmo.lm.chars.norm.training
    assert not any(p.requires_grad for p in elmo.lm.head.parameters())

@pytest.mark.parametrize('shared', [True, False])
def test_unfreeze_opens_exactly_so_many_groups(shared):
    elmo = Elmo(BiLM(replace(CFG, n_layers=3, share_encoder=shared), 0))

    def n_open():
        return [all(p.requires_grad for p in g) for g in elmo.groups()], [
            any(p.requires_grad for p in g) for g in elmo.groups()]

    for n in (2, 4, 0, 1, 3):                                           # also fewer than before
        elmo.unfreeze(top=n)
        assert n_open() == ([False]*(4-n) + [True]*n,)*2 and elmo.trainable == (n > 0)
    for bad in (5, 8, -1, -4):
        with pytest.raises(ValueError, match=f'top={bad!r}.*4 groups'): elmo.unfreeze(top=bad)
    assert n_open()[0] == [False, True, True, True]                     # nothing has changed
    elmo.unfreeze()
    assert all(n_open()[0])

def test_a_trainable_bilm_learns():
    elmo = make().unfreeze().train()
    before = {k: v.clone() for k,v in elmo.lm.state_dict().items()}
    opt = torch.optim.Adam([p for p in elmo.parameters() if p.requires_grad], 1e-2)
    elmo(S)[0][0].square().sum().backward(); opt.step()
    changed = {k for k,v in elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    assert {
        'chars.embed.weight',
        'lstm.fwd.0.weight_ih_l0',
        'lstm.bwd.1.weight_hh_l0',
        'chars.norm.running_mean',
    } <= changed
    assert not any(k.startswith('head') or 'bias_hh' in k for k in changed)

class Tagger(nn.Module):
    def __init__(self, elmo, n=3): super().__init__(); self.elmo,self.lin = elmo,nn.Linear(16, n)
    def forward(self, x): return self.lin(self.elmo(x)[0][0])

def loaders(elmo):
    xs = elmo.to_chars([['the', 'bank'], ['a', 'river'], ['of', 'x'], ['no', 'bank']]*4)
    items = [(x, torch.tensor([0, 1])) for x in xs]
    return DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)

class Items(list):
    # what fastai's `export` keeps of the data
    def new_empty(self): return Items()

def loss(pred, y): return F.cross_entropy(pred.flatten(0, 1), y.flatten())

def learner(tmp_path, seed=0, elmo=None, **kw):
    elmo = elmo or make(seed)
    set_seed(seed)
    return ElmoLearner(
        loaders(elmo), Tagger(elmo), loss_func=loss, splitter=elmo_split, path=tmp_path, **kw
    )


def quietly(learn, method='fit', *a, **k):
    with learn.no_bar(), learn.no_logging(): return getattr(learn, method)(*a, **k)

def test_groups_cover_what_can_be_trained():
    elmo = make(train_gamma=False)
    groups = elmo_split(Tagger(elmo))
    assert len(groups) == 4
    ids = [id(p) for g in groups for p in g]
    assert len(set(ids)) == len(ids)
    names = {k for k,p in Tagger(elmo).named_parameters() if id(p) in ids}
    every = {k for k,_ in Tagger(elmo).named_parameters()}
    left = {k for k in every - names if not k.startswith('lin')}
    assert all('head' in k or 'bias_hh' in k or k.endswith('gamma') for k in left), left
    assert len(elmo_split(Tagger(make(cfg=dict(n_layers=3))))) == 5
    assert len(elmo_split(Tagger(make(cfg=dict(share_encoder=False))))[0]) == 2*len(groups[0])
    with pytest.raises(ValueError, match='no Elmo'): elmo_split(nn.Linear(1, 1))

def test_fastai_freezes_and_opens_groups(tmp_path):
    learn = learner(tmp_path)
    before = {k: v.clone() for k,v in learn.model.elmo.lm.state_dict().items()}
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    assert (all(torch.equal(v, before[k]) for k, v in learn.model.elmo.lm.state_dict().items())
            and learn.model.elmo.mixes[0].w.abs().sum() > 0)
    learn.freeze_to(-2)
    quietly(learn, 'fit', 1, slice(1e-4, 1e-2))
    moved = {k for k,v in learn.model.elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and all(re.match(r'lstm\.(fwd|bwd)\.1\.', k) for k in moved)
    learn.unfreeze()
    quietly(learn, 'fit', 1, 1e-3)
    moved = {k for k,v in learn.model.elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    assert 'chars.embed.weight' in moved and 'chars.norm.running_mean' in moved
    learn.freeze()
    assert not learn.model.elmo.trainable
    quietly(learn, 'fit', 1, 1e-3)

def test_the_penalty_in_a_learner(tmp_path):
    free, held = (
        learner(tmp_path / str(lam), elmo=make(shares=(0.8, 0.1, 0.1)), cbs=MixPenalty(lam))
        for lam in (0.0, 10.0)
    )
    for l in (free, held): quietly(l, 'fit', 6, 5e-2)
    assert held.model.elmo.mixes[0].shares.max() < free.model.elmo.mixes[0].shares.max() - .1

# state

def test_stateless_by_default(elmo):
    first = elmo(S)[0]
    elmo([['something', 'else']])
    assert same(elmo(S)[0], first) and elmo.state is None

def test_state_is_carried_by_row_and_reset():
    elmo, old = make(), make(carry=True)
    a, b = (old([S[0], S[3]])[0][0] for _ in range(2))
    assert close(a, elmo([S[0], S[3]])[0][0]) and not close(a, b, 1e-3)
    state = tuple(o.clone() for o in old.state)
    # one row: the other row keeps its state
    old([S[1]])
    assert torch.equal(old.state[0][:, :, 1], state[0][:, :, 1]) and not torch.equal(
        old.state[0][:, :, 0], state[0][:, :, 0])
    old.reset()
    assert close(old([S[0], S[3]])[0][0], a)

def test_carried_state_is_the_reference_of_the_bilm():
    "As `BiLM.encode_state`, batch after batch, rows coming and going"
    old, state, lm = make(carry=True), None, bilm()
    _,bos,eos = old.char_vocab.specials
    for batch in ([S[0], S[1]], [S[3], S[0], S[1]], [S[1]], [S[0], S[4], S[3], S[1]]):
        layers, mask = old.layers(batch)
        rows = [torch.from_numpy(np.concatenate([[bos], old.char_vocab.encode(s), [eos]]))
                for s in batch]
        with torch.no_grad():
            direct, state = lm.encode_state(
                nn.utils.rnn.pad_sequence(rows, batch_first=True), state
            )
        for h,o in zip(layers, direct):
            o = torch.cat(o, -1)[:, 1:-1]
            assert close(h[mask], o[mask])

def test_carried_state_keeps_no_graph_and_is_not_saved(tmp_path):
    old = make(carry=True).unfreeze().train()
    old(S)[0][0].sum().backward()
    assert all(not o.requires_grad for o in old.state)
    # no backward through the first batch
    old(S)[0][0].sum().backward()
    assert pickle.loads(pickle.dumps(old)).state is None and copy.deepcopy(old).state is None
    assert not any('state' in k for k in old.state_dict())

# copies, several processes

def test_pickle_and_deepcopy(elmo):
    a = elmo(S)[0]
    assert same(pickle.loads(pickle.dumps(elmo))(S)[0], a) and same(copy.deepcopy(elmo)(S)[0], a)

def test_half_and_double():
    elmo = make()
    ref = elmo(S)[0][0]
    assert torch.allclose(make().double()(S)[0][0].float(), ref, atol=1e-5)
    with torch.autocast('cpu', torch.bfloat16): low = make()(S)[0][0]
    assert torch.allclose(low.float(), ref, atol=.1)

DDP = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import test_elmo as t
from elmo_fastai.elmo.module import *
def work(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{file}', rank=rank, world_size=2)
    model = t.Tagger(t.make(n_reps=1))
    if rank: [p.data.add_(1.) for p in model.lin.parameters()]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], .1)
    x = model.elmo.to_chars([t.S[0], t.S[3]])[rank:rank+1, :5]
    for _ in range(2):
        opt.zero_grad(); ddp(x).square().mean().backward(); opt.step()
    w = [torch.zeros(3) for _ in range(2)]
    dist.all_gather(w, model.elmo.mixes[0].w.data)
    assert torch.allclose(*w, atol=1e-5) and w[0].abs().sum() > 0
    if rank == 0: print('shares', model.elmo.mixes[0].w.tolist())
    dist.destroy_process_group()
if __name__ == '__main__': mp.start_processes(work, (sys.argv[3],), nprocs=2, start_method='fork')
"""

@pytest.mark.slow
def test_mixes_train_under_ddp(tmp_path):
    """Two processes, each with one sentence: the mix moves, and both hold the same; it is that of
    one process with both sentences"""
    (tmp_path/'ddp.py').write_text(DDP)
    root = Path(module.__file__).resolve().parents[2]
    r = subprocess.run(
        [sys.executable, tmp_path / 'ddp.py', root, Path(__file__).parent, tmp_path / 'rendezvous'],
        capture_output=True, text=True, timeout=120, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert r.returncode == 0, r.stderr[-2000:]
    got = torch.tensor(json.loads(r.stdout.split('shares ')[1]))
    set_seed(0)
    model = Tagger(make())
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], .1)
    x = model.elmo.to_chars([S[0], S[3]])[:, :5]
    for _ in range(2):
        opt.zero_grad()
        (sum(model(x[i : i + 1]).square().mean() for i in range(2)) / 2).backward()
        opt.step()
    assert torch.allclose(got, model.elmo.mixes[0].w.data, atol=1e-5)

# folders

@pytest.fixture()
def trained():
    elmo = make(1, n_reps=2, norm='token', shares=(0.2, 0.5, 0.3), gamma=1.7, dropout=0.25,
                train_gamma=False, tokenizer='space')
    with torch.no_grad(): elmo.mixes[1].w.add_(torch.tensor([.1, .2, -.3]))
    return elmo

def test_round_trip(trained, tmp_path):
    assert trained.save_pretrained(tmp_path/'a'/'m') == tmp_path/'a'/'m'
    assert sorted(f.name for f in (tmp_path / 'a' / 'm').iterdir()) == sorted([
        'README.md', 'SHA256SUMS', 'chars.json', 'config.json', 'elmo.json', 'mix.safetensors',
        'model.safetensors', 'vocab.json'])
    again = Elmo.from_pretrained(tmp_path/'a'/'m')
    assert same(again(S)[0], trained(S)[0]) and same(again.layers(S)[0], trained.layers(S)[0])
    assert (not again.training and not again.trainable and again.vocab.itos == VOCAB.itos
            and again.drop.p == 0.25 and again.tokenizer == 'space')
    assert [(m.norm, m.w.requires_grad, m.gamma.requires_grad) for m in again.mixes] == [
        ('token', True, False)
    ] * 2
    again.save_pretrained(tmp_path/'b')
    for f in (tmp_path / 'b').iterdir():
        assert f.read_bytes() == (tmp_path / 'a' / 'm' / f.name).read_bytes()


def test_settings_in_place_of_the_saved_ones(trained, tmp_path):
    trained.save_pretrained(tmp_path/'m')
    other = Elmo.from_pretrained(tmp_path/'m', dropout=0., carry=True, n_reps=1, norm=None)
    assert (other.drop.p == 0 and other.carry and len(other.mixes) == 1
            and other.mixes[0].norm is None and not other.mixes[0].w.any())
    assert same(other.layers(S)[0], trained.layers(S)[0])

def test_a_folder_of_elmo_pretrain(tmp_path):
    lm = bilm(3)
    save_bilm(tmp_path/'m', lm, VOCAB, extra={'report.json': '{}'})
    elmo = Elmo.from_pretrained(tmp_path/'m')
    assert same(elmo(S)[0], Elmo(lm, dropout=0.).eval()(S)[0])
    assert elmo.vocab.itos == VOCAB.itos

def test_a_saved_elmo_is_a_saved_bilm(trained, tmp_path):
    lm, vocab = load_bilm(trained.save_pretrained(tmp_path/'m'))
    assert vocab.itos == VOCAB.itos and all(
        torch.equal(v, trained.lm.state_dict()[k]) for k, v in lm.state_dict().items())


def test_without_words(tmp_path):
    # a head without names is left out
    for lm in (BiLM(CFG, 0), bilm()):
        elmo = Elmo(lm.eval(), None, dropout=0.).eval()
        again = Elmo.from_pretrained(elmo.save_pretrained(tmp_path/str(lm.n_words)))
        assert same(again(S)[0], elmo(S)[0]) and again.vocab is None and again.lm.n_words == 0

def test_a_tokenizer_of_ones_own(tmp_path):
    elmo = make(tokenizer=list)
    again = Elmo.from_pretrained(elmo.save_pretrained(tmp_path/'m'))
    assert same(again([list('abc')])[0], elmo(['abc'])[0])
    with pytest.raises(ValueError, match='tokenizer='): again(['abc'])
    assert same(Elmo.from_pretrained(tmp_path/'m', tokenizer=list)(['abc'])[0], elmo(['abc'])[0])

def test_other_files_in_the_folder_stay(trained, tmp_path):
    (tmp_path/'m'/'.git').mkdir(parents=True)
    (tmp_path/'m'/'.git'/'HEAD').write_text('x'); (tmp_path/'m'/'thesis.txt').write_text('precious')
    for _ in range(2): trained.save_pretrained(tmp_path/'m')
    assert (tmp_path / 'm' / 'thesis.txt').read_text() == 'precious' and (
        tmp_path / 'm' / '.git' / 'HEAD').exists()
    assert same(Elmo.from_pretrained(tmp_path/'m')(S)[0], trained(S)[0])
    assert not [f for f in (tmp_path/'m').iterdir() if f.name.startswith('.elmo')]
    # without words: the list of the older model goes
    bare = Elmo(BiLM(trained.lm.config, 0))
    bare.save_pretrained(tmp_path/'m')
    assert not (tmp_path/'m'/'vocab.json').exists() and (tmp_path/'m'/'thesis.txt').exists()
    (tmp_path/'file').write_text('x')
    with pytest.raises(NotADirectoryError, match='is a file'):
        trained.save_pretrained(tmp_path / 'file')


@pytest.mark.parametrize('where', ['folder', 'link', 'here'])
def test_a_model_replaces_another(trained, tmp_path, monkeypatch, where):
    folder = trained.save_pretrained(tmp_path/'m')
    if where == 'link': folder = tmp_path/'link'; folder.symlink_to('m')
    if where == 'here': monkeypatch.chdir(folder); folder = '.'
    bare = Elmo(BiLM(trained.lm.config, 0))
    bare.save_pretrained(folder)
    assert same(Elmo.from_pretrained(folder)(S)[0], bare.eval()(S)[0])
    assert not (tmp_path / 'm' / 'vocab.json').exists() and {
        f.name for f in tmp_path.iterdir()
    } <= {'m', 'link'}


def test_a_failed_save_leaves_the_old_model(trained, tmp_path, monkeypatch):
    folder = trained.save_pretrained(tmp_path/'m')
    before = {f.name: f.read_bytes() for f in folder.iterdir()}
    def full(*args): raise OSError('No space left')
    monkeypatch.setattr(folders, 'save_file', full)
    with pytest.raises(OSError, match='No space'):
        Elmo(BiLM(trained.lm.config, 0)).save_pretrained(folder)
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == before and [
        f.name for f in tmp_path.iterdir()
    ] == ['m']


def test_the_model_card(trained, tmp_path):
    card = ModelCard.load(trained.save_pretrained(tmp_path/'m')/'README.md')
    assert card.data.library_name == 'elmo_fastai' and 'elmo' in card.data.tags
    text = card.text
    for word in ('nano', '16', '48 bytes', 'from_pretrained', '0.200, 0.500, 0.300'):
        assert word in text, word


def test_learned_characters(tmp_path):
    chars = CharVocab.build([list('abcdefgh')], max_chars=20)
    lm = bilm(max_chars=20)
    lm.chars = CharCNN(8, 4, ((1, 8),), n_chars=chars.n_chars).eval()
    elmo = Elmo(lm, VOCAB, char_vocab=chars, dropout=0.).eval()
    assert not close(elmo([['aaa']])[0][0], elmo([['hgf']])[0][0], 1e-4)

# the files of the biLM: `test_bilm`
BROKEN = {
    'elmo.json': [b'', b'{', b'[]', b'{"format": "elmo_fastai.elmo.module", "version": 2}',
                  b'{"format": "elmo_fastai.elmo.module", "version": true}', b'[' * 100_000,
                  b'\xff'],
    'mix.safetensors': [b'', b'x' * 50, b'\x80\x04\x95'],
    'chars.json': [b'', b'{}', b'{"format": "elmo_fastai.ByteCharVocab", "version": 1}',
                   b'{"format": "elmo_fastai.ByteCharVocab", "version": 1, "max_chars": "x"}']}


@pytest.mark.parametrize('name', BROKEN)
def test_broken_files_are_named(trained, tmp_path, name):
    folder = trained.save_pretrained(tmp_path/'m')
    for data in BROKEN[name]:
        (folder/name).write_bytes(data)
        with pytest.raises(ModelFileError, match=re.escape(name)): Elmo.from_pretrained(folder)
    (folder/name).unlink()
    if name not in ('elmo.json', 'chars.json'):
        with pytest.raises(ModelFileError, match=re.escape(name)): Elmo.from_pretrained(folder)

@pytest.mark.parametrize('change', [
    dict(dropout=2), dict(dropout='0.5'), dict(markers='x'), dict(tokenizer='os.system'),
    dict(mixes=[]), dict(mixes=[{}] * 100),
    dict(mixes=[dict(norm='evil', train_shares=True, train_gamma=True)]),
    dict(mixes=[dict(evil=1)]), dict(mixes=3), dict(dropout=math.nan), dict(carry='false'),
    dict(carry=2), dict(mixes=[dict(norm=None, train_shares=1.5, train_gamma=True)])],
        ids=lambda c: str(c)[:40])
def test_settings_by_strangers(trained, tmp_path, change):
    folder = trained.save_pretrained(tmp_path/'m')
    (folder/'SHA256SUMS').unlink()
    d = json.loads((folder/'elmo.json').read_text())
    (folder/'elmo.json').write_text(json.dumps({**d, **change}))
    with pytest.raises(ModelFileError, match=f"{re.escape(str(folder))}.*(settings|Elmo)"):
        Elmo.from_pretrained(folder)


def test_a_mismatch_names_the_tensor(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    good = load_file(folder/'mix.safetensors')
    for change, says in (
        ({'1.w': torch.zeros(4)}, r'1\.w should be \(3,\), found \(4,\)'),
        ({'1.w': None}, r'1\.w is missing'),
        ({'2.w': torch.zeros(3)}, r'unknown tensor 2\.w'),
        ({'0.gamma': torch.tensor([math.nan])}, r'0\.gamma.*finite'),
    ):
        save_file({k: v for k, v in {**good, **change}.items() if v is not None},
                  folder / 'mix.safetensors')
        with pytest.raises(ModelFileError, match=says): Elmo.from_pretrained(folder)

def test_no_code_runs(trained, tmp_path):
    "A pickle under any of the names does nothing"
    class Evil:
        def __reduce__(self): return (Path.touch, (tmp_path/'owned',))
    for name in BROKEN:
        folder = trained.save_pretrained(tmp_path/name.replace('.', '_'))
        (folder/name).write_bytes(pickle.dumps(Evil()))
        with pytest.raises(ModelFileError): Elmo.from_pretrained(folder)
    assert not (tmp_path/'owned').exists()

def test_a_huge_row_of_characters(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    (folder / 'chars.json').write_text(
        json.dumps(dict(format='elmo_fastai.ByteCharVocab', version=1, max_chars=10**9)))
    with pytest.raises(ModelFileError, match='max_chars'): Elmo.from_pretrained(folder)

# the hub

def test_local_folders_need_no_network(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub, 'snapshot_download', lambda *a, **k: pytest.fail('it asked the hub')
    )
    assert Elmo.from_pretrained(str(trained.save_pretrained(tmp_path/'m')))
    with pytest.raises(ModelFileError, match='There is no folder'):
        Elmo.from_pretrained(tmp_path / 'not' / 'here')


def test_a_name_on_the_hub(trained, tmp_path, monkeypatch):
    folder, asked = trained.save_pretrained(tmp_path/'m'), {}
    monkeypatch.setattr(huggingface_hub, 'snapshot_download',
                        lambda name, **k: asked.update(name=name, **k) or str(folder))
    again = Elmo.from_pretrained('someone/elmo-toy', revision='v1', token='t')
    assert (same(again(S)[0], trained(S)[0]) and asked['name'] == 'someone/elmo-toy'
            and asked['revision'] == 'v1' and asked['token'] == 't')
    # files of the models in the box, and of a saved classifier or tagger
    others = {'output.safetensors', 'task.json', 'task.safetensors', 'tokens.safetensors',
              'words.json'}
    fetched = {*asked['allow_patterns']} - others
    assert {f.name for f in folder.iterdir()} == fetched, 'what is written is what is fetched'
    assert not [p for p in asked['allow_patterns'] if p.endswith(('.py', '.pkl', '.bin', '.pth'))]

def test_from_the_hubs_cache_without_network(trained, tmp_path):
    "huggingface_hub's own cache layout: refs, snapshots, links to blobs"
    repo, commit = tmp_path/'cache'/'models--someone--elmo-toy', 'a'*40
    (repo/'refs').mkdir(parents=True); (repo/'refs'/'main').write_text(commit)
    snap = repo/'snapshots'/commit
    snap.mkdir(parents=True); (repo/'blobs').mkdir()
    for f in trained.save_pretrained(tmp_path/'m').iterdir():
        shutil.copy(f, repo/'blobs'/f.name)
        (snap/f.name).symlink_to(Path('../../blobs')/f.name)
    again = Elmo.from_pretrained(
        'someone/elmo-toy', cache_dir=tmp_path / 'cache', local_files_only=True
    )
    assert same(again(S)[0], trained(S)[0])
    with pytest.raises(ModelFileError, match='someone/other'):
        Elmo.from_pretrained('someone/other', cache_dir=tmp_path / 'cache', local_files_only=True)


def test_push_to_hub(trained, monkeypatch):
    sent = {}
    class Api:
        def __init__(self, **kw): pass
        def create_repo(self, repo_id, **kw): return SimpleNamespace(repo_id=repo_id)
        def upload_folder(self, *, repo_id, folder_path, **kw):
            sent.update(repo_id=repo_id, vectors=Elmo.from_pretrained(folder_path)(S)[0],
                        files={f.name for f in Path(folder_path).iterdir()})
            return 'https://commit'
    monkeypatch.setattr(huggingface_hub, 'HfApi', Api)
    assert trained.push_to_hub('someone/elmo-toy') == 'https://commit'
    assert (sent['repo_id'] == 'someone/elmo-toy' and same(sent['vectors'], trained(S)[0])
            and {'README.md', 'config.json', 'model.safetensors'} <= sent['files'])


def test_save_and_push(trained, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Elmo, 'push_to_hub', lambda self, name, **kw: asked.append((name, kw)) or 'https://commit'
    )
    assert (trained.save_pretrained(tmp_path / 'elmo-toy', push_to_hub=True, private=True)
            == 'https://commit')
    assert (asked == [('elmo-toy', dict(private=True))]
            and (tmp_path / 'elmo-toy' / 'config.json').exists())


# learners

def test_encoders_go_from_learner_to_learner(tmp_path):
    a, b = learner(tmp_path, 1), learner(tmp_path, 2)
    folder = a.save_encoder('enc')
    assert folder == tmp_path/'models'/'enc' and b.load_encoder('enc') is b
    assert same(a.model.elmo.layers(S)[0], b.model.elmo.layers(S)[0])
    assert not any(p.requires_grad for p in b.model.elmo.lm.parameters())

def test_encoders_from_pretraining(tmp_path):
    corpus = toy_corpus(n_train=60, n_valid=20, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')
    lm = bilm_learner(dls, replace(CFG, dropout=0.), bf16=False, path=tmp_path)
    quietly(lm, 'fit', 1, 1e-2)
    save_encoder(lm, 'fine')
    tagger = learner(tmp_path)
    # another vocabulary, another dropout: it fits
    load_encoder(tagger, 'fine')
    ours, theirs = tagger.model.elmo.lm.state_dict(), lm.model.state_dict()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours if not k.startswith('head'))
    assert load_bilm(tmp_path/'models'/'fine')[1].itos == dls.vocab.itos
    other = bilm_learner(dls, replace(CFG, dropout=0.), bf16=False, path=tmp_path)
    load_encoder(other, 'fine')
    assert torch.equal(other.model.chars.embed.weight, lm.model.chars.embed.weight)
    load_encoder(tagger, tmp_path/'models'/'fine')

@pytest.mark.parametrize('cfg,says', [
    (dict(hidden_dim=16), 'hidden_dim=16'),
    (dict(residual=False), 'residual=False'),
    (dict(n_layers=1), 'n_layers=1'),
    (dict(max_chars=40), 'max_chars')], ids=str)
def test_an_encoder_that_does_not_fit(tmp_path, cfg, says):
    save_bilm(tmp_path / 'models' / 'other', BiLM(replace(CFG, **cfg), len(VOCAB)), VOCAB)
    learn = learner(tmp_path)
    before = {k: v.clone() for k, v in learn.model.state_dict().items()}
    with pytest.raises(ModelFileError, match=says):
        learn.load_encoder('other')
    assert all(torch.equal(v, before[k]) for k, v in learn.model.state_dict().items())
    with pytest.raises(ModelFileError):
        learn.load_encoder('nothing')
    learn.model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match='no biLM'):
        learn.load_encoder('other')


def test_export(tmp_path):
    learn = learner(tmp_path)
    items = Items(learn.dls.train_ds)
    learn.dls = DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('learn.pkl')
    again = load_learner(tmp_path/'learn.pkl')
    assert same(again.model.elmo(S)[0], learn.model.elmo.eval()(S)[0]) and isinstance(
        again, ElmoLearner)
    assert close(again.model.eval()(S), learn.model.eval()(S))

# AI2's files

def test_ai2_round_trip(tmp_path):
    elmo = make(cfg=dict(cell_clip=3., proj_clip=3.))
    again = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'), dropout=0.)
    assert close(again(S)[0][0], elmo(S)[0][0], 1e-5)
    assert len(again.vocab) == len(VOCAB) and set(again.vocab.itos) == set(VOCAB.itos)
    by_path = Elmo.from_ai2(tmp_path / 'ai2' / 'options.json', tmp_path / 'ai2' / 'weights.hdf5',
                            dropout=0.0, carry=True, n_reps=2)
    assert close(by_path(S)[0][1], elmo(S)[0][0]) and by_path.carry
    kept = by_path.save_pretrained(tmp_path/'ours')
    assert same(Elmo.from_pretrained(kept)(S)[0], Elmo.from_pretrained(kept)(S)[0])
    with pytest.raises(ModelFileError): Elmo.from_ai2(tmp_path/'nothing')

data = (Path(os.environ.get('ELMO_FASTAI_DATA')
             or Path(module.__file__).resolve().parents[3] / 'shared' / 'data') / 'ai2_fixture')


@pytest.mark.skipif(not data.exists(), reason='no AI2 fixture: set ELMO_FASTAI_DATA')
def test_ai2s_reference_vectors_through_the_module():
    import h5py
    files = {f.name: f for f in data.rglob('*') if f.is_file()}
    options, weights = (
        next(f for n, f in sorted(files.items()) if re.search(p, n))
        for p in (r'options\.json$', r'weights\.hdf5$')
    )
    elmo, sents = (Elmo.from_ai2(options, weights, tokenizer='space', carry=True),
                   json.loads(files['sentences.json'].read_text()))
    good = 0
    for i in range(10):
        layers, mask = elmo.layers([s[i] for s in sents])
        for k in range(3):
            with h5py.File(files[f'lm_embeddings_{k}.hdf5']) as f:
                h = np.concatenate(f[str(i)][:], -1)
            good += np.allclose(
                layers[-1][k, : len(h)].detach().numpy(), h, atol=1e-5, rtol=1e-5
            ) and mask[k].sum() == len(h)
    assert good == 30

def test_toy_bilm(held):
    lm, vocab, corpus = toy_bilm(n_train=300)
    assert not lm.training and lm.n_words == len(vocab) and isinstance(corpus, ToyCorpus)
    # of the whole process: nothing here changes it
    before = torch.get_rng_state()
    def same(other): return all(map(close, lm.parameters(), other.parameters()))
    assert same(_trained_toy.__wrapped__(300)[0])     # another training
    # the first one again, and as if it were new
    other, _, copied = toy_bilm(n_train=300)
    assert same(other) and torch.equal(torch.get_rng_state(), before)
    with torch.no_grad(): next(other.parameters()).add_(1)
    copied.train.clear()
    mine, _, its = toy_bilm(n_train=300)
    assert same(mine) and not same(other) and len(its.train) == 300

# an alphabet of one's own

OTHER_SENTS = [['Ωmega', 'the', 'bank'], ['of', 'the', 'river', '.']]*4

@pytest.fixture(scope='module', params=['letters', 'two', 'all', '256'])
def spelt(request):
    """(a learner that was trained for two steps, its alphabet); of these one has as many ids as
    bytes have"""
    corpus = toy_corpus(n_train=64, n_valid=16, n_test=0, n_unseen=0)
    sents = [o.split() for o in corpus.train]
    kw = dict(letters={}, two=dict(n=2, max_symbols=400), all=dict(min_freq=3, max_chars=12))
    chars = (CharVocab([UNK, *map(chr, range(33, 288))]) if request.param == '256'
             else CharVocab.build(sents, **kw[request.param]))
    dls = ElmoDataLoaders.from_corpus(
        corpus, kind='sentences', bs=32, char_vocab=chars, device='cpu', seed=0
    )
    set_seed(0)
    learn = bilm_learner(
        dls, BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=16),
        bf16=False)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-2)
    return learn, chars

def test_an_alphabet_from_the_loaders_to_the_model(spelt):
    learn, chars = spelt
    c = learn.model.config
    assert ((c.n_chars, c.max_chars) == (chars.n_chars, chars.max_chars)
            == (learn.model.chars.embed.num_embeddings, learn.model.char_vocab.max_chars))
    assert learn.model.char_vocab == chars and learn.dls.char_vocab == chars and finite(learn.model)
    assert learn.predict('the bank', 2).startswith('the bank')

def finite(model): return all(o.isfinite().all() for o in model.state_dict().values())

def test_an_alphabet_in_files(spelt, tmp_path):
    """All ways into a folder and out of it give the same vectors, also of letters that the alphabet
    has not"""
    learn, chars = spelt
    lm, vocab = learn.model.eval(), learn.dls.vocab
    expected = Elmo(lm, vocab, char_vocab=chars).eval()(OTHER_SENTS)[0]
    assert same(Elmo(lm, vocab).eval()(OTHER_SENTS)[0], expected)       # the model knows
    save_bilm(tmp_path/'bilm', lm, vocab)
    Elmo(lm, vocab).save_pretrained(tmp_path/'elmo')
    Elmo(lm).save_pretrained(tmp_path/'headless')
    save_encoder(learn, tmp_path/'encoder')
    for name in ('bilm', 'elmo', 'headless', 'encoder'):
        again = Elmo.from_pretrained(tmp_path/name)
        assert again.char_vocab == again.lm.char_vocab == chars and same(
            again(OTHER_SENTS)[0], expected)
        assert load_bilm(tmp_path/name)[0].config == lm.config
    again, words = load_bilm(tmp_path/'bilm')
    assert words.itos == vocab.itos and evaluate(again, learn.dls.valid) == pytest.approx(
        evaluate(lm, learn.dls.valid))
    assert f'{chars.n_chars - 6} symbols' in (tmp_path/'elmo'/'README.md').read_text()

def test_an_alphabet_in_use(spelt, tmp_path):
    "Embedding, a classifier, a tagger; and by AI2's format it is refused"
    from elmo_fastai.data.labels import ClassifyDataLoaders
    from elmo_fastai.tasks.classify import elmo_classifier_learner, random_elmo
    from elmo_fastai.elmo.file import embed_file
    from elmo_fastai.elmo.vectorizer import ElmoVectorizer
    from elmo_fastai.data.tagged import TagDataLoaders
    from elmo_fastai.tasks.tag import elmo_tagger_learner
    learn, chars = spelt
    elmo = Elmo(learn.model, learn.dls.vocab).eval()
    vecs = elmo.embed(OTHER_SENTS, 'all')
    layers, mask = elmo.layers(OTHER_SENTS)
    for i, v in enumerate(vecs):
        assert np.allclose(v, torch.stack(layers, 1)[i][:, mask[i]].detach(), atol=1e-5)
    assert ElmoVectorizer(elmo).fit_transform(['the bank', 'Ω'])[0].shape == (32,)
    (tmp_path/'t.txt').write_text('the bank of the river\nΩmega\n')
    assert embed_file(tmp_path/'t.txt', tmp_path/'t.hdf5', elmo, say=str)['lines'] == 2
    texts = [(' '.join(s), i%2) for i,s in enumerate(OTHER_SENTS)]*8
    for own in (elmo, random_elmo(elmo, 0, OTHER_SENTS)):
        dls = ClassifyDataLoaders.from_data(
            texts, tokenizer='space', char_vocab=chars, bs=8, device='cpu'
        )
        c = elmo_classifier_learner(dls, own)
        with c.no_bar(), c.no_logging(): c.fit(1, 1e-3); c.unfreeze(); c.fit(1, 1e-3)
        assert c.predict('the Ω')[0] in ('0', '1')
    sents = [Sentence(s, [w[0] for w in s]) for s in OTHER_SENTS]*4
    dls = TagDataLoaders.from_sents(sents, char_vocab=chars, min_freq=1, bs=8, device='cpu')
    for own in (elmo, learn.model):
        t = elmo_tagger_learner(dls, own, 'both', chars=8)
        with t.no_bar(), t.no_logging(): t.fit(1, 1e-3)
        assert len(t.tag(['the bank'])[0]) == 2
    with pytest.raises(ValueError, match='AI2.*bytes'): elmo.to_ai2(tmp_path/'ai2')
    bytes_ = ClassifyDataLoaders.from_data(texts, tokenizer='space', bs=8, device='cpu')
    with pytest.raises(ValueError, match='char_vocab=elmo.char_vocab'):
        elmo_classifier_learner(bytes_, elmo)


def test_alphabets_that_do_not_fit(spelt, tmp_path):
    learn, chars = spelt
    lm, vocab = learn.model.eval(), learn.dls.vocab
    # as many symbols in another order
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)
    for wrong in (ByteCharVocab(chars.max_chars), CharVocab([UNK, *'abc'], chars.max_chars), other):
        with pytest.raises(ValueError, match='char_vocab'): Elmo(lm, vocab, char_vocab=wrong)
        with pytest.raises(ValueError, match='char_vocab'):
            save_bilm(tmp_path / 'm', lm, vocab, char_vocab=wrong)
    assert not (tmp_path/'m').exists()
    folder = save_bilm(tmp_path/'m', lm, vocab)
    with pytest.raises(ValueError, match='char_vocab'):
        Elmo.from_pretrained(folder, char_vocab=other)
    CharVocab([UNK, *'abc'], chars.max_chars).save(folder/'chars.json')
    for f in (load_bilm, Elmo.from_pretrained):
        with pytest.raises(ModelFileError, match='chars.json.*10 ids.*config.json'): f(folder)
    (folder/'chars.json').write_text('{')
    with pytest.raises(ModelFileError, match='chars.json'): load_bilm(folder)
    (folder/'chars.json').unlink()
    if chars.n_chars != 262:                                            # else it might be bytes
        with pytest.raises(ModelFileError, match='chars.json.*missing'): load_bilm(folder)

def test_an_encoder_with_another_alphabet_is_refused(spelt, tmp_path):
    learn, chars = spelt
    folder = save_encoder(learn, tmp_path/'m')
    new = bilm_learner(learn.dls, learn.model.config, bf16=False)
    before = new.model.chars.embed.weight.clone()
    load_encoder(new, folder)
    assert torch.equal(
        new.model.chars.embed.weight, learn.model.chars.embed.weight
    ) and not torch.equal(before, new.model.chars.embed.weight)
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)
    dls = ElmoDataLoaders.from_corpus(
        learn.dls.corpus, kind='sentences', bs=32, char_vocab=other, device='cpu'
    )
    with pytest.raises(ModelFileError, match='other characters'):
        load_encoder(bilm_learner(dls, learn.model.config, bf16=False), folder)


def test_models_saved_by_earlier_versions(tmp_path):
    "Their configuration says nothing of characters, and no chars.json is beside them"
    elmo = make()
    save_bilm(tmp_path/'m', elmo.lm, VOCAB)
    (tmp_path/'m'/'SHA256SUMS').unlink()
    head = json.loads((tmp_path/'m'/'config.json').read_text())
    assert head['config'].pop('n_chars') == 262 and not (tmp_path/'m'/'chars.json').exists()
    (tmp_path/'m'/'config.json').write_text(json.dumps(head))
    again = Elmo.from_pretrained(tmp_path/'m')
    assert again.lm.config.n_chars == 262 and again.char_vocab == ByteCharVocab(
        elmo.lm.config.max_chars)
    assert same(again(S)[0], elmo(S)[0])

def test_files_of_another_library_are_not_replaced(tmp_path):
    "Nor its model card; a model of ours in the same place is"
    elmo = Elmo.from_pretrained('mini-en')
    theirs = {'config.json': '{"model_type": "bert"}', 'model.safetensors': 'x',
              'README.md': 'mine', 'tokenizer.json': '{}'}
    for k,v in theirs.items(): (tmp_path/k).write_text(v)
    with pytest.raises(ModelFileError): elmo.save_pretrained(tmp_path)
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == theirs
    for k in ('config.json', 'model.safetensors'): (tmp_path/k).unlink()
    for _ in range(2): elmo.save_pretrained(tmp_path)
    assert ((tmp_path / 'README.md').read_text() == 'mine'
            and (tmp_path / 'tokenizer.json').exists()
            and Elmo.from_pretrained(tmp_path).dim == elmo.dim)


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

def test_a_model_is_trained_on_after_it_became_an_elmo():
    lm = bilm().train()
    elmo = Elmo(lm)
    layers = lm.encode(elmo.to_chars(S[:1]))
    sum(h.square().mean() for both in layers for h in both).backward()
    assert lm.chars.embed.weight.grad.abs().sum() > 0 and elmo.lm.chars.embed.weight.grad is None

@pytest.mark.parametrize('change', [
    dict(train_shares=False), dict(train_gamma=True), dict(norm=None), dict(gamma=3.)], ids=str)
def test_other_settings_keep_the_trained_mix(trained, tmp_path, change):
    folder = trained.save_pretrained(tmp_path/'m')
    again = Elmo.from_pretrained(folder, **change)
    for mix, before in zip(again.mixes, trained.mixes, strict=True):
        assert torch.equal(mix.w, before.w)
        assert mix.gamma.item() == pytest.approx(change.get('gamma', before.gamma.item()))
        assert mix.norm == change.get('norm', before.norm)
        assert mix.w.requires_grad == change.get('train_shares', True)
        assert mix.gamma.requires_grad == change.get('train_gamma', False)

def test_texts_have_no_marks_to_give():
    elmo = make(markers='given')
    for door in (elmo, elmo.layers, elmo.embed):
        for sents in (['a text'], [['<S>', 'a', '</S>']]):
            with pytest.raises(ValueError, match="markers='given'.*markers='add'"): door(sents)

def test_a_compiled_elmo_is_pickled(elmo):
    elmo = copy.deepcopy(elmo)
    before = elmo(S)[0][0]
    elmo.compile(backend='eager')
    assert close(pickle.loads(pickle.dumps(elmo))(S)[0][0], before)

@pytest.mark.parametrize('name', ['config.json', 'model.safetensors', 'vocab.json', 'elmo.json',
                                  'mix.safetensors', 'chars.json', 'SHA256SUMS'])
def test_a_flipped_bit_anywhere_is_refused(trained, tmp_path, name):
    file = trained.save_pretrained(tmp_path/'m')/name
    raw = file.read_bytes()
    for i in random.Random(0).sample(range(8*len(raw)), 20):
        damaged = bytearray(raw)
        damaged[i//8] ^= 1 << i % 8
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError): Elmo.from_pretrained(tmp_path/'m')

@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_weights_that_are_not_finite(trained, tmp_path, value):
    folder = trained.save_pretrained(tmp_path/'m')
    weights = load_file(folder/'model.safetensors')
    name = 'chars.embed.weight'
    weights[name].view(-1)[-1] = value
    save_file(weights, folder/'model.safetensors')
    (folder/'SHA256SUMS').unlink()
    with pytest.raises(ModelFileError, match='finite'): Elmo.from_pretrained(folder)
    trained.lm.load_state_dict({name: weights[name]}, strict=False)
    with pytest.raises(ValueError, match='finite'): trained.save_pretrained(tmp_path/'other')
    assert not (tmp_path/'other').exists()

def test_a_saved_model_may_be_overwritten_while_another_is_in_use(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    elmo = Elmo.from_pretrained(folder)
    before = elmo(S)[0]
    size = (folder/'model.safetensors').stat().st_size
    (folder/'model.safetensors').write_bytes(bytes(size))
    os.truncate(folder/'model.safetensors', 0)
    assert same(elmo(S)[0], before)

def test_an_edited_card_and_notes_stay(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    (folder/'README.md').write_text('An elmo_fastai model, as I see it')
    (folder/'notes.txt').write_text('mine')
    trained.save_pretrained(folder)
    save_bilm(folder, trained.lm, VOCAB)
    assert (folder/'README.md').read_text() == 'An elmo_fastai model, as I see it'
    assert (folder/'notes.txt').read_text() == 'mine' and not (folder/'elmo.json').exists()

def test_a_model_in_the_home_folder(trained, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    trained.save_pretrained(tmp_path/'m')
    assert close(Elmo.from_pretrained(str(Path('~')/'m')).eval()(S)[0][0], trained.eval()(S)[0][0])

def test_a_zip_is_to_be_unpacked(tmp_path):
    file = tmp_path/'144.zip'
    file.write_bytes(b'PK\x03\x04')
    for load in (Elmo.from_pretrained, Elmo.from_ai2):
        with pytest.raises(ModelFileError, match='unpack'): load(file)


@pytest.mark.parametrize('name', ['./no_model', '../no_model', 'a/b/c', '/no/model', 'no_model/'])
def test_a_path_that_is_not_there_is_no_name_of_the_hub(name):
    with pytest.raises(UsageError, match='no folder'): Elmo.from_pretrained(name)


def test_nearest_names_an_argument_it_lacks(elmo):
    with pytest.raises(TypeError, match="no argument 'n'"): elmo.nearest('a b', 'a', ['a c'], n=3)
