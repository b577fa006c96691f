"Pooling, classifier, cache, learner: every guarantee, with a tiny biLM"
import copy, math, pickle, warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import pandas as pd, pytest, torch, matplotlib
from hypothesis import given, settings, strategies as st
from fastai.basics import (
    BCEWithLogitsLossFlat, Callback, CrossEntropyLossFlat, DataLoaders,
    LabelSmoothingCrossEntropyFlat, load_learner)
from fastai.interpret import ClassificationInterpretation
from fastai.torch_core import set_seed

from elmo_fastai.errors import CorpusError, ModelFileError
from elmo_fastai.tokens import CharVocab
from elmo_fastai.bilm import BiLM
from elmo_fastai.blocks import ClassifyDataLoaders
from elmo_fastai.elmo import Elmo
from elmo_fastai.classifier import (
    ElmoClassifier, Pool, elmo_classifier_learner, random_elmo)
from elmo_fastai.tasks import LayerCache
import made
from made import CFG, bilm, close, quietly

matplotlib.use('agg')
GOOD, BAD = 'good fine great nice'.split(), 'bad poor awful dull'.split()
ROWS = [(f'the {n} was {w} .', int(w in GOOD)) for n in 'film song book play meal'.split()
        for w in GOOD + BAD]
TEXTS = [text for text,_ in ROWS]

def table(rows): return pd.DataFrame(rows, columns=['text', 'label'])

def elmo(seed=0, cfg={}, **kw):
    return Elmo(bilm(seed, 0, **cfg), **{**dict(dropout=.1, tokenizer='space'), **kw}).eval()

def loaders(rows=ROWS, **kw):
    return ClassifyDataLoaders.from_df(
        table(rows), **{**dict(device='cpu', seed=1, bs=8, valid_pct=.25), **kw})

def learner(dls=None, e=None, **kw):
    set_seed(0)
    settings = dict(proj_dim=16, hidden=8, dropout=.1) | kw
    return elmo_classifier_learner(dls or loaders(), e or elmo(), **settings)

def fit(learn, n=1, lr=1e-2): return made.fit(learn, n, lr)

@pytest.fixture(scope='module')
def trained(): return fit(learner(words=8, dropout=0.), 40, 1e-2)

# pooling

@settings(max_examples=40)
@given(st.sampled_from(['attention', 'mean', 'max', 'attention+max+mean']),
       st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 9))
def test_padding_and_company_change_nothing(how, lens, seed):
    set_seed(seed)
    pool, T = Pool(5, how), max(lens) + 2
    mask = torch.arange(T) < torch.tensor(lens)[:, None]
    x = torch.randn(len(lens), T, 5)*mask[..., None]
    out = pool(x, mask)
    x[~mask] = 1e4                       # whatever stands at the padding
    assert close(out, pool(x, mask))
    for row,n,o in zip(x, lens, out):
        alone = pool(row[None, :n], torch.ones(1, n, dtype=torch.bool))[0]
        assert close(alone, o) and (n or not o.any())

# the classifier

@pytest.mark.parametrize('kw', [{}, dict(words=6), dict(pool='attention+mean+max')], ids=str)
def test_a_text_gets_the_same_scores_in_any_company(kw):
    model = ElmoClassifier(elmo(), 3, **{**dict(proj_dim=16), **kw}).eval()
    if model.words is not None: torch.nn.init.normal_(model.words.embed.weight)
    texts = ['the film was good .', 'x', 'a much longer text than the others , is it not ?',
             'the film was good .']
    out = model(texts)
    assert out.shape == (4, 3) and close(out[0], out[3])
    for text,scores in zip(texts, out): assert close(model([text])[0], scores)
    assert model([]).shape == (0, 3) and model(['', 'a']).isnan().all(1).tolist() == [True, False]
    chars = torch.nn.functional.pad(model.elmo.to_chars(texts), (0, 0, 0, 4))
    assert close(model(chars), out)
    model.train()(['', 'a']).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.head.parameters())

# the cache: asked while a learner runs, and never for other weights

def ask(cache, e, x): return cache(e, x, cache.open(e))
def agree(cache, e, x):
    (a, m), (b, n) = ask(cache, e, x), e.layers(x)
    return torch.equal(m, n) and all(close(*pair) for pair in zip(a, b))

def test_the_cache_gives_what_the_bilm_gives():
    e, cache, none, dls = elmo(), LayerCache(), LayerCache(mb=0), loaders()
    for _ in range(2):
        for xb,_ in dls.train: assert agree(cache, e, xb) and agree(none, e, xb)
    assert len(cache.rows) == len({row['text'] for row in dls.train.items}) and not none.rows
    again = pickle.loads(pickle.dumps(cache))
    assert not again.rows and again.mb == cache.mb and cache.rows, 'a file has no data'
    e.lm.lstm.fwd[0].weight_hh_l0.data.mul_(1.5)         # as no version tells
    assert agree(cache, e, xb)
    e.lm.load_state_dict(elmo(3).lm.state_dict())
    assert agree(cache, e, xb)

class Thaw(Callback):
    def before_epoch(self): self.learn.unfreeze() if self.epoch == 1 else self.learn.freeze()

@pytest.mark.parametrize('cb', [None, Thaw])
def test_training_with_and_without_a_cache_is_the_same(cb):
    runs = []
    for cache in (True, False):
        learn = learner(cache=cache)
        learn.create_opt()
        quietly(learn, 'fit', 3, 1e-2, cbs=cb and cb())
        runs.append(torch.tensor(learn.recorder.values))
        assert bool(learn.model.cache and learn.model.cache.rows) == cache
    assert close(*runs, 1e-4)

def test_the_bilm_is_not_called_again(monkeypatch):
    learn = fit(learner())
    calls, layers = [], Elmo.layers
    def spy(self, x):
        calls.append(len(x))
        return layers(self, x)
    monkeypatch.setattr(Elmo, 'layers', spy)
    fit(learn)
    assert calls and not any(calls)

def test_one_cache_for_many_learners_and_never_for_another_bilm():
    cache, dls = LayerCache(), loaders()
    for _ in range(2): fit(learner(dls, elmo(), cache=cache))
    weights = cache.weights
    assert len(cache.rows) == len(ROWS)
    other = fit(learner(dls, elmo(1), cache=cache)).model.elmo
    assert cache.weights != weights and len(cache.rows) == len(ROWS)
    assert agree(cache, other, dls.valid.one_batch()[0])

def test_layers_from_before_a_training_do_not_come_back():
    "fastai's optimisers change weights through `.data`, which no version tells"
    learn = fit(learner())
    e, cache = learn.model.elmo, learn.model.cache
    x = learn.dls.valid.one_batch()[0]
    before = [o.clone() for o in ask(cache, e.eval(), x)[0]]
    learn.freeze_to(-2)
    fit(learn)
    with torch.no_grad():
        now = learn.model.eval()(x)
        learn.model.cache = None
        assert close(now, learn.model(x)), 'a thawed biLM is computed'
    learn.freeze()
    assert agree(cache, e.eval(), x) and not close(before[-1], e.layers(x)[0][-1], 1e-3)

class Fail(Callback):
    def after_pred(self): raise RuntimeError('stop')

@pytest.mark.parametrize('cb', [None, Fail])
def test_a_model_that_no_learner_runs_is_computed(cb):
    "Also after an error in a run"
    learn = fit(learner())
    if cb:
        with pytest.raises(RuntimeError, match='stop'): learn.validate(cbs=cb())
    x = learn.dls.valid.one_batch()[0]
    for p in learn.model.elmo.lm.parameters(): p.data.mul_(1.5)
    with torch.no_grad():
        now = learn.model.eval()(x)
        learn.model.cache = None
        assert close(now, learn.model(x))

@pytest.mark.parametrize('run', ['validate', 'get_preds', 'fit'])
def test_weights_that_changed_between_two_runs_are_noticed(run):
    a, b = fit(learner()), learner(cache=False)
    for p in a.model.elmo.lm.parameters(): p.data.mul_(1.1)
    b.model.load_state_dict(a.model.state_dict())
    def result(learn):
        set_seed(1)
        learn.dls = loaders()
        if run == 'fit': quietly(learn, 'fit', 1, 1e-3, reset_opt=True)
        if run == 'get_preds': return quietly(learn, 'get_preds')[0]
        return torch.tensor(list(quietly(learn, 'validate')))
    assert close(result(a), result(b), 1e-4) and a.model.cache.rows

def test_learners_in_threads_share_a_cache():
    cache, rows = LayerCache(), ROWS*2
    def preds(learn):
        with learn.no_bar(), learn.no_logging(): return [learn.get_preds()[0] for _ in range(3)][-1]
    learners, plain = ([learner(loaders(rows), elmo(i % 2), cache=c) for i in range(4)]
                       for c in (cache, False))
    with ThreadPoolExecutor(4) as pool: found = list(pool.map(preds, learners))
    assert all(close(a, preds(b)) for a,b in zip(found, plain))

# the learner

def test_the_given_backbone_stays_as_it_is():
    e = elmo()
    before = copy.deepcopy(e.state_dict())
    learn = learner(e=e)
    learn.unfreeze()
    fit(learn)
    assert all(torch.equal(v, before[k]) for k,v in e.state_dict().items()) and not e.trainable
    assert any(not torch.equal(v, before[k]) for k,v in learn.model.elmo.state_dict().items())

@pytest.mark.parametrize('cfg', [
    {}, dict(char_proj=False, proj_dim=24, hidden_dim=24), dict(share_encoder=False)], ids=str)
@pytest.mark.parametrize('norm', [True, False])
def test_a_random_backbone_is_normalised(norm, cfg):
    """Also where the normalisation of the pretrained one was folded away, as in the box: the same
    vectors, in the same shape"""
    set_seed(0)
    folded, whole = (random_elmo(Elmo(BiLM(replace(CFG, norm=o, **cfg), 0), tokenizer='space'), 3,
                                 TEXTS) for o in (norm, True))
    assert folded.lm.config.norm == norm and (folded.lm.chars.norm is None) == (not norm)
    layers, mask = folded.layers(TEXTS)
    for h in layers[0].split(layers[0].shape[-1]//2, -1):     # as each direction reads it
        h = h[mask]                                           # what hardly varies stays small
        assert h.mean(0).abs().max() < .25 and h.var(0).max() < 1.5 and .7 < h.var(0).median()
    assert all(close(a, b, 1e-4) for a,b in zip(layers, whole.layers(TEXTS)[0]))
    BiLM(folded.lm.config, 0).load_state_dict(folded.lm.state_dict())

@pytest.mark.parametrize('make,error,kind', [
    (lambda: learner(e=3), 'expected an `Elmo`.*got int', TypeError),
    (lambda: learner(e='no/such/box'), 'There is no folder', ModelFileError),
    (lambda: learner(e=elmo(markers='given')), 'markers', ValueError),
    (lambda: learner(e=elmo(carry=True)), 'carry', ValueError),
    (lambda: learner(e=elmo(cfg=dict(max_chars=20))), 'char_vocab=elmo.char_vocab', ValueError),
    (lambda: learner(loaders(char_vocab=CharVocab.build([t.split() for t in TEXTS]))),
     'char_vocab=elmo.char_vocab', ValueError),
    (lambda: learner(loss_func=torch.nn.CrossEntropyLoss()), 'take one of fastai', ValueError),
    (lambda: learner(loaders([(text, 'a') for text in TEXTS])), 'two classes or more', CorpusError),
    (lambda: learner(pool='attention+'), "take 'attention', 'mean' or 'max'", ValueError)])
def test_what_does_not_fit(make, error, kind):
    with pytest.raises(kind, match=error): make()

def test_a_name_alone_needs_what_reads_files(monkeypatch):
    monkeypatch.delattr(Elmo, 'from_pretrained')
    with pytest.raises(TypeError, match='elmo_fastai.all'): learner(e='mini-en')

# fastai

def test_predict(trained):
    assert trained.validate()[1] > .9
    for text,label in (('the film was great .', '1'), (['the', 'film', 'was', 'dull', '.'], '0')):
        got, i, p = trained.predict(text)
        assert (got, int(i)) == (label, int(label)) and p.shape == (2,) and close(p.sum(), torch.ones(()))
    with pytest.raises(CorpusError, match='neither a text nor'): trained.predict([1])
    assert trained.predict('the film was great .', with_input=True)[0] == 'the film was great .'
    with pytest.warns(UserWarning, match='have no token'): label, i, p = trained.predict(' ')
    assert label is None and p.isnan().all()

def test_predictions_come_in_the_order_of_the_texts(trained):
    texts = [' '.join(['the', 'film', 'was', w]*n) for n in (3, 900, 1, 40) for w in ('good', 'bad')]
    p, q = (trained.get_preds(dl=trained.dls.test_dl(texts, bs=bs))[0] for bs in (3, 20))
    assert close(p, q, 1e-4) and all(close(o, trained.predict(t)[2], 1e-4) for o,t in zip(p, texts))
    found = ClassificationInterpretation.from_learner(trained)
    losses, rows = found.top_losses(4)
    inps, preds, targs, *_ = found[rows]
    assert close(-preds[range(4), targs].log(), losses, 1e-4), 'each loss belongs to its text'
    found.plot_top_losses(3)
    trained.show_results(max_n=2)

def test_export_and_load(trained, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trained.export(tmp_path/'c.pkl')
        again = load_learner(tmp_path/'c.pkl')
    for text in TEXTS[::7]: assert close(trained.predict(text)[2], again.predict(text)[2])
    with pytest.warns(UserWarning, match='1 of 2 texts'):
        p, *_ = again.get_preds(dl=again.dls.test_dl(['', 'good']))
    assert p.isnan().any(1).tolist() == [True, False]
    assert b'awful' not in (tmp_path/'c.pkl').read_bytes(), 'no text of the training data'

def test_attention_of_a_text(trained):
    w = trained.attention('the film was good .')
    assert list(w.index) == 'the film was good .'.split() and abs(w.sum() - 1) < 1e-5
    assert trained.attention(['one']).tolist() == [1.] and not len(trained.attention(''))
    with pytest.raises(ValueError, match='no attention'): learner(pool='mean').attention('a')

# several labels per text, other losses

SEVERAL = [('the film was good .', 'good;film'), ('the bank was closed .', 'bank'),
           ('it was bad .', ''), ('a good bank .', 'good;bank')]*10

def test_a_learner_of_several_labels(tmp_path):
    d = ClassifyDataLoaders.from_df(table(SEVERAL), valid=table(SEVERAL), label_delim=';',
                                    tokenizer='space', bs=8, device='cpu')
    learn = fit(elmo_classifier_learner(d, elmo(), words=8, dropout=0.), 20, 2e-2)
    loss, accuracy = learn.validate()
    assert accuracy > .95 and math.isfinite(loss) and learn.metrics[0].name == 'accuracy_multi'
    said, row, probs = learn.predict('the film was good .')
    assert sorted(said) == ['film', 'good'] and row.dtype == torch.bool
    assert ((0 <= probs) & (probs <= 1)).all()
    learn.export(tmp_path/'several.pkl')
    assert sorted(load_learner(tmp_path/'several.pkl').predict('a good bank .')[0]) == ['bank', 'good']
    learn.show_results(max_n=2)
    learn.loss_func.thresh = 1.
    assert not learn.predict('the film was good .')[0]

def test_losses_with_weights_and_of_others():
    weights = torch.tensor([1., 3.])
    weighted = learner(loss_func=CrossEntropyLossFlat(weight=weights))
    assert torch.equal(weighted.loss_func.func.weight, weights)
    several = ClassifyDataLoaders.from_df(table(SEVERAL), label_delim=';', device='cpu')
    losses = BCEWithLogitsLossFlat(pos_weight=torch.ones(3)), LabelSmoothingCrossEntropyFlat()
    for learn in (weighted, learner(several, loss_func=losses[0]), learner(loss_func=losses[1])):
        fit(learn)
        assert learn.report().n == len(learn.dls.valid_ds)

class FirstText(Callback):
    "The model is given the first text of a batch in place of each"
    def before_batch(self): self.learn.xb = self.xb[0][:1].expand_as(self.xb[0]),

def test_a_report_runs_the_callbacks_also_on_loaders_of_fastai():
    dls = loaders()
    learn = learner(DataLoaders(dls.train, dls.valid, device='cpu'), cbs=FirstText())
    assert learn.report(table(ROWS[:4])).n == 4
    assert learn.report().accuracy.value == pytest.approx(quietly(learn, 'validate')[1])
