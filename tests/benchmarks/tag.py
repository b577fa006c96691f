"""Tagging real text with and without ELMo: learning curves, layers and places on UD-EWT (study:
Learning curves).

    python tests/benchmarks/tag.py --model models/english          # some ten minutes on two cores
    # one seed, small shares, few steps: does it work?
    python tests/benchmarks/tag.py --model models/english --quick
    # these shares, each training as long as it gains
    python tests/benchmarks/tag.py --model models/english --best .01 .1
    # noun phrases in BIO instead of tags, this share
    python tests/benchmarks/tag.py --spans .1
    # logistic regressions on words and endings, these shares
    python tests/benchmarks/tag.py --clues .01 .03 .1 .3 1

The same tagger (word vectors, vectors from letters, a bidirectional LSTM) is trained on 1, 3, 10,
30 and 100 % of the training sentences,
with ELMo at the LSTM's input and without it; then with single layers and mixes of them, and with
ELMo at the three places. Universal tags;
accuracy on the development part. Both sides get the same sentences, seeds, steps and settings. The
biLM is frozen and reads each sentence once, before the
trainings, which then run in processes of one thread each. With --best each training is made again
and again from the beginning, with twice
the steps, until one half of the development part no longer gains; its accuracy is that on the other
half. These rows are added to the file, and a run that was
stopped goes on. With --spans the same taggers find base noun phrases: a noun, a proper noun or a
pronoun with the determiners, adjectives, numbers,
possessives and compounds that the treebank hangs on it, as far as they are next to each other, as
BIO tags; accuracy and F1 of whole phrases on the
development part, added to the file. With --clues the rival is lesson 12's logistic regression, on
the same sentences: from the three words around a token, with their endings, and with the form of
the word, too. The text comes from ELMO_FASTAI_DATA or ../shared/data, or is
downloaded. The figures go
to nbs/results/tag.json, which the chapter shows.
"""
import time
from multiprocessing import get_context
from pathlib import Path

from harness import RESULTS, data_folder, opt, options, read_figures, write_figures

SHARES = [.01, .03, .1, .3, 1.]
LAYERS = ['last', 'first', 0, 'equal', 'learned']
SIDES = ('without ELMo', None), ('with ELMo', 'input')

def arguments():
    return options(__doc__,
        model=opt('mini-en', "a folder with a biLM, or a name"),
        seeds=3,
        epochs=4,
        steps=opt(450, 'at least so many, where the data is small'),
        layers_steps=opt(200, 'the same for the comparison of layers'),
        lr=8e-3,
        words=opt(64, 'dimensions of word vectors'),
        chars=opt(64, 'dimensions of vectors from letters'),
        hidden=96,
        dropout=.3,
        elmo_dropout=.3,
        layers_share=opt(.1, 'share of the data for the comparison of layers and places'),
        best=opt(None, 'shares to be trained for as long as they gain', type=float, nargs='+'),
        spans=opt(None, 'shares on which to learn noun phrases', type=float, nargs='+'),
        clues=opt(None, 'shares for the regressions on words and endings', type=float, nargs='+'),
        most=opt(3600, 'steps of --best at most'),
        processes=2,
        quick=opt(False, 'one seed, shares of 1 and 3 %%, few steps, a tenth of the dev part'),
        json=opt(RESULTS/'tag.json', 'where the figures go'))

def jobs(a):
    "Every training as a dictionary, the longest first"
    res = []
    for seed in range(a.seeds):
        for share in SHARES[:2] if a.quick else SHARES:
            res += [dict(kind='curve', side=side, share=share, seed=seed, where=where)
                    for side,where in SIDES]
        share = a.layers_share
        res += [dict(kind='ablation', layers=o, share=share, seed=seed, where='input', words=0,
                     chars=0) for o in LAYERS]
        res += [dict(kind='places', place=o, share=share, seed=seed, where=o)
                for o in ('output', 'both')]
    return sorted(res, key=lambda o: -o['share'])

def work(job):
    "One training; what came of it"
    import torch
    from pages import page
    study = page('studies/learning_curves')
    torch.set_num_threads(1)
    a, train, dev, labels, elmo, cache = SHARED
    some, start = study.subset(train, job['share'], job['seed']), time.perf_counter()
    own = {k: job[k] for k in ('layers', 'words', 'chars') if k in job}
    kw = dict(words=a.words, chars=a.chars, hidden=a.hidden, dropout=a.dropout,
              elmo_dropout=a.elmo_dropout, cache=cache if job['where'] else False)
    steps = a.layers_steps if job['kind'] == 'ablation' else a.steps
    learn = study.train_tagger(some, dev, elmo, job['where'], epochs=a.epochs, lr=a.lr,
                               seed=job['seed'], steps=steps, labels=labels,
                         device='cpu', **{**kw, **own})
    res = dict(**job, sentences=len(some), score=learn.recorder.values[-1][2],
               seconds=round(time.perf_counter() - start, 1))
    if job['where']:
        res['shares'] = [[round(s, 4) for s in m.shares.tolist()] for m in learn.model.elmo.mixes]
    return res

def as_long_as_it_gains(a, side, where, share, seed, train, dev, labels, elmo, cache):
    """Trainings of 1, 2, 4, … times the steps, until half of `dev` no longer gains; the accuracy
    of the best on the other half"""
    from pages import page
    study = page('studies/learning_curves')
    some, steps, tried, best = study.subset(train, share, seed), a.steps, [], None
    kw = dict(words=a.words, chars=a.chars, hidden=a.hidden, dropout=a.dropout,
              elmo_dropout=a.elmo_dropout, cache=cache if where else False)
    while steps <= a.most:
        learn = study.train_tagger(some, dev[::2], elmo, where, epochs=1, lr=a.lr, seed=seed,
                                   steps=steps, labels=labels, device='cpu', **kw)
        gained = learn.recorder.values[-1][2]
        tried.append([steps, round(gained, 4)])
        if best and gained <= best[0]: break
        with learn.no_bar():
            best = gained, learn.validate(dl=learn.dls.test_dl(dev[1::2],
                                                               with_labels=True))[1], steps
        steps *= 2
    return dict(side=side, share=share, seed=seed, sentences=len(some), score=best[1],
                steps=best[2], tried=tried)

def add_best(a):
    "The rows of --best, into the file that has the others"
    import torch
    from elmo_fastai.text.treebanks import read_treebank
    from elmo_fastai.elmo.module import Elmo
    from elmo_fastai.tasks.classify import LayerCache
    torch.set_num_threads(1)
    gold, elmo, cache, out = (read_treebank('en_ewt').gold, Elmo.from_pretrained(a.model),
                              LayerCache(mb=3000), a.json)
    train, dev = gold['train'], gold['valid'][::10] if a.quick else gold['valid']
    labels = sorted({t for s in train + dev for t in s.tags})
    res = read_figures(out)
    name = elmo.lm.config.name
    # those of another model are no use
    rows = [o for o in res.get('best', []) if o['model'] == name]
    for share in a.best:
        for seed in range(a.seeds):
            for side,where in SIDES:
                if any((o['side'], o['share'], o['seed']) == (side, share, seed) for o in rows):
                    continue
                start = time.perf_counter()
                row = as_long_as_it_gains(a, side, where, share, seed, train, dev, labels, elmo,
                                          cache)
                rows.append(dict(row, model=name, seconds=round(time.perf_counter() - start, 1)))
                print(rows[-1], flush=True)
                write_figures(out, res | dict(best=rows))

# noun phrases

INSIDE = {'det', 'det:predet', 'amod', 'nummod', 'compound', 'flat', 'goeswith', 'advmod',
          'nmod:poss', 'nmod:desc'}

def phrase_of(h, rows):
    """The first and the last token of the noun phrase around token `h` of rows (form, upos,
    head, relation)"""
    found, grown = {h}, True
    while grown:
        more = {t for t,(_,_,head,rel) in enumerate(rows) if head in found and t not in found
                and (rel in INSIDE or head != h and rel in ('case', 'punct'))}
        found, grown = found | more, bool(more)
    first = last = h
    while first - 1 in found: first -= 1
    while last + 1 in found: last += 1
    return first, last

def noun_phrases(rows):
    "BIO tags of the base noun phrases of a sentence"
    tags = ['O']*len(rows)
    for h,(_,upos,_,rel) in enumerate(rows):
        if upos not in ('NOUN', 'PROPN', 'PRON') or rel in INSIDE: continue
        first, last = phrase_of(h, rows)
        tags[first:last+1] = ['B-NP'] + ['I-NP']*(last - first)
    return tags

def phrase_sentences(path):
    "The sentences of a CoNLL-U file with BIO tags of noun phrases"
    from elmo_fastai.text.corpora import Sentence
    sents = []
    for block in Path(path).read_text(encoding='utf-8').split('\n\n'):
        columns = [line.split('\t') for line in block.split('\n') if line[:1].isdigit()]
        rows = [(c[1], c[3], int(c[6])-1, c[7]) for c in columns if c[0].isdigit()]
        if rows: sents.append(Sentence([form for form,*_ in rows], noun_phrases(rows)))
    return sents

def add_spans(a):
    "The rows of --spans, into the file that has the others"
    import torch
    from elmo_fastai.elmo.module import Elmo
    from elmo_fastai.tasks.classify import LayerCache
    from pages import page
    study = page('studies/learning_curves')
    torch.set_num_threads(1)
    folder = data_folder('ud-ewt')
    train, dev = (phrase_sentences(folder/f'en_ewt-ud-{part}.conllu') for part in ('train', 'dev'))
    if a.quick: dev = dev[::10]
    labels, elmo, cache, rows = ['B-NP', 'I-NP',
                                 'O'], Elmo.from_pretrained(a.model), LayerCache(mb=3000), []
    kw = dict(words=a.words, chars=a.chars, hidden=a.hidden, dropout=a.dropout,
              elmo_dropout=a.elmo_dropout)
    example = next(s for s in dev if 8 <= len(s.tokens) <= 14 and s.tags.count('I-NP') > 2)
    everywhere = [t for s in dev for t in s.tags]
    res = dict(example=[example.tokens, example.tags], tokens=len(everywhere),
               phrases=everywhere.count('B-NP'),
               inside=everywhere.count('I-NP'), model=elmo.lm.config.name, rows=rows)
    for share in a.spans:
        for seed in range(a.seeds):
            for side,where in SIDES:
                some = study.subset(train, share, seed)
                learn = study.train_tagger(some, dev, elmo, where, epochs=a.epochs, lr=a.lr,
                                           seed=seed, steps=a.steps, labels=labels,
                                           device='cpu', cache=cache if where else False, **kw)
                _, _, accuracy, f1 = learn.recorder.values[-1]
                rows.append(dict(side=side, share=share, seed=seed, sentences=len(some),
                                 score=accuracy, f1=f1))
                print(rows[-1], flush=True)
                if a.quick: continue
                write_figures(a.json, read_figures(a.json) | dict(spans=res))

# words and endings

CLUES = 'words', 'words and endings', 'words, endings and form'

def clues(sent, side):
    "For each token: the words in its window, their endings, and the form of the token itself"
    padded, rows = ['<s>', *sent.tokens, '</s>'], []
    for t,word in enumerate(sent.tokens):
        window = padded[t:t+3]
        row = {f'word {k}': w for k,w in enumerate(window)}
        if side != CLUES[0]:
            for n in (1, 2, 3): row |= {f'last {n} of {k}': w[-n:] for k,w in enumerate(window)}
        if side == CLUES[2]:
            row |= {f'first {n}': word[:n] for n in (1, 2, 3)}
            row |= {'lower': word.lower(), 'digit': any(c.isdigit() for c in word),
                    'letters': word.isalpha(), 'capital': f'{word[:1].isupper()} {t == 0}',
                    'capitals': word.isupper()}
        rows.append(row)
    return rows

def clues_right(train, dev, side):
    "Accuracy of a logistic regression"
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    model = make_pipeline(DictVectorizer(), LogisticRegression(C=10, max_iter=300))
    x, asked = ([row for s in sents for row in clues(s, side)] for sents in (train, dev))
    model.fit(x, [t for s in train for t in s.tags])
    return model.score(asked, [t for s in dev for t in s.tags])

def add_clues(a):
    "The rows of --clues, into the file that has the others"
    from elmo_fastai.text.treebanks import read_treebank
    from pages import page
    study, gold = page('studies/learning_curves'), read_treebank('en_ewt').gold
    rows = read_figures(a.json).get('clues', [])
    for share in a.clues:
        for side in CLUES:
            for seed in range(a.seeds if share < 1 else 1):
                key = dict(side=side, share=share, seed=seed)
                if any(key.items() <= row.items() for row in rows): continue
                some = study.subset(gold['train'], share, seed)
                right = round(clues_right(some, gold['valid'], side), 4)
                rows.append(key | dict(sentences=len(some), score=right))
                print(rows[-1], flush=True)
                write_figures(a.json, read_figures(a.json) | dict(clues=rows))

def main(a):
    global SHARED
    if a.best: return add_best(a)
    if a.spans: return add_spans(a)
    if a.clues: return add_clues(a)
    import torch
    from elmo_fastai.text.treebanks import read_treebank
    from elmo_fastai.elmo.module import Elmo
    from elmo_fastai.tasks.classify import LayerCache
    from pages import page
    curve_table = page('studies/learning_curves').curve_table
    from elmo_fastai.tasks.cbow import interval
    from pages import page
    from elmo_fastai.data.tagged import TagDataLoaders
    CommonestTag = page('library/tagged').CommonestTag
    import pandas as pd
    start = time.perf_counter()
    gold, elmo, cache = (read_treebank('en_ewt').gold, Elmo.from_pretrained(a.model),
                         LayerCache(mb=6000))
    if a.quick: a.seeds, a.layers_share, a.steps, a.layers_steps = 1, SHARES[1], 120, 60
    train, dev = gold['train'], gold['valid'][::10] if a.quick else gold['valid']
    labels = sorted({t for s in train + dev for t in s.tags})
    todo = jobs(a)
    # read every sentence once, before the processes part
    if todo:
        torch.set_num_threads(1)
        need = {id(s): s for j in todo for s in subset_of(train, j)}
        dls = TagDataLoaders.from_sents(list(need.values()), dev, labels=labels, device='cpu')
        weights = cache.open(elmo)
        for dl in dls:
            for x,*_ in dl: cache(elmo, x, weights)
        print(f'{len(cache.rows):,} sentences read by the biLM, {time.perf_counter()-start:.0f} s',
              flush=True)
    SHARED = a, train, dev, labels, elmo, cache
    out = []
    with get_context('fork').Pool(a.processes) as pool:
        for r in pool.imap_unordered(work, todo):
            out.append(r)
            print('  '.join(f'{k} {v:.4f}' if k == 'score' else f'{k} {v}' for k,v in r.items()),
                  flush=True)
    out.sort(key=lambda o: (o['kind'], o['share'], o['seed'], o.get('side') == 'with ELMo',
                            str(o.get('layers', '')), o.get('place', '')))
    of = lambda kind: [{k: v for k,v in o.items() if k != 'kind'} for o in out if o['kind'] == kind]
    res = {'model': elmo.lm.config.to_dict(),
           'settings': {k: v for k,v in vars(a).items() if k not in ('json', 'model', 'processes')},
           'commonest tag': CommonestTag(train).accuracy(dev), 'curve': of('curve'),
           'ablation': of('ablation'), 'places': of('places'),
           'minutes': round((time.perf_counter() - start)/60, 1)}
    old = read_figures(a.json, {})
    res |= {key: old[key] for key in ('best', 'spans', 'clues') if key in old}
    write_figures(a.json, res)
    print(curve_table(pd.DataFrame(res['curve'])).to_string(),
          f"\ncommonest tag {res['commonest tag']:.3f}")
    for kind,key in (('ablation', 'layers'), ('places', 'place')):
        for k,d in pd.DataFrame(res[kind]).groupby(key, sort=False):
            print(f"{key} {k}: {interval(d.score)[0]:.4f} ± {interval(d.score)[1]:.4f}")
    print(f"{res['minutes']} minutes; written to {a.json}")

def subset_of(train, job):
    from pages import page
    return page('studies/learning_curves').subset(train, job['share'], job['seed'])

if __name__ == '__main__': main(arguments())
