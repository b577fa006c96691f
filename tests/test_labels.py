"Tables of texts and labels: every source, every defect, and what fastai asks of the loaders"
import gzip, json, pickle
from collections import Counter
import numpy as np, pandas as pd, pytest, torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from hypothesis import given, settings, strategies as st
from fastai.basics import L

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.tasks.learner import TaskLoss
from elmo_fastai.text.splits import drawn

def split_rows(rows, pct, seed): return drawn(rows, pct, seed, [label for _,label in rows])

PAIRS = [(f'text number {i} .', 'pos' if i%2 else 'neg') for i in range(20)]
def make(data=PAIRS, **kw):
    return ClassifyDataLoaders.from_data(data, **{**dict(device='cpu', seed=1), **kw})


@pytest.fixture(scope='module')
def dls(): return make()

@pytest.mark.parametrize('valid,n', [(.5, 10), (None, 2)])
def test_a_share_to_validate_on(valid, n): assert len(make(valid=valid).valid.items) == n

def test_new_rows_are_read_as_the_kind_that_was_trained():
    d = make([(f'a {i}', ['01', '10', '11'][i%3]) for i in range(30)], kind='class')
    assert d.test_dl([('b', '01')], with_labels=True).items == [('b', '01')]

@pytest.mark.parametrize('rows', [([0, 1, 0], [1, 0, 0]), ('[0, 1, 0]', '[1, 0, 0]')])
def test_lists_of_flags_are_classes_if_it_is_said(rows):
    d = make([(f'a {i}', rows[i % 2]) for i in range(20)], kind='class')
    assert list(d.vocab) == ['[0, 1, 0]', '[1, 0, 0]']
    assert d.test_dl([('a', rows[1])], with_labels=True).one_batch()[1].tolist() == [1]

# sources

def test_all_sources_give_the_same_rows(tmp_path):
    df = pd.DataFrame(PAIRS, columns=['sentence', 'class'])
    df.to_csv(tmp_path / 't.csv', index=False)
    df.to_csv(tmp_path / 't.tsv', index=False, sep='\t')
    df.to_csv(tmp_path / 't.csv.gz', index=False)
    df.to_parquet(tmp_path / 't.parquet')
    df.to_json(tmp_path / 't.jsonl', orient='records', lines=True)
    df.to_json(tmp_path / 't.json', orient='records')
    files = [tmp_path/f't.{o}' for o in ('csv', 'tsv', 'csv.gz', 'parquet', 'jsonl', 'json')]
    ref = make()
    for o in [df, df.sample(frac=1, random_state=0).sort_index(), df.to_dict('records'),
              Dataset.from_pandas(df), Dataset.from_pandas(df).to_iterable_dataset(), *files,
              *map(str, files)]:
        d = make(o)
        assert (d.train.items, d.valid.items) == (ref.train.items, ref.valid.items)


def test_splits_of_a_dictionary_and_of_the_hub():
    f = Features(sentence=Value('string'), label=ClassLabel(names=['negative', 'positive']))
    part = lambda ls: Dataset.from_dict(
        dict(sentence=[f's {i} .' for i in range(len(ls))], label=ls), features=f)
    # as the hub's SST-2
    d = make(DatasetDict(train=part([0, 1, 1]), validation=part([1, 0]), test=part([-1, -1])))
    assert (list(d.vocab) == ['negative', 'positive'] and len(d.loaders) == 2
            and d.skipped == {'texts without a label': 2})
    d = make(dict(train=PAIRS, dev=PAIRS[:4], test=PAIRS[4:9]))
    assert d.balance.sum().tolist() == [20, 4, 5] and d[2].items == PAIRS[4:9]

def test_rows_to_validate_on_are_named_by_a_column_and_misspelt_arguments_are_refused():
    df = pd.DataFrame(PAIRS, columns=['text', 'label']).assign(
        held=[i < 4 for i in range(20)], features='x')
    d = ClassifyDataLoaders.from_df(df, valid_col='held', device='cpu')
    assert d.valid.items == PAIRS[:4] and len(d.train.items) == 16
    with pytest.raises(TypeError, match='max_wrods'): make(max_wrods=3)
    with pytest.raises(TypeError, match='valid_col'): make(df, valid_col='held')

def test_a_separate_table_for_validation(): assert make(valid=PAIRS[:3]).valid.items == PAIRS[:3]

def test_corpora():
    c = toy_corpus(n_train=300, n_valid=100, n_test=100, n_unseen=5)
    d = make(c)
    assert (d.valid.items == [(s.text, s.label) for s in c.gold['valid'] if s.label is not None]
            and d.train.text.tokenizer == 'space')
    with pytest.raises(CorpusError, match="'bare' has no labels"):
        make(Corpus('bare', dict(train=['a b', 'c'])))


@pytest.mark.parametrize('df,error', [
    (pd.DataFrame(dict(text=['a', 'b'])), 'there are no labels'),
    (pd.DataFrame(dict(words=['a', 'b'], label=[1, 2])), 'no column'),
    (pd.DataFrame([['a', 'b', 1]], columns=['text', 'text', 'label']), "2 columns 'text'"),
    (pd.DataFrame(dict(text=[1, 2], label=[0, 1])), 'row 0 of the table holds int 1, not text'),
    (pd.DataFrame(dict(text=['a', 'b'], label=[1, 1])), 'all 2 rows are 1'),
    (pd.DataFrame(dict(text=['a', 'b'], label=[None, None])), 'there are no labels'),
    (pd.DataFrame(dict(text=['a', ''], label=[None, 1])), 'no training row has both'),
    (pd.DataFrame(dict(text=['a', 'b'], label=['x', 3])), 'several types'),
    (pd.DataFrame(dict(text=[f't{i}' for i in range(60)], label=range(60))),
     '60 different labels in 60 rows'),
    (pd.DataFrame(dict(text=[], label=[])), 'there are no labels'),
    ([], 'empty'),
    ('nothing.csv', 'there is no file'),
    ('x.docx', 'no file or folder'),
    (5, 'got int 5'),
    ([('a', 1, 2)], r'row 0: expected \(text, label\)'),
    ((o for o in PAIRS), 'got generator'),
    (pd.DataFrame([['a', 1, 2]], columns=['text', 'label', 'label']), "2 columns 'label'"),
    (dict(valid=PAIRS), "no split 'train'"),
    ({'train': PAIRS, 'valid': [(' ', 'pos')]}, 'no row of 1 can be used to validate'),
    ([('a\0b', 1), ('c', 0)], 'NUL'),
    ([('a\ud800', 1), ('c', 0)], 'surrogate')], ids=lambda o: str(o)[:20])
def test_tables_that_can_not_be(df, error):
    with pytest.raises(CorpusError, match=error):
        make(df)


def test_files_that_can_not_be(tmp_path):
    for name, data in {'a.csv': b'text,label\n"open,1\n', 'b.csv': b'', 'c.csv': b'\xff\xfe\x00',
                       'd.parquet': b'PAR1', 'e.json': b'{', 'f.csv.gz': b'no gzip'}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorpusError, match=name):
            make(tmp_path / name)
    with pytest.raises(CorpusError): make(tmp_path)

def test_na_is_a_text_and_gaps_are_counted(tmp_path):
    (tmp_path/'t.csv').write_text('text,label\nNA,1\nNone,0\nnull,1\n,1\n"  ",0\nnan,\nfine,0\n')
    (tmp_path/'v.csv').write_text('text,label\nx,1\n')
    d = make(tmp_path/'t.csv', valid=tmp_path/'v.csv')
    assert [o for o, _ in d.train.items] == ['NA', 'None', 'null', 'fine'] and [
        str(o) for _, o in d.train.items] == list('1010')
    assert d.skipped == {'texts that are missing': 1, 'blank texts': 1, 'texts without a label': 1}

@pytest.mark.parametrize('labels', [
    [True, False] * 5, [1.0, 0.0, None, 1.0, 0.0] * 2, list('ab') * 5, [' a', 'b '] * 5,
    np.array([3, 7] * 5)], ids=str)
def test_kinds_of_labels(labels):
    d = make(pd.DataFrame(dict(text=[f't {i}' for i in range(10)], label=labels)), valid_pct=0.25)
    assert all(type(o) in (bool, int, str) for o in d.vocab) and len(d.vocab) == 2
    assert all(o == o.strip() for o in d.vocab if isinstance(o, str))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=20, max_size=80), st.floats(.1, .9), st.integers(0, 9))
def test_each_class_is_held_out_in_proportion(labels, pct, seed):
    rows = [(f't{i}', o) for i,o in enumerate(labels)]
    try: a,b = split_rows(rows, pct, seed)
    except CorpusError: assert len(rows) < 2; return
    assert sorted(a + b) == sorted(rows) and (a, b) == split_rows(rows, pct, seed)
    for o, n in Counter(labels).items():
        assert sum(l == o for _, l in b) == min(max(round(n * pct), n > 1), max(n - 1, 0))


# loaders

def test_every_text_once_with_its_label(dls):
    for _ in range(2):
        got = Counter(tuple(map(str, o)) for b in dls.train for o in dls.train.decode_batch(b, 99))
        assert got == Counter(dls.train.items)
    assert len({tuple(dls.train.get_idxs()) for _ in range(5)}) > 1

def test_batches_have_no_marks_and_padding_on_the_right():
    d = make([('a', 0), ('a b c', 1)]*4, valid=[('a', 0), ('b c d', 1)], valid_bs=2)
    x,y = d.valid.one_batch()
    assert x.shape == (2, 3, 50) and x.dtype == torch.int16 and y.tolist() == [0, 1]
    assert (x[..., 0] != 0).tolist() == [[True, False, False], [True] * 3] and not (
        x[..., 1] >= 257).any()


def test_balance_and_weights():
    d = make([(f't {i}', 'rare' if i < 5 else 'common') for i in range(50)], valid_pct=.2)
    assert d.balance.loc['rare'].tolist() == [4, 1] and d.balance.loc['common'].tolist() == [36, 9]
    assert torch.allclose(d.class_weights, torch.tensor([40/36/2, 40/4/2]))

def test_new_texts(dls):
    new = ['b c', ['a', 'list', 'of', 'tokens'], 'd']
    dl = dls.test_dl(new, num_workers=0)
    assert len(next(iter(dl))) == 1 and sorted(dl.decode_batch(dl.one_batch())) == [
        ('a list of tokens',), ('b c',), ('d',)]
    n = len(dls.train.types)
    assert dl.types is not dls.train.types and len(dls.train.types) == n, (
        "a service must not grow with what it is asked")
    dl = dls.test_dl(pd.DataFrame(PAIRS[:3], columns=['text', 'label']), with_labels=True)
    assert (
        dl.items == PAIRS[:3]
        and [tuple(map(str, o)) for o in dl.decode_batch(dl.one_batch())] == PAIRS[:3]
    ), 'in their order'


@pytest.mark.parametrize('items,kw,error', [
    ([None], {}, 'holds NoneType'),
    ([float('nan')], {}, 'holds float'),
    ([['a', 1]], {}, 'holds int'),
    ([('a', 'pos')], {}, 'holds tuple'),
    ([], {}, 'no texts'),
    ([('a', None)], dict(with_labels=True), 'row 0'),
    ('some text', {}, 'there is no file')])
def test_new_texts_that_can_not_be(dls, items, kw, error):
    with pytest.raises(CorpusError, match=error):
        dls.test_dl(items, **kw)


def test_labels_that_no_training_row_has_are_errors(dls):
    "They are said, and no prediction is right"
    with pytest.warns(UserWarning, match="no training row has.*an error: 'new' .1."):
        x,y = dls.test_dl([('a', 'new'), ('b', 'pos')], with_labels=True).one_batch()
    assert y.tolist() == [-1, 1] and not (torch.eye(2).argmax(1) == y[:1]).any()
    assert torch.isfinite(TaskLoss(None, dls.train.text.target.loss())(torch.zeros(2, 2), y))
    with pytest.warns(UserWarning, match='new'):
        d = make(dict(train=PAIRS, valid=[('fine', 'new'), ('b', 'pos')]))
    assert d.balance.valid.tolist() == [0, 1] and list(d.vocab) == ['neg', 'pos']

def test_unseen_ones_of_several_labels_are_missed():
    "A text with one is wrong in that, however right the others are"
    d = make([('a', ['x']), ('b', ['y']), ('c', [])]*6)
    with pytest.warns(UserWarning, match="an error: 'new' .2."):
        dl = d.test_dl([('a', ['x', 'new']), ('b', ['new'])], with_labels=True)
    _, y = dl.one_batch()
    assert dl.text.labels.tolist() == [[1, 0], [0, 0]] and y.tolist() == [[1, 0, 1], [0, 0, 1]]
    right = torch.tensor([[9., -9.], [-9., -9.]])
    target = d.train.text.target
    assert target.metric(right, y) == 4/6 and target.metric(right, y[:, :2]) == 1
    loss = TaskLoss(None, target.loss())
    assert loss(right, y) == target.loss()(right, y[:, :2])

def test_reading_a_file_looks_up_no_row(tmp_path, monkeypatch):
    "Where a row stands is for errors alone: to find it the file is read again"
    from elmo_fastai.text.reading import CsvFile
    pd.DataFrame(PAIRS, columns=['text', 'label']).to_csv(tmp_path/'a.csv', index=False)
    monkeypatch.setattr(CsvFile, 'place', None)
    assert make(tmp_path/'a.csv').train.items == make().train.items

HOT = [[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]]*4
HOT_FORMS = dict(
    lists=HOT, tuples=list(map(tuple, HOT)), arrays=list(map(np.array, HOT)),
    tensors=list(map(torch.tensor, HOT)), printed=list(map(str, HOT)),
    numpy=[repr(np.array(row)) for row in HOT], floats=[str(np.array(row, float)) for row in HOT],
    pytorch=[repr(torch.tensor(row)) for row in HOT], booleans=[[x == 1 for x in r] for r in HOT],
    words=[['yes' if x else 'no' for x in row] for row in HOT],
    braces=['{' + ','.join(map(str, row)) + '}' for row in HOT],
    **{repr(sep): [sep.join(map(str, row)) for row in HOT]
       for sep in ('', ' ', ',', ', ', ';', '\t')})

def labelled(labels): return [(f't {i}', label) for i,label in enumerate(labels)]

@pytest.mark.parametrize('form', HOT_FORMS)
def test_rows_of_zeros_and_ones(form):
    rows = labelled(HOT_FORMS[form])
    with pytest.raises(CorpusError, match=r'multi-hot.*4 classes.*label_names=\[.*kind=\'class'):
        make(rows)
    d = make(rows, label_names=['w', 'v', 'u', 't'])
    items = dict(d.train.items + d.valid.items)
    assert list(d.vocab) == ['w', 'v', 'u', 't'] and items['t 0'] == ['w', 't']
    with pytest.raises(CorpusError, match='another|not all are as long'):
        make(rows, label_names=['w', 'v', 'u'])

@pytest.mark.parametrize('labels', [[[0, 1], [1, 0]], ['01', '10'], [[1, 0, 0]], [[0, 1, 0], [1]]])
def test_few_kinds_of_such_rows(labels):
    with pytest.raises(CorpusError, match='multi-hot'): make(labelled(labels*8))

@pytest.mark.parametrize('labels,vocab', [
    (['10', '11'], ['10', '11']), ([10, 11], [10, 11]), (['7', '10'], ['7', '10']),
    ([[0], [1], [0, 1]], [0, 1]), (['007', '010'], ['007', '010']),
    ([np.str_('a'), np.str_('b')], ['a', 'b']), ([0., 1., np.nan], [0, 1]),
    ([np.bool_(True), np.bool_(False)], [False, True]), (["['a', None]", "['b']"], ['a', 'b']),
    (["Index(['a', 'b'], dtype='object')", "['b']"], ['a', 'b']), (['(1)', '(2)'], ['(1)', '(2)']),
    pytest.param([{'a', 'b'}, {'b'}], ['a', 'b'], id='sets, in no order'),
    (['1', '1.0', '2'], ['1.0', '2'])], ids=str)
def test_other_labels_are_what_they_are(labels, vocab):
    assert list(make(labelled(labels*8)).vocab) == vocab

def test_rows_that_are_classes_if_it_is_said():
    assert list(make(labelled(['00', '01', '10']*6), kind='class').vocab) == ['00', '01', '10']

@pytest.mark.parametrize('door', ['csv', 'floats', 'jsonl', 'table'])
def test_a_number_is_one_class_at_every_door(tmp_path, door):
    df = pd.DataFrame(dict(text=[f't {i}' for i in range(24)], label=[i % 12 for i in range(24)]))
    other = df.assign(label=df.label.astype(float)) if door == 'floats' else df
    if door == 'jsonl': df.to_json(tmp_path/'a', orient='records', lines=True)
    else: other.to_csv(tmp_path/'a', index=False)
    (tmp_path/'a').rename(file := tmp_path/f"a.{'jsonl' if door == 'jsonl' else 'csv'}")
    for train,valid in ((df, file), (file, df)) if door != 'table' else ((df, df),):
        assert make(train, valid=valid).valid.text.labels.tolist() == [*range(12)]*2
    named = make(file if door != 'table' else df, label_names=list('abcdefghijkl'))
    items = dict(named.train.items + named.valid.items)
    assert list(named.vocab) == list('abcdefghijkl') and items['t 2'] == 'c'

def test_a_number_without_a_name_is_refused():
    "One-based classes would be shifted"
    with pytest.raises(CorpusError, match='the label 3 has no name.*numbered from 0'):
        make(labelled([1, 2, 3]*6), label_names=['a', 'b', 'c'])

@pytest.mark.parametrize('name', ['group', 'Group_id', 'doc_id', 'document'])
def test_groups_are_held_out_whole(name):
    df = pd.DataFrame(dict(text=[f'{i//5} {i}' for i in range(50)], label=list('ab')*25))
    df[name] = [i//5 for i in range(50)]
    d = make(df)
    of = [{text.split()[0] for text,_ in dl.items} for dl in (d.train, d.valid)]
    assert len(of[1]) == 1 and not of[0] & of[1] and 'whole' in repr(d)

def test_long_texts_are_cut_and_counted():
    d = make([(' '.join('abcdefgh'), 0), ('a', 1)]*10, max_words=3, valid_pct=.2)
    assert (d.train.text.cuts.sentences == 8 and d.train.one_batch()[0].shape[1] <= 3
            and d.test_dl(['a b c d e']).one_batch()[0].shape[1] == 3)


def test_an_empty_copy_keeps_the_classes_and_no_word(dls):
    e = pickle.loads(pickle.dumps(dls.new_empty()))
    assert (list(e.vocab) == ['neg', 'pos'] and not e.train.items
            and b'number' not in pickle.dumps(dls.new_empty()))
    assert e.test_dl(['anything at all']).one_batch()[0].shape == (1, 3, 50)

def test_what_is_shown(dls):
    t = dls.valid.show_batch(show=False)
    assert list(t.columns) == ['text', 'label'] and set(zip(t.text, t.label)) == set(
        dls.valid.items)
    b = dls.valid.one_batch()
    r = dls.valid.show_results(b, torch.zeros(len(b[1]), dtype=torch.long), max_n=1, show=False)
    assert list(r.columns) == ['text', 'label', 'predicted'] and r.predicted.tolist() == ['neg']

# several labels per text, and numbers

SEVERAL = [('fine film .', ['good', 'film']), ('dull film .', ['film']), ('so what ?', []),
           ('fine book .', ['good', 'book'])] * 6


@pytest.mark.parametrize('data,kw', [
    (SEVERAL, {}),
    (pd.DataFrame(dict(text=[t for t, _ in SEVERAL], labels=[o for _, o in SEVERAL])), {}),
    (pd.DataFrame(dict(text=[t for t, _ in SEVERAL], labels=['|'.join(o) for _, o in SEVERAL])),
     dict(label_delim='|')),
    (pd.DataFrame(dict(text=[t for t, _ in SEVERAL],
                       **{c: [c in o for _, o in SEVERAL] for c in ('book', 'film', 'good')})),
     dict(label_col=['book', 'film', 'good'])),
    (Dataset.from_dict(dict(
        text=[t for t, _ in SEVERAL],
        labels=[[['book', 'film', 'good'].index(i) for i in o] for _, o in SEVERAL]),
                       features=Features(text=Value('string'),
                                         labels=Sequence(ClassLabel(names=[
                                             'book', 'film', 'good'])))), {})],
                                                 ids=['pairs', 'lists', 'delimiter', 'columns',
                                                      'hub'])
def test_several_labels_from_any_source(data, kw):
    d = make(data, bs=4, shuffle=False, **kw)
    assert list(d.vocab) == ['book', 'film', 'good']
    chars, y = d.one_batch()
    assert y.shape == (len(chars), 3) and y.dtype == torch.float32
    of = {t: sorted(o) for t, o in SEVERAL}
    n = 0
    for dl in (d.train, d.valid):
        for b in dl:
            for text, labels in dl.decode_batch(b, 99):
                assert sorted(labels) == of[text]
                n += 1
    assert n == len(SEVERAL) and d.balance.sum(axis=1).to_dict() == dict(book=6, film=12, good=12)
    assert d.class_weights.shape == (3,) and d.train.show_batch(show=False).columns[1] == 'labels'


NUMBERS = [(f'text {i} .', i/2) for i in range(20)]

def by_door(door, df, tmp_path, **kw):
    "Loaders of a table by each of the three doors; a file is .csv, whose cells are text"
    if door == 'from_df': return ClassifyDataLoaders.from_df(df, bs=4, device='cpu', **kw)
    if door == 'from_dataset':
        return ClassifyDataLoaders.from_dataset(Dataset.from_pandas(df), bs=4, device='cpu', **kw)
    df.to_csv(tmp_path/'table.csv', index=False)
    return ClassifyDataLoaders.from_files(tmp_path/'table.csv', bs=4, device='cpu', **kw)

@pytest.mark.parametrize('door', ['from_df', 'from_files', 'from_dataset'])
def test_several_labels_and_numbers_by_every_door(door, tmp_path):
    df = pd.DataFrame(dict(text=[text for text, _ in SEVERAL],
                           labels=['|'.join(labels) for _, labels in SEVERAL],
                           stars=[i / 2 for i in range(len(SEVERAL))]))
    d = by_door(door, df[df.labels != ''], tmp_path, label_col='labels', label_delim='|')
    assert list(d.vocab) == ['book', 'film', 'good'] and d.one_batch()[1].shape[1] == 3
    d = by_door(door, df, tmp_path, label_col='stars', kind='number')
    assert (d.one_batch()[1].dtype == torch.float32
            and sorted(y for _, y in d.train.items + d.valid.items) == df.stars.tolist())


def test_numbers():
    d = make(NUMBERS, bs=4)
    assert (not len(d.vocab) and d.one_batch()[1].dtype == torch.float32
            and d.balance.loc['count'].sum() == 20)
    whole = [(t, int(2*y)) for t,y in NUMBERS]
    assert make(whole, kind='number').one_batch()[1].dtype == torch.float32
    with pytest.raises(ValueError, match='no classes'): d.class_weights

@pytest.mark.parametrize('data,kw,error', [
    (SEVERAL + [('odd .', 'film')], {}, "row 24 of the list has 'film' for a list"),
    ([('a', ['x']), ('b', [['y']])] * 3, {}, 'for a label'),
    (NUMBERS + [('x', 'many')], {}, "'many' for a number"),
    (SEVERAL, dict(kind='class'), r"row 0 of the list has list .* for a label"),
    (NUMBERS, dict(kind='class'), 'row 1 of the list has float 0.5 for a label'),
    (NUMBERS + [('x', float('inf'))], {}, 'inf for a number'),
    (PAIRS, dict(kind='number'), 'for a number'),
    (PAIRS, dict(kind='several'), "kind"),
    (pd.DataFrame(dict(text=['a'], x=[1])), dict(label_col=['x', 'y']), "no column 'y'")],
        ids=lambda o: str(o)[:20])
def test_labels_that_can_not_be(data, kw, error):
    with pytest.raises((CorpusError, ValueError), match=error):
        make(data, **kw)


# a file of separated cells, whose cells are all text, says the same as its table

@pytest.mark.parametrize('ending', ['csv', 'tsv', 'jsonl', 'parquet'])
@pytest.mark.parametrize('columns,kw', [
    (dict(stars=[i / 2 for i in range(20)]), dict(label_col='stars')),
    (dict(stars=[i % 5 for i in range(20)]), dict(label_col='stars', kind='number')),
    (dict(funny=[i % 2 == 0 for i in range(20)], sad=[i % 3 == 0 for i in range(20)]),
     dict(label_col=['funny', 'sad'])),
    (dict(funny=[i % 2 for i in range(20)], sad=['yes' if i % 3 else 'no' for i in range(20)]),
     dict(label_col=['funny', 'sad'])),
    (dict(labels=['funny' if i % 2 else '' for i in range(18)] + ['sad', 'sad;funny']),
     dict(label_delim=';'))],
         ids=['decimals', 'whole numbers', 'yes and no', '1 and 0, yes and no in words',
              'none of the labels'])
def test_numbers_and_several_labels_of_a_file_are_those_of_its_table(tmp_path, columns, kw, ending):
    # and the column's name has a capital
    df = pd.DataFrame(dict(Text=[f'text {i} .' for i in range(20)], **columns))
    file = tmp_path / f'table.{ending}'
    dict(csv=lambda: df.to_csv(file, index=False),
         tsv=lambda: df.to_csv(file, index=False, sep='\t'),
         jsonl=lambda: df.to_json(file, orient='records', lines=True),
         parquet=lambda: df.to_parquet(file))[ending]()
    table, read = make(df, **kw), make(file, **kw)
    assert read.train.items == table.train.items and read.valid.items == table.valid.items
    assert read.skipped == table.skipped == {} and list(read.vocab) == list(table.vocab)
    if kw.get('label_col') == ['funny', 'sad']: assert 4 < read.balance.loc['funny'].sum() < 16

def test_a_flag_is_yes_or_no():
    df = pd.DataFrame(dict(text=['a b', 'c d', 'e f']*4, funny=['True', 'maybe', None]*4))
    with pytest.raises(CorpusError, match="row 1 of the table: the column 'funny' holds 'maybe'"):
        make(df, label_col=['funny'])


def test_versions_are_no_numbers_if_it_is_said():
    rows = [(f'text {i} .', ('1.5', '2.0')[i % 2]) for i in range(20)]
    assert list(make(rows, kind='class').vocab) == ['1.5', '2.0'] and not len(make(rows).vocab)

def test_a_script_prints_its_tables(capsys):
    make().show_batch(max_n=2)
    assert 'text number' in capsys.readouterr().out


# other forms of the same kinds

@pytest.mark.parametrize('rows', [
    ['0.0 1.0 1.0 0.0', '1.0 0.0 1.0 0.0'],
    ['0.0,1.0,1.0,0.0', '1.0,0.0,1.0,0.0'],
    ['False True True False', 'True False True False'],
    ['false,true,true,false', 'true,false,true,false'],
    ['no,yes,yes,no', 'yes,no,yes,no'],
    ['0/1/1/0', '1/0/1/0'], ['0:1:1:0', '1:0:1:0'], ['0_1_1_0', '1_0_1_0'], ['0-1-1-0', '1-0-1-0'],
])
def test_rows_of_flags_in_other_words_are_multi_hot(rows):
    data = [(f'text {i} .', rows[i%2]) for i in range(12)]
    with pytest.raises(CorpusError, match='multi-hot'): make(data)
    d = make(data, label_names=['a', 'b', 'c', 'd'])
    assert list(d.vocab) == ['a', 'b', 'c', 'd']
    assert {tuple(label) for _,label in d.train.items} == {('b', 'c'), ('a', 'c')}


@pytest.mark.parametrize('cells', [
    ["{'a', 'b'}", "{'c'}", 'set()'],
    ["frozenset({'a', 'b'})", "frozenset({'c'})", 'frozenset()'],
    ["[np.str_('a'), np.str_('b')]", "[np.str_('c')]", '[]'],
    ["['a', 'b', nan]", "['c']", '[nan]'],
    ["(#2) ['a','b']", "(#1) ['c']", '(#0) []'],
    ['{a,b}', '{c}', '{}'],
    ["['a', 'b']", 'c', '[]']])
def test_lists_that_others_print(cells):
    d = make([(f'text {i} .', cells[i%3]) for i in range(18)])
    assert list(d.vocab) == ['a', 'b', 'c']


def test_printed_numbers_of_numpy_are_numbers():
    d = make([(f'text {i} .', ['[np.int64(3), np.int64(10)]', '[np.int64(1)]'][i%2])
              for i in range(12)])
    assert list(d.vocab) == [1, 3, 10]


@pytest.mark.parametrize('rows', [[[0, 2, 1, 0], [1, 0, 2, 2]], [[-1, 1, 1], [1, -1, 1]]])
def test_counts_of_classes_are_no_labels(rows):
    with pytest.raises(CorpusError, match='twice'):
        make([(f'text {i} .', rows[i%2]) for i in range(12)])


def test_a_printed_dictionary_is_no_class():
    with pytest.raises(CorpusError, match='dictionary'):
        make([(f'text {i} .', ["{'joy': 1, 'fear': 0}", "{'joy': 0}"][i%2]) for i in range(12)])


def test_names_that_no_label_has_are_refused():
    with pytest.raises(CorpusError, match='label_names'): make(label_names=['bad', 'good'])
    assert list(make(label_names=['pos', 'neg']).vocab) == ['neg', 'pos']


@pytest.mark.parametrize('pct', [1, 2, 5])
def test_a_number_of_rows_is_no_share(pct):
    with pytest.raises(CorpusError, match='share'): make(valid_pct=pct)


def test_rows_without_a_group_belong_to_none(tmp_path):
    rows = [f'text {i},{"ab"[i%2]},{"" if i < 14 else "g" + str(i//2)}' for i in range(20)]
    (tmp_path/'t.csv').write_text('\n'.join(['text,label,group', *rows]) + '\n')
    for seed in range(5):
        d = make(tmp_path/'t.csv', split_seed=seed)
        assert len(d.valid.items) <= 4


def test_each_door_guesses_the_encoding(tmp_path):
    lines = ['text,label', *(f'caf\xe9 ol\xe9 {i},{"ab"[i%2]}' for i in range(9))]
    (tmp_path/'t.csv').write_bytes('\n'.join(lines).encode('cp1252'))
    with pytest.raises(CorpusError, match=r"line 2 .*encoding="): make(tmp_path/'t.csv')
