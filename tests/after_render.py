"""Quarto calls this after it has built the site, for what neither it nor nbdev nor nbs/pages.lua
does, with the pages that were built. Each function says what it changes."""
import json, logging, os, re, shutil, struct
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

from elmo_fastai.text.tokenizers import word_tokenize

ROOT = Path(__file__).resolve().parent.parent
BOX = ROOT/'elmo_fastai'/'box'/'mini-en'

def text_of(file): return file.read_text(encoding='utf-8')

# the explainer

def sentence(text, words, s, chosen, word):
    "A sentence and its words; without a text the words alone"
    spans = ''
    for j,w in enumerate(words):
        kind = 'chosen' if (s, j) == chosen else 'same' if w.lower() == word.lower() else ''
        spans += f'<span class="elmo-word {kind}">{escape(w)}</span>'
    typed = f'<p class="elmo-input">{escape(text)}</p>' if text else ''
    return f'<div class="elmo-edit">{typed}<div class="elmo-words">{spans}</div></div>'

def first_view(panel, label, apart):
    """What a view shows first for an example: the boxes of its script at the same places; `apart`
    has the page the sentences in a box of their own"""
    stored = json.loads(text_of(ROOT/'nbs'/'live'/'stored.json'))
    example = next(o for o in stored['examples'] if o['label'] == label)
    tokens = [word_tokenize(o) for o in example['sentences']]
    key = json.dumps(['map', tokens], ensure_ascii=False, separators=(',', ':'))
    places = [(i, j) for i,words in enumerate(tokens) for j in range(len(words))]
    s, t = chosen = tuple(example['chosen'])
    word, rows = tokens[s][t], ''
    if panel == 'input':
        return ('<p class="elmo-numbers still" aria-hidden="true">Sentence</p><ol class='
                '"elmo-sentences"><li>'
                f'{sentence(example["sentences"][s], tokens[s], s, chosen, word)}'
                '<div class="elmo-bars"></div></li></ol>')
    def line(place):
        "A compared word and a bar for each layer"
        a, b = sorted(map(places.index, (chosen, place)))
        values = [layer[b*(b-1)//2 + a]/100 for layer in stored['answers'][key]['cosines']]
        bars = ''.join(f'<span class="elmo-bar" style="--share: {max(0, v):.2f}"><b>{v:.2f}</b>'
                       '</span>' for v in values)
        name = escape(tokens[place[0]][place[1]])
        return f'<p class="elmo-line"><span class="elmo-name">{name}</span>{bars}</p>'
    for i,(text,words) in enumerate(zip(example['sentences'], tokens)):
        bars = ''.join(line((i, j)) for j,w in enumerate(words)
                       if w.lower() == word.lower() and (i, j) != chosen)
        row = sentence('' if apart else text, words, i, chosen, word)
        rows += f'<li>{row}<div class="elmo-bars">{bars}</div></li>'
    def texts(names): return ''.join(f'<span>{escape(o, quote=False)}</span>' for o in names)
    heads = texts([f'“{word}” and', 'layer 0: letters', 'layer 1', 'layer 2'])
    tries = texts([*(o['label'] for o in stored['examples'] if 'panel' not in o),
                   'a word that it gets wrong'])
    return (f'<p class="elmo-heads">{heads}</p><ol class="elmo-sentences">{rows}</ol>'
            '<div class="elmo-panel"></div>'
            f'<p class="elmo-examples still" aria-hidden="true">Try: {tries}</p>'
            '<p class="elmo-keep still" aria-hidden="true"></p>')

PICTURE = re.compile(r'(<div class="elmo-live" data-panel="(bars|input)" data-example="([^"]+)">)'
                     r'.*?</div>(?=\s*(?:<p|<div|<section|<ol|</section))', re.S)

def alive(html):
    "`html` with the explainer's first view for its picture: nothing moves when the script begins"
    apart = 'data-panel="input"' in html
    return PICTURE.sub(lambda m: f'{m[1]}{first_view(m[2], m[3], apart)}</div>', html)

LOADED = 'config.json', 'model.safetensors', 'output.safetensors', 'vocab.json'

def boxed(live):
    "Copy what the scripts of the folder `live` load of the model in the package"
    (live/BOX.name).mkdir(parents=True, exist_ok=True)
    for name in LOADED: shutil.copyfile(BOX/name, live/BOX.name/name)

# pictures

def extent(file):
    "Width and height of a picture in pixels; None for a drawing that does not say"
    if file.suffix == '.png': return struct.unpack('>II', file.read_bytes()[16:24])
    svg = re.search(r'<svg\b[^>]*>', text_of(file))[0]
    box = re.search(r'\bviewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', svg)
    points = re.search(r' width="[\d.]+pt"', svg)
    return box and [round(float(o)*(4/3 if points else 1)) for o in box.groups()]

# pixels from which a picture is too wide for a phone: its labels would be smaller than 12
PHONE = 560

# the end of the name of a picture for some readers, and for whom it is
VERSIONS = {'-narrow': 'max-width: 40rem', '-still': 'prefers-reduced-motion: reduce'}

def sized(html, folder):
    """`html` with the sizes of its pictures, read from their files in `folder`, so that nothing
    moves; they come late, but at once what stands before the first section"""
    begin = html.find('<section', html.find('<main'))
    def size(m):
        file, kind, rest = folder/unquote(m[2]), '', m[1]
        if 'navbar-logo' in rest or not file.is_file() or not (found := extent(file)): return m[0]
        w, h = found
        plot, narrow = 'figure-html' in m[2], file.with_name(f'{file.stem}-narrow.svg')
        if plot and w > 1.8*h: kind = 'wide panels '         # side by side: a phone scrolls them
        elif not narrow.is_file() and file.suffix == '.svg' and w > PHONE: kind = 'wide '
        if plot and b'<image' in file.read_bytes(): kind += 'shades '  # lightness is a number
        if 'class="' not in rest: rest += ' class=""'
        rest = rest.replace('class="', f'class="{kind}', 1)
        when = 'fetchpriority="high"' if m.start() < begin else 'loading="lazy"'
        img, sources = f'<img width="{w}" height="{h}" {when}{rest}>', ''
        for end,asked in VERSIONS.items():
            version = file.with_stem(file.stem + end)
            if plot or not version.is_file(): continue
            w, h = extent(version)
            src = m[2].replace(file.name, version.name)
            sources += f'<source media="({asked})" srcset="{src}" width="{w}" height="{h}">'
        return f'<picture>{sources}{img}</picture>' if sources else img
    return re.sub(r'<img\b([^>]*\bsrc="(?!https?:|data:)([^"]+\.(?:png|svg))"[^>]*)>', size, html)

# links and the search

def linked(html, page, ids, base):
    """`html` with links inside the site at `base` made relative, so that a copy stays in the copy;
    a name in backticks leads to its definition or its class, and what is no name of ours nowhere"""
    def name(m):
        url, anchor = urldefrag(urljoin(base + page, m[1]))
        if not url.startswith(base): return m[0]
        known = ids.get(url.removeprefix(base), ())
        to = next((o for o in (anchor, anchor.split('.')[0]) if o in known), None)
        return m[0].replace(f'#{anchor}"', f'#{to}"') if to else m[2]
    html = re.sub(r'<a href="([^"]*#[\w.]+)"[^>]*>(<code>[^<]*</code>)</a>', name, html)
    return re.sub(rf'(<a\b[^>]*?\shref="){re.escape(base)}(?=[\w/-]+\.html)',
                  rf"\1{'../'*page.count('/')}", html)

ASKED = {  # the section that answers → what a reader asks for
    'start.html#two-commands': 'install, installation',
    'use.html#your-own-text': 'train on my own text, options',
    'course/quickstart.html': 'getting started, tutorial',
    'course/surprise.html#surprise-entropy-perplexity': 'perplexity, entropy',
    'course/ngrams.html#what-a-language-model-is': 'n-gram, language model',
    'course/recurrent.html#the-lstm-gate-by-gate': 'LSTM, gate',
    'course/recurrent.html#gradients-that-shrink-or-grow': 'vanishing gradient, exploding gradient',
    'course/elmo.html#equation-1': 'scalar mix',
    'course/history.html#from-word2vec-to-bert': 'BERT, GPT',
    'library/ai2.html#read': 'load AI2 weights, pretrained weights',
    'library/folder.html': 'load a model, save a model'}
CUT = re.compile(r'<(pre|table|script|style|button|summary)\b.*?</\1>'
                 r'|<span class="math[^"]*">.*?</span>|<img\b[^>]*>|<[^>]*>', re.S)

def prose(html):
    "The text of `html` without code, tables and formulas, and the names that its code defines"
    names = re.findall(r'<span id="([^"]+)" class="definition"', html)
    return ' '.join([*unescape(CUT.sub(' ', html)).split(), *names])

def parts(html):
    "The prose of each section of a page by its anchor; '' is the opening"
    main = html[html.find('</header>', html.find('<main')):html.find('</main>')]
    first, *rest = re.split(r'<section id="([^"]+)" class="level2[^"]*">', main)
    return {anchor: prose(o) for anchor,o in zip(['', *rest[::2]], [first, *rest[1::2]])}

def found(items, html):
    "The entries `items` of the search with prose alone, and what readers ask for"
    texts = {page: parts(o) for page,o in html.items()}
    items = {o['href']: o for o in items if not o['objectID'].startswith('asked ')}
    for href,o in items.items():
        page, anchor = urldefrag(href)
        o['text'] = texts.get(page, {}).get(anchor, o['text'])
    asked = [items[href] | dict(objectID=f'asked {q}', section=q) for href,said in ASKED.items()
             if href in items for q in said.split(', ')]
    return [*items.values(), *asked]

# what no page uses

UNUSED = re.compile(
    r'<script src="https://cdnjs\.cloudflare\.com/ajax/libs/(?:require\.js|jquery)/.*?</script>\n?'
    r'|<script type="application/javascript">define\(\'jquery\'.*?</script>\n?')

def lighter(html):
    """`html` without require.js and jQuery, which Quarto loads from another host where there is a
    table, with scripts that wait until the page is read, and without headings of no text"""
    if 'application/vnd.jupyter.widget' not in html: html = UNUSED.sub('', html)
    html = re.sub(r'<th\b([^>]*)>\s*</th>', r'<td\1></td>', html)
    return re.sub(r'<script (src="[^"]*site_libs/[^"]*"></script>)', r'<script defer \1', html)

RULE = re.compile(r'([^{}@;]+)\{[^{}]*\}')
MADE = 'bs-', 'aa-', 'tippy', 'quarto-', 'katex'           # classes that scripts put together

def fewer_rules(docs):
    "Leave in Bootstrap's style sheets the rules whose classes a page or a script of `docs` names"
    used = set()
    for f in docs.rglob('*.js'): used.update(re.findall(r'[A-Za-z_][\w-]*', text_of(f)))
    for f in docs.rglob('*.html'):
        named = re.findall(r'\bclass="([^"]*)"|(<script\b.*?</script>)', text_of(f), re.S)
        used.update(re.findall(r'[A-Za-z_][\w-]*', str(named)))
    def kept(selector):
        classes = re.findall(r'\.([A-Za-z_][\w-]*)', re.sub(r'\([^()]*\)', '', selector))
        return all(o in used or o.startswith(MADE) for o in classes)
    def rule(m):
        selectors = [o for o in re.split(r',(?![^()]*\))', m[1]) if kept(o)]
        return ','.join(selectors) + m[0][len(m[1]):] if selectors else ''
    for f in docs.glob('site_libs/bootstrap/bootstrap-*.min.css'):
        f.write_text(RULE.sub(rule, text_of(f)), encoding='utf-8')

def fewer_icons(docs):
    "Leave in the font of icons and its style sheet those that a page or a script of `docs` names"
    from fontTools import subset
    from fontTools.ttLib import TTFont
    logging.getLogger('fontTools').setLevel(logging.ERROR)      # two odd bytes
    css, font = (docs/f'site_libs/bootstrap/bootstrap-icons.{e}' for e in ('css', 'woff'))
    used = {'file-richtext'}                # the one that the search names in two halves
    for f in [*docs.rglob('*.html'), *docs.rglob('*.js')]:
        used |= {*re.findall(r'\bbi-([a-z0-9-]+)', text_of(f))}
    rule = re.compile(r'^\.bi-([\w-]+)::before \{ content: "\\(\w+)"; \}\n?', re.M)
    codes = {int(m[2], 16) for m in rule.finditer(text_of(css)) if m[1] in used}
    css.write_text(rule.sub(lambda m: m[0]*(m[1] in used), text_of(css)), encoding='utf-8')
    f, cut = TTFont(font), subset.Subsetter()
    cut.populate(unicodes=codes)
    cut.subset(f)
    f.save(font)

def main(docs, built):
    "Change the pages `built` of the site in the folder `docs`; all of them without a list"
    html = {f.relative_to(docs).as_posix(): text_of(f) for f in sorted(docs.rglob('*.html'))
            if 'site_libs' not in f.parts}
    home = re.search('<link rel="canonical" href="([^"]*)"', html['index.html'])
    items = found(json.loads(text_of(docs/'search.json')), html)
    (docs/'search.json').write_text(json.dumps(items, ensure_ascii=False), encoding='utf-8')
    for page in built or html:
        html[page] = lighter(sized(alive(html[page]), (docs/page).parent))
    ids = {page: {*re.findall(r'\bid="([^"]+)"', o)} for page,o in html.items()}
    for page in built or html:
        made = linked(html[page], page, ids, home[1].removesuffix('index.html'))
        (docs/page).write_text(made, encoding='utf-8')
    boxed(docs/'live')
    if built: return
    fewer_icons(docs)
    fewer_rules(docs)

if __name__ == '__main__':
    docs, files = (os.environ[f'QUARTO_PROJECT_OUTPUT_{o}'] for o in ('DIR', 'FILES'))
    whole = os.environ.get('QUARTO_PROJECT_RENDER_ALL')
    main(Path(docs), [] if whole else [os.path.relpath(o, docs) for o in files.split('\n')
                                       if o.endswith('.html')])
