"""What `make test` runs: library equals notebooks, notebooks are clean, every notebook's cells, then pytest."""
import filecmp, os, shutil, subprocess, sys, tempfile
from pathlib import Path

root, bin_ = Path(__file__).resolve().parent.parent, Path(sys.executable).parent
os.environ['PATH'] = f"{bin_}{os.pathsep}{os.environ['PATH']}"
os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', TOKENIZERS_PARALLELISM='false', MPLBACKEND='agg', PYTHONDONTWRITEBYTECODE='1')
os.environ.pop('VIRTUAL_ENV', None)   # of the shell that called, if any
ours = ['elmo_fastai', 'nbs']

def run(*cmd, **env):
    "Run `cmd` in the repository's root and stop everything where it fails."
    print(f"\n$ {' '.join(cmd)}", flush=True)
    if code := subprocess.run(cmd, cwd=root, env={**os.environ, **env}).returncode: sys.exit(code)

def differences(a, b):
    "Files under `a` and `b` that differ or are missing on one side."
    def files(p): return {f.relative_to(p) for f in p.rglob('*') if f.is_file() and not {'__pycache__', '.ipynb_checkpoints', '.quarto'} & set(f.parts)}
    return sorted(str(f) for f in files(a) | files(b) if not ((a/f).exists() and (b/f).exists() and filecmp.cmp(a/f, b/f, shallow=False)))

def check_export():
    "Exporting and cleaning in a copy of the project must change nothing."
    print('\n$ nbdev_export && nbdev_clean   (in a copy; nothing may change)', flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp)/'elmo_fastai'
        copy.mkdir()
        for o in ours: shutil.copytree(root/o, copy/o, ignore=shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints', '.quarto'))
        for o in ('settings.ini', 'setup.py', 'README.md', '_quarto.yml'): shutil.copy(root/o, copy/o)
        for f in (copy/'elmo_fastai').glob('*.py'):
            if f.name not in ('all.py', '__init__.py'): f.unlink()       # a module without a notebook must not survive
        for cmd in ('nbdev_export', 'nbdev_clean'): subprocess.run([cmd], cwd=copy, check=True)
        diff = [f'{o}/{f}' for o in ours for f in differences(root/o, copy/o)]
    if diff: sys.exit('These differ from what the notebooks export, or are not clean; run `make export`:\n  ' + '\n  '.join(diff))

if __name__ == '__main__':
    check_export()
    run(sys.executable, 'tests/readme.py', '--check')
    run('nbdev_test', '--n_workers', '2', '--timing', OMP_NUM_THREADS='1')
    run(sys.executable, '-m', 'pytest', '-q')
