"What can be copied and pickled, and exports of learners"
import copy, pickle

import pandas as pd, pytest, torch
from fastai.basics import load_learner

from elmo_fastai.batches import BiLMBlock
from elmo_fastai.tokens import ElmoTransform, NGramsTokenizer
from elmo_fastai.classifier import ClassifyDataLoaders
from elmo_fastai.tagger import ElmoBlock, TagDataLoaders, TokensTransform, WordsBlock
from elmo_fastai.practice.streams import BufferedDataLoader
from elmo_fastai.batches import ElmoDataLoaders, TokenTypes
from elmo_fastai.all import Elmo
from elmo_fastai.practice.embed import ElmoVectorizer
from elmo_fastai.classifier import elmo_classifier_learner
from elmo_fastai.tagger import elmo_tagger_learner
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.learner import bilm_learner
from made import CFG, VOCAB, bilm

def split(text): return text.split()

SHORT = lambda text: text.split()

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

@each
def test_it_is_pickled_with_the_tokenizer_and_copied_with_any(make):
    for tokenizer in ('words', split, word_tokenize, str.split): pickle.loads(pickle.dumps(make(tokenizer)))
    copy.deepcopy(make(SHORT)), copy.copy(make(SHORT))

def test_a_copy_splits_likewise():
    one = elmo(SHORT)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(elmo(split)))):
        assert other.to_tokens(['the bank']) == [['the', 'bank']]

# exports

KINDS = {name: MADE[name] for name in ('classifier', 'tagger', 'language learner')}
each_kind = pytest.mark.parametrize('kind', KINDS)
ASKED = {'classifier': ('the bank',), 'tagger': ('the bank',), 'language learner': (['the bank'], 0)}

@each_kind
@pytest.mark.filterwarnings('ignore:load_learner')
def test_an_export_keeps_the_function(kind, tmp_path):
    learn = KINDS[kind](SHORT)
    learn.export(tmp_path/'a.pkl')
    again = load_learner(tmp_path/'a.pkl')
    assert repr(again.predict(*ASKED[kind])[0]) == repr(learn.predict(*ASKED[kind])[0])

