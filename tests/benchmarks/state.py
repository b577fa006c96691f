"""What a biLM's state should be before a sentence: three ways of training, six of use, on real
text. Perplexities, vectors and senses.

    # all corpora, 2 minutes of processor time a training
    python tests/benchmarks/state.py
    python tests/benchmarks/state.py --corpus wikitext2 --minutes 5
    python tests/benchmarks/state.py --quick                           # does it work?

The ways are those of the page, `nbs/studies/state.ipynb`. Tiny Shakespeare and WikiText-2 are read
from ELMO_FASTAI_DATA or ../shared/data; what is
missing is left out, and said. Figures go to nbs/results/state.json, a corpus at a time: the same
command goes on after an interruption.
"""
import time
from harness import RESULTS, data_folder, kept, opt, options, write_figures

FOLDERS = dict(tiny_shakespeare='tiny_shakespeare', wikitext2='wikitext-2')
BINS = [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 10**9)]

def arguments():
    return options(__doc__,
        corpus=opt(None, 'one of toy, tiny_shakespeare, wikitext2 (default: all)'),
        minutes=opt(2., 'processor time of each training'),
        width=opt(128, 'of the model'),
        tokens=opt(40_000, 'of the held-out text'),
        threads=1,
        quick=opt(False, 'two seconds a training on the toy corpus, nothing is kept'),
        json=RESULTS/'state.json')

def get_text(name):
    "The corpus, or None where it is not here"
    from elmo_fastai.text.corpora import CORPORA, toy_corpus
    if name == 'toy': return toy_corpus(n_train=30_000, n_valid=2000, n_test=1, n_unseen=1)
    folder = data_folder(FOLDERS[name])
    if folder: return CORPORA[name](folder)

def measure(name, args):
    "All trainings and uses on one corpus"
    import numpy as np
    from fastai.torch_core import set_seed
    from elmo_fastai.bilm import BiLM, BiLMConfig
    from elmo_fastai.batches import EncodedText, TokenTypes
    from elmo_fastai.text.tokenizers import get_tokenizer
    from elmo_fastai.tokens import WordVocab
    from pages import page
    study = page('studies/state')
    corpus = get_text(name)
    if corpus is None: print(f'{name} is not here: left out'); return
    tok = get_tokenizer(corpus.tokenizer)
    sents = {k: [t for l in corpus.splits[k] if (t := tok(l))] for k in ('train', 'valid')}
    n = np.searchsorted(np.cumsum([len(o)+2 for o in sents['valid']]), args.tokens)
    vocab = WordVocab.build(sents['train'], min_freq=2)
    types = TokenTypes(vocab)
    train,valid = EncodedText(sents['train'], types),EncodedText(sents['valid'][:max(50, n)], types)
    w = args.width
    config = BiLMConfig('state', char_dim=16, filters=((1, w//8), (2, w//4), (3, w//2), (4, w//2)),
                        proj_dim=w, hidden_dim=w, dropout=.1)
    start = np.repeat(valid.offsets[:-1], valid.lens)
    position = np.arange(len(valid.ids)) - start + 1
    words = valid.ids > 2
    ppl = lambda o: float(np.exp(np.nanmean(o)))
    diff = lambda a,b: float((np.linalg.norm(a - b, axis=-1)/np.linalg.norm(b, axis=-1)).mean())
    bins = [(a, b) for a,b in BINS if (position >= a).sum() > 500]
    res = dict(words=len(vocab), tokens=len(valid.ids), sentence=float(valid.lens.mean() - 2),
               bins=[f'{a}' if a == b else f'{a}–{b}' if b < 10**9 else f'from {a}'
                     for a,b in bins],
               perplexity={}, directions={}, by_position={}, change={}, change_at={}, fed={},
               read={})
    for how in study.TRAININGS:
        set_seed(42)
        model = BiLM(config, len(vocab))
        res['read'][how] = study.train_reading(model, train, how, 2. if args.quick
                                               else 60*args.minutes, lr=6e-3)
        out = {}
        for u in study.USES:
            nats,vecs = study.use_reading(model, valid, u)
            out[u] = vecs[:, -1]
            res['perplexity'].setdefault(how, {})[u] = ppl(nats)
            res['directions'].setdefault(how, {})[u] = [ppl(o) for o in nats]
            res['by_position'].setdefault(how,
                                          {})[u] = [ppl(nats[0, (position >= a) & (position <= b)])
                                                    for a,b in bins]
            res['change'].setdefault(how, {})[u] = diff(out[u][words], out['cold'][words])
            res['change_at'].setdefault(how, {})[u] = [diff(out[u][m], out['cold'][m])
                for a, b in bins if (m := words & (position > a) & (position <= b + 1)).any()]
        again = study.use_reading(model, valid, 'shuffled', seed=1)[1][:, -1]
        res['change'][how]['twice'] = diff(again[words], out['shuffled'][words])
        nats,vecs = study.use_reading(model, valid, 'carried', fed=False)
        res['fed'][how] = dict(both=res['perplexity'][how]['carried'], as_original=ppl(nats),
                               change=diff(vecs[words, -1], out['carried'][words]))
        print(f"{name:18}trained {how:10}" + '  '.join(f'{u} {p:.1f}'
                                                       for u,p in res['perplexity'][how].items()) +
              f"  marks unread {res['fed'][how]['as_original']:.1f}  change twice "
              f"{res['change'][how]['twice']:.3f}", flush=True)
    return res

def main(args):
    import torch
    torch.set_num_threads(args.threads)
    file = None if args.quick else args.json
    found = dict(minutes=args.minutes, width=args.width, threads=args.threads, corpora={})
    found['corpora'] = kept(file, found, 'corpora')
    for name in [args.corpus] if args.corpus else ['toy'] if args.quick else ['toy', *FOLDERS]:
        if name in found['corpora']: continue
        start,r = time.time(),measure(name, args)
        if r is None: continue
        found['corpora'][name] = dict(r, seconds=time.time() - start)
        write_figures(file, found)

if __name__ == '__main__': main(arguments())
