"Neighbours of vectors that we make: searches against the plain one, tables that are safe, memory that stays"
import csv, gc, html, json, resource, sys, types, zlib
from collections import Counter
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.studies import neighbours as module
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.books import BOOKS, book_file, book_sentences
from elmo_fastai.text.corpora import Corpus, Sentence, local_folder, read_text, toy_corpus
from elmo_fastai.text.tokens import SPECIALS, WordVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train.command import RECIPES
from elmo_fastai.studies.neighbours import (
    TokenIndex, find_word, nearest, pair_probe, purity, read_pairs, sense_pairs, static_words,
    threshold)

D = 16
ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT/'models'/'toy'

class Made:
    "In the place of an `Elmo`: layer 0 knows the word, layer 1 its left neighbour too, layer 2 nothing"
    n_layers, dim, tokenize = 3, D, staticmethod(str.split)
    def __init__(self): self.known = {}
    def vec(self, w):
        if w not in self.known: self.known[w] = np.random.default_rng(zlib.crc32(w.encode('utf-8', 'replace'))).normal(size=D)
        return self.known[w]
    def to_tokens(self, sents): return [s.split() if isinstance(s, str) else list(s) for s in sents]
    def all(self, s):
        word = np.array([self.vec(w) for w in s]).reshape(-1, D)
        left = np.array([self.vec('left of ' + w) for w in ['<s>', *s]][:len(s)]).reshape(-1, D)
        return np.stack([word, word + left, np.random.default_rng(len(s)).normal(size=word.shape)]).astype(np.float32)
    def embed_iter(self, sents, layers='all'):
        for s in sents: yield self.all(s) if layers == 'all' else self.all(s)[1 if layers == 'mix' else layers]
    def embed(self, sents, layers='all', **kw): return list(self.embed_iter(self.to_tokens(sents), layers))

@pytest.fixture()
def elmo(): return Made()

def text(n, seed=0):
    rng, words = np.random.default_rng(seed), 'the old river money bank play of green'.split()
    return [[words[i] for i in rng.integers(0, len(words), rng.integers(1, 9))] for _ in range(n)]

def plain(elmo, query, t, sents, k, layer, same):
    "All cosines, sorted"
    q, best = elmo.all(query)[layer][t], {}
    for s in sents:
        if s == query: continue
        for i,v in enumerate(elmo.all(s)[layer]):
            if not same or s[i] == query[t]: best[tuple(s), i] = v@q/np.linalg.norm(v)/np.linalg.norm(q)
    return sorted(best.values(), reverse=True)[:k]

# words

def test_find_word():
    s = 'a b a c'.split()
    assert find_word(s, 'b') == 1 and find_word(s, 'a', 0) == 0 and find_word(s, 'a', 1) == 2 and find_word(s, 'c', 0) == 3
    for args,why in ((('a',), 'which=0 is the first, which=1 the last'), (('a', 2), 'not which=2'), (('a', -1), 'which=-1'), (('C',), "did you mean 'c'"), (('xyz',), 'not among'), (('a', 'x'), "which='x'")):
        with pytest.raises(CorpusError, match=why): find_word(s, *args)
    with pytest.raises(CorpusError): find_word([], 'a')

# searching

@pytest.mark.parametrize('layer', [0, 1, 2, -1])
@pytest.mark.parametrize('same', [True, False])
@pytest.mark.parametrize('chunk', [1, 7, 10**6])
def test_search_is_the_plain_one(elmo, layer, same, chunk):
    query, sents = 'the old bank'.split(), text(60)
    found = nearest(elmo, query, 'bank', sents, k=6, layer=layer, same_word=same, chunk=chunk)
    np.testing.assert_allclose([c for c,*_ in found.rows], plain(elmo, query, 2, sents, 6, layer, same), atol=1e-3)
    for c,s,t in found.rows: assert s in sents and s != query and (not same or s[t] == 'bank')
    assert len({(*s, t) for _,s,t in found.rows}) == 6 and found.word == 'bank' and len(found) == 6

@pytest.mark.parametrize('same', [True, False])
@pytest.mark.parametrize('block', [5, 10**6])
def test_index_is_the_search(elmo, same, block):
    query, sents = 'the old bank'.split(), text(80)
    index = TokenIndex(elmo, sents*2, layer=1, block=block)
    assert len(index) == sum(len(s) for s in {tuple(s) for s in sents})
    a, b = (nearest(elmo, query, 'bank', o, k=5, layer=1, same_word=same) for o in (sents, index))
    np.testing.assert_allclose([o[0] for o in a.rows], [o[0] for o in b.rows], atol=2e-3)

def test_corpora_of_every_kind(elmo):
    sents = text(40)
    lines = [' '.join(s) for s in sents]
    kinds = [sents, lines, iter(sents), (o for o in lines), tuple(lines), Corpus('c', dict(train=lines), 'space'), [Sentence(s) for s in sents], pd.Series(lines), np.array(lines, object)]
    first, *others = [nearest(elmo, 'the old bank', 'bank', o, k=3, layer=1).rows for o in kinds]
    assert all(o == first for o in others)

def test_the_sentence_itself_and_copies_are_no_neighbours(elmo):
    found = nearest(elmo, 'a bank', 'bank', ['a bank', 'a bank', 'the bank', 'the bank', 'one bank'], k=2, layer=1, chunk=1)
    assert sorted(s for _,s,_ in found.rows) == [['one', 'bank'], ['the', 'bank']]
    assert all(s != ['a', 'bank'] for _,s,_ in nearest(elmo, 'a bank', 'bank', ['a bank', 'the bank'], k=2, same_word=False).rows)

@pytest.mark.parametrize('kw,why', [(dict(k=0), 'k=0'), (dict(k=1.5), 'k=1.5'), (dict(k=True), 'k=True'), (dict(k=3), 'has 2 different occurrences'), (dict(layer=5), 'no layer 5'), (dict(layer='x'), "no layer 'x'"),
    (dict(word='cat'), "'cat' is not among"), (dict(corpus=[]), "No other sentence of the corpus has 'bank'"), (dict(corpus='text'), 'one text'), (dict(corpus=[], same_word=False), 'no other tokens')])
def test_errors_at_the_door(elmo, kw, why):
    args = dict(sentence='the bank', word='bank', corpus=['a bank', 'one bank', 'the bank'], k=2, layer=1)
    with pytest.raises(CorpusError, match=why): nearest(elmo, **{**args, **kw})

def test_what_is_no_sentence(elmo):
    with pytest.raises(TypeError, match='Sentence 1 is int'): nearest(elmo, 'the bank', 'bank', ['a bank', 7])
    with pytest.raises(CorpusError, match='no tokens'): TokenIndex(elmo, [[], ''])

@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_knn(n, m, k, seed):
    rng = np.random.default_rng(seed)
    x, q = (module.unit(rng.normal(size=(o, 6)).astype(np.float32)) for o in (n, m))
    cos, i = module.knn(x, q, k)
    assert cos.shape == i.shape == (m, min(k, n))
    np.testing.assert_allclose(cos, -np.sort(-(q @ x.T))[:, :k], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(q @ x.T, i, 1), cos, atol=1e-5)

def test_faiss_is_used_where_it_is_and_pays(monkeypatch):
    "A stand-in with the interface of `faiss.knn`"
    calls = []
    def knn(q, x, k, metric):
        calls.append((q.dtype, x.dtype, metric))
        s = q @ x.T
        i = np.argsort(-s)[:, :k]
        return np.take_along_axis(s, i, 1), i
    monkeypatch.setitem(sys.modules, 'faiss', types.SimpleNamespace(knn=knn, METRIC_INNER_PRODUCT=0))
    x = module.unit(np.random.default_rng(0).normal(size=(100_000, 4)))
    a = module.knn(x, x[:2], 3)
    monkeypatch.setitem(sys.modules, 'faiss', None)                       # not installed
    b = module.knn(x, x[:2], 3)
    assert calls == [(np.float32, np.float32, 0)]
    np.testing.assert_allclose(a[0], b[0], atol=1e-5)
    module.knn(x[:10], x[:2], 3)
    assert len(calls) == 1

def test_memory_does_not_grow_with_the_text(elmo):
    "Ten times the occurrences, about the same peak"
    import tracemalloc
    def peak(n):
        stream = ([str(i), 'bank', str(i*7)] for i in range(n))
        elmo.known.clear(); elmo.vec = lambda w: np.random.default_rng(len(w)).normal(size=D)
        tracemalloc.start()
        nearest(elmo, 'the bank', 'bank', stream, k=2, layer=0, chunk=100)
        p = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return p
    peak(200)
    assert peak(2000) < 1.3*peak(200)

# the table

class Reader(HTMLParser):
    def __init__(self): super().__init__(); self.tags, self.text, self.open = [], '', []
    def handle_starttag(self, tag, attrs): self.tags.append(tag); self.open += [tag]*(tag != 'br')
    def handle_endtag(self, tag): assert self.open.pop() == tag
    def handle_data(self, data): self.text += data

WILD = ['<script>alert(1)</script>', '&amp;', '"', "'", '{}', '{0}', '%s', '</td>', '\u202e', 'ſ', '<b>', '{word}']

@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WILD + ['bank']), min_size=1, max_size=20), min_size=1, max_size=5), st.data())
def test_tables_are_safe(rows, data):
    rows = [(.5, s, data.draw(st.integers(0, len(s)-1))) for s in rows]
    n = module.Neighbours(rows[0][1], rows[0][2], rows, [(w, .1) for w in WILD])
    r = Reader(); r.feed(n._repr_html_()); r.close()
    assert not r.open and set(r.tags) <= {'table', 'tr', 'th', 'td', 'b', 'br'} and r.tags.count('b') == len(rows)+1
    assert all(w in r.text for w in WILD if w != '\u202e')
    assert repr(n).count('\n') == len(rows)+1 and len(n.table) == len(rows)

def test_long_sentences_are_cut_around_the_word():
    s = [f'w{i}' for i in range(100)]
    t = module.marked(s, 50, str, '[{}]')
    assert t.startswith('… w38') and t.endswith('w62 …') and '[w50]' in t
    assert module.marked(s[:3], 0, str, '[{}]') == '[w0] w1 w2' and module.marked(s, 99, str, '[{}]').endswith('[w99]')

def test_static_neighbours_stand_beside(elmo):
    static = static_words(elmo, ['bank', 'play', 'river', 'bank'])
    assert len(static) == 3 and np.allclose(static['play'], elmo.vec('play'), atol=1e-6)
    found = nearest(elmo, 'the bank', 'bank', ['a bank'], k=1, static=static)
    assert [w for w,_ in found.static] == [w for w,_ in static.nearest('bank', 1)] and 'static vectors' in found._repr_html_()
    assert nearest(elmo, 'the old', 'old', ['a old'], k=1, static=static).static == [] and nearest(elmo, 'the bank', 'bank', ['a bank'], k=1).static is None
    with pytest.raises(CorpusError): static_words(elmo, [])
    assert static_words(elmo, WordVocab([*SPECIALS, 'the', 'bank'])).words == ['the', 'bank']

# purity

def examples(counts, words='bank bat'.split()):
    return [([s, w, f'e{i}'], 1, f'{w}/{s}') for w in words for s,n in zip('abcd', counts) for i in range(n)]

@pytest.mark.parametrize('whiten', [True, False, None])
def test_purity_of_what_is_known(elmo, whiten):
    t = purity(elmo, examples((20, 10)), k=4, whiten=whiten)
    assert t.purity['layer 1'] == 1 and t.purity['commonest sense'] == pytest.approx(2/3) and t.purity['layer 0'] < .8
    assert t.attrs == dict(occurrences=60, words=2, k=4)

def test_purity_counts_neighbours():
    "Against a loop over all pairs"
    elmo, ex = Made(), [(s, s.index('bank'), 'ab'[len(s) % 2]) for s in text(60) if s.count('bank') == 1]
    ex = [*{(tuple(s), t, l): (s, t, l) for s,t,l in ex}.values()]
    v = [elmo.all(s)[2][t] for s,t,_ in ex]
    v, hits = v - np.mean(v, 0), []
    for i,(_,_,l) in enumerate(ex):
        cos = [-np.inf if i == j else v[i]@v[j]/np.linalg.norm(v[i])/np.linalg.norm(v[j]) for j in range(len(ex))]
        hits += [ex[j][2] == l for j in np.argsort(-np.array(cos))[:3]]
    assert purity(elmo, ex, k=3, layers=2, whiten=False).purity['layer 2'] == pytest.approx(np.mean(hits), abs=.02)

def test_senses_too_rare_to_be_pure_are_not_asked(elmo):
    t = purity(elmo, examples((20, 3)), k=4)
    assert t.attrs['occurrences'] == 40 and t.purity['layer 1'] == 1 and t.purity['commonest sense'] == 1

def test_copies_make_nothing_pure(elmo):
    ex = examples((6, 6))
    assert purity(elmo, ex*3, k=2).attrs == purity(elmo, ex, k=2).attrs

@pytest.mark.parametrize('ex,k,why', [(examples((3, 3)), 3, 'more than k=3'), (examples((9,)), 2, 'two senses'), (examples((3, 3)), 0, 'k=0'), ([], 1, 'no examples'), ([(['a'], 1, 'x')], 1, 'position'), ([('a', 1)], 1, 'example 0: expected'), (['text'], 1, 'example 0')])
def test_nothing_to_be_pure(elmo, ex, k, why):
    with pytest.raises(CorpusError, match=why): purity(elmo, ex, k=k)

# pairs

def test_pairs_are_pairs():
    ex = examples((4, 3, 1))
    pairs = sense_pairs(ex, 200)
    sense = {(tuple(s), t): l for s,t,l in ex}
    assert len(pairs) == 200 and sum(o[4] for o in pairs) == 100 and pairs == sense_pairs(ex, 200) != sense_pairs(ex, 200, seed=1)
    for a,i,b,j,same in pairs: assert (sense[tuple(a), i] == sense[tuple(b), j]) == same and a[i] == b[j] and (a, i) != (b, j)
    for bad,why in (([], 'no examples'), (examples((1, 1)), 'No pairs'), (examples((5,)), 'No pairs'), ([(1, 2)], 'example 0: expected')):
        with pytest.raises(CorpusError, match=why): sense_pairs(bad)

@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=20))
def test_the_threshold_is_the_best(rows):
    scores, same = np.array([a for a,_ in rows], float), np.array([b for _,b in rows])
    got = ((scores >= threshold(scores, same)) == same).sum()
    assert got == max(((scores >= c) == same).sum() for c in [*scores, np.inf])

def test_pairs_are_told_apart(elmo):
    pairs = sense_pairs(examples((10, 10)), 300)
    t = pair_probe(elmo, pairs[:200], pairs[200:])
    assert t.accuracy['layer 1'] == 1 and t.accuracy['layer 0'] <= .6 and 0 < t['cosine from']['layer 1'] < 1
    with pytest.raises(CorpusError, match='pair 0: expected'): pair_probe(elmo, [(1, 2)], pairs)
    with pytest.raises(CorpusError, match='no examples'): pair_probe(elmo, [], pairs)
    with pytest.raises(CorpusError, match='position 9'): pair_probe(elmo, pairs, [(['a'], 9, ['a'], 0, True)])

def test_files_of_pairs(tmp_path):
    f = tmp_path/'p.tsv'
    f.write_text('sentence1\tposition1\tsentence2\tposition2\tsame\nthe bank\t1\ta bank of\t1\tT\nthe bank\t1\tbank\t0\t0\n')
    assert read_pairs(f) == [(['the', 'bank'], 1, ['a', 'bank', 'of'], 1, True), (['the', 'bank'], 1, ['bank'], 0, False)]
    f.write_text('sentence1\tposition1\tsentence2\tposition2\tsame\nthe bank\t1\ta bank of\t3\tT\n')
    with pytest.raises(CorpusError, match='row 2: position 3'): read_pairs(f)
    f.write_text('sentence1\tposition1\tsentence2\tposition2\tsame\nthe bank\t1\ta bank of\t1\tmaybe\n')
    with pytest.raises(CorpusError, match="'maybe' does not say"): read_pairs(f)

# with a model

def test_a_real_model_and_its_stream():
    torch.manual_seed(0)
    e = Elmo(BiLM(BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), proj_dim=8, hidden_dim=8), 0), tokenizer='space').eval()
    corpus = toy_corpus(n_train=300, n_valid=1, n_test=0, n_unseen=0)
    word = 'the'
    s = next(s for s in corpus.train if s.split().count(word) == 1)
    for layer in (0, 2, 'mix'):
        a, b = nearest(e, s, word, corpus, k=3, layer=layer), nearest(e, s, word, TokenIndex(e, corpus, layer), k=3)
        np.testing.assert_allclose([o[0] for o in a.rows], [o[0] for o in b.rows], atol=2e-3)

# the figures of chapter 12b

def best(rows): return max(r['purity'] for k,r in rows.items() if k.startswith('layer'))

def test_purity_that_was_measured():
    """0.95 is asked at the best layer. Trained models reach it with one, three and five neighbours from 24,000 sentences on (tests/benchmarks/probe.py);
    with 12,000 and five they do not, and the chapter says so. Figures of another recipe than today's do not count."""
    r = json.loads((ROOT/'nbs'/'results'/'neighbours.json').read_text(encoding='utf-8'))['purity']
    assert r['recipe'] == json.loads(json.dumps(RECIPES['toy'])) and len(r['runs']) >= 3
    for run in r['runs']:
        rows = {(o['pool'], o['k']): o['rows'] for o in run}
        for pool,k in product((24_000, 40_000), (1, 3, 5)):
            assert best(rows[pool, k]) >= .95 and rows[pool, k]['layer 0']['purity'] < rows[pool, k]['commonest sense']['purity'] < .7
        assert best(rows[12_000, 1]) >= .95 > best(rows[12_000, 5])

@pytest.mark.skipif(not (TOY/'config.json').exists(), reason='no model in models/toy: make pretrain leaves one there')
def test_purity_of_the_model_that_is_there():
    gold = toy_corpus(n_train=24_000, n_valid=0, n_test=0, n_unseen=0).gold['train']
    t = purity(Elmo.from_pretrained(TOY, tokenizer='space'), gold, k=5)
    assert t.purity.iloc[1:].max() >= .95 > .7 > t.purity['commonest sense'] > t.purity['layer 0']

def labelled_rows():
    with open(ROOT/'nbs'/'data'/'senses_real.csv', encoding='utf-8', newline='') as f: return [*csv.DictReader(f)]

def test_labels_of_real_text():
    rows = labelled_rows()
    assert len({(o['source'], o['sentence'], o['position']) for o in rows}) == len(rows)
    assert {o['source'] for o in rows} <= {*(b.name for b in BOOKS), *(f'wikitext-2 {s}' for s in ('train', 'valid', 'test'))}
    senses = Counter(o['sense'] for o in rows)
    words = Counter(s.split('/')[0] for s in senses)
    assert min(senses.values()) > 1 and min(words.values()) > 1 and len(words) == 15

@pytest.mark.skipif(not local_folder('novels'), reason='no folder novels in ELMO_FASTAI_DATA')
def test_labels_stand_where_they_say():
    book = next(b for b in BOOKS if b.name == 'Forster_View_1908')
    sents, tok = book_sentences(read_text(book_file(book, local_folder('novels'))), book.start), Elmo.from_pretrained('tiny-en').tokenize
    mine = [o for o in labelled_rows() if o['source'] == book.name]
    assert len(mine) > 5 and all(list(tok(sents[int(o['sentence'])]))[int(o['position'])] == o['sense'].split('/')[0] for o in mine)
