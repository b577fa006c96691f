"""What the layers know, in figures: probes and neighbours on the built-in corpus and on English,
and their time.

    python tests/benchmarks/probe.py                 # all; about half an hour on two cores
    python tests/benchmarks/probe.py --quick         # smaller everywhere
    python tests/benchmarks/probe.py --only toy  # or purity, english, real, books, words, ud, time

`toy` and `purity` want models as `make pretrain` leaves them, one a seed, named with --toy (those
of the page: `pretrain(toy_corpus(n_train=100_000), seed=1, epochs=3, lr=.008, out=…)`); the others
take the model of the package, or --model FOLDER. The texts come from ELMO_FASTAI_DATA or
../shared/data, or are downloaded. The figures go to nbs/results/probe.json, neighbours.json
and senses.json, part by part. With --quick nothing is written, nor are `toy` and `purity` with fewer than three
seeds.
"""
import json, math, re, time
from collections import Counter
from itertools import product

import numpy as np

from harness import RESULTS, ROOT, opt, options, read_figures, write_figures
import books
from pages import page

FILES = dict(toy='probe', english='probe', real='neighbours', books='senses', words='neighbours',
             ud='probe', time='probe', purity='neighbours')
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

def show(title, table):
    print(f'\n{title}  {table.attrs or ""}\n{table.round(3).to_string()}', flush=True)

def plain(table):
    "A table as JSON has it"
    rows = {k: {c: round(float(v), 4) if math.isfinite(v) else None for c, v in r.items()}
            for k, r in table.to_dict('index').items()}
    return dict(rows=rows, **table.attrs)

def write(part, what):
    file = RESULTS/f'{FILES[part]}.json'
    write_figures(file, read_figures(file, {}) | {part: what})

def toy_model(folder):
    from elmo_fastai.all import Elmo
    return Elmo.from_pretrained(folder, tokenizer='space')

def toy_gold(n, n_valid=0):
    from elmo_fastai.text.corpora import toy_corpus
    return toy_corpus(n_train=n, n_valid=n_valid, n_test=0, n_unseen=0).gold

# the built-in corpus

def toy(folders, quick):
    "Tags and senses, layer by layer"
    study = page('studies/probes')
    gold, res = toy_gold(12_000, 1_000 if quick else 2_000), []
    train = gold['train'][:4_000 if quick else 12_000]
    for folder in folders:
        elmo, seeds = toy_model(folder), 1 if quick else 3
        tables = {'part of speech': study.linear_probe(elmo, train, gold['valid'], seeds=seeds),
                  **{f'sense, {n}': study.sense_probe(elmo, train, gold['valid'], how=how,
                                                      seeds=seeds)
                     for n, how in (('nearest mean', 'mean'), ('nearest example', '1nn'))}}
        for k,t in tables.items(): show(f'toy, {folder.name}: {k}', t)
        res.append({k: plain(t) for k,t in tables.items()})
    return res

class View:
    "A model of which `of` changes the vectors [layers, T, 2P]"

    def __init__(self, elmo, of, n_layers=None):
        self.elmo, self.of, self.n_layers, self.dim = elmo, of, n_layers or elmo.n_layers, elmo.dim

    def embed_iter(self, sents, layers):
        return (self.of(v) for v in self.elmo.embed_iter(sents, 'all'))

def purity_of_pools(folders, quick):
    "Neighbours of one sense: by the size of the text, by their number, by what is compared"
    purity = page('studies/probes').purity
    gold = toy_gold(max(POOLS))['train']
    pools, ks = (POOLS[:2], KS[:2]) if quick else (POOLS, KS)
    runs, ways = [], []
    for folder in folders:
        elmo, run = toy_model(folder), []
        half = elmo.dim//2
        def length(v): return v/np.linalg.norm(v, axis=-1, keepdims=True).clip(1e-12)
        for pool,k in product(pools, ks):
            t = purity(elmo, gold[:pool], k=k)
            show(f'toy, {folder.name}: purity in {pool:,} sentences', t)
            run.append(dict(pool=pool, **plain(t)))
        def zero(v, keep):
            v = v.copy()
            v[..., [i for i in range(2*half) if i not in keep]] = 0
            return v

        views = {'directions evened out': (elmo, True),
                 'mean taken away': (elmo, False),
                 'forward halves': (View(elmo, lambda v: zero(v, range(half))), True),
                 'backward halves': (View(elmo, lambda v: zero(v, range(half, 2*half))), True),
                 'mean of layers 0 to 2': (
                     View(elmo, lambda v: length(v).mean(0)[None].repeat(3, 0)), True)}
        way = {k: float(purity(e, gold[:pools[1]], k=ks[-2], whiten=w).purity['layer 2'])
               for k, (e, w) in views.items()}
        print({k: round(v, 3) for k,v in way.items()}, flush=True)
        runs.append(run); ways.append(way)
    return dict(recipe=json.loads((folders[0]/'run.json').read_text()), pools=pools, ks=ks, runs=runs,
                ways=dict(pool=pools[1], k=ks[-2], layer=2, runs=ways))

# English

def english(elmo, quick):
    "Twelve words in sentences that we wrote"
    study = page('studies/probes')
    data, seeds = study.read_senses(ROOT/'nbs'/'data'/'senses_en.csv'), 5 if quick else 20
    tables = {
        'sense, nearest mean': study.sense_probe(elmo, data, seeds=seeds),
        'sense, nearest example': study.sense_probe(elmo, data, how='1nn', seeds=seeds),
        'purity': study.purity(elmo, data, k=1),
    }
    for k,t in tables.items(): show(f'English: {k}', t)
    return {k: plain(t) for k,t in tables.items()}

def real_sentences():
    "(source, number) → sentence as text, of the novels and of WikiText-2"
    from elmo_fastai.text.corpora import local_copy, wikitext2
    from elmo_fastai.text.read import lines_of
    root, wiki = local_copy('novels'), wikitext2()
    res = {}
    for b in books.BOOKS:
        text = ''.join(lines_of(books.book_file(b, root)))
        res |= {(b.name, i): s for i,s in enumerate(books.book_sentences(text, b.start))}
    for split in ('train', 'valid', 'test'):
        sents = books.wikitext_sentences(getattr(wiki, split))
        res |= {(f'wikitext-2 {split}', i): s for i,s in enumerate(sents)}
    return res

def real_senses(elmo):
    "The labelled occurrences: (tokens, position, sense) and the sources"
    import pandas as pd
    rows, text = pd.read_csv(ROOT/'nbs'/'data'/'senses_real.csv'), real_sentences()
    sents = elmo.to_tokens([text[k] for k in zip(rows.source, rows.sentence)])
    data = [*zip(sents, rows.position.tolist(), rows.sense)]
    for s,t,sense in data:
        if s[t] != sense.split('/')[0]:
            raise SystemExit(f"senses_real.csv: {' '.join(s)!r} has {s[t]!r} at {t}, not {sense!r}")
    return data, [o.split()[0] for o in rows.source]

def real(elmo, quick):
    "Fifteen words in novels and WikiText-2, their senses labelled by hand, beside random weights"
    study = page('studies/probes')
    from elmo_fastai.classifier import random_elmo
    data, sources = real_senses(elmo)
    tables = {f'purity, k={k}': study.purity(elmo, data, k=k) for k in (1, 3)}
    tables |= {f'sense, {n}': study.sense_probe(elmo, data, how=how, seeds=5 if quick else 20)
               for n, how in (('nearest mean', 'mean'), ('nearest example', '1nn'))}
    for k,t in tables.items(): show(f'novels and WikiText-2: {k}', t)
    kinds = ['wiki' if s == 'wikitext-2' else 'novel' for s in sources]
    there = Counter((s.split('/')[0], kind, s) for (*_, s),kind in zip(data, kinds))
    best = {}
    for (word, kind, sense),n in sorted(there.items(), key=lambda o: (o[1], o[0][2])):
        best[word, kind] = sense
    by_source = float(np.mean([best[s.split('/')[0], kind] == s
                               for (*_, s),kind in zip(data, kinds)]))
    print(f'\ncommonest sense of the word in its kind of text: {by_source:.3f}')
    random = []
    for seed in range(1 if quick else 3):
        blank = random_elmo(elmo, seed, [s for s,*_ in data])
        t = study.purity(blank, data, k=1); show(f'random weights, seed {seed}: purity, k=1', t)
        random.append(plain(t))
    return dict(tables={k: plain(t) for k, t in tables.items()}, random=random,
                by_source=round(by_source, 4), senses=dict(Counter(s for *_, s in data)))

def books(elmo, quick):
    "The same occurrences as lesson 13 counts senses: this model, and three with random weights"
    import pandas as pd
    from elmo_fastai.classifier import random_elmo
    from elmo_fastai.probe import sense_hits, sense_table, sense_views
    data, _ = real_senses(elmo)
    examples = pd.DataFrame([(' '.join(tokens), t, sense) for tokens,t,sense in data],
                            columns=['sentence', 'position', 'sense'])
    tokens = [tokens for tokens,*_ in data]
    blank = [random_elmo(elmo, seed, tokens) for seed in range(1 if quick else 3)]
    ours, *random = [sense_hits(sense_views(e, examples), examples) for e in (elmo, *blank)]
    tables = [sense_table(ours, 'mini-en'), sense_table(sum(random)/len(random), 'twin')]
    for t in tables: show('novels and WikiText-2, nearest mean', t)
    def difference(rival):
        d = ours['layer 2'].astype(float) - ours[rival]
        return [round(d.mean(), 4), round(d.sem(), 4)]
    return dict(tables=[t.round(4).to_dict('index') for t in tables], twins=len(blank),
                layer_2_minus={rival: difference(rival) for rival in ours})

def count_vectors(sents, n_words=8_000, around=3, dim=100):
    """Static vectors by counting: positive pointwise mutual information of words at most `around`
    apart, and its first singular vectors (Levy and Goldberg 2014)"""
    from scipy.sparse import coo_matrix
    from sklearn.decomposition import TruncatedSVD
    from elmo_fastai.cbow import WordVectors
    sents = [[w.lower() for w in s] for s in sents]
    words = [w for w,_ in Counter(w for s in sents for w in s).most_common(n_words)]
    o2i = {w: i for i,w in enumerate(words)}
    ids = np.array([i for s in sents for i in [*(o2i.get(w, -1) for w in s), *[-1]*around]])
    m = 0
    for d in range(1, around + 1):
        a, b = ids[:-d], ids[d:]; ok = (a >= 0) & (b >= 0)
        m = m + coo_matrix((np.ones(ok.sum()), (a[ok], b[ok])), shape=(len(words),)*2).tocsr()
    m = (m + m.T).tocoo()
    n, total = np.asarray(m.sum(1)).ravel() + 1e-9, m.sum()
    m.data = np.maximum(np.log(m.data*total/n[m.row]/n[m.col]**.75*(n**.75).sum()/total), 0)
    svd = TruncatedSVD(dim, random_state=0)
    return WordVectors(
        words, (svd.fit_transform(m.tocsr())/svd.singular_values_**0.5).astype(np.float32)
    )

def words(elmo, quick, layer=1):
    "A dozen words and more: where their nearest occurrences are, and their static neighbours"
    from elmo_fastai.cbow import WordVectors
    nearest = page('studies/probes').nearest
    ask = [(w, [q.strip() for q in qs.split('|')])
           for w, qs in (o.split(': ', 1) for o in ASK.strip().split('\n'))][:2 if quick else None]
    text, wanted = real_sentences(), re.compile(r'\b(?:' + '|'.join(w for w,_ in ask) + r')\b')
    keys = [k for k,s in text.items() if wanted.search(s) and '<unk>' not in s]
    sents = [s for s in elmo.to_tokens([text[k] for k in keys])]
    found = {tuple(s): k[0] for s,k in zip(sents, keys) if 5 <= len(s) <= 40}
    every = elmo.to_tokens(list(text.values())[:20_000 if quick else None])
    by_count = count_vectors(every)
    spelt = [w for w in by_count.words if w.isalpha()]
    by_letter = WordVectors(spelt, np.concatenate(elmo.embed([[w] for w in spelt], 0)))
    res, n = [], Counter(w for s in found for w in {*s})
    for w,qs in ask:
        row = dict(word=w, occurrences=n[w], static=[v for v, _ in by_count.nearest(w, 5)],
                   letters=[v for v, _ in by_letter.nearest(w, 5)], asked=[])
        for q in qs:
            near = nearest(elmo, q.split(), w, [list(s) for s in found], 2, layer)
            print(near, flush=True)
            shown = []
            for o in near.itertuples():
                s, t = tuple(o.tokens), o.position
                before, after = ' '.join(s[max(0, t - 8):t]), ' '.join(s[t + 1:t + 8])
                text = [before, s[t], after, t > 8, t + 8 < len(s)]
                shown.append(dict(cosine=round(o.cosine, 3), source=found[s], text=text))
            row['asked'].append(dict(sentence=q, found=shown))
        print(row['static'], row['letters'], flush=True)
        res.append(row)
    return dict(layer=layer, sentences=len(text), rows=res)

def questions(train, dev):
    """(train, dev) of three linear probes: the tag, the word if it is one of the hundred commonest,
    the position, from 9 on one"""
    common = {w for w,_ in Counter(w for s in train for w in s.tokens).most_common(100)}

    def words(sents):
        return [(s.tokens, [w if w in common else None for w in s.tokens]) for s in sents]

    def places(sents): return [(s.tokens, [min(t, 9) for t in range(len(s.tokens))]) for s in sents]

    return {'part of speech': (train, dev),
            **{k: (of(train), of(dev)) for k, of in (('word', words), ('position', places))}}

def ud(elmo, quick):
    "Parts of speech, words and positions in the treebank"
    from elmo_fastai.text.corpora import treebank
    linear_probe = page('studies/probes').linear_probe
    gold, res = treebank('UD_English-EWT').gold, {}
    dev = gold['valid'][:300 if quick else None]
    for name,data in questions(gold['train'], dev).items():
        t = linear_probe(
            elmo, *data, seeds=1 if quick else 3, max_tokens=4_000 if quick else 20_000
        )
        show(f'treebank: {name}', t)
        res[name] = plain(t)
    return res

# time

def timed(elmo, quick):
    "Seconds of each probe, 20,000 tokens to learn from, one seed; under a minute is asked"
    study = page('studies/probes')
    gold, res = toy_gold(800 if quick else 3_000, 600), {}
    # one word in twenty has senses
    more = toy_gold(2_000 if quick else 40_000)['train']
    def run(name, f, *args, **kw):
        wall, own = time.perf_counter(), time.process_time(); t = f(elmo, *args, **kw)
        res[name] = dict(tokens=t.attrs.get('train') or t.attrs.get('occurrences'),
                         seconds=round(time.perf_counter() - wall, 1),
                         processor=round(time.process_time() - own, 1))
        print(name, res[name], flush=True)
    asked = questions(gold['train'], gold['valid']).values()
    for name,data in zip(('tags', 'words', 'positions'), asked):
        run(name, study.linear_probe, *data, seeds=1, share=1.)
    run('senses', study.sense_probe, more, gold['valid'], seeds=1, share=1.)
    run('purity', study.purity, more)
    return res

def main():
    a = options(__doc__,
        quick=opt(False, 'smaller everywhere; nothing is written'),
        only=opt(choices=FILES, nargs='+'),
        model=opt('mini-en', "a folder, or 'mini-en', the package's own"),
        toy=opt([ROOT/'models'/'toy'], 'folders as make pretrain leaves them', nargs='+'))
    from elmo_fastai.all import Elmo
    wanted = a.only or list(FILES)
    elmo = (Elmo.from_pretrained(a.model) if {*wanted} - {'toy', 'purity'} else None)
    for part in wanted:
        start, on_toy = time.perf_counter(), part in ('toy', 'purity')
        if on_toy and (missing := [str(f) for f in a.toy if not f.exists()]):
            print(f"({part}: no model in {', '.join(missing)}: say make pretrain, or name one with "
                  "--toy)", flush=True)
            continue
        if on_toy: res = dict(toy=toy, purity=purity_of_pools)[part](a.toy, a.quick)
        else: res = dict(english=english, real=real, books=books, words=words, ud=ud,
                       time=timed)[part](elmo, a.quick)
        if not a.quick and not (on_toy and len(a.toy) < 3): write(part, res)
        print(f'({part}: {time.perf_counter() - start:.0f} s)', flush=True)

if __name__ == '__main__': main()
