# Longshell. `make campaign` runs a whole campaign in miniature; `make test` runs the tests. Both install what they need.
SHELL := /bin/bash
SEED ?= 1
CONFIG ?= configs/miniature.yaml
ARGS ?=
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
# The state of `make ui` and of campaigns lies in ./var; LONGSHELL_HOME moves it.

SGLANG_VENV ?= $(HOME)/.cache/longshell/sglang-0.5.12.post1
# A real SGLang lives outside the project: its torch never touches ours.

IMAGES ?= $(CURDIR)/var/images
IMAGE_NAMES ?= debian:trixie-slim python:3.13-slim-bookworm ubuntu:24.04
# What stands for these is one Debian 13, which has Python 3.13; sandbox.images names the folder.

.PHONY: install campaign ui down test properties nightly layouts sglang image coverage lint audit bench

install:
	@./bootstrap.sh

campaign: install  ## one campaign: base -> SFT -> RL -> evaluated and diagnosed (SEED=2, CONFIG=..., ARGS="key.path=value")
	@$(PY) -m flows.campaign --config $(CONFIG) seed=$(SEED) $(ARGS)

ui: install  ## Prefect, a worker with every deployment, Ray and MLflow; prints the links
	@$(PY) -m tasks.stack up

down: install  ## stops exactly what `make ui` started
	@$(PY) -m tasks.stack down

test: install
	@$(PY) -m tests $(ARGS)

sglang: install  ## the stock SGLang wheel on this CPU against the suites that the embedded server passes (2.3 GB)
	@tests/sampler/sglang_cpu/install.sh $(SGLANG_VENV)
	@LONGSHELL_SGLANG_PYTHON=$(SGLANG_VENV)/bin/python $(PY) -m pytest tests/sampler tests/jobs -m sglang_cpu $(ARGS)

properties: install  ## the property tests on new examples; one that fails is told with how to repeat it
	@$(PY) -m pytest -m "hypothesis and not nightly" --hypothesis-profile=drawn $(ARGS)

layouts: install  ## the trainer in layouts of two and four processes against one
	@$(PY) -m pytest -m nightly tests/trainer/test_four_ranks.py tests/trainer/test_layouts.py \
		tests/trainer/test_hybrid_layouts.py $(ARGS)

nightly: install  ## the tests that `make test` has no time for, a real SGLang, and new examples; all, whichever fails
	@code=0; $(MAKE) sglang || code=1; $(PY) -m pytest -m nightly $(ARGS) || code=1; \
		$(MAKE) properties ARGS= || code=1; exit $$code

image: install  ## a root file system for the FROM of Harbor tasks, by debootstrap, as root (430 MB, a minute)
	@$(PY) -m components.sandbox.base_image --into $(IMAGES) $(addprefix --name ,$(IMAGE_NAMES)) \
		--file /usr/local/bin/uv=.venv/bin/uv --file /usr/local/bin/uvx=.venv/bin/uvx \
		--file /etc/ssl/certs/ca-certificates.crt=/etc/ssl/certs/ca-certificates.crt \
		--env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt $(ARGS)

coverage: install  ## the tests again, and how much of components/ they reach, in whatever process (half an hour)
	@$(PY) -m tests.measured $(ARGS)

lint: install
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports

audit: install  ## licences and pins of what is installed; not: vulnerabilities
	@$(PY) -m tests.audit

bench: install
	@$(PY) -m benchmarks
