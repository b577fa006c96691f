"""ELMo in plain JavaScript, in a browser on this machine, beside PyTorch with the same weights on
the same sentences (library: The model in the browser).

    python tests/benchmarks/live.py        # needs playwright and a Chromium; half a minute

Times are milliseconds, medians: `start` until a model can read, `output` until its output layer is
there, `map` of every word with every word of three sentences, `gap` of a word in a sentence of ten
and the surprises of each, `sentence` all layers of ten words that it has not seen; `phone` the same
with the processor slowed down to a quarter. `apart`: the largest difference of any number of any
layer from PyTorch's in double precision, over the fifty sentences of tests/test_live.py.
"""
import shutil, tempfile, time
from pathlib import Path
from statistics import median
import numpy as np, torch

from fastcore.script import call_parse
from harness import RESULTS, ROOT, write_figures
from after_render import BOX, boxed
from browse import chromium, served
from test_live import sentences
from elmo_fastai.text.tokenizers import word_tokenize
from elmo_fastai.all import Elmo

TEN = [f'The {a} man saw a {b} on the {c} .' for a in ('old', 'young', 'tall', 'blind', 'rich')
       for b in ('boat', 'light', 'letter', 'stranger') for c in ('bank', 'stairs')]

JS = """async ({ten, fifty, gap}) => {
  const m = await import('/elmo.js'), begin = performance.now();
  const elmo = await m.Elmo.load('/mini-en/'), start = performance.now() - begin;
  const times = ten.map(s => {
    elmo.known.clear();
    const t = performance.now();
    elmo.layers(m.tokenize(s));
    return performance.now() - t });
  const s = await import('/speak.js'), from = performance.now();
  const speaker = await s.Speaker.load('/mini-en/', elmo), output = performance.now() - from;
  const gaps = ten.map(o => {
    elmo.known.clear();
    const t = performance.now(), words = m.tokenize(o);
    const left = words.slice(0, gap), right = words.slice(gap + 1);
    s.score(speaker, [...left, s.fill(speaker, left, right).both[0].word, ...right]);
    return performance.now() - t });
  const a = await import('/answers.js');
  const read = ten.slice(0, 12).map(o => [o, ten[0], ten[1]].map(
    t => m.tokenize(t).slice(0, o === t ? 9 : 8)));
  const maps = read.map(sentences => {
    const t = performance.now();
    a.map({elmo}, {sentences});
    return performance.now() - t });
  return {start, output, times, gaps, maps,
    layers: fifty.map(s => elmo.layers(m.tokenize(s)).map(l => l.map(v => Array.from(v)))) }
}"""

def in_browser(address, slower):
    from playwright.sync_api import sync_playwright
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium(), args=['--no-sandbox'])
        page = browser.new_page()
        page.goto(address + 'elmo.js')
        if slower > 1:
            session = page.context.new_cdp_session(page)
            session.send('Emulation.setCPUThrottlingRate', dict(rate=slower))
        given = dict(ten=TEN, gap=3, fifty=sentences() if slower == 1 else [])
        got = page.evaluate(JS, given) | dict(browser=browser.version)
        browser.close()
    return got

@call_parse
def main(
    json:Path=RESULTS/'live.json'  # file of the figures
):
    "Measure in the browser and write the figures"
    torch.set_num_threads(1)
    elmo = Elmo.from_pretrained('mini-en').eval()
    with tempfile.TemporaryDirectory() as folder:
        for o in ('elmo.js', 'speak.js', 'answers.js'):
            shutil.copyfile(ROOT/'nbs'/'live'/o, f'{folder}/{o}')
        boxed(Path(folder))
        with served(folder) as address: desk, phone = (in_browser(address, n) for n in (1, 4))
    exact = Elmo.from_pretrained('mini-en').eval().double().embed(sentences(), layers='all')
    single = [*elmo.embed(sentences(), layers='all')]
    def from_exact(vecs, hard=False):
        """The largest difference; `hard`: of the sentence that is one word two hundred times,
        whose rounding grows from step to step"""
        some = ((got, want) for text,got,want in zip(sentences(), vecs, exact) if want.size
                and text.startswith('word word word') == hard)
        return float(f'{max(np.abs(np.array(got) - want).max() for got,want in some):.1e}')
    def torch_time(s):
        t = time.perf_counter(); elmo.embed([s], layers='all')
        return 1000*(time.perf_counter() - t)
    size = lambda *names: sum((BOX/o).stat().st_size for o in names)
    def times(found, prefix=''):
        "Medians in milliseconds, and the slowest of the later half"
        later = found['times'][len(found['times'])//2:]
        ms = dict(start=round(found['start']), sentence=round(median(found['times']), 1),
                  slowest=round(max(later), 1), output=round(found['output']),
                  gap=round(median(found['gaps']), 1), map=round(median(found['maps']), 1))
        return {f'{prefix}{k}_ms': v for k,v in ms.items()}
    figures = dict(browser=f"Chromium {desk['browser']}", torch=torch.__version__,
                   sentences=len(TEN), words=len(word_tokenize(TEN[0])), **times(desk),
                   **times(phone, 'phone_'),
                   torch_sentence_ms=round(median(map(torch_time, TEN)), 1),
                   apart=from_exact(desk['layers']), torch_apart=from_exact(single),
                   hard=from_exact(desk['layers'], True), torch_hard=from_exact(single, True),
                   model_bytes=size('model.safetensors'),
                   output_bytes=size('output.safetensors', 'vocab.json'),
                   scripts_bytes=sum(f.stat().st_size for f in (ROOT/'nbs'/'live').glob('*.js')))
    write_figures(json, figures)
