"""What a newcomer leaves in the working folder before `make test`, and sets in the environment.

What is there already is used, and stays; what is made here is removed at the end."""
import shutil, subprocess, sys, tempfile, time
from contextlib import contextmanager
from pathlib import Path

CACHES = {'.git', '.hypothesis', '.pytest_cache', '__pycache__'}

def train(folder, out, stop=False):
    "A small training in `folder`, as by the command; with `stop`, killed at its first checkpoint"
    options = '--model tiny --threads 1 --epochs'.split()
    program = 'from elmo_fastai.practice.command import elmo_pretrain; elmo_pretrain()'
    with tempfile.TemporaryDirectory() as elsewhere:
        text = Path(elsewhere)/'text.txt'
        text.write_text('She sat by the river .\nThe bank was closed .\n'*200)
        command = [sys.executable, '-c', program, text, '--out', out, *options]
        training = subprocess.Popen([*command, '1000' if stop else '1'], cwd=folder,
                                    stdout=subprocess.DEVNULL)
        if stop:
            run = folder/f'{out}.run'
            while training.poll() is None and not [*run.glob('0*.pt')]: time.sleep(.1)
            training.kill()
        training.wait()

def make_folder(path):
    path.mkdir()
    (path/'a.txt').write_text('a text of the newcomer\n'*20)

LEFT = {'models/toy': lambda root: train(root, 'models/toy'),
        'models/x.run': lambda root: train(root, 'models/x', stop=True),
        'toy': lambda root: (root/'toy').write_text('a text of the newcomer\n'*20),
        'train': lambda root: make_folder(root/'train')}

@contextmanager
def left(root):
    "With all that a newcomer leaves in the folder `root`"
    new = [name for name in LEFT if not (root/name).exists()]
    try:
        for name in new:
            LEFT[name](root)
            if not (root/name).exists(): raise RuntimeError(f'{name} could not be made')
        yield
    finally:
        for name in new:
            if (root/name).is_dir(): shutil.rmtree(root/name)
            else: (root/name).unlink(missing_ok=True)

def state(root):
    "What lies in the folder `root`, and when each file of a newcomer was written"
    files = [f for name in LEFT for f in [root/name, *(root/name).rglob('*')] if f.is_file()]
    names = {f.name for f in root.iterdir()} - CACHES
    return names | {(f.relative_to(root).as_posix(), f.stat().st_mtime_ns) for f in files}

def copies(folder):
    "Fills `folder` with local copies of corpora: not the published ones, but of their form"
    text = 'The bank of the river .\nShe went to the bank with her money .\n'*50
    files = {'tiny_shakespeare/input.txt': text, 'novels/a.txt': text,
             'ud-ewt/en_ewt-ud-train.conllu': '', 'ai2_fixture/options.json': '{}'}
    for split in ('train', 'valid', 'test'): files[f'wikitext-2/{split}.txt'] = text
    for split in ('train', 'dev', 'test'): files[f'sst2/sst2.{split}.tsv'] = '1\tgood\n0\tbad\n'
    for name, content in files.items():
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        (folder/name).write_text(content)
