"""Heads on frozen layers of several small biLMs, one seed each (lesson 11).

    # figures go to nbs/results/pooling.json: some six minutes of one core; again: goes on
    python tests/benchmarks/pooling.py

The heads and their training are those of the lesson: accuracy on the validation reviews after
twelve epochs or forty. The first biLM is the lesson's, the others differ from it in their seed.
"""
import torch
from elmo_fastai.elmo.module import Elmo
from harness import RESULTS, opt, options, read_figures, write_figures
from mix import LESSON, bilm
from pages import page
from phases import labelled
from elmo_fastai.text.corpora import toy_corpus

HEADS = {'mean': 'Classifier1', 'attention': 'Classifier2', 'mean, hidden layer': 'Mean3',
         'attention, hidden layer': 'Classifier3', 'mean, all': 'Mean4',
         'attention, all': 'Classifier4', 'mean, all but the norm': 'OnlyProjection',
         'mean, all but the projection': 'OnlyNorm'}
EPOCHS = 12, 40

def main():
    args = options(__doc__, bilms=opt([LESSON, 1, 2], 'seeds', nargs='*', type=int),
                   json=RESULTS/'pooling.json')
    torch.set_num_threads(1)
    lesson, rows = page('course/11_classifying'), read_figures(args.json, [])
    reviews = labelled(toy_corpus(n_train=16000, n_valid=8000, n_test=8000).gold)
    train, valid = ([(text.split(), label) for text,label in reviews[part]]
                    for part in ('train', 'valid'))
    for seed in args.bilms:
        task = lesson.prepare(Elmo(*bilm(seed)).eval(), train, valid)
        for epochs in EPOCHS:
            for name,cls in HEADS.items():
                key = dict(bilm=seed, head=name, epochs=epochs)
                if any(key.items() <= row.items() for row in rows): continue
                _, right = lesson.fit(getattr(lesson, cls), task, epochs=epochs)
                rows.append(key | dict(reviews=len(valid), right=round(right, 4)))
                print(rows[-1], flush=True)
                write_figures(args.json, rows, lines=True)

if __name__ == '__main__': main()
