"""What the explainer shows before a model is loaded: `python tests/stored.py` writes
nbs/live/stored.json

The answers to the examples come from the scripts of the page itself, run by node on the model in
the box. The labelled occurrences that the model puts beside another sense are counted here;
tests/test_live.py compares the answers with PyTorch's."""
import itertools, json, shutil, subprocess, tempfile
from pathlib import Path
import numpy as np, torch
from safetensors.numpy import load_file
from after_render import BOX
from elmo_fastai.all import Elmo

live = Path(__file__).resolve().parent.parent/'nbs'/'live'
EXAMPLES = [       # the chosen word as (sentence, position)
    dict(label='bank', chosen=(0, 5), sentences=['They sat on the left bank of the river.',
                                                 'He swam to the other bank.',
                                                 'She owed the bank a lot of money.']),
    dict(label='bank clerk', chosen=(0, 4), panel='glide',
         sentences=['She sat on the bank of the river.', 'She worked as a bank clerk.',
                    'He swam to the other bank.']),
    dict(label='rose', chosen=(0, 2), sentences=['He slowly rose from his chair.',
                                                 'She held a red rose in her hand.',
                                                 'The water rose to his knees.']),
    dict(label='left', chosen=(0, 1), sentences=['She left the house at noon.',
                                                 'Turn to the left at the church.',
                                                 'There was nothing left to eat.']),
    dict(label='watch', chosen=(0, 3), sentences=['He took his watch out of his pocket.',
                                                  'We watch the ships from the shore.',
                                                  'The night watch slept by the fire.']),
    dict(label='match', chosen=(0, 3), sentences=['He struck a match and lit the lamp.',
                                                  'They won the match by two goals.',
                                                  'She was no match for her brother.']),
    dict(label='a slip of the pen', chosen=(1, 1),
         sentences=['The government raised the taxes.', 'The goverment raised the taxes.',
                    'The slithy toves raised the taxes.']),
    dict(label='was or were', chosen=(0, 5), panel='readers',
         sentences=['The men on the hill were tired.', 'The man on the hills was tired.']),
    dict(label='did', chosen=(0, 1), panel='readers', sentences=['She did not want to go home.']),
    dict(label='a bank that lends', chosen=(0, 1), panel='influence',
         sentences=['The bank lent them money.', 'He swam to the other bank.'])]

SCRIPTS = 'elmo.js', 'speak.js', 'answers.js'

NODE = """
import fs from 'node:fs';
import * as E from './elmo.js';
import * as S from './speak.js';
import * as A from './answers.js';
const {value, places} = JSON.parse(fs.readFileSync('in.json'));
const json = name => JSON.parse(fs.readFileSync(name));
const tensors = name => {
  const b = fs.readFileSync(name);
  return E.readTensors(b.buffer.slice(b.byteOffset, b.byteOffset + b.length));
};
const box = () => new E.Elmo(tensors(places.box + '/model.safetensors'),
                             json(places.box + '/config.json').config);
const speaks = () => new S.Speaker(box(), tensors(places.box + '/output.safetensors'),
                                   json(places.box + '/vocab.json').itos);
const plain = layers => layers.map(l => l.map(v => Array.from(v)));
fs.writeFileSync('out.json', JSON.stringify((() => { CODE })()));
"""

ANSWERS = """
const speaker = speaks(), elmo = speaker.elmo, answers = {};
const stored = new A.Occurrences(tensors(places.live + '/occurrences.safetensors'),
                                 json(places.live + '/occurrences.json'));
for (const {sentences, chosen} of value) for (const panel of Object.keys(A.PANELS)) {
  const question = {panel, sentences: sentences.map(E.tokenize), chosen};
  answers[A.keyOf(question)] = A.PANELS[panel]({elmo, speaker, stored}, question);
}
return answers;
"""

def run(code, value=None):
    "What `code` returns, with the scripts of the page, the model in the box and `value` at hand"
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder)
        for name in SCRIPTS: shutil.copyfile(live/name, new/name)
        given = dict(value=value, places=dict(box=str(BOX), live=str(live)))
        (new/'package.json').write_text('{"type": "module"}', encoding='utf-8')
        (new/'in.json').write_text(json.dumps(given), encoding='utf-8')
        (new/'run.js').write_text(NODE.replace('CODE', code), encoding='utf-8')
        subprocess.run(['node', 'run.js'], cwd=new, check=True, timeout=300)
        return json.loads((new/'out.json').read_text(encoding='utf-8'))

def failures():
    """How many occurrences were labelled, and the pairs (occurrence, nearest occurrence of the
    same word) whose senses differ"""
    tensors, text = (load_file(live/'occurrences.safetensors'),
                     json.loads((live/'occurrences.json').read_text(encoding='utf-8')))
    first = np.cumsum([0, *map(len, text['at'])])
    rows = [(int(s), sense) for s,sense in text['senses'].items()]
    unit = tensors['vectors'][[first[s] for s,_ in rows]].astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    word = np.array([sense.split('/')[0] for _,sense in rows])
    cosines = np.where((word[:, None] == word) & ~np.eye(len(word), dtype=bool), unit @ unit.T, -2)
    def shown(i):
        return dict(text=text['sentences'][rows[i][0]], t=text['at'][rows[i][0]][0],
                    sense=rows[i][1])
    wrong = [[shown(i), shown(j)] for i,j in enumerate(cosines.argmax(1))
             if rows[i][1] != rows[j][1]]
    return dict(n=len(rows), wrong=wrong)

def words_of(elmo, n=5000):
    "Common words of small letters"
    return [w for w in elmo.vocab.itos if w.isascii() and w.isalpha() and w.islower()][:n]

@torch.no_grad()
def likes():
    "For each filter the three pieces of common words that it likes best"
    elmo, best = Elmo.from_pretrained('mini-en'), []
    words, encoder = words_of(elmo), elmo.lm.chars
    x = encoder.embed(torch.from_numpy(elmo.char_vocab.encode(words)).long()).transpose(1, 2)
    for conv in encoder.convs:
        scores, places = conv(x).max(-1)
        for fits,at in zip(scores.T, places.T):
            pieces = (f'‹{words[i]}›{" "*4}'[at[i]:][:conv.kernel_size[0]].strip()
                      for i in fits.argsort(descending=True).tolist())
            best.append(' '.join(itertools.islice(dict.fromkeys(filter(None, pieces)), 3)))
    return best

if __name__ == '__main__':
    words = json.loads((live/'occurrences.json').read_text(encoding='utf-8'))['words']
    found = {'examples': EXAMPLES, 'words': words, 'answers': run(ANSWERS, EXAMPLES),
             'failures': failures(), 'likes': likes()}
    text = json.dumps(found, ensure_ascii=False, separators=(',', ':'))
    (live/'stored.json').write_text(text, encoding='utf-8')
    print(f"{len(found['answers'])} answers, {len(found['failures']['wrong'])} of "
          f"{found['failures']['n']} beside another sense, {len(text)/1000:.0f} kB")
