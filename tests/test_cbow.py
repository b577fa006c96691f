"""CBOW against a loop and PyTorch, what must not change it, the learner around it, and files of
word vectors, good and bad"""
import json, math, pickle
from pathlib import Path
import numpy as np, pytest, torch, torch.nn.functional as F
from datasets import Dataset
from fastai.basics import load_learner, set_seed
from fastai.interpret import ClassificationInterpretation
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

from elmo_fastai.errors import ModelFileError
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.tokens import ByteCharVocab, SPECIALS
from elmo_fastai.nn.charcnn import CharCNN
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.tasks.cbow import CBOW, WordVectors, cbow_learner, word_vectors
from made import comes_back, quietly

V, D = 30, 6
WORDS = 'she sat on the bank of river and a boat raft under naïve 日本語 x'.split()
each_input = pytest.mark.parametrize('chars', [False, True])

def make(chars=False):
    torch.manual_seed(0)
    m = CBOW(V, D, CharCNN(D, 3, ((1,4), (3,5))) if chars else None).eval()
    if not chars: m.embed.weight.data[1:].normal_()
    return m

def batch(n=5, width=4, seed=0):
    """Word ids [n, width] and the characters of the same words; some places empty, in the last row
    all of them"""
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 4+len(WORDS), (n, width), generator=g)
    words[torch.rand(n, width, generator=g) < .3] = 0
    words[-1] = 0
    vocab = ByteCharVocab()
    rows = np.concatenate([vocab.specials, np.zeros((1, 50), np.int16), vocab.encode(WORDS)])
    return words, torch.from_numpy(rows)[words]

def equal(a, b): torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)

@each_input
def test_equals_the_loop_and_padding_and_company_change_nothing(chars):
    m, (words, letters) = make(chars), batch(9)
    x = m.chars(letters) if chars else m.embed(words)
    y = m(words, letters)
    for i,row in enumerate(words):
        real = row != 0
        mean = sum(x[i, real])/real.sum() if real.any() else torch.zeros(D)
        equal(y[i], m.head(mean))
        if real.any(): equal(m(row[real][None], letters[i, real][None])[0], y[i])   # alone
    equal(m(F.pad(words, (2, 3)), F.pad(letters, (0, 0, 2, 3))), y)                 # on both sides
    turn = torch.randperm(9)
    equal(m(words[turn], letters[turn]), y[turn])

def test_tables_can_be_traced_exported_and_pickled():
    m, (words, _), (more, _) = make(), batch(5), batch(9, seed=1)
    shapes = {0: torch.export.Dim('b', min=2)},
    for other in (torch.jit.trace(m, (words,)), pickle.loads(pickle.dumps(m)),
                  torch.export.export(m, (words,), dynamic_shapes=shapes).module()):
        equal(other(more), m(more))

# the learner

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=500, n_valid=120, n_test=1, n_unseen=30)

def loaders(corpus, **kwargs):
    settings = dict(kind='cbow', bs=64, val_bs=50, seed=0, device='cpu', context_size=2)
    return ElmoDataLoaders.from_corpus(corpus, **settings | kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)

def learner(dls, seed=0, **kwargs):
    set_seed(seed)
    return cbow_learner(dls, **dict(dim=16) | kwargs)

@torch.no_grad()
def exact(learn, dl):
    "Perplexity and accuracy by hand, example by example"
    m, nats, hits = learn.model.eval(), [], []
    for w,c,y in dl:
        p = m(w, c).softmax(1)
        nats += (-p[range(len(y)), y].log()).tolist()
        hits += (p.argmax(1) == y).tolist()
    return math.exp(np.mean(nats)), np.mean(hits)

@each_input
def test_it_beats_unigram_and_its_table_is_right(dls, chars):
    assert dls.valid.examples % 50, 'the last batch must be short for this test to mean anything'
    learn = learner(dls, chars=chars)
    quietly(learn, 'fit_one_cycle', 3, 1e-2 if chars else 3e-2)
    seen, asked = (torch.cat([y for *_,y in dl]) for dl in dls)
    counts = torch.bincount(seen, minlength=len(dls.vocab)) + .5
    unigram = (counts.sum()/counts[asked]).log().mean().exp().item()
    loss, ppl, acc = learn.recorder.values[-1][1:]
    expected, expected_acc = exact(learn, dls.valid)
    assert float(ppl) == pytest.approx(expected, rel=1e-4) and expected < unigram*.8
    assert float(acc) == pytest.approx(expected_acc, abs=1e-6)
    assert loss == pytest.approx(math.log(expected), rel=1e-4)

@each_input
def test_export_and_save(dls, tmp_path, chars):
    learn = learner(dls, path=tmp_path, chars=chars)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('l.pkl')
    again = load_learner(tmp_path/'l.pkl')
    text = 'she sat on the ___ of the river .'
    assert torch.allclose(again.predict(text)[2], learn.predict(text)[2], atol=1e-5)
    assert np.allclose(word_vectors(again).vectors, word_vectors(learn).vectors, atol=1e-5)
    again.dls = dls
    before = exact(again, dls.valid)[0]
    quietly(again, 'fit_one_cycle', 3, 1e-2)             # it trains on
    assert exact(again, dls.valid)[0] < before
    assert comes_back(learn, learner(dls, 5, path=tmp_path, chars=chars))

@pytest.mark.parametrize('k', [1, 2, 3])
def test_predict_takes_the_neighbours_that_the_loader_takes(corpus, k):
    dls = loaders(corpus, context_size=k)
    learn = learner(dls)
    words, chars, _ = dls.valid.one_batch()
    rows = iter(learn.model.eval()(words, chars).softmax(1))
    sents = [s.tokens for s in corpus.gold['valid']][:5]
    def filled(s, i): return learn.predict([*s[:i], '___', *s[i+1:]])[2]
    for s in sents:
        for i in range(k-1, len(s)-k+1): equal(filled(s, i), next(rows))
    assert all(filled(s, i).isfinite().all() for i in range(len(s)))     # and those at the ends

def test_predict_and_results(dls):
    learn = learner(dls)
    word, i, p = learn.predict('She put the ___ in the bank')
    assert learn.dls.vocab.itos[int(i)] == word and float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert len(learn.predict('___')) == 3                                # nothing but a gap
    for bad in ('no gap here', '___ and ___', ''):
        with pytest.raises(ValueError, match='___'): learn.predict(bad)
    df = quietly(learn, 'show_results', max_n=4, show=False)
    assert list(df.columns) == ['left', 'target', 'right', 'guess', 'p(target)'] and len(df) == 4
    p, y, losses = quietly(learn, 'get_preds', with_loss=True)
    assert torch.allclose(losses, -p[range(len(y)), y].log(), atol=1e-4)
    assert torch.equal(y, torch.cat([y for *_,y in dls.valid])), 'in the order of the text'
    with learn.no_bar(): found = ClassificationInterpretation.from_learner(learn)
    assert found.most_confused(min_val=1)

@pytest.mark.parametrize('tokenizer,said', [
    ('words', 'the bank ___.'), ('space', 'the bank ___ .'),
    (lambda text: text.lower().split(), 'The bank ___ .')], ids=['words', 'space', 'own'])
def test_a_text_is_split_as_the_loaders_text(tokenizer, said, tmp_path):
    lines = ['The bank closed .', 'The bank opened .']*20
    learn = learner(loaders(Corpus('c', dict(train=lines, valid=lines), tokenizer)))
    learn.export(tmp_path/'c.pkl')
    for one in (learn, load_learner(tmp_path/'c.pkl')):
        assert torch.allclose(one.predict(said)[2], one.predict(['the', 'bank', '___', '.'])[2])

def test_other_loaders(corpus):
    with pytest.raises(ValueError, match="kind='cbow'"):
        cbow_learner(ElmoDataLoaders.from_corpus(corpus, device='cpu'))
    text = Dataset.from_dict(dict(text=corpus.train))             # that is read in pieces
    dls = stream_loaders(text, n_valid=9, n_batches=3, kind='cbow', tokenizer='space',
                         context_size=1, bs=32, device='cpu')
    learn = learner(dls)
    quietly(learn, 'fit', 1, 1e-3)
    assert learn.context_size == 1 and learn.predict('the ___ waited')[0] in dls.vocab.itos

# vectors

def test_word_vectors_of_a_learner(dls):
    learn, letters = learner(dls), learner(dls, chars=True)
    wv = word_vectors(learn)
    assert wv.words == dls.vocab.itos[4:] and not any(mark in wv for mark in SPECIALS)
    assert np.array_equal(wv.vectors, learn.model.embed.weight[4:].detach().numpy())
    wv.vectors[5] = 99
    assert learn.model.embed.weight.abs().max() < 99, 'a copy, not a view'
    words = ['boat', 'zyxwv', '日本語', '<s>']
    alone = np.concatenate([word_vectors(letters, [w]).vectors for w in words])
    np.testing.assert_allclose(word_vectors(letters, words).vectors, alone, atol=1e-5)
    with pytest.raises(ValueError, match='table'): word_vectors(learn, ['boat'])

def vectors(n=50, dim=7):
    words = [f'w{i}' for i in range(n - 3)] + ['naïve', '日本語', 'New_York']
    return WordVectors(words, np.random.default_rng(0).normal(size=(n, dim)))

def test_look_up_and_nearest():
    wv = vectors()
    assert np.array_equal(wv['w3'], wv.vectors[3]) and 'w99' not in wv and (len(wv), wv.dim) == (50, 7)
    assert not wv.encode(['nope', 'w1'], unknown='zero')[0].any()
    assert wv.encode([]).shape == (0, 7)
    for what,error in ((lambda: wv['w333'], KeyError), (lambda: wv.encode(['nope']), KeyError),
                       (lambda: wv.encode(['w1'], unknown='skip'), ValueError),
                       (lambda: wv.encode('w1 w2'), TypeError), (lambda: wv.nearest('nope'), KeyError)):
        with pytest.raises(error): what()
    def cosine(a, b): return a @ b/(np.linalg.norm(a)*np.linalg.norm(b))
    expected = sorted(((w, cosine(wv['w0'], wv[w])) for w in wv.words[1:]), key=lambda o: -o[1])
    found = wv.nearest('w0', 6)
    assert [w for w,_ in found] == [w for w,_ in expected[:6]]
    np.testing.assert_allclose([c for _,c in found], [c for _,c in expected[:6]], atol=1e-5)
    assert wv.nearest(wv['w4'], 1)[0][0] == 'w4', 'a vector may find its own word'
    assert len(wv.nearest('w1', 1000)) == 49
    assert len(wv.nearest('w1', 3, without=wv.words[:48])) == 2
    zero = WordVectors(['a', 'b', 'c'], [[0, 0], [1, 0], [0, 1]])
    assert all(np.isfinite(c) for _,c in zero.nearest('a')) and zero.nearest('b')[0][1] == 0

@pytest.mark.parametrize('words,vecs,match', [
    (['a'], np.zeros((2, 3)), '1 words and vectors of shape'), (['a'], np.zeros(3), 'shape'),
    ([], np.zeros((0, 3)), 'shape'), (['a', 'a'], np.zeros((2, 3)), "'a' is there twice"),
    (['a', None], np.zeros((2, 3)), 'None is no word')])
def test_vectors_that_cannot_be(words, vecs, match):
    with pytest.raises(ValueError, match=match): WordVectors(words, vecs)

# files

@pytest.mark.parametrize('name', ['v.vec', 'v.safetensors', 'deep/er/v.txt'])
def test_round_trip_to_the_last_bit(tmp_path, monkeypatch, name):
    monkeypatch.setenv('HOME', str(tmp_path))
    wv = vectors()
    wv.vectors[:3] *= [[1e-30], [1e30], [0]]
    path = wv.save(Path('~')/name)
    again = WordVectors.load(f'~/{name}')
    assert path == tmp_path/name and again.words == wv.words
    assert np.array_equal(again.vectors, wv.vectors) and again.vectors.dtype == np.float32
    assert [file for file in tmp_path.rglob('*') if file.is_file()] == [path]
    again.vectors[3] = 1                                            # it can be worked with
    assert len(WordVectors.load(path, max_words=5)) == 5

@settings(max_examples=40)
@given(words=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
def test_any_words_fit_into_one_of_the_formats(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp('any')
    wv = WordVectors(words, np.arange(len(words)*2).reshape(-1, 2))
    assert WordVectors.load(wv.save(folder/'v.safetensors')).words == words
    try: path = wv.save(folder/'v.txt')
    except ValueError as e: assert 'white space' in str(e) and not (folder/'v.txt').exists()
    else: assert WordVectors.load(path).words == words

@pytest.mark.parametrize('text,words,found', [
    ('the .1 .2 .3\n. . . 1 2 3\nnaïve 4 5 6\n', ['the', '. . .', 'naïve'], [.1, .2, .3]),
    ('\ufeff2 2\r\na 1 2 \r\nb 3e-1 -4 \r\n', ['a', 'b'], [1, 2]),          # Windows, word2vec.c
    ('1000000000 2\na 1 2\n', ['a'], [1, 2])])                              # a promise
def test_files_of_others(tmp_path, text, words, found):
    (tmp_path/'v.txt').write_bytes(text.encode())
    wv = WordVectors.load(tmp_path/'v.txt', max_words=len(words))
    assert wv.words == words and np.allclose(wv.vectors[0], found)

def test_a_word_that_comes_twice_keeps_its_first_vector(tmp_path):
    for head in ('', '3 2\n'):
        (tmp_path/'v.txt').write_text(head + 'a 1 2\nb 1 2\na 3 4\n')
        with pytest.warns(UserWarning, match='1 words come again'): v = WordVectors.load(tmp_path/'v.txt')
        assert v.words == ['a', 'b'] and v['a'].tolist() == [1, 2]

NONE = 'Expected a vector for each word'

@pytest.mark.parametrize('data,says', [
    (b'', NONE), (b'hello\n', NONE), (b'2 0\na\nb\n', NONE),
    (b'3 2\n', 'promises 3 words and has 0'), (b'3 2\na 1 2\nb 1 2\n', 'promises 3 words and has 2'),
    (b'2 3\na 1 2 3\nb 1 2 3\nc 1 2 3\n', 'promises 2 words and has 3'),
    (b'a 1 2\nb 1\n', 'line 2: expected a word and 2 numbers'), (b'2 2\na 1 2\nb 1 x\n', 'line 3'),
    (b'a 1 nan\n', "'a'.*not finite"), (b'a 1 1e99\n', "'a'.*not finite"),
    (b'the\t1 2\na\t3 4\n', 'line 1'), (b'a 1 2\nna\xefve 1 2\n', r'line 2.*xefve'),
    (b'It was the best of times', 'line 1'), (bytes(range(256)), 'line 1'),
    (b'a 1 2\n\nb 1 2\n', 'line 2'), (b'9 999999999\na 1 2\n', 'line 2')])
def test_malformed_text(tmp_path, data, says):
    (tmp_path/'v.txt').write_bytes(data)
    with pytest.raises(ModelFileError, match=says) as e: WordVectors.load(tmp_path/'v.txt')
    assert 'v.txt' in str(e.value) or says == NONE

def test_malformed_safetensors(tmp_path):
    wv, file = vectors(), tmp_path/'v.safetensors'
    good = wv.save(file).read_bytes()
    for data in (b'', good[:100], good[:-10], b'\xff'*8 + good, b'not at all'):
        file.write_bytes(data)
        with pytest.raises(ModelFileError, match='v.safetensors'): WordVectors.load(file)
    meta = dict(format='elmo_fastai.WordVectors', version='1', words=json.dumps(wv.words))
    x = torch.from_numpy(wv.vectors)
    for tensors,m,match in [
        (dict(vectors=x), None, 'no word vectors of this library'), (dict(other=x), meta, 'no word vectors'),
        (dict(vectors=x), meta | dict(version='2'), "version '2'"),
        (dict(vectors=x), meta | dict(words='['), 'JSONDecodeError'),
        (dict(vectors=x), meta | dict(words='[1, 2]'), '2 words'),
        (dict(vectors=x*math.nan), meta, 'not finite')]:
        save_file(tensors, file, metadata=m)
        with pytest.raises(ModelFileError, match=match): WordVectors.load(file)

def test_missing_files_and_failed_saves(tmp_path):
    for path in (tmp_path/'no.txt', tmp_path/'no.safetensors', tmp_path):
        with pytest.raises(ModelFileError, match="can't be read"): WordVectors.load(path)
    file = vectors().save(tmp_path/'v.txt')
    before = file.read_bytes()
    for words,says in ((['New York'], "'New York'.*safetensors"), (['\ud800'], 'surrogate')):
        with pytest.raises(ValueError, match=says): WordVectors(words, [[1.]]).save(file)
    assert file.read_bytes() == before and [*tmp_path.iterdir()] == [file]
