"""The documentation site: its configuration always; the built pages where Quarto is installed; the
pages in a browser where there is one"""
import functools, gzip, json, os, re, shutil, subprocess, sys
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urldefrag, urljoin, urlsplit

import pytest, yaml

import after_render as after
from browse import SHIFTS, served, shifted
from notebooks import (FENCE, SHELVES, copied, files_in, home, name, nbs, on, read, root, site,
                       source, taught)

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
def called(nb): return f'{nb.name[:2]} '*(nb in taught) + plain(title_and_description(nb)[0])
def plain(text):
    "`text` without marks, its quotation marks and dashes straight again"
    for a,b in (('[`*]', ''), ('[‘’]', "'"), ('[“”]', '"'), ('[–—]', '-'), ('…', '...'),
                (r'\s+', ' ')):
        text = re.sub(a, b, text)
    return text.strip()

def each_of(items, called=name): return pytest.mark.parametrize('nb', items, ids=called)
each = each_of(nbs)
PAGES = [*map(page_name, nbs)]
# the pages of each sidebar in their order
SIDEBARS = {o['id']: [home/f for f in files_in(o)] for o in web['sidebar']}

# configuration

def test_a_sidebar_for_each_shelf():
    "It names the shelf's pages once; that of the course the lessons by their numbers"
    assert [*SIDEBARS] == [*SHELVES]
    course = home/'start.ipynb', *taught, home/'use.ipynb', home/'glossary.ipynb'
    assert SIDEBARS['course'] == [*course]
    for shelf in SHELVES[1:]:
        first, *pages = SIDEBARS[shelf]
        assert first == home/shelf/'index.qmd' and sorted(pages) == on(shelf)
    shown = [o['text'] for o in web['sidebar'][0]['contents'] if 'text' in o]
    assert shown == [called(nb) for nb in taught]
    for page in ('start.ipynb', 'use.ipynb'):
        [said] = [o['text'] for o in web['navbar']['left'] if o['href'] == page]
        assert said == called(home/page), 'one name for one page'

@each
def test_directives_are_yaml(nb):
    """Quarto stops at a caption with a bare colon, and at a fold that an exported cell has from
    nbdev already"""
    for c in cells(nb):
        if c['cell_type'] != 'code': continue
        folded = re.search(r'^#\| *exports(?s:.*)^#\| *code-fold', source(c), re.M)
        assert not folded, (c['id'], 'nbdev folds what is exported')
        for key,value in re.findall(r'^#\|[ ]*([\w-]+):[ ]*(.*)$', source(c), re.M):
            found = yaml.safe_load(f'{key}: {value}')
            assert isinstance(found, dict) and list(found) == [key], (c['id'], key, value)
            if key in ('fig-cap', 'fig-alt'):
                assert plain(str(found[key])) == plain(value.strip('"\' ')), (c['id'], found)

# what is changed after Quarto

@pytest.mark.parametrize('file,tag', [
    ('bilm_two.svg', r'<picture><source media="\([^)]*\)" srcset="../images/bilm_two-narrow.svg" '
                     r'width="\d+" height="\d+"><img width="\d+" height="\d+"[^>]*></picture>'),
    ('counting_backoff.svg', r'<img width="\d+" height="\d+".* class="wide ".*>'),
    ('cbow-step.svg', r'<img width="\d+" height="\d+"(?!.*wide).*>')])
def test_pictures_fit_a_phone(file, tag):
    "A drawing with a narrow version brings it along; another one that is wide scrolls"
    made = after.sized(f'<p><img src="../images/{file}" alt="A"></p>', home/'course')
    assert re.fullmatch(f'<p>{tag}</p>', made), made
    img = f'<img src="../images/{file}">'
    made = after.sized(f'<main>{img}<section>{img}</section></main>', home/'course')
    assert re.search('fetchpriority="high".*<section>.*loading="lazy"', made)

@pytest.mark.parametrize('anchor,to', [('a', 'a'), ('a.f', 'a.f'), ('a.g', 'a'), ('b', None)])
def test_names_lead_to_their_definitions(anchor, to):
    "A method to its own, or else to its class; what is no name of ours leads nowhere"
    name = '<code>x</code>'
    made = after.linked(f'<a href="https://x/course/a.html#{anchor}">{name}</a>', 'library/b.html',
                        {'course/a.html': {'a', 'a.f'}}, 'https://x/')
    assert made == (f'<a href="../course/a.html#{to}">{name}</a>' if to else name)

def test_the_search_holds_prose_and_names():
    page = ('<main><header><h1>A</h1></header><p>An opening.</p><section id="one" class="level2">'
            '<h2>One</h2><p>So <span class="math inline">\\(\\frac{1}{2}\\)</span> is <code>half'
            '</code>.</p><span id="halve" class="definition"></span><div><pre class="sourceCode">'
            'def halve(x): pass</pre></div><table><tr><td>7</td></tr></table></section></main>')
    assert after.parts(page) == {'': 'An opening.', 'one': 'One So is half . halve'}

def test_style_rules_of_classes_that_no_page_has_are_gone(tmp_path):
    css = tmp_path/'site_libs'/'bootstrap'/'bootstrap-1.min.css'
    css.parent.mkdir(parents=True)
    css.write_text('@font-face{src:x}a{b:c}.on,.off{b:c}@media (x){.off .on{b:c}.on:not(.off){b:c}}'
                   '.bs-x{b:c}', encoding='utf-8')
    (tmp_path/'a.html').write_text('<p class="on">off</p>', encoding='utf-8')
    after.fewer_rules(tmp_path)
    assert css.read_text(encoding='utf-8') == (
        '@font-face{src:x}a{b:c}.on{b:c}@media (x){.on:not(.off){b:c}}.bs-x{b:c}')

# the built pages

@pytest.fixture(scope='session')
def built(tmp_path_factory):
    "The folder of the built site: ELMO_FASTAI_SITE, or built now in a copy of the repository"
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
    assert not (m := re.search(r'.*(?:WARN:|ERROR|Traceback).*', log)), m[0]
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
def test_head_of_each_page(nb, built):
    s, at = soup(built/page_name(nb)), HOME + page_name(nb)
    assert [plain(o.get_text()) for o in s.find_all('h1')] == [called(nb)]
    assert plain(s.title.get_text()).startswith(called(nb)) and s.html['lang'] == 'en-GB'
    meta = {o.get('property') or o.get('name'): o.get('content') for o in s.find_all('meta')}
    assert plain(meta['description']) == plain(title_and_description(nb)[1])
    assert meta['og:image'] == meta['twitter:image'] == HOME + config['image']
    assert s.find('link', rel='canonical')['href'] == at

def words(text): return re.sub(r'[\W_]+', '', re.sub(r'&\w+;', '', text)).casefold()
HEAD = re.compile(r'# .*\n+> .*\n*(?:- [\w-]+: \w+\s*)*')
# tags, tables, code, formulas, pictures, and the links that stand elsewhere on a page
OTHER = r'<|\||~~~|```|\$\$|!\[|:::|\*\*Previous\*\*: \['
# links, numbers of lists
MARKS_OF_PROSE = (r'(``.*?``|`[^`]*`)|<[^>]*>|\[Open in Colab\]\(\S*\)'
                  r'|\]\([^)\s]*\)(?:\{[^}]*\})?|^ *\d+[.)] ')

@each
def test_every_paragraph_stands_on_its_page(nb, built):
    "nbdev drops what stands beside the title, for one"
    text = words(soup(built/page_name(nb)).find('main').get_text())
    prose = [source(c) for c in cells(nb) if c['cell_type'] == 'markdown']
    prose[0] = HEAD.sub('', prose[0])
    for part in re.split(r'\n\s*\n', FENCE.sub('', '\n\n'.join(prose))):
        if re.match(OTHER, part.strip()): continue
        part = re.sub(MARKS_OF_PROSE, r'\1', part, flags=re.M)
        # KaTeX draws formulas
        for said in re.split(r'\$[^$]+\$', part): assert words(said) in text, said

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
    assert counted > 20*len(nbs)

@each
def test_pictures_keep_their_place(nb, built):
    page = built/page_name(nb)
    for img in soup(page).select('main img'):
        drawn = after.extent(page.parent/unquote(img['src']))
        assert [int(img['width']), int(img['height'])] == [*drawn], img['src']

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
    assert not s.select('main :is(s, del, strike)'), 'a token <s> that became a line'
    for code in s.select('pre.sourceCode'): assert not re.search(r'^#\|.*', code.get_text(), re.M)
    prose = (source(c) for c in cells(nb) if c['cell_type'] == 'markdown')
    dollars = sum(re.sub(r'```.*?```|~~~.*?~~~|`[^`]*`', '', o, flags=re.S).count('$$')
                  for o in prose)
    assert len(s.select('.math.display')) == dollars//2

@each
def test_the_way_through_a_shelf(nb, built):
    "Its sidebar has the shelf and nothing else, then come previous and next"
    at, s = HOME + page_name(nb), soup(built/page_name(nb))
    def links(css): return [urljoin(at, o['href']).removeprefix(HOME) for o in s.select(css)]
    shelf = next((o for o in SIDEBARS.values() if nb in o), [])
    order = [page_name(o) for o in shelf]
    assert links('#quarto-sidebar a.sidebar-link[href]') == order
    assert links('#quarto-sidebar a.active') == order[shelf.index(nb):][:1] if shelf else not order
    i = shelf.index(nb) if shelf else 0
    assert links('.nav-page-previous a') == order[max(i - 1, 0):i]
    assert links('.nav-page-next a') == order[i+1:i+2]
    for o in s.select('.nav-page-next a'): assert plain(o.get_text()) == called(shelf[i+1])
    [ask] = [a['href'] for a in s.select('main .elmo-ask a[href]')]
    asked = dict(parse_qsl(urlsplit(ask).query))
    form = root/'.github'/'ISSUE_TEMPLATE'/asked['template']
    form = yaml.safe_load(form.read_text(encoding='utf-8'))
    assert asked['chapter'] == name(nb) and form['body'][0]['id'] == 'chapter', 'its field is filled'

@each
def test_folds(nb, built):
    "Each is closed and has a summary; the solutions are folded as a whole, once"
    s = soup(built/page_name(nb))
    for o in s.select('main details'):
        assert o.summary.get_text().strip() and not o.has_attr('open')
    if at := s.find('section', id='solutions'):
        assert not [o for o in at.find_all(['p', 'pre']) if not o.find_parent('details')]
        assert not [o for o in at.find_all('summary') if o.get_text().startswith('Answer')]

@each
def test_a_table_of_one_row_has_equal_decimals(nb, built):
    for table in soup(built/page_name(nb)).select('main table.dataframe'):
        if len(table.select('tbody tr')) != 1: continue
        numbers = (re.fullmatch(r'-?\d+\.(\d+)', o.get_text().strip()) for o in table.select('td'))
        assert len({len(o[1]) for o in numbers if o}) < 2, table.get_text(' ', strip=True)

@each
def test_nothing_is_asked_of_another_host(nb, built):
    "A copy of the site works without a network; no page loads require.js or jQuery"
    for o,link in named_in(soup(built/page_name(nb)), 'script', 'img', 'link', 'iframe'):
        if o.get('rel') in (['canonical'], ['next'], ['prev']): continue
        assert not re.match('(?:https?:)?//', link), o
    for f in built.glob('*.css'):
        assert not re.search(r'url\([\'"]?(?:https?:)?//', f.read_text(encoding='utf-8'))

def test_icons_that_pages_name_are_left(built):
    css = (built/'site_libs/bootstrap/bootstrap-icons.css').read_text(encoding='utf-8')
    rules = {*re.findall(r'^\.bi-([\w-]+)::before', css, re.M)}
    for p in pages(built):
        named = re.findall(r'class="bi bi-([a-z0-9-]+)', p.read_text(encoding='utf-8'))
        assert {*named} <= rules and len(rules) < 60

def test_the_search_is_small_and_holds_every_page(built):
    "No formulas, no code; what readers ask for leads to sections that exist"
    text = (built/'search.json').read_text(encoding='utf-8')
    assert len(gzip.compress(text.encode())) < 300_000
    items = json.loads(text)
    assert {o['href'].split('#')[0] for o in items} >= {*PAGES}
    for o in items: assert not re.search(r'\\(?:frac|sum|text)\b|\bdef \w+\(', o['text']), o['href']
    assert not {*after.ASKED} - {o['href'] for o in items}

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
    "A page in the browser; what its console says, and what it asks of another host, are faults"
    def __init__(self, browser, address, name, width=1280, height=900, scheme='light'):
        self.said, self.got = [], []
        self.context = browser.new_context(viewport=dict(width=width, height=height),
                                           color_scheme=scheme)
        self.page = p = self.context.new_page()
        p.set_default_timeout(180_000)
        p.add_init_script(SHIFTS)
        p.route(lambda url: not url.startswith(address), self.elsewhere)
        p.on('response', lambda r: self.got.append(r))
        p.on('console', lambda m: m.type == 'error' and self.said.append(m.text))
        p.on('pageerror', lambda e: self.said.append(str(e)))
        p.goto(address + name, wait_until='load')

    def elsewhere(self, route):
        self.said.append(f'asked for {route.request.url}')
        route.abort()

    def find(self, css, value):
        "A value of each element `o` that is found"
        return self.page.evaluate(f'[...document.querySelectorAll({css!r})].map(o => {value})')

PHONE = 390, 844
FORMULAS = """[...document.querySelectorAll('.math')]
  .filter(o => !o.querySelector('.katex') || o.querySelector('.katex-error'))
  .map(o => o.textContent)"""
OVERFLOW = """[...document.querySelectorAll('main pre.sourceCode > code')]
  .filter(o => o.checkVisibility() && o.scrollWidth > o.clientWidth)
  .map(o => o.textContent.split('\\n').reduce((a, b) => a.length > b.length ? a : b))"""
# characters a line that a block shows at 1,280 pixels; open cells of the course have 88
FITS = 88

@pytest.mark.parametrize('page', ['404.html', *PAGES])
def test_pages_on_a_desk_and_on_a_phone(page, tab):
    """Nothing wrong in the console; code whole at 1,280 pixels; nothing wider than a phone,
    drawings as wide as they were drawn; formulas drawn"""
    t = tab(page)
    cut = t.page.evaluate(OVERFLOW)
    assert not [o for o in cut if len(o) <= FITS], cut
    t.page.set_viewport_size(dict(zip(('width', 'height'), PHONE)))
    assert t.page.evaluate('document.documentElement.scrollWidth') <= PHONE[0]
    assert not t.page.evaluate(FORMULAS)
    t.page.evaluate("""Promise.all([...document.querySelectorAll('main img')].map(
        o => { o.loading = 'eager'; return o.decode() }))""")
    for src,width,column in t.find('main p img:not(.elmo-live *)', """[
            o.currentSrc || o.src, o.getBoundingClientRect().width, o.closest('p').clientWidth]"""):
        if not (m := re.search(r'/images/([\w-]+\.svg)$', src)): continue
        drawn, _ = after.extent(home/'images'/m[1])
        assert width >= (drawn if drawn > after.PHONE else min(drawn, column)) - 1, m[1]
    assert not t.said

def test_a_newcomer_sees_where_to_begin(tab):
    page = tab('index.html', 1280, 800).page
    begin = page.get_by_role('link', name='Begin the course', exact=True)
    box = begin.bounding_box()
    assert box['y'] + box['height'] < 800 and box['height'] > 30, 'a button in the first screen'
    for page,height in ((page, 800), (tab('index.html', *PHONE).page, PHONE[1])):
        page.wait_for_selector('.elmo-glide')
        view = page.locator('.elmo-panel').first.bounding_box()
        assert view['y'] + view['height'] < height, 'and the dots, alive, with the field above them'
        assert page.locator('.elmo-glide').count() == 3
    assert page.locator('main a[href]:not(.anchorjs-link)').count() <= 25
    begin.click()
    begin.page.wait_for_url(re.compile('course/quickstart.html'))

QUERIES = {'install': 'start', 'load AI2 weights': 'library/ai2', 'scalar mix': 'course/elmo',
           'LSTM': 'course/recurrent', 'highway': 'course/charcnn'}

@pytest.mark.parametrize('query', QUERIES)
def test_the_search_leads_where_one_expects(query, tab):
    page = tab('index.html').page
    page.keyboard.press('/')
    page.fill('.aa-Input', query)
    page.wait_for_selector('.aa-Item a')
    page.wait_for_timeout(600)
    first = page.locator('.aa-Item a').first.get_attribute('href')
    assert re.sub(r'\?q=[^#]*', '', first).lstrip('./').startswith(QUERIES[query]), first

SEEN = ['index.html', 'studies/explainer.html', 'studies/index.html', 'library/index.html',
        'course/quickstart.html', 'course/elmo.html', 'studies/labels.html', 'library/folder.html']
each_scheme = pytest.mark.parametrize('scheme', ['light', 'dark'])

@each_scheme
@pytest.mark.parametrize('name', [*SEEN, '404.html', 'course/history.html', 'glossary.html'])
def test_nothing_for_axe_to_find(tab, axe, name, scheme):
    page = tab(name, scheme=scheme).page
    page.wait_for_function(f"document.body.classList.contains('quarto-{scheme}')")
    page.wait_for_timeout(800)
    assert not axe(page)

@pytest.mark.parametrize('width', [1440, 820, 390])
@pytest.mark.parametrize('name', SEEN)
def test_nothing_moves_while_a_page_loads(tab, name, width):
    page = tab(name, width, scheme='dark' if width == 820 else 'light').page
    page.wait_for_timeout(1200)
    assert shifted(page) <= .02

TOGGLE = '.quarto-color-scheme-toggle >> visible=true'

def test_light_and_dark(tab):
    """The choice is kept; in the dark the paper of a plot is that of the page, unless its lightness
    is a number"""
    t = tab('course/bilm.html')
    def paper(): return t.page.evaluate('getComputedStyle(document.body).backgroundColor')
    before = paper()
    t.page.click(TOGGLE)
    t.page.wait_for_function("document.body.classList.contains('quarto-dark')")
    assert paper() != before
    for shades,turned in t.find('main img', """[o.classList.contains('shades'),
            getComputedStyle(o).filter.includes('invert')]"""): assert shades != turned
    assert t.find('main img.shades', '1')
    t.page.reload()
    assert 'quarto-dark' in t.page.evaluate('document.body.className')
    t.page.click(TOGGLE)
    t.page.wait_for_function("document.body.classList.contains('quarto-light')")
    assert paper() == before and not t.said

@pytest.mark.parametrize('name', ['index.html', *map(page_name, taught)])
def test_a_page_is_light(name, tab):
    "At most 500 kB before the reader scrolls, as a server packs them"
    t = tab(name)
    t.page.wait_for_load_state('networkidle')
    def size(r):
        packed = r.url.split('?')[0].endswith(('.woff', '.woff2', '.png'))
        return len(r.body() if packed else gzip.compress(r.body()))
    sizes = {r.url: size(r) for r in t.got}
    assert sum(sizes.values()) <= 500_000, sorted(sizes.items(), key=lambda o: -o[1])[:5]

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
    fold = page.query_selector('details.code-fold:not([open])')
    fold.query_selector('summary').focus()
    assert not fold.query_selector('pre code').is_visible()
    page.keyboard.press('Enter')
    assert fold.query_selector('pre code').is_visible()

def test_wrong_addresses_look_right_at_any_depth(tab):
    t = tab('no/such/page.html')
    assert t.page.inner_text('h1') == 'This page does not exist'
    [bar] = t.find('nav.navbar', 'getComputedStyle(o).backgroundColor')
    assert bar == 'rgb(26, 90, 138)', 'the style sheets are found'
    t.page.click('main a >> nth=0')
    # Quarto's script shortens the address
    t.page.wait_for_url(re.compile(r'/(?:index\.html)?#the-course$'))
