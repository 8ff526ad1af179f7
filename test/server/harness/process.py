# SPDX-License-Identifier: Apache-2.0
"""A server process, as the tests use it."""

from __future__ import annotations

from tools.processes import STOP_SECONDS, wait_until
from tools.sglang_server import START_SECONDS, Server, ServerDied, free_port

__all__ = ["START_SECONDS", "STOP_SECONDS", "Server", "ServerDied", "free_port", "wait_until"]
