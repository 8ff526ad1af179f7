# SPDX-License-Identifier: Apache-2.0
"""Tiny target/draft checkpoints for running and testing the server without a download.

``python -m tools.tiny_models OUT`` writes, for MLA (DeepSeek-V3) and GQA (Qwen3) alike:

``cycle-*``
    The target walks a fixed graph of tokens whatever came before, so its output
    can be told by hand; the DFLASH draft copies what stood six tokens back.
    Blocks are accepted in full, in part, or not at all, depending on the prompt.
``random-*``
    The target's output depends on its whole context, so a wrong mask, position
    or KV row changes tokens; the same kind of draft is now and then right.

``trained-*``
    Small real models of Python code, kept in ``models/``: see ``docs/trained-pair.md``.

and under ``mismatched/`` drafts that fit no target here, each in one way.
All weights come from fixed seeds. Every checkpoint is below 10 MB.
"""

from tools.tiny_models.catalog import (
    MISMATCHES,
    PAIRS,
    TRAINED,
    ModelPair,
    ensure,
    ensure_mismatched,
)

__all__ = ["MISMATCHES", "PAIRS", "TRAINED", "ModelPair", "ensure", "ensure_mismatched"]
