"""What normalising the token vectors does to a biLM: nothing, batch norm, `TokenNorm` (chapter 04).

    python tests/benchmarks/token_norm.py --seeds 2 --out nbs/results/token_norm.json  # half an hour

One pass over 40,000 sentences of the toy corpus for each, at several learning rates, with the same
seeds, batches of 64 sentences of like length, full precision. The loss on the held-out sentences is then taken three times with the
same weights:

- own: each batch is normalised by its own statistics, as batch normalisation does in training;
- other: by those of the batch before it and of the one behind it, whose sentences have about the
  same length (the mean of both);
- fixed: by the running statistics, as in use.

Statistics of another batch are as noisy as its own, and know nothing of its answers. So what
separates *own* from *other* is read from the batch itself: the leak. What separates *other* from
*fixed* is noise where it makes the loss higher, and where it makes it lower it is what batches of
like lengths have in common.
"""
import argparse, copy, json, math
from dataclasses import replace
from itertools import product
from pathlib import Path
import torch
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.nn.bilm import ELMO_TINY
from elmo_fastai.nn.charcnn import TokenNorm
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.train.learner import bilm_learner

def statistics(x, counts):
    "Mean and variance of the tokens `x` [N, D], each of which stands there so many times"
    share = (counts/counts.sum())[:, None].to(x)
    mean = (share*x).sum(0)
    return mean, (share*(x - mean)**2).sum(0)

class BatchNorm(TokenNorm):
    "Batch normalisation (Ioffe and Szegedy 2015) over occurrences"
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

def run(kind, dls, lr, seed):
    torch.manual_seed(seed)
    learn = bilm_learner(dls, replace(ELMO_TINY, norm=kind != 'none'), bf16=False)
    if kind == 'batch norm': learn.model.chars.norm = BatchNorm(ELMO_TINY.proj_dim)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, lr)
    return losses(learn.model, dls.valid)

if __name__ == '__main__':
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    p.add_argument('--sentences', type=int, default=40_000)
    p.add_argument('--lr', type=float, nargs='+', default=[5e-3, 1e-2, 2e-2, 4e-2], metavar='RATE')
    p.add_argument('--seeds', type=int, default=1, help='weights and order')
    p.add_argument('--out', help='JSON file to write')
    a = p.parse_args()
    corpus, rows = toy_corpus(n_train=a.sentences), []
    floor = math.log(corpus.floor('valid'))
    print(f"floor {floor:.3f} nats a prediction")
    for seed, lr, kind in product(range(a.seeds), a.lr, ('none', 'batch norm', 'TokenNorm')):
        make = ElmoDataLoaders.from_corpus
        dls = make(corpus, kind='sentences', bs=64, seed=seed, device='cpu')
        rows.append(dict(norm=kind, seed=seed, lr=lr, **run(kind, dls, lr, seed)))
        figures = (f'{k} {v:.3f}' for k,v in rows[-1].items() if k not in ('norm', 'seed'))
        print(f'{kind:<10}', '   '.join(figures), flush=True)
        if a.out:
            d = dict(sentences=a.sentences, floor=floor, rows=rows)
            Path(a.out).write_text(json.dumps(d, indent=1), encoding='utf-8')
