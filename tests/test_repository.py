"""What stands around the course: workflows, templates, CONTRIBUTING, the change log and the
citation, and that they agree with the rest"""
import ast, importlib.util, os, re, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import copies, pytest, yaml
from notebooks import (FILES, FOLDERS, REPOSITORY, copied, links, nbs, project, root, rule_for,
                       well_formed)
from notebooks import prose as prose_of

cfg = ConfigParser(delimiters=['='])
cfg.read(root/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
github = root/'.github'
workflows = sorted((github/'workflows').glob('*.yml'))
forms = sorted(f for f in (github/'ISSUE_TEMPLATE').glob('*.yml') if f.name != 'config.yml')
prose = [root/f for f in ('CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md',
                          '.github/PULL_REQUEST_TEMPLATE.md')]

def text(f): return (root/f).read_text(encoding='utf-8')
def load(f): return yaml.safe_load(text(f))
def jobs(f): return load(f)['jobs']
def workflow(name): return github/'workflows'/f'{name}.yml'
def steps(f): return [s for j in jobs(f).values() for s in j.get('steps', [])]
def shell(f): return [s['run'] for s in steps(f) if 'run' in s]
def on(f): return load(f)[True]                        # YAML 1.1 reads the key `on` as true
def name(f): return f.name
each = rule_for(workflows, name)

spec = importlib.util.spec_from_file_location('release', github/'release.py')
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

# one place for the tests of a module

def test_every_module_has_a_file_of_tests():
    apart = ('__init__', '_modidx', 'all', 'look')     # `look` holds colours alone
    modules = [f for f in (root/'elmo_fastai').rglob('*.py') if f.stem not in apart]
    assert modules
    for f in modules:
        twice = sum(o.stem == f.stem for o in modules) > 1
        file = f'test_{f.parent.name}_{f.stem}.py' if twice else f'test_{f.stem}.py'
        assert (root/'tests'/file).is_file(), f'{f.name} needs tests/{file}'

def test_nothing_reads_what_newer_fastcore_does_not_set():
    "`store_attr` of fastcore 2.2.21 and later keeps no `__stored_args__`"
    read = [f.name for f in (root/'elmo_fastai').rglob('*.py') if '__stored_args__' in text(f)]
    assert not read

def test_what_lies_at_the_top():
    p = subprocess.run(['git', 'ls-files'], cwd=root, capture_output=True, text=True)
    if not p.stdout: pytest.skip('no clone, or no git')
    assert {line.split('/')[0] for line in p.stdout.splitlines()} == {*FOLDERS, *FILES}

# where tests run

@pytest.fixture(scope='module')
def left():
    "What a test may leave to those that come after it"
    with pytest.MonkeyPatch.context() as patch:
        for name in ('ELMO_FASTAI_DATA', 'RANK'): patch.setenv(name, 'left')
        yield

def test_a_test_begins_in_an_empty_folder_without_settings(left, tmp_path):
    assert Path.cwd().samefile(tmp_path) and not os.listdir()
    assert not {k: v for k,v in os.environ.items() if k in ('ELMO_FASTAI_DATA', 'RANK')}

@pytest.mark.parametrize('named', [True, False])
def test_a_copy_is_read_where_it_is_the_published_one(tmp_path, monkeypatch, named):
    monkeypatch.setenv('ELMO_FASTAI_TESTS_READ', str(tmp_path) if named else '')
    (tmp_path/'tiny_shakespeare').mkdir()
    file = tmp_path/'tiny_shakespeare'/'input.txt'
    file.write_bytes(b'another text')
    with pytest.raises(pytest.skip.Exception): copies.local('tiny_shakespeare')
    file.write_bytes(b'x'*copies.PUBLISHED['tiny_shakespeare'][1])
    if named: assert copies.local('tiny_shakespeare') == file.parent
    else:
        with pytest.raises(pytest.skip.Exception): copies.local('tiny_shakespeare')

# workflows

@each
def test_workflow_is_well_formed(file):
    d, all_jobs = load(file), jobs(file)
    assert d['name'] == file.stem and on(file)
    assert d['permissions'] == {'contents': 'read'}, 'a job asks itself for what it needs beyond'
    for key,job in all_jobs.items():
        needs = job.get('needs', [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= {*all_jobs}, key
        if 'uses' in job:
            assert 'workflow_call' in on(root/job['uses'])
            continue
        assert job['runs-on'] == 'ubuntu-latest' and 5 <= job['timeout-minutes'] <= 60, key
        for s in job['steps']: assert ('uses' in s) != ('run' in s)

@each
def test_nothing_of_a_stranger_runs(file):
    "Actions are pinned; no secret, and nothing that somebody else can name, is in a command"
    assert 'secrets.' not in text(file)
    for s in steps(file):
        assert '${{' not in s.get('run', '')
        if 'uses' not in s: continue
        pinned = r'[\w.-]+/[\w./-]+@(v\d+|release/v\d+|[0-9a-f]{40})'
        assert re.fullmatch(pinned, s['uses']), s['uses']
        if s['uses'].startswith('actions/checkout@'):
            assert s['with']['persist-credentials'] is False

@each
def test_shell_steps_parse_and_their_files_exist(file):
    named = [o for s in steps(file)
             for o in s.get('with', {}).get('cache-dependency-path', '').split()]
    for run in shell(file):
        p = subprocess.run(['bash', '-n', '-c', run], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        named += re.findall(r'(?<![\w/])((?:tests|nbs|\.github)/[\w./-]+\.\w+'
                            r'|settings\.ini|constraints\.txt)', run)
    for path in named: assert (root/path).is_file(), path

def test_every_make_command_exists():
    targets = {*re.findall(r'^([a-z-]+):', text('Makefile'), re.M)}
    for f in [*workflows, *forms, *prose, root/'.ci'/'run', root/'README.md', *nbs]:
        said = prose_of(f) if f.suffix == '.ipynb' else text(f)
        named = {*re.findall(r'(?:`|\(`?|^|run: )make ([a-z-]+)', said, re.M)}
        assert named <= targets, (f.name, named - targets)

def test_pythons_agree():
    pythons = cfg['pythons'].split()
    for file,job in (('test', 'course'), ('all', 'everything')):
        assert jobs(workflow(file))[job]['strategy']['matrix']['python'] == pythons
    for f in workflows:
        for s in steps(f):
            v = s.get('with', {}).get('python-version')
            assert v is None or v in [*pythons, '${{ matrix.python }}'], (f.name, v)
    assert load('.devcontainer/devcontainer.json')['image'].rpartition(':')[2] in pythons

def test_each_constraint_has_its_reason():
    pinned = dict(re.findall(r'^([\w-]+)[^\s#]*(.*)$', text('constraints.txt'), re.M))
    assert pinned and all(re.search(r'#\s*\w', why) for why in pinned.values())
    [nbdev] = re.findall(r'^nbdev==([\w.]+)', text('constraints.txt'), re.M)
    assert f'nbdev>={nbdev}' in cfg['dev_requirements'].split()

def test_nothing_is_published_that_was_not_tested():
    site, publish = jobs(workflow('site')), jobs(workflow('release'))
    assert on(workflow('site'))['workflow_run']['workflows'] == [load(workflow('test'))['name']]
    for o in ("conclusion == 'success'", "event == 'push'"): assert o in site['build']['if']
    assert site['deploy']['needs'] == 'build' and 'permissions' not in site['build']
    said = '\n'.join(s.get('run', s.get('uses', '')) for s in site['build']['steps'])
    assert re.search(r'make docs.*test_site\.py.*upload-pages-artifact', said, re.S)
    assert publish['test']['uses'] == './.github/workflows/all.yml'
    assert {*publish['publish']['needs']} == {'test', 'build'}
    assert publish['announce']['needs'] == 'publish'

# the release's own checks

CHANGES = '### Added\n\n- One\n[and a link](https://example.org) that begins a line.'
DATED = f"""# Changelog\n\n## [9.9.9] - 2030-01-01\n\nLater\n
## [{cfg['version']}] - 2026-01-31\n\n{CHANGES}\n\n[9.9.9]: https://example.org\n"""

def test_notes_are_the_section_of_the_tag():
    assert release.notes(f"v{cfg['version']}", DATED) == CHANGES

@pytest.mark.parametrize('tag,log,message', [
    ('v9.9.9', DATED, 'the tag is v9.9.9, but settings.ini has version'),
    (cfg['version'], DATED, 'the tag must be v'),
    (None, '# Changelog\n', 'has no section'),
    (None, DATED.replace('2026-01-31', 'unreleased'), "needs the date.*not 'unreleased'"),
    (None, DATED.replace(CHANGES, ''), 'is empty')], ids=range(5))
def test_a_release_that_does_not_agree_is_stopped(tag, log, message):
    with pytest.raises(SystemExit, match=message):
        release.notes(tag or f"v{cfg['version']}", log)

def archives(folder, version=cfg['version'], lacks=''):
    "A wheel and a source archive with the files of the repository, but one of the wheel or of both"
    folder.mkdir()
    lib = [f for o in ('**/*.py', 'box/**/*', 'text/*.txt') for f in (root/'elmo_fastai').glob(o)
           if f.is_file() and f.name != lacks]
    with zipfile.ZipFile(folder/f'elmo_fastai-{version}-py3-none-any.whl', 'w') as z:
        for f in lib: z.writestr(f.relative_to(root).as_posix(), '')
    others = 'setup.py', 'pyproject.toml', 'settings.ini', 'README.md', 'LICENSE'
    with tarfile.open(folder/f'elmo_fastai-{version}.tar.gz', 'w:gz') as t:
        for f in [*lib, *(root/o for o in others if o != lacks)]:
            t.addfile(tarfile.TarInfo(f'elmo_fastai-{version}/{f.relative_to(root).as_posix()}'))
    return folder

def test_whole_archives_are_accepted(tmp_path):
    found = release.archives(archives(tmp_path/'dist'))
    assert [o.rpartition('.')[2] for o in found] == ['whl', 'gz']
    with pytest.raises(SystemExit, match='must hold one wheel and one source archive, not 0 and 0'):
        release.archives(tmp_path)

@pytest.mark.parametrize('kw,message', [
    (dict(lacks='model.safetensors'), r'whl lacks elmo_fastai/box/mini-en/model\.safetensors'),
    (dict(lacks='ai2.py'), r'whl lacks elmo_fastai/practice/ai2\.py'),
    (dict(lacks='settings.ini'), r'tar\.gz lacks settings\.ini'),
    (dict(version='9.9.9'), 'is not of version')], ids=str)
def test_archives_that_lack_something_are_stopped(tmp_path, kw, message):
    with pytest.raises(SystemExit, match=message):
        release.archives(archives(tmp_path/'dist', **kw))

@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "A folder with the two archives, built in a copy of the repository, and what was said"
    copy = copied(tmp_path_factory.mktemp('build')/'repository', 'elmo_fastai', 'tests')
    p = subprocess.run(
        [sys.executable, *'setup.py -q sdist -d dist bdist_wheel -d dist'.split()],
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

def test_the_description_links_from_anywhere(built):
    "The package index shows the README, far from the files that its links name"
    [wheel] = built[0].glob('*.whl')
    with zipfile.ZipFile(wheel) as z:
        said = z.read(next(n for n in z.namelist() if n.endswith('/METADATA'))).decode()
    found = links(said) + re.findall(r'!\[[^\]]*\]\(([^)]+)\)', said)
    assert len(found) > 25
    for link in found:
        assert well_formed(link), link
        if m := re.match(rf'{REPOSITORY}/(?:blob|raw)/main/([^#]+)', link):
            assert (root/m[1]).is_file(), link

# templates

@rule_for(forms, name)
def test_issue_form(file):
    d = load(file)
    assert {*d} <= {'name', 'description', 'title', 'labels', 'body'} and d['name']
    assert d['description'] and all(isinstance(o, str) for o in d['labels'])
    for values in ([b['id'] for b in d['body']], [b['attributes']['label'] for b in d['body']]):
        assert len({*values}) == len(values)
    for b in d['body']:
        assert b['type'] in ('textarea', 'input', 'dropdown')
        assert {*b} == {'type', 'id', 'attributes', 'validations'}
        if b['type'] != 'dropdown': continue
        options = b['attributes']['options']
        assert len({*options}) == len(options) >= 2 and all(isinstance(o, str) for o in options)

def test_forms_and_their_config():
    assert len({load(f)['name'] for f in forms}) == len(forms) > 0
    d = load(github/'ISSUE_TEMPLATE'/'config.yml')
    assert isinstance(d['blank_issues_enabled'], bool)
    for o in d['contact_links']:
        assert {*o} == {'name', 'url', 'about'} and o['url'].startswith(REPOSITORY)

@pytest.mark.slow
def test_the_command_in_the_bug_form_runs():
    [command] = re.findall(r'`python -c "(.*)"`', text('.github/ISSUE_TEMPLATE/bug.yml'))
    p = subprocess.run([sys.executable, '-c', command], capture_output=True, text=True)
    assert p.returncode == 0 and p.stdout.startswith(cfg['version']), p.stderr

# CONTRIBUTING, change log, citation

@rule_for(prose, name)
def test_named_paths_and_links_exist(file):
    t = file.read_text(encoding='utf-8')
    code = re.sub(r'```.*?```', '', t, flags=re.S)
    for o in re.findall(r'`([^`\n]+)`', code):
        for path in re.findall(r'(?<![\w./-])(?!_preview|_docs|\.venv)((?:[\w.-]+/)+[\w.*-]*|'
                               r'[\w-]+\.(?:md|py|ini|txt|yml|cff|ipynb|toml))(?![\w/])', o):
            assert (root/path).exists() or path in ('make/', 'OWNER/NAME'), f'`{path}` does not exist'
    for block in re.findall(r'```bash\n(.*?)```', t, re.S):
        for path in re.findall(r'(?:tests|nbs)/[\w./-]+', block): assert (root/path).exists(), path
    for link in re.findall(r'\]\(([^)\s]+)\)', t):
        if not link.startswith('https://'): assert (root/link).is_file(), link

def test_what_benchmarks_import_is_there():
    """Nobody runs a script of hours to learn that a module has moved: all imports, also those
    inside functions"""
    missing = []
    for f in sorted((root/'tests'/'benchmarks').glob('*.py')):
        ours = (n for n in ast.walk(ast.parse(text(f)))
                if isinstance(n, ast.ImportFrom) and n.module.startswith('elmo_fastai'))
        for n in ours:
            try: m = import_module(n.module)
            except ModuleNotFoundError: missing.append((f.name, n.module)); continue
            missing += [(f.name, n.module, a.name) for a in n.names if not hasattr(m, a.name)]
    assert not missing

def test_the_change_log_has_this_version():
    found = release.sections(text('CHANGELOG.md'))
    assert next(iter(found)) in (cfg['version'], 'Unreleased') and cfg['version'] in found
    kinds = {'Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security', 'Known limits'}
    for version,(state, said) in found.items():
        assert re.fullmatch(r'\d+\.\d+\.\d+|Unreleased', version)
        assert re.fullmatch(r'unreleased|\d{4}-\d\d-\d\d', state) or version == 'Unreleased'
        assert said and {*re.findall(r'^### (.*)$', said, re.M)} <= kinds
    assert f"[{cfg['version']}]: {REPOSITORY}" in text('CHANGELOG.md')

def test_names_in_the_change_log_exist():
    lib = {k: v for f in (root/'elmo_fastai').glob('*/*.py')
           for k, v in vars(import_module(f'elmo_fastai.{f.parent.name}.{f.stem}')).items()}
    added = (release.sections(text('CHANGELOG.md'))[cfg['version']][1].split('### Added')[
        1].split('###')[0])
    said = re.findall(r'`(\w+)(?:\.(\w+))?(?:\(.*?\))?`', added)
    commands = dict(o.split('=') for o in cfg['console_scripts'].split())
    given = {'Learner', 'save_pretrained', 'from_pretrained'}
    for a,b in said:
        if a in commands or a in given or [*(root/'nbs').rglob(f'{a}.ipynb')]: continue
        assert a in lib and (not b or hasattr(lib[a], b)), f'{a}.{b}'
    assert all(hasattr(lib['Elmo'], o) for o in given - {'Learner'})

def test_citation():
    d = load('CITATION.cff')
    assert {'cff-version', 'message', 'title', 'references'} <= {*d} and d['type'] == 'software'
    assert (d['version'], d['repository-code']) == (cfg['version'], REPOSITORY)
    assert f"{d['url']}/" == project['urls']['Documentation']
    assert d['authors'] == [{'name': cfg['author']}]
