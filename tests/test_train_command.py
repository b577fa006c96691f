"elmo_pretrain: options, files of settings, help, errors, and whole runs in processes of their own"
import math, os, re, shutil, signal, subprocess, sys, time, warnings
from configparser import ConfigParser
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import pytest

import elmo_fastai
from elmo_fastai.train import command, script
from elmo_fastai.base.options import option_name
from elmo_fastai.base.errors import CommandError, Interrupted
from elmo_fastai.text.sources import CORPORA
from elmo_fastai.nn.bilm import BiLMConfig, elmo_configs
from elmo_fastai.elmo.folder import load_bilm
from elmo_fastai.train.command import RECIPES, Settings, elmo_pretrain, pretrain, settings_for
from steps import At, finite
from test_script import (
    QUIET, TABLE, adding, alike, check_folder, going_on, listing, planned, press, ran, said,
    toml_of, train, weights)
from test_script import corpus, steps_for_seconds, text      # fixtures

pytestmark = pytest.mark.usefixtures('held_throughout', 'drawn_once')


@pytest.mark.parametrize('settings,says', [
    (dict(epochs=0), 'epochs'), (dict(seq_len=0), '--seq-len'), (dict(lr=math.nan), 'lr'),
    (dict(model='huge'), 'tiny or small or medium or original'), (dict(device='xyz'), 'xyz'),
    (dict(device='meta'), 'meta'), (dict(device='cuda:99'), 'cuda:99'),
    (dict(max_vocab=4), '--max-vocab'), (dict(every=0), '--every'), (dict(time='15'), '--time'),
    (dict(time='1m', epochs=2), '--time and --epochs'), (dict(kind='x'), '--kind'),
    (dict(wd=-1.0), 'wd'), (dict(optimizer='sgd'), 'adagrad'), (dict(patience=0), 'patience'),
    (dict(carry=True), '--carry'), (dict(epoch=3), "'epoch' (did you mean epochs?)"),
    (dict(stream=True, test='x.txt', epochs=1), '--test goes without --stream'),
    (dict(steps=3), '--stream'),
    (dict(seed=10**30), 'seed'), (dict(bs=401), '400 sentences')], ids=str)
def test_settings_that_can_not_be(corpus, tmp_path, settings, says):
    with pytest.raises(CommandError, match=re.escape(says)):
        train(corpus, tmp_path/'out', **settings)
    assert not list(tmp_path.iterdir())

def test_ctrl_c_before_training(tmp_path, monkeypatch, capsys):
    def stop(*args, **kwargs): raise KeyboardInterrupt
    monkeypatch.setattr(script, 'get_corpus', stop)
    with pytest.raises(SystemExit) as e: elmo_pretrain(['toy', '--out', str(tmp_path/'m')])
    assert (e.value.code == 130 and len(capsys.readouterr().err.strip().splitlines()) == 1
            and not list(tmp_path.iterdir()))


@pytest.mark.parametrize('end', [
    None, KeyboardInterrupt(), CommandError('no'), RuntimeError('a fault')])
def test_the_command_called_in_a_process_leaves_its_warnings_alone(
    end, monkeypatch, tmp_path, capsys):
    def stub(*args, **kwargs):
        assert warnings.showwarning is not before
        if end:
            raise end
        return tmp_path

    before, filters = warnings.showwarning, [*warnings.filters]
    (tmp_path/'report.json').write_text('{"tokenizer": "words", "corpus": "toy"}')
    monkeypatch.setattr(command, 'pretrain', stub)
    try:
        elmo_pretrain(['toy'])
    except (SystemExit, RuntimeError):
        pass
    with pytest.raises(SystemExit):
        elmo_pretrain([])
    assert warnings.showwarning is before and warnings.filters == filters

def test_recipes():
    """What is said goes before a recipe, a recipe before the defaults; a plan gives the settings
    back"""
    for name in (None, *RECIPES):
        settings, plan, told = planned(name or 'my.txt')
        assert (Settings.from_json(plan['settings'], settings) == settings
                and BiLMConfig.from_dict(plan['model']).name == settings.model
                and len(told) == (name is None))
    settings, plan, told = planned('wikitext2', model='medium', epochs=1, lr=None, dropout=.2)
    assert (BiLMConfig.from_dict(plan['model']) == replace(elmo_configs['medium'], bias=True)
            and plan['settings']['epochs'] == 1
            and plan['settings']['lr'] == RECIPES['wikitext2']['lr'])
    assert (planned('toy', optimizer='adagrad')[0].lr == 0.2
            and planned('wikitext2')[0].dropout == 0.1 and not told)

def test_a_file_s_dropout_comes_before_a_recipe_s():
    settings = script.complete('toy', settings_for('toy', dict(config=dict(dropout=.15))))
    assert script.shape(settings).dropout == .15
    with pytest.raises(CommandError, match='dropout'):
        script.shape(script.complete('toy', settings_for('toy', dict(config=dict(dropout=3)))))

@pytest.mark.slow
@pytest.mark.parametrize('case', ['files', 'named', 'changed', 'timed', 'adagrad'])
def test_one_file_repeats_a_training(text, monkeypatch, capsys, case, steps_for_seconds):
    "The same bits, from the file alone"
    monkeypatch.setitem(RECIPES, 'tiny_shakespeare',
                        dict(
        model='tiny', epochs=1, bs=2, seq_len=8, config=dict(
        dropout=0.2, filters=((1, 8), (2, 8)))))
    (text/'data').mkdir()
    (text/'data'/'input.txt').write_text((text/'tr.txt').read_text())
    common = ('--device', 'cpu', '--no-bf16')
    args = dict(files=['my/train.txt', '--valid', 'my/valid.txt', '--tokenizer', 'space', '--model',
                       'tiny', '--epochs', '1', '--bs', '2', '--seq-len', '8', '--wd', '0',
                       '--seed', '3'], named=['tiny_shakespeare', '--data', 'data'],
                changed=[
        'tiny_shakespeare', '--data', 'data', '--model', 'tiny', '--max-vocab', '40', '--carry',
        '--patience', '2'], timed=[
        'my', '--model', 'tiny', '--bs', '2', '--seq-len', '8', '--time', '40s'],
                adagrad=[
        'my', '--model', 'tiny', '--bs', '2', '--seq-len', '8', '--epochs', '1', '--optimizer',
        'adagrad'])[case]
    monkeypatch.chdir(text)
    assert ran(capsys, *args, '--out', 'a', *common)[0] == 0
    found = toml_of('a')
    assert (not {'out', 'overwrite', 'resume', 'dry'} & set(found) and found['bf16'] is False
            and found['model'] == 'tiny' and ('epochs' in found) == (case != 'timed'))
    # a later version may train otherwise
    monkeypatch.setitem(RECIPES, 'tiny_shakespeare', dict(model='tiny', epochs=2))
    monkeypatch.chdir(text/'my')
    code, out, err = ran(
        capsys, '--config', text/'a'/'run.toml', '--out', text/'b', '--device', 'cpu')
    assert code == 0, err
    assert (alike(text/'a', text/'b') and (text/'a'/'config.json').read_bytes() == (
        text/'b'/'config.json').read_bytes())
    assert toml_of(text/'b') == found

def test_the_file_of_a_resumed_training(corpus, text, monkeypatch, tmp_path):
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(9, press(), 'before_batch'))
        with pytest.raises(Interrupted): train(str(text/'my'), text/'m', **QUIET)
    assert (toml_of(text/'m.interrupted') == toml_of(going_on(
        None, text/'m.run')) == toml_of(train(str(text/'my'), text/'n', **QUIET)))


def test_the_command_line_overrides_the_file():
    "What is said about one model or end goes with all that a file says about another"
    file = dict(model='tiny', bs=2, epochs=3, min_freq=1, config=dict(dropout=.25))
    merged = settings_for('my.txt', dict(epochs=1), file)
    assert (merged.epochs, merged.min_freq, merged.config) == (1, 1, dict(dropout=.25))
    merged = settings_for('my.txt', dict(model='small', bs=20), file)
    assert (merged.model, merged.bs, merged.epochs, merged.config) == ('small', 20, 3, None)
    merged = settings_for('my.txt', dict(epochs=2), dict(time='9m'))
    assert merged.time is None and merged.epochs == 2
    assert settings_for('my.txt', dict(time='9m'), file).epochs is None

def test_a_corpus_from_python_is_said_to_be_missing(corpus, tmp_path):
    folder = train(corpus, tmp_path/'m')
    assert 'corpus' not in toml_of(folder) and 'in Python' in (folder/'run.toml').read_text()


@pytest.mark.slow
@pytest.mark.parametrize('text_,says', [
    ('epoch = 3', r"no setting 'epoch'.*did you mean epochs\?"),
    ('epochs = "3"', 'epochs must be a whole number'),
    ('epochs = 0', '--epochs must be at least 1'),
    ('corpus = "toy"\n[config]\ndrop_out = 0.1', "'drop_out'.*did you mean dropout"),
    ('corpus = "toy"\n[config]\ndropout = 3', 'dropout'), ('config = "other.toml"', 'table'),
    ('x', 'TOML'), ('time = "15"', 'such as 15m'), ('epochs = 3\ntime = "15m"', '--time')], ids=str)
def test_files_that_can_not_be(tmp_path, monkeypatch, capsys, text_, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'run.toml').write_text(text_)
    code, out, err = (ran(capsys, 'toy', '--config', 'run.toml')
                      if 'corpus' not in text_ else ran(capsys, '--config', 'run.toml'))
    assert (code == 2 and len(err.strip().splitlines()) == 1
            and err.startswith('elmo_pretrain: ') and re.search(says, err)), err
    assert listing(tmp_path) == ['run.toml']


@pytest.mark.parametrize('args,says', [
    (['toy', '--batch_size', '3'], 'no option --batch-size'),
    (['toy', '--epoch-s', '3'], r'no option --epoch-s \(did you mean --epochs\?\)'),
    (['toy', '--epochs', 'x'], "invalid int value: 'x'"),
    (['toy', '--time', '15'], '--time must be a time such as 15m'),
    (['toy', '--time', '15m', '--epochs', '2'], '--time and --epochs'),
    (['toy', '--every', 'x'], '--every must be a time'),
    (['toy', '--out', 'm', 'b.txt'], "file or folder 'toy'"), ([], 'name a corpus'),
    (['toy', '--kind', 'paragraphs'], 'sentences')], ids=str)
def test_options_that_can_not_be(tmp_path, monkeypatch, capsys, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = ran(capsys, *args)
    assert code == 2 and len(err.strip().splitlines()) == 1 and re.search(says, err), err
    assert not listing(tmp_path)


@pytest.mark.parametrize('args,says', [
    (['tinyshakespeare'], 'did you mean tiny_shakespeare'), (['vi_vtb'], 'did you mean ud:vi_vtb'),
    (['t.txt', '--device', 'xyz'], "device 'xyz'"), (['t.txt', '--from', 'none'], 'no folder')],
    ids=str)
def test_names_that_are_unknown(tmp_path, monkeypatch, capsys, args, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'t.txt').write_text('the bank of the river .\n'*60)
    code, out, err = ran(capsys, *args)
    assert code == 2 and len(err.strip().splitlines()) == 1 and says in err, err

def test_help_names_all_corpora():
    page = ' '.join(command.command_line().format_help().split())
    assert ', '.join(CORPORA) in page

def test_a_place_is_looked_at_before_the_text(text, monkeypatch, capsys):
    monkeypatch.chdir(text)
    monkeypatch.setattr('elmo_fastai.train.script.text_of', lambda *args: 1/0)
    for out in ('tr.txt', 'tr.txt/m', '.'):
        code, _, err = ran(capsys, 'tr.txt', '--out', out)
        assert code == 2 and '--out' in err, err

def test_errors_speak_of_options(text, monkeypatch, capsys):
    "What is an argument in Python is an option here"
    monkeypatch.chdir(text)
    (text/'t.csv').write_text('n,body\n1,a\n')
    (text/'l.txt').write_bytes(b'caf\xe9\n')
    for args, status, says in (('t.csv', 2, '--text-col body'), ('l.txt', 1, '(--encoding '),
                               ('tr.txt --column body', 2, "leave text_col='body' (--text-col)")):
        code, out, err = ran(capsys, *args.split())
        assert code == status and says in err, err


# the command, in a process of its own

root = Path(elmo_fastai.__file__).resolve().parent.parent

def start(folder, *args, module=False):
    "The command in `folder`, without a network and without local copies; output goes to files"
    launcher = folder/'.elmo_pretrain.py'
    # what pip makes of an entry point
    launcher.write_text('from elmo_fastai.train.command import elmo_pretrain\nelmo_pretrain()\n')
    nowhere = 'http://127.0.0.1:9'
    env = {k:v for k,v in os.environ.items() if k != 'ELMO_FASTAI_DATA'}
    env.update(PYTHONPATH=os.pathsep.join([str(root), env.get('PYTHONPATH', '')]), MPLBACKEND='agg',
               OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', PYTHONUNBUFFERED='1',
               XDG_CACHE_HOME=str(folder/'.cache'), HF_HOME=str(folder/'.cache'),
               MPLCONFIGDIR=str(folder/'.cache'), COLUMNS='200',
               **{k: nowhere for k in ('http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY')})
    out,err = ((folder/f'.{o}').open('w') for o in ('out', 'err'))
    cmd = [sys.executable, *(['-m', 'elmo_fastai.train.command'] if module else [launcher])]
    return subprocess.Popen(
        [*map(str, cmd), *map(str, args)], cwd=folder, env=env, stdout=out, stderr=err,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def visible(folder):
    return sorted(
        f.name for f in folder.iterdir() if not f.name.startswith('.') or f.name.startswith('.m'))


QUICK = '--model tiny --epochs 1 --bs 8 --seq-len 16'.split()

@pytest.fixture(scope='module')
def processes(tmp_path_factory, corpus):
    "Runs of the command, each made when a test asks for it: name → (folder, exit status)"
    base = tmp_path_factory.mktemp('command')
    text = '\n'.join(corpus.train) + '\n'
    # a small model that is in the way
    model = base/'model'
    train(corpus, model, config=None, epochs=1, bs=200, min_freq=10)
    def run(name, args, kw):
        folder = base/name
        folder.mkdir()
        (folder/'text.txt').write_text(text)
        if kw.get('model'): shutil.copytree(model, folder/'m')
        p = start(folder, *args, module=kw.get('module', False))
        try:
            if kw.get('kill'):
                while not list(folder.glob('m.run/0*-epoch1-batch*')) and p.poll() is None:
                    time.sleep(0.02)
                p.kill()
            if sig := kw.get('signal'):
                deadline = time.monotonic() + 300
                while (not re.search(r'^0 ', said(folder)[0], re.M) and p.poll() is None
                       and time.monotonic() < deadline):
                    time.sleep(0.1)
                p.send_signal(sig)
            return folder, p.wait(timeout=500)
        finally: p.kill()

    endless = ['text.txt', '--out', 'm', '--model', 'tiny', '--epochs', '1000', '--bs', '8',
               '--seq-len', '16']
    quick = ['text.txt', '--out', 'm', *QUICK]
    cases = dict(SIGINT=(endless, dict(signal=signal.SIGINT)), whole=(quick, dict(module=True)),
                 NaN=([*quick, '--lr', '1e30', '--overwrite'], dict(model=True)),
                 KILL=([*quick, '--every', '0.006s'], dict(kill=True)), help=(['--help'], {}),
                 download=([WRONG['download'], *quick[1:]], {}))

    class Runs(dict):
        def __missing__(self, name): return self.setdefault(name, run(name, *cases[name]))
    return Runs()

WRONG = dict(one='one.txt', short='short.txt', latin='latin.txt', missing='no/such/file.txt',
             unknown='toyy', download='tiny_shakespeare')
WORDS = dict(
    one='too short', short='bs|seq_len|more text', latin="'latin.txt', line 1 is not UTF-8",
    missing=r"no/such/file\.txt.*no file", unknown="'toyy'.*toy, tiny_shakespeare",
    download="can't download.*network.*tiny_shakespeare.*ELMO_FASTAI_DATA")

def one_message(folder):
    "What stands on stderr: one line, for people"
    err = said(folder)[1]
    lines = err.strip().splitlines()
    assert (len(lines) == 1 and lines[0].startswith('elmo_pretrain: ') and 'Traceback' not in err
            and 'Warning' not in err), err
    return lines[0]

def test_no_network(processes):
    folder, status = processes['download']
    message = one_message(folder)
    assert status == 1 and re.search(WORDS['download'], message), message
    assert 'm' not in visible(folder) and not [f for f in folder.rglob('*.safetensors')]

@pytest.mark.parametrize('name', [k for k in WRONG if k != 'download'])
def test_wrong_input(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'latin.txt').write_bytes(b'caf\xe9 au lait\n'*300)
    (tmp_path/'one.txt').write_text('one line only')
    (tmp_path/'short.txt').write_text('the bank of the river .\n'*4)
    with pytest.raises(SystemExit) as e: elmo_pretrain([WRONG[name], '--out', 'm'])
    err = capsys.readouterr().err.strip() if isinstance(e.value.code, int) else e.value.code
    assert (e.value.code and err.startswith('elmo_pretrain: ') and len(err.splitlines()) == 1
            and re.search(WORDS[name], err)), err
    assert not (tmp_path/'m').exists()


def test_help(processes):
    "One page: what each option is, and examples that can be typed"
    folder, status = processes['help']
    page, err = said(folder)
    assert status == 0 and not err
    for field in fields(Settings):
        if field.name != 'corpus': assert re.search(rf'^  {option_name(field)}\b', page, re.M) or (
            field.name == 'config' and '  --config FILE' in page), field.name
    for size in elmo_configs: assert size in page
    for example in re.findall('^  elmo_pretrain (.*?)  ', page, re.M):
        assert command.command_line().parse(example.split())

def test_a_whole_run(processes, corpus):
    folder, status = processes['whole']
    out, err = said(folder)
    assert status == 0 and not err.strip(), err
    report, model, vocab = check_folder(folder/'m', senses=False)
    assert (report['status'] == 'complete' and report['corpus'] == 'text'
            and report['model'] == 'tiny')
    assert (all(h in out for h in TABLE) and 'next' in out and 'm/' in out
            and f"{report['perplexity_mean']:.2f}" in out)
    assert [f for f in visible(folder) if not f.endswith('.txt')] == ['m']


def test_overwrite_replaces(corpus, tmp_path):
    old = train(corpus, tmp_path/'m', bs=200, min_freq=10)
    words = len(load_bilm(old)[1])
    with pytest.raises(CommandError, match='--overwrite'): train(corpus, tmp_path/'m', bs=200)
    assert len(load_bilm(old)[1]) == words
    new = train(corpus, tmp_path/'m', bs=200, overwrite=True)
    assert (new == old and len(load_bilm(new)[1]) > words
            and [f.name for f in tmp_path.iterdir()] == ['m'])


def untouched(folder):
    return all((folder/'m'/f.name).read_bytes() == f.read_bytes()
               for f in (folder.parent/'model').iterdir())


@pytest.mark.slow
def test_a_loss_that_is_not_a_number(processes):
    folder, status = processes['NaN']
    message = one_message(folder)
    assert (status == 1 and 'nan' in message and 'lower learning rate' in message
            and 'm.interrupted' in message)
    assert [f for f in visible(folder) if not f.endswith('.txt')] == [
        'm', 'm.interrupted', 'm.run'] and untouched(folder)
    assert finite(load_bilm(folder/'m.interrupted')[0])

@pytest.mark.slow
def test_an_interrupted_process(processes):
    folder, status = processes['SIGINT']
    message = one_message(folder)
    assert status == 130 and 'SIGINT' in message and 'm.interrupted' in message
    assert [f for f in visible(folder) if not f.endswith('.txt')] == [
        'm.interrupted', 'm.run'] and '--resume m.run' in message
    report, model, vocab = check_folder(folder/'m.interrupted', senses=False)
    assert 'SIGINT' in report['status'] and report['steps'] >= 1 and finite(model)

@pytest.mark.slow
def test_a_killed_process_goes_on(processes, monkeypatch):
    "SIGKILL, then the same weights as those of the undisturbed process"
    folder, status = processes['KILL']
    assert status == -signal.SIGKILL and [
        f for f in visible(folder) if not f.endswith('.txt')] == ['m.run']
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


def test_a_bug_in_the_command_is_not_one_line(monkeypatch, tmp_path, capsys):
    "Only what our rooms say to people is a line on stderr"
    def stub(*args, **kwargs): raise ValueError('operands could not be broadcast together')
    monkeypatch.setattr(command, 'pretrain', stub)
    with pytest.raises(ValueError, match='broadcast'): elmo_pretrain(['toy'])

def test_why_a_device_can_not_be_used(corpus, tmp_path):
    "The library's own words, and a bug that is none of the device's"
    with pytest.raises(CommandError, match='xyz') as e: train(corpus, tmp_path/'m', device='xyz')
    assert e.value.__cause__ is not None and str(e.value.__cause__).splitlines()[0][:40] in str(
        e.value)


# the page of help needs no torch

def test_help_and_errors_come_at_once(tmp_path):
    program = (
        "import sys; from elmo_fastai.train.command import elmo_pretrain\n"
        "for args in (['--help'], ['toy', '--epoch', 'x'], ['toy', '--epochs', '0']):\n"
        "    try: elmo_pretrain(args)\n"
        "    except SystemExit: pass\n"
        "print([o for o in ('torch', 'fastai', 'matplotlib', 'sklearn', 'pandas') if o in "
        "sys.modules])"
    )
    p = subprocess.run([sys.executable, '-c', program], cwd=tmp_path,
                       env={**os.environ, 'PYTHONPATH': str(root)}, capture_output=True, text=True)
    assert (p.returncode == 0 and p.stdout.splitlines()[-1] == '[]'
            and '--epochs must be at least 1' in p.stderr), p.stderr
