"""CBOW against a loop and PyTorch, what must not change it, the learner around it, and files of
word vectors, good and bad"""

import gzip, json, math, pickle
from pathlib import Path
import numpy as np, pytest, torch, torch.nn.functional as F
from datasets import Dataset
from fastai.basics import DataLoaders, Learner, load_learner, set_seed
from fastai.callback import all as _  # adds `no_bar`, `lr_find`, `fit_one_cycle` to `Learner`
from fastai.interpret import ClassificationInterpretation
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from torch import nn

from elmo_fastai.base.errors import ModelFileError
from made import comes_back, quietly
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.tokens import ByteCharVocab, SPECIALS, WordVocab
from elmo_fastai.nn.charcnn import CharCNN
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.tasks.cbow import CBOW, WordVectors, cbow_learner, word_vectors

V, D = 30, 6
cv = ByteCharVocab()
WORDS = 'she sat on the bank of river and a boat raft under naïve 日本語 x'.split()

def make(chars=False, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    m = CBOW(V, D, CharCNN(D, 3, ((1,4), (3,5))) if chars else None)
    if not chars: m.embed.weight.data[1:].normal_()
    return m.to(dtype)

def batch(n=5, width=4, gaps=True, seed=0):
    """Word ids [n, width] and the characters of the same words; some places empty, in the last row
    all of them"""
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 4+len(WORDS), (n, width), generator=g)
    if gaps: words[torch.rand(n, width, generator=g) < .3] = 0; words[-1] = 0
    rows = torch.from_numpy(
        np.concatenate([cv.specials, np.zeros((1, 50), np.int16), cv.encode(WORDS)]))
    return words, rows[words]

each_input = pytest.mark.parametrize('chars', [False, True])

@each_input
def test_equals_the_loop(chars):
    m, (words, letters) = make(chars).eval(), batch()
    x = m.chars(letters) if chars else m.embed(words)
    def mean(row, ids):
        real = [v for v,i in zip(row, ids) if i]
        return sum(real)/len(real) if real else torch.zeros(D)

    ref = torch.stack(
        [m.head.weight @ mean(x[i], words[i]) + m.head.bias for i in range(len(words))]
    )
    torch.testing.assert_close(m(words, letters), ref, atol=1e-5, rtol=1e-5)

@settings(max_examples=30)
@given(data=st.lists(st.lists(st.integers(0, V-1), min_size=4, max_size=4), min_size=1, max_size=8))
def test_equals_embedding_bag(data):
    m, words = make(), torch.tensor(data)
    bag = nn.EmbeddingBag.from_pretrained(m.embed.weight.data, mode='mean', padding_idx=0)
    torch.testing.assert_close(m(words), m.head(bag(words)), atol=1e-6, rtol=1e-5)

@each_input
def test_padding_and_batch_mates_change_nothing(chars):
    m, (words, letters) = make(chars).eval(), batch(9)
    y = m(words, letters)
    # alone, without its padding
    for i,w in enumerate(words):
        real = w != 0
        if real.any():
            torch.testing.assert_close(
                m(w[real][None], letters[i, real][None])[0], y[i], atol=1e-5, rtol=1e-5
            )
    wide, wide_l = F.pad(words, (2, 3)), F.pad(letters, (0, 0, 2, 3))        # on both sides
    torch.testing.assert_close(m(wide, wide_l), y, atol=1e-5, rtol=1e-5)
    turn = torch.randperm(9)
    torch.testing.assert_close(m(words[turn], letters[turn]), y[turn], atol=1e-5, rtol=1e-5)
    # no neighbours, no vector
    torch.testing.assert_close(y[-1], m.head.bias)

def test_the_padding_vector_stays_zero():
    m, (words, _) = make(), batch()
    opt = torch.optim.AdamW(m.parameters(), .1)
    for _ in range(3):
        opt.zero_grad()
        F.cross_entropy(m(words), torch.arange(5)).backward()
        opt.step()
    assert (m.embed.weight[0] == 0).all()

@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
def test_dtypes_and_pickle(dtype):
    m, (words, _) = make(dtype=dtype), batch()
    y = m(words)
    assert y.dtype == dtype and y.isfinite().all()
    torch.testing.assert_close(pickle.loads(pickle.dumps(m))(words), y, rtol=1e-5, atol=1e-5)

def test_tables_can_be_traced_and_exported():
    m, (words, _), (more, _) = make().eval(), batch(5), batch(9, seed=1)
    torch.testing.assert_close(torch.jit.trace(m, (words,))(more), m(more))
    graph = torch.export.export(
        m, (words,), dynamic_shapes=({0: torch.export.Dim('b', min=2)},)
    ).module()
    torch.testing.assert_close(graph(more), m(more))

# the learner

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=500, n_valid=120, n_test=1, n_unseen=30)

def loaders(corpus, **kwargs):
    return ElmoDataLoaders.from_corpus(
        corpus,
        **{**dict(kind='cbow', bs=64, val_bs=50, seed=0, device='cpu', context_size=2), **kwargs})


@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)

def learner(dls, seed=0, **kwargs):
    set_seed(seed)
    return cbow_learner(dls, **{**dict(dim=16), **kwargs})

@torch.no_grad()
def exact(learn, dl):
    "Perplexity and accuracy by hand, example by example"
    m, nats, hits = learn.model.eval(), [], []
    for w,c,y in dl:
        p = m(w, c).softmax(1)
        nats += (-p[range(len(y)), y].log()).tolist(); hits += (p.argmax(1) == y).tolist()
    return math.exp(np.mean(nats)), np.mean(hits)

@pytest.mark.parametrize('kwargs', [dict(), dict(chars=True)], ids=str)
def test_learner_beats_unigram_and_its_table_is_right(dls, kwargs):
    assert dls.valid.examples % 50, 'the last batch must be short for this test to mean anything'
    learn = learner(dls, **kwargs)
    assert isinstance(learn, Learner)
    quietly(learn, 'fit_one_cycle', 3, 1e-2 if 'chars' in kwargs else 3e-2)
    counts = (
        np.bincount(np.concatenate([y.numpy() for *_, y in dls.train]), minlength=len(dls.vocab))
        + 0.5
    )
    targets = np.concatenate([y.numpy() for *_,y in dls.valid])
    unigram = math.exp(-np.log(counts/counts.sum())[targets].mean())
    loss, ppl, acc = learn.recorder.values[-1][1:]
    assert list(learn.recorder.metric_names) == [
        'epoch', 'train_loss', 'valid_loss', 'perplexity', 'accuracy', 'time']
    e_ppl, e_acc = exact(learn, dls.valid)
    assert (float(ppl) == pytest.approx(e_ppl, rel=1e-4)
            and float(acc) == pytest.approx(e_acc, abs=1e-6)
            and loss == pytest.approx(math.log(e_ppl), rel=1e-4))
    assert e_ppl < unigram*.8, (e_ppl, unigram)
    # letters learn more slowly
    if 'chars' not in kwargs: assert e_acc > (targets == counts.argmax()).mean()

def test_lr_find(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    assert 1e-7 <= quietly(learn, 'lr_find', num_it=20, show_plot=False).valley <= 10

@pytest.mark.parametrize('kwargs', [dict(), dict(chars=True)], ids=str)
def test_equal_seeds_equal_runs(corpus, kwargs):
    def run(seed):
        learn = learner(loaders(corpus, seed=seed, bs=256), seed, **kwargs)
        quietly(learn, 'fit', 1, 1e-2)
        return learn.model.state_dict()
    a, b, c = run(1), run(1), run(2)
    assert all(torch.allclose(v, b[k], atol=1e-5) for k,v in a.items())
    assert not torch.allclose(a['head.weight'], c['head.weight'], atol=1e-5)

@pytest.mark.parametrize('kwargs', [dict(), dict(chars=True)], ids=str)
def test_export_and_load_learner(dls, tmp_path, kwargs):
    learn = learner(dls, path=tmp_path, **kwargs)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('l.pkl')
    again = load_learner(tmp_path/'l.pkl')
    text = 'she sat on the ___ of the river .'
    assert again.predict(text)[0] == learn.predict(text)[0]
    assert torch.allclose(again.predict(text)[2], learn.predict(text)[2], atol=1e-5)
    assert np.allclose(word_vectors(again).vectors, word_vectors(learn).vectors, atol=1e-5)
    again.dls = dls
    before = {k: v.clone() for k,v in again.model.state_dict().items()}
    ppl = exact(again, dls.valid)[0]
    # and it trains on, head and all
    quietly(again, 'fit_one_cycle', 3, 1e-2)
    assert exact(again, dls.valid)[0] < ppl and not any(
        torch.equal(v, before[k]) for k, v in again.model.state_dict().items() if 'weight' in k)


def test_save_and_load(dls, tmp_path):
    assert comes_back(learner(dls, path=tmp_path), learner(dls, seed=5, path=tmp_path))


def test_predict_takes_the_neighbours_that_the_loader_takes(corpus):
    for k in (1, 2, 3):
        dls = loaders(corpus, context_size=k)
        learn = learner(dls)
        words, chars, target = dls.valid.one_batch()
        p = learn.model.eval()(words, chars).softmax(1)
        sents = [s.tokens for s in corpus.gold['valid']]
        rows = iter(p)
        for s in sents[:5]:
            # the places that the loader uses
            for i in range(k-1, len(s)-k+1):
                torch.testing.assert_close(
                    learn.predict([*s[:i], '___', *s[i + 1:]])[2], next(rows), atol=1e-6, rtol=1e-4
                )
        # and those at the ends
        for i in range(len(sents[0])):
            assert learn.predict([*sents[0][:i], '___', *sents[0][i + 1:]])[2].isfinite().all()


def test_predict(dls):
    learn = learner(dls)
    learn.model.train()
    word, i, p = learn.predict('She put the ___ in the bank')
    assert learn.dls.vocab.itos[int(i)] == word and p.shape == (len(dls.vocab),)
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert len(learn.predict('___')) == 3                                     # nothing but a gap
    for bad in ('no gap here', '___ and ___', ''):
        with pytest.raises(ValueError, match='___'): learn.predict(bad)

@pytest.mark.parametrize('tokenizer,tokens', [
    ('words', ['the', 'bank', '___', '.']), ('space', ['the', 'bank', '___', '.']),
    (lambda text: text.lower().split(), ['the', 'bank', '___', '.'])], ids=['words', 'space', 'own'])
def test_a_text_is_split_as_the_loaders_text(tokenizer, tokens, tmp_path):
    lines = ['The bank closed .', 'The bank opened .']*20
    dls = ElmoDataLoaders.from_corpus(Corpus('c', dict(train=lines, valid=lines), tokenizer),
                                      kind='cbow', bs=16, device='cpu', seed=0)
    learn = learner(dls)
    said = {'words': 'the bank ___.', 'space': 'the bank ___ .'}.get(tokenizer, 'The bank ___ .')
    learn.export(tmp_path/'c.pkl')
    for one in (learn, load_learner(tmp_path/'c.pkl')):
        assert torch.allclose(one.predict(said)[2], one.predict(tokens)[2], atol=1e-6)

def test_show_results_and_get_preds(dls, capsys):
    learn = learner(dls)
    df = quietly(learn, 'show_results', max_n=4, show=False)
    assert (list(df.columns) == ['left', 'target', 'right', 'guess', 'p(target)'] and len(df) == 4
            and set(df['guess']) <= set(dls.vocab.itos))
    p, y, losses = quietly(learn, 'get_preds', with_loss=True)
    assert p.shape == (dls.valid.examples, len(dls.vocab)) and torch.allclose(
        losses, -p[range(len(y)), y].log(), atol=1e-4)
    flat = torch.cat([y for *_,y in dls.valid])
    assert torch.equal(y, flat), 'in the order of the text'

def test_learner_refuses(dls, corpus):
    with pytest.raises(ValueError, match="kind='cbow'"):
        cbow_learner(ElmoDataLoaders.from_corpus(corpus, device='cpu'))


def test_a_text_that_is_read_in_pieces(corpus):
    dls = stream_loaders(Dataset.from_dict(dict(text=corpus.train)), n_valid=9, n_batches=3, kind='cbow',
                         tokenizer='space', context_size=1, bs=32, device='cpu')
    vocab = dls.vocab
    learn = cbow_learner(dls, dim=8)
    quietly(learn, 'fit', 1, 1e-3)
    assert learn.context_size == 1 and learn.predict('the ___ waited')[0] in vocab.itos
    assert len(quietly(learn, 'show_results', ds_idx=0, max_n=2, show=False)) == 2

# vectors

def test_word_vectors_of_a_learner(dls):
    learn, letters = learner(dls), learner(dls, chars=True)
    wv = word_vectors(learn)
    assert wv.words == dls.vocab.itos[4:] and not any(o in wv for o in SPECIALS)
    assert np.array_equal(wv.vectors, learn.model.embed.weight[4:].detach().numpy())
    wv.vectors[5] = 99
    assert learn.model.embed.weight.abs().max() < 99, 'a copy, not a view'
    words = ['boat', 'zyxwv', '日本語', '<s>']
    one = np.concatenate([word_vectors(letters, [w]).vectors for w in words])
    # no word depends on another
    np.testing.assert_allclose(word_vectors(letters, words).vectors, one, atol=1e-5)
    assert (len(word_vectors(letters)) == len(dls.vocab) - 4
            and letters.model.training == learn.model.training)
    with pytest.raises(ValueError, match='table'): word_vectors(learn, ['boat'])

def vectors(n=50, dim=7, seed=0):
    return WordVectors(
        [f'w{i}' for i in range(n - 3)] + ['naïve', '日本語', 'New\u00a0York'.replace('\u00a0', '_')],
        np.random.default_rng(seed).normal(size=(n, dim)))


def test_look_up():
    wv = vectors()
    assert (np.array_equal(wv['w3'], wv.vectors[3]) and 'w3' in wv and 'w99' not in wv
            and len(wv) == 50 and wv.dim == 7)
    with pytest.raises(KeyError, match="No vector for 'w333'"): wv['w333']
    with pytest.raises(KeyError): wv.encode(['w1', 'nope'])
    assert (wv.encode(['nope', 'w1'], unknown='zero')[0] == 0).all()
    for unknown in ('error', 'zero'): assert wv.encode([], unknown=unknown).shape == (0, 7)
    with pytest.raises(ValueError, match="'skip'"): wv.encode(['w1'], unknown='skip')
    with pytest.raises(TypeError, match='tokenise'): wv.encode('w1 w2')

def test_nearest_against_a_loop():
    wv = vectors()

    def cos(a, b):
        return sum(x*y for x, y in zip(a, b))/math.sqrt(
            sum(x*x for x in a)*sum(y*y for y in b))

    for w in ('w0', 'naïve'):
        ref = sorted(((o, cos(wv[w].tolist(), wv[o].tolist())) for o in wv.words if o != w),
                     key=lambda o: -o[1])
        found = wv.nearest(w, 6)
        assert [o for o,_ in found] == [o for o,_ in ref[:6]]
        np.testing.assert_allclose([c for _,c in found], [c for _,c in ref[:6]], atol=1e-5)
    # a vector may find its own word
    assert wv.nearest(wv['w4'], 1)[0][0] == 'w4'
    assert (
        len(wv.nearest('w1', 1000)) == 49 and len(wv.nearest('w1', 3, without=wv.words[:48])) == 2)
    with pytest.raises(KeyError): wv.nearest('nope')
    zero = WordVectors(['a', 'b', 'c'], [[0, 0], [1, 0], [0, 1]])
    assert all(np.isfinite(c) for _,c in zero.nearest('a', 5)) and zero.nearest('b')[0][1] == 0

@pytest.mark.parametrize('words,vecs,match', [
    (['a'], np.zeros((2, 3)), '1 words and vectors of shape'),
    (['a'], np.zeros(3), 'shape'),
    ([], np.zeros((0, 3)), 'shape'),
    (['a'], np.zeros((1, 0)), 'shape'),
    (['a', 'a'], np.zeros((2, 3)), "'a' is there twice"),
    (['a', None], np.zeros((2, 3)), 'None is no word'),
    (['a', 3], np.zeros((2, 3)), '3 is no word'),
    (['a', 'b'], [[1.0, 2.0], [math.nan, 1.0]], "'b'.*not finite")])
def test_vectors_that_cannot_be(words, vecs, match):
    with pytest.raises(ValueError, match=match):
        WordVectors(words, vecs)


# files

@pytest.mark.parametrize('name', ['v.txt', 'v.vec', 'v.safetensors', 'deep/er/v.txt'])
def test_round_trip_to_the_last_bit(tmp_path, name):
    wv = vectors()
    wv.vectors[0] *= 1e-30; wv.vectors[1] *= 1e30; wv.vectors[2] = 0
    path = wv.save(tmp_path/name)
    again = WordVectors.load(str(path))
    assert (again.words == wv.words and np.array_equal(again.vectors, wv.vectors)
            and again.vectors.dtype == np.float32)
    assert not list(tmp_path.rglob('*.part'))
    # and it can be worked with
    again.vectors[3] = 1
    assert len(WordVectors.load(path, max_words=5)) == 5

@settings(max_examples=40)
@given(words=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
def test_any_words_fit_into_one_of_the_formats(tmp_path_factory, words):
    d = tmp_path_factory.mktemp('any')
    wv = WordVectors(words, np.arange(len(words)*2).reshape(-1, 2))
    assert WordVectors.load(wv.save(d/'v.safetensors')).words == words
    try: path = wv.save(d/'v.txt')
    except ValueError as e: assert 'white space' in str(e) and not (d/'v.txt').exists(); return
    again = WordVectors.load(path)
    assert again.words == words and np.array_equal(again.vectors, wv.vectors)

def test_files_of_others(tmp_path):
    f = tmp_path/'glove.txt'
    # no heading, a word with spaces
    f.write_bytes('the 0.1 0.2 0.3\n. . . 1 2 3\nnaïve 4 5 6\n'.encode())
    wv = WordVectors.load(f)
    assert wv.words == ['the', '. . .', 'naïve'] and wv['naïve'].tolist() == [4, 5, 6]
    # byte-order mark, Windows, the spaces of word2vec.c
    f.write_bytes(b'\xef\xbb\xbf2 2\r\na 1 2 \r\nb 3e-1 -4 \r\n')
    wv = WordVectors.load(f)
    assert wv.words == ['a', 'b'] and wv.vectors.tolist() == [[1, 2], [np.float32(.3), -4]]
    # a promise is not believed
    f.write_text('1000000000 300\na ' + ' '.join(['1']*300) + '\n')
    assert len(WordVectors.load(f, max_words=1)) == 1

NONE = 'Expected a vector for each word'
BAD = {
    'empty': (b'', NONE),
    'only a heading': (b'3 2\n', 'promises 3 words and has 0'),
    'too short': (b'3 2\na 1 2\nb 1 2\n', 'promises 3 words and has 2'),
    'cut line': (b'a 1 2\nb 1\n', 'line 2: expected a word and 2 numbers'),
    'no number': (b'2 2\na 1 2\nb 1 x\n', 'line 3'),
    'nan': (b'a 1 nan\n', "'a'.*not finite"),
    'overflow': (b'a 1 1e99\n', "'a'.*not finite"),
    'tabs': (b'the\t1 2\na\t3 4\n', 'line 1 has a tab'),
    'not utf-8': (b'a 1 2\nna\xefve 1 2\n', r'line 2.*xefve'),
    'a text': ('It was the best of times'.encode(), 'line 1'),
    'binary': (bytes(range(256)), 'line 2'),
    'blank line': (b'a 1 2\n\nb 1 2\n', 'line 2'),
    'one word': (b'hello\n', NONE),
    'zero sizes': (b'0 0\n', NONE),
    'no dimensions': (b'2 0\na\nb\n', NONE),
    'absurd sizes': (b'9 999999999\na 1 2\n', 'line 2'),
}


@pytest.mark.parametrize('what', BAD)
def test_malformed_text(tmp_path, what):
    data, match = BAD[what]
    (tmp_path/'v.txt').write_bytes(data)
    with pytest.raises(ModelFileError, match=match) as e: WordVectors.load(tmp_path/'v.txt')
    assert 'v.txt' in str(e.value)

def test_malformed_safetensors(tmp_path):
    wv, f = vectors(), tmp_path/'v.safetensors'
    good = wv.save(f).read_bytes()
    for data in (b'', good[:100], good[:-10], b'\xff'*8 + good, b'not at all'):
        f.write_bytes(data)
        with pytest.raises(ModelFileError, match='v.safetensors'): WordVectors.load(f)
    meta = dict(format='elmo_fastai.WordVectors', version='1', words=json.dumps(wv.words))
    t = torch.from_numpy(wv.vectors)
    for tensors, m, match in [
        ({'vectors': t}, None, 'no word vectors of this library'),
        ({'other': t}, meta, 'no word vectors'),
        ({'vectors': t}, {**meta, 'version': '2'}, "version '2'"),
        ({'vectors': t}, {**meta, 'words': '['}, 'JSONDecodeError'),
        ({'vectors': t}, {**meta, 'words': '[1, 2]'}, '2 words'),
        ({'vectors': t}, {**meta, 'words': '["a"]'}, '1 words'),
        ({'vectors': t*math.nan}, meta, 'not finite')]:
        save_file(tensors, f, metadata=m)
        with pytest.raises(ModelFileError, match=match):
            WordVectors.load(f)


def test_missing_files_and_failed_saves(tmp_path):
    for name in ('no.txt', 'no.safetensors'):
        with pytest.raises(ModelFileError, match=name): WordVectors.load(tmp_path/name)
    with pytest.raises(ModelFileError, match="can't be read"): WordVectors.load(tmp_path)
    f = vectors().save(tmp_path/'v.txt')
    before = f.read_bytes()
    with pytest.raises(ValueError, match="'New York'.*safetensors"):
        WordVectors(['New York'], [[1.0]]).save(f)
    with pytest.raises(ValueError, match='surrogate'):
        WordVectors(['ok', '\ud800'], [[1.0], [2.0]]).save(f)
    assert f.read_bytes() == before and len(list(tmp_path.iterdir())) == 1, (
        'a save that fails leaves what was there')


def test_more_words_than_promised(tmp_path):
    f = tmp_path/'v.txt'; f.write_text('2 3\na 1 2 3\nb 1 2 3\nc 1 2 3\n')
    with pytest.raises(ModelFileError, match='promises 2 words and has 3'): WordVectors.load(f)
    assert len(WordVectors.load(f, max_words=2)) == 2

def test_a_word_that_comes_twice_keeps_its_first_vector(tmp_path):
    file = tmp_path/'v.txt'
    for head in ('', '3 2\n'):
        file.write_text(head + 'a 1 2\nb 1 2\na 3 4\n')
        with pytest.warns(UserWarning, match='1 words come again'): v = WordVectors.load(file)
        assert v.words == ['a', 'b'] and v['a'].tolist() == [1, 2]

@pytest.mark.parametrize('name,says', [('v.bin', 'is binary'), ('v.txt.gz', 'packed by gzip')])
def test_files_that_are_no_text_are_told_what_they_are(tmp_path, name, says):
    file = tmp_path/name
    text = b'2 2\na 1 2\nb 3 4\n'
    vectors = np.array([1., 2.], np.float32).tobytes()
    file.write_bytes(gzip.compress(text) if name.endswith('gz') else b'2 2\na ' + vectors + b'\n')
    with pytest.raises(ModelFileError, match=says) as caught: WordVectors.load(file)
    assert '\\x' not in str(caught.value)

def test_a_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path/'v.txt').write_text('a 1 2\n')
    assert WordVectors.load(str(Path('~')/'v.txt')).words == ['a']


def test_what_fastai_says_of_its_guesses():
    dls = loaders(toy_corpus(n_train=40, n_valid=20, n_test=1, n_unseen=1))
    learn = learner(dls)
    with learn.no_bar(): found = ClassificationInterpretation.from_learner(learn)
    right, guess, n = found.most_confused(min_val=1)[0]
    assert {right, guess} <= {*dls.vocab.itos} and n >= 1
    with pytest.raises(ValueError, match='show_results'): found.plot_top_losses(3)
