# SPDX-License-Identifier: Apache-2.0
"""The three modes, and what flags and environment ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

FLAG = "--ddtree-verify"
MODES_FLAG = "--ddtree-verify-modes"


class VerifyMode(StrEnum):
    """Whose kernel attends in decode and verify."""

    OFF = "off"  # the delegate's, upstream's kernel
    VALIDATE = "validate"  # both; the delegate's output is served
    ON = "on"  # ours

    @property
    def runs_delegate(self) -> bool:
        return self is not VerifyMode.ON

    @property
    def runs_ours(self) -> bool:
        return self is not VerifyMode.OFF


NAMES = tuple(mode.value for mode in VerifyMode)


def parse_mode(text: str, source: str) -> VerifyMode:
    """
    Raises:
        ValueError: there is no such mode; names ``source``.
    """
    try:
        return VerifyMode(text)
    except ValueError:
        raise ValueError(f"{source}: there is no mode {text!r}; choose off, validate or on") from None


def parse_modes(text: str) -> frozenset[VerifyMode]:
    """Comma-separated modes.

    Raises:
        ValueError: one of them does not exist, or none is given.
    """
    modes = frozenset(parse_mode(part.strip(), MODES_FLAG) for part in text.split(",") if part.strip())
    if not modes:
        raise ValueError(f"{MODES_FLAG} is empty; name at least one of off, validate, on")
    return modes


@dataclass(frozen=True)
class Requested:
    """What was asked for at the start; None where nothing was.

    Attributes:
        mode: in force at the start.
        modes: that may be switched to, the starting one included.
        has_admin_key: whether anybody could switch.
    """

    mode: VerifyMode | None = None
    modes: frozenset[VerifyMode] | None = None
    has_admin_key: bool = False

    @classmethod
    def from_values(cls, mode: str | None, modes: str | None, admin_key: str | None) -> Requested:
        """From the values of the flags, the environment folded in (``launch_check.py``).

        Raises:
            ValueError: from :func:`parse_mode` and :func:`parse_modes`.
        """
        return cls(
            mode=None if mode is None else parse_mode(mode, FLAG),
            modes=None if modes is None else parse_modes(modes),
            has_admin_key=bool(admin_key),
        )

    def resolve(
        self, default: VerifyMode, possible: frozenset[VerifyMode]
    ) -> tuple[VerifyMode, tuple[VerifyMode, ...]]:
        """The starting mode and the modes to prepare, in the order of the enum.

        Args:
            default: the backend's choice where none was asked for.
            possible: modes that the backend has for this model and device.

        Raises:
            ValueError: an asked-for mode is not possible, or the starting mode is not among the asked-for modes.
        """
        mode = self.mode
        if mode is None:
            mode = default if self.modes is None or default in self.modes else _ordered(self.modes)[0]
        modes = self.modes
        if modes is None:
            modes = possible | {mode} if self.has_admin_key else {mode}
        elif mode not in modes:
            raise ValueError(
                f"{FLAG} {mode.value} is not among {MODES_FLAG} {','.join(m.value for m in _ordered(modes))}; add it"
            )
        return mode, _ordered(modes)


def _ordered(modes: Iterable[VerifyMode]) -> tuple[VerifyMode, ...]:
    return tuple(mode for mode in VerifyMode if mode in modes)
