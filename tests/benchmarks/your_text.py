"""What three minutes do for texts of three lengths: the novel of lesson 14, Tiny Shakespeare and
WikiText-2, each with the smallest model. Time is a processor core's own (lesson 14).

    python tests/benchmarks/your_text.py                              # some ten minutes of one core
    python tests/benchmarks/your_text.py hound --minutes .1 --json F  # does it work?
"""
import json, tempfile, time
from pathlib import Path
from fastcore.script import call_parse
from harness import RESULTS, ROOT, fill, in_process, peak_gb, read_figures, write_figures

TEXTS = {'hound': ROOT/'nbs'/'data'/'hound.txt', 'tiny_shakespeare': 'tiny_shakespeare',
         'wikitext2': 'wikitext2'}
KEPT = ['perplexity_fwd', 'perplexity_bwd', 'trigram', 'trigram_bwd']

def train(text, minutes):
    from elmo_fastai.practice.command import pretrain
    from elmo_fastai.practice.learners import TimeBudget
    from elmo_fastai.text.corpora import CORPORA, text_corpus
    TimeBudget.__init__.__defaults__ = time.process_time,   # what else the machine does is free
    corpus = CORPORA[text]() if text in CORPORA else text_corpus(TEXTS[text])
    words = sum(map(len, corpus.sentences('train')))
    with tempfile.TemporaryDirectory() as folder:
        out = pretrain(TEXTS[text], out=Path(folder)/'model', model='tiny', kind='stream',
                       min_freq=2, time=f'{60*minutes}s', threads=1)
        report = json.loads((out/'report.json').read_text())
    return dict(words=words, read=round(report['tokens_per_second']*report['seconds']),
                memory_gb=round(peak_gb(), 2)) | {name: round(report[name], 3) for name in KEPT}

@call_parse
def main(
    *texts:str,                         # some of hound, tiny_shakespeare, wikitext2 (default: all)
    minutes:float=3.,                   # of each training
    json:Path=RESULTS/'your_text.json'  # file of the rows
):
    "Add the rows that the file lacks, each from a process of its own"
    rows = read_figures(json, [])
    keys = [dict(text=text, minutes=minutes) for text in texts or TEXTS]
    fill(rows, keys, lambda **key: in_process(train, *key.values()),
         lambda: write_figures(json, rows))
