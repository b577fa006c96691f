"The tagger: networks, scores, predictions, fastai's tools on it"
import math, pickle, re, warnings
from pathlib import Path

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from fastai.basics import DataLoaders, Learner, load_learner
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.torch_core import set_seed

from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.text.corpora import Sentence, toy_corpus
from elmo_fastai.text.tokens import word_tokenize
from elmo_fastai.text.tokens import ByteCharVocab
from elmo_fastai.nn.bilm import BiLM
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.data.blocks import IGNORE, TagDataLoaders, TagLoss
from elmo_fastai.tasks.cbow import WordVectors, interval
from elmo_fastai.text.tokens import WordVocab
from elmo_fastai.tasks.scores import are_spans, odd_tags, span_scores
import elmo_fastai.tasks.tag as tagger
from elmo_fastai.tasks.tag import (
    SpanF1, Tagger, TaskLSTM, TokenMean, WordTable, elmo_tagger_learner)
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
                model(b[0][i:i + 1,:n], b[1][i:i + 1,:n])[0], together[i,:n], atol=1e-5
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

@settings(max_examples=25)
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
    sents = [Sentence(['ann', 'left', 'new', 'york'], ['B-PER', 'O', 'B-LOC', 'I-LOC'])]*12
    torch.manual_seed(0)
    learn = elmo_tagger_learner(
        TagDataLoaders.from_sents(sents, sents[:3], device='cpu'), lm, hidden=8
    )
    assert list(learn.metrics.attrgot('name')) == ['accuracy', 'span_f1']
    fit(learn, 30, 2e-2)
    assert quietly(learn, learn.validate)[2] == 1

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
            (f'{single}-{kind}',)*2 if i == j else (f'{first}-{kind}', f'{last}-{kind}'))
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

@pytest.mark.parametrize('tags', ['O I-PER', 'O B-PER I-PER', 'B-PER I-PER', 'O S-PER', 'E-X L-X O',
                                  'O U-PER B-LOC L-LOC', 'O S-PER B-LOC I-LOC E-LOC'])
def test_tags_that_mark_spans(tags): assert are_spans(tags.split())

@pytest.mark.parametrize('tags', ['NOUN O', 'B-X NOUN', 'ADP X-Y', 'B I O', 'I II'])
def test_tags_that_mark_none(tags): assert not are_spans(tags.split())

def test_tags_of_two_forms_are_said_once(lm):
    sents = [Sentence(['ann', 'left', 'york'], ['B-PER', 'O', tag]) for tag in ('B_LOC', 'B-LOC')]*6
    assert odd_tags(['B-PER', 'O', 'B_LOC']) == ['B_LOC'] and odd_tags(['NOUN', 'O']) == []
    with pytest.warns(UserWarning, match="no F1 of spans, since 'B_LOC'") as said:
        learn = elmo_tagger_learner(TagDataLoaders.from_sents(sents, sents, device='cpu'), lm)
    assert len(said) == 1 and list(learn.metrics.attrgot('name')) == ['accuracy']
    assert list(learn.report().figures) == ['accuracy']

# what does not fit

@pytest.mark.parametrize('kw,error,says', [
    (dict(where='inside'), ValueError, "where='inside': take None, 'input', 'output' or 'both'"),
    (dict(layers='top'), ValueError, "layers='top'"),
    (dict(layers=3), ValueError, 'from 0 to 2'),
    (dict(layers=-1), ValueError, 'layers=-1'),
    (dict(where=None, words=0), ValueError, 'Without ELMo the tagger needs'),
    (dict(where='output', words=0), ValueError, 'to read'),
    (dict(loss_func=nn.CrossEntropyLoss()), ValueError, 'take a TagLoss'),
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
    fine = loaders(corpus, char_vocab=ByteCharVocab(20))
    assert quietly(l := elmo_tagger_learner(fine, short, hidden=4), l.validate)[0] > 0

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
        equal.mixes[0].shares, torch.full((3,), 1/3))


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
        loaders(corpus, bs=32), lm, 'both', hidden=16), 4, 1e-2)

@pytest.fixture(scope='module')
def tags(learn): return list(learn.dls.vocab[1])



def test_predict(learn, tags):
    n_tags = len(tags)
    tags, ids, p = learn.predict('they play near the bank .')
    assert (len(tags) == 6 and p.shape == (6, n_tags)
            and torch.equal(p.argmax(-1), ids) and torch.allclose(p.sum(-1), torch.ones(6)))
    assert learn.predict(['they', 'play', 'near', 'the', 'bank', '.'])[0] == tags
    assert [[t for _,t in o] for o in learn.tag(['the', 'they play near the bank .'])][1] == tags
    for o in ('', [], ' \n'):
        none, ids, p = learn.predict(o)
        assert none == [] and len(ids) == 0 and p.shape == (0, n_tags)
    tagged = learn.tag(['', 'they play near the bank .', []])
    assert tagged[0] == tagged[2] == [] and [t for _,t in tagged[1]] == tags and learn.tag([]) == []
    with pytest.raises(TypeError, match='neither a text'): learn.predict([7])
    with pytest.raises(TypeError, match='put it into a list'): learn.tag('a text')

def test_get_preds_is_in_the_order_of_the_data(learn, corpus, tags):
    sents = corpus.gold['valid']
    for dl in (None, learn.dls.valid.new(bs=3), learn.dls.valid.new(shuffle=True),
               learn.dls.valid.new(bs=len(sents))):
        p, y, d, loss = quietly(learn, learn.get_preds, dl=dl, with_decoded=True, with_loss=True)
        assert len(p) == len(y) == len(d) == len(loss) == len(sents)
        for s,row,probs,guess,nll in zip(sents, y, p, d, loss):
            n = len(s.tokens)
            assert [tags[i] for i in row[:n].tolist()] == s.tags and (row[n:] == IGNORE).all()
            assert torch.allclose(probs[:n], learn.predict(s.tokens)[2], atol=1e-5)
            assert torch.equal(guess, probs.argmax(-1))
            assert np.isclose(F.nll_loss(probs[:n].log(), row[:n]), nll, atol=1e-4)
    tagged = learn.tag([s.tokens for s in sents])
    assert [[t for _,t in o] for o in tagged] == [
        [tags[i] for i in row[:len(s.tokens)].tolist()] for s,row in zip(sents, d)]

def test_loss_and_accuracy_are_per_token(learn, corpus):
    p, y = quietly(learn, learn.get_preds)
    p = torch.cat([probs[row != IGNORE] for probs,row in zip(p, y)])
    y = torch.cat([row[row != IGNORE] for row in y])
    wanted = F.nll_loss(p.log(), y).item(), (p.argmax(-1) == y).float().mean().item()
    for bs in (2, 60):
        found = quietly(learn, learn.validate, dl=learn.dls.valid.new(bs=bs))
        assert np.allclose(found, wanted, rtol=1e-4)

@pytest.fixture()
def shown(monkeypatch):
    "The tables that are displayed"
    tables = []
    monkeypatch.setattr('elmo_fastai.data.batches.IN_NOTEBOOK', True)
    monkeypatch.setattr('elmo_fastai.data.batches.display_df', tables.append)
    return tables

@pytest.mark.parametrize('cls', [Interpretation, ClassificationInterpretation])
def test_interpretation(learn, corpus, cls, shown):
    interp = quietly(learn, cls.from_learner, learn)
    losses, idx = interp.top_losses(5)
    assert (losses[:-1] >= losses[1:]).all()
    quietly(learn, interp.plot_top_losses, 5)
    [df] = shown
    assert list(df.text) == [
        ' '.join(corpus.gold['valid'][i].tokens) for i in idx.tolist()
    ] and np.allclose(df.loss, losses, atol=1e-3)
    assert list(df.target) == [' '.join(corpus.gold['valid'][i].tags) for i in idx.tolist()]
    for text,guess in zip(df.text, df.answer): assert guess.split() == learn.predict(text.split())[0]
    quietly(learn, interp.show_results, [0, 1])
    assert list(shown[1].text) == [' '.join(s.tokens) for s in corpus.gold['valid'][:2]]
    own = Learner(learn.dls, learn.model, learn.loss_func)      # with fastai's own `test_dl`, too
    own.dls = DataLoaders(learn.dls.train, learn.dls.valid, device='cpu')
    quietly(own, cls.from_learner(own, dl=learn.dls.valid).plot_top_losses, 5)
    assert shown[2].equals(shown[0])

def test_show(learn, shown):
    learn.dls.show_batch(max_n=2)
    quietly(learn, learn.show_results, max_n=2)
    assert list(shown[0].columns) == ['text', 'target'] and len(shown[0]) == 2
    assert list(shown[1].columns) == ['text', 'target', 'answer'] and len(shown[1]) == 2
    assert all(len(row.text.split()) == len(row.answer.split()) for row in shown[1].itertuples())

def test_export(learn, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        learn.export(tmp_path/'t.pkl')
        again = load_learner(tmp_path/'t.pkl')
    text = 'some unhelpful trains left the spring .'
    assert again.predict(text)[0] == learn.predict(text)[0] and torch.allclose(
        again.predict(text)[2], learn.predict(text)[2], atol=1e-5)
    assert not len(again.dls.train_ds) and len(again.model.cache.rows) <= 1
    assert len(learn.dls.train) > 0 and quietly(learn, learn.validate)[0] > 0

def test_the_backbone_keeps_its_tokenizer(dls, lm, tmp_path):
    elmo = Elmo(lm, tokenizer='chars')
    learn = elmo_tagger_learner(dls, elmo, path=tmp_path)
    assert learn.model.elmo.tokenizer == 'chars'
    assert Elmo.from_pretrained(learn.save_encoder('e')).tokenizer == 'chars'

def test_save_and_load_weights(learn, corpus, lm, tmp_path):
    other = elmo_tagger_learner(
        loaders(corpus), bilm(5, 0), 'both', hidden=16, path=tmp_path)
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
    learn = elmo_tagger_learner(loaders(corpus), lm, hidden=8)
    with learn.no_bar(), learn.no_logging():
        assert learn.lr_find(num_it=10, show_plot=False).valley > 0


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
        quietly(learn, learn.validate)[1])

# spans with their place in the text

@pytest.mark.parametrize('tags', [
    'B-PER I-PER O O B-LOC O', 'B-PER E-PER O O S-LOC O', 'B-PER L-PER O O U-LOC O',
    'I-PER I-PER O O I-LOC O'])
def test_spans_of_all_schemes_have_offsets(tags):
    text = 'Zo\u00eb  Lee, in Gent.'
    spans = tagger.spans_of(text, ['Zo\u00eb', 'Lee', ',', 'in', 'Gent', '.'], tags.split())
    assert [(o['text'], o['label']) for o in spans] == [('Zo\u00eb  Lee', 'PER'), ('Gent', 'LOC')]
    assert all(text[o['start']:o['end']] == o['text'] for o in spans)


def test_offsets_of_a_text_with_marks_of_direction():
    "`word_tokenize` drops them; the places are those of the text as it is"
    text = '\ufeffIn \u202bTel\u200f-\u200fAviv\u202c, co\u00adop\u200e.'
    tokens = word_tokenize(text)
    assert tokens == ['In', 'Tel-Aviv', ',', 'co\u00adop', '.']
    found = [text[start:end] for start, end in tagger.offsets(text, tokens)]
    assert found == ['In', 'Tel\u200f-\u200fAviv', ',', 'co\u00adop', '.']

def test_tags_that_mark_none_have_places():
    assert [
        (o['start'], o['label']) for o in tagger.spans_of('a b', ['a', 'b'], ['DET', 'NOUN'], False)
    ] == [(0, 'DET'), (2, 'NOUN')]
    with pytest.raises(ValueError, match="The token 'A'"):
        tagger.spans_of('a b', ['A', 'b'], ['O', 'O'])


def test_tagging_as_spans(learn):
    text = 'they  play near the bank.'
    (spans,), (pairs,) = learn.tag([text], as_spans=True), learn.tag([text])
    assert [o['text'] for o in spans] == [token for token, _ in pairs] and [
        o['label'] for o in spans] == [tag for _, tag in pairs]
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
