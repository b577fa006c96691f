"""What the library computed once, and still does

`golden/` was written on one thread in single precision. Another processor rounds otherwise, so
numbers are compared with a tolerance."""
import hashlib, json, os
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, torch
from fastai.basics import Callback, CancelFitException, set_seed
from elmo_fastai.all import *

GOLDEN = Path(__file__).parent/'golden'
RECORD = json.loads((GOLDEN/'record.json').read_text(encoding='utf-8'))
CONFIG = BiLMConfig('golden', filters=((1,8), (2,16), (3,24)), proj_dim=32, hidden_dim=32)

own_seeds = pytest.mark.skipif('ROBUST_SEEDS' in os.environ,
                               reason='other seeds, other numbers: the record knows its own')

def close(a, b, tol=1e-5): np.testing.assert_allclose(a, b, rtol=tol, atol=tol)

def digest(items):
    found = hashlib.sha256()
    for item in items: found.update(f'{item}\n'.encode())
    return found.hexdigest()

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(2000, 300, 300, 50)

def test_the_toy_corpus(corpus):
    assert {k: digest(v) for k,v in corpus.splits.items()} == RECORD['toy']
    gold = {k: [(s.tokens, s.tags, s.senses, s.label) for s in v] for k,v in corpus.gold.items()}
    assert {k: digest(map(repr, v)) for k,v in gold.items()} == RECORD['toy gold']
    for k,v in corpus.gold.items(): close([s.logp for s in v[:5]], RECORD['toy logp'][k])
    close([corpus.floor(k) for k in corpus.splits], list(RECORD['toy floor'].values()))

def losses(learn, n, lr):
    "The losses of the first `n` steps"
    found = []
    class Keep(Callback):
        order = 80
        def after_batch(self):
            if self.training: found.append(self.loss.item())
            if len(found) == n: raise CancelFitException
    with learn.no_bar(), learn.no_logging(): learn.fit(20, lr, cbs=Keep())
    return found

def bilm(corpus, kind='sentences', config=CONFIG, opt='adamw', **kwargs):
    set_seed(1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind=kind, seed=3, device='cpu', **kwargs)
    return bilm_learner(dls, config, bf16=False, opt=opt, from_counts=False)    # as it was recorded

BILMS = {
    'sentences': dict(bs=32), 'stream': dict(kind='stream', bs=8, seq_len=24),
    'stream, projected, clipped, dropout': dict(kind='stream', bs=8, seq_len=24, config=replace(
        CONFIG, hidden_dim=48, cell_clip=3., proj_clip=3., dropout=.2)),
    'adaptive': dict(bs=32, config=replace(CONFIG, softmax='adaptive', cutoffs=(50, 200))),
    'sampled': dict(bs=32, config=replace(CONFIG, softmax='sampled', n_negative=100)),
    'own encoders and heads': dict(
        bs=32, config=replace(CONFIG, share_encoder=False, share_softmax=False)),
    'adagrad': dict(bs=32, opt='adagrad')}

@own_seeds
@pytest.mark.parametrize('kind', BILMS)
def test_losses_of_language_models(corpus, kind):
    "As many as every processor agrees on; twenty steps later rounding has grown a hundredfold"
    is_adagrad = kind == 'adagrad'
    wanted = RECORD['losses'][kind][:6 if is_adagrad else 20]
    found = losses(bilm(corpus, **BILMS[kind]), len(wanted), .2 if is_adagrad else 5e-3)
    close(found, wanted, 1e-3)

@pytest.mark.parametrize('carry', [False, True])
def test_vectors_of_an_ai2_model(carry):
    sents = ['the bank was old .', 'she sat on the bank .', 'they liked the film .']
    with torch.no_grad():
        layers, _ = Elmo.from_ai2(GOLDEN/'ai2', carry=carry).layers([s.split() for s in sents])
    with np.load(GOLDEN/'ai2'/'vectors.npz') as f:
        close(torch.stack(layers, 1), f['carry' if carry else 'stateless'])
