"""The table that grows through the course: its rungs, their order, and what they write"""
import ast, re
import matplotlib.pyplot as plt, pandas as pd, pytest

from elmo_fastai.all import WordVocab, toy_corpus
from notebooks import home, name, read, source, taught

RUNGS = ['uniform', 'unigram', 'bigram', 'trigram', 'Kneser–Ney', 'bigram network', 'window of four',
         'window with letters', 'LSTM on words', 'LSTM on letters', 'both directions', 'two layers',
         'residual', 'pretrained', 'floor']
# (better, worse): what the lessons say of two rungs
STEPS = [('unigram', 'uniform'), ('bigram', 'unigram'), ('trigram', 'bigram'),
         ('Kneser–Ney', 'trigram'), ('window of four', 'Kneser–Ney'),
         ('window of four', 'window with letters'), ('LSTM on words', 'LSTM on letters'),
         ('pretrained', 'residual'), ('pretrained', 'LSTM on words')]
TWO = RUNGS[1:5] + RUNGS[-5:-1]          # read in both directions

@pytest.fixture(scope='module')
def table(): return pd.read_csv(home/'data'/'ladder.csv').set_index('model')

def test_each_rung_has_its_row(table): assert list(table.index) == RUNGS

@pytest.mark.parametrize('better, worse', STEPS)
def test_order_holds(table, better, worse):
    assert 1.03*table.forward[better] < table.forward[worse]

def test_nothing_is_below_the_floor(table):
    floor = toy_corpus(n_train=10).floor('valid')
    assert abs(table.forward['floor'] - floor) < .01
    assert (table.drop('floor')[['forward', 'backward']].min() > floor).all()

def test_directions_are_about_equally_hard(table):
    rows = table.loc[TWO]
    assert (rows.forward/rows.backward).between(.9, 1.1).all()

def test_bigram_network_learns_the_counts(table):
    assert .95 < table.forward['bigram network']/table.forward['bigram'] < 1.05

def test_rungs_write_words_of_the_language(table):
    words = set(WordVocab.build(toy_corpus(n_train=20_000).sentences('train')).itos[4:])
    for texts in table.drop(['uniform', 'floor'])[['writes1', 'writes2', 'writes3']].values:
        for text in texts: assert 0 < len(text.split()) <= 20 and set(text.split()) <= words

# ---- rungs that take longer than a lesson should

def is_slow(cell): return cell['cell_type'] == 'code' and '#| slow' in source(cell)

def trains(cell):
    "Is it code that a learner runs?"
    return cell['cell_type'] == 'code' and not re.search(r'#\| (hide|default_exp|eval: false)',
                                                         source(cell))

@pytest.mark.parametrize('nb', [nb for nb in taught if any(map(is_slow, read(nb)['cells']))
                                and nb.stem != '14_your_text'], ids=name)   # that has a test of its own
def test_slow_cells_run_on_little_text(nb, monkeypatch, tmp_path):
    "The whole lesson on 2,500 sentences; what it asserts is about more text, and left out"
    monkeypatch.chdir(nb.parent)
    monkeypatch.setattr(plt, 'show', plt.close)
    found = {'display': str, '__name__': nb.stem}
    for cell in filter(trains, read(nb)['cells']):
        code = re.sub(r'n_train=[\d_]+', 'n_train=2_500', source(cell)).replace('sample(400,', 'sample(100,')
        tree = ast.parse(re.sub(r'models/', f'{tmp_path}/', code))
        tree.body = [o for o in tree.body if not isinstance(o, ast.Assert)]
        exec(compile(tree, f'{nb.stem}, cell {cell["id"]}', 'exec'), found)
    plt.close('all')
    if 'rungs' in found: assert all(float(rung['forward']) > 1 for rung in found['rungs'])
