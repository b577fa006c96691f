"""The chapters as one course: what each has to say, its exercises, its way to Colab, its place
among the others; the reference and the glossary"""
import builtins, re
from pathlib import Path

import pytest
from notebooks import *

# what every chapter has

def page(nb): return nb.relative_to(home).as_posix()

def needs(nb):
    "The paragraph that says what a chapter needs and how long it runs"
    found = [p for p in prose(nb).split('\n\n') if re.match(r'\*\*(What y|Y)ou need\b', p)]
    assert len(found) == 1
    return found[0]

@each_taught
def test_chapters_say_what_you_will_learn(nb):
    assert re.search(r'^\*\*What you will (learn|see|build)\*\*:?\s*\n(\n*[-*] .*){3}', prose(nb),
                     re.M), 'three bullets'
    assert re.search(r'^## Further reading', prose(nb), re.M)

@each_taught
def test_chapters_say_what_you_need_and_how_long_they_run(nb):
    text, names = needs(nb), order()
    assert re.search(r'\b(second|minute)s?\b', text), 'how long?'
    earlier = {Path(o).name for o in names[:names.index(page(nb))]}
    assert earlier & set(links(text)) or re.search(r'\b([Nn]othing|Python)\b',
                                                   text), 'which chapters?'

@each_taught
def test_exercises_have_hints_and_solutions(nb):
    heads = re.findall(r'^## (.*)$', prose(nb), re.M)
    for h in ('Recap', 'Exercises', 'Solutions'): assert heads.count(h) == 1, h
    assert heads.index('Recap') < heads.index('Exercises') < heads.index('Solutions')
    asked, _ = section(nb, 'Exercises')
    hints = re.findall(r'<details>\s*<summary>\s*Hints?\s*</summary>(.*?)</details>', asked, re.S)
    assert hints and len(hints) == asked.count('<details>') and all(h.strip() for h in hints)
    numbers = [int(n) for n in re.findall(r'^(\d+)\. ',
                                          re.sub(r'<details>.*?</details>', '', asked, flags=re.S),
                                          re.M)]
    assert numbers == list(range(1, len(numbers)+1)) and 4 <= len(numbers) <= 6
    hinted = [int(n) for n in re.findall(r'^\s*(\d+)[.:)] ', '\n'.join(hints), re.M)]
    assert hinted == numbers or len(hints) == len(numbers), 'a hint for each exercise'
    said, code = section(nb, 'Solutions')
    live = [c for c in code if 'hide' not in directives(c)]
    assert live and all(directives(c).get('code-fold') == 'true'
                        for c in live), 'solutions are live and folded'
    commented = '\n'.join(map(source, live))
    def solved(n):
        return re.search(rf'^# {n}\b', commented,
                         re.M) or re.search(rf'(?:^|\s|\*\*|\(){n}(?:[.:)]|\*\*|,| and '
                                            rf'|–|\s+["$`(*“]*[A-Z])', said, re.M)
    missing = [n for n in numbers if not solved(n)]
    assert not missing, f'no solution of {missing}'

# Colab

@each_taught
def test_chapters_open_in_colab(nb):
    link = REPOSITORY.replace('github.com',
                              'colab.research.google.com/github') + f'/blob/main/nbs/{page(nb)}'
    assert needs(nb).endswith(f'[Open in Colab]({link})')
    code = cells(nb, 'code')
    first = next(i for i,c in enumerate(code) if re.search(r'^(import|from) ', source(c), re.M))
    assert code[first]['id'] == 'colab', 'it installs before the first import'
    assert {'hide', 'eval'} <= set(directives(code[first]))
    assert directives(code[first])['eval'] == 'false' and not code[first]['outputs']
    assert sum('git clone' in source(c) for c in code) == 1

def test_all_chapters_install_alike():
    found = {source(c).replace(f'/nbs/{nb.parent.name}', '/nbs') for nb in chapters
             for c in cells(nb, 'code') if c['id'] == 'colab'}
    assert len(found) == 1
    install, = found
    assert f'git clone -q --depth 1 {REPOSITORY} elmo_fastai\n' in install
    assert '%cd -q elmo_fastai/nbs' in install

def test_the_cell_that_installs_does_nothing_in_the_repository(monkeypatch, tmp_path):
    "Alone, without the course's files or without the library, it fetches, installs and goes there"
    inputtransformer2 = pytest.importorskip('IPython.core.inputtransformer2')
    done = []
    class Shell:
        def system(self, command): done.append(command)
        def run_line_magic(self, name, line, **kwargs): done.append(f'{name} {line}')
    cell = next(source(c) for c in cells(taught[0], 'code') if c['id'] == 'colab')
    code = inputtransformer2.TransformerManager().transform_cell(cell)
    monkeypatch.chdir(home/'course')
    exec(code, {'get_ipython': Shell})
    assert not done
    monkeypatch.chdir(tmp_path)
    exec(code, {'get_ipython': Shell})
    assert [o.split()[0] for o in done] == ['[', 'pip', 'cd']
    done.clear()
    monkeypatch.chdir(home/'course')
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    exec(code, {'get_ipython': Shell})
    assert [o.split()[0] for o in done] == ['[', 'pip', 'cd']

# the way from chapter to chapter

def test_the_navbar_leads_somewhere():
    for side in ('left', 'right'):
        for o in site()['website']['navbar'].get(side, []):
            if 'href' not in o or o['href'].startswith('https://'): continue
            target, _, anchor = o['href'].partition('#')
            assert (home/target).is_file(), o['href']
            assert not anchor or anchor in anchors(home/target), o['href']

@each_taught
def test_course_chapters_lead_to_their_neighbours(nb):
    last, i = links(source(cells(nb, 'markdown')[-1])), taught.index(nb)
    for j in (i-1, i+1):
        if 0 <= j < len(taught):
            assert taught[j].name in last, f'no link to {taught[j].name} at the end'

@rule_for([f for f in chapters if f not in taught])
def test_other_chapters_lead_back_to_the_course(nb):
    last = links(source(cells(nb, 'markdown')[-1]))
    assert [o for o in last if o.startswith('../course/')] and '../index.ipynb#the-course' in last

@each_chapter
def test_the_home_page_or_that_of_its_shelf_lists_every_chapter(nb):
    shelf = home/nb.parent.name/'index.qmd'
    listed = f']({nb.name})' in shelf.read_text(encoding='utf-8') if shelf.is_file() else False
    assert listed or re.search(rf'\]\({page(nb)}\)|href="{page(nb)}"', prose(home/'index.ipynb'))

# the budget of the course

def code_lines(cell):
    return [o for o in source(cell).split('\n') if o.strip() and not o.startswith('#|')]
def exported(cell): return re.search(r'^#\|\s*export', source(cell), re.M)
def folded(cell): return directives(cell).get('code-fold') == 'true' or 'hide' in directives(cell)

@each_taught
def test_open_cells_fit_on_a_screen(nb):
    for c in cells(nb, 'code'):
        if folded(c): continue
        most = 25 if source(c).startswith('#| exports') else 20
        assert len(code_lines(c)) <= most, f"{c['id']}: {len(code_lines(c))} lines"
        assert max(map(len, code_lines(c)), default=0) <= 92, c['id']

@each_taught
def test_the_course_shows_no_refusals(nb):
    for c in cells(nb, 'code'): assert folded(c) or 'test_fail' not in source(c), c['id']

@each_taught
def test_a_course_chapter_needs_only_what_the_course_has_told(nb):
    """A library name is used only where this chapter or an earlier one has built it or said what
    it is"""
    told = '\n'.join(prose(o) + '\n'.join(source(c) for c in cells(o, 'code') if c['id'] != 'colab'
                                          and not re.search('^from elmo_fastai', source(c), re.M))
                     for o in taught[:taught.index(nb)+1])
    text = '\n'.join(map(source, cells(nb, 'code')))
    for names in re.findall(r'^from elmo_fastai\.[\w.]+ import (.*)$', text, re.M):
        for o in re.findall(r'(\w+)(?: as \w+)?', names):
            assert re.search(rf'`[^`]*\b{o}\b[^`]*`',
                             told), f'{o} is used before the course has told what it is'

# the recap

NUMBER = re.compile(r'(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])')
NAMES = re.compile(r'<!-- cells?: ([\w, -]+) -->$')

def shown(number, text):
    "Is a number, as it is written, one of those in a text, rounded to as many places?"
    _,_,places = number.partition('.')
    wanted = float(number.replace(',', ''))
    found = [float(o.replace(',', '')) for o in re.findall(r'-?\d+(?:,\d{3})*(?:\.\d+)?', text)]
    near = .5*10**-len(places)*1.001
    # .87 is 87 %
    return any(abs(abs(f)*scale - wanted) <= near for f in found for scale in (1, 100))

@each_taught
def test_each_sentence_of_a_recap_names_what_shows_it(nb):
    "A cell of this page with an output, in which the sentence's numbers stand"
    text, _ = section(nb, 'Recap')
    bullets = [re.sub(r'\s+', ' ', o).strip()
               for o in re.split(r'(?m)^- ', re.split(r'\n\s*\n(?!- )',
                                                      text.partition('\n')[2].strip())[0])[1:]]
    assert 2 <= len(bullets) <= 5, bullets
    by_id = {c['id']: c for c in read(nb)['cells']}
    for bullet in bullets:
        found = NAMES.search(bullet)
        assert found, f'names no cell: {bullet}'
        ids = [o.strip() for o in found[1].split(',')]
        outputs = [by_id[o]['outputs'] for o in ids]
        assert all(outputs), f'{ids}: a cell without an output'
        said = ' '.join(re.sub(r'<[^>]*>', ' ', o) for out in outputs for o in texts(out))
        for number in NUMBER.findall(NAMES.sub('', bullet)):
            if number.isdigit() and int(number) < 10: continue              # two layers, 1 and 2
            assert shown(number, said), f'{number} is not in the output of {ids}: {bullet}'

@rule_for(taught[1:])                                        # the quickstart takes ten minutes
def test_three_quick_questions(nb):
    text, _ = section(nb, 'Three quick questions')
    assert text.count('<details>') == text.count('</details>') == 3

# the reference

def test_no_table_says_that_it_is_missing():
    "What a script has measured a page shows"
    found = {name(f) for f in nbs for c in cells(f, 'code')
             if re.search('not measured yet', json.dumps(c['outputs']), re.I)}
    assert not found

# the glossary

glossary = home/'glossary.ipynb'

TERM = re.compile(r'^- \*\*(.+?)\*\*: (.+)$', re.M)

def test_the_glossary_is_in_order():
    said = [re.sub(r'[^a-z0-9 ]', '', t.lower().replace('–', ' ')).strip()
            for t,_ in TERM.findall(prose(glossary))]
    assert len(said) > 80 and said == sorted(said) and len(set(said)) == len(said)

def test_the_glossary_leads_to_chapters():
    rows = re.findall(r'^\| (?!\||-|stands)(.*) \|$', prose(glossary), re.M)
    for text in [f'{t}: {said}' for t,said in TERM.findall(prose(glossary))] + rows:
        assert re.search(r'\]\((?:course|library|studies)/\w+\.ipynb\)$', text), text

def test_names_in_the_glossary_exist():
    library = set(re.findall(r'\w+', '\n'.join(f.read_text(encoding='utf-8')
                                               for f in (root/'elmo_fastai').rglob('*.py'))))
    pages = set(re.findall(r'^(?:def|class) (\w+)',
                           '\n'.join(source(c) for f in chapters for c in cells(f, 'code')), re.M))
    fastai = {'fit_one_cycle', 'encodes', 'decodes', 'slice'}
    for term,text in TERM.findall(prose(glossary)):
        for code in re.findall(r'`([^`]+)`', term + text):
            for o in re.findall(r'[A-Za-z_]\w+', re.sub(r"'.*?'|<.*?>", '', code)):
                assert o in library | pages | fastai | set(dir(builtins)), (term, o)
