# Every target makes its own .venv when there is none, and does no work on it when nothing changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The stamp's name holds the checksum of both files, so a checkout or a touch alone reinstalls nothing.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# Against which torch it was built is in the name: another one needs another build.
HOROVOD := .venv-horovod/.built-$(shell sed -n 's/^torch==//p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test test-mxnet test-horovod horovod support check format bench bench-quick memory soak docs clean venv $(VENV)

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 20

demo: $(STAMP)  ## train, save, reload and score a digit classifier on two replicas (DEMO_ARGS="--help")
	@$(BIN)/python examples/demo.py $(DEMO_ARGS)

# Much of a test is waiting, for a JVM to start or a process to end: two of them fill two cores.
test: $(STAMP)  ## all tests, in two processes (TEST_ARGS="-k feed": a part of them, in one)
	@$(BIN)/python -m pytest tests $(or $(TEST_ARGS),-n 2 --dist loadfile)
	@test -n "$(TEST_ARGS)" || $(MAKE) --no-print-directory test-mxnet

test-mxnet: $(STAMP)  ## MXNet's tests, in an environment of their own (.venv-mxnet); part of make test
	@if scripts/side-environment $(BIN)/python .venv-mxnet mxnet==1.9.1 graphviz >/dev/null 2>.venv-mxnet.log; then \
		rm -f .venv-mxnet.log; \
		.venv-mxnet/bin/python -m pytest $$(grep -rl need_mxnet tests --include='test_*.py') 'tests/examples/test_examples.py::test_example_runs[13_mxnet]' $(MXNET_ARGS); \
	else \
		echo "MXNet's tests are skipped: $$(tail -n 1 .venv-mxnet.log)"; rm -f .venv-mxnet.log; \
	fi

horovod: $(HOROVOD)  ## build Horovod's wheel against the installed torch, into .venv-horovod/wheels (four minutes)
	@echo "$$(ls .venv-horovod/wheels/*.whl)"

test-horovod: $(HOROVOD)  ## Horovod's tests, in an environment of their own (.venv-horovod); builds it first
	@.venv-horovod/bin/python -m pytest $$(grep -rl need_horovod tests --include='test_*.py') 'tests/examples/test_examples.py::test_example_runs[12_horovod]' $(HOROVOD_ARGS)

$(HOROVOD): scripts/build-horovod scripts/cxx17 | $(STAMP)
	@scripts/side-environment $(BIN)/python .venv-horovod setuptools==80.9.0 wheel 'cmake<4' cffi pycparser cloudpickle psutil pyyaml packaging
	@echo "building Horovod (four minutes)"
	@rm -rf .venv-horovod/wheels
	@scripts/build-horovod .venv-horovod/bin/python .venv-horovod/wheels
	@scripts/side-environment $(BIN)/python .venv-horovod .venv-horovod/wheels/*.whl
	@touch $@

support: $(STAMP)  ## run the tests behind the support table and write it (docs/support.md)
	@PYTHONPATH=tests $(BIN)/python -m conformance.support

check: $(STAMP)  ## lint, format, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(STAMP)  ## let ruff write the format and the fixes it is sure of
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## measure everything beside its peers, into docs/benchmarks.md (BENCH_ARGS="--cases feed": a part, printed)
	@$(BIN)/python -m benchmarks.run $(or $(BENCH_ARGS),--write docs/benchmarks.md)

bench-quick: $(STAMP)  ## the core of it on fewer rows, printed: under five minutes
	@$(BIN)/python -m benchmarks.run --quick $(BENCH_ARGS)

memory: $(STAMP)  ## peak memory of replicas and tasks with 200 MB and with 2 GB of rows
	@FIRESTEEL_MEMORY_MB=200,2000 $(BIN)/python -m pytest -q -rP tests/faults/test_memory.py

soak: $(STAMP)  ## kill replicas at random for ten minutes, and check that nothing is lost (SOAK_ARGS="--minutes 2 --seed 7")
	@$(BIN)/python tests/faults/soak.py $(SOAK_ARGS)

docs: $(STAMP)  ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

venv $(VENV): $(STAMP)  ## make or refresh the environment

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "error: Firesteel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing). Try: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the dependencies (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/.installed-* && touch $@

clean:  ## remove what was built; the environment stays (rm -r .venv removes that)
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache work spark-warehouse metastore_db derby.log
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
