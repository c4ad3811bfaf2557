# Two commands do it: `make demo` (main job) and `make test` (every check); both set up on first use.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

# Where the environment forbids bytecode on disk, each of the hundred programs that tests start compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test checks units test-full bench exam lab clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/trainsim tune notebooks/jobs/gpt3-175b-128xh100.yaml --out out

# The checks of the text take what the tests leave of the cores, and hold up no timing: both must pass.
test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j 2 checks units

checks: $(STAMP)
	nice -n 19 $(BIN)/lint-imports
	nice -n 19 $(BIN)/mypy

# Of the long cases a sixth, by the commit (tests/full.py).
units: export TEST_TURN = $(shell git rev-parse HEAD 2>/dev/null)
units: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal

test-full: $(STAMP)
	mkdir -p out
	HYPOTHESIS_PROFILE=full $(BIN)/pytest -n 2 --dist worksteal -ra | tee out/test-full-$$(date -u +%Y-%m-%d).txt

bench: $(STAMP)
	$(BIN)/pytest tests/benchmarks --benchmark-only --override-ini addopts=-q

exam: $(STAMP)
	$(BIN)/trainsim validate ../shared/reference/runs/*.csv --exam

lab: $(STAMP)
	$(BIN)/trainsim lab

clean:
	rm -rf .venv out
