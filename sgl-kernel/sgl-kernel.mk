# SPDX-License-Identifier: Apache-2.0
# Included by the root Makefile: the native kernels. Targets with a card need nvcc 13 and torch for CUDA.

# Targets to build for: by default the card that is here, or none (the CPU twins) where there is no card.
KERNEL_ARCHS ?= $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | tr -d . | paste -sd, -)
KERNEL_PYTHON ?= $(abspath $(PY))
KERNEL_WHEEL_ARCHS ?= 120a

.PHONY: kernel kernel-install kernel-wheel kernel-report bench-kernel test-kernel test-kernel-gpu sanitize-kernel

# cmake and ninja come with the virtual environment, so that only a compiler is asked of the machine.
$(VENV)/.kernel-tools: sgl-kernel/pyproject.toml | $(PY)
	@$(PY) -m pip install --quiet "cmake>=3.25" "ninja>=1.10" "apache-tvm-ffi>=0.1.11,<0.2"
	@touch $@

kernel: $(VENV)/.kernel-tools ## compile the native kernels in place (KERNEL_ARCHS=120a,90a,...; default: this machine's card)
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(MAKE) --no-print-directory -C sgl-kernel lib ARCHS="$(KERNEL_ARCHS)" PYTHON=$(KERNEL_PYTHON)

KERNEL_SOURCES = $(shell find sgl-kernel/csrc sgl-kernel/python sgl-kernel/cmake -type f ! -path '*/lib/*' ! -name '*.pyc') \
                 sgl-kernel/CMakeLists.txt sgl-kernel/pyproject.toml

$(VENV)/.kernel-installed: $(KERNEL_SOURCES) | install
	@echo "building and installing sglang-kernel-ddtree ($(or $(KERNEL_ARCHS),CPU twins only))"
	@DDTREE_CUDA_ARCHS="$(or $(KERNEL_ARCHS),cpu)" $(PY) -m pip install --quiet --no-deps --force-reinstall ./sgl-kernel
	@touch $@

kernel-install: $(VENV)/.kernel-installed ## install the native kernels beside the fork in .venv
serve test test-long check-needs: kernel-install
TESTS += sgl-kernel/tests

kernel-wheel: $(VENV)/.kernel-tools ## the kernels' wheel, in dist/ (KERNEL_WHEEL_ARCHS=120a,121a,...)
	@DDTREE_CUDA_ARCHS="$(KERNEL_WHEEL_ARCHS)" $(PY) -m pip wheel --quiet --no-deps -w dist ./sgl-kernel
	@ls dist/sglang_kernel_ddtree-*.whl

# The tests and benchmarks take torch, triton's cuobjdump and the rivals from the installed fork, and the kernels from the
# in-place build, which is the newer one.
KERNEL_RUN = PYTHONPATH=$(abspath sgl-kernel/python) $(KERNEL_PYTHON)

kernel-report: $(VENV)/.kernel-tools install ## registers, spills, shared memory and instructions of every kernel; fails on a spill
	@$(KERNEL_RUN) sgl-kernel/tools/report.py $(ARGS)

test-kernel: kernel install $(VENV)/.tests ## the kernels' tests that need no card
	@$(KERNEL_RUN) -m pytest sgl-kernel/tests $(ARGS)

test-kernel-gpu: card kernel install $(VENV)/.tests ## the GPU suite, with a receipt in benchmark/results
	@$(KERNEL_RUN) -m pytest sgl-kernel/tests/test_mla_tree_verify_gpu.py \
	  --receipt benchmark/results/test_mla_tree_verify_gpu.json $(ARGS)
	@$(KERNEL_RUN) -m pytest sgl-kernel/tests/test_gqa_tree_verify_gpu.py \
	  --receipt benchmark/results/test_gqa_tree_verify_gpu.json $(ARGS)

sanitize-kernel: card kernel install ## compute-sanitizer: memcheck, racecheck, synccheck
	@PYTHON=$(KERNEL_PYTHON) PYTHONPATH=$(abspath sgl-kernel/python) sgl-kernel/tests/sanitize.sh

bench-kernel: card $(VENV)/.kernel-tools install ## against the floor, SGLang's Triton verify and FlashInfer (ARGS=--quick)
	@$(PY) -m pip install --quiet matplotlib
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(MAKE) --no-print-directory -C sgl-kernel lib BENCH=ON ARCHS="$(KERNEL_ARCHS)" PYTHON=$(KERNEL_PYTHON)
	@$(KERNEL_RUN) sgl-kernel/benchmark/bench_mla_tree_verify.py $(ARGS)

bench-kernel-gqa: card $(VENV)/.kernel-tools install ## gqa_tree_verify against the floor, FlashInfer and SGLang's Triton verify
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(MAKE) --no-print-directory -C sgl-kernel lib BENCH=ON ARCHS="$(KERNEL_ARCHS)" PYTHON=$(KERNEL_PYTHON)
	@$(KERNEL_RUN) sgl-kernel/benchmark/bench_gqa_tree_verify.py $(ARGS)
.PHONY: bench-kernel-gqa
