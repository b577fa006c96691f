"Corpora: files, splits, faults, local copies, downloads that fail"
import hashlib, http.server, os, pickle, threading, zipfile

import pytest
import requests
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import corpora
from elmo_fastai.errors import CorpusError
from elmo_fastai.text.corpora import (CORPORA, corpus_name, sst2, text_corpus, tiny_shakespeare,
    toy_corpus, treebank, wikitext2)
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.text.toy import Grammar
from copies import local

SMALL = dict(n_train=300, n_valid=100, n_test=50, n_unseen=30)

@pytest.fixture(scope='module')
def toy(): return toy_corpus(**SMALL)

# the toy corpus

def test_gold_is_parallel_to_text(toy):
    assert list(toy.splits) == ['train', 'valid', 'test', 'unseen']
    for k,lines in toy.splits.items():
        assert len(lines) == SMALL[f'n_{k}'] == len(toy.gold[k])
        for line,o in zip(lines, toy.gold[k]):
            assert line == o.text and line.split() == o.tokens
            assert len(o.tokens) == len(o.tags) == len(o.senses)
            assert o.logp < 0 and o.label in (0, 1, None)

def test_same_seed_same_sentences_and_prefixes(toy):
    again = toy_corpus(**SMALL)
    assert again.splits == toy.splits and again.gold == toy.gold
    less = toy_corpus(n_train=10, n_valid=20, n_test=0, n_unseen=5)
    for k,v in less.splits.items(): assert v == toy.splits[k][:len(v)]
    other = toy_corpus(**SMALL, seed=1)
    assert other.train != toy.train

def test_splits_are_different_samples(toy): assert toy.train[:50] != toy.valid[:50] != toy.test[:50]

def test_first_sentences_stay(toy):
    """The same sentences on any machine: if this fails, the corpus has changed and every published
    figure with it"""
    assert toy.train[:3] == ['there is a letter beside the lawyer .',
        'tomorrow these thieves will love the old coin .',
        'the meal was never dull at first but not exciting later .']

def test_senses_only_where_a_form_has_several(toy):
    for o in toy.gold['train'] + toy.gold['unseen']:
        for t,s in zip(o.tokens, o.senses):
            assert s in toy.senses[t] if t in toy.senses else s is None

def test_unseen_has_new_words_and_the_others_have_none(toy):
    vocab = toy.grammar.vocab
    for k in ('train', 'valid', 'test'): assert set(' '.join(toy.splits[k]).split()) <= vocab
    for line in toy.splits['unseen']: assert set(line.split()) - vocab

@pytest.mark.slow
def test_floor_is_a_perplexity(toy):
    for k in toy.splits: assert 4 < toy.floor(k) < 12
    assert abs(toy.floor('train')/toy.entropy_floor - 1) < .1
    assert toy.entropy_floor == pytest.approx(2.718281828459045**(toy.entropy/(toy.mean_len+1)))

def test_floor_sees_the_words(toy):
    "A floor computed from the words, not from what was stored"
    o = toy.gold['valid'][0]
    assert toy.grammar.logp(o.tokens) == pytest.approx(o.logp)
    assert toy.grammar.logp(o.tokens[::-1]) == float('-inf')

def test_a_toy_corpus_without_sentences_to_train_on():
    with pytest.raises(CorpusError, match='no lines to train on'): toy_corpus(0, 1, 0, 0)

def test_repr(toy):
    assert repr(toy) == "ToyCorpus 'toy': train 300, valid 100, test 50, unseen 30 lines"

# reading files

@settings(max_examples=50)
@given(st.lists(st.text(st.characters(blacklist_categories=('Cs', 'Cc', 'Zl', 'Zp')), min_size=1)))
def test_lines_survive_reading(tmp_path_factory, lines):
    f = tmp_path_factory.mktemp('lines')/'a.txt'
    want = [o.strip() for o in lines if o.strip()]
    f.write_text('\n'.join(lines), encoding='utf-8', newline='')
    if want and not lines[0].startswith('\ufeff'): assert text_corpus(f, valid_pct=0, test_pct=0).train == want
    f.write_bytes(b'\xef\xbb\xbf one \r\n\r\n\t\r\ntwo\rthree\nfour')
    c = text_corpus(f)
    assert c.splits == dict(train=['one', 'two'], valid=['three'], test=['four']) and c.skipped == {'blank lines': 2}

@pytest.fixture
def books(tmp_path):
    for i in range(4): (tmp_path/f'b{i}.txt').write_text('\n'.join(f'{i} {j}' for j in range(20)))
    (tmp_path/'more').mkdir(); (tmp_path/'more'/'c.txt').write_text('c 0\nc 1')
    return tmp_path

def test_file_folder_list(books):
    def n(*args): return [len(lines) for lines in text_corpus(*args).splits.values()]
    assert n(books/'b0.txt') == n(str(books/'b0.txt')) == [18, 1, 1] and n(books) == [72, 4, 4]
    c = text_corpus([books/'b1.txt', books/'b0.txt'])
    assert c.train[0] == '1 0' and c.test == ['0 18', '0 19'] and c.name == books.name
    assert text_corpus(books).name == books.name and text_corpus(books/'b1.txt').name == 'b1'
    assert corpus_name('hub:nyu-mll/glue:sst2') == 'glue-sst2' and corpus_name(['a']) == 'text'

def test_files_held_out(books):
    c = text_corpus([books/'b0.txt', books/'b3.txt'], books/'b1.txt', [books/'b2.txt', books/'more'/'c.txt'])
    assert ({o[0] for o in c.train} == {'0', '3'} and {o[0] for o in c.valid} == {'1'} and {o[0] for
        o in c.test} == {'2', 'c'})
    with pytest.raises(CorpusError, match='b1.txt is both trained on and held out'):
        text_corpus(books, valid=books/'b1.txt')
    with pytest.raises(CorpusError, match='no file or folder'):
        text_corpus(books, valid='nowhere.txt')

def test_blank_lines_are_counted(tmp_path):
    (tmp_path/'a.txt').write_text('\none\n\n \ntwo\n\n'); (tmp_path/'b.txt').write_text('three\n')
    c = text_corpus(tmp_path/'a.txt', tmp_path/'b.txt')
    assert c.splits == dict(train=['one', 'two'], valid=['three']) and c.skipped == {'blank lines': 4}
    assert repr(c).endswith('lines (left out: 4 blank lines)') and 'left out 4 blank lines' in c.said
    assert not text_corpus(tmp_path/'b.txt', valid_pct=0, test_pct=0).skipped

# names

# local copies

def test_tiny_shakespeare_split(tmp_path, monkeypatch):
    text = '\n\n'.join(f'Speaker {i}:\nline {i}' for i in range(100))
    (tmp_path/'tiny_shakespeare').mkdir()
    f = tmp_path/'tiny_shakespeare'/'input.txt'
    f.write_text(text)
    a = int(len(text)*.9); b = a + int((len(text)-a)*.5)
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path))
    for c in (tiny_shakespeare(), tiny_shakespeare(f), tiny_shakespeare(f.parent)):
        assert [''.join(c.splits[k]) for k in c.splits] == [o.replace('\n', '').strip() for o in
            (text[:a], text[a:b], text[b:])]

def test_local_copy_incomplete(tmp_path):
    (tmp_path/'train.txt').write_text('a')
    for make in (wikitext2, sst2, tiny_shakespeare):
        with pytest.raises(CorpusError, match='no file or folder'): make(tmp_path/'nowhere')
    with pytest.raises(CorpusError, match='no file .*sst2.train.tsv'): sst2(tmp_path)
    with pytest.raises(CorpusError, match='no file .*input.txt'): tiny_shakespeare(tmp_path)
    with pytest.raises(CorpusError, match='train.txt, valid.txt and test.txt'): wikitext2(tmp_path)

def test_sst2_bad_line(tmp_path):
    for k in ('train', 'dev', 'test'): (tmp_path/f'sst2.{k}.tsv').write_text('1\tgood\n0\tbad\n')
    assert [o.label for o in sst2(tmp_path).gold['train']] == [1, 0]
    (tmp_path/'sst2.dev.tsv').write_text('1\tgood\n2\tbad\n')
    with pytest.raises(CorpusError, match='sst2, valid: a line must be 0 or 1, a tab and a text'):
        sst2(tmp_path)

def test_real_tiny_shakespeare():
    c = tiny_shakespeare(local('tiny_shakespeare'))
    assert c.train[:2] == ['First Citizen:', 'Before we proceed any further, hear me speak.']
    # a cut may fall inside a line, which then counts in both parts
    assert sum(map(len, c.splits.values())) in range(32777, 32781)

def test_real_wikitext2():
    c = wikitext2(local('wikitext-2'))
    assert [sum(len(o.split()) for o in v) for v in c.splits.values()] == [2_051_910, 213_886,
        241_211] and c.tokenizer == 'space'

def test_real_sst2():
    c = sst2(local('sst2'))
    assert [len(v) for v in c.splits.values()] == [6920, 872, 1821] and {o.label for o in
        c.gold['valid']} == {0, 1}

def test_real_ud():
    c = treebank('UD_English-EWT', local('ud-ewt'))
    assert [len(v) for v in c.splits.values()] == [12544, 2001, 2077]
    assert [sum(len(o.tokens) for o in v) for v in c.gold.values()] == [204577, 25147, 25094]
    assert len({t for o in c.gold['train'] for t in o.tags}) == 17
    assert all(len(o.tokens) == len(o.tags) for v in c.gold.values() for o in v)
    first = c.gold['train'][0]
    assert (first.tokens[:4] == ['Al', '-', 'Zaman', ':'] and first.tags[:4] == ['PROPN', 'PUNCT',
        'PROPN', 'PUNCT'] and c.train[0] == first.text)

def test_real_novels():
    d = local('novels')
    c = text_corpus(d, d/'valid')
    assert (not any(o.startswith('\ufeff') for o in c.train) and len(c.valid) > 1000 and
        'test' not in c.splits)

# downloads

@pytest.fixture
def no_copies(tmp_path, monkeypatch):
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    monkeypatch.setenv('HF_DATASETS_CACHE', str(tmp_path/'hf'))
    import datasets.config
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path/'hf')
    return tmp_path/'cache'

class Handler(http.server.BaseHTTPRequestHandler):
    body, status = b'', 200
    def do_GET(self):
        self.send_response(self.status)
        self.send_header('Content-Length', str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)
    def log_message(self, *args): pass

@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    srv = http.server.ThreadingHTTPServer(('127.0.0.1', 0), type('H', (Handler,), {}))
    threading.Thread(target=srv.serve_forever, daemon=True).start()
    yield srv
    srv.shutdown(); srv.server_close()

def offer(server, monkeypatch, text):
    "Let the server have `text` as Tiny Shakespeare"
    server.RequestHandlerClass.body = text.encode()
    monkeypatch.setattr(corpora, '_SHAKESPEARE_HASH', 'sha256:' + hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setattr(corpora, '_SHAKESPEARE', f'http://127.0.0.1:{server.server_port}/input.txt')

def test_a_login_page_is_no_corpus(no_copies, server, monkeypatch):
    monkeypatch.setattr(corpora, '_SHAKESPEARE', f'http://127.0.0.1:{server.server_port}/input.txt')
    server.RequestHandlerClass.body = b'<html>Please log in</html>'
    with pytest.raises(CorpusError, match='hash.*path=.*ELMO_FASTAI_DATA'): tiny_shakespeare()
    assert not [file for file in no_copies.rglob('*') if file.is_file()]

def test_the_published_checksum(no_copies):
    "That of the local copy"
    data = (local('tiny_shakespeare')/'input.txt').read_bytes()
    assert corpora._SHAKESPEARE_HASH == 'sha256:' + hashlib.sha256(data).hexdigest()

def test_download_and_cache(no_copies, server, monkeypatch):
    text = '\n\n'.join(f'Speaker {i}:\r\nline {i}' for i in range(100))
    offer(server, monkeypatch, text)
    c = tiny_shakespeare()
    assert c.train[:2] == ['Speaker 0:', 'line 0'] and sum(map(len,
        c.splits.values())) in range(200, 203)
    server.RequestHandlerClass.status = 404
    assert tiny_shakespeare().splits == c.splits # from the cache
    assert [o.name for o in (no_copies/'elmo_fastai'/'tiny_shakespeare').iterdir()] == ['input.txt']

@pytest.fixture
def no_network(no_copies, monkeypatch):
    import datasets
    def refuse(*args, **kwargs): raise requests.ConnectionError('network is unreachable')
    monkeypatch.setattr(requests, 'get', refuse)
    monkeypatch.setattr(datasets, 'load_dataset', refuse)

@pytest.mark.parametrize('make', [tiny_shakespeare, wikitext2, sst2])
def test_no_network_says_what_to_do(no_network, make):
    with pytest.raises(CorpusError) as e: make()
    for o in ("can't download", 'network is unreachable', 'say path=…', 'ELMO_FASTAI_DATA'):
        assert o in str(e.value)
    assert '\n' not in str(e.value)

def fake_hub(monkeypatch, answer):
    "A hub that answers with `answer(name, kwargs)`; the questions are returned"
    import datasets
    asked = []
    def load(*args, **kwargs):
        asked.append((*args, kwargs))
        return answer(*args, **kwargs)
    monkeypatch.setattr(datasets, 'load_dataset', load)
    return asked

def test_hub_text_corpora(no_copies, monkeypatch):
    from datasets import Dataset, DatasetDict
    def made(**splits): return DatasetDict({k: Dataset.from_dict(rows) for k,rows in splits.items()})
    rows = made(train={'text': [' a b \n', '', ' = H = \n']}, validation={'text': ['c']}, test={'text': ['d']})
    asked = fake_hub(monkeypatch, lambda *a, **k: rows)
    c = wikitext2()
    assert c.splits == dict(train=['a b', '= H ='], valid=['c'],
        test=['d']) and c.skipped['blank lines'] >= 1
    assert asked[0][:2] == ('Salesforce/wikitext', 'wikitext-2-v1')
    phrases = dict(sentence=['a fine film '], label=[1])
    fake_hub(monkeypatch, lambda *a, **k: made(train=phrases, validation=phrases,
        test=dict(sentence=['x'], label=[-1])))
    c = sst2()
    assert (c.gold['train'][0].label == 1 and c.gold['test'][0].label is None and c.train ==
        ['a fine film'])

def test_splits_are_lists_of_lines():
    for bad in ('a text', b'a text', (o for o in 'ab'), None):
        with pytest.raises(CorpusError, match="split 'train' must be a list of lines, and is "):
            Corpus('bad', dict(train=bad))
    with pytest.raises(CorpusError, match='no file or folder a text that .{,120}$'):
        text_corpus('a text that somebody pasted '*300)
    with pytest.raises(CorpusError, match='NoneType is no table'): text_corpus(None)

def test_how_probable_a_sentence_is_waits_until_somebody_asks(monkeypatch):
    """Making a corpus computes no probability; a sentence that was sent to another process still
    knows its own"""

    def never(self, tokens): raise AssertionError('nobody asked')
    with monkeypatch.context() as m:
        m.setattr(Grammar, 'logp', never)
        made = toy_corpus(n_train=5, n_valid=2, n_test=1, n_unseen=2)
    for s in made.gold['train'] + made.gold['unseen']:
        again = pickle.loads(pickle.dumps(s))
        assert again == s and again.logp == s.logp < 0
    assert Sentence(['a']).logp is None

# a treebank

ROWS = '\n'.join('\t'.join([str(i), word, '_', tag, *'______'])
                  for i,(word, tag) in enumerate([('đường phố', 'N'), ('đẹp', 'A')], 1)) + '\n\n'

def test_a_treebank(tmp_path):
    "A blank in a word does not end it; a part may lie in several files"
    from elmo_fastai.batches import ElmoDataLoaders
    for part in ('train-a', 'train-b', 'dev', 'test'):
        (tmp_path/f'vi_vtb-ud-{part}.conllu').write_text(ROWS, encoding='utf-8')
    c = treebank('UD_Vietnamese-VTB', tmp_path)
    assert c.splits == dict(train=[['đường phố', 'đẹp']]*2, valid=[['đường phố', 'đẹp']], test=[['đường phố', 'đẹp']])
    dls = ElmoDataLoaders.from_corpus(c, bs=2, device='cpu')
    assert 'đường phố' in dls.vocab.o2i and dls.train.text.notes['tags'] == [['N', 'A']]*2
    (tmp_path/'th_tud-ud-test.conllu').write_text(ROWS, encoding='utf-8')
    with pytest.raises(CorpusError, match="one treebank, and has .'th_tud', 'vi_vtb'"): treebank('UD_X-Y', tmp_path)
    for file in tmp_path.iterdir(): file.unlink()
    with pytest.raises(CorpusError, match='one treebank'): treebank('UD_X-Y', tmp_path)

def test_a_treebank_comes_from_its_repository(no_copies, server, monkeypatch, tmp_path):
    import io, pooch
    data = io.BytesIO()
    with zipfile.ZipFile(data, 'w') as archive:
        for part in ('dev', 'test'): archive.writestr(f'UD_X-Y-master/x_y-ud-{part}.conllu', ROWS)
        archive.writestr('UD_X-Y-master/not-to-release/old-ud-train.txt', 'x')
    server.RequestHandlerClass.body = data.getvalue()
    was = pooch.retrieve
    monkeypatch.setattr(pooch, 'retrieve', lambda url, *args, **kwargs: was(url.replace(
        'https://github.com', f'http://127.0.0.1:{server.server_port}'), *args, **kwargs))
    with pytest.raises(CorpusError, match="'UD_X-Y' has no lines to train on"): treebank('UD_X-Y')
    with zipfile.ZipFile(data, 'a') as archive: archive.writestr('UD_X-Y-r1/x_y-ud-train.conllu', ROWS)
    server.RequestHandlerClass.body = data.getvalue()
    assert len(treebank('UD_X-Y', version='r1').train) == 1

# annotation

def test_gold_that_does_not_fit_its_lines():
    gold = [Sentence(['a', 'b'], ['X', 'Y'])]
    with pytest.raises(CorpusError, match="'train' has 2 lines, and gold annotation for 1"):
        Corpus('bad', dict(train=['a', 'b']), 'space', dict(train=gold))
    assert Corpus('good', dict(train=['a b']), 'space', dict(train=gold)).gold

def test_gold_that_changed_after_the_corpus_was_made():
    "Tags of other tokens than those that are read are no tags"
    from elmo_fastai.batches import ElmoDataLoaders

    corpus = Corpus.from_gold('changed', {k: [Sentence(['a', 'b'], ['X', 'Y'])]*2 for k in
        ('train', 'valid')})
    corpus.gold['train'][1].tokens[:] = ['a', 'b', 'c']
    dls = ElmoDataLoaders.from_corpus(corpus, bs=2, device='cpu')
    assert dls.train.text.notes == {} and dls.valid.text.notes['tags'] == [['X', 'Y']]*2

# the corpora that have a name

def shakespeare_copy(folder):
    (folder/'input.txt').write_text('\n'.join(f'Speaker: line {i}' for i in range(100)))

def wikitext_copy(folder):
    for split in ('train', 'valid', 'test'): (folder/f'{split}.txt').write_text(' a line \n')

def sst2_copy(folder):
    for split in ('train', 'dev', 'test'): (folder/f'sst2.{split}.tsv').write_text('1\tgood\n')

COPIES = dict(tiny_shakespeare=shakespeare_copy, wikitext2=wikitext_copy, sst2=sst2_copy)

@pytest.mark.parametrize('name', [name for name in CORPORA if name != 'toy'])
def test_a_named_corpus_reads_its_copy(name, tmp_path):
    assert name in COPIES, f'write a small copy of {name} here, as its publisher has it'
    COPIES[name](tmp_path)
    corpus = CORPORA[name](tmp_path)
    assert corpus.train and corpus.valid and corpus.test, 'all splits have lines'
    assert all(line.strip() for lines in corpus.splits.values() for line in lines)
    for split,sents in (corpus.gold or {}).items():
        assert len(sents) == len(corpus.splits[split]), 'one sentence with annotations per line'
