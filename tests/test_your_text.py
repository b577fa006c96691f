"""The lesson on a text of one's own: whole, with its trainings of minutes, on little text and on
another text than the stored one"""
import ast, re, sys
from pathlib import Path
from types import ModuleType
import matplotlib.pyplot as plt, pytest

from elmo_fastai.all import toy_corpus
from elmo_fastai.practice import command, run
from notebooks import home, read, source

lesson = home/'course'/'14_your_text.ipynb'
code = {c['id']: c for c in read(lesson)['cells'] if c['cell_type'] == 'code'}
LESS = {"'../data/hound.txt'": "'mine.txt'", 'MINUTES = 3': 'MINUTES = .02',
        'range(8)': 'range(2)', '10.**np.arange(-4, 4)': '[.01, 1.]', 'fit_one_cycle(6': 'fit_one_cycle(1'}

def shortened(cell):
    "Its code with little to compute, the command as a call, and without what it asserts"
    text = source(cell)
    for much,less in LESS.items(): text = text.replace(much, less)
    text = re.sub(r'^!elmo_pretrain (.*?) \|.*$', r"elmo_pretrain(f'\1'.split())", text, flags=re.M)
    tree = ast.parse(text)
    tree.body = [o for o in tree.body if not isinstance(o, ast.Assert)]
    return compile(tree, f'{lesson.stem}, cell {cell["id"]}', 'exec')

def beginning_of_the_novel():
    lines = (home/'data'/'hound.txt').read_text(encoding='utf-8').splitlines()
    return [line for line in lines if line][:300]

def toy_dialogue():
    "Sentences of the toy language; two of three are spoken"
    lines = [' '.join(tokens).capitalize() for tokens in toy_corpus(500).sentences('train')]
    return [f'“{line}”' if i % 3 else line for i,line in enumerate(lines)]

@pytest.mark.parametrize('lines', [beginning_of_the_novel, toy_dialogue])
def test_the_whole_lesson_on_another_text(lines, tmp_path, monkeypatch):
    (tmp_path/'course').mkdir()
    for name in ('data', 'results'): (tmp_path/name).symlink_to(home/name)
    monkeypatch.chdir(tmp_path/'course')
    monkeypatch.setattr(plt, 'show', plt.close)
    monkeypatch.setitem(run.CORPORA, 'toy', lambda n_train: toy_corpus(300, 100, 100, 10))
    Path('mine.txt').write_text('\n'.join(lines()), encoding='utf-8')
    module = ModuleType('lesson')                                       # for the pickle of its class
    monkeypatch.setitem(sys.modules, 'lesson', module)
    found = vars(module)
    found |= {'display': str, 'elmo_pretrain': command.elmo_pretrain}
    for id,cell in code.items():
        if '#| eval: false' not in source(cell): exec(shortened(cell), found)
    assert {'yours', 'yours-from', 'game', 'speech.pkl'} <= {o.name for o in Path('models').iterdir()}
    assert len(found['scores']) == 5 and found['lead'].counting.eq(0).all()
