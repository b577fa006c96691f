"Loaders of a corpus: each factory, each kind of loader, wrong input"
import pickle
from collections import Counter
import datasets, pandas as pd, pytest
from fastai.data.all import (ColReader, DataBlock, RandomSplitter)
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.data.batches import SentenceDataLoader
from elmo_fastai.data.blog import BiLMBlock
from elmo_fastai.data.loaders import ElmoDataLoaders as Loaders
from loading import found, key, same

# factories

def test_from_corpus():
    c = Corpus('c', dict(train=['a b', '', '  ', 'b c d e'], valid=['a z', '']), 'space')
    dls = Loaders.from_corpus(c, bs=2, max_words=3)
    assert dls.skipped == {'blank lines': 3} and dls.cuts['train'] == (1, 1, 0) and dls.corpus is c
    assert dls.vocab.itos[4:] == ['b', 'a', 'c', 'd'] and 'z' in dls.types.tokens
    given_vocab = WordVocab.build([['z']])
    assert Loaders.from_corpus(c, vocab=given_vocab).vocab is given_vocab
    s = Loaders.from_corpus(c, kind='stream', bs=2, seq_len=4)
    assert (s.valid.size == 1 and sum(int((f != 0).sum()) for _, f, _ in s.valid) == 3
            and not s.train.shuffle)
    assert (Loaders.from_corpus(c).train.shuffle
            and not Loaders.from_corpus(c).valid.shuffle)

def test_the_corpus_says_how_it_was_cut_into_words():
    "Whoever counts on the same text, as a report does, takes the tokenizer of the loaders"
    c = Corpus('c', dict(train=["didn't go"]*20), 'space')
    dls = Loaders.from_corpus(c, tokenizer='words', valid_pct=.25)
    assert dls.corpus.tokenizer == 'words' and c.tokenizer == 'space' and 'did' in dls.vocab.o2i
    assert (len(dls.train.text), len(dls.valid.text)) == (15, 5)

@pytest.mark.parametrize('splits,message', [
    (dict(train=['a']), "1 lines with text can't be split"),
    (dict(train=['a'], valid=['']), "'valid'.*not one word"),
    (dict(train=[], valid=['a']), "no lines to train on|'train'.*empty"),
    (dict(train=['', ' \t'], valid=['a']), "'train'.*2 lines and not one word")])
def test_from_corpus_refuses(splits, message):
    with pytest.raises(CorpusError, match=message):
        Loaders.from_corpus(Corpus('c', splits, 'space'))

def test_kinds_and_sizes_refused():
    c = Corpus('c', dict(train=['a b c']*9, valid=['a']), 'space')
    with pytest.raises(ValueError, match="kind='lm'"): Loaders.from_corpus(c, kind='lm')
    with pytest.raises(ValueError, match="kind='lm'"): BiLMBlock('lm')
    for kw in (dict(bs=0), dict(bs=2.5), dict(max_tokens=-1)):
        with pytest.raises(ValueError, match='whole number'):
            Loaders.from_corpus(c, **{'bs': 2, **kw})
    with pytest.raises(CorpusError, match='context_size=5.*longest here has 3'):
        Loaders.from_corpus(c, kind='cbow', context_size=5)
    with pytest.raises(CorpusError, match='seq_len=500'):
        Loaders.from_corpus(c, kind='stream', bs=1, seq_len=500)
    with pytest.raises(TypeError, match='ElmoTransform'): SentenceDataLoader(['a b'])

def sizes(dls): return len(dls.train.text), len(dls.valid.text)

def test_from_df():
    df = pd.DataFrame(dict(review=['a b', None, 'c\nd', float('nan'), pd.NA, 'e', 'f'],
                           is_valid=[0, 0, 0, 1, 1, 1, 1]))
    dls = Loaders.from_df(df)
    assert dls.skipped['missing rows'] == 3 and sizes(dls) == (3, 2)
    df = df[['review']]
    dls = Loaders.from_df(df[:4], valid_pct=.5)    # whole rows, of which one has two lines
    assert sizes(dls) == (1, 2)
    with pytest.raises(CorpusError, match="'body'.*'review'"):
        Loaders.from_df(df, text_col='body')
    with pytest.raises(CorpusError, match='text_col'): Loaders.from_df(df.rename(columns=dict(review='v')))
    with pytest.raises(CorpusError, match='row 1: 7 is no text'):
        Loaders.from_df(pd.DataFrame({'text': ['a', 7]}))
    with pytest.raises(CorpusError, match='missing or empty'): Loaders.from_df(df, valid_pct=0)

def test_from_dataset():
    d = datasets.Dataset.from_dict({'content': ['a b', 'c', None, 'd', 'e']})
    dls = Loaders.from_dataset(d, valid_pct=.25)
    assert dls.skipped['missing rows'] == 1 and sizes(dls) == (3, 1)
    dls = Loaders.from_dataset(datasets.DatasetDict(train=d, test=d.select([0])))
    assert sizes(dls) == (3, 1) and len(dls.corpus.test) == 1
    with pytest.raises(CorpusError, match='IterableDataset is no table'):
        Loaders.from_dataset(d.to_iterable_dataset())
    with pytest.raises(CorpusError, match="'content'"):
        Loaders.from_dataset(d, text_col='text')
    with pytest.raises(CorpusError, match="'train'"): Loaders.from_dataset({'test': d})

def test_parts_without_one_for_validation_are_split():
    "Whatever else is in the dictionary; of 🤗's IMDB, for instance, `unsupervised`"

    def D(n, word='w'):
        return datasets.Dataset.from_dict(dict(text=[f'{word}{i} .' for i in range(n)]))

    def cut(**parts):
        dls = Loaders.from_dataset(parts, valid_pct=.25, tokenizer='space', device='cpu')
        assert not set(dls.corpus.train) & set(dls.corpus.valid)
        return len(dls.corpus.train), len(dls.corpus.valid), len(dls.corpus.splits.get('test', []))
    assert cut(train=D(40), unsupervised=D(20, 'u')) == (30, 10, 0)
    assert cut(train=D(40), test=D(5, 't'), unsupervised=D(20, 'u')) == (30, 10, 5)
    assert cut(train=D(40), test=D(5, 't'), dev=D(3, 'v')) == (40, 3, 5)

def test_from_files(tmp_path):
    (tmp_path/'a.txt').write_bytes('\ufeffa b\r\n\r\nc d\r\n'.encode('utf-8'))
    (tmp_path/'b.txt').write_text('e\nf')
    kw = dict(bs=2, valid=tmp_path/'b.txt')
    for path in (tmp_path/'a.txt', str(tmp_path/'a.txt'), [tmp_path/'a.txt']):
        dls = Loaders.from_files(path, **kw)
        assert (dls.vocab.itos[4:] == ['a', 'b', 'c', 'd'] and len(dls.valid.text) == 2
                and dls.skipped == {'blank lines': 1})
    dls = Loaders.from_files(tmp_path, valid_pct=.25)
    assert sizes(dls) == (3, 1)
    with pytest.raises(CorpusError, match='no file or folder.*c.txt'):
        Loaders.from_files(tmp_path/'c.txt')
    (tmp_path/'a.txt').write_bytes(b'ok\n\xff')
    with pytest.raises(CorpusError, match="a.txt is not UTF-8: its byte 3 is 0xff"):
        Loaders.from_files(tmp_path)

def test_a_split_for_testing_is_not_cut_up():
    corpus = Corpus('c', dict(train=[f'a {i}' for i in range(20)], test=['b']))
    corpus = Loaders.from_corpus(corpus, bs=2).corpus
    assert corpus.test == ['b'] and len(corpus.valid) == 2

# every door, every kind of loader, every kind of wrong input

KINDS = dict(sentences=dict(bs=2), stream=dict(bs=2, seq_len=4), cbow=dict(bs=2, context_size=1))
each_kind = pytest.mark.parametrize('kind', KINDS)
LINES = ['a b c d', 'b c d e f', 'c d e', 'd e f a b', 'e f', 'f a b c d e']*3

def doors(lines, tmp_path):
    """The loaders of the same lines through each factory; all lines are for training, and the first
    two for validation too"""
    (tmp_path/'t.txt').write_text('\n'.join(lines))
    (tmp_path/'v.txt').write_text('\n'.join(lines[:2]))
    D = lambda o: datasets.Dataset.from_dict({'text': o})
    both = datasets.DatasetDict(train=D(lines), validation=D(lines[:2]))
    corpus = Corpus('c', dict(train=lines, valid=lines[:2]))
    df = pd.DataFrame({'text': lines + lines[:2], 'is_valid': [False]*len(lines) + [True]*2})
    return dict(
        corpus=lambda **kw: Loaders.from_corpus(corpus, **kw),
        df=lambda **kw: Loaders.from_df(df, **kw),
        files=lambda **kw: Loaders.from_files(tmp_path/'t.txt', valid=tmp_path/'v.txt', **kw),
        dataset=lambda **kw: Loaders.from_dataset(both, **kw))

@each_kind
@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_each_factory_for_each_loader(kind, door, tmp_path):
    make = doors(LINES, tmp_path)[door]
    dls, ref = (make(kind=kind, **KINDS[kind]),
                doors(LINES, tmp_path)['corpus'](kind=kind, **KINDS[kind]))
    assert dls.vocab.itos == ref.vocab.itos and len(dls.train) == len(ref.train)
    def bag(dl):
        if kind == 'cbow':
            return Counter((tuple(w.tolist()), key(c), int(y)) for b in dl for w, c, y in zip(*b))
        return Counter(found(dl))
    assert bag(dls.train) == bag(ref.train) and bag(dls.valid) == bag(ref.valid)
    assert len(dls.train.show_batch(show=False)) and dls.corpus.splits.keys() >= {'train', 'valid'}
    assert (len(pickle.loads(pickle.dumps(dls)).train) == len(ref.train)
            and len(dls.new_empty().train) == 0)

@each_kind
def test_worker_processes_through_the_factory(kind):
    c = Corpus('c', dict(train=LINES, valid=LINES[:3]), 'space')
    one, two = [list(Loaders.from_corpus(
        c, kind=kind, seed=1, shuffle=True, num_workers=n, **KINDS[kind]).train) for n in (0, 2)]
    assert same(one, two)

@pytest.mark.parametrize('bad', [7, b'abc', True, dict(a=1), ['a', 3]])
def test_rows_that_are_no_text(bad):
    df = pd.DataFrame({'text': ['a b', 'c', bad, 'd']}, dtype=object)
    with pytest.raises(CorpusError, match="column 'text', row 2: .* is no text"):
        Loaders.from_df(df, valid_pct=0.5)
    block = DataBlock(
        blocks=BiLMBlock(), get_x=ColReader('text'), splitter=lambda o: ([0, 1, 2], [3])
    )
    if not isinstance(bad, list):
        with pytest.raises(CorpusError, match="row 2 has no text but"): block.dataloaders(df, bs=2)

@pytest.mark.parametrize('bad', [None, float('nan'), pd.NA, pd.NaT])
def test_missing_rows(bad):
    df = pd.DataFrame({'text': ['a b', 'c', bad, 'd']}, dtype=object, index=[10, 11, 12, 13])
    dls = Loaders.from_df(df, valid_pct=.5)
    assert dls.skipped['missing rows'] == 1
    for held in ([3], [2]):  # in the training items, in the validation items
        block = DataBlock(blocks=BiLMBlock(), get_x=ColReader('text'),
                          splitter=lambda o: ([i for i in range(4) if i not in held], held))
        with pytest.raises(CorpusError, match='row 12 has no text but'): block.dataloaders(df, bs=2)

@each_kind
def test_blank_texts_are_counted_at_each_door(kind, tmp_path):
    lines = [*LINES[:5], '', ' \t ', *LINES[5:]]
    for name,make in doors(lines, tmp_path).items():
        dls = make(kind=kind, **KINDS[kind])
        assert dls.skipped['blank lines'] == 2, name

@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_nothing_but_white_space(door, tmp_path):
    with pytest.raises(
        CorpusError, match="there is no text|not one word"
    ):
        doors([' ', '\t'], tmp_path)[door]()

@pytest.mark.parametrize('door', ['corpus', 'df', 'files', 'dataset'])
def test_windows_that_do_not_fit(door, tmp_path):
    make = doors(LINES, tmp_path)[door]
    with pytest.raises(CorpusError, match='context_size=9.*longest.* 6'):
        make(kind='cbow', context_size=9)
    with pytest.raises(CorpusError, match='seq_len=5000'): make(kind='stream', bs=1, seq_len=5000)

@pytest.mark.parametrize('door', ['df', 'dataset'])
def test_text_column_missing(door, tmp_path):
    with pytest.raises(CorpusError, match="no column 'body'; the columns are 'text'"):
        doors(LINES, tmp_path)[door](text_col='body')

def test_text_column_missing_in_block():
    df = pd.DataFrame({'text': LINES})
    block = DataBlock(blocks=BiLMBlock(), get_x=ColReader('body'), splitter=RandomSplitter(seed=1))
    with pytest.raises((AttributeError, KeyError), match='body'): block.dataloaders(df)

def test_limits_are_reported():
    c = Corpus('c', dict(train=['a b c d', 'x'*100], valid=['a b c']), 'space')
    dls = Loaders.from_corpus(c, max_words=2)
    assert dls.cuts == dict(train=(1, 2, 1), valid=(1, 1, 0))

def test_notes_are_dropped_for_other_tokens():
    gold = [Sentence(['a', 'b'], ['X', 'Y']), Sentence(['it', "isn't"], ['X', 'Y'])]
    c = Corpus('c', dict(train=[s.text for s in gold], valid=['a']), 'space', dict(train=gold))
    assert Loaders.from_corpus(c).train.text.notes
    assert not Loaders.from_corpus(c, tokenizer='words').train.text.notes

def test_misspelt_arguments():
    c = Corpus('c', dict(train=['a b c']*4, valid=['a b c']), 'space')
    with pytest.raises(TypeError, match="no loader has an argument 'contxt_size'"):
        Loaders.from_corpus(c, kind='cbow', contxt_size=1)
    with pytest.raises(ValueError, match='bs must be'): Loaders.from_corpus(c, val_bs=0)

@each_kind
def test_a_loader_of_other_text(kind):
    "In its order, by the same words; what is no list of texts is refused"
    dls = Loaders.from_corpus(Corpus('c', dict(train=LINES, valid=LINES)), kind=kind,
                                      **KINDS[kind])
    n = len(dls.types)
    dl = dls.test_dl(['a b c d e f g', ['f', 'a', 'b', 'c', 'd']])
    assert sum(len(b[-1]) for b in dl) and len(dls.types) == n and dl.vocab is dls.vocab
    for wrong,why in (('a text', 'put it into a list'), (None, 'list')):
        with pytest.raises(TypeError, match=why): dls.test_dl(wrong)
    with pytest.raises(CorpusError, match='no texts'): dls.test_dl([])

@each_kind
def test_token_lists_stay_as_they_are(kind, tmp_path):
    "At each door, with a blank in a token, and whatever the tokenizer"
    sents = [['New York', "isn't", 'a', 'b', 'c'], ['d', 'e', 'f', 'g', 'New York']]*6
    rows = [*enumerate(sents[0], 1), None, *enumerate(sents[1], 1), None]*6
    (tmp_path/'a.conllu').write_text('\n'.join('' if row is None else '\t'.join(
        [str(row[0]), row[1], *'________']) for row in rows))
    data = datasets.Dataset.from_dict(dict(tokens=sents))
    for source in (sents, data, data.to_pandas(), tmp_path/'a.conllu'):
        dls = Loaders.from_corpus(source, kind=kind, **KINDS[kind])
        assert dls.corpus.train[0] == sents[0] and 'New York' in dls.vocab.o2i, source

def test_the_four_factories_are_one(tmp_path):
    (tmp_path/'a.txt').write_text('\n'.join(LINES))
    for make in (Loaders.from_corpus, Loaders.from_df, Loaders.from_files, Loaders.from_dataset):
        assert len(make(tmp_path/'a.txt').valid.text) == 2
    corpus = Corpus('c', dict(train=LINES))
    for said in (dict(valid=['a']), dict(text_col='text'), dict(token_col=0)):
        with pytest.raises(CorpusError, match='splits of its own'): Loaders.from_corpus(corpus, **said)
    with pytest.raises(TypeError, match='split_seed'): Loaders.from_df(tmp_path/'a.txt', split_seed=1)

def test_loaders_say_what_they_read(tmp_path):
    (tmp_path/'a.csv').write_text('id,review\n' + ''.join(f'{i},a film {i}\n' for i in range(20)))
    said = repr(Loaders.from_files(tmp_path/'a.csv'))
    for words in ('a.csv', "text 'review'", 'columns id, review', 'the last 10% (valid)',
                  'rows train 18, valid 2', "first row 'a film 0'"): assert words in said
    assert '\n' not in said
