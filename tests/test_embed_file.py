"Files of vectors and the command elmo_embed: layout, left-out rows, kills, damage, wrong input"
import json, os, re, resource, shutil, signal, subprocess, sys, threading, time
from pathlib import Path
from types import SimpleNamespace

import h5py, numpy as np, pandas as pd, pytest, torch

import elmo_fastai
from elmo_fastai.practice import embed as module
from elmo_fastai.practice.command import elmo_embed
from elmo_fastai.practice.embed import embed_file
from elmo_fastai.practice.files import lock_folder
from elmo_fastai.text.tokenizers import word_tokenize
from made import close, direct, lasting, same

class Unplugged(BaseException): pass

@pytest.fixture()
def elmo(): return lasting()

@pytest.fixture()
def folder(tmp_path, texts, monkeypatch):
    "The working folder, with a text and a model"
    monkeypatch.chdir(tmp_path)
    Path('in.txt').write_text('\n'.join([*texts[:30], '', texts[0]]) + '\n', encoding='utf-8')
    lasting().save_pretrained('m')
    return tmp_path

def run(out, elmo, source='in.txt', **kw): return embed_file(source, out, elmo, say=str, **kw)

def read(out):
    with np.load(out) as f: return {name: f[name] for name in f}

def names(folder='.'): return sorted(f.name for f in Path(folder).iterdir())

def contents(folder): return {str(f): f.read_bytes() for f in Path(folder).rglob('*') if f.is_file()}

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
    ('all', None, 'float32'), (1, None, 'float16'), ('all', 'mean', 'float32'),
    ('mix', 'max', 'float16'), (-1, 'first_last', 'float32')], ids=str)
@pytest.mark.parametrize('kind', ['hdf5', 'npz'])
def test_kinds_of_files(elmo, texts, folder, kind, layers, pool, dtype):
    out = f'o.{kind}'
    run(out, elmo, layers=layers, pool=pool, budget=64, dtype=dtype)
    ref = elmo.embed([*texts[:30], '', texts[0]], layers, pool, dtype=dtype)
    if kind == 'hdf5':
        with h5py.File(out) as f: found = [f[str(i)][:] for i in range(32)]
    elif pool: found, lines = map(read(out).get, ('vectors', 'lines'))
    else: found = [read(out)[str(i)] for i in range(32)]
    assert same(found, ref, 5e-3 if dtype == 'float16' else 1e-5) and found[0].dtype == ref[0].dtype
    assert kind == 'hdf5' or not pool or lines.tolist() == [*range(32)]

@pytest.mark.parametrize('pool', [None, 'mean'])
def test_rows_that_can_not_be_embedded(folder, pool):
    "They are left out, also where a whole portion has none; the others stay in their places"
    elmo = lasting()
    elmo.tokenize = str.split
    rows = [None, 'good', None, 'a '*60, 'INF INF', *['INF']*20, '', 'last', 'a '*51]
    window = module.embed_window
    def with_infinity(elmo, sents, **kw):
        return [v*(np.inf if 'INF' in tokens else 1)
                for v,tokens in zip(window(elmo, sents, **kw), sents)]
    with pytest.MonkeyPatch.context() as m:
        m.setattr(module, 'embed_window', with_infinity)
        result = run('o.npz', elmo, pd.DataFrame(dict(text=rows)), max_tokens=50, pool=pool, budget=3)
        with pytest.raises(ValueError, match='None of the 2 rows .* number 0 has vectors'):
            run('p.npz', elmo, ['INF', 'INF'])
    infinite = 'has vectors that are not finite in float32'
    assert result['failed'] == {
        0: 'holds no text', 2: 'holds no text', 3: 'has 60 tokens, more than 50',
        **dict.fromkeys(range(4, 25), infinite), 27: 'has 51 tokens, more than 50'}
    assert [*result['failed']] == sorted(result['failed']) and result['lines'] == 3
    found = read('o.npz')
    if pool: assert found['lines'].tolist() == [1, 25, 26] and not found['vectors'][1].any()
    else: assert {*found} == {'1', '25', '26'} and close(found['1'], direct(elmo, ['good']))
    assert names() == ['in.txt', 'm', 'o.npz']

WRONG = dict(           # what is said, what the error says
    missing=(dict(source='no.txt'), 'no file'), empty=(dict(source='empty.txt'), 'has no rows'),
    ending=(dict(out='o.parquet'), r'should end in one of \.hdf5, \.h5, \.npz'),
    outfolder=(dict(out='d.hdf5', overwrite=True), 'exists already'),
    exists=(dict(out='there.hdf5'), '--overwrite'), under=(dict(out='in.txt/o.npz'), 'in.txt'),
    column=(dict(text_col='said'), "no column 'said'"),
    conll=(dict(source='a.conll'), "its first line is 0 = 'a', 1 = 'X'"),
    itself=(dict(source='x.npz', out='x.npz', overwrite=True), 'x.npz'), pool=(dict(pool='x'), 'pool'),
    nothing=(dict(source=[None, 'a b'], max_tokens=1), 'list|None of the'),
    most=(dict(max_tokens=0), 'max_tokens is 0'),
    foreign=(dict(out='f.npz', overwrite=True), 'not of a job'),
    file=(dict(out='g.npz'), 'g.npz.part'))

@pytest.mark.parametrize('name', WRONG)
def test_wrong_input_changes_nothing(elmo, folder, name):
    for file in ('x.npz', 'a.conll', 'there.hdf5', 'g.npz.part'): Path(file).write_text('a X\n')
    for file in ('d.hdf5', 'f.npz.part'):
        Path(file).mkdir()
        (Path(file)/'000000000.npz').write_text('precious')
    Path('empty.txt').write_text('')
    before = contents('.')
    kw, says = WRONG[name]
    with pytest.raises((ValueError, OSError), match=says): run(**{**dict(out='o.npz', elmo=elmo), **kw})
    assert contents('.') == before

# jobs that die

def test_goes_on_where_it_stopped(elmo, texts, folder, monkeypatch):
    "Also with another budget; no line is embedded twice"
    run('ref.npz', elmo)
    embedded, window = [], module.embed_window
    monkeypatch.setattr(module, 'embed_window', lambda e, s, **kw: embedded.extend(s) or window(e, s, **kw))
    for n,budget in ((3, 3), (1, 16), (2, 3)): stopped(monkeypatch, n, 'o.npz', elmo, budget=budget)
    said = []
    Path('o.npz.part/.notes.part').write_text('of somebody')
    embed_file('in.txt', 'o.npz', elmo, say=said.append)
    assert re.match(r'Going on after \d+ rows', said[0]) and len(embedded) == 32
    assert names() == ['in.txt', 'm', 'o.npz', 'o.npz.part', 'ref.npz']
    assert names('o.npz.part') == ['.notes.part']
    found, ref = read('o.npz'), read('ref.npz')
    assert [*found] == [*ref] and same(found.values(), ref.values())

def tokenized(split):
    elmo = lasting()
    elmo.tokenizer = elmo.tokenize = split
    return elmo

OTHER = dict(           # a change of the job
    model=dict(elmo=lasting(3)), mix=dict(elmo=lasting(gamma=2.)),
    layers=dict(layers=1), pool=dict(pool='mean'), dtype=dict(dtype='float16'),
    max_tokens=dict(max_tokens=9), bf16=dict(bf16=True), source=dict(source=['another text']),
    longer=dict(source=[*'abc']*50), tokenizer=dict(elmo=tokenized(lambda t: t.upper().split())))

@pytest.mark.parametrize('change', OTHER)
def test_another_job_is_not_mixed_in(folder, monkeypatch, change):
    one = tokenized(lambda t: t.split())
    job = dict(elmo=one, source=[*'abc']*49)
    kept = stopped(monkeypatch, 3, 'o.npz', **job)
    other = job | OTHER[change]
    with pytest.raises(ValueError, match='--overwrite'): run('o.npz', **other)
    assert contents('o.npz.part') == kept
    run('o.npz', **other, overwrite=True)
    run('p.npz', **other)
    assert same(read('o.npz').values(), read('p.npz').values(), 0) and not Path('o.npz.part').exists()

def test_an_output_stays_until_the_new_one_is_whole(elmo, folder, monkeypatch):
    "And --overwrite goes on with its own beginning"
    Path('o.npz').write_text('old')
    Path('o.npz').chmod(0o640)
    Path('link.npz').symlink_to('o.npz')
    stopped(monkeypatch, 3, 'link.npz', elmo, overwrite=True, layers=0)
    kept = stopped(monkeypatch, 3, 'link.npz', elmo, overwrite=True)
    with pytest.raises(ValueError, match='--overwrite'): run('link.npz', elmo)
    assert kept.items() < stopped(monkeypatch, 1, 'o.npz', elmo, overwrite=True).items()
    assert Path('o.npz').read_text() == 'old'
    run('link.npz', elmo, overwrite=True)
    assert len(read('o.npz')) == 32 and Path('link.npz').is_symlink()
    assert Path('o.npz').stat().st_mode & 0o777 == 0o640

KILLED = """
import os, signal, sys, numpy as np, torch
from elmo_fastai.practice import embed, run
from elmo_fastai.practice.command import elmo_embed
torch.set_num_threads(1)
ARGS = '../a.jsonl --model ../m --out o.npz --device cpu --budget 3'.split()
def job(*args):
    try: elmo_embed([*ARGS, *args])
    except SystemExit as e: assert e.code == 3          # a row has no text
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
    for name in ('fsync', 'replace', 'unlink', 'rmdir', 'mkdir'): setattr(os, name, step(getattr(os, name)))
    job(*args)
    os._exit(0)
before, step, args = None, 0, sys.argv[1:]
while True:
    if args:                             # an old output, and the beginning of another job
        with open('o.npz', 'wb') as f: np.savez(f, old=1)
        assert status(12, *args, '--layers', '0')
    is_killed = status(step, *args)
    if os.path.exists('o.npz'):          # whole, whenever it is there
        with np.load('o.npz') as f: assert len(f.files) in (1, 9)
        job('--overwrite')
    else: job()
    with np.load('o.npz') as f: found = {name: f[name].tolist() for name in f}
    assert len(found) == 9 and found == (before or found) and os.listdir('.') == ['o.npz'], step
    before, step = found, step + 1
    os.unlink('o.npz')
    if not is_killed: break
print(step)
"""

@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork')
@pytest.mark.parametrize('args', [[], ['--overwrite']])
def test_killed_at_every_step(folder, args):
    "kill -9 before each sync, renaming and removal; the next call ends with the same file, and no other"
    rows = 'a b', 'c', None, 'd e f', 'g', 'a b', '', 'h', 'i j', 'k'
    Path('a.jsonl').write_text('\n'.join(json.dumps(dict(text=text)) for text in rows))
    Path('here').mkdir()
    root = Path(elmo_fastai.__file__).parents[1]
    done = subprocess.run([sys.executable, '-c', KILLED, *args], cwd='here', capture_output=True, text=True,
                          env=os.environ | dict(OMP_NUM_THREADS='1', PYTHONPATH=str(root)), timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 25

def test_one_job_a_time(elmo, folder):
    "Also of jobs that start at the same moment"
    with lock_folder(Path('o.npz.part')), pytest.raises(ValueError, match='another process'):
        run('o.npz', elmo)
    for i in range(10):
        done, barrier = [], threading.Barrier(3)
        def job():
            barrier.wait()
            try: done.append(run(f'{i}.npz', lasting(), budget=64)['lines'])
            except (ValueError, OSError) as e: done.append(str(e))
        threads = [threading.Thread(target=job) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert done.count(32) == 1 and len(read(f'{i}.npz')) == 32, done
    assert names() == sorted(['in.txt', 'm', *(f'{i}.npz' for i in range(10))])

@pytest.mark.parametrize('damage', ['shorter', 'other bits', 'empty', 'gone'])
@pytest.mark.parametrize('which', [1, -1])
def test_a_damaged_portion_is_refused(elmo, folder, monkeypatch, damage, which):
    run('ref.npz', elmo)
    stopped(monkeypatch, 3, 'o.npz', elmo)
    file = sorted(Path('o.npz.part').glob('0*.npz'))[which]
    data = bytearray(file.read_bytes())
    data[len(data)//3] ^= 1
    if damage == 'gone': file.unlink()
    else: file.write_bytes(dict(empty=b'', shorter=data[:200]).get(damage, data))
    if damage != 'gone':
        for _ in range(2):
            with pytest.raises(ValueError, match=f'{file.name} is damaged: delete it'): run('o.npz', elmo)
        file.unlink()
    run('o.npz', elmo)
    assert same(read('o.npz').values(), read('ref.npz').values())

@pytest.mark.skipif(not hasattr(resource, 'RLIMIT_FSIZE'), reason='no limit for the size of files')
@pytest.mark.parametrize('kind,limit', [('npz', 1000), ('npz', 20_000), ('hdf5', None)])
def test_a_full_disk(folder, elmo, capsys, monkeypatch, kind, limit):
    "While portions are written, and while the output is assembled"
    args = ['in.txt', '--model', 'm', '--out', f'o.{kind}', '--budget', 8, '--device', 'cpu']
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as m:
        if not limit: m.setattr(shutil, 'disk_usage', lambda path: SimpleNamespace(free=20_000))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit or soft, hard))
            status, err = command(capsys, *args)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    is_kept = limit != 1000
    assert status == 1 and len(err.splitlines()) == 1, err
    assert re.search('too large|File too' if limit else 'no space', err)
    assert ('is kept in' if is_kept else 'nothing was done') in err
    assert names() == ['in.txt', 'm'] + [f'o.{kind}.part']*is_kept
    assert not [*Path().glob('*.part/.*.part')] and command(capsys, *args) == (0, '')

# the command

def command(capsys, *args):
    "In this process: (exit status, what stands on stderr)"
    try: elmo_embed([*map(str, args)]); status = 0
    except SystemExit as e: status = e.code
    return status, capsys.readouterr().err

def test_left_out_rows_are_told_briefly(folder, capsys):
    Path('a.jsonl').write_text('{"text": "two\\nlines"}\n' + '{"text": null}\n'*30 + '{"text": "a"}\n')
    status, err = command(capsys, 'a.jsonl', '--model', 'm', '--out', 'o.npz', '--device', 'cpu')
    lines = err.splitlines()
    assert status == 3 and len(lines) == 21 and lines[0].startswith('elmo_embed: row 1 holds no text')
    assert '10 more rows' in lines[-1] and {*read('o.npz')} == {'0', '31'}

@pytest.mark.parametrize('says,args', [
    ('--out', ['in.txt', '--model', 'm']), ('--model', ['in.txt', '--out', 'o.npz']),
    ('source', ['--model', 'm', '--out', 'o.npz']),
    ('no folder', ['--model', 'nothing']), ('huge', ['--model', 'ai2:huge']),
    ('layers', ['--layers', '7']), ("device 'xyz'", ['--device', 'xyz']), ('hdf5', ['--out', 'o.docx']),
    ('tokenizer', ['--tokenizer', 'x']), ('budget', ['--budget', '2']),
    ('--threads', ['--threads', '0']), ('--sep', ['--sep', ';']), ('max-tokens', ['--max-tokens', 'x']),
    ('no file', ['none.conllu', '--model', 'm', '--out', 'o.npz'])])
def test_wrong_command_lines(folder, capsys, says, args):
    usual = ['in.txt', '--model', 'm', '--out', 'o.npz', '--device', 'cpu']
    status, err = command(capsys, *(args if args[0][0] != '-' or says == 'source' else usual + args))
    assert status == 2 and err.startswith('elmo_embed: ') and len(err.splitlines()) == 1, err
    assert says in err and names() == ['in.txt', 'm']

def test_threads(folder, capsys, monkeypatch):
    seen, window, before = [], module.embed_window, torch.get_num_threads()
    def counted(*args, **kw): seen.append(torch.get_num_threads()); return window(*args, **kw)
    monkeypatch.setattr(module, 'embed_window', counted)
    args = ['in.txt', '--model', 'm', '--out', 'o.npz', '--device', 'cpu', '--threads', before + 1]
    assert command(capsys, *args) == (0, '') and {*seen} == {before + 1}
    assert torch.get_num_threads() == before

def test_a_hub_that_can_not_be_reached(folder, capsys, monkeypatch):
    import huggingface_hub.constants as k
    monkeypatch.setattr(k, 'HF_HUB_OFFLINE', True)
    status, err = command(capsys, 'in.txt', '--model', 'no/thing', '--out', 'o.npz')
    assert status == 1 and 'no/thing' in err and len(err.splitlines()) == 1

@pytest.mark.parametrize('error,status,says', [
    (KeyboardInterrupt(), 130, 'is kept in .*o.npz.part, and the same call goes on from there'),
    (torch.OutOfMemoryError('CUDA out of memory'), 1, 'smaller budget.* is kept'),
    (MemoryError(), 1, 'smaller budget'), (ZeroDivisionError('boom'), None, 'boom')], ids=repr)
def test_errors_in_the_middle(folder, elmo, capsys, monkeypatch, error, status, says):
    "One line each, which says where to go on; a bug is raised as it is"
    args = ['in.txt', '--model', 'm', '--out', 'o.npz', '--device', 'cpu', '--budget', 8]
    with monkeypatch.context() as m:
        stop_after(m, 3, error)
        if status is None:
            with pytest.raises(type(error), match=says): command(capsys, *args)
        else:
            found, err = command(capsys, *args)
            assert found == status and re.search(says, err) and len(err.splitlines()) == 1, err
    kept = contents('o.npz.part')
    done = stop_after(monkeypatch, 99)
    assert command(capsys, *args) == (0, '') and len(kept) >= 3 and done[0][0].name not in str([*kept])
    with np.load('o.npz') as f: assert len(f.files) == 32
