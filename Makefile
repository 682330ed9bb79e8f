.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
UV := .tools/bin/uv
UV_VERSION := 0.13.8
BIN := .venv/bin
STATE ?= .cache/run
MINUTES ?= 60
export UV_PYTHON_DOWNLOADS := never

.PHONY: help
help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}'

.PHONY: run
run: setup ## Set up, then run hub and agent on this host with the embedded store; Ctrl-C stops
	@exec $(BIN)/gpufleet up --state $(STATE)

.PHONY: test
test: setup lint ## Everything that CI runs: fetches what the tests need, then lint and all tests
	@$(BIN)/python tests/support/compiler.py
	@$(BIN)/python tests/support/peers.py fetch
	$(BIN)/pytest

.PHONY: check
check: setup lint ## The two-minute loop: lint and the tests that need no system packages
	@$(BIN)/python tests/support/compiler.py
	$(BIN)/pytest -q -x -m "not system"

.PHONY: lint
lint: setup ## Style, types, floors
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: setup ## Let ruff put the code in shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: docs
docs: setup ## Render the reference pages that come from the code
	$(BIN)/python -m gpufleet.cli.docs

.PHONY: bench
bench: setup ## Measure; figures and method in docs/performance.md
	@$(BIN)/python tests/support/compiler.py
	$(BIN)/python -m benchmarks

.PHONY: soak
soak: setup ## A fifteenth of the fleet goal for MINUTES (60), with queries beside it; fails if memory grows or a row is lost
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

SEED ?=

.PHONY: crash
crash: MINUTES = 10
crash: setup ## Kill a flush at every step; then kill, fill, cut, step clocks for MINUTES (10) and audit; SEED=N repeats that alone
	@$(BIN)/python tests/support/compiler.py
	$(if $(SEED),,$(BIN)/python -m tests.crash.sweep)
	$(BIN)/python -m tests.crash --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: setup
setup: .venv/.ready ## Make .venv/ with everything; quick when nothing changed

.venv/.ready: pyproject.toml uv.lock src/gpufleet/__init__.py | $(UV)
	$(UV) sync --frozen --all-extras --python $(PYTHON) --quiet
	@touch $@

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"gpufleet needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv .tools || { echo "This Python cannot make virtual environments: install its venv package (Debian: python3-venv)."; exit 1; }
	.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.PHONY: clean
clean: ## Remove everything that was made
	rm -rf .venv .tools .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
