"Pictures of the inside: what is drawn is what is there; gates step by step; sliders where somebody is; changed words"
import sys, types
import matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plt, numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from torch import nn

from elmo_fastai.studies import pictures as module
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, sentence_chars
from elmo_fastai.elmo.module import Elmo, ScalarMix
from elmo_fastai.tasks.cbow import WordVectors
from elmo_fastai.studies.pictures import (
    LinearTagger, change_words, draw_gates, draw_plane, draw_shares, draw_similarity, explore,
    fit_shares, gates, misspell, robustness, similarity, static_features)
from elmo_fastai.studies.probe import Tokens

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
    return Tokens(np.array([w for w,_ in rows], object), np.array([s for _,s in rows]), np.arange(len(rows)), v.astype(np.float32), [0, 1, 2])

# planes

@pytest.mark.parametrize('how', ['pca', 'tsne'])
@pytest.mark.parametrize('layer', [0, 1, 2])
def test_planes_have_a_cloud_a_sense(how, layer):
    fig,ax = plt.subplots()
    draw_plane(ax, made(), 'bank', layer, how)
    assert sorted(len(c.get_offsets()) for c in ax.collections) == [15, 20] and 'bank' in ax.get_title() and str(layer) in ax.get_title()
    assert all(np.isfinite(np.asarray(c.get_offsets())).all() for c in ax.collections)
    if layer == 1 and how == 'pca':
        a,b = (np.asarray(c.get_offsets())[:, 0] for c in ax.collections)
        assert max(a.min(), b.min()) > min(a.max(), b.max())              # parted by the first component
    fig.canvas.draw()

@pytest.mark.parametrize('tokens,word,kw,why', [(made(), 'cat', {}, "'cat' has 0"), (made((1, 1)), 'bank', {}, 'has 2 occurrences'), (made((2,)*6), 'bank', {}, '6 senses'), (made(), 'bank', dict(how='x'), "how='x'")])
def test_planes_that_can_not_be(tokens, word, kw, why):
    _,ax = plt.subplots()
    with pytest.raises(CorpusError, match=why): draw_plane(ax, tokens, word, 1, **kw)

# slider

def test_nobody_is_there_in_a_test(): assert not module.somebody_there()

@pytest.mark.parametrize('live', [None, False])
def test_without_a_person_a_row_of_pictures(live):
    seen = []
    fig = explore(lambda ax, v: seen.append(v), range(4), live=live)
    assert seen == [0, 1, 2, 3] and len(fig.axes) == 4

def test_a_person_gets_a_slider(monkeypatch):
    pytest.importorskip('ipywidgets')
    monkeypatch.setattr(module, 'somebody_there', lambda: True)
    seen = []
    w = explore(lambda ax, v: seen.append(v), (1, 5), 'depth')
    [slider] = [c for c in w.children if hasattr(c, 'options')]
    slider.value = 5
    assert slider.description == 'depth' and seen[-1] == 5

def test_without_ipywidgets_a_row_of_pictures(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    assert len(explore(lambda ax, v: None, range(2), live=True).axes) == 2

def test_who_is_there_is_asked_of_the_kernel(monkeypatch):
    IPython = pytest.importorskip('IPython')
    for kernel,there in ((types.SimpleNamespace(_allow_stdin=True), True), (types.SimpleNamespace(_allow_stdin=False), False), (None, False)):
        monkeypatch.setattr(IPython, 'get_ipython', lambda: types.SimpleNamespace(kernel=kernel))
        assert module.somebody_there() == there

# shares

def test_a_task_takes_the_layer_that_knows():
    for l in (0, 1, 2):
        t = made((60, 60), ('bank',))
        t.vectors = np.random.default_rng(1).normal(size=t.vectors.shape).astype(np.float32)
        t.vectors[:, l, :5] += np.where(t.labels == 'bank/0', 2, -2)[:, None]
        s = fit_shares(t, epochs=20).shares
        assert s.argmax() == l and s[l] > .45
    a, b = (fit_shares(made(), 2).shares.detach() for _ in range(2))
    assert torch.equal(a, b)
    with pytest.raises(CorpusError, match='one label'): fit_shares(made((9,), ('bank',)))

def test_shares_are_drawn():
    ax = draw_shares(dict(a=ScalarMix(3, shares=(.2, .3, .5)), b=ScalarMix(3)))
    assert np.allclose([p.get_width() for p in ax.patches], [.2, 1/3, .3, 1/3, .5, 1/3]) and [t.get_text() for t in ax.get_yticklabels()] == ['a', 'b']

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
        with pytest.raises(CorpusError, match=why): gates(elmo, 'a b', **kw)
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
    fig,ax = plt.subplots(); draw_similarity(ax, cos); fig.canvas.draw()
    with pytest.raises(CorpusError, match='without tokens'): similarity(elmo, 'a', [])
    with pytest.raises(CorpusError, match='no layer 9'): similarity(elmo, 'a', 'b', 9)

# changed words

@settings(max_examples=200, deadline=None)
@given(st.text('abcdefgh', max_size=12), st.integers(0, 10**6))
def test_one_typing_error(word, seed):
    got = misspell(word, np.random.default_rng(seed))
    assert got[:1] == word[:1] and abs(len(got) - len(word)) <= 1
    assert (got == word) == (len(word) < 3)

@pytest.mark.parametrize('how', [*module.CHANGES])
def test_a_share_of_the_words_is_changed(how):
    data = toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).gold['train']
    before = [(s.tokens, s.tags) for s in data]
    n = sum(w.isalpha() for s in data for w in s.tokens)
    for share in (0, .3, 1):
        after = change_words(data, how, share)
        assert [t for _,t in after] == [t for _,t in before] and [len(s) for s,_ in after] == [len(s) for s,_ in before]
        changed = sum(a != b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u))
        assert changed <= n and (share == 0) == (changed == 0) and (how != 'CAPITALS' or abs(changed/n - share) < .06)
    assert all(a == b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u) if not a.isalpha())
    assert change_words(data, how, .5) == change_words(data, how, .5) and (how == 'x' or change_words(data, how, .5) != change_words(data, how, .5, seed=1))

def test_changes_that_are_none():
    with pytest.raises(CorpusError, match="'typing error'"): change_words([(['a'], ['X'])], 'nonsense')
    with pytest.raises(CorpusError, match='2 tokens and 1'): change_words([(['a', 'b'], ['X'])], 'CAPITALS')
    assert change_words([(['ab'], ['X'])], lambda w,t,rng: w+t) == [(['abX'], ['X'])]

def test_words_that_a_table_lacks_cost_a_table():
    rng = np.random.default_rng(0)
    words = {w: t for t,ws in dict(A='red blue', B='dog cat', C='runs sits').items() for w in ws.split()}
    table = WordVectors([*words], rng.normal(size=(6, 8)))
    data = [([w, 'dog'], [t, 'B']) for w,t in words.items()]*8
    feats = static_features(table, 1)
    assert feats([['red', 'zzz'], []])[0].shape == (2, 24) and not feats([['zzz']])[0].any() and feats([['red', 'zzz'], []])[1].shape == (0, 24)
    np.testing.assert_allclose(feats([['red', 'dog']])[0], [np.concatenate([np.zeros(8), table['red'], table['dog']]), np.concatenate([table['red'], table['dog'], np.zeros(8)])], rtol=1e-6)
    curve = robustness({'table': LinearTagger(static_features(table, 0)).fit(data)}, data, 'CAPITALS', shares=(0, .5, 1), seeds=1)['table']
    assert curve[0] == 1 and curve[0] > curve[.5] > curve[1]
