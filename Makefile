# Every target works on a fresh clone with Python 3.11+ and make: the first one builds .venv.
#
#   make demo        the methods at work, on the closed world (ARGS="--help" shows its options)
#   make test        the test suite                           (ARGS="-k gate" picks some)
#   make lint        style, types, and who imports whom
#   make notebooks   run the cookbooks
#   make bench       speed against peers                     (BENCHMARKS="sampling" picks some)
#   make test-server the conformance suite against a llama.cpp server that is built here

PYTHON ?= python3
VENV ?= .venv
SERVER ?= $(VENV)-server
WORKERS ?= 2
BENCHMARKS ?= sampling entropies begin_finish run_many clustering compression dense
ARGS ?=

BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --constraint constraints.txt
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
	@$(OFFLINE) $(BIN)/python -m pytest --quiet --nbmake --nbmake-timeout=600 --timeout=900 $(ARGS) cookbooks

bench: $(VENV)/.installed
	@for name in $(BENCHMARKS); do $(OFFLINE) $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; done

test-server: $(VENV)/.installed $(SERVER)/.installed
	@$(OFFLINE) SURERAG_SERVER_PYTHON=$(abspath $(SERVER))/bin/python $(BIN)/python -m pytest --quiet $(ARGS) tests/server

# Writes down what the environments hold, once the tests pass.
constraints: $(VENV)/.installed $(SERVER)/.installed
	@for venv in $(VENV) $(SERVER); do $$venv/bin/python -m pip freeze --all --exclude-editable --exclude setuptools; done \
		| sed 's/+[a-z0-9.]*$$//' | sort --ignore-case --unique > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean:
	@rm -rf $(VENV) $(SERVER)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("surerag needs Python 3.11 or newer, and this is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Installing into $(VENV) (only when pyproject.toml or constraints.txt change; some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) "pip>=25.1"
	@$(BIN)/python $(INSTALL) --editable ".[all]" --group lint --group test --group notebooks
	@touch $@

# In an environment of its own, so that the tests run with what users have.
$(SERVER)/.installed: $(VENV)/.installed
	@echo "Building the llama.cpp server in $(SERVER) (some minutes the first time, needs a C++ compiler)"
	@test -x $(SERVER)/bin/python || $(PYTHON) -m venv $(SERVER)
	@$(SERVER)/bin/python $(INSTALL) "pip>=25.1"
	@$(SERVER)/bin/python $(INSTALL) --group server
	@touch $@
