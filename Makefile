# Everything from a clone: `make setup` ends with the command in .venv, `make build` with an image, `make test` with
# pytest's closing line. Each sets up what is missing: the virtual environment, Debian packages (through apt, where
# permitted), and for the tests a Docker engine of their own if none answers.

PYTHON ?= python3
VENV   := .venv
STACKB := $(VENV)/bin/stackb
STACK  ?= cu130-sglang-0.5.23
OUT    ?= out/$(STACK)

.PHONY: build test test-engine test-signing hardening lint audit lock-dev clean

build: $(VENV)/ready
	.ci/packages build
	$(STACKB) build $(STACK) --output $(OUT)

.PHONY: setup
setup: $(VENV)/ready

test: $(VENV)/ready lint
	.ci/packages build test
	.ci/with-docker $(VENV)/bin/pytest -n 2

# What needs a Docker engine, with a newer one than this machine's: Debian sid's, with each of its two image stores.
test-engine: $(VENV)/ready
	.ci/packages build test
	.ci/with-engine overlay2 $(VENV)/bin/pytest -m docker tests/real
	.ci/with-engine containerd $(VENV)/bin/pytest -m docker tests/real

# docs/signing.md with the real cosign, Debian sid's; offline once that is here.
test-signing: $(VENV)/ready
	.ci/packages test
	.ci/from-sid $(CURDIR)/build/cosign cosign
	PATH="$(CURDIR)/build/cosign/usr/bin:$$PATH" $(VENV)/bin/pytest tests/real/test_cosign.py

# Every fault and hostile input, not a sample, and docs/hardening.md written anew. Allow half an hour on two cores.
hardening: $(VENV)/ready
	.ci/packages build test
	.ci/with-docker $(VENV)/bin/pytest -n 2 --exhaustive --hardening-table docs/hardening.md tests

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Known vulnerabilities in all locks. An error, too, where not everything could be looked up, as behind a mirror without
# advisories; .ci/audit by itself tells the two apart (exit codes 1 and 3).
audit: $(VENV)/ready
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python .ci/audit

# The development environment, pinned with hashes. Run it after a change of dependencies in pyproject.toml.
lock-dev: $(VENV)/ready
	$(VENV)/bin/pip-compile --quiet --extra dev --generate-hashes --allow-unsafe --strip-extras --no-header \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	    --output-file lockfiles/development.txt pyproject.toml

# An environment that is there keeps its Python, whatever comes first on PATH today; make clean removes it.
$(VENV)/ready: lockfiles/development.txt pyproject.toml
	.ci/packages python
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r lockfiles/development.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) out build dist
