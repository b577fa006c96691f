"Books into sentences: nothing is lost, and the text of the model in the box stays as it is"
import re
from hashlib import sha256
import pytest
from hypothesis import given, settings, strategies as st
from books import english, split_sentences, undo_wikitext
from copies import local

def bare(text): return ''.join(text.split())

@pytest.mark.parametrize('sents', [
    ['"Oh!" said she.', 'She went.'], ['Mr. and Mrs. Bird met Dr. Hall at St. Ives.', 'It rained.'],
    ['He took No. 5.', 'No.', 'He took No. 6.'], ["'Never!' cried Mr. Bumble.", "'Never!'"],
    ['The U.S. Navy came.'], ['At 5 p.m. Tom left.']])
def test_sentences(sents): assert split_sentences(' '.join(sents)) == sents

words = st.sampled_from(['Mr.', 'I.', '"Oh!"', 'he', 'Tom', 'said', '...', '. . .', '-"', "'", '"',
                         'No.', '5', '?)', '3.5', 'e.g.', '(', 'É', '\u2014', 'St. Ives?" I cried'])

@settings(max_examples=60)
@given(st.one_of(st.lists(words, max_size=15).map(' '.join), st.text(max_size=60)))
def test_no_character_is_lost(text):
    res = split_sentences(text)
    assert bare(''.join(res)) == bare(text) and all(o and o == o.strip() for o in res)

def test_wikitext_is_undone():
    line = "The role @-@ playing crew didn 't sing . It cost $ 1 @,@ 250 @.@ 50 ."
    assert undo_wikitext(line) == ["The role-playing crew didn't sing.", 'It cost $1,250.50.']

@pytest.mark.slow
def test_the_text_of_the_boxed_model():
    "Whoever changes the rules changes what the published model was trained on"
    folder = [local(name) for name in ('novels', 'tiny_shakespeare', 'wikitext-2')][0].parent
    c = english(folder)
    assert (sha256('\n'.join(c.train).encode()).hexdigest()
            == '7691f09e785a69090b8114238328859af4634cda5dc15735b8340a7247e69e26')
    assert {k: len(v) for k,v in c.splits.items()} == dict(
        train=737_127, valid=9_484, plays=1_347, wiki=4_828)
    assert not re.search(r'[\x00-\x09\x0b-\x1f\x7f\ufeff]|  ', '\n'.join(c.train))
    seen = set(c.train)
    assert not [s for s in c.valid if len(s.split()) > 8 and s in seen]       # whole books apart
