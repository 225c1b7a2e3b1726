# make demo and make test each do all of their own set-up, from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= auto

.PHONY: demo test lint coverage clean

demo: .venv/installed
	$(BIN)/torchferry export examples/rates/model.i --model eq -o out/eq.pt --timings
	$(BIN)/torchferry verify out/eq.pt

test: lint
	$(BIN)/pytest -n $(JOBS)

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --level error

# docs/coverage.md, over folders of input files: make coverage FOLDERS="models regression"
coverage: .venv/installed
	$(BIN)/torchferry sweep $(FOLDERS) -o out/coverage --jobs 2 --coverage docs/coverage.md

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchferry needs Python 3.10 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[neml2,dev]'
	touch $@

clean:
	rm -rf .venv out build *.egg-info
