"""One text at each door, its letters written as one code point or as two; and tokens that are cut

Texts are brought to NFC once; token lists, and texts for AI2's models, stay as they are. A token
longer than its row is cut, and one warning of a call counts all of them."""
import re, unicodedata, warnings
from functools import cache

import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import CategoryBlock, ColReader, DataBlock, RandomSplitter

from elmo_fastai.data.blocks import ClassifyDataLoaders, ElmoBlock, TagDataLoaders
from elmo_fastai.data.blog import ElmoTransform
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.elmo.file import embed_file
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.elmo.vectorizer import ElmoVectorizer
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, guesses
from elmo_fastai.tasks.cbow import cbow_learner, word_vectors
from elmo_fastai.tasks.classify import elmo_classifier_learner
from elmo_fastai.tasks.tag import elmo_tagger_learner
from elmo_fastai.text.read import Corpus, Sentence
from elmo_fastai.text.tokens import (
    ByteCharVocab, CharVocab, NGramsTokenizer, WordVocab, word_tokenize)
from elmo_fastai.train.report import baselines
from elmo_fastai.train.speak import fill, generate, score
from made import CFG, bilm, fit, make, quietly

TEXT = 'Zo\u00eb likes the caf\u00e9'
LONG = 'x'*60
TOO_LONG = f'the caf\u00e9 {LONG}1 and {LONG}2'
CPU = dict(device='cpu', bs=4)

# models, made once

@cache
def classifier():
    df = pd.DataFrame(dict(text=['a good film', 'it was bad']*8, label=['good', 'bad']*8))
    return fit(elmo_classifier_learner(ClassifyDataLoaders.from_df(df, **CPU), bilm(n_words=0)))

@cache
def tagger():
    sents = [Sentence(['Ann', 'saw', 'Rome'], ['B-PER', 'O', 'B-LOC'])]*8
    dls = TagDataLoaders.from_sents(sents, **CPU)
    return fit(elmo_tagger_learner(dls, bilm(n_words=0), hidden=8, words=8))

def corpus_of(text):
    return Corpus('c', {'train': [f'{text} {i}' for i in range(30)], 'valid': [text]*3})

@cache
def cbow(chars):
    source = corpus_of('the caf\u00e9 of Zo\u00eb is here')
    dls = ElmoDataLoaders.from_corpus(source, kind='cbow', context_size=1, bs=8, device='cpu')
    return cbow_learner(dls, dim=8, chars=chars)

@cache
def speaker():
    vocab = WordVocab.build([word_tokenize('the caf\u00e9 of Zo\u00eb is here')])
    lm = BiLM(CFG, len(vocab)).eval()
    lm.tokenizer = 'words'
    return lm, vocab, ByteCharVocab()

# doors

def ids_of(dls): return dls.vocab.itos, *[b.tolist() for dl in dls for batch in dl for b in batch]

def of_stream(text, folder):
    (folder/'a.txt').write_text('\n'.join([text]*20), encoding='utf-8')
    return ids_of(stream_loaders(folder/'a.txt', n_valid=2, device='cpu', bs=4, seed=1))

def of_file(text, folder):
    (folder/'a.txt').write_text(text, encoding='utf-8')
    embed_file(folder/'a.txt', folder/'a.npz', make(), overwrite=True, say=str)
    with np.load(folder/'a.npz') as arrays: return arrays['0']

def tokens_of(dls):
    return [dls.char_vocab.decode(chars) for ds in (dls.train_ds, dls.valid_ds) for chars,_ in ds]

def labelled(text): return pd.DataFrame(dict(text=[text, 'b']*10, label=['x', 'y']*10))

def own_block(text):
    block = DataBlock((ElmoBlock(), CategoryBlock), get_x=ColReader('text'),
                      get_y=ColReader('label'), splitter=RandomSplitter(seed=0))
    return block.dataloaders(labelled(text), **CPU)

def spans(text, folder):
    [found] = tagger().tag([text], as_spans=True)
    for span in found: assert text[span['start']:span['end']] == span['text']
    return [(span['label'], unicodedata.normalize('NFC', span['text'])) for span in found]

def perplexities(text, folder):
    dls = ElmoDataLoaders.from_corpus(corpus_of(text), device='cpu')
    return list(baselines(dls.corpus, dls).values())

DOORS = {               # of each door what it makes of a text
    'embed': lambda text, folder: make().embed([text]),
    'embed_iter': lambda text, folder: list(make().embed_iter([text])),
    'to_chars': lambda text, folder: make().to_chars([text]),
    'to_tokens': lambda text, folder: make().to_tokens([text]),
    'layers': lambda text, folder: make().layers([text])[0],
    'forward': lambda text, folder: make()([text])[0],
    'a function': lambda text, folder: make(tokenizer=str.split).embed([text]),
    'influence': lambda text, folder: make().influence(text, text.split()[0]).mix,
    'ElmoVectorizer': lambda text, folder: ElmoVectorizer(make()).fit_transform([text]),
    'embed_file': of_file,
    'from_corpus': lambda text, folder: ids_of(ElmoDataLoaders.from_corpus(
        corpus_of(text), device='cpu', seed=1, char_vocab=CharVocab.build([['\u00eb\u00e9']]))),
    'test_dl': lambda text, folder: cbow(False).dls.test_dl([text]).one_batch(),
    'stream_loaders': of_stream,
    'baselines': perplexities,
    'ElmoTransform': lambda text, folder: ElmoTransform(vocab=speaker()[1])(text),
    'NGramsTokenizer': lambda text, folder: NGramsTokenizer(2)(text),
    'score': lambda text, folder: score(*speaker(), text)[0].fwd,
    'generate': lambda text, folder: generate(*speaker(), text, 2, temperature=0),
    'fill': lambda text, folder: fill(*speaker(), f'{text} ___ {text}').p,
    'CBOW': lambda text, folder: cbow(False).predict(f'{text} ___ {text}')[2],
    'CBOW by letters': lambda text, folder: cbow(True).predict(f'{text} ___ {text}')[2],
    'ClassifyDataLoaders': lambda text, folder: tokens_of(
        ClassifyDataLoaders.from_df(labelled(text), **CPU)),
    'a DataBlock': lambda text, folder: tokens_of(own_block(text)),
    'classifier': lambda text, folder: classifier().predict(text)[2],
    'classifier, test_dl': lambda text, folder: classifier().dls.test_dl([text]).one_batch()[0],
    'attention': lambda text, folder: classifier().attention(text),
    'tagger': lambda text, folder: tagger().predict(text)[2],
    'tag': lambda text, folder: tagger().tag([text, text]),
    'tag, as spans': spans,
    'tagger, test_dl': lambda text, folder: tagger().dls.test_dl([text]).one_batch()[0]}

def equal(a, b):
    if isinstance(a, (list, tuple, dict)): return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, str): return a == b
    return np.shape(a) == np.shape(b) and (np.asarray(a) == np.asarray(b)).all() or np.allclose(
        np.asarray(a), np.asarray(b), atol=1e-5)

@pytest.mark.parametrize('door', DOORS)
def test_a_text_is_the_same_however_its_letters_are_written(door, tmp_path):
    one, two = [DOORS[door](unicodedata.normalize(form, TEXT), tmp_path) for form in ('NFC', 'NFD')]
    with torch.no_grad(): assert equal(one, two)

def test_tokens_and_texts_for_ai2s_models_stay_as_they_are(tmp_path):
    one, two = 'caf\u00e9', 'cafe\u0301'
    elmo = make(cfg=dict(char_proj=True, norm=False))
    assert not np.allclose(*elmo.embed([[one], [two]]))
    assert make().to_tokens([[two]]) == [[two]] != make().to_tokens([two])
    theirs = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'))
    kept = Elmo.from_pretrained(theirs.save_pretrained(tmp_path/'kept'))
    for model in (theirs, kept, Elmo.from_ai2(tmp_path/'ai2', tokenizer=str.split)):
        assert model.to_tokens([two, one]) == [[two], [one]]
        assert np.allclose(model.embed([two])[0], model.embed([[two]])[0], atol=1e-5)
    assert Elmo.from_ai2(tmp_path/'ai2', nfc=True).to_tokens([two]) == [[one]]
    gold = [Sentence([two, 'x'], ['A', 'B'])]*10
    dls = ElmoDataLoaders.from_corpus(Corpus.from_gold('c', dict(train=gold, valid=gold)))
    assert dls.train.text.notes['tags'][0] == ['A', 'B'] and one in dls.types.tokens
    dls = TagDataLoaders.from_sents(gold, min_freq=1, **CPU)
    assert dls.char_vocab.decode(dls.train_ds[0][0]) == [two, 'x'] and two in dls.vocab[0].itos
    [answer] = tagger().tag([[two, 'x']])
    assert [token for token,_ in answer] == [two, 'x']

# tokens that are cut

def told(door, text, folder):
    "How many tokens each warning counts"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        door(text, folder)
    counts = [re.match(r'([\d,]+) tokens? (?:is|are) cut, longer than the 48 bytes', str(w.message))
              for w in found]
    return [int(count[1].replace(',', '')) for count in counts if count]

COUNTED = {             # how often these doors give a text to the model, and are silent otherwise
    'embed_file': [], 'from_corpus': [], 'stream_loaders': [], 'baselines': [], 'to_tokens': [],
    'ElmoTransform': [], 'NGramsTokenizer': [], 'CBOW': [], 'tag': [4], 'fill': [4],
    'CBOW by letters': [4], 'ClassifyDataLoaders': [20]}

@pytest.mark.parametrize('door', DOORS)
def test_one_warning_counts_the_tokens_that_are_cut(door, tmp_path):
    for prepared in (classifier, tagger, speaker): prepared()
    cbow(False), cbow(True)
    found = told(DOORS[door], TOO_LONG, tmp_path)
    if door == 'a DataBlock': assert sum(found) == 20 and len(found) == 2     # of its two loaders
    else: assert found == COUNTED.get(door, [2])
    assert told(DOORS[door], TEXT, tmp_path) == []

def sents(text): return [Sentence(text.split(), ['O']*len(text.split()))]*10

MORE = {                # a call, and how many tokens it counts
    'a stream': (lambda: list(make().embed_iter(iter([TOO_LONG]*3000))), 6000),
    'a stream that is left early': (lambda: next(make().embed_iter([TOO_LONG]*3000)), None),
    'guesses': (lambda: guesses(speaker()[0], TOO_LONG.split(), *speaker()[1:]), 2),
    'score in batches': (lambda: score(*speaker(), [TOO_LONG]*5, bs=2), 10),
    'words by letters': (lambda: word_vectors(cbow(True), [LONG, 'a']), 1),
    'a report': (lambda: classifier().report(
        pd.DataFrame(dict(text=[TOO_LONG, 'a'], label=['good', 'bad']))), 2),
    'a report of tags': (lambda: tagger().report(sents(TOO_LONG)), 20),
    'TagDataLoaders': (lambda: TagDataLoaders.from_sents(
        [*sents(TOO_LONG), Sentence(['a'], ['X'])], sents(TOO_LONG), **CPU), 40),
    'tag': (lambda: tagger().tag([TOO_LONG]*1000), 2000)}

@pytest.mark.parametrize('call', MORE)
def test_a_call_warns_once(call, tmp_path):
    make_call, n = MORE[call]
    found = told(lambda *_: make_call(), '', tmp_path)
    assert len(found) == 1 and n in (None, found[0])

def test_a_training_does_not_warn_anew(tmp_path):
    dls = ClassifyDataLoaders.from_df(labelled(TOO_LONG), **CPU)
    learn = elmo_classifier_learner(dls, bilm(n_words=0))
    def train(*_):
        fit(learn)
        learn.report()
        quietly(learn, learn.get_preds)
        dls.show_batch(show=False)
    assert told(train, '', tmp_path) == []

def test_letters_of_an_alphabet_count():
    chars = CharVocab.build([list('abc')], max_chars=6)
    elmo = Elmo(BiLM(BiLMConfig('c', char_dim=4, filters=((1, 4),), proj_dim=4, hidden_dim=4,
                                n_chars=chars.n_chars, max_chars=6), 0, chars))
    with pytest.warns(UserWarning, match='1 token is cut, longer than the 4 bytes .or letters'):
        elmo.embed(['abcab abca'])
