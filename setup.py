"""Package metadata: name, description and addresses stand in `pyproject.toml`, where nbdev looks for them; all else in `settings.ini`."""
import re, tomllib
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages

root = Path(__file__).parent
config = ConfigParser(delimiters=['='])
config.read(root/'settings.ini', encoding='utf-8')
cfg = config['DEFAULT']
project = tomllib.loads((root/'pyproject.toml').read_text(encoding='utf-8'))['project']
pythons = cfg['pythons'].split()
onnx = cfg['onnx_requirements'].split()

def description():
    "The README with addresses in the place of paths: the package index shows it far from the repository"
    text = (root/'README.md').read_text(encoding='utf-8')
    repository = project['urls']['Repository']
    text = re.sub(r'(!\[[^\]]*\]\()(?!https:)', rf'\1{repository}/raw/main/', text)
    text = re.sub(r'(\b(?:src|srcset)=")(?!https:)', rf'\1{repository}/raw/main/', text)
    return re.sub(r'(\]\()(?!https:|#)', rf'\1{repository}/blob/main/', text)

setup(
    version=cfg['version'], keywords=cfg['keywords'].split(),
    long_description=description(), long_description_content_type='text/markdown',
    author=cfg['author'], author_email=cfg['author_email'], license_expression='Apache-2.0',
    classifiers=['Development Status :: 3 - Alpha', 'Intended Audience :: Developers', 'Natural Language :: English',
                 *(f'Programming Language :: Python :: {v}' for v in pythons)],
    python_requires=f'>={pythons[0]}',
    packages=find_packages(include=['elmo_fastai', 'elmo_fastai.*']),
    include_package_data=False,
    package_data={'elmo_fastai': ['box/card.md', 'box/*/*',   # the model in the box
                                   'box/saved.md',             # the card of a saved model
                                   'text/*.txt']},             # tables of the toy language
    install_requires=cfg['requirements'].split(),
    extras_require={'onnx': onnx, 'dev': [*cfg['dev_requirements'].split(), *onnx]},
    entry_points={'console_scripts': cfg['console_scripts'].split(), 'nbdev': ['elmo_fastai=elmo_fastai._modidx:d']})
