# Every target works on a fresh clone with Python 3.11+ and make: the first one builds .venv.
#
#   make demo        the methods at work, on the closed world (ARGS="--help" shows its options)
#   make test        the test suite                           (ARGS="-k gate" picks some)
#   make lint        style, types, and who imports whom
#   make notebooks   run the cookbooks, and compare what they print with what is kept (ARGS="01" picks some;
#                    VERB=try tells of differences alone: another processor may tip an answer on the edge)
#   make docs        build the documentation site into build/site, check spelling, links and what screen readers need
#   make dist        build what is published into build/dist, and install it into empty environments
#   make bench       speed against peers                     (BENCHMARKS="sampling" picks some)
#   make soak        threads, event loops, faults and kills all at once, for 20 minutes (ARGS="--minutes 5")
#   make test-oldest a part of the suite on the lowest versions that pyproject.toml allows
#   make audit       bandit on the code, and the pinned dependencies against known vulnerabilities
#   make models      try every part with every kind of model, and write docs/models
#   make test-models the tests that need the providers' own client libraries
#   make test-gpu    the local readers' tests on a GPU, and those that only a GPU can show
#   make test-server the conformance suite against a llama.cpp server that is built here

PYTHON ?= python3
VENV ?= .venv
SERVER ?= $(VENV)-server
OLDEST ?= $(VENV)-oldest
AUDIT ?= $(VENV)-audit
DOCS ?= $(VENV)-docs
DIST ?= $(VENV)-dist
MODELS ?= $(VENV)-models
WORKERS ?= 2
BENCHMARKS ?= sampling entropies begin_finish run_many merging engines entailing clustering compression dense
ARGS ?=
# All extras but training, whose packages need newer ones than the other extras do: it is tried by itself.
OLDEST_EXTRAS := demo,parquet,langchain-classic
SMOKE ?= tests/test_imports.py tests/test_journal.py tests/test_recording.py tests/test_storage.py \
	tests/documents tests/entailment tests/retrieval tests/encoders/test_hashing.py \
	tests/cli/test_commands.py tests/cli/test_evaluate.py tests/cli/test_display.py \
	tests/evaluation/test_datasets.py tests/readers/test_openai_generate.py tests/readers/test_openai_streams.py \
	tests/readers/test_transformers_reader.py tests/readers/test_transformers_text.py \
	tests/llama_index/test_lazy_engine.py tests/llama_index/test_parts.py \
	tests/langchain/test_chain.py tests/langchain/test_chain_streaming.py tests/langchain/test_parts.py
# Kills take long; and before its version 1.6, langchain-core itself loads transformers.
UNTRIED := not killed and not loads_langchain_core_alone
SMOKE_TRAINING ?= tests/training/test_rewriter_queries.py tests/training/test_rewriter_sampling.py \
	tests/training/test_rewriter_training.py

BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --constraint constraints.txt
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := demo
.PHONY: demo test lint notebooks docs look dist bench soak models test-models test-gpu test-server test-oldest audit constraints clean

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
	@$(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m tools.notebooks $(or $(VERB),check) $(ARGS)

# Strict: what a page links to has to be there, and nothing may be loaded from elsewhere.
docs: $(DOCS)/.installed
	@$(DOCS)/bin/codespell README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs examples src integrations
	@PYTHONPATH=.:src $(DOCS)/bin/zensical build --clean --strict
	@$(DOCS)/bin/python -m tools.finish_site build/site
	@$(DOCS)/bin/python -m tools.check_site build/site

# In a browser that the machine has: `apt-get install chromium`, or CHROMIUM=/path.
look: docs
	@$(DOCS)/bin/python -m tools.look_at_site build/site --pictures build/pictures $(ARGS)

dist: $(DIST)/.installed
	@$(DIST)/bin/python -m tools.check_distributions build/dist

bench: $(VENV)/.installed
	@for name in $(BENCHMARKS); do $(OFFLINE) $(BIN)/python -m benchmarks.$$name $(ARGS) || exit 1; done

soak: $(VENV)/.installed
	@$(OFFLINE) $(BIN)/python -m benchmarks.soak $(ARGS)

test-server: $(VENV)/.installed $(SERVER)/.installed $(MODELS)/.installed
	@$(OFFLINE) SURERAG_SERVER_PYTHON=$(abspath $(SERVER))/bin/python PYTHONPATH=$(MODELS)/llama-index \
		$(BIN)/python -m pytest --quiet $(ARGS) tests/server

models: $(VENV)/.installed $(MODELS)/.installed
	@$(OFFLINE) $(BIN)/python -m tests.models docs/models --house core
	@$(OFFLINE) PYTHONPATH=$(MODELS)/langchain $(BIN)/python -m tests.models docs/models --house LangChain
	@$(OFFLINE) PYTHONPATH=$(MODELS)/llama-index $(BIN)/python -m tests.models docs/models --house LlamaIndex

test-models: $(VENV)/.installed $(MODELS)/.installed
	@$(OFFLINE) OMP_NUM_THREADS=1 PYTHONPATH=$(MODELS)/langchain $(BIN)/python -m pytest --quiet $(ARGS) \
		tests/langchain/test_providers.py tests/langchain/test_refusals.py tests/langchain/test_opentelemetry.py \
		tests/decisions/test_monitor_opentelemetry.py
	@$(OFFLINE) OMP_NUM_THREADS=1 PYTHONPATH=$(MODELS)/langchain $(BIN)/python -m pytest --quiet $(ARGS) -k served \
		tests/test_readme.py tests/docs/test_pages.py
	@$(OFFLINE) OMP_NUM_THREADS=1 PYTHONPATH=$(MODELS)/llama-index $(BIN)/python -m pytest --quiet $(ARGS) \
		tests/llama_index/test_llm_sources.py tests/llama_index/test_llm_providers.py \
		tests/llama_index/test_opentelemetry.py
	@$(OFFLINE) OMP_NUM_THREADS=1 PYTHONPATH=$(MODELS)/llama-index $(BIN)/python -m pytest --quiet $(ARGS) -k served \
		tests/test_readme.py tests/docs/test_pages.py

test-oldest: $(OLDEST)/.installed $(OLDEST)-train/.installed
	@$(OFFLINE) OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest --quiet -k "$(UNTRIED)" $(ARGS) $(SMOKE)
	@$(OFFLINE) OMP_NUM_THREADS=1 $(OLDEST)-train/bin/python -m pytest --quiet -k "$(UNTRIED)" $(ARGS) $(SMOKE_TRAINING)

# With any Python that has the packages: a machine with a GPU has its own build of torch.
test-gpu:
	@$(OFFLINE) SURERAG_TEST_DEVICE=cuda PYTHONPATH=src $(PYTHON) -m pytest --quiet $(ARGS) \
		tests/gpu tests/readers/test_transformers_*.py tests/readers/test_continuous*.py tests/readers/test_fan_out.py

audit: $(AUDIT)/.installed
	@$(AUDIT)/bin/bandit --quiet --configfile pyproject.toml --recursive src integrations tools
	@$(AUDIT)/bin/python -m tools.audit

# Writes down what the environments hold, once the tests pass.
constraints: $(VENV)/.installed $(SERVER)/.installed
	@for venv in $(VENV) $(SERVER); do $$venv/bin/python -m pip freeze --all --exclude-editable --exclude setuptools; done \
		| sed 's/+[a-z0-9.]*$$//' | sort --ignore-case --unique > constraints.txt.new
	@mv constraints.txt.new constraints.txt

clean:
	@rm -rf $(VENV) $(SERVER) $(OLDEST) $(OLDEST)-train $(AUDIT) $(DOCS) $(DIST)

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

# uv, unlike pip, can choose the lowest versions; of what is not named here, the newest that fit.
$(OLDEST)/.installed: pyproject.toml
	$(call install-oldest,$(OLDEST),$(OLDEST_EXTRAS))

$(OLDEST)-train/.installed: pyproject.toml
	$(call install-oldest,$(OLDEST)-train,train)

define install-oldest
	@echo "Installing the lowest versions of $(2) into $(1) (some minutes the first time)"
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet uv
	@$(1)/bin/python -m uv pip install --quiet --python $(1)/bin/python --resolution lowest-direct \
		--editable ".[$(2)]" --group smoke
	@touch $@
endef

$(MODELS)/.installed: tests/models/langchain.txt tests/models/llama-index.txt | $(VENV)/.installed
	@for house in langchain llama-index; do $(BIN)/python -m pip install --quiet --no-deps --upgrade \
		--target $(MODELS)/$$house --requirement tests/models/$$house.txt || exit 1; done
	@touch $@

# The core's own few dependencies besides: tables of options are made from the options themselves.
$(DOCS)/.installed: pyproject.toml
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(DOCS)/bin/python -m pip install --quiet --editable . --group docs
	@touch $@

$(DIST)/.installed: pyproject.toml
	@test -x $(DIST)/bin/python || $(PYTHON) -m venv $(DIST)
	@$(DIST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(DIST)/bin/python -m pip install --quiet --group dist
	@touch $@

$(AUDIT)/.installed: pyproject.toml
	@test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(AUDIT)/bin/python -m pip install --quiet --group audit
	@touch $@
