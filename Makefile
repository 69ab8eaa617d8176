# make setup   .venv with the pinned versions of requirements/constraints.txt (again only when these files change)
# make demo    the three demo jobs; PHOTOS=folder scores a folder of pictures
# make notebooks   the notebooks of notebooks/, each from a clean kernel
# make test    all that CI checks on the newest versions: lint, types, import contracts, doctests, tests
# make test-spark35        the core suite on the newest pyspark 3.5, in .venv-spark35
# make test-lowest         the core suite on pyspark 3.5 and the oldest numpy, pandas, pyarrow, ... that pyproject.toml allows, in .venv-lowest
# make bench               every benchmark beside its peers, in .venv-bench; goes on where it was stopped; FRESH=1 begins anew
# make bench-quick         the same on few rows, in some minutes
# make bench-check         four of them, quickly, against the committed ratios
#
# PYTHON=python3.12        another interpreter for .venv (3.11 or newer for the pinned versions)
# PYTHON_OLD=python3.11    the interpreter for .venv-spark35 and .venv-lowest: pyspark 3.5 and the oldest wheels need just 3.11
# PIP_FLAGS="..."          for pip, such as an --extra-index-url with the CPU builds of torch: on Linux the ordinary ones
#                          bring some gigabytes of CUDA along
# TESTS="tests/unit -x"    what pytest gets, in any of the three environments

.DEFAULT_GOAL := help
.PHONY: help setup setup-spark35 setup-lowest java demo notebooks test test-spark35 test-lowest lint types contracts doctest pytest format \
	bench bench-quick bench-check bench-gpu bench-overlap build clean
.NOTPARALLEL:  # "test" means its steps in their order
SHELL := /bin/bash

VENV := .venv
PYTHON ?= python3
PYTHON_OLD ?= $(PYTHON)
PIP_FLAGS ?=
PHOTOS ?=
TESTS ?=
BIN := $(VENV)/bin

# The stamp carries the hash of all that decides what is installed: a changed file is a new stamp, so a new set-up.
SETUP_FILES := $(sort $(wildcard requirements/*.txt)) pyproject.toml
SETUP_HASH := $(shell cat $(SETUP_FILES) | $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])')
STAMP := $(VENV)/.setup-$(SETUP_HASH)
PIP_IN := python -m pip --disable-pip-version-check
PIP := $(BIN)/$(PIP_IN)

# The other versions that the library runs on, each in an environment of its own. requirements/pins-NAME.txt holds the pins that differ
# from constraints.txt; what is installed and which tests are run stands here.
PACKAGES_spark35 := --editable '.[spark,torch,mlflow,gpu,host,cli,report]' tensorflow-cpu
PACKAGES_lowest := --editable '.[spark,torch,gpu,host,cli,report]'
PACKAGES_bench := --editable '.[spark,torch,mlflow,gpu,host,report]' tensorflow-cpu pillow scikit-learn ray daft onnx onnxruntime onnxscript openvino
# Loader processes are the engine's own, whatever Spark is; the cluster and MLflow's models need the demo's packages and transformers: they are
# left to `make test`.
TESTS_spark35 := tests/spark $(addprefix --ignore=tests/spark/test_,loaders.py cluster.py mlflow_models.py)
# Where numpy, pandas and pyarrow meet users' columns: the engine and the backends, and types, nulls and UDFs through real Spark.
TESTS_lowest := tests/unit --ignore=tests/unit/reporting tests/backends tests/spark/test_nulls.py tests/spark/test_predict_udf.py

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned versions need Python 3.11 or newer, this is %s: make PYTHON=..." % sys.version.split()[0])'
	$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install $(PIP_FLAGS) --quiet --constraint requirements/constraints.txt pip setuptools
	$(PIP) install $(PIP_FLAGS) --constraint requirements/constraints.txt --build-constraint requirements/constraints.txt \
		--requirement requirements/dev.txt --editable '.[spark,torch,mlflow,gpu,host,cli,report,onnx,openvino]'
	$(PIP) install $(PIP_FLAGS) --no-deps --build-constraint requirements/constraints.txt \
		--requirement requirements/demo.txt --requirement requirements/test-models.txt
	@rm -f $(VENV)/.setup-*
	@touch $@

.venv-%/.setup-$(SETUP_HASH):
	@$(PYTHON_OLD) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "pyspark 3.5 and the oldest wheels need Python 3.11, this is %s: make PYTHON_OLD=..." % sys.version.split()[0])'
	.venv-$*/bin/python -c '' 2>/dev/null || $(PYTHON_OLD) -m venv --clear .venv-$*
	awk -F== 'NR == FNR { pinned[tolower($$1)] } NR == FNR || !(tolower($$1) in pinned)' \
		requirements/pins-$*.txt requirements/constraints.txt >.venv-$*/constraints.txt
	.venv-$*/bin/$(PIP_IN) install $(PIP_FLAGS) --quiet --constraint .venv-$*/constraints.txt pip setuptools
	.venv-$*/bin/$(PIP_IN) install $(PIP_FLAGS) --constraint .venv-$*/constraints.txt --build-constraint requirements/constraints.txt \
		--requirement requirements/test.txt $(PACKAGES_$*)
	@rm -f .venv-$*/.setup-*
	@touch $@

java:
	@version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Spark 4 needs Java 17 or newer, found $${version:-none}: install one (Debian: apt-get install default-jre-headless)" >&2; exit 1; \
	fi

demo: setup java
	$(BIN)/python -m sparkinfer demo $(if $(PHOTOS),--photos '$(PHOTOS)')

notebooks: setup java
	@for notebook in notebooks/*.ipynb; do $(BIN)/jupyter-execute "$$notebook" && echo "$$notebook ran to its end" || exit 1; done

test: lint types contracts doctest pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

doctest: setup
	$(BIN)/python -m pytest --doctest-modules sparkinfer --quiet

pytest: setup java
	$(BIN)/python -m pytest --durations=20 --durations-min=5 $(TESTS)

test-spark35 test-lowest: test-%: .venv-%/.setup-$(SETUP_HASH) java
	.venv-$*/bin/python -m pytest --durations=20 --durations-min=5 $(or $(TESTS),$(TESTS_$*))

# In the background, while other tests run: see .ci/run.
setup-spark35 setup-lowest: setup-%: .venv-%/.setup-$(SETUP_HASH)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The peers and the library in one environment, with the demo's models.
.venv-bench/.demo-$(SETUP_HASH): .venv-bench/.setup-$(SETUP_HASH)
	.venv-bench/bin/$(PIP_IN) install $(PIP_FLAGS) --no-deps --build-constraint requirements/constraints.txt --requirement requirements/demo.txt
	@touch $@

bench: .venv-bench/.demo-$(SETUP_HASH) java
	.venv-bench/bin/python -m benchmarks.run w1 w2 w3 w4 w5 w6 w7 w8 w9 loop settings $(if $(FRESH),--fresh)
	.venv-bench/bin/python -m benchmarks.run w1 --scale large $(if $(FRESH),--fresh)
	.venv-bench/bin/python -m benchmarks.run w6 --scale million $(if $(FRESH),--fresh)
	.venv-bench/bin/python -m benchmarks.run w6 --scale blobs $(if $(FRESH),--fresh)
	.venv-bench/bin/python -m benchmarks.tables

# On a machine with a card and a PyTorch with CUDA.
bench-gpu: setup
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.gpu heavy w3 transformer --precision bf16

bench-quick: .venv-bench/.demo-$(SETUP_HASH) java
	.venv-bench/bin/python -m benchmarks.run w1 w4 w5 w9 --scale quick --rounds 3 --fresh

bench-check: .venv-bench/.demo-$(SETUP_HASH) java
	.venv-bench/bin/python -m benchmarks.check

bench-overlap: setup
	$(BIN)/python benchmarks/overlap.py

build: setup
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist demo-output spark-warehouse notebooks/spark-warehouse notebooks/mlruns notebooks/mlflow.db .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
