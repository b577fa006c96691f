"""One model in several threads, and a training inside which other things are computed: nothing is
shared by accident"""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np, pytest, torch
from fastai.basics import Callback, CancelFitException
from elmo_fastai.all import *
from elmo_fastai.nn.bilm import evaluate

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (3,8)), proj_dim=8, hidden_dim=8)

def random_words(n, seed):
    rng = np.random.default_rng(seed)
    return [''.join(rng.choice(list('abcdefghijklmnop'), size=rng.integers(2, 9)))
            for _ in range(n)]


@pytest.fixture
def elmo():
    torch.manual_seed(0)
    return Elmo(BiLM(CONFIG, 0), tokenizer='space').eval()

@pytest.fixture(scope='module')
def texts():
    "Short texts that share few words"
    words = random_words(800, seed=1)
    return [' '.join(words[4*i:4*i+4]) for i in range(200)]

def embed_each(elmo, texts, n_threads):
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(lambda text: elmo.embed([text])[0], texts))

@pytest.mark.parametrize('n_threads', [2, 4, 8])
def test_threads_embed_what_one_thread_embeds(elmo, texts, n_threads):
    "From a cold start, and afterwards in one thread again"
    wanted = [elmo.embed([text])[0] for text in texts]
    torch.manual_seed(0)
    cold = Elmo(BiLM(CONFIG, 0), tokenizer='space').eval()
    for vectors in (embed_each(cold, texts, n_threads), embed_each(cold, texts, 1),
                    cold.embed(texts)):
        for want, found in zip(wanted, vectors, strict=True):
            np.testing.assert_allclose(found, want, atol=1e-5)


def test_a_model_in_training_mode_is_embedded_from_threads_and_stays_so(elmo, texts):
    wanted = elmo.embed(texts)
    elmo.unfreeze().train()
    modes = [module.training for module in elmo.modules()]
    for want, found in zip(wanted, embed_each(elmo, texts, 4), strict=True):
        np.testing.assert_allclose(found, want, atol=1e-5)
    assert [module.training for module in elmo.modules()] == modes

def test_vectorizer_in_threads(elmo, texts):
    vectorizer = ElmoVectorizer(elmo).fit(texts)
    wanted = vectorizer.transform(texts)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: vectorizer.transform([text])[0], texts))
    np.testing.assert_allclose(found, wanted, atol=1e-5)

def test_two_vectorizers_of_one_name_share_no_model(elmo, texts, tmp_path):
    elmo.save_pretrained(tmp_path/'m')
    one, two = (ElmoVectorizer(str(tmp_path/'m')).fit(texts) for _ in range(2))
    before = two.transform(texts[:5])
    with torch.no_grad(): one.elmo_.mixes[0].gamma.fill_(3.)
    np.testing.assert_array_equal(two.transform(texts[:5]), before)

def test_evaluation_in_threads_leaves_the_mode_alone():
    corpus = toy_corpus(300, 60, 1, 1)
    dls = ElmoDataLoaders.from_corpus(corpus, bs=16, device='cpu')
    torch.manual_seed(0)
    model = BiLM(CONFIG, len(dls.vocab)).train()
    batches = list(dls.valid)
    wanted = evaluate(model, batches)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: evaluate(model, batches), range(12)))
    assert all(o == pytest.approx(wanted, rel=1e-6) for o in found)
    assert all(module.training for module in model.modules())

# Inside a training

def slope_through_a_state(model, chars):
    """The gradient of the second window's states with respect to the first window's letters'
    vectors, through the carried state"""
    _, state = model.encode_state(chars)
    layers, _ = model.encode_state(chars, state)
    [slope] = torch.autograd.grad(layers[-1][0].square().sum(), [state[0]], create_graph=True)
    [second] = torch.autograd.grad(slope.square().sum(), [model.lstm.fwd[0].weight_hh_l0])
    return slope.abs().sum().item(), second.abs().sum().item()

def losses_over_two_windows(model, batch):
    model.zero_grad()
    _, _, state = model(*batch, model.lstm.init_state(len(batch[0])))
    forward, backward, _ = model(*batch, state)
    (forward.mean() + backward.mean()).backward()
    return model.lstm.fwd[0].weight_hh_l0.grad.abs().sum().item()

def _embed_in_a_worker(model, chars, queue):
    torch.set_num_threads(1)
    with torch.no_grad(): queue.put(model.encode(chars)[-1][0].sum().item())

def test_gradients_and_workers_inside_a_training():
    """State that is not detached, a loss over two windows, second derivatives, a forked worker: in
    a fit as outside"""
    torch.set_num_threads(2)
    corpus = toy_corpus(300, 60, 1, 1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=4, seq_len=8, device='cpu')
    learn = bilm_learner(dls, CONFIG, bf16=False)
    batch = dls.valid.one_batch()
    context = multiprocessing.get_context('fork')
    def measure(model):
        model.eval()
        queue = context.Queue()
        worker = context.Process(target=_embed_in_a_worker, args=(model, batch[0], queue))
        worker.start()
        try: found = queue.get(timeout=30)
        finally:
            worker.kill()
            worker.join()
        return *slope_through_a_state(model, batch[0]), losses_over_two_windows(model, batch), found
    outside = measure(learn.model)
    class Inside(Callback):
        def before_batch(self):
            self.learn.measured = measure(self.model)
            raise CancelFitException
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 0., cbs=Inside())
    assert outside[0] > 0 and outside[1] > 0 and outside[2] > 0
    assert learn.measured == pytest.approx(outside, rel=1e-4)

def test_a_training_leaves_the_process_as_it_was(monkeypatch):
    "Neither the C library's allocator nor the number of threads is another one afterwards"
    import ctypes
    def forbidden(*args): raise AssertionError('a library of C was opened')
    monkeypatch.setattr(ctypes, 'CDLL', forbidden)
    n = torch.get_num_threads()
    dls = ElmoDataLoaders.from_corpus(toy_corpus(100, 60, 1, 1), bs=16, device='cpu')
    learn = bilm_learner(dls, CONFIG)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert torch.get_num_threads() == n

# What a call is told, and what it says

@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_a_model_loaded_in_inference_mode_embeds(elmo, texts, tmp_path, mode):
    elmo.save_pretrained(tmp_path/'m')
    with mode(): loaded = Elmo.from_pretrained(tmp_path/'m')
    for want, found in zip(elmo.embed(texts[:5]), loaded.embed(texts[:5]), strict=True):
        np.testing.assert_allclose(found, want, atol=1e-6)

@pytest.mark.parametrize('layer', [np.int64(0), np.int32(-1)])
def test_layers_by_numpys_numbers(elmo, texts, layer):
    for want, found in zip(
        elmo.embed(texts[:3], int(layer)), elmo.embed(texts[:3], layer), strict=True):
        np.testing.assert_array_equal(found, want)


def test_a_misspelt_setting_is_no_bad_file(elmo, tmp_path):
    elmo.save_pretrained(tmp_path/'m')
    with pytest.raises(TypeError, match='droput'): Elmo.from_pretrained(tmp_path/'m', droput=.3)
    with pytest.raises(TypeError, match='droput'): Elmo(elmo.lm, droput=.3)

