# SPDX-License-Identifier: Apache-2.0
"""The calls that sanitize.sh runs: few and small, since a tool slows them a hundredfold, but every path of the kernel.

Without torch's caching allocator (PYTORCH_NO_CUDA_MEMORY_CACHING) each tensor is an allocation of its own, so that memcheck
sees an access past its end.
"""

from __future__ import annotations

import conftest  # noqa: F401  puts a checkout's package on the path
import torch
from cases import Spec, build, errors_of
from gqa_cases import GqaSpec
from gqa_cases import build as build_gqa

SPECS = [
    Spec([0], 1, 1),
    Spec([70, 0, -1, 1], 8, 8, 1),
    Spec([300, 33], 17, 8, 16, layout="strided"),
    Spec([1200], 33, 4, 64, layout="transposed", kv_pad=8),
    Spec([40, 5], 65, 20, 4, layout="split"),
    Spec([3], 257, 2, 2, with_lse=False),
]
GQA_SPECS = [
    GqaSpec([70, 0, -1, 300], 1, 8),  # tiles of 16, 64 and 128 rows
    GqaSpec([300, 33], 8, 8, page_size=16, fp8=True),
    GqaSpec([700, 5], 17, 8),
    GqaSpec([200], 40, 16, dim=64, window=50, tree="chain"),
    GqaSpec([130, 64], 33, 8, dim=256, page_size=64),
    GqaSpec([90], 16, 8, dim=256, tree="block", logit_cap=30.0),
]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for make, spec in [*((build, spec) for spec in SPECS), *((build_gqa, spec) for spec in GQA_SPECS)]:
        inputs = make(spec, "cuda")
        for _ in range(2):  # the second call finds the workspace as the first left it
            inputs.run()
        torch.cuda.synchronize()
        errors = errors_of(inputs, torch.float32)
        assert errors.relative <= 4e-3, (str(spec), errors)
        print(spec, errors, flush=True)


if __name__ == "__main__":
    main()
