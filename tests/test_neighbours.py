"""The study of the layers: probes of tags and senses on vectors that we make, purity of
neighbours, the labels of real text, changed words"""

import csv, zlib
from collections import Counter
from pathlib import Path

import numpy as np, pandas as pd, pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import toy_corpus, wikitext2
from elmo_fastai.text.read import lines_of
from elmo_fastai.elmo import Elmo
from elmo_fastai.practice.scores import bootstrap
from copies import local
import books
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/probes')
purity, linear_probe, sense_probe = study.purity, study.linear_probe, study.sense_probe
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

def examples(counts, words='bank bat', end='e'):
    return [([s, w, f'{end}{i}'], 1, f'{w}/{s}') for w in words.split()
            for s,n in zip('abcd', counts) for i in range(n)]
def others(counts, words='bank bat'): return examples(counts, words, 'f')      # other sentences

# probes of tags

def sents(n, seed=0):
    "Sentences whose tag is that of the word's left neighbour"
    words = np.random.default_rng(seed).choice('red blue green dog cat runs the'.split(), (n, 6))
    tags = dict(red='A', blue='A', the='B')
    return [([*s], [tags.get(w, 'C') for w in ['<s>', *s]][:6]) for s in words.tolist()]

def test_models_are_compared_on_the_same_draws():
    a = np.random.default_rng(0).random(400) < .6
    right = dict(base=np.ones((1, 400)), one=a[None], two=(a | (np.arange(400) < 40))[None])
    table = study.compare(right, np.arange(400), of=['one', 'two'])
    assert table.best['two'] > .99 and np.isnan(table.best['base'])
    assert table.high['one'] > table.low['two']
    assert table.loc['one', ['accuracy', 'low', 'high']].tolist() == pytest.approx(bootstrap(a), abs=.01)

def test_what_was_not_asked_does_not_count_and_seeds_are_drawn():
    right = np.array([[1, 0, np.nan, np.nan], [np.nan, np.nan, 1, 1]])
    assert study.compare(dict(layer=right), [0, 1, 2, 3]).accuracy.iloc[0] == .75
    seeds = np.array([[1.]*50, [0.]*50])                    # one seed is right, the other wrong
    table = study.compare(dict(layer=seeds), np.arange(50))
    assert (table.low.iloc[0], table.accuracy.iloc[0], table.high.iloc[0]) == (0, .5, 1)

def test_a_probe_finds_what_is_there():
    a, t = (linear_probe(Made(), sents(300), sents(80, 1), seeds=2) for _ in range(2))
    pd.testing.assert_frame_equal(a, t)
    assert t.accuracy['layer 1'] > .97 and t.best['layer 1'] == 1
    assert all(t.accuracy[k] < t.accuracy['commonest label'] + .08 for k in ('layer 0', 'layer 2'))

def test_sentences_that_are_asked_are_not_learned_from(elmo):
    data, other = sents(40), sents(30, 1)
    t = linear_probe(elmo, data + other, data, seeds=1, share=1.)
    assert t.attrs['train'] == 6*sum(s not in [a for a,_ in data] for s,_ in other)
    same = twice(60)[:60]
    t = sense_probe(elmo, same + examples((5, 5), 'bank'), same, seeds=1, share=1.)
    assert t.attrs['train'] == 10
    for ask,some in ((linear_probe, data), (sense_probe, same)):
        with pytest.raises(CorpusError, match='all sentences to learn from are among'):
            ask(elmo, some, some)

# senses

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('counts', [(20, 20), (12, 8, 5)])
def test_senses_that_can_be_told_are_told(elmo, how, counts):
    t = sense_probe(elmo, examples(counts), others(counts), how=how)
    assert t.accuracy['layer 1'] == 1 and t['macro-F1']['layer 1'] == 1
    assert t.accuracy['layer 0'] == t.accuracy['commonest sense']
    assert t.accuracy['commonest sense'] == pytest.approx(max(counts)/sum(counts))

def test_who_is_asked(elmo):
    "The rest without a second set; no word that was not learned; words as they are, but for capitals"
    t = sense_probe(elmo, examples((10, 5)), share=.8)
    assert t.accuracy['layer 1'] == 1 and (t.attrs['train'], t.attrs['dev']) == (24, 6)
    t = sense_probe(elmo, examples((5, 5), 'bank'), others((5, 5)) + others((3,), 'rock'))
    assert (t.attrs['words'], t.attrs['dev']) == (1, 10)
    assert sense_probe(elmo, examples((5, 5), 'bank'), others((2, 2), 'Bank')).attrs['dev'] == 4

@pytest.mark.parametrize('train,dev,why', [
    (examples((3, 1)), None, "'bank/b' of 'bank' has one example"),
    ([], None, 'no token with a label'),
    ([(['a', 'bank'], 2, 'x')], None, 'no token 2'),
    (examples((3,)), others((3,)), 'two senses')])
def test_examples_that_are_none(elmo, train, dev, why):
    with pytest.raises(CorpusError, match=why): sense_probe(elmo, train, dev)

@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from('ab'), st.sampled_from('xyz')), min_size=4, max_size=30),
       st.integers(0, 5), st.floats(0.05, 0.95))
def test_each_sense_is_divided(pairs, seed, share):
    words, senses = zip(*pairs)
    tokens = study.Tokens(np.array(words, object), np.array(senses), np.arange(len(pairs)),
                          np.zeros((len(pairs), 1, 1)))
    learned = study.deal(tokens, seed, share)
    for k,n in Counter(pairs).items():
        inside = sum(learned[i] for i,p in enumerate(pairs) if p == k)
        assert inside == 0 if n == 1 else 0 < inside < n

def twice(n=150):
    "Sentences that occur twice, each with a sense that was drawn at random"
    senses = np.random.default_rng(0).integers(0, 2, n)
    return [([f'l{i}', 'bank', f'r{i}'], 1, f'bank/{s}') for i,s in enumerate(senses)]*2

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('whiten', [True, False])
def test_senses_at_random_are_not_told(elmo, how, whiten):
    t = sense_probe(elmo, twice(), how=how, whiten=whiten, seeds=5)
    assert t.accuracy['layer 1'] < .65

def test_equal_sentences_and_two_words_of_one_stay_together(elmo):
    t = study.collect_senses(elmo, [*twice(), (['L0', 'Bank', 'r0'], 1, 'bank/0')])
    pairs = [(['a', 'bank', f'x{i}', 'b', 'bat'], [None, f'bank/{i % 2}', None, None, f'bat/{i % 3}'])
             for i in range(30)]
    two = study.collect_senses(elmo, pairs)
    for seed in range(5):
        learned = study.deal(t, seed, .5)
        assert all(len({*learned[t.sent == g]}) == 1 for g in t.sent)
        learned = study.deal(two, seed, .8)
        assert (learned[::2] == learned[1::2]).all()

def test_whitening_is_fitted_on_what_is_learned(elmo, monkeypatch):
    "By each seed: an example that is asked may not move the axes"
    fitted, even_out = [], study.even_out
    def spy(x, whiten):
        fitted.append(x)
        return even_out(x, whiten)
    monkeypatch.setitem(sense_probe.__globals__, 'even_out', spy)
    t = sense_probe(elmo, examples((30, 30)), seeds=2, share=.5, whiten=True)
    assert {len(x) for x in fitted} == {t.attrs['train']} == {60}

def test_files_of_senses(tmp_path):
    file = tmp_path/'x.csv'
    file.write_text('\ufeffsentence,position,sense\n"Well, the bank", 2 , NA\n', encoding='utf-8')
    assert study.read_senses(file) == [(['Well,', 'the', 'bank'], 2, 'NA')]

# purity

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
