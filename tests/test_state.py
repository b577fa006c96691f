"What a direction reads, and from which state"
import math
import numpy as np, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tokens import BOS, EOS, SPECIALS, WordVocab
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.learner import evaluate
from elmo_fastai.batches import SentenceDataLoader, EncodedText, TokenTypes
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/state')
TRAININGS, epoch_windows, read_window, reading_order = (
    study.TRAININGS, study.epoch_windows, study.read_window, study.reading_order)
strips, train_reading, use_reading = study.strips, study.train_reading, study.use_reading

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), proj_dim=16, hidden_dim=16)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=300, n_valid=60, n_test=1, n_unseen=1)

@pytest.fixture(scope='module')
def texts(corpus):
    sents = [[l.split() for l in corpus.splits[k]] for k in ('train', 'valid')]
    types = TokenTypes(WordVocab.build(sents[0]))
    return [EncodedText(s, types) for s in sents]

def model(config=CFG, n=None, texts=None, seed=0):
    torch.manual_seed(seed)
    return BiLM(config, len(texts[0].types.vocab)).eval()

sentences = st.lists(
    st.lists(st.sampled_from('abcd'), min_size=1, max_size=5), min_size=1, max_size=6
)


@settings(max_examples=40)
@given(sentences, st.sampled_from([0, 1]), st.booleans())
def test_orders(sents, d, fed):
    t = EncodedText(sents, TokenTypes(WordVocab([*SPECIALS, *'abcd'])))
    pos = reading_order(t, d, fed)
    names = [t.types.tokens[i] for i in t.ids[pos]]
    want = []
    for s in sents: want += [EOS, *s[::-1], *[BOS]*fed] if d else [BOS, *s, *[EOS]*fed]
    assert names == want
    assert len(set(pos)) == len(pos)
    y = t.take(pos)[2 if d else 1]
    # every prediction once, with or without the mark
    assert (y != 0).sum() == sum(len(s)+1 for s in sents)
    for bs in (1, 2, 3):
        got = np.concatenate(
            [np.concatenate([w[r] for w in strips(pos, bs, 4)]) for r in range(bs)]
        )
        assert got[got >= 0].tolist() == pos.tolist()

@pytest.mark.parametrize('config', [
    CFG,
    BiLMConfig('two', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=16,
               share_softmax=False),
    BiLMConfig('clip', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8,
               cell_clip=0.5, residual=False)])
def test_cold_is_what_the_model_computes(texts, config):
    m, t = model(config, texts=texts), texts[1]
    nats, vecs = use_reading(m, t, 'cold')
    got = evaluate(m, SentenceDataLoader(t, bs=16))
    for d, k in enumerate(('fwd', 'bwd')):
        assert math.exp(np.nanmean(nats[d])) == pytest.approx(got[k], rel=1e-4)
    assert np.isfinite(nats).sum(1).tolist() == [got['predictions']]*2
    chars = torch.as_tensor(t.take(np.arange(*t.offsets[5:7])[None])[0])
    with torch.no_grad():
        layers = m.encode(chars)[1:]
    want = torch.stack([torch.cat(l, -1)[0] for l in layers], 1).numpy()
    assert np.allclose(vecs[t.offsets[5]:t.offsets[6]], want, atol=1e-5)

@pytest.mark.parametrize('how', ['carried', 'shuffled'])
def test_windows_do_not_matter(texts, how):
    m,t = model(texts=texts),texts[1]
    a,b = (use_reading(m, t, how, bs=2, seq_len=n) for n in (7, 64))
    for x,y in zip(a, b): assert np.allclose(x, y, atol=1e-4, equal_nan=True)

def test_carried_equals_one_long_reading(texts):
    m,t = model(texts=texts),texts[1]
    nats,vecs = use_reading(m, t, 'carried', bs=1)
    with torch.no_grad(): res = read_window(m, t, [reading_order(t, d)[None] for d in (0, 1)])
    for d in (0, 1):
        pos = reading_order(t, d)
        assert np.allclose(
            vecs[pos][:,:, d*16:(d + 1)*16], torch.stack(res[d][0], 2)[0].numpy(), atol=1e-4
        )
        assert np.nanmean(nats[d]) == pytest.approx(res[d][1].mean().item(), rel=1e-4)

def test_neighbours_and_prime(texts):
    """Forward after the sentence before, backward after the one that follows; the vectors of a
    sentence after itself as `primed` says"""
    m,t = model(texts=texts),texts[1]
    _,near = use_reading(m, t, 'neighbour')
    _,cold = use_reading(m, t, 'cold')
    _,primed = use_reading(m, t, 'primed')
    i = 7
    here = slice(t.offsets[i], t.offsets[i+1])
    with torch.no_grad():
        for d,other in ((0, i-1), (1, i+1)):
            pos = np.concatenate([reading_order(t, d, order=[o]) for o in (other, i)])
            ys = torch.stack(read_window(m, t, [pos[None], pos[None]])[d][0], 2)[0].numpy()
            own = pos[len(pos) - t.lens[i]:]
            assert np.allclose(near[own][:,:, d*16:(d+1)*16], ys[-t.lens[i]:], atol=1e-5)
    first = slice(0, t.offsets[1])
    # nothing comes before the first
    assert np.allclose(near[first][:,:,:16], cold[first][:,:,:16], atol=1e-5)
    assert not np.allclose(primed[here], cold[here], atol=1e-3)

def test_the_unread_mark_changes_nothing_when_cold(texts):
    m,t = model(texts=texts),texts[1]
    (a,v),(b,w) = (use_reading(m, t, 'cold', fed) for fed in (True, False))
    words = t.ids > 2
    assert np.allclose(v[words], w[words], atol=1e-5) and np.allclose(
        a, b, atol=1e-4, equal_nan=True)
    (a,_),(b,_) = (use_reading(m, t, 'carried', fed) for fed in (True, False))
    assert (np.isnan(a) == np.isnan(b)).all() and not np.allclose(a, b, atol=1e-4, equal_nan=True)

@pytest.mark.parametrize('how', list(TRAININGS))
def test_windows_of_an_epoch_hold_every_prediction_once(texts, how):
    t = texts[0]
    n = [0, 0]
    for f,b in epoch_windows(t, how, 4, 16, np.random.default_rng(0)):
        assert f.shape == b.shape
        n[0] += int((t.take(f)[1] != 0).sum()); n[1] += int((t.take(b)[2] != 0).sum())
    assert n == [len(t.ids) - len(t)]*2

@pytest.mark.slow
@pytest.mark.parametrize('how', list(TRAININGS))
def test_training_learns(texts, how):
    m = model(texts=texts)
    use = 'cold' if how == 'cold' else 'carried'
    before = np.nanmean(use_reading(m, texts[1], use)[0])
    n = train_reading(m, texts[0], how, seconds=3.)
    assert n > 500 and not m.training and np.nanmean(use_reading(m, texts[1], use)[0]) < before - .3
