"The classes of the blog posts: fastai's transforms, blocks and padding"
import pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from hypothesis import given, strategies as st
from fastai.data.all import ColReader, DataBlock, Datasets, RandomSplitter, TfmdLists

from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.data.batches import SentenceDataLoader
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

@given(st.lists(st.lists(token, max_size=5), min_size=1, max_size=4), st.integers(1, 8),
       st.integers(0, 9))
@common
def test_pad_chunk_and_back(ss, multiple, spare):
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    items = [tfm(s) for s in ss]
    pad = ElmoPadChunk(multiple=multiple, spare=spare)
    out = pad([(o, i) for i, o in enumerate(items)])
    W = max(min(len(t.encode('utf-8', 'replace')), 48) + 2 for s in [*ss, ['x']]
            for t in s or ['x'])
    T = max(len(s) + 2 for s in ss)
    for i, ((o, j), old) in enumerate(zip(out, items)):
        assert (i == j and o.words.shape == (-(-T // multiple)*multiple,)
                and o.chars.shape[1] == -(-min(W + spare, 50) // multiple)*multiple)
        (back,) = pad.decode((o,))
        assert torch.equal(back.words, old.words)
        w = min(back.chars.shape[1], 50)
        assert (torch.equal(back.chars[:,:w], old.chars[:,:w])
                and (back.chars[:, w:] == 261).all() and (old.chars[:, w:] == 261).all())
        empty = o.chars[:,0].as_subclass(torch.Tensor) == 0
        assert (o.words[empty] == 0).all() and (o.chars[empty] == 0).all()
        assert (empty[:-1] <= empty[1:]).all()

def test_pad_chunk_in_datasets():
    ds = Datasets([' '.join(s) for s in ss], [[ElmoTransform('space')]])
    dls = ds.dataloaders(bs=4, before_batch=ElmoPadChunk(), num_workers=0, shuffle=False)
    o, = dls.one_batch()
    assert type(o) is ElmoTokens and o.words.shape == o.chars.shape[:2] == (4, 6)
    assert dls.train.decode_batch(dls.one_batch())[1] == (' '.join(ss[1]),)

def test_spare_columns_keep_the_maxima():
    torch.manual_seed(0)
    tfm = ElmoTransform(vocab=WordVocab.build([['a']]))
    emb, conv = torch.nn.Embedding(262, 4), torch.nn.Conv1d(4, 8, 7)
    enc = lambda c: conv(emb(torch.as_tensor(np.asarray(c)).long()).transpose(1, 2)).amax(-1)
    o = tfm(['bank', 'of', 'the'])
    (p,), = ElmoPadChunk()([(o,)])
    assert p.chars.shape[1] < 50 and torch.allclose(enc(p.chars), enc(o.chars), atol=1e-6)

def test_nothing_to_pad():
    for samples in ([], [('a',)]):
        with pytest.raises(TypeError, match=f'none of these {len(samples)} samples'):
            ElmoPadChunk()(samples)
