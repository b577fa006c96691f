"""Tagged text, its loaders, the tagger: files by strangers, guarantees of masks and cache, and
fastai's own tools on it"""

import math, pickle, re, warnings
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from fastai.basics import load_learner
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.torch_core import set_seed

from elmo_fastai.base.errors import CorpusError, ModelFileError
from elmo_fastai.text.corpora import Corpus, Sentence, local_folder, read_conll, toy_corpus
from elmo_fastai.text.tokens import word_tokenize
from elmo_fastai.text.treebanks import read_treebank
from elmo_fastai.text.tokens import ByteCharVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.data.tagged import IGNORE, TagDataLoaders, read_tagged
from elmo_fastai.tasks.cbow import WordVectors, interval
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.tasks.scores import are_spans, span_scores
import elmo_fastai.tasks.tag as tagger
from elmo_fastai.tasks.tag import (
    SpanF1, TagLoss, Tagger, TaskLSTM, TokenMean, WordTable, elmo_tagger_learner, is_right)
from pages import page

study = page('studies/learning_curves')
CommonestTag = page('library/tagged').CommonestTag

EWT = local_folder('ud-ewt')
CFG = BiLMConfig(
    'nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=8, hidden_dim=12, dropout=0.3
)


def bilm(seed=0):
    set_seed(seed)
    lm = BiLM(CFG, 0)
    lm.chars.norm.running_mean.normal_()
    lm.chars.norm.running_var.uniform_(0.5, 2.0)
    lm.chars.norm.steps += 5
    return lm.eval()

def test_arguments_and_labels_that_are_none():
    sents = [(['a', 'b'], [0, 1])]*8
    with pytest.raises(TypeError, match='max_tokns'): TagDataLoaders.from_sents(sents, max_tokns=9)
    d = TagDataLoaders.from_sents(sents, labels=[0, 1], device='cpu')
    assert list(d.labels) == ['0', '1']
    with pytest.raises(CorpusError, match=r'sentence 0: expected \(tokens, tags\)'):
        d.test_dl(['a text'], with_labels=True)


@pytest.fixture(scope='module')
def lm(): return bilm()
@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=60, n_test=1, n_unseen=20)
@pytest.fixture()
def dls(corpus): return TagDataLoaders.from_corpus(corpus, seed=1, device='cpu', bs=16, valid_bs=16)
def fit(learn, epochs=1, lr=5e-3):
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, lr)
    return learn
def quiet(learn, f, *args, **kw):
    with learn.no_bar(), learn.no_logging(): return f(*args, **kw)
def write(folder, name, text, encoding='utf-8'):
    f = folder/name
    f.write_bytes(text.encode(encoding))
    return f

# CoNLL

def row(i, form, tag, xpos='X'):
    return '\t'.join([str(i), form, form, tag, xpos, '_', '0', 'root', '_', '_'])


GOOD = '\n'.join(['# sent_id = 1', '# text = Can\'t stop', row('1-2', "Can't", '_'),
                  row(1, 'Ca', 'AUX', 'MD'), row(2, "n't", 'PART', 'RB'),
                  row(3, 'stop', 'VERB', 'VB'), row('3.1', 'it', 'PRON'), '', '', '# sent_id = 2',
                  row(1, '#', 'SYM'), row(2, '1 000', 'NUM'), ''])


@pytest.mark.parametrize('ending', ['\n', '\r\n', '\r'])
@pytest.mark.parametrize('bom', ['', '\ufeff'])
def test_conllu(tmp_path, ending, bom):
    a, b = read_conll(write(tmp_path, 'a.conllu', bom + GOOD.replace('\n', ending)))
    assert (a.tokens, a.tags) == (['Ca', "n't", 'stop'], ['AUX', 'PART', 'VERB'])
    assert (b.tokens, b.tags) == (['#', '1\u00a0000'], ['SYM', 'NUM'])
    # by its look
    assert read_conll(write(tmp_path, 'b.txt', GOOD), 'xpos')[0].tags == ['MD', 'RB', 'VB']

def test_conllu_words_that_are_not_annotated(tmp_path, lm):
    (s,) = read_conll(write(tmp_path, 'a.conllu',
                            '\n'.join([row(1, 'a', '_'), row(2, 'b', 'X'), row(3, 'c', 'Y')])))
    assert s.tags == [None, 'X', 'Y']
    dls = TagDataLoaders.from_sents([s]*8, [s], device='cpu')
    assert dls.valid.one_batch()[-1].tolist() == [[IGNORE, 0, 1]]

@pytest.mark.parametrize('text,says', [
    (GOOD.replace('\tAUX', ''), 'line 4: expected 10 columns, and found 9'),
    (GOOD.replace('\t', ' '), 'line 3: expected 10 columns, and found 1'),
    (GOOD.replace('\n3\t', '\n4\t'), "line 6: expected word 3 of the sentence, and found '4'"),
    (GOOD.replace('\n\n\n# sent_id = 2', ''), "expected word 4 of the sentence, and found '1'"),
    (GOOD.replace('\n3\t', '\nx\t'), "found 'x'"),
    ('# only a comment\n', 'has no sentence'),
    ('', 'has no sentence'),
    ('\n\n \n', 'has no sentence')])
def test_conllu_errors_name_file_and_line(tmp_path, text, says):
    f = write(tmp_path, 'bad.conllu', text)
    with pytest.raises(CorpusError) as e:
        read_conll(f)
    assert says in str(e.value) and 'bad.conllu' in str(e.value)


def test_an_unknown_column_of_conllu(tmp_path):
    with pytest.raises(CorpusError, match="no column 'pos' among 'id', 'form'"):
        read_conll(write(tmp_path, 'a.conllu', GOOD), 'pos')


COLUMNS = '-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n# NN B-NP O\n\nPeter NNP B-NP B-PER\n'


def test_columns(tmp_path):
    f = write(tmp_path, 'eng.train', COLUMNS)
    a, b = read_conll(f)
    assert (a.tokens, a.tags) == (['EU', 'rejects', '#'], ['B-ORG', 'O', 'O']) and b.tags == [
        'B-PER']
    assert read_conll(f, 1)[0].tags == ['NNP', 'VBZ', 'NN'] and read_conll(f, -2)[1].tags == [
        'B-NP']
    assert read_conll(write(tmp_path, 'a.tsv', 'New York\tB\nis\tO\n'))[0].tokens == [
        'New\u00a0York', 'is']


@pytest.mark.parametrize('text', [
    '# id 12\n#GoT NN B\nis VB O\n\n# id 13\na DT O\n',
    '# id 12\n# source = x\n#GoT NN\nis VB\n\n# newdoc\na DT\n',
    '# id 12\tdomain=en\n#GoT _ _ NN\nis _ _ VB\n\n# id 13\tdomain=en\na _ _ DT\n',
    '# id 12\tx\n#GoT\tNN\nis\tVB\n\n# text = a\na\tDT\n',
    '\n# text a b\n#GoT NN B\nis VB O\n\n\n# id 13\na DT O'])
def test_comments_of_column_files_are_no_tokens(tmp_path, text):
    assert [s.tokens for s in read_conll(write(tmp_path, 'a.txt', text))] == [['#GoT', 'is'], ['a']]


@pytest.mark.parametrize('text', [
    '# SYM\nGoT NN\n\n# 1\n# 2\n', '#\tSYM\nGoT\tNN\n\n#\t1\n#\t2\n',
    '# # O\nGoT NN B\n\n# SYM O\n# SYM O\n'])
def test_the_token_of_one_sign_stays_a_token(tmp_path, text):
    assert [s.tokens for s in read_conll(write(tmp_path, 'a.txt', text))] == [['#', 'GoT'], [
        '#', '#']]


@pytest.mark.parametrize('text,col,says', [
    ('a X\nb\n', None, "line 2: expected 2 columns, and found 1: ['b']"),
    ('a X\n\nb Y Z\n', None, 'line 3: expected 2 columns, and found 3'),
    ('a\tX\nb\t\n', None, 'line 2'),
    ('a\nb\n', None, 'line 1: expected a token and its tag'),
    ('a X\n', 3, 'there is no column number 3: there are 2'),
    ('a X\n', 'upos', 'name the right one, as in tag_col=1')])
def test_columns_errors_name_file_and_line(tmp_path, text, col, says):
    with pytest.raises(CorpusError) as e:
        read_conll(write(tmp_path, 'bad.txt', text), col)
    assert says in str(e.value)


words = st.text(st.characters(blacklist_categories=('C', 'Z')), min_size=1, max_size=6).filter(
    lambda o: o != '-DOCSTART-' and o.split() == [o])
sentences = st.lists(
    st.lists(st.tuples(words, st.sampled_from(['NOUN', 'VERB', 'X'])), min_size=1, max_size=5),
    min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(sentences)
def test_what_is_written_is_read(tmp_path_factory, sents):
    folder = tmp_path_factory.mktemp('conll')
    u = '\n\n'.join('\n'.join(row(i, w, t) for i,(w,t) in enumerate(s, 1)) for s in sents)
    c = '\n\n'.join('\n'.join(f'{w} {t}' for w,t in s) for s in sents)
    for name,text in (('a.conllu', u), ('a.txt', c)):
        found = read_conll(write(folder, name, text + '\n'))
        assert [list(zip(o.tokens, o.tags)) for o in found] == sents

@pytest.mark.skipif(EWT is None, reason='UD-EWT is not here (ELMO_FASTAI_DATA)')
def test_ud_ewt():
    dev = read_conll(EWT/'en_ewt-ud-dev.conllu')
    assert len(dev) == 2001 and sum(len(s.tokens) for s in dev) == 25147
    assert dev == read_treebank('en_ewt', EWT).gold['valid']
    dls = TagDataLoaders.from_files(
        EWT / 'en_ewt-ud-test.conllu', EWT / 'en_ewt-ud-dev.conllu', device='cpu'
    )
    assert len(dls.labels) == 17 and int(dls.balance.valid.sum()) == 25147

# tables

def test_tables_of_every_kind(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    lists = pd.DataFrame(dict(tokens=[['a', 'b'], ['c']], tags=[['X', 'Y'], ['X']]))
    expected = [Sentence(['a', 'b'], ['X', 'Y']), Sentence(['c'], ['X'])]
    lists.to_parquet(tmp_path / 'a.parquet')
    lists.to_csv(tmp_path / 'a.csv')
    lists.to_json(tmp_path / 'a.json')
    lists.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    feats = Features(
        words=Sequence(Value('string')), ner_tags=Sequence(ClassLabel(names=['X', 'Y']))
    )
    ds = Dataset.from_dict(dict(words=[['a', 'b'], ['c']], ner_tags=[[0, 1], [0]]), features=feats)
    tables = [lists, ds, ds.to_iterable_dataset(),
              *(tmp_path / f'a.{o}' for o in ('parquet', 'csv', 'json', 'jsonl')), expected,
              [(['a', 'b'], ['X', 'Y']), ('c', 'X')],
              pd.DataFrame(dict(text=['a b', 'c'], upos=['X Y', 'X']))]
    for o in tables: assert read_tagged(o)[0] == expected, o

@pytest.mark.parametrize('tokens', [['Well', '...', 'yes'], ['10 000', "it's", 'a "b" c']])
def test_lists_in_cells_hold_any_token(tokens):
    assert (read_tagged(pd.DataFrame(dict(tokens=[str(tokens)], tags=[str(['X', 'Y', 'Z'])])))[0][
        0].tokens == tokens)


def test_missing_and_empty_rows_are_counted():
    df = pd.DataFrame(
        dict(tokens=['a b', None, '', [], float('nan')], tags=['X Y', 'X', '', [], 'X']))
    sents, left = read_tagged(df)
    assert len(sents) == 1 and left == {'missing rows': 2, 'empty sentences': 2}
    dls = TagDataLoaders.from_sents(df, df, device='cpu')
    assert dls.skipped == {'missing rows': 4, 'empty sentences': 4}

@pytest.mark.parametrize('data,says', [
    ([(['a', 'b'], ['X'])], 'row 0: 2 tokens and 1 tags'),
    ([(['a'], ['X']), ([], ['X'])], 'row 1: 0 tokens and 1 tags'),
    (pd.DataFrame(dict(tokens=['a', 'b c'], tags=['X', 'X Y Z']), index=[7, 9]),
     'row 9 of the table: 2 tokens and 3 tags'),
    ([(['a', 5], ['X', 'Y'])], '5 is no token'),
    ([(['a', ' '], ['X', 'Y'])], "' ' is no token"),
    ([(['a\0'], ['X'])], 'NUL'),
    ([('a', 'X', 'Y')], 'expected (tokens, tags)'),
    ([3], 'expected (tokens, tags)'),
    ([], 'the list of rows is empty'),
    ([([], [])], 'no tagged sentence'),
    (pd.DataFrame(dict(a=['x'])), "there is no column 'tokens' or 'words'"),
    (pd.DataFrame(dict(tokens=['x'])), "there is no column 'tags' or 'upos'")])
def test_errors_name_the_row(data, says):
    with pytest.raises(CorpusError) as e:
        read_tagged(data)
    assert says in str(e.value)


def test_factories(corpus, tmp_path):
    from datasets import Dataset
    pairs = [(s.tokens, s.tags) for s in corpus.gold['train'][:40]]
    df = pd.DataFrame(pairs, columns=['tokens', 'tags'])
    held = [o.items for o in (
        TagDataLoaders.from_df(df, device='cpu').valid.text,
        TagDataLoaders.from_dataset(Dataset.from_pandas(df), device='cpu').valid.text)]
    assert held[0] == held[1] and len(held[0]) == 4
    df['v'] = [i < 10 for i in range(40)]
    assert (TagDataLoaders.from_df(df, valid_col='v', device='cpu').valid.text.items[0].tokens
            == pairs[0][0])
    with pytest.raises(CorpusError, match="no column 'w'"):
        TagDataLoaders.from_df(df, valid_col='w')
    both = TagDataLoaders.from_dataset(
        dict(train=Dataset.from_pandas(df), validation=Dataset.from_pandas(df[:5])), device='cpu')
    assert (len(both.train.text), len(both.valid.text)) == (40, 5)
    with pytest.raises(CorpusError, match="no split 'train'"):
        TagDataLoaders.from_dataset(dict(test=[]))
    with pytest.raises(CorpusError, match='has no tags'):
        TagDataLoaders.from_corpus(Corpus('x', dict(train=['a'])))
    with pytest.raises(CorpusError, match='do not split'): TagDataLoaders.from_sents(pairs[:1])
    with pytest.raises(CorpusError, match='two different tags'):
        TagDataLoaders.from_sents([(['a'], ['X'])], [(['a'], ['X'])])


# files with a head, and a token a row

SENT = [Sentence(['Ann', 'left'], ['B-PER', 'O']),
        Sentence(['New York', 'is', 'NA'], ['B-LOC', 'O', 'O'])]


@pytest.mark.parametrize('head', ['token\ttag', 'Word\tNER', 'tokens\tner_tags', 'form\tupos'])
@pytest.mark.parametrize('name', ['a.tsv', 'a.txt', 'a.conll'])
def test_the_head_of_a_column_file_is_no_word(tmp_path, head, name):
    f = write(tmp_path, name, head + '\nAnn\tB-PER\nleft\tO\n\nNew York\tB-LOC\nis\tO\nNA\tO\n')
    found = read_tagged(f)[0]
    assert ([s.tags for s in found] == [s.tags for s in SENT] and found[0].tokens == SENT[0].tokens
            and len(found[1].tokens) == 3)
    blanks = write(
        tmp_path, 'b.txt', head.replace('\t', ' ') + '\nAnn B-PER\nleft O\n\nPeter B-PER\n'
    )
    assert [s.tokens for s in read_tagged(blanks)[0]] == [['Ann', 'left'], ['Peter']]

def test_columns_of_a_head_are_named(tmp_path):
    f = write(
        tmp_path, 'a.tsv', 'id\tmot\tetiquette\ttags\n1\tAnn\tA\tX\n1\t"\tB\tY\n2\tparle\tB\tX\n'
    )
    assert read_tagged(f, 'mot', 'etiquette', sent_col='id')[0] == [
        Sentence(['Ann', '"'], ['A', 'B']), Sentence(['parle'], ['B'])]
    with pytest.raises(CorpusError, match="no column 'wort' among 'id', 'mot'"):
        read_tagged(f, 'wort', 'tags')
    french = write(tmp_path, 'b.tsv', 'words\tetiquette\nAnn\tA\nparle\tB\n\nAnn\tA\n')
    assert (read_tagged(french)[0] == read_tagged(french, tag_col='etiquette')[0]
            == read_tagged(french, tag_col=1)[0]
            == [Sentence(['Ann', 'parle'], ['A', 'B']), Sentence(['Ann'], ['A'])])
    with pytest.raises(CorpusError, match='line 3: expected 2 columns, and found 1'):
        read_tagged(write(tmp_path, 'c.tsv', 'words\ttags\nAnn\tA\nparle\n'))


def test_a_sentence_a_row_under_a_head(tmp_path):
    f = write(
        tmp_path, 'a.tsv', 'text\ttags\nthe bank closed\tDET NOUN VERB\nthey play\tPRON VERB\n'
    )
    assert [s.tokens for s in read_tagged(f)[0]] == [['the', 'bank', 'closed'], ['they', 'play']]

def test_words_called_as_columns_are_are_words(tmp_path):
    f = write(tmp_path, 'a.tsv', 'Text\tNOUN\nfollows\tVERB\n\nWords\tNOUN\n')
    assert [s.tokens for s in read_tagged(f)[0]] == [['Text', 'follows'], ['Words']]

def rows_of(sents, name='sentence_id'):
    rows = [(i, t, g) for i,s in enumerate(sents) for t,g in zip(s.tokens, s.tags)]
    return pd.DataFrame(rows, columns=[name, 'word', 'tag'])

@pytest.mark.parametrize('name', ['sentence_id', 'sent_id', 'Sentence #', 'sentence_number'])
def test_a_token_a_row(tmp_path, name):
    df = rows_of(SENT, name)
    df.to_csv(tmp_path / 'a.csv', index=False)
    df.to_parquet(tmp_path / 'a.parquet')
    df.to_json(tmp_path / 'a.jsonl', orient='records', lines=True)
    for o in (df, tmp_path / 'a.csv', tmp_path / 'a.parquet', tmp_path / 'a.jsonl',
              df.to_dict('records')):
        assert read_tagged(o)[0] == SENT, o
    mine = df.rename(columns={name: 'mine'})
    assert read_tagged(mine, sent_col='mine')[0] == SENT
    with pytest.raises(CorpusError, match="no column 'yours' among"):
        read_tagged(mine, sent_col='yours')
    dls = TagDataLoaders.from_df(mine, sent_col='mine', valid=mine, device='cpu')
    assert dls.train.text.items == SENT

def test_sentences_whose_first_row_is_marked(tmp_path):
    "As the well-known ner_dataset.csv: `Sentence: 1` and then nothing until the next"
    df = pd.DataFrame({'Sentence #': ['Sentence: 1', None, 'Sentence: 2', None, None],
                       'word': ['Ann', 'left', 'New York', 'is', 'NA'],
                       'tag': ['B-PER', 'O', 'B-LOC', 'O', 'O']})
    assert read_tagged(df)[0] == SENT

def test_a_number_that_comes_back_is_another_sentence():
    df = pd.DataFrame(dict(sent_id=[0, 0, 1, 0], token=list('abcd'), tag=list('XYXY')))
    assert [s.tokens for s in read_tagged(df)[0]] == [['a', 'b'], ['c'], ['d']]

def test_tokens_without_their_sentences_are_refused():
    df = rows_of(SENT).drop(columns='sentence_id')
    for o in (df, df.to_dict('records'), df.iloc[:2]):
        with pytest.raises(CorpusError, match='each row .* holds one token.*sent_col'):
            read_tagged(o)
    assert read_tagged([(['a'], ['X']), (['b'], ['Y'])])[0], 'lists say what they are'

def test_rows_without_a_token_or_a_tag_within_a_sentence():
    df = pd.DataFrame(
        dict(sent_id=[0, 0, 1, 1], token=['a', 'b', 'c', None], tag=['X', None, 'Z', 'Y']),
        index=[5, 6, 7, 8])
    assert read_tagged(df[:3])[0] == [Sentence(['a', 'b'], ['X', None]), Sentence(['c'], ['Z'])]
    with pytest.raises(CorpusError, match='row 7 of the table: (nan|None|<NA>) is no token'):
        read_tagged(df)
    df.loc[8, 'tag'] = None
    assert len(read_tagged(df)[0]) == 2, 'an empty row is none'

# loaders

def test_batches_are_the_sentences(dls, corpus):
    seen = []
    for x,w,y in dls.train:
        assert ((x[...,0] != 0) == (y != IGNORE)).all() and ((w != 0) == (y != IGNORE)).all()
        for c, t in zip(x, y):
            seen.append((tuple(dls.char_vocab.decode(c[c[:, 0] != 0].numpy())),
                         tuple(dls.labels[i] for i in t[t >= 0].tolist())))
    assert sorted(seen) == sorted((tuple(s.tokens), tuple(s.tags)) for s in corpus.gold['train'])

def test_unsorted_batches_keep_the_order(dls, corpus):
    x = next(iter(dls.test_dl(corpus.gold['valid'][:10], with_labels=True)))[0]
    assert [dls.char_vocab.decode(c[c[:, 0] != 0].numpy()) for c in x] == [
        s.tokens for s in corpus.gold['valid'][:10]]


def test_a_tag_that_was_not_there(dls):
    with pytest.warns(UserWarning, match="no training sentence has.*error: 'QQ' .1."):
        dl = dls.test_dl([(['a'], ['DET']), (['a'], ['QQ'])], with_labels=True)
    assert dl.one_batch()[-1].min() < 0
    with pytest.raises(CorpusError, match='2 tokens and 1 tags'):
        dls.test_dl([(['a', 'b'], ['DET'])], with_labels=True)


def test_a_sentence_may_have_no_tags(dls):
    new, old = dls.test_dl([Sentence(['The', 'cat'])]), dls.test_dl([['The', 'cat']])
    assert new.one_batch()[0].equal(old.one_batch()[0])
    with pytest.raises(CorpusError, match='2 tokens and 0 tags'):
        dls.test_dl([Sentence(['The', 'cat'])], with_labels=True)


def test_nothing_to_tag(dls):
    for o in ('', [], '   '):
        with pytest.raises(CorpusError, match='sentence 1 has no tokens'): dls.test_dl(['a', o])
    with pytest.raises(TypeError, match='got str: put one text into a list'): dls.test_dl('a text')
    with pytest.raises(TypeError, match="got DataFrame.*a table's column"):
        dls.test_dl(pd.DataFrame(dict(text=['a'])))
    with pytest.raises(TypeError, match='Sentence 0 is int 3'): dls.test_dl([3])
    with pytest.raises(CorpusError, match='no sentence to tag'): dls.test_dl([])

def test_a_tag_of_the_validation_part_alone_is_an_error(corpus):
    s = [(['a'], ['X']), (['b'], ['Y'])]
    with pytest.warns(UserWarning, match="'Z'"):
        dls = TagDataLoaders.from_sents(s, [(['a'], ['Z'])], device='cpu')
    assert list(dls.labels) == ['X', 'Y'] and dls.valid.text.tag_names[-1] == 'Z'
    pred = torch.zeros(1, 1, 2)
    assert not is_right(pred, dls.valid.one_batch()[-1]).any(), 'an error'
    assert TagLoss()(pred, dls.valid.one_batch()[-1]) == 0

def test_prediction_leaves_the_table_of_tokens_alone(dls, lm):
    n = len(dls.train.types)
    learn = elmo_tagger_learner(dls, lm, hidden=4)
    learn.predict('completely unheard words')
    assert len(dls.train.types) == n

# the LSTM of the task

def test_task_lstm_is_pytorchs(seed=0):
    set_seed(seed)
    ours, theirs = TaskLSTM(5, 6), nn.LSTM(5, 6, bidirectional=True, batch_first=True)
    for k,p in theirs.named_parameters():
        half = ours.bwd[0] if k.endswith('_reverse') else ours.fwd[0]
        p.data.copy_(getattr(half, k.removesuffix('_reverse')))
    x, lens = torch.randn(4, 7, 5), torch.tensor([7, 3, 1, 5])
    packed = nn.utils.rnn.pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
    expected = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    assert torch.allclose(ours(x, torch.arange(7) < lens[:,None]), expected, atol=1e-6)

@pytest.mark.parametrize('where', [None, 'input', 'output', 'both'])
def test_company_and_padding_change_nothing(dls, lm, where):
    model = elmo_tagger_learner(dls, lm, where, words=8, chars=6, hidden=8, n_layers=2).model.eval()
    b = dls.valid.one_batch()
    with torch.no_grad():
        together = model(*b[:2])
        for i in range(3):
            n = int((b[-1][i] != IGNORE).sum())
            assert torch.allclose(
                model(b[0][i : i + 1, :n], b[1][i : i + 1, :n])[0], together[i, :n], atol=1e-5
            )


def test_an_unknown_word_is_refused_also_without_an_lstm():
    with pytest.raises(TypeError, match='layers'):
        Tagger(3, words=WordTable(WordVocab.build([['a']]), 8), hidden=0, layers=2)


def test_each_place_is_used(dls, lm):
    x, w, y = dls.valid.one_batch()
    for where,n in (('input', 1), ('output', 1), ('both', 2)):
        model = elmo_tagger_learner(dls, lm, where, hidden=8).model
        assert len(model.elmo.mixes) == n
        F.cross_entropy(model(x, w).flatten(0, 1), y.flatten(), ignore_index=IGNORE).backward()
        assert all(m.w.grad.abs().sum() > 0 for m in model.elmo.mixes)
        assert all(p.grad is None for p in model.elmo.lm.parameters())

# the cache

def test_an_open_bilm_is_trained(dls, lm):
    learn = elmo_tagger_learner(dls, lm, hidden=4)
    fit(learn)
    old = {k: v.clone() for k,v in learn.model.elmo.lm.state_dict().items()}
    # frozen: as it was
    assert all(torch.equal(v, lm.state_dict()[k]) for k,v in old.items() if 'head' not in k)
    learn.unfreeze()
    assert len(learn.opt.param_lists) == 4
    fit(learn, lr=slice(1e-4, 1e-3))
    new = learn.model.elmo.lm.state_dict()
    assert any(not torch.equal(new[k], old[k]) for k in old)
    # the caller's is another one
    assert all(torch.equal(v, old[k]) for k,v in lm.state_dict().items() if k in old)
    learn.freeze_to(-2)
    assert learn.model.elmo.trainable

# losses and scores

def test_loss_is_per_token():
    set_seed(0)
    pred, y = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    y[0,2:] = y[1,4:] = IGNORE
    expected = torch.cat([
        F.cross_entropy(p[t >= 0], t[t >= 0], reduction='none') for p, t in zip(pred, y)])
    assert torch.allclose(TagLoss()(pred, y), expected.mean())
    assert torch.allclose(
        TagLoss('none')(pred, y),
        torch.stack([F.cross_entropy(p[t >= 0], t[t >= 0]) for p, t in zip(pred, y)]))
    assert TagLoss()(pred, torch.full_like(y, IGNORE)) == 0

@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_scores_do_not_depend_on_batches(lens, seed):
    from types import SimpleNamespace as NS
    set_seed(seed)
    data = [(torch.randn(n, 3), torch.randint(0, 3, (n,))) for n in lens]
    def score(batches):
        ms = [TokenMean('accuracy', lambda p,y: p.argmax(-1) == y), SpanF1(['O', 'B-X', 'I-X'])]
        for m in ms: m.reset()
        for b in batches:
            T = max(len(y) for _,y in b)
            learn = NS(pred=torch.stack([F.pad(p, (0, 0, 0, T - len(p)), value=9.0) for p, _ in b]),
                       y=torch.stack([F.pad(y, (0, T - len(y)), value=IGNORE) for _, y in b]))
            for m in ms: m.accumulate(learn)
        return [m.value for m in ms]
    assert np.allclose(score([data]), score([[o] for o in data]))
    assert np.isclose(
        score([data])[0], np.mean([o for p, y in data for o in (p.argmax(-1) == y).tolist()])
    )


def test_bio_tags_get_span_f1(lm):
    sents = [(['ann', 'left', 'new', 'york'], ['B-PER', 'O', 'B-LOC', 'I-LOC'])]*12
    torch.manual_seed(0)
    learn = elmo_tagger_learner(
        TagDataLoaders.from_sents(sents, sents[:3], device='cpu'), lm, hidden=8
    )
    assert list(learn.metrics.attrgot('name')) == ['accuracy', 'span_f1']
    fit(learn, 30, 2e-2)
    assert quiet(learn, learn.validate)[2] == 1

# schemes of spans

def spans_of(rng, n):
    "Random spans (kind, first, last) in `n` tokens"
    spans, i = [], 0
    while i < n:
        if rng.random() < .5: i += 1; continue
        j = min(n - 1, i + rng.integers(0, 3))
        spans.append((str(rng.choice(['PER', 'LOC'])), i, int(j)))
        i = j + 1
    return spans

def encoded(spans, n, scheme):
    tags = ['O']*n
    first, inside, last, single = dict(
        IOB1='IIII', IOB2='BIIB', BIOES='BIES', BILOU='BILU', BMES='BMES'
    )[scheme]
    for k,(kind,i,j) in enumerate(spans):
        for t in range(i, j + 1): tags[t] = f'{inside}-{kind}'
        tags[i], tags[j] = (
            (f'{single}-{kind}',) * 2 if i == j else (f'{first}-{kind}', f'{last}-{kind}'))
        touches = k and spans[k-1][0] == kind and spans[k-1][2] == i - 1
        if scheme == 'IOB1' and touches: tags[i] = f'B-{kind}'
    return tags

def f1_of(true, guess):
    "F1 of the spans of several sentences"
    right = sum(len({*a} & {*b}) for a,b in zip(true, guess))
    n = sum(map(len, true)) + sum(map(len, guess))
    return 2*right/n if n else 0

@pytest.mark.parametrize('scheme', ['IOB1', 'IOB2', 'BIOES', 'BILOU', 'BMES'])
def test_every_scheme_of_spans_is_scored(scheme):
    "The same spans, written in each scheme, have the same F1"
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, guess = ([spans_of(rng, 9) for _ in range(4)] for _ in range(2))
        guess[0] = true[0]
        a, b = ([encoded(o, 9, scheme) for o in spans] for spans in (true, guess))
        assert span_scores(a, b)[1].value == pytest.approx(f1_of(true, guess))

@pytest.mark.parametrize('tags', ['O I-PER', 'O B-PER I-PER', 'B-PER I-PER', 'B I O', 'O S-PER',
                                  'O U-PER B-LOC L-LOC', 'O S-PER B-LOC I-LOC E-LOC'])
def test_tags_that_mark_spans(tags): assert are_spans(tags.split())

@pytest.mark.parametrize('tags', ['NOUN O', 'B-X NOUN', 'ADP X-Y', 'E-X L-X O', 'I II'])
def test_tags_that_mark_none(tags): assert not are_spans(tags.split())

# what does not fit

@pytest.mark.parametrize('kw,error,says', [
    (dict(where='inside'), ValueError, "where='inside': take None, 'input', 'output' or 'both'"),
    (dict(layers='top'), ValueError, "layers='top'"),
    (dict(layers=3), ValueError, 'from 0 to 2'),
    (dict(layers=-1), ValueError, 'layers=-1'),
    (dict(where=None, words=0), ValueError, 'Without ELMo the tagger needs'),
    (dict(where='output', words=0), ValueError, 'to read'),
    (dict(elmo=None), TypeError, 'say where=None'),
    (dict(elmo=nn.Linear(2, 2)), TypeError, 'got Linear'),
    (dict(elmo='no/such/folder here'), ModelFileError, 'There is no folder')])
def test_settings_that_can_not_be(dls, lm, kw, error, says):
    with pytest.raises(error) as e:
        elmo_tagger_learner(dls, **{'elmo': lm, **kw})
    assert says in str(e.value)


def test_a_backbone_that_reads_other_characters(dls, corpus):
    from dataclasses import replace
    short = BiLM(replace(CFG, max_chars=20), 0)
    with pytest.raises(ValueError, match='make the loaders with char_vocab=elmo.char_vocab'):
        elmo_tagger_learner(dls, short)
    fine = TagDataLoaders.from_corpus(corpus, char_vocab=ByteCharVocab(20), device='cpu')
    assert quiet(l := elmo_tagger_learner(fine, short, hidden=4), l.validate)[0] > 0

def test_single_layers_are_single(dls, lm):
    x = dls.valid.one_batch()[0]
    for layers,l in (('last', 2), ('first', 1), (0, 0)):
        learn = elmo_tagger_learner(dls, lm, layers=layers)
        elmo = learn.model.elmo.eval()
        alone = elmo.layers(x)[0][l]
        assert torch.allclose(elmo(x)[0][0], F.layer_norm(alone, alone.shape[-1:]), atol=1e-5)
        fit(learn)
        assert elmo.mixes[0].shares[l] > 1 - 1e-6
    equal = elmo_tagger_learner(dls, lm, layers='equal').model.elmo
    assert not equal.mixes[0].w.requires_grad and torch.allclose(
        equal.mixes[0].shares, torch.full((3,), 1 / 3))


def test_ready_made_vectors(dls, lm):
    made = WordVectors(['the', 'bank', 'elsewhere'], np.random.randn(3, 5).astype(np.float32))
    table = elmo_tagger_learner(dls, lm, words=made).model.words
    assert (table.out_dim == 5
            and np.allclose(table.weight[dls.vocab[0].o2i['the']].detach(), made['the'])
            and (table.weight[0] == 0).all())
    with pytest.raises(ValueError, match='None of the task'):
        elmo_tagger_learner(dls, lm, words=WordVectors(['xyz'], np.ones((1, 5), np.float32)))


# fastai

@pytest.fixture(scope='module')
def learn(corpus, lm):
    return fit(elmo_tagger_learner(
        TagDataLoaders.from_corpus(corpus, seed=1, device='cpu', valid_bs=16), lm, 'both',
        hidden=16), 4, 1e-2)


def test_predict(learn):
    tags, ids, p = learn.predict('they play near the bank .')
    assert (len(tags) == 6 and p.shape == (6, len(learn.dls.labels))
            and torch.equal(p.argmax(-1), ids) and torch.allclose(p.sum(-1), torch.ones(6)))
    assert learn.predict(['they', 'play', 'near', 'the', 'bank', '.'])[0] == tags
    assert [[t for _,t in o] for o in learn.tag(['the', 'they play near the bank .'])][1] == tags
    for o in ('', [], ' \n'):
        with pytest.raises(CorpusError, match='no tokens'): learn.predict(o)
    with pytest.raises(TypeError, match='neither a text'): learn.predict(7)

def test_get_preds_is_in_the_order_of_the_data(learn, corpus):
    p, y, d, loss = quiet(learn, learn.get_preds, with_decoded=True, with_loss=True)
    sents = corpus.gold['valid']
    assert len(p) == len(y) == len(d) == len(loss) == len(sents)
    for s,row,probs in zip(sents, y, p):
        assert [learn.dls.labels[i] for i in row.tolist()] == s.tags and probs.shape == (
            len(row), len(learn.dls.labels))
    right = (torch.cat(list(d)) == torch.cat(list(y))).float().mean().item()
    assert math.isclose(right, quiet(learn, learn.validate)[1], abs_tol=1e-6)
    tagged = learn.tag([s.tokens for s in sents])
    assert all([t for _, t in o] == [learn.dls.labels[i] for i in row.tolist()]
               for o, row in zip(tagged, d))
    (chars, words), *_ = quiet(learn, learn.get_preds, with_input=True)
    for s, c, w in zip(sents, chars, words):
        assert learn.dls.char_vocab.decode(c) == s.tokens and len(w) == len(s.tokens)
    nll = [F.nll_loss(probs.log(), row).item() for probs,row in zip(p, y)]
    assert np.allclose(nll, loss, atol=1e-4), 'each loss belongs to its sentence'

def test_get_preds_of_shuffled_and_unordered_loaders(learn, corpus):
    p, y = quiet(learn, learn.get_preds)
    for dl in (learn.dls.valid.new(shuffle=True), learn.dls.valid.new(sort=False),
               learn.dls.valid.new(bs=2), learn.dls.valid.new(max_tokens=20)):
        q, z = quiet(learn, learn.get_preds, dl=dl)
        assert all(torch.equal(a, b) for a, b in zip(y, z)) and all(
            torch.allclose(a, b, atol=1e-5) for a, b in zip(p, q))
    q, z = quiet(learn, learn.get_preds, dl=learn.dls.valid.new(bs=2), reorder=False)
    assert [len(o) for o in z] == sorted(len(o) for o in y)

def test_valid_loss_is_per_token(learn):
    p, y = (torch.cat(list(o)) for o in quiet(learn, learn.get_preds))
    assert math.isclose(
        quiet(learn, learn.validate)[0], -p.gather(1, y[:, None]).log().mean().item(), rel_tol=1e-4
    )


@pytest.fixture()
def shown(monkeypatch):
    "The tables that are displayed"
    tables = []
    monkeypatch.setattr('elmo_fastai.data.batches.IN_NOTEBOOK', True)
    monkeypatch.setattr('elmo_fastai.data.batches.display_df', tables.append)
    return tables

@pytest.mark.parametrize('cls', [Interpretation, ClassificationInterpretation])
def test_interpretation(learn, corpus, cls, shown):
    interp = quiet(learn, cls.from_learner, learn)
    losses, idx = interp.top_losses(5)
    assert (losses[:-1] >= losses[1:]).all()
    quiet(learn, interp.plot_top_losses, 5)
    [df] = shown
    assert list(df.text) == [
        ' '.join(corpus.gold['valid'][i].tokens) for i in idx.tolist()
    ] and np.allclose(df.loss, losses, atol=1e-3)
    assert list(df.tags) == [' '.join(corpus.gold['valid'][i].tags) for i in idx.tolist()]
    for text,guess,tags in zip(df.text, df.predicted, df.tags):
        assert [t if p == '·' else p for p, t in zip(guess.split(), tags.split())] == learn.predict(
            text.split())[0]
    quiet(learn, interp.show_results, [0, 1])
    assert list(shown[1].text) == [' '.join(s.tokens) for s in corpus.gold['valid'][:2]]

def test_show(learn, shown):
    df = learn.dls.show_batch(max_n=2, show=False)
    assert list(df.columns) == ['text', 'tags'] and len(df) == 2
    quiet(learn, learn.show_results, max_n=2)
    assert list(shown[0].columns) == ['text', 'tags', 'predicted'] and len(shown[0]) == 2
    b = learn.dls.valid.one_batch()
    df = learn.dls.valid.show_results(b, b[-1], max_n=3, show=False)
    assert set(''.join(df.predicted)) <= {'·', ' '}

def test_export(learn, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.export(tmp_path/'t.pkl')
        again = load_learner(tmp_path/'t.pkl')
    text = 'some unhelpful trains left the spring .'
    assert again.predict(text)[0] == learn.predict(text)[0] and torch.allclose(
        again.predict(text)[2], learn.predict(text)[2], atol=1e-5)
    assert not again.dls.train.text.items and len(again.model.cache.rows) <= 1
    assert len(learn.dls.train) > 0 and quiet(learn, learn.validate)[0] > 0

def test_save_and_load_weights(learn, corpus, lm, tmp_path):
    other = elmo_tagger_learner(
        TagDataLoaders.from_corpus(corpus, seed=1, device='cpu', valid_bs=16), bilm(5), 'both',
        hidden=16, path=tmp_path)
    learn.path, was = tmp_path, learn.path
    learn.save('w'); other.load('w'); learn.path = was
    assert other.predict('they play .')[0] == learn.predict('they play .')[0]
    assert torch.allclose(
        other.predict('they play .')[2], learn.predict('they play .')[2], atol=1e-6
    )


def test_the_model_can_be_pickled(learn):
    model = pickle.loads(pickle.dumps(learn.model))
    assert len(model.cache.rows) == 0

def test_lr_find(corpus, lm):
    learn = elmo_tagger_learner(
        TagDataLoaders.from_corpus(corpus, seed=1, device='cpu', valid_bs=16), lm, hidden=8)
    with learn.no_bar(), learn.no_logging():
        assert learn.lr_find(num_it=10, show_plot=False).valley > 0


# what one long text costs

LONG = ([(['a', 'short', 'one'], ['X', 'Y', 'X'])] * 300 + [(['long'] * 3000, ['X'] * 3000)]
        + [(['b'] * (i % 9 + 1), ['Y'] * (i % 9 + 1)) for i in range(200)])


def largest(f):
    "Bytes of the largest tensor that `f()` makes"
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    class Largest(TorchDispatchMode):
        n = 0
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.n = max([self.n,
                          *(o.nbytes for o in tree_leaves(out) if isinstance(o, torch.Tensor))])
            return out
    with Largest() as mode: f()
    return mode.n

def test_predictions_are_as_long_as_their_sentences(lm):
    sents = LONG[250:350]
    dls = TagDataLoaders.from_sents(sents, sents, device='cpu')
    learn = elmo_tagger_learner(dls, lm, hidden=4, cache=False)
    n = sum(len(s) for s,_ in sents)
    p, y, decoded, losses = quiet(learn, learn.get_preds, with_decoded=True, with_loss=True)
    assert [len(o) for o in p] == [len(o) for o in y] == [len(o) for o in decoded] == [
        len(s) for s, _ in sents
    ] and len(losses) == len(sents)
    assert [[dls.labels[i] for i in o.tolist()] for o in y] == [t for _,t in sents]
    assert (sum(o.untyped_storage().nbytes()
                for o in {o.untyped_storage().data_ptr(): o for o in p}.values())
            == n * 2 * 4), 'no padding is kept'
    tagged = []
    with torch.no_grad(): most = largest(lambda: tagged.extend(learn.tag([s for s,_ in sents])))
    assert [[t for t,_ in o] for o in tagged] == [s for s,_ in sents]
    assert most <= 16_384*50*8, 'nothing is larger than a batch of characters'

# curves

def test_subsets_are_nested():
    data = list(range(1000))
    parts = [study.subset(data, o, 7) for o in (.01, .1, .3, 1.)]
    assert [len(o) for o in parts] == [10, 100, 300, 1000] and parts[-1] == data
    assert all(set(a) < set(b) and a == sorted(a) for a,b in zip(parts, parts[1:]))
    assert study.subset(data, .1, 8) != parts[1]
    assert study.subset(data, 1e-9) == study.subset(data, .001)

def test_interval():
    "Student's, for any number of seeds, and everywhere the same"
    from scipy import stats
    assert study.interval is interval
    for n in (2, 3, 5, 10, 11, 12, 30, 400):
        x = np.random.default_rng(n).normal(size=n)
        m, h = interval(x.tolist())
        low, high = stats.ttest_1samp(x, 0).confidence_interval()
        assert math.isclose(m - h, low) and math.isclose(m + h, high)
    assert interval([1.])[0] == 1 and math.isnan(interval([1.])[1])

def test_a_curve(corpus, lm):
    df = study.learning_curve(
        corpus.gold['train'], corpus.gold['valid'],
        dict(without=dict(where=None), elmo=dict(elmo=lm, where='input', steps=8)), (0.1, 0.5), 2,
        steps=4, epochs=1, hidden=8, device='cpu')
    assert len(df) == 8 and df.score.between(0, 1).all() and set(df.sentences) == {12, 60}
    t = study.curve_table(df)
    assert list(t.columns) == ['without', 'elmo', 'elmo − without'] and '±' in t.iloc[0, 0]
    assert '±' not in study.curve_table(df[df.seed == 0]).iloc[0, 0]
    assert len(study.plot_curve(df).lines) >= 2

def test_a_tagger_is_judged_at_its_end(corpus, lm):
    learn = study.train_tagger(
        corpus.gold['train'][:40], corpus.gold['valid'], epochs=3, steps=1, hidden=8, device='cpu'
    )
    values = learn.recorder.values
    assert [len(o) for o in values] == [1, 1, 3] and values[-1][2] == pytest.approx(
        quiet(learn, learn.validate)[1])


def test_commonest_tag():
    table = CommonestTag(
        [Sentence(['a', 'a', 'b', 'c', 'd'], ['X', 'Y', 'Z', 'Z', None]), Sentence(['a'], ['Y'])]
    )
    assert (table(['a', 'b', 'new']) == ['Y', 'Z', 'Z']
            and table.accuracy([Sentence(['a', 'b', 'd'], ['Y', 'X', None])]) == 0.5)
    with pytest.raises(CorpusError, match='no tag'): CommonestTag([])

# spans with their place in the text

@pytest.mark.parametrize('tags', [
    'B-PER I-PER O O B-LOC O', 'B-PER E-PER O O S-LOC O', 'B-PER L-PER O O U-LOC O',
    'I-PER I-PER O O I-LOC O'])
def test_spans_of_all_schemes_have_offsets(tags):
    text = 'Zo\u00eb  Lee, in Gent.'
    spans = tagger.spans_of(text, ['Zo\u00eb', 'Lee', ',', 'in', 'Gent', '.'], tags.split())
    assert [(o['text'], o['label']) for o in spans] == [('Zo\u00eb  Lee', 'PER'), ('Gent', 'LOC')]
    assert all(text[o['start'] : o['end']] == o['text'] for o in spans)


def test_offsets_of_a_text_with_marks_of_direction():
    "`word_tokenize` drops them; the places are those of the text as it is"
    text = '\ufeffIn \u202bTel\u200f-\u200fAviv\u202c, co\u00adop\u200e.'
    tokens = word_tokenize(text)
    assert tokens == ['In', 'Tel-Aviv', ',', 'co\u00adop', '.']
    found = [text[start:end] for start, end in tagger.offsets(text, tokens)]
    assert found == ['In', 'Tel\u200f-\u200fAviv', ',', 'co\u00adop', '.']

def test_spans_without_kinds_and_tags_that_are_none():
    assert [o['text'] for o in tagger.spans_of('a b c', ['a', 'b', 'c'], ['B', 'I', 'O'])] == [
        'a b']
    assert [
        (o['start'], o['label']) for o in tagger.spans_of('a b', ['a', 'b'], ['DET', 'NOUN'], False)
    ] == [(0, 'DET'), (2, 'NOUN')]
    with pytest.raises(ValueError, match="The token 'A'"):
        tagger.spans_of('a b', ['A', 'b'], ['O', 'O'])


def test_tagging_as_spans(learn):
    text = 'they  play near the bank.'
    (spans,), (pairs,) = learn.tag([text], as_spans=True), learn.tag([text])
    assert [o['text'] for o in spans] == [token for token, _ in pairs] and [
        o['label'] for o in spans
    ] == [tag for _, tag in pairs]
    assert all(text[o['start']:o['end']] == o['text'] for o in spans)
    assert learn.tag([['a', 'bank']], as_spans=True)[0][1]['start'] == 2

# what the README shows

@pytest.mark.slow
def test_the_recipe_of_the_readme(tmp_path, monkeypatch):
    readme = (Path(__file__).parents[1]/'README.md').read_text(encoding='utf-8')
    recipe, = re.findall(r"~~~python\n(.*?)~~~", readme, re.S)
    monkeypatch.chdir(tmp_path)
    pd.DataFrame([(f'a {w} film , number {i} .', w) for i in range(20) for w in ('dull', 'good')],
                 columns=['text', 'label']).to_csv('reviews.csv', index=False)
    for name,n in dict(train=40, dev=5).items():
        rows = ['I O', 'met O', 'Ann B-PER', 'Lee I-PER', 'in O', 'Ghent B-LOC', '. O', '']
        Path(f'{name}.conll').write_text('\n'.join(rows*n))
    code = recipe.replace('learn.predict(', 'found = learn.predict(').replace(
        'learn.tag(', 'spans = learn.tag(')
    space = {}
    exec(code, space)
    assert (space['found'][0] == 'dull'
            and [s['label'] for s in space['spans'][0]] == ['PER', 'LOC']
            and Path('tagger.pkl').exists())

# what is held out, and odd tables

@pytest.mark.parametrize('form', ['docstart', 'newdoc', 'begin', 'column', 'once', 'lists', 'rows'])
def test_documents_are_held_out_whole(tmp_path, form):
    rows = [(d, s, [(f'w{d}_{s}', 'N'), (f'x{d}', 'V')]) for d in range(8) for s in range(6)]
    table = pd.DataFrame([(d, s, *pair) for d,s,pairs in rows for pair in pairs],
                         columns=['doc_id', 'sent_id', 'token', 'tag'])
    lists = pd.DataFrame([(d, *zip(*pairs)) for d,_,pairs in rows],
                         columns=['group', 'tokens', 'tags'])
    marks = dict(docstart='-DOCSTART- X\n\n', newdoc='# newdoc id = 1\n',
                 begin='#begin document (a); part 000\n')
    data = dict(column=table, lists=lists, rows=lists.to_dict('records'),
                once=table.assign(doc_id=table.doc_id.where(~table.doc_id.duplicated()))).get(form)
    if form in marks:
        text = ''
        for d,s,pairs in rows:
            lines = '\n'.join('\t'.join(pair) for pair in pairs)
            if form == 'newdoc': lines = '\n'.join(row(i, *pair) for i,pair in enumerate(pairs, 1))
            text += (marks[form] if s == 0 else '') + lines + '\n\n'
        data = write(tmp_path, 'a.conllu' if form == 'newdoc' else 'a.txt', text)
    d = TagDataLoaders.from_sents(data, device='cpu')
    of = [{sent.tokens[1] for sent in dl.text.items} for dl in (d.train, d.valid)]
    assert len(of[1]) == 1 and not of[0] & of[1] and 'whole groups or documents' in repr(d)

def test_numbered_tags_are_in_order_and_named_ones_as_given():
    sents = [([f'a{i}'], [i % 12]) for i in range(60)]
    assert list(TagDataLoaders.from_sents(sents, device='cpu').labels) == [*map(str, range(12))]
    named = TagDataLoaders.from_sents([(['a', 'b'], ['X', 'Y'])]*9, labels=['Y', 'X'], device='cpu')
    assert list(named.labels) == ['Y', 'X']

def test_a_tag_may_have_a_blank():
    df = pd.DataFrame(dict(sent_id=[1, 1, 2], token=list('abc'), tag=['noun phrase', 'O', 'a b']))
    assert [s.tags for s in read_tagged(df)[0]] == [['noun phrase', 'O'], ['a b']]
    whole = pd.DataFrame(dict(sent_id=[1, 2], text=['a b', 'c'], tags=['X Y', 'X']))
    assert [s.tags for s in read_tagged(whole)[0]] == [['X', 'Y'], ['X']]

def test_conll_2012(tmp_path):
    text = '#begin document (bc/a); part 000\nbc/a 0 0 In IN (TOP* - *\nbc/a 0 1 Rome NNP *) - (GPE)\n\n'
    found = read_tagged(write(tmp_path, 'a.conll', text + '#end document\n' + text), tag_col=-1)[0]
    assert found == [Sentence(['In', 'Rome'], ['*', '(GPE)'])]*2


@pytest.mark.parametrize('name,text', [
    ('a.conllu', ''.join(f'{row(1, w, "X")}\n{row(2, "b", "Y")}\n\n' for w in 'cdefg')),
    ('a.bio', ''.join(f'{w} O\nb B-X\n\n' for w in 'cdefg')),
    ('a.csv',
     'sent_id,token,tag\n' + ''.join(f'{i},{w},O\n{i},b,X\n' for i, w in enumerate('cdefg'))),
    ('a.jsonl', ''.join(f'{{"tokens": ["{w}", "b"], "tags": ["O", "X"]}}\n' for w in 'cdefg'))])
def test_n_rows_counts_sentences_in_every_kind_of_file(tmp_path, name, text):
    file = write(tmp_path, name, text)
    assert [sent.tokens for sent in read_tagged(file, n_rows=2)[0]] == [['c', 'b'], ['d', 'b']]
    assert len(read_tagged(file)[0]) == 5
