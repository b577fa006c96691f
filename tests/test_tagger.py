"The tagger: networks, scores, predictions, fastai's tools on it"
import pickle, re, warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from fastai.basics import DataLoaders, Learner, load_learner
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.torch_core import set_seed

from elmo_fastai.errors import ModelFileError
from elmo_fastai.text.read import Sentence
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.text.tokenizers import offsets, word_tokenize
from elmo_fastai.bilm import BiLM
from elmo_fastai.elmo import Elmo
from elmo_fastai.blocks import IGNORE, TagDataLoaders
from elmo_fastai.cbow import WordVectors
from elmo_fastai.tagger import (
    SpanF1, TaskLSTM, TokenMean, are_spans, elmo_tagger_learner, spans_of)
from pages import page
from made import CFG, bilm, fit, quietly

study = page('studies/learning_curves')

@pytest.fixture(scope='module')
def lm(): return bilm(n_words=0)
@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=60, n_test=1, n_unseen=20)
@pytest.fixture()
def dls(corpus): return loaders(corpus)
def loaders(corpus, **kw): return TagDataLoaders.from_sents(
    corpus.gold['train'], corpus.gold['valid'], **{**dict(device='cpu', bs=16, val_bs=16), **kw})

# networks

def test_task_lstm_is_pytorchs():
    ours, theirs = TaskLSTM(5, 6), nn.LSTM(5, 6, bidirectional=True, batch_first=True)
    for k,p in theirs.named_parameters():
        half = ours.bwd[0] if k.endswith('_reverse') else ours.fwd[0]
        p.data.copy_(getattr(half, k.removesuffix('_reverse')))
    x, lens = torch.randn(4, 7, 5), torch.tensor([7, 3, 1, 5])
    packed = nn.utils.rnn.pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
    expected = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    assert torch.allclose(ours(x, torch.arange(7) < lens[:,None]), expected, atol=1e-6)

@pytest.mark.parametrize('where,n_mixes', [(None, 0), ('input', 1), ('output', 1), ('both', 2)])
def test_company_changes_nothing_and_each_place_is_used(dls, lm, where, n_mixes):
    model = elmo_tagger_learner(dls, lm, where, words=8, chars=6, hidden=8, n_layers=2).model.eval()
    x, w, y = dls.valid.one_batch()
    together = model(x, w)
    for i in range(3):
        n = int((y[i] != IGNORE).sum())
        assert torch.allclose(model(x[i:i+1, :n], w[i:i+1, :n])[0], together[i, :n], atol=1e-5)
    F.cross_entropy(together.flatten(0, 1), y.flatten(), ignore_index=IGNORE).backward()
    mixes = model.elmo.mixes if where else []
    assert len(mixes) == n_mixes and all(mix.w.grad.abs().sum() > 0 for mix in mixes)
    assert not where or all(p.grad is None for p in model.elmo.lm.parameters())

def test_an_open_bilm_is_trained_and_the_given_one_stays(dls, lm):
    learn = elmo_tagger_learner(dls, lm, hidden=4)
    fit(learn)
    def moved():
        found = learn.model.elmo.lm.state_dict()
        return [k for k,v in lm.state_dict().items() if k in found and not torch.equal(v, found[k])]
    assert not moved()
    learn.unfreeze()
    assert len(learn.opt.param_lists) == 4
    fit(learn, lr=slice(1e-4, 1e-3))
    assert moved() and not any(p.grad is not None for p in lm.parameters())

def test_single_layers_and_ready_made_vectors(dls, lm):
    x = dls.valid.one_batch()[0]
    for layers,l in (('last', 2), ('first', 1), (0, 0)):
        learn = elmo_tagger_learner(dls, lm, layers=layers)
        elmo = learn.model.elmo.eval()
        alone = elmo.layers(x)[0][l]
        assert torch.allclose(elmo(x)[0][0], F.layer_norm(alone, alone.shape[-1:]), atol=1e-5)
        fit(learn)
        assert elmo.mixes[0].shares[l] > 1 - 1e-6
    mix = elmo_tagger_learner(dls, lm, layers='equal').model.elmo.mixes[0]
    assert not mix.w.requires_grad and torch.allclose(mix.shares, torch.full((3,), 1/3))
    made = WordVectors(['the', 'elsewhere'], np.random.randn(2, 5))
    table = elmo_tagger_learner(dls, lm, words=made).model.words
    assert np.array_equal(table.weight[dls.vocab[0].o2i['the']].detach(), made['the'])

@pytest.mark.parametrize('kw,error,says', [
    (dict(where='inside'), ValueError, "where='inside': take None, 'input', 'output' or 'both'"),
    (dict(layers='top'), ValueError, "layers='top'"),
    (dict(layers=3), ValueError, 'from 0 to 2'),
    (dict(layers=-1), ValueError, 'layers=-1'),
    (dict(where=None, words=0), ValueError, 'Without ELMo the tagger needs'),
    (dict(where='output', words=0), ValueError, 'to read'),
    (dict(words=WordVectors(['xyz'], np.ones((1, 5)))), ValueError, 'None of the task'),
    (dict(loss_func=nn.CrossEntropyLoss()), ValueError, 'take a TagLoss'),
    (dict(elmo=None), TypeError, 'say where=None'),
    (dict(elmo=nn.Linear(2, 2)), TypeError, 'got Linear'),
    (dict(elmo=BiLM(replace(CFG, max_chars=20), 0)), ValueError, 'char_vocab=elmo.char_vocab'),
    (dict(elmo='no/such/folder here'), ModelFileError, 'There is no folder')])
def test_settings_that_can_not_be(dls, lm, kw, error, says):
    with pytest.raises(error, match=re.escape(says)): elmo_tagger_learner(dls, **{'elmo': lm, **kw})

# scores

@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_scores_do_not_depend_on_batches(lens, seed):
    set_seed(seed)
    data = [(torch.randn(n, 3), torch.randint(0, 3, (n,))) for n in lens]
    def score(batches):
        metrics = TokenMean('accuracy', lambda p,y: p.argmax(-1) == y), SpanF1(['O', 'B-X', 'I-X'])
        for metric in metrics: metric.reset()
        for batch in batches:
            T = max(len(y) for _,y in batch)
            pred = torch.stack([F.pad(p, (0, 0, 0, T - len(p)), value=9.) for p,_ in batch])
            y = torch.stack([F.pad(y, (0, T - len(y)), value=IGNORE) for _,y in batch])
            for metric in metrics: metric.accumulate(SimpleNamespace(pred=pred, y=y))
        return [metric.value for metric in metrics]
    assert np.allclose(score([data]), score([[pair] for pair in data]))
    right = [o for p,y in data for o in (p.argmax(-1) == y).tolist()]
    assert np.isclose(score([data])[0], np.mean(right))

SCHEMES = dict(IOB1='IIII', IOB2='BIIB', BIOES='BIES', BILOU='BILU', BMES='BMES')

def drawn_spans(rng, n):
    "Random spans (kind, first, last) in `n` tokens"
    spans, i = [], 0
    while i < n:
        if rng.random() < .5: i += 1; continue
        j = min(n - 1, i + int(rng.integers(0, 3)))
        spans.append((str(rng.choice(['PER', 'LOC'])), i, j))
        i = j + 1
    return spans

def encoded(spans, n, scheme):
    tags = ['O']*n
    first, inside, last, single = SCHEMES[scheme]
    for k,(kind,i,j) in enumerate(spans):
        for t in range(i, j + 1): tags[t] = f'{inside}-{kind}'
        tags[i], tags[j] = (f'{o}-{kind}' for o in (single*2 if i == j else (first, last)))
        touches = k and spans[k-1][0] == kind and spans[k-1][2] == i - 1
        if scheme == 'IOB1' and touches: tags[i] = f'B-{kind}'
    return tags

@pytest.mark.parametrize('scheme', SCHEMES)
def test_every_scheme_of_spans_is_scored_and_placed(scheme):
    "The same spans, written in each scheme, have the same F1 and the same places"
    rng = np.random.default_rng(0)
    for _ in range(20):
        true, guess = ([drawn_spans(rng, 9) for _ in range(4)] for _ in range(2))
        guess[0] = true[0]
        tags = [[encoded(spans, 9, scheme) for spans in sents] for sents in (true, guess)]
        names = sorted({tag for sents in tags for sent in sents for tag in sent})
        y, p = (torch.tensor([[names.index(tag) for tag in sent] for sent in sents]) for sents in tags)
        metric = SpanF1(names)
        metric.reset()
        metric.accumulate(SimpleNamespace(y=y, pred=F.one_hot(p, len(names))))
        n = [sum(map(len, spans)) for spans in (true, guess)]
        right = sum(len({*a} & {*b}) for a,b in zip(true, guess))
        assert metric.value == pytest.approx(2*right/max(1, sum(n)))
        found = spans_of('a b c d e f g h i', 'a b c d e f g h i'.split(), tags[0][1])
        assert [(o['label'], o['start']//2, o['end']//2) for o in found] == true[1]

def test_tags_that_mark_spans():
    yes = 'O I-PER', 'B-PER I-PER', 'E-X L-X O', 'O U-PER B-LOC L-LOC', 'O S-PER B-LOC I-LOC E-LOC'
    no = 'NOUN O', 'B-X NOUN', 'ADP X-Y', 'B I O', 'I II'
    assert [are_spans(tags.split()) for tags in yes + no] == [True]*5 + [False]*5

def test_tags_of_two_forms_are_said_once(lm):
    sents = [Sentence(['ann', 'left', 'york'], ['B-PER', 'O', tag]) for tag in ('B_LOC', 'B-LOC')]*6
    with pytest.warns(UserWarning, match="no F1 of spans, since 'B_LOC'") as said:
        learn = elmo_tagger_learner(TagDataLoaders.from_sents(sents, sents, device='cpu'), lm)
    assert len(said) == 1 and list(learn.metrics.attrgot('name')) == ['accuracy']
    assert list(learn.report().figures) == ['accuracy']

def test_places_are_those_of_the_text_as_it_is():
    "`word_tokenize` drops marks of direction"
    text = '\ufeffIn \u202bTel\u200f-\u200fAviv\u202c, co\u00adop\u200e.'
    tokens = word_tokenize(text)
    assert tokens == ['In', 'Tel-Aviv', ',', 'co\u00adop', '.']
    found = [text[start:end] for start,end in offsets(text, tokens)]
    assert found == ['In', 'Tel\u200f-\u200fAviv', ',', 'co\u00adop', '.']
    found = spans_of('a b', ['a', 'b'], ['DET', 'NOUN'], False)
    assert [(o['start'], o['label']) for o in found] == [(0, 'DET'), (2, 'NOUN')]
    with pytest.raises(ValueError, match="The token 'A'"): spans_of('a b', ['A', 'b'], ['O', 'O'])

# fastai

@pytest.fixture(scope='module')
def learn(corpus, lm):
    return fit(elmo_tagger_learner(loaders(corpus, bs=32), lm, 'both', hidden=16), 4, 1e-2)

TEXT = 'they  play near the bank.'

def test_predict_and_tag(learn):
    tags, ids, p = learn.predict(TEXT)
    assert p.shape == (6, len(learn.dls.vocab[1])) and torch.equal(p.argmax(-1), ids)
    tokens = 'they play near the bank .'.split()
    assert torch.allclose(p.sum(-1), torch.ones(6)) and learn.predict(tokens)[0] == tags
    tagged = learn.tag(['', TEXT, [], ' \n', ['a', 'bank']])
    assert [len(o) for o in tagged] == [0, 6, 0, 0, 2] and tagged[1] == list(zip(tokens, tags))
    spans = learn.tag([TEXT], as_spans=True)[0]
    assert [(TEXT[o['start']:o['end']], o['label']) for o in spans] == tagged[1]
    assert learn.predict('')[0] == learn.tag([]) == []
    with pytest.raises(TypeError, match='neither a text'): learn.predict([7])
    with pytest.raises(TypeError, match='put it into a list'): learn.tag('a text')

def test_get_preds_is_in_the_order_of_the_data(learn, corpus):
    sents, tags = corpus.gold['valid'], list(learn.dls.vocab[1])
    for dl in (None, learn.dls.valid.new(bs=3), learn.dls.valid.new(shuffle=True)):
        p, y, d, loss = quietly(learn, 'get_preds', dl=dl, with_decoded=True, with_loss=True)
        assert len(p) == len(y) == len(d) == len(loss) == len(sents)
        for s,row,probs,guess,nll in zip(sents, y, p, d, loss):
            n = len(s.tokens)
            assert [tags[i] for i in row[:n].tolist()] == s.tags and (row[n:] == IGNORE).all()
            assert torch.equal(guess, probs.argmax(-1))
            assert np.isclose(F.nll_loss(probs[:n].log(), row[:n]), nll, atol=1e-4)
    tagged = learn.tag([s.tokens for s in sents])
    assert [[t for _,t in o] for o in tagged] == [
        [tags[i] for i in row[:len(s.tokens)].tolist()] for s,row in zip(sents, d)]
    real = [row != IGNORE for row in y]
    p, y = (torch.cat([row[mask] for row,mask in zip(rows, real)]) for rows in (p, y))
    expected = F.nll_loss(p.log(), y).item(), (p.argmax(-1) == y).float().mean().item()
    for bs in (2, 60):                                   # loss and accuracy are per token
        found = quietly(learn, 'validate', dl=learn.dls.valid.new(bs=bs))
        assert np.allclose(found, expected, rtol=1e-4)

@pytest.fixture()
def shown(monkeypatch):
    "The tables that are displayed"
    tables = []
    monkeypatch.setattr('elmo_fastai.batches.IN_NOTEBOOK', True)
    monkeypatch.setattr('elmo_fastai.batches.display_df', tables.append)
    return tables

@pytest.mark.parametrize('cls', [Interpretation, ClassificationInterpretation])
def test_interpretation(learn, corpus, cls, shown):
    interp = quietly(learn, cls.from_learner, learn)
    losses, idx = interp.top_losses(5)
    assert (losses[:-1] >= losses[1:]).all()
    quietly(learn, interp.plot_top_losses, 5)
    [df] = shown
    worst = [corpus.gold['valid'][i] for i in idx.tolist()]
    assert list(df.text) == [' '.join(s.tokens) for s in worst] and np.allclose(df.loss, losses, atol=1e-3)
    assert list(df.target) == [' '.join(s.tags) for s in worst]
    for text,guess in zip(df.text, df.answer): assert guess.split() == learn.predict(text.split())[0]
    own = Learner(learn.dls, learn.model, learn.loss_func)      # with fastai's own `test_dl`, too
    own.dls = DataLoaders(learn.dls.train, learn.dls.valid, device='cpu')
    quietly(own, cls.from_learner(own, dl=learn.dls.valid).plot_top_losses, 5)
    assert shown[1].equals(shown[0])

def test_export_and_weights(learn, corpus, lm, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.export(tmp_path/'t.pkl')
        again = load_learner(tmp_path/'t.pkl')
    assert not len(again.dls.train_ds) and len(again.model.cache.rows) <= 1 < len(learn.dls.train)
    other = elmo_tagger_learner(loaders(corpus), bilm(5, 0), 'both', hidden=16, path=tmp_path)
    torch.save(learn.model.state_dict(), tmp_path/'w.pth')
    other.model.load_state_dict(torch.load(tmp_path/'w.pth'))
    for one in (again, other):
        assert torch.allclose(one.predict(TEXT)[2], learn.predict(TEXT)[2], atol=1e-5)
    assert not pickle.loads(pickle.dumps(learn.model)).cache.rows

def test_the_backbone_keeps_its_tokenizer(dls, lm, tmp_path):
    learn = elmo_tagger_learner(dls, Elmo(lm, tokenizer='chars'), path=tmp_path)
    assert Elmo.from_pretrained(learn.save_encoder('e')).tokenizer == 'chars'

# the study

def test_a_curve(corpus, lm):
    sides = dict(without=dict(where=None), elmo=dict(elmo=lm, where='input', steps=8))
    df = study.learning_curve(corpus.gold['train'], corpus.gold['valid'], sides, (.1, .5), 2,
                              steps=4, epochs=1, hidden=8, device='cpu')
    assert len(df) == 8 and df.score.between(0, 1).all() and set(df.sentences) == {12, 60}
    table = study.curve_table(df)
    assert list(table.columns) == ['without', 'elmo', 'elmo − without'] and '±' in table.iloc[0, 0]
    assert len(study.plot_curve(df).lines) >= 2
    learn = study.train_tagger(corpus.gold['train'][:40], corpus.gold['valid'], epochs=3, steps=1,
                               hidden=8, device='cpu')
    values = learn.recorder.values                  # it is judged at its end
    assert [len(o) for o in values] == [1, 1, 3]
    assert values[-1][2] == pytest.approx(quietly(learn, 'validate')[1])

# what the README shows

@pytest.mark.slow
def test_the_recipe_of_the_readme(tmp_path):
    readme = (Path(__file__).parents[1]/'README.md').read_text(encoding='utf-8')
    recipe, = re.findall(r"~~~python\n(.*?)~~~", readme, re.S)
    pd.DataFrame([(f'a {w} film , number {i} .', w) for i in range(20) for w in ('dull', 'good')],
                 columns=['text', 'label']).to_csv('reviews.csv', index=False)
    rows = ['I O', 'met O', 'Ann B-PER', 'Lee I-PER', 'in O', 'Ghent B-LOC', '. O', '']
    for name,n in dict(train=40, dev=5).items(): Path(f'{name}.conll').write_text('\n'.join(rows*n))
    space = {}
    exec(recipe.replace('learn.predict(', 'found = learn.predict(').replace(
        'learn.tag(', 'spans = learn.tag('), space)
    assert space['found'][0] == 'dull' and Path('tagger.pkl').exists()
    assert [span['label'] for span in space['spans'][0]] == ['PER', 'LOC']
