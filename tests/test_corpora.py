"Corpora: the toy, files and their splits, local copies, downloads that fail"
import hashlib, http.server, pickle, threading, zipfile
import pytest
from hypothesis import given, settings, strategies as st
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.errors import CorpusError
from elmo_fastai.text import corpora
from elmo_fastai.text.corpora import (
    CORPORA, corpus_name, text_corpus, tiny_shakespeare, toy_corpus, treebank, wikitext2)
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
            for t,s in zip(o.tokens, o.senses):
                assert s in toy.senses[t] if t in toy.senses else s is None
            assert (k == 'unseen') == bool({*o.tokens} - toy.grammar.vocab)

def test_same_seed_same_sentences_and_prefixes(toy):
    again = toy_corpus(**SMALL)
    assert again.splits == toy.splits and again.gold == toy.gold
    less = toy_corpus(n_train=10, n_valid=20, n_test=0, n_unseen=5)
    for k,v in less.splits.items(): assert v == toy.splits[k][:len(v)]
    assert toy_corpus(**SMALL, seed=1).train != toy.train
    assert toy.train[:50] != toy.valid[:50] != toy.test[:50]

def test_first_sentences_stay(toy):
    "On any machine: if this fails, the corpus has changed and every published figure with it"
    assert toy.train[:3] == ['there is a letter beside the lawyer .',
        'tomorrow these thieves will love the old coin .',
        'the meal was never dull at first but not exciting later .']
    assert repr(toy) == "ToyCorpus 'toy': train 300, valid 100, test 50, unseen 30 lines"

@pytest.mark.slow
def test_floor_is_a_perplexity(toy):
    for k in toy.splits: assert 4 < toy.floor(k) < 12
    assert abs(toy.floor('train')/toy.entropy_floor - 1) < .1

def test_a_sentence_knows_how_probable_it_is(monkeypatch):
    "From its words, once it is asked, and in another process, too"
    def never(self, tokens): raise AssertionError('nobody asked')
    with monkeypatch.context() as m:
        m.setattr(Grammar, 'logp', never)
        made = toy_corpus(n_train=5, n_valid=2, n_test=1, n_unseen=2)
    for s in made.gold['train'] + made.gold['unseen']:
        again = pickle.loads(pickle.dumps(s))
        assert again == s and again.logp == s.logp < 0
    for s in made.gold['train']:
        assert made.grammar.logp(s.tokens) == pytest.approx(s.logp)
        assert made.grammar.logp(s.tokens[::-1]) == float('-inf')
    assert Sentence(['a']).logp is None

# files

@settings(max_examples=50)
@given(st.lists(st.text(st.characters(blacklist_categories=('Cs', 'Cc', 'Zl', 'Zp')), min_size=1)))
def test_lines_survive_reading(tmp_path_factory, lines):
    f = tmp_path_factory.mktemp('lines')/'a.txt'
    want = [o.strip() for o in lines if o.strip()]
    f.write_text('\n'.join(lines), encoding='utf-8', newline='')
    if want and not lines[0].startswith('\ufeff'):
        assert text_corpus(f, valid_pct=0, test_pct=0).train == want
    f.write_bytes(b'\xef\xbb\xbf one \r\n\r\n\t\r\ntwo\rthree\nfour')
    c = text_corpus(f)
    assert c.splits == dict(train=['one', 'two'], valid=['three'], test=['four'])
    assert c.skipped == {'blank lines': 2}

@pytest.fixture
def books(tmp_path):
    for i in range(4): (tmp_path/f'b{i}.txt').write_text('\n'.join(f'{i} {j}' for j in range(20)))
    (tmp_path/'more').mkdir()
    (tmp_path/'more'/'c.txt').write_text('c 0\nc 1')
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
    first = {split: {line[0] for line in lines} for split,lines in c.splits.items()}
    assert first == dict(train={'0', '3'}, valid={'1'}, test={'2', 'c'})
    with pytest.raises(CorpusError, match='b1.txt is both'): text_corpus(books, valid=books/'b1.txt')
    with pytest.raises(CorpusError, match='no file'): text_corpus(books, valid='nowhere.txt')

def test_lines_of_a_row_stay_together_and_blank_ones_are_counted():
    rows = ['a\nb', None, 'c\n\n', ['d', 'e'], '', [], 'f\r\ng']
    c = text_corpus(rows, valid_pct=.2, test_pct=0)
    assert c.splits == dict(train=['a', 'b', 'c', ['d', 'e']], valid=['f', 'g'])
    assert c.skipped == {'missing rows': 1, 'blank lines': 4} and '1 missing rows' in c.said

# gold

def test_gold_fits_its_lines():
    "Tags of other tokens than those that are read are no tags"
    with pytest.raises(CorpusError, match='no lines'): toy_corpus(0, 1, 0, 0)
    for wrong in ('a text', b'a text', iter('ab'), None):
        with pytest.raises(CorpusError, match='must be a list'): Corpus('bad', dict(train=wrong))
    both = {k: [Sentence(['a', 'b'], ['X', 'Y'])]*2 for k in ('train', 'valid')}
    corpus = Corpus.from_gold('changed', both)
    corpus.gold['train'][1].tokens[:] = ['a', 'b', 'c']
    dls = ElmoDataLoaders.from_corpus(corpus, bs=2, device='cpu')
    assert dls.train.text.notes == {} and dls.valid.text.notes['tags'] == [['X', 'Y']]*2

# local copies

def shakespeare_copy(folder):
    "Cut by characters, also inside a line"
    (folder/'input.txt').write_text('\n\n'.join(f'Speaker {i}:\nline {i}' for i in range(100)))
    text = (folder/'input.txt').read_text()
    a = int(len(text)*.9)
    b = a + int((len(text) - a)*.5)
    parts = dict(train=text[:a], valid=text[a:b], test=text[b:])
    return {split: [line for line in part.split('\n') if line] for split,part in parts.items()}

def wikitext_copy(folder):
    parts = {split: [f'a {split}', '= H ='] for split in ('train', 'valid', 'test')}
    for split in parts: (folder/f'{split}.txt').write_text(f' a {split} \n\n = H =\n')
    return parts

# Each writes a small copy into a folder, and returns its splits
COPIES = dict(tiny_shakespeare=shakespeare_copy, wikitext2=wikitext_copy)

@pytest.mark.parametrize('name', sorted({*CORPORA} - {'toy'}))
def test_a_named_corpus_reads_its_copy(name, tmp_path, monkeypatch):
    folder = tmp_path/corpora._FOLDERS.get(name, name)
    folder.mkdir()
    with pytest.raises(CorpusError, match='no file .*txt'): CORPORA[name](folder)
    splits = COPIES[name](folder)
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path))
    corpus = CORPORA[name](folder)
    assert CORPORA[name]().splits == corpus.splits == splits and corpus.name == name
    with pytest.raises(CorpusError, match='no file'): CORPORA[name](tmp_path/'nowhere')

def test_the_published_texts():
    c = tiny_shakespeare(local('tiny_shakespeare'))
    assert c.train[:2] == ['First Citizen:', 'Before we proceed any further, hear me speak.']
    # a cut may fall inside a line, which then counts in both parts
    assert sum(map(len, c.splits.values())) in range(32777, 32781)
    data = (local('tiny_shakespeare')/'input.txt').read_bytes()
    assert corpora._SHAKESPEARE_HASH == 'sha256:' + hashlib.sha256(data).hexdigest()
    c = wikitext2(local('wikitext-2'))
    assert [sum(len(o.split()) for o in v) for v in c.splits.values()] == [2_051_910, 213_886, 241_211]
    c = treebank('UD_English-EWT', local('ud-ewt'))
    assert [sum(len(o.tokens) for o in v) for v in c.gold.values()] == [204577, 25147, 25094]
    assert len({t for o in c.gold['train'] for t in o.tags}) == 17
    assert c.gold['train'][0].tags[:4] == ['PROPN', 'PUNCT', 'PROPN', 'PUNCT']

# downloads

@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    return tmp_path/'cache'

class Handler(http.server.BaseHTTPRequestHandler):
    body, status = b'<html>Please log in</html>', 200
    def do_GET(self):
        self.send_response(self.status)
        self.send_header('Content-Length', str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)
    def log_message(self, *args): pass

@pytest.fixture
def server(monkeypatch):
    srv = http.server.ThreadingHTTPServer(('127.0.0.1', 0), type('H', (Handler,), {}))
    monkeypatch.setattr(corpora, '_SHAKESPEARE', f'http://127.0.0.1:{srv.server_port}/input.txt')
    threading.Thread(target=srv.serve_forever, daemon=True).start()
    yield srv
    srv.shutdown()
    srv.server_close()

def test_a_download_is_compared_and_kept(cache, server, monkeypatch, tmp_path):
    "A page to log in is no corpus"
    with pytest.raises(CorpusError, match='path=.*ELMO_FASTAI_DATA.*hash'): tiny_shakespeare()
    assert not [file for file in cache.rglob('*') if file.is_file()]
    shakespeare_copy(tmp_path)
    server.RequestHandlerClass.body = data = (tmp_path/'input.txt').read_bytes()
    monkeypatch.setattr(corpora, '_SHAKESPEARE_HASH', 'sha256:' + hashlib.sha256(data).hexdigest())
    c = tiny_shakespeare()
    server.RequestHandlerClass.status = 404
    assert tiny_shakespeare().splits == c.splits == tiny_shakespeare(tmp_path).splits

@pytest.mark.parametrize('make', [*(make for name,make in CORPORA.items() if name != 'toy'),
                                  lambda: treebank('UD_X-Y')])
def test_no_network_says_what_to_do(cache, make, monkeypatch):
    import datasets, requests
    def refuse(*args, **kwargs): raise requests.ConnectionError('network is unreachable')
    monkeypatch.setattr(requests, 'get', refuse)
    monkeypatch.setattr(datasets, 'load_dataset', refuse)
    with pytest.raises(CorpusError, match="^can't download .*path=.*ELMO_FASTAI_DATA.*unreachable$"): make()

# a treebank

ROWS = '\n'.join('\t'.join([str(i), word, '_', tag, *'______'])
                 for i,(word, tag) in enumerate([('đường phố', 'N'), ('đẹp', 'A')], 1)) + '\n\n'

def test_a_treebank(tmp_path):
    "A blank in a word does not end it; a part may lie in several files"
    for part in ('train-a', 'train-b', 'dev', 'test'):
        (tmp_path/f'vi_vtb-ud-{part}.conllu').write_text(ROWS, encoding='utf-8')
    c = treebank('UD_Vietnamese-VTB', tmp_path)
    one = [['đường phố', 'đẹp']]
    assert c.splits == dict(train=one*2, valid=one, test=one)
    dls = ElmoDataLoaders.from_corpus(c, bs=2, device='cpu')
    assert 'đường phố' in dls.vocab.o2i and dls.train.text.notes['tags'] == [['N', 'A']]*2
    (tmp_path/'th_tud-ud-test.conllu').write_text(ROWS, encoding='utf-8')
    with pytest.raises(CorpusError, match="'th_tud', 'vi_vtb'"): treebank('UD_X-Y', tmp_path)

def test_a_treebank_comes_from_its_repository(cache, server, monkeypatch, tmp_path):
    import pooch
    with zipfile.ZipFile(tmp_path/'a.zip', 'w') as archive:
        for part in ('train', 'dev', 'test'): archive.writestr(f'UD_X-Y-r1/x_y-ud-{part}.conllu', ROWS)
        archive.writestr('UD_X-Y-r1/not-to-release/old-ud-train.txt', 'x')
    server.RequestHandlerClass.body = (tmp_path/'a.zip').read_bytes()
    was = pooch.retrieve
    monkeypatch.setattr(pooch, 'retrieve', lambda url, *args, **kwargs: was(url.replace(
        'https://github.com', f'http://127.0.0.1:{server.server_port}'), *args, **kwargs))
    assert len(treebank('UD_X-Y', version='r1').train) == 1
