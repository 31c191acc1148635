# Every target sets up .venv by itself: uv where it is there, else venv + pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native CMakeLists.txt -type f)

.PHONY: demo test test-gpu lint bench clean install

$(VENV)/installed: pyproject.toml $(NATIVE)
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --python $(PYTHON) $(VENV); \
	  uv pip install --python $(BIN)/python -e '.[test]'; \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'; \
	fi
	@touch $@

$(VENV)/lint-installed: pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --python $(PYTHON) $(VENV); \
	  uv pip install --python $(BIN)/python 'ruff>=0.6' 'mypy>=1.11'; \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install -q --disable-pip-version-check 'ruff>=0.6' 'mypy>=1.11'; \
	fi
	@touch $@

install: $(VENV)/installed

demo: $(VENV)/installed
	$(BIN)/xprof-py demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

test-gpu: $(VENV)/installed
	$(BIN)/python -m pytest -m gpu tests

# mypy reads the installed wheel from outside the checkout: the mapped folders have their real names only there.
lint: $(VENV)/installed $(VENV)/lint-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/lint && mkdir -p build/lint
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target build/lint/site .
	cd build/lint && MYPYPATH=site ../../$(BIN)/mypy --config-file ../../pyproject.toml --python-executable ../../$(BIN)/python -p xprof_py

bench: $(VENV)/installed
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
