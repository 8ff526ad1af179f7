# SPDX-License-Identifier: Apache-2.0
"""Can the server listen where it should?"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.launch_checks.error import LaunchError

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs


def check_port(server_args: ServerArgs) -> None:
    """Refuse an HTTP port that is taken or an address that is not this machine's.

    The listening socket itself is opened when the models are loaded; a server that
    finds the port taken then stays up without serving.
    """
    cfg = resolving_view(server_args)
    if cfg.node_rank != 0:
        return
    try:
        _bind(cfg.host, cfg.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another process listens there. Stop it, or choose another --port"
        else:
            reason = f"{error.strerror or error}. --host takes an address of this machine, --port one that you may open"
        raise LaunchError(f"--host {cfg.host} --port {cfg.port} cannot be used: {reason}.") from error


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        # As the server does: connections of a server that just ended are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
