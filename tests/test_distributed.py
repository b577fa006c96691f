"Several processes make one training; alone nothing changes"
import json, os, subprocess, sys
from pathlib import Path

import pytest, torch

from elmo_fastai.train import distributed as scale
from elmo_fastai.base.processes import (
    add_up, from_main, gather, is_main, main_first, main_says, n_processes, own_device, rank)
from elmo_fastai.nn.charcnn import TokenNorm
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.train.distributed import OwnRows, several_processes
from elmo_fastai.train.learner import bilm_learner

sys.path.insert(0, str(Path(__file__).parent))
import two_processes as job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
TABLE = ['epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']

def launch(folder, *args, n=2, timeout=600):
    env = {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': os.pathsep.join([
        str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])])}
    cmd = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node',
           str(n), str(ROOT/'tests'/'two_processes.py'), str(folder), *args]
    return subprocess.run(cmd, env=env, capture_output=True, text=True, timeout=timeout)

@pytest.fixture(scope='module')
def two(tmp_path_factory):
    "What each of two processes has seen"
    folder = tmp_path_factory.mktemp('two')
    r = launch(folder)
    assert r.returncode == 0, r.stderr[-4000:]
    assert 'Traceback' not in r.stderr and 'destroy_process_group' not in r.stderr
    left = [json.loads((folder/f'{i}.threads').read_text()) for i in range(2)]
    return [dict(json.loads((folder/f'{i}.json').read_text()), threads=left[i]) for i in range(2)]

@pytest.fixture(scope='module')
def one():
    kinds = dict(exact=('sentences', 'stream'), norm=['sentences'], adaptive=['stream'])
    return {f'{name} {kind}': job.train(name, job.texts(kind))[1]
            for name,some in kinds.items() for kind in some}

def close(a, b, rel=1e-4): assert a == pytest.approx(b, rel=rel, abs=1e-6)

@pytest.mark.slow
@pytest.mark.parametrize('which', ['exact sentences', 'exact stream', 'adaptive stream'])
def test_two_processes_are_one(one, two, which):
    """Without dropout and normalisation: the same losses, gradients, metrics and weights, also with
    a last batch of one row"""
    a,b = one[which],two[0][which]
    close(b['losses'][:3], a['losses'][:3], 1e-5)
    for k in a['grad']: assert b['grad'][k] == pytest.approx(a['grad'][k], rel=1e-3, abs=1e-7), k
    close(b['losses'], a['losses'], 1e-3)
    close(sum(b['values'], []), sum(a['values'], []), 1e-3)
    close(b['weights'], a['weights'], 1e-3)
    assert b['names'] == a['names'] == TABLE and len(b['losses']) == len(a['losses'])

@pytest.mark.parametrize('which', [
    'exact sentences', 'exact stream', 'norm sentences', 'adaptive stream', 'sampled sentences',
    'dropout', 'budget', 'streamed'])
def test_processes_agree_bit_for_bit(two, which):
    for k in ('losses', 'values', 'weights', 'buffers', 'stopped', 'evaluated', 'tokens', 'names'):
        assert two[0][which][k] == two[1][which][k], k

@pytest.mark.skipif(sys.platform != 'linux', reason='threads have names in /proc on Linux alone')
def test_no_thread_of_gloo_outlives_the_group(two):
    "One that wants something of Python while it ends would abort the process"
    for o in two: assert o['threads'] and not [t for t in o['threads'] if 'gloo' in t], o['threads']

@pytest.mark.parametrize('which', [
    'exact sentences', 'exact stream', 'norm sentences', 'adaptive stream', 'sampled sentences',
    'streamed'])
def test_validation_is_exact(two, which):
    "The table's perplexities are those of `evaluate` in one process on the whole validation set"
    for r in two:
        last = dict(zip(r[which]['names'][1:], r[which]['values'][-1]))
        close([last['perplexity_fwd'], last['perplexity_bwd']],
              [r[which]['evaluated'][k] for k in ('fwd', 'bwd')], 1e-5)

def test_normalisation_is_shared(one, two):
    a,b = one['norm sentences'],two[0]['norm sentences']
    close(b['losses'][0], a['losses'][0], 1e-5)
    # the projection's bias has no gradient but rounding
    small = max(abs(o) for v in a['grad'].values() for o in v)*1e-4
    for k in a['grad']: assert b['grad'][k] == pytest.approx(a['grad'][k], rel=1e-3, abs=small), k
    close(b['losses'][-1], a['losses'][-1], .05)
    close(b['values'][-1][1], a['values'][-1][1], .05)

def test_rows_are_dealt(one, two):
    "Equal numbers of batches; every row once"
    a,(b,c) = one['exact sentences'],[o['exact sentences'] for o in two]
    assert len(b['rows']) == len(c['rows']) == len(a['rows'])
    # company in the last batch of each of two epochs
    assert sum(b['rows']) + sum(c['rows']) == sum(a['rows']) + 2
    assert [len(o['exact stream']['rows']) for o in two] == [len(one['exact stream']['rows'])]*2

def test_the_main_process_says_how_late_it_is(two):
    "By its clock there is time for 18 steps, and one epoch's end"
    assert len(two[0]['budget']['losses']) == 18 and len(two[0]['budget']['values']) == 2

def test_dropout_differs(two): assert two[0]['dropout']['rng'] != two[1]['dropout']['rng']

def test_a_sampled_loss_is_called_so(two):
    assert all('sampled_loss' in o['sampled sentences']['names'] for o in two)

def test_blocks_of_lines_are_dealt(two):
    "Each process reads lines of its own, and together all of them"
    a,b = (o['streamed']['seen'] for o in two)
    # a batch at the end may belong to the next epoch
    assert not set(a) & set(b) and len(set(a) | set(b)) >= 200
    rows, others = (process['streamed']['rows'] for process in two)
    assert rows and len(rows) == len(others) and max(rows) == 5

def test_one_signal_stops_all(two):
    a,b = (o['signal'] for o in two)
    assert a['stopped'] and b['stopped'] and 'interrupted' in a['stopped']
    assert (len(a['rows']) == len(b['rows']) and 5 <= len(a['rows']) <= 7
            and a['weights'] == b['weights'])

def test_a_failed_fit_leaves_nothing_behind(two):
    for process in two:
        assert process['failed'] == dict(
            failed=2, model='BiLM', patched=[], callbacks=True, loaders=True)

def test_what_processes_tell_each_other(two):
    assert all(o['says'] == [True, False] for o in two)
    assert all(o['gathered'] == [dict(me=0), dict(me=1)] and o['error'] == 'nothing here'
               and o['sum'] == [2, 1] and o['from_main'] == 'from 0' for o in two)
    assert [o['main'] for o in two] == [True, False]

# alone

def test_one_decides_on_precision_threads_and_text(two):
    for process in two: assert process['decided'] == [True, 1, 325_000, True]

def test_alone_nothing_happens():
    assert (rank(), n_processes(), is_main()) == (0, 1, True)
    assert (gather(3) == [3] and add_up([1.0, 2]) == [1.0, 2] and main_says(True) is True
            and main_says(False) is False and from_main(lambda: 5) == 5)
    with main_first(): pass
    assert own_device('cpu') == torch.device('cpu')
    dls = job.texts('sentences', 40)
    learn = bilm_learner(dls, job.NANO, bf16=False)
    before = list(learn.cbs)
    with several_processes(learn) as o: assert o is learn and list(learn.cbs) == before
    assert not torch.distributed.is_initialized()

@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_own_rows_are_a_partition(n):
    for dl in (job.texts('sentences', 40).train, job.texts('stream', 60).train):
        for b in dl:
            parts = [OwnRows(i, n) for i in range(n)]
            got = [p(b) for p in parts]
            real = [g for g,p in zip(got, parts) if not p.spare]
            assert sum(int((g[1] != 0).sum()) for g in real) == int((b[1] != 0).sum())
            assert sum(int((g[2] != 0).sum()) for g in real) == int((b[2] != 0).sum())
            assert all(len(g[0]) for g in got)

def test_a_batch_smaller_than_the_processes(monkeypatch, tmp_path):
    (tmp_path/'a.txt').write_text('a b c\n'*20)
    dl = stream_loaders(tmp_path/'a.txt', n_valid=2, bs=3, device='cpu').train
    monkeypatch.setattr(scale, 'n_processes', lambda: 4)
    with pytest.raises(ValueError, match='3 rows.*4 processes'): scale._share(dl)

def test_statistics_of_two_halves_are_those_of_the_whole():
    """Each half asks for the sums of both: the same vectors, statistics and gradients as in one
    piece"""
    torch.manual_seed(0)
    x, up = torch.randn(2, 9, 4).double()
    counts = torch.randint(1, 4, (9,))
    def new(): return TokenNorm(4).double().train()
    whole, halves, parts = new(), [new(), new()], [slice(0, 5), slice(5, 9)]
    xs = [x.clone().requires_grad_() for _ in range(2)]
    y = whole(xs[0], counts)
    share = counts.double()/counts.sum()
    mean = (share[:, None]*xs[1]).sum(0)
    sums = [counts.sum().double(), mean, (share[:, None]*(xs[1] - mean)**2).sum(0)]
    for m in halves: m.total = lambda part, of=iter(sums): next(of)
    z = torch.cat([m(xs[1][p], counts[p]) for m,p in zip(halves, parts)])
    slopes = [torch.autograd.grad((out*up).sum(), x) for out,x in zip((y, z), xs)]
    for a,b in ((y, z), *zip(*slopes)): torch.testing.assert_close(a, b)
    for m in halves:
        for a,b in zip(whole.buffers(), m.buffers(), strict=True): torch.testing.assert_close(a, b)
        del m.total
    assert torch.equal(halves[0].total(x), x)
    assert list(halves[0].state_dict()) == list(new().state_dict())
