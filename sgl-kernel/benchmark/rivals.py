# SPDX-License-Identifier: Apache-2.0
"""The kernels that a case is timed against. Each maker returns one call a pool, or the reason why it cannot do the case."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sgl_kernel_ddtree import mla_tree_verify, mla_tree_verify_workspace
from sgl_kernel_ddtree.reference.mla_tree_verify import pack_mask
from triton_verify import LATENT_DIM, MODULE, triton_call, triton_kernel

SM_SCALE = 192**-0.5


@dataclass
class Problem:
    """One chain case over `pools`, views of equal shape [slots, 576] that are used in turn."""

    batch: int
    nodes: int
    heads: int
    length: int
    q: torch.Tensor  # [batch * nodes, heads, 576]
    out: torch.Tensor  # [batch * nodes, heads, 512]
    pools: list[torch.Tensor]
    slots: torch.Tensor  # [batch, length + nodes] int32: pool row of each token
    page_size: int

    @property
    def page_table(self) -> torch.Tensor:
        return (self.slots[:, :: self.page_size] // self.page_size).contiguous()


Calls = list[Callable[[], None]]


def ours(p: Problem) -> Calls:
    device = p.q.device
    tree = torch.ones(p.nodes, p.nodes, dtype=torch.bool, device=device).tril()
    mask = pack_mask(tree).expand(p.batch, -1, -1).contiguous()
    lens = torch.full((p.batch,), p.length, dtype=torch.int32, device=device)
    workspace = mla_tree_verify_workspace(device, max_batch=p.batch, max_num_nodes=p.nodes, num_heads=p.heads)
    q_nope, q_rope, table = p.q[..., :LATENT_DIM], p.q[..., LATENT_DIM:], p.page_table

    def call(pool: torch.Tensor) -> Callable[[], None]:
        return lambda: mla_tree_verify(
            p.out, None, q_nope, q_rope, pool, table, lens, mask, workspace, p.nodes, p.page_size, SM_SCALE
        )

    return [call(pool) for pool in p.pools]


def triton(p: Problem) -> Calls | str:
    """SGLang's verify attention of the Triton backend, on two of the pools: at milliseconds a call it evicts them itself."""
    kernel = triton_kernel()
    if kernel is None:
        return f"{MODULE} is not importable"
    trees = torch.ones(p.nodes, p.nodes, dtype=torch.bool, device=p.q.device).tril().expand(p.batch, -1, -1)
    return [triton_call(kernel, p.q, pool, list(p.slots), trees, SM_SCALE, p.out) for pool in p.pools[:2]]


def flashinfer(p: Problem, backend: str) -> Calls | str:
    """FlashInfer's paged MLA attention, causal. "fa2" is the only one of its kernels for sm_120; "fa3" needs Hopper."""
    try:
        wrapper_class = importlib.import_module("flashinfer").BatchMLAPagedAttentionWrapper
    except ImportError as error:
        return f"not importable: {error}"
    device = p.q.device
    if backend == "fa3" and torch.cuda.get_device_capability(device) != (9, 0):
        return "needs Hopper"
    tokens = p.length + p.nodes
    pages = p.page_table.shape[1]
    step = torch.arange(p.batch + 1, dtype=torch.int32, device=device)
    wrapper = wrapper_class(torch.empty(256 * 2**20, dtype=torch.uint8, device=device), backend=backend)
    wrapper.plan(
        step * p.nodes,
        step * pages,
        p.page_table.reshape(-1),
        torch.full((p.batch,), tokens, dtype=torch.int32, device=device),
        p.heads,
        LATENT_DIM,
        64,
        p.page_size,
        True,
        SM_SCALE,
        torch.bfloat16,
        torch.bfloat16,
    )
    q_nope, q_rope = p.q[..., :LATENT_DIM].contiguous(), p.q[..., LATENT_DIM:].contiguous()

    def call(pool: torch.Tensor) -> Callable[[], None]:
        paged = pool.view(-1, p.page_size, pool.shape[-1])
        return lambda: wrapper.run(q_nope, q_rope, paged[..., :LATENT_DIM], paged[..., LATENT_DIM:], out=p.out)

    return [call(pool) for pool in p.pools]
