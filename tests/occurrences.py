"""What the page "ELMo in the browser" loads, and the picture that stands there before: `python
tests/occurrences.py` writes nbs/live/occurrences.* and nbs/images/live.svg

The sentences come from novels in the public domain; each content word in them has its vector of the
model in the box: the mean of the LSTM layers, without what all words share, in its directions of
most variance, as int8 with a scale per word. Fifteen words come with the senses that were labelled
by hand (nbs/data/senses_real.csv); of their sentences only the labelled word is stored."""

import json, random, sys
from collections import Counter
from pathlib import Path
import numpy as np, torch
from safetensors.numpy import save_file
from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.elmo import Elmo
from books import novels

out = Path(__file__).resolve().parent.parent/'nbs'/'live'
WORDS = '''bank spring match light fair left right present watch letter ring rose bear well lie mean
    kind leaves fire state face point hand head train court bill bark seal note table chest box case
    board plain sound sharp pen bow'''.split()
# sentences a word; tokens a sentence; words left out
A_WORD, LENGTH, COMMON, DIRECTIONS, SEED = 30, range(5, 15), 150, 64, 42

def chosen(sents):
    "For each of WORDS some sentences that hold it, in an order that is the same at every run"
    rng, seen = random.Random(SEED), []
    of = {w: [s for s in sents if w in s] for w in WORDS}
    for w in WORDS: seen += rng.sample(of[w], min(A_WORD, len(of[w])))
    return list(dict.fromkeys(seen))

def labelled():
    "(tokens, position, sense) of the occurrences that were labelled by hand"
    sys.path.append(str(Path(__file__).resolve().parent/'benchmarks'))
    from probe import real_senses
    return real_senses(Elmo.from_pretrained('mini-en'))[0]

def projections(tokens, vectors, words):
    """The words, and for each the two directions in which its occurrences differ most, [2*words,
    directions]"""
    found = {}
    for word in sorted(words):
        own = vectors[[token == word for token in tokens]]
        if len(own) >= 3: found[word] = np.linalg.svd(own - own.mean(0), full_matrices=False)[2][:2]
    return [*found], np.concatenate([*found.values()])

def content(sent, common):
    return [t for t, w in enumerate(sent)
            if w.isalpha() and len(w) > 2 and (w in WORDS or w.lower() not in common)]

# as in nbs/live/live.js
SENTENCES = ['They sat on the left bank of the river.', 'He swam to the other bank.',
             'She owed the bank a lot of money.']

def picture(elmo):
    "The cosines of the first *bank* with the other two, layer by layer, as SVG"
    vecs = [v[:, word_tokenize(s).index('bank')]
            for s, v in zip(SENTENCES, elmo.embed(SENTENCES, layers='all'))]
    cos = lambda a, b: (a*b).sum(-1)/np.linalg.norm(a, axis=-1)/np.linalg.norm(b, axis=-1)
    rows = [cos(vecs[0], v) for v in vecs[1:]]
    text = lambda x, y, s, more='': f'<text x="{x}" y="{y}" {more}>{s}</text>'
    marked = lambda s: s.replace('bank', '<tspan font-weight="700" fill="#1e7b1e">bank</tspan>')
    out = [text(24, 40, marked(SENTENCES[0]), 'font-size="17"'),
           text(24, 62, 'compared with', 'fill="#4b5563" font-size="13"')]
    out += [text(350 + 150*l, 62, o, 'fill="#4b5563" font-size="13"')
            for l, o in enumerate(['layer 0: letters', 'layer 1', 'layer 2'])]
    for r,(s,row) in enumerate(zip(SENTENCES[1:], rows)):
        y = 96 + 38*r
        out.append(text(24, y, marked(s), 'font-size="17"'))
        for l,c in enumerate(row):
            out.append(f'<rect x="{350 + 150*l}" y="{y - 13}" width="{85*c:.1f}" height="14" '
                       'rx="2" fill="#2ca02c"/>')
            out.append(text(350 + 150*l + 93, y, f'{c:.2f}', 'font-size="15"'))
    said = '; '.join(
        f"with “{s}” {', '.join(f'{c:.2f}' for c in row)}" for s, row in zip(SENTENCES[1:], rows))
    head = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 160" role="img" '
            'aria-labelledby="live-title live-desc" font-family="system-ui, -apple-system, '
            '\'Segoe UI\', Roboto, \'DejaVu Sans\', sans-serif" fill="#1f2430">')
    title = ('<title id="live-title">One word in three sentences</title>\n<desc id="live-desc">'
             f'Cosines of the vector of “bank” in “{SENTENCES[0]}” in layers 0, 1 and 2: '
             f'{said}.</desc>')
    return '\n'.join([
        head, title,
        '<rect x="1" y="1" width="798" height="158" rx="12" fill="#ffffff" stroke="#c9ced6"/>',
        *out, '</svg>\n'])

def main():
    elmo = Elmo.from_pretrained('mini-en').eval()
    (out.parent/'images'/'live.svg').write_text(picture(elmo), encoding='utf-8')
    sents = [tuple(word_tokenize(s)) for s in novels().splits['train']]
    counts = Counter(w.lower() for s in sents for w in s)
    common = {w for w,_ in counts.most_common(COMMON)}
    gold = labelled()
    known = {s[t] for s,t,_ in gold}
    short = [s for s in dict.fromkeys(sents)
             if len(s) in LENGTH and s[-1] in '.!?' and s[0][:1].isupper()]
    some = chosen([s for s in short if not known & {*s}])
    at = [content(s, common) for s in some]
    senses = {len(some) + i: sense for i,(_,_,sense) in enumerate(gold)}
    some += [tuple(s) for s,_,_ in gold]
    at += [[t] for _,t,_ in gold]
    with torch.no_grad(): layers = elmo.embed([list(s) for s in some], layers='all')
    x = np.concatenate([v[1:].mean(0)[t] for v,t in zip(layers, at)]).astype(np.float32)
    mean = x.mean(0)
    basis = np.linalg.svd(x - mean, full_matrices=False)[2][:DIRECTIONS]
    basis = basis.astype(np.float16)
    y = (x - mean.astype(np.float16).astype(np.float32)) @ basis.astype(np.float32).T
    words, axes = projections(
        [s[t].lower() for s, places in zip(some, at) for t in places], y, known | {*WORDS}
    )
    scale = (np.abs(y).max(1)/127).astype(np.float16)
    save_file({
        'vectors': np.rint(y/scale[:, None].astype(np.float32)).clip(-127, 127).astype(np.int8),
        'vectors.scale': scale, 'basis': basis, 'mean': mean.astype(np.float16),
        'axes': axes.astype(np.float16)}, out/'occurrences.safetensors')
    (out/'occurrences.json').write_text(json.dumps(
        {'sentences': [' '.join(s) for s in some], 'at': at, 'senses': senses, 'words': words},
        ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    size = sum((out/f'occurrences.{e}').stat().st_size for e in ('safetensors', 'json'))
    print(f'{len(some)} sentences, {len(x):,} words, {size/1000:.0f} kB')

if __name__ == '__main__': main()
