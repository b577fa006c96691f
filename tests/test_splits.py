"Which file is which split, folders of classes, shares, groups, and what is left out"
import datasets, pandas as pd, pytest
from hypothesis import given, settings, strategies as st
from elmo_fastai.base.errors import CorpusError, UsageError
from elmo_fastai.text.sources import get_corpus, text_corpus
from elmo_fastai.text.splits import drawn, files_by_split, last_part, split_of
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.text.corpora import toy_corpus

# splits

@settings(max_examples=100)
@given(st.integers(0, 200), st.floats(0, .6), st.floats(0, .6))
def test_splits_keep_every_line_in_order(n, valid, test):
    lines = [str(i) for i in range(n)]
    try: s = last_part(lines, valid=valid, test=test)
    except CorpusError as e: assert f'too short to split: {n} line' in str(e); return
    assert s['train'] + s['valid'] + s['test'] == lines and s['train']
    for k,share in (('valid', valid), ('test', test)):
        assert len(s[k]) == (max(1, round(n*share)) if share else 0)

@pytest.mark.parametrize('share', [-.1, 1, 1.5, float('nan')])
def test_bad_shares(share):
    with pytest.raises(CorpusError, match='share'): last_part(['a']*10, valid=share)

@pytest.mark.parametrize('n', [1, 2])
def test_too_short(tmp_path, n):
    f = tmp_path/'a.txt'; f.write_text('line\n'*n)
    with pytest.raises(CorpusError, match=f'too short to split: {n} line'): text_corpus(f)

@pytest.fixture
def books(tmp_path):
    for i in range(4): (tmp_path/f'b{i}.txt').write_text('\n'.join(f'{i} {j}' for j in range(20)))
    (tmp_path/'more').mkdir(); (tmp_path/'more'/'c.txt').write_text('c 0\nc 1')
    return tmp_path

# files that are called train, valid and test

def write(folder, *names):
    "Files with twenty lines that say where they come from"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names: (folder/name).write_text('\n'.join(f'{name} {i}' for i in range(20)))
    return folder

def sources(corpus):
    return {k: sorted({o.split()[0] for o in v}) for k,v in corpus.splits.items() if v}

def parts_of(*args, **how): return sources(text_corpus(*args, **how))

@pytest.mark.parametrize('names', [('train.txt', 'valid.txt', 'test.txt'), ('wiki.train.tokens',
    'wiki.valid.tokens', 'wiki.test.tokens'), ('wiki.train.raw', 'wiki.valid.raw', 'wiki.test.raw'),
    ('ptb.train.txt', 'ptb.valid.txt', 'ptb.test.txt'), ('training.txt', 'validation.txt',
    'test.txt'), ('de_train.txt', 'de_dev.txt', 'de_test.txt'), ('Train.txt', 'Dev.txt',
    'Test.txt'), ('train1.txt', 'val1.txt', 'test1.txt'), ('my+train.txt', 'my+val.txt',
    'my+eval.txt'), ('train.TXT', 'VAL.txt', 'TEST(2).txt')], ids=lambda o: o[0])
@pytest.mark.parametrize('how', ['folder', 'list', 'pattern'])
def test_files_that_are_called_so_are_the_splits(tmp_path, names, how):
    d = write(tmp_path/'my', *names)
    path = dict(folder=d, list=[str(d/o) for o in names[::-1]], pattern=str(d/'*.*'))[how]
    for c in (text_corpus(path), get_corpus(path)):
        assert (sources(c) == {k: [o] for k, o in zip(('train', 'valid', 'test'), names)} and
            [len(v) for v in c.splits.values()] == [20]*3)
        assert c.name == 'my' and {k: [o.name for o in v] for k, v in c.files.items()} == {k: [o]
            for k, o in zip(('train', 'valid', 'test'), names)}

def test_two_of_the_three_splits(tmp_path):
    a = text_corpus(write(tmp_path/'a', 'train.txt', 'valid.txt'))
    assert sources(a) == dict(train=['train.txt'],
        valid=['valid.txt']) and len(a.train) == 20, ('nothing is cut off for a test')
    b = text_corpus(write(tmp_path/'b', 'train.txt', 'test.txt'))
    assert (sources(b) == dict(train=['train.txt'], valid=['train.txt'], test=['test.txt']) and
        len(b.train) == 19)

def test_splits_in_several_files(tmp_path):
    names = [f'{k}-{i:05}-of-00002.txt' for k in ('train', 'validation') for i in range(2)]
    assert parts_of(write(tmp_path, *names)) == dict(train=names[:2], valid=names[2:])

def test_other_files_beside_the_splits(tmp_path):
    """In a folder they are left out, and named; beside files that were given one by one they are an
    error"""
    d = write(tmp_path, 'train.txt', 'valid.txt', 'README.txt')
    c = text_corpus(d)
    assert sources(c) == dict(train=['train.txt'], valid=['valid.txt']) and [o.name for o in
        c.source.unused] == ['README.txt']
    with pytest.raises(CorpusError, match='README.txt is not'):
        text_corpus([d/'train.txt', d/'valid.txt', d/'README.txt'])

def test_two_corpora_in_one_folder(tmp_path):
    "As in Mikolov's archive of the Penn Treebank"
    d = write(tmp_path, *(f'ptb.{o}{k}.txt' for o in ('', 'char.') for k in ('train', 'valid',
        'test')))
    with pytest.raises(CorpusError,
        match='ptb.char.train.txt and ptb.train.txt are all called train'):
        text_corpus(d)
    assert parts_of([d/f'ptb.{k}.txt' for k in ('train', 'valid',
        'test')])['train'] == ['ptb.train.txt']

THREE = 'train.txt', 'valid.txt', 'test.txt'

@pytest.mark.parametrize('valid,test', [(0.1, None), (None, 0.1), (0.1, 0.1), (0, 0), (0, None),
    (0.1, 0)])
@pytest.mark.parametrize('how', ['folder', 'list', 'pattern'])
@pytest.mark.parametrize('ext', ['txt', 'csv'])
def test_shares_are_shares_of_the_training_files(tmp_path, valid, test, how, ext):
    """What is called valid or test is not trained on, whatever share is cut off; the files that a
    share replaces are left out, and named"""
    names = [o.replace('txt', ext) for o in THREE]
    d = write(tmp_path/'my', *names)
    if ext == 'csv':
        for o in d.iterdir():
            o.write_text('text\n' + o.read_text())
    path = dict(folder=d, list=[str(d/o) for o in names[::-1]], pattern=str(d/f'*.{ext}'))[how]
    c = get_corpus(path, valid=valid, test=test)
    want = dict(train=[names[0]], valid=names[1:2] if valid is None else names[:1] if valid else [],
        test=names[2:] if test is None else names[:1] if test else [])
    assert sources(c) == {k: v for k, v in want.items() if v} and c.name == 'my'
    assert len(c.train) == 20 - (2 if valid else 0) - (2 if test else 0)
    assert {o.name for o in c.source.unused} == {o for o, share in zip(names[1:], (valid, test)) if
        share is not None}
    if ext == 'txt':
        dls = ElmoDataLoaders.from_files(path, valid=valid or .1, bs=2, device='cpu')
        assert sources(dls.corpus) == dict(train=['train.txt'], valid=['train.txt'],
            test=['test.txt'])

@pytest.mark.parametrize('held', [['test.txt'], ['valid.txt'], ['test2014.txt'], ['VAL.txt'],
    ['heldout-1.txt', 'heldout-2.txt'], ['dev-1.txt', 'dev-2.txt']], ids=str)
@pytest.mark.parametrize('how', ['folder', 'pattern'])
def test_a_file_that_is_called_so_is_held_out_also_beside_others(tmp_path, held, how):
    d = write(tmp_path, 'book.txt', 'trains.txt', *held)
    split = 'valid' if held[0][:3] in ('val', 'VAL', 'dev') else 'test'
    path = d if how == 'folder' else str(d/'*.txt')
    assert parts_of(path, **{split: None})[split] == held
    for kw in ({}, dict(valid=0.1), dict(valid=0, test=0), dict(test=0.1)):
        assert parts_of(path, **kw)['train'] == ['book.txt', 'trains.txt']
    for dls in (ElmoDataLoaders.from_files(path, bs=2, device='cpu'),
        ElmoDataLoaders.from_files(path, valid=0.2, bs=2, device='cpu'), stream_loaders(path,
        n_valid=5, device='cpu')):
        assert not {*sources(dls.corpus)['train']} & {*held}

def test_a_file_that_is_named_is_training_text(tmp_path):
    "Whatever it is called; a folder names none of its files"
    d = write(tmp_path, 'valid.txt', 'test.txt')
    for path in (d, str(d/'*.txt')):
        with pytest.raises(CorpusError, match='left to train on'): text_corpus(path)
    assert parts_of(d/'test.txt', 0, 0) == dict(train=['test.txt'])
    assert parts_of([d/'valid.txt', d/'test.txt'], 0, 0) == dict(train=['test.txt',
        'valid.txt'])
    write(tmp_path, 'a.txt')
    assert parts_of([d/'a.txt', d/'test.txt'], 0, 0) == dict(train=['a.txt',
        'test.txt'])

def test_folders_that_are_called_so(tmp_path):
    """Folders called train and test are these splits; what names the folder, or the file, is
    trained on"""
    for o in ('train', 'test'): write(tmp_path/o, f'{o[0]}1.txt', f'{o[0]}2.txt')
    for pattern in ('**/*.txt', '*/*.txt', 't*/*.txt'):
        c = text_corpus(str(tmp_path/pattern))
        assert sources(c) == dict(train=['t1.txt', 't2.txt'], valid=['t2.txt'], test=['t1.txt',
            't2.txt'])
        assert parts_of(str(tmp_path/pattern), valid=tmp_path/'test') == dict(
            train=['t1.txt', 't2.txt'], valid=['t1.txt', 't2.txt'])
    assert (len(text_corpus(tmp_path/'test', 0, 0).train) ==
        len(text_corpus(str(tmp_path/'test'/'*.txt'), 0, 0).train) == 40)
    assert len(text_corpus([tmp_path/'train'/'t1.txt', tmp_path/'test'/'t2.txt'], 0, 0).train) == 40

@pytest.mark.parametrize('train', ['train.txt', 'book.txt'])
def test_two_files_for_one_split(tmp_path, train):
    d = write(tmp_path, train, 'dev.txt', 'validation.txt')
    for path in (d, str(d/'*.txt')):
        with pytest.raises(CorpusError, match='dev.txt and validation.txt.*valid='):
            text_corpus(path)
    assert parts_of(d, valid=d/'dev.txt') == dict(train=[train], valid=['dev.txt'])
    assert parts_of(d, valid=.1) == dict(train=[train], valid=[train])

@pytest.mark.parametrize('names', [('a.txt', 'b.txt'), ('train.txt',), ('train_to_busan.txt',
    'training.txt'), ('trains.txt', 'latest.txt', 'invalid.txt')], ids=str)
def test_other_names_are_one_text(tmp_path, names):
    c = text_corpus(write(tmp_path, *names))
    assert [len(v) for v in c.splits.values()] == [18*len(names), len(names),
        len(names)] and not c.source.unused

def test_what_is_said_comes_before_what_files_are_called(tmp_path):
    d = write(tmp_path/'a', 'train.txt', 'valid.txt', 'test.txt')
    other = write(tmp_path/'b', 'mine.txt')/'mine.txt'
    assert parts_of(d, valid=other) == dict(train=['train.txt'], valid=['mine.txt'],
        test=['test.txt'])
    assert parts_of(d, valid=other, test=d/'valid.txt') == dict(train=['train.txt'],
        valid=['mine.txt'], test=['valid.txt'])

def test_where_a_file_validates_nothing_is_cut_off_to_test(books):
    assert parts_of(books/'b0.txt', valid=books/'b1.txt') == dict(train=['0'],
        valid=['1'])
    assert [len(v) for v in text_corpus(books/'b0.txt',
        test=books/'b1.txt').splits.values()] == [19, 1, 20]

# splits

@pytest.mark.parametrize('names,splits', [(['The Acid Test.txt', 'Moby Dick.txt'], [None, None]),
    (['train.txt', 'val.txt', 'test-00000-of-00002.txt'], ['train', 'valid', 'test']),
    (['en_x-ud-train.conllu', 'en_x-ud-dev.conllu'], ['train', 'valid']), (['sst2.train.tsv',
    'sst2.test.tsv', 'other.test.tsv'], ['train', 'test', None])])
def test_names_of_splits(names, splits):
    assert [split_of(name, names) for name in names] == splits

def test_what_is_called_test_never_validates(tmp_path):
    data = dict(train=[f'a {i}' for i in range(40)], test=['only a test'])
    corpus = ElmoDataLoaders.from_dataset(data, bs=2, device='cpu').corpus
    assert 'only a test' not in corpus.valid and corpus.test == ['only a test']
    assert len(corpus.valid) == 4

def test_documents_stay_whole():
    df = pd.DataFrame(dict(text=[f'{i} a\n{i} b\n{i} c' for i in range(30)]))
    corpus = ElmoDataLoaders.from_df(df, bs=2, device='cpu').corpus
    assert not {line.split()[0] for line in corpus.valid} & {line.split()[0] for line in
        corpus.train}

def test_a_class_of_four_rows_validates():
    labels = ['rare']*4 + ['common']*60
    train, held = drawn(labels, .1, labels=labels)
    assert held.count('rare') == 1 and held.count('common') == 6

def test_folders_are_classes(tmp_path):
    for split in ('train', 'test'):
        for name in ('pos', 'neg'):
            write(tmp_path/split/name, *(f'{i}.txt' for i in range(6)))
    dls = ClassifyDataLoaders.from_files(tmp_path, bs=2, device='cpu')
    assert list(dls.vocab) == ['neg', 'pos'] and len(dls[2].items) == 12
    assert list(ClassifyDataLoaders.from_files(tmp_path/'train', bs=2,
        device='cpu').vocab) == ['neg', 'pos']

def test_two_names_for_one_split():
    "Nobody can tell which of the two is meant"
    rows = dict(train=['a', 'b', 'c'], validation=['v'], dev=['d'])
    data = {split: datasets.Dataset.from_dict(dict(text=some)) for split,some in rows.items()}
    for parts in (rows, datasets.DatasetDict(data)):
        with pytest.raises(CorpusError, match="'(dev|validation)' and '(dev|validation)'"):
            text_corpus(parts)

# other layouts of folders

def write_texts(root, *folders):
    for folder in folders: write(root/folder, *(f'{i}.txt' for i in range(4)))
    return root

def test_hidden_files_are_no_texts(tmp_path):
    root = write_texts(tmp_path, 'a', 'b')
    (root/'a'/'._0.txt').write_text('secret')
    dls = ClassifyDataLoaders.from_files(root)
    assert sum(dls.source.rows.values()) == 8

def test_two_folders_of_one_split_are_refused(tmp_path):
    root = write_texts(tmp_path, 'train/a', 'train/b', 'dev/a', 'dev/b', 'validation/a')
    with pytest.raises(CorpusError, match='valid'): ClassifyDataLoaders.from_files(root)

def test_a_split_with_one_class_is_a_split(tmp_path):
    root = write_texts(tmp_path, 'train/a', 'train/b', 'val/a')
    assert ClassifyDataLoaders.from_files(root).source.rows == dict(train=8, valid=4)

def test_what_lies_beside_folders_of_classes_is_said(tmp_path):
    root = write_texts(tmp_path, 'train/a', 'train/b', 'extra/a', 'extra/b')
    (root/'notes.txt').write_text('x')
    assert 'left out extra, notes.txt' in repr(ClassifyDataLoaders.from_files(root).source)

def test_splits_that_are_not_used_are_said():
    rows = [dict(text=f'text {i}', label=i%2) for i in range(9)]
    dls = ClassifyDataLoaders.from_data(dict(train=rows, validation_matched=rows))
    assert "'validation_matched'" in repr(dls.source)

@pytest.mark.parametrize('names', [
    ['trainset', 'testset'], ['eng.train', 'eng.testa', 'eng.testb'], ['train', 'devel'],
    ['pretrain', 'pretest']])
def test_other_names_of_splits(tmp_path, names):
    for name in names: (tmp_path/f'{name}.txt').write_text('a b\n'*30)
    parts, _ = files_by_split(tmp_path)
    assert [file.stem for file in parts['train']] == names[:1] and len(parts) == len(names)

def test_each_class_keeps_rows_to_train_on_beside_groups():
    rows = [dict(text=f'text {i}', label='abc'[i//4], group=i//2) for i in range(12)]
    for seed in range(5):
        dls = ClassifyDataLoaders.from_data(rows, split_seed=seed, valid_pct=.4)
        assert {label for _,label in dls.train.items} == {*'abc'}
    for row in rows: row['group'] = row['label']
    with pytest.warns(match='trained on'): ClassifyDataLoaders.from_data(rows)

# shares, groups, the first rows

GROUPED = pd.DataFrame(dict(text=[f'{i//5} is the group of row {i}' for i in range(200)],
                            document=[f'd{i//5}' for i in range(200)]))

@pytest.mark.parametrize('kind', ['table', 'file', 'data set', 'two files'])
def test_rows_of_one_document_are_in_one_split(kind, tmp_path):
    "Drawn rows of a text, as those of a classifier: a column group… or doc… says what is one"
    source = GROUPED
    if kind == 'file':
        source = tmp_path/'a.csv'
        GROUPED.to_csv(source, index=False)
    if kind == 'data set': source = datasets.Dataset.from_pandas(GROUPED)
    if kind == 'two files':
        source = [tmp_path/'a.jsonl', tmp_path/'b.jsonl']
        for file,part in zip(source, (GROUPED[:103], GROUPED[103:])):
            part.to_json(file, orient='records', lines=True)
    for corpus in (text_corpus(source), ElmoDataLoaders.from_dataset(source, device='cpu').corpus
                   if kind == 'data set' else text_corpus(source, split_seed=7)):
        seen = {split: {line.split()[0] for line in lines}
                for split,lines in corpus.splits.items()}
        if kind == 'two files':      # the document that begins in one file and ends in another
            for some in seen.values(): some.discard('20')
        every = sum(map(len, seen.values()))
        assert len(set.union(*seen.values())) == every, seen
        assert all(2 <= len(seen[split]) <= 6 for split in seen if split != 'train')
        assert 'whole groups or documents' in repr(corpus.source)
        assert sum(map(len, corpus.splits.values())) == 200

def test_rows_without_a_document_are_drawn_alone():
    df = GROUPED.assign(document=[None]*200)
    assert text_corpus(df).splits == text_corpus(df[['text']]).splits
    half = GROUPED.assign(document=[f'd{i//5}' if i < 100 else None for i in range(200)])
    held = {line.split()[0] for line in text_corpus(half).valid if int(line.split()[-1]) < 100}
    assert not held & {line.split()[0] for line in text_corpus(half).train}

def test_which_rows_are_held_out_has_one_name():
    df = GROUPED[['text']]
    splits = text_corpus(df, split_seed=3).splits
    assert splits == get_corpus(df, split_seed=3).splits != text_corpus(df).splits
    assert text_corpus(df).splits == text_corpus(df, split_seed=42).splits
    held = ElmoDataLoaders.from_df(df, device='cpu', split_seed=3, seed=1).corpus.splits['valid']
    assert held == ElmoDataLoaders.from_df(df, device='cpu', split_seed=3, seed=2).corpus.valid
    with pytest.raises(UsageError, match='seed=3.*split_seed'): get_corpus(df, seed=3)

@pytest.mark.parametrize('door', ['from_corpus', 'from_files', 'from_dataset'])
def test_each_factory_holds_out_the_same_rows(door, tmp_path):
    "Shares and seed count whichever factory has the file; a corpus with splits keeps them"
    GROUPED.to_csv(tmp_path/'a.csv', index=False)
    how = dict(valid_pct=.25, split_seed=3, device='cpu')
    dls = getattr(ElmoDataLoaders, door)(tmp_path/'a.csv', **how)
    frame = ElmoDataLoaders.from_df(GROUPED, **how)
    assert dls.corpus.splits == frame.corpus.splits and len(dls.corpus.valid) == 50
    with pytest.raises(CorpusError, match='splits of its own'):
        getattr(ElmoDataLoaders, door)(toy_corpus(20, 4, 1, 1), valid=tmp_path/'a.csv')

def test_groups_of_a_table_beside_a_text(tmp_path):
    "Lines of a text belong to no group, and the rows of a table to theirs, whatever comes first"
    table = pd.DataFrame(dict(text=[f'g{i//5} row {i}' for i in range(60)],
                              group=[f'g{i//5}' for i in range(60)]))
    table.to_csv(tmp_path/'b.csv', index=False)
    for name in ('a.txt', 'c.txt'):
        (tmp_path/name).write_text('\n'.join(f'line {i}' for i in range(40)))
        corpus = text_corpus([tmp_path/some for some in sorted(['b.csv', name])], valid_pct=.2)
        assert sum(map(len, corpus.splits.values())) == 100
        lines = {line for split in corpus.splits.values() for line in split}
        assert {'line 7', 'g1 row 7'} <= lines
        of_groups = {split: {line.split()[0] for line in lines if line.startswith('g')}
                     for split,lines in corpus.splits.items()}
        assert of_groups['valid'] and not of_groups['valid'] & of_groups['train']
