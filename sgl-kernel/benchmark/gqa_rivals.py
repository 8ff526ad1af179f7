# SPDX-License-Identifier: Apache-2.0
"""The kernels that a case of bench_gqa_tree_verify is timed against, and the case itself.

Each maker returns one call a pool, or the reason why it cannot do the case.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sgl_kernel_ddtree import gqa_tree_verify, gqa_tree_verify_workspace
from sgl_kernel_ddtree.reference.mla_tree_verify import pack_mask
from triton_verify import MODULE, triton_kernel


@dataclass
class GqaProblem:
    """One case over `pools`, pairs of views [slots, kv_heads, dim] that are used in turn."""

    batch: int
    nodes: int
    heads: int
    kv_heads: int
    dim: int
    length: int
    q: torch.Tensor  # [batch * nodes, heads, dim]
    out: torch.Tensor
    pools: list[tuple[torch.Tensor, torch.Tensor]]
    slots: torch.Tensor  # [batch, length + nodes] int32: pool row of each token
    tree: torch.Tensor | None  # bool [nodes, nodes], the same for all requests; None: a block that sees itself both ways
    page_size: int

    @property
    def sm_scale(self) -> float:
        return self.dim**-0.5

    @property
    def page_table(self) -> torch.Tensor:
        return (self.slots[:, :: self.page_size] // self.page_size).contiguous()


Calls = list[Callable[[], None]]


def ours(p: GqaProblem) -> Calls:
    device = p.q.device
    mask = None if p.tree is None else pack_mask(p.tree).expand(p.batch, -1, -1).contiguous()
    lens = torch.full((p.batch,), p.length, dtype=torch.int32, device=device)
    workspace = gqa_tree_verify_workspace(
        device, max_num_nodes=p.nodes, num_heads=p.heads, num_kv_heads=p.kv_heads, head_dim=p.dim
    )
    table = p.page_table

    def call(keys: torch.Tensor, values: torch.Tensor) -> Callable[[], None]:
        return lambda: gqa_tree_verify(
            p.out, None, p.q, keys, values, table, lens, mask, workspace, p.nodes, p.page_size, p.sm_scale
        )

    return [call(keys, values) for keys, values in p.pools]


def triton(p: GqaProblem) -> Calls | str:
    """SGLang's verify attention of the Triton backend; a block is a mask of ones to it. Not for an fp8 pool."""
    kernel = triton_kernel()
    if kernel is None:
        return f"{MODULE} is not importable"
    if p.pools[0][0].dtype != torch.bfloat16:
        return "compared in bf16 only"
    device = p.q.device
    tree = torch.ones(p.nodes, p.nodes, dtype=torch.bool, device=device) if p.tree is None else p.tree
    mask = torch.cat([tree.new_ones(p.nodes, p.length), tree], 1).reshape(-1).repeat(p.batch)
    step = torch.arange(p.batch + 1, device=device)
    window, prefix = p.slots[:, p.length :].reshape(-1).long(), p.slots[:, : p.length].reshape(-1).long()

    def call(keys: torch.Tensor, values: torch.Tensor) -> Callable[[], None]:
        arguments = (
            p.q,
            keys[window],
            values[window],
            p.out,
            keys,
            values,
            (step * p.nodes).int(),
            (step * p.length).int(),
            prefix,
            mask,
            False,
            step * (p.nodes * (p.length + p.nodes)),
            p.nodes,
            1.0,
            1.0,
        )
        return lambda: kernel(*arguments, sm_scale=p.sm_scale)

    # On two of the pools: at a millisecond a call it evicts them itself.
    return [call(keys, values) for keys, values in p.pools[:2]]


def flashinfer(p: GqaProblem) -> Calls | str:
    """FlashInfer's paged prefill ("fa2", its kernel for sm_120), with a custom mask for a tree and without for a block."""
    try:
        wrapper_class = importlib.import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
    except ImportError as error:
        return f"not importable: {error}"
    if p.pools[0][0].dtype != torch.bfloat16:
        return "compared in bf16 only"
    device = p.q.device
    tokens = p.length + p.nodes
    pages = p.page_table.shape[1]
    step = torch.arange(p.batch + 1, dtype=torch.int32, device=device)
    last = torch.full((p.batch,), (tokens - 1) % p.page_size + 1, dtype=torch.int32, device=device)
    mask = None
    if p.tree is not None:
        mask = torch.cat([p.tree.new_ones(p.nodes, p.length), p.tree], 1).reshape(-1).repeat(p.batch)
    wrapper = wrapper_class(torch.empty(512 * 2**20, dtype=torch.uint8, device=device), "NHD", backend="fa2")
    wrapper.plan(
        step * p.nodes,
        step * pages,
        p.page_table.reshape(-1),
        last,
        p.heads,
        p.kv_heads,
        p.dim,
        p.page_size,
        custom_mask=mask,
        causal=False,
        sm_scale=p.sm_scale,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )

    def call(keys: torch.Tensor, values: torch.Tensor) -> Callable[[], None]:
        paged = tuple(pool.view(-1, p.page_size, *pool.shape[1:]) for pool in (keys, values))
        return lambda: wrapper.run(p.q, paged, out=p.out)

    return [call(keys, values) for keys, values in p.pools]
