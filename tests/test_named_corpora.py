"The corpora that have a name"
import pytest

from elmo_fastai.text.sources import CORPORA, get_corpus

def shakespeare(folder):
    (folder/'input.txt').write_text('\n'.join(f'Speaker: line {i}' for i in range(100)))

def wikitext(folder):
    for split in ('train', 'valid', 'test'): (folder/f'{split}.txt').write_text(' a line \n')

def sst2(folder):
    for split in ('train', 'dev', 'test'): (folder/f'sst2.{split}.tsv').write_text('1\tgood\n')

def reuters(folder):
    names = [f'training/{i}' for i in range(20)] + ['test/99']
    (folder/'cats.txt').write_text(''.join(f'{name} cocoa\n' for name in names))
    for name in names:
        (folder/name).parent.mkdir(exist_ok=True)
        (folder/name).write_text('COCOA REVIEW\n  Showers continued.\n')

COPIES = dict(tiny_shakespeare=shakespeare, wikitext2=wikitext, sst2=sst2, reuters=reuters)

@pytest.mark.parametrize('name', [name for name in CORPORA if name != 'toy'])
def test_a_named_corpus_reads_its_copy(name, tmp_path):
    assert name in COPIES, f'write a small copy of {name} here, as its publisher has it'
    COPIES[name](tmp_path)
    corpus = get_corpus(name, data=tmp_path)
    assert corpus.train and corpus.valid and corpus.test, 'all splits have lines'
    assert all(line.strip() for lines in corpus.splits.values() for line in lines)
    for split,sents in (corpus.gold or {}).items():
        assert len(sents) == len(corpus.splits[split]), 'one sentence with annotations per line'
