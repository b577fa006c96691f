"""Perplexity after equal steps in full and in half precision, same seeds and batches (library: The
bidirectional language model).

    # Tiny Shakespeare, the small model, 3 epochs, 2 seeds: about half an hour on one thread
    python tests/benchmarks/precision.py
    python tests/benchmarks/precision.py --quick             # does it work? Seconds
    python tests/benchmarks/precision.py --device cuda --sides fp32 bf16 fp16

fp32   full precision
bf16   `bf16=True`: bfloat16 by autocast, weights and optimiser in full precision
fp16   `learn.to_fp16()`: float16 by autocast with scaled gradients; on a CPU for trying it out only

Perplexities are exact ones, in full precision, by `evaluate` on the validation text. The text comes
from ELMO_FASTAI_DATA or ../shared/data, or is
downloaded. It ends with status 1 where a mean perplexity is off by more than --limit from fp32's.
"""
import math, sys, time
from harness import data_folder, opt, options, write_figures

SIDES = ['fp32', 'bf16', 'fp16']

def arguments():
    args = options(__doc__,
        quick=opt(False, 'a tiny model, one epoch of 1,500 lines, one seed'),
        model=opt('small', 'a name in `elmo_configs`'),
        seeds=2,
        epochs=3,
        lr=4e-3,
        lines=opt(None, 'of the training text (default: all)', type=int),
        sides=opt(['fp32', 'bf16'], nargs='+', choices=SIDES),
        device='cpu',
        threads=1,
        limit=opt(.01, 'of the relative difference'),
        json=opt(None, 'also write the figures to this file'))
    if args.quick: args.model,args.seeds,args.epochs,args.lines = 'tiny',1,1,1500
    return args

def train(args, corpus, side, seed):
    "One training: its exact perplexities, its steps and seconds"
    from fastai.torch_core import set_seed
    from elmo_fastai.data.loaders import ElmoDataLoaders
    from elmo_fastai.nn.bilm import elmo_configs, evaluate
    from elmo_fastai.train.learner import bilm_learner
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, min_freq=2,
                                      seed=seed, device=args.device)
    learn = bilm_learner(dls, elmo_configs[args.model], bf16=side == 'bf16')
    if side == 'fp16': learn.to_fp16()
    start = time.perf_counter()
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(args.epochs, args.lr)
    if learn.stopped: sys.exit(f'{side}: {learn.stopped}')
    return dict(side=side, seed=seed, steps=len(learn.recorder.losses),
                seconds=time.perf_counter() - start, **evaluate(learn.model, dls.valid))

if __name__ == '__main__':
    args = arguments()
    import torch
    from elmo_fastai.text.corpora import tiny_shakespeare
    torch.set_num_threads(args.threads)
    corpus = tiny_shakespeare(data_folder('tiny_shakespeare'))
    if args.lines: corpus.splits['train'] = corpus.splits['train'][:args.lines]
    rows,off = [],0.
    print(
        f"{'':6}{'seed':>5}{'steps':>7}{'forward':>10}{'backward':>10}{'mean':>10}{'to fp32':>10}{'seconds':>9}",
        flush=True,
    )
    for seed in range(args.seeds):
        for side in args.sides:
            r = train(args, corpus, side, seed)
            base = next((o['mean'] for o in rows if o['seed'] == seed and o['side'] == 'fp32'),
                        None) or (r['mean'] if side == 'fp32' else math.nan)
            r['ratio'] = r['mean']/base
            off = max(off, abs(r['ratio'] - 1))
            rows.append(r)
            print(
                f"{side:6}{seed:5}{r['steps']:7}{r['fwd']:10.2f}{r['bwd']:10.2f}{r['mean']:10.2f}{r['ratio']:10.4f}{r['seconds']:9.0f}",
                flush=True,
            )
    print(f"largest difference to fp32: {100*off:.2f} %, limit {100*args.limit:.2f} %")
    write_figures(args.json, dict(args=vars(args), rows=rows))
    sys.exit(off > args.limit)
