"""Each door that takes texts: as many answers as there are texts, each in its place, in any form of
a list, however letters are written; rows that are refused; and what holds a tokenizer is pickled"""
import copy, pickle, pickletools, re, threading, unicodedata, warnings, zipfile

import numpy as np, pandas as pd, pytest
from datasets import Dataset
from fastai.basics import L, load_learner

from elmo_fastai.all import *
from elmo_fastai.batches import BiLMBlock, TokenTypes
from elmo_fastai.errors import CorpusError
from elmo_fastai.learner import fill, score
from elmo_fastai.practice.streams import BufferedDataLoader
from elmo_fastai.practice.embed import ElmoVectorizer
from elmo_fastai.tagger import TokensTransform, WordsBlock
from elmo_fastai.text.read import Sentence
from made import CFG, VOCAB, bilm, make, quietly

A, B = 'the bank of the river', 'a much longer text than the others .'
BLANK = '', ' \t\n', '\xa0', '\u200b', []
CPU = dict(device='cpu', bs=4)
TAGGED = [Sentence(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC']),
          Sentence(['it', 'rains'], ['O', 'O'])]*8
ROWS = pd.DataFrame([('a good film', 'good'), ('it was bad', 'bad')]*8, columns=['text', 'label'])

@pytest.fixture(scope='module')
def elmo(): return make(tokenizer='words')

def tagger_of(**kwargs):
    dls = TagDataLoaders.from_sents(TAGGED, **CPU, **kwargs)
    return elmo_tagger_learner(dls, bilm(n_words=0), 'both', words=4, chars=4, hidden=8)

@pytest.fixture(scope='module')
def tagger(): return tagger_of()

def classifier(**kwargs):
    dls = ClassifyDataLoaders.from_df(ROWS, **CPU, **kwargs)
    return elmo_classifier_learner(dls, Elmo(bilm(0, 0)), proj_dim=8, hidden=4)

@pytest.fixture(scope='module')
def learn(): return classifier()

def language(tokenizer='words', lines=(A, 'a bank', B, 'river of the bank')*4, **kwargs):
    corpus = Corpus('c', dict(train=[*lines], valid=[*lines]), tokenizer)
    return ElmoDataLoaders.from_corpus(corpus, seed=1, bs=2, device='cpu', **kwargs)

def probabilities(learn, texts, **kwargs):
    "The probabilities of each text; of a tagger those of its tokens"
    dl = learn.dls.test_dl(texts, **kwargs)
    found = quietly(learn, learn.get_preds, dl=dl)[0]
    return [p[:n] if p.ndim > 1 else p for p,n in zip(found, dl.res)]

def padded(elmo, texts):
    (vectors,), mask = elmo(texts)
    return [row[real].detach() for row,real in zip(vectors, mask)]

DOORS = {   # the answers to a list of texts, one each
    'embed': lambda elmo, tagger, learn, texts: elmo.embed(texts, 'all', 'mean'),
    'Elmo': lambda elmo, tagger, learn, texts: padded(elmo, texts),
    'ElmoVectorizer': lambda elmo, tagger, learn, texts:
        ElmoVectorizer(elmo).fit([]).transform(texts),
    'score': lambda elmo, tagger, learn, texts: [np.r_[one.fwd, one.bwd] for one in score(
        elmo.lm, VOCAB, elmo.char_vocab, texts, tokenizer='words')],
    'generate': lambda elmo, tagger, learn, texts: generate(
        elmo.lm, VOCAB, elmo.char_vocab, texts, 3, tokenizer='words', temperature=0),
    'tag': lambda elmo, tagger, learn, texts: [*map(str, tagger.tag(texts))],
    'tags of test_dl': lambda elmo, tagger, learn, texts: probabilities(tagger, texts, bs=2),
    'classes of test_dl': lambda elmo, tagger, learn, texts: probabilities(learn, texts, bs=2)}
EMPTY = {   # of a text without a token
    'embed': np.zeros((3, 16)), 'Elmo': np.zeros((0, 16)), 'ElmoVectorizer': np.zeros(16),
    'tag': '[]', 'tags of test_dl': np.zeros((0, 3)), 'classes of test_dl': np.full(2, np.nan)}
each_door = pytest.mark.parametrize('door', DOORS)

@pytest.fixture
def ask(door, elmo, tagger, learn): return lambda texts: DOORS[door](elmo, tagger, learn, texts)

def alike(a, b):
    if isinstance(a, str): return a == b
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.allclose(a, b, atol=1e-5, rtol=0, equal_nan=True)

@each_door
@pytest.mark.filterwarnings('ignore:.*have no token')
def test_a_blank_has_its_place(door, ask):
    for blank in BLANK:
        texts = [A, blank, B, blank, blank, 'it']
        found = ask(texts)
        assert len(found) == len(texts)
        for text,answer in zip(texts, found):
            if text != blank: assert alike(answer, ask([text])[0])
            elif door in EMPTY: assert alike(answer, EMPTY[door])
        assert all(map(alike, ask([blank]*3), [found[1]]*3)), 'blanks alone'

FORMS = (L, iter, lambda texts: np.array(texts, object),
         lambda texts: pd.Series(texts, range(7, 3, -1)),
         lambda texts: pd.Series(texts, dtype='category'),
         lambda texts: Dataset.from_dict(dict(text=texts))['text'])

@each_door
@pytest.mark.filterwarnings('ignore:.*have no token')
def test_each_form_of_a_list(ask, door):
    texts = [A, '', B, ' ']
    wanted = ask(texts)
    for form in FORMS: assert all(map(alike, ask(form(texts)), wanted))
    if 'test_dl' in door:
        with pytest.raises(CorpusError, match='nothing to read'): ask([])
    else: assert len(ask([])) == 0

@each_door
def test_what_is_no_list_of_texts_is_refused(ask, door):
    "An item is named by its place; a table is a list for loaders alone"
    for wrong in (None, float('nan'), pd.NA, 3, b'bytes', ['the', 3], {'a': 1}):
        with pytest.raises((TypeError, CorpusError)) as e: ask([A, '', wrong])
        assert '2' in str(e.value) and '\n' not in str(e.value)
    for wrong in ({A: 1}, {A, B}, 3):
        with pytest.raises((TypeError, CorpusError)): ask(wrong)
    if door in ('ElmoVectorizer', 'classes of test_dl'): return
    with pytest.raises((TypeError, CorpusError), match=r"df\['text'\]|no column 'tokens'"):
        ask(pd.DataFrame(dict(text=[A, B])))

def test_a_blank_row_of_a_table(learn, tagger, tmp_path):
    data = pd.DataFrame(dict(text=[A, '', B, '\u200b']), index=[4, 5, 6, 7])
    data.to_csv(tmp_path/'new.csv')
    with pytest.warns(UserWarning, match='2 of 4 texts'):
        for source in (tmp_path/'new.csv', data, Dataset.from_pandas(data)):
            found = [p.isnan().all() for p in probabilities(learn, source)]
            assert found == [False, True, False, True]
    data = pd.DataFrame(dict(tokens=[['Ann'], [], ['it', 'rains'], []]))
    assert [len(p) for p in probabilities(tagger, data, bs=2)] == [1, 0, 2, 0]

# how letters are written, and tokens that are cut

TEXT = 'Zo\u00eb likes the caf\u00e9'
LONG = f'the caf\u00e9 {"x"*60}1 and {"x"*60}2'

def ids_of(dls): return [dls.vocab.itos, *[b.tolist() for dl in dls for batch in dl for b in batch]]

def of_stream(text, folder):
    (folder/'a.txt').write_text('\n'.join([text]*20), encoding='utf-8')
    return ids_of(stream_loaders(folder/'a.txt', n_valid=2, seed=1, **CPU))

def filled(text): return list(fill(make().lm, VOCAB, ByteCharVocab(), f'{text} ___ {text}',
                                   tokenizer='words').p.round(4))
MORE = {    # what else is made of a text
    'from_corpus': lambda text, folder: ids_of(language(lines=[text]*9)),
    'stream_loaders': of_stream, 'fill': lambda text, folder: filled(text),
    'ElmoTransform': lambda text, folder: ElmoTransform(vocab=VOCAB)(text).chars.tolist(),
    'NGramsTokenizer': lambda text, folder: NGramsTokenizer(2)(text)}

def test_a_text_is_the_same_however_its_letters_are_written(elmo, tagger, learn, tmp_path):
    one, two = (unicodedata.normalize(form, TEXT) for form in ('NFC', 'NFD'))
    for door in DOORS.values():
        assert alike(*(door(elmo, tagger, learn, [o])[0] for o in (one, two)))
    for made in MORE.values(): assert made(one, tmp_path) == made(two, tmp_path)

def test_tokens_and_texts_for_ai2s_models_stay_as_they_are(tmp_path):
    one, two = 'caf\u00e9', 'cafe\u0301'
    elmo = make(cfg=dict(norm=False))
    assert make().to_tokens([[two]]) == [[two]] != make().to_tokens([two])
    theirs = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'))
    kept = Elmo.from_pretrained(theirs.save_pretrained(tmp_path/'kept'))
    for model in (theirs, kept): assert model.to_tokens([two, one]) == [[two], [one]]
    assert Elmo.from_ai2(tmp_path/'ai2', nfc=True).to_tokens([two]) == [[one]]

def told(call, *args):
    "How many tokens each warning counts"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        call(*args)
    counts = [re.match(r'([\d,]+) tokens? (?:is|are) cut, longer than the 48 bytes', str(w.message))
              for w in found]
    return [int(count[1].replace(',', '')) for count in counts if count]

def test_one_warning_of_a_call_counts_the_tokens_that_are_cut(elmo, tagger, learn, tmp_path):
    for door in DOORS.values():
        assert told(door, elmo, tagger, learn, [LONG]*3) == [6]
        assert told(door, elmo, tagger, learn, [TEXT]) == []
    assert told(lambda: list(elmo.embed_iter(iter([LONG]*3000)))) == [6000]
    sents = [Sentence(LONG.split(), ['O', 'X', 'O', 'O', 'O'])]*10
    assert told(lambda: TagDataLoaders.from_sents(sents, sents, **CPU)) == [40]

# rows with labels

def rows_with(text):
    rows = ROWS[:4].assign(text=[*ROWS.text[:2], text, ROWS.text[3]])
    return rows.set_axis([5, 6, 7, 8])

def sents_with(tokens):
    rows = pd.DataFrame(dict(tokens=[s.tokens for s in TAGGED], tags=[s.tags for s in TAGGED]))
    rows.at[7, 'tokens'] = tokens
    if tokens == []: rows.at[7, 'tags'] = []
    return rows

LABELLED = {             # doors where a text without a token has a label, or tags
    'train': lambda learn, tagger, text: ClassifyDataLoaders.from_df(rows_with(text), valid=ROWS),
    'valid': lambda learn, tagger, text: ClassifyDataLoaders.from_df(ROWS, valid=rows_with(text)),
    'report': lambda learn, tagger, text: learn.report(rows_with(text)),
    'train, tags': lambda learn, tagger, text: TagDataLoaders.from_sents(sents_with(text)),
    'valid, tags': lambda learn, tagger, text: TagDataLoaders.from_sents(TAGGED, sents_with(text)),
    'report, tags': lambda learn, tagger, text: tagger.report(sents_with(text))}

@pytest.mark.parametrize('door', LABELLED)
def test_a_labelled_row_without_text_is_refused_by_its_name(door, learn, tagger):
    for blank in (*BLANK, None):
        with pytest.raises(CorpusError, match='^row 7'): LABELLED[door](learn, tagger, blank)

# language models

def test_a_blank_is_a_row_without_a_target():
    dls = language()
    with_blanks, without = dls.test_dl([A, '', B, ' ', []]), dls.test_dl([A, B])
    rows = [row for chars,*targets in with_blanks for row in zip(chars, *targets)]
    assert [int((fwd != 0).sum()) for _,fwd,_ in rows] == [6, 0, 9, 0, 0]
    assert [int((bwd != 0).sum()) for *_,bwd in rows] == [6, 0, 9, 0, 0]
    learn = bilm_learner(dls, CFG, bf16=False)
    assert np.allclose(*[quietly(learn, learn.validate, dl=dl) for dl in (with_blanks, without)])
    dl = dls.test_dl(['', ' '])
    assert quietly(learn, learn.validate, dl=dl)[1:] == [None, None]
    assert all(len(nats) == 0 for nats in quietly(learn, learn.get_preds, dl=dl)[0])

# what holds a tokenizer

class Locked:
    "A tokenizer that nothing can pickle"
    def __init__(self): self.lock = threading.Lock()
    def __call__(self, text): return text.split()

def split(text): return text.split()
SHORT = lambda text: text.split()

def elmo_of(tokenizer): return Elmo(bilm(n_words=0), tokenizer=tokenizer).eval()

KINDS = {'classifier': lambda tok: classifier(tokenizer=tok),
         'tagger': lambda tok: tagger_of(tokenizer=tok),
         'language learner': lambda tok: bilm_learner(language(tok), CFG, bf16=False)}
MADE = KINDS | {
    'Elmo': elmo_of, 'TokenTypes': lambda tok: TokenTypes(VOCAB, None, tok),
    'ElmoVectorizer': lambda tok: ElmoVectorizer(elmo_of(tok)).fit([]),
    'a stream': lambda tok: BufferedDataLoader([('a.txt', 0)], VOCAB, 1, tokenizer=tok, bs=2),
    'corpus': lambda tok: Corpus('c', dict(train=[A]), tok),
    'blocks': lambda tok: [ElmoBlock(tok), WordsBlock(tokenizer=tok), BiLMBlock(tokenizer=tok)],
    'transforms': lambda tok: [ElmoTransform(tokenizer=tok), TokensTransform(tokenizer=tok),
                               NGramsTokenizer(2, tok)]}

@pytest.mark.parametrize('kind', MADE)
def test_it_is_pickled_with_the_tokenizer_and_copied_with_any(kind):
    for tokenizer in ('words', split, str.split): pickle.loads(pickle.dumps(MADE[kind](tokenizer)))
    copy.deepcopy(MADE[kind](SHORT)), copy.copy(MADE[kind](SHORT))

@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.filterwarnings('ignore:load_learner')
def test_exports(kind, tmp_path):
    "With any function; one that fails leaves all as it was; no path of this system is in the file"
    asked = (['the bank'], 0) if kind == 'language learner' else ('the bank',)
    learn = KINDS[kind](Locked())
    learn.path = tmp_path
    (tmp_path/'export.pkl').write_bytes(b'an earlier one')
    with pytest.raises((TypeError, pickle.PicklingError)): learn.export()
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == {'export.pkl': b'an earlier one'}
    quietly(learn, 'fit', 1, 1e-3)
    for tokenizer in (SHORT, 'words'):
        learn = KINDS[kind](tokenizer)
        learn.path = tmp_path
        learn.export()
        again = load_learner(tmp_path/'export.pkl')
        assert repr(again.predict(*asked)[0]) == repr(learn.predict(*asked)[0])
    with zipfile.ZipFile(tmp_path/'export.pkl') as z:
        [name] = [name for name in z.namelist() if name.endswith('data.pkl')]
        names = {arg for _,arg,_ in pickletools.genops(z.read(name)) if isinstance(arg, str)}
    assert not any('pathlib' in name or 'PosixPath' in name for name in names)
    assert type(again) is type(learn)
