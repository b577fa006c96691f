"""Tagging with and without ELMo: learning curves, layers and places on UD-EWT (study: Learning
curves), and the rungs of lesson 11 on the toy language.

    python tests/benchmarks/tag.py                # curve, layers, places: half an hour of one core
    python tests/benchmarks/tag.py --best         # each training as long as it gains
    python tests/benchmarks/tag.py --spans        # noun phrases in BIO instead of tags
    python tests/benchmarks/tag.py --toy          # the toy language, with `mini-toy`
    python tests/benchmarks/tag.py --quick        # does it work? One seed, few steps

Both sides get the same sentences, seeds, steps and settings; the biLM is frozen. Base noun phrases
are a noun, a proper noun or a pronoun with what the treebank hangs on it beside it.
"""
import time
from itertools import product
from pathlib import Path
import torch
from fastcore.script import call_parse
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from harness import RESULTS, fill, read_figures, write_figures
from elmo_fastai.all import Elmo
from elmo_fastai.tagger import LayerCache
from elmo_fastai.text.corpora import local_copy, toy_corpus, treebank
from elmo_fastai.text.read import Sentence
from pages import page

STUDY, LESSON = page('studies/learning_curves'), page('course/11_tagger')
SHARES = [.01, .03, .1, .3, 1.]
LAYERS = [0, 'equal', 'first', 'last', 'learned']
SIDES = {'without ELMo': None, 'with ELMo': 'input'}
NETWORK = dict(lr=8e-3, words=64, chars=64, hidden=96, dropout=.3, elmo_dropout=.3)
SETTINGS = dict(NETWORK, seeds=3, epochs=4, steps=450, layers_steps=200, layers_share=.1, most=3600)

class Taggers:
    def __init__(self, settings, gold, quick=False):
        self.s, self.elmo, self.cache = settings, Elmo.from_pretrained('mini-en'), LayerCache(6000)
        self.train, self.dev = gold['train'], gold['valid'][::10 if quick else 1]
        self.labels = sorted({t for s in self.train + self.dev for t in s.tags})

    def learn(self, share, where, seed, steps, epochs=1, dev=None, **kw):
        some = STUDY.subset(self.train, share, seed)
        return len(some), STUDY.train_tagger(
            some, dev or self.dev, self.elmo, where, epochs=epochs, seed=seed, steps=steps,
            labels=self.labels, device='cpu', cache=self.cache if where else False, **NETWORK | kw)

    def row(self, share, where, seed, steps, **kw):
        start = time.perf_counter()
        n, learn = self.learn(share, where, seed, steps, self.s['epochs'], **kw)
        res = dict(sentences=n, score=learn.recorder.values[-1][2],
                   seconds=round(time.perf_counter() - start, 1))
        if where: res['shares'] = [m.shares.tolist() for m in learn.model.elmo.mixes]
        return res

    def best(self, share, where, seed):
        """Trainings of 1, 2, 4, … times the steps, until half of `dev` no longer gains; the
        accuracy of the best on the other half"""
        steps, best = self.s['steps'], None
        while steps <= self.s['most']:
            n, learn = self.learn(share, where, seed, steps, dev=self.dev[::2])
            gained = learn.recorder.values[-1][2]
            if best and gained <= best[0]: break
            dl = learn.dls.test_dl(self.dev[1::2], with_labels=True)
            with learn.no_bar(): best = gained, learn.validate(dl=dl)[1], steps
            steps *= 2
        return dict(sentences=n, score=best[1], steps=best[2])

    def curves(self, shares):
        s, share, found = self.s, self.s['layers_share'], dict(curve=[], ablation=[], places=[])
        seeds = range(s['seeds'])
        fill(found['curve'], [dict(side=side, share=share, seed=seed, where=SIDES[side])
                              for share in shares for seed in seeds for side in SIDES],
             lambda share, seed, where, **_: self.row(share, where, seed, s['steps']))
        fill(found['ablation'], [dict(layers=o, seed=seed) for seed in seeds for o in LAYERS],
             lambda seed, layers: self.row(share, 'input', seed, s['layers_steps'], layers=layers,
                                           words=0, chars=0))
        fill(found['places'],
             [dict(place=o, seed=seed) for seed in seeds for o in ('both', 'output')],
             lambda seed, place: self.row(share, place, seed, s['steps']))
        return found

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
    tags = ['O']*len(rows)
    for h,(_,upos,_,rel) in enumerate(rows):
        if upos not in ('NOUN', 'PROPN', 'PRON') or rel in INSIDE: continue
        first, last = phrase_of(h, rows)
        tags[first:last+1] = ['B-NP'] + ['I-NP']*(last - first)
    return tags

def phrase_sentences(path):
    sents = []
    for block in path.read_text(encoding='utf-8').split('\n\n'):
        columns = [line.split('\t') for line in block.split('\n') if line[:1].isdigit()]
        rows = [(c[1], c[3], int(c[6])-1, c[7]) for c in columns if c[0].isdigit()]
        if rows: sents.append(Sentence([form for form,*_ in rows], noun_phrases(rows)))
    return sents

def span_rows(settings, share=.1):
    folder = local_copy('UD_English-EWT')
    gold = {k: phrase_sentences(folder/f'en_ewt-ud-{part}.conllu')
            for k,part in dict(train='train', valid='dev').items()}
    taggers, rows = Taggers(settings, gold), []
    for seed,side in product(range(settings['seeds']), SIDES):
        n, learn = taggers.learn(share, SIDES[side], seed, settings['steps'], settings['epochs'])
        _, _, accuracy, f1 = learn.recorder.values[-1]
        rows.append(dict(side=side, share=share, seed=seed, sentences=n, score=accuracy, f1=f1))
    return rows

# the toy language

RATE, TOY_STEPS = .01, 250     # better than .003 for each network that was tried on one more draw
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

def clues(sent):
    padded = ['<s>', *sent.tokens, '</s>']
    for t in range(len(sent.tokens)):
        window = list(enumerate(padded[t:t+3]))
        yield {f'word {k}': w for k,w in window} | {f'last {n} of {k}': w[-n:]
                                                    for n in (1, 2, 3) for k,w in window}

class ToyTaggers:
    def __init__(self, draws=4):
        gold = toy_corpus(n_train=325_000, n_valid=2000, n_test=1, n_unseen=1000).gold
        sents = {tuple(s.tokens) for s in gold['train']}           # what `mini-toy` has read
        self.words = {word for tokens in sents for word in tokens}
        self.test = [s for s in gold['valid'] if tuple(s.tokens) not in sents][:1000]
        self.unread, self.pool = gold['unseen'], gold['train'][:600*(draws + 1)]
        self.tags = sorted({t for s in self.test + self.unread + self.pool for t in s.tags})
        self.elmo, self.cache = Elmo.from_pretrained('mini-toy'), LayerCache(mb=6000)

    def guesser(self, rung, some, seed, steps):
        if rung == 'commonest tag':
            table = LESSON.CommonestTag(some)
            return lambda sents: [table(s.tokens) for s in sents]
        if rung.startswith('words and endings'):
            model = make_pipeline(DictVectorizer(), LogisticRegression(C=10, max_iter=300))
            model.fit([row for s in some for row in clues(s)], [t for s in some for t in s.tags])
            return lambda sents: [model.predict(list(clues(s))).tolist() for s in sents]
        # the validation part is small, since it chooses nothing
        learn = STUDY.train_tagger(
            some, self.test[:1], self.elmo, epochs=1, lr=RATE, seed=seed, steps=steps,
            labels=self.tags, device='cpu', cache=self.cache, **dict(hidden=64) | RUNGS[rung])
        return lambda sents: [[t for _,t in o] for o in learn.tag([s.tokens for s in sents])]

    def row(self, draw, rung, sentences, steps=TOY_STEPS):
        tag = self.guesser(rung, self.pool[600*draw:600*draw + sentences], draw, steps)
        right = [a == b for s,guess in zip(self.test, tag(self.test)) for a,b in zip(s.tags, guess)]
        unread = [a == b for s,guess in zip(self.unread, tag(self.unread))
                  for w,a,b in zip(s.tokens, s.tags, guess) if w not in self.words]
        return dict(tokens=[len(right), len(unread)], score=round(sum(right)/len(right), 4),
                    unread=round(sum(unread)/len(unread), 4))

def toy_rows(draws, steps, rows):
    taggers = ToyTaggers()
    keys = [dict(sentences=100, draw=draw, rung=rung) for draw in range(draws) for rung in RUNGS]
    fill(rows, keys, lambda **key: taggers.row(steps=steps, **key))

@call_parse
def main(
    best:bool=False,             # train as long as it gains, on a hundredth and a tenth
    spans:bool=False,            # learn noun phrases from a tenth
    toy:bool=False,              # lesson 11's rungs
    quick:bool=False,            # one seed, few steps, a tenth of the development part
    json:Path=RESULTS/'tag.json' # file of the figures
):
    "Measure one part and write its figures beside those of the others"
    torch.set_num_threads(1)
    start, found, settings = time.perf_counter(), {}, SETTINGS
    if quick:
        settings = settings | dict(seeds=1, steps=60, layers_steps=30, layers_share=.03, most=120)
    if spans: found['spans'] = dict(model='mini-en', rows=span_rows(settings))
    elif toy:
        found['toy'] = dict(model='mini-toy', steps=TOY_STEPS, rate=RATE, rows=[])
        toy_rows(1 if quick else 4, 60 if quick else TOY_STEPS, found['toy']['rows'])
    else:
        taggers = Taggers(settings, treebank('UD_English-EWT').gold, quick)
        if best:
            keys = [dict(side=side, share=share, seed=seed) for share in (.01, .1)
                    for seed in range(settings['seeds']) for side in SIDES]
            found['best'] = []
            fill(found['best'], keys, lambda side, **kw: taggers.best(where=SIDES[side], **kw))
        else:
            commonest = LESSON.CommonestTag(taggers.train).accuracy(taggers.dev)
            found = {'model': vars(taggers.elmo.lm.config), 'settings': settings,
                     'commonest tag': commonest, **taggers.curves(SHARES[:2] if quick else SHARES),
                     'minutes': round((time.perf_counter() - start)/60, 1)}
    if not quick: write_figures(json, read_figures(json, {}) | found)
