"""ELMo in a service under load: PyTorch against ONNX Runtime, its memory, and whether each thread
gets its own vectors.

    # all four parts: about an hour
    python tests/benchmarks/service.py
    python tests/benchmarks/service.py --only load --rounds 1 --seconds 1  # does it work?
    # the figures of nbs/library/service.ipynb
    python tests/benchmarks/service.py --json nbs/results/service.json

Needs `pip install fastapi uvicorn onnx onnxruntime psutil`, and the program wrk
(https://github.com/wg/wrk) for `load` and `memory`.

The service is service_app.py on the loopback interface, a process per variant: PyTorch or ONNX
Runtime; each request in a thread of the pool, or those that wait at the same time in one batch
(`Batches` of the page); one thread for the arithmetic or two.

load     wrk sends one text per request over 1, 4 and 16 connections and asks for its mean vector;
         the variants take turns. `cpu_ms` is the server's processor time per request: a neighbour
         on the machine counts little there, and much in requests per second and in latency.
memory   the resident memory of the process, up to 100,000 requests over 16 connections
threads  threads embed sentences that one thread embedded before, one by one. `wrong`: vectors with
         a number that is off by more than 1e-5. `control` compares each vector with that of another
         token: all must be wrong.
services the same, but the threads ask the services

`load` and `threads` use the model in the box, `memory` and `services` an untrained one of the size
`tiny`. The texts have 3 to 15 tokens, for `threads` and `services` 3 to 60, from WikiText-2 in
ELMO_FASTAI_DATA, else random words by Zipf's law.
"""

import base64, json, os, platform, random, re, shutil, socket, subprocess, sys, tempfile, time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from threading import local
import numpy as np, psutil, torch
from harness import (
    environment, opt, options, processor, read_figures, versions, write_figures)
from pages import page
from embed_speed import sentences
from onnx_speed import session
from elmo_fastai.all import Elmo
from elmo_fastai.bilm import BiLM, ELMO_TINY
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.tokens import ByteCharVocab

VARIANTS = [(side, batched, threads) for threads in (1, 2) for side in ('torch', 'onnx')
            for batched in (False, True)]
PARTS = 'load', 'threads', 'services', 'memory'
TOLERANCE = 1e-5
SCRIPT = '''
local bodies, i = {}, 0
for line in io.lines(os.getenv('BODIES')) do bodies[#bodies+1] = line end
wrk.method = 'POST'
wrk.headers['Content-Type'] = 'application/json'
function request()
    i = i % #bodies + 1
    return wrk.format(nil, nil, nil, bodies[i])
end
function done(summary, latency, requests)
    local e = summary.errors
    io.write(string.format('FOUND %d %d %d %d %d\\n', summary.requests, summary.duration,
        latency:percentile(50), latency:percentile(99),
                           e.connect + e.read + e.write + e.status + e.timeout))
end
'''

def arguments():
    return options(__doc__,
        only=opt(PARTS, nargs='+', choices=PARTS),
        rounds=opt(3, 'turns of each variant'),
        seconds=opt(5, 'of a turn'),
        requests=opt(100_000, 'of the part on memory'),
        vectors=opt(1_000_000, 'to compare, of one Elmo and again of the services'),
        json=opt(None, 'file to write; parts that are not measured stay in it'),
        serve=opt(None, 'be one of the services', nargs=4,
                  metavar=('SIDE', 'BATCHED', 'THREADS', 'PORT')),
        files=opt(None, 'what such a service loads', nargs=2, metavar=('MODEL', 'ONNX')))

# The services

class OnnxElmo:
    "`embed` of the model in the box by ONNX Runtime"
    def __init__(self, file, threads):
        self.session = session(file, threads)
        self.chars = ByteCharVocab()
    def embed(self, sents):
        lens = [len(tokens) for tokens in sents]
        chars = np.zeros((len(sents), max(lens), self.chars.max_chars), np.int32)
        for row,tokens in zip(chars, sents): row[:len(tokens)] = self.chars.encode(tokens)
        [vectors] = self.session.run(['vectors'], dict(chars=chars))
        return [v[:n] for v,n in zip(vectors, lens)]

def serve(side, batched, threads, port, model, onnx):
    import uvicorn
    from service_app import service
    torch.set_num_threads(int(threads))
    embed = (Elmo.from_pretrained(model).eval().embed if side == 'torch'
             else OnnxElmo(onnx, int(threads)).embed)
    if batched == 'True': embed = page('library/service').Batches(embed)
    uvicorn.run(service(embed, get_tokenizer('words')), host='127.0.0.1', port=int(port),
                log_level='warning', timeout_keep_alive=600)

class Service:
    "One variant in a process of its own"
    def __init__(self, side, batched, threads, files):
        self.settings = dict(side=side, batched=batched, threads=threads)
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            self.port = s.getsockname()[1]
        command = [sys.executable, __file__, '--serve', side, str(batched), str(threads),
                   str(self.port), '--files', *map(str, files)]
        self.process = subprocess.Popen(command, env=environment(threads))
        self.info = psutil.Process(self.process.pid)
    def wait(self):
        "Until it answers"
        for _ in range(600):
            assert self.process.poll() is None, f'{self.settings} did not start'
            try: return self.ask(HTTPConnection('127.0.0.1', self.port), [['one']])
            except OSError: time.sleep(.2)
        raise TimeoutError(f'{self.settings} did not start')
    def ask(self, connection, sents):
        "The vectors of the tokens of some sentences"
        body = json.dumps(dict(texts=[' '.join(tokens) for tokens in sents], base64=True))
        connection.request('POST', '/embed', body, {'Content-Type': 'application/json'})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (answer.status, text[:200])
        found = json.loads(text)
        assert found['tokens'] == sents
        return [np.frombuffer(base64.b64decode(v), np.float32).reshape(len(tokens), -1)
                for v,tokens in zip(found['vectors'], sents)]
    def seconds(self): return sum(self.info.cpu_times()[:2])
    def megabytes(self): return self.info.memory_info().rss/1e6
    def load(self, connections, seconds, bodies, script):
        "What wrk says: (requests, seconds, milliseconds at the 50th and the 99th percentile)"
        command = ['wrk', '-t1', f'-c{connections}', f'-d{seconds}s', '--timeout', '30s', '-s',
                   script, f'http://127.0.0.1:{self.port}/embed']
        text = subprocess.run(command, env={**os.environ, 'BODIES': str(bodies)},
                              capture_output=True, text=True, check=True).stdout
        n, micros, median, last, errors = map(int, re.search(r'FOUND (.*)', text)[1].split())
        assert n and not errors, text
        return n, micros/1e6, median/1000, last/1000
    def stop(self):
        self.process.terminate()
        self.process.wait(30)

def start(variants, files):
    services = [Service(*variant, files) for variant in variants]
    try:
        for s in services: s.wait()
    except BaseException:
        for s in services: s.stop()
        raise
    return services

# The parts

def splits_as_given(sents):
    "Sentences whose text the model's tokenizer splits into the same tokens"
    tokenize = get_tokenizer('words')
    return [s for s in sents if tokenize(' '.join(s)) == s]

def measure_load(args, files, bodies, script):
    "One row per variant and number of connections; medians over the rounds"
    services = start(VARIANTS, files)
    found = defaultdict(list)
    try:
        # the warm-up
        for s in services: s.load(4, 2, bodies, script)
        for _ in range(args.rounds):
            for connections in (1, 4, 16):
                for i,s in enumerate(services):
                    before = s.seconds()
                    n, seconds, p50, p99 = s.load(connections, args.seconds, bodies, script)
                    found[i, connections].append(dict(per_second=n/seconds, p50=p50, p99=p99,
                                                      cpu_ms=1000*(s.seconds() - before)/n,
                                                      requests=n))
                    print(s.settings, connections, found[i, connections][-1], flush=True)
    finally:
        for s in services: s.stop()
    rows = []
    for (i, connections),turns in sorted(found.items()):
        medians = {name: median(turn[name] for turn in turns) for name in turns[0]}
        rows.append(dict(services[i].settings, connections=connections, **medians, turns=turns))
    return rows

def measure_memory(args, files, bodies, script, save):
    "Megabytes of each variant by the number of requests"
    services = start([('torch', True, 1), ('onnx', False, 1), ('torch', False, 1)], files)
    rows = [dict(s.settings, requests=[0], megabytes=[s.megabytes()]) for s in services]
    pairs = [*zip(services, rows)]
    try:
        # the slowest one last
        for turns in (pairs[:2], pairs[2:]):
            while any(row['requests'][-1] < args.requests for _,row in turns):
                for s,row in turns:
                    if row['requests'][-1] >= args.requests: continue
                    n, seconds, *_ = s.load(16, 10, bodies, script)
                    row['requests'].append(row['requests'][-1] + n)
                    row['megabytes'].append(s.megabytes())
                    print(s.settings, row['requests'][-1], f"{row['megabytes'][-1]:.0f} MB, "
                                                           f"{n/seconds:.0f} per second",
                                                           flush=True)
                    save(rows)
    finally:
        for s in services: s.stop()

def compare(ask, ways, sents, wanted, n, n_threads=16, seed=0):
    """One row per way: vectors in all, wrong ones, the largest difference, and how many of the
    next token's are told apart"""
    rng = random.Random(seed)
    calls, tokens = [], 0
    while tokens < n:
        chosen = [rng.randrange(len(sents)) for _ in range(rng.choice([1, 1, 2, 4, 8, 16]))]
        calls.append((rng.choice(ways), chosen))
        tokens += sum(len(sents[i]) for i in chosen)
    def one(call):
        way, chosen = call
        found = np.concatenate(ask(way, [sents[i] for i in chosen]))
        right = np.concatenate([wanted[i] for i in chosen])
        off = np.abs(found - right).max(1)
        assert len(off) == len(right) and np.isfinite(off).all()
        others = np.abs(found[1:] - right[:-1]).max(1) > TOLERANCE
        same = (right[1:] == right[:-1]).all(1)
        return (way, len(off), int((off > TOLERANCE).sum()), float(off.max()), len(others),
                int((others | same).sum()))

    rows = {way: dict(way=way, calls=0, vectors=0, wrong=0, difference=0., control=0,
                      control_wrong=0) for way in ways}
    with ThreadPoolExecutor(n_threads) as pool:
        for way, n, wrong, difference, control, control_wrong in pool.map(one, calls):
            row = rows[way]
            row['calls'] += 1
            row['vectors'] += n
            row['wrong'] += wrong
            row['difference'] = max(row['difference'], difference)
            row['control'] += control
            row['control_wrong'] += control_wrong
    for row in rows.values(): print(row, flush=True)
    return [dict(row, threads=n_threads) for row in rows.values()]

def by_one_elmo(elmo):
    "Ways to use one model, by name"
    batches = page('library/service').Batches(elmo.embed)
    def forward(sents):
        with torch.no_grad(): [vectors], _ = elmo(sents)
        return [v[:len(tokens)].numpy() for v,tokens in zip(vectors, sents)]
    def pieces(sents): return elmo.embed(sents, budget=40)
    def layer_of_all(sents):
        return [elmo.mixes[0](list(torch.tensor(v))).detach().numpy()
                for v in elmo.embed(sents, layers='all')]

    return {'elmo.embed': elmo.embed, 'elmo.embed, in pieces': pieces,
            'elmo.embed, all layers, mixed afterwards': layer_of_all, 'elmo(sentences)': forward,
            'Batches': batches}

def references(model, n):
    "A model, sentences, and the vectors of each, embedded alone"
    sents = splits_as_given(sentences(3, 60)[1])[:n]
    elmo = Elmo.from_pretrained(model).eval()
    return elmo, sents, [elmo.embed([tokens])[0] for tokens in sents]

def measure_threads(args, files):
    "Rows for one Elmo in many threads"
    elmo, sents, wanted = references(files[0], 3000)
    ways = by_one_elmo(elmo)
    return compare(lambda way, some: ways[way](some), [*ways], sents, wanted, args.vectors)

def measure_services(args, files):
    "Rows for the services"
    elmo, sents, wanted = references(files[0], 2000)
    services = start([(side, batched, 1) for side in ('torch', 'onnx')
                      for batched in (False, True)], files)
    by_name = {f"{s.settings['side']}{', batched' if s.settings['batched'] else ''}": s
               for s in services}
    mine = local()
    def ask(way, some):
        connections = mine.__dict__.setdefault('connections', {})
        if way not in connections: connections[way] = HTTPConnection('127.0.0.1', by_name[way].port)
        return by_name[way].ask(connections[way], some)
    try: return compare(ask, [*by_name], sents, wanted, args.vectors)
    finally:
        for s in services: s.stop()

def light(folder):
    "The files of a small model without training"
    torch.manual_seed(42)
    return Elmo(BiLM(ELMO_TINY, 0)).eval().save_pretrained(folder)

def main():
    args = arguments()
    if args.serve: return serve(*args.serve, *args.files)
    torch.set_num_threads(1)
    res = read_figures(args.json, {}) if args.json else {}
    text, sents = sentences(3, 15)
    def write_bodies(path, sents):
        path.write_text(''.join(json.dumps(dict(texts=[' '.join(tokens)], mean=True)) + '\n'
                                for tokens in sents))
    def save(part, found):
        res[part] = found
        write_figures(args.json, res)
    res |= dict(text=text, processor=processor(), cores=len(os.sched_getaffinity(0)),
                python=platform.python_version(),
                versions=versions('torch', 'onnxruntime', 'fastapi', 'uvicorn'))
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        bodies, short, script = (tmp/name for name in ('bodies.jsonl', 'short.jsonl', 'wrk.lua'))
        boxed, small = ('mini-en', tmp/'boxed.onnx'), (light(tmp/'light'), tmp/'small.onnx')
        for model,onnx in (boxed, small): Elmo.from_pretrained(model).eval().to_onnx(onnx)
        write_bodies(bodies, sents)
        write_bodies(short, [tokens for tokens in sents if len(tokens) <= 6])
        script.write_text(SCRIPT)
        if {'load', 'memory'} & {*args.only}:
            assert shutil.which('wrk'), 'wrk is not installed: https://github.com/wg/wrk'
        if 'load' in args.only:
            rows = measure_load(args, boxed, bodies, script)
            save('load', dict(seconds=args.seconds, rounds=args.rounds,
                              tokens=float(np.mean([len(tokens) for tokens in sents])), rows=rows))
        if 'threads' in args.only: save('threads', measure_threads(args, boxed))
        if 'services' in args.only: save('services', measure_services(args, small))
        if 'memory' in args.only:
            measure_memory(args, small, short, script, lambda rows: save('memory', rows))

if __name__ == '__main__': main()
