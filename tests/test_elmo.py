"Scalar mix and module: what both guarantee"
import copy, json, math, os, pickle, re, subprocess, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pytest, torch, torch.nn.functional as F
from torch import nn
from fastai.basics import DataLoaders, Learner
from fastai.torch_core import set_seed

from elmo_fastai import elmo as module
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.text.tokenizers import get_tokenizer, word_tokenize
from elmo_fastai.tokens import CharVocab, TensorChars
from elmo_fastai.bilm import BiLM
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.elmo import Elmo, MixPenalty, ScalarMix, elmo_split
from made import CFG, S, bilm, close, make, quietly, same

@pytest.fixture()
def elmo(): return make()

def marked(elmo, tokens):
    "Char ids of a sentence with its marks, [T+2, W]"
    _, bos, eos = elmo.char_vocab.specials
    rows = [[bos], elmo.char_vocab.encode(tokens), [eos]] if tokens else [[bos], [eos]]
    return torch.from_numpy(np.concatenate(rows))

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
                loop[b, t] += (1.5*(
                    math.exp(mix.w[j].item())/sum(math.exp(w.item()) for w in mix.w))*h[j][
                        b, t])
    assert torch.allclose(mix(h), loop, atol=1e-5)
    assert torch.allclose(
        mix.shares, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), atol=1e-6
    )

@pytest.mark.parametrize('s,g', [(True, True), (True, False), (False, True), (False, False)])
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
            assert close(mix([o[i:i + 1, t:t + 1] for o in h]), whole[i:i + 1, t:t + 1],
                         1e-6)
    assert torch.allclose(
        whole,
        sum(
            (o - o.mean(-1, keepdim=True))/(o.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
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
    assert (mix.penalty(2.0).item() == pytest.approx(2*mix.w.square().sum().item())
            and ScalarMix(3).penalty() == 0)
    opt = torch.optim.SGD(mix.parameters(), .1)
    for _ in range(200): opt.zero_grad(); mix.penalty(1.).backward(); opt.step()
    assert torch.allclose(mix.shares, torch.ones(3)/3, atol=1e-3)

def test_penalty_callback_counts_every_mix_in_training_only():
    model = nn.ModuleList([ScalarMix(3, shares=(.7, .2, .1)), ScalarMix(3, shares=(.1, .1, .8))])
    cb = MixPenalty(.5)
    cb.learn = SimpleNamespace(model=model, training=True, loss_grad=torch.tensor(1.))
    cb.after_loss()
    expected = 1 + sum(mix.penalty(.5).item() for mix in model)
    assert cb.learn.loss_grad.item() == pytest.approx(expected)
    cb.learn.training = False
    cb.after_loss()
    assert cb.learn.loss_grad.item() == pytest.approx(expected)

# the module

@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(n_layers=1), dict(n_layers=3, residual=False),
    dict(cell_clip=0.5, proj_clip=0.3), dict(norm=False, activation='tanh'), dict(max_chars=12)],
        ids=str)
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

def test_ids_and_lists_agree(elmo):
    chars = elmo.to_chars(S)
    assert chars.dtype == torch.int16 and chars.shape == (5, 12, 50)
    assert same(elmo(chars)[0], elmo(S)[0]) and close(elmo(chars.long())[0][0], elmo(S)[0][0])
    assert (close(elmo(TensorChars(chars))[0][0], elmo(S)[0][0])
            and type(elmo(TensorChars(chars))[0][0]) is torch.Tensor)

def test_fewer_columns_change_nothing(elmo):
    sents = [s for s in S[:4]]
    chars = elmo.to_chars(sents)
    assert close(elmo(chars[...,:20])[0][0], elmo(sents)[0][0])
    assert close(
        elmo(F.pad(chars, (0, 3), value=261)*(chars[...,:1] != 0))[0][0], elmo(sents)[0][0]
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
    full = marked(a, S[0])[None]
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

@pytest.mark.parametrize('name', ['space', 'words', 'chars'])
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
    assert {'chars.embed.weight', 'lstm.fwd.0.weight_ih_l0', 'lstm.bwd.1.weight_hh_l0',
            'chars.norm.running_mean'} <= changed
    assert not any(k.startswith('head') or 'bias_hh' in k for k in changed)

class Tagger(nn.Module):
    def __init__(self, elmo, n=3): super().__init__(); self.elmo,self.lin = elmo,nn.Linear(16, n)
    def forward(self, x): return self.lin(self.elmo(x)[0][0])

# groups

def test_groups_cover_what_can_be_trained():
    elmo = make(train_gamma=False)
    groups = elmo_split(Tagger(elmo))
    ids = [id(p) for group in groups for p in group]
    assert len(groups) == 4 and len(set(ids)) == len(ids)
    left = [k for k,p in Tagger(elmo).named_parameters() if id(p) not in ids and 'lin' not in k]
    assert all('head' in k or 'bias_hh' in k or k.endswith('gamma') for k in left), left
    assert len(elmo_split(Tagger(make(cfg=dict(n_layers=3))))) == 5
    assert len(elmo_split(Tagger(make(cfg=dict(share_encoder=False))))[0]) == 2*len(groups[0])
    with pytest.raises(ValueError, match='no Elmo'): elmo_split(nn.Linear(1, 1))

def test_a_plain_learner_freezes_and_opens_groups():
    elmo = make()
    items = [(x, torch.tensor([0, 1])) for x in elmo.to_chars([['the', 'bank'], ['a', 'river']]*8)]
    learn = Learner(DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0),
                    Tagger(elmo), splitter=elmo_split,
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

def test_state_is_carried_by_row_and_reset():
    elmo, old = make(), make(carry=True)
    a, b = (old([S[0], S[3]])[0][0] for _ in range(2))
    assert close(a, elmo([S[0], S[3]])[0][0]) and not close(a, b, 1e-3)
    state = tuple(o.clone() for o in old.state)
    # one row: the other row keeps its state
    old([S[1]])
    assert torch.equal(old.state[0][:,:, 1], state[0][:,:, 1]) and not torch.equal(
        old.state[0][:,:, 0], state[0][:,:, 0])
    old.reset()
    assert close(old([S[0], S[3]])[0][0], a)

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

def test_carried_state_keeps_no_graph_and_is_not_saved(tmp_path):
    old = make(carry=True).unfreeze().train()
    old(S)[0][0].sum().backward()
    assert all(not o.requires_grad for o in old.state)
    # no backward through the first batch
    old(S)[0][0].sum().backward()
    assert pickle.loads(pickle.dumps(old)).state is None and copy.deepcopy(old).state is None
    assert not any('state' in k for k in old.state_dict())

# copies, several processes

DDP = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import made, test_elmo as t
from elmo_fastai.elmo import *
def work(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{file}', rank=rank, world_size=2)
    model = t.Tagger(made.make(n_reps=1))
    if rank: [p.data.add_(1.) for p in model.lin.parameters()]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], .1)
    x = model.elmo.to_chars([made.S[0], made.S[3]])[rank:rank+1, :5]
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
        [sys.executable, tmp_path/'ddp.py', root, Path(__file__).parent, tmp_path/'rendezvous'],
        capture_output=True, text=True, timeout=120, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    assert r.returncode == 0, r.stderr[-2000:]
    got = torch.tensor(json.loads(r.stdout.split('shares ')[1]))
    set_seed(0)
    model = Tagger(make())
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], .1)
    x = model.elmo.to_chars([S[0], S[3]])[:,:5]
    for _ in range(2):
        opt.zero_grad()
        (sum(model(x[i:i + 1]).square().mean() for i in range(2))/2).backward()
        opt.step()
    assert torch.allclose(got, model.elmo.mixes[0].w.data, atol=1e-5)

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
