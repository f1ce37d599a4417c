# Every target works on a fresh clone with Python 3.11+ and make: the first one builds .venv.
#
#   make demo        the methods at work, on the closed world (ARGS="--help" shows its options)
#   make test        the test suite                           (ARGS="-k gate" picks some)
#   make lint        style, types, and who imports whom
#   make notebooks   run the cookbooks
#   make bench       speed against plain transformers
#   make test-server the conformance suite against a llama.cpp server that is built here

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := demo
.PHONY: demo test lint notebooks bench test-server constraints clean

demo: $(VENV)/.installed
	@$(BIN)/surerag demo $(ARGS)

# One thread a worker: two workers then share two cores instead of fighting for them.
test: $(VENV)/.installed
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) $(ARGS)

lint: $(VENV)/.installed
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

notebooks: $(VENV)/.installed
	@$(OFFLINE) $(BIN)/python -m pytest --quiet --nbmake --nbmake-timeout=600 $(ARGS) cookbooks

bench: $(VENV)/.installed
	@$(OFFLINE) $(BIN)/python -m benchmarks $(ARGS)

test-server: $(VENV)/.installed-server
	@$(OFFLINE) $(BIN)/python -m pytest --quiet -m server $(ARGS) tests/server

# Writes down what this environment holds, once its tests pass.
constraints: $(VENV)/.installed-server
	@$(BIN)/python -m pip freeze --all --exclude-editable --exclude setuptools | sed 's/+[a-z0-9.]*$$//' > constraints.txt

clean:
	@rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("surerag needs Python 3.11 or newer, and this is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Installing into $(VENV) (only when pyproject.toml or constraints.txt change; some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) "pip>=25.1"
	@$(INSTALL) --editable ".[all]" --group lint --group test --group notebooks
	@touch $@

$(VENV)/.installed-server: $(VENV)/.installed
	@echo "Building the llama.cpp server (some minutes, needs a C++ compiler)"
	@$(INSTALL) --group server
	@touch $@
