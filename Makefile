# The two commands of a newcomer are `make pretrain` and `make test`; `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: help pretrain test robust lab run docs preview readme export bench clean

VENV ?= .venv
BIN  := $(VENV)/bin
# The first Python of 3.11, 3.12, 3.10 that runs here; name another with `make … PYTHON=/path/to/python3.11`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.10 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3,10) <= sys.version_info[:2] <= (3,12))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# Half of an installation is compiling modules that nobody imports; Python keeps what it does import.
PIP  := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
# What `make pretrain` and `make robust` hand on: `make pretrain ARGS="tiny_shakespeare"`.
pretrain: ARGS ?= toy

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.10, 3.11 or 3.12 was found. Install Python 3.11, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) can't make a virtual environment. On Debian and Ubuntu: apt install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.library: $(BIN)/python settings.ini setup.py constraints.txt
	@echo "Installing the library and its pinned requirements into $(VENV) (a few minutes, once) …"
	@$(PIP) torch torchvision -e .
	@touch $@

$(VENV)/.develop: $(VENV)/.library
	@echo "Installing the development tools into $(VENV) …"
	@$(PIP) -e '.[dev]'
	@touch $@

pretrain: $(VENV)/.library  ## pretrain a biLM on the built-in corpus (other corpora: ARGS="tiny_shakespeare", ARGS="my.txt --epochs 3")
	@$(BIN)/elmo_pretrain $(ARGS)

test: $(VENV)/.develop  ## check that library and notebooks agree, run every notebook and the tests
	@$(BIN)/python tests/run.py

robust: $(VENV)/.develop  ## all of that under other seeds, roundings and instructions (hours; what it can: ARGS=--help)
	@$(BIN)/python tests/robust.py $(ARGS)

lab: $(VENV)/.develop  ## open the course in JupyterLab
	@$(BIN)/jupyter lab nbs/course/00_quickstart.ipynb

docs: $(VENV)/.develop  ## build the documentation site into _docs (needs Quarto)
	@command -v quarto >/dev/null || { echo "The site is rendered by Quarto, which is not installed here."; \
	  echo "Get it from https://quarto.org/docs/get-started/ (or run $(BIN)/nbdev_install_quarto), then call 'make docs' again."; exit 1; }
	@touch README.md      # it is written by `make readme`; nbdev_docs would write another where it looks older than the index
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nbdev_docs

CHAPTERS ?= nbs/*.ipynb nbs/*/*.ipynb
run: $(VENV)/.develop  ## run chapters and keep what they show, figures as vectors (some: CHAPTERS=nbs/course/05*.ipynb)
	@$(BIN)/python tests/execute.py $(ARGS) $(CHAPTERS)

preview: $(VENV)/.develop  ## the chapters as plain pages in _preview, without Quarto (some: CHAPTERS=nbs/course/05*.ipynb)
	@$(BIN)/jupyter nbconvert --log-level=ERROR --to html --output-dir _preview $(CHAPTERS) && echo "The pages are in _preview"

readme: $(VENV)/.develop  ## write README.md from nbs/index.ipynb
	@$(BIN)/python tests/readme.py

export: $(VENV)/.develop  ## write the library from the notebooks and the reference from the library, and clean the notebooks
	@$(BIN)/nbdev_export && $(BIN)/nbdev_clean && $(BIN)/python tests/reference.py

BENCHMARKS := bench_batches train_step token_norm softmax precision processes scale state ablation char_vocab embed_speed embed_memory onnx_speed probe
bench: $(VENV)/.develop  ## measure speed and memory, both sides in one run (long; one of them: BENCHMARKS=train_step)
	@for b in $(BENCHMARKS); do echo; echo "== $$b"; $(BIN)/python tests/benchmarks/$$b.py; done
	@case " $(BENCHMARKS) " in *" train_step "*) $(BIN)/python tests/benchmarks/train_step.py --vocab 100000;; esac

clean:  ## remove the environment and everything that was built (models stay)
	@rm -rf $(VENV) _docs _proc _preview _robust *.egg-info .pytest_cache .hypothesis nbs/.quarto
