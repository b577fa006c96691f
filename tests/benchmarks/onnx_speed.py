"""A model in ONNX Runtime against the same model in PyTorch, one thread each, in one run (library:
ONNX).

    python tests/benchmarks/onnx_speed.py                                # some five minutes
    python tests/benchmarks/onnx_speed.py --models mini-en --reps 3 --json F     # does it work?

The sides take turns on the same sentences of WikiText-2. A turn's figure is the mean over its
batches in processor time; medians of the turns are compared. Both sides' vectors must be equal to
1e-5 of their size. `start` is a new process, from nothing to the first vectors of the model in the
box, with all imports.
"""
import importlib.util, re, subprocess, sys, tempfile, time
from importlib.metadata import version
from pathlib import Path
from statistics import median
import numpy as np, onnxruntime, torch
from fastcore.script import call_parse
from harness import (
    RESULTS, environment, log, medians, processor, seconds, several, turns, write_figures)
from elmo_fastai.all import Elmo
from elmo_fastai.bilm import BiLM, ELMO_MEDIUM
from elmo_fastai.text.corpora import wikitext2
from learners import random_model

def medium():
    torch.manual_seed(42)
    return Elmo(BiLM(ELMO_MEDIUM, 0))

MODELS = {'mini-en': lambda: Elmo.from_pretrained('mini-en'),
          'medium': medium,                                         # its LSTMs are ONNX's operator
          'ai2 small': lambda: Elmo(random_model('small')),         # with limits, and so a loop
          'ai2 original': lambda: Elmo(random_model('original'))}

def sentences(least=5, most=60):
    lines = [line for line in wikitext2().valid if not line.startswith('=')]
    sents = [o.split() for line in lines for o in re.findall(r'.*?(?: \.(?: |$)|$)', line)]
    return [sent for sent in sents if least <= len(sent) <= most]

def session(file):
    o = onnxruntime.SessionOptions()
    o.intra_op_num_threads = o.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), o, providers=['CPUExecutionProvider'])

def measure(elmo, file, sents, bs, reps):
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
    tokens = sum(int((c[..., 0] != 0).sum()) for c in batches)/n
    return dict(bs=bs, tokens=tokens, difference=diff, **medians(times))

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
    code = START[side] + 'import time; print(time.process_time())'
    return float(subprocess.run([sys.executable, '-c', code, str(file)], env=environment(),
                                capture_output=True, text=True, check=True).stdout)

def installed(package):
    folder = Path(importlib.util.find_spec(package).origin).parent
    return sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())/1e6

@call_parse
def main(
    models:several(str)=tuple(MODELS),  # models to measure
    reps:int=7,                         # turns of each side
    json:Path=RESULTS/'onnx.json'       # file of the figures
):
    "Measure all models and write their figures"
    torch.set_num_threads(1)
    sents = sentences()
    found = dict(processor=processor(), rows=[], sizes=[],
                 versions={o: version(o) for o in ('torch', 'onnx', 'onnxruntime')},
                 installed={o: installed(o) for o in ('torch', 'onnxruntime')})
    with tempfile.TemporaryDirectory() as tmp:
        for name in models:
            elmo, file = MODELS[name]().eval(), Path(tmp)/'model.onnx'
            elmo.to_onnx(file)
            found['sizes'].append(dict(model=name, megabytes=file.stat().st_size/1e6))
            for bs in (1, 32):
                found['rows'].append(dict(model=name) | measure(elmo, file, sents, bs, reps))
                log(found['rows'][-1])
            if name == 'mini-en':
                found['start'] = {side: median(start(side, file) for _ in range(3))
                                  for side in START}
    write_figures(json, found)
