# Everything sets itself up: Python, make and git are all that must be there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
EXTRAS ?= dev
# Python 3.12 from the path, or where pyenv keeps it without putting it there.
OLDEST_PYTHON ?= $(firstword $(shell python3.12 -c 'print("python3.12")' 2>/dev/null) $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12) python3.12)
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-$(EXTRAS)
export MPLBACKEND := Agg
# Compiled files are kept, whatever the environment says: else every process compiles the library and the tests anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo demo-flower test test-quick test-oldest lint types format docs dist benchmark tune clean

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint $(CONSTRAINTS) --editable '.[demo]'
	@touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/python -m pip install --constraint $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	@touch $(DEV)

setup: $(STAMP) ## make the virtual environment with what the demo needs

setup-dev: $(DEV) ## add every extra and the developers' tools; `make test` and the like do it by themselves

demo: $(STAMP) ## compare FedLADA with FedAvg, FedCM and LocalAdam on digits: a table and a picture
	$(BIN)/fedlada compare --methods fedavg,fedcm,localadam,fedlada --seeds 0,1,2 --dataset digits \
		--rounds 80 --target 0.95 --out runs/demo

demo-flower: $(DEV) ## a real federation with TLS and four nodes, one of them killed; its weights equal the simulation's
	rm -rf runs/demo-flower
	$(BIN)/python examples/flower-app/run.py --nodes 4 --rounds 6 --kill 2 --time-limit 30 --check --out runs/demo-flower

# Three processes for two cores: tests of real federations and of kills wait for most of their time.
test: $(DEV) ## run the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal --durations=10

test-quick: $(DEV) ## run the quick tests: the algebra, the literal references, the engines' equality
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test-oldest: ## run it with the oldest torch and the other Python that we support
	$(MAKE) test PYTHON=$(OLDEST_PYTHON) VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

lint: $(DEV) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV) ## check types
	$(BIN)/mypy
	$(BIN)/mypy --config-file benchmarks/mypy.ini benchmarks/*.py benchmarks/gpu/*.py benchmarks/simulators/*.py

format: $(DEV) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV) ## build the documentation's site in build/docs; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: ## build wheel and sdist, install the wheel on its own and use it
	rm -rf dist build/dist-build build/dist-check
	$(PYTHON) -m venv build/dist-build
	build/dist-build/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) build
	build/dist-build/bin/python -m build --installer pip
	$(PYTHON) -m venv build/dist-check
	build/dist-check/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) dist/*.whl
	cd build && dist-check/bin/fedlada --version && dist-check/bin/fedlada methods
	cd build && dist-check/bin/python -c "import pathlib, fedlada.workbench.report.page as page; \
		page.write_page(pathlib.Path('page.html'), title='packaged', runs=[])"

benchmark: $(DEV) ## the sequential engine beside a hand-written loop, pfl and Flower (makes their environments)
	$(BIN)/python benchmarks/simulators/compare.py

tune: $(DEV) ## search the demo's hyperparameters again, the same budget for each method
	for grid in 1 2 3 4; do $(BIN)/python benchmarks/tune_digits.py --grid $$grid || exit 1; done

clean: ## remove what was built, keep environments and runs
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
