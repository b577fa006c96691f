"Stanford Sentiment Treebank, two classes (Socher et al. 2013), for other benchmarks"
from elmo_fastai.errors import require
from elmo_fastai.text.corpora import local_copy
from elmo_fastai.text.read import Corpus, Sentence, by_split, from_hub, lines_of
from elmo_fastai.text.tokenizers import space_tokenize

def sst2(path=None):
    "Sentences with labels in `gold`; `path`: a folder with sst2.train.tsv, …dev.tsv, …test.tsv"
    folder = local_copy('sst2', path)
    if folder is None:              # the hub's version trains on phrases and hides the test labels
        data = from_hub('hub:stanfordnlp/sst2')
        splits = {split: [*zip(part['label'], part['sentence'])] for split,part in data.items()}
    else: splits = {
        part: [line.strip().split('\t') for line in lines_of(folder/f'sst2.{part}.tsv')]
        for part in ('train', 'dev', 'test')}
    gold = {}
    for split,rows in by_split(splits.items(), 'sst2').items():
        are_right = all(len(row) == 2 and str(row[0]) in ('0', '1', '-1') for row in rows)
        require(are_right, f"sst2, {split}: a line must be 0 or 1, a tab and a text")
        gold[split] = [Sentence(space_tokenize(text), label=None if int(label) < 0 else int(label))
                       for label,text in rows]
    return Corpus.from_gold('sst2', gold)
