"""For tests of the notebooks as they are committed: their cells, prose, directives and links,
and the sidebar"""
import json, re, shutil, tomllib
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import yaml

root = Path(__file__).resolve().parent.parent
home = root/'nbs'
SHELVES = ('course', 'studies', 'library')
def on(shelf): return sorted((home/shelf).glob('*.ipynb'))
chapters = [f for shelf in SHELVES for f in on(shelf)]
nbs = [*sorted(home.glob('*.ipynb')), *chapters]
taught = on('course')

# What the repository has at its top; a working copy has other things, too
FILES = '''.gitattributes .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE MANIFEST.in
    Makefile README.md SECURITY.md _quarto.yml constraints.txt pyproject.toml settings.ini
    setup.py'''.split()

def copied(folder, *folders):
    "Copy the repository into a new `folder`: its files, some of its folders, and nothing else"
    folder.mkdir()
    without = shutil.ignore_patterns('.?*', '__pycache__', 'models')
    for name in folders: shutil.copytree(root/name, folder/name, ignore=without)
    for name in FILES: shutil.copy(root/name, folder/name)
    return folder

FENCE = re.compile(r'^(```|~~~).*?^\1', re.M | re.S)

project = tomllib.loads((root/'pyproject.toml').read_text(encoding='utf-8'))['project']
REPOSITORY = project['urls']['Repository']

def name(f): return f.relative_to(home).with_suffix('').as_posix()
@lru_cache(None)
def read(f): return json.loads(f.read_text(encoding='utf-8'))
def source(cell): return ''.join(cell['source'])
def cells(f, kind): return [c for c in read(f)['cells'] if c['cell_type'] == kind]
def prose(f): return '\n\n'.join(source(c) for c in cells(f, 'markdown'))
def directives(cell): return dict(re.findall(r'^#\|\s*([\w-]+):?[ ]*(.*)$', source(cell), re.M))

def code_hash(f):
    "A name for all code of a page, slow cells and others: SHA-256 in hex"
    return sha256('\n\n'.join(map(source, cells(f, 'code'))).encode()).hexdigest()

def is_stale(f):
    "Whether a page has other code than the one that was run"
    return read(f)['metadata'].get('run', {}).get('code') != code_hash(f)

def texts(outputs):
    "The text of outputs; pictures in base64 say nothing"
    for o in outputs:
        if o['output_type'] == 'stream': yield ''.join(o['text'])
        for mime,data in o.get('data', {}).items():
            if mime.startswith('image/') and mime != 'image/svg+xml': continue
            text = (data if isinstance(data, str) else ''.join(data) if isinstance(data, list)
                    else json.dumps(data))
            yield re.sub(r'(?<=;base64,)[\w+/=\s]+', '', text)

def slug(heading):
    return re.sub(r'\s', '-', re.sub(r'[^\w\s-]', '', re.sub(r'[`*]', '', heading).strip().lower()))
def anchors(f): return {slug(h) for h in re.findall(r'^#{1,6} (.*)$', prose(f), re.M)}
def links(text):
    "The targets of links in Markdown, code apart, and in HTML"
    plain = re.sub(r'`[^`]*`', '', re.sub(FENCE, '', text))
    return (re.findall(r'(?<!!)\[[^\]]*\]\(([^)\s]+)\)', plain)
            + re.findall(r'(?:href|src)="([^"]+)"', text))
def well_formed(link): return re.match(r'https://[\w.-]+\.\w{2,}(/\S*)?$', link)

def files_in(node):
    if isinstance(node, str): yield node
    elif isinstance(node, list):
        for o in node: yield from files_in(o)
    elif isinstance(node, dict):
        for k in ('href', 'file', 'contents'):
            if k in node: yield from files_in(node[k])

def site(): return yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))
