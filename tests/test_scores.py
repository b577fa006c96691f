"""Scores beside scikit-learn's and seqeval's own, and the report of a learner"""
import math, warnings

import numpy as np, pandas as pd, pytest
from datasets import Dataset
from fastai.basics import load_learner, set_seed
from scipy import stats
from scipy.stats import beta
from seqeval.metrics import classification_report as span_report
from sklearn.metrics import classification_report, confusion_matrix

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.read import Sentence
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.classifier import ClassifyDataLoaders, elmo_classifier_learner
from elmo_fastai.practice.scores import bootstrap, interval, span_scores
from elmo_fastai.tagger import TagDataLoaders, elmo_tagger_learner
from made import fit

SENTS = [Sentence('ann left new york .'.split(), 'B-PER O B-LOC I-LOC O'.split()),
         Sentence('bob met ann .'.split(), 'B-PER O B-PER O'.split()),
         Sentence('rain'.split(), ['O'])]
CONFIG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8)

def bilm():
    set_seed(0)
    return BiLM(CONFIG, 0)

def same(table, report):
    "Is a table what scikit-learn or seqeval says of each class?"
    theirs = pd.DataFrame(report).T.drop('accuracy', errors='ignore')
    return theirs.astype(float).equals(table.astype(float))

# intervals

def test_an_interval_is_as_wide_as_the_binomial_s():
    right = np.arange(400) < 300
    found = bootstrap(right, n_boot=20_000)
    half = 1.96*(.75*.25/400)**.5
    assert found == pytest.approx((.75, .75 - half, .75 + half), abs=.003)
    assert found == bootstrap(right, n_boot=20_000) != bootstrap(right, seed=1)

@pytest.mark.parametrize('n', [1, 7, 40])
def test_all_right_is_not_without_doubt(n):
    "Clopper and Pearson's interval by the quantiles of the beta distribution, of as many units"
    low, high = beta.ppf(.025, n, 1), beta.ppf(.975, 1, n)
    for right, units in ([1]*n, None), ([1]*2*n, [*range(n)]*2):
        assert bootstrap(right, units) == pytest.approx((1, low, 1))
    assert bootstrap([0]*n) == pytest.approx((0, 0, high))

def test_one_unit_has_no_interval_and_none_no_score():
    assert str(bootstrap([1, 0, 1], [0, 0, 0])) == '0.667'
    with pytest.raises(ValueError, match='nothing to score'): bootstrap([])

def test_spans_are_scored_as_by_seqeval():
    rng = np.random.default_rng(0)
    tags = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    true, guess = rng.choice(tags, (2, 30, 8), p=[.4, .15, .15, .15, .15]).tolist()
    guess[:10] = true[:10]
    theirs = span_report(true, guess, output_dict=True, zero_division=0)
    table, f1 = span_scores(true, guess)
    assert same(table, theirs) and f1 == pytest.approx(theirs['micro avg']['f1-score'])
    assert span_scores([['O', 'O']], [['O', 'O']])[1] == 0

# a classifier

def texts(n=60):
    "Texts of different lengths, not in the order of their lengths"
    rng = np.random.default_rng(0)
    words = ('bad', 'poor', 'dull'), ('good', 'great', 'fine')
    rows = [(f"the film {'really '*rng.integers(0, 9)}was {rng.choice(words[i % 2])} .", str(i % 2))
            for i in range(n)]
    return pd.DataFrame(rows, columns=['text', 'label'])

@pytest.fixture(scope='module')
def classifier():
    dls = ClassifyDataLoaders.from_df(texts(), texts(20), tokenizer='space', device='cpu', bs=8)
    return fit(elmo_classifier_learner(dls, bilm(), dropout=0.), 20, 1e-2)

def test_answers_stand_beside_their_texts(classifier):
    "Batches are sorted by length; the rows are not. All figures are scikit-learn's"
    df = texts(50)
    df.loc[:9, 'label'] = ['1' if label == '0' else '0' for label in df.label[:10]]
    report = classifier.report(df)
    answers = [classifier.predict(text)[0] for text in df.text]
    right = [answer == label for answer,label in zip(answers, df.label)]
    assert report.accuracy == bootstrap(right)
    assert (report.confusion.values == confusion_matrix(df.label, answers)).all()
    assert same(report.scores, classification_report(df.label, answers, output_dict=True))
    wrong = report.worst[report.worst.right != report.worst.answer]
    assert set(wrong.text) <= set(df.text[:10]) and len(report.worst) == 10
    worst = report.worst.iloc[0]
    p = classifier.predict(worst.text)[2]
    assert worst.probability == pytest.approx(p[int(worst.right)].item(), abs=1e-4)
    assert 'macro avg' in str(report) and '50 judged' in str(report)

def test_its_own_part_and_any_source(classifier, tmp_path):
    classifier.recorder.losses = [.5]
    report = classifier.report()
    assert classifier.recorder.losses == [.5] and report.n == 20
    assert report.accuracy.value == pytest.approx(classifier.validate()[1])
    table = texts(30)
    table.to_csv(tmp_path/'a.csv', index=False)
    expected = classifier.report(table).confusion
    for source in (Dataset.from_pandas(table), str(tmp_path/'a.csv'), table.to_dict('records'),
                   [*zip(table.text, table.label)],
                   classifier.dls.test_dl(table, with_labels=True)):
        assert classifier.report(source).confusion.equals(expected)

def test_one_class_alone_marks_of_html_and_an_export(classifier, tmp_path):
    rows = pd.DataFrame(dict(text=['the <b> was zzz .', 'qqq was good .'], label=['1', '1']))
    report = classifier.report(rows)
    assert report.scores.support['1'] == 2 and '&lt;b&gt;' in report._repr_html_()
    classifier.export(tmp_path/'c.pkl')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        again = load_learner(tmp_path/'c.pkl')
    assert again.report(rows).accuracy == report.accuracy
    with pytest.raises(CorpusError, match='nothing to judge.*report'): again.report()

@pytest.mark.parametrize('data, says', [
    (dict(text=['x'], label=['mixed']), r"'mixed'.*vocab=\[…\]"),
    (dict(text=['x'], label=[1]), r"'1'.*vocab"), (dict(text=['x'], label=[None]), "no 'label'"),
    (dict(text=['x', ''], label=['1', '1']), 'row 1')], ids=str)
def test_what_can_not_be_judged(classifier, data, says):
    with pytest.raises(CorpusError, match=says): classifier.report(pd.DataFrame(data))
    unlabelled = classifier.dls.test_dl(['a text'])
    with pytest.raises(CorpusError, match='no labels or tags'): classifier.report(unlabelled)

def test_several_labels():
    rows = pd.DataFrame([('the film was good .', 'good;film'), ('the bank was closed .', 'bank'),
                         ('it was bad .', ''), ('a good bank .', 'good;bank')]*10,
                        columns=['text', 'label'])
    dls = ClassifyDataLoaders.from_df(rows, rows, label_delim=';', tokenizer='space', bs=8,
                                      device='cpu')
    learn = fit(elmo_classifier_learner(dls, bilm(), dropout=0.), 3, 1e-2)
    report = learn.report(rows)
    p, y = (o.numpy() > .5 for o in learn.get_preds())
    theirs = classification_report(y, p, target_names=list(dls.vocab), output_dict=True,
                                   zero_division=0)
    assert same(report.scores, theirs)
    assert report.accuracy.value == pytest.approx((p == y).mean())
    assert report.figures['all labels right'].value == pytest.approx((p == y).all(1).mean())
    assert report.confusion.right.tolist() == (p & y).sum(0).tolist()
    assert report.confusion.missed.tolist() == (y & ~p).sum(0).tolist()

# a tagger

def tagger_of(sents, epochs):
    dls = TagDataLoaders.from_sents(sents*4, sents, tokenizer='space', device='cpu', bs=4)
    return fit(elmo_tagger_learner(dls, bilm(), hidden=8), epochs, 1e-2)

def given(learn, sents): return [[tag for _,tag in o] for o in learn.tag([s.tokens for s in sents])]

@pytest.fixture(scope='module')
def tagger(): return tagger_of(SENTS, 12)

def test_tags_stand_beside_their_tokens(tagger):
    true, tagged = [s.tags for s in SENTS], given(tagger, SENTS)
    report = tagger.report(SENTS)
    right = [a == b for pair in zip(true, tagged) for a,b in zip(*pair)]
    assert report.accuracy == bootstrap(right, np.repeat(range(3), list(map(len, true))))
    assert same(report.scores, span_report(true, tagged, output_dict=True, zero_division=0))
    assert len(report.worst) == 3 and all(text.count('[') == 1 for text in report.worst.text)
    values = dict(zip(tagger.metrics.attrgot('name'), tagger.validate()[1:]))
    own = tagger.report()
    assert own.accuracy.value == pytest.approx(values['accuracy'])
    assert own.figures['F1 of spans'].value == pytest.approx(values['span_f1'])

def test_tokens_without_a_tag_are_not_judged(tagger):
    report = tagger.report([Sentence(s.tokens, [None, *s.tags[1:]]) for s in SENTS[:2]])
    assert report.confusion.values.sum() == 7

def test_files_of_tags(tagger, tmp_path):
    blocks = ['\n'.join(map(' '.join, zip(s.tokens, s.tags))) for s in SENTS]
    (tmp_path/'t.conll').write_text('\n\n'.join(blocks))
    found = tagger.report(tmp_path/'t.conll', token_col=0, tag_col=1)
    assert found.accuracy == tagger.report(SENTS).accuracy
    for data, says in ((tmp_path/'t.conll', 'token_col'),
                       ([Sentence(['x'], ['B-ORG'])], "'B-ORG'.*vocab"),
                       ([Sentence(['x'], [None])], 'row 0 ')):
        with pytest.raises(CorpusError, match=says): tagger.report(data)

def test_interval():
    "Student's, for any number of seeds, and everywhere the same"
    for n in (2, 3, 5, 30, 400):
        x = np.random.default_rng(n).normal(size=n)
        mean, half = interval(x.tolist())
        low, high = stats.ttest_1samp(x, 0).confidence_interval()
        assert math.isclose(mean - half, low) and math.isclose(mean + half, high)
    assert interval([1.])[0] == 1 and math.isnan(interval([1.])[1])
