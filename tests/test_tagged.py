"Tagged text and its loaders: every kind of file, faults, what is held out"

import pandas as pd, pytest, torch
from hypothesis import given, settings, strategies as st

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import Corpus, Sentence, read_conll, toy_corpus
from elmo_fastai.text.treebanks import read_treebank
from elmo_fastai.data.tagged import IGNORE, TagDataLoaders, read_tagged
from elmo_fastai.tasks.tag import elmo_tagger_learner, is_right
from copies import local
from pages import page
from made import bilm

study = page('studies/learning_curves')
CommonestTag = page('library/tagged').CommonestTag


def test_arguments_and_labels_that_are_none():
    sents = [(['a', 'b'], [0, 1])]*8
    with pytest.raises(TypeError, match='max_tokns'): TagDataLoaders.from_sents(sents, max_tokns=9)
    d = TagDataLoaders.from_sents(sents, labels=[0, 1], device='cpu')
    assert list(d.labels) == ['0', '1']
    with pytest.raises(CorpusError, match=r'sentence 0: expected \(tokens, tags\)'):
        d.test_dl(['a text'], with_labels=True)


@pytest.fixture(scope='module')
def lm(): return bilm(n_words=0)
@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=60, n_test=1, n_unseen=20)
@pytest.fixture()
def dls(corpus): return TagDataLoaders.from_corpus(corpus, seed=1, device='cpu', bs=16, valid_bs=16)
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


COLUMNS = ('-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n# NN B-NP O\n\n'
           'Peter NNP B-NP B-PER\n')


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


@settings(max_examples=40)
@given(sentences)
def test_what_is_written_is_read(tmp_path_factory, sents):
    folder = tmp_path_factory.mktemp('conll')
    u = '\n\n'.join('\n'.join(row(i, w, t) for i,(w,t) in enumerate(s, 1)) for s in sents)
    c = '\n\n'.join('\n'.join(f'{w} {t}' for w,t in s) for s in sents)
    for name,text in (('a.conllu', u), ('a.txt', c)):
        found = read_conll(write(folder, name, text + '\n'))
        assert [list(zip(o.tokens, o.tags)) for o in found] == sents

def test_ud_ewt():
    EWT = local('ud-ewt')
    dev = read_conll(EWT/'en_ewt-ud-dev.conllu')
    assert len(dev) == 2001 and sum(len(s.tokens) for s in dev) == 25147
    assert dev == read_treebank('en_ewt', EWT).gold['valid']
    dls = TagDataLoaders.from_files(
        EWT/'en_ewt-ud-test.conllu', EWT/'en_ewt-ud-dev.conllu', device='cpu'
    )
    assert len(dls.labels) == 17 and int(dls.balance.valid.sum()) == 25147

# tables

def test_tables_of_every_kind(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Sequence, Value
    lists = pd.DataFrame(dict(tokens=[['a', 'b'], ['c']], tags=[['X', 'Y'], ['X']]))
    expected = [Sentence(['a', 'b'], ['X', 'Y']), Sentence(['c'], ['X'])]
    lists.to_parquet(tmp_path/'a.parquet')
    lists.to_csv(tmp_path/'a.csv')
    lists.to_json(tmp_path/'a.json')
    lists.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    feats = Features(
        words=Sequence(Value('string')), ner_tags=Sequence(ClassLabel(names=['X', 'Y']))
    )
    ds = Dataset.from_dict(dict(words=[['a', 'b'], ['c']], ner_tags=[[0, 1], [0]]), features=feats)
    tables = [lists, ds, ds.to_iterable_dataset(),
              *(tmp_path/f'a.{o}' for o in ('parquet', 'csv', 'json', 'jsonl')), expected,
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


def test_a_corpus_with_sentences_that_have_no_tags_is_refused():
    sents = [Sentence(['a'], ['X']), Sentence(['b'], ['Y']), Sentence(['c'])]*6
    with pytest.raises(CorpusError, match='row 2: 1 tokens and 0 tags'):
        TagDataLoaders.from_corpus(Corpus.from_gold('g', dict(train=sents)))

@pytest.mark.parametrize('first', ['Bob/NNP paid/VBD 1/2/CD ./.', 'A title', ''])
def test_words_with_their_tags_behind_a_stroke(tmp_path, first):
    text = first + '\nEve/NNP sat/VBD down/RB so/RB ./.\nBob/NNP left/VBD\n'
    with pytest.raises(CorpusError, match=r'written with its tag.*split them first'):
        read_tagged(write(tmp_path, 'a.txt', text))

PARTS = 'Bob N\nran V\n\n'*20

def test_files_are_named_and_a_test_part_is_not_read(tmp_path):
    write(tmp_path, 'train.conll', PARTS)
    write(tmp_path, 'test.conll', 'Q R\nbad\n')
    dls = TagDataLoaders.from_sents(tmp_path, device='cpu')
    assert dls.source.files()['train'] == [tmp_path/'train.conll']
    assert 'left out the file test.conll' in repr(dls)
    rows = [(['a', 'b'], ['X', 'Y'])]*9
    dls = TagDataLoaders.from_sents(dict(train=rows, test=[3]), device='cpu')
    assert "left out the split 'test'" in repr(dls)

def test_a_column_file_in_another_encoding_has_a_cure(tmp_path):
    with pytest.raises(CorpusError, match="line 1 is not UTF-8.*encoding='cp1252'"):
        read_tagged(write(tmp_path, 'a.conll', 'Caf\xe9 N\nest V\n', 'latin-1'))

def test_words_that_are_numbers_are_in_the_first_column(tmp_path):
    dls = TagDataLoaders.from_sents(write(tmp_path, 'a.conll', '3 X\n14 Y\n\n'*9), device='cpu')
    assert dls.source.columns == dict(tokens=0, tags=1) and dls.train.text.items[0].tokens[0] == '3'

@pytest.mark.parametrize('valid,n', [(.5, 10), (None, 2)])
def test_a_share_to_validate_on(tmp_path, valid, n):
    dls = TagDataLoaders.from_sents(write(tmp_path, 'a.conll', PARTS), valid, device='cpu')
    assert len(dls.valid.text) == n

@pytest.mark.parametrize('ending', ['tsv', 'conll'])
@pytest.mark.parametrize('text,options', [
    ('word;tag\na;X\n"c d";Y\n\nd;X\n', dict(sep=';', quotes=True)),
    ('word\ttag\na\tX\n"c d"\tY\n\nd\tX\n', dict(quotes=True))])
def test_separators_and_quotes_of_column_files(tmp_path, ending, text, options):
    found, _ = read_tagged(write(tmp_path, f'a.{ending}', text), **options)
    assert found == [Sentence(['a', 'c\u00a0d'], ['X', 'Y']), Sentence(['d'], ['X'])]
    plain = text.replace('"', '')
    assert read_tagged(write(tmp_path, f'b.{ending}', plain), sep=options.get('sep'))[0] == found

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
    f = write(tmp_path, 'a.tsv',
              'id\tmot\tetiquette\ttags\n1\tAnn\tA\tX\n1\t"\tB\tY\n2\tparle\tB\tX\n')
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
    f = write(tmp_path, 'a.tsv', 'text\ttags\nthe bank\tDET NOUN\nthey play\tPRON VERB\n')
    assert [s.tokens for s in read_tagged(f)[0]] == [['the', 'bank'], ['they', 'play']]

def test_words_called_as_columns_are_are_words(tmp_path):
    f = write(tmp_path, 'a.tsv', 'Text\tNOUN\nfollows\tVERB\n\nWords\tNOUN\n')
    assert [s.tokens for s in read_tagged(f)[0]] == [['Text', 'follows'], ['Words']]

def rows_of(sents, name='sentence_id'):
    rows = [(i, t, g) for i,s in enumerate(sents) for t,g in zip(s.tokens, s.tags)]
    return pd.DataFrame(rows, columns=[name, 'word', 'tag'])

@pytest.mark.parametrize('name', ['sentence_id', 'sent_id', 'Sentence #', 'sentence_number'])
def test_a_token_a_row(tmp_path, name):
    df = rows_of(SENT, name)
    df.to_csv(tmp_path/'a.csv', index=False)
    df.to_parquet(tmp_path/'a.parquet')
    df.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    for o in (df, tmp_path/'a.csv', tmp_path/'a.parquet', tmp_path/'a.jsonl',
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
    with pytest.raises(TypeError, match='got one text: put it into a list'): dls.test_dl('a text')
    with pytest.raises(TypeError, match=r"got DataFrame.*df\['text'\]"):
        dls.test_dl(pd.DataFrame(dict(text=['a'])))
    with pytest.raises(TypeError, match='Sentence 0 is int 3'): dls.test_dl([3])
    with pytest.raises(CorpusError, match='no texts to tag'): dls.test_dl([])

def test_a_tag_of_the_validation_part_alone_is_an_error(corpus):
    s = [(['a'], ['X']), (['b'], ['Y'])]
    with pytest.warns(UserWarning, match="'Z'"):
        dls = TagDataLoaders.from_sents(s, [(['a'], ['Z'])], device='cpu')
    assert list(dls.labels) == ['X', 'Y'] and dls.valid.text.tag_names[-1] == 'Z'
    pred = torch.zeros(1, 1, 2)
    assert not is_right(pred, dls.valid.one_batch()[-1]).any(), 'an error'

def test_prediction_leaves_the_table_of_tokens_alone(dls, lm):
    n = len(dls.train.types)
    learn = elmo_tagger_learner(dls, lm, hidden=4)
    learn.predict('completely unheard words')
    assert len(dls.train.types) == n

# curves

def test_subsets_are_nested():
    data = list(range(1000))
    parts = [study.subset(data, o, 7) for o in (.01, .1, .3, 1.)]
    assert [len(o) for o in parts] == [10, 100, 300, 1000] and parts[-1] == data
    assert all(set(a) < set(b) and a == sorted(a) for a,b in zip(parts, parts[1:]))
    assert study.subset(data, .1, 8) != parts[1]
    assert study.subset(data, 1e-9) == study.subset(data, .001)


def test_commonest_tag():
    table = CommonestTag(
        [Sentence(['a', 'a', 'b', 'c', 'd'], ['X', 'Y', 'Z', 'Z', None]), Sentence(['a'], ['Y'])]
    )
    assert (table(['a', 'b', 'new']) == ['Y', 'Z', 'Z']
            and table.accuracy([Sentence(['a', 'b', 'd'], ['Y', 'X', None])]) == 0.5)
    with pytest.raises(CorpusError, match='no tag'): CommonestTag([])

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
    text = ('#begin document (bc/a); part 000\nbc/a 0 0 In IN (TOP* - *\n'
            'bc/a 0 1 Rome NNP *) - (GPE)\n\n')
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
