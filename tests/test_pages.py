"""The pages as they are committed: run as they stand, without a word of the machine that ran them;
their pictures and links; the README; and, slowly, the cells that are too slow for a page's test"""
import ast, re, subprocess, sys
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt, pytest
from elmo_fastai.all import toy_corpus
from elmo_fastai.practice import command, run
from notebooks import *

each = pytest.mark.parametrize('nb', nbs, ids=name)
lesson = pytest.mark.parametrize('nb', taught, ids=name)

@each
def test_a_page_was_run_as_it_stands(nb):
    assert not is_stale(nb), 'its code has changed: run it with tests/execute.py'
    code = [c for c in cells(nb, 'code') if directives(c).get('eval') != 'false']
    counts = [c['execution_count'] for c in code]
    assert all(o is None for o in counts) or counts == list(range(1, len(counts) + 1))
    for c in code:
        for o in c['outputs']:
            assert o['output_type'] != 'error' and o.get('name') != 'stderr', c['id']
            assert not any('widget' in k for k in o.get('data', ())), c['id']
        for t in texts(c['outputs']):
            assert not re.search(r'\b\w*Warning\b|Traceback|\bdeprecated\b|0x[0-9a-f]{8,}', t), (
                c['id'], t[:200])

# folders of a machine and hosts of registries, spelt so that this file has none
PLACES = re.compile(r'(?<![\w.:/-])/(?:work|root|home|tmp|Users|opt|mnt|us'
                    r'r|var)/|site-' r'packages|[A-Z]:\\Users|(?<![\w])~/\w')
HOSTS = re.compile(r'py' r'pi\.(?:org|io)|python' r'hosted\.org|index' r'-url|find' r'-links'
                   r'|artifac' r'tory|conda\.ana' r'conda\.org|/sim' r'ple/', re.I)
PATHS = re.compile(r'(?<![\w.:/<>&;)\]%…-])/(?:[A-Za-z][\w.-]*/)+[\w.-]*|\bfile:' r'//')

def machine(text, *rules):
    "What in `text` tells of the machine"
    return [text[max(0, m.start() - 40):m.end() + 40] for r in rules for m in r.finditer(text)]

@each
def test_no_machine_on_a_page(nb):
    for c in read(nb)['cells']:
        assert not machine(source(c), PLACES, HOSTS), c['id']
        for t in texts(c.get('outputs', [])): assert not machine(t, PLACES, HOSTS, PATHS), c['id']

def test_no_machine_elsewhere():
    files = subprocess.run(['git', 'ls-files'], cwd=root, capture_output=True, text=True).stdout
    if not files: pytest.skip('no clone, or no git')
    for f in map(root.joinpath, files.split('\n')):
        if f.suffix not in ('', *'.md .ini .py .yml .toml .css .svg .cff'.split()): continue
        if not f.is_file(): continue
        text = re.sub(r'^#!.*', '', f.read_text(encoding='utf-8'))
        if f.name in ('test_corpora.py', 'test_pages.py'):           # made-up paths
            text = re.sub(r"'/(tmp|home|usr)/.*?'", '', text)
        assert not machine(text, PLACES, HOSTS), f

# form

@each
def test_pictures_are_described(nb):
    for c in cells(nb, 'code'):
        d = directives(c)
        images = [m for o in c['outputs'] for m in o.get('data', {}) if m.startswith('image/')]
        assert not images or len(d.get('fig-alt', '')) > 15, c['id']
        assert ('fig-cap' in d) == ('fig-alt' in d), c['id']
    for alt,target in re.findall(r'!\[(.*?)\]\(([^)]+)\)', prose(nb)):
        assert len(alt) > 15, target
        assert target.startswith('https://') or (nb.parent/target).is_file(), target

@each
def test_links_lead_somewhere(nb):
    for link in links(prose(nb)):
        if re.match(r'https?://', link): assert well_formed(link), link; continue
        target,_,anchor = link.partition('#')
        file = nb.parent/target if target else nb
        assert file.is_file(), f'{link}: there is no such file'
        if anchor and file.suffix == '.ipynb':
            assert anchor in anchors(file), f'{link}: there is no such heading'

def test_files_name_what_is_there():
    for f in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md',
              'nbs/library/index.qmd',
              'nbs/studies/index.qmd'):
        text = (root/f).read_text(encoding='utf-8')
        for link in links(text) + re.findall(r'!\[.*?\]\(([^)]+)\)', text):
            if re.match(r'https?://', link): assert well_formed(link), link
            else: assert ((root/f).parent/link.partition('#')[0]).exists(), (f, link)

def test_the_readme_is_the_start_page():
    from readme import render
    assert (root/'README.md').read_text(encoding='utf-8') == render(), 'run make export'

def test_options_that_are_named_exist():
    from fastcore.script import anno_parser
    known = {o for action in anno_parser(command.pretrain)._actions for o in action.option_strings}
    for f in [root/'README.md', *nbs]:
        text = prose(f) if f.suffix == '.ipynb' else f.read_text(encoding='utf-8')
        for line in re.findall(r'elmo_pretrain[^`\n#]*|ARGS="[^"]*"', text):
            assert {*re.findall(r'--[\w-]+', line)} <= known, (f.name, line)

# slow cells, with little to compute

LESS = {"'../data/hound.txt'": "'mine.txt'", 'MINUTES = 3': 'MINUTES = .02',
        'range(8)': 'range(2)', '10.**np.arange(-4, 4)': '[.01, 1.]',
        'fit_one_cycle(6': 'fit_one_cycle(1', 'sample(400,': 'sample(100,',
        'KneserNey(5)': 'KneserNey(5, 2_000)'}           # more words than so few sentences have

def shortened(nb, cell):
    "Its code with little to compute, the command as a call, and without what it asserts"
    text = source(cell)
    for much,less in LESS.items(): text = text.replace(much, less)
    text = re.sub(r'n_train=[\d_]+', 'n_train=2_500', text)
    text = re.sub(r'^!elmo_pretrain (.*?) \|.*$', r"elmo_pretrain(f'\1'.split())", text, flags=re.M)
    tree = ast.parse(text)
    tree.body = [o for o in tree.body if not isinstance(o, ast.Assert)]
    return compile(tree, f'{nb.stem}, cell {cell["id"]}', 'exec')

@pytest.mark.slow
@pytest.mark.parametrize('nb', [nb for nb in taught if any('slow' in directives(c)
                                                           for c in cells(nb, 'code'))], ids=name)
def test_slow_cells_run_on_little_text(nb, monkeypatch, tmp_path):
    "The whole lesson, beside a copy of its data; lesson 14 on the beginning of its novel"
    for name in ('tests', 'LICENSE'): (tmp_path/name).symlink_to(home.parent/name)
    course = tmp_path/'nbs'/'course'
    course.mkdir(parents=True)
    for folder in ('data', 'results'): (course.parent/folder).symlink_to(home/folder)
    for file in taught: (course/file.name).symlink_to(file)
    monkeypatch.chdir(course)
    monkeypatch.setattr(plt, 'show', plt.close)
    monkeypatch.setitem(run.CORPORA, 'toy', lambda n_train: toy_corpus(300, 100, 100, 10))
    lines = [o for o in (home/'data'/'hound.txt').read_text(encoding='utf-8').splitlines() if o]
    Path('mine.txt').write_text('\n'.join(lines[:300]), encoding='utf-8')
    module = ModuleType(nb.stem)                                    # for pickles of its classes
    monkeypatch.setitem(sys.modules, nb.stem, module)
    vars(module).update(display=str, elmo_pretrain=command.elmo_pretrain)
    for cell in cells(nb, 'code'):
        if not {'eval', 'hide', 'default_exp'} & directives(cell).keys():
            exec(shortened(nb, cell), vars(module))
    plt.close('all')
