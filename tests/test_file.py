"Files of vectors: every kind of source and of file, faults, jobs that stop and go on"
import copy, json, re, sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py, numpy as np, pandas as pd, pyarrow.parquet as pq, pytest

from elmo_fastai.elmo import file as module
from elmo_fastai.base.errors import CommandError
from elmo_fastai.text.tokens import DROPPED, word_tokenize
from elmo_fastai.elmo.file import embed_file
from made import close, direct, lasting, same

@pytest.fixture()
def elmo(): return lasting()

# files

def run(source, out, elmo, **kw):
    told = []
    r = embed_file(source, out, elmo, say=told.append, **kw)
    return r, told, [f'line {n+1} {why}' for n,why in r['failed'].items()]

@pytest.fixture()
def source(tmp_path, texts):
    f = tmp_path/'in.txt'
    f.write_text('\n'.join([*texts[:30], '', texts[0]]) + '\n', encoding='utf-8')
    return f

def test_hdf5_is_laid_out_as_allennlps(elmo, texts, source, tmp_path):
    r, told, warned = run(source, tmp_path/'o.hdf5', elmo)
    assert (not warned and r['lines'] == 32
            and sorted(p.name for p in tmp_path.iterdir()) == ['in.txt', 'o.hdf5'])
    with h5py.File(tmp_path/'o.hdf5') as f:
        assert [*f] == [*map(str, range(32)), 'sentence_to_index']
        for i,t in enumerate(texts[:30]):
            assert f[str(i)].dtype == np.float32 and close(
                f[str(i)][:], direct(elmo, word_tokenize(t)))
        assert f['30'].shape == (3, 0, 16)
        assert f['sentence_to_index'].shape == (1,)
        index = json.loads(f['sentence_to_index'][0])
        assert index[texts[0]] == '31' and index[texts[1]] == '1' and index[''] == '30'
        assert json.loads(f.attrs['elmo_fastai'])['layers'] == 'all'

@pytest.mark.parametrize('layers,pool', [
    ('all', None), ('mix', None), (1, None), ('all', 'mean'), ('mix', 'max'), (-1, 'first_last')],
        ids=str)
@pytest.mark.parametrize('kind', ['hdf5', 'h5', 'npz', 'parquet'])
def test_kinds_of_files(elmo, texts, source, tmp_path, kind, layers, pool):
    out = tmp_path/f'o.{kind}'
    run(
        source, out, elmo, layers=layers, pool=pool, budget=64,
        dtype='float16' if pool == 'max' else 'float32')
    ref = elmo.embed(
        [*texts[:30], '', texts[0]], layers, pool, dtype='float16' if pool == 'max' else 'float32'
    )
    eps = 5e-3 if pool == 'max' else 1e-5
    if kind in ('hdf5', 'h5'):
        with h5py.File(out) as f:
            assert (same([f[str(i)][:] for i in range(32)], list(ref), eps)
                    and f['0'].dtype == ref[0].dtype)
    elif kind == 'npz':
        with np.load(out) as f:
            if pool:
                assert (f['lines'].tolist() == list(range(32)) and close(f['vectors'], ref, eps)
                        and f['vectors'].dtype == ref.dtype)
            else: assert same([f[str(i)] for i in range(32)], ref)
    else:
        t = pq.read_table(out)
        names = [f'layer{i}' for i in range(3)] if layers == 'all' else ['vector']
        assert t.column_names == [*(['line', 'text'] if pool else ['line', 'position', 'token']),
                                  *names]
        got = np.stack([np.stack(t[n].to_numpy()) for n in names], 0)
        if pool: expected = np.stack(ref).reshape(32, len(names), 16).transpose(1, 0, 2)
        else:
            expected = np.concatenate([v.reshape(len(names), -1, 16) for v in ref], 1)
            tokens = [w for s in [*texts[:30], '', texts[0]] for w in word_tokenize(s)]
            assert (t['token'].to_pylist() == tokens and t['line'].to_pylist()[-1] == 31
                    and t['position'].to_pylist()[:2] == [0, 1])
        assert close(got, expected, eps)

@pytest.mark.parametrize('name', [
    'a.csv', 'a.tsv', 'a.json', 'a.jsonl', 'a.parquet', 'a.conllu', 'a.conll', 'a.txt', 'list', 'table'])
def test_kinds_of_source(elmo, tmp_path, name):
    "As `test_read` has them; the words of a treebank are the tokens"

    df = pd.DataFrame({'id': [1, 2], 'text': ['the bank, 1,2', 'a river']})
    source, how = tmp_path/name, {}
    if name == 'list': source = [*df.text]
    elif name == 'table': source = df
    elif 'parquet' in name: df.to_parquet(source)
    elif 'json' in name: df.to_json(source, orient='records', lines='jsonl' in name)
    elif name == 'a.conllu':
        source.write_text('\n'.join('\t'.join(o)
            for o in (['1', '1,2', *'_'*8], ['2', 'bank', *'_'*8], [], ['1', 'a', *'_'*8], [], [])))
    elif name == 'a.conll':
        source.write_text('X 1,2\nY bank\n\nX a\n')
        how = dict(token_col=1)
    elif name == 'a.txt': source.write_text('\r'.join(df.text))
    else: df.to_csv(source, index=False, sep='\t' if 'tsv' in name else ',')
    r, *_ = run(source, tmp_path/'o.hdf5', elmo, **how)
    is_conll = 'conll' in name
    sents = [['1,2', 'bank'], ['a']] if is_conll else [word_tokenize(t) for t in df.text]
    assert (r['lines'] == 2 and r['tokens'] == sum(map(len, sents))
            and r['unit'] == ('line' if name == 'a.txt' else 'row'))
    with h5py.File(tmp_path/'o.hdf5') as f:
        for i,s in enumerate(sents): assert close(f[str(i)][:], direct(elmo, s))
        assert set(json.loads(f['sentence_to_index'][0])) == (
            {'1,2 bank', 'a'} if is_conll else {*df.text})

def test_lines_that_can_not_be_embedded(elmo, tmp_path, texts):
    rows = ['good', None, 'a '*60, '', 'last']
    r, told, warned = run(pd.DataFrame(dict(text=rows)), tmp_path/'o.hdf5', elmo, max_tokens=50)
    assert r['failed'] == {1: 'holds no text', 2: 'has 60 tokens, and one may have 50 at most'}
    assert r['lines'] == 3
    with h5py.File(tmp_path/'o.hdf5') as f:
        assert set(f) == {'0', '3', '4', 'sentence_to_index'} and set(
            json.loads(f['sentence_to_index'][0])) == {'good', '', 'last'}
        assert f['3'].shape == (3, 0, 16)           # a blank text is answered in its place
        assert close(f['0'][:], direct(elmo, ['good'])) and json.loads(f.attrs['elmo_fastai'])[
            'failed'].keys() == {'1', '2'}

def test_vectors_that_are_not_numbers(tmp_path, texts):
    elmo = lasting(gamma=1e30)
    (tmp_path/'a.txt').write_text('a\nb\n')
    with pytest.raises(CommandError, match='not finite'):
        run(tmp_path/'a.txt', tmp_path/'o.npz', elmo, layers='mix', dtype='float16')
    assert not (tmp_path/'o.npz.part').exists()

WRONG = dict(
    missing=(dict(source='no.txt'), 'no file'),
    folder=(dict(source='.'), 'no file'),
    empty=(dict(source='empty.txt'), 'has no rows'),
    ending=(dict(out='o.txt'), r'\.hdf5.*\.parquet|\.hdf5'),
    outfolder=(dict(out='d.hdf5'), 'is a folder'),
    itself=(dict(source='x.npz', out='x.npz'), 'input itself'),
    exists=(dict(out='there.hdf5'), '--overwrite'),
    under=(dict(out='in.txt/o.npz'), "Can't write"),
    column=(dict(text_col='said'), "no column 'said'; the columns are 'text'"),
    nocolumn=(dict(source='u.csv'), "no column 'text' or .*'id', 'txt'"),
    wrongcolumn=(dict(source='t.csv', text_col='txt'), "no column 'txt'.*'id', 'text'"),
    twocolumns=(dict(source='two.csv'), "a column twice"),
    notparquet=(dict(source='bad.parquet'), "bad.parquet can't be read"),
    emptycsv=(dict(source='empty.csv'), 'has no rows'),
    headeronly=(dict(source='head.csv'), 'has no rows'),
    latin=(dict(source='latin.txt'), 'latin.txt is not UTF-8: its byte 3 is 0xe9'),
    unknown=(dict(source='a.docx'), 'pass the DataFrame'),
    tokens=(dict(source='a.conll'), "its first line is 0 = 'a', 1 = 'X'"),
    layers=(dict(layers='x'), 'layers'),
    pool=(dict(pool='x'), 'pool'),
    foreign=(dict(out='f.npz'), 'not of a job'))

@pytest.mark.parametrize('name', WRONG)
def test_wrong_input(elmo, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for k, v in {'in.txt': 'a b\n', 'empty.txt': '', 'x.npz': 'a\n', 'there.hdf5': 'precious',
                 't.csv': 'id,text\n1,a\n', 'u.csv': 'id,txt\n1,a\n', 'two.csv': 'text,text\n1,a\n',
                 'bad.parquet': 'no', 'empty.csv': '', 'head.csv': 'id,text\n'}.items():
        Path(k).write_text(v)
    Path('d.hdf5').mkdir()
    Path('latin.txt').write_bytes(b'caf\xe9')
    for k in ('a.docx', 'a.conll'): Path(k).write_text('a X\n')
    Path('f.npz.part').mkdir()
    Path('f.npz.part/thesis.txt').write_text('precious')
    kw, says = WRONG[name]
    before = {str(f): f.read_bytes() for f in sorted(tmp_path.rglob('*')) if f.is_file()}
    with pytest.raises((CommandError, ValueError), match=says):
        run(**{**dict(source='in.txt', out='o.npz', elmo=elmo), **kw})
    assert {str(f): f.read_bytes() for f in sorted(tmp_path.rglob('*')) if f.is_file()} == before

class Unplugged(BaseException): pass

def begin(source, out, elmo, stop, **kw):
    "A job that dies when it comes to token number `stop`"
    n = []
    def tok(text):
        n.extend(text.split())
        if len(n) > stop[0]: raise Unplugged
        return text.split()
    elmo = copy.copy(elmo)
    elmo.tokenizer = elmo.tokenize = tok
    return embed_file(source, out, elmo, say=lambda s: None, **{**dict(budget=16), **kw})

@pytest.mark.parametrize('kind', ['hdf5', 'npz', 'parquet'])
def test_goes_on_where_it_stopped(elmo, texts, source, tmp_path, kind, monkeypatch):
    out, ref = tmp_path/f'o.{kind}', tmp_path/f'ref.{kind}'
    begin(source, ref, elmo, [10**9])
    embedded, one = [], module.embed_window
    monkeypatch.setattr(
        module, 'embed_window', lambda e, s, **kw: embedded.extend(s) or one(e, s, **kw)
    )
    for stop in (150, 30, 150, 10**9):
        try: begin(source, out, elmo, [stop])
        except Unplugged: assert not out.exists()
    assert len(embedded) <= 34, 'no line is embedded twice'
    assert not Path(f'{out}.part').exists() and out.exists()
    if kind == 'hdf5':
        with h5py.File(out) as f, h5py.File(ref) as g:
            assert set(f) == set(g) and f['sentence_to_index'][0] == g['sentence_to_index'][0]
            assert all(close(f[k][:], g[k][:]) for k in f if k.isdigit())
    elif kind == 'npz':
        with np.load(out) as f, np.load(ref) as g:
            assert set(f) == set(g) and all(close(f[k], g[k]) for k in f)
    else: assert pq.read_table(out)['token'].to_pylist() == pq.read_table(ref)['token'].to_pylist()

def test_a_job_that_can_not_begin_drops_nothing(elmo, tmp_path):
    source, out = tmp_path/'a.csv', tmp_path/'o.npz'
    source.write_text('text,id\n' + 'some words,1\n'*60)
    with pytest.raises(Unplugged): begin(source, out, elmo, [100])
    kept = sorted(Path(f'{out}.part').iterdir())
    with pytest.raises(ValueError): begin(source, out, elmo, [100], overwrite=True, text_col='id ')
    assert sorted(Path(f'{out}.part').iterdir()) == kept

# where the tokens stand

ODD = ["She  didn't  like\tthe cafe\u0301 👨‍👩‍👧!", '👍🏽 🇫🇷 ok…', ' spaced ', '我喜欢 北京。',
       'a\u200b b \u202eabc\u202c d', '', 'é e\u0301\u0323x']

def offsets_in(file, i):
    "Of line `i`, from any kind of file"
    if file.suffix == '.parquet':
        table = pd.read_parquet(file)
        return table.loc[table.line == i, ['start', 'end']].to_numpy()
    with h5py.File(file) if file.suffix == '.hdf5' else np.load(file) as f:
        return f[f'offsets/{i}'][:]

@pytest.mark.parametrize('kind', ['hdf5', 'npz', 'parquet'])
def test_offsets_find_the_tokens_in_their_texts(elmo, tmp_path, kind):
    source, out = tmp_path/'in.jsonl', tmp_path/f'o.{kind}'
    source.write_text('\n'.join(json.dumps(dict(text=t)) for t in ODD))
    result = embed_file(source, out, elmo, offsets=True, say=lambda s: None)
    assert not result['failed']
    for i,text in enumerate(ODD):
        tokens, found = word_tokenize(text), offsets_in(out, i)
        assert found.shape == (len(tokens), 2)
        for token,(start, end) in zip(tokens, found):
            assert text[start:end].translate(DROPPED) == token
    plain = tmp_path/f'plain.{kind}'
    embed_file(source, plain, elmo, say=lambda s: None)
    with pytest.raises(KeyError): offsets_in(plain, 0)

def test_offsets_of_tokens_are_in_their_line(elmo, tmp_path):
    "A sentence of a treebank is its tokens with blanks between them"
    source = tmp_path/'a.conllu'
    source.write_text('1\tNew York' + 8*'\t_' + '\n2\tis' + 8*'\t_' + '\n\n')
    embed_file(source, tmp_path/'o.npz', elmo, offsets=True, say=lambda s: None)
    assert offsets_in(tmp_path/'o.npz', 0).tolist() == [[0, 8], [9, 11]]

def test_a_text_that_the_tokenizer_rewrites_has_no_offsets(tmp_path):
    elmo = lasting(tokenizer=lambda text: text.lower().split())
    (tmp_path/'in.txt').write_text('a bank\nA bank\nbanks')
    result = embed_file(tmp_path/'in.txt', tmp_path/'o.npz', elmo, offsets=True, say=lambda s: None)
    assert list(result['failed']) == [1]
    assert "no offsets. The token 'bank' is not in 'A bank'" in result['failed'][1]

def test_a_job_with_offsets_is_another_job(elmo, source, tmp_path):
    out = tmp_path/'o.npz'
    with pytest.raises(Unplugged): begin(source, out, elmo, [150])
    with pytest.raises(CommandError, match='another offsets'):
        begin(source, out, elmo, [10**9], offsets=True)
    begin(source, out, elmo, [10**9], offsets=True, overwrite=True)
    assert offsets_in(out, 0)[0, 0] == 0

def test_a_pooled_line_has_no_offsets(elmo, source, tmp_path):
    with pytest.raises(CommandError, match="pool='mean'"):
        embed_file(source, tmp_path/'o.npz', elmo, pool='mean', offsets=True)

@pytest.mark.parametrize('change', ['model', 'layers', 'pool', 'dtype', 'input', 'shorter', 'mix'])
def test_another_job_is_not_mixed_in(elmo, texts, source, tmp_path, change):
    kw = dict(layers='mix')
    with pytest.raises(Unplugged): begin(source, tmp_path/'o.npz', elmo, [150], **kw)

    other = elmo
    if change == 'model': other = lasting(3)
    elif change == 'mix': other = lasting(gamma=2.)
    elif change == 'input': source.write_text('another ' + source.read_text())
    elif change == 'shorter': source.write_text(texts[0] + '\n')
    else:
        kw |= {'layers': dict(layers=1), 'pool': dict(pool='mean'), 'dtype': dict(dtype='float16')}[
            change]
    with pytest.raises(CommandError, match='--overwrite'):
        begin(source, tmp_path/'o.npz', other, [10**9], **kw)
    begin(source, tmp_path/'o.npz', other, [10**9], **kw, overwrite=True)
    assert (tmp_path/'o.npz').exists() and not (tmp_path/'o.npz.part').exists()

class Splitter:
    "A tokenizer with a setting"
    def __init__(self, mark): self.mark = mark
    def __call__(self, text): return text.split(self.mark)

def upper(text, big=True): return [t.upper() if big else t for t in text.split()]

TOKENIZERS = dict(
    lambdas=(lambda t: t.split(), lambda t: [o.upper() for o in t.split()]),
    objects=(Splitter(' '), Splitter('e')),
    methods=(Splitter(' ').__call__, Splitter('e').__call__),
    partials=(partial(upper, big=False), partial(upper, big=True)),
    named=('space', lambda t: [o.upper() for o in t.split()]),
)

@pytest.mark.parametrize('name', TOKENIZERS)
def test_another_tokenizer_is_not_mixed_in(elmo, texts, source, tmp_path, monkeypatch, name):
    "Whatever it is called: what counts is how it splits the lines that are done"
    def with_tokenizer(tok):
        e = copy.copy(elmo)
        e.tokenizer, e.tokenize = tok, tok if callable(tok) else str.split
        return e
    one, other = map(with_tokenizer, TOKENIZERS[name])
    def interrupted(e):
        with monkeypatch.context() as m:
            add = module.Portions.add
            def add_and_stop(self, *args, **kw):
                add(self, *args, **kw)
                if self.n == 3: raise Unplugged
            m.setattr(module.Portions, 'add', add_and_stop)
            with pytest.raises(Unplugged): run(source, tmp_path/'o.npz', e, budget=8)
    interrupted(one)
    with pytest.raises(CommandError, match='tokenizer|split'):
        run(source, tmp_path/'o.npz', other, budget=8)
    assert 'Going on' in run(source, tmp_path/'o.npz', one, budget=8)[1][0]
    (tmp_path/'o.npz').unlink()
    interrupted(one)
    said = run(source, tmp_path/'o.npz', other, budget=8, overwrite=True)[1]
    assert 'Going on' not in said[0]
