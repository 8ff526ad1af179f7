# SPDX-License-Identifier: Apache-2.0
"""One variable in an environment file as systemd reads it; every other byte stays as it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from sglang_ddtree import atomic

VARIABLE = "SGLANG_DDTREE_VERIFY"
FLAG = "--ddtree-verify"

_ASSIGNMENT = re.compile(rf"^[ \t]*{VARIABLE}[ \t]*=(?P<value>[^\n]*)$", re.MULTILINE)
_FLAG_IN_USE = re.compile(rf"^[ \t]*[^#;\n]*{FLAG}(?![\w-])", re.MULTILINE)


def value(text: str) -> str | None:
    """What the file assigns to the variable; the last assignment counts. None if there is none."""
    found = list(_ASSIGNMENT.finditer(text))
    return found[-1]["value"].strip().strip("'\"") if found else None


def with_value(text: str, wanted: str | None) -> str:
    """``text`` with the variable set to ``wanted``, or without it if None."""
    found = list(_ASSIGNMENT.finditer(text))
    if wanted is None:
        return re.sub(_ASSIGNMENT.pattern + r"\n?", "", text, flags=re.MULTILINE)
    line = f"{VARIABLE}={wanted}"
    if found:
        last = found[-1]
        return text[: last.start()] + line + text[last.end() :]
    gap = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{gap}{line}\n"


def overriding_flag(text: str) -> bool:
    """Whether a line of the file hands the server the flag, which wins over the variable."""
    return _FLAG_IN_USE.search(text) is not None


def digest(content: bytes) -> str:
    """sha256, to tell a file that was edited since from one that was not."""
    return hashlib.sha256(content).hexdigest()


def back_up(path: Path, stamp: str) -> Path:
    """Copy the file beside itself under a name of its own, on the disk before it returns."""
    atomic.sweep(path.parent, path.name)
    backup = path.with_name(f"{path.name}.before-{stamp}")
    atomic.write(backup, path.read_bytes(), like=path)
    return backup


def set_value(path: Path, wanted: str | None) -> str:
    """Set the variable in the file in one step, and return the digest of the new content."""
    content = with_value(path.read_text(encoding="utf-8"), wanted).encode()
    atomic.write(path, content, like=path)
    return digest(content)
