"Sizes from a small set, and two halves on two threads: the same numbers"
import threading, time
from contextlib import nullcontext
from dataclasses import replace
import pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.text.corpora import Corpus
from elmo_fastai.nn import shapes
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.nn.shapes import (
    exact_shapes, on_two_threads, pad_rows, rounded, side_by_side, two_threads)
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train.learner import bilm_learner

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (4,8)), proj_dim=8, hidden_dim=12)
CONFIGS = {
    'full': CONFIG, 'dropout': replace(CONFIG, dropout=.3),
    'adaptive': replace(CONFIG, softmax='adaptive', cutoffs=(8, 20), div_value=2.),
    'sampled': replace(CONFIG, softmax='sampled', n_negative=10),
    'two of each': replace(CONFIG, share_encoder=False, share_softmax=False, n_layers=3),
    'clips': replace(CONFIG, cell_clip=1., proj_clip=1.), 'no norm': replace(CONFIG, norm=False)}
WORDS = [a + b for a in ('', 'un', 'over', 'extraordinarily') for b in 'river bank lend lent sees saw a the of'.split()]
sentences = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14), min_size=1, max_size=12)

def loaders(sents, **kwargs):
    texts = [' '.join(s) for s in sents]
    rest = dict(train=[' '.join(WORDS), *texts], valid=texts)
    return ElmoDataLoaders.from_corpus(Corpus('test', rest, tokenizer='space'), device='cpu', bs=16, **kwargs)

def step(config, batch, n_words, state=False):
    "Likelihoods, new state, gradients and statistics of one training step, in double precision"
    torch.manual_seed(0)
    model = BiLM(config, n_words).double().train()
    carried = (model.lstm.init_state(len(batch[0])),) if state else ()
    f, b, *new = model(*batch, *carried)
    (f.sum() + 2*b.mean()).backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [f, b, *(o for s in new for o in s), *grads, *model.buffers()]

def same(a, b, eps=1e-10):
    assert len(a) == len(b)
    for x,y in zip(a, b): torch.testing.assert_close(x, y, rtol=eps, atol=eps)

@settings(max_examples=15, deadline=None)
@given(sentences, st.sampled_from([o for o in CONFIGS if o not in ('dropout', 'sampled')]))
def test_few_sizes_change_no_number(sents, name):
    dls = loaders(sents, kind='sentences')
    for batch in (dls.train.one_batch(), dls.valid.one_batch()):
        few = step(CONFIGS[name], batch, len(dls.vocab))
        with exact_shapes(): same(step(CONFIGS[name], batch, len(dls.vocab)), few)

@settings(max_examples=10, deadline=None)
@given(sentences)
def test_nor_a_perplexity_nor_a_vector(sents):
    dls = loaders(sents, kind='sentences')
    torch.manual_seed(0)
    model = BiLM(CONFIGS['adaptive'], len(dls.vocab)).eval()
    def figures():
        vecs = Elmo(model, dls.vocab, tokenizer='space', dropout=0.).eval().embed(sents, layers='all')
        return [*map(torch.as_tensor, vecs)], evaluate(model, dls.valid)
    (vecs, ppl), few = figures(), None
    with exact_shapes(): few = figures()
    same(vecs, few[0], 1e-5)
    assert ppl == pytest.approx(few[1], rel=1e-5)

@pytest.mark.parametrize('state', [False, True])
@pytest.mark.parametrize('name', CONFIGS)
def test_two_threads_change_no_number(name, state, two, monkeypatch):
    "Bit for bit: each half does the same operations on one thread as on the other, or in turn"
    dls = loaders([WORDS[i:i+9] for i in range(0, 27, 3)]*8, kind='sentences')
    batch = dls.train.one_batch()
    torch.set_num_threads(1)
    alone = step(CONFIGS[name], batch, len(dls.vocab), state)
    torch.set_num_threads(2)
    with two_threads():
        both = step(CONFIGS[name], batch, len(dls.vocab), state)
        again = step(CONFIGS[name], batch, len(dls.vocab), state)
        monkeypatch.setattr(shapes._here, 'until', float('inf'))
        busy = step(CONFIGS[name], batch, len(dls.vocab), state)
    same(both, alone)
    for x,y,z in zip(both, again, busy): assert torch.equal(x, y) and torch.equal(x, z)

def test_two_workers_only_where_they_are_faster(two, monkeypatch):
    "Halves that sleep don't use a processor: that is what waiting for one looks like"
    here, x = shapes._Here(), torch.ones(2)
    monkeypatch.setattr(shapes, '_here', here)
    def idle(i, x): time.sleep(.03); return threading.get_ident(),
    def workers(): return {o for side in side_by_side(idle, x, x) for o in side}
    me = {threading.get_ident()}
    with two_threads():
        seen = [workers() for _ in range(8)]
        assert me not in seen[:1] and seen[-1] == me      # after .2 s: in turn, on this thread
        here.until = time.perf_counter()                  # as after `rest` seconds: another look
        assert me != workers()
    assert here.alone()                                   # there are no workers any more
    judged = shapes._Here()
    judged.pool = True
    for took, used, alone in ((.19, .19, False), (.02, .02, True)):
        judged.judge(took, used)
        assert judged.alone() == alone
    quiet = shapes._Here()
    quiet.pool = True
    for _ in range(20): quiet.judge(.05, .09)
    assert not quiet.alone()

def test_padding_in_front_and_between(two):
    dls = loaders([WORDS[:5], WORDS[7:16], WORDS[3:5]], kind='sentences')
    chars, fwd, bwd = dls.valid.one_batch()
    left = [torch.cat([o[:, -1:]*0, o], 1) for o in (chars, fwd, bwd)]
    a, b = (step(CONFIG, o, len(dls.vocab)) for o in ((chars, fwd, bwd), left))
    with two_threads(): c = step(CONFIG, left, len(dls.vocab))
    same(a, b)
    same(a, c)

def test_number_of_threads_is_given_back(two):
    with two_threads():
        assert on_two_threads() and torch.get_num_threads() == 1
        with two_threads(): assert on_two_threads()
        assert on_two_threads()
    assert not on_two_threads() and torch.get_num_threads() == 2
    with pytest.raises(KeyError), two_threads(): raise KeyError
    assert not on_two_threads() and torch.get_num_threads() == 2
    with two_threads('cuda'): assert not on_two_threads()
    torch.set_num_threads(1)
    with two_threads(): assert not on_two_threads()

def test_an_error_in_a_half_comes_out(two):
    def f(i, x):
        if i: raise ValueError('the second half')
        return x,
    x = torch.ones(2, requires_grad=True)
    with two_threads(), pytest.raises(ValueError, match='the second half'): side_by_side(f, x, x)
    assert torch.get_num_threads() == 2

def test_inside_no_grad_nothing_is_recorded(two):
    x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    with two_threads():
        with torch.no_grad(): (a,), (b,) = side_by_side(lambda i, x: (x*w,), x, x, [w])
        (c,), (d,) = side_by_side(lambda i, x: (x*w,), x, x, [w])
    assert not a.requires_grad and c.requires_grad

def test_halves_compute_in_the_callers_precision(two):
    x = torch.ones(4, 4)
    def f(i, x): return x@x,
    with two_threads(), torch.autocast('cpu', torch.bfloat16): (a,), _ = side_by_side(f, x, x)
    with two_threads(): (b,), _ = side_by_side(f, x, x)
    assert (a.dtype, b.dtype) == (torch.bfloat16, torch.float32)

@pytest.mark.parametrize('stop', [False, True])
def test_a_learner_trains_in_halves_and_leaves_the_threads_as_they_were(two, stop):
    from fastai.callback.core import Callback
    seen = []
    class Look(Callback):
        def after_batch(self):
            seen.append(on_two_threads())
            if stop: raise KeyError('stopped')
    learn = bilm_learner(loaders([WORDS[:9]]*30, kind='sentences'), CONFIG, bf16=False)
    with pytest.raises(KeyError) if stop else nullcontext(), learn.no_bar(), learn.no_logging():
        learn.fit(1, cbs=Look())
    assert seen and all(seen) and torch.get_num_threads() == 2 and not on_two_threads()

@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_vectors_in_each_mode(two, mode):
    dls = loaders([WORDS[:5], WORDS[7:16], WORDS[3:5]], kind='sentences')
    model, chars = BiLM(CONFIGS['clips'], len(dls.vocab)).eval(), dls.valid.one_batch()[0]
    with mode():
        alone = model.encode(chars)
        with two_threads(): both = model.encode(chars)
    same([o for l in both for o in l], [o for l in alone for o in l], 1e-5)

def test_sizes():
    assert [rounded(n) for n in (0, 1, 2, 3, 33, 64, 65, 128, 129)] == [0, 1, 2, 4, 64, 64, 128, 128, 192]
    x = torch.arange(70)
    assert torch.equal(pad_rows(x)[:70], x) and (pad_rows(x)[70:] == x[0]).all() and len(pad_rows(x)) == 128
    assert pad_rows(x[:64]) is not None and len(pad_rows(x[:64])) == 64

def test_memory_is_kept_where_the_work_is_done_by_the_processor(monkeypatch):
    "Three questions to the C library, a smaller one where the first is refused; none for a graphics card, and none where there is nobody to ask"
    import ctypes
    from types import SimpleNamespace
    from elmo_fastai.nn.shapes import keep_memory
    asked = []
    def mallopt(what, size): asked.append((what, size)); return int((what, size) != (-3, 2**30))
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: SimpleNamespace(mallopt=mallopt))
    keep_memory('cuda'), keep_memory('mps')
    assert asked == []
    keep_memory()
    assert asked == [(-3, 2**30), (-3, 2**25), (-1, 2**30), (-2, 2**26)]
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: SimpleNamespace())
    keep_memory()
    def no(name): raise TypeError('no library without a name on Windows')
    monkeypatch.setattr(ctypes, 'CDLL', no)
    keep_memory()

def test_scores_in_blocks_where_a_processor_keeps_fewer():
    "The same numbers on both sides of the border, within rounding"
    import torch
    from elmo_fastai.nn import softmax
    torch.manual_seed(0)
    for layer in (softmax.FullSoftmax(16, 3000), softmax.AdaptiveSoftmax(16, 3000, (500,), 2.)):
        h, y = torch.randn(1600, 16, requires_grad=True), torch.randint(0, 3000, (1600,))
        def run(most):
            "(nats and gradients, how many times in blocks)"
            with pytest.MonkeyPatch.context() as mp:
                taken, apply = [], softmax.ScoresInBlocks.apply
                mp.setattr(softmax.ScoresInBlocks, 'apply', lambda *args: taken.append(1) or apply(*args))
                mp.setattr(softmax, '_IN_CACHE', most)
                nats = layer.nll(h, y)
            return [nats, *torch.autograd.grad(nats.sum(), [h, *layer.parameters()])], len(taken)
        (blocks, n), (whole, none) = run(softmax._IN_CACHE), run(2**30)
        assert (n, none) == (1, 0)
        for a,b in zip(blocks, whole): assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
