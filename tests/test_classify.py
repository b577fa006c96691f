"Pooling, classifier, cache, learner: every guarantee, with a tiny biLM"
import copy, math, pickle, warnings
from dataclasses import replace
import numpy as np, pandas as pd, pytest, torch, matplotlib
from hypothesis import given, settings, strategies as st
from fastai.basics import (
    BCEWithLogitsLossFlat, Callback, CrossEntropyLossFlat, DataLoaders,
    LabelSmoothingCrossEntropyFlat, load_learner)
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.torch_core import set_seed

from elmo_fastai.base.errors import CorpusError, ModelFileError
from elmo_fastai.text.tokens import ByteCharVocab, CharVocab
from elmo_fastai.nn.bilm import BiLM
from elmo_fastai.data.blocks import ClassifyDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.tasks.classify import (
    AttentionPool, ElmoClassifier, HashedWords, LayerCache, Pool, elmo_classifier_learner,
    random_elmo)
import made
from made import CFG, bilm, close

matplotlib.use('agg')
GOOD, BAD = 'good fine great nice'.split(), 'bad poor awful dull'.split()
ROWS = [(f'the {n} was {w} .', int(w in GOOD)) for n in 'film song book play meal'.split()
        for w in GOOD + BAD]

def table(rows): return pd.DataFrame(rows, columns=['text', 'label'])


def elmo(seed=0, cfg={}, **kw):
    return Elmo(bilm(seed, 0, **cfg), **{**dict(dropout=.1, tokenizer='space'), **kw}).eval()

def loaders(rows=ROWS, **kw):
    return ClassifyDataLoaders.from_df(
        table(rows), **{**dict(device='cpu', seed=1, bs=8, valid_pct=0.25), **kw})


def learner(dls=None, e=None, **kw):
    set_seed(0)
    return elmo_classifier_learner(
        dls or loaders(), e or elmo(), **{**dict(proj_dim=16, hidden=8, dropout=0.1), **kw}
    )


def fit(learn, n=1, lr=1e-2): return made.fit(learn, n, lr)

@pytest.fixture(scope='module')
def trained(): return fit(learner(words=8, dropout=0.), 40, 1e-2)

# pooling

@settings(max_examples=40)
@given(st.sampled_from(['attention', 'mean', 'max', 'attention+max+mean']),
       st.lists(st.integers(0, 6), min_size=1, max_size=5),
       st.integers(0, 9))
def test_padding_and_company_change_nothing(how, lens, seed):
    set_seed(seed)
    pool, T = Pool(5, how), max(lens) + 2
    mask = torch.arange(T) < torch.tensor(lens)[:, None]
    x = torch.randn(len(lens), T, 5)*mask[..., None]
    out = pool(x, mask)
    # whatever stands at the padding
    x[~mask] = 1e4
    assert close(out, pool(x, mask))
    for row, n, o in zip(x, lens, out):
        if n:
            assert close(pool(row[None,:n], mask[:1,:0].new_ones(1, n))[0], o)
        else:
            assert not o.any()


def test_attention_is_a_softmax_over_real_tokens():
    pool, x, mask = (AttentionPool(4), torch.randn(2, 5, 4),
                     torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool())
    w = pool.weights(x, mask)
    assert close(w.sum(1), torch.ones(2)) and not w[1, 2:].any()
    s = [(pool.score.weight[0] @ h + pool.score.bias).item() for h in x[1,:2]]
    assert close(w[1,:2], torch.tensor([math.exp(o) for o in s])/sum(math.exp(o) for o in s))
    x.requires_grad_()
    pool(x, mask)[1].sum().backward()
    assert x.grad[1,:2].any() and not x.grad[1, 2:].any() and not x.grad[0].any()

def test_attention_without_any_token_has_no_bad_gradient():
    pool, x = AttentionPool(4), torch.randn(2, 3, 4, requires_grad=True)
    pool(x, torch.tensor([[True]*3, [False]*3])).sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in pool.parameters())

@pytest.mark.parametrize('how', ['', 'min', 'attention+'])
def test_pools_that_can_not_be(how):
    with pytest.raises(ValueError, match="take 'attention', 'mean' or 'max'"): Pool(4, how)

# the classifier

@pytest.mark.parametrize('kw', [{}, dict(words=6), dict(pool='attention+mean+max')], ids=str)
def test_a_text_gets_the_same_scores_in_any_company(kw):
    model = ElmoClassifier(elmo(), 3, **{**dict(proj_dim=16), **kw}).eval()
    if model.words is not None: torch.nn.init.normal_(model.words.embed.weight)
    texts = ['the film was good .', 'x', 'a much longer text than the others , is it not ?',
             'the film was good .']
    out = model(texts)
    assert out.shape == (4, 3) and close(out[0], out[3])
    for i,t in enumerate(texts): assert close(model([t])[0], out[i])
    chars = model.elmo.to_chars(texts)
    assert close(model(torch.nn.functional.pad(chars, (0, 0, 0, 4))), out)

def test_a_batch_without_texts_or_words():
    model = ElmoClassifier(elmo(), 3, proj_dim=16, words=4).eval()
    assert model([]).shape == (0, 3) and model(['', '']).shape == (2, 3)
    model.train()(['']).sum().backward()

def test_hashed_words():
    h = HashedWords(3)
    chars = ByteCharVocab().encode('good bad good God'.split())
    x = torch.from_numpy(np.concatenate([chars, np.zeros_like(chars[:1])]))[None]
    assert not h(x).any(), 'unseen words say nothing'
    torch.nn.init.normal_(h.embed.weight)
    v = h(x)[0]
    assert close(v[0], v[2]) and not close(v[0], v[1]) and not close(v[0], v[3]) and not v[4].any()
    many = torch.from_numpy(ByteCharVocab().encode([f'w{i}' for i in range(1000)]))[None]
    assert h(many).shape == (1, 1000, 3) and h(many).unique(dim=1).shape[1] > 970, 'spread'

# the cache

def ask(cache, e, x): return cache(e, x, cache.open(e))

def test_the_cache_gives_what_the_bilm_gives():
    e, cache, dls = elmo(), LayerCache(), loaders()
    for _ in range(2):
        for xb,_ in dls.train:
            (a, m), (b, n) = ask(cache, e, xb), e.layers(xb)
            assert torch.equal(m, n) and all(close(*o) for o in zip(a, b))
    assert len(cache.rows) == len({row['text'] for row in dls.train.items})

def test_training_with_and_without_a_cache_is_the_same():
    runs = [fit(learner(cache=o), 3) for o in (True, False)]
    a, b = (torch.tensor(r.recorder.values) for r in runs)
    assert close(a, b, 1e-4) and runs[0].model.cache.rows and not runs[1].model.cache
    assert all(
        close(p, q, 1e-3) for p, q in zip(runs[0].model.parameters(), runs[1].model.parameters()))


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
    for s in range(2): fit(learner(dls, elmo(), cache=cache))
    weights, x = cache.weights, dls.valid.one_batch()[0]
    assert len(cache.rows) == len(ROWS)
    other = fit(learner(dls, elmo(1), cache=cache)).model.elmo
    assert (cache.weights != weights and len(cache.rows) == len(ROWS)
            and all(close(*o, 1e-6) for o in zip(ask(cache, other, x)[0], other.layers(x)[0])))


def test_layers_from_before_a_training_do_not_come_back():
    "fastai's optimisers change weights through `.data`, which no version tells"
    learn = learner(cache=LayerCache())
    x = learn.dls.valid.one_batch()[0]
    fit(learn); before = [o.clone() for o in ask(learn.model.cache, learn.model.elmo.eval(), x)[0]]
    learn.freeze_to(-2); fit(learn); learn.freeze()
    now, cached = (learn.model.elmo.eval().layers(x)[0],
                   ask(learn.model.cache, learn.model.elmo, x)[0])
    assert close(cached[-1], now[-1]) and not close(before[-1], now[-1], 1e-3)

def test_changed_weights_empty_the_cache():
    e, cache, x = elmo(), LayerCache(), loaders().valid.one_batch()[0]
    ask(cache, e, x)
    e.lm.lstm.fwd[0].weight_hh_l0.data.mul_(1.5)
    assert close(ask(cache, e, x)[0][1], e.layers(x)[0][1], 1e-6)
    e.lm.load_state_dict(elmo(3).lm.state_dict())
    assert close(ask(cache, e, x)[0][1], e.layers(x)[0][1], 1e-6)

def test_a_full_cache_goes_on():
    e, cache, x = elmo(), LayerCache(mb=0), loaders().valid.one_batch()[0]
    assert (all(close(*o, 1e-6) for o in zip(ask(cache, e, x)[0], e.layers(x)[0]))
            and len(cache.rows) == 0)


def test_the_cache_stays_at_home():
    learn = fit(learner())
    again = pickle.loads(pickle.dumps(learn.model.cache))
    assert not again.rows and again.mb == learn.model.cache.mb and learn.model.cache.rows

def test_a_thawed_bilm_is_computed():
    learn = fit(learner())
    learn.freeze_to(-2)
    before = {k: p.clone() for k,p in learn.model.elmo.lm.named_parameters()}
    fit(learn)
    x = loaders().valid.one_batch()[0]
    changed = {k.split('.')[0] + k.split('.')[2] for k, p in learn.model.elmo.lm.named_parameters()
               if not torch.equal(p, before[k])}
    assert changed == {'lstm1'}
    learn.model.eval()
    with torch.no_grad(): now = learn.model(x)
    learn.model.cache = None
    with torch.no_grad(): assert close(now, learn.model(x)), 'the old layers are not used'

# the cache is consulted while a learner runs, and never for other weights

def outputs(learn, x):
    with torch.no_grad(): return learn.model.eval()(x)

def test_a_model_that_no_learner_runs_is_computed():
    learn = fit(learner())
    x = learn.dls.valid.one_batch()[0]
    before = outputs(learn, x)
    # as no version tells
    for p in learn.model.elmo.lm.parameters(): p.data.mul_(1.5)
    now, cache = outputs(learn, x), learn.model.cache
    learn.model.cache = None
    assert close(now, outputs(learn, x)) and not close(now, before, 1e-3) and cache.rows

@pytest.mark.parametrize('run', ['validate', 'get_preds', 'fit'])
def test_weights_that_changed_between_two_runs_are_noticed(run):
    a, b = fit(learner()), learner(cache=False)
    for p in a.model.elmo.lm.parameters(): p.data.mul_(1.1)
    b.model.load_state_dict(a.model.state_dict())
    def result(learn):
        set_seed(1)
        learn.dls = loaders()
        with learn.no_bar(), learn.no_logging():
            if run == 'fit': learn.fit(1, 1e-3, reset_opt=True)
            return (
                torch.tensor(list(learn.validate())) if run != 'get_preds' else learn.get_preds()[0]
            )

    assert close(result(a), result(b), 1e-4) and a.model.cache.rows

def test_a_biLM_that_is_thawed_and_frozen_within_a_training():
    from fastai.basics import Callback
    class Thaw(Callback):
        def before_epoch(self): self.learn.unfreeze() if self.epoch == 1 else self.learn.freeze()
    runs = []
    for cache in (True, False):
        learn = learner(cache=cache)
        learn.create_opt()
        with learn.no_bar(), learn.no_logging(): learn.fit(3, 1e-2, cbs=Thaw())
        runs.append(torch.tensor(learn.recorder.values))
    assert close(*runs, 1e-4)

def test_learners_in_threads_share_a_cache():
    from concurrent.futures import ThreadPoolExecutor
    cache, rows = LayerCache(), ROWS*2
    learners = [learner(loaders(rows), elmo(i % 2), cache=cache) for i in range(4)]
    plain = [learner(loaders(rows), elmo(i % 2), cache=False) for i in range(4)]
    def preds(learn):
        with learn.no_bar(), learn.no_logging(): return [learn.get_preds()[0] for _ in range(3)][-1]
    with ThreadPoolExecutor(4) as pool: found = list(pool.map(preds, learners))
    assert all(close(a, preds(b), 1e-5) for a,b in zip(found, plain))

def test_an_error_in_a_run_leaves_no_cache_in_use():
    from fastai.basics import Callback
    class Fail(Callback):
        def after_pred(self): raise RuntimeError('stop')
    learn = learner()
    with pytest.raises(RuntimeError, match='stop'): learn.validate(cbs=Fail())
    x = learn.dls.valid.one_batch()[0]
    learn.model.elmo.lm.lstm.fwd[0].weight_hh_l0.data.mul_(3.)
    now = outputs(learn, x)
    learn.model.cache = None
    assert close(now, outputs(learn, x))

# the learner

def test_it_learns(trained):
    with trained.no_bar(): loss, accuracy = trained.validate()
    assert accuracy > .9

def test_the_given_backbone_stays_as_it_is():
    e = elmo()
    before = copy.deepcopy(e.state_dict())
    learn = learner(e=e)
    learn.unfreeze(); fit(learn)
    assert all(torch.equal(v, before[k]) for k,v in e.state_dict().items()) and not e.trainable
    assert any(not torch.equal(v, before[k]) for k,v in learn.model.elmo.state_dict().items())

def test_groups_and_phases():
    learn = learner()
    assert len(learn.opt.param_lists) == 4
    def open_(): return [any(p.requires_grad for p in g) for g in learn.opt.param_lists]
    assert open_() == [False]*3 + [True]
    learn.freeze_to(-2); assert open_() == [False]*2 + [True]*2
    learn.freeze_to(-3); assert open_() == [False] + [True]*3
    learn.unfreeze(); assert all(open_())
    learn.freeze(); assert open_() == [False]*3 + [True]
    fit(learn, lr=slice(1e-4, 1e-2))

def test_same_seed_same_result(held):
    a, b = (torch.tensor(fit(learner(), 2).recorder.values) for _ in range(2))
    assert close(a, b)

def test_random_backbone():
    e, texts = elmo(norm='token'), [t for t,_ in ROWS]
    a, b, c = (random_elmo(e, seed, texts) for seed in (3, 3, 4))
    a1, b1, c1 = (o.lm.lstm.fwd[0].weight_ih_l0 for o in (a, b, c))
    assert close(a1, b1) and not close(a1, c1)
    assert (a.mixes[0].norm == 'token' and a.drop.p == e.drop.p and a.lm.config == e.lm.config
            and not a.training and not a.trainable)
    assert int(a.lm.chars.norm.steps) and not torch.equal(
        a.lm.chars.norm.running_mean, torch.zeros(8))


@pytest.mark.parametrize('cfg', [
    {}, dict(char_proj=False, proj_dim=24, hidden_dim=24), dict(share_encoder=False)], ids=str)
@pytest.mark.parametrize('norm', [True, False])
def test_a_random_backbone_is_normalised(norm, cfg):
    """Also where the normalisation of the pretrained one was folded away, as in the box: the same
    vectors, in the same shape"""
    set_seed(0)
    e, texts = (Elmo(BiLM(replace(CFG, norm=norm, **cfg), 0), tokenizer='space').eval(),
                [t for t, _ in ROWS])
    folded, whole = (
        random_elmo(e, 3, texts),
        random_elmo(Elmo(BiLM(replace(CFG, norm=True, **cfg), 0), tokenizer='space'), 3, texts))
    assert folded.lm.config.norm == norm and (folded.lm.chars.norm is None) == (not norm)
    layers, mask = folded.layers(texts)
    # as the forward and as the backward direction reads it
    for h in layers[0].split(layers[0].shape[-1]//2, -1):
        # (a coordinate that hardly varies stays small)
        h = h[mask]
        assert h.mean(0).abs().max() < .25 and h.var(0).max() < 1.5 and .7 < h.var(0).median()
    assert all(close(a, b, 1e-4) for a,b in zip(layers, whole.layers(texts)[0]))
    BiLM(folded.lm.config, 0).load_state_dict(folded.lm.state_dict())

@pytest.mark.parametrize('make,error,kind', [
    (lambda: learner(e=3), 'expected an `Elmo`.*got int', TypeError),
    (lambda: learner(e='no/such/box'), 'There is no folder', ModelFileError),
    (lambda: learner(e=elmo(markers='given')), 'markers', ValueError),
    (lambda: learner(e=elmo(carry=True)), 'carry', ValueError),
    (lambda: learner(e=elmo(cfg=dict(max_chars=20))), 'char_vocab=elmo.char_vocab', ValueError),
    (lambda: learner(loaders(char_vocab=CharVocab.build([t.split() for t, _ in ROWS]))),
     'char_vocab=elmo.char_vocab', ValueError),
    (lambda: learner(pool='sum'), "pool='sum': take", ValueError)])
def test_what_does_not_fit(make, error, kind):
    with pytest.raises(kind, match=error):
        make()


def test_another_char_vocab_that_fits():
    dls = loaders(char_vocab=ByteCharVocab(20))
    fit(learner(dls, elmo(cfg=dict(max_chars=20))))

def test_predictions_of_texts_of_all_lengths_come_in_order(trained):
    texts = [' '.join(['the', 'film', 'was', w]*n) for n in (3, 900, 1, 40, 600)
             for w in ('good', 'bad')]
    p, _ = trained.get_preds(dl=trained.dls.test_dl(texts, bs=3))
    q, _ = trained.get_preds(dl=trained.dls.test_dl(texts, bs=20))
    assert close(p, q, 1e-4) and all(close(o, trained.predict(t)[2], 1e-4) for o,t in zip(p, texts))

# fastai

def test_predict(trained):
    for text,label in (('the film was great .', '1'), (['the', 'film', 'was', 'dull', '.'], '0')):
        got, idx, p = trained.predict(text)
        assert (
            (got, int(idx)) == (label, int(label)) and p.shape == (2,) and abs(p.sum() - 1) < 1e-5)
    with pytest.raises(CorpusError, match='neither a text nor'): trained.predict([1])
    inp, *_ = trained.predict('the film was great .', with_input=True)
    assert inp == 'the film was great .'

def test_predictions_come_in_the_order_of_the_texts(trained):
    texts = [f'the film was {w} .' + ' indeed'*n for n in (3, 0, 2, 1) for w in ('good', 'bad')]
    p, _ = trained.get_preds(dl=trained.dls.test_dl(texts))
    assert all(close(q, trained.predict(t)[2]) for q,t in zip(p, texts))
    with torch.no_grad(): assert close(p, trained.model.eval()(texts).softmax(-1))

def test_results_and_interpretation(trained, capsys):
    trained.show_results(max_n=2)
    trained.dls.show_batch(max_n=2)
    i = ClassificationInterpretation.from_learner(trained)
    cm = i.confusion_matrix()
    assert cm.sum() == len(trained.dls.valid.items) and cm.trace()/cm.sum() == pytest.approx(
        trained.validate()[1])
    i.plot_confusion_matrix()
    i.plot_top_losses(3)
    i.show_results([0, 1])
    i.most_confused()
    i.print_classification_report()
    losses, idx = i.top_losses(4)
    inps, preds, targs, decoded, again = i[idx]
    p = preds[torch.arange(4), targs]
    assert close(-p.log(), losses, 1e-4), 'each loss belongs to its text'
    Interpretation.from_learner(
        trained, dl=trained.dls.test_dl(table(ROWS[:3]), with_labels=True)
    ).plot_top_losses(2)


def test_export_and_load(trained, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        trained.export(tmp_path/'c.pkl')
        again = load_learner(tmp_path/'c.pkl')
    for t,_ in ROWS[::7]: assert close(trained.predict(t)[2], again.predict(t)[2])
    assert again.report(table(ROWS)).accuracy == trained.report(table(ROWS)).accuracy
    with pytest.warns(UserWarning, match='1 of 2 texts'):
        assert again.get_preds(dl=again.dls.test_dl(['', 'good']))[0].isnan().any(1).tolist() == [
            True, False]
    with pytest.raises(CorpusError, match='row 1 has no text'): again.report(table([('a', 1), ('', 0)]))
    assert b'awful' not in (tmp_path/'c.pkl').read_bytes(), 'no text of the training data'

def test_save_and_load_encoder(tmp_path):
    a = learner(path=tmp_path); a.unfreeze(); fit(a); a.save_encoder('fine')
    b = learner(path=tmp_path).load_encoder('fine')
    assert all(torch.equal(p, q)
               for p, q in zip(a.model.elmo.lm.parameters(), b.model.elmo.lm.parameters()))


def test_attention_of_a_text(trained):
    w = trained.attention('the film was good .')
    assert (
        list(w.index) == 'the film was good .'.split() and abs(w.sum() - 1) < 1e-5 and (w > 0).all()
    )
    assert trained.attention(['one']).tolist() == [1.]
    assert not len(trained.attention(''))
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
    again = load_learner(tmp_path/'several.pkl')
    assert sorted(again.predict('a good bank .')[0]) == ['bank', 'good']
    learn.show_results(max_n=2)
    learn.loss_func.thresh = 1.
    assert not learn.predict('the film was good .')[0]

def test_losses_with_weights_and_of_others():
    weights = torch.tensor([1., 3.])
    learn = learner(loss_func=CrossEntropyLossFlat(weight=weights))
    assert torch.equal(learn.loss_func.func.weight, weights)
    several = ClassifyDataLoaders.from_df(table(SEVERAL), label_delim=';', device='cpu')
    losses = BCEWithLogitsLossFlat(pos_weight=torch.ones(3)), LabelSmoothingCrossEntropyFlat()
    for learn in (learn, learner(several, loss_func=losses[0]), learner(loss_func=losses[1])):
        fit(learn)
        assert learn.report().n == len(learn.dls.valid_ds)
    with pytest.raises(ValueError, match='take one of fastai'):
        learner(loss_func=torch.nn.CrossEntropyLoss())

def test_one_class_is_refused():
    with pytest.raises(CorpusError, match='two classes or more'):
        learner(loaders([(text, 'a') for text,_ in ROWS]))

def test_a_report_of_loaders_that_are_fastai_s_own():
    dls = loaders()
    learn = learner(DataLoaders(dls.train, dls.valid, device='cpu'))
    assert learn.report(table(ROWS[:4])).n == learner(dls).report(table(ROWS[:4])).n == 4

class FirstText(Callback):
    "The model is given the first text of a batch in place of each"
    def before_batch(self): self.learn.xb = self.xb[0][:1].expand_as(self.xb[0]),

def test_a_report_runs_the_callbacks():
    learn = learner(cbs=FirstText())
    with learn.no_bar(), learn.no_logging(): loss, accuracy = learn.validate()
    assert learn.report('valid').figures['accuracy'].value == pytest.approx(accuracy)
