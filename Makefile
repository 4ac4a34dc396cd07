# Every target sets up .venv by itself (quick when nothing changed).
# PYTHON=python3.12 picks the interpreter. LOCK=cuda installs the packages for GPUs, LOCK=cpu those for CPUs; without it .venv
# keeps those it has, and a first one gets those for CPUs.
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev quickstart test test-real check docs format bench bench-quickstart bench-soak lock clean

LOCK ?=
RUN := .venv/bin/python
PYTEST := $(RUN) -m pytest -q
SPHINX := $(RUN) -m sphinx -q -aE -W --keep-going -b html -d build/doctrees docs build/docs
# Two workers share each suite. Files that start Ray, vLLM or whole runs keep to one worker each, the longest first.
HEAVY := tests/e2e tests/cluster tests/engines/test_families.py tests/engines

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | expand -t 20

setup:  ## install what runs need into .venv
	@scripts/setup.sh $(LOCK)

setup-dev: setup  ## install what tests and checks need as well
	@scripts/setup.sh dev

quickstart: setup  ## the whole RLEP workflow on a tiny model: base, phase 1, collect, phase 2, compare
	@.venv/bin/rlep quickstart

test: check  ## every check and every test, those that start clusters and engines last
	$(PYTEST) -n 2 -m slow tests/unit tests/contract
	$(PYTEST) -n 2 tests/services
	$(PYTEST) -n 2 --dist loadfile tests/browser
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder --durations=15 $(HEAVY)

test-real: setup-dev  ## both phases on a real model of 135M parameters, from PyPI; some minutes
	$(PYTEST) tests/real

check: setup-dev  ## lint, format, types, documentation, unit and contract tests but the slow ones; about a minute
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	$(RUN) -m mypy
	$(SPHINX)
	$(PYTEST) -n 2 -m "not slow" tests/unit tests/contract

docs: setup-dev  ## build the documentation site into build/docs; broken links and anchors are errors
	$(SPHINX)
	@echo build/docs/index.html

format: setup-dev  ## fix what ruff can fix
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

bench: setup-dev  ## every benchmark but those below and those for a GPU
	@for script in $(filter-out $(addprefix benchmarks/,quickstart.py soak.py chaos.py gpu_learner.py),$(wildcard benchmarks/*.py)); do echo "== $$script"; $(RUN) "$$script" || exit 1; done

bench-quickstart: setup-dev  ## replay against the baseline and the controls, over paired seeds
	$(RUN) benchmarks/quickstart.py

bench-soak: setup-dev  ## a long run whose processes come, go and are killed: what grows; then half an hour of any fault: is its history right
	$(RUN) benchmarks/soak.py
	$(RUN) benchmarks/chaos.py

lock: setup-dev  ## resolve requirements/*.txt anew
	scripts/lock.sh

clean:  ## remove caches and build outputs; keeps .venv and runs/
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find rlep tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
