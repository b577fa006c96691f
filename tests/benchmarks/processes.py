"""One process with all threads against several processes of one thread each: tokens a second in
training, on the same batches.

    python tests/benchmarks/processes.py                 # two cores: about two minutes
    python tests/benchmarks/processes.py --quick         # does it work?

The text is WikiText-2 from ELMO_FASTAI_DATA or ../shared/data, else the toy corpus. `--bs` is the
batch of all processes together.
"""
import json, os, subprocess, sys, time
from itertools import product
from harness import data_folder, environment, opt, options, write_figures

def arguments():
    return options(__doc__,
        models=opt('small,medium', 'names of configurations'),
        bs=opt('20,40', 'batch sizes'),
        seq_len=64,
        steps=opt(40, 'steps that are timed'),
        cores=opt(os.cpu_count(), 'threads of the one process, and number of processes', type=int),
        quick=opt(False, 'a few steps of the tiny model on the toy corpus'),
        json=opt(None, 'also write the figures to this file'),
        job=opt(hidden=True))

def job(spec):
    "Train some steps and print the tokens a second"
    from fastai.basics import Callback, CancelFitException, set_seed
    from elmo_fastai.bilm import elmo_configs
    from elmo_fastai.text.read import Corpus
    from elmo_fastai.text.corpora import toy_corpus, wikitext2
    from elmo_fastai.batches import ElmoDataLoaders
    from elmo_fastai.tokens import WordVocab
    from elmo_fastai.learner import bilm_learner
    from elmo_fastai.practice.processes import add_up, is_main, several_processes
    set_seed(42)
    vocab = None
    if spec['data']:
        full = wikitext2(spec['data'])
        vocab = WordVocab.build([l.split() for l in full.train])
        corpus = Corpus('wikitext2', dict(train=full.train[:6000], valid=full.valid[:50]), 'space')
    else: corpus = toy_corpus(n_train=4000, n_valid=50, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=spec['bs'], seq_len=spec['seq_len'],
                                      vocab=vocab, device='cpu')
    class Timed(Callback):
        order = 90
        def before_fit(self): self.tokens,self.step = 0,0
        def after_batch(self):
            self.step += 1
            if self.step == spec['warmup']: self.start = time.perf_counter()
            if self.step > spec['warmup']: self.tokens += int((self.xb[0][..., 0] != 0).sum())
            if self.step == spec['warmup'] + spec['steps']:
                self.seconds = time.perf_counter() - self.start
                raise CancelFitException()
    learn = bilm_learner(dls, elmo_configs[spec['model']])
    timed = Timed()
    with several_processes(learn), learn.no_bar(), learn.no_logging():
        learn.add_cb(timed)
        learn.fit(99, 1e-3)
        tokens = add_up([timed.tokens])[0]
    if is_main(): print(json.dumps(dict(tokens_per_second=tokens/timed.seconds)), flush=True)

def measure(spec, processes, threads):
    "The figures of `job` from `processes` new processes"
    start = ['-m', 'torch.distributed.run', '--nproc-per-node',
             str(processes)] if processes > 1 else []
    r = subprocess.run([sys.executable, *start, __file__, '--job', json.dumps(spec)],
                       env=environment(threads), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True)
    lines = [l for l in r.stdout.splitlines() if l.startswith('{')]
    if r.returncode or not lines: sys.exit(f'stopped with {r.returncode}:\n{r.stderr[-2000:]}')
    return json.loads(lines[-1])['tokens_per_second']

def main(args):
    data = None if args.quick else data_folder('wikitext-2')
    models = ['tiny'] if args.quick else args.models.split(',')
    sizes = [20] if args.quick else [int(o) for o in args.bs.split(',')]
    rows = []
    print(f"{'WikiText-2' if data else 'toy corpus'}, windows of {args.seq_len} tokens: tokens a "
          f"second of one process, of {args.cores} threads, and of {args.cores} processes")
    for model,bs in product(models, sizes):
        spec = dict(model=model, bs=bs, seq_len=args.seq_len, data=str(data) if data else None,
                    warmup=2 if args.quick else 8, steps=5 if args.quick else args.steps)
        one, threads, processes = (measure(spec, *o) for o in ((1, 1), (1, args.cores),
                                                               (args.cores, 1)))
        rows.append(dict(model=model, bs=bs, one=one, threads=threads, processes=processes,
                         ratio=processes/threads))
        print({k: round(v, 2) if type(v) is float else v for k,v in rows[-1].items()}, flush=True)
    write_figures(args.json, rows)

if __name__ == '__main__':
    args = arguments()
    if args.job: job(json.loads(args.job))
    else: main(args)
