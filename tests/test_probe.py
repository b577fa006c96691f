"""The probe, its controls and the count of senses, on vectors that we make: layer 0 knows the
word, layer 1 its left neighbour too, layer 2 nothing"""
import zlib

import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.probe import (
    features, nearest_sense, selectivity, sense_hits, sense_table, sense_views)

D = 24

def vec(w): return np.random.default_rng(zlib.crc32(w.encode())).normal(size=D)

class Made:
    "In the place of an `Elmo`"
    n_layers = 3
    def layers(self, sents):
        longest = max(map(len, sents))
        mask = torch.tensor([[t < len(s) for t in range(longest)] for s in sents])
        h = np.zeros((3, len(sents), longest, D), np.float32)
        for i,s in enumerate(sents):
            for t,(left, w) in enumerate(zip(['<s>', *s], s)):
                h[:, i, t] = vec(w), vec(w) + vec('left of ' + left), vec(f'{i} {t} noise')
        return list(torch.from_numpy(h)), mask

def texts(n, seed=0):
    "Sentences, and their tokens with a tag that is decided by the word's left neighbour"
    words = np.random.default_rng(seed).choice('red blue green dog cat runs the'.split(), (n, 6))
    tags = dict(red='A', blue='A', the='B')
    rows = [(w, tags.get(left, 'C')) for s in words for left,w in zip(['<s>', *s], s)]
    return words.tolist(), pd.DataFrame(rows, columns=['word', 'tag'])

# probe

def test_features_stand_sentence_after_sentence():
    sents = [['a'], ['b', 'c', 'd'], ['e', 'f']]*60                   # more than one batch
    x = features(Made(), sents)
    assert x.shape == (360, 3, D) and x.dtype == np.float32
    np.testing.assert_allclose(x[:, 0], [vec(w) for s in sents for w in s], rtol=1e-6)

def test_a_probe_finds_what_is_there_and_the_control_what_is_memorised():
    (sents, seen), (others, asked) = texts(200), texts(60, 1)
    x, q = features(Made(), sents), features(Made(), others)
    found = pd.DataFrame([selectivity(x[:, l], seen, q[:, l], asked) for l in range(3)])
    commonest = (asked.tag == seen.tag.mode()[0]).mean()
    assert found.tags[1] > .97 > commonest + .1 > found.tags[[0, 2]].max()
    assert found['random tags'][0] == 1, 'layer 0 tells words'
    assert found.selectivity.tolist() == (found.tags - found['random tags']).tolist()

# senses

def loop(v, words, senses):
    "What `nearest_sense` says, an occurrence at a time"
    for i,(w, s) in enumerate(zip(words, senses)):
        of = {}
        for k,(word, sense) in enumerate(zip(words, senses)):
            if word == w: of.setdefault(sense, []).append(k)
        if len(of) == 1 or len(of[s]) == 1:
            yield None
            continue
        j, far = of[s].index(i), {}
        for sense,rows in of.items():
            kept = [r for n,r in enumerate(rows) if len(rows) == 1 or n != j % len(rows)]
            far[sense] = np.linalg.norm(np.mean([v[r] for r in kept], 0) - v[i])
        yield min(far, key=far.get)

@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from('ab'), st.sampled_from('xyz')), min_size=1, max_size=25),
       st.integers(0, 99))
def test_nearest_sense_is_the_loop(pairs, seed):
    words, senses = zip(*pairs)
    v = np.random.default_rng(seed).normal(size=(len(pairs), 5))
    assert nearest_sense(v, words, senses).tolist() == list(loop(v, words, senses))

def test_views_and_their_rivals():
    table = pd.DataFrame({'sentence': ['a b c d e', 'a', 'x a'], 'position': [2, 0, 1]})
    views = sense_views(Made(), table, k=1)
    assert [*views] == ['layer 0', 'layer 1', 'layer 2', 'neighbours', 'whole sentence']
    np.testing.assert_allclose(views['layer 0'], [vec('c'), vec('a'), vec('a')], rtol=1e-6)
    near = [(vec('b') + vec('d'))/2, np.zeros(D), vec('x')]
    np.testing.assert_allclose(views['neighbours'], near, rtol=1e-5)
    all_of = features(Made(), [['a', *'bcde']])[:, 2].mean(0)
    np.testing.assert_allclose(views['whole sentence'][0], all_of, rtol=1e-5)

def test_the_table_of_senses():
    rows = [(f'{s} bank e{i}', 1, s) for s,n in (('m', 6), ('r', 4)) for i in range(n)]
    rows += [('Q Bank', 1, 'q'), ('the rock', 1, 'only')]             # none of these can be asked
    examples = pd.DataFrame(rows, columns=['sentence', 'position', 'sense'], index=range(5, 17))
    hits = sense_hits(sense_views(Made(), examples), examples)
    assert hits.index.tolist() == list(range(5, 15))
    assert (hits['layer 0'] == hits['commonest sense']).all() and hits['layer 1'].all()
    table = sense_table(hits, 'made')
    assert table.right['commonest sense'] == .6 and table.right['layer 1'] == 1
    assert table.error['layer 0'] == pytest.approx((.6*.4/10)**.5)
    assert {*table.n} == {10} and {*table.model} == {'made'}
