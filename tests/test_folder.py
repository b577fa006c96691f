"Folders of models: saving and loading, damage, kills, files by strangers, and the hub"
import io, json, math, multiprocessing, os, pickle, random, shutil, sys
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path

import psutil, pytest, torch
import addresses, huggingface_hub
from safetensors.torch import load, save

from elmo_fastai.all import Elmo, load_bilm, save_bilm
from elmo_fastai.errors import ModelFileError
from elmo_fastai.practice.files import lock_folder
from elmo_fastai.practice.folder import Folder, write_files
from elmo_fastai.tokens import ByteCharVocab, CharVocab, SPECIALS, UNK, WordVocab
from elmo_fastai.bilm import BiLMConfig
from elmo_fastai.learner import score
from made import S, VOCAB, bilm, forks, make, posix, same

def contents(folder): return {file.name: file.read_bytes() for file in Path(folder).iterdir()}

def put(folder, files):
    "A folder with these files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name,data in files.items(): (folder/name).write_bytes(data)
    return folder

def equal(a, b):
    "Have two modules the same weights, bit for bit, of the same kind?"
    a, b = [[(*pair, getattr(pair[1], 'requires_grad', None), pair[1].dtype)
             for pair in (*m.named_parameters(), *m.named_buffers())] for m in (a, b)]
    return all(x[0] == y[0] and x[1].equal(y[1]) and x[2:] == y[2:]
               for x,y in zip(a, b, strict=True))

def refused(folder, *names, load=Elmo.from_pretrained):
    "Is a folder refused in one line, which has one of the names? Returns it"
    with pytest.raises(ModelFileError) as error: load(folder)
    said = str(error.value)
    assert '\n' not in said and len(said) < 700 and any(name in said for name in names), said
    return said

@pytest.fixture(scope='module')
def trained():
    elmo = make(1, n_reps=2, norm='token', shares=(.2, .5, .3), gamma=1.7, dropout=.25,
                train_gamma=False, tokenizer='space')
    with torch.no_grad(): elmo.mixes[1].w.add_(torch.tensor([.1, .2, -.3]))
    return elmo

@pytest.fixture(scope='module')
def files(trained, tmp_path_factory):
    "Name → contents of a saved Elmo"
    return contents(trained.save_pretrained(tmp_path_factory.mktemp('saved')/'m'))

# there and back

SHAPES = dict(
    plain={}, none=dict(n_words=0), adaptive=dict(cutoffs=(5, 6), div_value=2.),
    sampled=dict(softmax='sampled', n_negative=5, bias=True),
    apart=dict(share_encoder=False, share_softmax=False),
    filters=dict(char_proj=False, filters=((1, 8),), norm=False),
    deep=dict(n_layers=3, cell_clip=3., proj_clip=3., activation='tanh', residual=False))

@pytest.mark.parametrize('shape', SHAPES)
def test_a_bilm_there_and_back(tmp_path, shape):
    n_words = SHAPES[shape].get('n_words', len(VOCAB))
    lm, vocab = bilm(**SHAPES[shape]), VOCAB if n_words else None
    save_bilm(tmp_path/'deep'/'m', lm.train(), vocab)
    assert lm.training
    again, words = load_bilm(tmp_path/'deep'/'m')
    assert again.config == lm.config and again.n_words == n_words and not again.training
    assert equal(again, lm) and (words and words.itos) == (vocab and vocab.itos)
    elmo = Elmo.from_pretrained(tmp_path/'deep'/'m')
    assert same(elmo(S)[0], Elmo(lm.eval()).eval()(S)[0])
    assert elmo.tokenizer == 'words' and (elmo.vocab is None) == (not n_words)
    # else it rounds otherwise
    assert all(p.data_ptr() % 64 == 0 for p in again.train().parameters())

def test_an_elmo_there_and_back(trained, files, tmp_path):
    assert {*files} == {'README.md', 'chars.json', 'config.json', 'elmo.json', 'mix.safetensors',
                        'model.safetensors', 'vocab.json'}
    again = Elmo.from_pretrained(put(tmp_path/'m', files))
    assert equal(again, trained) and same(again(S)[0], trained(S)[0])
    assert not again.training and not again.trainable and again.vocab.itos == VOCAB.itos
    assert contents(again.save_pretrained(tmp_path/'b')) == files
    assert {file.stat().st_mode & 0o44 for file in (tmp_path/'b').iterdir()} == {0o44}
    lm, vocab = load_bilm(tmp_path/'m')
    assert equal(lm, bilm(1)) and vocab.itos == VOCAB.itos
    card = files['README.md'].decode()
    for word in ('nano', '| 16 |', 'max_chars=50', '0.200, 0.500, 0.300'): assert word in card, word
    with torch.inference_mode(): inside = Elmo.from_pretrained(tmp_path/'m')
    assert same(inside(S)[0], trained(S)[0]) and not inside.lm.chars.embed.weight.is_inference()

@pytest.mark.parametrize('change', [
    dict(), dict(train_shares=False, train_gamma=True, norm=None), dict(gamma=3.),
    dict(shares=(.5, .3, .2)), dict(n_reps=1), dict(dropout=0., carry=True, markers='given'),
    dict(tokenizer=list, nfc=False)], ids=str)
def test_other_settings(trained, files, tmp_path, change):
    again = Elmo.from_pretrained(put(tmp_path/'m', files), **change)
    kept = dict(dropout=.25, carry=False, markers='add', tokenizer='space', nfc=True, n_reps=2,
                norm='token', gamma=1.7, train_shares=True, train_gamma=False) | change
    for name in ('carry', 'markers', 'tokenizer', 'nfc'): assert getattr(again, name) == kept[name]
    assert again.drop.p == kept['dropout'] and len(again.mixes) == kept['n_reps']
    for mix,before in zip(again.mixes, trained.mixes):
        w = before.w
        if 'shares' in change: w = torch.tensor(change['shares']).log()
        if 'n_reps' in change: w = torch.zeros(3)
        assert torch.allclose(mix.w - mix.w.mean(), w - w.mean(), atol=1e-6)
        assert mix.gamma.item() == pytest.approx(1. if 'n_reps' in change else kept['gamma'])
        assert (mix.norm, mix.w.requires_grad, mix.gamma.requires_grad) == (
            kept['norm'], kept['train_shares'], kept['train_gamma'])
    with pytest.raises(TypeError, match='droput'): Elmo.from_pretrained(tmp_path/'m', droput=.3)

@pytest.mark.parametrize('kept,found', [('words', 'words'), ('space', 'space'), ('chars', 'chars'),
                                        (str.split, None), (None, 'words')])
def test_tokenizers(tmp_path, kept, found):
    "By name, and not guessed: of a function the folder says that there was one"
    lm = bilm()
    lm.tokenizer = kept
    save_bilm(tmp_path/'lm', lm, VOCAB)
    Elmo(lm, VOCAB).save_pretrained(tmp_path/'elmo')
    for folder in (tmp_path/'lm', tmp_path/'elmo'):
        again, elmo = load_bilm(folder)[0], Elmo.from_pretrained(folder)
        if found: assert elmo.tokenizer == found and again.tokenizer in (kept, found)
        else:
            for read in (lambda: elmo(['the bank']),
                         lambda: score(again, VOCAB, ByteCharVocab(), 'a')):
                with pytest.raises(ValueError, match="tokenizer='words'"): read()
            save_bilm(tmp_path/'twice', again, VOCAB)
            assert load_bilm(tmp_path/'twice')[0].tokenizer == again.tokenizer

def test_alphabets(spelt, tmp_path):
    "The same vectors afterwards, also of letters that it has not; another alphabet is refused"
    learn, chars = spelt
    lm, vocab, sents = learn.model.eval(), learn.dls.vocab, [['Ωmega', 'the', 'bank'], ['.']]
    save_bilm(tmp_path/'bilm', lm, vocab)
    Elmo(lm).save_pretrained(tmp_path/'headless')
    for folder in tmp_path.iterdir():
        again = Elmo.from_pretrained(folder)
        assert again.char_vocab == again.lm.char_vocab == chars
        assert same(again(sents)[0], Elmo(lm, vocab, char_vocab=chars).eval()(sents)[0])
    other = CharVocab([UNK, *chars.itos[:0:-1]], chars.max_chars, chars.n)    # in another order
    for f in (lambda: save_bilm(tmp_path/'n', lm, vocab, char_vocab=other),
              lambda: Elmo.from_pretrained(tmp_path/'bilm', char_vocab=other)):
        with pytest.raises(ValueError, match='char_vocab'): f()
    assert not (tmp_path/'n').exists()

def test_what_could_not_be_read_back_is_not_written(tmp_path, trained):
    @dataclass
    class Own(BiLMConfig): pass
    lm, folded, nan, own = bilm(), bilm(), bilm(), bilm()
    folded.chars.fold_norm()
    with torch.no_grad(): nan.head.bias[1] = math.nan
    own.config = Own()
    mixed = make(n_reps=2)
    mixed.mixes[1].w.requires_grad_(False)
    for says,save_ in (
            ('do not belong together', lambda: save_bilm(tmp_path/'m', lm, None)),
            ('do not belong together', lambda: save_bilm(tmp_path/'m', lm, WordVocab(SPECIALS))),
            ('folded away', lambda: save_bilm(tmp_path/'m', folded, VOCAB)),
            ('head.bias.*finite', lambda: save_bilm(tmp_path/'m', nan, VOCAB)),
            ('Own', lambda: save_bilm(tmp_path/'m', own, VOCAB)),
            ('differ', lambda: mixed.save_pretrained(tmp_path/'m'))):
        with pytest.raises(ValueError, match=says): save_()
    assert not (tmp_path/'m').exists()

# damage

KEPT = ['chars.json', 'config.json', 'elmo.json', 'mix.safetensors', 'model.safetensors',
        'vocab.json']

class Trap:
    def __reduce__(self): return os.mkdir, (os.environ['ELMO_TRAP'],)

DAMAGE = dict(missing=None, empty=b'', foreign=b'{"a": 1}', list=b'[1, 2]', zeros=bytes(500),
              deep=b'['*100_000)

@pytest.mark.parametrize('name,damage', product(KEPT, [*DAMAGE, 'half', 'long', 'pickle']))
def test_damage_is_refused_by_name(files, tmp_path, monkeypatch, name, damage):
    monkeypatch.setenv('ELMO_TRAP', str(tmp_path/'sprung'))
    file, data = put(tmp_path/'m', files)/name, files[name]
    file.unlink()
    damaged = dict(DAMAGE, half=data[:len(data)//2], long=data + b'\0', pickle=pickle.dumps(Trap()))
    if damage != 'missing': file.write_bytes(damaged[damage])
    refused(tmp_path/'m', name)
    assert not (tmp_path/'sprung').exists()

@pytest.mark.parametrize('name', KEPT)
def test_a_flipped_bit_anywhere_is_refused(trained, files, tmp_path, name):
    "Blanks between the words of config.json mean nothing"
    data = files[name]
    bits = random.Random(0).sample(range(8*len(data)), 300 if name == 'config.json' else 40)
    file = put(tmp_path/'m', files)/name
    for i in bits:
        changed = bytearray(data)
        changed[i//8] ^= 1 << i % 8
        file.write_bytes(changed)
        try: same = name == 'config.json' and json.loads(changed) == json.loads(data)
        except ValueError: same = False
        load = Folder if name == 'config.json' else Elmo.from_pretrained
        if same: load(tmp_path/'m')
        else: refused(tmp_path/'m', name, load=load)

def test_mixtures_of_two_models_are_refused(files, tmp_path):
    "Of the same shape, with as many words: each choice of files from the two"
    elmo = make(2, n_reps=2, shares=(.1, .1, .8), dropout=.1, tokenizer='words')
    elmo.vocab = WordVocab([*SPECIALS, *'abcd'])
    other = contents(elmo.save_pretrained(tmp_path/'o'))
    names = [name for name in KEPT if files[name] != other[name]]
    assert len(names) == 5                                       # both read bytes
    for chosen in product((files, other), repeat=len(names)):
        if all(one is chosen[0] for one in chosen): continue
        refused(put(tmp_path/'m', files | {n: f[n] for n,f in zip(names, chosen)}), *names)

def forged(files, folder, head={}, **changes):
    "A folder with other contents and the right checksums, as a stranger may make it"
    config = json.loads(files['config.json'])
    if head.keys() <= config['config'].keys() | {'x'}: head = dict(config=config['config'] | head)
    files = {k: v for k,v in files.items() if k != 'config.json'} | changes
    return write_files(folder, config | head, {k: v for k,v in files.items() if v is not None})

def peak():
    "The most memory of this process so far, in bytes"
    if os.name == 'nt': return psutil.Process().memory_info().peak_wset
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*(1 if sys.platform == 'darwin' else 1024)

def tensors(files, change):
    state = load(files['model.safetensors'])
    change(state, 'lstm.fwd.0.weight_ih_l0')
    return {'model.safetensors': save(state)}

@pytest.mark.parametrize('head', [
    dict(n_words=-1), dict(n_words=3), dict(n_words=None), dict(n_words=10**12), dict(config=[]),
    dict(x=1), dict(n_layers=99), dict(filters='abc'), dict(filters=[[1, 8]]*10**4),
    dict(max_chars=2**15 - 1), dict(proj_dim=500_000, hidden_dim=500_000), dict(tokenizer='zpace'),
    dict(tokenizer=5), dict(version=3), dict(format='other'), dict(sha256=5)], ids=str)
def test_a_stranger_s_configuration(files, tmp_path, head):
    "Nor does it take more memory than the files explain"
    forged(files, tmp_path/'m')
    assert Elmo.from_pretrained(tmp_path/'m')
    before = peak()
    if {'version', 'format', 'sha256'} & {*head}:
        config = json.loads((tmp_path/'m'/'config.json').read_text())
        (tmp_path/'m'/'config.json').write_text(json.dumps(config | head))
    else: forged(files, tmp_path/'m', head)
    refused(tmp_path/'m', str(tmp_path/'m'))
    assert peak() - before < 300_000_000

@pytest.mark.parametrize('change', [
    lambda d, k: d.update(zzz=torch.ones(1)), lambda d, k: d.pop(k), lambda d, k: d.clear(),
    lambda d, k: d.update({k: torch.ones(99, 20)}), lambda d, k: d.update(x=d.pop(k)),
    lambda d, k: d.update({k: d[k].T.contiguous()}), lambda d, k: d.update({k: d[k].flatten()})])
def test_a_stranger_s_weights(files, tmp_path, change):
    refused(forged(files, tmp_path/'m', **tensors(files, change)), str(tmp_path/'m'))

@pytest.mark.parametrize('change', [
    *[{'vocab.json': json.dumps(dict(format='elmo_fastai.WordVocab', version=1, itos=itos))}
      for itos in (5, ['a']*8, [*SPECIALS, *'abcc'], VOCAB.itos[:-1], [*VOCAB.itos, 'x'])],
    {'vocab.json': None}, {'chars.json': CharVocab([UNK, *'abc']).to_json()},
    {'chars.json': ByteCharVocab(20).to_json()}, {'chars.json': '{}'}, {'mix.safetensors': None},
    {'mix.safetensors': save({'0.w': torch.zeros(4)})}, {'elmo.json': '[]'},
    dict(dropout=2), dict(markers='x'), dict(tokenizer='os.system'), dict(n_reps=3), dict(evil=1),
    *[{name: 'trap'} for name in KEPT if name != 'config.json']], ids=lambda c: str(c)[:60])
def test_a_stranger_s_other_files(files, tmp_path, monkeypatch, change):
    "Settings, too; and nothing in a file is run"
    monkeypatch.setenv('ELMO_TRAP', str(tmp_path/'sprung'))
    if not {*change} & {*KEPT}:
        change = {'elmo.json': json.dumps(json.loads(files['elmo.json']) | change)}
    if 'trap' in change.values():
        file = io.BytesIO()
        torch.save({'head.weight': torch.ones(1), 'x': Trap()}, file)
        change = {name: file.getvalue() for name in change}
    refused(forged(files, tmp_path/'m', **change), str(tmp_path/'m'))
    assert not (tmp_path/'sprung').exists()

def test_weights_lie_in_memory_of_their_own(files, tmp_path, odd_addresses):
    "As when another model is copied over the file; and wherever they lie, the vectors are the same"
    with addresses.usual(): again, _ = load_bilm(put(tmp_path/'m', files))
    (tmp_path/'m'/'model.safetensors').write_bytes(bytes(10**5))
    assert equal(again, bilm(1)) and all(p.data_ptr() % 64 == 0 for p in again.parameters())
    other = Elmo.from_pretrained(put(tmp_path/'m', files), n_reps=1, norm=None)
    for a,b in zip(other.layers(S)[0], Elmo(again).eval().layers(S)[0]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)

# what is there already

OTHERS = {'notes.txt': b'mine', 'tokenizer.json': b'{}', 'data.part': b'x', '.hidden': b'x'}

def test_foreign_files_stay(trained, files, tmp_path, monkeypatch):
    "Also in the home folder, and behind a link"
    monkeypatch.setenv('HOME', str(tmp_path/'home'))
    (put(tmp_path/'disk', OTHERS), put(tmp_path/'home', OTHERS))
    (tmp_path/'link').symlink_to(tmp_path/'disk')
    for said,place in (('~', 'home'), (tmp_path/'link', 'disk')):
        for _ in range(2): trained.save_pretrained(said)
        assert contents(tmp_path/place) == files | OTHERS
        save_bilm(said, trained.lm, VOCAB, extra={'a.txt': 'é', 'b.bin': b'\xff'})
        now = contents(tmp_path/place)
        assert now.keys() - OTHERS == {'config.json', 'model.safetensors', 'vocab.json',
                                       'a.txt', 'b.bin'}
        assert (now['a.txt'], now['b.bin']) == ('é'.encode(), b'\xff') and now | OTHERS == now
        assert equal(Elmo.from_pretrained(said).lm, trained.lm)
    assert (tmp_path/'link').is_symlink()

@pytest.mark.parametrize('before', [
    {'config.json': b'{"model_type": "bert"}', 'model.safetensors': b'x'},
    {'vocab.json': b'mine', 'notes.txt': b'x'}], ids=str)
def test_a_foreign_file_is_not_replaced(trained, tmp_path, before):
    put(tmp_path/'m', before)
    with pytest.raises(ModelFileError, match='take another folder|read'):
        trained.save_pretrained(tmp_path/'m')
    assert contents(tmp_path/'m') == before

def test_an_edited_card_stays(trained, files, tmp_path):
    for mine in ({}, files):
        put(tmp_path/'m', mine | {'README.md': b'mine'})
        for _ in range(2):
            trained.save_pretrained(tmp_path/'m')
            assert contents(tmp_path/'m') == files | {'README.md': b'mine'} | dict(
                [('config.json', contents(tmp_path/'m')['config.json'])])
        save_bilm(tmp_path/'m', trained.lm, VOCAB)
        assert (tmp_path/'m'/'README.md').read_bytes() == b'mine' and load_bilm(tmp_path/'m')
    save_bilm(put(tmp_path/'m', files), trained.lm, VOCAB)
    assert not (tmp_path/'m'/'README.md').exists()

# what breaks off

@contextmanager
def killed_before(n):
    "Inside, the process ends before its nth call of the system"
    numbers = count()
    def counted(real):
        def call(*args, **kwargs):
            if next(numbers) == n: os._exit(9)
            return real(*args, **kwargs)
        return call
    with pytest.MonkeyPatch.context() as mp:
        for name in ('mkdir', 'open', 'fsync', 'replace', 'unlink', 'chmod'):
            mp.setattr(os, name, counted(getattr(os, name)))
        yield

def found(folder, *saved):
    "Which of these models is in a folder: its number, or None if what is there is refused"
    try: elmo = Elmo.from_pretrained(folder)
    except ModelFileError: return None
    return next(i for i,one in enumerate(saved) if equal(elmo.lm, one.lm)
                and elmo.vocab.itos == one.vocab.itos and same(elmo(S)[0], one(S)[0]))

@forks
@pytest.mark.parametrize('there', ['an old one', 'nothing'])
def test_a_kill_at_any_step(trained, files, tmp_path, there):
    "The old model or the new one, or none; the next save completes it, and leaves nothing behind"
    old = make(3)
    before = contents(old.save_pretrained(tmp_path/'old')) if there != 'nothing' else {}
    fork = multiprocessing.get_context('fork')
    def child(n):
        with killed_before(n): trained.save_pretrained(tmp_path/'m')
    seen = []
    for n in count():
        put(tmp_path/'m', before | OTHERS)
        process = fork.Process(target=child, args=(n,))
        process.start()
        process.join(60)
        seen.append(found(tmp_path/'m', old, trained))
        trained.save_pretrained(tmp_path/'m')
        assert contents(tmp_path/'m') == files | OTHERS
        if process.exitcode == 0: break
        assert process.exitcode == 9
    first = 0 if before else None
    assert n > 20 and seen[0] == first and seen[-1] == 1 and (not before or seen.count(0) > n/3)
    assert seen == sorted(seen, key=[first, None, 1].index)

def test_one_process_writes_at_a_time(trained, tmp_path):
    with lock_folder(tmp_path/'m'), pytest.raises(ValueError, match='in use'):
        trained.save_pretrained(tmp_path/'m')
    assert not (tmp_path/'m').exists()

# rows of bytes

def test_weights_in_rows_of_bytes(files, tmp_path):
    "As in the package: rows of whole numbers with a scale each, the output layer in another file"
    whole, kept, want = load(files['model.safetensors']), {}, {}
    for name,w in whole.items():
        kept[name] = want[name] = w
        if w.dim() < 2: continue
        kept[f'{name}.scale'] = scale = (w.flatten(1).abs().amax(1)/127).half()
        kept[name] = (w.flatten(1)/scale.float()[:,None]).round().to(torch.int8).view_as(w)
        want[name] = (kept[name].flatten(1).float()*scale.float()[:,None]).view_as(w)
    head = {name: kept.pop(name) for name in [*kept] if name.startswith('head')}
    both = {'model.safetensors': save(kept), 'output.safetensors': save(head)}
    lm, _ = load_bilm(forged(files, tmp_path/'m', **both))
    assert all(w.equal(want[name]) for name,w in lm.state_dict().items())
    del head['head.weight']
    refused(forged(files, tmp_path/'m', **both | {'output.safetensors': save(head)}), 'head.weight')
    (forged(files, tmp_path/'m', **both)/'output.safetensors').unlink()
    refused(tmp_path/'m', 'output.safetensors')

# the hub

def test_the_hub(trained, files, tmp_path, monkeypatch):
    "Its own cache: refs, snapshots, links to blobs; only numbers and text are fetched"
    cache, commit = tmp_path/'cache', 'a'*40
    repo = cache/'models--someone--elmo-toy'
    put(repo/'blobs', files)
    put(repo/'refs', {'main': commit.encode()})
    put(repo/'snapshots'/commit, {})
    for name in files: (repo/'snapshots'/commit/name).symlink_to(Path('../../blobs')/name)
    asked, real = {}, huggingface_hub.snapshot_download
    def there(name, **kwargs):
        asked.update(kwargs)
        return real(name, cache_dir=cache, local_files_only=True, **kwargs)
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', there)
    assert equal(Elmo.from_pretrained('someone/elmo-toy'), trained)
    assert {*asked['allow_patterns']} == {'*.json', '*.safetensors', '*.md'}
    with pytest.raises(ModelFileError, match='someone/other') as e:
        Elmo.from_pretrained('someone/other')
    assert isinstance(e.value.__cause__, OSError) and '\n' not in str(e.value)

@pytest.mark.parametrize('name', ['../no_model', 'a/b/c', '/no/model', 'tiny-de', 'file.zip'])
def test_what_is_no_name_of_the_hub(name, monkeypatch):
    Path('file.zip').write_bytes(b'PK')
    monkeypatch.setattr(huggingface_hub, 'snapshot_download', None)
    refused(name, 'There is no folder')

