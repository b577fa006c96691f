"""Write the pages of the reference, `nbs/reference/*.md`, from the library as it is: `python
tests/reference.py [--check]`.

A page a package, a section a module, an entry a public name: what it does, how it is called, a
table of its
parameters, its source. Constants have no docstring, so what they are for is said here."""

import importlib, inspect, json, re, sys, textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Union, get_args, get_origin
from fastcore.docments import docments

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))
SOURCE = 'https://github.com/elmo-fastai/elmo_fastai/blob/main'
PACKAGES = dict(
    core='What the lessons build, from counting to taggers and classifiers.',
    text='Where text comes from.',
    practice='What practice needs beside the lessons: files, checkpoints, commands, formats.')
CONSTANTS = dict(
    CORPORA='The corpora that `elmo_pretrain` knows by name, and the function that makes each.',
    TEXT_COLUMNS="The usual names of a table's column of texts.",
    SHOWN='How many rows and columns of a table a report shows.',
    LEXICON='The scenes of the toy grammar: who does what to what where, in each sense of each '
    'word.',
    Word='A word as the grammar writes it: its form, its tag, and its sense if it has several.',
    NO_CLASS='What a classifier answers for a text without a token.',
    PAD='Fills the places after the end of a short sentence.',
    UNK='Any word that the vocabulary lacks.', BOS='Before the first word of a sentence.',
    EOS='After its last word.', SPECIALS='The special words in the order of their ids.',
    MARKS='The marks of a vocabulary that `sample` never draws, as words and as numbers.',
    MAX_SCORES='Scores held at a time; where there are more, they are computed in blocks.',
    ELMO_TINY='For trying things out, and for the toy corpus.', ELMO_SMALL='For a book.',
    ELMO_MEDIUM='For millions of words.',
    ELMO_ORIGINAL='The shape of the published model (Peters et al. 2018).',
    elmo_configs='The ready-made shapes by name.',
    PALETTE='The colours of directions: forward, backward, both.',
    SENSE_COLOURS='The colours of senses.', GAP='What stands for a missing word in `fill`.',
    BOXED='The models that come with the package.',
    FREE='Settings in which two biLMs of one encoder may differ.',
    LABEL_COLUMNS="The usual name of a table's column of labels.",
    BIOES='What the letters of tags that mark spans are called.',
    IGNORE='The tag of padding, and of tokens without a tag.')

def full(package): return 'elmo_fastai' if package == 'core' else f'elmo_fastai.{package}'

def modules(package):
    "The modules of a package in the order of their imports, and the notebook of each"
    found = {}
    folder = root/full(package).replace('.', '/')
    for f in sorted(folder.glob('*.py')):
        if nb := re.search(
            r'File to edit: (?:\.\./)*nbs/(\S+)\.$', f.read_text(encoding='utf-8'), re.M
        ):
            found[f.stem] = nb[1]
    needs = {k: set(re.findall(
        rf'^from (?:\.|{full(package)}\.)(\w+) import',
        (folder/f'{k}.py').read_text(encoding='utf-8'), re.M))
             for k in found}
    done = []
    while len(done) < len(found):
        done.append(
            next(k for k in found if k not in done and not (needs[k] & set(found)) - {*done, k}))
    return {k: found[k] for k in done}

def plain(o):
    "A type or a default as a reader would write it"
    if get_origin(o) in (Union, UnionType): return ' | '.join(map(plain, get_args(o)))
    text = inspect.formatannotation(o) if isinstance(o, type) else repr(o)
    text = re.sub(
        r"<(?:function|class|module) '?(?:[\w.<>]*\.)?([\w<>]+)'?(?: at 0x\w+| from [^>]*)?>",
        r'\1', text)
    return re.sub(r'\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])', '', text).replace('NoneType', 'None')

def escaped(text):
    "Text for a cell of a table, or for a paragraph: nothing in it is markup but code in backticks"
    parts = re.split(r'(`[^`]*`)', ' '.join(str(text).split()))
    return ''.join(p if p[:1] == '`' else re.sub(r'([<*_])', r'\\\1', p) for p in parts).replace(
        '|', r'\|')

def sentence(text):
    "A docstring with the full stop that docstrings of one line leave out"
    text = text.strip()
    return text + '.'*(text[-1:] not in '.?!:')

def summary(module):
    "The first paragraph of a docstring: below it nbdev writes the address of the page"
    return module.__doc__.split('\n\n')[0]

def code(text): return f'`{text}`'.replace('|', r'\|') if text else ''

def shortened(text, width=60): return text if len(text) <= width else text[:width - 1] + '…'

def parameters(o):
    "Rows (name, type, default, what it is) of a function or class; the last is what it returns"
    said, of = docments(o, full=True), getattr(o, '__delwrap__', o)
    # options of a command
    helps = {f.name: f.metadata.get('help') for f in fields(of)} if is_dataclass(of) else {}
    skip, rows = ('self', 'cls'), []
    for name,p in said.items():
        if name in skip or name == 'return': continue
        mark = {inspect.Parameter.VAR_POSITIONAL: '*', inspect.Parameter.VAR_KEYWORD: '**'}.get(
            p['kind'], '')
        anno, default = (
            '' if p[k] is inspect.Parameter.empty else plain(p[k]) for k in ('anno', 'default'))
        rows.append((mark + name, anno, shortened(default), p['docment'] or helps.get(name) or ''))
    back = said.get('return') or {}
    anno = '' if back.get('anno') in (None, inspect.Parameter.empty) else plain(back['anno'])
    if not inspect.isclass(o) and (anno or back.get('docment')):
        rows.append(('returns', anno, '', back.get('docment') or ''))
    return rows

def table(rows):
    "Parameters as a table without columns that are empty"
    heads = ['', 'type', 'default', 'what it is']
    keep = [i for i in range(4) if i == 0 or any(r[i] for r in rows)]
    cells = [[(f'*{r[0]}*' if r[0] == 'returns' else code(r[0])), code(r[1]), code(r[2]),
              escaped(r[3])] for r in rows]
    lines = [[heads[i] for i in keep], ['---']*len(keep), *([c[i] for i in keep] for c in cells)]
    return '\n'.join(f"| {' | '.join(l)} |" for l in lines)

def called(name, rows):
    "How a function is called: its parameters without types"
    args = [r[0] + (f'={r[2]}' if r[2] else '') for r in rows if r[0] != 'returns']
    line = f"{name}({', '.join(args)})"
    return '\n'.join(textwrap.wrap(line, 84, subsequent_indent=' '*4, break_long_words=False,
                                   break_on_hyphens=False))

def source_of(o):
    "A link to where something is defined, if that is in the library and no named tuple"
    if hasattr(o, '_fields'): return ''
    f = inspect.unwrap(o.__func__ if inspect.ismethod(o) else o)
    file, line = Path(inspect.getsourcefile(f)), inspect.getsourcelines(f)[1]
    return (f'[source]({SOURCE}/{file.relative_to(root).as_posix()}#L{line})'
            if root/'elmo_fastai' in file.parents else '')

def entry(name, o, level=3):
    "A heading, the docstring, the call, the parameters"
    rows = [] if hasattr(o, '_fields') else parameters(o)
    doc = sentence('\n\n'.join(
        escaped(p) for p in re.split(r'\n\s*\n', CONSTANTS.get(name) or inspect.getdoc(o) or '')))
    yield f"{'#'*level} {name}\n\n{doc} {source_of(o)}".rstrip()
    call = f"{name}({', '.join(o._fields)})" if hasattr(o, '_fields') else called(name, rows)
    yield f'```python\n{call}\n```'
    if any(any(r[1:]) for r in rows): yield table(rows)

def methods(cls, module=None):
    "What `module`, or its own, adds to a class: (name, function, whether it is an attribute)"
    for k,o in vars(cls).items():
        attribute = isinstance(o, property) or hasattr(o, 'attrname')
        f = getattr(o, 'fget', None) or getattr(o, 'func', None) or getattr(cls, k)
        source = getattr(inspect.unwrap(f), '__module__', None) or ''
        is_patched = source.startswith('elmo_fastai.') and source != cls.__module__
        if k[0] == '_' or not inspect.isroutine(f) or not f.__doc__: continue
        if (source == module) if module else not is_patched: yield k, f, attribute

def constant(name, o):
    "A name that is neither a class nor a function: what it is for, and its value"
    value = shortened(' '.join(plain(o).split()), 320)
    text = textwrap.fill(f'{name} = {value}', 84, subsequent_indent='    ', break_long_words=False)
    yield f'### {name}\n\n{CONSTANTS[name]}'
    if not callable(o): yield f'```python\n{text}\n```'

def named(name, o):
    "All about one public name"
    if inspect.isclass(o) and o.__name__ != name:
        yield f'### {name}\n\nAnother name of `{o.__name__}`.'
    elif inspect.isclass(o) or inspect.isfunction(o):
        yield from entry(name, o)
        if inspect.isclass(o): yield from told(name, methods(o))
    else: yield from constant(name, o)

def told(name, methods):
    "All about the methods of a class"
    for k,f,attribute in methods:
        if attribute:
            yield f'#### {name}.{k}\n\n{escaped(f.__doc__)}. (An attribute.) {source_of(f)}'
        else: yield from entry(f'{name}.{k}', f, 4)

def patched(module):
    "What a module adds to classes of other modules"
    for name,o in vars(module).items():
        if not inspect.isclass(o) or o.__name__ != name: continue
        if o.__module__.startswith('elmo_fastai.') and o.__module__ != module.__name__:
            yield from told(name, methods(o, module.__name__))

def header(title, line):
    "What Quarto makes the head of a page of"
    return f'---\ntitle: "{title}"\ndescription: "{line}"\n---'

def title_of(nb):
    "The title of a chapter"
    return json.loads((root/'nbs'/nb).read_text(encoding='utf-8'))['cells'][0]['source'][
        0].strip('# \n')

def page(package, shown):
    "The text of a package's page; `shown` takes up the names, each of which is told once"
    yield header(full(package), PACKAGES[package])
    yield '[All names of the library](index.md)'
    for name,nb in modules(package).items():
        m = importlib.import_module(f'{full(package)}.{name}')
        file = f"{full(package).replace('.', '/')}/{name}.py"
        short = f'{full(package)}.{name}'.removeprefix('elmo_fastai.')
        yield (f'## {short}\n\n{sentence(summary(m))}\n\n'
               f'Told in [{title_of(nb)}](../{nb}) · [{file}]({SOURCE}/{file})')
        # without fastai's functions that show something, to which a module adds our types
        public = [k for k in m.__all__ if type(getattr(m, k)).__module__ != 'plum._function']
        new = [k for k in public if k not in shown]
        for k in new:
            shown.add(k)
            yield from named(k, getattr(m, k))
        yield from patched(m)
        if old := [k for k in public if k not in new]:
            yield 'Also here: ' + ', '.join(map(code, old)) + '.'

def index(texts):
    "The page that leads to the others: the packages, the core, every name"
    at = {n: f'{k}.md#{n.lower()}' for k, text in texts.items()
          for n in re.findall(r'^### (\w+)$', text, re.M)}
    core = importlib.import_module('elmo_fastai.all')
    def listed(names): return ' · '.join(f'[`{n}`]({at[n]})' for n in sorted(names, key=str.lower))
    rows = [f'| [{full(k)}]({k}.md) | {said} |' for k,said in PACKAGES.items()]
    yield header(
        'Reference', 'Every public name of the library: what it does, its parameters, its source.'
    )
    yield 'The words of the course are in the [glossary](../glossary.ipynb).'
    yield '\n'.join(['## Packages', '', '| | |', '| --- | --- |', *rows])
    yield ('## The core\n\n`from elmo_fastai.all import *` brings these.\n\n'
           + listed(n for n in at if hasattr(core, n)))
    yield f'## All names\n\n{listed(at)}'

def pages():
    "All pages: path → text"
    shown = set()
    texts = {k: '\n\n'.join(page(k, shown)) for k in PACKAGES}
    texts['index'] = '\n\n'.join(index(texts))
    made = {root/'nbs'/'reference'/f'{k}.md': text + '\n' for k,text in texts.items()}
    if left := set(CONSTANTS) - shown:
        raise SystemExit(f'tests/reference.py describes what is not there: {sorted(left)}')
    return made

def main(check):
    "Write the pages, or say which are not up to date"
    stale = []
    for f,text in pages().items():
        if f.exists() and f.read_text(encoding='utf-8') == text: continue
        stale.append(f.relative_to(root))
        if not check:
            f.parent.mkdir(exist_ok=True)
            f.write_text(text, encoding='utf-8')
    if check and stale: print(f"not up to date (run `make export`): {', '.join(map(str, stale))}")
    return int(check and bool(stale))

if __name__ == '__main__':
    import shelves
    if '--check' not in sys.argv[1:]: shelves.write()
    sys.exit(main('--check' in sys.argv[1:]))
