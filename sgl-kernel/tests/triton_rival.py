# SPDX-License-Identifier: Apache-2.0
"""SGLang's Triton verify attention over the inputs of mla_tree_verify, for comparison; None where it is not installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from cases import LATENT_DIM, SM_SCALE, Inputs
from sgl_kernel_ddtree.reference.mla_tree_verify import slots_of, unpack_mask

MODULE = "sglang.kernels.ops.attention.extend_attention"


def triton_kernel() -> Callable[..., None] | None:
    try:
        return importlib.import_module(MODULE).extend_attention_fwd
    except ImportError:
        return None


def triton_call(inputs: Inputs, kernel: Callable[..., None]) -> tuple[Callable[[], None], torch.Tensor]:
    """A call that writes its own out tensor, and that tensor. Padded requests are not its business: lens must be >= 0."""
    spec, device = inputs.spec, inputs.kv_pool.device
    nodes, lens = spec.nodes, spec.lens
    pool = inputs.kv_pool if inputs.kv_pool.ndim == 3 else inputs.kv_pool.unsqueeze(1)
    tokens = [slots_of(inputs.page_table, r, n + nodes, spec.page_size) for r, n in enumerate(lens)]
    window = pool[torch.cat([t[n:] for t, n in zip(tokens, lens)])]
    tree = unpack_mask(inputs.mask_words, nodes)
    masks = [torch.cat([tree.new_ones(nodes, n), tree[r]], 1).reshape(-1) for r, n in enumerate(lens)]

    def offsets(sizes: list[int]) -> torch.Tensor:
        return torch.tensor([0, *sizes], device=device).cumsum(0)

    q = torch.cat([inputs.q_nope, inputs.q_rope], -1)
    out = torch.empty(q.shape[0], q.shape[1], LATENT_DIM, dtype=q.dtype, device=device)
    arguments = (
        q,
        window,
        window[..., :LATENT_DIM],
        out,
        pool,
        pool[..., :LATENT_DIM],
        offsets([nodes] * len(lens)).int(),
        offsets(lens).int(),
        torch.cat([t[:n] for t, n in zip(tokens, lens)]),
        torch.cat(masks),
        False,
        offsets([m.numel() for m in masks]),
        nodes,
        1.0,
        1.0,
    )
    return lambda: kernel(*arguments, sm_scale=SM_SCALE), out
