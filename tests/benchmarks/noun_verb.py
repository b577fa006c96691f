"""Write nbs/data/noun_verb.csv, the quickstart's sentences: words that are noun or verb, from the
English Web Treebank (CC BY-SA 4.0), as it is found in ELMO_FASTAI_DATA or downloaded.

    python tests/benchmarks/noun_verb.py

Sentences of 5 to 20 plain lower-case words, without names. Of each word that has four as a noun
and four as a verb, as many of both are drawn, at most eight.
"""
import csv, random
from collections import defaultdict

from harness import ROOT
from elmo_fastai.text.corpora import treebank

TAGS = 'NOUN', 'VERB'
SHORT = "n't", "'s", "'ll", "'ve", "'m", "'re"

def is_plain(tokens):
    return (5 <= len(tokens) <= 20 and ' '.join(tokens).isascii() and tokens[-1][-1] in '.!?'
            and tokens[0].istitle() and all(word in '.,!?;' or word in SHORT or word == 'I'
                                            or word.isalpha() and word.islower()
                                            for word in tokens[1:]))

def drawn(gold, seed=0):
    "(sentence, position, tag), word by word, nouns first"
    found, seen = defaultdict(lambda: {tag: [] for tag in TAGS}), set()
    for s in (s for part in ('train', 'valid', 'test') for s in gold[part]):
        text = ' '.join(s.tokens)
        if not is_plain(s.tokens) or text.lower() in seen: continue
        seen.add(text.lower())
        for i,(word,tag) in enumerate(zip(s.tokens, s.tags)):
            once = s.tokens.count(word) == 1
            if tag in TAGS and once and word.isalpha() and word.islower():
                found[word][tag].append((text, i, tag))
    rng, rows = random.Random(seed), []
    for word in sorted(found):
        n = min(8, *map(len, found[word].values()))
        if n >= 4: rows += [row for tag in TAGS for row in rng.sample(found[word][tag], n)]
    return rows

if __name__ == '__main__':
    rows = drawn(treebank('UD_English-EWT').gold)
    with open(ROOT/'nbs'/'data'/'noun_verb.csv', 'w', encoding='utf-8', newline='') as f:
        csv.writer(f, lineterminator='\n').writerows([('sentence', 'position', 'tag'), *rows])
