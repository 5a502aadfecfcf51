# Everything runs in .venv, which `make setup` creates from the lock file. A second run finds it and is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help

.PHONY: help setup demo test compiled test-compiled test-fast lint format benchmarks router-benchmark lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with the locked dependencies

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup.sh
	touch $(STAMP)

demo: $(STAMP) ## learn tables for 2P2D and 3P1D, compare them with the usual rules, send HTTP traffic through the router
	$(BIN)/dolphin-search demo --out results/demo

test: $(STAMP) ## run all tests
	$(BIN)/python -m pytest

compiled: $(STAMP) ## compile the router's data plane into build/compiled (needs a C compiler, takes a minute)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/compiled.sh build/compiled

test-compiled: compiled ## run the router's tests on the compiled data plane
	PYTHONPATH=build/compiled $(BIN)/python -m pytest -m "not slow" tests/unit/router tests/integration/router

test-fast: $(STAMP) ## run the tests that take seconds
	$(BIN)/python -m pytest -m "not slow"

lint: $(STAMP) ## formatting, types, import rules, generated files
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/lint.sh

format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: $(STAMP) ## measure decisions, prefix lookups and the simulator; `make router-benchmark` compares routers
	$(BIN)/python benchmarks/decision.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/prefix_index.py

router-benchmark: $(STAMP) ## compare the router with vllm-router and sglang-router (20 minutes), and measure its memory (11 more)
	$(BIN)/python benchmarks/router/compare.py
	$(BIN)/python benchmarks/router/memory.py --soak-s 600
	$(BIN)/python benchmarks/router/tables.py

lock: $(STAMP) ## write requirements.lock anew from pyproject.toml
	PATH="$(CURDIR)/$(BIN):$$PATH" sh scripts/lock.sh requirements.lock

clean: ## remove the environment and all results
	rm -rf $(VENV) results build dist
