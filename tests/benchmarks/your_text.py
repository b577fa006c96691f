"""What three minutes do for texts of three lengths: the novel of lesson 14, Tiny Shakespeare and
WikiText-2, each with the smallest model. Time is a processor core's own.

    python tests/benchmarks/your_text.py                            # some ten minutes of one core
    python tests/benchmarks/your_text.py hound --minutes .1 --json F # does it work?

The lesson nbs/course/14_your_text.ipynb shows the figures of nbs/results/your_text.json.
"""
import json, tempfile, time
from pathlib import Path

from harness import RESULTS, ROOT, fill_file, in_process, opt, options, peak_gb

TEXTS = {'hound': ROOT/'nbs'/'data'/'hound.txt', 'tiny_shakespeare': 'tiny_shakespeare',
         'wikitext2': 'wikitext2'}
KEPT = ['perplexity_fwd', 'perplexity_bwd', 'trigram', 'trigram_bwd', 'steps', 'unknown']

def arguments():
    return options(__doc__, texts=opt([*TEXTS], positional=True, nargs='*'), minutes=3.,
                   json=RESULTS/'your_text.json', job=opt(hidden=True))

def train(text, minutes):
    "Pretrain on a text: figures"
    from elmo_fastai.practice.command import pretrain
    from elmo_fastai.practice.learners import TimeBudget
    from elmo_fastai.text.corpora import CORPORA, text_corpus
    TimeBudget.__init__.__defaults__ = time.process_time,   # what else the machine does is free
    corpus = CORPORA[text]() if text in CORPORA else text_corpus(TEXTS[text])
    words = sum(map(len, corpus.sentences('train')))
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        out = pretrain(TEXTS[text], out=Path(folder)/'model', model='tiny', kind='stream',
                       min_freq=2, time=f'{60*minutes}s', threads=1)
        report = json.loads((out/'report.json').read_text())
    cpu = round(time.process_time() - start)
    return dict(words=words, read=round(report['tokens_per_second']*report['seconds']),
                cpu_seconds=cpu, memory_gb=round(peak_gb(), 2)) | {
                    name: round(report[name], 3) for name in KEPT}

def main():
    args = arguments()
    if args.job: print('\n' + json.dumps(train(args.job, args.minutes)))
    else: fill_file(args.json, [dict(text=text, minutes=args.minutes) for text in args.texts],
                    lambda text,minutes: in_process(text))

if __name__ == '__main__': main()
