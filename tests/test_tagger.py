"Blocks and loaders of tags, learners with an Elmo inside, the tagger: scores, answers, fastai"
import pickle, re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from hypothesis import given, settings, strategies as st
from torch import nn
from fastai.basics import DataLoaders, Learner
from fastai.data.all import ColReader, DataBlock, RandomSplitter
from fastai.torch_core import set_seed

from elmo_fastai.errors import CorpusError, ModelFileError
from elmo_fastai.text.read import Sentence
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tokens import ByteCharVocab, WordVocab
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.bilm import BiLM
from elmo_fastai.cbow import WordVectors
from elmo_fastai.elmo import elmo_split
from elmo_fastai.learner import bilm_learner
from elmo_fastai.practice.folder import load_bilm, save_bilm
from elmo_fastai.practice.learners import load_encoder
from elmo_fastai.tagger import (
    IGNORE, ElmoBlock, ElmoLearner, SpanF1, TagDataLoaders, TagLoss, TagsBlock, TaskLSTM,
    TensorTags, TokenMean, WordsBlock, are_spans, elmo_tagger_learner, spans_of)
from notebooks import home, prose
from made import CFG, Mine, S, VOCAB, bilm, close, fit, make, quietly, same

@pytest.fixture(scope='module')
def lm(): return bilm(n_words=0)
@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=120, n_valid=60, n_test=1, n_unseen=20)
@pytest.fixture()
def dls(corpus): return loaders(corpus)
def loaders(corpus, **kw): return TagDataLoaders.from_sents(
    corpus.gold['train'], corpus.gold['valid'], **{**dict(device='cpu', bs=16, val_bs=16), **kw})

# blocks and loaders

WORDS = 'good bad fine dull'.split()
TAGGED = [Sentence(f'a {word} film {i} .'.split(), ['D', 'A', 'N', 'C', 'P'])
          for i in range(8) for word in WORDS]
TABLE = pd.DataFrame(dict(tokens=[s.tokens for s in TAGGED], tags=[s.tags for s in TAGGED]))
CPU = dict(device='cpu')
def tag(data=TAGGED, valid=None, **kw): return TagDataLoaders.from_sents(data, valid, **CPU, **kw)

@given(st.lists(st.lists(st.text('abcé', min_size=1, max_size=60), max_size=6), min_size=1,
                max_size=5))
@settings(max_examples=20)
def test_a_text_is_the_same_in_any_batch(sents):
    dls = tag()
    batch = dls.test_dl(sents, bs=9).one_batch()[0]
    for row,i in zip(batch, dls.test_dl(sents).get_idxs()):
        chars = torch.from_numpy(ByteCharVocab().encode(sents[i]))
        n = len(sents[i])
        assert torch.equal(row[:n].as_subclass(torch.Tensor), chars)
        assert not row[n:].any() and len(row) == max(1, *map(len, sents))
    chars, words = dls.test_dl(['', []]).one_batch()
    assert chars.shape == (2, 1, 50) and words.shape == (2, 1) and not chars.any()

def test_an_epoch_begins_later():
    "At a batch that `skip` names, in the order of the loader's own generator"
    dl = tag(bs=4).train
    state = dl.rng.getstate()
    def epoch(n):
        dl.rng.setstate(state)
        dl.skip(n)
        return list(dl)
    whole = epoch(0)
    np.random.seed(7)                 # which has no say
    for n in (1, len(whole) - 1, len(whole)):
        rest = epoch(n)
        assert len(rest) == len(whole) - n
        for a,b in zip(whole[n:], rest): assert all(map(torch.equal, a, b))
    assert len(list(dl)) == len(whole)

def as_conll(path):
    path.write_text('\n'.join('\n'.join(map(' '.join, zip(s.tokens,
                                                          s.tags))) + '\n' for s in TAGGED))
    return path

def test_doors_of_tags(tmp_path):
    path = as_conll(tmp_path/'t.conll')
    TABLE.to_json(tmp_path/'t.jsonl', orient='records', lines=True)
    rows = TABLE.set_axis(['words', 'pos'], axis=1)
    numbers = Sequence(ClassLabel(names=list('DANCP')))
    names = Features(dict(tokens=Sequence(Value('string')), tags=numbers))
    data = Dataset.from_dict(dict(tokens=list(rows.words), tags=[list(range(5))]*len(rows)), names)
    pairs = [(s.tokens, s.tags) for s in TAGGED]
    for dls in (tag(), tag(path, token_col=0, tag_col=1), tag(tmp_path/'t.jsonl'), tag(pairs),
                tag(TAGGED, pairs[:4]), tag(rows, token_col='words', tag_col='pos'), tag(data),
                tag(dict(train=TAGGED, valid=TAGGED[:4]))):
        assert list(dls.vocab[1]) == sorted('DANCP') and isinstance(dls.vocab[0], WordVocab)
        assert re.search('rows train [0-9]+, valid [34]', repr(dls))
        x, w, y = dls.one_batch()
        assert x.shape == (*w.shape, 50) and w.shape == y.shape and type(y) is TensorTags
    assert list(tag(vocab=['P', 'D', 'A', 'N', 'C', 'X']).vocab[1]) == list('PDANCX')

def one(tag_): return [(['a', 'b', 'c'], ['X', tag_, 'Y'])]*20
@pytest.mark.parametrize('open_it, says', [
    (lambda: tag([Sentence(['x'], ['Q', 'R'])]), 'row 0'), (lambda: tag([Sentence(['x'])]),
                                                            'list of tags'),
    (lambda: tag(TABLE.set_axis(['text', 'label'], axis=1)), 'token_col'),
    (lambda: tag(TABLE, tag_col=3), 'no column 3'), (lambda: tag([['a', 'b']]*9), 'a pair'),
    (lambda: tag(valid=TABLE[['tokens']]), 'tag_col'),
    (lambda: tag(one('')), "the tag ''"), (lambda: tag(one(1)), 'several types'),
    (lambda: elmo_tagger_learner(tag([(['a'], ['X'])]*9), bilm(n_words=0)), 'two different tags')])
def test_what_is_refused(open_it, says):
    with pytest.raises(CorpusError, match=says): open_it()

def of_block(*words): return DataBlock(
    (ElmoBlock(), *words, TagsBlock()), n_inp=1 + len(words),
    get_x=[ColReader('tokens')]*(1 + len(words)), get_y=ColReader('tags'),
    splitter=RandomSplitter(seed=0))

def test_a_data_block_of_ones_own():
    plain, both = (of_block(*words).dataloaders(TABLE, bs=8, **CPU) for words in ((),
                                                                                  [WordsBlock()]))
    with pytest.raises(ValueError, match='words=0, or put a WordsBlock'):
        elmo_tagger_learner(plain, bilm(n_words=0))
    for dls,words in ((plain, 0), (both, 8)):
        learn = fit(elmo_tagger_learner(dls, bilm(n_words=0), words=words, hidden=8))
        assert len(learn.tag(['a good film'])[0]) == 3 and learn.report(TABLE[:5]).n == 5
        with pytest.raises(CorpusError, match='no labels or tags'):
            learn.report(dls.test_dl(['a b']))
    assert isinstance(Learner(plain, nn.Linear(50, 5)).loss_func, TagLoss)

def test_the_loss_is_a_mean_over_tokens():
    pred, y = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    y[0, 2:] = y[1, 4:] = IGNORE
    each = [F.cross_entropy(p[t >= 0], t[t >= 0], reduction='none') for p,t in zip(pred, y)]
    assert close(TagLoss()(pred, y), torch.cat(each).mean())
    assert close(TagLoss(reduction='none')(pred, y),
                 torch.stack([losses.mean() for losses in each]))

def test_empty_loaders_hold_no_text():
    dls = tag([*TAGGED, Sentence(['secret'], ['N'])], TAGGED[:4])
    empty = dls.new_empty()
    assert b'secret' in pickle.dumps(dls) and b'secret' not in pickle.dumps(empty)
    films = [loaders.test_dl(['a film']).one_batch()[0] for loaders in (empty, dls)]
    assert torch.equal(*films)

# networks

def test_task_lstm_is_pytorchs():
    ours, theirs = TaskLSTM(5, 6), nn.LSTM(5, 6, bidirectional=True, batch_first=True)
    for k,p in theirs.named_parameters():
        half = ours.bwd[0] if k.endswith('_reverse') else ours.fwd[0]
        p.data.copy_(getattr(half, k.removesuffix('_reverse')))
    x, lens = torch.randn(4, 7, 5), torch.tensor([7, 3, 1, 5])
    packed = nn.utils.rnn.pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
    expected = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)[0]
    assert torch.allclose(ours(x, torch.arange(7) < lens[:,None]), expected, atol=1e-6)

@pytest.mark.parametrize('where,n_mixes', [(None, 0), ('input', 1), ('output', 1), ('both', 2)])
def test_company_changes_nothing_and_each_place_is_used(dls, lm, where, n_mixes):
    model = elmo_tagger_learner(dls, lm, where, words=8, chars=6, hidden=8, n_layers=2).model.eval()
    x, w, y = dls.valid.one_batch()
    together = model(x, w)
    for i in range(3):
        n = int((y[i] != IGNORE).sum())
        assert torch.allclose(model(x[i:i+1, :n], w[i:i+1, :n])[0], together[i, :n], atol=1e-5)
    F.cross_entropy(together.flatten(0, 1), y.flatten(), ignore_index=IGNORE).backward()
    mixes = model.elmo.mixes if where else []
    assert len(mixes) == n_mixes and all(mix.w.grad.abs().sum() > 0 for mix in mixes)
    assert not where or all(p.grad is None for p in model.elmo.lm.parameters())

def test_single_layers_and_ready_made_vectors(dls, lm):
    x = dls.valid.one_batch()[0]
    for layers,l in (('last', 2), ('first', 1), (0, 0)):
        elmo = elmo_tagger_learner(dls, lm, layers=layers).model.elmo.eval()
        alone = elmo.layers(x)[0][l]
        assert torch.allclose(elmo(x)[0][0], F.layer_norm(alone, alone.shape[-1:]), atol=1e-5)
        assert elmo.mixes[0].shares[l] > 1 - 1e-6
    mix = elmo_tagger_learner(dls, lm, layers='equal').model.elmo.mixes[0]
    assert not mix.w.requires_grad and torch.allclose(mix.shares, torch.full((3,), 1/3))
    made = WordVectors(['the', 'elsewhere'], np.random.randn(2, 5))
    table = elmo_tagger_learner(dls, lm, words=made).model.words
    assert np.array_equal(table.weight[dls.vocab[0].o2i['the']].detach(), made['the'])

@pytest.mark.parametrize('kw,error,says', [
    (dict(where='inside'), ValueError, 'where'),
    (dict(layers=3), ValueError, 'layers'),
    (dict(where=None, words=0), ValueError, 'to read'),
    (dict(where='output', words=0), ValueError, 'hidden=0'),
    (dict(words=WordVectors(['xyz'], np.ones((1, 5)))), ValueError, 'None of the task'),
    (dict(loss_func=nn.CrossEntropyLoss()), ValueError, 'TagLoss'),
    (dict(elmo=None), TypeError, 'where=None'), (dict(elmo=nn.Linear(2, 2)), TypeError, 'Linear'),
    (dict(elmo=BiLM(replace(CFG, max_chars=20), 0)), ValueError, 'char_vocab=elmo.char_vocab'),
    (dict(elmo='no/such/folder here'), ModelFileError, 'no folder')])
def test_settings_that_can_not_be(dls, lm, kw, error, says):
    with pytest.raises(error, match=re.escape(says)): elmo_tagger_learner(dls, **{'elmo': lm, **kw})

# a network of one's own in an `ElmoLearner`: encoders from one to another

def loss(pred, y): return F.cross_entropy(pred.flatten(0, 1), y.flatten())

def learner(tmp_path, seed=0, elmo=None, **kw):
    "Of a model that a user may have written"
    elmo = elmo or make(seed)
    set_seed(seed)
    xs = elmo.to_chars([['the', 'bank'], ['a', 'river'], ['of', 'x'], ['no', 'bank']]*4)
    items = [(x, torch.tensor([0, 1])) for x in xs]
    dls = DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)
    return ElmoLearner(dls, Mine(elmo), loss_func=loss, splitter=elmo_split, path=tmp_path, **kw)

def weights(learn): return {k: v.clone() for k,v in learn.model.elmo.lm.state_dict().items()}

# encoders

def test_encoders_go_from_learner_to_learner(tmp_path):
    a, b = learner(tmp_path, 1), learner(tmp_path, 2)
    assert a.save_encoder('enc') == tmp_path/'models'/'enc' and b.load_encoder('enc') is b
    assert same(a.model.elmo.layers(S)[0], b.model.elmo.layers(S)[0])
    assert not b.model.elmo.trainable

def test_encoders_from_pretraining(tmp_path):
    corpus = toy_corpus(n_train=60, n_valid=20, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')
    lm, other = (bilm_learner(dls, replace(CFG, dropout=0.), bf16=False, path=tmp_path)
                 for _ in range(2))
    quietly(lm, 'fit', 1, 1e-2)
    folder = lm.save_encoder('fine')
    assert load_bilm(folder)[1].itos == dls.vocab.itos
    for learn,name in ((learner(tmp_path), folder), (learner(tmp_path), 'fine')):
        load_encoder(learn, name)                  # another vocabulary, another dropout: it fits
        theirs = lm.model.state_dict()
        assert all(torch.equal(v, theirs[k]) for k,v in weights(learn).items() if 'head' not in k)
    other.load_encoder('fine')
    assert torch.equal(other.model.chars.embed.weight, lm.model.chars.embed.weight)

@pytest.mark.parametrize('cfg', [dict(hidden_dim=16), dict(residual=False), dict(n_layers=1),
                                 dict(max_chars=40)], ids=str)
def test_an_encoder_that_does_not_fit(tmp_path, cfg):
    save_bilm(tmp_path/'models'/'other', BiLM(replace(CFG, **cfg), len(VOCAB)), VOCAB)
    learn = learner(tmp_path)
    before = weights(learn)
    [(key, value)] = cfg.items()
    for name,says in (('other', f'other has {key}={value}'), ('nothing', 'nothing')):
        with pytest.raises(ModelFileError, match=says): learn.load_encoder(name)
    assert all(torch.equal(v, before[k]) for k,v in weights(learn).items())

# scores

@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 99))
def test_scores_do_not_depend_on_batches(lens, seed):
    set_seed(seed)
    data = [(torch.randn(n, 3), torch.randint(0, 3, (n,))) for n in lens]
    def score(batches):
        metrics = TokenMean('accuracy', lambda p,y: p.argmax(-1) == y), SpanF1(['O', 'B-X', 'I-X'])
        for metric in metrics: metric.reset()
        for batch in batches:
            T = max(len(y) for _,y in batch)
            pred = torch.stack([F.pad(p, (0, 0, 0, T - len(p)), value=9.) for p,_ in batch])
            y = torch.stack([F.pad(y, (0, T - len(y)), value=IGNORE) for _,y in batch])
            for metric in metrics: metric.accumulate(SimpleNamespace(pred=pred, y=y))
        return [metric.value for metric in metrics]
    assert np.allclose(score([data]), score([[pair] for pair in data]))
    right = [o for p,y in data for o in (p.argmax(-1) == y).tolist()]
    assert np.isclose(score([data])[0], np.mean(right))

SCHEMES = dict(IOB1='IIII', IOB2='BIIB', BIOES='BIES', BILOU='BILU', BMES='BMES')

def drawn_spans(rng, n):
    "Random spans (kind, first, last) in `n` tokens"
    spans, i = [], 0
    while i < n:
        if rng.random() < .5: i += 1; continue
        j = min(n - 1, i + int(rng.integers(0, 3)))
        spans.append((str(rng.choice(['PER', 'LOC'])), i, j))
        i = j + 1
    return spans

def encoded(spans, n, scheme):
    tags = ['O']*n
    first, inside, last, single = SCHEMES[scheme]
    for k,(kind,i,j) in enumerate(spans):
        for t in range(i, j + 1): tags[t] = f'{inside}-{kind}'
        tags[i], tags[j] = (f'{o}-{kind}' for o in (single*2 if i == j else (first, last)))
        touches = k and spans[k-1][0] == kind and spans[k-1][2] == i - 1
        if scheme == 'IOB1' and touches: tags[i] = f'B-{kind}'
    return tags

@pytest.mark.parametrize('scheme', SCHEMES)
def test_every_scheme_of_spans_is_scored_and_placed(scheme):
    "The same spans, written in each scheme, have the same F1 and the same places"
    yes = 'O I-PER', 'B-PER I-PER', 'E-X L-X O', 'O U-PER B-LOC L-LOC', 'O S-PER B-LOC I-LOC E-LOC'
    no = 'NOUN O', 'B-X NOUN', 'ADP X-Y', 'B I O', 'I II'
    assert [are_spans(tags.split()) for tags in yes + no] == [True]*5 + [False]*5
    rng = np.random.default_rng(0)
    for _ in range(5):
        true, guess = ([drawn_spans(rng, 9) for _ in range(4)] for _ in range(2))
        guess[0] = true[0]
        tags = [[encoded(spans, 9, scheme) for spans in sents] for sents in (true, guess)]
        names = sorted({tag for sents in tags for sent in sents for tag in sent})
        y, p = (torch.tensor([[names.index(tag) for tag in sent] for sent in sents])
                for sents in tags)
        metric = SpanF1(names)
        metric.reset()
        metric.accumulate(SimpleNamespace(y=y, pred=F.one_hot(p, len(names))))
        n = [sum(map(len, spans)) for spans in (true, guess)]
        right = sum(len({*a} & {*b}) for a,b in zip(true, guess))
        assert metric.value == pytest.approx(2*right/max(1, sum(n)))
        found = spans_of('a b c d e f g h i', 'a b c d e f g h i'.split(), tags[0][1])
        assert [(o['label'], o['start']//2, o['end']//2) for o in found] == true[1]

# fastai

@pytest.fixture(scope='module')
def learn(corpus, lm):
    return fit(elmo_tagger_learner(loaders(corpus, bs=32), lm, 'both', hidden=16), 4, 1e-2)

TEXT = 'they  play near the bank.'

def test_predict_and_tag(learn):
    tags, ids, p = learn.predict(TEXT)
    assert p.shape == (6, len(learn.dls.vocab[1])) and torch.equal(p.argmax(-1), ids)
    tokens = 'they play near the bank .'.split()
    assert torch.allclose(p.sum(-1), torch.ones(6)) and learn.predict(tokens)[0] == tags
    tagged = learn.tag(['', TEXT, [], ' \n', ['a', 'bank']])
    assert [len(o) for o in tagged] == [0, 6, 0, 0, 2] and tagged[1] == list(zip(tokens, tags))
    spans = learn.tag([TEXT], as_spans=True)[0]
    assert [(TEXT[o['start']:o['end']], o['label']) for o in spans] == tagged[1]
    assert learn.predict('')[0] == learn.tag([]) == []
    with pytest.raises(ValueError, match="token 'A'"): spans_of('a b', ['A', 'b'], ['O', 'O'])

def test_get_preds_is_in_the_order_of_the_data(learn, corpus):
    sents, tags = corpus.gold['valid'], list(learn.dls.vocab[1])
    for dl in (None, learn.dls.valid.new(bs=3), learn.dls.valid.new(shuffle=True)):
        p, y, d, loss = quietly(learn, 'get_preds', dl=dl, with_decoded=True, with_loss=True)
        assert len(p) == len(y) == len(d) == len(loss) == len(sents)
        for s,row,probs,guess,nll in zip(sents, y, p, d, loss):
            n = len(s.tokens)
            assert [tags[i] for i in row[:n].tolist()] == s.tags and (row[n:] == IGNORE).all()
            assert torch.equal(guess, probs.argmax(-1))
            assert np.isclose(F.nll_loss(probs[:n].log(), row[:n]), nll, atol=1e-4)
    real = [row != IGNORE for row in y]
    p, y = (torch.cat([row[mask] for row,mask in zip(rows, real)]) for rows in (p, y))
    expected = F.nll_loss(p.log(), y).item(), (p.argmax(-1) == y).float().mean().item()
    for bs in (2, 60):                                   # loss and accuracy are per token
        found = quietly(learn, 'validate', dl=learn.dls.valid.new(bs=bs))
        assert np.allclose(found, expected, rtol=1e-4)

# what the README shows

@pytest.mark.slow
def test_the_recipe_of_the_page_use(tmp_path):
    recipe, = re.findall(r"~~~python\n(.*?)~~~", prose(home/'use.ipynb'), re.S)
    pd.DataFrame([(f'a {w} film , number {i} .', w) for i in range(20) for w in ('dull', 'good')],
                 columns=['text', 'label']).to_csv('reviews.csv', index=False)
    rows = ['I O', 'met O', 'Ann B-PER', 'Lee I-PER', 'in O', 'Ghent B-LOC', '. O', '']
    for name,n in dict(train=40, dev=5).items(): Path(f'{name}.conll').write_text('\n'.join(rows*n))
    space = {}
    exec(recipe.replace('learn.predict(', 'found = learn.predict(').replace(
        'learn.tag(', 'spans = learn.tag('), space)
    assert space['found'][0] == 'dull' and Path('tagger.pkl').exists()
    assert [span['label'] for span in space['spans'][0]] == ['PER', 'LOC']
