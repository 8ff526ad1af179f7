# SPDX-License-Identifier: Apache-2.0
"""One signal to the leader ends every process, also while a request runs."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import httpx
import pytest
from harness.config import ServerConfig
from harness.generate import load
from harness.process import STOP_SECONDS, wait_until


@pytest.mark.parametrize(
    ("number", "config"),
    [
        (signal.SIGINT, ServerConfig("cycle-mla", "DFLASH")),
        (signal.SIGTERM, ServerConfig("cycle-gqa", "DFLASH", 16)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_signal_ends_every_process(number, config, pool):
    server = pool.take(config)
    try:
        assert len(server.members()) > 1
        request = {"text": "k", "sampling_params": {"max_new_tokens": 1900}}

        def ask() -> None:
            # The server is stopped underneath it.
            with suppress(httpx.HTTPError):
                httpx.post(f"{server.url}/generate", json=request, timeout=STOP_SECONDS)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: load(server)["num_running_reqs"] == 1, 10, "running request")
        server.signal(number)
        wait_until(lambda: not server.members(), STOP_SECONDS, "end of all processes")
        asking.join()
    finally:
        server.stop()
