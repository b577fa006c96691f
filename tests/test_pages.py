"""The pages as they are committed: executed by the code that stands on them, without a word of the
machine that ran them; their pictures, links and exercises; the README"""
import ast, re, subprocess
from configparser import ConfigParser

import pytest
from execute import is_stale
from notebooks import *

each = pytest.mark.parametrize('nb', nbs, ids=name)
lesson = pytest.mark.parametrize('nb', taught, ids=name)

# outputs

@each
def test_a_page_was_run_as_it_stands(nb):
    assert not is_stale(nb), f'its code has changed: run it with tests/execute.py'
    code = [c for c in cells(nb, 'code') if directives(c).get('eval') != 'false']
    counts = [c['execution_count'] for c in code]
    assert all(o is None for o in counts) or counts == list(range(1, len(counts) + 1))
    assert nb not in taught or sum(bool(c['outputs']) for c in code) >= 5
    for c in code:
        for o in c['outputs']:
            assert o['output_type'] != 'error' and o.get('name') != 'stderr', c['id']
            assert not any('widget' in k for k in o.get('data', ())), c['id']
        for t in texts(c['outputs']):
            assert not re.search(r'\b\w*Warning\b|Traceback|\bdeprecated\b|0x[0-9a-f]{8,}', t), (
                c['id'], t[:200])
            assert 'not measured yet' not in t, c['id']

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
        if f.name in ('test_corpora.py', 'test_learner.py', 'test_pages.py'):     # made-up paths
            text = re.sub(r"'/(tmp|home|usr)/.*?'", '', text)
        assert not machine(text, PLACES, HOSTS), f

# form

@each
def test_title_and_description(nb):
    lines = [o for o in source(read(nb)['cells'][0]).split('\n') if o.strip()]
    assert re.match(r'# \S', lines[0]) and re.match(r'> \S', lines[1])
    assert len(lines[0]) < 80 and len(lines[1]) < 200

def folded(c): return directives(c).get('code-fold') == 'true' or 'hide' in directives(c)

@lesson
def test_open_cells_fit_on_a_screen(nb):
    for c in cells(nb, 'code'):
        code = [o for o in source(c).split('\n') if o.strip() and not o.startswith('#|')]
        if folded(c): continue
        assert len(code) <= (25 if source(c).startswith('#| exports') else 20), c['id']
        assert max(map(len, code), default=0) <= 92, c['id']

@lesson
def test_a_lesson_uses_what_the_course_has_told(nb):
    "A name of the library stands here or earlier, in prose or where it is built"
    told = '\n'.join(prose(o) + '\n'.join(source(c) for c in cells(o, 'code') if c['id'] != 'colab'
                                          and not re.search('^from elmo_fastai', source(c), re.M))
                     for o in taught[:taught.index(nb)+1])
    text = '\n'.join(map(source, cells(nb, 'code')))
    for names in re.findall(r'^from elmo_fastai\.[\w.]+ import (.*)$', text, re.M):
        for o in re.findall(r'(\w+)(?: as \w+)?', names):
            assert re.search(rf'`[^`]*\b{o}\b[^`]*`', told), f'{o} comes before it was told'

@lesson
def test_exercises_have_hints_and_solutions(nb):
    heads = re.findall(r'^## (.*)$', prose(nb), re.M)
    assert heads.index('Recap') < heads.index('Exercises') < heads.index('Solutions')
    asked, _ = section(nb, 'Exercises')
    open_ = re.sub(r'<details>.*?</details>', '', asked, flags=re.S)
    numbers = [int(n) for n in re.findall(r'^(\d+)\. ', open_, re.M)]
    assert numbers == [*range(1, len(numbers)+1)] and 4 <= len(numbers) <= 6
    hints = re.findall(r'<details>\s*<summary>\s*Hints?\s*</summary>(.*?)</details>', asked, re.S)
    assert hints and all(h.strip() for h in hints)
    said, code = section(nb, 'Solutions')
    live = [c for c in code if 'hide' not in directives(c)]
    assert live and all(map(folded, live))
    said += '\n'.join(re.sub(r'^# ', '', source(c), flags=re.M) for c in live)
    for n in numbers: assert re.search(rf'(?<!\w){n}(?!\w)', said), f'no solution of {n}'

NAMES = re.compile(r'<!-- cells?: ([\w, -]+) -->$')

def shown(number, text):
    "Is a number, as it is written, one of those in a text, rounded to as many places?"
    wanted, places = float(number.replace(',', '')), len(number.partition('.')[2])
    found = [float(o.replace(',', '')) for o in re.findall(r'-?\d+(?:,\d{3})*(?:\.\d+)?', text)]
    return any(abs(abs(f)*scale - wanted) <= .501*10**-places for f in found for scale in (1, 100))

@lesson
def test_each_sentence_of_a_recap_names_what_shows_it(nb):
    "A cell of this page with an output, in which the sentence's numbers stand"
    bullets = re.split(r'(?m)^- ', section(nb, 'Recap')[0].partition('\n')[2].strip())[1:]
    assert 2 <= len(bullets) <= 5
    by_id = {c['id']: c for c in read(nb)['cells']}
    for bullet in (re.sub(r'\s+', ' ', o.split('\n\n')[0]).strip() for o in bullets):
        assert (found := NAMES.search(bullet)), f'names no cell: {bullet}'
        outputs = [by_id[o.strip()]['outputs'] for o in found[1].split(',')]
        assert all(outputs), f'{bullet}: a cell without an output'
        said = ' '.join(re.sub(r'<[^>]*>', ' ', o) for out in outputs for o in texts(out))
        for n in re.findall(r'(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])', NAMES.sub('', bullet)):
            if n.isdigit() and int(n) < 10: continue              # two layers, 1 and 2
            assert shown(n, said), f'{n} is not in the output: {bullet}'

# Colab

@lesson
def test_lessons_open_in_colab(nb):
    colab = REPOSITORY.replace('github.com', 'colab.research.google.com/github')
    assert f'[Open in Colab]({colab}/blob/main/nbs/{name(nb)}.ipynb)' in prose(nb)
    first = next(c for c in cells(nb, 'code') if re.search(r'^(import|from) ', source(c), re.M))
    assert first['id'] == 'colab' and directives(first)['eval'] == 'false'
    alike = next(source(c) for c in cells(taught[0], 'code') if c['id'] == 'colab')
    assert source(first) == alike and f'git clone -q --depth 1 {REPOSITORY}' in alike

def test_the_cell_that_installs_does_nothing_in_the_repository(monkeypatch, tmp_path):
    "Elsewhere, or without the library, it fetches, installs and goes there"
    inputtransformer2 = pytest.importorskip('IPython.core.inputtransformer2')
    done = []
    class Shell:
        def system(self, command): done.append(command)
        def run_line_magic(self, name, line, **kwargs): done.append(f'{name} {line}')
    cell = next(source(c) for c in cells(taught[0], 'code') if c['id'] == 'colab')
    code = inputtransformer2.TransformerManager().transform_cell(cell)
    monkeypatch.chdir(home/'course')
    exec(code, {'get_ipython': Shell})
    assert not done
    monkeypatch.chdir(tmp_path)
    exec(code, {'get_ipython': Shell})
    assert [o.split()[0] for o in done] == ['[', 'pip', 'cd']

# pictures and links

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
    for said,number in re.findall(r'\[(\d\d)\b[^\]]*\]\((?:\.\./course/)?(\d\d)_\w+\.ipynb', prose(nb)):
        assert said == number

@lesson
def test_lessons_lead_to_their_neighbours(nb):
    last, i = links(source(cells(nb, 'markdown')[-1])), taught.index(nb)
    assert {taught[j].name for j in (i-1, i+1) if 0 <= j < len(taught)} <= {*last}

@pytest.mark.parametrize('nb', chapters, ids=name)
def test_a_page_is_found(nb):
    "In the sidebar, and on home or on the page of its shelf"
    assert f'{name(nb)}.ipynb' in order()
    shelf, page = nb.parent/'index.qmd', f'{name(nb)}.ipynb'
    listed = shelf.is_file() and f']({nb.name})' in shelf.read_text(encoding='utf-8')
    assert listed or re.search(rf'\]\({page}\)|href="{page}"', prose(home/'index.ipynb'))

def test_files_name_what_is_there():
    for f in ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'SECURITY.md', 'nbs/library/index.qmd',
              'nbs/studies/index.qmd'):
        text = (root/f).read_text(encoding='utf-8')
        for link in links(text) + re.findall(r'!\[.*?\]\(([^)]+)\)', text):
            if re.match(r'https?://', link): assert well_formed(link), link
            else: assert ((root/f).parent/link.partition('#')[0]).exists(), (f, link)
    targets = {*re.findall(r'^([a-z-]+):', (root/'Makefile').read_text(encoding='utf-8'), re.M)}
    for f in (root/'README.md', root/'CONTRIBUTING.md', root/'.ci'/'run', *nbs):
        said = prose(f) if f.suffix == '.ipynb' else f.read_text(encoding='utf-8')
        assert {*re.findall(r'(?:`|^)make ([a-z-]+)', said, re.M)} <= targets, f

# the README, the glossary, options, the version

def test_the_readme_is_the_start_page():
    from readme import render
    assert (root/'README.md').read_text(encoding='utf-8') == render(), 'run make export'

def test_the_glossary_is_in_order_and_leads_to_pages():
    terms = re.findall(r'^- \*\*(.+?)\*\*: (.+)$', prose(home/'glossary.ipynb'), re.M)
    said = [re.sub(r'[^a-z0-9 ]', '', t.lower().replace('–', ' ')).strip() for t,_ in terms]
    assert len(said) > 80 and said == sorted({*said})
    for t,text in terms: assert re.search(r'\]\((course|library|studies)/\w+\.ipynb\)$', text), t

def test_options_that_are_named_exist():
    from fastcore.script import anno_parser
    from elmo_fastai.practice.command import pretrain
    known = {o for action in anno_parser(pretrain)._actions for o in action.option_strings}
    for f in [root/'README.md', *nbs]:
        text = prose(f) if f.suffix == '.ipynb' else f.read_text(encoding='utf-8')
        for line in re.findall(r'elmo_pretrain[^`\n#]*|ARGS="[^"]*"', text):
            assert {*re.findall(r'--[\w-]+', line)} <= known, (f.name, line)

def test_the_version_is_that_of_the_settings():
    cfg = ConfigParser(delimiters=['='])
    cfg.read(root/'settings.ini', encoding='utf-8')
    said = (root/'elmo_fastai'/'__init__.py').read_text(encoding='utf-8')
    assert f'''__version__ = "{cfg['DEFAULT']['version']}"''' in said
