"""Quarto calls this after it has built the site, for what neither it nor nbdev does here:

- llms.txt, an index of the pages in the order of the sidebar;
- the chapters' numbers in the sidebar;
- an anchor at each definition that is linked to (nbdev sets anchors only where it shows a signature in place of the code), and no link to what no page defines;
- a link past the navigation, first on each page;
- the caption as description of a picture that has no other;
- links between the pages that name the published address made relative, so that a copy of the site stays in the copy;
- no scripts that no page uses."""
import os, re
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

class Page(HTMLParser):
    "What llms.txt needs from a built page: its title, its description, its address, and the sidebar's sections with their links"
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
    "The text of llms.txt for the site in the folder `docs`; links lead to the markdown that is built beside each page"
    index = Page(re.sub('<span class="chapter-number">.*?</span> ', '', (docs/'index.html').read_text(encoding='utf-8')))
    lines = [f'# {index.title}', '', f'> {index.description}', '', 'Each page below is a Jupyter notebook, as markdown: prose, code and saved outputs.']
    for name,links in index.sections:
        if links: lines += ['', f"## {name or 'Start'}", '']
        for text,href in links:
            p = Page((docs/href).read_text(encoding='utf-8').split('</head>')[0])
            lines.append(f'- [{text}]({p.url}.md): {p.description}')
    return '\n'.join(lines) + '\n'

UNUSED = re.compile(r'<script src="https://cdnjs\.cloudflare\.com/ajax/libs/(?:require\.js|jquery)/.*?</script>\n?|<script type="application/javascript">define\(\'jquery\'.*?</script>\n?')

def without_unused(html):
    "`html` without require.js and jQuery: Quarto loads them from another host for every notebook with an HTML table, in case it held a widget"
    return html if 'application/vnd.jupyter.widget' in html else re.sub(UNUSED, '', html)

def numbers(docs):
    "The number of each chapter by its page: nbdev takes it out of the address, the link to the source still has it"
    found = {f.name: re.search(r'/nbs/(\d+[a-z]?)_\w+\.ipynb"', f.read_text(encoding='utf-8')) for f in docs.glob('*.html')}
    return {page: m[1] for page,m in found.items() if m and m[1] != '99'}

def numbered(html, numbers):
    "`html` with the numbers of the chapters before their titles in the sidebar: the chapters name one another by number"
    def number(m): return m[0] if m[2] not in numbers else f'{m[1]}<span class="chapter-number">{numbers[m[2]]}</span> '
    return re.sub(r'(<a href="[^"]*?([\w-]+\.html)" class="sidebar-item-text sidebar-link[^"]*">\s*<span class="menu-text">)(?!<span)', number, html)

def linked(docs):
    "For each page the anchors that links to the published site name: nbdev writes one for each name in backticks"
    res = {}
    for f in docs.glob('*.html'):
        for page,anchor in re.findall(r'href="(?:https://[^"#]*/)?([\w-]+\.html)#([\w.]+)"', f.read_text(encoding='utf-8')): res.setdefault(page, set()).add(anchor)
    return res

CODE = re.compile(r'(?<=>)<pre class="sourceCode.*?</pre>', re.S)
DEFINED = re.compile(r'^(?:@patch.*\n(?:@.*\n)*def (?P<method>\w+)\(\s*\w+\s*:\s*(?P<of>\w+)|class (?P<cls>\w+)|def (?P<function>\w+)|(?P<constant>[A-Z]\w+) *=)', re.M)

def anchored(html, anchors):
    "`html` with each of `anchors` that it lacks at the last code that defines the name"
    where = {}
    for block in CODE.finditer(html):
        for m in DEFINED.finditer(unescape(re.sub('<.*?>', '', block[0]))):
            name = f"{m['of']}.{m['method']}" if m['method'] else m['cls'] or m['function'] or m['constant']
            where[name.lower()] = block.start()
    where |= {o: where[o.split('.')[0]] for o in anchors if o not in where and o.split('.')[0] in where}     # a method, at its class
    at = sorted(((where[o], o) for o in anchors if o in where and f'id="{o}"' not in html), reverse=True)
    for i,o in at: html = f'{html[:i]}<span id="{o}" class="definition"></span>{html[i:]}'
    return html

def unlinked(html, page, ids):
    "`html` without links from code to an anchor that `ids` of the pages lack: private names, and words that are the name of a method elsewhere"
    def keep(m): return m[0] if m[2] in ids.get(m[1] or page, ()) else m[3]
    return re.sub(r'<a href="(?:\./)?([\w-]+\.html)?#([\w.]+)">(<code>[^<]*</code>)</a>', keep, html)

def skippable(html):
    "`html` with a link to the text as the first thing that the keyboard reaches"
    return html if 'class="skip"' in html else re.sub(r'<body[^>]*>', lambda m: m[0] + '<a class="skip" href="#quarto-document-content">Skip to the text</a>', html, count=1)

def described(html):
    "`html` with the caption as description of each picture that has none"
    return re.sub(r'<img (?![^>]*\balt=)([^>]*>(?:</p>)?\s*<figcaption[^>]*>(.*?)</figcaption>)', lambda m: f'<img alt="{escape(unescape(re.sub("<.*?>", "", m[2])))}" {m[1]}', html, flags=re.S)

def within(html, base):
    "`html` with links to pages of the site at `base` made relative"
    return re.sub(rf'(<a\b[^>]*?\shref="){re.escape(base)}(?=[\w-]+\.html)', r'\1', html)

if __name__ == '__main__':
    docs = Path(os.environ['QUARTO_PROJECT_OUTPUT_DIR'])
    chapters,anchors,base = numbers(docs),linked(docs),Page((docs/'index.html').read_text(encoding='utf-8')).url.removesuffix('index.html')
    if os.environ.get('QUARTO_PROJECT_RENDER_ALL'): (docs/'llms.txt').write_text(llms(docs), encoding='utf-8')     # not after a single page
    html = {f.name: f.read_text(encoding='utf-8') for f in docs.glob('*.html')}
    new = {p: within(anchored(numbered(without_unused(described(skippable(o))), chapters), anchors.get(p, set())), base) for p,o in html.items()}
    ids = {p: set(re.findall(r'\bid="([^"]+)"', o)) for p,o in new.items()}
    for p,o in new.items():
        if (o := unlinked(o, p, ids)) != html[p]: (docs/p).write_text(o, encoding='utf-8')
