"""What can't be pickled says so, a tokenizer with its cure; exports of learners hold no path

A function that is written in a call (a lambda), or inside another one, has no place from which
`pickle` could import it again. What pickles such functions themselves, as fastai's `export` does by
default (cloudpickle), goes on doing so."""
import copy, functools, io, pickle, pickletools, threading, zipfile

import cloudpickle, pandas as pd, pytest, torch
from fastai.basics import load_learner

from elmo_fastai.batches import BiLMBlock
from elmo_fastai.tokens import ElmoTransform, NGramsTokenizer
from elmo_fastai.classifier import ClassifyDataLoaders
from elmo_fastai.tagger import ElmoBlock, TagDataLoaders, TokensTransform, WordsBlock
from elmo_fastai.practice.streams import BufferedDataLoader
from elmo_fastai.batches import ElmoDataLoaders, TokenTypes
from elmo_fastai.all import Elmo
from elmo_fastai.practice.vectorizer import ElmoVectorizer
from elmo_fastai.classifier import elmo_classifier_learner
from elmo_fastai.tagger import elmo_tagger_learner
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

def inner():
    def split_here(text): return text.split()
    return split_here

TOKENIZERS = {'lambda': lambda text: text.split(), 'inner function': inner(),
              'partial': functools.partial(lambda text, sep: text.split(sep), sep=' '),
              'bound method': Locked().split, 'object': Locked()}
GOOD = {'name': 'words', 'function': split, 'ours': word_tokenize, 'method': Mine().split,
        'partial': functools.partial(split), 'str.split': str.split}

LINES = ['the bank of the river', 'a bank', 'the river and the bank']*4

def elmo(tokenizer): return Elmo(bilm(n_words=0), tokenizer=tokenizer).eval()

def language(tokenizer):
    corpus = Corpus('c', dict(train=LINES, valid=LINES), tokenizer)
    return ElmoDataLoaders.from_corpus(corpus, bs=2, device='cpu')

def classified(tokenizer):
    df = pd.DataFrame(dict(text=['good film', 'bad film']*8, label=['a', 'b']*8))
    return ClassifyDataLoaders.from_df(df, device='cpu', tokenizer=tokenizer, bs=4)

def tagged(tokenizer):
    return TagDataLoaders.from_sents([Sentence(['Ann', 'saw'], ['X', 'Y'])]*8, device='cpu', bs=4,
                                     tokenizer=tokenizer)

def classifier(tokenizer): return elmo_classifier_learner(classified(tokenizer), elmo('words'))
def tagger(tokenizer): return elmo_tagger_learner(tagged(tokenizer), bilm(n_words=0), hidden=4)

def language_model(tokenizer):
    lm = bilm()
    lm.tokenizer = tokenizer
    return lm

MADE = {
    'BiLM': language_model,
    'TokenTypes': lambda tok: TokenTypes(VOCAB, None, tok),
    'Elmo': elmo,
    'a module with one': lambda tok: torch.nn.Sequential(elmo(tok)),
    'ElmoVectorizer': lambda tok: ElmoVectorizer(elmo(tok)).fit([]),
    'language loaders': language,
    'one of them': lambda tok: classified(tok).valid,
    'a stream': lambda tok: BufferedDataLoader([('a.txt', 0)], VOCAB, 1, tokenizer=tok, bs=2),
    'classify loaders': classified,
    'tag loaders': tagged,
    'corpus': lambda tok: Corpus('c', dict(train=LINES), tok),
    'ElmoTransform': lambda tok: ElmoTransform(tokenizer=tok),
    'TokensTransform': lambda tok: TokensTransform(tokenizer=tok),
    'ElmoBlock': ElmoBlock,
    'WordsBlock': lambda tok: WordsBlock(tokenizer=tok),
    'BiLMBlock': lambda tok: BiLMBlock(tokenizer=tok),
    'NGramsTokenizer': lambda tok: NGramsTokenizer(2, tok),
    'classifier': classifier,
    'tagger': tagger,
    'language learner': lambda tok: bilm_learner(language(tok), CFG, bf16=False)}
each = pytest.mark.parametrize('make', MADE.values(), ids=MADE)
WRITERS = lambda made: torch.save(made, io.BytesIO()), pickle.dumps, pickle._dumps

def check(error, tokenizer):
    said = str(error.value)
    assert 'tokenizer' in said and "'words'" in said and 'top level' in said and '\n' not in said
    assert isinstance(error.value, ValueError) and isinstance(error.value, pickle.PicklingError)

@each
def test_the_tokenizer_is_meant(make):
    made = make(TOKENIZERS['lambda'])
    copy.deepcopy(made), copy.copy(made)                     # they keep the function
    for write in WRITERS:
        with pytest.raises(pickle.PicklingError) as e: write(made)
        check(e, 'lambda')
    for tokenizer in GOOD.values(): pickle.loads(pickle.dumps(make(tokenizer)))

@pytest.mark.parametrize('tokenizer', [*GOOD.values(), *TOKENIZERS.values()],
                         ids=[*GOOD, *TOKENIZERS])
def test_a_copy_splits_likewise(tokenizer):
    one = elmo(tokenizer)
    others = [copy.copy(one), copy.deepcopy(one), copy.deepcopy(copy.copy(one))]
    for other in others: assert other.to_tokens(['the bank']) == [['the', 'bank']]
    if tokenizer in GOOD.values():
        again = pickle.loads(pickle.dumps(others[2]))
        assert again.to_tokens(['the bank']) == [['the', 'bank']]
        assert type(again.tokenizer) is type(one.tokenizer)
        return
    for made in (one, language(tokenizer)):
        with pytest.raises(pickle.PicklingError) as e: pickle.dumps(made)
        check(e, tokenizer)

def test_what_pickles_functions_does_so():
    for name in ('lambda', 'inner function', 'partial'):
        again = pickle.loads(cloudpickle.dumps(elmo(TOKENIZERS[name])))
        assert again.to_tokens(['the bank']) == [['the', 'bank']]
        stream = io.BytesIO()
        torch.save(elmo(TOKENIZERS[name]), stream, pickle_module=cloudpickle)
    with pytest.raises(pickle.PicklingError) as e: cloudpickle.dumps(elmo(Locked()))
    check(e, 'object')

def test_a_module_whose_method_is_the_tokenizer():
    "It is within itself"
    made = Owner()
    again = pickle.loads(pickle.dumps(made))
    assert again.elmo.to_tokens(['the bank']) == [['the', 'bank']]
    made.lock = threading.Lock()
    with pytest.raises(pickle.PicklingError) as e: pickle.dumps(made)
    check(e, 'bound method')

class Owner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.elmo = elmo(self.split)
    def split(self, text): return text.split()

def test_a_pipeline_in_a_file(tmp_path):
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    texts, y = ['the bank', 'a river']*4, [0, 1]*4
    pipe = make_pipeline(ElmoVectorizer(elmo(TOKENIZERS['lambda'])), LogisticRegression())
    pipe.fit(texts, y)
    with pytest.raises(pickle.PicklingError) as e: joblib.dump(pipe, tmp_path/'pipe')
    check(e, 'lambda')
    pipe.set_params(elmovectorizer__model=elmo(split)).fit(texts, y)
    joblib.dump(pipe, tmp_path/'pipe')
    assert (joblib.load(tmp_path/'pipe').predict(texts) == pipe.predict(texts)).all()

# exports

KINDS = {name: MADE[name] for name in ('classifier', 'tagger', 'language learner')}
each_kind = pytest.mark.parametrize('kind', KINDS)
ASKED = {'classifier': ('the bank',), 'tagger': ('the bank',), 'language learner': (['the bank'], 0)}

@each_kind
def test_an_export_that_fails_leaves_all_as_it_was(kind, tmp_path):
    learn = KINDS[kind](Locked())
    learn.create_opt()
    learn.path = tmp_path
    (tmp_path/'export.pkl').write_bytes(b'an earlier one')
    before = learn.dls, learn.opt
    with pytest.raises(pickle.PicklingError) as e: learn.export()
    check(e, 'object')
    assert contents(tmp_path) == {'export.pkl': b'an earlier one'}
    assert (learn.dls, learn.opt) == before
    quietly(learn, 'fit', 1, 1e-3)

@each_kind
@pytest.mark.filterwarnings('ignore:load_learner')
def test_an_export_keeps_the_function(kind, tmp_path):
    learn = KINDS[kind](TOKENIZERS['lambda'])
    learn.export(tmp_path/'new'/'a.pkl')
    assert [*contents(tmp_path/'new')] == ['a.pkl']
    load_learner(tmp_path/'new'/'a.pkl').predict(*ASKED[kind])
    with pytest.raises(pickle.PicklingError) as e:
        learn.export(tmp_path/'b.pkl', pickle_module=pickle)
    check(e, 'lambda')
    assert not (tmp_path/'b.pkl').exists()

def contents(folder): return {file.name: file.read_bytes() for file in folder.iterdir()}

@each_kind
@pytest.mark.filterwarnings('ignore:load_learner')
def test_an_export_for_any_system(kind, tmp_path):
    "On Windows no `PosixPath` can be made"
    learn = KINDS[kind]('words')
    learn.path = tmp_path
    learn.export()
    with zipfile.ZipFile(tmp_path/'export.pkl') as z:
        [name] = [name for name in z.namelist() if name.endswith('data.pkl')]
        names = {arg for _,arg,_ in pickletools.genops(z.read(name)) if isinstance(arg, str)}
    assert not any('pathlib' in name or 'PosixPath' in name for name in names)
    again = load_learner(tmp_path/'export.pkl')
    assert repr(again.predict(*ASKED[kind])[0]) == repr(learn.predict(*ASKED[kind])[0])
    assert type(again) is type(learn) and again.path == learn.path == tmp_path
