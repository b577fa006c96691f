"""A training step of the library against the plain design of the same sizes, in one run: tokens a
second, and peak memory.

    python tests/benchmarks/train_step.py                  # 10,000 words, a few minutes
    python tests/benchmarks/train_step.py --vocab 100000   # the plain side needs about 6 GB
    python tests/benchmarks/train_step.py --reps 1 --steps 1 --no-memory   # does it work?

plain         the letters of every token convolved, at all 50 columns; a full softmax in each
              direction; fp32
library fp32  equal tokens encoded once, columns of padding cut off; one adaptive softmax for both
              directions
library bf16  the same in bfloat16, where the processor is fast at it: what `bilm_learner` does by
              itself

The sides take turns on the same batches, and medians are compared. The text is WikiText-2 from
ELMO_FASTAI_DATA or ../shared/data, with novels where --vocab is larger than its vocabulary; words
that are still missing are made up and never occur. Without these files: random words with
frequencies by Zipf's law.
"""
import json, random, tempfile
from functools import partial
from itertools import islice
from statistics import median
from harness import (Worker, answer, data_folder, in_process, medians, opt, options, peak_gb,
                     seconds, turns, write_figures)

# torch is imported where it is needed: the process that starts the others stays small
SIDES = ['plain', 'library fp32', 'library bf16']
BS, SEQ_LEN = 20, 128

def arguments():
    return options(__doc__,
        vocab=opt(10_000, 'words in the output layer'),
        reps=opt(7, 'turns of each side'),
        steps=opt(2, 'training steps a turn'),
        warmup=opt(1, 'steps of each side before the first turn'),
        threads=opt(None, "processor threads (default: torch's choice)", type=int),
        no_memory=opt(False, 'leave out the peak memory, which takes a process a side'),
        json=opt(None, 'also write the figures to this file'),
        job=opt('all', hidden=True),
        batches=opt(hidden=True))

# The text

def made_up(n, seed=42):
    "`n` different words"
    rng, words = random.Random(seed), {}
    while len(words) < n:
        words[''.join(rng.choices('etaoinshrdlucmfwypvbgkqjxz', range(26, 0, -1),
                                  k=rng.randint(2, 11)))] = 0
    return list(words)

def zipf_lines(n_words, n_tokens=600_000, seed=42):
    "Random words in lines of 25, the word of rank r with a frequency of 1/(r + 2.7)**1.1"
    tokens = random.Random(seed).choices(made_up(n_words),
                                         [1/(r + 3.7)**1.1 for r in range(n_words)], k=n_tokens)
    return [' '.join(o) for o in zip(*[iter(tokens)]*25)]

def load_lines(n_words):
    "(name, lines) of a text: real text if it is here"
    from elmo_fastai.text.corpora import wikitext2
    from elmo_fastai.text.tokenizers import word_tokenize
    folder = data_folder('wikitext-2')
    if not folder: return "random words by Zipf's law", zipf_lines(n_words)
    lines = wikitext2(folder).train
    if n_words <= 33_000: return 'WikiText-2', lines[:8000]
    novels = sorted(folder.with_name('novels').glob('*.txt'))
    texts = [file.read_text(encoding='utf-8-sig').splitlines() for file in novels]
    lines = lines + [' '.join(word_tokenize(l)) for text in texts for l in text if l.strip()]
    random.Random(42).shuffle(lines)
    return f'WikiText-2 and {len(novels)} novels', lines

def make_batches(args):
    """Write the batches: the processes that are measured should not hold a corpus. Returns the
    name of the text"""
    import numpy as np
    from elmo_fastai.tokens import ByteCharVocab, WordVocab
    from elmo_fastai.batches import EncodedText, StreamDataLoader, TokenTypes
    name, lines = load_lines(args.vocab)
    sents = [l.split() for l in lines]
    known = WordVocab.build(sents, max_vocab=args.vocab)
    vocab = WordVocab(known.itos + [w for w in made_up(args.vocab)
                                    if w not in known.o2i][:args.vocab - len(known)])
    text = EncodedText(sents[:8000], TokenTypes(vocab, ByteCharVocab()))
    batches = islice(StreamDataLoader(text, bs=BS, seq_len=SEQ_LEN),
                     args.reps*args.steps + args.warmup)
    np.savez(args.batches, *(np.stack(o) for o in zip(*(map(np.asarray, b) for b in batches))))
    return f'{name} ({len(known):,} words)'

def load_batches(args):
    "Batches of chars [B, T, W], next and previous words [B, T]"
    import numpy as np, torch
    with np.load(args.batches) as f:
        return list(zip(*(torch.as_tensor(f[k]).unbind() for k in f.files)))

# The two designs

def plain_encode(cnn, chars):
    "Characters [N, W] to vectors in the textbook's way, with the library's weights"
    import torch, torch.nn.functional as F
    x = cnn.embed(chars.long()).transpose(1, 2)
    x = F.relu(torch.cat([conv(x).max(-1)[0] for conv in cnn.convs], -1))
    for l in cnn.highway.layers:
        t,g = F.linear(x, l.weight, l.bias).chunk(2, -1)
        x = torch.sigmoid(g)*F.relu(t) + (1 - torch.sigmoid(g))*x
    return F.linear(x, cnn.proj.weight, cnn.proj.bias)

def plain_nll(model, chars, fwd, bwd):
    "Scores for all words at all positions, one direction after the other"
    import torch.nn.functional as F
    top = model.encode(chars)[-1]
    return [F.cross_entropy(model.head(model.drop(h)).flatten(0, 1), y.flatten(), ignore_index=0,
                            reduction='sum') for h,y in zip(top, (fwd, bwd))]

def library_nll(model, *batch): return [nll.sum() for nll in model(*batch)]

def make_step(side, n_words):
    "A function that trains on one batch and returns its nats a prediction"
    import torch
    from elmo_fastai.bilm import BiLM, BiLMConfig
    torch.manual_seed(42)
    plain = side == 'plain'
    config = BiLMConfig('benchmark', char_dim=16,
                        filters=((1,64), (2,128), (3,256), (4,256), (5,256), (6,256)), n_highway=2,
                        proj_dim=512, hidden_dim=512, n_layers=2, dropout=0.2, cutoffs=() if plain
                        else None)
    model = BiLM(config, n_words).train()
    model.chars.savings = not plain
    if plain: model.chars.encode = partial(plain_encode, model.chars)
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    nll = plain_nll if plain else library_nll
    def step(batch):
        with torch.autocast('cpu', torch.bfloat16, enabled='bf16' in side):
            loss = sum(nll(model, *batch))/(batch[1].count_nonzero() + batch[2].count_nonzero())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        opt.step()
        return loss.item()
    step.model = model
    return step

def check_same(plain, library, batch):
    """Sharing and cutting must not change a token's vector: the largest difference between both
    ways, on the same weights"""
    plain.chars.load_state_dict(library.chars.state_dict())
    a,b = (m.eval().chars(batch[0]) for m in (plain, library))
    for m in (plain, library): m.train()
    diff = (a - b).abs().max().item()
    assert diff < 1e-4, f"the two designs give different token vectors: {diff}"
    return diff

# The measurements, each in a process of its own

def measure_speed(args):
    "Each side in a process of its own; they take turns"
    import torch
    from elmo_fastai.learner import bf16_is_fast
    sides = [s for s in SIDES if 'bf16' not in s or bf16_is_fast('cpu')]
    batches = load_batches(args)
    models = [make_step(s, args.vocab).model for s in SIDES[:2]]
    with torch.no_grad(): diff = check_same(*models, batches[0])
    del models
    workers = {s: Worker('--job', f'turns {s}') for s in sides}
    rates = turns(workers, args.reps)
    for worker in workers.values(): worker.close()
    chars = torch.cat([c.flatten(0, 1) for c,*_ in batches]).view(len(batches), -1,
                                                                  batches[0][0].shape[-1])
    distinct = median(len(c.unique(dim=0))/len(c) for c in chars)
    return dict(distinct_tokens=distinct, difference=diff, threads=torch.get_num_threads(),
                torch=torch.__version__,
                tokens_per_second=medians(rates), all=rates)

def take_turns(args, side):
    "For each line of the standard input, which numbers a turn, the tokens a second of its steps"
    batches, step = load_batches(args), make_step(side, args.vocab)
    for b in batches[:args.warmup]: step(b)
    def turn(line):
        some = batches[args.warmup + int(line)*args.steps:][:args.steps]
        n = sum(int((c[..., 0] != 0).sum()) for c,*_ in some)
        return n/seconds(lambda: [step(batch) for batch in some])
    answer(turn)

def measure_memory(args):
    "Peak memory of two training steps of one side, and what it was before the first"
    batches = load_batches(args)[:2]
    step = make_step(args.job, args.vocab)
    before = peak_gb()
    for b in batches: step(b)
    return dict(before=before, peak=peak_gb())

def main(args):
    with tempfile.TemporaryDirectory() as tmp:
        def ask(job): return in_process(job, '--batches', f'{tmp}/batches.npz')
        r = dict(vocab=args.vocab, bs=BS, seq_len=SEQ_LEN, reps=args.reps, steps=args.steps,
                 text=ask('data'), **ask('speed'))
        rate = r['tokens_per_second']
        r['ratio'] = {s: rate[s]/rate['plain'] for s in rate}
        r['memory_gb'] = {} if args.no_memory else {s: ask(s) for s in rate}
    print(f"{r['text']}, {args.vocab:,} words, {BS} × {SEQ_LEN} tokens a step "
          f"({r['distinct_tokens']:.0%} of them distinct), {r['threads']} threads, "
          f"median of {args.reps} × {args.steps} steps")
    print(f"{'':14}{'tokens/s':>10}{'ratio':>8}{'peak memory':>14}{'before step 1':>15}")
    for s in rate:
        m = r['memory_gb'].get(s)
        memory = f"{m['peak']:>11.2f} GB{m['before']:>12.2f} GB" if m else ''
        print(f"{s:14}{rate[s]:>10,.0f}{r['ratio'][s]:>8.2f}{memory}")
    print(json.dumps(r))
    write_figures(args.json, r)

if __name__ == '__main__':
    args = arguments()
    if args.job == 'all': main(args)
    else:
        if args.threads:
            import torch
            torch.set_num_threads(args.threads)
        if args.job.startswith('turns '): take_turns(args, args.job.removeprefix('turns '))
        else:
            print(json.dumps(
                {'data': make_batches, 'speed': measure_speed}.get(args.job, measure_memory)(args)))
