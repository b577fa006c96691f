"""Sizes that repeat, and two directions that do not wait for each other: what they bring (the study of shapes).

    python tests/benchmarks/shapes.py                 # some eight minutes; leave the machine alone meanwhile
    python tests/benchmarks/shapes.py --quick         # does it work? nothing is kept
    python tests/benchmarks/shapes.py --table         # the figures that are there

Two kinds of training: the tiny biLM on sentences of the toy language, the small one on a stream of
WikiText-2 with 10,000 words. Six ways: all threads on each operation with the sizes as they come,
the same with few sizes, the two halves each on a thread of its own, the same with memory that is
kept from step to step, the same where one thread goes on alone while two are no faster (what
`bilm_learner` does), and one thread. Each way is a process of its own, and they take turns. The
first part compares new batches with the same batches once more, also with older instructions, and
has the last but one left out; the second puts a busy loop, or another training of the same way,
beside each, for some seconds before it is measured. Medians of the turns; tokens a second of
training steps, in bfloat16 where the processor is fast at it with these instructions.
"""
import argparse, json, math, os, subprocess, sys, time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
RESULTS = ROOT/'nbs'/'results'/'shapes.json'
WAYS = {'as they come': (), 'few sizes': ('sizes',), 'few sizes, two halves': ('sizes', 'halves'),
        'two halves, memory kept': ('sizes', 'halves', 'memory'),
        'two halves that follow the load': ('sizes', 'halves', 'memory', 'load'),
        'few sizes, one thread': ('sizes', 'one')}
FOLLOWS = 'two halves that follow the load'
WARM = 4.                                     # seconds under a load before it is measured
ISAS = {'its own': {}, 'AVX2, fp32': dict(ONEDNN_MAX_CPU_ISA='AVX2', ATEN_CPU_CAPABILITY='avx2')}
WORKS = {'tiny, toy sentences': 'toy', 'small, stream of WikiText-2': 'wiki'}

def loaders(work):
    from elmo_fastai.nn.bilm import ELMO_SMALL, ELMO_TINY
    from elmo_fastai.text.corpora import Corpus, toy_corpus, wikitext2
    from elmo_fastai.data.loaders import ElmoDataLoaders
    if work == 'toy':
        how = dict(kind='sentences', bs=96)
        return ElmoDataLoaders.from_corpus(toy_corpus(12_000), seed=42, device='cpu', **how), ELMO_TINY
    wiki = wikitext2()
    part = Corpus(wiki.name, dict(train=wiki.train[:6000], valid=wiki.valid[:300]), wiki.tokenizer)
    how = dict(kind='stream', bs=20, seq_len=64, max_vocab=10_000)
    return ElmoDataLoaders.from_corpus(part, seed=42, device='cpu', **how), ELMO_SMALL

def child(work, way, n_batches):
    "Answers each line on its input with (tokens a second on new batches, on the same again)"
    import torch
    from elmo_fastai.train.learner import bilm_learner, bilm_loss, bf16_is_fast
    from elmo_fastai.nn.shapes import _here, exact_shapes, keep_memory, two_threads
    if 'one' in way: torch.set_num_threads(1)
    dls, config = loaders(work)
    learn = bilm_learner(dls, config)
    learn.create_opt()
    model, half = learn.model.train(), bf16_is_fast('cpu')
    def step(batch):
        with torch.autocast('cpu', torch.bfloat16, enabled=half): loss = bilm_loss(model(*batch))
        loss.backward()
        learn.opt.step()
        learn.opt.zero_grad()
    def seconds(batches):
        start = time.perf_counter()
        for b in batches: step(b)
        return time.perf_counter() - start
    def endless():
        while True: yield from dls.train
    batches = endless()
    with ExitStack() as stack:
        if 'sizes' not in way: stack.enter_context(exact_shapes())
        if 'memory' in way: keep_memory()
        if 'load' not in way: _here.look = math.inf
        if 'halves' in way: stack.enter_context(two_threads())
        for _ in range(10): step(next(batches))
        print('ready', flush=True)
        for line in sys.stdin:
            end = time.perf_counter() + float(line)
            while time.perf_counter() < end: step(next(batches))
            some = [next(batches) for _ in range(n_batches)]
            n = sum(int((b[0][..., 0] != 0).sum()) for b in some)
            print(n/seconds(some), n/seconds(some), flush=True)

class Child:
    def __init__(self, work, way, n_batches=12, isa=()):
        cmd = [sys.executable, __file__, '--child', work, '--way', way, '--batches', str(n_batches)]
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, **dict(isa)}, stderr=subprocess.DEVNULL)
        self.p.stdout.readline()
    def ask(self, warm=0.): self.p.stdin.write(f'{warm}\n'); self.p.stdin.flush()
    def answer(self): return [float(o) for o in self.p.stdout.readline().split()]
    def run(self, *warm): self.ask(*warm); return self.answer()
    def end(self): self.p.kill(); self.p.wait()

def speed(turns):
    for isa,env in ISAS.items():
        for name,work in WORKS.items():
            children = {w: Child(work, w, isa=env) for w in WAYS if w != FOLLOWS}
            runs = [{w: c.run() for w,c in children.items()} for _ in range(turns)]
            for c in children.values(): c.end()
            for w in children:
                new, same = (median(r[w][i] for r in runs) for i in (0, 1))
                yield dict(work=name, isa=isa, way=w, new=new, same=same)

def load(turns, ways):
    for name,work in WORKS.items():
        for w in ways:
            one, two = (Child(work, w) for _ in range(2))
            alone, beside, both = [], [], []
            for _ in range(turns):
                alone.append(one.run(WARM)[0])
                loop = subprocess.Popen([sys.executable, '-c', 'while True: pass'])
                beside.append(one.run(WARM)[0])
                loop.kill()
                one.ask(WARM); two.ask(WARM)
                both += [one.answer()[0], two.answer()[0]]
            one.end(); two.end()
            for what,o in zip(('nothing', 'busy loop', 'another training'), (alone, beside, both)):
                yield dict(processor=processor(), work=name, way=w, beside=what, tokens=median(o))

def processor():
    lines = Path('/proc/cpuinfo').read_text().split('\n') if os.path.exists('/proc/cpuinfo') else []
    found = dict(l.split(':', 1) for l in lines if ':' in l)
    found = {k.strip(): v.strip() for k,v in found.items()}
    flags = [o for o in ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16') if o in found.get('flags', '').split()]
    name = found.get('model name', 'unknown')
    if 'cpu family' in found:                     # makers give different processors one name
        name += f" (family {found['cpu family']}, model {found['model']})"
    return f"{name}, {os.cpu_count()} cores, {', '.join(flags)}"

def show(res):
    import pandas as pd
    t = pd.DataFrame(res['speed'])
    t['ratio'] = t.new/t.same
    print(res['processor'], t.round(2).to_string(), sep='\n\n')
    if 'load' in res: print(pd.DataFrame(res['load']).round(0).to_string())

if __name__ == '__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--turns', type=int, default=5)
    p.add_argument('--quick', action='store_true')
    p.add_argument('--table', action='store_true')
    p.add_argument('--json', default=str(RESULTS))
    p.add_argument('--part', choices=['speed', 'load'], help='only this one; the other stays')
    p.add_argument('--ways', nargs='+', choices=WAYS, default=[*WAYS], help='of --part load')
    p.add_argument('--child', help=argparse.SUPPRESS)
    p.add_argument('--way', help=argparse.SUPPRESS)
    p.add_argument('--batches', type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    local = ROOT.parent/'shared'/'data'
    if not os.environ.get('ELMO_FASTAI_DATA') and local.is_dir(): os.environ['ELMO_FASTAI_DATA'] = str(local)
    if args.child: child(args.child, WAYS[args.way], args.batches)
    elif args.table: show(json.loads(Path(args.json).read_text(encoding='utf-8')))
    else:
        turns = 1 if args.quick else args.turns
        file = Path(args.json)
        res = json.loads(file.read_text(encoding='utf-8')) if args.part and file.exists() else {}
        def keep():
            if not args.quick: file.write_text(json.dumps(res, indent=1) + '\n', encoding='utf-8')
        if args.part != 'load': res |= dict(processor=processor(), turns=turns, speed=list(speed(turns)))
        if args.part != 'speed':                    # rows of other processors stay
            for row in load(turns, args.ways):      # each in the old one's place, also if stopped
                old = {k: v for k,v in row.items() if k != 'tokens'}
                kept = [r for r in res.get('load', []) if not old.items() <= r.items()]
                res['load'] = [*kept, row]
                keep()
        show(res)
        keep()
