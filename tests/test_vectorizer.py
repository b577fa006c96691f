"ELMo in scikit-learn: pipelines, values, settings"
import pickle, shutil
import pandas as pd, pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from elmo_fastai.all import ElmoVectorizer
from made import close, lasting

@pytest.fixture()
def elmo(): return lasting()

def test_a_grid_search_over_one_model(elmo, texts):
    y = [int('the' in text.split()) for text in texts[:60]]
    pipe = make_pipeline(ElmoVectorizer(elmo), LogisticRegression())
    grid = dict(elmovectorizer__layers=[0, 'mix', 'all'], elmovectorizer__pool=['mean', 'max'])
    search = GridSearchCV(pipe, grid, cv=2, error_score='raise').fit(texts[:60], y)
    assert search.best_params_.keys() == grid.keys() and search.best_estimator_[0].elmo_ is elmo
    again = pickle.loads(pickle.dumps(search))
    assert (again.predict(texts[:60]) == search.predict(texts[:60])).all()

def test_values(elmo, texts):
    v = ElmoVectorizer(elmo, layers='all', pool='max').fit(texts[:10])
    vectors = v.transform(texts[:10])
    assert close(vectors, elmo.embed(texts[:10], 'all', 'max').reshape(10, 48))
    assert len(v.get_feature_names_out()) == 48 and v.transform([]).shape == (0, 48)
    frame = ElmoVectorizer(elmo).set_output(transform='pandas').fit_transform(texts[:4])
    assert isinstance(frame, pd.DataFrame) and frame.shape == (4, 16)

def test_a_model_by_its_name(elmo, texts, tmp_path):
    folder = elmo.save_pretrained(tmp_path/'m')
    v = ElmoVectorizer(str(folder)).fit(texts)
    assert close(v.transform(texts[:5]), elmo.embed(texts[:5], pool='mean'))
    assert ElmoVectorizer(str(folder)).fit(texts).elmo_ is not v.elmo_          # nothing is shared
    shutil.rmtree(folder)                                        # what was fitted needs no folder
    assert close(pickle.loads(pickle.dumps(v)).transform(texts[:5]), v.transform(texts[:5]))

@pytest.mark.parametrize('settings,x,says', [
    (dict(model=None), ['a'], 'needs a model'), (dict(pool=None), ['a'], 'pool'),
    (dict(layers=9), ['a'], 'layers'), ({}, 'text', 'put it into a list'),
    ({}, pd.DataFrame(dict(text=['a'])), 'one column'),
    ({}, pd.Series(['a', None]), 'Sentence 1.*fillna')], ids=str)
def test_what_is_refused(elmo, settings, x, says):
    with pytest.raises((ValueError, TypeError), match=says):
        ElmoVectorizer(**dict(model=elmo) | settings).fit(x).transform(x)

@pytest.mark.parametrize('name', ['check_no_attributes_set_in_init', 'check_set_params',
                                  'check_get_params_invariance', 'check_estimator_cloneable'])
def test_scikit_learns_own_checks(elmo, name):
    getattr(estimator_checks, name)('ElmoVectorizer', ElmoVectorizer(elmo))
