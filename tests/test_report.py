"""The report: senses of constructed vectors, vectors that stand beside their words, the text and
the picture"""

import io, json, math
from types import SimpleNamespace
from collections import Counter
from dataclasses import replace

import matplotlib
matplotlib.use('agg')
import matplotlib.pyplot as plt, numpy as np, pytest, torch

from elmo_fastai.base.look import SENSE_COLOURS
from elmo_fastai.text.corpora import Corpus, toy_corpus
from elmo_fastai.text.ngrams import KneserNey
from elmo_fastai.nn.bilm import BiLM, BiLMConfig, evaluate
from elmo_fastai.data.batches import SentenceDataLoader
from elmo_fastai.data.encoded import EncodedText, TokenTypes
from elmo_fastai.data.loaders import ElmoDataLoaders
from elmo_fastai.text.tokens import ByteCharVocab, CharVocab, WordVocab
from elmo_fastai.train import report
from elmo_fastai.train.report import (
    Tokens, baselines, make_report, report_figure, report_text, save_report, sense_accuracy,
    sense_vectors, share_lines, shares, text_shares, token_vectors)

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)

@pytest.fixture(autouse=True)
def no_figure_stays(): yield; plt.close('all')

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=400, n_valid=120, n_test=0, n_unseen=0)

@pytest.fixture(scope='module')
def dls(corpus):
    return ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=32, seed=0, device='cpu')


@pytest.fixture(scope='module')
def model(dls):
    torch.manual_seed(0)
    return BiLM(CFG, len(dls.vocab)).eval()

@pytest.mark.parametrize('mode', [True, False])
def test_a_report_leaves_the_model_in_its_mode(mode, model, dls, corpus):
    model.train(mode)
    model.chars.train(not mode)
    before = [m.training for m in model.modules()]
    assert make_report(model, dls, corpus)['sense_accuracy']
    assert before == [m.training for m in model.modules()]
    some = token_vectors(model, [o.tokens for o in corpus.gold['valid'][:40]], dls.types, bs=8)
    next(some)
    some.close()                                                        # left early
    assert before == [m.training for m in model.modules()]
    model.eval()

def test_counting_reads_the_tokens_of_the_loaders():
    "Loaders may split a corpus otherwise than it says itself"
    lines = ["the bank, isn't it?", "the river's bank."]*30
    def made(name): return Corpus('c', dict(train=lines, valid=lines, test=lines[:4]), name)
    def figures(corpus, **kwargs):
        loaders = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=8, device='cpu', **kwargs)
        torch.manual_seed(0)
        return make_report(BiLM(CFG, len(loaders.vocab)).eval(), loaders, corpus)
    a, b = figures(made('space'), tokenizer='words'), figures(made('words'))
    assert a['trigram'] == pytest.approx(b['trigram']) and a['unigram'] == pytest.approx(b['unigram'])
    assert a['test_predictions'] == b['test_predictions'] > figures(made('space'))['test_predictions']

# senses of vectors that we make: layer 0 knows the word, layer 1 knows the sense, layer 2 knows
# nothing

def made(counts, seed=0, words='bank bat spring'.split(), D=12):
    "`Tokens` with `counts` occurrences of each sense"
    rng, parts = np.random.default_rng(seed), []
    for k,w in enumerate(words):
        senses = np.repeat([f'{w}/{i}' for i in range(len(counts))], counts)
        v = rng.normal(size=(len(senses), 3, D))
        v[:,0] = np.eye(D)[k]
        v[:,1] = .01*v[:,1] + np.eye(D)[k] + np.array([np.eye(D)[6+int(s[-1])] for s in senses])
        order = rng.permutation(len(senses))
        parts.append(Tokens(np.repeat(w, len(v)), senses[order], np.arange(len(v)), v[order]))
    return together(*parts)

def together(*parts):
    "The `Tokens` of all parts"
    return Tokens(*(np.concatenate(column) for column in zip(*(vars(p).values() for p in parts))))

NONE = Tokens(*[np.array([])]*4)

@pytest.mark.parametrize('counts', [(1, 1), (40, 40), (90, 10), (10, 90), (50, 30, 20)])
def test_what_can_be_told_is_told(counts):
    acc, commonest, by_word = sense_accuracy(made(counts), made(counts, seed=1))
    assert commonest == max(counts)/sum(counts)
    # one point a word: its commonest sense; what tells all apart; noise
    assert acc.shape == (3,) and acc[0] == commonest and acc[1] == 1
    assert acc[2] < .8 or sum(counts) == 2
    assert set(by_word) == {'bank', 'bat', 'spring'}
    np.testing.assert_allclose(np.mean(list(by_word.values()), 0), [*acc, commonest])

def test_rounding_does_not_choose_a_sense():
    "Layer 0 differs in the last bits from sentence to sentence, and is the baseline all the same"
    def rounded(seed):
        tokens = made((30, 50, 20), seed)
        noise = np.random.default_rng(seed).normal(size=tokens.vectors.shape)
        return replace(tokens, vectors=tokens.vectors + 1e-7*noise)
    acc, commonest, _ = sense_accuracy(rounded(0), rounded(1))
    assert acc[0] == commonest == .5

def test_noise_is_near_chance():
    acc,*_ = sense_accuracy(made((400, 400)), made((400, 400), seed=1))
    assert abs(acc[2] - .5) < .06

def test_a_loud_direction_decides_nothing():
    """One coordinate in which all words vary a lot says nothing about senses, and must not drown
    those that do"""
    seen, held_out = made((40, 40)), made((40, 40), seed=1)
    for tokens in (seen, held_out):
        tokens.vectors[:,1,11] += 5*np.random.default_rng(80).normal(size=len(tokens))
    assert sense_accuracy(seen, held_out)[0][1] > .95

def test_scale_and_turn_do_not_matter():
    seen, held_out = made((60, 30)), made((60, 30), seed=1)
    q,_ = np.linalg.qr(np.random.default_rng(5).normal(size=(12, 12)))
    turned = [replace(t, vectors=1e3*(t.vectors@q) + 7) for t in (seen, held_out)]
    found, same = sense_accuracy(*turned)[0], sense_accuracy(seen, held_out)[0]
    np.testing.assert_allclose(found[1:], same[1:], atol=.02)

def test_the_baseline_is_that_of_the_training_text():
    _,commonest,_ = sense_accuracy(made((90, 10)), made((10, 90), seed=1))
    # the sense that was commonest where the means come from
    assert commonest == .1

def test_unseen_senses_count_and_unknown_words_do_not():
    seen, held_out = made((40, 40)), made((40, 40, 20), seed=1)
    acc, commonest, _ = sense_accuracy(seen, held_out)
    # a sense without a mean is always wrong
    assert acc[1] == pytest.approx(.8) and commonest == pytest.approx(.4)
    alone = together(made((40, 40), seed=1), made((30, 30), seed=2, words=['novel']))
    assert set(sense_accuracy(seen, alone)[2]) == set(seen.words)
    one_sense = together(seen[seen.words != 'bat'], made((40,), words=['bat']))
    assert set(sense_accuracy(one_sense, made((40, 40), seed=1))[2]) == {'bank', 'spring'}

@pytest.mark.parametrize('seen,held_out', [
    (NONE, NONE), (made((5, 5)), NONE), (NONE, made((5, 5))), (made((5,)), made((5,))),
    (made((5, 5), words=['a']), made((5, 5), words=['b']))])
def test_nothing_to_ask(seen, held_out):
    with pytest.raises(ValueError, match='ambiguous'):
        sense_accuracy(seen, held_out)


# vectors

def test_token_vectors_are_those_of_each_sentence_alone(model, dls):
    sents = [o.split() for o in dls.corpus.valid[:20]] + [
        ['the', 'bank'], ['the', 'bank'], ['never-seen-before']]
    for bs in (1, 7, 100):
        found = dict(token_vectors(model, sents, dls.types, bs=bs))
        assert sorted(found) == list(range(len(sents)))
        for i,s in enumerate(sents):
            assert found[i].shape == (3, len(s), 2*CFG.proj_dim) and found[i].dtype == np.float32
            chars = SentenceDataLoader(EncodedText([s], dls.types), bs=1).one_batch()[0]
            with torch.no_grad(): layers = [torch.cat(both, -1) for both in model.encode(chars)]
            alone = torch.stack(layers)[:, 0, 1:-1]
            np.testing.assert_allclose(found[i], alone, atol=1e-5)
            fwd, bwd = np.split(found[i][0], 2, -1)
            np.testing.assert_allclose(fwd, bwd, atol=1e-5)


def test_sense_vectors_belong_to_their_words(model, corpus, dls):
    gold = corpus.gold['valid']
    found = sense_vectors(model, gold, dls.types)
    said = [(word, sense) for sent in gold for word,sense in zip(sent.tokens, sent.senses) if sense]
    assert Counter(zip(found.words.tolist(), found.labels.tolist())) == Counter(said)
    alone = dict(token_vectors(model, [sent.tokens for sent in gold], dls.types))
    for k in range(0, len(found), 7):
        places = [t for t,word in enumerate(gold[found.sent[k]].tokens) if word == found.words[k]]
        vectors = [alone[found.sent[k]][:, t] for t in places]
        assert any(np.allclose(vector, found.vectors[k], atol=1e-5) for vector in vectors)


# baselines

def test_baselines_are_ordered_and_mirror_each_other(corpus, dls):
    b = baselines(corpus, dls)
    assert set(b) == {'unigram', 'trigram', 'trigram_bwd'}
    assert corpus.floor('valid') < b['trigram'] < b['unigram'] < len(dls.vocab)
    lines = {split: [' '.join(reversed(line.split())) for line in some]
             for split,some in corpus.splits.items() if some}
    m = baselines(Corpus('mirror', lines, tokenizer='space'), dls)
    swapped = dict(unigram=b['unigram'], trigram=b['trigram_bwd'], trigram_bwd=b['trigram'])
    assert m == pytest.approx(swapped)


def test_baselines_count_what_the_model_predicts(corpus, dls, model):
    """The same number of predictions and the same outcomes, so the perplexities may stand side by
    side"""
    ids = [dls.vocab.encode(o.split()) for o in corpus.valid]
    assert sum(len(o)+1 for o in ids) == evaluate(model, dls.valid)['predictions']
    train = [dls.vocab.encode(o.split()) for o in corpus.train]
    # all entries but the padding and the beginning
    uniform = KneserNey(1, vocab_size=len(dls.vocab)-2).fit(train)
    assert baselines(corpus, dls)['unigram'] <= uniform.perplexity(ids)*(1+1e-9)

def test_a_cut_text_is_judged_by_what_is_left_of_it(corpus, model, dls):
    """Counting and the model answer the same questions; the floor is that of whole sentences, and
    is not said"""
    cut = ElmoDataLoaders.from_corpus(corpus, vocab=dls.vocab, bs=32, max_words=4, device='cpu')
    n = sum(min(len(line.split()), 4) + (len(line.split()) <= 4) for line in corpus.valid)
    r = make_report(model, cut, corpus)
    assert r['predictions'] == n < evaluate(model, dls.valid)['predictions']
    assert r['floor'] is None and r['ratio_to_floor'] is None and r['sense_accuracy']
    assert f'{n:,} held-out predictions' in report_text(r)
    train, valid = [[dls.vocab.encode(line.split()) for line in lines]
                    for lines in (corpus.train, corpus.valid)]
    for name,backward in dict(trigram=False, trigram_bwd=True).items():
        ppls = []
        for modified in (True, False):
            counting = KneserNey(3, len(dls.vocab) - 2, modified, backward).fit(train)
            logps = [counting.logp(ids) for ids in valid]          # in the order of reading
            kept = [(p[-4:] if backward else p[:4]) if len(p) > 5 else p for p in logps]
            assert sum(map(len, kept)) == n
            ppls.append(np.exp(-np.concatenate(kept).mean()))
        assert r[name] == pytest.approx(min(ppls))

# the report

def test_report_of_the_toy_corpus(corpus, dls, model):
    r = make_report(model, dls, corpus)
    exact = evaluate(model, dls.valid)
    for k in ('fwd', 'bwd', 'mean'): assert r[f'perplexity_{k}'] == exact[k]
    assert r['floor'] == corpus.floor('valid')
    assert r['ratio_to_floor'] == pytest.approx(exact['mean']/r['floor'])
    assert list(r['sense_accuracy']) == ['layer0', 'layer1', 'layer2']
    seen, held_out = (sense_vectors(model, corpus.gold[k], dls.types) for k in ('train', 'valid'))
    acc, commonest, _ = sense_accuracy(seen, held_out)
    assert list(r['sense_accuracy'].values()) == pytest.approx(list(acc))
    assert r['sense_baseline'] == pytest.approx(commonest)
    assert json.loads(json.dumps(r)) == r                   # plain numbers

def test_report_of_other_text(dls, model, corpus):
    r = make_report(model, dls, Corpus('mine', corpus.splits, tokenizer='space'))
    assert r['corpus'] == 'mine'
    for k in ('floor', 'ratio_to_floor', 'sense_accuracy', 'sense_baseline'): assert r[k] is None
    assert json.loads(json.dumps(r)) == r

def test_a_mistake_while_senses_are_asked_is_not_taken_for_too_few_sentences(
    corpus, dls, model, monkeypatch):
    "scikit-learn, too, says ValueError; and with few sentences there is no question"
    def broken(*args): raise ValueError('Input contains NaN')
    monkeypatch.setattr(report, 'sense_accuracy', broken)
    with pytest.raises(ValueError, match='NaN'):
        make_report(model, dls, corpus)
    few = toy_corpus(n_train=400, n_valid=2, n_test=0, n_unseen=0)
    for sent in few.gold['valid']: sent.senses = [None]*len(sent.tokens)
    assert make_report(model, dls, few)['sense_accuracy'] is None


# what a model can't read

def test_shares_are_counted():
    sents = [['the', 'bank', 'ö', 'x'*60], ['the', 'zoo']]
    vocab = WordVocab.build([['the', 'bank']])
    text = EncodedText(sents, TokenTypes(vocab))
    assert shares(text) == dict(unknown=3/6, cut=1/6, unspelled=0.)
    letters = CharVocab.build([['the', 'bank', 'x']], max_chars=30)
    assert shares(EncodedText(sents, TokenTypes(vocab, letters))) == dict(
        unknown=3/6, cut=1/6, unspelled=2/6), 'ö, and the z of zoo'
    assert shares(EncodedText([], TokenTypes(vocab))) == dict(
        unknown=None, cut=None, unspelled=None)


@pytest.mark.parametrize('name', ['unknown', 'cut', 'unspelled'])
def test_much_of_what_a_model_cant_read_is_a_warning(name):
    "Of the text that was trained on, where it is known; else of the text that is held out"
    none = {f'{k}{o}': 0. for k in ('', 'train_') for o in ('unknown', 'cut', 'unspelled')}
    for few in ({}, {name: .9}, {f'train_{name}': .04}): assert len(share_lines(none | few)) == 1
    for much in ({f'train_{name}': .06}, {name: .06, f'train_{name}': None}):
        [line, warning] = share_lines(none | much)
        assert warning.startswith('A warning: 6% of the tokens')
    assert warning in report_text(BARE | none | much)

def test_the_shares_are_in_the_report(corpus, dls, model):
    r = make_report(model, dls, corpus)
    assert (r['train_unknown'] == r['cut'] == 0
            and r['unknown'] == shares(dls.valid.text)['unknown'] > 0)
    assert f"{r['unknown']:.1%} are unknown" in report_text(r)

BARE = dict(corpus='mine', model='tiny', predictions=1234, perplexity_fwd=100.123,
            perplexity_bwd=90.456, perplexity_mean=95.0, floor=None, ratio_to_floor=None,
            unigram=700.0, trigram=150.5, trigram_bwd=149.5, sense_accuracy=None,
            sense_baseline=None)
FULL = dict(BARE, floor=7.34, ratio_to_floor=1.234,
            sense_accuracy=dict(layer0=0.6, layer1=0.97, layer2=0.98), sense_baseline=0.66,
            tokens_per_second=12345.6, train_seconds=98.7)


def test_report_text():
    bare, full = report_text(BARE), report_text(FULL)
    for s in ('1,234', '100.12', '90.46', '95.00', '700.0', '150.50', '149.50'):
        assert s in bare and s in full
    for s in ('7.34', '1.234', '0.600', '0.970', '0.980', '0.660', '12,346', '99 s'):
        assert s in full and s not in bare
    assert ('None' not in bare + full and 'floor' not in bare and 'ense' not in bare
            and 'rained' not in bare)
    assert 'layer 1 0.970' in full and max(map(len, full.splitlines())) <= 120
    assert 'inf' in report_text(dict(BARE, perplexity_fwd=math.inf))

@pytest.mark.parametrize('found,says', [
    (dict(), []), (dict(best_epoch=8), []),
    (dict(perplexity_mean=160.0), [
    'counting does better (150.0)', 'The last epoch was the best, so train longer: --epochs 16']),
    (dict(best_epoch=5), ['after epoch 5 of 8', '--dropout 0.4 (it was 0.1)']),
    (dict(best_epoch=5, dropout=0.0), ['--dropout 0.3 (it was 0)']),
    (dict(best_epoch=5, dropout=0.3), ['--dropout 0.5 (it was 0.3)']),
    (dict(best_epoch=5, dropout=0.5), ['again with --epochs 5']),
    (dict(best_epoch=5, perplexity_mean=160.0), ['counting does better', '--dropout 0.4'])],
                         ids=str)
def test_a_training_past_its_best_and_one_that_counting_beats_are_told_what_to_change(found, says):
    trained = dict(BARE, dropout=0.1, best_epoch=8, epochs=8)
    told = [line for line in report_text(trained | found).splitlines() if 'best' in line
            or 'warning' in line]
    assert all(any(part in line for line in told) for part in says) and bool(told) == bool(says)

def drawn(fig):
    buf = io.BytesIO()
    fig.savefig(buf, format='svg')
    return buf.getvalue().decode('utf-8')

def test_figure():
    fig = report_figure([5., 4., 3.], FULL)
    a = fig.axes[0]
    assert list(a.lines[0].get_ydata()) == [5., 4., 3.] and a.get_xlabel() and a.get_ylabel()
    def legend(fig): return ' '.join(text.get_text() for text in fig.legends[0].get_texts())
    assert 'floor: perplexity 7.3' in legend(fig)
    fig = report_figure([5., 4.], BARE)
    a,b = fig.axes
    assert 'floor' not in legend(fig)
    assert b.get_ylim()[0] == 1 and a.get_legend() is None      # a base; no line is covered
    assert [p.get_height() for p in b.patches] == [700., 150.5, 100.123, 90.456]
    assert '<svg' in drawn(fig)

@pytest.mark.parametrize('change', [
    dict(perplexity_mean=math.inf, perplexity_fwd=math.inf), dict(perplexity_mean=math.nan)])
def test_figures_of_a_failed_training(change):
    for r in (BARE, FULL):
        assert '<svg' in drawn(report_figure([1.0, math.inf], {**r, **change}))
    assert '<svg' in drawn(report_figure([], BARE))


def test_what_is_saved(tmp_path):
    "JSON has no infinity"
    save_report(tmp_path, dict(FULL, perplexity_mean=math.inf), [5., 4.])
    assert json.loads((tmp_path/'report.json').read_text()) == json.loads(json.dumps(dict(
        FULL, perplexity_mean=None)))
    assert ((tmp_path/'report.png').read_bytes()[:4] == b'\x89PNG'
            and '<svg' in (tmp_path/'report.svg').read_text() and not plt.get_fignums())


def test_every_sense_of_the_corpus_has_a_colour(corpus):
    n = max(map(len, corpus.senses.values()))
    assert n <= len(SENSE_COLOURS) == len(set(SENSE_COLOURS))


def test_tokens_that_are_cut_are_counted():
    """Their number, the longest, and the setting that makes room for it; in the printed lines, the
    report and the card"""
    sents = [['the', 'bank', 'x'*60, 'y'*49], ['the', 'zoo', 'x'*60]]
    def found(*chars):
        types = TokenTypes(WordVocab.build(sents), *chars)
        def of(sents): return SimpleNamespace(text=EncodedText(sents, types))
        return text_shares(SimpleNamespace(train=of(sents), valid=of(sents[:1])))
    cut = found()
    assert (cut['cut_tokens'], cut['longest'], cut['max_chars']) == (5, 60, 50)
    [line] = [line for line in share_lines(cut) if line.startswith('Cut')]
    for part in ('5 tokens', '48 bytes', '--config that says max_chars = 62 under [config]'):
        assert part in line
    assert line in report_text(BARE | cut)
    whole = found(ByteCharVocab(62)) | dict(unknown=0., train_unknown=0.)
    assert whole['cut_tokens'] == 0 and len(share_lines(whole)) == 1
