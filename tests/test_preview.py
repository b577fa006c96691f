"The chapters as pages without Quarto: tests/preview.py"
import importlib.util, json, re, shutil, subprocess, sys, warnings
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

root = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location('preview', root/'tests'/'preview.py')
preview = importlib.util.module_from_spec(spec)
spec.loader.exec_module(preview)
SOME = ['00_quickstart', '05_recurrence', '06_cbow', '12c_pictures']

def pages(folder): return {f.stem: BeautifulSoup(re.sub(r'<path d="[^"]*"/>', '', f.read_text(encoding='utf-8')), 'html.parser') for f in sorted(folder.glob('*.html'))}
def notebook(name): return json.loads((root/'nbs'/f'{name}.ipynb').read_text(encoding='utf-8'))
def cells(name, kind): return [''.join(c['source']) for c in notebook(name)['cells'] if c['cell_type'] == kind]
def order(): return [Path(f).stem for _,f in preview.sections(preview.yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))['website']['sidebar']['contents'])]
def targets(soup): return [(t, t.get('href') or t.get('src')) for t in soup.find_all(['a', 'img', 'link', 'script', 'iframe', 'video']) if t.get('href') or t.get('src')]

@pytest.fixture(scope='module')
def some(tmp_path_factory):
    "Four chapters"
    out = tmp_path_factory.mktemp('preview')
    preview.build(out, SOME)
    return out, pages(out)

@pytest.fixture(scope='module')
def everything(tmp_path_factory):
    out = tmp_path_factory.mktemp('preview')
    files, notes = preview.build(out)
    return out, pages(out), files, notes

def check_links(folder, soups):
    "Every internal link leads to a page and, with an anchor, to a place on it; every picture is there; nothing is fetched from elsewhere"
    ids = {name: [t['id'] for t in s.find_all(id=True)] for name,s in soups.items()}
    for name,s in soups.items():
        assert len(set(ids[name])) == len(ids[name]), f'{name}: an anchor twice'
        for tag,target in targets(s):
            if re.match(r'https?:', target): assert tag.name == 'a', f'{name}: {target} would be fetched'; continue
            if target.startswith('data:'): continue
            path, _, anchor = target.partition('#')
            assert not path or (folder/path).is_file(), f'{name}: {target}'
            if anchor: assert anchor in ids[Path(path).stem if path else name], f'{name}: {target}'

def check_text(soups):
    "No directive, front matter, fence or formula is left as it was typed"
    for name,s in soups.items():
        for code in s.select('.code pre'):
            assert not re.search(r'^#\||#\|\s*hide_line', code.text, re.M), name
        assert s.title.text and s.find('meta', {'name': 'description'})['content'] and len(s.find_all('h1')) == 1, name
        said = ' '.join(t for t in s.find_all(string=True) if not t.find_parent(['pre', 'code', 'style']))
        for raw in ('skip_showdoc', ':::', '\\frac', '\\sum', '```', '$$', '.ipynb)'): assert raw not in said, (name, raw)

def test_links_pictures_and_text(some):
    folder, soups = some
    assert set(soups) == set(SOME)
    check_links(folder, soups)
    s = soups['05_recurrence']
    assert 'without Quarto' in s.select_one('.note').text and 'make docs' in s.select_one('.note').text
    assert s.h1.text == 'Recurrence' and s.select_one('.description').text.startswith('An Elman network')
    assert s.html['lang'] and s.find('meta', {'name': 'viewport'})
    assert len(s.select('.math svg')) > 20 and not s.select('code.tex, script')
    assert all(m['aria-label'] for m in s.select('.math'))
    check_text(soups)

def test_order_is_the_sidebar(some):
    _, soups = some
    built = [o for o in order() if o in SOME]
    for name,s in soups.items():
        assert [Path(a['href']).stem for a in s.select('.side a')] == built
        assert [Path(a['href']).stem for a in s.select('.side a[aria-current=page]')] == [name]
        turn, i = {a['rel'][0]: Path(a['href']).stem for a in s.select('.turn a')}, built.index(name)
        assert turn == {k: built[j] for k,j in (('prev', i-1), ('next', i+1)) if 0 <= j < len(built)}
    headings = [h.text for h in soups['05_recurrence'].select('.side h2')]
    assert headings == ['Sequences', 'Language models', 'Use']

def test_code_is_what_the_site_shows(some):
    "Taught cells with their outputs, hidden ones not, solutions folded"
    _, soups = some
    for name in SOME:
        shown = [c for c in cells(name, 'code') if not re.search(r'^#\|\s*(hide|default_exp|exporti?)\b(?!s)', c, re.M)]
        code = [c.text.strip() for c in soups[name].select('.code pre')]
        assert code == [re.sub(r'\A(#\|.*\n?)+', '', c).strip() for c in shown]
        folded = sum('code-fold: true' in c for c in shown)
        assert len(soups[name].select('details.fold')) == folded and (name == '00_quickstart' or folded)
    assert '2.98' in soups['05_recurrence'].select_one('.out').find_next('div', class_='out').text

def test_captions_and_descriptions(some):
    _, soups = some
    for name,s in soups.items():
        wanted = [(d['fig-cap'], d['fig-alt']) for c,o in ((''.join(c['source']), c['outputs']) for c in notebook(name)['cells'] if c['cell_type'] == 'code')
                  if (d := preview.directives(c)).get('fig-cap') and any(m.startswith('image/') for p in o for m in p.get('data', {}))]
        got = [(f.figcaption.text, f.img['alt']) for f in s.select('figure')]
        assert len(got) == len(wanted)
        for (cap, alt),(cap_, alt_) in zip(got, wanted):
            assert alt == preview.plain(alt_) and re.sub(r'\W', '', cap)[:20] == re.sub(r'\W', '', re.sub(r'\$.*?\$', '', preview.plain(cap_)))[:20]
        assert all(len(i.get('alt', '')) > 15 for i in s.select('main img'))
    assert len(soups['12c_pictures'].select('figure')) >= 3

def test_all_chapters(everything):
    folder, soups, files, notes = everything
    assert {f.stem for f in files} == set(soups) == {f.stem for f in (root/'nbs').glob('*.ipynb')}
    check_links(folder, soups)
    for n in notes: warnings.warn(n)
    check_text(soups)

def test_a_second_run_drops_pages_of_chapters_that_are_gone(tmp_path):
    nbs, out = tmp_path/'nbs', tmp_path/'out'
    nbs.mkdir()
    for n in ('index', '03_batches'): shutil.copy(root/'nbs'/f'{n}.ipynb', nbs)
    shutil.copytree(root/'nbs'/'images', nbs/'images')
    files, notes = preview.build(out, nbs=nbs)
    assert [f.stem for f in files] == ['index', '03_batches'] and any('05_recurrence.ipynb, which does not exist' in n for n in notes)
    (nbs/'03_batches.ipynb').unlink()
    preview.build(out, nbs=nbs)
    assert set(pages(out)) == {'index'}
    s = pages(out)['index']
    assert not [a for a in s.select('main a[href]') if '.ipynb' in a['href'] or '03_batches' in a['href']], 'no link to a page that does not exist'

def page(tmp_path, *made, **kw):
    "The page of a notebook of these cells"
    nbs = tmp_path/'nbs'
    nbs.mkdir(exist_ok=True)
    cells = [dict(id=f'c{i}', metadata={}, **c) for i,c in enumerate(made)]
    d = dict(nbformat=4, nbformat_minor=5, metadata=dict(kernelspec=dict(name='python3', display_name='Python 3')), cells=cells)
    (nbs/'01_a.ipynb').write_text(json.dumps(d), encoding='utf-8')
    files, notes = preview.build(tmp_path/'out', nbs=nbs)
    return BeautifulSoup(files[0].read_text(encoding='utf-8'), 'html.parser'), notes

def md(text): return dict(cell_type='markdown', source=text)
def code(text, *outputs): return dict(cell_type='code', source=text, execution_count=None, outputs=list(outputs))
def out(**data): return dict(output_type='display_data', metadata={}, data={k.replace('_', '/'): v for k,v in data.items()})

def test_directives(tmp_path):
    dot = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
    picture = dict(output_type='display_data', metadata={}, data={'image/png': dot, 'text/plain': '<Figure>'})
    s, _ = page(tmp_path, md('# T\n\n> D\n\n- skip_showdoc: true'), code('#| hide\nsecret'), code('#| default_exp x'), code('#| export\nexported'), code('#| exporti\ninner'),
                code('#| exports\ndef f(): pass'), code('#| eval: false\nnever_run()'), code('#| echo: false\nunseen', out(text_plain='seen')), code('#| output: false\nquiet', out(text_plain='gone')),
                code('#| include: false\nnothing'), code('a = 1\nb = 2  #| hide_line'), code('#| code-fold: true\n#| code-summary: "Solution 1"\n6*7'),
                code('#| fig-cap: "With `code`: a colon"\n#| fig-alt: "A \\"quoted\\" <dot>"\nplot()', picture), code('#| slow\nlong()'))
    assert [c.text.strip() for c in s.select('.code pre')] == ['def f(): pass', 'never_run()', 'quiet', 'a = 1', '6*7', 'plot()', 'long()']
    assert [o.text.strip() for o in s.select('.out')][0] == 'seen' and 'gone' not in s.text
    assert s.select_one('details.fold summary').text == 'Solution 1' and '6*7' in s.select_one('details.fold').text.replace(' ', '')
    assert str(s.figcaption.code) == '<code>code</code>' and s.figure.img['alt'] == 'A "quoted" <dot>'
    assert (s.h1.text, s.select_one('.description').text, s.title.text.split()[0]) == ('T', 'D', 'T')

def test_headings_links_and_formulas(tmp_path):
    s, notes = page(tmp_path, md('# T\n\n> D'), md('## `embed` and <b>more</b>!\n\n### 2. A step\n\n## Twice\n\n## Twice\n\n## Named {#here}'),
                    md('[up](#embed-and-more) [gone](99_nowhere.ipynb#x) [file](../secret.txt) ![A badge from elsewhere](https://example.org/b.svg)\n\n'
                       'Inline $x_1 < 2$, bad $\\nosuchcommand{1}$; costs \\$5.\n\n$$\\begin{cases} a & b \\\\ \\frac{1}{2} & d\\end{cases}$$'))
    assert [h['id'] for h in s.select('main h2, main h3')] == ['embed-and-more', 'a-step', 'twice', 'twice-1', 'here']
    assert [a.get('href') for a in s.select('main p > a')] == ['#embed-and-more', None, None]
    assert not s.select('main img') and 'A badge from elsewhere' in s.main.text
    assert s.select('.math')[0]['aria-label'] == 'x_1 < 2' and len(s.select('.grid svg')) == 4 and s.select_one('code.tex').text == r'\nosuchcommand{1}'
    assert any('01_a: 1 formula ' in n for n in notes) and 'costs $5' in s.main.text
    assert [a['href'] for a in s.select('.toc a')] == ['#embed-and-more', '#a-step', '#twice', '#twice-1', '#here']

def test_hostile_text_stays_text(tmp_path):
    s, _ = page(tmp_path, md('# <T> & "Q"\n\n> a "d" <x>'), code('"<script>alert(1)</script>"', out(text_plain='<script>alert(2)</script>'),
                dict(output_type='stream', name='stdout', text='<script>'), dict(output_type='stream', name='stderr', text='a warning')))
    assert not s.select('script') and 'alert(2)' in s.text and 'a warning' not in s.text
    assert s.find('meta', {'name': 'description'})['content'] == 'a "d" <x>'
    assert '<title>&lt;T&gt; &amp; ' in (tmp_path/'out'/'01_a.html').read_text(encoding='utf-8')

def run(*args): return subprocess.run([sys.executable, str(root/'tests'/'preview.py'), *args], capture_output=True, text=True)

def test_an_unknown_chapter_is_named():
    p = run('05_recurrence', '77_nothing')
    assert p.returncode == 1 and 'there is no chapter 77_nothing' in p.stderr and '05_recurrence' in p.stderr and 'Traceback' not in p.stderr

@pytest.mark.parametrize('text', ['{"cells": [', '[]', '', '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": 3}'])
def test_a_broken_notebook_is_named(tmp_path, text):
    nbs = tmp_path/'nbs'
    nbs.mkdir()
    (nbs/'01_a.ipynb').write_text(text, encoding='utf-8')
    with pytest.raises(SystemExit, match=r"01_a\.ipynb can't be read as a notebook"): preview.build(tmp_path/'out', nbs=nbs)
    assert not (tmp_path/'out').exists()
