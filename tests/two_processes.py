"""What two processes do together in test_distributed.py; one alone does the same, for comparison.
`python two_processes.py FOLDER` under torchrun; or `… OUT STEP SOURCE …`, see `go_on`"""

import atexit, json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path

import torch
from fastai.basics import Callback, set_seed

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.base.processes import (
    add_up, from_main, gather, is_main, main_first, main_says, n_processes, rank)
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.train.distributed import OwnRows, several_processes
from elmo_fastai.train import learner, script
from elmo_fastai.train.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.train.command import settings_for
from elmo_fastai.train.learner import TimeBudget, bilm_learner

NANO = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=16, hidden_dim=16,
                  norm=False)
CONFIGS = dict(
    exact=NANO, norm=replace(NANO, norm=True), dropout=replace(NANO, dropout=.4),
    adaptive=replace(NANO, softmax='adaptive', cutoffs=(20, 60, 200), div_value=2.),
    sampled=replace(NANO, softmax='sampled', n_negative=50))

class Watch(Callback):
    "Keeps the first gradient and what the loaders gave"
    order = 80
    def before_fit(self): self.grad,self.seen,self.rng = None,[],None
    def before_batch(self):
        if self.training: self.seen.append(len(self.xb[0]))
    def before_step(self):
        if self.grad is None:
            self.grad = {k.removeprefix('module.'): p.grad.clone()
                         for k, p in self.model.named_parameters() if p.grad is not None}
        self.rng = torch.rand(1).item()

def texts(kind, n_train=241):
    "241 sentences: the last batch has one row"
    corpus = toy_corpus(n_train=n_train, n_valid=41, n_test=1, n_unseen=1)
    return ElmoDataLoaders.from_corpus(
        corpus, kind=kind, bs=20, seed=3, device='cpu',
        **(dict(seq_len=16) if kind == 'stream' else {}))


def train(name, dls, epochs=2, lr=1e-2, cbs=()):
    "Losses, table, weights and the first gradient of a training"
    set_seed(1)
    watch = Watch()
    learn = bilm_learner(dls, CONFIGS[name], bf16=False, cbs=[watch, *cbs])
    learn.tokens_before = None
    with learn.no_bar(), learn.no_logging():
        with several_processes(learn): learn.fit_one_cycle(epochs, lr)
    assert type(learn.model) is BiLM and not any(
        isinstance(o, OwnRows) for dl in dls.loaders for o in dl.after_batch.fs)
    return learn, dict(
        losses=[float(o) for o in learn.recorder.losses],
        values=[[float(o) for o in r] for r in learn.recorder.values],
        weights=[p.double().norm().item() for p in learn.model.parameters()],
        buffers=[b.double().norm().item() for b in learn.model.buffers()],
        grad={k: v.flatten()[:50].tolist() for k, v in watch.grad.items()}, rows=watch.seen,
        rng=watch.rng, tokens=learn.throughput.tokens, names=list(learn.recorder.metric_names),
        stopped=learn.stopped and str(learn.stopped), evaluated=evaluate(learn.model, dls.valid))


class Hear(Callback):
    "One process alone is asked to stop"
    def after_step(self):
        if self.train_iter == 4 and rank() == n_processes()-1: os.kill(os.getpid(), signal.SIGTERM)

def written(folder):
    "203 numbered lines in one file, and the first 20 of them in another"
    lines = [f'w{i} and w{i%7} .\n' for i in range(203)]
    with main_first():
        if is_main():
            (Path(folder)/'lines').mkdir()
            for name,n in dict(train=203, valid=20).items():
                (Path(folder)/'lines'/f'{name}.txt').write_text(''.join(lines[:n]))
    return Path(folder)/'lines'

def streamed(folder):
    dls = stream_loaders(written(folder), buffer=50, tokenizer='space', bs=10, seed=1, device='cpu')
    dl = dls.train
    seen = []
    class Lines(Callback):
        def before_batch(self):
            if self.training: seen.extend(dl.char_vocab.decode(r[1:2])[0] for r in self.xb[0])
    _,r = train('exact', dls, epochs=1, cbs=[Lines()])
    return dict(r, seen=seen, n_tokens=dl.n_tokens)

class Kill(Callback):
    "All processes are killed at a step of the second epoch"
    order = 95                   # after the checkpoint
    def __init__(self, step): self.step = step
    def after_batch(self):
        if self.training and self.epoch == 1 and self.iter == self.step: os.kill(os.getpid(), signal.SIGKILL)

def go_on(out, step, sources):
    "Begin or go on with a training on each of some streams; write the weights"
    for i,source in enumerate(sources):
        run = Path(f'{out}-{i}.run')
        set_seed(1 + bool(checkpoints_in(run)))
        dls = stream_loaders(source, n_valid=25, buffer=30, tokenizer='space', bs=8, n_batches=8, device='cpu')
        learn = bilm_learner(dls, NANO, bf16=False, cbs=[Checkpoints(run, minutes=0)])
        if checkpoints_in(run): resume(learn, run)
        with learn.no_bar(), learn.no_logging(), learn.added_cbs([Kill(step)]*(step >= 0)):
            with several_processes(learn): learn.fit_one_cycle(3, 1e-2)
        if is_main(): torch.save([*learn.model.state_dict().values(), learn.recorder.losses], f'{out}-{i}')

def fails():
    def f(): raise CorpusError('nothing here')
    try: from_main(f)
    except CorpusError as e: return str(e)

class OwnPace:
    "A clock by which each process is in another hurry"
    def __init__(self): self.t = 0.
    def __call__(self): self.t += 1 + rank(); return self.t

class Fail(Callback):
    "The same mistake in each process"
    def before_step(self):
        if self.train_iter == 2: raise KeyError('on purpose')

def fails_while_training():
    "What a failed fit leaves behind in the learner"
    learn = bilm_learner(texts('sentences', 40), CONFIGS['norm'], bf16=False, cbs=Fail())
    before = sorted(callback.name for callback in learn.cbs)
    loaders = list(learn.dls.loaders)
    with learn.no_bar(), learn.no_logging():
        try:
            with several_processes(learn): learn.fit(1, 1e-2)
        except KeyError: pass
    return dict(failed=len(learn.recorder.losses), model=type(learn.model).__name__,
                patched=[name for name,module in learn.model.named_modules()
                         if 'total' in vars(module)],
                callbacks=sorted(callback.name for callback in learn.cbs) == before,
                loaders=learn.dls.loaders == loaders)

def decided():
    "What each process does where they would decide otherwise, each for itself"
    for module in (learner, script): module.bf16_is_fast = lambda device: is_main()
    torch.set_num_threads(2 - is_main())
    made = script.complete('toy', settings_for('toy', dict(device='cpu')))
    torch.set_num_threads(1)
    half = hasattr(bilm_learner(texts('sentences', 40), NANO), 'bf16')
    return [made.bf16, made.threads, made.sentences, half]

def everything(folder):
    res = {f'{name} {kind}': train(name, texts(kind))[1]
           for name, kind in (('exact', 'sentences'), ('exact', 'stream'), ('norm', 'sentences'),
                              ('adaptive', 'stream'), ('sampled', 'sentences'))}
    res['dropout'] = train('dropout', texts('sentences', 40), epochs=1)[1]
    res['signal'] = train('exact', texts('sentences'), cbs=[Hear()])[1]
    res['budget'] = train(
        'exact', texts('sentences'), epochs=TimeBudget.epochs, cbs=[TimeBudget(19, OwnPace())])[1]
    res['streamed'] = streamed(folder)
    res['failed'] = fails_while_training()
    res['says'] = [main_says(is_main()), main_says(not is_main())]
    res['gathered'],res['error'],res['sum'] = gather(dict(me=rank())),fails(),add_up([1, rank()])
    res['from_main'] = from_main(lambda: f'from {rank()}')
    with main_first(): res['main'] = is_main()
    res['decided'] = decided()
    return res

def threads_left(file):
    "The names of the threads that still run when the processes have taken leave (Linux)"
    # a thread takes a moment to end
    for _ in range(20):
        names = [o.read_text().strip() for o in Path('/proc/self/task').glob('*/comm')]
        if not any('gloo' in o for o in names): break
        time.sleep(.05)
    file.write_text(json.dumps(names))

if __name__ == '__main__':
    torch.set_num_threads(1)
    if len(sys.argv) > 2: go_on(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        # the first is called last
        atexit.register(threads_left, Path(sys.argv[1])/f'{rank()}.threads')
        res = everything(sys.argv[1])
        (Path(sys.argv[1])/f'{rank()}.json').write_text(json.dumps(res))
