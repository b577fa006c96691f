"Downloads: login pages, broken connections, wrong checksums, interruptions, no network"
import hashlib
import http.server
import threading

import pytest

from elmo_fastai.base import downloads
from elmo_fastai.base.downloads import download
from elmo_fastai.base.errors import CorpusError, ModelFileError

LOGIN = b'<!DOCTYPE html>\n<html>Welcome guest\nPlease log in</html>\n'
TEXT = b'Speaker:\r\na line of text\n'*400

def sha256(data): return 'sha256:' + hashlib.sha256(data).hexdigest()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.asked.append(self.path)
        if server.status != 200: return self.send_error(server.status)
        self.send_response(200)
        if server.length: self.send_header('Content-Length', server.length(server.body))
        self.end_headers()
        body = server.body
        if server.cuts:
            server.cuts -= 1
            body = body[:len(body)//2]
        self.wfile.write(body)
    def log_message(self, *args): pass

@pytest.fixture
def server(monkeypatch):
    "A server of this machine that sends `body`, cut in half `cuts` times"
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    s.body, s.status, s.cuts, s.asked = TEXT, 200, 0, []
    s.length = lambda body: str(len(body))
    s.url = f'http://127.0.0.1:{s.server_port}/input.txt'
    threading.Thread(target=s.serve_forever, args=(.02,), daemon=True).start()
    yield s
    s.shutdown()
    s.server_close()

def no_page(path):
    "Raises an error where the file is a page"
    if b'<html' in path.read_bytes(): raise ValueError('it is a page')

def nothing_in(folder): return not folder.exists() or not list(folder.iterdir())

def test_a_file_is_downloaded_once(server, tmp_path):
    path = tmp_path/'new'/'input.txt'
    assert download(server.url, path, sha256(TEXT)) == path
    assert path.read_bytes() == TEXT
    server.body = LOGIN
    assert download(server.url, path, sha256(TEXT)) == path
    assert len(server.asked) == 1
    assert [file.name for file in path.parent.iterdir()] == ['input.txt']

@pytest.mark.parametrize('how', [dict(known_hash=sha256(TEXT)), dict(check=no_page)])
def test_a_login_page_is_never_kept(server, tmp_path, how):
    path = tmp_path/'cache'/'input.txt'
    server.body = LOGIN
    with pytest.raises(CorpusError, match='not the file that it should be .*login.*take a copy'):
        download(server.url, path, cure='Or take a copy', **how)
    assert nothing_in(path.parent)
    server.body = TEXT
    assert download(server.url, path, **how).read_bytes() == TEXT

def test_a_wrong_file_in_the_cache_is_replaced(server, tmp_path):
    "As an earlier version left it: the page of a hotel"
    path = tmp_path/'input.txt'
    path.write_bytes(LOGIN)
    assert download(server.url, path, sha256(TEXT)).read_bytes() == TEXT

def test_a_wrong_checksum_names_both(server, tmp_path):
    wrong = sha256(TEXT + b' ')
    with pytest.raises(CorpusError) as e: download(server.url, tmp_path/'input.txt', wrong)
    assert sha256(TEXT)[:20] in str(e.value) and wrong[:20] in str(e.value)
    assert nothing_in(tmp_path)

def test_other_algorithms(server, tmp_path):
    known = 'md5:' + hashlib.md5(TEXT).hexdigest()
    assert download(server.url, tmp_path/'input.txt', known).read_bytes() == TEXT

def test_a_check_sees_the_name(server, tmp_path):
    seen = []
    def check(path): seen.append((path.name, path.read_bytes()))
    download(server.url, tmp_path/'a.conllu', check=check)
    assert seen == [('a.conllu', TEXT)]

def test_nothing_is_downloaded_unchecked(server, tmp_path):
    with pytest.raises(TypeError, match='known_hash'): download(server.url, tmp_path/'input.txt')
    assert not server.asked

@pytest.mark.parametrize('cuts', [1, 2])
def test_a_connection_that_breaks_off_is_tried_again(server, tmp_path, cuts):
    server.cuts = cuts
    path = download(server.url, tmp_path/'input.txt', check=no_page)
    assert path.read_bytes() == TEXT and len(server.asked) == cuts + 1

def test_a_truncated_download_is_not_kept(server, tmp_path):
    server.cuts = 9
    with pytest.raises(CorpusError, match="can't download .*input.txt .the connection broke off"):
        download(server.url, tmp_path/'input.txt', check=no_page)
    assert nothing_in(tmp_path) and len(server.asked) == 3

def test_a_truncated_download_of_unknown_length(server, tmp_path):
    "The connection's end looks like the file's: the checksum finds it"
    server.length, server.cuts = None, 1
    with pytest.raises(CorpusError, match='not the file that it should be'):
        download(server.url, tmp_path/'input.txt', sha256(TEXT))
    assert nothing_in(tmp_path)

def test_an_interruption_leaves_nothing(server, tmp_path):
    path = tmp_path/'input.txt'
    path.write_bytes(LOGIN)
    def interrupt(path): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        download(server.url, tmp_path/'other.txt', check=interrupt)
    assert [file.name for file in tmp_path.iterdir()] == ['input.txt']

def test_an_interruption_of_the_transfer(server, tmp_path, monkeypatch):
    import requests
    def interrupt(*args, **kwargs):
        yield TEXT[:10]
        raise KeyboardInterrupt
    monkeypatch.setattr(requests.Response, 'iter_content', interrupt)
    with pytest.raises(KeyboardInterrupt):
        download(server.url, tmp_path/'input.txt', sha256(TEXT))
    assert nothing_in(tmp_path)

@pytest.mark.parametrize('status, tries', [(403, 1), (404, 1), (503, 3)])
def test_what_the_server_answers(server, tmp_path, status, tries):
    server.status = status
    with pytest.raises(ModelFileError, match=f"can't download .*{status}.*Take a copy"):
        download(server.url, tmp_path/'input.txt', sha256(TEXT), cure='Take a copy',
                 error=ModelFileError)
    assert len(server.asked) == tries and nothing_in(tmp_path)

def test_a_file_that_need_not_exist(server, tmp_path):
    server.status = 404
    assert download(server.url, tmp_path/'a.txt', check=no_page, optional=True) is None
    server.status = 403
    with pytest.raises(CorpusError, match='403'):
        download(server.url, tmp_path/'a.txt', check=no_page, optional=True)

def test_no_network(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(CorpusError, match="no connection to the server.. Take a copy"):
        download(server.url, tmp_path/'input.txt', sha256(TEXT), cure='Take a copy')

def test_a_server_that_is_silent(tmp_path, monkeypatch):
    import socket
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    monkeypatch.setattr(downloads, 'TIMEOUT', .1)
    with socket.create_server(('127.0.0.1', 0)) as silent:
        url = f'http://127.0.0.1:{silent.getsockname()[1]}/input.txt'
        with pytest.raises(CorpusError, match='no answer in'):
            download(url, tmp_path/'input.txt', sha256(TEXT))

def test_a_folder_that_can_not_be_written(server, tmp_path):
    (tmp_path/'file').write_text('')
    with pytest.raises(CorpusError, match="can't download.*Take a copy"):
        download(server.url, tmp_path/'file'/'input.txt', sha256(TEXT), cure='Take a copy')
