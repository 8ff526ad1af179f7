# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import sglang  # noqa: F401  makes the embedded sgl_kernel importable
import triton_oracle


@pytest.fixture(scope="session")
def oracle() -> Iterator[Callable]:
    """``oracle(name, **arguments)``: what SGLang's Triton kernel writes for the same arguments (they are copied)."""
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=triton_oracle.start
    ) as pool:
        yield lambda name, **arguments: pool.submit(triton_oracle.call, name, **arguments).result(timeout=300)
