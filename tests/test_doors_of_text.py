"What each door answers to each line of the contract about a user's text"
import gzip, json
from pathlib import Path
import datasets, numpy as np, pandas as pd, pytest
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.data.tagged import TagDataLoaders, read_tagged
from elmo_fastai.text.corpora import Sentence
from elmo_fastai.text.reading import open_table
from elmo_fastai.text.sources import get_corpus, read_texts
from elmo_fastai.text.splits import drawn, split_of
from elmo_fastai.train.command import elmo_pretrain
from elmo_fastai.tasks.embed import command_line, EmbedSettings

def write(path, text, encoding='utf-8'):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode(encoding) if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
    return path

def words(lines): return sorted(token for line in lines for token in str(line).split())

def of_corpus(file, **how):
    corpus = get_corpus(file, **how)
    return words(line for lines in corpus.splits.values() for line in lines)

def of_loaders(file, **how):
    dls = ElmoDataLoaders.from_files(file, device='cpu', bs=2, **how)
    assert str(Path(file).name) in repr(dls), 'it says what it read'
    return words(line for lines in dls.corpus.splits.values() for line in lines)

def of_stream(file, **how):
    dls = stream_loaders(file, n_valid=1, device='cpu', bs=2, tokenizer='space', **how)
    assert str(Path(file).name) in repr(dls)
    return words([*dls.corpus.valid, *dls.train.lines])

def of_embed(file, **how):
    texts = [text for text,why in read_texts(file, **how) if not why]
    return words(' '.join(text) if isinstance(text, list) else text for text in texts)

DOORS = {'get_corpus': of_corpus, 'from_files': of_loaders, 'stream': of_stream, 'embed': of_embed}
TEXTS = [f'word{i} said' for i in range(12)]
WORDS = words(TEXTS)

def table(sep=',', head=('id', 'text'), rows=TEXTS):
    return '\n'.join([sep.join(head), *(f'{i}{sep}{text}' for i,text in enumerate(rows)), ''])

def conllu(rows=TEXTS):
    sents = [
        ['\t'.join([str(i), w, w, 'NOUN', *'______']) for i, w in enumerate(text.split(), 1)]
        for text in rows
    ]
    return (
        '\n\n'.join('\n'.join([f'# text = {text}', *sent]) for text, sent in zip(rows, sents))
        + '\n\n'
    )


def columns(line, rows=TEXTS, head=''):
    return (
        head
        + '\n\n'.join(
            '\n'.join(line.format(i=i, w=w) for i, w in enumerate(text.split(), 1)) for text in rows
        )
        + '\n'
    )


READ = {  # what is read → (name, content, options)
    'text': ('a.txt', '\n'.join(TEXTS), {}),
    'a name with brackets': ('a[1].txt', '\n'.join(TEXTS), {}),
    'a packed text': ('a.txt.gz', '\n'.join(TEXTS), {}),
    'comma': ('a.csv', table(), {}),
    'semicolon': ('a.csv', table(';', ('id', 'Text ')), {}),
    'tab in a .csv': ('a.csv', table('\t'), {}),
    'a bar': ('a.csv', table('|'), {}),
    'sep= in the first line': ('a.csv', 'sep=;\n' + table(';'), {}),
    'sep is said': ('a.csv', table('~'), dict(sep='~')),
    'no header': ('a.csv', table().partition('\n')[2], dict(header=False, text_col=1)),
    'a column by number': ('a.tsv', table('\t', ('n', 'body')), dict(text_col=1)),
    'Latin-1': ('a.csv', table().encode('latin-1'), dict(encoding='latin-1')),
    'UTF-16': ('a.txt', '\n'.join(TEXTS).encode('utf-16'), dict(encoding='utf-16')),
    'a mark of order': (
        'a.csv',
        '\ufeff' + table(head=('text', 'n'), rows=range(0)) + ''.join(f'{t},1\n' for t in TEXTS),
        {},
    ),
    'JSON lines': ('a.jsonl', '\n'.join(json.dumps(dict(text=t)) for t in TEXTS), {}),
    'JSON lines called .json': ('a.json', '\n'.join(json.dumps(dict(text=t)) for t in TEXTS), {}),
    'a list called .jsonl': ('a.jsonl', json.dumps([dict(text=t) for t in TEXTS], indent=1), {}),
    'a path': (
        'a.json',
        json.dumps([dict(data=dict(text=t)) for t in TEXTS]),
        dict(text_col='data.text'),
    ),
    'CoNLL-U': ('a.conllu', conllu(), {}),
    'a running number': ('a.bio', columns('{i}\t{w}\tO'), {}),
    'numbers from 0': ('a.conll', columns('x {i} {w} O'), {}),
    'GermEval': ('a.ner', columns('{i}\t{w}\tO\tO', head='#\tsource [2009]\n'), {}),
    'CoNLL-2012': (
        'a.conll',
        columns('bc/x  0  {i}  {w}  NN  -', head='#begin document (bc/x); part 000\n')
        + '#end document\n',
        {},
    ),
    '-DOCSTART-': ('a.iob2', columns('{w} NN O', head='-DOCSTART- -X- O\n\n'), {}),
    'a column of words by number': ('a.iob', columns('NOUN {w}'), dict(token_col=1)),
    'global.columns': (
        'a.conllu',
        columns('{i}\t{w}\tN', head='# global.columns = ID FORM UPOS\n'),
        {},
    ),
}


@pytest.mark.parametrize('what', READ)
@pytest.mark.parametrize('door', DOORS)
def test_read(what, door, tmp_path):
    name, text, how = READ[what]
    assert DOORS[door](write(tmp_path/name, text), **how) == WORDS

REFUSED = {  # what is refused → (name, content, what the error says)
    'HTML': ('a.html', '<!DOCTYPE html><p>x</p>\n', 'looks like HTML.*save its text'),
    'HTML in .txt': ('a.txt', '<html><p>x</p>\n', 'looks like HTML'),
    'PDF': ('a.pdf', '%PDF-1.4\nx\n', 'PDF.*export'),
    'RTF': ('a.rtf', '{\\rtf1 x}', 'RTF.*plain text'),
    'an archive': ('a.zip', b'PK\x03\x04' + b'x' * 50, 'packed by zip.*unpack'),
    'an archive called .txt': ('a.txt', b'PK\x03\x04' + b'x' * 50, 'packed by zip'),
    'another encoding': (
        'a.csv',
        table(rows=['café', 'thé', 'été']).encode('latin-1'),
        'line 2.*not UTF-8',
    ),
    'UTF-16': ('a.txt', 'text'.encode('utf-16'), "UTF-16.*encoding='utf-16'"),
    'no known column': (
        'a.csv',
        'a,b\n1,2\n',
        "text_col='b' .--text-col b.*The first line is 'a,b'.*header=False",
    ),
    'a row of another length': (
        'a.csv',
        'id,text\n1,two\n2,good, bad\n',
        'line 3 has 3 cells.*quotes.*sep=',
    ),
    'a quote that stays open': ('a.csv', 'id,text\n1,"two\n2,b\n', 'line 2.*quote'),
    'text behind a quote': ('a.csv', 'id,text\n1,x\n2,"two" b\n', 'line 3.*quote'),
    'tags first': ('a.bio', columns('B-A{i}\t{w}'), 'tags before its words.*token_col=1'),
    'word/TAG': (
        'a.conll',
        'the/DT bank/NN of/IN\nhe/PRP ran/VBD\n',
        'word/TAG|written with its tag.*split them',
    ),
    'half a surrogate pair': (
        'a.json',
        '{"text": "a"}\n{"text": "half \\ud83d"}\n',
        'line 2.*surrogate',
    ),
}


@pytest.mark.parametrize('what', REFUSED)
@pytest.mark.parametrize('door', ['get_corpus', 'from_files'])
def test_refused(what, door, tmp_path):
    name, text, says = REFUSED[what]
    with pytest.raises(CorpusError, match=f'(?s){name}.*{says}|{says}.*{name}'):
        DOORS[door](write(tmp_path / name, text))


# splits

@pytest.mark.parametrize(
    'names,splits',
    [
        (['The Acid Test.txt', 'Moby Dick.txt'], [None, None]),
        (['train.txt', 'val.txt', 'test-00000-of-00002.txt'], ['train', 'valid', 'test']),
        (['en_x-ud-train.conllu', 'en_x-ud-dev.conllu'], ['train', 'valid']),
        (['sst2.train.tsv', 'sst2.test.tsv', 'other.test.tsv'], ['train', 'test', None]),
    ],
)
def test_names_of_splits(names, splits):
    assert [split_of(name, names) for name in names] == splits


def test_what_is_called_test_never_validates(tmp_path):
    data = dict(train=[f'a {i}' for i in range(40)], test=['only a test'])
    for dls in (
        ElmoDataLoaders.from_dataset(data, bs=2, device='cpu'),
        ElmoDataLoaders.from_dataset(
            datasets.DatasetDict(
                {k: datasets.Dataset.from_dict(dict(text=v)) for k, v in data.items()}
            ),
            bs=2,
            device='cpu',
        ),
    ):
        assert (
            'only a test' not in dls.corpus.valid
            and dls.corpus.test == ['only a test']
            and len(dls.corpus.valid) == 4
        )


def test_documents_stay_whole():
    df = pd.DataFrame(dict(text=[f'{i} a\n{i} b\n{i} c' for i in range(30)]))
    corpus = ElmoDataLoaders.from_df(df, bs=2, device='cpu').corpus
    assert not {line.split()[0] for line in corpus.valid} & {
        line.split()[0] for line in corpus.train
    }


def test_a_class_of_four_rows_validates():
    labels = ['rare']*4 + ['common']*60
    train, held = drawn(labels, .1, labels=labels)
    assert held.count('rare') == 1 and held.count('common') == 6

def test_folders_are_classes(tmp_path):
    for split in ('train', 'test'):
        for name in ('pos', 'neg'):
            for i in range(6): write(tmp_path/split/name/f'{i}.txt', f'{name} text\nline two {i}\n')
    dls = ClassifyDataLoaders.from_files(tmp_path, bs=2, device='cpu')
    assert list(dls.vocab) == ['neg', 'pos'] and len(dls[2].items) == 12
    assert list(ClassifyDataLoaders.from_files(tmp_path / 'train', bs=2, device='cpu').vocab) == [
        'neg',
        'pos',
    ]


# labels

def make(labels, **how):
    return ClassifyDataLoaders.from_data(
        pd.DataFrame(dict(text=[f't {i}' for i in range(len(labels))], label=labels)),
        bs=2,
        device='cpu',
        **how,
    )


@pytest.mark.parametrize(
    'a,b',
    [
        ("['x', 'y']", "['y']"),
        ("['x' 'y']", "['y']"),
        ('[x, y]', '[y]'),
        (('x', 'y'), ('y',)),
        (np.array(['x', 'y']), np.array(['y'])),
        ('{"x", "y"}', '{"y"}'),
    ],
)
def test_printed_lists_are_lists(a, b):
    assert list(make([a, b] * 8).vocab) == ['x', 'y']


def test_several_columns_keep_their_order_and_weights_are_finite():
    df = pd.DataFrame(
        dict(text=[f't {i}' for i in range(20)], zebra=[1, 0] * 10, ape=[0, 1] * 10, none=[0] * 20)
    )
    dls = ClassifyDataLoaders.from_data(df, label_col=['zebra', 'ape', 'none'], bs=2, device='cpu')
    assert list(dls.vocab) == ['zebra', 'ape', 'none']
    with pytest.warns(UserWarning, match="'none'.*left out"):
        assert np.isfinite(dls.class_weights.numpy()).all()


def test_fasttext(tmp_path):
    file = write(
        tmp_path / 'a.txt',
        ''.join(f'__label__{"good" if i % 2 else "bad"} text {i}\n' for i in range(20)),
    )
    assert list(ClassifyDataLoaders.from_files(file, bs=2, device='cpu').vocab) == ['bad', 'good']

# tags

KAGGLE = pd.DataFrame(
    {
        'Sentence #': ['Sentence: 1', None, 'Sentence: 2', None],
        'Word': ['Ann', 'left', 'Bob', 'came'],
        'POS': ['NNP', 'VBD', 'NNP', 'VBD'],
        'Tag': ['B-per', 'O', 'B-per', 'O'],
    }
)


def test_the_last_column_of_tags(tmp_path):
    rows = '\n'.join(
        '\t'.join(map(str, row)) for row in KAGGLE[['Word', 'POS', 'Tag']].values.tolist()
    )
    file = write(tmp_path/'a.conll', rows.replace('\nBob', '\n\nBob'))
    KAGGLE.to_csv(tmp_path/'a.csv', index=False)
    for data in (KAGGLE, tmp_path / 'a.csv', file):
        assert [s.tags for s in read_tagged(data)[0]] == [['B-per', 'O']] * 2
    assert [s.tags for s in read_tagged(KAGGLE, tag_col='POS')[0]] == [['NNP', 'VBD']]*2
    assert read_tagged(file, tag_col=1)[0][0].tags == ['NNP', 'VBD']
    assert 'POS' in repr(TagDataLoaders.from_df(KAGGLE, valid=KAGGLE, device='cpu'))

def test_features(tmp_path):
    line = '1\tDogs\tdog\tNOUN\t_\tCase=Nom|Number=Plur\t0\t_\t_\t_\n2\tran\trun\tVERB\t_\tTense=Past\t1\t_\t_\t_\n\n'
    assert read_tagged(write(tmp_path / 'a.conllu', line), tag_col='feats.Case')[0][0].tags == [
        'Nom',
        '_',
    ]


def test_too_many_tags():
    sents = [([f'word{i}', f'word{i+1}'], [f'lemma{i}', f'lemma{i+1}']) for i in range(60)]
    with pytest.raises(CorpusError, match='different tags.*feats.Case.*labels='):
        TagDataLoaders.from_sents(sents, device='cpu')


def test_blanks_around_cells(tmp_path):
    write(
        tmp_path / 'a.csv',
        'sent_id,token,tag\n' + '1, Ann , B-PER\n1, left, O \n2, Bob, B-PER\n2, ran, O\n',
    )
    assert read_tagged(tmp_path/'a.csv')[0][0] == Sentence(['Ann', 'left'], ['B-PER', 'O'])

def test_a_sentence_ends_where_any_column_of_its_place_changes():
    df = pd.DataFrame(
        dict(doc_id=[1, 1, 2, 2], sent=[1, 1, 1, 1], token=list('abcd'), tag=list('XYXY'))
    )
    assert [s.tokens for s in read_tagged(df)[0]] == [['a', 'b'], ['c', 'd']]

OWN = [
    (
        'Ann left Paris .',
        [
            dict(start=0, end=3, label='PER', text='Ann'),
            dict(start=9, end=14, label='LOC', text='Paris'),
        ],
    )
]
SPANS = [Sentence(['Ann', 'left', 'Paris', '.'], ['B-PER', 'O', 'B-LOC', 'O'])]
def test_spans(tmp_path):
    assert read_tagged(OWN)[0] == SPANS
    doccano = write(
        tmp_path / 'a.jsonl',
        json.dumps(dict(id=1, text=OWN[0][0], label=[[0, 3, 'PER'], [9, 14, 'LOC']])) + '\n',
    )
    newer = write(
        tmp_path / 'b.jsonl',
        json.dumps(
            dict(
                text=OWN[0][0],
                entities=[
                    dict(id=1, start_offset=9, end_offset=14, label='LOC'),
                    dict(id=2, start_offset=0, end_offset=3, label='PER'),
                ],
            )
        )
        + '\n',
    )
    for file in (doccano, newer): assert read_tagged(file)[0] == SPANS

# options

def test_the_commands_have_the_same_options(capsys):
    for command in (lambda: elmo_pretrain(['--help']), lambda: command_line().parse(['--help'])):
        with pytest.raises(SystemExit): command()
        said = capsys.readouterr().out
        for option in (
            '--sep',
            '--quotes',
            '--header',
            '--encoding',
            '--text-col',
            '--token-col',
            '--sent-col',
            '--n-rows',
        ):
            assert option in said, option


def test_memory_of_a_packed_file(tmp_path):
    "A line without an end is not held"
    from elmo_fastai.text import reading
    file = write(tmp_path/'a.txt.gz', b'a'*20_000_000)
    [(_, why)] = read_texts(file, longest=1000)
    assert 'more than 1,000 characters' in why
