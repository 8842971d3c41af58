# Twintape. `make demo` and `make test` need nothing but Python 3.11, make and a C compiler:
# each prepares its own environment first, once.

SHELL := /bin/sh
.DEFAULT_GOAL := help

BIN := .venv/bin
CODE := twintape feeds middleware adapters stream_admin replay spark perf scripts tests

# Two workers at most by default: many tests start processes and sockets of their own.
JOBS ?= 2
BENCH ?= decode lines shm shm-scale
SEED ?=
SEEDS ?= 10
ARGS ?=

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Prepare .venv: locked packages, the twintape command, compiled kernels
	@scripts/setup

.PHONY: demo
demo: setup ## Watch an exchange, two lossy lines and one perfect stream (ARGS=... for its options)
	@$(BIN)/twintape demo $(ARGS)

.PHONY: test
test: lint ## Run every check and every test, as CI does
	$(BIN)/pytest -m "not serial and not interpreted and not checked" -n $(JOBS) --dist loadfile $(ARGS)
	$(BIN)/pytest -m "serial and not interpreted" $(ARGS)
	@echo "== kernels again, with bounds checks"
	HYPOTHESIS_PROFILE=fast NUMBA_BOUNDSCHECK=1 $(BIN)/pytest -m "(kernels or checked) and not interpreted" -n $(JOBS) --dist loadfile -q
	@echo "== kernels again, interpreted, and what only interpreted code can show"
	HYPOTHESIS_PROFILE=fast NUMBA_DISABLE_JIT=1 $(BIN)/pytest -m "kernels or checked or interpreted" -n $(JOBS) --dist loadfile -q

.PHONY: lint
lint: setup ## Check style, types and layers
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: setup ## Put the code into its standard form
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

.PHONY: bench
bench: setup ## Measure us beside our peers and the physical limit (BENCH="decode lines"); figures go to out/
	@mkdir -p out
	@for name in $(BENCH); do \
		$(BIN)/twintape bench $$name --check --json out/$$name.json --picture out/$$name.png $(ARGS) || exit 1; \
	done

.PHONY: simulate
simulate: setup ## Seeded faults and fuzzing at length (SEED=8841 for one seed, SEEDS=100 for many, TWINTAPE_LONG=1)
	TWINTAPE_SEED=$(SEED) TWINTAPE_SEEDS=$(SEEDS) $(BIN)/pytest tests/simulation --timeout 7200 $(ARGS)

.PHONY: lock
lock: ## Choose dependency versions anew and write the lock files (takes minutes)
	@scripts/lock

.PHONY: clean
clean: ## Remove everything that make made
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
