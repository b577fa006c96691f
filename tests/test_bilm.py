"The biLM: what it must not see, what must not change it, and its output layers"

import copy, json, math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest, torch
from torch import nn

from elmo_fastai.text.tokens import ByteCharVocab, WordVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, elmo_configs, evaluate, guesses
from elmo_fastai.practice.folder import load_bilm, save_bilm
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
    'x'*80, '👨‍👩‍👧']
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
        torch.testing.assert_close(layers(model, chars[[i]])[:,:, 0], ours[:,:, i], **close)
    torch.testing.assert_close(
        layers(model, chars.repeat(3, 1, 1))[:,:, -len(chars):], ours, **close
    )

def test_layer_0_knows_the_letters_only(model, batch, types):
    x = layers(model, batch[0])[0]
    assert torch.allclose(x[0], x[1], **close) == model.config.share_encoder
    rows = {}
    for chars, vec in zip(batch[0].flatten(0, 1).tolist(), x[0].flatten(0, 1)):
        assert torch.allclose(rows.setdefault(tuple(chars), vec), vec, **close)
    assert len(rows) > 10
    top = layers(model, batch[0])[-1,0]
    the = [i for i, s in enumerate(types.char_vocab.decode(o) for o in batch[0])
           if s[1:5] == ['the']*4][0]
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

def test_a_model_without_an_output_layer(tmp_path, types, batch):
    torch.manual_seed(0)
    m = BiLM(CFG, 0).eval()
    assert (
        m.head is None and m.exact and m.encode(batch[0])[-1][0].shape == (*batch[0].shape[:2], 20))
    with pytest.raises(ValueError, match='predicts no words'): m(*batch)
    folder = save_bilm(tmp_path/'m', m, None)
    assert sorted(f.name for f in folder.iterdir()) == [
        'config.json', 'model.safetensors']
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
    assert all(o.isfinite().all() for o in m(*batch)) and sum(map(len, m(*batch))) == 2*sum(
        len(s) + 1 for s in SENTS)

# perplexity

def test_evaluate_is_the_slow_sum(model, batch, types):
    got = evaluate(model, SentenceDataLoader(EncodedText(SENTS, types), bs=3))
    f,b = (sum(o)/len(o) for o in slow_nats(model, batch))
    assert got['predictions'] == sum(len(s)+1 for s in SENTS)
    for k, nats in dict(fwd=f, bwd=b, mean=(f + b)/2).items():
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

def test_evaluate_leaves_the_model_and_each_part_s_mode_as_they_were(model, types):
    model.train()
    model.chars.eval()
    weights, before = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    evaluate(model, SentenceDataLoader(EncodedText(SENTS, types), bs=4))
    assert all(torch.equal(v, weights[k]) for k,v in model.state_dict().items())
    assert before == [m.training for m in model.modules()] and len(set(before)) == 2
    with pytest.raises(ValueError): evaluate(model, [])
    assert before == [m.training for m in model.modules()]
    model.eval()

def test_evaluate_says_when_it_cannot(model, types, batch):
    with pytest.raises(ValueError, match='[Nn]o(thing)? .*predict|empty'): evaluate(model, [])
    worst = make(CFG, types, batch)
    # sure of a word that is hardly ever right
    with torch.no_grad(): worst.head.bias[len(types.vocab)-1] = 5e3
    assert evaluate(worst, [batch])['fwd'] == math.inf                  # and not an OverflowError

# number formats, seeds

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
        assert math.isclose(w.abs().max(), (6/(128 + 4*96))**0.5, rel_tol=0.05)
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

@pytest.mark.parametrize('k', ABSURD)
def test_absurd_settings_are_named(k):
    for v in ABSURD[k]:
        with pytest.raises(ValueError, match=k): BiLMConfig.from_dict({**CFG.to_dict(), k: v})

def test_evaluation_in_threads_leaves_the_mode_alone(types):
    torch.manual_seed(0)
    model = BiLM(CFG, len(types.vocab)).train()
    batches = list(SentenceDataLoader(EncodedText(SENTS*8, types), bs=4))
    wanted = evaluate(model, batches)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: evaluate(model, batches), range(12)))
    assert all(o == pytest.approx(wanted, rel=1e-6) for o in found)
    assert all(module.training for module in model.modules())
