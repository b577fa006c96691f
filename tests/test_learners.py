"""Trainings that end early, trackers, weights that are saved whole; and looks: what only looks at a
training, `lr_find` before all, changes no bit of it"""
import csv
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from datasets import Dataset
from fastai.basics import Callback, DataLoaders, ValueMetric, noop, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback)

from elmo_fastai.all import *
from elmo_fastai.learner import FitLearner, NatsMetric, evaluate
from elmo_fastai.practice.checkpoint import checkpoints_in
from elmo_fastai.practice.learners import Muon, TimeBudget, muon, orthogonal
from made import close, fitted, quietly
from steps import At, press

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8)), proj_dim=8, hidden_dim=8, dropout=.3)

def loaders(corpus, **kwargs):
    return ElmoDataLoaders.from_corpus(corpus, **dict(bs=16, seed=0, device='cpu') | kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)                       # 4 batches an epoch

def learner(dls, *cbs, **kwargs):
    set_seed(0)
    return bilm_learner(dls, CFG, bf16=False, cbs=list(cbs), **kwargs)

def test_weights_are_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    learn = FitLearner(DataLoaders([], []), torch.nn.Linear(2, 3), torch.nn.MSELoss(),
                       path=tmp_path)
    learn.create_opt()
    file = learn.save('best', with_opt=False)
    was = file.read_bytes()
    def fail(*args, **kwargs):
        args[1].write(b'half') if hasattr(args[1], 'write') else Path(args[1]).write_bytes(b'half')
        raise OSError('disk full')
    with monkeypatch.context() as m, pytest.raises(OSError):
        m.setattr(torch, 'save', fail)
        learn.save('best')
    assert file.read_bytes() == was and [*file.parent.iterdir()] == [file]

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
    assert timed(dls, 6, method='fit', lr=3e-3).recorder.lrs == [3e-3]*6

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
        with pytest.raises(ValueError, match=f'{monitor} should .*comp=np.less'):
            quietly(learn, method, 1, cbs=kind(monitor))

# looks

def bilm(corpus, *cbs, kind='sentences', **kwargs):
    size = dict(bs=4, seq_len=8) if kind == 'stream' else dict(bs=8)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', **size)
    return bilm_learner(dls, CFG, bf16=False, cbs=list(cbs), **kwargs)

def in_pieces(corpus):
    rows = Dataset.from_dict(dict(text=corpus.train))
    dls = stream_loaders(rows, n_valid=8, buffer=11, bs=4, device='cpu', n_batches=5)
    return bilm_learner(dls, CFG, bf16=False)

def of_a_task(corpus, tags, tuned=False):
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    if tuned: backbone.lm.requires_grad_(True)
    how, gold = dict(bs=16, device='cpu'), corpus.gold['train']
    if tags: return elmo_tagger_learner(TagDataLoaders.from_sents(gold, **how), backbone)
    rows = dict(text=[s.tokens for s in gold], label=[len(s.tokens) % 2 for s in gold])
    dls = ClassifyDataLoaders.from_df(pd.DataFrame(rows), **how)
    return elmo_classifier_learner(dls, backbone)

LEARNERS = dict(
    sentences=bilm, carried=lambda c: bilm(c, CarryState(), SaveModelCallback(), kind='stream'),
    pieces=in_pieces, tags=lambda c: of_a_task(c, True), tuned=lambda c: of_a_task(c, False, True))

def build(corpus, name, path, seed=3):
    set_seed(seed)
    learn = LEARNERS[name](corpus)
    learn.path = path
    return learn

def trained(learn, look=noop):
    losses = []
    for _ in range(2):
        look(learn)
        quietly(learn, 'fit_one_cycle', 1, 1e-2)
        losses += map(float, learn.recorder.losses)
    return {name: weight.clone() for name,weight in learn.model.state_dict().items()}, losses

def equal(found, wanted):
    assert found[1] == wanted[1]
    assert all(weight.equal(wanted[0][name]) for name,weight in found[0].items())

def look(learn):
    "All looks there are, at a learner that is not within a training"
    for how in (dict(num_it=12), dict(start_lr=1., end_lr=1e6, num_it=20, suggest_funcs=None)):
        quietly(learn, 'lr_find', show_plot=False, **how)                  # the second diverges
    for how in (dict(), dict(dl=learn.dls.train)):
        for method in ('validate', 'get_preds'): quietly(learn, method, **how)
    quietly(learn, 'show_results', 0, show=False)
    quietly(learn, 'summary')
    batches(learn)
    if hasattr(learn, 'report'):
        learn.report(learn.dls.train)
        learn.predict('the bank')

def batches(learn):
    for dl in learn.dls.loaders: dl.one_batch()
    learn.dls.show_batch(show=False)

@pytest.mark.parametrize('name', LEARNERS)
def test_looks_change_nothing(corpus, tmp_path, name):
    "Before a training, between two, and within an epoch; and they leave no file"
    alone = trained(build(corpus, name, tmp_path/'alone'))
    learn = build(corpus, name, tmp_path/'looked')
    look(learn)
    assert not (tmp_path/'looked').exists()
    learn.add_cb(At(2, lambda cb: batches(learn)))
    equal(trained(learn, look), alone)

@pytest.mark.parametrize('do', [lambda cb: 1/0, press], ids=['error', 'Ctrl-C'])
def test_a_look_that_breaks_off(corpus, tmp_path, capsys, do):
    alone, learn = trained(build(corpus, 'sentences', tmp_path)), build(corpus, 'sentences',
                                                                        tmp_path)
    n, breaks = len(learn.cbs), Callback(after_pred=lambda cb: cb.iter == 1 and do(cb))
    for method in ('lr_find', 'validate', 'get_preds'):
        with learn.added_cbs(breaks), pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
            quietly(learn, method)
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().out and len(learn.cbs) == n
    equal(trained(learn), alone)

def test_checkpoints_take_no_look_for_a_training(corpus, tmp_path):
    "Nor does a resumption"
    learn = build(corpus, 'sentences', tmp_path)
    learn.add_cb(Checkpoints(tmp_path/'run', minutes=0))
    look(learn)
    assert not (tmp_path/'run').exists()
    with learn.added_cbs(At(3, lambda cb: 1/0, 'after_batch')), pytest.raises(ZeroDivisionError):
        quietly(learn, 'fit', 1, 1e-2)
    names = checkpoints_in(tmp_path/'run')
    again = build(corpus, 'sentences', tmp_path, seed=4)
    resume(again, tmp_path/'run')
    look(again)
    quietly(again, 'fit', 1, 1e-2)
    quietly(whole := build(corpus, 'sentences', tmp_path), 'fit', 1, 1e-2)
    assert checkpoints_in(tmp_path/'run') == names
    assert all(map(torch.equal, whole.model.parameters(), again.model.parameters()))

# Muon

def test_a_matrix_is_made_orthogonal():
    for shape in (40, 24), (24, 40), (24, 24):
        G = torch.randn(shape)*torch.logspace(0, -1, shape[1])
        values = torch.linalg.svdvals(orthogonal(G))
        assert .6 < values.min() and values.max() < 1.3
        U, _, V = torch.linalg.svd(G, full_matrices=False)
        turned = U.T@orthogonal(G)@V.T                       # it keeps the singular vectors
        close(turned, turned.diag().diag(), 1e-3)

@pytest.mark.skipif(not hasattr(torch.optim, 'Muon'), reason="PyTorch has Muon from 2.9 on")
def test_muon_is_pytorchs():
    "PyTorch computes in bfloat16"
    one, other = (torch.nn.Parameter(torch.ones(24, 8)) for _ in range(2))
    kwargs = dict(lr=.1, weight_decay=.1)
    ours = Muon([one], [one], **kwargs)
    theirs = torch.optim.Muon([other], adjust_lr_fn='match_rms_adamw', **kwargs)
    for _ in range(3):
        one.grad = torch.randn(24, 8)
        other.grad = one.grad.clone()
        ours.step()
        theirs.step()
        close(one, other, .02)
    assert (one - 1).abs().max() > .1

def test_muon_moves_the_matrices_between_letters_and_output_layer(corpus):
    learn = bilm_learner(ElmoDataLoaders.from_corpus(corpus, bs=4, device='cpu'), CFG, bf16=False)
    learn.opt_func = muon(learn.model)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    names = {p: name for name,p in learn.model.named_parameters()}
    moved = {names[p] for p,state in learn.opt.opt.state.items() if 'exp_avg_sq' not in state}
    assert moved == {name for name,p in learn.model.named_parameters() if p.ndim == 2}.difference(
        ['chars.embed.weight', 'head.weight'])
    rest = {names[p] for p,state in learn.opt.opt.state.items() if 'exp_avg_sq' in state}
    assert rest == {name for name,p in learn.model.named_parameters() if p.requires_grad} - moved
