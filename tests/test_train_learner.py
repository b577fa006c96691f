"The learner: an ordinary `Learner`, its figures, its callbacks, and trainings that end early"
import csv, math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import (
    Adam, Callback, CrossEntropyLossFlat, ValueMetric, load_learner, set_seed)
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, GradientAccumulation, ReduceLROnPlateau, SaveModelCallback)
from fastai.interpret import Interpretation
from fastai.optimizer import ranger

from elmo_fastai.all import *
from elmo_fastai.text.corpora import ToyCorpus
from elmo_fastai.nn.bilm import evaluate, perplexity
from elmo_fastai.train.learner import *
from elmo_fastai.train.learner import _trained_toy
from made import close, comes_back, quietly
from steps import At, finite

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def loaders(corpus, kind='sentences', bs=16, **kwargs):
    if kind == 'stream': kwargs = dict(seq_len=8) | kwargs
    return ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=bs, seed=0, device='cpu', **kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)                       # 4 batches an epoch

@pytest.fixture(scope='module')
def stream(corpus): return loaders(corpus, 'stream', bs=4)

def learner(dls, *cbs, seed=0, config=CFG, **kwargs):
    set_seed(seed)
    return bilm_learner(dls, config, **{'bf16': False, 'cbs': list(cbs), **kwargs})

def fitted(learn, epochs=1, lr=1e-2, method='fit', **kwargs):
    quietly(learn, method, epochs, lr, **kwargs)
    return learn

def row(learn): return list(learn.recorder.values[-1])

def check_table(learn, valid, rel=1e-5):
    "The last row's figures are those of `evaluate`"
    exact = evaluate(learn.model, valid)
    wanted = [math.log(exact['mean']), exact['fwd'], exact['bwd']]
    assert row(learn)[1:] == pytest.approx(wanted, rel=rel)
    return exact

# an ordinary learner

def test_characters_are_those_of_the_loaders(corpus):
    letters = CharVocab.build([line.split() for line in corpus.train], max_chars=20)
    for chars in (letters, ByteCharVocab(20)):
        learn = learner(loaders(corpus, char_vocab=chars))
        config = learn.model.config
        assert (config.n_chars, config.max_chars) == (chars.n_chars, 20)
        assert learn.model.char_vocab == chars and learn.predict('the bank', 2).startswith('the')
    for name in ('n_chars', 'max_chars'):
        with pytest.raises(ValueError, match=f"{name}=99.*loaders"):
            learner(learn.dls, config=replace(CFG, **{name: 99}))

def test_one_cycle_learns_and_its_table_is_right(dls, tmp_path):
    learn = learner(dls, CSVLogger(tmp_path/'log.csv'), from_counts=False)
    start = evaluate(learn.model, dls.valid)['mean']
    losses = fitted(learn, 4, .03, 'fit_one_cycle').recorder.losses
    assert list(learn.recorder.metric_names) == TABLE
    assert len(losses) == 4*len(dls.train)
    assert check_table(learn, dls.valid)['mean'] < start/1.5
    rows = list(csv.reader(open(tmp_path/'log.csv')))
    assert rows[0] == TABLE and float(rows[-1][3]) == pytest.approx(row(learn)[2])

@pytest.mark.parametrize('change', [
    dict(), dict(share_softmax=False), dict(softmax='sampled', n_negative=50),
    dict(softmax='adaptive', cutoffs=(20, 60), div_value=2., bias=True)])
def test_it_begins_with_the_words_frequencies(dls, change):
    for head in learner(dls, config=replace(CFG, **change)).model.eval().heads:
        found = head.log_prob(torch.zeros(1, 16))[0]
        torch.testing.assert_close(found, dls.log_frequencies())

def test_it_is_saved_and_loaded(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    assert comes_back(learn, learner(dls, seed=9, path=tmp_path))
    learn.export('learner.pkl')
    again = load_learner(tmp_path/'learner.pkl')
    assert type(again) is BiLMLearner and again.tokenizer == 'space'
    one,many = learn.predict('the', 5, seed=1), learn.predict(['the', 'a'], 3, temperature=0)
    assert one == again.predict('the', 5, seed=1) and one.startswith('the')
    assert many == [again.predict(text, 3, temperature=0) for text in ('the', 'a')]
    again.dls = dls
    assert len(fitted(again).recorder.values) == 1

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_what_a_learner_shows(corpus, kind):
    "The nats of every prediction, in the loader's order; the likeliest word in each place"
    dls = loaders(corpus, kind, bs=8)
    learn = learner(dls)
    (fwd, bwd), _ = quietly(learn, 'get_preds')
    exact = evaluate(learn.model, dls.valid)
    assert len(fwd) == len(bwd) == exact['predictions']
    assert math.exp(fwd.mean()) == pytest.approx(exact['fwd'], rel=1e-5)
    df = learn.show_results(max_n=3, show=False)
    chars,*targets = dls.valid.one_batch()
    with torch.no_grad(): states = learn.model.eval().encode(chars[:3])[-1]
    for name,head,h,y in zip(('forward', 'backward'), learn.model.heads, states, targets):
        rows = zip(df[f'{name} guesses'], head.log_prob(h).argmax(-1), y, chars)
        for shown,best,wanted,word in rows:
            there = [dls.vocab.itos[i] if target else '·' for i,target in zip(best, wanted)]
            assert shown.split(' ') == there[:int((word[:, 0] != 0).sum())]
    text = quietly(learn, 'summary')
    assert 'BiLM' in text and 'Total params' in text and 'Optimizer used' in text

def test_what_a_language_model_has_no_use_for(dls):
    with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
        quietly(learner(dls), Interpretation.from_learner, learner(dls))
    with pytest.raises(ValueError, match='bilm_learner takes no loss_func'):
        learner(dls, loss_func=CrossEntropyLossFlat())

# the metric

BATCHES = ([5.], [7.]), ([1.]*9, [3.]*9)

@pytest.mark.parametrize('batches,kwargs,mean', [
    (BATCHES, dict(directions=(0,)), 1.4), (BATCHES, dict(directions=(1,)), 3.4),
    (BATCHES, {}, 2.4), (BATCHES, dict(directions=(0,), transform=math.exp), math.exp(1.4)),
    ([([1.], []), ([2., 3.], [])], {}, 2), ([], {}, None),
    ([([1e-4]*100_000, [1e-4]*100_000)], {}, 1e-4),          # added up in double precision
    ([([5e3], [5e3])], dict(transform=perplexity), math.inf)])     # no OverflowError
def test_nats_metric_weighs_predictions(batches, kwargs, mean):
    metric = NatsMetric('x', **kwargs)
    for nats in batches:
        pred = [*map(torch.tensor, nats)]
        metric.accumulate(SimpleNamespace(model=None, training=False, pred=pred))
    assert metric.name == 'x'
    assert metric.value == (mean if mean is None else pytest.approx(mean, rel=1e-6))
    metric.reset()
    assert metric.value is None

def test_a_sampled_loss_is_no_perplexity(dls):
    "In training the metrics leave it out; validation is exact"
    learn = learner(dls, config=replace(CFG, softmax='sampled', n_negative=30))
    check_table(fitted(learn), dls.valid)
    learn.recorder.train_metrics = True
    found = dict(zip(fitted(learn).recorder.metric_names[1:], learn.recorder.values[-1]))
    assert {name for name,value in found.items() if value is None} == {
        'train_perplexity_fwd', 'train_perplexity_bwd'}

# groups and optimisers

@pytest.mark.parametrize('change', [
    dict(), dict(n_layers=3, hidden_dim=20), dict(share_encoder=False, share_softmax=False),
    dict(norm=False, softmax='adaptive', cutoffs=(50,))])
def test_groups_hold_every_parameter_once(dls, change):
    model = BiLM(replace(CFG, **change), len(dls.vocab))
    names = {id(p): name for name,p in model.named_parameters() if p.requires_grad}
    found = [{names.pop(id(p))[:4] for p in group} for group in bilm_split(model)]
    assert not names and found == [{'char'}, *[{'lstm'}]*model.config.n_layers, {'head'}]
    assert len(bilm_split(BiLM(CFG, 0))) == 3                   # without an output layer

def test_rates_by_group_and_freezing(dls):
    learn = learner(dls)
    def parts(): return [torch.cat([p.detach().flatten() for p in group])
                         for group in bilm_split(learn.model)]
    before = parts()
    fitted(learn, lr=slice(1e-12, 1e-2))
    rates = [1e-12, 1e-12*1e10**(1/3), 1e-12*1e10**(2/3), 1e-2]
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx(rates)
    moved = [(a - b).abs().max() for a,b in zip(before, parts())]
    assert moved[0] < 1e-8 < moved[1] < moved[2] < moved[3]
    learn.freeze_to(2)
    before = parts()
    fitted(learn, method='fit_one_cycle')
    assert [a.equal(b) for a,b in zip(before, parts())] == [True, True, False, False]
    learn.unfreeze()
    for name,p in learn.model.named_parameters():
        is_second_bias = name.endswith('bias_hh_l0')
        assert p.requires_grad != is_second_bias and not (is_second_bias and p.any())

class Look(Callback):
    "Keeps weights and gradients before each step"
    order = 95
    def before_fit(self): self.found = []
    def before_step(self): self.found.append({
        name: (p.detach().clone(), p.grad.clone())
        for name,p in self.model.named_parameters() if p.grad is not None})

def norm(step): return torch.stack([grad.norm() for _,grad in step.values()]).norm().item()

def test_gradients_are_clipped(dls):
    loose,tight = (fitted(learner(dls, Look(), clip=clip)).look.found for clip in (1e9, .01))
    assert max(map(norm, tight)) <= .0101 < min(map(norm, loose))

def test_adagrad_is_the_originals(dls):
    "A step by hand: the loss times 20, sums of squares that start at 1, the rate 0.2"
    learn = learner(dls, Look(), opt='adagrad')
    quietly(learn, 'fit', 1)
    first, second = learn.look.found[:2]
    for name,(weight, grad) in first.items():
        torch.testing.assert_close(second[name][0], weight - .2*grad/(1 + grad**2).sqrt())
    hypers = learn.opt.hypers[0]
    assert first and learn.wd == hypers['wd'] == 0 and hypers['lr'] == .2
    assert 1 < norm(first) <= 20.001            # twenty times the mean's gradient, and its limit
    quietly(learn, 'fit_one_cycle', 1, .2)      # a schedule may speak of momentum

def test_other_optimisers(dls):
    for opt in (Adam, ranger): assert len(fitted(learner(dls, opt=opt)).opt.hypers) == 4
    with pytest.raises(ValueError, match="'sgd'.*adamw.*adagrad"): learner(dls, opt='sgd')
    found = [learner(dls, **how).wd for how in (dict(wd=.5), {}, dict(opt='adagrad', wd=.1))]
    assert found == [.5, .01, .1]

# precision

def test_instructions_decide_on_bfloat16(monkeypatch):
    for known,can,is_fast in [
            (0, {}, 0), (0, dict(amx_bf16=1), 0), (0, dict(sse4a=1), 0), (1, dict(sse4a=1), 1),
            (1, {}, 0), (1, dict(amx_bf16=1), 1)]:              # Intel, AMX switched off and on
        monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: known, raising=False)
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: can, raising=False)
        monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (7 + is_fast, 5))
        for device in ('cpu', torch.device('cpu'), 'cuda'): assert bf16_is_fast(device) == is_fast
        assert bf16_is_fast('mps') is False
    monkeypatch.delattr(torch.cpu, 'get_capabilities')                  # an older PyTorch
    assert bf16_is_fast('cpu') is True
    monkeypatch.delattr(torch.cpu, '_is_avx512_bf16_supported')
    assert bf16_is_fast('cpu') is False

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_bfloat16(corpus, kind):
    "In the model and its loss alone: what follows in the step reads the new weights, in 32 bits"
    class Ask(Callback):
        order = 96
        def after_batch(self): self.found = evaluate(self.model, self.dls.valid)['mean']
    cbs = [CarryState()] if kind == 'stream' else []
    half,full = (fitted(learner(loaders(corpus, kind, bs=8), Ask(), *cbs, bf16=bf16), lr=.01)
                 for bf16 in (True, False))
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert half.ask.found == evaluate(half.model, half.dls.valid)['mean']
    losses = half.recorder.losses, full.recorder.losses
    assert losses[0] != losses[1] and np.allclose(*losses, rtol=.05)
    assert row(half)[1] == pytest.approx(row(full)[1], rel=.05)

@pytest.mark.parametrize('name', ['cbow', 'labels', 'tags'])
def test_tasks_in_bfloat16(task_learners, name):
    found = [quietly(change(), 'get_preds')[0] for change in (
        task_learners[name].to_bf16, task_learners[name].to_fp32)]
    assert close(*found, eps=.1) and not close(*found, eps=0) and found[0].dtype == torch.float32

def test_precisions_replace_each_other(dls):
    learn = learner(dls, bf16=True)
    def now(change): return change().bf16, hasattr(learn, 'mixed_precision')
    half, brain, full = (False, True), (True, False), (False, False)
    assert now(learn.to_fp16) == half and now(learn.to_bf16) == now(learn.to_bf16) == brain
    assert now(learn.to_fp16) == half and now(learn.to_fp32) == full

class Failing(Callback):
    def __init__(self, error): self.error = error
    def after_pred(self): raise self.error('in the middle')

@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize('method', ['fit', 'validate', 'get_preds'])
def test_an_error_within_a_step_leaves_nothing_behind(stream, method, error):
    learn = learner(stream, CarryState(), bf16=True)
    args = [1] if method == 'fit' else []
    n = len(learn.cbs)
    with pytest.raises(error): quietly(learn, method, *args, cbs=Failing(error))
    assert not torch.is_autocast_enabled('cpu') and len(learn.cbs) == n
    assert not learn.model.lstm._forward_hooks and not learn.model.lstm._forward_pre_hooks
    assert finite(fitted(learn).model) and not torch.is_autocast_enabled('cpu')

# a carried state

@pytest.mark.parametrize('change', [
    dict(), dict(hidden_dim=20), dict(share_encoder=False), dict(cell_clip=3., proj_clip=3.)])
def test_carried_forward_perplexity_is_that_of_one_long_window(stream, change):
    learn = fitted(learner(stream, CarryState(), config=replace(CFG, **change)))
    long = StreamDataLoader(stream.valid.text, bs=stream.valid.size, seq_len=stream.valid.per)
    warm, cold = evaluate(learn.model, long), evaluate(learn.model, stream.valid)
    assert row(learn)[2] == pytest.approx(warm['fwd'], rel=1e-4)
    assert warm['fwd'] != pytest.approx(cold['fwd'], rel=1e-4)
    assert row(learn)[3] == pytest.approx(cold['bwd'], rel=1e-4)

def test_state_begins_with_zeros_and_has_no_gradient(stream):
    class Watch(Callback):
        order = 20
        def before_batch(self):
            state = self.carry_state.state
            assert (state is None) == (self.iter == 0)
            for part in (state or {}).values():
                assert part[:, 0].any() and not part[:, 1].any() and not part.requires_grad
    assert fitted(learner(stream, CarryState(), Watch()), 2).carry_state.state is None

def test_what_can_be_carried(dls, tmp_path):
    with pytest.raises(ValueError, match="kind='stream'"): fitted(learner(dls, CarryState()))
    (tmp_path/'t.txt').write_text('the bank was open all day\n'*99)
    how = dict(kind='stream', bs=2, seq_len=8, n_valid=9, device='cpu')
    assert finite(fitted(learner(stream_loaders(tmp_path/'t.txt', **how), CarryState())).model)

# losses that are no numbers, and counts

def spoil(cb): next(cb.model.head.parameters()).data.view(-1)[3] = math.nan

@pytest.mark.parametrize('step', [1, 6])
def test_a_loss_that_is_no_number_ends_the_training(dls, capsys, step):
    learn = fitted(learner(dls, At(step, spoil)), 3)
    said = capsys.readouterr().out
    for part in ('nan', f'step {step + 1}', 'lower learning rate'): assert part in said
    losses = torch.tensor(learn.recorder.losses)
    assert len(losses) == step + 1 and losses[:-1].isfinite().all() and losses[-1].isnan()
    # a look at such a model is no training
    assert all(map(math.isnan, quietly(learn, 'validate')))
    assert all(nats.isnan().all() for nats in quietly(learn, 'get_preds')[0])
    quietly(learn, 'lr_find', num_it=20, show_plot=False, suggest_funcs=None)
    assert not capsys.readouterr().out

def test_throughput_counts_real_tokens_of_trainings(dls):
    learn = fitted(learner(dls), 2)
    def seen(): return learn.throughput.tokens, learn.throughput.seconds
    before = seen()
    for look in ('validate', 'get_preds', 'summary', 'lr_find'): quietly(learn, look)
    assert seen() == before and before[0] == 2*len(dls.train.text.ids) and before[1] > 0

# a budget of time

def timed(dls, seconds, *cbs, method='fit_one_cycle', lr=1e-2, epochs=999, **kwargs):
    "A learner and its budget, after so many steps of a clock that counts them (4 an epoch)"
    learn = learner(dls, *cbs)
    budget = TimeBudget(seconds, clock=lambda: float(len(learn.recorder.losses)))
    return fitted(learn, epochs, lr, method, cbs=budget, **kwargs), budget

@pytest.mark.parametrize('epochs', [999, 1])
def test_a_budget_ends_one_cycle_with_the_clock(corpus, epochs):
    "A whole number of epochs: the rates, momenta and figures of `fit_one_cycle`"
    whole = fitted(learner(loaders(corpus)), 3, method='fit_one_cycle').recorder
    learn, budget = timed(loaders(corpus), 12, epochs=epochs)
    recorder = learn.recorder
    assert len(recorder.lrs) == 12 == budget.elapsed
    np.testing.assert_allclose(recorder.lrs, whole.lrs, rtol=1e-6)
    np.testing.assert_allclose(recorder.hps['mom'], whole.hps['mom'], rtol=1e-6)
    rows = [[values[:-1] for values in r.values] for r in (recorder, whole)]
    np.testing.assert_allclose(*rows, rtol=1e-3)

def test_a_budget_that_ends_within_an_epoch(dls, tmp_path):
    "The epoch is validated, its row is whole, and the weights are those that the row speaks of"
    learn, _ = timed(dls, 10, CSVLogger(tmp_path/'log.csv'))
    lrs = learn.recorder.lrs
    assert len(lrs) == 10 and lrs[-1] < 1e-3 < max(lrs[:4]) <= 1e-2
    assert len(learn.recorder.values) == 3 == learn.n_epoch
    assert [len(r) for r in csv.reader((tmp_path/'log.csv').open())] == [len(TABLE)]*4
    check_table(learn, dls.valid, 1e-4)

def test_a_budget_with_what_else_there_is(dls):
    assert timed(dls, 6, method='fit', lr=3e-3)[0].recorder.lrs == [3e-3]*6
    learn, _ = timed(dls, 6, start_epoch=2)
    assert learn.epoch == 3 and len(learn.recorder.lrs) == 6
    learn, _ = timed(dls, 100, EarlyStoppingCallback(patience=1), lr=.3)
    assert len(learn.recorder.losses) < 100

def test_validation_counts(dls):
    "A clock that also runs while validating: there is time for one epoch of three"
    class Tick(Callback):
        n = 0.
        def after_batch(self): self.n += 1
    tick = Tick()
    learn = fitted(learner(dls, tick), 999, cbs=TimeBudget(5, clock=lambda: tick.n))
    assert len(learn.recorder.losses) == 4 and len(learn.recorder.values) == 1

@pytest.mark.parametrize('seconds', [0, -1, math.nan, math.inf, '5m'])
def test_budgets_that_can_not_be(seconds):
    with pytest.raises(ValueError, match='seconds'): TimeBudget(seconds)

# trackers

class Fake(Callback):
    "Put figures in the place of a validation's, and mark each epoch's weights"
    order = 40
    def __init__(self, *losses): self.losses = losses
    def before_validate(self): self.model.head.bias.data.fill_(float(self.epoch))
    def after_validate(self):
        for metric in (self.recorder.loss, *self.metrics):
            metric.nats,metric.n = [self.losses[self.epoch]]*2, [1, 1]

@pytest.mark.parametrize('monitor', [
    'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'valid_perplexity_fwd'])
def test_trackers_keep_the_best(dls, monitor, tmp_path):
    learn = learner(dls, Fake(5, 4, 4.5, 3.9, 4.1, 4.2, 1), path=tmp_path)
    learn.recorder.train_metrics = monitor.startswith('valid_p')
    how = dict(monitor=monitor, comp=np.less)
    trackers = SaveModelCallback(**how), EarlyStoppingCallback(**how, patience=2)
    fitted(learn, 7, 0., cbs=trackers)
    assert len(learn.recorder.values) == 6 and (learn.model.head.bias == 3).all()

@pytest.mark.parametrize('opt', ['adamw', 'adagrad', Adam])
def test_a_plateau_lowers_the_rate(dls, opt):
    learn = fitted(learner(dls, Fake(5, 6, 7, 8), ReduceLROnPlateau(), opt=opt), 4, .1)
    assert learn.recorder.lrs[::4] == pytest.approx([.1, .1, .01, .001])

@pytest.mark.parametrize('kind', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
@pytest.mark.parametrize('monitor,metric,falls', [
    ('perplexity_fwd', None, True), ('nats', NatsMetric('nats'), True),
    ('maestro', ValueMetric(lambda: 1., 'maestro'), False)])
def test_no_tracker_keeps_the_worst(dls, kind, monitor, metric, falls, tmp_path):
    learn = learner(dls, path=tmp_path)
    if metric: learn.metrics = [metric]
    if not falls: fitted(learn, cbs=kind(monitor))
    for method in ['fit', 'fit_one_cycle', 'fit_flat_cos', 'fine_tune']*falls:
        with pytest.raises(ValueError, match=f"{monitor} should .*{kind.__name__}.*comp=np.less"):
            quietly(learn, method, 1, cbs=kind(monitor))

def test_a_validation_is_no_epoch_of_a_tracker(dls, tmp_path):
    tracker = SaveModelCallback(reset_on_fit=False)
    learn = fitted(learner(dls, tracker, path=tmp_path))
    before = tracker.best, (tmp_path/'models'/'model.pth').read_bytes()
    with torch.no_grad(): learn.model.head.bias.add_(1)
    quietly(learn, 'validate')
    assert before == (tracker.best, (tmp_path/'models'/'model.pth').read_bytes())
    assert tracker in learn.cbs

# a fit that begins with a later epoch

@pytest.fixture(scope='module')
def task_learners(corpus):
    "Learners of tasks, with the metrics that they have by default"
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    texts = [' '.join(sent.split()[:4]) for sent in corpus.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text) % 2 for text in texts]))
    how = dict(bs=16, device='cpu')
    return dict(
        bilm=learner(loaders(corpus)), cbow=cbow_learner(loaders(corpus, 'cbow'), dim=8),
        labels=elmo_classifier_learner(ClassifyDataLoaders.from_df(rows, **how), backbone),
        tags=elmo_tagger_learner(TagDataLoaders.from_sents(corpus.gold['train'], **how), backbone))

@pytest.mark.parametrize('method', ['fit', 'fit_one_cycle', 'fit_flat_cos'])
@pytest.mark.parametrize('name', ['bilm', 'cbow', 'labels', 'tags'])
def test_a_fit_begins_with_a_later_epoch(task_learners, name, method, tmp_path, monkeypatch):
    "Its rows, its rates and its files are those of the epochs that are left"
    learn = task_learners[name]
    monkeypatch.setattr(learn, 'path', tmp_path)
    calls = []
    class Off(Callback):
        "Takes itself out, as some of fastai's do"
        def before_fit(self): self.run = False
        def before_epoch(self): calls.append('off')
    cbs = [CSVLogger('log.csv'), SaveModelCallback(every_epoch=True), GradientAccumulation(32),
           Off(), Callback(before_epoch=lambda cb: calls.append(learn.epoch))]
    with learn.no_logging(): getattr(learn, method)(4, 1e-2, cbs=cbs, start_epoch=2)  # with its bar
    rates, n = learn.recorder.lrs, 2*len(learn.dls.train)
    assert calls == [2, 3] and len(learn.recorder.values) == 2 and len(rates) == n
    assert {file.name for file in (tmp_path/'models').iterdir()} == {'model_2.pth', 'model_3.pth'}
    rows = list(csv.reader((tmp_path/'log.csv').open()))
    assert [line[0] for line in rows] == ['epoch', '2', '3']
    np.testing.assert_allclose(rates, fitted(learn, 4, method=method).recorder.lrs[n:], rtol=1e-5)

def test_what_a_fit_refuses(dls, task_learners):
    with pytest.raises(ValueError, match='perplexity should fall'):
        fitted(task_learners['cbow'], cbs=SaveModelCallback('perplexity'))
    learn = learner(dls)
    before = learn.model.head.weight.clone()
    for start in (-1, 4, 9, 1.5, '2'):
        for method in ('fit', 'fit_one_cycle', 'fit_flat_cos'):
            with pytest.raises(ValueError, match='start_epoch=.* from 0 to below .*, 4$'):
                fitted(learn, 4, method=method, start_epoch=start)
    with pytest.raises(ValueError, match='start_epoch'):
        fitted(learn, 3, method='fine_tune', start_epoch=1)
    fitted(learn, 0)
    assert learn.model.head.weight.equal(before)

# a model in one call

def test_toy_bilm(held):
    lm, vocab, corpus = toy_bilm(n_train=300)
    assert not lm.training and lm.n_words == len(vocab) and isinstance(corpus, ToyCorpus)
    state = torch.get_rng_state()
    def same(other): return all(map(close, lm.parameters(), other.parameters()))
    assert same(_trained_toy.__wrapped__(300)[0])                 # another training
    other,*_ = toy_bilm(n_train=300)                              # the first one again
    assert same(other) and torch.equal(torch.get_rng_state(), state)
    with torch.no_grad(): next(other.parameters()).add_(1)
    assert same(toy_bilm(n_train=300)[0])

