"""Few sizes, and letters side by side in memory: what `speed_up` brings (nbs/library/shapes.ipynb).

    python tests/benchmarks/shapes.py       # some fifteen minutes; leave the machine alone
    python tests/benchmarks/shapes.py --quick         # does it work? nothing is kept

Three trainings (the tiny biLM on sentences of the toy language, the small one on a stream of
WikiText-2 with 10,000 words and with all) and two kinds of embedding (the model in the box, a model
of AI2's small size with random weights). Four ways: the model as it is, with few sizes, with
letters side by side, with both (`speed_up`). Each way is a process of its own, and they take turns.
New batches are compared with the same batches once more. Medians of tokens a second; in bfloat16
where the processor is fast at it. The rows of each processor are kept.
"""

import os, sys
from pathlib import Path
from statistics import median
from harness import (RESULTS, Worker, answer, environment, opt, options,
                     processor as name_of_processor, read_figures, seconds, write_figures)

FIGURES = RESULTS/'shapes.json'
WAYS = {'as it is': (), 'few sizes': ('sizes',), 'letters side by side': ('letters',),
        'both': ('sizes', 'letters')}
ISAS = {'its own': {}, 'AVX2': dict(ONEDNN_MAX_CPU_ISA='AVX2', ATEN_CPU_CAPABILITY='avx2')}
WORKS = ['toy', 'WikiText-2, 10,000 words', 'WikiText-2', 'embedding, mini-en',
         "embedding, AI2's small size"]

def speed_up_by(model, way):
    "One of the two ideas of `speed_up`, both, or none"
    from elmo_fastai.nn import fast
    from elmo_fastai.nn.charcnn import CharCNN
    class FewSizes(CharCNN):
        def encode(self, chars): return super().encode(fast.pad_rows(chars))[:len(chars)]
    class SideBySide(CharCNN):
        def pool(self, conv, x): return fast.pool_letters(conv, x)
    if way == ('sizes', 'letters'): return fast.speed_up(model)
    for module in model.modules():
        if type(module) is CharCNN:
            if 'sizes' in way: module.__class__ = FewSizes
            if 'letters' in way: module.__class__ = SideBySide
        elif 'sizes' in way and type(module) in fast.FAST:
            module.__class__ = fast.FAST[type(module)]
    return model

def training(work, way):
    """A function that trains on so many new batches, then on the same again: (tokens a second of
    both)"""
    import torch
    from elmo_fastai.nn.bilm import ELMO_SMALL, ELMO_TINY
    from elmo_fastai.text.corpora import Corpus, toy_corpus, wikitext2
    from elmo_fastai.data.loaders import ElmoDataLoaders
    from elmo_fastai.train import learner
    learner.speed_up = lambda model: speed_up_by(model, way)
    if work == 'toy':
        config, corpus, how = ELMO_TINY, toy_corpus(12_000), dict(kind='sentences', bs=96)
    else:
        wiki = wikitext2()
        few = '10,000' in work
        train = wiki.train[:6000] if few else wiki.train
        config, corpus = (
            ELMO_SMALL,
            Corpus(wiki.name, dict(train=train, valid=wiki.valid[:300]), wiki.tokenizer))
        how = dict(kind='stream', bs=20, seq_len=64, max_vocab=10_000 if few else None)
    dls = ElmoDataLoaders.from_corpus(corpus, seed=42, device='cpu', **how)
    learn = learner.bilm_learner(dls, config)
    learn.create_opt()
    model, half = learn.model.train(), learner.bf16_is_fast('cpu')
    def step(batch):
        with torch.autocast('cpu', torch.bfloat16, enabled=half):
            loss = learner.bilm_loss(model(*batch))
        loss.backward()
        learn.opt.step()
        learn.opt.zero_grad()
    def endless():
        while True: yield from dls.train
    batches = endless()
    def turn(n):
        some = [next(batches) for _ in range(n)]
        tokens = sum(int((b[0][..., 0] != 0).sum()) for b in some)
        return [tokens/seconds(lambda: list(map(step, some))) for _ in range(2)]
    return turn

def embedding(work, way):
    "The same for sentences of WikiText-2"
    import re
    from elmo_fastai.text.corpora import wikitext2
    from elmo_fastai.elmo.module import Elmo
    lines = [l for l in wikitext2().train if not l.startswith('=')][:2000]
    sents = [o.split() for l in lines for o in re.findall(r'.*?(?: \.(?: |$)|$)', l)
             if 3 <= len(o.split()) <= 60]
    if 'mini-en' in work: elmo, size = Elmo.from_pretrained('mini-en'), 40
    else:
        from embed_speed import random_model
        elmo, size = Elmo(random_model('small')).eval(), 12
    speed_up_by(elmo, way)
    place = 0
    def turn(n):
        nonlocal place
        some = sents[place:place + size*n]
        place = (place + size*n) % (len(sents) - size*n)
        def rate():
            return sum(map(len, some))/seconds(lambda: elmo.embed(some, 'all', progress=False))
        return rate(), rate()
    return turn

def child(work, way):
    turn = (embedding if work.startswith('embedding') else training)(work, way)
    turn(8)
    answer(lambda line: turn(int(line)))

def measure(turns, n, works):
    for isa,isas in ISAS.items():
        for work in works:
            env = environment(**isas)
            children = {way: Worker('--child', work, '--way', way, env=env) for way in WAYS}
            runs = [{way: child(n) for way,child in children.items()} for _ in range(turns)]
            for child in children.values(): child.close()
            for way in WAYS:
                new, same = (median(r[way][i] for r in runs) for i in (0, 1))
                yield dict(processor=processor(), isa=isa, work=work, way=way, new=new, same=same)

def processor():
    lines = Path('/proc/cpuinfo').read_text().split('\n') if os.path.exists('/proc/cpuinfo') else []
    found = dict(l.split(':', 1) for l in lines if ':' in l)
    found = {k.strip(): v.strip() for k,v in found.items()}
    flags = [o for o in ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16')
             if o in found.get('flags', '').split()]
    name = name_of_processor()
    if 'cpu family' in found:                     # makers give different processors one name
        name += f" (family {found['cpu family']}, model {found['model']})"
    return f"{name}, {os.cpu_count()} cores, {', '.join(flags)}"

if __name__ == '__main__':
    args = options(__doc__,
        turns=7,
        works=opt(WORKS, nargs='+', choices=WORKS),
        quick=False,
        json=FIGURES,
        child=opt(hidden=True),
        way=opt(hidden=True))
    if args.child: child(args.child, WAYS[args.way]); sys.exit()
    kept = read_figures(args.json, {})
    for row in measure(1 if args.quick else args.turns, 2 if args.quick else 10, args.works):
        print(row, flush=True)
        same = {k: row[k] for k in ('processor', 'isa', 'work', 'way')}
        others = [r for r in kept.get('speed', []) if not same.items() <= r.items()]
        kept['speed'] = [*others, row]
        if not args.quick: write_figures(args.json, kept)
