"""The documentation site: its configuration always; the built pages where Quarto is installed; the
pages in a browser where there is one"""

import functools, gzip, http.server, inspect, json, os, re, shutil, struct, subprocess, sys, threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest, yaml

from notebooks import (
    SHELVES,
    files_in,
    home,
    name,
    nbs,
    order,
    read,
    root,
    rule_for,
    site,
    source,
    taught,
)

config = site()
web,html = config['website'], config['format']['html']
HOME = web['site-url'] + '/'
REPO = web['repo-url']

def cells(nb): return read(nb)['cells']
def title_and_description(nb):
    return [re.sub(r'^[#>] ', '', o) for o in source(cells(nb)[0]).split('\n') if o.strip()][:2]


# nbdev leaves the number out of the address
def page_name(nb): return re.sub(r'(^|/)\d+_', r'\1', name(nb)) + '.html'
def number(nb): return nb.name[:2] if nb in taught else ''
def plain(text):
    "`text` without marks, its quotation marks and dashes straight again"
    for a, b in [
        ("[`*]", ''),
        ('[‘’]', "'"),
        ('[“”]', '"'),
        ('[–—]|--+', '-'),
        ('…', '...'),
        (r'\s+', ' '),
    ]:
        text = re.sub(a, b, text)
    return text.strip()

def over(items, called=name):
    """One test of a rule for all `items`, each of them the first argument in its turn; the others
    are fixtures"""

    def rule(check):
        def test(**fixtures): rule_for(items, called)(lambda o: check(o, **fixtures))()
        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.__signature__ = inspect.Signature(
            list(inspect.signature(check).parameters.values())[1:]
        )
        return test
    return rule

each = over(nbs)
ORDER = [home/f for f in order()]                   # as the sidebar has them
# below them
REFERENCE = [f for f in files_in(site()['website']['sidebar']['contents']) if f.endswith('.md')]

# configuration

def test_the_sidebar_names_every_notebook_once_shelf_by_shelf():
    assert sorted(ORDER) == sorted(nbs)
    parts = [o for o in web['sidebar']['contents'] if 'section' in o]
    assert [o['section'] for o in parts] == ['The course', 'Studies', 'Library', 'Reference']
    for shelf, o in zip(SHELVES, parts):
        assert {f.split('/')[0] for f in files_in(o['contents'])} - {'glossary.ipynb'} == {shelf}
    assert [home / f for f in parts[0]['contents']] == [*taught, home / 'glossary.ipynb'], (
        'the course in the order of its numbers'
    )
    assert [o['text'] for o in parts[2]['contents'] if isinstance(o, dict)] == GROUPS

GROUPS = ['Practice', 'Text', 'Batches', 'The network', 'Training', 'ELMo', 'Tasks', 'Beneath']

def test_the_opening_pages_are_those_of_the_sidebar():
    import shelves
    assert not shelves.old(), 'run python tests/shelves.py'


@pytest.mark.parametrize('nb', [o for o in nbs if o.parent.name == 'studies'], ids=lambda o: o.stem)
def test_the_card_of_a_study_has_its_answer(nb):
    "It says no number that the opening of the study does not have, and repeats no title"
    import shelves
    question, answer = shelves.ASKED[nb.stem]
    cells = [source(o) for o in json.loads(nb.read_text(encoding='utf-8'))['cells'][:3]]
    [opening] = [o for o in cells if '**The answer.**' in o]
    known = opening + title_and_description(nb)[1]
    assert question.endswith('?') and 20 < len(answer) < 200
    assert title_and_description(nb)[0] not in (question, answer)
    assert {*re.findall(r'\d[\d,.]*\d|\d', answer)} <= {*re.findall(r'\d[\d,.]*\d|\d', known)}


def test_no_two_pages_have_one_title():
    titles = [title_and_description(nb)[0].lower() for nb in nbs]
    assert not {o for o in titles if titles.count(o) > 1}
    assert not [o for o in titles if re.search('fifteen|thirteen|sixteen', o)]

def test_files_of_the_configuration_exist():
    for f in [
        web['favicon'],
        config['image'],
        html['css'],
        html['theme']['light'][1],
        html['theme']['dark'][1],
        '404.qmd',
    ]:
        assert (home / f).is_file(), f
    for o in web['navbar']['left']: assert (home/o['href'].split('#')[0]).is_file(), o
    assert (home/config['project']['post-render']).resolve().is_file()

def test_nbdev_takes_the_pictures_along():
    assert pytest.importorskip('nbdev.config').get_config(root).recursive, (
        'without it nbdev copies no folder, and every diagram is missing from the pages'
    )


def test_social_card_has_the_size_that_is_asked_for():
    head = (home/config['image']).read_bytes()[:24]
    assert head[:8] == b'\x89PNG\r\n\x1a\n' and struct.unpack('>II', head[16:24]) == (1200, 630)
    assert '1200' in (home/config['image']).with_suffix('.svg').read_text(encoding='utf-8')
    assert len(config['image-alt']) > 40

@each
def test_directives_are_yaml(nb):
    "Quarto stops at a caption with a bare colon"
    for c in cells(nb):
        if c['cell_type'] != 'code': continue
        for name,value in re.findall(r'^#\|[ ]*([\w-]+):[ ]*(.*)$', source(c), re.M):
            try: read = yaml.safe_load(f'{name}: {value}')
            except yaml.YAMLError as e: pytest.fail(f"{c['id']}: {name}: {value}: {e}")
            assert isinstance(read, dict) and list(read) == [name], (c['id'], name, value)
            if name in ('fig-cap', 'fig-alt'):
                assert plain(str(read[name])) == plain(value.strip('"\' ')), (
                    c['id'],
                    'a part of the text is lost',
                    read,
                )


@each
def test_nothing_is_struck_through(nb):
    "`<s>` in alt text or prose becomes a line through all that follows; in code it is a token"
    for c in cells(nb):
        if c['cell_type'] == 'markdown': texts = [re.sub(r'`[^`]*`', '', without_code(source(c)))]
        else: texts = re.findall(r'^#\|[ ]*fig-(?:alt|cap):[ ]*(.*)$', source(c), re.M)
        for text in texts:
            assert not re.search(r'</?(?:s|del|strike)>|~~\w', re.sub(r'`[^`]*`', '', text)), (
                c['id'],
                text[:80],
            )


def test_plots_keep_their_colours_in_the_dark():
    "A caption that says what is light and what is dark holds on both pages"
    css = (home/'styles.css').read_text(encoding='utf-8')
    rules = {
        selector.strip(): body
        for selectors, body in re.findall(
            r'([^{}]+)\{([^{}]*)\}', re.sub(r'/\*.*?\*/', '', css, flags=re.S)
        )
        for selector in selectors.split(',')
    }
    assert 'filter: none' in rules['.quarto-dark main .cell-output-display img'] and not any(
        'invert' in body for selector, body in rules.items() if 'canvas' in selector
    )


def test_a_drawing_has_one_caption():
    "Quarto makes a caption of the description; the line in italics below is the caption"
    import after_render

    drawing = '<figure class="figure"><p><img alt="A <b>, b" src="x.svg"></p><figcaption>A &lt;b&gt;, b</figcaption>\n</figure>\n</div>\n'
    made = after_render.captioned(
        drawing + '<p><em>One <code>b</code>.</em></p>\n<p><em>Two.</em></p>'
    )
    assert (
        made
        == drawing.replace('A &lt;b&gt;, b</figcaption>', 'One <code>b</code>.</figcaption>')
        + '\n<p><em>Two.</em></p>'
    )
    upright = after_render.captioned(drawing + '<p><em>What</em> play <em>is.</em></p>')
    assert '<figcaption><em>What</em> play <em>is.</em></figcaption>' in upright, (
        'or all that follows is in italics'
    )
    for text in (drawing + '<p>Text.</p>', drawing + '<p><em>Part</em> of a line.</p>'):
        assert after_render.captioned(text) == text


def test_pictures_fit_a_phone():
    """A drawing with a narrow version brings it along; another one that is wide scrolls; all keep
    their place"""
    import after_render

    def tag(name):
        return after_render.sized(f'<p><img src="../images/{name}" alt="A"></p>', home / 'course')

    narrow, wide, small = tag('bilm_two.svg'), tag('counting_backoff.svg'), tag('cbow-step.svg')
    assert re.search(
        r'<picture><source media="\(max-width: 40rem\)" srcset="../images/bilm_two-narrow.svg" width="\d+" height="\d+"><img width="\d+"[^>]*></picture>',
        narrow,
    )
    assert (
        'class="wide' not in narrow
        and 'class="wide' in wide
        and 'class="wide' not in small
        and all('height="' in o for o in (wide, small))
    )
    for made in (narrow, wide, small):
        assert after_render.sized(made, home / 'course') == made, 'nothing is done twice'
    assert 'images/*-narrow.svg' in config['project']['resources']

def test_tables_are_made_readable():
    "Empty headings, cells of text, long tables of studies; done twice, nothing changes"
    import after_render

    table = '<table><thead><tr><th></th><th>n</th></tr></thead><tbody>{}</tbody></table>'.format(
        '<tr><th>a</th><td>1</td></tr>' * 20
    )
    heads = after_render.with_heads(after_render.set_as_numbers(table))
    row = '<td data-quarto-table-cell-role="th">a</td><td data-quarto-table-cell-role="th"></td>'
    named = after_render.with_heads(row)
    assert named.count('<th scope="row"') == 1 and after_render.with_heads(named) == named
    assert (
        '<th></th>' not in heads
        and heads.count('class="num"') == 21
        and after_render.set_as_numbers(heads) == heads
    )
    assert after_render.with_room(f'<td>{"word "*9}</td><td>word</td>').count('class="text"') == 1
    folds = after_render.folded(heads)
    assert (
        '<summary>Show the table: 20 rows, columns n</summary>' in folds
        and after_render.folded(folds) == folds
    )
    assert after_render.folded(
        table.replace('<tr><th>a</th><td>1</td></tr>', '', 8)
    ) != table and '<details' not in after_render.folded(
        table.replace('<tr><th>a</th><td>1</td></tr>', '', 9)
    )


def test_names_of_the_reference_break_between_words_only():
    import after_render

    made = after_render.breakable(
        '<h4 class="anchored">KneserNey.next_probs</h4><td><code>str \\| None</code></td><code>next_probs</code>'
    )
    assert (
        made
        == '<h4 class="anchored">KneserNey<wbr>.next<wbr>_probs</h4><td><code>str | None</code></td><code>next_probs</code>'
    )
    assert after_render.breakable(made) == made

def test_answers_are_folded_once():
    "The fold of an answer in the notebook goes where all solutions are folded; others stay"
    import after_render

    fold = '<details>\n<summary>\nAnswer\n</summary>\n'
    told = (
        f'<p><strong>1.</strong></p>\n{fold}<p>One.</p>\n</details>\n<strong>2.</strong>\n{fold}'
        '<p>Two.</p>\n<p>More.</p>\n</details>\n<details><summary>Code</summary>x</details>'
        f'{fold}<p><strong>3.</strong> Three.</p>\n</details><details>\n<summary>\nAnswers to 4 and 5'
        '</summary>\n<p><strong>4.</strong> Four.</p>\n<p><strong>5.</strong> Five.</p>\n</details>'
    )
    page = f'<section id="solutions" class="level2">\n<h2>Solutions</h2>{told}</section>'
    made = after_render.solved(page)
    assert '<li value="1"><p>One.</p></li>' in made and '<li value="2"><p>Two.</p></li>' in made
    for i, answer in enumerate(('Three', 'Four', 'Five'), 3):
        assert f'<li value="{i}"><p>{answer}.</p></li>' in made
    assert 'Answer' not in made and '<p>More.</p>' in made
    assert made.count('<details') == made.count('</details>') == 2
    assert after_render.solved(made) == made
    asked = f'<section id="three" class="level2"><h2>Three</h2>{told}</section>'
    assert after_render.solved(asked) == asked

def test_the_search_holds_prose_and_names():
    import after_render

    html = '<main><header><h1>A</h1></header><p>An opening.</p><section id="one" class="level2"><h2>One</h2><p>So <span class="math inline">\\(\\frac{1}{2}\\)</span> is <code>half</code>.</p><div class="sourceCode"><pre class="sourceCode">def halve(x):\n    return x/2</pre></div><table><tr><td>7</td></tr></table></section></main>'
    item = dict(objectID='a', href='course/a.html#one', title='A', section='One', text='old')
    assert after_render.searched(item, {'course/a.html': html}) == 'One So is half . halve'
    assert (
        after_render.searched(item | dict(href='course/a.html'), {'course/a.html': html})
        == 'An opening.'
    )


def test_pages_load_fast(tmp_path):
    """Scripts wait, the first picture does not, and style rules for classes that no page has are
    gone"""
    import after_render

    html = '<head><script src="../site_libs/a/a.js"></script></head><main><img loading="lazy" src="a.svg"><section><img loading="lazy" src="b.svg"></section></main>'
    made = after_render.deferred(after_render.first_at_once(html))
    assert made == html.replace('<script src', '<script defer src').replace(
        'loading="lazy" src="a', 'fetchpriority="high" src="a'
    )
    assert after_render.deferred(after_render.first_at_once(made)) == made
    css = tmp_path/'site_libs'/'bootstrap'/'bootstrap-1.min.css'
    css.parent.mkdir(parents=True)
    css.write_text(
        '@font-face{src:x}a{b:c}.on,.off{b:c}@media (x){.off .on{b:c}.on:not(.off){b:c}}.bs-x{b:c}',
        encoding='utf-8',
    )
    (tmp_path/'a.html').write_text('<p class="on">off</p>', encoding='utf-8')
    after_render.fewer_rules(tmp_path)
    assert (
        css.read_text(encoding='utf-8')
        == '@font-face{src:x}a{b:c}.on{b:c}@media (x){.on:not(.off){b:c}}.bs-x{b:c}'
    )


# no paragraph gets lost on the way to its page

def words(text): return re.sub(r'[\W_]+', '', re.sub(r'&\w+;', '', text)).casefold()
def without_code(text): return re.sub(r'^(```|~~~).*?^\1', '', text, flags=re.M | re.S)
HEAD = re.compile(r'# .*\n+> .*\n*(?:- [\w-]+: \w+\s*)*')
# the last line of a chapter of the course; on a page Quarto's own links stand in its place
TURN = re.compile(r'\*\*Previous\*\*: \[')

def paragraphs(nb):
    """Each paragraph, list, table and heading of the markdown of a notebook, but the title and the
    line of links at the end"""
    for i,c in enumerate(o for o in cells(nb) if o['cell_type'] == 'markdown'):
        text = source(c) if i else HEAD.sub('', source(c))
        for part in re.split(r'\n\s*\n', text):
            if part.strip() and not TURN.match(part): yield part.strip()

def processed(nb):
    "The markdown that nbdev hands to Quarto: its own processing of the notebook"
    processors = pytest.importorskip('nbdev.processors')
    from fastcore.nbio import read_nb
    # each shell that executes would be cleared at exit, for seconds
    class Unexecuted(processors.FilterDefaults):
        def base_procs(self):
            return [o for o in super().base_procs() if o is not processors.exec_show_docs]

    made = read_nb(nb)
    Unexecuted()(made)
    return '\n\n'.join(c.source or '' for c in made.cells if c.cell_type != 'code')

LINK = re.compile(r'\[(`[^`]*`)\]\([^)]*\)')               # nbdev links names in backticks
def lost(nb, text):
    text = words(LINK.sub(r'\1', text))
    return [o for o in paragraphs(nb) if words(LINK.sub(r'\1', o)) not in text]

@each
def test_nbdev_hands_on_every_paragraph(nb): assert not lost(nb, processed(nb))

def test_a_lost_paragraph_is_found(tmp_path):
    "nbdev drops what stands in the cell of the title"
    nb = tmp_path/'lost.ipynb'
    md = lambda i, text: {'cell_type': 'markdown', 'id': i, 'metadata': {}, 'source': text}
    nb.write_text(
        json.dumps(
            {
                'cells': [
                    md('a', '# Title\n\n> Line\n\n- skip_showdoc: true\n\nAn opening.'),
                    md('b', 'More of `it`.'),
                ],
                'metadata': {},
                'nbformat': 4,
                'nbformat_minor': 5,
            }
        )
    )
    assert lost(nb, processed(nb)) == ['An opening.']

def luminance(colour):
    rgb = [int(colour[i:i+2], 16)/255 for i in (1, 3, 5)]
    return sum(
        w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for w, c in zip((0.2126, 0.7152, 0.0722), rgb)
    )


def contrast(a, b):
    a,b = sorted((luminance(a), luminance(b)))
    return (b+.05)/(a+.05)

def test_contrast_by_known_values():
    assert contrast('#000000', '#ffffff') == pytest.approx(21) and contrast(
        '#777777', '#ffffff'
    ) == pytest.approx(4.48, abs=0.01)


PAPER = {'light': '#ffffff', 'dark': '#222222'}     # the backgrounds of the two themes

def test_colours_are_readable():
    bar = web['navbar']
    assert contrast(bar['background'], bar['foreground']) >= 4.5
    css = re.sub(r'/\*.*?\*/', '', (home/html['css']).read_text(encoding='utf-8'), flags=re.S)
    seen = []
    for selector,body in re.findall(r'([^{}]+)\{([^{}]*)\}', css):
        rules = dict(
            re.findall(r'(?<![\w-])([\w-]+)\s*:\s*([^;]+?)\s*(?:!important)?\s*(?:;|$)', body)
        )
        if not re.fullmatch(r'#[0-9a-f]{6}', rules.get('color', '')): continue
        seen.append(
            (
                selector.strip(),
                rules['color'],
                rules.get('background', PAPER['dark' if 'quarto-dark' in selector else 'light']),
            )
        )
    for theme,paper in PAPER.items():
        scss = (home/html['theme'][theme][1]).read_text(encoding='utf-8')
        for name in ('link-color', 'code-color'):
            seen.append(
                (
                    theme + ' ' + name,
                    re.search(rf'^\${name}: (#[0-9a-f]{{6}});', scss, re.M)[1],
                    paper,
                )
            )
    assert len(seen) >= 5
    for what,text,paper in seen: assert contrast(text, paper) >= 4.5, (what, text, paper)

def test_pages_ask_no_other_host_for_fonts():
    for theme in PAPER:
        assert '$web-font-path: false;' in (home / html['theme'][theme][1]).read_text(
            encoding='utf-8'
        )


# the built pages

@pytest.fixture(scope='session')
def built(tmp_path_factory):
    """The folder of the built site: that of ELMO_FASTAI_SITE, or built now in a copy of the
    repository"""
    if os.environ.get('ELMO_FASTAI_SITE'): return Path(os.environ['ELMO_FASTAI_SITE']).resolve()
    if not shutil.which('quarto'):
        pytest.skip('Quarto is not installed: the pages are not built here')
    copy = tmp_path_factory.mktemp('site')/'repository'
    if any(o.startswith('.') for o in copy.parts):
        pytest.skip(
            'nbdev reads no notebook below a hidden folder, and the temporary folder is one'
        )
    shutil.copytree(
        root,
        copy,
        ignore=shutil.ignore_patterns(
            '.?*',
            '_docs',
            '_proc',
            '_preview',
            'models',
            'runs',
            'build',
            'dist',
            '*.egg-info',
            '__pycache__',
        ),
    )
    env = os.environ | {
        'PATH': os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']]),
        'PYTHONPATH': str(copy),
    }
    run = subprocess.run(
        [sys.executable, '-c', 'from nbdev.quarto import nbdev_docs; nbdev_docs()'],
        cwd=copy,
        env=env,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    log = run.stdout + run.stderr
    assert run.returncode == 0, log[-3000:]
    assert not (m := re.search(r'.*(?:WARN|ERROR|Traceback).*', log)), m[0]
    assert not re.search(r'^\s*Executing|Starting .* kernel', log, re.M), (
        'saved outputs are shown, nothing runs'
    )
    assert (copy/'README.md').read_bytes() == (root/'README.md').read_bytes()
    return copy/'_docs'

@functools.lru_cache(None)
def soup(file):
    from bs4 import BeautifulSoup
    return BeautifulSoup(file.read_text(encoding='utf-8'), 'html.parser')

@functools.lru_cache(None)
def ids(file): return {o['id'] for o in soup(file).find_all(id=True)}

def pages(built): return [f for f in sorted(built.rglob('*.html')) if 'site_libs' not in f.parts]
def place(built, page): return page.relative_to(built).as_posix()

@each
def test_page_has_title_and_description(nb, built):
    s = soup(built/page_name(nb))
    title,description = title_and_description(nb)
    title = f'{number(nb)} {plain(title)}'.strip()
    assert [plain(o.get_text()) for o in s.find_all('h1')] == [title]
    assert plain(s.title.get_text()).startswith(title) and s.html['lang'] == 'en-GB'
    assert plain(s.find('meta', attrs={'name': 'description'})['content']) == plain(description)

@each
def test_every_paragraph_stands_on_its_page(nb, built):
    text = words(soup(built/page_name(nb)).find('main').get_text())
    missing = []
    for part in paragraphs(nb):
        # tags, tables, code, formulas and pictures have tests of their own
        if re.match(r'<|\||~~~|```|\$\$|!\[|:::', part): continue
        # on the built page a bar of links has it
        part = re.sub(r'\[Open in Colab\]\(\S*\)', '', part)
        part = re.sub(
            r'(``.*?``|`[^`]*`)|<[^>]*>|\]\([^)\s]*\)(?:\{[^}]*\})?|\s\{#.*?\}',
            r'\1',
            without_code(part),
        )
        # numbers of lists and answers are not text
        part = re.sub(
            r'^ *(?:\*\*)?(?:\d+(?:\*\*)?[.:)]?(?:\*\*)? |[-*] |>+|#+)', ' ', part, flags=re.M
        )
        # nor are formulas: KaTeX draws them
        missing += [o for o in re.split(r'\$[^$]+\$', part) if words(o) not in text]
    assert not missing

def test_the_book_holds_every_lesson_in_order(built):
    import book
    assert book.lessons(built) == list(map(page_name, taught))
    made = book.book(built)
    assert [made.index(f'<article id="{Path(page_name(o)).stem}"') for o in taught] == sorted(
        made.index(f'<article id="{Path(page_name(o)).stem}"') for o in taught
    )
    assert (
        'loading="lazy"' not in made
        and not re.search(r'<details(?! open)', made)
        and not re.search(r'(?:src|href)="\.\./', made)
    )
    anchors = {*re.findall(r'\bid="([^"]+)"', made)}
    assert not [o for o in re.findall(r'href="#([^"]+)"', made) if unquote(o) not in anchors], (
        'links stay inside the book'
    )

def test_a_lesson_of_the_epub_is_plain():
    import book
    made = book.plain(
        '<article id="memory"><header><h1 class="title">06 Memory</h1>'
        '<div class="description">What stays.</div></header><p class="elmo-run">Colab</p>'
        '<section id="memory--one" class="level2"><h2>One bit</h2>'
        '<pre class="sourceCode python more"><code><span id="cb1-1"><a href="#cb1-1"></a>'
        'f(<span class="dv">1</span>) &lt; 2</span></code></pre>'
        '<p>Let <span class="math inline">c_t</span> be</p></section></article>'
    )
    assert made == (
        '<h1 id="memory">06 Memory</h1><p><em>What stays.</em></p>'
        '<a id="memory--one"></a><h2>One bit</h2>'
        '<pre class="python"><code>f(1) &lt; 2</code></pre><p>Let \\(c_t\\) be</p>'
    )

@pytest.mark.skipif(not shutil.which('pandoc'), reason='Pandoc is not installed')
def test_the_epub_has_a_chapter_per_lesson_and_whole_links(built, tmp_path):
    import book, zipfile
    shutil.copytree(built, tmp_path/'site')
    with zipfile.ZipFile(book.bound(tmp_path/'site')) as made:
        texts = {
            Path(o).name: made.read(o).decode() for o in made.namelist() if '/text/ch' in o
        }
    assert len(texts) == len(taught)
    ids = {f'{name}#{i}' for name, o in texts.items() for i in re.findall(r'\bid="([^"]+)"', o)}
    links = {o for t in texts.values() for o in re.findall(r'href="(ch\d+\.xhtml#[^"]+)"', t)}
    assert links and links <= ids


@each
def test_a_lesson_says_where_it_runs(nb, built):
    links = [o['href'] for o in soup(built/page_name(nb)).select('.elmo-run a')]
    if nb not in taught:
        assert not links
    else:
        assert (
            len(links) == 3 and sum(o.endswith(f'/main/nbs/{name(nb)}.ipynb') for o in links) == 2
        )


def test_nothing_else_was_built(built):
    assert {place(built, p) for p in pages(built)} == {page_name(nb) for nb in nbs} | {
        '404.html',
        'studies/index.html',
        'library/index.html',
    } | {f'reference/{f.stem}.html' for f in (root / 'nbs' / 'reference').glob('*.md')}


def test_links_and_images_resolve(built):
    """Links to pages, anchors and files of the site, by relative or by full address; links into the
    repository; the form of the others"""
    counted = 0
    for page in pages(built):
        s = soup(page)
        for tag,attribute in [('a', 'href'), ('link', 'href'), ('img', 'src'), ('script', 'src')]:
            for o in s.find_all(tag, **{attribute: True}):
                link = o[attribute]
                if link.startswith('data:') or link in ('', '#'): continue
                where = f'{place(built, page)}: {link}'
                url,anchor = urldefrag(urljoin(HOME + place(built, page), link))
                if url.startswith(HOME):
                    target = built/unquote(url.removeprefix(HOME).split('?')[0] or 'index.html')
                    if target.is_dir(): target /= 'index.html'
                    assert target.is_file(), where
                    if anchor and target.suffix == '.html':
                        assert unquote(anchor) in ids(target), where
                    counted += 1
                elif m := re.match(
                    re.escape(REPO) + r'/(?:blob|tree|edit|raw)/main/(.*)',
                    url.replace('https://github.dev/', 'https://github.com/'),
                ):
                    assert (root / unquote(m[1])).exists(), where
                else:
                    assert re.match(r'https://[\w.-]+\.\w{2,}(/\S*)?$', url), where
    assert counted > 40*len(nbs)

@each
def test_edit_and_issue_links(nb, built):
    links = [a['href'] for a in soup(built/page_name(nb)).select('.toc-actions a')]
    assert any(
        o.endswith(f'/{REPO.removeprefix("https://github.com/")}/blob/main/nbs/{name(nb)}.ipynb')
        or o == f'{REPO}/edit/main/nbs/{name(nb)}.ipynb'
        for o in links
    ), links
    assert f'{REPO}/issues/new' in links

@each
def test_pictures_have_descriptions(nb, built):
    s = soup(built/page_name(nb))
    for img in s.select('main img:not(.elmo-path img)'):
        assert len(img.get('alt', '')) > 15, str(img)[:150]
    text = plain(visible(s))
    for c in cells(nb):
        caption = re.search(r'^#\| fig-cap: (.*)', source(c), re.M)
        if (
            caption
            and not re.search(r'^#\| *(?:hide|include: false)', source(c), re.M)
            and any(m.startswith('image/') for o in c['outputs'] for m in o.get('data', {}))
        ):
            assert plain(re.sub('[$].*?[$]', '', yaml.safe_load(caption[1])))[:40] in text, (
                c['id'],
                caption[1],
            )


RAW = [
    r'^#\|',
    r'\\(?:frac|sum|begin|overrightarrow|mathrm|text|cdot)\b',
    r'\$\$',
    r'^:::',
    r'\?@',
    r'\{\{<',
    r'\{\.[\w-]+',
    r'\[\d?;?\d\dm',
    r'\]\(',
    r'^#{1,6} \w',
]


def visible(s):
    "The text of a page but code and formulas"
    from bs4 import BeautifulSoup
    s = BeautifulSoup(str(s.find('main')), 'html.parser')
    for o in s.select('script, style, code, pre, .math, math, table.dataframe'): o.decompose()
    return s.get_text()

@each
def test_no_markup_shows(nb, built):
    s = soup(built/page_name(nb))
    text = visible(s)
    for r in RAW: assert not (m := re.search(r, text, re.M)), text[max(0, m.start()-60):m.end()+60]
    for code in s.select('pre.sourceCode'):
        assert not (m := re.search(r'^#\|.*', code.get_text(), re.M)), m[0]
    formulas = len(s.select('.math'))
    dollars = sum(
        len(re.findall(r'\$\$', re.sub(r'```.*?```|~~~.*?~~~|`[^`]*`', '', source(c), flags=re.S)))
        for c in cells(nb)
        if c['cell_type'] == 'markdown'
    )
    assert len(s.select('.math.display')) == dollars//2 and formulas >= dollars//2

def test_markup_is_found():
    from bs4 import BeautifulSoup

    for bad in [
        '#| echo: false',
        r'so \frac{1}{2} is',
        '$$ x $$',
        '::: note',
        'a {.callout}',
        'see [this](that)',
        '## Heading',
    ]:
        text = visible(BeautifulSoup(f'<main><p>{bad}</p></main>', 'html.parser'))
        assert any(re.search(r, text, re.M) for r in RAW), bad
    assert not any(
        re.search(
            r,
            visible(
                BeautifulSoup('<main><p>It costs $2.</p><code>#| x</code></main>', 'html.parser')
            ),
            re.M,
        )
        for r in RAW
    )


@each
def test_sidebar_of_each_page(nb, built):
    """All pages in order, with the numbers of the course; open is the shelf of the page, or else
    the course"""
    at,s = HOME + page_name(nb), soup(built/page_name(nb)).find(id='quarto-sidebar')
    links = [
        urljoin(at, a['href']).removeprefix(HOME) or 'index.html'
        for a in s.select('a.sidebar-link[href]')
    ]
    assert links == [*map(page_name, ORDER), *(f.replace('.md', '.html') for f in REFERENCE)]
    assert [
        urljoin(at, a['href']).removeprefix(HOME) for a in s.select('a.sidebar-link.active')
    ] == [page_name(nb)]
    assert [o.get_text() for o in s.select('.menu-text .chapter-number')] == list(
        map(number, taught)
    )
    shelf = nb.parent.name if nb.parent != home else 'course'
    assert [SHELVES[int(o['id'][-1]) - 1] for o in s.select('ul.depth1.show')] == [shelf]
    assert [o['aria-expanded'] for o in s.select('.sidebar-item-toggle')] == [
        str(o == shelf).lower() for o in [*SHELVES, 'reference']
    ]


@over(['studies', 'library'], called=str)
def test_the_page_that_opens_a_shelf_has_it_open_in_the_sidebar(shelf, built):
    s = soup(built/shelf/'index.html').find(id='quarto-sidebar')
    assert [SHELVES[int(o['id'][-1]) - 1] for o in s.select('ul.depth1.show')] == [shelf]

@each
def test_previous_and_next(nb, built):
    """Inside the course the links of Quarto, with numbers; elsewhere, and after its last chapter,
    the line that ends the notebook"""
    at,s = HOME + page_name(nb), soup(built/page_name(nb))
    i,path = ORDER.index(nb), [home/'index.ipynb', home/'start.ipynb', *taught]
    inside = nb in path[:-1]
    for css,j in [('.nav-page-previous a', i-1), ('.nav-page-next a', i+1)]:
        links = s.select(css)
        assert [urljoin(at, o['href']) for o in links] == (
            [HOME + page_name(ORDER[j])] if inside and j >= 0 else []
        ), css
        for o in links: assert plain(o.get_text()).startswith(number(ORDER[j]))
    line = [
        o for o in s.find('main').find_all('p') if re.match('(Previous|Grew from): ', o.get_text())
    ]
    assert len(line) == (not inside and nb.parent != home) and not [
        o for o in line if o.find_parent('details')
    ]


@each
def test_head_of_each_page(nb, built):
    s = soup(built/page_name(nb))
    meta = {o.get('property') or o.get('name'): o.get('content') for o in s.find_all('meta')}
    assert (
        urljoin(HOME + page_name(nb), s.find('link', rel='icon')['href']) == HOME + web['favicon']
    )
    assert (
        meta['og:title']
        and meta['og:description']
        and meta['og:site_name'] == web['title']
        and meta['twitter:card'] == 'summary_large_image'
    )
    for name in ('og:image', 'twitter:image'):
        assert meta[name] == HOME + config['image'] and (built/config['image']).is_file()
    assert meta['og:image:alt'] == config['image-alt']
    assert s.find('link', rel='canonical')['href'] == HOME + page_name(nb)

@each
def test_breadcrumb_has_the_number(nb, built):
    trails = soup(built/page_name(nb)).select('.breadcrumb')
    for o in trails:
        assert plain(o.select('.breadcrumb-item')[-1].get_text()).startswith(number(nb))


@each
def test_folds(nb, built):
    """Exported code stands open up to a screen, and is folded under its names above; solutions are
    folded like the hints"""
    s = soup(built/page_name(nb))
    for o in s.select('details.code-fold'):
        assert not o.has_attr('open') and 'Exported source' not in o.summary.get_text()
        if 'exported' in o['class']:
            assert len(o.find('pre').get_text().strip().split('\n')) > 20 and re.search(
                r'\d+ lines$', o.summary.get_text()
            )
    at = s.find('section', id='solutions')
    if not at: return
    fold = at.select_one('details.solutions')
    assert (
        fold
        and not fold.has_attr('open')
        and not [o for o in at.find_all(['p', 'pre']) if not o.find_parent('details')]
    )
    assert not [
        o
        for o in fold.find_all('p')
        if re.match(r'\d[.:]?\s', o.get_text()) and not o.find_parent('li')
    ], 'answers are a list'


@each
def test_navigations_have_names(nb, built):
    names = [
        o.get('aria-label')
        for o in soup(built / page_name(nb)).find_all('nav')
        if 'quarto-page-breadcrumbs' not in o.get('class', [])
    ]
    assert all(names) and len(set(names)) == len(names), names

@each
def test_nothing_is_asked_of_another_host(nb, built):
    """A copy of the site works without a network: styles, scripts, fonts and pictures are its own,
    and stand where the page looks for them"""
    s = soup(built/page_name(nb))
    for tag,attribute in [('script', 'src'), ('img', 'src'), ('link', 'href'), ('iframe', 'src')]:
        for o in s.find_all(tag, **{attribute: True}):
            if o.get('rel') in (['canonical'], ['next'], ['prev']): continue
            assert not re.match('(?:https?:)?//', o[attribute]), o
    for f in built.glob('*.css'):
        assert not re.search(r'url\([\'"]?(?:https?:)?//', f.read_text(encoding='utf-8'))


def test_numbers_of_tables_are_set_as_numbers(built):
    rows = [
        o for nb in nbs for o in soup(built / page_name(nb)).select('main table.dataframe tbody tr')
    ]
    numbers = [
        c for r in rows for c in r.find_all('td') if re.fullmatch(r'\d+\.\d+', c.get_text().strip())
    ]
    assert len(numbers) > 500 and sum('num' in c.get('class', []) for c in numbers) > 0.75 * len(
        numbers
    )


@each
def test_no_heading_of_a_table_is_empty(nb, built):
    assert not [o for o in soup(built/page_name(nb)).find_all('th') if not o.get_text().strip()]

@each
def test_names_for_the_ear_are_those_for_the_eye(nb, built):
    """A link's name holds its text; what opens a shelf is a button; each picture in a link has a
    name"""
    s = soup(built/page_name(nb))
    for o in s.select('a.pagination-link'): assert ' '.join(o.get_text().split()) == o['aria-label']
    assert not s.select('a[role=navigation], button[role=menu]')
    assert all(o['alt'] for o in s.select('.navbar-brand img'))

def test_long_tables_of_studies_are_folded(built):
    for nb in nbs:
        if nb.parent.name != 'studies': continue
        for o in soup(built/page_name(nb)).select('main table'):
            assert len(o.find_all('tr')) <= 14 or o.find_parent('details'), (
                nb.name,
                o.get_text(' ', strip=True)[:80],
            )


def test_types_of_the_reference_have_no_backslash(built):
    codes = [
        o.get_text()
        for f in sorted((built / 'reference').glob('*.html'))
        for o in soup(f).select('main code')
    ]
    assert sum(' | None' in o for o in codes) > 50 and not [o for o in codes if '\\|' in o]

@each
def test_pictures_keep_their_place(nb, built):
    for img in soup(built/page_name(nb)).find('main').find_all('img'):
        if img['src'].endswith('.svg') and '/images/' in img['src']:
            assert img['width'] and img['height']
        if not img['src'].endswith('.png'): continue
        head = ((built/page_name(nb)).parent/unquote(img['src'])).read_bytes()[:24]
        assert (int(img['width']), int(img['height'])) == struct.unpack('>II', head[16:24]) and img[
            'loading'
        ] == 'lazy'


def test_icons_that_are_left_are_those_that_pages_name(built):
    from fontTools.ttLib import TTFont
    css = (built/'site_libs/bootstrap/bootstrap-icons.css').read_text(encoding='utf-8')
    named = {
        o
        for p in pages(built)
        for o in re.findall(r'class="bi bi-([a-z0-9-]+)', p.read_text(encoding='utf-8'))
    }
    rules = dict(re.findall(r'^\.bi-([\w-]+)::before \{ content: "\\(\w+)"', css, re.M))
    assert len(named) > 3 and named <= set(rules) and len(rules) < 60
    drawn = TTFont(built/'site_libs/bootstrap/bootstrap-icons.woff').getBestCmap()
    assert {int(code, 16) for code in rules.values()} <= set(drawn)

def test_page_for_wrong_addresses(built):
    s = soup(built/'404.html')
    assert len(s.find_all('h1')) == 1 and len(s.find('main').find_all('a')) >= 3
    base = HOME.removeprefix('https://').split('/', 1)[1]
    # it is shown at any depth: nothing relative
    for tag,attribute in [('script', 'src'), ('link', 'href'), ('a', 'href')]:
        for o in s.find_all(tag, **{attribute: True}):
            assert not o[attribute] or o[attribute].startswith(
                (f'/{base}', 'https://', '#', 'data:')
            ), o


def test_scripts_that_no_page_uses_are_gone(built):
    for page in pages(built):
        assert not [
            o['src']
            for o in soup(page).find_all('script', src=True)
            if re.search('require|jquery', o['src'])
        ], page


def test_index_for_language_models(built):
    text = (built/'llms.txt').read_text(encoding='utf-8')
    assert text.startswith(f"# {web['title']}\n\n> ")
    found = re.findall(r'^- \[(.*?)\]\((.*?)\): (.*)$', text, re.M)
    want, named = [], {o['href']: o['text'] for o in web['sidebar']['contents'] if 'text' in o}
    for nb in ORDER:
        title,description = title_and_description(nb)
        title = named.get(nb.name, title)
        want.append((plain(title), HOME + page_name(nb) + '.md', plain(description)))
    for f in REFERENCE:
        title, description = re.findall(
            r'^(?:title|description): "(.*)"$', (home / f).read_text(encoding='utf-8'), re.M
        )
        want.append((plain(title), HOME + f.replace('.md', '.html.md'), plain(description)))
    assert [(plain(t), u, plain(d)) for t,u,d in found] == want
    assert re.findall(r'^## (.*)$', text, re.M) == [
        'Start',
        'The course',
        'Studies',
        *GROUPS,
        'Reference',
    ]
    for _,u,_ in want: assert len((built/u.removeprefix(HOME)).read_text(encoding='utf-8')) > 500, u

def test_search_index_holds_every_page(built):
    found = {
        o['href'].split('#')[0]
        for o in json.loads((built / 'search.json').read_text(encoding='utf-8'))
    }
    assert found >= {page_name(nb) for nb in nbs}

def test_search_index_is_small_and_plain(built):
    "Half of what Quarto makes: no formulas, no code"
    text = (built/'search.json').read_text(encoding='utf-8')
    assert len(gzip.compress(text.encode())) < 300_000
    for o in json.loads(text):
        assert not (
            m := re.search(
                r'\\(?:frac|sum|begin|overrightarrow|mathrm|text|cdot|log|exp)\b|^import |\bdef \w+\(',
                o['text'],
                re.M,
            )
        ), (o['href'], m[0])


def test_search_shows_the_numbers(built):
    items = json.loads((built/'search.json').read_text(encoding='utf-8'))
    of = {page_name(nb): number(nb) for nb in nbs}
    for o in items:
        if n := of.get(o['href'].split('#')[0]):
            assert o['title'].startswith(n + ' ') and not o['title'].startswith(f'{n} {n}')


# in a browser

@pytest.fixture(scope='session')
def address(built):
    "The site behind its own path, as GitHub Pages serves it"
    base = '/' + HOME.removeprefix('https://').split('/', 1)[1]
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **kwargs): super().__init__(*args, directory=str(built), **kwargs)
        def log_message(self, *args): pass

        def translate_path(self, path):
            return super().translate_path(
                '/' + path.removeprefix(base) if path.startswith(base) else '/no such page'
            )

        def send_error(self, code, *args, **kwargs):
            if code != 404: return super().send_error(code, *args, **kwargs)
            self.send_response(404)
            self.send_header('Content-Type', 'text/html')
            self.end_headers()
            self.wfile.write((built/'404.html').read_bytes())
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}{base}'
    server.shutdown()

class Tab:
    """A page in the browser, and what it said in the console; what it asks of another host is a
    fault, too"""

    def __init__(self, browser, address, name, width=1280, height=900, scheme='light'):
        self.said = []
        self.context = browser.new_context(
            viewport={'width': width, 'height': height}, color_scheme=scheme
        )
        self.page = p = self.context.new_page()
        p.set_default_timeout(180_000)
        p.route(lambda url: not url.startswith(address), self.elsewhere)
        p.on('console', lambda m: m.type == 'error' and self.said.append(m.text))
        p.on('pageerror', lambda e: self.said.append(str(e)))
        p.goto(address + name, wait_until='load')

    def elsewhere(self, route):
        self.said.append(f'asked for {route.request.url}')
        route.abort()

    def __enter__(self): return self
    def __exit__(self, *args): self.context.close()

WIDER = """() => [...document.querySelectorAll('body *')].filter(o => o.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map(o => o.outerHTML.slice(0, 120))"""
BUTTONS = """() => [...document.querySelectorAll('main .code-copy-button')].filter(o => o.checkVisibility()).every(o =>
  o.getBoundingClientRect().left >= o.parentElement.querySelector('code').getBoundingClientRect().right - 1)"""
FORMULAS = """() => [...document.querySelectorAll('.math')].filter(o => !o.querySelector('.katex') || o.querySelector('.katex-error')).map(o => o.textContent)"""
OVERFLOW = """() => [...document.querySelectorAll('main pre.sourceCode > code')].filter(o => o.checkVisibility() && o.scrollWidth > o.clientWidth)
  .map(o => o.textContent.split('\\n').reduce((a, b) => a.length > b.length ? a : b))"""
# characters a line that a block shows at 1,280 pixels; open cells of the course have 88
FITS = 92

@over(['404.html', *map(page_name, nbs)], called=str)
def test_pages_on_a_desk_and_on_a_phone(page, built, browser, address):
    """Nothing wrong in the console; code whole at 1,280 pixels, all of it on a page of the course;
    nothing wider than a phone; formulas drawn"""
    with Tab(browser, address, page) as t:
        cut = t.page.evaluate(OVERFLOW)
        assert not [o for o in cut if page.startswith('course/') or len(o) <= FITS], cut
        assert t.page.evaluate(BUTTONS), 'a button stands on the code'
        t.page.set_viewport_size({'width': 390, 'height': 844})
        assert t.page.evaluate('document.documentElement.scrollWidth') <= 390, t.page.evaluate(
            WIDER
        )
        assert not t.page.evaluate(FORMULAS)
        assert not t.said

def test_a_newcomer_sees_where_to_begin(built, browser, address):
    with Tab(browser, address, 'index.html', 1280, 800) as t:
        (box,) = t.page.evaluate(
            """[...document.querySelectorAll('main a')].filter(o => o.textContent === 'Begin the course').map(o => [o.getBoundingClientRect().bottom, o.getBoundingClientRect().height])"""
        )
        assert box[0] < 800 and box[1] > 30, 'a button in the first screen'
        t.page.wait_for_selector('button.elmo-word')
        explainer = t.page.evaluate(
            "document.querySelectorAll('.elmo-line')[1].getBoundingClientRect().bottom"
        )
        assert explainer < 800, 'and the explainer, alive, with all its bars'
        t.page.click('text=Begin the course')
        t.page.wait_for_url(re.compile('course/quickstart.html'))

@over(['index.html', 'studies/explainer.html'], called=str)
def test_elmo_is_alive_on_pages_of_any_folder(page, built, browser, address):
    with Tab(browser, address, page) as t:
        t.page.wait_for_selector('button.elmo-word')
        assert t.page.locator('.elmo-line').count() == 2 and not t.said

def test_a_gap_is_filled_on_the_built_page(built, browser, address):
    "The output layer and its words are on the site, and nothing of the box that no script loads"
    assert {f.name for f in (built / 'live' / 'mini-en').iterdir()} == {
        'config.json',
        'model.safetensors',
        'output.safetensors',
        'vocab.json',
    }
    with Tab(browser, address, 'studies/explainer.html#two-readers') as t:
        t.page.fill('[data-panel=readers] input', 'There were three men in the room.')
        t.page.wait_for_selector('[data-panel=readers] svg:has-text("three")')
        assert not t.said

QUERIES = {
    'ScalarMix': 'reference/elmo.html#scalarmix',
    'load_ai2': 'reference/elmo.html#load_ai2',
    'Elmo.from_pretrained': 'reference/elmo.html#elmo.from_pretrained',
    'install': 'start.html#two-commands',
    'vanishing gradient': 'course/memory.html#gradients-that-shrink-or-grow',
    'BERT': 'course/history.html#from-word2vec-to-bert',
    'gradient vanishing': 'course/memory.html#gradients-that-shrink-or-grow',
    'load AI2 weights': 'library/ai2.html#load',
    'surprise': 'course/text.html#surprise-entropy-perplexity',
    # several sections of a lesson have the word: its page comes first
    'perplexity': 'course/text.html',
    'highway': 'course/characters.html',
    'padding': 'course/batches.html',
    'probe': 'course/layers.html',
    'scalar mix': 'course/elmo.html#a-weighted-sum-by-hand',
    'LSTM': 'course/memory.html#the-lstm-gate-by-gate',
    'language model': 'course/counting.html#what-a-language-model-is',
}


def test_the_search_leads_where_one_expects(built, browser, address):
    wrong = []
    for query,href in QUERIES.items():
        with Tab(browser, address, 'index.html') as t:
            t.page.click('#quarto-search button')
            t.page.fill('.aa-Input', query)
            t.page.wait_for_selector('.aa-Item a')
            t.page.wait_for_timeout(600)
            first = t.page.evaluate("document.querySelector('.aa-Item a').getAttribute('href')")
            if re.sub(r'\?q=[^#]*', '', first).lstrip('./') != href: wrong.append((query, first))
    assert not wrong

def test_panels_side_by_side_scroll_on_a_phone(built, browser, address):
    with Tab(browser, address, 'course/history.html', 390, 844) as t:
        boxes = t.page.evaluate(
            "[...document.querySelectorAll('main img.wide')].map(o => [o.getBoundingClientRect().width, o.parentElement.scrollWidth, o.parentElement.clientWidth])"
        )
        assert boxes and all(width > 600 and inner > outer for width,inner,outer in boxes), boxes

BROKEN = """() => {
  document.querySelectorAll('details').forEach(o => o.open = true);
  const found = [], walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.parentElement.closest('td, th, h1, h2, h3, h4') || node.parentElement.closest('pre, .katex')) continue;
    for (const m of node.textContent.matchAll(/[\\w.]{2,}/g)) {
      const range = document.createRange();
      range.setStart(node, m.index);
      range.setEnd(node, m.index + m[0].length);
      if (new Set([...range.getClientRects()].filter(o => o.width > 1).map(o => Math.round(o.top))).size > 1) found.push(m[0]);
    }
  }
  return found;
}"""


@over([*map(page_name, nbs), *(f.replace('.md', '.html') for f in REFERENCE)], called=str)
def test_no_word_breaks_in_a_table_or_a_heading_on_a_phone(page, built, browser, address):
    with Tab(browser, address, page, 390, 844) as t: assert not t.page.evaluate(BROKEN)

LABELS = """() => [...document.querySelectorAll('main img')].filter(o => /\\/images\\/[\\w-]+\\.svg$/.test(o.currentSrc || o.src))
  .map(o => [(o.currentSrc || o.src).split('/').pop(), o.getBoundingClientRect().width, o.parentElement.closest('p').clientWidth])"""


@over(list(map(page_name, taught)), called=str)
def test_drawings_on_a_phone(page, built, browser, address):
    "The narrow version fits; another one is as wide as it was drawn, and scrolls"
    with Tab(browser, address, page, 390, 844) as t:
        t.page.evaluate(
            "Promise.all([...document.querySelectorAll('main img')].map(o => { o.loading = 'eager'; return o.decode() }))"
        )
        for file,width,column in t.page.evaluate(LABELS):
            drawn = float(
                re.search(
                    r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+)',
                    (home / 'images' / file).read_text(encoding='utf-8'),
                )[1]
            )
            assert width >= drawn - 1 if drawn > 560 else width >= min(drawn, column) - 1, (
                file,
                width,
                drawn,
            )
            assert drawn > 560 or width <= column + 1, (file, width, column)

CONTRAST = """() => {
  const rgba = s => { const v = (s.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number); return v.length < 4 ? [...v, 1] : v };
  const over = (a, b) => [0, 1, 2].map(i => a[i]*a[3] + b[i]*(1 - a[3]));
  const light = c => c.slice(0, 3).map(v => v/255).map(v => v <= .04045 ? v/12.92 : ((v + .055)/1.055)**2.4).reduce((s, v, i) => s + v*[.2126, .7152, .0722][i], 0);
  const paper = o => { const layers = []; for (; o; o = o.parentElement) { const c = rgba(getComputedStyle(o).backgroundColor); if (c[3]) layers.push(c); if (c[3] == 1) break }
    return layers.reverse().reduce((b, a) => over(a, b), [255, 255, 255]) };
  const bad = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let n = 0;
  while (walk.nextNode()) {
    const o = walk.currentNode.parentElement, css = getComputedStyle(o);
    if (!walk.currentNode.textContent.trim() || !o.checkVisibility({opacityProperty: true, visibilityProperty: true}) || o.closest('svg, script, style, .katex-mathml')) continue;
    const below = paper(o), [a, b] = [light(over(rgba(css.color), below)), light(below)].sort((x, y) => x - y), px = parseFloat(css.fontSize);
    n++;
    if ((b + .05)/(a + .05) < (px >= 24 || px >= 18.66 && css.fontWeight >= 700 ? 3 : 4.5)) bad.push([walk.currentNode.textContent.trim().slice(0, 40), css.color, below.map(Math.round).join(), o.className]);
  }
  return [n, bad];
}"""


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize(
    'name',
    [
        'index.html',
        'course/quickstart.html',
        'course/history.html',
        'library/browser.html',
        'library/bilm.html',
        'reference/nn.html',
        'glossary.html',
        '404.html',
    ],
)
def test_contrast_of_all_text(built, browser, address, name, scheme):
    with Tab(browser, address, name, scheme=scheme) as t:
        if (scheme == 'dark') != t.page.evaluate("document.body.classList.contains('quarto-dark')"):
            t.page.click('.quarto-color-scheme-toggle >> visible=true')
        t.page.wait_for_function(f"document.body.classList.contains('quarto-{scheme}')")
        t.page.wait_for_timeout(500)
        texts, bad = t.page.evaluate(CONTRAST)
        assert texts > 20 and not bad, bad[:10]

SEEN = [
    'index.html',
    'studies/explainer.html',
    'studies/index.html',
    'library/index.html',
    'course/quickstart.html',
    'course/characters.html',
    'course/elmo.html',
    'studies/labels.html',
    'library/bilm.html',
    'reference/nn.html',
    '404.html',
]


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('name', SEEN)
def test_nothing_for_axe_to_find(built, browser, address, axe, name, scheme):
    with Tab(browser, address, name, scheme=scheme) as t:
        t.page.wait_for_timeout(800)
        assert not axe(t.page)

SHIFTS = """window.shifts = []; new PerformanceObserver(list => { for (const e of list.getEntries()) if (!e.hadRecentInput) shifts.push(e.value); })
    .observe({type: 'layout-shift', buffered: true})"""


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [1440, 820, 390])
@pytest.mark.parametrize('name', SEEN[:8])
def test_nothing_moves_while_a_page_loads(built, browser, address, name, width, scheme):
    context = browser.new_context(viewport={'width': width, 'height': 900}, color_scheme=scheme)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.goto(address + name, wait_until='load')
    page.wait_for_timeout(1200)
    shift = page.evaluate('shifts.reduce((a, b) => a + b, 0)')
    context.close()
    assert shift <= .02

def test_the_bars_are_on_the_first_screen_of_a_phone(built, browser, address):
    with Tab(browser, address, 'index.html', 390, 844) as t:
        t.page.wait_for_selector('button.elmo-word')
        last = t.page.locator('.elmo-line').nth(1).bounding_box()
        assert last['y'] + last['height'] < 844

def test_contrast_is_measured(browser):
    page = browser.new_page()
    page.set_content(
        '<body style="background:#fff"><p style="color:#777">too light</p><p style="color:#767676">just right</p></body>'
    )
    n,bad = page.evaluate(CONTRAST)
    page.close()
    assert n == 2 and [o[0] for o in bad] == ['too light']

def test_light_and_dark(built, browser, address):
    with Tab(browser, address, 'course/elmo.html') as t:
        paper = lambda: t.page.evaluate('getComputedStyle(document.body).backgroundColor')
        before = paper()
        t.page.click('.quarto-color-scheme-toggle >> visible=true')
        t.page.wait_for_function("document.body.classList.contains('quarto-dark')")
        assert paper() != before
        t.page.reload()
        assert 'quarto-dark' in t.page.evaluate('document.body.className'), 'the choice is kept'
        t.page.click('.quarto-color-scheme-toggle >> visible=true')
        t.page.wait_for_function("document.body.classList.contains('quarto-light')")
        assert paper() == before and not t.said

@over(['index.html', *map(page_name, taught)], called=str)
def test_a_page_is_light_and_shows_at_once(name, built, browser, address):
    """At most 500 kB before the reader scrolls, as a server packs them, and something to see within
    a second"""
    context = browser.new_context(viewport={'width': 1280, 'height': 900})
    page, got = context.new_page(), []
    page.on('response', lambda r: got.append(r))
    page.goto(address + name, wait_until='networkidle')
    sizes = {
        r.url.removeprefix(address): len(b)
        if r.url.split('?')[0].endswith(('.woff', '.woff2', '.png'))
        else len(gzip.compress(b))
        for r in got
        for b in [r.body()]
    }
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    assert sum(sizes.values()) <= 500_000, sorted(sizes.items(), key=lambda o: -o[1])[:5]
    assert first < 2000, 'a second on an idle machine'

def test_a_link_into_a_page_shows_what_it_leads_to(built, browser, address):
    with Tab(browser, address, 'course/elmo.html#recap') as t:
        t.page.wait_for_timeout(500)
        bar, heading = (
            t.page.evaluate(f"document.querySelector('{o}').getBoundingClientRect().{side}")
            for o, side in [('#quarto-header', 'bottom'), ('#recap h2', 'top')]
        )
        assert bar <= heading < 300
    with Tab(browser, address, 'course/elmo.html#solutions') as t:
        t.page.evaluate("location.hash = document.querySelector('details.solutions .cell').id")
        t.page.wait_for_function("document.querySelector('details.solutions').open")

def test_search_finds_a_word(built, browser, address):
    with Tab(browser, address, 'index.html') as t:
        t.page.keyboard.press('/')
        t.page.wait_for_selector('.aa-Input')
        t.page.fill('.aa-Input', 'highway')
        t.page.wait_for_selector('.aa-Item a')
        links = t.page.eval_on_selector_all('.aa-Item a', 'all => all.map(o => o.href)')
        assert any('characters.html' in o for o in links), links
        assert not t.said

def test_keyboard(built, browser, address):
    with Tab(browser, address, 'library/charcnn.html') as t:
        t.page.keyboard.press('Tab')
        assert t.page.evaluate("document.activeElement.className") == 'skip'
        assert t.page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0, (
            'it shows when it has the focus'
        )
        t.page.keyboard.press('Enter')
        t.page.keyboard.press('Tab')
        assert t.page.evaluate("!!document.activeElement.closest('#quarto-document-content')")
        assert t.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != 'none'
        fold = t.page.query_selector('details.exported:not([open])')
        fold.query_selector('summary').focus()
        assert not fold.query_selector('pre code').is_visible()
        t.page.keyboard.press('Enter')
        assert fold.query_selector('pre code').is_visible()

def test_names_for_screen_readers(built, browser, address):
    with Tab(browser, address, 'course/bilm.html') as t:
        nameless = t.page.evaluate("""() => [...document.querySelectorAll('a[href], button, input, [role=combobox], [role=button]')].filter(o => o.checkVisibility() && !o.closest('[aria-hidden=true]'))
          .filter(o => !(o.textContent.trim() || o.getAttribute('aria-label') || o.title || o.placeholder || o.querySelector('[aria-label], [title], img[alt]'))).map(o => o.outerHTML.slice(0, 150))""")
        assert not nameless

def test_wrong_addresses_look_right_at_any_depth(built, browser, address):
    with Tab(browser, address, 'no/such/page.html') as t:
        assert t.page.inner_text('h1') == soup(built/'404.html').h1.get_text()
        red,green,blue = (int(web['navbar']['background'][i:i+2], 16) for i in (1, 3, 5))
        assert (
            t.page.evaluate(
                "getComputedStyle(document.querySelector('nav.navbar')).backgroundColor"
            )
            == f'rgb({red}, {green}, {blue})'
        ), 'the style sheets are found'
        t.page.click('main a >> nth=0')
        # Quarto's script shortens the address
        t.page.wait_for_url(re.compile(r'/(?:index\.html)?#the-course$'))
