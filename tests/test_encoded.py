"Encoded text: targets, marks, the table of tokens"
import numpy as np, pytest

from elmo_fastai.text.tokens import BOS, EOS, PAD, WordVocab
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from loading import encode

def test_marks_typed_in_a_text_count():
    ss = [['<pad>', '</s>', '<s>', 'a']]
    text = encode(ss)
    assert text.types.vocab.itos[4:] == ['a'] and len(text.types) == 3+4
    _, fwd, bwd = text.take(np.arange(6))
    assert fwd.tolist() == [1, 1, 1, 4, 3, 0] and bwd.tolist() == [0, 2, 1, 1, 1, 4]

def test_flat_targets():
    text = encode([['a', 'b'], []])
    assert text.ids.tolist() == [1, 3, 4, 2, 1, 2] and text.offsets.tolist() == [0, 4, 6]
    _, fwd, bwd = text.take(np.arange(6))
    assert fwd.tolist() == [4, 5, 3, 0, 0, 0] and bwd.tolist() == [0, 2, 4, 5, 0, 0]

def test_a_cut_is_no_end():
    "Behind it nothing is predicted, and no mark claims that the sentence ended there"
    text = encode([['a', 'b', 'c'], ['b'], ['c', 'a', 'b']], max_words=2)
    a, b, c = text.types.vocab.encode(['a', 'b', 'c'])
    assert [text[i].tolist() for i in range(3)] == [[1, 3, 4], [1, 4, 2], [1, 5, 3]]
    assert text.cuts == (2, 2, 0) and text.lens.tolist() == [3]*3
    assert text.n_words.tolist() == [2, 1, 2]
    _, fwd, bwd = text.take(np.arange(9))
    assert fwd.tolist() == [a, b, 0, b, 3, 0, c, a, 0]
    assert bwd.tolist() == [0, 2, a, 0, 2, b, 0, 2, c]
    assert text.positions(np.arange(3), marks=False).tolist() == [[1, 2], [4, -1], [7, 8]]
    exact = encode([['a', 'b']], max_words=2)              # not cut: its end is true
    assert exact[0].tolist() == [1, 3, 4, 2] and exact.cuts == (0, 0, 0)

def test_table_grows_for_new_text():
    types = TokenTypes(WordVocab.build([['a']]))
    a, n = EncodedText([['a', 'b']], types), len(types.chars)
    b = EncodedText([['c', 'a']], types)
    assert (n == 5 and len(types.chars) == len(types.words) == 6
            and types.tokens == [PAD, BOS, EOS, 'a', 'b', 'c'])
    assert types.char_vocab.decode(types.chars) == types.tokens and types.words.tolist() == [
        0, 2, 3, 4, 1, 1]

def test_sentences_from_the_end():
    text = encode([['a'], ['b', 'c']])
    assert text[-1].tolist() == text[1].tolist() and len(text[np.int64(1)]) == 4
    with pytest.raises(IndexError): text[2]
    assert len(list(text)) == 2
