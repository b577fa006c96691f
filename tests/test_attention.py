"The study of attention: the same guarantees as the biLM's, for each of its networks"
import itertools, math
from dataclasses import replace

import pandas as pd, pytest, torch
import torch.nn.functional as F
from fastai.torch_core import set_seed
from torch import nn

from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tokens import SPECIALS, ByteCharVocab, WordVocab
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.learner import evaluate, bilm_learner, bilm_split, sentence_chars
from elmo_fastai.batches import SentenceDataLoader, EncodedText, ElmoDataLoaders
from elmo_fastai.elmo import Elmo
from elmo_fastai.tagger import elmo_tagger_learner
from elmo_fastai.classifier import ClassifyDataLoaders
from elmo_fastai.tagger import TagDataLoaders
from made import quietly
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/attention')
AttentionConfig, HideWords, same_size = study.AttentionConfig, study.HideWords, study.same_size

BASE = BiLMConfig('small', filters=((1, 8), (2, 8), (3, 16)), proj_dim=32, hidden_dim=32)
NEXT = [(n, d, 'next') for n in ('lstm', 'attention') for d in ('apart', 'one')]
MASKED = [(n, d, 'masked') for n in ('lstm', 'attention') for d in ('apart', 'meet')]
NETWORKS = NEXT + MASKED
PLACED = [('attention', d, g, p) for _,d,g in (NEXT[2:] + MASKED[2:]) for p in study.POSITIONS]
SENTS = ['the cat sat .', 'a very old dog sleeps on the mat .', 'yes', 'it rains again today']
VOCAB = WordVocab([*SPECIALS, *sorted({w for s in SENTS for w in s.split()})])
CHARS = ByteCharVocab(20)
each = pytest.mark.parametrize('how', NETWORKS, ids=' '.join)
each_placed = pytest.mark.parametrize('how', PLACED, ids=' '.join)

def test_other_files_refuse_these_networks_and_nonsense(tmp_path):
    for how in (MASKED[1], NEXT[1], NEXT[2]):
        lm = make(*how)
        with pytest.raises(ValueError, match='directions never meet'):
            Elmo(lm).to_ai2(tmp_path/'m')
        with pytest.raises(ValueError, match='LSTMs that never meet'):
            Elmo(lm, VOCAB).to_onnx(tmp_path/'m.onnx')
    with pytest.raises(ValueError, match='prior'):
        study.gap_nats(make(*NEXT[0]), chars_of('the cat sat .'), torch.ones(1, 6).long())

def test_a_frozen_classifier_trains_no_norms():
    from elmo_fastai.classifier import elmo_classifier_learner

    data = pd.DataFrame([(s, i % 2) for s in SENTS for i in (0, 1)]*4, columns=['text', 'label'])
    dls = ClassifyDataLoaders.from_df(data, char_vocab=CHARS, device='cpu')
    learn = elmo_classifier_learner(dls, Elmo(make(*NEXT[2]), VOCAB, char_vocab=CHARS))
    assert not learn.model.elmo.trainable

def make(network, depth, goal, positions='rotary', n=len(VOCAB), seed=0, **kwargs):
    set_seed(seed)
    config = same_size(replace(BASE, max_chars=20), network, depth, goal=goal, positions=positions,
                       **kwargs)
    model = config.model(n, CHARS).eval()
    if goal == 'masked' and n: nn.init.normal_(model.head.gap)
    return model

def chars_of(*sents, T=None):
    rows = [sentence_chars(CHARS, s.split()) for s in sents]
    T = T or max(map(len, rows))
    return torch.stack([F.pad(r, (0, 0, 0, T - len(r))) for r in rows])

def asked_of(how, words):
    "What a model is asked for, the same words in both directions"
    return (words,) if how[2] == 'masked' else (words, words)

# one layer

def test_padding_in_a_layer_as_pytorchs():
    "With the same weights; without padding the chapter compares them"
    set_seed(1)
    x, ours = torch.randn(3, 7, 32), study.Attention(32, 32, 4, causal=False)
    theirs = nn.MultiheadAttention(32, 4, bias=False, batch_first=True)
    theirs.in_proj_weight.data, theirs.out_proj.weight.data = (
        ours.qkv.weight.data, ours.out.weight.data)
    real = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    want = theirs(x, x, x, key_padding_mask=~real)[0]
    torch.testing.assert_close(ours(x, real)[real], want[real], atol=1e-6, rtol=1e-5)

def test_rotated_products_know_distances_only():
    q, k = torch.randn(2, 16)
    def fit(i, j):
        x = torch.zeros(1, 1, 12, 16)
        x[..., i,:], y = q, torch.zeros(1, 1, 12, 16)
        y[..., j,:] = k
        return study.rotate(x)[0, 0, i] @ study.rotate(y)[0, 0, j]
    torch.testing.assert_close(fit(2, 5), fit(7, 10))
    assert abs(fit(2, 5) - fit(2, 6)) > 1e-3
    torch.testing.assert_close(
        study.rotate(torch.ones(1, 1, 5, 8)).norm(dim=-1), torch.full((1, 1, 5), 8**0.5)
    )

def test_sinusoids_by_the_papers_formula():
    p = study.sinusoids(9, 6)
    for t,i in itertools.product(range(9), range(3)):
        angle = t/10_000**(2*i/6)
        assert abs(p[t, 2*i] - math.sin(angle)) < 1e-6 and abs(p[t, 2*i+1] - math.cos(angle)) < 1e-6

# who sees whom

def reach(model, T=6):
    "Is the derivative of the layers' states at t (row) by the vector at s anything but exactly 0?"
    x = torch.randn(1, T, 32, requires_grad=True)
    layers, _ = model.lstm(x)
    def row(d, t):
        (g,) = torch.autograd.grad(
            sum(l[d][0, t].square().sum() for l in layers), x, retain_graph=True
        )
        return (g[0] != 0).any(-1)
    return [torch.stack([row(d, t) for t in range(T)]) for d in (0, 1)]

@each_placed
def test_gradients_show_who_sees_whom(how):
    f, b = reach(make(*how))
    everything = torch.ones(6, 6).bool()
    if how[1] == 'meet': assert f.all() and b.all()
    else: assert torch.equal(f, everything.tril()) and torch.equal(b, everything.triu())

@pytest.mark.parametrize('how', MASKED, ids=' '.join)
def test_a_hidden_word_is_hidden(how):
    "Its letters change nothing; those of its neighbours do"
    model = make(*how)
    words = torch.zeros(1, 6, dtype=torch.long)
    words[0, 2] = VOCAB.o2i['cat']
    def nats(text): return model(chars_of(text), words)[0]
    def same(a, b): return torch.allclose(nats(a), nats(b), atol=1e-5)
    assert same('the cat sat .', 'the dog sat .')
    assert not same('the cat sat .', 'a cat sat .') and not same(
        'the cat sat .', 'the cat sleeps .')

def test_next_words_are_not_asked_of_layers_that_have_met():
    with pytest.raises(ValueError, match="goal='masked'"): same_size(BASE, depth='meet')
    meeting = make('attention', 'meet', 'masked')
    with pytest.raises(ValueError, match='have seen the answers'):
        BiLM.forward(meeting, chars_of('yes'), torch.ones(1, 3).long(), torch.ones(1, 3).long())

def test_without_positions_a_bag_of_words():
    "Both sides and no places: another order gives the same vectors in that order"
    model, x, order = (make('attention', 'meet', 'masked', 'none'), torch.randn(1, 6, 32),
                       torch.randperm(6))
    with torch.no_grad(): a, b = model.lstm(x)[0], model.lstm(x[:, order])[0]
    for p,q in zip(a, b):
        for h,g in zip(p, q): torch.testing.assert_close(h[:, order], g, atol=1e-5, rtol=1e-4)
    placed = make('attention', 'meet', 'masked', 'rotary')
    with torch.no_grad(): a, b = placed.lstm(x)[0][-1][0], placed.lstm(x[:, order])[0][-1][0]
    assert (a[:, order] - b).abs().max() > 1e-2

# padding, batches, order

def same(a, b): torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)

@each_placed
def test_padding_and_order_change_nothing(how):
    model = make(*how)
    with torch.no_grad():
        alone = [model.encode(chars_of(s)) for s in SENTS]
        for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
            together = model.encode(chars_of(*(SENTS[i] for i in order), T=14))
            for row,i in enumerate(order):
                n = alone[i][0][0].shape[1]
                for x,y in zip(alone[i], together):
                    for h,g in zip(x, y):
                        same(h[0], g[row,:n])
                        assert not g[row, n:].any()

@each
def test_padding_in_front_and_within_is_refused(how):
    model, row = make(*how), chars_of(SENTS[0])
    gap = torch.zeros_like(row[:,:2])
    for chars in (torch.cat([gap, row], 1), torch.cat([row[:,:3], gap, row[:, 3:]], 1)):
        words = torch.full(chars.shape[:2], 7)*(chars[..., 0] != 0)
        with pytest.raises(ValueError, match='padding before a token'): model.encode(chars)
        with pytest.raises(ValueError, match='padding before a token'):
            model(chars, *asked_of(how, words))

@each
def test_an_empty_row_spoils_nothing(how):
    "Nothing but padding in a row: zeros, and finite gradients"
    model, chars = make(*how), chars_of(*SENTS[:2])
    chars[1] = 0
    layers = model.encode(chars)
    assert all(not h[1].any() for both in layers for h in both)
    sum(h.sum() for both in layers for h in both).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)

@each
def test_in_an_elmo_a_sentence_has_the_same_vectors_in_any_company(how):
    elmo = Elmo(make(*how), VOCAB).eval()
    tokens = [s.split() for s in SENTS]
    vecs = elmo.embed(tokens, 'all')
    assert vecs[1].shape == (elmo.lm.config.n_layers + 1, 9, 64)
    for s,v in zip(tokens, vecs):
        same(torch.from_numpy(v), torch.from_numpy(elmo.embed([s], 'all')[0]))
        layers, mask = elmo.layers([s])
        same(torch.from_numpy(v), torch.stack(layers)[:, 0])

# size, groups, configuration

def weights(model): return sum(p.numel() for p in model.lstm.parameters() if p.requires_grad)

@pytest.mark.parametrize('how', NETWORKS, ids=' '.join)
def test_all_have_as_many_weights(how):
    base = replace(BASE, proj_dim=128, hidden_dim=128)
    model = same_size(base, *how[:2], goal=how[2]).model(10)
    assert abs(weights(model)/weights(BiLM(base, 10)) - 1) < .01

@each_placed
def test_groups_hold_every_weight_once(how):
    model = make(*how)
    ids = [id(p) for g in bilm_split(model) for p in g]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters() if p.requires_grad}
    elmo = Elmo(model, VOCAB).unfreeze()
    assert len(elmo.groups()) == model.config.n_layers + 1
    top = {id(p) for p in elmo.groups()[-1]}
    elmo.freeze().unfreeze(top=1)
    assert {id(p) for p in elmo.lm.parameters() if p.requires_grad} == top

@each_placed
def test_every_weight_learns(how):
    "None is left over from a network that it was made of"
    model, chars = make(*how).train(), chars_of(*SENTS)
    ids = torch.full(chars.shape[:2], 5)*(chars[..., 0] != 0)
    torch.cat(model(chars, *asked_of(how, ids))).mean().backward()
    idle = [k for k, p in model.named_parameters()
            if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert idle == ['chars.proj.bias']                                  # `TokenNorm` takes it away

@pytest.mark.parametrize('change,match', [
    (dict(positions='guessed'), "positions='guessed'"),
    (dict(depth='deep'), "depth='deep'"),
    (dict(goal='all'), "goal='all'"),
    (dict(network='rnn'), "network='rnn'"),
    (dict(heads=5), 'heads=5'),
    (dict(heads=-4), 'heads=-4'),
    (dict(longest=0), 'longest=0'),
    (dict(kind='other'), 'kind'),
    (dict(hidden_dim='64'), "hidden_dim='64'"),
    (dict(goal='masked', share_softmax=False), 'one output layer'),
    (dict(depth='meet'), "goal='masked'")])
def test_a_configuration_that_cannot_be(change, match):
    settings = vars(make(*NEXT[2]).config)
    assert vars(AttentionConfig.from_dict(settings)) == settings
    with pytest.raises(ValueError, match=match):
        AttentionConfig.from_dict(settings | change)

# what attention has not

def test_attention_carries_nothing():
    model = make(*NEXT[2])
    state = make(*NEXT[0]).lstm.init_state(1)
    asked = [model.lstm.init_state,                     # by `CarryState`, too
             lambda: Elmo(model, carry=True)([['yes']]),
             lambda: make(*MASKED[3]).encode_state(chars_of('yes')),
             lambda: Elmo(model).embed([['yes']*50], budget=20),
             *(lambda how=how: make(*how).lstm(torch.randn(1, 3, 32), state=state)
               for how in (NEXT[2], NEXT[3], MASKED[1], MASKED[3]))]
    for f in asked:
        with pytest.raises(ValueError, match='carries no state'): f()

def test_learned_places_end_somewhere():
    model = make('attention', 'apart', 'next', 'learned', longest=8)
    model.encode(chars_of('a b c d e f'))
    with pytest.raises(ValueError, match='9 tokens in a row, and this model has learned 8'):
        model.encode(chars_of('a b c d e f g'))

# hidden words

@pytest.fixture(scope='module')
def toy():
    corpus = toy_corpus(n_train=1500, n_valid=100, n_test=1, n_unseen=1)
    return corpus, ElmoDataLoaders.from_corpus(
        corpus, kind='sentences', bs=32, seed=1, device='cpu')

def test_words_of_a_batch(toy):
    _, dls = toy
    chars, nexts, _ = dls.valid.one_batch()
    for row,words in zip(chars, study.words_of(nexts)):
        tokens = dls.char_vocab.decode(row[row[:, 0] != 0])[1:-1]
        assert words[1:len(tokens)+1].tolist() == [*dls.vocab.encode(tokens)]
        assert not words[0] and not words[len(tokens)+1:].any()

class Fake:
    "What a callback sees of a learner"
    def __init__(self, xb, training): self.xb, self.training, self.learn = xb, training, self

def hidden(batch, share, training=True):
    cb, fake = HideWords(share), Fake(batch, training)
    cb.learn = fake
    cb.before_batch()
    assert torch.equal(fake.xb[0], batch[0])
    return fake.xb[1]

def test_a_share_of_the_words_is_hidden(toy):
    batch = toy[1].valid.one_batch()
    words = study.words_of(batch[1])
    picks = [hidden(batch, .3) for _ in range(20)]
    for p in picks: assert ((p == words) | (p == 0)).all()
    share = sum((p != 0).sum() for p in picks)/(20*(words != 0).sum())
    assert .25 < share < .35
    assert any(not torch.equal(picks[0], p) for p in picks[1:])
    assert torch.equal(hidden(batch, .3, False), hidden(batch, .3, False))
    # never none at all
    assert (hidden(batch, 1e-9) != 0).sum() == 1
    empty = [o[:,:2]*0 for o in batch]
    assert not hidden(empty, .3).any()

def test_in_training_some_stay_and_some_are_others():
    model = make(*MASKED[3]).train()
    x = torch.arange(4000.)[:, None].expand(-1, 32).view(40, 100, 32) + 10
    asked = torch.ones(40, 100).long()
    asked[:,::2] = 0
    set_seed(0)
    y = model.hide(x, asked)
    assert torch.equal(y[:,::2], x[:,::2])
    y, x = y[:, 1::2], x[:, 1::2]
    gap, stay = (y == model.head.gap).all(-1).float().mean(), (y == x).all(-1).float().mean()
    assert .77 < gap < .83 and .08 < stay < .12
    assert (model.eval().hide(x, asked[:, 1::2]) == model.head.gap).all()

def test_a_masked_model_has_no_perplexity(toy):
    _, dls = toy
    model = same_size(BASE, 'attention', 'meet', goal='masked').model(len(dls.vocab))
    with pytest.raises(ValueError, match='cbs=HideWords'): evaluate(model, dls.valid)

@pytest.mark.parametrize('how', [*MASKED[2:], NEXT[2]], ids=' '.join)
def test_gap_perplexity_word_by_word(how, toy):
    corpus, dls = toy
    set_seed(0)
    model = same_size(BASE, *how[:2], goal=how[2]).model(len(dls.vocab), dls.char_vocab).eval()
    prior, nats = dls.log_frequencies(), []
    sents = [s.tokens for s in corpus.gold['valid'][:6]]
    with torch.no_grad():
        for s in sents:
            chars = sentence_chars(dls.char_vocab, s)[None]
            for t,w in enumerate(dls.vocab.encode(s), 1):
                if how[2] == 'masked':
                    asked = torch.zeros(1, len(s)+2).long()
                    asked[0, t] = w
                    nats.append(model(chars, asked)[0].item())
                else:
                    f, b = model.encode(chars)[-1]
                    p = model.head.log_prob(f[:, t-1]) + model.head.log_prob(b[:, t+1]) - prior
                    nats.append(-p.log_softmax(-1)[0, w].item())
    dl = SentenceDataLoader(EncodedText(sents, dls.types), bs=4)
    assert abs(study.gap_perplexity(model, dl, prior)/math.exp(sum(nats)/len(nats)) - 1) < 1e-4

def test_gap_floor_tries_every_word():
    corpus = toy_corpus(n_train=1, n_valid=3, n_test=1, n_unseen=1, seed=5)
    nats, n, g = 0., 0, corpus.grammar
    for s in corpus.gold['valid']:
        for t in range(len(s.tokens)):
            fits = torch.tensor([g.logp([*s.tokens[:t], w, *s.tokens[t+1:]]) for w in g.vocab],
                                dtype=torch.float64)
            nats, n = nats + fits.logsumexp(0).item() - s.logp, n + 1
    assert abs(study.gap_floor(corpus) - math.exp(nats/n)) < 1e-6
    assert study.gap_floor(corpus) < corpus.floor('valid')

# trained

@each
def test_learns(how, toy):
    _, dls = toy
    set_seed(3)
    config = same_size(BASE, *how[:2], goal=how[2])
    learn = bilm_learner(dls, config, bf16=False, from_counts=False,
                         cbs=HideWords(0.3) if how[2] == 'masked' else None)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    losses = learn.recorder.losses
    first, last = (sum(map(float, o))/10 for o in (losses[:10], losses[-10:]))
    assert last < first - .8
    assert learn.recorder.metric_names[2:4] == ['valid_loss', 'perplexity_fwd']

def test_tagger_on_every_backbone(toy):
    corpus, dls = toy
    tags = TagDataLoaders.from_sents(
        corpus.gold['train'][:60], corpus.gold['valid'][:20], device='cpu'
    )
    for how in NETWORKS:
        lm = same_size(BASE, *how[:2], goal=how[2]).model(len(dls.vocab), dls.char_vocab)
        learn = elmo_tagger_learner(tags, Elmo(lm, dls.vocab), words=0, hidden=16)
        quietly(learn, 'fit', 1, 1e-2)
        assert len(learn.predict('the old bank')[0]) == 3

