"""What `make robust` runs: every notebook, and the tests that train something, under
circumstances that the course was not written under.

Another processor rounds otherwise, and a model trained with other roundings is another model:
nothing that is asserted about a trained thing may depend on them, or on one seed.

| setting       | what is different                                                             |
|---------------|-------------------------------------------------------------------------------|
| `as-is`       | nothing: all threads, bfloat16 where the processor has it                     |
| `avx512`      | oneDNN without the instructions for bfloat16 and AMX                          |
| `avx2`        | PyTorch, oneDNN and MKL with AVX2, weights at odd addresses                   |
| `sse`         | all three with SSE only, weights at odd addresses                             |
| `one-thread`, `two-threads` | that many; all settings below and above but `as-is` use one     |
| `fp32`        | `bf16_is_fast` says no, so that trainings run in float32, as in the three     |
|               | settings without the instructions                                             |
| `seeds+N`     | N is added to every number that seeds a generator of Python, NumPy or torch:  |
|               | weights, dropout, order of the batches, held-out parts, random examples       |

`tests/startup/sitecustomize.py` does the last two and moves the weights; no notebook is touched.
Seeds that are texts
stay: the toy language makes its sentences from those, and chapters describe some of them one by
one. So do scikit-learn's `random_state`s.

Results go to `_robust/results.jsonl` with a digest of the notebook or test and of the modules that
it imports, what a run prints goes to `_robust/SETTING/`. Called again, the script goes on where it
was stopped, and runs only what has changed since, or what `--again` asks for."""
import argparse, hashlib, json, os, re, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

root, bin_ = Path(__file__).resolve().parent.parent, Path(sys.executable).parent
SETTINGS = {
    'as-is': {}, 'avx512': dict(ONEDNN_MAX_CPU_ISA='AVX512_CORE', ROBUST_FP32='1'),
    'avx2': dict(ATEN_CPU_CAPABILITY='avx2', ONEDNN_MAX_CPU_ISA='AVX2',
                 MKL_ENABLE_INSTRUCTIONS='AVX2', ROBUST_ADDRESSES='1', ROBUST_FP32='1'),
    'sse': dict(ATEN_CPU_CAPABILITY='default', ONEDNN_MAX_CPU_ISA='SSE41',
                MKL_CBWR='COMPATIBLE', ROBUST_ADDRESSES='1', ROBUST_FP32='1'),
    'one-thread': dict(OMP_NUM_THREADS='1'), 'two-threads': dict(OMP_NUM_THREADS='2'),
    'fp32': dict(ROBUST_FP32='1'), **{f'seeds+{n}': dict(ROBUST_SEEDS=f'{n}') for n in (1, 2, 3)}}
TRAINS = re.compile(r'\.fit|_learner\(|train_|\.backward\(')
IMPORT = re.compile(r'^\s*from (elmo_fastai[\w.]*|\.[\w.]*) import ([^\n#]*)', re.M)
FAILED = re.compile(r'^(?:FAILED|ERROR) (\S+)|^\t(\w+)\.ipynb$', re.M)    # pytest's, nbdev's

def read(file): return file.read_text(encoding='utf-8', errors='replace')

def name_of(file): return file.relative_to(root).as_posix()

def units():
    "All notebooks, and the files of tests that train something"
    tests = (f for f in sorted((root/'tests').glob('test_*.py')) if TRAINS.search(read(f)))
    return [*sorted((root/'nbs').rglob('*.ipynb')), *tests]

def environment(setting):
    "The variables of a process that runs under `setting`"
    own = SETTINGS.get(setting) or dict(ROBUST_SEEDS=setting.removeprefix('seeds+'))
    own = {} if setting == 'as-is' else {'OMP_NUM_THREADS': '1', **own}
    paths = dict(PYTHONPATH=f"{root/'tests'/'startup'}{os.pathsep}{root}",
                 PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")
    same = {k: v for k,v in os.environ.items() if not k.startswith('ROBUST_')}
    return {**same, **paths, 'HF_HUB_OFFLINE': '1', 'HF_DATASETS_OFFLINE': '1',
            'TOKENIZERS_PARALLELISM': 'false', 'MPLBACKEND': 'agg',
            'OMP_WAIT_POLICY': 'PASSIVE', **own}

def code(file):
    "The Python of a notebook's cells, or of a file"
    if file.suffix != '.ipynb': return read(file)
    cells = json.loads(read(file))['cells']
    return '\n'.join(''.join(c['source']) for c in cells if c['cell_type'] == 'code')

def imported(file):
    "Modules of the library that `file` names in its imports"
    for where,names in IMPORT.findall(code(file)):
        package = where.removeprefix('.')                          # '.', then its parts
        up = len(package) - len(package.lstrip('.'))
        start = file.parents[up] if where.startswith('.') else root
        at = start.joinpath(*package.lstrip('.').split('.'))
        inside = (at/f'{o.split()[0]}.py' for o in names.split(',') if o.strip(' ()\\'))
        yield from (o for o in (at.with_suffix('.py'), at/'__init__.py', *inside) if o.is_file())

@lru_cache(None)
def needed(file):
    "`file` and all of the library that is read for it, directly or not"
    found, new = {file}, {file}
    while new: found |= (new := {o for f in new for o in imported(f)} - found)
    return found

def digest(file):
    "A name for the state of the code in `file` and of what it needs"
    ours = sorted(needed(file) - {file})
    ours += sorted((root/'tests'/'startup').glob('*.py'))
    if file.suffix == '.py': ours += sorted((root/'tests').glob('[!t]*.py'))    # conftest and tools
    return hashlib.sha1(''.join(map(code, [file, *ours])).encode()).hexdigest()[:12]

def run(setting, file, out):
    "Run `file` under `setting`: which state of it, how long, and what of it failed"
    res, start = dict(setting=setting, file=name_of(file), digest=digest(file)), time.time()
    cmd = ['nbdev-test', name_of(file)]
    if file.suffix == '.py': cmd = [sys.executable, '-m', 'pytest', '-q', name_of(file)]
    log = (out/setting/name_of(file)).with_suffix('.log')
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, 'w') as f:
        code = subprocess.run(cmd, cwd=root, env=environment(setting), stdout=f, stderr=f,
                              stdin=subprocess.DEVNULL).returncode
    names = [a or b for a,b in FAILED.findall(read(log))] or [f'{file.stem} ({code})']
    return {**res, 'seconds': round(time.time() - start), 'failed': names if code else []}

def table(settings, files, known):
    "Settings × what failed, in Markdown"
    yield '| setting | notebooks | files of tests | minutes | failed |\n|---|---|---|---|---|'
    for s in settings:
        rows = [known[s, name_of(f)] for f in files if (s, name_of(f)) in known]
        n = sum(o['file'].endswith('.ipynb') for o in rows)
        failed = ', '.join(o for r in rows for o in r['failed']) or 'nothing'
        minutes = sum(o['seconds'] for o in rows)/60
        yield f'| {s} | {n} | {len(rows) - n} | {minutes:.0f} | {failed} |'

def arguments():
    p = argparse.ArgumentParser(description='Run notebooks and tests under other circumstances.')
    p.add_argument('--settings', nargs='+', default=[*SETTINGS], metavar='SETTING',
                   help=f"of {', '.join(SETTINGS)}; any other seeds+N")
    p.add_argument('--only', nargs='+', default=[], metavar='NAME',
                   help='notebooks and files of tests: 12_probe test_tagger')
    p.add_argument('--workers', type=int, default=2, help='how many run at a time (2)')
    p.add_argument('--again', action='store_true', help='also run what has a result')
    args, names = p.parse_args(), {f.stem for f in units()}
    settings = {o for o in args.settings if not re.fullmatch(r'seeds\+\d+', o)}
    if bad := settings - {*SETTINGS}: p.error(f"no such setting: {', '.join(bad)}")
    if bad := {*args.only} - names: p.error(f"no notebook or training test: {', '.join(bad)}")
    return args

def main():
    args, out = arguments(), root/'_robust'
    files = [f for f in units() if not args.only or f.stem in args.only]
    out.mkdir(exist_ok=True)
    (results := out/'results.jsonl').touch()
    now, old = {name_of(f): digest(f) for f in files}, map(json.loads, read(results).splitlines())
    known = {(o['setting'], o['file']): o for o in old if o['digest'] == now.get(o['file'])}
    todo = [(s, f) for s in args.settings for f in files if args.again
            or (s, name_of(f)) not in known]
    print(f'{len(todo)} runs; what each prints goes to _robust/SETTING/', flush=True)
    with ThreadPoolExecutor(args.workers) as pool:
        for done in as_completed(pool.submit(run, *o, out) for o in todo):
            o = done.result()
            known[o['setting'], o['file']] = o
            with open(results, 'a') as f: f.write(json.dumps(o) + '\n')
            said = f"failed: {', '.join(o['failed'])}" if o['failed'] else 'passed'
            print(f"{o['setting']:12} {o['file']:36} {o['seconds']:5} s  {said}", flush=True)
    print('\n' + '\n'.join(table(args.settings, files, known)))
    sys.exit(any(o['failed'] for (s,_),o in known.items() if s in args.settings))

if __name__ == '__main__': main()
