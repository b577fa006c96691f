"""A list of texts gets as many answers, each in its place

A text without a token (blank, or an empty list) has an empty answer; where nothing is, or a number,
the list is refused, and the error names the place. And so at each door that takes a list."""
import json, warnings
from dataclasses import replace

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import L
from fastai.data.all import ColReader, DataBlock, RandomSplitter

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.data.blog import BiLMBlock
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.data.tagged import TagDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.elmo.vectorizer import ElmoVectorizer
from elmo_fastai.nn.bilm import BiLM
import elmo_fastai.tasks.annotate                                # it gives learners `annotate`
from elmo_fastai.tasks.cbow import cbow_learner
from elmo_fastai.tasks.classify import elmo_classifier_learner
from elmo_fastai.tasks.tag import elmo_tagger_learner
from elmo_fastai.text.corpora import Corpus, Sentence
from elmo_fastai.train.learner import bilm_learner
from elmo_fastai.train.speak import generate, score
from made import CFG, VOCAB, bilm, close, make, quietly

A, B = 'the bank of the river', 'a much longer text than the others .'
BLANK = {'nothing': '', 'blanks': '   ', 'line end': '\n', 'tab': '\t', 'no-break': '\xa0',
         'no width': '\u200b', 'byte-order mark': '\ufeff', 'no token': []}

@pytest.fixture(scope='module')
def elmo(): return make(tokenizer='words')

@pytest.fixture(scope='module')
def tagger():
    sents = [(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC']), (['it', 'rains'], ['O', 'O'])]*8
    dls = TagDataLoaders.from_sents(sents, device='cpu', seed=1, bs=4)
    return elmo_tagger_learner(dls, bilm(n_words=0), 'both', words=4, chars=4, hidden=8)

def classifier(kind='class', pool='attention'):
    labels = {'class': ['good', 'bad'], 'labels': [['a'], ['a', 'b']], 'number': [.5, 2.5]}[kind]
    rows = [('a good film', labels[0]), ('it was bad', labels[1])]*8
    dls = ClassifyDataLoaders.from_data(rows, device='cpu', seed=1, bs=4)
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
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        dl = learn.dls.test_dl(texts, **kwargs)
    return quietly(learn, learn.get_preds, dl=dl)[0]

def figures(scored): return [np.r_[one.fwd, one.bwd] for one in scored]

DOORS = {   # the answers to a list of texts, one each
    'embed': lambda elmo, tagger, learn, texts: elmo.embed(texts),
    'embed, pooled': lambda elmo, tagger, learn, texts: elmo.embed(texts, 'all', 'mean'),
    'embed_iter': lambda elmo, tagger, learn, texts: list(elmo.embed_iter(texts)),
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
    'tags of test_dl': lambda elmo, tagger, learn, texts: list(probabilities(tagger, texts)),
    'tags, sorted': lambda elmo, tagger, learn, texts:
        list(probabilities(tagger, texts, sort=True, bs=2)),
    'classes': lambda elmo, tagger, learn, texts: probabilities(learn, texts),
    'classes, in order': lambda elmo, tagger, learn, texts:
        probabilities(learn, texts, sort=False, bs=2),
}
EMPTY = {   # of a text without a token
    'embed': np.zeros((0, 16)), 'embed, pooled': np.zeros((3, 16)), 'embed_iter': np.zeros((0, 16)),
    'Elmo': np.zeros((0, 16)), 'ElmoVectorizer': np.zeros(16), 'tag': '[]', 'spans': '[]',
    'tags of test_dl': np.zeros((0, 3)), 'tags, sorted': np.zeros((0, 3)),
    'classes': np.full(2, np.nan), 'classes, in order': np.full(2, np.nan)}
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

FORMS = {'tuple': tuple, 'L': L, 'generator': iter, 'array': lambda texts: np.array(texts),
         'objects': lambda texts: np.array(texts, object), 'column': lambda texts: pd.Series(texts),
         'another index': lambda texts: pd.Series(texts, range(7, 3, -1)),
         'categories': lambda texts: pd.Series(texts, dtype='category')}

@each_door
@pytest.mark.parametrize('form', FORMS.values(), ids=FORMS)
def test_each_form_of_a_list(ask, form, door):
    texts = [A, '', B, ' ']
    if door == 'Elmo' and form is iter: form = list              # it is asked twice here
    assert all(map(alike, ask(form(texts)), ask(texts)))

@each_door
def test_an_empty_list(door, ask):
    if 'test_dl' in door or door.startswith(('tags', 'classes')):
        with pytest.raises(CorpusError, match='no text'): ask([])
    elif door == 'Elmo': assert ask([]) == []
    else: assert len(ask([])) == 0

@each_door
@pytest.mark.parametrize('missing', [None, float('nan'), pd.NA], ids=str)
def test_what_is_missing_is_refused_with_its_place(ask, door, missing):
    for texts in ([A, '', missing], pd.Series([A, '', missing], dtype=object)):
        with pytest.raises((TypeError, CorpusError)) as e: ask(texts)
        assert '2' in str(e.value) and 'fillna' in str(e.value) and '\n' not in str(e.value)

@each_door
@pytest.mark.parametrize('wrong', [3, 2.5, b'bytes', ['the', 3], {'a': 1}], ids=str)
def test_what_is_no_text_is_refused_with_its_place(ask, door, wrong):
    with pytest.raises((TypeError, CorpusError)) as e: ask([A, wrong])
    assert '1' in str(e.value) and '\n' not in str(e.value)

@each_door
@pytest.mark.parametrize('wrong', [{A: 1}, {A, B}, 3], ids=['dictionary', 'set', 'number'])
def test_what_is_no_list_is_refused(ask, door, wrong):
    with pytest.raises((TypeError, CorpusError)) as e: ask(wrong)
    assert '\n' not in str(e.value)

@each_door
def test_a_table_is_no_list_of_texts(ask, door):
    "But its only column is one, and a classifier reads the column of texts"
    if door.startswith(('ElmoVectorizer', 'classes')): return
    with pytest.raises(TypeError, match=r"df\['text'\]"): ask(pd.DataFrame(dict(text=[A, B])))

@pytest.mark.parametrize('name', ['tagger', 'learn'])
def test_the_lines_of_a_file(name, tmp_path, request):
    learn = request.getfixturevalue(name)
    text = learn.dls.valid.text
    (tmp_path/'a.txt').write_text(f'{A}\n\n   \n{B}\n\xa0\na \xa0 b\n', encoding='utf-8')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, 'tokenizer', 'space')
        learn.annotate(tmp_path/'a.txt', tmp_path/'a.jsonl', say=str)
    rows = (tmp_path/'a.jsonl').read_text(encoding='utf-8').splitlines()
    answers = [json.loads(row)['label' if name == 'learn' else 'spans'] for row in rows]
    assert len(answers) == 6
    empty = [i for i,answer in enumerate(answers) if answer in (None, [])]
    assert empty == [1, 2] if name == 'learn' else {1, 2, 4}.issubset(empty)

# taggers

def test_one_blank_is_tagged(tagger):
    for blank in BLANK.values():
        tags, numbers, p = tagger.predict(blank)
        assert tags == [] and numbers.shape == (0,) and p.shape == (0, 3)

def test_a_blank_between_tokens(tagger):
    "A tokenizer may leave one that is no token to a tagger"
    dls = TagDataLoaders.from_sents([(['a', 'b'], ['X', 'Y'])]*8, device='cpu', tokenizer='space')
    dl = dls.test_dl(['a \xa0 b', '\xa0', ['c']])
    assert [sent.tokens for sent in dl.text.items] == [['a', 'b'], [], ['c']]

def test_labelled_sentences_without_a_token(tagger):
    pairs = [(['Ann', 'saw'], ['B-PER', 'O']), ([], []), (['it'], ['O']), ('', [])]
    pairs[2] = Sentence(*pairs[2])
    dl = tagger.dls.test_dl(pairs, with_labels=True)
    p, y, d, loss = quietly(tagger, tagger.get_preds, dl=dl, with_decoded=True, with_loss=True)
    assert [len(one) for one in p] == [len(one) for one in y] == [2, 0, 1, 0] and len(d) == 4
    assert loss.isfinite().all() and np.isfinite(quietly(tagger, tagger.validate, dl=dl)).all()
    fewer = tagger.dls.test_dl([pairs[0], pairs[2]], with_labels=True)
    assert np.allclose(*[quietly(tagger, tagger.validate, dl=one) for one in (dl, fewer)])

def test_only_blanks_in_a_batch(tagger):
    dl = tagger.dls.test_dl(['', '', A], bs=2, sort=False)
    assert [b[0].shape[:2] for b in dl] == [(2, 1), (1, 5)]
    assert [len(one) for one in quietly(tagger, tagger.get_preds, dl=dl)[0]] == [0, 0, 5]

# classifiers

@pytest.mark.parametrize('kind', ['class', 'labels', 'number'])
@pytest.mark.parametrize('pool', ['attention+max', 'mean'])
def test_a_text_without_a_token_has_no_class(kind, pool):
    "What the network makes of nothing is no answer"
    learn = classifier(kind, pool)
    with pytest.warns(UserWarning, match='^2 of 4 texts have no token, the first is number 1'):
        dl = learn.dls.test_dl([A, '', B, []])
    p, _, d = quietly(learn, learn.get_preds, dl=dl, with_decoded=True)
    assert p.isnan().flatten(1).all(1).tolist() == p.isnan().flatten(1).any(1).tolist() == [
        False, True, False, True]
    target = learn.dls.train.text.target
    with pytest.warns(UserWarning, match='1 of 1 texts'): answer, number, q = learn.predict('')
    assert q.isnan().all()
    if kind == 'class': assert d[1] < 0 and answer is None and target.decode(d[1]) is None
    if kind == 'labels': assert not d[1].any() and list(answer) == []
    if kind == 'number': assert np.isnan(float(answer))

def test_labelled_texts_without_a_token(learn):
    rows = [(A, 'good'), ('', 'bad'), (B, 'bad')]
    with pytest.warns(UserWarning, match='1 of 3'):
        dl = learn.dls.test_dl(rows, with_labels=True)
    p, y, d = quietly(learn, learn.get_preds, dl=dl, with_decoded=True)
    assert p[:, 0].isnan().tolist() == [False, True, False] and y.tolist() == [1, 0, 0]
    assert d[1] not in (0, 1), 'it is right about nothing'

@pytest.mark.parametrize('form', ['.csv', '.jsonl', 'table'])
def test_a_blank_row_of_a_table(learn, tmp_path, form):
    table = pd.DataFrame(dict(text=[A, '', B]))
    if form == '.csv': table.to_csv(tmp_path/'new.csv', index=False)
    if form == '.jsonl': table.to_json(tmp_path/'new.jsonl', orient='records', lines=True)
    data = table if form == 'table' else tmp_path/f'new{form}'
    assert probabilities(learn, data)[:, 0].isnan().tolist() == [False, True, False]

def test_a_missing_row_of_a_table(learn):
    with pytest.raises(CorpusError, match='row 1 .*fillna'):
        learn.dls.test_dl(pd.DataFrame(dict(text=[A, None])))

def test_no_attention_on_nothing(learn):
    with pytest.warns(UserWarning, match='no token'): assert len(learn.attention('')) == 0
    assert learn.attention(A).sum() == pytest.approx(1)

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

@pytest.mark.parametrize('kind', ['stream', 'cbow'])
def test_batches_that_have_no_place_for_a_text(kind):
    "Their rows are pieces of the text, or words: blanks change nothing"
    dls = language(kind, **dict(stream=dict(seq_len=4), cbow=dict(context_size=1))[kind])
    found, wanted = [list(dls.test_dl(texts)) for texts in ([A, '', B, ' '], [A, B])]
    assert len(found) == len(wanted)
    for b,c in zip(found, wanted): assert all(x.equal(y) for x,y in zip(b, c))
    if kind == 'cbow': assert len(quietly(cbow_learner(dls, 4), 'get_preds', dl=dls.test_dl([A, ''])
                                          )[0]) == 5
    with pytest.raises(CorpusError, match='not one word'): dls.test_dl(['', ' '])

def test_items_of_a_data_block():
    block = DataBlock(blocks=BiLMBlock(tokenizer='words'), get_x=ColReader('body'),
                      splitter=RandomSplitter(seed=1))
    dls = block.dataloaders(pd.DataFrame(dict(body=[A, B]*8)), bs=4)
    dl = dls.test_dl(pd.DataFrame(dict(body=[A, '', B])))
    assert [len(sent) for sent in dl.text] == [7, 2, 10]
    assert [int((b[1] != 0).sum()) for b in dl] == [15]
    with pytest.raises(CorpusError, match='dropna'):
        dls.test_dl(pd.DataFrame(dict(body=[A, None])))
