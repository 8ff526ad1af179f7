# SPDX-License-Identifier: Apache-2.0
"""Run while the ``cuda`` image is built, without a GPU: can it compile what its server will compile?

Two of SGLang's modules (tree and sampling: CUDA's runtime, cub, curand, nvtx) and a small one of FlashInfer's for the
first of the given targets, and the module through which Triton speaks to the driver. A part that is missing then ends
the build, not the first server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main(archs: str) -> None:
    first = archs.partition(",")[0]
    capability = divmod(int("".join(filter(str.isdigit, first))), 10)
    with tempfile.TemporaryDirectory() as folder:
        # Read when the packages are imported. Nothing of what is compiled stays in the image.
        tempfile.tempdir = folder
        os.environ |= {
            "HOME": folder,
            "TMPDIR": folder,
            "SGLANG_CACHE_DIR": f"{folder}/sglang",
            "SGLANG_JIT_CACHE_DIR": f"{folder}/jit",
            "FLASHINFER_CUDA_ARCH_LIST": ".".join(map(str, capability)),
        }
        _sglang(capability)
        _flashinfer()
        _triton(Path(folder))
    print("compiles SGLang's modules, FlashInfer's and Triton's")


def _sglang(capability: tuple[int, int]) -> None:
    from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
    from sglang.kernels.ops.speculative import sampling, tree

    with override_jit_cuda_arch(*capability):
        tree._jit_tree_module()
        sampling._jit_sampling_module(4, True)


def _flashinfer() -> None:
    """To the end of linking: without a driver it cannot be loaded."""
    from flashinfer.jit.page import gen_page_module

    gen_page_module().build()


def _triton(folder: Path) -> None:
    import triton
    from triton.runtime.build import _build

    source = Path(triton.__file__).parent / "backends" / "nvidia"
    # In the place of the driver's, which comes with the machine.
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", library], check=True)
    paths = [str(folder)], [str(source / "include")]
    _build("cuda_utils", str(source / "driver.c"), str(folder), *paths, [library.name], [])


if __name__ == "__main__":
    main(sys.argv[1])
