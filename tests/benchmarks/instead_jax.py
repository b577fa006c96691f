"""A training step of a biLM as one would write it in JAX: a side of instead_step.py, in a process
of its own.

Every token's letters are convolved, at all 50 columns; `lax.scan` runs the LSTM; each direction has
scores for all words at all positions. One compiled function computes the loss, its gradient and the
step of AdamW. It needs jax and optax, and neither PyTorch nor this library.
"""
import time
from functools import partial
import jax, jax.numpy as jnp, numpy as np, optax
from jax import lax

def convolved(letters, weight, bias):
    "Letters [N, W, D] → the largest score of each filter [N, F]; `weight` is [width, D, F]"
    scores = lax.conv_general_dilated(letters, weight, (1,), 'VALID',
                                      dimension_numbers=('NWC', 'WIO', 'NWC'))
    return scores.max(1) + bias

def highway(x, weight, bias):
    change, gate = jnp.split(x @ weight + bias, 2, -1)
    gate = jax.nn.sigmoid(gate)
    return gate*jax.nn.relu(change) + (1 - gate)*x

def lstm(x, p):
    "[B, T, D] → [B, T, H]; gates in the order input, forget, candidate, output"
    def step(state, inputs):
        h, c = state
        i,f,g,o = jnp.split(inputs + h @ p['states'], 4, -1)
        c = jax.nn.sigmoid(f)*c + jax.nn.sigmoid(i)*jnp.tanh(g)
        h = jax.nn.sigmoid(o)*jnp.tanh(c)
        return (h, c), h
    inputs = (x @ p['inputs'] + p['bias']).swapaxes(0, 1)
    zeros = jnp.zeros((len(x), p['states'].shape[0]))
    _, hs = lax.scan(step, (zeros, zeros), inputs)
    return hs.swapaxes(0, 1)

def read(x, layers):
    "One direction: from the second layer on, a layer's input is added to its output"
    for i,p in enumerate(layers): x = lstm(x, p) + (x if i else 0)
    return x

def loss_of(p, chars, next_words, previous_words):
    "Nats per prediction; word 0 is padding, where nothing is predicted"
    letters = p['letters'][chars.reshape(-1, chars.shape[-1])]
    found = [convolved(letters, w, b) for w,b in zip(p['filters'], p['filter_biases'])]
    x = jax.nn.relu(jnp.concatenate(found, -1))
    for w,b in p['highways']: x = highway(x, w, b)
    x = (x @ p['projection'] + p['projection_bias']).reshape(*chars.shape[:2], -1)
    forward = read(x, p['forward'])
    backward = jnp.flip(read(jnp.flip(x, 1), p['backward']), 1)
    total = 0.
    for h,words in ((forward, next_words), (backward, previous_words)):
        log_p = jax.nn.log_softmax(h @ p['words'] + p['word_bias'])
        known = jnp.take_along_axis(log_p, words[..., None], -1)[..., 0]
        total -= jnp.where(words > 0, known, 0).sum()
    return total/((next_words > 0).sum() + (previous_words > 0).sum())

class Jax:
    "Answers `loss` and `turn`, see `Step`"
    def __init__(self, folder, rate=1e-3):
        with np.load(f'{folder}/batches.npz') as f:
            self.batches = list(zip(*(f[k].astype(np.int32) for k in f.files)))
        with np.load(f'{folder}/weights.npz') as f: flat = {k: jnp.asarray(f[k]) for k in f.files}
        self.weights = self.tree(flat)
        rule = optax.chain(optax.clip_by_global_norm(1.), optax.adamw(float(rate)))
        self.state = rule.init(self.weights)
        self.loss = jax.jit(loss_of)
        @partial(jax.jit, donate_argnums=(0, 1))
        def update(weights, state, *batch):
            loss, slopes = jax.value_and_grad(loss_of)(weights, *batch)
            change, state = rule.update(slopes, state, weights)
            return optax.apply_updates(weights, change), state, loss
        self.update = update
        self.about = dict(jax=jax.__version__, jaxlib=jax.lib.__version__, optax=optax.__version__,
                          devices=str(jax.devices()))

    def tree(self, flat):
        "The weights by what they are for"
        def several(name): return [flat[k] for k in sorted(k for k in flat if k.startswith(name))]
        def layers(name):
            return [dict(inputs=i, states=s, bias=b)
                    for i,s,b in zip(several(f'{name}/inputs'), several(f'{name}/states'),
                                     several(f'{name}/bias'))]
        alone = ('letters', 'projection', 'projection_bias', 'words', 'word_bias')
        return {k: flat[k] for k in alone} | dict(filters=several('filters'),
                                                  filter_biases=several('filter_biases'),
                                                  forward=layers('forward'),
                                                  backward=layers('backward'),
                                                  highways=list(zip(several('highway_weights'),
                                                                    several('highway_biases'))))

    def first_loss(self): return float(self.loss(self.weights, *self.batches[0]))

    def turn(self, first, steps):
        "Trains on some batches; tokens, and seconds by both clocks"
        some = self.batches[first:first + steps]
        wall, own = time.perf_counter(), time.process_time()
        for batch in some:
            self.weights, self.state, loss = self.update(self.weights, self.state, *batch)
        loss.block_until_ready()
        return dict(cpu=time.process_time() - own, wall=time.perf_counter() - wall,
                    tokens=int(sum((c[..., 0] != 0).sum() for c,*_ in some)), loss=float(loss))
