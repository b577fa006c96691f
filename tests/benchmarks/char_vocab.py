"""Bytes or an alphabet learned from the text? The same biLM with each, equal steps, the same seeds
(lesson 04).

    # three alphabets, three seeds: some three minutes of one core each
    python tests/benchmarks/char_vocab.py
    python tests/benchmarks/char_vocab.py --seeds 1 --rows "bytes,letters"
    # does it work? half a minute, on the toy corpus; nothing is kept
    python tests/benchmarks/char_vocab.py --quick

Each row: a biLM reads the first lines of WikiText-2 once, as a stream; perplexity is that of the
whole validation part. Then a linear classifier reads
parts of speech (UD English EWT) off each layer; once over all tokens of the dev part, once over
those whose form neither the biLM's text nor the
classifier's has. Rows are written as soon as they are there; the same command goes on after an
interruption. Both corpora are read from
ELMO_FASTAI_DATA or ../shared/data, or are downloaded.
"""
import json, platform, sys
from harness import RESULTS, fill, kept, opt, options, write_figures

FIGURES = RESULTS/'char_vocab.json'

# name → arguments of `CharVocab.build`; None: bytes
ROWS = {'bytes': None, 'letters': {}, 'pairs of letters': dict(n=2, max_symbols=4000)}
SHAPE = dict(filters=((1,32), (2,64), (3,96), (4,96)), proj_dim=128, hidden_dim=128, dropout=.1)

def arguments():
    return options(__doc__,
        seeds=3,
        rows=opt(None, f"names with commas between them (default: all): {', '.join(ROWS)}"),
        lines=opt(12_000, 'to train on'),
        tokens=opt(20_000, 'tagged tokens that the classifier learns from'),
        lr=6e-3,
        threads=1,
        quick=False,
        json=opt(FIGURES, 'file of the rows'))

def texts(args):
    "(corpus, tagged sentences to learn from, to be asked)"
    from elmo_fastai.text.read import Corpus
    from elmo_fastai.text.corpora import toy_corpus, treebank, wikitext2
    if args.quick:
        toy = toy_corpus(n_train=4000, n_valid=300, n_test=1, n_unseen=300)
        return toy, toy.gold['train'][:400], toy.gold['unseen']
    wiki, ewt = wikitext2(), treebank('UD_English-EWT')
    return Corpus(wiki.name, dict(train=wiki.train[:args.lines], valid=wiki.valid),
                  wiki.tokenizer), ewt.gold['train'], ewt.gold['valid']

def tags(elmo, train, dev, known, n_tokens, seed):
    """Accuracy of each layer over all tokens and over those with a form that is new, and the
    share of these"""
    import numpy as np
    from pages import page
    study = page('studies/probes')
    data = [(s.tokens, s.tags) for s in train]
    tr = study.collect(elmo, [data[i] for i in study.some_sentences(data, seed, 1., n_tokens)])
    dv = study.collect(elmo, dev)
    new = ~np.isin(dv.words.astype(str), [*known, *set(tr.words)])
    right = [study.probe(x, tr.labels).predict(q) == dv.labels
             for x,q in zip(tr.layers.values(), dv.layers.values())]
    return dict(tags=[o.mean() for o in right], tags_new=[o[new].mean() for o in right],
                new=new.mean(), tokens=len(dv))

def train_row(name, seed, args):
    from fastai.torch_core import set_seed
    from elmo_fastai.all import (BiLMConfig, ByteCharVocab, CharVocab, Elmo, ElmoDataLoaders,
                                 bilm_learner)
    from elmo_fastai.learner import evaluate
    corpus, train, dev = texts(args)
    sents = [o.split() for o in corpus.train]
    chars = ByteCharVocab() if ROWS[name] is None else CharVocab.build(sents, **ROWS[name])
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='stream', bs=20, seq_len=64, min_freq=2,
                                      char_vocab=chars, seed=seed, device='cpu')
    learn = bilm_learner(dls, BiLMConfig(name, **SHAPE), from_counts=False)
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(1, args.lr)
    elmo, known = Elmo(learn.model, dls.vocab).eval(), {w for s in sents for w in s}
    unknown = [ROWS[name] is not None and 0 in chars.split([w])[0] for s in dev for w in s.tokens]
    found = tags(elmo, train, dev, known, args.tokens, seed)
    return dict(n_chars=chars.n_chars,
                parameters=sum(o.numel() for o in learn.model.chars.parameters()),
                steps=len(learn.recorder.losses), words=len(dls.vocab),
                bf16=any(type(o).__name__ == 'BF16' for o in learn.cbs),
                unknown=sum(unknown)/len(unknown), **evaluate(learn.model, dls.valid),
                **{k: v if k == 'tokens' else json.loads(json.dumps(v, default=float))
                   for k,v in found.items()})

def main(args):
    names = args.rows.split(',') if args.rows else list(ROWS)
    if strange := [o for o in names if o not in ROWS]:
        sys.exit(f"There is no row {strange[0]!r}: take some of {', '.join(ROWS)}")
    import torch
    torch.set_num_threads(args.threads)
    found = dict(corpus='toy' if args.quick else 'wikitext2', lines=args.lines, lr=args.lr,
                 shape=SHAPE, tagged=args.tokens, rows=[])
    if not args.quick: found['rows'] = kept(args.json, found)
    found.update(torch=torch.__version__, machine=platform.machine(), threads=args.threads)
    keys = [dict(name=name, seed=seed) for seed in range(args.seeds) for name in names]
    fill(found['rows'], keys, lambda name, seed: train_row(name, seed, args),
         lambda: write_figures(None if args.quick else args.json, found))

if __name__ == '__main__': main(arguments())
