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
from elmo_fastai.base.errors import CommandError
from elmo_fastai.text.corpora import CORPORA
from elmo_fastai.nn.bilm import BiLMConfig, elmo_configs
from elmo_fastai.elmo.folder import load_bilm
from elmo_fastai.train.command import RECIPES, Settings, elmo_pretrain, pretrain, settings_for
from steps import finite
from test_script import (
    QUIET, RIVER, TABLE, alike, check_folder, going_on, interrupted_at, listing, planned, ran, said,
    toml_of, train, weights)
from test_script import corpus, steps_for_seconds, text      # fixtures

pytestmark = pytest.mark.usefixtures('held_throughout', 'drawn_once')

@pytest.mark.parametrize('settings,says', [
    (dict(epochs=0), 'epochs'), (dict(seq_len=0), '--seq-len'), (dict(lr=math.nan), 'lr'),
    (dict(model='huge'), 'tiny or small or medium or original'), (dict(device='xyz'), 'xyz'),
    (dict(device='meta'), 'meta'), (dict(device='cuda:99'), 'cuda:99'),
    (dict(max_vocab=4), '--max-vocab'), (dict(every=0), '--every'), (dict(time='15'), '--time'),
    (dict(time='1m', epochs=2), '--time and --epochs'), (dict(kind='x'), '--kind'),
    (dict(wd=-1.), 'wd'), (dict(optimizer='sgd'), 'adagrad'), (dict(patience=0), 'patience'),
    (dict(carry=True), '--carry'), (dict(epoch=3), "no setting 'epoch'"),
    (dict(stream=True, test='x.txt', epochs=1), '--test goes without --stream'),
    (dict(steps=3), '--stream'), (dict(seed=10**30), 'seed'), (dict(bs=401), '400 sentences')],
    ids=str)
def test_settings_that_can_not_be(corpus, tmp_path, settings, says):
    with pytest.raises(CommandError, match=re.escape(says)):
        train(corpus, tmp_path/'out', **settings)
    assert not list(tmp_path.iterdir())

def test_ctrl_c_before_training(tmp_path, monkeypatch, capsys):
    def stop(*args, **kwargs): raise KeyboardInterrupt
    monkeypatch.setitem(script.CORPORA, 'toy', stop)
    code, _, err = ran(capsys, 'toy', '--out', tmp_path/'m')
    assert code == 130 and len(err.strip().splitlines()) == 1 and not list(tmp_path.iterdir())

@pytest.mark.parametrize('end', [
    None, KeyboardInterrupt(), CommandError('no'), RuntimeError('a fault')])
def test_the_command_called_in_a_process_leaves_its_warnings_alone(
    end, monkeypatch, tmp_path, capsys):
    "A bug in it is raised as it is: only what our rooms say to people is a line on stderr"
    before, filters = warnings.showwarning, [*warnings.filters]
    def stub(*args, **kwargs):
        assert warnings.showwarning is not before
        if end: raise end
        return tmp_path
    (tmp_path/'report.json').write_text('{"tokenizer": "words", "corpus": "toy"}')
    monkeypatch.setattr(command, 'pretrain', stub)
    if isinstance(end, RuntimeError):
        with pytest.raises(RuntimeError, match='a fault'): elmo_pretrain(['toy'])
    else: assert (ran(capsys, 'toy')[0] == 0) == (end is None)
    assert ran(capsys)[0] == 2
    assert warnings.showwarning is before and warnings.filters == filters

# recipes, files of settings

def test_recipes():
    "What is said goes before a recipe, a recipe before the defaults; a run gives the settings back"
    for name in (None, *RECIPES):
        settings, plan, told = planned(name or 'my.txt')
        assert Settings.from_json(plan['settings'], settings) == settings
        assert BiLMConfig.from_dict(plan['model']).name == settings.model
        assert len(told) == (name is None)
    _, plan, _ = planned('wikitext2', model='medium', epochs=1, lr=None, dropout=.2)
    assert BiLMConfig.from_dict(plan['model']) == replace(elmo_configs['medium'], bias=True)
    assert plan['settings']['epochs'] == 1
    assert plan['settings']['lr'] == RECIPES['wikitext2']['lr']
    assert planned('toy', optimizer='adagrad')[0].lr == .2 and planned('wikitext2')[0].dropout == .1

def test_a_file_s_dropout_comes_before_a_recipe_s():
    def shape(dropout):
        settings = settings_for('toy', dict(config=dict(dropout=dropout)))
        return script.shape(script.complete('toy', settings))
    assert shape(.15).dropout == .15
    with pytest.raises(CommandError, match='dropout'): shape(3)

SMALL = ['--model', 'tiny', '--bs', '2', '--seq-len', '8']
CASES = dict(
    files=['my/train.txt', '--valid', 'my/valid.txt', '--tokenizer', 'space', *SMALL, '--epochs',
           '1', '--wd', '0', '--seed', '3'],
    named=['tiny_shakespeare', '--data', 'data'],
    changed=['tiny_shakespeare', '--data', 'data', '--model', 'tiny', '--max-vocab', '40',
             '--carry', '--patience', '2'],
    timed=['my', *SMALL, '--time', '40s'],
    adagrad=['my', *SMALL, '--epochs', '1', '--optimizer', 'adagrad'])

@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_one_file_repeats_a_training(text, monkeypatch, capsys, case, steps_for_seconds):
    "The same bits, from the file alone"
    config = dict(dropout=.2, filters=((1, 8), (2, 8)))
    recipe = dict(model='tiny', epochs=1, bs=2, seq_len=8, config=config)
    monkeypatch.setitem(RECIPES, 'tiny_shakespeare', recipe)
    (text/'data').mkdir()
    shutil.copy(text/'tr.txt', text/'data'/'input.txt')
    monkeypatch.chdir(text)
    assert ran(capsys, *CASES[case], '--out', 'a', '--device', 'cpu', '--no-bf16')[0] == 0
    found = toml_of('a')
    assert not {'out', 'overwrite', 'resume', 'dry'} & set(found)
    assert found['bf16'] is False and found['model'] == 'tiny'
    assert ('epochs' in found) == (case != 'timed')
    # a later version may train otherwise
    monkeypatch.setitem(RECIPES, 'tiny_shakespeare', dict(model='tiny', epochs=2))
    monkeypatch.chdir(text/'my')
    again = '--config', text/'a'/'run.toml', '--out', text/'b', '--device', 'cpu'
    code, _, err = ran(capsys, *again)
    assert code == 0, err
    assert alike(text/'a', text/'b') and toml_of(text/'b') == found
    assert (text/'a'/'config.json').read_bytes() == (text/'b'/'config.json').read_bytes()

def test_the_file_of_a_resumed_training(text):
    interrupted_at(9, str(text/'my'), text/'m', **QUIET)
    resumed, whole = going_on(None, text/'m.run'), train(str(text/'my'), text/'n', **QUIET)
    assert toml_of(text/'m.interrupted') == toml_of(resumed) == toml_of(whole)

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

# what can't be

def check_refused(capsys, folder, args, says, code=2):
    "The command ends with one line, and writes nothing"
    before = listing(folder)
    found, _, err = ran(capsys, *args)
    assert found == code and len(err.strip().splitlines()) == 1, err
    assert err.startswith('elmo_pretrain: ') and re.search(says, err), err
    assert listing(folder) == before

@pytest.mark.parametrize('content,says', [
    ('epoch = 3', "no setting 'epoch'"),
    ('epochs = "3"', 'epochs must be a whole number'),
    ('epochs = 0', '--epochs must be at least 1'),
    ('corpus = "toy"\n[config]\ndrop_out = 0.1', "'drop_out'.*dropout"),
    ('corpus = "toy"\n[config]\ndropout = 3', 'dropout'), ('config = "other.toml"', 'table'),
    ('x', 'TOML'), ('time = "15"', 'such as 15m'), ('epochs = 3\ntime = "15m"', '--time')], ids=str)
def test_files_that_can_not_be(tmp_path, monkeypatch, capsys, content, says):
    monkeypatch.chdir(tmp_path)
    # with few sentences: the model's settings are known after the text
    (tmp_path/'run.toml').write_text('sentences = 99\n'*('[config]' in content) + content)
    names = [] if 'corpus' in content else ['toy']
    check_refused(capsys, tmp_path, [*names, '--config', 'run.toml'], says)

@pytest.mark.parametrize('args,says', [
    ('toy --batch_size 3', 'no option --batch-size'),
    ('toy --epoch-s 3', 'no option --epoch-s'),
    ('toy --epochs x', "invalid int value: 'x'"),
    ('toy --time 15', '--time must be a time such as 15m'),
    ('toy --time 15m --epochs 2', '--time and --epochs'),
    ('toy --every x', '--every must be a time'), ('toy --out m b.txt', "file or folder 'toy'"),
    ('', 'name a corpus'), ('toy --kind paragraphs', 'sentences'),
    ('tinyshakespeare', 'names are toy, tiny_shakespeare'), ('ud:vi_vtb', "no file or folder 'ud:vi_vtb'"),
    ('toy --valid t.txt', '--valid does not go'), ('t.txt --data .', '--data does not go'),
    ('t.txt --sep ;', 'no option --sep'), ('t.txt --valid-rows 9', '--valid-rows goes with --stream'),
    ('t.txt --device xyz', "device 'xyz'"), ('toy --from none', 'no folder'),
    ('t.txt --out t.txt', '--out'), ('t.txt --out t.txt/m', '--out'),
    ('t.txt --out .', '--out')], ids=str)
def test_options_that_can_not_be(tmp_path, monkeypatch, capsys, args, says):
    "What is an argument in Python is an option here"
    monkeypatch.chdir(tmp_path)
    (tmp_path/'t.txt').write_text(RIVER)
    check_refused(capsys, tmp_path, args.split(), says)

def test_a_place_is_looked_at_before_the_text(text, monkeypatch, capsys):
    monkeypatch.chdir(text)
    monkeypatch.setattr(script, 'text_of', lambda *args: 1/0)
    check_refused(capsys, text, ['tr.txt', '--out', 'tr.txt'], '--out')

WRONG = {
    'one.txt': ('one line only', "can't be split"), 'short.txt': (RIVER[:96], 'bs|seq_len|more text'),
    'latin.txt': ('caf\xe9 au lait\n'*300, 'latin.txt is not UTF-8: its byte 3 is 0xe9'),
    'a.csv': ('n,body\n1,a\n', r"the columns are 'n', 'body': say text_col=… \(--text-col\)"),
    'a.conll': ('X a\n', r"--token-col.*its first line is 0 = 'X', 1 = 'a'"),
    'a.docx': ('a', 'a.docx can.t be read.*pass the DataFrame'),
    'a.html': ('<html>', 'a.html can.t be read'),
    'no/such/file.txt': (None, r"no file.*no/such/file\.txt"),
    'toyy': (None, "'toyy'.*toy, tiny_shakespeare")}

@pytest.mark.parametrize('name', WRONG)
def test_wrong_input(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    content, says = WRONG[name]
    if content: (tmp_path/name).write_text(content, encoding='latin-1')
    check_refused(capsys, tmp_path, [name, '--out', 'm'], says)

def test_why_a_device_can_not_be_used(corpus, tmp_path):
    "The library's own words, and a bug that is none of the device's"
    with pytest.raises(CommandError, match='xyz') as e: train(corpus, tmp_path/'m', device='xyz')
    assert str(e.value.__cause__).splitlines()[0][:40] in str(e.value)

def test_overwrite_replaces(corpus, tmp_path):
    old = train(corpus, tmp_path/'m', bs=200, min_freq=10)
    words = len(load_bilm(old)[1])
    with pytest.raises(CommandError, match='--overwrite'): train(corpus, tmp_path/'m', bs=200)
    assert len(load_bilm(old)[1]) == words
    new = train(corpus, tmp_path/'m', bs=200, overwrite=True)
    assert new == old and len(load_bilm(new)[1]) > words and visible(tmp_path) == ['m']

# the command, in a process of its own

root = Path(elmo_fastai.__file__).resolve().parent.parent

def start(folder, *args, module=False):
    "The command in `folder`, without a network and without local copies; output goes to files"
    launcher = folder/'.elmo_pretrain.py'
    # what pip makes of an entry point
    launcher.write_text('from elmo_fastai.train.command import elmo_pretrain\nelmo_pretrain()\n')
    env = {k:v for k,v in os.environ.items() if k != 'ELMO_FASTAI_DATA'}
    proxies = 'http_proxy', 'https_proxy', 'HTTP_PROXY', 'HTTPS_PROXY'
    caches = 'XDG_CACHE_HOME', 'HF_HOME', 'MPLCONFIGDIR'
    env |= dict.fromkeys(proxies, 'http://127.0.0.1:9') | dict.fromkeys(caches, f'{folder}/.cache')
    env.update(PYTHONPATH=os.pathsep.join([str(root), env.get('PYTHONPATH', '')]), MPLBACKEND='agg',
               OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', PYTHONUNBUFFERED='1', COLUMNS='200')
    cmd = [sys.executable, *(['-m', 'elmo_fastai.train.command'] if module else [launcher])]
    out, err = (folder/'.out').open('w'), (folder/'.err').open('w')
    return subprocess.Popen(
        [*map(str, cmd), *map(str, args)], cwd=folder, env=env, stdout=out, stderr=err,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

def visible(folder):
    names = [path.name for path in folder.iterdir() if path.suffix != '.txt']
    return sorted(name for name in names if not name.startswith('.') or name.startswith('.m'))

TEXT = ['text.txt', '--out', 'm', '--model', 'tiny', '--bs', '8', '--seq-len', '16', '--epochs']
PROCESSES = dict(
    SIGINT=([*TEXT, '1000'], dict(signal=signal.SIGINT)), whole=([*TEXT, '1'], dict(module=True)),
    NaN=([*TEXT, '1', '--lr', '1e30', '--overwrite'], dict(model=True)),
    KILL=([*TEXT, '1', '--every', '0.006s'], dict(kill=True)), help=(['--help'], {}),
    download=(['tiny_shakespeare', *TEXT[1:], '1'], {}))

@pytest.fixture(scope='module')
def processes(tmp_path_factory, corpus):
    "Runs of the command, each made when a test asks for it: name → (folder, exit status)"
    base = tmp_path_factory.mktemp('command')
    # a small model that is in the way
    model = train(corpus, base/'model', config=None, epochs=1, bs=200, min_freq=10)
    def waits_for_a_row(folder, process):
        deadline = time.monotonic() + 300
        while (not re.search(r'^0 ', said(folder)[0], re.M) and process.poll() is None
               and time.monotonic() < deadline):
            time.sleep(.1)
    def run(name, args, kw):
        folder = base/name
        folder.mkdir()
        (folder/'text.txt').write_text('\n'.join(corpus.train) + '\n')
        if kw.get('model'): shutil.copytree(model, folder/'m')
        process = start(folder, *args, module=kw.get('module', False))
        try:
            if kw.get('kill'):
                while not list(folder.glob('m.run/0*-epoch1-batch*')) and process.poll() is None:
                    time.sleep(.02)
                process.kill()
            if 'signal' in kw:
                waits_for_a_row(folder, process)
                process.send_signal(kw['signal'])
            return folder, process.wait(timeout=500)
        finally: process.kill()
    class Runs(dict):
        def __missing__(self, name): return self.setdefault(name, run(name, *PROCESSES[name]))
    return Runs()

def one_message(folder):
    "What stands on stderr: one line, for people"
    err = said(folder)[1]
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith('elmo_pretrain: '), err
    assert 'Traceback' not in err and 'Warning' not in err, err
    return lines[0]

def test_no_network(processes):
    folder, status = processes['download']
    says = "can't download tiny_shakespeare.*network.*ELMO_FASTAI_DATA"
    message = one_message(folder)
    assert status == 1 and re.search(says, message), message
    assert 'm' not in visible(folder) and not list(folder.rglob('*.safetensors'))

def test_help(processes):
    "One page: what each option is, all corpora, and examples that can be typed"
    folder, status = processes['help']
    page, err = said(folder)
    assert status == 0 and not err and ', '.join(CORPORA) in ' '.join(page.split())
    options = {option_name(field) for field in fields(Settings)} - {'--corpus', '[config]'}
    for option in (*options, '--config FILE'):
        assert re.search(rf'^  {option}\b', page, re.M), option
    for size in elmo_configs: assert size in page
    for example in re.findall('^  elmo_pretrain (.*?)  ', page, re.M):
        assert command.command_line().parse(example.split())

def test_a_whole_run(processes):
    folder, status = processes['whole']
    out, err = said(folder)
    assert status == 0 and not err.strip(), err
    report, *_ = check_folder(folder/'m', senses=False)
    for name,value in dict(status='complete', corpus='text', model='tiny').items():
        assert report[name] == value
    for part in (*TABLE, 'next', 'm/', f"{report['perplexity_mean']:.2f}"): assert part in out
    assert visible(folder) == ['m']

@pytest.mark.slow
def test_a_loss_that_is_not_a_number(processes):
    folder, status = processes['NaN']
    message = one_message(folder)
    assert status == 1
    for part in ('nan', 'lower learning rate', 'm.interrupted'): assert part in message
    assert visible(folder) == ['m', 'm.interrupted', 'm.run']
    for file in (folder.parent/'model').iterdir():            # untouched
        assert (folder/'m'/file.name).read_bytes() == file.read_bytes()
    assert finite(load_bilm(folder/'m.interrupted')[0])

@pytest.mark.slow
def test_an_interrupted_process(processes):
    folder, status = processes['SIGINT']
    message = one_message(folder)
    assert status == 130
    for part in ('SIGINT', 'm.interrupted', '--resume m.run'): assert part in message
    assert visible(folder) == ['m.interrupted', 'm.run']
    report, model, _ = check_folder(folder/'m.interrupted', senses=False)
    assert 'SIGINT' in report['status'] and report['steps'] >= 1 and finite(model)

@pytest.mark.slow
def test_a_killed_process_goes_on(processes):
    "SIGKILL, then the same weights as those of the undisturbed process"
    folder, status = processes['KILL']
    assert status == -signal.SIGKILL and visible(folder) == ['m.run']
    told = []
    assert pretrain(resume=folder/'m.run', say=told.append) == folder/'m'
    assert any('Going on from epoch 1 of 1, batch' in line for line in told)
    assert weights(folder/'m') == weights(processes['whole'][0]/'m')
    assert visible(folder) == ['m']

def test_the_entry_point_exists():
    settings = ConfigParser(delimiters=['='])
    settings.read(Path(__file__).parent.parent/'settings.ini', encoding='utf-8')
    for line in settings['DEFAULT']['console_scripts'].split():
        name, _, where = line.partition('=')
        module, _, function = where.partition(':')
        assert callable(getattr(import_module(module), function)) and name == function

def test_help_and_errors_come_at_once(tmp_path):
    "They need no torch"
    program = (
        "import sys; from elmo_fastai.train.command import elmo_pretrain\n"
        "for args in (['--help'], ['toy', '--epoch', 'x'], ['toy', '--epochs', '0']):\n"
        "    try: elmo_pretrain(args)\n"
        "    except SystemExit: pass\n"
        "print({'torch', 'fastai', 'matplotlib', 'sklearn', 'pandas'} & sys.modules.keys())")
    p = subprocess.run([sys.executable, '-c', program], cwd=tmp_path, capture_output=True,
                       encoding='utf-8', env={**os.environ, 'PYTHONPATH': str(root)})
    assert p.returncode == 0 and p.stdout.splitlines()[-1] == 'set()', p.stderr
    assert '--epochs must be at least 1' in p.stderr
