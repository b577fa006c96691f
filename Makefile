# The two commands of a newcomer are `make pretrain` and `make test`; `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: help pretrain check test test-leftovers test-rest test-all test-rounding robust lab run docs book preview readme export bench clean

VENV ?= .venv
BIN  := $(VENV)/bin
# uv makes the environment where it is installed, several times faster; else venv and pip make the same one.
UV     := $(shell command -v uv 2>/dev/null)
# The first Python from 3.11 on that runs here (uv gets one where there is none); name another with `make … PYTHON=/path/to/python3.13`.
PYTHON ?= $(or $(shell for p in python3.13 python3.12 python3.14 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done),$(if $(UV),3.13))
# What `make` holds still; without it, the newest of all: `make … CONSTRAINTS=`.
CONSTRAINTS ?= constraints.txt
# Half of an installation is compiling modules that nobody imports; Python keeps what it does import.
INSTALL := $(if $(UV),$(UV) pip install -q --python $(BIN)/python,$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check) \
	$(if $(CONSTRAINTS),-c $(CONSTRAINTS))
unexport PYTHONDONTWRITEBYTECODE
# What `make pretrain` and `make robust` hand on: `make pretrain ARGS="tiny_shakespeare"`.
pretrain: ARGS ?= toy

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer was found. Install Python 3.13, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.13"; exit 1; }
ifneq ($(UV),)
	@$(UV) venv -q --seed --python $(PYTHON) $(VENV)
else
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) can't make a virtual environment. On Debian and Ubuntu: apt install python3-venv"; rm -rf $(VENV); exit 1; }
endif

$(VENV)/.library: $(BIN)/python settings.ini setup.py pyproject.toml constraints.txt
	@echo "Installing the library and what it needs into $(VENV) (a few minutes, once) …"
	@$(INSTALL) torch torchvision -e .
	@touch $@

$(VENV)/.develop: $(VENV)/.library
	@echo "Installing the development tools into $(VENV) …"
	@$(INSTALL) -e '.[dev]'
	@touch $@

pretrain: $(VENV)/.library  ## pretrain a biLM on the built-in corpus (other corpora: ARGS="tiny_shakespeare", ARGS="my.txt --epochs 3")
	@$(BIN)/elmo_pretrain $(ARGS)

check: $(VENV)/.develop  ## enough after a change to prose: form of the pages, export, README; runs no cell (half a minute)
	@$(BIN)/python tests/run.py --check

test: $(VENV)/.develop  ## check that library and notebooks agree, run the course and the tests (some eight minutes)
	@$(BIN)/python tests/run.py

test-leftovers: $(VENV)/.develop  ## the tests once more, where a newcomer has left files and settings (five minutes)
	@$(BIN)/python tests/run.py --leftovers

test-rest: $(VENV)/.develop  ## what `make test` leaves out: studies, library pages, slow tests
	@$(BIN)/python tests/run.py --rest

test-all: $(VENV)/.develop  ## everything: `make test` and the three others
	@$(BIN)/python tests/run.py --all

test-rounding: $(VENV)/.develop  ## the tests that compare numbers, once more as on other processors (three minutes)
	@$(BIN)/python tests/run.py --rounding

robust: $(VENV)/.develop  ## all of that under other seeds, roundings and instructions (hours; what it can: ARGS=--help)
	@$(BIN)/python tests/robust.py $(ARGS)

lab: $(VENV)/.develop  ## open the course in JupyterLab
	@$(BIN)/jupyter lab nbs/course/00_quickstart.ipynb

docs: $(VENV)/.develop  ## build the documentation site into _docs (needs Quarto)
	@command -v quarto >/dev/null || { echo "The site is rendered by Quarto, which is not installed here."; \
	  echo "Get it from https://quarto.org/docs/get-started/ (or run $(BIN)/nbdev-install-quarto), then call 'make docs' again."; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nbdev-docs

book: $(VENV)/.develop  ## the course as a PDF and an ePub in _docs (needs the site of `make docs`, and Chromium)
	@$(BIN)/python tests/book.py

CHAPTERS ?= nbs/*.ipynb nbs/*/*.ipynb
run: $(VENV)/.develop  ## run chapters and keep what they show, figures as vectors (some: CHAPTERS=nbs/course/05*.ipynb)
	@$(BIN)/python tests/execute.py $(ARGS) $(CHAPTERS)

preview: $(VENV)/.develop  ## the chapters as plain pages in _preview, without Quarto (some: CHAPTERS=nbs/course/05*.ipynb)
	@mkdir -p _preview && cp -R nbs/images nbs/live _preview/
	@for page in $(CHAPTERS); do dirname $$page; done | sort -u | while read -r shelf; do \
	  for page in $(CHAPTERS); do if [ "$$(dirname $$page)" = "$$shelf" ]; then echo $$page; fi; done | \
	  xargs $(BIN)/jupyter nbconvert --log-level=ERROR --to html --output-dir "_preview/$${shelf#nbs}"; done
	@echo "The pages are in _preview"

readme: $(VENV)/.develop  ## write README.md from nbs/start.ipynb
	@$(BIN)/python tests/readme.py

export: $(VENV)/.develop  ## write the library from the notebooks and the reference from the library, and clean the notebooks
	@$(BIN)/nbdev-export && $(BIN)/nbdev-clean && $(BIN)/python tests/reference.py && $(BIN)/python tests/shelves.py

BENCHMARKS := train_step token_norm softmax processes scale state char_vocab embed_speed onnx_speed probe
bench: $(VENV)/.develop  ## measure speed and memory, both sides in one run (long; one of them: BENCHMARKS=train_step)
	@for b in $(BENCHMARKS); do echo; echo "== $$b"; $(BIN)/python tests/benchmarks/$$b.py; done
	@case " $(BENCHMARKS) " in *" train_step "*) $(BIN)/python tests/benchmarks/train_step.py --vocab 100000;; esac

clean:  ## remove the environment and everything that was built (models stay)
	@rm -rf $(VENV) _docs _proc _preview _robust *.egg-info .pytest_cache .hypothesis nbs/.quarto
