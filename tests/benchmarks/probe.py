"""What the layers know, in figures: probes and neighbours on the toy language and on English, and
their time (lesson 13; study: What the layers know).

    python tests/benchmarks/probe.py                 # all; about an hour of one core
    python tests/benchmarks/probe.py toy     # or purity, english, real, books, words, ud, time

`toy` and `purity` want three models as `make pretrain` leaves them, one a seed, named with --toy:
those of the page are `pretrain(toy_corpus(n_train=100_000), seed=1, epochs=3, lr=.008, out=…)`. The
others take the model of the package. The figures go to nbs/results/probe.json, neighbours.json and
senses.json, part by part.
"""
import json, re, time
from collections import Counter
from itertools import product
from pathlib import Path
import numpy as np, pandas as pd
from fastcore.script import call_parse
from scipy.sparse import coo_matrix
from sklearn.decomposition import TruncatedSVD
from harness import RESULTS, ROOT, log, read_figures, several, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.cbow import WordVectors
from elmo_fastai.classifier import random_elmo
from elmo_fastai.probe import sense_hits, sense_table, sense_views
from elmo_fastai.text.corpora import local_copy, toy_corpus, treebank, wikitext2
from elmo_fastai.text.read import lines_of
import books as novels
from pages import page

STUDY = page('studies/probes')
POOLS, KS = (4_000, 12_000, 24_000, 40_000), (1, 3, 5, 10)
# What is looked for in the novels and in WikiText-2: words in sentences that were written before
# the search, one sense each
ASK = """
bank: He put the money into the bank . | We rowed along the bank of the river .
match: He struck a match and lit the lamp . | They won the match by two goals .
watch: He looked at his watch ; it was ten . | They sat down to watch the game .
mine: Sixty men worked in the mine . | She laid her hand on mine .
spring: They were married in the spring . | The tiger was about to spring upon him .
play: He wrote a play in three acts . | The children went out to play in the garden .
rose: She rose from her chair . | He gave her a red rose .
ring: He put a ring on her finger . | I heard the bell ring .
light: The light of the lamp fell upon her face . | A light rain began to fall .
lead: The pipe was made of lead . | This road will lead us home .
court: The court found him guilty of murder . | The king and his court rode to the castle .
present: He gave her a present for her birthday . | At the present time nothing can be done .
wound: The wound in his arm was bleeding . | The road wound through the hills .
bear: A brown bear came out of the forest . | I can not bear this pain .
"""

def plain(table):
    return dict(rows=json.loads(table.round(4).to_json(orient='index')), **table.attrs)

def toy_gold(n, n_valid=0):
    return toy_corpus(n_train=n, n_valid=n_valid, n_test=0, n_unseen=0).gold

def senses(elmo, *data, seeds):
    ways = {'nearest mean': 'mean', 'nearest example': '1nn'}
    return {f'sense, {name}': plain(STUDY.sense_probe(elmo, *data, how=how, seeds=seeds))
            for name,how in ways.items()}

# the toy language

def toy(elmos, seeds=3):
    gold = toy_gold(12_000, 2_000)
    data = gold['train'], gold['valid']
    return [{'part of speech': plain(STUDY.linear_probe(elmo, *data, seeds=seeds))}
            | senses(elmo, *data, seeds=seeds) for elmo in elmos]

class View:
    "A model of which `of` changes the vectors [layers, T, 2P]"
    def __init__(self, elmo, of):
        self.elmo, self.of, self.n_layers, self.dim = elmo, of, elmo.n_layers, elmo.dim
    def embed_iter(self, sents, layers):
        return (self.of(v) for v in self.elmo.embed_iter(sents, 'all'))

def half_of(elmo, backward):
    half = elmo.dim//2
    def zero(v):
        v = v.copy()
        v[..., :half] *= not backward
        v[..., half:] *= backward
        return v
    return View(elmo, zero)

def mean_of_layers(v):
    v = v/np.linalg.norm(v, axis=-1, keepdims=True).clip(1e-12)
    return v.mean(0)[None].repeat(3, 0)

def purity(elmos):
    "Neighbours of one sense: by the size of the text, by their number, by what is compared"
    gold, runs, ways = toy_gold(max(POOLS))['train'], [], []
    for elmo in elmos:
        runs.append([dict(pool=pool, **plain(STUDY.purity(elmo, gold[:pool], k=k)))
                     for pool,k in product(POOLS, KS)])
        views = {'directions evened out': (elmo, True),
                 'mean taken away': (elmo, False),
                 'forward halves': (half_of(elmo, False), True),
                 'backward halves': (half_of(elmo, True), True),
                 'mean of layers 0 to 2': (View(elmo, mean_of_layers), True)}
        ways.append({name: float(STUDY.purity(view, gold[:POOLS[1]], k=KS[-2], whiten=whiten)
                                 .purity['layer 2']) for name,(view, whiten) in views.items()})
    return dict(runs=runs, ways=dict(runs=ways))

# English

def english(elmo):
    return senses(elmo, STUDY.read_senses(ROOT/'nbs'/'data'/'senses_en.csv'), seeds=20)

def real_sentences():
    "(source, number) → sentence as text, of the novels and of WikiText-2"
    root, wiki, res = local_copy('novels'), wikitext2(), {}
    for b in novels.BOOKS:
        text = ''.join(lines_of(novels.book_file(b, root)))
        res |= {(b.name, i): s for i,s in enumerate(novels.book_sentences(text, b.start))}
    for split in ('train', 'valid', 'test'):
        sents = novels.wikitext_sentences(getattr(wiki, split))
        res |= {(f'wikitext-2 {split}', i): s for i,s in enumerate(sents)}
    return res

def real_senses(elmo):
    "The labelled occurrences: (tokens, position, sense) and the sources"
    rows, text = pd.read_csv(ROOT/'nbs'/'data'/'senses_real.csv'), real_sentences()
    sents = elmo.to_tokens([text[k] for k in zip(rows.source, rows.sentence)])
    data = [*zip(sents, rows.position.tolist(), rows.sense)]
    for s,t,sense in data:
        assert s[t] == sense.split('/')[0], f"{' '.join(s)!r} has {s[t]!r} at {t}, not {sense!r}"
    return data, [o.split()[0] for o in rows.source]

def random_twins(elmo, data):
    return [random_elmo(elmo, seed, [s for s,*_ in data]) for seed in range(3)]

def real(elmo):
    "Fifteen words in novels and WikiText-2, their senses labelled by hand, beside random weights"
    data, sources = real_senses(elmo)
    tables = {'purity, k=1': plain(STUDY.purity(elmo, data, k=1))} | senses(elmo, data, seeds=20)
    # right, if one takes the commonest sense of the word in its kind of text
    labelled = pd.DataFrame(dict(sense=[sense for *_,sense in data], source=sources))
    kinds = [labelled.sense.str.split('/').str[0], labelled.source == 'wikitext-2']
    right = labelled.groupby(kinds).sense.agg(lambda o: o.value_counts().max()).sum()
    random = [plain(STUDY.purity(twin, data, k=1)) for twin in random_twins(elmo, data)]
    return dict(tables=tables, random=random, by_source=round(right/len(data), 4))

def books(elmo):
    "The same occurrences as lesson 13 counts senses: this model, and three with random weights"
    data, _ = real_senses(elmo)
    examples = pd.DataFrame([(' '.join(tokens), t, sense) for tokens,t,sense in data],
                            columns=['sentence', 'position', 'sense'])
    ours, *random = [sense_hits(sense_views(e, examples), examples)
                     for e in (elmo, *random_twins(elmo, data))]
    tables = [sense_table(ours, 'mini-en'), sense_table(sum(random)/len(random), 'twin')]
    def difference(rival):
        d = ours['layer 2'].astype(float) - ours[rival]
        return [round(d.mean(), 4), round(d.sem(), 4)]
    return dict(tables=[t.round(4).to_dict('index') for t in tables],
                layer_2_minus={rival: difference(rival) for rival in ours})

def count_vectors(sents, n_words=8_000, around=3, dim=100):
    """Static vectors by counting: positive pointwise mutual information of words at most `around`
    apart, and its first singular vectors (Levy and Goldberg 2014)"""
    sents = [[w.lower() for w in s] for s in sents]
    words = [w for w,_ in Counter(w for s in sents for w in s).most_common(n_words)]
    o2i = {w: i for i,w in enumerate(words)}
    ids = np.array([i for s in sents for i in [*(o2i.get(w, -1) for w in s), *[-1]*around]])
    m = 0
    for d in range(1, around + 1):
        a, b = ids[:-d], ids[d:]
        ok = (a >= 0) & (b >= 0)
        m = m + coo_matrix((np.ones(ok.sum()), (a[ok], b[ok])), shape=(len(words),)*2).tocsr()
    m = (m + m.T).tocoo()
    n, total = np.asarray(m.sum(1)).ravel() + 1e-9, m.sum()
    m.data = np.maximum(np.log(m.data*total/n[m.row]/n[m.col]**.75*(n**.75).sum()/total), 0)
    svd = TruncatedSVD(dim, random_state=0)
    vectors = svd.fit_transform(m.tocsr())/svd.singular_values_**0.5
    return WordVectors(words, vectors.astype(np.float32))

def words(elmo):
    "A dozen words and more: where their nearest occurrences are, and their static neighbours"
    ask = [(w, [q.strip() for q in qs.split('|')])
           for w,qs in (o.split(': ', 1) for o in ASK.strip().split('\n'))]
    text, wanted = real_sentences(), re.compile(r'\b(?:' + '|'.join(w for w,_ in ask) + r')\b')
    keys = [k for k,s in text.items() if wanted.search(s) and '<unk>' not in s]
    found = {tuple(s): k[0] for s,k in zip(elmo.to_tokens([text[k] for k in keys]), keys)
             if 5 <= len(s) <= 40}
    by_count = count_vectors(elmo.to_tokens(list(text.values())))
    spelt = [w for w in by_count.words if w.isalpha()]
    by_letter = WordVectors(spelt, np.concatenate(elmo.embed([[w] for w in spelt], 0)))
    n = Counter(w for s in found for w in {*s})
    def shown(o):
        s, t = tuple(o.tokens), o.position
        before, after = ' '.join(s[max(0, t - 8):t]), ' '.join(s[t + 1:t + 8])
        return dict(cosine=round(o.cosine, 3), source=found[s],
                    text=[before, s[t], after, t > 8, t + 8 < len(s)])
    def asked(w, q):
        near = STUDY.nearest(elmo, q.split(), w, [list(s) for s in found], 2)
        return dict(sentence=q, found=[shown(o) for o in near.itertuples()])
    rows = [dict(word=w, occurrences=n[w], static=[v for v,_ in by_count.nearest(w, 5)],
                 letters=[v for v,_ in by_letter.nearest(w, 5)], asked=[asked(w, q) for q in qs])
            for w,qs in ask]
    return dict(rows=rows)

def questions(train, dev):
    """(train, dev) of three linear probes: the tag, the word if it is one of the hundred commonest,
    the position, from 9 on one"""
    common = {w for w,_ in Counter(w for s in train for w in s.tokens).most_common(100)}
    def spelt(sents):
        return [(s.tokens, [w if w in common else None for w in s.tokens]) for s in sents]
    return {'part of speech': (train, dev), 'word': (spelt(train), spelt(dev)),
            'position': (STUDY.places(train), STUDY.places(dev))}

def ud(elmo, seeds=3, max_tokens=20_000):
    gold = treebank('UD_English-EWT').gold
    return {name: plain(STUDY.linear_probe(elmo, *data, seeds=seeds, max_tokens=max_tokens))
            for name,data in questions(gold['train'], gold['valid']).items()}

def timed(elmo):
    gold, res = toy_gold(3_000, 600), {}
    more = toy_gold(40_000)['train']       # one word in twenty has senses
    def run(name, f, *args, **kw):
        wall, own = time.perf_counter(), time.process_time()
        t = f(elmo, *args, **kw)
        res[name] = dict(tokens=t.attrs.get('train') or t.attrs.get('occurrences'),
                         seconds=round(time.perf_counter() - wall, 1),
                         processor=round(time.process_time() - own, 1))
    asked = questions(gold['train'], gold['valid']).values()
    for name,data in zip(('tags', 'words', 'positions'), asked):
        run(name, STUDY.linear_probe, *data, seeds=1, share=1.)
    run('senses', STUDY.sense_probe, more, gold['valid'], seeds=1, share=1.)
    run('purity', STUDY.purity, more)
    return res

# name → function, file
PARTS = dict(toy=(toy, 'probe'), purity=(purity, 'neighbours'), english=(english, 'probe'),
             real=(real, 'neighbours'), books=(books, 'senses'), words=(words, 'neighbours'),
             ud=(ud, 'probe'), time=(timed, 'probe'))

@call_parse
def main(
    *parts:str,                           # (default: all)
    toy:several(Path)=(ROOT/'models'/'toy',), # folders of models of the toy language
    out:Path=RESULTS                      # folder of the files
):
    "Measure the parts and write their figures"
    for part in parts or PARTS:
        f, name = PARTS[part]
        if part in ('toy', 'purity'):
            found = f([Elmo.from_pretrained(o, tokenizer='space') for o in toy])
        else: found = f(Elmo.from_pretrained('mini-en'))
        log(part)
        write_figures(out/f'{name}.json', read_figures(out/f'{name}.json', {}) | {part: found})
