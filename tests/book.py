"""`make book`: the course as a PDF and an ePub, from the built site: `python tests/book.py
[_docs]`.

The sixteen lessons become one page, with a title and a list of contents. Chromium prints it, with
its style sheet for paper, numbered pages, folds open, links inside the book. Pandoc, which Quarto
brings, makes the ePub of it: plain HTML, formulas as MathML. Both files stand beside the site, and
the home page links to them."""

import re, shutil, subprocess, sys, tempfile
from pathlib import Path
from urllib.parse import urljoin

from browse import chromium, served

ROOT = Path(__file__).resolve().parent.parent
NAME = 'elmo_fastai.pdf'
EPUB = 'elmo_fastai.epub'
TITLE = 'ELMo from scratch, in fastai'
MARK = '<span class="elmo-book"></span>'

def lessons(docs):
    "The lessons in the order of the sidebar, by their addresses"
    index = (docs/'index.html').read_text(encoding='utf-8')
    found = re.findall(r'href="(?:\./)?(course/\w+\.html)"[^>]*class="sidebar-item-text', index)
    return [*dict.fromkeys(found)]

def chapter(docs, page, pages):
    """The text of a lesson: its links and pictures as seen from the top of the site, its anchors
    named after it"""
    html = (docs/page).read_text(encoding='utf-8')
    text = re.search(r'<main\b[^>]*>(.*?)</main>', html, re.S)[1]
    text = re.sub(r'<nav class="page-navigation.*?</nav>|<script\b.*?</script>|<a onclick=.*?</a>',
                  '', text, flags=re.S)
    stem = Path(page).stem
    def link(m):
        if re.match(r'(https?:|mailto:|data:)', m[2]): return m[0]
        to, _, anchor = urljoin(page, m[2]).partition('#')
        if to in pages: to, anchor = f'#{Path(to).stem}', anchor and f'--{anchor}'
        else: anchor = anchor and f'#{anchor}'
        return f'{m[1]}="{to}{anchor}"'
    text = re.sub(r'\b(href|src|srcset)="([^"]+)"', link, text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{stem}--\1"', text)
    text = text.replace('<details', '<details open').replace('loading="lazy"', '')
    text = re.sub(r'<p><strong>Previous</strong>: .*?</p>', '', text, flags=re.S)
    # a drawing's narrow version is for phones
    text = re.sub(r'<source\b[^>]*>', '', text)
    return f'<article id="{stem}">{text}</article>'

def book(docs):
    "The whole course as one page of the site in the folder `docs`"
    pages = lessons(docs)
    heads = [re.search(r'<head>.*?</head>',
                       (docs/o).read_text(encoding='utf-8').replace('"../', '"'), re.S)[0]
             for o in pages]
    # that of a lesson with formulas draws them
    head = next((o for o in heads if 'katex' in o), heads[0])
    # the dark style sheets
    head = re.sub(r'<link\b[^>]*quarto-color-alternate[^>]*>', '', head)
    titles = [re.search(r'<title>(.*?) – ', (docs/o).read_text(encoding='utf-8'), re.S)[1]
              for o in pages]
    contents = ''.join(
        f'<li><a href="#{Path(o).stem}">{title}</a></li>' for o, title in zip(pages, titles))
    about = f'The course of elmo_fastai, in {len(pages)} lessons'
    front = f'<section class="front"><h1>{TITLE}</h1><p>{about}</p><ol>{contents}</ol></section>'
    body = ''.join(chapter(docs, o, pages) for o in pages)
    start = f'<!doctype html><html lang="en-GB">{head}<body class="quarto-light elmo-paper">'
    return f'{start}<main class="content">{front}{body}</main></body></html>'

def printed(docs):
    "Prints the book into `docs` and returns the file's place"
    if not (program := chromium()):
        raise SystemExit('The book is printed by Chromium, which is not installed here. '
                         'On Debian: apt install chromium')
    page = docs/'book.html'
    page.write_text(book(docs), encoding='utf-8')
    flags = '''--headless --no-sandbox --disable-gpu --disable-background-networking
        --no-pdf-header-footer --generate-pdf-document-outline --virtual-time-budget=60000'''
    try:
        with served(docs) as address, tempfile.TemporaryDirectory() as profile:
            subprocess.run([program, *flags.split(), f'--user-data-dir={profile}',
                            f'--print-to-pdf={docs/NAME}', f'{address}book.html'],
                           check=True, capture_output=True, timeout=900)
    finally: page.unlink()
    return docs/NAME

def plain(html):
    """The lesson `html` of the book in the few tags that an ePub needs: its boxes and line numbers
    go"""
    title = re.search(r'<h1 class="title">(.*?)</h1>', html, re.S)[1]
    about = re.search(r'<div class="description">(.*?)</div>', html, re.S)[1]
    stem = re.search(r'<article id="(\w+)"', html)[1]
    html = html[html.index('</header>'):]
    html = re.sub(r'<p class="elmo-run">.*?</p>|<!--.*?-->|<div class="elmo-live".*?</div>', '',
                  html, flags=re.S)
    html = re.sub(r'(<pre class="sourceCode (\w+)[^>]*>)(.*?)</pre>', code, html, flags=re.S)
    html = re.sub(r'<(?:section|div) id="([^"]+)"[^>]*>', r'<a id="\1"></a>', html)
    html = re.sub(r'</?(?:section|div|article|header|details|button)\b[^>]*>', '', html)
    html = re.sub(r'<summary>(.*?)</summary>', r'<p><em>\1</em></p>', html, flags=re.S)
    html = re.sub(r'<span class="math inline">(.*?)</span>', r'\\(\1\\)', html, flags=re.S)
    html = re.sub(r'<span class="math display">(.*?)</span>', r'\\[\1\\]', html, flags=re.S)
    return f'<h1 id="{stem}">{title}</h1><p><em>{about.strip()}</em></p>{html}'

def code(found):
    "A block of code without the spans that colour it on the site"
    return f'<pre class="{found[2]}"><code>{re.sub("<[^>]+>", "", found[3])}</code></pre>'

def bound(docs):
    "Writes the ePub into `docs` and returns its place; None where there is no Pandoc"
    pandoc = ['pandoc'] if shutil.which('pandoc') else ['quarto', 'pandoc']
    if not shutil.which(pandoc[0]): return None
    pages = lessons(docs)
    text = ''.join(plain(chapter(docs, o, pages)) for o in pages)
    options = '--from html+tex_math_single_backslash --to epub3 --mathml --toc --toc-depth=2'
    subprocess.run([*pandoc, *options.split(), '--metadata', f'title={TITLE}', '--metadata',
                    'lang=en-GB', '--output', EPUB], input=text, text=True, cwd=docs, check=True)
    return docs/EPUB

if __name__ == '__main__':
    docs = Path(sys.argv[1] if sys.argv[1:] else ROOT/'_docs').resolve()
    if not (docs/'index.html').is_file(): raise SystemExit(f'{docs} holds no built site: make docs')
    files, index = [printed(docs), bound(docs)], docs/'index.html'
    link = f'The course as <a href="{NAME}">a PDF</a>'
    if files[1]: link += f' and <a href="{EPUB}">an ePub</a>'
    index.write_text(index.read_text(encoding='utf-8').replace(MARK, link), encoding='utf-8')
    for file in filter(None, files): print(f'{file}: {file.stat().st_size/1e6:.1f} MB')
