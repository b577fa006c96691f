"Tables, data sets, lines on disk"
import gzip, json, pickle

import pytest
import numpy as np, pandas as pd
from hypothesis import given, settings, strategies as st

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import all_lines, lines_of
from elmo_fastai.text.reading import TEXT_COLUMNS, find_column, read_table
from elmo_fastai.text.sources import get_corpus, text_corpus

def held_out(corpus, lines):
    "Are all lines there once, a twentieth of them to validate and a twentieth to test?"
    n = max(1, round(len(lines)/20))
    return sorted(sum(corpus.splits.values(), [])) == sorted(lines) and (
        [len(corpus.valid), len(corpus.test)] == [n, n])

datasets = pytest.importorskip('datasets')
def D(texts, col='text'):
    kind = 'int64' if texts and isinstance(texts[0], int) else 'string'
    return datasets.Dataset.from_dict(
        {col: texts}, features=datasets.Features({col: datasets.Value(kind)})
    )


# tables

@pytest.mark.parametrize('col', TEXT_COLUMNS)
def test_text_column_is_found(col):
    assert find_column(['label', col, 'id']) == col
    assert held_out(text_corpus(D(['a', 'b', 'c'], col)), ['a', 'b', 'c'])

def test_text_column_named_or_missing():
    df = pd.DataFrame({'body': ['a', 'b', 'c'], 'n': [1, 2, 3]})
    assert held_out(text_corpus(df, text_col='body'), ['a', 'b', 'c'])
    for f in (lambda: text_corpus(df), lambda: get_corpus(df)):
        with pytest.raises(
            CorpusError,
            match="no column 'text' or 'sentence' or 'review' or 'content' among 'body', 'n'",
        ):
            f()
    with pytest.raises(CorpusError, match="no column 'txt' among 'body'"):
        get_corpus(df[['body']], text_col='txt')
    with pytest.raises(CorpusError, match='row 0 of the table holds int 1'):
        text_corpus(df, text_col='n')
    with pytest.raises(CorpusError, match="2 columns 'text'"):
        text_corpus(pd.DataFrame([['a', 'b']], columns=['text', 'text']))


LINES = [f'line {i}' for i in range(40)]
@pytest.mark.parametrize(
    'data',
    [
        LINES,
        tuple(LINES),
        pd.DataFrame({'text': LINES}),
        pd.Series(LINES),
        D(LINES),
        D(LINES, 'review'),
        [dict(text=o) for o in LINES],
        dict(train=LINES),
        datasets.DatasetDict(train=D(LINES)),
    ],
    ids=lambda o: type(o).__name__,
)
def test_every_kind_of_table(data):
    c = text_corpus(data)
    assert held_out(c, LINES) and not c.skipped and get_corpus(data).splits == c.splits


def test_a_missing_row_may_be_the_first_of_dictionaries():
    c = text_corpus([None, *(dict(text=o) for o in LINES)])
    assert held_out(c, LINES) and sum(c.skipped.values()) == 1

def test_streams_need_a_number_of_rows():
    it = D(LINES).to_iterable_dataset()
    assert text_corpus(it, n_rows=20).splits == text_corpus(LINES[:20]).splits
    assert text_corpus((o for o in LINES), n_rows=20).splits == text_corpus(LINES[:20]).splits
    with pytest.raises(CorpusError, match='no length.*n_rows.*stream_loaders'): text_corpus(it)
    table = pd.DataFrame(dict(text=LINES))
    assert get_corpus(table, valid=pd.DataFrame(dict(text=['v']))).splits == dict(
        train=LINES, valid=['v']
    )


def test_splits_that_are_there():
    parts = dict(train=LINES, validation=['v'], test=['t'])
    assert text_corpus(parts).splits == dict(train=LINES, valid=['v'], test=['t'])
    assert text_corpus(dict(train=LINES, dev=['v'])).splits == dict(train=LINES, valid=['v'])
    c = text_corpus(dict(train=LINES, test=['t']))
    assert c.test == ['t'] and len(c.valid) == 2 and sorted(c.train + c.valid) == sorted(LINES)
    with pytest.raises(CorpusError, match="no split 'train' among 'test'"):
        text_corpus(dict(test=LINES))


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.just(float('nan')),
            st.text(st.characters(blacklist_categories=('Cs',), blacklist_characters='\0')),
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_rows_are_kept_or_counted(values):
    c = text_corpus([*values, 'the last one'], valid=0, test=0)
    texts = [o for o in values if isinstance(o, str)]
    assert c.train == [o for t in texts for o in lines_of(t)] + ['the last one']
    assert c.skipped.get('missing rows', 0) == len(values) - len(texts)
    assert c.skipped.get('blank lines', 0) == sum((all_lines(t) or ['']).count('') for t in texts)


@pytest.mark.parametrize(
    'bad,message',
    [
        (7, 'int 7'),
        (b'a', "bytes b'a'"),
        ('a\0', 'NUL character at position 1'),
        ('ab\ud800', 'surrogate'),
        (['a'], 'list'),
    ],
)
def test_what_is_no_text(bad, message):
    with pytest.raises(CorpusError, match=f'row 1 of .*{message}'):
        text_corpus(pd.DataFrame({'text': ['a', bad, 'c']}, dtype=object))


@pytest.mark.parametrize(
    'data',
    [[], pd.DataFrame({'text': []}), D([]), [None, ' '], pd.DataFrame({'text': [None, np.nan]})],
    ids=str,
)
def test_no_text_at_all(data):
    with pytest.raises(CorpusError, match='no rows|0 lines with text|list of files is empty'):
        text_corpus(data)


@pytest.mark.parametrize('data', [b'bytes', 7, None])
def test_not_a_table(data):
    with pytest.raises(CorpusError, match='expected a table'): text_corpus(data)
    with pytest.raises(CorpusError, match='no file or folder'): text_corpus('some text')



# wrong input that once slipped through

def test_tables_without_text(tmp_path):
    for f in (lambda: text_corpus(pd.DataFrame()), lambda: find_column([])):
        with pytest.raises(CorpusError, match='has no columns'): f()
    assert text_corpus([{'text': 'a'}, None, {'text': 'b'}, {'text': 'c'}]).skipped == {
        'missing rows': 1
    }


# tables in files, and data sets on disk

def packed(f):
    f.with_name(f.name + '.gz').write_bytes(gzip.compress(f.read_bytes())); f.unlink()
    return f.with_name(f.name + '.gz')

def save_table(folder, name, lines, col='body'):
    "A table with a column of numbers and one of texts, in the format of the file's ending"
    df, f = pd.DataFrame({'n': range(len(lines)), col: lines}), folder/name.removesuffix('.gz')
    folder.mkdir(parents=True, exist_ok=True)
    if f.suffix == '.parquet': df.to_parquet(f)
    elif f.suffix == '.jsonl': df.to_json(f, orient='records', lines=True)
    elif f.suffix == '.json': df.to_json(f, orient='records')
    else: df.to_csv(f, index=False, sep='\t' if f.suffix == '.tsv' else ',')
    return packed(f) if name.endswith('.gz') else f

FORMATS = ['.csv', '.tsv', '.jsonl', '.json', '.parquet', '.csv.gz', '.tsv.gz', '.jsonl.gz']

@pytest.mark.parametrize('ext', FORMATS)
def test_a_table_in_a_file(tmp_path, ext):
    "By its ending, not by its contents; a quote, a comma, a tab and an 'NA' are text"
    lines = ['one, "two"', 'three\tfour', 'NA', 'é', *LINES[:16]]
    f = save_table(tmp_path, f't{ext}', lines)
    how = dict(text_col='body', quotes=True) if '.tsv' in ext else dict(text_col='body')
    c = get_corpus(f, **how)
    assert held_out(c, lines) and c.name == 't'
    with pytest.raises(CorpusError, match="no column 'text' or .* among 'n', 'body'"):
        get_corpus(str(f))
    if ext.startswith(('.csv', '.tsv')):
        assert get_corpus(f, **how | dict(text_col='n'), valid=0, test=0).train[:2] == ['0', '1']
    else:
        with pytest.raises(CorpusError, match="t.*', (row 0|line 1) holds int 0, not text"):
            get_corpus(f, text_col='n')


@pytest.mark.parametrize('ext', ['.csv', '.jsonl.gz', '.parquet'])
@pytest.mark.parametrize('how', ['folder', 'list', 'pattern'])
def test_tables_with_splits(tmp_path, ext, how):
    for k, n in (('train', 9), ('validation', 4), ('test', 3)):
        save_table(
            tmp_path / 'd', f'{k}-00000-of-00001{ext}', [f'{k} {i}' for i in range(n)], 'text'
        )
    (tmp_path/'d'/'README.md').write_text('about')
    path = dict(
        folder=tmp_path / 'd',
        list=sorted((tmp_path / 'd').glob(f'*{ext}')),
        pattern=str(tmp_path / 'd' / f'*{ext}'),
    )[how]
    c = get_corpus(path)
    assert (
        {k: len(v) for k, v in c.splits.items()} == dict(train=9, valid=4, test=3)
        and c.valid[0] == 'validation 0'
        and c.name == 'd'
    )


def test_a_table_to_validate_on(tmp_path):
    a,b = save_table(tmp_path, 'a.csv', LINES), save_table(tmp_path, 'b.jsonl', ['v'])
    assert get_corpus(a, text_col='body', valid=b).splits == dict(train=LINES, valid=['v'])

def read(folder, name, text):
    (folder/name).write_bytes(text.encode('utf-8'))
    return read_table(folder/name)

@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_stray_quotes_in_a_tsv_are_text(tmp_path, end):
    "Each line is a row, and a quote is an ordinary character"
    lines = [
        'text\tlabel',
        '"He said no\t1',
        'fine\t0',
        'so "good"\t01',
        '"again\t1',
        '"a ""b"" c"\t0',
        '"\t1',
        '"Yes," she said, "no"\t0',
    ]
    table = read(tmp_path, 't.tsv', end.join(lines) + end)
    assert table.text.tolist() == [
        '"He said no',
        'fine',
        'so "good"',
        '"again',
        '"a ""b"" c"',
        '"',
        '"Yes," she said, "no"',
    ]
    assert table.label.tolist() == ['1', '0', '01', '1', '0', '1', '0']

@pytest.mark.parametrize('ext,sep', [('csv', ','), ('tsv', '\t')])
def test_cells_in_quotes_hold_separators_and_lines(tmp_path, ext, sep):
    (tmp_path / f't.{ext}').write_text(
        f'text{sep}label\n"one{sep}{sep}""two""\nthree"{sep}1\n{sep}0\n"four"{sep}""\n\n5" disk{sep}1'
    )
    table = read_table(tmp_path/f't.{ext}', quotes=True)
    assert (
        table.text.tolist()[::2] == [f'one{sep}{sep}"two"\nthree', 'four']
        and pd.isna(table.text[1])
        and table.text[3] == '5" disk'
    )
    assert table.label.tolist()[:2] == ['1', '0'] and pd.isna(table.label[2]) and len(table) == 4

@pytest.mark.parametrize('ext', ['csv', 'tsv'])
def test_cells_of_text_files_are_text(tmp_path, ext):
    "Labels 01 and 1 are two, a column of numbers has texts, an id of twenty digits keeps them"
    sep = dict(csv=',', tsv='\t')[ext]
    rows = [
        ['text', 'label', 'id'],
        ['2019', '01', '12345678901234567890'],
        ['007', '1', '1e5'],
        ['1.50', 'True', 'NA'],
    ]
    table = read(tmp_path, f't.{ext}', '\n'.join(sep.join(o) for o in rows))
    assert [table.columns.tolist(), *table.values.tolist()] == rows
    assert text_corpus(tmp_path/f't.{ext}', valid=0, test=0).train == ['2019', '007', '1.50']

def test_json_is_read_as_it_stands(tmp_path):
    table = read(
        tmp_path,
        't.jsonl',
        '{"text": "01", "date": "2020-01-02", "label": "1"}\n\n{"text": "b", "label": "01"}\n',
    )
    assert (
        table.text.tolist() == ['01', 'b']
        and table.label.tolist() == ['1', '01']
        and table.date[0] == '2020-01-02'
    )
    assert read(tmp_path, 't.json', '[{"text": "01", "date": "2020-01-02"}]').values.tolist() == [
        ['01', '2020-01-02']
    ]
    with pytest.raises(CorpusError, match="t.jsonl', line 2 is no JSON object"):
        read(tmp_path, 't.jsonl', '{"text": "a"}\n{"text": \n')


@pytest.mark.parametrize(
    'name,text,says',
    [
        ('t.csv', 'text,label\n"quoted,1\nfine,0\n"again,1\n', 'line 2'),
        ('t.csv', 'text,label\n"a" b,1\n', 'line 2'),
        ('t.csv', 'text,label\na,1\n"b,1\n', 'line 3'),
        (
            't.csv',
            'text,label\nI love it, really,1\nI hate it, really,0\n',
            'line 2.*3 cells.*has 2',
        ),
        ('t.csv', 'text,label\na,1\nb\n', 'line 3.*1 cell,.*has 2'),
        ('t.tsv', 'text\tlabel\na\t1\tb\n', 'line 2.*3 cells.*has 2'),
        ('t.tsv', 'text\tlabel\na\t1\n"b\t1\nc', 'line 4'),
        ('t.csv', '', 'empty'),
        ('t.csv', '\n\n', 'empty'),
    ],
)
def test_tables_that_are_damaged_name_the_line(tmp_path, name, text, says):
    "A text that swallows its label, or the rows after it, is no text"
    with pytest.raises(CorpusError, match=f"{name}'.*{says}"):
        read(tmp_path, name, text)


def test_cells_may_be_long(tmp_path):
    long = 'x '*200_000 + 'x'
    assert read(tmp_path, 't.csv', f'text,n\n"{long}",1\n').text[0] == long

cells = st.text(st.sampled_from('ab",\t\n\' é'), max_size=6)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6), st.sampled_from(['csv', 'tsv']))
@settings(max_examples=100, deadline=None)
def test_what_pandas_writes_is_read(tmp_path_factory, rows, ext):
    "A .tsv has no quotes, unless one says so"
    file = tmp_path_factory.mktemp('t')/f't.{ext}'
    pd.DataFrame(rows, columns=['text', 'label']).to_csv(
        file, index=False, sep=dict(csv=',', tsv='\t')[ext]
    )
    assert read_table(file, quotes=True).fillna('').values.tolist() == [list(o) for o in rows]

def test_two_names_for_one_split():
    "Nobody can tell which of the two is meant"
    with pytest.raises(CorpusError, match="'(dev|validation)' and '(dev|validation)'"):
        text_corpus(dict(train=LINES, validation=['v'], dev=['d']))
    with pytest.raises(CorpusError, match="'(dev|validation)' and '(dev|validation)'"):
        get_corpus(datasets.DatasetDict(train=D(LINES), dev=D(['v']), validation=D(['d'])))


def test_gaps_in_tables_are_counted(tmp_path):
    (tmp_path/'t.csv').write_text('text,n\na,1\n,2\n"  ",3\n"b\nc",4\n')
    c = get_corpus(tmp_path/'t.csv', valid=0., test=0.)
    assert c.train == ['a', 'b', 'c'] and c.skipped == {'missing rows': 1, 'blank lines': 1}

def test_text_and_tables_are_told_apart(tmp_path):
    save_table(tmp_path/'a', 'a.csv', LINES)
    (tmp_path/'a'/'b.txt').write_text('\n'.join(LINES))
    assert get_corpus(tmp_path / 'a').files['train'] == [tmp_path / 'a' / 'b.txt'], (
        'a folder with text is read as text'
    )
    with pytest.raises(CorpusError, match="b.txt' is read line by line.*text_col"):
        get_corpus(tmp_path / 'a' / 'b.txt', text_col='body')
    (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError, match='has no .txt .*files'): get_corpus(tmp_path/'empty')

@pytest.mark.parametrize('ext', ['.csv', '.tsv', '.jsonl', '.json'])
def test_tables_in_another_encoding(tmp_path, ext):
    f = save_table(tmp_path, f't{ext}', ['é', 'è', 'ê'], 'text')
    raw = (
        json.dumps([dict(text=o) for o in 'éèê'], ensure_ascii=False)
        if ext == '.json'
        else '\n'.join(f'{{"text": "{o}"}}' for o in 'éèê')
        if ext == '.jsonl'
        else f.read_text()
    )
    for encoding in ('latin-1', 'utf-16'):
        f.write_bytes(raw.encode(encoding))
        assert held_out(get_corpus(f, encoding=encoding), ['é', 'è', 'ê'])
        with pytest.raises(CorpusError, match=f"t{ext}.*encoding='"): get_corpus(f)
    with pytest.raises(CorpusError, match="t.* no encoding 'klingon'"):
        get_corpus(f, encoding='klingon')


@pytest.fixture
def saved(tmp_path):
    "A data set of three splits as `datasets` saves it"
    ds = datasets.DatasetDict(
        train=D(LINES, 'body'), validation=D(['v 0', None], 'body'), test=D(['t 0'], 'body')
    )
    ds.save_to_disk(tmp_path/'saved')
    return tmp_path/'saved'

SAVED = dict(train=LINES, valid=['v 0'], test=['t 0'])

def test_a_data_set_that_was_saved(saved, tmp_path):
    c = get_corpus(saved, text_col='body')
    assert c.splits == SAVED and c.name == 'saved' and c.skipped == {'missing rows': 1}
    D(LINES).save_to_disk(tmp_path/'one')
    assert held_out(get_corpus(tmp_path/'one'), LINES)
    with pytest.raises(CorpusError, match="no column 'text'"): get_corpus(saved)
    with pytest.raises(CorpusError, match='brings its own'):
        get_corpus(saved, text_col='body', valid='v.txt')
    (saved/'train'/'state.json').write_text('{')
    with pytest.raises(CorpusError, match="can't read .*saved"): get_corpus(saved, text_col='body')

def test_a_data_set_of_the_hub_from_a_copy(saved, tmp_path, monkeypatch):
    "No network is needed: `data` names the copy, or ELMO_FASTAI_DATA the folder above it"
    monkeypatch.setattr(
        datasets, 'load_dataset', lambda *a, **k: pytest.fail('it asked the network')
    )
    c = get_corpus('hub:owner/my-set:en', data=saved, text_col='body')
    assert c.splits == SAVED and c.name == 'my-set-en'
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path/'data'))
    (tmp_path/'data'/'owner').mkdir(parents=True)
    saved.rename(tmp_path/'data'/'owner'/'my-set')
    assert get_corpus('hub:owner/my-set', text_col='body').splits == SAVED
    monkeypatch.undo()
    (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError, match="can't load the data set '.*empty'"):
        get_corpus('hub:owner/my-set', data=tmp_path / 'empty')


def test_a_data_set_of_the_hub(monkeypatch):
    asked = []
    def load(*args, **kwargs):
        asked.append((*args, kwargs))
        if args == ('owner/broken',):
            raise ValueError('Config name is missing.\nPlease pick one among en, de')
        return datasets.DatasetDict(train=D(LINES, 'body'), test=D(['t 0'], 'body'))
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setattr(datasets, 'load_dataset', load)
    c = get_corpus('hub:owner/set:en', text_col='body', tokenizer='space')
    assert (
        asked == [('owner/set', dict(name='en'))]
        and len(c.train) == 38
        and len(c.valid) == 2
        and c.test == ['t 0']
        and c.tokenizer == 'space'
    )
    with pytest.raises(
        CorpusError,
        match="can't load the data set 'owner/broken'.*Please pick one among en, de.*save_to_disk",
    ):
        get_corpus('hub:owner/broken')
    for name in ('hub:', 'hub: ', 'hub::en'):
        with pytest.raises(CorpusError, match='hub:owner/name'): get_corpus(name)
