"""A training that breaks off at any moment goes on as if it had not; whatever is wrong with its
files is said in a sentence"""

import errno, math, multiprocessing, os, pickle, random, resource, shutil, signal, time
import warnings, zipfile
from pathlib import Path

import datasets, numpy as np, pytest, torch
from fastai.basics import Adam, Callback, L, ranger, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, GradientAccumulation, MixedPrecision, ReduceLROnPlateau)
from fastai.callback.progress import ProgressCallback
from fastai.data.all import DataLoader
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file

import elmo_fastai.base.files as files
import elmo_fastai.train.checkpoint as checkpoint
from elmo_fastai.base.errors import CheckpointError
from elmo_fastai.base.files import load_plain, lock_folder, save_plain
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.nn.bilm import BiLMConfig
from elmo_fastai.data.batches import LOADERS
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.train.checkpoint import (
    FILE, Checkpoints, Resume, checkpoints_in, find_checkpoint, prune_checkpoints, read_checkpoint,
    resume)
from elmo_fastai.train.learner import CarryState, EarlyStop, TimeBudget, bilm_learner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('held_throughout')]

NANO = dict(char_dim=4, filters=((1,8),(2,8)), proj_dim=16, hidden_dim=16)
def config(**changes): return BiLMConfig('nano', **NANO | changes)
CFG = config(dropout=.2)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)

REAL_SYNC = files.sync

@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    "Tests need not wait for the disk; the one with the killed processes does"
    for module in (files, checkpoint): monkeypatch.setattr(module, 'sync', lambda path: None)

class Break(Callback):
    order = 99
    def __init__(self, n): self.n = n
    def after_batch(self):
        if self.training and self.train_iter == self.n: raise KeyboardInterrupt()

def build(corpus, *cbs, kind='sentences', seed=1, config=CFG, **kwargs):
    set_seed(seed)
    size = dict(bs=4, seq_len=16) if kind == 'stream' else dict(bs=16)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', **size)
    learn = bilm_learner(dls, config, **{'bf16': False, 'cbs': list(cbs), **kwargs})
    learn.remove_cb(learn.progress)
    learn.logger = lambda *_: None
    return learn

def fit(learn, method='fit_one_cycle', args=(3, 1e-2), **kwargs):
    getattr(learn, method)(*args, **kwargs)
    return learn

def broken(learn, n, **kwargs):
    with learn.added_cbs(Break(n)), pytest.raises(KeyboardInterrupt): fit(learn, **kwargs)
    return learn

def resumed(learn, path):
    resume(learn, path)
    return learn

def often(folder, **kwargs): return Checkpoints(folder, minutes=0, **kwargs)

def result(learn):
    rec = learn.recorder
    return dict({k: v.clone() for k, v in learn.model.state_dict().items()},
                losses=torch.stack([torch.as_tensor(loss) for loss in rec.losses]), lrs=rec.lrs,
                values=[list(row) for row in rec.values], iters=rec.iters,
                hps=getattr(rec, 'hps', None))

def equal(a, b):
    assert a.keys() == b.keys()
    for k, v in a.items():
        assert torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k], k

def check_broken_at(n, new, folder, **how):
    """Is the training that breaks off after `n` steps, and is resumed, the one that does not?
    `new(*cbs, seed=…)` makes its learner"""
    whole = result(fit(new(), **how))
    broken(new(often(folder)), n, **how)
    again = new(Checkpoints(folder), seed=5)
    torch.rand(3), random.random(), np.random.rand()
    position = resume(again, folder).position
    assert position['epoch']*position['n_iter'] + position['batches'] == n
    equal(result(fit(again, **how)), whole)

@pytest.fixture(scope='module')
def whole(corpus): return result(fit(build(corpus)))

# the same bits

CASES = dict(
    sentences=dict(), stream=dict(kind='stream', at=20), bf16=dict(bf16=True),
    carried=dict(kind='stream', cbs=[CarryState], at=30),
    early=dict(cbs=[lambda: EarlyStop(1)], fit=dict(args=(3, .3))),
    early_fastai=dict(cbs=[lambda: EarlyStoppingCallback(patience=1)], fit=dict(args=(4, .3))),
    plateau=dict(cbs=[lambda: ReduceLROnPlateau(patience=1)], fit=dict(method='fit', args=(4, .1))),
    flat=dict(fit=dict(method='fit_flat_cos')), constant=dict(fit=dict(method='fit')),
    adagrad=dict(opt='adagrad', fit=dict(args=(2, .1))), adam=dict(opt=Adam),
    ranger=dict(opt=ranger), accumulated=dict(cbs=[lambda: GradientAccumulation(40)]),
    sliced=dict(fit=dict(args=(2, slice(1e-3, 1e-2)))),
    sampled=dict(config=config(filters=((1, 8),), softmax='sampled', n_negative=20)))

@pytest.mark.parametrize('case', CASES)
def test_the_same_bits_as_without_the_interruption(corpus, tmp_path, case):
    c = dict(CASES[case])
    how, at, cbs = dict(args=(2, 1e-2)) | c.pop('fit', {}), c.pop('at', 11), c.pop('cbs', [])
    def new(*more, **kw): return build(corpus, *[cb() for cb in cbs], *more, **c, **kw)
    check_broken_at(at, new, tmp_path, **how)

@pytest.mark.parametrize('n', [1, 8, 15, 24])
def test_every_place_in_an_epoch(corpus, whole, tmp_path, n):
    learn = build(corpus, often(tmp_path))
    assert len(learn.dls.train) == 8
    broken(learn, n)
    equal(result(fit(resumed(build(corpus, Checkpoints(tmp_path), seed=9), tmp_path))), whole)

@pytest.mark.parametrize('n', [3, 8, 11, 17, 19])
def test_a_budget_of_time_goes_on_with_the_rest(corpus, tmp_path, n):
    """By a clock that counts steps: the rest of the time, and the same bits; at the end of an
    epoch, within one, and with the last step done"""
    def how():
        ticks = []
        # one tick a step, and one an epoch
        def clock(): ticks.append(1); return float(len(ticks))
        return dict(args=(TimeBudget.epochs, 1e-2), cbs=TimeBudget(22, clock))
    whole = result(fit(build(corpus), **how()))
    assert len(whole['losses']) == 20
    broken(build(corpus, often(tmp_path)), n, **how())
    again = build(corpus, Checkpoints(tmp_path), seed=5)
    assert 2 <= resume(again, tmp_path).position['n_epoch'] <= 4 or n < 8
    equal(result(fit(again, **how())), whole)

def test_a_budget_that_was_used_up(corpus, tmp_path):
    "Killed after the last step: nothing is left to train, and nothing is lost"
    def trained(learn): return fit(learn, args=(TimeBudget.epochs, 1e-2), cbs=TimeBudget(.3))
    learn = trained(build(corpus, Checkpoints(tmp_path)))
    again = trained(resumed(build(corpus, Checkpoints(tmp_path), seed=9), tmp_path))
    equal(result(again), result(learn))

def test_from_the_start_and_from_the_ends_of_epochs(corpus, whole, tmp_path):
    fit(build(corpus, Checkpoints(tmp_path, minutes=99, keep=9)))
    names = checkpoints_in(tmp_path)
    assert [name.split('-', 1)[1] for name in names] == [
        'epoch3-end', 'epoch3-batch8', 'epoch2-end', 'epoch2-batch8', 'epoch1-end', 'epoch1-batch8',
        'start']
    for name in names: equal(result(fit(resumed(build(corpus, seed=3), tmp_path/name))), whole)

def test_a_fit_that_began_later_goes_on_exactly(corpus, tmp_path):
    "From its start, from within an epoch and from an end; its epochs keep their numbers"
    def new(*cbs, **kwargs): return build(corpus, *cbs, EarlyStop(None), **kwargs)
    later = dict(args=(4, 1e-2), start_epoch=2)
    whole = fit(new(often(tmp_path, keep=99)), **later)
    names = checkpoints_in(tmp_path)
    for end in ('start', 'epoch3-batch2', 'epoch3-end', 'epoch4-end'):
        [name] = [name for name in names if name.endswith(end)]
        again = fit(resumed(new(seed=5), tmp_path/name), **later)
        equal(result(again), result(whole))
        assert len(again.recorder.values) == 2
        assert again.early_stop.best_epoch == whole.early_stop.best_epoch >= 2
    with pytest.raises(CheckpointError, match='resume'): fit(new(Checkpoints(tmp_path)), **later)

@pytest.mark.parametrize('was', [True, False])
def test_a_training_goes_on_in_its_precision(corpus, tmp_path, was):
    "Also on a processor where a learner would have begun in the other one"
    whole = result(fit(build(corpus, bf16=was)))
    broken(build(corpus, often(tmp_path), bf16=was), 11)
    learn, told = build(corpus, bf16=not was, seed=5), []
    resume(learn, tmp_path, told.append)
    assert hasattr(learn, 'bf16') == was and len(told) == 1 and 'as it began' in told[0]
    equal(result(fit(learn)), whole)

def test_resumed_many_times(corpus, whole, tmp_path):
    broken(build(corpus, often(tmp_path)), 2)
    for n in (5, 6, 17): broken(resumed(build(corpus, often(tmp_path), seed=n), tmp_path), n)
    equal(result(fit(resumed(build(corpus, Checkpoints(tmp_path)), tmp_path))), whole)

def test_a_learner_that_was_used_before(corpus, whole, tmp_path):
    "lr_find and validate between `resume` and `fit` are no fit"
    broken(build(corpus, often(tmp_path)), 11)
    learn = resumed(build(corpus, Checkpoints(tmp_path), seed=8, path=tmp_path), tmp_path)
    learn.validate()
    learn.lr_find(num_it=8, show_plot=False)
    learn.get_preds(ds_idx=1)
    equal(result(fit(learn)), whole)
    assert not [cb for cb in learn.cbs if isinstance(cb, Resume)]

def test_fits_afterwards_are_ordinary(corpus, tmp_path):
    broken(build(corpus, often(tmp_path)), 11)
    learn = fit(resumed(build(corpus), tmp_path))
    fit(learn, args=(1, 1e-3))
    assert len(learn.recorder.losses) == 8 and learn.recorder.values

def test_with_bars_and_a_table(corpus, whole, tmp_path, capsys):
    broken(build(corpus, often(tmp_path)), 11)
    learn = build(corpus)
    learn.logger = print
    learn.add_cb(ProgressCallback())
    equal(result(fit(resumed(learn, tmp_path))), whole)

def test_training_metrics(corpus, tmp_path):
    def new(*cbs, **kwargs):
        learn = build(corpus, *cbs, **kwargs)
        learn.recorder.train_metrics = True
        return learn
    check_broken_at(11, new, tmp_path)

@pytest.mark.parametrize('append', [False, True])
def test_the_csv_log(corpus, tmp_path, append):
    def log(name, append=False): return CSVLogger(tmp_path/name, append=append)
    def rows(name): return [row.rsplit(',', 1)[0] for row in (tmp_path/name).open()]
    fit(build(corpus, log('a.csv')))
    broken(build(corpus, log('b.csv', append), Checkpoints(tmp_path/'run', minutes=99)), 20)
    # heading and two epochs; the checkpoint is from the end of the second
    assert len(rows('b.csv')) == 3
    # a row of an epoch that has no checkpoint
    (tmp_path/'b.csv').open('a').write('2,9.9,9.9,9.9,9.9,00:00\n')
    fit(resumed(build(corpus, log('b.csv', append)), tmp_path/'run'))
    assert rows('b.csv') == rows('a.csv')

def test_float16_and_its_scale(corpus, tmp_path):
    """On the CPU, with a scale that is far too large at first: steps are skipped, and the scale
    falls"""
    class FP16(MixedPrecision):
        def before_fit(self):
            self.autocast, self.scales = torch.autocast('cpu', torch.bfloat16), L()
            scale = dict(init_scale=2.**127, growth_interval=5)
            self.learn.scaler = torch.amp.GradScaler('cpu', **scale)
    check_broken_at(11, lambda *cbs, **kw: build(corpus, FP16(), *cbs, **kw), tmp_path)
    assert find_checkpoint(tmp_path).state['scaler']['scale'] < 2.**127

def test_frozen_layers_and_gradients_of_zero(corpus, tmp_path):
    def new(*cbs, **kwargs):
        learn = build(corpus, *cbs, opt=Adam, **kwargs)
        learn.freeze_to(2)
        return learn
    check_broken_at(11, new, tmp_path)
    with pytest.raises(CheckpointError, match='another training'):
        fit(resumed(build(corpus, opt=Adam), tmp_path))

# text on disk

def on_disk(corpus, **kwargs):
    data = datasets.Dataset.from_dict({'text': [*corpus.train, None, ' ']})
    return stream_loaders(data, n_valid=9, buffer=30, tokenizer='space', bs=8, device='cpu', **kwargs)

def test_the_position_after_an_epoch_that_was_done_already(corpus):
    a, b = (on_disk(corpus, seed=1).train for _ in range(2))
    list(a)
    b.load_state_dict(a.state_dict()); b.skip(len(b))
    assert not list(b) and b.state_dict() == a.state_dict()

@pytest.mark.parametrize('n', [5, 12])
def test_training_on_a_text_on_disk(corpus, tmp_path, n):
    def new(*cbs, seed=1):
        set_seed(1)
        learn = build(corpus, *cbs, seed=seed)
        learn.dls.loaders[0] = on_disk(corpus, vocab=learn.dls.vocab, n_batches=5, seed=seed).train
        return learn
    check_broken_at(n, new, tmp_path)

@pytest.mark.parametrize('kind,kwargs', [
    ('sentences', dict(bs=8)), ('sentences', dict(bs=8, max_tokens=60)),
    ('stream', dict(bs=3, seq_len=10)), ('cbow', dict(bs=50))])
def test_skipped_batches(corpus, kind, kwargs):
    sents = [line.split() for line in corpus.train]
    text = EncodedText(sents, TokenTypes(WordVocab.build(sents)))
    def check(some, others):
        for x,y in zip(some, others, strict=True):
            assert all(torch.equal(p, q) for p,q in zip(x, y))
    for n in (0, 1, 5, 10**6):
        a, b = [LOADERS[kind](text, shuffle=True, seed=3, **kwargs) for _ in range(2)]
        b.skip(n)
        check(list(a)[n:], list(b))
        check(a, b)                                          # the next epoch is whole
    with pytest.raises(ValueError): a.skip(-1)

@pytest.mark.parametrize('cls,kwargs', [
    (DataLoader, dict(bs=None)), (torch.utils.data.DataLoader, dict(batch_size=None))],
    ids=['fastai', 'torch'])
def test_other_loaders(corpus, tmp_path, cls, kwargs):
    "Their batches are drawn again and thrown away"
    items = list(build(corpus).dls.train)
    class Noisy(torch.utils.data.Dataset):
        def __len__(self): return len(items)
        def __getitem__(self, i): torch.rand(1); random.random(); return items[i]
    def new(*cbs, **kw):
        learn = build(corpus, *cbs, **kw)
        learn.dls.loaders[0] = cls(Noisy(), shuffle=True, **kwargs)
        learn.dls.train.n_inp = 1
        return learn
    how = dict(args=(2, 1e-2))
    whole = result(fit(new(), **how))
    broken(new(often(tmp_path)), 11, **how)
    equal(result(fit(resumed(new(seed=6), tmp_path), **how)), whole)

# killed

def forked(target, *args):
    process = multiprocessing.get_context('fork').Process(target=target, args=args)
    process.start()
    return process

def _train(folder, out):
    "What the process does that is killed: begin or go on; in the end write the weights"
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    files.sync = checkpoint.sync = REAL_SYNC
    corpus = toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)
    learn = build(corpus, often(folder), CSVLogger(folder/'log.csv'), CarryState(), kind='stream',
                  path=folder)
    if checkpoints_in(folder): resume(learn, folder)
    fit(learn, args=(2, 1e-2))
    save_file({k: v.contiguous() for k,v in learn.model.state_dict().items()}, out)

def test_killed_at_random_moments(tmp_path):
    rng, lives = random.Random(time.time_ns()), 0
    outs = {name: tmp_path/f'{name}.safetensors' for name in ('whole', 'killed')}
    for name in outs: (tmp_path/name).mkdir()
    start = time.monotonic()
    (process := forked(_train, tmp_path/'whole', outs['whole'])).join()
    took = time.monotonic() - start
    assert process.exitcode == 0
    while not outs['killed'].exists():
        process = forked(_train, tmp_path/'killed', outs['killed'])
        before = checkpoints_in(tmp_path/'killed')
        deadline = time.monotonic() + 30
        while (process.is_alive() and checkpoints_in(tmp_path/'killed') == before
               and time.monotonic() < deadline):
            time.sleep(.002)
        process.join(rng.uniform(0, took/4 if lives < 6 else took))
        if process.is_alive(): os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        lives += 1
    assert lives > 1
    equal(*map(load_file, outs.values()))
    a, b = [[row.rsplit(',', 1)[0] for row in (tmp_path/name/'log.csv').open()] for name in outs]
    assert a == b

def test_killed_between_writing_and_renaming(corpus, whole, tmp_path):
    def child():
        torch.set_num_threads(1)
        rename, names = os.rename, []
        def die(a, b):
            names.append(a)
            if len(names) == 9: os.kill(os.getpid(), signal.SIGKILL)
            rename(a, b)
        os.rename = die
        fit(build(corpus, often(tmp_path)))
    (process := forked(child)).join()
    assert process.exitcode == -signal.SIGKILL
    # half a checkpoint, as far as its name says
    assert [path for path in tmp_path.glob('.*-*') if path.is_dir()]
    assert checkpoints_in(tmp_path)[0].startswith('000008')
    equal(result(fit(resumed(build(corpus, Checkpoints(tmp_path), seed=3), tmp_path))), whole)
    assert not list(tmp_path.glob('.*-*'))

# asked to stop

@pytest.mark.parametrize('training', [True, False])
def test_a_polite_stop_keeps_the_last_step(corpus, whole, tmp_path, training):
    class Ask(Callback):
        order = 50
        def after_batch(self):
            if self.epoch == 1 and self.training == training and self.iter == 1:
                self.learn.stop_on_signal.asked = 'SIGTERM'
    fit(build(corpus, Ask(), Checkpoints(tmp_path, minutes=99)))
    at = find_checkpoint(tmp_path).position
    assert (at['epoch'], at['batches']) == (1, 2 if training else 8)
    equal(result(fit(resumed(build(corpus, Checkpoints(tmp_path), seed=2), tmp_path))), whole)

def test_a_diverging_training_is_not_kept(corpus, tmp_path):
    class Spoil(Callback):
        order = 80
        def after_batch(self):
            if self.training and self.train_iter == 11:
                next(self.model.parameters()).data.fill_(math.inf)
    assert fit(build(corpus, Spoil(), often(tmp_path, keep=99))).stopped
    for name in checkpoints_in(tmp_path):
        model = load_plain(tmp_path/name/FILE)['state']['model']
        assert all(v.isfinite().all() for v in model.values() if v.is_floating_point())

# which are kept

def test_the_best_and_the_last_are_kept(corpus, tmp_path):
    class Worse(Callback):
        # the second epoch was the best
        def after_validate(self):
            self.recorder.loss.nats = [[3., 1., 2., 4.][self.epoch], 0.]
            self.recorder.loss.n = [1, 0]
    fit(build(corpus, Worse(), often(tmp_path, keep=3)), args=(4, 1e-2))
    names = checkpoints_in(tmp_path)
    assert [name.split('-', 1)[1] for name in names] == [
        'epoch4-end', 'epoch4-batch8', 'epoch4-batch8', 'epoch2-end']
    assert read_checkpoint(tmp_path/names[-1]).valid_loss == 1.

def test_pruning_touches_nothing_else(tmp_path):
    for name in ('000001-start', '000002-epoch1-end', '000003-epoch2-end', 'notes', '12-mine',
                 '.hidden'): (tmp_path/name).mkdir()
    (tmp_path/'000004-file').write_text('x')
    prune_checkpoints(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == [
        '.hidden', '000003-epoch2-end', '000004-file', '12-mine', 'notes']

def test_keep_is_checked(tmp_path):
    with pytest.raises(ValueError, match='keep=0'): Checkpoints(tmp_path, keep=0)

# what does not fit

RUN = dict(corpus='toy', lr=.01)

@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    broken(build(corpus, often(folder, keep=3, run=RUN)), 11)
    return folder

@pytest.fixture
def damaged(run, tmp_path): return Path(shutil.copytree(run, tmp_path/'run'))

def twice(corpus): return Corpus('two', dict(train=corpus.train*2, valid=corpus.valid), 'space')

@pytest.mark.parametrize('says,how,make', [
    ('epochs was 3, now it is 4', dict(args=(4, 1e-2)), {}),
    ('schedule of lr was', dict(args=(3, 2e-2)), {}),
    ('schedule of mom was', dict(moms=(.9, .8, .9)), {}),
    ('rates was|schedule', dict(method='fit'), {}),
    ('rates, weight decay was', dict(wd=.5), {}), ('batches an epoch was 8', {}, None),
    ('optimiser was AdamW, now it is Adagrad', {}, dict(opt='adagrad')),
    ('optimiser was AdamW, now it is Optimizer', {}, dict(opt=Adam)),
    (r'was \(.*\), now it is \(', {}, dict(config=config(hidden_dim=32))),
    ('was .*, now it is None', {}, dict(config=config(n_layers=1))),
    ('lr was 0.01, now it is 0.02', {}, dict(run=RUN | dict(lr=.02))),
    ('corpus was toy, now it is None', {}, dict(run=None)),
    ('callbacks was', {}, dict(cbs=[EarlyStop()]))])
def test_other_trainings_are_refused(corpus, run, says, how, make):
    if make is None: learn = build(twice(corpus))
    elif 'run' in make: learn = build(corpus, Checkpoints(run, **make))
    else: learn = build(corpus, **make)
    before = {k: v.clone() for k,v in learn.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=says) as e: fit(resumed(learn, run), **how)
    assert str(run) in str(e.value) and 'Exception occured' not in str(e.value)
    equal(before, learn.model.state_dict())

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

UNREAD = "can't be read"
DAMAGE = dict(
    cut=(lambda f: f.write_bytes(f.read_bytes()[:f.stat().st_size//2]), UNREAD),
    a_bit=(flip, 'it is damaged'), empty=(lambda f: f.write_bytes(b''), UNREAD),
    gone=(lambda f: f.unlink(), f'{UNREAD}.*No such file'),
    a_folder=(lambda f: (f.unlink(), f.mkdir()), f'{UNREAD}.*directory'),
    foreign=(lambda f: save_plain(dict(weight=torch.ones(3)), f), f'{UNREAD}.*weight'),
    a_list=(lambda f: save_plain([1], f), UNREAD), text=(lambda f: f.write_text('epoch 3'), UNREAD),
    a_pickle=(lambda f: f.write_bytes(pickle.dumps(dict(a=1))), UNREAD),
    code=(lambda f: torch.save(Code(), f), 'could run code'),
    code_in_it=(lambda f: torch.save(torch.load(f) | dict(saved=Code()), f), 'could run code'),
    packed=(pack_tightly, 'it is damaged, or of another kind'),
    a_field_less=(lambda f: change(f, lambda fields: fields.pop('position') and None), 'position'),
    a_field_more=(lambda f: change(f, lambda fields: fields | dict(future=1)), 'future'))

@pytest.mark.parametrize('what', DAMAGE)
def test_damage_is_named_and_the_older_one_taken(corpus, damaged, what):
    do,match = DAMAGE[what]
    path, older = [damaged/name for name in checkpoints_in(damaged)[:2]]
    do(path/FILE)
    with pytest.raises(CheckpointError, match=match) as e: read_checkpoint(path)
    assert str(path) in str(e.value) and len(str(e.value)) < 500
    said = []
    assert find_checkpoint(damaged, said.append).path == older
    assert len(said) == 1 and str(path) in said[0] and older.name in said[0]
    with pytest.raises(CheckpointError): resume(build(corpus), path)

def test_no_flipped_bit_goes_unnoticed(run, tmp_path):
    "Wherever it is: an error, or it was in something that is not read, such as the padding"
    file = newest(run)/FILE
    good, rng, noticed = load_plain(file), random.Random(1), 0
    def flat(tree):
        if not isinstance(tree, (dict, list, tuple)): return [tree]
        parts = tree.items() if isinstance(tree, dict) else tree
        return [leaf for part in parts for leaf in flat(part)]
    for _ in range(60):
        shutil.copy(file, tmp_path/FILE)
        flip(tmp_path/FILE, rng.randrange(file.stat().st_size))
        try: now = load_plain(tmp_path/FILE)
        except Exception: noticed += 1
        else:
            for a,b in zip(flat(good), flat(now), strict=True):
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    assert noticed > 40

def test_going_on_from_the_older_one_is_exact_too(corpus, whole, damaged):
    flip(newest(damaged)/FILE)
    learn = build(corpus, Checkpoints(damaged, run=RUN), seed=3)
    with pytest.warns(UserWarning, match='Going on from the older'): at = resume(learn, damaged)
    assert at.position['batches'] == 2
    equal(result(fit(learn)), whole)

def test_no_good_one_at_all(corpus, damaged, tmp_path):
    for name in checkpoints_in(damaged): flip(damaged/name/FILE)
    with pytest.raises(CheckpointError, match='no good checkpoint') as e: find_checkpoint(damaged)
    assert all(name in str(e.value) for name in checkpoints_in(damaged))
    for path in (tmp_path/'nowhere', tmp_path):
        with pytest.raises(CheckpointError, match='no good checkpoint'): resume(build(corpus), path)
    (tmp_path/'a file').write_text('x')
    for read in (find_checkpoint, read_checkpoint):
        with pytest.raises(CheckpointError): read(tmp_path/'a file')

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
    bad = tmp_path/'000001-bad'
    shutil.copytree(newest(run), bad)
    change(bad/FILE, lambda fields: HOSTILE[what](fields['state']) and None)
    with pytest.raises(CheckpointError) as e: fit(resumed(build(corpus), bad))
    assert bad.name in str(e.value) and 'Exception occured' not in str(e.value)

# disks

@pytest.fixture
def small_files():
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n: resource.setrlimit(resource.RLIMIT_FSIZE, (was[0] if n is None else n, was[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, was)

def test_a_full_disk_keeps_the_old_one_and_the_training(corpus, whole, tmp_path, small_files):
    class Full(Callback):
        order = 1
        def before_train(self): small_files(20_000 if self.epoch == 1 else None)
    learn = build(corpus, Full(), often(tmp_path, keep=99))
    says = 'training goes on; the newest checkpoint is 000011-epoch1-end'
    with pytest.warns(UserWarning, match=says): fit(learn)
    equal(result(learn), whole)
    names = checkpoints_in(tmp_path)
    assert not list(tmp_path.glob('.[0-9]*')) and not [name for name in names if 'epoch2' in name]
    assert 'epoch3-end' in names[0]                         # there was room again

def test_a_disk_that_is_full_at_the_start_is_said_at_once(corpus, tmp_path, small_files):
    small_files(20_000)
    with pytest.raises(CheckpointError, match='No checkpoint could be written'):
        fit(build(corpus, Checkpoints(tmp_path/'run')))

@pytest.mark.parametrize('module,name', [(checkpoint, 'save_plain'), (files, 'sync'),
                                         (os, 'rename')], ids=['write', 'sync', 'rename'])
def test_errors_of_the_system(corpus, tmp_path, monkeypatch, module, name):
    broken(build(corpus, often(tmp_path)), 3)
    before = checkpoints_in(tmp_path)
    def fail(*args, **kwargs): raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(module, name, fail)
    learn = resumed(build(corpus, often(tmp_path)), tmp_path)
    with pytest.warns(UserWarning, match='No space left'): fit(learn)
    assert checkpoints_in(tmp_path) == before and not list(tmp_path.glob('.[0-9]*'))

def test_a_folder_that_goes_away(corpus, tmp_path):
    class Gone(Callback):
        order = 1
        def before_train(self):
            if self.epoch == 1: shutil.rmtree(tmp_path/'run')
    learn = build(corpus, Gone(), often(tmp_path/'run'))
    with pytest.warns(UserWarning, match='No checkpoint could be written'): fit(learn)
    assert len(learn.recorder.values) == 3

def test_everything_is_on_the_disk_before_the_name(corpus, tmp_path, monkeypatch):
    seen, rename = [], os.rename
    for module in (files, checkpoint):
        monkeypatch.setattr(module, 'sync', lambda path: seen.append(Path(path).name))
    monkeypatch.setattr(os, 'rename', lambda a, b: (seen.append('rename'), rename(a, b)))
    broken(build(corpus, Checkpoints(tmp_path/'run')), 1)
    at = seen.index('rename')
    assert FILE in seen[:at] and any(name.startswith('.000001-start') for name in seen[:at])
    assert 'run' in seen[at:]

# locks

def hold(folder, ready, kill):
    with lock_folder(folder):
        ready.set()
        kill.wait(20)

def events():
    fork = multiprocessing.get_context('fork')
    return fork.Event(), fork.Event()

def test_an_error_frees_the_folder(corpus, tmp_path):
    class Breaks(Callback):
        def after_batch(self): raise RuntimeError('no')
    learn = build(corpus, Checkpoints(tmp_path/'run'), Breaks())
    with pytest.raises(RuntimeError): fit(learn)
    ready,_ = events()
    (process := forked(hold, tmp_path/'run', ready, ready)).join(30)
    assert ready.is_set() and process.exitcode == 0

def test_two_processes_exclude_each_other_and_a_killed_one_does_not(corpus, tmp_path):
    def refused(says, use):
        with pytest.raises(CheckpointError, match=says): use()
    def lock():
        with lock_folder(tmp_path): pass
    ready,kill = events()
    process = forked(hold, tmp_path, ready, kill)
    assert ready.wait(20)
    refused(f'{tmp_path} is in use by process {process.pid} on .* since', lock)
    refused('in use', lambda: fit(build(corpus, Checkpoints(tmp_path))))
    (tmp_path/'lock').unlink()                                  # not written yet
    refused('in use by another process', lock)
    assert not checkpoints_in(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with lock_folder(tmp_path):
        assert (tmp_path/'lock').read_text().startswith(f'{os.getpid()} on ')

def test_one_process_may_lock_twice(corpus, tmp_path):
    (tmp_path/'lock').write_bytes(b'\x41'*1000)                 # nonsense from somewhere
    with lock_folder(tmp_path):
        fit(build(corpus, Checkpoints(tmp_path)), args=(1, 1e-2))
        with lock_folder(tmp_path): pass
    with lock_folder(tmp_path): pass

# what a file may hold

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5))
keys = st.text(max_size=3) | st.integers() | st.tuples(st.integers())
trees = st.recursive(leaves, lambda tree: (
    st.lists(tree, max_size=4) | st.lists(tree, max_size=3).map(tuple)
    | st.dictionaries(keys, tree, max_size=3)), max_leaves=12)

@settings(max_examples=100, suppress_health_check=[
    HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(trees)
def test_what_is_saved_comes_back(tmp_path, tree):
    save_plain(tree, tmp_path/FILE)
    assert repr(load_plain(tmp_path/FILE)) == repr(tree)

def test_a_callback_that_keeps_what_cannot_be_kept(corpus, tmp_path):
    class Odd(Callback):
        def state_dict(self): return dict(thing=object())
        def load_state_dict(self, state): pass
    with pytest.raises(TypeError, match='callbacks.odd.thing is of type object'):
        fit(build(corpus, Odd(), Checkpoints(tmp_path)))
