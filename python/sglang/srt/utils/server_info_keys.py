# SPDX-License-Identifier: Apache-2.0
"""``/server_info`` without the keys that the server was started with: every reader could else switch the server."""

from __future__ import annotations

import re
from typing import Any

SECRET_ARGUMENTS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})
REDACTED = "<redacted>"

_FLAGS = "|".join(name.replace("_", "-") for name in sorted(SECRET_ARGUMENTS))
_ON_THE_COMMAND_LINE = re.compile(rf"(--(?:{_FLAGS})(?:=|\s+))('[^']*'|\S+)")


def without_keys(info: Any, name: str = "") -> Any:
    """A copy of ``info``, dicts and lists all the way down, without the values of secret arguments.

    Values that are not set stay None.
    """
    if isinstance(info, dict):
        return {
            key: REDACTED if key in SECRET_ARGUMENTS and value is not None else without_keys(value, key)
            for key, value in info.items()
        }
    if isinstance(info, list):
        return [without_keys(item) for item in info]
    if name == "launch_command" and isinstance(info, str):
        return _ON_THE_COMMAND_LINE.sub(rf"\g<1>{REDACTED}", info)
    return info
