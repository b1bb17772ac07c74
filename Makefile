# Two commands for a fresh machine: `make demo` and `make test`. The rest are for people who change the code.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# pinned, and the CPU build where it can be had: an unpinned torch brings gigabytes of CUDA libraries
TORCH ?= 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
SOURCES := sb3_nser tests examples docs/hooks
DEMO_ARGS ?=
# two processes, each with one torch thread and its own model server; a file's tests stay together
PYTEST_ARGS ?= -n 2 --dist loadfile

.PHONY: help demo test pytest pytest-quick type lint format check-codestyle doc commit-checks setup-demo setup-test setup-dev clean

help:
	@echo "make demo            set everything up in $(VENV) and run the main job"
	@echo "make test            set everything up in $(VENV) and run the tests"
	@echo "make commit-checks   format, types, lint, docs (after: make setup-dev)"

demo: setup-demo
	$(BIN)/sb3-nser demo $(DEMO_ARGS)

test: setup-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

pytest:
	$(BIN)/python -m pytest $(PYTEST_ARGS)

pytest-quick:
	$(BIN)/python -m pytest -m "not slow and not llm" $(PYTEST_ARGS)

type:
	$(BIN)/mypy

lint:
	$(BIN)/ruff check $(SOURCES)

format:
	$(BIN)/ruff check --fix --select I $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

check-codestyle:
	$(BIN)/ruff check --select I $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

doc:
	$(BIN)/mkdocs build --strict

commit-checks: format type lint doc

setup-demo: $(VENV)/.installed-demo
setup-test: $(VENV)/.installed-test
setup-dev: $(VENV)/.installed-dev

# The first thing that a machine may lack ends the set-up with a sentence, not with a traceback.
$(VENV)/.torch:
	@command -v $(PYTHON) >/dev/null || { echo "This needs Python 3.10 or newer: no '$(PYTHON)' found. On Debian: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "This needs Python 3.10 or newer: '$(PYTHON)' is $$($(PYTHON) -V). Name another with: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import shutil, sys; sys.exit(shutil.disk_usage(".").free < 4e9)' || { echo "This needs about 4 GB of free disk space here."; exit 1; }
	@echo "Setting up $(VENV) (a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1] + "/torch/", timeout=5)' $(TORCH_CPU_INDEX) 2>/dev/null; \
	then echo "Installing torch $(TORCH), CPU build ..."; $(BIN)/python -m pip install --quiet --index-url $(TORCH_CPU_INDEX) "torch==$(TORCH)"; \
	else echo "Installing torch $(TORCH) ..."; $(BIN)/python -m pip install --quiet "torch==$(TORCH)"; fi \
	|| { echo "torch $(TORCH) could not be installed: see pip's message above. This needs a package index (PyPI or a mirror)."; exit 1; }
	@touch $@

define install
	@echo "Installing sb3-nser[$(1)] ..."
	$(BIN)/python -m pip install --quiet --editable ".[$(1)]" "torch==$(TORCH)" \
	|| { echo "The packages could not be installed: see pip's message above. This needs a package index (PyPI or a mirror)."; exit 1; }
	@touch $@
endef

$(VENV)/.installed-demo: $(VENV)/.torch pyproject.toml
	$(call install,demo$(comma)local$(comma)fast)

$(VENV)/.installed-test: $(VENV)/.torch pyproject.toml
	$(call install,tests$(comma)local$(comma)fast$(comma)zoo)

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(call install,tests$(comma)local$(comma)fast$(comma)zoo$(comma)demo$(comma)docs$(comma)dev)

comma := ,

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
