"""How many threads to compute with, on a quiet machine and beside other programs: PyTorch's number,
one, and what the commands choose (`choose_threads`), in turns.

    python tests/benchmarks/threads.py                  # five minutes, on a quiet machine
    python tests/benchmarks/threads.py --json figures.json
    python tests/benchmarks/threads.py --loops 0 2 --reps 1 --seconds 1        # does it work?

Tokens per second of the clock: of a training of the tiny biLM in batches of 32 sentences, and of
`embed` with the same model, beside so many endless loops. The choice is made anew in each turn,
beside the loops. `share` is the choice's speed, as a share of the better of the two fixed numbers;
1/1.3, or .77, is the least that is good enough."""
import os, platform, subprocess, sys, time
from contextlib import contextmanager
from statistics import median

for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'): os.environ.pop(name, None)

from harness import medians, opt, options, processor, turns, versions, write_figures

LOOP = 'print(flush=True)\nwhile True: pass'

def arguments():
    return options(__doc__,
        loops=opt([0, 1, 2, 4], 'how many endless loops run beside it', nargs='+'),
        reps=opt(3, 'turns of each side'),
        seconds=opt(3., 'of training, and of embedding, in each turn'),
        json=opt(None, 'also write the figures to this file'))

@contextmanager
def beside(n):
    "Endless loops run beside the block, and have had a second to begin"
    command = [sys.executable, '-c', LOOP]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(n)]
    try:
        for loop in loops: loop.stdout.readline()
        time.sleep(1)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()

def speed(step, seconds):
    "Tokens per second of a function that returns how many tokens it has read"
    n = 0
    start = now = time.perf_counter()
    while now < start + seconds:
        n += step()
        now = time.perf_counter()
    return n/(now - start)

def steps():
    "{name: a function that computes once, and returns the number of tokens}"
    import torch
    from itertools import cycle
    from elmo_fastai.all import ELMO_TINY, Elmo, ElmoDataLoaders, toy_corpus
    from elmo_fastai.train.learner import bilm_loss
    corpus = toy_corpus(n_train=4000, n_valid=320, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=32, seed=0, device='cpu')
    model = ELMO_TINY.model(len(dls.vocab), dls.char_vocab).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = cycle(list(dls.train))
    def train():
        batch = next(batches)
        optimizer.zero_grad()
        bilm_loss(model(*batch)).backward()
        optimizer.step()
        return int((batch[1] != 0).sum())
    elmo = Elmo(ELMO_TINY.model(len(dls.vocab), dls.char_vocab), tokenizer='space').eval()
    def embed(): return sum(map(len, elmo.embed(corpus.valid)))
    return dict(train=train, embed=embed)

def main():
    args = arguments()
    import torch
    from elmo_fastai.base.processes import choose_threads
    usual = torch.get_num_threads()
    jobs = steps()
    def side(n):
        def measure(rep):
            torch.set_num_threads(usual)
            torch.set_num_threads(n or choose_threads(lambda message: None))
            found = {'threads': torch.get_num_threads()}
            for name,step in jobs.items():
                step()
                found[name] = speed(step, args.seconds)
            return found
        return measure
    sides = dict(usual=side(usual), one=side(1), chosen=side(None))
    rows = []
    for loops in args.loops:
        with beside(loops): found = turns(sides, args.reps)
        for job in jobs:
            tried = {name: [turn[job] for turn in rounds] for name,rounds in found.items()}
            speeds = medians(tried)
            row = dict(loops=loops, job=job, **speeds,
                       threads=median(turn['threads'] for turn in found['chosen']),
                       share=speeds['chosen']/max(speeds['usual'], speeds['one']))
            rows.append(row)
            print(f"{loops} loops, {job:<5}  {usual} threads {row['usual']:9,.0f}   "
                  f"1 thread {row['one']:9,.0f}   chosen ({row['threads']:.0f}) "
                  f"{row['chosen']:9,.0f}   share {row['share']:.2f}", flush=True)
    machine = dict(processor=processor(), cores=os.cpu_count(), usual=usual,
                   system=platform.platform())
    write_figures(args.json, dict(machine=machine, versions=versions('torch'), rows=rows))

if __name__ == '__main__': main()
