"""Tagging with and without ELMo: learning curves, layers and places on UD-EWT (study: Learning
curves), and the rungs of lesson 11 on the toy language.

    python tests/benchmarks/tag.py curves    # and layers, places: half an hour of one core
    python tests/benchmarks/tag.py best      # each training as long as it gains
    python tests/benchmarks/tag.py spans     # noun phrases in BIO instead of tags
    python tests/benchmarks/tag.py toy       # the toy language, with `mini-toy`

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
from harness import RESULTS, log, read_figures, write_figures
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
SEEDS = range(SETTINGS['seeds'])

class Taggers:
    def __init__(self, gold=None):
        gold = gold or treebank('UD_English-EWT').gold
        self.elmo, self.cache = Elmo.from_pretrained('mini-en'), LayerCache(6000)
        self.train, self.dev = gold['train'], gold['valid']
        self.labels = STUDY.all_tags(self.train + self.dev)

    def learn(self, share, where, seed, steps=SETTINGS['steps'], epochs=SETTINGS['epochs'],
              dev=None, **kw):
        some = STUDY.subset(self.train, share, seed)
        return len(some), STUDY.train_tagger(
            some, dev or self.dev, self.elmo, where, epochs=epochs, seed=seed, steps=steps,
            labels=self.labels, device='cpu', cache=self.cache if where else False, **NETWORK | kw)

    def row(self, share, where, seed, **kw):
        n, learn = self.learn(share, where, seed, **kw)
        res = dict(seed=seed, sentences=n, score=learn.recorder.values[-1][2])
        if where: res['shares'] = [m.shares.tolist() for m in learn.model.elmo.mixes]
        log(kw, where, res)
        return res

    def best(self, share, where, seed):
        """Trainings of 1, 2, 4, … times the steps, until half of `dev` no longer gains; the
        accuracy of the best on the other half"""
        steps, best = SETTINGS['steps'], None
        while steps <= SETTINGS['most']:
            n, learn = self.learn(share, where, seed, steps, epochs=1, dev=self.dev[::2])
            gained = learn.recorder.values[-1][2]
            if best and gained <= best[0]: break
            dl = learn.dls.test_dl(self.dev[1::2], with_labels=True)
            with learn.no_bar(): best = gained, learn.validate(dl=dl)[1], steps
            steps *= 2
        return dict(seed=seed, sentences=n, score=best[1], steps=best[2])

def curve_rows():
    start, taggers, share = time.perf_counter(), Taggers(), SETTINGS['layers_share']
    alone = dict(steps=SETTINGS['layers_steps'], words=0, chars=0)
    return {
        'model': vars(taggers.elmo.lm.config), 'settings': SETTINGS,
        'commonest tag': LESSON.CommonestTag(taggers.train).accuracy(taggers.dev),
        'curve': [dict(side=side, share=share, where=where) | taggers.row(share, where, seed)
                  for share,seed,(side,where) in product(SHARES, SEEDS, SIDES.items())],
        'ablation': [dict(layers=o) | taggers.row(share, 'input', seed, layers=o, **alone)
                     for seed,o in product(SEEDS, LAYERS)],
        'places': [dict(place=o) | taggers.row(share, o, seed)
                   for seed,o in product(SEEDS, ('both', 'output'))],
        'minutes': round((time.perf_counter() - start)/60, 1)}

def best_rows():
    taggers = Taggers()
    return dict(best=[dict(side=side, share=share) | taggers.best(share, where, seed)
                      for share,seed,(side,where) in product((.01, .1), SEEDS, SIDES.items())])

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

def span_rows(share=.1):
    folder, rows = local_copy('UD_English-EWT'), []
    taggers = Taggers({k: phrase_sentences(folder/f'en_ewt-ud-{part}.conllu')
                       for k,part in dict(train='train', valid='dev').items()})
    for seed,(side,where) in product(SEEDS, SIDES.items()):
        _, learn = taggers.learn(share, where, seed)
        rows.append(dict(side=side, seed=seed, f1=learn.recorder.values[-1][3]))
    return dict(spans=dict(model='mini-en', rows=rows))

# the toy language

DRAWS, TOY_STEPS = 4, 250
RATE = .01         # better than .003 for each network that was tried on one more draw
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
    def __init__(self):
        gold = toy_corpus(n_train=325_000, n_valid=2000, n_test=1, n_unseen=1000).gold
        sents = {tuple(s.tokens) for s in gold['train']}           # what `mini-toy` has read
        self.words = {word for tokens in sents for word in tokens}
        self.test = [s for s in gold['valid'] if tuple(s.tokens) not in sents][:1000]
        self.unread, self.pool = gold['unseen'], gold['train'][:600*(DRAWS + 1)]
        self.tags = STUDY.all_tags(self.test + self.unread + self.pool)
        self.elmo, self.cache = Elmo.from_pretrained('mini-toy'), LayerCache(mb=6000)

    def guesser(self, rung, some, seed):
        if rung == 'commonest tag':
            table = LESSON.CommonestTag(some)
            return lambda sents: [table(s.tokens) for s in sents]
        if rung.startswith('words and endings'):
            model = make_pipeline(DictVectorizer(), LogisticRegression(C=10, max_iter=300))
            model.fit([row for s in some for row in clues(s)], [t for s in some for t in s.tags])
            return lambda sents: [model.predict(list(clues(s))).tolist() for s in sents]
        # the validation part is small, since it chooses nothing
        learn = STUDY.train_tagger(
            some, self.test[:1], self.elmo, epochs=1, lr=RATE, seed=seed, steps=TOY_STEPS,
            labels=self.tags, device='cpu', cache=self.cache, **dict(hidden=64) | RUNGS[rung])
        return lambda sents: [[t for _,t in o] for o in learn.tag([s.tokens for s in sents])]

    def row(self, draw, rung, sentences=100):
        tag = self.guesser(rung, self.pool[600*draw:600*draw + sentences], draw)
        right = [a == b for s,guess in zip(self.test, tag(self.test)) for a,b in zip(s.tags, guess)]
        unread = [a == b for s,guess in zip(self.unread, tag(self.unread))
                  for w,a,b in zip(s.tokens, s.tags, guess) if w not in self.words]
        return dict(rung=rung, draw=draw, score=round(sum(right)/len(right), 4),
                    unread=round(sum(unread)/len(unread), 4))

def toy_rows():
    taggers = ToyTaggers()
    rows = [taggers.row(draw, rung) for draw,rung in product(range(DRAWS), RUNGS)]
    return dict(toy=dict(model='mini-toy', steps=TOY_STEPS, rate=RATE, rows=rows))

PARTS = dict(curves=curve_rows, best=best_rows, spans=span_rows, toy=toy_rows)

@call_parse
def main(
    *parts:str,                  # curves, best, spans, toy (default: all)
    json:Path=RESULTS/'tag.json' # file of the figures
):
    "Measure parts and write their figures beside those of the others"
    torch.set_num_threads(1)
    for part in parts or PARTS:
        found = PARTS[part]()
        write_figures(json, read_figures(json, {}) | found)
