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
from harness.process import STOP_SECONDS, Server, wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_ends_every_process(number, models, environ, logs):
    config = ServerConfig("cycle-gqa", "DFLASH", 16)
    server = Server(config.arguments(models[config.pair]), logs / f"{number.name}.log", environ)
    try:
        server.wait_ready()
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
