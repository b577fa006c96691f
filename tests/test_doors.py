"""Each door for running text: what it reads, and with which line it refuses the rest"""
import json
from pathlib import Path
import h5py, pandas as pd, pytest
from datasets import Dataset, DatasetDict
from elmo_fastai.errors import CorpusError
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.practice.embed import embed_file
from elmo_fastai.text.corpora import text_corpus
from elmo_fastai.text.read import Sentence
from elmo_fastai.practice.run import loaders, new_settings
from loading import seen
from made import lasting

TEXTS = ['the old bank', 'NA', 'a river, and 001', 'the "bank" of it', 'one', 'two words', 'null',
         'a bank', 'a river', 'nan', 'the end', 'it is']
SENTS = [text.split() for text in TEXTS]

def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path

def table(**more): return pd.DataFrame(dict(id=range(len(TEXTS)), text=TEXTS, **more))

# what is read

def conllu(sents):
    return '\n'.join(''.join(f'{i}\t{token}' + 8*'\t_' + '\n' for i,token in enumerate(sent, 1))
                     for sent in sents)

def splits(folder):
    parts = dict(train=TEXTS[:10], valid=TEXTS[10:11], test=TEXTS[11:], other=['not read'])
    for name,lines in parts.items(): write(folder/'all'/f'{name}.txt', '\n'.join(lines))
    return folder/'all'

def csv_of(folder, column='text'):
    table().rename(columns=dict(text=column)).to_csv(folder/'a.csv', index=False)
    return folder/'a.csv'

def saved(folder):
    data = Dataset.from_pandas(table())
    parts = dict(train=data.select(range(10)), validation=data.select([10]), test=data.select([11]))
    DatasetDict(parts).save_to_disk(folder/'s')
    return folder/'s'

def jsonl(folder):
    table().to_json(folder/'a.jsonl', orient='records', lines=True)
    return folder/'a.jsonl'

def parquet(folder):
    table().to_parquet(folder/'a.parquet')
    return folder/'a.parquet'

def json_list(folder):
    table().to_json(folder/'a.json', orient='records')
    return folder/'a.json'

def tsv(folder):
    return write(folder/'a.tsv', '\n'.join(['id\ttext', *(f'1\t{text}' for text in TEXTS)]))
def tags_first(folder):
    sents = (''.join(f'NN 1997 {token}\n' for token in sent) for sent in SENTS)
    return write(folder/'a.conll', '\n'.join(sents))

RIGHT = {               # what → (its source, arguments); 'tokens': lists of tokens
    'text': (lambda d: write(d/'a.txt', '\n'.join(TEXTS)), {}),
    'blank lines, a mark, Windows': (
        lambda d: write(d/'a.TXT', '\ufeff' + '\r\n\r\n'.join(TEXTS) + '\r\n \r\n'), {}),
    'csv': (csv_of, {}),
    'a column that is named': (lambda d: csv_of(d, column='said'), dict(text_col='said')),
    'a usual column': (lambda d: csv_of(d, column='review'), {}),
    'tsv': (tsv, {}), 'json': (json_list, {}), 'jsonl': (jsonl, {}), 'parquet': (parquet, {}),
    'conllu': (lambda d: write(d/'a.conllu', conllu(SENTS)), {}),
    'conll, tags and a year first': (tags_first, dict(token_col=2)),
    'a folder of splits': (splits, {}), 'a saved data set': (saved, {}),
    'a table': (lambda d: table(), {}), 'a data set': (lambda d: Dataset.from_pandas(table()), {}),
    'a list': (lambda d: TEXTS, {}), 'lists of tokens': (lambda d: SENTS, {}),
    'tokens of a data set': (lambda d: Dataset.from_dict(dict(tokens=SENTS)), {}),
    'sentences': (lambda d: [Sentence(sent) for sent in SENTS], {}),
    'files': (lambda d: [write(d/'a.txt', '\n'.join(TEXTS[:6])),
                         write(d/'b.txt', '\n'.join(TEXTS[6:]))], {})}

def lines_of(corpus):
    "All lines in their order, as tokens"
    return [line if isinstance(line, list) else line.split()
            for lines in corpus.splits.values() for line in lines]

def by_corpus(source, **how): return lines_of(text_corpus(source, **how))
def by_loaders(source, **how):
    dls = ElmoDataLoaders.from_files(source, tokenizer='space', bs=2, device='cpu', **how)
    assert len(dls.valid.text) and dls.corpus.said in repr(dls)
    return lines_of(dls.corpus)
def by_command(source, **how):
    said = dict(how, tokenizer='space', bs=2, kind='sentences', min_freq=1)
    return lines_of(loaders(source, new_settings(source, said), None, 'cpu').corpus)
def by_stream(source, **how):
    dls = stream_loaders(source, n_valid=2, device='cpu', bs=2, buffer=4, tokenizer='space', **how)
    return sorted(line.split(' ') for dl in dls for line in seen(dl))
def by_embedding(source, **how):
    out = Path(how.pop('folder', '.'))/'o.hdf5'
    result = embed_file(source, out, ELMO, say=str, **how)
    assert not result['failed']
    with h5py.File(out) as f: n = [f[str(i)].shape[1] for i in range(result['lines'])]
    return n

ELMO = lasting(tokenizer='space')
DOORS = dict(corpus=by_corpus, loaders=by_loaders, command=by_command)
SPLITS = 'a folder of splits', 'a saved data set'

@pytest.mark.parametrize('door', DOORS)
@pytest.mark.parametrize('what', RIGHT)
def test_read(what, door, tmp_path):
    make, how = RIGHT[what]
    assert DOORS[door](make(tmp_path), **how) == SENTS

STREAMED = ['text', 'blank lines, a mark, Windows', 'jsonl', 'parquet', *SPLITS, 'a data set',
            'tokens of a data set', 'files']

@pytest.mark.parametrize('what', STREAMED)
def test_read_as_a_stream(what, tmp_path):
    make, how = RIGHT[what]
    assert by_stream(make(tmp_path), **how) == sorted(SENTS[:11] if what in SPLITS else SENTS)

@pytest.mark.parametrize('what', sorted(RIGHT.keys() - {*SPLITS, STREAMED[1]}))
def test_embedded(what, tmp_path):
    make, how = RIGHT[what]
    assert by_embedding(make(tmp_path), folder=tmp_path, **how) == [*map(len, SENTS)]

# what is refused, see `test_read` for the files

def of(name, text): return lambda d: write(d/name, text)

REFUSED = {             # what → (its source, arguments, a word of the line)
    'a wrong column': (of('a.csv', 'id,text\n1,a\n'), dict(text_col='txt'), "'txt'"),
    'two usual columns': (of('a.jsonl', '{"text": "a", "review": "b"}\n'*9), {}, 'say text_col'),
    'a token column of a text': (of('a.txt', 'a\n'*9), dict(token_col=1), '--token-col'),
    'a ragged row': (of('a.csv', 'id,text\n1,so, too\n'), {}, 'line 2'),
    'bytes': (of('a.txt', 'text\n'.encode('utf-16')), {}, 'byte 0'),
    'an empty file': (of('a.txt', ''), {}, 'no rows'),
    'a file that is not there': (lambda d: d/'none.txt', {}, 'no file'),
    'a folder of test.txt': (lambda d: write(d/'t'/'test.txt', 'a').parent, {}, "'train'"),
    'another ending': (of('a.docx', b'PK'), {}, 'pass the DataFrame'),
    'numbers': (of('a.jsonl', '{"text": 3}\n'*9), {}, '3 is no text'),
    'CoNLL without numbers': (of('a.conll', 'O Rome\n\n'*9), {}, "0 = 'O', 1 = 'Rome'"),
    'CoNLL by a name': (of('a.conll', 'Rome O\n\n'*9), dict(token_col='form'), "'form'"),
    'an empty list': (lambda d: [], {}, 'empty'), 'a number': (lambda d: 3, {}, 'int'),
    'test as validation': (
        of('a.txt', 'a\n'*9), lambda d: dict(valid=write(d/'test.txt', 'a')), 'never validates'),
    'training text as validation': (
        of('a.txt', 'a\n'*9), lambda d: dict(valid=d/'a.txt'), 'both trained on and held out'),
    'too little': (of('a.txt', 'a\n'), {}, "can't be split")}
HELD = 'test as validation', 'training text as validation', 'too little', 'a folder of test.txt'
ENDINGS = 'a ragged row', 'CoNLL without numbers', 'a wrong column', 'another ending'   # no streams
ELSE = ('too little', 'a token column of a text', 'an empty file', 'an empty list', 'a number',
        'CoNLL by a name')

def refuse(door, what, home, **more):
    make, how, word = REFUSED[what]
    source = make(home)
    how = how(home) if callable(how) else how
    with pytest.raises(CorpusError) as e: door(source, **how, **more)
    assert '\n' not in str(e.value)
    return word, str(e.value)

@pytest.mark.parametrize('door', DOORS)
@pytest.mark.parametrize('what', REFUSED)
def test_refused(what, door, tmp_path):
    word, said = refuse(DOORS[door], what, tmp_path)
    assert word in said

@pytest.mark.parametrize('what', [what for what in REFUSED if what not in HELD])
def test_embedding_refuses(what, tmp_path):
    (tmp_path/'out').mkdir()
    word, said = refuse(by_embedding, what, tmp_path, folder=tmp_path/'out')
    assert word in said and not [*(tmp_path/'out').iterdir()]

@pytest.mark.parametrize('what', [what for what in REFUSED if what not in ELSE])
def test_a_stream_refuses(what, tmp_path):
    word, said = refuse(by_stream, what, tmp_path)
    assert ('as a stream: take .txt' if what in ENDINGS else word) in said

# the rest

def test_texts_that_are_names_of_files(tmp_path):
    names = [f'{word}.txt' for word in ('a', 'b', 'c', 'd', 'e')]
    for name in names: write(tmp_path/name, 'not this one\n'*9)
    assert by_corpus(names) == [[name] for name in names] == by_loaders(names)

def test_a_row_without_text_is_left_out_and_counted(tmp_path):
    rows = [json.dumps(dict(text=text)) for text in (*TEXTS, None, '', ' ')]
    write(tmp_path/'a.jsonl', '\n'.join(rows))
    def stream(source): return stream_loaders(source, n_valid=2, device='cpu', bs=2)
    for door in (text_corpus, ElmoDataLoaders.from_files, stream):
        found = door(tmp_path/'a.jsonl')
        assert dict(found.skipped) == {'missing rows': 1, 'blank lines': 2}

def test_what_is_held_out_is_not_trained_on(tmp_path):
    "At each door, by each way of saying it"
    source = write(tmp_path/'a.txt', '\n'.join(TEXTS))
    valid = write(tmp_path/'v.txt', 'held out\n')
    for make,more in ((text_corpus, {}), (ElmoDataLoaders.from_files, dict(device='cpu')),
                      (stream_loaders, dict(device='cpu', n_valid=3, bs=2))):
        for how in ({}, dict(valid=valid)):
            found = make(source, **more, **how)
            corpus = getattr(found, 'corpus', found)
            assert not {*corpus.train} & {*corpus.valid}
            assert (corpus.valid == ['held out']) == bool(how)
