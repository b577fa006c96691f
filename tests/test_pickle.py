"""What can't be pickled says so, a tokenizer with its cure; exports of learners hold no path

A function that is written in a call (a lambda), or inside another one, has no place from which
`pickle` could import it again. What pickles such functions themselves, as fastai's `export` does by
default (cloudpickle), goes on doing so."""
import copy, functools, io, pickle, pickletools, subprocess, sys, threading, zipfile
from pathlib import Path

import cloudpickle, pandas as pd, pytest, torch
from fastai.basics import load_learner
from fastai.callback.all import CSVLogger, SaveModelCallback

from elmo_fastai.batches import BiLMBlock, ElmoDataLoaders, TokenTypes
from elmo_fastai.tokens import ElmoTransform, NGramsTokenizer
from elmo_fastai.classifier import ClassifyDataLoaders, elmo_classifier_learner
from elmo_fastai.tagger import ElmoBlock, TagDataLoaders, WordsBlock, elmo_tagger_learner
from elmo_fastai.practice.checkpoint import Checkpoints
from elmo_fastai.practice.streams import BufferedDataLoader
from elmo_fastai.all import Elmo
from elmo_fastai.practice.vectorizer import ElmoVectorizer
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.learner import bilm_learner
from made import CFG, VOCAB, bilm, quietly

def split(text): return text.split()

class Locked:
    "A tokenizer that nothing can pickle"
    def __init__(self): self.lock = threading.Lock()
    def __call__(self, text): return text.split()
    def split(self, text): return text.split()

class Mine:
    def split(self, text): return text.split()

class Owner(torch.nn.Module):
    "A module whose method is the tokenizer: it is within itself"
    def __init__(self):
        super().__init__()
        self.elmo = elmo(self.split)
    def split(self, text): return text.split()

def inner():
    def split_here(text): return text.split()
    return split_here

BAD = {'lambda': lambda text: text.split(), 'inner function': inner(),
       'partial': functools.partial(lambda text, sep: text.split(sep), sep=' '),
       'bound method': Locked().split, 'object': Locked()}
GOOD = {'name': 'words', 'function': split, 'ours': word_tokenize, 'method': Mine().split,
        'partial of one': functools.partial(split), 'str.split': str.split}

LINES = ['the bank of the river', 'a bank', 'the river and the bank']*4

def elmo(tokenizer): return Elmo(bilm(n_words=0), tokenizer=tokenizer).eval()

def language(tokenizer):
    corpus = Corpus('c', dict(train=LINES, valid=LINES), tokenizer)
    return ElmoDataLoaders.from_corpus(corpus, bs=2, device='cpu')

def classifier(tokenizer):
    df = pd.DataFrame(dict(text=['good film', 'bad film']*8, label=['a', 'b']*8))
    dls = ClassifyDataLoaders.from_df(df, device='cpu', tokenizer=tokenizer, bs=4)
    return elmo_classifier_learner(dls, elmo('words'))

def tagger(tokenizer):
    sents = [Sentence(['Ann', 'saw'], ['X', 'Y'])]*8
    dls = TagDataLoaders.from_sents(sents, device='cpu', bs=4, tokenizer=tokenizer)
    return elmo_tagger_learner(dls, bilm(n_words=0), hidden=4)

def language_model(tokenizer):
    lm = bilm()
    lm.tokenizer = tokenizer
    return lm

LEARNERS = {'classifier': classifier, 'tagger': tagger,
            'language learner': lambda tok: bilm_learner(language(tok), CFG, bf16=False)}
MADE = LEARNERS | {
    'BiLM': language_model, 'Elmo': elmo, 'ElmoBlock': ElmoBlock,
    'TokenTypes': lambda tok: TokenTypes(VOCAB, None, tok),
    'a module with one': lambda tok: torch.nn.Sequential(elmo(tok)),
    'ElmoVectorizer': lambda tok: ElmoVectorizer(elmo(tok)).fit([]),
    'a stream': lambda tok: BufferedDataLoader([('a.txt', 0)], VOCAB, 1, tokenizer=tok, bs=2),
    'corpus': lambda tok: Corpus('c', dict(train=LINES), tok),
    'ElmoTransform': lambda tok: ElmoTransform(tokenizer=tok),
    'WordsBlock': lambda tok: WordsBlock(tokenizer=tok),
    'BiLMBlock': lambda tok: BiLMBlock(tokenizer=tok),
    'NGramsTokenizer': lambda tok: NGramsTokenizer(2, tok)}

def refused(write):
    "It is told in one line that a tokenizer is meant, and which ones can be kept"
    with pytest.raises(pickle.PicklingError, match="tokenizer.*'words'.*top level") as e: write()
    assert isinstance(e.value, ValueError) and '\n' not in str(e.value)

@pytest.mark.parametrize('make', MADE.values(), ids=MADE)
def test_the_tokenizer_is_meant(make):
    made = make(BAD['lambda'])
    copy.deepcopy(made), copy.copy(made)                     # they keep the function
    for write in (pickle.dumps, pickle._dumps, lambda made: torch.save(made, io.BytesIO())):
        refused(lambda: write(made))
    pickle.loads(pickle.dumps(make(split)))

@pytest.mark.parametrize('name', [*GOOD, *BAD])
def test_a_copy_splits_likewise(name):
    one = elmo((GOOD | BAD)[name])
    def check(other): assert other.to_tokens(['the bank']) == [['the', 'bank']]
    for other in (copy.copy(one), copy.deepcopy(one), copy.deepcopy(copy.copy(one))): check(other)
    if name in BAD: refused(lambda: pickle.dumps(one))
    else: check(pickle.loads(pickle.dumps(copy.deepcopy(one))))
    if name in ('bound method', 'object'): refused(lambda: cloudpickle.dumps(one))
    else: check(pickle.loads(cloudpickle.dumps(one)))

def test_a_module_whose_method_is_the_tokenizer():
    made = Owner()
    again = pickle.loads(pickle.dumps(made))
    assert again.elmo.to_tokens(['the bank']) == [['the', 'bank']]
    made.lock = threading.Lock()
    refused(lambda: pickle.dumps(made))

# exports

each = pytest.mark.parametrize('kind', LEARNERS)
ASKED = {'classifier': ('the bank',), 'tagger': ('the bank',),
         'language learner': (['the bank'], 0)}

@each
def test_an_export_that_fails_leaves_all_as_it_was(kind, tmp_path):
    learn = LEARNERS[kind](Locked())
    learn.create_opt()
    learn.path = tmp_path
    (tmp_path/'export.pkl').write_bytes(b'an earlier one')
    before = learn.dls, learn.opt, learn.model_dir
    refused(learn.export)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b'an earlier one']
    assert (learn.dls, learn.opt, learn.model_dir) == before
    quietly(learn, 'fit', 1, 1e-3)

@each
@pytest.mark.filterwarnings('ignore:load_learner')
def test_an_export_keeps_the_function(kind, tmp_path):
    learn = LEARNERS[kind](BAD['lambda'])
    learn.export(tmp_path/'new'/'a.pkl')
    load_learner(tmp_path/'new'/'a.pkl').predict(*ASKED[kind])
    refused(lambda: learn.export(tmp_path/'new'/'b.pkl', pickle_module=pickle))
    assert [file.name for file in (tmp_path/'new').iterdir()] == ['a.pkl']

def texts_in(file):
    "All text in the pickle of a file that `torch.save` wrote: names of classes, and strings"
    with zipfile.ZipFile(file) as z:
        data = z.read(next(name for name in z.namelist() if name.endswith('data.pkl')))
    return ' '.join(arg for _,arg,_ in pickletools.genops(data) if isinstance(arg, str))

ELSEWHERE = """
import pathlib, pickle, sys, warnings
warnings.simplefilter('ignore')
from fastai.basics import load_learner
class Loader(pickle.Unpickler):       # as on Windows: this class can't be made there
    def find_class(self, module, name):
        if name == 'PosixPath' or module.startswith('pathlib'):
            raise NotImplementedError("cannot instantiate 'PosixPath' on your system")
        return super().find_class(module, name)
class There: Unpickler = Loader; load = pickle.load; __name__ = 'pickle'
for file,args in eval(sys.argv[1]):
    print(repr(load_learner(file, pickle_module=There).predict(*args)[0]))
"""

def test_another_system_loads_what_holds_no_path(tmp_path, monkeypatch):
    "It goes on in the working folder, as a new learner does"
    for name in ('home', 'else'): (tmp_path/name).mkdir()
    home, said = tmp_path/'home', []
    for kind,make in LEARNERS.items():
        learn = make('words')
        learn.path = learn.dls.path = home
        learn.model_dir = home/'kept'
        learn.add_cbs([CSVLogger(home/'log.csv'), Checkpoints(tmp_path/kind),
                       SaveModelCallback(fname='best')])
        quietly(learn, 'fit', 1, 1e-3)
        before = learn.path, learn.dls.path, learn.model_dir, learn.dls, learn.opt
        learn.export(f'{kind}.pkl')
        assert (learn.path, learn.dls.path, learn.model_dir, learn.dls, learn.opt) == before
        text = texts_in(home/f'{kind}.pkl')
        for found in ('pathlib', 'PosixPath', tmp_path.name): assert found not in text, kind
        said.append(repr(learn.predict(*ASKED[kind])[0]))
        monkeypatch.chdir(tmp_path/'else')
        again = load_learner(home/f'{kind}.pkl')
        assert again.path == again.dls.path == Path('.')
        assert again.csv_logger.fname == Path('log.csv')
        assert again.checkpoints.folder == Path(kind) and type(again) is type(learn)
        again.save('w')
        again.export('b.pkl')
        assert Path('kept/w.pth').exists() and load_learner('b.pkl').model
    told = subprocess.run(
        [sys.executable, '-c', ELSEWHERE, repr([(f'{kind}.pkl', ASKED[kind]) for kind in ASKED])],
        capture_output=True, text=True, cwd=home)
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == said
