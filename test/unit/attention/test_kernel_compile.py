# SPDX-License-Identifier: Apache-2.0
"""A card whose code is not in the wheel, on a machine that cannot compile it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import sglang  # noqa: F401  first, for the CPU engine
import torch
from sgl_kernel_ddtree import _load
from sglang.kernels.jit import utils


@pytest.mark.parametrize("error", [RuntimeError("Could not find nvcc"), OSError("ninja: no such file")])
def test_a_failed_compilation_names_the_remedy(monkeypatch, tmp_path, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (12, 1))
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(_load, "_LIB_DIR", tmp_path)
    monkeypatch.setattr(utils, "load_jit", fail)
    monkeypatch.setattr(_load, "_cuda_include_flags", list)  # SGLang would remember where the toolkit is not
    for cached in (_load._prebuilt, _load._load):
        monkeypatch.setattr(_load, cached.__name__, cached.__wrapped__)
    with pytest.raises(
        RuntimeError, match=r"(?s)libddtree_cuda.so is not in.*sm_121a failed: .*DDTREE_CUDA_ARCHS=121a"
    ) as caught:
        _load.ensure_loaded("cuda:0")
    assert str(error) in str(caught.value) and "CUDA_HOME" in str(caught.value)
    assert caught.value.__cause__ is error
