"CBOW's loader and model against loops, the learner around them, its vectors and their files"
import math, pickle
from collections import Counter
import numpy as np, pytest, torch, torch.nn.functional as F
from fastai.basics import load_learner, set_seed
from fastai.data.all import DataLoaders, Datasets, TfmdLists
from hypothesis import given, settings, strategies as st

from elmo_fastai.all import (
    ByteCharVocab, CharCNN, ElmoDataLoaders, ElmoTransform, WordVocab, toy_corpus)
from elmo_fastai.batches import EncodedText, TokenTypes
from elmo_fastai.cbow import CBOW, ELMODataLoader, WordVectors, cbow_learner, word_vectors
from elmo_fastai.tokens import SPECIALS
from made import comes_back, quietly

V, D = 30, 6
each_input = pytest.mark.parametrize('letters', [False, True])

def equal(a, b): torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)

# the loader

sentences = st.lists(st.lists(st.sampled_from('abcdexyz'), max_size=6), min_size=1, max_size=5)

@settings(max_examples=60, deadline=None)
@given(sentences, st.integers(1, 3), st.integers(0, 3), st.integers(1, 7), st.booleans())
def test_windows_are_those_of_a_loop(sents, before, after, bs, shuffle):
    vocab, chars = WordVocab.build([list('abcde')]), ByteCharVocab(5)
    _, bos, eos = chars.specials[:, None]
    ids = [[2, *vocab.encode(sent), 3] for sent in sents]             # x, y and z are unknown
    letters = [np.concatenate([bos, chars.encode(sent), eos]) for sent in sents]
    dl = ELMODataLoader([*zip(ids, letters)], before, after, vocab, bs=bs, shuffle=shuffle)
    wanted = Counter()
    for sent,rows in zip(ids, letters):
        for i in range(1, len(sent) - (after > 0)):
            places = [*range(i-before, i), *range(i+1, i+1+after)]
            real = [0 <= j < len(sent) for j in places]
            around = tuple(sent[j] if ok else 0 for j,ok in zip(places, real))
            spelt = tuple(bytes(rows[j]) if ok else bytes(10) for j,ok in zip(places, real))
            wanted[around, spelt, sent[i]] += 1
    found = Counter((tuple(x.tolist()), tuple(bytes(row.numpy()) for row in c), int(y))
                    for batch in dl for x,c,y in zip(*batch))
    assert found == wanted and len(dl.places) == wanted.total()
    assert len(list(dl)) == len(dl) == math.ceil(len(dl.places)/bs)

@pytest.mark.parametrize('before,after', [(1, 0), (4, 0), (2, 2), (1, 3)])
def test_no_window_holds_what_it_should_guess(before, after):
    "Nor anything that depends on it: all words of this text are different"
    ids = torch.arange(4, 104).view(10, 10).tolist()
    for x,y in ELMODataLoader(ids, before, after, bs=7):
        assert not (x == y[:,None]).any() and (after or (x < y[:,None]).all())

def test_an_epoch_can_be_repeated_and_a_loader_copied():
    ids = [[2, *range(4, 30), 3]]*4
    def run(**kwargs):
        set_seed(3)
        return [y.tolist() for _,y in ELMODataLoader(ids, shuffle=True, bs=9, **kwargs)]
    assert run() == run() == run(num_workers=2) and sorted(sum(run(), [])) != sum(run(), [])
    dl = ELMODataLoader(ids, 3, 0, WordVocab(SPECIALS), bs=9)
    for other in (dl.new(), pickle.loads(pickle.dumps(dl))):
        assert [y.tolist() for _,y in other] == [y.tolist() for _,y in dl]
        assert other.vocab.itos == SPECIALS
    with pytest.raises(ValueError, match='whole number'): ELMODataLoader(ids, context_size=0)

# the model

def make(letters=False, n_places=None):
    torch.manual_seed(0)
    m = CBOW(V, D, CharCNN(D, 3, ((1,4), (3,5))) if letters else None, n_places).eval()
    if not letters: m.embed.weight.data[1:].normal_()
    return m

def batch(n=9, width=4):
    """Word ids [n, width] and the letters of the same words; some places empty, in the last row all
    of them"""
    g = torch.Generator().manual_seed(0)
    words = torch.randint(4, 12, (n, width), generator=g)
    words[torch.rand(n, width, generator=g) < .3] = 0
    words[-1] = 0
    vocab = ByteCharVocab()
    known = vocab.encode('she sat on the bank naïve 日本語 x'.split())
    return words, torch.from_numpy(np.concatenate([vocab.specials, np.zeros((1, 50), np.int16),
                                                   known])
                                   )[words]

@each_input
def test_the_mean_equals_a_loop_and_nothing_else_changes_it(letters):
    m, (words, chars) = make(letters), batch()
    y = m(words, chars)
    for i,row in enumerate(words):
        real = row != 0
        x = m.embed(chars[i, real] if letters else row[real])
        mean = sum(x)/real.sum() if real.any() else torch.zeros(D)
        equal(y[i], m.head(mean))
        if real.any(): equal(m(row[real][None], chars[i, real][None])[0], y[i])     # alone
    equal(m(F.pad(words, (2, 3)), F.pad(chars, (0, 0, 2, 3))), y)                 # on both sides
    turn = torch.randperm(9)
    equal(m(words[turn], chars[turn]), y[turn])
    equal(m(words.flip(1), chars.flip(1)), y)                                     # it has no order

@each_input
def test_places_have_their_own_weights(letters):
    m, (words, chars) = make(letters, 4), batch()
    for i,row in enumerate(words[:-1]):
        x = torch.stack([m.embed((chars if letters else words)[i, j][None])[0] if row[j] else
                         torch.zeros(D) for j in range(4)])
        h = sum(m.places.weight[:, j*D:(j+1)*D] @ x[j] for j in range(4)) + m.places.bias
        equal(m(words, chars)[i], m.head(h.relu()))
    assert not torch.allclose(m(words.flip(1), chars.flip(1)), m(words, chars))

def test_it_reads_what_fastai_makes(texts):
    "`TfmdLists` and `Datasets` give the same windows, which can be shown"
    lines = texts[:40]
    step = ElmoTransform()
    def batches(dl): return [torch.cat(part) for part in zip(*dl)]
    lists = ELMODataLoader(TfmdLists(lines, step), 2, vocab=step.vocab)
    sets = Datasets(lines, [step], splits=[range(40), range(5)])
    dls = sets.dataloaders(dl_type=ELMODataLoader, bs=32, vocab=step.vocab, shuffle=False)
    whole = dls.train.new(shuffle=False, drop_last=False)
    for a,b in zip(batches(whole), batches(lists)): assert torch.equal(a, b)
    learn = cbow_learner(dls)
    dls.show_batch()
    with learn.no_bar(): learn.show_results()

def test_what_is_no_window_is_refused(texts):
    lines = [line.split() for line in texts[:10]]
    vocab = WordVocab.build(lines)
    ids = [[2, *vocab.encode(tokens), 3] for tokens in lines]
    for data,args,why in ((ids, dict(bs=0), 'bs=0'), (lines, {}, 'word ids'),
                          (EncodedText(lines, TokenTypes(vocab)), {}, 'Encoded')):
        with pytest.raises(ValueError, match=why): ELMODataLoader(data, vocab=vocab, **args)
    dl = ELMODataLoader(ids, vocab=vocab)
    dls = DataLoaders(dl, dl)
    with pytest.raises(ValueError, match='dim='): cbow_learner(dls, 64)
    others = ElmoDataLoaders.from_corpus(texts[:20])
    with pytest.raises(ValueError, match='ELMODataLoader'): cbow_learner(others)

# the learner

@pytest.fixture(scope='module')
def dls():
    "Loaders as fastai makes them, of words and of their letters"
    corpus = toy_corpus(n_train=300, n_valid=70, n_test=1, n_unseen=1)
    sents = [s.tokens for part in ('train', 'valid') for s in corpus.gold[part]]
    lists = TfmdLists(sents, ElmoTransform('space'), splits=[range(300), range(300, 370)])
    return lists.dataloaders(bs=64, val_bs=50, dl_type=ELMODataLoader, context_size=2, device='cpu')

def learner(dls, letters=False, seed=0, **kwargs):
    set_seed(seed)
    return cbow_learner(dls, CharCNN(16, filters=((2,16), (3,16))) if letters else None, 16,
                        **kwargs)

@torch.no_grad()
def exact(learn, dl):
    "Perplexity and accuracy by hand, example by example"
    m, nats, hits = learn.model.eval(), [], []
    for w,c,y in dl:
        p = m(w, c).softmax(1)
        nats += (-p[range(len(y)), y].log()).tolist()
        hits += (p.argmax(1) == y).tolist()
    return math.exp(np.mean(nats)), np.mean(hits)

@pytest.mark.parametrize('letters,ordered', [(False, False), (False, True), (True, False)])
def test_it_beats_unigram_and_its_table_is_right(dls, letters, ordered):
    assert len(dls.valid.places) % 50, 'the last batch must be short for this test to mean anything'
    learn = learner(dls, letters, ordered=ordered)
    quietly(learn, 'fit_one_cycle', 3, 1e-2 if letters or ordered else 3e-2)
    seen, asked = (torch.cat([y for *_,y in dl]) for dl in dls)
    counts = torch.bincount(seen, minlength=len(dls.vocab)) + .5
    unigram = (counts.sum()/counts[asked]).log().mean().exp().item()
    loss, ppl, acc = learn.recorder.values[-1][1:]
    expected, expected_acc = exact(learn, dls.valid)
    assert float(ppl) == pytest.approx(expected, rel=1e-4) and expected < unigram*.8
    assert float(acc) == pytest.approx(expected_acc, abs=1e-6)
    assert loss == pytest.approx(math.log(expected), rel=1e-4)

@each_input
def test_export_and_save(dls, tmp_path, letters):
    learn = learner(dls, letters, path=tmp_path)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('l.pkl')
    again = load_learner(tmp_path/'l.pkl')
    assert not len(again.dls.train) and again.dls.vocab.itos == dls.vocab.itos
    assert np.allclose(word_vectors(again).vectors, word_vectors(learn).vectors, atol=1e-5)
    assert comes_back(learn, learner(dls, letters, 5, path=tmp_path))
    p, y = quietly(learn, 'get_preds')
    assert torch.equal(y, torch.cat([y for *_,y in dls.valid])), 'in the order of the text'

# vectors

def test_word_vectors_of_a_learner(dls):
    learn, letters = learner(dls), learner(dls, True)
    wv = word_vectors(learn)
    assert wv.words == dls.vocab.itos[4:] and not any(mark in wv for mark in SPECIALS)
    assert np.array_equal(wv.vectors, learn.model.embed.weight[4:].detach().numpy())
    wv.vectors[5] = 99
    assert learn.model.embed.weight.abs().max() < 99, 'a copy, not a view'
    words = ['boat', 'zyxwv', '日本語', '<s>']
    alone = np.concatenate([word_vectors(letters, [w]).vectors for w in words])
    np.testing.assert_allclose(word_vectors(letters, words).vectors, alone, atol=1e-5)
    with pytest.raises(ValueError, match='table'): word_vectors(learn, ['boat'])

def test_look_up_and_nearest():
    words = [f'w{i}' for i in range(50)]
    wv = WordVectors(words, np.random.default_rng(0).normal(size=(50, 7)))
    assert np.array_equal(wv['w3'], wv.vectors[3])
    assert 'w99' not in wv and (len(wv), wv.dim) == (50, 7)
    assert not wv.encode(['nope', 'w1'], unknown='zero')[0].any() and not len(wv.encode([]))
    for what,error in ((lambda: wv.encode(['nope']), KeyError), (lambda: wv.encode('w1'),
                                                                 TypeError),
                       (lambda: wv.nearest('nope'), KeyError)):
        with pytest.raises(error): what()
    def cosine(a, b): return a @ b/(np.linalg.norm(a)*np.linalg.norm(b))
    wanted = sorted(((w, cosine(wv['w0'], wv[w])) for w in words[1:]), key=lambda o: -o[1])[:6]
    found = wv.nearest('w0', 6)
    assert [w for w,_ in found] == [w for w,_ in wanted]
    np.testing.assert_allclose([c for _,c in found], [c for _,c in wanted], atol=1e-5)
    assert wv.nearest(wv['w4'], 1)[0][0] == 'w4', 'a vector may find its own word'
    assert len(wv.nearest('w1', 1000)) == 49 and len(wv.nearest('w1', 3, without=words[:48])) == 2

@pytest.mark.parametrize('words,vecs,match', [
    (['a'], np.zeros((2, 3)), 'shape'), (['a', 'a'], np.zeros((2, 3)), 'twice'),
    (['a'], [[math.nan]], 'not finite')])
def test_vectors_that_cannot_be(words, vecs, match):
    with pytest.raises(ValueError, match=match): WordVectors(words, vecs)
