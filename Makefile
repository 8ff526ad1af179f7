# SPDX-License-Identifier: Apache-2.0
# `make help` lists what there is. Everything happens in .venv, which is made on first use and kept up to date by hashes of its inputs.

PYTHON  ?= python3
# UPSTREAM names a supported release in place of the pinned one; it has an environment of its own.
UPSTREAM ?=
VENV    := .venv$(UPSTREAM:%=-%)
PY      := $(VENV)/bin/python
FLAVOUR ?= auto
MODEL   ?=
DRAFT   ?=
PORT    ?= 30000
ARGS    ?=
TESTS   ?= test
export PIP_DISABLE_PIP_VERSION_CHECK = 1
ifdef UPSTREAM
export FORK_UPSTREAM = $(UPSTREAM)
endif

.DEFAULT_GOAL := help
.PHONY: help install serve test test-long test-gpu test-gpu-server bench-accept train-pairs bench-serve bench-step-metadata bench-verify-switch wheel check lint check-cuda-deps doctor clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}; say PYTHON=python3.11")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp is made last, so an interrupted step is done again.
$(VENV)/.tools: fork/requirements.txt pyproject.toml | $(PY)
	@echo "installing the fork tool's libraries"
	@$(PY) -m pip install --quiet -r fork/requirements.txt
	@touch $@

$(VENV)/.tests: test/requirements.txt $(VENV)/.tools
	@echo "installing the tests' libraries"
	@$(PY) -m pip install --quiet -r test/requirements.txt
	@touch $@

$(VENV)/.lint: pyproject.toml $(VENV)/.tools
	@$(PY) -m pip install --quiet "ruff~=0.17.0" "mypy>=1.14"
	@touch $@

install: $(VENV)/.tools ## build the fork and install it into .venv (FLAVOUR=cpu or cuda; auto looks for a GPU)
	@$(PY) -m fork install --flavour $(FLAVOUR)

serve: install ## a server with speculative decoding on 127.0.0.1:PORT (MODEL= DRAFT= PORT= ARGS=)
	@$(PY) -m tools.serve $(if $(MODEL),--model "$(MODEL)") $(if $(DRAFT),--draft "$(DRAFT)") --port $(PORT) -- $(ARGS)

# What is named with TESTS= runs whole, long tests included; else servers in one process, units in the other.
test: install $(VENV)/.tests ## the tests, without the long ones (TESTS= narrows them)
	@$(PY) -m pytest $(TESTS) $(if $(findstring command,$(origin TESTS)),,-m "not long" -n 2)

test-long: install $(VENV)/.tests ## the long tests of DDTREE servers: a nightly job
	@$(PY) -m pytest test/server -m long

# First of what a target needs, so that nothing is built in vain.
.PHONY: card
card:
	@nvidia-smi -L >/dev/null 2>&1 || { echo "make $(MAKECMDGOALS): needs an NVIDIA GPU, and nvidia-smi lists none"; exit 1; }

test-gpu: card install kernel-install $(VENV)/.tests ## on a GPU, without a server: the attention backend, by its own tests and SGLang's kit, and training that repeats itself
	@$(PY) -m pytest test/gpu test/unit/tiny/test_repetition.py -k "test_backend or test_repetition" $(ARGS)

test-gpu-server: card install kernel-install $(VENV)/.tests ## the server on a GPU: graphs, soak, agreement with triton, two ranks
	@$(PY) -m pytest test/gpu -k test_server -s $(ARGS)

bench-step-metadata: card install ## the launch that prepares a step for the attention backend; needs a GPU
	@$(PY) -m benchmark.bench_step_metadata $(ARGS)

$(VENV)/.plots: | $(PY)
	@$(PY) -m pip install --quiet matplotlib
	@touch $@

bench-verify-switch: card install kernel-install ## the cutover switch in a server: what validate counts, a step in each mode, switching; needs a GPU
	@$(PY) -m benchmark.bench_verify_switch $(ARGS)

bench-serve: card install kernel-install $(VENV)/.plots ## a verify step in the server, ddtree_sm120 against triton; needs a GPU (ARGS="--profile")
	@$(PY) -m benchmark.serve $(ARGS)

train-pairs: install $(VENV)/.plots ## train models/trained-* anew; minutes on a large GPU, a night on a CPU (ARGS="--corpus LIB")
	@$(PY) -m benchmark.tiny --out build/trained-pairs $(ARGS)
	@$(PY) -m benchmark.tiny.card build/trained-pairs

bench-accept: install $(VENV)/.plots ## tokens a step by algorithm and tree, on the trained pair, on a CPU (ARGS="--kind gqa")
	@$(PY) -m benchmark.accept $(ARGS)

wheel: $(VENV)/.tools ## the fork's wheel, in dist/
	@$(PY) -m fork build

check: $(VENV)/.tools ## do all patches still apply? (UPSTREAM=version: to that release)
	@$(PY) -m fork check

.PHONY: check-upstream check-needs rebase receipts
rebase: $(VENV)/.tools ## what release TO= would break; WRITE=1 moves the fork to it if nothing does
	@$(if $(TO),,echo "say which release: make rebase TO=0.5.24" >&2; exit 2)
	@$(PY) -m fork rebase --to $(TO) $(if $(WRITE),--write) $(ARGS)

check-upstream: $(VENV)/.tools ## patches and symbols on 0.5.20 to 0.5.23 in one table; fails if a supported release does
	@$(PY) -m fork matrix

lint: $(VENV)/.lint ## ruff on everything, mypy on fork/ and the cutover tool
	@$(PY) -m ruff check
	@$(PY) -m mypy

check-needs: install $(VENV)/.tests ## take each patch away and see its test fail (PATCHES= narrows): a nightly job
	@$(PY) -m fork needs $(PATCHES)

receipts: $(VENV)/.tools ## are the receipts in order, and do the pages say what they say? (ARGS=--write: put it there)
	@$(PY) -m benchmark.receipts $(ARGS)

check-cuda-deps: $(VENV)/.tools ## does pip resolve what the cuda flavour needs? (installs nothing)
	@$(PY) -m fork install --flavour cuda --dry-run

doctor: $(VENV)/.tools ## what the installed fork is and would run
	@$(PY) -m fork doctor

clean: ## remove .venv, build/ and dist/
	rm -rf $(VENV) build dist

-include sgl-kernel/sgl-kernel.mk
-include docker/docker.mk
