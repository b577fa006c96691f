"""Write README.md from nbs/start.ipynb, the way `nbdev-readme` does where Quarto is installed:
`python tests/readme.py`."""
import re
from html.parser import HTMLParser
from pathlib import Path
import nbformat
from nbconvert import MarkdownExporter

root = Path(__file__).resolve().parent.parent

class Rows(HTMLParser):
    "The cells of an HTML table as text, row by row."
    def __init__(self): super().__init__(); self.rows, self.open = [], False
    def handle_starttag(self, tag, attrs):
        if tag == 'tr': self.rows.append([])
        if tag in ('th', 'td'): self.rows[-1].append(''); self.open = True
    def handle_endtag(self, tag): self.open = self.open and tag not in ('th', 'td')
    def handle_data(self, data):
        if self.open: self.rows[-1][-1] += data.replace('|', r'\|')

def pipe_table(html):
    "An HTML table as a markdown table, which needs no style sheet."
    p = Rows()
    p.feed(html)
    head, *rows = p.rows
    return '\n'.join(f"| {' | '.join(r)} |" for r in [head, ['---']*len(head), *rows])

def as_markdown(output):
    "An output as markdown: tables stay tables, text is fenced, pictures are for the site."
    if output.output_type == 'stream': return f'```\n{output.text.rstrip()}\n```'
    data = output.get('data', {})
    if '<table' in data.get('text/html', ''): return pipe_table(data['text/html'])
    if 'text/html' in data or any(k.startswith('image/') for k in data): return ''
    return data.get('text/markdown') or f"```\n{data.get('text/plain', '').rstrip()}\n```"

# what a reader's settings ask for, and the end of the name of a picture that answers to it
SETTINGS = {'prefers-color-scheme: dark': '-dark', 'prefers-reduced-motion: reduce': '-still'}

def with_versions(m):
    "A picture of its own line as HTML, with its versions for the dark and without motion"
    alt, file = m[1], root/'nbs'/m[2]
    dark, still = SETTINGS
    sources = ''
    for asked in ((still, dark), (still,), (dark,)):
        found = file.with_stem(file.stem + ''.join(SETTINGS[o] for o in asked))
        if found.exists():
            media = ' and '.join(f'({o})' for o in asked)
            sources += f'<source media="{media}" srcset="nbs/images/{found.name}">\n'
    return f'<picture>\n{sources}<img alt="{alt}" src="nbs/images/{file.name}">\n</picture>'

def render():
    """The text of README.md: the start page as markdown, its directives dropped, its links
    pointing into the repository."""
    nb = nbformat.read(root/'nbs'/'start.ipynb', 4)
    nb.metadata['language_info'] = {'name': 'python'}
    cells = [c for c in nb.cells if not (c.cell_type == 'code'
                                         and re.match(r'#\|\s*hide\s*$', c.source, re.M))]
    for c in cells:
        if c.cell_type == 'code':
            c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M).strip()
            c.outputs = [nbformat.v4.new_output('display_data', {'text/markdown': m})
                         for o in c.outputs if (m := as_markdown(o))]
        else: c.source = re.sub(r'^- skip_showdoc: true\s*\n?', '', c.source, flags=re.M).strip()
    nb.cells = [c for c in cells if c.source]
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'^:::.*\n', '', text, flags=re.M)                        # what only GitHub shows
    text = re.sub(r'^!\[(.*)\]\((images/.*)\)$', with_versions, text, flags=re.M)
    text = re.sub(r'\]\((images/[^)]+|(?:\w+/)?\w+\.(?:ipynb|md)(?:#[^)]*)?)\)', r'](nbs/\1)', text)
    text = re.sub(r'^# .*', '# elmo_fastai', text, count=1, flags=re.M)    # the repository's name
    note = '<!-- Written from nbs/start.ipynb by `make export`; do not edit here. -->\n\n'
    return note + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'

if __name__ == '__main__':
    (root/'README.md').write_text(render(), encoding='utf-8')
