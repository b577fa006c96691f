"""One recipe in ten languages and nine scripts: a small biLM of each treebank's own text, a tagger
with it and without it (study: One recipe, many scripts).

    python tests/benchmarks/scripts.py               # some fifteen minutes of one core
    python tests/benchmarks/scripts.py --longer      # a check: twice the steps, on three treebanks
    python tests/benchmarks/scripts.py --treebanks fi_tdt ar_padt --json mine.json

Each row is one treebank, one alphabet (bytes, or the letters of the training text), one `max_chars`
and one seed. Accuracy is that on the test part. Two rivals: the commonest tag of each word, and a
linear model on the word, its beginnings and ends, and its neighbours.
"""
import os, random
from pathlib import Path
import torch
from fastai.callback.schedule import ParamScheduler, combined_cos
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from harness import RESULTS, fill, read_figures, several, write_figures
from elmo_fastai.all import (
    BiLMConfig, ByteCharVocab, CharVocab, Elmo, ElmoDataLoaders, bilm_learner)
from elmo_fastai.learner import evaluate
from elmo_fastai.practice.learners import TimeBudget
from elmo_fastai.tagger import TagDataLoaders, elmo_tagger_learner
from elmo_fastai.text.corpora import treebank
from elmo_fastai.text.read import Corpus, last_part, read_conll
from learners import NoValidation
from made import quietly
from pages import page

TREEBANKS = ('en_ewt', 'da_ddt', 'vi_vtb', 'el_gud', 'hy_armtdp', 'ug_udt', 'ko_gsd', 'te_mtg',
             'th_tud', 'zh_gsdsimp')
LONGER = 'en_ewt', 'te_mtg', 'zh_gsdsimp'
SETTINGS = [('bytes', 50), ('letters', 50), ('bytes', 16), ('bytes', 25)]
# a `max_chars` that cuts fewer words of the test part is not tried
LEAST_CUT = {16: .05, 25: .02, 50: 0}
SHAPE = dict(char_dim=16, filters=((1,16), (2,32), (3,48)), proj_dim=64, hidden_dim=64, dropout=.1)
TAGGER = dict(words=32, hidden=48, dropout=.1, elmo_dropout=.1)
RATE = 2e-2
MOST = dict(train=10_000, valid=2_000, test=6_000)     # words

def some(sents, most, seed=0):
    "Sentences in their order, drawn at random, of `most` words together; all if there are fewer"
    order = list(range(len(sents)))
    random.Random(seed).shuffle(order)
    chosen, n = [], 0
    for i in order:
        n += len(sents[i].tokens)
        if n > most: break
        chosen.append(i)
    return [sents[i] for i in sorted(chosen)]

def load(name):
    """Some of the sentences of a treebank by split, and a remark where the one part it has was
    divided"""
    gold, remark = {}, None
    for split,part in dict(train='train', valid='dev', test='test').items():
        folder = Path(os.environ.get('ELMO_FASTAI_DATA', '.'))
        for file in folder.glob(f'ud-*/{name}-ud-{part}.conllu'): gold[split] = read_conll(file)
    if not gold: gold = treebank(name).gold
    if not {'train', 'valid'} <= gold.keys():
        there, missing = ('train', 'dev') if 'train' in gold else ('valid', 'train')
        parts = last_part(gold[there], valid=.1)
        gold = gold | parts
        remark = (f"The treebank {name} has no part {missing}: of its part "
                  f"{'dev' if there == 'valid' else there} the first {len(parts['train']):,} "
                  f"sentences train, and the last {len(parts['valid']):,} validate")
    return {split: some(gold[split], most) for split,most in MOST.items()}, remark

def facts(name, gold, remark):
    train, test = ([token for sent in gold[k] for token in sent.tokens] for k in ('train', 'test'))
    known = set(train)
    def share(found): return sum(found)/len(test)
    res = dict(treebank=name, remark=remark, words=len(train), letters=len(set(''.join(train))),
               letters_per_word=sum(map(len, test))/len(test),
               bytes_per_word=sum(len(token.encode()) for token in test)/len(test),
               new=share(token not in known for token in test))
    for most in (16, 25, 50):
        res[f'cut_bytes_{most}'] = share(len(token.encode()) > most-2 for token in test)
        res[f'cut_letters_{most}'] = share(len(token) > most-2 for token in test)
    return res

# the rivals

def features(tokens, i):
    word = tokens[i]
    found = {f'word={word}', f'length={min(len(word), 10)}', f'digit={any(map(str.isdigit, word))}',
             f'upper={word[:1].isupper()}', f'sign={not any(map(str.isalnum, word))}'}
    for n in range(1, 5): found |= {f'begins={word[:n]}', f'ends={word[-n:]}'}
    for step in (-2, -1, 1, 2):
        other = tokens[i+step] if 0 <= i+step < len(tokens) else '<end>'
        found.add(f'{step}={other}')
        if abs(step) == 1: found |= {f'{step} begins={other[:2]}', f'{step} ends={other[-2:]}'}
    return found

def rows_of(sents):
    return [features(sent.tokens, i) for sent in sents for i in range(len(sent.tokens))]
def tags_of(sents): return [tag for sent in sents for tag in sent.tags]

def rivals(gold):
    commonest = page('course/11_tagger').CommonestTag(gold['train'])
    linear = make_pipeline(CountVectorizer(analyzer=set), LinearSVC(C=.3, random_state=0))
    linear.fit(rows_of(gold['train']), tags_of(gold['train']))
    guesses = [tag for sent in gold['test'] for tag in commonest(sent.tokens)]
    asked = tags_of(gold['test'])
    return dict(commonest=accuracy_score(asked, guesses),
                linear=accuracy_score(asked, linear.predict(rows_of(gold['test']))))

# the models

def fit(learn, steps):
    "One cycle by steps, which may end within an epoch"
    rate = ParamScheduler(dict(lr=combined_cos(.25, RATE/25, RATE, RATE/1e5)))
    budget = TimeBudget(steps, clock=lambda: learn.train_iter)
    quietly(learn, 'fit', 999, RATE, cbs=[rate, budget, NoValidation()])

def pretrain(gold, chars, seed, steps):
    corpus = Corpus.from_gold('text', dict(train=gold['train'], valid=gold['valid']))
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, min_freq=2, char_vocab=chars,
                                      seed=seed, device='cpu')
    learn = bilm_learner(dls, BiLMConfig('small', n_chars=chars.n_chars, max_chars=chars.max_chars,
                                         **SHAPE), bf16=False)
    fit(learn, steps)
    return Elmo(learn.model, dls.vocab).eval(), evaluate(learn.model, dls.valid)['mean']

def train_row(gold, chars, max_chars, seed, steps):
    "A row of figures; `chars` is 'bytes', 'letters', or 'none' for the tagger without a biLM"
    alphabet, elmo, row = ByteCharVocab(max_chars), None, {}
    if chars == 'letters':
        alphabet = CharVocab.build([sent.tokens for sent in gold['train']], max_chars=max_chars)
    if chars != 'none':
        elmo, row['perplexity'] = pretrain(gold, alphabet, seed, steps)
        row['n_chars'] = alphabet.n_chars
    set_seed(seed)
    # all tags of the treebank: a part may lack one
    tags = sorted({tag for part in gold.values() for sent in part for tag in sent.tags})
    dls = TagDataLoaders.from_sents(gold['train'], gold['valid'], vocab=tags, bs=16,
                                    char_vocab=alphabet, tokenizer='space', device='cpu')
    learn = elmo_tagger_learner(dls, elmo, 'input' if elmo else None, **TAGGER)
    fit(learn, 2*steps)
    tagged = learn.tag([sent.tokens for sent in gold['test']])
    guesses = [tag for sent in tagged for _,tag in sent]
    return row | dict(accuracy=accuracy_score(tags_of(gold['test']), guesses))

@call_parse
def main(
    treebanks:several(str)=TREEBANKS,    # names of their files
    seeds:int=3,                         # of each setting
    steps:int=100,                       # batches of a biLM; of a tagger twice as many
    longer:bool=False,                   # three treebanks without a biLM, twice the steps
    json:Path=RESULTS/'scripts.json'     # file of the rows
):
    "Add the rows that the file lacks"
    torch.set_num_threads(1)
    found = read_figures(json, dict(treebanks=[], rows=[], longer=[]))
    def save(): write_figures(json, found)
    golds, tried = {}, []
    for name in LONGER if longer else treebanks:
        golds[name], remark = load(name)
        if not any(row['treebank'] == name for row in found['treebanks']):
            found['treebanks'].append(facts(name, golds[name], remark) | rivals(golds[name]))
    for about in found['treebanks']:
        name = about['treebank']
        if name not in golds: continue
        tried.append((name, 'none', 50))
        if not longer: tried += [(name, *o) for o in SETTINGS
                                 if about['cut_{}_{}'.format(*o)] >= LEAST_CUT[o[1]]]
    keys = [dict(zip(('treebank', 'chars', 'max_chars', 'seed'), (*o, seed)))
            for o in tried for seed in range(seeds)]
    def make(treebank, **key): return train_row(golds[treebank], **key, steps=steps*(1 + longer))
    fill(found['longer' if longer else 'rows'], keys, make, save)
    save()
