"""What each door answers to each line of the contract about a user's text; and what comes from
someone else: only files that end are read, their sizes are looked at first, and no model asks for
more memory than its files explain. `python tests/test_doors.py` prints the contract as a table"""
import bz2, gzip, json, lzma, os, re, shutil, signal, socket, subprocess, sys, tempfile, unicodedata
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import datasets, numpy as np, pandas as pd, pytest, torch
from safetensors.torch import load_file, save_file

from elmo_fastai.base.errors import (CheckpointError, CommandError, CorpusError, Interrupted,
                                     ModelFileError)
from elmo_fastai.base.files import load_plain, regular_file, save_plain, seen_encoding
from elmo_fastai.data.blog import ElmoTransform
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.streams import stream_loaders
from elmo_fastai.data.tagged import TagDataLoaders, read_tagged
from elmo_fastai.elmo.ai2 import ai2_vocab, load_ai2
from elmo_fastai.elmo.file import embed_file
from elmo_fastai.elmo.folder import load_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.elmo.vectorizer import ElmoVectorizer
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, guesses
from elmo_fastai.studies.probe import read_senses
from elmo_fastai.tasks.cbow import WordVectors, cbow_learner, word_vectors
from elmo_fastai.tasks.command import merged_settings
from elmo_fastai.tasks.folder import new_learner, source_options
from elmo_fastai.tasks.tag import elmo_tagger_learner
from elmo_fastai.tasks.embed import embed_command_line
from elmo_fastai.text.corpora import Corpus, Sentence, read_text, toy_corpus
from elmo_fastai.text.reading import read_table
from elmo_fastai.text.sources import get_corpus, read_texts, text_corpus
from elmo_fastai.text.tokens import (
    ByteCharVocab, CharVocab, NGramsTokenizer, WordVocab, word_tokenize)
from elmo_fastai.train.checkpoint import FILE, find_checkpoint, read_checkpoint
from elmo_fastai.train.command import Settings, command_line, elmo_pretrain, pretrain
from elmo_fastai.train.report import baselines
from elmo_fastai.train.script import text_of
from elmo_fastai.train.speak import fill, generate, score
from made import CFG, fit, make as make_elmo
from test_annotate import make_classifier, TAGGED as BIO_SENTS

def write(path, text, encoding='utf-8'):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode(encoding) if isinstance(text, str) else text
    pack = {'.gz': gzip.compress, '.bz2': bz2.compress, '.xz': lzma.compress}
    path.write_bytes(pack.get(path.suffix, bytes)(data))
    return path

def words(lines): return sorted(token for line in lines for token in str(line).split())

def split_words(splits): return words(line for lines in splits.values() for line in lines)

def of_corpus(file, **how): return split_words(get_corpus(file, **how).splits)

def of_loaders(file, **how):
    dls = ElmoDataLoaders.from_files(file, device='cpu', bs=2, **how)
    assert str(Path(file).name) in repr(dls), 'it says what it read'
    return split_words(dls.corpus.splits)

def of_stream(file, **how):
    dls = stream_loaders(file, n_valid=1, device='cpu', bs=2, tokenizer='space', **how)
    assert str(Path(file).name) in repr(dls)
    return words([*dls.corpus.valid, *dls.train.lines])

def of_pretrain(file, **how): return split_words(text_of(str(file), Settings(**how)).splits)

def of_embed(file, **how):
    read = list(read_texts(file, **how))
    for text,why in read: assert not why, f'{Path(file).name}: {why}'
    return words(' '.join(text) if isinstance(text, list) else text for text,_ in read)

DOORS = {'get_corpus': of_corpus, 'from_files': of_loaders, 'stream_loaders': of_stream,
    'pretrain': of_pretrain, 'elmo_embed': of_embed}
TEXTS = [f'word{i} said' for i in range(12)]
WORDS = words(TEXTS)

def table(sep=',', head=('id', 'text'), rows=TEXTS):
    return '\n'.join([sep.join(head), *(f'{i}{sep}{text}' for i,text in enumerate(rows)), ''])

def conllu(rows=TEXTS):
    sents = [['\t'.join([str(i), w, w, 'NOUN', *'______']) for i, w in enumerate(text.split(), 1)]
        for text in rows]
    return ('\n\n'.join('\n'.join([f'# text = {text}', *sent]) for text, sent in zip(rows, sents)) +
        '\n\n')

def columns(line, rows=TEXTS, head=''):
    return (head + '\n\n'.join('\n'.join(line.format(i=i, w=w) for i, w in enumerate(text.split(),
        1)) for text in rows) + '\n')

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
    'objects over several lines': ('a.json',
        '\n'.join(json.dumps(dict(text=t), indent=1) for t in TEXTS), {}),
    'a list in an object': (
        'a.json', json.dumps(dict(n=1, rows=[dict(text=t) for t in TEXTS])), {}),
    'the ends of Windows': ('a.csv', table().replace('\n', '\r\n'), {}),
    'two marks of order': ('a.csv', '\ufeff\ufeff' + table(head=('text', 'n'), rows=range(0)) +
        ''.join(f'{t},1\n' for t in TEXTS), {}),
    'packed by bzip2': ('a.csv.bz2', table(), {}), 'packed by xz': ('a.csv.xz', table(), {}),
    'numbers with a letter': ('a.conll', columns('w_{i} {w} O'), {}),
    'places in the text': ('a.conll', columns('{i}:{i}9 {w} O'), {}),
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
    'an archive': ('a.zip', b'PK\x03\x04' + b'x'*50, 'packed by zip.*unpack'),
    'an archive called .txt': ('a.txt', b'PK\x03\x04' + b'x'*50, 'packed by zip'),
    'another encoding': (
        'a.csv',
        table(rows=['café', 'thé', 'été']).encode('latin-1'),
        'line 2.*not UTF-8',
    ),
    'UTF-16, not said': ('a.txt', 'text'.encode('utf-16'), "UTF-16.*encoding='utf-16'"),
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

def answer(door, file, **how):
    "What a door answers: its words, or the error in one line"
    try: return DOORS[door](file, **how)
    except (CorpusError, AssertionError) as e: return str(e)

@pytest.mark.parametrize('what', REFUSED)
@pytest.mark.parametrize('door', DOORS)
def test_refused(what, door, tmp_path):
    name, text, says = REFUSED[what]
    said = answer(door, write(tmp_path/name, text))
    assert said != WORDS
    if door == 'stream_loaders': return                 # it leaves such rows out, and counts them
    assert isinstance(said, str) and name in said
    assert door == 'elmo_embed' or re.search(says, said, re.S), said     # it says why, not where

# labels and tags

def of_task(task, file, **how):
    "The loaders that `elmo_task` makes of a file, by its own way from the options"
    names = [name for name in how if name not in ('device', 'bs', 'valid_pct')]
    settings = merged_settings(task, 'train', {name: how[name] for name in names} |
        dict(source=str(file), out='new'))
    maker = dict(tag='elmo_tagger_learner', classify='elmo_classifier_learner')[task]
    said = source_options(settings)
    with mock.patch(f'elmo_fastai.tasks.folder.{maker}', lambda dls, elmo: dls):
        return new_learner(task, settings.source, None, said, dict(said, device='cpu', bs=2))

def to_file(content, name, folder):
    "A file with the rows of a table, or with this text; a folder of files by their names"
    path = folder/name
    if isinstance(content, dict):
        for file,text in content.items(): write(path/file, text)
        return path
    if isinstance(content, str): return write(path, content)
    if name.endswith('.jsonl'): content.to_json(path, orient='records', lines=True)
    else: content.to_csv(path, index=False)
    return path

def through(door, loaders, task, content, name, folder, **how):
    "The loaders that a door makes; None where it takes nothing of this kind"
    how |= dict(device='cpu', bs=2)
    is_table = isinstance(content, pd.DataFrame)
    if door in ('from_df', 'from_dataset') and not is_table: return None
    if door == 'from_df': return loaders.from_df(content, **how)
    if door == 'from_dataset':
        return loaders.from_dataset(datasets.Dataset.from_pandas(content), **how)
    file = to_file(content, name, folder)
    if door == 'from_files': return loaders.from_files(file, **how)
    return of_task(task, file, **how)

TASK_DOORS = 'from_df', 'from_files', 'from_dataset', 'elmo_task'

def labelled(labels, **more):
    n = len(labels)
    return pd.DataFrame(dict(text=[f'text {i}' for i in range(10*n)], label=labels*10, **more))

def by_text(labels):
    return {f'text {i}': labels[i % len(labels)] for i in range(10*len(labels))}

TWO = labelled(['good', 'bad'])
LABELLED = {  # what is read → (table, text or files, name, options, classes, labels in turn)
    'words': (TWO, 'a.csv', {}, ['bad', 'good'], ['good', 'bad']),
    'numbers, by their values': (labelled([10, 2]), 'a.csv', {}, ['2', '10'], ['10', '2']),
    'numbers in words': (labelled(['10', '2']), 'a.csv', {}, ['2', '10'], ['10', '2']),
    'NA is a word': (labelled(['NA', 'null']), 'a.csv', {}, ['NA', 'null'], ['NA', 'null']),
    'names in capitals': (TWO.rename(columns=dict(text='Text ', label='LABEL')), 'a.csv', {},
        ['bad', 'good'], ['good', 'bad']),
    'a column by number': (TWO.rename(columns=dict(label='z')), 'a.tsv',
        dict(sep=',', label_col=1), ['bad', 'good'], ['good', 'bad']),
    'decimals': (labelled([.5, 1.25]), 'a.csv', {}, [], ['0.5', '1.25']),
    'lists': (labelled([['x', 'y'], ['y']]), 'a.jsonl', {}, ['x', 'y'], [['x', 'y'], ['y']]),
    'printed lists': (labelled(["['x', 'y']", "['y']"]), 'a.csv', {}, ['x', 'y'],
        [['x', 'y'], ['y']]),
    "numpy's lists": (labelled(['[2 10]', '[27]']), 'a.csv', {}, ['2', '10', '27'],
        [['2', '10'], ['27']]),
    'a list of words between bars': (labelled(['x|y', 'y']), 'a.csv', dict(label_delim='|'),
        ['x', 'y'], [['x', 'y'], ['y']]),
    'multi-hot, with names': (labelled(['[1, 0, 1]', '[0, 1, 0]']), 'a.csv',
        dict(label_names=['c', 'b', 'a']), ['c', 'b', 'a'], [['c', 'a'], ['b']]),
    'several columns': (TWO.assign(zebra=[1, 0]*10, ape=['no', 'yes']*10), 'a.csv',
        dict(label_col=['zebra', 'ape']), ['zebra', 'ape'], [['zebra'], ['ape']]),
    'a folder per class': ({f'{label}/{i}.txt': f'text {i}' for i in range(20)
        for label in [['good', 'bad'][i % 2]]}, 'films', {}, ['bad', 'good'], ['good', 'bad']),
    'fastText': (''.join(f'__label__{["good", "bad"][i % 2]} text {i}\n' for i in range(20)),
        'a.txt', {}, ['bad', 'good'], ['good', 'bad']),
}

LABELS_REFUSED = {  # what is refused → (table or text, name, options, what the error says)
    'multi-hot, without names': (labelled(['[1, 0, 1]', '[0, 1, 0]']), 'a.csv', {},
        'multi-hot.*label_names'),
    'a class for each row': (TWO.assign(label=[f'class {i}' for i in range(20)]).loc[
        [i % 20 for i in range(60)]].assign(label=[f'class {i}' for i in range(60)]), 'a.csv', {},
        '60 different labels|different labels in'),
    'no labels': (TWO[['text']], 'a.csv', {}, 'no labels.*label_col'),
    'a flag that is none': (TWO.assign(zebra=['perhaps']*20, ape=[1, 0]*10), 'a.csv',
        dict(label_col=['zebra', 'ape']), "'zebra' holds 'perhaps'"),
}

def label_of(label):
    if isinstance(label, list): return [str(one) for one in label]
    return str(label)

def of_labels(door, content, name, folder, **how):
    "(classes, label by text) of what a door reads; None where it takes nothing of this kind"
    dls = through(door, ClassifyDataLoaders, 'classify', content, name, folder, **how)
    if dls is None: return None
    return list(map(str, dls.vocab)), {text: label_of(label)
        for dl in dls for text,label in dl.text.items}

NAMES = [f'Name{i}' for i in range(12)]
TAGGED_SENTS = sorted(([name, 'left'], ['B-PER', 'O']) for name in NAMES)

def tokens(**more):
    "A token in each row"
    words = [word for name in NAMES for word in (name, 'left')]
    return pd.DataFrame(dict(sent_id=[i//2 for i in range(24)], word=words, **more))

BIO = ['B-PER', 'O']*12
UD = ('1\t{name}\t_\tPROPN\t_\tCase=B-PER|Number=Sing\t0\t_\t_\t_\n'
    '2\tleft\t_\tVERB\t_\tCase=O\t1\t_\t_\t_\n\n')
def lines(line, head='', **more):
    return head + ''.join(line.format(name=name, i=i, **more) for i,name in enumerate(NAMES))

TAGGED = {  # what is read → (table or text, name, options)
    'the last column': (tokens(pos=['NNP', 'VBD']*12, tag=BIO), 'a.csv', {}),
    'columns by name': (tokens(a=['x']*24, b=BIO, c=['y']*24), 'a.csv', dict(token_col='word',
        tag_col='b')),
    'columns by number': (tokens(b=BIO, c=['y']*24), 'a.csv', dict(token_col=1, tag_col=2)),
    'lists': (pd.DataFrame(dict(tokens=[[name, 'left'] for name in NAMES],
        tags=[['B-PER', 'O']]*12)), 'a.jsonl', {}),
    'printed lists': (pd.DataFrame(dict(tokens=[f"['{name}', 'left']" for name in NAMES],
        tags=["['B-PER', 'O']"]*12)), 'a.csv', {}),
    'words between blanks': (pd.DataFrame(dict(text=[f'{name} left' for name in NAMES],
        tags=['B-PER O']*12)), 'a.csv', {}),
    'blanks around cells': (tokens(tag=[' B-PER', 'O ']*12), 'a.csv', {}),
    'numbers that restart in each document': (tokens(tag=BIO, doc=[i//2 for i in range(24)]).assign(
        sent_id=0), 'a.csv', {}),
    'spans': (pd.DataFrame(dict(text=[f'{name} left' for name in NAMES], spans=[[dict(start=0,
        end=len(name), label='PER')] for name in NAMES])), 'a.jsonl', {}),
    "doccano's spans": (pd.DataFrame(dict(text=[f'{name} left' for name in NAMES],
        label=[[[0, len(name), 'PER']] for name in NAMES])).to_json(orient='records', lines=True),
        'a.jsonl', {}),
    'lines': (lines('{name} B-PER\nleft O\n\n'), 'a.conll', {}),
    'the last column of several': (lines('{name}\tNNP\tB-PER\nleft\tVBD\tO\n\n'), 'a.bio', {}),
    'a running number': (lines('1\t{name}\tB-PER\n2\tleft\tO\n\n'), 'a.ner', {}),
    'a token column': (lines('B-PER {name}\nO left\n\n'), 'a.conll', dict(token_col=1,
        tag_col=0)),
    'a header': (lines('NNP\t{name}\tB-PER\nVBD\tleft\tO\n\n', 'pos\tword\tner\n'), 'a.iob',
        {}),
    'a feature of UD': (lines(UD), 'a.conllu', dict(tag_col='feats.Case')),
    'comments': (lines('1\t{name}\tB-PER\n2\tleft\tO\n\n', '#\tsource [2009]\n'), 'a.conll', {}),
    'documents of CoNLL-2012': (lines('x 0 0 {name} B-PER\nx 0 1 left O\n\n',
        '#begin document (x); part 000\n') + '#end document\n', 'a.conll', {}),
    '-DOCSTART-': (lines('{name} NN B-PER\nleft VB O\n\n', '-DOCSTART- -X- O\n\n'), 'a.iob2', {}),
    'no blank line at the end': (lines('{name} B-PER\nleft O\n\n').rstrip('\n'), 'a.conll', {}),
}

TAGS_REFUSED = {  # what is refused → (table or text, name, options, what the error says)
    'tags first': (lines('B-{i}\t{name}\nO\tleft{i}\n\n'), 'a.bio', {},
        'tags before its words.*token_col=1'),
    'word/TAG': (lines('{name}/NNP left/VBD\n'), 'a.conll', {}, 'written with its tag.*split'),
    'a lemma for a tag': (tokens(lemma=[f'lemma{i}' for i in range(24)]).loc[
        [i % 24 for i in range(120)]].assign(sent_id=[i//2 for i in range(120)],
        lemma=[f'lemma{i}' for i in range(120)]), 'a.csv', dict(tag_col='lemma'),
        'different tags.*tag_col'),
    'no end of a sentence': (tokens(tag=BIO)[['word', 'tag']], 'a.csv', {}, 'sent_col'),
    'one tag too few': (pd.DataFrame(dict(tokens=[[name, 'left'] for name in NAMES],
        tags=[['B-PER', 'O']]*11 + [['O']])), 'a.jsonl', {}, '2 tokens and 1 tags'),
    'a span outside its text': (pd.DataFrame(dict(text=[f'{name} left' for name in NAMES],
        spans=[[dict(start=0, end=99, label='PER')]]*12)), 'a.jsonl', {}, 'not in its text'),
}

def of_tags(door, content, name, folder, **how):
    "The sentences that a door reads, with their tags; None where it takes nothing of this kind"
    dls = through(door, TagDataLoaders, 'tag', content, name, folder, **how)
    if dls is None: return None
    return sorted((sent.tokens, sent.tags) for dl in dls for sent in dl.text.items)

@pytest.mark.parametrize('what', LABELLED)
@pytest.mark.parametrize('door', TASK_DOORS)
def test_labels_are_read(what, door, tmp_path):
    content, name, how, classes, labels = LABELLED[what]
    if door in ('from_df', 'from_dataset'): how = {k: v for k,v in how.items() if k != 'sep'}
    said = of_labels(door, content, name, tmp_path, **how)
    assert said in (None, (classes, by_text(labels)))

@pytest.mark.parametrize('what', TAGGED)
@pytest.mark.parametrize('door', TASK_DOORS)
def test_tags_are_read(what, door, tmp_path):
    content, name, how = TAGGED[what]
    assert of_tags(door, content, name, tmp_path, **how) in (None, TAGGED_SENTS)

@pytest.mark.parametrize('what', [*LABELS_REFUSED, *TAGS_REFUSED])
@pytest.mark.parametrize('door', TASK_DOORS)
def test_labels_and_tags_are_refused(what, door, tmp_path):
    read = of_labels if what in LABELS_REFUSED else of_tags
    content, name, how, says = (LABELS_REFUSED | TAGS_REFUSED)[what]
    if door in ('from_df', 'from_dataset') and not isinstance(content, pd.DataFrame): return
    with pytest.raises(CorpusError, match=f'(?s){says}'):
        read(door, content, name, tmp_path, **how)

def contract(folder):
    "The tables of what is read or refused, and what each door answers, in Markdown"
    def row(what, name, how, answers):
        given = ''.join(f', `{option}={value!r}`' for option,value in how.items())
        return f"| {what} | `{name}`{given} | {' | '.join(answers)} |"
    def head(doors):
        return ['', '| what | file | ' + ' | '.join(doors) + ' |', '|---|---|' + '---|'*len(doors)]
    rows = head(DOORS)
    for what,(name,text,how) in (READ | REFUSED).items():
        how = {} if isinstance(how, str) else how
        said = [answer(door, write(folder/name, text), **how) for door in DOORS]
        rows.append(row(what, name, how, ['reads it' if one == WORDS else 'refuses it'
            for one in said]))
    def told(read, *args, **how):
        try: return 'takes none' if read(*args, **how) is None else 'reads it'
        except CommandError: return 'has no such option'
        except CorpusError: return 'refuses it'
    for read,some in ((of_labels, LABELLED | LABELS_REFUSED), (of_tags, TAGGED | TAGS_REFUSED)):
        rows += head(TASK_DOORS)
        for i,(what,(content,name,how,*_)) in enumerate(some.items()):
            place = folder/f'{read.__name__}-{i}'
            place.mkdir()
            answers = []
            for door in TASK_DOORS:
                is_data = door in ('from_df', 'from_dataset')
                own = {k: v for k,v in how.items() if not (is_data and k == 'sep')}
                answers.append(told(read, door, content, name, place, **own))
            rows.append(row(what, name, how, answers))
    return '\n'.join(rows).strip()

# Where a message gives advice: the file, and how the advice is written
ADVICE = {'encoding, seen': ('a.txt', '\n'.join(TEXTS).encode('utf-16')), 'encoding, guessed':
    ('b.csv', table(rows=[f'{t}, déjà à la fenêtre' for t in TEXTS], sep=';').encode('cp1252')),
    'a column': ('c.csv', table(head=('id', 'body'))), 'a column of JSON': ('d.jsonl',
    '\n'.join(json.dumps(dict(id='x', said=t)) for t in TEXTS)), 'no header': ('e.csv',
    ''.join(f'{t},{t}\n' for t in TEXTS)), 'quotes': ('f.tsv', 'id\ttext\n' +
    ''.join(f'{i}\t"{t}\tx"\n' for i,t in enumerate(TEXTS))), 'tags first': ('g.bio',
    columns('B-A{i}\t{w}'))}

LEFT_OUT = ('stream_loaders', 'quotes'), ('elmo_embed', 'encoding, guessed')   # rows, counted

@pytest.mark.parametrize('what', ADVICE)
@pytest.mark.parametrize('door', DOORS)
def test_advice_can_be_followed_at_the_door_that_gave_it(what, door, tmp_path):
    name, text = ADVICE[what]
    file = write(tmp_path/name, text)
    said = answer(door, file)
    assert isinstance(said, str), f'{door} reads it'
    options = dict(re.findall(r"(encoding|text_col|header|quotes|token_col)=('[^']+'|\w+)", said))
    if what != 'no header' and 'header' in options:
        options = dict(re.findall(r"as in (text_col)=('[^']+')", said))
    if (door, what) in LEFT_OUT: assert not options; return
    assert options, said
    kinds = {'True': True, 'False': False}
    options = {key: kinds.get(value, int(value) if value.isdigit() else value.strip("'")) for
        key,value in options.items()}
    assert isinstance(answer(door, file, **options), list), (said, options)

def test_advice_names_options_that_both_commands_have():
    for what in ADVICE:
        with tempfile.TemporaryDirectory() as d:
            said = answer('get_corpus', write(Path(d)/ADVICE[what][0], ADVICE[what][1]))
        for option in re.findall(r'--[a-z-]+', said.replace('--stream', '')):
            for line in (command_line(), embed_command_line()):
                assert option in line._option_string_actions, (what, option)

def test_pretraining_takes_what_the_others_take(tmp_path):
    data = pd.DataFrame(dict(body=[f'{t} {i}' for i in range(40) for t in TEXTS[:2]]))
    how = dict(dry=True, model='tiny', epochs=1, bs=2, seq_len=8, device='cpu', say=str,
        out=tmp_path/'m')
    held = pretrain(data, text_col='body', valid_pct=.25, **how)['held_out']
    assert held == pretrain(dict(train=data, valid=data[:20]), text_col='body', **how)['held_out']
    with pytest.raises(CorpusError, match='no file'): pretrain(['no.txt', 'none.txt'], **how)

# labels

def make(labels, **how):
    return ClassifyDataLoaders.from_data(pd.DataFrame(dict(text=[f't {i}' for i in
        range(len(labels))], label=labels)), bs=2, device='cpu', **how)

@pytest.mark.parametrize('a,b', [("['x', 'y']", "['y']"), ("['x' 'y']", "['y']"), ('[x, y]', '[y]'),
    (('x', 'y'), ('y',)), (np.array(['x', 'y']), np.array(['y'])), ('{"x", "y"}', '{"y"}')])
def test_printed_lists_are_lists(a, b):
    assert list(make([a, b]*8).vocab) == ['x', 'y']

    df = pd.DataFrame(dict(text=[f't {i}' for i in range(20)], zebra=[1, 0]*10, ape=[0, 1]*10,
        none=[0]*20))
    dls = ClassifyDataLoaders.from_data(df, label_col=['zebra', 'ape', 'none'], bs=2, device='cpu')
    assert list(dls.vocab) == ['zebra', 'ape', 'none']
    with pytest.warns(UserWarning, match="'none'.*left out"):
        assert np.isfinite(dls.class_weights.numpy()).all()

def test_fasttext(tmp_path):
    file = write(tmp_path/'a.txt', ''.join(f'__label__{"good" if i % 2 else "bad"} text {i}\n' for
        i in range(20)))
    assert list(ClassifyDataLoaders.from_files(file, bs=2, device='cpu').vocab) == ['bad', 'good']

# tags

KAGGLE = pd.DataFrame({'Sentence #': ['Sentence: 1', None, 'Sentence: 2', None], 'Word': ['Ann',
    'left', 'Bob', 'came'], 'POS': ['NNP', 'VBD', 'NNP', 'VBD'], 'Tag': ['B-per', 'O', 'B-per',
    'O']})

def test_the_last_column_of_tags(tmp_path):
    rows = '\n'.join('\t'.join(map(str, row)) for row in KAGGLE[['Word', 'POS',
        'Tag']].values.tolist())
    file = write(tmp_path/'a.conll', rows.replace('\nBob', '\n\nBob'))
    KAGGLE.to_csv(tmp_path/'a.csv', index=False)
    for data in (KAGGLE, tmp_path/'a.csv', file):
        assert [s.tags for s in read_tagged(data)[0]] == [['B-per', 'O']]*2
    assert [s.tags for s in read_tagged(KAGGLE, tag_col='POS')[0]] == [['NNP', 'VBD']]*2
    assert read_tagged(file, tag_col=1)[0][0].tags == ['NNP', 'VBD']
    assert 'POS' in repr(TagDataLoaders.from_df(KAGGLE, valid=KAGGLE, device='cpu'))

def test_features(tmp_path):
    line = ('1\tDogs\tdog\tNOUN\t_\tCase=Nom|Number=Plur\t0\t_\t_\t_\n'
            '2\tran\trun\tVERB\t_\tTense=Past\t1\t_\t_\t_\n\n')
    assert read_tagged(write(tmp_path/'a.conllu', line),
        tag_col='feats.Case')[0][0].tags == ['Nom', '_']

def test_too_many_tags():
    sents = [([f'word{i}', f'word{i+1}'], [f'lemma{i}', f'lemma{i+1}']) for i in range(60)]
    with pytest.raises(CorpusError, match='different tags.*feats.Case.*labels='):
        TagDataLoaders.from_sents(sents, device='cpu')

def test_blanks_around_cells(tmp_path):
    write(tmp_path/'a.csv', 'sent_id,token,tag\n' +
        '1, Ann , B-PER\n1, left, O \n2, Bob, B-PER\n2, ran, O\n')
    assert read_tagged(tmp_path/'a.csv')[0][0] == Sentence(['Ann', 'left'], ['B-PER', 'O'])

def test_a_sentence_ends_where_any_column_of_its_place_changes():
    df = pd.DataFrame(dict(doc_id=[1, 1, 2, 2], sent=[1, 1, 1, 1], token=list('abcd'),
        tag=list('XYXY')))
    assert [s.tokens for s in read_tagged(df)[0]] == [['a', 'b'], ['c', 'd']]

OWN = [('Ann left Paris .', [dict(start=0, end=3, label='PER', text='Ann'), dict(start=9, end=14,
    label='LOC', text='Paris')])]
SPANS = [Sentence(['Ann', 'left', 'Paris', '.'], ['B-PER', 'O', 'B-LOC', 'O'])]
def test_spans(tmp_path):
    assert read_tagged(OWN)[0] == SPANS
    doccano = write(tmp_path/'a.jsonl', json.dumps(dict(id=1, text=OWN[0][0], label=[[0, 3,
        'PER'], [9, 14, 'LOC']])) + '\n')
    newer = write(tmp_path/'b.jsonl', json.dumps(dict(text=OWN[0][0], entities=[dict(id=1,
        start_offset=9, end_offset=14, label='LOC'), dict(id=2, start_offset=0, end_offset=3,
        label='PER')])) + '\n')
    for file in (doccano, newer): assert read_tagged(file)[0] == SPANS

# options

def test_the_commands_have_the_same_options(capsys):
    for command in (lambda: elmo_pretrain(['--help']),
                    lambda: embed_command_line().parse(['--help'])):
        with pytest.raises(SystemExit): command()
        said = capsys.readouterr().out
        for option in ('--sep', '--quotes', '--header', '--encoding', '--text-col', '--token-col',
            '--sent-col', '--n-rows'):
            assert option in said, option

def test_memory_of_a_packed_file(tmp_path):
    "A line without an end is not held"
    file = write(tmp_path/'a.txt.gz', b'a'*20_000_000)
    [(_, why)] = read_texts(file, longest=1000)
    assert 'more than 1,000 characters' in why

# files that are none, and models that ask for too much

ROOT = Path(__file__).resolve().parents[1]
CHANGES = dict(name='nano', char_dim=4, filters=[[1,8], [2,8]], proj_dim=16, hidden_dim=16)
NANO = BiLMConfig.from_dict(CHANGES)
posix = pytest.mark.skipif(os.name != 'posix', reason='pipes and devices of Unix')

@pytest.fixture(autouse=True)
def in_time():
    "A door that waits for ever fails"
    if not hasattr(signal, 'SIGALRM'): yield; return
    def late(*args): raise TimeoutError('the door waits')
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)

@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    "Folders with models and checkpoints, and files with words and vectors"
    d = tmp_path_factory.mktemp('saved')
    torch.manual_seed(0)
    vocab = WordVocab.build([['the', 'bank', 'of', 'river']])
    lm = BiLM(NANO, len(vocab), ByteCharVocab()).eval()
    Elmo(lm, vocab).save_pretrained(d/'elmo')
    Elmo(lm, vocab).to_ai2(d/'ai2')
    WordVectors(['a', 'b'], np.eye(2)).save(d/'vectors.safetensors')
    WordVectors(['a', 'b'], np.eye(2)).save(d/'vectors.txt')
    return d

@pytest.fixture(scope='module')
def run(tmp_path_factory):
    "A training of the command that was interrupted"
    d = tmp_path_factory.mktemp('run')
    text = d/'text.txt'
    text.write_text('\n'.join(toy_corpus(n_train=100, n_valid=1, n_test=0, n_unseen=0).train) +
        '\n')
    with pytest.MonkeyPatch.context() as mp:
        from elmo_fastai.train import script as module
        from steps import At
        old = module.bilm_learner
        def stop(cb): signal.raise_signal(signal.SIGINT)

        mp.setattr(module, 'bilm_learner', lambda *args, cbs=None, **kw: old(*args, cbs=[*cbs, At(3,
            stop, 'before_batch')], **kw))
        with pytest.raises(Interrupted):
            pretrain(str(text), d/'m', model='tiny', config=CHANGES, device='cpu', say=str, bs=4,
                seq_len=8, epochs=2)
    return d

def place(kind, path):
    "Put something that is no file at `path`"
    path.unlink(missing_ok=True)
    if kind == 'device': path.symlink_to('/dev/zero')
    elif kind == 'pipe': os.mkfifo(path)
    elif kind == 'folder': path.mkdir()
    else:
        s, here = socket.socket(socket.AF_UNIX), os.getcwd()
        # a socket's name must be short
        os.chdir(path.parent)
        try: s.bind(path.name)
        finally: os.chdir(here)
        s.close()

KINDS = {'device': 'device', 'pipe': 'pipe', 'socket': 'socket', 'folder': '[Dd]irectory'}
each_kind = pytest.mark.parametrize('kind', KINDS)

@posix
@each_kind
def test_only_files_that_end_are_files(kind, tmp_path):
    place(kind, tmp_path/'f')
    with pytest.raises(OSError, match=KINDS[kind]): regular_file(tmp_path/'f')

def test_sizes_are_looked_at_first(tmp_path):
    with pytest.raises(FileNotFoundError): regular_file(tmp_path/'none')
    with open(tmp_path/'f', 'wb') as f: f.truncate(10**9)
    assert regular_file(tmp_path/'f') == tmp_path/'f' == regular_file(str(tmp_path/'f'), most=10**9)
    with pytest.raises(OSError, match='1,000,000,000 bytes, too many: at most 999,999,999'):
        regular_file(tmp_path/'f', most=10**9 - 1)
    (tmp_path/'link').symlink_to(tmp_path/'f')
    assert regular_file(tmp_path/'link')

MODEL = ['config.json', 'model.safetensors', 'vocab.json', 'chars.json', 'elmo.json',
    'mix.safetensors']

@posix
@each_kind
@pytest.mark.parametrize('name', MODEL)
def test_files_of_a_model(name, kind, saved, tmp_path):
    shutil.copytree(saved/'elmo', tmp_path/'m')
    place(kind, tmp_path/'m'/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'):
        Elmo.from_pretrained(tmp_path/'m')

@pytest.mark.parametrize('name', ['config.json', 'vocab.json', 'chars.json', 'elmo.json',
    'mix.safetensors'])
def test_small_files_of_a_model_are_small(name, saved, tmp_path):
    "Files without an end on paper: a terabyte of zeros, which takes no room on the disk"
    shutil.copytree(saved/'elmo', tmp_path/'m')
    with open(tmp_path/'m'/name, 'wb') as f:
        f.truncate(10**12)
    with pytest.raises(ModelFileError, match=f'{name}.*1,000,000,000,000 bytes'):
        Elmo.from_pretrained(tmp_path/'m')

def test_weights_that_the_model_does_not_have_are_refused(saved, tmp_path):
    "A tensor of another shape, or one too many"
    shutil.copytree(saved/'elmo', tmp_path/'m')
    weights = load_file(saved/'elmo'/'model.safetensors')
    file = tmp_path/'m'/'model.safetensors'
    for more in ({'extra': torch.zeros(10)}, {'lstm.fwd.0.weight_ih_l0': torch.zeros(64, 17)}):
        save_file(weights | more, file)
        with pytest.raises(ModelFileError, match=f"{[*more][0]}|unknown tensor"):
            load_bilm(tmp_path/'m')

@posix
@each_kind
@pytest.mark.parametrize('name', ['options.json', 'weights.hdf5', 'vocab.txt'])
def test_files_of_ai2(name, kind, saved, tmp_path):
    shutil.copytree(saved/'ai2', tmp_path/'m')
    place(kind, tmp_path/'m'/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'): load_ai2(tmp_path/'m')
    if name == 'vocab.txt':
        with pytest.raises(ModelFileError, match=KINDS[kind]): ai2_vocab(tmp_path/'m'/name)

@posix
@each_kind
@pytest.mark.parametrize('name', ['vectors.safetensors', 'vectors.txt'])
def test_files_of_word_vectors(name, kind, saved, tmp_path):
    assert len(WordVectors.load(saved/name)) == 2
    place(kind, tmp_path/name)
    with pytest.raises(ModelFileError, match=f'{name}.*{KINDS[kind]}'):
        WordVectors.load(tmp_path/name)

@posix
@each_kind
def test_files_of_a_checkpoint(kind, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    for o in (tmp_path/'m.run').glob('0*-*'): place(kind, o/FILE)
    for f in (lambda: read_checkpoint(o), lambda: find_checkpoint(tmp_path/'m.run'), lambda:
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)):
        with pytest.raises(CheckpointError, match=FILE):
            f()

FILES = {'a.txt': [read_text, text_corpus, get_corpus, lambda f: stream_loaders(f, device='cpu'),
    lambda f: ElmoDataLoaders.from_files(f), lambda f: stream_loaders(f.parent, device='cpu'),
    lambda f: pretrain(str(f), f.parent/'m', say=str)], 'a.csv': [read_table,
    ClassifyDataLoaders.from_data, read_tagged, read_senses], 'a.jsonl': [read_table, lambda f:
    stream_loaders(f, device='cpu')], 'a.parquet': [read_table, lambda f: stream_loaders(f,
    device='cpu')], 'a.conllu': [read_tagged]}

@posix
@each_kind
@pytest.mark.parametrize('name', FILES)
def test_texts_and_tables(name, kind, tmp_path):
    for i,door in enumerate(FILES[name]):
        d = tmp_path/str(i)
        d.mkdir()
        place(kind, d/name)
        # a folder of text files, which is called so
        if kind == 'folder' and door in (text_corpus, get_corpus): continue
        with pytest.raises(CorpusError): door(d/name)
        assert not (d/'m').exists()

@posix
@each_kind
@pytest.mark.parametrize('name', ['a.txt', 'a.csv', 'a.parquet', 'a.csv.gz'])
def test_texts_to_embed(name, kind, saved, tmp_path):
    place(kind, tmp_path/name)
    elmo = Elmo.from_pretrained(saved/'elmo')
    with pytest.raises(CommandError, match=KINDS[kind] + '|no file'):
        embed_file(tmp_path/name, tmp_path/'o.npz', elmo, column=None if name == 'a.txt' else
            'text', say=str)
    assert sorted(o.name for o in tmp_path.iterdir()) == [name]

def test_a_text_larger_than_the_memory_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path/'a.txt', 'wb') as f: f.truncate(4*10**12)
    for f in (lambda: read_text(tmp_path/'a.txt'), lambda: get_corpus(tmp_path/'a.txt')):
        with pytest.raises(CorpusError, match='a.txt.*4,000,000,000,000 bytes.*memory.*stream'): f()

LIMITED = '''
import resource, sys
from elmo_fastai.all import *
import fastai.callback.all, datasets
now = int(next(l for l in open('/proc/self/status') if l.startswith('VmData')).split()[1])*1024
resource.setrlimit(resource.RLIMIT_DATA, (now + {mb}*2**20,)*2)
from elmo_fastai.train.command import elmo_pretrain
sys.argv = ['elmo_pretrain', sys.argv[1], '--out', sys.argv[2], '--device', 'cpu',
            '--model', 'tiny']
elmo_pretrain()
'''

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux',
    reason='the limit on the memory of data is a matter of Linux')
@pytest.mark.parametrize('mb', [30, 100])
def test_a_text_for_which_the_memory_is_not_enough(tmp_path, mb):
    "Wherever it ends: one sentence"
    signal.alarm(0)
    words = ' '.join(f'w{i}' for i in range(20))
    (tmp_path/'a.txt').write_text(f'{words}\n'*350_000)
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': str(ROOT)}
    (tmp_path/'run.py').write_text(LIMITED.format(mb=mb))
    p = subprocess.run([sys.executable, tmp_path/'run.py', tmp_path/'a.txt', tmp_path/'m'],
        capture_output=True, text=True, env=env, timeout=500)
    assert p.returncode == 1 and 'Traceback' not in p.stderr, p.stderr[-3000:]
    assert 'memory' in p.stderr and '--stream' in p.stderr and not (tmp_path/'m').exists()

# a plan that asks for more than its weights hold

def edit(run, **changes):
    "Other settings in the plans of all checkpoints"
    for o in run.glob('0*-*'):
        fields = load_plain(o/FILE)
        for k,v in changes.items():
            where = fields['run']
            *path, last = k.split('__')
            for p in path: where = where[p]
            where[last] = v
        save_plain(fields, o/FILE)

@pytest.mark.parametrize('change', [dict(model__hidden_dim=10**6), dict(model__proj_dim=10**6,
    model__hidden_dim=10**6), dict(model__n_layers=99), dict(model__char_dim=10**6),
    dict(model__filters=[[1, 10**6]]), dict(model__filters=[[1, 8]]*10**4),
    dict(model__n_highway=99), dict(model__n_chars=2**15), dict(text__words=10**9),
    dict(text__words='x'), dict(model__max_chars=2**15 - 1)], ids=str)
def test_a_plan_asks_for_no_more_than_its_weights(change, run, tmp_path):
    "Refused by comparing shapes, before text is read and a model is made"
    import resource

    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    edit(tmp_path/'m.run', **change)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CommandError, match='checkpoint, but|other'):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    assert find_checkpoint(tmp_path/'m.run') and not (tmp_path/'m').exists()

@pytest.mark.parametrize('change', [dict(hidden_dim=10**6), dict(filters=[[1, 8]]*10**4),
    dict(n_layers=99), dict(n_chars=2**15), dict(max_chars=2**15 - 1)], ids=str)
def test_a_configuration_asks_for_no_more_than_its_weights(change, saved, tmp_path):
    import resource

    shutil.copytree(saved/'elmo', tmp_path/'m')
    head = json.loads((tmp_path/'m'/'config.json').read_text())
    head['config'] |= change
    (tmp_path/'m'/'config.json').write_text(json.dumps(head))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelFileError):
        load_bilm(tmp_path/'m')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000

# plans that can not be followed

@pytest.mark.parametrize('out', ['', '.', '/', '..', 'a/..', 7, None])
def test_a_plan_with_a_folder_that_can_not_be(out, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    edit(tmp_path/'m.run', settings__out=out)
    with pytest.raises(CommandError, match='not of a training that elmo_pretrain began'):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)

@pytest.mark.parametrize('missing', ['run', 'valid_loss', 'saved', 'machine', 'position', 'state'])
def test_a_checkpoint_that_lacks_something(missing, run, tmp_path):
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    for o in (tmp_path/'m.run').glob('0*-*'):
        fields = load_plain(o/FILE)
        del fields[missing]
        save_plain(fields, o/FILE)
    with pytest.raises(CheckpointError, match=missing): read_checkpoint(o)
    with pytest.raises(CheckpointError, match=missing):
        pretrain(resume=tmp_path/'m.run', device='cpu', say=str)

@pytest.mark.slow
def test_resume_from_here(run, tmp_path, monkeypatch):
    "`--resume .` in the folder of the run goes on with it; elsewhere it says that there is nothing"
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for place in ('.', '', '/', '..'):
        with pytest.raises((CommandError, CheckpointError), match='[Tt]here is no'):
            pretrain(resume=place, device='cpu', say=str)
    monkeypatch.chdir(tmp_path/'m.run')
    edit(Path('.'), corpus=str(tmp_path/'text.txt'))
    assert pretrain(resume='.', device='cpu', say=str) == tmp_path/'m' and load_bilm(tmp_path/'m')

# what the first bytes of a file say

@pytest.mark.parametrize('encoding,name', [('utf-16', 'UTF-16'), ('utf-16-le', 'UTF-16'),
    ('utf-16-be', 'UTF-16'), ('utf-32', 'UTF-32'), ('utf-32-le', 'UTF-32'), ('utf-8', None),
    ('utf-8-sig', None), ('latin-1', None)])
def test_encodings_are_seen(encoding, name, tmp_path, saved):
    text = 'text,n\nthe café of the river,1\nthe bank,2\n'
    raw = text.encode(encoding)
    assert (seen_encoding(raw) or '').startswith(name or
        '') and (seen_encoding(raw) is None) == (name is None)
    elmo = Elmo.from_pretrained(saved/'elmo')
    for file, column in (('a.txt', None), ('a.csv', 'text'), ('a.tsv', 'text'), ('a.csv.gz',
        'text'), ('a.txt.gz', None)):
        (tmp_path/file).write_bytes(gzip.compress(raw) if file.endswith('gz') else raw)
        if name:
            with pytest.raises(CommandError, match=f"{file}' is {name}.*UTF-8"):
                embed_file(tmp_path/file, tmp_path/'o.npz', elmo, column=column, say=str)
            assert not list(tmp_path.glob('o.npz*'))
    if name:
        for door in (read_text, text_corpus, read_table, read_tagged):
            with pytest.raises(CorpusError, match=name):
                door(tmp_path/('a.txt' if door in (read_text, text_corpus) else 'a.csv'))
        assert read_text(tmp_path/'a.txt', encoding).lstrip('\ufeff') == text

@pytest.mark.parametrize('name,column', [('a.txt.gz', None), ('a.csv.gz', 'text'), ('a.tsv.gz',
    'text')])
def test_packed_texts_are_embedded_as_unpacked_ones(name, column, saved, tmp_path):
    elmo, sep = Elmo.from_pretrained(saved/'elmo'), '\t' if 'tsv' in name else ','
    text = (f'n{sep}text\n1{sep}the bank\n2{sep}of the river\n' if column else
        'the bank\nof the river\n')
    (tmp_path/name).write_bytes(gzip.compress(text.encode()))
    (tmp_path/name.removesuffix('.gz')).write_text(text)
    for f in (name, name.removesuffix('.gz')):
        assert (embed_file(tmp_path/f, tmp_path/f'{f}.npz', elmo, column=column,
            say=str)['lines'] == 2)
    with np.load(tmp_path/f'{name}.npz') as a, np.load(tmp_path/f'{f}.npz') as b:
        assert all(np.allclose(a[str(i)], b[str(i)], atol=1e-5) for i in range(2))
    assert embed_file(tmp_path/name, tmp_path/'o.npz', elmo,
        say=str)['lines'] == 2, ('the column is found by its name')

@pytest.mark.parametrize('how', ['cut', 'no gzip', 'flipped', 'unnamed', 'bzip2', 'parquet'])
def test_packed_texts_that_are_damaged(how, saved, tmp_path):
    import bz2
    elmo, raw = Elmo.from_pretrained(saved/'elmo'), gzip.compress(b'the bank of the river\n'*5000)
    name, data, says = {'cut': ('a.txt.gz', raw[:len(raw) // 2], "can't be read"), 'no gzip':
        ('a.txt.gz', b'the bank', "can't be read"), 'flipped': ('a.txt.gz', raw[:40] +
        bytes([raw[40] ^ 255]) + raw[41:], "can't be read"), 'unnamed': ('a.txt', raw,
        'packed by gzip.*.gz'), 'bzip2': ('a.txt', bz2.compress(b'the bank'), 'packed by bzip2'),
        'parquet': ('a.parquet.gz', raw, 'parquet.*unpack')}[how]
    (tmp_path/name).write_bytes(data)
    with pytest.raises(CommandError, match=says):
        embed_file(tmp_path/name, tmp_path/'o.npz', elmo, say=str)
    assert not (tmp_path/'o.npz').exists()

if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder: print(contract(Path(folder)))

# one text, its letters written as one character or as two; and tokens that are too long

@cache
def classifier(): return make_classifier()

@cache
def tagger():
    dls = TagDataLoaders.from_sents(BIO_SENTS, device='cpu', bs=8, seed=1)
    return fit(elmo_tagger_learner(dls, make_elmo(), hidden=8, words=8))

def corpus_of(text): return {'train': [f'{text} {i}' for i in range(30)], 'valid': [text]*3}

@cache
def cbow(chars):
    source = corpus_of('the caf\u00e9 of Zo\u00eb is here')
    dls = ElmoDataLoaders.from_corpus(source, kind='cbow', context_size=1, bs=8, device='cpu')
    return cbow_learner(dls, dim=8, chars=chars)

@cache
def speaker():
    vocab = WordVocab.build([word_tokenize('the caf\u00e9 of Zo\u00eb is here')])
    lm = BiLM(CFG, len(vocab)).eval()
    lm.tokenizer = 'words'
    return lm, vocab, ByteCharVocab()

def ids_of(dls):
    return dls.vocab.itos, *[b.tolist() for dl in dls for batch in dl for b in batch]

def of_stream_text(text, folder):
    write(folder/'a.txt', '\n'.join([text]*20))
    return ids_of(stream_loaders(folder/'a.txt', n_valid=2, device='cpu', bs=4, seed=1))

def of_file(text, folder):
    write(folder/'a.txt', text)
    embed_file(folder/'a.txt', folder/'a.parquet', make_elmo(), overwrite=True, say=str)
    table = pd.read_parquet(folder/'a.parquet')
    return table.token, np.stack(table.layer0)

def of_annotated(text, folder):
    write(folder/'a.txt', text)
    classifier().annotate(folder/'a.txt', folder/'a.jsonl', overwrite=True, say=str)
    row = json.loads((folder/'a.jsonl').read_text(encoding='utf-8'))
    return row['label'], row['probability']

def of_labelled(text, folder):
    df = pd.DataFrame(dict(text=[text, 'b']*10, label=['x', 'y']*10))
    dls = ClassifyDataLoaders.from_df(df, device='cpu', bs=4)
    return dls.valid.types.tokens, sorted(map(str, dls.valid.text.ids))

def of_spans(text, folder):
    n = len(text.split()[0])
    df = pd.DataFrame(dict(text=[text]*10, spans=[[(0, n, 'PER')]]*10))
    return [(sent.tokens, sent.tags) for sent in read_tagged(df)[0]]

def spans(text, folder):
    [found] = tagger().tag([text], as_spans=True)
    for span in found: assert text[span['start']:span['end']] == span['text']
    return [(span['label'], unicodedata.normalize('NFC', span['text'])) for span in found]

def perplexities(text, folder):
    dls = ElmoDataLoaders.from_corpus(corpus_of(text), device='cpu')
    return list(baselines(dls.corpus, dls).values())

ON_TEXT = {             # of each door what it makes of a text
    'embed': lambda text, folder: make_elmo().embed([text]),
    'embed_iter': lambda text, folder: list(make_elmo().embed_iter([text])),
    'to_chars': lambda text, folder: make_elmo().to_chars([text]),
    'to_tokens': lambda text, folder: make_elmo().to_tokens([text]),
    'layers': lambda text, folder: make_elmo().layers([text])[0],
    'forward': lambda text, folder: make_elmo()([text])[0],
    'a function': lambda text, folder: make_elmo(tokenizer=str.split).embed([text]),
    'nearest': lambda text, folder: make_elmo().nearest(
        'the caf\u00e9 here', 'caf\u00e9', [text]).cosine,
    'nearest, the word': lambda text, folder: make_elmo().nearest(
        text, *[word for word in text.split() if word[:3] == 'caf'], ['the caf\u00e9 here']).cosine,
    'influence': lambda text, folder: make_elmo().influence(text, text.split()[0]).mix,
    'ElmoVectorizer': lambda text, folder: ElmoVectorizer(make_elmo()).fit_transform([text]),
    'embed_file': of_file,
    'from_corpus': lambda text, folder: ids_of(ElmoDataLoaders.from_corpus(
        corpus_of(text), device='cpu', seed=1, char_vocab=CharVocab.build([['\u00eb\u00e9']]))),
    'test_dl': lambda text, folder: cbow(False).dls.test_dl([text]).one_batch(),
    'stream_loaders': of_stream_text,
    'baselines': perplexities,
    'ElmoTransform': lambda text, folder: ElmoTransform(vocab=speaker()[1])(text),
    'NGramsTokenizer': lambda text, folder: NGramsTokenizer(2)(text),
    'score': lambda text, folder: score(*speaker(), text)[0].fwd,
    'generate': lambda text, folder: generate(*speaker(), text, 2, temperature=0),
    'fill': lambda text, folder: fill(*speaker(), f'{text} ___ {text}').p,
    'CBOW': lambda text, folder: cbow(False).predict(f'{text} ___ {text}')[2],
    'CBOW by letters': lambda text, folder: cbow(True).predict(f'{text} ___ {text}')[2],
    'classifier': lambda text, folder: classifier().predict(text)[2],
    'classifier, training': of_labelled,
    'attention': lambda text, folder: classifier().dls.test_dl([text]).one_batch()[0],
    'annotate': of_annotated,
    'tagger': lambda text, folder: tagger().predict(text)[2],
    'tag': lambda text, folder: tagger().tag([text, text]),
    'tag, as spans': spans,
    'spans, training': of_spans,
}

def equal(a, b):
    if isinstance(a, (list, tuple, dict)): return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, str): return a == b
    return np.shape(a) == np.shape(b) and (np.asarray(a) == np.asarray(b)).all() or np.allclose(
        np.asarray(a), np.asarray(b), atol=1e-5)

@pytest.mark.parametrize('door', ON_TEXT)
def test_a_text_is_the_same_however_its_letters_are_written(door, tmp_path):
    text = 'Zo\u00eb likes the caf\u00e9'
    one, two = [ON_TEXT[door](unicodedata.normalize(form, text), tmp_path)
                for form in ('NFC', 'NFD')]
    with torch.no_grad(): assert equal(one, two)

def test_tokens_and_texts_for_ai2s_models_stay_as_they_are(tmp_path):
    one, two = 'caf\u00e9', 'cafe\u0301'
    elmo = make_elmo(cfg=dict(char_proj=True, norm=False))
    assert not np.allclose(*elmo.embed([[one], [two]]))
    assert make_elmo().to_tokens([[two]]) == [[two]] != make_elmo().to_tokens([two])
    theirs = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'))
    kept = Elmo.from_pretrained(theirs.save_pretrained(tmp_path/'kept'))
    for model in (theirs, kept, Elmo.from_ai2(tmp_path/'ai2', tokenizer=str.split)):
        assert model.to_tokens([two, one]) == [[two], [one]]
        assert np.allclose(model.embed([two])[0], model.embed([[two]])[0], atol=1e-5)
    assert Elmo.from_ai2(tmp_path/'ai2', nfc=True).to_tokens([two]) == [[one]]
    gold = [Sentence([two, 'x'], ['A', 'B'])]
    dls = ElmoDataLoaders.from_corpus(Corpus.from_gold('c', dict(train=gold, valid=gold)))
    assert dls.train.text.notes['tags'] == [['A', 'B']] and one in dls.types.tokens
    dls = TagDataLoaders.from_df(pd.DataFrame(dict(tokens=[f'{two} x']*10, tags=['A B']*10)),
                                 device='cpu', min_freq=1)
    assert two in dls.train.types.tokens

LONG = 'x'*60
TOO_LONG = f'the caf\u00e9 {LONG}1 and {LONG}2'

def told(door, text, folder):
    "How many tokens each warning counts"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        door(text, folder)
    counts = [re.match(r'([\d,]+) tokens? (?:is|are) cut, longer than the 48 bytes', str(w.message))
              for w in found]
    return [int(count[1].replace(',', '')) for count in counts if count]

COUNTED = {              # how often these doors give a text to the model, and are silent otherwise
    'embed_file': [], 'from_corpus': [], 'stream_loaders': [], 'baselines': [], 'to_tokens': [],
    'ElmoTransform': [], 'NGramsTokenizer': [], 'CBOW': [], 'spans, training': [],
    'tag': [4], 'fill': [4], 'CBOW by letters': [4], 'nearest, the word': [2],
    'classifier, training': [20]}

@pytest.mark.parametrize('door', ON_TEXT)
def test_one_warning_counts_the_tokens_that_are_cut(door, tmp_path):
    for prepared in (classifier, tagger, speaker): prepared()
    cbow(False), cbow(True)
    assert told(ON_TEXT[door], TOO_LONG, tmp_path) == COUNTED.get(door, [2])
    assert told(ON_TEXT[door], 'Zo\u00eb likes the caf\u00e9', tmp_path) == []

MORE = {
    'a stream': lambda: list(make_elmo().embed_iter(iter([TOO_LONG]*3000))),
    'a stream that is left early': lambda: next(make_elmo().embed_iter([TOO_LONG]*3000)),
    'nearest in much text': lambda: make_elmo().nearest(
        'the bank', 'the', [f'{TOO_LONG} {i}' for i in range(3000)]),
    'guesses': lambda: guesses(speaker()[0], TOO_LONG.split(), *speaker()[1:]),
    'score in batches': lambda: score(*speaker(), [TOO_LONG]*5, bs=2),
    'words by letters': lambda: word_vectors(cbow(True), [LONG, 'a']),
    'report': lambda: classifier().report([(TOO_LONG, 'pos'), ('the', 'neg')]),
    'tag': lambda: tagger().tag([TOO_LONG]*3000),
}
N_CUT = {'guesses': 2, 'words by letters': 1, 'report': 2, 'score in batches': 10,
         'nearest in much text': 6000, 'a stream': 6000, 'tag': 6000}

@pytest.mark.parametrize('call', MORE)
def test_a_call_warns_once(call, tmp_path):
    found = told(lambda *_: MORE[call](), '', tmp_path)
    assert len(found) == 1 and found[0] == N_CUT.get(call, found[0])

def test_annotate_warns_once_of_all_its_portions(tmp_path):
    write(tmp_path/'a.txt', '\n'.join([TOO_LONG]*4000))
    def door(text, folder): tagger().annotate(folder/'a.txt', folder/'a.jsonl', say=str)
    assert told(door, '', tmp_path) == [8000]

def test_letters_of_an_alphabet_count(tmp_path):
    chars = CharVocab.build([list('abc')], max_chars=6)
    elmo = Elmo(BiLM(BiLMConfig('c', char_dim=4, filters=((1, 4),), proj_dim=4, hidden_dim=4,
                                n_chars=chars.n_chars, max_chars=6), 0, chars))
    with pytest.warns(UserWarning, match='1 token is cut, longer than the 4 bytes .or letters'):
        elmo.embed(['abcab abca'])
