"""`tests/execute.py PAGES`: run pages from top to bottom and keep what they show, figures as
vectors; `--stale`: those whose code was not run yet as it is now.

Cells marked `#| slow` or `#| eval: false` keep the outputs they have, unless `--slow` is given. A
page in which a cell fails stays as it was. A page keeps a hash of the code that was run, so that a
test can tell whether what it shows comes from what it says."""
import argparse, json, os, re, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from notebooks import code_hash, is_stale, root

FIGURES = [         # the same figure is the same file; its letters are text, in the drawings' fonts
    "--InlineBackend.figure_formats={'svg'}",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Date': None}}",
    "--InlineBackend.rc={'svg.hashsalt': 'elmo', 'svg.fonttype': 'none', "
    "'font.sans-serif': ['Helvetica', 'Arial', 'DejaVu Sans', 'sans-serif']}"]

class Chapter(NotebookClient):
    "Runs the cells of a page, but for those that are kept as they are"
    def __init__(self, nb, slow, **kwargs):
        super().__init__(nb, timeout=None, extra_arguments=FIGURES, store_widget_state=False,
                         **kwargs)
        self.kept = re.compile(r'^#\|\s*eval:\s*false' + r'|^#\|\s*slow'*(not slow), re.M)

    async def async_execute_cell(self, cell, *args, **kwargs):
        if self.kept.search(cell.source): return cell
        return await super().async_execute_cell(cell, *args, **kwargs)

def note_run(path):
    "Write into the page which code was run"
    nb = json.loads(path.read_text(encoding='utf-8'))
    nb['metadata']['run'] = dict(code=code_hash(path))
    text = json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + '\n', encoding='utf-8')

def execute(path, slow=False):
    "Run a page in its folder and write it with its new outputs; whether no cell failed"
    start, nb = time.time(), nbformat.read(path, 4)
    try: Chapter(nb, slow, resources={'metadata': {'path': str(path.parent)}}).execute()
    except CellExecutionError as e:
        print(e, file=sys.stderr)
        return False
    for c in nb.cells:               # bars of progress are for the one who waits
        if 'outputs' in c:
            c.outputs = [o for o in c.outputs if not any('widget' in k for k in o.get('data', ()))]
    nbformat.write(nb, path)
    clean = Path(sys.executable).parent/'nbdev-clean'
    subprocess.run([clean, '--fname', str(path)], cwd=root, check=True)
    note_run(path)
    print(f'{path}: {time.time() - start:.0f} s', flush=True)
    return True

def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument('pages', nargs='*', type=Path, help='notebooks (default: all)')
    p.add_argument('--slow', action='store_true', help='run slow cells as well')
    p.add_argument('--stale', action='store_true', help='only those with code that was not run')
    p.add_argument('--jobs', type=int, default=1, help='run so many at once (default: 1)')
    given = p.parse_args()
    os.environ.pop('MPLBACKEND', None)          # or a kernel shows no figures
    pages = given.pages or sorted([*root.glob('nbs/*.ipynb'), *root.glob('nbs/*/*.ipynb')])
    if given.stale: pages = [f for f in pages if is_stale(f)]
    with ThreadPoolExecutor(given.jobs) as pool:
        ran = list(pool.map(lambda f: execute(f.resolve(), given.slow), pages))
    print(f'{sum(ran)} of {len(pages)} ran')
    if not all(ran): sys.exit(' '.join(['Failed, and left as they were:', *(
        str(f) for f,ok in zip(pages, ran) if not ok)]))

if __name__ == '__main__': main()
