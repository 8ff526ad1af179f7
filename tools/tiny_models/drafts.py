# SPDX-License-Identifier: Apache-2.0
"""A DFLASH draft that proposes, for each position, the token six positions back.

Built by hand rather than trained: the query of a mask and the key of a token are
the same vector, turned by rotary embedding so that their product peaks at a
distance of seven; values and output are the identity, and the target's head then
names the successor of the token it finds there. Cycles whose length divides six
are foretold in full, others in part or not at all.
"""

from __future__ import annotations

from typing import Any

import torch

from tools.tiny_models.checkpoint import DTYPE, Weights
from tools.tiny_models.cycle import FLAG_DIM
from tools.tiny_models.targets import HIDDEN, LAYERS, base_config
from tools.tiny_models.tokenizer import MASK_ID, VOCAB_SIZE

BLOCK_SIZE = 8
PERIOD = 6
_INTERMEDIATE = 256
_ROPE_THETA = 10000.0
# How sharply attention peaks. Not so much that
# the second and third choice, on which a tree lives, become improbable.
_SHARPNESS = 6.0

# Features are captured on entry to the layer after each of these, hence at most LAYERS - 2.
_TARGET_LAYER_IDS = (0, 1)


def copy_draft(
    *,
    seed: int,
    hidden: int = HIDDEN,
    vocab: int = VOCAB_SIZE,
    heads: int = 4,
    kv_heads: int = 4,
    head_dim: int = 32,
    context: int = 2048,
    target_layers: int = LAYERS,
    target_layer_ids: tuple[int, ...] = _TARGET_LAYER_IDS,
) -> tuple[dict[str, Any], Weights]:
    """Config and weights for a target of the given sizes.

    Query heads that share a KV head are alike; the output takes the first of each.
    """
    config = base_config(
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=_ROPE_THETA,
        max_position_embeddings=context,
        block_size=BLOCK_SIZE,
        num_target_layers=target_layers,
        dflash_config={
            "mask_token_id": MASK_ID,
            "target_layer_ids": list(target_layer_ids),
        },
    )
    kv_width = kv_heads * head_dim
    weights = Weights(seed)
    layer, attn = "layers.0", "layers.0.self_attn"
    weights["fc.weight"] = _first_feature(hidden, len(target_layer_ids))
    weights.norm("hidden_norm.weight", hidden)
    weights.norm(f"{layer}.input_layernorm.weight", hidden)
    weights.norm(f"{layer}.post_attention_layernorm.weight", hidden)
    direction = torch.ones(head_dim)
    # A mask's flag is negative: the sign makes its query face the tokens' keys.
    weights[f"{attn}.q_proj.weight"] = _from_flag(-_turn(direction, -(PERIOD + 1)), heads, hidden)
    weights[f"{attn}.k_proj.weight"] = _from_flag(direction, kv_heads, hidden)
    weights[f"{attn}.v_proj.weight"] = torch.eye(kv_width, hidden, dtype=DTYPE)
    weights[f"{attn}.o_proj.weight"] = _first_of_each_group(hidden, heads, kv_heads, head_dim)
    weights[f"{attn}.q_norm.weight"] = torch.full((head_dim,), _SHARPNESS, dtype=DTYPE)
    weights[f"{attn}.k_norm.weight"] = torch.ones(head_dim, dtype=DTYPE)
    for name, shape in (
        ("gate_proj", (_INTERMEDIATE, hidden)),
        ("up_proj", (_INTERMEDIATE, hidden)),
        ("down_proj", (hidden, _INTERMEDIATE)),
    ):
        weights[f"{layer}.mlp.{name}.weight"] = torch.zeros(shape, dtype=DTYPE)
    weights.norm("norm.weight", hidden)
    return config, weights


def _first_feature(hidden: int, features: int) -> torch.Tensor:
    """``[hidden, features * hidden]``: pass the first captured layer on, drop the rest."""
    return torch.eye(hidden, features * hidden, dtype=DTYPE)


def _first_of_each_group(hidden: int, heads: int, kv_heads: int, head_dim: int) -> torch.Tensor:
    """``[hidden, heads * head_dim]``: what the KV heads hold, side by side, and zeros beyond."""
    matrix = torch.zeros(hidden, heads, head_dim)
    for kv_head in range(kv_heads):
        rows = slice(kv_head * head_dim, (kv_head + 1) * head_dim)
        matrix[rows, kv_head * (heads // kv_heads)] = torch.eye(head_dim)
    return matrix.reshape(hidden, heads * head_dim).to(DTYPE)


def _from_flag(head: torch.Tensor, heads: int, hidden: int) -> torch.Tensor:
    """``[heads * head_dim, hidden]``: every head becomes ``head`` times the flag coordinate."""
    matrix = torch.zeros(heads * head.numel(), hidden)
    matrix[:, FLAG_DIM] = head.repeat(heads)
    return matrix.to(DTYPE)


def _turn(head: torch.Tensor, positions: float) -> torch.Tensor:
    """Rotate ``[head_dim]`` as rotary embedding (half-split pairs) does at ``positions``."""
    half = head.numel() // 2
    angle = positions * _ROPE_THETA ** (-torch.arange(half) / half)
    first, second = head[:half], head[half:]
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            second * angle.cos() + first * angle.sin(),
        ]
    )
