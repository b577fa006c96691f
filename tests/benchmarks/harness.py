"""What the benchmarks share: options, text, processes, turns, memory, versions and files of
figures.

Nothing is imported here that takes memory: on Linux the peak of a child begins at its parent's."""
import argparse, importlib.metadata, json, os, platform, re, resource, subprocess, sys, time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT/'nbs'/'results'
for folder in (ROOT/'tests', ROOT): sys.path.insert(0, str(folder))       # whichever is installed
local = ROOT.parent/'shared'/'data'
if local.is_dir(): os.environ.setdefault('ELMO_FASTAI_DATA', str(local))

# Options

def opt(
    default=None,    # False: the option takes no value and turns something on
    help=None,       # one line
    hidden=False,    # of the processes that a script starts
    positional=False,
    **kw             # of `add_argument`: type, choices, nargs, metavar
) -> dict:
    "An option that is more than its default"
    return dict(default=default, help=help, hidden=hidden, positional=positional, **kw)

def settings_of(default, help, hidden, positional, **kw):
    "What `add_argument` needs for an option; its type is that of its default"
    if default is False: kw['action'] = 'store_true'
    elif default is not None:
        first = default[0] if isinstance(default, (list, tuple)) and default else default
        kw.setdefault('type', Path if isinstance(first, Path) else type(first))
        if 'default' not in (help or ''): help = f"{help or ''} (default: %(default)s)".strip()
    return dict(kw, default=default, help=argparse.SUPPRESS if hidden else help)

def options(
    doc:str,    # what `--help` begins with: a script's docstring
    args=None,  # in place of the command line's
    **fields    # name: default, or `opt(…)`
) -> argparse.Namespace:
    "Returns what the command line says"
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name,field in fields.items():
        kw = settings_of(**(field if isinstance(field, dict) else opt(field)))
        positional = isinstance(field, dict) and field['positional']
        parser.add_argument(name if positional else '--' + name.replace('_', '-'), **kw)
    return parser.parse_args(args)

# Text

def data_folder(name):
    "The folder `name` under ELMO_FASTAI_DATA or ../shared/data; None where it is not there"
    data = os.environ.get('ELMO_FASTAI_DATA')
    return Path(data)/name if data and (Path(data)/name).is_dir() else None

# Processes

def environment(threads=None, **more):
    "The variables of a process that finds the library, whichever is installed"
    paths = [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
    own = {} if threads is None else {'OMP_NUM_THREADS': str(threads)}
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(paths), **own, **more}

def again(*more):
    "The command that started this script, with more options"
    return [sys.executable, *sys.argv, *map(str, more)]

def in_process(job, *more, env=None):
    """What `job` of this script prints last, read as JSON; the script is started once more with
    --job"""
    run = subprocess.run(again('--job', job, *more), env=env or environment(),
                         stdout=subprocess.PIPE, text=True)
    if run.returncode:
        why = ' (out of memory?)' if run.returncode == -9 else ''
        sys.exit(f'{job}: stopped with {run.returncode}{why}')
    return json.loads(run.stdout.splitlines()[-1])

class Worker:
    "A process that answers each line with a line of JSON; the first line says that it is ready"
    def __init__(self, *more, command=None, env=None, name='a side'):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        command, env = command or again(*more), env or environment()
        self.name, self.process = name, subprocess.Popen(command, env=env, **pipes)
        self.read()
    def read(self):
        line = self.process.stdout.readline()
        if not line: sys.exit(f'{self.name} stopped with {self.process.wait()}')
        return json.loads(line)
    def __call__(self, question):
        self.process.stdin.write(f'{question}\n')
        self.process.stdin.flush()
        return self.read()
    def close(self):
        self.process.stdin.close()
        self.process.wait()

def answer(f, file=None):
    "Be such a process: `f` of each line"
    print(0, file=file, flush=True)
    for line in sys.stdin: print(json.dumps(f(line.strip())), file=file, flush=True)

# Time and memory

def turns(
    sides:dict,  # name: function of the turn's number that returns a figure
    reps:int     # turns of each side
) -> dict:       # name: its figures
    "Let the sides take turns, so that what else the machine does meets all of them"
    found = {name: [] for name in sides}
    for rep in range(reps):
        for name,side in sides.items(): found[name].append(side(rep))
    return found

def medians(found): return {name: median(figures) for name,figures in found.items()}

def seconds(f, clock=time.perf_counter):
    "How long a call takes"
    start = clock()
    f()
    return clock() - start

def peak_bytes():
    "The most memory that this program has held; `ru_maxrss` would count what started it, too"
    status = Path('/proc/self/status')
    if status.exists(): return 1024*int(re.search(r'VmHWM:\s*(\d+)', status.read_text())[1])
    unit = 1 if sys.platform == 'darwin' else 1024
    return unit*resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def peak_gb(): return peak_bytes()/1e9

# Machine and files

def processor():
    "The processor's name, as it names itself"
    info = Path('/proc/cpuinfo')
    lines = info.read_text(encoding='utf-8').splitlines() if info.exists() else []
    names = [line.split(':')[1].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.processor() or platform.machine()

def versions(*packages):
    "The versions of packages; stops where one is not installed"
    try: return {name: importlib.metadata.version(name) for name in packages}
    except importlib.metadata.PackageNotFoundError as e:
        sys.exit(f'{e.name} is not installed: see --help')

def read_figures(file, empty=None):
    "The figures in a file; `empty` where there is none"
    file = Path(file)
    if not file.exists(): return empty
    return json.loads(file.read_text(encoding='utf-8'))

def write_figures(
    file,          # None: nothing is written
    figures,
    lines=False    # a list: one line each
):
    "Write figures as JSON; a process that is stopped meanwhile leaves the old file"
    if file is None: return
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    if lines:
        text = '[\n' + ',\n'.join(json.dumps(row, ensure_ascii=False) for row in figures) + '\n]'
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f'{file.name}.{os.getpid()}.part')
    part.write_text(text + '\n', encoding='utf-8')
    part.replace(file)

def kept(
    file,     # of an earlier run; None: there is none
    found,    # settings, and an empty list or dictionary under `key`
    key='rows'
):
    "What `file` has under `key`; stops where it was measured with other settings"
    was = read_figures(file) if file else None
    if was is None: return found[key]
    def same(name): return was.get(name) == json.loads(json.dumps(found[name]))
    differ = [name for name in found if name != key and not same(name)]
    if not differ: return was[key]
    sys.exit(f"{file} has rows with another {' and '.join(differ)}: "
             "name another file with --json, or delete this one")

# Rows

def has(rows, key): return any(key.items() <= row.items() for row in rows)

def log(*said): print(f"[{time.strftime('%H:%M:%S')}]", *said, flush=True)

def fill(
    rows,      # those that are there, each a dictionary
    keys,      # what the rows are to be: dictionaries
    make,      # function of what a key says that returns figures
    save=None  # is called after each new row
):
    """Adds the rows that are missing, each as soon as it is there: the same command goes on after
    an interruption"""
    for key in keys:
        if has(rows, key): continue
        rows.append(key | make(**key))
        print(rows[-1], flush=True)
        if save: save()

def fill_file(file, keys, make):
    "As `fill`, for a file of rows, a line each"
    rows = read_figures(file, [])
    fill(rows, keys, make, lambda: write_figures(file, rows, lines=True))
