"""The toy grammar: probabilities and entropies against enumeration, annotation, and that every rule
is used"""

import math, random, re

import pytest
from hypothesis import given, settings, strategies as st

from elmo_fastai.text import toy
from elmo_fastai.text.toy import Grammar, ToyGrammar, Word, plural, verb_form

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

@settings(max_examples=150)
@given(grammars())
def test_random_grammars(g):
    ps = check(g)
    if g.total(p=False) > len(ps):
        assert g.entropy() <= entropy(p for p, _ in g.derivations()) + 1e-9
    assert sum(g.next_words([]).values()) == pytest.approx(1)
    for other in ('d', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaa'): assert g.logp(list(other)) == -math.inf

def test_one_string_two_derivations_and_a_prefix_of_another():
    a, b = Word('a', 'X'), Word('b', 'Y')
    g = Grammar({'Root': [(1, ('A', 'A')), (1, (a,)), (2, ('B',))], 'A': [(1, (a,)), (3, (b,))],
        'B': [(1, (a, b)), (1, (b, Word('b', 'Z')))]})
    ps = check(g)
    assert ps['a', 'b'] == pytest.approx(0.25*0.25*0.75 + 0.5*0.5) and ps['b',
        'b'] == pytest.approx(0.25*0.75**2 + 0.5*0.5)
    assert g.next_words(['a'])[None] == pytest.approx(.25/(.25 + .25*.25 + .25))

@pytest.mark.parametrize('rules, msg', [({'Root': [(1, ('A',))], 'A': [(1, ('B',))], 'B': [(1,
    ('A',))]}, 'A -> B -> A'), ({'Root': [(1, ('A',))]}, "'A', which 'Root' uses"), ({'Root': []},
    'positive weight'), ({'Root': [(1, ())]}, 'positive weight'), ({'Root': [(-1, (Word('a',
    'X'),))]}, 'positive weight'), ({}, "symbol 'Root'")])
def test_bad_grammars(rules, msg):
    with pytest.raises(ValueError, match=msg): Grammar(rules)

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

STARTS = ['Bare:a:past', 'Passive:b:pres', 'ItSays:a:past', 'There:a:past', 'Is:a:pres',
    'Ness:b:past', 'Long:a:sg:pres', 'Ask:b:past', 'Review:0', 'Review:1']

@pytest.mark.parametrize('start', STARTS)
def test_small_toy_grammar_by_enumeration(small, start):
    g = ToyGrammar()
    g = type('Part', (ToyGrammar,), {'__init__': Grammar.__init__})(g.rules, start)
    assert 5 < g.total(p=False) < 50_000
    check(g)

def test_small_toy_grammar_ambiguity_is_summed(small):
    g = ToyGrammar()
    fish = Grammar(g.rules, 'Bare:b:past')
    twice = 'the man caught the fish'.split()
    ps = [p for p,ws in fish.derivations() if [w.form for w in ws] == twice]
    assert len(ps) == 2 and fish.logp(twice) == pytest.approx(math.log(sum(ps)))

# the toy grammar itself

@pytest.fixture(scope='module')
def gr(): return ToyGrammar()
@pytest.fixture(scope='module')
def held(): return ToyGrammar(held=True)

@pytest.mark.parametrize('which', ['gr', 'held'])
def test_probabilities_sum_to_one(which, request):
    g = request.getfixturevalue(which)
    for s,alts in g.rules.items():
        assert math.fsum(p for p, _ in alts) == pytest.approx(1, abs=1e-12) and all(p > 0 for p,
            _ in alts), s
    assert g.total() == pytest.approx(1, abs=1e-9)

@pytest.mark.slow
def test_sampled_mean_meets_entropy(gr):
    rng = random.Random(11)
    x = [-gr.logp(gr.spell(w.form for w in gr.sample(rng)[0])) for _ in range(3000)]
    mean = sum(x)/len(x)
    se = math.sqrt(sum((o-mean)**2 for o in x))/len(x)
    assert abs(mean - gr.entropy()) < 3*se and se < .13

def test_every_rule_is_used(gr):
    "No alternative of the rule texts is dropped in every scene: that would be a typing error"
    used = {(s, ' '.join(o if isinstance(o, str) else o.form for o in parts)) for s, alts in
        gr.rules.items() for _, parts in alts}
    for text in (toy._RULES, toy._SCENE, toy._REVIEW):
        for line in text.strip().splitlines():
            lhs,rhs = line.split(' -> ')
            for alt in rhs.split(' | '):
                pat = ' '.join(re.escape(o.split('/')[0]) for o in alt.split()[1:]).replace(r'\ ',
                    ' ')
                pat = re.compile(re.sub(r'\\{\w\\}', r'[\\w.]+', pat) + '$')
                head = re.compile(re.sub(r'\\{\w\\}', r'[\\w.]*', re.escape(lhs)) + '$')
                assert any(head.match(s) and pat.match(p) for s,p in used), f'{lhs} -> {alt}'

def test_reading_ends_where_sampling_ended(gr):
    "Each sampled sentence can be read, and the ideal predictions sum to one along it"
    rng = random.Random(5)
    for _ in range(30):
        toks = gr.spell(w.form for w in gr.sample(rng)[0])
        s = gr.surprisals(toks)
        assert len(s) == len(toks)+1 and s[-1] == 0 and -sum(s) == pytest.approx(gr.logp(toks))
        k = rng.randrange(len(toks))
        nxt = gr.next_words(toks[:k]) if toks[k-1] not in ('a','an') or k == 0 else None
        if nxt:
            assert sum(nxt.values()) == pytest.approx(1) and -math.log(nxt[toks[k] if
                toks[k] != 'an' else 'a']) == pytest.approx(s[k])

def test_articles(gr):
    assert gr.logp('a old hiker walks in the forest .'.split()) == -math.inf
    assert gr.logp('an old hiker walks in the forest .'.split()) > -math.inf
    assert gr.logp('an hiker walks in the forest .'.split()) == -math.inf
    rng = random.Random(2)
    for _ in range(300):
        forms = [w.form for w in gr.sample(rng)[0]]
        assert gr.unspell(gr.spell(forms)) == forms

@pytest.mark.parametrize('good, bad', [
    ('the clerk near the doors counts the coins .', 'the clerk near the doors count the coins .'),
    ('the dogs near the gate were barking in the street .', 'the dogs near the gate was barking in the street .'),
    ('yesterday the clerk counted the coins .', 'yesterday the clerk counts the coins .'),
    ('anna counts the coins and she signs the letter .', 'anna counts the coins and he signs the letter .'),
    ('the owl slept in the cave .', 'the owl slept in the kitchen .')])
def test_agreement_and_scenes(gr, good, bad): assert gr.logp(bad.split()) == -math.inf < gr.logp(good.split())

def test_a_label_belongs_to_the_string(gr):
    "No review can be written with both sentiments"
    pos, neg = (Grammar(gr.rules, f'Review:{i}') for i in (1, 0))
    rng = random.Random(4)
    for _ in range(400):
        for a,b in ((pos, neg), (neg, pos)):
            forms = [w.form for w in a.sample(rng)[0]]
            assert b.logp(forms) == -math.inf < a.logp(forms)

def test_held_out_words(gr, held):
    new = held.vocab - gr.vocab
    marked = {o.strip('+()').split('/')[0] for o in re.findall(r'\+\S+', toy.LEXICON + toy._COMMON)}
    assert gr.vocab < held.vocab and marked <= new and not marked & gr.vocab
    assert 0 < 1 - held.total(lambda w: w.form in gr.vocab) < .5
    assert len({w.tag for w in held.words if w.form in new}) >= 4

@pytest.mark.parametrize('noun, many', [
    ('bat', 'bats'), ('match', 'matches'), ('fly', 'flies'), ('play', 'plays'), ('postman', 'postmen'),
    ('child', 'children'), ('box', 'boxes'), ('deer', 'deer')])
def test_plurals(noun, many): assert plural(noun) == many

@pytest.mark.parametrize('verb, forms', [
    ('stop', 'stops stopped stopping stopped'), ('carry', 'carries carried carrying carried'),
    ('hide', 'hides hid hiding hidden'), ('prefer', 'prefers preferred preferring preferred'),
    ('visit', 'visits visited visiting visited'), ('run', 'runs ran running run')])
def test_verbs(verb, forms):
    assert [verb_form(verb, f) for f in ('pres.sg', 'past.pl', 'ing', 'part')] == forms.split()
