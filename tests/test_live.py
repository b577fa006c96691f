"""ELMo in plain JavaScript: the same tokens, vectors and predictions as the library, under node
where there is one; test_explainer has what a reader does with it"""

import json, random, re, shutil, subprocess, sys, unicodedata
from pathlib import Path

import numpy as np, pytest, torch

from elmo_fastai.text.tokens import ByteCharVocab, word_tokenize
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo.module import Elmo

root = Path(__file__).resolve().parent.parent
live = root/'nbs'/'live'
sys.path.insert(0, str(root/'tests'))
from after_render import BOX
import stored

pytestmark = pytest.mark.slow

SAID = '''They sat on the left bank of the river .|She did n't owe the bank 1,250.75 !|He said "well-known" -- twice ...|Zoë's naïve café in Košice|ΑΒΓ δεν ξέρω|これは銀行です
    |Здравствуй , мир !|👩🏽‍🚀 and 🇬🇧🇫🇷 and ☕️|<unk> is a word|<s> and </s> are none|a|.|I've we'll it's o'clock|e.g. U.S. 10:30|x_y snake_case|École ﬁn Ⅷ ½ ²'''.replace(
    '\n    ', ''
).split('|')
# what every object of JavaScript has
INHERITED = 'constructor toString valueOf hasOwnProperty isPrototypeOf __proto__ toLocaleString'
SENTENCES = [*SAID, INHERITED, '', ' \t ', 'word '*200, 'a'*200, 'é'*40, 'İstanbul ſtreet', 'ß ẞ ŉ']

def sentences():
    "Fifty: those above, and English words in any order"
    rng, words = (
        random.Random(1),
        'the bank river money of on she he light spring watch , . well left green quickly Mississippi unfriendly'.split(),
    )
    return SENTENCES + [
        ' '.join(rng.choices(words, k=rng.randint(1, 25))) for _ in range(50 - len(SENTENCES))
    ]


def fuzzed(n=3000):
    """Texts of characters of all kinds: letters, marks, digits, signs, spaces, joiners, skin tones,
    flags, quotation marks"""
    rng = random.Random(2)
    known = [
        chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ('Cn', 'Cs', 'Co')
    ]
    dense = list(
        "abnNtTsmdDre'’.-_,:<>unk0123 \u0301\u200d\u200c\xad\u200b\u200f\u0600\U000e0067\U000e007f\ufe0f🏽🇬👩éขក漢\x1c\x85\xa0\ufeff\u2028"
    ) + ["n't", "'ll", "'S", '<unk>', '<UNK>', '1,2', '--', '..', 'ſ', 'K']
    return [
        ''.join(rng.choices(dense if rng.random() < 0.7 else known, k=rng.randint(1, 15)))
        for _ in range(n)
    ]


@pytest.fixture(scope='module')
def wanted():
    """PyTorch's vectors in double precision, and how far its own in single are from them: its sums
    are single, the scripts' double"""
    single, exact = (
        [*elmo.embed(sentences(), layers='all')]
        for elmo in (
            Elmo.from_pretrained('mini-en').eval(),
            Elmo.from_pretrained('mini-en').eval().double(),
        )
    )
    return [(v.astype(np.float32), np.abs(v - o).max(initial=0)) for v,o in zip(exact, single)]

def compare(got, wanted):
    """To 1e-5; where a sentence makes PyTorch itself round worse (one word two hundred times), the
    scripts are the nearer"""
    assert len(got) == len(wanted) == 50 and sum(own > 1e-5 for _,own in wanted) <= 1
    for text,layers,(want, own) in zip(sentences(), got, wanted):
        assert [len(l) for l in layers] == [want.shape[1]]*3, text
        if want.size:
            assert np.abs(np.array(layers, dtype=np.float32) - want).max() <= max(1e-5, own), text


# under node

@pytest.fixture(scope='module')
def node(tmp_path_factory):
    program = shutil.which('node')
    if not program: pytest.skip('node is not installed: the scripts are not run without a browser')
    folder = tmp_path_factory.mktemp('node')
    for name in stored.SCRIPTS:
        (folder / name.replace('.js', '.mjs')).write_text(
            (live / name).read_text(encoding='utf-8').replace(".js'", ".mjs'"), encoding='utf-8'
        )

    def run(code, value=None):
        (folder/'in.json').write_text(json.dumps(value), encoding='utf-8')
        (folder / 'run.mjs').write_text(
            f"""import * as E from './elmo.mjs'; import * as S from './speak.mjs'; import fs from 'node:fs';
const value = JSON.parse(fs.readFileSync('in.json')), file = f => {{ const b = fs.readFileSync(f); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); }};
const box = () => new E.Elmo(E.readTensors(file({json.dumps(str(BOX / 'model.safetensors'))})), JSON.parse(fs.readFileSync({json.dumps(str(BOX / 'config.json'))})).config);
fs.writeFileSync('out.json', JSON.stringify((() => {{ {code} }})()));""",
            encoding='utf-8',
        )
        done = subprocess.run(
            [program, 'run.mjs'], cwd=folder, capture_output=True, text=True, timeout=300
        )
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
    got = np.array(
        node(
            'const elmo = box(); return [elmo.layers(value).map(l => l.map(v => Array.from(v)))]',
            tokens,
        )[0],
        dtype=np.float32,
    )
    want = Elmo.from_pretrained('mini-en').embed([tokens], layers='all')[0]
    assert np.abs(got - want).max() < 1e-5
    assert len({tuple(v) for v in got[0].round(4).tolist()}) == len(tokens)

def test_rows_of_int8_under_node(node, tmp_path):
    """A matrix of int8 with a scale a row, beside numbers of 32 and of 16 bits with the smallest
    and largest of them"""
    from safetensors.torch import save_file
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    scale = (x.abs().amax(1)/127).half()
    q = (x/scale.float()[:,None]).round().clamp(-127, 127).to(torch.int8)
    halves = torch.tensor([0., -0., 1., -2.5, 65504., 6e-8, 6.1e-5, -6e-5, .333]).half()
    save_file({'w': q, 'w.scale': scale, 'x': x, 'h': halves}, tmp_path/'m.safetensors')
    got = node(
        f"const t = E.readTensors(file({json.dumps(str(tmp_path / 'm.safetensors'))})); return Object.fromEntries(Object.entries(t).map(([k, o]) => [k, [o.shape, Array.from(o.data)]]))"
    )
    assert got['w'][0] == [7, 5] and np.allclose(
        got['w'][1], (q.float() * scale.float()[:, None]).flatten(), atol=1e-7
    )
    assert np.array_equal(np.float32(got['x'][1]), x.flatten().numpy()) and np.array_equal(
        np.float32(got['h'][1]), halves.float().numpy()
    )
    assert np.allclose(np.reshape(got['w'][1], (7, 5)), x, atol=float(scale.max()))

def test_clipping_projections_and_tanh_under_node(node, tmp_path):
    "The shape of AI2's models: cells larger than outputs, both clipped; two highway layers, tanh"
    from safetensors.torch import save_file
    torch.manual_seed(3)
    config = BiLMConfig(
        'small',
        char_dim=4,
        filters=((1, 4), (3, 6)),
        n_highway=2,
        activation='tanh',
        proj_dim=6,
        hidden_dim=10,
        norm=False,
        cell_clip=0.2,
        proj_clip=0.1,
    )
    lm = BiLM(config, 0).eval()
    for p in lm.parameters(): p.data = torch.randn_like(p)*.7
    elmo = Elmo(lm, char_vocab=ByteCharVocab()).eval()
    save_file(lm.state_dict(), tmp_path/'m.safetensors')
    got = node(
        f"""const elmo = new E.Elmo(E.readTensors(file({json.dumps(str(tmp_path / 'm.safetensors'))})), value);
        return elmo.layers(['She', 'sat', 'by', 'the', 'bank']).map(l => l.map(v => Array.from(v)))""",
        config.__dict__ | {'filters': [list(o) for o in config.filters]},
    )
    want = elmo.embed([['She', 'sat', 'by', 'the', 'bank']], layers='all')[0]
    assert np.abs(want[1:]).max() <= .2001 and np.abs(np.array(got) - want).max() <= 1e-5

def test_words_are_expected_as_the_library_expects_them_under_node(node, tmp_path):
    """The adaptive softmax with two groups: every word's surprise from both sides, and a gap filled
    from both"""
    from safetensors.torch import save_file
    from elmo_fastai.text.tokens import SPECIALS, WordVocab
    from elmo_fastai.train.speak import fill, score
    torch.manual_seed(5)
    vocab = WordVocab([*SPECIALS, 'the', 'bank', 'she', *(f'w{i}' for i in range(60))])
    config = BiLMConfig(
        'small',
        char_dim=4,
        filters=((1, 4), (3, 6)),
        proj_dim=16,
        hidden_dim=16,
        norm=False,
        softmax='adaptive',
        cutoffs=(10, 30),
        div_value=2.0,
    )
    lm, chars = BiLM(config, len(vocab)).eval(), ByteCharVocab()
    for p in lm.parameters(): p.data = torch.randn_like(p)*.4
    save_file(lm.state_dict(), tmp_path/'m.safetensors')
    words = 'she sat by the bank w7 w59 .'.split()
    got = node(
        f"""const all = E.readTensors(file({json.dumps(str(tmp_path / 'm.safetensors'))})), [config, words, said] = value;
        const s = new S.Speaker(new E.Elmo(all, config), all, words);
        return [S.score(s, said), S.fill(s, said.slice(0, 3), said.slice(4), 60).both, Array.from(S.logProbs(s, Float32Array.from({{length: 16}}, (_, i) => i/8 - 1)))]""",
        [config.__dict__ | {'filters': [list(o) for o in config.filters]}, vocab.itos, words],
    )
    (want,), whole = (
        score(lm, vocab, chars, [words]),
        lm.heads[0].log_prob((torch.arange(16) / 8 - 1)[None])[0].detach(),
    )
    assert np.allclose(got[2], whole, atol=1e-5) and abs(np.exp(got[2]).sum() - 1) < 1e-4, (
        'every word, in head and tails'
    )
    assert [o['known'] for o in got[0]] == want.known
    assert np.allclose(
        [[o['left'], o['right']] for o in got[0]],
        -np.stack([want.fwd[:-1], want.bwd[:-1]], 1),
        atol=1e-4,
    )
    best = fill(
        lm,
        vocab,
        chars,
        [*words[:3], '___', *words[4:]],
        k=60,
        prior=-np.log(np.arange(1, len(vocab) + 1)),
    )
    assert [o['word'] for o in got[1][:20]] == best.word.tolist()[:20]
    assert np.allclose([o['both'] for o in got[1]], best.p, atol=1e-5) and np.allclose(
        [o['left'] for o in got[1]], best['from the left'], atol=1e-5
    )


TOLD = [
    'She did not want to go home .',
    'the constructor of <s> toString </s>',
    'goverment xyzzy',
    '',
    "He said , `` I do n't know . ''",
    'Zoë owed £ 1,250.75',
    'the ' * 30,
    'the <unk> of it',
    'The men on the hill were tired .',
]
GAPPED = [
    ('She', 'not want to go home .'),
    ('', ''),
    ('They sat on the', 'of the river .'),
    ('', 'was a fine day'),
    ('goverment xyzzy', ''),
    ('the ' * 20, 'the ' * 20),
]


@pytest.fixture(scope='module')
def foretold():
    "What the library says of these sentences and gaps, in double precision: ten words a gap"
    from elmo_fastai.train.speak import fill, score
    elmo = Elmo.from_pretrained('mini-en').eval().double()
    box = elmo.lm, elmo.vocab, elmo.char_vocab
    prior = -np.log(np.arange(1, len(elmo.vocab) + 1))
    return score(*box, TOLD), [
        fill(*box, [*a.split(), '___', *b.split()], k=10, prior=prior) for a, b in GAPPED
    ]


def compare_speech(got, foretold):
    for text,said,want in zip(TOLD, got[0], foretold[0], strict=True):
        assert [o['word'] for o in said] == want.tokens and [
            o['known'] for o in said
        ] == want.known, text
        assert np.allclose(
            [[o[side] for o in said] for side in ('left', 'right')],
            [-want.fwd[:-1], -want.bwd[:-1]],
            atol=1e-4,
        ), text
    for gap,said,want in zip(GAPPED, got[1], foretold[1], strict=True):
        # words that are as good as equal may change places
        clear = want.p.values[:-1] > want.p.values[1:]*1.001
        n = len(clear) if clear.all() else int(np.argmin(clear))
        assert [o['word'] for o in said][:n] == want.word.tolist()[:n] and len(said) == 10, gap
        for a,b in (('both', 'p'), ('left', 'from the left'), ('right', 'from the right')):
            assert np.allclose([o[a] for o in said][:n], want[b][:n], rtol=1e-3, atol=1e-6), (
                gap,
                a,
            )


SPEECH = """const [told, gapped] = value, words = s => s.split(' ').filter(o => o);
    return [told.map(s => S.score(speaker, words(s))), gapped.map(([a, b]) => S.fill(speaker, words(a), words(b), 10).both)]"""


def test_the_box_speaks_under_node_as_in_python(node, foretold):
    load = f"""const speaker = new S.Speaker(box(), E.readTensors(file({json.dumps(str(BOX / 'output.safetensors'))})), JSON.parse(fs.readFileSync({json.dumps(str(BOX / 'vocab.json'))})).itos);"""
    compare_speech(node(load + SPEECH, [TOLD, GAPPED]), foretold)

INFLUENCES = [
    'She owed the bank a lot of money .',
    'bank',
    'They sat on the left bank of the river .',
    'goverment 👩🏽‍🚀 银行',
    'the the the',
]


def test_influence_is_the_library_s_under_node(node):
    elmo = Elmo.from_pretrained('mini-en').eval().double()
    said = [(o.split(), t) for o in INFLUENCES for t in range(len(o.split()))]
    got = node(
        'const elmo = box(); return value.map(([words, t]) => E.influence(elmo, words, t))', said
    )
    for (words, t),changes in zip(said, got, strict=True):
        wanted = elmo.influence(words, t)['mix']
        assert np.abs(changes - wanted.to_numpy()).max() < 1e-5, words

def test_the_next_word_has_the_library_s_chances_under_node(node):
    "At three temperatures; no mark is ever next; and the word that a chance falls on"
    from elmo_fastai.train.speak import read_ends
    elmo = Elmo.from_pretrained('mini-en').eval().double()
    begun = [o.split() for o in ('She owed the bank', 'The men on the hill', 'It')]
    code = f"""const speaker = new S.Speaker(box(), E.readTensors(file({json.dumps(str(BOX / 'output.safetensors'))})), JSON.parse(fs.readFileSync({json.dumps(str(BOX / 'vocab.json'))})).itos);
    return value.map(words => [.2, 1, 2].map(T => Array.from(S.next(speaker, words, T))))"""
    for words,chances in zip(begun, node(code, begun), strict=True):
        with torch.no_grad():
            end, _ = read_ends(elmo.lm, elmo.char_vocab, [words], 0)
            logp = elmo.lm.heads[0].log_prob(end)[0]
        logp[:4] = -torch.inf
        for T, got in zip((0.2, 1, 2), chances):
            assert np.abs(np.array(got) - (logp / T).softmax(-1).numpy()).max() < 1e-5, (words, T)
    drawn = node(
        'return [0, .09, .11, .49, .51, .999, 1].map(u => S.draw(Float32Array.of(.1, 0, .4, .5), u))'
    )
    assert drawn == [0, 0, 2, 2, 3, 3, 3]

# what the pages load

def test_stored_occurrences():
    from safetensors.numpy import load_file

    t, text = (
        load_file(live / 'occurrences.safetensors'),
        json.loads((live / 'occurrences.json').read_text(encoding='utf-8')),
    )
    n = sum(map(len, text['at']))
    assert (
        t['vectors'].dtype == np.int8 and len(t['vectors']) == len(t['vectors.scale']) == n >= 2000
    )
    assert sum((live/f'occurrences.{e}').stat().st_size for e in ('safetensors', 'json')) <= 500_000
    for s, at in zip(text['sentences'], text['at']):
        assert all(0 <= i < len(s.split(' ')) for i in at)


def test_stored_vectors_are_those_of_the_model():
    from safetensors.numpy import load_file

    t, text = (
        load_file(live / 'occurrences.safetensors'),
        json.loads((live / 'occurrences.json').read_text(encoding='utf-8')),
    )
    some = list(range(0, len(text['sentences']), 40))
    start = np.cumsum([0, *map(len, text['at'])])
    for i, v in zip(
        some,
        Elmo.from_pretrained('mini-en').embed(
            [text['sentences'][i].split(' ') for i in some], layers='all'
        ),
    ):
        y = (v[1:].mean(0)[text['at'][i]] - t['mean'].astype(np.float32)) @ t['basis'].astype(
            np.float32
        ).T
        x = t['vectors'][start[i] : start[i + 1]] * t['vectors.scale'][
            start[i] : start[i + 1], None
        ].astype(np.float32)
        if len(x): assert np.abs(x - y).max() <= np.abs(y).max()/100

def test_the_scripts_need_nothing_else():
    for f in live.glob('*.js'):
        # the name of SVG, no address
        text = f.read_text(encoding='utf-8').replace('http://www.w3.org/2000/svg', '')
        assert all(
            o.startswith('./') for o in re.findall(r"from '([^']+)'", text)
        ) and not re.search(r'https?://', text), f.name
        assert 'innerHTML' not in text, 'what a reader types stays text'
    code = [
        o
        for o in (live / 'elmo.js').read_text(encoding='utf-8').split('\n')
        if o.strip() and not o.strip().startswith('//')
    ]
    assert len(code) <= 200, 'to be read beside the chapters'
    lines = [
        line
        for f in live.glob('*.js')
        for line in f.read_text(encoding='utf-8').split('\n')
        if line.strip() and not line.strip().startswith('//')
    ]
    assert len(lines) < 1030

def test_the_page_shows_the_code_that_runs():
    part = r'^// ---- [^\n]*? -+\n\n(.*?)(?=^// ----|\Z)'
    parts = [
        o
        for f in ('elmo.js', 'speak.js')
        for o in re.findall(part, (live / f).read_text(encoding='utf-8'), re.M | re.S)
    ]
    cells = json.loads((root/'nbs'/'library'/'browser.ipynb').read_text(encoding='utf-8'))['cells']
    shown = [
        ''.join(o['data']['text/markdown'])
        for c in cells
        for o in c.get('outputs', [])
        if 'text/markdown' in o.get('data', {})
    ]
    assert len(parts) == len(shown) == 12 and all(p.strip() in o for p, o in zip(parts, shown)), (
        'execute nbs/library/browser.ipynb again, then nbdev-clean'
    )


# what the explainer shows before a model is loaded

@pytest.fixture(scope='module')
def kept(): return json.loads((live/'stored.json').read_text(encoding='utf-8'))

def answer(kept, panel, example):
    "The stored answer of a panel to an example"
    tokens = [word_tokenize(text) for text in example['sentences']]
    key = [panel, tokens] if panel == 'map' else [panel, tokens, example['chosen']]
    return kept['answers'][json.dumps(key, ensure_ascii=False, separators=(',', ':'))]

def test_stored_answers_are_those_of_the_scripts(node, kept):
    assert (
        len(kept['examples']) == 8
        and stored.run(stored.ANSWERS, examples=kept['examples']) == kept['answers']
    ), 'run tests/stored.py again'


def test_stored_cosines_are_those_of_the_library(kept):
    elmo = Elmo.from_pretrained('mini-en')
    for example in kept['examples']:
        vecs = np.concatenate(elmo.embed(example['sentences'], layers='all'), 1)
        unit = vecs/np.linalg.norm(vecs, axis=-1, keepdims=True)
        i, j = np.tril_indices(vecs.shape[1], -1)
        want = (unit[:, i]*unit[:, j]).sum(-1)
        assert (
            np.abs(np.array(answer(kept, 'map', example)['cosines']) / 100 - want).max() <= 0.0051
        ), example['label']


def test_stored_guesses_are_those_of_the_library(kept):
    from elmo_fastai.train.speak import fill, score
    elmo = Elmo.from_pretrained('mini-en')
    box = elmo.lm, elmo.vocab, elmo.char_vocab
    prior = -np.log(np.arange(1, len(elmo.vocab) + 1))
    for example in kept['examples']:
        s, t = example['chosen']
        tokens, got = word_tokenize(example['sentences'][s]), answer(kept, 'readers', example)
        want = fill(*box, [*tokens[:t], '___', *tokens[t+1:]], prior=prior, k=5)
        assert [o['word'] for o in got['both']] == want.word.tolist() and np.allclose(
            [o['p'] for o in got['both']], want.p, rtol=0.01
        )
        [scored] = score(*box, [tokens])
        assert np.allclose(
            [[o['left'], o['right']] for o in got['nats']],
            -np.stack([scored.fwd[:-1], scored.bwd[:-1]], 1),
            atol=0.051,
        )


def test_what_is_seen_inside_is_the_library_s(kept):
    "Letters, the eight filters that fit best, states and layers of the chosen word"
    elmo = Elmo.from_pretrained('mini-en').eval()
    for example in kept['examples']:
        s, t = example['chosen']
        tokens, got = word_tokenize(example['sentences'][s]), answer(kept, 'inside', example)
        assert ''.join(got['letters'][1:-1]) == tokens[t]
        ids = torch.tensor(ByteCharVocab().encode([tokens[t]])).long()
        with torch.no_grad():
            letters = elmo.lm.chars.embed(ids).transpose(1, 2)
            features = torch.cat(
                [torch.relu(conv(letters).amax(-1)) for conv in elmo.lm.chars.convs], -1
            )[0]
        best = features.argsort(descending=True)[:8]
        assert [o['k'] for o in got['filters']] == best.tolist() and np.allclose(
            [o['fit'] for o in got['filters']], features[best], atol=0.006
        )
        vectors = elmo.embed([tokens], layers='all')[0][:, t]
        half = vectors.shape[-1]//2
        assert np.allclose(
            got['layers'],
            np.concatenate([vectors[:, :24], vectors[:, half : half + 24]], 1),
            rtol=0.01,
            atol=1e-3,
        )
        assert np.allclose(got['own'], vectors @ vectors.T, rtol=1e-3, atol=1e-3)

def test_failures_are_counted_as_scikit_learn_counts_them(kept):
    from safetensors.numpy import load_file
    from sklearn.neighbors import NearestNeighbors

    text, vectors = (
        json.loads((live / 'occurrences.json').read_text(encoding='utf-8')),
        load_file(live / 'occurrences.safetensors')['vectors'],
    )
    first = np.cumsum([0, *map(len, text['at'])])
    rows = [(first[int(s)], sense) for s,sense in text['senses'].items()]
    wrong = 0
    for word in {sense.split('/')[0] for _,sense in rows}:
        own = [(i, sense) for i,sense in rows if sense.split('/')[0] == word]
        near = (
            NearestNeighbors(n_neighbors=2, metric='cosine')
            .fit(vectors[[i for i, _ in own]].astype(float))
            .kneighbors(return_distance=True)
        )
        wrong += sum(own[a][1] != sense for (_, sense),a in zip(own, near[1][:, 0]))
    assert (
        kept['failures']['n'] == len(rows) == 335 and wrong == len(kept['failures']['wrong']) > 30
    )
