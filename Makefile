# Two commands do it: `make demo` (main job) and `make test` (every check); both set up on first use.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-full bench exam lab clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/trainsim tune notebooks/jobs/gpt3-175b-128xh100.yaml --out out

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
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
