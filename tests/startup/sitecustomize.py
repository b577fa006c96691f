"""What `tests/robust.py` changes in every Python that it starts, without touching a notebook:
Python runs a file of this name at its start where its folder is on PYTHONPATH.

`ROBUST_SEEDS=n` adds n to every whole number that seeds a generator of Python, NumPy or torch.
`ROBUST_FP32=1` hides the processor's instructions for bfloat16.
`ROBUST_ADDRESSES=1` moves the weights of every module, see `addresses.py`."""
import functools, os, random, sys
from importlib.machinery import PathFinder
from numbers import Integral

offset = int(os.environ.get('ROBUST_SEEDS', 0))

def moved(seed):
    "The other seed; none, and seeds that are texts, stay"
    return seed + offset if isinstance(seed, Integral) else seed

def other_seed(f):
    "The function `f` of a seed, with another seed"
    @functools.wraps(f)
    def g(seed=None, *args, **kwargs): return f(moved(seed), *args, **kwargs)
    return g

class Random(random.Random):
    "Its constructor calls `seed`, too"
    def seed(self, a=None, version=2): super().seed(moved(a), version)

def change_numpy(np_random):
    if offset:
        np_random.seed = other_seed(np_random.seed)
        np_random.default_rng = other_seed(np_random.default_rng)

def change_torch(torch):
    if offset:
        class Generator(torch.Generator):
            def manual_seed(self, seed): return super().manual_seed(moved(seed))
        torch.manual_seed, torch.Generator = other_seed(torch.manual_seed), Generator
    if os.environ.get('ROBUST_FP32'): torch.cpu._is_avx512_bf16_supported = lambda: False
    if os.environ.get('ROBUST_ADDRESSES'):
        from addresses import move_all
        move_all()

class AfterImport:
    "Finds modules where Python finds them, and changes them when they have been read"
    changes = {'numpy.random': change_numpy, 'torch': change_torch}
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.changes: return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None: return None
        read = spec.loader.exec_module
        def exec_module(module):
            read(module)
            cls.changes[name](module)
        spec.loader.exec_module = exec_module
        return spec

if offset: random.Random, random.seed = Random, other_seed(random.seed)
sys.meta_path.insert(0, AfterImport)
