"Models and learners that several benchmarks share"
from dataclasses import replace
from functools import partial

import numpy as np, pandas as pd, torch
from torch import nn
from fastai.basics import Callback, CancelValidException
from elmo_fastai.bilm import BiLM, ELMO_ORIGINAL
from elmo_fastai.classifier import (
    ClassifyDataLoaders, ElmoClassifier, elmo_classifier_learner)
from elmo_fastai.learner import TorchOptimizer
from elmo_fastai.tagger import layers_of
from made import quietly

# as fastai's Adam, in one pass over the word vectors
ADAMW = partial(TorchOptimizer, opt=torch.optim.AdamW, betas=(.9, .99), fused=True)

class NoValidation(Callback):
    def before_validate(self): raise CancelValidException

def unfreeze(learn, to, rate, epochs, **kw):
    "Train what `freeze_to` leaves; each group below the head learns at half the rate"
    learn.freeze_to(to)
    low = rate/2**(len(learn.opt.param_lists) - 1)
    quietly(learn, 'fit_one_cycle', epochs, slice(low, rate), pct_start=.2, **kw)

class HashedWords(nn.Module):
    "A vector for each word, learned with the task; words share rows by a hash of their characters"
    def __init__(self, dim:int):
        super().__init__()
        self.embed = nn.Embedding(2**15, dim)
        nn.init.zeros_(self.embed.weight)

    def forward(self,
        chars,  # char ids, [B, T, W]
    ):          # [B, T, D], zeros at padding
        factors = [pow(0x9E3779B97F4A7C15, k + 1, 2**62) for k in range(chars.shape[-1])]
        mixed = (chars.long()*torch.tensor(factors, device=chars.device)).sum(-1)
        rows = (mixed >> 16) % len(self.embed.weight)
        return self.embed(rows)*(chars[..., :1] != 0)

class BesideWords(ElmoClassifier):
    "The library's classifier with learned vectors of words beside ELMo's, [x; ELMo]"
    def __init__(self, elmo, n_classes, words, proj_dim=128, **kwargs):
        super().__init__(elmo, n_classes, proj_dim=proj_dim, **kwargs)
        self.words = HashedWords(words)
        self.proj = nn.Sequential(nn.Linear(elmo.dim + words, proj_dim), nn.ReLU())

    def vectors(self, chars):
        chars = chars.as_subclass(torch.Tensor)
        layers, mask = layers_of(self, chars)
        mixed = self.elmo.mixes[0](layers, mask)
        normed = torch.zeros_like(mixed).masked_scatter(mask[..., None], self.norm(mixed[mask]))
        vecs = torch.cat([normed, self.words(chars)], -1)
        return self.proj(self.elmo.drop(vecs)), mask

def classifier_learner(dls, elmo, words=0, **kwargs):
    "`elmo_classifier_learner`; `words` is the size of learned vectors of words beside ELMo's"
    learn = elmo_classifier_learner(dls, elmo, **kwargs)
    if words:
        names = {'pool', 'proj_dim', 'hidden', 'dropout'} & kwargs.keys()
        settings = {name: kwargs[name] for name in names}
        model = learn.model
        learn.model = BesideWords(model.elmo, dls.c, words, cache=model.cache, **settings)
        learn.create_opt()                          # of this model's parameters
        learn.freeze()
    return learn

def as_table(rows): return pd.DataFrame(rows, columns=['text', 'label'])

def review_loaders(rows, **kwargs):
    return ClassifyDataLoaders.from_df(as_table(rows['train']), as_table(rows['valid']),
                                       tokenizer='space', device='cpu', **kwargs)

def accuracy_on(learn, rows):
    dl = learn.dls.test_dl(as_table(rows), with_labels=True)
    return float(quietly(learn, 'validate', dl=dl)[-1])

def balanced(n, seed, among, y):
    "`n` of the places `among`, as many of each class; a smaller draw is a part of a larger one"
    rng, among = np.random.default_rng(seed), np.asarray(among)
    return np.concatenate([rng.permutation(among[y[among] == c])[:n//2] for c in (0, 1)])

PUBLISHED = dict(small=(1024, 128, 1), original=(4096, 512, 2))

def random_model(size, seed=42):
    """A biLM of a published shape in which nothing idles: gates between 0.1 and 0.9, clips
    reached now and then"""
    torch.manual_seed(seed)
    hidden, proj, n_highway = PUBLISHED[size]
    model = BiLM(replace(ELMO_ORIGINAL, name=size, n_highway=n_highway, proj_dim=proj,
                         hidden_dim=hidden, cutoffs=()), 0).eval()
    nn.init.uniform_(model.chars.embed.weight[1:], -1, 1)
    for layer in [*model.lstm.fwd, *model.lstm.bwd]:
        nn.init.normal_(layer.weight_ih_l0, std=proj**-.5)
        nn.init.normal_(layer.weight_hh_l0, std=.7*proj**-.5)
        nn.init.normal_(layer.weight_hr_l0, std=2*hidden**-.5)
    return model
