"""A list of texts gets as many answers, each in its place

A text without a token (blank, or an empty list) has an empty answer; where nothing is, or a number,
the list is refused, and the error names the place. And so at each door that takes a list."""
import warnings
from dataclasses import replace

import numpy as np, pandas as pd, pytest
from datasets import Dataset
from fastai.basics import L

from elmo_fastai.errors import CorpusError
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.classifier import ClassifyDataLoaders, elmo_classifier_learner
from elmo_fastai.elmo import Elmo
from elmo_fastai.practice.embed import ElmoVectorizer
from elmo_fastai.tagger import TagDataLoaders, elmo_tagger_learner
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.learner import bilm_learner, generate, score
from made import CFG, VOCAB, bilm, make, quietly

A, B = 'the bank of the river', 'a much longer text than the others .'
BLANK = {'nothing': '', 'blanks': ' \t\n', 'no-break': '\xa0', 'no width': '\u200b', 'no token': []}

@pytest.fixture(scope='module')
def elmo(): return make(tokenizer='words')

TAGGED = [Sentence(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC']),
          Sentence(['it', 'rains'], ['O', 'O'])]*8
ROWS = pd.DataFrame([('a good film', 'good'), ('it was bad', 'bad')]*8, columns=['text', 'label'])
CPU = dict(device='cpu', bs=4)

@pytest.fixture(scope='module')
def tagger():
    dls = TagDataLoaders.from_sents(TAGGED, **CPU)
    return elmo_tagger_learner(dls, bilm(n_words=0), 'both', words=4, chars=4, hidden=8)

def classifier(pool='attention', **kwargs):
    dls = ClassifyDataLoaders.from_df(ROWS, **CPU, **kwargs)
    return elmo_classifier_learner(dls, Elmo(bilm(0, 0)), pool=pool, proj_dim=8, hidden=4)

@pytest.fixture(scope='module')
def learn(): return classifier()

def language(kind='sentences', **kwargs):
    lines = [A, 'a bank', B, 'river of the bank']*4
    return ElmoDataLoaders.from_corpus(Corpus('c', dict(train=lines, valid=lines)), kind=kind,
                                       seed=1, bs=2, device='cpu', **kwargs)

def tagged(learn, texts, **kwargs):
    return [str(answer) for answer in learn.tag(texts, **kwargs)]

def probabilities(learn, texts, **kwargs):
    "The probabilities of each text; of a tagger those of its tokens"
    dl = learn.dls.test_dl(texts, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        found = quietly(learn, learn.get_preds, dl=dl)[0]
    return [p[:n] if p.ndim > 1 else p for p,n in zip(found, dl.res)]

def figures(scored): return [np.r_[one.fwd, one.bwd] for one in scored]

DOORS = {   # the answers to a list of texts, one each
    'embed': lambda elmo, tagger, learn, texts: elmo.embed(texts),
    'embed, pooled': lambda elmo, tagger, learn, texts: elmo.embed(texts, 'all', 'mean'),
    'Elmo': lambda elmo, tagger, learn, texts:
        [row[real].detach() for row,real in zip(elmo(texts)[0][0], elmo(texts)[1])],
    'ElmoVectorizer': lambda elmo, tagger, learn, texts:
        ElmoVectorizer(elmo).fit([]).transform(texts),
    'score': lambda elmo, tagger, learn, texts:
        figures(score(elmo.lm, VOCAB, elmo.char_vocab, texts, tokenizer='words')),
    'generate': lambda elmo, tagger, learn, texts: generate(
        elmo.lm, VOCAB, elmo.char_vocab, texts, 3, tokenizer='words', temperature=0),
    'tag': lambda elmo, tagger, learn, texts: tagged(tagger, texts),
    'spans': lambda elmo, tagger, learn, texts: tagged(tagger, texts, as_spans=True),
    'tags of test_dl': lambda elmo, tagger, learn, texts: probabilities(tagger, texts, bs=2),
    'classes of test_dl': lambda elmo, tagger, learn, texts: probabilities(learn, texts, bs=2),
}
EMPTY = {   # of a text without a token
    'embed': np.zeros((0, 16)), 'embed, pooled': np.zeros((3, 16)),
    'Elmo': np.zeros((0, 16)), 'ElmoVectorizer': np.zeros(16), 'tag': '[]', 'spans': '[]',
    'tags of test_dl': np.zeros((0, 3)), 'classes of test_dl': np.full(2, np.nan)}
each_door = pytest.mark.parametrize('door', DOORS)

@pytest.fixture
def ask(door, elmo, tagger, learn): return lambda texts: DOORS[door](elmo, tagger, learn, texts)

def alike(a, b):
    if isinstance(a, str): return a == b
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.allclose(a, b, atol=1e-5, rtol=0, equal_nan=True)

@each_door
@pytest.mark.parametrize('blank', BLANK.values(), ids=BLANK)
def test_a_blank_has_its_place(door, ask, blank):
    texts = [A, blank, B, blank, blank, 'it']
    found = ask(texts)
    assert len(found) == len(texts)
    for text,answer in zip(texts, found):
        if text != blank: assert alike(answer, ask([text])[0])
        elif door in EMPTY: assert alike(answer, EMPTY[door])
    assert [alike(a, b) for a,b in zip(ask([blank]*3), [found[1]]*3)] == [True]*3, 'blanks alone'

FORMS = {'L': L, 'generator': iter, 'objects': lambda texts: np.array(texts, object),
         'another index': lambda texts: pd.Series(texts, range(7, 3, -1)),
         'categories': lambda texts: pd.Series(texts, dtype='category'),
         'column of a data set': lambda texts: Dataset.from_dict(dict(text=texts))['text']}

@each_door
@pytest.mark.parametrize('form', FORMS.values(), ids=FORMS)
def test_each_form_of_a_list(ask, form, door):
    texts = [A, '', B, ' ']
    if door == 'Elmo' and form is iter: form = list              # it is asked twice here
    assert all(map(alike, ask(form(texts)), ask(texts)))

@each_door
@pytest.mark.parametrize('wrong', [None, float('nan'), pd.NA, 3, b'bytes', ['the', 3], {'a': 1}], ids=str)
def test_what_is_no_text_is_refused_with_its_place(ask, door, wrong):
    with pytest.raises((TypeError, CorpusError)) as e: ask([A, '', wrong])
    assert '2' in str(e.value) and '\n' not in str(e.value)

@each_door
@pytest.mark.parametrize('wrong', [{A: 1}, {A, B}, 3], ids=['dictionary', 'set', 'number'])
def test_what_is_no_list_is_refused(ask, door, wrong):
    with pytest.raises((TypeError, CorpusError)): ask(wrong)

@each_door
def test_an_empty_list_and_a_table(door, ask):
    "A table is no list of texts; but its only column is one, and loaders read the column of training"
    if 'test_dl' in door:
        with pytest.raises(CorpusError, match='nothing to read'): ask([])
    else: assert len(ask([])) == 0
    if door in ('ElmoVectorizer', 'classes of test_dl'): return
    error, cure = TypeError, r"df\['text'\]"
    if door == 'tags of test_dl': error, cure = CorpusError, "no column 'tokens'"
    with pytest.raises(error, match=cure): ask(pd.DataFrame(dict(text=[A, B])))

# rows without labels

@pytest.mark.parametrize('form', ['.csv', 'table', 'data set'])
def test_a_blank_row_of_a_table(learn, tmp_path, form):
    data = pd.DataFrame(dict(text=[A, '', B, '\u200b']), index=[4, 5, 6, 7])
    file = tmp_path/'new.csv'
    data.to_csv(file)
    source = {'.csv': file, 'table': data, 'data set': Dataset.from_pandas(data)}[form]
    assert [p.isnan().all() for p in probabilities(learn, source)] == [False, True, False, True]

def test_blank_rows_of_tokens(tagger):
    data = pd.DataFrame(dict(tokens=[['Ann'], [], ['it', 'rains'], []]))
    assert [len(p) for p in probabilities(tagger, data, bs=2)] == [1, 0, 2, 0]
    sents = [Sentence(tokens) for tokens in data.tokens]
    assert [len(p) for p in probabilities(tagger, sents)] == [1, 0, 2, 0]

def test_a_blank_between_tokens():
    "A tokenizer may leave one that is no token to a model"
    dls = TagDataLoaders.from_sents(TAGGED, tokenizer='space', **CPU)
    dl = dls.test_dl(['a \xa0 b', '\xa0', ['c']])
    assert [dls.char_vocab.decode(dl.create_item(i)[0]) for i in range(3)] == [['a', 'b'], [], ['c']]

@pytest.mark.parametrize('label_delim', [None, ';'])
@pytest.mark.parametrize('pool', ['attention+max', 'mean'])
def test_a_text_without_a_token_has_no_class(pool, label_delim):
    "What the network makes of nothing is no answer"
    learn = classifier(pool, label_delim=label_delim)
    dl = learn.dls.test_dl([A, '', B, []])
    with pytest.warns(UserWarning) as said:
        p, _, d = quietly(learn, learn.get_preds, dl=dl, with_decoded=True)
    [warning] = said
    assert str(warning.message).startswith('2 of 4 texts have no token, the first is number 1')
    assert p.isnan().all(1).tolist() == p.isnan().any(1).tolist() == [False, True, False, True]
    assert not d[1].any() if label_delim else d[1] < 0
    with pytest.warns(UserWarning, match='1 of 1 texts') as said:
        answer, number, q = learn.predict('')
    assert len(said) == 1 and answer is None and q.isnan().all() and number.equal(d[1])

def test_no_attention_on_nothing(learn):
    assert len(learn.attention('')) == 0 and learn.attention(A).sum() == pytest.approx(1)

# rows with labels

def rows_with(text):
    rows = ROWS[:4].assign(text=[*ROWS.text[:2], text, ROWS.text[3]])
    return rows.set_axis([5, 6, 7, 8])

def sents_with(tokens):
    rows = pd.DataFrame(dict(tokens=[sent.tokens for sent in TAGGED], tags=[s.tags for s in TAGGED]))
    rows.at[7, 'tokens'] = tokens
    if tokens == []: rows.at[7, 'tags'] = []
    return rows

LABELLED = {             # doors where a text without a token has a label, or tags
    'train': lambda learn, tagger, text: ClassifyDataLoaders.from_df(rows_with(text), valid=ROWS),
    'valid': lambda learn, tagger, text: ClassifyDataLoaders.from_df(ROWS, valid=rows_with(text)),
    'test_dl': lambda learn, tagger, text: learn.dls.test_dl(rows_with(text), with_labels=True),
    'report': lambda learn, tagger, text: learn.report(rows_with(text)),
    'train, tags': lambda learn, tagger, text: TagDataLoaders.from_sents(sents_with(text)),
    'valid, tags': lambda learn, tagger, text: TagDataLoaders.from_sents(TAGGED, sents_with(text)),
    'test_dl, tags': lambda learn, tagger, text:
        tagger.dls.test_dl(sents_with(text), with_labels=True),
    'report, tags': lambda learn, tagger, text: tagger.report(sents_with(text))}

@pytest.mark.parametrize('door', LABELLED)
@pytest.mark.parametrize('blank', [*BLANK.values(), None], ids=[*BLANK, 'None'])
def test_a_labelled_row_without_text_is_refused_by_its_name(door, blank, learn, tagger):
    with pytest.raises(CorpusError, match='^row 7') as e: LABELLED[door](learn, tagger, blank)
    assert '\n' not in str(e.value)

# language models

def test_a_blank_is_a_row_without_a_target():
    dls = language()
    with_blanks, without = dls.test_dl([A, '', B, ' ', []]), dls.test_dl([A, B])
    rows = [row for chars,*targets in with_blanks for row in zip(chars, *targets)]
    assert len(rows) == 5
    assert [int((fwd != 0).sum()) for _,fwd,_ in rows] == [6, 0, 9, 0, 0]
    assert [int((bwd != 0).sum()) for *_,bwd in rows] == [6, 0, 9, 0, 0]
    learn = bilm_learner(dls, CFG, bf16=False)
    assert np.allclose(*[quietly(learn, learn.validate, dl=dl) for dl in (with_blanks, without)])
    for forms in ((A, B), pd.Series([A, B]), iter([A, B]), np.array([A, B])):
        assert len(dls.test_dl(forms).text) == 2

@pytest.mark.parametrize('changes', [{}, dict(softmax='adaptive', cutoffs=(6,)),
                                     dict(share_softmax=False)], ids=str)
def test_nothing_but_blanks(changes):
    dls = language()
    learn = bilm_learner(dls, replace(CFG, **changes), bf16=False)
    dl = dls.test_dl(['', ' '])
    assert [len(b[0]) for b in dl] == [2]
    assert quietly(learn, learn.validate, dl=dl)[1:] == [None, None]
    assert all(len(nats) == 0 for nats in quietly(learn, learn.get_preds, dl=dl)[0])
    assert len(learn.predict(['', 'a'], 2)) == 2

def test_batches_that_have_no_place_for_a_text():
    "Their rows are pieces of the text: blanks change nothing"
    dls = language('stream', seq_len=4)
    found, wanted = [list(dls.test_dl(texts)) for texts in ([A, '', B, ' '], [A, B])]
    assert len(found) == len(wanted)
    for b,c in zip(found, wanted): assert all(x.equal(y) for x,y in zip(b, c))
    with pytest.raises(CorpusError, match='not one word'): dls.test_dl(['', ' '])
