"ELMo in scikit-learn: pipelines, values, settings"
import pickle, shutil

import numpy as np, pandas as pd, pytest

from elmo_fastai.elmo.vectorizer import ElmoVectorizer
from made import close, lasting

@pytest.fixture()
def elmo(): return lasting()

# scikit-learn

def test_vectorizer_in_a_pipeline(elmo, texts):
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    y = [int('the' in t.split()) for t in texts[:60]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    assert cross_val_score(pipe, texts[:60], y, cv=3).shape == (3,)
    search = GridSearchCV(
        pipe,
        {'elmovectorizer__layers': [0, 'mix', 'all'], 'elmovectorizer__pool': ['mean', 'max']},
        cv=2).fit(texts[:60], y)
    assert set(search.best_params_) == {'elmovectorizer__layers', 'elmovectorizer__pool'}
    fitted = pickle.loads(pickle.dumps(pipe.fit(texts[:60], y)))
    assert (fitted.predict(texts[:60]) == pipe.predict(texts[:60])).all()
    assert clone(pipe).get_params()['elmovectorizer__pool'] == 'mean'

def test_vectorizer_values(elmo, texts):
    v = ElmoVectorizer(elmo, layers='all', pool='max').fit(texts[:10])
    assert (close(v.transform(texts[:10]), elmo.embed(texts[:10], 'all', 'max').reshape(10, 48))
            and len(v.get_feature_names_out()) == 48)
    assert close(v.fit_transform(pd.Series(texts[:10])), v.transform(texts[:10]), 0) and close(
        v.transform(pd.DataFrame({'a': texts[:3]})), v.transform(texts[:3]), 0)
    assert v.transform([]).shape == (0, 48)
    frame = ElmoVectorizer(elmo).set_output(transform='pandas').fit_transform(texts[:4])
    assert (
        isinstance(frame, pd.DataFrame) and frame.shape == (4, 16) and frame.columns[0] == 'elmo0')

def test_vectorizer_by_name(elmo, texts, tmp_path):
    folder = elmo.save_pretrained(tmp_path/'m')
    v = ElmoVectorizer(str(folder)).fit(texts)
    assert close(v.transform(texts[:5]), elmo.embed(texts[:5], pool='mean')) and v.model == str(
        folder)
    assert ElmoVectorizer(str(folder)).fit(texts).elmo_ is not v.elmo_   # nothing is shared
    lasting(4).save_pretrained(folder)
    assert close(ElmoVectorizer(str(folder)).fit(texts).transform(texts[:5]),
                 lasting(4).embed(texts[:5], pool='mean'))
    shutil.rmtree(folder)
    # what was fitted needs no folder
    assert close(pickle.loads(pickle.dumps(v)).transform(texts[:5]), v.transform(texts[:5]))

def test_a_pickle_of_a_vectorizer_has_no_path(elmo, texts, tmp_path):
    v = ElmoVectorizer(elmo.save_pretrained(tmp_path/'m'))
    assert b'pathlib' not in pickle.dumps(v)
    data = pickle.dumps(v.fit(texts))
    assert b'pathlib' not in data and tmp_path.name.encode() not in data
    shutil.rmtree(tmp_path/'m')
    again = pickle.loads(data)
    assert close(again.fit(texts).transform(texts[:5]), v.transform(texts[:5]))

@pytest.mark.parametrize('kw,x,says', [
    (dict(model=None), ['a'], 'needs a model'),
    (dict(pool=None), ['a'], 'pool'),
    (dict(layers=9), ['a'], 'layers'),
    ({}, 'text', 'put it into a list'),
    ({}, np.array([['a', 'b']]), 'one column'),
    ({}, [1.5], 'Sentence 0')], ids=str)
def test_vectorizer_refuses(elmo, kw, x, says):
    with pytest.raises((ValueError, TypeError), match=says):
        ElmoVectorizer(**{**dict(model=elmo), **kw}).fit(x).transform(x)

def test_vectorizer_not_fitted(elmo):
    from sklearn.exceptions import NotFittedError
    with pytest.raises(NotFittedError): ElmoVectorizer(elmo).transform(['a'])
    with pytest.raises(NotFittedError): ElmoVectorizer(elmo).get_feature_names_out()

def test_settings_after_a_fit_count_from_the_next_one(elmo, texts):
    v = ElmoVectorizer(elmo).fit(texts[:4])
    before = v.transform(texts[:4])
    v.set_params(layers='all', pool='max')
    assert close(v.transform(texts[:4]), before) and len(v.get_feature_names_out()) == 16
    assert v.fit(texts[:4]).transform(texts[:4]).shape == (4, len(v.get_feature_names_out()))

def test_a_grid_search_copies_no_model(elmo, texts, monkeypatch):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    y = [int('the' in text.split()) for text in texts[:20]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    grid = dict(elmovectorizer__layers=[0, 1, 'mix'])
    search = GridSearchCV(pipe, grid, cv=2, error_score='raise').fit(texts[:20], y)
    assert search.best_estimator_[0].elmo_ is elmo and pipe[0].model is elmo

@pytest.mark.parametrize('missing', [None, float('nan')])
@pytest.mark.parametrize('kind', [list, pd.Series, lambda x: np.array(x, object)])
def test_a_missing_row_is_named_with_its_cure(elmo, kind, missing):
    v = ElmoVectorizer(elmo).fit(['a'])
    with pytest.raises(TypeError, match=r"Sentence 1 is \w+ (None|nan), .*fillna"):
        v.transform(kind(['a', missing]))

def test_scikit_learns_own_checks(elmo):
    from sklearn.utils import estimator_checks as c

    for name in ('check_estimator_cloneable', 'check_no_attributes_set_in_init',
                 'check_parameters_default_constructible', 'check_get_params_invariance',
                 'check_set_params', 'check_estimator_repr', 'check_estimator_tags_renamed',
                 'check_valid_tag_types', 'check_mixin_order',
                 'check_do_not_raise_errors_in_init_or_set_param'):
        if hasattr(c, name):
            getattr(c, name)('ElmoVectorizer',
                             ElmoVectorizer(elmo) if 'default' not in name else ElmoVectorizer())
