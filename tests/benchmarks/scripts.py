"""One recipe in ten languages and nine scripts: a small biLM of each treebank's own text, a tagger
with it and without it (study: One recipe, many scripts).

    # ten treebanks, up to four settings, three seeds: some fifteen minutes of one core
    python tests/benchmarks/scripts.py
    # does it work? Two treebanks, one seed, few steps; nothing is kept
    python tests/benchmarks/scripts.py --quick
    python tests/benchmarks/scripts.py --longer      # a check: twice the steps, on three treebanks
    python tests/benchmarks/scripts.py --treebanks UD_Finnish-TDT UD_Arabic-PADT --json mine.json

Each row is one treebank, one alphabet (bytes, or the letters of the training text), one `max_chars`
and one seed. A biLM reads the training part for a fixed number of batches; then the library's
tagger learns universal parts of speech from it, with the biLM's vectors beside word vectors, or
without. Accuracy is that on the test part. Two rivals: the commonest tag of each word, and a linear
model on the word, its beginnings and ends, and its neighbours. At most 10,000 words of a training
part and 6,000 of a test part are used. A smaller `max_chars` is tried where it cuts more than a
twentieth (16) or a fiftieth (25) of the test words. The treebanks come from ELMO_FASTAI_DATA or
../shared/data, or are downloaded.
"""
import json, os, platform, random, time
from pathlib import Path
from harness import RESULTS, fill, opt, options, read_figures, write_figures

FIGURES = RESULTS/'scripts.json'
TREEBANKS = ['en_ewt', 'da_ddt', 'vi_vtb', 'el_gud', 'hy_armtdp', 'ug_udt', 'ko_gsd', 'te_mtg',
             'th_tud', 'zh_gsdsimp']
SETTINGS = [('bytes', 50), ('letters', 50), ('bytes', 16), ('bytes', 25)]
# a `max_chars` that cuts fewer words of the test part is not tried
LEAST_CUT = {16: .05, 25: .02}
SHAPE = dict(char_dim=16, filters=((1,16), (2,32), (3,48)), proj_dim=64, hidden_dim=64, dropout=.1)
TAGGER = dict(words=32, hidden=48, dropout=.1, elmo_dropout=.1)
MOST_TRAIN = 10_000     # words
MOST_TEST = 6_000
MOST_VALID = 2_000

def arguments():
    return options(__doc__,
        treebanks=opt(TREEBANKS, nargs='+'),
        seeds=3,
        steps=opt(100, 'batches of 16 sentences that a biLM reads'),
        tag_steps=opt(200, 'batches that a tagger reads'),
        lr=2e-2,
        quick=False,
        longer=opt(False, 'rows with twice the steps, bytes and 50, three treebanks, in the file'),
        json=opt(FIGURES, 'file of the rows'))

# the data

def some(sents, most, seed=0):
    "Sentences in their order, drawn at random, of `most` words together; all if there are fewer"
    order = list(range(len(sents)))
    random.Random(seed).shuffle(order)
    chosen, n = [], 0
    for i in order:
        n += len(sents[i].tokens)
        if n > most: break
        chosen.append(i)
    return [sents[i] for i in sorted(chosen)]

def sentences_of(name):
    "The sentences of a treebank by split, and a remark where the one part it has was divided"
    from elmo_fastai.text.corpora import treebank
    from elmo_fastai.text.read import last_part, read_conll
    gold = {}
    for split,part in dict(train='train', valid='dev', test='test').items():
        for file in Path(os.environ.get('ELMO_FASTAI_DATA', '.')).glob(f'ud-*/{name}-ud-{part}.conllu'):
            gold[split] = read_conll(file)
    if not gold: gold = treebank(name).gold
    if {'train', 'valid'} <= gold.keys(): return gold, None
    there, missing = ('train', 'dev') if 'train' in gold else ('valid', 'train')
    parts = last_part(gold[there], valid=.1)
    n, m = len(parts['train']), len(parts['valid'])
    return gold | parts, (f"The treebank {name} has no part {missing}: of its part "
                          f"{'dev' if there == 'valid' else there} the first {n:,} sentences train, "
                          f"and the last {m:,} validate")

def load(name):
    "Some of the sentences of a treebank by split, and its remark"
    gold, remark = sentences_of(name)
    return dict(train=some(gold['train'], MOST_TRAIN), valid=some(gold['valid'], MOST_VALID),
                test=some(gold['test'], MOST_TEST)), remark

def facts(name, gold, remark):
    "What a treebank is like: sizes, lengths, shares of its test words"
    train = [token for sent in gold['train'] for token in sent.tokens]
    test = [token for sent in gold['test'] for token in sent.tokens]
    known = set(train)
    def share(found): return sum(found)/len(test)
    res = dict(treebank=name, remark=remark, sentences=len(gold['train']), words=len(train),
               distinct=len(known), test_words=len(test),
               letters=len(set(''.join(train))), letters_per_word=sum(map(len, test))/len(test),
               bytes_per_word=sum(len(token.encode()) for token in test)/len(test),
               new=share(token not in known for token in test))
    for most in (16, 25, 50):
        res[f'cut_bytes_{most}'] = share(len(token.encode()) > most-2 for token in test)
        res[f'cut_letters_{most}'] = share(len(token) > most-2 for token in test)
    return res

# the rivals

def features(tokens, i):
    "What the linear model knows of a word: itself, its beginnings and ends, its neighbours"
    word = tokens[i]
    found = {f'word={word}': 1, f'length={min(len(word), 10)}': 1,
             f'digit={any(map(str.isdigit, word))}': 1,
             f'upper={word[:1].isupper()}': 1, f'sign={not any(map(str.isalnum, word))}': 1}
    for n in range(1, 5):
        found[f'begins={word[:n]}'] = 1
        found[f'ends={word[-n:]}'] = 1
    for step in (-2, -1, 1, 2):
        other = tokens[i+step] if 0 <= i+step < len(tokens) else '<end>'
        found[f'{step}={other}'] = 1
        if abs(step) == 1:
            found[f'{step} begins={other[:2]}'] = 1
            found[f'{step} ends={other[-2:]}'] = 1
    return found

def rows_of(sents):
    return [features(sent.tokens, i) for sent in sents for i in range(len(sent.tokens))]
def tags_of(sents): return [tag for sent in sents for tag in sent.tags]

def rivals(gold):
    "Predictions of the commonest tag and of the linear model for the test part"
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.svm import LinearSVC
    from pages import page
    commonest = page('course/11_tagger').CommonestTag(gold['train'])
    vectorizer = DictVectorizer()
    def matrix(sents):
        x = vectorizer.transform(rows_of(sents))
        x.indices = x.indices.astype('int32')           # LinearSVC takes no others
        x.indptr = x.indptr.astype('int32')
        return x
    vectorizer.fit(rows_of(gold['train']))
    linear = LinearSVC(C=.3, random_state=0).fit(matrix(gold['train']), tags_of(gold['train']))
    return dict(commonest=[tag for sent in gold['test'] for tag in commonest(sent.tokens)],
                linear=linear.predict(matrix(gold['test'])).tolist())

def accuracy(guesses, gold):
    "(accuracy on all test words, accuracy on those that the training part lacks)"
    known = {token for sent in gold['train'] for token in sent.tokens}
    tokens = [token for sent in gold['test'] for token in sent.tokens]
    right = [guess == tag for guess, tag in zip(guesses, tags_of(gold['test']), strict=True)]
    new = [r for r, token in zip(right, tokens) if token not in known]
    return sum(right)/len(right), sum(new)/len(new)

# the models

def chars_of(kind, max_chars, gold):
    from elmo_fastai.tokens import ByteCharVocab, CharVocab
    if kind == 'bytes': return ByteCharVocab(max_chars)
    return CharVocab.build([sent.tokens for sent in gold['train']], max_chars=max_chars)

def fit(learn, steps, lr):
    "Train for `steps` batches in one cycle, whatever an epoch has"
    from fastai.basics import Callback, CancelFitException, CancelValidException
    from fastai.callback.schedule import combined_cos
    rate = combined_cos(.25, lr/25, lr, lr/1e5)
    class Cycle(Callback):
        "The rate of one cycle by steps, which may end within an epoch"
        def before_validate(self): raise CancelValidException()
        def before_batch(self): self.opt.set_hyper('lr', float(rate(self.train_iter/steps)))
        def after_batch(self):
            if self.train_iter >= steps: raise CancelFitException()
    epochs = -(-steps//len(learn.dls.train))
    with learn.no_bar(), learn.no_logging(): learn.fit(epochs, lr, cbs=Cycle())
    assert learn.train_iter == steps, learn.train_iter

def pretrain(gold, chars, seed, args):
    "A biLM of the training part's text, and its perplexity on the validation part"
    from fastai.torch_core import set_seed
    from elmo_fastai.all import BiLMConfig, Elmo, ElmoDataLoaders, bilm_learner
    from elmo_fastai.learner import evaluate
    from elmo_fastai.text.read import Corpus
    corpus = Corpus.from_gold('text', dict(train=gold['train'], valid=gold['valid']))
    set_seed(seed)
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=16, min_freq=2, char_vocab=chars,
                                      seed=seed, device='cpu')
    learn = bilm_learner(dls, BiLMConfig('small', n_chars=chars.n_chars, max_chars=chars.max_chars,
                                         **SHAPE), bf16=False)
    fit(learn, args.steps, args.lr)
    return Elmo(learn.model, dls.vocab).eval(), evaluate(learn.model, dls.valid)['mean']

def all_tags(gold):
    "All tags of a treebank: a part may lack one"
    return sorted({tag for part in gold.values() for sent in part for tag in sent.tags})

def tag(gold, chars, elmo, seed, args):
    "Predictions of a tagger for the test part"
    from fastai.torch_core import set_seed
    from elmo_fastai.tagger import TagDataLoaders
    from elmo_fastai.tagger import elmo_tagger_learner
    set_seed(seed)
    dls = TagDataLoaders.from_sents(gold['train'], gold['valid'], vocab=all_tags(gold), bs=16,
                                    char_vocab=chars, tokenizer='space', device='cpu')
    learn = elmo_tagger_learner(dls, elmo, 'input' if elmo else None, **TAGGER)
    fit(learn, args.tag_steps, args.lr)
    tagged = learn.tag([sent.tokens for sent in gold['test']])
    return [tag for sent in tagged for _, tag in sent]

def train_row(gold, chars, max_chars, seed, args):
    "A row of figures; `chars` is 'bytes', 'letters', or 'none' for the tagger without a biLM"
    start = time.process_time()
    row = {}
    elmo = None
    alphabet = chars_of('bytes' if chars == 'none' else chars, max_chars, gold)
    if chars != 'none':
        elmo, row['perplexity'] = pretrain(gold, alphabet, seed, args)
        row['n_chars'] = alphabet.n_chars
    row['accuracy'], row['accuracy_new'] = accuracy(tag(gold, alphabet, elmo, seed, args), gold)
    return row | dict(seconds=round(time.process_time() - start, 1))

def jobs(args, facts):
    "(treebank, alphabet, max_chars, seed) of all rows; those with most bytes per letter come first"
    def width(name): return facts[name]['bytes_per_word']/facts[name]['letters_per_word']
    widest = sorted(args.treebanks, key=width, reverse=True)
    res = [(name, 'none', 50) for name in args.treebanks]
    res += [(name, 'bytes', 50) for name in args.treebanks]
    if not args.longer:
        res += [(name, *setting) for name in widest
                for setting in SETTINGS[:2 if args.quick else 4]]
    tried = [job for job in dict.fromkeys(res) if job[2] == 50
             or facts[job[0]][f'cut_{job[1]}_{job[2]}'] >= LEAST_CUT[job[2]]]
    return [(*job, seed) for job in tried for seed in range(args.seeds)]

def main(args):
    import torch, sklearn
    torch.set_num_threads(1)
    if args.quick:
        args.seeds = 1
        args.steps = args.tag_steps = 20
        args.treebanks = args.treebanks[:2]
    if args.longer:
        args.treebanks = ['en_ewt', 'te_mtg', 'zh_gsdsimp']
        args.steps *= 2
        args.tag_steps *= 2
    found = dict(treebanks=[], rows=[], longer=[])
    if not args.quick: found = read_figures(args.json, found)
    rows = found['longer' if args.longer else 'rows']
    found |= dict(shape=SHAPE, tagger=TAGGER, most_train=MOST_TRAIN, most_test=MOST_TEST,
                  torch=torch.__version__, scikit_learn=sklearn.__version__,
                  machine=platform.machine())
    if not args.longer: found |= dict(steps=args.steps, tag_steps=args.tag_steps, lr=args.lr)
    def save(): write_figures(None if args.quick else args.json, found)
    golds = {}
    for name in args.treebanks:
        golds[name], remark = load(name)
        if any(row['treebank'] == name for row in found['treebanks']): continue
        about = facts(name, golds[name], remark)
        for rival, guesses in rivals(golds[name]).items():
            about[rival], about[f'{rival}_new'] = accuracy(guesses, golds[name])
        found['treebanks'].append(about)
        print(json.dumps(about, ensure_ascii=False), flush=True)
        save()
    about = {row['treebank']: row for row in found['treebanks']}
    keys = [dict(zip(('treebank', 'chars', 'max_chars', 'seed'), job)) for job in jobs(args, about)]
    def make(treebank, **kw): return train_row(golds[treebank], args=args, **kw)
    fill(rows, keys, make, save)
    print(f"{sum(row['seconds'] for row in rows)/60:.1f} minutes of one core")

if __name__ == '__main__': main(arguments())
