"Tables, data sets, lines on disk, streams that break off"
import gzip, json, os, pickle, subprocess, sys
from pathlib import Path

import pytest
import numpy as np, pandas as pd
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import corpora
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import all_lines, lines_of
from elmo_fastai.text.named import get_corpus
from elmo_fastai.text.tables import (
    DiskLines, TEXT_COLUMNS, c4, hub_corpus, row_lines, stream_corpus, table_corpus, text_column)

datasets = pytest.importorskip('datasets')
def D(texts, col='text'):
    kind = 'int64' if texts and isinstance(texts[0], int) else 'string'
    return datasets.Dataset.from_dict({col: texts}, features=datasets.Features({col: datasets.Value(kind)}))

# tables

@pytest.mark.parametrize('col', TEXT_COLUMNS)
def test_text_column_is_found(col):
    assert text_column(['label', col, 'id']) == col
    assert table_corpus(D(['a', 'b', 'c'], col)).train == ['a']

def test_text_column_named_or_missing():
    df = pd.DataFrame({'body': ['a', 'b', 'c'], 'n': [1, 2, 3]})
    assert table_corpus(df, 'body').train == ['a']
    for f in (lambda: table_corpus(df), lambda: get_corpus(df)):
        with pytest.raises(CorpusError, match="no column 'text' or 'sentence' or 'review' or 'content' among 'body', 'n'"): f()
    with pytest.raises(CorpusError, match="no column 'txt' among 'body'"): get_corpus(df[['body']], text_col='txt')
    with pytest.raises(CorpusError, match="row 0 of column 'n' holds int 1"): table_corpus(df, 'n')
    with pytest.raises(CorpusError, match="2 columns 'text'"): table_corpus(pd.DataFrame([['a', 'b']], columns=['text', 'text']))

LINES = [f'line {i}' for i in range(40)]
@pytest.mark.parametrize('data', [LINES, tuple(LINES), pd.DataFrame({'text': LINES}), pd.Series(LINES), D(LINES), D(LINES, 'review'), [dict(text=o) for o in LINES],
                                  dict(train=LINES), datasets.DatasetDict(train=D(LINES))], ids=lambda o: type(o).__name__)
def test_every_kind_of_table(data):
    c = table_corpus(data)
    assert c.splits == dict(train=LINES[:36], valid=LINES[36:38], test=LINES[38:]) and not c.skipped
    if not isinstance(data, (list, tuple)): assert get_corpus(data).splits == c.splits

def test_streams_need_a_number_of_rows():
    it = D(LINES).to_iterable_dataset()
    assert table_corpus(it, n_rows=20).splits == table_corpus(LINES[:20]).splits
    assert table_corpus((o for o in LINES), n_rows=20).splits == table_corpus(LINES[:20]).splits
    with pytest.raises(CorpusError, match='no length.*n_rows.*stream_corpus'): table_corpus(it)

def test_splits_that_are_there():
    parts = dict(train=LINES, validation=['v'], test=['t'])
    assert table_corpus(parts).splits == dict(train=LINES, valid=['v'], test=['t'])
    assert table_corpus(dict(train=LINES, dev=['v'])).splits == dict(train=LINES, valid=['v'])
    assert table_corpus(dict(train=LINES, test=['t'])).splits == dict(train=LINES[:38], valid=LINES[38:], test=['t'])
    with pytest.raises(CorpusError, match="no split 'train' among 'test'"): table_corpus(dict(test=LINES))

@given(st.lists(st.one_of(st.none(), st.just(float('nan')), st.text(st.characters(blacklist_categories=('Cs',), blacklist_characters='\0')))))
@settings(max_examples=60, deadline=None)
def test_rows_are_kept_or_counted(values):
    lines, left = row_lines(values)
    texts = [o for o in values if isinstance(o, str)]
    assert left['missing rows'] == len(values) - len(texts)
    assert lines == [o for t in texts for o in lines_of(t)]
    assert left['blank lines'] == sum((all_lines(t) or ['']).count('') for t in texts)

@pytest.mark.parametrize('bad,message', [(7, 'int 7'), (b'a', "bytes b'a'"), ('a\0', 'NUL character at position 1'), ('ab\ud800', 'surrogate'), (['a'], 'list')])
def test_what_is_no_text(bad, message):
    with pytest.raises(CorpusError, match=f'row 1 of .*{message}'): table_corpus(pd.DataFrame({'text': ['a', bad, 'c']}, dtype=object))

@pytest.mark.parametrize('data', [[], pd.DataFrame({'text': []}), D([]), [None, ' '], pd.DataFrame({'text': [None, np.nan]})], ids=str)
def test_no_text_at_all(data):
    with pytest.raises(CorpusError, match='no rows|0 lines with text'): table_corpus(data)

@pytest.mark.parametrize('data', ['some text', b'bytes', 7, None])
def test_not_a_table(data):
    with pytest.raises(CorpusError, match='expected a table'): table_corpus(data)

# lines on disk

@given(st.lists(st.text('ab\n ', max_size=5), max_size=30), st.data())
@settings(max_examples=40, deadline=None)
def test_disk_lines_behave_as_a_list(lines, data):
    d = DiskLines(D(lines))
    assert len(d) == len(lines) and list(d) == lines and bool(d) == bool(lines)
    i, j, k = [data.draw(st.one_of(st.none(), st.integers(-35, 35))) for _ in range(3)]
    k = k or None
    assert list(d[i:j:k]) == lines[i:j:k] and list(d[i:j:k][1:]) == lines[i:j:k][1:]
    if lines:
        n = data.draw(st.integers(-len(lines), len(lines)-1))
        assert d[n] == lines[n] and lines[n] in d
    with pytest.raises(IndexError): d[len(lines)]

def test_disk_lines_refuse():
    with pytest.raises(CorpusError, match="no column 'text'"): DiskLines(D(['a'], 'x'))
    with pytest.raises(CorpusError, match="'text' holds int64"): DiskLines(D([1]))
    assert list(DiskLines(D(['a', None]))) == ['a', '']

def test_disk_lines_pickle_without_their_text(tmp_path):
    D(['x'*1000]*1000).save_to_disk(tmp_path/'d')
    d = DiskLines(datasets.load_from_disk(tmp_path/'d'))
    raw = pickle.dumps(d)
    assert len(raw) < 20_000 and list(pickle.loads(raw)[:2]) == ['x'*1000]*2

# streams

def write_c4(folder, docs, n_files=3, held=None):
    "Files as the hub's C4 has them"
    folder.mkdir(parents=True, exist_ok=True)
    for split,some in (('train', docs), ('validation', held or [])):
        for k in range(n_files if some else 0):
            part = some[k*len(some)//n_files:(k+1)*len(some)//n_files]
            raw = '\n'.join(json.dumps(dict(text=o, timestamp='2019-04-25T12:57:54Z', url='https://example.org')) for o in part)
            (folder/f'c4-{split}.{k:05}-of-{n_files:05}.json.gz').write_bytes(gzip.compress(raw.encode()))
    return folder

DOCS = [f'doc {i}\n\nsecond line of {i}' for i in range(100)]
KW = dict(n_train=50, n_valid=10, n_test=5, size=8)

def lines(docs): return [o for d in docs for o in lines_of(d)]

def test_c4_from_local_files(tmp_path):
    held = [f'held {i}' for i in range(30)]
    d = write_c4(tmp_path/'c4', DOCS, held=held)
    for path in (d, str(d/'*.json.gz'), sorted(d.iterdir())):
        c = c4(path, folder=tmp_path/'kept', **KW)
        assert list(c.train) == lines(DOCS[:50]) and list(c.valid) == held[:10] and list(c.test) == held[10:15]
        assert c.documents == dict(train=50, valid=10, test=5) and c.name == 'c4' and isinstance(c.train, DiskLines)
    assert get_corpus('c4', data=d, folder=tmp_path/'kept', **KW).splits['train'][0] == 'doc 0'

def test_c4_without_files_for_validation(tmp_path):
    c = c4(write_c4(tmp_path/'c4', DOCS), folder=tmp_path/'kept', **KW)
    assert list(c.valid) == lines(DOCS[:10]) and list(c.test) == lines(DOCS[10:15]) and list(c.train) == lines(DOCS[15:65])
    more = c4(tmp_path/'c4', folder=tmp_path/'kept', **{**KW, 'n_train': 1000})
    assert list(more.train) == lines(DOCS[15:]) and list(more.valid) == list(c.valid)
    less = c4(tmp_path/'c4', folder=tmp_path/'kept', **{**KW, 'n_train': 3})
    assert list(less.train) == lines(DOCS[15:18])

@pytest.mark.parametrize('ext', ['.jsonl', '.json.gz', '.txt', '.txt.gz', '.parquet'])
def test_c4_from_other_files(ext, tmp_path, monkeypatch):
    (tmp_path/'d').mkdir(); f = tmp_path/'d'/f'a{ext}'
    rows = [f'doc {i}' for i in range(20)]
    raw = '\n'.join(json.dumps(dict(text=o)) for o in rows).encode() if 'json' in ext else '\n'.join(rows).encode()
    if ext == '.parquet': pd.DataFrame({'text': rows}).to_parquet(f)
    else: f.write_bytes(gzip.compress(raw) if ext.endswith('.gz') else raw)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    c = c4(tmp_path/'d', 10, 2, 2)
    assert list(c.train) == rows[4:14] and list(c.valid) == rows[:2]
    assert [o.name[:3] for o in (tmp_path/'cache'/'elmo_fastai').iterdir()] == ['c4-']

def test_c4_under_the_data_folder(tmp_path, monkeypatch):
    write_c4(tmp_path/'c4'/'en', DOCS)
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path)); monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    assert c4(n_train=5, n_valid=1, n_test=1).documents['train'] == 5

def test_c4_wrong_files(tmp_path):
    with pytest.raises(CorpusError, match='no file or folder'): c4(tmp_path/'nowhere')
    (tmp_path/'a.csv').write_text('a')
    with pytest.raises(CorpusError, match='files of one kind.*has none'): c4(tmp_path)
    (tmp_path/'a.txt').write_text('a'); (tmp_path/'b.jsonl').write_text('{}')
    with pytest.raises(CorpusError, match='has json and text'): c4(tmp_path)
    v = write_c4(tmp_path/'v', [], held=['a'])
    with pytest.raises(CorpusError, match='validation only'): c4(v)

@pytest.mark.parametrize('raw,message', [(b'{"text": "good"}\n{"text": bad}', ''), (b'{"text": "\xff"}', ''), (b'{"body": "a"}\n{"body": "b"}', "no column 'text' among 'body'")])
def test_c4_broken_files(raw, message, tmp_path):
    f = tmp_path/'a.jsonl'; f.write_bytes(raw)
    with pytest.raises(CorpusError, match=message or 'the stream broke off after'): c4(f, folder=tmp_path/'kept', **KW)

@pytest.mark.parametrize('stop', range(0, 100, 7))
def test_a_stream_goes_on_where_it_broke_off(stop, tmp_path):
    "Nothing twice, nothing lost, wherever it breaks, with files, parts and splits of other lengths"
    files = [str(o) for o in sorted(write_c4(tmp_path/'c4', DOCS).glob('*'))]
    seen, up = [], False
    def fetch(row):
        if not up and row['text'] == DOCS[stop]: raise ConnectionError('down')
        seen.append(row['text'])
        return row
    def stream(): return datasets.load_dataset('json', data_files=files, split='train', streaming=True).map(fetch)
    kw = dict(folder=tmp_path/'kept', **KW)
    if stop < 65:
        with pytest.raises(CorpusError, match=rf'broke off after {stop if stop < 15 else stop-15} of .*ConnectionError: down.*goes on'): stream_corpus(stream, **kw)
        assert seen == DOCS[:stop]
    up = True
    c = stream_corpus(stream, **kw)
    assert list(c.valid) == lines(DOCS[:10]) and list(c.test) == lines(DOCS[10:15]) and list(c.train) == lines(DOCS[15:65])
    assert len(seen) == len(set(seen))
    n = len(seen); up = False
    assert list(stream_corpus(stream, **kw).train) == lines(DOCS[15:65]) and len(seen) == n # nothing is read again

def test_killed_between_parts(tmp_path):
    "A process that is killed leaves whole parts; the next one goes on"
    d = write_c4(tmp_path/'c4', DOCS)
    code = f"""if True:
        import os, elmo_fastai.text.tables as r
        save = r._save_part
        def dies(folder, *args):
            if folder.name == '000003' and folder.parent.name == 'train': os._exit(9)
            save(folder, *args)
        r._save_part = dies
        r.c4({str(d)!r}, folder={str(tmp_path/'kept')!r}, **{KW!r})"""
    assert subprocess.run([sys.executable, '-c', code], env={**os.environ, 'PYTHONPATH': str(Path(__file__).parent.parent)}).returncode == 9
    (tmp_path/'kept'/'train'/'.000003-x77').mkdir()
    assert sorted(o.name for o in (tmp_path/'kept'/'train').iterdir()) == ['.000003-x77', '000000', '000001', '000002']
    assert list(c4(d, folder=tmp_path/'kept', **KW).train) == lines(DOCS[15:65])
    assert not list((tmp_path/'kept'/'train').glob('.*'))

def test_documents_without_text_are_counted(tmp_path):
    docs = ['a\n\n', ' \n', 'z', None, 'b\0', 'c', '', 'd', 'e\nf', 'g']
    c = stream_corpus(D(docs), tmp_path/'kept', 6, 1, 2, size=2)
    assert {k: list(v) for k,v in c.splits.items()} == dict(train=['c', 'd', 'e', 'f'], valid=['a'], test=['z'])
    assert c.skipped == {'documents without text': 3, 'documents that are no text': 1} and c.documents == dict(train=6, valid=1, test=2)

def test_too_few_documents(tmp_path):
    for n_valid,n_test,part in ((10, 5, 'test'), (3, 2, 'train')):
        with pytest.raises(CorpusError, match=f'none is left for .*{part} after n_valid={n_valid} and n_test={n_test}'):
            stream_corpus(D(['a']*5), tmp_path/part, 6, n_valid, n_test, size=2)
    with pytest.raises(CorpusError, match="n_valid must be a whole number of documents from 1 up, not 0"): stream_corpus(D(['a']), tmp_path/'x', 1, 0, 1)

def test_a_folder_keeps_its_settings(tmp_path):
    kw = dict(size=2)
    stream_corpus(D(LINES), tmp_path/'kept', 6, 1, 2, name='a', **kw)
    with pytest.raises(CorpusError, match="begun with n_held=3, now n_held=4.*another folder"): stream_corpus(D(LINES), tmp_path/'kept', 6, 2, 2, name='a', **kw)
    with pytest.raises(CorpusError, match="begun with name='a', now name='b'"): stream_corpus(D(LINES), tmp_path/'kept', 6, 1, 2, name='b', **kw)
    with pytest.raises(CorpusError, match="begun with separate=False, now separate=True"): stream_corpus(D(LINES), tmp_path/'kept', 6, 1, 2, D(LINES), name='a', **kw)

def test_memory_stays_when_the_stream_grows(tmp_path):
    "Six times the documents, far less than six times the peak, in writing and in reading"
    import tracemalloc
    def peak(n):
        def stream(): return datasets.IterableDataset.from_generator(lambda: (dict(text=f'document {i} ' + 'word '*50) for i in range(n)))
        tracemalloc.start()
        c = stream_corpus(stream, tmp_path/str(n), n-10, 5, 5, size=300)
        assert sum(1 for _ in c.train) == n-10
        p = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return p
    peak(300)
    assert peak(6000) < 2*peak(1000)

# wrong input that once slipped through

def test_tables_without_text(tmp_path):
    for f in (lambda: table_corpus(pd.DataFrame()), lambda: text_column([])):
        with pytest.raises(CorpusError, match='has no columns'): f()
    assert table_corpus([{'text': 'a'}, None, {'text': 'b'}, {'text': 'c'}]).skipped == {'missing rows': 1}
    with pytest.raises(CorpusError, match='stream_corpus'): DiskLines(D(LINES).to_iterable_dataset())

def test_stream_corpus_refuses_before_it_begins(tmp_path):
    for size in (0, -3):
        with pytest.raises(CorpusError, match=f'size must be .*not {size}'): stream_corpus(D(LINES), tmp_path/'size', 6, 1, 2, size=size)
    assert not (tmp_path/'size').exists()
    with pytest.raises(CorpusError, match='expected an `IterableDataset`.*list'): stream_corpus(['a', 'b'], tmp_path/'list', 6, 1, 2)
    (tmp_path/'file').write_text('no folder')
    with pytest.raises(CorpusError, match="can't keep documents in"): stream_corpus(D(LINES), tmp_path/'file', 6, 1, 2)

def test_a_wrong_column_does_not_spoil_the_folder(tmp_path):
    kw = dict(n_train=6, n_valid=1, n_test=2, size=2)
    with pytest.raises(CorpusError, match="no column 'body'"): stream_corpus(D(LINES), tmp_path/'kept', text_col='body', **kw)
    assert stream_corpus(D(LINES), tmp_path/'kept', **kw).documents['train'] == 6

def test_damaged_notes_are_named(tmp_path):
    kw = dict(n_train=6, n_valid=1, n_test=2, size=2)
    want = stream_corpus(D(LINES), tmp_path/'kept', **kw)
    note = tmp_path/'kept'/'train'/'000001'/'note.json'; note.write_text('{"end": ')
    with pytest.raises(CorpusError, match="note.json' is damaged.*delete the folder '.*train'"): stream_corpus(D(LINES), tmp_path/'kept', **kw)
    want = list(want.valid)
    import shutil; shutil.rmtree(tmp_path/'kept'/'train')
    again = stream_corpus(D(LINES), tmp_path/'kept', **kw)
    assert list(again.valid) == want and again.documents['train'] == 6
    (tmp_path/'kept'/'stream.json').write_text('{"form')
    with pytest.raises(CorpusError, match="stream.json' is damaged"): stream_corpus(D(LINES), tmp_path/'kept', **kw)

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
    c = get_corpus(f, text_col='body')
    assert c.splits == dict(train=lines[:18], valid=lines[18:19], test=lines[19:]) and c.name == 't'
    with pytest.raises(CorpusError, match="no column 'text' or .* among 'n', 'body'"): get_corpus(str(f))
    with pytest.raises(CorpusError, match="row 0 of column 'n' of .*t\\..* holds int 0, not text"): get_corpus(f, text_col='n')

@pytest.mark.parametrize('ext', ['.csv', '.jsonl.gz', '.parquet'])
@pytest.mark.parametrize('how', ['folder', 'list', 'pattern'])
def test_tables_with_splits(tmp_path, ext, how):
    for k,n in (('train', 9), ('validation', 4), ('test', 3)): save_table(tmp_path/'d', f'{k}-00000-of-00001{ext}', [f'{k} {i}' for i in range(n)], 'text')
    (tmp_path/'d'/'README.md').write_text('about')
    path = dict(folder=tmp_path/'d', list=sorted((tmp_path/'d').glob(f'*{ext}')), pattern=str(tmp_path/'d'/f'*{ext}'))[how]
    c = get_corpus(path)
    assert {k: len(v) for k,v in c.splits.items()} == dict(train=9, valid=4, test=3) and c.valid[0] == 'validation 0' and c.name == 'd'

def test_a_table_to_validate_on(tmp_path):
    a,b = save_table(tmp_path, 'a.csv', LINES), save_table(tmp_path, 'b.jsonl', ['v'])
    assert get_corpus(a, text_col='body', valid=b).splits == dict(train=LINES, valid=['v'])

def test_gaps_in_tables_are_counted(tmp_path):
    (tmp_path/'t.csv').write_text('text,n\na,1\n,2\n"  ",3\n"b\nc",4\n')
    c = get_corpus(tmp_path/'t.csv', valid=0., test=0.)
    assert c.train == ['a', 'b', 'c'] and c.skipped == {'missing rows': 1, 'blank lines': 1}

def test_text_and_tables_are_told_apart(tmp_path):
    f = save_table(tmp_path/'a', 'a.csv', LINES)
    (tmp_path/'a'/'b.txt').write_text('\n'.join(LINES))
    assert get_corpus(tmp_path/'a').files['train'] == [tmp_path/'a'/'b.txt'], 'a folder with text is read as text'
    with pytest.raises(CorpusError, match='a.csv is a table and b.txt is not'): get_corpus([f, tmp_path/'a'/'b.txt'])
    with pytest.raises(CorpusError, match="b.txt' is read line by line.*text_col"): get_corpus(tmp_path/'a'/'b.txt', text_col='body')
    (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError, match='has no .txt files'): get_corpus(tmp_path/'empty')

@pytest.mark.parametrize('ext', ['.csv', '.tsv', '.jsonl', '.json'])
def test_tables_in_another_encoding(tmp_path, ext):
    f = save_table(tmp_path, f't{ext}', ['é', 'è', 'ê'], 'text')
    raw = json.dumps([dict(text=o) for o in 'éèê'], ensure_ascii=False) if ext == '.json' else '\n'.join(f'{{"text": "{o}"}}' for o in 'éèê') if ext == '.jsonl' else f.read_text()
    for encoding in ('latin-1', 'utf-16'):
        f.write_bytes(raw.encode(encoding))
        assert get_corpus(f, encoding=encoding).splits == dict(train=['é'], valid=['è'], test=['ê'])
        with pytest.raises(CorpusError, match=f"t{ext}.*encoding='"): get_corpus(f)
    with pytest.raises(CorpusError, match="t.* unknown encoding: klingon"): get_corpus(f, encoding='klingon')

@pytest.fixture
def saved(tmp_path):
    "A data set of three splits as `datasets` saves it"
    ds = datasets.DatasetDict(train=D(LINES, 'body'), validation=D(['v 0', None], 'body'), test=D(['t 0'], 'body'))
    ds.save_to_disk(tmp_path/'saved')
    return tmp_path/'saved'

SAVED = dict(train=LINES, valid=['v 0'], test=['t 0'])

def test_a_data_set_that_was_saved(saved, tmp_path):
    c = get_corpus(saved, text_col='body')
    assert c.splits == SAVED and c.name == 'saved' and c.skipped == {'missing rows': 1}
    D(LINES).save_to_disk(tmp_path/'one')
    assert get_corpus(tmp_path/'one').splits == dict(train=LINES[:36], valid=LINES[36:38], test=LINES[38:])
    with pytest.raises(CorpusError, match="no column 'text'"): get_corpus(saved)
    with pytest.raises(CorpusError, match='brings its own'): get_corpus(saved, text_col='body', valid='v.txt')
    (saved/'train'/'state.json').write_text('{')
    with pytest.raises(CorpusError, match="can't read .*saved"): get_corpus(saved, text_col='body')

def test_a_data_set_of_the_hub_from_a_copy(saved, tmp_path, monkeypatch):
    "No network is needed: `data` names the copy, or ELMO_FASTAI_DATA the folder above it"
    monkeypatch.setattr(corpora, '_answers', lambda url: pytest.fail('it asked the network'))
    c = get_corpus('hub:owner/my-set:en', data=saved, text_col='body')
    assert c.splits == SAVED and c.name == 'my-set-en'
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path/'data'))
    (tmp_path/'data'/'owner').mkdir(parents=True)
    saved.rename(tmp_path/'data'/'owner'/'my-set')
    assert hub_corpus('owner/my-set', text_col='body').splits == SAVED
    with pytest.raises(CorpusError, match="'.*data' is no data set that was saved"): get_corpus('hub:owner/my-set', data=tmp_path/'data')

def test_a_data_set_of_the_hub(monkeypatch):
    asked = []
    def load(*args, **kwargs):
        asked.append((*args, kwargs))
        if args == ('owner/broken',): raise ValueError('Config name is missing.\nPlease pick one among en, de')
        return datasets.DatasetDict(train=D(LINES, 'body'), test=D(['t 0'], 'body'))
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setattr(corpora, '_answers', lambda url: True)
    monkeypatch.setattr(datasets, 'load_dataset', load)
    c = get_corpus('hub:owner/set:en', text_col='body', tokenizer='space')
    assert asked == [('owner/set', dict(name='en'))] and c.splits == dict(train=LINES[:38], valid=LINES[38:], test=['t 0']) and c.tokenizer == 'space'
    with pytest.raises(CorpusError, match="can't load the data set 'owner/broken'.*Please pick one among en, de.*save_to_disk"): get_corpus('hub:owner/broken')
    monkeypatch.setattr(corpora, '_answers', lambda url: False)
    with pytest.raises(CorpusError, match="can't load.*no answer"): get_corpus('hub:owner/broken')
    for name in ('hub:', 'hub: ', 'hub::en'):
        with pytest.raises(CorpusError, match='hub:owner/name'): get_corpus(name)
