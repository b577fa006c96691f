"Small models, and what else several files of tests use"
import os, sys
from dataclasses import replace

import numpy as np, pytest
from torch import nn
from fastai.torch_core import set_seed
import elmo_fastai.practice.folder, elmo_fastai.practice.scores    # methods of models and learners
from elmo_fastai.elmo import Elmo
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.tokens import SPECIALS, WordVocab

CFG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=8, hidden_dim=12,
                 dropout=.3)
VOCAB = WordVocab([*SPECIALS, 'the', 'bank', 'of', 'river'])
# Sentences of all lengths, with tokens of all kinds
S = ['the bank of the river'.split(), ['bank'], [],
     'a much longer sentence than the others , is it not ?'.split(),
     ['naïve', '<s>', '</s>', '', 'x'*80]]

posix = pytest.mark.skipif(os.name != 'posix', reason='modes, links, limits and signals of Unix')
forks = pytest.mark.skipif(sys.platform != 'linux', reason='a process with threads forks on Linux')

def close(a, b, eps=1e-5):
    a, b = (o.detach() if hasattr(o, 'detach') else o for o in (a, b))
    return a.shape == b.shape and np.allclose(np.asarray(a), np.asarray(b), atol=eps, rtol=0)

def same(a, b, eps=1e-5): return all(close(x, y, eps) for x,y in zip(a, b, strict=True))

def bilm(seed=0, n_words=len(VOCAB), **changes):
    "A biLM whose normalisation has statistics that do something"
    set_seed(seed)
    lm = BiLM(replace(CFG, **changes), n_words)
    for cnn in lm.encoders:
        if cnn.norm is None: continue
        cnn.norm.running_mean.normal_()
        cnn.norm.running_var.uniform_(.5, 2.)
        cnn.norm.steps += 5
    return lm.eval()

def make(seed=0, cfg={}, **kw):
    return Elmo(bilm(seed, **cfg), VOCAB, **{**dict(dropout=0.), **kw}).eval()

class Mine(nn.Module):
    "A network around an Elmo, as a user may write one"
    def __init__(self, elmo, n=3):
        super().__init__()
        self.elmo, self.lin = elmo, nn.Linear(16, n)
    def forward(self, x): return self.lin(self.elmo(x)[0][0])

def lasting(seed=0, cfg={}, **kw):
    "An Elmo whose states reach far"
    set_seed(seed)
    lm = BiLM(replace(CFG, **cfg), len(VOCAB))
    for p in lm.parameters(): p.data.mul_(1.5)
    return Elmo(lm, VOCAB, **kw).eval()

def direct(elmo, tokens, layers='all'):
    "The vectors of one sentence by the module itself"
    hs, _ = elmo.layers([tokens])
    if layers == 'all': return np.stack([h[0].detach() for h in hs], 0)
    return (elmo.mixes[0](hs)[0] if layers == 'mix' else hs[layers][0]).detach().numpy()

def quietly(learn, call, *args, **kw):
    "What a learner's method returns, without a bar and a table"
    if isinstance(call, str): call = getattr(learn, call)
    with learn.no_bar(), learn.no_logging(): return call(*args, **kw)

def fitted(learn, epochs=1, lr=1e-2, method='fit', **kwargs):
    quietly(learn, method, epochs, lr, **kwargs)
    return learn

def fit(learn, epochs=1, lr=1e-2): return fitted(learn, epochs, lr, 'fit_one_cycle')

def comes_back(learn, again):
    "Has another learner the weights of this one, which trains before it is saved and loaded?"
    quietly(learn, 'fit', 1, 1e-2)
    learn.save('here')
    found = again.load('here').model.state_dict()
    return all(weight.equal(found[name]) for name,weight in learn.model.state_dict().items())
