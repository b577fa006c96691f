"`make test` runs everything and says what failed; `make robust` changes what it says it changes"
import json, os, re, subprocess, sys

import pytest

import leftovers, robust, run as make_test

pytestmark = pytest.mark.slow

# make test

def test_every_step_runs_and_the_end_says_what_failed(capsys):
    ran = []
    def step(name, *failed): return lambda: ran.append(name) or [*failed]
    steps = dict(notebooks=step(1, '12b_neighbours.ipynb'), README=step(2),
                 tests=step(3, 'tests/test_x.py::test_y'))
    assert make_test.main(steps) == 1 and ran == [1, 2, 3]
    said = re.sub(r' \(.*?of processor\)', '', capsys.readouterr().out).split()
    assert said == ('notebooks: failed 12b_neighbours.ipynb README: passed tests: failed '
                    'tests/test_x.py::test_y').split()
    assert make_test.main(dict(a=lambda: [], b=lambda: [])) == 0

NBDEV = ('AssertionError\n\nnbdev Tests Failed On The Following Notebooks:\n====\n'
         '\t05_recurrence.ipynb\n\t12b_neighbours.ipynb\n')
PYTEST = ('FAILED tests/test_tagger.py::test_a[x-1] - assert 1 == 2\n'
          'ERROR tests/test_toy.py - SyntaxError\n2 failed, 3 passed in 1.2s\n')

def test_names_of_what_failed():
    assert make_test.failures(1, NBDEV) == ['05_recurrence.ipynb', '12b_neighbours.ipynb']
    assert make_test.failures(1, PYTEST) == ['tests/test_tagger.py::test_a[x-1]', 'tests/test_toy.py']
    assert make_test.failures(0, PYTEST) == []
    assert make_test.failures(3, 'killed') == ['it ended with exit status 3']

@pytest.mark.parametrize('code,failed', [
    ('print(1)', []), ("print('FAILED tests/a.py::b - c'); " "exit(1)", ['tests/a.py::b']),
    ('exit(7)', ['it ended with exit status 7'])])
def test_a_command_is_shown_and_judged(code, failed, capfd):
    assert make_test.run(sys.executable, '-c', code) == failed
    assert capfd.readouterr().out.startswith(f'\n$ {sys.executable}')

def test_each_worker_computes_with_one_thread(monkeypatch):
    "So that two of them, and whatever else runs, don't wait for each other"
    seen = []
    monkeypatch.setattr(make_test, 'run', lambda *command, **own: seen.append(own) or [])
    make_test.notebooks('nbs/course')
    make_test.tests('not slow')
    make_test.as_on('avx2')
    assert len(seen) == 4 and all(own['OMP_NUM_THREADS'] == '1' for own in seen)

# what a newcomer leaves

def test_what_was_there_stays_and_what_is_made_goes(tmp_path, monkeypatch):
    (tmp_path/'toy').write_text('precious')
    def train(folder, out, stop=False): (folder/(f'{out}.run' if stop else out)).mkdir(parents=True)
    monkeypatch.setattr(leftovers, 'train', train)
    with pytest.raises(ValueError), leftovers.left(tmp_path):
        before = leftovers.state(tmp_path)
        assert {'models', 'toy', 'train'} <= before == leftovers.state(tmp_path)
        assert (tmp_path/'models/x.run').is_dir() and (tmp_path/'models/toy').is_dir()
        (tmp_path/'train'/'b.txt').touch()
        assert len(before ^ leftovers.state(tmp_path)) == 1
        raise ValueError
    assert sorted(f.name for f in tmp_path.rglob('*')) == ['models', 'toy']
    assert (tmp_path/'toy').read_text() == 'precious'

def test_an_interrupted_training_leaves_its_checkpoints(tmp_path):
    leftovers.train(tmp_path, 'x', stop=True)
    assert os.listdir(tmp_path) == ['x.run'] and [*(tmp_path/'x.run').glob('0*.pt')]

# make robust

NUMBERS = """
import json, random, numpy as np, torch
for seed in random.seed, np.random.seed, torch.manual_seed: seed(SEED)      # as fastai's set_seed
print(json.dumps([random.random(), np.random.rand(), torch.rand(1).item(),
    random.Random(SEED).random(), np.random.default_rng(SEED).random(),
                  torch.rand(1, generator=torch.Generator().manual_seed(SEED)).item()]))
print(random.Random('text').random(), torch.cpu._is_avx512_bf16_supported())
"""

def numbers(setting, seed=3):
    p = subprocess.run([sys.executable, '-c', NUMBERS.replace('SEED', str(seed))],
                       env=robust.environment(setting), capture_output=True, text=True)
    assert not p.returncode, p.stderr
    first, second = p.stdout.splitlines()
    text, bf16 = second.split()
    return json.loads(first), float(text), bf16 == 'True'

def test_other_seeds_and_fp32():
    as_is, again, moved, other, fp32 = (
        numbers('as-is'), numbers('as-is', 5), numbers('seeds+2'), numbers('seeds+1'),
        numbers('fp32'))
    assert moved == again and not set(moved[0]) & set(as_is[0])
    assert not set(moved[0]) & set(other[0])
    assert fp32[:2] == as_is[:2] and not fp32[2]

@pytest.mark.parametrize('setting', robust.SETTINGS)
def test_settings(setting):
    env = robust.environment(setting)
    assert all(env[k] == v for k,v in robust.SETTINGS[setting].items())
    assert ('OMP_NUM_THREADS' in env) == (setting != 'as-is') or 'OMP_NUM_THREADS' in os.environ

def test_a_digest_knows_code_from_prose(tmp_path):
    def nb(text, code):
        return json.dumps(dict(cells=[
            dict(cell_type='markdown', source=[text]), dict(cell_type='code', source=[code])]))
    f, found = tmp_path/'a.ipynb', []
    for o in (nb('one', 'x = 1'), nb('two', 'x = 1'), nb('two', 'x = 2')):
        f.write_text(o)
        found.append(robust.digest(f))
    assert found[0] == found[1] != found[2]

def test_a_digest_knows_what_is_imported(tmp_path, monkeypatch):
    "A module that is read counts, by whatever way it is reached; its neighbour does not"
    monkeypatch.setattr(robust, 'root', tmp_path)
    house = {'all': 'from .nn.one import a', 'nn/one': 'def a():\n    from ..base import files',
             'base/__init__': '', 'base/files': 'x = 1', 'nn/two': 'y = 1'}
    for name, text in house.items():
        f = tmp_path/'elmo_fastai'/f'{name}.py'
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(text)
    (nb := tmp_path/'a.ipynb').write_text(json.dumps(dict(cells=[dict(
        cell_type='code', source=['%pylab\n', 'from elmo_fastai.all import *'])])))
    assert {o.stem for o in robust.needed(nb)} == {'a', 'all', 'one', '__init__', 'files'}
    first = robust.digest(nb)
    (tmp_path/'elmo_fastai'/'nn'/'two.py').write_text('y = 2')
    assert robust.digest(nb) == first
    (tmp_path/'elmo_fastai'/'base'/'files.py').write_text('x = 2')
    assert robust.digest(nb) != first

TRAINS = '# model' + '.fit'      # in one piece it would stand here, and this file trains nothing

def test_robust_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    """With files of its own: what passed is not run again, what was changed is, and the table
    says what failed"""
    (tmp_path/'tests'/'startup').mkdir(parents=True)
    (tmp_path/'tests'/'startup'/'sitecustomize.py').touch()
    for name, value in dict(test_good=1, test_bad=2).items():
        (tmp_path/'tests'/f'{name}.py').write_text(
            f'def test_one(): assert {value} == 1      ' f'{TRAINS}')
    # trains nothing
    (tmp_path/'tests'/'test_other.py').write_text('def test_one(): assert False')
    monkeypatch.setattr(robust, 'root', tmp_path)
    def call(*args):
        monkeypatch.setattr(sys, 'argv', ['robust.py', *args])
        with pytest.raises(SystemExit) as e: robust.main()
        return e.value.code, capsys.readouterr().out
    code, said = call('--settings', 'fp32', 'seeds+9')
    assert code and said.startswith('4 runs')
    assert re.search(r'\| seeds\+9 \| 0 \| 2 \| \d+ \| tests/test_bad.py::test_one \|', said)
    assert call('--settings', 'fp32')[1].startswith('0 runs')
    (tmp_path/'tests'/'test_bad.py').write_text(f'def test_one(): assert 1 == 1      {TRAINS}')
    code, said = call('--settings', 'fp32')
    assert not code and said.startswith('1 runs')
    assert re.search(r'\| fp32 \| 0 \| 2 \| \d+ \| nothing \|', said)
    assert call('--settings', 'fp32', '--only', 'test_good', '--again')[1].startswith('1 runs')

@pytest.mark.parametrize('args,message', [
    (['--settings', 'fp16'], 'no such setting: fp16'),
    (['--only', '12_nothing'], 'no notebook or training test: 12_nothing')])
def test_robust_refuses_what_is_not_there(args, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['robust.py', *args])
    with pytest.raises(SystemExit): robust.main()
    assert message in capsys.readouterr().err
