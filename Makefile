# Every target does its own set-up: an environment in .venv, made on first need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two tests at a time; those of one file in turn, for they share what they start.
LANES := -n 2 --dist loadfile
# What is computed in these depends on how many compute.
SIZED := $(patsubst %,tests/parallel/test_%.py,allreduce same_host_ranks sync overlap averaging gossip server pipeline tensor torch_mpi)
DEV := $(VENV)/.ready-dev
# uv where it is there, else pip; either shows what it does.
UV := $(shell command -v uv 2>/dev/null)
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check)
PIP := $(INSTALL) -c constraints.txt
# auto: PyTorch's CPU build on Linux without an NVIDIA GPU; cpu: always; pypi: never.
TORCH ?= auto

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-gpu test-integrations test-system lint format bench bench-large results docs docs-serve faults audit-deps wheel clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 10) else "manyhands needs Python 3.10 or newer; $(PYTHON) is %d.%d: try make PYTHON=python3.12" % v)'
	@echo "Setting up $(VENV), once: PyTorch, MPI and manyhands …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/setup/cpu_torch.py $(TORCH) $(INSTALL)
	@$(PIP) -e .
	@touch $@

$(DEV): $(READY)
	@echo "Adding what the tests and checks need, once …"
	@$(PIP) -e '.[dev]'
	@touch $@

setup: $(READY)  ## make the environment in .venv (the others do it when needed)

demo: $(READY)  ## compare the strategies on MNIST and write a report
	@$(BIN)/manyhands demo

test: $(DEV)  ## run the unit tests, then the parallel ones under mpiexec
	$(BIN)/python -m pytest $(LANES) tests/unit
	$(BIN)/python tests/parallel/launch.py --mpi mpich --sizes 2
	$(BIN)/python tests/parallel/launch.py --mpi mpich --sizes 3 $(SIZED)
	$(BIN)/python tests/parallel/launch.py --mpi mpich --sizes 1 tests/parallel/test_sync.py tests/parallel/test_averaging.py tests/parallel/test_gossip.py
	$(BIN)/python tests/parallel/launch.py --mpi openmpi --sizes 2 tests/parallel/test_sync.py

test-gpu: $(DEV)  ## run the tests that need an NVIDIA GPU; they skip where there is none
	$(BIN)/python -m pytest -rs tests/gpu

test-integrations: $(DEV)  ## install scikit-learn, Transformers, Lightning and others, and run the scripts with them
	@$(PIP) -e '.[integrations]'
	$(BIN)/python -m pytest -rs tests/integrations

test-system: $(DEV)  ## run the slow tests: the command line, faults, a browser, Slurm, more of both MPIs
	$(BIN)/python -m pytest $(LANES) --no-loadscope-reorder tests/system
	$(BIN)/python tests/parallel/launch.py --mpi mpich --sizes 4 $(SIZED)
	$(BIN)/python tests/parallel/launch.py --mpi mpich --sizes 5 tests/parallel/test_allreduce.py
	$(BIN)/python tests/parallel/launch.py --mpi openmpi --sizes 2 tests/parallel/test_allreduce.py tests/parallel/test_torch_mpi.py tests/parallel/test_server.py

lint: $(DEV)  ## check style, format, types and the layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)  ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)  ## compare the speed with PyTorch DDP, MPI, gloo, Opacus …, for ten minutes
	@$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/run.py --machine small --minutes 9.7

bench-large: $(DEV)  ## the same on a machine of sixteen cores
	@$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/run.py --machine large

results: $(DEV)  ## write the tables and pictures of docs again, from the committed records
	$(BIN)/python tools/docs/results.py

docs: $(DEV)  ## build the documentation site into build/site
	@$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

docs-serve: $(DEV)  ## show the documentation site at http://127.0.0.1:8000, and follow edits
	@$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --watch README.md --watch src

faults: $(DEV)  ## strike workers in every phase of every strategy, and say what became of it
	$(BIN)/python tools/faults/matrix.py --out docs/records/faults.json --page docs/reliability.md

audit-deps: $(DEV)  ## look the pinned packages up in the database of known vulnerabilities
	@$(PIP) -e '.[audit]'
	$(BIN)/python .ci/audit_deps.py

wheel: $(DEV)  ## build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean:  ## remove the environment, caches and what was built
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools studies benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
