"The learner: an ordinary `Learner`, its callbacks, and trainings that end early"
import csv, math, multiprocessing, os, pickle, pickletools, re, signal, subprocess, sys, threading
import time, warnings, zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cloudpickle, numpy as np, pandas as pd, pytest, torch
from fastai.basics import AccumMetric, Adam, Callback, CancelFitException, Learner, load_learner
from fastai.basics import set_seed
from fastai.data.all import CategoryBlock, ColReader, DataBlock, RandomSplitter
from fastai.callback.all import (
    CSVLogger, EarlyStoppingCallback, GradientAccumulation, MixedPrecision, ReduceLROnPlateau,
    SaveModelCallback)
from fastai.interpret import ClassificationInterpretation, Interpretation
from fastai.optimizer import ranger

import elmo_fastai.train.learner as training
from elmo_fastai.all import (
    ClassifyDataLoaders, Elmo, TagDataLoaders, cbow_learner, elmo_classifier_learner,
    elmo_tagger_learner)
from elmo_fastai.text.corpora import Corpus, ToyCorpus, tiny_shakespeare, toy_corpus
from elmo_fastai.text.tokens import ByteCharVocab, CharVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate, guesses
from elmo_fastai.data.batches import SentenceDataLoader, StreamDataLoader
from elmo_fastai.data.blocks import ElmoBlock
from elmo_fastai.data.blog import BiLMBlock
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.train.checkpoint import Checkpoints, checkpoints_in, find_checkpoint, resume
from elmo_fastai.train.distributed import several_processes
from elmo_fastai.train.learner import (
    BiLMLearner, CarryState, EarlyStop, NatsMetric, Reason, TimeBudget, bf16_is_fast, bilm_learner,
    bilm_split, _trained_toy, toy_bilm)
from elmo_fastai.train.speak import generate
from copies import local
from steps import At, finite, press
from made import close, comes_back, quietly

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)
ADAPTIVE = dict(softmax='adaptive', cutoffs=(20, 60), div_value=2.)
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=400, n_valid=80, n_test=1, n_unseen=1)

@pytest.fixture(scope='module')
def some(): return toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

def loaders(corpus, kind='sentences', bs=16, **kwargs):
    if kind == 'stream': kwargs = dict(seq_len=16) | kwargs
    return ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=bs, seed=0, device='cpu', **kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)

@pytest.fixture(scope='module')
def few(some): return loaders(some)

@pytest.fixture(scope='module')
def stream(some): return loaders(some, 'stream', bs=4, seq_len=8)

def learner(dls, *cbs, seed=0, config=CFG, **kwargs):
    set_seed(seed)
    return bilm_learner(dls, config, **{'bf16': False, 'cbs': list(cbs), **kwargs})

def fitted(learn, epochs=1, lr=1e-2, method='fit', **kwargs):
    quietly(learn, method, epochs, lr, **kwargs)
    return learn

def weights(learn): return {name: w.clone() for name,w in learn.model.state_dict().items()}
def same(a, b): return a.keys() == b.keys() and all(w.equal(b[name]) for name,w in a.items())
def row(learn, i=-1): return dict(zip(TABLE[1:], learn.recorder.values[i]))
def handlers(): return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

def check_table(learn, valid, rel=1e-5):
    "The last row's figures are those of `evaluate`"
    exact = evaluate(learn.model, valid)
    for k in ('fwd', 'bwd'):
        assert row(learn)[f'perplexity_{k}'] == pytest.approx(exact[k], rel=rel)
    assert row(learn)['valid_loss'] == pytest.approx(math.log(exact['mean']), rel=rel)
    return exact

# an ordinary learner

def test_characters_are_those_of_the_loaders(some):
    "Their number and room, whatever the configuration leaves open; what it can't have is named"
    letters = CharVocab.build([line.split() for line in some.train], max_chars=20)
    for chars in (letters, ByteCharVocab(20)):
        c = learner(loaders(some, char_vocab=chars)).model.config
        assert (c.n_chars, c.max_chars, c.proj_dim) == (chars.n_chars, 20, CFG.proj_dim)
    for name,size in dict(n_chars=99, max_chars=30).items():
        with pytest.raises(ValueError, match=f"{name}={size}.*loaders"):
            learner(loaders(some, char_vocab=letters), config=replace(CFG, **{name: size}))

def test_lr_find_suggests_and_leaves_no_trace(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    before = weights(learn)
    found = quietly(learn, 'lr_find', num_it=20, show_plot=False)
    assert 1e-7 <= found.valley <= 10
    assert all(v.equal(before[k]) for k,v in weights(learn).items() if 'norm' not in k)
    assert not [path for path in tmp_path.rglob('*') if path.is_file()]
    fitted(learn, method='fit_one_cycle')
    assert learn.stopped is None and len(learn.recorder.values) == 1

def test_one_cycle_learns_and_its_table_is_right(dls, tmp_path):
    learn = learner(dls, CSVLogger(tmp_path/'log.csv'), from_counts=False)
    assert isinstance(learn, Learner)
    start = evaluate(learn.model, dls.valid)['mean']
    assert math.log(start) == pytest.approx(math.log(len(dls.vocab)), abs=1)
    losses = fitted(learn, 2, method='fit_one_cycle').recorder.losses
    assert list(learn.recorder.metric_names) == TABLE
    assert len(losses) == 2*len(dls.train) == len(learn.recorder.lrs) and losses[0] > losses[-1]
    exact = check_table(learn, dls.valid)
    assert exact['mean'] < start/2
    rows = list(csv.reader(open(tmp_path/'log.csv')))
    assert rows[0] == TABLE and len(rows) == 3
    assert float(rows[-1][3]) == pytest.approx(exact['fwd'], rel=1e-3)

@pytest.mark.parametrize('change', [
    dict(), dict(share_softmax=False), dict(softmax='sampled', n_negative=50),
    ADAPTIVE | dict(bias=True)])
def test_it_begins_with_the_words_frequencies(few, change):
    for head in learner(few, config=replace(CFG, **change)).model.eval().heads:
        found = head.log_prob(torch.zeros(1, 16))[0]
        torch.testing.assert_close(found, few.log_frequencies())

def test_without_biases_it_begins_as_ever(few, monkeypatch):
    "Models of earlier versions have none, and their checkpoints fit; nothing is counted in vain"
    config = replace(CFG, **ADAPTIVE)
    old = weights(learner(few, config=config, from_counts=False))
    monkeypatch.setattr(ElmoDataLoaders, 'log_frequencies', None)
    new = weights(learner(few, config=config))
    assert same(old, new) and not [k for k in new if k.startswith('head') and 'bias' in k]

@pytest.mark.parametrize('bs', [3, 64])
def test_validate_and_its_batch_sizes(dls, bs):
    learn = learner(dls)
    loss,*both = quietly(learn, 'validate', dl=SentenceDataLoader(dls.valid.dataset, bs=bs))
    exact = evaluate(learn.model, dls.valid)
    assert both == pytest.approx([exact['fwd'], exact['bwd']], rel=1e-5)
    assert loss == pytest.approx(math.log(exact['mean']), rel=1e-5)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_bfloat16_table_is_near(corpus, kind):
    dls = loaders(corpus, kind, bs=8)
    learn = fitted(learner(dls, bf16=True), method='fit_one_cycle')
    check_table(learn, dls.valid, .03)
    assert all(p.dtype == torch.float32 for p in learn.model.parameters())

@pytest.mark.parametrize('can,fast', [
    ({}, False), (dict(amx_bf16=True), False), (dict(sse4a=True), False),
    (dict(avx512_bf16=True), False),                            # Intel with AMX switched off
    (dict(avx512_bf16=True, amx_bf16=True), True), (dict(avx512_bf16=True, sse4a=True), True)],
    ids=str)
def test_instructions_decide_on_bfloat16(monkeypatch, can, fast):
    known = can.get('avx512_bf16', False)
    monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: known, raising=False)
    monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: can, raising=False)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (8 if fast else 7, 5))
    for device in ('cpu', torch.device('cpu'), 'cuda'): assert bf16_is_fast(device) is fast
    assert bf16_is_fast('mps') is False

def test_an_older_pytorch_knows_one_instruction(monkeypatch):
    monkeypatch.delattr(torch.cpu, 'get_capabilities', raising=False)
    for known in (True, False):
        monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: known, raising=False)
        assert bf16_is_fast('cpu') is known
    monkeypatch.delattr(torch.cpu, '_is_avx512_bf16_supported')
    assert bf16_is_fast('cpu') is False

@pytest.mark.parametrize('fast', [True, False])
def test_the_main_process_decides_on_bfloat16(few, monkeypatch, fast):
    monkeypatch.setattr(training, 'from_main', lambda function, device: fast)
    assert hasattr(bilm_learner(few, CFG), 'bf16') is fast
    assert not hasattr(bilm_learner(few, CFG, bf16=False), 'bf16')

def test_equal_seeds_equal_learners(corpus, held):
    def run(seed):
        dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=seed, device='cpu')
        learn = learner(dls, seed=seed, config=replace(CFG, dropout=.2))
        return weights(fitted(learn, method='fit_one_cycle')), list(learn.recorder.values[0])
    (a, row_a), (b, row_b), (c, _) = run(1), run(1), run(2)
    assert all(close(weight, b[name]) for name,weight in a.items())
    assert row_a == pytest.approx(row_b, rel=1e-5)
    assert not close(a['head.weight'], c['head.weight'])

def test_save_load_and_go_on(dls, tmp_path):
    again = learner(dls, seed=9, path=tmp_path)
    assert comes_back(learner(dls, path=tmp_path), again)
    fitted(again)

def test_export_and_load_learner(dls, tmp_path):
    learn = fitted(learner(dls, path=tmp_path))
    learn.export('learner.pkl')
    again = load_learner(tmp_path/'learner.pkl')
    assert type(again) is BiLMLearner and again.tokenizer == 'space'
    assert again.keep_good.good is None, 'the callbacks carry copies of the weights along'
    assert evaluate(again.model, dls.valid) == evaluate(learn.model, dls.valid)
    assert again.dls.vocab.itos == dls.vocab.itos
    assert again.predict('the', 5, seed=1) == learn.predict('the', 5, seed=1)
    again.dls = dls
    assert fitted(again).stopped is None

def pickled(file):
    "The pickle of a file that `torch.save` or `pickle` wrote"
    data = Path(file).read_bytes()
    if not zipfile.is_zipfile(file): return data
    with zipfile.ZipFile(file) as z:
        return z.read(next(name for name in z.namelist() if name.endswith('data.pkl')))

def names_in(file):
    "All text in a pickle: names of classes, and strings"
    return [arg for _,arg,_ in pickletools.genops(pickled(file)) if isinstance(arg, str)]

def exporting(kind, some, where, **kwargs):
    "A learner of each kind, its data and itself in a folder"
    if kind == 'bilm': return learner(loaders(some, path=where), path=where, **kwargs)
    if kind == 'cbow': return cbow_learner(loaders(some, 'cbow', path=where), dim=8, **kwargs)
    (where/'t.txt').write_text('\n'.join(some.train), encoding='utf-8')
    if kind == 'stream':
        dls = stream_loaders(where/'t.txt', tokenizer='space', device='cpu', n_valid=20, bs=16,
                             max_vocab=200, buffer=40, path=where)
        return learner(dls, **kwargs)
    if kind == 'blocks':
        rows = pd.DataFrame(dict(text=some.train))
        block = DataBlock(BiLMBlock('sentences', tokenizer='space', bs=16), get_x=ColReader('text'),
                          splitter=RandomSplitter(seed=0))
        return learner(block.dataloaders(rows, path=where, device='cpu'), path=where, **kwargs)
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    how = dict(bs=16, device='cpu', path=where)
    if kind == 'tags':
        dls = TagDataLoaders.from_sents(some.gold['train'], **how)
        return elmo_tagger_learner(dls, backbone, **kwargs)
    rows = pd.DataFrame(dict(text=some.train, label=['ab'[len(sent) % 2] for sent in some.train]))
    rows.to_csv(where/'t.csv', index=False)
    if kind == 'labels':
        dls = ClassifyDataLoaders.from_files(where/'t.csv', tokenizer='space', **how)
    else:
        block = DataBlock((ElmoBlock('space'), CategoryBlock), get_x=ColReader('text'),
                          get_y=ColReader('label'), splitter=RandomSplitter(seed=0))
        dls = block.dataloaders(rows, **how)
    return elmo_classifier_learner(dls, backbone, **kwargs)

KINDS = ['bilm', 'stream', 'blocks', 'cbow', 'labels', 'ElmoBlock', 'tags']

@pytest.mark.parametrize('kind,module', [
    *[(kind, cloudpickle) for kind in KINDS], ('bilm', pickle)], ids=str)
def test_nothing_exported_holds_a_path(some, tmp_path, monkeypatch, kind, module):
    (tmp_path/'home').mkdir()
    (tmp_path/'else').mkdir()
    home = tmp_path/'home'
    learn = exporting(kind, some, home, model_dir=home/'kept')
    learn.add_cbs([CSVLogger(home/'log.csv'), Checkpoints(tmp_path/'points'),
                   SaveModelCallback(fname='best')])
    quietly(learn, 'fit', 1, 1e-3)
    before = learn.path, learn.dls.path, learn.model_dir, learn.dls
    learn.export('a.pkl', pickle_module=module)
    assert (learn.path, learn.dls.path, learn.model_dir, learn.dls) == before
    text = ' '.join(names_in(home/'a.pkl'))
    assert 'pathlib' not in text and 'PosixPath' not in text
    assert tmp_path.name not in text and str(tmp_path) not in text
    assert tmp_path.name.encode() not in (home/'a.pkl').read_bytes()
    # it goes on in the working folder, as a new learner does
    monkeypatch.chdir(tmp_path/'else')
    again = load_learner(home/'a.pkl')
    assert again.path == again.dls.path == Path('.') and again.csv_logger.fname == Path('log.csv')
    assert again.checkpoints.folder == Path('points')
    again.save('w')
    again.export('b.pkl')
    assert Path('kept/w.pth').exists() and type(load_learner('b.pkl')) is type(learn)
    close(*(next(iter(one.model.parameters())) for one in (again, learn)))

def test_a_failed_export_changes_nothing(few, tmp_path):
    learn = fitted(learner(few, path=tmp_path))
    learn.stuck = threading.Lock()                     # no file can hold it
    before = learn.path, learn.dls.path, learn.model_dir, learn.dls, learn.opt
    with pytest.raises(TypeError, match='lock'): learn.export('a.pkl')
    assert (learn.path, learn.dls.path, learn.model_dir, learn.dls, learn.opt) == before
    del learn.stuck
    learn.export('a.pkl')
    assert learn.opt is not None and learn.dls is few

ELSEWHERE = """
import pathlib, pickle, sys, warnings
warnings.simplefilter('ignore')
from fastai.basics import load_learner
class Loader(pickle.Unpickler):       # as on Windows: this class can't be made there
    def find_class(self, module, name):
        if name == 'PosixPath' or module.startswith('pathlib'):
            raise NotImplementedError("cannot instantiate 'PosixPath' on your system")
        return super().find_class(module, name)
class There: Unpickler = Loader; load = pickle.load; __name__ = 'pickle'
for file,args in eval(sys.argv[1]):
    print(repr(load_learner(file, pickle_module=There).predict(*args)[0]))
"""

def test_another_system_loads_and_predicts(some, tmp_path):
    kinds = 'bilm', 'cbow', 'labels', 'ElmoBlock', 'tags'
    learners = {kind: exporting(kind, some, tmp_path) for kind in kinds}
    asked = dict(bilm=(['the bank'], 0), cbow=('the ___ of the river',), labels=('the bank',),
                 ElmoBlock=('the bank',), tags=('the bank',))
    for kind,learn in learners.items(): learn.export(f'{kind}.pkl')
    told = subprocess.run(
        [sys.executable, '-c', ELSEWHERE, repr([(f'{kind}.pkl', asked[kind]) for kind in learners])],
        capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        repr(learn.predict(*asked[kind])[0]) for kind,learn in learners.items()]

def test_predict_goes_on_with_a_text(dls):
    learn = fitted(learner(dls))
    one = learn.predict('the', 5, seed=1)
    assert one.startswith('the') and 1 <= len(one.split()) <= 6
    assert learn.predict('the', 5, seed=1) == one
    assert learn.predict('the .', 4, direction='backward', seed=1).endswith('the .')
    assert len(learn.predict('the', 4, end=False).split()) == 5
    assert len(learn.predict('the').split()) <= 2
    many = learn.predict(['the', 'a'], 3, temperature=0)
    assert many == [learn.predict(text, 3, temperature=0) for text in ('the', 'a')]
    assert many == generate(learn.model, dls.vocab, dls.char_vocab, ['the', 'a'], 3, temperature=0)
    for kwargs in (dict(direction='up'), dict(temperature=-1)):
        with pytest.raises(ValueError): learn.predict('the', 2, **kwargs)

def test_a_sampled_loss_is_not_called_a_perplexity(dls, tmp_path):
    config = replace(CFG, softmax='sampled', n_negative=30)
    learn = learner(dls, CSVLogger(tmp_path/'log.csv'), config=config)
    learn.recorder.train_metrics = True
    names = fitted(learn).recorder.metric_names[1:]
    found = zip(names, learn.recorder.values[-1])
    assert not [name for name,value in found if name.startswith('train_') and value is not None]
    learn.recorder.train_metrics = False
    fitted(learn, 2, method='fit_one_cycle')
    assert list(learn.recorder.metric_names) == ['epoch', 'sampled_loss', *TABLE[2:]]
    assert next(csv.reader(open(tmp_path/'log.csv')))[1] == 'sampled_loss'
    exact = check_table(learn, dls.valid)
    assert row(learn)['train_loss'] < math.log(exact['mean'])           # an easier question

class Look(Callback):
    "Keeps what a function finds before each step"
    order = 95
    def __init__(self, see): self.see,self.found = see,[]
    def before_step(self): self.found.append(self.see(self.model))

def norm(model):
    grads = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    return torch.stack(grads).norm().item()

def test_gradients_are_clipped(dls):
    loose,tight = (fitted(learner(dls, Look(norm), clip=clip), lr=1e-3).look.found
                   for clip in (1e9, .01))
    assert max(tight) <= .0101 < min(loose)

# groups, optimisers, precision

@pytest.mark.parametrize('change', [
    dict(), dict(n_layers=3, hidden_dim=20), dict(share_encoder=False, share_softmax=False),
    dict(norm=False, softmax='adaptive', cutoffs=(50,))])
def test_groups_hold_every_parameter_once(dls, change):
    model = BiLM(replace(CFG, **change), len(dls.vocab))
    n = model.config.n_layers
    names = {id(p): name for name,p in model.named_parameters() if p.requires_grad}
    groups = [[names.pop(id(p)).split('.') for p in group] for group in bilm_split(model)]
    assert not names
    found = [{name[0].removesuffix('_bwd') for name in group} for group in groups]
    assert found == [{'chars'}, *[{'lstm'}]*n, {'head'}]
    for i,group in enumerate(groups[1:-1]): assert {name[2] for name in group} == {str(i)}

def test_without_an_output_layer_there_is_no_group_for_it():
    assert len(bilm_split(BiLM(CFG, 0))) == 3

def test_rates_by_group(dls):
    learn = learner(dls)
    before = dict(weights(learn))
    fitted(learn, lr=slice(1e-12, 1e-2))
    rates = [1e-12, 1e-12*1e10**(1/3), 1e-12*1e10**(2/3), 1e-2]
    assert [h['lr'] for h in learn.opt.hypers] == pytest.approx(rates)
    def moved(part):
        return max((p - before[name]).abs().max().item()
                   for name,p in learn.model.named_parameters() if name.startswith(part))
    assert moved('chars') < 1e-8 < moved('lstm.fwd.0') < moved('lstm.fwd.1') < moved('head')
    assert fitted(learn, lr=slice(1e-4, 1e-2), method='fit_one_cycle').stopped is None

def test_freezing(few):
    learn = learner(few)
    learn.freeze_to(2)
    before = weights(learn)
    fitted(learn)
    changed = [name for name,p in learn.model.named_parameters() if not p.equal(before[name])]
    assert {name.split('.')[0] + ('1' if '.1.' in name else '') for name in changed} == {
        'lstm1', 'head'}
    learn.unfreeze()
    for name,p in learn.model.named_parameters():
        is_second_bias = name.endswith('bias_hh_l0')
        assert p.requires_grad != is_second_bias and not (is_second_bias and p.any())

def test_adagrad_is_the_originals(dls):
    """One step by hand: bilm-tf's loss is multiplied by 20 before the gradient, the sums of squares
    start at 1, the rate is 0.2"""
    def see(model):
        return {name: (p.detach().clone(), p.grad.clone())
                for name,p in model.named_parameters() if p.grad is not None}
    learn = learner(dls, Look(see), opt='adagrad')
    quietly(learn, 'fit', 1)
    first, second = learn.look.found[:2]
    for name,(weight, grad) in first.items():
        torch.testing.assert_close(second[name][0], weight - .2*grad/(1 + grad**2).sqrt())
    hypers = learn.opt.hypers[0]
    assert first and learn.wd == hypers['wd'] == 0 and hypers['lr'] == .2
    assert row(learn)['valid_loss'] < math.log(len(dls.vocab))     # and it learns
    size = torch.stack([grad.norm() for _,grad in first.values()]).norm()
    assert 1 < size <= 20.001                   # twenty times the mean's gradient, and its limit
    quietly(learn, 'fit_one_cycle', 1, .2)      # a schedule may speak of momentum

def test_other_optimisers(few):
    for opt in (Adam, ranger):
        learn = fitted(learner(few, opt=opt), method='fit_one_cycle')
        assert learn.stopped is None and len(learn.opt.hypers) == 4
    with pytest.raises(ValueError, match="'sgd'.*adamw.*adagrad"): learner(few, opt='sgd')
    assert learner(few, wd=.5).wd == .5 and learner(few).wd == .01
    assert learner(few, opt='adagrad', wd=.1).wd == .1

def test_float16_scales_its_gradients(few):
    class See(Callback):
        order = 95
        def before_fit(self): self.found,self.skipped = [],0
        def after_batch(self):
            if self.training: self.found.append(self.scaler.get_scale())
        def after_cancel_step(self): self.skipped += 1
    plain, half, large = (learner(few), learner(few, See()).to_fp16(),
                          learner(few, See()).to_fp16(init_scale=2.**30))
    for learn in (plain, half, large): assert finite(fitted(learn, 2).model) and not learn.stopped
    assert half.see.skipped == 0 < large.see.skipped       # the first gradients overflow
    assert large.see.found[-1] < 2**30
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert row(half)['valid_loss'] == pytest.approx(row(plain)['valid_loss'], rel=.02)

def test_precisions_replace_each_other(few):
    learn = learner(few, bf16=True)
    def kinds(): return [type(cb).__name__ for cb in learn.cbs if isinstance(cb, MixedPrecision)]
    assert kinds() == ['BF16']
    changes = learn.to_fp16, learn.to_bf16, learn.to_fp32
    assert [(change(), kinds())[1] for change in changes] == [['FP16'], ['BF16'], []]

@pytest.mark.slow
def test_bfloat16_learns_as_much_as_32_bits():
    "Equal steps on real text: perplexities within one per cent of each other"
    corpus = tiny_shakespeare(local('tiny_shakespeare'))
    lines = dict(train=corpus.train[:700], valid=corpus.valid[:150])
    dls = loaders(Corpus('shakespeare', lines, corpus.tokenizer), 'stream', bs=8, min_freq=2)
    def nats(bf16, seed):
        learn = learner(dls, seed=seed, config=replace(CFG, proj_dim=32, hidden_dim=32), bf16=bf16)
        fitted(learn, 3, 1e-3, 'fit_one_cycle')
        return math.log(evaluate(learn.model, dls.valid)['mean'])
    # one seed differs from another by several per cent
    full,half = (np.mean([nats(bf16, seed) for seed in (0, 1)]) for bf16 in (False, True))
    assert abs(half - full) < .01 and half < .7*math.log(len(dls.vocab))

# early stopping

class Fake(Callback):
    "Put the figures of a validation in the place of the real ones, and mark each epoch's weights"
    order = 40
    def __init__(self, *losses): self.losses = losses
    def before_validate(self): self.model.head.bias.data.fill_(float(self.epoch))
    def after_validate(self):
        self.recorder.loss.nats, self.recorder.loss.n = [self.losses[self.epoch]]*2, [1, 1]

@pytest.mark.parametrize('losses,patience,ends,best', [
    ([5, 4, 4.5, 4.2, 4.1, 3], 2, 4, 1), ([5, 4, 4.5, 3.9, 4.1, 3.8], 2, 6, 5),
    ([5, 6, 7, 8, 9, 9], 3, 4, 0), ([5, 4, 3, 2, 1, 1.5], 3, 6, 4),
    ([5, math.nan, 4, math.nan, math.nan, 1], 2, 5, 2), ([5, 4, 6, 7, 7, 7], None, 6, 1)], ids=str)
def test_early_stop_goes_back_to_the_best(few, losses, patience, ends, best):
    learn = fitted(learner(few, Fake(*losses), EarlyStop(patience)), 6, 0.)
    assert len(learn.recorder.values) == ends and learn.early_stop.best_epoch == best
    assert (learn.model.head.bias == best).all() and learn.early_stop.good is None
    if best == ends - 1: assert learn.stopped is None
    else:
        assert learn.stopped.reason is (Reason.PATIENCE if ends < 6 else Reason.END)
        assert f'after epoch {best+1} of {ends}' in learn.stopped.message

def test_early_stop_leaves_an_interrupted_training_as_it_is(few):
    stops = EarlyStop(4), At(10, press(), 'before_batch')
    learn = fitted(learner(few, Fake(5, 6, 7, 8), *stops), 4, 0.)
    assert 'SIGINT' in learn.stopped.message and (learn.model.head.bias == 1).all()

def test_early_stop_goes_back_to_the_best_where_time_is_up(few):
    learn,_ = timed(few, 8, Fake(5, 6, 7), EarlyStop(3), lr=0.)
    assert learn.early_stop.best_epoch == 0 and (learn.model.head.bias == 0).all()

def test_patience_is_checked():
    with pytest.raises(ValueError, match='patience'): EarlyStop(patience=0)

# a carried state

@pytest.mark.parametrize('change', [
    dict(), dict(hidden_dim=20), dict(share_encoder=False), dict(cell_clip=3., proj_clip=3.)],
    ids=['plain', 'projected', 'two encoders', 'clipped'])
def test_carried_forward_perplexity_is_that_of_one_long_window(stream, change):
    learn = fitted(learner(stream, CarryState(), config=replace(CFG, **change)))
    long = StreamDataLoader(stream.valid.text, bs=stream.valid.size, seq_len=stream.valid.per)
    warm, cold = evaluate(learn.model, long), evaluate(learn.model, stream.valid)
    assert row(learn)['perplexity_fwd'] == pytest.approx(warm['fwd'], rel=1e-4)
    assert warm['fwd'] != pytest.approx(cold['fwd'], rel=1e-4)
    assert row(learn)['perplexity_bwd'] == pytest.approx(cold['bwd'], rel=1e-4)

def test_state_begins_with_zeros_and_has_no_gradient(stream):
    def asked(model): return guesses(model, ['the', 'bank'], stream.vocab, stream.char_vocab)
    class Watch(Callback):
        order, n = 20, 0
        def before_batch(self):
            self.n += 1
            state = self.carry_state.state
            assert (state is None) == (self.iter == 0)
            if not state: return
            assert not state['h'].requires_grad and not state['h'][:, 1].any()
            assert state['h'][:, 0].any() and state['c'][:, 0].any()
        def after_epoch(self): self.there = asked(self.model)        # someone else asks the model
    learn = fitted(learner(stream, CarryState(), Watch()), 2)
    assert learn.watch.n == 2*(len(stream.train) + len(stream.valid))
    assert learn.watch.there == asked(learn.model)

@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_no_hooks_and_no_handlers(stream, error):
    def fail(cb): raise error('on purpose')
    before = handlers()
    learn = learner(stream, CarryState(), At(3, fail, 'before_batch'))
    with pytest.raises(error): fitted(learn)
    lstm = learn.model.lstm
    assert not lstm._forward_hooks and not lstm._forward_pre_hooks and handlers() == before

@pytest.mark.parametrize('precision', ['to_bf16', 'to_fp16'])
def test_carried_state_in_half_precision(stream, precision):
    learn = fitted(getattr(learner(stream, CarryState()), precision)())
    assert learn.stopped is None and finite(learn.model)

def test_what_can_not_be_carried(few):
    with pytest.raises(ValueError, match="kind='stream'"): fitted(learner(few, CarryState()))

def test_text_in_blocks_can_be_carried_likewise(tmp_path):
    (tmp_path/'t.txt').write_text('the bank was open all day\n'*400)
    how = dict(kind='stream', bs=2, seq_len=8, n_valid=50, device='cpu')
    learn = fitted(learner(stream_loaders(tmp_path/'t.txt', **how), CarryState()))
    assert learn.stopped is None and finite(learn.model)

def test_a_learner_of_a_data_block():
    df = pd.DataFrame(dict(text=['the bank was open all day', 'we sat by the bank']*20))
    block = DataBlock(blocks=BiLMBlock(), get_x=ColReader('text'), splitter=RandomSplitter(seed=1))
    assert finite(fitted(learner(block.dataloaders(df, bs=8))).model)

# the metric

def nats(*batches, directions=(0, 1), **kwargs):
    metric = NatsMetric('x', directions, **kwargs)
    for both in batches:
        pred = tuple(torch.tensor(nats, dtype=torch.float32) for nats in both)
        metric.accumulate(SimpleNamespace(model=None, training=False, pred=pred))
    return metric

BATCHES = ([5.], [7.]), ([1.]*9, [3.]*9)

@pytest.mark.parametrize('batches,kwargs,mean', [
    (BATCHES, dict(directions=(0,)), 1.4), (BATCHES, dict(directions=(1,)), 3.4),
    (BATCHES, {}, 2.4), (BATCHES, dict(directions=(0,), transform=math.exp), math.exp(1.4)),
    ([([1.], []), ([2., 3.], [])], {}, 2), ([], {}, None),
    ([([1e-4]*100_000, [1e-4]*100_000)], {}, 1e-4),          # added up in double precision
    ([([5e3], [5e3])], dict(transform=training.perplexity), math.inf)])     # no OverflowError
def test_nats_metric_weighs_predictions(batches, kwargs, mean):
    metric = nats(*batches, **kwargs)
    assert metric.name == 'x'
    assert metric.value == (mean if mean is None else pytest.approx(mean, rel=1e-6))
    metric.reset()
    assert metric.value is None

# an error within a step

class Failing(Callback):
    def after_pred(self): raise RuntimeError('in the middle')

@pytest.mark.parametrize('method', ['fit', 'validate', 'get_preds'])
def test_after_an_error_nothing_is_computed_in_half_precision(few, method):
    "Autocast is entered before the batch and left after the loss; an error may come between"
    learn = learner(few, bf16=True)
    args = [1] if method == 'fit' else []
    with pytest.raises(RuntimeError, match='middle'): quietly(learn, method, *args, cbs=Failing())
    assert not torch.is_autocast_enabled('cpu')
    fitted(learn)
    assert not torch.is_autocast_enabled('cpu')

def test_an_error_before_the_first_step_says_its_own_cause(few):
    class Failing(Callback):
        order = -50
        def before_fit(self): raise ValueError('not like this')
    with pytest.raises(ValueError, match='not like this'):
        fitted(learner(few, Failing(), bf16=True))

# trainings that end early

def spoil(cb): next(cb.model.head.parameters()).data.view(-1)[3] = math.nan

def test_nan_goes_back_to_the_last_good_weights(dls, capsys):
    good = {}
    def remember(cb): good.update(weights(cb))
    learn = learner(dls, At(8, remember, 'after_batch'), At(11, spoil))
    learn.keep_good.every = 4                                           # copies after steps 4 and 8
    stop = fitted(learn, 3).stopped
    assert stop.reason is Reason.DIVERGED and stop.kept == 'the weights of step 8'
    for part in ('nan', 'step 12', stop.kept, 'lower learning rate'): assert part in stop.message
    assert stop.message in capsys.readouterr().out
    assert all(v.equal(good[k]) for k,v in weights(learn).items() if 'norm' not in k)
    assert finite(learn.model) and len(learn.recorder.losses) == 11
    learn.remove_cbs([cb for cb in learn.cbs if isinstance(cb, At)])
    assert fitted(learn, lr=1e-3).stopped is None                       # the learner is not broken
    assert len(learn.recorder.values) == 1

@pytest.mark.parametrize('step', [1, -1])
def test_nan_at_the_edges(dls, step):
    learn = fitted(learner(dls, At(step % (len(dls.train)+1), spoil)))
    assert finite(learn.model) and learn.stopped

def test_a_worse_loss_is_not_kept(dls):
    "The copy is made while the loss is lowest: a training that ran away does not overwrite it"
    learn = learner(dls, At(20, spoil))
    learn.keep_good.every = 1
    fitted(learn, lr=30.)                                               # runs away at once
    assert evaluate(learn.model, dls.valid)['mean'] < 10*len(dls.vocab)

def test_a_loss_far_above_guessing_ends_the_training(dls):
    learn = fitted(learner(dls), 10, 30.)
    step,good = map(int, re.findall(r'step (\d+)', learn.stopped.message))
    assert 20 < step < 10*len(dls.train) and good < 20
    for part in ('blind guessing costs', 'lower learning rate'):
        assert part in learn.stopped.message
    assert evaluate(learn.model, dls.valid)['mean'] < 10*len(dls.vocab)
    # a shock from which it comes back is none of our business
    bump = learner(dls, At(12, lambda cb: cb.model.head.bias.data.normal_(std=30.)))
    bump.keep_good.patience = 10**6
    assert fitted(bump).stopped is None

@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('step', [3, 5, 7, 20, 60])
def test_a_short_training_goes_back_to_learned_weights(some, step, seed):
    "Also where a later batch happens to be a harder one"
    learn = fitted(learner(loaders(some), At(step, spoil), seed=seed), 20, 1e-3)
    assert step/4 < int(learn.stopped.kept.split()[-1]) < step

@pytest.mark.parametrize('how', ['validate', 'get_preds'])
def test_ctrl_c_while_validating_is_ctrl_c(dls, how):
    "Not the exception by which fastai ends a training"
    class Press(Callback):
        def before_batch(self): signal.raise_signal(signal.SIGINT)
    before = handlers()
    learn = learner(dls)
    with pytest.raises(KeyboardInterrupt): quietly(learn, how, cbs=Press())
    assert handlers() == before and finite(learn.model)
    quietly(learn, 'validate')                                          # and it works again

@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_training_after_the_step(dls, sig, capsys):
    before = handlers()
    learn = fitted(learner(dls, At(5, press(sig), 'before_batch')), 3)
    stop = learn.stopped
    assert learn.train_iter == 5 == len(learn.recorder.losses) and stop.reason is Reason.SIGNAL
    assert stop.kept == 'the weights of step 5'
    assert sig.name in stop.message and 'epoch 1 of 3' in stop.message
    assert stop.message in capsys.readouterr().out and handlers() == before
    # the time of an epoch that was cut short counts
    assert 0 < learn.throughput.seconds and learn.throughput.per_second < 1e7

def test_a_signal_while_patience_ends_is_no_interruption(dls):
    "The training is complete, and has the weights of its best epoch"
    class LastMoment(Callback):
        order = 62                                              # before `EarlyStop`
        def after_epoch(self):
            if self.epoch == 1: signal.raise_signal(signal.SIGTERM)
    early = EarlyStop(1)
    learn = learner(dls, early, LastMoment())
    early.min_delta = -1e9                                      # only the first epoch is a best one
    stop = fitted(learn, 3).stopped
    assert stop.reason is Reason.PATIENCE and stop.kept == 'the weights of epoch 1'

def test_the_second_ctrl_c_stops_at_once(dls):
    before = handlers()
    with pytest.raises(KeyboardInterrupt):
        fitted(learner(dls, At(3, press(times=2), 'before_batch')))
    assert handlers() == before

class PressAt(Callback):
    "Ctrl-C at an event of the last epoch, when all batches are done"
    def __init__(self, event, order): self.order = order; setattr(self, event, self.press)
    def __call__(self, event):
        if event in vars(self) and getattr(self, 'epoch', 0) == 1: self.press()
    def press(self):
        if not self.learn.stopped: signal.raise_signal(signal.SIGINT)

@pytest.mark.parametrize('event', ['after_validate', 'after_epoch', 'after_fit'])
def test_a_signal_after_the_last_batch_is_not_lost(few, event):
    before = handlers()
    learn = fitted(learner(few, PressAt(event, 70)), 2)
    assert learn.stopped.reason is Reason.SIGNAL and len(learn.recorder.losses) == 8
    assert handlers() == before

def test_training_in_a_thread(dls):
    learn, errors = learner(dls), []
    def work():
        try: fitted(learn)
        except Exception as e: errors.append(e)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors and len(learn.recorder.values) == 1

def test_a_training_that_comes_to_its_end_says_nothing(few, capsys):
    before = handlers()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        learn = fitted(learner(few))
    assert learn.stopped is None and not capsys.readouterr().out and handlers() == before

def test_throughput_counts_real_tokens(dls):
    start = time.perf_counter()
    learn = fitted(learner(dls), 2)
    # padding does not count, nor does validation
    assert learn.throughput.tokens == 2*len(dls.train.text.ids)
    assert 0 < learn.throughput.seconds <= time.perf_counter() - start

def test_a_look_changes_nothing(few, monkeypatch):
    "`validate`, `get_preds` and `lr_find` are no fits, also within one"
    learn = fitted(learner(few, EarlyStop(1)), 9, 0.)
    def seen():
        return (learn.stopped, learn.throughput.tokens, learn.throughput.seconds,
                learn.early_stop.best_epoch, learn.early_stop.best, learn.keep_good.good_step)
    before = seen()
    with monkeypatch.context() as mp:
        mp.setattr(training, 'weights', lambda model: pytest.fail('the weights are copied'))
        quietly(learn, 'validate')
        quietly(learn, 'get_preds')
        quietly(learn, 'lr_find', num_it=10, show_plot=False)
    assert seen()[-3:] == before[-3:]
    found = []
    class Within(Callback):
        order = 100
        def before_batch(self):
            if self.training: found.append(str(handlers()))
        def after_epoch(self):
            if not self.learn.lock.locked(): self.learn.validate()
    fitted(learner(few, Within()), 2)
    assert len(set(found)) == 1

# a budget of time

def timed(few, seconds, *cbs, method='fit_one_cycle', lr=1e-2, **kwargs):
    "A learner and its budget, after so many steps of a clock that counts them (4 an epoch)"
    learn = learner(few, *cbs, **kwargs)
    budget = TimeBudget(seconds, clock=lambda: float(len(learn.recorder.losses)))
    return fitted(learn, TimeBudget.epochs, lr, method, cbs=budget), budget

def test_a_budget_ends_one_cycle_with_the_clock(some):
    "A whole number of epochs: the rates, momenta and figures of `fit_one_cycle`"
    whole = fitted(learner(loaders(some)), 3, method='fit_one_cycle').recorder
    learn, budget = timed(loaders(some), 12)
    recorder = learn.recorder
    assert len(recorder.lrs) == 12 == budget.elapsed and learn.stopped.reason is Reason.TIME
    np.testing.assert_allclose(recorder.lrs, whole.lrs, rtol=1e-6)
    np.testing.assert_allclose(recorder.hps['mom'], whole.hps['mom'][:11], rtol=1e-6)
    rows = [[values[:-1] for values in r.values] for r in (recorder, whole)]
    np.testing.assert_allclose(*rows, rtol=1e-3)

def test_a_budget_that_ends_within_an_epoch(few, tmp_path):
    "The epoch is validated, its row is whole, and the weights are those that the row speaks of"
    learn, _ = timed(few, 10, CSVLogger(tmp_path/'log.csv'))
    recorder = learn.recorder
    assert len(recorder.losses) == 10 and len(recorder.values) == 3 == learn.n_epoch
    assert recorder.lrs[-1] < 1e-3 < max(recorder.lrs[:4]) <= 1e-2
    assert {len(values) for values in recorder.values} == {len(TABLE) - 2}
    assert [len(r) for r in csv.reader((tmp_path/'log.csv').open())] == [len(TABLE)]*4
    check_table(learn, few.valid, 1e-4)

def test_a_budget_with_any_schedule(few):
    assert timed(few, 6, method='fit', lr=3e-3)[0].recorder.lrs == [3e-3]*6
    lrs = timed(few, 6, method='fit_flat_cos')[0].recorder.lrs
    assert lrs[0] == 1e-2 > lrs[-1]

def test_the_number_of_epochs_is_guessed_from_the_pace(few):
    seen = []
    class Watch(Callback):
        order = 99
        def after_epoch(self): seen.append(self.n_epoch)
        def before_epoch(self): seen.append(self.n_epoch)
    timed(few, 10, Watch())
    assert seen[0] == 1 and seen[1:] == [3]*5, 'before the first step nothing is known'

def test_validation_counts(few):
    "A clock that also runs while validating: there is time for one epoch of three"
    ticks = [0.]
    class Tick(Callback):
        order = 0
        def after_batch(self): ticks[0] += 1
    learn = learner(few, Tick())
    fitted(learn, TimeBudget.epochs, cbs=TimeBudget(5, clock=lambda: ticks[0]))
    assert len(learn.recorder.losses) == 4 and len(learn.recorder.values) == 1

def test_a_budget_of_real_seconds(few, capsys):
    budget, start = TimeBudget(.5), time.monotonic()
    learn = fitted(learner(few), TimeBudget.epochs, method='fit_one_cycle', cbs=budget)
    assert .5 <= budget.elapsed <= time.monotonic() - start and learn.recorder.losses
    assert learn.stopped.reason is Reason.TIME and not learn.broke_off
    assert learn.stopped.message in capsys.readouterr().out

def test_a_budget_beside_what_else_ends_a_training(few):
    learn, _ = timed(few, 100, EarlyStop(1), lr=.3)
    assert learn.stopped.reason is Reason.PATIENCE and len(learn.recorder.losses) < 100
    learn, _ = timed(few, 8, EarlyStop(1), lr=1e-4)
    assert learn.stopped.reason is Reason.TIME and len(learn.recorder.losses) == 8
    timed(few, 12, bf16=True)
    assert not torch.is_autocast_enabled('cpu')

@pytest.mark.parametrize('seconds', [0, -1, math.nan, math.inf, '5m'])
def test_budgets_that_can_not_be(seconds):
    with pytest.raises(ValueError, match='seconds'): TimeBudget(seconds)

# what a learner shows, and what fastai's own tools get from it

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_what_each_direction_expected_is_shown(corpus, kind):
    dls = loaders(corpus, kind, bs=8)
    learn = learner(dls)
    df = learn.show_results(max_n=3, show=False)
    assert list(df.columns) == ['text', 'forward targets', 'backward targets', 'forward guesses',
                                'backward guesses'] and len(df) == 3
    chars,*targets = dls.valid.one_batch()
    model = learn.model.eval()
    with torch.no_grad(): states = model.encode(chars[:3])[-1]
    for name,head,h,y in zip(('forward', 'backward'), model.heads, states, targets):
        best = head.log_prob(h).argmax(-1)
        for i in range(3):
            pairs = zip(best[i].tolist(), y[i].tolist())
            there = [dls.vocab.itos[word] if target else '·' for word,target in pairs]
            n = int((chars[i, :, 0] != 0).sum())
            assert df[f'{name} guesses'][i].split(' ') == there[:n]

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_every_prediction_has_its_nats(corpus, kind):
    "In the loader's order: there is one row a sentence, and many predictions"
    dls = loaders(corpus, kind, bs=8)
    learn = learner(dls)
    (fwd, bwd), _ = quietly(learn, 'get_preds', ds_idx=1)
    exact = evaluate(learn.model, dls.valid)
    assert len(fwd) == len(bwd) == exact['predictions']
    assert math.exp(fwd.mean()) == pytest.approx(exact['fwd'], rel=1e-5)

def test_a_summary_of_a_language_model(few):
    text = quietly(learner(few), 'summary')
    assert 'BiLM' in text and 'Total params' in text and 'Optimizer used' in text

def test_losses_of_a_language_model_are_its_predictions(few):
    learn = learner(few)
    for ask in (lambda: learn.get_preds(with_loss=True), lambda: Interpretation.from_learner(learn),
                lambda: ClassificationInterpretation.from_learner(learn)):
        with pytest.raises(ValueError, match='predictions of a biLM are losses already'):
            quietly(learn, ask)
    with pytest.raises(ValueError, match='bilm_learner takes no loss_func'):
        learner(few, loss_func=torch.nn.CrossEntropyLoss())

# several fits, one folder

class Break(Callback):
    order = 99
    def __init__(self, n): self.n, self.seen = n, 0
    def after_batch(self):
        self.seen += self.training
        if self.training and self.seen == self.n: raise KeyboardInterrupt

def test_a_learner_with_checkpoints_is_fitted_again(few, tmp_path):
    learn = fitted(learner(few, Checkpoints(tmp_path/'run', minutes=0)), lr=1e-3)
    fitted(learn, 2, 1e-3, 'fit_one_cycle')
    quietly(learn, 'fine_tune', 1)
    assert find_checkpoint(tmp_path/'run').position['fit'] == 3

def fine_tuned(learn): quietly(learn, 'fine_tune', 2, 1e-2)
def fitted_twice(learn):
    for _ in range(2): fitted(learn, 2, method='fit_one_cycle')

@pytest.mark.parametrize('fits', [fine_tuned, fitted_twice])
def test_several_fits_go_on_exactly(some, tmp_path, fits):
    "Interrupted in any of them; called as before, the fits that were done are left out"
    def new(*cbs, **kwargs): return learner(loaders(some), *cbs, **kwargs)
    fits(whole := new())
    for n in (2, 4, 7, 11):
        run = tmp_path/str(n)
        with pytest.raises(KeyboardInterrupt): fits(new(Checkpoints(run, minutes=0), Break(n)))
        resume(again := new(Checkpoints(run, minutes=0), seed=5), run)
        fits(again)
        assert same(weights(again), weights(whole)), n

@pytest.mark.parametrize('name', ['20241125-run', '20241125-start', '123456-epoch1-end', 'run'])
def test_names_of_run_folders(some, tmp_path, name):
    learn = learner(loaders(some), Checkpoints(tmp_path/name, minutes=0), Break(2))
    with pytest.raises(KeyboardInterrupt): fitted(learn)
    assert checkpoints_in(tmp_path) == [] or name != '20241125-run'
    again = learner(loaders(some), seed=3)
    assert resume(again, tmp_path/name).position['batches'] == 2
    assert len(fitted(again).recorder.losses) == 4

# trackers

@pytest.fixture(scope='module')
def task_learners(some):
    "Learners of tasks, with the metrics that they have by default"
    backbone = Elmo(BiLM(CFG, 0), tokenizer='space')
    texts = [' '.join(sent.split()[:4]) for sent in some.train]
    rows = pd.DataFrame(dict(text=texts, label=[len(text) % 2 for text in texts]))
    how = dict(bs=16, device='cpu')
    return dict(
        cbow=cbow_learner(loaders(some, 'cbow'), dim=8),
        labels=elmo_classifier_learner(ClassifyDataLoaders.from_df(rows, **how), backbone),
        tags=elmo_tagger_learner(TagDataLoaders.from_sents(some.gold['train'], **how), backbone))

@pytest.mark.parametrize('name', ['cbow', 'labels', 'tags'])
def test_trackers_of_the_tasks(task_learners, name):
    learn = task_learners[name]
    for metric in ['valid_loss', *learn.metrics.attrgot('name')]:
        falls = any(part in metric for part in ('loss', 'perplexity', 'rmse'))
        with learn.added_cbs(tracker := SaveModelCallback(monitor=metric)):
            assert (tracker.comp is np.less) == falls, metric

def test_several_processes_train_language_models(task_learners, monkeypatch):
    with several_processes(task_learners['tags']): pass         # alone it does nothing
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='train a biLM, and this is a Tagger'):
        with several_processes(task_learners['tags']): pass

@pytest.mark.parametrize('monitor', ['valid_loss', 'perplexity_fwd', 'perplexity_bwd'])
@pytest.mark.parametrize('kind', [SaveModelCallback, EarlyStoppingCallback, ReduceLROnPlateau])
def test_trackers_of_a_language_model_look_downwards(few, kind, monitor):
    tracker = kind(monitor=monitor, min_delta=.01)
    learn = learner(few, tracker)
    assert tracker.comp is np.less and tracker.min_delta == -.01
    other = kind(monitor=monitor)
    with learn.added_cbs(other): assert other.comp is np.less

@pytest.mark.parametrize('metric,falls', [
    (NatsMetric('nats'), True), (AccumMetric(len, name='maestro_acc'), False)], ids=['nats', 'acc'])
def test_trackers_look_at_what_a_metric_is(few, metric, falls):
    learn = learner(few)
    learn.metrics = [metric]
    learn.add_cb(tracker := SaveModelCallback(monitor=metric.name))
    assert (tracker.comp is np.less) == falls

def test_the_best_model_is_saved(few, tmp_path):
    learn = learner(few, path=tmp_path)
    column = [r[2] for r in fitted(
        learn, 3, cbs=SaveModelCallback(monitor='perplexity_fwd')).recorder.values]
    assert max(column) > 1.01*min(column)
    assert quietly(learn, 'validate')[1] == pytest.approx(min(column), rel=1e-5)

# models in one call, alphabets

def test_toy_bilm(held):
    lm, vocab, corpus = toy_bilm(n_train=300)
    assert not lm.training and lm.n_words == len(vocab) and isinstance(corpus, ToyCorpus)
    # of the whole process: nothing here changes it
    before = torch.get_rng_state()
    def same(other): return all(map(close, lm.parameters(), other.parameters()))
    assert same(_trained_toy.__wrapped__(300)[0])     # another training
    # the first one again, and as if it were new
    other, _, copied = toy_bilm(n_train=300)
    assert same(other) and torch.equal(torch.get_rng_state(), before)
    with torch.no_grad(): next(other.parameters()).add_(1)
    copied.train.clear()
    mine, _, its = toy_bilm(n_train=300)
    assert same(mine) and not same(other) and len(its.train) == 300

def test_an_alphabet_from_the_loaders_to_the_model(spelt):
    learn, chars = spelt
    model = learn.model
    sizes = chars.n_chars, chars.max_chars
    assert (model.config.n_chars, model.config.max_chars) == sizes
    assert (model.chars.embed.num_embeddings, model.char_vocab.max_chars) == sizes
    assert model.char_vocab == chars == learn.dls.char_vocab and finite(model)
    assert learn.predict('the bank', 2).startswith('the bank')

# inside a training

def slope_through_a_state(model, chars):
    """The gradient of the second window's states with respect to the first window's letters'
    vectors, through the carried state"""
    _, state = model.encode_state(chars)
    layers, _ = model.encode_state(chars, state)
    [slope] = torch.autograd.grad(layers[-1][0].square().sum(), [state[0]], create_graph=True)
    [second] = torch.autograd.grad(slope.square().sum(), [model.lstm.fwd[0].weight_hh_l0])
    return slope.abs().sum().item(), second.abs().sum().item()

def losses_over_two_windows(model, batch):
    model.zero_grad()
    _, _, state = model(*batch, model.lstm.init_state(len(batch[0])))
    forward, backward, _ = model(*batch, state)
    (forward.mean() + backward.mean()).backward()
    return model.lstm.fwd[0].weight_hh_l0.grad.abs().sum().item()

def _embed_in_a_worker(model, chars, queue):
    torch.set_num_threads(1)
    with torch.no_grad(): queue.put(model.encode(chars)[-1][0].sum().item())

def test_gradients_and_workers_inside_a_training(stream):
    """State that is not detached, a loss over two windows, second derivatives, a forked worker: in
    a fit as outside"""
    torch.set_num_threads(2)
    learn = learner(stream)
    batch = stream.valid.one_batch()
    context = multiprocessing.get_context('fork')
    def measure(model):
        model.eval()
        queue = context.Queue()
        worker = context.Process(target=_embed_in_a_worker, args=(model, batch[0], queue))
        worker.start()
        try: found = queue.get(timeout=30)
        finally:
            worker.kill()
            worker.join()
        return *slope_through_a_state(model, batch[0]), losses_over_two_windows(model, batch), found
    outside = measure(learn.model)
    class Inside(Callback):
        def before_batch(self):
            self.learn.measured = measure(self.model)
            raise CancelFitException
    fitted(learn, lr=0., cbs=Inside())
    assert min(outside[:3]) > 0 and learn.measured == pytest.approx(outside, rel=1e-4)

def test_a_training_leaves_the_process_as_it_was(few, monkeypatch):
    "Neither the C library's allocator nor the number of threads is another one afterwards"
    import ctypes
    def forbidden(*args): raise AssertionError('a library of C was opened')
    monkeypatch.setattr(ctypes, 'CDLL', forbidden)
    n = torch.get_num_threads()
    fitted(learner(few, bf16=None))
    assert torch.get_num_threads() == n

# a fit that begins with a later epoch

def from_second(learn, method='fit_one_cycle', **kwargs):
    "Four epochs without the first two"
    return fitted(learn, 4, method=method, **{'start_epoch': 2, **kwargs})

@pytest.mark.parametrize('method', ['fit', 'fit_one_cycle', 'fit_flat_cos'])
def test_a_fit_begins_with_a_later_epoch(some, method, tmp_path):
    "Its rows, its rates and its files are those of the epochs that are left"
    calls = []
    learn = learner(loaders(some), CSVLogger(tmp_path/'log.csv'), path=tmp_path)
    learn.add_cb(SaveModelCallback(every_epoch=True))
    learn.add_cb(Callback(before_epoch=lambda self: calls.append(learn.epoch)))
    with learn.no_logging(): getattr(learn, method)(4, 1e-2, start_epoch=2)      # with its bar
    whole = fitted(learner(loaders(some)), 4, method=method).recorder
    recorder = learn.recorder
    assert calls == [2, 3] and len(recorder.values) == 2 and len(recorder.losses) == 8
    np.testing.assert_allclose(recorder.lrs, whole.lrs[8:], rtol=1e-5)
    assert {file.name for file in (tmp_path/'models').iterdir()} == {'model_2.pth', 'model_3.pth'}
    rows = list(csv.reader((tmp_path/'log.csv').open()))
    assert [line[0] for line in rows] == ['epoch', '2', '3']
    fitted(learn, 1)
    assert calls == [2, 3, 0], 'the next fit begins with its first epoch'

def test_a_short_cycle_of_restarts_begins_later(few):
    learn = learner(few)
    quietly(learn, 'fit_sgdr', 2, 1, 1e-2, start_epoch=1)
    assert len(learn.recorder.values) == 2 and learn.epoch == 2

@pytest.mark.parametrize('losses,patience,best', [
    ([9, 9, 5, 6, 7, 8], 2, 2), ([9, 9, 5, 4, 6, 7], None, 3), ([0, 0, 5, 4, 3, 2], 2, 5)], ids=str)
def test_early_stop_counts_the_epochs_that_were_left_out(few, losses, patience, best):
    learn = fitted(learner(few, Fake(*losses), EarlyStop(patience)), 6, 0., start_epoch=2)
    assert learn.early_stop.best_epoch == best and (learn.model.head.bias == best).all()
    ends = 5 if patience and best < 5 else 6
    if best < 5: assert f'after epoch {best+1} of {ends}' in learn.stopped.message

@pytest.mark.parametrize('tracker', [
    SaveModelCallback(), SaveModelCallback(at_end=True), EarlyStoppingCallback(patience=9),
    ReduceLROnPlateau(patience=1), GradientAccumulation(32)], ids=str)
def test_callbacks_of_fastai_begin_later(few, tracker, tmp_path):
    learn = learner(few, tracker, EarlyStop(), path=tmp_path)
    assert len(from_second(learn).recorder.values) == 2

@pytest.mark.parametrize('name', ['cbow', 'labels', 'tags'])
def test_tasks_begin_later(task_learners, name, tmp_path, monkeypatch):
    learn = task_learners[name]
    monkeypatch.setattr(learn, 'path', tmp_path)
    from_second(learn, cbs=SaveModelCallback(every_epoch=True))
    assert len(learn.recorder.values) == 2
    assert {file.name for file in (tmp_path/'models').iterdir()} == {'model_2.pth', 'model_3.pth'}

@pytest.mark.parametrize('start', [-1, 4, 9, 1.5, '2'])
def test_epochs_with_which_no_fit_begins(few, start):
    learn = learner(few)
    before = weights(learn)
    for method in ('fit', 'fit_one_cycle', 'fit_flat_cos'):
        with pytest.raises(ValueError, match='start_epoch=.* from 0 to below .*, 4$'):
            from_second(learn, method, start_epoch=start)
    assert same(weights(learn), before)
    assert len(fitted(learn).recorder.values) == 1

def test_what_does_not_go_with_a_later_epoch(few):
    learn = learner(few)
    with pytest.raises(ValueError, match='start_epoch .*TimeBudget'):
        from_second(learn, cbs=TimeBudget(5))
    with pytest.raises(ValueError, match='fine_tune takes no start_epoch'):
        quietly(learn, 'fine_tune', 3, start_epoch=1)
    quietly(learn, 'fine_tune', 1, start_epoch=0)
