"""Neighbours of vectors that we make: searches against the plain one, tables that are safe, memory
that stays; and changed words"""

import csv, json, zlib
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from fastcore.basics import chunked
from hypothesis import given, settings, strategies as st

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import local_folder, read_text, toy_corpus, wikitext2
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.module import Elmo
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/probes')
books = page('library/books')
purity = study.purity
nearest, Neighbours, TokenIndex = study.nearest, study.Neighbours, study.TokenIndex
change_words, misspell = study.change_words, study.misspell

D = 16
ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT/'models'/'toy'

class Made:
    """In the place of an `Elmo`: layer 0 knows the word, layer 1 its left neighbour too, layer 2
    nothing"""

    n_layers, dim, tokenize = 3, D, staticmethod(str.split)
    def __init__(self): self.known = {}
    def vec(self, w):
        if w not in self.known:
            self.known[w] = np.random.default_rng(zlib.crc32(w.encode('utf-8', 'replace'))).normal(
                size=D
            )
        return self.known[w]
    def to_tokens(self, sents): return [s.split() if isinstance(s, str) else list(s) for s in sents]
    def all(self, s):
        word = np.array([self.vec(w) for w in s]).reshape(-1, D)
        left = np.array([self.vec('left of ' + w) for w in ['<s>', *s]][:len(s)]).reshape(-1, D)
        return np.stack(
            [word, word + left, np.random.default_rng(len(s)).normal(size=word.shape)]
        ).astype(np.float32)

    def embed_iter(self, sents, layers='all'):
        for s in sents:
            yield self.all(s) if layers == 'all' else self.all(s)[1 if layers == 'mix' else layers]

    def embed(self, sents, layers='all', **kw):
        return list(self.embed_iter(self.to_tokens(sents), layers))


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
            if not same or s[i] == query[t]:
                best[tuple(s), i] = v @ q / np.linalg.norm(v) / np.linalg.norm(q)
    return sorted(best.values(), reverse=True)[:k]

# searching

@pytest.mark.parametrize('layer', [0, 1, 2, -1])
@pytest.mark.parametrize('same', [True, False])
@pytest.mark.parametrize('n', [1, 7, 10**6])
def test_search_is_the_plain_one(elmo, layer, same, n, monkeypatch):
    query, sents = 'the old bank'.split(), text(60)
    monkeypatch.setitem(nearest.__globals__, 'chunked', lambda o, size: chunked(o, n))
    found = nearest(elmo, query, 'bank', sents, k=6, layer=layer, same_word=same)
    np.testing.assert_allclose(
        [c for c, *_ in found], plain(elmo, query, 2, sents, 6, layer, same), atol=1e-3
    )
    for c,s,t in found: assert s in sents and s != query and (not same or s[t] == 'bank')
    assert len({(*s, t) for _,s,t in found}) == 6 == len(found)

@pytest.mark.parametrize('same', [True, False])
@pytest.mark.parametrize('block', [5, 10**6])
def test_index_is_the_search(elmo, same, block):
    query, sents = 'the old bank'.split(), text(80)
    index = TokenIndex(elmo, sents*2, layer=1, block=block)
    assert len(index) == sum(len(s) for s in {tuple(s) for s in sents})
    a, b = (nearest(elmo, query, 'bank', o, k=5, layer=1, same_word=same) for o in (sents, index))
    np.testing.assert_allclose([o[0] for o in a], [o[0] for o in b], atol=2e-3)

def test_corpora_of_every_kind(elmo):
    sents = text(40)
    lines = [' '.join(s) for s in sents]
    kinds = [
        sents,
        lines,
        iter(sents),
        (o for o in lines),
        tuple(lines),
        pd.Series(lines),
        np.array(lines, object),
    ]
    first, *others = [nearest(elmo, 'the old bank', 'bank', o, k=3, layer=1) for o in kinds]
    assert all(o == first for o in others)

def test_the_sentence_itself_and_copies_are_no_neighbours(elmo):
    found = nearest(
        elmo,
        'a bank',
        'bank',
        ['a bank', 'a bank', 'the bank', 'the bank', 'one bank'],
        k=2,
        layer=1,
    )
    assert sorted(s for _,s,_ in found) == [['one', 'bank'], ['the', 'bank']]
    assert all(
        s != ['a', 'bank']
        for _, s, _ in nearest(elmo, 'a bank', 'bank', ['a bank', 'the bank'], k=2, same_word=False)
    )


def test_one_of_several_occurrences(elmo):
    s = 'a bank to bank'.split()
    first, second = (
        nearest(elmo, s, 'bank', ['a bank', 'to bank'], k=1, layer=1, which=i)[0][1] for i in (0, 1)
    )
    assert first == ['a', 'bank'] and second == ['to', 'bank']

@pytest.mark.parametrize(
    'kw,why',
    [
        (dict(word='cat'), "'cat' is not among"),
        (dict(word='Bank'), "did you mean bank"),
        (dict(corpus=[]), "No other sentence of the corpus has 'bank'"),
        (dict(corpus='text'), 'one text'),
        (dict(corpus=[], same_word=False), 'No other sentence'),
    ],
)
def test_errors_at_the_door(elmo, kw, why):
    args = dict(
        sentence='the bank', word='bank', corpus=['a bank', 'one bank', 'the bank'], k=2, layer=1
    )
    with pytest.raises(CorpusError, match=why): nearest(elmo, **{**args, **kw})

def test_what_is_no_sentence(elmo):
    with pytest.raises(TypeError, match='Sentence 1 is int'):
        nearest(elmo, 'the bank', 'bank', ['a bank', 7])
    with pytest.raises(CorpusError, match='No other sentence'):
        nearest(elmo, 'the bank', 'bank', TokenIndex(elmo, [[], '']))


def test_memory_does_not_grow_with_the_text(elmo):
    "Six times the occurrences, about the same peak"
    import tracemalloc
    def peak(n):
        stream = ([str(i), 'bank', str(i*7)] for i in range(n))
        elmo.known.clear(); elmo.vec = lambda w: np.random.default_rng(len(w)).normal(size=D)
        tracemalloc.start()
        nearest(elmo, 'the bank', 'bank', stream, k=2, layer=0)
        p = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return p
    peak(1000)
    assert peak(6000) < 1.3*peak(1000)

# the table

WILD = ['<script>alert(1)</script>', '&amp;', '"', "'", '{}', '</td>', '<b>']

def test_tables_are_safe():
    n = Neighbours([(.5, WILD, i) for i in range(len(WILD))])
    page = n._repr_html_()
    assert (
        '<script>' not in page
        and '&lt;script&gt;' in page
        and '<b>' not in page
        and len(n.table()) == len(WILD)
    )
    assert repr(n).count('\n') == len(WILD)

def test_long_sentences_are_cut_around_the_word():
    s = [f'w{i}' for i in range(100)]
    def row(s, t): return Neighbours([(.123456, s, t)]).table(3).iloc[0].tolist()

    assert (
        row(s, 50) == [0.123, 'w47 w48 w49', 'w50', 'w51 w52 w53']
        and row(s[:2], 0) == [0.123, '', 'w0', 'w1']
        and row(s, 99)[3] == ''
    )


# purity

def examples(counts, words='bank bat'.split()):
    return [
        ([s, w, f'e{i}'], 1, f'{w}/{s}')
        for w in words
        for s, n in zip('abcd', counts)
        for i in range(n)
    ]


@pytest.mark.parametrize('whiten', [True, False, None])
def test_purity_of_what_is_known(elmo, whiten):
    t = purity(elmo, examples((20, 10)), k=4, whiten=whiten)
    assert (
        t.purity['layer 1'] == 1
        and t.purity['commonest sense'] == pytest.approx(2 / 3)
        and t.purity['layer 0'] < 0.8
    )
    assert t.attrs == dict(occurrences=60, words=2, k=4)

def test_purity_counts_neighbours():
    "Against a loop over all pairs"
    elmo, ex = (
        Made(),
        [(s, s.index('bank'), 'ab'[len(s) % 2]) for s in text(60) if s.count('bank') == 1],
    )
    ex = [*{(tuple(s), t, l): (s, t, l) for s,t,l in ex}.values()]
    v = [elmo.all(s)[2][t] for s,t,_ in ex]
    v, hits = v - np.mean(v, 0), []
    for i,(_,_,l) in enumerate(ex):
        cos = [
            -np.inf if i == j else v[i] @ v[j] / np.linalg.norm(v[i]) / np.linalg.norm(v[j])
            for j in range(len(ex))
        ]
        hits += [ex[j][2] == l for j in np.argsort(-np.array(cos))[:3]]
    assert purity(elmo, ex, k=3, whiten=False).purity['layer 2'] == pytest.approx(
        np.mean(hits), abs=0.02
    )


def test_senses_too_rare_to_be_pure_are_not_asked(elmo):
    t = purity(elmo, examples((20, 3)), k=4)
    assert (
        t.attrs['occurrences'] == 40
        and t.purity['layer 1'] == 1
        and t.purity['commonest sense'] == 1
    )


def test_copies_make_nothing_pure(elmo):
    ex = examples((6, 6))
    assert purity(elmo, ex*3, k=2).attrs == purity(elmo, ex, k=2).attrs

@pytest.mark.parametrize(
    'ex,k,why',
    [
        (examples((3, 3)), 3, 'more than k=3'),
        (examples((9,)), 2, 'two senses'),
        ([], 1, 'no token with a label'),
    ],
)
def test_nothing_to_be_pure(elmo, ex, k, why):
    with pytest.raises(CorpusError, match=why):
        purity(elmo, ex, k=k)


# with a model

def test_a_real_model_and_its_stream():
    torch.manual_seed(0)
    e = Elmo(
        BiLM(BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8), 0),
        tokenizer='space',
    ).eval()
    corpus = toy_corpus(n_train=300, n_valid=1, n_test=0, n_unseen=0)
    word = 'the'
    s = next(s for s in corpus.train if s.split().count(word) == 1)
    for layer in (0, 2, 'mix'):
        a, b = (
            nearest(e, s, word, corpus.train, k=3, layer=layer),
            nearest(e, s, word, TokenIndex(e, corpus.train, layer), k=3),
        )
        np.testing.assert_allclose([o[0] for o in a], [o[0] for o in b], atol=2e-3)

# the figures of chapter 12b

def best(rows): return max(r['purity'] for k,r in rows.items() if k.startswith('layer'))

def test_purity_that_was_measured():
    """0.95 is asked at the best layer. Trained models reach it with one, three and five neighbours
    from 24,000 sentences on (tests/benchmarks/probe.py);
    with 12,000 and five they do not, and the chapter says so. The models read 100,000 sentences
    three times, as the file knows."""
    r = json.loads((ROOT/'nbs'/'results'/'neighbours.json').read_text(encoding='utf-8'))['purity']
    assert (r['recipe']['model'], r['recipe']['epochs']) == ('tiny', 3) and len(r['runs']) >= 3
    for run in r['runs']:
        rows = {(o['pool'], o['k']): o['rows'] for o in run}
        for pool,k in product((24_000, 40_000), (1, 3, 5)):
            assert (
                best(rows[pool, k]) >= 0.95
                and rows[pool, k]['layer 0']['purity']
                < rows[pool, k]['commonest sense']['purity']
                < 0.7
            )
        assert best(rows[12_000, 1]) >= .95 > best(rows[12_000, 5])

@pytest.mark.skipif(
    not (TOY / 'config.json').exists(),
    reason='no model in models/toy: make pretrain leaves one there',
)
def test_purity_of_the_model_that_is_there():
    gold = toy_corpus(n_train=24_000, n_valid=0, n_test=0, n_unseen=0).gold['train']
    t = purity(Elmo.from_pretrained(TOY, tokenizer='space'), gold, k=5)
    assert t.purity.iloc[1:].max() >= 0.95 > 0.7 > t.purity['commonest sense'] > t.purity['layer 0']


def labelled_rows():
    with open(ROOT / 'nbs' / 'data' / 'senses_real.csv', encoding='utf-8', newline='') as f:
        return [*csv.DictReader(f)]


def test_labels_of_real_text():
    rows = labelled_rows()
    assert len({(o['source'], o['sentence'], o['position']) for o in rows}) == len(rows)
    assert {o['source'] for o in rows} <= {
        *(b.name for b in books.BOOKS),
        *(f'wikitext-2 {s}' for s in ('train', 'valid', 'test')),
    }
    senses = Counter(o['sense'] for o in rows)
    words = Counter(s.split('/')[0] for s in senses)
    assert min(senses.values()) > 1 and min(words.values()) > 1 and len(words) == 15

@pytest.mark.parametrize('source', ['Forster_View_1908', 'wikitext-2 valid', 'wikitext-2 test'])
def test_labels_stand_where_they_say(source):
    if not local_folder('novels') or not local_folder('wikitext-2'):
        pytest.skip('no folders novels and wikitext-2 in ELMO_FASTAI_DATA')
    tok, mine = (
        Elmo.from_pretrained('mini-en').tokenize,
        [o for o in labelled_rows() if o['source'] == source],
    )
    if source.startswith('wikitext'):
        sents = books.wikitext_sentences(getattr(wikitext2(), source.split()[1]))
    else:
        book = next(b for b in books.BOOKS if b.name == source)
        sents = books.book_sentences(
            read_text(books.book_file(book, local_folder('novels'))), book.start
        )
    assert len(mine) > 5 and all(
        list(tok(sents[int(o['sentence'])]))[int(o['position'])] == o['sense'].split('/')[0]
        for o in mine
    )


# changed words

@settings(max_examples=200, deadline=None)
@given(st.text('abcdefgh', max_size=12), st.integers(0, 10**6))
def test_one_typing_error(word, seed):
    got = misspell(word, np.random.default_rng(seed))
    assert got[:1] == word[:1] and abs(len(got) - len(word)) <= 1
    assert (got == word) == (len(word) < 3)

CHANGES = {
    'typing error': lambda w, tag, rng: misspell(w, rng),
    'CAPITALS': lambda w, tag, rng: w.upper(),
}


@pytest.mark.parametrize('how', CHANGES.values(), ids=CHANGES)
def test_a_share_of_the_words_is_changed(how):
    data = toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).gold['train']
    before = [(s.tokens, s.tags) for s in data]
    n = sum(w.isalpha() and len(w) > 2 for s in data for w in s.tokens)
    for share in (0, .3, 1):
        after = change_words(data, how, share)
        assert [t for _, t in after] == [t for _, t in before] and [len(s) for s, _ in after] == [
            len(s) for s, _ in before
        ]
        changed = sum(
            a != b for (s, _), (u, _) in zip(before, after) for a, b in zip(s, u) if len(a) > 2
        )
        assert abs(changed/n - share) < .06 and (share == 0) == (changed == 0)
    assert all(a == b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u) if not a.isalpha())
    assert (
        change_words(data, how, 0.5)
        == change_words(data, how, 0.5)
        != change_words(data, how, 0.5, seed=1)
    )


def test_changes_of_ones_own():
    with pytest.raises(CorpusError, match='2 tokens and 1'):
        change_words([(['a', 'b'], ['X'])], CHANGES['CAPITALS'])
    assert change_words([(['ab'], ['X'])], lambda w,t,rng: w+t) == [(['abX'], ['X'])]
