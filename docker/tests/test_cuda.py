# SPDX-License-Identifier: Apache-2.0
"""The ``cuda`` image without a GPU: its kernels, and the toolkit, with which its build has compiled."""

from __future__ import annotations

from docker.build_args import PYTHONS

PACKAGES = f"/opt/sglang/lib/python{PYTHONS['cuda']}/site-packages"


def test_the_kernels_are_there(container):
    kernels = f"{PACKAGES}/sgl_kernel_ddtree/lib/libddtree_cuda.so"
    assert container.run("test", "-s", kernels).returncode == 0


def test_the_toolkit_is_that_of_the_environment(container):
    said = container.run("sh", "-c", "$CUDA_HOME/bin/nvcc --version")
    assert "release 13.0" in said.stdout
    for header in ("cuda_runtime.h", "curand_kernel.h", "cublasLt.h", "nvtx3/nvtx3.hpp", "cccl/cub/cub.cuh"):
        assert container.run("sh", "-c", f"test -e $CUDA_HOME/include/{header}").returncode == 0, header


def test_nothing_of_the_check_stays(container):
    left = container.run("sh", "-c", "ls -A /cache /tmp").stdout.split()
    assert not {".cache", ".triton", "sglang"} & set(left)
