# SPDX-License-Identifier: Apache-2.0
"""Attention of a tree of draft nodes over the paged MLA cache; decode is the same call with one node.

The shape contract is that of ``sgl_kernel_ddtree.mla_tree_verify``, CUDA kernel
and CPU twin alike. Unlike the tree operators it has no torch stand-in: attention
in plain torch would pass for a working server at a hundredth of the speed.
"""

from __future__ import annotations

import torch
from sglang.kernels.ops.ddtree.native import native_package


def prepare(
    device: torch.device | str,
    *,
    max_batch: int,
    max_num_nodes: int,
    num_heads: int,
) -> torch.Tensor:
    """Load (or compile) the kernels of ``device`` and allocate their workspace.

    Call it once, before CUDA graphs are captured and before the server is ready.

    Args:
        device: where the tensors will be.
        max_batch: most requests of one call, padded ones included.
        max_num_nodes: most nodes of a tree, 1 to 257.
        num_heads: heads of this rank, 1 to 128.

    Returns:
        uint8 workspace for every call of at most this size; empty on a CPU.

    Raises:
        ImportError: sglang-kernel-ddtree is not installed.
        RuntimeError: it has no code for this card and cannot compile any.
        ValueError: a size is out of range.
    """
    package = native_package()
    package.ensure_loaded(device)
    return package.mla_tree_verify_workspace(
        device, max_batch=max_batch, max_num_nodes=max_num_nodes, num_heads=num_heads
    )


def mla_tree_verify(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    kv_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask_words: torch.Tensor,
    workspace: torch.Tensor,
    *,
    num_nodes: int,
    page_size: int,
    sm_scale: float,
) -> None:
    """Write ``out`` and, unless None, ``lse``.

    With B requests of N nodes and H heads:

    Args:
        out: ``[B*N, H, 512]``, dtype of ``q_nope``.
        lse: ``[B*N, H]`` float32, natural log, or None.
        q_nope, q_rope: ``[B*N, H, 512]`` and ``[B*N, H, 64]`` bfloat16; float32
            too on a CPU. Views of one tensor will do.
        kv_pool: ``[slots, 576]`` or ``[slots, 1, 576]``, rows of the nodes included.
        page_table: ``[B, max_pages]`` int32.
        prefix_lens: ``[B]`` int32; negative for a padded request.
        mask_words: ``[B, N, ceil(N/32)]`` int32 or uint32 ancestor bits.
        workspace: from :func:`prepare`.
        num_nodes: N.
        page_size: power of two, up to 64.
        sm_scale: factor on the scores.

    Raises:
        ValueError: an argument breaks the contract; it is named.
    """
    native_package().mla_tree_verify(
        out,
        lse,
        q_nope,
        q_rope,
        kv_pool,
        page_table,
        prefix_lens,
        mask_words,
        workspace,
        num_nodes,
        page_size,
        sm_scale,
    )
