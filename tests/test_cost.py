"Operations counted by shapes against those that PyTorch counts while it computes"
from dataclasses import replace
import pytest, torch
from torch.utils.flop_counter import FlopCounterMode
from elmo_fastai.tokens import ByteCharVocab
from elmo_fastai.bilm import BiLM, BiLMConfig
from pages import page

pytestmark = pytest.mark.slow

study = page('studies/cost')
matrix_speed, step_operations = study.matrix_speed, study.step_operations

CFG = BiLMConfig(
    'test', char_dim=4, filters=((1, 4), (2, 8), (3, 20)), n_highway=2, proj_dim=16, hidden_dim=16
)


def batch(n_words=300, bs=4, seq_len=24, seed=0):
    "A batch with repeated words, and padding at the end of its first row"
    g = torch.Generator().manual_seed(seed)
    ids = (torch.randint(4, n_words, (bs, seq_len), generator=g) % 40
           + torch.randint(0, n_words - 60, (bs, 1), generator=g) + 4)
    chars = (torch.as_tensor(ByteCharVocab().encode([
        f'w{i}' for i in ids.flatten().tolist()])).view(bs, seq_len, -1).clone())
    fwd, bwd = ids.roll(-1, 1), ids.roll(1, 1)
    chars[0,-5:], fwd[0,-5:], bwd[0,-5:] = 0, 0, 0
    return chars, fwd, bwd

@pytest.mark.parametrize('kw', [
    dict(cutoffs=()), dict(cutoffs=(50, 150)), dict(n_highway=0), dict(proj_dim=8, hidden_dim=24),
    dict(n_layers=1), dict(char_proj=False, proj_dim=32, hidden_dim=32)])
@pytest.mark.parametrize('savings', [True, False])
def test_against_pytorchs_own_count(kw, savings):
    torch.manual_seed(0)
    m, b = BiLM(replace(CFG, **{**dict(cutoffs=()), **kw}), 300).double(), batch()
    m.chars.savings = savings
    with FlopCounterMode(display=False) as counter:
        torch.cat(m(*b)).sum().backward()
    ours = sum(step_operations(m, *b).values())
    # padded tokens run through the LSTM, its first step has no state
    assert 0.94 < counter.get_total_flops()/ours < 1.03


def test_a_sample_is_counted_as_a_sample():
    b = batch()
    ops = {k: step_operations(BiLM(replace(CFG, softmax=k, n_negative=30), 300), *b)['output']
           for k in ('full', 'sampled')}
    assert ops['full'] == 10*ops['sampled']

def test_no_head():
    assert step_operations(BiLM(CFG, 0), *batch())['output'] == 0

def test_the_clock():
    assert matrix_speed(n=64, times=2) > 0 and matrix_speed(torch.bfloat16, n=64, times=2) > 0
