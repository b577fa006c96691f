"""N-gram baseline: against an independent reference, as a distribution, on bad input, and on real
text"""

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from elmo_fastai.text.ngrams import KneserNey, kn_discounts
from copies import local

words = st.sampled_from('abcdef')
corpora = st.lists(st.lists(words, max_size=7), min_size=1, max_size=12)
queries = st.lists(st.lists(st.sampled_from('abcdefgh'), max_size=7), min_size=1, max_size=4)

def ref_discounts(counts, modified):
    n = Counter(counts)
    one = n[1]/(n[1]+2*n[2]) if n[1] and n[2] else .5
    if not modified or not all(n[r] for r in (1, 2, 3, 4)): return lambda c: one if c else 0
    D = [0] + [r-(r+1)*one*n[r+1]/n[r] for r in (1, 2, 3)]
    return (lambda c: one if c else 0) if min(D[1:]) <= 0 else (lambda c: D[min(c, 3)])

class Reference:
    """The definition, word for word: every count is a scan of the text; sets of types, no n-gram
    numbers, no sorting"""

    def __init__(self, sents, order, V, modified, backward):
        self.order, self.V, self.backward, self.modified = order, V, backward, modified
        self.text = [['BOS', *(s[::-1] if backward else s), 'EOS'] for s in sents]
        self.vocab = sorted({w for s in self.text for w in s} - {'BOS'})
        self.D = {}

    def occurrences(self, gram):
        return [(s, i) for s in self.text for i in range(len(s) - len(gram) + 1) if tuple(s[i:i +
            len(gram)]) == gram]

    def count(self, gram):
        found = self.occurrences(gram)
        if len(gram) == self.order or gram[0] == 'BOS': return len(found)
        return len({s[i-1] for s, i in found})

    def discount(self, length):
        if length not in self.D:
            grams = {tuple(s[i:i + length]) for s in self.text for i in range(len(s) - length +
                1)} - {('BOS',)}
            self.D[length] = ref_discounts([self.count(g) for g in grams], self.modified and
                self.order > 1)
        return self.D[length]

    def p(self, w, ctx):
        lower = self.p(w, ctx[1:]) if ctx else 1/self.V
        counts, D = {v: self.count((*ctx, v)) for v in self.vocab}, self.discount(len(ctx)+1)
        total = sum(counts.values())
        if not total: return lower
        return (max(counts.get(w, 0) - D(counts.get(w, 0)), 0)/total + sum(map(D,
            counts.values()))/total*lower)

    def logp(self, sent):
        s = ['BOS', *(sent[::-1] if self.backward else sent), 'EOS']
        return [np.log(self.p(s[i], tuple(s[max(0, i-self.order+1):i]))) for i in range(1, len(s))]

@pytest.mark.slow
@settings(max_examples=60)
@given(corpora, queries, st.integers(1, 5), st.booleans(), st.booleans())
@example([[]], [['a'], []], 5, True, False)
@example([['a'], []], [['b', 'a', 'a']], 4, True, True)
def test_equals_reference(train, valid, order, modified, backward):
    m, ref = (KneserNey(order, 12, modified, backward).fit(train), Reference(train, order, 12,
        modified, backward))
    for s in valid: np.testing.assert_allclose(m.logp(s), ref.logp(s), atol=1e-9, rtol=0)

def test_equals_reference_modified():
    "A corpus whose counts of counts are large enough for three discounts at several lengths"
    rng = np.random.default_rng(0)
    draw = lambda n: [['abcdefghijklmnop'[min(int(i), 15)] for i in rng.exponential(4,
        rng.integers(1, 9))] for _ in range(n)]
    train, valid = draw(80), draw(10)
    for order in (1, 2, 3):
        m, ref = KneserNey(order, 30).fit(train), Reference(train, order, 30, True, False)
        for s in valid: np.testing.assert_allclose(m.logp(s), ref.logp(s), atol=1e-9, rtol=0)
    assert len(set(m.levels[1].D[1:])) == 3  # it really was the modified case
    assert (abs(m.perplexity(valid) - KneserNey(3, 30,
        modified=False).fit(train).perplexity(valid)) > 1e-6)

@settings(max_examples=60)
@given(corpora, st.lists(st.sampled_from('abcdefgh'), max_size=5), st.integers(1, 5), st.booleans(),
    st.integers(0, 5))
def test_sums_to_one(train, context, order, modified, extra):
    n = len({w for s in train for w in s}) + 1
    m = KneserNey(order, n + extra, modified).fit(train)
    p = m.next_probs(context)
    assert len(p) == n and (p >= 0).all()
    new = lambda ws: len({w for w in ws if w not in m.o2i})
    # the same probabilities, one at a time
    for w, q in zip(m.words[1:], p[1:]):
        if new(context) <= extra:
            np.testing.assert_allclose(m.logp([*context, w])[len(context)], np.log(q), atol=1e-9)
    if new([*context, 'z']) <= extra:  # and each unseen type's share
        np.testing.assert_allclose(p.sum() + extra*np.exp(m.logp([*context, 'z'])[len(context)]),
            1, atol=1e-12)
    if not extra: np.testing.assert_allclose(p.sum(), 1, atol=1e-12)

@settings(max_examples=40)
@given(corpora, st.integers(1, 4))
def test_backward_is_forward_on_reversed(train, order):
    rev = [s[::-1] for s in train]
    b, f = KneserNey(order, backward=True).fit(train), KneserNey(order).fit(rev)
    np.testing.assert_allclose(b.logps(train), f.logps(rev), atol=1e-12)
    assert np.isfinite(b.logps(train)).all() and len(b.logps(train)) == sum(len(s)+1 for s in train)

def test_kinds_of_tokens():
    "Words, ids, arrays, tensors and generators are all the same corpus"
    import torch
    ids = [[5, 6, 7], [5, 7], [], [6, 6, 5]]
    expected = KneserNey(3, 9).fit(ids).logps([[5, 6], [8]])
    for kind in (lambda s: [str(i) for i in s], tuple, np.array, lambda s: torch.tensor(s,
        dtype=torch.long)):
        conv = lambda ss: (kind(s) for s in ss)
        np.testing.assert_allclose(KneserNey(3, 9).fit(conv(ids)).logps(conv([[5, 6], [8]])),
            expected)

def test_unigram_is_relative_frequency():
    m = KneserNey(1).fit([['a', 'a', 'b'], ['a']])
    np.testing.assert_allclose(np.exp(m.logp(['a', 'b'])), [3/6, 1/6, 2/6])
    m = KneserNey(1, vocab_size=4).fit([['a', 'a', 'b'], ['a']])
    assert 0 < np.exp(m.logp(['new'])[0]) < 1/6

def test_shares_nothing_between_sentences():
    train = [list('abc'), list('bca'), list('cab')]
    m = KneserNey(4, 5).fit(train)
    np.testing.assert_allclose(m.logps([*train, list('x'), []]), np.concatenate([m.logp(s) for s in
        [*train, list('x'), []]]), atol=1e-12)
    assert len(m.logp([])) == 1
    before = m.logp(['a', 'b'])
    m.perplexity(train)
    np.testing.assert_array_equal(m.logp(['a', 'b']), before)

def test_tiny_corpora():
    for sents in ([[]], [['a']], [[], []], [['a', 'a', 'a', 'a']]):
        for order in (1, 2, 5):
            for backward in (False, True):
                m = KneserNey(order, 3, backward=backward).fit(sents)
                assert np.isfinite(m.logps([*sents, ['a', 'b']])).all()
                np.testing.assert_allclose(m.next_probs([]).sum() +
                    (3 - len(m.words))*np.exp(m.logp(['b'])[0]), 1, atol=1e-12)

def test_discounts():
    assert kn_discounts([]).tolist() == [0, .5, .5, .5]                           # nothing counted
    assert kn_discounts([3, 3, 9]).tolist() == [0, .5, .5, .5]                    # n1 = n2 = 0
    # n3 = 0: one discount, 2/(2+2)
    np.testing.assert_allclose(kn_discounts([1, 1, 2]), [0, .5, .5, .5])
    counts = [1]*40 + [2]*16 + [3]*8 + [4]*5 + [9]*7
    y = 40/72
    np.testing.assert_allclose(kn_discounts(counts), [0, 1-2*y*16/40, 2-3*y*8/16, 3-4*y*5/8])
    np.testing.assert_allclose(kn_discounts(counts, modified=False), [0, y, y, y])
    # D2 would be negative
    rising = [1]*2 + [2]*1 + [3]*90 + [4]*90
    np.testing.assert_allclose(kn_discounts(rising), [0, .5, .5, .5])

def test_longer_context_helps_and_memory_is_there():
    train = [list('abcabcabc')]*3
    pps = [KneserNey(o).fit(train).perplexity(train) for o in (1, 2, 3)]
    assert pps[0] > pps[1] > pps[2] > 1

def test_sample():
    train = [['a', 'b', 'c'], ['d', 'b', 'e']]*5
    for backward in (False, True):
        m = KneserNey(3, backward=backward).fit(train)
        out = [m.sample(seed) for seed in range(40)]
        assert out == [m.sample(seed) for seed in range(40)]
        # in reading order, from either end
        assert sum(s in train for s in out) > 10
        assert all(len(m.sample(s, max_len=2)) <= 2 for s in range(10))
    counts = Counter(w for s in range(300) for w in KneserNey(1).fit([['a', 'a', 'a',
        'b']]*9).sample(s))
    assert 2 < counts['a']/counts['b'] < 4.5

def test_pickle():
    m = KneserNey(3).fit([list('abcab'), list('bc')])
    np.testing.assert_allclose(pickle.loads(pickle.dumps(m)).logp(list('abc')), m.logp(list('abc')))

@pytest.mark.parametrize('call, says', [(lambda: KneserNey(0), 'order must be'), (lambda:
    KneserNey(2.5), 'order must be'), (lambda: KneserNey('3'), 'order must be'), (lambda:
    KneserNey(3, 0).fit([['a']]), 'vocab_size=0'), (lambda: KneserNey().fit([]), 'empty'), (lambda:
    KneserNey().fit(iter(())), 'empty'), (lambda: KneserNey().fit('a text'), 'split'), (lambda:
    KneserNey().fit(['a text']), 'split'), (lambda: KneserNey().fit([1, 2]), 'split'), (lambda:
    KneserNey(3, 2).fit([list('abc')]), 'vocab_size=2'), (lambda: KneserNey().logp(['a']), 'fit'),
    (lambda: KneserNey().perplexity([['a']]), 'fit'), (lambda: KneserNey().next_probs(), 'fit'),
    (lambda: KneserNey().fit([['a']]).perplexity([]), 'empty'), (lambda:
    KneserNey().fit([['a']]).logp('text'), 'split'), (lambda: KneserNey().fit([['a']]).logp(['b']),
    "'b'"), (lambda: KneserNey(1, 3).fit([['a']]).logps([['b'], ['c']]), "2 not seen")])
def test_errors_say_what_to_do(call, says):
    with pytest.raises(ValueError) as e:
        call()
    assert says in str(e.value)

def test_failed_fit_keeps_the_model():
    m = KneserNey(2, 4).fit([list('abc')])
    before = m.logp(list('ab'))
    with pytest.raises(ValueError): m.fit([list('abcdefg')])
    np.testing.assert_array_equal(m.logp(list('ab')), before)

@pytest.mark.slow
def test_wikitext2():
    "The published figure for an interpolated Kneser–Ney 5-gram model on WikiText-2 is about 246"
    root = local('wikitext-2')
    read = lambda f: [l.split() for l in (root/f).read_text(encoding='utf-8').splitlines() if
        l.strip()]
    train, valid = read('train.txt'), read('valid.txt')
    plain = KneserNey(5, 33278, modified=False).fit(train)
    assert len(plain.words) == 33278 and len(plain.logps(valid)) == 216347
    assert abs(plain.perplexity(valid) - 246.39) < .05
    assert abs(KneserNey(5, 33278).fit(train).perplexity(valid) - 239.98) < .05
