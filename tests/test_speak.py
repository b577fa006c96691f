"""A biLM that speaks: scores that add up, text that reading it all again would give, gaps, and what
can't be asked of it"""

import math
from dataclasses import replace
import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import ColReader, DataBlock, DataLoaders, RandomSplitter
from hypothesis import given, settings, strategies as st

from elmo_fastai.text.corpora import Corpus
from elmo_fastai.text.tokens import ByteCharVocab, SPECIALS, WordVocab, get_tokenizer
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate, guesses, sentence_chars
from elmo_fastai.data.batches import SentenceDataLoader
from elmo_fastai.data.blog import BiLMBlock
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import BufferedDataLoader, stream_loaders
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.train import speak
from elmo_fastai.train.learner import bilm_learner
from elmo_fastai.train.speak import choose
from pages import page

pytestmark = pytest.mark.slow

Surprise = page('library/speak').Surprise

CFG = BiLMConfig('test', char_dim=4, filters=((1, 6), (2, 6), (3, 6)), proj_dim=20, hidden_dim=20,
                 dropout=.3)
SHAPES = dict(
    plain={}, projected=dict(hidden_dim=24), adaptive=dict(cutoffs=(6, 11)),
    clipped=dict(hidden_dim=24, cell_clip=.2, proj_clip=.1),
    separate=dict(share_encoder=False, share_softmax=False),
    sampled=dict(softmax='sampled', n_negative=5))
WORDS = 'a bank of the river spring springs café 河岸 . extraordinarily bat old new'.split()
SENTS = [WORDS[i%5:i%5+n] for i,n in enumerate((5, 1, 12, 3, 8, 12, 2, 7))] + [['the']*4]
VOCAB, CHARS = WordVocab.build(SENTS), ByteCharVocab()
TYPES = TokenTypes(VOCAB, CHARS)

def score(model, *args, **kwargs): return speak.score(model, VOCAB, CHARS, *args, **kwargs)
def generate(model, *args, **kwargs): return speak.generate(model, VOCAB, CHARS, *args, **kwargs)
def fill(model, *args, **kwargs): return speak.fill(model, VOCAB, CHARS, *args, **kwargs)

@pytest.fixture(scope='module', params=SHAPES)
def model(request): return make(request.param)

def make(shape='plain'):
    torch.manual_seed(1)
    m = BiLM(replace(CFG, **SHAPES[shape]), len(VOCAB))
    m.tokenizer = 'space'
    opt = torch.optim.Adam(m.parameters(), 1e-2)
    dl = SentenceDataLoader(EncodedText(SENTS, TYPES), bs=9)
    # so that words differ in probability
    for _ in range(8):
        opt.zero_grad(); torch.cat(m(*dl.one_batch())).mean().backward(); opt.step()
    return m.eval()

@torch.no_grad()
def next_logp(m, tokens, direction):
    "Log-probabilities of the word after (or before) `tokens`, all of them read"
    is_forward = direction == 'forward'
    chars = sentence_chars(CHARS, tokens, bos=is_forward, eos=not is_forward)[None]
    f, b = m.eval().encode(chars)[-1]
    return m.heads[0].log_prob(f[:, -1])[0] if is_forward else m.heads[1].log_prob(b[:, 0])[0]


# scores

def test_scores_are_those_of_reading_piece_by_piece(model):
    for tokens in SENTS[:4]:
        s, = score(model, [tokens])
        ids = VOCAB.encode(tokens)
        f = [next_logp(model, tokens[:i], 'forward')[w].item() for i,w in enumerate([*ids, 3])]
        b = [next_logp(model, tokens[i + 1:], 'backward')[w].item()
             for i, w in enumerate(ids)] + [next_logp(model, tokens, 'backward')[2].item()]
        np.testing.assert_allclose(s.fwd, f, atol=1e-4)
        np.testing.assert_allclose(s.bwd, b, atol=1e-4)
        assert s.logp == (pytest.approx(sum(f), abs=1e-3), pytest.approx(sum(b), abs=1e-3))
        assert s.perplexity == tuple(pytest.approx(math.exp(-np.mean(o)), rel=1e-4) for o in (f, b))

def test_scores_add_up_to_the_perplexity(model):
    exact = evaluate(model, SentenceDataLoader(EncodedText(SENTS, TYPES), bs=4))
    for bs in (1, 4, 100):
        scored = score(model, SENTS, bs=bs)
        assert [s.tokens for s in scored] == SENTS
        for k,d in (('fwd', 0), ('bwd', 1)):
            assert math.isclose(math.exp(-sum(s.logp[d] for s in scored)/sum(
                len(s.fwd) for s in scored)), exact[k], rel_tol=1e-4)

def test_unknown_words_are_marked_and_read():
    m = make()
    a,b = score(m, ['the zorgle .', 'the river-zorgle .'])
    assert (a.known == [True, False, True] and 'zorgle?' in repr(a)
            and 'zorgle (unknown)' in a.table.index)
    # both are the probability of <unk>
    assert a.fwd[1] == pytest.approx(b.fwd[1], abs=1e-5)
    # and are read letter by letter
    assert abs(a.fwd[2] - b.fwd[2]) > 1e-6
    for typed in ('<pad>', '<s>', '</s>'):
        assert score(m, [[typed]])[0].known == [False]

def test_texts_in_many_forms():
    m = make()
    one = score(m, 'the old bank')[0]
    for texts in (['the old bank'], [['the', 'old', 'bank']], ('the old bank',),
                  [('the', 'old', 'bank')]):
        assert np.allclose(score(m, texts)[0].fwd, one.fwd, atol=1e-5)
    assert score(m, []) == []
    empty = score(m, '')[0]
    assert empty.tokens == [] and len(empty.fwd) == len(empty.bwd) == 1 and len(empty.table) == 1
    assert score(m, 'the bank.', tokenizer='words')[0].tokens == ['the', 'bank', '.']
    assert score(m, ['x'*5000 + ' the'])[0].known == [False, True]

def test_the_view_escapes_and_degrades():
    s = score(make(), 'the <script>alert(1)</script> bank')[0]
    page = Surprise(s)._repr_html_()
    assert '<script>' not in page and '&lt;script&gt;' in page and page.count('<span') == 6
    assert repr(Surprise(s)) == repr(s) and 'the (' in repr(s)

def test_models_are_left_as_they_were():
    m = make().train()
    score(m, 'the')
    generate(m, 'the', 2)
    fill(m, 'the ___')
    assert (m.training and all(p.requires_grad or 'bias_hh' in k for k, p in m.named_parameters())
            and torch.is_grad_enabled())
    for bad in (lambda: fill(m, 'the'), lambda: generate(m, [3])):
        with pytest.raises(Exception): bad()
    assert m.training
    for f in (score, generate, fill):
        with pytest.raises(ValueError, match='output layer'): f(BiLM(CFG, 0), 'the ___')


# the model's own tokenizer

LINES = ["She didn't see the bank.", 'The old bank was near the river, was it not?', '我们去河岸。']
def own(text): return [part for part in text.replace('.', ' . ').split()]      # a function
def by_comma(text): return text.split(',')

def loaders_of(tokenizer, **kwargs):
    corpus = Corpus('lines', dict(train=LINES*12, valid=LINES), tokenizer)
    return ElmoDataLoaders.from_corpus(corpus, device='cpu', bs=8, **kwargs)

@pytest.mark.parametrize('tokenizer', ['words', 'space', 'chars', own], ids=['words', 'space', 'chars', 'own'])
def test_each_door_splits_a_text_as_the_training_was_split(tokenizer, tmp_path):
    dls = loaders_of(tokenizer)
    m = bilm_learner(dls, CFG, bf16=False).model.eval()
    model = m, dls.vocab, dls.char_vocab
    tokens = get_tokenizer(tokenizer)(LINES[0])
    assert m.tokenizer == tokenizer and [s.tokens for s in speak.score(*model, LINES[0])] == [tokens]
    assert all(speak.score(*model, LINES[0])[0].known)
    assert speak.generate(*model, LINES[0], 0) == [' '.join(tokens)]
    assert [word for word,*_ in guesses(m, LINES[0], *model[1:])] == tokens
    left, right = (get_tokenizer(tokenizer)(part) for part in ("She didn't ", ' the bank.'))
    assert speak.fill(*model, "She didn't ___ the bank.").equals(
        speak.fill(*model, [*left, '___', *right]))
    # what is said comes first, and tokens stay as they are
    assert speak.score(*model, 'a,b.', tokenizer=by_comma)[0].tokens == ['a', 'b.']
    assert speak.score(*model, [['bank.', 'a b']], tokenizer=by_comma)[0].tokens == ['bank.', 'a b']
    assert Elmo(m).to_tokens(LINES[:1]) == [tokens]
    assert Elmo(m, tokenizer='space').to_tokens(LINES[:1]) == [LINES[0].split()]

def test_every_loader_knows_what_split_its_text(tmp_path):
    (tmp_path/'t.txt').write_text('\n'.join(LINES*20), encoding='utf-8')
    block = DataBlock(BiLMBlock('sentences', tokenizer='chars', bs=8), get_x=ColReader('text'),
                      splitter=RandomSplitter(seed=0))
    found = dict(
        words=ElmoDataLoaders.from_files(tmp_path/'t.txt', device='cpu', bs=4),
        space=stream_loaders(tmp_path/'t.txt', tokenizer='space', n_valid=9, device='cpu', bs=4),
        chars=block.dataloaders(pd.DataFrame(dict(text=LINES*9)), device='cpu'),
        spacy=DataLoaders(*[BufferedDataLoader([], VOCAB, 0, tokenizer='spacy')]*2))
    for name,dls in found.items():
        assert dls.tokenizer == dls.train.tokenizer == dls.new_empty().tokenizer == name
        assert bilm_learner(dls, CFG, bf16=False, from_counts=False).model.tokenizer == name
    text = EncodedText(SENTS, TYPES)
    dls = DataLoaders(SentenceDataLoader(text), SentenceDataLoader(text))
    assert bilm_learner(dls, CFG, bf16=False).model.tokenizer is None

@pytest.mark.parametrize('door', [
    lambda *m: speak.score(*m, 'the bank.'), lambda *m: speak.generate(*m, ['the', ['old']]),
    lambda *m: speak.fill(*m, 'the ___.'), lambda m, *v: guesses(m, 'the bank.', *v)],
    ids=['score', 'generate', 'fill', 'guesses'])
def test_a_model_that_knows_no_tokenizer_refuses_a_text(door):
    m = make()
    del m.tokenizer
    with pytest.raises(ValueError, match="tokenizer='words', or give lists") as error:
        door(m, VOCAB, CHARS)
    assert '\n' not in str(error.value)
    assert score(m, [['the', 'bank.']], tokenizer=None)[0].known == [True, False]
    assert len(fill(m, ['the', '___', 'bank'])) == 5 and generate(m, [['the']], 0) == ['the']
    assert score(m, 'the bank.', tokenizer='words')[0].tokens == ['the', 'bank', '.']


# writing

@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_carrying_the_state_writes_what_reading_again_writes(model, direction):
    "Prompts of different lengths in one batch, each word the best"
    prompts = [['the'], ['old', 'café', 'bank', 'of', 'zorgle'], []]
    got = generate(model, prompts, 8, direction, temperature=0, end=False)
    for tokens,text in zip(prompts, got):
        for _ in range(8):
            logp = next_logp(model, tokens, direction)
            logp[:4] = -math.inf
            w = VOCAB.itos[logp.argmax()]
            tokens = [*tokens, w] if direction == 'forward' else [w, *tokens]
        assert text == ' '.join(tokens)

@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_carried_probabilities_are_those_of_reading_again(model, direction, monkeypatch):
    seen = []
    def spy(logp, *args): seen.append(logp.clone()); return choose(logp, *args)
    monkeypatch.setattr(speak, 'choose', spy)
    text = generate(model, 'the bank', 6, direction, end=False, seed=2)[0].split()
    for i,logp in enumerate(seen):
        read = text[:2+i] if direction == 'forward' else text[len(text)-2-i:]
        again = next_logp(model, read, direction)
        torch.testing.assert_close(logp[0,4:], again[4:], atol=1e-4, rtol=1e-4)

def test_draws_follow_the_distribution():
    m = make()
    p = next_logp(m, ['the'], 'forward').exp().double()
    p[:3] = 0; p /= p.sum()
    first = [t.split()[1:2] for t in generate(m, ['the']*4000, 1, seed=0)]
    counts = torch.zeros(len(p)).double()
    for w in first: counts[VOCAB.o2i[w[0]] if w else 3] += 1
    assert (counts/4000 - p).abs().max() < .03

def test_company_does_not_change_a_text():
    m = make()
    alone = [generate(m, t, 6, temperature=0)[0] for t in ('the', 'old river of', '')]
    assert generate(m, ['the', 'old river of', ''], 6, temperature=0) == alone

def test_seeds():
    m = make()
    def write(seed): return generate(m, ['the']*5, 6, seed=seed)
    assert write(1) == write(1) != write(2)
    state = torch.get_rng_state()
    write(3)
    # a seed of its own leaves PyTorch's numbers alone
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(0); a = write(None)
    torch.manual_seed(0); assert write(None) == a

def test_what_is_never_written():
    m = make()
    with torch.no_grad(): m.head.bias[:4] = 8.                          # it would say nothing else
    for direction in ('forward', 'backward'):
        for text in generate(m, ['the']*20, 5, direction, end=False, seed=0):
            assert not set(text.split()) & set(SPECIALS) and len(text.split()) == 6
        how = dict(no_unk=False, end=False, seed=0)
        words = {w for t in generate(m, ['the']*20, 5, direction, **how) for w in t.split()}
        assert '<unk>' in words and not words & {'<pad>', '<s>', '</s>'}
        # ends at once
        assert generate(m, ['the']*3, 5, direction, temperature=0) == ['the']*3
    assert generate(m, 'the', 0) == ['the'] and generate(m, []) == []

def test_prompts_are_not_changed():
    prompt = ['the', 'old']
    generate(make(), [prompt], 3, end=False)
    assert prompt == ['the', 'old']

@pytest.mark.parametrize('kw', [
    dict(direction='up'), dict(temperature=-1), dict(temperature=math.nan),
    dict(temperature=math.inf), dict(top_k=0), dict(top_p=0), dict(top_p=1.5), dict(top_p=math.nan),
    dict(temperature=None), dict(temperature='1'), dict(top_k=-1), dict(direction=None)], ids=str)
def test_what_cannot_be_asked(kw):
    with pytest.raises(ValueError, match=next(iter(kw))):
        generate(make(), 'the', **kw)

def test_an_unknown_word_is_refused():
    with pytest.raises(TypeError, match='temprature'): generate(make(), 'the', temprature=1.)

def test_what_fits_no_model_or_is_no_text():
    m = make()
    small = WordVocab.build([['x']])
    for f in (speak.score, speak.generate, speak.fill):
        with pytest.raises(ValueError, match='belong together'): f(m, small, CHARS, 'the ___')
    for texts in ([[1, 2]], [['the', None]], [[['the']]]):
        for f in (score, generate):
            with pytest.raises(TypeError, match='Sentence 0 is list'): f(m, texts)
    for prior in (torch.zeros(3), torch.full((len(VOCAB),), -math.inf), [math.nan]*len(VOCAB)):
        with pytest.raises(ValueError, match='prior'): fill(m, 'the ___', prior=prior)

# choosing

@settings(max_examples=50)
@given(st.lists(st.floats(-30, 5), min_size=1, max_size=12), st.integers(1, 15), st.floats(0.01, 1),
       st.sampled_from([1e-300, 0.01, 0.7, 1.0, 3.0, 1e9]))
def test_choices_stay_inside(z, k, p, temperature):
    logp = torch.tensor(z).log_softmax(0)
    rng = torch.Generator().manual_seed(0)
    got = {o for o in choose(logp.expand(50, -1), temperature, k, None, rng).tolist()}
    assert all((logp > logp[o]).sum() < k for o in got)
    for o in choose(logp.expand(50, -1), 1.0, None, p, rng).tolist():
        assert logp[logp > logp[o]].double().exp().sum() < p + 1e-6
    assert choose(logp[None], 0).item() == logp.argmax()

def test_impossible_words_are_never_chosen():
    logp = torch.tensor([[-math.inf, 0., -math.inf]])
    for kw in ({}, dict(temperature=0.1), dict(top_k=3), dict(top_p=1.0)):
        assert set(choose(logp.expand(200, 3), **kw).tolist()) == {1}

@pytest.mark.parametrize('temperature', [0, 1.])
@pytest.mark.parametrize('bad', [-math.inf, math.nan])
def test_nothing_to_choose_from(temperature, bad):
    with pytest.raises(ValueError, match='no word'): choose(torch.full((2, 4), bad), temperature)

# gaps

def test_fill_is_the_product_of_both_sides(model):
    table = fill(model, 'the old ___ of river', k=100)
    f,b = next_logp(model, ['the', 'old'], 'forward'), next_logp(model, ['of', 'river'], 'backward')
    both = (f + b)[4:].double().softmax(0)
    assert len(table) == len(VOCAB) - 4 and table.p.is_monotonic_decreasing
    assert table.p.sum() == pytest.approx(1)
    for word,*found in table.itertuples(index=False):
        w = VOCAB.o2i[word]
        expected = [both[w-4].item(), f[w].exp().item(), b[w].exp().item()]
        assert found == pytest.approx(expected, rel=1e-3)

def test_fill_at_the_edges_and_in_many_forms():
    m = make()
    for text in ('___', '___ bank', 'the ___'): assert len(fill(m, text)) == 5
    a = fill(m, 'the ___ bank')
    for text in (['the', '___', 'bank'], 'the ______ bank', 'the___bank'):
        assert fill(m, text).equals(a)
    assert fill(m, 'the ___.', tokenizer='words').equals(fill(
        m, 'the ___ .'))
    # so rare that it explains everything
    prior = torch.zeros(len(VOCAB)); prior[VOCAB.o2i['old']] = -50
    assert fill(m, 'the ___ bank', prior=prior).word[0] == 'old'
    for text,n in (('the bank', 0), ('___ and ___', 2), ([], 0), (['___']*3, 3)):
        with pytest.raises(ValueError, match=f'has {n}'): fill(m, text)
