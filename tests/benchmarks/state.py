"""What a biLM's state should be before a sentence: three ways of training, and of use, on real text
(study: Cold, warm, carried).

    python tests/benchmarks/state.py                       # 2 minutes of one core a training
    python tests/benchmarks/state.py --minutes .03 --tokens 2000 --json F      # does it work?

The ways are those of the page.
"""
from pathlib import Path
import numpy as np, torch
from fastai.torch_core import set_seed
from fastcore.script import call_parse
from harness import RESULTS, log, several, write_figures
from elmo_fastai.bilm import BiLM, BiLMConfig
from elmo_fastai.batches import EncodedText, TokenTypes
from elmo_fastai.text.corpora import CORPORA
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.tokens import WordVocab
from pages import page

STUDY = page('studies/state')
BINS = [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 10**9)]

def ppl(nats): return float(np.exp(np.nanmean(nats)))

def measure(corpus, minutes, tokens, w=128):
    tok = get_tokenizer(corpus.tokenizer)
    sents = {k: [t for l in corpus.splits[k] if (t := tok(l))] for k in ('train', 'valid')}
    n = np.searchsorted(np.cumsum([len(o)+2 for o in sents['valid']]), tokens)
    vocab = WordVocab.build(sents['train'], min_freq=2)
    train, valid = (EncodedText(o, TokenTypes(vocab))
                    for o in (sents['train'], sents['valid'][:max(50, n)]))
    config = BiLMConfig('state', char_dim=16, filters=((1, w//8), (2, w//4), (3, w//2), (4, w//2)),
                        proj_dim=w, hidden_dim=w, dropout=.1)
    position = np.arange(len(valid.ids)) - np.repeat(valid.offsets[:-1], valid.lens) + 1
    bins = [(a, b) for a,b in BINS if (position >= a).sum() > 500]
    res = dict(bins=[f'{a}' if a == b else f'{a}–{b}' if b < 10**9 else f'from {a}'
                     for a,b in bins], perplexity={}, by_position={})
    for how in STUDY.TRAININGS:
        set_seed(42)
        model = BiLM(config, len(vocab))
        STUDY.train_reading(model, train, how, 60*minutes, lr=6e-3)
        nats = {use: STUDY.use_reading(model, valid, use)[0] for use in STUDY.USES}
        res['perplexity'][how] = {use: ppl(o) for use,o in nats.items()}
        res['by_position'][how] = {use: [ppl(o[0, (position >= a) & (position <= b)])
                                         for a,b in bins] for use,o in nats.items()}
        log(how, res['perplexity'][how])
    return res

@call_parse
def main(
    corpora:several(str)=('tiny_shakespeare', 'wikitext2'), # to measure on
    minutes:float=2.,                                       # of one core for each training
    tokens:int=40_000,                                      # of the held-out text
    json:Path=RESULTS/'state.json'                          # file of the figures
):
    "Measure on all corpora and write the figures"
    torch.set_num_threads(1)
    found = {name: measure(CORPORA[name](), minutes, tokens) for name in corpora}
    write_figures(json, dict(corpora=found))
