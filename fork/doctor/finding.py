# SPDX-License-Identifier: Apache-2.0
"""A line of the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Finding:
    """``ok`` is None for a fact that is neither good nor bad. What is wrong says how to mend it."""

    what: str
    said: str
    ok: bool | None = None
