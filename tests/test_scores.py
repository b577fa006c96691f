"""Scores beside scikit-learn's and seqeval's own, and the report of a learner"""

import json, warnings
from contextlib import redirect_stdout
from io import StringIO

import numpy as np, pandas as pd, pytest, torch
from fastai.basics import CrossEntropyLossFlat, load_learner, set_seed
from fastai.interpret import ClassificationInterpretation
from seqeval.metrics import classification_report as span_report
from sklearn.metrics import classification_report, confusion_matrix, f1_score

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import Sentence
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.tagged import TagDataLoaders, read_tagged
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.tasks.classify import elmo_classifier_learner
from elmo_fastai.tasks.scores import bootstrap, class_scores, compare, confusion, span_scores
from elmo_fastai.tasks.tag import elmo_tagger_learner
from copies import local
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
def test_classes_are_scored_as_by_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    true, guess = rng.choice(list('abcd'), (2, 60), p=[.6, .2, .2, 0] if seed else None)
    theirs = classification_report(true, guess, output_dict=True, zero_division=0)
    ours = class_scores(true, guess)
    assert list(ours.index) == sorted({*true, *guess})
    for name,row in ours.iterrows():
        expected = [theirs[name][key] for key in ('precision', 'recall', 'f1-score', 'support')]
        assert row.tolist() == pytest.approx(expected)
    assert ours.F1.mean() == pytest.approx(f1_score(true, guess, average='macro'))
    assert (confusion(true, guess).values == confusion_matrix(true, guess)).all()

def test_labels_are_scored_as_by_scikit_learn():
    rng = np.random.default_rng(0)
    true, guess = rng.random((2, 50, 4)) < .4
    true[:, 3] = guess[:, 3] = False                       # a label that nobody has or gives
    theirs = classification_report(true, guess, output_dict=True, zero_division=0)
    ours = class_scores(true, guess, list('wxyz'))
    assert list(ours.index) == list('wxy')
    assert ours.F1.tolist() == pytest.approx([theirs[str(i)]['f1-score'] for i in range(3)])
    table = confusion(true, guess, list('wxyz'))
    assert table.right['w'] + table.missed['w'] == true[:, 0].sum()
    assert table.right['w'] + table.invented['w'] == guess[:, 0].sum()

@pytest.mark.parametrize('seed', range(3))
def test_spans_are_scored_as_by_seqeval(seed):
    rng = np.random.default_rng(seed)
    tags = ['O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC']
    true, guess = rng.choice(tags, (2, 30, 8), p=[.4, .15, .15, .15, .15]).tolist()
    guess[:10] = true[:10]
    theirs = span_report(true, guess, output_dict=True, zero_division=0)
    table, f1 = span_scores(true, guess)
    for kind,row in table.iterrows():
        expected = [theirs[kind][key] for key in ('precision', 'recall', 'f1-score', 'support')]
        assert row.tolist() == pytest.approx(expected)
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
    return rows

@pytest.fixture(scope='module')
def classifier():
    dls = ClassifyDataLoaders.from_data(texts(), valid=texts(20), tokenizer='space', device='cpu',
                                        bs=8)
    set_seed(0)
    return fitted(elmo_classifier_learner(dls, Elmo(bilm()), words=16, dropout=0.), 8)

def test_answers_stand_beside_their_texts(classifier):
    "Batches are sorted by length; the rows are not"
    rows = texts(50)
    swapped = [(text, '1' if label == '0' else '0') for text,label in rows[:10]] + rows[10:]
    report = classifier.report(swapped)
    answers = [classifier.predict(text)[0] for text,_ in rows]
    right = [answer == label for answer,(_, label) in zip(answers, swapped)]
    assert report.accuracy.value == pytest.approx(np.mean(right))
    theirs = confusion_matrix([label for _,label in swapped], answers)
    assert (report.confusion.values == theirs).all()
    wrong = report.worst[report.worst.right.astype(str) != report.worst.answer.astype(str)]
    assert set(wrong.text) <= {text for text,_ in swapped[:10]}
    worst = report.worst.iloc[0]
    p = classifier.predict(worst.text)[2]
    assert worst.probability == pytest.approx(p[int(worst.right)].item(), abs=1e-4)

def test_any_source_gives_the_same_report(classifier, tmp_path):
    from datasets import Dataset
    rows = texts(30)
    table = pd.DataFrame(rows, columns=['text', 'label'])
    table.to_csv(tmp_path/'a.csv', index=False)
    table.to_json(tmp_path/'a.jsonl', orient='records', lines=True)
    table.rename(columns=dict(text='words', label='class')).to_parquet(tmp_path/'b.parquet')
    expected = classifier.report(rows).confusion
    for source in (table, Dataset.from_pandas(table), tmp_path/'a.csv', str(tmp_path/'a.jsonl'),
                   dict(train=texts(4), test=rows), dict(test=rows),
                   classifier.dls.test_dl(rows, with_labels=True)):
        assert classifier.report(source).confusion.equals(expected)
    report = classifier.report(tmp_path/'b.parquet', text_col='words', label_col='class')
    assert report.confusion.equals(expected)
    assert classifier.report(rows, n_rows=7).n == 7
    assert classifier.report(dict(train=rows, valid=rows[:5])).n == 5
    assert classifier.report(dict(train=rows, valid=rows[:5]), split='train').n == 30

def test_its_own_parts(classifier):
    classifier.recorder.losses = [.5]                        # of the training
    report = classifier.report()
    assert classifier.recorder.losses == [.5]
    assert report.accuracy.value == pytest.approx(classifier.validate()[1])
    assert report.n == 20 and classifier.report('train').n == 60
    with pytest.raises(ValueError, match="no part 'test'"): classifier.report('test')

def test_numbers_in_place_of_the_classes_texts(classifier):
    rows = texts(20)
    numbers = [(text, int(label)) for text,label in rows]
    assert classifier.report(numbers).confusion.equals(classifier.report(rows).confusion)
    names = [(text, ['no', 'yes'][label]) for text,label in numbers]
    with pytest.raises(CorpusError, match="none of the labels, such as '(no|yes)'.*'0', '1'"):
        classifier.report(names)

def test_labels_that_training_never_saw_are_errors(classifier):
    rows = texts(20) + [('a film .', 'mixed'), ('a film .', 'mixed')]
    report = classifier.report(rows)
    assert report.unseen == dict(mixed=2) and report.n == 22
    assert report.scores.n['mixed'] == 2 and report.scores.recall['mixed'] == 0
    assert report.accuracy.value <= 20/22
    assert 'mixed' not in set(report.worst.right) and "'mixed' (2)" in str(report)

def test_one_class_alone(classifier):
    report = classifier.report([row for row in texts(20) if row[1] == '1'])
    assert report.figures['always the commonest class'].value == 1
    assert report.scores.n.sum() == 10

def test_new_tokens_are_counted_also_by_a_learner_from_a_file(classifier, tmp_path):
    rows = [('the film was zzz .', '1'), ('qqq was good .', '0')]
    classifier.export(tmp_path/'c.pkl')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        again = load_learner(tmp_path/'c.pkl')
    expected = classifier.report(rows)
    assert expected.tokens == dict(n=9, new=pytest.approx(2/9))
    found = again.report(rows)
    assert found.tokens == expected.tokens and found.accuracy == expected.accuracy
    with pytest.raises(ValueError, match="'valid' is empty.*report"): again.report()
    again.export(tmp_path/'d.pkl')
    assert len(again.trained_on)

@pytest.mark.parametrize('data,kwargs,says', [
    ([], {}, 'empty'),
    (['only a text .'], {}, 'no row with a text and a label'),
    ([('a text .', None)], {}, '1 texts without a label'),
    (pd.DataFrame(dict(a=['x'], label=['1'])), {}, "no column 'text'"),
    (pd.DataFrame(dict(text=['x'], b=['1'])), dict(label_col='c'), "no column 'c'"),
    ('no such file.csv', {}, 'there is no file')])
def test_what_can_not_be_judged(classifier, data, kwargs, says):
    with pytest.raises(CorpusError, match=says): classifier.report(data, **kwargs)

def test_an_option_that_there_is_not(classifier):
    with pytest.raises(TypeError, match='tex_col'): classifier.report(texts(4), tex_col='text')
    with pytest.raises(ValueError, match="no split 'dev'"): classifier.report(texts(4), split='dev')

def test_a_report_is_text_table_and_json(classifier):
    out = StringIO()
    with redirect_stdout(out): report = classifier.report(texts(30))
    assert out.getvalue() == ''
    found = json.loads(report.to_json())
    assert found['n'] == 30 and found['figures']['accuracy']['value'] == report.accuracy.value
    assert found['confusion']['1']['1'] == report.confusion.loc['1', '1']
    assert [row['name'] for row in found['scores']] == ['0', '1']
    assert 'macro-F1' in str(report) and '<table' in report._repr_html_()
    odd = classifier.report([('<b>good</b> &', '1'), ('bad .', '0')])
    assert '&lt;b&gt;' in odd._repr_html_() and '<b>good' not in odd._repr_html_()

def test_several_labels():
    rows = [('the film was good .', ['good', 'film']), ('the bank was closed .', ['bank']),
            ('it was bad .', []), ('a good bank .', ['good', 'bank'])]*10
    dls = ClassifyDataLoaders.from_data(rows, valid=rows, tokenizer='space', bs=8, device='cpu')
    set_seed(0)
    learn = fitted(elmo_classifier_learner(dls, Elmo(bilm()), words=8, dropout=0.), 10)
    new = rows[:4] + [('a new film .', ['film', 'new'])]
    report = learn.report(new)
    preds, y = learn.get_preds(dl=dls.test_dl(rows[:4], with_labels=True))
    n_right = ((preds > .5) == (y > 0)).sum().item()
    last = [label for label in dls.vocab if label in learn.predict('a new film .')[0]]
    n_last = sum((label in last) == (label == 'film') for label in dls.vocab)
    assert report.accuracy.value == pytest.approx((n_right + n_last)/(5*len(dls.vocab) + 1))
    assert report.unseen == dict(new=1) and report.scores.n['new'] == 1
    assert list(report.confusion) == ['right', 'missed', 'invented']
    json.loads(report.to_json()), str(report)

def test_numbers():
    rows = [('very '*n + 'good .', float(n) + .5) for n in range(5)]*8
    dls = ClassifyDataLoaders.from_data(rows, valid=rows, tokenizer='space', bs=8, device='cpu')
    learn = fitted(elmo_classifier_learner(dls, Elmo(bilm()), pool='mean', dropout=0.), 3)
    report = learn.report()
    assert report.figures['rmse'].value == pytest.approx(learn.validate()[1], rel=1e-4)
    assert report.accuracy is None and report.worst.error.is_monotonic_decreasing
    json.loads(report.to_json()), str(report)

# a loss of one's own

LOSSES = dict(flat=CrossEntropyLossFlat(), torch=torch.nn.CrossEntropyLoss(),
              function=torch.nn.functional.cross_entropy)

@pytest.mark.parametrize('name', LOSSES)
@pytest.mark.parametrize('kind', ['classifier', 'tagger'])
def test_a_given_loss_is_the_usual_one(kind, name):
    "Cross-entropy in other clothes, with labels that training never saw, through all of fastai"
    def made(loss_func):
        set_seed(0)
        if kind == 'tagger':
            valid = [*SENTS, Sentence(['x'], ['B-ORG'])]
            dls = TagDataLoaders.from_sents(SENTS*4, valid, device='cpu', bs=8)
            return elmo_tagger_learner(dls, bilm(), hidden=4, loss_func=loss_func)
        valid = texts(9) + [('a film .', 'mixed')]
        dls = ClassifyDataLoaders.from_data(texts(24), valid=valid, tokenizer='space',
                                            device='cpu', bs=8)
        return elmo_classifier_learner(dls, Elmo(bilm()), loss_func=loss_func)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for loss_func in (None, LOSSES[name]):
            learn = made(loss_func)
            with learn.no_bar(), learn.no_logging():
                losses = learn.get_preds(with_loss=True)[-1]
                learn.show_results(max_n=1)
                interpretation = ClassificationInterpretation.from_learner(learn)
                interpretation.plot_top_losses(2)
                most = interpretation.most_confused()
                learn.fit(1, 1e-3)
            found.append((losses, most, learn.predict('the film')[0], str(learn.report())))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5)
    assert found[0][1:3] == found[1][1:3]
    assert found[0][3].splitlines()[:2] == found[1][3].splitlines()[:2]

def test_a_loss_that_does_not_fit_is_said_at_once():
    dls = ClassifyDataLoaders.from_data(texts(20), tokenizer='space', device='cpu', bs=8)
    with pytest.raises(ValueError, match='loss_func=MSELoss.*gives no number for scores'):
        elmo_classifier_learner(dls, Elmo(bilm()), loss_func=torch.nn.MSELoss())
    tagged_dls = TagDataLoaders.from_sents(SENTS*4, SENTS, device='cpu')
    with pytest.raises(ValueError, match='loss_func=MSELoss'):
        elmo_tagger_learner(tagged_dls, bilm(), loss_func=torch.nn.MSELoss())
    def own(pred, y): return torch.nn.functional.cross_entropy(pred, y)
    learn = elmo_classifier_learner(dls, Elmo(bilm()), loss_func=own)
    with learn.no_bar(), pytest.raises(ValueError, match="takes no reduction='none'"):
        learn.get_preds(with_loss=True)

# the report of a tagger

@pytest.fixture(scope='module')
def tagger():
    dls = TagDataLoaders.from_sents(SENTS*10, SENTS, device='cpu', bs=8)
    set_seed(0)
    return fitted(elmo_tagger_learner(dls, bilm(), hidden=16), 6)

def tagged(learn, sents):
    return [[tag for _,tag in pairs] for pairs in learn.tag([sent.tokens for sent in sents])]

def test_tags_stand_beside_their_tokens(tagger):
    true = [Sentence(sent.tokens, [*reversed(sent.tags)]) for sent in SENTS]
    report = tagger.report(true)
    pairs = [(right, answer) for sent,tags in zip(true, tagged(tagger, true))
             for right,answer in zip(sent.tags, tags)]
    assert report.accuracy.value == pytest.approx(np.mean([a == b for a,b in pairs]))
    for (right, answer),n in report.confusion.stack().items():
        assert n == pairs.count((right, answer))
    table, f1 = span_scores([sent.tags for sent in true], tagged(tagger, true))
    assert report.figures['F1 of spans'] == f1 and report.scores.equals(table)

def test_the_report_has_the_learner_s_figures(tagger):
    with tagger.no_bar(): _, accuracy, f1 = tagger.validate()
    report = tagger.report()
    assert report.accuracy.value == pytest.approx(accuracy)
    assert report.figures['F1 of spans'].value == pytest.approx(f1)

def test_tags_in_another_scheme_and_unknown_ones(tagger):
    "Spans are the same in each scheme; an unknown kind is an error"
    bio = tagger.report(SENTS)
    other = [Sentence(SENTS[0].tokens, 'S-PER O B-LOC E-LOC O'.split()),
             Sentence(SENTS[1].tokens, 'S-PER O S-PER O'.split()), SENTS[2]]
    with pytest.warns(UserWarning, match='no training sentence'): bioes = tagger.report(other)
    assert bioes.figures['F1 of spans'].value == bio.figures['F1 of spans'].value
    assert bioes.unseen == {'S-PER': 3, 'E-LOC': 1}
    with pytest.warns(UserWarning):
        report = tagger.report([*SENTS, Sentence(['x', 'y'], ['B-ORG', 'I-ORG'])])
    assert report.scores.n['ORG'] == 1 and report.scores.recall['ORG'] == 0
    with pytest.raises(CorpusError, match='none of the tags, such as N.*B-PER'):
        tagger.report([(['a', 'b'], ['N', 'V'])])

def test_tokens_without_a_tag_and_new_ones(tagger):
    data = [(['ann', 'left', 'zzz'], ['B-PER', None, 'O'])]
    report = tagger.report(data)
    assert report.confusion.values.sum() == 2 and report.tokens['n'] == 3
    assert report.tokens['new'] == pytest.approx(1/3) and report.tokens['accuracy'] in (0, 1)

@pytest.mark.parametrize('data,says', [
    ([], 'empty'),
    ([([], [])], 'no tagged sentence'),
    ([(['a'], [None])], 'no row with a text and a label'),
    ([(['a', 'b'], ['O'])], '2 tokens and 1 tags'),
    (pd.DataFrame(dict(a=['x'])), "no column 'tokens'"),
    (['a text'], r'expected \(tokens, tags\)')])
def test_sentences_that_can_not_be_judged(tagger, data, says):
    with pytest.raises(CorpusError, match=says): tagger.report(data)

def test_files_of_tags(tagger, tmp_path):
    lines = '\n\n'.join('\n'.join(map('\t'.join, zip(sent.tokens, sent.tags))) for sent in SENTS)
    (tmp_path/'test.conll').write_text(lines + '\n')
    expected = tagger.report(SENTS)
    report = tagger.report(tmp_path/'test.conll')
    assert report.confusion.equals(expected.confusion) and 'test.conll' in report.source
    frame = pd.DataFrame([vars(sent) for sent in SENTS])[['tokens', 'tags']]
    assert tagger.report(frame).scores.equals(expected.scores)

def test_parts_of_speech_and_half_precision():
    sents = [Sentence('the bank closed .'.split(), 'DET NOUN VERB PUNCT'.split()),
             Sentence('they play'.split(), 'PRON VERB'.split())]
    dls = TagDataLoaders.from_sents(sents*8, sents, device='cpu', bs=8)
    set_seed(0)
    learn = fitted(elmo_tagger_learner(dls, bilm(), hidden=8), 4)
    report = learn.report(sents)
    assert list(report.scores.index) == ['DET', 'NOUN', 'PRON', 'PUNCT', 'VERB']
    assert report.figures['macro-F1'].value == pytest.approx(report.scores.F1.mean())
    assert report.n == 2 and len(report.worst) == 2
    half = learn.to_bf16().report(sents)
    assert not torch.is_autocast_enabled('cpu')
    assert half.accuracy.value == pytest.approx(report.accuracy.value, abs=.2)

def test_a_learner_says_what_it_found_where_it_is_shown(classifier):
    report = classifier.report(texts(4))
    assert repr(report) == str(report) and len(report.confused()) <= 2

@pytest.mark.slow
def test_the_figures_of_a_treebank_are_scikit_learn_s():
    folder = local('ud-ewt')
    train = read_tagged(folder/'en_ewt-ud-dev.conllu', n_rows=3000)[0]
    learn = elmo_tagger_learner(TagDataLoaders.from_sents(train, device='cpu'), bilm(), hidden=16)
    fitted(learn, 1)
    report = learn.report(folder/'en_ewt-ud-test.conllu')
    sents = read_tagged(folder/'en_ewt-ud-test.conllu')[0]
    true = [tag for sent in sents for tag in sent.tags]
    answers = [tag for tags in tagged(learn, sents) for tag in tags]
    theirs = classification_report(true, answers, output_dict=True, zero_division=0)
    assert report.n == len(sents) and report.accuracy.value == pytest.approx(theirs['accuracy'])
    for tag,row in report.scores.iterrows():
        assert row.F1 == pytest.approx(theirs[tag]['f1-score']) and row.n == theirs[tag]['support']
    known = {token for sent in learn.dls.train.text.items for token in sent.tokens}
    tokens = [token for sent in sents for token in sent.tokens]
    are_new = np.array([token not in known for token in tokens])
    assert report.tokens['new'] == pytest.approx(are_new.mean())
    right = np.array(true) == np.array(answers)
    assert report.tokens['accuracy'] == pytest.approx(right[are_new].mean())

@pytest.mark.slow
def test_a_hundred_thousand_texts_need_little_memory(classifier):
    import resource
    rows = texts(100_000)
    classifier.model.cache.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = classifier.report(rows)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)/2**10
    assert report.n == 100_000 and grown < 700 and not classifier.model.cache.rows


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

def test_an_answer_without_a_name_is_refused():
    for score in (confusion, class_scores):
        with pytest.raises(ValueError, match='no name'): score([0, 1], [0, 2], {0: 'a', 1: 'b'})
