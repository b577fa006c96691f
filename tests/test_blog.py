"The classes of the blog posts: fastai's transforms, blocks and padding"
import pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, strategies as st
from fastai.data.all import (
    ColReader, DataBlock, Datasets, RandomSplitter, TensorCategory, TfmdLists)

from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.data.batches import SentenceDataLoader
from elmo_fastai.errors import CorpusError
from elmo_fastai.data.encoded import TensorChars, TensorTokens
from elmo_fastai.data.blog import BiLMBlock, ElmoPadChunk, ElmoTokens, ElmoTransform
from loading import common, found, reference, ss, token

def test_datasets_and_blocks():
    df = pd.DataFrame({'body': [' '.join(s) for s in ss]})
    for kind,kw in dict(sentences={}, stream=dict(seq_len=8), cbow=dict(context_size=1)).items():
        block = DataBlock(
            blocks=BiLMBlock(kind, tokenizer='space', max_words=5, **kw),
            get_x=ColReader('body'),
            splitter=RandomSplitter(seed=1),
        )
        dls = block.dataloaders(df, bs=4)
        assert (len(dls.train.text) == 48 and len(dls.valid.text) == 12
                and dls.train.text.cuts.words > 0)
        assert dls.valid.types is dls.train.types and len(dls.one_batch()) == 3
        assert (len(pickle.loads(pickle.dumps(dls)).train) == len(dls.train)
                and len(dls.new_empty().train) == 0)
    ds = Datasets(df, [[ColReader('body'), ElmoTransform('space')]])
    text = SentenceDataLoader(ds).text
    assert Counter(found(SentenceDataLoader(ds, bs=5))) == Counter(reference(ss, text))
    tl = TfmdLists([' '.join(s) for s in ss], ElmoTransform('space'))
    assert Counter(found(SentenceDataLoader(tl, bs=5))) == Counter(reference(ss, text))

def test_a_cut_item_has_no_false_end():
    tfm = ElmoTransform('space', vocab=WordVocab.build([list('abcd')]), max_words=2)
    cut, whole = tfm('a b c d'), tfm('a b')
    assert cut.words.tolist() == [2, 4, 5] and whole.words.tolist() == [2, 4, 5, 3]
    assert len(cut.chars) == 3 and tfm.decode(cut) == tfm.decode(whole) == 'a b' and tfm.lost == 2
    [(a,), (b,)] = ElmoPadChunk()([(cut,), (whole,)])
    assert a.words.tolist() == [2, 4, 5, 0] and not a.chars[3].any()
    dl = SentenceDataLoader(TfmdLists(['a b c d', 'a b'], tfm), sort=False)
    [(_, fwd, bwd)] = dl
    assert fwd.tolist() == [[4, 5, 0, 0], [4, 5, 3, 0]]
    assert bwd.tolist() == [[0, 2, 4, 0], [0, 2, 4, 5]]

@given(st.lists(st.lists(token, max_size=5), min_size=1, max_size=4))
@common
def test_pad_chunk_and_back(ss):
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    items = [tfm(s) for s in ss]
    pad = ElmoPadChunk()
    out = pad([(o, i) for i, o in enumerate(items)])
    T = max(len(s) + 2 for s in ss)
    for i, ((o, j), old) in enumerate(zip(out, items)):
        assert i == j and o.words.shape == (T,) and o.chars.shape == (T, 50)
        back, _ = pad.decode((o, i))
        assert torch.equal(back.words, old.words) and torch.equal(back.chars, old.chars)
        assert not o.words[len(back.words):].any() and not o.chars[len(back.words):].any()

def test_every_part_with_a_row_per_token_is_padded():
    class Marks(TensorTokens): fill = 7
    class Other(TensorTokens): "A part of a user's own, with columns"
    sample = [(TensorChars(torch.ones(n, 4).short()), Marks(torch.ones(n)),
               Other(torch.ones(n, 2, 3)), TensorCategory(1), 'text') for n in (3, 0, 1)]
    out = ElmoPadChunk()(sample)
    for (chars, marks, other, label, text), n in zip(out, (3, 0, 1)):
        assert chars.dtype == torch.int16 and type(marks) is Marks and other.shape == (3, 2, 3)
        assert marks.tolist() == [1]*n + [7]*(3 - n) and not other[n:].any()
        assert (label, text) == (1, 'text')
        back = ElmoPadChunk().decode((chars, marks, other))
        assert [len(part) for part in back] == [n]*3
    [(blank,)] = ElmoPadChunk()([(TensorChars(torch.ones(0, 4)),)])
    assert blank.shape == (1, 4) and not blank.any()
    with pytest.raises(CorpusError, match='3 and 2 rows'):
        ElmoPadChunk()([(TensorChars(torch.ones(3, 4)), Marks(torch.ones(2)))])

def test_pad_chunk_in_datasets():
    ds = Datasets([' '.join(s) for s in ss], [[ElmoTransform('space')]])
    dls = ds.dataloaders(bs=4, before_batch=ElmoPadChunk(), num_workers=0, shuffle=False)
    o, = dls.one_batch()
    assert type(o) is ElmoTokens and o.words.shape == o.chars.shape[:2] == (4, 6)
    assert dls.train.decode_batch(dls.one_batch())[1] == (' '.join(ss[1]),)

def test_nothing_to_pad():
    for samples in ([], [('a',)]):
        with pytest.raises(TypeError, match=f'none of these {len(samples)} samples'):
            ElmoPadChunk()(samples)
