"""The text that the model in the box has read: novels, plays, an encyclopedia, one sentence a line

Files of many hands are repaired on the way: wrapped lines, lost apostrophes, text that was
tokenised before. nbs/data/books.csv lists the novels, with a checksum of each."""
import csv, re
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from elmo_fastai.errors import require
from elmo_fastai.text.corpora import local_copy, retrieve, shakespeare_text, wikitext2
from elmo_fastai.text.read import LINE_END, Corpus, lines_of

TITLES = '|'.join("""
Mr Mrs Ms Messrs Dr St Ste Rev Hon Col Capt Gen Lieut Lt Maj Sergt Sgt Prof Mme Mlle Mdlle Sen Rep
Gov Jan Feb Aug Sept Oct Nov Dec vs viz cf Mt Ft""".split())
VERBS = '|'.join("""
said says cried asked answered replied returned exclaimed whispered murmured shouted called
continued added began went remarked observed repeated muttered demanded inquired enquired screamed
growled sighed laughed echoed pursued suggested interrupted responded retorted rejoined
protested""".split())

# here a sentence may end:
END = re.compile(r'(?:[.?!]+["\')\]]*|- ?["\'])(?=\s+["\'(\[]*[A-Z0-9])')
# not after Mr. or J. or U.S.; not in No. 5; not in "Oh!" Mary said
ABBREVIATION = re.compile(rf'["\'(\[]*(?:(?i:{TITLES})|[A-HJ-Z]|(?:[A-Za-z]\.)+[A-Za-z])\.')
NUMBER = re.compile(r'["\'(\[]*(?:Nos?|[Pp]p?|[Vv]ol|[Cc]h(?:ap)?|[Ff]igs?)\.')
SAID = re.compile(
    rf'\s+(?:I|(?:[A-Z][\w\'-]*\.? ){{0,3}}[A-Z][\w\'-]*) (?:\w+ly )?(?:{VERBS})\b')

def goes_on(text, start, mark):
    "Does the sentence from `start` go on after `mark`, where it may end?"
    end = mark.end()
    word = text[max(start, text.rfind(' ', start, end) + 1):end]
    if ABBREVIATION.fullmatch(word): return True
    if NUMBER.fullmatch(word) and text[end:end+2].strip().isdigit(): return True
    is_closing_quote = mark[0][0] != '.' and mark[0][-1] in '"\''
    return is_closing_quote and bool(SAID.match(text, end))

def split_sentences(
    paragraph:str, # running text in one line
)->list:           # its sentences, in order; nothing but white space between them is lost
    "Split where a sentence ends, as far as punctuation and capitals tell"
    sents = []
    start = 0
    for mark in END.finditer(paragraph):
        if goes_on(paragraph, start, mark): continue
        sents.append(paragraph[start:mark.end()].strip())
        start = mark.end()
    sents.append(paragraph[start:].strip())
    return [sent for sent in sents if sent]

PART = re.compile(
    r'\W*(?:(?i:chapter|book|part|phase|volume|epoch) (?:[IVXLC]+|\d+|[Tt]he \w+|One|Two|Three'
    r'|Four|Five|Six)\b.{0,60}|[IVXLC\d]+[.:]?)')

def is_heading(line):
    "Is this line a heading, a number of a chapter, or an ornament?"
    if PART.fullmatch(line) and line[-1] not in ',;': return True
    return not any(c.islower() for c in line) and not re.search(r'[?!"\']$', line)

def is_closed(line):
    "Does this line end with the end of a sentence?"
    is_stop = bool(re.search(r'[.?!]["\')]*$', line))
    return is_stop and not ABBREVIATION.fullmatch(line.split(' ')[-1])

def joined(first, second, words):
    "Two lines as one; a word that was cut is put together if it is among `words`"
    head = re.search('[A-Za-z]+$', first[-30:-1]) if first[-1] == '-' else None
    tail = re.match('[a-z]+', second)
    if not head or not tail: return f'{first} {second}'
    is_word = (head[0] + tail[0]).lower() in words
    return (first[:-1] if is_word else first) + second

def paragraphs(
    text:str, # of a book, hard-wrapped or not, with or without blank lines between paragraphs
)->list:      # paragraphs, each in one line
    "Put the lines of a file together to paragraphs; headings are left out"
    lines = [' '.join(line.split()) for line in LINE_END.split(text)]
    words = set(re.findall('[a-z]+', text.lower()))
    lens = sorted(len(line) for line in lines if line)
    if not lens: return []
    is_wrapped = lens[len(lens)//2] < 80
    width = lens[int(len(lens)*.9)]
    res = []
    is_inside = False         # is the paragraph of the line before still going on?
    for line, after in zip(lines, [*lines[1:], '']):
        if not line or is_heading(line):
            is_inside = False
            continue
        if is_inside or res and line[0].islower() and not is_closed(res[-1]):
            res[-1] = joined(res[-1], line, words)
        else: res.append(line)
        has_room = len(line) + 1 + len(after.split(' ')[0]) < width - 6   # for the next word
        is_inside = is_wrapped and not (has_room and is_closed(line))
    return res

def clean_book(text):
    "Mend what happened to the texts on their way through computers"
    text = text.replace('`', "'").replace('_', '')                  # quotes; marks of italics
    text = re.sub(r'(?<=[a-z])\?(?=[a-z])', '-', text)              # hyphens that were lost
    text = re.sub(r'\.(?: \.){2,}', '...', text)
    text = re.sub(r'(\w)[ \t]+([,;.?!])(?![.\w])', r'\1\2', text)   # where brackets were lost
    lost = (r"(?<=[A-Za-z]) (?=(?:s|t|d|m|ll) )|(?<=\bwe) (?=re )"
            r"|(?<=[\" ])(?=(?:Tis|Twas)\b)")
    text = re.sub(lost, "'", text)                                  # apostrophes were, too
    return re.sub('(?<=[a-z]-) (?!(?:and|or|to)\\b)(?=[a-z])', '', text)    # self- importance

def is_title(sent):
    "Is this a line of words with capitals, without a stop?"
    return sent[-1].isalnum() and all(w[0].isupper() or len(w) < 4 for w in sent.split())

def book_sentences(
    text:str,      # of the file
    start:str='',  # where the story begins; what stands before is left out
)->list:
    "The sentences of a book; headings and titles are left out"
    begin = text.find(start)
    require(begin >= 0, f"the text has no {start!r}, where the book should begin")
    story = clean_book(text[begin:])
    sents = [sent for paragraph in paragraphs(story) for sent in split_sentences(paragraph)]
    return [re.sub(r'^(["\']) ', r'\1', sent) for sent in sents if not is_title(sent)]

class Book(NamedTuple):
    "A row of the table"
    name:str
    author:str
    title:str
    year:int
    start:str    # where the story begins
    held:bool    # is it held out?
    sha256:str

def read_books(path):
    "The books of the table"
    rows = csv.DictReader(Path(path).read_text(encoding='utf-8').splitlines())
    return [Book(**row | dict(year=int(row['year']), held=bool(row['held']))) for row in rows]

BOOKS = read_books(Path(__file__).resolve().parents[1]/'nbs'/'data'/'books.csv')

NOVELS = ('https://raw.githubusercontent.com/computationalstylistics/100_english_novels/'
          '143e601875d70e195f2cc5ebd8b034609271194d/corpus/')

def book_file(
    book,      # one of `BOOKS`
    root=None, # a folder with the files, some in its `valid` or in `…-more` beside; None: the web
)->Path:
    "The file of a book"
    name = f'{book.name}.txt'
    if root is None: return Path(retrieve('novels', NOVELS + name, f'sha256:{book.sha256}'))
    root = root.resolve()
    folders = root, root/'valid', root.with_name(f'{root.name}-more')
    found = [folder/name for folder in folders if (folder/name).is_file()]
    require(found, f"the folder '{root}' has no {name}, and neither has a folder 'valid' in it or "
                   f"'{root.name}-more' beside it; it needs the files of all {len(BOOKS)} books")
    return found[0]

def novels(
    path=None, # a local copy: a folder with the files, those held out there or in `valid`
)->Corpus:
    "Novels of 1839-1930, public domain in the US, one sentence a line; 'valid' is whole books"
    root = local_copy('novels', path)
    require(root is None or root.is_dir(), f"there is no folder '{root}'")
    splits = dict(train=[], valid=[])
    for book in BOOKS:
        file = book_file(book, root)
        digest = sha256(file.read_bytes()).hexdigest()
        require(digest == book.sha256,
                f"'{file}' is not the text of {book.title} that was meant: "
                f"its SHA-256 is {digest[:12]}…, expected {book.sha256[:12]}…")
        sents = book_sentences(''.join(lines_of(file)), book.start)
        splits['valid' if book.held else 'train'] += sents
    return Corpus('novels', splits)

def speeches(
    text:str, # of plays: blocks with blank lines between them, the first line says who speaks
)->list:      # sentences
    "What is said in plays, sentence by sentence; who says it is left out"
    sents = []
    for block in re.split(r'\n\s*\n', LINE_END.sub('\n', text)):
        lines = [' '.join(line.split()) for line in block.split('\n') if line.strip()]
        if lines and lines[0].endswith(':'): del lines[0]
        sents += split_sentences(' '.join(line for line in lines if not is_heading(line)))
    return sents

SHORT = re.compile(r"'(?:s|t|re|ve|ll|d|m)")
INCHES = re.compile(r'\d{1,3}(?:[.,/]\d+)?')
# a capital or a sign, a small word, two spaces, an end
WHOLE = re.compile(r'[^a-z].*\s[a-z]+\b.*\s.*[.?!]["\')\]]*')

def rejoined(line):
    "The tokens of a line, with numbers, hyphens and apostrophes put together"
    line = re.sub(r"\bO '(?=[A-Z])", "O'", line)
    line = re.sub(r" ’ (?=(?:s|t|re|ve|ll|d|m) )", " '", line)
    line = re.sub(' @([-,.])@ ', r'\1', line)
    return re.sub(r'(\d) : (\d)', r'\1:\2', line).split()

def quotes(
    toks:list, # of a paragraph
)->list:       # 1 where a token opens a quotation, −1 where it closes one, 0 elsewhere
    "Which quotation marks open, and which close? By turns, but for what stands beside them"
    marks = []
    is_inside = False
    for before, token, after in zip(['', *toks], toks, [*toks[1:], '']):
        is_number = not is_inside and INCHES.fullmatch(before)
        if token != '"' or is_number and not re.match('[A-Z"<]', after):
            marks.append(0)
            continue
        ends = after in ('', *',.;:)?!')
        begins = before in ('', '(', '[', ':')
        # a mark that was forgotten turns round one sentence, not all that follow
        is_inside = begins if begins != ends else not is_inside
        marks.append(1 if is_inside else -1)
    return marks

def closes(token, sent, mark):
    "Does `token` stand without a space before it?"
    if token in ',.;:?!%)]' or SHORT.fullmatch(token): return True
    return mark < 1 if token == '"' else token == "'" and sent.endswith('s')

def undo_wikitext(
    line:str, # of WikiText, tokenised
)->list:      # its sentences as ordinary text
    "Turn WikiText's tokens back to text, and split it where a full stop stands alone"
    toks = rejoined(line)
    marks = quotes(toks)
    sents = ['']
    is_glued = True        # does the next token follow without a space?
    neighbours = zip(['', *toks], [*toks[1:], ''], [*marks[1:], 0])
    for token, mark, (before, after, next_mark) in zip(toks, marks, neighbours):
        sents[-1] += token if is_glued or closes(token, sents[-1], mark) else ' ' + token
        is_glued = token in '([$£' or mark == 1
        stops = token in '.?!' and before not in ('c', 'ca', 'fl', 'ser', 'No')
        has_ended = stops or (token in ')]' or mark == -1) and before in ('.', '?', '!')
        if has_ended and next_mark != -1 and re.match(r'["(\[A-Z0-9<]', after):
            sents.append('')
            is_glued = True
    return [sent for sent in sents if sent]

def wikitext_sentences(
    lines,         # of WikiText
    max_unk:int=1, # leave out sentences with more unknown words than that
)->list:
    "The whole sentences of WikiText as ordinary text; headings, lists and tables are left out"
    text = [line for line in lines if not re.match(r'=.*=$', line)]
    sents = [sent for line in text for sent in undo_wikitext(line)]
    return [sent for sent in sents if sent.count('<unk>') <= max_unk and WHOLE.fullmatch(sent)]

def english(
    path=None, # a local copy: a folder with novels, tiny_shakespeare and wikitext-2
)->Corpus:
    "Novels, plays, Wikipedia: what the model in the box has read. 'valid' is two whole novels"
    def folder(name): return None if path is None else Path(path).expanduser()/name
    books = novels(folder('novels'))
    wiki = wikitext2(folder('wikitext-2'))
    plays = LINE_END.sub('\n', shakespeare_text(folder('tiny_shakespeare')))
    end = plays.rfind('\n\n', 0, int(len(plays)*.9))     # the last tenth is held out
    train = books.train + speeches(plays[:end]) + wikitext_sentences(wiki.train)
    return Corpus('english', dict(train=train, valid=books.valid, plays=speeches(plays[end:]),
                                  wiki=wikitext_sentences(wiki.valid)))

