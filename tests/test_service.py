"""ELMo in a service: what the application answers to good and to bad requests, batches of requests
that wait, and the benchmark's comparison, which must find wrong vectors"""

import base64, re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np, pytest, torch
from elmo_fastai.all import Elmo
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.text.corpora import toy_corpus
from pages import page

sys.path.insert(0, str(Path(__file__).parent/'benchmarks'))
CONFIG = BiLMConfig('nano', char_dim=4, filters=((1,8), (2,8), (3,8)), proj_dim=8, hidden_dim=8)

@pytest.fixture(scope='module')
def elmo():
    torch.manual_seed(0)
    return Elmo(BiLM(CONFIG, 0)).eval()

# the application; FastAPI is no requirement of the library

@pytest.fixture(scope='module')
def client(elmo):
    pytest.importorskip('fastapi', reason='FastAPI is not installed: pip install fastapi httpx')
    from fastapi.testclient import TestClient
    from service_app import service
    return TestClient(service(elmo.embed, elmo.tokenize), raise_server_exceptions=False)

def test_vectors(client, elmo):
    texts = ['She sat on the bank.', 'naïve 🏦']
    answer = client.post('/embed', json=dict(texts=texts)).json()
    assert answer['tokens'] == [['She', 'sat', 'on', 'the', 'bank', '.'], ['naïve', '🏦']]
    packed = client.post('/embed', json=dict(texts=texts, base64=True)).json()['vectors']
    means = client.post('/embed', json=dict(texts=texts, mean=True)).json()['vectors']
    for v,b,mean,wanted in zip(answer['vectors'], packed, means, elmo.embed(texts), strict=True):
        np.testing.assert_allclose(v, wanted, atol=1e-5)
        np.testing.assert_allclose(
            np.frombuffer(base64.b64decode(b), np.float32).reshape(wanted.shape), np.float32(v),
            atol=1e-5)
        np.testing.assert_allclose(mean, wanted.mean(0), atol=1e-5)

def test_a_blank_has_its_place(client, elmo):
    def ask(**body): return client.post('/embed', json=dict(texts=['a', '', ' \t'], **body)).json()
    assert list(map(len, ask()['vectors'])) == list(map(len, ask()['tokens'])) == [1, 0, 0]
    np.testing.assert_allclose(ask(mean=True)['vectors'],
                               elmo.embed(['a', '', ' \t'], pool='mean'), atol=1e-5)
    assert ask(base64=True)['vectors'][1:] == ['', '']

@pytest.mark.parametrize('body,message', [
    ({}, 'body.texts: Field required'),
    (dict(texts=[]), 'at least 1 item'),
    (dict(texts=['', 'word '*10_000]), r'texts\[1\] has 10,000 tokens: send at most 1,000'),
    (dict(texts=['x'*50_001]), 'at most 50000 characters'),
    (dict(texts=['a']*65), 'at most 64 items'),
    (dict(texts='a text'), 'valid list'),
    (dict(texts=[3]), 'body.texts.0: .*valid string'),
    (dict(texts=[None]), 'valid string'),
    (dict(texts=['a'], mean='perhaps'), 'valid boolean'),
    ([1], 'dictionary'),
    (None, 'Field required')], ids=lambda value: str(value)[:20])
def test_bad_requests(client, body, message):
    answer = client.post('/embed', json=body)
    assert answer.status_code == 422 and re.search(message, answer.json()['detail'])

@pytest.mark.parametrize('body', [
    b'', b'{', b'['*100_000, b'{"texts": ["\xff"]}', b'{"texts": ["\\ud800"]}',
    b'{"texts": ["a"], "mean": "\\ud800"}', b'{"texts": [NaN]}'], ids=range(7))
def test_what_is_no_text_or_no_json(client, body):
    answer = client.post('/embed', content=body, headers={'content-type': 'application/json'})
    assert answer.status_code in (400, 422) and answer.json()['detail']
    assert client.post('/embed', json=dict(texts=['a'])).status_code == 200, 'it goes on'

def test_many_clients_at_once(client, elmo):
    texts = toy_corpus(100, 1, 1, 1).train
    wanted = elmo.embed(texts)
    def ask(i): return client.post('/embed', json=dict(texts=[texts[i]])).json()['vectors'][0]
    with ThreadPoolExecutor(8) as pool:
        for v, w in zip(pool.map(ask, range(100)), wanted):
            np.testing.assert_allclose(v, w, atol=1e-5)

# batches

def test_batches_answer_each_caller(elmo):
    "From many threads, several sentences each, in as many calls as there were batches"
    sents = [line.split() for line in toy_corpus(120, 1, 1, 1).train]
    wanted = elmo.embed(sents)
    sizes = []
    def embed(some):
        sizes.append(len(some))
        return elmo.embed(some)
    batches = page('library/service').Batches(embed, most=5)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: batches(sents[i:i + 3]), range(0, 120, 3)))
    for v, w in zip((v for some in found for v in some), wanted, strict=True):
        np.testing.assert_allclose(v, w, atol=1e-5)
    assert sum(sizes) == 120 and max(sizes) <= 15 and len(sizes) < 40

def test_batches_hand_errors_on_and_go_on(elmo):
    def embed(some):
        if ['bad'] in some: raise ValueError('a bad one')
        return elmo.embed(some)
    batches = page('library/service').Batches(embed)
    with pytest.raises(ValueError, match='a bad one'): batches([['bad']])
    assert len(batches([['good'], ['one']])) == 2 and batches([]) == []

# the comparison

def test_the_comparison_finds_wrong_vectors(elmo):
    pytest.importorskip('onnxruntime')
    from service import compare
    sents = [line.split() for line in toy_corpus(50, 1, 1, 1).train]
    wanted = [elmo.embed([tokens])[0] for tokens in sents]
    def mixed_up(some): return elmo.embed([tokens[::-1] for tokens in some])
    def slightly_off(some): return [v + 2e-5 for v in elmo.embed(some)]
    ways = dict(right=elmo.embed, mixed_up=mixed_up, slightly_off=slightly_off)
    rows = {row['way']: row for row in compare(
        lambda way, some: ways[way](some), [*ways], sents, wanted, 3000, n_threads=4)}
    assert (rows['right']['wrong'] == 0
            and rows['slightly_off']['wrong'] == rows['slightly_off']['vectors'] > 100)
    assert rows['mixed_up']['wrong'] > .5*rows['mixed_up']['vectors']
    assert all(
        row['control'] == row['control_wrong'] > 0 for name, row in rows.items() if name == 'right')

def test_a_request_has_a_limit(client):
    "Of tokens in all, and of bytes, by their number before they are read"
    answer = client.post('/embed', json=dict(texts=['word '*900]*5))
    assert answer.status_code == 422 and '4,500 tokens in all' in answer.json()['detail']
    for length in ('1000001', '99999999999999', '-1', 'x'):
        answer = client.post('/embed', content=b'{}', headers={'content-length': length})
        assert answer.status_code in (400, 413)
    def pieces():
        for _ in range(20): yield b' '*100_000
    assert client.post('/embed', content=pieces()).status_code == 413
    assert client.post('/embed', json=dict(texts=['a'])).status_code == 200, 'it goes on'
