"""The output layers after equal tokens, same seeds: perplexity of each direction, tokens a second,
peak memory (study: A hundred thousand words to choose from).

    # Tiny Shakespeare, 2 seeds, some twenty minutes on one thread
    python tests/benchmarks/softmax.py
    python tests/benchmarks/softmax.py --seeds 1 --lines 500 --epochs 1    # does it work?

plain      all scores of a batch at once, `F.cross_entropy`: for speed and memory, since its
           perplexity is that of the next (first seed only)
full       the same a few rows at a time, `FullSoftmax`
pytorch    `FullSoftmax`, the model initialised as PyTorch does by itself, not by `original_init`
adaptive   `AdaptiveSoftmax` with the library's cutoffs
sampled    `SampledSoftmax`; its training loss is not comparable, its perplexity here is the exact
           one

Every training is a process of its own: `bilm_learner`, one cycle, the vocabulary of all words. The
text comes from ELMO_FASTAI_DATA or ../shared/data, or is downloaded. An interval is Student's, over
the seeds, of the ratio to `full` with the same seed.
"""
import json, math, sys
from statistics import mean
from harness import data_folder, in_process, opt, options, peak_gb, write_figures

SIDES = ['plain', 'full', 'pytorch', 'adaptive', 'sampled']

def arguments():
    return options(__doc__,
        seeds=2,
        epochs=3,
        lr=6e-3,
        dim=opt(128, 'states and cells'),
        negative=opt(1000, 'words that the sampled softmax draws'),
        cutoffs=opt(None, "of the adaptive softmax (default: the library's)", type=int, nargs='+'),
        lines=opt(None, 'of the training text (default: all)', type=int),
        sides=opt(SIDES, nargs='+', choices=SIDES),
        threads=1,
        fp32=opt(False, 'full precision also where bfloat16 is fast'),
        json=opt(None, 'also write the figures to this file'),
        job=opt(hidden=True))

def pytorch_init(model):
    "Undo `original_init`; forget and highway gates, which our layers set themselves, stay"
    from torch import nn
    from elmo_fastai.recurrent import init_lstm
    for name,m in model.named_modules():
        if isinstance(m, (nn.Embedding, nn.Conv1d, nn.Linear, nn.LSTM)) and 'highway' not in name:
            m.reset_parameters()
        if isinstance(m, nn.LSTM): init_lstm(m)

def train(args, side, seed):
    "One training: what came of it, as a dictionary"
    import torch
    from fastai.torch_core import set_seed
    from elmo_fastai import softmax
    from elmo_fastai.bilm import BiLMConfig
    from elmo_fastai.learner import evaluate
    from elmo_fastai.text.corpora import tiny_shakespeare
    from elmo_fastai.batches import ElmoDataLoaders
    from elmo_fastai.learner import bilm_learner
    torch.set_num_threads(args.threads)
    set_seed(seed)
    corpus = tiny_shakespeare(data_folder('tiny_shakespeare'))
    if args.lines: corpus.splits['train'] = corpus.splits['train'][:args.lines]
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, seed=seed,
                                      device='cpu')
    config = BiLMConfig('benchmark', proj_dim=args.dim, hidden_dim=args.dim, dropout=0.2,
                        n_negative=args.negative, cutoffs=tuple(args.cutoffs) if args.cutoffs
                        else None,
                        softmax=side if side in ('adaptive', 'sampled') else 'full')
    learn = bilm_learner(dls, config, bf16=False if args.fp32 else None, from_counts=False)
    if side == 'plain': softmax.MAX_SCORES = 10**12
    if side == 'pytorch': pytorch_init(learn.model)
    before = peak_gb()
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(args.epochs, args.lr)
    r = dict(tokens_per_second=learn.throughput.per_second, tokens=learn.throughput.tokens,
             peak_gb=peak_gb(), before_gb=before, words=len(dls.vocab),
             bf16=any(type(o).__name__ == 'BF16' for o in learn.cbs), torch=torch.__version__,
             head=type(learn.model.head).__name__,
             parameters=sum(p.numel() for p in learn.model.head.parameters()),
             last_training_loss=mean(float(o) for o in learn.recorder.losses[-50:]))
    return {**r, **evaluate(learn.model, dls.valid)}

def trained(side, seed):
    "One training in a process of its own"
    r = in_process(f'{side}:{seed}')
    print(f"  {side}, seed {seed}: perplexity {r['fwd']:.1f} forward, {r['bwd']:.1f} backward; "
          f"{r['tokens_per_second']:,.0f} tokens/s", file=sys.stderr, flush=True)
    return r

def main(args):
    from elmo_fastai.practice.scores import interval
    runs = {s: [trained(s, seed) for seed in range(1 if s == 'plain' else args.seeds)]
            for s in args.sides}
    one = next(iter(runs.values()))[0]
    print(f"Tiny Shakespeare, {one['words']:,} words, {one['tokens']:,} tokens read, states of "
          f"{args.dim}, {args.negative:,} negatives, {args.threads} thread(s), "
          f"{'bfloat16' if one['bf16'] else 'fp32'}, {args.seeds} seed(s)")
    print(f"{'':10}{'forward':>9}{'backward':>10}{'mean':>8}{'ratio to full':>22}"
          f"{'tokens/s':>10}{'peak memory':>14}{'parameters':>12}")
    ratios = {}
    for s,rs in runs.items():
        if 'full' in runs:
            m,w = interval([r['mean']/f['mean'] for r,f in zip(rs, runs['full'])])
            ratios[s] = m, None if math.isnan(w) else w
            text = f'{m:.3f}' + ('' if math.isnan(w) else f' ± {w:.3f}')
        else: text = ''
        avg = {k: mean(r[k] for r in rs) for k in ('fwd', 'bwd', 'mean', 'tokens_per_second',
                                                   'peak_gb')}
        print(f"{s:10}{avg['fwd']:>9.1f}{avg['bwd']:>10.1f}{avg['mean']:>8.1f}{text:>22}"
              f"{avg['tokens_per_second']:>10,.0f}{avg['peak_gb']:>11.2f} GB"
              f"{rs[0]['parameters'] / 1e6:>10.2f} M")
    r = dict(options={k: v for k,v in vars(args).items() if k not in ('job', 'json')},
             ratio_to_full=ratios, runs=runs)
    print(json.dumps(r))
    write_figures(args.json, r)

if __name__ == '__main__':
    args = arguments()
    if args.job:
        side,seed = args.job.split(':')
        print(json.dumps(train(args, side, int(seed))))
    else: main(args)
