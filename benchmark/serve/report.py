# SPDX-License-Identifier: Apache-2.0
"""Tables of a comparison.

A result of the receipt: algorithm, backend, draft_backend, width, turn_ms, context, and either `error` or median_ms and
quartiles_ms of a verify step, ms_per_step (a number a sample), steps (seen), steps_per_chunk, accept_length,
tokens_per_second, and from answers that are not streamed whole_median_ms and whole_ms_per_step. With `--profile` also
`profile`: steps, total (microseconds a step), kinds (kind -> microseconds a step), kernels (the longest: name ->
[kind, microseconds, launches a step]), host_calls (CUDA call -> [microseconds of the host, calls a step]).
"""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]


def server_name(result: Result) -> str:
    """Algorithm, width, backends, and the device time of a turn where it may have several steps."""
    return (
        f"{result['algorithm']} {result['width']}, {result['backend']}"
        f", draft on {result['draft_backend']}"
        f"{', turns of {:g} ms'.format(result['turn_ms']) if result.get('turn_ms') else ''}"
    )


def step_table(results: list[Result]) -> str:
    """A Markdown table: servers down, context lengths across.

    A cell has milliseconds streamed / answered whole, and how many times faster than `triton` the streamed figure is. A
    server that failed says why once, in short.
    """
    contexts = sorted({r["context"] for r in results})
    lines = [
        "| server | " + " | ".join(f"{c:,} tokens: ms a step" for c in contexts) + " | accept length | tokens/s |",
        "|---" * (len(contexts) + 3) + "|",
    ]
    for name in dict.fromkeys(map(server_name, results)):
        rows = {r["context"]: r for r in results if server_name(r) == name}
        cells = _cells([rows.get(c) for c in contexts], results)
        done = [r for r in rows.values() if "median_ms" in r]
        accept = ", ".join(f"{r['accept_length']:.2f}" for r in done)
        rate = ", ".join(f"{r['tokens_per_second']:.0f}" for r in done)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {accept} | {rate} |")
    return "\n".join(lines)


def _cells(row: list[Result | None], results: list[Result]) -> list[str]:
    cells, said = [], None
    for result in row:
        if result is None:
            cells.append("not run")
        elif "error" not in result:
            cells.append(_cell(result, results))
        elif result["error"] == said:
            cells.append("failed likewise")
        else:
            said = result["error"]
            cells.append(f"failed: {_short(said)}")
    return cells


def _short(error: str) -> str:
    """The first line, at most 60 characters of it, as a cell of a table can hold it."""
    first = error.strip().partition("\n")[0]
    return (first if len(first) <= 60 else f"{first[:59].rstrip()}…").replace("|", "\\|")


def _cell(result: Result, results: list[Result]) -> str:
    text = f"{result['median_ms']:.2f}"
    if "whole_median_ms" in result:
        text += f" / {result['whole_median_ms']:.2f}"
    base = [
        r["median_ms"]
        for r in results
        if r["backend"] == "triton"
        and "median_ms" in r
        and (r["algorithm"], r["context"]) == (result["algorithm"], result["context"])
    ]
    if base and result["backend"] != "triton":
        text += f" ({min(base) / result['median_ms']:.1f}x)"
    return text


def profile_table(results: list[Result]) -> str:
    """A Markdown table: kinds of work down, servers and contexts across, microseconds a step."""
    profiled = [r for r in results if "profile" in r]
    kinds: dict[str, float] = {}
    for result in profiled:
        for kind, micros in result["profile"]["kinds"].items():
            kinds[kind] = max(kinds.get(kind, 0.0), micros)
    heads = [f"{server_name(r)}, {r['context']:,}" for r in profiled]
    lines = ["| µs a step | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for kind in sorted(kinds, key=lambda k: -kinds[k]):
        cells = [f"{r['profile']['kinds'].get(kind, 0.0):.0f}" for r in profiled]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    totals = [f"{r['profile']['total']:.0f}" for r in profiled]
    lines.append("| **whole step, profiler on** | " + " | ".join(totals) + " |")
    calls = [r["profile"].get("host_calls", {}).values() for r in profiled]
    if not any(calls):
        return "\n".join(lines)
    busy = [f"{sum(micros for micros, _ in c):.0f} in {sum(count for _, count in c):.0f}" for c in calls]
    return "\n".join([*lines, "| host inside CUDA calls, µs in calls a step | " + " | ".join(busy) + " |"])
