"""Embedding text with models of AI2's sizes: this library against a plain reference with the same
weights, in one run.

    # small and original, batches of 32 and single sentences: some four minutes
    python tests/benchmarks/embed_speed.py
    python tests/benchmarks/embed_speed.py --size small         # one size
    python tests/benchmarks/embed_speed.py --reps 1 --batches 1 # does it work?

plain    the letters of every token convolved, at all 50 columns; the LSTM a Python loop with both
         products at each step, padding and all; fp32
library  `BiLM.encode`, as `elmo.embed` computes: equal tokens encoded once, columns of padding cut
         off, fp32
bf16     the same after `model.bfloat16()`: half the memory, and much faster where the processor has
         the instructions; what it costs is printed as the cosine of each token's vector to that in
         fp32

The sides take turns on the same batches, and medians are compared. Both sides' vectors must be
equal to 2e-5 of their size. The weights are random, of a scale at which gates open and close and
clips are reached. The text is WikiText-2 from ELMO_FASTAI_DATA or ../shared/data, else random words
by Zipf's law. A batch has sentences of about the same length, so padding decides nothing.
"""
import copy, json, re
from statistics import median
import numpy as np, torch, torch.nn.functional as F
from harness import data_folder, medians, opt, options, seconds, turns, write_figures
from train_step import zipf_lines
from dataclasses import replace
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.bilm import BiLM, ELMO_ORIGINAL
from elmo_fastai.bilm import reverse_padded

SIZES = dict(small=(1024, 128, 1), medium=(2048, 256, 1), original=(4096, 512, 2))

def arguments():
    return options(__doc__,
        size=opt(['small', 'original'], nargs='+', choices=SIZES),
        bs=opt([32, 1], 'sentences a batch', nargs='+'),
        batches=opt(2, 'batches a turn, four times as many where they have one sentence'),
        reps=opt(5, 'turns of each side'),
        threads=opt(None, "processor threads (default: torch's choice)", type=int),
        json=opt(None, 'also write the figures to this file'))

def sentences(least=5, most=60):
    "(name of the text, its sentences as lists of words)"
    folder = data_folder('wikitext-2')
    if folder:
        from elmo_fastai.text.corpora import wikitext2
        lines = [line for line in wikitext2(folder).valid if not line.startswith('=')]
        sents = [o.split() for line in lines for o in re.findall(r'.*?(?: \.(?: |$)|$)', line)]
        return 'WikiText-2', [sent for sent in sents if least <= len(sent) <= most]
    return "random words by Zipf's law", [l.split() for l in zipf_lines(10_000, 60_000)]

def make_batches(sents, bs, n, seed=42):
    "`n` batches of char ids [bs, T, 50], each of sentences that are neighbours in length"
    rng, cv = np.random.default_rng(seed), ByteCharVocab()
    some = sorted((sents[i] for i in rng.permutation(len(sents))[:64*n if bs > 1 else n]), key=len)
    starts = rng.permutation(len(some)//bs)[:n]*bs
    res = []
    for i in starts:
        rows = [np.concatenate([cv.specials[1:2], cv.encode(s), cv.specials[2:]])
                for s in some[i:i+bs]]
        chars = np.zeros((len(rows), max(map(len, rows)), 50), np.int16)
        for o,r in zip(chars, rows): o[:len(r)] = r
        res.append(torch.tensor(chars))
    return res

def random_model(size, seed=42):
    """A biLM of a published shape in which nothing idles: gates between 0.1 and 0.9, clips
    reached now and then"""
    torch.manual_seed(seed)
    C, P, hw = SIZES[size]
    m = BiLM(replace(ELMO_ORIGINAL, name=size, n_highway=hw, proj_dim=P, hidden_dim=C, cutoffs=()),
             0).eval()
    torch.nn.init.uniform_(m.chars.embed.weight[1:], -1, 1)
    for l in [*m.lstm.fwd, *m.lstm.bwd]:
        torch.nn.init.normal_(l.weight_ih_l0, std=P**-.5)
        torch.nn.init.normal_(l.weight_hh_l0, std=.7*P**-.5)
        torch.nn.init.normal_(l.weight_hr_l0, std=2*C**-0.5)
    return m

# The plain design

def plain_tokens(m, chars):
    mask = chars[...,0] != 0
    x = m.chars.embed(chars[mask].long()).transpose(1, 2)
    x = torch.cat([torch.relu(F.conv1d(x, c.weight, c.bias).amax(-1)) for c in m.chars.convs], -1)
    for l in m.chars.highway.layers:
        t,g = F.linear(x, l.weight, l.bias).chunk(2, -1)
        x = g.sigmoid()*t.relu() + (1 - g.sigmoid())*x
    out = x.new_zeros(*mask.shape, m.config.proj_dim)
    out[mask] = F.linear(x, m.chars.proj.weight, m.chars.proj.bias)
    return out, mask

def plain_lstm(l, x, mask, clip):
    h, c, ys = x.new_zeros(len(x), l.proj_size), x.new_zeros(len(x), l.hidden_size), []
    for t in range(x.shape[1]):
        z = F.linear(x[:,t], l.weight_ih_l0, l.bias_ih_l0) + F.linear(h, l.weight_hh_l0,
                                                                      l.bias_hh_l0)
        i,f,g,o = z.chunk(4, -1)
        cn = (f.sigmoid()*c + i.sigmoid()*g.tanh()).clamp(-clip, clip)
        y = F.linear(o.sigmoid()*cn.tanh(), l.weight_hr_l0).clamp(-clip, clip)
        m = mask[:,t,None]
        h,c = torch.where(m, y, h), torch.where(m, cn, c)
        ys.append(y*m)
    return torch.stack(ys, 1)

def plain_encode(m, chars):
    x, mask = plain_tokens(m, chars)
    lens, layers = mask.sum(1), [(x, x)]
    f, b = x, reverse_padded(x, lens)
    for i,(lf,lb) in enumerate(zip(m.lstm.fwd, m.lstm.bwd)):
        yf, yb = plain_lstm(lf, f, mask, 3.), plain_lstm(lb, b, mask, 3.)
        f, b = (yf+f, yb+b) if i else (yf, yb)
        layers.append((f, reverse_padded(b, lens)))
    return layers

# The measurement

def vectors(layers, chars):
    "All layers of all real tokens, [N, 2P·layers]"
    return torch.cat([y for l in layers for y in l], -1)[chars[...,0] != 0].float()

@torch.inference_mode()
def measure(size, bs, text, sents, args):
    m = random_model(size)
    half = copy.deepcopy(m).bfloat16()
    sides = dict(plain=lambda c: plain_encode(m, c), library=m.encode, bf16=half.encode)
    n = args.batches*(4 if bs == 1 else 1)
    batches = make_batches(sents, bs, n)
    diff, cosines = 0., []
    # the check, and the warm-up
    for chars in batches[:2 if bs > 1 else 4]:
        want, ours, low = (vectors(f(chars), chars) for f in sides.values())
        diff = max(diff, ((ours - want).abs()/want.abs().clamp(min=1)).max().item())
        cosines.append(F.cosine_similarity(low, ours))
    assert diff < 2e-5, f'the sides give different vectors: {diff}'
    tokens = sum(int((c[...,0] != 0).sum()) for c in batches)
    def turn(f): return lambda rep: tokens/seconds(lambda: [f(chars) for chars in batches])
    rates = turns({s: turn(f) for s,f in sides.items()}, args.reps)
    rate = medians(rates)
    cos, flat = torch.cat(cosines), torch.cat([c.flatten(0, 1) for c in batches])
    return dict(size=size, bs=bs, tokens=tokens,
                distinct_in_batch=median(len(c.flatten(0, 1).unique(dim=0))/c[...,0].numel()
                                         for c in batches),
                padding=1 - tokens/len(flat),
                size_of_states=[l[0].abs().mean().item() for l in m.encode(batches[0])],
                difference=diff,
                tokens_per_second=rate, ratio={s: rate[s]/rate['plain'] for s in rate},
                bf16_cosine=dict(mean=cos.mean().item(), min=cos.min().item()), all=rates)

def main(args):
    if args.threads: torch.set_num_threads(args.threads)
    text, sents = sentences()
    print(f"{text}, {torch.get_num_threads()} threads, torch {torch.__version__}, median of "
          f"{args.reps} turns", flush=True)
    res = []
    for size in args.size:
        for bs in args.bs:
            r = measure(size, bs, text, sents, args)
            rate, ratio = r['tokens_per_second'], r['ratio']
            print({k: r[k] for k in ('size', 'bs', 'tokens_per_second', 'ratio', 'difference',
                                     'bf16_cosine')}, flush=True)
            res.append(r)
    out = dict(text=text, threads=torch.get_num_threads(), torch=torch.__version__, reps=args.reps,
               results=res)
    print(json.dumps(out))
    write_figures(args.json, out)

if __name__ == '__main__': main(arguments())
