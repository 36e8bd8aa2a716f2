# The project's commands. `make help` lists them; nothing here holds logic that a script could hold.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
export PYTHONDONTWRITEBYTECODE := 1
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help
help: ## List the commands
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Make .venv (kept in the user's cache, keyed by versions.yml)
	@tools/venv.sh

.PHONY: demo
demo: venv ## Fresh machine to a sliced, verified simulated fleet, which stays up
	@$(PY) -m tests.demo

.PHONY: demo-down
demo-down: venv ## Remove the simulated fleet, and nothing else
	@$(PY) -m tests.cluster down

.PHONY: check
check: venv ## Lint, types, import layers, unit tests, hook tests without sanitizers (under 3 minutes)
	@$(PY) tools/run_tests.py check

.PHONY: test
test: venv ## Everything that CI runs
	@$(PY) tools/run_tests.py all

.PHONY: test-hook
test-hook: venv ## The hook: routing, oracle, kill storm, virtual time, sanitizers
	@$(PY) tools/run_tests.py hook

.PHONY: test-cluster
test-cluster: venv ## The chain on real Kubernetes and Volcano: check mode and demo on a fresh fleet, then restarts and outages
	@$(PY) tools/run_tests.py demo cluster

.PHONY: test-gpu
test-gpu: venv ## The hook's suites against a real driver, where there is one
	@$(PY) tools/run_tests.py gpu

.PHONY: bench-hook
bench-hook: venv ## Cost and accuracy of the hook, as a table and as JSON
	@$(PY) tests/benchmarks/bench_hook.py

.PHONY: molecule
molecule: venv ## Every molecule scenario
	@$(PY) tools/run_tests.py molecule

.PHONY: format
format: venv ## Rewrite Python in the house's format
	@.venv/bin/ruff check --fix . && .venv/bin/ruff format .
