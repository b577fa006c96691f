"What errors say, and what catches them"
import pytest
from elmo_fastai.base import errors
from elmo_fastai.base.errors import (
    CommandError, CorpusError, ModelFileError, as_error, one_of, require)

def test_an_unknown_name_is_caught_as_what_it_names():
    for kind in (CorpusError, ModelFileError, CommandError, ValueError):
        with pytest.raises(kind): raise errors.UnknownName('no such thing')

def test_the_choices_are_named():
    one_of('pool', 'max', ('mean', 'max'))
    with pytest.raises(ValueError, match="pool='min': take 'mean', 'max' or 'sum'"):
        one_of('pool', 'min', ('mean', 'max', 'sum'))

def test_nothing_is_raised_where_all_is_well():
    require(True, 'never said')
    with pytest.raises(CorpusError, match='said'): require(False, 'said')

@pytest.mark.parametrize('raised,says', [
    (OSError(28, 'No space left'), '^a file: No space left$'),
    (KeyError('x'), "^a file: KeyError: 'x'$"), (ModelFileError('its own words'), '^its own '
              'words$'),
    (MemoryError(), '^a file: MemoryError')], ids=str)
def test_whatever_goes_wrong_becomes_one_kind_of_error(raised, says):
    with pytest.raises(ModelFileError, match=says):
        with as_error(ModelFileError, 'a file'): raise raised

def test_a_text_may_be_larger_than_the_memory():
    with pytest.raises(MemoryError):
        with as_error(CorpusError, 'a text'): raise MemoryError
