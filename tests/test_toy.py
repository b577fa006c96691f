"""The toy grammar: probabilities and entropies against enumeration, annotation, and that every rule
is used"""

import hashlib, json, math, random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import toy
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.text.toy import Grammar, ToyGrammar, Word

def strings(g):
    "String → probability, by writing out all derivations"
    res = {}
    for p,ws in g.derivations():
        s = tuple(g.spell(w.form for w in ws))
        res[s] = res.get(s, 0) + p
    return res

def entropy(ps): return -sum(p*math.log(p) for p in ps)

def check(g):
    "Everything that enumeration can tell about a small grammar"
    ps = strings(g)
    assert sum(ps.values()) == pytest.approx(1) and g.total() == pytest.approx(1)
    assert g.entropy() == pytest.approx(entropy(ps.values()), abs=1e-9)
    for s,p in ps.items(): assert g.logp(list(s)) == pytest.approx(math.log(p), abs=1e-9)
    return ps

# random small grammars: symbol i may use symbols above i, so none leads back; few words, so that
# many strings are ambiguous
@st.composite
def grammars(draw):
    n = draw(st.integers(1, 4))
    def part(i):
        word = st.sampled_from('abc').map(lambda f: Word(f, 'X'))
        return word if i == n-1 else word | st.integers(i+1, n-1).map(lambda j: f'S{j}')

    rules = {f'S{i}': draw(st.lists(st.tuples(st.floats(0.1, 5), st.lists(part(i), min_size=1,
        max_size=2)), min_size=1, max_size=3)) for i in range(n)}
    return Grammar(rules, 'S0')

@settings(max_examples=60)
@given(grammars())
def test_random_grammars(g):
    ps = check(g)
    if g.total(p=False) > len(ps):
        assert g.entropy() <= entropy(p for p, _ in g.derivations()) + 1e-9
    assert sum(g.next_words([]).values()) == pytest.approx(1)
    for other in ('d', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaa'): assert g.logp(list(other)) == -math.inf

# the rules of the toy corpus on a lexicon so small that its sentences can be written out

SMALL = '''
a
who clerk +lender
do  count note/money (new) | +recount coin
go  wait
it  fish/animal
igo swim
ido eat note/paper
at  in bank/money | under star^

b
who fisherman
do  catch fish/animal | boil water/liquid~
go  fish/catch
at  on bank/river | in spring/season!
'''

@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(toy, 'LEXICON', SMALL)
    monkeypatch.setattr(toy, '_COMMON', '\n'.join(' '.join(o.split()[:2]) for o in
        toy._COMMON.strip().splitlines()))

STARTS = 'Bare:a:past', 'Passive:b:pres', 'There:a:past', 'Ness:b:past', 'Ask:b:past', 'Review:0'

@pytest.mark.parametrize('start', STARTS)
def test_small_toy_grammar_by_enumeration(small, start):
    g = ToyGrammar()
    g = type('Part', (ToyGrammar,), {'__init__': Grammar.__init__})(g.rules, start)
    assert 5 < g.total(p=False) < 50_000
    check(g)

# the toy grammar itself

@pytest.fixture(scope='module')
def gr(): return ToyGrammar()
@pytest.fixture(scope='module')
def held(): return ToyGrammar(held=True)

def test_the_corpus_is_the_recorded_one():
    record = json.loads((Path(__file__).parent/'golden'/'record.json').read_text(encoding='utf-8'))
    corpus = toy_corpus(2000, 300, 300, 50)
    def digest(items): return hashlib.sha256(''.join(f'{o}\n' for o in items).encode()).hexdigest()
    assert {k: digest(v) for k,v in corpus.splits.items()} == record['toy']
    gold = {k: [repr((s.tokens, s.tags, s.senses, s.label)) for s in v]
            for k,v in corpus.gold.items()}
    assert {k: digest(v) for k,v in gold.items()} == record['toy gold']
    for k,v in corpus.gold.items():
        assert [s.logp for s in v[:5]] == pytest.approx(record['toy logp'][k], rel=1e-5)
    assert {k: corpus.floor(k) for k in corpus.splits} == pytest.approx(record['toy floor'],
                                                                        rel=1e-5)

@pytest.mark.parametrize('which', ['gr', 'held'])
def test_probabilities_sum_to_one(which, request):
    g = request.getfixturevalue(which)
    for s,alts in g.rules.items():
        assert math.fsum(p for p, _ in alts) == pytest.approx(1, abs=1e-12) and all(p > 0 for p,
            _ in alts), s
    assert g.total() == pytest.approx(1, abs=1e-9)

def test_reading_ends_where_sampling_ended(gr):
    "Each sampled sentence can be read, and the ideal predictions sum to one along it"
    rng = random.Random(5)
    for _ in range(12):
        toks = gr.spell(w.form for w in gr.sample(rng)[0])
        s = gr.surprisals(toks)
        assert len(s) == len(toks)+1 and s[-1] == 0 and -sum(s) == pytest.approx(gr.logp(toks))
        k = rng.randrange(len(toks))
        nxt = gr.next_words(toks[:k]) if toks[k-1] not in ('a','an') or k == 0 else None
        if nxt:
            assert sum(nxt.values()) == pytest.approx(1) and -math.log(nxt[toks[k] if
                toks[k] != 'an' else 'a']) == pytest.approx(s[k])

@pytest.mark.parametrize('good, bad', [
    ('an old hiker walks in the forest .', 'a old hiker walks in the forest .'),
    ('the clerk near the doors counts the coins .', 'the clerk near the doors count the coins .'),
    ('the dogs near the gate were barking in the street .',
     'the dogs near the gate was barking in the street .'),
    ('yesterday the clerk counted the coins .', 'yesterday the clerk counts the coins .'),
    ('anna counts the coins and she signs the letter .',
     'anna counts the coins and he signs the letter .'),
    ('the owl slept in the cave .', 'the owl slept in the kitchen .')])
def test_agreement_and_scenes(gr, good, bad):
    assert gr.logp(bad.split()) == -math.inf < gr.logp(good.split())
