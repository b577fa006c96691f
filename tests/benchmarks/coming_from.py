"""AllenNLP's own classes read what this library writes, and both embed the same sentences.

    pip install --no-deps allennlp==2.10.1         # the last release, and nothing that it asks for
    python tests/benchmarks/coming_from.py         # half a minute

AllenNLP asks for a PyTorch of 2022. Its ELMo needs little of what else it asks for: the packages
in ABSENT are replaced by empty ones, its own files are as released, and run on today's PyTorch. The
models are those of tests/test_ai2.py: random weights, written by `Elmo.to_ai2`.
"""
import importlib.machinery, sys, tempfile, types
from importlib.metadata import version
from pathlib import Path
import torch
from fastcore.script import call_parse
from harness import RESULTS, log, write_figures

ABSENT = """_jsonnet base58 boto3 cached_path checklist dill fairscale google huggingface_hub lmdb
    more_itertools nltk sacremoses tensorboardX termcolor torchvision transformers wandb""".split()

class Empty:
    def __init__(self, *args, **kwargs): pass
    def __call__(self, *args, **kwargs): return args[0] if args else None

class EmptyPackage(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        if name == 'cached_path': return lambda path, *args, **kwargs: str(path)
        return type(name, (Empty,), {})

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in ABSENT: return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return EmptyPackage(spec.name)
    def exec_module(self, module): pass

def import_allennlp():
    sys.meta_path.insert(0, Finder())
    from allennlp.modules.elmo import Elmo, batch_to_ids
    return Elmo, batch_to_ids

def largest(a, b): return max((x - y).abs().max().item() for x,y in zip(a, b, strict=True))

def with_marks(elmo, sents):
    "Our vectors where the marks of a sentence count in the norm of a layer, as in AllenNLP"
    from elmo_fastai.elmo import Elmo, add_markers
    given = Elmo(elmo.lm, n_reps=2, norm='batch', markers='given').eval()
    chars = add_markers(elmo.to_chars(sents), elmo.char_vocab.specials)
    vectors, mask = given(chars)
    inner = mask[:, 2:]                     # as many as a sentence has tokens
    return [h[:, 1:-1]*inner[..., None] for h in vectors]

def compare(theirs_class, ids, folder, lm, sents):
    from elmo_fastai.elmo import Elmo
    files = [str(folder/name) for name in ('options.json', 'weights.hdf5')]
    def theirs(**kwargs): return theirs_class(*files, 2, **kwargs).eval()
    def ours(**kwargs): return Elmo(lm, n_reps=2, **kwargs).eval()
    plain, normed = theirs(), theirs(do_layer_norm=True)
    first = plain(ids)
    second = plain(ids)['elmo_representations']
    vectors, mask = ours()(sents)
    carrying = ours(carry=True)
    carrying(sents)
    carried, _ = carrying(sents)
    assert (first['mask'] == mask).all()
    with_norm = normed(ids)['elmo_representations']
    return dict(
        values=max(h.abs().max().item() for h in vectors),
        difference=largest(first['elmo_representations'], vectors),
        second_call=largest(second, first['elmo_representations']),
        second_carried=largest(second, carried),
        norm=largest(with_norm, ours(norm='batch')(sents)[0]),
        norm_with_marks=largest(with_norm, with_marks(ours(), sents)))

@call_parse
def main(
    json:Path=RESULTS/'coming_from.json'  # file of the figures
):
    "Compare all configurations and write the figures"
    from test_ai2 import OURS, SENTS, trained
    torch.set_grad_enabled(False)
    theirs, batch_to_ids = import_allennlp()
    sents = [tokens for tokens in SENTS if tokens]
    ids = batch_to_ids(sents)
    found = dict(allennlp=version('allennlp'), torch=version('torch'),
                 tokens=sum(map(len, sents)), rows=[])
    for config in OURS:
        row = dict(config=config)
        with tempfile.TemporaryDirectory() as tmp:
            elmo = trained(**config)
            assert (ids == elmo.to_chars(sents)).all()
            folder = elmo.to_ai2(Path(tmp)/'model')
            try: row |= compare(theirs, ids, folder, elmo.lm, sents)
            except Exception as e:
                if type(e).__name__ != 'ConfigurationError': raise
                row['refused'] = str(e)
        found['rows'].append(row)
        log(row)
    write_figures(json, found)
