# Every target installs what it needs into .venv first; with nothing changed that costs a few
# milliseconds, because a stamp file newer than pyproject.toml says it is done.

# Distributions build their Python with profile-guided optimization, version managers mostly do not, which costs the
# server about a quarter more processor time (docs/performance.md). So the system's own is taken if it has everything
# we need, C headers included; `make PYTHON=python3` names another.
SYSTEM_PYTHON := /usr/bin/python3
WILL_DO := import os, sys, sysconfig, venv, ensurepip; \
  sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PYTHON ?= $(shell $(SYSTEM_PYTHON) -c '$(WILL_DO)' 2>/dev/null && echo $(SYSTEM_PYTHON) || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Only one at a time, whatever `make -j` makes of it: two pips in one environment tread on each other.
INSTALL := flock $(VENV)/.lock $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
VENV_READY := $(VENV)/.stamp-venv
RUNTIME := $(VENV)/.stamp-runtime
COMPILER := $(VENV)/.stamp-compiler
DEV := $(VENV)/.stamp-dev

.PHONY: help serve compiled test test-exhaustive bench demo-audit lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(RUNTIME) compiled ## run the server here (settings: docs/configuration.md)
	$(BIN)/topicsd serve

compiled: $(COMPILER) ## compile the hot modules for this machine: about 40 % less CPU per small request (needs a C compiler; a minute)
	$(BIN)/topicsd compile --if-possible

test: $(DEV) ## lint, types, and all tests but the long ones (needs Java and Chromium: installs them from Debian if it may)
	@$(MAKE) --no-print-directory --jobs 2 lint compiled
	@$(BIN)/python -m tests.support.java
	@$(BIN)/python -m tests.support.chromium >/dev/null
	$(BIN)/python -m pytest -m "not exhaustive" --numprocesses 2 --dist loadgroup

test-exhaustive: $(DEV) ## the long matrices; prints the number of crash points
	$(BIN)/python -m pytest -m exhaustive -s --timeout 0 --hypothesis-profile=exhaustive

bench: $(DEV) compiled ## topicsd next to Redis and NATS (installs them from Debian, or says how)
	$(BIN)/python -m perf.compare

demo-audit: $(DEV) ## audit a small store and a damaged copy of it; prints where the two reports are
	$(BIN)/python -m tests.support.demo_audit

lint: $(DEV) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

clean: ## remove caches and build products; keeps .venv and all data
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The checks come first because their own failures are cryptic: an old Python fails deep inside pip,
# and Debian's python3 has a venv module that only fails once it looks for ensurepip.
$(VENV_READY):
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "topicsd needs Python 3.11 or newer, and there is no $(PYTHON) here." >&2; \
	  echo "Debian, Ubuntu: sudo apt install python3 python3-venv   (or: make PYTHON=/path/to/python3.11)" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "topicsd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Install a newer one (Debian 12, Ubuntu 24.04: sudo apt install python3 python3-venv)" >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "Debian, Ubuntu: sudo apt install python3-venv" >&2; \
	  exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

$(RUNTIME): pyproject.toml | $(VENV_READY)
	$(INSTALL) .
	@touch $@

$(COMPILER): pyproject.toml | $(VENV_READY)
	$(INSTALL) '.[compile]'
	@touch $@ $(RUNTIME)

# Also fulfils the other stamps, so that `make serve` after `make test` installs nothing.
$(DEV): pyproject.toml | $(VENV_READY)
	$(INSTALL) '.[dev]'
	@touch $@ $(RUNTIME) $(COMPILER)
