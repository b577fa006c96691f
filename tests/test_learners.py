"""Trainings that end early or are only looked at, files of word vectors; exports are in
test_pickle, encoders in test_tagger"""
import csv, math
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, DataLoaders, ValueMetric, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback)

from elmo_fastai.cbow import WordVectors
from elmo_fastai.errors import ModelFileError
from elmo_fastai.all import *
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.practice.learners import Muon, TimeBudget, muon, orthogonal
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

# files of vectors

def vectors(n=50, dim=7):
    words = [f'w{i}' for i in range(n - 3)] + ['naïve', '日本語', 'New_York']
    return WordVectors(words, np.random.default_rng(0).normal(size=(n, dim)))

def test_round_trip_to_the_last_bit(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    wv, name = vectors(), 'deep/er/v.txt'
    wv.vectors[:3] *= [[1e-30], [1e30], [0]]
    path = wv.save(Path('~')/name)
    again = WordVectors.load(f'~/{name}')
    assert path == tmp_path/name and again.words == wv.words
    assert np.array_equal(again.vectors, wv.vectors) and again.vectors.dtype == np.float32
    assert [file for file in tmp_path.rglob('*') if file.is_file()] == [path]
    again.vectors[3] = 1                                            # it can be worked with
    assert len(WordVectors.load(path, max_words=5)) == 5
    before = path.read_bytes()
    for words,says in ((['New York'], "'New York'"), (['\ud800'], 'surrogate')):
        with pytest.raises(ValueError, match=says): WordVectors(words, [[1.]]).save(path)
    assert path.read_bytes() == before and [*path.parent.iterdir()] == [path]

@pytest.mark.parametrize('text,words,found', [
    ('the .1 .2 .3\n. . . 1 2 3\nnaïve 4 5 6\n', ['the', '. . .', 'naïve'], [.1, .2, .3]),
    ('\ufeff2 2\r\na 1 2 \r\nb 3e-1 -4 \r\n', ['a', 'b'], [1, 2]),          # Windows, word2vec.c
    ('1000000000 2\na 1 2\n', ['a'], [1, 2])])                              # a promise
def test_files_of_others(tmp_path, text, words, found):
    (tmp_path/'v.txt').write_bytes(text.encode())
    wv = WordVectors.load(tmp_path/'v.txt', max_words=len(words))
    assert wv.words == words and np.allclose(wv.vectors[0], found)
    (tmp_path/'v.txt').write_text('3 2\na 1 2\nb 1 2\na 3 4\n')
    with pytest.warns(UserWarning, match='come again'): v = WordVectors.load(tmp_path/'v.txt')
    assert v.words == ['a', 'b'] and v['a'].tolist() == [1, 2], 'the first vector counts'

NONE = 'Expected a vector for each word'

@pytest.mark.parametrize('data,says', [
    (b'', NONE), (b'hello\n', NONE), (b'3 2\na 1 2\nb 1 2\n', 'promises 3'),
    (b'2 3\na 1 2 3\nb 1 2 3\nc 1 2 3\n', 'promises 2'), (b'a 1 2\nb 1\n', 'line 2'),
    (b'2 2\na 1 2\nb 1 x\n', 'line 3'), (b'a 1 nan\n', 'not finite'),
    (b'a 1 1e99\n', 'not finite'), (b'the\t1 2\na\t3 4\n', 'line 1'),
    (b'a 1 2\nna\xefve 1 2\n', r'line 2.*xefve'), (bytes(range(256)), 'line 1'),
    (b'a 1 2\n\nb 1 2\n', 'line 2'), (b'9 999999999\na 1 2\n', 'line 2'), (None, 'read')])
def test_malformed_text(tmp_path, data, says):
    if data is not None: (tmp_path/'v.txt').write_bytes(data)
    with pytest.raises(ModelFileError, match=says) as e: WordVectors.load(tmp_path/'v.txt')
    assert 'v.txt' in str(e.value) or says == NONE

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
    with pytest.raises(ValueError, match='losses already'):
        quietly(learn, 'get_preds', with_loss=True)

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
    for seconds in (0, math.nan, math.inf, '5m'):
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

# Muon

NANO = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=16)

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

def test_muon_moves_the_matrices_between_letters_and_output_layer():
    corpus = toy_corpus(n_train=40, n_valid=8, n_test=1, n_unseen=1)
    learn = bilm_learner(ElmoDataLoaders.from_corpus(corpus, bs=4, device='cpu'), NANO, bf16=False)
    learn.opt_func = muon(learn.model)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    names = {p: name for name,p in learn.model.named_parameters()}
    moved = {names[p] for p,state in learn.opt.opt.state.items() if 'exp_avg_sq' not in state}
    assert moved == {name for name,p in learn.model.named_parameters() if p.ndim == 2}.difference(
        ['chars.embed.weight', 'head.weight'])
    rest = {names[p] for p,state in learn.opt.opt.state.items() if 'exp_avg_sq' in state}
    assert rest == {name for name,p in learn.model.named_parameters() if p.requires_grad} - moved
