"What only looks at a training, `lr_find` before all, changes nothing in it: the same bits"
import random
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch
from datasets import Dataset
from fastai.basics import Adam, Callback, set_seed
from fastai.callback.all import GradientAccumulation, MCDropoutCallback

from elmo_fastai.all import (
    ClassifyDataLoaders, Elmo, TagDataLoaders, cbow_learner, elmo_classifier_learner,
    elmo_tagger_learner)
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.data.batches import as_before
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.train.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.train.learner import CarryState, EarlyStop, bilm_learner
from made import quietly
from steps import At, press

pytestmark = pytest.mark.usefixtures('held_throughout')

CFG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8, dropout=.3)
ADAPTIVE = dict(softmax='adaptive', cutoffs=(20, 60), div_value=2.)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=48, n_valid=16, n_test=1, n_unseen=1)

def bilm(corpus, *cbs, kind='sentences', config=CFG, shuffle=None, **kwargs):
    size = dict(bs=4, seq_len=8) if kind == 'stream' else dict(bs=8)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', shuffle=shuffle, **size)
    return bilm_learner(dls, config, bf16=False, cbs=list(cbs), **kwargs)

def read_in_pieces(corpus, **kwargs):
    rows = Dataset.from_dict(dict(text=corpus.train))
    dls = stream_loaders(rows, n_valid=8, buffer=11, bs=4, device='cpu', **kwargs)
    return bilm_learner(dls, CFG, bf16=False)

def of_a_task(corpus, name):
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    if name == 'tuned': backbone.lm.requires_grad_(True)
    how = dict(bs=8, device='cpu')
    gold = corpus.gold['train']
    if name == 'tags': return elmo_tagger_learner(TagDataLoaders.from_sents(gold, **how), backbone)
    df = pd.DataFrame([(sent.tokens, len(sent.tokens) % 2) for sent in gold],
                      columns=['text', 'label'])
    return elmo_classifier_learner(ClassifyDataLoaders.from_df(df, **how), backbone)

LEARNERS = dict(
    sentences=bilm, budget=lambda c: bilm(c, opt=Adam, config=BiLMConfig(**vars(CFG) | ADAPTIVE)),
    adagrad=lambda c: bilm(c, opt='adagrad', kind='stream', shuffle=True),
    stream=lambda c: bilm(c, CarryState(), EarlyStop(), kind='stream'),
    pieces=read_in_pieces, steps=lambda c: read_in_pieces(c, n_batches=5, shuffle=False),
    cbow=lambda c: cbow_learner(
        ElmoDataLoaders.from_corpus(c, kind='cbow', bs=32, device='cpu'), dim=8),
    tags=lambda c: of_a_task(c, 'tags'), classes=lambda c: of_a_task(c, 'classes'),
    tuned=lambda c: of_a_task(c, 'tuned'))

def build(corpus, name, path, seed=3):
    set_seed(seed)
    learn = LEARNERS[name](corpus)
    learn.path = path
    return learn

def trained(learn):
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    weights = {name: weight.clone() for name,weight in learn.model.state_dict().items()}
    return weights, [float(loss) for loss in learn.recorder.losses]

def equal(found, wanted):
    assert found[1] == wanted[1]
    assert all(weight.equal(wanted[0][name]) for name,weight in found[0].items())

def finds(learn, **kwargs): return quietly(learn, 'lr_find', show_plot=False, **{'num_it': 9, **kwargs})

LOOKS = dict(
    lr_find=finds, twice=lambda learn: (finds(learn), finds(learn)),
    diverges=lambda learn: finds(learn, start_lr=1., end_lr=1e6, num_it=30, suggest_funcs=None),
    validate=lambda learn: quietly(learn, 'validate'),
    validate_train=lambda learn: quietly(learn, 'validate', 0),
    validate_loader=lambda learn: quietly(learn, 'validate', dl=learn.dls.train),
    get_preds=lambda learn: quietly(learn, 'get_preds', 0),
    get_preds_of=lambda learn: quietly(learn, 'get_preds', dl=learn.dls.train),
    show_results=lambda learn: quietly(learn, 'show_results', 0, show=False),
    summary=lambda learn: quietly(learn, 'summary'),
    one_batch=lambda learn: (learn.dls.one_batch(), learn.dls.valid.one_batch()),
    show_batch=lambda learn: learn.dls.show_batch(show=False))

@pytest.fixture(scope='module')
def alone(corpus, tmp_path_factory):
    "What a learner becomes that nobody looks at"
    made = {}
    def of(name):
        if name not in made:
            made[name] = trained(build(corpus, name, tmp_path_factory.mktemp('alone')))
        return made[name]
    return of

@pytest.mark.parametrize('look', LOOKS)
def test_a_look_leaves_the_training_as_it_is(corpus, alone, tmp_path, look):
    learn = build(corpus, 'sentences', tmp_path)
    LOOKS[look](learn)
    equal(trained(learn), alone('sentences'))
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('name', LEARNERS)
def test_all_looks_at_any_learner(corpus, alone, tmp_path, name):
    learn = build(corpus, name, tmp_path)
    for look in LOOKS.values(): look(learn)
    equal(trained(learn), alone(name))
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('name', ['sentences', 'stream', 'pieces', 'steps'])
def test_looks_between_two_trainings(corpus, alone, tmp_path, name):
    "The optimiser knows its gradients, and a text is read on where it was left"
    learn = build(corpus, name, tmp_path)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    for look in LOOKS.values(): look(learn)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    weights = alone(name)[0]
    assert all(weight.equal(weights[key]) for key,weight in learn.model.state_dict().items())

class LooksEachStep(Callback):
    "Looks in the middle of an epoch"
    order = 80
    def after_batch(self):
        if self.training and not hasattr(self.learn, 'lr_finder'):
            for dl in self.dls.loaders: dl.one_batch()
            self.dls.show_batch(show=False)

@pytest.mark.parametrize('name', ['sentences', 'adagrad', 'pieces', 'cbow', 'tags'])
def test_a_look_within_an_epoch(corpus, alone, tmp_path, name):
    learn = build(corpus, name, tmp_path)
    learn.add_cb(LooksEachStep())
    equal(trained(learn), alone(name))

@pytest.mark.parametrize('name', ['tags', 'classes'])
def test_reports_and_answers_are_looks(corpus, alone, tmp_path, name):
    learn = build(corpus, name, tmp_path)
    for part in ('valid', learn.dls.train): learn.report(part)
    learn.predict(corpus.train[0])
    equal(trained(learn), alone(name))

@pytest.mark.parametrize('name', ['tags', 'classes'])
def test_answers_of_a_shuffled_loader_stand_in_the_order_of_the_text(corpus, tmp_path, name):
    learn = build(corpus, name, tmp_path)
    shuffled, plain = (quietly(learn, 'get_preds', dl=dl)[0] for dl in (
        learn.dls.train, learn.dls.train.new(shuffle=False)))
    lengths = learn.dls.train.res if name == 'tags' else [2]*len(plain)       # without padding
    for one,other,n in zip(shuffled, plain, lengths): assert torch.allclose(one[:n], other[:n])

def test_dropout_on_purpose_is_drawn_anew(corpus, tmp_path):
    learn = build(corpus, 'sentences', tmp_path)
    first, again = (quietly(learn, 'get_preds', cbs=MCDropoutCallback())[0][0] for _ in range(2))
    assert not torch.equal(first, again)

def test_exact_perplexity_is_a_look(corpus, alone, tmp_path):
    learn = build(corpus, 'sentences', tmp_path)
    for dl in learn.dls.loaders: evaluate(learn.model, dl)
    equal(trained(learn), alone('sentences'))

def test_equal_suggestions(corpus, tmp_path):
    learn = build(corpus, 'sentences', tmp_path)
    assert finds(learn, num_it=40) == finds(learn, num_it=40)
    assert learn.opt is None and learn.stopped is None

@pytest.mark.parametrize('end', [
    At(4, lambda cb: 1/0, 'before_step'), At(4, press(), 'before_step'),
    At(4, press(times=2), 'before_step')], ids=['error', 'Ctrl-C', 'Ctrl-C twice'])
def test_a_finder_that_breaks_off(corpus, alone, tmp_path, capsys, end):
    learn = build(corpus, 'sentences', tmp_path)
    with learn.added_cbs(end), pytest.raises((ZeroDivisionError, KeyboardInterrupt)): finds(learn)
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().out and learn.stopped is None
    equal(trained(learn), alone('sentences'))

def test_accumulated_gradients_are_put_back(corpus, tmp_path):
    learn = build(corpus, 'sentences', tmp_path)
    weight = next(learn.model.parameters())
    weight.grad = torch.ones_like(weight)
    with learn.added_cbs(GradientAccumulation(10_000)): finds(learn)
    assert (weight.grad == 1).all()
    assert all(other.grad is None for other in list(learn.model.parameters())[1:])

def test_the_batch_that_is_shown_comes_next(corpus):
    for kind in ('sentences', 'stream', 'cbow'):
        dl = ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=4, device='cpu', shuffle=True).train
        shown = [dl.one_batch() for _ in range(2)]
        first = next(iter(dl))
        for batch in shown: assert all(map(torch.equal, batch, first))
        assert not torch.equal(dl.one_batch()[0], first[0]), 'another epoch, another batch'

def test_random_numbers_are_put_back(corpus):
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    before = state()
    with pytest.raises(KeyError), as_before(None, [1], SimpleNamespace()):
        random.random(), np.random.rand(), torch.rand(1)
        raise KeyError
    assert state() == before

def test_a_summary_is_no_fit(corpus, tmp_path):
    "Neither checkpoints nor a resumption take it for one"
    run = tmp_path/'run'
    learn = build(corpus, 'sentences', tmp_path)
    learn.add_cb(Checkpoints(run, minutes=0))
    quietly(learn, 'summary')
    assert not run.exists()
    with learn.added_cbs(At(3, lambda cb: 1/0, 'after_batch')), pytest.raises(ZeroDivisionError):
        quietly(learn, 'fit', 1, 1e-2)
    names = checkpoints_in(run)
    again = build(corpus, 'sentences', tmp_path, seed=4)
    resume(again, run)
    for look in ('summary', 'lr_find', 'one_batch'): LOOKS[look](again)
    quietly(again, 'fit', 1, 1e-2)
    whole = build(corpus, 'sentences', tmp_path)
    quietly(whole, 'fit', 1, 1e-2)
    assert checkpoints_in(run) == names
    assert all(weight.equal(whole.model.state_dict()[name])
               for name,weight in again.model.state_dict().items())
