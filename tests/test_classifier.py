"Labels and their doors, pooling, classifier, cache, learner, with a tiny biLM"
import copy, math, pickle
from dataclasses import replace
import pandas as pd, pytest, torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from hypothesis import given, settings, strategies as st
from fastai.basics import (
    BCEWithLogitsLossFlat, Callback, CrossEntropyLossFlat, LabelSmoothingCrossEntropyFlat)
from fastai.data.all import (
    CategoryBlock, ColReader, DataBlock, MultiCategoryBlock, RandomSplitter)
from fastai.interpret import ClassificationInterpretation
from fastai.torch_core import set_seed

from elmo_fastai.errors import CorpusError, ModelFileError
from elmo_fastai.text.tokenizers import space_tokenize
from elmo_fastai.tokens import CharVocab
from elmo_fastai.bilm import BiLM
from elmo_fastai.classifier import (
    ClassifyDataLoaders, ElmoClassifier, Pool, elmo_classifier_learner, random_elmo)
from elmo_fastai.elmo import Elmo
from elmo_fastai.tagger import ElmoBlock, LayerCache
from made import CFG, bilm, close, fit, quietly

GOOD, BAD = 'good fine great nice'.split(), 'bad poor awful dull'.split()
ROWS = [(f'the {n} was {w} .', int(w in GOOD)) for n in 'film song book play meal'.split()
        for w in GOOD + BAD]
TEXTS = [text for text,_ in ROWS]

def table(rows): return pd.DataFrame(rows, columns=['text', 'label'])

def elmo(seed=0, cfg={}, **kw):
    return Elmo(bilm(seed, 0, **cfg), **{**dict(dropout=.1, tokenizer='space'), **kw}).eval()

def loaders(rows=ROWS, **kw):
    return ClassifyDataLoaders.from_df(
        table(rows), **{**dict(device='cpu', seed=1, bs=8, valid_pct=.25), **kw})

def learner(dls=None, e=None, **kw):
    set_seed(0)
    settings = dict(proj_dim=16, hidden=8, dropout=.1) | kw
    return elmo_classifier_learner(dls or loaders(), e or elmo(), **settings)

@pytest.fixture(scope='module')
def trained():
    learn = learner(dropout=0.)
    learn.unfreeze()
    return fit(learn, 20, 1e-2)

# labels: the doors, and what each refuses

FILMS = table([(f'a {word} film , number {i} .', 'yes' if word in GOOD else 'no')
               for i in range(12) for word in ('good', 'bad', 'fine', 'dull')])
def classify(data=FILMS, *valid, **kwargs):
    return ClassifyDataLoaders.from_df(data, *valid, device='cpu', **kwargs)
def texts_of(*loaders):
    return sorted(dl.dataset.decode(dl.create_item(i))[0] for dl in loaders
                  for i in range(len(dl.dataset)))

FEATURES = Features(dict(text=Value('string'), label=ClassLabel(names=['no', 'yes'])))
def numbered(df): return Dataset.from_dict(
    dict(text=list(df.text), label=[int(label == 'yes') for label in df.label]), FEATURES)
def as_csv(path):
    FILMS.to_csv(path/'r.csv', index=False)
    return path/'r.csv'
def as_folder(path):
    for name,part in dict(train=FILMS[:40], valid=FILMS[40:], test=FILMS[:2]).items():
        part.to_csv(path/f'{name}.csv', index=False)
    return path

@pytest.mark.parametrize('make', [
    as_csv, as_folder, lambda path: FILMS, lambda path: numbered(FILMS),
    lambda path: [*map(tuple, FILMS.values)],
    lambda path: DatasetDict(train=numbered(FILMS[:40]), validation=numbered(FILMS[40:])),
    lambda path: dict(train=FILMS[:40], dev=FILMS[40:], test=FILMS[:2])])
def test_doors(tmp_path, make):
    dls = ClassifyDataLoaders.from_files(make(tmp_path), valid_pct=8/48, device='cpu')
    assert (len(dls.train_ds), len(dls.valid_ds)) == (40, 8) and list(dls.vocab) == ['no', 'yes']
    assert texts_of(*dls.loaders) == sorted(FILMS.text)
    assert dls.test_dl(FILMS[:3], with_labels=True).one_batch()[1].shape == (3,)

TOKENS = ['Zs.', "didn't", 'New York', 'a\u0301']
@pytest.mark.parametrize('make', [
    lambda: pd.DataFrame(dict(tokens=[TOKENS]*4, label=list('abab'))),
    lambda: [(TOKENS, label) for label in 'abab'],
    lambda: [dict(tokens=TOKENS, label=label) for label in 'abab']])
def test_token_lists_stay_as_they_are(make):
    dls = classify(make(), valid_pct=.5)
    assert dls.char_vocab.decode(dls.train.create_item(0)[0]) == TOKENS

def test_rows_that_validate():
    held = FILMS.assign(is_valid=['dull' in text for text in FILMS.text])
    dls = classify(held)
    assert len(dls.valid_ds) == 12 and all('dull' in text for text in texts_of(dls.valid))
    share = classify(valid_pct=.25, seed=1)
    labels = [str(share.vocab[y]) for _,y in share.valid_ds]
    assert labels.count('yes') == labels.count('no') == 6, 'of each class in proportion'
    names = dict(group=['treated', 'control']*24, doc_id=3, split='test', document_type=3)
    assert len(classify(FILMS.assign(**names)).valid_ds) == 5, 'no other name decides'
    assert len(classify(dict(train=FILMS, test=FILMS[:2])).valid_ds) == 5, 'a share does'

FLAGS = FILMS.assign(funny=[1, 0, 1, 0]*12, sad=['0', '1', 'true', 'False']*12)

def test_several_labels():
    delim = classify(FILMS.assign(label=['a; b', 'b', '', 'a']*12), label_delim=';')
    columns = classify(FLAGS, label_col=['funny', 'sad'])
    assert list(delim.vocab) == ['a', 'b'] and list(columns.vocab) == ['funny', 'sad']
    assert delim.c == columns.c == 2
    for dls in (delim, columns):
        y = torch.cat([y for _,y in dls.train])
        assert y.shape == (43, 2) and set(y.unique().tolist()) == {0., 1.}
    _, one = columns.valid_ds.decode(columns.valid_ds[0])
    assert {*one} <= {'funny', 'sad'}

def test_classes():
    named = classify(valid=table([('so so', 'perhaps')]), vocab=['yes', 'no', 'perhaps'])
    assert list(named.vocab) == ['yes', 'no', 'perhaps'] and named.c == 3
    assert named.valid.one_batch()[1].item() == 2
    blanks = classify(FILMS.assign(label=['x ', 'x', ' y', 'y']*12))
    assert list(blanks.vocab) == ['x', 'y'], 'a label has no blanks at its ends'

def labelled(*labels): return FILMS.assign(label=pd.Series(labels*24, dtype=object))

@pytest.mark.parametrize('make, says', [
    (lambda: classify(FILMS.assign(label='a;b'), FILMS.assign(label='c'), label_delim=';'),
     'vocab'),
    (lambda: classify(vocab=['yes']), "'no'.*vocab"), (lambda: classify(vocab='yes'), 'lists'),
    (lambda: classify(label_col=[]), 'lists'), (lambda: classify(label_delim=''), 'label_delim'),
    (lambda: classify(text_col='body'), "no column 'body'"),
    (lambda: classify(valid=FILMS.rename(columns=dict(text='body'))), "no column 'text'"),
    (lambda: classify(valid=FILMS[['text']]), "no column 'label'"),
    (lambda: classify(FLAGS.assign(sad='perhaps'), label_col=['funny', 'sad']), '0 or 1'),
    *[(lambda empty=empty: classify(labelled('a', empty)), 'row 1') for empty in (None, '')],
    (lambda: classify(labelled(True, 1)), 'several types'),
    (lambda: classify(labelled(1.5, 2.5)), 'Ridge'),
    (lambda: classify(labelled(['a'], ['b'])), 'label_delim'),
    (lambda: classify(FILMS.assign(text=3)), 'row 0'), (lambda: classify(FILMS[:1]), 'is_valid'),
    (lambda: classify(list(FILMS.text)), 'a pair'),
    (lambda: classify().test_dl('a text'), 'no file')])
def test_what_is_refused(make, says):
    with pytest.raises(CorpusError, match=says): make()


def test_a_data_block_of_ones_own():
    set_seed(0)
    block = DataBlock((ElmoBlock(space_tokenize), CategoryBlock), get_x=ColReader('text'),
                      get_y=ColReader('label'), splitter=RandomSplitter(.2, seed=0))
    dls = block.dataloaders(FILMS, bs=8, device='cpu')
    ours = fit(learner(dls, dropout=0.))
    label, number, p = quietly(ours, ours.predict, 'a good film .')
    assert str(dls.vocab[number]) == label and p.shape == (2,)
    assert ours.report().n == 9 and ours.report(FILMS[:10]).n == 10
    block = DataBlock((ElmoBlock, MultiCategoryBlock), splitter=RandomSplitter(seed=0),
                      get_x=ColReader('text'), get_y=ColReader('label', label_delim='e'))
    several = block.dataloaders(FILMS, bs=8, device='cpu')
    assert learner(several).metrics[0].name == 'accuracy_multi'
    assert several.one_batch()[1].shape == (8, several.c)

# pooling

@settings(max_examples=40)
@given(st.sampled_from(['attention', 'mean', 'max', 'attention+max+mean']),
       st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 9))
def test_padding_and_company_change_nothing(how, lens, seed):
    set_seed(seed)
    pool, T = Pool(5, how), max(lens) + 2
    mask = torch.arange(T) < torch.tensor(lens)[:, None]
    x = torch.randn(len(lens), T, 5)*mask[..., None]
    out = pool(x, mask)
    x[~mask] = 1e4                       # whatever stands at the padding
    assert close(out, pool(x, mask))
    for row,n,o in zip(x, lens, out):
        alone = pool(row[None, :n], torch.ones(1, n, dtype=torch.bool))[0]
        assert close(alone, o) and (n or not o.any())

# the classifier

def test_a_text_gets_the_same_scores_in_any_company():
    model = ElmoClassifier(elmo(), 3, proj_dim=16, pool='attention+mean+max').eval()
    texts = ['the film was good .', 'x', 'a much longer text than the others , is it not ?',
             'the film was good .']
    out = model(texts)
    assert out.shape == (4, 3) and close(out[0], out[3])
    for text,scores in zip(texts, out): assert close(model([text])[0], scores)
    assert model([]).shape == (0, 3) and model(['', 'a']).isnan().all(1).tolist() == [True, False]
    chars = torch.nn.functional.pad(model.elmo.to_chars(texts), (0, 0, 0, 4))
    assert close(model(chars), out)
    model.train()(['', 'a']).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.head.parameters())

@pytest.mark.parametrize('pool,label_delim', [('attention+max', None), ('mean', ';')])
def test_a_text_without_a_token_has_no_class(pool, label_delim):
    "What the network makes of nothing is no answer"
    learn = learner(classify(label_delim=label_delim), pool=pool)
    dl = learn.dls.test_dl(['a film', '', 'good', []])
    with pytest.warns(UserWarning, match='2 of 4 texts have no token, the first is number 1'):
        p, _, d = quietly(learn, learn.get_preds, dl=dl, with_decoded=True)
    assert p.isnan().all(1).tolist() == p.isnan().any(1).tolist() == [False, True, False, True]
    assert not d[1].any() if label_delim else d[1] < 0
    with pytest.warns(UserWarning, match='1 of 1 texts'): answer, number, q = learn.predict('')
    assert answer is None and q.isnan().all() and number.equal(d[1])

# the cache: asked while a learner runs, and never for other weights

def ask(cache, e, x): return cache(e, x, cache.open(e))
def agree(cache, e, x):
    (a, m), (b, n) = ask(cache, e, x), e.layers(x)
    return torch.equal(m, n) and all(close(*pair) for pair in zip(a, b))

def test_the_cache_gives_what_the_bilm_gives():
    e, cache, none, dls = elmo(), LayerCache(), LayerCache(mb=0), loaders()
    for _ in range(2):
        for xb,_ in dls.train: assert agree(cache, e, xb) and agree(none, e, xb)
    assert len(cache.rows) == len({row['text'] for row in dls.train.items}) and not none.rows
    weights = cache.weights
    for _ in range(2): fit(learner(dls, elmo(), cache=cache))
    assert len(cache.rows) == len(ROWS) and cache.weights == weights, 'of several learners'
    again = pickle.loads(pickle.dumps(cache))
    assert not again.rows and again.mb == cache.mb and cache.rows, 'a file has no data'
    e.lm.lstm.fwd[0].weight_hh_l0.data.mul_(1.5)         # as no version tells
    assert agree(cache, e, xb)
    e.lm.load_state_dict(elmo(3).lm.state_dict())
    assert agree(cache, e, xb) and len(cache.rows) < len(ROWS), 'those of other weights go'

class Thaw(Callback):
    def before_epoch(self): self.learn.unfreeze() if self.epoch == 1 else self.learn.freeze()

@pytest.mark.parametrize('cb', [None, Thaw])
def test_training_with_and_without_a_cache_is_the_same(cb):
    runs = []
    for cache in (True, False):
        learn = learner(cache=cache)
        learn.create_opt()
        quietly(learn, 'fit', 3, 1e-2, cbs=cb and cb())
        runs.append(torch.tensor(learn.recorder.values))
        assert bool(learn.model.cache and learn.model.cache.rows) == cache
    assert close(*runs, 1e-4)

def test_the_bilm_is_not_called_again(monkeypatch):
    learn = fit(learner())
    calls, layers = [], Elmo.layers
    def spy(self, x):
        calls.append(len(x))
        return layers(self, x)
    monkeypatch.setattr(Elmo, 'layers', spy)
    fit(learn)
    assert calls and not any(calls)

class Fail(Callback):
    def after_pred(self): raise RuntimeError('stop')

def test_a_model_that_no_learner_runs_is_computed():
    "Also after an error in a run"
    learn = fit(learner())
    with pytest.raises(RuntimeError, match='stop'): learn.validate(cbs=Fail())
    x = learn.dls.valid.one_batch()[0]
    for p in learn.model.elmo.lm.parameters(): p.data.mul_(1.5)
    with torch.no_grad():
        now = learn.model.eval()(x)
        learn.model.cache = None
        assert close(now, learn.model(x))

# the learner

def test_the_given_backbone_stays_as_it_is():
    e = elmo()
    before = copy.deepcopy(e.state_dict())
    learn = learner(e=e)
    learn.unfreeze()
    fit(learn)
    assert all(torch.equal(v, before[k]) for k,v in e.state_dict().items()) and not e.trainable
    assert any(not torch.equal(v, before[k]) for k,v in learn.model.elmo.state_dict().items())

@pytest.mark.parametrize('cfg', [{}, dict(share_encoder=False)], ids=str)
@pytest.mark.parametrize('norm', [True, False])
def test_a_random_backbone_is_normalised(norm, cfg):
    """Also where the normalisation of the pretrained one was folded away, as in the box: the same
    vectors, in the same shape"""
    set_seed(0)
    folded, whole = (random_elmo(Elmo(BiLM(replace(CFG, norm=o, **cfg), 0), tokenizer='space'), 3,
                                 TEXTS) for o in (norm, True))
    assert folded.lm.config.norm == norm and (folded.lm.chars.norm is None) == (not norm)
    layers, mask = folded.layers(TEXTS)
    for h in layers[0].split(layers[0].shape[-1]//2, -1):     # as each direction reads it
        h = h[mask]                                           # what hardly varies stays small
        assert h.mean(0).abs().max() < .25 and h.var(0).max() < 1.5 and .7 < h.var(0).median()
    assert all(close(a, b, 1e-4) for a,b in zip(layers, whole.layers(TEXTS)[0]))
    BiLM(folded.lm.config, 0).load_state_dict(folded.lm.state_dict())

@pytest.mark.parametrize('make,error,kind', [
    (lambda: learner(e=3), 'got int', TypeError),
    (lambda: learner(e='no/such/box'), 'no folder', ModelFileError),
    (lambda: learner(e=elmo(markers='given')), 'markers', ValueError),
    (lambda: learner(e=elmo(carry=True)), 'carry', ValueError),
    (lambda: learner(loaders(char_vocab=CharVocab.build([t.split() for t in TEXTS]))),
     'char_vocab=elmo.char_vocab', ValueError),
    (lambda: learner(loss_func=torch.nn.CrossEntropyLoss()), 'take one of fastai', ValueError),
    (lambda: learner(loaders([(text, 'a') for text in TEXTS])), 'two classes or more', CorpusError),
    (lambda: learner(pool='attention+'), "take 'attention', 'mean' or 'max'", ValueError)])
def test_what_does_not_fit(make, error, kind):
    with pytest.raises(kind, match=error): make()

# fastai

def test_predict(trained):
    assert trained.validate()[1] > .9
    for text,label in (('the film was great .', '1'), (['the', 'film', 'was', 'dull', '.'], '0')):
        got, i, p = trained.predict(text)
        assert (got, int(i)) == (label, int(label))
        assert p.shape == (2,) and close(p.sum(), torch.ones(()))
    with pytest.raises(CorpusError, match='neither a text nor'): trained.predict([1])
    assert trained.predict('the film was great .', with_input=True)[0] == 'the film was great .'

def test_predictions_come_in_the_order_of_the_texts(trained):
    texts = [' '.join(['the', 'film', 'was', w]*n) for n in (3, 300, 1, 40) for w in ('good',
                                                                                      'bad')]
    p, q = (trained.get_preds(dl=trained.dls.test_dl(texts, bs=bs))[0] for bs in (3, 20))
    assert close(p, q, 1e-4) and all(close(o, trained.predict(t)[2], 1e-4) for o,t in zip(p, texts))
    found = ClassificationInterpretation.from_learner(trained)
    losses, rows = found.top_losses(4)
    inps, preds, targs, *_ = found[rows]
    assert close(-preds[range(4), targs].log(), losses, 1e-4), 'each loss belongs to its text'
    found.plot_top_losses(3)

def test_attention_of_a_text(trained):
    w = trained.attention('the film was good .')
    assert list(w.index) == 'the film was good .'.split() and abs(w.sum() - 1) < 1e-5
    assert trained.attention(['one']).tolist() == [1.] and not len(trained.attention(''))
    with pytest.raises(ValueError, match='no attention'): learner(pool='mean').attention('a')

# several labels per text, other losses

SEVERAL = [('the film was good .', 'good;film'), ('the bank was closed .', 'bank'),
           ('it was bad .', ''), ('a good bank .', 'good;bank')]*10

def test_a_learner_of_several_labels():
    d = ClassifyDataLoaders.from_df(table(SEVERAL), valid=table(SEVERAL), label_delim=';',
                                    tokenizer='space', bs=8, device='cpu')
    learn = fit(elmo_classifier_learner(d, elmo(), dropout=0.), 20, 1e-2)
    loss, accuracy = learn.validate()
    assert accuracy > .95 and math.isfinite(loss) and learn.metrics[0].name == 'accuracy_multi'
    said, row, probs = learn.predict('the film was good .')
    assert sorted(said) == ['film', 'good'] and row.dtype == torch.bool
    assert ((0 <= probs) & (probs <= 1)).all()
    learn.loss_func.thresh = 1.
    assert not learn.predict('the film was good .')[0]

def test_losses_with_weights_and_of_others():
    weighted = learner(loss_func=CrossEntropyLossFlat(weight=torch.tensor([1., 3.])))
    several = ClassifyDataLoaders.from_df(table(SEVERAL), label_delim=';', device='cpu')
    losses = BCEWithLogitsLossFlat(pos_weight=torch.ones(3)), LabelSmoothingCrossEntropyFlat()
    for learn in (weighted, learner(several, loss_func=losses[0]), learner(loss_func=losses[1])):
        fit(learn)
        assert learn.report().n == len(learn.dls.valid_ds)
