# make demo and make test each do all of their own set-up, from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= auto
# A file's tests stay together: they share what their fixtures made.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

SECONDS ?= 600

.PHONY: demo demo-fem test test-all compat exam fuzz lint docs bench coverage artifacts cuda-check clean

demo: .venv/installed
	$(BIN)/torchferry export examples/rates/model.i --model eq -o out/eq.pt --timings
	$(BIN)/torchferry verify out/eq.pt --runtime python,libtorch
	$(BIN)/torchferry export examples/solvers/decay.py:make_model -o out/decay.pt --json > out/decay.json
	$(BIN)/cmake -S examples/solvers -B out/solvers -DDECAY_CPP=OFF -Dtorchferry_DIR="$$($(BIN)/torchferry cmake-dir)" > out/cmake.log
	$(BIN)/cmake --build out/solvers --target decay >> out/cmake.log
	out/solvers/decay out/decay.pt

# A finite-element program whose material is an archive.
demo-fem: .venv/installed
	$(BIN)/torchferry export examples/return_map.py:make_model --derivative stress:strain -o out/return_map.pt
	$(BIN)/python examples/fem/plate.py out/return_map.pt -o out/plate.svg

test: lint .venv/neml2
	$(PYTEST)

# The long sweeps that `make test` leaves out.
test-all: test
	$(PYTEST) -m thorough
	$(BIN)/python -m exams torch_examples operators modules onnx_nodes --share 30
	$(BIN)/python -m exams odes
	$(BIN)/python -m exams networks --share 8

# docs/results/compatibility.md: the demo and a sample of the tests with every version of torch, gigabytes for each.
compat: .venv/installed
	$(BIN)/python tools/compat.py

# Suites that nobody here wrote, and random programs, through every format; a run that is cut off goes on where it was.
exam: .venv/installed
	$(BIN)/python -m exams

# The readers of files, in Python and C++, SECONDS seconds for each of nineteen kinds of input; clang builds the latter.
fuzz: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3'
	$(BIN)/python tests/hostile/fuzz/run.py --seconds $(SECONDS)

lint: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright --level error
	$(BIN)/python tools/house.py --check

# The documentation site, in out/site: strict, and no network to build or to read it.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# benchmarks/results.md: files, eager mode, traces and onnxruntime beside each other, in some minutes.
bench: .venv/neml2
	$(BIN)/python benchmarks/suite.py

# docs/results/neml2-coverage.md, over folders of input files: make coverage FOLDERS="models regression"
coverage: .venv/installed
	$(BIN)/torchferry sweep $(FOLDERS) -o out/coverage --jobs 2 --coverage docs/results/neml2-coverage.md

# The reference archives that have changed, and the table of artifacts/README.md.
artifacts: .venv/neml2
	CI= $(BIN)/python -m pytest -q tests/integration/test_artifacts.py -k fresh_export -m "thorough or not thorough" --torchferry-update
	$(BIN)/python artifacts/models.py

.venv/installed: pyproject.toml tools/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torchferry needs Python 3.10 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tools/constraints.txt --editable '.[neml2,dev]'
	touch $@

# neml2's own solver, which tests hold archives against, built for the torch at hand where the wheel is for another.
.venv/neml2: .venv/installed tools/build_neml2.sh
	tools/build_neml2.sh $(BIN)/python && touch $@ || test -z "$$TORCHFERRY_REQUIRE_ALL"

# All that needs a GPU, and one report in artifacts/. PY: a Python that has a torch with CUDA and what torchferry needs.
cuda-check: $(if $(PY),,.venv/installed)
	$(or $(PY),$(BIN)/python) benchmarks/cuda_check.py
	$(or $(PY),$(BIN)/python) -m pytest -m cuda $$(grep -rl --include='*.py' 'mark\.cuda' tests)

clean:
	rm -rf .venv out build *.egg-info
