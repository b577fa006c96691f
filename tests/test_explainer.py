"The explainer in a browser: what is seen, typed, followed, limited, kept in an address, and said when something fails"
import functools, http.server, json, re, shutil, sys, threading
from pathlib import Path
from urllib.parse import quote

import numpy as np, pytest

from elmo_fastai.text.tokens import word_tokenize
from elmo_fastai.elmo.module import Elmo

root = Path(__file__).resolve().parent.parent
live = root/'nbs'/'live'
sys.path.insert(0, str(root/'tests'))
from after_render import boxed

pytestmark = pytest.mark.slow

PAGE = '''<!doctype html><html lang="en-GB"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Live</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="styles.css"></head><body class="quarto-light"><main><h1>Live</h1><div class="elmo-live"><p>A picture.</p></div></main>%s</body></html>'''

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "What the site serves, without Quarto: a page with the explainer, the scripts, the model"
    folder = tmp_path_factory.mktemp('live')
    shutil.copytree(live, folder/'live')
    boxed(folder/'live')
    shutil.copyfile(root/'nbs'/'styles.css', folder/'styles.css')
    (folder/'index.html').write_text(PAGE % (root/'nbs'/'access.html').read_text(encoding='utf-8'), encoding='utf-8')
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()

def opened(browser, site, hash='', ready='.elmo-cosines', **settings):
    "A page with the explainer, without motion; `asked` collects the files that it loads, `errors` what goes wrong"
    context = browser.new_context(**{'viewport': {'width': 1280, 'height': 1000}, 'reduced_motion': 'reduce'} | settings)
    page = context.new_page()
    page.asked, page.errors = [], []
    page.on('request', lambda r: page.asked.append(r.url.split('/')[-1]))
    page.on('pageerror', lambda e: page.errors.append(str(e)))
    page.goto(site + hash)
    if ready: page.locator(ready).first.wait_for()
    return page

@pytest.fixture
def page(browser, site):
    p = opened(browser, site)
    yield p
    p.context.close()
    assert not p.errors

def sentence(page, i): return page.get_by_role('textbox', name=f'Sentence {i}')
def tab(page, name): page.get_by_role('tab', name=name).click()
def chosen(page): return page.locator('.elmo-words [aria-pressed=true]').all_inner_texts()
def said(page): return page.locator('.elmo-said').inner_text()
def cosines(page): return [[float(c) for c in row.locator('.number').all_inner_texts()] for row in page.locator('.elmo-cosines tbody tr').all()]
def write(page, i, text):
    "Type `text` as sentence `i` and wait for the words below it"
    sentence(page, i).fill(text)
    tokens = word_tokenize(text)[:60]
    page.wait_for_function("([i, tokens]) => [...document.querySelectorAll('.elmo-words')[i - 1].children].map(o => o.textContent).join(' ').startsWith(tokens)", arg=[i, ' '.join(tokens)[:200]])
def wait(page, test): page.wait_for_function(test, timeout=60_000)

# at once, on stored numbers

def test_alive_without_the_model(page):
    river, money = cosines(page)
    assert river[0] == money[0] == 1 and river[2] > money[2] + .1
    assert page.locator('.elmo-panel svg rect').count() >= 26**2
    for name in ('Senses', 'Two readers', 'Inside'):
        tab(page, name)
        page.locator('.elmo-panel svg').first.wait_for()
    for button in page.get_by_role('group', name='Examples').get_by_role('button').all()[:8]: button.click()
    assert not {o for o in page.asked if o.endswith('.safetensors')} and 'worker.js' not in page.asked

def test_numbers_of_the_first_example(page):
    texts = ['They sat on the left bank of the river.', 'He swam to the other bank.', 'She owed the bank a lot of money.']
    vecs = Elmo.from_pretrained('mini-en').embed(texts, layers='all')
    cos = lambda a, b: [float(x@y/np.linalg.norm(x)/np.linalg.norm(y)) for x,y in zip(a, b)]
    want = [cos(vecs[0][:, 5], vecs[1][:, 5]), cos(vecs[0][:, 5], vecs[2][:, 3])]
    assert np.allclose(cosines(page), want, atol=.011)

def shade(page, a, b):
    "How deep the cell of words a and b is, by their titles"
    return page.evaluate("([a, b]) => { const c = [...document.querySelectorAll('.elmo-panel rect')].find(o => o.textContent.startsWith(`${a} – ${b}:`)); return [+c.getAttribute('fill-opacity'), +c.textContent.split(': ')[1]] }", [a, b])

def test_the_slider_moves_smoothly(page):
    slider, seen = page.get_by_role('slider', name='layer'), []
    for layer in ('0', '0.5', '1', '1.5', '2'):
        slider.fill(layer)
        seen.append(shade(page, 'river', 'left')[1])
    assert abs(seen[1] - (seen[0] + seen[2])/2) <= .011 and abs(seen[3] - (seen[2] + seen[4])/2) <= .011
    for pair in (('river', 'left'), ('bank', 'They'), ('money', 'owed')):
        opacity, cosine = shade(page, *pair)
        assert abs(opacity - max(cosine, .03)) <= .011, 'the deeper, the more alike'

# typing

def test_typing_loads_the_model_and_changes_what_is_seen(page):
    before = cosines(page)
    write(page, 3, 'They walked along the bank of the river .')
    wait(page, "document.querySelector('.elmo-cosines tbody').rows.length === 2 && +document.querySelectorAll('.elmo-cosines .number')[5].textContent > .6")
    assert cosines(page)[0] == before[0] and cosines(page)[1][2] > before[1][2] + .05, 'now both are by the river'
    assert 'model.safetensors' in page.asked and 'output.safetensors' not in page.asked
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 3', 'the reader goes on typing'

def test_the_word_is_followed_and_not_its_place(page):
    write(page, 1, 'Yesterday they all sat on the left bank of the river.')
    assert chosen(page) == ['bank']
    write(page, 1, 'On the left bank of the river.')
    assert chosen(page) == ['bank']
    write(page, 1, 'On the left bank')
    assert chosen(page) == ['bank']
    write(page, 1, '')
    page.locator('text=This sentence has no words yet.').wait_for()
    write(page, 1, 'bank')
    assert chosen(page) == ['bank']

@pytest.mark.parametrize('text', ['<img src=x onerror=alert(1)> & "q"', '👩🏽‍🚀'*30, 'a'*300, '银行在河边。'])
def test_odd_texts(page, text):
    write(page, 1, text)
    assert page.locator('.elmo-live img').count() == 0
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')

def test_no_more_than_sixty_words(page):
    sentence(page, 2).fill('word '*2000)
    page.locator('text=Only the first 60 words are read').wait_for()
    assert page.locator('.elmo-words button').count() == 60
    sentence(page, 2).fill('x'*10_000)
    page.wait_for_function("document.querySelectorAll('.elmo-words')[1].children.length === 1")
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth'), 'ten thousand letters in one word'

def test_typing_faster_than_the_model_answers(page):
    "The last sentence counts, and no answer of an earlier one comes after it"
    for n in range(1, 8): sentence(page, 1).fill('She sat by the bank ' + 'and sat '*n)
    write(page, 1, 'The bank.')
    wait(page, "document.querySelector('.elmo-cosines caption')?.textContent.includes('sentence 1') && document.querySelectorAll('.elmo-panel rect').length < 700")
    assert page.locator('.elmo-words').first.locator('button').all_inner_texts() == ['The', 'bank', '.']

# the panels

def test_dots_glide_between_the_senses(page):
    tab(page, 'Senses')
    place = lambda: page.evaluate("document.querySelectorAll('.elmo-glide')[0].style.transform")
    page.wait_for_timeout(100)
    before = place()
    assert page.locator('.elmo-panel circle').count() >= 22 + 3 and page.locator('.elmo-neighbours li').count() == 4
    assert 'edge' in page.locator('.elmo-panel svg').text_content() and 'bank/edge' in page.locator('.elmo-neighbours').inner_text()
    write(page, 1, 'The bank lent them a lot of money.')
    wait(page, f"document.querySelectorAll('.elmo-glide')[0]?.style.transform !== {json.dumps(before)}")
    assert 'occurrences.safetensors' in page.asked
    page.locator('.elmo-words').nth(0).locator('button', has_text='lent').click()
    page.locator('text=No occurrences of “lent” are stored').wait_for()

def test_two_readers_and_the_word_that_is_blanked(page):
    page.get_by_role('button', name='did', exact=True).click()
    tab(page, 'Two readers')
    text = page.locator('.elmo-panel svg').text_content
    assert 'did 0.97' in text() and 'from the left' in text()
    page.locator('.elmo-pick', has_text='home').click()
    wait(page, "document.querySelector('.elmo-beside').textContent.includes('“home” is blanked')")
    assert chosen(page) == ['home'] and {'output.safetensors', 'vocab.json'} <= {*page.asked}
    write(page, 1, 'She saw zorgles')
    wait(page, "document.querySelector('.elmo-panel svg').textContent.includes('zorgles ?')")

def test_inside_steps_through_the_sentence_and_mixes(page):
    tab(page, 'Inside')
    slider = page.get_by_role('slider', name='words read')
    shown = lambda: page.evaluate("[...document.querySelectorAll('.elmo-panel svg > g')].filter(o => o.getAttribute('opacity') === '1').length")
    slider.fill('0')
    none = shown()
    slider.fill('3')
    assert shown() == none + 3*4, 'two layers of two directions'
    assert 'with sentence 2: 0.8' in page.locator('.elmo-panel').inner_text()
    for name in ('s1', 's2'): page.get_by_role('slider', name=name).fill('0')
    assert 'with sentence 2: 1.00, with sentence 3: 1.00' in page.locator('.elmo-panel').inner_text(), 'layer 0 is the letters'

def test_motion_begins_and_can_be_stopped(browser, site):
    page = opened(browser, site, reduced_motion='no-preference')
    wait(page, "+document.querySelector('input[type=range]').value > .1")
    page.get_by_role('button', name='Play or pause: layer').click()
    stopped = page.get_by_role('slider', name='layer').input_value()
    page.wait_for_timeout(300)
    assert page.get_by_role('slider', name='layer').input_value() == stopped
    page.context.close()

def test_without_motion_nothing_moves_by_itself(page):
    page.wait_for_timeout(500)
    assert page.get_by_role('slider', name='layer').input_value() == '2'

def test_a_word_that_it_gets_wrong(page):
    failures = json.loads((live/'stored.json').read_text(encoding='utf-8'))['failures']
    page.get_by_role('button', name='a word that it gets wrong').click()
    page.locator('.elmo-neighbours li').first.wait_for()
    assert f"{len(failures['wrong'])} of {failures['n']}" in said(page)
    asked, near = failures['wrong'][0]
    assert sentence(page, 1).input_value() == asked['text'] and sentence(page, 2).input_value() == near['text']
    assert near['sense'] in page.locator('.elmo-neighbours li').first.inner_text()

# the address

def test_an_address_restores_what_was_seen(browser, site):
    page = opened(browser, site)
    write(page, 1, 'A rose “is” a rose & a % rose')
    tab(page, 'Two readers')
    page.locator('.elmo-words').first.locator('button').nth(1).click()
    page.locator('text=“rose” is blanked').wait_for()
    address = page.url
    assert address.startswith(site + '#elmo=')
    again = opened(browser, address, ready='.elmo-panel svg')
    again.locator('text=“rose” is blanked').wait_for()
    assert sentence(again, 1).input_value() == 'A rose “is” a rose & a % rose' and chosen(again) == ['rose']
    page.context.close(); again.context.close()

@pytest.mark.parametrize('hash', ['#elmo=', '#elmo=%', '#elmo=[]', '#elmo=' + quote('["nowhere",0,0,"a"]'), '#elmo=' + quote('["map",7,-1,"a"]'), '#elmo=' + quote('{"a":1}')])
def test_a_broken_address_shows_the_first_example(browser, site, hash):
    page = opened(browser, site, hash)
    assert chosen(page) == ['bank'] and not page.errors
    page.context.close()

def test_a_section_opens_its_panel(browser, site):
    page = opened(browser, site, '#two-readers', ready='.elmo-panel svg')
    assert page.get_by_role('tab', selected=True).inner_text() == 'Two readers'
    page.evaluate("location.hash = 'inside'")
    page.get_by_role('slider', name='words read').wait_for()
    page.context.close()

def test_a_link_is_copied_and_a_picture_saved(browser, site):
    page = opened(browser, site, permissions=['clipboard-read', 'clipboard-write'])
    page.get_by_role('button', name='Copy link').click()
    page.locator('text=The link is copied').wait_for()
    assert page.evaluate('navigator.clipboard.readText()') == page.url
    for name in ('Word by word', 'Senses', 'Two readers', 'Inside'):
        tab(page, name)
        with page.expect_download() as download: page.get_by_role('button', name='Save picture').click()
        data = Path(download.value.path()).read_bytes()
        assert data.startswith(b'\x89PNG') and len(data) > 5000
    page.context.close()

# what fails is said

def test_without_the_model_it_is_said_and_tried_again(browser, site):
    page = opened(browser, site)
    page.context.route('**/model.safetensors', lambda r: r.fulfill(status=404, body=''))
    write(page, 1, 'She sat on the bank')
    page.locator('text=The model could not be loaded').wait_for()
    assert 'model.safetensors: 404' in said(page)
    page.context.unroute('**/model.safetensors')
    write(page, 1, 'She sat on the bank.')
    wait(page, "document.querySelector('.elmo-said').textContent === ''")
    page.context.close()

@pytest.mark.parametrize('missing', ['live.js', 'draw.js', 'stored.json'])
def test_without_the_scripts_the_picture_stays_and_it_is_said(browser, site, missing):
    context = browser.new_context()
    context.route(f'**/{missing}', lambda r: r.abort())
    page = context.new_page()
    page.goto(site)
    page.locator('text=The explainer could not be loaded').wait_for()
    assert page.locator('text=A picture.').is_visible()
    context.close()

def test_without_the_worker_it_is_said(browser, site):
    page = opened(browser, site)
    page.context.route('**/worker.js', lambda r: r.abort())
    write(page, 1, 'She sat on the bank')
    page.locator('text=The model could not be loaded').wait_for()
    page.context.close()

def test_without_scripts_there_is_the_picture(browser, site):
    page = opened(browser, site, ready=None, java_script_enabled=False)
    assert page.locator('text=A picture.').is_visible()
    page.context.close()

# keyboard, screen reader, phone

def test_keyboard(page):
    sentence(page, 1).focus()
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.textContent') == 'bank'
    page.keyboard.press('ArrowRight')
    assert page.evaluate('document.activeElement.textContent') == 'of' and chosen(page) == ['bank']
    page.keyboard.press('Home')
    page.keyboard.press('Tab')
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 2', 'one stop for the words of a sentence'
    page.get_by_role('tab', name='Word by word').focus()
    page.keyboard.press('ArrowRight')
    page.keyboard.press('Enter')
    assert page.get_by_role('tab', selected=True).inner_text() == 'Senses'

def test_names_for_screen_readers(page):
    tree = page.locator('.elmo-live').aria_snapshot()
    for o in ('textbox "Sentence 1"', 'toolbar "Words of sentence 1"', 'button "bank" [pressed]', 'group "Examples"', 'columnheader "layer 0: letters"', 'tab "Word by word" [selected]', 'slider "layer"', 'img "Cosines'): assert o in tree, (o, tree)
    assert page.locator('.elmo-live [aria-live], .elmo-live [role=status]').count() == 1, 'only what has to be said is announced'

def test_on_a_phone(browser, site):
    page = opened(browser, site, viewport={'width': 390, 'height': 844}, has_touch=True, is_mobile=True)
    for name in ('Word by word', 'Senses', 'Two readers', 'Inside'):
        page.get_by_role('tab', name=name).tap()
        page.locator('.elmo-panel svg').first.wait_for()
        assert page.evaluate('document.documentElement.scrollWidth') <= 390, name
        sizes = page.evaluate("[...document.querySelectorAll('.elmo-panel svg text')].map(o => parseFloat(getComputedStyle(o).fontSize)*o.ownerSVGElement.getBoundingClientRect().width/o.ownerSVGElement.viewBox.baseVal.width)")
        assert min(sizes) >= 11.5, name
    heights = page.evaluate("[...document.querySelectorAll('.elmo-words button')].map(o => o.getBoundingClientRect().height)")
    assert min(heights) >= 24
    page.context.close()

# the home page's own numbers

def test_results_on_the_home_page_are_those_of_the_lessons():
    cells = json.loads((root/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells']
    text = ''.join(''.join(c['source']) for c in cells)
    figures = re.findall(r'<figure data-cell="(\S+) (\S+)">(.*?)</figure>', text, re.S)
    assert len(figures) == 2
    failures = json.loads((live/'stored.json').read_text(encoding='utf-8'))['failures']
    assert f"for {len(failures['wrong'])} of {failures['n']} labelled words" in text
    for nb,cell,body in figures:
        found = {c['id']: c for c in json.loads((root/'nbs'/f'{nb}.ipynb').read_text(encoding='utf-8'))['cells']}
        output = ''.join(''.join(o.get('data', {}).get('text/plain', '')) for o in found[cell]['outputs'])
        numbers = re.findall(r'<b>([\d.]+)</b>', body)
        assert numbers == [f'{float(share):.{len(b) - 2}f}' for share,b in zip(re.findall(r'--share: ([\d.]+)', body), numbers)]
        for number in numbers: assert number in output or number.rstrip('0') in output, (nb, cell, number)

def test_the_code_on_the_home_page_is_that_of_the_start_page():
    home, start = (json.loads((root/'nbs'/f'{o}.ipynb').read_text(encoding='utf-8'))['cells'] for o in ('index', 'start'))
    [code] = re.findall(r'~~~python\n(.*?)\n~~~', '\n'.join(''.join(c['source']) for c in home), re.S)
    cells = {c['id']: ''.join(c['source']) for c in start}
    assert code == cells['c004'] + '\n\n' + cells['c005']
