"""The study of the layers: purity of neighbours, the labels of real text, changed words"""

import csv, zlib
from collections import Counter
from pathlib import Path

import numpy as np, pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import toy_corpus, wikitext2
from elmo_fastai.text.read import lines_of
from elmo_fastai.elmo import Elmo
from copies import local
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/probes')
books = page('library/books')
purity = study.purity
change_words, misspell = study.change_words, study.misspell

D = 16
ROOT = Path(__file__).resolve().parents[1]

class Made:
    """In the place of an `Elmo`: layer 0 knows the word, layer 1 its left neighbour too, layer 2
    nothing"""

    n_layers, dim, tokenize = 3, D, staticmethod(str.split)
    def __init__(self): self.known = {}
    def vec(self, w):
        if w not in self.known:
            self.known[w] = np.random.default_rng(
                zlib.crc32(w.encode('utf-8', 'replace'))).normal(size=D)
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

# purity

def examples(counts, words='bank bat'.split()):
    return [([s, w, f'e{i}'], 1, f'{w}/{s}') for w in words for s, n in zip('abcd', counts)
            for i in range(n)]

@pytest.mark.parametrize('whiten', [True, False, None])
def test_purity_of_what_is_known(elmo, whiten):
    t = purity(elmo, examples((20, 10)), k=4, whiten=whiten)
    assert (t.purity['layer 1'] == 1 and t.purity['commonest sense'] == pytest.approx(2/3)
            and t.purity['layer 0'] < 0.8)
    assert t.attrs == dict(occurrences=60, words=2, k=4)

def test_purity_counts_neighbours():
    "Against a loop over all pairs"
    elmo = Made()
    ex = [(s, s.index('bank'), 'ab'[len(s) % 2]) for s in text(60) if s.count('bank') == 1]
    ex = [*{(tuple(s), t, l): (s, t, l) for s,t,l in ex}.values()]
    v = [elmo.all(s)[2][t] for s,t,_ in ex]
    v, hits = v - np.mean(v, 0), []
    for i,(_,_,l) in enumerate(ex):
        cos = [-np.inf if i == j else v[i] @ v[j]/np.linalg.norm(v[i])/np.linalg.norm(v[j])
               for j in range(len(ex))]
        hits += [ex[j][2] == l for j in np.argsort(-np.array(cos))[:3]]
    assert purity(elmo, ex, k=3, whiten=False).purity['layer 2'] == pytest.approx(
        np.mean(hits), abs=0.02)

def test_senses_too_rare_to_be_pure_are_not_asked(elmo):
    t = purity(elmo, examples((20, 3)), k=4)
    assert (t.attrs['occurrences'] == 40 and t.purity['layer 1'] == 1
            and t.purity['commonest sense'] == 1)

def test_copies_make_nothing_pure(elmo):
    ex = examples((6, 6))
    assert purity(elmo, ex*3, k=2).attrs == purity(elmo, ex, k=2).attrs

@pytest.mark.parametrize('ex,k,why', [
    (examples((3, 3)), 3, 'more than k=3'),
    (examples((9,)), 2, 'two senses'),
    ([], 1, 'no token with a label')])
def test_nothing_to_be_pure(elmo, ex, k, why):
    with pytest.raises(CorpusError, match=why):
        purity(elmo, ex, k=k)

def labelled_rows():
    with open(ROOT/'nbs'/'data'/'senses_real.csv', encoding='utf-8', newline='') as f:
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
    novels, wiki = local('novels'), local('wikitext-2')
    tok = Elmo.from_pretrained('mini-en').tokenize
    mine = [o for o in labelled_rows() if o['source'] == source]
    if source.startswith('wikitext'):
        sents = books.wikitext_sentences(getattr(wikitext2(wiki), source.split()[1]))
    else:
        book = next(b for b in books.BOOKS if b.name == source)
        text = ''.join(lines_of(books.book_file(book, novels)))
        sents = books.book_sentences(text, book.start)
    assert len(mine) > 5
    for o in mine:
        word = list(tok(sents[int(o['sentence'])]))[int(o['position'])]
        assert word == o['sense'].split('/')[0]

# changed words

@settings(max_examples=200)
@given(st.text('abcdefgh', max_size=12), st.integers(0, 10**6))
def test_one_typing_error(word, seed):
    got = misspell(word, np.random.default_rng(seed))
    assert got[:1] == word[:1] and abs(len(got) - len(word)) <= 1
    assert (got == word) == (len(word) < 3)

CHANGES = {'typing error': lambda w, tag, rng: misspell(w, rng),
           'CAPITALS': lambda w, tag, rng: w.upper()}

@pytest.mark.parametrize('how', CHANGES.values(), ids=CHANGES)
def test_a_share_of_the_words_is_changed(how):
    data = toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).gold['train']
    before = [(s.tokens, s.tags) for s in data]
    n = sum(w.isalpha() and len(w) > 2 for s in data for w in s.tokens)
    for share in (0, .3, 1):
        after = change_words(data, how, share)
        assert [t for _,t in after] == [t for _,t in before]
        pairs = [*zip(before, after)]
        assert all(len(s) == len(u) for (s,_),(u,_) in pairs)
        changed = sum(a != b for (s,_),(u,_) in pairs for a,b in zip(s, u) if len(a) > 2)
        assert abs(changed/n - share) < .06 and (share == 0) == (changed == 0)
    assert all(a == b for (s,_),(u,_) in zip(before, after) for a,b in zip(s, u) if not a.isalpha())
    assert (change_words(data, how, 0.5)
            == change_words(data, how, 0.5) != change_words(data, how, 0.5, seed=1))

def test_changes_of_ones_own():
    with pytest.raises(CorpusError, match='2 tokens and 1'):
        change_words([(['a', 'b'], ['X'])], CHANGES['CAPITALS'])
    assert change_words([(['ab'], ['X'])], lambda w,t,rng: w+t) == [(['abX'], ['X'])]
