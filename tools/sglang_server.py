# SPDX-License-Identifier: Apache-2.0
"""An SGLang server as a process of one's own: start, wait until it serves, stop."""

from __future__ import annotations

import random
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tools.processes import ProcessGroup

# Generous: several servers may be starting at once on two slow cores. One that died is noticed at once.
START_SECONDS = 600


class ServerDied(RuntimeError):
    """The server ended, or did not become healthy in time; carries the end of its log."""


# Below what Linux gives to a socket that asks for any port, and outside of what SGLang chooses its own from: a server
# opens its port only when its models are loaded, and others ask for ports meanwhile.
PORTS = range(10_000, 22_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on at present, and that nobody is given by chance."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")


class Server(ProcessGroup):
    """An SGLang server on a port of 127.0.0.1, ``wrapper`` being a command that runs it, such as a debugger."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        port: int | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            *wrapper,
            *(sys.executable, "-m", "sglang.launch_server"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *arguments,
        ]
        super().__init__(command, log, environ)

    def wait_ready(self) -> None:
        """Return when ``/health`` answers 200; raise ServerDied if it never will."""
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            if self.exit_status is not None or time.monotonic() > deadline:
                status = self.exit_status
                self.stop()
                reason = f"exit status {status}" if status is not None else "timed out"
                tail = "\n".join(self.errors().splitlines()[-40:])
                raise ServerDied(f"server not ready ({reason}), see {self.log}:\n{tail}")
            time.sleep(0.2)

    def healthy(self) -> bool:
        """Whether ``/health`` answers 200 now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
