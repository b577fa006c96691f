"""N-gram models: against an independent reference, as distributions, on bad input, on real text;
and the sampler by which every model writes"""
import math
from collections import Counter

import numpy as np, pytest, torch
from hypothesis import example, given, settings, strategies as st

from elmo_fastai.ngrams import KneserNey, perplexity, sample
from copies import local

words = st.sampled_from('abcdef')
corpora = st.lists(st.lists(words, max_size=7), min_size=1, max_size=12)
queries = st.lists(st.lists(st.sampled_from('abcdefgh'), max_size=7), min_size=1, max_size=4)

class Reference:
    "The definition, word for word: every count is a scan of the text"
    def __init__(self, sents, order, V, backward):
        self.order, self.V, self.backward, self.D = order, V, backward, {}
        self.text = [self.marked(s) for s in sents]
        self.vocab = {w for s in self.text for w in s} - {'BOS'}

    def marked(self, s): return ['BOS', *(s[::-1] if self.backward else s), 'EOS']
    def count(self, gram):
        found = [(s, i) for s in self.text for i in range(len(s)-len(gram)+1)
                 if tuple(s[i:i+len(gram)]) == gram]
        if len(gram) == self.order or gram[0] == 'BOS': return len(found)
        return len({s[i-1] for s,i in found})

    def discount(self, length):
        if length not in self.D:
            grams = {tuple(s[i:i+length]) for s in self.text for i in range(len(s)-length+1)}
            n = Counter(self.count(gram) for gram in grams - {('BOS',)})
            self.D[length] = n[1]/(n[1]+2*n[2]) if n[1] and n[2] else .5
        return self.D[length]

    def p(self, w, context):
        shorter = self.p(w, context[1:]) if context else 1/self.V
        counts = {v: self.count((*context, v)) for v in self.vocab}
        total, D = sum(counts.values()), self.discount(len(context)+1)
        if not total: return shorter
        left_over = D*sum(map(bool, counts.values()))
        return (max(counts.get(w, 0) - D, 0) + left_over*shorter)/total

    def logps(self, sents):
        return [math.log(self.p(s[i], tuple(s[max(0, i-self.order+1):i])))
                for s in map(self.marked, sents) for i in range(1, len(s))]

@settings(max_examples=40)
@given(corpora, queries, st.integers(1, 5), st.booleans())
@example([[]], [['a'], []], 5, False)
@example([['a'], []], [['b', 'a', 'a']], 4, True)
def test_equals_reference(train, valid, order, backward):
    m, ref = KneserNey(order, 12, backward=backward).fit(train), Reference(train, order, 12,
                                                                           backward)
    np.testing.assert_allclose(m.logps(valid), ref.logps(valid), atol=1e-9, rtol=0)
    np.testing.assert_allclose(m.perplexity(valid), np.exp(-np.mean(ref.logps(valid))))

@settings(max_examples=60)
@given(corpora, st.lists(st.sampled_from('abcdefgh'), max_size=5), st.integers(1, 5),
       st.integers(0, 5))
def test_sums_to_one(train, context, order, extra):
    "What has been seen, one by one as all at once, and the share of each type that was not"
    n = len({w for s in train for w in s}) + 1
    m = KneserNey(order, n + extra).fit(train)
    p = m.next_probs(context)
    assert len(p) == n and min(p.values()) >= 0
    def alone(w): return np.exp(m.logps([[*context, w]])[len(context)])
    fits = len({*context, 'z'} - {*p}) <= extra
    for w in {*p} - {'</s>'} if fits else (): assert alone(w) == pytest.approx(p[w], abs=1e-12)
    if fits: assert sum(p.values()) + extra*alone('z') == pytest.approx(1, abs=1e-12)
    if not extra: assert sum(p.values()) == pytest.approx(1, abs=1e-12)

def m(order=3, vocab_size=None, sents=(['a'],)): return KneserNey(order, vocab_size).fit(sents)
@pytest.mark.parametrize('call,says', [
    (lambda: KneserNey(0), 'order=0'), (lambda: m(sents=[]), 'no sentences'),
    (lambda: m(sents='a text'), 'list of words'), (lambda: KneserNey().next_probs(), 'call fit'),
    (lambda: m(3, 2, [list('abc')]), 'vocab_size=2'), (lambda: m().logps([]), 'no sentences'),
    (lambda: m().logps([['b']]), "'b'"), (lambda: m(1, 3).logps([['b'], ['c']]), "4 types")])
def test_errors_say_what_to_do(call, says):
    with pytest.raises(ValueError, match=says): call()

@pytest.mark.parametrize('nats,is_', [(0, 1), (800., math.inf), (math.inf, math.inf)])
def test_perplexity(nats, is_): assert perplexity(nats) == is_

@pytest.mark.parametrize('of', [lambda p: dict(zip(['<pad>', '<unk>', '<s>', '</s>', 'a', 'b'], p)),
                                np.array, lambda p: torch.tensor(p, dtype=torch.float32)])
def test_sample(of):
    "From a dictionary, an array or a tensor: the same draws, no marks, as often as they should"
    a, b = ('a', 'b') if isinstance(of([1.]*6), dict) else (4, 5)
    asked = []
    def probs(tokens): return asked.append([*tokens]) or of([.2, .1, .1, .2, .3, .1])
    drawn = [sample(probs, seed) for seed in range(300)]
    n = Counter(token for tokens in drawn for token in tokens)
    assert {*n} == {a, b} and 2 < n[a]/n[b] < 4.5 and 1.2 < sum(n.values())/300 < 3
    assert drawn[:5] == [sample(probs, seed) for seed in range(5)] and [] in asked
    assert max(len(sample(probs, seed, most=2)) for seed in range(20)) == 2

@pytest.mark.slow
def test_wikitext2():
    "The published figure for an interpolated Kneser–Ney 5-gram model on WikiText-2 is about 246"
    root = local('wikitext-2')
    def read(f): return [l.split() for l in (root/f).open(encoding='utf-8') if l.strip()]
    model, valid = KneserNey(5, 33278).fit(read('train.txt')), read('valid.txt')
    assert len(model.words) == 33278 and len(model.logps(valid)) == 216347
    assert abs(model.perplexity(valid) - 246.39) < .01
