"""What the data rooms cost, in one run: speed against a plain loader, the share of a training step,
and memory while streaming.

    python tests/benchmarks/bench_batches.py                       # a minute or two
    python tests/benchmarks/bench_batches.py --json figures.json   # also into a file
    python tests/benchmarks/bench_batches.py --lines 500 --steps 2 # does it work?

speed   numericalising and batching, against a loader that handles every letter in Python; the
        arrays are compared, all of them
share   time to make a batch as a part of a training step with it: a model like ELMO_MEDIUM (512
        wide) on streams of 20 × 128 tokens,
        and the tiny model on sentences of the toy corpus
memory  documents read as a stream, for a text and one ten times as long, each in a process of its
        own: the
        most memory that the process itself held (RssAnon), and the most with the pages of files
        that the
        system keeps for it (RSS)
"""

import gzip, json, random, tempfile, threading, time
from itertools import accumulate
from pathlib import Path
from statistics import median
from harness import (
    data_folder, in_process, medians, opt, options, peak_bytes, seconds, turns, write_figures)


def arguments():
    return options(__doc__,
        lines=opt(10_000, 'sentences of the toy corpus for the speed'),
        steps=opt(20, 'training steps of either model'),
        docs=opt(1_000, 'documents to stream; and ten times as many'),
        reps=opt(5, 'turns of either loader'),
        json=opt(None, 'also write the figures to this file'),
        job=opt('all', hidden=True))

# Speed

def plain_batches(sents, vocab, bs):
    "Sentences of like length, every letter of every token handled in Python"
    import torch
    from elmo_fastai.text.tokens import BOS, EOS
    def row(t):
        ids = ([259, 257 if t is BOS else 258, 260] if t is BOS or t is EOS
               else [259] + [b + 1 for b in t.encode()][:48] + [260])
        return ids + [261]*(50-len(ids))
    order = sorted(range(len(sents)), key=lambda i: len(sents[i]))
    for i in range(0, len(order), bs):
        some = [[BOS, *sents[j], EOS] for j in order[i:i+bs]]
        T = max(map(len, some))
        x, f, b = [], [], []
        for s in some:
            ids, pad = [2, *vocab.encode(s[1:-1]), 3], [0]*(T-len(s))
            x.append([row(t) for t in s] + [[0]*50 for _ in pad])
            f.append(ids[1:] + [0] + pad); b.append([0] + ids[:-1] + pad)
        yield torch.tensor(x, dtype=torch.int16), torch.tensor(f), torch.tensor(b)

def our_batches(sents, vocab, bs):
    "From tokens to batches: the table of types is made anew each time"
    from elmo_fastai.data.encoded import EncodedText, TokenTypes
    from elmo_fastai.data.batches import SentenceDataLoader
    return SentenceDataLoader(EncodedText(sents, TokenTypes(vocab)), bs=bs)

def read_all(loader):
    for _ in loader: pass

def speed(args, bs=64):
    import torch
    from elmo_fastai.text.corpora import toy_corpus
    from elmo_fastai.text.tokens import WordVocab
    sents = [o.split() for o in toy_corpus(n_train=args.lines, n_valid=1, n_test=1,
                                           n_unseen=1).train]
    vocab, n = WordVocab.build(sents), sum(len(s)+2 for s in sents)
    a, b = [list(f(sents, vocab, bs)) for f in (plain_batches, our_batches)]
    assert len(a) == len(b) and all(torch.equal(p, q) and p.dtype == q.dtype for x,y in zip(a, b)
                                    for p,q in zip(x, y)), 'the arrays differ'
    def rate(make): return lambda rep: n/seconds(lambda: read_all(make(sents, vocab, bs)))
    rates = medians(turns(dict(plain=rate(plain_batches), ours=rate(our_batches)), args.reps))
    return dict(tokens=n, equal=True, tokens_per_second=rates, ratio=rates['ours']/rates['plain'],
                threads=torch.get_num_threads())

# The share of a training step

def lines_like_wikitext(n):
    from elmo_fastai.text.corpora import wikitext2
    folder = data_folder('wikitext-2')
    if folder: return 'WikiText-2', wikitext2(folder).train[:n]
    from train_step import zipf_lines
    return "random words by Zipf's law", zipf_lines(10_000)[:n]

def share_of(loader, config, n_words, steps):
    "Median milliseconds of making a batch and of a training step with it, in turns"
    import torch
    from elmo_fastai.nn.bilm import BiLM
    from elmo_fastai.train.learner import bf16_is_fast
    torch.manual_seed(42)
    model = BiLM(config, n_words).train()
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    batches, made, trained = iter(loader), [], []
    for _ in range(steps + 2):
        t0 = time.perf_counter()
        batch = next(batches, None)
        if batch is None: batches = iter(loader); batch = next(batches)
        t1 = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, enabled=bf16_is_fast('cpu')):
            loss = torch.cat(model(*batch)).mean()
        opt.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        opt.step()
        made.append(1000*(t1-t0)); trained.append(1000*(time.perf_counter()-t1))
    made, trained = [median(o[2:]) for o in (made, trained)]
    return dict(batch_ms=made, step_ms=trained, share=made/(made+trained),
                tokens_a_batch=int((batch[0][...,0] != 0).sum()))

def share(args):
    from elmo_fastai.data.encoded import EncodedText, TokenTypes
    from elmo_fastai.data.batches import SentenceDataLoader, StreamDataLoader
    from elmo_fastai.nn.bilm import BiLMConfig, ELMO_TINY
    from elmo_fastai.text.corpora import toy_corpus
    from elmo_fastai.text.tokens import WordVocab
    text, lines = lines_like_wikitext(4000)
    sents = [o.split() for o in lines]
    vocab = WordVocab.build(sents, max_vocab=10_000)
    config = BiLMConfig('benchmark', char_dim=16,
                        filters=((1,64), (2,128), (3,256), (4,256), (5,256), (6,256)), n_highway=2,
                        proj_dim=512,
                        hidden_dim=512, n_layers=2, dropout=0.2)
    medium = share_of(StreamDataLoader(EncodedText(sents, TokenTypes(vocab)), bs=20, seq_len=128),
                      config, len(vocab), args.steps)
    sents = [o.split() for o in toy_corpus(n_train=20_000, n_valid=1, n_test=1, n_unseen=1).train]
    vocab = WordVocab.build(sents)
    tiny = share_of(SentenceDataLoader(EncodedText(sents, TokenTypes(vocab)), bs=64, shuffle=True,
                                       seed=1), ELMO_TINY, len(vocab), 10*args.steps)
    return {f'512 wide, streams of 20 × 128 tokens of {text}': medium,
            'ELMO_TINY, sentences of the toy corpus, bs=64': tiny}


# Memory

class Peak(threading.Thread):
    "The most memory of this process, looked at a hundred times a second"
    def __init__(self):
        super().__init__(daemon=True)
        self.anon = self.before = self.now()
        self.start()
    def now(self):
        return next((int(o.split()[1])/1024 for o in open('/proc/self/status')
                     if o.startswith('RssAnon')), 0) if Path('/proc').is_dir() else 0
    def run(self):
        while True: self.anon = max(self.anon, self.now()); time.sleep(.01)

def write_documents(folder, n, words=20_000):
    "`n` documents of 15 lines in compressed files, words by Zipf's law"
    rng = random.Random(n)
    vocab = [''.join(rng.choices('etaoinshrdlu', k=rng.randint(2, 9))) for _ in range(words)]
    weights = list(accumulate(1/(r+2.7) for r in range(words)))
    for k in range(4):
        with gzip.open(folder/f'{k:05}.json.gz', 'wt', 1) as f:
            for _ in range(n//4):
                ws = rng.choices(vocab, cum_weights=weights, k=300)
                f.write(json.dumps(dict(text='\n'.join(' '.join(ws[i:i+20])
                                                       for i in range(0, 300, 20)))) + '\n')

def stream(args):
    "Documents in compressed files, counted and read in batches"
    import torch
    from elmo_fastai.data.streams import stream_loaders
    torch.set_num_threads(1)
    n = int(args.job)
    with tempfile.TemporaryDirectory() as d:
        write_documents(Path(d), n)
        peak, start = Peak(), time.perf_counter()
        dls = stream_loaders(d, n_valid=20, buffer=5000, max_vocab=10_000, kind='stream', bs=20,
                             seq_len=128, device='cpu')
        counted = time.perf_counter()
        tokens = sum(int((x[...,0] != 0).sum()) for x,*_ in dls.train)
        done = time.perf_counter()
    return dict(documents=n, tokens=tokens, before_mb=peak.before, peak_mb=peak.anon,
                peak_rss_mb=peak_bytes()/2**20,
                documents_per_second=n/(counted-start), tokens_per_second=tokens/(done-counted))

def main(args):
    r = dict(speed=in_process('speed'))
    s, rate = r['speed'], r['speed']['tokens_per_second']
    print(f"{s['tokens']:,} tokens, all arrays equal | plain {rate['plain']:,.0f} tokens/s | ours "
          f"{rate['ours']:,.0f} tokens/s | "
          f"{s['ratio']:.1f} times as fast (wanted: 5)", flush=True)
    r['share'] = in_process('share')
    for name,o in r['share'].items():
        print(f"{name}: a batch {o['batch_ms']:.2f} ms, a training step {o['step_ms']:.1f} ms: "
              f"{o['share']:.2%} (wanted: at most 2 %)", flush=True)
    r['memory'] = []
    for n in (args.docs, 10*args.docs):
        o = in_process(str(n))
        r['memory'].append(o)
        print(f"{o['documents']:,} documents, {o['tokens']:,} tokens counted and read in batches "
              f"as a stream: peak {o['peak_mb']:.0f} MB of its own "
              f"({o['before_mb']:.0f} MB before), {o['peak_rss_mb']:.0f} MB with mapped files; "
              f"{o['documents_per_second']:,.0f} documents/s counted, "
              f"{o['tokens_per_second']:,.0f} tokens/s", flush=True)
    one, ten = r['memory']
    r['memory_ratio'] = ten['peak_mb']/one['peak_mb'] if one['peak_mb'] else None
    if r['memory_ratio']: print(f"ten times the text: {r['memory_ratio']:.2f} times the memory")
    print(json.dumps(r))
    write_figures(args.json, r)

if __name__ == '__main__':
    args = arguments()
    if args.job == 'all': main(args)
    else: print(json.dumps({'speed': speed, 'share': share}.get(args.job, stream)(args)))
