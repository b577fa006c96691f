"""The library by itself: what it imports, what it exports, and that it needs none of the
development tools"""
import ast, os, re, subprocess, sys
from configparser import ConfigParser
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from notebooks import root, rule_for

import elmo_fastai

lib = Path(elmo_fastai.__file__).resolve().parent
# each imports from those before it
files = sorted(f for f in lib.rglob('*.py') if f.stem not in ('__init__', '_modidx', 'all'))
modules = ['.'.join(f.relative_to(lib).with_suffix('').parts) for f in files]
def file_of(name): return lib/f"{name.replace('.', '/')}.py"
TOOLS = {'nbdev', 'execnb', 'pytest', 'hypothesis', 'jupyter', 'nbconvert', 'nbformat', 'IPython',
         'ipykernel', 'psutil', 'packaging', 'jupyterlab', 'quarto'}
each = rule_for(modules, str)

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

def python(code, env=os.environ):
    "What a new process prints that runs `code`"
    path = os.pathsep.join([str(lib.parent), env.get('PYTHONPATH', '')])
    p = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True,
                       env={**env, 'PYTHONPATH': path})
    assert p.returncode == 0 and not p.stderr.strip(), p.stderr
    return p.stdout

def test_importing_needs_and_changes_nothing():
    """Each module without the development tools, a network and a display. No seed, no threads, no
    formats, no handlers; and of warnings one of PyTorch alone is filtered. Other packages filter
    when they are imported, so ours are imported twice"""
    python(f'''
import importlib.abc, importlib, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split('.')[0] in {sorted(TOOLS - {"packaging", "IPython", "psutil"})!r}:
            raise ImportError(f'{{name}} is a development tool')
sys.meta_path.insert(0, Block())
import random, signal, warnings
warnings.simplefilter('error', SyntaxWarning)
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
''', {k: v for k,v in os.environ.items() if k not in ('DISPLAY', 'MPLBACKEND', 'ELMO_FASTAI_DATA')}
           | dict(HF_HUB_OFFLINE='1'))

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
    assert not {o.split('.')[0] for f in files for o in imports(f)} & TOOLS

@each
def test_all_names_exist(name):
    m = import_module(f'elmo_fastai.{name}')
    # or it adds methods to a class
    assert m.__all__ or '@patch' in Path(m.__file__).read_text(encoding='utf-8')
    assert len(set(m.__all__)) == len(m.__all__)
    for o in m.__all__:
        assert hasattr(m, o), o
        assert not o.startswith('_')

@each
def test_public_names_are_described(name):
    m = import_module(f'elmo_fastai.{name}')
    assert m.__doc__ and len(m.__doc__.strip().split('\n')[0]) > 20
    for o in m.__all__:
        v = getattr(m, o)
        if (isinstance(v, type) or callable(v)) and getattr(v, '__module__', '') == m.__name__:
            assert (v.__doc__ or '').strip(), f'{o} has no docstring'

def test_no_name_means_two_things():
    seen = {}
    for name in modules:
        m = import_module(f'elmo_fastai.{name}')
        for o in m.__all__:
            assert seen.setdefault(o, (name, getattr(m, o)))[1] is getattr(m, o), (
                f'{o} of {seen[o][0]} and of {name}')

def core():
    scope = {}
    exec('from elmo_fastai.all import *', scope)
    return {k: v for k,v in scope.items() if k[0] != '_'}

def test_the_core_is_small_and_shadows_nothing_of_fastai():
    import fastai.text.all as fastai
    names = core()
    assert 40 <= len(names) <= 60
    assert not [o for o,v in names.items() if getattr(fastai, o, v) is not v]
    public = {o for m in modules for o in import_module(f'elmo_fastai.{m}').__all__}
    assert set(names) <= public

def test_the_names_of_the_blog_post_stay_valid():
    assert {'NGramsTokenizer', 'NumericalizeChars', 'ElmoTransform', 'ElmoPadChunk',
            'ELMODataLoader', 'CharacterLayer', 'Elmo'} <= set(core())

@lru_cache(None)
def arrows():
    "(module, what it imports of ours, is it at the top?), read from the code"
    found = []
    for m in modules:
        top = [*imports(file_of(m), deferred=False)]
        found += [(m, o.removeprefix('elmo_fastai.'), o in top) for o in imports(file_of(m))
                  if o.startswith('elmo_fastai.')]
    return found

# a command line is read, and its help shown, before torch is loaded
LATE = {('practice.command', 'practice.run'), ('practice.command', 'practice.embed'),
        ('practice.command', 'practice.files')}

def test_imports_go_one_way():
    """Text imports errors alone, the core never imports `practice`, there are no circles, and none is
    hidden in a function to avoid one. What is heavy and not ours may be imported where it is used,
    and so may a module of ours that needs it, in the few places of `LATE`"""
    for a,b,top in arrows():
        assert top or (a, b) in LATE, f'{a} imports {b} in a function'
        assert b in modules, (a, b)
        (of, _, _), (what, _, _) = a.partition('.'), b.partition('.')
        assert what != 'practice' or of == 'practice', f'{a} imports {b}'
        assert of != 'text' or what in ('text', 'errors'), f'{a} imports {b}'
    above = {m: {b for a,b,_ in arrows() if a == m} for m in modules}
    while free := [m for m,bs in above.items() if not bs & set(above)]:
        for m in free: del above[m]
    assert not above, f'these import one another: {sorted(above)}'

def test_a_function_has_eight_parameters_at_most():
    """But for factories and learners, whose arguments are fastai's, `embed_file`, which is a command,
    and `Elmo` and the loader of streams, whose settings are said one by one; what belongs together is a dataclass (`takes`)"""
    def many(f):
        return len([o for o in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)
                    if o.arg not in ('self', 'cls')])
    found = {f'{p.stem}.{f.name}': many(f) for p in files
             for f in ast.walk(ast.parse(p.read_text(encoding='utf-8')))
             if isinstance(f, ast.FunctionDef)}
    assert not {k: n for k,n in found.items() if n > 8
                and not re.search(r'\.from_|_learner$|_loaders$|_corpus$|\.embed_file$|^(elmo|streams)\.__init__$|^command\.(pretrain|embed)$', k)}

def test_no_private_name_leaves_its_module():
    for m in modules:
        for n in ast.walk(ast.parse(file_of(m).read_text(encoding='utf-8'))):
            if isinstance(n, ast.ImportFrom) and (n.level or n.module.startswith('elmo_fastai')):
                assert not [o.name for o in n.names if o.name[0] == '_'], (m, n.module)

HEAVY = {'matplotlib', 'sklearn', 'fastai', 'datasets', 'IPython'}

def modules_with(names):
    "What is loaded after `import` of `names`"
    return {*python(f'import sys, {names}; print(*sys.modules)').split()}

def test_a_command_line_comes_without_torch():
    "`elmo_pretrain --help` and `elmo_embed --help` take a fifth of a second"
    loaded = modules_with('elmo_fastai.practice.command')
    assert not loaded & {*HEAVY, 'torch', 'pandas'}

def test_modules_are_generated():
    for f in files:
        text = f.read_text(encoding='utf-8')
        assert 'AUTOGENERATED' in text
        notebook = re.search(r'File to edit: (\S+)\.?$', text, re.M)[1].rstrip('.')
        assert not (root/'nbs').is_dir() or (f.parent/notebook).is_file()

def test_all_files_of_the_package_are_shipped():
    "Whatever is no module: `package_data` of setup.py names it"
    patterns = re.findall(r"'(\S+/\S+)'[,\]]", (root/'setup.py').read_text(encoding='utf-8'))
    named = {f for pattern in patterns for f in lib.glob(pattern)}
    others = {f for f in lib.rglob('*') if f.is_file() and f.suffix not in ('.py', '.pyc')}
    assert others == named and lib/'box'/'mini-en'/'config.json' in named
