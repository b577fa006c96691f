"A training from text to a folder: interrupted, resumed, timed, tried, and from another model"
import json, math, multiprocessing, os, random, re, shutil, signal, subprocess, sys, time, tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np, pytest, torch
from fastai.basics import Callback, Learner
from safetensors.torch import load_file, save_file

import elmo_fastai
from elmo_fastai.train import script
from elmo_fastai.elmo.module import without_head
from elmo_fastai.base.errors import CheckpointError, CommandError, Interrupted
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.sources import text_corpus
from elmo_fastai.text.tokens import CharVocab
from elmo_fastai.nn.bilm import BiLMConfig, evaluate
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.train.checkpoint import FILE, Checkpoints, find_checkpoint
from elmo_fastai.train.command import elmo_pretrain, pretrain, settings_for
from elmo_fastai.train.learner import TimeBudget, bilm_learner
from steps import At

NANO = dict(name='nano', char_dim=4, filters=[[1,8],[2,8],[3,8]], proj_dim=16, hidden_dim=16)
CFG = BiLMConfig.from_dict(NANO)
HEADLESS = Path(__file__).parent/'golden'/'tiny-en'     # a model without an output layer
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']
SENSES = 'floor', 'ratio_to_floor', 'sense_accuracy', 'sense_baseline'


pytestmark = pytest.mark.usefixtures('held_throughout', 'drawn_once')


@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)

@pytest.fixture(scope='module')
def dls(corpus):
    return ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')


def press(sig=signal.SIGINT, times=1):
    def do(cb):
        for _ in range(times): signal.raise_signal(sig)
    return do

# from text to a folder, in this process

def names(folder): return sorted(f.name for f in folder.iterdir())
def train(corpus, out, **kw):
    return pretrain(corpus, out=out, **{**dict(model='tiny', config=NANO, epochs=1, bs=16,
                                               device='cpu', bf16=False, say=lambda s: None), **kw})


def adding(monkeypatch, cb):
    "Every learner of the command gets one more callback"
    make = bilm_learner
    monkeypatch.setattr(
        script, 'bilm_learner', lambda *a, cbs, **k: make(*a, cbs=[*cbs, cb()], **k)
    )


def check_folder(folder, senses):
    "A whole model with a whole report: the report's figures are those of the loaded model"
    assert names(folder) == [
        'README.md', 'SHA256SUMS', 'config.json', 'history.csv', 'model.safetensors', 'report.json',
        'report.png', 'report.svg', 'run.toml', 'vocab.json']
    report = report_of(folder)
    mean = (report['perplexity_fwd']*report['perplexity_bwd'])**.5
    assert report['perplexity_mean'] == pytest.approx(mean)
    for name in ('unigram', 'trigram', 'tokens_per_second', 'train_seconds'):
        assert report[name] > 0
    if senses:
        assert 1 < report['ratio_to_floor'] == pytest.approx(mean/report['floor'])
        assert list(report['sense_accuracy']) == ['layer0', 'layer1', 'layer2']
        assert 0 < report['sense_baseline'] < 1
    else:
        for name in SENSES: assert report[name] is None
    assert (folder/'report.png').stat().st_size > 10_000 < (folder/'report.svg').stat().st_size
    return report, *load_bilm(folder)

def test_pretrain_on_the_toy_corpus(corpus, dls, tmp_path):
    told = []
    folder = train(corpus, tmp_path/'a'/'toy', say=told.append)
    assert folder == tmp_path/'a'/'toy' and [f.name for f in folder.parent.iterdir()] == ['toy']
    report, model, vocab = check_folder(folder, senses=True)
    assert vocab.itos == dls.vocab.itos
    exact = evaluate(model, dls.valid)
    for k in ('fwd', 'bwd', 'mean'):
        assert report[f'perplexity_{k}'] == pytest.approx(exact[k], rel=1e-5)
    assert report['status'] == 'complete' and report['steps'] == len(dls.train)
    text = '\n'.join(map(str, told))
    assert (f"{report['perplexity_mean']:.2f}" in text and f"{report['floor']:.2f}" in text
            and 'trigram' in text and str(folder) in text)


def test_tiny_corpora_end_in_a_report_or_a_message(tmp_path):
    "Few sentences: words without two senses, one occurrence, hardly a batch"
    for i,(n,v) in enumerate(((20, 5), (3, 1), (60, 1))):
        folder = train(
            toy_corpus(n_train=n, n_valid=v, n_test=0, n_unseen=0), tmp_path/str(i), bs=2
        )
        assert set(SENSES) <= report_of(folder).keys() and load_bilm(folder)

def test_a_failure_while_measuring_costs_no_model(corpus, tmp_path, monkeypatch):
    for error in (KeyboardInterrupt, MemoryError, ValueError('no report')):
        def fail(*args, **kwargs): raise error
        out = tmp_path/str(error)[:12].strip('<>')
        with monkeypatch.context() as mp:
            mp.setattr(script, 'make_report', fail)
            with pytest.raises(BaseException): train(corpus, out)
        assert load_bilm(out)

def test_the_second_ctrl_c_keeps_the_model_too(corpus, tmp_path, monkeypatch):
    adding(monkeypatch, lambda: At(5, press(times=2), 'before_batch'))
    with pytest.raises(CommandError, match='interrupted'): train(corpus, tmp_path/'m')
    assert names(tmp_path) == ['m.interrupted', 'm.run'] and load_bilm(tmp_path/'m.interrupted')

def test_an_interruption_never_replaces_anything(corpus, tmp_path, monkeypatch):
    old = train(corpus, tmp_path/'m')
    weights = (old/'model.safetensors').read_bytes()
    (tmp_path/'m.interrupted').mkdir()
    (tmp_path/'m.interrupted'/'thesis.txt').write_text('precious')
    adding(monkeypatch, lambda: At(5, press(), 'before_batch'))
    for _ in range(2):
        with pytest.raises(CommandError, match='interrupted'):
            train(corpus, tmp_path/'m', overwrite=True)
    assert (old/'model.safetensors').read_bytes() == weights and (
        tmp_path/'m.interrupted'/'thesis.txt').read_text() == 'precious'
    others = [f for f in tmp_path.iterdir() if f.name not in ('m', 'm.interrupted', 'm.run')]
    # two interruptions, two models
    assert len(others) == 2 and all(load_bilm(f) for f in others)

@pytest.mark.parametrize('place', [
    'file', 'foreign folder', 'under a file', 'a foreign config', '..', ''])
def test_places_that_can_not_be_written_are_found_before_training(
    corpus, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Learner, 'fit', lambda *a, **k: pytest.fail('it trained first'))
    (tmp_path/'f').write_text('x')
    for name in ('g', 'web'):
        (tmp_path/name).mkdir()
    (tmp_path/'g'/'thesis.txt').write_text('precious')
    (tmp_path/'web'/'config.json').write_text('{"name": "my web application"}')
    out = {'file': 'f', 'foreign folder': 'g', 'under a file': 'f/x', 'a foreign config': 'web',
           '..': '..', '': Path('')}[place]
    before = sorted(str(f) for f in tmp_path.rglob('*'))
    for overwrite in (False, True):
        with pytest.raises(CommandError, match='--out'): train(corpus, out, overwrite=overwrite)
    assert sorted(str(f) for f in tmp_path.rglob('*')) == before

@pytest.mark.skipif(
    os.name == 'nt' or os.geteuid() == 0, reason='the superuser may write everywhere'
)
def test_a_folder_without_permission(corpus, tmp_path):
    (tmp_path/'p').mkdir(mode=0o500)
    with pytest.raises(CommandError, match='write'):
        train(corpus, tmp_path/'p'/'m')


@pytest.mark.parametrize('name,folder', [
    ('my.text.txt', 'my.text'), ('books/*.txt', 'books'), ('./books', 'books')])
def test_default_folders(tmp_path, monkeypatch, name, folder):
    here = tmp_path/'here'
    (here/'books').mkdir(parents=True)
    for f in ('my.text.txt', 'books/a.txt', 'books/b.txt'):
        (here/f).write_text('the bank of the river .\n'*60)
    monkeypatch.chdir(here)
    assert train(name, None, bs=2, seq_len=8, min_freq=1) == Path('models')/folder

def test_a_text_that_is_called_toy_is_not_the_toy_corpus(tmp_path):
    (tmp_path/'toy.txt').write_text('the bank of the river .\n'*60)
    told = []
    train(str(tmp_path/'toy.txt'), tmp_path/'m', bs=2, seq_len=8, min_freq=1, say=told.append)
    assert json.loads((tmp_path/'m'/'report.json').read_text())['floor'] is None
    steps = json.loads((tmp_path/'m'/'report.json').read_text())['steps']
    train(Corpus('other', text_corpus(tmp_path/'toy.txt').splits), tmp_path/'n', bs=2,
          seq_len=8, min_freq=1)
    assert json.loads((tmp_path/'n'/'report.json').read_text())['steps'] == steps

def test_local_copies_of_named_corpora(tmp_path):
    (tmp_path/'data').mkdir()
    (tmp_path/'data'/'input.txt').write_text(
        'First Citizen:\nBefore we proceed any further, hear me speak.\n\n'*40)
    folder = train('tiny_shakespeare', tmp_path/'m', data=tmp_path/'data', bs=2, seq_len=8)
    assert json.loads((folder/'report.json').read_text())['corpus'] == 'tiny_shakespeare'


# trainings that were interrupted, and go on

def weights(folder): return (Path(folder)/'model.safetensors').read_bytes()

def alike(a, b):
    "Are the weights of two trainings with one seed the same, but for roundings?"
    a, b = (load_file(Path(folder)/'model.safetensors') for folder in (a, b))
    return a.keys() == b.keys() and all(torch.allclose(v, b[k], atol=1e-5) for k,v in a.items())

@pytest.fixture(scope='module')
def interrupted(corpus, tmp_path_factory):
    "A folder with a training that was interrupted at step 30 of 50"
    base = tmp_path_factory.mktemp('interrupted')
    with pytest.MonkeyPatch.context() as mp:
        adding(mp, lambda: At(30, press(), 'before_batch'))
        with pytest.raises(Interrupted, match='--resume') as e: train(corpus, base/'m', epochs=2)
    assert str(e.value).endswith(f"--resume {base/'m.run'}")
    return base

@pytest.fixture
def broken(interrupted, tmp_path):
    "Its checkpoints, in m.run"
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    return tmp_path/'m.run'

@pytest.fixture(scope='module')
def whole(corpus, tmp_path_factory):
    "The folder of the same training, undisturbed"
    return train(corpus, tmp_path_factory.mktemp('whole')/'m', epochs=2)

def going_on(corpus, run, **kw):
    return pretrain(corpus, resume=run, device='cpu', **{**dict(say=lambda s: None), **kw})


def test_a_resumed_training_ends_like_an_undisturbed_one(corpus, tmp_path, broken, whole):
    told = []
    folder = going_on(corpus, broken, say=told.append)
    assert folder == tmp_path/'m' and names(tmp_path) == [
        'm', 'm.interrupted'], ('the checkpoints have gone')
    report, *_ = check_folder(folder, senses=True)
    assert re.search('Going on from epoch 2 of 2, batch 5 of 25', '\n'.join(told))
    assert weights(folder) == weights(whole)
    other = json.loads((whole/'report.json').read_text())
    differ = {k for k in report if report[k] != other[k]}
    assert differ <= {'tokens_per_second', 'train_seconds'}
    rows = [(o/'history.csv').read_text().splitlines() for o in (folder, whole)]
    assert rows[0] == rows[1] and len(rows[0]) == 3

@pytest.mark.slow
def test_settings_survive(corpus, tmp_path, monkeypatch):
    "Adagrad, weight decay, patience and a carried state are those of the first part"
    kw = dict(epochs=3, bs=4, seq_len=8, min_freq=1, optimizer='adagrad', wd=0.001, patience=2,
              carry=True)
    text = tmp_path/'text.txt'
    text.write_text('\n'.join(corpus.train[:80]))
    whole = train(str(text), tmp_path/'whole', **kw)
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(17, press(), 'before_batch'))
        with pytest.raises(Interrupted): train(str(text), tmp_path/'m', **kw)
    with pytest.raises(CommandError, match='leave the corpus out'):
        going_on('wikitext2', tmp_path/'m.run')
    monkeypatch.chdir(text.parent)
    assert weights(going_on(None, 'm.run')) == weights(whole)
    assert names(tmp_path) == ['m', 'm.interrupted', 'text.txt', 'whole']

def killed(where, corpus, out, fresh=True, **more):
    "A training, in a process of its own, that is killed where a function of the command is called"
    def child():
        setattr(script, where, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
        train(corpus, out, epochs=2, **more) if fresh else going_on(corpus, out)
    p = multiprocessing.get_context('fork').Process(target=child)
    p.start()
    p.join()
    assert p.exitcode == -signal.SIGKILL

@pytest.mark.slow
@pytest.mark.parametrize('more', [{}, dict(patience=1, lr=.3)], ids=['', 'early stop'])
def test_killed_while_measuring(corpus, tmp_path, more):
    "The model is there without its report; the next call writes it, and trains nothing"
    out = tmp_path/'m'
    killed('make_report', corpus, out, **more)
    assert names(tmp_path) == ['m', 'm.run'] and not (out/'report.json').exists() and load_bilm(out)
    before = weights(out)
    with pytest.raises(CommandError, match='did not come to its end.*--resume'):
        train(corpus, out, epochs=2)
    killed('make_report', corpus, out, fresh=False)                             # and once more
    assert names(tmp_path) == ['m', 'm.run'] and not (out/'report.json').exists()
    assert (going_on(corpus, tmp_path/'m.run') == out and names(tmp_path) == ['m']
            and weights(out) == before)
    report, *_ = check_folder(out, senses=True)
    assert (report['status'] == 'complete' and report['steps'] == (
        50 if not more else report['steps']) and (out/'history.csv').exists())


@pytest.mark.slow
def test_killed_when_all_is_written(corpus, tmp_path):
    out = tmp_path/'m'
    killed('make_report', corpus, out)
    # a fresh training calls it at its beginning, too
    killed('clear', corpus, out, fresh=False)
    assert (out/'report.json').exists() and names(tmp_path) == ['m', 'm.run']
    assert going_on(corpus, tmp_path/'m.run') == out and names(tmp_path) == ['m']

@pytest.mark.slow
def test_another_model_is_not_replaced_by_a_report(corpus, tmp_path, broken, whole):
    "Not even one that has no report"
    shutil.copytree(train(corpus, tmp_path/'other', bs=8), tmp_path/'m')
    (tmp_path/'m'/'report.json').unlink()
    before = weights(tmp_path/'m')
    with pytest.raises(CommandError, match='holds a model already'): going_on(corpus, broken)
    assert weights(tmp_path/'m') == before and find_checkpoint(broken)
    assert weights(going_on(corpus, broken, overwrite=True)) == weights(whole)

def test_ctrl_c_while_measuring(corpus, tmp_path, monkeypatch):
    def stop(*args, **kwargs): raise KeyboardInterrupt
    with monkeypatch.context() as mp:
        mp.setattr(script, 'make_report', stop)
        with pytest.raises(
            Interrupted,
            match=f"Saving {tmp_path / 'm'} and its report was interrupted; go on with --resume "
                  f"{tmp_path / 'm.run'}",
        ):
            train(corpus, tmp_path/'m')
    before = weights(tmp_path/'m')
    assert weights(going_on(corpus, tmp_path/'m.run')) == before and check_folder(
        tmp_path/'m', senses=True)


@pytest.mark.parametrize('where', ['m.run', 'm', 'checkpoint'])
def test_what_resume_may_be_given(corpus, tmp_path, broken, where):
    place = {'m.run': broken, 'm': tmp_path/'m', 'checkpoint': max(broken.glob('0*-*'))}[where]
    assert going_on(corpus, place) == tmp_path/'m'


@pytest.mark.parametrize('what', [
    dict(lr=0.1), dict(model='tiny'), dict(out='x'), dict(epochs=9), dict(seed=3), dict(seed=0),
    dict(bf16=True), dict(bf16=False), dict(carry=True)], ids=str)
def test_resume_takes_everything_from_the_run(corpus, broken, what):
    with pytest.raises(CommandError, match='leave'):
        going_on(**{'corpus': corpus, **what}, run=broken)
    assert find_checkpoint(broken)

def test_another_text_is_not_resumed(corpus, tmp_path, broken):
    lines = dict(corpus.splits)
    other = toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)
    for some in (other.splits, other.gold): some['train'][7] = some['train'][8]
    before = names(broken)
    with pytest.raises(CommandError, match='text has changed'): going_on(other, broken)
    assert names(broken) == before
    with pytest.raises(CommandError, match='hand it'): going_on(None, broken)

def test_a_damaged_checkpoint_and_the_older_good_one(corpus, tmp_path, broken, whole):
    newest,older = sorted(broken.glob('0*-*'), reverse=True)[:2]
    data = bytearray((newest/FILE).read_bytes())
    middle = len(data)//2                # more bytes than the padding between two tensors
    data[middle:middle + 256] = bytes(byte ^ 1 for byte in data[middle:middle + 256])
    (newest/FILE).write_bytes(data)
    # it was named, so it is said
    with pytest.raises(CheckpointError, match=f'{newest.name}.*damaged'): going_on(corpus, newest)
    told = []
    going_on(corpus, broken, say=told.append)
    assert re.search(f'{newest.name}.*damaged.*{older.name}', told[0])
    assert weights(tmp_path/'m') == weights(whole)

def test_nothing_good_is_no_fresh_start(corpus, tmp_path, broken):
    for o in broken.glob('0*-*'): (o/FILE).write_bytes(b'')
    with pytest.raises(CheckpointError, match='no good checkpoint') as e: going_on(corpus, broken)
    assert all(o.name in str(e.value) for o in broken.glob('0*-*')) and not (tmp_path/'m').exists()
    with pytest.raises(CommandError, match='--overwrite'): train(corpus, tmp_path/'m')

def test_foreign_folders(corpus, tmp_path, dls):
    (tmp_path/'thesis').mkdir()
    (tmp_path/'thesis'/'a.txt').write_text('precious')
    for place in (tmp_path/'nowhere', tmp_path/'thesis', tmp_path/'thesis'/'a.txt'):
        with pytest.raises((CheckpointError, CommandError)): going_on(corpus, place)
    # not by the command
    learn = bilm_learner(dls, CFG, bf16=False, cbs=Checkpoints(
        tmp_path/'own', run=dict(corpus='mine')))
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    with pytest.raises(CommandError, match='not of a training that elmo_pretrain began'):
        going_on(corpus, tmp_path/'own')
    (tmp_path/'m.run').mkdir()
    (tmp_path/'m.run'/'a.txt').write_text('precious')
    train(corpus, tmp_path/'m', overwrite=True)
    assert (names(tmp_path/'m.run') == ['a.txt'] and (tmp_path/'m.run'/'a.txt').read_text() == (
        tmp_path/'thesis'/'a.txt').read_text() == 'precious')


@pytest.mark.slow
def test_two_runs_in_one_folder(corpus, tmp_path, monkeypatch):
    said = []
    program = ('from elmo_fastai.train.command import elmo_pretrain; '
               f"elmo_pretrain(['toy', '--out', {str(tmp_path/'m')!r}, '--overwrite'])")

    def second(cb):
        env = {**os.environ, 'PYTHONPATH': str(Path(elmo_fastai.__file__).parents[1])}
        p = subprocess.run([sys.executable, '-c', program], env=env, capture_output=True, text=True)
        assert p.returncode == 1 and f'in use by process {os.getpid()}' in p.stderr, p.stderr
        said.append(names(tmp_path/'m.run'))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(3, second, 'before_batch'))
        assert load_bilm(train(corpus, tmp_path/'m'))
    assert said and [o for o in said[0] if o.endswith('start')]

def test_a_rate_that_runs_away(corpus, tmp_path):
    "The loss stays finite, far above guessing; the message names the step"
    with pytest.raises(CommandError, match='lower learning rate') as e:
        train(corpus, tmp_path/'m', epochs=4, lr=30.0)
    assert 20 < int(re.search(r'at step (\d+)', str(e.value))[1]) < 100
    assert load_bilm(tmp_path/'m.interrupted')

@pytest.mark.parametrize('allowed', [2_000, 60_000], ids=['at the start', 'in the middle'])
def test_a_full_disk(corpus, tmp_path, allowed, capsys):
    """No file may grow beyond a limit (as a full disk, the write fails): at once, or for the last
    model"""
    import resource
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, old[1]))
    try:
        with pytest.raises((CheckpointError, CommandError)) as e: train(corpus, tmp_path/'m')
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert (re.search(r'No checkpoint could be written|Saving .* failed', str(e.value))
            and not (tmp_path/'m').exists())


@pytest.mark.slow
def test_a_disk_that_fills_up(corpus, tmp_path, monkeypatch, whole):
    """The training goes on and says so once; the older checkpoint stays readable; with room again
    it ends well"""
    import resource
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    def fill(cb): resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, old[1]))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(20, fill))
        try:
            with (pytest.warns(UserWarning, match='training goes on') as w,
                  pytest.raises(CommandError, match='make room.*--resume') as e):
                train(corpus, tmp_path/'m', epochs=2, every=1e-3)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    # Python shows it once
    assert len({str(o.message) for o in w if 'training goes on' in str(o.message)}) == 1
    assert not (tmp_path/'m').exists() and find_checkpoint(tmp_path/'m.run')
    assert weights(going_on(corpus, tmp_path/'m.run')) == weights(whole)


def planned(corpus, n_words=40, **said):
    "The settings of a training on a text of so many words, and its run, as a checkpoint keeps it"
    settings = script.complete(corpus, settings_for(corpus, dict(bf16=False, **said)))
    told = []
    settings = script.by_length(
        Corpus('my', dict(train=['word '*10]*(n_words // 10))), settings, told.append)
    settings.out = 'm'
    return settings, json.loads(json.dumps(script.new_run(settings, None).to_json())), told


@pytest.mark.parametrize('n_words', [100, *[
    n + more for n in script.BY_LENGTH if n < math.inf for more in (0, 10)]])
def test_what_follows_from_the_length_of_a_text(n_words):
    usual = next(usual for bound, usual in script.BY_LENGTH.items() if n_words <= bound)
    settings, plan, told = planned('my.txt', n_words)
    assert {name: getattr(settings, name)
            for name in usual} == usual and plan['model']['dropout'] == usual['dropout']
    assert len(told) == 1 and f"--dropout {usual['dropout']}, --epochs {usual['epochs']}" in told[0]
    assert f'{n_words:,} words' in told[0] or f'more than {script.LONG:,}' in told[0]
    # what is said wins, one by one
    for given in (dict(model='medium'), dict(dropout=0.25), dict(epochs=5)):
        settings, plan, told = planned('my.txt', n_words, **given)
        assert {name: getattr(settings, name)
                for name in usual} == usual | given and f'--{next(iter(given))} ' not in told[0]
        assert (plan['model']['name'] == settings.model
                and plan['model']['dropout'] == settings.dropout)
    settings, plan, told = planned('my.txt', n_words, time='1m')
    assert ('--epochs' not in told[0] and settings.epochs == usual['epochs']
            and 'epochs' not in settings.to_toml())
    settings, plan, told = planned('my.txt', n_words, config=dict(dropout=.15))
    assert plan['model']['dropout'] == .15 and '--dropout' not in told[0]
    settings, plan, told = planned('my.txt', n_words, config=dict(dropout=.15), dropout=.35)
    assert plan['model']['dropout'] == .35, 'the option stands for itself, the table for all'
    assert not planned('my.txt', n_words, model='tiny', dropout=0., epochs=2)[2]

def test_a_stream_has_no_length(text):
    settings = script.complete('my.txt', settings_for('my.txt', dict(stream=True)))
    told = []
    assert (script.by_length(
        'my.txt', settings, told.append).epochs == script.BY_LENGTH[math.inf]['epochs']
            and 'more than' in told[0])


def test_how_many_sentences_of_the_toy_language(corpus, tmp_path):
    "The recipe makes them, and reads each once"
    settings = script.complete('toy', settings_for('toy', dict(sentences=300)))
    made = script.text_of('toy', settings)
    assert (len(made.train) == 300 and settings.epochs == 1
            and made.valid == toy_corpus(n_train=1).valid)
    assert settings_for(corpus, {}).epochs == 3
    for source in (corpus, 'wikitext2'):
        with pytest.raises(CommandError, match='--sentences does not go with this corpus'):
            train(source, tmp_path/'m', sentences=9)
    with pytest.raises(CommandError, match='--sentences must be at least 1'):
        train('toy', tmp_path/'m', sentences=0)
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('fast', [False, True])
def test_a_slower_processor_reads_less_of_the_toy_language(monkeypatch, fast):
    "Some three minutes on either kind; what is said comes first"
    monkeypatch.setattr(script, 'bf16_is_fast', lambda device: fast)
    def made(**said): return script.complete('toy', settings_for('toy', said)).sentences
    assert made() == (325_000 if fast else 175_000)
    assert made(bf16=False) == 175_000 and made(bf16=True) == 325_000 and made(sentences=200) == 200

# a text of one's own: what is held out, how it is read

QUIET = dict(bs=2, seq_len=8, min_freq=1)

@pytest.fixture
def text(tmp_path, corpus):
    "A folder with train.txt, valid.txt and test.txt, and a file of each beside it"
    (tmp_path/'my').mkdir()
    lines = iter(corpus.train)
    for name,n in dict(train=60, valid=20, test=16).items():
        part = '\n'.join(next(lines) for _ in range(n))
        (tmp_path/'my'/f'{name}.txt').write_text(part)
        (tmp_path/f'{name[:2]}.txt').write_text(part)
    return tmp_path

def report_of(folder): return json.loads((Path(folder)/'report.json').read_text(encoding='utf-8'))
def words_of(folder): return set(load_bilm(folder)[1].itos)
def tokens(file, tok=str.split):
    return [t for o in Path(file).read_text().splitlines() for t in tok(o)]


def encoded(file, folder, tok='space'):
    "The lines of a file as a loader for the model in `folder`"
    lines = Path(file).read_text().splitlines()
    corpus = Corpus('x', dict(train=lines, valid=lines), tok)
    return ElmoDataLoaders.from_corpus(
        corpus, kind='stream', bs=2, seq_len=8, vocab=load_bilm(folder)[1], device='cpu').valid


def test_files_that_validate_and_test(text):
    folder = train(str(text/'tr.txt'), text/'m', valid=text/'va.txt',
                   test=str(text/'te.txt'), tokenizer='space', **QUIET)
    r, model = report_of(folder), load_bilm(folder)[0]
    assert words_of(folder) == set(tokens(text/'tr.txt')) | {
        '<pad>', '<unk>', '<s>', '</s>'}, ('all of one file was trained on, and nothing of another')
    for file,key in (('va.txt', 'perplexity'), ('te.txt', 'test_perplexity')):
        exact = evaluate(model, encoded(text/file, folder))
        for k in ('fwd', 'bwd', 'mean'): assert r[f'{key}_{k}'] == pytest.approx(exact[k], rel=1e-4)
    assert r['test_predictions'] == len(tokens(text/'te.txt')) + 16


def test_a_held_out_text_that_was_trained_on_is_named(text):
    """Nine of ten held-out lines stand in the training text, word for word: a trigram knows them by
    heart"""
    lines = (text/'tr.txt').read_text().splitlines()
    (text/'copies.txt').write_text(
        '\n'.join(lines[:18] + (text/'va.txt').read_text().splitlines()[:2]))
    for valid,says in (('copies.txt', True), ('va.txt', False)):
        told = []
        train(str(text/'tr.txt'), text/'m', valid=str(text/valid), dry=True, say=told.append,
              **QUIET)
        assert (bool(re.search(
            r'A warning: (8|9)\d% of what is held out stands in the training text',
            '\n'.join(told))) == says)


@pytest.mark.parametrize('settings', [
    dict(valid='va.txt'), dict(test='te.txt'), dict(encoding='latin-1'), dict(column='text')],
        ids=str)
def test_named_corpora_have_their_own_splits(corpus, tmp_path, settings):
    [name] = settings
    for source in ('toy', 'wikitext2', corpus):
        with pytest.raises(
            CommandError,
            match=f"--{'text-col' if name == 'column' else name} does not go with this corpus"):
            train(source, tmp_path/'m', **settings)
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_for_a_corpus_of_others(corpus, tmp_path):
    own = Corpus('own', dict(train=["it's"]*60, valid=["it's"]*9), 'words')
    assert ("it's" in words_of(train(own, tmp_path/'m', tokenizer='space', **QUIET))
            and own.tokenizer == 'words')
    with pytest.raises(CommandError, match='--tokenizer does not go'):
        train(corpus, tmp_path/'n', tokenizer='words')
    with pytest.raises(
        CommandError,
        match="--tokenizer must be words or chars or space or spacy or fastai, not 'spacey'"):
        train(own, tmp_path/'n', tokenizer='spacey')


def test_a_tokenizer_that_is_not_installed(text, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'spacy', None)
    from elmo_fastai.text.tokens import SpacyTokenizer, _tokenizers
    monkeypatch.setitem(_tokenizers, 'spacy', SpacyTokenizer())
    with pytest.raises(CommandError, match='needs spaCy: `pip install spacy`'):
        train(str(text/'tr.txt'), text/'m', tokenizer='spacy')
    code, out, err = ran(capsys, text/'tr.txt', '--tokenizer', 'spacy', '--out', text/'m')
    assert code == 1 and 'pip install spacy' in err and len(err.splitlines()) == 1


def test_how_a_text_is_read_survives(text, monkeypatch):
    "Interrupted with paths from one folder, resumed in another"
    kw = dict(tokenizer='space', encoding='latin-1', **QUIET)
    monkeypatch.chdir(text)
    whole = weights(train('tr.txt', 'whole', valid='va.txt', test='te.txt', **kw))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(9, press(), 'before_batch'))
        with pytest.raises(Interrupted): train('tr.txt', 'm', valid='va.txt', test='te.txt', **kw)
    monkeypatch.chdir(text/'my')
    assert (weights(going_on(None, text/'m.run')) == whole
            and report_of(text/'m')['test_perplexity_mean'] > 0)


# a time to train

@pytest.fixture
def steps_for_seconds(monkeypatch):
    "A clock that ticks with every step, and with the end of every epoch"
    class Ticks(TimeBudget):
        def __init__(self, seconds):
            self._ticks = 0.
            def clock(): self._ticks += 1; return self._ticks
            super().__init__(seconds, clock)
    monkeypatch.setattr(script, 'TimeBudget', Ticks)

def test_a_training_for_a_given_time(corpus, tmp_path, steps_for_seconds):
    told = []
    folder = train(corpus, tmp_path/'m', epochs=None, time='1m', say=told.append)
    assert report_of(folder)['steps'] == 58 and report_of(folder)['status'] == 'complete', (
        '25 steps an epoch, two ends of epochs')
    assert any('60 s, 25 steps' in o for o in told if o.startswith('Corpus'))
    rows = (folder/'history.csv').read_text().splitlines()
    assert (len(rows) == 4 and [o.split(',') for o in rows][0] == TABLE[:-1]
            and {len(o.split(',')) for o in rows} == {len(TABLE) - 1})


@pytest.mark.slow
@pytest.mark.parametrize('at', [10, 31])
def test_a_killed_training_goes_on_with_the_rest_of_its_time(
    corpus, tmp_path, monkeypatch, steps_for_seconds, at):
    whole = train(corpus, tmp_path/'whole', epochs=None, time=60)
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(at, press(), 'before_batch'))
        with pytest.raises(Interrupted, match=r'in epoch \d of \d[;.,]'):
            train(corpus, tmp_path/'m', epochs=None, time='60s')
    told = []
    assert weights(going_on(corpus, tmp_path/'m.run', say=told.append)) == weights(whole)
    assert any(re.search(r'Going on from epoch \d of \d, batch \d+ of 25 .*, after \d+(\.\d)? s', o)
               for o in told)
    differ = {k for k,v in report_of(whole).items() if report_of(tmp_path/'m')[k] != v}
    assert differ <= {'tokens_per_second', 'train_seconds'}


# what would happen

def listing(folder): return sorted(str(f.relative_to(folder)) for f in folder.rglob('*'))

def test_dry(text, monkeypatch, tmp_path):
    monkeypatch.chdir(text)
    before, told = listing(text), []
    torch.manual_seed(7); random.seed(7); np.random.seed(7)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(7); random.seed(7); np.random.seed(7)
    found = train('my', None, epochs=3, tokenizer='space', say=told.append, dry=True, **QUIET)
    assert (torch.rand(1), random.random(),
            np.random.rand()) == expected, ('the session has not noticed')
    assert listing(text) == before, 'nothing was written'
    folder = train('my', 'm', epochs=3, tokenizer='space', **QUIET)
    r = report_of(folder)
    assert (found['steps'] == r['steps'] and found['words'] == len(load_bilm(folder)[1])
            and found['parameters'] == sum(p.numel() for p in load_bilm(folder)[0].parameters()))
    assert (found['tokens'] == len(tokens('tr.txt')) + 2*60
            and found['held_out'] == len(tokens('va.txt')) + 2*20)
    assert (0 < found['step_seconds'] < 5
            and found['seconds'] >= found['steps']*found['step_seconds']
            and found['state_bytes'] >= 4*4*found['parameters'])
    said = '\n'.join(told)
    for o in ('Corpus my', 'Model nano', f"{found['steps']:,} steps", 'Memory', 'Time',
              'Nothing was written', 'models/my'):
        assert o in said, o
    assert not any(o.startswith('epoch') for o in told)

def test_the_estimate_is_of_real_steps(corpus, tmp_path, monkeypatch):
    "Steps and validation that take a given time longer"
    class Slow(Callback):
        order = 1
        def before_batch(self): time.sleep(.05 if self.training else .02)
    kw = dict(bs=40, epochs=4, dry=True)
    fast = train(corpus, tmp_path/'m', **kw)
    adding(monkeypatch, Slow)
    slow = train(corpus, tmp_path/'m', **kw)
    # 80 sentences in a batch
    n_valid = 1
    assert (slow['steps'] == 40 and 0.05 <= slow['step_seconds']
            and slow['seconds'] >= 40*0.05 + 4*n_valid*0.02)


def test_dry_for_a_time(corpus, tmp_path):
    told = []
    found = train(corpus, tmp_path/'m', epochs=None, time='90s', dry=True, say=told.append)
    assert (found['seconds'] == 90 and found['steps'] == round(90/found['step_seconds'])
            and '90 s' in '\n'.join(told))


def test_dry_finds_what_would_be_in_the_way(corpus, tmp_path, broken):
    (tmp_path/'f').write_text('x')
    train(corpus, tmp_path/'there', bs=200)
    before = listing(tmp_path)
    for out,says in (('there', '--overwrite'), ('m', 'did not come to its end'), ('f/x', '--out')):
        with pytest.raises(CommandError, match=says): train(corpus, tmp_path/out, dry=True)
    with pytest.raises(CommandError, match='--dry'): going_on(corpus, broken, dry=True)
    assert listing(tmp_path) == before

# settings in a file

def toml_of(folder): return tomllib.loads((Path(folder)/'run.toml').read_text(encoding='utf-8'))

def ran(capsys, *args):
    "(exit status, output, errors) of the command in this process"
    try: elmo_pretrain([str(o) for o in args]); code = 0
    except SystemExit as e: code = e.code
    return code, *capsys.readouterr()


# a training that begins with a trained model

# they are those of the model
OTHER = dict(bs=16, min_freq=None, model=None, config=None)

@pytest.fixture(scope='module')
def trained(corpus, tmp_path_factory):
    """Models to begin with: as the command leaves one, as the box has one (without norms, in bytes,
    in two files), with an alphabet, and without words"""
    base = tmp_path_factory.mktemp('trained')
    lm, vocab = load_bilm(train(corpus, base/'model', epochs=2))
    lm.chars.fold_norm()
    lm.config = replace(lm.config, norm=False)
    save_bilm(base/'folded', lm, vocab)
    state, few = load_file(base/'folded'/'model.safetensors'), {}
    for k,v in state.items():
        if v.dim() < 2: few[k] = v.half()
        else:
            few[f'{k}.scale'] = (v.flatten(1).abs().amax(1)/127).half()
            few[k] = ((v.flatten(1)/few[f'{k}.scale'].float().clamp(min=1e-9)[
                :, None]) .round() .clamp(-127, 127) .to(torch.int8) .view_as(v) .contiguous())
    for name,head in (('model', False), ('output', True)):
        save_file({k: v for k, v in few.items() if k.startswith('head') == head},
                  base/'folded'/f'{name}.safetensors')
    letters = CharVocab.build([o.split() for o in corpus.train], max_chars=20)
    dls = ElmoDataLoaders.from_corpus(
        corpus, kind='sentences', bs=16, seed=0, device='cpu', char_vocab=letters)
    save_bilm(base/'letters', bilm_learner(dls, CFG, bf16=False).model, dls.vocab)
    save_bilm(base/'states', without_head(lm), None)
    (base/'folded'/'SHA256SUMS').unlink()      # an older version saved this one
    shutil.copytree(base/'folded', base/'half')
    (base/'half'/'output.safetensors').unlink()
    return base

@pytest.fixture(scope='module')
def reviews(): return toy_corpus(n_train=200, n_valid=60, n_test=1, n_unseen=1, seed=7)

def watching(monkeypatch):
    "What the model of the next training gives before its first step, and its losses"
    seen = dict(losses=[])
    def before(cb): seen.update(exact=evaluate(cb.model, cb.dls.valid), lm=cb.model, dls=cb.dls)
    class See(At):
        def after_batch(self):
            if self.training: seen['losses'].append(self.loss.item())
    adding(monkeypatch, lambda: See(1, before, 'before_batch'))
    return seen

@pytest.mark.parametrize('name', ['model', 'folded', 'letters'])
@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_it_begins_where_the_model_was(trained, reviews, tmp_path, monkeypatch, name, kind):
    """The first perplexity is the model's own on this text, the words and letters are the model's;
    then it falls"""
    lm, vocab = load_bilm(trained/name)
    told, seen = [], watching(monkeypatch)
    folder = train(reviews, tmp_path/'m', start=trained/name, kind=kind, seq_len=16, epochs=2,
                   say=told.append, **OTHER)
    dls = ElmoDataLoaders.from_corpus(
        reviews, kind=kind, bs=16, valid_bs=256 if kind == 'sentences' else None, vocab=vocab,
        char_vocab=lm.char_vocab, device='cpu', **(dict(seq_len=16) if kind == 'stream' else {}))
    exact = evaluate(lm, dls.valid)
    for k in ('fwd', 'bwd', 'mean'): assert seen['exact'][k] == pytest.approx(exact[k], rel=1e-6)
    assert (
        f"From {trained / name}: perplexity {exact['mean']:,.1f} before the first step"
        in '\n'.join(told)
    )
    new, words = load_bilm(folder)
    assert words.itos == vocab.itos and new.config == lm.config and new.char_vocab == lm.char_vocab
    assert (np.mean(seen['losses'][-5:]) < np.mean(seen['losses'][:3])
            and report_of(folder)['perplexity_mean'] < exact['mean'])
    assert not any(
        torch.equal(v, lm.state_dict()[k]) for k, v in new.state_dict().items() if v.dim() > 1)


@pytest.mark.parametrize('name', ['model', 'folded', 'letters', 'states'])
def test_other_words_and_a_new_output_layer(trained, reviews, tmp_path, monkeypatch, name):
    """Said by --min-freq or --max-vocab: characters and layers are the model's, the words those of
    the text; without an output layer a model will do"""
    lm, _ = load_bilm(trained/name)
    told, began = [], {}
    adding(monkeypatch, lambda: At(1, lambda cb: began.update({
        k: v.clone() for k, v in cb.model.state_dict().items()}), 'before_batch'))
    folder = train(reviews, tmp_path/'m', start=trained/name, say=told.append,
                   **{**OTHER, 'min_freq': 3, 'max_vocab': 60})
    words = ElmoDataLoaders.from_corpus(
        reviews, bs=16, min_freq=3, max_vocab=60, device='cpu').vocab
    assert words_of(folder) == set(words.itos) != words_of(
        trained/'model'
    ) and f"begins anew, for {len(words)} words" in '\n'.join(told)
    encoder = [k for k in lm.state_dict() if not k.startswith('head')]
    assert encoder and all(torch.equal(began[k], lm.state_dict()[k]) for k in encoder)
    new, c = load_bilm(folder)[0], lm.config
    assert new.char_vocab == lm.char_vocab and (
        new.config.filters, new.config.norm, new.config.hidden_dim) == (
        c.filters, c.norm, c.hidden_dim)
    assert not any(torch.equal(new.state_dict()[k], lm.state_dict()[k]) for k in encoder
                   if lm.state_dict()[k].dim() > 1)


def test_it_goes_on_without_the_model_it_began_with(trained, text, monkeypatch):
    "Interrupted, and the model is gone: the checkpoint has the weights, the words and the letters"
    copy, kw = text/'letters', dict(OTHER, bs=2, seq_len=8)
    shutil.copytree(trained/'letters', copy)
    whole = train(str(text/'my'), text/'whole', start=copy, **kw)
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(9, press(), 'before_batch'))
        with pytest.raises(Interrupted): train(str(text/'my'), text/'m', start=copy, **kw)
    plan = find_checkpoint(text/'m.run').run
    assert plan['settings']['start'] == str(copy) and plan['words'] == load_bilm(copy)[1].itos
    shutil.rmtree(copy)
    with pytest.raises(CommandError, match='leave out --from'):
        going_on(None, text/'m.run', start=trained/'letters')
    folder = going_on(None, text/'m.run')
    assert weights(folder) == weights(whole) and toml_of(folder) == toml_of(whole)
    assert (words_of(folder) == words_of(trained/'letters')
            and load_bilm(folder)[0].char_vocab == load_bilm(trained/'letters')[0].char_vocab)


def test_a_stream_with_known_words_and_steps_goes_on(trained, text, tmp_path):
    "Nobody has counted its tokens, and it is a training of ours"
    kw = OTHER | dict(bs=2, seq_len=8, steps=12, start=trained/'model', stream=True,
                      valid=str(text/'va.txt'), tokenizer='space')
    whole = train(str(text/'tr.txt'), tmp_path/'whole', **kw)
    with pytest.MonkeyPatch.context() as mp:
        adding(mp, lambda: At(5, press(), 'before_batch'))
        with pytest.raises(Interrupted): train(str(text/'tr.txt'), tmp_path/'m', **kw)
    assert weights(going_on(None, tmp_path/'m.run')) == weights(whole)


@pytest.mark.parametrize('name,settings,says', [
    ('states', {}, r'elmo_pretrain.*states predicts no words'),
    (HEADLESS, {}, r'elmo_pretrain.*tiny-en predicts no words'),
    ('half', {}, r'output layer.*elmo_pretrain.*head.* is missing'),
    ('nowhere', {}, r'elmo_pretrain.*no folder.*nowhere'),
    ('model', dict(model='tiny'), '--from takes.*leave --model'),
    ('model', dict(config=dict(dropout=0.1)), r'leave --model and \[config\] out')], ids=str)
def test_models_that_it_can_not_begin_with(
    trained, reviews, tmp_path, monkeypatch, name, settings, says):
    with pytest.raises(CommandError, match=says):
        train(reviews, tmp_path/'m', start=trained/name, **{**OTHER, **settings})
    assert listing(tmp_path) == []

def test_it_does_not_write_over_the_model_it_begins_with(trained, reviews, tmp_path, monkeypatch):
    shutil.copytree(trained/'model', tmp_path/'m')
    monkeypatch.chdir(tmp_path)
    for out in ('m', tmp_path/'m', '../'+tmp_path.name+'/m'):
        with pytest.raises(CommandError, match='begins with.*--out'):
            train(reviews, out, start='m', overwrite=True, **OTHER)
    assert (weights('m') == weights(trained/'model')
            and listing(tmp_path/'m') == listing(trained/'model') and names(tmp_path) == ['m'])


# how it looks

def test_progress_where_there_is_no_terminal(corpus, tmp_path, monkeypatch):
    "Short lines: one heading, one line an epoch, and between them one a minute"
    told = []
    train(corpus, tmp_path/'a', epochs=2, say=told.append)
    rows = [o for o in told if re.match(r'\s*(epoch|\d) ', o)]
    assert len(rows) == 3 and rows[0].split() == TABLE, 'within a minute nothing more'
    monkeypatch.setattr(script.ProgressLines, 'pause', 0.)
    told.clear()
    train(corpus, tmp_path/'b', epochs=2, say=told.append)
    between = [o for o in told if 'step' in o and 'loss' in o]
    assert len(between) == 50 and re.search(
        r'epoch 2, step 3 of 25, loss \d+\.\d+, [\d,]+ tokens/s, 56% of all is done', between[27])
    assert all(len(o) < 100 and '\r' not in o and '\n' not in o for o in rows + between)


def said(folder):
    return ((folder/'.out').read_text(encoding='utf-8'),
            (folder/'.err').read_text(encoding='utf-8'))


# results that mean nothing are said to mean nothing

CHINESE = '春天来了河岸上开满了花他们坐在银行门口等朋友我们明天去看电影吧'

@pytest.fixture
def unspaced(tmp_path):
    "A text without blanks: the default tokenizer takes a sentence for a word"
    rng = random.Random(3)
    lines = [''.join(rng.sample(CHINESE, 12)) + '。' for _ in range(300)]
    (tmp_path/'zh.txt').write_text('\n'.join(lines), encoding='utf-8')
    return tmp_path

def test_a_text_without_spaces_is_nearly_all_unknown(unspaced):
    """Perplexity 1.28 looks splendid: what is counted is said at the start, in the report and
    beside the model"""
    told = []
    folder = train(str(unspaced/'zh.txt'), unspaced/'m', bs=4, seq_len=8, tokenizer='space',
                   say=told.append)
    begin = next(lines for lines in told if lines.startswith('Corpus'))
    assert (re.search(r'100\.0% are unknown \(<unk>\)', begin) and 'A warning' in begin
            and '--min-freq 1' in begin and '--tokenizer' in begin), begin
    r = report_of(folder)
    card = (folder/'README.md').read_text(encoding='utf-8')
    assert '100.0% are unknown' in card and 'A warning' in card and 'elmo_pretrain' in card
    assert r['unknown'] == 1 and r['train_unknown'] == pytest.approx(1, abs=.01) and r['cut'] == 0
    assert r['perplexity_mean'] < 10 and 'A warning' in told[-1] and '--min-freq 1' in told[-1]
    # the default splits them
    letters = report_of(train(str(unspaced/'zh.txt'), unspaced/'n', bs=4, seq_len=8))
    assert letters['unknown'] < .1


def test_few_unknown_words_are_no_warning(corpus, tmp_path):
    told = []
    train(corpus, tmp_path/'m', dry=True, dropout=0., say=told.append)
    assert '<unk>' in told[0] and 'A warning' not in told[0], (
        'more of them are held out than a warning takes, but to train on there is none')


# a mistake of ours looks like one

@pytest.mark.parametrize('error', [
    OSError(28, 'No space left', 'interrupted/lower learning rate'),
    MemoryError('interrupted')], ids=str)
def test_a_path_does_not_say_why_a_training_ended(corpus, tmp_path, monkeypatch, error):
    """Whatever words are in the message, it is neither Ctrl-C nor a rate that was too high; the run
    can be resumed, the cause is kept"""

    def fail(cb):
        raise error

    adding(monkeypatch, lambda: At(5, fail, 'before_batch'))
    with pytest.raises(CommandError, match='--resume') as e:
        train(corpus, tmp_path/'m')
    assert type(e.value) is CommandError and e.value.__cause__ is error

@pytest.mark.parametrize('error', [
    RuntimeError('interrupted'), ValueError('shapes differ'), KeyError('x')], ids=str)
def test_a_bug_in_training_looks_like_a_bug(corpus, tmp_path, monkeypatch, capsys, error):
    """Its own exception with its own traceback; what was learned is saved nevertheless, and where
    is said"""

    def fail(cb):
        raise error

    adding(monkeypatch, lambda: At(5, fail, 'before_batch'))
    told = []
    with pytest.raises(type(error)) as e:
        train(corpus, tmp_path/'m', say=told.append)
    assert e.value is error and 'fail' in [o.name for o in e.traceback]
    assert load_bilm(tmp_path/'m.interrupted') and any(
        'm.interrupted' in o and '--resume' in o for o in told)

def test_a_file_repeats_it(trained, text, monkeypatch, capsys):
    monkeypatch.chdir(text)
    shutil.copytree(trained/'folded', 'base')
    (text/'tiny.toml').write_text(
        'model = "tiny"\nmin-freq = 3\nbs = 2\nseq-len = 8\nepochs = 1\n\n[config]\ndropout = 0.2\n'
    )
    code, out, err = ran(
        capsys, 'my', '--from', 'base', '--config', 'tiny.toml', '--out', 'a', '--device', 'cpu',
        '--no-bf16')
    # what a file says about another model is not said about this one
    assert code == 0 and 'before the first step' in out, err
    found = toml_of('a')
    assert found['from'] == str(text/'base') and not {
        'model', 'config', 'min_freq', 'max_vocab', 'start'} & set(found)
    monkeypatch.chdir(text/'my')
    code, out, err = ran(
        capsys, '--config', text/'a'/'run.toml', '--out', text/'b', '--device', 'cpu')
    assert code == 0 and alike(text/'a', text/'b') and toml_of(text/'b') == found, err

def test_a_model_that_is_named_is_that_one(tmp_path):
    """Also where the corpus has a recipe that changes another one, and beside a file with changes
    of no named model"""
    assert (planned('wikitext2', 50_000)[1]['model']['dropout'] == 0.1
            and planned('wikitext2', 50_000, model='small')[1]['model']['dropout'] == 0.3)
    settings = settings_for('a.txt', dict(model='tiny'), dict(config=dict(dropout=.2)))
    assert settings.config == dict(dropout=.2) and settings.model == 'tiny'
