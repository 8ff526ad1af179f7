# SPDX-License-Identifier: Apache-2.0
"""The table of docs/upstreaming.md: from the patches, not from a receipt, but no more typed by hand than those."""

from __future__ import annotations

import tomllib

from benchmark.receipt import REPO
from benchmark.receipts.figures.registry import figure, table
from benchmark.receipts.store import Store


@figure("patches.retire")
def retire(store: Store) -> str:
    rows = []
    for path in sorted((REPO / "patches").glob("[0-9]*.toml")):
        patch = tomllib.loads(path.read_text(encoding="utf-8"))
        rows.append([f"`{path.stem}`", len(patch["edit"]), _cell(patch["why"]), _cell(patch["retire"])])
    return table(["patch", "edits", "why", "it goes when"], rows)


def _cell(text: str) -> str:
    """Text as it may stand in a table: no bars, and no tags."""
    return text.replace("|", "\\|").replace("<", "&lt;")
