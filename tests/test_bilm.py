"""The biLM: what it must not see, what must not change it, its output layers, and saved models in
every state of damage"""

import copy, json, math, os, pickle, shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest, torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from elmo_fastai.elmo import folder as folders
from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.text.tokens import ByteCharVocab, SPECIALS, WordVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, elmo_configs, evaluate, guesses
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.data.batches import SentenceDataLoader, StreamDataLoader
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from pages import page

leaks = page('library/bilm').leaks

CFG = BiLMConfig(
    'test', char_dim=4, filters=((1, 6), (2, 6), (3, 6)), proj_dim=20, hidden_dim=20, dropout=0.3
)
SHAPES = dict(
    plain=CFG, projected=replace(CFG, hidden_dim=24),
    clipped=replace(CFG, hidden_dim=24, cell_clip=0.2, proj_clip=0.1),
    straight=replace(CFG, residual=False, norm=False),
    deep=replace(CFG, n_layers=3, n_highway=2, activation='tanh'),
    shallow=replace(CFG, n_layers=1, n_highway=0), adaptive=replace(CFG, cutoffs=(6, 11)),
    separate=replace(CFG, share_encoder=False, share_softmax=False),
    unprojected=replace(CFG, filters=((1, 6), (2, 6), (3, 8)), char_proj=False))
WORDS = 'a bank of the river spring springs café 河岸 <s> </s> <pad> . extraordinarily'.split() + [
    'x' * 80, '👨‍👩‍👧']
SENTS = [WORDS[i%5:i%5+n] for i,n in enumerate((5, 1, 12, 3, 8, 12, 2, 7))] + [['the']*4, ['x'*80]]
close = dict(atol=1e-5, rtol=1e-5)

@pytest.fixture(scope='module')
def types(): return TokenTypes(WordVocab.build(SENTS), ByteCharVocab())

@pytest.fixture(scope='module')
def batch(types): return next(iter(SentenceDataLoader(EncodedText(SENTS, types), bs=len(SENTS))))

@pytest.fixture(params=SHAPES)
def model(request, types, batch): return make(SHAPES[request.param], types, batch)

def make(config, types, batch, seed=0):
    "A model whose batch normalisation has seen something"
    torch.manual_seed(seed)
    m = BiLM(config, len(types.vocab))
    with torch.no_grad():
        for _ in range(3): m(*batch)
    return m.eval()

@torch.no_grad()
# [layers, 2, B, T, P]
def layers(m, chars): return torch.stack([torch.stack(o) for o in m.encode(chars)])

def slow_nats(m, batch):
    "One softmax a position, in a loop"
    chars,fwd,bwd = batch
    f,b = m.encode(chars)[-1]
    return [[-head.log_prob(h[i, t][None])[0, y[i, t]].item() for i in range(len(y))
             for t in range(y.shape[1]) if y[i, t]]
            for head, h, y in zip(m.heads, (f, b), (fwd, bwd))]


# what a direction must not see

def test_no_state_moves_before_or_after_a_changed_token(model, batch, types):
    """Bit for bit, while the set of distinct tokens stays: a matrix product over another number of
    rows may round otherwise"""
    chars, real = batch[0], batch[0][...,0] != 0
    B, T, W = chars.shape
    every = torch.as_tensor(types.chars[1:])
    # rows that hold every token and never change
    every = torch.cat([every, every.new_zeros(-len(every)%T, W)]).view(-1, T, W)
    before, other = (layers(model, torch.cat([chars, every])),
                     torch.as_tensor(types.char_vocab.encode(['spring', 'bank'])))
    for t in range(T):
        changed = chars.clone()
        # another word than the one that stands there
        new = torch.where((chars[:,t] == other[0]).all(-1)[:,None], other[1], other[0])
        changed[real[:,t], t] = new[real[:,t]]
        after = layers(model, torch.cat([changed, every]))
        assert torch.equal(before[:,0,:,:t], after[:,0,:,:t]), f'a forward state before {t}'
        assert torch.equal(before[:,1,:,t+1:], after[:,1,:,t+1:]), f'a backward state after {t}'
        was, now = (o[:,:,:B][:,:,real[:,t],t] for o in (before, after))
        assert not torch.isclose(was, now, **close).all(-1).any(), f'the states at {t} should move'
        new_word = changed.clone()
        new_word[:, t] = torch.as_tensor(
            types.char_vocab.encode(['a-word-that-was-never-there-before']))
        after = layers(model, torch.cat([new_word*real[...,None], every]))
        torch.testing.assert_close(before[:,0,:,:t], after[:,0,:,:t], **close)
        torch.testing.assert_close(before[:,1,:,t+1:], after[:,1,:,t+1:], **close)

def test_no_gradient_from_the_other_side(model, batch):
    x = model.chars(batch[0]).detach().requires_grad_()
    mask, T = batch[0][...,0] != 0, batch[0].shape[1]
    for layer in range(model.config.n_layers):
        for t in range(T):
            f,b = model.lstm(x, mask)[0][layer]
            gf, = torch.autograd.grad(f[:,t].square().sum(), x)
            gb, = torch.autograd.grad(model.lstm(x, mask)[0][layer][1][:,t].square().sum(), x)
            assert gf[:,t+1:].eq(0).all() and gb[:,:t].eq(0).all()
            assert gf[mask[:,t],:t+1].ne(0).any() and gb[mask[:,t],t].ne(0).any()

def test_leaks_finds_both_leaks(batch):
    class Peeks(nn.Module):
        def __init__(self, side): super().__init__(); self.side = side
        def chars(self, chars): return chars.float().sum(-1, keepdim=True)
        def lstm(self, x, mask):
            near = {'fwd': x.roll(-1, 1), 'bwd': x.roll(1, 1), None: x}[self.side]
            return [(near if self.side == 'fwd' else x, near if self.side == 'bwd' else x)], None
    long = batch[0][batch[0][:,5,0] != 0][:1]
    for side,found in ((None, (False, False)), ('fwd', (True, False)), ('bwd', (False, True))):
        assert leaks(Peeks(side), batch[0], 3) == found
        # a single sentence, too, is enough to find a leak
        assert leaks(Peeks(side), long, 3) == found

# what must not change anything

def test_padding_changes_nothing(model, batch):
    chars = batch[0]
    ours, (B, T, W) = layers(model, chars), chars.shape
    for t in (1, 9):
        wide = layers(model, torch.cat([chars, chars.new_zeros(B, t, W)], 1))
        torch.testing.assert_close(wide[...,:T,:], ours, **close)
        assert wide[...,T:,:].eq(0).all()
    with pytest.raises(ValueError, match='padding before a token'):
        layers(model, torch.cat([chars.new_zeros(B, 3, W), chars], 1))
    # a sentence of one word, alone and without padding
    narrow = batch[0][[1]][:,:3]
    torch.testing.assert_close(layers(model, narrow)[:,:,0], ours[:,:,1,:3], **close)

def test_a_row_of_padding_only(model, batch):
    chars = torch.cat([batch[0], torch.zeros_like(batch[0][:1])])
    out = layers(model, chars)
    torch.testing.assert_close(out[:,:,:-1], layers(model, batch[0]), **close)
    assert out[:,:,-1].eq(0).all()
    assert layers(model, torch.zeros_like(batch[0])).eq(0).all()
    nothing = torch.zeros(1, 3, dtype=torch.long)
    assert [len(o) for o in model(batch[0][:1,:3], nothing, nothing)] == [0, 0]

def test_order_and_company_change_nothing(model, batch):
    chars = batch[0]
    ours, perm = (layers(model, chars),
                  torch.randperm(len(chars), generator=torch.Generator().manual_seed(3)))
    torch.testing.assert_close(layers(model, chars[perm]), ours[:,:,perm], **close)
    for i in range(len(chars)):
        torch.testing.assert_close(layers(model, chars[[i]])[:, :, 0], ours[:, :, i], **close)
    torch.testing.assert_close(
        layers(model, chars.repeat(3, 1, 1))[:, :, -len(chars) :], ours, **close
    )


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), min_size=1, max_size=6))
def test_alone_as_in_any_batch(types, batch, sents):
    m = BATCHMATES.setdefault('m', None) or BATCHMATES.setdefault(
        'n', make(SHAPES['projected'], types, batch))
    text = EncodedText(sents, types)
    together = SentenceDataLoader(text, bs=len(sents)).one_batch()[0]
    out = layers(m, together)
    for row,chars in enumerate(together):
        n = int((chars[:,0] != 0).sum())
        torch.testing.assert_close(out[:,:,row,:n], layers(m, chars[None,:n])[:,:,0], **close)
BATCHMATES = {}

def test_layer_0_knows_the_letters_only(model, batch, types):
    x = layers(model, batch[0])[0]
    assert torch.allclose(x[0], x[1], **close) == model.config.share_encoder
    rows = {}
    for chars, vec in zip(batch[0].flatten(0, 1).tolist(), x[0].flatten(0, 1)):
        assert torch.allclose(rows.setdefault(tuple(chars), vec), vec, **close)
    assert len(rows) > 10
    top = layers(model, batch[0])[-1,0]
    the = [i for i, s in enumerate(types.char_vocab.decode(o) for o in batch[0])
           if s[1:5] == ['the'] * 4][0]
    assert not torch.isclose(top[the,1], top[the,3]).all()              # the layers above know more

def test_evaluation_is_repeatable_and_training_is_not(model, batch):
    assert torch.equal(layers(model, batch[0]), layers(model, batch[0]))
    model.train()
    assert not torch.equal(model(*batch)[0], model(*batch)[0])

# carried state

@pytest.mark.parametrize('cut', [1, 4, 9])
def test_a_carried_state_is_one_pass(model, batch, cut):
    """Forward from piece to piece; backward from the last piece to the first; each sentence within
    its own length"""
    chars = batch[0]
    whole, zero = layers(model, chars), None
    pieces = chars[:,:cut], chars[:,cut:]
    with torch.no_grad():
        (one, state), = [model.encode_state(pieces[0])]
        two, after = model.encode_state(pieces[1], state)
        last, state = model.encode_state(pieces[1])
        first, _ = model.encode_state(pieces[0], state)
        f = torch.cat([torch.stack([l[0] for l in o]) for o in (one, two)], 2)
        b = torch.cat([torch.stack([l[1] for l in o]) for o in (first, last)], 2)
    # pieces are other sums; a deep model adds them up
    rounded = dict(rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(f, whole[:, 0], **rounded)
    torch.testing.assert_close(b, whole[:, 1], **rounded)
    c = model.config
    assert [o.shape for o in after] == [
        (c.n_layers, 2, len(chars), c.proj_dim),
        (c.n_layers, 2, len(chars), c.hidden_dim),
    ]


def test_only_a_model_is_replaced_by_a_model(tmp_path):
    lm = BiLM(BiLMConfig('nano', char_dim=4, filters=((1, 8),), proj_dim=8, hidden_dim=8), 0)
    (tmp_path / 'work').mkdir()
    (tmp_path / 'work' / 'thesis.tex').write_text('years')
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'new').mkdir()
    (tmp_path/'bert').mkdir(); (tmp_path/'bert'/'config.json').write_text('{"model_type": "bert"}')
    for o in ('work', 'file', 'bert'):
        with pytest.raises(ValueError, match='would be replaced'): save_bilm(tmp_path/o, lm, None)
    assert (tmp_path/'work'/'thesis.tex').exists() and (tmp_path/'file').read_text() == 'x'
    for _ in range(2): save_bilm(tmp_path/'new', lm, None)
    (tmp_path/'link').symlink_to(tmp_path/'new')
    save_bilm(tmp_path/'link', lm, None)
    assert (tmp_path / 'link').is_symlink() and {o.name for o in tmp_path.iterdir()} == {
        'work', 'file', 'bert', 'new', 'link'}


def test_a_folded_normalisation_and_too_wide_a_filter_are_refused(tmp_path):
    config = BiLMConfig('nano', char_dim=4, filters=((1, 8),), proj_dim=8, hidden_dim=8)
    lm = BiLM(config, 0)
    lm.chars.fold_norm()
    with pytest.raises(ValueError, match='folded away'): save_bilm(tmp_path/'m', lm, None)
    with pytest.raises(ValueError, match='width 5 is wider'):
        replace(config, filters=((5, 8),), max_chars=3)


# separate and missing parts

def test_separate_models_share_nothing(types, batch):
    "TagLM's way: each direction's loss reaches its own parameters only"
    m = make(SHAPES['separate'], types, batch)
    names = dict(fwd=('chars.', 'lstm.fwd', 'head.'), bwd=('chars_bwd.', 'lstm.bwd', 'head_bwd.'))
    for i,d in enumerate(names):
        m.zero_grad(); m(*batch)[i].sum().backward()
        got = {k for k,p in m.named_parameters() if p.grad is not None and p.grad.ne(0).any()}
        assert (got and all(k.startswith(names[d]) for k in got)
                and {o for o in names[d] if any(k.startswith(o) for k in got)} == set(names[d]))
    shared = make(CFG, types, batch)
    assert shared.heads[0] is shared.heads[1] and shared.chars_bwd is None
    for one in (dict(share_encoder=False), dict(share_softmax=False)):
        m = make(replace(CFG, **one), types, batch)
        assert (m.chars_bwd is None) == m.config.share_encoder and (
            m.head_bwd is None) == m.config.share_softmax
        assert all(o.isfinite().all() for o in m(*batch))

def test_two_equal_encoders_are_one(types, batch):
    a,b = make(CFG, types, batch), make(replace(CFG, share_encoder=False), types, batch)
    b.load_state_dict({**a.state_dict(),
                       **{k.replace('chars.', 'chars_bwd.', 1): v for k, v in a.state_dict().items()
                          if k.startswith('chars.')}})
    torch.testing.assert_close(layers(a, batch[0]), layers(b, batch[0]), **close)
    with torch.no_grad():
        for (_,x),(_,y) in zip([a.encode_state(batch[0])], [b.encode_state(batch[0])]):
            for o,p in zip(x, y): torch.testing.assert_close(o, p, **close)

def test_a_model_without_an_output_layer(tmp_path, types, batch):
    torch.manual_seed(0)
    m = BiLM(CFG, 0).eval()
    assert (
        m.head is None and m.exact and m.encode(batch[0])[-1][0].shape == (*batch[0].shape[:2], 20))
    with pytest.raises(ValueError, match='predicts no words'): m(*batch)
    folder = save_bilm(tmp_path/'m', m, None)
    assert sorted(f.name for f in folder.iterdir()) == [
        'SHA256SUMS', 'config.json', 'model.safetensors']
    again, vocab = load_bilm(folder)
    assert (vocab is None and again.n_words == 0
            and torch.allclose(layers(again, batch[0]), layers(m, batch[0]), **close))
    for vocab,model in ((types.vocab, m), (None, make(CFG, types, batch))):
        with pytest.raises(ValueError, match='words'): save_bilm(tmp_path/'n', model, vocab)

def test_filters_without_projection_must_fit():
    with pytest.raises(ValueError, match='18 filters, proj_dim=20'): replace(CFG, char_proj=False)
    assert BiLM(SHAPES['unprojected'], 0).chars.proj is None

# the loss

def test_loss_is_the_slow_one(model, batch):
    with torch.no_grad():
        ours, slow = model(*batch), slow_nats(model, batch)
        for a,b in zip(ours, slow): torch.testing.assert_close(a, torch.tensor(b), **close)
        n = sum(len(s)+1 for s in SENTS)
        assert [len(o) for o in ours] == [n, n]
        f,_ = model(batch[0], batch[1], torch.zeros_like(batch[2]))     # one direction alone
        torch.testing.assert_close(f, ours[0], **close)

def test_training_reaches_every_parameter(model, batch):
    model.train()
    torch.cat(model(*batch)).mean().backward()
    still = [k for k,p in model.named_parameters() if p.requires_grad and not p.grad.ne(0).any()]
    # batch normalisation takes out the mean, so a bias before it can do nothing
    assert all(k in ('chars.proj.bias', 'chars_bwd.proj.bias') for k in still), still

def test_dropout_hides_no_target(types, batch):
    m = make(replace(CFG, dropout=.9), types, batch).train()
    assert all(o.isfinite().all() for o in m(*batch)) and sum(map(len, m(*batch))) == 2 * sum(
        len(s) + 1 for s in SENTS)


# perplexity

def test_evaluate_is_the_slow_sum(model, batch, types):
    got = evaluate(model, SentenceDataLoader(EncodedText(SENTS, types), bs=3))
    f,b = (sum(o)/len(o) for o in slow_nats(model, batch))
    assert got['predictions'] == sum(len(s)+1 for s in SENTS)
    for k, nats in dict(fwd=f, bwd=b, mean=(f + b) / 2).items():
        assert math.isclose(got[k], math.exp(nats), rel_tol=1e-5)


def test_evaluate_does_not_depend_on_batches(model, types):
    text = EncodedText(SENTS, types)
    first = evaluate(model, SentenceDataLoader(text, bs=1))
    for dl in (
        SentenceDataLoader(text, bs=4),
        SentenceDataLoader(text, bs=100),
        SentenceDataLoader(text, bs=4, max_tokens=20),
        SentenceDataLoader(text, bs=3, shuffle=True, seed=1),
    ):
        other = evaluate(model, dl)
        assert other['predictions'] == first['predictions']
        for k in ('fwd', 'bwd', 'mean'):
            assert math.isclose(other[k], first[k], rel_tol=1e-5)


def test_evaluate_streams_and_sentences_where_they_are_the_same(model, types):
    # as strips of eight tokens these are the sentences
    even = EncodedText([WORDS[i:i+6] for i in range(8)], types)
    a, b = (evaluate(model, SentenceDataLoader(even, bs=5)),
            evaluate(model, StreamDataLoader(even, bs=8, seq_len=8)))
    assert a['predictions'] == b['predictions'] == 8*7
    for k in ('fwd', 'bwd', 'mean'): assert math.isclose(a[k], b[k], rel_tol=1e-5)
    text = EncodedText(SENTS, types)
    # elsewhere the contexts differ, the predictions that count do not
    for bs,sl in ((1, 10), (3, 7), (4, 16)):
        assert evaluate(model, StreamDataLoader(text, bs=bs, seq_len=sl))['predictions'] == sum(
            len(s) + 1 for s in SENTS)


def test_evaluate_leaves_each_part_in_its_mode(model, types):
    model.train()
    model.chars.eval()
    before = [m.training for m in model.modules()]
    evaluate(model, SentenceDataLoader(EncodedText(SENTS, types), bs=4))
    assert before == [m.training for m in model.modules()] and len(set(before)) == 2
    with pytest.raises(ValueError): evaluate(model, [])
    assert before == [m.training for m in model.modules()]
    model.eval()

def test_evaluate_leaves_the_model_as_it_was(model, types):
    dl = SentenceDataLoader(EncodedText(SENTS, types), bs=4)
    for mode in (True, False):
        model.train(mode)
        before = copy.deepcopy(model.state_dict())
        evaluate(model, dl)
        assert model.training == mode and all(
            torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_evaluate_says_when_it_cannot(model, types, batch):
    with pytest.raises(ValueError, match='[Nn]o(thing)? .*predict|empty'): evaluate(model, [])
    worst = make(CFG, types, batch)
    # sure of a word that is hardly ever right
    with torch.no_grad(): worst.head.bias[len(types.vocab)-1] = 5e3
    assert evaluate(worst, [batch])['fwd'] == math.inf                  # and not an OverflowError

# number formats, seeds

def test_double_precision(model, batch):
    m, single = copy.deepcopy(model).double(), layers(model, batch[0])
    out = layers(m, batch[0])
    assert out.dtype == torch.float64
    torch.testing.assert_close(out.float(), single, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        nll = m(*batch)
        # nothing in between is rounded to single precision
        assert all(o.dtype == torch.float64 for o in nll)
        for a, b in zip(nll, model(*batch)):
            torch.testing.assert_close(a.float(), b, atol=1e-4, rtol=1e-4)
        for a, b in zip(nll, slow_nats(m, batch)):
            torch.testing.assert_close(
                a, torch.tensor(b, dtype=torch.float64), atol=1e-10, rtol=1e-10
            )


@pytest.mark.parametrize('train', [False, True])
def test_bfloat16(model, batch, train):
    with torch.no_grad(): exact = torch.cat(model(*batch)).mean()
    model.train(train)
    with torch.autocast('cpu', torch.bfloat16): nll = model(*batch)
    assert all(o.dtype == torch.float32 and o.isfinite().all() for o in nll)
    if not train: torch.testing.assert_close(torch.cat(nll).mean(), exact, atol=.1, rtol=.03)
    torch.cat(nll).mean().backward()
    assert all(p.grad is None or (p.grad.dtype == torch.float32 and p.grad.isfinite().all())
               for p in model.parameters())


def run(config, types, seed):
    torch.manual_seed(seed)
    m = BiLM(config, len(types.vocab))
    opt = torch.optim.AdamW(m.parameters(), 1e-2)
    for _ in range(2):
        for b in SentenceDataLoader(EncodedText(SENTS, types), bs=4, shuffle=True, seed=seed):
            loss = torch.cat(m(*b)).mean()
            opt.zero_grad(); loss.backward(); opt.step()
    return m.state_dict()

@pytest.mark.parametrize('shape', ['plain', 'clipped', 'adaptive'])
def test_equal_seeds_equal_runs(shape, types, held):
    a,b,c = (run(SHAPES[shape], types, seed) for seed in (5, 5, 6))
    assert all(torch.allclose(v, b[k], **close) for k,v in a.items())
    assert not torch.allclose(a['lstm.fwd.0.weight_ih_l0'], c['lstm.fwd.0.weight_ih_l0'], **close)

def test_bfloat16_weights(types, batch):
    m = make(CFG, types, batch)
    exact = torch.cat(m(*batch)).mean()
    low = copy.deepcopy(m).bfloat16()
    assert layers(low, batch[0]).dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat(low(*batch)).mean(), exact, atol=.1, rtol=.03)

@pytest.mark.parametrize('shape', ['plain', 'projected', 'clipped', 'adaptive', 'separate'])
def test_gradients_agree_with_finite_differences(shape, types, batch):
    "The loss of both directions along random directions of every parameter, in double precision"
    m, few = make(SHAPES[shape], types, batch).double(), [o[:4] for o in batch]
    def loss(): return torch.cat(m(*few)).sum()
    m.zero_grad(); loss().backward()
    g = torch.Generator().manual_seed(0)
    for name,p in m.named_parameters():
        if p.grad is None: continue
        d = torch.randn(p.shape, generator=g, dtype=p.dtype)
        def slope(eps):
            with torch.no_grad():
                p.add_(d, alpha=eps); up = loss()
                p.add_(d, alpha=-2*eps); down = loss()
                p.add_(d, alpha=eps)
            return ((up - down)/(2*eps)).item()
        there = (p.grad*d).sum().item()
        # another letter may win a maximum within the longer step, hardly within the shorter one,
        # too
        assert any(
            math.isclose(there, slope(eps), rel_tol=1e-4, abs_tol=1e-5) for eps in (1e-6, 1e-8)
        ), name


def test_the_start_is_the_originals():
    torch.manual_seed(0)
    m = BiLM(BiLMConfig('x', proj_dim=64, hidden_dim=96, norm=False), 500)
    e, k = m.chars.embed.weight, m.lstm.fwd[0]
    assert (e[0].eq(0).all() and 0.97 < e.abs().max() <= 1
            and math.isclose(e[1:].std(), 3**-0.5, rel_tol=0.05))
    for c in m.chars.convs: assert .04 < c.weight.abs().max() <= .05 and c.bias.eq(0).all()
    for w, fan in ((m.chars.proj.weight, 192), (m.head.weight, 64),
                   (m.chars.highway.layers[0].weight, 192)):
        assert math.isclose(w.std(), fan**-0.5, rel_tol=0.05)
    assert m.head.bias.eq(0).all() and m.chars.highway.layers[0].bias[192:].eq(-2).all()
    for w in (k.weight_ih_l0, k.weight_hh_l0):
        assert math.isclose(w.abs().max(), (6 / (128 + 4 * 96)) ** 0.5, rel_tol=0.05)
    assert k.bias_ih_l0[96:192].eq(1).all() and k.bias_ih_l0.sum() == 96
    tanh = BiLM(BiLMConfig('x', activation='tanh'), 0).chars.convs[3].weight
    assert math.isclose(tanh.std(), (16*4)**-.5, rel_tol=.05)

# compilers

@pytest.mark.slow
def test_compile(types, batch):
    "`torch.compile` works: equal numbers, and gradients"
    m = make(CFG, types, batch)
    compiled = torch.compile(m, backend='eager')
    for a,b in zip(compiled(*batch), m(*batch)): torch.testing.assert_close(a, b, **close)
    torch.cat(compiled(*batch)).mean().backward()
    assert m.head.weight.grad.ne(0).any()

# guesses

def test_guesses_stand_beside_their_words(types, batch):
    m = make(CFG, types, batch)
    tokens = SENTS[2]
    rows = guesses(m, tokens, types.vocab, types.char_vocab, k=2)
    assert [r[0] for r in rows] == tokens
    chars = SentenceDataLoader(EncodedText([tokens], types), bs=1).one_batch()[0]
    with torch.no_grad(): f,b = m.encode(chars)[-1]
    # word t is position t+1: its neighbours predict it
    for t,(_,left,right) in enumerate(rows):
        for h,said in ((f[0,t], left), (b[0,t+2], right)):
            assert said == ' '.join(
                types.vocab.itos[i] for i in m.head.log_prob(h[None])[0].topk(2).indices)
    assert guesses(m, [], types.vocab, types.char_vocab) == []

def test_looking_leaves_the_mode_alone(types, batch):
    m = make(CFG, types, batch)
    class Fails(Exception): pass
    def broken():
        yield batch
        raise Fails
    for mode in (True, False):
        m.train(mode)
        guesses(m, SENTS[0], types.vocab, types.char_vocab)
        assert m.training == mode
        with pytest.raises(Fails): evaluate(m, broken())
        assert m.training == mode and torch.is_grad_enabled()

def test_what_a_model_can_not_be_asked(types, batch):
    states_only, m = BiLM(CFG, 0), make(CFG, types, batch)
    with pytest.raises(ValueError, match='output layer'):
        guesses(states_only, ['the'], types.vocab, types.char_vocab)
    with pytest.raises(ValueError, match='output layer'): evaluate(states_only, [batch])
    with pytest.raises(ValueError, match='belong together'):
        guesses(m, ['the'], WordVocab.build([['x']]), types.char_vocab)


# configurations

@pytest.mark.parametrize('config', [*elmo_configs.values(), *SHAPES.values()], ids=lambda c: c.name)
def test_config_through_json(config):
    again = BiLMConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config and type(again.filters) is tuple and type(again.filters[0]) is tuple

def test_named_configs_build():
    assert list(elmo_configs) == ['tiny', 'small', 'medium', 'original']
    with torch.device('meta'):
        n = sum(p.numel() for p in BiLM(elmo_configs['original'], 800_000).parameters())
    # the published model without its output layer
    assert n > 93_600_848

ABSURD = dict(
    n_layers=[-1, 0, 'a', None, 2.0, 10**9, True, [2]],
    proj_dim=[-1, 0, 8.0, '8', None, 10**12],
    hidden_dim=[-1, 0, 4, None, 'x', 10**12],
    char_dim=[0, -2, None, 'x', 10**12],
    filters=[[], None, 5, [[1]], [[0, 8]], [[-1, 8]], [[1, -8]], [['a', 'b']], [[1, 10**12]],
             [[1.5, 8]], 'abc', {}],
    n_highway=[-1, None, 'a', 10**9],
    activation=['gelu', None, 5, ['relu']],
    max_chars=[-5, 0, 2, 'x', None, 10**9],
    norm=[None, 'x', 5],
    residual=[None, 'x', 5],
    cell_clip=['x', -1, 0, [1], math.nan, math.inf],
    proj_clip=['x', -1, 0, math.nan],
    dropout=[-1, 1, 2, 'x', None, math.nan],
    softmax=['none', None, 5, ['full']],
    div_value=['x', None, 0, -1, 0.5, math.nan, math.inf],
    n_negative=[0, -1, 'x', None, 2.5],
    char_proj=[None, 'x', 1, False],
    share_encoder=[None, 'x', 0],
    share_softmax=[None, 'x', 0],
    cutoffs=[5, 'x', [-1], [0], [5, 4], ['a'], [2.5], [3, 3]],
    name=[5, None, ['x']])
ABSURD = [(k,v) for k,vs in ABSURD.items() for v in vs]

@pytest.mark.parametrize('k,v', ABSURD, ids=lambda o: str(o)[:20])
def test_absurd_settings_are_named(k, v):
    with pytest.raises(ValueError, match=k): BiLMConfig.from_dict({**CFG.to_dict(), k: v})

# saved models

@pytest.fixture
def saved(tmp_path, types, batch):
    m = make(SHAPES['adaptive'], types, batch)
    return save_bilm(tmp_path/'model', m, types.vocab), m

def edit(file, **changes):
    "Change a saved file as somebody might who wants it to load"
    (file.parent/'SHA256SUMS').unlink(missing_ok=True)
    d = json.loads(file.read_text())
    for k,v in changes.items(): (d if k in d or 'config' not in d else d['config'])[k] = v
    file.write_text(json.dumps(d))

def refused(folder, file):
    "Loading must fail with one `ModelFileError` that names `file` on one line"
    with pytest.raises(ModelFileError) as e: load_bilm(folder)
    assert str(folder) in str(e.value) and file in str(e.value), e.value
    assert len(str(e.value)) < 1000
    return str(e.value)

@pytest.mark.parametrize('shape', SHAPES)
def test_the_same_vectors_after_a_round_trip(tmp_path, shape, types, batch):
    m = make(SHAPES[shape], types, batch)
    again, vocab = load_bilm(save_bilm(tmp_path/'deep'/'er'/'model', m.train(), types.vocab))
    m.eval()
    assert (again.config == m.config and again.n_words == m.n_words
            and vocab.itos == types.vocab.itos and not again.training)
    assert torch.allclose(layers(again, batch[0]), layers(m, batch[0]), **close)
    with torch.no_grad():
        assert all(torch.allclose(a, b, **close) for a, b in zip(again(*batch), m(*batch)))
    assert [(k, p.requires_grad, p.dtype) for k, p in again.named_parameters()] == [
        (k, p.requires_grad, p.dtype) for k, p in m.named_parameters()]
    torch.cat(again.train()(*batch)).mean().backward()                  # it can be trained on

def test_what_a_folder_holds(saved):
    folder, m = saved
    assert sorted(f.name for f in folder.iterdir()) == [
        'SHA256SUMS', 'config.json', 'model.safetensors', 'vocab.json']
    assert [f.name for f in folder.parent.iterdir()] == ['model']
    modes = {f.stat().st_mode & 0o044 for f in folder.iterdir()}
    assert modes == {0o044}, 'others may read it, as any other file'
    save_bilm(folder, m, load_bilm(folder)[1], extra={'a.txt': 'é', 'b.bin': b'\xff'})
    assert (folder / 'a.txt').read_text(encoding='utf-8') == 'é' and (
        folder / 'b.bin').read_bytes() == b'\xff'


def test_saving_leaves_the_model_alone(tmp_path, types, batch):
    m = make(CFG, types, batch).train()
    before = layers(m.eval(), batch[0]); m.train()
    save_bilm(tmp_path/'m', m, types.vocab)
    assert m.training and torch.equal(layers(m.eval(), batch[0]), before)

@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'vocab.json'])
@pytest.mark.parametrize('damage', [
    'missing', 'empty', 'half', 'short', 'binary', 'foreign', 'list', 'zeros', 'deep',
    'long number', 'folder', 'pickle', 'loop'])
def test_damaged_files(saved, file, damage):
    f = saved[0] / file
    data = f.read_bytes()
    f.unlink()
    contents = dict(empty=b'', half=data[: len(data) // 2], short=data[:-3],
                    binary=bytes(range(256)) * 40, foreign=b'{"a": 1}', list=b'[1, 2]',
                    zeros=bytes(500), deep=b'[' * 100_000, pickle=pickle.dumps({'head.weight': 1}),
                    **{'long number': b'1' * 10_000})
    if damage in contents: f.write_bytes(contents[damage])
    elif damage == 'folder': f.mkdir()
    elif damage == 'loop': f.symlink_to(f)
    refused(saved[0], file)

def test_no_model_there(tmp_path, saved):
    for p in (tmp_path / 'nothing', tmp_path, saved[0] / 'config.json',
              saved[0] / 'config.json' / 'x', str(tmp_path / 'nothing')):
        with pytest.raises(ModelFileError, match='config.json'):
            load_bilm(p)


@pytest.mark.parametrize('k,v', ABSURD, ids=lambda o: str(o)[:20])
def test_absurd_configs_on_disk(saved, k, v):
    edit(saved[0]/'config.json', **{k: v})
    refused(saved[0], 'config.json')

@pytest.mark.parametrize('n', [-1, 3, 7., 7.5, '7', None, True, [7], 10**12, 2**63, 10**40])
def test_absurd_numbers_of_words(saved, n):
    edit(saved[0]/'config.json', n_words=n)
    refused(saved[0], '' if n in (10**12, 2**63) else 'config.json')

@pytest.mark.parametrize('head', [
    dict(version=2), dict(version=0), dict(version=-1), dict(version=True), dict(version='1'),
    dict(version=None), dict(version=1.5), dict(version=10**30), dict(format='other'),
    dict(format=None), dict(format=['x']), dict(config=None), dict(config=5), dict(config=[]),
    dict(config='x'), dict(unknown=1)], ids=str)
def test_heads_that_are_not_ours(saved, head):
    edit(saved[0] / 'config.json', **head)
    said = refused(saved[0], 'config.json')
    if head == dict(version=2):
        assert 'version 2' in said and 'up to 1' in said
    if 'unknown' in head:
        assert 'unknown' in said


@pytest.mark.parametrize('key', ['format', 'version', 'n_words', 'config'])
def test_heads_with_a_gap(saved, key):
    f = saved[0]/'config.json'
    f.write_text(json.dumps({k:v for k,v in json.loads(f.read_text()).items() if k != key}))
    refused(saved[0], 'config.json')

def test_configs_of_the_first_version_load(saved):
    """Saved before there were output layers to choose, separate parts, or an encoder without
    projection"""
    f = saved[0]/'config.json'
    (saved[0]/'SHA256SUMS').unlink()
    d = json.loads(f.read_text())
    for k in ('softmax', 'div_value', 'n_negative', 'char_proj', 'share_encoder', 'share_softmax'):
        del d['config'][k]
    f.write_text(json.dumps(d))
    assert load_bilm(saved[0])[0].config == saved[1].config

def test_other_defaults_later_do_not_change_saved_models(tmp_path, monkeypatch, types):
    "`cutoffs=None` is the library's choice of the time when the model was saved"
    vocab = WordVocab([*SPECIALS, *map(str, range(6000))])
    m = BiLM(replace(CFG, proj_dim=32, hidden_dim=32), len(vocab))
    folder = save_bilm(tmp_path/'m', m, vocab)
    from elmo_fastai.nn import softmax
    monkeypatch.setattr(softmax, 'default_cutoffs', lambda *args: (50, 100))
    again, _ = load_bilm(folder)
    assert again.head.cutoffs == m.head.cutoffs and again.config.cutoffs == tuple(
        m.head.cutoffs[:-1])


def test_a_huge_model_costs_nothing_to_refuse(saved):
    "Sizes are compared before memory is taken: the folder claims a terabyte"
    edit(saved[0]/'config.json', proj_dim=500_000, hidden_dim=500_000)
    refused(saved[0], 'model.safetensors')

@pytest.mark.parametrize('name,change', [
    ('extra', lambda d, k: d.update(zzz=torch.ones(1))),
    ('lacking', lambda d, k: d.pop(k)),
    ('longer', lambda d, k: d.update({k: torch.ones(99, 20)})),
    ('transposed', lambda d, k: d.update({k: d[k].T.contiguous()})),
    ('flat', lambda d, k: d.update({k: d[k].flatten()})),
    ('renamed', lambda d, k: d.update(x=d.pop(k))),
    ('whole numbers', lambda d, k: d.update({k: torch.ones_like(d[k], dtype=torch.int64)})),
    ('truth values', lambda d, k: d.update({k: d[k] > 0})),
    ('nothing', lambda d, k: d.clear())])
def test_weights_that_do_not_fit(saved, name, change):
    f = saved[0] / 'model.safetensors'
    d = load_file(f)
    change(d, 'lstm.fwd.0.weight_ih_l0')
    save_file(d, f)
    said = refused(saved[0], 'model.safetensors')
    if name == 'extra':
        assert 'zzz' in said
    if name in ('lacking', 'longer', 'transposed', 'flat', 'renamed', 'whole numbers'):
        assert 'lstm.fwd.0.weight_ih_l0' in said


@pytest.mark.parametrize('split', [False, True])
def test_weights_in_rows_of_bytes(saved, split):
    """As in the box: a matrix is whole numbers of one byte and a scale for each row, the output
    layer in a file of its own"""
    folder = saved[0]
    (folder/'SHA256SUMS').unlink()
    whole, kept, want = load_file(folder/'model.safetensors'), {}, {}
    for k,v in whole.items():
        kept[k] = want[k] = v
        if v.dim() < 2: continue
        scale = (v.flatten(1).abs().amax(1)/127).half()
        kept[k] = (v.flatten(1)/scale.float()[:, None]).round().to(torch.int8).view_as(v)
        kept[f'{k}.scale'] = scale
        want[k] = (kept[k].flatten(1).float()*scale.float()[:, None]).view_as(v)
    head = {k: kept.pop(k) for k in [*kept] if split and k.startswith('head')}
    save_file(kept, folder/'model.safetensors')
    if split: save_file(head, folder/'output.safetensors')
    lm, _ = load_bilm(folder)
    assert all(torch.allclose(v, want[k], **close) for k,v in lm.state_dict().items())
    if split:
        save_file({k: v for k,v in head.items() if '.0.' not in k}, folder/'output.safetensors')
        with pytest.raises(ModelFileError, match='output.safetensors: head.* is missing'):
            load_bilm(folder)
    name = 'chars.embed.weight.scale'
    save_file({**kept, name: kept[name][:-1].clone()}, folder/'model.safetensors')
    with pytest.raises(ModelFileError, match="model.safetensors can't be read"): load_bilm(folder)
    save_file({**kept, 'other.scale': kept[name].clone()}, folder/'model.safetensors')
    with pytest.raises(ModelFileError, match='unknown tensor other.scale'): load_bilm(folder)

def test_another_models_weights(tmp_path, saved, types, batch):
    other = save_bilm(tmp_path/'other', make(SHAPES['deep'], types, batch), types.vocab)
    shutil.copy(other/'model.safetensors', saved[0]/'model.safetensors')
    refused(saved[0], 'model.safetensors')

@pytest.mark.parametrize('itos', [
    5, None, 'abc', {}, [], ['a'] * 9, [*SPECIALS, 5], [*SPECIALS, ['c']], [*SPECIALS, None],
    [*SPECIALS, 'a', 'a']], ids=str)
def test_vocabularies_that_are_none(saved, itos):
    n = saved[1].n_words
    # of the right length
    if isinstance(itos, list) and itos[:4] == SPECIALS:
        itos = [*SPECIALS, *map(str, range(n - len(itos))), *itos[4:]]
    edit(saved[0] / 'vocab.json', itos=itos)
    refused(saved[0], 'vocab.json')

@pytest.mark.parametrize('more', [-1, 1])
def test_a_vocabulary_of_another_size(saved, types, more):
    WordVocab([*types.vocab.itos, 'new'][:len(types.vocab)+more]).save(saved[0]/'vocab.json')
    said = refused(saved[0], 'vocab.json')
    assert str(len(types.vocab)+more) in said and str(len(types.vocab)) in said

def test_saving_with_a_foreign_vocabulary(tmp_path, types, batch):
    "What could not be loaded again is not saved"
    with pytest.raises(ValueError, match='words'):
        save_bilm(tmp_path / 'm', make(CFG, types, batch), WordVocab([*SPECIALS, 'a']))
    assert not list(tmp_path.iterdir())

class Trap:
    def __reduce__(self): return os.mkdir, (os.environ['ELMO_TRAP'],)

@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'vocab.json'])
@pytest.mark.parametrize('write', [
    lambda o, f: f.write_bytes(pickle.dumps(o)),
    lambda o, f: torch.save({'head.weight': torch.ones(1), 'x': o}, f)],
        ids=['pickle', 'torch.save'])
def test_nothing_is_executed(saved, tmp_path, monkeypatch, file, write):
    trap = tmp_path / 'sprung'
    monkeypatch.setenv('ELMO_TRAP', str(trap))
    write(Trap(), saved[0] / file)
    refused(saved[0], file)
    assert not trap.exists()
    with open(saved[0] / file, 'rb') as f:
        data = f.read()
    if data[:2] != b'PK':
        pickle.loads(data)
        assert trap.exists()  # the trap was a trap


# saving, interrupted

@pytest.mark.parametrize('where', ['save_file', 'WordVocab.save', 'os.rename', 'extra'])
@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize('first', [True, False])
def test_an_interrupted_save(tmp_path, types, batch, monkeypatch, where, error, first):
    folder, m = tmp_path/'model', make(CFG, types, batch)
    if not first: save_bilm(folder, m, types.vocab, extra={'note.txt': 'old'})
    def stop(*args, **kwargs): raise error('No space left on device')
    with monkeypatch.context() as mp:
        if where == 'save_file': mp.setattr(folders, 'save_file', stop)
        elif where == 'WordVocab.save': mp.setattr(WordVocab, 'save', stop)
        elif where == 'os.rename':
            calls = []
            def last(a, b):
                calls.append(a)
                stop()
            mp.setattr(os, 'rename', last)
        with pytest.raises(error if where != 'extra' else Exception):
            save_bilm(folder, make(CFG, types, batch, seed=1), types.vocab,
                      extra={'note.txt': object() if where == 'extra' else 'new'})
    assert [f.name for f in tmp_path.iterdir()] == ([] if first else ['model'])
    if first: return
    assert (folder/'note.txt').read_text() == 'old'
    assert torch.allclose(layers(load_bilm(folder)[0], batch[0]), layers(m, batch[0]), **close)

def test_a_new_model_replaces_all_of_the_old(tmp_path, types, batch):
    folder, a, b = tmp_path/'model', make(CFG, types, batch), make(SHAPES['deep'], types, batch)
    save_bilm(folder, a, types.vocab, extra={'old.txt': 'x'})
    save_bilm(folder, b, types.vocab)
    assert sorted(f.name for f in folder.iterdir()) == [
        'SHA256SUMS', 'config.json', 'model.safetensors', 'vocab.json'] and [
            f.name for f in tmp_path.iterdir()] == ['model']
    assert load_bilm(folder)[0].config == b.config

def test_evaluation_in_threads_leaves_the_mode_alone(types):
    torch.manual_seed(0)
    model = BiLM(CFG, len(types.vocab)).train()
    batches = list(SentenceDataLoader(EncodedText(SENTS*8, types), bs=4))
    wanted = evaluate(model, batches)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: evaluate(model, batches), range(12)))
    assert all(o == pytest.approx(wanted, rel=1e-6) for o in found)
    assert all(module.training for module in model.modules())
