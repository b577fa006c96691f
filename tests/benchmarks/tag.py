"""Tagging real text with and without ELMo: learning curves, layers and places on UD-EWT (study:
Learning curves).

    python tests/benchmarks/tag.py                                 # some ten minutes on two cores
    python tests/benchmarks/tag.py --quick                         # does it work?
    # these shares, each training as long as it gains
    python tests/benchmarks/tag.py --best .01 .1
    # noun phrases in BIO instead of tags, this share
    python tests/benchmarks/tag.py --spans .1
    # logistic regressions on words and endings, these shares
    python tests/benchmarks/tag.py --clues .01 .03 .1 .3 1
    # the rungs of lesson 11 on the toy language, with `mini-toy` and so many sentences
    python tests/benchmarks/tag.py --toy 30 100

The same tagger (word vectors, vectors from letters, a bidirectional LSTM) is trained on shares of
the training sentences, with ELMo at the LSTM's input and without it; then with single layers and
mixes of them, and with ELMo at the three places; accuracy on the development part. Both sides get
the same sentences, seeds, steps and settings. The biLM is frozen and reads each sentence once.

--best makes each training again with twice the steps until one half of the development part no
longer gains; its accuracy is that on the other half. --spans finds base noun phrases: a noun, a
proper noun or a pronoun with what the treebank hangs on it beside it. --clues is lesson 11's
logistic regression: from the three words around a token, with their endings, and with the form of
the word. These rows are added to the file. The text comes from ELMO_FASTAI_DATA or ../shared/data,
or is downloaded. The figures go to nbs/results/tag.json.
"""
import time
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from harness import RESULTS, data_folder, fill, opt, options, read_figures, write_figures

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
        toy=opt(None, 'sentences of the toy language for the rungs', type=int, nargs='+'),
        draws=opt(4, 'draws of these sentences'),
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

class Taggers:
    "What all trainings share: the text, the model, its vectors that were read"
    def __init__(self, a, read=None, mb=3000):
        import torch
        from elmo_fastai.text.corpora import treebank
        from elmo_fastai.elmo import Elmo
        import elmo_fastai.practice.folder                         # `Elmo.from_pretrained`
        from elmo_fastai.tagger import LayerCache
        from pages import page
        torch.set_num_threads(1)
        self.a, self.study = a, page('studies/learning_curves')
        self.elmo, self.cache = Elmo.from_pretrained(a.model), LayerCache(mb=mb)
        gold = treebank('UD_English-EWT').gold if read is None else read
        self.train, self.dev = gold['train'], gold['valid'][::10] if a.quick else gold['valid']
        self.labels = sorted({t for s in self.train + self.dev for t in s.tags})

    def some(self, share, seed): return self.study.subset(self.train, share, seed)

    def learn(self, some, where, seed, steps, dev=None, epochs=1, **kw):
        "A trained tagger"
        a = self.a
        settings = dict(words=a.words, chars=a.chars, hidden=a.hidden, dropout=a.dropout,
                        elmo_dropout=a.elmo_dropout, lr=a.lr, labels=self.labels, device='cpu',
                        cache=self.cache if where else False)
        return self.study.train_tagger(some, dev or self.dev, self.elmo, where, epochs=epochs,
                                       seed=seed, steps=steps, **settings | kw)

def work(job):
    "One training; what came of it"
    start, a = time.perf_counter(), SHARED.a
    some = SHARED.some(job['share'], job['seed'])
    own = {k: job[k] for k in ('layers', 'words', 'chars') if k in job}
    steps = a.layers_steps if job['kind'] == 'ablation' else a.steps
    learn = SHARED.learn(some, job['where'], job['seed'], steps, epochs=a.epochs, **own)
    res = dict(**job, sentences=len(some), score=learn.recorder.values[-1][2],
               seconds=round(time.perf_counter() - start, 1))
    if job['where']:
        res['shares'] = [[round(s, 4) for s in m.shares.tolist()] for m in learn.model.elmo.mixes]
    return res

def keys(a, shares):
    return [dict(side=side, share=share, seed=seed) for share in shares for seed in range(a.seeds)
            for side,_ in SIDES]

def add(a, kind, rows, keys, make, **about):
    "Adds rows to the file that has the others"
    def save():
        if a.quick: return
        found = dict(about, rows=rows) if about else rows
        write_figures(a.json, read_figures(a.json) | {kind: found})
    fill(rows, keys, make, save)

def add_best(a):
    """Trainings of 1, 2, 4, … times the steps, until half of `dev` no longer gains; the accuracy
    of the best on the other half"""
    taggers = Taggers(a)
    name = taggers.elmo.lm.config.name
    def make(side, share, seed, **_):
        start, steps, tried, best = time.perf_counter(), a.steps, [], None
        some = taggers.some(share, seed)
        while steps <= a.most:
            learn = taggers.learn(some, dict(SIDES)[side], seed, steps, taggers.dev[::2])
            gained = learn.recorder.values[-1][2]
            tried.append([steps, round(gained, 4)])
            if best and gained <= best[0]: break
            dl = learn.dls.test_dl(taggers.dev[1::2], with_labels=True)
            with learn.no_bar(): best = gained, learn.validate(dl=dl)[1], steps
            steps *= 2
        return dict(sentences=len(some), score=best[1], steps=best[2], tried=tried,
                    seconds=round(time.perf_counter() - start, 1))
    # those of another model are no use
    rows = [o for o in read_figures(a.json).get('best', []) if o['model'] == name]
    add(a, 'best', rows, [key | dict(model=name) for key in keys(a, a.best)], make)

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
    from elmo_fastai.text.read import Sentence
    sents = []
    for block in Path(path).read_text(encoding='utf-8').split('\n\n'):
        columns = [line.split('\t') for line in block.split('\n') if line[:1].isdigit()]
        rows = [(c[1], c[3], int(c[6])-1, c[7]) for c in columns if c[0].isdigit()]
        if rows: sents.append(Sentence([form for form,*_ in rows], noun_phrases(rows)))
    return sents

def add_spans(a):
    "The rows of --spans"
    folder = data_folder('ud-ewt')
    gold = {k: phrase_sentences(folder/f'en_ewt-ud-{part}.conllu')
            for k,part in dict(train='train', valid='dev').items()}
    taggers = Taggers(a, gold)
    dev = taggers.dev
    example = next(s for s in dev if 8 <= len(s.tokens) <= 14 and s.tags.count('I-NP') > 2)
    everywhere = [t for s in dev for t in s.tags]
    def make(side, share, seed):
        some = taggers.some(share, seed)
        learn = taggers.learn(some, dict(SIDES)[side], seed, a.steps, epochs=a.epochs)
        _, _, accuracy, f1 = learn.recorder.values[-1]
        return dict(sentences=len(some), score=accuracy, f1=f1)
    add(a, 'spans', [], keys(a, a.spans), make, example=[example.tokens, example.tags],
        tokens=len(everywhere), phrases=everywhere.count('B-NP'), inside=everywhere.count('I-NP'),
        model=taggers.elmo.lm.config.name)

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
    "The rows of --clues"
    from elmo_fastai.text.corpora import treebank
    from pages import page
    study, gold = page('studies/learning_curves'), treebank('UD_English-EWT').gold
    def make(side, share, seed):
        some = study.subset(gold['train'], share, seed)
        right = round(clues_right(some, gold['valid'], side), 4)
        return dict(sentences=len(some), score=right)
    keys = [dict(side=side, share=share, seed=seed) for share in a.clues for side in CLUES
            for seed in range(a.seeds if share < 1 else 1)]
    add(a, 'clues', read_figures(a.json).get('clues', []), keys, make)

# the toy language

RATE = .01     # better than .003 for each network that was tried on one more draw
RUNGS = {
    'commonest tag': None,
    'words and endings, regression': None,
    'LSTM on words': dict(where=None),
    'LSTM on words and letters': dict(where=None, chars=64),
    'ELMo, linear': dict(where='input', words=0, hidden=0),
    'ELMo at the input, LSTM on words': dict(where='input'),
    'ELMo at the output, LSTM on words': dict(where='output'),
    'ELMo at both, LSTM on words': dict(where='both'),
    'ELMo at the input, LSTM on words and letters': dict(where='input', chars=64)}

class ToyTaggers:
    "Sentences, the biLM and its layers"
    def __init__(self, a):
        import torch
        from elmo_fastai.text.corpora import toy_corpus
        from elmo_fastai.elmo import Elmo
        import elmo_fastai.practice.folder                         # `Elmo.from_pretrained`
        from elmo_fastai.tagger import LayerCache
        from pages import page
        torch.set_num_threads(1)
        gold = toy_corpus(n_train=325_000, n_valid=2000, n_test=1, n_unseen=1000).gold
        sents = {tuple(s.tokens) for s in gold['train']}           # what `mini-toy` has read
        self.words = {word for tokens in sents for word in tokens}
        self.test = [s for s in gold['valid'] if tuple(s.tokens) not in sents][:1000]
        self.unread, self.pool = gold['unseen'], gold['train'][:600*(a.draws + 1)]
        self.tags = sorted({t for s in self.test + self.unread + self.pool for t in s.tags})
        self.a, self.elmo, self.cache = a, Elmo.from_pretrained('mini-toy'), LayerCache(mb=6000)
        self.study, self.lesson = page('studies/learning_curves'), page('course/11_tagger')

    def guesser(self, rung, some, seed):
        "A function from sentences to tags"
        if rung == 'commonest tag':
            table = self.lesson.CommonestTag(some)
            return lambda sents: [table(s.tokens) for s in sents]
        if rung.startswith('words and endings'): return clues_guesser(some)
        # the validation part is small, since it chooses nothing
        learn = self.study.train_tagger(
            some, self.test[:1], self.elmo, epochs=1, lr=RATE, seed=seed, steps=self.a.steps,
            labels=self.tags, device='cpu', cache=self.cache, **dict(hidden=64) | RUNGS[rung])
        return lambda sents: [[t for _,t in o] for o in learn.tag([s.tokens for s in sents])]

    def row(self, sentences, draw, rung):
        "The shares of right tags of a tagger"
        start = time.perf_counter()
        tag = self.guesser(rung, self.pool[600*draw:600*draw + sentences], draw)
        right = [a == b for s,guess in zip(self.test, tag(self.test)) for a,b in zip(s.tags, guess)]
        unread = [a == b for s,guess in zip(self.unread, tag(self.unread))
                  for w,a,b in zip(s.tokens, s.tags, guess) if w not in self.words]
        return dict(rung=rung, sentences=sentences, draw=draw, tokens=[len(right), len(unread)],
                    score=round(sum(right)/len(right), 4), unread=round(sum(unread)/len(unread), 4),
                    seconds=round(time.perf_counter() - start, 1))

def clues_guesser(some, side='words and endings'):
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    model = make_pipeline(DictVectorizer(), LogisticRegression(C=10, max_iter=300))
    model.fit([row for s in some for row in clues(s, side)], [t for s in some for t in s.tags])
    return lambda sents: [model.predict(clues(s, side)).tolist() for s in sents]

def toy_row(job): return SHARED.row(*job)

def add_toy(a):
    "The rows of --toy"
    global SHARED
    if a.quick: a.toy, a.draws = [30], 1
    SHARED = ToyTaggers(a)
    rows, jobs = [], list(product(a.toy, range(a.draws), RUNGS))
    with get_context('fork').Pool(a.processes) as pool:
        for row in pool.imap_unordered(toy_row, jobs):
            rows.append(row)
            print(row, flush=True)
            rows.sort(key=lambda o: jobs.index((o['sentences'], o['draw'], o['rung'])))
            found = dict(model='mini-toy', steps=a.steps, rate=RATE, rows=rows)
            if not a.quick: write_figures(a.json, read_figures(a.json) | dict(toy=found))

def main(a):
    global SHARED
    for part,f in ((a.best, add_best), (a.spans, add_spans), (a.clues, add_clues), (a.toy, add_toy)):
        if part: return f(a)
    from elmo_fastai.tagger import TagDataLoaders
    from pages import page
    start = time.perf_counter()
    if a.quick: a.seeds, a.layers_share, a.steps, a.layers_steps = 1, SHARES[1], 120, 60
    SHARED = taggers = Taggers(a, mb=6000)
    todo, elmo, cache = jobs(a), taggers.elmo, taggers.cache
    # read every sentence once, before the processes part
    need = {id(s): s for j in todo for s in taggers.some(j['share'], j['seed'])}
    dls = TagDataLoaders.from_sents([*need.values()], taggers.dev, vocab=taggers.labels,
                                    device='cpu')
    weights = cache.open(elmo)
    for dl in dls:
        for x,*_ in dl: cache(elmo, x, weights)
    out = []
    with get_context('fork').Pool(a.processes) as pool:
        for r in pool.imap_unordered(work, todo):
            out.append(r)
            print(r, flush=True)
    out.sort(key=lambda o: (o['kind'], o['share'], o['seed'], o.get('side') == 'with ELMo',
                            str(o.get('layers', '')), o.get('place', '')))
    def of(kind):
        return [{k: v for k,v in o.items() if k != 'kind'} for o in out if o['kind'] == kind]
    commonest = page('course/11_tagger').CommonestTag(taggers.train).accuracy(taggers.dev)
    settings = {k: v for k,v in vars(a).items() if k not in ('json', 'model', 'processes')}
    old = read_figures(a.json, {})
    res = {'model': vars(elmo.lm.config), 'settings': settings, 'commonest tag': commonest,
           **{kind: of(kind) for kind in ('curve', 'ablation', 'places')},
           'minutes': round((time.perf_counter() - start)/60, 1),
           **{key: old[key] for key in ('best', 'spans', 'clues', 'toy') if key in old}}
    write_figures(a.json, res)
    print(f"commonest tag {commonest:.3f}; {res['minutes']} minutes; written to {a.json}")

if __name__ == '__main__': main(arguments())
