"""Treebanks of Universal Dependencies by name: names, local copies, downloads from a server,
missing parts, the doors that take them"""

import hashlib, http.server, re, threading

import pytest
import requests

from elmo_fastai.base.errors import CorpusError
from elmo_fastai.data.tagged import TagDataLoaders
from elmo_fastai.text import treebanks
from elmo_fastai.text.sources import get_corpus, read_texts
from elmo_fastai.text.treebanks import (LANGUAGES, REPOSITORIES, read_treebank, treebank_code,
    treebank_files)
from copies import local

WORDS = [('đường phố', 'NOUN', 'Nc'), ('đẹp', 'ADJ', 'A'), ('.', 'PUNCT', 'CH')]

def conllu(n, words=WORDS, first=0):
    "A file of `n` sentences with different first words"
    sents = []
    for k in range(first, first+n):
        rows = [(f'{words[0][0]}{k}', *words[0][1:]), *words[1:]]
        lines = ['\t'.join([str(i), word, '_', tag, xpos, *'_____']) for i, (word, tag, xpos) in
            enumerate(rows, 1)]
        sents.append('\n'.join([f'# sent_id = {k}', *lines, '']))
    return '\n'.join(sents) + '\n'

def write(folder, code, **parts):
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for part, n in parts.items():
        (folder/f'{code}-ud-{part}.conllu').write_text(conllu(n, first=first), encoding='utf-8')
        first += n

def tokens(sents): return [sent.tokens for sent in sents]

@pytest.fixture
def data(tmp_path, monkeypatch):
    "The folder that ELMO_FASTAI_DATA names; no download is possible"
    folder = tmp_path/'data'
    folder.mkdir()
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(folder))
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    def refuse(*args, **kwargs): raise requests.ConnectionError('network is unreachable')
    monkeypatch.setattr(requests, 'get', refuse)
    return folder

# names

def test_the_table_is_whole():
    assert len(LANGUAGES) == 193 and len(REPOSITORIES) == 353
    for code, repository in REPOSITORIES.items():
        assert re.fullmatch('[a-z]+_[a-z0-9]+', code) and re.fullmatch(
            r'UD_[A-Z][A-Za-z_]+-[A-Za-z0-9]+', repository), (code, repository)
    known = dict(en_ewt='UD_English-EWT', grc_proiel='UD_Ancient_Greek-PROIEL',
        zh_gsdsimp='UD_Chinese-GSDSimp', no_bokmaal='UD_Norwegian-Bokmaal', ug_udt='UD_Uyghur-UDT')
    assert known.items() <= REPOSITORIES.items()

@pytest.mark.parametrize('name, code', [('vi_vtb', 'vi_vtb'), (' VI_VTB ', 'vi_vtb'),
    ('UD_Vietnamese-VTB', 'vi_vtb'), ('ud_old_french-NEW', 'fro_new'), ('UD_Norwegian-Nynorsk',
    'no_nynorsk')])
def test_names(name, code):
    assert treebank_code(name) == code

@pytest.mark.parametrize('name, near', [('vi_vtbb', 'vi_tuecl, vi_vtb'), ('vietnamese',
    'vi_tuecl, vi_vtb'), ('vi', 'vi_vtb'), ('dan_ddt', 'da_ddt'), ('cs_pdt', 'cs_pdtc'),
    ('vietnames', 'Vietnamese'), ('UD_Vietnames-VTB', 'Vietnamese'), ('klingon_x',
    'names are like ud:vi_vtb'), ('', 'names are like ud:vi_vtb')])
def test_a_name_that_is_wrong(data, name, near):
    with pytest.raises(CorpusError) as e:
        get_corpus(f'ud:{name}')
    assert near in str(e.value) and f'ud:{name}' in str(e.value) and 'unknown' in str(e.value)

def test_a_name_without_its_mark(data):
    with pytest.raises(CorpusError, match=r"unknown corpus 'vi_vtb' \(did you mean ud:vi_vtb\?\)"):
        get_corpus('vi_vtb')

# local copies

@pytest.mark.parametrize('place', ['.', 'ud-languages', 'ud-vi', 'UD_Vietnamese-VTB',
    'ud-treebanks-v2.18/UD_Vietnamese-VTB'])
def test_a_local_copy_is_found(data, place, capsys):
    write(data/place, 'vi_vtb', train=5, dev=2, test=3)
    # another one, whose name begins likewise
    write(data/place, 'vi_vtbx', train=1)
    c = get_corpus('ud:vi_vtb')
    assert [len(lines) for lines in c.splits.values()] == [5, 2, 3] and list(c.splits) == ['train',
        'valid', 'test']
    assert c.name == 'ud_vi_vtb' and c.remark is None and not capsys.readouterr().out
    assert (get_corpus('ud:UD_Vietnamese-VTB').splits == c.splits == get_corpus('ud:vi_vtb',
        data=data).splits)
    assert c.gold['train'][0].tokens == ['đường\u00a0phố0', 'đẹp',
        '.'] and c.gold['train'][0].tags == ['NOUN', 'ADJ', 'PUNCT']
    assert c.train[0].split(' ') == c.gold['train'][0].tokens
    assert get_corpus('ud:vi_vtb', tag_col='xpos').gold['test'][0].tags == ['Nc', 'A', 'CH']

def test_a_treebank_of_ones_own(data):
    "Its name is in no table"
    write(data/'ud-mine', 'xx_mine', train=3, dev=1)
    assert len(get_corpus('ud:xx_mine').train) == 3

def test_a_part_in_several_files(data):
    for k, part in enumerate(('train-a', 'train-b', 'dev')):
        (data/f'cs_big-ud-{part}.conllu').write_text(conllu(2, first=10*k), encoding='utf-8')
    c = get_corpus('ud:cs_big')
    assert (len(c.train) == 4 and len(c.valid) == 2 and [file.name for file in c.files['train']] ==
        ['cs_big-ud-train-a.conllu', 'cs_big-ud-train-b.conllu'])

def test_a_local_copy_elsewhere(data, tmp_path):
    write(tmp_path/'here', 'vi_vtb', train=3, dev=1)
    assert len(read_treebank('vi_vtb', tmp_path/'here').train) == 3
    with pytest.raises(CorpusError, match="here' has no file da_ddt-ud-train.conllu"):
        read_treebank('da_ddt', tmp_path/'here')

# missing parts

def check_disjoint(c):
    train, valid = tokens(c.gold['train']), tokens(c.gold['valid'])
    test = tokens(c.gold.get('test', []))
    assert (train and valid and not any(sent in train for sent in valid + test) and not any(sent in
        valid for sent in test))

def test_without_a_training_part(data, capsys):
    write(data/'ud', 'da_ddt', dev=30, test=7)
    (data/'ud').rename(data/'ud-x')
    c = get_corpus('ud:da_ddt')
    assert {split: len(lines) for split, lines in c.splits.items()} == dict(train=27, valid=3,
        test=7)
    check_disjoint(c)
    said = capsys.readouterr().out
    assert (
        said.strip()
        == c.remark
        == 'The treebank da_ddt has no part train: of its part dev the first 27 sentences train, '
           'and the last 3 validate'
    )
    assert c.remark in repr(c)

def test_without_a_part_to_validate_on(data, capsys):
    write(data, 'el_gud', train=20, test=7)
    c = get_corpus('ud:el_gud')
    assert {split: len(lines) for split, lines in c.splits.items()} == dict(train=18, valid=2,
        test=7)
    check_disjoint(c)
    assert 'el_gud has no part dev: of its part train the first 18' in capsys.readouterr().out

def test_with_a_training_part_alone(data):
    write(data, 'qq_one', train=2)
    assert list(get_corpus('ud:qq_one').splits) == ['train', 'valid']
    write(data, 'qq_few', train=1)
    with pytest.raises(CorpusError, match='part train of qq_few has one sentence'):
        get_corpus('ud:qq_few')

def test_the_test_part_is_never_trained_on(data):
    write(data, 'ar_pud', test=9)
    for door in get_corpus, TagDataLoaders.from_corpus:
        with pytest.raises(CorpusError, match='ar_pud has only a test part'): door('ud:ar_pud')
    assert len(list(read_texts('ud:ar_pud'))) == 9, 'its texts may be embedded'

def test_a_treebank_without_its_text(data):
    for part in ('train', 'dev'):
        (data/f'ar_nyuad-ud-{part}.conllu').write_text('1\t_\t_\tNOUN\t' + '\t'.join('______') +
            '\n\n', encoding='utf-8')
    for door in get_corpus, TagDataLoaders.from_corpus:
        with pytest.raises(CorpusError, match='ar_nyuad have no text'): door('ud:ar_nyuad')

@pytest.mark.parametrize('part,missing', [('dev', 'train'), ('train', 'dev')])
def test_a_tagger_divides_the_one_part_as_a_corpus(data, capsys, part, missing):
    write(data, 'da_ddt', **{part: 30}, test=7)
    dls = TagDataLoaders.from_corpus('ud:da_ddt', device='cpu')
    remark = f'has no part {missing}: of its part {part} the first 27 sentences train'
    assert remark in repr(dls) and remark in capsys.readouterr().out
    gold = get_corpus('ud:da_ddt').gold
    assert [tokens(dl.text.items) for dl in dls.loaders] == [
        tokens(gold[split]) for split in ('train', 'valid')]

# downloads

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        answer = self.server.files.get(self.path)
        if answer is None: return self.send_error(404)
        if answer == 'fail': return self.send_error(503)
        body = answer.encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body) + (100 if self.path in self.server.broken
            else 0)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass

@pytest.fixture
def home(tmp_path, monkeypatch):
    """A server in the place of the treebanks' home: its `files` by address; those in `broken` end
    too early"""
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path/'cache'))
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.files, server.broken, server.asked = {}, set(), []
    server.cache = tmp_path/'cache'/'elmo_fastai'/'ud'/'master'
    monkeypatch.setattr(treebanks, 'HOME', f'http://127.0.0.1:{server.server_port}')
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()

def offer(home, repository, code, **parts):
    first = 0
    for part, n in parts.items():
        home.files[f'/{repository}/master/{code}-ud-{part}.conllu'] = conllu(n, first=first)
        first += n

def test_download_once(home):
    offer(home, 'UD_Vietnamese-VTB', 'vi_vtb', train=5, dev=2, test=3)
    c = get_corpus('ud:vi_vtb')
    assert [len(lines) for lines in c.splits.values()] == [5, 2,
        3] and c.gold['train'][0].tokens[0] == 'đường\u00a0phố0'
    assert home.asked == [f'/UD_Vietnamese-VTB/master/vi_vtb-ud-{part}.conllu' for part in ('train',
        'dev', 'test')]
    home.files.clear()
    assert get_corpus('ud:UD_Vietnamese-VTB').splits == c.splits and len(home.asked) == 3, (
        'from the cache')
    assert sorted(file.name for file in (home.cache/'vi_vtb').iterdir()) == [
        f'vi_vtb-ud-{part}.conllu' for part in ('dev', 'test', 'train')]

def test_download_of_a_newer_treebank(home):
    offer(home, 'UD_Vietnamese-Newer', 'vi_newer', train=5, dev=2)
    assert len(get_corpus('ud:UD_Vietnamese-Newer').train) == 5
    with pytest.raises(CorpusError, match='unknown treebank'): get_corpus('ud:vi_newest')

def test_download_without_a_training_part(home, capsys):
    "The cache remembers that there is none"
    offer(home, 'UD_Danish-DDT', 'da_ddt', dev=10, test=3)
    home.files['/UD_Danish-DDT/master/stats.xml'] = (
        '<treebank><size><total><sentences>13</sentences></total></size></treebank>')
    for _ in range(2):
        c = get_corpus('ud:da_ddt')
        assert (len(c.train) == 9 and len(c.valid) == 1 and len(c.test) == 3 and 'no part train' in
            capsys.readouterr().out)
    assert len(home.asked) == 4

def test_download_of_a_part_in_several_files(home):
    "Else it would train on its part dev without a word"
    offer(home, 'UD_Czech-PDTC', 'cs_pdtc', dev=10, test=3)
    home.files['/UD_Czech-PDTC/master/stats.xml'] = (
        '<treebank>\n <size>\n  <total><sentences>5000</sentences></total></size></treebank>')
    with pytest.raises(CorpusError,
        match=r'UD_Czech-PDTC has its training part in several files.*--data'):
        get_corpus('ud:cs_pdtc')
    assert not home.cache.exists() or not list(home.cache.iterdir())

@pytest.mark.parametrize('how', ['nothing', 'fails', 'breaks off', 'no treebank'])
def test_whole_or_not_at_all(home, how):
    "The last of three files can't be had: the next call begins anew"
    offer(home, 'UD_Vietnamese-VTB', 'vi_vtb', train=5, dev=2, test=3)
    last = '/UD_Vietnamese-VTB/master/vi_vtb-ud-test.conllu'
    good = dict(home.files)
    if how == 'nothing': home.files.clear()
    elif how == 'fails': home.files[last] = 'fail'
    elif how == 'breaks off': home.broken.add(last)
    else: home.files[last] = '<html>\nPlease login\nyour room\n</html>'
    says = {'nothing': 'has no file vi_vtb-ud-train.conllu', 'fails': "503.*ELMO_FASTAI_DATA",
        'breaks off': "can't download .*UD_Vietnamese-VTB.*broke off", 'no treebank':
        'vi_vtb-ud-test.conllu is not the file that it should be'}[how]
    with pytest.raises(CorpusError, match=says): get_corpus('ud:vi_vtb')
    assert not home.cache.exists() or not list(home.cache.iterdir())
    home.files, home.broken = good, set()
    assert len(get_corpus('ud:vi_vtb').test) == 3

def test_a_login_page_in_the_place_of_every_file(home):
    "Of a treebank that has a release, of one that has none, and of its statistics"
    page = '<html>\nPlease login\nyour room\n</html>'
    for repository, code in (('UD_English-EWT', 'en_ewt'), ('UD_Danish-DDT', 'da_ddt')):
        version = treebanks.RELEASED.get(code, 'master')
        for part in ('train', 'dev', 'test'):
            home.files[f'/{repository}/{version}/{code}-ud-{part}.conllu'] = page
        with pytest.raises(CorpusError, match='not the file that it should be.*ELMO_FASTAI_DATA'):
            get_corpus(f'ud:{code}')
    offer(home, 'UD_Czech-PDTC', 'cs_pdtc', dev=10, test=3)
    home.files['/UD_Czech-PDTC/master/stats.xml'] = page
    with pytest.raises(CorpusError, match='stats.xml is not the file'): get_corpus('ud:cs_pdtc')
    assert not [file for file in home.cache.parent.rglob('*') if file.is_file()]

def test_a_released_treebank(home, monkeypatch):
    "Comes from its tag, with its checksums; one that reads well and is another is refused"
    offer(home, 'UD_English-EWT', 'en_ewt', train=5, dev=2, test=3)
    home.files = {path.replace('master', 'r2.16'): text for path, text in home.files.items()}
    with pytest.raises(CorpusError, match='checksum'): get_corpus('ud:en_ewt')
    for path, text in home.files.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        monkeypatch.setitem(treebanks.HASHES, path.rpartition('/')[2], f'sha256:{digest}')
    assert len(get_corpus('ud:en_ewt').train) == 5

def test_no_network(data):
    with pytest.raises(CorpusError,
        match=r"can't download .*UD_Vietnamese-VTB.*no connection.*ud-vi_vtb.*ELMO_FASTAI_DATA"):
        get_corpus('ud:vi_vtb')

# the doors

def test_one_part(data):
    write(data, 'vi_vtb', train=5, dev=2)
    assert list(treebank_files('vi_vtb:dev')) == ['dev'] and list(treebank_files('vi_vtb')) == [
        'train', 'dev']
    with pytest.raises(CorpusError, match='has no part test: it has train, dev'):
        treebank_files('vi_vtb:test')
    with pytest.raises(CorpusError, match='the parts of a treebank are train, dev, test'):
        treebank_files('vi_vtb:valid')
    with pytest.raises(CorpusError, match='a corpus is a whole treebank: say ud:vi_vtb'):
        get_corpus('ud:vi_vtb:dev')

def test_texts_of_a_treebank(data):
    write(data, 'vi_vtb', dev=2, test=3)
    texts = list(read_texts('ud:vi_vtb'))
    assert [tokens[0] for tokens, problem in texts] == [f'đường\u00a0phố{k}' for k in range(5)]
    assert len(list(read_texts('ud:vi_vtb:test'))) == 3

def test_tagger_of_a_treebank(data):
    from elmo_fastai.data.loaders import ElmoDataLoaders
    from elmo_fastai.data.tagged import TagDataLoaders
    write(data, 'da_ddt', dev=30, test=7)
    dls = TagDataLoaders.from_corpus('ud:da_ddt', bs=4, device='cpu')
    assert (len(dls.train.text) == 27 and len(dls.valid.text) == 3 and list(dls.labels) == ['ADJ',
        'NOUN', 'PUNCT'])
    lm = ElmoDataLoaders.from_corpus('ud:da_ddt', bs=4, device='cpu')
    assert len(lm.train.text) == 27 and len(lm.valid.text) == 3
    assert ('đường\u00a0phố29' in lm.valid.text.types.ids and 'đường\u00a0phố36' not in
        lm.valid.text.types.ids)

def test_elmo_pretrain_and_elmo_embed(data, tmp_path, monkeypatch, capsys):
    import h5py
    from elmo_fastai.tasks.embed import elmo_embed
    from elmo_fastai.train.command import elmo_pretrain
    monkeypatch.chdir(tmp_path)
    write(data, 'da_ddt', dev=60, test=7)
    (data/'da_ddt-ud-test.conllu').write_text(conllu(7, [('x'*60, 'NOUN', 'Nc'), *WORDS[1:]]),
        encoding='utf-8')
    elmo_pretrain(['ud:da_ddt', '--model', 'tiny', '--epochs', '1', '--bs', '2', '--seq-len', '8',
        '--no-bf16', '--device', 'cpu'])
    said = capsys.readouterr().out
    assert (said.count('The treebank da_ddt has no part train') == 1 and
        'valid: da_ddt-ud-dev.conllu' in said)
    assert (tmp_path/'models'/'ud_da_ddt'/'report.json').exists()
    elmo_embed(['ud:da_ddt:test', '--model', 'models/ud_da_ddt', '--tokenizer', 'space', '--out',
        'v.hdf5'])
    said = capsys.readouterr().out
    assert '7 sentences, 21 tokens; 7 tokens are cut' in said and 'max_chars' in said
    with h5py.File('v.hdf5') as f: assert len(f) == 8 and f['0'].shape[1] == 3
    with pytest.raises(SystemExit):
        elmo_embed(['ud:da_dtd', '--model', 'models/ud_da_ddt', '--out', 'w.hdf5'])
    assert 'da_ddt' in capsys.readouterr().err
    with pytest.raises(SystemExit): elmo_pretrain(['ud:da_dtd'])
    assert 'known: da_ddt' in capsys.readouterr().err

# the copies that are here

NINE = 'vi_vtb th_tud zh_gsdsimp ko_gsd ug_udt te_mtg hy_armtdp el_gud da_ddt'.split()

@pytest.mark.parametrize('name', NINE)
def test_real_treebanks(name, monkeypatch):
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(local('ud-languages').parent))
    c = get_corpus(f'ud:{name}')
    assert len(c.train) > 400 and len(c.valid) >= 50 and len(c.test) > 100
    assert (c.remark is None) == (set(treebank_files(name)) == {'train', 'dev', 'test'})
    tags = {tag for sents in c.gold.values() for sent in sents for tag in sent.tags if tag}
    assert 10 <= len(tags) <= 17
