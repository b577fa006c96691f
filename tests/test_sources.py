"""The corpora of the texts that the course grew from, each by one command, from small copies in the
layout of their homes; and data sets of the hub at every door"""
import gzip, json, zipfile
from pathlib import Path

import datasets, h5py, numpy as np, pandas as pd, pytest
from datasets import load_dataset

import addresses
from elmo_fastai.base.errors import CommandError, CorpusError, UsageError
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.tagged import TagDataLoaders
from elmo_fastai.elmo import Elmo
from elmo_fastai.elmo.file import embed_file
from elmo_fastai.elmo.folder import load_bilm
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.tasks.embed import elmo_embed
from elmo_fastai.text.corpora import reuters, toy_corpus
from elmo_fastai.text.sources import get_corpus, read_texts, text_corpus
from elmo_fastai.train.command import elmo_pretrain, pretrain

NANO = dict(name='nano', char_dim=4, filters=[[1,8],[2,8],[3,8]], proj_dim=16, hidden_dim=16)
SENTS = toy_corpus(300, 1, 1, 1).train
pytestmark = pytest.mark.usefixtures('drawn_once')

@pytest.fixture(scope='module', autouse=True)
def held():
    "A training that goes on ends with the same bits: all that rounding depends on is held equal"
    with addresses.held(): yield

@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    "No other copies, and a cache of its own"
    monkeypatch.delenv('ELMO_FASTAI_DATA', raising=False)
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path/'cache')
    monkeypatch.chdir(tmp_path)

def config(folder):
    "A file of settings for a training of some seconds"
    file = folder/'nano.json'
    file.write_text(json.dumps(dict(config=NANO, epochs=1, bs=4, seq_len=8, min_freq=1,
        device='cpu', bf16=False)))
    return str(file)

def command(*args): elmo_pretrain([*map(str, args), '--config', config(Path('.'))])

def report(folder): return json.loads((Path(folder)/'report.json').read_text())

def test_a_name_for_ones_own_text(tmp_path):
    (tmp_path/'a.txt').write_text('one line\n'*20)
    assert get_corpus(str(tmp_path/'a.txt'), name='mine').name == 'mine'

@pytest.mark.parametrize('name', ['toy', 'sst2', 'ud:vi_vtb'])
def test_options_that_a_named_corpus_does_not_take(name):
    with pytest.raises(UsageError, match=f"the corpus '{name}' takes no n_rows"):
        get_corpus(name, n_rows=3)

# C4: files of packed JSON lines, many for training and eight for validation

def write_c4(folder, n=40, n_valid=12):
    """A copy in the layout of allenai/c4: two files of `n` documents each, one of `n_valid` others;
    another configuration beside it"""

    def write(name, documents):
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder/name, 'wt', encoding='utf-8') as f:
            for i, text in enumerate(documents):
                f.write(json.dumps(dict(text=text, timestamp='2019-04-25T12:57:54Z',
                    url=f'https://example.org/{i}')) + '\n')

    texts = [f'{a}\n{b}' for a,b in zip(SENTS[::2], SENTS[1::2])]
    write('en/c4-train.00000-of-01024.json.gz', texts[:n])
    write('en/c4-train.00001-of-01024.json.gz', texts[n:2*n])
    write('en/c4-validation.00000-of-00008.json.gz', texts[-n_valid:])
    write('realnewslike/c4-train.00000-of-00512.json.gz', ['another configuration'])
    return folder

README = '''---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
  - split: validation
    path: en/c4-validation.*.json.gz
---
'''

@pytest.fixture
def c4(tmp_path): return write_c4(tmp_path/'data'/'allenai'/'c4')

@pytest.mark.parametrize('readme', [False, True])
def test_c4_streamed(c4, monkeypatch, capsys, readme):
    """So many documents of one configuration, others to validate; the text is found by its column's
    name"""
    if readme: (c4/'README.md').write_text(README)
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(c4.parents[1]))
    command('hub:allenai/c4:en', '--rows', 50, '--valid-rows', 10, '--stream')
    shown = report('models/c4-en')
    assert shown['corpus'] == 'c4-en'
    # fifty documents of two lines each
    lines = [line for text in SENTS[:100] for line in text.split('\n')]
    _, vocab = load_bilm('models/c4-en')
    words = {token for line in lines for token in line.split()}
    assert set(vocab.itos[4:]) == words
    assert 'Corpus c4-en' in capsys.readouterr().out

def test_c4_in_memory(c4, capsys):
    command('hub:allenai/c4:en', '--data', c4, '--rows', 50, '--valid-rows', 10, '--dry')
    out = capsys.readouterr().out
    n = sum(len(line.split()) + 2 for line in SENTS[:100])
    held = sum(len(line.split()) + 2 for line in SENTS[-24:-4])
    assert f'Corpus c4-en: {n:,} tokens to train on, {held:,} held out' in out
    assert len(get_corpus('hub:allenai/c4:en', c4,
        n_rows=3).valid) == 24, ('2,000 documents validate unless you say how many')
    assert len(get_corpus('hub:allenai/c4:en', c4).train) == 160, 'all that there are'

def test_c4_kept_on_disk(c4, capsys):
    "Its files, without the hub"
    files = sorted((c4/'en').glob('c4-train.*'))
    command(*files, '--valid', next((c4/'en').glob('c4-valid*')), '--stream', '--valid-rows', 10,
        '--dry')
    held = sum(len(line.split()) + 2 for line in SENTS[-24:-4])
    assert f'{held:,} held out' in capsys.readouterr().out

def test_a_stream_of_the_hub_goes_on_where_it_was(c4, monkeypatch):
    "Interrupted and resumed: the same weights"
    from steps import At
    from test_script import adding, press, weights
    from elmo_fastai.base.errors import Interrupted

    kw = dict(config=NANO, epochs=2, bs=4, seq_len=8, min_freq=1, device='cpu', bf16=False,
        stream=True, rows=30, valid_rows=5, data=str(c4), say=lambda s: None)
    whole = weights(pretrain('hub:allenai/c4:en', out='whole', **kw))
    with monkeypatch.context() as mp:
        adding(mp, lambda: At(15, press(), 'before_batch'))
        with pytest.raises(Interrupted): pretrain('hub:allenai/c4:en', out='broken', **kw)
    assert weights(pretrain(resume='broken.run', device='cpu', say=lambda s: None)) == whole

def test_options_that_do_not_go_together(c4, tmp_path):
    (tmp_path/'my.txt').write_text('a text\n'*50)
    for kwargs,why in ((dict(valid_rows=5), '--valid-rows goes with --n-rows or --stream'),):
        with pytest.raises(CommandError, match=why): pretrain('my.txt', out='m', **kwargs)
    with pytest.raises(CommandError, match='--valid does not go'):
        pretrain('hub:allenai/c4:en', out='m', data=str(c4), valid='my.txt')
    with pytest.raises(CorpusError, match="can't load the data set '.*nothing'"):
        get_corpus('hub:allenai/c4:en', data=tmp_path/'nothing')

# Tiny Shakespeare, by both of its names

@pytest.mark.parametrize('name', ['tiny_shakespeare', 'hub:karpathy/tiny_shakespeare'])
def test_tiny_shakespeare(tmp_path, monkeypatch, capsys, name):
    (tmp_path/'data'/'tiny_shakespeare').mkdir(parents=True)
    (tmp_path/'data'/'tiny_shakespeare'/'input.txt').write_text('\n\n'.join(SENTS))
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path/'data'))
    command(name, '--dry')
    out = capsys.readouterr().out
    assert 'Corpus tiny_shakespeare: ' in out and 'would be in models/tiny_shakespeare/' in out

# SST-2 of GLUE

def write_glue(folder):
    "A copy in the layout of nyu-mll/glue: Parquet, a folder per task; the test labels are hidden"
    names = datasets.ClassLabel(names=['negative', 'positive'])
    features = datasets.Features(dict(sentence=datasets.Value('string'), label=names,
        idx=datasets.Value('int32')))
    (folder/'sst2').mkdir(parents=True)
    for split,n in dict(train=60, validation=20, test=10).items():
        labels = [-1]*n if split == 'test' else [i % 2 for i in range(n)]
        rows = datasets.Dataset.from_dict(dict(sentence=[f'{("dull", "fine", "a")[label]} {i}' for
            i, label in enumerate(labels)], label=labels, idx=range(n)), features)
        rows.to_parquet(folder/'sst2'/f'{split}-00000-of-00001.parquet')
    return folder

@pytest.fixture
def glue(tmp_path, monkeypatch):
    monkeypatch.setenv('ELMO_FASTAI_DATA', str(tmp_path/'data'))
    return write_glue(tmp_path/'data'/'nyu-mll'/'glue')

def test_sst2_of_glue(glue, capsys):
    command('hub:nyu-mll/glue:sst2', '--dry')
    assert ('Corpus glue-sst2: 240 tokens to train on, 80 held out, 10 lines to test on' in
        capsys.readouterr().out)
    c = get_corpus('hub:nyu-mll/glue:sst2')
    assert c.train[:2] == ['dull 0', 'fine 1'] and len(c.valid) == 20 and len(c.test) == 10

def test_sst2_of_glue_for_a_classifier(glue):
    dls = ClassifyDataLoaders.from_dataset(load_dataset(str(glue/'sst2')), bs=8)
    assert list(dls.vocab) == ['negative', 'positive'] and dls.skipped == {'texts without a label':
        10}
    assert dls.balance.train.tolist() == [30, 30] and dls.balance.valid.tolist() == [10, 10]

# Reuters of NLTK

DOCUMENTS = {
    'training/1': (
        ['cocoa'],
        'BAHIA COCOA REVIEW\n  Showers continued in the Bahia\n  cocoa zone, &lt;said> '
        'Comissaria.\n      A new paragraph.\n\n',
    ),
    'training/9': (['earn'], 'CHAMPION <CH> APPROVES STOCK SPLIT\n  Champion Products\n'),
    'training/10': (['acq', 'earn'], 'COMPUTER TERMINAL \xa31 MLN\n  It sold 1.5 pct.\n'),
    'test/14826': (['cocoa', 'acq'], 'ASIAN EXPORTERS FEAR DAMAGE\n  Mounting trade friction.\n'),
}

def write_reuters(folder, more=0):
    """A copy in the layout of NLTK: a file per document in Latin-1, and cats.txt, which is sorted
    as text"""
    documents = dict(DOCUMENTS)
    for i in range(more): documents[f'training/{100 + i}'] = (['earn'], SENTS[i])
    documents[f'training/{100 + more}'] = (['rye'], 'RYE\n')             # the only one of its topic
    folder.mkdir(parents=True)
    for name,(topics,text) in documents.items():
        (folder/name).parent.mkdir(exist_ok=True)
        (folder/name).write_text(text, encoding='latin-1')
    (folder/'cats.txt').write_text(''.join(f"{name} {' '.join(topics)}\n" for name, (topics, _) in
        sorted(documents.items())), encoding='latin-1')
    (folder/'README').write_text('The Reuters-21578 benchmark corpus, ApteMod version')
    return folder

def packed(folder):
    "As NLTK's downloader leaves it"
    with zipfile.ZipFile(folder.with_suffix('.zip'), 'w') as z:
        for file in folder.rglob('*'): z.write(file, f'reuters/{file.relative_to(folder)}')
    return folder.with_suffix('.zip')

@pytest.mark.parametrize('pack', [Path, packed])
def test_reuters(tmp_path, pack):
    c = reuters(pack(write_reuters(tmp_path/'reuters', 36)))
    assert [len(c.splits[split]) for split in ('train', 'valid', 'test')] == [37, 3,
        1], ('a tenth validates, but for the one whose topic is nowhere else')
    assert (
        c.train[0]
        == 'BAHIA COCOA REVIEW Showers continued in the Bahia cocoa zone , < said > Comissaria . A '
           'new paragraph .'
    )
    assert [sent.label for sent in c.gold['train'][:3]] == [['cocoa'], ['earn'], ['acq',
        'earn']], ('by number')
    assert ('£' in c.train[2] and c.gold['train'][-1].label == ['rye'] and
        c.gold['test'][0].label == ['cocoa', 'acq'])
    dls = ClassifyDataLoaders.from_corpus(c, bs=4)
    assert list(dls.vocab) == ['acq', 'cocoa', 'earn',
        'rye'] and dls.train.one_batch()[1].shape[1] == 4

def test_reuters_by_one_command(tmp_path, capsys):
    command('reuters', '--data', packed(write_reuters(tmp_path/'nltk'/'reuters', 60)), '--dry')
    assert 'Corpus reuters: ' in capsys.readouterr().out

def test_reuters_that_is_none(tmp_path):
    folder = write_reuters(tmp_path/'reuters')
    (folder/'training'/'9').unlink()
    with pytest.raises(CorpusError, match="can't read NLTK's Reuters in '.*reuters'.*No such file"):
        reuters(folder)
    (tmp_path/'reuters.zip').write_text('no zip')
    with pytest.raises(CorpusError, match='Reuters in .*not a zip'): reuters(tmp_path/'reuters.zip')
    with pytest.raises(CorpusError, match='Reuters'): reuters(tmp_path/'nothing')

# elmo_embed

@pytest.fixture
def model(tmp_path):
    return Elmo(BiLM(BiLMConfig.from_dict(NANO), 0),
        tokenizer='space').save_pretrained(tmp_path/'model')

def test_embed_a_data_set_of_the_hub(glue, model, capsys):
    "Every split, and the same vectors as those of its texts"
    elmo = Elmo.from_pretrained(model)
    for source, texts in {'hub:nyu-mll/glue:sst2': [f"{('dull', 'fine')[i % 2]} {i}" for i in
        range(60)], 'hub:nyu-mll/glue:sst2:test': [f'a {i}' for i in range(10)]}.items():
        elmo_embed([source, '--model', str(model), '--out', 'v.hdf5', '--overwrite', '--device',
            'cpu', '--layers', '-1'])
        with h5py.File('v.hdf5') as f:
            assert [*f] == [*map(str, range(len(texts))), 'sentence_to_index']
            for i, wanted in enumerate(elmo.embed(texts, -1)):
                np.testing.assert_allclose(f[str(i)][()], wanted, atol=1e-5)
    assert 'v.hdf5: 10 rows, 20 tokens' in capsys.readouterr().out

def test_embed_some_rows(glue, model, tmp_path):
    "Later more of them: those that are there stay"
    args = ['hub:nyu-mll/glue:sst2', '--model', str(model), '--out', 'v.npz', '--device', 'cpu',
        '--pool', 'mean']
    elmo_embed([*args, '--rows', '7'])
    assert len(np.load('v.npz')['vectors']) == 7
    (tmp_path/'lines.txt').write_text('a b\nc d\ne f\n')
    elmo_embed(['lines.txt', *args[1:], '--rows', '2', '--overwrite'])
    assert len(np.load('v.npz')['vectors']) == 2

def test_read_texts_of_the_hub(c4, glue, tmp_path):
    assert [text for text, _ in read_texts(f'hub:{c4}:en:validation')] == [f'{a}\n{b}' for a, b in
        zip(SENTS[-24::2], SENTS[-23::2])], 'a folder in the place of the name'
    load_dataset(str(glue/'sst2')).save_to_disk(tmp_path/'saved')
    assert next(read_texts(f"hub:{tmp_path/'saved'}::validation")) == ('dull 0', None)
    assert next(read_texts(f'hub:{c4}:en', text_col='url')) == ('https://example.org/0', None)
    with pytest.raises(CorpusError, match="no split 'dev' among train, validation, test"):
        [*read_texts('hub:nyu-mll/glue:sst2:dev')]
    with pytest.raises(CorpusError, match="no column 'body'"):
        [*read_texts(f'hub:{c4}:en', text_col='body')]
    for name in ('hub:', 'hub::en'):
        with pytest.raises(CorpusError, match='names no data set'): [*read_texts(name)]
    with pytest.raises(CommandError, match="no split 'x'"):
        embed_file('hub:nyu-mll/glue:sst2:x', tmp_path/'v.npz',
            Elmo(BiLM(BiLMConfig.from_dict(NANO), 0)))

def rows_by_split(n):
    return {split: [f'{split} {i} row' for i in range(n)] for split in ('train', 'valid', 'test')}

def sizes_of_corpus(corpus): return {split: len(lines) for split,lines in corpus.splits.items()}

def test_n_rows_cuts_each_split(tmp_path):
    "The first rows of all its files together; of a text `n_valid` says how many of the others"
    every = rows_by_split(30)
    for i in range(2):
        for split in every:
            pd.DataFrame(dict(text=every[split][15*i:15*i + 15], label=['x', 'y', 'y']*5)).to_csv(
                tmp_path/f'{split}-{i}.csv', index=False)
    for source in (every, tmp_path):
        assert sizes_of_corpus(text_corpus(source, n_rows=20, n_valid=18)) == dict(
            train=20, valid=18, test=18)
        assert sizes_of_corpus(text_corpus(source, n_rows=10)) == dict(
            train=10, valid=30, test=30), 'at most 2,000 of the others'
    for door in (ClassifyDataLoaders.from_files, ClassifyDataLoaders.from_data):
        dls = door(tmp_path, n_rows=20, device='cpu', bs=4)
        assert [len(dl.text) for dl in dls] == [20, 20, 20]

def test_n_rows_of_sentences_with_documents():
    df = pd.DataFrame(dict(token=['a', 'b', 'c']*30, tag=['X', 'Y', 'Z']*30,
                           sent_id=[i//3 for i in range(90)], doc=[i//9 for i in range(90)]))
    dls = TagDataLoaders.from_df(df, n_rows=12, device='cpu', bs=2)
    assert sum(len(dl.text) for dl in dls) == 12
    parts = dict(train=df, valid=df)
    dls = TagDataLoaders.from_dataset(parts, n_rows=5, device='cpu', bs=2)
    assert [len(dl.text) for dl in dls] == [5, 5]
