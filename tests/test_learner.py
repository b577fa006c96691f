"A learner of a biLM, its figures and callbacks; a biLM that scores, writes and fills gaps"
import copy, json, math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np, pytest, torch
from fastai.basics import Adam, Callback, CancelFitException, load_learner, set_seed
from hypothesis import given, settings, strategies as st

from elmo_fastai.all import *
from elmo_fastai.batches import EncodedText, TokenTypes
from elmo_fastai.learner import *
from elmo_fastai.ngrams import perplexity
from elmo_fastai.text.tokenizers import get_tokenizer
from elmo_fastai.tokens import SPECIALS
from made import comes_back, fitted, quietly
from steps import At, finite

CFG = BiLMConfig('nano', char_dim=4, filters=((1,8),(2,8),(3,8)), proj_dim=16, hidden_dim=16)

def loaders(corpus, kind='sentences', bs=16, **kwargs):
    if kind == 'stream': kwargs = dict(seq_len=8) | kwargs
    return ElmoDataLoaders.from_corpus(corpus, kind=kind, bs=bs, seed=0, device='cpu', **kwargs)

@pytest.fixture(scope='module')
def dls(corpus): return loaders(corpus)                       # 4 batches an epoch

@pytest.fixture(scope='module')
def stream(corpus): return loaders(corpus, 'stream', bs=4)

def learner(dls, *cbs, seed=0, config=CFG, **kwargs):
    set_seed(seed)
    return bilm_learner(dls, config, **{'bf16': False, 'cbs': list(cbs), **kwargs})

def row(learn): return list(learn.recorder.values[-1])

# an ordinary learner

def test_characters_are_those_of_the_loaders(corpus):
    chars = CharVocab.build([line.split() for line in corpus.train], max_chars=20)
    learn = learner(loaders(corpus, char_vocab=chars))
    config = learn.model.config
    assert (config.n_chars, config.max_chars) == (chars.n_chars, 20)
    assert learn.model.char_vocab == chars and learn.predict('the bank', 2).startswith('the')
    for name in ('n_chars', 'max_chars'):
        with pytest.raises(ValueError, match=f"{name}=99.*loaders"):
            learner(learn.dls, config=replace(CFG, **{name: 99}))

def test_one_cycle_learns_and_its_table_is_right(dls):
    learn = learner(dls, from_counts=False)
    start = evaluate(learn.model, dls.valid)['mean']
    fitted(learn, 4, .03, 'fit_one_cycle')
    exact = evaluate(learn.model, dls.valid)
    assert list(learn.recorder.metric_names) == [
        'epoch', 'train_loss', 'valid_loss', 'perplexity_fwd', 'perplexity_bwd', 'time']
    assert row(learn)[1:] == pytest.approx(
        [math.log(exact['mean']), exact['fwd'], exact['bwd']], rel=1e-5)
    assert exact['mean'] < start/1.5

@pytest.mark.parametrize('change', [
    dict(), dict(share_softmax=False), dict(softmax='sampled', n_negative=50),
    dict(softmax='adaptive', cutoffs=(20, 60), div_value=2., bias=True)])
def test_it_begins_with_the_words_frequencies(dls, change):
    for head in learner(dls, config=replace(CFG, **change)).model.eval().heads:
        found = head.log_prob(torch.zeros(1, 16))[0]
        torch.testing.assert_close(found, dls.log_frequencies())

def test_it_is_saved_and_loaded(dls, tmp_path):
    learn = learner(dls, path=tmp_path)
    assert comes_back(learn, learner(dls, seed=9, path=tmp_path))
    learn.export('learner.pkl')
    again = load_learner(tmp_path/'learner.pkl')
    assert type(again) is BiLMLearner and again.tokenizer == 'space'
    one, many = learn.predict('the', 5, seed=1), learn.predict(['the', 'a'], 3, temperature=0)
    assert one == again.predict('the', 5, seed=1) and one.startswith('the')
    assert many == [again.predict(text, 3, temperature=0) for text in ('the', 'a')]
    again.dls = dls
    assert len(fitted(again).recorder.values) == 1

@pytest.mark.parametrize('batches,kwargs,mean', [
    ([([5.], [7.]), ([1.]*9, [3.]*9)], {}, 2.4), ([], {}, None),
    ([([1e-4]*100_000, [1e-4]*100_000)], {}, 1e-4),          # added up in double precision
    ([([5e3], [5e3])], dict(transform=perplexity), math.inf)])     # no OverflowError
def test_nats_metric_weighs_predictions(batches, kwargs, mean):
    metric = NatsMetric('x', **kwargs)
    for nats in batches:
        pred = [*map(torch.tensor, nats)]
        metric.accumulate(SimpleNamespace(model=None, training=False, pred=pred))
    assert metric.value == (mean if mean is None else pytest.approx(mean, rel=1e-6))

def test_what_a_learner_shows(dls):
    "The nats of every prediction; the likeliest word in each place"
    learn = learner(dls)
    (fwd, bwd), _ = quietly(learn, 'get_preds')
    exact = evaluate(learn.model, dls.valid)
    assert len(fwd) == len(bwd) == exact['predictions']
    assert math.exp(fwd.mean()) == pytest.approx(exact['fwd'], rel=1e-5)
    df = learn.show_results(max_n=3, show=False)
    chars, y, _ = dls.valid.one_batch()
    with torch.no_grad(): states = learn.model.eval().encode(chars[:3])[-1][0]
    for shown,h,wanted in zip(df['forward guesses'], states, y):
        best = learn.model.head.log_prob(h).argmax(-1)[wanted > 0]
        assert shown.split(' ')[:len(best)] == [dls.vocab.itos[i] for i in best]

def test_a_sampled_loss_is_no_perplexity(dls):
    "In training the metrics leave it out; validation is exact"
    learn = learner(dls, config=replace(CFG, softmax='sampled', n_negative=30))
    learn.recorder.train_metrics = True
    found = dict(zip(fitted(learn).recorder.metric_names[1:], learn.recorder.values[-1]))
    assert {name for name,value in found.items() if value is None} == {
        'train_perplexity_fwd', 'train_perplexity_bwd'}
    exact = evaluate(learn.model, dls.valid)
    assert found['valid_perplexity_fwd'] == pytest.approx(exact['fwd'], rel=1e-5)

# what it computed once, on one thread in single precision, and still does

RECORD = json.loads((Path(__file__).parent/'golden'/'record.json').read_text(encoding='utf-8'))
GOLDEN = BiLMConfig('golden', filters=((1,8), (2,16), (3,24)), proj_dim=32, hidden_dim=32)
BILMS = {'sentences': {}, 'adaptive': dict(softmax='adaptive', cutoffs=(50, 200)),
         'stream, projected, clipped, dropout': dict(hidden_dim=48, cell_clip=3., proj_clip=3.,
                                                     dropout=.2)}

@pytest.fixture(scope='module')
def recorded(): return toy_corpus(2000, 300, 300, 50)

@pytest.mark.parametrize('kind', BILMS)
def test_losses_of_language_models(recorded, kind):
    "As many as every processor agrees on; twenty steps later rounding has grown a hundredfold"
    is_stream = kind.startswith('stream')
    how = dict(kind='stream', bs=8, seq_len=24) if is_stream else dict(kind='sentences', bs=32)
    found, wanted = [], RECORD['losses'][kind][:6]
    set_seed(1)
    dls = ElmoDataLoaders.from_corpus(recorded, seed=3, device='cpu', **how)
    learn = bilm_learner(dls, replace(GOLDEN, **BILMS[kind]), bf16=False, from_counts=False)
    class Keep(Callback):
        order = 80
        def after_batch(self):
            found.append(self.loss.item())
            if len(found) == len(wanted): raise CancelFitException
    fitted(learn, 20, 5e-3, cbs=Keep())
    np.testing.assert_allclose(found, wanted, rtol=1e-3)

# groups and optimisers

@pytest.mark.parametrize('change', [
    dict(n_layers=3, hidden_dim=20), dict(share_encoder=False, share_softmax=False),
    dict(norm=False, softmax='adaptive', cutoffs=(50,))])
def test_groups_hold_every_parameter_once(dls, change):
    model = BiLM(replace(CFG, **change), len(dls.vocab))
    names = {id(p): name for name,p in model.named_parameters() if p.requires_grad}
    found = [{names.pop(id(p))[:4] for p in group} for group in bilm_split(model)]
    assert not names and found == [{'char'}, *[{'lstm'}]*model.config.n_layers, {'head'}]
    assert len(bilm_split(BiLM(CFG, 0))) == 3                   # without an output layer

def test_rates_by_group_and_freezing(dls):
    learn = learner(dls)
    def parts(): return [torch.cat([p.detach().flatten() for p in group])
                         for group in bilm_split(learn.model)]
    before = parts()
    fitted(learn, lr=slice(1e-12, 1e-2))
    moved = [(a - b).abs().max() for a,b in zip(before, parts())]
    assert moved[0] < 1e-8 < moved[1] < moved[2] < moved[3]
    learn.freeze_to(2)
    before = parts()
    fitted(learn, method='fit_one_cycle')
    assert [a.equal(b) for a,b in zip(before, parts())] == [True, True, False, False]

class Look(Callback):
    "Keeps weights and gradients before each step"
    order = 95
    def before_fit(self): self.found = []
    def before_step(self): self.found.append({
        name: (p.detach().clone(), p.grad.clone())
        for name,p in self.model.named_parameters() if p.grad is not None})

def norm(step): return torch.stack([grad.norm() for _,grad in step.values()]).norm().item()

def test_gradients_are_clipped(dls):
    loose, tight = (fitted(learner(dls, Look(), clip=clip)).look.found for clip in (1e9, .01))
    assert max(map(norm, tight)) <= .0101 < min(map(norm, loose))

def test_adagrad_is_the_originals(dls):
    "A step by hand: the loss times 20, sums of squares that start at 1, the rate 0.2"
    learn = learner(dls, Look(), opt='adagrad')
    quietly(learn, 'fit', 1)
    first, second = learn.look.found[:2]
    for name,(weight, grad) in first.items():
        torch.testing.assert_close(second[name][0], weight - .2*grad/(1 + grad**2).sqrt())
    hypers = learn.opt.hypers[0]
    assert first and learn.wd == hypers['wd'] == 0 and hypers['lr'] == .2
    assert 1 < norm(first) <= 20.001            # twenty times the mean's gradient, and its limit
    quietly(learn, 'fit_one_cycle', 1, .2)      # a schedule may speak of momentum

def test_other_optimisers(dls):
    assert len(fitted(learner(dls, opt=Adam)).opt.hypers) == 4
    for how in (dict(opt='sgd'), dict(loss_func=bilm_loss), dict(clip=0)):
        with pytest.raises(ValueError, match=next(iter(how))): learner(dls, **how)
    with pytest.raises(TypeError, match='ELMO_TINY'): bilm_learner(dls, 'tiny')
    found = [learner(dls, **how).wd for how in (dict(wd=.5), {}, dict(opt='adagrad', wd=.1))]
    assert found == [.5, .01, .1]

# precision

@pytest.mark.parametrize('known,can,is_fast', [
    (0, dict(amx_bf16=1), 0), (1, dict(sse4a=1), 1), (1, {}, 0), (1, dict(amx_bf16=1), 1),
    (None, None, 0)])
def test_instructions_decide_on_bfloat16(monkeypatch, known, can, is_fast):
    "An Intel processor with AMX, or one of AMD (sse4a); None: an older PyTorch"
    for name,value in {'_is_avx512_bf16_supported': known, 'get_capabilities': can}.items():
        if value is None: monkeypatch.delattr(torch.cpu, name, raising=False)
        else: monkeypatch.setattr(torch.cpu, name, lambda value=value: value, raising=False)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: (7 + is_fast, 5))
    for device in ('cpu', torch.device('cpu'), 'cuda'): assert bf16_is_fast(device) == is_fast
    assert bf16_is_fast('mps') is False

@pytest.mark.parametrize('kind', ['sentences', 'stream'])
def test_bfloat16(corpus, kind):
    "In the model and its loss alone: what follows in the step reads the new weights, in 32 bits"
    class Ask(Callback):
        order = 96
        def after_batch(self): self.found = evaluate(self.model, self.dls.valid)['mean']
    cbs = [CarryState()] if kind == 'stream' else []
    half, full = (fitted(learner(loaders(corpus, kind, bs=8), Ask(), *cbs, bf16=bf16))
                  for bf16 in (True, False))
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    assert half.ask.found == evaluate(half.model, half.dls.valid)['mean']
    losses = half.recorder.losses, full.recorder.losses
    assert losses[0] != losses[1] and np.allclose(*losses, rtol=.05)

class Failing(Callback):
    def __init__(self, error): self.error = error
    def after_pred(self): raise self.error('in the middle')

@pytest.mark.parametrize('method,error', [('fit', RuntimeError), ('get_preds', KeyboardInterrupt)])
def test_an_error_within_a_step_leaves_nothing_behind(stream, method, error):
    learn = learner(stream, CarryState(), bf16=True)
    n = len(learn.cbs)
    with pytest.raises(error):
        quietly(learn, method, *([1] if method == 'fit' else []), cbs=Failing(error))
    assert not torch.is_autocast_enabled('cpu') and len(learn.cbs) == n
    assert finite(fitted(learn).model) and not torch.is_autocast_enabled('cpu')

# a carried state

@pytest.mark.parametrize('change', [
    dict(), dict(hidden_dim=20), dict(share_encoder=False), dict(cell_clip=3., proj_clip=3.)])
def test_carried_forward_perplexity_is_that_of_one_long_window(stream, change):
    learn = fitted(learner(stream, CarryState(), config=replace(CFG, **change)))
    long = StreamDataLoader(stream.valid.text, bs=stream.valid.size, seq_len=stream.valid.per)
    warm, cold = evaluate(learn.model, long), evaluate(learn.model, stream.valid)
    assert row(learn)[2] == pytest.approx(warm['fwd'], rel=1e-4)
    assert warm['fwd'] != pytest.approx(cold['fwd'], rel=1e-4)
    assert row(learn)[3] == pytest.approx(cold['bwd'], rel=1e-4)

def test_what_can_be_carried(dls, tmp_path):
    with pytest.raises(ValueError, match="kind='stream'"): fitted(learner(dls, CarryState()))
    (tmp_path/'t.txt').write_text('the bank was open all day\n'*99)
    how = dict(kind='stream', bs=2, seq_len=8, n_valid=9, device='cpu')
    assert finite(fitted(learner(stream_loaders(tmp_path/'t.txt', **how), CarryState())).model)

# losses that are no numbers, and counts

def spoil(cb): next(cb.model.head.parameters()).data.view(-1)[3] = math.nan

@pytest.mark.parametrize('step', [1, 6])
def test_a_loss_that_is_no_number_ends_the_training(dls, capsys, step):
    learn = fitted(learner(dls, At(step, spoil)), 3)
    said = capsys.readouterr().out
    for part in ('nan', f'step {step + 1}', 'lower learning rate'): assert part in said
    losses = torch.tensor(learn.recorder.losses)
    assert len(losses) == step + 1 and losses[:-1].isfinite().all() and losses[-1].isnan()

def test_throughput_counts_real_tokens_of_trainings(dls):
    learn = fitted(learner(dls), 2)
    quietly(learn, 'validate')
    assert learn.throughput.tokens == 2*len(dls.train.text.ids) and learn.throughput.seconds > 0

# a model that speaks

SPEAKS = replace(CFG, proj_dim=20, hidden_dim=20, dropout=.3)
SHAPES = dict(
    plain={}, clipped=dict(hidden_dim=24, cell_clip=.2, proj_clip=.1, cutoffs=(6, 11)),
    separate=dict(share_encoder=False, share_softmax=False, softmax='sampled', n_negative=5))
WORDS = 'a bank of the river spring springs café 河岸 . extraordinarily bat old new'.split()
SENTS = [WORDS[i%5:i%5+n] for i,n in enumerate((5, 1, 12, 3, 8, 12, 2, 7))] + [['the']*4]
VOCAB, CHARS = WordVocab.build(SENTS), ByteCharVocab()
TEXT = EncodedText(SENTS, TokenTypes(VOCAB, CHARS))

def make(shape='plain'):
    "A biLM to which words differ in probability"
    torch.manual_seed(1)
    m = BiLM(replace(SPEAKS, **SHAPES[shape]), len(VOCAB))
    m.tokenizer = 'space'
    opt = torch.optim.Adam(m.parameters(), 1e-2)
    dl = SentenceDataLoader(TEXT, bs=9)
    for _ in range(8):
        opt.zero_grad()
        torch.cat(m(*dl.one_batch())).mean().backward()
        opt.step()
    return m.eval()

@pytest.fixture(scope='module', params=SHAPES)
def model(request): return make(request.param)

@pytest.fixture(scope='module')
def plain(): return make()

def speaks(m): return m, VOCAB, CHARS

@torch.no_grad()
def next_logp(m, tokens, backward):
    "Log-probabilities of the word after (or before) `tokens`, all of them read"
    chars = sentence_chars(CHARS, tokens, bos=not backward, eos=backward)[None]
    f, b = m.eval().encode(chars)[-1]
    return m.heads[1].log_prob(b[:, 0])[0] if backward else m.heads[0].log_prob(f[:, -1])[0]

def test_scores_are_those_of_reading_piece_by_piece(model):
    for tokens in [[], *SENTS[:4]]:
        [s] = score(*speaks(model), [tokens])
        ids = VOCAB.encode(tokens)
        f = [next_logp(model, tokens[:i], False)[w].item() for i,w in enumerate([*ids, 3])]
        b = [next_logp(model, tokens[i+1:], True)[w].item() for i,w in enumerate(ids)]
        b.append(next_logp(model, tokens, True)[2].item())
        for found,wanted,total,ppl in zip((s.fwd, s.bwd), (f, b), s.logp, s.perplexity):
            np.testing.assert_allclose(found, wanted, atol=1e-4)
            assert total == pytest.approx(sum(wanted), abs=1e-3)
            assert ppl == pytest.approx(math.exp(-np.mean(wanted)), rel=1e-4)

def test_unknown_words_are_marked_and_read(plain):
    a, b = score(*speaks(plain), ['the zorgle .', 'the river-zorgle .'])
    assert a.known == [True, False, True]
    assert 'zorgle?' in repr(a) and 'zorgle (unknown)' in a.table.index
    assert a.fwd[1] == pytest.approx(b.fwd[1], abs=1e-5)       # both are that of <unk>
    assert abs(a.fwd[2] - b.fwd[2]) > 1e-6                     # and are read letter by letter
    assert score(*speaks(plain), [['<pad>', '</s>']])[0].known == [False, False]

@pytest.mark.parametrize('backward', [False, True])
def test_carrying_the_state_writes_what_reading_again_writes(model, backward):
    "The best words, and the probabilities from which they are drawn"
    direction = 'backward' if backward else 'forward'
    prompts = [['the'], ['old', 'café', 'bank', 'of', 'zorgle'], []]
    how = dict(temperature=0, end=False)
    got = generate(*speaks(model), prompts, 8, direction, **how)
    assert got == [generate(*speaks(model), [p], 8, direction, **how)[0] for p in prompts]
    for tokens,text in zip(prompts, got):
        probs, new = next_probs(*speaks(model), tokens, int(backward), False), []
        for _ in range(8):
            logp = next_logp(model, tokens, backward)
            logp[:4] = -math.inf
            with torch.no_grad(): found = torch.as_tensor(probs(new))
            torch.testing.assert_close(found, logp.double().softmax(-1), atol=1e-4, rtol=1e-4)
            new.append(logp.argmax().item())
            word = VOCAB.itos[new[-1]]
            tokens = [word, *tokens] if backward else [*tokens, word]
        assert text == ' '.join(tokens)

def test_draws_follow_the_distribution(plain):
    p = next_logp(plain, ['the'], False).exp().double()
    p[:3] = 0
    first = [t.split()[1:2] for t in generate(*speaks(plain), ['the']*1000, 1, seed=0)]
    counts = torch.zeros(len(p)).double()
    for w in first: counts[VOCAB.o2i[w[0]] if w else 3] += 1
    assert (counts/1000 - p/p.sum()).abs().max() < .04

def test_seeds(plain):
    def write(seed, texts=['the']*3): return generate(*speaks(plain), texts, 6, seed=seed)
    assert write(1) == write(1) != write(2)
    assert write(1)[1:] == write(2)[:2] and write(3, 'the') == write(1)[2:]
    state = torch.get_rng_state()
    write(3)
    assert torch.equal(state, torch.get_rng_state())

@pytest.mark.parametrize('direction', ['forward', 'backward'])
def test_what_is_never_written(plain, direction):
    m = copy.deepcopy(plain)
    with torch.no_grad(): m.head.bias[:4] = 8.                          # it would say nothing else
    for text in generate(*speaks(m), ['the']*20, 5, direction, end=False, seed=0):
        assert not set(text.split()) & set(SPECIALS) and len(text.split()) == 6
    assert generate(*speaks(m), ['the']*3, 5, direction, temperature=0) == ['the']*3

@settings(max_examples=50)
@given(st.lists(st.floats(-30, 5), min_size=1, max_size=12), st.integers(1, 15), st.floats(.01, 1),
       st.sampled_from([1e-300, .01, .7, 1., 3., 1e9]))
def test_narrowed_probabilities_stay_inside(z, k, p, temperature):
    logp = torch.tensor(z).log_softmax(0)
    for o in narrowed(logp, temperature, k).nonzero()[:,0]: assert (logp > logp[o]).sum() < k
    for o in narrowed(logp, top_p=p).nonzero()[:,0]:
        assert logp[logp > logp[o]].double().exp().sum() < p + 1e-6
    assert narrowed(logp, 0).nonzero().tolist() == [[logp.argmax()]]
    torch.testing.assert_close(narrowed(logp), logp.double().softmax(0))
    assert not narrowed(torch.tensor([-math.inf, 0.]), temperature, k, p)[0]

# gaps

def test_fill_is_the_product_of_both_sides(model):
    table = fill(*speaks(model), 'the old ___ of river', k=100)
    f, b = next_logp(model, ['the', 'old'], False), next_logp(model, ['of', 'river'], True)
    both = (f + b)[4:].double().softmax(0)
    assert len(table) == len(VOCAB) - 4 and table.p.is_monotonic_decreasing
    for word,*found in table.itertuples(index=False):
        w = VOCAB.o2i[word]
        wanted = [both[w-4].item(), f[w].exp().item(), b[w].exp().item()]
        assert found == pytest.approx(wanted, rel=1e-3)

def test_texts_in_many_forms(plain):
    m = speaks(plain)
    a = fill(*m, 'the ___ bank')
    for text in (['the', '___', 'bank'], 'the___bank'): assert fill(*m, text).equals(a)
    # so rare that it explains everything
    prior = torch.zeros(len(VOCAB))
    prior[VOCAB.o2i['old']] = -50
    assert fill(*m, 'the ___ bank', prior=prior).word[0] == 'old'

# the model's own tokenizer

LINES = ["She didn't see the bank.", 'The old bank was near the river, was it not?', '我们去河岸。']
def own(text): return text.replace('.', ' . ').split()
def by_comma(text): return text.split(',')

@pytest.mark.parametrize('tokenizer', ['words', own])
def test_each_door_splits_a_text_as_the_training_was_split(tokenizer):
    corpus = Corpus('lines', dict(train=LINES*12, valid=LINES), tokenizer)
    dls = ElmoDataLoaders.from_corpus(corpus, device='cpu', bs=8)
    m = bilm_learner(dls, CFG, bf16=False).model.eval()
    model = m, dls.vocab, dls.char_vocab
    split = get_tokenizer(tokenizer)
    assert m.tokenizer == tokenizer and score(*model, LINES[0])[0].tokens == split(LINES[0])
    assert all(score(*model, LINES[0])[0].known)
    assert generate(*model, LINES[0], 0) == [' '.join(split(LINES[0]))]
    assert fill(*model, "She didn't ___ the bank.").equals(
        fill(*model, [*split("She didn't "), '___', *split(' the bank.')]))
    assert score(*model, 'a,b.', tokenizer=by_comma)[0].tokens == ['a', 'b.']      # as it is said

def test_a_model_that_knows_no_tokenizer_takes_tokens(plain):
    m = copy.deepcopy(plain)
    del m.tokenizer
    for door in (score, generate, fill):
        with pytest.raises(ValueError, match="tokenizer='words', or give lists"):
            door(*speaks(m), 'the ___.')
    assert score(*speaks(m), [['the', 'bank.']])[0].known == [True, False]

# what cannot be asked

SMALL = WordVocab.build([['x']])
WRONG = [dict(direction='up'), dict(temperature=-1), dict(temperature=math.nan), dict(top_k=0),
         dict(top_p=0), dict(top_p=1.5), dict(seed=-1), dict(n_words=2.5)]
DOORS = score, generate, fill
NO_HEAD = BiLM(SPEAKS, 0)
REFUSED = [
    *[(lambda m, kw=kw: generate(*m, 'the', **kw), ValueError, next(iter(kw))) for kw in WRONG],
    (lambda m: generate(*m, 'the', temprature=1.), TypeError, 'temprature'),
    (lambda m: narrowed(torch.tensor([0., math.nan]), 0), ValueError, 'no word'),
    *[(lambda m, f=f: f(m[0], SMALL, CHARS, 'the ___'), ValueError, 'vocabulary') for f in DOORS],
    *[(lambda m, f=f: f(NO_HEAD, VOCAB, CHARS, 'the ___'), ValueError, 'output') for f in DOORS],
    *[(lambda m, p=p: fill(*m, 'the ___', prior=p), ValueError, 'prior') for p in (
        torch.zeros(3), torch.full((len(VOCAB),), -math.inf), [math.nan]*len(VOCAB))],
    *[(lambda m, t=t: fill(*m, t), ValueError, f'has {n}$|has {n}:') for t,n in (
        ('the bank', 0), ('___ and ___', 2), ([], 0), (['___']*3, 3))],
    (lambda m: evaluate(m[0], []), ValueError, 'nothing to predict')]

@pytest.mark.parametrize('ask,error,says', REFUSED)
def test_what_cannot_be_asked(plain, ask, error, says):
    with pytest.raises(error, match=says): ask(speaks(plain))

def test_a_model_is_left_as_it_was(plain):
    "Also by several threads at once, and after an error"
    m = copy.deepcopy(plain).train()
    m.chars.eval()
    weights, modes = copy.deepcopy(m.state_dict()), [part.training for part in m.modules()]
    dl = [*SentenceDataLoader(TEXT, bs=4)]*4
    wanted = evaluate(m, dl)
    with ThreadPoolExecutor(4) as pool: found = [*pool.map(lambda _: evaluate(m, dl), range(8))]
    assert all(o == pytest.approx(wanted, rel=1e-6) for o in found)
    for look in (score, generate, fill): look(*speaks(m), 'the ___')
    with pytest.raises(ValueError): fill(*speaks(m), 'the')
    assert torch.is_grad_enabled() and modes == [part.training for part in m.modules()]
    assert all(torch.equal(w, weights[name]) for name,w in m.state_dict().items())
