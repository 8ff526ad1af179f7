# SPDX-License-Identifier: Apache-2.0
"""The running service as something that can be put into a mode, live or by a restart, and waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sglang_ddtree.errors import Failed, ServerError
from sglang_ddtree.progress import Progress
from sglang_ddtree.server import Server, SwitchState
from sglang_ddtree.supervisor import Supervisor


@dataclass
class Service:
    """A server, what restarts it (None: nothing does), and the patience to have with it."""

    server: Server
    supervisor: Supervisor | None
    progress: Progress
    health_seconds: float
    poll_seconds: float
    settle_seconds: float

    def switch_live(self, mode: str) -> None:
        """Switch while it serves, and see that every rank says so; raise Failed if not."""
        try:
            self.server.switch(mode)
            state = self.server.state()
        except ServerError as error:
            raise Failed(str(error)) from error
        if state.mode != mode:
            raise Failed(f"the server was switched to {mode} and says {state.mode}")

    def restart(self, log: Path) -> None:
        """Order a restart; raise Failed if that fails."""
        if self.supervisor is None:
            raise Failed("nothing is known that restarts the service; give --unit or --restart-command")
        self.progress.show("restarting the service")
        self.supervisor.restart(log)

    def wait_for(self, mode: str | None) -> SwitchState:
        """Wait until it is healthy in ``mode``, or in any for None; raise Failed if it will not be."""
        began = time.monotonic()
        other_since: float | None = None
        while True:
            waited = time.monotonic() - began
            trouble = self.server.unhealthy()
            if trouble is None:
                trouble, state = self._other_mode(mode)
                if state is not None:
                    return state
                if trouble.startswith("is healthy"):
                    other_since = other_since if other_since is not None else time.monotonic()
                    if time.monotonic() - other_since > self.settle_seconds:
                        raise Failed(
                            f"the server {trouble}: does its command line have --ddtree-verify, which wins over the "
                            "environment, or does it not read the environment file?"
                        )
            else:
                other_since = None
            if self.supervisor is not None and (why := self.supervisor.gave_up()):
                raise Failed(f"the service does not come back: {why}")
            if waited > self.health_seconds:
                raise Failed(f"the service did not come back within {self.health_seconds:.0f} s: it {trouble}")
            self.progress.show(f"waiting for the service{f' in mode {mode}' if mode else ''}: it {trouble}")
            time.sleep(self.poll_seconds)

    def _other_mode(self, mode: str | None) -> tuple[str, SwitchState | None]:
        try:
            state = self.server.state()
        except ServerError as error:
            return f"cannot tell its mode: {error}", None
        if mode in (None, state.mode):
            return "", state
        return f"is healthy in mode {state.mode}, not {mode}", None
