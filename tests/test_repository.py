"""What stands around the course: workflows, templates, CONTRIBUTING, the change log and the
citation, and that they agree with the rest"""

from importlib import import_module
import ast, importlib.util, re, shutil, subprocess, sys, tarfile, zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest, yaml
from notebooks import REPOSITORY, links, project, rule_for, well_formed

root = Path(__file__).resolve().parent.parent
cfg = ConfigParser(delimiters=['='])
cfg.read(root/'settings.ini', encoding='utf-8')
cfg = cfg['DEFAULT']
github = root/'.github'
workflows = sorted((github/'workflows').glob('*.yml'))
forms = sorted(f for f in (github/'ISSUE_TEMPLATE').glob('*.yml') if f.name != 'config.yml')
prose = [
    root/f
    for f in ('CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md', '.github/PULL_REQUEST_TEMPLATE.md')
]


def text(f): return (root/f).read_text(encoding='utf-8')
def load(f): return yaml.safe_load(f.read_text(encoding='utf-8'))
def jobs(f): return load(f)['jobs']
def steps(f): return [s for j in jobs(f).values() for s in j.get('steps', [])]
def shell(f): return [s['run'] for s in steps(f) if 'run' in s]
def on(f): return load(f)[True]                        # YAML 1.1 reads the key `on` as true
def name(f): return f.name
each = rule_for(workflows, name)

spec = importlib.util.spec_from_file_location('release', github/'release.py')
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

# one place for the tests of a module

TOGETHER = {'blog': 'batches', 'buffered': 'batches', 'encoded': 'batches', 'loaders': 'batches',
            'lines': 'streams', 'splits': 'doors'}

def test_every_module_has_a_file_of_tests():
    apart = ('__init__', '_modidx', 'all', 'look')     # `look` holds colours alone
    modules = [f for f in (root/'elmo_fastai').rglob('*.py') if f.stem not in apart]
    assert modules
    for f in modules:
        name = TOGETHER.get(f.stem, f.stem)
        twice = sum(o.stem == f.stem for o in modules) > 1
        file = f'test_{f.parent.name}_{name}.py' if twice else f'test_{name}.py'
        assert (root/'tests'/file).is_file(), f'{f.name} needs tests/{file}'

# workflows

def test_there_are_workflows(): assert {f.stem for f in workflows} >= {'test', 'site', 'release'}

@each
def test_workflow_is_well_formed(file):
    d, all_jobs = load(file), jobs(file)
    assert d['name'] == file.stem and on(file)
    assert d['permissions'] == {'contents': 'read'}, (
        'what a job needs beyond reading it asks for itself')
    for key,job in all_jobs.items():
        needs = job.get('needs', [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(all_jobs), key
        if 'uses' in job:
            called = root/job['uses']
            assert called.is_file() and 'workflow_call' in on(called)
            continue
        assert job['runs-on'] == 'ubuntu-latest' and 5 <= job['timeout-minutes'] <= 60, key
        for s in job['steps']: assert ('uses' in s) != ('run' in s)

@each
def test_actions_are_pinned(file):
    for s in steps(file):
        if 'uses' in s:
            assert re.fullmatch(r'[\w.-]+/[\w./-]+@(v\d+|release/v\d+|[0-9a-f]{40})', s['uses']), s[
                'uses'
            ]
        if s.get('uses', '').startswith('actions/checkout@'):
            assert s['with']['persist-credentials'] is False


@each
def test_no_secret_and_no_input_in_a_shell(file):
    assert 'secrets.' not in file.read_text(encoding='utf-8')
    for run in shell(file):
        assert '${{' not in run, 'what a stranger can name goes through the environment'


@each
def test_shell_steps_parse_and_their_files_exist(file):
    for run in shell(file):
        p = subprocess.run(['bash', '-n', '-c', run], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        for path in re.findall(
            r'(?<![\w/])((?:tests|nbs|\.github)/[\w./-]+\.\w+|settings\.ini|constraints\.txt)', run
        ):
            assert (root/path).is_file(), path
    for s in steps(file):
        for path in s.get('with', {}).get('cache-dependency-path', '').split():
            assert (root/path).is_file(), path


def targets(): return set(re.findall(r'^([a-z-]+):', text('Makefile'), re.M))

def test_every_make_command_exists():
    for f in [*workflows, *forms, *prose]:
        named = set(
            re.findall(r'(?:`|\(|^\s*|run: )make ([a-z-]+)', f.read_text(encoding='utf-8'), re.M))
        assert named <= targets(), (f.name, named - targets())
    for f in ('test.yml', 'all.yml'): assert '.ci/run PYTHON=python' in shell(github/'workflows'/f)
    assert re.findall(r'^make ([a-z-]+)', text('.ci/run'), re.M) == [
        'test', 'test-rest', 'test-rounding']
    assert any(run.startswith('make docs') for run in shell(github/'workflows'/'site.yml'))
    assert ('preview' in targets() and '.PHONY' in text('Makefile')
            and targets() <= set(re.search(r'^\.PHONY: (.*)$', text('Makefile'), re.M)[1].split()))


def test_pythons_agree():
    pythons = cfg['pythons'].split()
    for file,job in ('test.yml', 'course'), ('all.yml', 'everything'):
        assert jobs(github/'workflows'/file)[job]['strategy']['matrix']['python'] == pythons
    for f in workflows:
        for s in steps(f):
            v = s.get('with', {}).get('python-version')
            assert v is None or v in pythons or v == '${{ matrix.python }}', (f.name, v)
    assert ', '.join(pythons[:-1]) + f' or {pythons[-1]}' in text('CONTRIBUTING.md')
    assert f'Python {pythons[0]} or newer' in text(
        'README.md'
    ) and f'Python {pythons[0]} to {pythons[-1]}' in text('README.md')
    assert load(root/'.devcontainer'/'devcontainer.json')['image'].rpartition(':')[2] in pythons

def test_every_job_that_installs_takes_the_small_torch():
    for f in workflows:
        assert load(f)['env']['PIP_EXTRA_INDEX_URL'] == 'https://download.pytorch.org/whl/cpu'


def test_nothing_is_skipped_for_want_of_node_or_a_browser():
    everything = jobs(github/'workflows'/'all.yml')['everything']['steps']
    said = '\n'.join(s.get('run', s.get('uses', '')) for s in everything)
    at = [said.index(o) for o in ('setup-node', 'playwright install', '.ci/run')]
    assert at == sorted(at)
    assert {'schedule', 'workflow_call'} <= set(on(github/'workflows'/'all.yml'))

def test_one_job_installs_without_constraints():
    runs = [s.get('run', '') for s in jobs(github/'workflows'/'all.yml')['newest']['steps']]
    assert any('CONSTRAINTS= ' in f'{run} '.replace('\n', ' ') for run in runs) and not any(
        'constraints.txt' in run for run in runs)
    assert 'CONSTRAINTS ?= constraints.txt' in text('Makefile')

def test_each_constraint_has_its_reason():
    pinned = {re.match(r'[\w-]+', l)[0]: l.partition('#')[2].strip()
              for l in text('constraints.txt').splitlines() if re.match(r'\w', l)}
    assert pinned.keys() == {'torch', 'torchvision', 'nbdev', 'fastai', 'fastcore'} and all(
        pinned.values())


def test_a_codespace_is_made_by_make():
    d = load(root/'.devcontainer'/'devcontainer.json')
    assert d['postCreateCommand'] == 'make .venv/.develop' and '$(VENV)/.develop:' in text(
        'Makefile')
    assert f"https://codespaces.new/{REPOSITORY.removeprefix('https://github.com/')}" in text(
        'README.md')


def test_nbdev_is_pinned_once():
    pins = dict(re.findall(r'^([\w-]+)==([\w.]+)', text('constraints.txt'), re.M))
    assert f"nbdev>={pins['nbdev']}" in cfg['dev_requirements'].split()
    for f in workflows:
        for run in shell(f):
            assert not re.search(r'install\b.*\bnbdev\b', run), (
                f"{f.name}: the environment comes from the Makefile, with constraints.txt")
        assert pins['nbdev'] not in f.read_text(encoding='utf-8')

def test_quarto_is_pinned_once():
    site = github/'workflows'/'site.yml'
    version = load(site)['env']['QUARTO']
    assert re.fullmatch(r'\d+\.\d+\.\d+', version)
    (setup,) = [s for s in steps(site) if 'quarto' in s.get('uses', '')]
    assert setup['with']['version'] == '${{ env.QUARTO }}'
    others = [f for f in [*root.glob('*'), *github.rglob('*'), *root.glob('nbs/*.yml')]
              if f.is_file() and f.suffix in ('', '.md', '.yml', '.txt', '.ini', '.toml', '.py')]
    assert [f.name for f in others if version in f.read_text(encoding='utf-8')] == ['site.yml']

def test_the_site_is_published_only_after_tests_of_a_push():
    site = github/'workflows'/'site.yml'
    assert on(site)['workflow_run'] == dict(
        workflows=['test'], types=['completed'], branches=['main']
    )
    assert (load(github/'workflows'/'test.yml')['name'] == 'test'
            and 'main' in on(github/'workflows'/'test.yml')['push']['branches'])
    build, deploy = jobs(site)['build'], jobs(site)['deploy']
    for o in ("conclusion == 'success'", "event == 'push'"): assert o in build['if']
    assert ('permissions' not in build
            and deploy['permissions'] == {'pages': 'write', 'id-token': 'write'}
            and deploy['needs'] == 'build')
    (upload,) = [s for s in build['steps'] if 'upload-pages' in s.get('uses', '')]
    assert upload['with']['path'] == '_docs'

def test_the_built_site_is_checked_before_it_is_published():
    runs = [s.get('run', s.get('uses', ''))
            for s in jobs(github/'workflows'/'site.yml')['build']['steps']]
    at = [next(i for i, r in enumerate(runs) if o in r)
          for o in ('make docs', 'pytest -q tests/test_site.py', 'upload-pages-artifact')]
    assert at == sorted(at)
    (env,) = [s['env'] for s in steps(github/'workflows'/'site.yml')
              if 'test_site' in s.get('run', '')]
    assert env == {'ELMO_FASTAI_SITE': '_docs'} and 'ELMO_FASTAI_SITE' in text('tests/test_site.py')

def test_a_release_is_tested_before_it_is_published():
    all_jobs = jobs(github/'workflows'/'release.yml')
    assert on(github/'workflows'/'release.yml') == {'push': {'tags': ['v*']}}
    assert all_jobs['test']['uses'] == './.github/workflows/all.yml'
    assert (set(all_jobs['publish']['needs']) == {'test', 'build'}
            and all_jobs['announce']['needs'] == 'publish')
    assert {k: j['permissions'] for k, j in all_jobs.items() if 'permissions' in j} == {
        'publish': {'id-token': 'write'}, 'announce': {'contents': 'write'}}
    assert all_jobs['publish']['environment'] == 'release' and 'environment `release`' in text(
        'CONTRIBUTING.md')


def test_dependabot_watches_the_actions():
    d = load(github/'dependabot.yml')
    # pins of packages have reasons
    assert d['version'] == 2 and [u['package-ecosystem'] for u in d['updates']] == [
        'github-actions']


# the release's own checks

DATED = ("# Changelog\n\n## [9.9.9] - 2030-01-01\n\nLater\n\n"
         f"## [{cfg['version']}] - 2026-01-31\n\n### Added\n\n- One\n"
         '[and a link](https://example.org) that begins a line.\n\n'
         '[9.9.9]: https://example.org\n')


def test_notes_are_the_section_of_the_tag():
    said = '### Added\n\n- One\n[and a link](https://example.org) that begins a line.'
    assert release.notes(f"v{cfg['version']}", DATED) == said

@pytest.mark.parametrize('tag,log,message', [
    ('v9.9.9', DATED, 'the tag is v9.9.9, but settings.ini has version'),
    (cfg['version'], DATED, 'the tag must be v'),
    (None, '# Changelog\n', 'has no section'),
    (None, DATED.replace('2026-01-31', 'unreleased'),
     "needs the date of the release.*not 'unreleased'"),
    (None,
     DATED.replace('### Added\n\n- One\n[and a link](https://example.org) that begins a line.\n',
                   ''), 'is empty')])
def test_a_release_that_does_not_agree_is_stopped(tag, log, message):
    with pytest.raises(SystemExit, match=message):
        release.notes(tag or f"v{cfg['version']}", log)


def archives(folder, version=cfg['version'], wheel_lacks=(), source_lacks=()):
    "A wheel and a source archive with the files of the repository, but those"
    folder.mkdir()
    lib = [f for o in ('**/*.py', 'box/**/*', 'text/*.txt') for f in (root/'elmo_fastai').glob(o)
           if f.is_file()]
    with zipfile.ZipFile(folder/f'elmo_fastai-{version}-py3-none-any.whl', 'w') as z:
        for f in lib:
            if f.name not in wheel_lacks: z.writestr(f.relative_to(root).as_posix(), '')
    with tarfile.open(folder/f'elmo_fastai-{version}.tar.gz', 'w:gz') as t:
        for f in [*lib,
                  *(root/o for o in ('setup.py', 'pyproject.toml', 'settings.ini', 'README.md',
                                       'LICENSE'))]:
            if f.name not in source_lacks:
                t.addfile(
                    tarfile.TarInfo(f'elmo_fastai-{version}/{f.relative_to(root).as_posix()}')
                )
    return folder

def test_whole_archives_are_accepted(tmp_path):
    assert [o.rpartition('.')[2] for o in release.archives(archives(tmp_path/'dist'))] == [
        'whl', 'gz']


@pytest.mark.parametrize('kw,message', [
    (dict(wheel_lacks=['model.safetensors']),
     r'whl lacks elmo_fastai/box/mini-en/model\.safetensors'),
    (dict(wheel_lacks=['ai2.py']), r'whl lacks elmo_fastai/elmo/ai2\.py'),
    (dict(source_lacks=['settings.ini']), r'tar\.gz lacks settings\.ini'),
    (dict(version='9.9.9'), 'is not of version')])
def test_archives_that_lack_something_are_stopped(tmp_path, kw, message):
    with pytest.raises(SystemExit, match=message):
        release.archives(archives(tmp_path/'dist', **kw))


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "A folder with the two archives, built in a copy of the repository, and what was said"
    copy = tmp_path_factory.mktemp('build')/'repository'
    shutil.copytree(
        root,
        copy,
        ignore=shutil.ignore_patterns(
            '.?*', 'nbs', 'models', 'build', 'dist', '*.egg-info', '__pycache__'
        ),
    )
    p = subprocess.run(
        [sys.executable, 'setup.py', '-q', 'sdist', '-d', 'dist', 'bdist_wheel', '-d', 'dist'],
        cwd=copy, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return copy/'dist', p.stdout + p.stderr

def test_the_archives_hold_what_an_installation_needs(built):
    "And setuptools takes no folder of data for a package that was forgotten"
    folder, said = built
    assert len(release.archives(folder)) == 2 and 'would be ignored' not in said, said

def test_the_wheel_is_small_and_the_source_holds_no_tests(built):
    (wheel,), (source,) = built[0].glob('*.whl'), built[0].glob('*.tar.gz')
    assert wheel.stat().st_size < 6.5e6
    with tarfile.open(source) as t:
        assert not [n for n in t.getnames() if n.split('/')[1:2] == ['tests']]


def test_the_description_links_from_anywhere(built):
    "The package index shows the README, far from the files that its links name"
    (wheel,) = built[0].glob('*.whl')
    with zipfile.ZipFile(wheel) as z:
        said = z.read(next(n for n in z.namelist() if n.endswith('/METADATA'))).decode()
    found = links(said) + re.findall(r'!\[[^\]]*\]\(([^)]+)\)', said)
    assert len(found) > 25
    for link in found:
        assert well_formed(link), link
        if m := re.match(rf'{REPOSITORY}/(?:blob|raw)/main/([^#]+)', link):
            assert (root/m[1]).is_file(), link


def test_one_wheel_and_one_source_archive(tmp_path):
    with pytest.raises(SystemExit, match='must hold one wheel and one source archive, not 0 and 0'):
        release.archives(tmp_path)


# templates

@rule_for(forms, name)
def test_issue_form(file):
    d = load(file)
    assert (set(d) <= {'name', 'description', 'title', 'labels', 'body'} and len(d['name']) > 5
            and len(d['description']) > 15)
    assert all(isinstance(o, str) for o in d['labels'])
    ids, labels = [b['id'] for b in d['body']], [b['attributes']['label'] for b in d['body']]
    assert len(set(ids)) == len(ids) and len(set(labels)) == len(labels)
    assert any(b['validations']['required'] for b in d['body'])
    for b in d['body']:
        assert b['type'] in ('textarea', 'input', 'dropdown') and set(b) == {
            'type', 'id', 'attributes', 'validations'}
        if b['type'] == 'dropdown':
            assert len(set(b['attributes']['options'])) == len(
                b['attributes']['options']
            ) >= 2 and all(isinstance(o, str) for o in b['attributes']['options'])


def test_forms_and_their_config():
    assert {f.stem for f in forms} == {'bug', 'chapter', 'idea'}
    assert len({load(f)['name'] for f in forms}) == len(forms)
    d = load(github/'ISSUE_TEMPLATE'/'config.yml')
    assert isinstance(d['blank_issues_enabled'], bool)
    for o in d['contact_links']:
        assert set(o) == {'name', 'url', 'about'} and o['url'].startswith(REPOSITORY)


@pytest.mark.slow
def test_the_command_in_the_bug_form_runs():
    import sys
    (command,) = re.findall(r'`python -c "(.*)"`', text('.github/ISSUE_TEMPLATE/bug.yml'))
    p = subprocess.run([sys.executable, '-c', command], capture_output=True, text=True, cwd=root)
    assert p.returncode == 0 and p.stdout.startswith(cfg['version']), p.stderr

# CONTRIBUTING, change log, citation

@rule_for(prose, name)
def test_named_paths_and_links_exist(file):
    t = file.read_text(encoding='utf-8')
    code = re.sub(r'```.*?```', '', t, flags=re.S)
    for o in re.findall(r'`([^`\n]+)`', code):
        for path in re.findall(r'(?<![\w./-])(?!_preview|_docs|\.venv)((?:[\w.-]+/)+[\w.*-]*|'
                               r'[\w-]+\.(?:md|py|ini|txt|yml|cff|ipynb|toml))(?![\w/])', o):
            assert (root/path).exists() or path in ('make/',), f'`{path}` does not exist'
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
    for v,(state, said) in found.items():
        assert (v == 'Unreleased' or re.fullmatch(r'\d+\.\d+\.\d+', v)
                and re.fullmatch(r'unreleased|\d{4}-\d\d-\d\d', state)), v
        assert set(re.findall(r'^### (.*)$', said, re.M)) <= {
            'Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security', 'Known limits'}
        assert said
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
    d = load(root/'CITATION.cff')
    assert (d['cff-version'] == '1.2.0' and {'message', 'title', 'authors'} <= set(d)
            and d['type'] == 'software')
    assert (d['version'] == cfg['version'] and d['license'] == 'Apache-2.0'
            and d['repository-code'] == REPOSITORY
            and f"{d['url']}/" == project['urls']['Documentation'])
    assert d['authors'] == [{'name': cfg['author']}]
    (paper,) = d['references']
    assert (paper['doi'] == '10.18653/v1/N18-1202'
            and paper['identifiers'][0]['value'] == 'arXiv:1802.05365' and paper['year'] == 2018)
    assert [a['family-names'] for a in paper['authors']] == [
        'Peters', 'Neumann', 'Iyyer', 'Gardner', 'Clark', 'Lee', 'Zettlemoyer']
