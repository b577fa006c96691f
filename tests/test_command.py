"The command: from text to a folder, with right and wrong input, in this process and in processes of its own"
import json, math, os, re, shutil, signal, subprocess, sys, time, warnings
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest, torch
from fastai.basics import Callback, Learner
from safetensors.torch import load_file

import elmo_fastai
from elmo_fastai import command as module
from elmo_fastai.batches import *
from elmo_fastai.bilm import *
from elmo_fastai.checkpoint import *
from elmo_fastai.corpora import *
from elmo_fastai.command import *
from elmo_fastai.pretrain import bilm_learner
from steps import At, finite

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']
KEYS = {'perplexity_fwd', 'perplexity_bwd', 'perplexity_mean', 'floor', 'ratio_to_floor', 'unigram', 'trigram', 'sense_accuracy', 'sense_baseline',
        'tokens_per_second', 'train_seconds'}

@pytest.fixture(autouse=True)
def nano(monkeypatch): monkeypatch.setitem(elmo_configs, 'nano', CFG)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)

@pytest.fixture(scope='module')
def dls(corpus): return ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')


def press(sig=signal.SIGINT, times=1):
    def do(cb):
        for _ in range(times): signal.raise_signal(sig)
    return do

# from text to a folder, in this process

def names(folder): return sorted(f.name for f in folder.iterdir())
def train(corpus, out, **kw): return pretrain(corpus, out=out, **{**dict(model='nano', epochs=1, bs=16, device='cpu', bf16=False, say=lambda s: None), **kw})

def adding(monkeypatch, cb):
    "Every learner of the command gets one more callback"
    make = bilm_learner
    monkeypatch.setattr(module, 'bilm_learner', lambda *a, cbs, **k: make(*a, cbs=[*cbs, cb()], **k))

def check_folder(folder, senses):
    "A whole model with a whole report: the report's figures are those of the loaded model"
    assert sorted(f.name for f in folder.iterdir()) == ['config.json', 'history.csv', 'model.safetensors', 'report.json', 'report.png', 'report.svg', 'vocab.json']
    report = json.loads((folder/'report.json').read_text(encoding='utf-8'), parse_constant=lambda c: pytest.fail(f'{c} is not JSON'))
    assert KEYS <= set(report)
    assert report['perplexity_mean'] == pytest.approx((report['perplexity_fwd']*report['perplexity_bwd'])**.5)
    for k in ('perplexity_fwd', 'perplexity_bwd', 'unigram', 'trigram', 'tokens_per_second', 'train_seconds'): assert report[k] > 0, k
    assert report['tokens_per_second'] < 1e7
    if senses:
        assert report['ratio_to_floor'] == pytest.approx(report['perplexity_mean']/report['floor']) and report['ratio_to_floor'] > 1
        assert list(report['sense_accuracy']) == ['layer0', 'layer1', 'layer2'] and all(0 <= o <= 1 for o in report['sense_accuracy'].values())
        assert 0 < report['sense_baseline'] < 1
    else: assert all(report[k] is None for k in ('floor', 'ratio_to_floor', 'sense_accuracy', 'sense_baseline'))
    png, svg = (folder/'report.png').read_bytes(), (folder/'report.svg').read_text(encoding='utf-8')
    assert png[:8] == b'\x89PNG\r\n\x1a\n' and len(png) > 10_000
    assert '<svg' in svg and svg.rstrip().endswith('</svg>') and len(svg) > 10_000
    return report, *load_bilm(folder)

def test_pretrain_on_the_toy_corpus(corpus, dls, tmp_path):
    told = []
    folder = train(corpus, tmp_path/'a'/'toy', say=told.append)
    assert folder == tmp_path/'a'/'toy' and [f.name for f in folder.parent.iterdir()] == ['toy']
    report, model, vocab = check_folder(folder, senses=True)
    assert vocab.itos == dls.vocab.itos
    exact = evaluate(model, dls.valid)
    for k in ('fwd', 'bwd', 'mean'): assert report[f'perplexity_{k}'] == pytest.approx(exact[k], rel=1e-5)
    assert report['status'] == 'complete' and report['steps'] == len(dls.train)
    text = '\n'.join(map(str, told))
    assert f"{report['perplexity_mean']:.2f}" in text and f"{report['floor']:.2f}" in text and 'trigram' in text and str(folder) in text

def test_equal_seeds_equal_folders(corpus, tmp_path):
    a,b,c = (load_file(train(corpus, tmp_path/str(i), seed=seed)/'model.safetensors') for i,seed in enumerate((3, 3, 4)))
    assert all(torch.equal(v, b[k]) for k,v in a.items()) and not torch.equal(a['head.weight'], c['head.weight'])

def test_tiny_corpora_end_in_a_report_or_a_message(tmp_path):
    "Few sentences: words without two senses, one occurrence, hardly a batch"
    for i,(n,v) in enumerate(((20, 5), (3, 1), (60, 1))):
        folder = train(toy_corpus(n_train=n, n_valid=v, n_test=0, n_unseen=0), tmp_path/str(i), bs=2)
        assert KEYS <= set(json.loads((folder/'report.json').read_text())) and load_bilm(folder)

def test_a_failure_while_measuring_costs_no_model(corpus, tmp_path, monkeypatch):
    for error in (KeyboardInterrupt, MemoryError, ValueError('no report')):
        def fail(*args, **kwargs): raise error
        out = tmp_path/str(error)[:12].strip('<>')
        with monkeypatch.context() as mp:
            mp.setattr(module, 'make_report', fail)
            with pytest.raises(BaseException): train(corpus, out)
        assert load_bilm(out)

def test_the_second_ctrl_c_keeps_the_model_too(corpus, tmp_path, monkeypatch):
    adding(monkeypatch, lambda: At(5, press(times=2), 'before_batch'))
    with pytest.raises(PretrainError, match='interrupted'): train(corpus, tmp_path/'m')
    assert names(tmp_path) == ['m.interrupted', 'm.run'] and load_bilm(tmp_path/'m.interrupted')

def test_an_interruption_never_replaces_anything(corpus, tmp_path, monkeypatch):
    old = train(corpus, tmp_path/'m')
    weights = (old/'model.safetensors').read_bytes()
    (tmp_path/'m.interrupted').mkdir()
    (tmp_path/'m.interrupted'/'thesis.txt').write_text('precious')
    adding(monkeypatch, lambda: At(5, press(), 'before_batch'))
    for _ in range(2):
        with pytest.raises(PretrainError, match='interrupted'): train(corpus, tmp_path/'m', overwrite=True)
    assert (old/'model.safetensors').read_bytes() == weights and (tmp_path/'m.interrupted'/'thesis.txt').read_text() == 'precious'
    others = [f for f in tmp_path.iterdir() if f.name not in ('m', 'm.interrupted', 'm.run')]
    assert len(others) == 2 and all(load_bilm(f) for f in others)       # two interruptions, two models

@pytest.mark.parametrize('settings,says', [
    (dict(epochs=0), 'epochs'), (dict(epochs=-3), 'epochs'), (dict(bs=0), 'bs'), (dict(seq_len=0), 'seqlen'), (dict(min_freq=0), 'minfreq'), (dict(lr=0.), 'lr'),
    (dict(lr=-1.), 'lr'), (dict(lr=math.nan), 'lr'), (dict(lr=math.inf), 'lr'), (dict(model='huge'), 'tiny, small, medium, original'), (dict(device='xyz'), 'xyz'),
    (dict(device='meta'), 'meta'), (dict(device='cuda:99'), 'cuda:99'), (dict(max_vocab=0), 'maxvocab'), (dict(max_vocab=1), 'maxvocab'), (dict(max_vocab=-1), 'maxvocab'),
    (dict(minutes=0), 'minutes'), (dict(wd=-1.), 'wd'), (dict(optimizer='sgd'), 'adagrad'), (dict(patience=0), 'patience'), (dict(carry=True), '--carry'), (dict(epoch=3), "'epoch'"),
    (dict(steps=3), '--stream'), (dict(max_vocab=4), 'maxvocab'), (dict(seed=-1), 'seed'), (dict(seed=10**30), 'seed'), (dict(bs=401), '400 sentences')], ids=str)
def test_settings_that_can_not_be(corpus, tmp_path, settings, says):
    with pytest.raises(PretrainError, match=re.escape(says)): train(corpus, tmp_path/'out', **settings)
    assert not list(tmp_path.iterdir())

@pytest.mark.parametrize('place', ['file', 'foreign folder', 'under a file', 'a foreign config', '..', ''])
def test_places_that_can_not_be_written_are_found_before_training(corpus, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Learner, 'fit', lambda *a, **k: pytest.fail('it trained first'))
    (tmp_path/'f').write_text('x')
    for name in ('g', 'web'): (tmp_path/name).mkdir()
    (tmp_path/'g'/'thesis.txt').write_text('precious')
    (tmp_path/'web'/'config.json').write_text('{"name": "my web application"}')
    out = {'file': 'f', 'foreign folder': 'g', 'under a file': 'f/x', 'a foreign config': 'web', '..': '..', '': Path('')}[place]
    before = sorted(str(f) for f in tmp_path.rglob('*'))
    for overwrite in (False, True):
        with pytest.raises(PretrainError, match='--out'): train(corpus, out, overwrite=overwrite)
    assert sorted(str(f) for f in tmp_path.rglob('*')) == before

@pytest.mark.skipif(os.name == 'nt' or os.geteuid() == 0, reason='the superuser may write everywhere')
def test_a_folder_without_permission(corpus, tmp_path):
    (tmp_path/'p').mkdir(mode=0o500)
    with pytest.raises(PretrainError, match='write'): train(corpus, tmp_path/'p'/'m')

@pytest.mark.parametrize('name,folder', [('my.text.txt', 'my.text'), ('books', 'books'), ('books/*.txt', 'books'), ('.', 'here')])
def test_default_folders(tmp_path, monkeypatch, name, folder):
    here = tmp_path/'here'
    (here/'books').mkdir(parents=True)
    for f in ('my.text.txt', 'books/a.txt', 'books/b.txt'): (here/f).write_text('the bank of the river .\n'*60)
    monkeypatch.chdir(here)
    assert train(name, None, bs=2, seq_len=8, min_freq=1) == Path('models')/folder

def test_a_text_that_is_called_toy_is_not_the_toy_corpus(tmp_path):
    (tmp_path/'toy.txt').write_text('the bank of the river .\n'*60)
    told = []
    train(str(tmp_path/'toy.txt'), tmp_path/'m', bs=2, seq_len=8, min_freq=1, say=told.append)
    assert json.loads((tmp_path/'m'/'report.json').read_text())['floor'] is None
    steps = json.loads((tmp_path/'m'/'report.json').read_text())['steps']
    train(Corpus('other', text_corpus(tmp_path/'toy.txt').splits), tmp_path/'n', bs=2, seq_len=8, min_freq=1)
    assert json.loads((tmp_path/'n'/'report.json').read_text())['steps'] == steps

def test_local_copies_of_named_corpora(tmp_path):
    (tmp_path/'data').mkdir()
    (tmp_path/'data'/'input.txt').write_text('First Citizen:\nBefore we proceed any further, hear me speak.\n\n'*40)
    folder = train('tiny_shakespeare', tmp_path/'m', data=tmp_path/'data', bs=2, seq_len=8)
    assert json.loads((folder/'report.json').read_text())['corpus'] == 'tiny_shakespeare'

def test_ctrl_c_before_training(tmp_path, monkeypatch, capsys):
    def stop(*args, **kwargs): raise KeyboardInterrupt
    monkeypatch.setattr(module, 'get_corpus', stop)
    with pytest.raises(SystemExit) as e: elmo_pretrain(corpus='toy', out=str(tmp_path/'m'))
    assert e.value.code == 130 and len(capsys.readouterr().err.strip().splitlines()) == 1 and not list(tmp_path.iterdir())

@pytest.mark.parametrize('end', [None, KeyboardInterrupt(), PretrainError('no'), RuntimeError('a fault')])
def test_the_command_called_in_a_process_leaves_its_warnings_alone(end, monkeypatch, tmp_path, capsys):
    def stub(*args, **kwargs):
        assert warnings.showwarning is not before
        if end: raise end
        return tmp_path
    before, filters = warnings.showwarning, [*warnings.filters]
    monkeypatch.setattr(module, 'pretrain', stub)
    try: elmo_pretrain(corpus='toy')
    except (SystemExit, RuntimeError): pass
    with pytest.raises(SystemExit): elmo_pretrain()
    assert warnings.showwarning is before and warnings.filters == filters

# trainings that were interrupted, and go on

def weights(folder): return (Path(folder)/'model.safetensors').read_bytes()

@pytest.fixture(scope='module')
def interrupted(corpus, tmp_path_factory):
    "A folder with a training that was interrupted at step 30 of 50"
    base = tmp_path_factory.mktemp('interrupted')
    with pytest.MonkeyPatch.context() as mp:
        mp.setitem(elmo_configs, 'nano', CFG)
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
    with pytest.MonkeyPatch.context() as mp:
        mp.setitem(elmo_configs, 'nano', CFG)
        return train(corpus, tmp_path_factory.mktemp('whole')/'m', epochs=2)

def going_on(corpus, run, **kw): return pretrain(corpus, resume=run, device='cpu', **{**dict(say=lambda s: None), **kw})

def test_a_resumed_training_ends_like_an_undisturbed_one(corpus, tmp_path, broken, whole):
    told = []
    folder = going_on(corpus, broken, say=told.append)
    assert folder == tmp_path/'m' and names(tmp_path) == ['m', 'm.interrupted'], 'the checkpoints have gone'
    report, *_ = check_folder(folder, senses=True)
    assert re.search('Going on from epoch 2 of 2, batch 5 of 25', '\n'.join(told))
    assert weights(folder) == weights(whole)
    other = json.loads((whole/'report.json').read_text())
    differ = {k for k in report if report[k] != other[k]}
    assert differ <= {'tokens_per_second', 'train_seconds'}
    rows = [(o/'history.csv').read_text().splitlines() for o in (folder, whole)]
    assert [o.rsplit(',', 1)[0] for o in rows[0]] == [o.rsplit(',', 1)[0] for o in rows[1]] and len(rows[0]) == 3

def test_settings_survive(corpus, tmp_path, monkeypatch):
    "Adagrad, weight decay, patience and a carried state are those of the first part"
    kw = dict(epochs=3, bs=4, seq_len=8, min_freq=1, optimizer='adagrad', wd=.001, patience=2, carry=True)
    text = tmp_path/'text.txt'
    text.write_text('\n'.join(corpus.train[:80]))
    whole = train(str(text), tmp_path/'whole', **kw)
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(17, press(), 'before_batch'))
        with pytest.raises(Interrupted): train(str(text), tmp_path/'m', **kw)
    with pytest.raises(PretrainError, match='leave the corpus out'): going_on('wikitext2', tmp_path/'m.run')
    monkeypatch.chdir(text.parent)
    assert weights(going_on(None, 'm.run')) == weights(whole)
    assert names(tmp_path) == ['m', 'm.interrupted', 'text.txt', 'whole']

KILLED = '''
import os, signal, sys
from elmo_fastai import command as module
from elmo_fastai.bilm import BiLMConfig, elmo_configs
from elmo_fastai.corpora import toy_corpus
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
elmo_configs['nano'] = {config!r}
corpus = toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)
module.{where} = die
module.pretrain(corpus, {out!r}, 'nano', device='cpu', say=str, bs=16, epochs=2, {more}) if {fresh} else module.pretrain(corpus, resume={out!r}, device='cpu', say=str)
'''

def killed(where, out, fresh=True, more=''):
    "A training that is killed where a function of the command is called"
    program = KILLED.format(config=CFG, where=where, out=str(out), fresh=fresh, more=more)
    env = {**os.environ, 'PYTHONPATH': str(Path(elmo_fastai.__file__).parents[1]), 'OMP_NUM_THREADS': '1'}
    p = subprocess.run([sys.executable, '-c', program], env=env, capture_output=True, text=True)
    assert p.returncode == -signal.SIGKILL, p.stderr[-2000:]

@pytest.mark.parametrize('more', ['', 'patience=1, lr=.3'], ids=['', 'early stop'])
def test_killed_while_measuring(corpus, tmp_path, more):
    "The model is there without its report; the next call writes it, and trains nothing"
    out = tmp_path/'m'
    killed('make_report', out, more=more)
    assert names(tmp_path) == ['m', 'm.run'] and not (out/'report.json').exists() and load_bilm(out)
    before = weights(out)
    with pytest.raises(PretrainError, match='did not come to its end.*--resume'): train(corpus, out, epochs=2)
    killed('make_report', out, fresh=False)                             # and once more
    assert names(tmp_path) == ['m', 'm.run'] and not (out/'report.json').exists()
    assert going_on(corpus, tmp_path/'m.run') == out and names(tmp_path) == ['m'] and weights(out) == before
    report, *_ = check_folder(out, senses=True)
    assert report['status'] == 'complete' and report['steps'] == (50 if not more else report['steps']) and (out/'history.csv').exists()

def test_killed_when_all_is_written(corpus, tmp_path):
    out = tmp_path/'m'
    killed('make_report', out)
    killed('_clear', out, fresh=False)                                  # a fresh training calls it at its beginning, too
    assert (out/'report.json').exists() and names(tmp_path) == ['m', 'm.run']
    assert going_on(corpus, tmp_path/'m.run') == out and names(tmp_path) == ['m']

def test_another_model_is_not_replaced_by_a_report(corpus, tmp_path, broken, whole):
    "Not even one that has no report"
    shutil.copytree(train(corpus, tmp_path/'other', bs=8), tmp_path/'m')
    (tmp_path/'m'/'report.json').unlink()
    before = weights(tmp_path/'m')
    with pytest.raises(PretrainError, match='holds a model already'): going_on(corpus, broken)
    assert weights(tmp_path/'m') == before and find_checkpoint(broken)
    assert weights(going_on(corpus, broken, overwrite=True)) == weights(whole)

def test_ctrl_c_while_measuring(corpus, tmp_path, monkeypatch):
    def stop(*args, **kwargs): raise KeyboardInterrupt
    with monkeypatch.context() as mp:
        mp.setattr(module, 'make_report', stop)
        with pytest.raises(Interrupted, match=f"Measuring was interrupted; the model is in {tmp_path/'m'}/; go on with: .*--resume {tmp_path/'m.run'}"): train(corpus, tmp_path/'m')
    before = weights(tmp_path/'m')
    assert weights(going_on(corpus, tmp_path/'m.run')) == before and check_folder(tmp_path/'m', senses=True)

@pytest.mark.parametrize('where', ['m.run', 'm', 'checkpoint'])
def test_what_resume_may_be_given(corpus, tmp_path, broken, where):
    place = {'m.run': broken, 'm': tmp_path/'m', 'checkpoint': max(broken.glob('0*-*'))}[where]
    assert going_on(corpus, place) == tmp_path/'m'

def test_begun_anew_it_asks(corpus, tmp_path, broken):
    before = names(broken)
    with pytest.raises(PretrainError, match='did not come to its end.*--resume.*--overwrite'): train(corpus, tmp_path/'m')
    assert names(broken) == before
    assert load_bilm(train(corpus, tmp_path/'m', overwrite=True)) and not broken.exists()

@pytest.mark.parametrize('what', [dict(lr=.1), dict(model='tiny'), dict(out='x'), dict(epochs=9), dict(seed=3), dict(bf16=True), dict(carry=True)], ids=lambda o: next(iter(o)))
def test_resume_takes_everything_from_the_run(corpus, broken, what):
    with pytest.raises(PretrainError, match='leave'): going_on(**{'corpus': corpus, **what}, run=broken)
    assert find_checkpoint(broken)

def test_another_text_is_not_resumed(corpus, tmp_path, broken):
    lines = dict(corpus.splits)
    other = toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)
    other.splits['train'][7] = other.splits['train'][8]
    before = names(broken)
    with pytest.raises(PretrainError, match='text has changed'): going_on(other, broken)
    assert names(broken) == before
    with pytest.raises(PretrainError, match='hand it'): going_on(None, broken)

def test_a_damaged_checkpoint_and_the_older_good_one(corpus, tmp_path, broken, whole):
    newest,older = sorted(broken.glob('0*-*'), reverse=True)[:2]
    data = bytearray((newest/'tensors.safetensors').read_bytes())
    data[len(data)//2] ^= 1
    (newest/'tensors.safetensors').write_bytes(data)
    with pytest.raises(CheckpointError, match=f'damaged.*{older.name}'): going_on(corpus, newest)   # it was named, so it is said
    told = []
    going_on(corpus, broken, say=told.append)
    assert re.search(f'{newest.name}.*damaged.*{older.name}', told[0])
    assert weights(tmp_path/'m') == weights(whole)

def test_nothing_good_is_no_fresh_start(corpus, tmp_path, broken):
    for o in broken.glob('0*-*'): (o/'tensors.safetensors').write_bytes(b'')
    with pytest.raises(CheckpointError, match='no good checkpoint') as e: going_on(corpus, broken)
    assert all(o.name in str(e.value) for o in broken.glob('0*-*')) and not (tmp_path/'m').exists()
    with pytest.raises(PretrainError, match='--overwrite'): train(corpus, tmp_path/'m')

def test_foreign_folders(corpus, tmp_path, dls):
    (tmp_path/'thesis').mkdir()
    (tmp_path/'thesis'/'a.txt').write_text('precious')
    for place in (tmp_path/'nowhere', tmp_path/'thesis', tmp_path/'thesis'/'a.txt'):
        with pytest.raises((CheckpointError, PretrainError)): going_on(corpus, place)
    learn = bilm_learner(dls, CFG, bf16=False, cbs=Checkpoints(tmp_path/'own', run=dict(corpus='mine')))    # not by the command
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    with pytest.raises(PretrainError, match='not of a training that elmo_pretrain began'): going_on(corpus, tmp_path/'own')
    (tmp_path/'m.run').mkdir()
    (tmp_path/'m.run'/'a.txt').write_text('precious')
    with pytest.raises(PretrainError, match='something else.*--out'): train(corpus, tmp_path/'m', overwrite=True)
    assert (tmp_path/'m.run'/'a.txt').read_text() == (tmp_path/'thesis'/'a.txt').read_text() == 'precious'

def test_two_runs_in_one_folder(corpus, tmp_path, monkeypatch):
    said = []
    def second(cb):
        (tmp_path/'m.run'/'lock').write_text('1 on elsewhere\n')      # as if another process had it
        with pytest.raises(CheckpointError, match='in use by process 1'): train(corpus, tmp_path/'m', overwrite=True)
        said.append(names(tmp_path/'m.run'))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(3, second, 'before_batch'))
        assert load_bilm(train(corpus, tmp_path/'m'))
    assert said and [o for o in said[0] if o.endswith('start')]

def test_a_rate_that_runs_away(corpus, tmp_path):
    "The loss stays finite, far above guessing; the message names step and checkpoint"
    with pytest.raises(PretrainError, match='lower learning rate') as e: train(corpus, tmp_path/'m', epochs=4, lr=30.)
    step,path = int(re.search(r'at step (\d+)', str(e.value))[1]), re.search(r'last good checkpoint is (\S+)$', str(e.value))[1]
    assert 20 < step < 100 and read_checkpoint(path).position['batches'] == 0
    assert load_bilm(tmp_path/'m.interrupted')

@pytest.mark.parametrize('allowed', [2_000, 60_000], ids=['at the start', 'in the middle'])
def test_a_full_disk(corpus, tmp_path, allowed, capsys):
    "No file may grow beyond a limit (as a full disk, the write fails): at once, or for the last model"
    import resource
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, old[1]))
    try:
        with pytest.raises((CheckpointError, PretrainError)) as e: train(corpus, tmp_path/'m')
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert re.search(r'No checkpoint could be written|could not be written', str(e.value)) and not (tmp_path/'m').exists()

def test_a_disk_that_fills_up(corpus, tmp_path, monkeypatch, whole):
    "The training goes on and says so once; the older checkpoint stays readable; with room again it ends well"
    import resource
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    def fill(cb): resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, old[1]))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(20, fill))
        try:
            with pytest.warns(UserWarning, match='training goes on') as w, pytest.raises(PretrainError, match='make room.*--resume') as e:
                train(corpus, tmp_path/'m', epochs=2, minutes=1e-5)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert len([o for o in w if 'training goes on' in str(o.message)]) == 1
    assert not (tmp_path/'m').exists() and find_checkpoint(tmp_path/'m.run')
    assert weights(going_on(corpus, tmp_path/'m.run')) == weights(whole)

def test_early_stopping(corpus, tmp_path):
    told = []
    folder = train(corpus, tmp_path/'m', epochs=30, lr=.05, bs=100, patience=1, say=told.append)
    report = json.loads((folder/'report.json').read_text())
    rows = (folder/'history.csv').read_text().splitlines()[1:]
    losses = [float(o.split(',')[2]) for o in rows]
    assert len(losses) < 30 and losses[-1] > min(losses) and any('has not fallen since epoch' in o for o in told)
    assert math.log(report['perplexity_mean']) == pytest.approx(min(losses), abs=1e-4) and report['status'] == 'complete'

def test_recipes():
    for name,r in RECIPES.items():
        plan = module._plan(name or 'my.txt', Path('m'), None, 42, {})
        assert json.loads(json.dumps(plan)) == plan
        assert BiLMConfig.from_dict(plan['model']).name == plan['recipe'].get('config', {}).get('name', plan['recipe']['model'])
    plan = module._plan('wikitext2', Path('m'), 'medium', 42, dict(epochs=1, lr=None))
    assert BiLMConfig.from_dict(plan['model']) == elmo_configs['medium'] and plan['recipe']['epochs'] == 1 and plan['recipe']['lr'] == RECIPES['wikitext2']['lr']
    assert module._plan('toy', Path('m'), None, 42, dict(optimizer='adagrad'))['recipe']['lr'] == .2

# the command, in a process of its own

root = Path(elmo_fastai.__file__).resolve().parent.parent

def start(folder, *args, module=False):
    "The command in `folder`, without a network and without local copies; output goes to files"
    launcher = folder/'.elmo_pretrain.py'
    launcher.write_text('from elmo_fastai.command import elmo_pretrain\nelmo_pretrain()\n')   # what pip makes of an entry point
    nowhere = 'http://127.0.0.1:9'
    env = {k:v for k,v in os.environ.items() if k != 'ELMO_FASTAI_DATA'}
    env.update(PYTHONPATH=os.pathsep.join([str(root), env.get('PYTHONPATH', '')]), MPLBACKEND='agg', OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', PYTHONUNBUFFERED='1',
               XDG_CACHE_HOME=str(folder/'.cache'), HF_HOME=str(folder/'.cache'), MPLCONFIGDIR=str(folder/'.cache'), COLUMNS='200',
               **{k: nowhere for k in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY')})
    out,err = ((folder/f'.{o}').open('w') for o in ('out', 'err'))
    cmd = [sys.executable, *(['-m', 'elmo_fastai.command'] if module else [launcher])]
    return subprocess.Popen([*map(str, cmd), *map(str, args)], cwd=folder, env=env, stdout=out, stderr=err, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

def said(folder): return ((folder/'.out').read_text(encoding='utf-8'), (folder/'.err').read_text(encoding='utf-8'))
def visible(folder): return sorted(f.name for f in folder.iterdir() if not f.name.startswith('.') or f.name.startswith('.m'))
QUICK = '--model tiny --epochs 1 --bs 8 --seqlen 16'.split()

@pytest.fixture(scope='module')
def processes(tmp_path_factory, corpus):
    "All runs of the command, two at a time: name → (folder, exit status)"
    base = tmp_path_factory.mktemp('command')
    text = '\n'.join(corpus.train) + '\n'
    inputs = dict(text=text, short='the bank of the river .\n'*4, empty='', blank=' \n\n\t\n', one='one line only', latin='caf\xe9 au lait\n'*300)
    model = base/'model'                                                # a small model that is in the way
    train(corpus, model, model=None, epochs=1, bs=200, min_freq=10)
    def run(case):
        name,args,kw = case
        folder = base/name
        folder.mkdir()
        for k,v in inputs.items(): (folder/f'{k}.txt').write_bytes(v.encode('latin-1' if k == 'latin' else 'utf-8'))
        if kw.get('model'): shutil.copytree(model, folder/'m')
        p = start(folder, *args, module=kw.get('module', False))
        try:
            if kw.get('kill'):
                while not list(folder.glob('m.run/0*-epoch1-batch*')) and p.poll() is None: time.sleep(.02)
                p.kill()
            if sig := kw.get('signal'):
                deadline = time.monotonic() + 300
                while not re.search(r'^0 ', said(folder)[0], re.M) and p.poll() is None and time.monotonic() < deadline: time.sleep(.1)
                p.send_signal(sig)
            return name, (folder, p.wait(timeout=500))
        finally: p.kill()
    endless = ['text.txt', '--out', 'm', '--model', 'tiny', '--epochs', '1000', '--bs', '8', '--seqlen', '16']
    cases = [('SIGINT', endless, dict(signal=signal.SIGINT)), ('whole', ['text.txt', '--out', 'm', *QUICK], dict(module=True)),
             ('NaN', ['text.txt', '--out', 'm', *QUICK, '--lr', '1e30', '--overwrite'], dict(model=True)),
             ('KILL', ['text.txt', '--out', 'm', *QUICK, '--minutes', '0.0001'], dict(kill=True)),
             ('help', ['--help'], {}), ('second', ['text.txt', '--out', 'm', *QUICK], dict(model=True)),
             *[(k, [v, '--out', 'm', *QUICK], {}) for k,v in WRONG.items() if k in ALONE]]
    with ThreadPoolExecutor(2) as pool: return dict(pool.map(run, cases))

WRONG = dict(empty='empty.txt', blank='blank.txt', one='one.txt', short='short.txt', latin='latin.txt', missing='no/such/file.txt', unknown='toyy', pattern='*.md', download='tiny_shakespeare')
WORDS = dict(empty="'empty.txt'.*empty", blank="'blank.txt'.*white space", one='too short', short='bs|seq_len|more text', latin="'latin.txt' is not UTF-8.*offset 3.*Save it as UTF-8",
             missing=r"no/such/file\.txt.*no file", unknown="'toyy'.*toy, tiny_shakespeare", pattern=r"\*\.md", download="can't download.*network.*tiny_shakespeare.*ELMO_FASTAI_DATA")
ALONE = ('empty', 'short', 'latin', 'unknown', 'download')              # in processes of their own; the others in this one, to save time

def one_message(folder):
    "What stands on stderr: one line, for people"
    err = said(folder)[1]
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith('elmo_pretrain: ') and 'Traceback' not in err and 'Warning' not in err, err
    return lines[0]

@pytest.mark.parametrize('name', ALONE)
def test_wrong_input(processes, name):
    folder, status = processes[name]
    message = one_message(folder)
    assert status == 1 and re.search(WORDS[name], message), message
    assert 'm' not in visible(folder) and not [f for f in folder.rglob('*.safetensors')]

@pytest.mark.parametrize('name', [k for k in WRONG if k not in ALONE])
def test_wrong_input_here(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    for k,v in dict(blank=' \n\n\t\n', one='one line only').items(): (tmp_path/f'{k}.txt').write_text(v)
    with pytest.raises(SystemExit) as e: elmo_pretrain(corpus=WRONG[name], out='m')
    err = capsys.readouterr().err.strip() if isinstance(e.value.code, int) else e.value.code
    assert e.value.code and err.startswith('elmo_pretrain: ') and len(err.splitlines()) == 1 and re.search(WORDS[name], err), err
    assert not (tmp_path/'m').exists()

def test_help_lists_everything(processes):
    folder, status = processes['help']
    out, err = said(folder)
    assert status == 0 and not err
    options = set(re.findall(r'--\w+', out))
    assert options == {f'--{o}' for o in 'help out model epochs lr bs seqlen minfreq maxvocab optimizer wd patience carry seed device data fp32 overwrite resume minutes stream valid steps buffer'.split()}
    assert re.search(r'^\s+corpus\s+toy', out, re.M), 'the corpus is an argument by position'
    for o in options: assert re.search(rf'^\s+(-h, )?{o}( [A-Z_]+| \(\w+\))?\s\s+[\w]', out, re.M) or re.search(rf'{o}[^\n]*\n\s{{10,}}\w', out), f'{o} has no explanation'
    for size in elmo_configs:
        if size != 'nano': assert size in out

def test_a_whole_run(processes, corpus):
    folder, status = processes['whole']
    out, err = said(folder)
    assert status == 0 and not err.strip(), err
    report, model, vocab = check_folder(folder/'m', senses=False)
    assert report['status'] == 'complete' and report['corpus'] == 'text' and report['model'] == 'tiny'
    assert all(h in out for h in TABLE) and 'next' in out and 'm/' in out and f"{report['perplexity_mean']:.2f}" in out
    assert [f for f in visible(folder) if not f.endswith('.txt')] == ['m']

def test_a_second_run_stops(processes):
    folder, status = processes['second']
    message = one_message(folder)
    assert status == 1 and 'm' in message and '--overwrite' in message and '--out' in message
    assert load_bilm(folder/'m')[0].config == ELMO_TINY

def test_overwrite_replaces(corpus, tmp_path):
    old = train(corpus, tmp_path/'m', bs=200, min_freq=10)
    words = len(load_bilm(old)[1])
    with pytest.raises(PretrainError, match='--overwrite'): train(corpus, tmp_path/'m', bs=200)
    assert len(load_bilm(old)[1]) == words
    new = train(corpus, tmp_path/'m', bs=200, overwrite=True)
    assert new == old and len(load_bilm(new)[1]) > words and [f.name for f in tmp_path.iterdir()] == ['m']

def untouched(folder): return all((folder/'m'/f.name).read_bytes() == f.read_bytes() for f in (folder.parent/'model').iterdir())

def test_a_loss_that_is_not_a_number(processes):
    folder, status = processes['NaN']
    message = one_message(folder)
    assert status == 1 and 'nan' in message and 'lower learning rate' in message and 'm.interrupted' in message and re.search(r'last good checkpoint is m.run/000001-start', message)
    assert [f for f in visible(folder) if not f.endswith('.txt')] == ['m', 'm.interrupted', 'm.run'] and untouched(folder)
    assert finite(load_bilm(folder/'m.interrupted')[0])

def test_an_interrupted_process(processes):
    folder, status = processes['SIGINT']
    message = one_message(folder)
    assert status == 130 and 'SIGINT' in message and 'm.interrupted' in message
    assert [f for f in visible(folder) if not f.endswith('.txt')] == ['m.interrupted', 'm.run'] and '--resume m.run' in message
    report, model, vocab = check_folder(folder/'m.interrupted', senses=False)
    assert 'SIGINT' in report['status'] and report['steps'] >= 1 and finite(model)

def test_a_killed_process_goes_on(processes, monkeypatch):
    "SIGKILL, then the same weights as those of the undisturbed process"
    folder, status = processes['KILL']
    assert status == -signal.SIGKILL and [f for f in visible(folder) if not f.endswith('.txt')] == ['m.run']
    told = []
    assert pretrain(resume=folder/'m.run', say=told.append) == folder/'m'
    assert any('Going on from epoch 1 of 1, batch' in o for o in told)
    assert weights(folder/'m') == weights(processes['whole'][0]/'m')
    assert [f for f in visible(folder) if not f.endswith('.txt')] == ['m']

def test_the_entry_point_exists():
    settings = ConfigParser(delimiters=['='])
    settings.read(Path(__file__).parent.parent/'settings.ini', encoding='utf-8')
    for line in settings['DEFAULT']['console_scripts'].split():
        name, _, where = line.partition('=')
        mod, _, function = where.partition(':')
        assert callable(getattr(import_module(mod), function)) and name == function

def test_a_failure_in_training_keeps_what_was_learned(corpus, tmp_path, monkeypatch):
    def fail(cb): raise RuntimeError('out of memory')
    adding(monkeypatch, lambda: At(5, fail, 'before_batch'))
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(PretrainError, match='out of memory'): train(corpus, tmp_path/'m')
    assert names(tmp_path) == ['m.interrupted', 'm.run'] and load_bilm(tmp_path/'m.interrupted')
    assert signal.getsignal(signal.SIGINT) == before
