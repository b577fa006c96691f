"""One text at each door, its letters written as one code point or as two; and tokens that are cut

Texts are brought to NFC once; token lists, and texts for AI2's models, stay as they are. A token
longer than its row is cut, and one warning of a call counts all of them."""
import re, unicodedata, warnings
from functools import cache
import numpy as np, pandas as pd, pytest, torch
from fastai.data.all import CategoryBlock, ColReader, DataBlock, RandomSplitter
from elmo_fastai.all import *
from elmo_fastai.text.read import Sentence
from elmo_fastai.learner import fill, score
from made import CFG, bilm, fit, make

TEXT = 'Zo\u00eb likes the caf\u00e9'
LONG = 'x'*60
TOO_LONG = f'the caf\u00e9 {LONG}1 and {LONG}2'
CPU = dict(device='cpu', bs=4)

# models, made once

def labelled(text): return pd.DataFrame(dict(text=[text, 'b']*10, label=['x', 'y']*10))

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

def tokens_of(dls):
    return [dls.char_vocab.decode(chars) for ds in (dls.train_ds, dls.valid_ds) for chars,_ in ds]

def own_block(text, folder):
    block = DataBlock((ElmoBlock(), CategoryBlock), get_x=ColReader('text'),
                      get_y=ColReader('label'), splitter=RandomSplitter(seed=0))
    return tokens_of(block.dataloaders(labelled(text), **CPU))

ALPHABET = CharVocab.build([['\u00eb\u00e9']])
DOORS = {               # of each door what it makes of a text
    'embed': lambda text, folder: make().embed([text]),
    'from_corpus': lambda text, folder: ids_of(ElmoDataLoaders.from_corpus(
        corpus_of(text), device='cpu', seed=1, char_vocab=ALPHABET)),
    'stream_loaders': of_stream,
    'ElmoTransform': lambda text, folder: ElmoTransform(vocab=speaker()[1])(text),
    'NGramsTokenizer': lambda text, folder: NGramsTokenizer(2)(text),
    'score': lambda text, folder: score(*speaker(), text)[0].fwd,
    'generate': lambda text, folder: generate(*speaker(), text, 2, temperature=0),
    'fill': lambda text, folder: fill(*speaker(), f'{text} ___ {text}').p,
    'ClassifyDataLoaders': lambda text, folder: tokens_of(
        ClassifyDataLoaders.from_df(labelled(text), **CPU)),
    'a DataBlock': own_block,
    'classifier': lambda text, folder: classifier().predict(text)[2],
    'tagger': lambda text, folder: tagger().predict(text)[2],
    'tag': lambda text, folder: tagger().tag([text, text])}

def equal(a, b):
    if isinstance(a, (list, tuple, dict)): return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, str): return a == b
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and ((a == b).all() or np.allclose(a, b, atol=1e-5))

@pytest.mark.parametrize('door', DOORS)
def test_a_text_is_the_same_however_its_letters_are_written(door, tmp_path):
    one, two = [DOORS[door](unicodedata.normalize(form, TEXT), tmp_path) for form in ('NFC', 'NFD')]
    with torch.no_grad(): assert equal(one, two)

def test_tokens_and_texts_for_ai2s_models_stay_as_they_are(tmp_path):
    one, two = 'caf\u00e9', 'cafe\u0301'
    elmo = make(cfg=dict(norm=False))
    assert not np.allclose(*elmo.embed([[one], [two]]))
    assert make().to_tokens([[two]]) == [[two]] != make().to_tokens([two])
    theirs = Elmo.from_ai2(elmo.to_ai2(tmp_path/'ai2'))
    kept = Elmo.from_pretrained(theirs.save_pretrained(tmp_path/'kept'))
    for model in (theirs, kept, Elmo.from_ai2(tmp_path/'ai2', tokenizer=str.split)):
        assert model.to_tokens([two, one]) == [[two], [one]]
        assert np.allclose(model.embed([two])[0], model.embed([[two]])[0], atol=1e-5)
    assert Elmo.from_ai2(tmp_path/'ai2', nfc=True).to_tokens([two]) == [[one]]
    gold = [Sentence([two, 'x'], ['A', 'B'])]*10
    dls = TagDataLoaders.from_sents(gold, min_freq=1, **CPU)
    assert dls.char_vocab.decode(dls.train_ds[0][0]) == [two, 'x'] and two in dls.vocab[0].itos
    [answer] = tagger().tag([[two, 'x']])
    assert [token for token,_ in answer] == [two, 'x']

# tokens that are cut

def told(call):
    "How many tokens each warning counts"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        call()
    counts = [re.match(r'([\d,]+) tokens? (?:is|are) cut, longer than the 48 bytes', str(w.message))
              for w in found]
    return [int(count[1].replace(',', '')) for count in counts if count]

COUNTED = {             # how often these doors give a text to the model, and are silent otherwise
    'from_corpus': [], 'stream_loaders': [], 'ElmoTransform': [],
    'NGramsTokenizer': [], 'tag': [4], 'fill': [4], 'ClassifyDataLoaders': [20]}

@pytest.mark.parametrize('door', DOORS)
def test_one_warning_counts_the_tokens_that_are_cut(door, tmp_path):
    for prepared in (classifier, tagger, speaker): prepared()
    found = told(lambda: DOORS[door](TOO_LONG, tmp_path))
    if door == 'a DataBlock': assert sum(found) == 20 and len(found) == 2     # of its two loaders
    else: assert found == COUNTED.get(door, [2])
    assert told(lambda: DOORS[door](TEXT, tmp_path)) == []

def sents(text): return [Sentence(text.split(), ['O']*len(text.split()))]*10

@pytest.mark.parametrize('call,n', [
    (lambda: list(make().embed_iter(iter([TOO_LONG]*3000))), 6000),
    (lambda: next(make().embed_iter([TOO_LONG]*3000)), None),            # left early
    (lambda: score(*speaker(), [TOO_LONG]*5, bs=2), 10),
    (lambda: TagDataLoaders.from_sents(
        [*sents(TOO_LONG), Sentence(['a'], ['X'])], sents(TOO_LONG), **CPU), 40),
    (lambda: tagger().tag([TOO_LONG]*1000), 2000)])
def test_a_call_warns_once(call, n):
    found = told(call)
    assert len(found) == 1 and n in (None, found[0])

def test_letters_of_an_alphabet_count():
    chars = CharVocab.build([list('abc')], max_chars=6)
    config = BiLMConfig('c', char_dim=4, filters=((1, 4),), proj_dim=4, hidden_dim=4,
                        n_chars=chars.n_chars, max_chars=6)
    with pytest.warns(UserWarning, match='1 token is cut, longer than the 4 bytes .or letters'):
        Elmo(BiLM(config, 0, chars)).embed(['abcab abca'])
