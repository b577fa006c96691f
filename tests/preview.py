"""The chapters as pages in _preview/, without Quarto: `python tests/preview.py [chapter …]`; the site itself is built by `make docs`."""
import re, shutil, sys
from functools import lru_cache
from html import escape
from pathlib import Path
import nbformat, yaml
from jinja2 import DictLoader
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

root = Path(__file__).resolve().parent.parent

def stop(message): sys.exit(f'preview: {message}')

# what stands in _quarto.yml and in the notebooks

def sections(node, section=''):
    "The sidebar as pairs of a section's title and a notebook's file name, in its order."
    if isinstance(node, str):
        if node.endswith('.ipynb'): yield section, node
    elif isinstance(node, list):
        for o in node: yield from sections(o, section)
    elif isinstance(node, dict):
        for k in ('href', 'file'): yield from sections(node.get(k), section)
        yield from sections(node.get('contents'), node.get('section', section))

def read(file):
    "A notebook, or the end with a message that says which one is broken, and where."
    try: return nbformat.read(file, 4)
    except Exception as e: stop(f"{file.name} can't be read as a notebook ({str(e).splitlines()[0]}). Restore it with git, or save it again in Jupyter.")

def directives(source): return dict(re.findall(r'^#\|\s*([\w-]+):?[ ]*(.*)$', source, re.M))

def plain(value):
    "The value of a directive without its quotation marks."
    try: v = yaml.safe_load(value)
    except yaml.YAMLError: v = value
    return v if isinstance(v, str) else value

def front_matter(nb):
    "Title, description and what is left of the first cell: `# title`, `> description`, `- key: value`."
    text = nb.cells[0].source if nb.cells and nb.cells[0].cell_type != 'code' else ''
    if raw := re.match(r'---\n(.*?)\n---\s*', text, re.S):
        d = yaml.safe_load(raw[1]) or {}
        return d.get('title', ''), d.get('description', ''), text[raw.end():]
    title, description = (re.search(p, text, re.M) for p in (r'^# (.*)$', r'^> (.*)$'))
    for m in (title, description):
        if m: text = text.replace(m[0], '', 1)
    return title[1] if title else '', description[1] if description else '', re.sub(r'^- \w+:.*\n?', '', text, flags=re.M).strip()

HIDDEN = {'hide', 'default_exp', 'export', 'exporti'}     # nbdev takes these cells off the page
def off(d, key): return d.get(key) == 'false'

def prepare(nb):
    "The notebook as the site shows it: hidden cells gone, directives turned into metadata that the template reads."
    title, description, rest = front_matter(nb)
    if nb.cells and nb.cells[0].cell_type != 'code': nb.cells[0] = nbformat.v4.new_markdown_cell(rest)
    cells = []
    for c in nb.cells:
        d = directives(c.source) if c.cell_type == 'code' else {}
        if HIDDEN & set(d) or off(d, 'include'): continue
        if c.cell_type == 'code':
            c.source = '\n'.join(o for o in re.sub(r'\A(#\|.*\n?)+', '', c.source).split('\n') if not re.search(r'#\|\s*hide_line\s*$', o)).strip()
            if off(d, 'echo'): c.source = ''
            c.outputs = [] if off(d, 'output') else [o for o in c.outputs if o.get('name') != 'stderr']
            c.metadata = nbformat.from_dict(dict(fold=d.get('code-fold') == 'true', summary=plain(d.get('code-summary', 'Code')),
                                                 cap=plain(d.get('fig-cap', '')), alt=plain(d.get('fig-alt', ''))))
        else: c.source = re.sub(r'^:::.*$', '', c.source, flags=re.M).strip()
        if c.source or c.get('outputs'): cells.append(c)
    nb.cells = cells
    nb.metadata['language_info'] = {'name': 'python', 'pygments_lexer': 'ipython3'}
    return title, description

# formulas: drawn here, so that a page needs no network

SIZE = 100
FONT = FontProperties(size=SIZE, math_fontfamily='stix')
MORE = {r'\\[bB]igg?[lrm]?(?![A-Za-z])': '', r'\\[lr]Vert(?![A-Za-z])': r'\\Vert ', r'\\sqrt\s*(\w)': r'\\sqrt{\1}', r'\\tfrac(?![A-Za-z])': r'\\frac',
        r'\\(le|ge|ne)(?![A-Za-z])': r'\\\1q ', r'\s+': ' '}      # what TeX knows and Matplotlib does not

@lru_cache(None)
def drawn(tex):
    "One line of TeX as SVG, its height and its baseline in em. Raises ValueError where Matplotlib does not know a command."
    for k,v in MORE.items(): tex = re.sub(k, v, tex)
    if not tex.strip(): return ''
    text = f'${tex.strip()}$'
    w, h, d = text_to_path.get_text_width_height_descent(text, FONT, True)
    points, codes = text_to_path.get_text_path(FONT, text, True)
    path, i = [], 0
    while i < len(codes):
        n, op = {1: (1, 'M'), 2: (1, 'L'), 3: (2, 'Q'), 4: (3, 'C'), 79: (1, 'Z')}[int(codes[i])]
        path.append(op + ('' if op == 'Z' else ' '.join(f'{x:.0f} {-y:.0f}' for x,y in points[i:i+n])))
        i += n
    pad = 4
    w, h, d = w + 2*pad, h + 2*pad, d + pad
    return (f'<svg viewBox="{-pad} {d-h:.0f} {w:.0f} {h:.0f}" style="width:{w/SIZE:.2f}em;height:{h/SIZE:.2f}em;vertical-align:{-d/SIZE:.2f}em" '
            f'aria-hidden="true"><path d="{"".join(path)}"/></svg>')

def laid_out(tex):
    "TeX as SVG; the rows of `aligned`, `cases` and matrices as a grid."
    m = re.search(r'\\begin\{(\w+)\*?\}(?:\{[lcr|]+\})?(.*?)\\end\{\1\*?\}', tex, re.S)
    if not m: return drawn(tex)
    rows = [r.split('&') for r in re.split(r'\\\\(?:\[.*?\])?', m[2]) if r.strip()]
    cells = ''.join(f'<span{" class=next" if i and not i%2 else ""}>{drawn(r[i] if i < len(r) else "")}</span>' for r in rows for i in range(max(map(len, rows))))
    left, right = {'cases': ('{', ''), 'pmatrix': ('(', ')'), 'bmatrix': ('[', ']')}.get(m[1], ('', ''))
    brace = lambda b: b and f'<span class="brace" style="font-size:{1.5*len(rows):.1f}em">{b}</span>'
    grid = f'<span class="grid {m[1]}" style="grid-template-columns:repeat({max(map(len, rows))},auto)">{cells}</span>'
    return f'<span class="row">{drawn(tex[:m.start()])}{brace(left)}{grid}{brace(right)}{laid_out(tex[m.end():])}</span>'

def formula(tex, block=False):
    "A formula as a picture that is read out as its TeX; where it can't be drawn, the TeX itself."
    large = re.sub(r'\\frac(?![A-Za-z])', r'\\dfrac', tex) if block else tex
    try: return f'<span class="math{" block" if block else ""}" role="img" aria-label="{escape(tex.strip())}">{laid_out(large)}</span>'
    except ValueError: return f'<code class="tex">{escape(tex.strip())}</code>'

# markdown and notebooks as HTML

def slug(heading):
    "The anchor of a heading, as Quarto makes it: letters, digits and `-_.`, from the first letter on."
    s = re.sub(r'[^\w\s.-]', '', re.sub(r'<.*?>', '', heading).replace('&amp;', '').lower())
    return re.sub(r'^[^a-z]+', '', re.sub(r'\s', '-', s.strip())) or 'section'

class Renderer(IPythonRenderer):
    "nbconvert's renderer with drawn formulas, Quarto's anchors, and nothing that is fetched."
    def __init__(self, seen, toc): super().__init__(escape=False); self.seen, self.toc = seen, toc
    def block_math(self, body): return formula(body, block=True)
    def inline_math(self, body): return formula(body)
    def latex_environment(self, name, body): return formula(rf'\begin{{{name}}}{body}\end{{{name}}}', block=True)
    def image(self, text, url, title=None):
        alt = escape(re.sub(r'<.*?>', '', text), quote=True)
        if url.startswith('http'): return alt                 # a badge, say: fetching it needs a network
        return f'<img src="{url}" alt="{alt}">'
    def heading(self, text, level, **attrs):
        named = re.search(r'\s*\{#([\w.-]+).*?\}\s*$', text)
        text = re.sub(r'\s*\{[#.].*?\}\s*$', '', text)
        anchor = base = named[1] if named else slug(text)
        n = self.seen[base] = self.seen.get(base, -1) + 1
        if n: anchor = f'{base}-{n}'
        if 2 <= level <= 3: self.toc.append((level, anchor, re.sub(r'</?a\b.*?>', '', text)))
        return f'<h{level} id="{anchor}">{text}<a class="anchor" href="#{anchor}" aria-label="Link to this heading">#</a></h{level}>\n'

class Pages(HTMLExporter):
    "nbconvert's HTML with a template of ours. `seen` and `toc` belong to the page that is being written."
    def __init__(self, **kw): super().__init__(extra_loaders=[DictLoader({'page': TEMPLATE})], template_file='page', **kw); self.begin()
    def begin(self): self.seen, self.toc = {}, []
    def from_notebook_node(self, nb, resources=None, **kw):   # without the parsing of the finished page, which takes half of the time
        self.register_filter('highlight_code', Highlight2HTML(pygments_lexer='ipython3', parent=self))
        return TemplateExporter.from_notebook_node(self, nb, resources, **kw)
    def to_html(self, text):
        text = re.sub(r'(\]\([^)\s]*\))\{[^}\n]*\}', r'\1', text)      # pandoc's attributes of links and pictures
        return MarkdownWithMath(renderer=Renderer(self.seen, self.toc)).render(text)
    def default_filters(self):
        yield from super().default_filters()
        yield 'markdown2html', self.to_html
        yield 'inline', lambda text: re.sub(r'\A<p>|</p>\s*\Z', '', self.to_html(text))

TEMPLATE = r'''
{%- extends 'base/display_priority.j2' -%}
{% block body %}{% for cell in nb.cells %}
{%- if cell.cell_type == 'code' %}
<div class="cell">
{%- if cell.source %}
{%- if cell.metadata.fold %}<details class="fold"><summary>{{ cell.metadata.summary | escape_html }}</summary>{% endif %}
<div class="code">{{ cell.source | highlight_code(metadata=cell.metadata) }}</div>
{%- if cell.metadata.fold %}</details>{% endif %}
{%- endif %}
{%- for output in cell.outputs %}
<div class="out{% if 'color:#' in output.get('data', {}).get('text/html', '') %} paper{% endif %}">
{%- if output.output_type == 'stream' %}<pre>{{ output.text | ansi2html }}</pre>
{%- else %}
{%- for type in (output.get('data', {}) | filter_data_type)[:1] %}{% set data = output.data[type] %}
{%- if type == 'text/html' %}{{ data }}
{%- elif type == 'text/markdown' %}{{ data | markdown2html }}
{%- elif type in ('image/png', 'image/jpeg', 'image/svg+xml') %}<figure>
{%- if type == 'image/svg+xml' %}<img src="data:image/svg+xml;base64,{{ data | text_base64 }}" alt="{{ cell.metadata.alt | escape_html }}">
{%- else %}<img src="data:{{ type }};base64,{{ data }}" alt="{{ cell.metadata.alt | escape_html }}">{% endif %}
{%- if cell.metadata.cap %}<figcaption>{{ cell.metadata.cap | inline }}</figcaption>{% endif %}</figure>
{%- elif type == 'text/plain' %}<pre>{{ data | ansi2html }}</pre>
{%- endif %}{% endfor %}{% endif %}
</div>
{%- endfor %}
</div>
{%- elif cell.cell_type == 'markdown' %}
{{ cell.source | markdown2html }}
{%- endif %}{% endfor %}{% endblock %}
'''

PAGE = '''<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – {site}</title>
<meta name="description" content="{description}">
<meta name="color-scheme" content="light dark">
<link rel="icon" {icon}>
<link rel="stylesheet" href="preview.css">
</head>
<body>
<a class="skip" href="#content">Skip to the text</a>
<p class="note">A preview, drawn without Quarto: order, text, code and outputs are those of the site; its search and its looks are not. <code>make docs</code> builds the site.</p>
<div class="columns">
<nav class="side" aria-label="Chapters"><input type="checkbox" id="menu" aria-label="Show the chapters"><label for="menu">Chapters</label>
{side}
</nav>
<main id="content">
<h1>{heading}</h1>
<p class="description">{description_html}</p>
{body}
<nav class="turn" aria-label="Previous and next">{turn}</nav>
</main>
<nav class="toc" aria-label="On this page">{toc}</nav>
</div>
</body>
</html>
'''

CSS = '''
:root { --text:#1f2328; --soft:#57606a; --back:#fff; --panel:#f5f6f8; --line:#d8dee4; --link:#0a58ca; --note:#fff4d6 }
@media (prefers-color-scheme: dark) { :root { --text:#dfe3e8; --soft:#a2abb5; --back:#15181c; --panel:#1e2227; --line:#363c44; --link:#7ab7ff; --note:#3a3115 } }
* { box-sizing:border-box }
html { scroll-padding-top:1rem; -webkit-text-size-adjust:100% }
body { margin:0; font:1.0625rem/1.6 system-ui,sans-serif; color:var(--text); background:var(--back); overflow-wrap:break-word }
a { color:var(--link); text-underline-offset:.15em }
a:focus-visible, summary:focus-visible, #menu:focus-visible + label { outline:2px solid var(--link); outline-offset:2px }
.skip { position:absolute; left:-99rem } .skip:focus { left:.5rem; top:.5rem; padding:.3rem .6rem; background:var(--back); z-index:1 }
.note { margin:0; padding:.35rem 1rem; background:var(--note); font-size:.85rem }
.columns { display:grid; grid-template-columns:16rem minmax(0,52rem) 14rem; gap:2.5rem; justify-content:center; padding:0 1rem }
main { padding:1rem 0 4rem; min-width:0 }
h1, h2, h3, h4 { line-height:1.25; margin:2.2rem 0 .8rem } h1 { margin:1rem 0 .4rem; font-size:2rem } h2 { font-size:1.5rem; padding-bottom:.25rem; border-bottom:1px solid var(--line) } h3 { font-size:1.2rem }
.description { margin:0 0 1.5rem; font-size:1.15rem; color:var(--soft) }
.anchor { position:absolute; margin-left:.3em; text-decoration:none; font-weight:normal; opacity:0 } :is(h1,h2,h3,h4,h5):hover .anchor, .anchor:focus { opacity:1 }
.side, .toc { position:sticky; top:0; align-self:start; max-height:100vh; overflow-y:auto; padding:1.2rem 0; font-size:.9rem; line-height:1.4 }
.side ul, .toc ul { list-style:none; margin:0 0 .9rem; padding:0 } .side h2 { font-size:.8rem; margin:.9rem 0 .3rem; padding:0; border:0; color:var(--soft); letter-spacing:.04em; text-transform:uppercase }
.side li a, .toc li a { display:block; padding:.18rem .5rem; color:inherit; text-decoration:none; border-left:2px solid transparent }
.side li a:hover, .toc li a:hover { color:var(--link) } .side [aria-current] { color:var(--link); border-color:var(--link); font-weight:600 }
.toc b { padding-left:.5rem } .toc .l3 a { padding-left:1.3rem }
#menu { position:absolute; opacity:0 } .side label { display:none }
pre, code { font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace; font-size:.875em } pre code { font-size:1em }
:not(pre) > code { padding:.1em .3em; border-radius:4px; background:var(--panel) } a > code { color:inherit }
pre { margin:0; padding:.7rem .9rem; overflow-x:auto; line-height:1.45; font-size:.84rem }
.code, .highlight, .codehilite { border-radius:6px; background:var(--panel) } .code .highlight { background:none } main > .highlight { margin:1rem 0 }
main > pre { background:var(--panel); border-radius:6px; margin:1rem 0 }
.cell { margin:1.1rem 0 } .out { margin:.4rem 0; padding-left:.9rem; border-left:3px solid var(--line); overflow-x:auto } .paper { background:#fff; color:#1f2328; padding:.3rem .9rem } .out pre { padding:.3rem 0 }
.fold > summary, details > summary { cursor:pointer; color:var(--soft); padding:.15rem 0 } .fold[open] > summary { margin-bottom:.3rem }
figure { margin:.6rem 0 } figcaption { font-size:.92rem; font-style:italic; color:var(--soft); margin-top:.4rem }
img { max-width:100%; height:auto; background:#fff; border-radius:4px } p > img:only-child { display:block; margin:1.2rem auto; padding:.4rem }
table { display:block; max-width:100%; width:max-content; overflow-x:auto; border-collapse:collapse; border:0; margin:1rem 0; font-size:.9rem; line-height:1.4 } .out table { margin:.3rem 0 }
th, td { padding:.3rem .7rem; border:0; border-bottom:1px solid var(--line); vertical-align:top; text-align:left } .out td, .out th { text-align:right }
.fastprogress * { background:none !important; color:inherit !important; border-color:var(--line) !important }
blockquote { margin:1.2rem 0; padding:.2rem 1rem; border-left:4px solid var(--link); background:var(--panel); border-radius:0 6px 6px 0 }
hr { border:0; border-top:1px solid var(--line) }
.math { font-size:1.1em } .math svg { fill:currentColor; overflow:visible; max-width:100% } .math.block { display:block; overflow-x:auto; overflow-y:hidden; text-align:center; padding:.4rem 0; font-size:1.2em }
.row { display:inline-flex; align-items:center; gap:.25em } .grid { display:inline-grid; gap:.5em .15em; align-items:center; justify-items:start; text-align:left } .cases { column-gap:1em } .aligned .next { margin-left:2em } .brace { font-weight:200; line-height:1 }
.turn { display:flex; flex-wrap:wrap; gap:1rem; justify-content:space-between; margin-top:3rem; padding-top:1rem; border-top:1px solid var(--line) } .turn :last-child { margin-left:auto; text-align:right }
@media (max-width:80rem) { .columns { grid-template-columns:15rem minmax(0,52rem) } .toc { display:none } }
@media (max-width:50rem) {
 body { font-size:1rem } .columns { display:block } h1 { font-size:1.65rem }
 .side { position:static; max-height:none; padding:.6rem 0 0 } .side label { display:block; padding:.5rem .8rem; border:1px solid var(--line); border-radius:6px; cursor:pointer } .side label::after { content:" ▾" }
 .side .list { display:none } #menu:checked ~ .list { display:block } .side li a { padding:.45rem .5rem }
}
@media print { .side, .toc, .note, .turn, .anchor { display:none } .columns { display:block } }
'''

def styles():
    "The style sheet: ours, and Pygments' colours for both schemes."
    light, dark = (HtmlFormatter(style=s, nobackground=True).get_style_defs('.highlight') for s in ('xcode', 'github-dark'))     # both with AA contrast on our panels
    return f'{CSS}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n'

def linked(html, pages, nbs, out):
    "Links to notebooks become links to their pages (or none, where there is no page), and files that are shown or linked come along."
    def link(m):
        attr, target = m[1], m[2]
        if re.match(r'[a-z]+:|#|//', target): return m[0]
        path, _, anchor = target.partition('#')
        if path.endswith('.ipynb'): return f'{attr}="{path[:-6]}.html{"#" + anchor if anchor else ""}"' if path[:-6] in pages else 'class="nowhere"'
        file = (nbs/path).resolve()
        if not file.is_file() or nbs.resolve() not in file.parents: return 'class="nowhere"' if attr == 'href' else m[0]
        (out/path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, out/path)
        return m[0]
    return re.sub(r'\b(href|src)="([^"]+)"', link, html)

def build(out, names=(), nbs=root/'nbs', config=root/'_quarto.yml'):
    "Write the pages of chapters `names` (all of them without) into the folder `out`; returns their files and what a person should know."
    site, known = yaml.safe_load(config.read_text(encoding='utf-8')), {f.stem: f for f in sorted(nbs.glob('*.ipynb'))}
    if unknown := [n for n in names if n not in known]:
        stop(f"there is no chapter {' or '.join(unknown)} in {nbs.name}/. There are: {', '.join(known)}")
    listed = [(s, Path(f).stem) for s,f in sections(site['website']['sidebar']['contents'])]
    notes = [f'_quarto.yml names {n}.ipynb, which does not exist' for _,n in listed if n not in known]
    listed = [(s, n) for s,n in listed if n in known]
    if rest := [n for n in known if n not in dict((n, s) for s,n in listed)]:
        notes.append(f"not in the sidebar of _quarto.yml, so at its end here: {', '.join(rest)}")
        listed += [('Not in the sidebar', n) for n in rest]
    notebooks = {n: read(known[n]) for _,n in listed}
    titles = {n: front_matter(nb)[0] or n for n,nb in notebooks.items()}
    wanted = list(names) or [n for _,n in listed]
    pages = set(wanted) | {f.stem for f in out.glob('*.html')} & set(known)
    order = [n for _,n in listed if n in pages]
    out.mkdir(parents=True, exist_ok=True)
    if not names:
        for f in out.glob('*.html'):
            if f.stem not in known: f.unlink()                # the page of a chapter that is gone
    (out/'preview.css').write_text(styles(), encoding='utf-8')
    exporter, w = Pages(), site['website']
    label = lambda n: (f'{m[1]} ' if (m := re.match(r'(\d+[a-z]?)_', n)) else '') + titles[n]
    icon = linked(f'href="{w.get("favicon") or "data:,"}"', pages, nbs, out)
    for name in wanted:
        nb = notebooks[name]
        exporter.begin()
        title, description = prepare(nb)
        body, _ = exporter.from_notebook_node(nb)
        inline = exporter.environment.filters['inline']
        side, last = '', None
        for s,n in listed:
            if n not in pages: continue
            if s != last: side += ('</ul>' if last is not None else '') + (f'<h2>{escape(s)}</h2>' if s else '') + '<ul>'
            side += f'<li><a href="{n}.ipynb"{" aria-current=page" if n == name else ""}>{inline(label(n))}</a></li>'
            last = s
        i = order.index(name)
        turn = ''.join(f'<a rel="{rel}" href="{order[j]}.ipynb">{text(inline(label(order[j])))}</a>' for rel,j,text in
                       (('prev', i-1, '← {}'.format), ('next', i+1, '{} →'.format)) if 0 <= j < len(order))
        toc = ''.join(f'<li class="l{l}"><a href="#{a}">{t}</a></li>' for l,a,t in exporter.toc)
        body, side, turn = (linked(o, pages, nbs, out) for o in (body, side, turn))
        html = PAGE.format(lang=site.get('lang', 'en'), title=escape(title or name), site=escape(w['title']), description=escape(description),
                           heading=inline(title or name), description_html=inline(description), side=f'<div class="list">{side}</ul></div>', body=body, turn=turn,
                           icon=icon, toc=toc and f'<b>On this page</b><ul>{toc}</ul>')
        if n := html.count('<code class="tex">'): notes.append(f"{name}: {n} formula{'s' if n > 1 else ''} that Matplotlib can't draw, shown as TeX")
        (out/f'{name}.html').write_text(html, encoding='utf-8')
    return [out/f'{n}.html' for n in wanted], notes

if __name__ == '__main__':
    names = [Path(a).stem for a in sys.argv[1:]]
    files, notes = build(root/'_preview', names)
    for o in notes: print(f'note: {o}')
    print(f"{len(files)} page{'s' if len(files) > 1 else ''} in _preview/. To look at them:\n\n    {Path(sys.executable).name} -m http.server --directory _preview 8000\n\n"
          f"and open http://localhost:8000/{files[0].name} in a browser (or the file _preview/{files[0].name} itself).")
