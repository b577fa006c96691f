"""Scores beside scikit-learn's and seqeval's own, and the report of a learner"""

import warnings
from contextlib import redirect_stdout
from io import StringIO

import numpy as np, pandas as pd, pytest
from fastai.basics import load_learner, set_seed
from seqeval.metrics import classification_report as span_report
from sklearn.metrics import classification_report, confusion_matrix

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.read import Sentence
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.data.blocks import ClassifyDataLoaders, TagDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.tasks.classify import elmo_classifier_learner
from elmo_fastai.tasks.scores import bootstrap, compare, span_scores
from elmo_fastai.tasks.tag import elmo_tagger_learner
from made import fit

SENTS = [Sentence('ann left new york .'.split(), 'B-PER O B-LOC I-LOC O'.split()),
         Sentence('bob met ann .'.split(), 'B-PER O B-PER O'.split()),
         Sentence('rain'.split(), ['O'])]
CONFIG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8)

def fitted(learn, epochs): return fit(learn, epochs, 1e-2)

def bilm():
    set_seed(0)
    return BiLM(CONFIG, 0)

# scores

def test_an_interval_is_as_wide_as_the_binomial_s():
    right = np.arange(400) < 300
    found = bootstrap(right)
    half = 1.96*(.75*.25/400)**.5
    assert found.value == .75
    assert found.low == pytest.approx(.75 - half, abs=.008)
    assert found.high == pytest.approx(.75 + half, abs=.008)
    assert found == bootstrap(right) != bootstrap(right, seed=1)

def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    "Sentences differ in difficulty; .69 is the mean of the clipped distribution"
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(60):
        p = np.clip(.7 + .25*rng.normal(size=60), 0, 1).repeat(8)
        found = bootstrap(rng.random(480) < p, units=np.arange(60).repeat(8), n_boot=200)
        held += found.low <= .69 <= found.high
    assert held >= 50

def test_tokens_of_a_sentence_do_not_count_as_independent():
    right = (np.random.default_rng(0).random(50) < .5).repeat(20)
    whole = bootstrap(right, units=np.arange(50).repeat(20))
    each = bootstrap(right)
    assert whole.high - whole.low > 3*(each.high - each.low)

def test_models_are_compared_on_the_same_draws():
    a = np.random.default_rng(0).random(400) < .6
    right = dict(base=np.ones((1, 400)), one=a[None], two=(a | (np.arange(400) < 40))[None])
    table = compare(right, np.arange(400), of=['one', 'two'])
    assert table.best['two'] > .99 and np.isnan(table.best['base'])
    assert table.high['one'] > table.low['two']
    assert table.loc['base', ['accuracy', 'low', 'high']].tolist() == [1, 1, 1]
    alone = bootstrap(a)
    assert table.low['one'] == pytest.approx(alone.low, abs=.01)

def test_what_was_not_asked_does_not_count_and_seeds_are_drawn():
    right = np.array([[1, 0, np.nan, np.nan], [np.nan, np.nan, 1, 1]])
    assert compare(dict(layer=right), [0, 1, 2, 3]).accuracy.iloc[0] == .75
    seeds = np.array([[1.]*50, [0.]*50])                    # one seed is right, the other wrong
    table = compare(dict(layer=seeds), np.arange(50))
    assert (table.low.iloc[0], table.accuracy.iloc[0], table.high.iloc[0]) == (0, .5, 1)

def test_many_texts_are_scored_in_a_moment():
    import time
    right = np.random.default_rng(0).random(100_000) < .8
    units = np.arange(100_000)//20
    start = time.process_time()
    bootstrap(right)
    bootstrap(right, units=units)
    assert time.process_time() - start < 5

def test_a_unit_without_a_question_adds_nothing():
    assert bootstrap([1, 0, 0], [1, 1, 0]).value == .5
    assert bootstrap([0], [0]) == (0, 0, 0)

@pytest.mark.parametrize('seed', range(3))
def test_spans_are_scored_as_by_seqeval(seed):
    rng = np.random.default_rng(seed)
    tags = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    true, guess = rng.choice(tags, (2, 30, 8), p=[.4, .15, .15, .15, .15]).tolist()
    guess[:10] = true[:10]
    theirs = span_report(true, guess, output_dict=True, zero_division=0)
    table, f1 = span_scores(true, guess)
    assert pd.DataFrame(theirs).T.astype(float).equals(table.astype(float))
    assert f1.value == pytest.approx(theirs['micro avg']['f1-score'])
    assert f1.low < f1.value < f1.high

def test_no_span_is_no_score():
    table, f1 = span_scores([['O', 'O']], [['O', 'O']])
    assert not len(table) and f1 == (0, 0, 0)

# the report of a classifier

GOOD, BAD = ('good', 'great', 'fine'), ('bad', 'poor', 'dull')

def texts(n=60, good='1', bad='0'):
    "Texts of different lengths, not in the order of their lengths"
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        word = rng.choice(GOOD if i % 2 else BAD)
        text = f"the film {'really '*rng.integers(0, 9)}was {word} ."
        rows.append((text, good if i % 2 else bad))
    return pd.DataFrame(rows, columns=['text', 'label'])

@pytest.fixture(scope='module')
def classifier():
    set_seed(0)
    dls = ClassifyDataLoaders.from_df(texts(), texts(20), tokenizer='space', device='cpu', bs=8)
    return fitted(elmo_classifier_learner(dls, Elmo(bilm()), words=16, dropout=0.), 8)

def test_answers_stand_beside_their_texts(classifier):
    "Batches are sorted by length; the rows are not. All figures are scikit-learn's"
    df = texts(50)
    df.loc[:9, 'label'] = ['1' if label == '0' else '0' for label in df.label[:10]]
    report = classifier.report(df)
    answers = [classifier.predict(text)[0] for text in df.text]
    right = [answer == label for answer,label in zip(answers, df.label)]
    assert report.accuracy == bootstrap(right) and report.accuracy.value == np.mean(right)
    assert (report.confusion.values == confusion_matrix(df.label, answers)).all()
    theirs = pd.DataFrame(classification_report(df.label, answers, output_dict=True)).T
    assert theirs.drop('accuracy').astype(float).equals(report.scores.astype(float))
    wrong = report.worst[report.worst.right != report.worst.answer]
    assert set(wrong.text) <= set(df.text[:10]) and len(report.worst) == 10
    worst = report.worst.iloc[0]
    p = classifier.predict(worst.text)[2]
    assert worst.probability == pytest.approx(p[int(worst.right)].item(), abs=1e-4)

def test_any_source_gives_the_same_report(classifier, tmp_path):
    from datasets import Dataset
    table = texts(30)
    table.to_csv(tmp_path/'a.csv', index=False)
    table.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    expected = classifier.report(table).confusion
    for source in (Dataset.from_pandas(table), tmp_path/'a.csv', str(tmp_path/'a.jsonl'),
                   classifier.dls.test_dl(table, with_labels=True), table.to_dict('records')):
        assert classifier.report(source).confusion.equals(expected)

def test_its_own_part(classifier):
    classifier.recorder.losses = [.5]                        # of the training
    report = classifier.report()
    assert classifier.recorder.losses == [.5]
    assert report.accuracy.value == pytest.approx(classifier.validate()[1]) and report.n == 20
    assert classifier.report(classifier.dls.train).n == 60

def test_one_class_alone_and_a_blank_text(classifier):
    df = texts(20)
    report = classifier.report(df[df.label == '1'])
    assert report.n == report.scores.support['1'] == 10
    blank = pd.DataFrame(dict(text=['', *df.text], label=['1', *df.label]))
    with pytest.raises(CorpusError, match='row 0 has no text'): classifier.report(blank)

def test_new_tokens_are_counted(classifier, tmp_path):
    rows = pd.DataFrame(dict(text=['the film was zzz .', 'qqq was good .'], label=['1', '0']))
    assert classifier.report(rows).tokens == dict(n=9, new=pytest.approx(2/9))
    classifier.export(tmp_path/'c.pkl')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        again = load_learner(tmp_path/'c.pkl')
    found = again.report(rows)
    assert found.tokens == dict(n=9, new=None)         # the file has no text of the training
    assert found.accuracy == classifier.report(rows).accuracy
    with pytest.raises(CorpusError, match='nothing to judge.*report'): again.report()

@pytest.mark.parametrize('data, says', [
    (pd.DataFrame(dict(text=['x'], label=['mixed'])), r"Label 'mixed'.*vocab=\[…\]"),
    (pd.DataFrame(dict(text=['x'], label=[1])), r"Label '1'.*vocab"),
    (pd.DataFrame(dict(text=['x'], label=[None])), "no 'label': leave such rows out"),
    (pd.DataFrame(dict(a=['x'], label=['1'])), "no column 'text'.*'a', 'label'"),
    (pd.DataFrame(dict(text=['x'], b=['1'])), "no column 'label'.*'text', 'b'"),
    ('no such file.csv', 'there is no file'), ([], 'nothing to read')])
def test_what_can_not_be_judged(classifier, data, says):
    with pytest.raises(CorpusError, match=says): classifier.report(data)

def test_a_report_is_text_and_a_table(classifier):
    out = StringIO()
    with redirect_stdout(out): report = classifier.report(texts(30))
    assert out.getvalue() == ''
    assert 'macro avg' in str(report) and '30 judged' in str(report)
    odd = classifier.report(pd.DataFrame([('<b>good</b> &', '1')], columns=['text', 'label']))
    assert '&lt;b&gt;' in odd._repr_html_() and '<b>good' not in odd._repr_html_()

def test_several_labels():
    rows = pd.DataFrame([('the film was good .', 'good;film'), ('the bank was closed .', 'bank'),
                         ('it was bad .', ''), ('a good bank .', 'good;bank')]*10,
                        columns=['text', 'label'])
    dls = ClassifyDataLoaders.from_df(rows, rows, label_delim=';', tokenizer='space', bs=8,
                                      device='cpu')
    learn = fitted(elmo_classifier_learner(dls, Elmo(bilm()), words=8, dropout=0.), 3)
    report = learn.report(rows)
    p, y = learn.get_preds()
    guess = p > .5
    theirs = pd.DataFrame(classification_report(
        y, guess, target_names=list(dls.vocab), output_dict=True, zero_division=0)).T
    assert theirs.astype(float).equals(report.scores.astype(float))
    assert report.accuracy.value == pytest.approx((guess == (y > 0)).float().mean().item())
    whole = (guess == (y > 0)).all(1).float().mean().item()
    assert report.figures['all labels right'].value == pytest.approx(whole)
    assert report.confusion.right.tolist() == (guess & (y > 0)).sum(0).tolist()

# the report of a tagger

@pytest.fixture(scope='module')
def tagger():
    set_seed(0)
    dls = TagDataLoaders.from_sents(SENTS*4, SENTS, tokenizer='space', device='cpu', bs=4)
    return fitted(elmo_tagger_learner(dls, bilm(), hidden=8), 12)

def test_tags_stand_beside_their_tokens(tagger):
    tagged = [[tag for _,tag in pairs] for pairs in tagger.tag([s.tokens for s in SENTS])]
    report = tagger.report(SENTS)
    true = [s.tags for s in SENTS]
    units = np.repeat(range(3), list(map(len, true)))
    right = [a == b for pair in zip(true, tagged) for a,b in zip(*pair)]
    assert report.accuracy == bootstrap(right, units=units)
    theirs = span_report(true, tagged, output_dict=True, zero_division=0)
    assert pd.DataFrame(theirs).T.astype(float).equals(report.scores.astype(float))
    assert report.figures['F1 of spans'] == span_scores(true, tagged)[1]
    assert len(report.worst) == 3 and all(text.count('[') == 1 for text in report.worst.text)
    values = dict(zip(tagger.metrics.attrgot('name'), tagger.validate()[1:]))
    own = tagger.report()
    assert own.accuracy.value == pytest.approx(values['accuracy'])
    assert own.figures['F1 of spans'].value == pytest.approx(values['span_f1'])

def test_tokens_without_a_tag_are_not_judged(tagger):
    some = [Sentence(s.tokens, [None, *s.tags[1:]]) for s in SENTS[:2]]
    report = tagger.report(some)
    assert report.confusion.values.sum() == 7 and report.tokens['n'] == 9

def test_parts_of_speech():
    sents = [Sentence(s.tokens, ['N' if token.isalpha() else 'P' for token in s.tokens])
             for s in SENTS]
    dls = TagDataLoaders.from_sents(sents*4, sents, device='cpu', bs=4)
    learn = fitted(elmo_tagger_learner(dls, bilm(), hidden=8), 2)
    report = learn.report()
    true = [tag for s in sents for tag in s.tags]
    guess = [tag for pairs in learn.tag([s.tokens for s in sents]) for _,tag in pairs]
    theirs = pd.DataFrame(classification_report(true, guess, output_dict=True, zero_division=0)).T
    assert theirs.drop('accuracy').astype(float).equals(report.scores.astype(float))

def test_files_of_tags(tagger, tmp_path):
    blocks = ['\n'.join(map(' '.join, zip(s.tokens, s.tags))) for s in SENTS]
    (tmp_path/'t.conll').write_text('\n\n'.join(blocks))
    found = tagger.report(tmp_path/'t.conll', token_col=0, tag_col=1)
    assert found.accuracy == tagger.report(SENTS).accuracy
    with pytest.raises(CorpusError, match='token_col'): tagger.report(tmp_path/'t.conll')
    with pytest.raises(CorpusError, match=r"Tags 'B-ORG'.*vocab"):
        tagger.report([Sentence(['x'], ['B-ORG'])])
    with pytest.raises(CorpusError, match=r"row 0 .*isn't None"): tagger.report([Sentence(['x'], [None])])

@pytest.mark.parametrize('n', [1, 7, 40])
def test_all_right_is_not_without_doubt(n):
    "Clopper and Pearson's interval by the quantiles of the beta distribution"
    from scipy.stats import beta
    value, low, high = bootstrap([1]*n)
    assert (value, high) == (1, 1) and low == pytest.approx(beta.ppf(.025, n, 1))
    value, low, high = bootstrap([0]*n)
    assert (value, low) == (0, 0) and high == pytest.approx(beta.ppf(.975, 1, n))
    value, low, high = bootstrap([1]*2*n, units=[*range(n)]*2)
    assert low == pytest.approx(beta.ppf(.025, n, 1)), 'as many trials as there are units'


def test_one_unit_has_no_interval():
    found = bootstrap([1, 0, 1], units=[0, 0, 0])
    assert found.value == 2/3 and np.isnan(found.low) and np.isnan(found.high)
