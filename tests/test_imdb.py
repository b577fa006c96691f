"The study of film reviews, tests/benchmarks/imdb.py: what a draw of labels is, and what the counts are"
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

sys.path.insert(0, str(Path(__file__).parent/'benchmarks'))
import imdb

WORDS = 'film plot actor scene music ending dull fine long short bright silly'.split()

@pytest.fixture(scope='module')
def reviews(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp('data'), np.random.default_rng(0)
    (folder/'imdb').mkdir()
    def text(label): return ' '.join([*rng.choice(WORDS, 12), ('bad', 'good')[label]*(rng.random() < .8)]) + ' .<br />'
    for name in ('train', 'test'):
        labels = rng.permutation([0, 1]*100)
        pd.DataFrame(dict(text=map(text, labels), label=labels)).to_parquet(folder/'imdb'/f'{name}.parquet')
    seen = pd.read_parquet(folder/'imdb'/'test.parquet').text[0].replace(' .<br />', '!')
    quoted = "I say: it's still worth a second look. Yes."
    pd.DataFrame(dict(text=['Nothing of the kind.', seen, quoted, 'Yes.'])).to_parquet(folder/'imdb'/'unsup.parquet')
    return imdb.Reviews(folder)

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

def test_line_breaks_are_no_words(reviews): assert not any('br' in o for o in reviews.tokens('train'))

@pytest.mark.parametrize('n,expected', [(3, [0, 1, 2]), (9, [0, 1, 2, 7, 8])])
def test_a_long_review_loses_its_middle(n, expected): assert imdb.cut([*range(n)], 3, 2) == expected
def test_a_review_may_be_read_from_one_end_only():
    assert imdb.cut([*range(9)], 3, 0) == [0, 1, 2] and imdb.cut([*range(9)], 0, 2) == [7, 8]

@pytest.mark.parametrize('test', ['valid', 'test'])
def test_counts_are_those_of_the_vectorizer(reviews, test):
    train, y, texts = reviews.draw(40, 0), reviews.labels, {k: reviews.joined(k) for k in ('train', 'test')}
    tfidf = TfidfVectorizer(token_pattern=r'\S+', ngram_range=(1, 2), sublinear_tf=True)
    model = make_pipeline(tfidf, LogisticRegression(C=10, max_iter=300))
    model.fit([texts['train'][i] for i in train], y['train'][train])
    asked = (texts['test'], y['test']) if test == 'test' else ([texts['train'][i] for i in reviews.valid], y['train'][reviews.valid])
    assert imdb.Run.counts(SimpleNamespace(reviews=reviews), train, 10, test) == pytest.approx(model.score(*asked))

def test_what_is_asked_is_not_read_before(reviews, monkeypatch):
    "Neither a review of the test part, nor a sentence of SST-2"
    def gold(*texts): return [SimpleNamespace(text=o) for o in texts]
    sst = dict(valid=gold("It 's still worth a second look ."), test=gold('Yes .', 'A sentence that nobody has ever written .'))
    monkeypatch.setattr(imdb, 'sst2', lambda: SimpleNamespace(gold=sst))
    texts, about = reviews.unlabelled()
    assert texts == ['Nothing of the kind.', 'Yes.']
    assert about == dict(in_test=1, with_sst=1, reviews=2, sst_dev=1, sst_test=0)
