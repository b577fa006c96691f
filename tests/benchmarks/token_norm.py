"""What normalising the token vectors does to a biLM: nothing, batch normalisation, `TokenNorm` (chapter 04).

    python tests/benchmarks/token_norm.py            # some two minutes

One pass over 40,000 sentences of the toy corpus for each, the same seed, batches of 64 sentences of like length, full precision.
The loss on the held-out sentences is then taken twice with the same weights: with the statistics of the batch, as batch normalisation
uses them in training, and with fixed ones, as in use. Where the two differ, the model reads its answers from the batch.
"""
import argparse, copy, math
from dataclasses import replace
import torch
from elmo_fastai.all import *

def loss(model, dl, training):
    "Nats a prediction on `dl`, normalisation in training mode or not; `model` itself stays as it is"
    model = copy.deepcopy(model).eval()
    if model.chars.norm is not None: model.chars.norm.train(training)
    nats = n = 0
    with torch.no_grad():
        for batch in dl:
            nll = torch.cat(model(*batch))
            nats, n = nats + nll.double().sum().item(), n + len(nll)
    return nats/n

def run(kind, corpus, dls, lr):
    torch.manual_seed(42)
    learn = bilm_learner(dls, replace(ELMO_TINY, norm=kind != 'none'), bf16=False)
    if kind == 'batch': learn.model.chars.norm = torch.nn.BatchNorm1d(ELMO_TINY.proj_dim)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, lr)
    return {'batch statistics': loss(learn.model, dls.valid, True), 'fixed statistics': loss(learn.model, dls.valid, False)}

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--sentences', type=int, default=40_000)
    p.add_argument('--lr', type=float, default=5e-3)
    a = p.parse_args()
    corpus = toy_corpus(n_train=a.sentences)
    print(f"floor {math.log(corpus.floor('valid')):.3f} nats a prediction")
    for kind in ('none', 'batch', 'TokenNorm'):
        dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=64, seed=1)
        print(f'{kind:<10}', '   '.join(f'{k} {v:.3f}' for k,v in run(kind, corpus, dls, a.lr).items()), flush=True)
