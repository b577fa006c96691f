"`elmo_pretrain` and `pretrain`: what may be said, what is written, and what happens after a kill"
import json, os, re, shutil, signal, subprocess, sys, time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import matplotlib.pyplot as plt, pandas as pd, pytest, torch

from elmo_fastai.errors import CheckpointError
from elmo_fastai.bilm import elmo_configs
from elmo_fastai.learner import evaluate
from elmo_fastai.practice import run as training
from elmo_fastai.practice.command import elmo_pretrain, one_line_errors, pretrain, seconds
from elmo_fastai.practice.files import lock_folder
from elmo_fastai.practice.folder import load_bilm
from elmo_fastai.practice.run import BY_LENGTH, SHORT, by_length, new_settings
from elmo_fastai.text.read import Corpus
from elmo_fastai.text.corpora import CORPORA, toy_corpus
from made import posix

root = Path(__file__).resolve().parent.parent
QUICK = dict(model='tiny', bs=8, epochs=1, device='cpu')
STREAM = QUICK | dict(seq_len=16)
LINE = '--model tiny --bs 8 --seq-len 16 --device cpu --epochs'.split()
NANO = replace(elmo_configs['tiny'], char_dim=4, filters=((1, 8), (2, 8)), proj_dim=16,
               hidden_dim=16)
FILES = ['chars.json', 'config.json', 'model.safetensors', 'report.json', 'report.png',
         'report.svg', 'run.json', 'vocab.json']

@pytest.fixture(scope='module', autouse=True)
def quick():
    "A smaller model than the smallest, and no time for figures"
    with pytest.MonkeyPatch.context() as mp:
        mp.setitem(elmo_configs, 'tiny', NANO)
        mp.setattr('elmo_fastai.practice.report.report_figure',
                   lambda *args: plt.figure(figsize=(1, 1)))
        yield

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=160, n_valid=20, n_test=1, n_unseen=1)

@pytest.fixture
def text(corpus, tmp_path):
    "The corpus as a file in the working folder"
    (tmp_path/'text.txt').write_text('\n'.join(corpus.train), encoding='utf-8')
    return tmp_path

@pytest.fixture(scope='module')
def trained(corpus, tmp_path_factory):
    "A model, its words those of the corpus"
    folder = tmp_path_factory.mktemp('trained')
    return pretrain(corpus, out=folder/'m', **QUICK | dict(epochs=3))

def names(folder): return sorted(path.name for path in Path(folder).iterdir())
def weights(folder): return sha256((Path(folder)/'model.safetensors').read_bytes()).hexdigest()
def read(path): return json.loads(Path(path).read_text('utf-8'))

def answer(capsys, *args):
    "The exit status of the command, and the one line on stderr"
    with pytest.raises(SystemExit) as e: elmo_pretrain([*map(str, args)])
    err = capsys.readouterr().err.strip()
    assert 'Traceback' not in err
    assert len(err.splitlines()) == 1 and err.startswith('elmo_pretrain: ')
    return e.value.code, err

# what may be said

@pytest.mark.parametrize('line,says', [
    ('toy --model huge', 'huge'), ('toy --epochs 0', '--epochs'), ('toy --lr nan', '--lr'),
    ('toy --time 1m --epochs 2', 'leave one out'), ('toy --time=-3m', '15m'),
    ('toy --from m --model tiny', '--model'), ('--resume x --lr .1', '--lr'),
    ('--resume x.run', 'no training'),
    ('toy --from nowhere', 'nowhere'), ('text.txt no.txt', 'no file'),
    ('toy --device xyz', 'xyz'), ('text.txt --text-col x', "'x'"), ('latin.txt', 'UTF-8'),
    ('two.csv', 'text-col'), ('text.txt --valid text.txt', 'held out|trained on'),
    ('toy --stream', '--stream'),
    ('text.txt --from mini-en --char-vocab bytes', '--char-vocab'),
    ('text.txt --kind sentences --seq-len 7', '--seq-len'), ('--resume text.txt', r'\.run'),
    ('text.txt --out here', 'here.run is a file')])
def test_what_can_not_be_meant(text, capsys, line, says):
    "One line and the status 2; nothing is written"
    (text/'latin.txt').write_bytes('Ça va.\n'.encode('latin-1')*9)
    (text/'here.run').write_text('')
    (text/'two.csv').write_text('text,review\na b,c\n'*9)
    before = names(text)
    status, err = answer(capsys, *line.split())
    assert status == 2 and re.search(says, err), err
    assert names(text) == before

@pytest.mark.parametrize('said', [
    dict(time='x'), dict(bs=0), dict(valid=pd.DataFrame()), dict(resume='x', seed=3),
    dict(char_vocab='leters'), dict(tokenizer=str.split)], ids=str)
def test_python_refuses_alike(corpus, tmp_path, said):
    for source in ('toy', corpus):
        with pytest.raises(ValueError): pretrain(source, **said)
    assert not names(tmp_path)

def test_recipes_and_what_follows_from_the_length():
    "What is said comes first, then the recipe of the corpus, then what is usual"
    times = {'15m': 900, '900s': 900, '1.5h': 5400, 20: 20}
    assert times == {time: seconds(time) for time in times}
    assert new_settings('toy', {})['time'] == 180
    assert 'time' not in new_settings('toy', dict(epochs=1))
    assert new_settings(Path('books/toy'), {}) == new_settings('books/mine', {})    # a file
    assert new_settings('my.txt', dict(optimizer='adagrad'))['lr'] == .2
    for n in (SHORT, SHORT + 1):
        usual = BY_LENGTH[n <= SHORT]
        assert by_length({}, n) == usual and by_length(dict(epochs=2), n)['epochs'] == 2
        assert 'epochs' not in by_length(dict(time=9), n)

def test_help_and_errors_come_at_once(tmp_path):
    "They need no torch"
    program = (
        "import sys; from elmo_fastai.practice.command import elmo_pretrain\n"
        "for args in (['--help'], ['toy', '--epoch', 'x'], ['toy', '--epochs', '0']):\n"
        "    try: elmo_pretrain(args)\n"
        "    except SystemExit: pass\n"
        "print({'torch', 'fastai', 'matplotlib', 'sklearn', 'pandas'} & sys.modules.keys())")
    p = subprocess.run([sys.executable, '-c', program], capture_output=True, encoding='utf-8',
                       env={**os.environ, 'PYTHONPATH': str(root)})
    assert p.returncode == 0 and p.stdout.splitlines()[-1] == 'set()', p.stderr
    assert all(option in p.stdout for option in ('--out', '--time', '--from', '--resume'))
    # it lists what it can't import: the corpora and the sizes of models
    shown = ' '.join(p.stdout.split())
    assert f"{', '.join(CORPORA)};" in shown and f"--model {{{','.join(elmo_configs)}}}" in shown

@pytest.mark.parametrize('error,status', [
    (MemoryError(), 1), (RuntimeError('CUDA out of memory. Tried to allocate 9 GiB'), 1),
    (OSError('disk'), 1), (RuntimeError('unsupported memory format'), None), (ValueError('x'), 2)],
    ids=repr)
def test_what_ends_a_command(capsys, error, status):
    "What is nobody's doing keeps its traceback"
    with pytest.raises(SystemExit if status else RuntimeError) as e:
        with one_line_errors('elmo_pretrain'): raise error
    if status: assert e.value.code == status and len(capsys.readouterr().err.splitlines()) == 1

# what is written

def test_a_whole_run(text, capsys):
    elmo_pretrain(['text.txt', *LINE, '1'])
    said = capsys.readouterr()
    assert names('models') == ['text'] and names('models/text') == FILES and not said.err
    report, run = read('models/text/report.json'), read('models/text/run.json')
    for part in ('Read: text', 'valid_loss', f"{report['perplexity_mean']:.2f}", 'The model is in'):
        assert part in said.out
    assert report['corpus'] == 'text' and report['trigram'] > 1 and report['steps'] > 9
    assert run['corpus'] == str(text/'text.txt') and run['bs'] == 8 and run['lr'] == 4e-3
    lm, vocab = load_bilm('models/text')
    assert lm.n_words == len(vocab) and lm.tokenizer == 'words'
    assert all(w.isfinite().all() for w in lm.state_dict().values())

DATA = dict(
    files=(lambda folder, lines: [folder/'a.txt', folder/'b.txt'], {}),
    folder=(lambda folder, lines: folder/'split', {}),
    csv=(lambda folder, lines: folder/'a.csv', dict(text_col='said')),
    lists=(lambda folder, lines: [line.split() for line in lines], dict(kind='sentences')),
    valid=(lambda folder, lines: folder/'a.txt', dict(valid='v.txt', char_vocab='letters')),
    stream=(lambda folder, lines: folder/'a.txt', dict(stream=True, valid='v.txt', max_vocab=50)),
    adagrad=(lambda folder, lines: folder/'a.txt', dict(optimizer='adagrad', tokenizer='space')),
    patience=(lambda folder, lines: folder/'a.txt', dict(patience=1, epochs=9, lr=.3)))

@pytest.mark.parametrize('name', DATA)
def test_every_kind_of_text(corpus, tmp_path, name):
    lines, make, said = corpus.train, *DATA[name]
    (tmp_path/'split').mkdir()
    for file,some in {'a': lines[:120], 'b': lines[120:], 'v': corpus.valid, 'split/train': lines,
                      'split/valid': corpus.valid, 'split/test': corpus.valid[:9]}.items():
        (tmp_path/f'{file}.txt').write_text('\n'.join(some))
    pd.DataFrame(dict(said=lines, n=1)).to_csv(tmp_path/'a.csv')
    out = pretrain(make(tmp_path, lines), out='m', **(QUICK if 'kind' in said else STREAM) | said)
    report, (lm, vocab) = read(out/'report.json'), load_bilm(out)
    assert 1 < report['perplexity_mean'] < len(vocab)
    assert ('test_predictions' in report) == (name not in ('valid', 'stream')), report
    if name == 'stream': assert len(vocab) <= 54 and report['train_unknown'] is None
    if name == 'adagrad': assert lm.tokenizer == 'space' and read(out/'run.json')['lr'] == .2
    if name == 'valid': assert lm.config.n_chars < 262
    if name == 'patience': assert report['epochs'] < 9
    assert names(tmp_path/'m') == FILES

def test_the_best_epoch_is_saved_and_nothing_else_changes(corpus, tmp_path):
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    out = pretrain(corpus, out=tmp_path/'m', **QUICK | dict(epochs=6, lr=.2, threads=1))
    report = read(out/'report.json')
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == 2
    torch.set_num_threads(1)
    dls = training.loaders(corpus, read(out/'run.json'), None, 'cpu')
    found = evaluate(load_bilm(out)[0], dls.valid)
    assert found['mean'] == pytest.approx(report['perplexity_mean'], rel=1e-5)
    assert report['floor'] < report['perplexity_mean'] == pytest.approx(
        report['ratio_to_floor']*report['floor'])

def test_a_failure_while_measuring_costs_no_model(corpus, tmp_path, monkeypatch):
    def fail(*args): raise MemoryError
    with monkeypatch.context() as mp, pytest.raises(MemoryError):
        mp.setattr(training, 'make_report', fail)
        pretrain(corpus, out=tmp_path/'m', **QUICK)
    assert load_bilm(tmp_path/'m')[0].n_words
    was = weights(tmp_path/'m')
    assert weights(pretrain(corpus, resume=tmp_path/'m.run')) == was
    assert names(tmp_path) == ['m'] and names(tmp_path/'m') == FILES

def test_a_rate_that_runs_away(corpus, tmp_path):
    with pytest.raises(ValueError, match='diverged.*lower --lr'):
        pretrain(corpus, out=tmp_path/'m', **QUICK | dict(lr=1e30))
    assert not (tmp_path/'m').exists()

# places

def copied(folder, new):
    shutil.copytree(folder, new)
    return new

def test_nothing_is_replaced_unasked(corpus, trained, tmp_path):
    def refused(says, **said):
        before = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
        with pytest.raises(ValueError, match=says): pretrain(corpus, **QUICK | said)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    (tmp_path/'foreign').mkdir()
    (tmp_path/'foreign'/'config.json').write_text('{}')
    (tmp_path/'file').write_text('x')
    for place in ('foreign', 'file'):
        for overwrite in (False, True):
            refused('not a model of ours', out=tmp_path/place, overwrite=overwrite)
    m, run = copied(trained, tmp_path/'m'), tmp_path/'n.run'
    refused('--overwrite', out=m)
    refused('holds a model already', out=m, From=m, model=None)
    run.mkdir()
    for name in ('000003.pt', 'notes'): (run/name).write_text('x')
    refused('--resume', out=tmp_path/'n')
    with lock_folder(run): refused('in use', out=tmp_path/'n')
    was = weights(m)
    for name in ('2024-thesis.pt', '.000004.pt-99.part'): (run/name).write_text('x')
    pretrain(corpus, out=m, overwrite=True, **QUICK)
    pretrain(corpus, out=tmp_path/'n', overwrite=True, **QUICK)
    assert weights(m) != was and names(run) == ['2024-thesis.pt', 'notes']

# a model to begin with

@pytest.mark.parametrize('said', [{}, dict(min_freq=1)], ids=str)
def test_it_begins_with_a_model(trained, corpus, tmp_path, capsys, said):
    quick = {k: v for k,v in QUICK.items() if k != 'model'} | dict(lr=1e-9)
    out = pretrain(corpus, out=tmp_path/'m', From=trained, **quick | said)
    old, new = (load_bilm(folder) for folder in (trained, out))
    report, was = read(out/'report.json'), read(trained/'report.json')
    assert new[0].config == old[0].config
    weights = dict(new[0].named_parameters())
    for name,w in old[0].named_parameters():
        if not name.startswith('head'):
            torch.testing.assert_close(weights[name], w, atol=1e-3, rtol=0)
    if said != dict(min_freq=1): assert new[1].itos == old[1].itos
    if not said: assert report['perplexity_mean'] == pytest.approx(was['perplexity_mean'], rel=.02)

# broken off

def broken(monkeypatch, corpus, out, error=RuntimeError, **said):
    "A training that raised an error at step 15"
    class Broken(training.Checkpoints):
        def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs | dict(minutes=0))
        def after_batch(self):
            super().after_batch()
            if self.training and self.train_iter == 15: raise error('power')
    with monkeypatch.context() as mp, pytest.raises(error) as e:
        mp.setattr(training, 'Checkpoints', Broken)
        usual = QUICK if isinstance(corpus, Corpus) else STREAM
        pretrain(corpus, out=out, **usual | dict(epochs=2) | said)
    assert error is RuntimeError or f'--resume {out}.run' in str(e.value)
    return Path(f'{out}.run')

def test_what_a_resumption_is(corpus, text, monkeypatch, capsys):
    whole = weights(pretrain('text.txt', out='whole', **STREAM | dict(epochs=2)))
    run = broken(monkeypatch, 'text.txt', text/'m', KeyboardInterrupt)
    assert not (text/'m').exists()
    with pytest.raises(ValueError, match='leave out --bs'): pretrain(resume=run, bs=9)
    with pytest.raises(ValueError, match='--resume'): pretrain('text.txt', out='m', **STREAM)
    lines = (text/'text.txt').read_text()
    (text/'text.txt').write_text(lines + '\nand more')
    with pytest.raises(ValueError, match='The text has changed'): pretrain(resume=run)
    (text/'text.txt').write_text(lines)
    (text/'m').write_text('foreign')
    with pytest.raises(ValueError, match='move it away'): pretrain(resume=run)
    (text/'m').unlink()
    monkeypatch.chdir('/')
    assert weights(pretrain(resume=run)) == whole
    with pytest.raises(ValueError, match='no training to go on'): pretrain(resume=run)
    assert names(text) == ['m', 'text.txt', 'whole'] and names(text/'m') == FILES

def test_resumptions_of_other_trainings(corpus, trained, tmp_path, monkeypatch):
    "Of a corpus of Python; over a model by --overwrite; beside a model that came since; damaged"
    run = broken(monkeypatch, corpus, tmp_path/'m')
    with pytest.raises(ValueError, match=r'pretrain\(corpus, resume='): pretrain(resume=run)
    copied(trained, tmp_path/'m')
    with pytest.raises(ValueError, match='holds a model already'): pretrain(corpus, resume=run)
    pretrain(corpus, resume=run, overwrite=True)
    run = broken(monkeypatch, corpus, tmp_path/'m', overwrite=True)
    assert weights(tmp_path/'m') != weights(trained)
    pretrain(corpus, resume=run)
    run = broken(monkeypatch, corpus, tmp_path/'n')
    for path in run.glob('*.pt'): path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="can't be read"): pretrain(corpus, resume=run)
    assert list(run.glob('*.pt'))

@pytest.mark.parametrize('stream', [False, True])
def test_files_are_resumed(corpus, tmp_path, monkeypatch, stream):
    (tmp_path/'a.txt').write_text('\n'.join(corpus.train[:80]))
    (tmp_path/'b.txt').write_text('\n'.join(corpus.train[80:]))
    (tmp_path/'v.txt').write_text('\n'.join(corpus.valid))
    files = [tmp_path/'a.txt', tmp_path/'b.txt']
    said = dict(valid=tmp_path/'v.txt', stream=True) if stream else {}
    run = broken(monkeypatch, files, tmp_path/'m', **said)
    whole = pretrain(files, out=tmp_path/'whole', **STREAM | dict(epochs=2) | said)
    assert weights(pretrain(resume=run)) == weights(whole)

PROGRAM = """
import os, signal, threading, time
from elmo_fastai.practice.command import elmo_pretrain
def wait_for(path):
    while not os.path.exists(path): time.sleep(.01)
    os.kill(os.getpid(), signal.SIGKILL)
if 'KILL_AT' in os.environ:
    threading.Thread(target=wait_for, args=[os.environ['KILL_AT']], daemon=True).start()
elmo_pretrain()
"""

def start(folder, *args, n=1, **env):
    "The command in `folder`, in `n` processes; what it prints goes to files"
    env |= dict(OMP_NUM_THREADS='1', PYTHONUNBUFFERED='1')
    launcher = f'-m torch.distributed.run --standalone --nproc-per-node {n} --no-python'.split()
    python = [sys.executable, *launcher, sys.executable] if n > 1 else [sys.executable]
    out, err = (folder/'.out').open('w'), (folder/'.err').open('w')
    return subprocess.Popen(
        [*python, '-c', PROGRAM, *args], cwd=folder, env=os.environ | env, stdout=out, stderr=err,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

@pytest.mark.slow
@posix
@pytest.mark.parametrize('how,n', [('SIGKILL', 1), ('SIGTERM', 1), ('SIGINT', 1), ('SIGKILL', 2)])
def test_a_process_that_was_stopped_goes_on(text, how, n):
    "With the weights of one that was not; Ctrl-C says how, with the status 130"
    assert start(text, 'text.txt', *LINE, '20', '--out', 'whole', n=n).wait(600) == 0
    third = text/'m.run'/'000003.pt'
    kill = dict(KILL_AT=str(third)) if how == 'SIGKILL' else {}
    process = start(text, 'text.txt', *LINE, '20', '--out', 'm', n=n, **kill)
    while process.poll() is None and not third.exists(): time.sleep(.01)
    if not kill: process.send_signal(getattr(signal, how))
    status, err = process.wait(300), (text/'.err').read_text()
    assert status and not (text/'m').exists()
    if n == 1: assert status == dict(SIGKILL=-9, SIGTERM=-15, SIGINT=130)[how]
    if how == 'SIGINT':
        assert len(err.splitlines()) == 1 and f"--resume {text/'m.run'}" in err, err
    assert start(text, '--resume', 'm.run', n=n).wait(600) == 0, (text/'.err').read_text()
    assert weights(text/'m') == weights(text/'whole')
    a, b = (read(text/name/'run.json') for name in ('m', 'whole'))
    assert a == b and {'m', 'whole', 'text.txt'} == {*names(text)} - {'.err', '.out'}
    report = read(text/'m'/'report.json')
    assert report['tokens_per_second'] > 0 and (text/'.out').read_text().count('Perplexity') == 1
