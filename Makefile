# The two commands of a newcomer are `make pretrain` and `make test`; `make help` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.PHONY: help pretrain test test-all lab docs export clean

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
unexport PYTHONDONTWRITEBYTECODE VIRTUAL_ENV
# What `make pretrain` hands on: `make pretrain ARGS="tiny_shakespeare"`.
pretrain: ARGS ?= toy

# One call for many pages: each worker imports fastai once, and takes the next page when it is free
PAGES := $(BIN)/nbdev-test --n-workers 2 --timing --path-re
PYTEST := $(BIN)/python -m pytest -q -rfEs -n 2 --dist worksteal
# Two ways to one number, or a model and its copy
ROUNDED := $(foreach o,ai2 bilm charcnn elmo embed folder onnx recurrent softmax tagger,tests/test_$(o).py)
test test-all: export PATH := $(abspath $(BIN)):$(PATH)
test test-all: export OMP_NUM_THREADS := 1
test test-all: export HF_HUB_OFFLINE := 1
test test-all: export HF_DATASETS_OFFLINE := 1
test test-all: export TOKENIZERS_PARALLELISM := false
test test-all: export MPLBACKEND := agg

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

test: export  ## export the library from the notebooks, run the lessons and the quick tests (five to ten minutes)
	@$(PAGES) '/nbs/(start|use|course/[^/]*)[.]ipynb$$'
	@$(PYTEST) -m 'not slow'

test-all: test  ## and studies, library pages, slow tests, and numbers as on other processors
	@$(PAGES) '/nbs/(glossary|(studies|library)/[^/]*)[.]ipynb$$'
	@$(PYTEST) -m slow
	@ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -m 'not slow' $(ROUNDED)
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) -m 'not slow' $(ROUNDED)

lab: $(VENV)/.develop  ## open the course in JupyterLab
	@$(BIN)/jupyter lab nbs/course/00_quickstart.ipynb

docs: $(VENV)/.develop  ## build the documentation site into _docs (needs Quarto)
	@command -v quarto >/dev/null || { echo "The site is rendered by Quarto, which is not installed here."; \
	  echo "Get it from https://quarto.org/docs/get-started/ (or run $(BIN)/nbdev-install-quarto), then call 'make docs' again."; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nbdev-docs
	@$(BIN)/python tests/readme.py

export: $(VENV)/.develop  ## write the library and the README from the notebooks, and clean the notebooks
	@$(BIN)/nbdev-export
	@$(BIN)/nbdev-clean
	@$(BIN)/python tests/readme.py

clean:  ## remove the environment and everything that was built (models stay)
	@rm -rf $(VENV) _docs _proc *.egg-info .pytest_cache .hypothesis nbs/.quarto
