# SPDX-License-Identifier: Apache-2.0
"""What an edit may do, one module a kind.

Each action finds out first whether it is already there; then it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from fork.actions import containers, definitions, expressions, statements
from fork.actions.context import Context

ACTIONS: dict[str, Callable[[Context], None]] = {
    "append": containers.append,
    "entry": containers.entry,
    "member": definitions.member,
    "field": definitions.field,
    "method": definitions.method,
    "function": definitions.function,
    "import": definitions.import_,
    "before": statements.insert,
    "after": statements.insert,
    "branch": statements.branch,
    "guard": statements.guard,
    "value": expressions.value,
    "condition": expressions.condition,
    "argument": expressions.argument,
}
