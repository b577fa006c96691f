"""Memory while text is embedded: 100,000 tokens and 1,000,000, each in a process of its own, by its
highest resident size (library: Embedding text).

    python tests/benchmarks/embed_memory.py            # a minute and a half on one core
    python tests/benchmarks/embed_memory.py --job 'stream 1000000'

`stream` consumes `Elmo.embed_iter`, `file` is the job behind the command `elmo_embed` writing HDF5
(all layers), and `text` embeds *one* text of that many tokens, pooled. The model has the shape of
ELMO_TINY (or, with `--shape small`, of AI2's small one) without trained weights; the words follow
Zipf's law over 200,000 types, so that new ones keep coming.
"""
import json, tempfile, time
from harness import in_process, opt, options, peak_bytes

SMALL = dict(name='ai2-small', filters=((1,32), (2,32), (3,64), (4,128), (5,256), (6,512),
                                        (7,1024)), proj_dim=128, hidden_dim=1024, norm=False)
TINY = dict(name='tiny')

def sentences(n_tokens, seed=0):
    "Lists of words, a generator"
    import numpy as np
    rng, left = np.random.default_rng(seed), n_tokens
    while left > 0:
        n = min(left, int(rng.integers(5, 40)))
        yield [f'w{o}' for o in rng.zipf(1.2, n) % 200_000]
        left -= n

def one(kind, n_tokens, shape):
    "Peak memory in this process after the model is there, and at the end"
    import torch
    from elmo_fastai.nn.bilm import BiLM, BiLMConfig
    from elmo_fastai.elmo.module import Elmo
    from elmo_fastai.elmo.file import embed_file
    def peak(): return peak_bytes()/2**20
    torch.manual_seed(0)
    elmo = Elmo(BiLM(BiLMConfig(**shape), 0), tokenizer='space').eval()
    elmo.embed([['warm', 'up']])
    # the text itself does not count
    if kind == 'text': words = [w for s in sentences(n_tokens) for w in s]
    before, start = peak(), time.perf_counter()
    if kind == 'stream':
        for v in elmo.embed_iter(sentences(n_tokens)): pass
    elif kind == 'text': elmo.embed([words], pool='mean')
    else:
        with tempfile.TemporaryDirectory() as tmp:
            with open(f'{tmp}/in.txt', 'w') as f:
                f.writelines(' '.join(s) + '\n' for s in sentences(n_tokens))
            embed_file(f'{tmp}/in.txt', f'{tmp}/out.hdf5', elmo, dtype='float16',
                       say=lambda s: None)
    print(json.dumps(dict(kind=kind, tokens=n_tokens, before=round(before), peak=round(peak()),
                          seconds=round(time.perf_counter() - start, 1))))

def main():
    a = options(__doc__,
        job=opt(None, 'only one kind of one size, such as "stream 1000000"'),
        kinds='stream,file,text',
        tokens='100000,1000000',
        shape=opt('tiny', "the biLM's: ELMO_TINY's or AI2's small", choices=['tiny', 'small']))
    if a.job:
        kind, n = a.job.split()
        return one(kind, int(n), SMALL if a.shape == 'small' else TINY)
    print(f"{'':8}{'tokens':>12}{'MB before':>12}{'MB at most':>12}{'seconds':>10}")
    for kind in a.kinds.split(','):
        peaks = []
        for n in map(int, a.tokens.split(',')):
            r = in_process(f'{kind} {n}')
            print(f"{kind:8}{n:12,}{r['before']:12,}{r['peak']:12,}{r['seconds']:10,}", flush=True)
            peaks.append(r['peak'] - r['before'])
        print(f"{kind:8}{'grows by':>12}{peaks[-1] - peaks[0]:24,} MB")

if __name__ == '__main__': main()
