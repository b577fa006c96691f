"""What each step from the textbook's design to the library's is worth on one device: tokens a
second, and the share of the device's matrix speed.

    # on the processor, 10,000 words: some minutes
    python tests/benchmarks/scale.py
    # where a GPU is: 100,000 words, larger batches; memory as well
    python tests/benchmarks/scale.py --device cuda
    python tests/benchmarks/scale.py --quick             # does it work?

The steps, each added to those before:
loop               the recurrence in Python, time step after time step; every token encoded; a full
                   softmax in each direction; fp32
+ fused LSTM       the recurrence by cuDNN on a GPU, by oneDNN on a processor
+ equal tokens once   each distinct token of a batch encoded once, columns of padding cut off
+ adaptive softmax
+ bfloat16

The figures go to nbs/results/scale-cpu.json or scale-cuda.json, which the library page on scale
shows.
"""
import sys, tempfile, time
from statistics import median
from types import SimpleNamespace

from harness import RESULTS, opt, options, write_figures

STEPS = ['loop', '+ fused LSTM', '+ equal tokens once', '+ adaptive softmax', '+ bfloat16']

def arguments():
    return options(__doc__,
        device='cpu',
        vocab=opt(None, 'words in the output layer (default 10000, on a GPU 100000)', type=int),
        bs=opt(None, 'rows a batch (default 20, on a GPU 128)', type=int),
        seq_len=128,
        model=opt('medium', 'name of a configuration'),
        reps=opt(5, 'steps of each design that are timed'),
        quick=opt(False, 'one step of the tiny model, nothing is kept'),
        json=opt(None, 'file to write (default nbs/results/scale-DEVICE.json)'))

def get_batches(args, n):
    """Batches of chars [B, T, W], next and previous words, by the benchmark of a training step;
    and the name of the text"""
    import train_step
    train_step.BS, train_step.SEQ_LEN = args.bs, args.seq_len
    with tempfile.TemporaryDirectory() as tmp:
        own = SimpleNamespace(vocab=args.vocab, reps=n, steps=1, warmup=0,
                              batches=f'{tmp}/batches.npz')
        name = train_step.make_batches(own)
        return name, train_step.load_batches(own)

def make_model(args, step):
    "A model of the design number `step`"
    import torch
    from dataclasses import replace
    from elmo_fastai.bilm import BiLM, elmo_configs
    torch.manual_seed(42)
    # a limit makes it loop
    config = replace(elmo_configs[args.model], cutoffs=None if step >= 3 else (),
                     cell_clip=None if step >= 1 else 1e6)
    model = BiLM(config, args.vocab).to(args.device).train()
    model.chars.savings = step >= 2
    return model

def one_step(args, model, opt, batch, bf16):
    "Seconds of one training step"
    import torch
    start = time.perf_counter()
    with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=bf16):
        loss = torch.cat(model(*batch)).mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
    opt.step()
    loss.item()                                                    # makes a GPU finish
    return time.perf_counter() - start

def measure(args, step, batches):
    """Tokens a second of one design, its operations a second, the share of the matrix speed, and
    peak memory on a GPU"""
    import torch
    from pages import page
    step_operations = page('studies/cost').step_operations
    cuda,bf16 = args.device.startswith('cuda'),step >= 4
    model = make_model(args, step)
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    if cuda: torch.cuda.reset_peak_memory_stats()
    warm = 1 if args.quick else 2
    seconds = median([one_step(args, model, opt, b, bf16) for b in batches][warm:])
    tokens = median(int((b[0][..., 0] != 0).sum()) for b in batches)
    ops = sum(step_operations(model, *batches[-1]).values())
    res = dict(step=STEPS[step], tokens_per_second=tokens/seconds, operations_per_token=ops/tokens,
               operations_per_second=ops/seconds)
    if cuda: res['memory_gb'] = torch.cuda.max_memory_allocated()/1e9
    return res

def main(args):
    import torch
    from elmo_fastai.learner import bf16_is_fast
    from pages import page
    matrix_speed = page('studies/cost').matrix_speed
    cuda = args.device.startswith('cuda')
    if cuda and not torch.cuda.is_available():
        sys.exit('There is no GPU here that PyTorch can use: leave out --device to measure the '
                 'processor')
    if args.quick: args.model,args.vocab,args.bs,args.seq_len,args.reps = 'tiny',5000,4,16,1
    args.vocab = args.vocab or (100_000 if cuda else 10_000)
    args.bs = args.bs or (128 if cuda else 20)
    name,batches = get_batches(args, args.reps + (1 if args.quick else 2))
    batches = [tuple(o.to(args.device) for o in b) for b in batches]
    n = 512 if args.quick else 8192 if cuda else 2048
    peak = {False: matrix_speed(torch.float32, args.device, n),
            True: matrix_speed(torch.bfloat16, args.device, n) if cuda or bf16_is_fast('cpu')
            else None}
    device = (
        torch.cuda.get_device_name() if cuda else f'{torch.get_num_threads()} processor threads')
    print(f"{device}; model {args.model}, {args.vocab:,} words, {args.bs} × {args.seq_len} tokens "
          f"a step; {name}")
    rows = []
    for step in range(len(STEPS)):
        bf16 = step >= 4
        if peak[bf16] is None:
            print(f'{STEPS[step]:24}  not measured: no fast bfloat16 here')
            continue
        r = measure(args, step, batches)
        r['reached'] = r['operations_per_second']/peak[bf16]
        r['gain'] = r['tokens_per_second']/rows[-1]['tokens_per_second'] if rows else 1.
        rows.append(r)
        print(r, flush=True)
    res = dict(device=device, model=args.model, vocab=args.vocab, bs=args.bs, seq_len=args.seq_len,
               text=name, torch=torch.__version__,
               matrix_speed=dict(fp32=peak[False], bf16=peak[True]), rows=rows)
    usual = None if args.quick else RESULTS/f"scale-{'cuda' if cuda else 'cpu'}.json"
    write_figures(args.json or usual, res)

if __name__ == '__main__': main(arguments())
