"Folders of models: what is read is a copy, and a saved model is the same one"
import pytest, torch

import addresses
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.text.tokens import WordVocab

CONFIG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=12)
TEXTS = ['the bank of the river', 'a bank']

@pytest.fixture
def saved(tmp_path):
    "A biLM, and the folder where it lies"
    torch.manual_seed(0)
    vocab = WordVocab.build([text.split() for text in TEXTS])
    lm = BiLM(CONFIG, len(vocab)).eval()
    return lm, save_bilm(tmp_path/'model', lm, vocab)

def test_weights_lie_in_memory_of_their_own(saved):
    lm, folder = saved
    with addresses.usual(): again, _ = load_bilm(folder)
    file = folder/'model.safetensors'
    size = file.stat().st_size
    # as when another model is copied over it
    with open(file, 'r+b') as f: f.write(bytes(size))
    for name,weight in again.state_dict().items():
        assert torch.equal(weight, lm.state_dict()[name]), name
        assert weight.data_ptr() % 64 == 0, f'{name} lies where products round otherwise'

def test_a_saved_model_is_the_same_wherever_it_lies(saved, odd_addresses, tmp_path):
    lm, folder = saved
    elmo = Elmo(lm).eval()
    again = Elmo.from_pretrained(folder)
    third = Elmo.from_pretrained(again.save_pretrained(tmp_path/'third'))
    places = {p.data_ptr() % 64 for model in (again, third) for p in model.lm.parameters()}
    assert len(places) > 1, 'no two lie alike'
    for other in (again, third):
        for ours,theirs in zip(elmo.layers(TEXTS)[0], other.layers(TEXTS)[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
