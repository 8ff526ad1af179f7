# SPDX-License-Identifier: Apache-2.0
"""``sglang-ddtree status``."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sglang_ddtree import report
from sglang_ddtree.commands import common
from sglang_ddtree.errors import ServerError
from sglang_ddtree.journal import Journal


def run(arguments: argparse.Namespace) -> int:
    """Print what the service does and what was last done to it; exit status 0 if it is healthy, else 1."""
    server = common.server(arguments)
    last = Journal(arguments.state_dir).latest()
    facts: dict[str, Any] = {"url": server.url, "health": server.unhealthy() or "healthy"}
    try:
        state = server.state()
        facts |= {"mode": state.mode, "ranks": state.ranks}
    except ServerError as error:
        facts["mode_unknown"] = str(error)
    facts["last"] = last.data if last else None
    if arguments.json:
        print(json.dumps(facts, indent=1))
    else:
        print(_text(facts))
        if last:
            print(f"\nlast {report.text(last)}")
            if last.unfinished:
                print(f"this cutover ended without a decision: {report.rollback_command(last)}")
    return 0 if facts["health"] == "healthy" else 1


def _text(facts: dict[str, Any]) -> str:
    lines = [f"{facts['url']}: {facts['health']}"]
    if "mode" not in facts:
        return "\n".join([*lines, facts["mode_unknown"]])
    lines.append(f"mode: {facts['mode']}")
    for number, rank in enumerate(facts["ranks"]):
        where = f"rank {number} " if len(facts["ranks"]) > 1 else ""
        kernels = ", ".join(f"{mode}: {kernel}" for mode, kernel in rank.get("kernels", {}).items())
        lines.append(f"{where}kernels: {kernels}; can be switched to {', '.join(rank.get('modes', ()))}")
        if seen := rank.get("validation"):
            lines.append(
                f"{where}comparison: {seen['steps']} forwards, max {seen['max_ulp']:.3g} ulp, "
                f"mean {seen['mean_ulp']:.3g}; of {seen['rows']} rows {seen['rows_beyond_2_ulp']} are beyond 2, "
                f"{seen['rows_not_finite']} not finite"
            )
    return "\n".join(lines)
