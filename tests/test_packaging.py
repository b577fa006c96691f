"""The library by itself: what it imports and exports, what its archives hold, and that it needs no
development tools"""
import ast, importlib.util, os, re, subprocess, sys, zipfile
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest
from notebooks import REPOSITORY, copied, links, root, well_formed

import elmo_fastai

lib = Path(elmo_fastai.__file__).resolve().parent
files = sorted(f for f in lib.rglob('*.py') if f.stem not in ('__init__', '_modidx', 'all'))
modules = {'.'.join(f.relative_to(lib).with_suffix('').parts): f for f in files}
TOOLS = {'nbdev', 'execnb', 'pytest', 'hypothesis', 'jupyter', 'nbconvert', 'nbformat',
         'ipykernel', 'jupyterlab', 'quarto'}

def imports(file, deferred=True):
    """The modules that `file` imports anywhere (or, without the deferred ones, at its top
    level), its own as elmo_fastai.name"""
    tree = ast.parse(file.read_text(encoding='utf-8'))
    for n in ast.walk(tree) if deferred else tree.body:
        if isinstance(n, ast.Import): yield from (o.name for o in n.names)
        elif isinstance(n, ast.ImportFrom):
            own = ['elmo_fastai', *file.relative_to(lib).parent.parts]
            own = own[:len(own)+1-n.level] if n.level else []
            names = [n.module] if n.module else [alias.name for alias in n.names]
            yield from ('.'.join([*own, name]) for name in names)

def python(code):
    "What a new process prints that runs `code`"
    path = os.pathsep.join([str(lib.parent), os.environ.get('PYTHONPATH', '')])
    p = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                       env={**os.environ, 'PYTHONPATH': path})
    assert p.returncode == 0 and not p.stderr.strip(), p.stderr
    return p.stdout

def test_importing_needs_and_changes_nothing():
    """Each module without the development tools: no seed, no threads, no formats, no handlers, and
    one warning that is filtered, PyTorch's. Other packages filter, too: ours are imported twice"""
    python(f'''
import importlib.abc, importlib, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split('.')[0] in {sorted(TOOLS)!r}: raise ImportError(f'{{name}} is a tool')
sys.meta_path.insert(0, Block())
import random, signal, warnings
# fastai's layers call it when they are imported
warnings.filterwarnings('ignore', '`torch.jit.script`')
import torch, numpy as np, fastai.text.all, datasets, sklearn, matplotlib   # theirs is not ours
def state():
    signals = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    rc = {{k: v for k,v in matplotlib.rcParams.items() if not k.startswith('backend')}}
    drawn = torch.rand(1).item(), random.random(), np.random.rand()
    return (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), signals,
            rc, warnings.showwarning, drawn)
def seed():
    for f in (torch.manual_seed, random.seed, np.random.seed): f(5)
seed()
before = state()
seed()
for name in {[*modules, "all"]!r}: importlib.import_module('elmo_fastai.' + name)
assert state() == before
for name in [o for o in sys.modules if o.startswith('elmo_fastai')]: del sys.modules[name]
warnings.resetwarnings()
import elmo_fastai.all
(action, message, *_), = warnings.filters
assert action == 'ignore' and message.pattern.startswith('LSTM with projections'), warnings.filters
''')

# what comes with another package; what is not needed
GIVEN = dict(sklearn='scikit_learn', scipy='scikit_learn', plum='fastai', fastcore='fastai',
             fasttransform='fastai', numpy='torch', PIL='fastai')
OPTIONAL = {'faiss', 'ipywidgets', 'IPython', 'onnx', 'onnxruntime'}

def test_what_is_imported_is_required():
    "Named in settings.ini, not merely there by way of another; and no development tool"
    cfg = ConfigParser(delimiters=['='])
    cfg.read(root/'settings.ini', encoding='utf-8')
    required = {re.split(r'[<>=~!]', o)[0].lower().replace('-', '_')
                for o in cfg['DEFAULT']['requirements'].split()}
    used = {o.split('.')[0] for f in lib.rglob('*.py') if f.name != '_modidx.py'
            for o in imports(f)}
    used -= {*sys.stdlib_module_names} | OPTIONAL | {'elmo_fastai'}
    assert {GIVEN.get(o, o).lower() for o in used} <= required

def test_public_names():
    "They exist, and none means two things"
    seen = {}
    for name in modules:
        m = import_module(f'elmo_fastai.{name}')
        assert len({*m.__all__}) == len(m.__all__), name
        for o in m.__all__:
            v = getattr(m, o)
            assert seen.setdefault(o, v) is v and not o.startswith('_'), (name, o)

def test_the_core_is_small_and_shadows_nothing_of_fastai():
    import fastai.text.all as fastai
    names = {}
    exec('from elmo_fastai.all import *', names)
    names = {k: v for k,v in names.items() if k[0] != '_'}
    assert 40 <= len(names) <= 60
    assert not [o for o,v in names.items() if getattr(fastai, o, v) is not v]
    assert {'NGramsTokenizer', 'NumericalizeChars', 'ElmoTransform', 'ElmoPadChunk',
            'ELMODataLoader', 'CharacterLayer', 'Elmo'} <= set(names), 'names of the blog post'

# a command line is read, and its help shown, before torch is loaded
LATE = {('practice.command', 'practice.run'), ('practice.command', 'practice.embed'),
        ('practice.command', 'practice.files')}

def test_imports_go_one_way():
    """Text imports errors alone, the core never imports `practice`, there are no circles, and none
    is hidden in a function to avoid one, except for those of `LATE`"""
    above = {}
    for a,file in modules.items():
        ours = {o.removeprefix('elmo_fastai.') for o in imports(file)
                if o.startswith('elmo_fastai.')}
        above[a], top = ours, {*imports(file, deferred=False)}
        for b in ours:
            assert f'elmo_fastai.{b}' in top or (a, b) in LATE, f'{a} imports {b} in a function'
            assert not b.startswith('practice') or a.startswith('practice'), f'{a} imports {b}'
            assert not a.startswith('text') or b.startswith(('text', 'errors')), f'{a} imports {b}'
    while free := [m for m,bs in above.items() if not bs & set(above)]:
        for m in free: del above[m]
    assert not above, f'these import one another: {sorted(above)}'

# the release

spec = importlib.util.spec_from_file_location('release', root/'.github'/'release.py')
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

def test_the_archives_hold_what_an_installation_needs(tmp_path):
    "All files of the package, no tests, and a description whose links lead somewhere"
    copy = copied(tmp_path/'repository', 'elmo_fastai', 'tests')
    p = subprocess.run([sys.executable, *'setup.py -q sdist -d dist bdist_wheel -d dist'.split()],
                       cwd=copy, capture_output=True, text=True)
    assert p.returncode == 0 and 'would be ignored' not in p.stdout + p.stderr, p.stderr
    assert len(release.archives(copy/'dist')) == 2
    [wheel] = (copy/'dist').glob('*.whl')
    assert wheel.stat().st_size < 9.8e6
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        said = z.read(next(n for n in names if n.endswith('/METADATA'))).decode()
    shipped = {n for n in names if n.startswith('elmo_fastai/')}
    wanted = {f.relative_to(lib.parent).as_posix() for f in lib.rglob('*')
              if f.is_file() and f.suffix != '.pyc'}
    assert shipped == wanted and not [n for n in names if n.startswith('tests')]
    for link in links(said) + re.findall(r'!\[[^\]]*\]\(([^)]+)\)', said):
        assert well_formed(link), link
        if m := re.match(rf'{REPOSITORY}/(?:blob|raw)/main/([^#]+)', link):
            assert (root/m[1]).is_file(), link
    with zipfile.ZipFile(copy/'dist'/'broken.whl', 'w'): wheel.unlink()
    with pytest.raises(SystemExit, match='version|lacks'): release.archives(copy/'dist')

def test_what_benchmarks_import_is_there():
    "Nobody runs a script of hours to learn that a module has moved"
    for f in (root/'tests'/'benchmarks').glob('*.py'):
        for n in ast.walk(ast.parse(f.read_text(encoding='utf-8'))):
            if not isinstance(n, ast.ImportFrom) or not n.module.startswith('elmo_fastai'): continue
            m = import_module(n.module)
            assert not [o.name for o in n.names if not hasattr(m, o.name)], f
