"What only looks at a training, `lr_find` before all, changes nothing in it: the same bits"
import pandas as pd, pytest, torch
from datasets import Dataset
from fastai.basics import Adam, Callback, noop, set_seed
from fastai.callback.all import MCDropoutCallback, SaveModelCallback

from elmo_fastai.all import *
from elmo_fastai.learner import evaluate
from elmo_fastai.practice.checkpoint import checkpoints_in
from made import quietly
from steps import At, press


CFG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8, dropout=.3)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=48, n_valid=16, n_test=1, n_unseen=1)

def bilm(corpus, *cbs, kind='sentences', shuffle=None, **kwargs):
    size = dict(bs=4, seq_len=8) if kind == 'stream' else dict(bs=8)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', shuffle=shuffle, **size)
    return bilm_learner(dls, CFG, bf16=False, cbs=list(cbs), **kwargs)

def in_pieces(corpus, **kwargs):
    rows = Dataset.from_dict(dict(text=corpus.train))
    dls = stream_loaders(rows, n_valid=8, buffer=11, bs=4, device='cpu', **kwargs)
    return bilm_learner(dls, CFG, bf16=False)

def of_a_task(corpus, name):
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    if name == 'tuned': backbone.lm.requires_grad_(True)
    how, gold = dict(bs=8, device='cpu'), corpus.gold['train']
    if name == 'tags': return elmo_tagger_learner(TagDataLoaders.from_sents(gold, **how), backbone)
    rows = dict(text=[sent.tokens for sent in gold], label=[len(sent.tokens) % 2 for sent in gold])
    dls = ClassifyDataLoaders.from_df(pd.DataFrame(rows), **how)
    return elmo_classifier_learner(dls, backbone)

LEARNERS = dict(
    sentences=bilm, adam=lambda c: bilm(c, opt=Adam),
    adagrad=lambda c: bilm(c, opt='adagrad', kind='stream', shuffle=True),
    carried=lambda c: bilm(c, CarryState(), SaveModelCallback(), kind='stream'),
    pieces=in_pieces, steps=lambda c: in_pieces(c, n_batches=5, shuffle=False),
    tags=lambda c: of_a_task(c, 'tags'), classes=lambda c: of_a_task(c, 'classes'),
    tuned=lambda c: of_a_task(c, 'tuned'))

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
    weights = {name: weight.clone() for name,weight in learn.model.state_dict().items()}
    return weights, losses

def equal(found, wanted):
    assert found[1] == wanted[1]
    assert all(weight.equal(wanted[0][name]) for name,weight in found[0].items())

def finds(learn, num_it=9, **how):
    return quietly(learn, 'lr_find', num_it=num_it, show_plot=False, **how)

def look(learn):
    "All looks there are, at a learner that is not within a training"
    finds(learn)
    finds(learn, start_lr=1., end_lr=1e6, num_it=30, suggest_funcs=None)           # diverges
    for how in (dict(), dict(ds_idx=0), dict(dl=learn.dls.train)):
        for method in ('validate', 'get_preds'): quietly(learn, method, **how)
    quietly(learn, 'show_results', 0, show=False)
    quietly(learn, 'summary')
    batches(learn)
    if hasattr(learn, 'report'):
        for part in ('valid', learn.dls.train): learn.report(part)
        learn.predict('the bank')
    elif isinstance(learn.model, BiLM): evaluate(learn.model, learn.dls.valid)

def batches(learn):
    for dl in learn.dls.loaders: dl.one_batch()
    learn.dls.show_batch(show=False)

@pytest.fixture(scope='module')
def alone(corpus, tmp_path_factory):
    return trained(build(corpus, 'sentences', tmp_path_factory.mktemp('alone')))

@pytest.mark.parametrize('name', LEARNERS)
def test_looks_change_nothing(corpus, tmp_path, name):
    "Before a training, between two, and within an epoch; and they leave no file"
    alone = trained(build(corpus, name, tmp_path/'alone'))
    learn = build(corpus, name, tmp_path/'looked')
    look(learn)
    assert not (tmp_path/'looked').exists()
    learn.add_cb(Callback(after_step=lambda cb: batches(learn)))
    equal(trained(learn, look), alone)

@pytest.mark.parametrize('do', [lambda cb: 1/0, press()], ids=['error', 'Ctrl-C'])
@pytest.mark.parametrize('method', ['lr_find', 'validate', 'get_preds'])
def test_a_look_that_breaks_off(corpus, alone, tmp_path, capsys, do, method):
    learn = build(corpus, 'sentences', tmp_path)
    n = len(learn.cbs)
    breaks = Callback(after_pred=lambda cb: cb.iter == 1 and do(cb))
    with learn.added_cbs(breaks), pytest.raises((ZeroDivisionError, KeyboardInterrupt)):
        quietly(learn, method)
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().out and len(learn.cbs) == n
    equal(trained(learn), alone)

def test_dropout_on_purpose_is_drawn_anew(corpus, tmp_path):
    learn = build(corpus, 'sentences', tmp_path)
    first, again = (quietly(learn, 'get_preds', cbs=MCDropoutCallback())[0][0] for _ in range(2))
    assert not torch.equal(first, again)

def test_answers_stand_in_the_order_of_the_text(corpus, tmp_path):
    learn = build(corpus, 'classes', tmp_path)
    dls = learn.dls.train, learn.dls.train.new(shuffle=False)
    assert torch.allclose(*(quietly(learn, 'get_preds', dl=dl)[0] for dl in dls))

def test_what_lr_find_gives_back(corpus, tmp_path):
    "The same suggestion again"
    learn = build(corpus, 'sentences', tmp_path)
    assert finds(learn, num_it=40) == finds(learn, num_it=40)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_the_batch_that_is_shown_comes_next(corpus, kind):
    dl = ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=4, device='cpu', shuffle=True).train
    shown, first = dl.one_batch()[0], next(iter(dl))[0]
    assert shown.equal(first) and not dl.one_batch()[0].equal(first)

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
