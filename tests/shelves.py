"""Write the pages that open the studies and the library, nbs/studies/index.qmd and
nbs/library/index.qmd, from the sidebar
and from the titles and descriptions of the pages: `python tests/shelves.py [--check]`."""

import json, sys
from pathlib import Path
import yaml

root = Path(__file__).resolve().parent.parent
home = root/'nbs'
HEADS = dict(
    studies=(
        'Studies',
        'Each page asks one question of the finished thing and answers it with numbers.',
        'Read them in any order. Each one names the lesson from which it grew.',
    ),
    library=(
        'The library, page by page',
        'How each part of the library is made, and why.',
        'The [reference](../reference/index.md) lists every public name with its arguments.',
    ),
)
QUESTIONS = dict(
    token_norm='What do the vectors of all words have in common?',
    large_vocabularies='How does one choose among a hundred thousand words?',
    cost='Where does the time of a training step go?',
    speaking='Which words surprise a language model?',
    state='With which state should a sentence begin?',
    attention='Would attention do better than LSTMs?',
    explainer='What happens to a word on its way to a vector?',
    learning_curves='How much tagged text does ELMo save?',
    labels='How many labels is a language model worth?',
    scripts='Does the recipe for English fit ten other languages?',
    instead='When is ELMo the right choice, and when not?', probes='Which layer knows what?')


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
    "A card for a page: its question where it has one, its title, its description"
    name, (head, said) = Path(file).name, title(file)
    asked = QUESTIONS.get(Path(file).stem, '') if file.startswith('studies/') else ''
    question = f'<b>{asked}</b>\n\n' if asked else ''
    return f'::: {{.elmo-card}}\n{question}[{head}]({name})\n\n{said}\n:::\n'

def page(shelf):
    "The text of the page that opens a shelf"
    head, said, first = HEADS[shelf]
    lines, opened = ([
        f'---\ntitle: "{head}"\ndescription: "{said}"\ntoc: false\npage-navigation: false\n---\n',
        first + '\n'], False)
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
