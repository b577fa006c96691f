"Embedding lists, streams and long texts; neighbours and influence; the cache"
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.text.tokens import word_tokenize
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
@given(
    st.lists(st.lists(st.text(max_size=5), max_size=9), max_size=8),
    st.integers(3, 60),
    st.sampled_from(['mix', 'all', 1]),
    st.sampled_from([None, 'mean', 'max', 'first_last']),
)
def test_budget_order_and_company_change_nothing(sents, budget, layers, pool):
    elmo = lasting()
    got = elmo.embed(sents, layers, pool, budget=budget)
    assert len(got) == len(sents)
    for s, v in zip(sents, got):
        h = direct(elmo, s, layers)
        if pool:
            P = h.shape[-1] // 2
            h = (np.zeros((*h.shape[:-2], 2*P), np.float32) if not s else h.mean(-2)
                 if pool == 'mean' else h.max(-2) if pool == 'max'
                 else np.concatenate([h[..., -1,:P], h[..., 0, P:]], -1))
        assert close(v, h)

def test_kinds_of_input(elmo, texts):
    ref = elmo.embed(texts[:20])
    assert same(elmo.embed(t for t in texts[:20]), ref) and same(
        elmo.embed(pd.Series(texts[:20], index=range(5, 25))), ref)
    assert same(elmo.embed(np.array(texts[:20], dtype=object)), ref) and same(
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

def no_sentences():
    "(what is no list of sentences, what the error says) by name"
    tables = frames()
    text = r"\['text'\]"
    return dict(
        one_text=('the bank', 'put it into a list'), bytes=(b'the bank', 'decode'),
        path=(Path('a.txt'), 'embed_file'),
        two_columns=(DF[['text']].to_numpy(), r"shape is \(2, 1\), take one column"),
        matrix=(np.zeros((2, 3)), 'shape'), tensor=(torch.zeros(2, 3, 50), 'shape'),
        unordered=({'the bank', 'a river'}, 'no order'), number=(7, 'int 7'),
        nothing=(None, 'None'), sets=([{'a', 'b'}], 'Sentence 0 is set'),
        rows=(DF.to_dict('records'), f'Sentence 0 is dict.*as in .*{text}'),
        stream=(tables['dataset'].to_iterable_dataset(), text),
        frame=(DF, 'df' + text), parts=(tables.pop('parts'), r"\['train'\]"),
        **{name: (table, text) for name,table in tables.items() if name != 'frame'})

def test_what_is_no_list_of_sentences_is_refused(elmo):
    "Every door of `Elmo`; a table's column names and a dictionary's keys are no sentences"
    for name,(value, says) in no_sentences().items():
        doors = [elmo.embed, lambda x: list(elmo.embed_iter(x)),
                 lambda x: list(elmo.embed_iter(x, pool='mean')), elmo.to_tokens]
        if name != 'tensor': doors += [elmo, elmo.layers]
        for door in doors:
            with pytest.raises(TypeError, match=says): door(value)

def test_columns_of_every_kind_are_sentences(elmo):
    ref = elmo.embed(['the bank', 'a river'])
    rows = frames()['dataset']
    for texts in (DF.text, DF['text'].to_numpy(), rows['text'], (r['text'] for r in rows),
                  DF.text.astype('category'),
                  pd.Series(DF.text.values, index=['columns', 'ndim'])):
        assert same(elmo.embed(texts), ref)

@pytest.mark.parametrize('kw', [
    dict(layers='top'), dict(layers=3), dict(layers=-4), dict(layers=True), dict(pool='sum'),
    dict(dtype='int8'), dict(budget=2), dict(budget=9.5)], ids=str)
def test_settings_that_can_not_be(elmo, kw):
    with pytest.raises(ValueError, match=next(iter(kw))):
        elmo.embed(['a'], **kw)

def test_batch_norm_needs_company():
    elmo = lasting(norm='batch')
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
    elmo = lasting().unfreeze(top=1).train()
    elmo.lm.drop.training = True
    modes = [m.training for m in elmo.modules()]
    elmo.embed(texts[:5])
    assert [m.training for m in elmo.modules()] == modes
    with pytest.raises(TypeError): elmo.embed(['a', 3])
    assert [m.training for m in elmo.modules()] == modes

def test_no_gradients_and_no_state(texts):
    elmo = lasting(carry=True).unfreeze()
    elmo([['a', 'b']])
    state = elmo.state[0].clone()
    a, b = elmo.embed(texts[:5]), elmo.embed(texts[:5])
    assert same(a, b, 0) and torch.equal(elmo.state[0], state)

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
    assert same(elmo.embed(texts[:50], progress=True), elmo.embed(texts[:50], progress=False), 0)
    capsys.readouterr()
    elmo.embed(texts*3)                                                 # no bar into a pipe
    assert not capsys.readouterr().out

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
    (tmp_path/'a.conll').write_text('\n\n'.join('\n'.join(f'X {word}' for word in s) for s in sents))
    pd.testing.assert_frame_equal(first, elmo.nearest('the old bank', 'bank', tmp_path/'a.conll', k=3, token_col=1), atol=1e-5)

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
    with pytest.raises(ValueError, match='is not UTF-8: its byte 10'):
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

def step(elmo):
    opt = torch.optim.AdamW([p for g in elmo.groups() for p in g], 1e-1, fused=True)
    elmo.unfreeze()(['the bank'])[0][0].sum().backward(); opt.step(); elmo.freeze()

def test_training_between_two_halves_of_a_stream(elmo, texts):
    out = elmo.embed_iter(texts, 'all', budget=32)
    for _ in range(5): next(out)
    step(elmo)
    rest = list(out)
    assert close(rest[-1], direct(elmo.eval(), word_tokenize(texts[-1])), 1e-4)

# threads

@pytest.fixture(scope='module')
def strange():
    "Short texts that share few words"
    rng = np.random.default_rng(1)
    def word(): return ''.join(rng.choice(list('abcdefghijklmnop'), size=rng.integers(2, 9)))
    return [' '.join(word() for _ in range(4)) for _ in range(200)]

def embed_each(elmo, texts, n_threads):
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(lambda text: elmo.embed([text])[0], texts))

@pytest.mark.parametrize('n_threads', [2, 4, 8])
def test_threads_embed_what_one_thread_embeds(elmo, strange, n_threads):
    "From a cold start, and afterwards in one thread again"
    wanted = [elmo.embed([text])[0] for text in strange]
    cold = lasting()
    for vectors in (embed_each(cold, strange, n_threads), embed_each(cold, strange, 1),
                    cold.embed(strange)):
        for want, found in zip(wanted, vectors, strict=True):
            np.testing.assert_allclose(found, want, atol=1e-5)
