"""A small language from its text to a tagger, beside counts: nbs/library/small_language.ipynb.

    python tests/benchmarks/small_language.py              # twenty minutes of one core
    python tests/benchmarks/small_language.py --quick      # one seed, one size, a short text

The treebank's training sentences are the plain text: `elmo_pretrain` makes a model of it for each
seed. Then 100, 400 or all sentences have tags. A tagger with its own letters and one with the
model's vectors learn from them, and so do three rivals that need no network: each word's commonest
tag, the same with endings, and the linear model of scripts.py. A seed draws the sentences, too. The
epochs were chosen on the validation part, and the figures are those of the test part.
"""
import random, sys, tempfile, time
from contextlib import redirect_stdout
from pathlib import Path
from harness import RESULTS, opt, options, processor, read_figures, versions, write_figures
from pages import page
from scripts import accuracy, all_tags, rivals, sentences_of

TREEBANK = 'ug_udt'
EPOCHS = {100: 30, 400: 24, 1656: 6}        # by tagged sentences

def pretrained(text, seed, epochs):
    "The model of a text, its perplexity beside that of counting, and the seconds of the processor"
    from elmo_fastai.all import Elmo
    from elmo_fastai.practice.command import pretrain
    start = time.process_time()
    with tempfile.TemporaryDirectory() as tmp, redirect_stdout(sys.stderr):
        file = Path(tmp)/'uyghur.txt'
        file.write_text('\n'.join(text), encoding='utf-8')
        folder = pretrain(file, out=str(Path(tmp)/'model'), seed=seed, epochs=epochs)
        report = read_figures(Path(folder)/'report.json')
        elmo = Elmo.from_pretrained(folder).eval()
    seconds = time.process_time() - start
    return elmo, dict(report=report, seconds=round(seconds, 1))

def tagger(gold, seed, epochs, **settings):
    "Guesses of a tagger for the test part, and the seconds of the processor"
    from fastai.torch_core import set_seed
    from elmo_fastai.blocks import TagDataLoaders
    from elmo_fastai.tagger import elmo_tagger_learner
    set_seed(seed)
    start = time.process_time()
    dls = TagDataLoaders.from_sents(gold['train'], gold['valid'], vocab=all_tags(gold), bs=16,
                                    device='cpu', tokenizer='space')
    learn = elmo_tagger_learner(dls, **settings)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(epochs, 5e-3)
    seconds = time.process_time() - start
    tagged = learn.tag([sent.tokens for sent in gold['test']])
    return [tag for sent in tagged for _,tag in sent], round(seconds, 1)

def guesses_of(side, gold, elmo, seed, size):
    "Guesses for the test part, and the seconds of the processor"
    if side == 'letters': return tagger(gold, seed, EPOCHS[size], where=None, chars=16)
    if side == 'biLM': return tagger(gold, seed, EPOCHS[size], elmo=elmo)
    start = time.process_time()
    if side == 'endings':
        known = page('library/small_language').Endings(gold['train'])
        guesses = [tag for sent in gold['test'] for tag in known(sent.tokens)]
    else: guesses = rivals(gold)[side]
    return guesses, round(time.process_time() - start, 1)

SIDES = 'commonest', 'endings', 'linear', 'letters', 'biLM'

def main(args):
    import torch
    torch.set_num_threads(1)
    gold, _ = sentences_of(TREEBANK)
    text = page('library/small_language').plain_text('train')
    if args.quick: args.seeds, args.sizes, text, args.json = 1, [100], text[:400], None
    found = dict(treebank=TREEBANK, processor=processor(), models=[], rows=[], **versions('torch'))
    if args.json: found = read_figures(args.json, found)
    for seed in range(args.seeds):
        jobs = [(seed, size, side) for size in args.sizes for side in SIDES]
        jobs = [job for job in jobs if not any(
            job == (row['seed'], row['size'], row['side']) for row in found['rows'])]
        if not jobs: continue
        elmo, about = pretrained(text, seed, 1 if args.quick else None)
        if not any(model['seed'] == seed for model in found['models']):
            found['models'].append(dict(seed=seed, **about))
        for _,size,side in jobs:
            train = random.Random(seed).sample(gold['train'], min(size, len(gold['train'])))
            guesses, seconds = guesses_of(side, dict(gold, train=train), elmo, seed, size)
            all_words, new_words = accuracy(guesses, dict(gold, train=train))
            found['rows'].append(dict(seed=seed, size=size, side=side, accuracy=all_words,
                                      accuracy_new=new_words, seconds=seconds))
            print(found['rows'][-1], flush=True)
            write_figures(args.json, found)

if __name__ == '__main__':
    main(options(__doc__, seeds=opt(5, 'so many models'),
                 sizes=opt(list(EPOCHS), 'tagged sentences', nargs='+'), quick=False,
                 json=RESULTS/'small_language.json'))
