"""Heads on frozen layers of several small biLMs, one seed each (lesson 11).

    # figures go to nbs/results/pooling.json: some six minutes of one core; again: goes on
    python tests/benchmarks/pooling.py

The heads and their training are those of the lesson: accuracy on the validation reviews after
twelve epochs or forty. The first biLM is the lesson's, the others differ from it in their seed.
"""
import torch
from elmo_fastai.elmo import Elmo
from harness import RESULTS, fill_file, opt, options
from learners import toy_reviews
from mix import LESSON, bilm
from pages import page

HEADS = {'mean': 'Classifier1', 'attention': 'Classifier2', 'mean, hidden layer': 'Mean3',
         'attention, hidden layer': 'Classifier3', 'mean, all': 'Mean4',
         'attention, all': 'Classifier4', 'mean, all but the norm': 'OnlyProjection',
         'mean, all but the projection': 'OnlyNorm'}
EPOCHS = 12, 40

def main():
    args = options(__doc__, bilms=opt([LESSON, 1, 2], 'seeds', nargs='*', type=int),
                   json=RESULTS/'pooling.json')
    torch.set_num_threads(1)
    lesson, reviews = page('course/11_classifying'), toy_reviews()
    train, valid = ([(text.split(), label) for text,label in reviews[part]]
                    for part in ('train', 'valid'))
    for seed in args.bilms:
        task = lesson.prepare(Elmo(*bilm(seed)).eval(), train, valid)
        def make(head, epochs, **_):
            _, right = lesson.fit(getattr(lesson, HEADS[head]), task, epochs=epochs)
            return dict(reviews=len(valid), right=round(right, 4))
        keys = [dict(bilm=seed, head=head, epochs=n) for n in EPOCHS for head in HEADS]
        fill_file(args.json, keys, make)

if __name__ == '__main__': main()
