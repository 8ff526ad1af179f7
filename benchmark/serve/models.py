# SPDX-License-Identifier: Apache-2.0
"""The models that are served: one rank of Kimi K2 under TP 8 as far as attention goes, six layers of it.

Weights are random. A step costs the same whatever it accepts, so a figure in
milliseconds a step needs no trained model; tokens a second would.
"""

from __future__ import annotations

from pathlib import Path

from tools.tiny_models import ModelPair, cycle, drafts, targets
from tools.tiny_models.catalog import Checkpoint, ensure_checkpoint

LAYERS, HIDDEN, HEADS = 6, 1024, 8
CONTEXT = 131072

# A rank's share of a drafter with 64 query and 8 KV heads.
DRAFT_HEADS, DRAFT_KV_HEADS, DRAFT_HEAD_DIM = 8, 1, 128


def ensure(root: Path) -> ModelPair:
    """The target and its DFLASH draft under ``root``, made unless they are there."""
    target = f"target-{LAYERS}x{HIDDEN}-h{HEADS}-ctx{CONTEXT}"
    draft = f"draft-h{DRAFT_HEADS}-kv{DRAFT_KV_HEADS}x{DRAFT_HEAD_DIM}-ctx{CONTEXT}"
    return ModelPair(
        target=ensure_checkpoint(root / "kimi-rank" / target, _target, print),
        draft=ensure_checkpoint(root / "kimi-rank" / draft, _draft, print),
    )


def _target() -> Checkpoint:
    config, weights = targets.mla(
        seed=11, hidden=HIDDEN, layers=LAYERS, heads=HEADS, yarn_factor=32, original_context=CONTEXT // 32
    )
    cycle.bind(weights, mixing=1.0)
    return config, weights


def _draft() -> Checkpoint:
    return drafts.copy_draft(
        seed=12,
        hidden=HIDDEN,
        heads=DRAFT_HEADS,
        kv_heads=DRAFT_KV_HEADS,
        head_dim=DRAFT_HEAD_DIM,
        context=CONTEXT,
        target_layers=LAYERS,
    )
