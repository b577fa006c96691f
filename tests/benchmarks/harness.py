"""What the benchmarks share: options of several values, new processes, turns, memory, rows and
files of figures.

Nothing is imported here that takes memory: the processes that are measured should hold no more
than they need."""
import json, os, platform, re, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Annotated

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT/'nbs'/'results'
for folder in (ROOT/'tests', ROOT): sys.path.insert(0, str(folder))       # whichever is installed

def several(kind):
    return Annotated[kind, dict(nargs='+')]

def new_process():
    return ProcessPoolExecutor(1, get_context('spawn'))

def in_process(f, *args):
    with new_process() as process: return process.submit(f, *args).result()

def environment():
    "The variables of a process with one thread that finds the library, whichever is installed"
    return os.environ | dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')

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
    start = clock()
    f()
    return clock() - start

def peak_gb():
    "The most memory that this program has held (Linux); `ru_maxrss` would count its parent's, too"
    return 1024*int(re.search(r'VmHWM:\s*(\d+)', Path('/proc/self/status').read_text())[1])/1e9

# Figures

def processor():
    info = Path('/proc/cpuinfo')
    names = re.findall(r'model name\s*: (.*)', info.read_text() if info.exists() else '')
    return names[0] if names else platform.processor() or platform.machine()

def read_figures(file, empty=None):
    "The figures in a file; `empty` where there is none"
    file = Path(file)
    return json.loads(file.read_text(encoding='utf-8')) if file.exists() else empty

def write_figures(
    file,     # None: nothing is written
    figures   # a list: one line for each row
):
    if file is None: return
    text = json.dumps(figures, indent=1, ensure_ascii=False)
    if isinstance(figures, list):
        text = '[\n' + ',\n'.join(json.dumps(row, ensure_ascii=False) for row in figures) + '\n]'
    Path(file).write_text(text + '\n', encoding='utf-8')

def log(*said): print(time.strftime('%H:%M:%S'), *said, flush=True)

def fill(
    rows,              # those that are there, each a dictionary
    keys,              # what the rows are to be: dictionaries
    make,              # function of what a key says that returns figures
    save=lambda: None  # is called after each new row
):
    "Add the rows that are missing: the same command goes on after an interruption"
    for key in keys:
        if any(key.items() <= row.items() for row in rows): continue
        rows.append(key | make(**key))
        log(rows[-1])
        save()
