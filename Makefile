# Every target sets up its own environment: with uv where it is there, else with venv and pip.
#   make demo | test | test-gpu | properties | fuzz | sanitize | lint | bench | bench-annotate | clean
# PYTHON=python3.12 takes another interpreter.
PYTHON ?= python3
# Each interpreter has an environment of its own, so that PYTHON=... never tests the wrong one.
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(subst /,_,$(patsubst /%,%,$(PYTHON))))
BIN := $(VENV)/bin
NATIVE := $(shell find native CMakeLists.txt -type f)
# UV= on the command line switches to venv and pip.
UV ?= $(shell command -v uv 2>/dev/null)

ifneq ($(UV),)
  MAKE_VENV = $(UV) venv --quiet --python $(PYTHON) $(VENV)
  INSTALL = $(UV) pip install --quiet --python $(BIN)/python
else
  MAKE_VENV = $(PYTHON) -m venv $(VENV)
  INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: demo test test-gpu properties fuzz sanitize lint bench bench-annotate clean install

$(BIN)/python:
	$(MAKE_VENV)

$(VENV)/installed: pyproject.toml $(NATIVE) | $(BIN)/python
	$(INSTALL) -e '.[test]'
	@touch $@

$(VENV)/lint-installed: pyproject.toml | $(BIN)/python
	$(INSTALL) 'ruff>=0.6' 'mypy>=1.11'
	@touch $@

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/xprof-py demo

# Live tests measure real trainings: they run alone, so that no other test takes their cores. Both parts always run.
test: $(VENV)/installed
	@status=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not live and not gpu' tests || status=1; \
	$(BIN)/python -m pytest -m 'live and not gpu' tests || status=1; \
	exit $$status

# `make test` takes the same examples each time; this draws new ones.
properties: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 -m 'hypothesis and not live and not gpu' --hypothesis-profile=new tests

# The decoders under sanitizers: libFuzzer where clang has it, else random damage. FUZZ_SECONDS=1800 takes half an hour.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/installed
	$(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS)

# Every test that is not live with the extension itself under sanitizers, in all programs that the tests start. About an hour.
sanitize: $(VENV)/installed
	$(BIN)/python tests/sanitized.py -n 2 --dist loadfile -m 'not live and not gpu' tests

# What only a GPU can show (docs/gpu.md). Programs there run in environments of their own, with CuPy, JAX and PyTorch for CUDA 13: what
# GPU_PYTHON has of these is taken over, the rest installed; what cannot be had is said, and so is a machine without a GPU.
# The table of all checks goes to build/gpu, or to the folder in OUT.
GPU_PYTHON ?= $(shell command -v $(PYTHON))
test-gpu: $(VENV)/installed
	$(BIN)/python tests/gpu/environments.py build/gpu $(GPU_PYTHON)
	$(BIN)/python -m pytest -m gpu tests/gpu

# mypy reads the installed wheel from outside the checkout: the mapped folders have their real names only there.
lint: $(VENV)/installed $(VENV)/lint-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/lint && mkdir -p build/lint
	$(INSTALL) --no-deps --target build/lint/site .
	cd build/lint && MYPYPATH=site ../../$(BIN)/mypy --config-file ../../pyproject.toml --python-executable ../../$(BIN)/python -p xprof_py

bench: $(VENV)/installed
	$(BIN)/python benchmarks/run.py

# What one annotation costs: beside JAX's, in C, in a training, in instructions, and beside the packages in BENCH_PEERS, which get an environment
# of their own. BENCH_PEERS= leaves them out.
BENCH_PEERS ?= nvtx opentelemetry-sdk ittapi viztracer
PEERS := build/bench-peers

$(PEERS)/installed: pyproject.toml $(NATIVE)
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check . $(BENCH_PEERS)
	@touch $@

bench-annotate: $(VENV)/installed $(if $(BENCH_PEERS),$(PEERS)/installed)
	$(BIN)/python benchmarks/annotate.py
	$(BIN)/python benchmarks/annotate_native.py
	$(BIN)/python benchmarks/annotate_training.py
	$(if $(BENCH_PEERS),PYTHONSAFEPATH=1 PYTHONPATH=benchmarks $(PEERS)/bin/python benchmarks/annotate_peers.py)
	$(if $(shell command -v valgrind),$(BIN)/python benchmarks/annotate_instructions.py,@echo 'no valgrind: instructions not counted')

clean:
	rm -rf .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/demo runs/demo-fast-input
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
