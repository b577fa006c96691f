"The learner: an ordinary `Learner`, its callbacks, and trainings that end early"
import csv, math, multiprocessing, os, re, signal, threading, time, warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, CancelFitException, Learner, load_learner, set_seed
from fastai.data.all import ColReader, DataBlock, RandomSplitter
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, MixedPrecision, ReduceLROnPlateau, SaveModelCallback)

from elmo_fastai.text.corpora import Corpus, ToyCorpus, tiny_shakespeare, toy_corpus
from elmo_fastai.text.tokens import ByteCharVocab, CharVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate, guesses
from elmo_fastai.data.batches import SentenceDataLoader, StreamDataLoader
from elmo_fastai.all import (
    ClassifyDataLoaders, Elmo, TagDataLoaders, cbow_learner, elmo_classifier_learner,
    elmo_tagger_learner)
from elmo_fastai.data.blog import BiLMBlock
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.train.checkpoint import Checkpoints, checkpoints_in, find_checkpoint, resume
from elmo_fastai.train.distributed import several_processes
import elmo_fastai.train.learner as training
from elmo_fastai.train.learner import (
    BiLMLearner, CarryState, EarlyStop, NatsMetric, Reason, TimeBudget, bf16_is_fast, bilm_learner,
    bilm_split, _trained_toy, toy_bilm)
from elmo_fastai.train.speak import generate
from steps import At, finite
from made import close, comes_back, quietly

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)

@pytest.fixture(scope='module')
def dls(corpus):
    return ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')


@pytest.fixture(scope='module')
def some(corpus):
    return Corpus('some', dict(train=corpus.train[:64], valid=corpus.valid[:24]), corpus.tokenizer)


@pytest.fixture(scope='module')
def few(some):
    return ElmoDataLoaders.from_corpus(some, kind='sentences', bs=16, seed=0, device='cpu')


def learner(dls, seed=0, config=CFG, **kwargs):
    set_seed(seed)
    return bilm_learner(dls, config, **{'bf16': False, **kwargs})

# an ordinary learner

def test_characters_are_those_of_the_loaders(some):
    """Their number and their room, whatever the configuration leaves open; what it asks for in vain
    is named"""

    def loaders(chars):
        return ElmoDataLoaders.from_corpus(
            some, kind='sentences', bs=8, char_vocab=chars, device='cpu')

    letters = CharVocab.build([o.split() for o in some.train], max_chars=20)
    for chars in (letters, ByteCharVocab(20)):
        c = learner(loaders(chars)).model.config
        assert (c.n_chars, c.max_chars, c.proj_dim) == (chars.n_chars, 20, CFG.proj_dim)
    for wrong in (dict(n_chars=99), dict(max_chars=30)):
        with pytest.raises(ValueError, match=f"{[*wrong][0]}={[*wrong.values()][0]}.*loaders"):
            learner(loaders(letters), config=replace(CFG, **wrong))


def test_lr_find_suggests_and_leaves_no_trace(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    before = {k: v.clone() for k,v in learn.model.state_dict().items()}
    found = quietly(learn, 'lr_find', num_it=20, show_plot=False)
    assert 1e-7 <= found.valley <= 10
    assert all(
        torch.equal(v, before[k]) for k, v in learn.model.state_dict().items() if 'norm' not in k)
    assert not [f for f in tmp_path.rglob('*') if f.is_file()]
    # and training goes on as if nothing had been
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    assert learn.stopped is None and len(learn.recorder.values) == 1

def test_one_cycle_learns_and_its_table_is_right(dls, tmp_path):
    learn = learner(dls, cbs=CSVLogger(tmp_path/'log.csv'), from_counts=False)
    assert isinstance(learn, Learner)
    start = evaluate(learn.model, dls.valid)
    quietly(learn, 'fit_one_cycle', 2, 1e-2)
    assert list(learn.recorder.metric_names) == TABLE
    assert len(learn.recorder.losses) == 2*len(dls.train) == len(learn.recorder.lrs)
    last = dict(zip(TABLE[1:], learn.recorder.values[-1]))
    exact = evaluate(learn.model, dls.valid)
    for k in ('fwd', 'bwd'): assert math.isclose(last[f'perplexity_{k}'], exact[k], rel_tol=1e-5)
    assert math.isclose(last['valid_loss'], math.log(exact['mean']), rel_tol=1e-5)
    assert exact['mean'] < start['mean']/2 and learn.recorder.losses[0] > learn.recorder.losses[-1]
    assert torch.isclose(
        torch.tensor(start['mean']).log(), torch.tensor(len(dls.vocab)).log(), atol=1.0)
    rows = list(csv.reader(open(tmp_path/'log.csv')))
    assert (rows[0] == TABLE and len(rows) == 3
            and float(rows[-1][3]) == pytest.approx(exact['fwd'], rel=1e-3))


@pytest.mark.parametrize('change', [
    dict(), dict(share_softmax=False), dict(softmax='sampled', n_negative=50),
    dict(softmax='adaptive', cutoffs=(20, 60), div_value=2.0, bias=True)])
def test_it_begins_with_the_words_frequencies(few, change):
    log_p = few.log_frequencies()
    model = learner(few, config=replace(CFG, **change)).model.eval()
    for head in model.heads:
        torch.testing.assert_close(head.log_prob(torch.zeros(1, 16))[0], log_p)


def test_without_biases_it_begins_as_ever(few, monkeypatch):
    "Models of earlier versions have none, and their checkpoints fit; nothing is counted in vain"
    config = replace(CFG, softmax='adaptive', cutoffs=(20, 60), div_value=2.)
    old = learner(few, config=config, from_counts=False).model.state_dict()
    monkeypatch.setattr(ElmoDataLoaders, 'log_frequencies', None)
    new = learner(few, config=config).model.state_dict()
    assert (new.keys() == old.keys() and all(new[k].equal(v) for k, v in old.items())
            and not [k for k in new if k.startswith('head') and 'bias' in k])


def test_validate_and_its_batch_sizes(dls):
    learn = learner(dls)
    values = [quietly(learn, 'validate', dl=SentenceDataLoader(dls.valid.dataset, bs=bs))
              for bs in (3, 64)]
    exact = evaluate(learn.model, dls.valid)
    for loss,f,b in values:
        assert (f, b) == (
            pytest.approx(exact['fwd'], rel=1e-5), pytest.approx(exact['bwd'], rel=1e-5))
        assert loss == pytest.approx(math.log(exact['mean']), rel=1e-5)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_bfloat16_table_is_near(corpus, kind):
    kw = dict(seq_len=16) if kind == 'stream' else {}
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=8, seed=0, device='cpu', **kw)
    learn = learner(dls, bf16=True)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    assert dict(zip(TABLE[1:], learn.recorder.values[-1]))['perplexity_fwd'] == pytest.approx(
        evaluate(learn.model, dls.valid)['fwd'], rel=0.03)
    assert all(p.dtype == torch.float32 for p in learn.model.parameters())

@pytest.mark.parametrize('has,gain,fast', [
    (False, 9.0, False), (True, 0.5, False), (True, 1.1, False), (True, 2.8, True)])
def test_bfloat16_must_pay(monkeypatch, has, gain, fast):
    "An instruction is not enough: there are processors with it whose products take twice as long"
    monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: has)
    monkeypatch.setattr(training, '_bf16_gain', lambda: gain)
    assert (bf16_is_fast('cpu') is fast and bf16_is_fast(torch.device('cpu')) is fast
            and bf16_is_fast('mps') is False)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (8 if fast else 7, 5))
    assert bf16_is_fast('cuda') is fast


def test_equal_seeds_equal_learners(corpus, held):
    def run(seed):
        dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=seed, device='cpu')
        learn = learner(dls, seed, config=replace(CFG, dropout=.2))
        quietly(learn, 'fit_one_cycle', 1, 1e-2)
        return learn.model.state_dict(), learn.recorder.values
    (a, ta), (b, tb), (c, _) = run(1), run(1), run(2)
    assert all(torch.allclose(v, b[k], atol=1e-5) for k,v in a.items())
    for x,y in zip(ta, tb, strict=True): assert list(x) == pytest.approx(list(y), rel=1e-5)
    assert not torch.allclose(a['head.weight'], c['head.weight'], atol=1e-5)

def test_save_load_and_go_on(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    again = learner(dls, seed=9, path=tmp_path)
    assert comes_back(learn, again)
    quietly(again, 'fit', 1, 1e-3)

def test_export_and_load_learner(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('learner.pkl')
    again = load_learner(tmp_path/'learner.pkl')
    assert again.keep_good.good is None, 'the callbacks carry copies of the weights along'
    assert evaluate(again.model, dls.valid) == evaluate(learn.model, dls.valid)
    assert again.dls.vocab.itos == dls.vocab.itos
    again.dls = dls
    quietly(again, 'fit', 1, 1e-3)                                      # it can train on
    assert again.stopped is None

def test_predict_goes_on_with_a_text(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    quietly(learn, 'fit', 1, 1e-2)
    one = learn.predict('the', 5, seed=1)
    assert (one.startswith('the') and 1 <= len(one.split()) <= 6
            and learn.predict('the', 5, seed=1) == one)
    assert learn.predict('the .', 4, direction='backward', seed=1).endswith('the .')
    assert (len(learn.predict('the', 4, end=False).split()) == 5
            and len(learn.predict('the').split()) <= 2)
    many = learn.predict(['the', 'a'], 3, temperature=0)
    assert many == [learn.predict(t, 3, temperature=0) for t in ('the', 'a')]
    assert many == generate(learn.model, dls.vocab, dls.char_vocab, ['the', 'a'], 3, temperature=0)
    for kw in (dict(direction='up'), dict(temperature=-1)):
        with pytest.raises(ValueError): learn.predict('the', 2, **kw)
    learn.export('learner.pkl')
    again = load_learner(tmp_path/'learner.pkl')
    assert (type(again) is BiLMLearner and again.tokenizer == 'space'
            and again.predict('the', 5, seed=1) == one)


def test_a_sampled_loss_is_not_called_a_perplexity(dls, tmp_path):
    learn = learner(dls, config=replace(CFG, softmax='sampled', n_negative=30),
                    cbs=CSVLogger(tmp_path/'log.csv'))
    learn.recorder.train_metrics = True
    quietly(learn, 'fit', 1, 1e-2)
    assert [o for o, v in zip(learn.recorder.metric_names[1:], learn.recorder.values[-1])
            if o.startswith('train_') and v is not None] == []
    learn.recorder.train_metrics = False
    quietly(learn, 'fit_one_cycle', 2, 1e-2)
    assert list(learn.recorder.metric_names) == ['epoch', 'sampled_loss', *TABLE[2:]]
    assert next(csv.reader(open(tmp_path/'log.csv')))[1] == 'sampled_loss'
    last, exact = dict(zip(TABLE[1:], learn.recorder.values[-1])), evaluate(learn.model, dls.valid)
    for k in ('fwd', 'bwd'): assert math.isclose(last[f'perplexity_{k}'], exact[k], rel_tol=1e-5)
    assert last['train_loss'] < math.log(exact['mean'])                 # an easier question


def test_gradients_are_clipped(dls):
    class Look(Callback):
        order = 90
        def before_fit(self): self.norms = []

        def before_step(self):
            self.norms.append(torch.stack([
                p.grad.norm() for p in self.model.parameters()
                if p.grad is not None]) .norm() .item())

    loose,tight = Look(), Look()
    for look, clip in ((loose, 1e9), (tight, 0.01)):
        quietly(learner(dls, clip=clip, cbs=look), 'fit', 1, 1e-3)
    assert max(tight.norms) <= .0101 < min(loose.norms)

# groups, optimisers, precision

def test_groups_hold_every_parameter_once(dls):
    for config in (CFG, replace(CFG, n_layers=3, hidden_dim=20),
                   replace(CFG, share_encoder=False, share_softmax=False),
                   replace(CFG, norm=False, softmax='adaptive', cutoffs=(50,))):
        model = BiLM(config, len(dls.vocab))
        groups = bilm_split(model)
        assert len(groups) == config.n_layers + 2
        assert sorted(id(p) for g in groups for p in g) == sorted(
            id(p) for p in model.parameters() if p.requires_grad)
        names = {id(p): n for n, p in model.named_parameters()}
        assert [{names[id(p)].split('.')[0].removesuffix('_bwd') for p in g}
                for g in groups] == [{'chars'}, *[{'lstm'}]*config.n_layers, {'head'}]
        for i in range(config.n_layers):
            assert {names[id(p)].split('.')[2] for p in groups[i + 1]} == {str(i)}
    # nothing to predict, no group for it
    assert len(bilm_split(BiLM(CFG, 0))) == 3

def test_rates_by_group(dls):
    learn = learner(dls)
    before = {k: v.clone() for k,v in learn.model.named_parameters()}
    quietly(learn, 'fit', 1, slice(1e-12, 1e-2))
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx([
        1e-12, 1e-12*1e10**(1/3), 1e-12*1e10**(2/3), 1e-2])

    def moved(name):
        return max((v - before[k]).abs().max().item() for k, v in learn.model.named_parameters()
                   if k.startswith(name))

    assert moved('chars') < 1e-8 < moved('lstm.fwd.0') < moved('lstm.fwd.1') < moved('head')
    quietly(learn, 'fit_one_cycle', 1, slice(1e-4, 1e-2))
    assert learn.stopped is None

def test_freezing(few):
    learn = learner(few)
    learn.freeze_to(2)
    before = {k: v.clone() for k,v in learn.model.named_parameters()}
    quietly(learn, 'fit', 1, 1e-2)
    changed = {k.split('.')[0] + ('1' if '.1.' in k else '')
               for k, v in learn.model.named_parameters() if not torch.equal(v, before[k])}
    assert changed == {'lstm1', 'head'}
    learn.unfreeze()
    assert all(
        p.requires_grad != n.endswith('bias_hh_l0') for n, p in learn.model.named_parameters())
    assert all((p == 0).all() for n,p in learn.model.named_parameters() if n.endswith('bias_hh_l0'))

def test_adagrad_is_the_originals(dls):
    """One step by hand: bilm-tf's loss is multiplied by 20 before the gradient, the sums of squares
    start at 1, the rate is 0.2"""
    seen = {}
    class Look(Callback):
        order = 95
        def before_step(self):
            if not seen:
                seen.update({n: (p.detach().clone(), p.grad.clone())
                             for n, p in self.model.named_parameters() if p.grad is not None})

        def after_step(self):
            if hasattr(self, 'done'): return
            self.done = True
            for n,p in self.model.named_parameters():
                if n in seen:
                    torch.testing.assert_close(
                        p.detach(), seen[n][0] - 0.2*seen[n][1]/(1 + seen[n][1]**2).sqrt())

    learn = learner(dls, opt='adagrad', cbs=Look())
    quietly(learn, 'fit', 1)
    assert (seen and learn.wd == 0 and learn.opt.hypers[0]['lr'] == 0.2
            and learn.opt.hypers[0]['wd'] == 0)
    assert learn.recorder.values[-1][1] < math.log(len(dls.vocab))     # and it learns
    # a schedule may speak of momentum
    quietly(learn, 'fit_one_cycle', 1, .2)
    norm = torch.stack([g.norm() for _,g in seen.values()]).norm().item()
    # twenty times the mean's gradient, and its limit
    assert 1 < norm <= 20.001

def test_other_optimisers(few):
    from fastai.optimizer import Adam, ranger
    for opt in (Adam, ranger):
        learn = learner(few, opt=opt)
        quietly(learn, 'fit_one_cycle', 1, 1e-2)
        assert learn.stopped is None and len(learn.opt.hypers) == 4
    with pytest.raises(ValueError, match="'sgd'.*adamw.*adagrad"): learner(few, opt='sgd')
    assert (learner(few, wd=0.5).wd == 0.5 and learner(few).wd == 0.01
            and learner(few, opt='adagrad', wd=0.1).wd == 0.1)


def test_float16_scales_its_gradients(few):
    class Look(Callback):
        order = 95
        def before_fit(self): self.scales,self.skipped = [],0
        def after_batch(self):
            if self.training: self.scales.append(self.scaler.get_scale())
        def after_cancel_step(self): self.skipped += 1

    plain, half = (learner(few), [
        learner(few, cbs=Look()).to_fp16(**kw) for kw in ({}, dict(init_scale=2.0**30))])
    for learn in (plain, *half): quietly(learn, 'fit', 2, 1e-2)
    # so large that the first gradients overflow
    assert [o.look.skipped > 0 for o in half] == [False, True] and half[1].look.scales[-1] < 2**30
    assert all(finite(o.model) and o.stopped is None for o in half) and all(
        p.dtype == torch.float32 for p in half[0].model.parameters())
    assert half[0].recorder.values[-1][1] == pytest.approx(plain.recorder.values[-1][1], rel=.02)

def test_precisions_replace_each_other(few):
    learn = learner(few, bf16=True)
    def kinds(): return [type(o).__name__ for o in learn.cbs if isinstance(o, MixedPrecision)]
    assert kinds() == ['BF16']
    assert [(f(), kinds())[1] for f in (learn.to_fp16, learn.to_bf16, learn.to_fp32)] == [
        ['FP16'], ['BF16'], []]


data = next((p for p in (
    os.environ.get('ELMO_FASTAI_DATA'), Path(__file__).parents[2]/'shared'/'data') if p
             and (Path(p)/'tiny_shakespeare').exists()), None)


@pytest.mark.slow
@pytest.mark.skipif(data is None, reason='no local copy of Tiny Shakespeare')
def test_bfloat16_learns_as_much_as_32_bits():
    "Equal steps on real text: perplexities within one per cent of each other"
    corpus = tiny_shakespeare(Path(data)/'tiny_shakespeare')
    some = Corpus(
        'shakespeare', dict(train=corpus.train[:700], valid=corpus.valid[:150]), corpus.tokenizer
    )
    dls = ElmoDataLoaders.from_corpus(
        some, kind='stream', bs=8, seq_len=16, min_freq=2, device='cpu')

    def nats(bf16, seed):
        learn = learner(dls, seed, replace(CFG, proj_dim=32, hidden_dim=32), bf16=bf16)
        quietly(learn, 'fit_one_cycle', 3, 1e-3)
        return math.log(evaluate(learn.model, dls.valid)['mean'])
    # one seed differs from another by several per cent
    full,half = (np.mean([nats(o, seed) for seed in (0, 1)]) for o in (False, True))
    assert abs(half - full) < .01 and half < .7*math.log(len(dls.vocab))

# early stopping

class Fake(Callback):
    "Put the figures of a validation in the place of the real ones, and mark each epoch's weights"
    order = 40
    def __init__(self, losses): self.losses = losses

    def after_validate(self):
        self.recorder.loss.nats, self.recorder.loss.n = [self.losses[self.epoch]]*2, [1, 1]

    def before_validate(self): self.model.head.bias.data.fill_(float(self.epoch))

@pytest.mark.parametrize(
    'losses,patience,ends,best', [
    ([5, 4, 4.5, 4.2, 4.1, 3], 2, 4, 1), ([5, 4, 4.5, 3.9, 4.1, 3.8], 2, 6, 5),
    ([5, 6, 7, 8, 9, 9], 3, 4, 0), ([5, 4, 3, 2, 1, 1.5], 3, 6, 4),
    ([5, math.nan, 4, math.nan, math.nan, 1], 2, 5, 2)], ids=str)
def test_early_stop_goes_back_to_the_best(few, losses, patience, ends, best):
    learn = learner(few, cbs=[Fake(losses), EarlyStop(patience=patience)])
    quietly(learn, 'fit', 6, 0.0)
    assert len(learn.recorder.values) == ends and learn.early_stop.best_epoch == best
    assert (learn.model.head.bias == best).all() and learn.early_stop.good is None
    assert (learn.stopped is None) == (best == ends - 1)
    if learn.stopped:
        assert learn.stopped.reason is (Reason.PATIENCE if ends < 6 else Reason.END)


def test_early_stop_leaves_an_interrupted_training_as_it_is(few):
    learn = learner(few, cbs=[
        Fake([5, 6, 7, 8]), EarlyStop(patience=4), At(10, press(), 'before_batch')])
    quietly(learn, 'fit', 4, 0.)
    assert 'SIGINT' in learn.stopped.message and (learn.model.head.bias == 1).all()

def test_early_stop_goes_back_to_the_best_where_time_is_up(few):
    "`elmo_pretrain --time … --patience …`: it kept the last epoch's weights"
    learn,_ = timed(few, 8, lr=0., cbs=[Fake([5, 6, 7]), EarlyStop(patience=3)])
    assert learn.early_stop.best_epoch == 0 and (learn.model.head.bias == 0).all()

def test_without_patience_the_best_epoch_is_kept_and_said(few):
    learn = learner(few, cbs=[Fake([5, 4, 6, 7]), EarlyStop(None)])
    quietly(learn, 'fit', 4, 0.)
    assert len(learn.recorder.values) == 4 and (learn.model.head.bias == 1).all()
    assert 'after epoch 2 of 4' in learn.stopped.message and learn.stopped.reason is Reason.END
    learn = learner(few, cbs=[Fake([5, 4, 3]), EarlyStop(None)])
    quietly(learn, 'fit', 3, 0.)
    assert learn.stopped is None and (learn.model.head.bias == 2).all()

def test_early_stop_with_finder_and_wrong_arguments(few):
    learn = learner(few, cbs=EarlyStop())
    quietly(learn, 'lr_find', num_it=10, show_plot=False)
    with pytest.raises(ValueError, match='patience'): EarlyStop(patience=0)

# a carried state

@pytest.fixture(scope='module')
def stream(some):
    return ElmoDataLoaders.from_corpus(some, kind='stream', bs=4, seq_len=8, seed=0, device='cpu')


@pytest.mark.parametrize('config', [
    CFG, replace(CFG, hidden_dim=20), replace(CFG, share_encoder=False),
    replace(CFG, cell_clip=3.0, proj_clip=3.0)], ids=[
    'plain', 'projected', 'two encoders', 'clipped'])
def test_carried_forward_perplexity_is_that_of_one_long_window(stream, config):
    learn = learner(stream, config=config, cbs=CarryState())
    quietly(learn, 'fit', 1, 1e-2)
    long = StreamDataLoader(stream.valid.text, bs=stream.valid.size, seq_len=stream.valid.per)
    table = dict(zip(TABLE[1:], learn.recorder.values[-1]))
    warm, cold = evaluate(learn.model, long), evaluate(learn.model, stream.valid)
    assert (table['perplexity_fwd'] == pytest.approx(
        warm['fwd'], rel=1e-4) != pytest.approx(cold['fwd'], rel=1e-4))
    assert table['perplexity_bwd'] == pytest.approx(cold['bwd'], rel=1e-4)

def test_state_begins_with_zeros_and_has_no_gradient(stream):
    class Look(Callback):
        order = 20
        def before_batch(self):
            state = self.carry_state.state
            assert (state is None) == (self.iter == 0)
            if state:
                assert (not state['h'].requires_grad and (state['h'][:, 1] == 0).all()
                        and state['h'][:, 0].any() and state['c'][:, 0].any())
            self.n = self.n + 1 if hasattr(self, 'n') else 1
        # someone else asks the model
        def after_epoch(self):
            self.there = guesses(self.model, ['the', 'bank'], self.dls.vocab, self.dls.char_vocab)

    learn = learner(stream, cbs=[CarryState(), Look()])
    quietly(learn, 'fit', 2, 1e-2)
    assert learn.look.n == 2*(len(stream.train) + len(stream.valid))
    assert learn.look.there == guesses(
        learn.model, ['the', 'bank'], stream.vocab, stream.char_vocab)
    assert not learn.model.lstm._forward_hooks and not learn.model.lstm._forward_pre_hooks

@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_no_hooks_and_no_handlers(stream, error):
    def fail(cb): raise error('on purpose')
    before = signal.getsignal(signal.SIGINT)
    learn = learner(stream, cbs=[CarryState(), At(3, fail, 'before_batch')])
    with pytest.raises(error): quietly(learn, 'fit', 1, 1e-2)
    assert (not learn.model.lstm._forward_hooks and not learn.model.lstm._forward_pre_hooks
            and signal.getsignal(signal.SIGINT) == before)


def test_carried_state_in_half_precision(stream):
    for f in ('to_bf16', 'to_fp16'):
        learn = getattr(learner(stream, cbs=CarryState()), f)()
        quietly(learn, 'fit', 1, 1e-2)
        assert learn.stopped is None and finite(learn.model)

def test_what_can_not_be_carried(few, some):
    with pytest.raises(ValueError, match="kind='stream'"):
        quietly(learner(few, cbs=CarryState()), 'fit', 1)


def test_text_in_blocks_can_be_carried_likewise(tmp_path):
    (tmp_path/'t.txt').write_text('the bank was open all day\n'*400)
    how = dict(kind='stream', bs=2, seq_len=8, n_valid=50, device='cpu')
    learn = learner(stream_loaders(tmp_path/'t.txt', **how), cbs=CarryState())
    quietly(learn, 'fit', 1)
    assert learn.carry_state.state is not None or learn.stopped is None


def test_a_learner_of_a_data_block():
    df = pd.DataFrame(dict(text=['the bank was open all day', 'we sat by the bank']*20))
    dls = DataBlock(
        blocks=BiLMBlock(), get_x=ColReader('text'), splitter=RandomSplitter(seed=1)
    ).dataloaders(df, bs=8)
    learn = bilm_learner(dls, BiLMConfig(
        'nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8))
    quietly(learn, 'fit', 1)
    assert finite(learn.model)

# the metric

def nats(*batches, directions=(0, 1), **kwargs):
    m = NatsMetric('x', directions, **kwargs)
    for f, b in batches:
        m.accumulate(SimpleNamespace(
            model=None, training=False, pred=(
            torch.tensor(f, dtype=torch.float32), torch.tensor(b, dtype=torch.float32))))
    return m

def test_nats_metric_weighs_predictions():
    batches = [([5.], [7.]), ([1.]*9, [3.]*9)]
    assert nats(*batches, directions=(0,)).value == pytest.approx(1.4)
    assert nats(*batches, directions=(1,)).value == pytest.approx(3.4)
    assert nats(*batches).value == pytest.approx(2.4) and nats(*batches).name == 'x'
    assert nats(*batches, directions=(0,), transform=math.exp).value == pytest.approx(math.exp(1.4))
    assert nats(([1.], []), ([2., 3.], [])).value == pytest.approx(2)   # one direction alone
    assert nats().value is None
    m = nats(*batches); m.reset()
    assert m.value is None
    # added up in double precision
    assert nats(([1e-4]*100_000, [1e-4]*100_000)).value == pytest.approx(1e-4, rel=1e-6)

def test_metrics_stand_a_diverging_loss(dls):
    for m in learner(dls).metrics:
        m.accumulate(SimpleNamespace(
            model=None, training=False, pred=(torch.tensor([5e3]), torch.tensor([5e3]))))
        assert m.value == math.inf                                      # and not an OverflowError

# an error within a step

def test_after_an_error_nothing_is_computed_in_half_precision(few):
    "autocast is entered before the batch and left after the loss; an error may come between"
    class Failing(Callback):
        def after_pred(self): raise RuntimeError('in the middle')
    learn = learner(few, bf16=True)
    with pytest.raises(RuntimeError, match='in the middle'): quietly(learn, 'fit', 1, cbs=Failing())
    assert not torch.is_autocast_enabled('cpu')
    x = torch.randn(4, 4)
    assert (x@x).dtype == torch.float32
    quietly(learn, 'fit', 1)
    assert not torch.is_autocast_enabled('cpu')

def test_an_error_before_the_first_step_says_its_own_cause(few):
    class Failing(Callback):
        order = -50
        def before_fit(self): raise ValueError('not like this')

    with pytest.raises(ValueError, match='not like this'):
        quietly(learner(few, bf16=True, cbs=Failing()), 'fit', 1)


# trainings that end early

def spoil(cb): next(cb.model.head.parameters()).data.view(-1)[3] = math.nan

def test_nan_goes_back_to_the_last_good_weights(dls):
    good = {}
    def remember(cb): good.update({k: v.clone() for k,v in cb.model.state_dict().items()})
    learn = learner(dls, cbs=[At(8, remember, 'after_batch'), At(11, spoil)])
    learn.keep_good.every = 4                                           # copies after steps 4 and 8
    quietly(learn, 'fit', 3, 1e-2)
    assert ('nan' in learn.stopped.message and 'step 12' in learn.stopped.message
            and 'step 8' in learn.stopped.message and 'learning rate' in learn.stopped.message)
    assert all(
        torch.equal(v, good[k]) for k, v in learn.model.state_dict().items() if 'norm' not in k)
    assert finite(learn.model) and len(learn.recorder.losses) == 11
    learn.remove_cbs([o for o in learn.cbs if isinstance(o, At)])
    quietly(learn, 'fit', 1, 1e-3)                                      # the learner is not broken
    assert learn.stopped is None and len(learn.recorder.values) == 1

@pytest.mark.parametrize('step', [1, 'last'])
def test_nan_at_the_edges(dls, step):
    learn = learner(dls, cbs=At(len(dls.train) if step == 'last' else step, spoil))
    quietly(learn, 'fit', 1, 1e-2)
    assert finite(learn.model) and learn.stopped

def test_a_worse_loss_is_not_kept(dls):
    """The copy is made while the loss is at its lowest, so a training that has run away does not
    overwrite it"""
    learn = learner(dls, cbs=At(20, spoil))
    learn.keep_good.every = 1
    quietly(learn, 'fit', 1, 30.)                                       # runs away at once
    assert evaluate(learn.model, dls.valid)['mean'] < 10*len(dls.vocab)

def test_a_loss_far_above_guessing_ends_the_training(dls):
    learn = learner(dls)
    quietly(learn, 'fit', 10, 30.)
    step,good = map(int, re.findall(r'step (\d+)', learn.stopped.message))
    assert (20 < step < 10*len(dls.train) and good < 20
            and 'blind guessing costs' in learn.stopped.message
            and 'lower learning rate' in learn.stopped.message)
    assert evaluate(learn.model, dls.valid)['mean'] < 10*len(dls.vocab)
    # a shock from which it comes back is none of our business
    bump = learner(dls, cbs=At(12, lambda cb: cb.model.head.bias.data.normal_(std=30.)))
    bump.keep_good.patience = 10**6
    quietly(bump, 'fit', 1, 1e-2)
    assert bump.stopped is None


def press(sig=signal.SIGINT, times=1):
    def do(cb):
        for _ in range(times): signal.raise_signal(sig)
    return do

@pytest.mark.parametrize('how', ['validate', 'get_preds'])
def test_ctrl_c_while_validating_is_ctrl_c(dls, how):
    "Not the exception by which fastai ends a training"
    class Press(Callback):
        def before_batch(self): signal.raise_signal(signal.SIGINT)
    before = signal.getsignal(signal.SIGINT)
    learn = learner(dls)
    with pytest.raises(KeyboardInterrupt), learn.added_cbs(Press()): quietly(learn, how)
    assert signal.getsignal(signal.SIGINT) == before and finite(learn.model)
    quietly(learn, 'validate')                                          # and it works again

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_step(dls, sig, capsys):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    learn = learner(dls, cbs=At(5, press(sig), 'before_batch'))
    quietly(learn, 'fit', 3, 1e-2)
    assert (learn.train_iter == 5 == len(learn.recorder.losses)
            and learn.stopped.reason is Reason.SIGNAL
            and learn.stopped.kept == 'the weights of step 5' and sig.name in learn.stopped.message
            and 'epoch 1 of 3' in learn.stopped.message)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert learn.stopped.message in capsys.readouterr().out
    assert 0 < learn.throughput.seconds and learn.throughput.per_second < 1e7, (
        'the time of an epoch that was cut short counts')


def test_the_second_ctrl_c_stops_at_once(dls):
    before = signal.getsignal(signal.SIGINT)
    learn = learner(dls, cbs=At(3, press(times=2), 'before_batch'))
    with pytest.raises(KeyboardInterrupt): quietly(learn, 'fit', 1, 1e-2)
    assert signal.getsignal(signal.SIGINT) == before

def test_signals_are_given_back_after_a_fit(dls):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    quietly(learner(dls), 'fit', 1, 1e-2)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

def test_training_in_a_thread(dls):
    learn, errors = learner(dls), []
    def work():
        try: quietly(learn, 'fit', 1, 1e-2)
        except Exception as e: errors.append(e)
    t = threading.Thread(target=work); t.start(); t.join()
    assert not errors and len(learn.recorder.values) == 1

def test_throughput_counts_real_tokens(dls):
    learn = learner(dls)
    start = time.perf_counter()
    quietly(learn, 'fit', 2, 1e-2)
    spent = time.perf_counter() - start
    # padding does not count, nor does validation
    assert learn.throughput.tokens == 2*len(dls.train.text.ids)
    assert 0 < learn.throughput.seconds <= spent

# a budget of time

def timed(few, seconds, method='fit_one_cycle', lr=1e-2, **kwargs):
    """A learner that was trained for so many steps of a clock that counts them (4 an epoch), and
    its budget"""
    learn = learner(few, **kwargs)
    budget = TimeBudget(seconds, clock=lambda: float(len(learn.recorder.losses)))
    quietly(learn, method, TimeBudget.epochs, lr, cbs=budget)
    return learn, budget

def test_a_budget_ends_one_cycle_with_the_clock(some):
    "A whole number of epochs: the rates, momenta and figures of `fit_one_cycle`"

    def fresh():
        return ElmoDataLoaders.from_corpus(some, kind='sentences', bs=16, seed=0, device='cpu')

    whole = learner(fresh())
    quietly(whole, 'fit_one_cycle', 3, 1e-2)
    learn, budget = timed(fresh(), 12)
    assert (len(learn.recorder.lrs) == 12 and budget.elapsed == 12
            and learn.stopped.reason is Reason.TIME)
    np.testing.assert_allclose(learn.recorder.lrs, whole.recorder.lrs, rtol=1e-6)
    np.testing.assert_allclose(learn.recorder.hps['mom'], whole.recorder.hps['mom'][:11], rtol=1e-6)
    np.testing.assert_allclose(
        [r[:-1] for r in learn.recorder.values], [r[:-1] for r in whole.recorder.values], rtol=1e-3)


def test_a_budget_that_ends_within_an_epoch(few, tmp_path):
    "The epoch is validated, its row is whole, and the weights are those that the row speaks of"
    learn, budget = timed(few, 10, cbs=CSVLogger(tmp_path/'log.csv'))
    assert (len(learn.recorder.losses) == 10 and len(learn.recorder.values) == 3
            and learn.n_epoch == 3)
    assert learn.recorder.lrs[-1] < 1e-3 < max(learn.recorder.lrs[:4]) <= 1e-2
    assert {len(r) for r in learn.recorder.values} == {len(TABLE) - 2} and [
        len(r) for r in csv.reader((tmp_path/'log.csv').open())] == [len(TABLE)]*4
    last = dict(zip(TABLE[1:], learn.recorder.values[-1]))
    assert last['perplexity_fwd'] == pytest.approx(
        evaluate(learn.model, few.valid)['fwd'], rel=1e-4)


def test_a_budget_with_any_schedule(few):
    learn, _ = timed(few, 6, 'fit', 3e-3)
    assert set(learn.recorder.lrs) == {3e-3} and len(learn.recorder.lrs) == 6
    learn, _ = timed(few, 6, 'fit_flat_cos')
    assert learn.recorder.lrs[0] == 1e-2 and learn.recorder.lrs[-1] < 1e-2

def test_the_number_of_epochs_is_guessed_from_the_pace(few):
    seen = []
    class Watch(Callback):
        order = 99
        def after_epoch(self): seen.append(self.n_epoch)
        def before_epoch(self): seen.append(self.n_epoch)
    timed(few, 10, cbs=Watch())
    assert seen[0] == 1 and seen[1:] == [3]*5, 'before the first step nothing is known'

def test_validation_counts(few):
    "A clock that also runs while validating: there is time for one epoch of three"
    ticks = [0.]
    class Tick(Callback):
        order = 0
        def after_batch(self): ticks[0] += 1
    learn = learner(few, cbs=Tick())
    quietly(learn, 'fit_one_cycle', TimeBudget.epochs, 1e-2,
            cbs=TimeBudget(5, clock=lambda: ticks[0]))
    assert len(learn.recorder.losses) == 4 and len(learn.recorder.values) == 1

def test_a_budget_of_real_seconds(few):
    learn = learner(few)
    budget, start = TimeBudget(.5), time.monotonic()
    quietly(learn, 'fit_one_cycle', TimeBudget.epochs, 1e-2, cbs=budget)
    assert .5 <= budget.elapsed <= time.monotonic() - start and learn.recorder.losses

def test_a_budget_beside_what_else_ends_a_training(few):
    learn, _ = timed(few, 100, lr=.3, cbs=EarlyStop(patience=1))
    assert 'has not fallen' in learn.stopped.message and len(learn.recorder.losses) < 100
    learn, _ = timed(few, 8, lr=1e-4, cbs=EarlyStop(patience=1))
    assert learn.stopped.reason is Reason.TIME and len(learn.recorder.losses) == 8
    learn, _ = timed(few, 12, bf16=True)
    assert not torch.is_autocast_enabled('cpu')

@pytest.mark.parametrize('seconds', [0, -1, math.nan, math.inf, '5m'])
def test_budgets_that_can_not_be(seconds):
    with pytest.raises(ValueError, match='seconds'): TimeBudget(seconds)

# what a learner shows

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_what_each_direction_expected_is_shown(corpus, kind):
    dls = ElmoDataLoaders.from_corpus(
        corpus, kind=kind, bs=8, device='cpu', **(dict(seq_len=16) if kind == 'stream' else {}))
    learn = learner(dls)
    df = learn.show_results(max_n=3, show=False)
    assert (list(df.columns) == [
        'text', 'forward targets', 'backward targets', 'forward guesses', 'backward guesses']
            and len(df) == 3)
    chars,*targets = dls.valid.one_batch()
    model = learn.model.eval()
    with torch.no_grad(): states = model.encode(chars[:3])[-1]
    for name,head,h,y in zip(('forward', 'backward'), model.heads, states, targets):
        best = head.log_prob(h).argmax(-1)
        for i in range(3):
            there = [
                dls.vocab.itos[w] if t else '·' for w, t in zip(best[i].tolist(), y[i].tolist())
            ][:int((chars[i,:, 0] != 0).sum())]
            assert df[f'{name} guesses'][i].split(' ') == there

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_every_prediction_has_its_nats(corpus, kind):
    """Also where the loader's rows would be put back in order: there is one row a sentence, and
    many predictions"""
    dls = ElmoDataLoaders.from_corpus(
        corpus, kind=kind, bs=8, device='cpu', **(dict(seq_len=16) if kind == 'stream' else {}))
    learn = learner(dls)
    (fwd, bwd), _ = quietly(learn, 'get_preds', ds_idx=1)
    exact = evaluate(learn.model, dls.valid)
    assert len(fwd) == len(bwd) == exact['predictions'] and math.exp(fwd.mean()) == pytest.approx(
        exact['fwd'], rel=1e-5)


@pytest.fixture(scope='module')
def small(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def built(small, *cbs, seed=1, **kwargs):
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(small, kind='sentences', bs=16, seed=0, device='cpu')
    return bilm_learner(dls, CFG, **{'bf16': False, 'cbs': list(cbs), **kwargs})


def weights(learn): return {name: w.clone() for name,w in learn.model.state_dict().items()}


# It says how it ended


def test_a_diverged_training_says_so(small, capsys):
    def spoil(cb): next(cb.model.head.parameters()).data.fill_(math.nan)
    learn = built(small, At(4, spoil))
    quietly(learn, 'fit', 2, 1e-2)
    assert 'lower learning rate' in capsys.readouterr().out
    assert learn.stopped.reason is Reason.DIVERGED and learn.stopped.kept in learn.stopped.message

def test_other_ends_are_said_too(small, capsys):
    learn = built(small, EarlyStop(patience=1))
    quietly(learn, 'fit', 9, 0.)
    assert learn.stopped.reason is Reason.PATIENCE and 'has not fallen' in capsys.readouterr().out
    learn = built(small)
    quietly(learn, 'fit', TimeBudget.epochs, 1e-3, cbs=TimeBudget(.2))
    assert learn.stopped.reason is Reason.TIME and not learn.stopped.is_early
    assert 'are over' in capsys.readouterr().out
    learn = built(small)
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
def test_a_signal_after_the_last_batch_is_not_lost(small, event):
    before = signal.getsignal(signal.SIGINT)
    learn = built(small, PressAt(event, 70))
    quietly(learn, 'fit', 2, 1e-2)
    assert learn.stopped.reason is Reason.SIGNAL and len(learn.recorder.losses) == 8
    assert signal.getsignal(signal.SIGINT) == before

# What is kept

@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('step', [3, 5, 7, 20, 60])
def test_a_short_training_goes_back_to_learned_weights(small, step, seed):
    "Also where a later batch happens to be a harder one"
    def spoil(cb): next(cb.model.head.parameters()).data.fill_(math.nan)
    learn = built(small, At(step, spoil), seed=seed)
    quietly(learn, 'fit', 20, 1e-3)
    good = int(learn.stopped.kept.split()[-1])
    assert step/4 < good < step

def test_a_look_changes_nothing(small, monkeypatch):
    "`validate`, `get_preds` and `lr_find` are no fits"
    learn = built(small, EarlyStop(1))
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
    other = built(small, Look(), Handlers())
    quietly(other, 'fit', 2, 1e-2)
    assert len(set(map(str, handlers))) == 1

def test_autocast_is_left_after_an_error_in_a_validation(small):
    class Failing(Callback):
        def after_pred(self): raise RuntimeError('in the middle')
    learn = built(small, bf16=True)
    for method in ('validate', 'get_preds'):
        with pytest.raises(RuntimeError, match='in the middle'):
            quietly(learn, method, cbs=Failing())
        assert not torch.is_autocast_enabled('cpu')

# Several fits, one folder

def test_a_learner_with_checkpoints_is_fitted_again(small, tmp_path):
    learn = built(small, Checkpoints(tmp_path/'run', minutes=0))
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

def fine_tuned(learn): quietly(learn, 'fine_tune', 2, 1e-2)
def fitted_twice(learn):
    for _ in range(2): quietly(learn, 'fit_one_cycle', 2, 1e-2)

@pytest.mark.parametrize('fits', [fine_tuned, fitted_twice])
def test_several_fits_go_on_exactly(small, tmp_path, fits):
    """Interrupted in the first or in a later fit; called as before, the fits that were done are
    left out"""
    whole = built(small)
    fits(whole)
    was = weights(whole)
    for n in (2, 4, 7, 11):
        run = tmp_path/str(n)
        with pytest.raises(KeyboardInterrupt):
            fits(built(small, Checkpoints(run, minutes=0), Break(n)))
        again = built(small, Checkpoints(run, minutes=0), seed=5)
        resume(again, run)
        fits(again)
        assert all(torch.equal(w, was[name]) for name,w in weights(again).items()), n

@pytest.mark.parametrize('name', ['20241125-run', '20241125-start', '123456-epoch1-end', 'run'])
def test_names_of_run_folders(small, tmp_path, name):
    learn = built(small, Checkpoints(tmp_path/name, minutes=0), Break(2))
    with pytest.raises(KeyboardInterrupt): quietly(learn, 'fit', 1, 1e-2)
    assert checkpoints_in(tmp_path) == [] or name != '20241125-run'
    again = built(small, seed=3)
    assert resume(again, tmp_path/name).position['batches'] == 2
    quietly(again, 'fit', 1, 1e-2)
    assert len(again.recorder.losses) == 4

# Trackers

MONITORS = ['valid_loss', 'perplexity_fwd', 'perplexity_bwd']

@pytest.fixture(scope='module')
def backbone(): return Elmo(BiLM(CFG, 0), tokenizer='space')

def task_learners(small, backbone):
    """Learners of tasks, each with the metrics that it has by default: those that should fall, the
    others"""
    cbow = cbow_learner(ElmoDataLoaders.from_corpus(small, kind='cbow', bs=64, device='cpu'), dim=8)
    texts = [' '.join(sent.split()[:4]) for sent in small.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text)/9 for text in texts]))
    numbers = elmo_classifier_learner(
        ClassifyDataLoaders.from_df(rows, bs=16, device='cpu'), backbone)
    labels = elmo_classifier_learner(
        ClassifyDataLoaders.from_corpus(small, bs=16, device='cpu'), backbone)
    tags = elmo_tagger_learner(TagDataLoaders.from_corpus(small, bs=16, device='cpu'), backbone)
    return dict(cbow=cbow, numbers=numbers, labels=labels, tags=tags)

def test_trackers_of_the_tasks(small, backbone):
    for name,learn in task_learners(small, backbone).items():
        for metric in ['valid_loss', *learn.metrics.attrgot('name')]:
            tracker = SaveModelCallback(monitor=metric)
            learn.add_cb(tracker)
            falls = any(part in metric for part in ('loss', 'perplexity', 'rmse'))
            assert (tracker.comp is np.less) == falls, (name, metric)

def test_several_processes_train_language_models(small, backbone, monkeypatch):
    learn = task_learners(small, backbone)['tags']
    with several_processes(learn): pass                     # alone it does nothing
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='train a biLM, and this is a Tagger'):
        with several_processes(learn): pass


@pytest.mark.parametrize('monitor', MONITORS)
@pytest.mark.parametrize('kind', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
def test_trackers_of_a_language_model_look_downwards(small, kind, monitor):
    tracker = kind(monitor=monitor, min_delta=.01)
    learn = built(small, tracker)
    assert tracker.comp is np.less and tracker.min_delta == -.01
    other = kind(monitor=monitor)
    with learn.added_cbs(other): assert other.comp is np.less

def test_the_best_model_is_saved(small, tmp_path):
    learn = built(small, path=tmp_path)
    quietly(learn, 'fit', 3, 1e-2, cbs=SaveModelCallback(monitor='perplexity_fwd'))
    column = [row[2] for row in learn.recorder.values]
    assert max(column) > 1.01*min(column)
    assert quietly(learn, 'validate')[1] == pytest.approx(min(column), rel=1e-5)

# What fastai's own tools get from a language model

def test_a_summary_of_a_language_model(small):
    text = quietly(built(small), 'summary')
    assert 'BiLM' in text and 'Total params' in text and 'Optimizer used' in text

def test_losses_of_a_language_model_are_its_predictions(small):
    from fastai.interpret import ClassificationInterpretation, Interpretation
    learn = built(small)
    with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
        quietly(learn, 'get_preds', with_loss=True)
    for kind in (Interpretation, ClassificationInterpretation):
        with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
            with learn.no_bar(), learn.no_logging(): kind.from_learner(learn)

def test_a_language_model_has_its_own_loss(small):
    with pytest.raises(ValueError, match='bilm_learner takes no loss_func'):
        built(small, loss_func=torch.nn.CrossEntropyLoss())

def test_toy_bilm(held):
    lm, vocab, corpus = toy_bilm(n_train=300)
    assert not lm.training and lm.n_words == len(vocab) and isinstance(corpus, ToyCorpus)
    # of the whole process: nothing here changes it
    before = torch.get_rng_state()
    def same(other): return all(map(close, lm.parameters(), other.parameters()))
    assert same(_trained_toy.__wrapped__(300)[0])     # another training
    # the first one again, and as if it were new
    other, _, copied = toy_bilm(n_train=300)
    assert same(other) and torch.equal(torch.get_rng_state(), before)
    with torch.no_grad(): next(other.parameters()).add_(1)
    copied.train.clear()
    mine, _, its = toy_bilm(n_train=300)
    assert same(mine) and not same(other) and len(its.train) == 300

def test_an_alphabet_from_the_loaders_to_the_model(spelt):
    learn, chars = spelt
    c = learn.model.config
    assert ((c.n_chars, c.max_chars) == (chars.n_chars, chars.max_chars)
            == (learn.model.chars.embed.num_embeddings, learn.model.char_vocab.max_chars))
    assert learn.model.char_vocab == chars and learn.dls.char_vocab == chars and finite(learn.model)
    assert learn.predict('the bank', 2).startswith('the bank')

# Inside a training

def slope_through_a_state(model, chars):
    """The gradient of the second window's states with respect to the first window's letters'
    vectors, through the carried state"""
    _, state = model.encode_state(chars)
    layers, _ = model.encode_state(chars, state)
    [slope] = torch.autograd.grad(layers[-1][0].square().sum(), [state[0]], create_graph=True)
    [second] = torch.autograd.grad(slope.square().sum(), [model.lstm.fwd[0].weight_hh_l0])
    return slope.abs().sum().item(), second.abs().sum().item()

def losses_over_two_windows(model, batch):
    model.zero_grad()
    _, _, state = model(*batch, model.lstm.init_state(len(batch[0])))
    forward, backward, _ = model(*batch, state)
    (forward.mean() + backward.mean()).backward()
    return model.lstm.fwd[0].weight_hh_l0.grad.abs().sum().item()

def _embed_in_a_worker(model, chars, queue):
    torch.set_num_threads(1)
    with torch.no_grad(): queue.put(model.encode(chars)[-1][0].sum().item())

def test_gradients_and_workers_inside_a_training():
    """State that is not detached, a loss over two windows, second derivatives, a forked worker: in
    a fit as outside"""
    torch.set_num_threads(2)
    corpus = toy_corpus(300, 60, 1, 1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=4, seq_len=8, device='cpu')
    learn = bilm_learner(dls, CFG, bf16=False)
    batch = dls.valid.one_batch()
    context = multiprocessing.get_context('fork')
    def measure(model):
        model.eval()
        queue = context.Queue()
        worker = context.Process(target=_embed_in_a_worker, args=(model, batch[0], queue))
        worker.start()
        try: found = queue.get(timeout=30)
        finally:
            worker.kill()
            worker.join()
        return *slope_through_a_state(model, batch[0]), losses_over_two_windows(model, batch), found
    outside = measure(learn.model)
    class Inside(Callback):
        def before_batch(self):
            self.learn.measured = measure(self.model)
            raise CancelFitException
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 0., cbs=Inside())
    assert outside[0] > 0 and outside[1] > 0 and outside[2] > 0
    assert learn.measured == pytest.approx(outside, rel=1e-4)

def test_a_training_leaves_the_process_as_it_was(monkeypatch):
    "Neither the C library's allocator nor the number of threads is another one afterwards"
    import ctypes
    def forbidden(*args): raise AssertionError('a library of C was opened')
    monkeypatch.setattr(ctypes, 'CDLL', forbidden)
    n = torch.get_num_threads()
    dls = ElmoDataLoaders.from_corpus(toy_corpus(100, 60, 1, 1), bs=16, device='cpu')
    learn = bilm_learner(dls, CFG)
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-3)
    assert torch.get_num_threads() == n
