# SPDX-License-Identifier: Apache-2.0
"""A record in words: short, and complete enough to forward."""

from __future__ import annotations

import shlex
from typing import Any

from sglang_ddtree import journal
from sglang_ddtree.journal import Record

_DECISIONS = {
    journal.DONE: "kept",
    journal.BACK: "went back",
    journal.STUCK: "COULD NOT GO BACK",
    journal.REFUSED: "not begun; nothing was changed",
    journal.FORGOTTEN: "left as it was, on request",
    journal.RUNNING: "unfinished",
}


def text(record: Record) -> str:
    """The report of a cutover."""
    data = record.data
    lines = [
        f"cutover {data['before']['mode']} -> {data['target']} ({data['method']}) at {data['url']}, {data['began']}",
        f"result: {_DECISIONS[data['status']]}, the service is in mode {_mode_now(data)}",
    ]
    if reason := data.get("reason"):
        lines.append(f"reason: {reason}")
    lines += [f"  {found}" for found in data.get("verdict", {}).get("found", ())]
    lines += [f"  undone: {done}" for done in data.get("undone", ())]
    if data["status"] == journal.STUCK:
        lines += [f"  the way back failed: {data['undo_error']}", f"  at present {data['left']}"]
        lines.append(f"  mend what it names, then `{rollback_command(record)}`")
    lines += [f"  {step['step']}: {step['seconds']:.1f} s" for step in data["steps"] if "seconds" in step]
    environment = data.get("environment") or {}
    if data["status"] == journal.DONE and "backup" in environment:
        lines.append(f"  {environment['path']} was rewritten; before: {environment['backup']}")
    lines.append(f"record: {record.path}")
    if data["status"] == journal.DONE:
        lines.append(f"back: {rollback_command(record)}")
    return "\n".join(lines)


def rollback_command(record: Record) -> str:
    """What undoes the cutover; the records' folder is named where another one would be looked into."""
    folder = record.path.parent.resolve()
    where = [] if folder == journal.default_folder() else ["--state-dir", str(folder)]
    return shlex.join(["sglang-ddtree", "rollback", *where])


def _mode_now(data: dict[str, Any]) -> str:
    if data["status"] == journal.DONE:
        return str(data["target"])
    if data["status"] in (journal.BACK, journal.REFUSED):
        return str(data["before"]["mode"])
    return "unknown"
