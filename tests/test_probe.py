"""The probes of the study, on vectors that we make: layer 0 knows the word, layer 1 its left
neighbour too, layer 2 nothing; files of examples; intervals"""
import zlib
from collections import Counter

import numpy as np, pandas as pd, pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import Sentence
from elmo_fastai.practice.scores import bootstrap
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/probes')
linear_probe, sense_probe, collect = study.linear_probe, study.sense_probe, study.collect
D = 24

class Made:
    "In the place of an `Elmo`"
    n_layers, dim = 3, D
    def __init__(self): self.rng, self.calls = np.random.default_rng(0), 0
    def vec(self, w): return np.random.default_rng(zlib.crc32(w.encode())).normal(size=D)
    def embed_iter(self, sents, layers='all'):
        for s in sents:
            self.calls += 1
            word = np.array([self.vec(w) for w in s]).reshape(-1, D)
            left = np.array([self.vec('left of ' + w) for w in ['<s>', *s]][:len(s)]).reshape(-1, D)
            yield np.stack([word, word + left, self.rng.normal(size=word.shape)]).astype(np.float32)

@pytest.fixture()
def elmo(): return Made()

def examples(counts, words='bank bat', end='e'):
    return [([s, w, f'{end}{i}'], 1, f'{w}/{s}') for w in words.split()
            for s,n in zip('abcd', counts) for i in range(n)]
def others(counts, words='bank bat'): return examples(counts, words, 'f')      # other sentences

def sents(n, seed=0):
    "Sentences whose tag is that of the word's left neighbour"
    words = np.random.default_rng(seed).choice('red blue green dog cat runs the'.split(), (n, 6))
    tags = dict(red='A', blue='A', the='B')
    return [([*s], [tags.get(w, 'C') for w in ['<s>', *s]][:6]) for s in words.tolist()]

# tables of several models

def test_models_are_compared_on_the_same_draws():
    a = np.random.default_rng(0).random(400) < .6
    right = dict(base=np.ones((1, 400)), one=a[None], two=(a | (np.arange(400) < 40))[None])
    table = study.compare(right, np.arange(400), of=['one', 'two'])
    assert table.best['two'] > .99 and np.isnan(table.best['base'])
    assert table.high['one'] > table.low['two']
    assert table.loc['base', ['accuracy', 'low', 'high']].tolist() == [1, 1, 1]
    assert table.loc['one', ['accuracy', 'low', 'high']].tolist() == pytest.approx(bootstrap(a), abs=.01)

def test_what_was_not_asked_does_not_count_and_seeds_are_drawn():
    right = np.array([[1, 0, np.nan, np.nan], [np.nan, np.nan, 1, 1]])
    assert study.compare(dict(layer=right), [0, 1, 2, 3]).accuracy.iloc[0] == .75
    seeds = np.array([[1.]*50, [0.]*50])                    # one seed is right, the other wrong
    table = study.compare(dict(layer=seeds), np.arange(50))
    assert (table.low.iloc[0], table.accuracy.iloc[0], table.high.iloc[0]) == (0, .5, 1)

# linear probes

def test_vectors_stand_beside_their_words(elmo):
    data = [(['a', 'b', 'c'], ['X', None, 'Y']), (['d'], [None]), (['e', 'b'], [None, 'Z'])]
    t = collect(elmo, data)
    assert (t.words.tolist(), t.labels.tolist()) == (['a', 'c', 'b'], ['X', 'Y', 'Z'])
    assert t.sent.tolist() == [0, 0, 1] and t[t.sent == 1].words.tolist() == ['b']
    np.testing.assert_allclose(t.layers['layer 0'], [elmo.vec(w) for w in 'acb'], rtol=1e-6)

def test_a_probe_finds_what_is_there():
    a, t = (linear_probe(Made(), sents(300), sents(80, 1), seeds=2) for _ in range(2))
    pd.testing.assert_frame_equal(a, t)
    assert t.accuracy['layer 1'] > .97 and t.best['layer 1'] == 1
    assert all(t.accuracy[k] < t.accuracy['commonest label'] + .08 for k in ('layer 0', 'layer 2'))
    assert (t.low <= t.accuracy + 1e-12).all() and (t.accuracy <= t.high + 1e-12).all()

def test_seeds_learn_from_some_sentences_and_only_these_are_embedded(elmo):
    picks = [study.some_sentences(sents(100), s, .5, 10**6) for s in (0, 1, 0)]
    assert len(picks[0]) == 50 and set(picks[0]) != set(picks[1])
    assert picks[0].tolist() == picks[2].tolist()
    linear_probe(elmo, sents(500), sents(10, 1), seeds=1, max_tokens=60)
    assert elmo.calls == 10 + 10

# senses

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('counts', [(20, 20), (30, 6), (12, 8, 5)])
def test_senses_that_can_be_told_are_told(elmo, how, counts):
    t = sense_probe(elmo, examples(counts), others(counts), how=how)
    assert t.accuracy['layer 1'] == 1 and t['macro-F1']['layer 1'] == 1
    assert t.accuracy['commonest sense'] == pytest.approx(max(counts)/sum(counts))
    assert t.accuracy['layer 0'] == t.accuracy['commonest sense'] and t.attrs['words'] == 2
    rare = sense_probe(elmo, examples((90, 10)), others((90, 10)), how=how, seeds=1)['macro-F1']
    assert rare['commonest sense'] == pytest.approx(2*.9/1.9/2)

def test_who_is_asked(elmo):
    "The rest without a second set; no word that was not learned; words as they are, but for capitals"
    t = sense_probe(elmo, examples((10, 5)), share=.8)
    assert t.accuracy['layer 1'] == 1 and (t.attrs['train'], t.attrs['dev']) == (24, 6)
    t = sense_probe(elmo, examples((5, 5), 'bank'), others((5, 5)) + others((3,), 'rock'))
    assert (t.attrs['words'], t.attrs['dev']) == (1, 10)
    assert sense_probe(elmo, examples((5, 5), 'bank'), others((2, 2), 'Bank')).attrs['dev'] == 4
    t = sense_probe(elmo, examples((5, 5)), others((5, 5, 10)))
    assert t.accuracy['layer 1'] == .5, 'an unknown sense is an error of the probe'

@pytest.mark.parametrize('train,dev,why', [
    (examples((3, 1)), None, "'bank/b' of 'bank' has one example"),
    ([], None, 'no token with a label'),
    ([(['a', 'bank'], 2, 'x')], None, 'no token 2'),
    (examples((3,)), others((3,)), 'two senses')])
def test_examples_that_are_none(elmo, train, dev, why):
    with pytest.raises(CorpusError, match=why): sense_probe(elmo, train, dev)
    with pytest.raises(ValueError, match="how='x': take 'mean' or '1nn'"):
        sense_probe(elmo, train, dev, how='x')

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('whiten', [True, False, None])
@pytest.mark.parametrize('words', ['bank', 'bank bat rock spring'])
def test_one_vector_for_all_senses_is_the_commonest_sense(how, whiten, words):
    """Vectors that differ by rounding alone: as a model gives them that reads the word in other
    company"""
    class Rounded(Made):
        def embed_iter(self, sents, layers='all'):
            for v in super().embed_iter(sents, layers):
                yield v*(1 + 1e-6*self.rng.normal(size=v.shape)).astype(np.float32)
    t = sense_probe(Rounded(), examples((7, 10, 3), words), others((9, 9, 9), words), how=how,
                    whiten=whiten)
    assert t.accuracy['layer 0'] == t.accuracy['commonest sense'] == pytest.approx(1/3)
    assert t['macro-F1']['layer 0'] == t['macro-F1']['commonest sense']

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

# what is asked is not learned from

def twice(n=150):
    "Sentences that occur twice, each with a sense that was drawn at random"
    senses = np.random.default_rng(0).integers(0, 2, n)
    return [([f'l{i}', 'bank', f'r{i}'], 1, f'bank/{s}') for i,s in enumerate(senses)]*2

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('whiten', [True, False, None])
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
        assert len({*t.sent}) == 150 and 0 < learned.sum() < len(t)
        learned = study.deal(two, seed, .8)
        assert (learned[::2] == learned[1::2]).all()
        for k in {*two.labels}:
            assert learned[two.labels == k].sum() >= .8*(two.labels == k).sum() - .5

def test_whitening_is_fitted_on_what_is_learned(elmo, monkeypatch):
    "By each seed: an example that is asked may not move the axes"
    fitted, even_out = [], study.even_out
    def spy(x, whiten):
        fitted.append(x)
        return even_out(x, whiten)
    monkeypatch.setitem(sense_probe.__globals__, 'even_out', spy)
    t = sense_probe(elmo, examples((30, 30)), seeds=2, share=.5, whiten=True)
    assert {len(x) for x in fitted} == {t.attrs['train']} == {60}
    assert not np.array_equal(fitted[2], fitted[5]), 'each seed its own'

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

# files

HEAD = 'sentence,position,sense\n'

@pytest.mark.parametrize('name,text,found', [
    ('x.csv', '\ufeff' + HEAD + '"Well, the bank", 2 , river\n', (['Well,', 'the', 'bank'], 2, 'river')),
    ('x.tsv', 'sense\tposition\tsentence\tmore\nriver\t1\tthe " bank\t.\n', (['the', '"', 'bank'], 1, 'river')),
    ('x.csv', HEAD + 'nan NA null,2,None\n', (['nan', 'NA', 'null'], 2, 'None'))])
def test_files_of_senses(tmp_path, name, text, found):
    (tmp_path/name).write_text(text, encoding='utf-8')
    assert study.read_senses(tmp_path/name) == [found]
