# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ALGORITHM ?= grpo
SEED ?= 0
DEMO := runs/demo-$(ALGORITHM)-$(SEED)

.PHONY: demo test lint test-fast test-slow test-torch bench-algorithms clean

# The marker is newer than the metadata exactly when the environment is up to date.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

demo: $(VENV)/.ready
	rm -rf $(DEMO)
	$(BIN)/zootomy train --config examples/demo.yaml --algorithm $(ALGORITHM) --seed $(SEED) \
		--folder $(DEMO) $(ARGS)

test: lint test-fast

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test-fast: $(VENV)/.ready
	$(BIN)/python -m pytest

test-slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow

# Compares with transformers on torch, in an environment of its own.
test-torch:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[test]" \
		torch
	.venv-torch/bin/python -m pytest -m torch

# Every algorithm on the demo's task over three seeds; about an hour and a half on two cores.
bench-algorithms: $(VENV)/.ready
	$(BIN)/python benchmarks/algorithms.py

clean:
	rm -rf $(VENV) .venv-torch build dist *.egg-info runs
