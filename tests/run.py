"""What `make test` runs: library equals notebooks, notebooks are clean, README is the index, the
reference is the library's, every notebook's cells, pytest. Everything runs, also after a failure;
the end says what failed."""
import filecmp, os, re, shutil, subprocess, sys, tempfile
from pathlib import Path

root, bin_ = Path(__file__).resolve().parent.parent, Path(sys.executable).parent
env = {**os.environ, 'PATH': f"{bin_}{os.pathsep}{os.environ['PATH']}", 'HF_HUB_OFFLINE': '1',
       'HF_DATASETS_OFFLINE': '1', 'TOKENIZERS_PARALLELISM': 'false', 'MPLBACKEND': 'agg',
       'PYTHONUNBUFFERED': '1'}
env.pop('PYTHONDONTWRITEBYTECODE', None)    # what was installed is compiled by the first who needs it
env.pop('VIRTUAL_ENV', None)          # of the shell that called, if any
ours, files = ['elmo_fastai', 'nbs'], ['settings.ini', 'setup.py', 'pyproject.toml', 'README.md', '_quarto.yml']
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
        for o in ours: shutil.copytree(root/o, copy/o, ignore=shutil.ignore_patterns(*hidden))
        for o in files: shutil.copy(root/o, copy/o)
        for f in (copy/'elmo_fastai').rglob('*.py'):   # a module without a notebook must not survive
            if f.name not in ('all.py', '__init__.py'): f.unlink()
        for cmd in ('nbdev-export', 'nbdev-clean'):
            if code := subprocess.run([cmd], cwd=copy, env=env).returncode:
                return [f'{cmd} ended with exit status {code}']
        return [f'{o}/{f} (run `make export`)' for o in ours for f in differences(root/o, copy/o)]

STEPS = {
    'library and notebooks agree': check_export,
    'README': lambda: run(sys.executable, 'tests/readme.py', '--check'),
    'reference': lambda: run(sys.executable, 'tests/reference.py', '--check'),
    'notebooks': lambda: run('nbdev-test', '--n-workers', '2', '--timing', OMP_NUM_THREADS='1'),
    'tests': lambda: run(sys.executable, '-m', 'pytest', '-q', '-n', '2', '--dist', 'worksteal',
                         '--durations', '25', OMP_NUM_THREADS='1')}

def main(
    steps:dict=STEPS, # name: function that returns what failed
) -> int:             # exit status
    "Run all `steps`, then say what failed"
    failed = {name: step() for name,step in steps.items()}
    print()
    for name,what in failed.items():
        print(f"{name}: {'failed' if what else 'passed'}")
        for o in what: print(f'  {o}')
    return int(any(failed.values()))

if __name__ == '__main__': sys.exit(main())
