"Tokenizers, vocabularies and transforms: what does not teach"
import importlib.util, json, pickle, string, unicodedata
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st
from fastai.data.all import Datasets, Pipeline, TfmdLists
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.tokens import (BOS, ByteCharVocab, CharVocab, DROPPED, EOS, FastaiTokenizer,
    NGramsTokenizer, PAD, SPECIALS, SpacyTokenizer, UNK, WordVocab, char_tokenize, char_vocab_from_json, get_tokenizer,
    limit_sents, offsets, space_tokenize, to_nfc, word_tokenize)
from elmo_fastai.data.blog import ElmoTokens, ElmoTransform, NumericalizeChars
from elmo_fastai.data.encoded import TensorChars

nasty = ['', ' ', '\t\n', '.', 'bank', "didn't", '👨‍👩‍👧', '👍🏽', '🇫🇷', 'cafe\u0301', 'نَهْر',
    'בַּנְק', 'नमस्ते', '河岸', '\x00', 'a\x00b', 'x'*10_000, '\u200b', '\ufeff', '\ud800', '<s>',
    '</s>', '<pad>', '<unk>', "n't", "'s", '1,000.5', '...', '--', '\u2028', '\x1c']
text = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(nasty), max_size=6).map(' '.join))
token = st.one_of(st.sampled_from(nasty), st.text(max_size=12))
sents = st.lists(st.lists(token, max_size=6), min_size=1, max_size=5)

# tokenizers

SHAPED = {0x6dd, 0x70f, 0x890, 0x891, 0x8e2, 0x110bd, 0x110cd, *range(0x600, 0x606)}
DIRECTION = [0xfeff, 0x61c, 0x200e, 0x200f, *range(0x202a, 0x202f), *range(0x2066, 0x206a)]
FORMAT = [i for i in range(0x110000) if unicodedata.category(chr(i)) == 'Cf']

def shown(text):
    "The characters of a text that have a shape"
    hidden = {i for i in FORMAT if i not in SHAPED}
    return ''.join(c for c in text if not c.isspace() and ord(c) not in hidden)

@given(text)
def test_no_visible_character_is_lost(t):
    toks = word_tokenize(t)
    assert to_nfc(shown(''.join(toks))) == to_nfc(shown(t))
    assert shown(''.join(word_tokenize(t, nfc=False))) == shown(t)
    assert all(toks) and not any(c.isspace() for o in toks for c in o)

@given(text)
def test_space_tokens_survive_joining(t):
    tokens = space_tokenize(t)
    blanks = dict.fromkeys(map(ord, ' \t\r\n'))
    assert space_tokenize(' '.join(tokens)) == tokens
    assert ''.join(tokens) == to_nfc(t).translate(blanks)
    assert ''.join(space_tokenize(t, nfc=False)) == t.translate(blanks)

def test_space_splits_at_blanks_tabs_and_line_ends_only():
    "A no-break space belongs to its token: 1 000 is one number"
    assert space_tokenize(' a\tb\r\nc\u00a0d \u3000  e\x0bf\n') == ['a', 'b', 'c\u00a0d', '\u3000',
        'e\x0bf']

@pytest.mark.parametrize('t,expected', [("It's he'll we're I'd I'm they've",
    "It 's he 'll we 're I 'd I 'm they 've"), ("can't won't DON'T isn’t",
    "ca n't wo n't DO N'T is n’t"), ("ain'table n'to", "ain ' table n ' to"),
    ("10:30 3.14 1,250,000 v2.0", "10:30 3.14 1,250,000 v2.0"), ("well-known e.g. end.",
    "well-known e.g . end ."), ('"Yes," he said.', '" Yes , " he said .'), ("wait... what -- no",
    "wait ... what -- no"), ("the <unk> <UNK>", "the <unk> <UNK>"), ("हिन्दी में", "हिन्दी में"),
    ("cafe\u0301's café's ne\u0301e's", "cafe\u0301 's café 's ne\u0301e 's"),
    ("«ιδού» (ι) DON'T <Unk>", "« ιδού » ( ι ) DO N'T <Unk>"), ("\u2260's =\u0338's",
    "\u2260 ' s =\u0338 ' s")])
def test_word_tokenize(t, expected):
    assert word_tokenize(t, nfc=False) == expected.split(' ')
    assert word_tokenize(t) == to_nfc(expected).split(' ')

# format characters

def test_inside_a_word_they_belong_to_it():
    for i in set(FORMAT) - set(DIRECTION):
        word = f'ab{chr(i)}cd'
        assert word_tokenize(f'the {word}.') == ['the', word, '.'], hex(i)

def test_marks_of_direction_are_dropped_wherever_they_stand():
    for i in DIRECTION:
        c = chr(i)
        assert word_tokenize(f'{c}ab{c}cd{c} {c} 1,{c}250{c}. {c}') == ['abcd', '1,250',
            '.'], hex(i)

def test_at_its_ends_they_do_not():
    for i in set(FORMAT) - set(DIRECTION) - SHAPED:
        c = chr(i)
        found = word_tokenize(f"{c}word{c} ({c}can't{c}) {c} «{c}it's{c}»")
        # it shapes the last letter
        if c == '\u200d': found = [token.rstrip(c) for token in found]
        assert found == "word ( ca n't ) « it 's »".split(), hex(i)

def test_those_with_a_shape_are_letters():
    for i in SHAPED: assert word_tokenize(f'a {chr(i)} {chr(i)}١٢') == ['a', chr(i), f'{chr(i)}١٢']

@pytest.mark.parametrize('words', [
    'می\u200cخواهم کتاب\u200cها را نمی\u200cبینم .',                 # Persian: ZWNJ
    'ක්\u200dරියා ශ්\u200dරී ලංකාව .',                    # Sinhala: ZWJ
    'അവന്\u200d നന്\u200dമ ക്\u200cഷ .',              # Malayalam: both, ZWJ at an end
    'क्\u200dष हिन्\u200cदी .',                            # Hindi
    'ঐ র\u200d্যাম .',                                          # Bengali
    'هـ\u200d ه\u200d .',                                            # Arabic: an abbreviation
    'ᠬᠠ\u180eᠠ .',                                                  # Mongolian: vowel separator
    'co\u00adoperate Donau\u00addampf\u00adschiff .',                # soft hyphens
    'word\u2060joiner f\u2061x 2\u2062x .',
    '👩\u200d👩\u200d👧 👩🏽\u200d🚀 🏳️\u200d🌈 🧔🏻\u200d♂️ 👁️\u200d🗨️',
    '🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f 🇫🇷',  # the flag of Scotland
    "did\u00adn't"])
def test_format_characters_of_scripts(words):
    expected = words.split(' ')
    if "n't" in words: expected = ['did', "n't"]
    assert word_tokenize(words) == expected
    marked = ' \u200f'.join(['', *words.split(' ')]) + '\u200e'
    assert word_tokenize('\ufeff' + marked) == expected

def test_blanks_without_width():
    "Khmer and Thai may have them between words; a letter is not another one before such a blank"
    words = ['ភាសា', 'ខ្មែរ', 'ជា', 'ភាសា']
    assert word_tokenize('\u200b'.join(words)) == words
    letters = get_tokenizer('chars')
    assert letters('\u200b'.join(words)) == letters(''.join(words)) == letters(' '.join(words))
    mixed = 'ไทย\u200bไทย\u200bdeutsch\u200bไทย'
    assert word_tokenize(mixed) == ['ไทย', 'ไทย', 'deutsch', 'ไทย']

def test_letters_with_joiners():
    "Khmer writes some syllables with a joiner inside"
    letters = get_tokenizer('chars')
    assert letters('ប\u200cំ\u200cមា') == ['ប\u200cំ', 'មា']
    assert letters('漢\u2060字') == ['漢', '字']

composable = [chr(i) for i in range(0x3000) if chr(i).isalpha() and unicodedata.normalize('NFD',
    chr(i)) != chr(i)]
pieces = st.one_of(st.sampled_from(composable), st.sampled_from([*"ndtsé.,:-'’ 1A=<…", "n't", "'s",
    "'ll", '--', '<unk>', '\u0301', '\u0323']))

@given(st.lists(pieces, max_size=12).map(''.join))
@settings(max_examples=500)
def test_composed_and_decomposed_letters_are_the_same_text(t):
    "An é may be one character or two: the tokens are the same, those in NFC"
    composed, decomposed = [unicodedata.normalize(form, t) for form in ('NFC', 'NFD')]
    for tokenize in (space_tokenize, word_tokenize, char_tokenize):
        assert tokenize(composed) == tokenize(decomposed) == tokenize(t)
    # also where a text is split as it is, as for AI2's models
    tokens = [unicodedata.normalize('NFD', o) for o in word_tokenize(composed, nfc=False)]
    assert tokens == word_tokenize(decomposed, nfc=False)

TWICE = 'Zo\u00eb’s \uc5d8\ubaa8 \u304c\u3070 \u1e69 caf\u00e9 \u0915\u093c'     # in NFC

def blanks(text): return text.split(' ')

def tokenizers():
    "By name; of fastai; functions; of n-grams"
    from fastai.text.core import BaseTokenizer
    yield from ('space', 'words', 'chars', blanks, lambda text: text.split(), BaseTokenizer(),
                FastaiTokenizer(BaseTokenizer(), rules=[]))
    if importlib.util.find_spec('spacy'): yield from ('spacy', 'fastai', SpacyTokenizer('de'))

def test_every_tokenizer_reads_one_text_in_nfc():
    assert TWICE == to_nfc(TWICE) != unicodedata.normalize('NFD', TWICE)
    for name in tokenizers():
        tok = get_tokenizer(name)
        assert get_tokenizer(tok) is tok
        tokens = tok(unicodedata.normalize('NFD', TWICE))
        assert tokens == tok(TWICE) and all(token == to_nfc(token) for token in tokens)
        assert tok(unicodedata.normalize('NFD', TWICE), nfc=False) != tokens
    of_grams = NGramsTokenizer(2)
    assert of_grams(unicodedata.normalize('NFD', 'Zo\u00eb')) == [['Zo', 'o\u00eb']]

def test_functions_are_kept_as_they_are():
    tok = pickle.loads(pickle.dumps(get_tokenizer(blanks)))
    assert tok('cafe\u0301 b') == ['caf\u00e9', 'b']
    assert get_tokenizer(lambda text: [text.upper()])('a') == ['A']

def test_letters_are_made_one_after_marks_of_direction_are_dropped():
    assert word_tokenize('cafe\u200f\u0301') == ['caf\u00e9']

PLACES = {                       # text → the parts of it that are its tokens
    'cafe\u0301 e\u0323\u0301x.': ['cafe\u0301', 'e\u0323\u0301x', '.'],
    '\u1112\u1161\u11ab\u1100\u1173\u11af x': ['\u1112\u1161\u11ab\u1100\u1173\u11af', 'x'],
    '\ud558\u11ab x': ['\ud558\u11ab', 'x'],                      # a syllable, and its end
    '\u0958\u093e b': ['\u0958\u093e', 'b'],                      # longer in NFC
    'a\u0344 \u212b \u2126': ['a\u0344', '\u212b', '\u2126'],
    'b \u0301x \u0344y \u0301\u0323z': ['b', '\u0301x', '\u0344y', '\u0301\u0323z'],
    '\u202bcafe\u200f\u0301\u202c b': ['cafe\u200f\u0301', 'b'],
    'a=\u0338b e\u0301\u0301': ['a', '=\u0338', 'b', 'e\u0301\u0301'],
    '\u304b\u3099\u306f\u309a': ['\u304b\u3099', '\u306f\u309a'],
    '\u0958\u3099 b': ['\u0958', '\u3099', 'b'],
    '\u0dd9\u0dcf\u0dca b': ['\u0dd9\u0dcf\u0dca', 'b'],        # two steps to one vowel
}

@pytest.mark.parametrize('t', PLACES)
def test_offsets_are_those_of_the_text_as_it_was(t):
    tokens = word_tokenize(t)
    assert [t[start:end] for start,end in offsets(t, tokens)] == PLACES[t]
    raw = word_tokenize(t, nfc=False)
    assert [t[start:end] for start,end in offsets(t, raw)] == PLACES[t]

odd = [*composable, *'\u0344\u0340\u212b\u0f73\u0f81\u0958\u1112\u1161\u11ab\ud558\u09c7\u09be'
       '\u0dd9\u0dca\u3099\u304b\u0338=<a 1.\u200f\u00ad\u200d\u0301\u0323\u093c\ufb1d\uf900']

@given(st.one_of(st.lists(st.sampled_from(odd), max_size=12).map(''.join), text))
@settings(max_examples=500)
def test_offsets_find_the_tokens_of_any_text(t):
    for tokenize in (word_tokenize, char_tokenize, space_tokenize):
        tokens = tokenize(t)
        if any(o.translate(DROPPED) == '' for o in tokens): continue       # marks alone
        found = offsets(t, tokens)
        assert [to_nfc(t[start:end].translate(DROPPED)) for start,end in found] == [
            to_nfc(o.translate(DROPPED)) for o in tokens]
        assert all(a[1] <= b[0] for a,b in zip(found, found[1:]))

def test_offsets_take_linear_time():
    for t in ('e' + '\u0301'*100_000, 'e\u0301'*50_000, '\u1112\u1161\u11ab'*30_000):
        assert offsets(t, [to_nfc(t)]) == [(0, len(t))]

def test_long_tokens_take_linear_time():
    for t in ('x'*200_000, 'a-'*100_000, "n'"*100_000, '\u0301'*200_000):
        assert ''.join(word_tokenize(t)) == t

def test_get_tokenizer():
    assert get_tokenizer('space') is space_tokenize and get_tokenizer(len)('ab') == 2
    with pytest.raises(ValueError, match="'nltk'.*space, words, chars, spacy, fastai"):
        get_tokenizer('nltk')

def test_fastai():
    from fastai.text.core import BaseTokenizer, Tokenizer
    tok = get_tokenizer(BaseTokenizer())
    for t in (tok, pickle.loads(pickle.dumps(tok))):
        assert t('The  bank!!!') == ['xxmaj', 'the', 'bank', 'xxrep', '3', '!']
    assert tok('') == tok('  ') == [] and FastaiTokenizer(BaseTokenizer(),
        rules=[])('The bank') == ['The', 'bank']
    assert Datasets(['The bank'], [[ElmoTransform(BaseTokenizer())]]).tls[0].tfms[0].vocab.itos[
        4:
    ] == ['bank', 'the', 'xxmaj']
    pytest.importorskip('spacy')
    assert pickle.loads(pickle.dumps(get_tokenizer('fastai')))("She didn't sit.") == ['xxmaj',
        'she', 'did', "n't", 'sit', '.']

@pytest.mark.parametrize('name', ['spacy', 'fastai'])
def test_no_spacy(name, monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'spacy', None)
    tok = dict(spacy=SpacyTokenizer, fastai=FastaiTokenizer)[name]()
    with pytest.raises(ImportError, match="needs spaCy: `pip install spacy`, or take 'words'"):
        tok('a b')

def test_spacy():
    pytest.importorskip('spacy')
    tok = pickle.loads(pickle.dumps(get_tokenizer('spacy')))
    assert tok("She didn't sit.") == ['She', 'did', "n't", 'sit', '.']
    assert pickle.loads(pickle.dumps(tok))('a b') == ['a', 'b']

@given(st.text(string.ascii_letters, min_size=1, max_size=12), st.integers(1, 5))
def test_ngrams_join(w, n):
    tok = NGramsTokenizer(n)
    assert tok.join(tok.split(w)) == w and tok(w) == [tok.split(w)]
    assert len(tok.split(w)) == max(1, len(w)-n+1)

def test_ngrams_refuse():
    with pytest.raises(ValueError, match='n=0'): NGramsTokenizer(0)

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

def test_word_vocab_limits():
    ss = [['a']*3 + ['b']*2 + ['c']]
    assert WordVocab.build(ss, min_freq=2).itos[4:] == ['a', 'b']
    assert WordVocab.build(ss, max_vocab=5).itos[4:] == ['a']
    assert WordVocab.build([['z', 'y', 'x']]).itos[4:] == ['x', 'y', 'z']

def test_word_vocab_of_a_stream():
    ss = (['a', 'b', f'rare{i}'] for i in range(5000))
    v = WordVocab.build(ss, max_counted=100, min_freq=2)
    assert v.itos[4:] == ['a', 'b']

def test_word_vocab_refuses():
    with pytest.raises(ValueError, match='starts with'): WordVocab(['a', 'b'])
    with pytest.raises(ValueError, match="'a' is there twice"): WordVocab([*SPECIALS, 'a', 'a'])
    with pytest.raises(TypeError, match='tokenise'): WordVocab.build('some text')
    with pytest.raises(TypeError, match='Sentence 1 .*None'): WordVocab.build([['a'], None])
    with pytest.raises(CorpusError): WordVocab.build([[], []])

# characters

def slow_rows(tokens, W):
    "AI2's layout, byte by byte"
    rows = []
    for t in tokens:
        row = [259] + [b+1 for b in t.encode('utf-8', 'replace')][:W-2] + [260]
        rows.append(row + [261]*(W-len(row)))
    return np.array(rows, np.int16).reshape(len(tokens), W)

@given(st.lists(token, max_size=8), st.sampled_from([3, 4, 8, 50]))
def test_bytes_equal_the_loop(toks, W):
    out = ByteCharVocab(W).encode(toks)
    assert out.dtype == np.int16 and out.shape == (len(toks), W)
    np.testing.assert_array_equal(out, slow_rows(toks, W))

@given(st.lists(token, max_size=8))
def test_bytes_come_back(toks):
    v = ByteCharVocab()
    short = [t for t in toks if len(t.encode('utf-8', 'replace')) <= 48]
    assert v.decode(v.encode(short)) == [t.encode('utf-8', 'replace').decode() for t in short]

def slow_chars(v, tokens):
    rows = []
    for t in tokens:
        grams = [t[i:i+v.n] for i in range(max(1, len(t)-v.n+1))]
        row = ([v.bow] + [v.itos.index(g) + 1 if g in v.itos[1:] else 1 for g in grams][:
            v.max_chars - 2] + [v.eow])
        rows.append(row + [v.pad]*(v.max_chars-len(row)))
    return np.array(rows, np.int16).reshape(len(tokens), v.max_chars)

@given(sents, st.lists(token, max_size=4), st.integers(1, 3))
def test_learned_chars_equal_the_loop(ss, new, n):
    if not any(ss): return
    v = CharVocab.build(ss, n=n, max_chars=10)
    for s in [*ss, new]: np.testing.assert_array_equal(v.encode(s), slow_chars(v, s))
    assert v.pad == v.n_chars-1 and v.encode(new).max(initial=0) < v.n_chars

@given(st.lists(st.lists(st.text('abcé河', max_size=8), min_size=1), min_size=1), st.integers(1, 3))
def test_learned_chars_come_back(ss, n):
    v = CharVocab.build(ss, n=n)
    for s in ss: assert v.decode(v.encode(s)) == s

@pytest.mark.parametrize('v', [ByteCharVocab(), CharVocab.build([['ab']])])
def test_marks(v):
    assert v.decode(v.specials) == [PAD, BOS, EOS]
    assert (v.specials[0] == 0).all()
    typed = v.encode([PAD, BOS, EOS])
    assert not (typed[:,None] == v.specials).all(-1).any()
    assert len({v.bos, v.eos, v.bow, v.eow, v.pad}) == 5 and v.pad == v.n_chars-1

def test_ai2_ids():
    v = ByteCharVocab()
    assert (v.n_chars, v.bos, v.eos, v.bow, v.eow, v.pad) == (262, 257, 258, 259, 260, 261)
    assert v.specials[1].tolist() == [259, 257, 260] + [261]*47

def test_too_small_or_too_many():
    with pytest.raises(ValueError, match='max_chars=2'): ByteCharVocab(2)
    with pytest.raises(ValueError, match='max_symbols'): CharVocab([UNK, *map(str, range(40_000))])
    assert len(CharVocab.build([['abcabab']], max_symbols=3).itos) == 3

# as text

@pytest.mark.parametrize('v', [
    WordVocab.build([['bank', 'é', '\x00', '"', 'نَهْر', '\ud800']]), ByteCharVocab(17),
    CharVocab.build([['bank', '河']], n=2, max_chars=9)], ids=repr)
def test_there_and_back(v):
    again = type(v).from_json(v.to_json())
    assert again.to_json() == v.to_json() and np.array_equal(again.encode(['bank']), v.encode(['bank']))
    if isinstance(v, WordVocab): assert again.itos == v.itos
    else: assert again == v == char_vocab_from_json(v.to_json())

def letters(**change): return json.dumps(json.loads(CharVocab.build([['abc']]).to_json()) | change)

@pytest.mark.parametrize('read,text,message', [
    (WordVocab.from_json, '{', 'does not hold JSON'), (WordVocab.from_json, b'\xff\xfe\0', 'no vocabulary'),
    (WordVocab.from_json, '[]', "'list'"), (WordVocab.from_json, '{}', 'None'),
    (WordVocab.from_json, '['*100_000, 'does not hold JSON'), (WordVocab.from_json, letters(), 'CharVocab'),
    (WordVocab.from_json, '{"format": "elmo_fastai.WordVocab", "version": 2, "itos": []}', 'of version 2'),
    (WordVocab.from_json, '{"format": "elmo_fastai.WordVocab", "version": 1}', 'lacks itos'),
    (char_vocab_from_json, WordVocab.build([['a']]).to_json(), 'WordVocab'),
    *[(char_vocab_from_json, letters(**bad), None) for bad in (
        dict(max_chars=10**9), dict(max_chars=7.5), dict(n=0), dict(n=1.5), dict(itos=['<unk>', 7]),
        dict(itos='abc'), dict(itos=[]), dict(itos=None))]], ids=lambda v: getattr(v, '__qualname__', str(v)[:40]))
def test_what_is_no_vocabulary(read, text, message):
    with pytest.raises(ValueError, match=message): read(text)

# limits

@given(sents, st.integers(1, 4))
def test_limits_count_what_they_cost(ss, n):
    cut, k, lost = limit_sents(ss, n)
    assert (cut == [s[:n] for s in ss] and k == sum(len(s) > n for s in ss) and lost == sum(map(len,
        ss)) - sum(map(len, cut)))

def test_limit_none_and_zero():
    assert limit_sents([['a']]) == ([['a']], 0, 0)
    with pytest.raises(ValueError, match='max_words=0'): limit_sents([['a']], 0)

# transforms

@given(st.lists(st.lists(st.text('abé<s>/', min_size=1, max_size=6), min_size=1,
    max_size=5).map(' '.join), min_size=2, max_size=4))
def test_datasets_decode(lines):
    ds = Datasets(lines, [[ElmoTransform('space')]], splits=[[0], list(range(1, len(lines)))])
    for i, line in enumerate(lines):
        assert ds.decode(ds[i]) == (' '.join(line.split()),)
        (o,) = ds[i]
        assert (o.words[0] == 2 and o.words[-1] == 3 and len(o.words) == len(o.chars) ==
            len(line.split()) + 2)
    # the training item only
    assert set(ds.tls[0].tfms[0].vocab.itos[4:]) == set(lines[0].split()) - set(SPECIALS)

def test_pipeline_and_lists():
    tfm = ElmoTransform('words', vocab=WordVocab.build([['a']]))
    p = Pipeline([tfm])
    assert p.decode(p("She didn't sit.")) == "She did n't sit ."
    assert p.decode(p(['a', 'b'])) == 'a b'
    tl = TfmdLists(['ab b', 'c'], [space_tokenize, NumericalizeChars(max_chars=5)], splits=[[0],
        [1]])
    assert tl.decode(tl[0]) == ['ab', 'b'] and tl.decode(tl[1]) == ['\ufffd']
    assert isinstance(tl[0], TensorChars)
    given_vocab = NumericalizeChars(ByteCharVocab())
    assert given_vocab.decode(given_vocab(['c'])) == ['c']

def test_transform_counts_and_refuses():
    tfm = ElmoTransform('space', vocab=WordVocab.build([['a']]), max_words=2)
    assert tfm.decode(tfm('a b c d')) == 'a b' and tfm.lost == 2
    for bad, message in ((None, 'has no text but None'), (float('nan'), 'has no text but nan'), (3,
        'has no text but 3')):
        with pytest.raises(CorpusError, match=f'this item .*{message}'):
            tfm(bad)
    with pytest.raises(CorpusError, match='item 1 has no text but None'):
        Datasets(['a', None], [[ElmoTransform()]])
    assert tfm.decode(tfm(' ')) == '' # a sentence without words

def test_elmo_tokens_rebuild():
    o = ElmoTokens(torch.zeros(2), torch.zeros(2, 3))
    assert type(type(o)([*o])) is ElmoTokens and pickle.loads(pickle.dumps(o)).chars.shape == (2, 3)

def test_transforms_pickle():
    ds = pickle.loads(pickle.dumps(Datasets(['a b', 'b'], [[ElmoTransform()]])))
    assert ds.decode(ds[0]) == ('a b',)

def test_vocab_limits():
    for n in (0, 2, 4, -1):
        with pytest.raises(ValueError, match=f'max_vocab={n}: .*from 5 up'):
            WordVocab.build([['a']], max_vocab=n)

def test_equal_alphabets():
    a = CharVocab.build([['abc', 'cd']])
    assert a == CharVocab.build([['abc', 'cd']]) and hash(a) == hash(CharVocab.build([['abc',
        'cd']]))
    for b in (CharVocab.build([['abc', 'cd']], max_chars=20), CharVocab.build([['abc', 'cd']], n=2),
        CharVocab(a.itos[::-1]), ByteCharVocab(), None):
        assert a != b
    assert ByteCharVocab() == ByteCharVocab(50) != ByteCharVocab(20)

# scripts without blanks

@pytest.mark.parametrize('text,tokens', [
    ('我喜欢北京。', list('我喜欢北京。')),
    ('カタカナです', list('カタカナです')),
    ('我 喜欢 北京 。', ['我', '喜欢', '北京', '。']),
    ('我', ['我']),
    ('iPhone手机2.5折', ['iPhone', '手', '机', '2.5', '折']),
    ('\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48', ['\u0e17\u0e35\u0e48', '\u0e19\u0e35\u0e48']),
    ('\u0e1c\u0e21\u0e0a\u0e37\u0e48\u0e2d'
     '\u0e08\u0e2d\u0e2b\u0e4c\u0e19\u0e04\u0e23\u0e31\u0e1a '
     '\u0e1c\u0e21\u0e0a\u0e37\u0e48\u0e2d\u0e2d\u0e30\u0e44\u0e23\u0e2d\u0e22\u0e39\u0e48', None),
    ("I didn't .", ['I', 'did', "n't", '.']),
    ('한국어 문장', ['한국어', '문장'])])
def test_letters_of_scripts_without_blanks_are_tokens(text, tokens):
    found = word_tokenize(text)
    # two clauses, and no word of ten letters
    if tokens is None:
        assert len(found) > 10
    else:
        assert found == tokens
    assert ''.join(found) == ''.join(text.split())

def test_chars_splits_also_what_is_split_into_words():
    chars = get_tokenizer('chars')
    assert chars('我 喜欢 北京 。') == list('我喜欢北京。') and chars('well-known banks') == word_tokenize(
        'well-known banks')
