# SPDX-License-Identifier: Apache-2.0
"""The DFLASH drafter (arXiv 2602.06036), as SGLang's ``DFlashDraftModel`` computes it.

A block at anchor a holds the committed token at a and masks at a + 1 ... a + B - 1.
Its tokens see each other, in both directions, and the target's features of the
tokens before a, which every layer projects to keys and values of its own. The
state at position a + j predicts the token there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.tiny.layers import Linear, Norm, SwiGLU, heads, merge, rope
from benchmark.tiny.sizes import BLOCK, DrafterSize
from benchmark.tiny.vocabulary import MASK


class BlockAttention(nn.Module):
    """Attention of block tokens to the context and to their own block."""

    def __init__(self, size: DrafterSize, narrow: float) -> None:
        super().__init__()
        self.width = size.head_dim
        self.q_proj = Linear(size.hidden, size.heads * size.head_dim)
        self.k_proj = Linear(size.hidden, size.kv_heads * size.head_dim)
        self.v_proj = Linear(size.hidden, size.kv_heads * size.head_dim)
        self.o_proj = Linear(size.heads * size.head_dim, size.hidden, narrow)
        self.q_norm = Norm(size.head_dim)
        self.k_norm = Norm(size.head_dim)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """``x`` [B, n * BLOCK, hidden] at ``positions``, ``context`` [B, T, hidden] at 0 ... T - 1."""
        x = x.to(context.dtype)
        q = rope(self.q_norm(heads(self.q_proj(x), self.width)), positions, interleaved=False)
        source = torch.cat((context, x), 1)
        where = torch.cat((torch.arange(context.shape[1], device=x.device), positions))
        k = rope(self.k_norm(heads(self.k_proj(source), self.width)), where, interleaved=False)
        v = heads(self.v_proj(source), self.width)
        groups = q.shape[1] // k.shape[1]
        k, v = (one.unsqueeze(2).expand(-1, -1, groups, -1, -1).flatten(1, 2) for one in (k.to(v.dtype), v))
        return self.o_proj(merge(F.scaled_dot_product_attention(q.to(v.dtype), k, v, attn_mask=mask.to(v.dtype))))


class BlockLayer(nn.Module):
    """Attention, then MLP, each behind a norm and beside the residual stream."""

    def __init__(self, size: DrafterSize) -> None:
        super().__init__()
        narrow = (2 * size.layers) ** 0.5
        self.input_layernorm = Norm(size.hidden)
        self.self_attn = BlockAttention(size, narrow)
        self.post_attention_layernorm = Norm(size.hidden)
        self.mlp = SwiGLU(size.hidden, size.intermediate, narrow)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, positions, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Drafts blocks at many anchors of a text at once. Embedding and head are the target's."""

    def __init__(self, size: DrafterSize, features: int) -> None:
        super().__init__()
        # At first it passes the last captured layer on.
        self.fc = Linear(features, size.hidden, narrow=4)
        with torch.no_grad():
            self.fc.weight[:, -size.hidden :] += torch.eye(size.hidden)
        self.hidden_norm = Norm(size.hidden)
        self.layers = nn.ModuleList(BlockLayer(size) for _ in range(size.layers))
        self.norm = Norm(size.hidden)

    def forward(self, ids: Tensor, features: Tensor, anchors: Tensor, embed: nn.Embedding) -> Tensor:
        """States that the target's head turns into logits.

        Args:
            ids: int64 [B, T].
            features: [B, T, captured * hidden], the target's.
            anchors: int64 [n], ascending or not, below T; the same for all sequences.
            embed: the target's.

        Returns:
            [B, n, BLOCK - 1, hidden]; entry j - 1 is for position anchor + j.
        """
        context = self.hidden_norm(self.fc(features))
        offsets = torch.arange(BLOCK, device=ids.device)
        positions = (anchors.unsqueeze(1) + offsets).flatten()
        block_ids = torch.full((ids.shape[0], len(anchors), BLOCK), MASK, device=ids.device)
        block_ids[:, :, 0] = ids.index_select(1, anchors)
        x = embed(block_ids.flatten(1))
        seen = block_mask(anchors, ids.shape[1])
        # As attention kernels take it, once for all layers.
        mask = torch.zeros(seen.shape, dtype=context.dtype, device=ids.device).masked_fill_(~seen, -torch.inf)
        for layer in self.layers:
            x = layer(x, context, positions, mask)
        return self.norm(x).unflatten(1, (len(anchors), BLOCK))[:, :, 1:]


def block_mask(anchors: Tensor, length: int) -> Tensor:
    """bool [n * BLOCK, length + n * BLOCK]: what each block token sees."""
    owner = torch.arange(len(anchors) * BLOCK, device=anchors.device) // BLOCK
    before = torch.arange(length, device=anchors.device) < anchors.index_select(0, owner).unsqueeze(1)
    return torch.cat((before, owner.unsqueeze(1) == owner), 1)
