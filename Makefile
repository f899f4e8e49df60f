# The developer's verbs. Nothing has to be activated: every verb uses $(VENV)/bin, made on first use.
#
#   PYTHON=python3.12   another interpreter          VENV=/tmp/venv     another place for the environment
#   PIP_ARGS=...        more arguments for pip       PYTEST_ARGS=...    more arguments for pytest
#   DEMO_ARGS=...       arguments of headway demo, such as --twin
#   WORKERS=auto        test processes side by side, each file in one of them (0: none, to see tests print)

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
WORKERS ?= auto
PYTEST := pytest -n $(WORKERS) --dist loadfile

BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.ready-bench

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format bench docs clean

help:  ## list these verbs
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(READY)  ## plan, train, kill, resume and report a small real run (about 3 minutes)
	@$(BIN)/headway demo $(DEMO_ARGS)

test: $(READY)  ## the test suite
	@$(BIN)/$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-all: $(READY)  ## the test suite and the tests that need minutes each
	@$(BIN)/$(PYTEST) $(PYTEST_ARGS)

check: $(READY)  ## format, lint, types, import contracts and the quick tests (about two minutes)
	@$(BIN)/ruff format --check src tests bench
	@$(BIN)/ruff check src tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@HEADWAY_TEST_EXAMPLES=20 $(BIN)/$(PYTEST) -m "not slow and not e2e and not layouts" $(PYTEST_ARGS)

format: $(READY)  ## rewrite the sources in the house format
	@$(BIN)/ruff format src tests bench
	@$(BIN)/ruff check --fix src tests bench

bench: $(BENCH_READY)  ## measure, and store the figures under docs/results/
	@$(BIN)/python bench/run.py

docs: $(READY)  ## write docs/reference/ anew from the help texts and the recipe's schema
	@$(BIN)/python -m headway.cli.reference docs/reference

clean:  ## remove the environment and the tools' caches (never runs or data)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist

# The stamp is written last, so an interrupted installation is taken up again. A half-made environment (no working pip in
# it) is made anew; a whole one is kept and only brought up to date.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "$(PYTHON) was not found. Headway needs Python 3.11 or newer: install it, or run  make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1). Headway needs Python 3.11 or newer: run  make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 3; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3-venv. Then run make again." >&2; exit 3; }
	@rm -f $(READY) $(BENCH_READY)
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	   echo "Creating $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv --clear $(VENV); fi
	@echo "Installing Headway and PyTorch into $(VENV): 1 to 3 minutes when the packages come fast, once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[engine,dev]'
	@touch $(READY)

$(BENCH_READY): $(READY)
	@echo "Installing what the benchmarks compare with into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[engine,dev,bench]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt $(PIP_ARGS) litgpt
	@touch $(BENCH_READY)
