# `make demo` and `make test` work on a fresh checkout: both install what they need into .venv
# first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export HF_HUB_OFFLINE ?= 1
# The tests start about a thousand Python processes; without cached bytecode each would compile all
# modules again.
unexport PYTHONDONTWRITEBYTECODE

# `make test RUNTIME=--intel` uses only Intel's OpenCL runtime; TESTS selects tests (see .ci/run).
RUNTIME ?=
TESTS ?= not slow and not gpu
PYTEST := $(BIN)/python -m pytest --durations 15
# The tests of a file share fixtures and stay in one process. Files run in their own order: the long
# integration files first, the many short unit files last. By default xdist sorts files by their
# number of tests: then a long file would run alone at the end.
BY_FILE := --dist loadfile --no-loadscope-reorder

.NOTPARALLEL:
.PHONY: demo test nightly slow chaos fuzz lint format docs clean clean-demo install

# An installation of everything also serves the demo.
demo: $(or $(wildcard $(VENV)/.installed),$(VENV)/.installed-for-demo)
	$(BIN)/python -m workers.discovery.provide
	$(BIN)/llmperf collect --corpus kernels --out $(DEMO)/data --device cpu --preset demo
	$(BIN)/llmperf dataset verify $(DEMO)/data
	$(BIN)/llmperf train --data $(DEMO)/data --preset gbdt --out $(DEMO)/model --set train.overwrite=true
	$(BIN)/llmperf train --data $(DEMO)/data --preset tiny --out $(DEMO)/language-model --set train.overwrite=true
	$(BIN)/llmperf evaluate $(DEMO)/model --data $(DEMO)/data --split test --out $(DEMO)/evaluation
	$(BIN)/llmperf report $(DEMO)/data --evaluation $(DEMO)/evaluation --out $(DEMO)/report.html
	$(BIN)/python -m llmperf.demo $(DEMO)

test: install
	$(BIN)/python -m workers.discovery.provide $(RUNTIME) $(PYTEST) -m "$(TESTS)" --numprocesses 3 $(BY_FILE)

nightly: install
	$(MAKE) test RUNTIME=--intel
	$(BIN)/python -m workers.discovery.provide $(PYTEST) -m nightly --numprocesses 2 $(BY_FILE) --timeout 1800

slow: install
	$(BIN)/python -m workers.discovery.provide $(PYTEST) -m "slow and not nightly and not quiet" --numprocesses 2 $(BY_FILE) --timeout 1800
	$(BIN)/python -m workers.discovery.provide $(PYTEST) -m "slow and not nightly and quiet" --timeout 1800

chaos: install
	$(BIN)/python -m tests.simulation --schedules 100000 --processes 2 --seed 0
	$(BIN)/python -m tests.chaos --kills 40
	$(BIN)/python -m tests.chaos.storm --faults 100 --kernels 2000 --seed 0
	$(BIN)/python -m tests.chaos.storm --faults 100 --kernels 2000 --seed 1 --no-aof

fuzz: install
	$(BIN)/python -m tests.fuzz --sources 10000 --seed 0
	$(BIN)/python -m tests.fuzz --sources 2000 --seed 0 --instrument
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.folders --number 2000 --seed 0

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install
	$(BIN)/python -m llmperf.reference docs/reference

install: $(VENV)/.installed

# The demo needs neither Ray nor the tools of the tests, which are half of the time to install. pip
# compiles no bytecode (--no-compile): it would compile all modules, of which few are ever used;
# Python compiles those at their first import.
$(VENV)/.installed $(VENV)/.installed-for-demo: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("LLMPerf needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[$(EXTRAS)]"
	touch $@

$(VENV)/.installed: EXTRAS := pocl,cluster,train,dev
$(VENV)/.installed-for-demo: EXTRAS := pocl,train

clean-demo:
	rm -rf $(DEMO)

clean: clean-demo
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
