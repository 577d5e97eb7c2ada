# Needs Python >= 3.11 with venv, and make. Everything else goes into $(VENV).
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	if $$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v $$p; break; fi; done)
ARGS ?=

.PHONY: help demo test lint bench stress build clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo     talk, stop, go on in a second process, see what it used: no key, no network'
	@echo 'make test     all tests; databases that are not there are skipped with the reason'
	@echo 'make lint     ruff and mypy'
	@echo 'make bench    the ratios of the README, measured here'
	@echo 'make stress   the long tests: kills, conflicts, many processes'
	@echo 'make build    the wheel and the source archive, in dist/'

demo: $(VENV)/.cli
	@$(VENV)/bin/ctxstore demo $(ARGS)

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -n auto -m 'not stress' $(ARGS)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.dev
	$(VENV)/bin/python -m tests.benchmarks $(ARGS)

stress: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m stress $(ARGS)

build: $(VENV)/.dev
	$(VENV)/bin/python -m build

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@test -n '$(PYTHON)' || { echo 'no Python >= 3.11 with venv was found; install one, or name it: make PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.cli: pyproject.toml | $(VENV)/bin/python
	@echo 'installing into $(VENV) ...'
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[cli]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
