# SPDX-License-Identifier: Apache-2.0
"""Servers shared by all tests that ask for the same configuration."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.config import ServerConfig
from harness.process import Server
from tools.tiny_models import ensure

# The one under test, the next one starting beside it, and a plain one for reference.
CAPACITY = 3


class ServerPool:
    """Starts servers on demand, keeps the last few, and starts the next ahead of time.

    Starting costs about as long as all tests of a configuration, and is bound by
    one core; hence the head start.
    """

    def __init__(self, models: Path, logs: Path, environ: dict[str, str]) -> None:
        self._models, self._logs, self._environ = models, logs, environ
        self._running: dict[ServerConfig, Server] = {}
        self._kept: set[ServerConfig] = set()
        self._order: list[ServerConfig] = []

    def expect(self, configs: Iterable[ServerConfig]) -> None:
        """Tell in which order configurations will be asked for."""
        self._order = list(dict.fromkeys(configs))

    def get(self, config: ServerConfig, *, ahead: bool = True) -> Server:
        """A healthy server of this configuration; ``ahead`` starts the next one too.

        Both then stay until the next such call; one got without ``ahead`` is for reference
        and makes room for the next.

        Raises:
            ServerDied: it does not start, or ended since it was last asked for.
        """
        following = self._after(config) if ahead else None
        if ahead:
            self._kept = {config} if following is None else {config, following}
        server = self._launch(config)
        if following is not None:
            self._launch(following)
        server.wait_ready()
        return server

    def take(self, config: ServerConfig) -> Server:
        """A healthy server that is the caller's from now on: for a test that ends it."""
        server = self.get(config, ahead=False)
        del self._running[config]
        self._kept.discard(config)
        return server

    def close(self) -> None:
        """Stop every server."""
        for config in list(self._running):
            self._running.pop(config).stop()

    def _launch(self, config: ServerConfig) -> Server:
        server = self._running.pop(config, None)
        if server is None:
            while len(self._running) >= CAPACITY:
                oldest = next(other for other in self._running if other not in self._kept)
                self._running.pop(oldest).stop()
            arguments = config.arguments(ensure(self._models, config.pair))
            server = Server(arguments, self._logs / f"{config}.log", self._environ)
        # Last in the order of insertion: most recently used.
        self._running[config] = server
        return server

    def _after(self, config: ServerConfig) -> ServerConfig | None:
        if config not in self._order:
            return None
        return next(iter(self._order[self._order.index(config) + 1 :]), None)
