# SPDX-License-Identifier: Apache-2.0
"""Errors that a user is meant to read. Their text is complete: the command line prints it and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


class ForkError(Exception):
    """Something outside this program is wrong: a file, the network, the machine, a setting.

    The text says what and how to mend it.
    """


class PatchFormatError(ForkError):
    """A patch file does not follow patches/README.md."""


@dataclass
class EditError(ForkError):
    """An edit did not find its place, or found too many.

    ``patch`` and ``index`` are filled in by the series, which knows them; the rest by the edit that failed. ``kind`` is
    "gone", "ambiguous", or "unfit": the place is there, but not as the edit needs it.
    """

    file: str
    problem: str
    symbol: str = ""
    anchor: str = ""
    candidates: tuple[str, ...] = ()
    patch: str = ""
    index: int = 0
    kind: str = "unfit"

    def __str__(self) -> str:
        edit = f"{self.patch}, edit {self.index}" if self.index else self.patch
        where = f"{edit}: {self.file}" if edit else self.file
        if self.symbol:
            where += f", in {self.symbol}"
        if self.anchor:
            where += f", at {self.anchor}"
        text = f"{where}: {self.problem}"
        if self.candidates:
            text += "".join(f"\n    nearest: {candidate}" for candidate in self.candidates)
        return text
