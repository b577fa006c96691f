"""Trainings that begin late, end early or are only looked at; paths in exports, files of word
vectors; exports themselves are in test_pickle, encoders in test_tagger"""
import csv, json, math, pickle
from collections import OrderedDict
from pathlib import Path

import cloudpickle, numpy as np, pandas as pd, pytest, torch
from fastai.basics import Adam, Callback, DataLoaders, ValueMetric, set_seed
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, GradientAccumulation, ReduceLROnPlateau, SaveModelCallback)
from fastai.interpret import Interpretation
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

from elmo_fastai.cbow import WordVectors
from elmo_fastai.errors import ModelFileError
from elmo_fastai.all import *
from elmo_fastai.practice.learners import TimeBudget, portable
from elmo_fastai.learner import FitLearner, NatsMetric, evaluate
from made import close, quietly

@pytest.mark.parametrize('module', [pickle, cloudpickle], ids=['pickle', 'cloudpickle'])
def test_a_portable_pickle_holds_no_path_of_this_system(tmp_path, module):
    closed = open(tmp_path/'log', 'w')
    closed.close()
    home = Path('/books/ann')
    value = dict(a=home, b=home/'x'/'y', c=Path('/disk/z'), d=Path('m/n'), log=closed, other=OrderedDict(x=1))
    torch.save(value, tmp_path/'f', pickle_module=portable(module, Path('/none'), home))
    data = (tmp_path/'f').read_bytes()
    assert b'pathlib' not in data and b'Posix' not in data and b'books' not in data and b'disk' not in data
    assert torch.load(tmp_path/'f', weights_only=False) == dict(
        a=Path('.'), b=Path('x/y'), c=Path('z'), d=Path('m/n'), log=None, other=OrderedDict(x=1))

def test_weights_are_saved_whole_or_not_at_all(tmp_path, monkeypatch):
    learn = FitLearner(DataLoaders([], []), torch.nn.Linear(2, 3), torch.nn.MSELoss(), path=tmp_path)
    learn.create_opt()
    file = learn.save('best', with_opt=False)
    was = file.read_bytes()
    assert file == tmp_path/'models'/'best.pth'
    with torch.no_grad(): learn.model.weight.zero_()
    def fail(*args, **kwargs):
        args[1].write(b'half') if hasattr(args[1], 'write') else Path(args[1]).write_bytes(b'half')
        raise OSError('disk full')
    with monkeypatch.context() as m, pytest.raises(OSError):
        m.setattr(torch, 'save', fail)
        learn.save('best')
    assert file.read_bytes() == was and [*file.parent.iterdir()] == [file]
    learn.load('best', with_opt=False)
    assert learn.model.weight.any()

# files of vectors

def vectors(n=50, dim=7):
    words = [f'w{i}' for i in range(n - 3)] + ['naïve', '日本語', 'New_York']
    return WordVectors(words, np.random.default_rng(0).normal(size=(n, dim)))

@pytest.mark.parametrize('name', ['v.vec', 'v.safetensors', 'deep/er/v.txt'])
def test_round_trip_to_the_last_bit(tmp_path, monkeypatch, name):
    monkeypatch.setenv('HOME', str(tmp_path))
    wv = vectors()
    wv.vectors[:3] *= [[1e-30], [1e30], [0]]
    path = wv.save(Path('~')/name)
    again = WordVectors.load(f'~/{name}')
    assert path == tmp_path/name and again.words == wv.words
    assert np.array_equal(again.vectors, wv.vectors) and again.vectors.dtype == np.float32
    assert [file for file in tmp_path.rglob('*') if file.is_file()] == [path]
    again.vectors[3] = 1                                            # it can be worked with
    assert len(WordVectors.load(path, max_words=5)) == 5

@settings(max_examples=40)
@given(words=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
def test_any_words_fit_into_one_of_the_formats(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp('any')
    wv = WordVectors(words, np.arange(len(words)*2).reshape(-1, 2))
    assert WordVectors.load(wv.save(folder/'v.safetensors')).words == words
    try: path = wv.save(folder/'v.txt')
    except ValueError as e: assert 'white space' in str(e) and not (folder/'v.txt').exists()
    else: assert WordVectors.load(path).words == words

@pytest.mark.parametrize('text,words,found', [
    ('the .1 .2 .3\n. . . 1 2 3\nnaïve 4 5 6\n', ['the', '. . .', 'naïve'], [.1, .2, .3]),
    ('\ufeff2 2\r\na 1 2 \r\nb 3e-1 -4 \r\n', ['a', 'b'], [1, 2]),          # Windows, word2vec.c
    ('1000000000 2\na 1 2\n', ['a'], [1, 2])])                              # a promise
def test_files_of_others(tmp_path, text, words, found):
    (tmp_path/'v.txt').write_bytes(text.encode())
    wv = WordVectors.load(tmp_path/'v.txt', max_words=len(words))
    assert wv.words == words and np.allclose(wv.vectors[0], found)

def test_a_word_that_comes_twice_keeps_its_first_vector(tmp_path):
    for head in ('', '3 2\n'):
        (tmp_path/'v.txt').write_text(head + 'a 1 2\nb 1 2\na 3 4\n')
        with pytest.warns(UserWarning, match='1 words come again'): v = WordVectors.load(tmp_path/'v.txt')
        assert v.words == ['a', 'b'] and v['a'].tolist() == [1, 2]

NONE = 'Expected a vector for each word'

@pytest.mark.parametrize('data,says', [
    (b'', NONE), (b'hello\n', NONE), (b'2 0\na\nb\n', NONE),
    (b'3 2\n', 'promises 3 words and has 0'), (b'3 2\na 1 2\nb 1 2\n', 'promises 3 words and has 2'),
    (b'2 3\na 1 2 3\nb 1 2 3\nc 1 2 3\n', 'promises 2 words and has 3'),
    (b'a 1 2\nb 1\n', 'line 2: expected a word and 2 numbers'), (b'2 2\na 1 2\nb 1 x\n', 'line 3'),
    (b'a 1 nan\n', "'a'.*not finite"), (b'a 1 1e99\n', "'a'.*not finite"),
    (b'the\t1 2\na\t3 4\n', 'line 1'), (b'a 1 2\nna\xefve 1 2\n', r'line 2.*xefve'),
    (b'It was the best of times', 'line 1'), (bytes(range(256)), 'line 1'),
    (b'a 1 2\n\nb 1 2\n', 'line 2'), (b'9 999999999\na 1 2\n', 'line 2')])
def test_malformed_text(tmp_path, data, says):
    (tmp_path/'v.txt').write_bytes(data)
    with pytest.raises(ModelFileError, match=says) as e: WordVectors.load(tmp_path/'v.txt')
    assert 'v.txt' in str(e.value) or says == NONE

def test_malformed_safetensors(tmp_path):
    wv, file = vectors(), tmp_path/'v.safetensors'
    good = wv.save(file).read_bytes()
    for data in (b'', good[:100], good[:-10], b'\xff'*8 + good, b'not at all'):
        file.write_bytes(data)
        with pytest.raises(ModelFileError, match='v.safetensors'): WordVectors.load(file)
    meta = dict(format='elmo_fastai.WordVectors', version='1', words=json.dumps(wv.words))
    x = torch.from_numpy(wv.vectors)
    for tensors,m,match in [
        (dict(vectors=x), None, 'no word vectors of this library'), (dict(other=x), meta, 'no word vectors'),
        (dict(vectors=x), meta | dict(version='2'), "version '2'"),
        (dict(vectors=x), meta | dict(words='['), 'JSONDecodeError'),
        (dict(vectors=x), meta | dict(words='[1, 2]'), '2 words'),
        (dict(vectors=x*math.nan), meta, 'not finite')]:
        save_file(tensors, file, metadata=m)
        with pytest.raises(ModelFileError, match=match): WordVectors.load(file)

def test_missing_files_and_failed_saves(tmp_path):
    for path in (tmp_path/'no.txt', tmp_path/'no.safetensors', tmp_path):
        with pytest.raises(ModelFileError, match="can't be read"): WordVectors.load(path)
    file = vectors().save(tmp_path/'v.txt')
    before = file.read_bytes()
    for words,says in ((['New York'], "'New York'.*safetensors"), (['\ud800'], 'surrogate')):
        with pytest.raises(ValueError, match=says): WordVectors(words, [[1.]]).save(file)
    assert file.read_bytes() == before and [*tmp_path.iterdir()] == [file]

# trainings

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def loaders(corpus, **kwargs):
    return ElmoDataLoaders.from_corpus(corpus, **dict(bs=16, seed=0, device='cpu') | kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)                       # 4 batches an epoch

def learner(dls, *cbs, **kwargs):
    set_seed(0)
    return bilm_learner(dls, CFG, bf16=False, cbs=list(cbs), **kwargs)

def fitted(learn, epochs=1, lr=1e-2, method='fit', **kwargs):
    quietly(learn, method, epochs, lr, **kwargs)
    return learn

@pytest.mark.parametrize('kind', [dict(), dict(kind='stream', seq_len=8)])
def test_what_a_learner_shows(corpus, kind):
    "The nats of every prediction, in the loader's order; the likeliest word in each place"
    dls = loaders(corpus, bs=8, **kind)
    learn = learner(dls)
    (fwd, bwd), _ = quietly(learn, 'get_preds')
    exact = evaluate(learn.model, dls.valid)
    assert len(fwd) == len(bwd) == exact['predictions']
    assert math.exp(fwd.mean()) == pytest.approx(exact['fwd'], rel=1e-5)
    df = learn.show_results(max_n=3, show=False)
    chars,*targets = dls.valid.one_batch()
    with torch.no_grad(): states = learn.model.eval().encode(chars[:3])[-1]
    for name,head,h,y in zip(('forward', 'backward'), learn.model.heads, states, targets):
        rows = zip(df[f'{name} guesses'], head.log_prob(h).argmax(-1), y, chars)
        for shown,best,wanted,word in rows:
            there = [dls.vocab.itos[i] if target else '·' for i,target in zip(best, wanted)]
            assert shown.split(' ') == there[:int((word[:, 0] != 0).sum())]
    text = quietly(learn, 'summary')
    assert 'BiLM' in text and 'Total params' in text and 'Optimizer used' in text
    with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
        quietly(learn, Interpretation.from_learner, learn)

# a budget of time

def timed(dls, seconds, *cbs, method='fit_one_cycle', lr=1e-2, epochs=999, **kwargs):
    "A learner, trained for so many steps of a clock that counts them"
    learn = learner(dls, *cbs)
    budget = TimeBudget(seconds, clock=lambda: float(len(learn.recorder.losses)))
    return fitted(learn, epochs, lr, method, cbs=budget, **kwargs)

@pytest.mark.parametrize('epochs', [999, 1])
def test_a_budget_ends_one_cycle_with_the_clock(corpus, epochs):
    "A whole number of epochs: the rates, momenta and figures of `fit_one_cycle`"
    whole = fitted(learner(loaders(corpus)), 3, method='fit_one_cycle').recorder
    recorder = timed(loaders(corpus), 12, epochs=epochs).recorder
    np.testing.assert_allclose(recorder.lrs, whole.lrs, rtol=1e-6)
    np.testing.assert_allclose(recorder.hps['mom'], whole.hps['mom'], rtol=1e-6)
    rows = [[values[:-1] for values in r.values] for r in (recorder, whole)]
    np.testing.assert_allclose(*rows, rtol=1e-3)

def test_a_budget_that_ends_within_an_epoch(dls, tmp_path):
    "The epoch is validated, its row is whole, and the weights are those that the row speaks of"
    learn = timed(dls, 10, CSVLogger(tmp_path/'log.csv'))
    lrs = learn.recorder.lrs
    assert len(lrs) == 10 and lrs[-1] < 1e-3 < max(lrs[:4]) <= 1e-2
    assert len(learn.recorder.values) == 3 == learn.n_epoch
    assert [len(r) for r in csv.reader((tmp_path/'log.csv').open())] == [6]*4
    assert learn.recorder.values[-1][2] == pytest.approx(
        evaluate(learn.model, dls.valid)['fwd'], rel=1e-4)

def test_a_budget_with_what_else_there_is(dls):
    assert timed(dls, 6, method='fit', lr=3e-3).recorder.lrs == [3e-3]*6
    learn = timed(dls, 6, start_epoch=2)
    assert learn.epoch == 3 and len(learn.recorder.lrs) == 6
    learn = timed(dls, 100, EarlyStoppingCallback(patience=1), lr=.3)
    assert len(learn.recorder.losses) < 100
    for seconds in (0, -1, math.nan, math.inf, '5m'):
        with pytest.raises(ValueError, match='seconds'): TimeBudget(seconds)

def test_validation_counts(dls):
    "A clock that also runs while validating: there is time for one epoch of three"
    class Tick(Callback):
        n = 0.
        def after_batch(self): self.n += 1
    tick = Tick()
    learn = fitted(learner(dls, tick), 999, cbs=TimeBudget(5, clock=lambda: tick.n))
    assert len(learn.recorder.losses) == 4 and len(learn.recorder.values) == 1

# trackers

class Fake(Callback):
    "Put figures in the place of a validation's, and mark each epoch's weights"
    order = 40
    def __init__(self, *losses): self.losses = losses
    def before_validate(self): self.model.head.bias.data.fill_(float(self.epoch))
    def after_validate(self):
        for metric in (self.recorder.loss, *self.metrics):
            metric.nats,metric.n = [self.losses[self.epoch]]*2, [1, 1]

@pytest.mark.parametrize('monitor', ['valid_loss', 'perplexity_fwd', 'valid_perplexity_fwd'])
def test_trackers_keep_the_best(dls, monitor, tmp_path):
    learn = learner(dls, Fake(5, 4, 4.5, 3.9, 4.1, 4.2, 1), path=tmp_path)
    learn.recorder.train_metrics = monitor.startswith('valid_p')
    how = dict(monitor=monitor, comp=np.less)
    trackers = SaveModelCallback(**how), EarlyStoppingCallback(**how, patience=2)
    fitted(learn, 7, 0., cbs=trackers)
    assert len(learn.recorder.values) == 6 and (learn.model.head.bias == 3).all()

@pytest.mark.parametrize('opt', ['adamw', 'adagrad', Adam])
def test_a_plateau_lowers_the_rate(dls, opt):
    learn = fitted(learner(dls, Fake(5, 6, 7, 8), ReduceLROnPlateau(), opt=opt), 4, .1)
    assert learn.recorder.lrs[::4] == pytest.approx([.1, .1, .01, .001])

@pytest.mark.parametrize('kind', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
@pytest.mark.parametrize('monitor,metric,falls', [
    ('perplexity_fwd', None, True), ('nats', NatsMetric('nats'), True),
    ('maestro', ValueMetric(lambda: 1., 'maestro'), False)])
def test_no_tracker_keeps_the_worst(dls, kind, monitor, metric, falls, tmp_path):
    learn = learner(dls, path=tmp_path)
    if metric: learn.metrics = [metric]
    if not falls: fitted(learn, cbs=kind(monitor))
    for method in ['fit', 'fit_one_cycle', 'fit_flat_cos', 'fine_tune']*falls:
        with pytest.raises(ValueError, match=f"{monitor} should .*{kind.__name__}.*comp=np.less"):
            quietly(learn, method, 1, cbs=kind(monitor))

def test_a_validation_is_no_epoch_of_a_tracker(dls, tmp_path):
    tracker = SaveModelCallback(reset_on_fit=False)
    learn = fitted(learner(dls, tracker, path=tmp_path))
    before = tracker.best, (tmp_path/'models'/'model.pth').read_bytes()
    with torch.no_grad(): learn.model.head.bias.add_(1)
    quietly(learn, 'validate')
    assert before == (tracker.best, (tmp_path/'models'/'model.pth').read_bytes())
    assert tracker in learn.cbs

# a fit that begins with a later epoch; half the bits

@pytest.fixture(scope='module')
def task_learners(corpus):
    "Learners of tasks, with the metrics that they have by default"
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    texts = [' '.join(sent.split()[:4]) for sent in corpus.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text) % 2 for text in texts]))
    how = dict(bs=16, device='cpu')
    return dict(
        bilm=learner(loaders(corpus)),
        labels=elmo_classifier_learner(ClassifyDataLoaders.from_df(rows, **how), backbone),
        tags=elmo_tagger_learner(TagDataLoaders.from_sents(corpus.gold['train'], **how), backbone))

@pytest.mark.parametrize('method', ['fit', 'fit_one_cycle', 'fit_flat_cos'])
@pytest.mark.parametrize('name', ['bilm', 'labels', 'tags'])
def test_a_fit_begins_with_a_later_epoch(task_learners, name, method, tmp_path, monkeypatch):
    "Its rows, its rates and its files are those of the epochs that are left"
    learn = task_learners[name]
    monkeypatch.setattr(learn, 'path', tmp_path)
    calls = []
    class Off(Callback):
        "Takes itself out, as some of fastai's do"
        def before_fit(self): self.run = False
        def before_epoch(self): calls.append('off')
    cbs = [CSVLogger('log.csv'), SaveModelCallback(every_epoch=True), GradientAccumulation(32),
           Off(), Callback(before_epoch=lambda cb: calls.append(learn.epoch))]
    with learn.no_logging(): getattr(learn, method)(4, 1e-2, cbs=cbs, start_epoch=2)  # with its bar
    rates, n = learn.recorder.lrs, 2*len(learn.dls.train)
    assert calls == [2, 3] and len(learn.recorder.values) == 2 and len(rates) == n
    assert {file.name for file in (tmp_path/'models').iterdir()} == {'model_2.pth', 'model_3.pth'}
    rows = list(csv.reader((tmp_path/'log.csv').open()))
    assert [line[0] for line in rows] == ['epoch', '2', '3']
    np.testing.assert_allclose(rates, fitted(learn, 4, method=method).recorder.lrs[n:], rtol=1e-5)

def test_what_a_fit_refuses(dls, task_learners):
    with pytest.raises(ValueError, match='perplexity should fall'):
        fitted(task_learners['bilm'], cbs=SaveModelCallback('perplexity'))
    learn = learner(dls)
    before = learn.model.head.weight.clone()
    for start in (-1, 4, 9, 1.5, '2'):
        for method in ('fit', 'fit_one_cycle', 'fit_flat_cos'):
            with pytest.raises(ValueError, match='start_epoch=.* from 0 to below .*, 4$'):
                fitted(learn, 4, method=method, start_epoch=start)
    with pytest.raises(ValueError, match='start_epoch'):
        fitted(learn, 3, method='fine_tune', start_epoch=1)
    fitted(learn, 0)
    assert learn.model.head.weight.equal(before)

@pytest.mark.parametrize('name', ['labels', 'tags'])
def test_tasks_in_bfloat16(task_learners, name):
    found = [quietly(change(), 'get_preds')[0] for change in (
        task_learners[name].to_bf16, task_learners[name].to_fp32)]
    assert close(*found, eps=.1) and not close(*found, eps=0) and found[0].dtype == torch.float32
