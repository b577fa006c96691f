"What errors say, and what catches them"
import pytest
from elmo_fastai.errors import CorpusError, ModelFileError, as_error, one_of, require

def test_the_choices_are_named():
    one_of('pool', 'max', ('mean', 'max'))
    with pytest.raises(ValueError, match="pool='min': take 'mean', 'max' or 'sum'"):
        one_of('pool', 'min', ('mean', 'max', 'sum'))

@pytest.mark.parametrize('raised,says', [
    (OSError(28, 'No space left'), 'a file: No space left'), (KeyError('x'),
                                                              "a file: KeyError: 'x'"),
    (ValueError('two\n lines'), 'a file: ValueError: two lines'),
    (ModelFileError('its own words'), 'its own words'), (MemoryError(), 'a file: MemoryError: ')])
def test_whatever_goes_wrong_becomes_one_kind_of_error(raised, says):
    with pytest.raises(ModelFileError) as e:
        with as_error(ModelFileError, 'a file'): raise raised
    assert str(e.value) == says and raised in (e.value, e.value.__cause__)

def test_a_text_may_be_larger_than_the_memory():
    require(True, 'never said')
    with pytest.raises(CorpusError, match='said'): require(False, 'said')
    with pytest.raises(MemoryError):
        with as_error(CorpusError, 'a text'): raise MemoryError
