"One LSTM against a slow reference in numpy and against PyTorch's"
import numpy as np, pytest, torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from elmo_fastai.recurrent import LockedDropout, init_lstm, lstm_loop, torch_lstm

LENS = 6, 3, 1, 5
CLIPS = [dict(), dict(cell_clip=.4), dict(proj_clip=.2), dict(cell_clip=.4, proj_clip=.2)]

def made(proj, lens=LENS, seed=0):
    "An LSTM with large weights, a batch and its mask, and a state to start from"
    torch.manual_seed(seed)
    lstm = nn.LSTM(4, 6, proj_size=proj, batch_first=True).double()
    for p in lstm.parameters(): p.data *= 3
    x = torch.randn(len(lens), max(lens), 4).double()
    mask = torch.arange(max(lens)) < torch.tensor(lens)[:,None]
    state = torch.randn(len(lens), proj or 6).double(), torch.randn(len(lens), 6).double()
    return lstm, x, mask, state

def by_equations(lstm, xs, h, c, cell_clip=None, proj_clip=None):
    "One sentence [T, D], gate by gate"
    w = {k: v.detach().numpy() for k,v in lstm.state_dict().items()}
    def sigmoid(v): return 1/(1 + np.exp(-v))
    ys = []
    for x in xs:
        z = w['weight_ih_l0'] @ x + w['weight_hh_l0'] @ h + w['bias_ih_l0'] + w['bias_hh_l0']
        i, f, g, o = z.reshape(4, -1)
        c = sigmoid(f)*c + sigmoid(i)*np.tanh(g)
        if cell_clip: c = c.clip(-cell_clip, cell_clip)
        h = sigmoid(o)*np.tanh(c)
        if lstm.proj_size: h = w['weight_hr_l0'] @ h
        if proj_clip: h = h.clip(-proj_clip, proj_clip)
        ys.append(h)
    return np.array(ys), h, c

@pytest.mark.parametrize('proj', [0, 3])
@pytest.mark.parametrize('clips', CLIPS)
def test_loop_is_the_equations_and_a_sentence_that_ended_keeps_its_state(proj, clips):
    lstm, x, mask, state = made(proj)
    y, last = lstm_loop(lstm, x, state, mask, **clips)
    for r,n in enumerate(LENS):
        ys, *ends = by_equations(lstm, x[r,:n].numpy(), *(s[r].numpy() for s in state), **clips)
        for ours,slow in zip((y[r,:n], last[0][r], last[1][r]), (ys, *ends)):
            np.testing.assert_allclose(ours.detach(), slow, rtol=1e-12, atol=1e-12)
    # or the test would not see the clips
    for what,limit in zip((last[1], y), (clips.get('cell_clip'), clips.get('proj_clip'))):
        assert not limit or (what.abs() == limit).any()

@pytest.mark.parametrize('proj', [0, 3])
def test_loop_is_pytorchs_lstm_on_packed_sentences(proj):
    lstm, x, mask, state = made(proj)
    packed, ends = lstm(pack_padded_sequence(x, torch.tensor(LENS), batch_first=True,
                                             enforce_sorted=False), [s[None] for s in state])
    theirs, _ = pad_packed_sequence(packed, batch_first=True)
    y, last = lstm_loop(lstm, x, state, mask)
    whole = lstm_loop(lstm, x, state), torch_lstm(lstm, x, state)
    for a,b in [(y*mask[...,None], theirs), *zip(last, (e[0] for e in ends)),
                (whole[0][0], whole[1][0]), *zip(whole[0][1], whole[1][1])]:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

@pytest.mark.parametrize('clips', CLIPS[::3])
def test_gradients(clips):
    lstm, x, mask, state = made(3, lens=(3, 2))
    names, weights = zip(*lstm.named_parameters())
    def run(x, *weights):
        for name,w in zip(names, weights): vars(copy)[name] = w
        return lstm_loop(copy, x, state, mask, **clips)[0]
    class Weights: proj_size, hidden_size = lstm.proj_size, lstm.hidden_size
    copy = Weights()
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *weights), fast_mode=True)

def test_start():
    lstm = nn.LSTM(3, 7)
    init_lstm(lstm)
    bias = lstm.bias_ih_l0
    assert (bias[7:14] == 1).all() and bias.sum() == 7 and bias.requires_grad
    assert not lstm.bias_hh_l0.any() and not lstm.bias_hh_l0.requires_grad

def test_locked_dropout():
    drop, x = LockedDropout(.3), torch.ones(400, 5, 10)
    y = drop(x)
    assert torch.equal(y, y[:,:1].expand_as(y)) and abs(y.mean() - 1) < .05
    assert set(y.unique().tolist()) == {0., y.max().item()} and not torch.equal(y[0], y[1])
    assert drop.eval()(x) is x and LockedDropout(0.)(x) is x
    for p in (-.1, 1, 1.5):
        with pytest.raises(ValueError, match='less than 1'): LockedDropout(p)
