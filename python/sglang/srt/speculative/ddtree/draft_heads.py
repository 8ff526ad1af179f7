# SPDX-License-Identifier: Apache-2.0
"""Drafters that a tree cannot be grown from: their heads score a token given those before it."""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

# How the architectures of such drafts are called.
_HEAD_OF = {"DFlash2": "DFlash2 selector", "LiLiCorr": "LiLiCorr"}


def conditional_head_of(draft_hf_config: Any) -> str | None:
    """Name of the conditional head that a draft's configuration declares, if any."""
    if parse_dflash_draft_config(draft_hf_config=draft_hf_config).is_domino:
        return "Domino"
    architectures = getattr(draft_hf_config, "architectures", None) or ()
    return next(
        (
            head
            for part, head in _HEAD_OF.items()
            if any(part in architecture for architecture in architectures)
        ),
        None,
    )


def refusal_of(head: str) -> str:
    """Why a draft with ``head`` is refused, and the remedy."""
    return (
        f"DDTREE does not support drafts with a {head} head: its scores depend on the "
        "tokens before, and the tree is grown from one independent distribution a "
        "position. Use --speculative-algorithm DFLASH."
    )
