"""Trainings that end early or are only looked at; exports are in test_pickle, encoders in test_tagger"""
import csv, math
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, DataLoaders, ValueMetric, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback)

from elmo_fastai.all import *
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.learner import FitLearner, NatsMetric, evaluate
from made import close, quietly

def test_weights_are_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    learn = FitLearner(DataLoaders([], []), torch.nn.Linear(2, 3), torch.nn.MSELoss(), path=tmp_path)
    learn.create_opt()
    file = learn.save('best', with_opt=False)
    was = file.read_bytes()
    assert file == tmp_path/'models'/'best.pth'
    with torch.no_grad(): learn.model.weight.zero_()
    def fail(*args, **kwargs):
        args[1].write(b'half') if hasattr(args[1], 'write') else Path(args[1]).write_bytes(b'half')
        raise OSError('disk full')
    with monkeypatch.context() as m, pytest.raises(OSError):
        m.setattr(torch, 'save', fail)
        learn.save('best')
    assert file.read_bytes() == was and [*file.parent.iterdir()] == [file]
    learn.load('best', with_opt=False)
    assert learn.model.weight.any()

# trainings

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def loaders(corpus, **kwargs):
    return ElmoDataLoaders.from_corpus(corpus, **dict(bs=16, seed=0, device='cpu') | kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)                       # 4 batches an epoch

def learner(dls, *cbs, **kwargs):
    set_seed(0)
    return bilm_learner(dls, CFG, bf16=False, cbs=list(cbs), **kwargs)

def fitted(learn, epochs=1, lr=1e-2, method='fit', **kwargs):
    quietly(learn, method, epochs, lr, **kwargs)
    return learn

@pytest.mark.parametrize('kind', [dict(), dict(kind='stream', seq_len=8)])
def test_what_a_learner_shows(corpus, kind):
    "The nats of every prediction, in the loader's order; the likeliest word in each place"
    dls = loaders(corpus, bs=8, **kind)
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

# a budget of time

def timed(dls, seconds, *cbs, method='fit_one_cycle', lr=1e-2, epochs=999, **kwargs):
    "A learner, trained for so many steps of a clock that counts them"
    learn = learner(dls, *cbs)
    budget = TimeBudget(seconds, clock=lambda: float(len(learn.recorder.losses)))
    return fitted(learn, epochs, lr, method, cbs=budget, **kwargs)

@pytest.mark.parametrize('epochs', [999, 1])
def test_a_budget_ends_one_cycle_with_the_clock(corpus, epochs):
    "A whole number of epochs: the rates, momenta and figures of `fit_one_cycle`"
    whole = fitted(learner(loaders(corpus)), 3, method='fit_one_cycle').recorder
    recorder = timed(loaders(corpus), 12, epochs=epochs).recorder
    np.testing.assert_allclose(recorder.lrs, whole.lrs, rtol=1e-6)
    np.testing.assert_allclose(recorder.hps['mom'], whole.hps['mom'], rtol=1e-6)
    rows = [[values[:-1] for values in r.values] for r in (recorder, whole)]
    np.testing.assert_allclose(*rows, rtol=1e-3)

def test_a_budget_that_ends_within_an_epoch(dls, tmp_path):
    "The epoch is validated, its row is whole, and the weights are those that the row speaks of"
    learn = timed(dls, 10, CSVLogger(tmp_path/'log.csv'))
    lrs = learn.recorder.lrs
    assert len(lrs) == 10 and lrs[-1] < 1e-3 < max(lrs[:4]) <= 1e-2
    assert len(learn.recorder.values) == 3 == learn.n_epoch
    assert [len(r) for r in csv.reader((tmp_path/'log.csv').open())] == [6]*4
    assert learn.recorder.values[-1][2] == pytest.approx(
        evaluate(learn.model, dls.valid)['fwd'], rel=1e-4)

def test_a_budget_with_what_else_there_is(dls):
    assert timed(dls, 6, method='fit', lr=3e-3).recorder.lrs == [3e-3]*6
    learn = timed(dls, 100, EarlyStoppingCallback(patience=1), lr=.3)
    assert len(learn.recorder.losses) < 100

# trackers

class Fake(Callback):
    "Put figures in the place of a validation's, and mark each epoch's weights"
    order = 40
    def __init__(self, *losses): self.losses = losses
    def before_validate(self): self.model.head.bias.data.fill_(float(self.epoch))
    def after_validate(self):
        for metric in (self.recorder.loss, *self.metrics):
            metric.nats,metric.n = [self.losses[self.epoch]]*2, [1, 1]

@pytest.mark.parametrize('monitor', ['valid_loss', 'valid_perplexity_fwd'])
def test_trackers_keep_the_best(dls, monitor, tmp_path):
    learn = learner(dls, Fake(5, 4, 4.5, 3.9, 4.1, 4.2, 1), path=tmp_path)
    learn.recorder.train_metrics = monitor.startswith('valid_p')
    how = dict(monitor=monitor, comp=np.less)
    trackers = SaveModelCallback(**how), EarlyStoppingCallback(**how, patience=2)
    fitted(learn, 7, 0., cbs=trackers)
    assert len(learn.recorder.values) == 6 and (learn.model.head.bias == 3).all()

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

# half the bits

@pytest.fixture(scope='module')
def task_learners(corpus):
    "Learners of tasks, with the metrics that they have by default"
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    texts = [' '.join(sent.split()[:4]) for sent in corpus.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text) % 2 for text in texts]))
    how = dict(bs=16, device='cpu')
    return dict(
        labels=elmo_classifier_learner(ClassifyDataLoaders.from_df(rows, **how), backbone),
        tags=elmo_tagger_learner(TagDataLoaders.from_sents(corpus.gold['train'], **how), backbone))

@pytest.mark.parametrize('name', ['labels', 'tags'])
def test_tasks_in_bfloat16(task_learners, name):
    found = [quietly(change(), 'get_preds')[0] for change in (
        task_learners[name].to_bf16, task_learners[name].to_fp32)]
    assert close(*found, eps=.1) and not close(*found, eps=0) and found[0].dtype == torch.float32
