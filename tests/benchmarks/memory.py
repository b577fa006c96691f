"""How far an LSTM learns to carry one bit, by its forget bias, the lengths that it trains on, the
number of batches and the learning rate.

    # figures go to nbs/results/memory.json: some ten minutes of one core; again: goes on
    python tests/benchmarks/memory.py

The lesson nbs/course/06_memory.ipynb shows the figures. Task and network are those of the lesson;
each copy has initial weights and texts of its own. Nothing is chosen: all settings that were tried
are in the file.
"""
import torch
from torch import nn
from torch.nn import functional as F
from harness import RESULTS, has, options, read_figures, write_figures

BIASES = 1, 3, 5
TRAININGS = {'always 40': (40, 40), 'always 20': (20, 20), '1 to 20': (1, 20)}   # steps
BATCHES = 300, 600, 1200
TESTED = 20, 40, 80

def bit_task(steps, n):
    "Texts [n, T, 2], and what the first word of the last sentence of each said [n]"
    start = 16                            # four earlier sentences of four words
    said = torch.randint(2, (n, start+1+steps))
    first = torch.zeros_like(said)
    first[:,:start+1:4] = 1
    return torch.stack([2.*said - 1, first], -1), said[:, start]

class Memory(nn.Module):
    "An LSTM with 8 cells and a linear layer on its last state; weights begin as in the lesson"
    def __init__(self, forget_bias, n=8):
        super().__init__()
        self.lstm = nn.LSTM(2, n, batch_first=True)
        self.head = nn.Linear(n, 2)
        of_word, of_state = nn.Linear(2, 4*n), nn.Linear(n, 4*n)
        of_word.bias.data[n:2*n] += forget_bias
        self.lstm.load_state_dict(dict(weight_ih_l0=of_word.weight, bias_ih_l0=of_word.bias,
                                       weight_hh_l0=of_state.weight, bias_hh_l0=of_state.bias))
    def forward(self, x): return self.head(self.lstm(x)[0][:, -1])

@torch.no_grad()
def share_right(model, steps):
    x, y = bit_task(steps, 500)
    return round((model(x).argmax(-1) == y).float().mean().item(), 3)

def run(seed, bias, lr, shortest, longest):
    "Shares right after each number of batches, one per tested length"
    torch.manual_seed(seed)
    model, found = Memory(bias), {}
    opt = torch.optim.Adam(model.parameters(), lr)
    for batch in range(1, BATCHES[-1]+1):
        x, y = bit_task(int(torch.randint(shortest, longest+1, ())), 32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if batch in BATCHES: found[batch] = [share_right(model, steps) for steps in TESTED]
    return found

# training, bias and rate: each bias at the lesson's rate, then the hardest training at others
SETTINGS = [(name, bias, 2e-2) for bias in BIASES for name in TRAININGS]
SETTINGS += [('always 40', bias, lr) for bias,lr in ((3, 5e-3), (3, 1e-2), (3, 4e-2), (1, 5e-3))]

def main():
    args = options(__doc__, copies=10, json=RESULTS/'memory.json')
    torch.set_num_threads(1)
    rows = read_figures(args.json, [])
    for name,bias,lr in SETTINGS:
        key = dict(training=name, bias=bias, lr=lr)
        if has(rows, key): continue
        found = [run(seed, bias, lr, *TRAININGS[name]) for seed in range(args.copies)]
        for n in BATCHES:
            shares = {str(k): [f[n][i] for f in found] for i,k in enumerate(TESTED)}
            rows.append(key | dict(batches=n, right=shares))
            print(key, n, {k: round(sum(v)/len(v), 2) for k,v in shares.items()}, flush=True)
        write_figures(args.json, rows, lines=True)

if __name__ == '__main__': main()
