"Blocks for texts, tokens and tags: padding, doors, refusals, fastai's DataBlock"
import json, pickle
import numpy as np, pandas as pd, pytest, torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from fastai.basics import Learner, accuracy, set_seed
from fastai.data.all import (
    CategoryBlock, ColReader, DataBlock, MultiCategoryBlock, RandomSplitter)
from hypothesis import given, strategies as st
from torch import nn

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import Sentence
from elmo_fastai.text.tokenizers import space_tokenize
from elmo_fastai.tokens import ByteCharVocab, WordVocab
from elmo_fastai.blocks import (
    IGNORE, ClassifyDataLoaders, ElmoBlock, TagDataLoaders, TagLoss, TagsBlock, TensorTags,
    TokensTransform, WordsBlock)
from elmo_fastai.classifier import elmo_classifier_learner
from elmo_fastai.tagger import elmo_tagger_learner
from loading import common
from made import bilm, close, quietly

WORDS = 'good bad fine dull'.split()
ROWS = pd.DataFrame([(f'a {word} film , number {i} .', 'yes' if word in ('good', 'fine') else 'no')
                     for i in range(12) for word in WORDS], columns=['text', 'label'])
TAGGED = [Sentence(f'a {word} film {i} .'.split(), ['D', 'A', 'N', 'C', 'P'])
          for i in range(8) for word in WORDS]
CPU = dict(device='cpu')

def classify(data=ROWS, **kwargs): return ClassifyDataLoaders.from_df(data, **CPU, **kwargs)
def tag(data=TAGGED, valid=None, **kwargs):
    return TagDataLoaders.from_sents(data, valid, **CPU, **kwargs)
def texts_of(dls, dl=None):
    dl = dl or dls.train
    return sorted(dl.dataset.decode(dl.create_item(i))[0] for i in range(len(dl.dataset)))

# padding

@given(st.lists(st.lists(st.text('abcé', min_size=1, max_size=60), max_size=6), min_size=1,
                max_size=5))
@common
def test_a_text_is_the_same_in_any_batch(sents):
    dls = classify()
    batch = dls.test_dl(sents, bs=9).one_batch()[0]
    dl = dls.test_dl(sents)
    order = dl.get_idxs()
    for row,i in zip(batch, order):
        chars = torch.from_numpy(ByteCharVocab().encode(sents[i]))
        n = len(sents[i])
        assert torch.equal(row[:n].as_subclass(torch.Tensor), chars)
        assert not row[n:].any() and len(row) == max(1, *map(len, sents))

def test_blank_texts_are_one_row_of_padding():
    assert classify().test_dl(['', '  ']).one_batch()[0].shape == (2, 1, 50)
    chars, words = tag().test_dl(['', []]).one_batch()
    assert chars.shape == (2, 1, 50) and words.shape == (2, 1) and not chars.any()

def test_every_row_is_in_each_epoch():
    dls = classify(bs=7, valid=ROWS[:5])
    wanted = sorted(dls.char_vocab.decode(chars)[1:] for chars,_ in dls.train_ds)
    for _ in range(2):
        found = [dls.char_vocab.decode(chars[chars[:, 0] != 0])[1:] for x,_ in dls.train
                 for chars in x]
        assert sorted(found) == wanted

def test_parts_that_do_not_belong_together():
    block = DataBlock((ElmoBlock(), TagsBlock()), get_x=ColReader('text'), get_y=ColReader('tags'),
                      splitter=RandomSplitter(seed=0))
    df = pd.DataFrame(dict(text=["it isn't good"]*9, tags=[['A', 'B', 'C']]*9))
    with pytest.raises(CorpusError, match='4 and 3 rows'): block.dataloaders(df, bs=3).one_batch()

# doors

FEATURES = Features(dict(text=Value('string'), label=ClassLabel(names=['no', 'yes'])))
def numbered(df): return Dataset.from_dict(
    dict(text=list(df.text), label=[int(label == 'yes') for label in df.label]), FEATURES)
def as_csv(path): ROWS.to_csv(path/'r.csv', index=False); return path/'r.csv'
def as_jsonl(path):
    ROWS.to_json(path/'r.jsonl', orient='records', lines=True)
    return path/'r.jsonl'
def as_parquet(path): ROWS.to_parquet(path/'r.parquet'); return path/'r.parquet'
def as_folder(path):
    for name,part in dict(train=ROWS[:40], valid=ROWS[40:], test=ROWS[:2]).items():
        part.to_csv(path/f'{name}.csv', index=False)
    return path

@pytest.mark.parametrize('make', [
    as_csv, as_jsonl, as_parquet, as_folder, lambda path: ROWS, lambda path: numbered(ROWS),
    lambda path: DatasetDict(train=numbered(ROWS[:40]), validation=numbered(ROWS[40:])),
    lambda path: dict(train=ROWS[:40], dev=ROWS[40:], test=ROWS[:2])])
def test_doors_of_texts(tmp_path, make):
    dls = ClassifyDataLoaders.from_files(make(tmp_path), valid_pct=8/48, **CPU)
    assert (len(dls.train_ds), len(dls.valid_ds)) == (40, 8) and list(dls.vocab) == ['no', 'yes']
    assert sorted(texts_of(dls) + texts_of(dls, dls.valid)) == sorted(ROWS.text.map(
        lambda text: ' '.join(TokensTransform()(text))))
    assert 'train 40' in repr(dls) and 'valid 8' in repr(dls)

TOKENS = ['Zs.', "didn't", 'New York', 'a\u0301']
@pytest.mark.parametrize('make', [
    lambda tokens: pd.DataFrame(dict(tokens=[tokens]*4, label=list('abab'))),
    lambda tokens: pd.DataFrame([(tokens, 'a'), (tokens, 'b')]*2, columns=['text', 'label']),
    lambda tokens: pd.DataFrame([(tuple(tokens), 'a'), (np.array(tokens), 'b')]*2,
                                columns=['text', 'label']),
    lambda tokens: Dataset.from_dict(dict(tokens=[tokens]*4, label=list('abab'))),
    lambda tokens: [(tokens, label) for label in 'abab'],
    lambda tokens: [dict(tokens=tokens, label=label) for label in 'abab']])
def test_token_lists_stay_as_they_are(make, tmp_path):
    dls = classify(make(TOKENS), valid_pct=.5)
    assert dls.char_vocab.decode(dls.train.create_item(0)[0]) == TOKENS
    assert dls.char_vocab.decode(dls.test_dl([TOKENS]).create_item(0)[0]) == TOKENS

def test_token_lists_of_a_file(tmp_path):
    rows = [dict(tokens=TOKENS, label='ab'[i % 2], tags=['X', 'Y']*2) for i in range(4)]
    (tmp_path/'t.jsonl').write_text('\n'.join(map(json.dumps, rows)), encoding='utf-8')
    for dls in (classify(tmp_path/'t.jsonl', valid_pct=.5), tag(tmp_path/'t.jsonl', valid_pct=.5)):
        assert dls.char_vocab.decode(dls.train.create_item(0)[0]) == TOKENS

def conll(path, sents=TAGGED):
    path.write_text('\n'.join('\n'.join(map(' '.join, zip(s.tokens, s.tags))) + '\n' for s in sents))
    return path

def test_doors_of_tags(tmp_path):
    path = conll(tmp_path/'t.conll')
    rows = pd.DataFrame([(s.tokens, s.tags) for s in TAGGED], columns=['words', 'pos'])
    names = Features(dict(tokens=Sequence(Value('string')),
                          tags=Sequence(ClassLabel(names=list('DANCP')))))
    data = Dataset.from_dict(dict(tokens=list(rows.words), tags=[list(range(5))]*len(rows)), names)
    pairs = [(s.tokens, s.tags) for s in TAGGED]
    for dls in (tag(), tag(path, token_col=0, tag_col=1), tag(pairs), tag(TAGGED, pairs[:4]),
                tag(rows, token_col='words', tag_col='pos'), tag(data), tag(dict(train=TAGGED, valid=TAGGED[:4])), tag(TAGGED, TAGGED[:4])):
        assert list(dls.vocab[1]) == sorted('DANCP') and isinstance(dls.vocab[0], WordVocab)
        x, w, y = dls.one_batch()
        assert x.shape == (*w.shape, 50) and w.shape == y.shape and type(y) is TensorTags
    for some in (TAGGED[:3], pairs[:3], rows[:3].set_axis(['tokens', 'tags'], axis=1)):
        assert tag().test_dl(some, with_labels=True).one_batch()[2].shape == (3, 5)
    some = [*map(tuple, ROWS[:3].values)]
    assert classify().test_dl(some, with_labels=True).one_batch()[1].shape == (3,)
    assert len(classify([*map(tuple, ROWS.values)], valid=some).valid_ds) == 3

def test_rows_that_validate():
    held = ROWS.assign(is_valid=['dull' in text for text in ROWS.text])
    dls = classify(held)
    assert len(dls.valid_ds) == 12 and all('dull' in text for text in texts_of(dls, dls.valid))
    share = classify(valid_pct=.25, seed=1)
    labels = [str(share.vocab[y]) for _,y in share.valid_ds]
    assert labels.count('yes') == labels.count('no') == 6, 'of each class in proportion'
    assert texts_of(share, share.valid) == texts_of(None, classify(valid_pct=.25, seed=1).valid)
    other = ROWS.assign(group='a', split='test', document_type=3)
    assert len(classify(other).valid_ds) == 5, 'no other name decides'

def test_several_labels():
    df = ROWS.assign(label=['a;b', 'b', '', 'a']*12)
    delim = classify(df, label_delim=';')
    flags = ROWS.assign(funny=[1, 0, 1, 0]*12, sad=['0', '1', 'true', 'False']*12)
    columns = classify(flags, label_col=['funny', 'sad'])
    assert list(delim.vocab) == ['a', 'b'] and list(columns.vocab) == ['funny', 'sad']
    assert delim.c == columns.c == 2
    one = classify(flags, label_col=['sad'])
    assert one.one_batch()[1].shape[1] == 1
    for dls in (delim, columns):
        y = torch.cat([y for _,y in dls.train])
        assert y.shape == (43, 2) and set(y.unique().tolist()) == {0., 1.}
    assert [list(label) for _,label in map(columns.train_ds.decode, columns.train_ds)][:3] != []
    listed = classify(ROWS.assign(label="['a', 'b']"), valid=ROWS.assign(label="['a', 'b']"))
    assert list(listed.vocab) == ["['a', 'b']"], 'a printed list is a text'

def test_classes_that_are_named():
    dls = classify(vocab=['yes', 'no', 'perhaps'])
    assert list(dls.vocab) == ['yes', 'no', 'perhaps'] and dls.c == 3
    assert list(tag(vocab=['P', 'D', 'A', 'N', 'C', 'X']).vocab[1]) == list('PDANCX')
    valid = pd.DataFrame(dict(text=['so so'], label=['perhaps']))
    assert classify(valid=valid, vocab=['yes', 'no', 'perhaps']).valid.one_batch()[1].item() == 2

NEW = pd.DataFrame(dict(text=['x'], label=['perhaps']))
UNTAGGED = Sentence(['a', 'film'], ['D', None])
@pytest.mark.parametrize('make, says', [
    (lambda: classify(valid=NEW), r"Label 'perhaps'.*vocab=\[…\]"),
    (lambda: classify().test_dl(NEW, with_labels=True), r"Label 'perhaps'.*vocab=\[…\]"),
    (lambda: classify(ROWS.assign(label='a;b'), valid=ROWS.assign(label='c'), label_delim=';'),
     r"Labels 'c'.*vocab=\[…\]"),
    (lambda: classify(vocab=['yes']), r"Label 'no'.*vocab"),
    (lambda: tag(TAGGED, [Sentence(['x'], ['Q'])]), r"Tags 'Q'.*vocab=\[…\]"),
    (lambda: tag().test_dl([Sentence(['x'], ['Q'])], with_labels=True), r"Tags 'Q'.*vocab"),
    (lambda: tag([Sentence(['x'], ['Q', 'R'])]), 'row 0 has 1 tokens and 2 tags'),
    (lambda: tag([Sentence(['x'])]), 'expected a list of tokens and a list of tags'),
    (lambda: tag([Sentence(['x'], [None])]), "row 0 has 1 tokens and 1 tags.*isn't None"),
    (lambda: tag(ROWS), "there is no column 'tokens'.*token_col"),
    (lambda: tag(pd.DataFrame(dict(tokens=[['a']], tags=[['X']])), token_col='words'),
     "no column 'words'"),
    (lambda: classify(valid=ROWS.rename(columns=dict(text='body'))), "no column 'text'.*'body'"),
    (lambda: classify(text_col='body'), "no column 'body'.*'text', 'label'"),
    (lambda: classify(ROWS.rename(columns=dict(label='y'))), "no column 'label'"),
    (lambda: classify(ROWS.assign(review='x')), "'text' and 'review' are columns: say text_col"),
    (lambda: classify(ROWS.assign(label=None)), "no 'label': leave such rows out"),
    (lambda: classify(ROWS.assign(label='')), "no 'label': leave such rows out"),
    (lambda: classify(ROWS.assign(text=3)), "column 'text', row 0: 3 is no text"),
    (lambda: classify(ROWS.assign(text=[[1, 2]]*len(ROWS))), r"row 0: \[1, 2\] is no text"),
    (lambda: classify(ROWS.assign(funny='perhaps', sad=1), label_col=['funny', 'sad']),
     "'funny' holds 'perhaps': write 0 or 1"),
    (lambda: classify(ROWS[:1]), 'say with valid=… or a column is_valid'),
    (lambda: classify().test_dl('a text'), 'no file or folder'),
    (lambda: classify().test_dl([]), 'nothing to read'),
    (lambda: classify().test_dl(ROWS[:0]), 'nothing to read'),
    (lambda: classify().test_dl(list(ROWS.text), with_labels=True), r'item 0 .*a pair \(text, label\)'),
    (lambda: classify(list(ROWS.text)), r'item 0 .*a pair \(text, label\)'),
    (lambda: tag([['a', 'b']]*9), r'item 0 .*a pair \(tokens, tags\)'),
    (lambda: classify(valid=ROWS[:0]), 'valid has no rows'),
    (lambda: classify(valid=ROWS[['text']]), "no column 'label'"),
    (lambda: tag(valid=pd.DataFrame(dict(tokens=[['a']]))), "no column 'tags'.*tag_col"),
    (lambda: classify(label_col=['label', 'sad']), "no column 'sad'.*label_col"),
    (lambda: classify(ROWS.assign(label=[['a'], ['b']]*24)), r"several of a text.*label_delim=';'"),
    (lambda: classify(ROWS.assign(label=1), label_delim=';'), '1 is no text, and label_delim'),
    (lambda: classify().test_dl(ROWS.rename(columns=dict(text='x'))),
     "no column 'text'.*'x', 'label'")])
def test_what_is_refused(make, says):
    with pytest.raises(CorpusError, match=says): make()

# files: each door, and what it makes of each kind of bad input

def write(path, text, encoding='utf-8'):
    path.write_bytes(text.encode(encoding))
    return path

def reviews(path, *lines, header='text,label', **kwargs):
    rows = [f'a {word} film {i},{label}' for i in range(6) for word,label in (('good', 'yes'), ('bad', 'no'))]
    return write(path, '\n'.join([header, *rows, *lines]) + '\n', **kwargs)

def sentences(path, *lines, **kwargs):
    rows = ['Ann B-PER', 'saw O', 'Rome B-LOC', '', 'it O', 'rains O', '']*6
    return write(path, '\n'.join([*rows, *lines]) + '\n', **kwargs)

def folder(path, name, text):
    (path/'f').mkdir()
    write(path/'f'/name, text)
    return path/'f'

NEW_CLASS = r"'new'.*name all classes when the loaders are made, vocab=\[…\]"
TEXTS = {               # what → (makes the file, words of the line; None: it is read)
    'right': (lambda d: reviews(d/'a.csv'), None),
    'a wrong column': (lambda d: reviews(d/'a.csv', header='text,stars'),
                       "no column 'label'.*'text', 'stars'"),
    'a ragged row': (lambda d: reviews(d/'a.csv', 'so, so,yes'),
                     'a.csv, line 14: the header has 2 cells, and this row 3'),
    'Latin-1': (lambda d: reviews(d/'a.csv', 'café,yes', encoding='latin-1'),
                'a.csv is not UTF-8: its byte [0-9]+ is 0xe9'),
    'an empty file': (lambda d: write(d/'a.csv', ''), 'a.csv has no rows'),
    'a header alone': (lambda d: write(d/'a.csv', 'text,label\n'), 'a.csv has no rows'),
    'an empty folder': (lambda d: folder(d, 'notes.docx', ''), 'must have files of one kind'),
    'HTML': (lambda d: write(d/'a.html', '<html>'), "a.html can't be read.*pass the DataFrame"),
    'HTML in a table': (lambda d: write(d/'a.csv', '<!DOCTYPE html>\n<p>a</p>\n'), 'is HTML'),
    'a file that is not there': (lambda d: d/'none.csv', 'no file or folder'),
    'a row without text': (lambda d: reviews(d/'a.csv', ',yes'), '^row 12 has no text'),
    'a row without a token': (lambda d: reviews(d/'a.csv', '\u200b ,yes'), '^row 12 has no text'),
    'a row without a label': (lambda d: reviews(d/'a.csv', 'a film,'), "no 'label'"),
    'a class that training lacks': (lambda d: reviews(d/'a.csv', *['film,new']*20), NEW_CLASS)}
TAGS = {
    'right': (lambda d: sentences(d/'a.conll'), None),
    'a wrong column': (lambda d: write(d/'a.conll', 'Ann\nsaw\n\n'*9), 'has no column 1'),
    'a ragged row': (lambda d: sentences(d/'a.conll', 'Ann B-PER', 'Ann'), 'line 44: expected 2 cells'),
    'Latin-1': (lambda d: sentences(d/'a.conll', 'café O', encoding='latin-1'),
                'a.conll is not UTF-8: its byte [0-9]+ is 0xe9'),
    'an empty file': (lambda d: write(d/'a.conll', ''), 'a.conll has no sentence'),
    'an empty folder': (lambda d: folder(d, 'notes.docx', ''), 'must have files of one kind'),
    'HTML': (lambda d: write(d/'a.html', '<html>'), "a.html can't be read"),
    'a file that is not there': (lambda d: d/'none.conll', 'no file or folder'),
    'a text': (lambda d: write(d/'a.txt', 'a text\n'*9), 'no column'),
    'a sentence without tags': (lambda d: sentences(d/'a.conll', 'Ann _', 'saw _'),
                                "^row 12 has 2 tokens and 2 tags.*isn't None"),
    'a row without text': (lambda d: write(d/'a.jsonl', '{"tokens": ["Ann"], "tags": ["O"]}\n'*9 +
                                           '{"tokens": [], "tags": []}\n'),
                           '^row 9 has 0 tokens and 0 tags'),
    'tags that are too few': (lambda d: write(d/'a.jsonl', '{"tokens": ["Ann"], "tags": ["O"]}\n'*9 +
                                              '{"tokens": ["a", "b"], "tags": ["O"]}\n'),
                              '^row 9 has 2 tokens and 1 tags'),
    'a class that training lacks': (lambda d: sentences(d/'a.conll', 'a new'), NEW_CLASS)}

@pytest.fixture(scope='module')
def learners():
    sents = [Sentence(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC'])]*8
    return (elmo_classifier_learner(classify(), bilm(n_words=0), proj_dim=8, hidden=4),
            elmo_tagger_learner(tag(sents), bilm(n_words=0), hidden=4))

def cols(path): return dict(token_col=0, tag_col=1) if path.suffix == '.conll' else {}
SENTS = [Sentence(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC'])]*9
DOORS = {
    'from_files': (TEXTS, lambda source, c, t: ClassifyDataLoaders.from_files(source, **CPU)),
    'valid': (TEXTS, lambda source, c, t: classify(valid=source)),
    'test_dl': (TEXTS, lambda source, c, t: c.dls.test_dl(source, with_labels=True)),
    'report': (TEXTS, lambda source, c, t: c.report(source)),
    'from_files, tags': (TAGS, lambda source, c, t: TagDataLoaders.from_files(source, **cols(source), **CPU)),
    'valid, tags': (TAGS, lambda source, c, t: tag(SENTS, source, **cols(source))),
    'test_dl, tags': (TAGS, lambda source, c, t: t.dls.test_dl(source, with_labels=True, **cols(source))),
    'report, tags': (TAGS, lambda source, c, t: t.report(source, **cols(source)))}

@pytest.mark.parametrize('door,what', [
    (door, what) for door,(table, _) in DOORS.items() for what in table])
def test_files_at_each_door(door, what, tmp_path, learners):
    table, opened = DOORS[door]
    make, says = table[what]
    source = make(tmp_path)
    if what == 'a class that training lacks' and door.startswith('from_files'): says = None
    if says is None:
        opened(source, *learners)
        return
    with pytest.raises(CorpusError, match=says) as e: opened(source, *learners)
    assert '\n' not in str(e.value)

@pytest.mark.parametrize('make', [classify, tag])
def test_what_is_called_test_never_validates(make, tmp_path):
    data = ROWS if make is classify else [(s.tokens, s.tags) for s in TAGGED]
    pd.DataFrame(data, columns=['text', 'label'] if make is classify else ['tokens', 'tags']).to_json(
        tmp_path/'test.jsonl', orient='records', lines=True)
    with pytest.raises(CorpusError, match='what is called test never validates'):
        make(valid=tmp_path/'test.jsonl')
    train = ROWS if make is classify else TAGGED
    assert 4 <= len(make(dict(train=train, test=train[:2])).valid_ds) <= 5, 'but a share does'

def test_no_other_column_decides(tmp_path):
    "Neither what is held out, nor where a sentence ends, nor what is a word"
    names = dict(group=['treated', 'control']*24, sent_at=range(48), doc_id=3, year='1997', split='test')
    ROWS.assign(**names).to_csv(tmp_path/'a.csv', index=False)
    dls = classify(tmp_path/'a.csv')
    assert (len(dls.train_ds), len(dls.valid_ds)) == (43, 5) and list(dls.vocab) == ['no', 'yes']
    table = pd.DataFrame(dict(tokens=[s.tokens for s in TAGGED], tags=[s.tags for s in TAGGED]))
    dls = tag(table.assign(sent_at=1, group='a', sentence=0))
    assert (len(dls.train_ds), len(dls.valid_ds)) == (28, 4)
    write(tmp_path/'a.conll', 'B-LOC 1997 Rome\nO 1998 is\n\n'*9)
    dls = tag(tmp_path/'a.conll', token_col=2, tag_col=0)
    assert dls.char_vocab.decode(dls.train_ds[0][0]) == ['Rome', 'is']
    assert list(dls.vocab[1]) == ['B-LOC', 'O']
    with pytest.raises(CorpusError, match=r"token_col=….*0 = 'B-LOC', 1 = '1997', 2 = 'Rome'"):
        tag(tmp_path/'a.conll')

def test_arguments_that_there_are_not():
    for make in (lambda: classify(label_names=['a']), lambda: classify(kind='number'),
                 lambda: tag(labels=['a'])):
        with pytest.raises(TypeError, match='unexpected keyword'): make()
    with pytest.raises(ValueError, match='one word at least'): classify(max_words=0)

# fastai

class Mean(nn.Module):
    "A network of a user's own"
    def __init__(self, n):
        super().__init__()
        self.letters = nn.EmbeddingBag(262, 8, mode='mean', padding_idx=0)
        self.out = nn.Linear(8, n)
    def forward(self, chars): return self.out(self.letters(chars.flatten(1).long()))

def test_a_data_block_of_ones_own():
    set_seed(0)
    block = DataBlock((ElmoBlock(space_tokenize), CategoryBlock), get_x=ColReader('text'),
                      get_y=ColReader('label'), splitter=RandomSplitter(.2, seed=0))
    dls = block.dataloaders(ROWS, bs=8, device='cpu')
    own = Learner(dls, Mean(dls.c), metrics=accuracy)
    ours = elmo_classifier_learner(dls, bilm(n_words=0), proj_dim=16, hidden=8, words=8, dropout=0.)
    for learn in (own, ours):
        quietly(learn, learn.fit, 4, 2e-2)
        label, number, p = quietly(learn, learn.predict, 'a good film .')
        assert str(dls.vocab[number]) == label and p.shape == (2,)
    assert ours.report().n == 9 and ours.report(ROWS[:10]).n == 10
    block = DataBlock((ElmoBlock, MultiCategoryBlock), splitter=RandomSplitter(seed=0),
                      get_x=ColReader('text'), get_y=ColReader('label', label_delim='e'))
    several = block.dataloaders(ROWS, bs=8, device='cpu')
    learn = elmo_classifier_learner(several, bilm(n_words=0))
    quietly(learn, learn.fit, 1)
    assert learn.metrics[0].name == 'accuracy_multi'
    assert several.one_batch()[1].shape == (8, several.c)

def test_tags_in_a_data_block_of_ones_own():
    df = pd.DataFrame([(s.tokens, s.tags) for s in TAGGED], columns=['tokens', 'tags'])
    def loaders(*words): return DataBlock(
        (ElmoBlock(), *words, TagsBlock()), n_inp=1 + len(words),
        get_x=[ColReader('tokens')]*(1 + len(words)), get_y=ColReader('tags'), splitter=RandomSplitter(seed=0)).dataloaders(df, bs=8, device='cpu')
    plain, both = loaders(), loaders(WordsBlock())
    with pytest.raises(ValueError, match='words=0, or put a WordsBlock'):
        elmo_tagger_learner(plain, bilm(n_words=0))
    for dls,words in ((plain, 0), (both, 8)):
        learn = elmo_tagger_learner(dls, bilm(n_words=0), words=words, hidden=8)
        quietly(learn, learn.fit, 1)
        assert len(learn.tag(['a good film'])[0]) == 3 and learn.report(df[:5]).n == 5
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(50, 5)
        def forward(self, chars): return self.out(chars.float())
    own = Learner(plain, Own())
    assert isinstance(own.loss_func, TagLoss)
    quietly(own, own.fit, 1, 1e-3)
    assert np.isfinite(own.recorder.values[0]).all()

def test_a_loss_that_leaves_padding_out():
    pred, y = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    y[0, 2:] = y[1, 4:] = IGNORE
    each = [nn.functional.cross_entropy(p[t >= 0], t[t >= 0], reduction='none')
            for p,t in zip(pred, y)]
    loss = TagLoss()
    assert close(loss(pred, y), torch.cat(each).mean())
    loss.reduction = 'none'
    assert close(loss(pred, y), torch.stack([losses.mean() for losses in each]))

def test_random_steps_stay_random():
    "Samples are kept; what is an item transform is applied anew"
    calls = []
    def count(x): calls.append(0); return x
    block = DataBlock((ElmoBlock(), CategoryBlock), get_x=ColReader('text'), item_tfms=count,
                      get_y=ColReader('label'), splitter=RandomSplitter(seed=0))
    dls = block.dataloaders(ROWS, bs=8, device='cpu')
    before = len(calls)
    for _ in dls.train: pass
    assert len(calls) > before

@pytest.mark.parametrize('make', [classify, tag])
def test_what_is_kept_is_what_was_made(make):
    dls = make()
    for i in range(len(dls.train_ds)):
        for was,now in zip(dls.train_ds[i], dls.train.create_item(i), strict=True):
            assert type(was) is type(now) and was.dtype == now.dtype and torch.equal(was, now)
    assert {*dls.train_ds.samples.kept} >= {*range(len(dls.train_ds))}

@pytest.mark.parametrize('make', [classify, tag])
def test_an_epoch_begins_later(make):
    "At a batch that `skip` names, in the order of the loader's own generator"
    dl = make(bs=4).train
    assert dl.shuffle
    state = dl.rng.getstate()
    def epoch(n):
        dl.rng.setstate(state)
        dl.skip(n)
        return list(dl)
    whole = epoch(0)
    np.random.seed(7)                 # which has no say
    for n in (0, 1, len(whole) - 1, len(whole)):
        rest = epoch(n)
        assert len(rest) == len(whole) - n
        for a,b in zip(whole[n:], rest): assert all(map(torch.equal, a, b))
    assert len(list(dl)) == len(whole)

def test_shown_and_empty_and_pickled(capsys):
    for dls in (classify(), tag()):
        dls.show_batch(max_n=2)
        assert 'film' in capsys.readouterr().out
        again = pickle.loads(pickle.dumps(dls))
        assert all(torch.equal(a, b) for a,b in zip(again.valid.one_batch(), dls.valid.one_batch()))
        empty = dls.new_empty()
        assert len(empty.train_ds) == 0 and type(empty) is type(dls)
        data = pickle.dumps(empty)
        assert b'number' not in data and b'PosixPath' in data       # fastai's `path`, see `export`
        films = [loaders.test_dl(['a film']).one_batch()[0] for loaders in (empty, dls)]
        assert torch.equal(*films)


@pytest.mark.parametrize('kwargs', [dict(tag_col='xpos'), dict(tag_col=3), dict(token_col='form')])
def test_a_column_that_is_not_there_has_no_stand_in(kwargs):
    df = pd.DataFrame(dict(tokens=[['a', 'b']]*20, tags=[['X', 'Y']]*20))
    with pytest.raises(CorpusError, match='there is no column .* the columns are .tokens., .tags.'): tag(df, **kwargs)

@pytest.mark.parametrize('labels,says', [
    ([True, 1], 'labels are of several types'), ([1, 'a'], 'labels are of several types'),
    ([1.5, 2.5], 'is a number, and no class.*Ridge'), (['a', None], "row 1: no 'label'"),
    (['a', float('nan')], "row 1: no 'label'"), ([['a'], ['b']], 'several of a text stand in one cell')])
def test_labels_that_are_no_classes(labels, says):
    with pytest.raises(CorpusError, match=says):
        classify(pd.DataFrame(dict(text=['a b', 'b c']*10, label=pd.Series(labels*10, dtype=object))))

def test_a_label_has_no_blanks_at_its_ends():
    assert list(classify(pd.DataFrame(dict(text=['a', 'b', 'c', 'd']*5, label=['x ', 'x', ' y', 'y']*5))).vocab) == ['x', 'y']

@pytest.mark.parametrize('tag_,says', [('', "the tag ''"), (float('nan'), 'the tag nan'), (['q'], r"the tag \['q'\]"),
                                       (1, 'tags are of several types'), (pd.NA, 'the tag <NA>')])
def test_tags_that_are_none(tag_, says):
    with pytest.raises(CorpusError, match=says): tag([(['a', 'b', 'c'], ['X', tag_, 'Y'])]*20)

def test_pairs_have_labels():
    pairs = [('the film was good', 'pos'), ('it was bad', 'neg')]*10
    dls = classify(pairs)
    assert list(dls.vocab) == ['neg', 'pos'] and len(classify(tuple(pairs)).train_ds) == len(dls.train_ds)
    with pytest.raises(CorpusError, match='item 0 of the list'): dls.test_dl(pairs[:2])
    assert len(dls.test_dl(pairs[:2], with_labels=True).dataset) == 2

def test_a_report_without_labels(learners):
    for learn in learners:
        with pytest.raises(CorpusError, match='no labels or tags'): learn.report(learn.dls.test_dl(['a b']))
