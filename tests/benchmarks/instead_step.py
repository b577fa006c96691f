"""A training step of the library against the same network in plain JAX, in one run: tokens a
second.

    # a quarter of an hour of processor time
    python tests/benchmarks/instead_step.py --jax-python PYTHON
    # does it work? Small sizes, nothing is written
    python tests/benchmarks/instead_step.py --quick

PYTHON has jax and optax (see instead_sides.py); without it that side is left out. The sizes are
those of a walk-through in JAX: 1,216 filters over characters, two LSTM layers of 512 cells in each
direction, 10,000 words, batches of 20 × 128 tokens.

JAX, plain           one compiled step; all letters of all tokens; `lax.scan`; scores for all words
PyTorch, plain       the same network and weights; all letters of all tokens; scores for all words
library, full        the same network and weights in the library: equal tokens encoded once, padding
                     cut off; scores for all words
library, adaptive    with the softmax that the library chooses for 10,000 words
library              as `bilm_learner` trains: token vectors normalised, in bfloat16 where the
                     processor is fast at it

The first three must give the same loss for the first batch to 1e-4. The sides take turns, each with
one thread. Speeds are by processor time, medians of the turns. The text is that of train_step.py.
"""
import tempfile, time
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
import numpy as np
from harness import RESULTS, opt, options, processor, write_figures
from instead_sides import Here, Side, one_core

SIDES = ['JAX, plain', 'PyTorch, plain', 'library, full', 'library, adaptive', 'library']
SIZES = dict(char_dim=16, filters=((1, 64), (2, 128), (3, 256), (4, 256), (5, 256), (6, 256)),
             n_highway=2, proj_dim=512, hidden_dim=512)
QUICK = dict(char_dim=4, filters=((1, 8), (2, 8)), n_highway=1, proj_dim=16, hidden_dim=16)

def arguments():
    return options(__doc__,
        jax_python=opt(None, 'the Python that has jax and optax'),
        reps=opt(3, 'turns of each side'),
        steps=opt(1, 'training steps a turn'),
        core=opt(None, 'the core on which all run (default: none in particular)', type=int),
        quick=False,
        json=RESULTS/'instead_step.json')

class Step:
    "A side in PyTorch: trains on the batches of a folder"
    def __init__(self, folder, side, sizes, n_words):
        import torch
        from elmo_fastai.bilm import BiLM, BiLMConfig
        from elmo_fastai.learner import bf16_is_fast
        from train_step import library_nll, plain_encode, plain_nll
        torch.set_num_threads(1)
        torch.manual_seed(42)
        plain = side == 'PyTorch, plain'
        full = plain or side == 'library, full'
        config = BiLMConfig('step', **sizes, norm=side == 'library', n_layers=2, dropout=0.,
                            cutoffs=() if full else None)
        self.model = BiLM(config, n_words).train()
        self.model.chars.savings = not plain
        if plain: self.model.chars.encode = partial(plain_encode, self.model.chars)
        self.nll = plain_nll if plain else library_nll
        if full: self.same_weights(folder, plain)
        self.bf16 = side == 'library' and bf16_is_fast('cpu')
        self.opt = torch.optim.AdamW(self.model.parameters(), 1e-3, weight_decay=1e-4, fused=True)
        with np.load(f'{folder}/batches.npz') as f:
            self.batches = list(zip(*(torch.as_tensor(f[k]).unbind() for k in f.files)))
        self.about = dict(torch=torch.__version__, bf16=self.bf16,
                          cutoffs=list(getattr(self.model.head, 'cutoffs', [])))

    def same_weights(self, folder, writes):
        "The plain side writes its weights, in its own names and for JAX; the others take them"
        import torch
        file = Path(folder)/'weights.pt'
        if writes:
            torch.save(self.model.state_dict(), file)
            np.savez(Path(folder)/'weights.npz', **for_jax(self.model))
        else: self.model.load_state_dict(torch.load(file))

    def loss(self, batch):
        import torch
        with torch.autocast('cpu', torch.bfloat16, enabled=self.bf16):
            return sum(self.nll(self.model, *batch))/(batch[1].count_nonzero()
                                                      + batch[2].count_nonzero())

    def first_loss(self):
        import torch
        with torch.no_grad(): return self.loss(self.batches[0]).item()

    def turn(self, first, steps):
        "Trains on some batches; tokens, and seconds by both clocks"
        import torch
        some = self.batches[first:first + steps]
        wall, own = time.perf_counter(), time.process_time()
        for batch in some:
            loss = self.loss(batch)
            self.opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.)
            self.opt.step()
        return dict(cpu=time.process_time() - own, wall=time.perf_counter() - wall,
                    tokens=sum(int((c[..., 0] != 0).sum()) for c,*_ in some), loss=loss.item())

def for_jax(model):
    "The weights of a biLM by names of instead_jax.py, matrices as [inputs, outputs]"
    def array(w): return np.ascontiguousarray(w.detach().numpy())
    chars = model.chars
    found = dict(letters=array(chars.embed.weight), projection=array(chars.proj.weight.T),
                 projection_bias=array(chars.proj.bias),
                 words=array(model.head.weight.T), word_bias=array(model.head.bias))
    for i,conv in enumerate(chars.convs):
        found[f'filters/{i}'] = array(conv.weight.permute(2, 1, 0))
        found[f'filter_biases/{i}'] = array(conv.bias)
    for i,layer in enumerate(chars.highway.layers):
        found[f'highway_weights/{i}'] = array(layer.weight.T)
        found[f'highway_biases/{i}'] = array(layer.bias)
    for name,layers in (('forward', model.lstm.fwd), ('backward', model.lstm.bwd)):
        for i,layer in enumerate(layers):
            found[f'{name}/inputs/{i}'] = array(layer.weight_ih_l0.T)
            found[f'{name}/states/{i}'] = array(layer.weight_hh_l0.T)
            found[f'{name}/bias/{i}'] = array(layer.bias_ih_l0 + layer.bias_hh_l0)
    return found

def main(args):
    from train_step import BS, SEQ_LEN, make_batches
    one_core(args.core)
    sizes, n_words = (QUICK, 200) if args.quick else (SIZES, 10_000)
    names = [s for s in SIDES if args.jax_python or not s.startswith('JAX')]
    if not args.jax_python:
        print('JAX is left out: name the Python that has jax and optax with --jax-python')
    with tempfile.TemporaryDirectory() as folder:
        text = make_batches(SimpleNamespace(vocab=n_words, reps=args.reps, steps=args.steps,
                                            warmup=1, batches=f'{folder}/batches.npz'))
        def start(name):
            if name.startswith('JAX'): return Side('jax', folder, python=args.jax_python)
            return Here(f'step: {name}', folder, name, sizes, n_words)
        # which writes the weights
        sides = {name: start(name) for name in sorted(names, key=lambda s: s != 'PyTorch, plain')}
        losses = {name: side('first_loss') for name,side in sides.items()}
        same = [losses[name] for name in SIDES[:3] if name in losses]
        assert max(same) - min(same) < 1e-4, f'the sides are not the same network: {losses}'
        # compiles, fills caches
        for side in sides.values(): side('turn', first=0, steps=1)
        turns = {name: [] for name in names}
        for rep in range(args.reps):
            for name in names:
                turns[name].append(sides[name]('turn', first=1 + rep*args.steps, steps=args.steps))
                t = turns[name][-1]
                print(f"{rep}  {name:20}{t['tokens']/t['cpu']:9,.0f} tokens a second, loss "
                      f"{t['loss']:.3f}", flush=True)
        rows = []
        for name in names:
            about = sides[name]('about')
            by = {clock: [t['tokens']/t[clock] for t in turns[name]] for clock in ('cpu', 'wall')}
            rows.append(dict(side=name, tokens_per_second=median(by['cpu']), least=min(by['cpu']),
                             most=max(by['cpu']), wall=median(by['wall']), loss=losses[name],
                             last_loss=turns[name][-1]['loss'], about=about))
        for side in sides.values(): side.__exit__()
    found = dict(processor=processor(), text=text, words=n_words, bs=BS, seq_len=SEQ_LEN,
                 reps=args.reps, steps=args.steps, sizes=sizes, rows=rows)
    plain = rows[0]['tokens_per_second']
    for r in rows:
        print(f"{r['side']:20}{r['tokens_per_second']:9,.0f} tokens a second "
              f"{r['tokens_per_second']/plain:7.2f}  ({r['least']:,.0f} to {r['most']:,.0f})")
    if not args.quick: write_figures(args.json, found)
    return found

if __name__ == '__main__': main(arguments())
