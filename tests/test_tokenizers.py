"Tokenizers: nothing is lost, every script, NFC, offsets, tokenizers by name"
import pickle, unicodedata
import pytest
from hypothesis import given, settings, strategies as st
from fastai.text.core import BaseTokenizer
from elmo_fastai.text.tokenizers import (
    DROPPED, char_tokenize, get_tokenizer, offsets, space_tokenize, to_nfc, word_tokenize)

NASTY = ['', ' ', '\t\n', '.', 'bank', "didn't", '👨‍👩‍👧', '👍🏽', '🇫🇷', 'cafe\u0301', 'نَهْر',
         'בַּנְק',
    'नमस्ते', '河岸', '\x00', 'a\x00b', 'x'*10_000, '\u200b', '\ufeff', '\ud800', '<s>', '</s>',
    '<pad>', '<unk>', "n't", "'s", '1,000.5', '...', '--', '\u2028', '\x1c']
text = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(NASTY), max_size=6).map(' '.join))
SHAPED = {0x6dd, 0x70f, 0x890, 0x891, 0x8e2, 0x110bd, 0x110cd, *range(0x600, 0x606)}
DIRECTION = [0xfeff, 0x61c, 0x200e, 0x200f, *range(0x202a, 0x202f), *range(0x2066, 0x206a)]
FORMAT = [i for i in range(0x110000) if unicodedata.category(chr(i)) == 'Cf']
BLANKS = dict.fromkeys(map(ord, ' \t\r\n'))
nfd = lambda t: unicodedata.normalize('NFD', t)

def shown(text):
    "The characters of a text that have a shape"
    return ''.join(c for c in text
                   if not c.isspace() and (ord(c) not in FORMAT or ord(c) in SHAPED))

@given(text)
def test_no_visible_character_is_lost(t):
    tokens = word_tokenize(t)
    assert to_nfc(shown(''.join(tokens))) == to_nfc(shown(t))
    assert shown(''.join(word_tokenize(t, nfc=False))) == shown(t)
    assert all(tokens) and not any(c.isspace() for o in tokens for c in o)
    tokens = space_tokenize(t)
    assert space_tokenize(' '.join(tokens)) == tokens
    assert ''.join(tokens) == to_nfc(t).translate(BLANKS)
    assert ''.join(space_tokenize(t, nfc=False)) == t.translate(BLANKS)

@pytest.mark.parametrize('t,expected', [
    ("It's he'll we're I'd I'm they've", "It 's he 'll we 're I 'd I 'm they 've"),
    ("can't won't DON'T isn’t n'to", "ca n't wo n't DO N'T is n’t n ' to"),
    ("10:30 3.14 1,250,000 v2.0 e.g. end.", "10:30 3.14 1,250,000 v2.0 e.g . end ."),
    ('"Yes," he... -- well-known <unk>', '" Yes , " he ... -- well-known <unk>'),
    ("cafe\u0301's café's", "cafe\u0301 's café 's"), ("«ιδού» <Unk>", "« ιδού » <Unk>"),
    ("\u2260's =\u0338's", "\u2260 ' s =\u0338 ' s")])
def test_word_tokenize(t, expected):
    assert word_tokenize(t, nfc=False) == expected.split(' ')
    assert word_tokenize(t) == to_nfc(expected).split(' ')

def test_space_splits_at_blanks_tabs_and_line_ends_only():
    assert space_tokenize(' a\tb\r\nc\u00a0d \u3000  e\x0bf\n') == ['a', 'b', 'c\u00a0d',
                                                                    '\u3000', 'e\x0bf']

# format characters, scripts

def test_each_format_character():
    "Within a word it belongs to it, at its ends it doesn't, unless it has a shape or joins letters"
    for i in FORMAT:
        c = chr(i)
        if i in DIRECTION:
            assert word_tokenize(f'{c}ab{c}cd{c} {c} 1,{c}250{c}. {c}') == ['abcd', '1,250',
                                                                            '.'], hex(i)
            continue
        assert word_tokenize(f'the ab{c}cd.') == ['the', f'ab{c}cd', '.'], hex(i)
        if i in SHAPED:
            assert word_tokenize(f'a {c} {c}١٢') == ['a', c, f'{c}١٢']
            continue
        found = word_tokenize(f"{c}word{c} ({c}can't{c}) {c} «{c}it's{c}»")
        if c == '\u200d':
            found = [token.rstrip(c) for token in found]      # it shapes the last letter
        assert found == "word ( ca n't ) « it 's »".split(), hex(i)

@pytest.mark.parametrize('words', [
    'می\u200cخواهم کتاب\u200cها را .',                 # Persian: ZWNJ
    'ක්\u200dරියා ශ්\u200dරී ලංකාව .',                    # Sinhala: ZWJ
    'അവന്\u200d നന്\u200dമ ക്\u200cഷ .',              # Malayalam: both, ZWJ at an end
    'क्\u200dष हिन्\u200cदी .', 'هـ\u200d ه\u200d .', 'co\u00adoperate word\u2060joiner .',
    '👩\u200d👩\u200d👧 👩🏽\u200d🚀 🏳️\u200d🌈',
    '🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f 🇫🇷'])
def test_format_characters_of_scripts(words):
    assert word_tokenize(words) == words.split(' ')
    marked = ' \u200f'.join(['', *words.split(' ')]) + '\u200e'
    assert word_tokenize('\ufeff' + marked) == words.split(' ')

KHMER = ['ភាសា', 'ខ្មែរ', 'ជា', 'ភាសា']

@pytest.mark.parametrize('t,tokens', [
    ('我喜欢北京。', list('我喜欢北京。')), ('カタカナです', list('カタカナです')),
    ('我 喜欢 北京 。', ['我', '喜欢', '北京', '。']),
    ('iPhone手机2.5折', ['iPhone', '手', '机', '2.5', '折']),
    ('\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48', ['\u0e17\u0e35\u0e48', '\u0e19\u0e35\u0e48']),
    ("I didn't .", ['I', 'did', "n't", '.']), ('한국어 문장', ['한국어', '문장']),
    ('\u200b'.join(KHMER), KHMER),                              # blanks without width
    ('ไทย\u200bไทย\u200bdeutsch\u200bไทย', ['ไทย', 'ไทย', 'deutsch', 'ไทย']),
    ('cafe\u200f\u0301', ['caf\u00e9']),              # NFC comes after marks of direction go
    ("did\u00adn't", ['did', "n't"])])
def test_scripts_with_and_without_blanks(t, tokens): assert word_tokenize(t) == tokens

def test_letters_of_scripts_without_blanks():
    assert char_tokenize('我 喜欢 北京 。') == list('我喜欢北京。')
    assert char_tokenize('\u200b'.join(KHMER)) == char_tokenize(' '.join(KHMER))

# NFC

composable = [chr(i) for i in range(0x3000) if chr(i).isalpha() and nfd(chr(i)) != chr(i)]
pieces = st.one_of(st.sampled_from(composable), st.sampled_from(
    [*"ndtsé.,:-'’ 1A=<…", "n't", "'s", "'ll", '--', '<unk>', '\u0301', '\u0323']))

@given(st.lists(pieces, max_size=12).map(''.join))
@settings(max_examples=150)
def test_composed_and_decomposed_letters_are_the_same_text(t):
    for tokenize in (space_tokenize, word_tokenize, char_tokenize):
        assert tokenize(to_nfc(t)) == tokenize(nfd(t)) == tokenize(t)
    assert [nfd(o) for o in word_tokenize(to_nfc(t), nfc=False)] == word_tokenize(nfd(t), nfc=False)

TWICE = 'Zo\u00eb’s \uc5d8\ubaa8 \u304c\u3070 \u1e69 caf\u00e9 \u0915\u093c'     # in NFC

def blanks(text): return text.split(' ')

def test_every_tokenizer_reads_one_text_in_nfc():
    for name in ('space', 'words', 'chars', blanks, lambda text: iter(text.split())):
        tok = get_tokenizer(name)
        assert get_tokenizer(tok) is tok
        tokens = tok(nfd(TWICE))
        assert tokens == tok(TWICE) and all(token == to_nfc(token) for token in tokens)
        assert tok(nfd(TWICE), nfc=False) != tokens

# offsets

@pytest.mark.parametrize('t,parts', [
    ('café ẹ́x.', ['café', 'ẹ́x', '.']), ('\u202bab\u200fc\u202c b', ['ab\u200fc', 'b'])])
def test_offsets_are_those_of_the_text_as_it_was(t, parts):
    for text in (t, to_nfc(t)):
        if text != to_nfc(text): continue
        for tokens in (word_tokenize(text), word_tokenize(text, nfc=False)):
            found = [text[start:end] for start,end in offsets(text, tokens)]
            assert found == list(map(to_nfc, parts))
    with pytest.raises(ValueError, match='NFC'): offsets('cafe\u0301', ['café'])

odd = [*composable, *'\u0344\u0340\u212b\u0f73\u0f81\u0958\u1112\u1161\u11ab\ud558\u09c7\u09be'
       '\u0dd9\u0dca\u3099\u304b\u0338=<a 1.\u200f\u00ad\u200d\u0301\u0323\u093c\ufb1d\uf900']

@given(st.one_of(st.lists(st.sampled_from(odd), max_size=12).map(''.join), text))
@settings(max_examples=150)
def test_offsets_find_the_tokens_of_any_text(t):
    t = to_nfc(t)
    if t.translate(DROPPED) != to_nfc(t.translate(DROPPED)): return      # a mark was in between
    bare = lambda o: to_nfc(o.translate(DROPPED))
    for tokenize in (word_tokenize, char_tokenize, space_tokenize):
        tokens = tokenize(t)
        if any(o.translate(DROPPED) == '' for o in tokens): continue       # marks alone
        found = offsets(t, tokens)
        assert [bare(t[start:end]) for start,end in found] == list(map(bare, tokens))
        assert all(a[1] <= b[0] for a,b in zip(found, found[1:]))

def test_long_texts_take_linear_time():
    for t in ('é'*1000, 'e '*1000): assert offsets(t, [t]) == [(0, len(t))]
    for t in ('x'*200_000, 'a-'*100_000, "n'"*100_000, '\u0301'*200_000):
        assert ''.join(word_tokenize(t)) == t

# by name, and sentences

def test_get_tokenizer():
    assert get_tokenizer('space') is space_tokenize
    assert pickle.loads(pickle.dumps(get_tokenizer(blanks)))('cafe\u0301 b') == ['caf\u00e9', 'b']
    with pytest.raises(ValueError, match="'nltk'.*space, words, chars"): get_tokenizer('nltk')

@pytest.mark.parametrize('wrong', [BaseTokenizer(), lambda text: [[text]], lambda text: [3]])
def test_what_returns_no_tokens_of_one_text_is_refused(wrong):
    "fastai's take a list of texts; in a text they would take each letter for one"
    with pytest.raises(TypeError, match='one text'): get_tokenizer(wrong)('the bank')
