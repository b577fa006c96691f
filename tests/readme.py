"""Write README.md from nbs/index.ipynb, the way `nbdev_readme` does where Quarto is installed: `python tests/readme.py [--check]`."""
import re, sys
from pathlib import Path
import nbformat
from nbconvert import MarkdownExporter

root = Path(__file__).resolve().parent.parent

def render():
    "The text of README.md: the index notebook as markdown, its directives dropped, its links pointing into the repository."
    nb = nbformat.read(root/'nbs'/'index.ipynb', 4)
    cells = [c for c in nb.cells if not (c.cell_type == 'code' and re.match(r'#\|\s*hide\s*$', c.source, re.M))]
    for c in cells:
        if c.cell_type == 'code': c.source = re.sub(r'^#\|.*\n?', '', c.source, flags=re.M).strip()
        else: c.source = re.sub(r'^- skip_showdoc: true\s*\n?', '', c.source, flags=re.M).strip()
    nb.cells = [c for c in cells if c.source]
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'\]\((images/[^)]+|\d\d\w*\.ipynb)\)', r'](nbs/\1)', text)
    note = '<!-- Written from nbs/index.ipynb by `make readme`; do not edit here. -->\n\n'
    return note + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'

if __name__ == '__main__':
    readme, text = root/'README.md', render()
    if '--check' in sys.argv: sys.exit(readme.read_text(encoding='utf-8') != text and 'README.md differs from nbs/index.ipynb: run `make readme`')
    readme.write_text(text, encoding='utf-8')
