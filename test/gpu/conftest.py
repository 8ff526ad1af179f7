# SPDX-License-Identifier: Apache-2.0
"""Tests that need a GPU: they skip without one. Those of servers run by ``make test-gpu-server``.

Servers are started and shared as in ``test/server``, whose harness is used.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from gpu_harness.config import GpuConfig
from gpu_harness.receipts import (  # noqa: F401  these are hooks and a fixture
    pytest_addoption,
    pytest_runtest_makereport,
    pytest_sessionfinish,
    record,
)
from harness.config import CACHE, LOGS, MODELS
from harness.pool import ServerPool
from harness.process import Server

GPUS = torch.cuda.device_count()


def pytest_configure() -> None:
    """Let a terminated session stop its servers, as an interrupted one does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "test/gpu/test_server" not in item.nodeid:
            continue
        item.add_marker(pytest.mark.long)
        needed = max((p.tp for p in _configs(item)), default=1)
        if needed > GPUS:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} GPUs, there are {GPUS}"))


def _configs(item: pytest.Item) -> list[GpuConfig]:
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return [param for param in params if isinstance(param, GpuConfig)]


@pytest.fixture(scope="session")
def gpu_pool(request: pytest.FixtureRequest) -> Iterator[ServerPool]:
    """The servers of this session; their logs stay if a test failed."""
    logs = LOGS / time.strftime(f"gpu-%Y%m%d-%H%M%S-{os.getpid()}")
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "SGLANG_CACHE_DIR": os.environ.get("SGLANG_CACHE_DIR", str(CACHE))}
    pool = ServerPool(MODELS, logs, environ)
    pool.expect(config for item in request.session.items for config in _configs(item))
    yield pool
    pool.close()
    if not request.session.testsfailed:
        shutil.rmtree(logs, ignore_errors=True)


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, gpu_pool: ServerPool) -> Server:
    """A healthy server of the configuration that the test is parametrised with."""
    return gpu_pool.get(request.param)
