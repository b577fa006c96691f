"""Sentences a second of ELMo and of what one would take instead, in one run on one core.

    # ten minutes of processor time
    python tests/benchmarks/instead_speed.py --sentence-python PYTHON --tf-python PYTHON
    python tests/benchmarks/instead_speed.py --quick        # the small models, nothing is written

The first PYTHON has the sentence transformer's packages, the second simple-elmo's (see
instead_sides.py). Without one its rows are left out. A row is the whole way from sentences of
SST-2's dev part to labels, in batches of 32 and one by one: vectors, and a logistic regression on
them (the classifier has its own head).

- `counts`, `letters`, `box`, `box, classifier`, `minilm`: as in instead_sst2.py, with 100 labels
- `box bf16`: the box with weights in bfloat16
- `AI2 small`, `AI2 original`: random weights of the published sizes, written by `to_ai2`, in this
  library (also in bf16), and the same files in simple-elmo, which keeps one TensorFlow session

The sides take turns, each with one thread. The figures are processor time, medians of the turns;
the wall's are kept too. `fixture` compares simple-elmo's vectors with this library's for AI2's
published test files (ELMO_FASTAI_DATA/ai2_fixture).
"""
import json, os, shutil, tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
import numpy as np
from harness import RESULTS, opt, options, processor, write_figures
from instead_sides import Here, Side, one_core, size_of

# sentences a turn
SMALL = {name: 128 for name in ('counts', 'letters', 'box', 'box bf16', 'box, classifier',
                                'minilm')}
AI2 = dict(small=32, original=8)

def arguments():
    return options(__doc__,
        sentence_python=opt(None, "the Python that has the sentence transformer's packages"),
        tf_python=opt(None, 'the Python that has simple-elmo and TensorFlow'),
        data=opt(os.environ.get('ELMO_FASTAI_DATA'), 'folder with sst2 and ai2_fixture'),
        reps=opt(3, 'turns of each side'),
        single=opt(4, 'sentences a turn that come one by one'),
        core=opt(None, 'the core on which all run (default: none in particular)', type=int),
        quick=False,
        json=RESULTS/'instead_speed.json')

def write_ai2(folder, sizes):
    "Random weights of published sizes in AI2's format; the folder of each"
    from embed_speed import random_model
    from elmo_fastai.all import Elmo
    return {size: Elmo(random_model(size)).to_ai2(Path(folder)/size) for size in sizes}

def start_all(args, folders):
    "The sides by name, and how many sentences each has a turn"
    sides, many = {}, dict(SMALL)
    if not args.sentence_python: del many['minilm']
    for name in many:
        sides[name] = Side(name, python=args.sentence_python) if name == 'minilm' else Here(name)
    for size,folder in folders.items():
        sides[f'AI2 {size}'] = Here('box', folder)
        sides[f'AI2 {size} bf16'] = Here('box bf16', folder)
        if args.tf_python:
            sides[f'AI2 {size}, simple-elmo'] = Side('simple-elmo', folder, python=args.tf_python)
    return sides, {name: many.get(name) or AI2[name.split()[1].strip(',')] for name in sides}

def measure(args, sides, many, texts, labels):
    "Yields the rows after each turn"
    for name,side in sides.items():
        n = 100 if name in SMALL else 16
        side('fit', texts=texts['train'][:n], labels=labels[:n])
        side('predict', texts=texts['valid'][-many[name]:], bs=32)           # the warm-up
        side('singly', texts=texts['valid'][-2:])
    turns = {name: [] for name in sides}
    for rep in range(args.reps):
        for name,side in sides.items():
            n = many[name]
            places = [(rep*128 + i) % len(texts['valid']) for i in range(n)]
            some = [texts['valid'][i] for i in places]
            batches = side('predict', texts=some, bs=32)
            single = side('singly', texts=some[:args.single])
            turns[name].append(dict(rate={k: n/v for k,v in batches.items()},
                                    ms={k: 1000*median(s[k] for s in single) for k in batches}))
        print(rep, {name: round(t[-1]['rate']['cpu'], 1) for name,t in turns.items()}, flush=True)
        yield [summary(name, turns[name], many[name], side('about')) for name,side in sides.items()]

def summary(name, turns, n, about):
    "A row: medians of the turns"
    def middle(kind, clock): return median(t[kind][clock] for t in turns)
    found = [t['rate']['cpu'] for t in turns]
    return dict(side=name, sentences_per_second=middle('rate', 'cpu'), least=min(found),
                most=max(found), ms_for_one=middle('ms', 'cpu'),
                wall=dict(sentences_per_second=middle('rate', 'wall'),
                          ms_for_one=middle('ms', 'wall')), sentences=n, turns=len(turns),
                          about=about)

def fixture(args, folder):
    "How far simple-elmo's vectors are from ours, for AI2's test sentences"
    from elmo_fastai.all import Elmo
    sents = [text.split() for group in json.loads((folder/'sentences.json').read_text())
             for text in group]
    ours = Elmo.from_ai2(folder/'options.json', folder/'lm_weights.hdf5').embed(sents, 'all')
    def far(got, want):
        return max(float(np.abs(g - w).max()) for g,w in zip(got, want, strict=True))
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        # simple-elmo takes whatever HDF5 file comes first
        model = Path(tmp)/'model'
        model.mkdir()
        shutil.copy(folder/'options.json', model)
        shutil.copy(folder/'lm_weights.hdf5', model/'model.hdf5')
        whole, tens = (stack.enter_context(Side('simple-elmo', model, n, python=args.tf_python))
                       for n in (len(sents), 10))
        def ask(do='layers', side=whole, **request):
            side(do, sents=sents, out=f'{tmp}/v.npz', **request)
            with np.load(f'{tmp}/v.npz') as f: return [f[k] for k in f.files]
        mean = [v.mean(0) for v in ours]
        per_layer = ask('averages', kind='all')
        alike = [[float(np.dot(a.ravel(), b.ravel())/np.linalg.norm(a)/np.linalg.norm(b))
                  for a,b in ((g, w.mean(1)), (g[-1], w[-1].mean(0)))]
                  for g,w in zip(per_layer, ours)]
        single = ask('averages', kind='average')
        cosines = [float(np.dot(g, w.mean(0))/np.linalg.norm(g)/np.linalg.norm(w.mean(0)))
                   for g,w in zip(single, mean)]
        return dict(sentences=len(sents), tokens=sum(map(len, sents)),
                    size=max(float(np.abs(v).max()) for v in ours), all=far(ask(), ours),
                    top=far(ask(kind='top'), [v[-1] for v in ours]),
                    average=far(ask(kind='average'), mean), warm=far(ask(warmup=True), ours),
                    in_tens=far(ask(side=tens), ours),
                    sentence_cosine=dict(average=min(cosines), all=min(a for a,_ in alike),
                                         top_of_all=min(b for _,b in alike)))

def main(args):
    from sst2 import sst2
    from elmo_fastai.practice.folder import find_folder
    one_core(args.core)
    gold = sst2(Path(args.data)/'sst2' if args.data else None).gold
    # the file has one class after the other
    order = np.random.default_rng(0).permutation(len(gold['train']))
    texts = dict(train=[gold['train'][i].text for i in order],
                 valid=[row.text for row in gold['valid']])
    labels = [int(gold['train'][i].label) for i in order]
    for side,python in (('minilm', args.sentence_python), ('simple-elmo', args.tf_python)):
        if not python: print(f'{side} is left out: see --help')
    found = dict(processor=processor(), reps=args.reps, single=args.single,
                 box=size_of(find_folder('mini-en')))
    folder = Path(args.data)/'ai2_fixture' if args.data else None
    if args.tf_python and folder and folder.is_dir():
        found['fixture'] = fixture(args, folder)
        print(found['fixture'], flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        sides, many = start_all(args, {} if args.quick else write_ai2(tmp, AI2))
        for found['rows'] in measure(args, sides, many, texts, labels):
            if not args.quick: write_figures(args.json, found)
        for side in sides.values(): side.__exit__()
    for r in found['rows']:
        print(f"{r['side']:28}{r['sentences_per_second']:10,.1f} sentences a "
              f"second{r['ms_for_one']:9.2f} ms for one")
    return found

if __name__ == '__main__': main(arguments())
