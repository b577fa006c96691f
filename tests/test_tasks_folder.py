"Saved taggers and classifiers"
import json

import pytest, torch
from fastai.losses import BCEWithLogitsLossFlat, CrossEntropyLossFlat, L1LossFlat

from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.data.tagged import TagDataLoaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.tasks.folder import load_task, save_task
from elmo_fastai.tasks.tag import elmo_tagger_learner
from test_annotate import ROWS, TAGGED, fitted, make_classifier, make_elmo

def make_tagger(**kwargs):
    elmo = make_elmo()
    dls = TagDataLoaders.from_sents(TAGGED, device='cpu', bs=8, seed=1)
    return fitted(elmo_tagger_learner(dls, elmo, **{**dict(hidden=8, words=8), **kwargs}), 2)

# folders

@pytest.mark.parametrize('kwargs', [
    {}, dict(where='both', chars=8, n_layers=2), dict(where='output', hidden=0, words=0),
    dict(layers='last')], ids=str)
def test_a_saved_tagger_is_the_same(tmp_path, kwargs):
    learn = make_tagger(**kwargs)
    again = load_task(save_task(learn, tmp_path/'m'), 'cpu')
    sent = 'Ann saw the oldest Paris .'.split()
    tags, _, probs = learn.predict(sent)
    tags_again, _, probs_again = again.predict(sent)
    assert tags == tags_again and torch.allclose(probs, probs_again, atol=1e-5)
    assert again.model.elmo.mixes[0].w.requires_grad == learn.model.elmo.mixes[0].w.requires_grad
    vectors = Elmo.from_pretrained(tmp_path/'m').embed([sent], 0)[0]
    assert abs(vectors - learn.model.elmo.embed([sent], 0)[0]).max() < 1e-5

KINDS_OF_ROWS = dict(
    words=ROWS, numbers=[(text, int(label == 'pos')) for text,label in ROWS],
    several=[(text, ['a', label]) for text,label in ROWS],
    reals=[(text, .5 + (label == 'pos')) for text,label in ROWS])

@pytest.mark.parametrize('kind', KINDS_OF_ROWS)
def test_a_saved_classifier_is_the_same(tmp_path, kind):
    learn = make_classifier(KINDS_OF_ROWS[kind], max_words=4)
    again = load_task(save_task(learn, tmp_path/'m'), 'cpu')
    for text in ('the film was nice .', 'a b c d e f'):
        assert str(learn.predict(text)[0]) == str(again.predict(text)[0])
    assert again.report(KINDS_OF_ROWS[kind]).n == len(ROWS)

def test_other_folders_and_losses_are_refused(tmp_path):
    learn = make_classifier()
    (tmp_path/'other').mkdir()
    (tmp_path/'other'/'a.txt').write_text('mine')
    with pytest.raises(ValueError, match='a.txt.*another folder'):
        save_task(learn, tmp_path/'other')
    make_elmo().save_pretrained(tmp_path/'elmo')
    with pytest.raises(ModelFileError, match='no task.json'): load_task(tmp_path/'elmo')
    save_task(learn, tmp_path/'elmo')                # over a model of ours
    load_task(tmp_path/'elmo')
    make_elmo().save_pretrained(tmp_path/'elmo')
    assert not (tmp_path/'elmo'/'task.json').exists()
    learn.loss_func = lambda pred, y: pred.sum()
    with pytest.raises(ValueError, match='a loss of its own'): save_task(learn, tmp_path/'m')
    dls = TagDataLoaders.from_sents(TAGGED, device='cpu')
    with pytest.raises(ValueError, match='without ELMo'):
        save_task(elmo_tagger_learner(dls, where=None), tmp_path/'m')
    assert not (tmp_path/'m').exists()

@pytest.mark.parametrize('kind,loss', [
    ('several', BCEWithLogitsLossFlat(thresh=.2)), ('reals', L1LossFlat()),
    ('words', CrossEntropyLossFlat())], ids=str)
def test_a_loss_that_was_given_is_one_of_its_own(tmp_path, kind, loss):
    learn = make_classifier(KINDS_OF_ROWS[kind], loss_func=loss)
    with pytest.raises(ValueError, match='a loss of its own'): save_task(learn, tmp_path/'m')

def test_a_threshold_of_its_own_is_not_lost(tmp_path):
    "A folder does not keep it: the loaded classifier would answer otherwise"
    learn = make_classifier(KINDS_OF_ROWS['several'])
    save_task(learn, tmp_path/'m')
    learn.loss_func.thresh = .2
    with pytest.raises(ValueError, match='thresh=0.2'): save_task(learn, tmp_path/'m')

def test_cross_entropy_with_weights_set_later_is_saved(tmp_path):
    learn = make_classifier()
    learn.loss_func = CrossEntropyLossFlat(weight=torch.tensor([1., 2.]))
    again = load_task(save_task(learn, tmp_path/'m'), 'cpu')
    assert str(again.predict('so dull')[0]) == str(learn.predict('so dull')[0])

def test_a_saved_tagger_knows_which_tokens_are_new(tmp_path):
    learn = make_tagger()
    again = load_task(save_task(learn, tmp_path/'m'), 'cpu')
    new = [(['Zora', 'saw'], [TAGGED[0][1][0]]*2)]
    assert again.report(new).tokens == learn.report(new).tokens
    once_more = load_task(save_task(again, tmp_path/'n'), 'cpu')
    assert once_more.report(new).tokens == learn.report(new).tokens

@pytest.mark.parametrize('name,value', [
    ('task', 'dance'), ('labels', []), ('labels', ['O', 'O']), ('labels', [['O']]),
    ('network', dict(where='nowhere')), ('network', dict(hidden=10**9)), ('network', 3)], ids=str)
def test_wrong_settings_are_refused(tmp_path, name, value):
    file = save_task(make_tagger(), tmp_path/'m')/'task.json'
    (tmp_path/'m'/'SHA256SUMS').unlink()
    task = json.loads(file.read_text())
    file.write_text(json.dumps(task | {name: value}))
    with pytest.raises(ModelFileError): load_task(tmp_path/'m')

def test_damage_is_found(tmp_path):
    file = save_task(make_tagger(), tmp_path/'m')/'words.json'
    words = file.read_text()
    file.write_text(words.replace('Bob', 'Tom'))
    with pytest.raises(ModelFileError, match='words.json is damaged'): load_task(tmp_path/'m')
    (tmp_path/'m'/'SHA256SUMS').unlink()
    for damaged in (words[:-9], '3', '["a", "a"]', '[1]'):
        file.write_text(damaged)
        with pytest.raises(ModelFileError, match='words.json') as e: load_task(tmp_path/'m')
        assert 'task.json' not in str(e.value)
