"""ELMo in plain JavaScript: the same tokens, vectors and predictions as the library, under node
where there is one; test_explainer has what a reader does with it"""
import json, random, re, shutil, unicodedata

import numpy as np, pytest, torch
from safetensors.torch import save_file
from safetensors.numpy import load_file

import picture, stored
from stored import live
from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.tokens import ByteCharVocab, SPECIALS, WordVocab
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.elmo import Elmo
from elmo_fastai.learner import fill, read_end, score

pytestmark = pytest.mark.slow

SAID = """They sat on the left bank of the river .|She did n't owe the bank 1,250.75 !
He said "well-known" -- twice ...|Zoë's naïve café in Košice|ΑΒΓ δεν ξέρω|これは銀行です
Здравствуй , мир !|👩🏽‍🚀 and 🇬🇧🇫🇷 and ☕️|<unk> is a word|<s> and </s> are none|a|.
I've we'll it's o'clock|e.g. U.S. 10:30|x_y snake_case|École ﬁn Ⅷ ½ ²"""
# what every object of JavaScript has
INHERITED = 'constructor toString valueOf hasOwnProperty __proto__'
SENTENCES = [*re.split(r'[|\n]', SAID), INHERITED, '', ' \t ', 'word '*200, 'a'*200, 'é'*40,
             'İstanbul ſtreet', 'ß ẞ ŉ']
ENGLISH = """the bank river money of on she he light spring watch , . well left green quickly
    Mississippi unfriendly""".split()

def sentences():
    "Fifty: those above, and English words in any order"
    rng = random.Random(1)
    return SENTENCES + [' '.join(rng.choices(ENGLISH, k=rng.randint(1, 25)))
                        for _ in range(50 - len(SENTENCES))]

def fuzzed(n=3000):
    "Texts of characters of all kinds: letters, marks, digits, signs, spaces, joiners, flags"
    rng = random.Random(2)
    known = [chr(c) for c in range(0x20000)
             if unicodedata.category(chr(c)) not in ('Cn', 'Cs', 'Co')]
    dense = [*"abnNtTsmdDre'’.-_,:<>unk0123 🏽🇬👩éขก漢",
             *'\u0301\u200d\u200c\xad\u200b\u200f\u0600\U000e0067\U000e007f\ufe0f',
             *'\x1c\x85\xa0\ufeff\u2028ſK', "n't", "'ll", "'S", '<unk>', '<UNK>', '1,2', '--', '..']
    return [''.join(rng.choices(dense if rng.random() < .7 else known, k=rng.randint(1, 15)))
            for _ in range(n)]

def elmo_of_the_box(): return Elmo.from_pretrained('mini-en').eval()

@pytest.fixture(scope='module')
def exact():
    "The model in double precision, as the scripts compute"
    return elmo_of_the_box().double()

@pytest.fixture(scope='module')
def wanted(exact):
    """PyTorch's vectors in double precision, and how far its own in single are from them: its sums
    are single, the scripts' double"""
    single, double = ([*elmo.embed(sentences(), layers='all')]
                      for elmo in (elmo_of_the_box(), exact))
    return [(v.astype(np.float32), np.abs(v - o).max(initial=0)) for v,o in zip(double, single)]

# under node

@pytest.fixture(scope='module')
def node():
    if not shutil.which('node'): pytest.skip('node is not installed: the scripts are not run')
    return stored.run

def test_tokens_under_node(node):
    texts = sentences() + fuzzed()
    for text,tokens in zip(texts, node('return value.map(E.tokenize)', texts)):
        assert tokens == word_tokenize(text), ascii(text)

def test_vectors_under_node(node, wanted):
    """To 1e-5; where a sentence makes PyTorch itself round worse (one word two hundred times), the
    scripts are the nearer"""
    got = node('const elmo = box(); return value.map(s => plain(elmo.layers(E.tokenize(s))))',
               sentences())
    assert len(got) == len(wanted) == 50 and sum(own > 1e-5 for _,own in wanted) <= 1
    for text,layers,(want, own) in zip(sentences(), got, wanted):
        assert [len(l) for l in layers] == [want.shape[1]]*3, text
        if want.size:
            assert np.abs(np.array(layers, dtype=np.float32) - want).max() <= max(1e-5, own), text

def small(tmp_path, n_words, scale, **config):
    "A model with weights of this scale, and what node reads of it"
    torch.manual_seed(3)
    config = BiLMConfig('small', char_dim=4, filters=((1, 4), (3, 6)), norm=False, **config)
    lm = BiLM(config, n_words).eval()
    for p in lm.parameters(): p.data = torch.randn_like(p)*scale
    save_file(lm.state_dict(), tmp_path/'m.safetensors')
    return lm, [f'{tmp_path}/m.safetensors', config.__dict__]

def test_clipping_projections_and_tanh_under_node(node, tmp_path):
    "The shape of AI2's models: cells larger than outputs, both clipped; two highway layers, tanh"
    lm, given = small(tmp_path, 0, .7, n_highway=2, activation='tanh', proj_dim=6, hidden_dim=10,
                      cell_clip=.2, proj_clip=.1)
    words = 'She sat by the bank'.split()
    got = node('return plain(new E.Elmo(tensors(value[0]), value[1]).layers(value[2]))',
               [*given, words])
    want = Elmo(lm, char_vocab=ByteCharVocab()).eval().embed([words], layers='all')[0]
    assert np.abs(want[1:]).max() <= .2001 and np.abs(np.array(got) - want).max() <= 1e-5

def sides(said): return [[o['left'], o['right']] for o in said]
def surprises(scored): return -np.stack([scored.fwd[:-1], scored.bwd[:-1]], 1)

def test_words_are_expected_as_the_library_expects_them_under_node(node, tmp_path):
    """The adaptive softmax with two groups: every word's surprise from both sides, and a gap filled
    from both"""
    vocab = WordVocab([*SPECIALS, 'the', 'bank', 'she', *(f'w{i}' for i in range(60))])
    lm, given = small(tmp_path, len(vocab), .4, proj_dim=16, hidden_dim=16, softmax='adaptive',
                      cutoffs=(10, 30), div_value=2.)
    words, chars = 'she sat by the bank w7 w59 .'.split(), ByteCharVocab()
    said, filled, logp = node("""const all = tensors(value[0]), [, config, words, said] = value;
        const s = new S.Speaker(new E.Elmo(all, config), all, words);
        const state = Float32Array.from({length: 16}, (_, i) => i/8 - 1);
        return [S.score(s, said), S.fill(s, said.slice(0, 3), said.slice(4), 60).both,
                Array.from(S.logProbs(s, state))]""", [*given, vocab.itos, words])
    whole = lm.heads[0].log_prob((torch.arange(16)/8 - 1)[None])[0].detach()
    assert np.allclose(logp, whole, atol=1e-5) and abs(np.exp(logp).sum() - 1) < 1e-4
    [want] = score(lm, vocab, chars, [words])
    assert [o['known'] for o in said] == want.known
    assert np.allclose(sides(said), surprises(want), atol=1e-4)
    prior = -np.log(np.arange(1, len(vocab) + 1))
    best = fill(lm, vocab, chars, [*words[:3], '___', *words[4:]], k=60, prior=prior)
    assert [o['word'] for o in filled[:20]] == best.word.tolist()[:20]
    for a,b in (('both', 'p'), ('left', 'from the left')):
        assert np.allclose([o[a] for o in filled], best[b], atol=1e-5)

TOLD = ['She did not want to go home .', 'the constructor of <s> toString </s>', 'goverment xyzzy',
        '', "He said , `` I do n't know . ''", 'the '*30, 'the <unk> of it']
GAPPED = [('She', 'not want to go home .'), ('', ''), ('', 'was a fine day'),
          ('goverment xyzzy', ''), ('the '*20, 'the '*20)]

def test_the_box_speaks_under_node_as_in_python(node, exact):
    got = node("""const speaker = speaks(), words = s => s.split(' ').filter(o => o);
        return [value[0].map(s => S.score(speaker, words(s))), value[1].map(
          ([a, b]) => S.fill(speaker, words(a), words(b), 10).both)]""", [TOLD, GAPPED])
    box = exact.lm, exact.vocab, exact.char_vocab
    wanted = score(*box, [text.split() for text in TOLD])
    for text,said,want in zip(TOLD, got[0], wanted, strict=True):
        assert [o['word'] for o in said] == want.tokens, text
        assert [o['known'] for o in said] == want.known, text
        assert np.allclose(np.reshape(sides(said), (-1, 2)), surprises(want), atol=1e-4), text
    prior = -np.log(np.arange(1, len(exact.vocab) + 1))
    for gap,said in zip(GAPPED, got[1], strict=True):
        want = fill(*box, [*gap[0].split(), '___', *gap[1].split()], k=10, prior=prior)
        # words that are as good as equal may change places
        clear = want.p.values[:-1] > want.p.values[1:]*1.001
        n = len(clear) if clear.all() else int(np.argmin(clear))
        assert [o['word'] for o in said][:n] == want.word.tolist()[:n] and len(said) == 10, gap
        for a,b in (('both', 'p'), ('left', 'from the left'), ('right', 'from the right')):
            near = np.allclose([o[a] for o in said][:n], want[b][:n], rtol=1e-3, atol=1e-6)
            assert near, (gap, a)

INFLUENCES = ['She owed the bank a lot of money .', 'bank', 'goverment 👩🏽‍🚀 银行', 'the the the',
              'They sat on the left bank of the river .']

def test_influence_is_the_library_s_under_node(node, exact):
    said = [(o.split(), t) for o in INFLUENCES for t in range(len(o.split()))]
    got = node('const elmo = box(); return value.map(([words, t]) => E.influence(elmo, words, t))',
               said)
    for (words,t),changes in zip(said, got, strict=True):
        wanted = exact.influence(words, t)['mix']
        assert np.abs(changes - wanted.to_numpy()).max() < 1e-5, words

def test_the_next_word_has_the_library_s_chances_under_node(node, exact):
    "At three temperatures; no mark is ever next"
    begun = [o.split() for o in ('She owed the bank', 'The men on the hill', 'It')]
    got = node("""const speaker = speaks();
        return value.map(words => [.2, 1, 2].map(T => Array.from(S.next(speaker, words, T))))""",
               begun)
    for words,chances in zip(begun, got, strict=True):
        with torch.no_grad():
            end, _ = read_end(exact.lm, exact.char_vocab, words, 0)
            logp = exact.lm.heads[0].log_prob(end)[0]
        logp[:4] = -torch.inf
        for T,found in zip((.2, 1, 2), chances):
            assert np.abs(np.array(found) - (logp/T).softmax(-1).numpy()).max() < 1e-5, (words, T)

# what the pages load

@pytest.fixture(scope='module')
def occurrences():
    "Vectors and texts of the occurrences"
    return (load_file(live/'occurrences.safetensors'),
            json.loads((live/'occurrences.json').read_text(encoding='utf-8')))

def test_stored_occurrences(occurrences):
    "Small, and the model's vectors"
    t, text = occurrences
    start = np.cumsum([0, *map(len, text['at'])])
    assert len(t['vectors']) == len(t['vectors.scale']) == start[-1] >= 2000
    assert sum((live/f'occurrences.{e}').stat().st_size for e in ('safetensors', 'json')) <= 500_000
    sents = [s.split(' ') for s in text['sentences']]
    wide = {k: t[k].astype(np.float32) for k in ('vectors', 'vectors.scale', 'mean', 'basis')}
    some = range(0, len(sents), 40)
    for i,v in zip(some, elmo_of_the_box().embed([sents[i] for i in some], layers='all')):
        rows = slice(start[i], start[i+1])
        y = (v[1:].mean(0)[text['at'][i]] - wide['mean']) @ wide['basis'].T
        x = wide['vectors'][rows]*wide['vectors.scale'][rows, None]
        if len(x): assert np.abs(x - y).max() <= np.abs(y).max()/100

# what the explainer shows before a model is loaded

@pytest.fixture(scope='module')
def kept(): return json.loads((live/'stored.json').read_text(encoding='utf-8'))

def answer(kept, panel, example):
    "The stored answer of a panel to an example"
    tokens = [word_tokenize(text) for text in example['sentences']]
    key = [panel, tokens] if panel == 'map' else [panel, tokens, example['chosen']]
    return kept['answers'][json.dumps(key, ensure_ascii=False, separators=(',', ':'))]

def test_stored_answers_are_those_of_the_scripts(node, kept):
    assert node(stored.ANSWERS, kept['examples']) == kept['answers'], 'run tests/stored.py again'

def test_the_picture_of_the_readme_is_drawn_from_answers(node):
    for name,svg in picture.pictures().items():
        drawn = (live.parent/'images'/name).read_text(encoding='utf-8')
        assert drawn == svg, 'run tests/picture.py'

def test_stored_answers_are_those_of_the_library(kept):
    "Cosines, guesses, surprises"
    elmo = elmo_of_the_box()
    box = elmo.lm, elmo.vocab, elmo.char_vocab
    prior = -np.log(np.arange(1, len(elmo.vocab) + 1))
    for example in kept['examples']:
        vecs = np.concatenate(elmo.embed(example['sentences'], layers='all'), 1)
        unit = vecs/np.linalg.norm(vecs, axis=-1, keepdims=True)
        i, j = np.tril_indices(vecs.shape[1], -1)
        cosines = np.array(answer(kept, 'map', example)['cosines'])/100
        assert np.abs(cosines - (unit[:, i]*unit[:, j]).sum(-1)).max() <= .0051, example['label']

        s, t = example['chosen']
        tokens, got = word_tokenize(example['sentences'][s]), answer(kept, 'readers', example)
        want = fill(*box, [*tokens[:t], '___', *tokens[t+1:]], prior=prior, k=5)
        assert [o['word'] for o in got['both']] == want.word.tolist()
        assert np.allclose([o['p'] for o in got['both']], want.p, rtol=.01)
        [scored] = score(*box, [tokens])
        assert np.allclose(sides(got['nats']), surprises(scored), atol=.051)

def test_stored_likes_of_the_filters_are_those_of_the_scripts(node, kept):
    "No piece of a common word fits a filter better than the first that is stored for it"
    words = stored.words_of(elmo_of_the_box())[:1000]
    found = node("""const elmo = box(), c = elmo.config, [words, likes] = value;
        const cnn = w => E.charCNN(elmo.tensors, c, E.charIds(w, c.max_chars));
        const fits = w => cnn(w).fits.map(o => o.fit);
        const best = words.map(fits).reduce((a, b) => a.map((v, k) => Math.max(v, b[k])));
        const own = likes.map((o, k) => fits(o.split(' ')[0].replace(/[‹›]/g, ''))[k]);
        return [best, own]""", [words, kept['likes']])
    best, own = map(np.array, found)
    inside = np.array(['‹' not in o.split(' ')[0] and '›' not in o.split(' ')[0]
                       for o in kept['likes']])
    assert len(own) == len(best) == 288 and (own >= best - 1e-5)[inside].all()

