"ELMo in plain JavaScript: the same tokens and the same vectors as the library, under node where there is one and in a browser where there is one; and what a reader does with it"
import functools, http.server, importlib.util, json, random, re, shutil, subprocess, sys, threading, unicodedata
from pathlib import Path

import numpy as np, pytest, torch

from elmo_fastai.text.tokens import ByteCharVocab, word_tokenize
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.module import Elmo

root = Path(__file__).resolve().parent.parent
live = root/'nbs'/'live'
sys.path.insert(0, str(root/'tests'))
from after_render import BOX, LOADED, boxed

pytestmark = pytest.mark.slow

SAID = '''They sat on the left bank of the river .|She did n't owe the bank 1,250.75 !|He said "well-known" -- twice ...|Zoë's naïve café in Košice|ΑΒΓ δεν ξέρω|これは銀行です
    |Здравствуй , мир !|👩🏽‍🚀 and 🇬🇧🇫🇷 and ☕️|<unk> is a word|<s> and </s> are none|a|.|I've we'll it's o'clock|e.g. U.S. 10:30|x_y snake_case|École ﬁn Ⅷ ½ ²'''.replace('\n    ', '').split('|')
INHERITED = 'constructor toString valueOf hasOwnProperty isPrototypeOf __proto__ toLocaleString'      # what every object of JavaScript has
SENTENCES = [*SAID, INHERITED, '', ' \t ', 'word '*200, 'a'*200, 'é'*40, 'İstanbul ſtreet', 'ß ẞ ŉ']

def sentences():
    "Fifty: those above, and English words in any order"
    rng, words = random.Random(1), 'the bank river money of on she he light spring watch , . well left green quickly Mississippi unfriendly'.split()
    return SENTENCES + [' '.join(rng.choices(words, k=rng.randint(1, 25))) for _ in range(50 - len(SENTENCES))]

def fuzzed(n=3000):
    "Texts of characters of all kinds: letters, marks, digits, signs, spaces, joiners, skin tones, flags, quotation marks"
    rng = random.Random(2)
    known = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ('Cn', 'Cs', 'Co')]
    dense = list("abnNtTsmdDre'’.-_,:<>unk0123 \u0301\u200d\ufe0f🏽🇬👩é\x1c\x85\xa0\ufeff\u2028") + ["n't", "'ll", "'S", '<unk>', '<UNK>', '1,2', '--', '..', 'ſ', 'K']
    return [''.join(rng.choices(dense if rng.random() < .7 else known, k=rng.randint(1, 15))) for _ in range(n)]

@pytest.fixture(scope='module')
def wanted():
    "PyTorch's vectors in double precision, and how far its own in single are from them: its sums are single, the scripts' double"
    single, exact = ([*elmo.embed(sentences(), layers='all')] for elmo in (Elmo.from_pretrained('mini-en').eval(), Elmo.from_pretrained('mini-en').eval().double()))
    return [(v.astype(np.float32), np.abs(v - o).max(initial=0)) for v,o in zip(exact, single)]

def compare(got, wanted):
    "To 1e-5; where a sentence makes PyTorch itself round worse (one word two hundred times), the scripts are the nearer"
    assert len(got) == len(wanted) == 50 and sum(own > 1e-5 for _,own in wanted) <= 1
    for text,layers,(want, own) in zip(sentences(), got, wanted):
        assert [len(l) for l in layers] == [want.shape[1]]*3, text
        if want.size: assert np.abs(np.array(layers, dtype=np.float32) - want).max() <= max(1e-5, own), text

# under node

@pytest.fixture(scope='module')
def node(tmp_path_factory):
    program = shutil.which('node')
    if not program: pytest.skip('node is not installed: the scripts are not run without a browser')
    folder = tmp_path_factory.mktemp('node')
    shutil.copyfile(live/'elmo.js', folder/'elmo.mjs')
    (folder/'speak.mjs').write_text((live/'speak.js').read_text(encoding='utf-8').replace('./elmo.js', './elmo.mjs'), encoding='utf-8')
    def run(code, value=None):
        (folder/'in.json').write_text(json.dumps(value), encoding='utf-8')
        (folder/'run.mjs').write_text(f"""import * as E from './elmo.mjs'; import * as S from './speak.mjs'; import fs from 'node:fs';
const value = JSON.parse(fs.readFileSync('in.json')), file = f => {{ const b = fs.readFileSync(f); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); }};
const box = () => new E.Elmo(E.readTensors(file({json.dumps(str(BOX/'model.safetensors'))})), JSON.parse(fs.readFileSync({json.dumps(str(BOX/'config.json'))})).config);
fs.writeFileSync('out.json', JSON.stringify((() => {{ {code} }})()));""", encoding='utf-8')
        done = subprocess.run([program, 'run.mjs'], cwd=folder, capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr[-2000:]
        return json.loads((folder/'out.json').read_text(encoding='utf-8'))
    return run

VECTORS = 'const elmo = box(); return value.map(s => elmo.layers(E.tokenize(s)).map(l => l.map(v => Array.from(v))))'

def test_tokens_under_node(node):
    texts = sentences() + fuzzed()
    got = node('return value.map(E.tokenize)', texts)
    for text,tokens in zip(texts, got): assert tokens == word_tokenize(text), ascii(text)

def test_vectors_under_node(node, wanted): compare(node(VECTORS, sentences()), wanted)

def test_words_that_every_object_has_under_node(node):
    "Each has a vector of its own; and a word that looks like a mark is a word"
    tokens = [*INHERITED.split(), '<s>', '</s>', 'bank']
    got = np.array(node('const elmo = box(); return [elmo.layers(value).map(l => l.map(v => Array.from(v)))]', tokens)[0], dtype=np.float32)
    want = Elmo.from_pretrained('mini-en').embed([tokens], layers='all')[0]
    assert np.abs(got - want).max() < 1e-5
    assert len({tuple(v) for v in got[0].round(4).tolist()}) == len(tokens)

def test_rows_of_int8_under_node(node, tmp_path):
    "A matrix of int8 with a scale a row, beside numbers of 32 and of 16 bits with the smallest and largest of them"
    from safetensors.torch import save_file
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    scale = (x.abs().amax(1)/127).half()
    q = (x/scale.float()[:,None]).round().clamp(-127, 127).to(torch.int8)
    halves = torch.tensor([0., -0., 1., -2.5, 65504., 6e-8, 6.1e-5, -6e-5, .333]).half()
    save_file({'w': q, 'w.scale': scale, 'x': x, 'h': halves}, tmp_path/'m.safetensors')
    got = node(f"const t = E.readTensors(file({json.dumps(str(tmp_path/'m.safetensors'))})); return Object.fromEntries(Object.entries(t).map(([k, o]) => [k, [o.shape, Array.from(o.data)]]))")
    assert got['w'][0] == [7, 5] and np.allclose(got['w'][1], (q.float()*scale.float()[:,None]).flatten(), atol=1e-7)
    assert np.array_equal(np.float32(got['x'][1]), x.flatten().numpy()) and np.array_equal(np.float32(got['h'][1]), halves.float().numpy())
    assert np.allclose(np.reshape(got['w'][1], (7, 5)), x, atol=float(scale.max()))

def test_clipping_projections_and_tanh_under_node(node, tmp_path):
    "The shape of AI2's models: cells larger than outputs, both clipped; two highway layers, tanh"
    from safetensors.torch import save_file
    torch.manual_seed(3)
    config = BiLMConfig('small', char_dim=4, filters=((1, 4), (3, 6)), n_highway=2, activation='tanh', proj_dim=6, hidden_dim=10, norm=False, cell_clip=.2, proj_clip=.1)
    lm = BiLM(config, 0).eval()
    for p in lm.parameters(): p.data = torch.randn_like(p)*.7
    elmo = Elmo(lm, char_vocab=ByteCharVocab()).eval()
    save_file(lm.state_dict(), tmp_path/'m.safetensors')
    got = node(f"""const elmo = new E.Elmo(E.readTensors(file({json.dumps(str(tmp_path/'m.safetensors'))})), value);
        return elmo.layers(['She', 'sat', 'by', 'the', 'bank']).map(l => l.map(v => Array.from(v)))""", config.__dict__ | {'filters': [list(o) for o in config.filters]})
    want = elmo.embed([['She', 'sat', 'by', 'the', 'bank']], layers='all')[0]
    assert np.abs(want[1:]).max() <= .2001 and np.abs(np.array(got) - want).max() <= 1e-5

def test_words_are_expected_as_the_library_expects_them_under_node(node, tmp_path):
    "The adaptive softmax with two groups: every word's surprise from both sides, and a gap filled from both"
    from safetensors.torch import save_file
    from elmo_fastai.text.tokens import SPECIALS, WordVocab
    from elmo_fastai.train.speak import fill, score
    torch.manual_seed(5)
    vocab = WordVocab([*SPECIALS, 'the', 'bank', 'she', *(f'w{i}' for i in range(60))])
    config = BiLMConfig('small', char_dim=4, filters=((1, 4), (3, 6)), proj_dim=16, hidden_dim=16, norm=False, softmax='adaptive', cutoffs=(10, 30), div_value=2.)
    lm, chars = BiLM(config, len(vocab)).eval(), ByteCharVocab()
    for p in lm.parameters(): p.data = torch.randn_like(p)*.4
    save_file(lm.state_dict(), tmp_path/'m.safetensors')
    words = 'she sat by the bank w7 w59 .'.split()
    got = node(f"""const all = E.readTensors(file({json.dumps(str(tmp_path/'m.safetensors'))})), [config, words, said] = value;
        const s = new S.Speaker(new E.Elmo(all, config), all, words);
        return [S.score(s, said), S.fill(s, said.slice(0, 3), said.slice(4), 60), Array.from(S.logProbs(s, Float32Array.from({{length: 16}}, (_, i) => i/8 - 1)))]""", [config.__dict__ | {'filters': [list(o) for o in config.filters]}, vocab.itos, words])
    (want,), whole = score(lm, vocab, chars, [words]), lm.heads[0].log_prob((torch.arange(16)/8 - 1)[None])[0].detach()
    assert np.allclose(got[2], whole, atol=1e-5) and abs(np.exp(got[2]).sum() - 1) < 1e-4, 'every word, in head and tails'
    assert [o['known'] for o in got[0]] == want.known
    assert np.allclose([[o['left'], o['right']] for o in got[0]], -np.stack([want.fwd[:-1], want.bwd[:-1]], 1), atol=1e-4)
    best = fill(lm, vocab, chars, [*words[:3], '___', *words[4:]], k=60, prior=-np.log(np.arange(1, len(vocab)+1)))
    assert [o['word'] for o in got[1][:20]] == best.word.tolist()[:20]
    assert np.allclose([o['both'] for o in got[1]], best.p, atol=1e-5) and np.allclose([o['left'] for o in got[1]], best['from the left'], atol=1e-5)

TOLD = ['She did not want to go home .', 'the constructor of <s> toString </s>', 'goverment xyzzy', '', "He said , `` I do n't know . ''", 'Zoë owed £ 1,250.75', 'the '*30, 'the <unk> of it', 'The men on the hill were tired .']
GAPPED = [('She', 'not want to go home .'), ('', ''), ('They sat on the', 'of the river .'), ('', 'was a fine day'), ('goverment xyzzy', ''), ('the '*20, 'the '*20)]

@pytest.fixture(scope='module')
def foretold():
    "What the library says of these sentences and gaps, in double precision: ten words a gap"
    from elmo_fastai.train.speak import fill, score
    elmo = Elmo.from_pretrained('mini-en').eval().double()
    box = elmo.lm, elmo.vocab, elmo.char_vocab
    prior = -np.log(np.arange(1, len(elmo.vocab) + 1))
    return score(*box, TOLD), [fill(*box, [*a.split(), '___', *b.split()], k=10, prior=prior) for a,b in GAPPED]

def compare_speech(got, foretold):
    for text,said,want in zip(TOLD, got[0], foretold[0], strict=True):
        assert [o['word'] for o in said] == want.tokens and [o['known'] for o in said] == want.known, text
        assert np.allclose([[o[side] for o in said] for side in ('left', 'right')], [-want.fwd[:-1], -want.bwd[:-1]], atol=1e-4), text
    for gap,said,want in zip(GAPPED, got[1], foretold[1], strict=True):
        clear = want.p.values[:-1] > want.p.values[1:]*1.001                   # words that are as good as equal may change places
        n = len(clear) if clear.all() else int(np.argmin(clear))
        assert [o['word'] for o in said][:n] == want.word.tolist()[:n] and len(said) == 10, gap
        for a,b in (('both', 'p'), ('left', 'from the left'), ('right', 'from the right')):
            assert np.allclose([o[a] for o in said][:n], want[b][:n], rtol=1e-3, atol=1e-6), (gap, a)

SPEECH = """const [told, gapped] = value, words = s => s.split(' ').filter(o => o);
    return [told.map(s => S.score(speaker, words(s))), gapped.map(([a, b]) => S.fill(speaker, words(a), words(b), 10))]"""

def test_the_box_speaks_under_node_as_in_python(node, foretold):
    load = f"""const speaker = new S.Speaker(box(), E.readTensors(file({json.dumps(str(BOX/'output.safetensors'))})), JSON.parse(fs.readFileSync({json.dumps(str(BOX/'vocab.json'))})).itos);"""
    compare_speech(node(load + SPEECH, [TOLD, GAPPED]), foretold)

# what the pages load

def test_stored_occurrences():
    from safetensors.numpy import load_file
    t, text = load_file(live/'occurrences.safetensors'), json.loads((live/'occurrences.json').read_text(encoding='utf-8'))
    n = sum(map(len, text['at']))
    assert t['vectors'].dtype == np.int8 and len(t['vectors']) == len(t['vectors.scale']) == n >= 2000
    assert sum((live/f'occurrences.{e}').stat().st_size for e in ('safetensors', 'json')) <= 500_000
    for s,at in zip(text['sentences'], text['at']): assert all(0 <= i < len(s.split(' ')) for i in at)

def test_stored_vectors_are_those_of_the_model():
    from safetensors.numpy import load_file
    t, text = load_file(live/'occurrences.safetensors'), json.loads((live/'occurrences.json').read_text(encoding='utf-8'))
    some = list(range(0, len(text['sentences']), 40))
    start = np.cumsum([0, *map(len, text['at'])])
    for i,v in zip(some, Elmo.from_pretrained('mini-en').embed([text['sentences'][i].split(' ') for i in some], layers='all')):
        y = (v[1:].mean(0)[text['at'][i]] - t['mean'].astype(np.float32)) @ t['basis'].astype(np.float32).T
        x = t['vectors'][start[i]:start[i+1]]*t['vectors.scale'][start[i]:start[i+1],None].astype(np.float32)
        if len(x): assert np.abs(x - y).max() <= np.abs(y).max()/100

def test_the_scripts_need_nothing_else():
    for f in live.glob('*.js'):
        text = f.read_text(encoding='utf-8')
        assert all(o.startswith('./') for o in re.findall(r"from '([^']+)'", text)) and not re.search(r'https?://', text), f.name
        assert 'innerHTML' not in text, 'what a reader types stays text'
    code = [o for o in (live/'elmo.js').read_text(encoding='utf-8').split('\n') if o.strip() and not o.strip().startswith('//')]
    assert len(code) <= 175, 'to be read beside the chapters'

def test_the_page_shows_the_code_that_runs():
    part = r'^// ---- [^\n]*? -+\n\n(.*?)(?=^// ----|\Z)'
    parts = [o for f in ('elmo.js', 'speak.js') for o in re.findall(part, (live/f).read_text(encoding='utf-8'), re.M | re.S)]
    cells = json.loads((root/'nbs'/'studies'/'browser.ipynb').read_text(encoding='utf-8'))['cells']
    shown = [''.join(o['data']['text/markdown']) for c in cells for o in c.get('outputs', []) if 'text/markdown' in o.get('data', {})]
    assert len(parts) == len(shown) == 10 and all(p.strip() in o for p,o in zip(parts, shown)), 'execute nbs/studies/browser.ipynb again, then nbdev-clean'

# in a browser

PAGE = '''<!doctype html><html lang="en-GB"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>Live</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="styles.css"></head><body class="quarto-light"><main><h1>Live</h1>%s</main>%s</body></html>'''

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "What the site serves, without Quarto: a page with the examples, the scripts, the model"
    folder = tmp_path_factory.mktemp('live')
    shutil.copytree(live, folder/'live')
    boxed(folder/'live')
    shutil.copyfile(root/'nbs'/'styles.css', folder/'styles.css')
    examples = ''.join(f'<div class="elmo-live" data-example="{o}"><p>A picture.</p></div>' for o in ('bank', 'letters', 'gap'))
    (folder/'index.html').write_text(PAGE % (examples, (root/'nbs'/'access.html').read_text(encoding='utf-8')), encoding='utf-8')
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()

@pytest.fixture
def page(browser, site):
    context = browser.new_context(viewport={'width': 1280, 'height': 1000})
    p = context.new_page()
    p.said = []
    p.on('console', lambda m: m.type == 'error' and p.said.append(m.text))
    p.on('pageerror', lambda e: p.said.append(str(e)))
    p.goto(site)
    yield p
    context.close()
    assert not p.said

def started(page, example='bank'):
    place = page.locator(f'[data-example={example}]')
    place.locator('.elmo-start').click()
    place.locator('.elmo-cosines').wait_for()
    return place

def cosines(place): return [[float(c) for c in row.locator('.number').all_inner_texts()] for row in place.locator('.elmo-cosines tbody tr').all()]
def chosen(place): return place.locator('.elmo-words [aria-pressed=true]').all_inner_texts()

def test_nothing_is_loaded_before_it_is_asked_for(browser, site):
    context = browser.new_context()
    page, asked = context.new_page(), []
    page.on('request', lambda r: asked.append(r.url))
    page.goto(site)
    page.wait_for_timeout(500)
    assert not [o for o in asked if '/live/' in o] and page.locator('text=A picture.').count() == 3
    context.close()

def test_vectors_in_the_browser(page, wanted):
    got = page.evaluate("""async texts => { const m = await import('/live/elmo.js'), elmo = await m.Elmo.load('/live/mini-en/');
        return texts.map(s => elmo.layers(m.tokenize(s)).map(l => l.map(v => Array.from(v)))) }""", sentences())
    compare(got, wanted)

def test_tokens_in_the_browser(page):
    texts = fuzzed()
    got = page.evaluate("async texts => { const m = await import('/live/elmo.js'); return texts.map(m.tokenize) }", texts)
    for text,tokens in zip(texts, got): assert tokens == word_tokenize(text), ascii(text)

def test_a_bank_by_the_river_and_a_bank_with_money(page):
    place = started(page)
    assert chosen(place) == ['bank'] and page.evaluate("document.activeElement.textContent") == 'bank'
    river, money = cosines(place)
    vecs = Elmo.from_pretrained('mini-en').embed(['They sat on the left bank of the river.', 'He swam to the other bank.', 'She owed the bank a lot of money.'], layers='all')
    cos = lambda a, b: [float(x@y/np.linalg.norm(x)/np.linalg.norm(y)) for x,y in zip(a, b)]
    assert np.allclose(river, cos(vecs[0][:,5], vecs[1][:,5]), atol=.006) and np.allclose(money, cos(vecs[0][:,5], vecs[2][:,3]), atol=.006)
    assert river[0] == money[0] == 1 and river[2] > money[2] + .1
    assert place.locator('.elmo-neighbours li').count() == 5 and place.locator('.elmo-neighbours mark').count() == 5
    drawn = page.evaluate("""() => [...document.querySelectorAll('[data-example=bank] canvas')].map(c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        const row = r => Array.from(d.slice(r*8*c.width*4, (r*8 + 1)*c.width*4)); return [c.width, JSON.stringify(row(0)) === JSON.stringify(row(2))] })""")
    assert drawn == [[vecs[0].shape[-1], l == 0] for l in range(3)], 'letters alone are the same picture, in context they are not'

def test_typing_changes_what_is_seen(page):
    place = started(page)
    before = cosines(place)
    page.get_by_label('Sentence 3').first.fill('They walked along the bank of the river .')
    page.wait_for_function("document.querySelector('.elmo-sentences li:nth-child(3) .elmo-words').textContent.includes('walked')")
    after = cosines(place)
    assert after[0] == before[0] and after[1][2] > before[1][2] + .05, 'now both are by the river'
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 3', 'the reader goes on typing'
    for odd in ('', '   ', '<img src=x onerror=alert(1)> & "q"', '👩🏽‍🚀'*30, 'word '*200):
        page.get_by_label('Sentence 1').first.fill(odd)
        page.wait_for_function("n => document.querySelector('.elmo-words').children.length === n", arg=len(word_tokenize(odd)))
        assert place.locator('img').count() == 0
    page.get_by_label('Sentence 1').first.fill('')
    place.locator('text=This sentence has no words yet.').wait_for()

def test_clicking_chooses_a_word(page):
    place = started(page)
    place.locator('.elmo-words').nth(2).locator('button', has_text='money').click()
    assert chosen(place) == ['money'] and 'money' in place.locator('caption').inner_text()
    assert page.evaluate("document.activeElement.textContent") == 'money'
    assert len(cosines(place)) == 2, 'where the word is missing, the one whose letters are most alike'

def test_a_slip_of_the_pen(page):
    place = started(page, 'letters')
    assert chosen(place) == ['goverment']
    right, other = cosines(place)
    assert place.locator('.elmo-cosines tbody b').all_inner_texts()[0] == 'government' and right[0] > .8 and right[2] > .8
    place.locator('.elmo-examples button').first.click()
    assert chosen(place) == ['bank']

def test_keyboard(page):
    place = page.locator('[data-example=bank]')
    place.locator('.elmo-start').focus()
    page.keyboard.press('Enter')
    place.locator('.elmo-cosines').wait_for()
    assert page.evaluate("document.activeElement.textContent") == 'bank'
    page.keyboard.press('ArrowRight')
    assert page.evaluate("document.activeElement.textContent") == 'of' and chosen(place) == ['bank']
    page.keyboard.press('Enter')
    assert chosen(place) == ['of'] and page.evaluate("document.activeElement.textContent") == 'of'
    page.keyboard.press('Home')
    page.keyboard.press(' ')
    assert chosen(place) == ['They']
    page.keyboard.press('Tab')
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence 2', 'one stop a sentence for its words'

def test_names_for_screen_readers(page):
    place = started(page)
    tree = place.aria_snapshot()
    for o in ('textbox "Sentence 1"', 'toolbar "Words of sentence 1"', 'button "bank" [pressed]', 'group "Examples"', 'columnheader "layer 0: letters"', 'caption: Cosines', 'img "layer 2'): assert o in tree, (o, tree)
    assert place.locator('.elmo-result').get_attribute('aria-live') == 'polite'

def test_examples_share_one_model_and_load_only_what_they_need(page):
    asked = []
    page.on('request', lambda r: asked.append(r.url.split('/')[-1]))
    spoken(page)
    assert not [o for o in asked if o.startswith('occurrences')]
    started(page); started(page, 'letters')
    assert all(asked.count(o) == 1 for o in LOADED), asked

def test_only_the_gap_loads_the_output_layer(page):
    asked = []
    page.on('request', lambda r: asked.append(r.url.split('/')[-1]))
    started(page)
    assert 'model.safetensors' in asked and not {'output.safetensors', 'vocab.json', 'speak.js'} & {*asked}

# the gap

def spoken(page):
    place = page.locator('[data-example=gap]')
    place.locator('.elmo-start').click()
    place.locator('.elmo-word').first.wait_for()
    return place

def typed(page, place, text, sign):
    "The panel after `text` was typed and `sign` has appeared in it"
    place.get_by_label('Sentence with a gap').fill(text)
    place.locator('.elmo-result', has_text=sign).wait_for()

def filled(place): return place.locator('.elmo-cosines tbody b').all_inner_texts()
def nats(place, side):
    words = place.locator('.elmo-surprise').nth(side).locator('.elmo-word').all_inner_texts()
    return [(w, float(n.split()[0])) for w,n in (o.split('\n') for o in words)]

def test_the_box_speaks_in_the_browser_as_in_python(page, foretold):
    got = page.evaluate("""async value => { const E = await import('/live/elmo.js'), S = await import('/live/speak.js');
        const speaker = await S.Speaker.load('/live/mini-en/', await E.Elmo.load('/live/mini-en/')); %s }""" % SPEECH, [TOLD, GAPPED])
    compare_speech(got, foretold)

def test_a_gap_and_what_surprises(page, foretold):
    place = spoken(page)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence with a gap'
    best = foretold[1][0]
    assert filled(place)[0] == best.word[0] == 'did' and best.p[0] > .3, 'from the left many a verb, from the right a bare one'
    assert abs(float(place.locator('.elmo-cosines .number').first.inner_text()) - best.p[0]) < 6e-4
    assert 'with “did” in the gap' in place.locator('.elmo-title').inner_text()
    scored = foretold[0][0]
    for side,logp in enumerate((scored.fwd, scored.bwd)):
        assert [w for w,_ in nats(place, side)] == scored.tokens
        assert np.allclose([n for _,n in nats(place, side)], -logp[:-1], atol=.051)

def test_typing_into_the_gap(page):
    place = spoken(page)
    typed(page, place, 'There ___ three men in the room.', 'room')
    assert 'were' in filled(place)[:2] and page.evaluate("document.activeElement.getAttribute('aria-label')") == 'Sentence with a gap'
    typed(page, place, 'a ___ and a ___', 'One gap at a time')
    typed(page, place, '', 'no words yet')
    typed(page, place, '___', 'in the gap')
    assert len(filled(place)) == 5 and len(nats(place, 0)) == 1
    typed(page, place, 'She saw zorgles', 'zorgles')
    assert filled(place) == [] and 'unknown' in place.locator('.elmo-word', has_text='zorgles').first.inner_text()
    typed(page, place, '<img src=x onerror=alert(1)> 👩🏽‍🚀 &', 'onerror')
    assert place.locator('img').count() == 0
    typed(page, place, 'the '*100, 'the')

def test_examples_of_the_gap_with_mouse_and_keyboard(page):
    place = page.locator('[data-example=gap]')
    place.locator('.elmo-start').focus()
    page.keyboard.press('Enter')
    place.locator('.elmo-word').first.wait_for()
    buttons = place.get_by_role('group', name='Examples').get_by_role('button')
    pressed = lambda: [b.get_attribute('aria-pressed') for b in buttons.all()]
    assert pressed() == ['true', 'false', 'false']
    buttons.nth(1).click()
    assert pressed() == ['false', 'true', 'false'] and len(filled(place)) == 5
    assert place.get_by_label('Sentence with a gap').input_value() == buttons.nth(1).inner_text()
    page.keyboard.press('Tab')
    page.keyboard.press('Enter')
    assert pressed() == ['false', 'false', 'true'] and filled(place) == [], 'the third has no gap'
    for side in (0, 1): assert len(nats(place, side)) == len(word_tokenize(buttons.nth(2).inner_text()))
    page.keyboard.press('Tab')
    page.keyboard.type('x')
    place.locator('.elmo-result', has_text='unknown').wait_for()
    assert pressed() == ['false']*3

def test_the_gap_has_names_for_screen_readers(page):
    place = spoken(page)
    tree = place.aria_snapshot()
    for o in ('textbox "Sentence with a gap"', 'group "Examples"', '[pressed]', 'caption: "The gap', 'columnheader "from both sides"', 'rowheader "did"'): assert o in tree, (o, tree)
    assert place.locator('.elmo-result').get_attribute('aria-live') == 'polite'

def test_without_the_model_the_picture_stays(browser, site):
    context = browser.new_context()
    page = context.new_page()
    page.route('**/model.safetensors', lambda r: r.fulfill(status=404, body=''))
    page.goto(site)
    place = page.locator('[data-example=bank]')
    place.locator('.elmo-start').click()
    place.locator('text=could not be loaded').wait_for()
    assert place.locator('text=A picture.').is_visible() and place.locator('.elmo-start').is_enabled()
    page.unroute('**/model.safetensors')
    place.locator('.elmo-start').click()
    place.locator('.elmo-cosines').wait_for()
    context.close()

def test_on_a_phone(browser, site):
    context = browser.new_context(viewport={'width': 390, 'height': 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(site)
    place = started(page)
    assert page.evaluate('document.documentElement.scrollWidth') <= 390
    place.locator('.elmo-words').nth(1).locator('button', has_text='swam').tap()
    assert chosen(place) == ['swam']
    assert min(o['height'] for o in page.evaluate("[...document.querySelectorAll('.elmo-words button')].map(o => o.getBoundingClientRect().toJSON())")) >= 24
    context.close()

def test_without_scripts_there_is_the_picture(browser, site):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site)
    assert page.locator('text=A picture.').count() == 3 and page.locator('.elmo-start').count() == 0
    context.close()
