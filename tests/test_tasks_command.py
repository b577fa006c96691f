"elmo_task: from training to an annotated file, wrong options, an interruption"
import json, os, signal, subprocess, sys
from pathlib import Path

import pytest

from elmo_fastai.tasks.annotate import Portions
from elmo_fastai.tasks.command import elmo_task
from elmo_fastai.tasks.folder import load_task, save_task
from test_annotate import ROWS, TAGGED, make_classifier, make_elmo

# the command

@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_elmo().save_pretrained('bilm')
    sents = ['\n'.join(f'{token} {tag}' for token,tag in zip(*sent)) for sent in TAGGED]
    Path('train.conll').write_text('\n\n'.join(sents))
    Path('train.csv').write_text('\n'.join(['text,label', *map(','.join, ROWS)]))
    return tmp_path

def command(capsys, *args):
    "(exit status, what stands on stdout, on stderr)"
    code = 0
    try: elmo_task([*map(str, args)])
    except SystemExit as e: code = e.code
    out, err = capsys.readouterr()
    return code, out, err

TRAIN = ['--model', 'bilm', '--epochs', 1, '--device', 'cpu', '--threads', 1]

def test_from_training_to_a_file(place, capsys):
    code, out, err = command(capsys, 'tag', 'train', 'train.conll', '--out', 'm', *TRAIN)
    assert (code, err) == (0, '') and 'elmo_task tag report' in out and 'train_loss' in out
    code, out, err = command(capsys, 'tag', 'report', 'train.conll', '--model', 'm', '--json',
                             'r.json', '--device', 'cpu')
    assert code == 0 and 'accuracy' in out, err
    assert json.loads(Path('r.json').read_text())['n'] == len(TAGGED) or 'figures' in json.loads(
        Path('r.json').read_text())
    Path('new.txt').write_text('Bob saw Paris\n')
    code, out, err = command(capsys, 'tag', 'annotate', 'new.txt', '--model', 'm', '--out',
                             'new.jsonl', '--device', 'cpu')
    assert (code, err) == (0, '') and 'spans' in Path('new.jsonl').read_text()
    again = load_task('m', 'cpu')
    assert again.tag(['Bob saw Paris'], as_spans=True)[0] == json.loads(
        Path('new.jsonl').read_text())['spans']

def test_a_classifier_and_a_file_of_settings(place, capsys):
    Path('run.toml').write_text('source = "train.csv"\nepochs = 7\nlr = 0.01\n')
    code, out, err = command(capsys, 'classify', 'train', '--config', 'run.toml', '--out', 'm',
                             *TRAIN)
    assert (code, err) == (0, '')
    kept = Path('m/run.toml').read_text()
    assert 'epochs = 1\n' in kept and 'lr = 0.01\n' in kept and 'train.csv' in kept
    code, out, err = command(capsys, 'classify', 'train', '--config', 'm/run.toml', '--out', 'm',
                             *TRAIN)
    assert code == 2 and '--overwrite' in err
    code, out, err = command(capsys, 'classify', 'annotate', 'train.csv', '--model', 'm', '--out',
                             'new.csv', '--name', 'guess', '--device', 'cpu')
    assert code == 0 and Path('new.csv').read_text().startswith('text,label,guess,probability\n')
    code, out, err = command(capsys, 'tag', 'report', 'train.conll', '--model', 'm')
    assert code == 2 and 'say elmo_task classify' in err

WRONG = [
    (['tga', 'train'], 'did you mean tag'), (['tag', 'trian'], 'did you mean train'),
    (['tag'], 'expected train or report or annotate'),
    (['tag', 'train', 'train.conll'], '--out is missing'),
    (['tag', 'train', '--out', 'm'], 'INPUT is missing'),
    (['tag', 'annotate', 'train.conll', '--out', 'a.conll'], '--model is missing'),
    (['tag', 'train', 'train.conll', '--out', 'm', '--epoch', 'x'], 'epoch'),
    (['tag', 'train', 'train.conll', '--out', 'm', '--lr', '-1'], '--lr must be'),
    (['tag', 'train', 'train.conll', '--out', 'm', '--label-col', '1'], 'no option --label-col'),
    (['tag', 'train', 'train.conll', '--out', 'm', '--threads', '0'], '--threads must be'),
    (['tag', 'train', 'train.conll', '--out', 'train.csv/m', *TRAIN], "Can't write into"),
    (['tag', 'train', 'train.conll', '--out', 'm', '--config', 'no.toml'], 'no.toml'),
]

@pytest.mark.parametrize('args,says', WRONG, ids=str)
def test_wrong_usage_is_one_line_and_2(place, capsys, args, says):
    code, out, err = command(capsys, *args)
    assert code == 2 and says in err and len(err.strip().splitlines()) == 1, err
    assert not Path('m').exists()

def test_places_are_looked_at_first(place, capsys, monkeypatch):
    monkeypatch.setattr('elmo_fastai.tasks.folder.load_for', lambda *args: 1/0)
    code, _, err = command(capsys, 'tag', 'report', 'x', '--model', 'm', '--json', 'none/r.json')
    assert code == 2 and "Can't write" in err
    monkeypatch.setattr('elmo_fastai.tasks.folder.load_elmo', lambda *args: 1/0)
    code, _, err = command(capsys, 'tag', 'train', 'x', '--out', 'train.csv', *TRAIN)
    assert code == 2 and 'not a model of ours' in err

def test_other_errors_are_1(place, capsys):
    Path('bad.conll').write_text('a B\nc\n')
    code, _, err = command(capsys, 'tag', 'train', 'bad.conll', '--out', 'm', *TRAIN)
    assert code == 1 and 'line 2: expected 2 columns' in err

def test_an_interruption_is_told(place, capsys, monkeypatch):
    save_task(make_classifier(), 'm')
    Path('in.txt').write_text('\n'.join(['the film was nice .']*8000))
    args = 'classify', 'annotate', 'in.txt', '--model', 'm', '--device', 'cpu', '--out'
    code, _, _ = command(capsys, *args, 'whole.jsonl')
    assert code == 0
    add = Portions.add
    def add_and_stop(self, *values, **counts):
        add(self, *values, **counts)
        signal.raise_signal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(Portions, 'add', add_and_stop)
        code, _, err = command(capsys, *args, 'out.jsonl')
    assert code == 130 and 'goes on from there' in err and not Path('out.jsonl').exists()
    code, out, _ = command(capsys, *args, 'out.jsonl')
    assert code == 0 and 'Going on after' in out
    assert Path('out.jsonl').read_bytes() == Path('whole.jsonl').read_bytes()

def test_help_is_light():
    root = Path(__file__).resolve().parents[1]
    script = ("import sys; from elmo_fastai.tasks.command import elmo_task\n"
              "try: elmo_task(sys.argv[1:])\n"
              "finally: print({'torch', 'fastai', 'pandas'} & {*sys.modules})")
    for args in (['--help'], ['tag', 'train', '--help'], ['classify', 'report', '--help']):
        run = subprocess.run([sys.executable, '-c', script, *args], capture_output=True,
                             encoding='utf-8', env={**os.environ, 'PYTHONPATH': str(root)})
        assert run.returncode == 0 and run.stdout.startswith('usage: elmo_task'), run.stderr
        assert run.stdout.endswith('set()\n')


@pytest.mark.parametrize('args,says', [
    (['tag', 'train', 'toy', '--valid', 'none.conllu'], 'none.conllu'),
    (['tag', 'train', 'toy', '--tag-col', 'xpos'], '--tag-col does not go with the corpus toy'),
    (['classify', 'train', 'toy', '--sep', ';'], '--sep does not go with the corpus toy'),
    (['tag', 'train', 'none.conllu'], 'no file or folder'),
    (['tag', 'train', 'no*.conllu'], 'no file matches'),
    (['tag', 'train', 'ud:xx_none'], 'unknown treebank'),
    (['tag', 'train', 'train.conll', '--tag-col', 'none'], 'none'),
    (['classify', 'train', 'train.csv', '--label-col', 'none'], "no column 'none'"),
    (['classify', 'train', 'toy', '--valid', 'none.csv'], 'none.csv')], ids=str)
def test_what_can_not_be_meant_ends_with_2(place, capsys, args, says):
    code, out, err = command(capsys, *args, '--out', 'm', *TRAIN)
    assert (code, len(err.strip().splitlines())) == (2, 1) and says in err, err
    assert not Path('m').exists()

def test_flags_get_their_names_as_the_message_says(place, capsys):
    rows = [f'{text},{first} {1 - first} 1' for i,(text,_) in enumerate(ROWS) for first in [i % 2]]
    Path('flags.csv').write_text('\n'.join(['text,label', *rows]))
    train = ['classify', 'train', 'flags.csv', '--out', 'flags', *TRAIN]
    code, out, err = command(capsys, *train)
    assert code and 'label_names' in err and not Path('flags').exists()
    code, out, err = command(capsys, *train, '--label-names', 'odd,even,any')
    assert (code, err) == (0, '')
    assert 'label_names = ["odd", "even", "any"]' in Path('flags/run.toml').read_text()
    report = ['classify', 'report', 'flags.csv', '--model', 'flags', '--device', 'cpu']
    code, out, err = command(capsys, *report, '--label-names', 'odd,even,any')
    assert code == 0 and all(name in out for name in ('odd', 'even', 'any')), err
    code, out, err = command(capsys, *train[:3], '--out', 'rows', *TRAIN, '--kind', 'class')
    assert code == 0 and "'1 0 1'" in out

def test_columns_of_flags_are_named_with_commas(place, capsys):
    rows = [f'{text},{i % 2},{1 - i % 2}' for i,(text,_) in enumerate(ROWS)]
    Path('columns.csv').write_text('\n'.join(['text,odd,even', *rows]))
    code, out, err = command(capsys, 'classify', 'train', 'columns.csv', '--out', 'm', *TRAIN,
                             '--label-col', 'odd,even')
    assert (code, err) == (0, '') and [*load_task('m', 'cpu').dls.vocab] == ['odd', 'even']
    code, out, err = command(capsys, 'classify', 'train', 'columns.csv', '--out', 'n', *TRAIN,
                             '--label-col', '1')
    assert (code, err) == (0, '') and [*load_task('n', 'cpu').dls.vocab] == ['0', '1']

@pytest.mark.parametrize('task, file', [('tag', 'train.conll'), ('classify', 'train.csv')])
def test_a_share_and_a_seed_of_what_validates(task, file, place, capsys):
    train = [task, 'train', file, *TRAIN]
    code, out, err = command(capsys, *train, '--out', 'm', '--valid-pct', .5, '--split-seed', 3)
    assert (code, err) == (0, '') and 'held out at random 50%' in out
    assert 'valid_pct = 0.5\n' in Path('m/run.toml').read_text()
    code, out, err = command(capsys, *train, '--out', 'n', '--valid-pct', 1)
    assert code == 2 and '--valid-pct' in err and not Path('n').exists()
    code, out, err = command(capsys, *train, '--out', 'n', '--valid', file, '--valid-pct', .5)
    assert code == 2 and '--valid-pct' in err
