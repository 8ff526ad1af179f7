# SPDX-License-Identifier: Apache-2.0
"""Everything that another release means for the fork, gathered and printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fork import apply, metadata, patches, upstream
from fork.carried import signatures
from fork.config import Config
from fork.errors import ForkError
from fork.rebase import changes, edits, mentions
from fork.rebase.changes import Change
from fork.rebase.edits import Row as EditRow
from fork.rebase.mentions import Mention
from fork.surface import compat, table
from fork.surface.compat import Row as SymbolRow
from fork.surface.index import Index
from fork.surface.uses import Use
from fork.upstream import UpstreamWheel

_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_OFF = "\033[0m"


class Carried:
    """The fork applied to one release, and what its files use of that release."""

    def __init__(self, config: Config, version: str, series: list[patches.Patch]):
        self.config = config.at(version)
        self.series = series
        self.wheel: UpstreamWheel = upstream.fetch(self.config, version)
        self.tree = apply.apply_series(self.wheel, series, version)

    @cached_property
    def added(self) -> dict[str, bytes]:
        return apply.read_added(self.config, self.wheel)

    @cached_property
    def index(self) -> Index:
        return table.index_of(self.config, self.wheel, self.tree, self.added)

    @cached_property
    def all_uses(self) -> list[Use]:
        return table.uses_of(self.config, self.wheel, self.index, self.added)


@dataclass
class Report:
    old: str
    new: str
    edits: list[EditRow]
    symbols: list[SymbolRow]
    changes: list[Change] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong with the release as a whole: an added file that upstream now has, a requirement that is gone."""

    @property
    def ok(self) -> bool:
        return not self.problems and not self.failed_edits and not self.failed_symbols

    @property
    def failed_edits(self) -> list[EditRow]:
        return [row for row in self.edits if not row.ok]

    @property
    def failed_symbols(self) -> list[SymbolRow]:
        return [row for row in self.symbols if not row.ok]


def make(old: Carried, new: Carried, *, brief: bool = False) -> Report:
    """Compares what the fork is on ``old`` with what it would be on ``new``. ``brief``: patches and symbols alone."""
    report = Report(
        old.config.version,
        new.config.version,
        edits.compare(old.tree, new.tree, new.wheel, new.config.version, with_lines=not brief),
        compat.compare(old.all_uses, old.index, new.index, new.config.absent),
        problems=_problems(new),
    )
    if not brief:
        report.changes = changes.compare(old.tree, old.wheel, new.wheel, new.config.version)
        report.mentions = mentions.new(new.config.watches, old.wheel, new.wheel)
        report.requirements = metadata.differences(_metadata(old), _metadata(new))
    return report


def _problems(new: Carried) -> list[str]:
    problems = []
    try:
        new.added  # noqa: B018  read for its errors
        metadata.rewrite(_metadata(new), new.config)
    except ForkError as error:
        problems.append(str(error))
    return problems


def _metadata(carried: Carried) -> str:
    return carried.wheel[f"{carried.wheel.dist_info}/METADATA"].decode()


# ---- as text


def lines(report: Report, *, everything: bool, diffs: bool, colour: bool) -> Iterator[str]:
    """The report, section by section. ``everything``: also symbols that are as they were."""
    yield f"from {report.old} to {report.new}: {summary(report)}"
    for problem in report.problems:
        yield f"  {problem}"
    yield from _edits(report)
    yield from _symbols(report, everything)
    yield from _changes(report, diffs, colour)
    yield from _mentions(report)
    if report.requirements:
        yield "\nrequirements of upstream's that changed"
        yield from (f"  {line}" for line in report.requirements)


def summary(report: Report) -> str:
    edited = Counter(row.state if row.ok else f"{row.state}!" for row in report.edits)
    told = Counter(row.state for row in report.symbols)
    verdict = "nothing stands in the way" if report.ok else "not ready"
    return f"{verdict} (edits: {_counts(edited)}; symbols: {_counts(told)})"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name.rstrip('!')}" for name, number in sorted(counter.items()))


def _edits(report: Report) -> Iterator[str]:
    rows = report.edits
    yield f"\nedits ({len(report.edits)}, of which {len(report.failed_edits)} fail)"
    width = max((len(row.patch) for row in rows), default=0) + 3
    for row in rows:
        mark = " " if row.ok else "!"
        yield f"{mark} {row.state:9}  {f'{row.patch}.{row.number}':{width}}  {_place(row)}"
        if row.problem:
            yield f"             {row.what}: {row.problem}"
            yield from (f"             nearest: {candidate}" for candidate in row.candidates)


def _place(row: EditRow) -> str:
    if row.old and row.new and row.old != row.new:
        (file, _, before), (_, _, after) = row.old.rpartition(":"), row.new.rpartition(":")
        return f"{file}: line {before} is now {after}"
    return row.new or row.old or row.edit.file


def _symbols(report: Report, everything: bool) -> Iterator[str]:
    rows = [row for row in report.symbols if everything or row.state != "present"]
    yield f"\nsymbols that ours uses ({len(report.symbols)}, of which {len(report.failed_symbols)} fail)"
    for row in rows:
        yield f"{' ' if row.ok else '!'} {row.state:9}  {row.symbol}"
        if row.state == "absent":
            yield f"             {row.found}"
            continue
        if row.found:
            yield f"             {'now in' if row.state == 'moved' else 'nearest'}: {row.found}"
        if row.before != row.after and row.state != "gone":
            old, new = signatures.contrasted(row.before, row.after)
            yield f"             old: {old}"
            yield f"             new: {new}"
        if not row.ok:
            told = row.misfits or list(dict.fromkeys(use.where for use in row.uses))
            yield from (f"             {'' if row.misfits else 'used by '}{line}" for line in told[:6])


def _changes(report: Report, diffs: bool, colour: bool) -> Iterator[str]:
    if not report.changes:
        return
    yield f"\nupstream's changes inside what we edit ({len(report.changes)})"
    for change in report.changes:
        yield f"  {change.file}, {change.symbol}: +{change.plus} -{change.minus}  ({', '.join(change.patches)})"
        for line in change.diff if diffs else []:
            paint = _COLOURS.get(line[:1]) if colour else None
            yield f"    {paint}{line}{_OFF}" if paint else f"    {line}"


def _mentions(report: Report) -> Iterator[str]:
    for watch in dict.fromkeys(mention.watch for mention in report.mentions):
        found = [mention for mention in report.mentions if mention.watch == watch]
        yield f"\nnew code that {watch} ({len(found)})"
        for mention in found:
            scope = f", in {mention.scope}" if mention.scope else ""
            yield f"  {mention.file}:{mention.line}{scope}: {mention.text}"
