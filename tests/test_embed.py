"""Embedding lists, streams and long texts; the cache; scikit-learn and pandas; and the command with
right and wrong input, killed and interrupted"""

import copy, io, json, os, pickle, re, resource, shutil, signal, subprocess, sys, threading, time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py, numpy as np, pandas as pd, pyarrow.parquet as pq, pytest, torch
from hypothesis import given, settings, strategies as st
from fastai.torch_core import set_seed

from elmo_fastai.elmo import file as module
from elmo_fastai.base.errors import CommandError
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.text.tokens import DROPPED, SPECIALS, WordVocab, word_tokenize
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.file import embed_file
from elmo_fastai.tasks.embed import embed_command_line, elmo_embed
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.elmo.vectorizer import ElmoVectorizer

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=8, hidden_dim=12)
VOCAB = WordVocab([*SPECIALS, 'the', 'bank'])

def make(seed=0, cfg={}, **kw):
    set_seed(seed)
    lm = BiLM(replace(CFG, **cfg), len(VOCAB))
    for p in lm.parameters(): p.data.mul_(1.5)                          # states that last
    return Elmo(lm, VOCAB, **kw).eval()

@pytest.fixture()
def elmo(): return make()

@pytest.fixture(scope='module')
def texts(): return toy_corpus(n_train=400, n_valid=1, n_test=1, n_unseen=1).train

def close(a, b, eps=1e-5):
    return a.shape == b.shape and np.allclose(np.asarray(a), np.asarray(b), atol=eps, rtol=0)


def all_close(a, b, eps=1e-5):
    return len(a) == len(b) and all(close(x, y, eps) for x, y in zip(a, b))


def direct(elmo, tokens, layers='all'):
    "One sentence by the module itself"
    hs, _ = elmo.layers([tokens])
    h = (torch.stack(hs, 1)[0] if layers == 'all' else elmo.mixes[0](hs)[0] if layers == 'mix'
         else hs[layers][0])
    return h.detach().numpy()

# lists

@pytest.mark.parametrize('layers', ['mix', 'all', 0, 2, -1])
@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(cell_clip=0.5, proj_clip=0.3, n_layers=3)], ids=str)
def test_vectors_are_the_modules(texts, layers, cfg):
    elmo = make(cfg=cfg, shares=range(1, cfg.get('n_layers', 2) + 2), gamma=1.3)
    got = elmo.embed(texts[:30], layers)
    assert (all_close(got, [direct(elmo, word_tokenize(t), layers) for t in texts[:30]])
            and got[0].dtype == np.float32 and type(got[0]) is np.ndarray)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.text(max_size=5), max_size=9), max_size=8),
    st.integers(3, 60),
    st.sampled_from(['mix', 'all', 1]),
    st.sampled_from([None, 'mean', 'max', 'first_last']),
)
def test_budget_order_and_company_change_nothing(sents, budget, layers, pool):
    elmo = make()
    got = elmo.embed(sents, layers, pool, budget=budget)
    assert len(got) == len(sents)
    for s, v in zip(sents, got):
        h = direct(elmo, s, layers)
        if pool:
            P = h.shape[-1] // 2
            h = (np.zeros((*h.shape[:-2], 2 * P), np.float32) if not s else h.mean(-2)
                 if pool == 'mean' else h.max(-2) if pool == 'max'
                 else np.concatenate([h[..., -1, :P], h[..., 0, P:]], -1))
        assert close(v, h)

def test_kinds_of_input(elmo, texts):
    ref = elmo.embed(texts[:20])
    assert all_close(elmo.embed(t for t in texts[:20]), ref) and all_close(
        elmo.embed(pd.Series(texts[:20], index=range(5, 25))), ref)
    assert all_close(elmo.embed(np.array(texts[:20], dtype=object)), ref) and all_close(
        elmo.embed([word_tokenize(t) for t in texts[:20]]), ref)
    assert (elmo.embed([]) == [] and elmo.embed([], pool='mean').shape == (0, 16)
            and elmo.embed([], 'all', 'max').shape == (0, 3, 16))
    assert (elmo.embed([[], ['a']], 'all')[0].shape == (3, 0, 16)
            and not elmo.embed([[]], pool='mean').any())


DF = pd.DataFrame({'id': [1, 2], 'text': ['the bank', 'a river']})

def frames():
    import datasets, pyarrow as pa
    rows = datasets.Dataset.from_pandas(DF)
    return dict(frame=DF, arrow=pa.table(DF), dataset=rows, parts=datasets.DatasetDict(train=rows),
                dictionary={'text': ['the bank']}, keys=DF.to_dict())


NO_SENTENCES = dict(
    one_text=lambda: ('the bank', 'put it into a list'),
    bytes=lambda: (b'the bank', 'decode'),
    path=lambda: (Path('a.txt'), 'embed_file'),
    two_columns=lambda: (DF[['text']].to_numpy(), r"shape is \(2, 1\), take one column"),
    matrix=lambda: (np.zeros((2, 3)), 'shape'),
    tensor=lambda: (torch.zeros(2, 3, 50), 'shape'),
    unordered=lambda: ({'the bank', 'a river'}, 'no order'),
    number=lambda: (7, 'int 7'),
    nothing=lambda: (None, 'None'),
    rows=lambda: (DF.to_dict('records'), r"Sentence 0 is dict.*as in .*\['text'\]"),
    stream=lambda: (frames()['dataset'].to_iterable_dataset(), r"\['text'\]"),
    sets=lambda: ([{'a', 'b'}], 'Sentence 0 is set'),
    **{k: lambda k=k: (frames()[k],
                       {'frame': r"df\['text'\]", 'arrow': r"\['text'\]", 'dataset': r"\['text'\]",
                        'parts': r"\['train'\]", 'dictionary': r"\['text'\]",
                        'keys': r"\['text'\]"}[k]) for k in (
                            'frame', 'arrow', 'dataset', 'parts', 'dictionary', 'keys')})


@pytest.mark.parametrize('name', NO_SENTENCES)
def test_what_is_no_list_of_sentences_is_refused(elmo, name):
    "Every door of `Elmo`; a table's column names and a dictionary's keys are no sentences"
    value, says = NO_SENTENCES[name]()
    doors = [elmo.embed, elmo.embed_iter, lambda x: list(elmo.embed_iter(x, pool='mean')),
             elmo.to_tokens]
    if name != 'tensor': doors += [elmo, elmo.layers]
    for door in doors:
        with pytest.raises(TypeError, match=says):
            found = door(value)
            if door == elmo.embed_iter: list(found)

def test_columns_of_every_kind_are_sentences(elmo):
    ref = elmo.embed(['the bank', 'a river'])
    rows = frames()['dataset']
    for texts in (DF.text, DF['text'].to_numpy(), rows['text'],
                  rows.to_iterable_dataset().remove_columns('id').map(lambda r: r)
                  and (r['text'] for r in rows), DF.text.astype('category'),
                  pd.Series(DF.text.values, index=['columns', 'ndim'])):
        assert all_close(elmo.embed(texts), ref)


@pytest.mark.parametrize('kw', [
    dict(layers='top'), dict(layers=3), dict(layers=-4), dict(layers=True), dict(pool='sum'),
    dict(dtype='int8'), dict(budget=2), dict(budget=9.5)], ids=str)
def test_settings_that_can_not_be(elmo, kw):
    with pytest.raises(ValueError, match=next(iter(kw))):
        elmo.embed(['a'], **kw)


def test_batch_norm_needs_company():
    elmo = make(norm='batch')
    with pytest.raises(ValueError, match='batch-mates'): elmo.embed(['a'])
    assert elmo.embed(['a'], 'all')[0].shape == (3, 1, 16)

def test_types_of_results(elmo):
    ref = elmo.embed(['a b c'])
    for dtype in ('float16', torch.float16, np.float16().dtype):
        h = elmo.embed(['a b c'], dtype=dtype)[0]
        assert h.dtype == np.float16 and close(h.astype(np.float32), ref[0], 5e-3)
    for texts in (['a'], []):
        assert elmo.embed(texts, pool='mean', dtype='float16').dtype == np.float16
    assert close(elmo.embed(['a b c'], bf16=True)[0], ref[0], .1)

def test_results_are_free_of_their_batch(elmo):
    v = elmo.embed(['a', 'a b c d e f'])[0]
    assert v.base is None or v.base.nbytes == v.nbytes

def test_modes_are_given_back(texts):
    elmo = make().unfreeze(top=1).train()
    elmo.lm.drop.training = True
    modes = [m.training for m in elmo.modules()]
    elmo.embed(texts[:5])
    assert [m.training for m in elmo.modules()] == modes
    with pytest.raises(TypeError): elmo.embed(['a', 3])
    assert [m.training for m in elmo.modules()] == modes

def test_no_gradients_and_no_state(texts):
    elmo = make(carry=True).unfreeze()
    elmo([['a', 'b']])
    state = elmo.state[0].clone()
    a, b = elmo.embed(texts[:5]), elmo.embed(texts[:5])
    assert all_close(a, b, 0) and torch.equal(elmo.state[0], state)

def test_streams_hold_little(elmo, texts):
    "A generator is read a portion ahead, and no more"
    read = []
    def endless():
        i = 0
        while True: read.append(i); yield texts[i % len(texts)]; i += 1
    out = elmo.embed_iter(endless(), budget=64)
    for i in range(50): assert close(next(out), elmo.embed([texts[i % len(texts)]])[0])
    assert len(read) < 50 + 8*64
    # at once, not at the first vector
    with pytest.raises(ValueError): elmo.embed_iter(endless(), layers='x')

def test_progress_bar(elmo, texts, capsys):
    assert all_close(
        elmo.embed(texts[:50], progress=True), elmo.embed(texts[:50], progress=False), 0
    )
    capsys.readouterr()
    elmo.embed(texts*3)                                                 # no bar into a pipe
    assert not capsys.readouterr().out

# long texts

@pytest.mark.parametrize('cfg', [
    {}, dict(share_encoder=False), dict(n_layers=3, hidden_dim=8, residual=False),
    dict(cell_clip=0.5, proj_clip=0.3)], ids=str)
def test_pieces_equal_one_pass(cfg):
    elmo, rng = make(cfg=cfg), np.random.default_rng(0)
    for n, budgets in ((30, (3, 16, 32)), (31, (16, 32, 33)), (32, (33, 34)), (100, (7, 64))):
        tokens = [str(o) for o in rng.integers(0, 50, n)]
        whole = elmo.embed([tokens], 'all', budget=10**6)[0]
        assert close(whole, direct(elmo, tokens))
        pooled = {pool: elmo.embed([tokens], 'mix', pool, budget=10**6)[0]
                  for pool in ('mean', 'max', 'first_last')}
        for budget in budgets:
            assert close(elmo.embed([tokens], 'all', budget=budget)[0], whole)
            for pool, v in pooled.items():
                assert close(elmo.embed([tokens], 'mix', pool, budget=budget)[0], v)


def test_context_reaches_over_pieces(elmo):
    "The naive cut would not notice what stands far away; forward and backward"
    tokens = ['a']*50
    ref = elmo.embed([tokens], 2, budget=16)[0]
    for i,half,at in ((0, slice(0, 8), slice(1, None)), (49, slice(8, 16), slice(0, 49))):
        other = elmo.embed([[*tokens[:i], 'zebra', *tokens[i+1:]]], 2, budget=16)[0]
        moved = np.abs(other - ref)[at, half].max(-1)
        near = moved[:20] if i == 0 else moved[-20:]
        assert (near > 0).all()

# neighbours, and what moved a vector

QUERY = 'the old bank'.split()

def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    words = 'the old river money bank play of green'.split()
    return [[words[i] for i in rng.integers(0, 8, rng.integers(1, 9))] for _ in range(n)]

def cosine(a, b): return a @ b/np.linalg.norm(a)/np.linalg.norm(b)

@pytest.mark.parametrize('layers', ['mix', 'all', 1, -1])
@pytest.mark.parametrize('same_word', [True, False])
def test_nearest_is_the_plain_search(elmo, layers, same_word, monkeypatch):
    sents = sentences(60)
    plain = {}
    for name in range(3) if layers == 'all' else [layers]:
        query = direct(elmo, QUERY, name)[2]
        found = {(tuple(s), t): cosine(v, query) for s in sents if s != QUERY
                 for t,v in enumerate(direct(elmo, s, name)) if s[t] == 'bank' or not same_word}
        plain[2 if name == -1 else name] = sorted(found.values(), reverse=True)[:6]
    windows = elmo.nearest.__globals__['windows']
    for size in (16_384, 7):
        monkeypatch.setitem(elmo.nearest.__globals__, 'windows',
                            lambda items, most, length: windows(items, size, length))
        table = elmo.nearest(QUERY, 'bank', sents*2, k=6, layers=layers, same_word=same_word)
        assert list(table) == ['sentence', 'word', 'position', 'cosine', 'layer']
        assert not table.duplicated(['sentence', 'position', 'layer']).any()
        for name,cosines in plain.items():
            assert close(table.cosine[table.layer == name], np.array(cosines))
        for row in table.itertuples():
            assert row.sentence.split()[row.position] == row.word
            assert row.word == 'bank' or not same_word

def test_neighbours_from_every_source(elmo, tmp_path):
    sents = sentences(40)
    lines = [' '.join(s) for s in sents]
    table = pd.DataFrame(dict(text=lines))
    table.to_csv(tmp_path/'a.csv')
    (tmp_path/'a.txt').write_text('\n'.join(lines))
    (tmp_path/'a.conllu').write_text('\n\n'.join('\n'.join(
        f'{i+1}\t{word}' + 8*'\t_' for i,word in enumerate(s)) for s in sents) + '\n\n')
    kinds = [sents, lines, iter(sents), (o for o in lines), table.text, table,
             *(f(tmp_path/name) for f in (str, Path) for name in ('a.csv', 'a.txt', 'a.conllu'))]
    first, *others = [elmo.nearest('the old bank', 'bank', among, k=3) for among in kinds]
    for other in others: pd.testing.assert_frame_equal(first, other, atol=1e-5)
    few = elmo.nearest(QUERY, 2, tmp_path/'a.txt', n_rows=2, same_word=False)
    assert set(few.sentence) <= set(lines[:2])

def test_a_sentence_and_its_copies_are_no_neighbours(elmo):
    among = ['a bank', 'a bank', 'the bank', 'the bank', 'one bank', '', []]
    assert sorted(elmo.nearest('a bank', 'bank', among).sentence) == ['one bank', 'the bank']
    assert 'a bank' not in set(elmo.nearest('a bank', 0, among, same_word=False).sentence)

def test_one_of_several_occurrences(elmo):
    twice = 'the bank of bank'
    for position in (1, 3):
        [row] = elmo.nearest(twice, position, ['a bank'], k=1).itertuples()
        wanted = cosine(direct(elmo, twice.split(), 'mix')[position],
                        direct(elmo, ['a', 'bank'], 'mix')[1])
        assert row.cosine == pytest.approx(wanted, abs=1e-5)

@pytest.mark.parametrize('kw,says', [
    (dict(word='cat'), "'cat' is not among the tokens of 'the bank'"),
    (dict(word='Bank'), 'did you mean bank'),
    (dict(sentence='bank to bank', word='bank'), '2 times in .* positions 0, 2 '),
    (dict(word=2), 'no position 2 in the 2 tokens'),
    (dict(word=-1), 'no position -1'),
    (dict(sentence='', word='bank'), 'not among the tokens'),
    (dict(among=[]), "No other sentence among these has 'bank'"),
    (dict(among='the bank'), 'the bank'),
    (dict(k=0), 'k=0: take a whole number'),
    (dict(layers=7), 'layers=7'),
    (dict(n_row=7), 'n_row'),
    (dict(among=['a bank', 7]), 'Sentence 1 is int')], ids=str)
def test_questions_that_have_no_neighbours(elmo, kw, says):
    with pytest.raises((ValueError, TypeError), match=says):
        elmo.nearest(**{**dict(sentence='the bank', word='bank', among=['a bank']), **kw})

def test_a_bad_row_is_named(elmo, tmp_path):
    (tmp_path/'a.txt').write_bytes(b'a bank\ncaf\xe9 bank\n')
    with pytest.raises(ValueError, match='line 2 is not UTF-8'):
        elmo.nearest('the bank', 'bank', tmp_path/'a.txt')

def test_a_search_holds_a_portion(elmo, monkeypatch):
    "Of a stream no more sentences are read before some are embedded than a portion has"
    read = embedded = most = 0
    def stream():
        nonlocal read, most
        for i in range(20_000):
            read += 1
            most = max(most, read - embedded)
            yield [f'w{i}', 'bank']
    def embed_iter(sents, layers):
        nonlocal embedded
        embedded += len(sents)
        return (np.full((2, 8), len(sent[0]), np.float32) for sent in sents)
    monkeypatch.setattr(elmo, 'embed_iter', embed_iter)
    elmo.nearest('the bank', 'bank', stream())
    assert 1000 < most < 5000

@pytest.mark.parametrize('layers', ['mix', 'all', 1])
def test_influence_is_that_of_leaving_a_word_out(elmo, layers):
    tokens = 'the old bank of the river'.split()
    names = range(3) if layers == 'all' else [layers]
    table = elmo.influence(tokens, 'bank', layers)
    assert list(table.index) == tokens and list(table) == list(names)
    for name in names:
        whole = direct(elmo, tokens, name)[2]
        for i in range(len(tokens)):
            without = direct(elmo, tokens[:i] + tokens[i+1:], name)
            wanted = 0 if i == 2 else 1 - cosine(whole, without[2 - (i < 2)])
            assert table[name].iloc[i] == pytest.approx(wanted, abs=1e-5)

def test_influence_in_the_shortest_sentence_and_of_a_word_twice(elmo):
    assert elmo.influence('bank', 'bank').to_numpy().tolist() == [[0]]
    assert (elmo.influence('the the the', 1)['mix'] != 0).tolist() == [True, False, True]
    with pytest.raises(ValueError, match='positions 0, 1'): elmo.influence('the the', 'the')

# weights that change

def test_marks_are_not_text(elmo):
    assert not np.allclose(elmo.embed([['<s>']], 0)[0], elmo.embed([['</s>']], 0)[0])
    assert close(elmo.embed([['<s>', '', 'a']], 'all')[0], direct(elmo, ['<s>', '', 'a']))

def step(elmo):
    opt = torch.optim.AdamW([p for g in elmo.groups() for p in g], 1e-1, fused=True)
    elmo.unfreeze()(['the bank'])[0][0].sum().backward(); opt.step(); elmo.freeze()

CHANGES = dict(
    optimiser=step,
    loading=lambda e: e.lm.load_state_dict(make(5).lm.state_dict()),
    in_place=lambda e: e.lm.chars.proj.weight.detach().add_(1.0),
    another_bilm=lambda e: setattr(e, 'lm', make(8).lm),
    statistics=lambda e: e.lm.chars.norm.running_mean.add_(1.0),
    double=lambda e: e.double(),
)


@pytest.mark.parametrize('name', CHANGES)
def test_the_weights_of_now_count(elmo, texts, name):
    elmo.embed(texts[:30])
    CHANGES[name](elmo)
    assert all_close(elmo.embed(texts[:30], 'all'),
                     [direct(elmo.eval(), word_tokenize(t)) for t in texts[:30]], 1e-4)


def test_training_between_two_halves_of_a_stream(elmo, texts):
    out = elmo.embed_iter(texts, 'all', budget=32)
    for _ in range(5): next(out)
    step(elmo)
    rest = list(out)
    assert close(rest[-1], direct(elmo.eval(), word_tokenize(texts[-1])), 1e-4)

# scikit-learn

def test_vectorizer_in_a_pipeline(elmo, texts):
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    y = [int('the' in t.split()) for t in texts[:60]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    assert cross_val_score(pipe, texts[:60], y, cv=3).shape == (3,)
    search = GridSearchCV(
        pipe,
        {'elmovectorizer__layers': [0, 'mix', 'all'], 'elmovectorizer__pool': ['mean', 'max']},
        cv=2).fit(texts[:60], y)
    assert set(search.best_params_) == {'elmovectorizer__layers', 'elmovectorizer__pool'}
    fitted = pickle.loads(pickle.dumps(pipe.fit(texts[:60], y)))
    assert (fitted.predict(texts[:60]) == pipe.predict(texts[:60])).all()
    assert clone(pipe).get_params()['elmovectorizer__pool'] == 'mean'

def test_vectorizer_values(elmo, texts):
    v = ElmoVectorizer(elmo, layers='all', pool='max').fit(texts[:10])
    assert (close(v.transform(texts[:10]), elmo.embed(texts[:10], 'all', 'max').reshape(10, 48))
            and len(v.get_feature_names_out()) == 48)
    assert close(v.fit_transform(pd.Series(texts[:10])), v.transform(texts[:10]), 0) and close(
        v.transform(pd.DataFrame({'a': texts[:3]})), v.transform(texts[:3]), 0)
    assert v.transform([]).shape == (0, 48)
    frame = ElmoVectorizer(elmo).set_output(transform='pandas').fit_transform(texts[:4])
    assert (
        isinstance(frame, pd.DataFrame) and frame.shape == (4, 16) and frame.columns[0] == 'elmo0')


def test_vectorizer_by_name(elmo, texts, tmp_path):
    folder = elmo.save_pretrained(tmp_path/'m')
    v = ElmoVectorizer(str(folder)).fit(texts)
    assert close(v.transform(texts[:5]), elmo.embed(texts[:5], pool='mean')) and v.model == str(
        folder)
    assert ElmoVectorizer(str(folder)).fit(texts).elmo_ is not v.elmo_   # nothing is shared
    make(4).save_pretrained(folder)
    assert close(ElmoVectorizer(str(folder)).fit(texts).transform(texts[:5]),
                 make(4).embed(texts[:5], pool='mean'))
    shutil.rmtree(folder)
    # what was fitted needs no folder
    assert close(pickle.loads(pickle.dumps(v)).transform(texts[:5]), v.transform(texts[:5]))

@pytest.mark.parametrize('kw,x,says', [
    (dict(model=None), ['a'], 'needs a model'),
    (dict(pool=None), ['a'], 'pool'),
    (dict(layers=9), ['a'], 'layers'),
    ({}, 'text', 'put it into a list'),
    ({}, np.array([['a', 'b']]), 'one column'),
    ({}, [1.5], 'Sentence 0')], ids=str)
def test_vectorizer_refuses(elmo, kw, x, says):
    with pytest.raises((ValueError, TypeError), match=says):
        ElmoVectorizer(**{**dict(model=elmo), **kw}).fit(x).transform(x)


def test_vectorizer_not_fitted(elmo):
    from sklearn.exceptions import NotFittedError
    with pytest.raises(NotFittedError): ElmoVectorizer(elmo).transform(['a'])
    with pytest.raises(NotFittedError): ElmoVectorizer(elmo).get_feature_names_out()

def test_settings_after_a_fit_count_from_the_next_one(elmo, texts):
    v = ElmoVectorizer(elmo).fit(texts[:4])
    before = v.transform(texts[:4])
    v.set_params(layers='all', pool='max')
    assert close(v.transform(texts[:4]), before) and len(v.get_feature_names_out()) == 16
    assert v.fit(texts[:4]).transform(texts[:4]).shape == (4, len(v.get_feature_names_out()))

def test_a_grid_search_copies_no_model(elmo, texts, monkeypatch):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    y = [int('the' in text.split()) for text in texts[:20]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    grid = dict(elmovectorizer__layers=[0, 1, 'mix'])
    search = GridSearchCV(pipe, grid, cv=2, error_score='raise').fit(texts[:20], y)
    assert search.best_estimator_[0].elmo_ is elmo and pipe[0].model is elmo

@pytest.mark.parametrize('missing', [None, float('nan')])
@pytest.mark.parametrize('kind', [list, pd.Series, lambda x: np.array(x, object)])
def test_a_missing_row_is_named_with_its_cure(elmo, kind, missing):
    v = ElmoVectorizer(elmo).fit(['a'])
    with pytest.raises(TypeError, match=r"Row 1 is (None|nan), no text: .*fillna"):
        v.transform(kind(['a', missing]))

def test_scikit_learns_own_checks(elmo):
    from sklearn.utils import estimator_checks as c

    for name in ('check_estimator_cloneable', 'check_no_attributes_set_in_init',
                 'check_parameters_default_constructible', 'check_get_params_invariance',
                 'check_set_params', 'check_estimator_repr', 'check_estimator_tags_renamed',
                 'check_valid_tag_types', 'check_mixin_order',
                 'check_do_not_raise_errors_in_init_or_set_param'):
        if hasattr(c, name):
            getattr(c, name)('ElmoVectorizer',
                             ElmoVectorizer(elmo) if 'default' not in name else ElmoVectorizer())


# files

def run(source, out, elmo, **kw):
    told = []
    r = embed_file(source, out, elmo, say=told.append, **kw)
    return r, told, [f'line {n+1} {why}' for n,why in r['failed'].items()]

@pytest.fixture()
def source(tmp_path, texts):
    f = tmp_path/'in.txt'
    f.write_text('\n'.join([*texts[:30], '', texts[0]]) + '\n', encoding='utf-8')
    return f

def test_hdf5_is_laid_out_as_allennlps(elmo, texts, source, tmp_path):
    r, told, warned = run(source, tmp_path/'o.hdf5', elmo)
    assert (not warned and r['lines'] == 32
            and sorted(p.name for p in tmp_path.iterdir()) == ['in.txt', 'o.hdf5'])
    with h5py.File(tmp_path/'o.hdf5') as f:
        assert [*f] == [*map(str, range(32)), 'sentence_to_index']
        for i,t in enumerate(texts[:30]):
            assert f[str(i)].dtype == np.float32 and close(
                f[str(i)][:], direct(elmo, word_tokenize(t)))
        assert f['30'].shape == (3, 0, 16)
        assert f['sentence_to_index'].shape == (1,)
        index = json.loads(f['sentence_to_index'][0])
        assert index[texts[0]] == '31' and index[texts[1]] == '1' and index[''] == '30'
        assert json.loads(f.attrs['elmo_fastai'])['layers'] == 'all'

@pytest.mark.parametrize('layers,pool', [
    ('all', None), ('mix', None), (1, None), ('all', 'mean'), ('mix', 'max'), (-1, 'first_last')],
        ids=str)
@pytest.mark.parametrize('kind', ['hdf5', 'h5', 'npz', 'parquet'])
def test_kinds_of_files(elmo, texts, source, tmp_path, kind, layers, pool):
    out = tmp_path / f'o.{kind}'
    run(
        source, out, elmo, layers=layers, pool=pool, budget=64,
        dtype='float16' if pool == 'max' else 'float32')
    ref = elmo.embed(
        [*texts[:30], '', texts[0]], layers, pool, dtype='float16' if pool == 'max' else 'float32'
    )
    eps = 5e-3 if pool == 'max' else 1e-5
    if kind in ('hdf5', 'h5'):
        with h5py.File(out) as f:
            assert (all_close([f[str(i)][:] for i in range(32)], list(ref), eps)
                    and f['0'].dtype == ref[0].dtype)
    elif kind == 'npz':
        with np.load(out) as f:
            if pool:
                assert (f['lines'].tolist() == list(range(32)) and close(f['vectors'], ref, eps)
                        and f['vectors'].dtype == ref.dtype)
            else: assert all_close([f[str(i)] for i in range(32)], ref)
    else:
        t = pq.read_table(out)
        names = [f'layer{i}' for i in range(3)] if layers == 'all' else ['vector']
        assert t.column_names == [*(['line', 'text'] if pool else ['line', 'position', 'token']),
                                  *names]
        got = np.stack([np.stack(t[n].to_numpy()) for n in names], 0)
        if pool: expected = np.stack(ref).reshape(32, len(names), 16).transpose(1, 0, 2)
        else:
            expected = np.concatenate([v.reshape(len(names), -1, 16) for v in ref], 1)
            tokens = [w for s in [*texts[:30], '', texts[0]] for w in word_tokenize(s)]
            assert (t['token'].to_pylist() == tokens and t['line'].to_pylist()[-1] == 31
                    and t['position'].to_pylist()[:2] == [0, 1])
        assert close(got, expected, eps)

@pytest.mark.parametrize('name', [
    'a.csv', 'a.tsv', 'a.json', 'a.jsonl', 'a.parquet', 'a.jsonl.gz', 'a.conllu', 'a.xyz'])
def test_kinds_of_source(elmo, tmp_path, name):
    "As `test_reading` has them; the words of a treebank are the tokens"

    df = pd.DataFrame({'id': [1, 2], 'text': ['the bank, 1,2', 'a river']})
    if 'parquet' in name:
        df.to_parquet(tmp_path / name)
    elif 'json' in name:
        df.to_json(tmp_path / name, orient='records', lines='jsonl' in name)
    elif name == 'a.conllu':
        (tmp_path / name).write_text(
            '1\t1,2\t_\t_\t_\t_\t_\t_\t_\t_\n2\tbank\t_\t_\t_\t_\t_\t_\t_\t_\n\n1\ta\t_\t_\t_\t_\t_\t_\t_\t_\n\n'
        )
    elif name == 'a.xyz':
        (tmp_path / name).write_text('\r'.join(df.text))
    else:
        df.to_csv(tmp_path / name, index=False, sep='\t' if 'tsv' in name else ',')
    r, *_ = run(tmp_path / name, tmp_path / 'o.hdf5', elmo)
    sents = [['1,2', 'bank'], ['a']] if name == 'a.conllu' else [word_tokenize(t) for t in df.text]
    assert (r['lines'] == 2 and r['tokens'] == sum(map(len, sents))
            and r['unit'] == {'a.conllu': 'sentence', 'a.xyz': 'line'}.get(name, 'row'))
    with h5py.File(tmp_path/'o.hdf5') as f:
        for i,s in enumerate(sents): assert close(f[str(i)][:], direct(elmo, s))
        assert set(json.loads(f['sentence_to_index'][0])) == (
            {'1,2 bank', 'a'} if name == 'a.conllu' else {*df.text})


def test_rows_are_called_rows(elmo, tmp_path, capsys):
    "Where a row has several lines, a number of lines would be wrong"
    (tmp_path/'a.csv').write_text('id,text\n1,"two\nlines"\n\n2,good, bad\n3\n4,fine\n')
    elmo.save_pretrained(tmp_path/'m')
    code, err = command(
        capsys, tmp_path / 'a.csv', out=tmp_path / 'o.npz', model=tmp_path / 'm', device='cpu'
    )
    assert code == 3 and re.findall(
        r'elmo_embed: (\w+ \d+) of .*\(number (\d+) in the output\) has (\d) cell', err
    ) == [('row 2', '1', '3'), ('row 3', '2', '1')]
    with np.load(tmp_path/'o.npz') as f: assert set(f) == {'0', '3'}

def test_lines_that_can_not_be_embedded(elmo, tmp_path, texts):
    (tmp_path / 'a.txt').write_bytes(b'\xef\xbb\xbfgood\r\ncaf\xe9\nnul\x00byte\n' + b'a ' * 60
                                     + b'\n\xed\xa0\x80\n' + b'x' * 6000 + b'\nlast')
    r, told, warned = run(tmp_path/'a.txt', tmp_path/'o.hdf5', elmo, max_tokens=50)
    assert (set(r['failed']) == {1, 2, 3, 4, 5} and r['lines'] == 2
            and 'more than 5,000 characters' in r['failed'][5])
    assert [re.match(r'line (\d+)', w)[1] for w in warned] == [
        '2',
        '3',
        '4',
        '5',
        '6',
    ] and 'not UTF-8 (byte 3)' in warned[0]
    assert 'NUL character at position 3' in warned[1] and '60 tokens' in warned[2]
    with h5py.File(tmp_path/'o.hdf5') as f:
        assert set(f) == {'0', '6', 'sentence_to_index'} and set(
            json.loads(f['sentence_to_index'][0])
        ) == {'good', 'last'}
        assert close(f['0'][:], direct(elmo, ['good'])) and json.loads(f.attrs['elmo_fastai'])[
            'failed'].keys() == {'1', '2', '3', '4', '5'}


@pytest.mark.parametrize('raw,says', [
    ('the bank'.encode('utf-16'), 'UTF-16'), (b'\x1f\x8b\x08xx', 'gzip'), (b'the bank\n', None)])
@pytest.mark.parametrize('plain', [True, False])
def test_the_first_bytes_of_standard_input(elmo, tmp_path, monkeypatch, raw, says, plain):
    stream = io.BytesIO(raw)
    monkeypatch.setattr(
        sys, 'stdin', SimpleNamespace(buffer=stream if plain else io.BufferedReader(stream))
    )
    if says is None:
        assert run('-', tmp_path / 'o.npz', elmo)[0]['lines'] == 1
    else:
        with pytest.raises(CommandError, match=f"'-' is .*{says}"): run('-', tmp_path/'o.npz', elmo)

def test_vectors_that_are_not_numbers(tmp_path, texts):
    elmo = make(gamma=1e30)
    (tmp_path/'a.txt').write_text('a\nb\n')
    with pytest.raises(CommandError, match='not finite'):
        run(tmp_path / 'a.txt', tmp_path / 'o.npz', elmo, layers='mix', dtype='float16')
    assert not (tmp_path/'o.npz.part').exists()

def test_many_broken_lines_are_told_briefly(elmo, tmp_path, capsys):
    (tmp_path/'a.txt').write_bytes(b'good\n' + b'\xff\n'*500)
    r, _, warned = run(tmp_path/'a.txt', tmp_path/'o.npz', elmo)
    assert len(r['failed']) == 500
    elmo.save_pretrained(tmp_path/'m')
    code, err = command(
        capsys, tmp_path / 'a.txt', out=tmp_path / 'p.npz', model=tmp_path / 'm', device='cpu'
    )
    warned = err.strip().splitlines()
    assert code == 3 and len(warned) == 21 and 'more' in warned[-1]

WRONG = dict(
    missing=(dict(source='no.txt'), 'no file'),
    folder=(dict(source='.'), 'no file'),
    empty=(dict(source='empty.txt'), 'empty'),
    ending=(dict(out='o.txt'), r'\.hdf5.*\.parquet|\.hdf5'),
    outfolder=(dict(out='d.hdf5'), 'is a folder'),
    itself=(dict(source='x.npz', out='x.npz'), 'input itself'),
    exists=(dict(out='there.hdf5'), '--overwrite'),
    under=(dict(out='in.txt/o.npz'), "Can't write"),
    column=(dict(column='text'), 'is read line by line.*text_col'),
    nocolumn=(dict(source='u.csv'), "no column 'text' or .*'id', 'txt'"),
    wrongcolumn=(dict(source='t.csv', column='txt'), "no column 'txt'.*'id', 'text'"),
    twocolumns=(dict(source='two.csv'), "2 columns 'text'"),
    notparquet=(dict(source='bad.parquet', column='t'), 'Parquet'),
    emptycsv=(dict(source='empty.csv', column='t'), 'empty'),
    headeronly=(dict(source='head.csv', column='text'), 'empty'),
    layers=(dict(layers='x'), 'layers'),
    pool=(dict(pool='x'), 'pool'),
    foreign=(dict(out='f.npz'), 'not of a job'))


@pytest.mark.parametrize('name', WRONG)
def test_wrong_input(elmo, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for k, v in {'in.txt': 'a b\n', 'empty.txt': '', 'x.npz': 'a\n', 'there.hdf5': 'precious',
                 't.csv': 'id,text\n1,a\n', 'u.csv': 'id,txt\n1,a\n', 'two.csv': 'text,text\n1,a\n',
                 'bad.parquet': 'no', 'empty.csv': '', 'head.csv': 'id,text\n'}.items():
        Path(k).write_text(v)
    Path('d.hdf5').mkdir()
    Path('f.npz.part').mkdir()
    Path('f.npz.part/thesis.txt').write_text('precious')
    kw, says = WRONG[name]
    before = {str(f): f.read_bytes() for f in sorted(tmp_path.rglob('*')) if f.is_file()}
    with pytest.raises((CommandError, ValueError), match=says):
        run(**{**dict(source='in.txt', out='o.npz', elmo=elmo), **kw})
    assert {str(f): f.read_bytes() for f in sorted(tmp_path.rglob('*')) if f.is_file()} == before

class Unplugged(BaseException): pass

def begin(source, out, elmo, stop, **kw):
    "A job that dies when it comes to token number `stop`"
    n = []
    def tok(text):
        n.extend(text.split())
        if len(n) > stop[0]: raise Unplugged
        return text.split()
    elmo = copy.copy(elmo)
    elmo.tokenizer = elmo.tokenize = tok
    return embed_file(source, out, elmo, say=lambda s: None, **{**dict(budget=16), **kw})

@pytest.mark.parametrize('kind', ['hdf5', 'npz', 'parquet'])
def test_goes_on_where_it_stopped(elmo, texts, source, tmp_path, kind, monkeypatch):
    out, ref = tmp_path/f'o.{kind}', tmp_path/f'ref.{kind}'
    begin(source, ref, elmo, [10**9])
    embedded, one = [], module.embed_window
    monkeypatch.setattr(
        module, 'embed_window', lambda e, s, **kw: embedded.extend(s) or one(e, s, **kw)
    )
    for stop in (150, 30, 150, 10**9):
        try: begin(source, out, elmo, [stop])
        except Unplugged: assert not out.exists()
    assert len(embedded) <= 34, 'no line is embedded twice'
    assert not Path(f'{out}.part').exists() and out.exists()
    if kind == 'hdf5':
        with h5py.File(out) as f, h5py.File(ref) as g:
            assert set(f) == set(g) and f['sentence_to_index'][0] == g['sentence_to_index'][0]
            assert all(close(f[k][:], g[k][:]) for k in f if k.isdigit())
    elif kind == 'npz':
        with np.load(out) as f, np.load(ref) as g:
            assert set(f) == set(g) and all(close(f[k], g[k]) for k in f)
    else: assert pq.read_table(out)['token'].to_pylist() == pq.read_table(ref)['token'].to_pylist()

# where the tokens stand

ODD = ["She  didn't  like\tthe cafe\u0301 👨‍👩‍👧!", '👍🏽 🇫🇷 ok…', ' spaced ', '我喜欢 北京。',
       'a\u200b b \u202eabc\u202c d', '', 'é e\u0301\u0323x']

def offsets_in(file, i):
    "Of line `i`, from any kind of file"
    if file.suffix == '.parquet':
        table = pd.read_parquet(file)
        return table.loc[table.line == i, ['start', 'end']].to_numpy()
    with h5py.File(file) if file.suffix == '.hdf5' else np.load(file) as f:
        return f[f'offsets/{i}'][:]

@pytest.mark.parametrize('kind', ['hdf5', 'npz', 'parquet'])
def test_offsets_find_the_tokens_in_their_texts(elmo, tmp_path, kind):
    source, out = tmp_path/'in.jsonl', tmp_path/f'o.{kind}'
    source.write_text('\n'.join(json.dumps(dict(text=t)) for t in ODD))
    result = embed_file(source, out, elmo, offsets=True, say=lambda s: None)
    assert not result['failed']
    for i,text in enumerate(ODD):
        tokens, found = word_tokenize(text), offsets_in(out, i)
        assert found.shape == (len(tokens), 2)
        for token,(start, end) in zip(tokens, found):
            assert text[start:end].translate(DROPPED) == token
    plain = tmp_path/f'plain.{kind}'
    embed_file(source, plain, elmo, say=lambda s: None)
    with pytest.raises(KeyError): offsets_in(plain, 0)

def test_offsets_of_tokens_are_in_their_line(elmo, tmp_path):
    "A sentence of a treebank is its tokens with blanks between them"
    source = tmp_path/'a.conllu'
    source.write_text('1\tNew York' + 8*'\t_' + '\n2\tis' + 8*'\t_' + '\n\n')
    embed_file(source, tmp_path/'o.npz', elmo, offsets=True, say=lambda s: None)
    assert offsets_in(tmp_path/'o.npz', 0).tolist() == [[0, 8], [9, 11]]

def test_a_text_that_the_tokenizer_rewrites_has_no_offsets(tmp_path):
    elmo = make(tokenizer=lambda text: text.lower().split())
    (tmp_path/'in.txt').write_text('a bank\nA bank\nbanks')
    result = embed_file(tmp_path/'in.txt', tmp_path/'o.npz', elmo, offsets=True, say=lambda s: None)
    assert list(result['failed']) == [1]
    assert "no offsets. The token 'bank' is not in 'A bank'" in result['failed'][1]

def test_a_job_with_offsets_is_another_job(elmo, source, tmp_path):
    out = tmp_path/'o.npz'
    with pytest.raises(Unplugged): begin(source, out, elmo, [150])
    with pytest.raises(CommandError, match='another offsets'):
        begin(source, out, elmo, [10**9], offsets=True)
    begin(source, out, elmo, [10**9], offsets=True, overwrite=True)
    assert offsets_in(out, 0)[0, 0] == 0

def test_a_pooled_line_has_no_offsets(elmo, source, tmp_path):
    with pytest.raises(CommandError, match="pool='mean'"):
        embed_file(source, tmp_path/'o.npz', elmo, pool='mean', offsets=True)

@pytest.mark.parametrize('kind', ['hdf5', 'npz', 'parquet'])
def test_the_output_is_on_the_disk_before_its_parts_go(elmo, source, tmp_path, kind, monkeypatch):
    out = tmp_path/f'o.{kind}'
    seen = []
    names = {}
    real = {name: getattr(os, name) for name in ('open', 'fsync', 'replace', 'unlink')}
    def open_(path, *args, **kwargs):
        number = real['open'](path, *args, **kwargs)
        names[number] = Path(path).name
        return number
    def fsync(number):
        seen.append(('sync', names.get(number)))
        return real['fsync'](number)
    def replace_(old, new, **kwargs):
        seen.append(('replace', Path(new).name))
        return real['replace'](old, new, **kwargs)
    def unlink(path, **kwargs):
        seen.append(('delete', Path(path).name))
        return real['unlink'](path, **kwargs)
    with monkeypatch.context() as patch:
        for name,f in dict(open=open_, fsync=fsync, replace=replace_, unlink=unlink).items():
            patch.setattr(os, name, f)
        embed_file(source, out, elmo, budget=16, say=lambda message: None)
    renamed = seen.index(('replace', out.name))
    assert seen[renamed-1] == ('sync', f'out.{kind}') and seen[renamed+1] == ('sync', tmp_path.name)
    deleted = [i for i,(what, name) in enumerate(seen)
               if what == 'delete' and name.endswith('.npz') and name != f'out.{kind}']
    assert len(deleted) > 1 and min(deleted) > renamed + 1

@pytest.mark.parametrize('change', ['model', 'layers', 'pool', 'dtype', 'input', 'shorter', 'mix'])
def test_another_job_is_not_mixed_in(elmo, texts, source, tmp_path, change):
    kw = dict(layers='mix')
    with pytest.raises(Unplugged): begin(source, tmp_path/'o.npz', elmo, [150], **kw)

    def kept():
        return {f.name: f.read_bytes() for f in (tmp_path / 'o.npz.part').iterdir()
                if 'lock' not in f.name}

    part = kept()
    assert len(part) >= 2
    other = elmo
    if change == 'model': other = make(3)
    elif change == 'mix': other = make(gamma=2.)
    elif change == 'input': source.write_text('another ' + source.read_text())
    elif change == 'shorter': source.write_text(texts[0] + '\n')
    else:
        kw |= {'layers': dict(layers=1), 'pool': dict(pool='mean'), 'dtype': dict(dtype='float16')}[
            change]
    with pytest.raises(CommandError, match='--overwrite'):
        begin(source, tmp_path / 'o.npz', other, [10**9], **kw)
    assert kept() == part
    begin(source, tmp_path/'o.npz', other, [10**9], **kw, overwrite=True)
    assert (tmp_path/'o.npz').exists() and not (tmp_path/'o.npz.part').exists()

def test_another_standard_input_is_not_mixed_in(elmo, texts, tmp_path, monkeypatch):
    "It can't be read twice, so that --overwrite can't begin again"

    def feed(lines):
        monkeypatch.setattr(
            sys, 'stdin', SimpleNamespace(buffer=io.BytesIO('\n'.join(lines).encode()))
        )

    feed(texts[:30])
    with pytest.raises(Unplugged): begin('-', tmp_path/'o.npz', elmo, [150])
    for kw in ({}, dict(overwrite=True)):
        feed(texts[30:60])
        with pytest.raises(CommandError, match='delete .*o.npz.part to start again'):
            begin('-', tmp_path / 'o.npz', elmo, [10**9], **kw)
    feed(texts[:30])
    assert begin('-', tmp_path/'o.npz', elmo, [10**9], overwrite=True)['lines'] == 30

class Splitter:
    "A tokenizer with a setting"
    def __init__(self, mark): self.mark = mark
    def __call__(self, text): return text.split(self.mark)

def upper(text, big=True): return [t.upper() if big else t for t in text.split()]

TOKENIZERS = dict(
    lambdas=(lambda t: t.split(), lambda t: [o.upper() for o in t.split()]),
    objects=(Splitter(' '), Splitter('e')),
    methods=(Splitter(' ').__call__, Splitter('e').__call__),
    partials=(partial(upper, big=False), partial(upper, big=True)),
    named=('space', lambda t: [o.upper() for o in t.split()]),
)


@pytest.mark.parametrize('name', TOKENIZERS)
def test_another_tokenizer_is_not_mixed_in(elmo, texts, source, tmp_path, monkeypatch, name):
    "Whatever it is called: what counts is how it splits the lines that are done"
    def with_tokenizer(tok):
        e = copy.copy(elmo)
        e.tokenizer, e.tokenize = tok, tok if callable(tok) else str.split
        return e
    one, other = map(with_tokenizer, TOKENIZERS[name])
    def interrupted(e):
        with monkeypatch.context() as m:
            add = module.Part.add
            def add_and_stop(self, *args):
                add(self, *args)
                if self.n == 3: raise Unplugged
            m.setattr(module.Part, 'add', add_and_stop)
            with pytest.raises(Unplugged): run(source, tmp_path/'o.npz', e, budget=8)
    interrupted(one)
    with pytest.raises(CommandError, match='tokenizer|split'):
        run(source, tmp_path / 'o.npz', other, budget=8)
    assert 'Going on' in run(source, tmp_path/'o.npz', one, budget=8)[1][0]
    interrupted(one) if not (tmp_path/'o.npz').unlink() else None
    run(source, tmp_path/'o.npz', other, budget=8, overwrite=True)
    run(source, tmp_path/'ref.npz', other)
    with np.load(tmp_path / 'o.npz') as f, np.load(tmp_path / 'ref.npz') as g:
        assert set(f) == set(g) and all(close(f[k], g[k]) for k in f)


def test_one_job_a_time(elmo, source, tmp_path):
    "Also of jobs that start at the same moment, again and again"
    for i in range(15):
        out, barrier, ended, results = (tmp_path / f'{i}.npz', threading.Barrier(4),
                                        threading.Event(), [])

        def slow(text):
            ended.wait(20)
            return text.split()
        def job():
            e = copy.copy(elmo)
            e.tokenizer = e.tokenize = slow
            barrier.wait()
            try: results.append(run(source, out, e)[0]['lines'])
            except ValueError as error: results.append(str(error))
            if len(results) == 3: ended.set()                            # those that were refused
        threads = [threading.Thread(target=job) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert results.count(32) == 1 and sum('in use by' in str(r) for r in results) == 3, results
        assert out.exists() and not Path(f'{out}.part').exists()

def test_damaged_portions(elmo, source, tmp_path):
    with pytest.raises(Unplugged): begin(source, tmp_path/'o.npz', elmo, [150])
    last = sorted((tmp_path/'o.npz.part').glob('0*.npz'))[-1]
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(CommandError, match='damaged.*delete the folder') as kept:
        begin(source, tmp_path / 'o.npz', elmo, [10**9])
    # the traceback `kept` holds no lock
    with pytest.raises(CommandError, match='damaged'):
        begin(source, tmp_path / 'o.npz', elmo, [10**9])


# the command, in processes of its own

root = Path(module.__file__).resolve().parents[2]

def start(folder, *args, stdin=None, launcher=True):
    # what pip makes of an entry point
    (folder/'.run.py').write_text('from elmo_fastai.tasks.embed import elmo_embed\nelmo_embed()\n')
    env = {**os.environ,
           'PYTHONPATH': os.pathsep.join([str(root), os.environ.get('PYTHONPATH', '')]),
           'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1', 'MPLBACKEND': 'agg', 'COLUMNS': '200',
           'MPLCONFIGDIR': str(folder / '.cache')}
    cmd = [sys.executable,
           *([folder / '.run.py'] if launcher else ['-m', 'elmo_fastai.tasks.embed']), *args]
    return subprocess.Popen(
        list(map(str, cmd)),
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(p, stdin=None):
    out, err = p.communicate(stdin, timeout=300)
    assert b'Traceback' not in err and b'Warning' not in err, err.decode()
    return p.returncode, out.decode(), err.decode()

@pytest.fixture()
def folder(tmp_path, texts):
    make().save_pretrained(tmp_path/'m')
    (tmp_path/'in.txt').write_text('\n'.join(texts) + '\n')
    return tmp_path

def read(folder, name='o.hdf5'):
    with h5py.File(folder/name) as f: return {k: f[k][:] for k in f if k.isdigit()}

@pytest.mark.slow
def test_the_whole_command(folder, texts, elmo):
    status, out, err = finish(start(folder, 'in.txt', '--out', 'o.hdf5', '--model', 'm',
                                    '--tokenizer', 'space', '--device', 'cpu', launcher=False))
    got = read(folder)
    assert status == 0 and not err and re.search(r'o\.hdf5: 400 lines, [\d,]+ tokens', out)
    assert len(got) == len(texts) and all(
        close(got[str(i)], direct(elmo, t.split())) for i, t in enumerate(texts[:50]))
    assert sorted(f.name for f in folder.iterdir() if not f.name.startswith('.')) == [
        'in.txt', 'm', 'o.hdf5']


def test_standard_input(folder, texts, elmo, monkeypatch, capsys):
    def feed(data): monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=io.BytesIO(data)))
    feed('\n'.join([*texts[:5], 'bad \udcff']).encode('utf-8', 'surrogateescape'))
    code, err = command(capsys, '-', out=str(folder / 'o.hdf5'), model=str(folder / 'm'),
                        layers='-1', pool='mean', device='cpu')
    assert (code == 3 and 'line 6' in err and all_close(
        [read(folder)[str(i)] for i in range(5)], list(elmo.embed(texts[:5], -1, 'mean'))))
    feed(b'')
    assert command(
        capsys, '-', out=str(folder / 'p.hdf5'), model=str(folder / 'm'), device='cpu'
    ) == (1, 'elmo_embed: - is empty: there is nothing to embed\n')


def test_help_is_one_page(monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    p = embed_command_line()
    page = p.format_help()
    options = set(re.findall(r'^  (?:-h, )?(--[\w-]+)', page, re.M))
    assert options == {
        f'--{o}'
        for o in 'help out model layers pool text-col n-rows sep quotes header encoding token-col sent-col dtype tokenizer budget max-tokens threads device bf16 overwrite offsets'.split()
    }
    assert len(page.splitlines()) <= 60 and max(map(len, page.splitlines())) <= 100
    examples = re.findall(r'^  elmo_embed (.*?)(?:  .*)?$', page, re.M)
    assert len(examples) == 3
    for o in examples: assert {'source', 'out', 'model'} <= set(p.parse(o.split()))


def wait_for(f, p, seconds=120):
    end = time.monotonic() + seconds
    while not f.exists() and p.poll() is None and time.monotonic() < end: time.sleep(.01)
    assert f.exists(), p.communicate()[1].decode()

@pytest.mark.slow
def test_killed_and_interrupted(folder, texts, elmo, capsys, monkeypatch):
    """kill -9 in the middle, then Ctrl-C (here); the result is that of one go, and no portion is
    made twice"""
    # 6,000 lines
    (folder/'in.txt').write_text('\n'.join(f'{t} {i}' for i in range(15) for t in texts) + '\n')
    part = folder/'o.npz.part'
    def portions(): return {f.name: f.stat().st_mtime_ns for f in part.glob('0*.npz')}

    p = start(
        folder, 'in.txt', '--out', 'o.npz', '--model', 'm', '--budget', '256', '--device', 'cpu'
    )
    wait_for(part/'000006.npz', p)
    p.send_signal(signal.SIGKILL)
    p.communicate(timeout=60)
    killed = portions()
    assert p.returncode == -9 and not (folder/'o.npz').exists() and len(killed) >= 6
    monkeypatch.chdir(folder)
    add, stop = module.Part.add, len(killed) + 3
    def add_and_interrupt(self, *args):
        add(self, *args)
        if self.n == stop: signal.raise_signal(signal.SIGINT)
    with monkeypatch.context() as m:
        m.setattr(module.Part, 'add', add_and_interrupt)
        code, err = command(capsys, 'in.txt', out='o.npz', model='m', budget=256, device='cpu')
    assert (code == 130 and 'goes on from there' in err and len(err.strip().splitlines()) == 1
            and not (folder / 'o.npz').exists())
    assert killed.items() <= portions().items() and len(portions()) == stop
    told = []
    embed_file('in.txt', folder/'o.npz', elmo, budget=4096, say=told.append)
    assert 'Going on after' in told[0] and not part.exists()
    with np.load(folder/'o.npz') as f:
        assert len(f.files) == 6000
        for i in (0, 1, 399, 400, 4444, 5999):
            assert close(f[str(i)], direct(elmo, f'{texts[i % 400]} {i // 400}'.split()))


def test_overwrite_goes_on_after_an_interruption(folder, texts, capsys, monkeypatch):
    """As its message says; another job's beginning is dropped, and the old output stays until the
    new one is whole"""
    monkeypatch.chdir(folder)
    Path('o.npz').write_text('old')
    add = module.Part.add
    def add_and_interrupt(self, *args):
        add(self, *args)
        if self.n == 3: signal.raise_signal(signal.SIGINT)
    def interrupted(**kw):
        with monkeypatch.context() as m:
            m.setattr(module.Part, 'add', add_and_interrupt)
            code, err = command(capsys, 'in.txt', out='o.npz', model='m', budget=64, device='cpu',
                                overwrite=True, **kw)
        assert (code == 130 and 'the same command goes on from there' in err
                and Path('o.npz').read_text() == 'old')
        return {f.name: f.stat().st_mtime_ns for f in Path('o.npz.part').glob('0*.npz')}
    other, ours = interrupted(layers='0'), interrupted()
    assert len(other) == len(ours) == 3
    with monkeypatch.context() as m:
        m.setattr(module.Part, 'add', lambda self, *args: (_ for _ in ()).throw(Unplugged))
        with pytest.raises(Unplugged):
            command(capsys, 'in.txt', out='o.npz', model='m', budget=64, device='cpu',
                    overwrite=True)
    assert {f.name: f.stat().st_mtime_ns for f in Path('o.npz.part').glob('0*.npz')} == ours
    (folder/'in.txt').write_text('\n'.join(texts[::-1]))
    assert command(capsys, 'in.txt', out='o.npz', model='m', device='cpu', overwrite=True)[0] == 0
    with np.load('o.npz') as f:
        assert len(f.files) == 400 and close(f['0'], make().embed([texts[-1]], 'all')[0])


def test_an_error_is_not_blamed_on_the_device(folder, capsys, monkeypatch):
    def broken(*args, **kw): raise ZeroDivisionError('boom')
    monkeypatch.setattr(Elmo, 'embed', broken)
    monkeypatch.setattr(module, 'embed_window', broken)
    with pytest.raises(ZeroDivisionError, match='boom'):
        command(capsys, folder / 'in.txt', out=folder / 'o.npz', model=folder / 'm', device='cpu')
    code, err = command(capsys, folder/'in.txt', out=folder/'o.npz', model=folder/'m', device='xyz')
    assert code == 2 and "The device 'xyz' can't be used here (Expected one of cpu" in err
    monkeypatch.setattr(
        module, 'embed_window',
        lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError('CUDA out of memory')))
    code, err = command(capsys, folder/'in.txt', out=folder/'o.npz', model=folder/'m', device='cpu')
    assert code == 1 and 'smaller --budget' in err

def test_sigterm_is_an_interruption(folder, capsys, monkeypatch):
    (folder/'o.npz.part').mkdir()
    monkeypatch.setattr(module, 'embed_file', lambda *a, **k: signal.raise_signal(signal.SIGTERM))
    code, err = command(capsys, str(folder / 'in.txt'), out=str(folder / 'o.npz'),
                        model=str(folder / 'm'), device='cpu')
    assert code == 130 and 'goes on from there' in err

@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, 'RLIMIT_FSIZE'), reason='no limit for the size of files')
def test_a_full_disk(folder, elmo, texts, capsys):
    "While portions are written, and while the output is assembled"
    args = dict(input=str(folder / 'in.txt'), out=str(folder / 'o.hdf5'), model=str(folder / 'm'),
                budget=256, device='cpu')
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit,says in ((60_000, 'too large'), (700_000, "can't write .*o.hdf5.part")):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
            code, err = command(capsys, **args)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert code == 1 and len(err.strip().splitlines()) == 1 and re.search(says, err.lower()), (
            err)
    assert not (folder/'o.hdf5').exists() and not list((folder/'o.hdf5.part').glob('out*'))
    assert command(capsys, **args) == (0, '')
    assert close(read(folder)['7'], direct(elmo, texts[7].split()))

def command(capsys, *args, **kw):
    "In this process: (exit status, what stands on stderr)"
    old = signal.getsignal(signal.SIGTERM)
    if 'input' in kw: args = (kw.pop('input'), *args)
    for k, v in kw.items():
        args = (*args, *([] if v in (None, False) else [f'--{k}'] if v is True else [f'--{k}', v]))
    try: elmo_embed([str(o) for o in args]); code = 0
    except SystemExit as e: code = e.code
    assert signal.getsignal(signal.SIGTERM) is old
    return code, capsys.readouterr().err

@pytest.mark.parametrize('kw,says', [
    (dict(out=None), '--out'),
    (dict(model=None), '--model'),
    (dict(model='nothing'), 'no folder'),
    (dict(model='no/thing'), 'no/thing'),
    (dict(model='ai2:huge'), 'huge'),
    (dict(layers='7'), 'layers'),
    (dict(device='xyz'), "device 'xyz'"),
    (dict(input='none.txt'), 'no file'),
    (dict(out='o.docx'), 'hdf5'),
    (dict(tokenizer='x'), 'tokenizer'),
    (dict(budget=1), 'budget'),
    (dict(input='-', column='c'), 'is read line by line')], ids=str)
def test_wrong_options(folder, capsys, monkeypatch, kw, says):
    monkeypatch.chdir(folder)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    import huggingface_hub.constants as k

    monkeypatch.setattr(k, 'HF_HUB_OFFLINE', True)
    kw = {**dict(input='in.txt', out='o.npz', model='m', device='cpu'), **kw}
    code, err = command(capsys, **kw)
    is_usage = kw['model'] != 'no/thing'               # the network may be to blame
    assert (code == 1 + is_usage and err.startswith('elmo_embed: ')
            and len(err.strip().splitlines()) == 1 and re.search(says, err)), err
    assert not (folder/'o.npz').exists() and not (folder/'o.npz.part').exists()

@pytest.mark.parametrize('kw', [dict(norm='batch'), dict(tokenizer=str.split)], ids=str)
def test_the_device_is_not_blamed_for_the_model(folder, capsys, kw):
    """All layers of a model with a batch-wide mix, or with a tokenizer that no file can hold, can
    be had"""
    make(**kw).save_pretrained(folder/'m')
    assert command(
        capsys,
        str(folder / 'in.txt'),
        out=str(folder / 'o.hdf5'),
        model=str(folder / 'm'),
        tokenizer='space',
        device='cpu',
    ) == (0, '')


def test_ai2_folders_by_name(folder, capsys, elmo):
    pytest.importorskip('elmo_fastai.elmo.ai2')
    elmo.to_ai2(folder/'ai2')
    for name in (str(folder/'ai2'), f'ai2:{folder/"ai2"}'):
        (folder/'in.txt').write_text('the bank\n')
        assert command(
            capsys,
            str(folder / 'in.txt'),
            out=str(folder / 'o.hdf5'),
            model=name,
            device='cpu',
            overwrite=True,
        ) == (0, '')
        assert close(read(folder)['0'], direct(elmo, ['the', 'bank']))


@pytest.mark.parametrize('args,says', [
    (['none.conllu'], 'no file'), (['x.txt', '--text-col', 'a'], 'leave text_col'),
    (['x.csv', '--text-col', 'none'], "no column 'none'"), (['ud:xx_none'], 'unknown treebank'),
    (['x.txt', '--model', 'ai2:huge'], 'no published model')], ids=str)
def test_a_name_that_is_not_there_ends_with_2(tmp_path, monkeypatch, capsys, args, says):
    monkeypatch.chdir(tmp_path)
    Path('x.txt').write_text('a b\n')
    Path('x.csv').write_text('text,n\na b,1\n')
    model = [] if '--model' in args else ['--model', 'mini-en']
    with pytest.raises(SystemExit) as e: elmo_embed([*args, *model, '--out', 'o.h5'])
    err = capsys.readouterr().err
    assert e.value.code == 2 and says in err and len(err.strip().splitlines()) == 1, err
