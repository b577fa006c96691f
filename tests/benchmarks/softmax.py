"""The output layers after equal tokens, same seeds: perplexity of each direction, tokens a second,
peak memory (study: A hundred thousand words to choose from).

    # Tiny Shakespeare, 2 seeds, some twenty minutes on one thread
    python tests/benchmarks/softmax.py
    python tests/benchmarks/softmax.py --seeds 1 --lines 500 --epochs 1    # does it work?

plain      all scores of a batch at once, `F.cross_entropy` (first seed only)
full       the same a few rows at a time, `FullSoftmax`
adaptive   `AdaptiveSoftmax` with the library's cutoffs
sampled    `SampledSoftmax`; its perplexity here is the exact one

Every training is a process of its own: `bilm_learner`, one cycle, the vocabulary of all words.
"""
from statistics import mean
from fastcore.script import call_parse
from harness import in_process, log, peak_gb, several

SIDES = 'plain', 'full', 'adaptive', 'sampled'

def train(side, seed, epochs, lines, cutoffs):
    import torch
    from fastai.torch_core import set_seed
    from elmo_fastai import softmax
    from elmo_fastai.bilm import BiLMConfig
    from elmo_fastai.learner import bilm_learner, evaluate
    from elmo_fastai.text.corpora import tiny_shakespeare
    from elmo_fastai.batches import ElmoDataLoaders
    torch.set_num_threads(1)
    set_seed(seed)
    corpus = tiny_shakespeare()
    corpus.splits['train'] = corpus.splits['train'][:lines]
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, seed=seed,
                                      device='cpu')
    config = BiLMConfig('benchmark', proj_dim=128, hidden_dim=128, dropout=0.2, n_negative=1000,
                        cutoffs=cutoffs and tuple(cutoffs),
                        softmax='full' if side == 'plain' else side)
    learn = bilm_learner(dls, config, from_counts=False)
    if side == 'plain': softmax.MAX_SCORES = 10**12
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, 6e-3)
    ppl = evaluate(learn.model, dls.valid)
    return dict(forward=ppl['fwd'], backward=ppl['bwd'], mean=ppl['mean'],
                tokens_per_second=learn.throughput.per_second, peak_gb=peak_gb(),
                parameters=sum(p.numel() for p in learn.model.head.parameters()))

@call_parse
def main(
    seeds:int=2,                   # of each output layer
    epochs:int=3,                  # passes over the text
    lines:int=None,                # of the training text (default: all)
    cutoffs:several(int)=None,     # of the adaptive softmax (default: the library's)
    sides:several(str)=SIDES       # output layers
):
    "Print the means over the seeds, and the ratio to `full`, seed by seed"
    full = None
    for side in sides:
        found = [in_process(train, side, seed, epochs, lines, cutoffs)
                 for seed in range(1 if side == 'plain' else seeds)]
        if side == 'full': full = found
        log(side, {k: round(mean(o[k] for o in found), 2) for k in found[0]},
            'to full', [round(a['mean']/b['mean'], 3) for a,b in zip(found, full or [])])
