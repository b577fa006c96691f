"""Quarto calls this after it has built the site, for what neither it nor nbdev does here:

- llms.txt, an index of the pages in the order of the sidebar;
- the numbers of the course in the sidebar, titles, breadcrumbs, previous and next, and in what the
search shows;
- one shelf open in the sidebar: that of the page or that which it opens, or else the course; previous and next inside the
course only;
- exported code: what fits on a screen stands open, what is longer is folded under the names that it
defines;
- solutions folded like the hints, as a list; columns of numbers set as numbers;
- names for the navigations;
- an anchor at each definition that is linked to (nbdev sets anchors only where it shows a signature
in place of the code), and no link to what no page defines;
- a link past the navigation, first on each page;
- the caption as description of a picture that has no other, and one caption below a drawing, not
two;
- links between the pages that name the published address made relative, so that a copy of the site
stays in the copy;
- no scripts, icons and style rules that no page uses, and scripts that wait for the page;
- pictures with their size, so that the page does not jump when they come, and only when they are
near; a drawing's narrow version on a phone, or a box in which the wide one scrolls;
- no empty headings in tables, no break inside a name in a table, and the long tables of a study
folded;
- an index of the search that holds prose and names, without code, tables and formulas;
- Colab, Codespace and download under the title of each lesson;
- the first view of the explainer in place of its picture, at the places that its script keeps;
- the model in the box beside the scripts that run it in a page."""

import json, logging, os, re, shutil, struct
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

class Page(HTMLParser):
    """What llms.txt needs from a built page: its title, its description, its address, and the
    sidebar's sections with their links"""

    def __init__(self, html):
        super().__init__()
        self.title,self.description,self.url,self.sections = '', '', '', [['', []]]
        self.level,self.text,self.href = 0, None, None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == 'meta' and a.get('name') == 'description': self.description = a['content']
        if tag == 'link' and a.get('rel') == 'canonical': self.url = a['href']
        if tag == 'title' and not self.title: self.text = ''
        if tag == 'nav' and (self.level or a.get('id') == 'quarto-sidebar'): self.level += 1
        classes = a.get('class', '').split()
        if self.level and 'menu-text' in classes: self.text = ''
        if self.level and tag == 'a' and 'sidebar-link' in classes: self.href = a.get('href')

    def handle_data(self, data):
        if self.text is not None: self.text += data

    def handle_endtag(self, tag):
        if tag == 'nav' and self.level: self.level -= 1
        if self.text is None or tag not in ('title', 'span'): return
        text,self.text = re.sub(r'\s+', ' ', self.text).strip(), None
        if tag == 'title': self.title = text
        elif self.href: self.sections[-1][1].append((text, self.href)); self.href = None
        else: self.sections.append([text, []])

def llms(docs):
    """The text of llms.txt for the site in the folder `docs`; links lead to the markdown that is
    built beside each page"""
    index = Page(
        re.sub(
            '<span class="chapter-number">.*?</span> ',
            '',
            (docs / 'index.html').read_text(encoding='utf-8'),
        )
    )
    lines = [
        f"# {index.title.split(' – ')[-1]}",
        '',
        f'> {index.description}',
        '',
        'Each page below is markdown: prose, code and saved outputs.',
    ]
    for name,links in index.sections:
        if links: lines += ['', f"## {name or 'Start'}", '']
        for text,href in links:
            p = Page((docs/href).read_text(encoding='utf-8').split('</head>')[0])
            url = p.url + 'index.html' if p.url.endswith('/') else p.url
            lines.append(f'- [{text}]({url}.md): {p.description}')
    return '\n'.join(lines) + '\n'

UNUSED = re.compile(
    r'<script src="https://cdnjs\.cloudflare\.com/ajax/libs/(?:require\.js|jquery)/.*?</script>\n?|<script type="application/javascript">define\(\'jquery\'.*?</script>\n?'
)


def without_unused(html):
    """`html` without require.js and jQuery: Quarto loads them from another host for every notebook
    with an HTML table, in case it held a widget"""
    return html if 'application/vnd.jupyter.widget' in html else re.sub(UNUSED, '', html)

def pages(docs):
    "The text of each page, by its place on the site"
    return {
        f.relative_to(docs).as_posix(): f.read_text(encoding='utf-8')
        for f in sorted(docs.rglob('*.html'))
        if 'site_libs' not in f.parts
    }


def target(link, page, base):
    """The page of the site at `base` and the anchor on it that `link` of `page` leads to; no page
    where it leads away"""
    url,anchor = urldefrag(urljoin(base + page, link))
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

    def linked(m): return m[0] + span(target(m[1], page, base)[0])

    if page in numbers:
        html = re.sub(rf'<title>(?!{numbers[page]} )', f'<title>{numbers[page]} ', html, count=1)
    for before in (
        r'<h1 class="title[^"]*">(?!<span)',
        r'<li class="breadcrumb-item"><a href="[^"]*">(?=[^<]*</a></li></ol>)',
    ):
        html = re.sub(before, lambda m: m[0] + span(page), html)

    def spoken(m):
        number = numbers.get(target(m[1], page, base)[0])
        return f'{m[0]}{number} ' if number else m[0]
    html = re.sub(r'<a href="([^"]*)" class="pagination-link" aria-label="(?!\d\d )', spoken, html)
    for before in (
        r'<a href="([^"]*)" class="sidebar-item-text sidebar-link[^"]*">\s*<span class="menu-text">(?!<span)',
        r'<a href="([^"]*)" class="pagination-link"[^>]*>\s*(?:<i [^>]*></i>\s*)?<span class="nav-page-text">(?!<span)',
    ):
        html = re.sub(before, linked, html)
    return html

def opened(html, page=''):
    """`html` with one shelf open in the sidebar where no page of a shelf is: that which `page` opens,
    or else the first, since a newcomer sees the course"""
    if '"collapse list-unstyled sidebar-section depth1 show"' in html: return html
    shelf = f"quarto-sidebar-section-{dict(studies=2, library=3).get(page.split('/')[0], 1)}"
    html = re.sub(
        rf'(sidebar-link text-start|sidebar-item-toggle text-start) collapsed("[^>]*#{shelf}"[^>]*aria-expanded=)"false"',
        r'\1\2"true"',
        html,
    )
    return html.replace(
        f'id="{shelf}" class="collapse list-unstyled sidebar-section depth1 "',
        f'id="{shelf}" class="collapse list-unstyled sidebar-section depth1 show"',
    )


ASKED = {  # what a reader asks for → the section that answers
    'install': 'start.html#two-commands',
    'installation': 'start.html#two-commands',
    'getting started': 'course/quickstart.html',
    'tutorial': 'course/quickstart.html',
    'load AI2 weights': 'library/ai2.html#load',
    'AI2 weights': 'library/ai2.html#load',
    'pretrained weights': 'library/ai2.html#load',
    'load a model': 'library/elmo.html#a-folder-that-keeps-it',
    'save a model': 'library/elmo.html#a-folder-that-keeps-it',
    'vanishing gradient': 'course/memory.html#gradients-that-shrink-or-grow',
    'exploding gradient': 'course/memory.html#gradients-that-shrink-or-grow',
    'BERT': 'course/history.html#from-word2vec-to-bert',
    'GPT': 'course/history.html#from-word2vec-to-bert',
    'transformer': 'studies/attention.html',
    'train on my own text': 'start.html#two-commands',
    'embed text': 'library/embedding.html',
    'GPU': 'library/scale.html',
    'perplexity': 'course/text.html#surprise-entropy-perplexity',
    'entropy': 'course/text.html#surprise-entropy-perplexity',
    'n-gram': 'course/counting.html#what-a-language-model-is',
    'language model': 'course/counting.html#what-a-language-model-is',
    'word2vec': 'course/neighbours.html#learn-vectors-instead',
    'byte pair encoding': 'course/tokens.html#pieces-of-words-byte-pair-encoding',
    'convolution': 'course/characters.html#one-filter-by-hand',
    'highway': 'course/characters.html#highway-change-a-little-carry-the-rest',
    'projection': 'course/characters.html#projection-the-size-that-the-next-part-needs',
    'LSTM': 'course/memory.html#the-lstm-gate-by-gate',
    'gate': 'course/memory.html#the-lstm-gate-by-gate',
    'padding': 'course/batches.html#what-padding-costs',
    'biLM': 'course/bilm.html#two-directions',
    'scalar mix': 'course/elmo.html#a-weighted-sum-by-hand',
    'attention pooling': 'course/classifying.html#step-2-attention',
    'fine-tuning': 'course/classifying.html#phase-2-unfreezing',
    'probe': 'course/layers.html#a-question-that-proves-nothing',
}


def symbols(html, page):
    """An entry of the search for each name on a page of the reference. With its module it is longer
    than a term of the same name, and stands behind the lesson that explains the term"""
    module = Path(page).stem
    for anchor, name, said in re.findall(
        r'<section id="([^"]+)" class="level[34]">\s*<h[34][^>]*>(.*?)</h[34]>\s*(?:<p>(.*?)</p>)?',
        html,
        re.S,
    ):
        name, said = (
            unescape(re.sub('<.*?>', '', o)) for o in (name, said.removesuffix('source</a>'))
        )
        yield dict(
            objectID=f'{page}#{anchor}',
            href=f'{page}#{anchor}',
            title=f'{name} in {module}',
            section='Reference',
            text=said.strip(),
        )


CUT = re.compile(
    r'<(pre|table|script|style|button|summary)\b.*?</\1>|<span class="math[^"]*">.*?</span>|<img\b[^>]*>',
    re.S,
)


def prose(html):
    """The text of `html` for the search: no code, tables and formulas, and the names that its code
    defines at the end"""
    names = [
        o
        for block in CODE.finditer(html)
        for m in DEFINED.finditer(unescape(re.sub('<.*?>', '', block[0])))
        for o in m.groups()
        if o
    ]
    return ' '.join(
        [*unescape(re.sub('<[^>]*>', ' ', CUT.sub(' ', html))).split(), *dict.fromkeys(names)]
    )


def searched(item, html):
    "What the search knows about the section, or the opening of the page, that `item` leads to"
    page,anchor = urldefrag(item['href'])
    text = html.get(page, '')
    at = section(text, re.escape(anchor)) if anchor else None
    if at: return f"{item['section']} {prose(text[at[0]:at[1]])}"
    if anchor: return item['text']
    main = text[text.find('</header>', text.find('<main')):]
    return prose(main[:main.find('<section')])

def found(items, numbers, html):
    """The entries of the search: those of pages with the number of the chapter, one for each name
    of the library, and what readers ask for"""

    def title(o):
        n = numbers.get(o['href'].split('#')[0])
        return o['title'] if not n or o['title'].startswith(n + ' ') else f"{n} {o['title']}"

    items = [
        o
        for o in items
        if not o['href'].startswith('reference/') and not o['objectID'].startswith('asked ')
    ]
    items = [o | dict(text=searched(o, html)) for o in items]
    at = {o['href']: o for o in items}
    asked = [
        at[href] | dict(objectID=f'asked {q}', section=q) for q, href in ASKED.items() if href in at
    ]
    names = [
        o
        for page, text in html.items()
        if page.startswith('reference/')
        for o in symbols(text, page)
    ]
    return [o | {'title': title(o)} for o in items + asked] + names

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
    text = script.read_text(encoding='utf-8')
    if 'useExtendedSearch' in text: return
    for old,new in WORDS.items():
        if old not in text:
            raise SystemExit(
                f'The search script of this Quarto has no "{old}": adapt WORDS in tests/after_render.py'
            )
        text = text.replace(old, new, 1)
    script.write_text(text, encoding='utf-8')

def runnable(html):
    """`html` of a lesson with the places where it runs, under its title, in place of the link to
    Colab in its text"""
    m = re.search(
        r'href="https://github\.(?:com|dev)/([\w-]+/[\w-]+)/(?:blob|edit)/main/(nbs/course/\w+\.ipynb)"',
        html,
    )
    if not m or 'class="elmo-run"' in html: return html
    repo, file = m.groups()
    places = {
        'Run in Colab': f'https://colab.research.google.com/github/{repo}/blob/main/{file}',
        'Open a Codespace': f'https://codespaces.new/{repo}',
        'Download the notebook': f'https://github.com/{repo}/raw/main/{file}',
    }
    links = ''.join(f'<a href="{href}">{name}</a>' for name,href in places.items())
    at = html.find('</header>', html.find('<main')) + len('</header>')
    text = re.sub(
        r'\s*<a href="https://colab\.research\.google\.com/[^"]*">Open in Colab</a>\.?',
        '',
        html[at:],
        count=1,
    )
    return f'{html[:at]}\n<p class="elmo-run">{links}</p>{text}'

# lines of exported code that stand open; STYLE of a chapter: a module up to twenty lines
SCREEN = 20

def unfolded(html):
    """`html` with exported code open where it is short, and else folded under the names that it
    defines"""

    def one(m):
        lines = unescape(re.sub('<.*?>', '', m['code'])).strip().split('\n')
        if len(lines) <= SCREEN: return m['code']
        names = dict.fromkeys(
            f"{o['of']}.{o['method']}"
            if o['method']
            else o['cls'] or o['function'] or o['constant']
            for o in DEFINED.finditer('\n'.join(lines))
        )
        what = ', '.join(f'<code>{escape(o)}</code>' for o in [*names][:3]) + (
            ' …' if len(names) > 3 else ''
        )
        return f'<details class="code-fold exported">\n<summary>Source{" of " if what else ""}{what}, {len(lines)} lines</summary>{m["code"]}</details>'

    return re.sub(
        r'<details(?: open="")? class="code-fold">\s*<summary>Exported source</summary>(?P<code>.*?)</details>',
        one,
        html,
        flags=re.S,
    )


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
    r'<p>(?:<strong>)?(\d)(?:</strong>)?[.:)]?(?:</strong>)?(?:\s+(.*?))?</p>', re.S
)
# one that is folded in the notebook, where no fold holds all of them; its number before or inside
FOLDED = re.compile(
    r'(?:(?:<p>)?(<strong>\d\.</strong>)(?:</p>)?\s*)?<details>\s*<summary>\s*'
    r'Answer(?:s? to [\d, and]+(?=</summary>\s*<p><strong>\d))?\s*</summary>\s*'
    r'<p>((?:(?!<details).)*?)</details>',
    re.S,
)
# several answers in one paragraph, a line each
NEXT = re.compile(r'\n(?=(?:<strong>)?\d(?:</strong>)?[.:)]?(?:</strong>)? )')

def solved(html):
    """`html` with the solutions folded, and the answers as a list that has the numbers of the
    questions"""
    at = section(html, 'solutions')
    if not at or '<details class="solutions">' in html: return html
    a,b = at
    text = FOLDED.sub(lambda m: f'<p>{m[1]} {m[2]}' if m[1] else f'<p>{m[2]}', html[a:b])
    text = re.sub(ANSWER, lambda m: NEXT.sub('</p>\n<p>', m[0]), text)
    text = re.sub(
        rf'(?:{ANSWER.pattern}\s*)+',
        lambda m: '<ol>\n' + ANSWER.sub(r'<li value="\1"><p>\2</p></li>', m[0]) + '</ol>\n',
        text,
        flags=re.S,
    )
    return f'{html[:a]}\n<details class="solutions"><summary>Show the solutions</summary>\n{text}</details>\n{html[b:]}'


LAST = re.compile(
    r'<p><strong>Previous</strong>: (?:(?!<p>).)*</p>\s*(?=(?:</section>\s*|</details>\s*)*(?:</main>|<a onclick=))',
    re.S,
)


def one_turn(html, page, base):
    """`html` with one way on: Quarto's previous and next inside the course, in place of the line
    that ends each notebook; elsewhere that line alone"""
    nav = re.search(r'<nav class="page-navigation.*?</nav>', html, re.S)
    if not nav: return html
    ends = [
        target(o, page, base)[0]
        for o in re.findall(r'<a href="([^"]*)" class="pagination-link"', nav[0])
    ]
    if all(o.startswith(('index.html', 'start.html', 'course/')) for o in [page, *ends]):
        return LAST.sub('', html)
    return html.replace(nav[0], '')

NUMBER = re.compile(
    r'[+\-−–]?(?:\d[\d,. \u202f]*(?:[eE][+-]?\d+)?|nan|inf)\s?(?:%|×|s|ms|MB|kB|GB|M|k)?|—|-|'
)


def set_as_numbers(html):
    """`html` with the class `num` at the cells of each column of a table that holds numbers and
    nothing else"""

    def table(m):
        rows = re.findall(r'<tr.*?</tr>', m[0], re.S)
        texts = [
            [
                unescape(re.sub('<.*?>', '', c)).strip()
                for c in re.findall(r'<t[dh]\b.*?</t[dh]>', r, re.S)
            ]
            for r in rows
        ]
        head = len(re.findall('<tr', m[0].split('</thead>')[0])) if '</thead>' in m[0] else 0
        body = [t for i,(r,t) in enumerate(zip(rows, texts)) if '<td' in r and i >= head]
        wide = max(map(len, texts), default=0)
        if any(len(t) != wide for t in body): return m[0]
        cols = {
            i
            for i in range(wide)
            if any(t[i] for t in body) and all(NUMBER.fullmatch(t[i]) for t in body)
        }

        def row(r):
            i = -1
            def cell(c):
                nonlocal i
                i += 1
                return f'{c[1]} class="num"{c[2]}' if i in cols and 'class=' not in c[2] else c[0]
            return re.sub(r'(<t[dh]\b)([^>]*)', cell, r[0])
        return re.sub(r'<tr.*?</tr>', row, m[0], flags=re.S)
    return re.sub(r'<table\b.*?</table>', table, html, flags=re.S)

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
        return (
            '<td class="text">' + m[1]
            if len(unescape(re.sub('<.*?>', '', m[1]))) >= ROOMY
            else m[0]
        )

    return re.sub(r'<td>((?:(?!</td>).)*)', cell, html, flags=re.S)

LONG = 12       # rows of a table that a study shows; what is longer is folded

def folded(html):
    """`html` with each long table that stands open folded under the number of its rows and the
    names of its columns"""

    def one(m):
        before, table = html[:m.start()], m[0]
        rows = re.findall(r'<tr.*?</tr>', table.split('</thead>')[-1], re.S)
        if len(rows) <= LONG or before.count('<details') > before.count('</details'): return table
        heads = table.split('</thead>')[0] if '</thead>' in table else rows[0]
        names = [
            ' '.join(unescape(re.sub('<.*?>', '', o)).split())
            for o in re.findall(r'<t[hd]\b[^>]*>(.*?)</t[hd]>', heads, re.S)
        ]
        names = [*dict.fromkeys(filter(None, names))]
        what = ', '.join(names[:4]) + (' …' if len(names) > 4 else '')
        return f'<details class="long"><summary>Show the table: {len(rows)} rows, columns {escape(what)}</summary>\n{table}</details>'

    return re.sub(r'<table\b.*?</table>', one, html, flags=re.S)

def breakable(html):
    """`html` of the reference with the places where a long name in a heading or in the contents may
    break, and without the backslash of a bar in a table"""

    def name(m): return m[1] + re.sub(r'(?<=[a-z0-9])(?=[._][A-Za-z_])', '<wbr>', m[2]) + m[3]
    html = re.sub(r'(<h[34][^>]*>)([\w.]+)(</h[34]>)', name, html)
    html = re.sub(r'(<a href="#[^"]*"[^>]* data-scroll-target="[^"]*">)([\w.]+)(</a>)', name, html)
    return re.sub(r'<code>[^<]*</code>', lambda m: m[0].replace('\\|', '|'), html)

def named(html):
    """`html` with names for its navigations, by which a screen reader tells them apart, and without
    roles that nothing has"""
    for find, name in [
        ('<nav class="navbar[^"]*"', 'Site'),
        ('<nav class="quarto-secondary-nav"', 'Where you are'),
        ('<nav id="quarto-sidebar"', 'Chapters'),
        ('<nav id="TOC"', 'On this page'),
        ('<nav class="page-navigation[^"]*"', 'Previous and next'),
    ]:
        html = re.sub(rf'({find})(?! aria-label)', rf'\1 aria-label="{name}"', html)
    html = re.sub(r'(<a [^>]*)role="navigation"', r'\1role="button"', html)       # it opens a shelf
    return re.sub(r'(<button class="navbar-toggler"[^>]*) role="menu"', r'\1', html)

def linked(pages, base):
    """For each page the anchors that links of all `pages` name: nbdev writes one for each name in
    backticks"""
    res = {}
    for page,html in pages.items():
        for link in re.findall(r'href="([^"]*#[\w.]+)"', html):
            to,anchor = target(link, page, base)
            res.setdefault(to, set()).add(anchor)
    return res

CODE = re.compile(r'(?<=>)<pre class="sourceCode.*?</pre>', re.S)
DEFINED = re.compile(
    r'^(?:@patch.*\n(?:@.*\n)*def (?P<method>\w+)\(\s*\w+\s*:\s*(?P<of>\w+)|class (?P<cls>\w+)|def (?P<function>\w+)|(?P<constant>[A-Z]\w+) *=)',
    re.M,
)


def anchored(html, anchors):
    "`html` with each of `anchors` that it lacks at the last code that defines the name"
    where = {}
    for block in CODE.finditer(html):
        for m in DEFINED.finditer(unescape(re.sub('<.*?>', '', block[0]))):
            name = (
                f"{m['of']}.{m['method']}"
                if m['method']
                else m['cls'] or m['function'] or m['constant']
            )
            where[name.lower()] = block.start()
    # a method, at its class
    where |= {
        o: where[o.split('.')[0]] for o in anchors if o not in where and o.split('.')[0] in where
    }
    at = sorted(
        ((where[o], o) for o in anchors if o in where and f'id="{o}"' not in html), reverse=True
    )
    for i,o in at: html = f'{html[:i]}<span id="{o}" class="definition"></span>{html[i:]}'
    return html

def unlinked(html, page, ids, base):
    """`html` without links from code to an anchor that `ids` of the pages lack: private names, and
    words that are the name of a method elsewhere"""

    def keep(m):
        to,anchor = target(m[1], page, base)
        return m[0] if not to or anchor in ids.get(to, ()) else m[2]
    return re.sub(r'<a href="([^"]*#[\w.]+)">(<code>[^<]*</code>)</a>', keep, html)

def skippable(html):
    "`html` with a link to the text as the first thing that the keyboard reaches"
    return (
        html
        if 'class="skip"' in html
        else re.sub(
            r'<body[^>]*>',
            lambda m: m[0] + '<a class="skip" href="#quarto-document-content">Skip to the text</a>',
            html,
            count=1,
        )
    )


def described(html):
    "`html` with the caption as description of each picture that has none"
    return re.sub(
        r'<img (?![^>]*\balt=)([^>]*>(?:</p>)?\s*<figcaption[^>]*>(.*?)</figcaption>)',
        lambda m: f'<img alt="{escape(unescape(re.sub("<.*?>", "", m[2])))}" {m[1]}',
        html,
        flags=re.S,
    )


CAPTION = re.compile(
    r'<figcaption[^>]*>(?:(?!</figcaption>).)*</figcaption>(\s*</figure>\s*</div>\s*)<p><em>((?:(?!</?p>).)*)</em></p>',
    re.S,
)


def captioned(html):
    """`html` with the line in italics below a drawing as its caption; its description stays with
    the picture"""

    def caption(m):
        text = m[2]
        # a word in the middle stands upright
        if '</em>' in text.split('<em>')[0]: text = f'<em>{text}</em>'
        return f'<figcaption>{text}</figcaption>{m[1]}'
    return CAPTION.sub(caption, html)

def extent(file):
    "Width and height of a picture in pixels; None for a drawing that does not say"
    if file.suffix == '.png': return struct.unpack('>II', file.read_bytes()[16:24])
    svg = re.search(r'<svg\b[^>]*>', file.read_text(encoding='utf-8'))
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
        found = (
            extent(file)
            if ' width=' not in m[0] and 'navbar-logo' not in m[0] and file.is_file()
            else None
        )
        if not found: return m[0]
        w,h = found
        plot = 'figure-html' in m[2]
        # side by side: a phone scrolls them
        panels = plot and w > 1.8*h
        narrow = file.with_name(f'{file.stem}-narrow.svg')
        slim = not plot and narrow.is_file()
        classes = (
            'wide panels '
            if panels
            else 'wide '
            if not plot and not slim and file.suffix == '.svg' and w > PHONE
            else ''
        )
        rest = (
            m[1].replace('class="', f'class="{classes}', 1)
            if 'class="' in m[1]
            else m[1] + f' class="{classes}"' * bool(classes)
        )
        img = f'<img width="{w}" height="{h}" loading="lazy"{rest}>'
        if not slim: return img
        w,h = extent(narrow)
        src = m[2].replace(file.name, narrow.name)
        return f'<picture><source media="(max-width: 40rem)" srcset="{src}" width="{w}" height="{h}">{img}</picture>'

    return re.sub(
        r'<img\b((?=[^>]*\bsrc="(?!https?:|data:)([^"]+\.(?:png|svg))")[^>]*)>', size, html
    )


def first_at_once(html):
    """`html` with its first picture loaded at once where it stands before the first section: it is
    what a reader sees first"""
    at = html.find('<section', html.find('<main'))
    return (
        re.sub(
            r'(<main.*?<img [^>]*?)loading="lazy"',
            r'\1fetchpriority="high"',
            html[:at],
            count=1,
            flags=re.S,
        )
        + html[at:]
    )


def deferred(html):
    "`html` whose own scripts wait until the page is read: they do nothing before"
    return re.sub(
        r'<script src="([^"]*site_libs/[^"]*)"></script>', r'<script defer src="\1"></script>', html
    )


RULE = re.compile(r'([^{}@;]+)\{[^{}]*\}')
MADE = 'bs-', 'aa-', 'tippy', 'quarto-', 'katex'           # classes that scripts put together

def fewer_rules(docs):
    """Leave in Bootstrap's style sheets the rules whose classes a page or a script of `docs` names;
    nine tenths of the others weigh on each page"""
    used = set()
    for f in [*docs.rglob('*.html'), *docs.rglob('*.js')]:
        text = f.read_text(encoding='utf-8')
        if f.suffix == '.html':
            text = ' '.join(
                [
                    *re.findall(r'\bclass="([^"]*)"', text),
                    *re.findall(r'<script\b.*?</script>', text, re.S),
                ]
            )
        used.update(re.findall(r'[A-Za-z_][\w-]*', text))
    def kept(selector):
        classes = re.findall(r'\.([A-Za-z_][\w-]*)', re.sub(r'\([^()]*\)', '', selector))
        return all(o in used or o.startswith(MADE) for o in classes)
    def rule(m):
        selectors = [o for o in re.split(r',(?![^()]*\))', m[1]) if kept(o)]
        return ','.join(selectors) + m[0][len(m[1]):] if selectors else ''

    for f in docs.glob('site_libs/bootstrap/bootstrap-*.min.css'):
        f.write_text(RULE.sub(rule, f.read_text(encoding='utf-8')), encoding='utf-8')


ICON = re.compile(r'\bbi-([a-z0-9-]+)')

def fewer_icons(docs):
    """Leave in the font of icons and in its style sheet those that a page or a script of `docs`
    names; two thousand others weigh as much as a page"""
    from fontTools import subset
    from fontTools.ttLib import TTFont
    # it remarks on two odd bytes of this font
    logging.getLogger('fontTools').setLevel(logging.ERROR)
    css, font = (
        next(docs.glob(f'site_libs/bootstrap/bootstrap-icons.{e}'), None) for e in ('css', 'woff')
    )
    if not css or not font: return
    # the one that the search names in two halves
    used = {'file-richtext'}
    used |= {
        o
        for f in [*docs.rglob('*.html'), *docs.rglob('*.js')]
        for o in ICON.findall(f.read_text(encoding='utf-8'))
    }
    rules = re.findall(
        r'^\.bi-([\w-]+)::before \{ content: "\\(\w+)"; \}\n?',
        css.read_text(encoding='utf-8'),
        re.M,
    )
    text = re.sub(
        r'^\.bi-([\w-]+)::before \{[^}]*\}\n?',
        lambda m: m[0] if m[1] in used else '',
        css.read_text(encoding='utf-8'),
        flags=re.M,
    )
    css.write_text(text, encoding='utf-8')
    f,cut = TTFont(font), subset.Subsetter()
    cut.populate(unicodes=[int(code, 16) for name,code in rules if name in used])
    cut.subset(f)
    f.save(font)

def within(html, page, base):
    "`html` with links to pages of the site at `base` made relative"
    return re.sub(
        rf'(<a\b[^>]*?\shref="){re.escape(base)}(?=[\w/-]+\.html)',
        rf"\1{'../' * page.count('/')}",
        html,
    )


LIVE = Path(__file__).resolve().parent.parent/'nbs'/'live'
COLUMNS = 'layer 0: letters', 'layer 1', 'layer 2'

def line(word, values):
    "A compared word and a bar for each layer, as the script writes them"
    bars = ''.join(
        f'<span class="elmo-bar" style="--share: {max(0, v):.2f}"><b>{v:.2f}</b></span>'
        for v in values
    )
    return f'<p class="elmo-line"><span class="elmo-name">{escape(word)}</span>{bars}</p>'

def first_view(label):
    """What the explainer shows first for an example, without its script: the same boxes at the same
    places"""
    stored = json.loads((LIVE/'stored.json').read_text(encoding='utf-8'))
    example = next(o for o in stored['examples'] if o['label'] == label)
    said = [o.replace(' ', '') for o in example['sentences']]
    key = next(
        o
        for o in stored['answers']
        if o.startswith('["map"') and [''.join(words) for words in json.loads(o)[1]] == said
    )
    s, t = example['chosen']
    tokens, cosines = json.loads(key)[1], stored['answers'][key]['cosines']
    places = [(i, j) for i,words in enumerate(tokens) for j in range(len(words))]
    def values(a, b):
        a,b = sorted((places.index(a), places.index(b)))
        return [layer[b*(b-1)//2 + a]/100 for layer in cosines]
    word, rows = tokens[s][t], []
    for i,(text,words) in enumerate(zip(example['sentences'], tokens)):
        same = [j for j,w in enumerate(words) if w.lower() == word.lower()]
        kinds = [
            'chosen' if (i, j) == (s, t) else 'same' if j in same else '' for j in range(len(words))
        ]
        spans = ''.join(
            f'<span class="elmo-word {k}">{escape(w)}</span>' for w, k in zip(words, kinds)
        )
        lines = ''.join(line(words[j], values((s, t), (i, j))) for j in same if (i, j) != (s, t))
        rows.append(
            f'<li><div class="elmo-edit"><p class="elmo-input">{escape(text)}</p><div class="elmo-words">{spans}</div></div><div class="elmo-bars">{lines}</div></li>'
        )
    heads = ''.join(f'<span>{o}</span>' for o in (f'“{escape(word)}” and', *COLUMNS))
    tries = (
        ''.join(
            f'<span>{escape(o["label"])}</span>' for o in stored['examples'] if 'panel' not in o
        )
        + '<span>a word that it gets wrong</span>'
    )
    return (
        f'<p class="elmo-heads">{heads}</p><ol class="elmo-sentences">{"".join(rows)}</ol><div class="elmo-panel"></div>'
        f'<p class="elmo-examples still" aria-hidden="true">Try: {tries}</p><p class="elmo-keep still" aria-hidden="true"></p>'
    )


def alive(html):
    """`html` with the first view of the explainer in place of its picture, so that nothing moves
    when the script takes over"""
    return (
        re.sub(
            r'(<div class="elmo-live" data-panel="bars" data-example="([^"]+)">).*?</div>(?=\s*(?:<p|<div|<section|<ol|</section))',
            lambda m: f'{m[1]}{first_view(m[2])}</div>',
            html,
            flags=re.S,
        )
        if 'class="elmo-heads"' not in html
        else html
    )


BOX = Path(__file__).resolve().parent.parent/'elmo_fastai'/'box'/'mini-en'

# the last two when a page is asked to speak
LOADED = 'config.json', 'model.safetensors', 'output.safetensors', 'vocab.json'

def boxed(live):
    """Copy what the scripts of the folder `live` load: the boxed model's configuration, numbers and
    words"""
    (live/BOX.name).mkdir(parents=True, exist_ok=True)
    for name in LOADED: shutil.copyfile(BOX/name, live/BOX.name/name)

if __name__ == '__main__':
    # not after a single page
    docs, whole = (
        Path(os.environ['QUARTO_PROJECT_OUTPUT_DIR']),
        os.environ.get('QUARTO_PROJECT_RENDER_ALL'),
    )
    # of pages that are no notebooks
    for f in docs.rglob('*-gfm.md'): f.replace(f.with_name(f.name.replace('-gfm.md', '.html.md')))
    html = pages(docs)
    base = Page(html['index.html']).url.removesuffix('index.html')
    chapters,anchors = numbers(html),linked(html, base)
    if whole: (docs/'llms.txt').write_text(llms(docs), encoding='utf-8')
    def finished(page, o):
        o = opened(o, page)
        for change in (
            alive,
            skippable,
            described,
            captioned,
            without_unused,
            named,
            set_as_numbers,
            with_heads,
            with_room,
        ):
            o = change(o)
        if page.startswith('studies/'): o = folded(o)
        if page.startswith('course/'): o = runnable(o)
        if page.startswith('reference/'): o = breakable(o)
        o = deferred(first_at_once(sized(o, (docs/page).parent)))
        o = numbered(one_turn(o, page, base), page, chapters, base)
        return within(solved(unfolded(anchored(o, anchors.get(page, set())))), page, base)
    new = {page: finished(page, o) for page,o in html.items()}
    boxed(docs/'live')
    if whole: fewer_icons(docs)
    by_words(docs)
    search = docs/'search.json'
    search.write_text(
        json.dumps(
            found(json.loads(search.read_text(encoding='utf-8')), chapters, html),
            ensure_ascii=False,
        ),
        encoding='utf-8',
    )
    ids = {page: set(re.findall(r'\bid="([^"]+)"', o)) for page,o in new.items()}
    for page,o in new.items():
        if (o := unlinked(o, page, ids, base)) != html[page]:
            (docs / page).write_text(o, encoding='utf-8')
    if whole: fewer_rules(docs)
