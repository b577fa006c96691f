"Reading: each kind of file, columns, splits, held-out rows, and what is refused"
from pathlib import Path
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq, pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, NamedSplit, Sequence, Value
from hypothesis import given, strategies as st
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import (
    Sentence, column, hold_out, last_part, parts_of, read_conll, read_table, splits_of, summary,
    texts_of, to_table)

def write(path, text, encoding='utf-8'):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path

def refused(call, *words):
    "In one line, with these words"
    with pytest.raises(CorpusError) as e: call()
    assert all(word in str(e.value) for word in words) and '\n' not in str(e.value), str(e.value)

def texts(tables): return {split: df.text.tolist() for split,df in tables.items()}

# files
TEXTS = {
    'a.txt': 'text\nNA\n',
    'a.csv': 'text,label\ntext,001\nNA,\n',
    'a.tsv': 'text\tlabel\ntext\t001\nNA\t\n',
    'a.json': '[{"text": "text", "label": 1},\n {"text": "NA"}]',
    'a.jsonl': '{"text": "text", "label": 1}\n\n{"text": "NA"}\n'}

@pytest.mark.parametrize('name', TEXTS)
def test_each_kind_of_table(tmp_path, name):
    df = read_table(write(tmp_path/name, TEXTS[name]))
    assert df.text.tolist() == ['text', 'NA']
    if name[2:] in ('csv', 'tsv'): assert df.label.tolist() == ['001', '']
    if 'json' in name: assert type(df.label[0]) is int
    bom = read_table(write(tmp_path/name.upper(), '\ufeff' + TEXTS[name].replace('\n', '\r\n')))
    pd.testing.assert_frame_equal(bom, df)

def test_parquet_and_data_sets(tmp_path):
    "Whole numbers stay whole beside missing ones; numbered classes get their names"
    pq.write_table(pa.table(dict(text=['a', 'b'], label=[1, None])), tmp_path/'a.parquet')
    assert read_table(tmp_path/'a.parquet').label.tolist() == [1, None]
    kinds = Features(text=Value('string'), label=ClassLabel(names=['neg', 'pos']),
                     tags=Sequence(ClassLabel(names=['O', 'PER'])))
    rows = dict(text=['a', 'b', 'c'], label=[1, 0, -1], tags=[[0, 1], [], [1]])
    data = Dataset.from_dict(rows, kinds)
    data.to_parquet(tmp_path/'a.parquet')
    for df in (to_table(data), read_table(tmp_path/'a.parquet')):
        assert df.label.tolist() == ['pos', 'neg', None]
        assert [list(tags) for tags in df.tags] == [['O', 'PER'], [], ['PER']]
    assert to_table(data.select([2, 0])).label.tolist() == [None, 'pos']

@pytest.mark.parametrize('name, text, why', [
    ('a.csv', 'text,label\ngood, and long,pos\n', 'line 2'),
    ('a.csv', 'text,label\n"a\nb",pos\nshort\n', 'line 4'),
    ('a.csv', 'text,label\n"a,1\nb,2\n"c,3\n', 'line 2'),
    ('a.csv', 'text\n"a\nb\n', 'quote is not closed'),
    ('a.csv', 'text,text\na,b\n', 'twice'), ('a.csv', 'text,label\n', 'no rows'),
    ('a.txt', '', 'no rows'), ('a.txt', 'a\nb\0c\n', 'line 2'),
    ('a.json', '{"text": "a"}', 'list of objects'), ('a.json', '[', "can't be read"),
    ('a.jsonl', '{"text": "a"}\n{"text": \n', 'line 2'), ('a.jsonl', '["a"]\n', 'line 1'),
    ('a.parquet', 'text', "can't be read"), ('a.csv.gz', 'text', 'pass the DataFrame'),
    ('text', 'text', 'pass the DataFrame')])
def test_what_can_not_be_read_is_refused_with_its_place(tmp_path, name, text, why):
    refused(lambda: read_table(write(tmp_path/name, text)), name, why)

@pytest.mark.parametrize('name', [*TEXTS, 'a.conll'])
@pytest.mark.parametrize('start, encoding, place', [
    ('un café', 'latin-1', 6), ('a'*100_000 + 'é', 'latin-1', 100_000), ('a', 'utf-16', 0)])
def test_other_encodings_are_refused_with_the_byte(tmp_path, name, start, encoding, place):
    path = write(tmp_path/name, start + TEXTS.get(name, ''), encoding)
    refused(lambda: to_table(path, 0), 'UTF-8', f'byte {place:,} ')

def test_what_is_no_file(tmp_path):
    (tmp_path/'folder.csv').mkdir()
    for path in ('none.csv', 'folder.csv', 'none.parquet', 'none.conllu'):
        refused(lambda: read_table(tmp_path/path), path)
    refused(lambda: to_table(tmp_path/'none'), 'no file')

def test_a_long_cell(tmp_path):
    path = write(tmp_path/'a.csv', f'text\n{"a"*200_000}\n')
    assert len(read_table(path).text[0]) == 200_000

@given(st.lists(st.tuples(*[st.text(st.characters(
    exclude_characters='\0\r', exclude_categories=['Cs']))]*2), min_size=1))
def test_csv_as_pandas_writes_it(tmp_path_factory, rows):
    df = pd.DataFrame(rows, columns=['text', 'label'], dtype=object)
    path = tmp_path_factory.getbasetemp()/'written.csv'
    df.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_table(path), df)

@given(st.lists(st.text(st.characters(
    exclude_characters='\0\r\n', exclude_categories=['Cs'])), min_size=1))
def test_lines_end_at_line_ends_alone(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp()/'written.txt'
    path.write_bytes(('\ufeff' + '\r\n'.join(lines) + '\n').encode())
    assert read_table(path).text.tolist() == lines

# columns

def test_columns():
    df = pd.DataFrame(dict(id=[1], review=['a'], Text=['b'], group=['c'], label=['d']))
    assert column(df) == 'review' and column(df, 'Text') == 'Text'
    assert column(df, None, ('label',), 'label_col') == 'label'
    assert column(pd.DataFrame([['a', 'b']]), 0) == 0
    refused(lambda: column(df, 'rview'), "'rview'", "'id', 'review', 'Text'", 'text_col=…')
    refused(lambda: column(df.assign(text='')), "'review' and 'text'")
    refused(lambda: column(df[['id', 'group']]), "'text'")
    refused(lambda: column(pd.concat([df.review, df.review], axis=1), 'review'), 'are columns')

def test_cells_of_text():
    cells = ['a', None, np.nan, ['b', 'c d'], np.array(['e'], object)]
    assert texts_of(pd.DataFrame(dict(text=cells))) == ['a', None, None, ['b', 'c d'], ['e']]
    for cell in (3, True, [1], {'a': 1}):
        df = pd.DataFrame(dict(text=['a', cell]), index=[5, 6])
        refused(lambda: texts_of(df), "'text', row 6")

# sentences

CONLLU = '''# text = don't go
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVBP\t_\t_\t_\t_\t_
2\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
2.1\tgo\t_\t_\t_\t_\t_\t_\t_\t_
3\thọc sinh\tgo\tVERB\tVB\t_\t_\t_\t_\t_

1\t#\t#\tSYM\tNN\t_\t_\t_\t_\t_
'''
def test_conllu(tmp_path):
    path = write(tmp_path/'a.conllu', CONLLU)
    assert read_conll(path) == [Sentence(['do', "n't", 'học sinh'], ['AUX', 'PART', 'VERB']),
                                Sentence(['#'], ['SYM'])]
    assert read_conll(path, tag_col='xpos')[0].tags == ['VBP', None, 'VB']
    for wrong in ('pos', 3): refused(lambda: read_conll(path, tag_col=wrong), repr(wrong), 'upos')
    refused(lambda: read_conll(write(path, CONLLU.replace('\n\n', '\n'))), 'line 7')
    refused(lambda: read_conll(write(path, '1\ta\tb\n')), 'line 1: expected 10 cells')

def test_conll(tmp_path):
    "Neither a year nor the tags' place decides what a word is"
    path = write(tmp_path/'a.conll',
                 '-DOCSTART- -X- O\n\nB-LOC 1997 in\nO 1998 on\n\n\nO 1999 of\n')
    assert read_conll(path, 1, 0) == [Sentence(['1997', '1998'], ['B-LOC', 'O']),
                                      Sentence(['1999'], ['O'])]
    assert read_conll(path, 2)[1] == Sentence(['of'])
    for wrong in (None, 3, -1, '1'): refused(
        lambda: read_conll(path, wrong, 0), f'{wrong!r}', "0 = 'B-LOC', 1 = '1997', 2 = 'in'")
    for ragged in ('a O\nb\n', 'a\tO\nb\t\n'): refused(
        lambda: read_conll(write(path, ragged), 0, 1), 'line 2: expected 2 cells')
    assert read_conll(write(path, 'học sinh\tO\n'), 0, 1)[0].tokens == ['học sinh']
    refused(lambda: read_conll(write(path, '\n\n'), 0, 1), 'no sentence')

# anything as a table, and its splits

def test_lists_stay_as_they_are(tmp_path):
    write(tmp_path/'a.txt', 'not this')
    assert to_table(['a.txt', 'b']).text.tolist() == ['a.txt', 'b']          # texts, not files
    assert to_table([Path('a.txt')]).text.tolist() == ['not this']
    assert texts_of(to_table([['a', 'b c'], ['d']])) == [['a', 'b c'], ['d']]
    assert to_table([Sentence(['a'], ['X'])]).tags.tolist() == [['X']]
    df = pd.DataFrame(dict(text=['a']))
    assert to_table(df) is df
    stream = Dataset.from_pandas(df).to_iterable_dataset()
    refused(lambda: texts_of(to_table(['a', 3])), '3 is no text')
    for data, why in (([], 'empty'), ('a text', 'no file or folder'), (3, 'pass the DataFrame'),
                      (stream, 'IterableDataset'), (dict(train=['a'], test=['b']), 'dict')):
        refused(lambda: to_table(data), why)
    write(tmp_path/'b.csv', 'said,label\na b,x')
    refused(lambda: to_table([tmp_path/'a.txt', tmp_path/'b.csv']), 'said, label')

def test_a_folder(tmp_path):
    refused(lambda: splits_of(tmp_path), 'none')
    write(tmp_path/'b.txt', 'b1\nb2\n')
    write(tmp_path/'a.txt', 'a\n')
    assert to_table(tmp_path).text.tolist() == ['a', 'b1', 'b2']
    write(tmp_path/'a.csv', 'text\na')
    refused(lambda: splits_of(tmp_path), '.csv, .txt')
    (tmp_path/'a.csv').unlink()
    write(tmp_path/'en-dev.txt', 'c')
    refused(lambda: to_table(tmp_path), 'en-dev.txt')
    write(tmp_path/'test.txt', 'e')
    refused(lambda: splits_of(tmp_path), "'train'")
    write(tmp_path/'train.txt', 'd')
    assert texts(splits_of(tmp_path)) == dict(train=['d'], test=['e'])
    write(tmp_path/'dev.txt', 'f')
    assert texts(splits_of(tmp_path))['valid'] == ['f']
    write(tmp_path/'valid.txt', 'f')
    refused(lambda: splits_of(tmp_path), 'at most one', 'dev, ')

def test_data_sets(tmp_path):
    def data(text): return Dataset.from_dict(dict(text=[text]))
    splits = DatasetDict(train=data('a'), validation=data('b'), test=data('c'), other=data('d'))
    splits.save_to_disk(tmp_path/'saved')
    named = dict(train=['a'], dev=['b'], test=['c'], other=['d'])
    for source in (splits, tmp_path/'saved', str(tmp_path/'saved'), named):
        assert texts(splits_of(source)) == dict(train=['a'], valid=['b'], test=['c'])
    data('a').save_to_disk(tmp_path/'one')
    assert to_table(tmp_path/'one').text.tolist() == ['a']
    refused(lambda: splits_of(dict(valid=['a'])), "'train'")

@pytest.mark.parametrize('name', ['test.txt', 'my_test.txt', 'imdbTest.txt', 'test/a.txt', 'test'])
def test_what_is_called_test_never_validates(name, tmp_path):
    file = write(tmp_path/name if name.endswith('.txt') else tmp_path/name/'b.txt', 'a b')
    train = write(tmp_path/'a.txt', 'a b')
    for valid in (tmp_path/name, str(tmp_path/name), [file]):
        refused(lambda: parts_of(train, valid), 'never validates')
    refused(lambda: parts_of([train, file]), 'never validates')       # the last part would
    assert parts_of(train, test=tmp_path/name)['test']
    for latest in (write(tmp_path/'latest.txt', 'a'), ['test']): assert parts_of(train, latest)
    test = Dataset.from_dict(dict(text=['a']), split=NamedSplit('test'))
    refused(lambda: parts_of(train, test), 'never validates')

@pytest.mark.parametrize('make', [
    lambda d: parts_of([d/'a.txt', d/'.'/'b'/'..'/'a.txt']),
    lambda d: parts_of(d/'a.txt', d/'a.txt'), lambda d: parts_of(d/'a.txt', test=[d/'a.txt'])])
def test_a_file_is_read_once(make, tmp_path):
    (tmp_path/'b').mkdir()
    write(tmp_path/'a.txt', 'a b')
    refused(lambda: make(tmp_path), 'a.txt is both trained on and held out')

# rows to validate on

def test_a_share_is_drawn_of_each_class():
    df = pd.DataFrame(dict(text=list('abcdefghij'), label=['x']*5 + ['y']*5,
                           group=['g']*5 + ['h']*5))
    train, valid = hold_out(df, .2, stratify=df.label)
    assert sorted(valid.label) == ['x', 'y'] and len(train) == 8
    assert len(hold_out(df, .1)[1]) == 1                                     # whatever the groups
    pd.testing.assert_frame_equal(hold_out(df, .2, 3)[1], hold_out(df, .2, 3)[1])
    for pct in (0, 1, 2, -.1): refused(lambda: hold_out(df, pct), 'between 0 and 1')
    refused(lambda: hold_out(df[:1], .1), 'valid=…')
    refused(lambda: hold_out(df, .2, stratify=['z', *df.label[1:]]), 'valid=…', 'z')

def test_a_column_says_what_validates():
    df = pd.DataFrame(dict(text=list('abc')))
    for no,yes in (('False', 'True'), (False, True), (0, 1), ('0', '1'), (np.False_, np.True_)):
        train, valid = hold_out(df.assign(is_valid=[no, yes, no]))
        assert (train.text.tolist(), valid.text.tolist()) == (['a', 'c'], ['b'])
    refused(lambda: hold_out(df.assign(is_valid=['no', 'True', 'yes'])), "'no'")
    refused(lambda: hold_out(df.assign(is_valid=True)), '[True]')
    refused(lambda: splits_of(df.assign(is_valid=[0, 1, 0]), ['d']), 'leave one out')

@given(st.integers(1, 200), st.floats(0, .99), st.floats(0, .99))
def test_the_last_part(n, valid, test):
    items = list(range(n))
    try: parts = last_part(items, valid=valid, test=test)
    except CorpusError:
        assert sum(max(1, round(n*share)) if share else 0 for share in (valid, test)) >= n
        return
    assert parts['train'] + parts['valid'] + parts['test'] == items
    assert bool(parts['valid']) == bool(valid)

def test_one_line_says_what_was_read():
    files = [Path('x/a.txt')]*5
    for source, name in ((files, 'a.txt, a.txt, a.txt, 2 more'), (['a'], 'list'),
                         ('x/a.csv', 'a.csv'), ('hub:stanfordnlp/imdb', 'hub:stanfordnlp/imdb')):
        said = summary(source, dict(train=1000, valid=1), 'Good', ['id', 'review'], text='review',
                       label=None)
        assert said == (f"{name}; text review; columns id, review; rows train 1,000, valid 1; "
                        "first row 'Good'")
