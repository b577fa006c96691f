"Folders of models: saving and loading, damage, files by strangers, and the hub"
import json, math, os, pickle, random, re, shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest, torch
import addresses, huggingface_hub
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from elmo_fastai.base.errors import ModelFileError, UsageError
from elmo_fastai.text.tokens import ByteCharVocab, CharVocab, SPECIALS, UNK, WordVocab
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.elmo.folder import load_bilm, save_bilm
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.tasks.learner import save_encoder
from elmo_fastai.train.speak import score
from test_bilm import SHAPES, layers, make as make_lm
from test_bilm import batch, types                      # fixtures
from made import CFG, S, VOCAB, bilm, close, make, same

NEAR = dict(atol=1e-5, rtol=1e-5)

# folders

@pytest.fixture()
def trained():
    elmo = make(1, n_reps=2, norm='token', shares=(0.2, 0.5, 0.3), gamma=1.7, dropout=0.25,
                train_gamma=False, tokenizer='space')
    with torch.no_grad(): elmo.mixes[1].w.add_(torch.tensor([.1, .2, -.3]))
    return elmo

def test_round_trip(trained, tmp_path):
    assert trained.save_pretrained(tmp_path/'a'/'m') == tmp_path/'a'/'m'
    assert sorted(f.name for f in (tmp_path/'a'/'m').iterdir()) == sorted([
        'README.md', 'SHA256SUMS', 'chars.json', 'config.json', 'elmo.json', 'mix.safetensors',
        'model.safetensors', 'vocab.json'])
    again = Elmo.from_pretrained(tmp_path/'a'/'m')
    assert same(again(S)[0], trained(S)[0]) and same(again.layers(S)[0], trained.layers(S)[0])
    assert (not again.training and not again.trainable and again.vocab.itos == VOCAB.itos
            and again.drop.p == 0.25 and again.tokenizer == 'space')
    assert [(m.norm, m.w.requires_grad, m.gamma.requires_grad) for m in again.mixes] == [(
        'token', True, False)]*2
    again.save_pretrained(tmp_path/'b')
    for f in (tmp_path/'b').iterdir():
        assert f.read_bytes() == (tmp_path/'a'/'m'/f.name).read_bytes()

def test_settings_in_place_of_the_saved_ones(trained, tmp_path):
    trained.save_pretrained(tmp_path/'m')
    other = Elmo.from_pretrained(tmp_path/'m', dropout=0., carry=True, n_reps=1, norm=None)
    assert (other.drop.p == 0 and other.carry and len(other.mixes) == 1
            and other.mixes[0].norm is None and not other.mixes[0].w.any())
    assert same(other.layers(S)[0], trained.layers(S)[0])

def test_a_folder_of_elmo_pretrain(tmp_path):
    lm = bilm(3)
    save_bilm(tmp_path/'m', lm, VOCAB, extra={'report.json': '{}'})
    elmo = Elmo.from_pretrained(tmp_path/'m')
    assert same(elmo(S)[0], Elmo(lm, dropout=0.).eval()(S)[0])
    assert elmo.vocab.itos == VOCAB.itos

def test_a_saved_elmo_is_a_saved_bilm(trained, tmp_path):
    lm, vocab = load_bilm(trained.save_pretrained(tmp_path/'m'))
    assert vocab.itos == VOCAB.itos and all(
        torch.equal(v, trained.lm.state_dict()[k]) for k, v in lm.state_dict().items())

def test_without_words(tmp_path):
    # a head without names is left out
    for lm in (BiLM(CFG, 0), bilm()):
        elmo = Elmo(lm.eval(), None, dropout=0.).eval()
        again = Elmo.from_pretrained(elmo.save_pretrained(tmp_path/str(lm.n_words)))
        assert same(again(S)[0], elmo(S)[0]) and again.vocab is None and again.lm.n_words == 0

def test_a_tokenizer_of_ones_own(tmp_path):
    elmo = make(tokenizer=list)
    again = Elmo.from_pretrained(elmo.save_pretrained(tmp_path/'m'))
    assert same(again([list('abc')])[0], elmo(['abc'])[0])
    with pytest.raises(ValueError, match='tokenizer='): again(['abc'])
    assert same(Elmo.from_pretrained(tmp_path/'m', tokenizer=list)(['abc'])[0], elmo(['abc'])[0])

def test_a_folder_keeps_the_tokenizer(tmp_path):
    "Of a biLM, of an Elmo, in AI2's format; another one that is said comes first"
    text = ["didn't he?"]
    for name in ('words', 'space', 'chars'):
        lm = bilm(cutoffs=())
        lm.tokenizer = name
        again, _ = load_bilm(save_bilm(tmp_path/'lm', lm, VOCAB))
        elmos = [Elmo.from_pretrained(tmp_path/'lm'),
                 Elmo.from_pretrained(Elmo(lm, VOCAB).save_pretrained(tmp_path/'elmo')),
                 Elmo.from_pretrained(Elmo(lm).save_pretrained(tmp_path/'states')),
                 Elmo.from_ai2(Elmo(lm, VOCAB).to_ai2(tmp_path/'ai2'))]
        assert {name} == {again.tokenizer, *(one.tokenizer for elmo in elmos
                                             for one in (elmo, elmo.lm))}
        other = Elmo.from_pretrained(tmp_path/'elmo', tokenizer=str.upper)
        assert other.to_tokens(text) == [text[0].upper()] and other.lm.tokenizer == name
        own = Elmo(lm, VOCAB, tokenizer='spacy').save_pretrained(tmp_path/'own')
        assert Elmo.from_pretrained(own).tokenizer == 'spacy'
        assert load_bilm(own)[0].tokenizer == name

@pytest.mark.parametrize('kept', [str.split, None], ids=['function', 'not known'])
def test_a_folder_does_not_guess_a_tokenizer(tmp_path, kept):
    "A function can't be saved, and an earlier version saved no name; Elmo's usual one is 'words'"
    lm = bilm()
    if kept: lm.tokenizer = kept
    again, vocab = load_bilm(save_bilm(tmp_path/'lm', lm, VOCAB))
    model = again, vocab, ByteCharVocab()
    with pytest.raises(ValueError, match="tokenizer='words'"): score(*model, 'the bank')
    assert score(*model, 'the bank', tokenizer='space')[0].tokens == ['the', 'bank']
    assert score(*model, [['the', 'bank']])[0].tokens == ['the', 'bank']
    again, _ = load_bilm(save_bilm(tmp_path/'twice', again, VOCAB))
    with pytest.raises(ValueError, match="tokenizer='words'"): score(again, *model[1:], 'the bank')
    elmo = Elmo.from_pretrained(tmp_path/'lm')
    if kept:
        with pytest.raises(ValueError, match="tokenizer='words'"): elmo.embed(['the bank'])
    else: assert elmo.tokenizer == 'words'
    assert Elmo.from_pretrained(tmp_path/'lm', tokenizer='space').embed(['the bank.'])[0].shape[0] == 2

@pytest.mark.parametrize('name', ['zpace', 5, ['words']])
def test_a_tokenizer_by_strangers(tmp_path, name):
    lm = bilm()
    lm.tokenizer = 'space'
    folder = save_bilm(tmp_path/'lm', lm, VOCAB)
    (folder/'SHA256SUMS').unlink()
    edit(folder/'config.json', tokenizer=name)
    with pytest.raises(ModelFileError, match='config.json'): load_bilm(folder)

def test_the_model_card(trained, tmp_path):
    card = ModelCard.load(trained.save_pretrained(tmp_path/'m')/'README.md')
    assert card.data.library_name == 'elmo_fastai' and 'elmo' in card.data.tags
    text = card.text
    for word in ('nano', '16', '48 bytes', 'from_pretrained', '0.200, 0.500, 0.300'):
        assert word in text, word

BROKEN = {
    'elmo.json': [b'', b'{', b'[]', b'{"format": "elmo_fastai.elmo.module", "version": 2}',
                  b'{"format": "elmo_fastai.elmo.module", "version": true}', b'['*100_000,
                  b'\xff'],
    'mix.safetensors': [b'', b'x'*50, b'\x80\x04\x95'],
    'chars.json': [b'', b'{}', b'{"format": "elmo_fastai.ByteCharVocab", "version": 1}',
                   *(b'{"format": "elmo_fastai.ByteCharVocab", "version": 1, "max_chars": %s}' % n
                     for n in (b'"x"', b'1000000000'))]}

@pytest.mark.parametrize('name', BROKEN)
def test_broken_files_are_named(trained, tmp_path, name):
    folder = trained.save_pretrained(tmp_path/'m')
    for data in BROKEN[name]:
        (folder/name).write_bytes(data)
        with pytest.raises(ModelFileError, match=re.escape(name)): Elmo.from_pretrained(folder)
    (folder/name).unlink()
    if name not in ('elmo.json', 'chars.json'):
        with pytest.raises(ModelFileError, match=re.escape(name)): Elmo.from_pretrained(folder)

@pytest.mark.parametrize('change', [
    dict(dropout=2), dict(dropout='0.5'), dict(markers='x'), dict(tokenizer='os.system'),
    dict(mixes=[]), dict(mixes=[{}]*100),
    dict(mixes=[dict(norm='evil', train_shares=True, train_gamma=True)]),
    dict(mixes=[dict(evil=1)]), dict(mixes=3), dict(dropout=math.nan), dict(carry='false'),
    dict(carry=2), dict(mixes=[dict(norm=None, train_shares=1.5, train_gamma=True)])],
        ids=lambda c: str(c)[:40])
def test_settings_by_strangers(trained, tmp_path, change):
    folder = trained.save_pretrained(tmp_path/'m')
    (folder/'SHA256SUMS').unlink()
    d = json.loads((folder/'elmo.json').read_text())
    (folder/'elmo.json').write_text(json.dumps({**d, **change}))
    with pytest.raises(ModelFileError, match=f"{re.escape(str(folder))}.*(settings|Elmo)"):
        Elmo.from_pretrained(folder)

def test_a_mismatch_names_the_tensor(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    good = load_file(folder/'mix.safetensors')
    for change, says in (
        ({'1.w': torch.zeros(4)}, r'1\.w should be \(3,\), found \(4,\)'),
        ({'1.w': None}, r'1\.w is missing'),
        ({'2.w': torch.zeros(3)}, r'unknown tensor 2\.w'),
        ({'0.gamma': torch.tensor([math.nan])}, r'0\.gamma.*finite'),
    ):
        save_file({k: v for k, v in {**good, **change}.items() if v is not None},
                  folder/'mix.safetensors')
        with pytest.raises(ModelFileError, match=says): Elmo.from_pretrained(folder)

# the hub

def test_local_folders_need_no_network(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(
        huggingface_hub, 'snapshot_download', lambda *a, **k: pytest.fail('it asked the hub')
    )
    assert Elmo.from_pretrained(str(trained.save_pretrained(tmp_path/'m')))
    with pytest.raises(ModelFileError, match='There is no folder'):
        Elmo.from_pretrained(tmp_path/'not'/'here')

def test_a_name_on_the_hub(trained, tmp_path, monkeypatch):
    folder, asked = trained.save_pretrained(tmp_path/'m'), {}
    monkeypatch.setattr(huggingface_hub, 'snapshot_download',
                        lambda name, **k: asked.update(name=name, **k) or str(folder))
    again = Elmo.from_pretrained('someone/elmo-toy', revision='v1', token='t')
    assert (same(again(S)[0], trained(S)[0]) and asked['name'] == 'someone/elmo-toy'
            and asked['revision'] == 'v1' and asked['token'] == 't')
    # files of the models in the box, and of a saved classifier or tagger
    others = {'output.safetensors', 'task.json', 'task.safetensors', 'tokens.safetensors',
              'words.json'}
    fetched = {*asked['allow_patterns']} - others
    assert {f.name for f in folder.iterdir()} == fetched, 'what is written is what is fetched'
    assert not [p for p in asked['allow_patterns'] if p.endswith(('.py', '.pkl', '.bin', '.pth'))]

def test_from_the_hubs_cache_without_network(trained, tmp_path):
    "huggingface_hub's own cache layout: refs, snapshots, links to blobs"
    repo, commit = tmp_path/'cache'/'models--someone--elmo-toy', 'a'*40
    (repo/'refs').mkdir(parents=True); (repo/'refs'/'main').write_text(commit)
    snap = repo/'snapshots'/commit
    snap.mkdir(parents=True); (repo/'blobs').mkdir()
    for f in trained.save_pretrained(tmp_path/'m').iterdir():
        shutil.copy(f, repo/'blobs'/f.name)
        (snap/f.name).symlink_to(Path('../../blobs')/f.name)
    again = Elmo.from_pretrained(
        'someone/elmo-toy', cache_dir=tmp_path/'cache', local_files_only=True
    )
    assert same(again(S)[0], trained(S)[0])
    with pytest.raises(ModelFileError, match='someone/other'):
        Elmo.from_pretrained('someone/other', cache_dir=tmp_path/'cache', local_files_only=True)

def test_push_to_hub(trained, monkeypatch):
    sent = {}
    class Api:
        def __init__(self, **kw): pass
        def create_repo(self, repo_id, **kw): return SimpleNamespace(repo_id=repo_id)
        def upload_folder(self, *, repo_id, folder_path, **kw):
            sent.update(repo_id=repo_id, vectors=Elmo.from_pretrained(folder_path)(S)[0],
                        files={f.name for f in Path(folder_path).iterdir()})
            return 'https://commit'
    monkeypatch.setattr(huggingface_hub, 'HfApi', Api)
    assert trained.push_to_hub('someone/elmo-toy') == 'https://commit'
    assert (sent['repo_id'] == 'someone/elmo-toy' and same(sent['vectors'], trained(S)[0])
            and {'README.md', 'config.json', 'model.safetensors'} <= sent['files'])

def test_save_and_push(trained, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Elmo, 'push_to_hub', lambda self, name, **kw: asked.append((name, kw)) or 'https://commit'
    )
    assert (trained.save_pretrained(tmp_path/'elmo-toy', push_to_hub=True, private=True)
            == 'https://commit')
    assert (asked == [('elmo-toy', dict(private=True))]
            and (tmp_path/'elmo-toy'/'config.json').exists())

# an alphabet of one's own

OTHER_SENTS = [['Ωmega', 'the', 'bank'], ['of', 'the', 'river', '.']]*4

def test_an_alphabet_in_files(spelt, tmp_path):
    """All ways into a folder and out of it give the same vectors, also of letters that the alphabet
    has not"""
    learn, chars = spelt
    lm, vocab = learn.model.eval(), learn.dls.vocab
    expected = Elmo(lm, vocab, char_vocab=chars).eval()(OTHER_SENTS)[0]
    assert same(Elmo(lm, vocab).eval()(OTHER_SENTS)[0], expected)       # the model knows
    save_bilm(tmp_path/'bilm', lm, vocab)
    Elmo(lm, vocab).save_pretrained(tmp_path/'elmo')
    Elmo(lm).save_pretrained(tmp_path/'headless')
    save_encoder(learn, tmp_path/'encoder')
    for name in ('bilm', 'elmo', 'headless', 'encoder'):
        again = Elmo.from_pretrained(tmp_path/name)
        assert again.char_vocab == again.lm.char_vocab == chars and same(
            again(OTHER_SENTS)[0], expected)
        assert load_bilm(tmp_path/name)[0].config == lm.config
    again, words = load_bilm(tmp_path/'bilm')
    assert words.itos == vocab.itos and evaluate(again, learn.dls.valid) == pytest.approx(
        evaluate(lm, learn.dls.valid))
    assert f'{chars.n_chars - 6} symbols' in (tmp_path/'elmo'/'README.md').read_text()

def test_alphabets_that_do_not_fit(spelt, tmp_path):
    learn, chars = spelt
    lm, vocab = learn.model.eval(), learn.dls.vocab
    # as many symbols in another order
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)
    for wrong in (ByteCharVocab(chars.max_chars), CharVocab([UNK, *'abc'], chars.max_chars), other):
        with pytest.raises(ValueError, match='char_vocab'): Elmo(lm, vocab, char_vocab=wrong)
        with pytest.raises(ValueError, match='char_vocab'):
            save_bilm(tmp_path/'m', lm, vocab, char_vocab=wrong)
    assert not (tmp_path/'m').exists()
    folder = save_bilm(tmp_path/'m', lm, vocab)
    with pytest.raises(ValueError, match='char_vocab'):
        Elmo.from_pretrained(folder, char_vocab=other)
    CharVocab([UNK, *'abc'], chars.max_chars).save(folder/'chars.json')
    for f in (load_bilm, Elmo.from_pretrained):
        with pytest.raises(ModelFileError, match='chars.json.*10 ids.*config.json'): f(folder)
    (folder/'chars.json').write_text('{')
    with pytest.raises(ModelFileError, match='chars.json'): load_bilm(folder)
    (folder/'chars.json').unlink()
    if chars.n_chars != 262:                                            # else it might be bytes
        with pytest.raises(ModelFileError, match='chars.json'): load_bilm(folder)

def test_models_saved_by_earlier_versions(tmp_path):
    "Their configuration says nothing of characters, and no chars.json is beside them"
    elmo = make()
    save_bilm(tmp_path/'m', elmo.lm, VOCAB)
    (tmp_path/'m'/'SHA256SUMS').unlink()
    head = json.loads((tmp_path/'m'/'config.json').read_text())
    assert head['config'].pop('n_chars') == 262 and not (tmp_path/'m'/'chars.json').exists()
    (tmp_path/'m'/'config.json').write_text(json.dumps(head))
    again = Elmo.from_pretrained(tmp_path/'m')
    assert again.lm.config.n_chars == 262 and again.char_vocab == ByteCharVocab(
        elmo.lm.config.max_chars)
    assert same(again(S)[0], elmo(S)[0])

def test_files_of_another_library_are_not_replaced(tmp_path):
    "Nor its model card; a model of ours in the same place is"
    elmo = Elmo.from_pretrained('mini-en')
    theirs = {'config.json': '{"model_type": "bert"}', 'model.safetensors': 'x',
              'README.md': 'mine', 'tokenizer.json': '{}'}
    for k,v in theirs.items(): (tmp_path/k).write_text(v)
    with pytest.raises(ModelFileError): elmo.save_pretrained(tmp_path)
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == theirs
    for k in ('config.json', 'model.safetensors'): (tmp_path/k).unlink()
    for _ in range(2): elmo.save_pretrained(tmp_path)
    assert ((tmp_path/'README.md').read_text() == 'mine'
            and (tmp_path/'tokenizer.json').exists()
            and Elmo.from_pretrained(tmp_path).dim == elmo.dim)

@pytest.mark.parametrize('change', [
    dict(train_shares=False), dict(train_gamma=True), dict(norm=None), dict(gamma=3.)], ids=str)
def test_other_settings_keep_the_trained_mix(trained, tmp_path, change):
    folder = trained.save_pretrained(tmp_path/'m')
    again = Elmo.from_pretrained(folder, **change)
    for mix, before in zip(again.mixes, trained.mixes, strict=True):
        assert torch.equal(mix.w, before.w)
        assert mix.gamma.item() == pytest.approx(change.get('gamma', before.gamma.item()))
        assert mix.norm == change.get('norm', before.norm)
        assert mix.w.requires_grad == change.get('train_shares', True)
        assert mix.gamma.requires_grad == change.get('train_gamma', False)

@pytest.mark.parametrize('name', ['config.json', 'model.safetensors', 'vocab.json', 'elmo.json',
                                  'mix.safetensors', 'chars.json', 'SHA256SUMS'])
def test_a_flipped_bit_anywhere_is_refused(trained, tmp_path, name):
    file = trained.save_pretrained(tmp_path/'m')/name
    raw = file.read_bytes()
    for i in random.Random(0).sample(range(8*len(raw)), 5):
        damaged = bytearray(raw)
        damaged[i//8] ^= 1 << i % 8
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError): Elmo.from_pretrained(tmp_path/'m')

@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_weights_that_are_not_finite(trained, tmp_path, value):
    folder = trained.save_pretrained(tmp_path/'m')
    weights = load_file(folder/'model.safetensors')
    name = 'chars.embed.weight'
    weights[name].view(-1)[-1] = value
    save_file(weights, folder/'model.safetensors')
    (folder/'SHA256SUMS').unlink()
    with pytest.raises(ModelFileError, match='finite'): Elmo.from_pretrained(folder)
    trained.lm.load_state_dict({name: weights[name]}, strict=False)
    with pytest.raises(ValueError, match='finite'): trained.save_pretrained(tmp_path/'other')
    assert not (tmp_path/'other').exists()

def test_an_edited_card_and_notes_stay(trained, tmp_path):
    folder = trained.save_pretrained(tmp_path/'m')
    (folder/'README.md').write_text('An elmo_fastai model, as I see it')
    (folder/'notes.txt').write_text('mine')
    trained.save_pretrained(folder)
    save_bilm(folder, trained.lm, VOCAB)
    assert (folder/'README.md').read_text() == 'An elmo_fastai model, as I see it'
    assert (folder/'notes.txt').read_text() == 'mine' and not (folder/'elmo.json').exists()

def test_a_model_in_the_home_folder(trained, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    trained.save_pretrained(tmp_path/'m')
    assert close(Elmo.from_pretrained(str(Path('~')/'m')).eval()(S)[0][0], trained.eval()(S)[0][0])

def test_a_zip_is_to_be_unpacked(tmp_path):
    file = tmp_path/'144.zip'
    file.write_bytes(b'PK\x03\x04')
    for load in (Elmo.from_pretrained, Elmo.from_ai2):
        with pytest.raises(ModelFileError, match='unpack'): load(file)

def test_weights_lie_in_memory_of_their_own(saved):
    folder, lm = saved
    with addresses.usual(): again, _ = load_bilm(folder)
    file = folder/'model.safetensors'
    size = file.stat().st_size
    # as when another model is copied over it
    with open(file, 'r+b') as f: f.write(bytes(size))
    for name,weight in again.state_dict().items():
        assert torch.equal(weight, lm.state_dict()[name]), name
        assert weight.data_ptr() % 64 == 0, f'{name} lies where products round otherwise'

def test_a_saved_model_is_the_same_wherever_it_lies(saved, odd_addresses, tmp_path):
    folder, lm = saved
    elmo = Elmo(lm).eval()
    again = Elmo.from_pretrained(folder)
    third = Elmo.from_pretrained(again.save_pretrained(tmp_path/'third'))
    places = {p.data_ptr() % 64 for model in (again, third) for p in model.lm.parameters()}
    assert len(places) > 1, 'no two lie alike'
    for other in (again, third):
        for ours,theirs in zip(elmo.layers(S)[0], other.layers(S)[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

@pytest.mark.parametrize('mode', [torch.no_grad, torch.inference_mode])
def test_a_model_loaded_in_inference_mode_embeds(trained, tmp_path, mode):
    trained.save_pretrained(tmp_path/'m')
    with mode(): loaded = Elmo.from_pretrained(tmp_path/'m')
    assert same(trained.embed(S), loaded.embed(S))

def test_a_misspelt_setting_is_no_bad_file(trained, tmp_path):
    trained.save_pretrained(tmp_path/'m')
    with pytest.raises(TypeError, match='droput'): Elmo.from_pretrained(tmp_path/'m', droput=.3)
    with pytest.raises(TypeError, match='droput'): Elmo(trained.lm, droput=.3)

# the biLM inside

def test_only_a_model_is_replaced_by_a_model(tmp_path):
    lm = BiLM(BiLMConfig('nano', char_dim=4, filters=((1, 8),), proj_dim=8, hidden_dim=8), 0)
    (tmp_path/'work').mkdir()
    (tmp_path/'work'/'thesis.tex').write_text('years')
    (tmp_path/'file').write_text('x')
    (tmp_path/'new').mkdir()
    (tmp_path/'bert').mkdir(); (tmp_path/'bert'/'config.json').write_text('{"model_type": "bert"}')
    for o in ('work', 'file', 'bert'):
        with pytest.raises(ValueError, match='would be replaced'): save_bilm(tmp_path/o, lm, None)
    assert (tmp_path/'work'/'thesis.tex').exists() and (tmp_path/'file').read_text() == 'x'
    for _ in range(2): save_bilm(tmp_path/'new', lm, None)
    (tmp_path/'link').symlink_to(tmp_path/'new')
    save_bilm(tmp_path/'link', lm, None)
    assert (tmp_path/'link').is_symlink() and {o.name for o in tmp_path.iterdir()} == {
        'work', 'file', 'bert', 'new', 'link'}

@pytest.fixture
def saved(tmp_path, types, batch):
    m = make_lm(SHAPES['adaptive'], types, batch)
    return save_bilm(tmp_path/'model', m, types.vocab), m

def edit(file, **changes):
    "Change a saved file as somebody might who wants it to load"
    (file.parent/'SHA256SUMS').unlink(missing_ok=True)
    d = json.loads(file.read_text())
    for k,v in changes.items(): (d if k in d or 'config' not in d else d['config'])[k] = v
    file.write_text(json.dumps(d))

def refused(folder, file):
    "Loading must fail with one `ModelFileError` that names `file` on one line"
    with pytest.raises(ModelFileError) as e: load_bilm(folder)
    assert str(folder) in str(e.value) and file in str(e.value), e.value
    assert len(str(e.value)) < 1000
    return str(e.value)

@pytest.mark.parametrize('shape', SHAPES)
def test_the_same_vectors_after_a_round_trip(tmp_path, shape, types, batch):
    m = make_lm(SHAPES[shape], types, batch)
    again, vocab = load_bilm(save_bilm(tmp_path/'deep'/'er'/'model', m.train(), types.vocab))
    m.eval()
    assert (again.config == m.config and again.n_words == m.n_words
            and vocab.itos == types.vocab.itos and not again.training)
    assert torch.allclose(layers(again, batch[0]), layers(m, batch[0]), **NEAR)
    with torch.no_grad():
        assert all(torch.allclose(a, b, **NEAR) for a, b in zip(again(*batch), m(*batch)))
    assert [(k, p.requires_grad, p.dtype) for k, p in again.named_parameters()] == [
        (k, p.requires_grad, p.dtype) for k, p in m.named_parameters()]
    torch.cat(again.train()(*batch)).mean().backward()                  # it can be trained on

def test_what_a_folder_holds(saved):
    folder, m = saved
    assert sorted(f.name for f in folder.iterdir()) == [
        'SHA256SUMS', 'config.json', 'model.safetensors', 'vocab.json']
    assert [f.name for f in folder.parent.iterdir()] == ['model']
    modes = {f.stat().st_mode & 0o044 for f in folder.iterdir()}
    assert modes == {0o044}, 'others may read it, as any other file'
    save_bilm(folder, m, load_bilm(folder)[1], extra={'a.txt': 'é', 'b.bin': b'\xff'})
    assert (folder/'a.txt').read_text(encoding='utf-8') == 'é' and (
        folder/'b.bin').read_bytes() == b'\xff'

def test_saving_leaves_the_model_alone(tmp_path, types, batch):
    m = make_lm(SHAPES['plain'], types, batch).train()
    before = layers(m.eval(), batch[0]); m.train()
    save_bilm(tmp_path/'m', m, types.vocab)
    assert m.training and torch.equal(layers(m.eval(), batch[0]), before)

@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'vocab.json'])
@pytest.mark.parametrize('damage', [
    'missing', 'empty', 'half', 'short', 'binary', 'foreign', 'list', 'zeros', 'deep',
    'long number', 'folder', 'pickle', 'loop'])
def test_damaged_files(saved, file, damage):
    f = saved[0]/file
    data = f.read_bytes()
    f.unlink()
    contents = dict(empty=b'', half=data[:len(data) // 2], short=data[:-3],
                    binary=bytes(range(256))*40, foreign=b'{"a": 1}', list=b'[1, 2]',
                    zeros=bytes(500), deep=b'['*100_000, pickle=pickle.dumps({'head.weight': 1}),
                    **{'long number': b'1'*10_000})
    if damage in contents: f.write_bytes(contents[damage])
    elif damage == 'folder': f.mkdir()
    elif damage == 'loop': f.symlink_to(f)
    refused(saved[0], file)

def test_no_model_there(tmp_path, saved):
    for p in (tmp_path/'nothing', tmp_path, saved[0]/'config.json',
              saved[0]/'config.json'/'x', str(tmp_path/'nothing')):
        with pytest.raises(ModelFileError, match='config.json'):
            load_bilm(p)

@pytest.mark.parametrize('n', [-1, 3, 7., 7.5, '7', None, True, [7], 10**12, 2**63, 10**40])
def test_absurd_numbers_of_words(saved, n):
    edit(saved[0]/'config.json', n_words=n)
    refused(saved[0], '' if n in (10**12, 2**63) else 'config.json')

@pytest.mark.parametrize('head', [
    dict(version=2), dict(version=0), dict(version=-1), dict(version=True), dict(version='1'),
    dict(version=None), dict(version=1.5), dict(version=10**30), dict(format='other'),
    dict(format=None), dict(format=['x']), dict(config=None), dict(config=5), dict(config=[]),
    dict(config='x'), dict(unknown=1), dict(n_layers=-1), dict(filters='abc')], ids=str)
def test_heads_that_are_not_ours(saved, head):
    edit(saved[0]/'config.json', **head)
    said = refused(saved[0], 'config.json')
    if head == dict(version=2):
        assert 'version 2' in said and 'up to 1' in said
    if 'unknown' in head:
        assert 'unknown' in said

@pytest.mark.parametrize('key', ['format', 'version', 'n_words', 'config'])
def test_heads_with_a_gap(saved, key):
    f = saved[0]/'config.json'
    f.write_text(json.dumps({k:v for k,v in json.loads(f.read_text()).items() if k != key}))
    refused(saved[0], 'config.json')

def test_configs_of_the_first_version_load(saved):
    """Saved before there were output layers to choose, separate parts, or an encoder without
    projection"""
    f = saved[0]/'config.json'
    (saved[0]/'SHA256SUMS').unlink()
    d = json.loads(f.read_text())
    for k in ('softmax', 'div_value', 'n_negative', 'char_proj', 'share_encoder', 'share_softmax'):
        del d['config'][k]
    f.write_text(json.dumps(d))
    assert load_bilm(saved[0])[0].config == saved[1].config

def test_other_defaults_later_do_not_change_saved_models(tmp_path, monkeypatch, types):
    "`cutoffs=None` is the library's choice of the time when the model was saved"
    vocab = WordVocab([*SPECIALS, *map(str, range(6000))])
    m = BiLM(replace(SHAPES['plain'], proj_dim=32, hidden_dim=32), len(vocab))
    folder = save_bilm(tmp_path/'m', m, vocab)
    from elmo_fastai.nn import softmax
    monkeypatch.setattr(softmax, 'default_cutoffs', lambda *args: (50, 100))
    again, _ = load_bilm(folder)
    assert again.head.cutoffs == m.head.cutoffs and again.config.cutoffs == tuple(
        m.head.cutoffs[:-1])

def test_a_huge_model_costs_nothing_to_refuse(saved):
    "Sizes are compared before memory is taken: the folder claims a terabyte"
    edit(saved[0]/'config.json', proj_dim=500_000, hidden_dim=500_000)
    refused(saved[0], 'model.safetensors')

@pytest.mark.parametrize('name,change', [
    ('extra', lambda d, k: d.update(zzz=torch.ones(1))),
    ('lacking', lambda d, k: d.pop(k)),
    ('longer', lambda d, k: d.update({k: torch.ones(99, 20)})),
    ('transposed', lambda d, k: d.update({k: d[k].T.contiguous()})),
    ('flat', lambda d, k: d.update({k: d[k].flatten()})),
    ('renamed', lambda d, k: d.update(x=d.pop(k))),
    ('whole numbers', lambda d, k: d.update({k: torch.ones_like(d[k], dtype=torch.int64)})),
    ('truth values', lambda d, k: d.update({k: d[k] > 0})),
    ('nothing', lambda d, k: d.clear())])
def test_weights_that_do_not_fit(saved, name, change):
    f = saved[0]/'model.safetensors'
    d = load_file(f)
    change(d, 'lstm.fwd.0.weight_ih_l0')
    save_file(d, f)
    said = refused(saved[0], 'model.safetensors')
    if name == 'extra':
        assert 'zzz' in said
    if name in ('lacking', 'longer', 'transposed', 'flat', 'renamed', 'whole numbers'):
        assert 'lstm.fwd.0.weight_ih_l0' in said

@pytest.mark.parametrize('split', [False, True])
def test_weights_in_rows_of_bytes(saved, split):
    """As in the box: a matrix is whole numbers of one byte and a scale for each row, the output
    layer in a file of its own"""
    folder = saved[0]
    (folder/'SHA256SUMS').unlink()
    whole, kept, want = load_file(folder/'model.safetensors'), {}, {}
    for k,v in whole.items():
        kept[k] = want[k] = v
        if v.dim() < 2: continue
        scale = (v.flatten(1).abs().amax(1)/127).half()
        kept[k] = (v.flatten(1)/scale.float()[:, None]).round().to(torch.int8).view_as(v)
        kept[f'{k}.scale'] = scale
        want[k] = (kept[k].flatten(1).float()*scale.float()[:, None]).view_as(v)
    head = {k: kept.pop(k) for k in [*kept] if split and k.startswith('head')}
    save_file(kept, folder/'model.safetensors')
    if split: save_file(head, folder/'output.safetensors')
    lm, _ = load_bilm(folder)
    assert all(torch.allclose(v, want[k], **NEAR) for k,v in lm.state_dict().items())
    if split:
        save_file({k: v for k,v in head.items() if '.0.' not in k}, folder/'output.safetensors')
        with pytest.raises(ModelFileError, match='output.safetensors: head.* is missing'):
            load_bilm(folder)
    name = 'chars.embed.weight.scale'
    save_file({**kept, name: kept[name][:-1].clone()}, folder/'model.safetensors')
    with pytest.raises(ModelFileError, match="model.safetensors can't be read"): load_bilm(folder)
    save_file({**kept, 'other.scale': kept[name].clone()}, folder/'model.safetensors')
    with pytest.raises(ModelFileError, match='unknown tensor other.scale'): load_bilm(folder)

@pytest.mark.parametrize('itos', [
    5, None, 'abc', {}, [], ['a']*9, [*SPECIALS, 5], [*SPECIALS, ['c']], [*SPECIALS, None],
    [*SPECIALS, 'a', 'a']], ids=str)
def test_vocabularies_that_are_none(saved, itos):
    n = saved[1].n_words
    # of the right length
    if isinstance(itos, list) and itos[:4] == SPECIALS:
        itos = [*SPECIALS, *map(str, range(n - len(itos))), *itos[4:]]
    edit(saved[0]/'vocab.json', itos=itos)
    refused(saved[0], 'vocab.json')

@pytest.mark.parametrize('more', [-1, 1])
def test_a_vocabulary_of_another_size(saved, types, more):
    WordVocab([*types.vocab.itos, 'new'][:len(types.vocab)+more]).save(saved[0]/'vocab.json')
    said = refused(saved[0], 'vocab.json')
    assert str(len(types.vocab)+more) in said and str(len(types.vocab)) in said

class Trap:
    def __reduce__(self): return os.mkdir, (os.environ['ELMO_TRAP'],)

@pytest.mark.parametrize('file', ['config.json', 'model.safetensors', 'vocab.json', 'elmo.json',
                                  'mix.safetensors', 'chars.json'])
@pytest.mark.parametrize('write', [
    lambda o, f: f.write_bytes(pickle.dumps(o)),
    lambda o, f: torch.save({'head.weight': torch.ones(1), 'x': o}, f)], ids=['pickle', 'torch'])
def test_nothing_is_executed(trained, tmp_path, monkeypatch, file, write):
    folder, trap = trained.save_pretrained(tmp_path/'m'), tmp_path/'sprung'
    monkeypatch.setenv('ELMO_TRAP', str(trap))
    write(Trap(), folder/file)
    with pytest.raises(ModelFileError): Elmo.from_pretrained(folder)
    assert not trap.exists()
    data = (folder/file).read_bytes()
    if data[:2] == b'PK': return
    pickle.loads(data)
    assert trap.exists(), 'the trap was none'

@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize('first', [True, False])
def test_an_interrupted_save(tmp_path, types, batch, monkeypatch, error, first):
    folder, m = tmp_path/'model', make_lm(SHAPES['plain'], types, batch)
    if not first: save_bilm(folder, m, types.vocab, extra={'note.txt': 'old'})
    def stop(*args): raise error('No space left on device')
    other = make_lm(SHAPES['plain'], types, batch, seed=1)
    with monkeypatch.context() as mp, pytest.raises(error):
        mp.setattr(WordVocab, 'save', stop)
        save_bilm(folder, other, types.vocab, extra={'note.txt': 'new'})
    with pytest.raises(TypeError): save_bilm(folder, other, types.vocab, extra={'note': object()})
    assert [f.name for f in tmp_path.iterdir()] == ([] if first else ['model'])
    if first: return
    assert (folder/'note.txt').read_text() == 'old'
    assert torch.allclose(layers(load_bilm(folder)[0], batch[0]), layers(m, batch[0]), **NEAR)

@pytest.mark.parametrize('name', ['./no_model', '../no_model', 'a/b/c', '/no/model', 'no_model/'])
def test_a_path_that_is_not_there_is_no_name_of_the_hub(name):
    with pytest.raises(UsageError, match='no folder'): Elmo.from_pretrained(name)
