# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import interpreted
import pytest


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Callable]:
    """``interpreter(name, ...)``: a function of ``interpreted.py``, in the process that has Triton's interpreter."""
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn"), initializer=interpreted.start
    ) as pool:
        yield lambda name, *args, **kwargs: pool.submit(interpreted.call[name], *args, **kwargs).result(timeout=300)
