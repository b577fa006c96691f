"""The explainer in a browser: what is seen, typed, followed, limited, kept in an address, and said
when something fails"""
import json, shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from after_render import alive, boxed
from browse import SHIFTS, served, shifted
from notebooks import home
from elmo_fastai.text.tokenizers import word_tokenize

pytestmark = pytest.mark.slow

LIVE = home/'live'
PANELS = ('bars', 'letters', 'directions', 'mix', 'map', 'senses', 'readers', 'influence',
          'write')
PAGE = '''<!doctype html><html lang="en-GB"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Live</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="styles.css">
<style>* { box-sizing: border-box } body { font: 17px/1.5 sans-serif }</style></head>
<body class="quarto-light"><main id="quarto-document-content"><h1>Live</h1>%s
<p id="below">What stands below.</p></main>%s</body></html>'''
TOUR = '''<p class="elmo-live elmo-begin"></p><ol class="elmo-tour">
<li data-panel="bars" data-example="bank">Bars.</li>
<li data-panel="readers" data-example="did">A gap.</li></ol>'''

def box(panel):
    return (f'<div class="elmo-live" data-panel="{panel}" data-example="bank">\n'
            f'<p>A picture of {panel}.</p>\n</div>\n')

def section(panel):
    heading = f'<section class="level2" id="{panel}"><h2>{panel}</h2>'
    return f'{heading}{box(panel)}<p>Text.</p></section>'

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "What the site serves, without Quarto: a page with the first view, and one with all views"
    folder = tmp_path_factory.mktemp('live')
    shutil.copytree(LIVE, folder/'live')
    boxed(folder/'live')
    shutil.copyfile(home/'styles.css', folder/'styles.css')
    script = (home/'access.html').read_text(encoding='utf-8')
    top = box('input') + box('drawing') + box('bars')
    views = top + TOUR + ''.join(map(section, PANELS[1:]))
    small = box('letters').replace('A picture', '<em>A picture</em>') + '<p>Text.</p>'
    for name,text in (('index', box('bars') + '<p>Text.</p>'), ('all', views),
                      ('small', small)):
        page = PAGE.replace('quarto-light', 'quarto-light explainer') if name == 'all' else PAGE
        (folder/f'{name}.html').write_text(page % (alive(text), script), encoding='utf-8')
    first = box('glide').replace('"bank"', '"bank clerk"')
    (folder/'home.html').write_text(PAGE % (first, script), encoding='utf-8')
    with served(folder) as address: yield address

@pytest.fixture
def opened(browser, site):
    """A function that opens the explainer, without motion; `asked` collects the files that it
    loads, `errors` what goes wrong"""
    contexts = []
    def opened(address='', ready='button.elmo-word', width=1280, height=1000, block=None, **kw):
        size = dict(width=width, height=height)
        context = browser.new_context(**dict(viewport=size, reduced_motion='reduce') | kw)
        contexts.append(context)
        if block: context.route(f'**/{block}', lambda r: r.abort())
        page = context.new_page()
        page.asked, page.errors = [], []
        page.on('request', lambda r: page.asked.append(r.url.split('/')[-1]))
        page.on('pageerror', lambda e: page.errors.append(str(e)))
        page.add_init_script(SHIFTS)
        page.goto(address if address.startswith(site) else site + address)
        if ready: page.locator(ready).first.wait_for()
        return page
    yield opened
    for context in contexts: context.close()

@pytest.fixture
def page(opened):
    page = opened()
    yield page
    assert not page.errors

@pytest.fixture
def everything(opened):
    page = opened('all.html')
    yield page
    assert not page.errors

def view(page, panel): return page.locator(f'[data-panel={panel}].elmo-live')
def click(page, panel, name, exact=True):
    view(page, panel).get_by_role('button', name=name, exact=exact).first.click()
def sentence(page, i):
    "The field of sentence `i`; where there is one field for all, what is in it"
    return page.get_by_role('textbox', name=f'Sentence {i}').first
def texts(page):
    "The sentences in the address"
    return page.evaluate("JSON.parse(decodeURIComponent(location.hash.split('=')[1])).slice(3)")
def chosen(page):
    return view(page, 'bars').locator('.elmo-word[aria-pressed=true]').all_inner_texts()
def said(page): return view(page, 'bars').locator('.elmo-said').inner_text()
def cosines(page):
    return [[float(c) for c in line.locator('.elmo-bar').all_inner_texts()]
            for line in page.locator('.elmo-line').all()]

def wait(page, test, css=None):
    "Until the JavaScript `test` is true, of the first element that `css` finds as `o`"
    if css: test = f'(o => {test})(document.querySelector({json.dumps(css)}))'
    page.wait_for_function(test, timeout=60_000)

def find(page, css, value):
    "A value of each element `o` that is found"
    return page.evaluate(f'[...document.querySelectorAll({json.dumps(css)})].map(o => {value})')

def write(page, i, text):
    "Type `text` as sentence `i` and wait for the words below it"
    sentence(page, i).fill(text)
    words = [o if len(o) <= 40 else o[:39] for o in word_tokenize(text)[:60]]
    page.wait_for_function("""([i, words]) => [...document.querySelectorAll('.elmo-words')[i - 1]
        .children].map(o => o.textContent).join(' ').startsWith(words)""",
                           arg=[i, ' '.join(words)[:200]])

def fits(page):
    return page.evaluate('document.documentElement.scrollWidth') <= page.viewport_size['width']

# at once, on stored numbers, and nothing moves

def test_alive_without_the_model(everything):
    river, money = cosines(everything)
    assert river[0] == money[0] == 1 and river[2] > money[2] + .1
    bars = find(everything, '.elmo-bar',
                "[parseFloat(getComputedStyle(o, '::before').width), +o.innerText]")
    for width,value in bars: assert abs(width - bars[0][0]*value) < 2, 'as long as their numbers'
    for panel in PANELS[1:]: view(everything, panel).locator('svg').first.wait_for()
    for button in everything.get_by_role('group', name='Examples').get_by_role('button').all():
        if 'wrong' not in button.inner_text(): button.click()
    assert not [o for o in everything.asked if o.endswith(('.safetensors', 'worker.js'))]

@pytest.mark.parametrize('width', [1440, 820, 390])
@pytest.mark.parametrize('name', ['', 'all.html'])
def test_nothing_moves_when_the_script_takes_over(opened, name, width):
    still = opened(name, None, width, 900, java_script_enabled=False)
    before = view(still, 'bars').bounding_box()
    assert '0.57' in view(still, 'bars').inner_text(), 'without scripts there are the numbers'
    page = opened(name, width=width, height=900)
    page.wait_for_timeout(500)
    after = view(page, 'bars').bounding_box()
    assert abs(before['height'] - after['height']) < 1 and abs(before['y'] - after['y']) < 1
    assert shifted(page) <= .02

# typing

def test_typing_loads_the_model_and_the_bars_move(page):
    before = cosines(page)
    write(page, 3, 'They walked along the bank of the river .')
    wait(page, """document.querySelectorAll('.elmo-line').length === 2
        && +document.querySelectorAll('.elmo-bar')[5].innerText > .6""")
    first, second = cosines(page)
    assert first == before[0] and second[2] > before[1][2] + .05, 'now both are by the river'
    assert 'model.safetensors' in page.asked and 'output.safetensors' not in page.asked
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 3'

def edit(page, i, how, text):
    "Replace sentence `i`: all keys one by one, or pasted, or all deleted"
    sentence(page, i).select_text()
    if how == 'type': page.keyboard.type(text, delay=30)
    if how == 'paste': page.keyboard.insert_text(text)
    if how == 'delete': page.keyboard.press('Delete')
    page.wait_for_timeout(300)
    wait(page, "!document.querySelector('.elmo-old')")

@pytest.mark.parametrize('i', [1, 2, 3])
@pytest.mark.parametrize('how,text', [
    ('type', 'I went to the bank to get cash'), ('paste', 'The bank of the stream was muddy.'),
    ('delete', '')])
def test_the_word_stays_chosen_and_not_its_place(page, i, how, text):
    edit(page, i, how, text)
    if i == 1 and not text: page.locator('text=This sentence has no words yet.').wait_for()
    else: assert chosen(page) == ['bank']
    edit(page, i, 'paste', 'By the river there is a bank.')
    assert chosen(page) == ['bank'], 'and it comes back'
    assert {*find(page, '.elmo-name', 'o.textContent')} <= {'bank'}

def test_without_the_word_another_one_that_is_shared_or_it_is_said(page):
    edit(page, 1, 'paste', 'Then she swam home.')
    assert chosen(page) == ['swam'] and '“bank”' in said(page)
    edit(page, 1, 'paste', 'Dogs bark loudly')
    assert 'No word' in said(page)
    edit(page, 1, 'paste', 'Dogs on a bank')
    assert chosen(page) == ['bank'] and not said(page)
    sentence(page, 1).press('End')
    page.keyboard.type('er', delay=200)
    page.locator('.elmo-word', has_text='banker').wait_for()
    assert chosen(page) == ['banker'], 'who types in the word goes on with it'

def test_all_views_show_the_same_sentences(everything):
    "There is one field, and it stays at the top"
    assert everything.get_by_role('textbox').count() == 1
    view(everything, 'influence').locator('.elmo-pick', has_text='river').click()
    assert chosen(everything) == ['river'], 'a word that moved the vector'
    click(everything, 'input', 'Go to sentence 3')
    view(everything, 'write').scroll_into_view_if_needed()
    assert 0 <= sentence(everything, 3).bounding_box()['y'] < 200
    wait(everything, "o.textContent.startsWith('She ')", '[data-panel=write] .elmo-gap')
    sentence(everything, 3).fill('She owed it.')
    wait(everything, "document.querySelector('[data-panel=drawing]').innerText.includes('owed')")
    click(everything, 'bars', 'owed')
    pressed = view(everything, 'input').locator('.elmo-word[aria-pressed=true]')
    assert pressed.inner_text() == 'owed'

def test_a_small_view_has_its_own_field(opened):
    page = opened('small.html')
    page.locator('text=how well').wait_for()
    assert 'bank' in view(page, 'letters').locator('svg').text_content(), 'what its filter likes'
    assert view(page, 'letters').locator('em').is_visible(), 'and what is said of it'
    sentence(page, 1).fill('unkindly')
    wait(page, "o.textContent.includes('ly›')", '[data-panel=letters] svg')
    assert fits(page) and not page.errors

@pytest.mark.parametrize('text', [
    '<img src=x onerror=alert(1)> & "q"', '👩🏽‍🚀'*30, 'x'*10_000, 'الضفة اليسرى للنهر'],
                         ids=range(4))
def test_odd_texts(page, text):
    write(page, 1, text)
    assert page.locator('.elmo-live img').count() == 0 and fits(page)

def test_typing_faster_than_the_model_answers(page):
    "The last sentence counts, and no answer of an earlier one comes after it"
    for n in range(1, 8): sentence(page, 1).fill('She sat by the bank ' + 'and sat '*n)
    write(page, 1, 'The bank.')
    wait(page, """!document.querySelector('.elmo-old')
        && document.querySelectorAll('.elmo-line').length === 2""")
    words = page.locator('.elmo-words').first.locator('button')
    assert words.all_inner_texts() == ['The', 'bank', '.']

# the views

def test_the_slider_moves_when_asked_and_stops(opened):
    page = opened('all.html', reduced_motion='no-preference')
    button = page.get_by_role('button', name='Play or pause: layer')
    slider = page.get_by_role('slider', name='layer')
    assert slider.input_value() == '0', 'nothing moves by itself'
    button.click()
    wait(page, 'o.value > .1', '[data-panel=map] input[type=range]')
    button.click()
    stopped = slider.input_value()
    page.wait_for_timeout(300)
    assert slider.input_value() == stopped

def test_the_tour_goes_forth_and_back(everything):
    everything.get_by_role('button', name='Take the tour').click()
    bar = everything.get_by_role('region', name='Tour')
    def press(name): bar.get_by_role('button', name=name).click()
    press('Next')
    assert sentence(everything, 1).input_value() == 'She did not want to go home.'
    above, below = sentence(everything, 1).bounding_box(), bar.bounding_box()
    picture = view(everything, 'readers').locator('svg').bounding_box()
    assert above['y'] + above['height'] <= picture['y'] < below['y'], 'it is on the screen'
    assert below['y'] + below['height'] <= everything.viewport_size['height'], 'and its text too'
    press('Back')
    assert chosen(everything) == ['bank']
    press('End the tour')
    assert not bar.is_visible()

# the address, links, pictures

def test_an_address_restores_what_was_seen(opened):
    page = opened('all.html', permissions=['clipboard-write'])
    text = 'A rose “is” a rose & a % rose'
    write(page, 1, text)
    click(page, 'input', 'rose')
    click(page, 'readers', 'Copy link')
    again = opened(page.url)
    wait(again, "o?.textContent.startsWith('A ___ “')", '[data-panel=readers] .elmo-gap')
    assert sentence(again, 1).input_value() == text and chosen(again) == ['rose']
    assert texts(page) == texts(again)
    assert -1 <= view(again, 'readers').bounding_box()['y'] < 500, 'the view is on the screen'

@pytest.mark.parametrize('hash', [
    '%', '["nowhere",0,0,"a"]', '["bars",7,-1,"a"]', '["bars",0,"__proto__","a"]', 'null'])
def test_a_broken_address_shows_the_first_example(opened, hash):
    page = opened('#elmo=' + (hash if hash == '%' else quote(hash)))
    assert chosen(page) == ['bank'] and not page.errors

def test_a_link_is_copied_and_a_picture_saved(opened):
    page = opened('all.html', permissions=['clipboard-read', 'clipboard-write'])
    click(page, 'bars', 'Copy link')
    page.locator('text=The link is copied').wait_for()
    assert page.evaluate('navigator.clipboard.readText()') == page.url
    for panel in PANELS[1:]:
        with page.expect_download() as download: click(page, panel, 'Save picture')
        data = Path(download.value.path()).read_bytes()
        tall = sum(find(page, f'[data-panel={panel}] .elmo-panel svg', 'o.viewBox.baseVal.height'))
        assert abs(int.from_bytes(data[20:24], 'big') - 2*tall) < 2, 'all of its pictures'

# what fails is said

def test_without_the_model_it_is_said_and_tried_again(opened):
    page = opened()
    page.context.route('**/model.safetensors', lambda r: r.fulfill(status=404, body=''))
    write(page, 1, 'She sat on the bank')
    page.locator('text=The model could not be loaded').wait_for()
    page.context.unroute('**/model.safetensors')
    write(page, 1, 'She sat on the bank.')
    wait(page, "o.textContent === ''", '.elmo-said')

def test_without_the_scripts_the_picture_stays_and_it_is_said(opened):
    page = opened(ready='text=The explainer could not be loaded', block='live.js')
    assert page.locator('.elmo-line').count() == 2

# keyboard, screen reader, phone

def test_keyboard(page):
    def focused(): return page.evaluate('(o => o.ariaLabel || o.textContent)'
                                        '(document.activeElement)')
    sentence(page, 1).focus()
    for key,word,picked in (('Tab', 'bank', 'bank'), ('ArrowRight', 'of', 'bank'),
                            ('Enter', 'of', 'of')):
        page.keyboard.press(key)
        assert (focused(), chosen(page)) == (word, [picked])
    for key in ('Home', 'Tab'): page.keyboard.press(key)
    assert focused() == 'Sentence 2', 'one stop for the words of a sentence'

@pytest.mark.parametrize('scheme,paper,ink', [('light', '#ffffff', '#343a40'),
                                              ('dark', '#222222', '#ffffff')])
def test_nothing_for_axe_to_find(opened, axe, scheme, paper, ink):
    page = opened('all.html', width=390, height=900)
    page.evaluate(f"""document.body.className = 'quarto-{scheme}';
        Object.assign(document.body.style, {{background: '{paper}', color: '{ink}'}})""")
    page.get_by_role('button', name='Take the tour').click()
    page.wait_for_timeout(500)
    assert not axe(page)

def test_on_a_phone(opened):
    page = opened('all.html', width=390, height=844, has_touch=True, is_mobile=True)
    assert page.locator('.elmo-bar').nth(5).bounding_box()['width'] > 50
    for panel in PANELS[1:]:
        view(page, panel).locator('svg').first.wait_for()
        sizes = find(page, f'[data-panel={panel}] svg text', """parseFloat(getComputedStyle(o)
            .fontSize)*o.ownerSVGElement.getBoundingClientRect().width
            /o.ownerSVGElement.viewBox.baseVal.width""")
        assert min(sizes) >= 11.5, panel
    buttons = find(page, '.elmo-live button',
                   'o.checkVisibility() ? o.getBoundingClientRect().height : 24')
    assert fits(page) and min(buttons) >= 24
    page.get_by_role('button', name='Take the tour').tap()
    bar = page.get_by_role('region', name='Tour')
    for panel in ('bars', 'readers'):
        top, box = view(page, panel).bounding_box()['y'], bar.bounding_box()
        assert 0 <= top < box['y'] and box['y'] + box['height'] <= 844, panel
        bar.get_by_role('button').nth(1).tap()

# the first view of the home page

def test_the_word_of_the_home_page_glides(opened):
    """The other sentence of the example is typed, and the dots of both are one; while a sentence
    lacks the word, the dots stay those of the word"""
    page = opened('home.html', '.elmo-glide')
    def dots(): return find(page, '.elmo-glide', 'o.style.transform')
    river, clerk, _ = dots()
    assert river != clerk
    assert find(page, '.elmo-glide .elmo-name', 'o.textContent')[2] == 'He swam to the other bank.'
    page.get_by_role('button', name='Type another one').click()
    wait(page, f"o.style.transform === {json.dumps(clerk)}", '.elmo-glide.mine')
    field = page.get_by_role('textbox')
    field.fill('She swam to the')
    wait(page, "o.textContent.includes('no “bank”')", '.elmo-dot')
    assert dots() == [clerk, _]
    field.fill('She swam to the bank')
    wait(page, "document.querySelectorAll('.elmo-glide').length === 3")
    page.set_viewport_size(dict(width=390, height=844))
    wait(page, "o.textContent === '3 He swam to the other bank.'", '.elmo-names li:last-child')
    assert not page.errors
