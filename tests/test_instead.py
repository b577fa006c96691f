"""ELMo beside what one would take instead: draws, heads, and the processes of the sides
(tests/benchmarks/instead_*.py)"""
import importlib.util, json, random, sys
from pathlib import Path

import numpy as np, pytest

sys.path.insert(0, str(Path(__file__).resolve().parent/'benchmarks'))
import instead_sst2
from instead_sides import Side

GOOD, BAD = 'fine lovely great funny warm moving'.split(), 'dull poor bad boring cold stale'.split()
REST = 'the film and its story are a bit of an evening for us all .'.split()

@pytest.fixture(scope='module')
def data(tmp_path_factory):
    "SST-2's three files, with sentences made of two sorts of words"
    rng, folder = random.Random(0), tmp_path_factory.mktemp('data')
    (folder/'sst2').mkdir()
    for part,n in (('train', 1200), ('dev', 100), ('test', 60)):
        rows = [(label, ' '.join(rng.sample(REST, 6) + rng.choices((BAD, GOOD)[label], k=2)))
                for label in rng.choices((0, 1), (.4, .6), k=n)]
        lines = [f'{label}\t{text}\n' for label,text in rows]
        (folder/'sst2'/f'sst2.{part}.tsv').write_text(''.join(lines), encoding='utf-8')
    return folder

@pytest.fixture(scope='module')
def text(data): return instead_sst2.Text(data)

def options_of(module, monkeypatch, *args):
    monkeypatch.setattr(sys, 'argv', ['script', *args])
    return module.arguments()

def test_draws(text):
    "As many of each class, each a part of a larger one; validation and test lie apart"
    small, large = text.draw(20, 3), text.draw(100, 3)
    assert set(small) < set(large) <= set(text.places['train']) and len(set(large)) == 100
    assert text.labels[small].mean() == text.labels[large].mean() == .5
    assert set(small) != set(text.draw(20, 4)) and len(text.draw(10_000, 0)) == 1200
    parts = np.concatenate([text.places[k] for k in ('train', 'valid', 'test')])
    assert sorted(parts) == list(range(1360))

def test_nothing_outside_of_the_draw_decides(text):
    "Other labels outside of the draw, other texts and vectors: the same head"
    rng, train = np.random.default_rng(0), text.draw(100, 0)
    vectors = rng.normal(size=(1360, 8)).astype(np.float32) + text.labels[:, None]
    outside = np.setdiff1d(np.arange(1360), train)
    def heads(labels, texts, vectors):
        counts = instead_sst2.Counts(texts, dict(token_pattern=r'\S+'))
        kinds = instead_sst2.Vectors(vectors), counts
        return [instead_sst2.Head(features, labels, train) for features in kinds]
    labels, texts, others = text.labels.copy(), list(text.texts), vectors.copy()
    labels[outside] = 1 - labels[outside]
    others[outside] *= 5
    for i in outside: texts[i] = 'nothing of the kind'
    for a,b in zip(heads(text.labels, text.texts, vectors), heads(labels, texts, others)):
        assert a.C == b.C and np.allclose(a.model.coef_, b.model.coef_)
        assert np.mean((a(train) > 0) == text.labels[train]) > .8

def test_vectors_are_standardised_and_turned_without_a_loss():
    "By the training part; about as long as counts. The same answers as with all numbers"
    from sklearn.linear_model import LogisticRegression
    rng = np.random.default_rng(0)
    vectors = rng.normal(3, 10, (500, 40)).astype(np.float32)
    rows = instead_sst2.Vectors(vectors).fit(np.arange(400)).rows(np.arange(400))
    assert np.allclose(rows.mean(0), 0, atol=1e-4)
    assert np.linalg.norm(rows, axis=1).mean() == pytest.approx(1, abs=.1)
    vectors, y = rng.normal(size=(90, 100)).astype(np.float32), rng.integers(0, 2, 90)
    train, other = np.arange(60), np.arange(60, 90)
    features = instead_sst2.Vectors(vectors).fit(train)
    def answers():
        model = LogisticRegression(C=10, tol=1e-8, max_iter=2000)
        return model.fit(features.rows(train), y[train]).decision_function(features.rows(other))
    found = answers()
    assert features.rows(train).shape == (60, 60)
    features.basis = None
    assert np.allclose(found, answers(), atol=1e-2)

def test_a_side_without_its_packages_says_which(capfd, monkeypatch, tmp_path):
    "They are no requirements of the library: here one of them can't be imported"
    (tmp_path/'jax.py').write_text("raise ModuleNotFoundError('jax')")
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    with pytest.raises(SystemExit, match='jax stopped with 1'): Side('jax', str(tmp_path))
    error = capfd.readouterr().err
    assert 'optax' in error and '-python' in error and 'Traceback' not in error

@pytest.mark.slow
def test_all_sides_of_the_accuracy_run(data, monkeypatch, tmp_path):
    "What needs only the library's own packages; rows of other sides stay"
    monkeypatch.setattr(instead_sst2, 'STEPS', 3)
    monkeypatch.setattr(instead_sst2, 'CS', [1.])
    out = tmp_path/'out.json'
    def run(*args): return instead_sst2.main(options_of(
        instead_sst2, monkeypatch, '--data', str(data), '--json', str(out), *args))
    found = run('--quick')
    sides = {'counts', 'letters', 'static', 'box', 'box + counts', 'classifier'}
    assert {row['side'] for row in found['rows']} == sides and not out.exists()
    counts = [row['test'] for row in found['rows'] if row['side'] == 'counts']
    assert len(counts) == 3 and np.mean(counts) > .7             # two words of six tell
    for side in ('counts', 'letters'): run('--draws', '2', '--sides', side)
    found = json.loads(out.read_text())
    assert [(r['side'], r['labels'], r['draw']) for r in found['rows']] == [
        (side, n, draw) for n in (100, 1000, 1200) for side in ('counts', 'letters')
        for draw in range(1 if n == 1200 else 2)]

@pytest.mark.slow
@pytest.mark.parametrize('jax', [False, True])
def test_the_same_network_is_trained_by_all_sides(monkeypatch, tmp_path, jax):
    import instead_step
    if jax and not (importlib.util.find_spec('jax') and importlib.util.find_spec('optax')):
        pytest.skip('jax and optax are not installed: its side is not compared')
    more = ('--jax-python', sys.executable) if jax else ()
    found = instead_step.main(options_of(instead_step, monkeypatch, '--quick', '--reps', '1',
                                         '--json', str(tmp_path/'out.json'), *more))
    loss = {row['side']: row['loss'] for row in found['rows']}
    assert [*loss] == instead_step.SIDES[0 if jax else 1:]
    same = [loss[k] for k in instead_step.SIDES[:3] if k in loss]
    assert max(same) - min(same) < 1e-4
