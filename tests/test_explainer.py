"""The explainer in a browser: what is seen, typed, followed, limited, kept in an address, and said
when something fails"""

import functools, http.server, json, re, shutil, sys, threading
from pathlib import Path
from urllib.parse import quote

import numpy as np, pytest

from elmo_fastai.text.tokens import word_tokenize
from elmo_fastai.elmo.module import Elmo

root = Path(__file__).resolve().parent.parent
live = root/'nbs'/'live'
sys.path.insert(0, str(root/'tests'))
from after_render import BOX, alive, boxed

pytestmark = pytest.mark.slow

PANELS = 'bars', 'map', 'senses', 'readers', 'influence', 'write', 'inside'
PAGE = '''<!doctype html><html lang="en-GB"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Live</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="styles.css"><style>* { box-sizing: border-box } body { font: 17px/1.5 sans-serif }</style></head>
<body class="quarto-light"><main><h1>Live</h1>%s<p id="below">What stands below.</p></main>%s</body></html>'''
TOUR = '''<p class="elmo-live elmo-begin"></p>
<ol class="elmo-tour"><li data-panel="bars" data-example="bank">Bars.</li><li data-panel="readers" data-example="did">A gap.</li></ol>'''


def box(panel):
    return f'<div class="elmo-live" data-panel="{panel}" data-example="bank">\n<p>A picture of {panel}.</p>\n</div>\n'


def section(panel):
    return (
        f'<section class="level2" id="{panel}"><h2>{panel}</h2>{box(panel)}<p>Text.</p></section>'
    )


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """What the site serves, without Quarto: a page with the first view, one with all views, the
    scripts, the model"""
    folder = tmp_path_factory.mktemp('live')
    shutil.copytree(live, folder/'live')
    boxed(folder/'live')
    shutil.copyfile(root/'nbs'/'styles.css', folder/'styles.css')
    script = (root/'nbs'/'access.html').read_text(encoding='utf-8')
    views = box('bars') + TOUR + ''.join(map(section, PANELS[1:]))
    (folder / 'index.html').write_text(
        PAGE % (alive(box('bars') + '<p>Text.</p>'), script), encoding='utf-8'
    )
    (folder/'all.html').write_text(PAGE % (alive(views), script), encoding='utf-8')
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args): pass

    server = http.server.ThreadingHTTPServer(
        ('127.0.0.1', 0), functools.partial(Handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()

SHIFTS = """window.shifts = []; new PerformanceObserver(list => { for (const e of list.getEntries()) if (!e.hadRecentInput) shifts.push(e.value); })
    .observe({type: 'layout-shift', buffered: true})"""


def opened(browser, site, hash='', ready='button.elmo-word', **settings):
    """A page with the explainer, without motion; `asked` collects the files that it loads, `errors`
    what goes wrong"""
    context = browser.new_context(
        **{'viewport': {'width': 1280, 'height': 1000}, 'reduced_motion': 'reduce'} | settings
    )
    page = context.new_page()
    page.asked, page.errors = [], []
    page.on('request', lambda r: page.asked.append(r.url.split('/')[-1]))
    page.on('pageerror', lambda e: page.errors.append(str(e)))
    page.add_init_script(SHIFTS)
    page.goto(site + hash)
    if ready: page.locator(ready).first.wait_for()
    return page

def kept_open(name):
    def fixture(browser, site):
        p = opened(browser, site, name)
        yield p
        p.context.close()
        assert not p.errors
    return pytest.fixture(fixture)

page, everything = kept_open(''), kept_open('all.html')

def view(page, panel): return page.locator(f'[data-panel={panel}].elmo-live')
def sentence(page, i): return view(page, 'bars').get_by_role('textbox', name=f'Sentence {i}')
def word(page, i, text):
    return (
        view(page, 'bars')
        .locator('.elmo-words')
        .nth(i - 1)
        .get_by_role('button', name=text, exact=True)
    )


def chosen(page):
    return view(page, 'bars').locator('.elmo-word[aria-pressed=true]').all_inner_texts()


def said(page): return view(page, 'bars').locator('.elmo-said').inner_text()
def cosines(page):
    return [
        [float(c) for c in line.locator('.elmo-bar').all_inner_texts()]
        for line in page.locator('.elmo-line').all()
    ]


def write(page, i, text):
    "Type `text` as sentence `i` and wait for the words below it"
    sentence(page, i).fill(text)
    words = [o if len(o) <= 40 else o[:39] for o in word_tokenize(text)[:60]]
    page.wait_for_function(
        "([i, words]) => [...document.querySelectorAll('.elmo-words')[i - 1].children].map(o => o.textContent).join(' ').startsWith(words)",
        arg=[i, ' '.join(words)[:200]],
    )


def wait(page, test): page.wait_for_function(test, timeout=60_000)

# at once, on stored numbers, and nothing moves

def test_alive_without_the_model(everything):
    river, money = cosines(everything)
    assert river[0] == money[0] == 1 and river[2] > money[2] + .1
    for panel in PANELS[1:]: view(everything, panel).locator('svg').first.wait_for()
    assert view(everything, 'map').locator('svg rect').count() >= 26**2
    for button in everything.get_by_role('group', name='Examples').get_by_role('button').all():
        if 'wrong' not in button.inner_text(): button.click()
    assert (
        not {o for o in everything.asked if o.endswith('.safetensors')}
        and 'worker.js' not in everything.asked
    )


@pytest.mark.parametrize('width', [1440, 820, 390])
@pytest.mark.parametrize('name', ['', 'all.html'])
def test_nothing_moves_when_the_script_takes_over(browser, site, name, width):
    still = opened(
        browser,
        site,
        name,
        ready=None,
        viewport={'width': width, 'height': 900},
        java_script_enabled=False,
    )
    before = view(still, 'bars').bounding_box()
    assert '0.57' in view(still, 'bars').inner_text(), 'without scripts there are the numbers'
    still.context.close()
    page = opened(browser, site, name, viewport={'width': width, 'height': 900})
    page.wait_for_timeout(500)
    after = view(page, 'bars').bounding_box()
    assert abs(before['height'] - after['height']) < 1 and abs(before['y'] - after['y']) < 1
    assert page.evaluate('shifts.reduce((a, b) => a + b, 0)') <= .02
    page.context.close()

def test_numbers_of_the_first_example(page):
    texts = [
        'They sat on the left bank of the river.',
        'He swam to the other bank.',
        'She owed the bank a lot of money.',
    ]
    vecs = Elmo.from_pretrained('mini-en').embed(texts, layers='all')
    cos = lambda a, b: [float(x@y/np.linalg.norm(x)/np.linalg.norm(y)) for x,y in zip(a, b)]
    want = [cos(vecs[0][:, 5], vecs[1][:, 5]), cos(vecs[0][:, 5], vecs[2][:, 3])]
    assert np.allclose(cosines(page), want, atol=.011)

def test_bars_are_as_long_as_their_numbers(page):
    long = page.evaluate(
        """[...document.querySelectorAll('.elmo-bar')].map(o => [parseFloat(getComputedStyle(o, '::before').width), +o.innerText])"""
    )
    full = long[0][0]/long[0][1]
    for width,value in long: assert abs(width - full*value) < 2

def shade(page, a, b):
    "How deep the cell of words a and b is, by their titles"
    return page.evaluate(
        "([a, b]) => { const c = [...document.querySelectorAll('[data-panel=map] rect')].find(o => o.textContent.startsWith(`${a} – ${b}:`)); return [+c.getAttribute('fill-opacity'), +c.textContent.split(': ')[1]] }",
        [a, b],
    )


def test_the_slider_moves_smoothly(everything):
    slider, seen = everything.get_by_role('slider', name='layer'), []
    for layer in ('0', '0.5', '1', '1.5', '2'):
        slider.fill(layer)
        seen.append(shade(everything, 'river', 'left')[1])
    assert (
        abs(seen[1] - (seen[0] + seen[2]) / 2) <= 0.011
        and abs(seen[3] - (seen[2] + seen[4]) / 2) <= 0.011
    )
    for pair in (('river', 'left'), ('bank', 'They'), ('money', 'owed')):
        opacity, cosine = shade(everything, *pair)
        assert abs(opacity - max(cosine, .03)) <= .011, 'the deeper, the more alike'

# typing

def test_typing_loads_the_model_and_the_bars_move(page):
    before = cosines(page)
    write(page, 3, 'They walked along the bank of the river .')
    wait(
        page,
        "document.querySelectorAll('.elmo-line').length === 2 && +document.querySelectorAll('.elmo-bar')[5].innerText > .6",
    )
    assert cosines(page)[0] == before[0] and cosines(page)[1][2] > before[1][2] + 0.05, (
        'now both are by the river'
    )
    assert 'model.safetensors' in page.asked and 'output.safetensors' not in page.asked
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 3', (
        'the reader goes on typing'
    )


def test_what_is_out_of_date_is_dimmed(browser, site):
    page = opened(browser, site)
    page.context.route('**/model.safetensors', lambda r: None)                   # it never comes
    write(page, 3, 'They walked along the bank .')
    wait(page, "document.querySelector('.elmo-old .elmo-bars')")
    assert 'Loading the model' in said(page)
    page.context.close()

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

def test_all_views_show_the_same_sentences(everything):
    view(everything, 'influence').get_by_role('button', name='Go to sentence 3').click()
    assert (
        chosen(everything) == ['bank']
        and view(everything, 'write').get_by_role('textbox').input_value()
        == 'She owed the bank a lot of money.'
    )
    view(everything, 'influence').get_by_role('textbox', name='Sentence 3').fill(
        'She owed the bank nothing.'
    )
    everything.wait_for_function(
        "document.querySelectorAll('[data-panel=bars] input')[2].value === 'She owed the bank nothing.'"
    )
    word(everything, 3, 'owed').click()
    assert (
        view(everything, 'inside').locator('.elmo-word[aria-pressed=true]').inner_text() == 'owed'
    )


@pytest.mark.parametrize(
    'text',
    [
        '<img src=x onerror=alert(1)> & "q"',
        '👩🏽‍🚀' * 30,
        'a' * 300,
        '银行在河边。',
        'الضفة اليسرى للنهر',
        'bank ' * 65,
    ],
)
def test_odd_texts(page, text):
    write(page, 1, text)
    assert page.locator('.elmo-live img').count() == 0
    assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')


def test_ten_thousand_letters_in_one_word(browser, site):
    "In every view, on a phone; the chosen word is that one"
    page = opened(browser, site, 'all.html', viewport={'width': 390, 'height': 844})
    sentence(page, 1).fill('x'*10_000)
    page.wait_for_function("document.querySelectorAll('.elmo-words')[0].children.length === 1")
    for panel in PANELS:
        view(page, panel).scroll_into_view_if_needed()
        wait(
            page, f"!document.querySelector('[data-panel={panel}]').classList.contains('elmo-old')"
        )
    assert page.evaluate('document.documentElement.scrollWidth') <= 390 and not page.errors
    page.context.close()

def test_no_more_than_sixty_words(page):
    sentence(page, 2).fill('word '*2000)
    page.locator('text=Only the first 60 words are read').wait_for()
    assert page.locator('.elmo-words button').count() == 60

def test_typing_faster_than_the_model_answers(page):
    "The last sentence counts, and no answer of an earlier one comes after it"
    for n in range(1, 8): sentence(page, 1).fill('She sat by the bank ' + 'and sat '*n)
    write(page, 1, 'The bank.')
    wait(
        page,
        "!document.querySelector('.elmo-old') && document.querySelectorAll('.elmo-line').length === 2",
    )
    assert page.locator('.elmo-words').first.locator('button').all_inner_texts() == [
        'The',
        'bank',
        '.',
    ]


def test_a_sentence_alone_has_nothing_to_compare_with(page):
    for i in (2, 3): write(page, i, '')
    page.locator('text=Write a second sentence to compare with.').wait_for()
    assert not page.locator('.elmo-line').count()

# the views

def test_dots_glide_between_the_senses(everything):
    senses = view(everything, 'senses')
    senses.scroll_into_view_if_needed()
    place = lambda: everything.evaluate(
        "document.querySelectorAll('.elmo-glide')[0].style.transform"
    )
    everything.wait_for_timeout(100)
    before = place()
    assert (
        senses.locator('circle').count() >= 22 + 3
        and senses.locator('.elmo-neighbours li').count() == 4
    )
    assert (
        'edge' in senses.locator('svg').text_content()
        and 'bank/edge' in senses.locator('.elmo-neighbours').inner_text()
    )
    senses.get_by_role('textbox').fill('The bank lent them a lot of money.')
    wait(
        everything,
        f"document.querySelectorAll('.elmo-glide')[0]?.style.transform !== {json.dumps(before)}",
    )
    assert 'occurrences.safetensors' in everything.asked
    senses.get_by_role('button', name='lent', exact=True).click()
    everything.locator('text=No occurrences of “lent” are stored').wait_for()
    assert not senses.get_by_role('button', name='Save picture').is_visible(), 'there is none'

def test_two_readers_and_the_word_that_is_blanked(everything):
    readers = view(everything, 'readers')
    readers.get_by_role('button', name='did', exact=True).first.click()
    everything.wait_for_function(
        "document.querySelector('[data-panel=readers] .elmo-gap')?.textContent.startsWith('She ___ not')"
    )
    text = readers.locator('svg').text_content
    assert 'did 0.97' in text() and 'from the left' in text()
    readers.locator('.elmo-pick', has_text='home').click()
    wait(
        everything,
        "document.querySelector('[data-panel=readers] .elmo-gap').textContent.includes('go ___ .')",
    )
    assert {'output.safetensors', 'vocab.json'} <= {*everything.asked}
    readers.get_by_role('textbox').fill('She saw zorgles')
    wait(
        everything,
        "document.querySelector('[data-panel=readers] svg').textContent.includes('zorgles ?')",
    )


def test_the_word_that_moved_a_vector_is_chosen_by_a_click(everything):
    influence = view(everything, 'influence')
    assert (
        influence.locator('svg rect').count() == 10
        and 'the chosen word' in influence.locator('svg').text_content()
    )
    influence.locator('.elmo-pick', has_text='river').click()
    assert chosen(everything) == ['river']

def test_it_writes_and_begins_again(everything):
    writes = view(everything, 'write')
    writes.scroll_into_view_if_needed()
    gap = lambda: writes.locator('mark').inner_text().split()
    writes.get_by_role('button', name='Write ten').click()
    wait(
        everything,
        "document.querySelector('[data-panel=write] mark').textContent.split(' ').length === 10",
    )
    known = json.loads((BOX/'vocab.json').read_text(encoding='utf-8'))['itos']
    assert {*gap()} <= {*known[4:]}
    writes.get_by_role('button', name='Start over').click()
    wait(everything, "document.querySelector('[data-panel=write] mark').textContent === ''")
    first = writes.locator('svg').text_content()
    writes.get_by_role('slider', name='temperature').fill('0.2')
    wait(
        everything,
        f"document.querySelector('[data-panel=write] svg').textContent !== {json.dumps(first)}",
    )
    numbers = [float(o) for o in re.findall(r'\d\.\d\d', writes.locator('svg').text_content())]
    assert numbers[0] > max(float(o) for o in re.findall(r'\d\.\d\d', first)), 'colder, and surer'

def test_inside_steps_through_the_sentence_and_mixes(everything):
    inside = view(everything, 'inside')
    slider = inside.get_by_role('slider', name='words read')
    shown = lambda: everything.evaluate(
        "[...document.querySelectorAll('[data-panel=inside] svg > g')].filter(o => o.getAttribute('opacity') === '1').length"
    )
    slider.fill('0')
    none = shown()
    slider.fill('3')
    assert shown() == none + 3*4, 'two layers of two directions'
    text = inside.locator('.elmo-panel').inner_text
    assert 'with sentence 2: 0.8' in text()
    for name in ('s1', 's2'): inside.get_by_role('slider', name=name).fill('0')
    assert 'with sentence 2: 1.00, with sentence 3: 1.00' in text(), 'layer 0 is the letters'

def test_motion_begins_and_can_be_stopped(browser, site):
    page = opened(browser, site, 'all.html', reduced_motion='no-preference')
    button, slider = (
        page.get_by_role('button', name='Play or pause: layer'),
        page.get_by_role('slider', name='layer'),
    )
    assert slider.input_value() == '0', 'nothing moves by itself'
    button.click()
    wait(page, "+document.querySelector('[data-panel=map] input[type=range]').value > .1")
    button.click()
    stopped = slider.input_value()
    page.wait_for_timeout(300)
    assert slider.input_value() == stopped
    page.context.close()

def test_without_motion_it_is_there_at_once(everything):
    everything.get_by_role('button', name='Play or pause: layer').click()
    assert everything.get_by_role('slider', name='layer').input_value() == '2'

def test_a_word_that_it_gets_wrong(everything):
    failures = json.loads((live/'stored.json').read_text(encoding='utf-8'))['failures']
    everything.get_by_role('button', name='a word that it gets wrong').click()
    view(everything, 'senses').scroll_into_view_if_needed()
    asked, near = failures['wrong'][0]
    everything.wait_for_function(
        'text => document.querySelector("[data-panel=senses] .elmo-neighbours li")?.textContent.includes(text)',
        arg=near['sense'],
    )
    assert f"{len(failures['wrong'])} of {failures['n']}" in said(everything)
    assert (
        sentence(everything, 1).input_value() == asked['text']
        and sentence(everything, 2).input_value() == near['text']
    )


def test_the_tour_goes_forth_and_back(everything):
    everything.get_by_role('button', name='Take the tour').click()
    bar = everything.get_by_role('region', name='Tour')
    assert (
        '1 of 2. Bars.' in bar.inner_text() and bar.get_by_role('button', name='Back').is_disabled()
    )
    bar.get_by_role('button', name='Next').click()
    assert (
        '2 of 2. A gap.' in bar.inner_text()
        and sentence(everything, 1).input_value() == 'She did not want to go home.'
    )
    assert view(everything, 'readers').bounding_box()['y'] < 900, 'its view is on the screen'
    bar.get_by_role('button', name='Back').click()
    assert chosen(everything) == ['bank']
    bar.get_by_role('button', name='End the tour').click()
    assert not bar.is_visible()

# the address

def test_an_address_restores_what_was_seen(browser, site):
    page = opened(browser, site, 'all.html')
    write(page, 1, 'A rose “is” a rose & a % rose')
    view(page, 'readers').get_by_role('button', name='rose', exact=True).first.click()
    address = page.url
    assert address.startswith(site + 'all.html#elmo=')
    again = opened(browser, address)
    wait(
        again,
        "document.querySelector('[data-panel=readers] .elmo-gap')?.textContent.startsWith('A ___ “')",
    )
    assert sentence(again, 1).input_value() == 'A rose “is” a rose & a % rose' and chosen(
        again
    ) == ['rose']
    assert -1 <= view(again, 'readers').bounding_box()['y'] < 500, 'the view is on the screen'
    page.context.close(); again.context.close()

BROKEN = [
    '',
    '%',
    '[]',
    '["nowhere",0,0,"a"]',
    '["bars",7,-1,"a"]',
    '{"a":1}',
    '["constructor",0,0,"a"]',
    '["__proto__",0,0,"a"]',
    '["toString",0,0,"a"]',
    '["bars","constructor",0,"a"]',
    '["bars",0,"__proto__","a"]',
    '["bars",0,0.5,"a"]',
    '["bars",0,0]',
    '["bars",0,0,{}]',
    'null',
    '[["bars"],0,0,"a"]',
]


@pytest.mark.parametrize('hash', BROKEN)
def test_a_broken_address_shows_the_first_example(browser, site, hash):
    page = opened(browser, site, '#elmo=' + (hash if hash == '%' else quote(hash)))
    assert chosen(page) == ['bank'] and not page.errors
    page.context.close()

def test_a_section_leads_to_its_view(browser, site):
    page = opened(browser, site, 'all.html#influence')
    page.wait_for_timeout(500)
    assert -1 <= view(page, 'influence').bounding_box()['y'] < 400
    page.context.close()

def test_a_link_is_copied_and_a_picture_saved(browser, site):
    page = opened(browser, site, 'all.html', permissions=['clipboard-read', 'clipboard-write'])
    view(page, 'bars').get_by_role('button', name='Copy link').click()
    page.locator('text=The link is copied').wait_for()
    assert page.evaluate('navigator.clipboard.readText()') == page.url
    assert not view(page, 'bars').get_by_role('button', name='Save picture').is_visible(), (
        'it is no picture'
    )
    for panel in PANELS[1:]:
        with page.expect_download() as download:
            view(page, panel).get_by_role('button', name='Save picture').click()
        data = Path(download.value.path()).read_bytes()
        tall = page.evaluate(
            f"[...document.querySelectorAll('[data-panel={panel}] .elmo-panel svg')]"
            '.reduce((sum, o) => sum + o.viewBox.baseVal.height, 0)'
        )
        assert (
            data.startswith(b'\x89PNG')
            and len(data) > 5000
            and abs(int.from_bytes(data[20:24], 'big') - 2 * tall) < 2
        ), 'all of its pictures'
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
    assert page.locator('.elmo-line').count() == 2
    context.close()

def test_without_the_worker_it_is_said(browser, site):
    page = opened(browser, site)
    page.context.route('**/worker.js', lambda r: r.abort())
    write(page, 1, 'She sat on the bank')
    page.locator('text=The model could not be loaded').wait_for()
    page.context.close()

# keyboard, screen reader, phone

def test_keyboard(page):
    sentence(page, 1).focus()
    page.keyboard.press('Tab')
    assert page.evaluate('document.activeElement.textContent') == 'bank'
    page.keyboard.press('ArrowRight')
    assert page.evaluate('document.activeElement.textContent') == 'of' and chosen(page) == ['bank']
    page.keyboard.press('Enter')
    assert chosen(page) == ['of']
    page.keyboard.press('Home')
    page.keyboard.press('Tab')
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 2', (
        'one stop for the words of a sentence'
    )


def test_names_for_screen_readers(everything):
    tree = everything.locator('main').aria_snapshot()
    for o in (
        'textbox "Sentence 1"',
        'toolbar "Words of sentence 1"',
        'button "bank" [pressed]',
        'group "Examples"',
        'slider "layer"',
        'img "Cosines',
        'img "How much each word moved',
        'slider "temperature"',
    ):
        assert o in tree, (o, tree)
    assert (
        everything.locator('.elmo-live [aria-live], .elmo-live [role=status]').count()
        == len(PANELS) + 1
    ), 'each view has one line that is announced, and the tour'
    text = everything.locator('main').inner_text()
    for term in (
        'A nat is the unit of surprise',
        'The highway is a gate',
        's holds the weights of the layers',
        'γ is one factor',
    ):
        assert term in text, 'said where it is seen'


@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [1280, 390])
def test_nothing_for_axe_to_find(browser, site, axe, scheme, width):
    page = opened(browser, site, 'all.html', viewport={'width': width, 'height': 900})
    page.evaluate(
        f"document.body.className = 'quarto-{scheme}'; document.body.style.background = '{'#ffffff' if scheme == 'light' else '#222222'}'; document.body.style.color = '{'#343a40' if scheme == 'light' else '#ffffff'}'"
    )
    assert not axe(page)
    page.get_by_role('button', name='Take the tour').click()
    write(page, 2, '')
    page.wait_for_timeout(500)
    wait(page, "!document.querySelector('[data-panel=bars]').classList.contains('elmo-old')")
    page.wait_for_timeout(500)
    assert not axe(page)
    page.context.close()

def test_on_a_phone(browser, site):
    page = opened(
        browser,
        site,
        'all.html',
        viewport={'width': 390, 'height': 844},
        has_touch=True,
        is_mobile=True,
    )
    last, copy = (
        page.locator(o).bounding_box()['y']
        for o in ('.elmo-line >> nth=1', 'text=Copy link >> nth=0')
    )
    assert page.locator('.elmo-bar').nth(5).bounding_box()['width'] > 50 and last < copy, (
        'bars, before the link'
    )
    for panel in PANELS[1:]:
        view(page, panel).locator('svg').first.wait_for()
        sizes = page.evaluate(
            f"[...document.querySelectorAll('[data-panel={panel}] svg text')].map(o => parseFloat(getComputedStyle(o).fontSize)*o.ownerSVGElement.getBoundingClientRect().width/o.ownerSVGElement.viewBox.baseVal.width)"
        )
        assert min(sizes) >= 11.5, panel
    assert page.evaluate('document.documentElement.scrollWidth') <= 390
    heights = page.evaluate(
        "[...document.querySelectorAll('.elmo-live button')].filter(o => o.checkVisibility()).map(o => o.getBoundingClientRect().height)"
    )
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
        found = {
            c['id']: c
            for c in json.loads((root / 'nbs' / f'{nb}.ipynb').read_text(encoding='utf-8'))['cells']
        }
        output = ''.join(
            ''.join(o.get('data', {}).get('text/plain', '')) for o in found[cell]['outputs']
        )
        numbers = re.findall(r'<b>([\d.]+)</b>', body)
        assert numbers == [
            f'{float(share):.{len(b) - 2}f}'
            for share, b in zip(re.findall(r'--share: ([\d.]+)', body), numbers)
        ]
        for number in numbers:
            assert number in output or number.rstrip('0') in output, (nb, cell, number)


def test_the_code_on_the_home_page_is_that_of_the_start_page():
    home, start = (
        json.loads((root / 'nbs' / f'{o}.ipynb').read_text(encoding='utf-8'))['cells']
        for o in ('index', 'start')
    )
    [code] = re.findall(
        r'~~~python\n(.*?)\n~~~', '\n'.join(''.join(c['source']) for c in home), re.S
    )
    cells = {c['id']: ''.join(c['source']) for c in start}
    assert code == cells['c004'] + '\n\n' + cells['c005']
