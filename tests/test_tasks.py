"Learners with an Elmo inside: groups, the penalty, encoders that go from one to another"
import re
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd, pytest, torch, torch.nn.functional as F
from torch import nn
from fastai.basics import DataLoaders
from fastai.torch_core import set_seed

from elmo_fastai.errors import ModelFileError
from elmo_fastai.text.read import Sentence
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.tokens import CharVocab, UNK
from elmo_fastai.bilm import BiLM
from elmo_fastai.practice.folder import load_bilm, save_bilm
from elmo_fastai.practice.learners import load_encoder, save_encoder
from elmo_fastai.blocks import ClassifyDataLoaders, TagDataLoaders
from elmo_fastai.batches import ElmoDataLoaders
from elmo_fastai.elmo import Elmo, ScalarMix, elmo_split
from elmo_fastai.learner import bilm_learner
from elmo_fastai.classifier import elmo_classifier_learner, random_elmo
from elmo_fastai.tasks import ElmoLearner, MixPenalty
from elmo_fastai.tagger import elmo_tagger_learner
from made import CFG, S, VOCAB, make, quietly, same

def test_penalty_callback_counts_every_mix_in_training_only():
    model = nn.ModuleList([ScalarMix(3, shares=(.7, .2, .1)), ScalarMix(3, shares=(.1, .1, .8))])
    cb = MixPenalty(.5)
    cb.learn = SimpleNamespace(model=model, training=True, loss_grad=torch.tensor(1.))
    cb.after_loss()
    expected = 1 + sum(mix.penalty(.5).item() for mix in model)
    assert cb.learn.loss_grad.item() == pytest.approx(expected)
    cb.learn.training = False
    cb.after_loss()
    assert cb.learn.loss_grad.item() == pytest.approx(expected)

class Tagger(nn.Module):
    def __init__(self, elmo, n=3):
        super().__init__()
        self.elmo, self.lin = elmo, nn.Linear(16, n)
    def forward(self, x): return self.lin(self.elmo(x)[0][0])

def loss(pred, y): return F.cross_entropy(pred.flatten(0, 1), y.flatten())

def learner(tmp_path, seed=0, elmo=None, **kw):
    "Of a model that a user may have written"
    elmo = elmo or make(seed)
    set_seed(seed)
    xs = elmo.to_chars([['the', 'bank'], ['a', 'river'], ['of', 'x'], ['no', 'bank']]*4)
    items = [(x, torch.tensor([0, 1])) for x in xs]
    dls = DataLoaders.from_dsets(items, items, bs=4, device='cpu', num_workers=0)
    return ElmoLearner(dls, Tagger(elmo), loss_func=loss, splitter=elmo_split, path=tmp_path, **kw)

def weights(learn): return {k: v.clone() for k,v in learn.model.elmo.lm.state_dict().items()}

def test_groups_cover_what_can_be_trained():
    elmo = make(train_gamma=False)
    groups = elmo_split(Tagger(elmo))
    ids = [id(p) for group in groups for p in group]
    assert len(groups) == 4 and len(set(ids)) == len(ids)
    left = [k for k,p in Tagger(elmo).named_parameters() if id(p) not in ids and 'lin' not in k]
    assert all('head' in k or 'bias_hh' in k or k.endswith('gamma') for k in left), left
    assert len(elmo_split(Tagger(make(cfg=dict(n_layers=3))))) == 5
    assert len(elmo_split(Tagger(make(cfg=dict(share_encoder=False))))[0]) == 2*len(groups[0])
    with pytest.raises(ValueError, match='no Elmo'): elmo_split(nn.Linear(1, 1))

def test_fastai_freezes_and_opens_groups(tmp_path):
    learn = learner(tmp_path)
    before = weights(learn)
    def moved(): return {k for k,v in weights(learn).items() if not torch.equal(v, before[k])}
    quietly(learn, 'fit_one_cycle', 1, 1e-2)
    assert not moved() and learn.model.elmo.mixes[0].w.abs().sum() > 0
    learn.freeze_to(-2)
    quietly(learn, 'fit', 1, slice(1e-4, 1e-2))
    assert moved() and all(re.match(r'lstm\.(fwd|bwd)\.1\.', k) for k in moved())
    learn.unfreeze()
    quietly(learn, 'fit', 1, 1e-3)
    assert {'chars.embed.weight', 'chars.norm.running_mean'} <= moved()
    learn.freeze()
    assert not learn.model.elmo.trainable

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
    assert other.load_encoder('fine') is other
    assert torch.equal(other.model.chars.embed.weight, lm.model.chars.embed.weight)

@pytest.mark.parametrize('cfg', [dict(hidden_dim=16), dict(residual=False), dict(n_layers=1),
                                 dict(max_chars=40)], ids=str)
def test_an_encoder_that_does_not_fit(tmp_path, cfg):
    save_bilm(tmp_path/'models'/'other', BiLM(replace(CFG, **cfg), len(VOCAB)), VOCAB)
    learn = learner(tmp_path)
    before = weights(learn)
    [(key, value)] = cfg.items()
    with pytest.raises(ModelFileError, match=f'other has {key}={value}'): learn.load_encoder('other')
    with pytest.raises(ModelFileError): learn.load_encoder('nothing')
    assert all(torch.equal(v, before[k]) for k,v in weights(learn).items())
    learn.model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match='no biLM'): learn.load_encoder('other')

# an alphabet of one's own

SENTS = [['Ωmega', 'the', 'bank'], ['of', 'the', 'river', '.']]*4

def test_an_alphabet_in_use(spelt):
    "A classifier, a tagger, a random twin; other characters are refused"
    learn, chars = spelt
    elmo = Elmo(learn.model, learn.dls.vocab).eval()
    texts = pd.DataFrame([(s, i % 2) for i,s in enumerate(SENTS)]*8, columns=['text', 'label'])
    for own in (elmo, random_elmo(elmo, 0, SENTS)):
        dls = ClassifyDataLoaders.from_df(texts, char_vocab=chars, bs=8, device='cpu')
        c = elmo_classifier_learner(dls, own)
        c.unfreeze()
        quietly(c, 'fit', 1, 1e-3)
        assert c.predict('the Ω')[0] in ('0', '1')
    sents = [Sentence(s, [w[0] for w in s]) for s in SENTS]*4
    dls = TagDataLoaders.from_sents(sents, char_vocab=chars, min_freq=1, bs=8, device='cpu')
    t = elmo_tagger_learner(dls, learn.model, 'both', chars=8)
    quietly(t, 'fit', 1, 1e-3)
    assert len(t.tag(['the bank'])[0]) == 2
    by_bytes = ClassifyDataLoaders.from_df(texts, bs=8, device='cpu')
    with pytest.raises(ValueError, match='char_vocab=elmo.char_vocab'):
        elmo_classifier_learner(by_bytes, elmo)

def test_an_encoder_with_another_alphabet_is_refused(spelt, tmp_path):
    learn, chars = spelt
    folder = save_encoder(learn, tmp_path/'m')
    new = bilm_learner(learn.dls, learn.model.config, bf16=False)
    load_encoder(new, folder)
    assert torch.equal(new.model.chars.embed.weight, learn.model.chars.embed.weight)
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)
    dls = ElmoDataLoaders.from_corpus(learn.dls.corpus, kind='sentences', bs=32, char_vocab=other,
                                      device='cpu')
    with pytest.raises(ModelFileError, match='other characters'):
        load_encoder(bilm_learner(dls, learn.model.config, bf16=False), folder)
