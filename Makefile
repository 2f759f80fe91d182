# `make train` and `make test` do all the set-up on a bare machine with Python 3.11, 3.12 or 3.13. Both are safe to repeat.
PYTHON ?= python3
# cpu or cuda; cuda is taken where nvidia-smi lists a GPU
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv
BIN := $(VENV)/bin
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
THREADS ?= 2
# processes that share the tests' files out among themselves
WORKERS ?= 2

.PHONY: train test test-all lint types floors schemas reference check bench clean

train: $(VENV)/.installed
	$(BIN)/titanrun train recipes/llama3_debug.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not gpu and not multi_gpu"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

floors: $(VENV)/.installed
	$(BIN)/python tools/check_floors.py titanrun

schemas: $(VENV)/.installed
	$(BIN)/python tools/write_schemas.py --check

reference: $(VENV)/.installed
	$(BIN)/python tools/write_reference.py --check

# everything but the tests
check: lint types floors schemas reference

bench: $(VENV)/.installed-dev
	$(BIN)/python tools/bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

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

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable ".[dev]"
	touch $@
