"`make run` notes which code a notebook's outputs come from"
import hashlib, json

from execute import code_hash, is_stale, main, note_run

def notebook(path, *sources):
    cells = [dict(cell_type='markdown', metadata={}, source=['Some text.'])]
    cells += [dict(cell_type='code', metadata={}, outputs=[], execution_count=None,
                   source=o.splitlines(keepends=True)) for o in sources]
    path.write_text(json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)))
    return path

def run_of(path): return json.loads(path.read_text(encoding='utf-8'))['metadata']['run']

def test_the_hash_is_that_of_all_code_cells(tmp_path):
    file = notebook(tmp_path/'a.ipynb', 'a = 1\nb = 2', '#| hide\na')
    cells = json.loads(file.read_text())['cells']
    assert code_hash(cells) == hashlib.sha256('a = 1\nb = 2\n\n#| hide\na'.encode()).hexdigest()
    cells[0]['source'] = ['Other text.']
    before = code_hash(cells)
    cells[1]['source'] = ['a = 3']
    assert (
        before
        == hashlib.sha256('a = 1\nb = 2\n\n#| hide\na'.encode()).hexdigest()
        != code_hash(cells)
    )

def test_slow_cells_keep_the_hash_with_which_they_were_run(tmp_path):
    file = notebook(tmp_path/'a.ipynb', 'a = 1', '#| slow\na')
    note_run(file, slow=True)
    first = run_of(file)
    assert first['slow'] == first['code']
    nb = json.loads(file.read_text(encoding='utf-8'))
    nb['cells'][1]['source'] = ['a = 2']
    file.write_text(json.dumps(nb))
    note_run(file, slow=False)
    second = run_of(file)
    assert second['slow'] == first['code'] != second['code'] == code_hash(nb['cells'])

def test_without_slow_cells_there_is_one_hash(tmp_path):
    file = notebook(tmp_path/'a.ipynb', 'a = 1')
    note_run(file, slow=True)
    assert set(run_of(file)) == {'code'}

def test_a_notebook_is_stale_until_its_code_has_run(tmp_path, capsys):
    file = notebook(tmp_path/'a.ipynb', 'a = 1')
    assert is_stale(file)
    note_run(file, slow=False)
    assert not is_stale(file)
    assert main(['--stale', str(file)]) == 0
    assert capsys.readouterr().out == '0 of 0 ran\n'
    nb = json.loads(file.read_text(encoding='utf-8'))
    nb['cells'][1]['source'] = ['a = 2']
    file.write_text(json.dumps(nb))
    assert is_stale(file)
