"""What the layers know, in figures: probes and neighbours on the built-in corpus and on English, their time, and the memory of a search (chapters 12, 12b).

    python tests/benchmarks/probe.py                 # all; some minutes on two cores
    python tests/benchmarks/probe.py --quick         # smaller everywhere
    python tests/benchmarks/probe.py --only toy      # or english, ud, time, memory

`toy` wants the model that `make pretrain` leaves in models/toy (or --toy FOLDER); `english` and `ud` take the model of the package (or --model FOLDER);
`ud` downloads the English Web Treebank, or takes it from the folder in ELMO_FASTAI_DATA. `memory` searches ten times as many occurrences in a process of its own.
"""
import argparse, json, os, resource, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ('toy', 'english', 'ud', 'time', 'memory')

def show(title, table): print(f'\n{title}  {table.attrs or ""}\n{table.round(3).to_string()}', flush=True)

def toy(folder, quick):
    "Senses and purity of a model of the built-in corpus; at the best layer 0.95 is asked"
    from elmo_fastai.all import Elmo, toy_corpus, purity, sense_probe, tag_probe
    if not folder.exists(): print(f"\nNo model in {folder}: say make pretrain, or name one with --toy"); return
    elmo = Elmo.from_pretrained(folder, tokenizer='space')
    gold = toy_corpus(n_train=12_000, n_valid=1_000 if quick else 2_000, n_test=0, n_unseen=0).gold
    train = gold['train'][:4_000 if quick else 12_000]
    show('toy: parts of speech', tag_probe(elmo, train, gold['valid'], seeds=1 if quick else 3))
    for how in ('mean', '1nn'): show(f'toy: senses, {how}', sense_probe(elmo, train, gold['valid'], how=how, seeds=1 if quick else 3))
    for k in (1, 3, 5): show(f'toy: purity of {k} neighbours', purity(elmo, train, k=k))

def english(elmo, quick):
    "Twelve words of English"
    from elmo_fastai.all import read_senses, sense_probe, purity, sense_pairs, pair_probe
    data = read_senses(ROOT/'nbs'/'data'/'senses_en.csv')
    for how in ('mean', '1nn'): show(f'English: senses, {how}', sense_probe(elmo, data, how=how, seeds=5 if quick else 20))
    show('English: purity of the nearest', purity(elmo, data, k=1))
    pairs = sense_pairs(data, 600)
    show('English: pairs', pair_probe(elmo, pairs[:300], pairs[300:]))

def ud(elmo, quick):
    from elmo_fastai.all import ud_ewt, tag_probe, word_probe, position_probe
    gold = ud_ewt().gold
    dev = gold['valid'][:300 if quick else None]
    for name,probe in (('parts of speech', tag_probe), ('words', word_probe), ('positions', position_probe)):
        show(f'treebank: {name}', probe(elmo, gold['train'], dev, seeds=1 if quick else 3, max_tokens=4_000 if quick else 20_000))

def timed(elmo, quick):
    "Seconds of each probe, 20,000 tokens to learn from, one seed; under a minute is asked"
    from elmo_fastai.all import toy_corpus, tag_probe, word_probe, position_probe, sense_probe, purity
    gold = toy_corpus(n_train=800 if quick else 3_000, n_valid=600, n_test=0, n_unseen=0).gold
    def run(f):
        start = time.perf_counter(); t = f(gold['train'], gold['valid'])
        return time.perf_counter() - start, t.attrs.get('train') or t.attrs.get('occurrences')
    for f in (tag_probe, word_probe, position_probe, sense_probe):
        s, n = run(lambda a, b: f(elmo, a, b, seeds=1, share=1.))
        print(f'{f.__name__:16} {n:7,} tokens {s:6.1f} s', flush=True)
    s, n = run(lambda a, b: purity(elmo, a)); print(f'{"purity":16} {n:7,} tokens {s:6.1f} s', flush=True)

def one(n, kind):
    "The highest memory of a search through `n` occurrences of one word"
    import torch
    from elmo_fastai.all import BiLM, BiLMConfig, Elmo, TokenIndex, nearest
    torch.manual_seed(0)
    elmo = Elmo(BiLM(BiLMConfig('tiny'), 0), tokenizer='space').eval()
    stream = (f'w{i} bank w{i*7919 % 50_000}'.split() for i in range(n))
    nearest(elmo, 'the bank', 'bank', ['a bank', 'one bank'], k=1)
    if kind == 'index': stream = TokenIndex(elmo, stream, block=16_384)
    start = time.perf_counter()
    nearest(elmo, 'the bank', 'bank', stream, k=5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024/(1024 if sys.platform == 'darwin' else 1)
    print(json.dumps(dict(mb=round(peak), seconds=round(time.perf_counter() - start, 1))))

def memory(quick):
    print(f"\n{'':8}{'occurrences':>12}{'MB at most':>12}{'seconds':>10}")
    for kind in ('stream', 'index'):
        for n in (2_000, 20_000) if quick else (20_000, 200_000):
            r = json.loads(subprocess.run([sys.executable, __file__, '--one', str(n), kind], check=True, capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': str(ROOT)}).stdout)
            print(f"{kind:8}{n:12,}{r['mb']:12,}{r['seconds']:10}", flush=True)

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--quick', action='store_true', help='smaller everywhere')
    p.add_argument('--only', choices=PARTS)
    p.add_argument('--model', default='tiny-en', help="a folder, or 'tiny-en', the package's own")
    p.add_argument('--toy', type=Path, default=ROOT/'models'/'toy', help='the folder that make pretrain leaves')
    p.add_argument('--one', nargs=2, metavar=('N', 'KIND'), help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.one: return one(int(a.one[0]), a.one[1])
    from elmo_fastai.elmo import Elmo
    wanted = [a.only] if a.only else PARTS
    elmo = Elmo.from_pretrained(a.model) if {'english', 'ud', 'time'} & {*wanted} else None
    for part in wanted:
        start = time.perf_counter()
        if part == 'toy': toy(a.toy, a.quick)
        elif part == 'memory': memory(a.quick)
        else: dict(english=english, ud=ud, time=timed)[part](elmo, a.quick)
        print(f'({part}: {time.perf_counter() - start:.0f} s)', flush=True)

if __name__ == '__main__': main()
