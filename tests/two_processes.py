"""What two processes do together in test_processes.py; one alone does the same, for comparison.
`python two_processes.py FOLDER` under torchrun; or `… OUT STEP SOURCE …`, see `go_on`"""
import atexit, json, os, signal, sys, time
from dataclasses import replace
from pathlib import Path

import torch
from fastai.basics import Callback, set_seed
from fastai.callback.all import GradientAccumulation

from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import evaluate, CarryState, bilm_learner
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.practice.checkpoint import Checkpoints, checkpoints_in, resume
from elmo_fastai.practice.processes import (
    OwnRows, add_up, from_main, gather, is_main, rank_distrib, several_processes)
from elmo_fastai.practice.streams import stream_loaders

NANO = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8), (3, 8)), proj_dim=16, hidden_dim=16,
                  norm=False)
CONFIGS = dict(exact=NANO, norm=replace(NANO, norm=True), dropout=replace(NANO, dropout=.4),
               adaptive=replace(NANO, softmax='adaptive', cutoffs=(20, 60, 200), div_value=2.),
               sampled=replace(NANO, softmax='sampled', n_negative=50))

class Watch(Callback):
    "Keeps the first gradient, the rows of each batch, and a random number of the last step"
    order = 80
    def before_fit(self): self.grad, self.rows, self.rng = None, [], None
    def before_batch(self):
        if self.training: self.rows.append(len(self.xb[0]))
    def before_step(self):
        if self.grad is None:
            self.grad = {name: weight.grad.flatten()[:50].tolist() for name,weight
                         in self.model.named_parameters() if weight.grad is not None}
        self.rng = torch.rand(1).item()

def texts(kind, n_train=241):
    "241 sentences: the last batch has one row"
    corpus = toy_corpus(n_train=n_train, n_valid=41, n_test=1, n_unseen=1)
    sizes = dict(seq_len=16) if kind == 'stream' else {}
    return ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=20, seed=3, device='cpu', **sizes)

def train(name, dls, epochs=2, lr=1e-2, cbs=()):
    "Losses, table, weights and the first gradient of a training"
    set_seed(1)
    watch = Watch()
    learn = bilm_learner(dls, CONFIGS[name], bf16=False, cbs=[watch, *cbs])
    with learn.no_bar(), learn.no_logging(), several_processes(learn):
        learn.fit_one_cycle(epochs, lr)
    assert not any(isinstance(tfm, OwnRows) for dl in dls.loaders for tfm in dl.after_batch.fs)
    return dict(
        losses=[float(loss) for loss in learn.recorder.losses], grad=watch.grad, rows=watch.rows,
        values=[[float(value) for value in row] for row in learn.recorder.values], rng=watch.rng,
        weights=[weight.double().norm().item() for weight in learn.model.parameters()],
        buffers=[buffer.double().norm().item() for buffer in learn.model.buffers()],
        tokens=learn.throughput.tokens, evaluated=[*evaluate(learn.model, dls.valid).values()][:2])

def streamed(folder):
    "203 numbered lines"
    def write():
        lines = [f'w{i} and w{i%7} .\n' for i in range(203)]
        (folder/'lines').mkdir()
        for name,n in dict(train=203, valid=20).items():
            (folder/'lines'/f'{name}.txt').write_text(''.join(lines[:n]))
    from_main(write)
    dls = stream_loaders(folder/'lines', buffer=50, tokenizer='space', bs=10, seed=1, device='cpu')
    seen = []
    class Lines(Callback):
        def before_batch(self):
            if self.training: seen.extend(dls.char_vocab.decode(row[1:2])[0] for row in self.xb[0])
    return train('exact', dls, epochs=1, cbs=[Lines()]) | dict(seen=seen)

class OwnPace:
    "A clock by which each process is in another hurry"
    t = 0.
    def __call__(self):
        self.t += 1 + rank_distrib()
        return self.t

class Fail(Callback):
    "The same mistake in each process"
    def before_step(self):
        if self.train_iter == 2: raise KeyError('on purpose')

def fails():
    "What a failed fit leaves behind in the learner, and the error of the main process"
    learn = bilm_learner(texts('sentences', 40), CONFIGS['norm'], bf16=False, cbs=Fail())
    before, loaders = sorted(cb.name for cb in learn.cbs), list(learn.dls.loaders)
    try:
        with learn.no_bar(), learn.no_logging(), several_processes(learn): learn.fit(1, 1e-2)
    except KeyError: pass
    left = [name for name,part in learn.model.named_modules() if 'total' in vars(part)]
    def f(): raise CorpusError('nothing here')
    try: from_main(f)
    except CorpusError as e:
        names = sorted(cb.name for cb in learn.cbs)
        return [left, names == before, learn.dls.loaders == loaders, str(e)]

def everything(folder):
    found = {f'{name} {kind}': train(name, texts(kind)) for name,kind in (
        ('exact', 'sentences'), ('exact', 'stream'), ('norm', 'sentences'), ('adaptive', 'stream'),
        ('sampled', 'sentences'))}
    found['dropout'] = train('dropout', texts('sentences', 40), epochs=1)
    found['accumulated'] = train('exact', texts('sentences'), cbs=[GradientAccumulation(40)])
    found['budget'] = train('exact', texts('sentences'), 999, cbs=[TimeBudget(19, OwnPace())])
    found['streamed'] = streamed(folder)
    found['failed'] = fails()
    found['told'] = [gather(rank_distrib()), add_up([1, rank_distrib()]), from_main(rank_distrib)]
    return found

class Kill(Callback):
    "All processes are killed at a step of the second epoch, after the checkpoint"
    order = 95
    def __init__(self, step): self.step = step
    def after_batch(self):
        if self.training and self.epoch == 1 and self.iter == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

def go_on(out, step, sources):
    "Begin or go on with a training on each of some streams; write the weights"
    for i,source in enumerate(sources):
        run = Path(f'{out}-{i}.run')
        is_again = bool(from_main(lambda: checkpoints_in(run)))
        set_seed(1 + is_again)
        if source == 'carried': dls = texts('stream', 120)
        else: dls = stream_loaders(source, n_valid=25, buffer=30, tokenizer='space', bs=8,
                                   n_batches=8, device='cpu')
        carry = [CarryState()] if source == 'carried' else []
        learn = bilm_learner(dls, NANO, bf16=False, cbs=[Checkpoints(run, minutes=0), *carry])
        if is_again: resume(learn, run)
        with learn.no_bar(), learn.no_logging(), learn.added_cbs([Kill(step)]*(step >= 0)):
            with several_processes(learn): learn.fit_one_cycle(3, 1e-2)
        losses = [float(loss) for loss in learn.recorder.losses]
        if is_main(): torch.save([*learn.model.state_dict().values(), losses], f'{out}-{i}')

def threads_left(file):
    "The names of the threads that still run when the processes have taken leave (Linux)"
    for _ in range(20):                                    # a thread takes a moment to end
        names = [path.read_text().strip() for path in Path('/proc/self/task').glob('*/comm')]
        if not any('gloo' in name for name in names): break
        time.sleep(.05)
    file.write_text(json.dumps(names))

if __name__ == '__main__':
    torch.set_num_threads(1)
    if len(sys.argv) > 2: go_on(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        folder = Path(sys.argv[1])
        # the first is called last
        atexit.register(threads_left, folder/f'{rank_distrib()}.threads')
        (folder/f'{rank_distrib()}.json').write_text(json.dumps(everything(folder)))
