"Vocabularies and transforms: AI2's ids, there and back, what is refused"
import json, string
import numpy as np, pandas as pd, pytest
from hypothesis import given, strategies as st
from fastai.data.all import ColReader, Datasets, Pipeline, TfmdLists
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.tokenizers import space_tokenize
from elmo_fastai.tokens import (
    BOS, EOS, PAD, SPECIALS, UNK, ByteCharVocab, CharScheme, CharVocab, ElmoTransform,
    NGramsTokenizer, NumericalizeChars, TensorChars, WordVocab)
from test_tokenizers import NASTY

token = st.one_of(st.sampled_from(NASTY), st.text(max_size=12))
sents = st.lists(st.lists(token, max_size=6), min_size=1, max_size=5)

# words

@given(sents)
def test_word_vocab_round_trip(ss):
    if not any(ss):
        with pytest.raises(CorpusError): WordVocab.build(ss)
        return
    v = WordVocab.build(ss)
    assert v.itos[:4] == SPECIALS and len(set(v.itos)) == len(v)
    for s in ss: assert v.decode(v.encode(s)) == [UNK if t in SPECIALS else t for t in s]
    freq = [sum(s.count(w) for s in ss) for w in v.itos[4:]]
    assert freq == sorted(freq, reverse=True)

RARE = [['a', 'b', f'rare{i}'] for i in range(5000)]

@pytest.mark.parametrize('ss,limits,words', [
    ([list('aaabbc')], dict(min_freq=2), ['a', 'b']), ([list('aaabbc')], dict(max_vocab=5), ['a']),
    ([list('zyx')], {}, ['x', 'y', 'z']), (iter(RARE), dict(max_counted=100, min_freq=2), ['a',
                                                                                           'b'])])
def test_word_vocab_limits(ss, limits, words):
    assert WordVocab.build(ss, **limits).itos[4:] == words

@pytest.mark.parametrize('call,error,why', [
    (lambda: WordVocab(['a', 'b']), ValueError, 'starts with'),
    (lambda: WordVocab([*SPECIALS, 'a', 'a']), ValueError, "'a'"),
    (lambda: WordVocab.build('some text'), TypeError, 'tokenise'),
    (lambda: WordVocab.build([['a'], None]), TypeError, 'Sentence 1 .*None'),
    (lambda: WordVocab.build([['a']], max_vocab=4), ValueError, 'max_vocab=4'),
    (lambda: ElmoTransform(max_words=0), ValueError, 'max_words=0'),
    (lambda: NGramsTokenizer(0), ValueError, 'n=0'),
    (lambda: ByteCharVocab(2), ValueError, 'max_chars=2'),
    (lambda: CharVocab([UNK, *map(str, range(40_000))]), ValueError, 'max_symbols')])
def test_refuses(call, error, why):
    with pytest.raises(error, match=why): call()

# characters

def rows_of(tokens, W, split, bow):
    "AI2's layout, symbol by symbol"
    rows = [[bow, *split(t)[:W-2], bow+1] for t in tokens]
    return np.array([row + [bow+2]*(W-len(row)) for row in rows], np.int16).reshape(len(tokens), W)

@given(st.lists(token, max_size=8), st.sampled_from([3, 4, 8, 50]))
def test_bytes_equal_the_reference(toks, W):
    v = ByteCharVocab(W)
    as_bytes = [t.encode('utf-8', 'replace') for t in toks]
    out = v.encode(toks)
    assert out.dtype == np.int16
    np.testing.assert_array_equal(out, rows_of(as_bytes, W, lambda data: [b+1 for b in data], 259))
    assert v.are_long(toks).tolist() == [len(data) > W-2 for data in as_bytes]
    whole = [data.decode() for data in as_bytes if len(data) <= W-2]
    assert v.decode(v.encode(whole)) == whole

@given(sents, st.lists(token, max_size=4), st.integers(1, 3))
def test_learned_letters_equal_the_reference(ss, new, n):
    if not any(ss): return
    v = CharVocab.build(ss, n=n, max_chars=10)
    def split(t):
        grams = [t[i:i+n] for i in range(max(1, len(t)-n+1))]
        return [v.itos.index(g) + 1 if g in v.itos[1:] else 1 for g in grams]
    for s in [*ss, new]: np.testing.assert_array_equal(v.encode(s), rows_of(s, 10, split, v.bow))
    assert v.pad == v.n_chars-1 and v.encode(new).max(initial=0) < v.n_chars
    whole = [t for s in ss for t in s if len(t) <= 8 and UNK not in t]
    assert v.decode(v.encode(whole)) == whole
    assert CharVocab.build([['abcabab']], max_symbols=3).itos == [UNK, 'a', 'b']

@pytest.mark.parametrize('v', [ByteCharVocab(), CharVocab.build([['ab']])])
def test_marks(v):
    assert v.decode(v.specials) == [PAD, BOS, EOS] and (v.specials[0] == 0).all()
    assert not (v.encode([PAD, BOS, EOS])[:,None] == v.specials).all(-1).any()
    assert len({v.bos, v.eos, v.bow, v.eow, v.pad}) == 5 and v.pad == v.n_chars-1

@given(st.text(string.ascii_letters, min_size=1, max_size=12), st.integers(1, 5))
def test_ngrams_join(w, n):
    tok = NGramsTokenizer(n)
    assert tok.join(tok.split(w)) == w
    assert tok(w) == [tok.split(w)] and len(tok.split(w)) == max(1, len(w)-n+1)

# as text

@pytest.mark.parametrize('v', [
    WordVocab.build([['bank', 'é', '\x00', '"', 'نَهْر', '\ud800']]), ByteCharVocab(17),
    CharVocab.build([['bank', '河']], n=2, max_chars=9)], ids=repr)
def test_there_and_back(v):
    again = type(v).from_json(v.to_json())
    assert vars(again).keys() == vars(v).keys() and again.to_json() == v.to_json()
    assert np.array_equal(again.encode(['bank']), v.encode(['bank']))
    if not isinstance(v, WordVocab): assert again == v == CharScheme.from_json(v.to_json())

def letters(**change): return json.dumps(json.loads(CharVocab.build([['abc']]).to_json()) | change)

@pytest.mark.parametrize('kind,text,message', [
    (WordVocab, '{', 'JSON'), (WordVocab, b'\xff\xfe\0', 'no vocabulary'),
    (WordVocab, '[]', "'list'"), (WordVocab, '['*100_000, 'JSON'),
    (WordVocab, letters(), 'CharVocab'),
    (WordVocab, '{"format": "elmo_fastai.WordVocab", "version": 2, "itos": []}', 'of version 2'),
    (WordVocab, '{"format": "elmo_fastai.WordVocab", "version": 1}', 'lacks itos'),
    (CharScheme, WordVocab.build([['a']]).to_json(), 'WordVocab'),
    *[(CharScheme, letters(**bad), None) for bad in (
        dict(max_chars=10**9), dict(n=0), dict(itos=['<unk>', 7]), dict(format=['x']))]],
    ids=lambda v: str(v)[:40])
def test_what_is_no_vocabulary(kind, text, message):
    with pytest.raises(ValueError, match=message): kind.from_json(text)

# transforms

@given(st.lists(st.lists(st.text('abé<s>/', min_size=1, max_size=6), min_size=1,
    max_size=5).map(' '.join), min_size=2, max_size=4))
def test_datasets_decode(lines):
    ds = Datasets(lines, [[ElmoTransform('space')]], splits=[[0], list(range(1, len(lines)))])
    for i,line in enumerate(lines):
        assert ds.decode(ds[i]) == (' '.join(line.split()),)
        [o] = ds[i]
        assert o.words[0] == 2
        assert o.words[-1] == 3 and len(o.words) == len(o.chars) == len(line.split()) + 2
    vocab = ds.tls[0].tfms[0].vocab                            # of the training part alone
    assert set(vocab.itos[4:]) == set(lines[0].split()) - set(SPECIALS)

def test_pipelines_and_lists():
    p = Pipeline([ElmoTransform('words', vocab=WordVocab.build([['a']]))])
    assert [p.decode(p(o)) for o in ("She didn't.", ['a', 'b'], ' ')] == ["She did n't .", 'a b',
                                                                          '']
    tl = TfmdLists(['ab b', 'c'], [space_tokenize, NumericalizeChars(max_chars=3)], splits=[[0],
                                                                                            [1]])
    assert isinstance(tl[0], TensorChars) and [tl.decode(o) for o in tl] == [['a', 'b'], ['\ufffd']]
    tfm = NumericalizeChars(ByteCharVocab(3))
    assert tfm.decode(tfm(['c', 'ab'])) == ['c', 'a'] and tfm.n_cut == 1

@pytest.mark.parametrize('bad', [None, 3])
def test_an_item_that_is_no_text_is_named(bad):
    tfm = ElmoTransform('space', vocab=WordVocab.build([['a']]), max_words=2)
    assert tfm.decode(tfm('a b c d')) == 'a b' and tfm.lost == 2
    with pytest.raises(TypeError, match='neither a text nor a list'): tfm(bad)
    with pytest.raises(TypeError, match='Sentence 1 is'): Datasets(['a', bad], [[ElmoTransform()]])
    df = pd.DataFrame(dict(text=['a', bad]), index=[7, 12], dtype=object)
    with pytest.raises(TypeError, match='Sentence 12 is'):
        Datasets(df, [[ColReader('text'), ElmoTransform()]])
