"Learners with an Elmo inside: groups, the penalty, encoders that go from one to another"
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np, pandas as pd, pytest, torch, torch.nn.functional as F
from torch import nn
from fastai.basics import DataLoaders, load_learner
from fastai.torch_core import set_seed

from elmo_fastai.elmo import module as module
from elmo_fastai.base.errors import ModelFileError
from elmo_fastai.text.corpora import Sentence, toy_corpus
from elmo_fastai.text.tokens import CharVocab, UNK
from elmo_fastai.nn.bilm import BiLM
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.elmo.module import Elmo, ScalarMix, elmo_split
from elmo_fastai.train.learner import bilm_learner
from elmo_fastai.tasks.learner import ElmoLearner, MixPenalty, load_encoder, save_encoder
from made import CFG, S, VOCAB, close, make, quietly, same


@pytest.fixture()
def elmo(): return make()

def test_penalty_callback_counts_every_mix_in_training_only():
    model = nn.ModuleList([ScalarMix(3, shares=(.7, .2, .1)), ScalarMix(3, shares=(.1, .1, .8))])
    cb = MixPenalty(.5)
    cb.learn = SimpleNamespace(model=model, training=True, loss_grad=torch.tensor(1.))
    cb.after_loss()
    assert cb.learn.loss_grad.item() == pytest.approx(1 + sum(m.penalty(.5).item() for m in model))
    cb.learn.training = False
    before = cb.learn.loss_grad
    cb.after_loss()
    assert cb.learn.loss_grad is before

class Tagger(nn.Module):
    def __init__(self, elmo, n=3): super().__init__(); self.elmo,self.lin = elmo,nn.Linear(16, n)
    def forward(self, x): return self.lin(self.elmo(x)[0][0])

def loaders(elmo):
    xs = elmo.to_chars([['the', 'bank'], ['a', 'river'], ['of', 'x'], ['no', 'bank']]*4)
    items = [(x, torch.tensor([0, 1])) for x in xs]
    return DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)

class Items(list):
    # what fastai's `export` keeps of the data
    def new_empty(self): return Items()

def loss(pred, y): return F.cross_entropy(pred.flatten(0, 1), y.flatten())

def learner(tmp_path, seed=0, elmo=None, **kw):
    elmo = elmo or make(seed)
    set_seed(seed)
    return ElmoLearner(
        loaders(elmo), Tagger(elmo), loss_func=loss, splitter=elmo_split, path=tmp_path, **kw
    )

def test_groups_cover_what_can_be_trained():
    elmo = make(train_gamma=False)
    groups = elmo_split(Tagger(elmo))
    assert len(groups) == 4
    ids = [id(p) for g in groups for p in g]
    assert len(set(ids)) == len(ids)
    names = {k for k,p in Tagger(elmo).named_parameters() if id(p) in ids}
    every = {k for k,_ in Tagger(elmo).named_parameters()}
    left = {k for k in every - names if not k.startswith('lin')}
    assert all('head' in k or 'bias_hh' in k or k.endswith('gamma') for k in left), left
    assert len(elmo_split(Tagger(make(cfg=dict(n_layers=3))))) == 5
    assert len(elmo_split(Tagger(make(cfg=dict(share_encoder=False))))[0]) == 2*len(groups[0])
    with pytest.raises(ValueError, match='no Elmo'): elmo_split(nn.Linear(1, 1))

def test_fastai_freezes_and_opens_groups(tmp_path):
    learn = learner(tmp_path)
    before = {k: v.clone() for k,v in learn.model.elmo.lm.state_dict().items()}
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    assert (all(torch.equal(v, before[k]) for k, v in learn.model.elmo.lm.state_dict().items())
            and learn.model.elmo.mixes[0].w.abs().sum() > 0)
    learn.freeze_to(-2)
    quietly(learn, 'fit', 1, slice(1e-4, 1e-2))
    moved = {k for k,v in learn.model.elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    assert moved and all(re.match(r'lstm\.(fwd|bwd)\.1\.', k) for k in moved)
    learn.unfreeze()
    quietly(learn, 'fit', 1, 1e-3)
    moved = {k for k,v in learn.model.elmo.lm.state_dict().items() if not torch.equal(v, before[k])}
    assert 'chars.embed.weight' in moved and 'chars.norm.running_mean' in moved
    learn.freeze()
    assert not learn.model.elmo.trainable
    quietly(learn, 'fit', 1, 1e-3)

def test_the_penalty_in_a_learner(tmp_path):
    free, held = (learner(tmp_path/str(lam), elmo=make(shares=(0.8, 0.1, 0.1)), cbs=MixPenalty(lam))
                  for lam in (0.0, 10.0))
    for l in (free, held): quietly(l, 'fit', 6, 5e-2)
    assert held.model.elmo.mixes[0].shares.max() < free.model.elmo.mixes[0].shares.max() - .1


# learners

def test_encoders_go_from_learner_to_learner(tmp_path):
    a, b = learner(tmp_path, 1), learner(tmp_path, 2)
    folder = a.save_encoder('enc')
    assert folder == tmp_path/'models'/'enc' and b.load_encoder('enc') is b
    assert same(a.model.elmo.layers(S)[0], b.model.elmo.layers(S)[0])
    assert not any(p.requires_grad for p in b.model.elmo.lm.parameters())

def test_encoders_from_pretraining(tmp_path):
    corpus = toy_corpus(n_train=60, n_valid=20, n_test=1, n_unseen=1)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, seed=0, device='cpu')
    lm = bilm_learner(dls, replace(CFG, dropout=0.), bf16=False, path=tmp_path)
    quietly(lm, 'fit', 1, 1e-2)
    save_encoder(lm, 'fine')
    tagger = learner(tmp_path)
    # another vocabulary, another dropout: it fits
    load_encoder(tagger, 'fine')
    ours, theirs = tagger.model.elmo.lm.state_dict(), lm.model.state_dict()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours if not k.startswith('head'))
    assert load_bilm(tmp_path/'models'/'fine')[1].itos == dls.vocab.itos
    other = bilm_learner(dls, replace(CFG, dropout=0.), bf16=False, path=tmp_path)
    load_encoder(other, 'fine')
    assert torch.equal(other.model.chars.embed.weight, lm.model.chars.embed.weight)
    load_encoder(tagger, tmp_path/'models'/'fine')

@pytest.mark.parametrize('cfg,says', [
    (dict(hidden_dim=16), 'hidden_dim=16'),
    (dict(residual=False), 'residual=False'),
    (dict(n_layers=1), 'n_layers=1'),
    (dict(max_chars=40), 'max_chars')], ids=str)
def test_an_encoder_that_does_not_fit(tmp_path, cfg, says):
    save_bilm(tmp_path/'models'/'other', BiLM(replace(CFG, **cfg), len(VOCAB)), VOCAB)
    learn = learner(tmp_path)
    before = {k: v.clone() for k, v in learn.model.state_dict().items()}
    with pytest.raises(ModelFileError, match=says):
        learn.load_encoder('other')
    assert all(torch.equal(v, before[k]) for k, v in learn.model.state_dict().items())
    with pytest.raises(ModelFileError):
        learn.load_encoder('nothing')
    learn.model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match='no biLM'):
        learn.load_encoder('other')


def test_export(tmp_path):
    learn = learner(tmp_path)
    items = Items(learn.dls.train_ds)
    learn.dls = DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)
    quietly(learn, 'fit', 1, 1e-2)
    learn.export('learn.pkl')
    again = load_learner(tmp_path/'learn.pkl')
    assert same(again.model.elmo(S)[0], learn.model.elmo.eval()(S)[0]) and isinstance(
        again, ElmoLearner)
    assert close(again.model.eval()(S), learn.model.eval()(S))

# an alphabet of one's own

OTHER_SENTS = [['Ωmega', 'the', 'bank'], ['of', 'the', 'river', '.']]*4

def test_an_alphabet_in_use(spelt, tmp_path):
    "Embedding, a classifier, a tagger; and by AI2's format it is refused"
    from elmo_fastai.data.blocks import ClassifyDataLoaders, TagDataLoaders
    from elmo_fastai.tasks.classify import elmo_classifier_learner, random_elmo
    from elmo_fastai.elmo.file import embed_file
    from elmo_fastai.elmo.vectorizer import ElmoVectorizer
    from elmo_fastai.tasks.tag import elmo_tagger_learner
    learn, chars = spelt
    elmo = Elmo(learn.model, learn.dls.vocab).eval()
    vecs = elmo.embed(OTHER_SENTS, 'all')
    layers, mask = elmo.layers(OTHER_SENTS)
    for i, v in enumerate(vecs):
        assert np.allclose(v, torch.stack(layers, 1)[i][:, mask[i]].detach(), atol=1e-5)
    assert ElmoVectorizer(elmo).fit_transform(['the bank', 'Ω'])[0].shape == (16,)
    (tmp_path/'t.txt').write_text('the bank of the river\nΩmega\n', encoding='utf-8')
    assert embed_file(tmp_path/'t.txt', tmp_path/'t.hdf5', elmo, say=str)['lines'] == 2
    texts = pd.DataFrame([(s, i%2) for i,s in enumerate(OTHER_SENTS)]*8, columns=['text', 'label'])
    for own in (elmo, random_elmo(elmo, 0, OTHER_SENTS)):
        dls = ClassifyDataLoaders.from_df(texts, char_vocab=chars, bs=8, device='cpu')
        c = elmo_classifier_learner(dls, own)
        with c.no_bar(), c.no_logging(): c.fit(1, 1e-3); c.unfreeze(); c.fit(1, 1e-3)
        assert c.predict('the Ω')[0] in ('0', '1')
    sents = [Sentence(s, [w[0] for w in s]) for s in OTHER_SENTS]*4
    dls = TagDataLoaders.from_sents(sents, char_vocab=chars, min_freq=1, bs=8, device='cpu')
    for own in (elmo, learn.model):
        t = elmo_tagger_learner(dls, own, 'both', chars=8)
        with t.no_bar(), t.no_logging(): t.fit(1, 1e-3)
        assert len(t.tag(['the bank'])[0]) == 2
    with pytest.raises(ValueError, match='AI2.*bytes'): elmo.to_ai2(tmp_path/'ai2')
    bytes_ = ClassifyDataLoaders.from_df(texts, bs=8, device='cpu')
    with pytest.raises(ValueError, match='char_vocab=elmo.char_vocab'):
        elmo_classifier_learner(bytes_, elmo)

def test_an_encoder_with_another_alphabet_is_refused(spelt, tmp_path):
    learn, chars = spelt
    folder = save_encoder(learn, tmp_path/'m')
    new = bilm_learner(learn.dls, learn.model.config, bf16=False)
    before = new.model.chars.embed.weight.clone()
    load_encoder(new, folder)
    assert torch.equal(
        new.model.chars.embed.weight, learn.model.chars.embed.weight
    ) and not torch.equal(before, new.model.chars.embed.weight)
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)
    dls = ElmoDataLoaders.from_corpus(
        learn.dls.corpus, kind='sentences', bs=32, char_vocab=other, device='cpu'
    )
    with pytest.raises(ModelFileError, match='other characters'):
        load_encoder(bilm_learner(dls, learn.model.config, bf16=False), folder)
