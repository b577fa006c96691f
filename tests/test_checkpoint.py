"A training that breaks off at any moment goes on as if it had not"
import errno, multiprocessing, os, pickle, random, signal, time, warnings

import datasets, numpy as np, pytest, torch
from fastai.basics import Adam, Callback, L, ranger, set_seed
from fastai.callback.all import (
    EarlyStoppingCallback, GradientAccumulation, MixedPrecision, ReduceLROnPlateau,
    SaveModelCallback)
from safetensors.torch import load_file, save_file

from elmo_fastai.errors import CheckpointError
from elmo_fastai.practice import files
from elmo_fastai.practice.checkpoint import (
    Checkpoints, Resume, checkpoints_in, find_checkpoint, resume)
from elmo_fastai.practice.files import save_plain
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.text.read import Corpus
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tokens import WordVocab
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.batches import ElmoDataLoaders, EncodedText, LOADERS, TokenTypes
from elmo_fastai.learner import CarryState, bilm_learner
from elmo_fastai.practice.learners import TimeBudget, muon
from made import forks
from sources import source
from steps import At

pytestmark = pytest.mark.slow

def config(**changes):
    nano = dict(char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16, hidden_dim=16, dropout=.2)
    return BiLMConfig('nano', **nano | changes)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)

@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    "Tests need not wait for the disk; the one with the killed processes does"
    monkeypatch.setattr(files, 'sync', lambda path: None)

def loaders(corpus, kind, **args):
    if kind != 'streamed':
        size = dict(bs=4, seq_len=16) if kind == 'stream' else dict(bs=16)
        return ElmoDataLoaders.from_corpus(corpus, kind=kind, device='cpu', **size)
    data = corpus
    if isinstance(corpus, Corpus):
        data = datasets.Dataset.from_dict({'text': [*corpus.train, None, ' ']})
    usual = dict(n_valid=9, buffer=30, tokenizer='space', bs=8, device='cpu', n_batches=8)
    return stream_loaders(data, **usual | args)

def build(corpus, *cbs, kind='sentences', seed=1, config=config(), frozen=False, has_muon=False,
          **kwargs):
    set_seed(seed)
    learn = bilm_learner(loaders(corpus, kind), config, **dict(bf16=False, cbs=list(cbs)) | kwargs)
    if has_muon: learn.opt_func = muon(learn.model)
    learn.remove_cb(learn.progress)
    learn.logger = lambda *_: None
    if frozen:
        learn.recorder.train_metrics = True
        learn.freeze_to(2)
    return learn

def fit(learn, method='fit_one_cycle', args=(3, 1e-2), **kwargs):
    getattr(learn, method)(*args, **kwargs)
    return learn

def stop(cb): raise KeyboardInterrupt()

def broken(learn, n, **how):
    at = At(n, stop, 'after_batch')
    at.order = 99
    with learn.added_cbs(at), pytest.raises(KeyboardInterrupt): fit(learn, **how)

def resumed(learn, path):
    resume(learn, path)
    return learn

def often(folder, **kwargs): return Checkpoints(folder, minutes=0, **kwargs)

def result(learn):
    rec = learn.recorder
    return dict({name: w.clone() for name,w in learn.model.state_dict().items()}, lrs=rec.lrs,
                losses=[float(loss) for loss in rec.losses], hps=getattr(rec, 'hps', None),
                values=[list(row) for row in rec.values], iters=rec.iters)

def equal(a, b):
    assert a.keys() == b.keys()
    for name,v in a.items():
        assert torch.equal(v, b[name]) if isinstance(v, torch.Tensor) else v == b[name], name

@pytest.fixture(scope='module')
def whole(corpus): return result(fit(build(corpus)))

# the same bits

class FP16(MixedPrecision):
    "On the CPU, with a scale that is far too large at first: steps are skipped, and it falls"
    def before_fit(self):
        self.autocast, self.scales = torch.autocast('cpu', torch.bfloat16), L()
        scale = dict(init_scale=2.**127, growth_interval=5)
        self.learn.scaler = torch.amp.GradScaler('cpu', **scale)

def save(): return SaveModelCallback(monitor='perplexity_fwd', comp=np.less)
def early(): return EarlyStoppingCallback(patience=1)

CASES = dict(
    sentences=dict(), stream=dict(kind='stream', at=20), bf16=dict(bf16=True),
    fp16=dict(cbs=[FP16]),
    carried=dict(kind='stream', cbs=[CarryState], at=30),
    streamed=dict(kind='streamed'), streamed_on=dict(kind='streamed', at=5),
    best=dict(cbs=[save, early], fit=dict(args=(4, .3))),
    plateau=dict(cbs=[lambda: ReduceLROnPlateau(patience=1)], fit=dict(method='fit', args=(4, .1))),
    flat=dict(fit=dict(method='fit_flat_cos')), constant=dict(fit=dict(method='fit')),
    adagrad=dict(opt='adagrad', fit=dict(args=(2, .1))), adam=dict(opt=Adam),
    muon=dict(has_muon=True), muon_fp16=dict(has_muon=True, cbs=[FP16]),
    muon_frozen=dict(has_muon=True, frozen=True),
    muon_accumulated=dict(has_muon=True, cbs=[lambda: GradientAccumulation(40)]),
    ranger=dict(opt=ranger), accumulated=dict(cbs=[lambda: GradientAccumulation(40)]),
    sliced=dict(fit=dict(args=(2, slice(1e-3, 1e-2)))),
    frozen=dict(frozen=True, opt=Adam),
    sampled=dict(config=config(filters=((1, 8),), softmax='sampled', n_negative=20)))

@pytest.mark.parametrize('case', CASES)
def test_the_same_bits_as_without_the_interruption(corpus, tmp_path, case):
    c = dict(CASES[case])
    how, at, cbs = dict(args=(2, 1e-2)) | c.pop('fit', {}), c.pop('at', 11), c.pop('cbs', [])
    def new(*more, **kw):
        return build(corpus, *[cb() for cb in cbs], *more, path=tmp_path, **c, **kw)
    whole = result(fit(new(), **how))
    broken(new(often(tmp_path/'run')), at, **how)
    again = new(Checkpoints(tmp_path/'run'), seed=5)
    torch.rand(3), random.random(), np.random.rand()
    equal(result(fit(resumed(again, tmp_path/'run'), **how)), whole)

@pytest.mark.parametrize('n', [1, 8, 15, 24])
def test_every_place_in_an_epoch(corpus, whole, tmp_path, n):
    learn = build(corpus, often(tmp_path))
    assert len(learn.dls.train) == 8
    broken(learn, n)
    equal(result(fit(resumed(build(corpus, Checkpoints(tmp_path), seed=9), tmp_path))), whole)

def test_from_the_start_and_from_the_ends_of_epochs(corpus, whole, tmp_path):
    fit(build(corpus, Checkpoints(tmp_path, minutes=99, keep=9)))
    paths = checkpoints_in(tmp_path)
    assert [path.stem for path in paths] == ['000003', '000002', '000001', '000000']
    for path in paths: equal(result(fit(resumed(build(corpus, seed=3), path))), whole)

@pytest.mark.parametrize('n', [3, 8, 11, 15])
def test_a_budget_of_time_goes_on_with_the_rest(corpus, tmp_path, n):
    "By a clock that counts steps: at the end of an epoch, within one, and after the last step"
    def how():
        ticks = iter(range(1, 999))
        return dict(args=(999, 1e-2), cbs=TimeBudget(22, lambda: float(next(ticks))))
    whole = result(fit(build(corpus), **how()))
    broken(build(corpus, often(tmp_path)), n, **how())
    again = result(fit(resumed(build(corpus, seed=5), tmp_path), **how()))
    assert again['lrs'][:n] == whole['lrs'][:n]
    assert abs(len(again['losses']) - len(whole['losses'])) <= 1

def test_resumed_many_times_in_a_learner_that_was_used_before(corpus, whole, tmp_path):
    "lr_find and validate before `fit` are no fit; a fit afterwards is an ordinary one"
    broken(build(corpus, often(tmp_path/'run')), 2)
    for n in (3, 1): broken(resumed(build(corpus, often(tmp_path/'run')), tmp_path/'run'), n)
    learn = resumed(build(corpus, Checkpoints(tmp_path/'run'), seed=8), tmp_path/'run')
    learn.validate()
    learn.lr_find(num_it=8, show_plot=False)
    learn.get_preds(ds_idx=1)
    equal(result(fit(learn)), whole)
    assert not [cb for cb in learn.cbs if isinstance(cb, Resume)]
    learn.remove_cb(Checkpoints)
    assert len(fit(learn, args=(1, 1e-3)).recorder.losses) == 8

@pytest.mark.parametrize('was', [True, False])
def test_a_training_goes_on_in_its_precision(corpus, tmp_path, was):
    whole = result(fit(build(corpus, bf16=was)))
    broken(build(corpus, often(tmp_path), bf16=was), 11)
    equal(result(fit(resumed(build(corpus, bf16=not was, seed=5), tmp_path))), whole)

@pytest.mark.parametrize('kind,kwargs', [
    ('sentences', dict(bs=8)), ('sentences', dict(bs=8, max_tokens=60)),
    ('stream', dict(bs=3, seq_len=10))])
def test_skipped_batches(corpus, kind, kwargs):
    sents = [line.split() for line in corpus.train]
    text = EncodedText(sents, TokenTypes(WordVocab.build(sents)))
    def check(some, others):
        for x,y in zip(some, others, strict=True): assert all(map(torch.equal, x, y))
    for n in (0, 1, 5, 10**6):
        a, b = [LOADERS[kind](text, shuffle=True, seed=3, **kwargs) for _ in range(2)]
        b.skip(n)
        check(list(a)[n:], list(b))
        check(a, b)                                          # the next epoch is whole
    with pytest.raises(ValueError): a.skip(-1)

# killed

def train(what, folder, out):
    "What the process does that is killed: begin or go on; in the end write the weights"
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    again = checkpoints_in(folder)
    how = dict(seed=1 + bool(again), path=folder)
    if what == 'carried':
        text = toy_corpus(n_train=120, n_valid=24, n_test=1, n_unseen=1)
        learn = build(text, often(folder), CarryState(), kind='stream', **how)
    else:
        (home := folder.with_name(f'files of {os.getpid()}')).mkdir()
        text = source(what, home)
        learn = build(text, often(folder), kind='streamed', **how)
    if again: resume(learn, folder)
    fit(learn, args=(2, 1e-2))
    save_file({name: w.contiguous() for name,w in learn.model.state_dict().items()}, out)

@forks
@pytest.mark.parametrize('what', ['carried', 'text', 'jsonl', 'parquet', 'hub', 'shuffled_twice'])
def test_killed_at_random_moments(tmp_path, monkeypatch, what):
    monkeypatch.undo()                                               # the disk is waited for
    rng, lives = random.Random(time.time_ns()), 0
    outs = {name: tmp_path/f'{name}.safetensors' for name in ('whole', 'killed')}
    def start(name):
        process = multiprocessing.get_context('fork').Process(
            target=train, args=(what, tmp_path/name, outs[name]))
        process.start()
        return process
    def newest(): return max([int(path.stem) for path in checkpoints_in(tmp_path/'killed')] + [-1])
    (process := start('whole')).join()
    assert process.exitcode == 0
    n_kills = 6 if what == 'carried' else 1
    while not outs['killed'].exists():
        process, last = start('killed'), newest() + rng.randint(1, 5)
        while process.is_alive() and newest() < last: time.sleep(.002)
        if lives >= n_kills: process.join()
        time.sleep(rng.uniform(0, .05))
        if process.is_alive(): os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        lives += 1
    assert lives > 1
    equal(*map(load_file, outs.values()))

# what does not fit

@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    broken(build(corpus, often(folder, keep=3, run=dict(corpus='toy', lr=.01))), 11)
    return folder

@pytest.mark.parametrize('says,how,make', [
    ('epochs', dict(args=(4, 1e-2)), {}), ('batches', {}, None),
    ('AdamW, now it is Adagrad', {}, dict(opt='adagrad')), ('False', {}, dict(frozen=True)),
    ('was', {}, dict(config=config(hidden_dim=32))), ('None', {}, dict(config=config(n_layers=1))),
    ('parts', {}, dict(cbs=[EarlyStoppingCallback()]))])
def test_other_trainings_are_refused(corpus, run, says, how, make):
    twice = Corpus('two', dict(train=corpus.train*2, valid=corpus.valid), 'space')
    learn = build(twice) if make is None else build(corpus, **make)
    before = {name: w.clone() for name,w in learn.model.state_dict().items()}
    with pytest.raises(CheckpointError, match=says) as e: fit(resumed(learn, run), **how)
    assert str(run) in str(e.value)
    equal(before, dict(learn.model.state_dict()))

def test_what_is_kept_and_what_is_refused(corpus, run, tmp_path):
    assert find_checkpoint(run)['run'] == dict(corpus='toy', lr=.01)
    assert len(checkpoints_in(run)) == 3
    with pytest.raises(CheckpointError, match='resume'): fit(build(corpus, Checkpoints(run)))
    class Odd(Callback):
        kept = 'thing',
        def before_fit(self): self.thing = [object()]
    with pytest.raises(TypeError, match='thing is of type object'):
        fit(build(corpus, Odd(), Checkpoints(tmp_path/'odd')))
    for place in (tmp_path/'nowhere', tmp_path):
        with pytest.raises(CheckpointError, match='no checkpoint'): find_checkpoint(place)

# damaged files, disks

class Code:
    def __reduce__(self): return exec, ("raise SystemError('it ran')",)

def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data)//2] ^= 4
    path.write_bytes(data)

DAMAGE = dict(
    cut=lambda f: f.write_bytes(f.read_bytes()[:-99]), a_bit=flip,
    empty=lambda f: f.write_bytes(b''),
    a_folder=lambda f: (f.unlink(), f.mkdir()), text=lambda f: f.write_text('epoch 3'),
    foreign=lambda f: save_plain(dict(weight=torch.ones(3)), f),
    a_list=lambda f: save_plain([1], f), a_pickle=lambda f: f.write_bytes(pickle.dumps(dict(a=1))),
    code=lambda f: torch.save(Code(), f), code_in_it=lambda f: torch.save(dict(own=Code()), f))

@pytest.mark.parametrize('what', DAMAGE)
def test_a_damaged_one_is_named_and_the_older_one_taken(corpus, whole, run, tmp_path, what):
    for path in checkpoints_in(run): (tmp_path/path.name).write_bytes(path.read_bytes())
    path, older = checkpoints_in(tmp_path)[:2]
    DAMAGE[what](path)
    with pytest.raises(CheckpointError, match=path.name): find_checkpoint(path)
    said = []
    assert find_checkpoint(tmp_path, said.append)['path'] == older
    assert len(said) == 1 and path.name in said[0]
    if what == 'cut': equal(result(fit(resumed(build(corpus, seed=3), older))), whole)
    for path in checkpoints_in(tmp_path)[1:]: flip(path)
    with pytest.raises(CheckpointError): find_checkpoint(tmp_path, said.append)

@pytest.mark.parametrize('module,name', [(files, 'sync'), (os, 'replace'), (torch, 'save')],
                         ids=['sync', 'rename', 'write'])
def test_a_disk_that_fails(corpus, whole, tmp_path, monkeypatch, module, name):
    "The old checkpoint stays, and goes on when there is room"
    broken(build(corpus, often(tmp_path)), 3)
    before = checkpoints_in(tmp_path)
    def fail(*args, **kwargs): raise OSError(errno.ENOSPC, 'No space left on device')
    with monkeypatch.context() as patch, pytest.raises(OSError, match='No space left'):
        patch.setattr(module, name, fail)
        fit(resumed(build(corpus, often(tmp_path)), tmp_path))
    assert checkpoints_in(tmp_path) == before and not list(tmp_path.glob('.*.part'))
    equal(result(fit(resumed(build(corpus), tmp_path))), whole)
