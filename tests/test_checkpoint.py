"""A training that breaks off at any moment goes on as if it had not; whatever is wrong with its
files is said in a sentence"""

import errno, math, multiprocessing, os, pickle, random, resource, shutil, signal, time
import warnings, zipfile
from pathlib import Path

import numpy as np, pytest, torch
from fastai.basics import Adam, Callback, L, ranger, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, GradientAccumulation, MixedPrecision, ReduceLROnPlateau)
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file

import elmo_fastai.base.files as files
import elmo_fastai.train.checkpoint as checkpoint
from elmo_fastai.base.errors import CheckpointError
from elmo_fastai.base.files import load_plain, lock_folder, save_plain
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.nn.bilm import BiLMConfig
from elmo_fastai.data.buffered import BufferedDataLoader
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.train.checkpoint import (
    FILE, Checkpoints, Resume, checkpoints_in, find_checkpoint, prune_checkpoints, read_checkpoint,
    resume)
from elmo_fastai.train.learner import CarryState, EarlyStop, TimeBudget, bilm_learner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('held_throughout')]

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8)), proj_dim=16, hidden_dim=16, dropout=0.2)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)

REAL_SYNC = files.sync

@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    "Tests need not wait for the disk; the one with the killed processes does"
    monkeypatch.setattr(files, 'sync', lambda path: None)
    monkeypatch.setattr(checkpoint, 'sync', lambda path: None)

class Break(Callback):
    order = 99
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.training and self.train_iter == self.n: raise KeyboardInterrupt()

def build(corpus, *cbs, kind='sentences', seed=1, buffered=None, config=CFG, **kwargs):
    set_seed(seed)
    size = dict(bs=4, seq_len=16) if kind == 'stream' else dict(bs=16)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', **size)
    if buffered:
        dls.loaders[0] = BufferedDataLoader.counted(
            *buffered, device='cpu', tokenizer='space', kind=kind, vocab=dls.vocab, **size)
    learn = bilm_learner(dls, config, **{'bf16': False, 'cbs': list(cbs), **kwargs})
    learn.remove_cb(learn.progress)
    learn.logger = lambda *_: None
    return learn

def fit(learn, method='fit_one_cycle', args=(3, 1e-2), **kwargs):
    getattr(learn, method)(*args, **kwargs)
    return learn

def broken(learn, n, **kwargs):
    with learn.added_cbs(Break(n)):
        with pytest.raises(KeyboardInterrupt): fit(learn, **kwargs)
    return learn

def result(learn):
    rec = learn.recorder
    return dict({k: v.clone() for k, v in learn.model.state_dict().items()},
                losses=torch.stack([torch.as_tensor(o) for o in rec.losses]), lrs=rec.lrs,
                values=[list(o) for o in rec.values], iters=rec.iters,
                hps=getattr(rec, 'hps', None))


def equal(a, b):
    assert a.keys() == b.keys()
    for k, v in a.items():
        assert torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k], k


@pytest.fixture(scope='module')
def whole(corpus): return result(fit(build(corpus)))

# the same bits

CASES = dict(sentences=dict(), stream=dict(kind='stream', at=[20]), bf16=dict(bf16=True),
             carried=dict(kind='stream', cbs=[CarryState], at=[30]),
             early=dict(cbs=[lambda: EarlyStop(patience=1)], fit=dict(args=(3, 0.3))),
             early_fastai=dict(
    cbs=[lambda: EarlyStoppingCallback(patience=1)], fit=dict(args=(4, 0.3))),
             plateau=dict(
    cbs=[lambda: ReduceLROnPlateau(patience=1)], fit=dict(method='fit', args=(4, 0.1))),
             flat=dict(fit=dict(method='fit_flat_cos')), constant=dict(fit=dict(
    method='fit', args=(2, 1e-3))), adagrad=dict(opt='adagrad', fit=dict(args=(2, 0.1))),
             adam=dict(opt=Adam), ranger=dict(opt=ranger),
             accumulated=dict(cbs=[lambda: GradientAccumulation(40)]),
             sliced=dict(fit=dict(args=(2, slice(1e-3, 1e-2)))),
             sampled=dict(config=BiLMConfig(
    'nano', char_dim=4, filters=((1, 8),), proj_dim=16, hidden_dim=16, softmax='sampled',
    n_negative=20)))


@pytest.mark.parametrize('case', CASES)
def test_the_same_bits_as_without_the_interruption(corpus, tmp_path, case, capsys):
    c = dict(CASES[case])
    how, at, cbs = dict(args=(2, 1e-2)) | c.pop('fit', {}), c.pop('at', [11]), c.pop('cbs', [])
    def new(*more, **kw): return build(corpus, *[cb() for cb in cbs], *more, **{**c, **kw})
    a = result(fit(new(), **how))
    for n in at:
        broken(new(Checkpoints(tmp_path/str(n), minutes=0)), n, **how)
        b = new(Checkpoints(tmp_path/str(n)), seed=5)
        torch.rand(3), random.random(), np.random.rand()
        position = resume(b, tmp_path/str(n)).position
        assert position['epoch']*position['n_iter'] + position['batches'] == n
        equal(result(fit(b, **how)), a)

@pytest.mark.parametrize('n', [1, 8, 15, 24])
def test_every_place_in_an_epoch(corpus, whole, tmp_path, n):
    learn = build(corpus, Checkpoints(tmp_path, minutes=0))
    assert len(learn.dls.train) == 8
    broken(learn, n)
    again = build(corpus, Checkpoints(tmp_path), seed=9)
    resume(again, tmp_path)
    equal(result(fit(again)), whole)

@pytest.mark.parametrize('n', [3, 8, 11, 17, 19])
def test_a_budget_of_time_goes_on_with_the_rest(corpus, tmp_path, n):
    """By a clock that counts steps: the rest of the time, and the same bits; at the end of an
    epoch, within one, and with the last step done"""

    def budget():
        ticks = []
        # one tick a step, and one an epoch
        def clock(): ticks.append(1); return float(len(ticks))
        return TimeBudget(22, clock)
    how = dict(args=(TimeBudget.epochs, 1e-2), cbs=budget())
    a = result(fit(build(corpus), **how))
    assert len(a['losses']) == 20
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), n, **{**how, 'cbs': budget()})
    b = build(corpus, Checkpoints(tmp_path), seed=5)
    ckpt = resume(b, tmp_path)
    assert 2 <= ckpt.position['n_epoch'] <= 4 or n < 8
    equal(result(fit(b, **{**how, 'cbs': budget()})), a)

def test_a_budget_that_was_used_up(corpus, tmp_path):
    "Killed after the last step: nothing is left to train, and nothing is lost"
    learn = fit(
        build(corpus, Checkpoints(tmp_path)), args=(TimeBudget.epochs, 1e-2), cbs=TimeBudget(0.3)
    )
    again = build(corpus, Checkpoints(tmp_path), seed=9)
    resume(again, tmp_path)
    equal(result(fit(again, args=(TimeBudget.epochs, 1e-2), cbs=TimeBudget(.3))), result(learn))

def test_from_the_start_and_from_the_ends_of_epochs(corpus, whole, tmp_path):
    fit(build(corpus, Checkpoints(tmp_path, minutes=99, keep=9)))
    assert [o.split('-', 1)[1] for o in checkpoints_in(tmp_path)] == [
        'epoch3-end', 'epoch3-batch8', 'epoch2-end', 'epoch2-batch8', 'epoch1-end', 'epoch1-batch8',
        'start']
    for name in checkpoints_in(tmp_path):
        again = build(corpus, seed=3)
        resume(again, tmp_path/name)
        equal(result(fit(again)), whole)

def test_resumed_many_times(corpus, whole, tmp_path):
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), 2)
    for n in (5, 6, 17):
        learn = build(corpus, Checkpoints(tmp_path, minutes=0), seed=n)
        resume(learn, tmp_path)
        broken(learn, n)
    resume(last := build(corpus, Checkpoints(tmp_path)), tmp_path)
    equal(result(fit(last)), whole)

def test_replayed_from_the_last_checkpoint(corpus, whole, tmp_path):
    "The clock decides: steps after the last checkpoint are lost, and made again"
    broken(build(corpus, Checkpoints(tmp_path, minutes=99)), 14)
    assert checkpoints_in(tmp_path)[0] == '000003-epoch1-end'
    resume(last := build(corpus, seed=4), tmp_path)
    equal(result(fit(last)), whole)

def test_a_learner_that_was_used_before(corpus, whole, tmp_path):
    "lr_find and validate between `resume` and `fit` are no fit"
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), 11)
    learn = build(corpus, Checkpoints(tmp_path), seed=8, path=tmp_path)
    resume(learn, tmp_path)
    learn.validate()
    learn.lr_find(num_it=8, show_plot=False)
    learn.get_preds(ds_idx=1)
    equal(result(fit(learn)), whole)
    assert not [cb for cb in learn.cbs if isinstance(cb, Resume)]

def test_fits_afterwards_are_ordinary(corpus, tmp_path):
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), 11)
    learn = build(corpus)
    resume(learn, tmp_path)
    fit(learn)
    fit(learn, args=(1, 1e-3))
    assert len(learn.recorder.losses) == 8 and learn.recorder.values

def test_with_bars_and_a_table(corpus, whole, tmp_path, capsys):
    from fastai.callback.progress import ProgressCallback
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), 11)
    learn = build(corpus)
    learn.logger = print
    learn.add_cb(ProgressCallback())
    resume(learn, tmp_path)
    equal(result(fit(learn)), whole)

def test_training_metrics(corpus, tmp_path):
    def new(*cbs, **kw):
        learn = build(corpus, *cbs, **kw)
        learn.recorder.train_metrics = True
        return learn
    a = result(fit(new()))
    broken(new(Checkpoints(tmp_path, minutes=0)), 11)
    resume(b := new(), tmp_path)
    equal(result(fit(b)), a)

def test_the_csv_log(corpus, tmp_path):
    def log(name, append=False): return CSVLogger(tmp_path/name, append=append)
    def rows(name): return [o.rsplit(',', 1)[0] for o in (tmp_path/name).read_text().splitlines()]
    fit(build(corpus, log('a.csv')))
    for append in (False, True):
        name = f'b{append}.csv'
        broken(build(corpus, log(name, append), Checkpoints(tmp_path/name[:2], minutes=99)), 20)
        # heading and two epochs; the checkpoint is from the end of the second
        assert len(rows(name)) == 3
        # a row of an epoch that has no checkpoint
        (tmp_path/name).open('a').write('2,9.9,9.9,9.9,9.9,00:00\n')
        resume(learn := build(corpus, log(name, append)), tmp_path/name[:2])
        fit(learn)
        assert rows(name) == rows('a.csv')
        shutil.rmtree(tmp_path/name[:2])

def test_float16_and_its_scale(corpus, tmp_path):
    """On the CPU, with a scale that is far too large at first: steps are skipped, and the scale
    falls"""

    class FP16(MixedPrecision):
        def before_fit(self):
            self.autocast, self.learn.scaler, self.scales = (
                torch.autocast('cpu', torch.bfloat16), torch.amp.GradScaler(
                'cpu', init_scale=2.0**127, growth_interval=5), L())

    def new(**kw): return build(corpus, FP16(), *kw.pop('cbs', []), **kw)
    first = fit(new())
    a = result(first)
    assert len(first.recorder.losses) == 24
    broken(new(cbs=[Checkpoints(tmp_path, minutes=0)]), 11)
    scale = find_checkpoint(tmp_path).state['scaler']['scale']
    assert scale < 2.**127
    resume(b := new(seed=3), tmp_path)
    equal(result(fit(b)), a)

def test_frozen_layers_and_gradients_of_zero(corpus, tmp_path):
    def new(*cbs, **kw):
        learn = build(corpus, *cbs, opt=Adam, **kw)
        learn.freeze_to(2)
        return learn
    a = result(fit(new()))
    broken(new(Checkpoints(tmp_path, minutes=0)), 11)
    resume(b := new(seed=4), tmp_path)
    equal(result(fit(b)), a)
    c = build(corpus, opt=Adam)
    resume(c, tmp_path)
    with pytest.raises(CheckpointError, match='another training'): fit(c)

# text on disk

def table(corpus):
    import datasets
    return datasets.Dataset.from_dict({'text': [*corpus.train, None, ' ']})

LINES = dict(
    disk=lambda c: table(c),
    stream=lambda c: table(c).to_iterable_dataset(num_shards=3),
    shuffled=lambda c: table(c).to_iterable_dataset(num_shards=3).shuffle(seed=3, buffer_size=20),
    list=lambda c: list(c.train))


def test_the_position_after_an_epoch_that_was_done_already(corpus):
    a, b = (BufferedDataLoader.counted(corpus.train, buffer=30, tokenizer='space', bs=8, seed=1)
            for _ in range(2))
    list(a)
    b.load_state_dict(a.state_dict()); b.skip(len(b))
    assert not list(b) and b.state_dict() == a.state_dict()

def test_an_error_frees_the_folder(corpus, tmp_path):
    class Breaks(Callback):
        def after_batch(self): raise RuntimeError('no')
    learn = build(corpus, Checkpoints(tmp_path/'run'), Breaks())
    with pytest.raises(RuntimeError): fit(learn)
    assert learn.checkpoints.held is not None
    p = multiprocessing.get_context('fork').Process(
        target=hold, args=(
        tmp_path/'run', ready := multiprocessing.get_context('fork').Event(), ready))
    p.start(); p.join(30)
    assert ready.is_set() and p.exitcode == 0


@pytest.mark.parametrize('lines', ['disk', 'shuffled'])
@pytest.mark.parametrize('n', [5, 12])
def test_training_on_a_text_on_disk(corpus, tmp_path, lines, n):
    def new(*cbs, **kw):
        set_seed(1)
        learn = build(corpus, *cbs, **kw)
        dl = BufferedDataLoader(
            LINES[lines](corpus), vocab=learn.dls.vocab, n_batches=5, buffer=30, tokenizer='space',
            bs=8, device='cpu', seed=kw.get('seed', 1))
        learn.dls.loaders[0] = dl
        return learn
    a = result(fit(new()))
    broken(new(Checkpoints(tmp_path, minutes=0)), n)
    resume(b := new(seed=6), tmp_path)
    equal(result(fit(b)), a)

@pytest.mark.parametrize('kind,kwargs', [
    ('sentences', dict(bs=8)), ('sentences', dict(bs=8, max_tokens=60)),
    ('stream', dict(bs=3, seq_len=10)), ('cbow', dict(bs=50))])
def test_skipped_batches(corpus, kind, kwargs):
    from elmo_fastai.data.batches import LOADERS

    text = EncodedText([o.split() for o in corpus.train],
                       TokenTypes(WordVocab.build([o.split() for o in corpus.train])))
    for n in (0, 1, 5, 10**6):
        a, b = [LOADERS[kind](text, shuffle=True, seed=3, **kwargs) for _ in range(2)]
        b.skip(n)
        one = list(a)[n:]
        for x, y in zip(one, list(b), strict=True):
            assert all(torch.equal(p, q) for p, q in zip(x, y))
        # the next epoch is whole
        for x,y in zip(a, b, strict=True): assert all(torch.equal(p, q) for p,q in zip(x, y))
    with pytest.raises(ValueError): a.skip(-1)

def test_other_loaders(corpus, whole, tmp_path):
    "Any loader of fastai or PyTorch: its batches are drawn again and thrown away"
    from fastai.data.all import DataLoader
    items = list(build(corpus).dls.train)
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return len(items)
        def __getitem__(self, i): torch.rand(1); random.random(); return items[i]

    for cls, kw in ((DataLoader, dict(bs=None)),
        (torch.utils.data.DataLoader, dict(batch_size=None))):

        def new(*cbs, **k):
            learn = build(corpus, *cbs, **k)
            learn.dls.loaders[0] = cls(Noisy(), shuffle=True, **kw)
            learn.dls.train.n_inp = 1
            return learn

        a = result(fit(new(), args=(2, 1e-2)))
        folder = tmp_path/cls.__module__
        broken(new(Checkpoints(folder, minutes=0)), 11, args=(2, 1e-2))
        resume(b := new(seed=6), folder)
        equal(result(fit(b, args=(2, 1e-2))), a)


# killed

def _train(folder, out):
    "What the process does that is killed: begin or go on; in the end write the weights"
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    files.sync = checkpoint.sync = REAL_SYNC
    corpus = toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)
    learn = build(corpus, Checkpoints(folder, minutes=0), CSVLogger(folder/'log.csv'),
                  CarryState(), kind='stream', path=folder)
    if checkpoints_in(folder): resume(learn, folder)
    fit(learn, args=(2, 1e-2))
    save_file({k: v.contiguous() for k,v in learn.model.state_dict().items()}, out)

@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    fork, rng, lives = multiprocessing.get_context('fork'), random.Random(time.time_ns()), 0
    (tmp_path/'whole').mkdir(), (tmp_path/'killed').mkdir()
    whole = fork.Process(target=_train, args=(tmp_path/'whole', tmp_path/'a.safetensors'))
    start = time.monotonic()
    whole.start(); whole.join()
    took = time.monotonic() - start
    assert whole.exitcode == 0
    while not (tmp_path/'b.safetensors').exists():
        p = fork.Process(target=_train, args=(tmp_path/'killed', tmp_path/'b.safetensors'))
        p.start()
        before = checkpoints_in(tmp_path/'killed')
        deadline = time.monotonic() + 30
        while (p.is_alive() and checkpoints_in(tmp_path/'killed') == before
               and time.monotonic() < deadline):
            time.sleep(0.002)
        p.join(rng.uniform(0, took/4 if lives < 6 else took))
        if p.is_alive(): os.kill(p.pid, signal.SIGKILL)
        p.join()
        assert p.exitcode in (0, -signal.SIGKILL)
        lives += 1
    assert lives > 1
    a,b = load_file(tmp_path/'a.safetensors'),load_file(tmp_path/'b.safetensors')
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    rows = [[o.rsplit(',', 1)[0] for o in (tmp_path/k/'log.csv').read_text().splitlines()]
            for k in ('whole', 'killed')]
    assert rows[0] == rows[1]

def test_killed_between_writing_and_renaming(corpus, whole, tmp_path):
    def child():
        torch.set_num_threads(1)
        n = 0
        rename = os.rename
        def die(a, b):
            nonlocal n
            n += 1
            if n == 9: os.kill(os.getpid(), signal.SIGKILL)
            rename(a, b)
        os.rename = die
        fit(build(corpus, Checkpoints(tmp_path, minutes=0)))
    p = multiprocessing.get_context('fork').Process(target=child)
    p.start(); p.join()
    assert p.exitcode == -signal.SIGKILL
    # half a checkpoint, as far as its name says
    assert [o for o in tmp_path.glob('.*-*') if o.is_dir()]
    assert checkpoints_in(tmp_path)[0].startswith('000008')
    learn = build(corpus, Checkpoints(tmp_path), seed=3)
    resume(learn, tmp_path)
    equal(result(fit(learn)), whole)
    assert not list(tmp_path.glob('.*-*'))

# asked to stop

@pytest.mark.parametrize('training', [True, False])
def test_a_polite_stop_keeps_the_last_step(corpus, whole, tmp_path, training):
    class Ask(Callback):
        order = 50
        def after_batch(self):
            if self.epoch == 1 and self.training == training and self.iter == 1:
                self.learn.stop_on_signal.asked = 'SIGTERM'

    learn = build(corpus, Ask(), Checkpoints(tmp_path, minutes=99))
    fit(learn)
    at = find_checkpoint(tmp_path).position
    assert (at['epoch'], at['batches']) == (1, 2 if training else 8)
    resume(again := build(corpus, Checkpoints(tmp_path), seed=2), tmp_path)
    equal(result(fit(again)), whole)

def test_a_diverging_training_is_not_kept(corpus, tmp_path):
    class Spoil(Callback):
        order = 80
        def after_batch(self):
            if self.training and self.train_iter == 11:
                next(self.model.parameters()).data.fill_(math.inf)

    learn = build(corpus, Spoil(), Checkpoints(tmp_path, minutes=0, keep=99))
    fit(learn)
    assert learn.stopped
    assert all(v.isfinite().all() for o in checkpoints_in(tmp_path)
               for v in load_plain(tmp_path/o/FILE)['state']['model'].values()
               if v.is_floating_point())


# which are kept

def test_the_best_and_the_last_are_kept(corpus, tmp_path):
    class Worse(Callback):
        # the second epoch was the best
        def after_validate(self):
            self.recorder.loss.nats = [[3.0, 1.0, 2.0, 4.0][self.epoch], 0.0]
            self.recorder.loss.n = [1, 0]

    learn = build(corpus, Worse(), Checkpoints(tmp_path, minutes=0, keep=3))
    fit(learn, args=(4, 1e-2))
    names = checkpoints_in(tmp_path)
    assert [o.split('-', 1)[1] for o in names] == [
        'epoch4-end', 'epoch4-batch8', 'epoch4-batch8', 'epoch2-end']
    assert read_checkpoint(tmp_path/names[-1]).valid_loss == 1.

def test_pruning_touches_nothing_else(tmp_path):
    for o in ('000001-start', '000002-epoch1-end', '000003-epoch2-end', 'notes', '12-mine',
              '.hidden', '000004-file'):
        (tmp_path/o).mkdir() if o != '000004-file' else (tmp_path/o).write_text('x')
    prune_checkpoints(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == [
        '.hidden', '000003-epoch2-end', '000004-file', '12-mine', 'notes']


def test_keep_is_checked(tmp_path):
    with pytest.raises(ValueError, match='keep=0'): Checkpoints(tmp_path, keep=0)

# what does not fit

@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    broken(build(corpus, Checkpoints(folder, minutes=0, keep=3, run=dict(corpus='toy', lr=0.01))),
           11)
    return folder

@pytest.fixture
def damaged(run, tmp_path):
    shutil.copytree(run, tmp_path/'run')
    return tmp_path/'run'

def test_other_trainings_are_refused(corpus, run):
    def refused(match, learn=None, **how):
        with pytest.raises(CheckpointError, match=match) as e:
            learn = learn or build(corpus)
            resume(learn, run)
            fit(learn, **how)
        assert str(run) in str(e.value) and 'Exception occured' not in str(e.value)
    refused('epochs was 3, now it is 4', args=(4, 1e-2))
    refused('schedule of lr was', args=(3, 2e-2))
    refused('schedule of mom was', moms=(.9, .8, .9))
    refused('rates was|schedule', method='fit', args=(3, 1e-2))
    refused('rates, weight decay was', wd=.5)
    refused('batches an epoch was 8', build(Corpus(
        'twice', dict(train=corpus.train*2, valid=corpus.valid), 'space')))
    refused('optimiser was AdamW, now it is Adagrad', build(corpus, opt='adagrad'))
    refused('optimiser was AdamW, now it is Optimizer', build(corpus, opt=Adam))
    refused(r'was \(.*\), now it is \(', build(
        corpus, config=BiLMConfig(
        'nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=32)))
    refused('was .*, now it is None', build(
        corpus, config=BiLMConfig(
        'nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=16, n_layers=1)))
    refused('lr was 0.01, now it is 0.02', build(
        corpus, Checkpoints(run, run=dict(corpus='toy', lr=0.02))))
    refused('corpus was toy, now it is None', build(corpus, Checkpoints(run)))
    refused('callbacks was', build(corpus, EarlyStop()))

def test_nothing_has_changed_after_a_refusal(corpus, run):
    learn = build(corpus, config=BiLMConfig(
        'nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=32), seed=2)
    before = {k: v.clone() for k,v in learn.model.state_dict().items()}
    resume(learn, run)
    with pytest.raises(CheckpointError): fit(learn)
    assert all(torch.equal(v, before[k]) for k,v in learn.model.state_dict().items())

def test_a_fresh_start_in_a_used_folder_is_refused(corpus, run):
    with pytest.raises(CheckpointError, match='resume.*or take another folder'):
        fit(build(corpus, Checkpoints(run)))


def test_another_machine_is_mentioned(corpus, run):
    said = []
    torch.set_num_threads(2)
    try: resume(build(corpus), run, said.append)
    finally: torch.set_num_threads(1)
    assert len(said) == 1 and 'threads was 1, now it is 2' in said[0]

# damaged files

def newest(folder): return folder/checkpoints_in(folder)[0]

def cut(file): file.write_bytes(file.read_bytes()[:file.stat().st_size//2])
def flip(file, at=None):
    data = bytearray(file.read_bytes())
    data[len(data)//2 if at is None else at] ^= 4
    file.write_bytes(data)
def change(file, f):
    "Other contents, with checksums that are right"
    fields = load_plain(file)
    save_plain(f(fields) or fields, file)
def pack_tightly(file):
    "A file of some kilobytes that would ask for gigabytes"
    with zipfile.ZipFile(file) as f: members = {o.filename: f.read(o) for o in f.infolist()}
    with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as f:
        for name,data in members.items(): f.writestr(name, data)
class Code:
    def __reduce__(self): return exec, ("raise SystemError('it ran')",)

DAMAGE = dict(
    cut=(cut, 'can\'t be read'),
    a_bit=(flip, 'it is damaged'),
    empty=(lambda f: f.write_bytes(b''), 'can\'t be read'),
    gone=(lambda f: f.unlink(), 'can\'t be read.*No such file'),
    a_folder=(lambda f: (f.unlink(), f.mkdir()), 'can\'t be read.*directory'),
    foreign=(lambda f: save_plain(dict(weight=torch.ones(3)), f), 'can\'t be read.*weight'),
    a_list=(lambda f: save_plain([1], f), 'can\'t be read'),
    text=(lambda f: f.write_text('epoch 3'), 'can\'t be read'),
    a_pickle=(lambda f: f.write_bytes(pickle.dumps(dict(a=1))), 'can\'t be read'),
    code=(lambda f: torch.save(Code(), f), 'could run code'),
    code_in_it=(lambda f: torch.save(torch.load(f) | dict(saved=Code()), f), 'could run code'),
    packed=(pack_tightly, 'it is damaged, or of another kind'),
    a_field_less=(lambda f: change(f, lambda h: h.pop('position') and None), 'position'),
    a_field_more=(lambda f: change(f, lambda h: h | dict(future=1)), 'future'))


@pytest.mark.parametrize('what', DAMAGE)
def test_damage_is_named_and_the_older_one_taken(corpus, damaged, what):
    do,match = DAMAGE[what]
    path = newest(damaged)
    older = damaged/checkpoints_in(damaged)[1]
    do(path/FILE)
    with pytest.raises(CheckpointError, match=match) as e: read_checkpoint(path)
    assert str(path) in str(e.value) and len(str(e.value)) < 500
    said = []
    assert find_checkpoint(damaged, said.append).path == older
    assert len(said) == 1 and str(path) in said[0] and older.name in said[0]
    with pytest.raises(CheckpointError): resume(build(corpus), path)

def test_no_flipped_bit_goes_unnoticed(run, tmp_path):
    "Wherever it is: an error, or it was in something that is not read, such as the padding"
    good, size = load_plain(newest(run)/FILE), (newest(run)/FILE).stat().st_size
    rng, noticed = random.Random(1), 0

    def flat(o):
        return ([o] if not isinstance(o, (dict, list, tuple)) else [
            x for p in (o.items() if isinstance(o, dict) else o) for x in flat(p)])

    for _ in range(60):
        shutil.copy(newest(run)/FILE, tmp_path/FILE)
        flip(tmp_path/FILE, rng.randrange(size))
        try:
            now = load_plain(tmp_path/FILE)
        except Exception:
            noticed += 1
        else:
            assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
                       for a, b in zip(flat(good), flat(now), strict=True))
    assert noticed > 40

def test_going_on_from_the_older_one_is_exact_too(corpus, whole, damaged):
    flip(newest(damaged)/FILE)
    learn = build(corpus, Checkpoints(damaged, run=dict(corpus='toy', lr=.01)), seed=3)
    with pytest.warns(UserWarning, match='Going on from the older'): at = resume(learn, damaged)
    assert at.position['batches'] == 2
    equal(result(fit(learn)), whole)

def test_no_good_one_at_all(corpus, damaged, tmp_path):
    for o in checkpoints_in(damaged): flip(damaged/o/FILE)
    with pytest.raises(CheckpointError, match='no good checkpoint') as e: find_checkpoint(damaged)
    assert all(o in str(e.value) for o in checkpoints_in(damaged))
    for o in (tmp_path/'nowhere', tmp_path):
        with pytest.raises(CheckpointError, match='no good checkpoint'): resume(build(corpus), o)
    (tmp_path/'a file').write_text('x')
    for f in (find_checkpoint, read_checkpoint):
        with pytest.raises(CheckpointError): f(tmp_path/'a file')

HOSTILE = {
    'no model': lambda s: s.pop('model'),
    'weights of another shape': lambda s: s['model'].update({
        next(iter(s['model'])): torch.zeros(3, 3)}),
    'model is a list': lambda s: s.update(model=[]),
    'optimizer is text': lambda s: s.update(optimizer='x'),
    'no optimizer': lambda s: s.pop('optimizer'),
    'no callbacks': lambda s: s['own'][0].pop('callbacks'),
    'callbacks are numbers': lambda s: s['own'][0].update(callbacks=3),
    'own is a number': lambda s: s.update(own=1),
    'two processes': lambda s: s['settings'].update(processes=2),
    'random state': lambda s: s['own'][0]['rng'].update(random_state=(3, (1, 2), None)),
    'random state of torch': lambda s: s['own'][0]['rng'].update(torch_state=torch.zeros(5)),
    'no beginning': lambda s: s['own'][0].pop('begun'),
    'loader': lambda s: s['own'][0].update(begun='x'),
    'loaders': lambda s: s['own'][0].update(loaders=[]),
    'grads': lambda s: s.update(grads=None),
    'settings': lambda s: s.update(settings=[1])}


@pytest.mark.parametrize('what', HOSTILE)
def test_states_that_lie(corpus, run, tmp_path, what):
    "Files with right checksums and wrong contents end in a sentence, too"
    shutil.copytree(newest(run), tmp_path/'000001-bad')
    change(tmp_path/'000001-bad'/FILE, lambda fields: HOSTILE[what](fields['state']) and None)
    learn = build(corpus)
    with pytest.raises(CheckpointError) as e:
        resume(learn, tmp_path/'000001-bad')
        fit(learn)
    assert '000001-bad' in str(e.value) and 'Exception occured' not in str(e.value)


# disks

@pytest.fixture
def small_files():
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n: resource.setrlimit(resource.RLIMIT_FSIZE, (n, was[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, was)

@pytest.mark.slow
def test_a_full_disk_keeps_the_old_one_and_the_training(corpus, whole, tmp_path, small_files):
    class Full(Callback):
        order = 1
        def before_train(self): small_files(20_000 if self.epoch == 1 else was)
    was = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    learn = build(corpus, Full(), Checkpoints(tmp_path, minutes=0, keep=99))
    with pytest.warns(
        UserWarning, match='training goes on; the newest checkpoint is 000011-epoch1-end'
    ):
        fit(learn)
    equal(result(learn), whole)
    assert not list(tmp_path.glob('.[0-9]*')) and not [
        o for o in checkpoints_in(tmp_path) if 'epoch2' in o]
    assert 'epoch3-end' in checkpoints_in(tmp_path)[0]      # there was room again

def test_a_disk_that_is_full_at_the_start_is_said_at_once(corpus, tmp_path, small_files):
    small_files(20_000)
    with pytest.raises(CheckpointError, match='No checkpoint could be written'):
        fit(build(corpus, Checkpoints(tmp_path/'run')))


@pytest.mark.parametrize('where', ['write', 'sync', 'rename'])
def test_errors_of_the_system(corpus, tmp_path, monkeypatch, where):
    broken(build(corpus, Checkpoints(tmp_path, minutes=0)), 3)
    before = checkpoints_in(tmp_path)
    def fail(*args, **kwargs): raise OSError(errno.ENOSPC, 'No space left on device')
    if where == 'write': monkeypatch.setattr(checkpoint, 'save_plain', fail)
    elif where == 'sync': monkeypatch.setattr(files, 'sync', fail)
    else: monkeypatch.setattr(os, 'rename', fail)
    resume(learn := build(corpus, Checkpoints(tmp_path, minutes=0)), tmp_path)
    with pytest.warns(UserWarning, match='No space left'): fit(learn)
    assert checkpoints_in(tmp_path) == before and not list(tmp_path.glob('.[0-9]*'))

def test_a_folder_that_goes_away(corpus, tmp_path):
    class Gone(Callback):
        order = 1
        def before_train(self):
            if self.epoch == 1: shutil.rmtree(tmp_path/'run')
    learn = build(corpus, Gone(), Checkpoints(tmp_path/'run', minutes=0))
    with pytest.warns(UserWarning, match='No checkpoint could be written'): fit(learn)
    assert len(learn.recorder.values) == 3

def test_everything_is_on_the_disk_before_the_name(corpus, tmp_path, monkeypatch):
    seen, rename = [], os.rename
    def sync(p): seen.append(Path(p).name)
    monkeypatch.setattr(files, 'sync', sync)
    monkeypatch.setattr(checkpoint, 'sync', sync)
    monkeypatch.setattr(os, 'rename', lambda a, b: (seen.append('rename'), rename(a, b)))
    broken(build(corpus, Checkpoints(tmp_path/'run')), 1)
    at = seen.index('rename')
    assert (FILE in seen[:at] and any(name.startswith('.000001-start') for name in seen[:at])
            and 'run' in seen[at:])


# locks

def hold(folder, ready, kill):
    with lock_folder(folder):
        ready.set()
        kill.wait(20)

def test_two_processes_exclude_each_other_and_a_killed_one_does_not(corpus, tmp_path):
    fork = multiprocessing.get_context('fork')
    ready,kill = fork.Event(),fork.Event()
    p = fork.Process(target=hold, args=(tmp_path, ready, kill))
    p.start()
    assert ready.wait(20)
    with pytest.raises(
        CheckpointError, match=f'{tmp_path} is in use by process {p.pid} on .* since'
    ):
        with lock_folder(tmp_path):
            pass
    with pytest.raises(CheckpointError, match='in use'): fit(build(corpus, Checkpoints(tmp_path)))
    (tmp_path/'lock').unlink()                                  # not written yet
    with pytest.raises(CheckpointError, match='in use by another process'):
        with lock_folder(tmp_path): pass
    assert not checkpoints_in(tmp_path)
    os.kill(p.pid, signal.SIGKILL)
    p.join()
    with lock_folder(tmp_path):
        assert (tmp_path/'lock').read_text().startswith(f'{os.getpid()} on ')


def test_one_process_may_lock_twice(corpus, tmp_path):
    with lock_folder(tmp_path):
        fit(build(corpus, Checkpoints(tmp_path)), args=(1, 1e-2))
        with lock_folder(tmp_path): pass
    with lock_folder(tmp_path): pass

def test_a_lock_with_nonsense_in_it(tmp_path):
    (tmp_path/'lock').write_bytes(b'\x41'*1000)
    with lock_folder(tmp_path): pass

# what a file may hold

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5))
trees = st.recursive(
    leaves,
    lambda o: (
        st.lists(o, max_size=4)
        | st.lists(o, max_size=3).map(tuple)
        | st.dictionaries(
            st.text(max_size=3) | st.integers() | st.tuples(st.integers()), o, max_size=3
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(trees)
def test_what_is_saved_comes_back(tmp_path, o):
    save_plain(o, tmp_path/FILE)
    assert repr(load_plain(tmp_path/FILE)) == repr(o)


def test_a_callback_that_keeps_what_cannot_be_kept(corpus, tmp_path):
    class Odd(Callback):
        def state_dict(self): return dict(thing=object())
        def load_state_dict(self, state): pass

    with pytest.raises(TypeError, match='callbacks.odd.thing is of type object'):
        fit(build(corpus, Odd(), Checkpoints(tmp_path)))
