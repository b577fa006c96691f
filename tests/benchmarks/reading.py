"""Speed and memory of reading: a million lines of text, a CSV of 100,000 reviews, JSON lines of 60 MB.

Versions of the library read each file in turns, each time in a process of its own:
    python tests/benchmarks/reading.py FOLDER_OF_ANOTHER_VERSION .
"""
import json, os, random, statistics, subprocess, sys, tempfile
from pathlib import Path

READ = '''
import json, resource, sys, time
from elmo_fastai.all import text_corpus
def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024
before, start = memory(), time.process_time()
n = sum(map(len, text_corpus(sys.argv[1], valid_pct=.05, test_pct=.05).splits.values()))
print(json.dumps(dict(seconds=time.process_time() - start, megabytes=memory() - before, n=n)))
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

def read(version, file):
    "Returns processor seconds, megabytes and the number of lines of one reading"
    env = os.environ | dict(PYTHONPATH=str(Path(version).resolve()), OMP_NUM_THREADS='1')
    out = subprocess.run([sys.executable, '-c', READ, str(file)], env=env, cwd=file.parent,
                         capture_output=True, text=True)
    if out.returncode: sys.exit(out.stderr[-2000:])
    return json.loads(out.stdout)

def main(versions, times=3):
    with tempfile.TemporaryDirectory() as tmp:
        for file in write(Path(tmp)):
            found = [[read(version, file) for version in versions] for _ in range(times)]
            rows = dict(file=file.name, n=[one['n'] for one in found[0]])
            for name in ('seconds', 'megabytes'):
                rows[name] = [round(statistics.median(one[name] for one in of_one), 2)
                              for of_one in zip(*found)]
            print(json.dumps(rows), flush=True)

if __name__ == '__main__': main(sys.argv[1:] or ['.'])
