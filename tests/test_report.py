"What a report measures, and what it says"
import json, math

import numpy as np, pytest
from fastai.torch_core import set_seed

from elmo_fastai.batches import EncodedText, ElmoDataLoaders
from elmo_fastai.learner import evaluate
from elmo_fastai.practice.report import (
    counting, make_report, report_figure, report_text, save_report, share_line, shares)
from elmo_fastai.practice.streams import stream_loaders
from elmo_fastai.text.read import Corpus
from elmo_fastai.text.corpora import toy_corpus
from elmo_fastai.ngrams import KneserNey
from made import CFG

@pytest.fixture(scope='module')
def corpus(): return toy_corpus(n_train=300, n_valid=60, n_test=30, n_unseen=1)

def loaders(corpus, **kwargs):
    return ElmoDataLoaders.from_corpus(corpus, **dict(bs=16, device='cpu', seed=1) | kwargs)

def model_of(dls):
    set_seed(0)
    return CFG.model(len(dls.vocab), dls.char_vocab)

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_the_figures_are_those_of_their_parts(corpus, kind):
    dls = loaders(corpus, kind=kind)
    model = model_of(dls)
    report = make_report(model, dls)
    found = evaluate(model, dls.valid)
    assert report['predictions'] == found.pop('predictions')
    for name,value in found.items(): assert report[f'perplexity_{name}'] == pytest.approx(value)
    assert report['test_predictions'] == sum(len(line.split()) + 1 for line in corpus.test)
    assert report['floor'] == corpus.floor('valid')
    assert report['ratio_to_floor']*report['floor'] == pytest.approx(report['perplexity_mean'])
    assert report == make_report(model, dls)                         # nothing of it is drawn

@pytest.mark.parametrize('n,backward,name', [(1, False, 'unigram'), (3, False, 'trigram'),
                                             (3, True, 'trigram_bwd')])
def test_counting_is_kneser_ney_on_the_same_text(corpus, n, backward, name):
    dls = loaders(corpus, min_freq=2)
    def ids(lines): return [dls.vocab.encode(line.split()) for line in lines]
    known = KneserNey(n, vocab_size=len(dls.vocab) - 2, backward=backward).fit(ids(corpus.train))
    ppl = np.exp(-known.logps(ids(corpus.valid)).mean())
    assert counting(dls.train.text, dls.valid.text)[name] == pytest.approx(ppl)

def test_a_cut_text_is_judged_by_what_is_left_of_it(corpus):
    "The end of a sentence that was cut is no prediction, and the floor is of whole sentences"
    dls = loaders(corpus, max_words=4)
    report = make_report(model_of(dls), dls)
    assert 'floor' not in report and report['trigram'] < report['unigram']
    def of(line): return Corpus('one', dict(train=[line]*9, valid=[line]*2), 'space')
    a, b = (counting(dls.train.text, dls.valid.text)
            for dls in (loaders(of('a b c d e'), max_words=4), loaders(of('a b c d'))))
    assert a['trigram'] != b['trigram'] and all(value < math.inf for value in a.values())

def test_a_stream_has_no_counting(corpus, tmp_path):
    (tmp_path/'a.txt').write_text('\n'.join(corpus.train))
    dls = stream_loaders(tmp_path/'a.txt', n_valid=20, bs=4, device='cpu')
    report = make_report(model_of(dls), dls)
    assert 'trigram' not in report and report['train_unknown'] is None
    assert 'Counting' not in report_text(report)

def test_what_can_not_be_read(corpus):
    dls = loaders(corpus)
    def share(*sents): return shares(EncodedText([sent.split() for sent in sents], dls.types))
    known = corpus.train[0]
    assert share(known) == dict(unknown=0, cut=0) and share() == dict(unknown=None, cut=None)
    assert share('zq '*3, f"{'x'*99} .")['unknown'] == .8 and share(f"{'x'*99} .")['cut'] == .5

@pytest.mark.parametrize('found,warns', [
    (dict(unknown=.5, train_unknown=.01), False), (dict(unknown=0., train_unknown=.2), True),
    (dict(unknown=.2, train_unknown=None), True), (dict(unknown=0., train_unknown=None), False)])
def test_many_unknown_tokens_are_a_warning(found, warns):
    "The training text decides, where it was counted"
    assert ('--min-freq 1' in share_line(dict(found, cut=0.))) == warns

def test_what_is_said_and_written(corpus, tmp_path):
    dls = loaders(corpus)
    report = make_report(model_of(dls), dls)
    text = report_text(report)
    for part in (f"{report['perplexity_mean']:.2f}", f"{report['ratio_to_floor']:.3f}",
                 f"{report['trigram']:.2f}", 'counting does better'): assert part in text
    assert 'counting does better' not in report_text(report | dict(perplexity_mean=1.5))
    save_report(tmp_path, report | dict(perplexity_fwd=math.inf), [3., 2.])
    kept = json.loads((tmp_path/'report.json').read_text('utf-8'))
    assert kept == report | dict(perplexity_fwd=None)
    assert (tmp_path/'report.png').read_bytes()[:4] == b'\x89PNG'
    assert '<svg' in (tmp_path/'report.svg').read_text()

@pytest.mark.parametrize('gone', [[], ['floor'], ['floor', 'trigram', 'unigram']])
def test_the_picture_shows_what_there_is(corpus, gone):
    dls = loaders(corpus)
    report = make_report(model_of(dls), dls)
    fig = report_figure([5., 4.], {k: v for k,v in report.items() if k not in gone})
    left, right = fig.axes
    assert len(left.lines) == 4 - len({'floor', 'trigram'} & {*gone}) and left.get_ylabel()
    assert len(right.patches) == 4 - len({'unigram', 'trigram'} & {*gone})
