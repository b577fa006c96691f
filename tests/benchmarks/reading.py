"""Speed and memory of reading: a million lines of text, a CSV of 100,000 reviews, JSON lines.

Two versions of the library read each file in turns, each time in a process of its own:
    python tests/benchmarks/reading.py FOLDER_OF_THE_EARLIER_VERSION .
"""
import json, os, random, statistics, subprocess, sys, tempfile
from pathlib import Path

READ = '''
import json, resource, sys, time
from elmo_fastai.text.sources import get_corpus
try: from elmo_fastai.data.buffered import Reader
except ImportError: from elmo_fastai.text.lines import Reader
how, file = sys.argv[1:]
if how == 'stream': import datasets
def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024
before = memory()
start = time.perf_counter()
if how == 'whole': n = sum(map(len, get_corpus(file).splits.values()))
else: n = sum(1 for row in Reader(file))
print(json.dumps(dict(seconds=time.perf_counter() - start, megabytes=memory() - before, n=n)))
'''

def write(folder):
    "Returns three files of random words"
    rng = random.Random(42)
    words = [''.join(rng.choices('etaoinshrdlu', k=rng.randint(2, 9))) for _ in range(5000)]
    texts = [' '.join(rng.choices(words, k=60)) for _ in range(2000)]
    with open(folder/'lines.txt', 'w') as f:
        for _ in range(1_000_000): f.write(f'{rng.choice(texts)[:60]}\n')
    with open(folder/'reviews.csv', 'w') as f:
        f.write('id,text,label\n')
        for i in range(100_000):
            f.write(f'{i},"{rng.choice(texts)}, he said: ""{i}""",{i % 2}\n')
    with open(folder/'rows.jsonl', 'w') as f:
        for i in range(150_000): f.write(json.dumps(dict(id=i, text=rng.choice(texts))) + '\n')
    return [folder/name for name in ('lines.txt', 'reviews.csv', 'rows.jsonl')]

def read(version, how, file):
    "Returns seconds, megabytes and the number of rows of one reading"
    env = os.environ | dict(PYTHONPATH=str(Path(version).resolve()), OMP_NUM_THREADS='1',
                            HF_DATASETS_CACHE=str(file.parent/'cache'))
    out = subprocess.run([sys.executable, '-c', READ, how, str(file)], env=env, cwd=file.parent,
                         capture_output=True, text=True)
    if out.returncode: sys.exit(out.stderr[-2000:])
    return json.loads(out.stdout)

def main(versions, times=3):
    with tempfile.TemporaryDirectory() as tmp:
        for file in write(Path(tmp)):
            for how in ('whole', 'stream'):
                if how == 'stream' and file.suffix == '.csv': continue   # the earlier one can't
                found = [[read(version, how, file) for version in versions] for _ in range(times)]
                rows = dict(file=file.name, how=how, n=[one['n'] for one in found[0]])
                for name in ('seconds', 'megabytes'):
                    middle = [statistics.median(one[name] for one in both) for both in zip(*found)]
                    rows[name] = [round(value, 2) for value in middle]
                rows['ratio'] = round(rows['seconds'][1]/rows['seconds'][0], 2)
                print(json.dumps(rows), flush=True)

if __name__ == '__main__': main(sys.argv[1:3])
