"Sizes from a small set, and letters side by side in memory: the same numbers"
import copy, pickle
from dataclasses import replace

import pytest, torch
from hypothesis import given, settings, strategies as st
from elmo_fastai.text.corpora import Corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.nn.charcnn import CharCNN
from elmo_fastai.nn.fast import FastCharCNN, pad_rows, pool_letters, rounded, speed_up
from elmo_fastai.nn.softmax import FullSoftmax
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train.learner import bilm_learner

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (4,8)), proj_dim=8, hidden_dim=12)
CONFIGS = {
    'full': CONFIG, 'dropout': replace(CONFIG, dropout=.3),
    'adaptive': replace(CONFIG, softmax='adaptive', cutoffs=(8, 20), div_value=2.),
    'sampled': replace(CONFIG, softmax='sampled', n_negative=10),
    'two of each': replace(CONFIG, share_encoder=False, share_softmax=False, n_layers=3),
    'clips': replace(CONFIG, cell_clip=1., proj_clip=1.), 'no norm': replace(CONFIG, norm=False)}
WORDS = [a + b for a in ('', 'un', 'over', 'extraordinarily')
         for b in 'river bank lend lent sees saw a the of'.split()]
sentences = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=14), min_size=1, max_size=12
)


def loaders(sents, **kwargs):
    texts = [' '.join(s) for s in sents]
    rest = dict(train=[' '.join(WORDS), *texts], valid=texts)
    return ElmoDataLoaders.from_corpus(
        Corpus('test', rest, tokenizer='space'), device='cpu', bs=16, **kwargs
    )


def new_model(config, n_words, fast):
    torch.manual_seed(0)
    model = BiLM(config, n_words).double().train()
    return speed_up(model) if fast else model

def step(model, batch, state=False):
    "Likelihoods, new state, gradients and statistics of one training step, in double precision"
    torch.manual_seed(1)
    carried = (model.lstm.init_state(len(batch[0])),) if state else ()
    f, b, *new = model(*batch, *carried)
    (f.sum() + 2*b.mean()).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [f, b, *(x for s in new for x in s), *grads, *model.buffers()]

def same(a, b, eps=1e-10):
    for x,y in zip(a, b, strict=True): torch.testing.assert_close(x, y, rtol=eps, atol=eps)

@settings(max_examples=15)
@given(sentences, st.sampled_from([*CONFIGS]), st.booleans())
def test_a_training_step_is_the_same(sents, name, state):
    dls = loaders(sents, kind='sentences')
    for batch in (dls.train.one_batch(), dls.valid.one_batch()):
        plain, fast = (new_model(CONFIGS[name], len(dls.vocab), fast) for fast in (False, True))
        same(step(plain, batch, state), step(fast, batch, state))

@settings(max_examples=10)
@given(sentences)
def test_so_are_perplexities_and_vectors(sents):
    dls = loaders(sents, kind='sentences')
    def figures(fast):
        model = new_model(CONFIGS['adaptive'], len(dls.vocab), fast).eval()
        elmo = Elmo(model, dls.vocab, tokenizer='space', dropout=0.).eval()
        return [*map(torch.as_tensor, elmo.embed(sents, layers='all'))], evaluate(model, dls.valid)
    (vectors, ppl), (fast_vectors, fast_ppl) = figures(False), figures(True)
    same(vectors, fast_vectors, 1e-5)
    assert ppl == pytest.approx(fast_ppl)

@pytest.mark.parametrize('dtype,eps', [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize('n,columns,width', [(1, 3, 3), (7, 9, 1), (5, 12, 4)])
def test_pool_letters(dtype, eps, n, columns, width):
    torch.manual_seed(0)
    conv, x = (torch.nn.Conv1d(3, 5, width).to(dtype),
               torch.randn(n, columns, 3, dtype=dtype, requires_grad=True))

    def plain(conv, x): return conv(x.transpose(1, 2)).amax(-1)
    torch.testing.assert_close(pool_letters(conv, x), plain(conv, x), atol=eps, rtol=eps)
    some = torch.randn(n, 5, dtype=dtype)
    for a, b in zip(*(torch.autograd.grad((f(conv, x)*some).sum(), [x, *conv.parameters()])
                      for f in (pool_letters, plain))):
        torch.testing.assert_close(a, b, atol=eps, rtol=eps)


def test_sizes():
    assert [rounded(n) for n in (0, 1, 2, 3, 33, 64, 65, 128, 129)] == [
        0, 1, 2, 4, 64, 64, 128, 128, 192]
    x = torch.arange(70)
    assert (torch.equal(pad_rows(x)[:70], x) and (pad_rows(x)[70:] == x[0]).all()
            and len(pad_rows(x)) == 128)
    assert len(pad_rows(x[:64])) == 64 and len(pad_rows(x[:0])) == 0

def test_what_is_encoded_has_a_rounded_size(monkeypatch):
    seen, encode = [], CharCNN.encode
    monkeypatch.setattr(
        CharCNN, 'encode', lambda self, chars: seen.append(len(chars)) or encode(self, chars)
    )
    model = new_model(CONFIG, 10, True)
    model.chars(torch.randint(1, 200, (7, 11, 30)))
    assert seen == [rounded(77)]

def test_a_fast_model_is_copied_saved_and_folded(tmp_path):
    dls = loaders([WORDS[:9]]*5, kind='sentences')
    model = new_model(CONFIG, len(dls.vocab), True).float().eval()
    chars = dls.valid.one_batch()[0]
    top = model.encode(chars)[-1][0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(other.chars, FastCharCNN) and torch.allclose(
            other.encode(chars)[-1][0], top, atol=1e-5)
    loaded, _ = load_bilm(save_bilm(tmp_path/'m', model, dls.vocab))
    assert type(loaded.chars) is CharCNN and type(loaded.head) is FullSoftmax
    torch.testing.assert_close(loaded.encode(chars)[-1][0], top)
    model.chars.fold_norm()
    torch.testing.assert_close(model.encode(chars)[-1][0], top, rtol=1e-4, atol=1e-5)
    assert speed_up(speed_up(loaded)) is loaded

def test_a_learner_trains_a_fast_model():
    learn = bilm_learner(loaders([WORDS[:9]]*30, kind='sentences'), CONFIG, bf16=False)
    assert isinstance(learn.model.chars, FastCharCNN)
