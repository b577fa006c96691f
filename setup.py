"""Package metadata, read from `settings.ini`: the one place for name, version and requirements."""
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup, find_packages

config = ConfigParser(delimiters=['='])
config.read(Path(__file__).parent/'settings.ini', encoding='utf-8')
cfg = config['DEFAULT']

statuses = ['0 - None', '1 - Planning', '2 - Pre-Alpha', '3 - Alpha', '4 - Beta', '5 - Production/Stable', '6 - Mature', '7 - Inactive']
minors = [v for v in ('3.10', '3.11', '3.12') if v >= cfg['min_python']]

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'].split(),
    long_description=(Path(__file__).parent/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    url=cfg['git_url'], author=cfg['author'], author_email=cfg['author_email'], license='Apache-2.0',
    classifiers=[f"Development Status :: {statuses[int(cfg['status'])]}", f"Intended Audience :: {cfg['audience']}",
                 f"Natural Language :: {cfg['language']}", *(f'Programming Language :: Python :: {v}' for v in minors)],
    packages=find_packages(include=['elmo_fastai', 'elmo_fastai.*']), include_package_data=True,
    package_data={'elmo_fastai': ['box/card.md', 'box/*/*']},   # the model in the box
    python_requires=f">={cfg['min_python']},<3.13",
    install_requires=cfg['requirements'].split(),
    extras_require={'onnx': cfg['onnx_requirements'].split(), 'dev': [*cfg['dev_requirements'].split(), *cfg['onnx_requirements'].split()]},
    entry_points={'console_scripts': cfg['console_scripts'].split(), 'nbdev': [f"{cfg['lib_name']}=elmo_fastai._modidx:d"]},
    zip_safe=False)
