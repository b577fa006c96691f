"""The release's own checks: tag and change log agree, the archives hold what an installation needs"""
import ast, builtins, importlib.util, re, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from importlib import import_module

import pytest
from notebooks import REPOSITORY, copied, links, root, well_formed

cfg = ConfigParser(delimiters=['='])
cfg.read(root/'settings.ini', encoding='utf-8')
version = cfg['DEFAULT']['version']
spec = importlib.util.spec_from_file_location('release', root/'.github'/'release.py')
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

CHANGES = '### Added\n\n- One\n[and a link](https://example.org) that begins a line.'
DATED = f"""# Changelog\n\n## [9.9.9] - 2030-01-01\n\nLater\n
## [{version}] - 2026-01-31\n\n{CHANGES}\n\n[9.9.9]: https://example.org\n"""

def test_notes_are_the_section_of_the_tag():
    assert release.notes(f'v{version}', DATED) == CHANGES

@pytest.mark.parametrize('tag,log,message', [
    ('v9.9.9', DATED, 'the tag is v9.9.9, but settings.ini has version'),
    (version, DATED, 'the tag must be v'),
    (None, '# Changelog\n', 'has no section'),
    (None, DATED.replace('2026-01-31', 'unreleased'), "needs the date.*not 'unreleased'"),
    (None, DATED.replace(CHANGES, ''), 'is empty')], ids=range(5))
def test_a_release_that_does_not_agree_is_stopped(tag, log, message):
    with pytest.raises(SystemExit, match=message): release.notes(tag or f'v{version}', log)

@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "The folder with both archives, built in a copy of the repository, and what was said"
    copy = copied(tmp_path_factory.mktemp('build')/'repository', 'elmo_fastai', 'tests')
    p = subprocess.run([sys.executable, *'setup.py -q sdist -d dist bdist_wheel -d dist'.split()],
                       cwd=copy, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return copy/'dist', p.stdout + p.stderr

def test_the_archives_hold_what_an_installation_needs(built):
    "And no tests; setuptools takes no folder of data for a package that was forgotten"
    folder, said = built
    assert len(release.archives(folder)) == 2 and 'would be ignored' not in said, said
    [wheel], [source] = folder.glob('*.whl'), folder.glob('*.tar.gz')
    assert wheel.stat().st_size < 9.8e6
    with tarfile.open(source) as t:
        assert not [n for n in t.getnames() if n.split('/')[1:2] == ['tests']]

@pytest.mark.parametrize('lacks', ['model.safetensors', 'ai2.py'])
def test_an_archive_that_lacks_something_is_stopped(built, tmp_path, lacks):
    [wheel], [source] = built[0].glob('*.whl'), built[0].glob('*.tar.gz')
    (tmp_path/source.name).write_bytes(source.read_bytes())
    with zipfile.ZipFile(wheel) as a, zipfile.ZipFile(tmp_path/wheel.name, 'w') as b:
        for name in a.namelist():
            if not name.endswith(f'/{lacks}'): b.writestr(name, a.read(name))
    with pytest.raises(SystemExit, match=rf'whl lacks elmo_fastai/\S*{re.escape(lacks)}'):
        release.archives(tmp_path)

def test_the_description_links_from_anywhere(built):
    "The package index shows the README, far from the files that its links name"
    [wheel] = built[0].glob('*.whl')
    with zipfile.ZipFile(wheel) as z:
        said = z.read(next(n for n in z.namelist() if n.endswith('/METADATA'))).decode()
    found = links(said) + re.findall(r'!\[[^\]]*\]\(([^)]+)\)', said)
    assert len(found) > 15
    for link in found:
        assert well_formed(link), link
        if m := re.match(rf'{REPOSITORY}/(?:blob|raw)/main/([^#]+)', link):
            assert (root/m[1]).is_file(), link

BENCHMARKS = sorted((root/'tests'/'benchmarks').glob('*.py'))

def test_what_benchmarks_import_is_there():
    "Nobody runs a script of hours to learn that a module has moved"
    for f in BENCHMARKS:
        for n in ast.walk(ast.parse(f.read_text(encoding='utf-8'))):
            if not isinstance(n, ast.ImportFrom) or not n.module.startswith('elmo_fastai'): continue
            m = import_module(n.module)
            assert not [o.name for o in n.names if not hasattr(m, o.name)], f

@pytest.mark.parametrize('file', BENCHMARKS, ids=lambda f: f.stem)
def test_what_a_benchmark_names_it_has(file):
    "Or to learn in its last hour that it has forgotten an import"
    nodes = [*ast.walk(ast.parse(file.read_text(encoding='utf-8')))]
    names = [n for n in nodes if isinstance(n, ast.Name)]
    made = {n.id for n in names if not isinstance(n.ctx, ast.Load)} | {*dir(builtins), '__file__'}
    for n in nodes:
        if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)): made.add(n.name)
        if isinstance(n, ast.arg): made.add(n.arg)
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            made |= {(o.asname or o.name).split('.')[0] for o in n.names}
    assert not {n.id for n in names} - made
