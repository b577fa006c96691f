"""What `make test` runs: library equals notebooks, notebooks are clean, README is the index, the
reference is the library's, the cells of index and course, and all tests that are not marked `slow`.

`--check` runs no cell and is enough after a change to prose. `--rest` runs what `make test` leaves
out: the cells of studies and library pages, and the slow tests. `--leftovers` runs the quick tests
once more, where a newcomer has left files and settings. `--rounding` runs the tests and pages that
compare numbers once more, as on other processors: with smaller instruction sets, and with weights
where products round otherwise. `--all` is all of it, as continuous integration runs it. Every step
runs, also after a failure; the end says what failed, and what each step took."""
import filecmp, os, re, resource, shutil, subprocess, sys, tempfile, time
from functools import partial
from pathlib import Path

import leftovers
from robust import environment

root, bin_ = Path(__file__).resolve().parent.parent, Path(sys.executable).parent
env = {**os.environ, 'PATH': f"{bin_}{os.pathsep}{os.environ['PATH']}", 'HF_HUB_OFFLINE': '1',
       'HF_DATASETS_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false', 'MPLBACKEND': 'agg',
       'PYTHONUNBUFFERED': '1'}
# what was installed is compiled by the first who needs it
env.pop('PYTHONDONTWRITEBYTECODE', None)
env.pop('VIRTUAL_ENV', None)          # of the shell that called, if any
ours, files = ['elmo_fastai', 'nbs'], ['settings.ini', 'setup.py', 'pyproject.toml', 'README.md',
                                       '_quarto.yml']
hidden = {'__pycache__', '.ipynb_checkpoints', '.quarto'}

FAILED = re.compile(r'^(?:FAILED|ERROR) (\S+)|^\t(\S+\.ipynb)$', re.M)     # pytest's lines, nbdev's

def failures(
    code:int, # exit status
    out:str,  # what was printed
) -> list:    # names of notebooks and tests that failed; empty where all passed
    "What failed in a run of `nbdev-test` or `pytest`"
    if not code: return []
    return [a or b for a,b in FAILED.findall(out)] or [f'it ended with exit status {code}']

def run(*cmd, **own):
    "Run `cmd` in the repository's root and show what it prints; what failed"
    print(f"\n$ {' '.join(cmd)}", flush=True)
    p = subprocess.Popen(cmd, cwd=root, env={**env, **own}, text=True, errors='replace',
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = []
    for line in p.stdout:
        print(line, end='', flush=True)
        out.append(line)
    return failures(p.wait(), ''.join(out))

def differences(a, b):
    "Files under `a` and `b` that differ or are missing on one side"
    def files(p):
        found = (f.relative_to(p) for f in p.rglob('*') if f.is_file())
        return {f for f in found if not hidden & set(f.parts)}
    def same(f): return (a/f).exists() and (b/f).exists() and filecmp.cmp(a/f, b/f, shallow=False)
    return sorted(str(f) for f in files(a) | files(b) if not same(f))

def check_export():
    "Files that exporting and cleaning in a copy of the project changes: none, if all is well"
    print('\n$ nbdev-export && nbdev-clean   (in a copy; nothing may change)', flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp)/'elmo_fastai'
        copy.mkdir()
        for name in ours:
            shutil.copytree(root/name, copy/name, ignore=shutil.ignore_patterns(*hidden))
        for name in files: shutil.copy(root/name, copy/name)
        # a module without a notebook must not survive
        for f in (copy/'elmo_fastai').rglob('*.py'):
            if f.name not in ('all.py', '__init__.py'): f.unlink()
        for cmd in ('nbdev-export', 'nbdev-clean'):
            if code := subprocess.run([cmd], cwd=copy, env=env).returncode:
                return [f'{cmd} ended with exit status {code}']
        return [f'{name}/{f} (run `make export`)' for name in ours
                for f in differences(root/name, copy/name)]

def notebooks(*paths):
    "Run the cells of some notebooks, or of all in a folder; what failed"
    return run('nbdev-test', '--n-workers', '2', '--timing', *paths, OMP_NUM_THREADS='1')

def tests(mark, *files, **own):
    "Run the tests with a mark, show why some are skipped and which take longest; what failed"
    return run(sys.executable, '-m', 'pytest', '-q', '-rfEs', '-n', '2', '--dist', 'worksteal',
               '--durations', '25', '-m', mark, *files, OMP_NUM_THREADS='1', **own)

FIRST = {
    'library and notebooks agree': check_export,
    'README': partial(run, sys.executable, 'tests/readme.py', '--check'),
    'reference': partial(run, sys.executable, 'tests/reference.py', '--check'),
    'start page': partial(notebooks, 'nbs/start.ipynb'),
    'course': partial(notebooks, 'nbs/course'),
    'tests': partial(tests, 'not slow')}
REST = {
    'glossary': partial(notebooks, 'nbs/glossary.ipynb'),
    'studies': partial(notebooks, 'nbs/studies'),
    'library pages': partial(notebooks, 'nbs/library'),
    'slow tests': partial(tests, 'slow')}
# Two ways to one number, or a model and its copy
COMPARE = ['ai2', 'attention', 'bilm', 'charcnn', 'classifier', 'embed', 'embed_file', 'folder',
           'golden', 'elmo', 'onnx', 'recurrent', 'softmax', 'tagger', 'vectorizer']

def as_on(setting):
    "Run the tests and pages that compare numbers under a setting of `robust.py`; what failed"
    own = environment(setting)
    files = [f'tests/test_{name}.py' for name in COMPARE]
    pytest = [sys.executable, '-m', 'pytest', '-q', '-n', '2', '--dist', 'worksteal', '-m',
              'not slow']
    pages = ['nbdev-test', '--n-workers', '2', '--file-re', r'^(folder|ai2)\.ipynb$', 'nbs/library']
    return run(*pytest, *files, **own) + run(*pages, **own)

# Commands, and what reads texts, trains and writes
DOORS = ['box', 'command', 'doors', 'embed_file', 'loaders', 'read']

def among_leftovers():
    """Run the quick tests where a newcomer leaves things: with local copies that aren't the
    published ones, in the locale C with an empty home; some of them without any copies; and those
    that read the published ones with these, if they lie beside the repository. What failed"""
    folder = root/'tests'
    doors = [f'tests/test_{name}.py' for name in DOORS]
    readers = [f'tests/{f.name}' for f in sorted(folder.glob('test_*.py'))
               if 'from copies import' in f.read_text(encoding='utf-8')]
    published = root.parent/'shared'/'data'
    with tempfile.TemporaryDirectory() as tmp, leftovers.left(root):
        home, data = Path(tmp, 'home'), Path(tmp, 'data')
        home.mkdir()
        leftovers.copies(data)
        before = leftovers.state(root)
        failed = tests('not slow', ELMO_FASTAI_DATA=str(data), HOME=str(home), LANG='C', LC_ALL='C')
        failed += tests('not slow', *doors, *readers, ELMO_FASTAI_DATA='')
        if published.is_dir():
            failed += tests('not slow', *readers, ELMO_FASTAI_DATA=str(published))
        changed = before ^ leftovers.state(root)
    return failed + [f'a test has changed {o}' for o in sorted(map(str, changed))]

LEFT = {'tests among what a newcomer leaves': among_leftovers}

ROUNDING = {f'as on {what}': partial(as_on, setting) for setting,what in
            dict(avx2='a processor with AVX2', sse='a processor with SSE').items()}
FORM = [sys.executable, '-m', 'pytest', '-q', 'tests/test_notebooks.py', 'tests/test_chapters.py']
CHECK = {**{name: FIRST[name] for name in ('library and notebooks agree', 'README', 'reference')},
         'form of the pages': partial(run, *FORM)}
STEPS = {'--check': CHECK, '--rest': REST, '--leftovers': LEFT,
         '--rounding': ROUNDING, '--all': FIRST | LEFT | REST | ROUNDING}

def processor_seconds():
    "What all processes that ended have used, in seconds of one core"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

def main(
    steps:dict=FIRST, # name: function that returns what failed
) -> int:             # exit status
    "Run all `steps`, then say what failed"
    failed, took = {}, {}
    for name,step in steps.items():
        start = time.time()
        before = processor_seconds()
        failed[name] = step()
        took[name] = f'{time.time()-start:,.0f} s, {processor_seconds()-before:,.0f} s of processor'
    print()
    for name,what in failed.items():
        print(f"{name}: {'failed' if what else 'passed'} ({took[name]})")
        for item in what: print(f'  {item}')
    return int(any(failed.values()))

if __name__ == '__main__': sys.exit(main(STEPS[sys.argv[1]] if sys.argv[1:] else FIRST))
