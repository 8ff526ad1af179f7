# SPDX-License-Identifier: Apache-2.0
"""A server as a service without a supervisor: ``python service.py FOLDER`` starts it anew from its environment file.

``FOLDER/service.json`` has, by the value of SGLANG_DDTREE_VERIFY, the command to run; ``FOLDER/service.env`` is the
environment file, ``FOLDER/pid`` the process that leads the present server's group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 30


def stop(folder: Path) -> None:
    """End the present server, if there is one."""
    with suppress(FileNotFoundError, ProcessLookupError):
        group = int((folder / "pid").read_text())
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(group, number)
            end = time.monotonic() + STOP_SECONDS
            while time.monotonic() < end:
                os.killpg(group, 0)
                time.sleep(0.05)


def start(folder: Path) -> None:
    """Start what the environment file asks for."""
    lines = (folder / "service.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    command = json.loads((folder / "service.json").read_text())[settings["SGLANG_DDTREE_VERIFY"]]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **settings},
            start_new_session=True,
        )
    (folder / "pid").write_text(str(process.pid))


if __name__ == "__main__":
    stop(Path(sys.argv[1]))
    start(Path(sys.argv[1]))
