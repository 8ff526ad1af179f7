# SPDX-License-Identifier: Apache-2.0
"""The calls that sanitize.sh runs: few and small, since a tool slows them a hundredfold, but every path of the kernel.

Without torch's caching allocator (PYTORCH_NO_CUDA_MEMORY_CACHING) each tensor is an allocation of its own, so that memcheck
sees an access past its end.
"""

from __future__ import annotations

import conftest  # noqa: F401  puts a checkout's package on the path
import torch
from cases import Spec, build, errors_of

SPECS = [
    Spec([0], 1, 1),
    Spec([70, 0, -1, 1], 8, 8, 1),
    Spec([300, 33], 17, 8, 16, layout="strided"),
    Spec([1200], 33, 4, 64, layout="transposed", kv_pad=8),
    Spec([40, 5], 65, 20, 4, layout="split"),
    Spec([3], 257, 2, 2, with_lse=False),
]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for spec in SPECS:
        inputs = build(spec, "cuda")
        for _ in range(2):  # the second call finds the workspace as the first left it
            inputs.run()
        torch.cuda.synchronize()
        errors = errors_of(inputs, torch.float32)
        assert errors.relative <= 4e-3, (str(spec), errors)
        print(spec, errors, flush=True)


if __name__ == "__main__":
    main()
