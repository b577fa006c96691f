"""Quarto calls this after it has built the site, for what neither it nor nbdev does here. Each
function says what it changes; `finished` has them in their order. Beyond single pages:

- llms.txt, an index of the pages in the order of the sidebar;
- an index of the search that holds prose and names, without code, tables and formulas;
- no scripts, icons and style rules that no page uses;
- the model in the box beside the scripts that run it in a page."""
import json, logging, os, re, shutil, struct
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import yaml

ROOT = Path(__file__).resolve().parent.parent
LIVE = ROOT/'nbs'/'live'
BOX = ROOT/'elmo_fastai'/'box'/'mini-en'

def text_of(file): return file.read_text(encoding='utf-8')
def without_tags(html): return unescape(re.sub('<.*?>', '', html))

def entries(contents, section='Start'):
    "(section, source of a page, its name where it has one) of the sidebar"
    for o in contents:
        if isinstance(o, str): yield section, o, None
        elif 'section' in o: yield from entries(o['contents'], o['section'])
        elif 'href' in o: yield section, o['href'], o['text']
        else: section = o['text']       # a heading in a shelf

def llms(docs):
    """The text of llms.txt for the site in the folder `docs`; links lead to the markdown that is
    built beside each page"""
    web = yaml.safe_load(text_of(ROOT/'_quarto.yml'))['website']
    def head(page):
        "Title and description"
        html = text_of(docs/page)
        title, said = (re.search(o, html, re.S)[1] for o in (
            '<title>(.*?)</title>', '<meta name="description" content="([^"]*)"'))
        title = re.sub(r'^\d\d ', '', unescape(title).removesuffix(f" – {web['title']}"))
        return title, unescape(said)
    lines = [f"# {web['title']}", '', f"> {head('index.html')[1]}", '',
             'Each page below is markdown: prose, code and saved outputs.']
    for section,source,name in entries(web['sidebar']['contents']):
        if f'## {section}' not in lines: lines += ['', f'## {section}', '']
        page = re.sub(r'(^|/)\d+_', r'\1', re.sub(r'\.\w+$', '.html', source))
        title, said = head(page)
        lines.append(f"- [{name or title}]({web['site-url']}/{page}.md): {said}")
    return '\n'.join(lines) + '\n'

UNUSED = re.compile(
    r'<script src="https://cdnjs\.cloudflare\.com/ajax/libs/(?:require\.js|jquery)/.*?</script>\n?'
    r'|<script type="application/javascript">define\(\'jquery\'.*?</script>\n?')

def without_unused(html):
    """`html` without require.js and jQuery: Quarto loads them from another host for every notebook
    with an HTML table, in case it held a widget"""
    return html if 'application/vnd.jupyter.widget' in html else UNUSED.sub('', html)

def pages(docs):
    "The text of each page, by its place on the site"
    return {f.relative_to(docs).as_posix(): text_of(f) for f in sorted(docs.rglob('*.html'))
            if 'site_libs' not in f.parts}

def target(link, page, base):
    """The page of the site at `base` and the anchor on it that `link` of `page` leads to; no page
    where it leads away"""
    url, anchor = urldefrag(urljoin(base + page, link))
    return (url.removeprefix(base) or 'index.html' if url.startswith(base) else None), anchor

def numbers(pages):
    """The number of each chapter by its page: nbdev takes it out of the address, the link to the
    source still has it"""
    found = {page: re.search(r'/nbs/course/(\d+)_\w+\.ipynb"', html) for page,html in pages.items()}
    return {page: m[1] for page,m in found.items() if m}

def numbered(html, page, numbers, base):
    """`html` of `page` with the numbers of the chapters in the title, the heading, the breadcrumb,
    the sidebar, and in previous and next"""
    def span(page):
        return f'<span class="chapter-number">{numbers[page]}</span> ' if page in numbers else ''
    def own(m): return m[0] + span(page)
    def linked(m): return m[0] + span(target(m[1], page, base)[0])
    def spoken(m):
        number = numbers.get(target(m[1], page, base)[0])
        return f'{m[0]}{number} ' if number else m[0]
    if page in numbers:
        html = re.sub(rf'<title>(?!{numbers[page]} )', f'<title>{numbers[page]} ', html, count=1)
    crumb = r'<li class="breadcrumb-item"><a href="[^"]*">(?=[^<]*</a></li></ol>)'
    link, turn = r'<a href="([^"]*)" class="', 'pagination-link"'
    html = re.sub(rf'<h1 class="title[^"]*">(?!<span)|{crumb}', own, html)
    html = re.sub(rf'{link}{turn} aria-label="(?!\d\d )', spoken, html)
    for before in (r'sidebar-item-text sidebar-link[^"]*">\s*<span class="menu-text">',
                   turn + r'[^>]*>\s*(?:<i [^>]*></i>\s*)?<span class="nav-page-text">'):
        html = re.sub(rf'{link}{before}(?!<span)', linked, html)
    return html

def opened(html, page=''):
    """`html` with one shelf open in the sidebar where no page of a shelf is: that which `page`
    opens, or else the first, since a newcomer sees the course"""
    classes = 'class="collapse list-unstyled sidebar-section depth1 '
    if f'{classes}show"' in html: return html
    shelf = f"quarto-sidebar-section-{dict(studies=2, library=3).get(page.split('/')[0], 1)}"
    html = re.sub(r'(sidebar-link text-start|sidebar-item-toggle text-start) collapsed'
                  rf'("[^>]*#{shelf}"[^>]*aria-expanded=)"false"', r'\1\2"true"', html)
    return html.replace(f'id="{shelf}" {classes}"', f'id="{shelf}" {classes}show"')

ASKED = {  # the section that answers → what a reader asks for
    'start.html#two-commands': 'install, installation, train on my own text',
    'course/quickstart.html': 'getting started, tutorial',
    'library/ai2.html#load': 'load AI2 weights, AI2 weights, pretrained weights',
    'course/elmo.html#a-folder-that-keeps-it': 'load a model, save a model',
    'course/recurrent.html#gradients-that-shrink-or-grow': 'vanishing gradient, exploding gradient',
    'course/history.html#from-word2vec-to-bert': 'BERT, GPT',
    'studies/attention.html': 'transformer',
    'library/embed.html': 'embed text',
    'library/scale.html': 'GPU',
    'course/surprise.html#surprise-entropy-perplexity': 'perplexity, entropy',
    'course/ngrams.html#what-a-language-model-is': 'n-gram, language model',
    'course/cbow.html#what-the-vectors-know': 'word2vec',
    'course/tokens.html#pieces-of-words-byte-pair-encoding': 'byte pair encoding',
    'course/charcnn.html#one-filter-by-hand': 'convolution',
    'course/charcnn.html#highway-change-a-little-carry-the-rest': 'highway',
    'course/charcnn.html#projection-the-size-that-the-next-part-needs': 'projection',
    'course/recurrent.html#the-lstm-gate-by-gate': 'LSTM, gate',
    'course/batches.html#what-padding-costs': 'padding',
    'course/bilm.html#two-directions': 'biLM',
    'course/elmo.html#a-weighted-sum-by-hand': 'scalar mix',
    'course/classifier.html#step-2-attention': 'attention pooling',
    'course/classifier.html#phase-2-unfreezing': 'fine-tuning',
    'course/probe.html#a-question-that-proves-nothing': 'probe'}

CUT = re.compile(r'<(pre|table|script|style|button|summary)\b.*?</\1>'
                 r'|<span class="math[^"]*">.*?</span>|<img\b[^>]*>', re.S)
CODE = re.compile(r'(?<=>)<pre class="sourceCode.*?</pre>', re.S)
DEFINED = re.compile(
    r'^(?:@patch.*\n(?:@.*\n)*def (?P<method>\w+)\(\s*\w+\s*:\s*(?P<of>\w+)|class (?P<cls>\w+)'
    r'|def (?P<function>\w+)|(?P<constant>[A-Z]\w+) *=)', re.M)

def defined(code):
    "The names that code defines, a method with its class"
    for m in DEFINED.finditer(code):
        yield f"{m['of']}.{m['method']}" if m['method'] else m['cls'] or m['function'] or m[
            'constant']

def prose(html):
    """The text of `html` for the search: no code, tables and formulas, and the names that its code
    defines at the end"""
    names = [o for block in CODE.findall(html) for name in defined(without_tags(block))
             for o in reversed(name.split('.'))]
    text = unescape(re.sub('<[^>]*>', ' ', CUT.sub(' ', html)))
    return ' '.join([*text.split(), *dict.fromkeys(names)])

def searched(item, html):
    "What the search knows about the section, or the opening of the page, that `item` leads to"
    page, anchor = urldefrag(item['href'])
    text = html.get(page, '')
    at = section(text, re.escape(anchor)) if anchor else None
    if at: return f"{item['section']} {prose(text[at[0]:at[1]])}"
    if anchor: return item['text']
    main = text[text.find('</header>', text.find('<main')):]
    return prose(main[:main.find('<section')])

def found(items, numbers, html):
    "The entries of the search: those of pages with the number of the chapter, and what readers ask for"
    def title(o):
        n = numbers.get(o['href'].split('#')[0])
        return o['title'] if not n or o['title'].startswith(n + ' ') else f"{n} {o['title']}"
    items = [o | dict(text=searched(o, html)) for o in items
             if not o['objectID'].startswith('asked ')]
    at = {o['href']: o for o in items}
    asked = [at[href] | dict(objectID=f'asked {q}', section=q) for href,asked in ASKED.items()
             if href in at for q in asked.split(', ')]
    return [o | dict(title=title(o)) for o in items + asked]

WORDS = {                          # of Quarto's script for the search → what stands there instead
    'threshold: 0.1,': 'threshold: 0.1, useExtendedSearch: true,',
    # it would look for the words among what has the phrase
    'const kFuseMaxWait = 125;': 'const kFuseMaxWait = Infinity;',
    'const resultsRaw = await index.search(query, fuseOptions);':
        'const phrase = await index.search(`"${query.replaceAll(\'"\', "")}"`, fuseOptions);\n'
        '  const resultsRaw = phrase.length ? phrase : await index.search(query, fuseOptions);'}

def by_words(docs):
    """Let the search find what has all words of a question in any order, where Quarto's finds
    nothing that has it as it stands"""
    script = docs/'site_libs'/'quarto-search'/'quarto-search.js'
    text = text_of(script)
    if 'useExtendedSearch' in text: return
    for old,new in WORDS.items():
        if old not in text:
            raise SystemExit(f'The search script of this Quarto has no "{old}": adapt WORDS in '
                             'tests/after_render.py')
        text = text.replace(old, new, 1)
    script.write_text(text, encoding='utf-8')

def runnable(html):
    """`html` of a lesson with the places where it runs, under its title, in place of the link to
    Colab in its text"""
    m = re.search(r'href="https://github\.(?:com|dev)/([\w-]+/[\w-]+)/(?:blob|edit)/main/'
                  r'(nbs/course/\w+\.ipynb)"', html)
    if not m or 'class="elmo-run"' in html: return html
    repo, file = m.groups()
    places = {
        'Run in Colab': f'https://colab.research.google.com/github/{repo}/blob/main/{file}',
        'Open a Codespace': f'https://codespaces.new/{repo}',
        'Download the notebook': f'https://github.com/{repo}/raw/main/{file}'}
    links = ''.join(f'<a href="{href}">{name}</a>' for name,href in places.items())
    at = html.find('</header>', html.find('<main')) + len('</header>')
    colab = r'\s*<a href="https://colab\.research\.google\.com/[^"]*">Open in Colab</a>\.?'
    text = re.sub(colab, '', html[at:], count=1)
    return f'{html[:at]}\n<p class="elmo-run">{links}</p>{text}'

def some(names, most, wrap='{}'):
    "The first names, and whether there are more"
    names = [*dict.fromkeys(names)]
    return ', '.join(wrap.format(escape(o)) for o in names[:most]) + ' …'*(len(names) > most)

# lines of exported code that stand open; STYLE of a chapter: a module up to twenty lines
SCREEN = 20
EXPORTED = re.compile(r'<details(?: open="")? class="code-fold">\s*'
                      '<summary>Exported source</summary>(.*?)</details>', re.S)

def unfolded(html):
    """`html` with exported code open where it is short, and else folded under the names that it
    defines"""
    def one(m):
        code = without_tags(m[1]).strip()
        n, what = code.count('\n') + 1, some(defined(code), 3, '<code>{}</code>')
        if n <= SCREEN: return m[1]
        summary = f'Source{" of "*bool(what)}{what}, {n} lines'
        return (f'<details class="code-fold exported">\n<summary>{summary}</summary>{m[1]}'
                '</details>')
    return EXPORTED.sub(one, html)

def section(html, name):
    """Where the content of the section `name` begins, after its heading, and where it ends; None
    without one"""
    m = re.search(rf'<section id="{name}" class="level2">\s*<h2.*?</h2>', html, re.S)
    if not m: return None
    depth = 1
    for o in re.compile('<(/?)section').finditer(html, m.end()):
        depth += -1 if o[1] else 1
        if not depth: return m.end(), o.start()

ANSWER = re.compile(
    r'<p>(?:<strong>)?(\d)(?:</strong>)?[.:)]?(?:</strong>)?(?:\s+(.*?))?</p>', re.S)
# one that is folded in the notebook, where no fold holds all of them; its number before or inside
FOLDED = re.compile(
    r'(?:(?:<p>)?(<strong>\d\.</strong>)(?:</p>)?\s*)?<details>\s*<summary>\s*'
    r'Answer(?:s? to [\d, and]+(?=</summary>\s*<p><strong>\d))?\s*</summary>\s*'
    r'<p>((?:(?!<details).)*?)</details>', re.S)
# several answers in one paragraph, a line each
NEXT = re.compile(r'\n(?=(?:<strong>)?\d(?:</strong>)?[.:)]?(?:</strong>)? )')

def solved(html):
    """`html` with the solutions folded, and the answers as a list that has the numbers of the
    questions"""
    at = section(html, 'solutions')
    if not at or '<details class="solutions">' in html: return html
    a, b = at
    def listed(m):
        return '<ol>\n' + ANSWER.sub(r'<li value="\1"><p>\2</p></li>', m[0]) + '</ol>\n'
    text = FOLDED.sub(lambda m: f'<p>{m[1]} {m[2]}' if m[1] else f'<p>{m[2]}', html[a:b])
    text = ANSWER.sub(lambda m: NEXT.sub('</p>\n<p>', m[0]), text)
    text = re.sub(rf'(?:{ANSWER.pattern}\s*)+', listed, text, flags=re.S)
    summary = '<summary>Show the solutions</summary>'
    return f'{html[:a]}\n<details class="solutions">{summary}\n{text}</details>\n{html[b:]}'

LAST = re.compile(r'<p><strong>Previous</strong>: (?:(?!<p>).)*</p>\s*'
                  r'(?=(?:</section>\s*|</details>\s*)*(?:</main>|<a onclick=))', re.S)

def one_turn(html, page, base):
    """`html` with one way on: Quarto's previous and next inside the course, in place of the line
    that ends each notebook; elsewhere that line alone"""
    nav = re.search(r'<nav class="page-navigation.*?</nav>', html, re.S)
    if not nav: return html
    links = re.findall(r'<a href="([^"]*)" class="pagination-link"', nav[0])
    ends = [page, *(target(o, page, base)[0] for o in links)]
    inside = all(o.startswith(('index.html', 'start.html', 'course/')) for o in ends)
    return LAST.sub('', html) if inside else html.replace(nav[0], '')

NUMBER = re.compile(
    r'[+\-−–]?(?:\d[\d,. \u202f]*(?:[eE][+-]?\d+)?|nan|inf)\s?(?:%|×|s|ms|MB|kB|GB|M|k)?|—|-|')
TABLE = re.compile(r'<table\b.*?</table>', re.S)
ROW = re.compile(r'<tr.*?</tr>', re.S)

def set_as_numbers(html):
    """`html` with the class `num` at the cells of each column of a table that holds numbers and
    nothing else"""
    def table(m):
        rows = ROW.findall(m[0])
        texts = [[without_tags(c).strip() for c in re.findall(r'<t[dh]\b.*?</t[dh]>', r, re.S)]
                 for r in rows]
        head = m[0].split('</thead>')[0].count('<tr') if '</thead>' in m[0] else 0
        body = [t for i,(r,t) in enumerate(zip(rows, texts)) if '<td' in r and i >= head]
        wide = max(map(len, texts), default=0)
        if any(len(t) != wide for t in body): return m[0]
        columns = {i for i,texts in enumerate(zip(*body))
                   if any(texts) and all(map(NUMBER.fullmatch, texts))}
        def row(r):
            place = iter(range(wide))
            def cell(c):
                plain = next(place) not in columns or 'class=' in c[2]
                return c[0] if plain else f'{c[1]} class="num"{c[2]}'
            return re.sub(r'(<t[dh]\b)([^>]*)', cell, r[0])
        return ROW.sub(row, m[0])
    return TABLE.sub(table, html)

def with_heads(html):
    "`html` with tables whose rows and columns have headings, and no heading without text"
    mark = 'data-quarto-table-cell-role="th"'
    row_head = rf'<td\b([^>]*{mark}[^>]*)>((?:(?!</?td).)*\S(?:(?!</?td).)*)</td>'
    html = re.sub(row_head, r'<th scope="row"\1>\2</th>', html, flags=re.S)
    return re.sub(r'<th\b([^>]*)>\s*</th>', r'<td\1></td>', html)

# characters from which a cell is a text, and keeps the width of some words on a phone
ROOMY = 40

def with_room(html):
    "`html` with the class `text` at the cells of tables that hold a sentence"
    def cell(m):
        return f'<td class="text">{m[1]}' if len(without_tags(m[1])) >= ROOMY else m[0]
    return re.sub(r'<td>((?:(?!</td>).)*)', cell, html, flags=re.S)

LONG = 12       # rows of a table that a study shows; what is longer is folded

def folded(html):
    """`html` with each long table that stands open folded under the number of its rows and the
    names of its columns"""
    def one(m):
        before, table = html[:m.start()], m[0]
        rows = ROW.findall(table.split('</thead>')[-1])
        if len(rows) <= LONG or before.count('<details') > before.count('</details'): return table
        heads = table.split('</thead>')[0] if '</thead>' in table else rows[0]
        names = [' '.join(without_tags(o).split())
                 for o in re.findall(r'<t[hd]\b[^>]*>(.*?)</t[hd]>', heads, re.S)]
        said = f'Show the table: {len(rows)} rows, columns {some(filter(None, names), 4)}'
        return f'<details class="long"><summary>{said}</summary>\n{table}</details>'
    return TABLE.sub(one, html)

NAVIGATIONS = {
    'class="navbar[^"]*"': 'Site', 'class="quarto-secondary-nav"': 'Where you are',
    'id="quarto-sidebar"': 'Chapters', 'id="TOC"': 'On this page',
    'class="page-navigation[^"]*"': 'Previous and next'}

def named(html):
    """`html` with names for its navigations, by which a screen reader tells them apart, and without
    roles that nothing has"""
    for mark,name in NAVIGATIONS.items():
        html = re.sub(rf'(<nav {mark})(?! aria-label)', rf'\1 aria-label="{name}"', html)
    html = re.sub(r'(<a [^>]*)role="navigation"', r'\1role="button"', html)       # it opens a shelf
    return re.sub(r'(<button class="navbar-toggler"[^>]*) role="menu"', r'\1', html)

def linked(pages, base):
    """For each page the anchors that links of all `pages` name: nbdev writes one for each name in
    backticks"""
    res = {}
    for page,html in pages.items():
        for link in re.findall(r'href="([^"]*#[\w.]+)"', html):
            to, anchor = target(link, page, base)
            res.setdefault(to, set()).add(anchor)
    return res

def anchored(html, anchors):
    "`html` with each of `anchors` that it lacks at the last code that defines the name"
    where = {name.lower(): block.start() for block in CODE.finditer(html)
             for name in defined(without_tags(block[0]))}
    # a method that no code defines, at its class
    where = {o: where.get(o, where.get(o.split('.')[0])) for o in anchors}
    new = {o: i for o,i in where.items() if i is not None and f'id="{o}"' not in html}
    for o,i in sorted(new.items(), key=lambda o: o[::-1], reverse=True):
        html = f'{html[:i]}<span id="{o}" class="definition"></span>{html[i:]}'
    return html

def unlinked(html, page, ids, base):
    """`html` without links from code to an anchor that `ids` of the pages lack: private names, and
    words that are the name of a method elsewhere"""
    def keep(m):
        to, anchor = target(m[1], page, base)
        return m[0] if not to or anchor in ids.get(to, ()) else m[2]
    return re.sub(r'<a href="([^"]*#[\w.]+)">(<code>[^<]*</code>)</a>', keep, html)

def skippable(html):
    "`html` with a link to the text as the first thing that the keyboard reaches"
    if 'class="skip"' in html: return html
    link = '<a class="skip" href="#quarto-document-content">Skip to the text</a>'
    return re.sub(r'<body[^>]*>', rf'\g<0>{link}', html, count=1)

def described(html):
    "`html` with the caption as description of each picture that has none"
    return re.sub(r'<img (?![^>]*\balt=)([^>]*>(?:</p>)?\s*<figcaption[^>]*>(.*?)</figcaption>)',
                  lambda m: f'<img alt="{escape(without_tags(m[2]))}" {m[1]}', html, flags=re.S)

CAPTION = re.compile(
    r'<figcaption[^>]*>(?:(?!</figcaption>).)*</figcaption>(\s*</figure>\s*</div>\s*)'
    r'<p><em>((?:(?!</?p>).)*)</em></p>', re.S)

def captioned(html):
    """`html` with the line in italics below a drawing as its caption; its description stays with
    the picture"""
    def caption(m):
        # a word in the middle may stand upright
        upright = '</em>' in m[2].split('<em>')[0]
        text = f'<em>{m[2]}</em>' if upright else m[2]
        return f'<figcaption>{text}</figcaption>{m[1]}'
    return CAPTION.sub(caption, html)

def extent(file):
    "Width and height of a picture in pixels; None for a drawing that does not say"
    if file.suffix == '.png': return struct.unpack('>II', file.read_bytes()[16:24])
    svg = re.search(r'<svg\b[^>]*>', text_of(file))
    sides = [re.search(rf'\s{o}="([\d.]+)(pt|px)?"', svg[0]) for o in ('width', 'height')]
    if all(sides): return [round(float(m[1])*(4/3 if m[2] == 'pt' else 1)) for m in sides]
    box = re.search(r'\bviewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg[0])
    return [round(float(o)) for o in box.groups()] if box else None

# pixels from which a drawing is too wide for a phone: its labels would be smaller than 12
PHONE = 560

def sized(html, folder):
    """`html` with the size of each picture of the text, read from its file in `folder`: space is
    kept for it, and it may come late"""
    def size(m):
        file = folder/unquote(m[2])
        if ' width=' in m[0] or 'navbar-logo' in m[0] or not file.is_file(): return m[0]
        if not (found := extent(file)): return m[0]
        w, h = found
        plot, narrow = 'figure-html' in m[2], file.with_name(f'{file.stem}-narrow.svg')
        slim = not plot and narrow.is_file()
        classes, rest = '', m[1]
        # side by side: a phone scrolls them
        if plot and w > 1.8*h: classes = 'wide panels '
        elif not plot and not slim and file.suffix == '.svg' and w > PHONE: classes = 'wide '
        if 'class="' in rest: rest = rest.replace('class="', f'class="{classes}', 1)
        elif classes: rest += f' class="{classes}"'
        img = f'<img width="{w}" height="{h}" loading="lazy"{rest}>'
        if not slim: return img
        w, h = extent(narrow)
        src = m[2].replace(file.name, narrow.name)
        return (f'<picture><source media="(max-width: 40rem)" srcset="{src}" width="{w}" '
                f'height="{h}">{img}</picture>')
    return re.sub(r'<img\b((?=[^>]*\bsrc="(?!https?:|data:)([^"]+\.(?:png|svg))")[^>]*)>', size,
                  html)

def first_at_once(html):
    """`html` with its first picture loaded at once where it stands before the first section: it is
    what a reader sees first"""
    at = html.find('<section', html.find('<main'))
    first = re.sub(r'(<main.*?<img [^>]*?)loading="lazy"', r'\1fetchpriority="high"', html[:at],
                   count=1, flags=re.S)
    return first + html[at:]

def deferred(html):
    "`html` whose own scripts wait until the page is read: they do nothing before"
    return re.sub(r'<script (src="[^"]*site_libs/[^"]*"></script>)', r'<script defer \1', html)

RULE = re.compile(r'([^{}@;]+)\{[^{}]*\}')
MADE = 'bs-', 'aa-', 'tippy', 'quarto-', 'katex'           # classes that scripts put together

def fewer_rules(docs):
    """Leave in Bootstrap's style sheets the rules whose classes a page or a script of `docs` names;
    nine tenths of the others weigh on each page"""
    used = set()
    for f in [*docs.rglob('*.html'), *docs.rglob('*.js')]:
        text = text_of(f)
        if f.suffix == '.html':
            parts = re.findall(r'\bclass="([^"]*)"|(<script\b.*?</script>)', text, re.S)
            text = ' '.join(o for part in parts for o in part)
        used.update(re.findall(r'[A-Za-z_][\w-]*', text))
    def kept(selector):
        classes = re.findall(r'\.([A-Za-z_][\w-]*)', re.sub(r'\([^()]*\)', '', selector))
        return all(o in used or o.startswith(MADE) for o in classes)
    def rule(m):
        selectors = [o for o in re.split(r',(?![^()]*\))', m[1]) if kept(o)]
        return ','.join(selectors) + m[0][len(m[1]):] if selectors else ''
    for f in docs.glob('site_libs/bootstrap/bootstrap-*.min.css'):
        f.write_text(RULE.sub(rule, text_of(f)), encoding='utf-8')

ICON = re.compile(r'\bbi-([a-z0-9-]+)')

def fewer_icons(docs):
    """Leave in the font of icons and in its style sheet those that a page or a script of `docs`
    names; two thousand others weigh as much as a page"""
    from fontTools import subset
    from fontTools.ttLib import TTFont
    # it remarks on two odd bytes of this font
    logging.getLogger('fontTools').setLevel(logging.ERROR)
    css, font = (next(docs.glob(f'site_libs/bootstrap/bootstrap-icons.{e}'), None)
                 for e in ('css', 'woff'))
    if not css or not font: return
    # the one that the search names in two halves
    used = {'file-richtext'}
    for f in [*docs.rglob('*.html'), *docs.rglob('*.js')]: used |= {*ICON.findall(text_of(f))}
    codes = []
    def kept(m):
        if m[1] not in used: return ''
        codes.append(int(m[2], 16))
        return m[0]
    rule = r'^\.bi-([\w-]+)::before \{ content: "\\(\w+)"; \}\n?'
    css.write_text(re.sub(rule, kept, text_of(css), flags=re.M), encoding='utf-8')
    f, cut = TTFont(font), subset.Subsetter()
    cut.populate(unicodes=codes)
    cut.subset(f)
    f.save(font)

def within(html, page, base):
    """`html` with links to pages of the site at `base` made relative, so that a copy of the site
    stays in the copy"""
    return re.sub(rf'(<a\b[^>]*?\shref="){re.escape(base)}(?=[\w/-]+\.html)',
                  rf"\1{'../'*page.count('/')}", html)

def line(word, values):
    "A compared word and a bar for each layer, as the script writes them"
    bars = ''.join(f'<span class="elmo-bar" style="--share: {max(0, v):.2f}"><b>{v:.2f}</b></span>'
                   for v in values)
    return f'<p class="elmo-line"><span class="elmo-name">{escape(word)}</span>{bars}</p>'

def first_view(label):
    """What the explainer shows first for an example, without its script: the same boxes at the same
    places"""
    stored = json.loads(text_of(LIVE/'stored.json'))
    example = next(o for o in stored['examples'] if o['label'] == label)
    said = [o.replace(' ', '') for o in example['sentences']]
    key = next(o for o in stored['answers'] if o.startswith('["map"')
               and [''.join(words) for words in json.loads(o)[1]] == said)
    tokens, cosines = json.loads(key)[1], stored['answers'][key]['cosines']
    places = [(i, j) for i,words in enumerate(tokens) for j in range(len(words))]
    s, t = chosen = tuple(example['chosen'])
    word, rows = tokens[s][t], []
    def values(other):
        a, b = sorted(map(places.index, (chosen, other)))
        return [layer[b*(b-1)//2 + a]/100 for layer in cosines]
    for i,(text,words) in enumerate(zip(example['sentences'], tokens)):
        spans = bars = ''
        for j,w in enumerate(words):
            same = w.lower() == word.lower()
            kind = 'chosen' if (i, j) == chosen else 'same' if same else ''
            spans += f'<span class="elmo-word {kind}">{escape(w)}</span>'
            if kind == 'same': bars += line(w, values((i, j)))
        rows.append(f'<li><div class="elmo-edit"><p class="elmo-input">{escape(text)}</p>'
                    f'<div class="elmo-words">{spans}</div></div>'
                    f'<div class="elmo-bars">{bars}</div></li>')
    def texts(names): return ''.join(f'<span>{escape(o, quote=False)}</span>' for o in names)
    heads = texts([f'“{word}” and', 'layer 0: letters', 'layer 1', 'layer 2'])
    tries = texts([*(o['label'] for o in stored['examples'] if 'panel' not in o),
                   'a word that it gets wrong'])
    return (f'<p class="elmo-heads">{heads}</p><ol class="elmo-sentences">{"".join(rows)}</ol>'
            '<div class="elmo-panel"></div>'
            f'<p class="elmo-examples still" aria-hidden="true">Try: {tries}</p>'
            '<p class="elmo-keep still" aria-hidden="true"></p>')

PICTURE = re.compile(r'(<div class="elmo-live" data-panel="bars" data-example="([^"]+)">).*?</div>'
                     r'(?=\s*(?:<p|<div|<section|<ol|</section))', re.S)

def alive(html):
    """`html` with the first view of the explainer in place of its picture, so that nothing moves
    when the script takes over"""
    if 'class="elmo-heads"' in html: return html
    return PICTURE.sub(lambda m: f'{m[1]}{first_view(m[2])}</div>', html)

# the last two when a page is asked to speak
LOADED = 'config.json', 'model.safetensors', 'output.safetensors', 'vocab.json'

def boxed(live):
    """Copy what the scripts of the folder `live` load: the boxed model's configuration, numbers and
    words"""
    (live/BOX.name).mkdir(parents=True, exist_ok=True)
    for name in LOADED: shutil.copyfile(BOX/name, live/BOX.name/name)

ALL = (alive, skippable, described, captioned, without_unused, named, set_as_numbers, with_heads,
       with_room)
SHELF = dict(studies=folded, course=runnable)

def finished(html, page, docs, numbers, anchors, base):
    "All changes of a page"
    html = opened(html, page)
    for change in (*ALL, SHELF.get(page.split('/')[0], str)): html = change(html)
    html = deferred(first_at_once(sized(html, (docs/page).parent)))
    html = numbered(one_turn(html, page, base), page, numbers, base)
    return within(solved(unfolded(anchored(html, anchors.get(page, set())))), page, base)

def main(docs, whole):
    "Change the site in the folder `docs`; `whole`: not after a single page"
    # of pages that are no notebooks
    for f in docs.rglob('*-gfm.md'): f.replace(f.with_name(f.name.replace('-gfm.md', '.html.md')))
    html = pages(docs)
    canonical = re.search('<link rel="canonical" href="([^"]*)"', html['index.html'])
    base = canonical[1].removesuffix('index.html')
    chapters, anchors = numbers(html), linked(html, base)
    if whole: (docs/'llms.txt').write_text(llms(docs), encoding='utf-8')
    new = {page: finished(o, page, docs, chapters, anchors, base) for page,o in html.items()}
    boxed(docs/'live')
    if whole: fewer_icons(docs)
    by_words(docs)
    search = docs/'search.json'
    items = found(json.loads(text_of(search)), chapters, html)
    search.write_text(json.dumps(items, ensure_ascii=False), encoding='utf-8')
    ids = {page: {*re.findall(r'\bid="([^"]+)"', o)} for page,o in new.items()}
    for page,o in new.items():
        if (o := unlinked(o, page, ids, base)) != html[page]:
            (docs/page).write_text(o, encoding='utf-8')
    if whole: fewer_rules(docs)

if __name__ == '__main__':
    main(Path(os.environ['QUARTO_PROJECT_OUTPUT_DIR']), os.environ.get('QUARTO_PROJECT_RENDER_ALL'))
