.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
UV := .tools/bin/uv
UV_VERSION := 0.13.8
BIN := .venv/bin
STATE ?= .cache/run
MINUTES ?= 60
WORKERS ?= auto
FAST := codecs config decoding delivery dialects exporters fleet hub model registry runtime spool tools
PYTEST := $(BIN)/pytest -q --numprocesses=$(WORKERS) --dist=loadgroup
export UV_PYTHON_DOWNLOADS := never
unexport PYTHONDONTWRITEBYTECODE # every process of the tests would compile what it imports
# Temporary files of the tests are in memory if there is room: they call fsync all the time
export PYTEST_DEBUG_TEMPROOT := $(shell df --output=avail --block-size=1G /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 >= 4 {print "/dev/shm"}')

.PHONY: help
help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-10s\033[0m %s\n", $$1, $$2}'

.PHONY: run
run: setup ## Set up, then run hub and agent on this host with the embedded store; Ctrl-C stops
	@exec $(BIN)/gpufleet up --state $(STATE)

.PHONY: test
test: setup ## Everything that CI runs: fetches what the tests need, then lint and all tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync style fetch
	@$(MAKE) --no-print-directory --jobs=2 types tests

.PHONY: tests
tests: setup
	$(PYTEST)

.PHONY: test-long
test-long: export GPUFLEET_TEST_PROFILE = long
test-long: test ## All tests with many more generated examples and crash rounds; takes hours

KUBECONFIG ?=
# URL of the cluster's etcd, if it can be compacted without TLS: for the tests of expired versions
ETCD ?=

.PHONY: test-kube
test-kube: setup ## Kubernetes client, collector, chart, its roles and pod security with the cluster of KUBECONFIG=file; deletes what it creates
	@test -n "$(KUBECONFIG)" || { echo "Name the cluster: make test-kube KUBECONFIG=file"; exit 2; }
	@$(BIN)/python tests/support/peers.py fetch helm kubectl
	GPUFLEET_TEST_KUBECONFIG=$(abspath $(KUBECONFIG)) GPUFLEET_TEST_ETCD=$(ETCD) $(BIN)/pytest -q -rs tests/holders/kubernetes/test_contract.py \
		tests/deploy/test_pod_security.py tests/deploy/test_chart.py::test_api_server_accepts_every_rendering \
		tests/deploy/test_roles.py::test_api_server_permits_the_roles_and_no_more \
		tests/cluster/test_process.py::test_replicas_killed_in_turn_at_a_real_api_server_lose_nothing

.PHONY: check
check: setup ## The two-minute loop: lint and the tests of the pure packages
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint fast

.PHONY: fast
fast: setup
	@$(BIN)/python tests/support/compiler.py
	$(PYTEST) --exitfirst -m "not system and not slow" $(addprefix tests/,$(FAST))

.PHONY: fetch
fetch: setup
	@$(BIN)/python tests/support/compiler.py
	@$(BIN)/python tests/support/peers.py fetch

.PHONY: lint
lint: style types ## Style, layers, types

.PHONY: style
style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.style

.PHONY: types
types: setup
	nice -n 19 $(BIN)/mypy # it uses the processors while tests wait

.PHONY: format
format: setup ## Let ruff put the code in shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: docs
docs: setup ## Render the reference pages that come from the code, and the diagrams
	$(BIN)/python -m gpufleet.cli.docs
	@$(BIN)/python tests/support/peers.py fetch dot
	$(BIN)/python -m tools.diagrams "$$($(BIN)/python tests/support/peers.py list | awk '$$1 == "dot" {print $$2}')"

.PHONY: picture
picture: setup ## Record pages of a hub with a simulated fleet, and take the pictures of README.md and docs/web-page.md
	@$(BIN)/python tests/support/peers.py fetch chromium
	$(BIN)/python -m tools.picture

.PHONY: manifests
manifests: setup ## Render the rules of the Helm chart, and the plain manifests of deploy/kubernetes
	@$(BIN)/python tests/support/peers.py fetch helm
	$(BIN)/python -m tools.manifests "$$($(BIN)/python tests/support/peers.py list | awk '$$1 == "helm" {print $$2}')"

.PHONY: bench
bench: setup ## Measure; figures and method in docs/performance.md
	@$(BIN)/python tests/support/compiler.py
	$(BIN)/python -m benchmarks

.PHONY: soak
soak: setup ## A fifteenth of the fleet goal for MINUTES (60), with queries beside it; fails if memory grows or a row is lost
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

NODES ?= 200
HOURS ?= 24

.PHONY: clean-fleet
clean-fleet: setup ## NODES (200) without faults for HOURS (24) of simulated time; fails at any finding
	nice $(BIN)/python -m benchmarks.clean_fleet --nodes $(NODES) --hours $(HOURS)

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
