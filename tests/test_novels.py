"Books into sentences: nothing is lost, and the text of the model in the box stays as it is"
import re, textwrap
from hashlib import sha256
import pytest
from hypothesis import given, settings, strategies as st
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import text_corpus
import books
from books import (
    BOOKS, book_sentences, clean_book, english, is_heading, novels, paragraphs, speeches,
    split_sentences, undo_wikitext, wikitext_sentences)
from copies import local

pytestmark = pytest.mark.slow

def bare(text): return ''.join(text.split())

@pytest.mark.parametrize('sents', [
    ['"Oh!" said she.', 'She went.'], ['Mr. and Mrs. Bird met Dr. Hall at St. Ives.', 'It rained.'],
    ['"Why?" Mr. Bird asked.', 'No one knew.'], ['He took No. 5.', 'No.', 'He took No. 6.'],
    ['"Never--"', 'He stopped.'], ['He waited . . . and went.'], ['(It rained.)', '[He knew.]', 'So.'],
    ["'Never!' cried Mr. Bumble.", "'Never!'"], ['The U.S. Navy came.'], ['At 5 p.m. Tom left.']])
def test_sentences(sents): assert split_sentences(' '.join(sents)) == sents

words = st.sampled_from(['Mr.', 'I.', '"Oh!"', 'he', 'Tom', 'said', '...', '. . .', '-"', "'", '"',
                         'No.', '5', '?)', '3.5', 'e.g.', '(', 'É', '\u2014', 'St. Ives?" I cried'])

@settings(max_examples=300)
@given(st.one_of(st.lists(words, max_size=15).map(' '.join), st.text(max_size=60)))
def test_no_character_is_lost_and_sentences_stay_whole(text):
    res = split_sentences(text)
    assert bare(''.join(res)) == bare(text) and all(o and o == o.strip() for o in res)
    for o in res: assert bare(''.join(split_sentences(o))) == bare(o)

def test_a_long_paragraph_comes_to_an_end():
    for text in ('He went. ', 'A'*4, '""', '. ', 'Tom '): split_sentences(text*50_000)

LONG = 'He looked long at the sea and the ships that came and went, and thought of the years'
def test_paragraphs_of_three_kinds_of_files():
    whole = [f'{LONG} that were gone.', f'"{LONG}," said Tom. "So be it."']
    assert paragraphs('\n'.join(whole)) == whole == paragraphs('\r\n\r\n'.join(['I', *whole]))
    def wrap(text): return '\n'.join(textwrap.wrap(text, 60, break_on_hyphens=False))
    assert paragraphs('\n\n'.join(map(wrap, whole*3))) == whole*3          # blank lines between
    text = ' '.join([LONG]*3) + ' he had.'                    # none: the last line has room
    assert paragraphs('\n'.join([wrap(text), wrap(text)])) == [text, text]
    for line in ('CHAPTER I', 'XIV', '* * *', 'THE END'): assert is_heading(line)
    for line in ('part of the road', '"NO!"', 'I went'): assert not is_heading(line)

def test_scars_are_mended():
    assert clean_book('he , she ; and _it_ . . . `Yes') == "he, she; and it ... 'Yes"
    assert (clean_book("the priest s hand, we re late, a well?known man? \" Tis he")
            == "the priest's hand, we're late, a well-known man? \" 'Tis he")
    assert book_sentences('by me\n\nIt was so.\n\nThe Next Day\n\n" Tis he."', 'It was') == [
        'It was so.', '"\'Tis he."']

@pytest.mark.parametrize('line, sents', [
    ("The role @-@ playing crew didn 't sing . It cost $ 1 @,@ 250 @.@ 50 .",
     ["The role-playing crew didn't sing.", 'It cost $1,250.50.']),
    ('St. Mary \'s " Blue Boat " ( 1861 ) left at 6 : 30 .', ['St. Mary\'s "Blue Boat" (1861) left at 6:30.']),
    ('He said " It sank . " She left .', ['He said "It sank."', 'She left.']), ('', []),
    ('" Go " , said he ; a 7 " disc .', ['"Go", said he; a 7" disc.'])])
def test_wikitext_is_undone(line, sents): assert undo_wikitext(line) == sents

def test_which_sentences_are_kept():
    lines = ['= = A Ship = =', 'She sailed away early .', 'The <unk> sailed <unk> .', 'A list of ;']
    assert wikitext_sentences(lines) == ['She sailed away early.']
    text = 'First Citizen:\nBefore we go,\nHear me. Will you?\n\n3 KING HENRY VI\n\nAll:\nSpeak!\n\nKING:\n'
    assert speeches(text) == ['Before we go, Hear me.', 'Will you?', 'Speak!']

def fake_english(folder):
    for o in ('novels/valid', 'tiny_shakespeare', 'wikitext-2'): (folder/o).mkdir(parents=True)
    for b in BOOKS:
        text = f'{b.start or "It began"} and so on. It was {b.year}.'
        file = folder/'novels'/('valid' if b.held else '')/f'{b.name}.txt'
        file.write_bytes(f'\ufeff{b.title}\r\n\r\n{text}\r\n'.encode())
    plays = '\n\n'.join(f'Tom:\nThis is speech {i}.' for i in range(100))
    (folder/'tiny_shakespeare'/'input.txt').write_text(plays)
    for k in ('train', 'valid', 'test'): (folder/'wikitext-2'/f'{k}.txt').write_text(
        f' = Ship = \n\n The {k} ship sailed <unk> away . \n')
    return folder

def test_a_local_copy(tmp_path):
    "Books that are others are refused; a corpus that was written is read by its names"
    with pytest.raises(CorpusError, match='not the text'): english(fake_english(tmp_path))
    c = english(tmp_path, check=False)
    assert c.splits['wiki'] == ['The valid ship sailed <unk> away.'] and len(c.valid) == 4
    plays = [s for s in c.train if 'speech' in s] + c.splits['plays']
    assert plays == [f'This is speech {i}.' for i in range(100)] and 8 <= len(c.splits['plays']) <= 12
    again = text_corpus(books.save_lines(c, tmp_path/'english'))
    assert again.splits == dict(train=c.train, valid=c.valid)
    (tmp_path/'novels'/f'{BOOKS[3].name}.txt').unlink()
    with pytest.raises(CorpusError, match=BOOKS[3].name): novels(tmp_path/'novels', check=False)

def test_the_text_of_the_boxed_model():
    "Whoever changes the rules changes what the published model was trained on"
    folder = [local(name) for name in ('novels', 'tiny_shakespeare', 'wikitext-2')][0].parent
    c = english(folder)
    assert (sha256('\n'.join(c.train).encode()).hexdigest()
            == '7691f09e785a69090b8114238328859af4634cda5dc15735b8340a7247e69e26')
    assert {k: len(v) for k,v in c.splits.items()} == dict(train=737_127, valid=9_484, plays=1_347, wiki=4_828)
    assert not re.search(r'[\x00-\x09\x0b-\x1f\x7f\ufeff]|  ', '\n'.join(c.train))
    seen = set(c.train)
    assert not [s for s in c.valid if len(s.split()) > 8 and s in seen]       # whole books apart
