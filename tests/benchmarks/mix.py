"""One layer or a mix, with heads that are tuned and trained to the end (lesson 10).

    # figures go to nbs/results/mix.json: some five minutes of one core; again: goes on
    python tests/benchmarks/mix.py
    python tests/benchmarks/mix.py --bilms 42      # the lesson's biLM alone

Which layer or mix is best for the last letter and for the sense of a word, when each head has the
weight decay that is best for it on held-out tokens? LBFGS, up to 400 steps. Asked of two small
biLMs that differ in their seed.

2,000 tokens to train on, 2,000 of other training sentences to choose on, 2,000 to test on.
"""
from itertools import product
import numpy as np, torch, torch.nn.functional as F
from fastai.torch_core import set_seed
from torch import nn
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.elmo import Elmo
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.learner import bilm_learner, toy_bilm
from harness import RESULTS, fill_file, opt, options
from made import quietly
from pages import page

LESSON = 42                              # the seed of `toy_bilm`
DECAYS = 1e-6, 1e-5, 1e-4, 1e-3
STEPS, N = 400, 2000

def bilm(seed):
    "The model and words of `toy_bilm`, or of another seed"
    if seed == LESSON: return toy_bilm()[:2]
    corpus = toy_corpus(n_train=16000, n_valid=1000, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=32, seed=seed, device='cpu')
    config = BiLMConfig('toy', filters=((1,16), (2,32), (3,48)), proj_dim=64, hidden_dim=64)
    set_seed(seed)
    learn = bilm_learner(dls, config, bf16=False, from_counts=False)
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    return learn.model.eval(), dls.vocab

def last_letters(sent): return [word[-1] for word in sent.tokens]
def senses(sent): return sent.senses
TASKS = {'last letter': last_letters, 'sense': senses}

@torch.no_grad()
def labelled(elmo, sents, labels_of):
    "Layers [N, L, D] and labels of the first `N` tokens that have a label"
    vectors, labels = [], []
    for sent in sents:
        keep = [i for i,label in enumerate(labels_of(sent)) if label]
        if not keep: continue
        layers, _ = elmo.layers([sent.tokens])
        vectors.append(torch.stack([h[0, keep] for h in layers], 1))
        labels += [labels_of(sent)[i] for i in keep]
        if len(labels) >= N: break
    return torch.cat(vectors)[:N], np.array(labels[:N])

def parts(elmo, gold, labels_of):
    "Tokens to train on, to choose on and to test on"
    seen = {tuple(s.tokens) for s in gold['train']}
    new = [s for s in gold['valid'] if tuple(s.tokens) not in seen]
    middle = len(gold['train'])//2
    sents = gold['train'][:middle], gold['train'][middle:], new
    return [labelled(elmo, some, labels_of) for some in sents]

def kinds():
    "name → a function that makes the mix"
    lesson = page('course/10_elmo')
    layers = {f'layer {i}': (lambda i=i: lesson.OneLayer(i)) for i in range(3)}
    return layers | {
        '1 average': lesson.Mix1, '2 free weights': lambda: lesson.Mix2(3),
        '3 shares': lambda: lesson.Mix3(3), '4 shares and γ': lambda: lesson.Mix4(3),
        '5 normalised layers': lambda: lesson.Mix5(3), 'side by side': lesson.SideBySide}

def shares_right(mix, head, names, parts):
    "Shares of tokens to choose on and to test on whose label is right"
    with torch.no_grad(): guesses = [head(mix(x.unbind(1))).argmax(-1) for x,_ in parts]
    return [round(float((names[g] == y).mean()), 4) for g,(_, y) in zip(guesses, parts)]

def converged(mix, data, decay):
    "A head and a mix trained by LBFGS: shares right, and how many steps it took"
    (x, y), *others = data
    names, targets = np.unique(y, return_inverse=True)
    targets = torch.from_numpy(targets)
    set_seed(0)
    head = nn.Linear(mix(x[:1].unbind(1)).shape[-1], len(names))
    opt = torch.optim.LBFGS([*head.parameters(), *mix.parameters()], max_iter=STEPS,
                            line_search_fn='strong_wolfe')
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(head(mix(x.unbind(1))), targets)
        loss = loss + decay*head.weight.square().sum()
        loss.backward()
        return loss
    opt.step(closure)
    chosen_on, tested = shares_right(mix, head, names, others)
    return dict(valid=chosen_on, test=tested, steps=opt.state[opt._params[0]]['n_iter'])

def main():
    args = options(__doc__, bilms=opt([LESSON, 1], 'seeds', nargs='*', type=int),
                   json=RESULTS/'mix.json')
    torch.set_num_threads(1)
    makes, gold = kinds(), toy_corpus(n_train=16000, n_valid=8000).gold
    for seed in args.bilms:
        elmo = Elmo(*bilm(seed)).eval()
        for task,labels_of in TASKS.items():
            data = parts(elmo, gold, labels_of)
            keys = [dict(bilm=seed, task=task, mix=name, decay=decay)
                    for name,decay in product(makes, DECAYS)]
            def make(mix, decay, **_): return converged(makes[mix](), data, decay)
            fill_file(args.json, keys, make)

if __name__ == '__main__': main()
