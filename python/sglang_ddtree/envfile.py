# SPDX-License-Identifier: Apache-2.0
"""One variable in an environment file, of systemd or of a shell; every other byte stays as it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from sglang_ddtree import atomic

VARIABLE = "SGLANG_DDTREE_VERIFY"
FLAG = "--ddtree-verify"

_ASSIGNMENT = re.compile(
    rf"^(?P<name>[ \t]*(?:export[ \t]+)?){VARIABLE}[ \t]*=(?P<value>[^\r\n]*)(?P<end>\r?)$", re.MULTILINE
)
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
        return text[: last.start()] + last["name"].lstrip() + line + last["end"] + text[last.end() :]
    gap = "" if not text or text.endswith("\n") else "\n"
    # A line that ends with a backslash goes on in the next one.
    if text.rstrip("\r\n").endswith("\\"):
        gap += "\n"
    return f"{text}{gap}{line}\n"


def overriding_flag(text: str) -> bool:
    """Whether a line of the file hands the server the flag, which wins over the variable."""
    return _FLAG_IN_USE.search(text) is not None


def read(path: Path) -> str:
    """The file's text, from which ``encoded`` makes the same bytes again, whatever its encoding and line ends."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def encoded(text: str) -> bytes:
    """What is written for a text of ``read``."""
    return text.encode("utf-8", "surrogateescape")


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
    content = encoded(with_value(read(path), wanted))
    atomic.write(path, content, like=path)
    return digest(content)
