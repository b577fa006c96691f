"""The documentation site: its configuration always; the built pages where Quarto is installed; the
pages in a browser where there is one"""
import functools, gzip, inspect, json, os, re, shutil, struct, subprocess, sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest, yaml

import after_render as after
from browse import SHIFTS, served, shifted
from notebooks import (FENCE, SHELVES, copied, files_in, home, name, nbs, order, read, root,
                       rule_for, site, source, taught)

config = site()
web, html = config['website'], config['format']['html']
HOME = web['site-url'] + '/'
REPO = web['repo-url']

def cells(nb): return read(nb)['cells']
def title_and_description(nb):
    lines = filter(str.strip, source(cells(nb)[0]).split('\n'))
    return [re.sub(r'^[#>] ', '', o) for o in lines][:2]

# nbdev leaves the number out of the address
def page_name(nb): return re.sub(r'(^|/)\d+_', r'\1', name(nb)) + '.html'
def number(nb): return nb.name[:2] if nb in taught else ''
MARKS = {'[`*]': '', '[‘’]': "'", '[“”]': '"', '[–—]|--+': '-', '…': '...', r'\s+': ' '}
def plain(text):
    "`text` without marks, its quotation marks and dashes straight again"
    for a,b in MARKS.items(): text = re.sub(a, b, text)
    return text.strip()

def over(items, called=name):
    """One test of a rule for all `items`, each of them the first argument in its turn; the others
    are fixtures"""
    def rule(check):
        def test(**fixtures): rule_for(items, called)(lambda o: check(o, **fixtures))()
        test.__name__, test.__doc__ = check.__name__, check.__doc__
        fixtures = list(inspect.signature(check).parameters.values())[1:]
        test.__signature__ = inspect.Signature(fixtures)
        return test
    return rule

each = over(nbs)
ORDER = [home/f for f in order()]                   # as the sidebar has them
PAGES = [*map(page_name, nbs)]

# configuration

def test_the_sidebar_names_every_page_once_shelf_by_shelf():
    assert sorted(ORDER) == sorted(nbs)
    parts = [o['contents'] for o in web['sidebar']['contents'] if 'section' in o]
    assert len(parts) == len(SHELVES)
    for shelf,contents in zip(SHELVES, parts):
        assert {f.split('/')[0] for f in files_in(contents)} - {'glossary.ipynb'} == {shelf}
    assert [home/f for f in parts[0]] == [*taught, home/'glossary.ipynb'], 'by their numbers'

@over([o for o in nbs if o.parent.name == 'studies'])
def test_the_card_of_a_study_has_its_answer(nb):
    "It says no number that the opening of the study does not have"
    shelf = (home/'studies'/'index.qmd').read_text(encoding='utf-8')
    question, answer = re.search(rf'<b>([^<]*\?)</b>\n\n([^\n]*)\n\n\[.*\]\({nb.name}\)', shelf).groups()
    [opening] = [text for text in map(source, cells(nb)[:3]) if '**The answer.**' in text]
    def numbers(text): return {*re.findall(r'\d[\d,.]*\d|\d', text)}
    assert len(answer) < 200
    assert numbers(answer) <= numbers(opening + title_and_description(nb)[1])

def test_no_two_pages_have_one_title():
    titles = [title_and_description(nb)[0].lower() for nb in nbs]
    assert len({*titles}) == len(titles)

def test_files_of_the_configuration_exist():
    theme = html['theme']
    for f in (web['favicon'], config['image'], html['css'], theme['light'][1], theme['dark'][1],
              '404.qmd'):
        assert (home/f).is_file(), f
    assert (home/config['project']['post-render']).resolve().is_file()

def test_nbdev_takes_the_pictures_along():
    assert pytest.importorskip('nbdev.config').get_config(root).recursive

def png_size(file):
    head = file.read_bytes()[:24]
    assert head[:8] == b'\x89PNG\r\n\x1a\n'
    return struct.unpack('>II', head[16:24])

def test_social_card_has_the_size_that_is_asked_for():
    assert png_size(home/config['image']) == (1200, 630) and len(config['image-alt']) > 40

@each
def test_directives_are_yaml(nb):
    "Quarto stops at a caption with a bare colon"
    for c in cells(nb):
        if c['cell_type'] != 'code': continue
        for key,value in re.findall(r'^#\|[ ]*([\w-]+):[ ]*(.*)$', source(c), re.M):
            found = yaml.safe_load(f'{key}: {value}')
            assert isinstance(found, dict) and list(found) == [key], (c['id'], key, value)
            if key in ('fig-cap', 'fig-alt'):
                whole = plain(str(found[key])) == plain(value.strip('"\' '))
                assert whole, (c['id'], 'a part of the text is lost', found)

@each
def test_nothing_is_struck_through(nb):
    "`<s>` in alt text or prose becomes a line through all that follows; in code it is a token"
    for c in cells(nb):
        if c['cell_type'] == 'markdown': texts = [FENCE.sub('', source(c))]
        else: texts = re.findall(r'^#\|[ ]*fig-(?:alt|cap):[ ]*(.*)$', source(c), re.M)
        for text in texts:
            text = re.sub(r'`[^`]*`', '', text)
            assert not re.search(r'</?(?:s|del|strike)>|~~\w', text), (c['id'], text[:80])

# what is changed after Quarto: once, however often it is called

def once(change, html, *args):
    made = change(html, *args)
    assert change(made, *args) == made, 'nothing is done twice'
    return made

def test_a_drawing_has_one_caption():
    "Quarto makes a caption of the description; the line in italics below it is the caption"
    drawing = ('<figure class="figure"><p><img alt="A <b>, b" src="x.svg"></p><figcaption>{}'
               '</figcaption>\n</figure>\n</div>\n')
    old = drawing.format('A &lt;b&gt;, b')
    made = after.captioned(old + '<p><em>One <code>b</code>.</em></p>\n<p><em>Two.</em></p>')
    assert made == drawing.format('One <code>b</code>.') + '\n<p><em>Two.</em></p>'
    upright = after.captioned(old + '<p><em>What</em> play <em>is.</em></p>')
    assert '<figcaption><em>What</em> play <em>is.</em></figcaption>' in upright
    for text in ('<p>Text.</p>', '<p><em>Part</em> of a line.</p>'):
        assert after.captioned(old + text) == old + text

@pytest.mark.parametrize('file,tag', [
    ('bilm_two.svg', r'<picture><source media="\([^)]*\)" srcset="../images/bilm_two-narrow.svg" '
                     r'width="\d+" height="\d+"><img width="\d+" height="\d+"[^>]*></picture>'),
    ('counting_backoff.svg', r'<img width="\d+" height="\d+".* class="wide ".*>'),
    ('cbow-step.svg', r'<img width="\d+" height="\d+"(?!.*class="wide).*>')])
def test_pictures_fit_a_phone(file, tag):
    "A drawing with a narrow version brings it along; another one that is wide scrolls"
    made = once(after.sized, f'<p><img src="../images/{file}" alt="A"></p>', home/'course')
    assert re.fullmatch(f'<p>{tag}</p>', made), made
    assert 'images/*-narrow.svg' in config['project']['resources']

def test_tables_are_made_readable():
    "Empty headings, cells of text, long tables of studies"
    def table(n):
        rows = '<tr><th>a</th><td>1</td></tr>'*n
        return f'<table><thead><tr><th></th><th>n</th></tr></thead><tbody>{rows}</tbody></table>'
    heads = after.with_heads(once(after.set_as_numbers, table(20)))
    assert '<th></th>' not in heads and heads.count('class="num"') == 21
    mark = 'data-quarto-table-cell-role="th"'
    row = f'<td {mark}>a</td><td {mark}></td>'
    assert once(after.with_heads, row).count('<th scope="row"') == 1
    assert after.with_room(f'<td>{"word "*9}</td><td>word</td>').count('class="text"') == 1
    assert '<summary>Show the table: 20 rows, columns n</summary>' in once(after.folded, heads)
    assert [after.folded(table(n)) == table(n) for n in (11, 12, 13)] == [True, True, False]

def test_answers_are_folded_once():
    "The fold of an answer in the notebook goes where all solutions are folded; others stay"
    fold = '<details>\n<summary>\nAnswer\n</summary>\n'
    told = (
        f'<p><strong>1.</strong></p>\n{fold}<p>One.</p>\n</details>\n<strong>2.</strong>\n{fold}'
        '<p>Two.</p>\n<p>More.</p>\n</details>\n<details><summary>Code</summary>x</details>'
        f'{fold}<p><strong>3.</strong> Three.</p>\n</details><details>\n<summary>\nAnswers to 4 '
        'and 5</summary>\n<p><strong>4.</strong> Four.</p>\n<p><strong>5.</strong> Five.</p>\n'
        '</details>')
    page = '<section id="{}" class="level2">\n<h2>A</h2>{}</section>'
    made = once(after.solved, page.format('solutions', told))
    for i,said in enumerate(('One', 'Two', 'Three', 'Four', 'Five'), 1):
        assert f'<li value="{i}"><p>{said}.</p></li>' in made
    assert 'Answer' not in made and '<p>More.</p>' in made
    assert made.count('<details') == made.count('</details>') == 2
    asked = page.format('three', told)
    assert after.solved(asked) == asked

def test_the_search_holds_prose_and_names():
    html = ('<main><header><h1>A</h1></header><p>An opening.</p><section id="one" class="level2">'
            '<h2>One</h2><p>So <span class="math inline">\\(\\frac{1}{2}\\)</span> is <code>half'
            '</code>.</p><div class="sourceCode"><pre class="sourceCode">def halve(x):\n    return '
            'x/2</pre></div><table><tr><td>7</td></tr></table></section></main>')
    for href,text in (('a.html#one', 'One So is half . halve'), ('a.html', 'An opening.')):
        item = dict(objectID='a', href=href, title='A', section='One', text='old')
        assert after.searched(item, {'a.html': html}) == text

def test_pages_load_fast(tmp_path):
    "Scripts wait, the first picture does not, and style rules of classes that no page has are gone"
    html = ('<head><script{} src="../site_libs/a.js"></script></head><main><img {} src="a.svg">'
            '<section><img loading="lazy" src="b.svg"></section></main>')
    made = once(lambda o: after.deferred(after.first_at_once(o)), html.format('', 'loading="lazy"'))
    assert made == html.format(' defer', 'fetchpriority="high"')
    css = tmp_path/'site_libs'/'bootstrap'/'bootstrap-1.min.css'
    css.parent.mkdir(parents=True)
    css.write_text('@font-face{src:x}a{b:c}.on,.off{b:c}@media (x){.off .on{b:c}.on:not(.off){b:c}}'
                   '.bs-x{b:c}', encoding='utf-8')
    (tmp_path/'a.html').write_text('<p class="on">off</p>', encoding='utf-8')
    after.fewer_rules(tmp_path)
    assert css.read_text(encoding='utf-8') == (
        '@font-face{src:x}a{b:c}.on{b:c}@media (x){.on:not(.off){b:c}}.bs-x{b:c}')

# no paragraph gets lost on the way to its page

def words(text): return re.sub(r'[\W_]+', '', re.sub(r'&\w+;', '', text)).casefold()
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

LINK = re.compile(r'\[(`[^`]*`)\]\([^)]*\)')               # nbdev links names in backticks
def lost(nb):
    "The paragraphs that nbdev does not hand to Quarto"
    processors = pytest.importorskip('nbdev.processors')
    from fastcore.nbio import read_nb
    # these two look at code alone, and take most of the time
    code = processors.exec_show_docs, processors.clean_magics
    class ForProse(processors.FilterDefaults):
        def base_procs(self): return [o for o in super().base_procs() if o not in code]
    made = read_nb(nb)
    ForProse()(made)
    text = '\n\n'.join(c.source or '' for c in made.cells if c.cell_type != 'code')
    text = words(LINK.sub(r'\1', text))
    return [o for o in paragraphs(nb) if words(LINK.sub(r'\1', o)) not in text]

@each
def test_nbdev_hands_on_every_paragraph(nb): assert not lost(nb)

def test_a_lost_paragraph_is_found(tmp_path):
    "nbdev drops what stands in the cell of the title"
    nb, texts = tmp_path/'a.ipynb', ['# A\n\n> B\n\n- skip_showdoc: true\n\nLost.', 'Of `it`.']
    made = [dict(cell_type='markdown', id=text[0], metadata={}, source=text) for text in texts]
    nb.write_text(json.dumps(dict(cells=made, metadata={}, nbformat=4, nbformat_minor=5)))
    assert lost(nb) == ['Lost.']

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
        pytest.skip('nbdev reads no notebook below a hidden folder: the temporary folder is one')
    copied(copy, 'elmo_fastai', 'nbs', 'tests')
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
    run = subprocess.run([sys.executable, '-c', 'from nbdev.quarto import *; nbdev_docs()'],
                         cwd=copy, env=os.environ | dict(PATH=path, PYTHONPATH=str(copy)),
                         capture_output=True, text=True, timeout=1800)
    log = run.stdout + run.stderr
    assert run.returncode == 0, log[-3000:]
    # saved outputs are shown, nothing runs
    faults = r'.*(?:WARN|ERROR|Traceback).*|^\s*Executing.*|Starting .* kernel'
    assert not (m := re.search(faults, log, re.M)), m[0]
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

def named_in(s, *tags):
    "(element, address) of all links to other files"
    kinds = dict(script='src', img='src', iframe='src', link='href', a='href')
    return [(o, o[kinds[tag]]) for tag in tags for o in s.find_all(tag, **{kinds[tag]: True})]

@each
def test_page_has_title_and_description(nb, built):
    s = soup(built/page_name(nb))
    title, description = map(plain, title_and_description(nb))
    title = f'{number(nb)} {title}'.strip()
    assert [plain(o.get_text()) for o in s.find_all('h1')] == [title]
    assert plain(s.title.get_text()).startswith(title) and s.html['lang'] == 'en-GB'
    assert plain(s.find('meta', attrs={'name': 'description'})['content']) == description

@each
def test_every_paragraph_stands_on_its_page(nb, built):
    text = words(soup(built/page_name(nb)).find('main').get_text())
    missing = []
    for part in paragraphs(nb):
        # tags, tables, code, formulas and pictures have tests of their own
        if re.match(r'<|\||~~~|```|\$\$|!\[|:::', part): continue
        # on the built page a bar of links has it
        part = FENCE.sub('', re.sub(r'\[Open in Colab\]\(\S*\)', '', part))
        marks = r'(``.*?``|`[^`]*`)|<[^>]*>|\]\([^)\s]*\)(?:\{[^}]*\})?|\s\{#.*?\}'
        part = re.sub(marks, r'\1', part)
        # numbers of lists and answers are not text
        numbers = r'^ *(?:\*\*)?(?:\d+(?:\*\*)?[.:)]?(?:\*\*)? |[-*] |>+|#+)'
        part = re.sub(numbers, ' ', part, flags=re.M)
        # nor are formulas: KaTeX draws them
        missing += [o for o in re.split(r'\$[^$]+\$', part) if words(o) not in text]
    assert not missing

@each
def test_a_lesson_says_where_it_runs(nb, built):
    links = [o['href'] for o in soup(built/page_name(nb)).select('.elmo-run a')]
    here = [o for o in links if o.endswith(f'/main/nbs/{name(nb)}.ipynb')]
    assert (len(links), len(here)) == ((3, 2) if nb in taught else (0, 0))

def test_nothing_else_was_built(built):
    others = '404.html', 'studies/index.html', 'library/index.html'
    assert {place(built, p) for p in pages(built)} == {*PAGES, *others}

def test_links_and_images_resolve(built):
    """Links to pages, anchors and files of the site, by relative or by full address; links into the
    repository; the form of the others"""
    counted = 0
    for page in pages(built):
        for _,link in named_in(soup(page), 'a', 'link', 'img', 'script'):
            if link.startswith('data:') or link in ('', '#'): continue
            where = f'{place(built, page)}: {link}'
            url, anchor = urldefrag(urljoin(HOME + place(built, page), link))
            if url.startswith(HOME):
                target = built/unquote(url.removeprefix(HOME).split('?')[0] or 'index.html')
                if target.is_dir(): target /= 'index.html'
                assert target.is_file(), where
                if anchor and target.suffix == '.html': assert unquote(anchor) in ids(target), where
                counted += 1
                continue
            url = url.replace('https://github.dev/', 'https://github.com/')
            if m := re.match(re.escape(REPO) + r'/(?:blob|tree|edit|raw)/main/(.*)', url):
                assert (root/unquote(m[1])).exists(), where
            else: assert re.match(r'https://[\w.-]+\.\w{2,}(/\S*)?$', url), where
    assert counted > 40*len(nbs)

@each
def test_edit_and_issue_links(nb, built):
    links = {a['href'] for a in soup(built/page_name(nb)).select('.toc-actions a')}
    file = f'/main/nbs/{name(nb)}.ipynb'
    edit = f'{REPO}/edit{file}', f'{REPO}/blob{file}'.replace('github.com', 'github.dev')
    assert links & {*edit} and f'{REPO}/issues/new' in links, links

@each
def test_pictures_have_descriptions(nb, built):
    s = soup(built/page_name(nb))
    for img in s.select('main img:not(.elmo-path img)'):
        assert len(img.get('alt', '')) > 15, str(img)[:150]
    text = plain(visible(s))
    for c in cells(nb):
        caption = re.search(r'^#\| fig-cap: (.*)', source(c), re.M)
        if not caption or re.search(r'^#\| *(?:hide|include: false)', source(c), re.M): continue
        if any(m.startswith('image/') for o in c['outputs'] for m in o.get('data', {})):
            said = plain(re.sub('[$].*?[$]', '', yaml.safe_load(caption[1])))
            assert said[:40] in text, (c['id'], said)

RAW = re.compile(r'^#\||\\(?:frac|sum|begin|overrightarrow|mathrm|text|cdot)\b|\$\$|^:::|\?@|\{\{<'
                 r'|\{\.[\w-]+|\[\d?;?\d\dm|\]\(|^#{1,6} \w', re.M)

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
    assert not (m := RAW.search(text)), text[max(0, m.start()-60):m.end()+60]
    for code in s.select('pre.sourceCode'):
        assert not (m := re.search(r'^#\|.*', code.get_text(), re.M)), m[0]
    prose = (source(c) for c in cells(nb) if c['cell_type'] == 'markdown')
    dollars = sum(re.sub(r'```.*?```|~~~.*?~~~|`[^`]*`', '', o, flags=re.S).count('$$')
                  for o in prose)
    assert len(s.select('.math.display')) == dollars//2

@pytest.mark.parametrize('text,faulty', [
    *((o, True) for o in ('#| echo: false', r'so \frac{1}{2} is', '$$ x $$', '::: note',
                          'a {.callout}', 'see [this](that)', '## Heading')),
    ('It costs $2.</p><p><code>#| x</code>', False)])
def test_markup_is_found(text, faulty):
    from bs4 import BeautifulSoup
    page = BeautifulSoup(f'<main><p>{text}</p></main>', 'html.parser')
    assert bool(RAW.search(visible(page))) == faulty

def open_shelves(s): return [SHELVES[int(o['id'][-1]) - 1] for o in s.select('ul.depth1.show')]

@each
def test_sidebar_of_each_page(nb, built):
    """All pages in order, with the numbers of the course; open is the shelf of the page, or else
    the course"""
    at, s = HOME + page_name(nb), soup(built/page_name(nb)).find(id='quarto-sidebar')
    def links(css):
        return [urljoin(at, a['href']).removeprefix(HOME) or 'index.html' for a in s.select(css)]
    assert links('a.sidebar-link[href]') == [*map(page_name, ORDER)]
    assert links('a.sidebar-link.active') == [page_name(nb)]
    numbers = [o.get_text() for o in s.select('.menu-text .chapter-number')]
    assert numbers == [*map(number, taught)]
    shelf = nb.parent.name if nb.parent != home else 'course'
    assert open_shelves(s) == [shelf]
    expanded = [o['aria-expanded'] for o in s.select('.sidebar-item-toggle')]
    assert expanded == [str(o == shelf).lower() for o in SHELVES]

@over(['studies', 'library'], called=str)
def test_the_page_that_opens_a_shelf_has_it_open_in_the_sidebar(shelf, built):
    assert open_shelves(soup(built/shelf/'index.html').find(id='quarto-sidebar')) == [shelf]

@each
def test_previous_and_next(nb, built):
    """Inside the course the links of Quarto, with numbers; elsewhere, and after its last chapter,
    the line that ends the notebook"""
    at, s = HOME + page_name(nb), soup(built/page_name(nb))
    i, inside = ORDER.index(nb), nb in [home/'index.ipynb', home/'start.ipynb', *taught[:-1]]
    for css,j in [('.nav-page-previous a', i-1), ('.nav-page-next a', i+1)]:
        links = s.select(css)
        wanted = [HOME + page_name(ORDER[j])] if inside and j >= 0 else []
        assert [urljoin(at, o['href']) for o in links] == wanted, css
        for o in links: assert plain(o.get_text()).startswith(number(ORDER[j]))
    line = [o for o in s.find('main').find_all('p')
            if re.match('(Previous|Grew from): ', o.get_text())]
    assert len(line) == (not inside and nb.parent != home)
    assert not [o for o in line if o.find_parent('details')]

@each
def test_head_of_each_page(nb, built):
    s, at = soup(built/page_name(nb)), HOME + page_name(nb)
    meta = {o.get('property') or o.get('name'): o.get('content') for o in s.find_all('meta')}
    assert urljoin(at, s.find('link', rel='icon')['href']) == HOME + web['favicon']
    assert meta['og:title'] and meta['og:description'] and meta['og:site_name'] == web['title']
    assert meta['og:image'] == meta['twitter:image'] == HOME + config['image']
    assert (built/config['image']).is_file() and meta['twitter:card'] == 'summary_large_image'
    assert meta['og:image:alt'] == config['image-alt']
    assert s.find('link', rel='canonical')['href'] == at
    for o in s.select('.breadcrumb'):
        assert plain(o.select('.breadcrumb-item')[-1].get_text()).startswith(number(nb))

@each
def test_folds(nb, built):
    """Exported code stands open up to a screen, and is folded under its names above; solutions are
    folded like the hints, as a list"""
    s = soup(built/page_name(nb))
    for o in s.select('details.code-fold'):
        said = o.summary.get_text()
        assert not o.has_attr('open') and 'Exported source' not in said
        if 'exported' not in o['class']: continue
        assert o.find('pre').get_text().strip().count('\n') >= 20 and said.endswith(' lines')
    at = s.find('section', id='solutions')
    if not at: return
    fold = at.select_one('details.solutions')
    assert fold and not fold.has_attr('open')
    assert not [o for o in at.find_all(['p', 'pre']) if not o.find_parent('details')]
    assert not [o for o in fold.find_all('p') if re.match(r'\d[.:]?\s', o.get_text())
                and not o.find_parent('li')]

@each
def test_nothing_is_asked_of_another_host(nb, built):
    """A copy of the site works without a network: styles, scripts, fonts and pictures are its own,
    and stand where the page looks for them"""
    for o,link in named_in(soup(built/page_name(nb)), 'script', 'img', 'link', 'iframe'):
        if o.get('rel') in (['canonical'], ['next'], ['prev']): continue
        assert not re.match('(?:https?:)?//', link), o
    for f in built.glob('*.css'):
        assert not re.search(r'url\([\'"]?(?:https?:)?//', f.read_text(encoding='utf-8'))

def test_numbers_of_tables_are_set_as_numbers(built):
    found = [c for o in PAGES for c in soup(built/o).select('main table.dataframe tbody td')
             if re.fullmatch(r'\d+\.\d+', c.get_text().strip())]
    assert len(found) > 500 and sum('num' in c.get('class', []) for c in found) > .75*len(found)

@each
def test_everything_has_a_name(nb, built):
    """Navigations, headings of tables, pictures in links; a link's name holds its text, and what
    opens a shelf is a button"""
    s = soup(built/page_name(nb))
    names = [o.get('aria-label') for o in s.select('nav:not(.quarto-page-breadcrumbs)')]
    assert all(names) and len({*names}) == len(names), names
    assert not [o for o in s.find_all('th') if not o.get_text().strip()]
    for o in s.select('a.pagination-link'): assert ' '.join(o.get_text().split()) == o['aria-label']
    assert not s.select('a[role=navigation], button[role=menu]')
    assert all(o['alt'] for o in s.select('.navbar-brand img'))

@over([o for o in nbs if o.parent.name == 'studies'])
def test_long_tables_of_studies_are_folded(nb, built):
    for o in soup(built/page_name(nb)).select('main table'):
        short = len(o.find_all('tr')) <= 14
        assert short or o.find_parent('details'), o.get_text(' ', strip=True)[:80]

@each
def test_pictures_keep_their_place(nb, built):
    page = built/page_name(nb)
    for img in soup(page).find('main').find_all('img'):
        if img['src'].endswith('.svg') and '/images/' in img['src']:
            assert img['width'] and img['height']
        if not img['src'].endswith('.png'): continue
        size = png_size(page.parent/unquote(img['src']))
        assert (int(img['width']), int(img['height'])) == size and img['loading'] == 'lazy'

def test_icons_that_are_left_are_those_that_pages_name(built):
    from fontTools.ttLib import TTFont
    css = (built/'site_libs/bootstrap/bootstrap-icons.css').read_text(encoding='utf-8')
    named = {o for p in pages(built) for o in re.findall(r'class="bi bi-([a-z0-9-]+)',
                                                         p.read_text(encoding='utf-8'))}
    rules = dict(re.findall(r'^\.bi-([\w-]+)::before \{ content: "\\(\w+)"', css, re.M))
    assert len(named) > 3 and named <= {*rules} and len(rules) < 60
    drawn = TTFont(built/'site_libs/bootstrap/bootstrap-icons.woff').getBestCmap()
    assert {int(code, 16) for code in rules.values()} <= {*drawn}

def test_page_for_wrong_addresses(built):
    s = soup(built/'404.html')
    assert len(s.find_all('h1')) == 1 and len(s.find('main').find_all('a')) >= 3
    base = HOME.removeprefix('https://').split('/', 1)[1]
    # it is shown at any depth: nothing relative
    for o,link in named_in(s, 'script', 'link', 'a'):
        assert not link or link.startswith((f'/{base}', 'https://', '#', 'data:')), o

def test_scripts_that_no_page_uses_are_gone(built):
    for page in pages(built):
        assert not [o for o,link in named_in(soup(page), 'script')
                    if re.search('require|jquery', link)], page

def test_index_for_language_models(built):
    text = (built/'llms.txt').read_text(encoding='utf-8')
    assert text.startswith(f"# {web['title']}\n\n> ")
    want, shown = [], {o['href']: o['text'] for o in web['sidebar']['contents'] if 'text' in o}
    for nb in ORDER:
        title, description = title_and_description(nb)
        want.append((shown.get(nb.name, title), page_name(nb), description))
    want = [(plain(t), f'{HOME}{page}.md', plain(d)) for t,page,d in want]
    found = re.findall(r'^- \[(.*?)\]\((.*?)\): (.*)$', text, re.M)
    assert [(plain(t), u, plain(d)) for t,u,d in found] == want
    for _,u,_ in want: assert len((built/u.removeprefix(HOME)).read_text(encoding='utf-8')) > 500, u

CODE = r'\\(?:frac|sum|begin|overrightarrow|mathrm|text|cdot|log|exp)\b|^import |\bdef \w+\('

def test_the_search_is_small_and_holds_every_page(built):
    "Half of what Quarto makes: no formulas, no code; with the numbers of the lessons"
    text = (built/'search.json').read_text(encoding='utf-8')
    assert len(gzip.compress(text.encode())) < 300_000
    items = [(o['href'].split('#')[0], o) for o in json.loads(text)]
    assert {page for page,_ in items} >= {*PAGES}
    of = {page_name(nb): number(nb) for nb in taught}
    for page,o in items:
        assert not (m := re.search(CODE, o['text'], re.M)), (o['href'], m[0])
        if n := of.get(page): assert re.match(rf'{n} (?!{n})', o['title'])

# in a browser

@pytest.fixture(scope='session')
def address(built):
    "The site behind its own path, as GitHub Pages serves it"
    base = '/' + HOME.removeprefix('https://').split('/', 1)[1]
    with served(built, base, built/'404.html') as address: yield address

@pytest.fixture
def tab(browser, address):
    "A function that opens a page of the site"
    with_it = []
    def opened(*args, **kw):
        with_it.append(Tab(browser, address, *args, **kw))
        return with_it[-1]
    yield opened
    for t in with_it: t.context.close()

class Tab:
    """A page in the browser, and what it said in the console; what it asks of another host is a
    fault, too"""
    def __init__(self, browser, address, name, width=1280, height=900, scheme='light'):
        self.said = []
        self.context = browser.new_context(viewport=dict(width=width, height=height),
                                           color_scheme=scheme)
        self.page = p = self.context.new_page()
        p.set_default_timeout(180_000)
        p.add_init_script(SHIFTS)
        p.route(lambda url: not url.startswith(address), self.elsewhere)
        p.on('console', lambda m: m.type == 'error' and self.said.append(m.text))
        p.on('pageerror', lambda e: self.said.append(str(e)))
        p.goto(address + name, wait_until='load')

    def elsewhere(self, route):
        self.said.append(f'asked for {route.request.url}')
        route.abort()

    def find(self, css, value):
        "A value of each element `o` that is found"
        return self.page.evaluate(f'[...document.querySelectorAll({css!r})].map(o => {value})')

    def __enter__(self): return self
    def __exit__(self, *args): self.context.close()

PHONE = 390, 844
WIDER = """[...document.querySelectorAll('body *')]
  .filter(o => o.getBoundingClientRect().right > innerWidth + 1)
  .slice(0, 5).map(o => o.outerHTML.slice(0, 120))"""
BUTTONS = """[...document.querySelectorAll('main .code-copy-button')]
  .filter(o => o.checkVisibility()).every(o => o.getBoundingClientRect().left >=
    o.parentElement.querySelector('code').getBoundingClientRect().right - 1)"""
FORMULAS = """[...document.querySelectorAll('.math')]
  .filter(o => !o.querySelector('.katex') || o.querySelector('.katex-error'))
  .map(o => o.textContent)"""
OVERFLOW = """[...document.querySelectorAll('main pre.sourceCode > code')]
  .filter(o => o.checkVisibility() && o.scrollWidth > o.clientWidth)
  .map(o => o.textContent.split('\\n').reduce((a, b) => a.length > b.length ? a : b))"""
# characters a line that a block shows at 1,280 pixels; open cells of the course have 88
FITS = 92

@over(['404.html', *PAGES], called=str)
def test_pages_on_a_desk_and_on_a_phone(page, built, browser, address):
    """Nothing wrong in the console; code whole at 1,280 pixels, all of it on a page of the course;
    nothing wider than a phone; formulas drawn"""
    with Tab(browser, address, page) as t:
        cut = t.page.evaluate(OVERFLOW)
        assert not [o for o in cut if page.startswith('course/') or len(o) <= FITS], cut
        assert t.page.evaluate(BUTTONS), 'a button stands on the code'
        t.page.set_viewport_size(dict(zip(('width', 'height'), PHONE)))
        width = t.page.evaluate('document.documentElement.scrollWidth')
        assert width <= PHONE[0], t.page.evaluate(WIDER)
        crumbs = t.find('.breadcrumb-item', '[o.scrollWidth - o.clientWidth, o.textContent]')
        assert not [text for over,text in crumbs if over > 1], 'a breadcrumb is cut'
        assert not t.page.evaluate(FORMULAS)
        assert not t.said

def test_a_newcomer_sees_where_to_begin(tab):
    page = tab('index.html', 1280, 800).page
    begin = page.get_by_role('link', name='Begin the course', exact=True)
    box = begin.bounding_box()
    assert box['y'] + box['height'] < 800 and box['height'] > 30, 'a button in the first screen'
    for page,height in ((page, 800), (tab('index.html', *PHONE).page, PHONE[1])):
        page.wait_for_selector('button.elmo-word')
        last = page.locator('.elmo-line').nth(1).bounding_box()
        assert last['y'] + last['height'] < height, 'and the explainer, alive, with all its bars'
    begin.click()
    begin.page.wait_for_url(re.compile('course/quickstart.html'))

@over(['index.html', 'studies/explainer.html'], called=str)
def test_elmo_is_alive_on_pages_of_any_folder(page, built, browser, address):
    with Tab(browser, address, page) as t:
        t.page.wait_for_selector('button.elmo-word')
        assert t.page.locator('.elmo-line').count() == 2 and not t.said

def test_a_gap_is_filled_on_the_built_page(built, tab):
    "The output layer and its words are on the site, and nothing of the box that no script loads"
    assert {f.name for f in (built/'live'/'mini-en').iterdir()} == {*after.LOADED}
    t = tab('studies/explainer.html#two-readers')
    t.page.fill('[data-panel=readers] input', 'There were three men in the room.')
    t.page.wait_for_selector('[data-panel=readers] svg:has-text("three")')
    assert not t.said

GRADIENT = 'course/recurrent.html#gradients-that-shrink-or-grow'
QUERIES = {
    'install': 'start.html#two-commands', 'vanishing gradient': GRADIENT,
    'gradient vanishing': GRADIENT, 'BERT': 'course/history.html#from-word2vec-to-bert',
    'load AI2 weights': 'library/ai2.html#load',
    'surprise': 'course/surprise.html#surprise-entropy-perplexity',
    # several sections of a lesson have the word: its page comes first
    'perplexity': 'course/surprise.html', 'highway': 'course/charcnn.html',
    'padding': 'course/batches.html', 'probe': 'course/probe.html',
    'scalar mix': 'course/elmo.html#a-weighted-sum-by-hand',
    'LSTM': 'course/recurrent.html#the-lstm-gate-by-gate',
    'language model': 'course/ngrams.html#what-a-language-model-is'}

@over([*QUERIES], called=str)
def test_the_search_leads_where_one_expects(query, built, browser, address):
    with Tab(browser, address, 'index.html') as t:
        t.page.keyboard.press('/')
        t.page.fill('.aa-Input', query)
        t.page.wait_for_selector('.aa-Item a')
        t.page.wait_for_timeout(600)
        first = t.page.locator('.aa-Item a').first.get_attribute('href')
        assert re.sub(r'\?q=[^#]*', '', first).lstrip('./') == QUERIES[query] and not t.said

def test_panels_side_by_side_scroll_on_a_phone(tab):
    boxes = tab('course/history.html', *PHONE).find('main img.wide', """[
        o.getBoundingClientRect().width, o.parentElement.scrollWidth, o.parentElement.clientWidth]
        """)
    assert boxes and all(width > 600 and inner > outer for width,inner,outer in boxes), boxes

BROKEN = """() => {
  document.querySelectorAll('details').forEach(o => o.open = true);
  const found = [], main = document.querySelector('main');
  const walk = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, o = node.parentElement;
    if (!o.closest('td, th, h1, h2, h3, h4') || o.closest('pre, .katex')) continue;
    for (const m of node.textContent.matchAll(/[\\w.]{2,}/g)) {
      const range = document.createRange();
      range.setStart(node, m.index);
      range.setEnd(node, m.index + m[0].length);
      const boxes = [...range.getClientRects()].filter(o => o.width > 1);
      if (new Set(boxes.map(o => Math.round(o.top))).size > 1) found.push(m[0]);
    }
  }
  return found;
}"""

@over([*PAGES], called=str)
def test_no_word_breaks_in_a_table_or_a_heading_on_a_phone(page, built, browser, address):
    with Tab(browser, address, page, *PHONE) as t: assert not t.page.evaluate(BROKEN)

@over([*map(page_name, taught)], called=str)
def test_drawings_on_a_phone(page, built, browser, address):
    "The narrow version fits; another one is as wide as it was drawn, and scrolls"
    with Tab(browser, address, page, *PHONE) as t:
        t.page.evaluate("""Promise.all([...document.querySelectorAll('main img')].map(
            o => { o.loading = 'eager'; return o.decode() }))""")
        found = t.find('main img', """[
            o.currentSrc || o.src, o.getBoundingClientRect().width,
            o.parentElement.closest('p')?.clientWidth]""")
        for src,width,column in found:
            if not (m := re.search(r'/images/([\w-]+\.svg)$', src)): continue
            drawn, _ = after.extent(home/'images'/m[1])
            if drawn > after.PHONE: assert width >= drawn - 1, m[1]
            else: assert min(drawn, column) - 1 <= width <= column + 1, m[1]

SEEN = ['index.html', 'studies/explainer.html', 'studies/index.html', 'library/index.html',
        'course/quickstart.html', 'course/charcnn.html', 'course/elmo.html',
        'studies/labels.html', 'library/folder.html', '404.html']
each_scheme = pytest.mark.parametrize('scheme', ['light', 'dark'])
TOGGLE = '.quarto-color-scheme-toggle >> visible=true'

@each_scheme
@pytest.mark.parametrize('name', [*SEEN, 'course/history.html', 'library/browser.html',
                                  'glossary.html'])
def test_nothing_for_axe_to_find(tab, axe, name, scheme):
    page = tab(name, scheme=scheme).page
    page.wait_for_function(f"document.body.classList.contains('quarto-{scheme}')")
    page.wait_for_timeout(800)
    assert not axe(page)

@each_scheme
@pytest.mark.parametrize('width', [1440, 820, 390])
@pytest.mark.parametrize('name', SEEN[:8])
def test_nothing_moves_while_a_page_loads(tab, name, width, scheme):
    page = tab(name, width, scheme=scheme).page
    page.wait_for_timeout(1200)
    assert shifted(page) <= .02

def test_light_and_dark(tab):
    "The choice is kept; plots keep their colours, so that a caption that names them holds"
    t = tab('course/elmo.html')
    def paper(): return t.page.evaluate('getComputedStyle(document.body).backgroundColor')
    before = paper()
    t.page.click(TOGGLE)
    t.page.wait_for_function("document.body.classList.contains('quarto-dark')")
    assert paper() != before
    plots = t.find('main .cell-output-display img', 'getComputedStyle(o).filter')
    assert plots and {*plots} == {'none'}
    t.page.reload()
    assert 'quarto-dark' in t.page.evaluate('document.body.className')
    t.page.click(TOGGLE)
    t.page.wait_for_function("document.body.classList.contains('quarto-light')")
    assert paper() == before and not t.said

@over(['index.html', *map(page_name, taught)], called=str)
def test_a_page_is_light_and_shows_at_once(name, built, browser, address):
    """At most 500 kB before the reader scrolls, as a server packs them, and something to see within
    a second"""
    context = browser.new_context(viewport=dict(width=1280, height=900))
    page, got = context.new_page(), []
    page.on('response', lambda r: got.append(r))
    page.goto(address + name, wait_until='networkidle')
    def size(r):
        packed = r.url.split('?')[0].endswith(('.woff', '.woff2', '.png'))
        return len(r.body() if packed else gzip.compress(r.body()))
    sizes = {r.url.removeprefix(address): size(r) for r in got}
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    context.close()
    assert sum(sizes.values()) <= 500_000, sorted(sizes.items(), key=lambda o: -o[1])[:5]
    assert first < 2000, 'a second on an idle machine'

def test_a_link_into_a_page_shows_what_it_leads_to(tab):
    t = tab('course/elmo.html#recap')
    t.page.wait_for_timeout(500)
    [bar] = t.find('#quarto-header', 'o.getBoundingClientRect().bottom')
    [heading] = t.find('#recap h2', 'o.getBoundingClientRect().top')
    assert bar <= heading < 300
    page = tab('course/elmo.html#solutions').page
    page.evaluate("location.hash = document.querySelector('details.solutions .cell').id")
    page.wait_for_function("document.querySelector('details.solutions').open")

def test_keyboard(tab):
    page = tab('library/toy.html').page
    def focused(what): return page.evaluate(f'(o => {what})(document.activeElement)')
    page.keyboard.press('Tab')
    assert focused('o.className') == 'skip' and focused('o.getBoundingClientRect().top') >= 0
    page.keyboard.press('Enter')
    page.keyboard.press('Tab')
    assert focused("!!o.closest('#quarto-document-content')")
    assert focused('getComputedStyle(o).outlineStyle') != 'none'
    fold = page.query_selector('details.exported:not([open])')
    fold.query_selector('summary').focus()
    assert not fold.query_selector('pre code').is_visible()
    page.keyboard.press('Enter')
    assert fold.query_selector('pre code').is_visible()

def test_wrong_addresses_look_right_at_any_depth(built, tab):
    t = tab('no/such/page.html')
    assert t.page.inner_text('h1') == soup(built/'404.html').h1.get_text()
    red, green, blue = (int(web['navbar']['background'][i:i+2], 16) for i in (1, 3, 5))
    [bar] = t.find('nav.navbar', 'getComputedStyle(o).backgroundColor')
    assert bar == f'rgb({red}, {green}, {blue})', 'the style sheets are found'
    t.page.click('main a >> nth=0')
    # Quarto's script shortens the address
    t.page.wait_for_url(re.compile(r'/(?:index\.html)?#the-course$'))
