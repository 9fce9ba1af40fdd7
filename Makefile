# `make help` lists the targets. Everything is installed in .venv, with the versions of constraints.txt.

PYTHON ?= python3
PIP_ARGS ?=
PYTEST_ARGS ?=
COVERAGE ?=
FUZZ_RUNS ?= 1000000

VENV := .venv
INSTALL := $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS)
# Tests run in two processes with one thread each; more threads than cores make small models far slower. Some tests of
# real peers mostly wait: whoever is idle takes over what is left (worksteal).
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(VENV)/bin/python -m pytest
# mkdocs-material would advertise its successor on every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(VENV)/bin/python -m mkdocs

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check slow bench bench-peers fuzz docs docs-serve clean

help:  ## list these targets
	@echo "Usage: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Variables: PYTHON=python3.12      the interpreter that .venv is made with (3.11 or newer)"
	@echo "           PYTEST_ARGS='-k ring'  more arguments for pytest in test and slow"
	@echo "           COVERAGE=yes           measure coverage in test; fails below what pyproject.toml says"
	@echo "           FUZZ_RUNS=1000000      how many inputs fuzz tries"
	@echo "           PIP_ARGS='...'         more arguments for pip install, such as another index"

demo: $(VENV)/.runtime  ## install and run the demo: personalised learning among 20 peers, offline
	$(VENV)/bin/coterie demo

test: demo $(VENV)/.dev  ## the demo, then the whole test suite but its slow part
	$(PYTEST) -n 2 --dist worksteal $(if $(COVERAGE),--cov --cov-report=term) $(PYTEST_ARGS)

check: $(VENV)/.dev  ## formatting and lint (ruff), types (mypy), also as on Windows and macOS
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --platform win32
	$(VENV)/bin/mypy --platform darwin

slow: $(VENV)/.dev  ## the slow tests
	$(PYTEST) -m slow $(PYTEST_ARGS)

bench: $(VENV)/.runtime  ## the benchmarks: ratios measured in one run, also in benchmarks.json
	$(VENV)/bin/python -m benchmarks

bench-peers: $(VENV)/.runtime  ## the same work by Coterie and by others, each in an environment of its own
	PIP_ARGS='$(PIP_ARGS)' $(VENV)/bin/python -m benchmarks rivals

fuzz: $(VENV)/.fuzz  ## a million inputs for what reads bytes from others: messages, sealed sums, cards, state (Linux)
	for part in messages sealed; do \
		OMP_NUM_THREADS=1 $(VENV)/bin/python fuzz/fuzz_$$part.py -runs=$(FUZZ_RUNS) -max_len=4096 -timeout=5 \
			-rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix=fuzz/ || exit 1; \
	done

docs: $(VENV)/.docs  ## the documentation as a site in site/; warnings are errors, and nothing is loaded from other hosts
	$(MKDOCS) build --quiet
	@echo "Open site/index.html, or run make docs-serve"

docs-serve: $(VENV)/.docs  ## the same at http://127.0.0.1:8000, built again when a page changes
	$(MKDOCS) serve

clean:  ## remove .venv, caches and build output; runs stay
	rm -rf $(VENV) .venv-rivals build dist site src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
	find src tests benchmarks fuzz -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: installed once, and again when what is asked for changes.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo \
		"Coterie needs Python 3.11 or newer, and '$(PYTHON)' is missing or older." \
		"Name another interpreter: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
		"'$(PYTHON)' cannot make virtual environments: its venv module is missing." \
		"On Debian or Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "Installing Coterie in $(VENV) (the first time takes a few minutes)"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(INSTALL) --editable '.[test,dev]'
	@touch $@

$(VENV)/.fuzz: $(VENV)/.runtime
	$(INSTALL) --editable '.[fuzz]'
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(INSTALL) --editable '.[docs]'
	@touch $@
