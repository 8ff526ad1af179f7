# SPDX-License-Identifier: Apache-2.0
"""The fork on several releases at once: which patches apply, and which symbols are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fork.config import Config
from fork.patches import load_series
from fork.rebase.report import Carried, Report, make


def check(config: Config, versions: Sequence[str]) -> list[Report]:
    """A brief report for each release, against the pinned one."""
    series = load_series(config.patches)
    pinned = Carried(config, config.pinned, series)
    return [
        make(pinned, pinned if version == config.pinned else Carried(config, version, series), brief=True)
        for version in versions
    ]


def holds(config: Config, reports: Sequence[Report]) -> bool:
    """Whether every supported release is clean."""
    return all(report.ok for report in reports if report.new in config.supported)


def lines(config: Config, reports: Sequence[Report]) -> Iterator[str]:
    versions = [report.new for report in reports]
    patches = list(dict.fromkeys(row.patch for report in reports for row in report.edits))
    width = max(map(len, [*patches, "symbols that ours uses"]))
    yield f"{'patch':{width}}  " + "  ".join(f"{version:>8}" for version in versions)
    for patch in patches:
        yield f"{patch:{width}}  " + "  ".join(f"{_cell(report, patch):>8}" for report in reports)
    told = [f"{len(report.symbols) - len(report.failed_symbols)}/{len(report.symbols)}" for report in reports]
    yield f"{'symbols that ours uses':{width}}  " + "  ".join(f"{text:>8}" for text in told)
    support = ["yes" if version in config.supported else "no" for version in versions]
    yield f"{'supported':{width}}  " + "  ".join(f"{text:>8}" for text in support)
    for report in reports:
        yield from _missing(report)


def _cell(report: Report, patch: str) -> str:
    rows = [row for row in report.edits if row.patch == patch]
    if any(not row.ok for row in rows):
        return "FAILED"
    return "-" if all(row.state == "skipped" for row in rows) else "ok"


def _missing(report: Report) -> Iterator[str]:
    """What keeps the fork from a release, a line each."""
    if report.ok:
        return
    yield f"\n{report.new} lacks"
    yield from (f"  {problem}" for problem in report.problems)
    for row in report.failed_edits:
        near = f"; nearest: {', '.join(row.candidates)}" if row.candidates else ""
        yield f"  {row.patch}, edit {row.number}: {row.edit.file}, {row.what}: {row.problem}{near}"
    for symbol in report.failed_symbols:
        told = "; ".join(symbol.misfits) or f"used by {', '.join(sorted({use.where for use in symbol.uses}))}"
        near = f" ({'now in' if symbol.state == 'moved' else 'nearest'}: {symbol.found})" if symbol.found else ""
        yield f"  {symbol.symbol}: {symbol.state}{near}; {told}"
