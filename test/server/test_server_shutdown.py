# SPDX-License-Identifier: Apache-2.0
"""One signal to the leader ends every process, also while a request runs."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import httpx
import pytest
from harness.config import ServerConfig
from harness.generate import REQUEST_SECONDS, load
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
        # "k" lies on a cycle without an end that the draft cannot foretell: it surely runs when the signal comes. The
        # server answers it before it ends, so it must not be too long for a slow machine.
        request = {"text": "k", "sampling_params": {"max_new_tokens": 500, "temperature": 0}}

        def ask() -> None:
            # The server is stopped underneath it.
            with suppress(httpx.HTTPError):
                httpx.post(f"{server.url}/generate", json=request, timeout=REQUEST_SECONDS)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: load(server)["num_running_reqs"] == 1, REQUEST_SECONDS, "running request")
        server.signal(number)
        wait_until(lambda: not server.members(), REQUEST_SECONDS + STOP_SECONDS, "end of all processes")
        asking.join()
    finally:
        server.stop()
