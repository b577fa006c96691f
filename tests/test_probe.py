"""Probes on vectors that we make: layer 0 knows the word, layer 1 its left neighbour too, layer 2
nothing; files of examples; intervals"""

import zlib
from collections import Counter

import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.studies import probe as module
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import Sentence, toy_corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train import report
from elmo_fastai.studies.probe import (Tokens, collect, linear_probe, read_senses, sense_probe)

pytestmark = pytest.mark.slow

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

def example(sense, word='bank', end='x'): return ([sense, word, end], 1, f'{word}/{sense}')
def examples(counts, words='bank bat'.split(), end='e'):
    return [
        example(s, w, f'{end}{i}') for w in words for s, n in zip('abcd', counts) for i in range(n)]

# in other sentences
def others(counts, words='bank bat'.split()): return examples(counts, words, 'f')
def sents(n, seed=0):
    "Sentences whose tag is that of the word's left neighbour"
    rng, words = np.random.default_rng(seed), 'red blue green dog cat runs the'.split()
    out = []
    for _ in range(n):
        s = [words[i] for i in rng.integers(0, len(words), 6)]
        out.append((s,
                    [{'red': 'A', 'blue': 'A', 'the': 'B'}.get(w, 'C') for w in ['<s>', *s]][:6]))
    return out

# collecting

def test_vectors_stand_beside_their_words(elmo):
    data = [(['a', 'b', 'c'], ['X', None, 'Y']), (['d'], [None]), (['e', 'b'], [None, 'Z'])]
    t = collect(elmo, data)
    assert (t.words.tolist() == ['a', 'c', 'b'] and t.labels.tolist() == ['X', 'Y', 'Z']
            and t.sent.tolist() == [0, 0, 2] and len(t) == 3)
    for i, w in enumerate('acb'):
        np.testing.assert_allclose(t.layers['layer 0'][i], elmo.vec(w), rtol=1e-6)
    assert (t.vectors.shape == (3, 3, D) and list(t.layers) == ['layer 0', 'layer 1', 'layer 2']
            and t[t.sent == 2].words.tolist() == ['b'])

def test_vectors_of_a_real_model():
    torch.manual_seed(0)
    config = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8)
    e = Elmo(BiLM(config, 0)).eval()
    gold = toy_corpus(n_train=30, n_valid=1, n_test=0, n_unseen=0).gold['train']
    t = collect(e, gold)
    np.testing.assert_allclose(
        t.layers['layer 2'], np.concatenate(e.embed([s.tokens for s in gold], 2)), atol=1e-6
    )
    assert t.labels.tolist() == [x for s in gold for x in s.tags]

@pytest.mark.parametrize('data,why', [
    ([], 'no token with a label'),
    ([(['a'], [None])], 'no token'),
    ([(['a', 'b'], ['X'])], 'sentence 0 has 2 tokens and 1 labels'),
    ([Sentence(['a'])], 'sentence 0 has 1 tokens and 0 labels')])
def test_what_is_no_data(elmo, data, why):
    with pytest.raises(CorpusError, match=why):
        collect(elmo, data)

# linear probes

def test_a_probe_finds_what_is_there(elmo):
    t = linear_probe(elmo, sents(300), sents(80, 1), seeds=2)
    assert list(t.index) == ['commonest label', "word's commonest label", 'layer 0', 'layer 1',
                             'layer 2']
    assert t.accuracy['layer 1'] > .97 and t.best['layer 1'] == 1
    assert all(t.accuracy[k] < t.accuracy['commonest label'] + .08 for k in ('layer 0', 'layer 2'))
    assert (t.low <= t.accuracy + 1e-12).all() and (t.accuracy <= t.high + 1e-12).all()

def test_baselines_are_what_they_say(elmo):
    train = [(['dog', 'runs'], ['N', 'V'])]*3 + [(['runs', 'the'], ['N', 'D'])]
    dev = [(['dog', 'runs', 'new'], ['N', 'N', 'V'])]
    t = linear_probe(elmo, train, dev, seeds=1, share=1.)
    assert t.accuracy['commonest label'] == pytest.approx(2/3) and t.accuracy[
        "word's commonest label"] == pytest.approx(1/3)

def test_seeds_learn_from_different_sentences_and_are_repeatable(elmo):
    picks = [module.some_sentences(sents(100), s, .5, 10**6) for s in (0, 1, 0)]
    assert (len(picks[0]) == 50 and set(picks[0]) != set(picks[1])
            and picks[0].tolist() == picks[2].tolist())
    assert (len(module.some_sentences(sents(100), 0, 1.0, 60)) == 10
            and len(module.some_sentences(sents(3), 0, 1.0, 1)) == 1)
    a, b = (linear_probe(Made(), sents(60), sents(20, 1), seeds=2) for _ in range(2))
    pd.testing.assert_frame_equal(a, b)

def test_only_what_is_learned_from_is_embedded(elmo):
    linear_probe(elmo, sents(500), sents(10, 1), seeds=1, max_tokens=60)
    assert elmo.calls == 10 + 10

def test_labels_of_ones_own(elmo):
    "Which word, and where in its sentence?"
    train, dev = ([s for s,_ in sents(n, i)] for i,n in ((0, 200), (1, 50)))
    word, place = ((lambda d: [(s, s) for s in d]),
                   (lambda d: [(s, [min(t, 3) for t in range(len(s))]) for s in d]))
    w, p = (linear_probe(elmo, of(train), of(dev), seeds=1) for of in (word, place))
    assert w.accuracy['layer 0'] == 1 and w.accuracy['layer 2'] < .4
    assert p.accuracy['commonest label'] == .5 and p.accuracy['layer 0'] < .6
    some = [(s, [t if t == 'dog' or t == 'cat' else None for t in s]) for s in dev]
    assert 0 < linear_probe(elmo, word(train), some, seeds=1).attrs['dev'] < w.attrs['dev']

# senses

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('counts', [(20, 20), (30, 6), (12, 8, 5)])
def test_senses_that_can_be_told_are_told(elmo, how, counts):
    t = sense_probe(elmo, examples(counts), others(counts), how=how)
    assert t.accuracy['layer 1'] == 1 and t['macro-F1']['layer 1'] == 1
    assert (t.accuracy['commonest sense'] == pytest.approx(max(counts)/sum(counts))
            and t.accuracy['layer 0'] == t.accuracy['commonest sense'])
    assert t.attrs['words'] == 2

def test_macro_f1_counts_rare_senses_as_much(elmo):
    t = sense_probe(elmo, examples((90, 10)), others((90, 10)))
    assert t.accuracy['commonest sense'] == 0.9 and t['macro-F1'][
        'commonest sense'
    ] == pytest.approx((2*0.9/1.9)/2)

def test_without_a_second_set_the_rest_is_asked(elmo):
    t = sense_probe(elmo, examples((10, 5)), share=.8)
    assert t.accuracy['layer 1'] == 1 and t.attrs['train'] == 24 and t.attrs['dev'] == 6
    assert sense_probe(elmo, examples((2, 2)), share=.9).attrs['dev'] == 4

def test_words_that_were_not_learned_are_left_out(elmo):
    t = sense_probe(
        elmo, examples((5, 5), ['bank']), others((5, 5), ['bank', 'bat']) + others((3,), ['rock'])
    )
    assert t.attrs['words'] == 1 and t.attrs['dev'] == 10

def test_capitals_are_the_same_word(elmo):
    t = sense_probe(elmo, examples((5, 5), ['bank']), others((2, 2), ['Bank']))
    assert t.attrs['dev'] == 4

@pytest.mark.parametrize('whiten', [True, False])
def test_few_vectors_are_not_whitened(elmo, whiten):
    for counts,default in (((5, 5), False), ((60, 60), True)):
        both = examples(counts), others(counts)
        same = sense_probe(Made(), *both).equals(sense_probe(Made(), *both, whiten=whiten))
        assert same or whiten != default

def test_an_unknown_sense_is_an_error_of_the_probe_not_of_the_program(elmo):
    assert sense_probe(elmo, examples((5, 5)), others((5, 5, 10))).accuracy[
        'layer 1'
    ] == pytest.approx(0.5)

@pytest.mark.parametrize('train,dev,why', [
    (examples((3, 1)), None, "'bank/b' of 'bank' has one example"),
    ([], None, 'no token with a label'),
    (examples((3,)), others((3,)), 'two senses')])
def test_examples_that_are_none(elmo, train, dev, why):
    with pytest.raises(CorpusError, match=why): sense_probe(elmo, train, dev)
    with pytest.raises(ValueError, match="how='x': take 'mean' or '1nn'"):
        sense_probe(elmo, train, dev, how='x')

def test_a_text_is_its_words():
    ex = examples((5, 5))
    assert sense_probe(Made(), [(' '.join(s), t, l) for s, t, l in ex]).equals(
        sense_probe(Made(), ex))

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('whiten', [True, False, None])
@pytest.mark.parametrize('words', ['bank', 'bank bat', 'bank bat rock spring'])
def test_one_vector_for_all_senses_is_the_commonest_sense(how, whiten, words):
    """Vectors that differ by rounding alone: as a model gives them that reads the word in other
    company"""

    class Rounded(Made):
        def embed_iter(self, sents, layers='all'):
            for v in super().embed_iter(sents, layers):
                yield v*(1 + 1e-6*self.rng.normal(size=v.shape)).astype(np.float32)
    train, dev = examples((7, 10, 3), words.split()), others((9, 9, 9), words.split())
    t = sense_probe(Rounded(), train, dev, how=how, whiten=whiten, seeds=3)
    assert t.accuracy['layer 0'] == t.accuracy['commonest sense'] == pytest.approx(1/3)
    assert t['macro-F1']['layer 0'] == t['macro-F1']['commonest sense']

@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from('ab'), st.sampled_from('xyz')), min_size=4, max_size=30),
       st.integers(0, 5),
       st.floats(0.05, 0.95))
def test_each_sense_is_divided(pairs, seed, share):
    tr = Tokens(np.array([w for w, _ in pairs], object), np.array([s for _, s in pairs]),
                np.arange(len(pairs)), np.zeros((len(pairs), 1, 1)))
    m = module.deal(tr, seed, share)
    for k,n in Counter(pairs).items():
        inside = sum(m[i] for i,p in enumerate(pairs) if p == k)
        assert inside == 0 if n == 1 else 0 < inside < n

# what is asked is not learned from

def twice(n=150, seed=0):
    "Sentences that occur twice, each with a sense that was drawn at random"
    rng = np.random.default_rng(seed)
    once = [
        ([f'l{i}', 'bank', f'r{i}'], 1, f'bank/{s}') for i, s in enumerate(rng.integers(0, 2, n))]
    return once*2

@pytest.mark.parametrize('how', ['mean', '1nn'])
@pytest.mark.parametrize('whiten', [True, False, None])
def test_senses_at_random_are_not_told(elmo, how, whiten):
    t = sense_probe(elmo, twice(), how=how, whiten=whiten, seeds=5)
    assert t.accuracy['layer 1'] < .65

def test_equal_sentences_stay_together(elmo):
    t = module.collect_senses(elmo, [*twice(), (['L0', 'Bank', 'r0'], 1, 'bank/0')])
    for seed in range(5):
        learned = module.deal(t, seed, .5)
        groups = {g: {*learned[t.sent == g]} for g in t.sent}
        assert (all(len(o) == 1 for o in groups.values()) and len(groups) == 150
                and 0 < learned.sum() < len(t))

def test_two_words_of_a_sentence_stay_together(elmo):
    data = [(['a', 'bank', f'x{i}', 'b', 'bat'], [
        None, f'bank/{i % 2}', None, None, f'bat/{i % 3}']) for i in range(30)]
    t = module.collect_senses(elmo, data)
    for seed in range(5):
        learned = module.deal(t, seed, .8)
        assert (learned[::2] == learned[1::2]).all()
        for k in {*t.labels}: assert learned[t.labels == k].sum() >= .8*(t.labels == k).sum() - .5

def test_whitening_is_fitted_on_what_is_learned(elmo, monkeypatch):
    "By each seed: an example that is asked may not move the axes"
    fitted, even_out = [], report.even_out
    def spy(x, whiten):
        fitted.append(x)
        return even_out(x, whiten)
    monkeypatch.setattr(report, 'even_out', spy)
    ex = examples((30, 30))
    t = sense_probe(elmo, ex, seeds=2, share=.5, whiten=True)
    assert {len(x) for x in fitted} == {t.attrs['train']} == {60}
    assert not np.array_equal(fitted[2], fitted[5]), 'each seed its own'

def test_sentences_that_are_asked_are_not_learned_from(elmo):
    data, other = sents(40), sents(30, 1)
    t = linear_probe(elmo, data + other, [(s, labels) for s,labels in data], seeds=1, share=1.)
    assert t.attrs['train'] == 6*sum(s not in [a for a,_ in data] for s,_ in other)
    none_left = 'all sentences to learn from are among those that are asked'
    with pytest.raises(CorpusError, match=none_left): linear_probe(elmo, data, data)
    same = twice(60)[:60]
    assert (sense_probe(elmo, same + examples((5, 5), ['bank']), same, seeds=1, share=1.0).attrs[
        'train'] == 10)
    with pytest.raises(CorpusError, match=none_left): sense_probe(elmo, same, same)

# files

HEAD = 'sentence,position,sense\n'

@pytest.mark.parametrize('suffix,text', [
    ('.csv', HEAD + '"Well, the bank",2,river\nthe bank,1,money\n'),
    ('.tsv',
     'sense\tposition\tsentence\tmore\nriver\t2\tWell, the bank\t.\nmoney\t1\tthe bank\t.\n'),
    ('.csv', '\ufeff' + HEAD + '"Well, the bank", 2 , river\n\nthe bank,1,money')])
def test_files_of_senses(tmp_path, suffix, text):
    f = tmp_path/f'x{suffix}'
    f.write_text(text, encoding='utf-8')
    assert read_senses(f) == [(['Well,', 'the', 'bank'], 2, 'river'), (['the', 'bank'], 1, 'money')]

def test_words_that_look_like_missing_values_stay_words(tmp_path):
    (tmp_path/'x.csv').write_text(HEAD + 'nan NA null,2,None\n')
    assert read_senses(tmp_path/'x.csv') == [(['nan', 'NA', 'null'], 2, 'None')]

def test_columns_by_other_names_and_quotes_in_tsv(tmp_path):
    (tmp_path/'x.tsv').write_text('text\twhere\tmeaning\nhe said " bank\t3\tmoney\n')
    assert read_senses(tmp_path/'x.tsv', columns=('text', 'where', 'meaning')) == [(
        ['he', 'said', '"', 'bank'], 3, 'money')]

@pytest.mark.parametrize('text,why', [
    (HEAD, 'has no rows'),
    ('a,b,c\n1,2,3', "no column 'sentence'; the columns are 'a', 'b', 'c'"),
    (HEAD + 'the bank,2,x', r"row 0: position '2' .* 0 to 1"),
    (HEAD + 'the bank,-1,x', "position '-1'"),
    (HEAD + 'ok,0,x\nthe bank,first,x', "row 1: position 'first'"),
    (HEAD + 'the bank,1, ', 'no sense'),
    (HEAD + 'the bank,1', 'line 2: the header has 3 cells, and this row 2'),
    (HEAD + 'the bank', 'line 2: the header has 3 cells, and this row 1'),
    (HEAD + 'the bank,1.0,x', "'1.0'"),
    (HEAD + '"",0,x', "position '0'")])
def test_faults_in_files(tmp_path, text, why):
    (tmp_path/'x.csv').write_text(text)
    with pytest.raises(CorpusError, match=why):
        read_senses(tmp_path/'x.csv')

def test_the_file_beside_the_chapter():
    from pathlib import Path
    found = read_senses(Path(__file__).parent.parent/'nbs'/'data'/'senses_en.csv')
    senses = Counter(s for *_,s in found)
    assert (len(senses) == 24 and set(senses.values()) == {5}
            and all(t[i].lower() == s.split('/')[0] for t, i, s in found))
    assert len({' '.join(t) for t,*_ in found}) == len(found)
