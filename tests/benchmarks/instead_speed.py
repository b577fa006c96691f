"""Sentences a second of ELMo and of what one would take instead, in one run (study: When to use
ELMo, and when not).

    # ten minutes of processor time
    python tests/benchmarks/instead_speed.py --sentence-python PYTHON --tf-python PYTHON

The first PYTHON has the sentence transformer's packages, the second simple-elmo's (see
instead_sides.py); without one its rows are left out. A row is the whole way from sentences of
SST-2's dev part to labels; the sides take turns. `fixture` compares simple-elmo's vectors with this
library's for AI2's published test files (ELMO_FASTAI_DATA/ai2_fixture).
"""
import json, shutil, tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
import numpy as np
from fastcore.script import call_parse
from harness import RESULTS, log, processor, turns, write_figures
from instead_sides import Side, size_of
from elmo_fastai.all import Elmo
from elmo_fastai.practice.folder import find_folder
from elmo_fastai.text.corpora import local_copy
from sst2 import sst2
from learners import random_model

SMALL = 'counts', 'letters', 'box', 'box bf16', 'box, classifier', 'minilm'
AI2 = dict(small=32, original=8)           # sentences a turn; SMALL: 128

def start_all(sentence_python, tf_python, folder):
    sides, many = {}, {}
    for name in SMALL:
        if name == 'minilm' and not sentence_python: continue
        python = sentence_python if name == 'minilm' else None
        args = ['box', 'mini-en', 'bf16'] if name == 'box bf16' else [name]
        sides[name], many[name] = Side(*args, python=python), 128
    for size in AI2:
        written = Elmo(random_model(size)).to_ai2(Path(folder)/size)
        new = {f'AI2 {size}': Side('box', written),
               f'AI2 {size} bf16': Side('box', written, 'bf16')}
        if tf_python:
            new[f'AI2 {size}, simple-elmo'] = Side('simple-elmo', written, python=tf_python)
        sides |= new
        many |= dict.fromkeys(new, AI2[size])
    return sides, many

def measure(sides, many, reps, texts, labels, single=4):
    for name,side in sides.items():
        n = 100 if name in SMALL else 16
        side('fit', texts=texts['train'][:n], labels=labels[:n])
        side('predict', texts=texts['valid'][-many[name]:], bs=32)           # the warm-up
        side('predict', texts=texts['valid'][-1:], bs=1)
    def turn(rep, name):
        "Sentences a second in batches, and milliseconds of one that comes alone"
        side, n = sides[name], many[name]
        some = [texts['valid'][(rep*128 + i) % len(texts['valid'])] for i in range(n)]
        rate = n/side('predict', texts=some, bs=32)
        return rate, 1000*median(side('predict', texts=[o], bs=1) for o in some[:single])
    found = turns({name: partial(turn, name=name) for name in sides}, reps)
    rows = []
    for name,side in sides.items():
        rates, ms = zip(*found[name])
        rows.append(dict(side=name, sentences_per_second=median(rates), least=min(rates),
                         most=max(rates), ms_for_one=median(ms), about=side('about')))
    return rows

def fixture(folder, tf_python):
    sents = [text.split() for group in json.loads((folder/'sentences.json').read_text())
             for text in group]
    ours = Elmo.from_ai2(folder/'options.json', folder/'lm_weights.hdf5').embed(sents, 'all')
    mean = [v.mean(0) for v in ours]
    def far(got, want):
        return max(float(np.abs(g - w).max()) for g,w in zip(got, want, strict=True))
    def cosine(a, b):
        a, b = a.ravel(), b.ravel()
        return float(a @ b/np.linalg.norm(a)/np.linalg.norm(b))
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        # simple-elmo takes whatever HDF5 file comes first
        model = Path(tmp)/'model'
        model.mkdir()
        shutil.copy(folder/'options.json', model)
        shutil.copy(folder/'lm_weights.hdf5', model/'model.hdf5')
        whole, tens = (stack.enter_context(Side('simple-elmo', model, n, python=tf_python))
                       for n in (len(sents), 10))
        def ask(do='layers', side=whole, **request):
            side(do, sents=sents, out=f'{tmp}/v.npz', **request)
            with np.load(f'{tmp}/v.npz') as f: return [f[k] for k in f.files]
        single = ask('averages', kind='average')
        return dict(size=max(float(np.abs(v).max()) for v in ours), all=far(ask(), ours),
                    top=far(ask(kind='top'), [v[-1] for v in ours]),
                    average=far(ask(kind='average'), mean), warm=far(ask(warmup=True), ours),
                    in_tens=far(ask(side=tens), ours),
                    sentence_cosine=min(cosine(g, w.mean(0)) for g,w in zip(single, mean)))

@call_parse
def main(
    sentence_python:str=None,                # the Python that has the sentence transformer
    tf_python:str=None,                      # the Python that has simple-elmo and TensorFlow
    reps:int=3,                              # turns of each side
    json:Path=RESULTS/'instead_speed.json'   # file of the figures
):
    "Measure all sides and write their figures"
    gold = sst2().gold
    # the file has one class after the other
    order = np.random.default_rng(0).permutation(len(gold['train']))
    texts = dict(train=[gold['train'][i].text for i in order],
                 valid=[row.text for row in gold['valid']])
    labels = [int(gold['train'][i].label) for i in order]
    found = dict(processor=processor(), box=size_of(find_folder('mini-en')))
    if tf_python and (folder := local_copy('ai2_fixture')):
        found['fixture'] = fixture(folder, tf_python)
    with tempfile.TemporaryDirectory() as tmp:
        sides, many = start_all(sentence_python, tf_python, tmp)
        found['rows'] = measure(sides, many, reps, texts, labels)
        for side in sides.values(): side.__exit__()
    for row in found['rows']: log(row)
    write_figures(json, found)
