"How a training ends: what is said, what is kept, and which way trackers look"
import math, signal, warnings

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, set_seed
from fastai.callback.all import EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback

from elmo_fastai.all import (
    ClassifyDataLoaders, Elmo, ElmoDataLoaders, TagDataLoaders, cbow_learner,
    elmo_classifier_learner, elmo_tagger_learner, toy_corpus)
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.train.checkpoint import Checkpoints, checkpoints_in, find_checkpoint, resume
from elmo_fastai.train.distributed import several_processes
from elmo_fastai.train.learner import EarlyStop, Reason, TimeBudget, bilm_learner
from steps import At

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def learner(corpus, *cbs, seed=1, **kwargs):
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')
    return bilm_learner(dls, CONFIG, **{'bf16': False, 'cbs': list(cbs), **kwargs})

def quietly(learn, method='fit', *args, **kwargs):
    with learn.no_bar(), learn.no_logging(): return getattr(learn, method)(*args, **kwargs)

def weights(learn): return {name: w.clone() for name,w in learn.model.state_dict().items()}

def press(number): return lambda cb: signal.raise_signal(number)

# It says how it ended

@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_says_so(corpus, capsys, number):
    learn = learner(corpus, At(2, press(number), 'before_batch'))
    quietly(learn, 'fit', 3, 1e-2)
    out = capsys.readouterr().out
    assert signal.Signals(number).name in out and 'weights of step 2' in out
    assert learn.stopped.reason is Reason.SIGNAL and learn.stopped.kept == 'the weights of step 2'

def test_a_diverged_training_says_so(corpus, capsys):
    def spoil(cb): next(cb.model.head.parameters()).data.fill_(math.nan)
    learn = learner(corpus, At(4, spoil))
    quietly(learn, 'fit', 2, 1e-2)
    assert 'lower learning rate' in capsys.readouterr().out
    assert learn.stopped.reason is Reason.DIVERGED and learn.stopped.kept in learn.stopped.message

def test_other_ends_are_said_too(corpus, capsys):
    learn = learner(corpus, EarlyStop(patience=1))
    quietly(learn, 'fit', 9, 0.)
    assert learn.stopped.reason is Reason.PATIENCE and 'has not fallen' in capsys.readouterr().out
    learn = learner(corpus)
    quietly(learn, 'fit', TimeBudget.epochs, 1e-3, cbs=TimeBudget(.2))
    assert learn.stopped.reason is Reason.TIME and not learn.stopped.is_early
    assert 'are over' in capsys.readouterr().out
    learn = learner(corpus)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        quietly(learn, 'fit', 1, 1e-3)
    assert learn.stopped is None and not capsys.readouterr().out

class PressAt(Callback):
    "Ctrl-C at an event of the last epoch, when all batches are done"
    def __init__(self, event, order): self.order = order; setattr(self, event, self.press)
    def __call__(self, event):
        if event in vars(self) and getattr(self, 'epoch', 0) == 1: self.press()
    def press(self):
        if not self.learn.stopped: signal.raise_signal(signal.SIGINT)

@pytest.mark.parametrize('event', ['after_validate', 'after_epoch', 'after_fit'])
def test_a_signal_after_the_last_batch_is_not_lost(corpus, event):
    before = signal.getsignal(signal.SIGINT)
    learn = learner(corpus, PressAt(event, 70))
    quietly(learn, 'fit', 2, 1e-2)
    assert learn.stopped.reason is Reason.SIGNAL and len(learn.recorder.losses) == 8
    assert signal.getsignal(signal.SIGINT) == before

# What is kept

@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('step', [3, 5, 7, 20, 60])
def test_a_short_training_goes_back_to_learned_weights(corpus, step, seed):
    "Also where a later batch happens to be a harder one"
    def spoil(cb): next(cb.model.head.parameters()).data.fill_(math.nan)
    learn = learner(corpus, At(step, spoil), seed=seed)
    quietly(learn, 'fit', 20, 1e-3)
    good = int(learn.stopped.kept.split()[-1])
    assert step/4 < good < step

def test_a_look_changes_nothing(corpus, monkeypatch):
    "`validate`, `get_preds` and `lr_find` are no fits"
    learn = learner(corpus, EarlyStop(1))
    quietly(learn, 'fit', 9, 0.)
    def seen():
        return (learn.stopped, learn.throughput.tokens, learn.throughput.seconds,
                learn.early_stop.best_epoch, learn.early_stop.best, learn.keep_good.good_step)
    import elmo_fastai.train.learner as module
    monkeypatch.setattr(module, 'weights', lambda model: pytest.fail('the weights are copied'))
    before = seen()
    quietly(learn, 'validate')
    quietly(learn, 'get_preds')
    assert seen() == before
    class Look(Callback):
        "Within a fit, too"
        order = 99
        def after_epoch(self):
            if not self.learn.lock.locked(): self.learn.validate()
    monkeypatch.undo()
    handlers = []
    class Handlers(Callback):
        order = 100
        def before_batch(self):
            if self.training: handlers.append(signal.getsignal(signal.SIGINT))
    other = learner(corpus, Look(), Handlers())
    quietly(other, 'fit', 2, 1e-2)
    assert len(set(map(str, handlers))) == 1

def test_autocast_is_left_after_an_error_in_a_validation(corpus):
    class Failing(Callback):
        def after_pred(self): raise RuntimeError('in the middle')
    learn = learner(corpus, bf16=True)
    for method in ('validate', 'get_preds'):
        with pytest.raises(RuntimeError, match='in the middle'):
            quietly(learn, method, cbs=Failing())
        assert not torch.is_autocast_enabled('cpu')

# Several fits, one folder

def test_a_learner_with_checkpoints_is_fitted_again(corpus, tmp_path):
    learn = learner(corpus, Checkpoints(tmp_path/'run', minutes=0))
    quietly(learn, 'fit', 1, 1e-3)
    quietly(learn, 'fit_one_cycle', 2, 1e-3)
    quietly(learn, 'fine_tune', 1)
    assert find_checkpoint(tmp_path/'run').position['fit'] == 3

class Break(Callback):
    order = 99
    def __init__(self, n): self.n, self.seen = n, 0
    def after_batch(self):
        self.seen += self.training
        if self.training and self.seen == self.n: raise KeyboardInterrupt

@pytest.mark.parametrize('n', [2, 4, 7, 11])
@pytest.mark.parametrize('method,args', [('fine_tune', (2, 1e-2)), ('twice', ())])
def test_several_fits_go_on_exactly(corpus, tmp_path, n, method, args):
    """Interrupted in the first or in a later fit; called as before, the fits that were done are
    left out"""

    def fit(learn):
        if method != 'twice': return quietly(learn, method, *args)
        for _ in range(2): quietly(learn, 'fit_one_cycle', 2, 1e-2)
    whole = learner(corpus)
    fit(whole)
    first = learner(corpus, Checkpoints(tmp_path/'run', minutes=0), Break(n))
    with pytest.raises(KeyboardInterrupt): fit(first)
    again = learner(corpus, Checkpoints(tmp_path/'run', minutes=0), seed=5)
    resume(again, tmp_path/'run')
    fit(again)
    was = weights(whole)
    assert all(torch.equal(w, was[name]) for name,w in weights(again).items())

@pytest.mark.parametrize('name', ['20241125-run', '20241125-start', '123456-epoch1-end', 'run'])
def test_names_of_run_folders(corpus, tmp_path, name):
    learn = learner(corpus, Checkpoints(tmp_path/name, minutes=0), Break(2))
    with pytest.raises(KeyboardInterrupt): quietly(learn, 'fit', 1, 1e-2)
    assert checkpoints_in(tmp_path) == [] or name != '20241125-run'
    again = learner(corpus, seed=3)
    assert resume(again, tmp_path/name).position['batches'] == 2
    quietly(again, 'fit', 1, 1e-2)
    assert len(again.recorder.losses) == 4

# Trackers

MONITORS = ['valid_loss', 'perplexity_fwd', 'perplexity_bwd']

@pytest.fixture(scope='module')
def backbone(): return Elmo(BiLM(CONFIG, 0), tokenizer='space')

def task_learners(corpus, backbone):
    """Learners of tasks, each with the metrics that it has by default: those that should fall, the
    others"""
    cbow = cbow_learner(
        ElmoDataLoaders.from_corpus(corpus, kind='cbow', bs=64, device='cpu'), dim=8
    )
    texts = [' '.join(sent.split()[:4]) for sent in corpus.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text)/9 for text in texts]))
    numbers = elmo_classifier_learner(
        ClassifyDataLoaders.from_df(rows, bs=16, device='cpu'), backbone
    )
    labels = elmo_classifier_learner(
        ClassifyDataLoaders.from_corpus(corpus, bs=16, device='cpu'), backbone
    )
    tags = elmo_tagger_learner(TagDataLoaders.from_corpus(corpus, bs=16, device='cpu'), backbone)
    return dict(cbow=cbow, numbers=numbers, labels=labels, tags=tags)

def test_trackers_of_the_tasks(corpus, backbone):
    for name,learn in task_learners(corpus, backbone).items():
        for metric in ['valid_loss', *learn.metrics.attrgot('name')]:
            tracker = SaveModelCallback(monitor=metric)
            learn.add_cb(tracker)
            falls = any(part in metric for part in ('loss', 'perplexity', 'rmse'))
            assert (tracker.comp is np.less) == falls, (name, metric)

def test_several_processes_train_language_models(corpus, backbone, monkeypatch):
    learn = task_learners(corpus, backbone)['tags']
    with several_processes(learn): pass                     # alone it does nothing
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='train a biLM, and this is a Tagger'):
        with several_processes(learn): pass


@pytest.mark.parametrize('monitor', MONITORS)
@pytest.mark.parametrize('kind', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
def test_trackers_of_a_language_model_look_downwards(corpus, kind, monitor):
    tracker = kind(monitor=monitor, min_delta=.01)
    learn = learner(corpus, tracker)
    assert tracker.comp is np.less and tracker.min_delta == -.01
    other = kind(monitor=monitor)
    with learn.added_cbs(other): assert other.comp is np.less

def test_the_best_model_is_saved(corpus, tmp_path):
    learn = learner(corpus, path=tmp_path)
    quietly(learn, 'fit', 3, 1e-2, cbs=SaveModelCallback(monitor='perplexity_fwd'))
    column = [row[2] for row in learn.recorder.values]
    assert max(column) > 1.01*min(column)
    assert quietly(learn, 'validate')[1] == pytest.approx(min(column), rel=1e-5)

# What fastai's own tools get from a language model

def test_a_summary_of_a_language_model(corpus):
    text = quietly(learner(corpus), 'summary')
    assert 'BiLM' in text and 'Total params' in text and 'Optimizer used' in text

def test_losses_of_a_language_model_are_its_predictions(corpus):
    from fastai.interpret import ClassificationInterpretation, Interpretation
    learn = learner(corpus)
    with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
        quietly(learn, 'get_preds', with_loss=True)
    for kind in (Interpretation, ClassificationInterpretation):
        with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
            with learn.no_bar(), learn.no_logging(): kind.from_learner(learn)

def test_a_language_model_has_its_own_loss(corpus):
    with pytest.raises(ValueError, match='bilm_learner takes no loss_func'):
        learner(corpus, loss_func=torch.nn.CrossEntropyLoss())
