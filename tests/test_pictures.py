"Pictures of the inside: what is drawn is what is there; gates step by step; changed words"
import matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plt, numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from torch import nn

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, sentence_chars
from elmo_fastai.elmo.module import Elmo, ScalarMix
from elmo_fastai.studies.probe import Tokens
from pages import page

study = page('studies/pictures')
change_words, draw_gates, draw_plane, fit_shares = study.change_words, study.draw_gates, study.draw_plane, study.fit_shares
gates, misspell, similarity = study.gates, study.misspell, study.similarity

@pytest.fixture(autouse=True)
def no_figure_stays(): yield; plt.close('all')

def make(**kw):
    torch.manual_seed(0)
    lm = BiLM(BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), **{**dict(proj_dim=8, hidden_dim=12), **kw}), 0)
    for p in lm.parameters(): p.data.mul_(2)
    return Elmo(lm, tokenizer='space').eval()

def made(counts=(20, 15), words=('bank', 'bat'), D=10, seed=0):
    rng = np.random.default_rng(seed)
    rows = [(w, f'{w}/{i}') for w in words for i,n in enumerate(counts) for _ in range(n)]
    v = .1*rng.normal(size=(len(rows), 3, D))
    for r,(w,s) in enumerate(rows): v[r, 1, int(s[-1])] += 3; v[r, 0] = len(w)
    return Tokens(np.array([w for w,_ in rows], object), np.array([s for _,s in rows]), np.arange(len(rows)), v.astype(np.float32))

# planes

@pytest.mark.parametrize('layer', [0, 1, 2])
def test_planes_have_a_cloud_a_sense(layer):
    fig,ax = plt.subplots()
    draw_plane(ax, made(), 'bank', layer)
    assert sorted(len(c.get_offsets()) for c in ax.collections) == [15, 20] and 'bank' in ax.get_title() and str(layer) in ax.get_title()
    assert all(np.isfinite(np.asarray(c.get_offsets())).all() for c in ax.collections)
    if layer == 1:
        a,b = (np.asarray(c.get_offsets())[:, 0] for c in ax.collections)
        assert max(a.min(), b.min()) > min(a.max(), b.max())              # parted by the first component
    fig.canvas.draw()

@pytest.mark.parametrize('tokens,word,why', [(made(), 'cat', "'cat' has 0"), (made((1, 1)), 'bank', 'has 2 occurrences')])
def test_planes_that_can_not_be(tokens, word, why):
    _,ax = plt.subplots()
    with pytest.raises(CorpusError, match=why): draw_plane(ax, tokens, word, 1)

def test_many_senses_look_different():
    _,ax = plt.subplots()
    draw_plane(ax, made((2,)*12), 'bank', 1)
    assert len({(c.get_facecolor().tobytes(), c.get_paths()[0].vertices.tobytes()) for c in ax.collections}) == 12

# shares

def test_a_task_takes_the_layer_that_knows():
    for l in (0, 1, 2):
        t = made((60, 60), ('bank',))
        t.vectors = np.random.default_rng(1).normal(size=t.vectors.shape).astype(np.float32)
        t.vectors[:, l, :5] += np.where(t.labels == 'bank/0', 2, -2)[:, None]
        s = fit_shares(t, epochs=20).shares
        assert s.argmax() == l and s[l] > .45
    a, b = (fit_shares(made(), 2).shares.detach() for _ in range(2))
    assert torch.allclose(a, b, atol=1e-5)

# gates

@pytest.mark.parametrize('layer', [1, 2])
@pytest.mark.parametrize('direction', ['forward', 'backward'])
@pytest.mark.parametrize('kw', [{}, dict(residual=False), dict(hidden_dim=8), dict(share_encoder=False)], ids=str)
def test_gates_are_those_of_the_steps(layer, direction, kw):
    elmo, tokens = make(**kw), 'the old bank of the river'.split()
    found, back = gates(elmo, tokens, layer, direction), direction == 'backward'
    lstm = (elmo.lm.lstm.bwd if back else elmo.lm.lstm.fwd)[layer-1]
    with torch.no_grad():
        x = elmo.lm.encode(sentence_chars(elmo.char_vocab, tokens)[None])[layer-1][back][0]
        x = x.flip(0) if back else x
        h,c,rows = torch.zeros(1, 8), torch.zeros(1, elmo.lm.config.hidden_dim), []
        for x_t in x:
            z = nn.functional.linear(x_t[None], lstm.weight_ih_l0, lstm.bias_ih_l0 + lstm.bias_hh_l0) + nn.functional.linear(h, lstm.weight_hh_l0)
            i,f,g,o = z.chunk(4, -1); i,f,o = i.sigmoid(), f.sigmoid(), o.sigmoid()
            c = f*c + i*g.tanh(); h = o*c.tanh()
            if lstm.proj_size: h = nn.functional.linear(h, lstm.weight_hr_l0)
            rows.append(torch.stack([i, f, o]))
    rows = torch.cat(rows, 1)
    rows = rows.flip(1) if back else rows
    for k,v in zip(('input', 'forget', 'output'), rows): np.testing.assert_allclose(found[k], v, atol=1e-5)
    assert found['tokens'] == ['<s>', *tokens, '</s>'] and not elmo.training

def test_gates_of_what_has_none():
    elmo = make()
    for kw,why in ((dict(layer=0), 'no gates'), (dict(layer=3), 'LSTM layers are 1 to 2'), (dict(layer=-1), 'layer=-1'), (dict(direction='left'), "'left'")):
        with pytest.raises(ValueError, match=why): gates(elmo, 'a b', **kw)
    assert gates(elmo, [])['forget'].shape == (2, 12)
    elmo.train(); gates(elmo, 'a b'); assert elmo.training
    _,ax = plt.subplots()
    draw_gates(ax, gates(elmo, 'a b'), 'input')

# similarity

def test_similarities_are_cosines():
    elmo = make()
    cos = similarity(elmo, 'the bank the', ['a', 'bank'], 0)
    assert cos.shape == (3, 2) and list(cos.index) == ['the', 'bank', 'the'] and cos.values[1, 1] == pytest.approx(1, abs=1e-5)
    x, y = elmo.embed(['the bank the', 'a bank'], 2)
    np.testing.assert_allclose(similarity(elmo, 'the bank the', 'a bank').values, (x/np.linalg.norm(x, axis=1, keepdims=True)) @ (y/np.linalg.norm(y, axis=1, keepdims=True)).T, atol=1e-5)
    with pytest.raises(ValueError, match='layers=9'): similarity(elmo, 'a', 'b', 9)

# changed words

@settings(max_examples=200, deadline=None)
@given(st.text('abcdefgh', max_size=12), st.integers(0, 10**6))
def test_one_typing_error(word, seed):
    got = misspell(word, np.random.default_rng(seed))
    assert got[:1] == word[:1] and abs(len(got) - len(word)) <= 1
    assert (got == word) == (len(word) < 3)

CHANGES = {'typing error': lambda w, tag, rng: misspell(w, rng), 'CAPITALS': lambda w, tag, rng: w.upper()}

@pytest.mark.parametrize('how', CHANGES.values(), ids=CHANGES)
def test_a_share_of_the_words_is_changed(how):
    data = toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).gold['train']
    before = [(s.tokens, s.tags) for s in data]
    n = sum(w.isalpha() and len(w) > 2 for s in data for w in s.tokens)
    for share in (0, .3, 1):
        after = change_words(data, how, share)
        assert [t for _,t in after] == [t for _,t in before] and [len(s) for s,_ in after] == [len(s) for s,_ in before]
        changed = sum(a != b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u) if len(a) > 2)
        assert abs(changed/n - share) < .06 and (share == 0) == (changed == 0)
    assert all(a == b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u) if not a.isalpha())
    assert change_words(data, how, .5) == change_words(data, how, .5) != change_words(data, how, .5, seed=1)

def test_changes_of_ones_own():
    with pytest.raises(CorpusError, match='2 tokens and 1'): change_words([(['a', 'b'], ['X'])], CHANGES['CAPITALS'])
    assert change_words([(['ab'], ['X'])], lambda w,t,rng: w+t) == [(['abX'], ['X'])]
