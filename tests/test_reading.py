"""The texts of a file: every kind by its ending, plain text that is none, line ends, quotes, rows
that are broken, and files that are larger than what is held; tables, data sets, lists"""
import csv, gzip, io, json, sys, tracemalloc
from types import SimpleNamespace

import datasets, numpy as np, pandas as pd, pyarrow as pa, pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import reading as module
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import all_lines, lines_of
from elmo_fastai.text.reading import TEXT_COLUMNS, find_column, open_table, read_table
from elmo_fastai.text.sources import get_corpus, read_texts, text_corpus
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.data.tagged import read_tagged

TEXTS = ['the bank', 'one, "two"\nthree', 'naïve — 河', 'last one']

def write(path, data):
    "`data`, a text or bytes, packed if `path` ends in .gz"
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.name.lower().endswith('.gz') else data)
    return str(path)

def write_table(path, df):
    "`df` in the format that the name of `path` says"
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix('.gz').lower()
    if name.endswith('.parquet'): df.to_parquet(path)
    elif '.json' in name: df.to_json(path, orient='records', lines=name.endswith('l'))
    else: df.to_csv(path, index=False, sep='\t' if name.endswith('.tsv') else ',')
    return str(path)

def read(path, column=None, longest=2**20, quotes=None):
    if '.tsv' in str(path): quotes = True        # as pandas writes it
    return read_texts(path, longest, text_col=column, quotes=quotes)
def good(path, *args): return [text for text,why in read(path, *args) if why is None]
def bad(path, *args): return {i: why for i,(_,why) in enumerate(read(path, *args)) if why}

def test_a_bad_object_of_a_list_has_its_line(tmp_path):
    rows = ['{"text": "%s"}' % ('word '*20)]*30_000
    rows[20_000] = '{"text": "a" "label": 1}'
    with pytest.raises(CorpusError, match='line 20002'):
        get_corpus(write(tmp_path/'a.json', '[\n' + ',\n'.join(rows) + '\n]'))

def test_a_csv_has_no_paths(tmp_path):
    with pytest.raises(CorpusError, match="no column 'text.x' among 'text'.*name the right one"):
        get_corpus(write(tmp_path/'a.csv', 'text,label\na b,c\n'), text_col='text.x')

def test_a_guess_at_an_encoding_is_one_of_single_bytes(tmp_path):
    with pytest.raises(CorpusError, match="encoding='(cp1252|latin_1)'"):
        get_corpus(write(tmp_path/'a.txt', 'ok\ncaf\xe9\n'.encode('latin-1')))

# kinds of files

@pytest.mark.parametrize('column', ['text', 'other'])
@pytest.mark.parametrize('name', ['a.csv', 'a.tsv', 'a.json', 'a.jsonl', 'a.parquet', 'a.csv.gz',
    'a.tsv.gz', 'a.json.gz', 'a.jsonl.gz', 'A.CSV'])
def test_tables_by_their_ending(tmp_path, name, column):
    "The column is found by its name, or has to be named"
    file = write_table(tmp_path/name, pd.DataFrame({'id': range(4), column: TEXTS, 'label': 'x'}))
    assert good(file, 'other' if column == 'other' else None) == TEXTS
    assert good(file, 'label') == ['x']*4
    if column == 'other':
        with pytest.raises(CorpusError,
            match=f"{name}.*no column 'text' or .*among 'id', 'other', 'label'.*text_col='label'"):
            good(file)
    with pytest.raises(CorpusError, match="no column 'nothing'"): good(file, 'nothing')

@pytest.mark.parametrize('name', ['a.csv', 'a.tsv', 'a.jsonl', 'a.parquet', 'a.json'])
def test_cells_are_texts(tmp_path, name):
    "No number, no date, no missing value is made from a text"
    texts = ['01', '1', 'NA', 'null', 'nan', '1e5', 'True', '2020-01-01', ' a ']
    file = write_table(tmp_path/name, pd.DataFrame({'text': texts, 'n': range(9)}))
    assert list(read_texts(file)) == [(t, None) for t in texts]

# a file that begins with control characters is binary data to the reader
CHARACTERS = st.characters(codec='utf-8', exclude_categories=['Cc']) | st.sampled_from('\n\t')

@settings(max_examples=60)
@given(st.lists(st.tuples(st.text(CHARACTERS, max_size=8), st.text('ab", \n', max_size=6)),
    min_size=1, max_size=6))
def test_what_pandas_writes_is_read(tmp_path_factory, rows):
    d = tmp_path_factory.mktemp('t')
    df = pd.DataFrame(rows, columns=['text', 'other'])
    for name in ('a.csv', 'a.tsv', 'a.jsonl', 'a.parquet', 'a.csv.gz'):
        assert good(write_table(d/name, df)) == [t for t, _ in rows]

CONLLU = """# newdoc
# sent_id = 1
1\tthe\tthe\tDET\t_\t_\t0\t_\t_\t_
2\t1,2\t_\tNUM\t_\t_\t0\t_\t_\t_

# text = don't
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\t_\t_\t0\t_\t_\t_
2\tn't\tnot\tPART\t_\t_\t0\t_\t_\t_

"""

@pytest.mark.parametrize('name', ['a.conllu', 'a.conllu.gz', 'a.conll'])
def test_words_of_a_treebank_stay_as_they_are(tmp_path, name):
    file = write(tmp_path/name, CONLLU if 'conllu' in name else
        'the DET\n1,2 NUM\n\ndo AUX\nn\'t PART\n')
    assert good(file) == [['the', '1,2'], ['do', "n't"]]

STRANGE = dict(json='{"text": "the bank"}\n{"text": "a river"}\n',
    pretty='[\n  {"text": "the bank"}\n]\n', rows='[{"text": "the bank"}]',
    html='<!DOCTYPE html>\n<p>the bank</p>\n', xml='<?xml version="1.0"?>\n<a/>\n',
    pdf='%PDF-1.4\nthe bank\n', rtf='{\\rtf1 the bank}\n', binary='the bank\x01\x02\x00\n',
    treebank=CONLLU, words=CONLLU.partition('= 1\n')[2], tabs='id\ttext\n1\tthe bank\n2\ta river\n')

def offered(folder, monkeypatch, name, data):
    "A file with `data`; for '-' it comes from standard input"
    if name != '-': return write(folder/name, data)
    stream = io.BufferedReader(io.BytesIO(data.encode()))
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=stream))
    return name

@pytest.mark.parametrize('kind', STRANGE)
def test_what_is_no_plain_text_is_refused(tmp_path, monkeypatch, kind):
    "Where the name says nothing, and on standard input: syntax is not read as if it were text"
    data = STRANGE[kind]
    for name in ('a.xyz', 'a', 'a.xyz.gz', '-'):
        with pytest.raises(CorpusError, match='looks like .*plain text'):
            good(offered(tmp_path, monkeypatch, name, data))
    if kind in ('html', 'xml', 'pdf', 'rtf', 'binary'):
        with pytest.raises(CorpusError, match='looks like'): good(write(tmp_path/'a.txt', data))
    else: assert good(write(tmp_path/'a.txt', data)), 'a name that ends in .txt is a promise'

PLAIN = ['# The bank\n\n- [x] one, {two} <b>three</b>\n"a\tb" café\n',
    '[[The bank]] of {the} river\n', '<s> the bank </s>\n', '[Music] {laughs}\n', '1 the\n2 bank\n',
    'a\r\nb\r\n', '', '\n', 'é'*5000]

@pytest.mark.parametrize('name', ['a.md', 'a.en', 'a', 'a.md.gz', '-'])
def test_plain_text_under_any_name(tmp_path, monkeypatch, name):
    for data in PLAIN:
        assert good(offered(tmp_path, monkeypatch, name, data)) == data.splitlines()
        assert name != '-' or not sys.stdin.buffer.closed

@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'], ids=ascii)
def test_line_ends_are_those_of_pretraining(tmp_path, end):
    text = end.join(['the bank', '', 'a\x0bb\u2028c \x85 d', 'last'])
    for raw in (text, text + end, '\ufeff' + text):
        for name in ('a.txt', 'a.xyz', 'a.txt.gz'):
            assert [t.strip() for t in good(write(tmp_path/name,
                raw))] == all_lines(raw.lstrip('\ufeff'))
    for name,sep in (('a.csv', ','), ('a.tsv', '\t')):
        assert good(write(tmp_path/name, end.join([f'id{sep}text', f'1{sep}the bank', '',
            f'2{sep}last', '']))) == ['the bank', 'last']
    assert good(write(tmp_path/'a.jsonl', end.join(['{"text": "a"}', '',
        '{"text": "b"}']))) == ['a', 'b']

# what is broken

def test_quotes(tmp_path):
    "In a .tsv a quote is an ordinary character, unless one says otherwise"

    def tsv(raw, **how):
        return [text for text, why in read_texts(write(tmp_path/'a.tsv', raw), **how)]

    assert tsv('id\ttext\n1\t"stray\n2\tb "c" d\n3\t5" disk\n4\tlast"\n') == ['"stray', 'b "c" d',
        '5" disk', 'last"']
    assert tsv('id\ttext\n1\t"one"\n3\t"\n') == ['"one"', '"']
    assert tsv('id\ttext\n1\t"one\ttwo"\n2\t"three\nfour"\n', quotes=True) == ['one\ttwo',
        'three\nfour']
    [(_, why)] = read_texts(write(tmp_path/'a.tsv', 'id\ttext\n1\t"one\ttwo"\n'))
    assert 'quotes=True (--quotes)' in why
    assert good(write(tmp_path/'a.csv', 'id,text\n1,5" disk\n2,"one, ""two"""\n')) == ['5" disk',
        'one, "two"']

def test_rows_of_another_length(tmp_path):
    "A text that was cut at a comma is no text"
    file = write(tmp_path/'a.csv',
        'id,text\n1,"two\nlines"\n\n2,good, bad\n3\n4,fine\n5\n6,a,b,c\n')
    assert good(file) == ['two\nlines', 'fine'] and {*bad(file)} == {1, 2, 4, 5}
    for i, says in {1: '3 cells', 2: '1 cell,', 4: '1 cell,', 5: '4 cells'}.items():
        assert says in bad(file)[i] and 'header has 2' in bad(file)[i]

def test_bad_rows_are_found_in_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'LONGEST_ROW', 1000)
    many = 'id,text\n' + ''.join(f'{i},"line {i}\nx"\n' if i % 7 else 'bad\n' for i in range(2000))
    file = write(tmp_path/'b.csv', many)
    assert [*bad(file)] == list(range(0, 2000, 7)) and good(file) == [f'line {i}\nx' for i in
        range(2000) if i % 7]
    with pytest.raises(CorpusError, match='more than 1,000 characters'):
        good(write(tmp_path/'c.csv', 'id,text\n1,' + 'x'*5000))

def test_rows_of_json_that_are_none(tmp_path):
    file = write(
        tmp_path/'a.jsonl',
        '\ufeff{"text": "good", "n": 1}\n\n{"text": 3}\n{"n": 2}\n{"text": \n["text"]\n{"text": '
        '"half \\ud83d"}\n{"text": "caf\\u00e9"}\n'.encode()
        + b'{"text": "caf\xe9"}\n'
        + b'['*100_000,
    )
    found = bad(file)
    assert good(file) == ['good', 'café'] and {*found} == {1, 2, 3, 4, 5, 7, 8}
    for i, says in {1: 'int 3', 2: 'no text', 3: 'no JSON object', 4: 'no JSON object', 5:
        'surrogate', 7: 'UTF-8 (byte 3)', 8: 'no JSON object'}.items():
        assert says in found[i], found[i]
    for first in ('"text"\n', 'no\n', '7\n', '["text"]\n'):
        with pytest.raises(CorpusError, match='first line of .*b.jsonl.* is no JSON object'):
            good(write(tmp_path/'b.jsonl', first))

def test_texts_that_are_none(tmp_path):
    file = write(tmp_path/'a.txt', b'\xef\xbb\xbfgood\r\ncaf\xe9\nnul\x00byte\n' +
        b'\xed\xa0\x80\n' + b'x'*60 + b'\nlast')
    found = bad(file, None, 50)
    assert good(file, None, 50) == ['good', 'last'] and {*found} == {1, 2, 3, 4}
    assert ('not UTF-8 (byte 3)' in found[1] and 'NUL character at position 3' in found[2] and
        'UTF-8 (byte 0)' in found[3] and 'more than 50 characters' in found[4])
    pd.DataFrame({'t': ['a', None, 'b']}).to_parquet(tmp_path/'a.parquet')
    assert bad(str(tmp_path/'a.parquet'), 't') == {1: 'holds no text'}
    pd.DataFrame({'t': [1, 2]}).to_parquet(tmp_path/'b.parquet')
    assert 'int 1' in bad(str(tmp_path/'b.parquet'), 't')[0]
    file = write(tmp_path/'c.csv', b'id,t\n1,good\n2,caf\xe9\n3,"nul\x00"\n4,\n')
    assert (good(file, 't') == ['good', ''] and 'UTF-8' in bad(file, 't')[1] and 'NUL' in bad(file,
        't')[2])

def test_a_line_that_is_too_long_is_not_held():
    def lines(data):
        return [line for some in module.text_lines(io.TextIOWrapper(io.BytesIO(data), 'utf-8-sig'),
            10, 7) for line in some]

    data = b'\xef\xbb\xbf1234567890\r\n' + b'x'*3_000_000 + b'\n\nok\n' + b'y'*40
    assert lines(data) == ['1234567890', 'x'*12, '', 'ok', 'y'*12]
    assert lines(b'') == []

@pytest.mark.parametrize('name', ['a.txt', 'a.csv', 'a.tsv', 'a.jsonl', 'a.parquet'])
def test_a_large_file_is_not_held(tmp_path, monkeypatch, name):
    "However long it is, as much is in memory as some blocks have"
    monkeypatch.setattr(module, 'LONGEST_ROW', 2**17)
    # 27 MB
    df = pd.DataFrame({'text': [f'{i} ' + 'the bank of the river '*500 for i in range(2500)]})
    if name == 'a.txt': (tmp_path/name).write_text('\n'.join(df.text))
    elif name == 'a.parquet': df.to_parquet(tmp_path/name, row_group_size=100)
    else: write_table(tmp_path/name, df)
    del df
    tracemalloc.start()
    held, most, n = pa.total_allocated_bytes(), 0, 0
    for n, _ in enumerate(read_texts(str(tmp_path/name)), 1):
        most = max(most, pa.total_allocated_bytes() - held)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n == 2500 and python < 12e6 and most < 12e6, (python, most)

def test_settings_of_the_process_stay(tmp_path):
    before = csv.field_size_limit()
    long = 'a '*100_000
    assert (good(write_table(tmp_path/'a.csv', pd.DataFrame({'text': [long, 'b']}))) == [long,
        'b'] and csv.field_size_limit() == before)

# tables, data sets, lists

def held_out(corpus, lines):
    "Are all lines there once, a twentieth of them to validate and a twentieth to test?"
    n = max(1, round(len(lines)/20))
    return sorted(sum(corpus.splits.values(), [])) == sorted(lines) and ([len(corpus.valid),
        len(corpus.test)] == [n, n])

def D(texts, col='text'):
    kind = 'int64' if texts and isinstance(texts[0], int) else 'string'
    return datasets.Dataset.from_dict({col: texts}, features=datasets.Features({col:
        datasets.Value(kind)}))

# tables

@pytest.mark.parametrize('col', TEXT_COLUMNS)
def test_text_column_is_found(col):
    assert find_column(['label', col, 'id']) == col
    assert held_out(text_corpus(D(['a', 'b', 'c'], col)), ['a', 'b', 'c'])

def test_text_column_named_or_missing():
    df = pd.DataFrame({'body': ['a', 'b', 'c'], 'n': [1, 2, 3]})
    assert held_out(text_corpus(df, text_col='body'), ['a', 'b', 'c'])
    for f in (lambda: text_corpus(df), lambda: get_corpus(df)):
        with pytest.raises(CorpusError,
            match="no column 'text' or 'sentence' or 'review' or 'content' among 'body', 'n'"):
            f()
    with pytest.raises(CorpusError, match="no column 'txt' among 'body'"):
        get_corpus(df[['body']], text_col='txt')
    with pytest.raises(CorpusError, match='row 0 of the table holds int 1'):
        text_corpus(df, text_col='n')

LINES = [f'line {i}' for i in range(40)]
@pytest.mark.parametrize('data', [LINES, tuple(LINES), pd.DataFrame({'text': LINES}),
    pd.Series(LINES), D(LINES), D(LINES, 'review'), [dict(text=o) for o in LINES],
    dict(train=LINES), datasets.DatasetDict(train=D(LINES))], ids=lambda o: type(o).__name__)
def test_every_kind_of_table(data):
    c = text_corpus(data)
    assert held_out(c, LINES) and not c.skipped and get_corpus(data).splits == c.splits

def test_streams_need_a_number_of_rows():
    it = D(LINES).to_iterable_dataset()
    assert text_corpus(it, n_rows=20).splits == text_corpus(LINES[:20]).splits
    assert text_corpus((o for o in LINES), n_rows=20).splits == text_corpus(LINES[:20]).splits
    with pytest.raises(CorpusError, match='no length.*n_rows.*stream_loaders'): text_corpus(it)
    table = pd.DataFrame(dict(text=LINES))
    assert get_corpus(table, valid=pd.DataFrame(dict(text=['v']))).splits == dict(train=LINES,
        valid=['v'])

def test_splits_that_are_there():
    parts = dict(train=LINES, validation=['v'], test=['t'])
    assert text_corpus(parts).splits == dict(train=LINES, valid=['v'], test=['t'])
    assert text_corpus(dict(train=LINES, dev=['v'])).splits == dict(train=LINES, valid=['v'])
    c = text_corpus(dict(train=LINES, test=['t']))
    assert c.test == ['t'] and len(c.valid) == 2 and sorted(c.train + c.valid) == sorted(LINES)
    with pytest.raises(CorpusError, match="no split 'train' among 'test'"):
        text_corpus(dict(test=LINES))

@given(st.lists(st.one_of(st.none(), st.just(float('nan')),
    st.text(st.characters(blacklist_categories=('Cs',), blacklist_characters='\0')))))
@settings(max_examples=60)
def test_rows_are_kept_or_counted(values):
    c = text_corpus([*values, 'the last one'], valid=0, test=0)
    texts = [o for o in values if isinstance(o, str)]
    assert c.train == [o for t in texts for o in lines_of(t)] + ['the last one']
    assert c.skipped.get('missing rows', 0) == len(values) - len(texts)
    assert c.skipped.get('blank lines', 0) == sum((all_lines(t) or ['']).count('') for t in texts)

@pytest.mark.parametrize('bad,message', [(7, 'int 7'), (b'a', "bytes b'a'"), ('a\0',
    'NUL character at position 1'), ('ab\ud800', 'surrogate'), (['a'], 'list')])
def test_what_is_no_text(bad, message):
    with pytest.raises(CorpusError, match=f'row 1 of .*{message}'):
        text_corpus(pd.DataFrame({'text': ['a', bad, 'c']}, dtype=object))

@pytest.mark.parametrize('data', [[], pd.DataFrame({'text': []}), D([]), [None, ' '],
    pd.DataFrame({'text': [None, np.nan]})], ids=str)
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
    for rows in ('.abc', 'a.bc'):
        data = [None if row == '.' else dict(text=row) for row in rows]
        assert text_corpus(data).skipped == {'missing rows': 1}

# tables in files, and data sets on disk

def save_table(folder, name, lines, col='body'):
    "A table with a column of numbers and one of texts"
    write_table(folder/name, pd.DataFrame({'n': range(len(lines)), col: lines}))
    return folder/name

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
        save_table(tmp_path/'d', f'{k}-00000-of-00001{ext}', [f'{k} {i}' for i in range(n)],
            'text')
    (tmp_path/'d'/'README.md').write_text('about')
    path = dict(folder=tmp_path/'d', list=sorted((tmp_path/'d').glob(f'*{ext}')),
        pattern=str(tmp_path/'d'/f'*{ext}'))[how]
    c = get_corpus(path)
    assert ({k: len(v) for k, v in c.splits.items()} == dict(train=9, valid=4, test=3) and
        c.valid[0] == 'validation 0' and c.name == 'd')

def test_a_table_to_validate_on(tmp_path):
    a,b = save_table(tmp_path, 'a.csv', LINES), save_table(tmp_path, 'b.jsonl', ['v'])
    assert get_corpus(a, text_col='body', valid=b).splits == dict(train=LINES, valid=['v'])

def table_of(folder, name, text):
    (folder/name).write_bytes(text.encode('utf-8'))
    return read_table(folder/name)

@pytest.mark.parametrize('ext,sep', [('csv', ','), ('tsv', '\t')])
def test_cells_in_quotes_hold_separators_and_lines(tmp_path, ext, sep):
    (tmp_path/f't.{ext}').write_text(
        f'text{sep}label\n"one{sep}{sep}""two""\nthree"{sep}1\n{sep}0\n"four"{sep}""\n\n5" '
        f'disk{sep}1'
    )
    table = read_table(tmp_path/f't.{ext}', quotes=True).fillna('none')
    assert table.text.tolist() == [f'one{sep}{sep}"two"\nthree', 'none', 'four', '5" disk']
    assert table.label.tolist() == ['1', '0', 'none', '1']

@pytest.mark.parametrize('ext', ['csv', 'tsv'])
def test_cells_of_text_files_are_text(tmp_path, ext):
    "Labels 01 and 1 are two, a column of numbers has texts, an id of twenty digits keeps them"
    sep = dict(csv=',', tsv='\t')[ext]
    rows = [['text', 'label', 'id'], ['2019', '01', '12345678901234567890'], ['007', '1', '1e5'],
        ['1.50', 'True', 'NA']]
    table = table_of(tmp_path, f't.{ext}', '\n'.join(sep.join(o) for o in rows))
    assert [table.columns.tolist(), *table.values.tolist()] == rows
    assert text_corpus(tmp_path/f't.{ext}', valid=0, test=0).train == ['2019', '007', '1.50']

def test_json_is_read_as_it_stands(tmp_path):
    table = table_of(tmp_path, 't.jsonl',
        '{"text": "01", "date": "2020-01-02", "label": "1"}\n\n{"text": "b", "label": "01"}\n')
    assert (table.text.tolist() == ['01', 'b'] and table.label.tolist() == ['1', '01'] and
        table.date[0] == '2020-01-02')
    assert table_of(tmp_path, 't.json',
        '[{"text": "01", "date": "2020-01-02"}]').values.tolist() == [['01', '2020-01-02']]
    with pytest.raises(CorpusError, match="t.jsonl', line 2 is no JSON object"):
        table_of(tmp_path, 't.jsonl', '{"text": "a"}\n{"text": \n')

@pytest.mark.parametrize('name,text,says', [
    ('t.csv', 'text,label\n"quoted,1\nfine,0\n"again,1\n', 'line 2'),
    ('t.csv', 'text,label\na,1\nb\n', 'line 3.*1 cell,.*has 2'),
    ('t.tsv', 'text\tlabel\na\t1\n"b\t1\nc', 'line 4'), ('t.csv', '\n\n', 'empty')])
def test_tables_that_are_damaged_name_the_line(tmp_path, name, text, says):
    "A text that swallows its label, or the rows after it, is no text"
    with pytest.raises(CorpusError, match=f"{name}'.*{says}"):
        table_of(tmp_path, name, text)

def test_gaps_in_tables_are_counted(tmp_path):
    (tmp_path/'t.csv').write_text('text,n\na,1\n,2\n"  ",3\n"b\nc",4\n')
    c = get_corpus(tmp_path/'t.csv', valid=0., test=0.)
    assert c.train == ['a', 'b', 'c'] and c.skipped == {'missing rows': 1, 'blank lines': 1}

def test_text_and_tables_are_told_apart(tmp_path):
    save_table(tmp_path/'a', 'a.csv', LINES)
    (tmp_path/'a'/'b.txt').write_text('\n'.join(LINES))
    corpus = get_corpus(tmp_path/'a')
    assert corpus.files['train'] == [tmp_path/'a'/'b.txt'], 'a folder with text is read as text'
    assert 'left out a.csv' in repr(corpus.source)
    dls = stream_loaders(tmp_path/'a', n_valid=5, bs=2, device='cpu')
    assert 'left out a.csv' in repr(dls.source)
    with pytest.raises(CorpusError, match="b.txt' is read line by line.*text_col"):
        get_corpus(tmp_path/'a'/'b.txt', text_col='body')
    (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError, match='has no .txt .*files'): get_corpus(tmp_path/'empty')

@pytest.mark.parametrize('ext', ['.csv', '.tsv', '.jsonl', '.json'])
def test_tables_in_another_encoding(tmp_path, ext):
    f = save_table(tmp_path, f't{ext}', ['é', 'è', 'ê'], 'text')
    raw = (json.dumps([dict(text=o) for o in 'éèê'], ensure_ascii=False) if ext == '.json' else
        '\n'.join(f'{{"text": "{o}"}}' for o in 'éèê') if ext == '.jsonl' else
        f.read_text(encoding='utf-8'))
    for encoding in ('latin-1', 'utf-16'):
        f.write_bytes(raw.encode(encoding))
        assert held_out(get_corpus(f, encoding=encoding), ['é', 'è', 'ê'])
        with pytest.raises(CorpusError, match=f"t{ext}.*encoding='"): get_corpus(f)
    with pytest.raises(CorpusError, match="t.* no encoding 'klingon'"):
        get_corpus(f, encoding='klingon')

@pytest.fixture
def saved(tmp_path):
    "A data set of three splits as `datasets` saves it"
    ds = datasets.DatasetDict(train=D(LINES, 'body'), validation=D(['v 0', None], 'body'),
        test=D(['t 0'], 'body'))
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
    monkeypatch.setattr(datasets, 'load_dataset', lambda *a, **k:
        pytest.fail('it asked the network'))
    c = get_corpus('hub:owner/my-set:en', data=saved, text_col='body')
    assert c.splits == SAVED and c.name == 'my-set-en'
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path/'data'))
    (tmp_path/'data'/'owner').mkdir(parents=True)
    saved.rename(tmp_path/'data'/'owner'/'my-set')
    assert get_corpus('hub:owner/my-set', text_col='body').splits == SAVED
    monkeypatch.undo()
    (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError, match="can't load the data set '.*empty'"):
        get_corpus('hub:owner/my-set', data=tmp_path/'empty')

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
    assert (asked == [('owner/set', dict(name='en'))] and len(c.train) == 38 and len(c.valid) == 2
        and c.test == ['t 0'] and c.tokenizer == 'space')
    with pytest.raises(CorpusError,
        match="can't load the data set 'owner/broken'.*Please pick one among en, de.*save_to_disk"):
        get_corpus('hub:owner/broken')
    for name in ('hub:', 'hub: ', 'hub::en'):
        with pytest.raises(CorpusError, match='hub:owner/name'): get_corpus(name)

def test_classes_of_plain_parquet_have_their_names(tmp_path):
    names = datasets.ClassLabel(names=['bad', 'good'])
    features = datasets.Features(dict(text=datasets.Value('string'), label=names))
    rows = datasets.Dataset.from_dict(dict(text=['a', 'b'], label=[0, 1]), features)
    rows.to_parquet(tmp_path/'a.parquet')
    assert open_table(tmp_path/'a.parquet').names == dict(label=['bad', 'good'])

def test_a_path_through_a_list_needs_a_number(tmp_path):
    file = write(tmp_path/'a.jsonl', json.dumps(dict(id=1, turns=[dict(text='a')])) + '\n'*2 +
        json.dumps(dict(id=2, turns=[dict(text='b')])))
    assert good(file, 'turns.0.text') == ['a', 'b']
    with pytest.raises(CorpusError, match='leads through a list.*0.text'): good(file, 'turns.text')

# other forms of the same kinds

SENTENCES = [['The', 'old', 'cat', 'sat', '.'], ['Dogs', 'bark', 'loudly'],
             ['I', 'saw', 'Rome', '.']]

@pytest.mark.parametrize('number', [
    lambda s, i: -i, lambda s, i: i - 2, lambda s, i: f'{i + 1:.18e}', lambda s, i: f'token{i}',
    lambda s, i: f'{97*s + 31*i + 4096:04x}'.replace('a', '1'), lambda s, i: i + 1 if i else 'ID1',
    lambda s, i: ['i', 'ii', 'iii', 'iv', 'v'][i], lambda s, i: 'abcde'[i]])
def test_other_running_numbers_are_no_words(tmp_path, number):
    lines = []
    for s,words in enumerate(SENTENCES*3):
        lines += [f'{number(s, i)}\t{word}\tX{i%3}' for i,word in enumerate(words)] + ['']
    (tmp_path/'a.conll').write_text('\n'.join(lines) + '\n')
    sents, _ = read_tagged(tmp_path/'a.conll')
    assert [sent.tokens for sent in sents] == SENTENCES*3
    assert get_corpus(tmp_path/'a.conll', valid=0, test=0).train[0] == 'The old cat sat .'

@pytest.mark.parametrize('name', ['sentiment', 'sent_token_id', 'doc_word', 'sentence_position',
                                  'doctor', 'sent_start'])
def test_columns_that_change_within_a_sentence_end_none(name):
    rows = pd.DataFrame({'sent_id': [0, 0, 0, 1, 1], name: [1, 2, 1, 1, 2],
                         'token': list('abcde'), 'tag': list('XYXYX')})
    assert [sent.tokens for sent in read_tagged(rows)[0]] == [list('abc'), list('de')]

@pytest.mark.parametrize('text', ['[{"text": "a b"}] x', '[{"text": "a b"}]\n[{"text": "c d"}]\n'])
def test_nothing_follows_a_list_of_objects(tmp_path, text):
    (tmp_path/'a.json').write_text(text)
    with pytest.raises(CorpusError, match='follows'): read_table(tmp_path/'a.json')

def test_a_table_without_columns_or_with_one_twice(tmp_path):
    assert good(write(tmp_path/'b.csv', 'n,text,n\n1,a,2\n')) == ['a'], 'it is another one'
    with pytest.raises(CorpusError, match="2 columns 'text'"):
        good(write(tmp_path/'a.tsv', 'text\ttext\na\tb\n'))
    (tmp_path/'a.json').write_text('{}')
    (tmp_path/'a.csv').write_text('text,text\na,b\n')
    for name in ('a.json', 'a.csv'):
        with pytest.raises(CorpusError, match='column'): read_table(tmp_path/name)
    double = pd.DataFrame([['a', 1]], columns=pd.MultiIndex.from_tuples([('x', 'y'), ('x', 'z')]))
    with pytest.raises(CorpusError, match='no column'): get_corpus(double)

@pytest.mark.parametrize('between', '_#')
def test_pairs_with_other_marks_are_refused(tmp_path, between):
    (tmp_path/'a.conll').write_text('The/DT dog/NN\nShe/PRP ran/VBD\n'.replace('/', between))
    with pytest.raises(CorpusError, match='written with its tag') as e:
        read_tagged(tmp_path/'a.conll')
    assert "'/'" not in str(e.value)

def test_tagged_tables_name_the_line_and_an_encoding(tmp_path):
    text = 'Sentence #,Word,Tag\nSentence: 1,Thousands,O\n,Z\xfcrich,B-LOC\n'
    (tmp_path/'a.csv').write_bytes(text.encode('cp1252'))
    with pytest.raises(CorpusError, match="line 3 .*encoding='cp1252'"):
        read_tagged(tmp_path/'a.csv')
    assert read_tagged(tmp_path/'a.csv', encoding='cp1252')[0][0].tokens[1] == 'Z\xfcrich'

def test_spans_beside_tokens_are_those_of_the_text(tmp_path):
    row = dict(text='Tom lives', tokens=[dict(text='Tom'), dict(text='lives')],
               spans=[dict(start=0, end=3, label='PER')])
    (tmp_path/'a.jsonl').write_text(json.dumps(row) + '\n')
    assert read_tagged(tmp_path/'a.jsonl')[0][0].tags == ['B-PER', 'O']
