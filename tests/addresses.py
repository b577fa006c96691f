"""Weights at addresses that processors do not like, as those of a file that is mapped into memory.

PyTorch begins every tensor at a multiple of 64 bytes. Matrix products round otherwise where one
begins elsewhere, so that two copies of a model differ in the last bits (seen on AMD processors).
Under `odd` each parameter of a module begins 4, 24, 40 or 52 bytes after
such a multiple, by turns, so that no two models lie alike."""
from contextlib import contextmanager
from itertools import cycle

import numpy as np, torch
from torch import nn

ALIGNED = 64
TURNS = cycle((4, 24, 40, 52))
distances = None                    # how far after a multiple of 64 the next parameters begin

def moved(tensor, distance):
    "A copy of a tensor that begins `distance` bytes after a multiple of 64"
    n = tensor.numel()*tensor.element_size()
    memory = np.empty(n + 2*ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED + distance
    own = torch.from_numpy(memory[start:start + n])      # its storage has these bytes and no others
    return own.view(tensor.dtype).view(tensor.shape).copy_(tensor)

def movable(parameter):
    "Is it a parameter on the processor that lies where PyTorch puts it?"
    if not isinstance(parameter, nn.Parameter) or parameter.device.type != 'cpu': return False
    usual = parameter.is_contiguous() and parameter.data_ptr() % ALIGNED == 0
    return usual and parameter.is_floating_point() and parameter.numel() > 0

register = nn.Module.register_parameter

def register_moved(self, name, param):
    "Register a parameter of a module, after moving it"
    if distances is not None and movable(param):
        with torch.inference_mode(False): param.data = moved(param.detach(), next(distances))
    register(self, name, param)

@contextmanager
def placed(others):
    "Other distances, for a while"
    global distances
    before, distances = distances, others
    nn.Module.register_parameter = register_moved
    try: yield
    finally: distances = before

def usual(): return placed(None)

def odd(): return placed(TURNS)
