"A training from text to a folder: interrupted, resumed, timed, tried, and from another model"
import json, math, multiprocessing, os, random, re, resource, shutil, signal, subprocess, sys, time
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import Callback, Learner
from safetensors.torch import load_file, save_file

import elmo_fastai
from elmo_fastai.train import script
from elmo_fastai.elmo.module import without_head
from elmo_fastai.base.errors import CheckpointError, CommandError, Interrupted
from elmo_fastai.base.processes import use_threads
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.corpora import text_corpus
from elmo_fastai.text.tokens import CharVocab
from elmo_fastai.nn.bilm import BiLMConfig, evaluate
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.train.checkpoint import FILE, Checkpoints, find_checkpoint
from elmo_fastai.train.command import elmo_pretrain, pretrain, settings_for
from elmo_fastai.train.learner import TimeBudget, bilm_learner
from made import quietly
from steps import At, press

NANO = dict(name='nano', char_dim=4, filters=[[1,8],[2,8],[3,8]], proj_dim=16, hidden_dim=16)
CFG = BiLMConfig.from_dict(NANO)
HEADLESS = Path(__file__).parent/'golden'/'tiny-en'     # a model without an output layer
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']
SENSES = 'floor', 'ratio_to_floor', 'sense_accuracy', 'sense_baseline'
QUIET = dict(bs=2, seq_len=8, min_freq=1)
RIVER = 'the bank of the river .\n'*60
FIGURES = 'fwd', 'bwd', 'mean'

pytestmark = pytest.mark.usefixtures('held_throughout', 'drawn_once')

def toy(n_train=400, n_valid=80, n_test=1, n_unseen=1, **kwargs):
    return toy_corpus(n_train, n_valid, n_test, n_unseen, **kwargs)

@pytest.fixture(scope='module')
def corpus(): return toy()

def loaders(corpus, **kwargs):
    how = dict(kind='sentences', bs=16, seed=0, device='cpu')
    return ElmoDataLoaders.from_corpus(corpus, **{**how, **kwargs})

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)

# from text to a folder, in this process

def names(folder): return sorted(file.name for file in folder.iterdir())
def listing(folder): return sorted(str(f.relative_to(folder)) for f in folder.rglob('*'))
def weights(folder): return (Path(folder)/'model.safetensors').read_bytes()
def report_of(folder): return json.loads((Path(folder)/'report.json').read_text(encoding='utf-8'))
def toml_of(folder): return tomllib.loads((Path(folder)/'run.toml').read_text(encoding='utf-8'))
def words_of(folder): return set(load_bilm(folder)[1].itos)
def silent(text): pass

def train(corpus, out, **kwargs):
    usual = dict(model='tiny', config=NANO, epochs=1, bs=16, device='cpu', bf16=False, say=silent)
    return pretrain(corpus, out=out, **{**usual, **kwargs})

def going_on(corpus, run, say=silent, **kwargs):
    return pretrain(corpus, resume=run, device='cpu', say=say, **kwargs)

def adding(monkeypatch, cb):
    "Every learner of the command gets one more callback"
    make = bilm_learner
    def with_one_more(*args, cbs, **kwargs): return make(*args, cbs=[*cbs, cb()], **kwargs)
    monkeypatch.setattr(script, 'bilm_learner', with_one_more)

def interrupted_at(step, *args, do=press(), error=Interrupted, **kwargs):
    "The message of a training that is stopped before a step, by Ctrl-C or otherwise"
    with pytest.MonkeyPatch.context() as mp, pytest.raises(error) as e:
        adding(mp, lambda: At(step, do, 'before_batch'))
        train(*args, **kwargs)
    return str(e.value)

@contextmanager
def small_files(n):
    "No file may grow beyond `n` bytes: as on a full disk, the write fails"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, old[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)

def ran(capsys, *args):
    "(exit status, output, errors) of the command in this process"
    try: elmo_pretrain([str(arg) for arg in args]); code = 0
    except SystemExit as e: code = e.code
    return code, *capsys.readouterr()

def said(folder):
    return tuple((folder/name).read_text(encoding='utf-8') for name in ('.out', '.err'))

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
    for name in ('report.png', 'report.svg'): assert (folder/name).stat().st_size > 10_000
    return report, *load_bilm(folder)

def test_pretrain_on_the_toy_corpus(corpus, dls, tmp_path):
    told = []
    folder = train(corpus, tmp_path/'a'/'toy', say=told.append)
    assert folder == tmp_path/'a'/'toy' and names(folder.parent) == ['toy']
    report, model, vocab = check_folder(folder, senses=True)
    exact = evaluate(model, dls.valid)
    for k in FIGURES: assert report[f'perplexity_{k}'] == pytest.approx(exact[k], rel=1e-5)
    assert vocab.itos == dls.vocab.itos and report['steps'] == len(dls.train)
    text = '\n'.join(map(str, told))
    assert report['status'] == 'complete' and 'trigram' in text and str(folder) in text
    for name in ('perplexity_mean', 'floor'): assert f'{report[name]:.2f}' in text

@pytest.mark.parametrize('n_train,n_valid', [(20, 5), (3, 1), (60, 1)])
def test_tiny_corpora_end_in_a_report(tmp_path, n_train, n_valid):
    "Words without two senses, one occurrence, hardly a batch"
    folder = train(toy(n_train, n_valid, 0, 0), tmp_path/'m', bs=2)
    assert set(SENSES) <= report_of(folder).keys() and load_bilm(folder)

@pytest.mark.parametrize('error', [KeyboardInterrupt, MemoryError, ValueError], ids=str)
def test_a_failure_while_measuring_costs_no_model(corpus, tmp_path, monkeypatch, error):
    def fail(*args, **kwargs): raise error
    with monkeypatch.context() as mp:
        mp.setattr(script, 'make_report', fail)
        with pytest.raises(BaseException) as e: train(corpus, tmp_path/'m')
    before = weights(tmp_path/'m')
    if error is KeyboardInterrupt:
        assert e.type is Interrupted and str(e.value).endswith(f"--resume {tmp_path/'m.run'}")
    assert weights(going_on(corpus, tmp_path/'m.run')) == before
    check_folder(tmp_path/'m', senses=True)

def test_the_second_ctrl_c_keeps_the_model_too(corpus, tmp_path):
    assert 'interrupted' in interrupted_at(5, corpus, tmp_path/'m', do=press(times=2))
    assert names(tmp_path) == ['m.interrupted', 'm.run'] and load_bilm(tmp_path/'m.interrupted')

def test_an_interruption_never_replaces_anything(corpus, tmp_path):
    before = weights(old := train(corpus, tmp_path/'m'))
    (tmp_path/'m.interrupted').mkdir()
    (tmp_path/'m.interrupted'/'thesis.txt').write_text('precious')
    for _ in range(2): interrupted_at(5, corpus, tmp_path/'m', overwrite=True)
    assert weights(old) == before
    assert (tmp_path/'m.interrupted'/'thesis.txt').read_text() == 'precious'
    others = {*names(tmp_path)} - {'m', 'm.interrupted', 'm.run'}
    assert len(others) == 2 and all(load_bilm(tmp_path/name) for name in others)

@pytest.mark.parametrize('place', ['f', 'g', 'f/x', 'web', '..', Path('')], ids=[
    'file', 'foreign folder', 'under a file', 'a foreign config', '..', ''])
def test_places_that_can_not_be_written_are_found_before_training(
    corpus, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Learner, 'fit', lambda *a, **k: pytest.fail('it trained first'))
    (tmp_path/'f').write_text('x')
    for name in ('g', 'web'): (tmp_path/name).mkdir()
    (tmp_path/'g'/'thesis.txt').write_text('precious')
    (tmp_path/'web'/'config.json').write_text('{"name": "my web application"}')
    before = listing(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(CommandError, match='--out'): train(corpus, place, overwrite=overwrite)
    assert listing(tmp_path) == before

@pytest.mark.skipif(os.name == 'nt' or os.geteuid() == 0, reason='the superuser may write anywhere')
def test_a_folder_without_permission(corpus, tmp_path):
    (tmp_path/'p').mkdir(mode=0o500)
    with pytest.raises(CommandError, match='write'): train(corpus, tmp_path/'p'/'m')

@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('name,folder', [
    ('my.text.txt', 'my.text'), ('books/*.txt', 'books'), ('./books', 'books'),
    (['books/a.txt', 'books/b.txt'], 'books')], ids=str)
def test_default_folders(tmp_path, monkeypatch, name, folder, stream):
    (tmp_path/'books').mkdir()
    for file in ('my.text.txt', 'books/a.txt', 'books/b.txt'): (tmp_path/file).write_text(RIVER)
    monkeypatch.chdir(tmp_path)
    how = dict(stream=True, valid_rows=20) if stream else {}
    assert train(name, None, **how, **QUIET) == Path('models')/folder

def test_a_text_that_is_called_toy_is_not_the_toy_corpus(tmp_path):
    (tmp_path/'toy.txt').write_text(RIVER)
    report = report_of(train(str(tmp_path/'toy.txt'), tmp_path/'m', **QUIET))
    other = Corpus('other', text_corpus(tmp_path/'toy.txt').splits)
    assert report['floor'] is None
    assert report['steps'] == report_of(train(other, tmp_path/'n', **QUIET))['steps']

def test_local_copies_of_named_corpora(tmp_path):
    (tmp_path/'input.txt').write_text('First Citizen:\nBefore we proceed, hear me speak.\n\n'*40)
    folder = train('tiny_shakespeare', tmp_path/'m', data=tmp_path, bs=2, seq_len=8)
    assert report_of(folder)['corpus'] == 'tiny_shakespeare'

# trainings that were interrupted, and go on

def alike(a, b):
    "Are the weights of two trainings with one seed the same, but for roundings?"
    a, b = (load_file(Path(folder)/'model.safetensors') for folder in (a, b))
    return a.keys() == b.keys() and all(torch.allclose(v, b[k], atol=1e-5) for k,v in a.items())

def same_reports(a, b):
    "Do two reports differ in nothing but times?"
    a, b = report_of(a), report_of(b)
    return {k for k in a if a[k] != b[k]} <= {'tokens_per_second', 'train_seconds'}

@pytest.fixture(scope='module')
def interrupted(corpus, tmp_path_factory):
    "A folder with a training that was interrupted at step 30 of 50"
    base = tmp_path_factory.mktemp('interrupted')
    message = interrupted_at(30, corpus, base/'m', epochs=2)
    assert message.endswith(f"--resume {base/'m.run'}")
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

def test_a_resumed_training_ends_like_an_undisturbed_one(corpus, tmp_path, broken, whole):
    told = []
    folder = going_on(corpus, broken, told.append)
    assert folder == tmp_path/'m'
    assert names(tmp_path) == ['m', 'm.interrupted'], 'the checkpoints have gone'
    check_folder(folder, senses=True)
    assert re.search('Going on from epoch 2 of 2, batch 5 of 25', '\n'.join(told))
    assert weights(folder) == weights(whole) and same_reports(folder, whole)
    history = (folder/'history.csv').read_text()
    assert history == (whole/'history.csv').read_text() and len(history.splitlines()) == 3

@pytest.mark.slow
def test_settings_survive(corpus, tmp_path, monkeypatch):
    "Adagrad, weight decay, patience and a carried state are those of the first part"
    kwargs = dict(epochs=3, bs=4, seq_len=8, min_freq=1, optimizer='adagrad', wd=.001, patience=2,
                  carry=True)
    text = tmp_path/'text.txt'
    text.write_text('\n'.join(corpus.train[:80]))
    whole = train(str(text), tmp_path/'whole', **kwargs)
    interrupted_at(17, str(text), tmp_path/'m', **kwargs)
    with pytest.raises(CommandError, match='leave the corpus out'):
        going_on('wikitext2', tmp_path/'m.run')
    monkeypatch.chdir(tmp_path)
    assert weights(going_on(None, 'm.run')) == weights(whole)
    assert names(tmp_path) == ['m', 'm.interrupted', 'text.txt', 'whole']

def killed(where, corpus, out, fresh=True, **more):
    "A training, in a process of its own, that is killed where a function of the command is called"
    def child():
        setattr(script, where, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
        train(corpus, out, epochs=2, **more) if fresh else going_on(corpus, out)
    process = multiprocessing.get_context('fork').Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL

@pytest.mark.slow
@pytest.mark.parametrize('more', [{}, dict(patience=1, lr=.3)], ids=['', 'early stop'])
def test_killed_while_measuring(corpus, tmp_path, more):
    "The model is there without its report; the next call writes it, and trains nothing"
    out = tmp_path/'m'
    for fresh in (True, False):                                           # and once more
        killed('make_report', corpus, out, fresh, **more)
        assert names(tmp_path) == ['m', 'm.run'] and not (out/'report.json').exists()
    before = weights(out)
    with pytest.raises(CommandError, match='did not come to its end.*--resume'):
        train(corpus, out, epochs=2)
    assert going_on(corpus, tmp_path/'m.run') == out and names(tmp_path) == ['m']
    report, *_ = check_folder(out, senses=True)
    assert weights(out) == before and report['status'] == 'complete'
    assert more or report['steps'] == 50

@pytest.mark.slow
def test_killed_when_all_is_written(corpus, tmp_path):
    out = tmp_path/'m'
    killed('make_report', corpus, out)
    killed('clear', corpus, out, fresh=False)    # a fresh training calls it at its beginning, too
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

@pytest.mark.parametrize('where', ['m', 'checkpoint'])
def test_what_resume_may_be_given(corpus, tmp_path, broken, where):
    place = {'m': tmp_path/'m', 'checkpoint': max(broken.glob('0*-*'))}[where]
    assert going_on(corpus, place) == tmp_path/'m'

@pytest.mark.parametrize('what', [
    dict(lr=.1), dict(model='tiny'), dict(out='x'), dict(epochs=9), dict(seed=0), dict(bf16=False),
    dict(carry=True), dict(dry=True)], ids=str)
def test_resume_takes_everything_from_the_run(corpus, broken, what):
    with pytest.raises(CommandError, match='leave'):
        going_on(corpus, broken, **what)
    assert find_checkpoint(broken)

def test_another_text_is_not_resumed(corpus, broken):
    other = toy()
    for some in (other.splits, other.gold): some['train'][7] = some['train'][8]
    before = names(broken)
    with pytest.raises(CommandError, match='text has changed'): going_on(other, broken)
    assert names(broken) == before
    with pytest.raises(CommandError, match='hand it'): going_on(None, broken)

def test_nothing_good_is_no_fresh_start(corpus, tmp_path, broken):
    files = list(broken.glob('0*-*'))
    for file in files: (file/FILE).write_bytes(b'')
    with pytest.raises(CheckpointError, match='no good checkpoint') as e: going_on(corpus, broken)
    assert all(file.name in str(e.value) for file in files) and not (tmp_path/'m').exists()
    with pytest.raises(CommandError, match='--overwrite'): train(corpus, tmp_path/'m')

def test_foreign_folders(corpus, tmp_path, dls):
    for name in ('thesis', 'm.run'):
        (tmp_path/name).mkdir()
        (tmp_path/name/'a.txt').write_text('precious')
    for place in ('nowhere', 'thesis', 'thesis/a.txt'):
        with pytest.raises((CheckpointError, CommandError)): going_on(corpus, tmp_path/place)
    checkpoints = Checkpoints(tmp_path/'own', run=dict(corpus='mine'))     # not by the command
    quietly(bilm_learner(dls, CFG, bf16=False, cbs=checkpoints), 'fit', 1)
    with pytest.raises(CommandError, match='not of a training that elmo_pretrain began'):
        going_on(corpus, tmp_path/'own')
    train(corpus, tmp_path/'m', overwrite=True)
    for name in ('thesis', 'm.run'): assert (tmp_path/name/'a.txt').read_text() == 'precious'
    assert names(tmp_path/'m.run') == ['a.txt']

@pytest.mark.slow
def test_two_runs_in_one_folder(corpus, tmp_path, monkeypatch):
    found = []
    program = ('from elmo_fastai.train.command import elmo_pretrain; '
               f"elmo_pretrain(['toy', '--out', {str(tmp_path/'m')!r}, '--overwrite'])")
    def second(cb):
        env = {**os.environ, 'PYTHONPATH': str(Path(elmo_fastai.__file__).parents[1])}
        p = subprocess.run([sys.executable, '-c', program], env=env, capture_output=True, text=True)
        assert p.returncode == 1 and f'in use by process {os.getpid()}' in p.stderr, p.stderr
        found.extend(names(tmp_path/'m.run'))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(3, second, 'before_batch'))
        assert load_bilm(train(corpus, tmp_path/'m'))
    assert [name for name in found if name.endswith('start')]

@pytest.mark.parametrize('ends', [True, False])
def test_another_run_is_done_while_this_one_prepares(corpus, tmp_path, monkeypatch, ends):
    "Neither its model nor its checkpoints are replaced"
    made = script.make_learner
    def slow(*args):
        monkeypatch.setattr(script, 'make_learner', made)
        if ends: train(corpus, tmp_path/'m')
        else:
            with monkeypatch.context() as mp, pytest.raises(Interrupted):
                adding(mp, lambda: At(3, press(), 'before_batch'))
                train(corpus, tmp_path/'m')
        found.extend(listing(tmp_path))
        return made(*args)
    found = []
    monkeypatch.setattr(script, 'make_learner', slow)
    with pytest.raises(CommandError, match='holds a'): train(corpus, tmp_path/'m', seed=7)
    left = [name for name in listing(tmp_path) if not name.endswith('lock')]
    assert left == [name for name in found if not name.endswith('lock')]

def test_a_training_leaves_the_random_numbers_alone():
    program = ("import random; random.seed(1); before = random.getstate()\n"
               "from elmo_fastai.train.command import pretrain\n"
               "pretrain('toy', sentences=200, model='tiny', epochs=1, dry=True, say=str)\n"
               "assert random.getstate() == before")
    assert not subprocess.run([sys.executable, '-c', program]).returncode

@pytest.mark.parametrize('valid', ['v.txt', ['v.txt'], .5])
def test_what_validates_a_table_stands_in_the_table(valid):
    with pytest.raises(CommandError, match='--valid|valid is a'):
        pretrain(pd.DataFrame(dict(text=['a b c'])), valid=valid, epochs=1)

def test_a_corpus_with_splits_is_no_stream():
    with pytest.raises(CommandError, match='leave out --stream'): pretrain('toy', stream=True)

def test_a_rate_that_runs_away(corpus, tmp_path):
    "The loss stays finite, far above guessing; the message names the step"
    with pytest.raises(CommandError, match='lower learning rate') as e:
        train(corpus, tmp_path/'m', epochs=4, lr=30.)
    assert 20 < int(re.search(r'at step (\d+)', str(e.value))[1]) < 100
    assert load_bilm(tmp_path/'m.interrupted')

@pytest.mark.parametrize('allowed', [2_000, 60_000], ids=['at the start', 'in the middle'])
def test_a_full_disk(corpus, tmp_path, allowed):
    "At once, or for the last model"
    with (small_files(allowed), pytest.raises((CheckpointError, CommandError),
                                              match='could be written|Saving .* failed')):
        train(corpus, tmp_path/'m')
    assert not (tmp_path/'m').exists()

@pytest.mark.slow
def test_a_disk_that_fills_up(corpus, tmp_path, monkeypatch, whole):
    """The training goes on and says so once; the older checkpoint stays readable; with room again
    it ends well"""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    def fill(cb): resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limit[1]))
    with monkeypatch.context() as mp, small_files(limit[0]):
        adding(mp, lambda: At(20, fill))
        with (pytest.warns(UserWarning, match='training goes on') as found,
              pytest.raises(CommandError, match='make room.*--resume')):
            train(corpus, tmp_path/'m', epochs=2, every=1e-3)
    messages = {str(warning.message) for warning in found}              # Python shows each once
    assert len([text for text in messages if 'training goes on' in text]) == 1
    assert not (tmp_path/'m').exists() and find_checkpoint(tmp_path/'m.run')
    assert weights(going_on(corpus, tmp_path/'m.run')) == weights(whole)

# what follows from the text

def planned(corpus, n_words=40, **said):
    "The settings of a training on a text of so many words, and its run, as a checkpoint keeps it"
    settings = script.complete(corpus, settings_for(corpus, dict(bf16=False, **said)))
    told = []
    lines = ['word '*10]*(n_words // 10)
    settings = script.by_length(Corpus('my', dict(train=lines)), settings, told.append)
    settings.out = 'm'
    return settings, json.loads(json.dumps(script.new_run(settings, None).to_json())), told

BOUNDS = [n for n in script.BY_LENGTH if n < math.inf]

@pytest.mark.parametrize('n_words', [100, *BOUNDS, *[n + 10 for n in BOUNDS]])
def test_what_follows_from_the_length_of_a_text(n_words):
    usual = next(usual for bound,usual in script.BY_LENGTH.items() if n_words <= bound)
    def chosen(settings): return {name: getattr(settings, name) for name in usual}
    settings, plan, [line] = planned('my.txt', n_words)
    assert chosen(settings) == usual and plan['model']['dropout'] == usual['dropout']
    assert f"--dropout {usual['dropout']}, --epochs {usual['epochs']}" in line
    assert f'{n_words:,} words' in line or f'more than {script.LONG:,}' in line
    # what is said wins, one by one
    for given in (dict(model='medium'), dict(dropout=.25), dict(epochs=5)):
        settings, plan, [line] = planned('my.txt', n_words, **given)
        assert chosen(settings) == usual | given and f'--{next(iter(given))} ' not in line
        assert plan['model']['name'] == settings.model
        assert plan['model']['dropout'] == settings.dropout
    settings, _, [line] = planned('my.txt', n_words, time='1m')
    assert '--epochs' not in line and 'epochs' not in settings.to_toml()
    _, plan, [line] = planned('my.txt', n_words, config=dict(dropout=.15))
    assert plan['model']['dropout'] == .15 and '--dropout' not in line
    _, plan, _ = planned('my.txt', n_words, config=dict(dropout=.15), dropout=.35)
    assert plan['model']['dropout'] == .35, 'the option stands for itself, the table for all'
    assert not planned('my.txt', n_words, model='tiny', dropout=0., epochs=2)[2]

def test_a_stream_has_no_length():
    settings = script.complete('my.txt', settings_for('my.txt', dict(stream=True)))
    told = []
    epochs = script.by_length('my.txt', settings, told.append).epochs
    assert epochs == script.BY_LENGTH[math.inf]['epochs'] and 'more than' in told[0]

def test_a_model_that_is_named_is_that_one():
    """Also where the corpus has a recipe that changes another one, and beside a file with changes
    of no named model"""
    for said,dropout in (({}, .1), (dict(model='small'), .3)):
        assert planned('wikitext2', 50_000, **said)[1]['model']['dropout'] == dropout
    settings = settings_for('a.txt', dict(model='tiny'), dict(config=dict(dropout=.2)))
    assert settings.config == dict(dropout=.2) and settings.model == 'tiny'

def test_how_many_sentences_of_the_toy_language(corpus, tmp_path):
    "The recipe makes them, and reads each once"
    settings = script.complete('toy', settings_for('toy', dict(sentences=300)))
    made = script.text_of('toy', settings)
    assert len(made.train) == 300 and made.valid == toy_corpus(n_train=1).valid
    assert settings.epochs == 1 and settings_for(corpus, {}).epochs == 3
    with pytest.raises(CommandError, match='--sentences must be at least 1'):
        train('toy', tmp_path/'m', sentences=0)

@pytest.mark.parametrize('fast', [False, True])
def test_a_slower_processor_reads_less_of_the_toy_language(monkeypatch, fast):
    "Some three minutes on either kind; what is said comes first"
    monkeypatch.setattr(script, 'bf16_is_fast', lambda device: fast)
    def made(**said): return script.complete('toy', settings_for('toy', said)).sentences
    assert made() == (325_000 if fast else 175_000)
    assert made(bf16=False) == 175_000 and made(bf16=True) == 325_000 and made(sentences=200) == 200

def test_the_main_process_decides_for_all(monkeypatch):
    "What this one would have chosen does not count: the texts would not be the same"
    monkeypatch.setattr(script, 'bf16_is_fast', lambda device: False)
    monkeypatch.setattr(script, 'from_main', lambda function, device: (True, 3))
    made = script.complete('toy', settings_for('toy', {}))
    assert (made.bf16, made.threads, made.sentences) == (True, 3, 325_000)
    made = script.complete('toy', settings_for('toy', dict(bf16=False, threads=2)))
    assert (made.bf16, made.threads, made.sentences) == (False, 2, 175_000)

@pytest.mark.parametrize('fast', [True, False])
def test_another_processor_goes_on_as_the_run_began(corpus, tmp_path, monkeypatch, fast):
    def on_processor(fast): monkeypatch.setattr(script, 'bf16_is_fast', lambda device: fast)
    on_processor(fast)
    interrupted_at(3, corpus, tmp_path/'m', epochs=2, bf16=None)
    on_processor(not fast)
    with use_threads(torch.get_num_threads() + 1): going_on(corpus, tmp_path/'m.run')
    assert toml_of(tmp_path/'m')['bf16'] is fast
    assert f'threads: {torch.get_num_threads()}.' in (tmp_path/'m'/'run.toml').read_text()

@pytest.mark.parametrize('settings', [
    dict(valid='va.txt'), dict(test='te.txt'), dict(token_col=0), dict(text_col='text'),
    dict(sentences=9)], ids=str)
@pytest.mark.parametrize('source', ['toy', 'wikitext2', 'a corpus'])
def test_named_corpora_have_their_own_splits(corpus, tmp_path, source, settings):
    [name] = settings
    if source == 'toy' and name == 'sentences': return
    option = name.replace('_', '-')
    with pytest.raises(CommandError, match=f"--{option} does not go with this corpus"):
        train(corpus if source == 'a corpus' else source, tmp_path/'m', **settings)
    assert not list(tmp_path.iterdir())

# a text of one's own: what is held out, how it is read

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

def tokens(file): return Path(file).read_text().split()

def test_files_that_validate_and_test(text):
    how = dict(valid=text/'va.txt', test=str(text/'te.txt'), tokenizer='space')
    folder = train(str(text/'tr.txt'), text/'m', **how, **QUIET)
    report, model = report_of(folder), load_bilm(folder)[0]
    read = {*tokens(text/'tr.txt'), '<pad>', '<unk>', '<s>', '</s>'}
    assert words_of(folder) == read, 'all of one file was trained on, and nothing of another'
    for file,key in (('va.txt', 'perplexity'), ('te.txt', 'test_perplexity')):
        lines = (text/file).read_text().splitlines()
        held = loaders(Corpus('x', dict(train=lines, valid=lines), 'space'), kind='stream', bs=2,
                       seq_len=8, vocab=load_bilm(folder)[1]).valid
        exact = evaluate(model, held)
        for k in FIGURES: assert report[f'{key}_{k}'] == pytest.approx(exact[k], rel=1e-4)
    assert report['test_predictions'] == len(tokens(text/'te.txt')) + 16

@pytest.mark.parametrize('valid,is_known', [('copies.txt', True), ('va.txt', False)])
def test_a_held_out_text_that_was_trained_on_is_named(text, valid, is_known):
    "Nine of ten held-out lines stand in the training text: a trigram knows them by heart"
    train_lines, others = ((text/name).read_text().splitlines() for name in ('tr.txt', 'va.txt'))
    (text/'copies.txt').write_text('\n'.join(train_lines[:18] + others[:2]))
    told = []
    train(str(text/'tr.txt'), text/'m', valid=str(text/valid), dry=True, say=told.append, **QUIET)
    warning = r'A warning: (8|9)\d% of what is held out stands in the training text'
    assert bool(re.search(warning, '\n'.join(told))) == is_known

def test_a_tokenizer_for_a_corpus_of_others(corpus, tmp_path):
    own = Corpus('own', dict(train=["it's"]*60, valid=["it's"]*9), 'words')
    assert "it's" in words_of(train(own, tmp_path/'m', tokenizer='space', **QUIET))
    assert own.tokenizer == 'words'
    choices = "words or chars or space or spacy or fastai, not 'spacey'"
    for source,name,says in ((corpus, 'words', '--tokenizer does not go'),
                             (own, 'spacey', f'--tokenizer must be {choices}')):
        with pytest.raises(CommandError, match=says): train(source, tmp_path/'n', tokenizer=name)

def test_a_tokenizer_that_is_not_installed(text, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'spacy', None)
    from elmo_fastai.text.tokens import SpacyTokenizer, _tokenizers
    monkeypatch.setitem(_tokenizers, 'spacy', SpacyTokenizer())
    code, _, err = ran(capsys, text/'tr.txt', '--tokenizer', 'spacy', '--out', text/'m')
    assert code == 1 and 'needs spaCy: `pip install spacy`' in err and len(err.splitlines()) == 1

def test_how_a_text_is_read_survives(text, monkeypatch):
    "Interrupted with paths from one folder, resumed in another"
    how = dict(valid='va.txt', test='te.txt', tokenizer='space', **QUIET)
    monkeypatch.chdir(text)
    whole = weights(train('tr.txt', 'whole', **how))
    interrupted_at(9, 'tr.txt', 'm', **how)
    monkeypatch.chdir(text/'my')
    assert weights(going_on(None, text/'m.run')) == whole
    assert report_of(text/'m')['test_perplexity_mean'] > 0

# a time to train

@pytest.fixture
def steps_for_seconds(monkeypatch):
    "A clock that ticks with every step, and with the end of every epoch"
    class Ticks(TimeBudget):
        name = 'time_budget'
        def __init__(self, seconds):
            self._ticks = 0.
            def clock(): self._ticks += 1; return self._ticks
            super().__init__(seconds, clock)
    monkeypatch.setattr(script, 'TimeBudget', Ticks)

def test_a_training_for_a_given_time(corpus, tmp_path, steps_for_seconds):
    told = []
    folder = train(corpus, tmp_path/'m', epochs=None, time='1m', say=told.append)
    report = report_of(folder)
    assert report['steps'] == 58 and report['status'] == 'complete', (
        '25 steps an epoch, two ends of epochs')
    assert any('60 s, 25 steps' in text for text in told if text.startswith('Corpus'))
    rows = [row.split(',') for row in (folder/'history.csv').read_text().splitlines()]
    assert len(rows) == 4 and rows[0] == TABLE[:-1] and {*map(len, rows)} == {len(TABLE) - 1}

@pytest.mark.slow
@pytest.mark.parametrize('at', [10, 31])
def test_a_killed_training_goes_on_with_the_rest_of_its_time(
    corpus, tmp_path, steps_for_seconds, at):
    whole = train(corpus, tmp_path/'whole', epochs=None, time=60)
    message = interrupted_at(at, corpus, tmp_path/'m', epochs=None, time='60s')
    assert re.search(r'in epoch \d of \d[;.,]', message)
    told = []
    assert weights(going_on(corpus, tmp_path/'m.run', told.append)) == weights(whole)
    line = r'Going on from epoch \d of \d, batch \d+ of 25 .*, after \d+(\.\d)? s'
    assert any(re.search(line, text) for text in told) and same_reports(whole, tmp_path/'m')

# what would happen

def test_dry(text, monkeypatch):
    monkeypatch.chdir(text)
    before, told = listing(text), []
    def seed():
        for set_seed in (torch.manual_seed, random.seed, np.random.seed): set_seed(7)
    def drawn(): return torch.rand(1), random.random(), np.random.rand()
    seed()
    expected = drawn()
    seed()
    how = dict(epochs=3, tokenizer='space', **QUIET)
    found = train('my', None, say=told.append, dry=True, **how)
    assert drawn() == expected, 'the session has not noticed'
    assert listing(text) == before, 'nothing was written'
    folder = train('my', 'm', **how)
    n_parameters = sum(p.numel() for p in load_bilm(folder)[0].parameters())
    assert found['steps'] == report_of(folder)['steps']
    assert found['words'] == len(load_bilm(folder)[1]) and found['parameters'] == n_parameters
    assert found['tokens'] == len(tokens('tr.txt')) + 2*60
    assert found['held_out'] == len(tokens('va.txt')) + 2*20
    assert 0 < found['step_seconds'] < 5 and found['state_bytes'] >= 4*4*n_parameters
    assert found['seconds'] >= found['steps']*found['step_seconds']
    for part in ('Corpus my', 'Model nano', f"{found['steps']:,} steps", 'Memory', 'Time',
                 'Nothing was written', 'models/my'):
        assert part in '\n'.join(told), part
    assert not any(line.startswith('epoch') for line in told)

def test_the_estimate_is_of_real_steps(corpus, tmp_path, monkeypatch):
    "Steps and a validation of one batch that take a given time longer"
    class Slow(Callback):
        order = 1
        def before_batch(self): time.sleep(.05 if self.training else .02)
    adding(monkeypatch, Slow)
    slow = train(corpus, tmp_path/'m', bs=40, epochs=4, dry=True)
    assert slow['steps'] == 40 and .05 <= slow['step_seconds']
    assert slow['seconds'] >= 40*.05 + 4*.02

def test_dry_for_a_time(corpus, tmp_path):
    told = []
    found = train(corpus, tmp_path/'m', epochs=None, time='90s', dry=True, say=told.append)
    assert found['seconds'] == 90 and found['steps'] == round(90/found['step_seconds'])
    assert '90 s' in '\n'.join(told)

def test_dry_finds_what_would_be_in_the_way(corpus, tmp_path, broken):
    (tmp_path/'f').write_text('x')
    train(corpus, tmp_path/'there', bs=200)
    before = listing(tmp_path)
    for out,says in (('there', '--overwrite'), ('m', 'did not come to its end'), ('f/x', '--out')):
        with pytest.raises(CommandError, match=says): train(corpus, tmp_path/out, dry=True)
    assert listing(tmp_path) == before

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
    few = {}
    for name,weight in load_file(base/'folded'/'model.safetensors').items():
        if weight.dim() < 2: few[name] = weight.half()
        else:
            rows = weight.flatten(1)
            scale = (rows.abs().amax(1)/127).half()
            steps = (rows/scale.float().clamp(min=1e-9)[:, None]).round().clamp(-127, 127)
            few |= {f'{name}.scale': scale, name: steps.to(torch.int8).view_as(weight).contiguous()}
    for name,head in (('model', False), ('output', True)):
        part = {key: weight for key,weight in few.items() if key.startswith('head') == head}
        save_file(part, base/'folded'/f'{name}.safetensors')
    letters = CharVocab.build([line.split() for line in corpus.train], max_chars=20)
    dls = loaders(corpus, char_vocab=letters)
    save_bilm(base/'letters', bilm_learner(dls, CFG, bf16=False).model, dls.vocab)
    save_bilm(base/'states', without_head(lm), None)
    (base/'folded'/'SHA256SUMS').unlink()      # an older version saved this one
    shutil.copytree(base/'folded', base/'half')
    (base/'half'/'output.safetensors').unlink()
    return base

@pytest.fixture(scope='module')
def reviews(): return toy(200, 60, seed=7)

@pytest.mark.parametrize('name', ['model', 'folded', 'letters'])
@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_it_begins_where_the_model_was(trained, reviews, tmp_path, monkeypatch, name, kind):
    """The first perplexity is the model's own on this text, the words and letters are the model's;
    then it falls"""
    lm, vocab = load_bilm(trained/name)
    told, first, losses = [], {}, []
    class See(At):
        def after_batch(self):
            if self.training: losses.append(self.loss.item())
    def before(cb): first.update(evaluate(cb.model, cb.dls.valid))
    adding(monkeypatch, lambda: See(1, before, 'before_batch'))
    folder = train(reviews, tmp_path/'m', start=trained/name, kind=kind, seq_len=16, epochs=2,
                   say=told.append, **OTHER)
    sizes = dict(seq_len=16) if kind == 'stream' else dict(val_bs=256)
    dls = loaders(reviews, kind=kind, vocab=vocab, char_vocab=lm.char_vocab, **sizes)
    exact = evaluate(lm, dls.valid)
    for k in FIGURES: assert first[k] == pytest.approx(exact[k], rel=1e-6)
    line = f"From {trained/name}: perplexity {exact['mean']:,.1f} before the first step"
    assert line in '\n'.join(told)
    new, words = load_bilm(folder)
    assert words.itos == vocab.itos and new.config == lm.config and new.char_vocab == lm.char_vocab
    assert np.mean(losses[-5:]) < np.mean(losses[:3])
    assert report_of(folder)['perplexity_mean'] < exact['mean']
    old = lm.state_dict()
    assert not any(v.equal(old[k]) for k,v in new.state_dict().items() if v.dim() > 1)

@pytest.mark.parametrize('name', ['model', 'folded', 'letters', 'states'])
def test_other_words_and_a_new_output_layer(trained, reviews, tmp_path, monkeypatch, name):
    """Said by --min-freq or --max-vocab: characters and layers are the model's, the words those of
    the text; without an output layer a model will do"""
    lm, _ = load_bilm(trained/name)
    told, began = [], {}
    def copy(cb): began.update({k: v.clone() for k,v in cb.model.state_dict().items()})
    adding(monkeypatch, lambda: At(1, copy, 'before_batch'))
    words = dict(min_freq=3, max_vocab=60)
    folder = train(reviews, tmp_path/'m', start=trained/name, say=told.append, **OTHER | words)
    vocab = loaders(reviews, **words).vocab
    assert words_of(folder) == set(vocab.itos) != words_of(trained/'model')
    assert f"begins anew, for {len(vocab)} words" in '\n'.join(told)
    encoder = {k: v for k,v in lm.state_dict().items() if not k.startswith('head')}
    assert encoder and all(v.equal(began[k]) for k,v in encoder.items())
    new = load_bilm(folder)[0]
    assert new.char_vocab == lm.char_vocab
    for field in ('filters', 'norm', 'hidden_dim'):
        assert getattr(new.config, field) == getattr(lm.config, field)
    assert not any(v.equal(new.state_dict()[k]) for k,v in encoder.items() if v.dim() > 1)

def test_a_text_is_split_as_the_model_s_text_was(text, tmp_path):
    """The tokenizer of the model, but for a text that has its tokens; what is said comes first, and
    a resumption keeps it"""
    (text/'a.txt').write_text("We didn't go, did we?\n我们去河岸。\n"*30, encoding='utf-8')
    (text/'a.conll').write_text(''.join(f'{o}\n' for o in ["didn't A", 'it B', '. B', '']*40))
    how = OTHER | dict(bs=2, seq_len=8)
    def tokenizer(folder): return load_bilm(folder)[0].tokenizer
    base = train(str(text/'a.txt'), text/'base', tokenizer='chars', bs=2, seq_len=8)
    assert tokenizer(base) == 'chars'
    def on(source, out, **kwargs): return train(source, text/out, **how | dict(start=base) | kwargs)
    whole = on(str(text/'a.txt'), 'whole')
    assert tokenizer(whole) == report_of(whole)['tokenizer'] == 'chars' == toml_of(whole)['tokenizer']
    assert tokenizer(on(str(text/'a.txt'), 'said', tokenizer='space')) == 'space'
    assert tokenizer(on(str(text/'a.conll'), 'tokens', token_col=0)) == 'space'
    assert tokenizer(on(Corpus('c', dict(train=['a b']*40, valid=['a'])), 'corpus')) == 'words'
    assert tokenizer(on(str(text/'a.txt'), 'stream', stream=True, valid_rows=9)) == 'chars'
    interrupted_at(3, str(text/'a.txt'), text/'m', start=base, **how)
    again = going_on(None, text/'m.run')
    assert tokenizer(again) == 'chars' and weights(again) == weights(whole)
    lm, vocab = load_bilm(base)
    lm.tokenizer = str.split
    save_bilm(text/'own', lm, vocab)
    with pytest.raises(CommandError, match='--tokenizer'): on(str(text/'a.txt'), 'x', start=text/'own')

def test_it_goes_on_without_the_model_it_began_with(trained, text):
    "Interrupted, and the model is gone: the checkpoint has the weights, the words and the letters"
    copy = text/'letters'
    how = OTHER | dict(bs=2, seq_len=8, start=copy)
    shutil.copytree(trained/'letters', copy)
    whole = train(str(text/'my'), text/'whole', **how)
    interrupted_at(9, str(text/'my'), text/'m', **how)
    plan = find_checkpoint(text/'m.run').run
    assert plan['settings']['start'] == str(copy) and plan['words'] == load_bilm(copy)[1].itos
    shutil.rmtree(copy)
    with pytest.raises(CommandError, match='leave out --from'):
        going_on(None, text/'m.run', start=trained/'letters')
    folder = going_on(None, text/'m.run')
    assert weights(folder) == weights(whole) and toml_of(folder) == toml_of(whole)
    old, new = load_bilm(trained/'letters'), load_bilm(folder)
    assert new[1].itos == old[1].itos and new[0].char_vocab == old[0].char_vocab

def test_a_stream_with_known_words_and_steps_goes_on(trained, text):
    "Nobody has counted its tokens, and it is a training of ours"
    how = OTHER | dict(bs=2, seq_len=8, steps=12, start=trained/'model', stream=True,
                       valid=str(text/'va.txt'), tokenizer='space')
    whole = train(str(text/'tr.txt'), text/'whole', **how)
    interrupted_at(5, str(text/'tr.txt'), text/'m', **how)
    assert weights(going_on(None, text/'m.run')) == weights(whole)

@pytest.mark.parametrize('name,settings,says', [
    ('states', {}, r'elmo_pretrain.*states predicts no words'),
    (HEADLESS, {}, r'elmo_pretrain.*tiny-en predicts no words'),
    ('half', {}, r'output layer.*elmo_pretrain.*head.* is missing'),
    ('nowhere', {}, r'elmo_pretrain.*no folder.*nowhere'),
    ('model', dict(model='tiny'), '--from takes.*leave --model'),
    ('model', dict(config=dict(dropout=.1)), r'leave --model and \[config\] out')], ids=str)
def test_models_that_it_can_not_begin_with(trained, tmp_path, monkeypatch, name, settings, says):
    "It is said before the text is read"
    monkeypatch.setattr(script, 'text_of', lambda *args: pytest.fail('the text was read'))
    with pytest.raises(CommandError, match=says):
        train('toy', tmp_path/'m', start=trained/name, **OTHER | settings)
    assert listing(tmp_path) == []

def test_it_does_not_write_over_the_model_it_begins_with(trained, reviews, tmp_path, monkeypatch):
    shutil.copytree(trained/'model', tmp_path/'m')
    monkeypatch.chdir(tmp_path)
    for out in ('m', tmp_path/'m', f'../{tmp_path.name}/m'):
        with pytest.raises(CommandError, match='begins with.*--out'):
            train(reviews, out, start='m', overwrite=True, **OTHER)
    assert weights('m') == weights(trained/'model') and names(tmp_path) == ['m']
    assert listing(tmp_path/'m') == listing(trained/'model')

def test_a_file_repeats_it(trained, text, monkeypatch, capsys):
    monkeypatch.chdir(text)
    shutil.copytree(trained/'folded', 'base')
    (text/'tiny.toml').write_text('model = "tiny"\nmin-freq = 3\nbs = 2\nseq-len = 8\nepochs = 1\n'
                                  '\n[config]\ndropout = 0.2\n')
    cpu = '--device', 'cpu'
    code, out, err = ran(capsys, 'my', '--from', 'base', '--config', 'tiny.toml', '--out', 'a',
                         *cpu, '--no-bf16')
    # what a file says about another model is not said about this one
    assert code == 0 and 'before the first step' in out, err
    found = toml_of('a')
    assert found['from'] == str(text/'base')
    assert not {'model', 'config', 'min_freq', 'max_vocab', 'start'} & set(found)
    monkeypatch.chdir(text/'my')
    code, _, err = ran(capsys, '--config', text/'a'/'run.toml', '--out', text/'b', *cpu)
    assert code == 0 and alike(text/'a', text/'b') and toml_of(text/'b') == found, err

# how it looks

def test_progress_where_there_is_no_terminal(corpus, tmp_path, monkeypatch):
    "Short lines: one heading, one line an epoch, and between them one a minute"
    told = []
    train(corpus, tmp_path/'a', epochs=2, say=told.append)
    rows = [line for line in told if re.match(r'\s*(epoch|\d) ', line)]
    assert len(rows) == 3 and rows[0].split() == TABLE, 'within a minute nothing more'
    monkeypatch.setattr(script.ProgressLines, 'pause', 0.)
    told.clear()
    train(corpus, tmp_path/'b', epochs=2, say=told.append)
    between = [line for line in told if 'step' in line and 'loss' in line]
    assert len(between) == 50 and re.search(
        r'epoch 2, step 3 of 25, loss \d+\.\d+, [\d,]+ tokens/s, 56% of all is done', between[27])
    assert all(len(line) < 100 and not {'\r', '\n'} & set(line) for line in rows + between)

# results that mean nothing are said to mean nothing

CHINESE = '春天来了河岸上开满了花他们坐在银行门口等朋友我们明天去看电影吧'

def test_a_text_without_spaces_is_nearly_all_unknown(tmp_path):
    """Perplexity 1.28 looks splendid: what is counted is said at the start, in the report and
    beside the model"""
    rng = random.Random(3)
    lines = [''.join(rng.sample(CHINESE, 12)) + '。' for _ in range(300)]
    (tmp_path/'zh.txt').write_text('\n'.join(lines), encoding='utf-8')
    def trained(out, **how): return train(str(tmp_path/'zh.txt'), out, bs=4, seq_len=8, **how)
    told = []
    folder = trained(tmp_path/'m', tokenizer='space', say=told.append)
    begin = next(text for text in told if text.startswith('Corpus'))
    card = (folder/'README.md').read_text(encoding='utf-8')
    for part in ('A warning', '--min-freq 1', '--tokenizer', '100.0% are unknown'):
        for where in (begin, card, told[-1]): assert part in where
    report = report_of(folder)
    assert report['unknown'] == 1 and report['train_unknown'] == pytest.approx(1, abs=.01)
    assert report['cut'] == 0 and report['perplexity_mean'] < 10 and 'elmo_pretrain' in card
    assert report_of(trained(tmp_path/'n'))['unknown'] < .1      # the default splits them

def test_few_unknown_words_are_no_warning(corpus, tmp_path):
    told = []
    train(corpus, tmp_path/'m', dry=True, dropout=0., say=told.append)
    assert '<unk>' in told[0] and 'A warning' not in told[0], (
        'more of them are held out than a warning takes, but to train on there is none')

# a mistake of ours looks like one

@pytest.mark.parametrize('error', [
    OSError(28, 'No space left', 'interrupted/lower learning rate'), MemoryError('interrupted'),
    RuntimeError('interrupted'), ValueError('shapes differ'), KeyError('x')], ids=str)
def test_why_a_training_ended(corpus, tmp_path, monkeypatch, error):
    """Whatever words are in the message, it is neither Ctrl-C nor a rate that was too high. A bug
    is raised as it is, with its own traceback; what was learned is saved, and where is said"""
    def fail(cb): raise error
    adding(monkeypatch, lambda: At(5, fail, 'before_batch'))
    told = []
    with pytest.raises(Exception) as e: train(corpus, tmp_path/'m', say=told.append)
    if isinstance(error, (OSError, MemoryError)):
        assert type(e.value) is CommandError and e.value.__cause__ is error
        told.append(str(e.value))
    else: assert e.value is error and 'fail' in [entry.name for entry in e.traceback]
    assert load_bilm(tmp_path/'m.interrupted')
    assert any('m.interrupted' in line and '--resume' in line for line in told)
