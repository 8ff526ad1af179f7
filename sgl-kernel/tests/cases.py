# SPDX-License-Identifier: Apache-2.0
"""Inputs for mla_tree_verify that hurt when a kernel reads or writes where it should not, on any device.

Every row of the pool that no token uses is NaN, every page-table entry past the last token's is a huge page number, and
guard values stand before and after each buffer that the operator writes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from sgl_kernel_ddtree import mla_tree_verify, mla_tree_verify_workspace
from sgl_kernel_ddtree.reference.mla_tree_verify import mla_tree_verify_reference, pack_mask

HEAD_DIM, LATENT_DIM = 576, 512
SM_SCALE = 192**-0.5  # of the unabsorbed head dimension, as DeepSeek and Kimi use it
GARBAGE_PAGE = 2**30
GUARD = 123.0
TREES = ("random", "chain", "star", "forest", "bushy")


def tree_mask(kind: str, num_nodes: int, rng: random.Random) -> np.ndarray:
    """bool [num_nodes, num_nodes]: node i sees its ancestors and itself; parents come before children."""
    visible = np.eye(num_nodes, dtype=bool)
    for node in range(1, num_nodes):
        parent: int | None = {
            "random": rng.randrange(node),
            "chain": node - 1,
            "star": 0,
            "forest": rng.choice([None, rng.randrange(node)]),
            "bushy": (node - 1) // 4,
        }[kind]
        if parent is not None:
            visible[node] |= visible[parent]
    return visible


@dataclass
class Spec:
    """What to build. `lens`: committed tokens of each request, -1 for a padded one. `layout`: how q lies in memory."""

    lens: list[int]
    nodes: int
    heads: int
    page_size: int = 1
    tree: str = "mixed"
    layout: str = "joint"  # joint | split | transposed | strided
    kv_pad: int = 0  # extra columns of a pool row
    kv_3d: bool = False
    with_lse: bool = True
    q_scale: float = 1.0
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    extra_pages: int = 3

    def __str__(self) -> str:
        lens = ",".join(map(str, self.lens[:6])) + ("..." if len(self.lens) > 6 else "")
        return f"B{len(self.lens)}[{lens}]-N{self.nodes}-H{self.heads}-P{self.page_size}-{self.tree}-{self.layout}"


@dataclass
class Inputs:
    """Tensors of one call; `guards` are the slices around written buffers that must keep GUARD."""

    spec: Spec
    q_nope: torch.Tensor
    q_rope: torch.Tensor
    kv_pool: torch.Tensor
    page_table: torch.Tensor
    prefix_lens: torch.Tensor
    mask_words: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    workspace: torch.Tensor | None
    guards: list[torch.Tensor] = field(default_factory=list)

    def run(self) -> None:
        s = self.spec
        mla_tree_verify(
            self.out,
            self.lse,
            self.q_nope,
            self.q_rope,
            self.kv_pool,
            self.page_table,
            self.prefix_lens,
            self.mask_words,
            self.workspace,
            s.nodes,
            s.page_size,
            SM_SCALE,
        )

    def reference(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return mla_tree_verify_reference(
            self.q_nope,
            self.q_rope,
            self.kv_pool,
            self.page_table,
            self.prefix_lens,
            self.mask_words,
            num_nodes=self.spec.nodes,
            page_size=self.spec.page_size,
            sm_scale=SM_SCALE,
            dtype=dtype,
        )

    def assert_guards(self) -> None:
        for guard in self.guards:
            assert bool((guard == GUARD).all()), f"{self.spec}: wrote outside a buffer"


def _q_views(spec: Spec, rows: int, gen: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=gen, device=device, dtype=torch.float32) * spec.q_scale
        return values.to(spec.dtype)

    def poisoned(values: torch.Tensor, pad: int) -> torch.Tensor:
        # One NaN row before and after, and `pad` NaN columns: an unaligned or overlong read shows.
        big = torch.full((rows + 2, values.shape[1], values.shape[2] + pad), float("nan"), dtype=spec.dtype, device=device)
        view = big[1:-1, :, : values.shape[2]]
        view.copy_(values)
        return view

    if spec.layout == "joint":
        q = poisoned(normal(rows, spec.heads, HEAD_DIM), 0)
        return q[..., :LATENT_DIM], q[..., LATENT_DIM:]
    if spec.layout == "strided":
        q = poisoned(normal(rows, spec.heads, HEAD_DIM), 8)
        return q[..., :LATENT_DIM], q[..., LATENT_DIM:]
    if spec.layout == "split":
        return normal(rows, spec.heads, LATENT_DIM), normal(rows, spec.heads, 64)
    # What a batched product by head leaves behind: [H, rows, 512] seen as [rows, H, 512].
    return normal(spec.heads, rows, LATENT_DIM).transpose(0, 1), poisoned(normal(rows, spec.heads, 64), 24)


def fill_requests(inputs: Inputs, lens: list[int], tree: str, seed: int) -> None:
    """Rewrites lengths, page table, pool rows and masks in place, as a scheduler does between replays of one graph."""
    spec, device = inputs.spec, inputs.kv_pool.device
    rng = random.Random(seed)
    gen = torch.Generator(device).manual_seed(seed)
    pool = inputs.kv_pool.reshape(inputs.kv_pool.shape[0], -1) if inputs.kv_pool.ndim == 3 else inputs.kv_pool
    pages = list(range(pool.shape[0] // spec.page_size))
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
        used.append((mine[:, None] * spec.page_size + np.arange(spec.page_size)).reshape(-1)[:tokens])
    pool.fill_(float("nan"))
    if used:
        rows = torch.from_numpy(np.concatenate(used)).to(device)
        values = torch.randn(len(rows), HEAD_DIM, generator=gen, device=device, dtype=torch.float32)
        pool[rows] = values.to(pool.dtype)
    kinds = TREES if tree == "mixed" else (tree,)
    masks = np.stack([tree_mask(kinds[(r + seed) % len(kinds)], spec.nodes, rng) for r in range(len(lens))])
    inputs.mask_words.copy_(pack_mask(torch.from_numpy(masks)))
    inputs.page_table.copy_(torch.from_numpy(table))
    inputs.prefix_lens.copy_(torch.tensor(lens, dtype=torch.int32))
    inputs.spec.lens = list(lens)


def build(spec: Spec, device: torch.device | str, workspace: torch.Tensor | None = None) -> Inputs:
    device = torch.device(device)
    gen = torch.Generator(device).manual_seed(spec.seed)
    batch, rows = len(spec.lens), len(spec.lens) * spec.nodes
    need = [-(-(max(length, 0) + spec.nodes) // spec.page_size) for length in spec.lens]
    num_pages = sum(need) + spec.extra_pages
    q_nope, q_rope = _q_views(spec, rows, gen, device)
    pool = torch.empty(num_pages * spec.page_size, HEAD_DIM + spec.kv_pad, dtype=spec.dtype, device=device)
    pool = pool[:, :HEAD_DIM]
    table = torch.empty(batch, max(need) + 5, dtype=torch.int32, device=device)[:, : max(need) + 2]
    out = torch.full((rows + 2, spec.heads, LATENT_DIM), GUARD, dtype=spec.dtype, device=device)
    lse = torch.full((rows + 2, spec.heads), GUARD, dtype=torch.float32, device=device)
    guards = [out[0], out[-1], lse[0], lse[-1]]
    if workspace is None and device.type == "cuda":
        size = {"max_batch": batch, "max_num_nodes": spec.nodes, "num_heads": spec.heads}
        exact = mla_tree_verify_workspace(device, **size).numel()
        tail = torch.zeros(exact + 4096, dtype=torch.uint8, device=device)
        tail[exact:] = int(GUARD)
        workspace, guards = tail[:exact], [*guards, tail[exact:]]
    inputs = Inputs(
        spec=spec,
        q_nope=q_nope,
        q_rope=q_rope,
        kv_pool=pool.unsqueeze(1) if spec.kv_3d else pool,
        page_table=table,
        prefix_lens=torch.empty(batch, dtype=torch.int32, device=device),
        mask_words=torch.empty(batch, spec.nodes, (spec.nodes + 31) // 32, dtype=torch.int32, device=device),
        out=out[1:-1],
        lse=lse[1:-1] if spec.with_lse else None,
        workspace=workspace,
        guards=guards,
    )
    fill_requests(inputs, spec.lens, spec.tree, spec.seed)
    return inputs


@dataclass
class Errors:
    relative: float  # ||out - ref|| / ||ref|| over the call
    worst_row: float  # the same for the worst (row, head)
    lse: float  # largest |difference| / (1 + |lse|)


def errors_of(inputs: Inputs, reference_dtype: torch.dtype) -> Errors:
    """Compares out and lse with the reference. Exact demands are asserted here: guards, zeros and -inf of empty rows."""
    ref, ref_lse = inputs.reference(reference_dtype)
    out = inputs.out.to(ref.dtype)
    inputs.assert_guards()
    assert bool(torch.isfinite(out).all()), f"{inputs.spec}: out is not finite"
    empty = ref_lse == -float("inf")
    assert bool((out[empty] == 0).all()), f"{inputs.spec}: a row that sees nothing must be zero"
    difference, size = (out - ref).norm(dim=-1), ref.norm(dim=-1)
    worst = (difference / size.clamp_min(1e-30))[~empty]
    lse_error = 0.0
    if inputs.lse is not None:
        lse = inputs.lse.to(ref.dtype)
        assert bool((lse[empty] == -float("inf")).all()), f"{inputs.spec}: lse of an empty row must be -inf"
        shift = ((lse - ref_lse).abs() / (1 + ref_lse.abs()))[~empty]
        assert not bool(torch.isnan(shift).any()), f"{inputs.spec}: lse is NaN"
        lse_error = float(shift.max()) if shift.numel() else 0.0
    total = float(size.norm())
    return Errors(
        relative=float(difference.norm()) / total if total else 0.0,
        worst_row=float(worst.max()) if worst.numel() else 0.0,
        lse=lse_error,
    )
