"""A model in ONNX Runtime against the same model in PyTorch, one thread each, in one run.

    # all models: some five minutes
    python tests/benchmarks/onnx_speed.py
    python tests/benchmarks/onnx_speed.py --models mini-en --reps 3      # does it work?
    # the figures of nbs/library/onnx.ipynb
    python tests/benchmarks/onnx_speed.py --json nbs/results/onnx.json

torch    `elmo(chars)` in inference mode: mixed vectors from char ids
onnx     the file that `elmo.to_onnx` writes, in ONNX Runtime on the CPU

Models: the one in the box; `medium`, whose LSTMs are ONNX's operator; AI2's shapes `small` and
`original`, whose projections and limits need a loop. All but the first
have random weights. The sides take turns on the same sentences; a turn's figure is the mean over
its batches, and medians of the turns are compared. What is counted is the
processor time of the one thread that works, so that a neighbour on the machine counts little. Both
sides' vectors must be equal to 1e-5 of their size. `start` is a new
process, from nothing to the first vectors of the model in the box, its processor time with all
imports; `installed` what lies on the disk.
"""
import importlib.util, platform, subprocess, sys, tempfile, time
from pathlib import Path
from statistics import median
import numpy as np, onnxruntime, torch
from embed_speed import random_model, sentences
from harness import (
    environment, medians, opt, options, processor, seconds, turns, versions, write_figures)
from elmo_fastai.all import Elmo
from elmo_fastai.bilm import BiLM, ELMO_MEDIUM

def original(size): return lambda: Elmo(random_model(size))
def medium():
    torch.manual_seed(42)
    return Elmo(BiLM(ELMO_MEDIUM, 0))
MODELS = {'mini-en': lambda: Elmo.from_pretrained('mini-en'), 'medium': medium,
          'ai2 small': original('small'), 'ai2 original': original('original')}

def arguments():
    return options(__doc__,
        models=opt([*MODELS], nargs='+', choices=MODELS),
        bs=opt([1, 32], 'sentences a batch', nargs='+'),
        reps=opt(7, 'turns of each side'),
        json=opt(None, 'also write the figures to this file'))

def session(file, threads=1):
    o = onnxruntime.SessionOptions()
    o.intra_op_num_threads = threads
    o.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), o, providers=['CPUExecutionProvider'])

def measure(name, elmo, file, sents, bs, reps):
    "One row of the table: milliseconds a batch"
    run, rng = session(file), np.random.default_rng(0)
    n = 16 if bs == 1 else 2
    picked = rng.permutation(len(sents))[:n*bs]
    batches = [elmo.to_chars([sents[i] for i in picked[k:k+bs]]) for k in range(0, n*bs, bs)]
    arrays = [c.int().numpy() for c in batches]
    def by_torch(i):
        with torch.inference_mode(): return elmo(batches[i])[0][0].numpy()
    def by_onnx(i): return run.run(['vectors'], {'chars': arrays[i]})[0]
    diff = 0.
    for i in range(n):                                     # the check, and the warm-up
        a, b = by_torch(i), by_onnx(i)
        diff = max(diff, float((np.abs(a - b)/np.maximum(1, np.abs(a))).max()))
    assert diff < 1e-5, f'the sides give different vectors: {diff}'
    def turn(f): return lambda rep: 1000/n*seconds(lambda: list(map(f, range(n))), time.thread_time)
    times = turns(dict(torch=turn(by_torch), onnx=turn(by_onnx)), reps)
    return dict(model=name, bs=bs, tokens=sum(int((c[..., 0] != 0).sum()) for c in batches)/n,
                difference=diff,
                **medians(times), all=times)

START = dict(torch='''
import torch; torch.set_num_threads(1)
from elmo_fastai.all import Elmo
elmo = Elmo.from_pretrained('mini-en')
with torch.inference_mode(): elmo(['She sat on the bank .'.split()])
''', onnx='''
import numpy as np, onnxruntime, sys
from elmo_fastai.tokens import ByteCharVocab
o = onnxruntime.SessionOptions(); o.intra_op_num_threads = o.inter_op_num_threads = 1
chars = ByteCharVocab().encode('She sat on the bank .'.split())[None].astype(np.int32)
onnxruntime.InferenceSession(sys.argv[1], o).run(None, {'chars': chars})
''')

def start(side, file):
    "Seconds of processor time from nothing to vectors"
    code = START[side] + 'import time; print(time.process_time())'
    return float(subprocess.run([sys.executable, '-c', code, str(file)], env=environment(threads=1),
                                capture_output=True, text=True, check=True).stdout)

def installed(package):
    "Megabytes of a package's folder"
    folder = Path(importlib.util.find_spec(package).origin).parent
    return sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())/1e6

def main():
    args = arguments()
    torch.set_num_threads(1)
    text, sents = sentences()
    rows, sizes = [], []
    with tempfile.TemporaryDirectory() as tmp:
        for name in args.models:
            elmo, file = MODELS[name]().eval(), Path(tmp)/'model.onnx'
            elmo.to_onnx(file)
            weights = sum(p.numel() for p in [*elmo.lm.chars.parameters(),
                                              *elmo.lm.lstm.parameters()])
            sizes.append(dict(model=name, parameters=weights, megabytes=file.stat().st_size/1e6))
            for bs in args.bs:
                rows.append(measure(name, elmo, file, sents, bs, args.reps))
                r = rows[-1]
                print(f"{name:13} bs {bs:3}  {r['tokens']:6.0f} tokens  torch {r['torch']:8.2f} "
                      f"ms  onnx {r['onnx']:8.2f} ms  {r['torch']/r['onnx']:.2f}x  diff "
                      f"{r['difference']:.1e}", flush=True)
            if name == 'mini-en':
                starts = {side: median(start(side, file) for _ in range(3)) for side in START}
    res = dict(text=text, processor=processor(), python=platform.python_version(),
               versions=versions('torch', 'onnx', 'onnxruntime'), rows=rows, sizes=sizes,
               installed={o: installed(o) for o in ('torch', 'onnxruntime')}, start=starts
               if 'mini-en' in args.models else None)
    print(sizes, res['installed'], res['start'], res['processor'], sep='\n')
    write_figures(args.json, res)

if __name__ == '__main__': main()
