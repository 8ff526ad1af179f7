# SPDX-License-Identifier: Apache-2.0
"""``/server_info`` without the keys that the server was started with: whoever may read it could else switch the server."""

from __future__ import annotations

import re
from typing import Any

SECRET_ARGUMENTS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})
REDACTED = "<redacted>"

_ON_THE_COMMAND_LINE = re.compile(
    r"(--(?:%s)(?:=|\s+))('[^']*'|\S+)" % "|".join(name.replace("_", "-") for name in sorted(SECRET_ARGUMENTS))
)


def without_keys(info: Any, name: str = "") -> Any:
    """A copy of ``info``, dicts and lists all the way down, with the secret arguments' values replaced where they are set.

    The rest of a copy is the same objects, and values that are not set stay None.
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
