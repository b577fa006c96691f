"""What to expect from N words: perplexity beside counting, by size, dropout and length of the
training.

    # RUNS that are not in nbs/results/small_text.json yet: about an hour of one core in all
    python tests/benchmarks/small_text.py
    python tests/benchmarks/small_text.py --runs 'novels 10,000:tiny/0.3/16' --seeds 0 --json F

A run is TEXT:MODEL/DROPOUT/EPOCHS, trained as `elmo_pretrain` trains by default (streams of 20 x 64
tokens, AdamW, one cycle, the weights
of the best epoch, words that occur once are <unk>), MODEL being tiny, small, or mini-en: the model
in the box with its words replaced by
the text's, as by `--from mini-en --min-freq 2`. All of a text's runs have the same held-out words.
Seconds are the processor's, so what else
the machine does counts little. Afterwards a linear probe reads parts of speech from the vectors:
logistic regression on the mean of the
layers, 100 tagged sentences to learn from, of the same language; its control is the commonest tag
of each word. Texts are read under
ELMO_FASTAI_DATA: novels/valid (two novels that the box has not read), ud-languages, ud-ewt,
wikitext-2.
"""
import time
from dataclasses import replace
from itertools import accumulate
import numpy as np, torch
from fastai.torch_core import set_seed
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from elmo_fastai.elmo.folder import find_folder, load_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.nn.bilm import elmo_configs, evaluate
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.text.corpora import local_copy, wikitext2
from elmo_fastai.text.read import Corpus, lines_of, read_conll
from elmo_fastai.text.tokens import get_tokenizer
from elmo_fastai.train.learner import EarlyStop, StopOnSignal, bilm_learner
from elmo_fastai.train.report import baselines, shares

from harness import RESULTS, has, opt, options, read_figures, write_figures
from made import quietly
from pages import page

LR = 4e-3
N_TAGGED = 100, 300         # sentences that the probe learns from, and that it is asked about
GRID = {                    # texts and how many of their words; what is tried on each
    'novels 10,000': 'tiny/0.3/16 small/0.5/16 mini-en/0.3/8',
    'Danish 18,000': 'tiny/0/8 tiny/0/16 tiny/0.3/16 small/0.3/8 small/0.5/16',
    'novels 100,000': 'tiny/0.3/4 small/0.3/4 small/0.3/8 mini-en/0.1/2',
    'Wikipedia 1,000,000': 'tiny/0/2 small/0.1/2'}
RUNS = [f'{text}:{setting}' for text,settings in GRID.items() for setting in settings.split()]

def last_words(sents, tokenizer, n):
    "The last sentences of a list, about `n` words"
    sizes = accumulate(len(tokenizer(sent)) for sent in reversed(sents))
    kept = sum(size <= n for size in sizes)
    return sents[len(sents) - kept:]

def cut(name, sents, n_words, tokenizer='words', n_held=8000):
    "A corpus of `n_words` words; the `n_held` words after them are held out"
    split = get_tokenizer(tokenizer)
    held = last_words(sents, split, n_held)
    return Corpus(name, dict(train=last_words(sents[:-len(held)], split, n_words), valid=held),
                  tokenizer)

def novels(name, n_words):
    library = page('library/books')
    sents = []
    for book in library.BOOKS:
        if not book.held: continue
        text = ''.join(lines_of(library.book_file(book, local_copy('novels'))))
        sents += library.book_sentences(text, book.start)
    return cut(name, sents, n_words)

def danish(name, n_words):
    sents = treebank('ud-languages/da_ddt-ud-dev', 'ud-languages/da_ddt-ud-test')
    return cut(name, [' '.join(sent.tokens) for sent in sents], n_words, 'space', 1900)

def wikipedia(name, n_words):
    corpus = wikitext2()
    split = get_tokenizer(corpus.tokenizer)
    train, valid = (last_words(list(sents), split, n)
                    for sents,n in ((corpus.train, n_words), (corpus.valid, 20_000)))
    return Corpus(name, dict(train=train, valid=valid), corpus.tokenizer)

TEXTS = {'novels 10,000': novels, 'Danish 18,000': danish, 'novels 100,000': novels,
         'Wikipedia 1,000,000': wikipedia}

def text(name): return TEXTS[name](name, int(name.split()[-1].replace(',', '')))

def treebank(*names):
    folder = local_copy('ud-ewt').parent
    return [sent for name in names for sent in read_conll(folder/f'{name}.conllu')]

def tagged(name):
    "Tagged sentences of the language of a text: to learn from, and to be asked about"
    sents = (treebank('ud-languages/da_ddt-ud-test') if name.startswith('Danish')
             else treebank('ud-ewt/en_ewt-ud-dev'))
    n, m = N_TAGGED
    return sents[:n], sents[-m:]

def tagging(elmo, name):
    "Accuracy of a linear probe for parts of speech on the mean of the layers"
    parts = tagged(name)
    x = [np.concatenate([v.mean(0) for v in elmo.embed([s.tokens for s in part], layers='all')])
         for part in parts]
    y = [[tag for s in part for tag in s.tags] for part in parts]
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=.01, max_iter=300)).fit(x[0], y[0])
    return round(probe.score(x[1], y[1]), 4)

def commonest_tags(name):
    "Accuracy of the commonest tag of each word, from the same sentences"
    train, asked = tagged(name)
    return round(page('library/tagger').CommonestTag(train).accuracy(asked), 4)

def run(corpus, model, dropout, epochs, seed):
    "Train one model as the command does; what was measured, and the model"
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, min_freq=2,
                                      seed=seed, device='cpu')
    if model in elmo_configs: config = replace(elmo_configs[model], dropout=dropout, bias=True)
    else:
        lm, _ = load_bilm(find_folder(model))
        config = replace(lm.config, dropout=dropout)
    learn = bilm_learner(dls, config, cbs=EarlyStop(None))
    learn.remove_cb(StopOnSignal)
    if model not in elmo_configs:
        learn.model.load_state_dict({k: w for k,w in lm.state_dict().items()
                                     if not k.startswith('head')}, strict=False)
    start = time.process_time()
    quietly(learn, 'fit_one_cycle', epochs, LR)
    seconds = time.process_time() - start
    found = evaluate(learn.model, dls.valid)
    losses = [round(float(row[1]), 4) for row in learn.recorder.values]
    return dict(perplexity=round(found['mean'], 2), best_epoch=learn.early_stop.best_epoch + 1,
                steps=len(learn.recorder.losses),
                tokens=learn.throughput.tokens, cpu_seconds=round(seconds, 1),
                valid_losses=losses), Elmo(learn.model, dls.vocab), dls

def arguments():
    return options(__doc__,
        runs=opt(RUNS, nargs='+'),
        seeds=opt([0, 1, 2], nargs='+'),
        json=RESULTS/'small_text.json')

def main():
    args = arguments()
    torch.set_num_threads(1)
    found = read_figures(args.json, dict(lr=LR, tagged=N_TAGGED, texts={}, runs=[]))
    corpora = {}
    for seed in args.seeds:
        for which in args.runs:
            if has(found['runs'], dict(run=which, seed=seed)): continue
            name, setting = which.split(':')
            corpus = corpora[name] = corpora.get(name) or text(name)
            model, dropout, epochs = setting.split('/')
            row, elmo, dls = run(corpus, model, float(dropout), int(epochs), seed)
            row['tagging'] = tagging(elmo, name)
            if name not in found['texts']:
                counting = {k: round(ppl, 2) for k,ppl in baselines(corpus, dls).items()}
                found['texts'][name] = dict(
                    counting, train=len(dls.train.text.ids), held_out=len(dls.valid.text.ids),
                    words=len(dls.vocab), unknown=round(shares(dls.valid.text)['unknown'], 4),
                    commonest_tags=commonest_tags(name))
            found['runs'].append(dict(run=which, seed=seed, **row))
            write_figures(args.json, found)
            print(found['runs'][-1], flush=True)

if __name__ == '__main__': main()
