"Local copies of public corpora, for the tests that read the real ones"
import os
from pathlib import Path

import pytest

# The ending of a corpus's files, and the bytes of all of them
PUBLISHED = {'ai2_fixture': ('hdf5', 564_848), 'novels': ('txt', 13_722_714),
             'tiny_shakespeare': ('txt', 1_115_394), 'ud-ewt': ('conllu', 17_813_085),
             'wikitext-2': ('txt', 13_175_278)}

def local(name):
    """The folder of a public corpus where ELMO_FASTAI_DATA named one when the tests began; the
    test is skipped where there is none, or where its files are others"""
    above = os.environ['ELMO_FASTAI_TESTS_READ']
    folder = Path(above, name)
    ending, size = PUBLISHED[name]
    found = sum(file.stat().st_size for file in folder.rglob(f'*.{ending}'))
    if not above or found != size:
        pytest.skip(f'ELMO_FASTAI_DATA names no folder with the published files of {name}')
    return folder
