"""Repository hygiene: the notebooks as they are committed, their outputs, pictures and links, the
README, and what names what"""

import ast, re
from configparser import ConfigParser

import nbformat
from execute import is_stale
from notebooks import *

WIDEST = 100    # characters a line of code

# form

def test_lessons_are_numbered():
    assert [f.stem[:2] for f in taught] == [f'{i:02}' for i in range(len(taught))]
    assert all(map(on, SHELVES))

@each
def test_format_and_ids(nb):
    d = read(nb)
    assert (d['nbformat'], d['nbformat_minor']) == (4, 5)
    nbformat.validate(nbformat.read(nb, 4))
    ids = [c['id'] for c in d['cells']]
    assert len(set(ids)) == len(ids)
    assert (set(d['metadata']) <= {'kernelspec', 'language_info', 'run'}
            and d['metadata']['kernelspec']['name'] == 'python3')
    folded = {'jupyter': {'source_hidden': True}}         # a solution, in Jupyter and Colab too
    assert all(c['metadata'] in ({}, folded) for c in d['cells'])

@each
def test_title_and_description(nb):
    first = read(nb)['cells'][0]
    assert first['cell_type'] == 'markdown'
    lines = [o for o in source(first).split('\n') if o.strip()]
    assert re.match(r'# \S', lines[0]) and re.match(r'> \S', lines[1])
    last = read(nb)['cells'][-1]
    if nb in taught:                                    # a lesson opens with its title alone
        assert len(lines) == 2 and last['cell_type'] == 'raw'
        assert source(last) == '---\nskip_showdoc: true\n---'
    else: assert lines[2].strip() == '- skip_showdoc: true'
    assert len(lines[0]) < 80 and len(lines[1]) < 200
    prose = '\n'.join(re.sub(FENCE, '', source(c)) for c in cells(nb, 'markdown'))
    assert len(re.findall(r'^# ', prose, re.M)) == 1, 'one title'

@each
def test_lines_of_code_fit(nb):
    "Text within strings, and captions, may be wide"
    long = []
    for c in cells(nb, 'code'):
        if c['id'] == 'colab': continue         # the address of the repository is long
        text = inside_strings(source(c))
        long += [f"{c['id']}, line {i}" for i,line in enumerate(source(c).split('\n'), 1)
                 if len(line) > WIDEST and i not in text and not line.startswith('#|')]
    assert not long, f"lines of code wider than {WIDEST} characters: {'; '.join(long)}"

def inside_strings(code):
    "The numbers of the lines that belong to a string of several lines"
    try: tree = ast.parse(code)
    except SyntaxError: return set()  # a line of IPython
    found = [n for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) or isinstance(
        n, ast.Constant) and isinstance(n.value, str)]
    return {i for n in found if n.end_lineno > n.lineno for i in range(n.lineno, n.end_lineno+1)}

@each
def test_no_code_cell_is_empty_and_every_cell_parses(nb):
    for c in cells(nb, 'code'):
        assert source(c).strip()
        if not re.search(r'^\s*[%!]', source(c), re.M): ast.parse(source(c))

# outputs

SILENT = re.compile(r"""test_|assert|warn|seed|set_|shuffle$|update$|append$|extend$|add_|remove
    |step$|backward$|fit|load|save|train$|copy_|fill_|noop$|clear|cleanup|close|unlink|simplefilter
    |filterwarnings""", re.X)

def shows(cell):
    "Does the cell end with an expression that has a value to be seen?"
    code = '\n'.join(o for o in source(cell).split('\n') if not o.startswith(('#|', '%', '!')))
    body = ast.parse(code).body
    last = re.sub(r'#.*$', '', code.strip().split('\n')[-1]).strip()
    if not body or not isinstance(body[-1], ast.Expr) or last.endswith(';'): return False
    e = body[-1].value
    if isinstance(e, ast.Constant) and isinstance(e.value, str) and len(body) == 1: return False
    if not isinstance(e, ast.Call): return True
    f = e.func.attr if isinstance(e.func, ast.Attribute) else getattr(e.func, 'id', '')
    return not SILENT.match(f)

@each
def test_every_notebook_was_executed(nb):
    code = [c for c in cells(nb, 'code') if directives(c).get('eval') != 'false']
    missing = [c['id'] + ': ' + source(c).strip().split('\n')[-1][:80] for c in code
               if shows(c) and not c['outputs']]
    assert not missing
    counts = [c['execution_count'] for c in code]
    assert all(o is None for o in counts) or counts == list(range(1, len(counts) + 1)), (
        'run from top to bottom')
    if nb in taught: assert sum(bool(c['outputs']) for c in code) >= 5

@each
def test_outputs_come_from_the_code_of_the_page(nb):
    "`make run` notes in the page which code it ran; cells marked slow may be older"
    assert not is_stale(nb), f'its code has changed: make run CHAPTERS=nbs/{name(nb)}.ipynb'

@each
def test_no_error_and_no_warning_in_outputs(nb):
    for c in cells(nb, 'code'):
        for o in c['outputs']:
            assert o['output_type'] != 'error' and o.get('name') != 'stderr', c['id']
            assert not any('widget' in k for k in o.get('data', ())), f"{c['id']}: a widget"
        for t in texts(c['outputs']):
            assert not re.search(r'\b\w*Warning\b|Traceback|\bdeprecated\b', t), (c['id'], t[:200])

PLACES = re.compile(
    r'(?<![\w.:/-])/(?:work|root|home|tmp|Users|opt|mnt|us'
    + r'r|var)/|site-'
    + r'packages|[A-Z]:\\Users|(?<![\w])~/\w'
)
HOSTS = re.compile(r'py' + r'pi\.(?:org|io)|python' + r'hosted\.org|index' + r'-url|find'
                   + r'-links|artifac' + r'tory|conda\.ana' + r'conda\.org|/sim' + r'ple/', re.I)

ABSOLUTE = re.compile(r'(?<![\w.:/<>&;)\]%…-])/(?:[A-Za-z][\w.-]*/)+[\w.-]*|\bfile:' + r'//')

@each
def test_no_machine_in_sources_and_outputs(nb):
    for c in read(nb)['cells']:
        for t in [source(c), *texts(c.get('outputs', []))]:
            for r in (PLACES, HOSTS):
                assert not (m := r.search(t)), (c['id'], t[max(0, m.start() - 40):m.end() + 40])
        for t in texts(c.get('outputs', [])):
            assert not re.search(r'0x[0-9a-f]{8,}', t), (
                f"{c['id']}: an address in memory differs at every run")
            assert not (m := ABSOLUTE.search(t)), (c['id'], t[max(0, m.start()-40):m.end()+40])

# every tracked text of ours; tests that look for such words are left out by their own spelling
OURS = '''.ci/* .github/**/* elmo_fastai/**/*.py tests/**/*.py nbs/*.y*ml nbs/*.css
    nbs/images/*.svg'''
ENDINGS = '.md .ini .py .yml .yaml .toml .txt .css .svg .cff'.split()
others = [f for pattern in [*FILES, *OURS.split()] for f in root.glob(pattern)
          if f.is_file() and f.suffix in ('', *ENDINGS)]

@rule_for(others, lambda f: str(f.relative_to(root)))
def test_no_machine_in_other_files(file):
    text = re.sub(r'^#!.*', '', file.read_text(encoding='utf-8'))
    if file.name in ('test_corpora.py', 'test_learner.py', Path(__file__).name):
        text = re.sub(r"'/(tmp|home|usr)/.*?'", '', text)
    for r in (PLACES, HOSTS):
        assert not (m := r.search(text)), text[max(0, m.start() - 40):m.end() + 40]

@rule_for([*others, *nbs], lambda f: str(f.relative_to(root)))
def test_nothing_is_left_to_do(file):
    text = ('\n'.join(source(c) for c in read(file)['cells']) if file.suffix == '.ipynb'
            else file.read_text(encoding='utf-8'))
    m = re.search(r'\bTO' + r'DO\b|\bFIX' + r'ME\b|\bXX' + r'X\b|lorem ' + r'ipsum', text)
    assert not m, text[max(0, m.start() - 60):m.end() + 60]

# pictures

@each
def test_captions_come_with_descriptions(nb):
    for c in cells(nb, 'code'):
        d = directives(c)
        assert ('fig-cap' in d) == ('fig-alt' in d), c['id']
        for k in ('fig-cap', 'fig-alt'):
            if k in d: assert len(d[k].strip('"\' ')) > 15, (c['id'], k)
        images = [m for o in c['outputs'] for m in o.get('data', {}) if m.startswith('image/')]
        if images: assert 'fig-alt' in d, f"{c['id']}: a picture without a description"
    for alt,target in re.findall(r'!\[(.*?)\]\(([^)]+)\)', prose(nb)):
        assert len(alt) > 15, target
        if not target.startswith('https://'): assert (nb.parent/target).is_file(), target
    # the link has its words beside the picture
    text = re.sub(r'(<a href="[^"]+">)<img src="[^"]+" alt="">(?=<span)', r'\1', prose(nb))
    text += ''.join(t for c in cells(nb, 'code') for t in texts(c['outputs']))
    for tag in re.findall(r'<img\b[^>]*>', text):
        assert (alt := re.search(r'\balt="([^"]*)"', tag)) and len(alt[1]) > 15, tag

# links

@each
def test_links_in_notebooks(nb):
    for link in links(prose(nb)):
        if re.match(r'https?://', link): assert well_formed(link), link; continue
        target,_,anchor = link.partition('#')
        file = nb.parent/target if target else nb
        assert file.is_file(), f'{link}: there is no such file'
        if anchor and file.suffix == '.ipynb':
            assert anchor in anchors(file), f'{link}: there is no such heading'

@each
def test_links_say_the_number_of_their_chapter(nb):
    for said, number in re.findall(
        r'\[(?:[Cc]hapter )?(\d\d[a-z]?)\b[^\]]*\]\((\d\d[a-z]?)_\w+\.ipynb', prose(nb)):
        assert said == number

def test_links_in_the_readme():
    text = (root/'README.md').read_text(encoding='utf-8')
    for link in links(text) + re.findall(r'!\[.*?\]\(([^)]+)\)', text):
        if re.match(r'https?://', link): assert well_formed(link), link
        else: assert (root/link.partition('#')[0]).is_file(), link

# options, metadata

def test_options_that_are_named_exist():
    from fastcore.script import anno_parser
    from elmo_fastai.practice.command import pretrain
    known = {o for action in anno_parser(pretrain)._actions for o in action.option_strings}
    for f in [root/'README.md', *nbs]:
        text = prose(f) if f.suffix == '.ipynb' else f.read_text(encoding='utf-8')
        for line in re.findall(r'elmo_pretrain[^`\n#]*|ARGS="[^"]*"', text):
            assert {*re.findall(r'--[\w-]+', line)} <= known, (f.name, line)

def test_continuous_integration_can_be_run(): assert (root/'.ci'/'run').stat().st_mode & 0o111

def test_the_version_is_that_of_the_settings():
    cfg = ConfigParser(delimiters=['='])
    cfg.read(root/'settings.ini', encoding='utf-8')
    version = cfg['DEFAULT']['version']
    assert f'__version__ = "{version}"' in (root/'elmo_fastai'/'__init__.py').read_text()
    assert {'version', 'dependencies', 'optional-dependencies'} <= {*project['dynamic']}
