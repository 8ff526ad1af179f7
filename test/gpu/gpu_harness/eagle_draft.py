# SPDX-License-Identifier: Apache-2.0
"""An EAGLE draft for the cycle targets: its best token is the target's own next one.

``fc`` passes the embedding of the last token on and drops the target's features, and its only layer adds nothing, so
the target's head, which EAGLE shares, names the successor. The other branches of a tree are wrong.
"""

from __future__ import annotations

from pathlib import Path

import torch

from tools.tiny_models.catalog import Checkpoint, ensure_checkpoint
from tools.tiny_models.checkpoint import DTYPE, Weights
from tools.tiny_models.targets import HIDDEN, base_config

_HEADS, _HEAD_DIM, _INTERMEDIATE = 2, 64, 128


def _make() -> Checkpoint:
    config = base_config(
        architectures=["LlamaForCausalLMEagle"],
        model_type="llama",
        num_hidden_layers=1,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        head_dim=_HEAD_DIM,
        intermediate_size=_INTERMEDIATE,
    )
    weights, layer = Weights(9), "layers.0"
    weights["fc.weight"] = torch.eye(HIDDEN, 2 * HIDDEN, dtype=DTYPE)
    weights["fc.bias"] = torch.zeros(HIDDEN, dtype=DTYPE)
    for name in ("q_proj", "k_proj", "v_proj"):
        weights.matrix(f"{layer}.self_attn.{name}.weight", _HEADS * _HEAD_DIM, HIDDEN)
    weights[f"{layer}.self_attn.o_proj.weight"] = torch.zeros(HIDDEN, _HEADS * _HEAD_DIM, dtype=DTYPE)
    weights.norm(f"{layer}.post_attention_layernorm.weight", HIDDEN)
    for name in ("gate_proj", "up_proj"):
        weights.matrix(f"{layer}.mlp.{name}.weight", _INTERMEDIATE, HIDDEN)
    weights[f"{layer}.mlp.down_proj.weight"] = torch.zeros(HIDDEN, _INTERMEDIATE, dtype=DTYPE)
    return config, weights


def ensure_eagle_draft(root: Path) -> Path:
    """Make the draft under ``root`` unless it is there."""
    return ensure_checkpoint(root / "eagle-draft", _make)
