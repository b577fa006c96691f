"""`tests/execute.py PAGES`: run pages from top to bottom and keep what they show, figures as vectors;
`--stale`: those whose code was not run yet as it is now.

Cells marked `#| slow` or `#| eval: false` keep the outputs they have, unless `--slow` is given. A
chapter in which a cell fails stays as it was. The notebook keeps a hash of the code that was run,
so that a test can tell whether what it shows comes from what it says."""

import argparse, hashlib, json, os, re, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

root = Path(__file__).resolve().parent.parent
FIGURES = [
    "--InlineBackend.figure_formats={'svg'}",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Date': None}}",
    "--InlineBackend.rc={'svg.hashsalt': 'elmo'}",
]  # the same figure is the same file

def is_kept(cell, slow):
    "Whether a cell is left as it is"
    return bool(
        re.search(r'^#\|\s*eval:\s*false' + ('' if slow else r'|^#\|\s*slow'), cell.source, re.M))

def code_hash(
    cells, # of a notebook, as JSON has them
) -> str:  # SHA-256 in hex
    "A name for all code of a notebook, slow cells and others"
    sources = [''.join(c['source']) for c in cells if c['cell_type'] == 'code']
    return hashlib.sha256('\n\n'.join(sources).encode()).hexdigest()

def has_slow_cells(cells):
    return any(re.search(r'^#\|\s*slow', ''.join(c['source']), re.M) for c in cells
               if c['cell_type'] == 'code')

def note_run(path, slow):
    "Write into the notebook which code was run, and with which its slow cells were"
    nb = json.loads(path.read_text(encoding='utf-8'))
    run = nb['metadata'].get('run', {})
    run['code'] = code_hash(nb['cells'])
    if not has_slow_cells(nb['cells']): run.pop('slow', None)
    elif slow: run['slow'] = run['code']
    nb['metadata']['run'] = run
    path.write_text(
        json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True) + '\n', encoding='utf-8'
    )

class Chapter(NotebookClient):
    def __init__(self, nb, slow, **kwargs):
        super().__init__(
            nb, timeout=None, extra_arguments=FIGURES, store_widget_state=False, **kwargs
        )
        self.slow = slow

    async def async_execute_cell(self, cell, *args, **kwargs):
        if is_kept(cell, self.slow): return cell
        return await super().async_execute_cell(cell, *args, **kwargs)

def execute(
    path:Path,       # a notebook
    slow:bool=False, # run its slow cells, too?
):
    """Run a notebook in its folder and write it with its new outputs; raises CellExecutionError and
    writes nothing"""
    nb = nbformat.read(path, 4)
    Chapter(nb, slow, resources={'metadata': {'path': str(path.parent)}}).execute()
    # bars of progress are for the one who waits
    for c in nb.cells:
        if 'outputs' in c:
            c.outputs = [o for o in c.outputs if not any('widget' in k for k in o.get('data', ()))]
    nbformat.write(nb, path)
    subprocess.run(
        [Path(sys.executable).parent/'nbdev-clean', '--fname', str(path)], cwd=root, check=True
    )
    note_run(path, slow)

def is_stale(path):
    "Whether a notebook has other code than the one that was run"
    nb = json.loads(path.read_text(encoding='utf-8'))
    return nb['metadata'].get('run', {}).get('code') != code_hash(nb['cells'])

def timed(path, slow):
    "Run a notebook and print how long it took; whether no cell failed"
    start = time.time()
    try: execute(path.resolve(), slow)
    except CellExecutionError as e:
        print(e, file=sys.stderr)
        return False
    print(f'{path}: {time.time() - start:.0f} s', flush=True)
    return True

def main(
    args:list=None, # of the command line
) -> int:           # exit status
    "Run all chapters that are named, also after one has failed"
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('chapters', nargs='*', type=Path, help='notebooks (default: all)')
    p.add_argument('--slow', action='store_true', help='run slow cells as well')
    p.add_argument('--stale', action='store_true', help='only those with code that was not run')
    p.add_argument('--jobs', type=int, default=1, help='run so many at once (default: 1)')
    given = p.parse_args(args)
    os.environ.pop('MPLBACKEND', None)          # or a kernel shows no figures
    chapters = given.chapters or sorted([*root.glob('nbs/*.ipynb'), *root.glob('nbs/*/*.ipynb')])
    if given.stale: chapters = [f for f in chapters if is_stale(f)]
    with ThreadPoolExecutor(given.jobs) as pool:
        passed = list(pool.map(lambda f: timed(f, given.slow), chapters))
    failed = [f for f,ok in zip(chapters, passed) if not ok]
    print(f'{len(chapters) - len(failed)} of {len(chapters)} ran')
    if failed: print('Failed, and left as they were:', *failed, file=sys.stderr)
    return int(bool(failed))

if __name__ == '__main__': sys.exit(main())
