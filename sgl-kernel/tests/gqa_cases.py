# SPDX-License-Identifier: Apache-2.0
"""Inputs for gqa_tree_verify that hurt when a kernel reads or writes where it should not, on any device.

Every row of the pools that no visible token uses is NaN, every page-table entry past the last token's is a huge page number,
and guard values stand before and after each buffer that the operator writes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from cases import GARBAGE_PAGE, GUARD, TREES, Errors, errors_of, tree_mask
from sgl_kernel_ddtree import gqa_tree_verify, gqa_tree_verify_workspace
from sgl_kernel_ddtree.reference.gqa_tree_verify import gqa_tree_verify_reference
from sgl_kernel_ddtree.reference.mla_tree_verify import pack_mask

__all__ = ["Errors", "GqaInputs", "GqaSpec", "build", "errors_of", "fill_requests"]
FP8 = torch.float8_e4m3fn


@dataclass
class GqaSpec:
    """What to build. `lens`: committed tokens of each request, -1 for a padded one."""

    lens: list[int]
    nodes: int
    group: int = 4  # query heads of a KV head
    kv_heads: int = 2
    dim: int = 128
    page_size: int = 1
    tree: str = "mixed"  # of cases.TREES, mixed, or block: no mask, every node sees the whole window
    window: int = -1
    logit_cap: float = 0.0
    fp8: bool = False
    q_pad: int = 0  # extra columns behind q's, as in a joint qkv tensor
    kv_pad: int = 0  # extra columns behind each pool head's
    with_lse: bool = True
    q_scale: float = 1.0
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    extra_pages: int = 3
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    def __str__(self) -> str:
        lens = ",".join(map(str, self.lens[:6])) + ("..." if len(self.lens) > 6 else "")
        options = f"{self.tree}" + f"-W{self.window}" * (self.window >= 0) + f"-cap{self.logit_cap}" * (self.logit_cap > 0)
        kind = "fp8" if self.fp8 else str(self.dtype).removeprefix("torch.")
        return f"B{len(self.lens)}[{lens}]-N{self.nodes}-H{self.heads}/{self.kv_heads}x{self.dim}-P{self.page_size}-{options}-{kind}"


@dataclass
class GqaInputs:
    """Tensors of one call; `guards` are the slices around written buffers that must keep GUARD."""

    spec: GqaSpec
    q: torch.Tensor
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor | None
    out: torch.Tensor
    lse: torch.Tensor | None
    workspace: torch.Tensor | None
    guards: list[torch.Tensor] = field(default_factory=list)

    @property
    def sm_scale(self) -> float:
        return self.spec.dim**-0.5

    def run(self) -> None:
        s = self.spec
        gqa_tree_verify(
            self.out,
            self.lse,
            self.q,
            self.k_pool,
            self.v_pool,
            self.page_table,
            self.prefix_lens,
            self.mask_words,
            self.workspace,
            s.nodes,
            s.page_size,
            self.sm_scale,
            s.window,
            s.logit_cap,
            s.k_scale,
            s.v_scale,
        )

    def reference(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        s = self.spec
        return gqa_tree_verify_reference(
            self.q,
            self.k_pool,
            self.v_pool,
            self.page_table,
            self.prefix_lens,
            self.mask_words,
            num_nodes=s.nodes,
            page_size=s.page_size,
            sm_scale=self.sm_scale,
            window=s.window,
            logit_cap=s.logit_cap,
            k_scale=s.k_scale,
            v_scale=s.v_scale,
            dtype=dtype,
        )

    def assert_guards(self) -> None:
        for guard in self.guards:
            assert bool((guard == GUARD).all()), f"{self.spec}: wrote outside a buffer"


def _poison(pool: torch.Tensor) -> None:
    if pool.dtype == FP8:
        pool.view(torch.uint8).fill_(0x7F)  # NaN
    else:
        pool.fill_(float("nan"))


def fill_requests(inputs: GqaInputs, lens: list[int], tree: str, seed: int) -> None:
    """Rewrites lengths, page table, pool rows and masks in place, as a scheduler does between replays of one graph."""
    spec, device = inputs.spec, inputs.k_pool.device
    rng = random.Random(seed)
    gen = torch.Generator(device).manual_seed(seed)
    pages = list(range(inputs.k_pool.shape[0] // spec.page_size))
    rng.shuffle(pages)
    table = np.full(tuple(inputs.page_table.shape), GARBAGE_PAGE, dtype=np.int32)
    used = []
    for request, length in enumerate(lens):
        if length < 0:
            continue
        tokens = length + spec.nodes
        count = -(-tokens // spec.page_size)
        mine = np.array([pages.pop() for _ in range(count)], dtype=np.int64)
        table[request, :count] = mine
        first = max(0, length - spec.window) if spec.window >= 0 else 0
        used.append((mine[:, None] * spec.page_size + np.arange(spec.page_size)).reshape(-1)[first:tokens])
        table[request, : first // spec.page_size] = GARBAGE_PAGE
    for pool in (inputs.k_pool, inputs.v_pool):
        _poison(pool)
        if used:
            rows = torch.from_numpy(np.concatenate(used)).to(device)
            values = torch.randn(len(rows), *pool.shape[1:], generator=gen, device=device, dtype=torch.float32)
            if pool.dtype == FP8:
                pool.view(torch.uint8)[rows] = values.to(FP8).view(torch.uint8)
            else:
                pool[rows] = values.to(pool.dtype)
    if inputs.mask_words is not None:
        kinds = TREES if tree == "mixed" else (tree,)
        masks = np.stack([tree_mask(kinds[(r + seed) % len(kinds)], spec.nodes, rng) for r in range(len(lens))])
        inputs.mask_words.copy_(pack_mask(torch.from_numpy(masks)))
    inputs.page_table.copy_(torch.from_numpy(table))
    inputs.prefix_lens.copy_(torch.tensor(lens, dtype=torch.int32))
    inputs.spec.lens = list(lens)


def build(spec: GqaSpec, device: torch.device | str, workspace: torch.Tensor | None = None) -> GqaInputs:
    device = torch.device(device)
    gen = torch.Generator(device).manual_seed(spec.seed)
    batch, rows = len(spec.lens), len(spec.lens) * spec.nodes
    need = [-(-(max(length, 0) + spec.nodes) // spec.page_size) for length in spec.lens]
    num_pages = sum(need) + spec.extra_pages

    # One NaN row before and after, and NaN columns behind: an overlong read shows.
    q = torch.full((rows + 2, spec.heads, spec.dim + spec.q_pad), float("nan"), dtype=spec.dtype, device=device)
    q = q[1:-1, :, : spec.dim]
    q.copy_(torch.randn(q.shape, generator=gen, device=device, dtype=torch.float32) * spec.q_scale)

    def pool() -> torch.Tensor:
        shape = (num_pages * spec.page_size, spec.kv_heads, spec.dim + spec.kv_pad)
        whole = (
            torch.empty(shape, dtype=torch.uint8, device=device).view(FP8)
            if spec.fp8
            else torch.empty(shape, dtype=spec.dtype, device=device)
        )
        _poison(whole)
        return whole[..., : spec.dim]

    table = torch.empty(batch, max(need) + 5, dtype=torch.int32, device=device)[:, : max(need) + 2]
    out = torch.full((rows + 2, spec.heads, spec.dim), GUARD, dtype=spec.dtype, device=device)
    lse = torch.full((rows + 2, spec.heads), GUARD, dtype=torch.float32, device=device)
    guards = [out[0], out[-1], lse[0], lse[-1]]
    if workspace is None and device.type == "cuda":
        size = {"max_num_nodes": spec.nodes, "num_heads": spec.heads, "num_kv_heads": spec.kv_heads, "head_dim": spec.dim}
        exact = gqa_tree_verify_workspace(device, **size).numel()
        tail = torch.zeros(exact + 4096, dtype=torch.uint8, device=device)
        tail[exact:] = int(GUARD)
        workspace, guards = tail[:exact], [*guards, tail[exact:]]
    masked = spec.tree != "block"
    inputs = GqaInputs(
        spec=spec,
        q=q,
        k_pool=pool(),
        v_pool=pool(),
        page_table=table,
        prefix_lens=torch.empty(batch, dtype=torch.int32, device=device),
        mask_words=torch.empty(batch, spec.nodes, (spec.nodes + 31) // 32, dtype=torch.int32, device=device)
        if masked
        else None,
        out=out[1:-1],
        lse=lse[1:-1] if spec.with_lse else None,
        workspace=workspace,
        guards=guards,
    )
    fill_requests(inputs, spec.lens, spec.tree, spec.seed)
    return inputs
