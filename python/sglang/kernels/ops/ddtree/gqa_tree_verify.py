# SPDX-License-Identifier: Apache-2.0
"""Attention of a tree of draft nodes, a drafter's block or one token over a paged cache of keys and values (GQA, MHA).

The shape contract is that of ``sgl_kernel_ddtree.gqa_tree_verify``, CUDA kernel
and CPU twin alike. Like ``mla_tree_verify`` it has no torch stand-in.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.ddtree.native import native_package

HEAD_DIMS = (64, 128, 256)
MAX_GROUP = 16  # query heads of one KV head


def prepare(
    device: torch.device | str,
    *,
    max_num_nodes: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> torch.Tensor:
    """Load (or compile) the kernels of ``device`` and allocate their workspace.

    Call it once, before CUDA graphs are captured and before the server is ready.

    Args:
        device: where the tensors will be.
        max_num_nodes: most nodes of a tree or tokens of a block, 1 to 257.
        num_heads, num_kv_heads: query and KV heads of this rank.
        head_dim: 64, 128 or 256.

    Returns:
        uint8 workspace for every call of at most this size; empty on a CPU.

    Raises:
        ImportError: sglang-kernel-ddtree is not installed.
        RuntimeError: it has no code for this card and cannot compile any.
        ValueError: a size is out of range.
    """
    package = native_package()
    package.ensure_loaded(device)
    return package.gqa_tree_verify_workspace(
        device,
        max_num_nodes=max_num_nodes,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )


def gqa_tree_verify(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor | None,
    workspace: torch.Tensor,
    *,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
    window: int = -1,
    logit_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write ``out`` and, unless None, ``lse``.

    With B requests of N nodes, Hq query and Hkv KV heads of D dimensions:

    Args:
        out: ``[B*N, Hq, D]``, dtype of ``q``.
        lse: ``[B*N, Hq]`` float32, natural log, or None.
        q: ``[B*N, Hq, D]`` bfloat16; float32 too on a CPU.
        k_pool, v_pool: ``[slots, Hkv, D]`` in the dtype of ``q`` or
            float8_e4m3fn, rows of the nodes included.
        page_table: ``[B, max_pages]`` int32.
        prefix_lens: ``[B]`` int32; negative for a padded request.
        mask_words: ``[B, N, ceil(N/32)]`` int32 or uint32 ancestor bits; None
            for a block whose tokens all see each other.
        workspace: from :func:`prepare`.
        num_nodes: N.
        page_size: power of two, up to 64.
        sm_scale: factor on the scores.
        window: how many positions back a node sees, itself not counted;
            negative for no limit. A node stands at its depth in the tree.
        logit_cap: scores become ``cap * tanh(score / cap)``; 0 for none.
        k_scale, v_scale: factors on the rows of an fp8 pool.

    Raises:
        ValueError: an argument breaks the contract; it is named.
    """
    native_package().gqa_tree_verify(
        out,
        lse,
        q,
        k_pool,
        v_pool,
        page_table,
        prefix_lens,
        mask_words,
        workspace,
        num_nodes,
        page_size,
        sm_scale,
        window,
        logit_cap,
        k_scale,
        v_scale,
    )
