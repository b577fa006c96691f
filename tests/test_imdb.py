"""The study of film reviews, tests/benchmarks/imdb.py: what a draw of labels is, and what the
counts are"""
import json, shutil, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

sys.path.insert(0, str(Path(__file__).parent/'benchmarks'))
import imdb
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.practice.folder import load_bilm, save_bilm

pytestmark = pytest.mark.slow

WORDS = 'film plot actor scene music ending dull fine long short bright silly'.split()

@pytest.fixture(scope='module')
def reviews(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('data'), np.random.default_rng(0)
    (folder/'imdb').mkdir()
    def text(label):
        return ' '.join([*rng.choice(WORDS, 12),
                         ('bad', 'good')[label]*(rng.random() < .8)]) + ' .<br />'
    for name in ('train', 'test'):
        labels = rng.permutation([0, 1]*100)
        pd.DataFrame(dict(text=map(text, labels),
                          label=labels)).to_parquet(folder/'imdb'/f'{name}.parquet')
    seen = pd.read_parquet(folder/'imdb'/'test.parquet').text[0].replace(' .<br />', '!')
    quoted = "I say: it's still worth a second look. Yes."
    pd.DataFrame(dict(text=['Nothing of the kind.', seen, quoted,
                            'Yes.'])).to_parquet(folder/'imdb'/'unsup.parquet')
    return imdb.Reviews(folder)

SST = dict(valid=["It 's still worth a second look ."], test=['Yes .', 'A sentence that nobody '
                                                                       'has ever written .'])

@pytest.fixture
def sst(monkeypatch):
    gold = {k: [SimpleNamespace(text=o) for o in v] for k,v in SST.items()}
    monkeypatch.setattr(imdb, 'sst2', lambda: SimpleNamespace(gold=gold))

def test_a_draw_has_as_many_of_each_class_and_is_part_of_a_larger_one(reviews):
    small, large = (reviews.draw(n, 3) for n in (20, 60))
    assert set(small) < set(large) and len(set(large)) == 60
    assert set(small) != set(reviews.draw(20, 4))
    for o in (small, large, reviews.valid): assert reviews.labels['train'][o].mean() == .5

def test_a_draw_has_none_of_the_reviews_that_validate_but_for_all_of_them(reviews):
    assert len(reviews.valid) == 50 and len(reviews.pool) == 150
    for seed in (0, *imdb.OTHER): assert not set(reviews.draw(100, seed)) & set(reviews.valid)
    assert len(reviews.draw(25_000, 0)) == 200
    assert not set(reviews.draw(25_000, imdb.OTHER[0])) & set(reviews.valid)

def test_line_breaks_are_no_words(reviews):
    assert not any('br' in o for o in reviews.tokens('train'))

@pytest.mark.parametrize('n,expected', [(3, [0, 1, 2]), (9, [0, 1, 2, 7, 8])])
def test_a_long_review_loses_its_middle(n, expected): assert imdb.cut([*range(n)], 3, 2) == expected
def test_a_review_may_be_read_from_one_end_only():
    assert imdb.cut([*range(9)], 3, 0) == [0, 1, 2] and imdb.cut([*range(9)], 0, 2) == [7, 8]

@pytest.mark.parametrize('test', ['valid', 'test'])
def test_counts_are_those_of_the_vectorizer(reviews, test):
    train, y, texts = reviews.draw(40, 0), reviews.labels, {k: reviews.joined(k)
                                                            for k in ('train', 'test')}
    tfidf = TfidfVectorizer(token_pattern=r'\S+', ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(tfidf, LogisticRegression(C=10, max_iter=300))
    model.fit([texts['train'][i] for i in train], y['train'][train])
    asked = (texts['test'], y['test']) if test == 'test' else ([texts['train'][i]
                                                                for i in reviews.valid],
                                                                y['train'][reviews.valid])
    run = SimpleNamespace(reviews=reviews)
    scores = imdb.Run.counts(run, train, 10, test)
    assert scores == pytest.approx(model.decision_function(asked[0]))
    assert imdb.Run.right(run, scores, *((test, np.arange(200)) if test == 'test'
                                         else ('train', reviews.valid))) == model.score(*asked)

def test_directions_of_counts_are_learned_without_labels(reviews, sst, monkeypatch):
    """In reviews of two sorts, that have no label; how often a word stands there decides what is
    kept of it"""
    rng = np.random.default_rng(1)
    texts = [' '.join([*rng.choice(WORDS, 3), *[('bad poor', 'good great')[i % 2]]*3])
             for i in range(60)]
    kept = reviews.kept | dict(train=[['bad'], ['good', 'fine'], ['poor']],
                               test=[['great'], ['seldom']])
    for k,v in dict(texts={**reviews.texts, 'unsup': texts + ['seldom']}, kept=kept).items():
        monkeypatch.setattr(reviews, k, v)
    monkeypatch.setattr(imdb, 'LSA', dict(size=2, min_df=2))
    train, test = imdb.Reviews.directions.func(reviews).values()
    assert np.linalg.norm(train, axis=1) == pytest.approx(1) and not test[1].any()
    assert train[0] @ train[2] > .9 > .6 > abs(train[0] @ train[1]) and train[1] @ test[0] > .6

def test_what_is_asked_is_not_read_before(reviews, sst):
    "Neither a review of the test part, nor a sentence of SST-2"
    texts, about = reviews.unlabelled()
    assert texts == ['Nothing of the kind.', 'Yes.']
    assert about == dict(in_test=1, with_sst=1, reviews=2, sst_dev=1, sst_test=0)

@pytest.fixture(scope='module')
def model(tmp_path_factory):
    "A very small biLM that has learned nothing"
    config = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=8)
    return save_bilm(tmp_path_factory.mktemp('model')/'nano', BiLM(config, 0), None)

def settings(folder, model, **kw):
    how = dict(model=str(model), work=str(folder), json=str(folder/'imdb.json'), sizes=[20],
               draws=1, random=1, test=30, trial=True)
    return SimpleNamespace(**vars(imdb.arguments()) | how | kw)

@pytest.fixture
def small(reviews, monkeypatch):
    "The same steps with less in them"
    monkeypatch.setattr(sys, 'argv', ['imdb.py'])
    monkeypatch.setattr(imdb, 'Reviews', lambda *_: reviews)
    monkeypatch.setattr(imdb, 'bf16_is_fast', lambda _: False)
    for k,v in dict(ADAPT=dict(epochs=1, lr=4e-3, bs=4, seq_len=16, min_freq=1), STEPS=1,
                    LSA=dict(size=2, min_df=1), OTHER=(100,), PHASES=((-1, 3e-3, 1), (-4, 2e-3, 1)),
                    GRID=dict(counts=(1, 10), lsa=(1, 10), frozen=(1e-3, 1e-2)),
                    VARIANTS={'as for SST-2': {}, 'no word vectors': dict(words=0)}).items():
        monkeypatch.setattr(imdb, k, v)

def test_every_row_is_made_once(small, sst, model, tmp_path, capsys):
    shutil.copytree(model, tmp_path/'adapted')
    def run(**kw):
        imdb.main(settings(tmp_path, model, **kw))
        return json.loads((tmp_path/'imdb.json').read_text())
    part = ('phases', 'box'), ('bare', 'box'), ('words', None)
    run(ways=[w for w,_ in part], backbones=['box'])
    d = run(ways=['counts', 'lsa', 'frozen', 'together', 'beside'])
    assert {(r['way'], r['side']) for r in d['rows']} == {*part, ('counts', None), ('lsa', None),
                                                          *((w, o)
                                                            for w in ('frozen', 'together',
                                                                      'beside')
                                                                      for o in imdb.BACKBONES)}
    assert len(d['rows']) == 14 and d['trial']
    assert all(0 <= r['accuracy'] <= 1 and r['test'] == (30 if (r['way'], r['side']) in part
                                                         else 200) for r in d['rows'])
    assert all(('part' in r) == (r['test'] == 200) for r in d['rows'])
    capsys.readouterr()
    assert run(ways=['counts', 'lsa', 'frozen', 'together', 'beside']) == d
    assert '0 rows' in capsys.readouterr().out

def test_the_controls_are_what_they_are_called(small, reviews, model, tmp_path, monkeypatch):
    "One has no backbone and learns; the other has no vectors of words"
    seen, make = [], imdb.classifier_learner
    monkeypatch.setattr(imdb, 'classifier_learner',
                        lambda *args, **kw: seen.append(make(*args, **kw)) or seen[-1])
    monkeypatch.setattr(imdb, 'STEPS', 60)
    r = imdb.Run(settings(tmp_path, model, test=200))
    # the best, and not for this one
    r.d['settings'] = [dict(name='no word vectors', accuracy=[1])]
    assert r.row('words', None, 60, 0)['accuracy'] > .75
    mine = seen.pop().model
    assert isinstance(mine, imdb.OnlyWords) and mine.words.embed.weight.abs().sum() > 0
    before = [p for p in r.box.lm.parameters()]
    assert all(a.equal(b) for a,b in zip(mine.elmo.lm.parameters(), before))
    r.phases('box', 0, reviews.draw(20, 0), ('test', r.asked(20)), 1, 1, words=0)
    assert not hasattr(seen.pop().model, 'words')

def test_counts_are_also_asked_what_the_two_phases_are(small, reviews, model, tmp_path):
    r = imdb.Run(settings(tmp_path, model))
    y, asked = reviews.labels['test'], r.asked(20)
    scores = np.where(y == 1, 1., -1.)
    scores[asked[:6]] *= -1
    assert r.found(scores, 20) == dict(accuracy=.97, test=200, part=.8)
    assert r.found(scores, 5000) == dict(accuracy=.97, test=200)

def test_smaller_questions(small, sst, model, tmp_path):
    r = imdb.Run(settings(tmp_path, model, backbones=['box'], skip=10))
    for o in ('reading', 'pooling', 'settings'): getattr(r, o)(20)
    assert [len(r.d[o]) for o in ('reading', 'pooling', 'settings')] == [len(imdb.READ), 6, 2]
    assert r.d['reading'][0]['share'] == 1
    r.films(20)
    r.paired(20)
    assert [o['who'] for o in r.d['paired']] == ['words', 'words, whole', 'counts + words',
                                                 'counts + words, whole']
    assert all(o['half'] >= 0 for o in r.d['paired'])
    assert [o['way'] for o in r.d['films']] == ['counts', 'lsa', 'words']
    assert all(0 <= o[k] <= 1 for o in r.d['films'] for k in ('same', 'other'))
    best = max(r.d['settings'], key=lambda o: np.mean(o['accuracy']))['name']
    assert r.best_settings() == imdb.VARIANTS[best]

def test_a_trial_does_not_take_the_place_of_the_figures(small, model, tmp_path):
    r = imdb.Run(settings(tmp_path, model))
    r.d |= dict(adaptation=dict(hours=1), rows=[dict(way=o) for o in ('counts', 'frozen')],
                chosen={'counts 20': 1, 'frozen box 20': 1})
    r.save()
    r = imdb.Run(settings(tmp_path, model, trial=False))
    assert 'adaptation' not in r.d and r.d['rows'] == [dict(way='counts')]
    assert [*r.d['chosen']] == ['counts 20']
    r.save()
    with pytest.raises(SystemExit, match='no trial'): imdb.Run(settings(tmp_path, model))

def test_rows_of_two_adaptations_are_not_mixed(small, model, tmp_path, capsys):
    shutil.copytree(model, tmp_path/'adapted')
    def run(hours):
        (tmp_path/'adapted.json').write_text(json.dumps(dict(hours=hours)))
        return imdb.Run(settings(tmp_path, model))
    r = run(3)
    assert 'adapted' in r.sides() and r.d['adaptation'] == dict(hours=3)
    r.d['rows'] = [dict(way='frozen', side='adapted', labels=20, draw=0)]
    r.save()
    capsys.readouterr()
    assert 'adapted' in run(3).sides() and not capsys.readouterr().out
    other = run(1)
    assert other.d['adaptation'] == dict(hours=3) and 'adapted' not in other.sides()
    assert 'another adaptation' in capsys.readouterr().out

def test_rows_of_another_adaptation_are_set_aside(small, model, tmp_path):
    shutil.copytree(model, tmp_path/'adapted')
    (tmp_path/'adapted.json').write_text(json.dumps(dict(hours=1)))
    old = [dict(way='frozen', side=o, labels=20, draw=0, accuracy=.5) for o in ('box', 'adapted')]
    pooling = [dict(side=o, pool='mean') for o in ('box', 'adapted')]
    d = dict(rows=old, adaptation=dict(hours=3), pooling=pooling,
             chosen={'frozen adapted 20': {}, 'frozen box 20': {}})
    d |= dict(model=imdb.Run(settings(tmp_path, model)).d['model'], trial=True)
    (tmp_path/'imdb.json').write_text(json.dumps(d))
    imdb.main(settings(tmp_path, model, ways=['frozen'], backbones=['adapted'], again=True))
    d = json.loads((tmp_path/'imdb.json').read_text())
    assert d['earlier'] == dict(adaptation=dict(hours=3), rows=old[1:])
    assert d['adaptation'] == dict(hours=1)
    assert [r['side'] for r in d['rows']] == ['box', 'adapted'] and d['rows'][1]['test'] == 200
    assert d['pooling'] == pooling[:1]
    assert set(d['chosen']) == {'frozen box 20', 'frozen adapted 20'}
    assert d['chosen']['frozen adapted 20']
    imdb.main(settings(tmp_path, model, ways=['frozen'], backbones=['adapted'], again=True))
    assert json.loads((tmp_path/'imdb.json').read_text()) == d          # once is enough

def test_the_pretraining_goes_on(small, sst, model, reviews, monkeypatch, tmp_path):
    texts = [f'{a} {b} is a good film .' for a in WORDS for b in WORDS]
    monkeypatch.setattr(reviews, 'texts', {**reviews.texts, 'unsup': texts})
    imdb.main(settings(tmp_path, model, adapt=True))
    about = json.loads((tmp_path/'adapted.json').read_text())
    assert about['reviews'] == len(texts) and about['tokens'] > 500
    assert about['fwd'] < about['words'] and about['epochs'] == 1
    new, old = load_bilm(tmp_path/'adapted')[0].state_dict(), load_bilm(model)[0].state_dict()
    assert all(new[k].shape == v.shape for k,v in old.items())
    assert any(not new[k].equal(v) for k,v in old.items())
