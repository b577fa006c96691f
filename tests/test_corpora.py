"Corpora: files, splits, faults, local copies, downloads that fail"
import hashlib, http.server, pickle, threading

import pytest
import requests
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import corpora
from elmo_fastai.base.errors import CorpusError
from elmo_fastai.text.corpora import (Corpus, Sentence, all_lines, lines_of, read_conll, read_text,
    reuters, sst2, tiny_shakespeare, toy_corpus, wikitext2)
from elmo_fastai.text.sources import CORPORA, get_corpus, text_corpus
from elmo_fastai.text.splits import files_named
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
    if want and not lines[0].startswith('\ufeff'): assert lines_of(read_text(f)) == want
    f.write_bytes(b'\xef\xbb\xbf one \r\n\r\n\t\r\ntwo\rthree\nfour')
    assert lines_of(read_text(f)) == ['one', 'two', 'three', 'four']

@pytest.mark.parametrize('raw, msg', [(b'', 'empty or has only white space'), (b' \n\t\r\n ',
    'empty or has only white space'), (b'\xef\xbb\xbf\n', 'empty or has only white space'),
    ('naïve\nfiancée'.encode('latin-1'), r'line 1 is not UTF-8 \(byte 2\).*encoding='),
    (b'good\nbad \xff here', r'line 2 is not UTF-8 \(byte 4\)'), ('text'.encode('utf-16'),
    'UTF-16'), (b'one\ntwo\0three', 'line 2 has a NUL character at position 3')])
def test_bad_files(tmp_path, raw, msg):
    f = tmp_path/'bad.txt'; f.write_bytes(raw)
    with pytest.raises(CorpusError, match=msg) as e: text_corpus(f)
    assert 'bad.txt' in str(e.value)

@pytest.mark.parametrize('encoding', ['utf-8', 'UTF-8', 'utf8', 'utf_8'])
def test_a_mark_is_dropped_however_utf8_is_written(tmp_path, encoding):
    (tmp_path/'a.txt').write_bytes(b'\xef\xbb\xbfab\n')
    assert read_text(tmp_path/'a.txt', encoding) == 'ab\n'
    (tmp_path/'a.txt').write_bytes(b'\xef\xbb\xbfab\n\xe9cd')
    with pytest.raises(CorpusError, match='line 2 is not UTF-8 .byte 0.'):
        read_text(tmp_path/'a.txt', encoding)

@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_line_ends_mean_the_same_everywhere(tmp_path, end):
    "Of Windows, of old Macs, of everybody else"
    def write(name, *lines):
        (tmp_path/name).write_bytes(end.join(lines).encode())
        return tmp_path/name
    assert text_corpus(write('a.txt', 'a b', '', 'c'), 0, 0).train == ['a b', 'c']
    assert [s.tokens for s in read_conll(write('a.conll', 'a X', 'b Y', '', 'c Z'))] == [['a', 'b'],
        ['c']]
    for part in ('train', 'dev', 'test'): write(f'sst2.{part}.tsv', '1\tgood', '0\tbad')
    assert sst2(tmp_path).train == ['good', 'bad']
    (tmp_path/'a.txt').write_bytes(end.join(['a', 'b', '']).encode() + b'\xff')
    with pytest.raises(CorpusError, match='line 3 is not UTF-8'): read_text(tmp_path/'a.txt')

def test_missing_file_folder_pattern(tmp_path):
    with pytest.raises(CorpusError, match="no file or folder '.*nowhere.txt'"):
        text_corpus(tmp_path/'nowhere.txt')
    with pytest.raises(CorpusError, match='has no .txt .*files'): text_corpus(tmp_path)
    with pytest.raises(CorpusError, match='no file matches the pattern'):
        text_corpus(str(tmp_path/'*.txt'))
    with pytest.raises(CorpusError, match='list of files is empty'): text_corpus([])
    with pytest.raises(CorpusError, match='Is a directory|can\'t read'): read_text(tmp_path)

@pytest.fixture
def books(tmp_path):
    for i in range(4): (tmp_path/f'b{i}.txt').write_text('\n'.join(f'{i} {j}' for j in range(20)))
    (tmp_path/'more').mkdir(); (tmp_path/'more'/'c.txt').write_text('c 0\nc 1')
    return tmp_path

def test_file_folder_pattern_list(books):
    assert len(text_corpus(books/'b0.txt', 0, 0).train) == 20
    assert len(text_corpus(books, 0, 0).train) == 80
    assert len(text_corpus(str(books/'**'/'*.txt'), 0, 0).train) == 82
    assert text_corpus([books/'b1.txt', books/'b0.txt', books/'b1.txt'], 0, 0).train[:1] == ['1 0']
    assert len(text_corpus([books/'b1.txt', books/'b0.txt', books/'b1.txt'], 0, 0).train) == 40

def test_files_held_out(books):
    c = text_corpus(books, valid=books/'b1.txt', test=[books/'b2.txt', books/'more'])
    assert ({o[0] for o in c.train} == {'0', '3'} and {o[0] for o in c.valid} == {'1'} and {o[0] for
        o in c.test} == {'2', 'c'})
    with pytest.raises(CorpusError, match='left to train on'):
        text_corpus(books/'b1.txt', valid=books/'b1.txt')
    with pytest.raises(CorpusError, match='no file or folder'):
        text_corpus(books, valid='nowhere.txt')

def test_blank_lines_are_counted(tmp_path):
    (tmp_path/'a.txt').write_text('\none\n\n \ntwo\n\n'); (tmp_path/'b.txt').write_text('three\n')
    c = text_corpus(tmp_path/'a.txt', valid=tmp_path/'b.txt', test=.5)
    assert c.splits == dict(train=['one'], test=['two'],
        valid=['three']) and c.skipped == {'blank lines': 4}
    assert repr(c).endswith('lines (left out: 4 blank lines)')
    assert (not text_corpus(tmp_path/'b.txt', 0, 0).skipped and all_lines('') == [] and
        all_lines('a\r\n\r\nb\n') == ['a', '', 'b'])

def test_packed_text(tmp_path):
    import gzip
    (tmp_path/'a.txt.gz').write_bytes(gzip.compress(b'one\ntwo\nthree'))
    c = text_corpus(tmp_path/'a.txt.gz')
    assert c.splits == dict(train=['one'], valid=['two'], test=['three']) and c.name == 'a'
    (tmp_path/'a.txt.gz').write_bytes(b'\x1f\x8bnonsense')
    with pytest.raises(CorpusError, match="can't read '.*a.txt.gz'"):
        text_corpus(tmp_path/'a.txt.gz')

# names

def test_get_corpus(toy, books):
    c = get_corpus('toy', seed=42, **SMALL)
    assert c.splits == toy.splits
    assert get_corpus('toy', seed=7, **SMALL).train != toy.train
    assert get_corpus(books/'b0.txt').name == 'b0' and get_corpus(str(books)).name == books.name

@pytest.mark.parametrize('name', ['toys', 'Toy', 'folder/none.txt', ''])
def test_unknown_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == '': (tmp_path/'empty').mkdir()
    with pytest.raises(CorpusError) as e: get_corpus(name)
    if name: assert repr(name) in str(e.value) and all(k in str(e.value) for k in CORPORA)

def test_toy_has_no_local_copy():
    with pytest.raises(CorpusError, match='generated'): get_corpus('toy', data='somewhere')

# local copies

def test_tiny_shakespeare_split(tmp_path, monkeypatch):
    text = '\n\n'.join(f'Speaker {i}:\nline {i}' for i in range(100))
    (tmp_path/'tiny_shakespeare').mkdir()
    f = tmp_path/'tiny_shakespeare'/'input.txt'
    f.write_text(text)
    a = int(len(text)*.9); b = a + int((len(text)-a)*.5)
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path))
    for c in (tiny_shakespeare(), tiny_shakespeare(f), tiny_shakespeare(f.parent),
        get_corpus('tiny_shakespeare', data=f)):
        assert [''.join(c.splits[k]) for k in c.splits] == [o.replace('\n', '').strip() for o in
            (text[:a], text[a:b], text[b:])]

def test_local_copy_incomplete(tmp_path):
    (tmp_path/'train.txt').write_text('a')
    with pytest.raises(CorpusError, match='has no valid.txt and no test.txt'): wikitext2(tmp_path)
    with pytest.raises(CorpusError, match='expected a folder'): wikitext2(tmp_path/'train.txt')
    with pytest.raises(CorpusError, match='no file or folder'): wikitext2(tmp_path/'nowhere')

def test_sst2_bad_line(tmp_path):
    for k in ('train', 'dev', 'test'): (tmp_path/f'sst2.{k}.tsv').write_text('1\tgood\n0\tbad\n')
    assert [o.label for o in sst2(tmp_path).gold['train']] == [1, 0]
    (tmp_path/'sst2.dev.tsv').write_text('1\tgood\n2\tbad\n')
    with pytest.raises(CorpusError, match=r"dev.tsv', line 2: expected 0 or 1.*2 bad"):
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
    c = get_corpus('ud:en_ewt', local('ud-ewt'))
    assert [len(v) for v in c.splits.values()] == [12544, 2001, 2077]
    assert [sum(len(o.tokens) for o in v) for v in c.gold.values()] == [204577, 25147, 25094]
    assert len({t for o in c.gold['train'] for t in o.tags}) == 17
    assert all(len(o.tokens) == len(o.tags) for v in c.gold.values() for o in v)
    first = c.gold['train'][0]
    assert (first.tokens[:4] == ['Al', '-', 'Zaman', ':'] and first.tags[:4] == ['PROPN', 'PUNCT',
        'PROPN', 'PUNCT'] and c.train[0] == first.text)

def test_real_novels():
    d = local('novels')
    c = text_corpus(d, valid=d/'valid', test=.05)
    assert (not any(o.startswith('\ufeff') for o in c.train) and len(c.valid) > 1000 and
        len(c.test) > 500)

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
    known_hash = 'sha256:' + hashlib.sha256(text.encode()).hexdigest()
    place = f'http://127.0.0.1:{server.server_port}/input.txt', known_hash
    monkeypatch.setitem(corpora._PUBLISHED, 'tiny_shakespeare', place)

@pytest.mark.parametrize('corpus', ['tiny_shakespeare', 'reuters'])
def test_a_login_page_is_no_corpus(no_copies, server, monkeypatch, corpus):
    _, known_hash = corpora._PUBLISHED[corpus]
    url = f'http://127.0.0.1:{server.server_port}/input.txt'
    monkeypatch.setitem(corpora._PUBLISHED, corpus, (url, known_hash))
    server.RequestHandlerClass.body = b'<html>Please log in</html>'
    with pytest.raises(CorpusError, match=f'not the file that it should be.*{corpus}.path='):
        getattr(corpora, corpus)()
    assert not [file for file in no_copies.rglob('*') if file.is_file()]

def test_the_published_checksum(no_copies):
    "That of the local copy"
    _, known_hash = corpora._PUBLISHED['tiny_shakespeare']
    data = (local('tiny_shakespeare')/'input.txt').read_bytes()
    assert known_hash == 'sha256:' + hashlib.sha256(data).hexdigest()

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

@pytest.mark.parametrize('make', [tiny_shakespeare, wikitext2, sst2, reuters])
def test_no_network_says_what_to_do(no_network, make):
    with pytest.raises(CorpusError) as e: make()
    for o in ("can't download", 'no connection' if make in (tiny_shakespeare, reuters) else
        'network is unreachable', f'{make.__name__}(path=', 'ELMO_FASTAI_DATA'):
        assert o in str(e.value)

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
    rows = dict(train={'text': [' a b \n', '', ' = H = \n']}, validation={'text': ['c']},
        test={'text': ['d']})
    fake_hub(monkeypatch, lambda *a, **k: rows)
    c = wikitext2()
    assert c.splits == dict(train=['a b', '= H ='], valid=['c'],
        test=['d']) and c.skipped == {'blank lines': 1}
    phrases = [dict(sentence='a fine film ', label=1)]
    fake_hub(monkeypatch, lambda *a, **k: dict(train=phrases, validation=phrases,
        test=[dict(sentence='x', label=-1)]))
    c = sst2()
    assert (c.gold['train'][0].label == 1 and c.gold['test'][0].label is None and c.train ==
        ['a fine film'])

def test_splits_are_lists_of_lines():
    for bad in ('a text', b'a text', (o for o in 'ab'), None):
        with pytest.raises(CorpusError, match="split 'train' must be a list of lines, and is "):
            Corpus('bad', dict(train=bad))
    with pytest.raises(CorpusError, match="unknown corpus ''"): get_corpus('')
    with pytest.raises(CorpusError, match="unknown corpus 'a text .*no file"):
        get_corpus('a text that somebody pasted '*300)
    with pytest.raises(CorpusError, match='expected a file, a folder or a pattern, and got None'):
        files_named(None)

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

# annotation

@pytest.mark.parametrize('token', ['New York', 'a\tb', 'a\n', ''])
def test_a_token_that_a_line_can_not_hold_is_refused(token):
    "Else its sentence would have other tokens than its tags are for"
    sents = [Sentence(['a'], ['X']), Sentence(['b', token], ['X', 'Y'])]
    with pytest.raises(CorpusError, match=r"sentence 1 of the split 'train'.*U\+00A0"):
        Corpus.from_gold('bad', dict(train=sents))

def test_gold_that_does_not_fit_its_lines():
    gold = [Sentence(['a', 'b'], ['X', 'Y'])]
    for lines in (['a b', 'c'], ['a b c'], ['a', 'b']):
        with pytest.raises(CorpusError, match="the split 'train'"):
            Corpus('bad', dict(train=lines), 'space', dict(train=gold))
    assert Corpus('good', dict(train=['a b']), 'space', dict(train=gold)).gold

def test_a_word_with_a_blank_keeps_the_tags_of_its_split(tmp_path):
    "In CoNLL-U a word may hold blanks; here these don't end it"
    from elmo_fastai.data.loaders import ElmoDataLoaders
    rows = [('đường phố', 'N'), ('đẹp', 'A')]
    (tmp_path/'a.conllu').write_text('\n'.join('\t'.join([str(i), w, '_', t, *'______']) for i,
        (w, t) in enumerate(rows, 1)) + '\n', encoding='utf-8')
    sents = read_conll(tmp_path/'a.conllu')
    assert sents[0].tokens == ['đường\u00a0phố', 'đẹp']
    corpus = Corpus.from_gold('vi', dict(train=sents*3, valid=sents))
    dls = ElmoDataLoaders.from_corpus(corpus, bs=2, device='cpu')
    assert dls.train.text.notes['tags'] == [['N',
        'A']]*3 and dls.valid.text.notes['tags'] == [['N', 'A']]

def test_gold_that_changed_after_the_corpus_was_made():
    "Tags of other tokens than those that are read are no tags"
    from elmo_fastai.data.loaders import ElmoDataLoaders

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

def reuters_copy(folder):
    names = [f'training/{i}' for i in range(20)] + ['test/99']
    (folder/'cats.txt').write_text(''.join(f'{name} cocoa\n' for name in names))
    for name in names:
        (folder/name).parent.mkdir(exist_ok=True)
        (folder/name).write_text('COCOA REVIEW\n  Showers continued.\n')

COPIES = dict(tiny_shakespeare=shakespeare_copy, wikitext2=wikitext_copy, sst2=sst2_copy,
    reuters=reuters_copy)

@pytest.mark.parametrize('name', [name for name in CORPORA if name != 'toy'])
def test_a_named_corpus_reads_its_copy(name, tmp_path):
    assert name in COPIES, f'write a small copy of {name} here, as its publisher has it'
    COPIES[name](tmp_path)
    corpus = get_corpus(name, data=tmp_path)
    assert corpus.train and corpus.valid and corpus.test, 'all splits have lines'
    assert all(line.strip() for lines in corpus.splits.values() for line in lines)
    for split,sents in (corpus.gold or {}).items():
        assert len(sents) == len(corpus.splits[split]), 'one sentence with annotations per line'
