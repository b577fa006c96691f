"Reading: each kind of file, columns, splits, held-out rows; and what is refused, in which words"
from pathlib import Path
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq, pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from hypothesis import given, strategies as st
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import (
    Sentence, column, hold_out, last_part, name_of, parts_of, read_conll, read_table, splits_of, summary,
    texts_of, to_table)

def write(path, text, encoding='utf-8'):
    path.write_bytes(text.encode(encoding))
    return path

def refused(call, *words):
    "The one line with which a call is refused"
    with pytest.raises(CorpusError) as e: call()
    for word in words: assert word in str(e.value), str(e.value)
    assert '\n' not in str(e.value)
    return str(e.value)

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
    if 'json' in name: assert df.label[0] == 1 and type(df.label[0]) is int
    bom = read_table(write(tmp_path/name.upper(), '\ufeff' + TEXTS[name].replace('\n', '\r\n')))
    pd.testing.assert_frame_equal(bom, df)

def test_parquet_keeps_whole_numbers_beside_missing_ones(tmp_path):
    pq.write_table(pa.table(dict(text=['a', 'b'], label=[1, None])), tmp_path/'a.parquet')
    assert read_table(tmp_path/'a.parquet').label.tolist() == [1, None]

def test_numbered_classes_get_their_names(tmp_path):
    kinds = Features(text=Value('string'), label=ClassLabel(names=['neg', 'pos']),
                     tags=Sequence(ClassLabel(names=['O', 'PER'])))
    data = Dataset.from_dict(dict(text=['a', 'b', 'c'], label=[1, 0, -1], tags=[[0, 1], [], [1]]), kinds)
    data.to_parquet(tmp_path/'a.parquet')
    for df in (to_table(data), read_table(tmp_path/'a.parquet'), to_table(data.select([0, 1, 2]))):
        assert df.label.tolist() == ['pos', 'neg', None]
        assert [list(tags) for tags in df.tags] == [['O', 'PER'], [], ['PER']]
    assert to_table(data.select([2, 0])).label.tolist() == [None, 'pos']

WRONG = [
    ('a.csv', 'text,label\ngood, and long,pos\n', 'line 2: the header has 2 cells, and this row 3'),
    ('a.csv', 'text,label\n"a\nb",pos\nshort\n', 'line 4: the header has 2 cells, and this row 1'),
    ('a.csv', 'text,label\n"a,1\nb,2\n"c,3\n', 'line 2: a quote is not closed'),
    ('a.csv', 'text\n"a\nb\n', 'line 2: a quote is not closed'),
    ('a.csv', 'text,text\na,b\n', 'a column twice'),
    ('a.csv', 'text,label\n', 'has no rows'),
    ('a.csv', '', 'has no rows'),
    ('a.txt', '', 'has no rows'),
    ('a.txt', '<!DOCTYPE html>\n<p>a</p>', 'is HTML'),
    ('a.txt', 'a\nb\0c\n', 'line 2 has a NUL character'),
    ('a.json', '{"text": "a"}', 'must be a list of objects'),
    ('a.json', '[', "can't be read"),
    ('a.jsonl', '{"text": "a"}\n{"text": \n', 'line 2 must be an object'),
    ('a.jsonl', '["a"]\n', 'line 1 must be an object'),
    ('a.parquet', 'text', "can't be read"),
    ('a.html', '<html>', 'pass the DataFrame'),
    ('a.csv.gz', 'text', 'pass the DataFrame'),
    ('text', 'text', 'pass the DataFrame')]

@pytest.mark.parametrize('name, text, why', WRONG)
def test_what_can_not_be_read_is_refused_with_its_place(tmp_path, name, text, why):
    path = write(tmp_path/name, text)
    refused(lambda: read_table(path), name, why)

@pytest.mark.parametrize('name', TEXTS)
@pytest.mark.parametrize('start, encoding, place', [
    ('un café', 'latin-1', 6), ('a'*100_000 + 'é', 'latin-1', 100_000), ('a', 'utf-16', 0)])
def test_other_encodings_are_refused_with_the_place_of_the_byte(tmp_path, name, start, encoding, place):
    path = write(tmp_path/name, start + TEXTS[name], encoding)
    refused(lambda: read_table(path), 'is not UTF-8', f'byte {place:,} is 0x')

def test_what_is_no_file(tmp_path):
    refused(lambda: read_table(tmp_path/'none.csv'), 'there is no file')
    (tmp_path/'folder.csv').mkdir()
    refused(lambda: read_table(tmp_path/'folder.csv'), 'there is no file')
    refused(lambda: to_table(tmp_path/'none'), 'there is no file or folder')

def test_long_cells_and_the_limit_of_csv(tmp_path):
    import csv
    before = csv.field_size_limit()
    path = write(tmp_path/'a.csv', f'text\n{"a"*200_000}\n')
    assert len(read_table(path).text[0]) == 200_000
    assert csv.field_size_limit() == before

@given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters='\0\r', exclude_categories=['Cs']))]*2), min_size=1))
def test_csv_as_pandas_writes_it(tmp_path_factory, rows):
    df = pd.DataFrame(rows, columns=['text', 'label'], dtype=object)
    path = tmp_path_factory.getbasetemp()/'written.csv'
    df.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_table(path), df)

@given(st.lists(st.text(st.characters(exclude_characters='\0\r\n', exclude_categories=['Cs'])), min_size=1))
def test_lines_end_at_line_ends_alone(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp()/'written.txt'
    path.write_bytes(('\ufeff' + '\r\n'.join(texts) + '\n').encode())
    assert read_table(path).text.tolist() == texts

# columns
def test_columns():
    df = pd.DataFrame(dict(id=[1], review=['a'], Text=['b'], group=['c'], label=['d']))
    assert column(df) == 'review'
    assert column(df, 'Text') == 'Text'
    assert column(df, None, ('label',), 'label_col') == 'label'
    refused(lambda: column(df, 'rview'), "no column 'rview'", "'id', 'review', 'Text'", 'say text_col=…')
    refused(lambda: column(df.assign(text='')), "'review' and 'text' are columns")
    refused(lambda: column(df[['id', 'group']]), "no column 'text'")
    twice = pd.concat([df.review, df.review], axis=1)
    refused(lambda: column(twice, 'review'), "'review' and 'review' are columns")
    assert column(pd.DataFrame([['a', 'b']]), 0) == 0

def test_cells_of_text():
    df = pd.DataFrame(dict(text=['a', None, np.nan, ['b', 'c d'], np.array(['e'], object)]), index=[5, 6, 7, 8, 9])
    assert texts_of(df) == ['a', None, None, ['b', 'c d'], ['e']]
    for cell in (3, True, [1], {'a': 1}): refused(
        lambda: texts_of(pd.DataFrame(dict(text=['a', cell]), index=[5, 6])), "column 'text', row 6", 'is no text')

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
    assert read_conll(path) == [Sentence(['do', "n't", 'học sinh'], ['AUX', 'PART', 'VERB']), Sentence(['#'], ['SYM'])]
    assert read_conll(path, tag_col='xpos')[0].tags == ['VBP', None, 'VB']
    refused(lambda: read_conll(path, tag_col='pos'), "no column 'pos'", 'upos = ')
    refused(lambda: read_conll(path, tag_col=3), 'no column 3')
    write(path, CONLLU.replace('\n\n', '\n'))
    refused(lambda: read_conll(path), 'line 7: expected word 4 of a sentence')
    write(path, '1\ta\tb\n')
    refused(lambda: read_conll(path), 'line 1: expected 10 cells')

def test_conll(tmp_path):
    path = write(tmp_path/'a.conll', '-DOCSTART- -X- O\n\nB-LOC 1997 in\nO 1998 on\n\n\nO 1999 of\n')
    # neither a year nor the tags' place decides what a word is
    refused(lambda: read_conll(path), 'say token_col=… (--token-col) and tag_col=…', "0 = 'B-LOC', 1 = '1997', 2 = 'in'")
    assert read_conll(path, 1, 0) == [Sentence(['1997', '1998'], ['B-LOC', 'O']), Sentence(['1999'], ['O'])]
    assert read_conll(path, 2)[1] == Sentence(['of'])
    for wrong in (3, -1, '1', True): refused(lambda: read_conll(path, wrong, 0), f'no column {wrong!r}', "0 = 'B-LOC', 1 = '1997'")
    write(path, 'a O\nb\n')
    refused(lambda: read_conll(path, 0, 1), 'line 2: expected 2 cells')
    write(path, 'a\tO\nb\t\n')
    refused(lambda: read_conll(path, 0, 1), 'line 2: expected 2 cells')
    write(path, 'học sinh\tO\n')
    assert read_conll(path, 0, 1)[0].tokens == ['học sinh']
    write(path, '\n\n')
    refused(lambda: read_conll(path, 0, 1), 'has no sentence')
    refused(lambda: read_conll(write(path, 'café O', 'latin-1'), 0, 1), 'byte 3 is 0xe9')

# anything as a table, and its splits
def test_lists_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path/'a.txt', 'not this')
    assert to_table(['a.txt', 'b']).text.tolist() == ['a.txt', 'b']          # texts, not files
    assert to_table([Path('a.txt')]).text.tolist() == ['not this']
    assert texts_of(to_table([['a', 'b c'], ['d']])) == [['a', 'b c'], ['d']]
    assert to_table([Sentence(['a'], ['X'])]).tags.tolist() == [['X']]
    df = pd.DataFrame(dict(text=['a']))
    assert to_table(df) is df
    refused(lambda: to_table([]), 'the list is empty')
    refused(lambda: to_table(['a', 3]), 'item 1 of the list is 3')
    refused(lambda: to_table('a text'), 'there is no file or folder a text')
    refused(lambda: to_table(3), 'int', 'pass the DataFrame')
    refused(lambda: to_table(Dataset.from_dict(dict(text=['a'])).to_iterable_dataset()), 'IterableDataset')
    refused(lambda: to_table(dict(train=['a'], test=['b'])), 'train, test')

def test_a_folder(tmp_path):
    write(tmp_path/'b.txt', 'b1\nb2\n')
    write(tmp_path/'a.txt', 'a\n')
    assert to_table(tmp_path).text.tolist() == ['a', 'b1', 'b2']
    write(tmp_path/'en-dev.txt', 'c')
    refused(lambda: to_table(tmp_path), 'en-dev.txt seems to be a split')
    write(tmp_path/'train.txt', 'd')
    write(tmp_path/'test.txt', 'e')
    parts = splits_of(tmp_path)
    assert {split: df.text.tolist() for split,df in parts.items()} == dict(train=['d'], test=['e'])
    write(tmp_path/'dev.txt', 'f')
    assert splits_of(tmp_path)['valid'].text.tolist() == ['f']
    write(tmp_path/'valid.txt', 'f')
    refused(lambda: splits_of(tmp_path), 'at most one to validate on', 'dev, ')

def test_folders_that_are_refused(tmp_path):
    refused(lambda: splits_of(tmp_path), 'has none')
    write(tmp_path/'a.txt', 'a')
    write(tmp_path/'a.csv', 'a')
    refused(lambda: splits_of(tmp_path), 'files of one kind, and has .csv, .txt')
    write(tmp_path/'test.txt', 'a')
    refused(lambda: splits_of(tmp_path), "one split 'train'")

def test_data_sets(tmp_path):
    def data(text): return Dataset.from_dict(dict(text=[text]))
    splits = DatasetDict(train=data('a'), validation=data('b'), test=data('c'), unsupervised=data('d'))
    splits.save_to_disk(tmp_path/'saved')
    for source in (splits, tmp_path/'saved', str(tmp_path/'saved'), dict(train=['a'], dev=['b'], test=['c'], other=['d'])):
        parts = splits_of(source)
        assert {split: df.text.tolist() for split,df in parts.items()} == dict(train=['a'], valid=['b'], test=['c'])
    data('a').save_to_disk(tmp_path/'one')
    assert to_table(tmp_path/'one').text.tolist() == ['a']
    refused(lambda: splits_of(dict(valid=['a'])), "one split 'train'", 'valid')
    refused(lambda: splits_of(dict(train=['a'], valid=['b'], dev=['c'])), 'at most one')

def test_what_is_called_test_never_validates(tmp_path):
    for name in ('test.txt', 'en-test.txt'):
        path = write(tmp_path/name, 'a')
        for valid in (path, str(path), [path]): refused(lambda: splits_of(['b'], valid), 'never validates')
    from datasets import NamedSplit
    test = Dataset.from_dict(dict(text=['a']), split=NamedSplit('test'))
    refused(lambda: splits_of(['b'], test), 'never validates')
    assert 'valid' in splits_of(['b'], write(tmp_path/'latest.txt', 'a'))
    assert 'valid' not in splits_of(dict(train=['a'], test=['b']))
    assert splits_of(['b'], ['test'])['valid'].text.tolist() == ['test']

# rows to validate on
def test_a_share_is_drawn_of_each_class():
    df = pd.DataFrame(dict(text=list('abcdefghij'), label=['x']*5 + ['y']*5, group=['g']*5 + ['h']*5))
    train, valid = hold_out(df, .2, stratify=df.label)
    assert sorted(valid.label) == ['x', 'y'] and len(train) == 8
    assert len(hold_out(df, .1)[1]) == 1                                     # whatever the groups
    pd.testing.assert_frame_equal(hold_out(df, .2, 3)[1], hold_out(df, .2, 3)[1])
    for pct in (0, 1, 2, -.1): refused(lambda: hold_out(df, pct), 'valid_pct', 'between 0 and 1')
    refused(lambda: hold_out(df[:1], .1), 'say with valid=…')
    refused(lambda: hold_out(df, .1, stratify=df.label), 'say with valid=…')

def test_a_column_says_what_validates():
    df = pd.DataFrame(dict(text=list('abc'), is_valid=['False', 'True', 'false']))
    for flags in (['False', 'True', 'false'], [False, True, False], [0, 1, 0], ['0', '1', '0'], np.array([False, True, False])):
        train, valid = hold_out(df.assign(is_valid=flags))
        assert (train.text.tolist(), valid.text.tolist()) == (['a', 'c'], ['b'])
    refused(lambda: hold_out(df.assign(is_valid=['no', 'True', 'yes'])), 'is_valid must be true in some rows', "'no'")
    refused(lambda: hold_out(df.assign(is_valid=True)), 'is [True]')
    refused(lambda: splits_of(df, ['d']), 'leave one out')

@given(st.integers(1, 200), st.floats(0, .99), st.floats(0, .99))
def test_the_last_part(n, valid, test):
    items = list(range(n))
    try: parts = last_part(items, valid=valid, test=test)
    except CorpusError:
        assert sum(max(1, round(n*share)) if share else 0 for share in (valid, test)) >= n
        return
    assert parts['train'] + parts['valid'] + parts['test'] == items
    assert bool(parts['valid']) == bool(valid)

# what was read
def test_one_line_says_what_was_read(tmp_path):
    assert name_of(tmp_path/'a.txt') == 'a.txt'
    assert name_of([Path('x/a.txt')]*5) == 'a.txt, a.txt, a.txt, 2 more'
    assert name_of(['a']) == 'list' and name_of(pd.DataFrame()) == 'DataFrame'
    assert name_of('hub:stanfordnlp/imdb') == 'hub:stanfordnlp/imdb'
    line = summary('a.csv', dict(train=1000, valid=1), 'Good', ['id', 'review'], text='review', label=None)
    assert line == "a.csv; text review; columns id, review; rows train 1,000, valid 1; first row 'Good'"


@pytest.mark.parametrize('make', [
    lambda d: parts_of([d/'a.txt', d/'a.txt']), lambda d: parts_of([d/'a.txt', d/'.'/'b'/'..'/'a.txt']),
    lambda d: parts_of(d/'a.txt', d/'a.txt'), lambda d: parts_of(d/'a.txt', test=[d/'a.txt'])])
def test_a_file_is_read_once(make, tmp_path):
    (tmp_path/'b').mkdir()
    (tmp_path/'a.txt').write_text('a b')
    with pytest.raises(CorpusError, match='a.txt is both trained on and held out, or named twice'):
        make(tmp_path)

@pytest.mark.parametrize('name', ['test.txt', 'my_test.txt', 'imdbTest.txt', 'test/a.txt', 'test'])
def test_what_is_called_test_never_validates(name, tmp_path):
    file = tmp_path/name if name.endswith('.txt') else tmp_path/name/'b.txt'
    file.parent.mkdir(exist_ok=True)
    for path in (file, tmp_path/'a.txt'): path.write_text('a b')
    with pytest.raises(CorpusError, match='what is called test never validates'):
        parts_of(tmp_path/'a.txt', tmp_path/name)
    assert parts_of(tmp_path/'a.txt', test=tmp_path/name)['test']

def test_the_last_part_of_files_is_no_test(tmp_path):
    for name in ('a.txt', 'test.txt', 'latest.txt'): (tmp_path/name).write_text('a b')
    with pytest.raises(CorpusError, match='what is called test'):
        parts_of([tmp_path/'a.txt', tmp_path/'test.txt'])
    assert parts_of([tmp_path/'a.txt', tmp_path/'latest.txt'])

def test_tables_of_other_columns_are_not_joined(tmp_path):
    (tmp_path/'a.txt').write_text('a b')
    (tmp_path/'b.csv').write_text('said,label\na b,x')
    with pytest.raises(CorpusError, match='b.csv has the columns said, label, and .*a.txt text'):
        to_table([tmp_path/'a.txt', tmp_path/'b.csv'])

@pytest.mark.parametrize('page', ['\n<!DOCTYPE html>\n<html>', '<?xml version="1.0"?>\n<a/>', '  <HTML>'])
@pytest.mark.parametrize('ending', ['txt', 'csv', 'jsonl', 'conll'])
def test_pages_are_no_text(page, ending, tmp_path):
    (tmp_path/f'a.{ending}').write_text(page)
    with pytest.raises(CorpusError, match='is HTML or XML: save its text alone'):
        to_table(tmp_path/f'a.{ending}', token_col=0)
