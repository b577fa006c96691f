"What all tests share"
import importlib.util, shutil, signal, sys
from contextlib import contextmanager
from pathlib import Path

import pytest, torch

sys.path.append(str(Path(__file__).parent/'startup'))       # what other Pythons are started with
import addresses

@contextmanager
def threads(k):
    n = torch.get_num_threads()
    torch.set_num_threads(k)
    yield
    torch.set_num_threads(n)

@pytest.fixture(scope='module', autouse=True)
def one_thread():
    "Small models are faster on one thread, and the same everywhere"
    with threads(1): yield

@pytest.fixture
def two():
    "At least two OpenMP threads, as on most machines"
    with threads(2): yield

@pytest.fixture
def odd_addresses():
    "Weights lie where no processor likes them, and no two models alike"
    with addresses.odd(): yield

@pytest.fixture
def held():
    """Weights of all models lie alike: what is equal to the last bit stays so on every processor

    For trainings that go on where they stopped, and for trainings with one seed: the optimiser
    makes a step of full size from a gradient that is nothing but rounding."""
    with addresses.held(): yield

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
    names = ('chromium', 'chromium-browser', 'google-chrome')
    program = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as p:
        try: b = p.chromium.launch(executable_path=program, args=['--no-sandbox'], timeout=180_000)
        except Error as e: pytest.skip(f"no Chromium can be started: {str(e).splitlines()[0]}")
        yield b
        b.close()

def axe_script():
    """axe-core, which finds faults of accessibility: from axe-playwright-python, or from `npm
    install axe-core` here; None without it"""
    from pathlib import Path
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
