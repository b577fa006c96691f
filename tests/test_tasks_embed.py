"The command elmo_embed: right and wrong input, killed and interrupted"
import os, re, resource, signal, subprocess, sys, time
from pathlib import Path

import h5py, numpy as np, pytest, torch

from elmo_fastai.elmo import file as module
from elmo_fastai.elmo.file import embed_file
from elmo_fastai.tasks.embed import embed_command_line, elmo_embed
from elmo_fastai.elmo.module import Elmo
from made import close, direct, lasting, same

@pytest.fixture()
def elmo(): return lasting()


def test_rows_are_called_rows(elmo, tmp_path, capsys):
    "Where a row has several lines, a number of lines would be wrong"
    (tmp_path/'a.jsonl').write_text('{"text": "two\\nlines"}\n{"text": null}\n{"text": "fine"}\n')
    elmo.save_pretrained(tmp_path/'m')
    code, err = command(
        capsys, tmp_path/'a.jsonl', out=tmp_path/'o.npz', model=tmp_path/'m', device='cpu'
    )
    assert code == 3 and re.findall(
        r'elmo_embed: (\w+ \d+) of .*\(number (\d+) in the output\) holds no text', err
    ) == [('row 2', '1')]
    with np.load(tmp_path/'o.npz') as f: assert set(f) == {'0', '2'}

def test_many_broken_lines_are_told_briefly(elmo, tmp_path, capsys):
    (tmp_path/'a.jsonl').write_text('{"text": "good"}\n' + '{"text": null}\n'*500)
    result = embed_file(tmp_path/'a.jsonl', tmp_path/'o.npz', elmo, say=str)
    assert len(result['failed']) == 500
    elmo.save_pretrained(tmp_path/'m')
    code, err = command(
        capsys, tmp_path/'a.jsonl', out=tmp_path/'p.npz', model=tmp_path/'m', device='cpu'
    )
    warned = err.strip().splitlines()
    assert code == 3 and len(warned) == 21 and 'more' in warned[-1]

class Unplugged(BaseException): pass


# the command, in processes of its own

root = Path(module.__file__).resolve().parents[2]

def start(folder, *args, stdin=None, launcher=True):
    # what pip makes of an entry point
    (folder/'.run.py').write_text('from elmo_fastai.tasks.embed import elmo_embed\nelmo_embed()\n')
    env = {**os.environ,
           'PYTHONPATH': os.pathsep.join([str(root), os.environ.get('PYTHONPATH', '')]),
           'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1', 'MPLBACKEND': 'agg', 'COLUMNS': '200',
           'MPLCONFIGDIR': str(folder/'.cache')}
    cmd = [sys.executable,
           *([folder/'.run.py'] if launcher else ['-m', 'elmo_fastai.tasks.embed']), *args]
    return subprocess.Popen(
        list(map(str, cmd)),
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(p, stdin=None):
    out, err = p.communicate(stdin, timeout=300)
    assert b'Traceback' not in err and b'Warning' not in err, err.decode()
    return p.returncode, out.decode(), err.decode()

@pytest.fixture()
def folder(tmp_path, texts):
    lasting().save_pretrained(tmp_path/'m')
    (tmp_path/'in.txt').write_text('\n'.join(texts) + '\n')
    return tmp_path

def read(folder, name='o.hdf5'):
    with h5py.File(folder/name) as f: return {k: f[k][:] for k in f if k.isdigit()}

@pytest.mark.slow
def test_the_whole_command(folder, texts, elmo):
    status, out, err = finish(start(folder, 'in.txt', '--out', 'o.hdf5', '--model', 'm',
                                    '--tokenizer', 'space', '--device', 'cpu', launcher=False))
    got = read(folder)
    assert status == 0 and not err and re.search(r'o\.hdf5: 400 lines, [\d,]+ tokens', out)
    assert len(got) == len(texts) and all(
        close(got[str(i)], direct(elmo, t.split())) for i, t in enumerate(texts[:50]))
    assert sorted(f.name for f in folder.iterdir() if not f.name.startswith('.')) == [
        'in.txt', 'm', 'o.hdf5']


def test_help_is_one_page(monkeypatch):
    monkeypatch.setenv('COLUMNS', '100')
    p = embed_command_line()
    page = p.format_help()
    options = set(re.findall(r'^  (?:-h, )?(--[\w-]+)', page, re.M))
    assert options == {
        f'--{o}'
        for o in 'help out model layers pool text-col token-col dtype tokenizer budget max-tokens '
                 'threads device bf16 overwrite offsets'.split()
    }
    assert len(page.splitlines()) <= 60 and max(map(len, page.splitlines())) <= 100
    examples = re.findall(r'^  elmo_embed (.*?)(?:  .*)?$', page, re.M)
    assert len(examples) == 3
    for o in examples: assert {'source', 'out', 'model'} <= set(p.parse(o.split()))


def wait_for(f, p, seconds=120):
    end = time.monotonic() + seconds
    while not f.exists() and p.poll() is None and time.monotonic() < end: time.sleep(.01)
    assert f.exists(), p.communicate()[1].decode()

@pytest.mark.slow
def test_killed_and_interrupted(folder, texts, elmo, capsys, monkeypatch):
    """kill -9 in the middle, then Ctrl-C (here); the result is that of one go, and no portion is
    made twice"""
    # 6,000 lines
    (folder/'in.txt').write_text('\n'.join(f'{t} {i}' for i in range(15) for t in texts) + '\n')
    part = folder/'o.npz.part'
    def portions(): return {f.name: f.stat().st_mtime_ns for f in part.glob('0*.npz')}

    p = start(folder, 'in.txt', '--out', 'o.npz', '--model', 'm', '--budget', '256', '--device',
              'cpu')
    wait_for(part/'000006.npz', p)
    p.send_signal(signal.SIGKILL)
    p.communicate(timeout=60)
    killed = portions()
    assert p.returncode == -9 and not (folder/'o.npz').exists() and len(killed) >= 6
    monkeypatch.chdir(folder)
    add, stop = module.Portions.add, len(killed) + 3
    def add_and_interrupt(self, *args, **kw):
        add(self, *args, **kw)
        if self.n == stop: signal.raise_signal(signal.SIGINT)
    with monkeypatch.context() as m:
        m.setattr(module.Portions, 'add', add_and_interrupt)
        code, err = command(capsys, 'in.txt', out='o.npz', model='m', budget=256, device='cpu')
    assert (code == 130 and 'goes on from there' in err and len(err.strip().splitlines()) == 1
            and not (folder/'o.npz').exists())
    assert killed.items() <= portions().items() and len(portions()) == stop
    told = []
    embed_file('in.txt', folder/'o.npz', elmo, budget=4096, say=told.append)
    assert 'Going on after' in told[0] and not part.exists()
    with np.load(folder/'o.npz') as f:
        assert len(f.files) == 6000
        for i in (0, 1, 399, 400, 4444, 5999):
            assert close(f[str(i)], direct(elmo, f'{texts[i % 400]} {i // 400}'.split()))


def test_overwrite_goes_on_after_an_interruption(folder, texts, capsys, monkeypatch):
    """As its message says; another job's beginning is dropped, and the old output stays until the
    new one is whole"""
    monkeypatch.chdir(folder)
    Path('o.npz').write_text('old')
    add = module.Portions.add
    def add_and_interrupt(self, *args, **kw):
        add(self, *args, **kw)
        if self.n == 3: signal.raise_signal(signal.SIGINT)
    def interrupted(**kw):
        with monkeypatch.context() as m:
            m.setattr(module.Portions, 'add', add_and_interrupt)
            code, err = command(capsys, 'in.txt', out='o.npz', model='m', budget=64, device='cpu',
                                overwrite=True, **kw)
        assert (code == 130 and 'the same command goes on from there' in err
                and Path('o.npz').read_text() == 'old')
        return {f.name: f.stat().st_mtime_ns for f in Path('o.npz.part').glob('0*.npz')}
    other, ours = interrupted(layers='0'), interrupted()
    assert len(other) == len(ours) == 3
    with monkeypatch.context() as m:
        def unplugged(*args, **kw): raise Unplugged
        m.setattr(module.Portions, 'add', unplugged)
        with pytest.raises(Unplugged):
            command(capsys, 'in.txt', out='o.npz', model='m', budget=64, device='cpu',
                    overwrite=True)
    assert {f.name: f.stat().st_mtime_ns for f in Path('o.npz.part').glob('0*.npz')} == ours
    (folder/'in.txt').write_text('\n'.join(texts[::-1]))
    assert command(capsys, 'in.txt', out='o.npz', model='m', device='cpu', overwrite=True)[0] == 0
    with np.load('o.npz') as f:
        assert len(f.files) == 400 and close(f['0'], lasting().embed([texts[-1]], 'all')[0])


def test_an_error_is_not_blamed_on_the_device(folder, capsys, monkeypatch):
    def broken(*args, **kw): raise ZeroDivisionError('boom')
    monkeypatch.setattr(Elmo, 'embed', broken)
    monkeypatch.setattr(module, 'embed_window', broken)
    with pytest.raises(ZeroDivisionError, match='boom'):
        command(capsys, folder/'in.txt', out=folder/'o.npz', model=folder/'m', device='cpu')
    code, err = command(capsys, folder/'in.txt', out=folder/'o.npz', model=folder/'m', device='xyz')
    assert code == 2 and "The device 'xyz' can't be used here (Expected one of cpu" in err
    monkeypatch.setattr(
        module, 'embed_window',
        lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError('CUDA out of memory')))
    code, err = command(capsys, folder/'in.txt', out=folder/'o.npz', model=folder/'m', device='cpu')
    assert code == 1 and 'smaller --budget' in err

def test_sigterm_is_an_interruption(folder, capsys, monkeypatch):
    (folder/'o.npz.part').mkdir()
    monkeypatch.setattr(module, 'embed_file', lambda *a, **k: signal.raise_signal(signal.SIGTERM))
    code, err = command(capsys, str(folder/'in.txt'), out=str(folder/'o.npz'),
                        model=str(folder/'m'), device='cpu')
    assert code == 130 and 'goes on from there' in err

@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, 'RLIMIT_FSIZE'), reason='no limit for the size of files')
def test_a_full_disk(folder, elmo, texts, capsys):
    "While portions are written, and while the output is assembled"
    args = dict(input=str(folder/'in.txt'), out=str(folder/'o.hdf5'), model=str(folder/'m'),
                budget=256, device='cpu')
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit,says in ((60_000, 'too large'), (700_000, "can't write .*o.hdf5.part")):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
            code, err = command(capsys, **args)
        finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert code == 1 and len(err.strip().splitlines()) == 1 and re.search(says, err.lower()), (
            err)
    assert not (folder/'o.hdf5').exists() and not list((folder/'o.hdf5.part').glob('out*'))
    assert command(capsys, **args) == (0, '')
    assert close(read(folder)['7'], direct(elmo, texts[7].split()))

def command(capsys, *args, **kw):
    "In this process: (exit status, what stands on stderr)"
    old = signal.getsignal(signal.SIGTERM)
    if 'input' in kw: args = (kw.pop('input'), *args)
    for k, v in kw.items():
        args = (*args, *([] if v in (None, False) else [f'--{k}'] if v is True else [f'--{k}', v]))
    try: elmo_embed([str(o) for o in args]); code = 0
    except SystemExit as e: code = e.code
    assert signal.getsignal(signal.SIGTERM) is old
    return code, capsys.readouterr().err

@pytest.mark.parametrize('kw,says', [
    (dict(out=None), '--out'),
    (dict(model=None), '--model'),
    (dict(model='nothing'), 'no folder'),
    (dict(model='no/thing'), 'no/thing'),
    (dict(model='ai2:huge'), 'huge'),
    (dict(layers='7'), 'layers'),
    (dict(device='xyz'), "device 'xyz'"),
    (dict(input='none.txt'), 'no file'),
    (dict(out='o.docx'), 'hdf5'),
    (dict(tokenizer='x'), 'tokenizer'),
    (dict(budget=2), '--budget')], ids=str)
def test_wrong_options(folder, capsys, monkeypatch, kw, says):
    monkeypatch.chdir(folder)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    import huggingface_hub.constants as k

    monkeypatch.setattr(k, 'HF_HUB_OFFLINE', True)
    kw = {**dict(input='in.txt', out='o.npz', model='m', device='cpu'), **kw}
    code, err = command(capsys, **kw)
    is_usage = kw['model'] != 'no/thing'               # the network may be to blame
    assert (code == 1 + is_usage and err.startswith('elmo_embed: ')
            and len(err.strip().splitlines()) == 1 and re.search(says, err)), err
    assert not (folder/'o.npz').exists() and not (folder/'o.npz.part').exists()

@pytest.mark.parametrize('kw', [dict(norm='batch'), dict(tokenizer=str.split)], ids=str)
def test_the_device_is_not_blamed_for_the_model(folder, capsys, kw):
    """All layers of a model with a batch-wide mix, or with a tokenizer that no file can hold, can
    be had"""
    lasting(**kw).save_pretrained(folder/'m')
    assert command(capsys, str(folder/'in.txt'), out=str(folder/'o.hdf5'),
                   model=str(folder/'m'), tokenizer='space', device='cpu') == (0, '')


def test_ai2_folders_by_name(folder, capsys, elmo):
    pytest.importorskip('elmo_fastai.elmo.ai2')
    elmo.to_ai2(folder/'ai2')
    for name in (str(folder/'ai2'), f'ai2:{folder/"ai2"}'):
        (folder/'in.txt').write_text('the bank\n')
        assert command(capsys, str(folder/'in.txt'), out=str(folder/'o.hdf5'), model=name,
                       device='cpu', overwrite=True) == (0, '')
        assert close(read(folder)['0'], direct(elmo, ['the', 'bank']))


@pytest.mark.parametrize('args,says', [
    (['none.conllu'], 'no file'), (['-'], 'no file'), (['x.txt', '--sep', ';'], 'no option --sep'),
    (['x.txt', '--model', 'ai2:huge'], 'no published model')], ids=str)
def test_a_name_that_is_not_there_ends_with_2(tmp_path, monkeypatch, capsys, args, says):
    monkeypatch.chdir(tmp_path)
    Path('x.txt').write_text('a b\n')
    Path('x.csv').write_text('text,n\na b,1\n')
    model = [] if '--model' in args else ['--model', 'mini-en']
    with pytest.raises(SystemExit) as e: elmo_embed([*args, *model, '--out', 'o.h5'])
    err = capsys.readouterr().err
    assert e.value.code == 2 and says in err and len(err.strip().splitlines()) == 1, err
