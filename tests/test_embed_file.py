"Files of vectors and the command elmo_embed: layout, left-out rows, kills, damage, wrong input"
import json, os, re, subprocess, sys
from pathlib import Path

import h5py, numpy as np, pandas as pd, pytest

import elmo_fastai
from elmo_fastai.practice import embed as module
from elmo_fastai.practice.command import elmo_embed
from elmo_fastai.practice.embed import embed_file
from elmo_fastai.practice.files import lock_folder
from elmo_fastai.text.tokenizers import word_tokenize
from made import close, direct, forks, lasting, posix, same

class Unplugged(BaseException): pass

@pytest.fixture()
def elmo(): return lasting()

@pytest.fixture()
def folder(tmp_path, texts):
    "The working folder, with a text and a model"
    Path('in.txt').write_text('\n'.join([*texts[:30], '', texts[0]]) + '\n', encoding='utf-8')
    lasting().save_pretrained('m')
    return tmp_path

def run(out, elmo, source='in.txt', **kw): return embed_file(source, out, elmo, say=str, **kw)

def read(out):
    with h5py.File(out) as f: return {name: f[name][:] for name in f if name.isdecimal()}

def names(folder='.'): return sorted(f.name for f in Path(folder).iterdir())

def contents(folder):
    return {str(f): f.read_bytes() for f in Path(folder).rglob('*') if f.is_file()}

def stop_after(monkeypatch, n, error=Unplugged):
    "Let a job die when `n` portions are written"
    save, done = module.save_portion, []
    def save_and_stop(*args):
        save(*args)
        done.append(args)
        if len(done) == n: raise error
    monkeypatch.setattr(module, 'save_portion', save_and_stop)
    return done

def stopped(monkeypatch, n, out, elmo, **kw):
    with monkeypatch.context() as m, pytest.raises(Unplugged):
        stop_after(m, n)
        run(out, elmo, **{**dict(budget=8), **kw})
    return contents(f'{out}.part')

# what is written

def test_hdf5_is_laid_out_as_allennlps(elmo, texts, folder):
    assert run('o.hdf5', elmo)['lines'] == 32 and names() == ['in.txt', 'm', 'o.hdf5']
    with h5py.File('o.hdf5') as f:
        assert [*f] == [*map(str, range(32)), 'sentence_to_index']
        for i,text in enumerate(texts[:30]):
            assert f[str(i)].dtype == np.float32
            assert close(f[str(i)][:], direct(elmo, word_tokenize(text)))
        assert f['30'].shape == (3, 0, 16) and f['sentence_to_index'].shape == (1,)
        index = json.loads(f['sentence_to_index'][0])
        assert index[texts[0]] == '31' and index[texts[1]] == '1' and index[''] == '30'
        assert json.loads(f.attrs['elmo_fastai'])['layers'] == 'all'

@pytest.mark.parametrize('layers,pool,dtype', [
    ('all', None, 'float16'), (1, None, 'float32'), ('all', 'mean', 'float32'),
    ('mix', 'max', 'float16'), (-1, 'first_last', 'float32')], ids=str)
@pytest.mark.parametrize('kind', ['hdf5', 'npz'])
def test_kinds_of_files(elmo, texts, folder, kind, layers, pool, dtype):
    out, how = f'o.{kind}', dict(layers=layers, pool=pool, dtype=dtype)
    if kind == 'npz' and not pool:
        with pytest.raises(ValueError, match='--pool'): run(out, elmo, **how)
        return
    run(out, elmo, budget=64, **how)
    ref = elmo.embed([*texts[:30], '', texts[0]], **how)
    if kind == 'hdf5': found = map(read(out).get, map(str, range(32)))
    else:
        with np.load(out) as f: found, lines = f['vectors'], f['lines']
        assert lines.tolist() == [*range(32)]
    found = list(found)
    assert same(found, ref, 5e-3 if dtype == 'float16' else 1e-5) and found[0].dtype == ref[0].dtype

def test_rows_without_text(folder):
    "They are left out, also where a whole portion has none; the others stay in their places"
    rows = [None, 'good', *[None]*30, '', 'last']
    result = run('o.h5', lasting(), pd.DataFrame(dict(text=rows)), budget=3)
    assert result['failed'] == [0, *range(2, 32)] and result['lines'] == 3
    assert {*read('o.h5')} == {'1', '32', '33'} and names() == ['in.txt', 'm', 'o.h5']

def test_vectors_that_are_not_finite_are_refused(elmo, folder, monkeypatch):
    monkeypatch.setattr(module, 'embed_window', lambda elmo, sents, **kw: [np.full(3, np.inf)])
    with pytest.raises(ValueError, match='--dtype'): run('o.h5', elmo, dtype='float16')

WRONG = dict(           # what is said, what the error says
    missing=(dict(source='no.txt'), 'no file'), ending=(dict(out='o.parquet'), 'should end in'),
    outfolder=(dict(out='d.hdf5', overwrite=True), 'exists already'),
    exists=(dict(out='there.hdf5'), '--overwrite'), under=(dict(out='in.txt/o.h5'), 'in.txt'),
    conll=(dict(source='a.conll'), 'first line'), pool=(dict(pool='x'), 'pool'),
    nothing=(dict(source=pd.DataFrame(dict(text=[None, None]))), 'not one'),
    foreign=(dict(out='f.h5', overwrite=True), 'not of a job'),
    file=(dict(out='g.h5'), 'g.h5.part'))

@pytest.mark.parametrize('name', WRONG)
def test_wrong_input_changes_nothing(elmo, folder, name):
    for file in ('a.conll', 'there.hdf5', 'g.h5.part'): Path(file).write_text('a X\n')
    for file in ('d.hdf5', 'f.h5.part'):
        Path(file).mkdir()
        (Path(file)/'000000000.npz').write_text('precious')
    before = contents('.')
    kw, says = WRONG[name]
    with pytest.raises((ValueError, OSError), match=says):
        run(**dict(out='o.h5', elmo=elmo) | kw)
    assert contents('.') == before

# jobs that die

def test_goes_on_where_it_stopped(elmo, texts, folder, monkeypatch):
    "Also with another budget; no line is embedded twice"
    run('ref.h5', elmo)
    embedded, window = [], module.embed_window
    def noted(elmo, sents, **kw): return embedded.extend(sents) or window(elmo, sents, **kw)
    monkeypatch.setattr(module, 'embed_window', noted)
    for n,budget in ((3, 3), (1, 16), (2, 3)): stopped(monkeypatch, n, 'o.h5', elmo, budget=budget)
    said = []
    Path('o.h5.part/.notes.part').write_text('of somebody')
    embed_file('in.txt', 'o.h5', elmo, say=said.append)
    assert re.match(r'Going on after \d+ rows', said[0]) and len(embedded) == 32
    assert names() == ['in.txt', 'm', 'o.h5', 'o.h5.part', 'ref.h5']
    assert names('o.h5.part') == ['.notes.part'], 'a foreign file stays'
    found, ref = read('o.h5'), read('ref.h5')
    assert [*found] == [*ref] and same(found.values(), ref.values())

OTHER = dict(           # a change of the job
    model=dict(elmo=lasting(3)), mix=dict(elmo=lasting(gamma=2.)), layers=dict(layers=1),
    pool=dict(pool='mean'), dtype=dict(dtype='float16'), longer=dict(source=[*'abc']*50),
    tokenizer=dict(elmo=lasting(tokenizer='chars')))

@pytest.mark.parametrize('change', OTHER)
def test_another_job_is_not_mixed_in(folder, monkeypatch, change):
    job = dict(elmo=lasting(), source=[*'abc']*49)
    kept = stopped(monkeypatch, 3, 'o.h5', **job)
    other = job | OTHER[change]
    with pytest.raises(ValueError, match='--overwrite'): run('o.h5', **other)
    assert contents('o.h5.part') == kept
    run('o.h5', **other, overwrite=True)
    run('p.h5', **other)
    assert same(read('o.h5').values(), read('p.h5').values(), 0) and not Path('o.h5.part').exists()

def test_an_output_stays_until_the_new_one_is_whole(elmo, folder, monkeypatch):
    "And --overwrite goes on with its own beginning"
    Path('o.h5').write_text('old')
    Path('o.h5').chmod(0o640)
    Path('link.h5').symlink_to('o.h5')
    stopped(monkeypatch, 3, 'link.h5', elmo, overwrite=True, layers=0)
    kept = stopped(monkeypatch, 3, 'link.h5', elmo, overwrite=True)
    with pytest.raises(ValueError, match='--overwrite'): run('link.h5', elmo)
    assert kept.items() < stopped(monkeypatch, 1, 'o.h5', elmo, overwrite=True).items()
    assert Path('o.h5').read_text() == 'old'
    run('link.h5', elmo, overwrite=True)
    assert len(read('o.h5')) == 32 and Path('link.h5').is_symlink()
    assert Path('o.h5').stat().st_mode & 0o777 == 0o640

KILLED = """
import os, signal, sys, h5py, numpy as np, torch
from elmo_fastai.practice import embed, run
from elmo_fastai.practice.command import elmo_embed
torch.set_num_threads(1)
ARGS = '../a.jsonl --model ../m --out o.h5 --device cpu --budget 3'.split()
def job(*args):
    elmo_embed([*ARGS, *args])
def status(n, *args):
    "Of a job that is killed before step `n` of its writing"
    pid = os.fork()
    if pid: return os.waitpid(pid, 0)[1]
    left = iter(range(n))
    def step(function):
        def killed(*args, **kwargs):
            if next(left, None) is None: os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return killed
    for name in ('fsync', 'replace', 'unlink', 'rmdir', 'mkdir'):
        setattr(os, name, step(getattr(os, name)))
    job(*args)
    os._exit(0)
before, step, args = None, 0, sys.argv[1:]
while True:
    if args:                             # an old output, and the beginning of another job
        with h5py.File('o.h5', 'w') as f: f['old'] = 1
        assert status(12, *args, '--layers', '0')
    is_killed = status(step, *args)
    if os.path.exists('o.h5'):          # whole, whenever it is there
        with h5py.File('o.h5') as f: assert len(f) in (1, 10)
        job('--overwrite')
    else: job()
    with h5py.File('o.h5') as f: found = {name: f[name][()].tolist() for name in f}
    assert len(found) == 10 and found == (before or found) and os.listdir('.') == ['o.h5'], step
    before, step = found, step + 1
    os.unlink('o.h5')
    if not is_killed: break
print(step)
"""

@pytest.mark.slow
@forks
@pytest.mark.parametrize('args', [[], ['--overwrite']])
def test_killed_at_every_step(folder, args):
    "kill -9 before each sync, renaming and removal; the next call ends with the same file alone"
    rows = 'a b', 'c', None, 'd e f', 'g', 'a b', '', 'h', 'i j', 'k'
    Path('a.jsonl').write_text('\n'.join(json.dumps(dict(text=text)) for text in rows))
    Path('here').mkdir()
    root = Path(elmo_fastai.__file__).parents[1]
    env = os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(root))
    done = subprocess.run([sys.executable, '-c', KILLED, *args], cwd='here', env=env,
                          capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 25

@pytest.mark.parametrize('damage', ['shorter', 'other bits', 'gone'])
@pytest.mark.parametrize('which', [1, -1])
def test_a_damaged_portion_is_refused(elmo, folder, monkeypatch, damage, which):
    run('ref.h5', elmo)
    stopped(monkeypatch, 3, 'o.h5', elmo)
    file = sorted(Path('o.h5.part').glob('0*.npz'))[which]
    data = bytearray(file.read_bytes())
    data[len(data)//3] ^= 1
    if damage == 'gone': file.unlink()
    else: file.write_bytes(data[:200] if damage == 'shorter' else data)
    if damage != 'gone':
        with pytest.raises(ValueError, match=f'{file.name} is damaged'): run('o.h5', elmo)
        file.unlink()
    run('o.h5', elmo)
    assert same(read('o.h5').values(), read('ref.h5').values())

@posix
@pytest.mark.parametrize('limit', [1000, 9000])
def test_a_full_disk(folder, elmo, capsys, limit):
    "While portions are written, and while the output is"
    import resource
    args = ['in.txt', '--model', 'm', '--out', 'o.h5', '--budget', 8, '--device', 'cpu']
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        status, err = command(capsys, *args)
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert status == 1 and len(err.splitlines()) == 1 and not Path('o.h5').exists(), err
    assert not [*Path().glob('.*.part')] and command(capsys, *args) == (0, '')
    assert len(read('o.h5')) == 32

def test_one_job_a_time(elmo, folder):
    with lock_folder(Path('o.h5.part')), pytest.raises(ValueError, match='another process'):
        run('o.h5', elmo)

# the command

def command(capsys, *args):
    "In this process: (exit status, what stands on stderr)"
    try: elmo_embed([*map(str, args)]); status = 0
    except SystemExit as e: status = e.code
    return status, capsys.readouterr().err

def test_left_out_rows_are_told_briefly(folder, capsys):
    rows = ['{"text": "two\\nlines"}', *['{"text": null}']*30, '{"text": "a"}']
    Path('a.jsonl').write_text('\n'.join(rows))
    status, err = command(capsys, 'a.jsonl', '--model', 'm', '--out', 'o.h5', '--device', 'cpu')
    assert status == 0 and err.count('\n') == 1 and '30 rows have no text' in err
    assert {*read('o.h5')} == {'0', '31'}

@pytest.mark.parametrize('says,args', [
    ('--out', ['in.txt', '--model', 'm']), ('source', ['--model', 'm', '--out', 'o.h5']),
    ('no folder', ['--model', 'nothing']), ('huge', ['--model', 'ai2:huge']),
    ('layers', ['--layers', '7']), ("device 'xyz'", ['--device', 'xyz']),
    ('tokenizer', ['--tokenizer', 'x']), ('--threads', ['--threads', '0']),
    ('--sep', ['--sep', ';']),
    ('budget', ['--budget', 'x']), ('budget', ['--budget', '0'])])
def test_wrong_command_lines(folder, capsys, says, args):
    usual = ['in.txt', '--model', 'm', '--out', 'o.h5', '--device', 'cpu']
    whole = args[0][0] != '-' or says == 'source'
    status, err = command(capsys, *(args if whole else usual + args))
    assert status == 2 and err.startswith('elmo_embed: ') and len(err.splitlines()) == 1, err
    assert says in err and names() == ['in.txt', 'm']

@pytest.mark.parametrize('error,status', [(KeyboardInterrupt(), 130), (MemoryError(), 1)], ids=repr)
def test_errors_in_the_middle(folder, capsys, monkeypatch, error, status):
    "One line each, and the same call goes on"
    args = ['in.txt', '--model', 'm', '--out', 'o.h5', '--device', 'cpu', '--budget', 8]
    with monkeypatch.context() as m:
        stop_after(m, 3, error)
        found, err = command(capsys, *args)
    assert found == status and len(err.splitlines()) == 1, err
    kept = contents('o.h5.part')
    done = stop_after(monkeypatch, 99)
    assert command(capsys, *args) == (0, '')
    assert len(kept) >= 3 and done[0][0].name not in str([*kept])
    assert len(read('o.h5')) == 32
