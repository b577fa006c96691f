"""A training step of the library against the plain design of the same sizes, in one run: tokens a
second, and peak memory (study: What a training step costs).

    python tests/benchmarks/train_step.py                  # 10,000 words, a few minutes
    python tests/benchmarks/train_step.py --vocab 100000   # the plain side needs about 6 GB

The plain design convolves the letters of every token, at all 50 columns, and has a full softmax in
each direction; the library's bfloat16 is measured where the processor is fast at it. The sides take
turns on the same batches, each in a process of its own. The text is WikiText-2, with novels where
--vocab is larger than its vocabulary; words that are still missing are made up and never occur.
"""
import random, tempfile
from contextlib import ExitStack
from functools import partial
from itertools import islice
from fastcore.script import call_parse
from harness import in_process, log, medians, new_process, peak_gb, seconds, turns

# torch is imported where it is needed: this process stays small
SIDES = ['plain', 'library fp32', 'library bf16']
BS, SEQ_LEN = 20, 128
STATE = {}       # of the process of a side: its batches and its step

def load_lines(n_words):
    from elmo_fastai.text.corpora import local_copy, wikitext2
    from elmo_fastai.text.tokenizers import word_tokenize
    lines = wikitext2().train
    if n_words <= 33_000: return lines[:8000]
    novels = sorted(local_copy('novels').glob('*.txt'))
    texts = [file.read_text(encoding='utf-8-sig').splitlines() for file in novels]
    lines = lines + [' '.join(word_tokenize(l)) for text in texts for l in text if l.strip()]
    random.Random(42).shuffle(lines)
    return lines

def write_batches(file, vocab, n):
    "Write the batches: the processes that are measured should not hold a corpus"
    import numpy as np
    from elmo_fastai.tokens import ByteCharVocab, WordVocab
    from elmo_fastai.batches import EncodedText, StreamDataLoader, TokenTypes
    sents = [l.split() for l in load_lines(vocab)]
    known = WordVocab.build(sents, max_vocab=vocab)
    words = WordVocab(known.itos + [f'<never {i}>' for i in range(vocab - len(known))])
    text = EncodedText(sents[:8000], TokenTypes(words, ByteCharVocab()))
    batches = islice(StreamDataLoader(text, bs=BS, seq_len=SEQ_LEN), n)
    np.savez(file, *(np.stack(o) for o in zip(*(map(np.asarray, b) for b in batches))))

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
    import torch.nn.functional as F
    top = model.encode(chars)[-1]
    return [F.cross_entropy(model.head(model.drop(h)).flatten(0, 1), y.flatten(), ignore_index=0,
                            reduction='sum') for h,y in zip(top, (fwd, bwd))]

def library_nll(model, *batch): return [nll.sum() for nll in model(*batch)]

def make_model(plain, vocab):
    import torch
    from elmo_fastai.bilm import BiLM, BiLMConfig
    torch.manual_seed(42)
    config = BiLMConfig('benchmark', char_dim=16,
                        filters=((1,64), (2,128), (3,256), (4,256), (5,256), (6,256)), n_highway=2,
                        proj_dim=512, hidden_dim=512, n_layers=2, dropout=0.2, cutoffs=() if plain
                        else None)
    model = BiLM(config, vocab).train()
    model.chars.savings = not plain
    if plain: model.chars.encode = partial(plain_encode, model.chars)
    return model

def make_step(side, vocab):
    import torch
    plain = side == 'plain'
    model, nll = make_model(plain, vocab), plain_nll if plain else library_nll
    opt = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    def step(batch):
        with torch.autocast('cpu', torch.bfloat16, enabled='bf16' in side):
            loss = sum(nll(model, *batch))/(batch[1].count_nonzero() + batch[2].count_nonzero())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
        opt.step()
    return step

def begin(file, side, vocab):
    "Load the batches and make the first, unmeasured step, in the process of a side"
    import numpy as np, torch
    with np.load(file) as f: batches = list(zip(*(torch.as_tensor(f[k]).unbind() for k in f.files)))
    STATE.update(batches=batches, step=make_step(side, vocab))
    STATE['step'](batches[0])

def turn(first, steps):
    some = STATE['batches'][first:first + steps]
    n = sum(int((c[..., 0] != 0).sum()) for c,*_ in some)
    return n/seconds(lambda: [STATE['step'](batch) for batch in some])

def prepare(file, vocab, n):
    """Write the batches; check that sharing and cutting change no token's vector, on the same
    weights; say whether the processor is fast at bfloat16"""
    import numpy as np, torch
    from elmo_fastai.learner import bf16_is_fast
    write_batches(file, vocab, n)
    with np.load(file) as f: chars = torch.as_tensor(f['arr_0'][0])
    plain, library = (make_model(o, vocab).chars.eval() for o in (True, False))
    plain.load_state_dict(library.state_dict())
    with torch.no_grad(): diff = (plain(chars) - library(chars)).abs().max().item()
    assert diff < 1e-4, f"the two designs give different token vectors: {diff}"
    return bf16_is_fast('cpu')

@call_parse
def main(
    vocab:int=10_000,   # words in the output layer
    reps:int=7,         # turns of each side
    steps:int=2         # training steps a turn
):
    "Print medians of the turns, and the most memory that each process has held"
    with tempfile.TemporaryDirectory() as tmp, ExitStack() as stack:
        file = f'{tmp}/batches.npz'
        sides = SIDES if in_process(prepare, file, vocab, 1 + reps*steps) else SIDES[:2]
        process = {side: stack.enter_context(new_process()) for side in sides}
        def ask(side, f, *args): return process[side].submit(f, *args).result()
        for side in sides: ask(side, begin, file, side, vocab)
        rates = turns({side: lambda rep, side=side: ask(side, turn, 1 + rep*steps, steps)
                       for side in sides}, reps)
        memory = {side: ask(side, peak_gb) for side in sides}
    rate = medians(rates)
    for side in sides:
        log(f"{side:14}{rate[side]:>10,.0f} tokens/s{rate[side]/rate['plain']:>8.2f} times"
            f"{memory[side]:>8.2f} GB")
