# SPDX-License-Identifier: Apache-2.0
"""The record, inside the wheel, of what was made of what."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from fork.carried import intact

if TYPE_CHECKING:  # doctor needs the name only, and runs where LibCST may be missing
    from fork.apply import Tree
    from fork.config import Config
    from fork.upstream import UpstreamWheel

MANIFEST = f"sglang/{intact.MANIFEST}"
FORMAT = 1


def make(config: Config, upstream: UpstreamWheel, tree: Tree) -> bytes:
    """JSON with the upstream release and wheel, each patch, each edited file before and after, and each added
    file, by sha256."""
    manifest = {
        "format": FORMAT,
        "version": config.fork_version,
        "upstream": {
            "name": config.name,
            "version": upstream.version,
            "wheel": upstream.path.name,
            "sha256": upstream.sha256,
        },
        "patches": {
            outcome.patch.name: {
                "sha256": outcome.patch.sha256,
                "why": outcome.patch.why,
                "files": sorted(outcome.files),
            }
            for outcome in tree.outcomes
        },
        "edited": {
            file: {"before": _sha256(upstream[file]), "after": _sha256(content), "patches": tree.edited_by[file]}
            for file, content in sorted(tree.edited.items())
        },
        "added": {file: _sha256(content) for file, content in sorted(tree.added.items())},
    }
    return (json.dumps(manifest, indent=1) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
