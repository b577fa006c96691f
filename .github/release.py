"""What the release workflow checks; it also runs by hand:

    python .github/release.py notes v0.1.0    # do tag, settings.ini and CHANGELOG.md agree? prints the section of the change log
    python .github/release.py archives dist   # do the archives that were built hold what an installation needs?
"""
import re, sys, tarfile, zipfile
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent

def stop(message): sys.exit(f'release: {message}')

def version():
    "The version in settings.ini, the one place where it stands."
    cfg = ConfigParser(delimiters=['='])
    cfg.read(root/'settings.ini', encoding='utf-8')
    return cfg['DEFAULT']['version']

def sections(changelog):
    "The sections of a change log: for each version what stands in brackets behind it, and the text below."
    parts = re.split(r'^## \[(.+?)\](?:\s*-\s*(.*))?\n', changelog, flags=re.M)
    def prose(text): return re.sub(r'^\[[^\]]+\]: \S+$', '', text, flags=re.M).strip()      # without the links' addresses
    return {v: ((state or '').strip(), prose(text)) for v,state,text in zip(parts[1::3], parts[2::3], parts[3::3])}

def notes(tag, changelog=None):
    "The change log's section for `tag`; the end with a message where tag, settings.ini and CHANGELOG.md do not agree."
    if tag != f'v{version()}': stop(f"the tag is {tag}, but settings.ini has version {version()}: the tag must be v{version()}")
    found = sections((root/'CHANGELOG.md').read_text(encoding='utf-8') if changelog is None else changelog)
    if version() not in found: stop(f"CHANGELOG.md has no section [{version()}]")
    date, text = found[version()]
    if not re.fullmatch(r'\d{4}-\d\d-\d\d', date): stop(f"CHANGELOG.md: the section [{version()}] needs the date of the release, as in '## [{version()}] - 2026-01-31', not '{date}'")
    if not text: stop(f"CHANGELOG.md: the section [{version()}] is empty")
    return text

def archives(folder):
    "The names of the wheel and the source archive in `folder`; the end with a message where one is missing, or misses a file."
    wheels, sources = sorted(Path(folder).glob('*.whl')), sorted(Path(folder).glob('*.tar.gz'))
    if len(wheels) != 1 or len(sources) != 1: stop(f"'{folder}' must hold one wheel and one source archive, not {len(wheels)} and {len(sources)}; empty it and run python -m build")
    with zipfile.ZipFile(wheels[0]) as z: wheel = set(z.namelist())
    with tarfile.open(sources[0]) as t: source = {n.partition('/')[2] for n in t.getnames()}
    library = {str(f.relative_to(root).as_posix()) for g in ('**/*.py', 'box/**/*', 'text/*.txt') for f in (root/'elmo_fastai').glob(g) if f.is_file()}
    for file,names,needed in (wheels[0], wheel, library), (sources[0], source, library | {'setup.py', 'pyproject.toml', 'settings.ini', 'README.md', 'LICENSE'}):
        if f'-{version()}' not in file.name: stop(f"{file.name} is not of version {version()}")
        if missing := sorted(needed - names): stop(f"{file.name} lacks {', '.join(missing)}")
    return wheels[0].name, sources[0].name

if __name__ == '__main__':
    match sys.argv[1:]:
        case ['notes', tag]: print(notes(tag))
        case ['archives', folder]: print(*archives(folder), sep='\n')
        case _: stop(__doc__)
