"Embedding lists, streams and long texts; which words moved a vector; vectors in scikit-learn"
import pickle, shutil
from concurrent.futures import ThreadPoolExecutor

import datasets, numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.practice.embed import ElmoVectorizer, load_elmo
from made import close, direct, lasting, same

@pytest.fixture()
def elmo(): return lasting()

# lists

@pytest.mark.parametrize('layers', ['mix', 'all', 0, 2, np.int64(-1)])
@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(cell_clip=0.5, proj_clip=0.3, n_layers=3)], ids=str)
def test_vectors_are_the_modules(texts, layers, cfg):
    elmo = lasting(cfg=cfg, shares=range(1, cfg.get('n_layers', 2) + 2), gamma=1.3)
    got = elmo.embed(texts[:30], layers)
    assert (same(got, [direct(elmo, word_tokenize(t), layers) for t in texts[:30]])
            and got[0].dtype == np.float32 and type(got[0]) is np.ndarray)

@settings(max_examples=20)
@given(st.lists(st.lists(st.text(max_size=5), max_size=9), max_size=8), st.integers(3, 60),
       st.sampled_from(['mix', 'all', 1]), st.sampled_from([None, 'mean', 'max', 'first_last']))
def test_budget_order_and_company_change_nothing(sents, budget, layers, pool):
    elmo = lasting()
    got = elmo.embed(sents, layers, pool, budget=budget)
    assert len(got) == len(sents)
    for s, v in zip(sents, got):
        h = direct(elmo, s, layers)
        P = h.shape[-1]//2
        ends = [h[..., -1, :P], h[..., 0, P:]] if s else []
        how = dict(mean=lambda: h.mean(-2), max=lambda: h.max(-2),
                   first_last=lambda: np.concatenate(ends, -1))
        if pool and not s: h = np.zeros((*h.shape[:-2], 2*P), np.float32)
        elif pool: h = how[pool]()
        assert close(v, h)

DF = pd.DataFrame({'id': [1, 2], 'text': ['the bank', 'a river']})
ROWS = datasets.Dataset.from_pandas(DF)

def test_lists_and_columns_of_every_kind_are_sentences(elmo):
    ref = elmo.embed([*DF.text])
    for sents in (DF.text, DF['text'].to_numpy(), ROWS['text'], (r['text'] for r in ROWS),
                  DF.text.astype('category'), map(word_tokenize, DF.text),
                  pd.Series(DF.text.values, index=['columns', 'ndim'])):
        assert same(elmo.embed(sents), ref)
    assert elmo.embed([]) == [] and elmo.embed([], pool='mean').shape == (0, 16)
    assert elmo.embed([], 'all', 'max', dtype='float16').dtype == np.float16
    assert elmo.embed([], 'all', 'max').shape == (0, 3, 16)
    assert elmo.embed([[], ['a']], 'all')[0].shape == (3, 0, 16)

@pytest.mark.parametrize('kw', [
    dict(layers=3), dict(layers=-4), dict(pool='sum'), dict(dtype='int8'), dict(budget=9.5)],
    ids=str)
def test_settings_that_can_not_be(elmo, kw):
    with pytest.raises(ValueError, match=next(iter(kw))): elmo.embed(['a'], **kw)
    with pytest.raises(ValueError): elmo.embed_iter(iter(['a']), **kw)       # at once

def test_batch_norm_needs_company():
    elmo = lasting(norm='batch')
    with pytest.raises(ValueError, match='batch-mates'): elmo.embed(['a'])
    assert elmo.embed(['a'], 'all')[0].shape == (3, 1, 16)

def test_types_of_results(elmo):
    ref = elmo.embed(['a b c'])
    for dtype in ('float16', torch.float16, np.float16().dtype):
        h = elmo.embed(['a b c'], dtype=dtype)[0]
        assert h.dtype == np.float16 and close(h.astype(np.float32), ref[0], 5e-3)
    assert close(elmo.embed(['a b c'], bf16=True)[0], ref[0], .1)

def test_the_model_stays_as_it_is(texts):
    "Modes of its parts, and the state that it carries"
    elmo = lasting(carry=True).unfreeze(top=1).train()
    elmo.lm.drop.training = True
    elmo([['a', 'b']])
    state, modes = elmo.state[0].clone(), [m.training for m in elmo.modules()]
    assert same(elmo.embed(texts[:5]), elmo.embed(texts[:5]), 0)
    with pytest.raises(TypeError): elmo.embed(['a', 3])
    assert torch.equal(elmo.state[0], state) and [m.training for m in elmo.modules()] == modes

def test_streams_hold_little(elmo, texts):
    "A generator is read a portion ahead, and no more; the weights are those of each portion's time"
    read = []
    def endless():
        while True: read.append(texts[len(read) % len(texts)]); yield read[-1]
    out = elmo.embed_iter(endless(), budget=16)
    for i in range(50): assert close(next(out), elmo.embed([texts[i % len(texts)]])[0])
    assert len(read) < 50 + 8*16
    for w in elmo.lm.parameters(): w.data.mul_(.9)
    for _ in range(8*16): last = next(out)
    assert any(close(last, elmo.embed([text])[0]) for text in texts)

def test_models_by_their_names(elmo, tmp_path):
    elmo.save_pretrained(tmp_path/'m')
    elmo.to_ai2(tmp_path/'ai2')
    for name in (tmp_path/'m', f"ai2:{tmp_path/'ai2'}"):
        assert same(load_elmo(name, tokenizer='space').embed(['the bank'], 'all'),
                    elmo.embed(['the bank'], 'all'))

# long texts

@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(n_layers=3, hidden_dim=8, residual=False),
    dict(cell_clip=0.5, proj_clip=0.3)], ids=str)
def test_pieces_equal_one_pass(cfg):
    elmo, rng = lasting(cfg=cfg), np.random.default_rng(0)
    for n, budgets in ((30, (3, 16, 32)), (31, (16, 32, 33)), (32, (33, 34)), (100, (7, 64))):
        tokens = [str(o) for o in rng.integers(0, 50, n)]
        whole = elmo.embed([tokens], 'all', budget=10**6)[0]
        assert close(whole, direct(elmo, tokens))
        for budget in budgets:
            assert close(elmo.embed([tokens], 'all', budget=budget)[0], whole)
            for pool in ('mean', 'max', 'first_last')*(n == 31):
                assert close(*(elmo.embed([tokens], 'mix', pool, budget=b)[0]
                               for b in (10**6, budget)))

# what moved a vector

@pytest.mark.parametrize('layers', ['mix', 'all', 1])
def test_influence_is_that_of_leaving_a_word_out(elmo, layers):
    tokens = 'the old bank of the river'.split()
    names = range(3) if layers == 'all' else [layers]
    table = elmo.influence(tokens, 2, layers)
    assert list(table.index) == tokens and list(table) == list(names)
    for name in names:
        whole = direct(elmo, tokens, name)[2]
        for i in range(len(tokens)):
            v = direct(elmo, tokens[:i] + tokens[i+1:], name)[2 - (i < 2)]
            cosine = whole @ v/np.linalg.norm(whole)/np.linalg.norm(v)
            assert table[name].iloc[i] == pytest.approx(0 if i == 2 else 1 - cosine, abs=1e-5)

def test_words_that_are_not_there(elmo):
    for position in (-1, 2):
        with pytest.raises(ValueError, match='no word'): elmo.influence('the bank', position)
    assert elmo.influence('bank', 0).to_numpy().tolist() == [[0]]

# threads

def test_threads_embed_what_one_thread_embeds(elmo):
    "From a cold start; short texts that share few words"
    rng = np.random.default_rng(1)
    def word(): return ''.join(rng.choice(list('abcdefghijklmnop'), size=rng.integers(2, 9)))
    texts = [' '.join(word() for _ in range(4)) for _ in range(100)]
    wanted = [elmo.embed([text])[0] for text in texts]
    cold = lasting()
    with ThreadPoolExecutor(8) as pool:
        assert same(pool.map(lambda text: cold.embed([text])[0], texts), wanted)
    assert same(cold.embed(texts), wanted)

# scikit-learn

def test_a_grid_search_over_one_model(elmo, texts):
    y = [int('the' in text.split()) for text in texts[:60]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    grid = dict(elmovectorizer__layers=[0, 'mix', 'all'], elmovectorizer__pool=['mean', 'max'])
    search = GridSearchCV(pipe, grid, cv=2, error_score='raise').fit(texts[:60], y)
    assert search.best_params_.keys() == grid.keys() and search.best_estimator_[0].elmo_ is elmo
    again = pickle.loads(pickle.dumps(search))
    assert (again.predict(texts[:60]) == search.predict(texts[:60])).all()

def test_values(elmo, texts):
    v = ElmoVectorizer(elmo, layers='all', pool='max').fit(texts[:10])
    vectors = v.transform(texts[:10])
    assert close(vectors, elmo.embed(texts[:10], 'all', 'max').reshape(10, 48))
    assert len(v.get_feature_names_out()) == 48 and v.transform([]).shape == (0, 48)
    frame = ElmoVectorizer(elmo).set_output(transform='pandas').fit_transform(texts[:4])
    assert isinstance(frame, pd.DataFrame) and frame.shape == (4, 16)

def test_a_model_by_its_name(elmo, texts, tmp_path):
    folder = elmo.save_pretrained(tmp_path/'m')
    v = ElmoVectorizer(str(folder)).fit(texts)
    assert close(v.transform(texts[:5]), elmo.embed(texts[:5], pool='mean'))
    assert ElmoVectorizer(str(folder)).fit(texts).elmo_ is not v.elmo_          # nothing is shared
    shutil.rmtree(folder)                                        # what was fitted needs no folder
    assert close(pickle.loads(pickle.dumps(v)).transform(texts[:5]), v.transform(texts[:5]))

@pytest.mark.parametrize('settings,x,says', [
    (dict(model=None), ['a'], 'needs a model'), (dict(pool=None), ['a'], 'pool'),
    (dict(layers=9), ['a'], 'layers'), ({}, 'text', 'put it into a list'),
    ({}, pd.DataFrame(dict(text=['a'])), 'one column'),
    ({}, pd.Series(['a', None]), 'Sentence 1.*fillna')], ids=str)
def test_what_is_refused(elmo, settings, x, says):
    with pytest.raises((ValueError, TypeError), match=says):
        ElmoVectorizer(**dict(model=elmo) | settings).fit(x).transform(x)

