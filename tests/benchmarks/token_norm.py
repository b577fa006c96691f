"""What normalising the token vectors does to a biLM: nothing, batch norm, `TokenNorm` (study: What
all tokens share).

    python tests/benchmarks/token_norm.py                       # half an hour
    python tests/benchmarks/token_norm.py --parts neighbours    # five minutes
    python tests/benchmarks/token_norm.py --sentences 600 --seeds 1 --json F    # does it work?

`bilm`: one pass over 40,000 sentences of the toy corpus, then the loss on held-out sentences by
the statistics of each batch, of the batches beside it, and of the training. `encoder`: the same
where the encoder has four times the rate of the rest. `neighbours`: to guess both neighbours from a
token's vector alone, two passes over 4,000 sentences.
"""
import copy, math
from dataclasses import replace
from itertools import product
from pathlib import Path
import numpy as np, torch
from torch import nn
from torch.nn import functional as F
from fastai.basics import params
from fastcore.script import call_parse
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.bilm import ELMO_TINY
from elmo_fastai.charcnn import CharCNN, TokenNorm
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.learner import bilm_learner
from harness import RESULTS, fill, read_figures, several, write_figures

def statistics(x, counts):
    "Mean and variance of the tokens `x` [N, D], each of which stands there so many times"
    share = (counts/counts.sum())[:, None].to(x)
    mean = (share*x).sum(0)
    return mean, (share*(x - mean)**2).sum(0)

class BatchNorm(TokenNorm):
    def forward(self, x, counts):
        if not self.training: return super().forward(x, counts)
        mean, var = statistics(x, counts)
        self.update(mean.detach(), var.detach(), self.momentum)
        return (x - mean)/(var + self.eps).sqrt()*self.weight + self.bias

class Measured(TokenNorm):
    "In evaluation: keeps a batch's statistics in `own`, uses those in `given`, if there are any"
    given = own = None
    def forward(self, x, counts):
        self.own = statistics(x, counts)
        mean, var = self.given or (self.running_mean, self.running_var)
        return (x - mean)/(var + self.eps).sqrt()*self.weight + self.bias

def losses(model, dl):
    "Nats a prediction on `dl`, by the statistics of the batch, of its neighbours, of the training"
    model = copy.deepcopy(model).eval()
    norm, batches = model.chars.norm, [*dl]
    sums = dict(own=0., other=0., fixed=0.)
    with torch.no_grad():
        if norm is not None:
            norm.__class__, of = Measured, []
            for b in batches: model.chars(b[0]); of.append(norm.own)
        def nats(i, given=None):
            if norm is not None: norm.given = given
            return torch.cat(model(*batches[i])).double().sum().item()
        for i in range(len(batches)):
            fixed = nats(i)
            sums['fixed'] += fixed
            near = [j for j in (i-1, i+1) if 0 <= j < len(batches)]
            sums['own'] += fixed if norm is None else nats(i, of[i])
            sums['other'] += fixed if norm is None else sum(nats(i, of[j]) for j in near)/len(near)
        n = sum(len(torch.cat(model(*b))) for b in batches)
    return {k: v/n for k,v in sums.items()}

def two_groups(model):
    encoder, others = params(model.chars), {id(p) for p in params(model.chars)}
    return [encoder, [p for p in params(model) if id(p) not in others]]

def bilm(dls, seed, kind, lr, encoder_lr=None):
    torch.manual_seed(seed)
    learn = bilm_learner(dls, replace(ELMO_TINY, norm=kind != 'none'), bf16=False,
                         from_counts=False, splitter=two_groups)
    if kind == 'batch norm': learn.model.chars.norm = BatchNorm(ELMO_TINY.proj_dim)
    with learn.no_bar(), learn.no_logging():
        learn.fit_one_cycle(1, np.array([encoder_lr or lr, lr]))
    return losses(learn.model, dls.valid)

class Neighbours(nn.Module):
    "Scores of the next word and of the one before, from a token's vector alone"
    def __init__(self, norm, n_words):
        super().__init__()
        self.chars = CharCNN(64, 16, ((2,32), (3,64), (4,64), (5,64)), norm=norm)
        self.head = nn.Linear(64, 2*n_words)
    def forward(self, chars, *targets):
        scores = self.head(self.chars(chars)).chunk(2, -1)
        return sum(F.cross_entropy(s.flatten(0, 1), t.flatten(), ignore_index=0)
                   for s,t in zip(scores, targets))/2

def neighbours(dls, seed, kind, lr, epochs=2):
    torch.manual_seed(seed)
    model, n = Neighbours(kind != 'none', len(dls.vocab)), epochs*len(dls.train)
    opt = torch.optim.AdamW(model.parameters())
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=n)
    for batch in (b for _ in range(epochs) for b in dls.train):
        loss = model(*batch)
        opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    model.eval()
    with torch.no_grad(): batches = [(model(*b).item(), (b[1] > 0).sum().item()) for b in dls.valid]
    nats, n = zip(*batches)
    return dict(fixed=np.average(nats, weights=n))                      # over all predictions

KINDS = 'none', 'batch norm', 'TokenNorm'
PARTS = dict(
    bilm=(bilm, 40_000, 2, KINDS, [dict(lr=o) for o in (5e-3, 1e-2, 2e-2, 4e-2)]),
    encoder=(bilm, 40_000, 2, KINDS[::2], [dict(lr=1e-2, encoder_lr=4e-2)]),
    neighbours=(neighbours, 4000, 5, KINDS[::2],
                [dict(lr=o) for o in (3e-3, 1e-2, 2e-2, 4e-2, 8e-2)]))

@call_parse
def main(
    parts:several(str)=tuple(PARTS),     # those that are not asked for stay in the file
    sentences:int=None,                  # of each part, in place of its own number
    seeds:int=None,                      # likewise: weights and order
    json:Path=RESULTS/'token_norm.json'  # file of the figures
):
    "Measure the parts and write their figures"
    found = read_figures(json, {})
    for part in parts:
        job, n, n_seeds, kinds, rates = PARTS[part]
        corpus, found[part] = toy_corpus(n_train=sentences or n), []
        if job is bilm: found['floor'] = math.log(corpus.floor('valid'))
        def make(norm, seed, **rate):
            dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=seed,
                                              device='cpu')
            return job(dls, seed, norm, **rate)
        keys = [dict(norm=kind, seed=seed, **rate)
                for seed,rate,kind in product(range(seeds or n_seeds), rates, kinds)]
        fill(found[part], keys, make)
        write_figures(json, found)
