"""A slow biLM in numpy, 64 bits, written from the description of AI2's files alone: it shares no
line with the library that it checks.

One sentence at a time, one time step at a time, one direction after the other, with the names and
the layout of the files.
"""

import json
from pathlib import Path
import h5py, numpy as np

BASE = dict(lstm=dict(use_skip_connections=True, projection_dim=6, cell_clip=0.6, proj_clip=0.3,
                      dim=20, n_layers=2),
            char_cnn=dict(activation='relu', filters=[[1, 4], [2, 5], [4, 6]], n_highway=2,
                          embedding=dict(dim=5), n_characters=262, max_characters_per_token=50))


def options(cnn={}, lstm={}, drop=(), **top):
    "`BASE` with changes; `drop` names keys that are left out altogether"
    o = dict(lstm={**BASE['lstm'], **lstm}, char_cnn={**BASE['char_cnn'], **cnn}, **top)
    for k in drop: o['lstm'].pop(k, None), o['char_cnn'].pop(k, None)
    return o

def facts(o):
    "(filters, their sum, projection, cell, layers, highways): defaults as in the original"
    f = o['char_cnn']['filters']
    return (f, sum(k for _, k in f), o['lstm']['projection_dim'], o['lstm']['dim'],
            o['lstm'].get('n_layers', 1), o['char_cnn'].get('n_highway') or 0)


def cell_name(r, l): return f'RNN_{r}/RNN/MultiRNNCell/Cell{l}/LSTMCell'

def random_file(o, seed=0, n_words=0):
    "Weights of which all matter: gates far from one half, states that reach the clips"
    rng = np.random.default_rng(seed)
    filters, n, P, C, L, hw = facts(o)
    def make(*shape, scale): return (scale*rng.standard_normal(shape)).astype(np.float32)
    res = {'char_embed': make(261, o['char_cnn']['embedding']['dim'], scale=1.)}
    for i,(w,k) in enumerate(filters):
        res[f'CNN/W_cnn_{i}'] = make(1, w, res['char_embed'].shape[1], k, scale=.4)
        res[f'CNN/b_cnn_{i}'] = make(k, scale=.4)
    for j in range(hw):
        for part in ('carry', 'transform'):
            res[f'CNN_high_{j}/W_{part}'] = make(n, n, scale=n**-.5)
            res[f'CNN_high_{j}/b_{part}'] = make(n, scale=.7)
    if n != P:
        res['CNN_proj/W_proj'] = make(n, P, scale=n**-.5)
        res['CNN_proj/b_proj'] = make(P, scale=.3)
    for r in 0, 1:
        for l in range(L):
            res[cell_name(r, l) + '/W_0'] = make(2*P, 4*C, scale=.9)
            res[cell_name(r, l) + '/B'] = make(4*C, scale=.8)
            if P != C: res[cell_name(r, l) + '/W_P_0'] = make(C, P, scale=.3)
    if n_words:
        res['softmax/W'] = make(n_words, P, scale=1.)
        res['softmax/b'] = make(n_words, scale=1.)
    return res

def write(folder, o, file, rename=lambda k: k, **kwargs):
    "The two files in `folder`; returns their paths"
    folder = Path(folder); folder.mkdir(parents=True, exist_ok=True)
    (folder/'options.json').write_text(json.dumps(o))
    with h5py.File(folder/'weights.hdf5', 'w') as f:
        for k,v in file.items(): f.create_dataset(rename(k), data=v, **kwargs)
    return folder/'options.json', folder/'weights.hdf5'

def char_ids(token, W):
    """`token` is text, or 256 / 257 for the ends of a sentence; one is added to every id, 0 would
    be padding of the sentence"""
    body = [token] if isinstance(token, int) else list(token.encode('utf-8'))[:W-2]
    ids = [258] + body + [259]
    return [i + 1 for i in ids + [260]*(W - len(ids))]

def sigma(v): return 1/(1 + np.exp(-v))

def token_vector(file, o, ids):
    f64 = lambda k: file[k].astype(np.float64)
    filters, n, P, _, _, hw = facts(o)
    emb = f64('char_embed')
    letters = [np.zeros(emb.shape[1]) if i == 0 else emb[i-1] for i in ids]
    act = {'relu': lambda v: v*(v > 0), 'tanh': np.tanh}[o['char_cnn']['activation']]
    y = []
    for i,(w,k) in enumerate(filters):
        W, b = f64(f'CNN/W_cnn_{i}'), f64(f'CNN/b_cnn_{i}')
        best = np.full(k, -np.inf)
        for s in range(len(ids) - w + 1):
            v = b.copy()
            for t in range(w): v += letters[s+t] @ W[0,t]
            best = np.maximum(best, v)
        y += list(act(best))
    y = np.array(y)
    for j in range(hw):
        g = sigma(y @ f64(f'CNN_high_{j}/W_carry') + f64(f'CNN_high_{j}/b_carry'))
        t = y @ f64(f'CNN_high_{j}/W_transform') + f64(f'CNN_high_{j}/b_transform')
        y = g*np.where(t > 0, t, 0) + (1-g)*y
    return y if n == P else y @ f64('CNN_proj/W_proj') + f64('CNN_proj/b_proj')

def run(file, o, r, l, xs, state):
    """One layer in one direction, words in the order of reading; (outputs before the residual, the
    new state)"""
    f64 = lambda k: file[cell_name(r, l) + '/' + k].astype(np.float64)
    _, _, P, C, _, _ = facts(o)
    W, B = f64('W_0'), f64('B')
    cell_clip, proj_clip = (o['lstm'].get(k) for k in ('cell_clip', 'proj_clip'))
    h, c = state
    ys = []
    for x in xs:
        z = x @ W[:P] + h @ W[P:] + B
        i, j, f, q = z[:C], z[C:2*C], z[2*C:3*C], z[3*C:]
        c = sigma(f + 1.)*c + sigma(i)*np.tanh(j)
        if cell_clip is not None: c = np.minimum(np.maximum(c, -cell_clip), cell_clip)
        h = sigma(q)*np.tanh(c)
        if P < C:
            h = h @ f64('W_P_0')
            # TensorFlow clips only what it projects
            if proj_clip is not None: h = np.minimum(np.maximum(h, -proj_clip), proj_clip)
        ys.append(h)
    return ys, (h, c)

def layers(file, o, tokens, state=None, token=token_vector, run=run):
    """[1 + layers, T + 2, 2P] with both ends of the sentence; `state` is a dictionary that is read
    and filled"""
    _, _, P, C, L, _ = facts(o)
    state, W = {} if state is None else state, o['char_cnn']['max_characters_per_token']
    x = [token(file, o, char_ids(t, W)) for t in [256, *tokens, 257]]
    out = [[x, x]]
    for r in 0, 1:
        cur = x if r == 0 else x[::-1]
        for l in range(L):
            ys, state[r,l] = run(file, o, r, l, cur, state.get((r,l), (np.zeros(P), np.zeros(C))))
            if l > 0 and o['lstm'].get('use_skip_connections'): ys = [y + v for y,v in zip(ys, cur)]
            cur = ys
            if r == 0: out.append([ys])
            else: out[l+1].append(ys[::-1])
    return np.array([np.concatenate([np.array(d) for d in l], 1) for l in out])

# As AllenNLP's classes read: every array and both clips must be there, and all are used

def allennlp_token(file, o, ids):
    "The vector of a token; `KeyError` where AllenNLP would find no projection"
    filters, n, P, _, _, _ = facts(o)
    bare = {**o, 'lstm': {**o['lstm'], 'projection_dim': n}}          # up to the last highway
    vector = token_vector(file, bare, ids)
    return vector @ file['CNN_proj/W_proj'].astype(np.float64) + file['CNN_proj/b_proj']

def clipped(values, limit):
    "AllenNLP wants the limit to be there; null means none"
    return np.clip(values, -limit, limit) if limit else values

def allennlp_run(file, o, direction, layer, xs, _):
    "The outputs of one layer in one direction, before the residual, and no state"
    name = cell_name(direction, layer)
    weights = {key: file[f'{name}/{key}'].astype(np.float64) for key in ('W_0', 'B', 'W_P_0')}
    cell_clip, proj_clip = o['lstm']['cell_clip'], o['lstm']['proj_clip']
    n_cells, n_out = weights['W_P_0'].shape
    h, c = np.zeros(n_out), np.zeros(n_cells)
    outputs = []
    for x in xs:
        gates = np.concatenate([x, h]) @ weights['W_0'] + weights['B']
        enter, new, forget, leave = np.split(gates, 4)
        c = clipped(sigma(forget + 1)*c + sigma(enter)*np.tanh(new), cell_clip)
        h = clipped((sigma(leave)*np.tanh(c)) @ weights['W_P_0'], proj_clip)
        outputs.append(h)
    return outputs, None

def allennlp_layers(file, o, tokens):
    "[1 + layers, T + 2, 2P] with both ends of the sentence"
    assert {'n_layers', 'use_skip_connections'} <= o['lstm'].keys()
    return layers(file, o, tokens, token=allennlp_token, run=allennlp_run)
