"The model in the package: loads offline, is small, and keeps its promises in figures"
import re, socket
import pytest, torch
from safetensors.torch import load_file
from elmo_fastai.all import Elmo, ElmoDataLoaders, load_bilm, save_bilm, toy_corpus
from elmo_fastai.batches import SentenceDataLoader, EncodedText, TokenTypes
from elmo_fastai.learner import evaluate, fill, generate
from elmo_fastai.practice.folder import find_folder
from elmo_fastai.tokens import SPECIALS, WordVocab
from made import bilm, same
from pages import page

box = page('library/box')
BOX = find_folder('mini-en')
FIGURES = box.box_figures()         # of the model in the package
SENTS = ['It was a bright cold day .'.split(), ['Zounds', '!'], ['x'*60, 'über', '…']]

def vectors(lm): return Elmo(lm).eval().layers(SENTS)[0]

# smaller

@pytest.mark.parametrize('change', [
    dict(), dict(share_encoder=False), dict(norm=False),
    dict(char_proj=False, proj_dim=24, hidden_dim=24)], ids=str)
def test_folding_keeps_the_vectors(change):
    lm = bilm(**change)
    before, config = {k: v.clone() for k,v in lm.state_dict().items()}, lm.config
    small = box.folded(lm)
    assert lm.config == config and all(v.equal(before[k]) for k,v in lm.state_dict().items())
    assert not any('norm' in k for k in small.state_dict())
    assert same(vectors(lm), vectors(small))

@pytest.mark.parametrize('shape', [(5, 7), (4, 3, 2), (1, 1)])
def test_rows_of_bytes(shape):
    "No number moves by more than half a step of its row's ruler; a row of zeros stays one"
    x = torch.randn(shape)*torch.logspace(-3, 3, shape[0]).view(-1, *[1]*(len(shape) - 1))
    x[0] *= shape[0] == 1
    w = box.in_bytes({'w': x, 'b': x.flatten()[:3]})
    assert {k: v.dtype for k,v in w.items()} == {
        'w': torch.int8, 'w.scale': torch.float16, 'b': torch.float16} and w['w'].shape == x.shape
    scale = w['w.scale'].float().view(-1, *[1]*(len(shape) - 1))
    assert ((w['w'].float()*scale - x).abs() <= .51*scale + 1e-3*x.abs()).all()
    assert shape[0] == 1 or (w['w'][0] == 0).all()

# made

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp('box')
    vocab = WordVocab(SPECIALS + [f'w{i}' for i in range(496)])
    save_bilm(root/'trained', bilm(n_words=500), vocab)
    return root/'trained', box.make_box(root/'trained', root/'mini', FIGURES)

def test_make_box(made):
    assert {o.name for o in made[1].iterdir()} == {o.name for o in BOX.iterdir()}
    (lm, vocab), elmo = load_bilm(made[0]), Elmo.from_pretrained(made[1])
    assert elmo.lm.config.name == 'mini' and len(elmo.vocab) == 500
    assert all(p.dtype == torch.float32 for p in elmo.parameters())
    assert same(vectors(lm), vectors(elmo.lm), 5e-2) and box.box_figures(made[1]) == FIGURES
    text = EncodedText([[f'w{i}' for i in range(k, 2*k + 9)] for k in range(20)], TokenTypes(vocab))
    old, new = (evaluate(m, SentenceDataLoader(text, bs=8)) for m in (lm, elmo.lm))
    assert all(abs(new[k]/old[k] - 1) < .01 for k in ('fwd', 'bwd'))     # it predicts words, too

# the one that comes with the package

def test_offline(monkeypatch):
    def no(*args): raise OSError('no network')
    monkeypatch.setattr(socket.socket, 'connect', no)
    (vectors,), _ = Elmo.from_pretrained('mini-en')(['A sentence.'])
    assert vectors.shape == (1, 3, 704)

def test_the_box_of_the_package(tmp_path):
    assert sum(o.stat().st_size for o in BOX.iterdir()) < 8e6
    assert (BOX/'model.safetensors').stat().st_size <= 4.5e6
    assert all(k.startswith('head') for k in load_file(BOX/'output.safetensors'))
    elmo = Elmo.from_pretrained('mini-en')
    card = (BOX/'README.md').read_text(encoding='utf-8')
    assert card == box.box_card('mini-en', elmo, FIGURES)
    model = elmo.lm, elmo.vocab, elmo.char_vocab
    assert fill(*model, "She did___ want to go home.").word[0] == 'not'
    n = sum(p.numel() for k,p in elmo.lm.named_parameters() if not k.startswith('head'))
    assert FIGURES['model']['parameters']['encoder'] == n
    save_bilm(tmp_path/'mini-en', bilm(n_words=0))           # a folder of that name comes first
    assert Elmo.from_pretrained('mini-en').lm.config.proj_dim == 8

# the toy language's

def test_mini_toy(tmp_path):
    "Lesson 09 trains it; nine tenths of the way from counting to the floor, and it speaks"
    folder = find_folder('mini-toy')
    assert sum(o.stat().st_size for o in folder.iterdir()) < 4e6
    lm, vocab = load_bilm('mini-toy')
    corpus = toy_corpus(n_train=1, n_valid=150, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, vocab=vocab, device='cpu')
    assert evaluate(lm, dls.valid)['mean'] < 1.15*corpus.floor('valid')
    model = lm, vocab, lm.char_vocab
    assert generate(*model, ['']*3, seed=0) == re.findall(
        r'^- \*(.*)\*$', (folder/'README.md').read_text(encoding='utf-8'), re.M)
    assert fill(*model, '___ the king wear a golden ring ?').word[0] in ('does', 'did')
    elmo = Elmo.from_pretrained('mini-toy')
    assert elmo.tokenizer == 'space' and same(vectors(lm), vectors(elmo.lm))
