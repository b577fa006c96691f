"""What a page defines, for its tests and for the script that measures the same at full size: in its
open cells, and its module of the library.

A study's own code is part of its page, and no part of the library: nobody needs it who does not
read the page."""
import ast, json, os, re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

def _is_kept(o):
    """Is it an import, a definition, or a table in capitals? What a page tries and shows is none
    of these"""
    if isinstance(o, ast.Assign):
        return all(isinstance(t, ast.Name) and t.id.isupper() for t in o.targets)
    return isinstance(o, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))

@lru_cache(None)
def page(name):
    "The definitions of nbs/NAME.ipynb"
    file, found = Path(__file__).resolve().parents[1]/'nbs'/f'{name}.ipynb', {}
    before = os.getcwd()
    os.chdir(file.parent)               # where the notebook runs: it may read tables beside it
    try: define(file, found)
    finally: os.chdir(before)
    return SimpleNamespace(**found)

def define(file, found):
    "Run the cells that define something, in the namespace `found`"
    for cell in json.loads(file.read_text(encoding='utf-8'))['cells']:
        source = ''.join(cell['source'])
        if module := re.match(r'#\| default_exp (\S+)', source):
            found |= vars(import_module(f'elmo_fastai.{module[1]}'))
        if cell['cell_type'] != 'code' or cell['id'] == 'colab' or source.startswith('#| export'):
            continue
        tree = ast.parse(re.sub('^[!%].*$', '', source, flags=re.M))     # no command of the shell
        tree.body = [o for o in tree.body if _is_kept(o)]
        exec(compile(tree, f'{file.stem}, cell {cell["id"]}', 'exec'), found)
