"""The texts of a file: every kind by its ending, plain text that is none, line ends, quotes, rows
that are broken, and files that are larger than what is held"""

import csv, gzip, io, json, sys, tracemalloc
from types import SimpleNamespace

import pandas as pd, pyarrow as pa, pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import reading as module
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import all_lines
from elmo_fastai.text.reading import open_table
from elmo_fastai.text.sources import read_texts

def unit_of(file): return open_table(file).unit

TEXTS = ['the bank', 'one, "two"\nthree', 'naïve — 河', 'last one']

def write(path, data):
    "`data`, a text or bytes, packed if `path` ends in .gz"
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if path.name.lower().endswith('.gz') else data)
    return str(path)

def write_table(path, df):
    "`df` in the format that the name of `path` says"
    name = path.name.removesuffix('.gz').lower()
    if name.endswith('.parquet'): df.to_parquet(path)
    elif name.endswith('.json'): df.to_json(path, orient='records')
    elif name.endswith('.jsonl'): df.to_json(path, orient='records', lines=True)
    else: df.to_csv(path, index=False, sep='\t' if name.endswith('.tsv') else ',')
    return str(path)

def read(path, column=None, longest=2**20, quotes=None):
    if '.tsv' in str(path): quotes = True        # as pandas writes it
    return read_texts(path, longest, text_col=column, quotes=quotes)
def good(path, *args): return [text for text,why in read(path, *args) if why is None]
def bad(path, *args): return {i: why for i,(_,why) in enumerate(read(path, *args)) if why}

# kinds of files

@pytest.mark.parametrize('column', ['text', 'sentence', 'review', 'content', 'other'])
@pytest.mark.parametrize(
    'name',
    [
        'a.csv',
        'a.tsv',
        'a.json',
        'a.jsonl',
        'a.parquet',
        'a.csv.gz',
        'a.tsv.gz',
        'a.json.gz',
        'a.jsonl.gz',
        'A.CSV',
    ],
)
def test_tables_by_their_ending(tmp_path, name, column):
    "The column is found by its name, or has to be named"
    file = write_table(tmp_path / name, pd.DataFrame({'id': range(4), column: TEXTS, 'label': 'x'}))
    assert (
        list(read(file, 'other' if column == 'other' else None)) == [(t, None) for t in TEXTS]
        and unit_of(file) == 'row'
    )
    assert good(file, 'label') == ['x'] * 4
    if column == 'other':
        with pytest.raises(
            CorpusError,
            match=f"{name}.*no column 'text' or .*among 'id', 'other', 'label'.*text_col='label'",
        ):
            good(file)
    with pytest.raises(CorpusError, match="no column 'nothing'"): good(file, 'nothing')

def test_columns_of_one_name(tmp_path):
    for name,data in (('a.csv', 'text,text\na,b\n'), ('a.tsv', 'text\ttext\na\tb\n')):
        with pytest.raises(CorpusError, match="2 columns 'text'"): good(write(tmp_path/name, data))
    assert good(write(tmp_path/'b.csv', 'n,text,n\n1,a,2\n')) == ['a']

@pytest.mark.parametrize('name', ['a.csv', 'a.tsv', 'a.jsonl', 'a.parquet', 'a.json'])
def test_cells_are_texts(tmp_path, name):
    "No number, no date, no missing value is made from a text"
    texts = ['01', '1', 'NA', 'null', 'nan', '1e5', 'True', '2020-01-01', ' a ']
    file = write_table(tmp_path/name, pd.DataFrame({'text': texts, 'n': range(9)}))
    assert list(read_texts(file)) == [(t, None) for t in texts]

# a file that begins with control characters is binary data to the reader
CHARACTERS = st.characters(codec='utf-8', exclude_categories=['Cc']) | st.sampled_from('\n\t')

@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(CHARACTERS, max_size=8), st.text('ab", \n', max_size=6)),
                min_size=1, max_size=6))
def test_what_pandas_writes_is_read(tmp_path_factory, rows):
    d = tmp_path_factory.mktemp('t')
    df = pd.DataFrame(rows, columns=['text', 'other'])
    for name in ('a.csv', 'a.jsonl', 'a.parquet', 'a.csv.gz'):
        assert good(write_table(d / name, df)) == [t for t, _ in rows]


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
    file = write(
        tmp_path / name, CONLLU if 'conllu' in name else 'the DET\n1,2 NUM\n\ndo AUX\nn\'t PART\n'
    )
    assert (
        list(read_texts(tmp_path / name))
        == list(read_texts(file))
        == [(['the', '1,2'], None), (['do', "n't"], None)]
        and unit_of(file) == 'sentence'
    )


STRANGE = dict(
    json='{"text": "the bank"}\n{"text": "a river"}\n',
    pretty='[\n  {"text": "the bank"}\n]\n',
    rows='[{"text": "the bank"}]',
    html='<!DOCTYPE html>\n<p>the bank</p>\n',
    xml='<?xml version="1.0"?>\n<a/>\n',
    pdf='%PDF-1.4\nthe bank\n',
    rtf='{\\rtf1 the bank}\n',
    binary='the bank\x01\x02\x00\n',
    treebank=CONLLU,
    words=CONLLU.partition('= 1\n')[2],
    tabs='id\ttext\n1\tthe bank\n2\ta river\n',
)


@pytest.mark.parametrize('kind', STRANGE)
def test_what_is_no_plain_text_is_refused(tmp_path, monkeypatch, kind):
    "Where the name says nothing, and on standard input: syntax is not read as if it were text"
    data = STRANGE[kind]
    for name in ('a.xyz', 'a', 'a.xyz.gz', '-'):
        if name == '-':
            monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=io.BytesIO(data.encode())))
        with pytest.raises(CorpusError, match='looks like .*plain text'):
            good(name if name == '-' else write(tmp_path / name, data))
    if kind in ('html', 'xml', 'pdf', 'rtf', 'binary'):
        with pytest.raises(CorpusError, match='looks like'): good(write(tmp_path/'a.txt', data))
    else: assert good(write(tmp_path/'a.txt', data)), 'a name that ends in .txt is a promise'

PLAIN = [
    '# The bank\n\n- [x] one, {two} <b>three</b>\n"a\tb" café\n',
    '[[The bank]] of {the} river\n',
    '<s> the bank </s>\n',
    '[Music] {laughs}\n',
    '1 the\n2 bank\n',
    'a\r\nb\r\n',
    '',
    '\n',
    'é' * 5000,
]


@pytest.mark.parametrize('name', ['a.md', 'a.en', 'a', 'a.md.gz', '-'])
def test_plain_text_under_any_name(tmp_path, monkeypatch, name):
    for data in PLAIN:
        if name == '-':
            monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=io.BytesIO(data.encode())))
        assert good(name if name == '-' else write(tmp_path/name, data)) == data.splitlines()

def test_standard_input_stays_open(monkeypatch):
    stream = io.BufferedReader(io.BytesIO(b'a\nb\n'))
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(buffer=stream))
    assert good('-') == ['a', 'b'] and not stream.closed

@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'], ids=ascii)
def test_line_ends_are_those_of_pretraining(tmp_path, end):
    text = end.join(['the bank', '', 'a\x0bb\u2028c \x85 d', 'last'])
    for raw in (text, text + end, '\ufeff' + text):
        for name in ('a.txt', 'a.xyz', 'a.txt.gz'):
            assert [t.strip() for t in good(write(tmp_path / name, raw))] == all_lines(
                raw.lstrip('\ufeff')
            )
    for name,sep in (('a.csv', ','), ('a.tsv', '\t')):
        assert good(
            write(
                tmp_path / name,
                end.join([f'id{sep}text', f'1{sep}the bank', '', f'2{sep}last', '']),
            )
        ) == ['the bank', 'last']
    assert good(write(tmp_path / 'a.jsonl', end.join(['{"text": "a"}', '', '{"text": "b"}']))) == [
        'a',
        'b',
    ]


# what is broken

def test_quotes(tmp_path):
    "In a .tsv a quote is an ordinary character, unless one says otherwise"

    def tsv(raw, **how):
        return [text for text, why in read_texts(write(tmp_path / 'a.tsv', raw), **how)]

    assert tsv('id\ttext\n1\t"stray\n2\tb "c" d\n3\t5" disk\n4\tlast"\n') == [
        '"stray',
        'b "c" d',
        '5" disk',
        'last"',
    ]
    assert tsv('id\ttext\n1\t"one"\n3\t"\n') == ['"one"', '"']
    assert tsv('id\ttext\n1\t"one\ttwo"\n2\t"three\nfour"\n', quotes=True) == [
        'one\ttwo',
        'three\nfour',
    ]
    [(_, why)] = read_texts(write(tmp_path/'a.tsv', 'id\ttext\n1\t"one\ttwo"\n'))
    assert 'quotes=True (--quotes)' in why
    assert good(write(tmp_path / 'a.csv', 'id,text\n1,5" disk\n2,"one, ""two"""\n')) == [
        '5" disk',
        'one, "two"',
    ]


@pytest.mark.parametrize(
    'raw',
    [
        'id,text\n1,"never\n2,b\n3,c\n',
        'text,id\na,"never\nb,2\nc,3\n',
        'text,id,n\n"never,1,1\nb,2,2\n',
        'text\na\n"never\nb',
    ],
)
def test_a_quote_that_is_never_closed(tmp_path, raw):
    for name in ('a.csv', 'a.csv.gz'):
        with pytest.raises(CorpusError, match=f'{name}.*never closed'):
            good(write(tmp_path / name, raw))
    assert good(write(tmp_path / 'b.csv', 'id,text\n1,"closed\nat last"\n')) == ['closed\nat last']
    assert good(write(tmp_path/'b.csv', 'text,id\n"closed\nat last",1\n')) == ['closed\nat last']

def test_rows_of_another_length(tmp_path):
    "A text that was cut at a comma is no text"
    file = write(
        tmp_path / 'a.csv', 'id,text\n1,"two\nlines"\n\n2,good, bad\n3\n4,fine\n5\n6,a,b,c\n'
    )
    assert good(file) == ['two\nlines', 'fine'] and {*bad(file)} == {1, 2, 4, 5}
    for i, says in {1: '3 cells', 2: '1 cell,', 4: '1 cell,', 5: '4 cells'}.items():
        assert says in bad(file)[i] and 'header has 2' in bad(file)[i]
    many = 'id,text\n' + ''.join(f'{i},"line {i}\nx"\n' if i % 7 else 'bad\n' for i in range(2000))
    assert [*bad(write(tmp_path/'b.csv', many))] == list(range(0, 2000, 7))

def test_bad_rows_are_found_in_every_block(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'LONGEST_ROW', 1000)
    many = 'id,text\n' + ''.join(f'{i},"line {i}\nx"\n' if i % 7 else 'bad\n' for i in range(2000))
    file = write(tmp_path/'b.csv', many)
    assert [*bad(file)] == list(range(0, 2000, 7)) and good(file) == [
        f'line {i}\nx' for i in range(2000) if i % 7
    ]
    with pytest.raises(CorpusError, match='more than 1,000 characters'):
        good(write(tmp_path / 'c.csv', 'id,text\n1,' + 'x' * 5000))


def test_rows_of_json_that_are_none(tmp_path):
    file = write(
        tmp_path / 'a.jsonl',
        '\ufeff{"text": "good", "n": 1}\n\n{"text": 3}\n{"n": 2}\n{"text": \n["text"]\n{"text": "half \\ud83d"}\n{"text": "caf\\u00e9"}\n'.encode()
        + b'{"text": "caf\xe9"}\n'
        + b'[' * 100_000,
    )
    found = bad(file)
    assert good(file) == ['good', 'café'] and {*found} == {1, 2, 3, 4, 5, 7, 8}
    for i, says in {
        1: 'int 3',
        2: 'no text',
        3: 'no JSON object',
        4: 'no JSON object',
        5: 'surrogate',
        7: 'UTF-8 (byte 3)',
        8: 'no JSON object',
    }.items():
        assert says in found[i], found[i]
    for first in ('"text"\n', 'no\n', '7\n', '["text"]\n'):
        with pytest.raises(CorpusError, match='first line of .*b.jsonl.* is no JSON object'):
            good(write(tmp_path / 'b.jsonl', first))


def test_texts_that_are_none(tmp_path):
    file = write(
        tmp_path / 'a.txt',
        b'\xef\xbb\xbfgood\r\ncaf\xe9\nnul\x00byte\n' + b'\xed\xa0\x80\n' + b'x' * 60 + b'\nlast',
    )
    found = bad(file, None, 50)
    assert good(file, None, 50) == ['good', 'last'] and {*found} == {1, 2, 3, 4}
    assert (
        'not UTF-8 (byte 3)' in found[1]
        and 'NUL character at position 3' in found[2]
        and 'UTF-8 (byte 0)' in found[3]
        and 'more than 50 characters' in found[4]
    )
    pd.DataFrame({'t': ['a', None, 'b']}).to_parquet(tmp_path/'a.parquet')
    assert bad(str(tmp_path/'a.parquet'), 't') == {1: 'holds no text'}
    pd.DataFrame({'t': [1, 2]}).to_parquet(tmp_path/'b.parquet')
    assert 'int 1' in bad(str(tmp_path/'b.parquet'), 't')[0]
    file = write(tmp_path/'c.csv', b'id,t\n1,good\n2,caf\xe9\n3,"nul\x00"\n4,\n')
    assert (
        good(file, 't') == ['good', '']
        and 'UTF-8' in bad(file, 't')[1]
        and 'NUL' in bad(file, 't')[2]
    )


def test_a_line_that_is_too_long_is_not_held():
    def lines(data):
        return [
            line
            for some in module.text_lines(io.TextIOWrapper(io.BytesIO(data), 'utf-8-sig'), 10, 7)
            for line in some
        ]

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
    for n, _ in enumerate(read_texts(str(tmp_path / name)), 1):
        most = max(most, pa.total_allocated_bytes() - held)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n == 2500 and python < 12e6 and most < 12e6, (python, most)

def test_settings_of_the_process_stay(tmp_path):
    before = csv.field_size_limit()
    long = 'a '*100_000
    assert (
        good(write_table(tmp_path / 'a.csv', pd.DataFrame({'text': [long, 'b']}))) == [long, 'b']
        and csv.field_size_limit() == before
    )
