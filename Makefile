# On a machine with only Python (3.11 or newer) and make:
#   make demo    install everything into .venv and run the demo
#   make test    install everything and run the tests
#   make check   lint, format check, strict types, doctests
#   make docs    build the documentation into site/ (no network needed, neither to build nor to read it)
#   make test-lowest    run the tests of the extras with the lowest versions that pyproject.toml allows
#   make audit          look up known advisories for our dependencies (needs the network)
#   make fuzz           search for inputs that break a loader (SECONDS=3600), and try 20,000 wrong arguments
#   make release-check  build the release, install it in clean environments, run the README's examples and a notebook
#   make course  build hand-outs and autograders into build/course/ (SECRET=4711, STUDENTS=students.csv)
# With Node.js as well:
#   make frontend   build the JavaScript of the views (the result is committed, so pip needs no Node)
# With Coq as well (proofs/README.md names the packages):
#   make proofs     check every theorem

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Small tensors run faster on one thread each, with the test processes side by side.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
WORKERS ?= 2

.PHONY: help install demo test check test-lowest audit fuzz release-check format bench results docs course frontend proofs clean
help:
	@sed -n '2,14p' Makefile | cut -c3-

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Install torch first and alone, so that only its own pin decides which build is installed.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev,parity]'
	@touch $@ $(VENV)/.demo

install: $(VENV)/.dev

demo: $(VENV)/.demo
	$(BIN)/regard demo

test: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal --ignore tests/compiled --ignore tests/kernels tests
	@# Compiling waits for the C++ compiler, one file after the other: the kernels are interpreted meanwhile.
	$(TEST_ENV) REGARD_TYPECHECK=0 $(BIN)/python -m pytest -q tests/compiled & compiled=$$!; \
	$(TEST_ENV) REGARD_TYPECHECK=0 TRITON_INTERPRET=1 $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal tests/kernels; \
	kernels=$$?; wait $$compiled && exit $$kernels

# The tests of the extras with the lowest versions that pyproject.toml allows (torch aside: one CPU build exists). Newer
# dependencies of those versions may warn about them, which is no failure here.
LOWEST := .venv-lowest
$(LOWEST)/.installed: pyproject.toml constraints.txt scripts/release/lowest_versions.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(PYTHON) scripts/release/lowest_versions.py all > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(LOWEST)/bin/python -m pip install --quiet --constraint $(LOWEST)/lowest.txt --editable '.[all]' \
	  torch==$$($(LOWEST)/bin/python -c 'import torch; print(torch.__version__.split("+")[0])') pytest pytest-xdist hypothesis httpx beartype
	@touch $@

test-lowest: $(LOWEST)/.installed
	$(TEST_ENV) REGARD_TYPECHECK=0 $(LOWEST)/bin/python -m pytest -q --numprocesses $(WORKERS) --dist worksteal \
	  -W ignore::DeprecationWarning -m 'not slow and not node' \
	  tests/studio tests/training tests/views tests/cli tests/figures

# A coverage-guided fuzzer over every loader, in an environment of its own. Findings are written to build/fuzz.
FUZZ := .venv-fuzz
SECONDS ?= 3600
$(FUZZ)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(FUZZ)
	$(FUZZ)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(FUZZ)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' atheris
	@touch $@

fuzz: $(FUZZ)/.installed
	@mkdir -p build/fuzz/corpus
	$(TEST_ENV) $(FUZZ)/bin/python scripts/fuzz/arguments.py
	$(TEST_ENV) $(FUZZ)/bin/python scripts/fuzz/loaders.py build/fuzz/corpus scripts/fuzz/corpus -artifact_prefix=build/fuzz/ \
	  -max_total_time=$(SECONDS) -timeout=30 -rss_limit_mb=4096 -max_len=65536

audit:
	$(PYTHON) scripts/release/audit.py

release-check:
	$(PYTHON) scripts/release/check.py

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Types keep one core busy: the doctests run beside them.
	$(BIN)/mypy & types=$$!; \
	$(TEST_ENV) $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --doctest-modules src; \
	doctests=$$?; wait $$types && exit $$doctests

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/gaussian.py

# Tables made from benchmarks/results: run this when files there have changed.
results: $(VENV)/.dev
	$(BIN)/python benchmarks/cost_model.py
	$(BIN)/python scripts/readme_results.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

course: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python notebooks/build.py $(if $(SECRET),--secret '$(SECRET)') $(if $(STUDENTS),--students '$(STUDENTS)') \
	  $(if $(RELEASE),--release '$(RELEASE)') $(if $(WHEELS),--wheels '$(WHEELS)')

frontend:
	cd frontend && npm ci --silent && npm run --silent check && npm run --silent build

# One core is enough (under a minute); JOBS=2 halves it.
JOBS ?= 1
proofs:
	cd proofs && coq_makefile -f _CoqProject -o CoqMakefile && $(MAKE) --no-print-directory -f CoqMakefile -j $(JOBS)

clean:
	[ ! -e proofs/CoqMakefile ] || $(MAKE) --no-print-directory -C proofs -f CoqMakefile cleanall
	rm -rf $(VENV) $(LOWEST) $(FUZZ) build dist site .pytest_cache .mypy_cache .ruff_cache
