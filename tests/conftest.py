"""What all tests share

The tests of a module stand in `test_<module>.py`. Other files are about several modules, or about
none: doors for texts (`test_doors`, `test_texts`), pages (`test_pages`), the site (`test_site`),
its scripts (`test_live`, `test_explainer`), the package (`test_packaging`, `test_box`)."""
import importlib.util, os, random, signal, sys, tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))                  # from wherever the tests are started
SETTINGS = 'ELMO_FASTAI_DATA', 'RANK', 'LOCAL_RANK', 'WORLD_SIZE'    # what the library reads
if 'PYTEST_XDIST_WORKER' not in os.environ:    # a worker has the environment of its parent
    # before anything is imported that reads it
    cache = tempfile.TemporaryDirectory(prefix='elmo_fastai-')
    browsers = Path(os.environ.get('XDG_CACHE_HOME') or Path.home()/'.cache', 'ms-playwright')
    if browsers.is_dir(): os.environ.setdefault('PLAYWRIGHT_BROWSERS_PATH', str(browsers))
    paths = [str(root), *filter(None, [os.environ.get('PYTHONPATH')])]
    own = dict.fromkeys(('XDG_CACHE_HOME', 'HF_HOME', 'MPLCONFIGDIR'), cache.name)
    own |= dict(PYTHONPATH=os.pathsep.join(paths), MPLBACKEND='agg', HF_HUB_OFFLINE='1',
                HF_DATASETS_OFFLINE='1', TOKENIZERS_PARALLELISM='false', COLUMNS='100',
                PYTHONUTF8='1')
    own |= dict.fromkeys(('no_proxy', 'NO_PROXY'), '127.0.0.1')    # the tests' own servers
    data = os.environ.pop('ELMO_FASTAI_DATA', '')
    own['ELMO_FASTAI_TESTS_READ'] = data and os.path.abspath(data)
    for name in ('HF_HUB_CACHE', 'HF_DATASETS_CACHE', 'FORCE_COLOR', 'PYTHONWARNINGS', *SETTINGS):
        os.environ.pop(name, None)
    os.environ.update(own)

import numpy as np, torch
from hypothesis import settings
import elmo_fastai.all                         # with it what `practice` adds to the learners

settings.register_profile('any machine', deadline=None)     # a busy one is no fault
settings.load_profile('any machine')
import addresses
from browse import chromium

@contextmanager
def threads(k):
    n = torch.get_num_threads()
    torch.set_num_threads(k)
    yield
    torch.set_num_threads(n)

@pytest.fixture(scope='session', autouse=True)
def nowhere(tmp_path_factory):
    "The working folder of fixtures that several tests share: nothing is written or read there"
    folder = tmp_path_factory.mktemp('nowhere')
    with pytest.MonkeyPatch.context() as mp:
        mp.chdir(folder)
        yield
    assert not os.listdir(folder)

@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    "No test's working folder is the repository, or another test's; nor does one find its settings"
    monkeypatch.chdir(tmp_path)
    for name in SETTINGS: os.environ.pop(name, None)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    "Random numbers begin anew with each test, and with what is made for it: no order matters"
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)

@pytest.fixture(scope='module', autouse=True)
def one_thread():
    "Small models are faster on one thread, and the same everywhere"
    with threads(1): yield

@pytest.fixture
def odd_addresses():
    "Weights lie where no processor likes them, and no two models alike"
    with addresses.odd(): yield

@pytest.fixture(scope='session')
def texts():
    "400 sentences of the toy language"
    return elmo_fastai.all.toy_corpus(n_train=400, n_valid=1, n_test=1, n_unseen=1).train

@pytest.fixture(scope='session')
def corpus():
    "64 sentences to train on, 24 to validate"
    return elmo_fastai.all.toy_corpus(n_train=64, n_valid=24, n_test=1, n_unseen=1)

@pytest.fixture(scope='session', params=['letters', 'two', 'all', '256'])
def spelt(request):
    "(learner of two steps, its alphabet); one alphabet has as many ids as bytes have"
    from elmo_fastai.all import CharVocab, ElmoDataLoaders, bilm_learner, toy_corpus
    from elmo_fastai.tokens import UNK
    import made
    corpus = toy_corpus(n_train=64, n_valid=16, n_test=0, n_unseen=0)
    kinds = dict(letters={}, two=dict(n=2, max_symbols=400), all=dict(min_freq=3, max_chars=12))
    chars = (CharVocab([UNK, *map(chr, range(33, 288))]) if request.param == '256' else
             CharVocab.build([o.split() for o in corpus.train], **kinds[request.param]))
    dls = ElmoDataLoaders.from_corpus(corpus, kind='sentences', bs=32, char_vocab=chars, seed=0,
                                      device='cpu')
    made.set_seed(0)
    learn = bilm_learner(dls, made.CFG, bf16=False)
    made.quietly(learn, 'fit', 1, 1e-2)
    return learn, chars

@pytest.fixture(autouse=True)
def interruptible():
    "Ctrl-C as in a terminal: a process that a script started in the background is born deaf to it"
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)

@pytest.fixture(scope='session')
def browser():
    "Chromium, where there is one"
    if not importlib.util.find_spec('playwright'):
        pytest.skip('playwright is not installed: nothing is opened in a browser')
    from playwright.sync_api import sync_playwright, Error
    with sync_playwright() as p:
        try: b = p.chromium.launch(executable_path=chromium(), args=['--no-sandbox'],
                                   timeout=180_000)
        except Error as e: pytest.skip(f"no Chromium can be started: {str(e).splitlines()[0]}")
        yield b
        b.close()

def axe_script():
    """axe-core, which finds faults of accessibility: from axe-playwright-python, or from `npm
    install axe-core` here; None without it"""
    spec = importlib.util.find_spec('axe_playwright_python')
    places = [Path(__file__).resolve().parent.parent/'node_modules'/'axe-core']
    if spec: places.insert(0, Path(spec.origin).parent)
    return next((f for o in places for f in sorted(o.rglob('axe.min.js'))), None)

@pytest.fixture(scope='session')
def axe():
    "A function that names what axe-core finds wrong on a page of the browser"
    script = axe_script()
    if not script: pytest.skip('axe-core is not installed: pip install axe-playwright-python')
    def found(page):
        page.evaluate(script.read_text(encoding='utf-8'))
        faults = page.evaluate(
            "axe.run(document, {resultTypes: ['violations']}).then(o => o.violations)")
        return [(o['id'], [n['html'][:150] for n in o['nodes']][:3]) for o in faults]
    return found

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    "Four files of 40 lines"
    from loading import lines_of
    texts = ['\n'.join(lines_of(i)) + '\n' for i in range(4)]
    folder = tmp_path_factory.mktemp('text')
    for i in range(4): (folder/f'{i}.txt').write_text(texts[i])
    return folder
