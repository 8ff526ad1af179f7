# SPDX-License-Identifier: Apache-2.0
"""The target models. Parameters bear the names of the Hugging Face checkpoints of their architectures."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.tiny.layers import Linear, Norm, SwiGLU, embedding, heads, merge, rope
from benchmark.tiny.sizes import TargetSize
from benchmark.tiny.vocabulary import SIZE


@dataclass
class Cache:
    """Keys and values of all layers so far, [B, H, T, D] each, for generation."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    length: int = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append to a layer; returns all that it holds."""
        if layer == len(self.keys):
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat((self.keys[layer], k), 2)
            self.values[layer] = torch.cat((self.values[layer], v), 2)
        return self.keys[layer], self.values[layer]


class Attention(nn.Module):
    """Causal attention; a kind of it says how queries, keys and values come about."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as [B, H, T, D]."""
        raise NotImplementedError

    def forward(self, x: Tensor, positions: Tensor, cache: Cache | None) -> Tensor:
        q, k, v = self.project(x, positions)
        alone = cache is None or cache.length == 0
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)
        width = v.shape[-1]
        if width < q.shape[-1]:
            # FlashAttention wants one width for all three.
            v = F.pad(v, (0, q.shape[-1] - width))
        # With a cache, one token at a time sees all of it.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=alone, enable_gqa=k.shape[1] != q.shape[1])
        return self.o_proj(merge(out[..., :width]))


class MLA(Attention):
    """DeepSeek-V3's latent attention, not absorbed."""

    def __init__(self, size: TargetSize, layer: int, narrow: float) -> None:
        super().__init__(layer)
        self.size = size
        self.q_a_proj = Linear(size.hidden, size.q_lora)
        self.q_a_layernorm = Norm(size.q_lora)
        self.q_b_proj = Linear(size.q_lora, size.heads * (size.nope + size.rope))
        self.kv_a_proj_with_mqa = Linear(size.hidden, size.kv_lora + size.rope)
        self.kv_a_layernorm = Norm(size.kv_lora)
        self.kv_b_proj = Linear(size.kv_lora, size.heads * (size.nope + size.value))
        self.o_proj = Linear(size.heads * size.value, size.hidden, narrow)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = self.size
        q = heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))), size.nope + size.rope)
        q_nope, q_rope = q.split((size.nope, size.rope), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((size.kv_lora, size.rope), -1)
        kv = heads(self.kv_b_proj(self.kv_a_layernorm(latent)), size.nope + size.value)
        k_nope, v = kv.split((size.nope, size.value), -1)
        q_rope = rope(q_rope, positions, interleaved=True)
        k_rope = rope(k_rope.unsqueeze(1), positions, interleaved=True).expand(-1, size.heads, -1, -1)
        return torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1), v


class GQA(Attention):
    """Qwen3's attention: fewer key heads than query heads, both normalised."""

    def __init__(self, size: TargetSize, layer: int, narrow: float) -> None:
        super().__init__(layer)
        self.width = size.head_dim
        self.q_proj = Linear(size.hidden, size.heads * size.head_dim)
        self.k_proj = Linear(size.hidden, size.kv_heads * size.head_dim)
        self.v_proj = Linear(size.hidden, size.kv_heads * size.head_dim)
        self.o_proj = Linear(size.heads * size.head_dim, size.hidden, narrow)
        self.q_norm = Norm(size.head_dim)
        self.k_norm = Norm(size.head_dim)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q_norm(heads(self.q_proj(x), self.width))
        k = self.k_norm(heads(self.k_proj(x), self.width))
        v = heads(self.v_proj(x), self.width)
        return rope(q, positions, interleaved=False), rope(k, positions, interleaved=False).to(v.dtype), v


class Layer(nn.Module):
    """Attention, then MLP, each behind a norm and beside the residual stream."""

    def __init__(self, size: TargetSize, layer: int, dropout: float) -> None:
        super().__init__()
        narrow = (2 * size.layers) ** 0.5
        attention = MLA if size.kind == "mla" else GQA
        self.input_layernorm = Norm(size.hidden)
        self.self_attn = attention(size, layer, narrow)
        self.post_attention_layernorm = Norm(size.hidden)
        self.mlp = SwiGLU(size.hidden, size.intermediate, narrow)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), positions, cache))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, size: TargetSize, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = embedding(SIZE, size.hidden)
        self.layers = nn.ModuleList(Layer(size, i, dropout) for i in range(size.layers))
        self.norm = Norm(size.hidden)


class Target(nn.Module):
    """A causal language model that also gives what a DFLASH drafter reads."""

    def __init__(self, size: TargetSize, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = size
        self.model = Decoder(size, dropout)
        self.lm_head = Linear(size.hidden, SIZE, narrow=4)

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor]:
        """Normalised last states [B, T, hidden] and features [B, T, captured * hidden] of ``ids`` [B, T].

        With a cache the ids continue what it holds: any number of them at first, then one at a time.
        """
        start = cache.length if cache else 0
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.model.embed_tokens(ids)
        captured = []
        for i, layer in enumerate(self.model.layers):
            x = layer(x, positions, cache)
            if i in self.size.captured:
                captured.append(x)
        if cache is not None:
            cache.length += ids.shape[1]
        return self.model.norm(x), torch.cat(captured, -1)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [B, T, vocabulary]."""
        return self.lm_head(self.hidden(ids)[0])
