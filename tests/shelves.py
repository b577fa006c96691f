"""Write the pages that open the studies and the library, nbs/studies/index.qmd and
nbs/library/index.qmd, from the sidebar, titles and descriptions of the pages:
`python tests/shelves.py [--check]`."""

import json, sys
from pathlib import Path
import yaml

root = Path(__file__).resolve().parent.parent
home = root/'nbs'
HEADS = dict(
    studies=('Studies',
             'Each page asks one question of the finished thing and answers it with numbers.',
             'Read them in any order. Each one names the lesson from which it grew.'),
    library=('The library, page by page',
             'How each part of the library is made, and why.',
             'The [reference](../reference/index.md) lists every public name with its arguments.'))
ASKED = dict(          # the question of each study, and its answer in one or two sentences
    belief=(
        'How does a perfect reader read?',
        "It keeps what may still come, with probabilities, and applies Bayes' rule after each "
        'word. What the toy language lacks is rare words.'),
    token_norm=(
        'What do the vectors of all words have in common?',
        'Before training, one large direction: it comes from the maximum over windows. Batch '
        'renormalisation removes it without a leak.'),
    large_vocabularies=(
        'How does one choose among a hundred thousand words?',
        'Exactly, a few rows at a time, which saves memory. Or with fewer scores: the adaptive '
        'softmax gives true perplexities, the sampled one is for training only.'),
    cost=(
        'Where does the time of a training step go?',
        'In the shape of the original, about two thirds of the operations are those of the LSTMs.'),
    speaking=(
        'Do both directions stumble at the same words?',
        'Rare words surprise both. With rarity taken out, the two hardly agree.'),
    state=(
        'With which state should a sentence begin?',
        'With that of its training: a model that was trained from zeros must be used from zeros.'),
    attention=(
        'Would attention do better than LSTMs?',
        'At this size and on a processor, LSTMs are better as language models, and attention is '
        'better for a tagger with forty sentences.'),
    explainer=(
        'What happens to a word on its way to a vector?',
        'In layer 0 equal letters give equal vectors. In layers 1 and 2 the same word moves with '
        'its sentence.'),
    learning_curves=(
        'How much tagged text does ELMo save?',
        'It adds 13 points to a tagger with 125 sentences of English web text, and about two with '
        '12,544.'),
    labels=(
        'Does a language model save labels?',
        'Alone and with few labels, none: counts of words are as good or better. Added to counts, '
        'it gains one or two points.'),
    scripts=(
        'Does the recipe for English fit ten other languages?',
        'Yes, all ten. What counts is the number of bytes per word, not the script.'),
    instead=(
        'When is ELMo the right choice, and when not?',
        'Often it is not: counts are faster, and a sentence transformer is better with few '
        'labels.'),
    probes=(
        'Which layer knows what?',
        'Layer 1 is best for parts of speech in all four models; layer 2 is ahead for senses in '
        'three of them.'),
    questions=(
        'What do people ask?',
        'Which accuracy a language model has, which cosine means "the same", what a vector says, '
        'and how much text is enough: each answered by a run of a few lines.'))

def sidebar(shelf):
    "The items of a shelf in the sidebar: file names, and dictionaries with the text of a group"
    contents = yaml.safe_load((root/'_quarto.yml').read_text(encoding='utf-8'))['website'][
        'sidebar']['contents']
    files = lambda o: [
        f for f in o.get('contents', []) if isinstance(f, str) and f.startswith(shelf + '/')]
    return next(o['contents'] for o in contents if files(o))

def title(file):
    "Title and description of a notebook"
    first = json.loads((home/file).read_text(encoding='utf-8'))['cells'][0]['source']
    lines = [o for o in ''.join(first).split('\n') if o.strip()]
    return lines[0].removeprefix('# '), lines[1].removeprefix('> ')

def card(file):
    "A card for a page: a study's question, answer and title; else the title and the description"
    name, (head, said) = Path(file).name, title(file)
    texts = [f'[{head}]({name})', said]
    if file.startswith('studies/'):
        question, answer = ASKED[Path(file).stem]
        texts = [f'<b>{question}</b>', answer, f'[{head}]({name})']
    return '::: {.elmo-card}\n' + '\n\n'.join(texts) + '\n:::\n'

def page(shelf):
    "The text of the page that opens a shelf"
    head, said, first = HEADS[shelf]
    about = f'title: "{head}"\ndescription: "{said}"\ntoc: false\npage-navigation: false'
    lines, opened = [f'---\n{about}\n---\n', first + '\n'], False
    for item in sidebar(shelf):
        if isinstance(item, dict):
            lines += ['::::\n']*opened + [f"## {item['text']}\n"]
            opened = False
        elif item.startswith(shelf + '/'):
            lines += ['::: {.elmo-shelf}\n'.replace(':::', '::::')]*(not opened) + [card(item)]
            opened = True
    return '\n'.join([*lines, '::::\n'])

def old():
    "The pages that are not what would be written now"
    return [home/shelf/'index.qmd' for shelf in HEADS if not (
        f := home/shelf/'index.qmd').is_file() or f.read_text(encoding='utf-8') != page(shelf)]

def write():
    for shelf in HEADS: (home/shelf/'index.qmd').write_text(page(shelf), encoding='utf-8')

if __name__ == '__main__':
    if '--check' not in sys.argv:
        write()
    elif found := old():
        raise SystemExit(f"Old: {', '.join(map(str, found))}. Run python tests/shelves.py")
