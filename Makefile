# The two commands are `make lab` and `make test`; `make help` lists the rest.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

ifeq ($(OS),Windows_NT)
$(error dtlab does not run on native Windows: install WSL (wsl --install) and run make there)
endif

# Variables a user may set on the command line.
PYTHON ?=
TORCH_INDEX ?=
LAB_ARGS ?=
NPROC ?= 2
# Test processes, and notebooks, at a time. Many tests wait for a timeout, so more of them than cores pay.
TEST_JOBS ?= 3
NOTEBOOK_JOBS ?= 2
export PYTHON TORCH_INDEX

# .venv is made again only when pyproject.toml or the lock changes. A stamp's name holds their checksum, so a run
# that finds its stamp uses no network.
KEY := $(shell cat pyproject.toml requirements.lock | cksum | tr -s ' \t' '--')
BIN := .venv/bin
LAB := .venv/.stamp-$(KEY)-lab
DEV := .venv/.stamp-$(KEY)-dev
BENCH := .venv/.stamp-$(KEY)-bench

# In a container one is often root, which JupyterLab refuses unless told. It listens on 127.0.0.1 and asks for a token.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
FIRST_LESSON = $(notdir $(firstword $(wildcard notebooks/01*.ipynb) $(wildcard notebooks/00*.ipynb)))

.PHONY: help lab train test lint format types pytest notebooks notebooks-test bench gpu data lock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' Makefile
	@echo "  make lab TORCH_INDEX=URL  take torch from another index, e.g. the CPU index named on pytorch.org/get-started"
	@echo "  make lab LAB_ARGS=--no-browser  pass arguments to JupyterLab"

$(LAB):
	@tools/venv.sh lab $(LAB)

$(DEV):
	@tools/venv.sh dev $(LAB) $(DEV)

$(BENCH):
	@tools/venv.sh dev,bench $(LAB) $(DEV) $(BENCH)

data: $(LAB) ## prepare the flights data
	@$(BIN)/dtlab prepare --name flights

lab: data ## open JupyterLab on the first lesson
	$(BIN)/jupyter lab --ip=127.0.0.1 $(AS_ROOT) --ServerApp.root_dir=notebooks \
	    --LabApp.default_url=/lab/tree/$(FIRST_LESSON) $(LAB_ARGS)

train: $(LAB) ## train on the real flights with NPROC=2 ranks and write runs/report.json
	$(BIN)/dtlab train examples/flights.toml --nproc $(NPROC) --report runs/report.json

test: $(DEV) ## everything CI checks: lint, types, tests, notebooks
	@$(MAKE) --no-print-directory lint types pytest notebooks-test

lint: $(DEV) ## ruff
	@echo "== lint"
	@$(BIN)/ruff check .

format: $(DEV) ## let ruff format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV) ## mypy
	@echo "== types"
	@$(BIN)/mypy

pytest: $(DEV) ## the tests without the notebooks
	@echo "== tests"
	@if [ -d tests ]; then $(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder; \
	else echo "this copy has none: its notebooks are run below"; fi

# not for learners
notebooks: $(DEV) ## build notebooks/*.ipynb and notebooks/solutions/*.ipynb from notebooks/src
	$(BIN)/python -m dtlab.course build

# end
notebooks-test: $(DEV) ## run all notebooks under nbval without network; where their sources are, compare them first
	@echo "== notebooks"
	@if [ -d notebooks/src ]; then $(BIN)/python -m dtlab.course verify; fi
	@$(BIN)/python -m dtlab.course run --no-network --jobs $(NOTEBOOK_JOBS)

bench: $(BENCH) ## the benchmarks, one table each (they stay out of CI)
	@for file in $$(grep -l __main__ benchmarks/*.py); do \
	    name=$$(basename $$file .py); echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done

gpu: $(DEV) ## what needs a CUDA card, in under five minutes: the GPU tests where they are, the small GPT's MFU
	@tools/gpu.sh

lock: ## take the newest allowed versions into requirements.lock (in a virtual environment of its own)
	rm -rf .venv-lock
	python3.11 -m venv .venv-lock
	.venv-lock/bin/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	.venv-lock/bin/python -m pip install -e '.[lab,sagemaker,sagemaker-sdk,track,tune,dev,bench]'
	.venv-lock/bin/python -m pip check
	.venv-lock/bin/python tools/lock.py .venv-lock/bin/python > requirements.lock.new
	mv requirements.lock.new requirements.lock
	rm -rf .venv-lock

clean: ## remove caches and build products
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv
	rm -rf .venv .venv-lock dtlab.egg-info
