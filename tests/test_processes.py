"Several processes make one training; alone nothing changes"
import json, os, subprocess, sys
from pathlib import Path

import pytest, torch

from elmo_fastai.charcnn import TokenNorm
from elmo_fastai.practice.files import find_device
from elmo_fastai.practice.processes import (
    OwnRows, add_up, from_main, gather, is_main, several_processes)
from elmo_fastai.learner import bilm_learner

sys.path.insert(0, str(Path(__file__).parent))
import two_processes as job
from sources import source

ROOT = Path(__file__).resolve().parents[1]
SAME = ['exact sentences', 'exact stream', 'adaptive stream', 'accumulated', 'streamed']
ALL = [*SAME, 'norm sentences', 'sampled sentences', 'dropout', 'budget']

def launch(*args):
    env = os.environ | dict(OMP_NUM_THREADS='1')
    launcher = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2']
    command = [sys.executable, *launcher, ROOT/'tests'/'two_processes.py', *args]
    return subprocess.run([*map(str, command)], env=env, capture_output=True, text=True,
                          timeout=600)

@pytest.fixture(scope='module')
def two(tmp_path_factory):
    "What each of two processes has seen"
    folder = tmp_path_factory.mktemp('two')
    ended = launch(folder)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert 'Traceback' not in ended.stderr and 'destroy_process_group' not in ended.stderr
    left = [json.loads((folder/f'{i}.threads').read_text()) for i in range(2)]
    return [json.loads((folder/f'{i}.json').read_text()) | dict(left=left[i]) for i in range(2)]

@pytest.fixture(scope='module')
def one(tmp_path_factory):
    found = {f'{name} {kind}': job.train(name, job.texts(kind)) for name,kind in (
        ('exact', 'sentences'), ('exact', 'stream'), ('norm', 'sentences'), ('adaptive', 'stream'))}
    more = job.train('exact', job.texts('sentences'), cbs=[job.GradientAccumulation(40)])
    budget = job.train('exact', job.texts('sentences'), 999,
                       cbs=[job.TimeBudget(19, job.OwnPace())])
    streamed = job.streamed(tmp_path_factory.mktemp('one'))
    return found | dict(accumulated=more, budget=budget, streamed=streamed)

def close(a, b, rel=1e-4): assert a == pytest.approx(b, rel=rel, abs=1e-6)

@pytest.mark.slow
@pytest.mark.parametrize('which', [*SAME, 'norm sentences'])
def test_two_processes_are_one(one, two, which):
    "Without dropout: the same losses, gradients, metrics and weights, up to rounding"
    a, b = one[which], two[0][which]
    close(b['losses'][:3], a['losses'][:3], 1e-5)
    # a bias before a normalisation has no gradient but rounding
    small = max(abs(x) for grad in a['grad'].values() for x in grad)*1e-4
    for name in a['grad']: assert b['grad'][name] == pytest.approx(a['grad'][name], 1e-3, small)
    rel = .05 if which.startswith('norm') else 1e-3
    close(b['losses'], a['losses'], rel)
    close(sum(b['values'], []), sum(a['values'], []), rel)
    if rel < .05: close(b['weights'], a['weights'], rel)
    assert len(b['rows']) == len(a['rows']) and b['tokens'] == a['tokens']

@pytest.mark.slow
@pytest.mark.parametrize('which', ALL)
def test_processes_agree_bit_for_bit(two, which):
    for part in ('losses', 'values', 'weights', 'buffers', 'evaluated'):
        assert two[0][which][part] == two[1][which][part], part
    close(two[0][which]['values'][-1][-2:], two[0][which]['evaluated'], 1e-5)

@pytest.mark.slow
def test_rows_are_dealt(one, two):
    "Every row once, but for company in a last batch of one row, in each of two epochs"
    a, b = (process['exact sentences']['rows'] for process in two)
    assert sum(a) + sum(b) == sum(one['exact sentences']['rows']) + 2
    a, b = (process['streamed']['seen'] for process in two)
    assert sorted(a + b) == sorted(one['streamed']['seen']) and len({*a, *b}) == 203
    assert two[0]['dropout']['rng'] != two[1]['dropout']['rng']

@pytest.mark.slow
def test_what_they_tell_each_other(one, two):
    for process in two:
        assert process['told'] == [[0, 1], [2, 1], 0]
        assert process['failed'] == [[], True, True, 'nothing here']
        # the clock is that of the main process
        assert len(process['budget']['losses']) == len(one['budget']['losses']) > 9

@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='threads have names in /proc on Linux alone')
def test_no_thread_of_gloo_outlives_the_group(two):
    "One that wants something of Python while it ends would abort the process"
    for process in two:
        assert process['left'] and not [name for name in process['left'] if 'gloo' in name]

@pytest.mark.slow
def test_killed_processes_go_on_exactly(tmp_path):
    sources = [source(what, tmp_path) for what in ('text', 'jsonl', 'parquet', 'hub')] + ['carried']
    ended = launch(tmp_path/'whole', -1, *sources)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for i,text in enumerate(sources):
        out = tmp_path/f'killed{i}'
        assert launch(out, 1 + i%3, text).returncode != 0 and not Path(f'{out}-0').exists()
        ended = launch(out, -1, text)
        assert ended.returncode == 0, ended.stderr[-3000:]
        a, b = torch.load(tmp_path/f'whole-{i}'), torch.load(f'{out}-0')
        assert a.pop() == b.pop() and all(map(torch.equal, a, b)), text

# alone

def test_alone_nothing_happens():
    assert is_main() and gather(3) == [3] and add_up([1., 2]) == [1., 2]
    assert from_main(lambda: 5) == 5
    assert find_device('cpu') == torch.device('cpu')
    learn = bilm_learner(job.texts('sentences', 40), job.NANO, bf16=False)
    before = list(learn.cbs)
    with several_processes(learn) as same: assert same is learn and list(learn.cbs) == before
    assert not torch.distributed.is_initialized()

@pytest.mark.parametrize('name', ['xyz', 'meta', 'cuda:99'])
def test_devices_that_can_not_be_used(name):
    with pytest.raises(ValueError, match=f"{name}.*can't be used here.*say --device cpu"):
        find_device(name)

@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_own_rows_are_a_partition(n):
    for dl in (job.texts('sentences', 40).train, job.texts('stream', 60).train):
        for batch in dl:
            parts = [OwnRows(i, n) for i in range(n)]
            got = [part(batch) for part in parts]
            real = [rows for rows,part in zip(got, parts) if not part.is_spare]
            for d in (1, 2):
                assert sum(int((rows[d] != 0).sum()) for rows in real) == int((batch[d] != 0).sum())
            assert all(len(rows[0]) for rows in got)

def test_statistics_of_two_halves_are_those_of_the_whole():
    "Each half asks for the sums of both: the vectors, statistics and gradients of one piece"
    x, up = torch.randn(2, 9, 4).double()
    counts = torch.randint(1, 4, (9,))
    def new(): return TokenNorm(4).double().train()
    whole, halves, parts = new(), [new(), new()], [slice(0, 5), slice(5, 9)]
    xs = [x.clone().requires_grad_() for _ in range(2)]
    y = whole(xs[0], counts)
    share = counts.double()/counts.sum()
    mean = (share[:, None]*xs[1]).sum(0)
    sums = [counts.sum().double(), mean, (share[:, None]*(xs[1] - mean)**2).sum(0)]
    for norm in halves: norm.total = lambda part, of=iter(sums): next(of)
    z = torch.cat([norm(xs[1][p], counts[p]) for norm,p in zip(halves, parts)])
    slopes = [torch.autograd.grad((out*up).sum(), x) for out,x in zip((y, z), xs)]
    for a,b in ((y, z), *zip(*slopes)): torch.testing.assert_close(a, b)
    for norm in halves:
        for a,b in zip(whole.buffers(), norm.buffers(), strict=True):
            torch.testing.assert_close(a, b)
