"""Files with labels: each form byte by byte, the decisions of `predict` and `tag`, a kill, bounded
memory, bad input"""
import json, random, tracemalloc
from pathlib import Path

import pandas as pd, pytest
from filelock import FileLock
from fastai.torch_core import set_seed

from elmo_fastai.base.errors import CheckpointError, CommandError, CorpusError, UsageError
from elmo_fastai.data.labels import ClassifyDataLoaders
from elmo_fastai.data.tagged import TagDataLoaders, read_tagged
from elmo_fastai.elmo.module import Elmo
from elmo_fastai.nn.bilm import BiLM, BiLMConfig
from elmo_fastai.tasks.annotate import Portions
from elmo_fastai.tasks.classify import elmo_classifier_learner
from elmo_fastai.tasks.tag import elmo_tagger_learner
from made import fit

CFG = BiLMConfig('nano', char_dim=4, filters=((1, 8), (2, 8)), proj_dim=8, hidden_dim=12)
GOOD, BAD = 'good fine great nice'.split(), 'bad poor awful dull'.split()
ROWS = [(f'the {n} was {w} .', 'pos' if w in GOOD else 'neg')
        for n in 'film song book play'.split() for w in GOOD + BAD]
TAGGED = [('in New York Ann sleeps .'.split(), 'O B-LOC I-LOC B-PER O O'.split()),
          ('Bob saw Paris'.split(), 'B-PER O B-LOC'.split())]*16


def fitted(learn, epochs):
    return fit(learn, epochs, 2e-2)

def make_elmo():
    set_seed(0)
    return Elmo(BiLM(CFG, 0), dropout=.1)

def make_classifier(rows=ROWS, loss_func=None, **kwargs):
    elmo = make_elmo()
    dls = ClassifyDataLoaders.from_data(rows, device='cpu', bs=8, seed=1, **kwargs)
    return fitted(elmo_classifier_learner(
        dls, elmo, proj_dim=16, hidden=8, loss_func=loss_func), 6)

@pytest.fixture(scope='module')
def classifier(): return make_classifier()

@pytest.fixture(scope='module')
def tagger():
    elmo = make_elmo()
    dls = TagDataLoaders.from_sents(TAGGED, device='cpu', bs=8, seed=1)
    return fitted(elmo_tagger_learner(dls, elmo, hidden=8, words=8), 12)

def annotated(learn, folder, file, data, out=None, **kwargs):
    "The bytes of the output for a file that holds `data`"
    source = folder/file
    source.write_bytes(data if isinstance(data, bytes) else data.encode())
    out = folder/(out or f'out{source.suffix}')
    learn.annotate(source, out, say=lambda message: None, **kwargs)
    assert not list(folder.glob('*.part'))
    return out.read_bytes()

def tags_of(learn, tokens): return [tag for _,tag in learn.tag([tokens])[0]]

def guess_of(learn, text):
    label, number, probs = learn.predict(text)
    return str(label), round(float(probs[number]), 4)

# forms

def test_a_column_file_gets_a_column(tagger, tmp_path):
    data = '-DOCSTART- -X-\n\n\nAnn NN\r\nsaw VB\n\n\n\nBob NN\nsleeps VB'
    ann, saw = tags_of(tagger, ['Ann', 'saw'])
    bob, sleeps = tags_of(tagger, ['Bob', 'sleeps'])
    found = annotated(tagger, tmp_path, 'a.conll', data).decode()
    assert found == (f'-DOCSTART- -X-\n\n\nAnn NN {ann}\r\nsaw VB {saw}\n\n\n\n'
                     f'Bob NN {bob}\nsleeps VB {sleeps}')
    assert ann == bob == 'B-PER'

def test_a_named_column_of_tokens_alone(tagger, tmp_path):
    found = annotated(tagger, tmp_path, 'a.bio', 'token\tpos\nAnn\tX\n', name='guess')
    assert found == b'token\tpos\tguess\nAnn\tX\tB-PER\n'

CONLLU = ('# sent_id = 1\n# text = Ann saw Paris\n1-2\tAnnsaw\t_\t_\t_\t_\t_\t_\t_\t_\n'
          '1\tAnn\t_\tX\t_\t_\t_\t_\t_\tSpaceAfter=No|A=b\n2\tsaw\t_\t_\t_\t_\t_\t_\t_\t_\r\n'
          '2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n3\tParis\t_\t_\t_\t_\t_\t_\t_\t_\n\n'
          '# sent_id = 2\n1\tBob\t_\t_\t_\t_\t_\t_\t_\t_\n\n# the end\n')

def test_a_column_may_divide_sentences(tagger, tmp_path):
    data = 'sent\ttoken\n1\tin\n1\tNew\n2\tYork\n'
    both, one = tags_of(tagger, ['in', 'New']), tags_of(tagger, ['York'])
    found = annotated(tagger, tmp_path, 'a.conll', data).decode().split('\n')
    assert [line.split('\t')[-1] for line in found] == ['tag', *both, *one, '']

def test_conllu_gets_a_note(tagger, tmp_path):
    first = tags_of(tagger, ['Ann', 'saw', 'Paris'])
    [second] = tags_of(tagger, ['Bob'])
    notes = iter([f'SpaceAfter=No|A=b|Tag={first[0]}', *(f'Tag={tag}' for tag in first[1:]),
                  f'Tag={second}'])
    lines = []
    for line in CONLLU.split('\n'):
        cells = line.split('\t')
        if cells[0].isdigit():
            end = '\r'*line.endswith('\r')
            cells[-1] = next(notes) + end
        lines.append('\t'.join(cells))
    found = annotated(tagger, tmp_path, 'a.conllu', b'\xef\xbb\xbf' + CONLLU.encode())
    assert found == b'\xef\xbb\xbf' + '\n'.join(lines).encode()
    sents, _ = read_tagged(tmp_path/'out.conllu', tag_col='misc.Tag')
    assert [sent.tags for sent in sents] == [first, [second]]
    with pytest.raises(UsageError, match="line 7 has 'Tag' already"):
        annotated(tagger, tmp_path, 'b.conllu', found, 'c.conllu')

def test_conllu_columns_are_filled_if_they_are_empty(tagger, tmp_path):
    found = annotated(tagger, tmp_path, 'a.conllu', CONLLU, name='xpos').decode()
    sents, _ = read_tagged(tmp_path/'out.conllu', tag_col='xpos')
    assert sents[0].tags == tags_of(tagger, ['Ann', 'saw', 'Paris']) and 'Tag=' not in found
    with pytest.raises(UsageError, match="'upos' already"):
        annotated(tagger, tmp_path, 'a.conllu', CONLLU, 'b.conllu', name='upos')

def test_conllu_plus_without_notes(tagger, tmp_path):
    data = '# global.columns = ID FORM X\n1-2\tAnnsaw\t_\n1\tAnn\ta\n2\tsaw\tb\n\n1\tBob\tb\n'
    ann, saw = tags_of(tagger, ['Ann', 'saw'])
    [bob] = tags_of(tagger, ['Bob'])
    found = annotated(tagger, tmp_path, 'a.conllu', data).decode()
    assert found == (f'# global.columns = ID FORM X TAG\n1-2\tAnnsaw\t_\t_\n1\tAnn\ta\t{ann}\n'
                     f'2\tsaw\tb\t{saw}\n\n1\tBob\tb\t{bob}\n')

def test_bars_and_blanks_in_a_note(tmp_path):
    sents = [(['a', 'b'], ['Case=Nom|Number=Sing', r'x \y'])]*10
    learn = elmo_tagger_learner(TagDataLoaders.from_sents(sents, device='cpu'), where=None)
    data = ''.join(f'{i}\ta' + '\t_'*8 + '\n' for i in range(1, 3))
    found = annotated(learn, tmp_path, 'a.conllu', data).decode()
    notes = {line.split('\t')[9] for line in found.split('\n') if line}
    assert notes <= {r'Tag=Case=Nom\pNumber=Sing', r'Tag=x\s\\y'}

def test_text_becomes_rows_with_spans(tagger, tmp_path):
    texts = ['Ann saw Paris.', '', '  in New York\tBob', 'é 😀 Bob']
    found = annotated(tagger, tmp_path, 'a.txt', '\r\n'.join(texts), 'a.jsonl').decode()
    rows = [json.loads(line) for line in found.splitlines()]
    assert [row['text'] for row in rows] == texts and found.endswith('\n')
    for row in rows:
        tagged = tagger.tag([row['text']], as_spans=True)[0] if row['text'] else []
        assert row['spans'] == tagged
        assert all(row['text'][span['start']:span['end']] == span['text'] for span in row['spans'])
    assert any(row['spans'] for row in rows)
    sents, _ = read_tagged(tmp_path/'a.jsonl')
    assert [sent.tags for sent in sents] == [tags_of(tagger, sent.tokens) for sent in sents]

def test_text_for_a_classifier(classifier, tmp_path):
    found = annotated(classifier, tmp_path, 'a.txt', 'the film was nice .\n\n', 'a.jsonl').decode()
    label, share = guess_of(classifier, 'the film was nice .')
    assert [json.loads(line) for line in found.splitlines()] == [
        dict(text='the film was nice .', label=label, probability=share),
        dict(text='', label=None, probability=None)]

def test_csv_keeps_its_bytes(classifier, tmp_path):
    data = ('id;text;x\r\n1;"the film; ""was"" nice .";"a\nb"\r\n\r\n2;the song was dull .;5"\r'
            '3;;"z"')
    label, share = zip(guess_of(classifier, 'the film; "was" nice .'),
                       guess_of(classifier, 'the song was dull .'))
    found = annotated(classifier, tmp_path, 'a.csv', data).decode()
    assert found == (f'id;text;x;label;probability\r\n1;"the film; ""was"" nice .";"a\nb";'
                     f'{label[0]};{share[0]}\r\n\r\n2;the song was dull .;5";{label[1]};{share[1]}'
                     '\r3;;"z";;')

@pytest.mark.parametrize('encoding', ['utf-16', 'utf-16-le', 'latin-1', 'utf-8-sig', 'utf-32'])
def test_encodings_and_marks_stay(classifier, tmp_path, encoding):
    found = annotated(classifier, tmp_path, 'a.csv', 'n,text\né,good\n'.encode(encoding),
                      encoding=encoding)
    label, share = guess_of(classifier, 'good')
    assert found == f'n,text,label,probability\né,good,{label},{share}\n'.encode(encoding)

def test_tsv_has_no_quotes_and_no_header_if_told_so(classifier, tmp_path):
    label, share = guess_of(classifier, 'go"od')
    found = annotated(classifier, tmp_path, 'a.tsv', '1\tgo"od\n', header=False, text_col=1)
    assert found.decode() == f'1\tgo"od\t{label}\t{share}\n'

def test_rows_of_tokens(tagger, tmp_path):
    data = 'sentence_id,word,x\n1,Ann,"a\nb"\n1,saw,y\n,Paris,z\n2,Bob,\n2,,k\n'
    first = tags_of(tagger, ['Ann', 'saw', 'Paris'])
    [bob] = tags_of(tagger, ['Bob'])
    found = annotated(tagger, tmp_path, 'a.csv', data).decode()
    assert found == (f'sentence_id,word,x,tag\n1,Ann,"a\nb",{first[0]}\n1,saw,y,{first[1]}\n'
                     f',Paris,z,{first[2]}\n2,Bob,,{bob}\n2,,k,\n')
    with pytest.raises(UsageError, match='sent_col'):
        annotated(tagger, tmp_path, 'a.csv', 'word\nAnn\n', 'b.csv')

@pytest.mark.parametrize('rows,sents', [
    ('1,Ann\n2,\n1,saw\n', [['Ann'], ['saw']]),
    ('1,Ann\n,saw\n,\n2,Bob\n', [['Ann', 'saw'], ['Bob']]),
    ('1,Ann\n2,\n,saw\n', [['Ann'], ['saw']])], ids=repr)
def test_rows_without_a_token_may_end_a_sentence(tagger, tmp_path, rows, sents):
    "As where the same file is read"
    found = annotated(tagger, tmp_path, 'a.csv', 'sent,word\n' + rows).decode()
    tags = [line.split(',')[-1] for line in found.splitlines()[1:]]
    assert [tag for tag in tags if tag] == [tag for sent in sents for tag in tags_of(tagger, sent)]
    read, _ = read_tagged(tmp_path/'out.csv', token_col='word', tag_col='tag')
    assert [sent.tokens for sent in read] == sents
    again = tagger.annotate(tmp_path/'a.csv', tmp_path/'out.csv', overwrite=True)
    assert again['rows'] == len(sents)

def test_a_sentence_that_is_not_asked_for_has_no_row(tagger, tmp_path):
    data = 'sent,word\n1,Ann\n2,Bob\n3,\n3,saw\n'
    assert annotated(tagger, tmp_path, 'a.csv', data, n_rows=2).count(b'\n') == 3

@pytest.mark.parametrize('file,data,says', [
    ('a.csv', 'sent,word\n1,Ann\n2,Ann\n2,saw\n2,Bob\n', 'line 3'),
    ('a.conll', 'Ann N\n\n\nAnn N\nsaw V\nBob N\n', 'ends in line 6')])
def test_a_sentence_is_named_by_its_place(tagger, tmp_path, file, data, says):
    with pytest.raises(CorpusError, match=f'{says} has 3 tokens'):
        annotated(tagger, tmp_path, file, data, max_tokens=2)

def test_jsonl_keeps_its_bytes(tagger, tmp_path):
    data = '{"text": "Ann saw", "n": 1.00, "e": "\\u00e9"}\r\n\n  {"text":["Ann"] }\n{"text":null}'
    spans = json.dumps(tagger.tag(['Ann saw'], as_spans=True)[0])
    tags = json.dumps(tags_of(tagger, ['Ann']))
    found = annotated(tagger, tmp_path, 'a.jsonl', data).decode()
    assert found == (f'{{"text": "Ann saw", "n": 1.00, "e": "\\u00e9", "spans": {spans}}}\r\n\n'
                     f'  {{"text":["Ann"], "tags": {tags}}}\n{{"text":null, "spans": null}}')

def test_a_list_of_json_becomes_lines(classifier, tmp_path):
    found = annotated(classifier, tmp_path, 'a.json', '[{"text": "good"},\n {"text": "bad"}]',
                      'a.jsonl', name='guess', probability='p')
    rows = [json.loads(line) for line in found.splitlines()]
    assert [(row['guess'], row['p']) for row in rows] == [
        guess_of(classifier, text) for text in ('good', 'bad')]

def test_several_labels_and_numbers(tmp_path):
    several = make_classifier([(text, ['a', label]) for text,label in ROWS])
    found = annotated(several, tmp_path, 'a.txt', ROWS[0][0], 'a.jsonl')
    row = json.loads(found)
    assert row['labels'] == list(several.predict(ROWS[0][0])[0])
    assert len(row['probability']) == len(row['labels'])
    number = make_classifier([(text, .5 + (label == 'pos')) for text,label in ROWS])
    row = json.loads(annotated(number, tmp_path, 'a.txt', ROWS[0][0], 'b.jsonl'))
    assert row['number'] == pytest.approx(float(number.predict(ROWS[0][0])[0]), abs=1e-3)

# decisions

def test_labels_are_those_of_one_by_one_in_batches_of_any_size(classifier, tagger, tmp_path):
    rng = random.Random(0)
    words = 'the film song was in New York Ann Bob saw Paris .'.split() + GOOD + BAD
    texts = [' '.join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(60)]
    found = annotated(classifier, tmp_path, 'a.txt', '\n'.join(texts), 'a.jsonl').splitlines()
    tagged = annotated(tagger, tmp_path, 'a.conll', '\n\n'.join(
        '\n'.join(text.split()) for text in texts)).decode().split('\n\n')
    for text,line,lines in zip(texts, found, tagged, strict=True):
        row = json.loads(line)
        label, share = guess_of(classifier, text)
        assert row['label'] == label and row['probability'] == pytest.approx(share, abs=2e-4)
        tags, *_ = tagger.predict(text.split())
        assert [line.split(' ')[1] for line in lines.strip().split('\n')] == list(tags)

# a job that was stopped

class Unplugged(Exception): pass

@pytest.fixture
def long_text(tmp_path):
    rng = random.Random(1)
    words = 'the film song was .'.split() + GOOD + BAD
    lines = [' '.join(rng.choices(words, k=20)) for _ in range(1800)]
    (tmp_path/'in.txt').write_text('\n'.join(lines))
    return tmp_path/'in.txt'

def stopped(monkeypatch, learn, source, out, after=1, **kwargs):
    "Annotate, and pull the plug after some portions"
    add = Portions.add
    def add_some(self, *args, **kw):
        if self.n == after: raise Unplugged
        add(self, *args, **kw)
    with monkeypatch.context() as patched:
        patched.setattr(Portions, 'add', add_some)
        with pytest.raises(Unplugged): learn.annotate(source, out, **kwargs)

def test_an_interrupted_job_goes_on(classifier, long_text, tmp_path, monkeypatch):
    whole, out = tmp_path/'whole.jsonl', tmp_path/'out.jsonl'
    said = []
    classifier.annotate(long_text, whole, say=said.append)
    stopped(monkeypatch, classifier, long_text, out)
    assert not out.exists() and len(list(Path(f'{out}.part').glob('*.npz'))) == 1
    classifier.annotate(long_text, out, say=said.append)
    assert 'Going on after' in said[1] and out.read_bytes() == whole.read_bytes()
    assert said[2].endswith('1,800 lines, 36,000 tokens') and not Path(f'{out}.part').exists()

def test_another_job_or_source_is_refused(classifier, tagger, long_text, tmp_path, monkeypatch):
    out = tmp_path/'out.jsonl'
    stopped(monkeypatch, classifier, long_text, out)
    with pytest.raises(CommandError, match='another names'):
        classifier.annotate(long_text, out, name='x')
    with pytest.raises(CommandError, match='another model'):
        tagger.annotate(long_text, out)
    lines = long_text.read_text().split('\n')
    long_text.write_text('\n'.join(['else', *lines[1:]]))
    with pytest.raises(CommandError, match='are not those in'): classifier.annotate(long_text, out)
    long_text.write_text('\n'.join(lines[:100]))
    with pytest.raises(CommandError, match='are not those in'): classifier.annotate(long_text, out)
    classifier.annotate(long_text, out, overwrite=True)
    assert len(out.read_text().splitlines()) == 100

@pytest.mark.parametrize('kwargs', [dict(sep=';;'), dict(text_col='none'), dict(encoding='none')],
                         ids=str)
def test_a_job_that_can_not_begin_drops_nothing(classifier, tmp_path, monkeypatch, kwargs):
    source, out = tmp_path/'a.csv', tmp_path/'o.csv'
    source.write_text('text,id\n' + 'so good and so bad,1\n'*5000)
    stopped(monkeypatch, classifier, source, out)
    kept = sorted(Path(f'{out}.part').iterdir())
    assert any(file.suffix == '.npz' for file in kept)
    with pytest.raises((UsageError, CorpusError, LookupError)):
        classifier.annotate(source, out, overwrite=True, **kwargs)
    assert sorted(Path(f'{out}.part').iterdir()) == kept

def test_a_wrong_row_can_be_mended(classifier, long_text, tmp_path):
    "What came before it is kept"
    out = tmp_path/'out.jsonl'
    text = long_text.read_text()
    long_text.write_bytes(text.encode() + b'\nb\xe9d')
    with pytest.raises(CorpusError, match='line 1801 is not UTF-8'):
        classifier.annotate(long_text, out)
    long_text.write_text(text)
    said = []
    classifier.annotate(long_text, out, say=said.append)
    assert 'Going on' in said[0] and len(out.read_text().splitlines()) == 1800

def test_two_processes_and_one_output(classifier, long_text, tmp_path):
    out = tmp_path/'out.jsonl'
    Path(f'{out}.part').mkdir()
    with FileLock(f'{out}.part/.lock'), pytest.raises(CheckpointError, match='in use by'):
        classifier.annotate(long_text, out)

# places and bad input

def test_places(classifier, tmp_path, monkeypatch):
    source = tmp_path/'a.csv'
    source.write_text('text\ngood\n')
    (tmp_path/'there.csv').write_text('x')
    (tmp_path/'link.csv').symlink_to(source)
    def refused(out, match, source=source, error=UsageError, **kwargs):
        with pytest.raises(error, match=match): classifier.annotate(source, out, **kwargs)
    refused(source, 'the input itself', overwrite=True)
    refused(tmp_path/'link.csv', 'the input itself', overwrite=True)
    refused(tmp_path/'there.csv', 'exists already')
    refused(tmp_path/'a.jsonl', 'should end in one of .csv')
    refused(tmp_path/'a.parquet', 'should end in one of')
    refused(tmp_path, 'should end|is a folder')
    refused(tmp_path/'b.csv', 'no file', tmp_path/'none.csv')
    refused(tmp_path/'b.csv', 'standard input', '-')
    monkeypatch.setattr('elmo_fastai.tasks.annotate.tables_of', lambda *args: 1/0)
    refused(tmp_path/'there.csv'/'b.csv', "Can't write into", error=CommandError)
    assert source.read_text() == 'text\ngood\n' and (tmp_path/'there.csv').read_text() == 'x'

@pytest.mark.parametrize('name,data,match', [
    ('a.csv', 'text,n\ngood,1\nbad\n', 'line 3 has 1 cell'),
    ('a.csv', 'text,n\ngood,1\n"bad,2\n', 'line 3: a quote'),
    ('a.csv', 'text,n\ngood,1\n' + 'a'*2**22 + ',2\n', 'row of more than|the cell has more'),
    ('a.csv', 'text,label\ngood,1\n', "has 'label' already"),
    ('a.csv', 'words\ngood\n', 'there is no column'),
    ('a.jsonl', '{"text": "a"}\n\n{"text": 3}\n', 'line 3 has 3 in'),
    ('a.jsonl', '{"text": "a"}\n{"text": \n', 'line 2 is no JSON object'),
    ('a.jsonl', '{"text": "a"}\n{"text": "b", "probability": 1}\n', "line 2 has 'probability'"),
    ('a.txt', 'good\n' + 'x '*50_001 + '\n', 'line 2 has 50,001 tokens'),
    ('a.txt', 'a good text\n' + 'so\n'*9 + 'b\0d\n', 'line 11 has a NUL'),
    ('a.txt', '', 'is empty'),
    ('a.conll', 'Ann NN\n', 'a classifier labels texts')])
def test_bad_input(classifier, tmp_path, name, data, match):
    out = f'b{Path(name).suffix}'.replace('.txt', '.jsonl')
    with pytest.raises(ValueError, match=match): annotated(classifier, tmp_path, name, data, out)
    assert [file.name for file in tmp_path.iterdir()] == [name]

def test_wrong_sentences(tagger, tmp_path):
    for data,match in (('Ann NN\nsaw\n', 'line 2: expected 2 columns'),
                       ('Ann NN\n\nb\xe9'.encode('latin-1'), 'line 3 is not UTF-8')):
        with pytest.raises(CorpusError, match=match):
            annotated(tagger, tmp_path, 'a.conll', data, 'b.conll')

def test_a_label_that_the_encoding_lacks(tmp_path):
    learn = make_classifier([(text, '好' if label == 'pos' else '坏') for text,label in ROWS])
    with pytest.raises(CommandError, match="can't be written in latin-1|iso8859-1"):
        annotated(learn, tmp_path, 'a.csv', 'text\ngood\n', encoding='latin-1')

def test_a_progress_bar_counts_lines_after_the_last_sentence(tagger, tmp_path):
    found = annotated(tagger, tmp_path, 'a.conll', 'Ann NN\n\n', progress=True)
    assert found.startswith(b'Ann NN ')

def test_a_progress_bar_can_be_had(classifier, tmp_path, capsys):
    annotated(classifier, tmp_path, 'a.txt', 'good\nbad', 'a.jsonl', progress=True)
    assert '100' in capsys.readouterr().out
    annotated(classifier, tmp_path, 'a.txt', 'good\nbad', 'b.jsonl')
    assert not capsys.readouterr().out

def test_arguments(tagger, classifier, tmp_path):
    with pytest.raises(TypeError, match="no argument 'nam'"): classifier.annotate('a', 'b', nam=1)
    found = annotated(tagger, tmp_path, 'a.conll', 'Ann\n\nBob\n\nAnn\n', n_rows=2).decode()
    assert found.split() == ['Ann', 'B-PER', 'Bob', 'B-PER']

# memory

@pytest.mark.slow
def test_100_000_rows_in_bounded_memory(classifier, tmp_path):
    source, out = tmp_path/'a.csv', tmp_path/'b.csv'
    def peak(n):
        with open(source, 'w') as file:
            file.write('id,text\n')
            for i in range(n): file.write(f'{i},"the film, number {i}, was nice ."\n')
        tracemalloc.start()
        classifier.annotate(source, out, overwrite=True, say=lambda message: None)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most
    few = peak(5_000)
    assert peak(100_000) < few + 4*10**7    # Python collects what refers to itself now and then
    assert pd.read_csv(out).id.tolist() == list(range(100_000))


def test_an_object_without_fields_stays_json(classifier, tmp_path):
    found = annotated(classifier, tmp_path, 'a.jsonl', '{"text": "a bank"}\n{}\n{ }\n').decode()
    rows = [json.loads(line) for line in found.splitlines()]
    assert rows[1] == rows[2] == dict(label=None, probability=None)


@pytest.mark.parametrize('name', ['a b', 'a|b', 'a=b', 'a\tb'])
def test_names_that_can_not_be_a_note(tagger, tmp_path, name):
    with pytest.raises(UsageError, match='name='):
        annotated(tagger, tmp_path, 'a.conllu', '1\tbank' + '\t_'*8 + '\n\n', name=name)
