# SPDX-License-Identifier: Apache-2.0
"""A forward step on SGLang's own KV pools, and dense float64 attention to hold it against.

Nothing here shares code with the backend: visibility is decided key by key from parents and positions, in Python. KV
rows that no request owns are NaN and unused entries of ``req_to_token`` hold a slot that does not exist, so a stray
read shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.ddtree_sm120_backend import create_ddtree_sm120_backend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

NO_SUCH_SLOT = 2**31 - 1
MAX_CONTEXT = 400


@dataclass(frozen=True)
class Heads:
    """Head counts and sizes; MLA when ``rope_dim`` is set: one KV head of ``value_dim + rope_dim``."""

    query: int
    kv: int
    value_dim: int
    rope_dim: int = 0

    @property
    def is_mla(self) -> bool:
        return self.rope_dim > 0

    @property
    def head_dim(self) -> int:
        return self.value_dim + self.rope_dim


GQA = Heads(query=6, kv=2, value_dim=32)
MHA = Heads(query=4, kv=4, value_dim=64)
MLA = Heads(query=3, kv=1, value_dim=512, rope_dim=64)


@dataclass
class Scene:
    """Requests with ``prefix`` committed tokens and ``new`` tokens to compute.

    Attributes:
        heads, dtype, page_size: of model and pool.
        mode: forward mode.
        prefix, new: tokens of each request.
        parents: for TARGET_VERIFY, the tree of each request; None for a chain.
        layer_options: passed on to ``RadixAttention``.
        seed: of everything random.
    """

    heads: Heads
    dtype: torch.dtype
    page_size: int
    mode: ForwardMode
    prefix: list[int]
    new: list[int]
    parents: list[list[int]] | None = None
    layer_options: dict = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        pages_needed = sum(-(-(p + n) // self.page_size) for p, n in zip(self.prefix, self.new, strict=True))
        num_pages = pages_needed + 3
        size = num_pages * self.page_size
        arguments = {"size": size, "page_size": self.page_size, "dtype": self.dtype, "layer_num": 1, "device": "cpu"}
        if self.heads.is_mla:
            self.pool = MLATokenToKVPool(
                kv_lora_rank=self.heads.value_dim,
                qk_rope_head_dim=self.heads.rope_dim,
                enable_memory_saver=False,
                dcp_replicated=True,  # else the pool asks for process groups, which a unit test has none of
                **arguments,
            )
            self.buffers = self.pool.kv_buffer
        else:
            self.pool = MHATokenToKVPool(
                head_num=self.heads.kv, head_dim=self.heads.head_dim, enable_memory_saver=False, **arguments
            )
            self.buffers = [*self.pool.k_buffer, *self.pool.v_buffer]
        for buffer in self.buffers:
            buffer.fill_(float("nan"))

        self.req_to_token_pool = ReqToTokenPool(
            size=len(self.prefix) + 2, max_context_len=MAX_CONTEXT, device="cpu", enable_memory_saver=False
        )
        self.table = self.req_to_token_pool.req_to_token
        self.table.fill_(NO_SUCH_SLOT)
        self.rows = rng.sample(range(1, len(self.prefix) + 3), len(self.prefix))
        pages = rng.sample(range(1, num_pages + 1), pages_needed)
        for row, length in zip(self.rows, self.lengths, strict=True):
            own = [pages.pop() for _ in range(-(-length // self.page_size))]
            slots = [page * self.page_size + i for page in own for i in range(self.page_size)][:length]
            self.table[row, :length] = torch.tensor(slots, dtype=torch.int32)
        self._fill_values()

    @property
    def lengths(self) -> list[int]:
        return [p + n for p, n in zip(self.prefix, self.new, strict=True)]

    def _slots(self, request: int) -> torch.Tensor:
        return self.table[self.rows[request], : self.lengths[request]].long()

    def _fill_values(self) -> None:
        """Random q, k, v; the prefix part of k and v goes into the pool."""
        heads, total = self.heads, sum(self.new)
        self.q = self._random(total, heads.query, heads.head_dim)
        self.keys = [self._random(length, heads.kv, heads.head_dim) for length in self.lengths]
        self.values = [
            k[..., : heads.value_dim] if heads.is_mla else self._random(*k.shape[:2], heads.value_dim)
            for k in self.keys
        ]
        for request, prefix in enumerate(self.prefix):
            slots = self._slots(request)[:prefix]
            if heads.is_mla:
                self.buffers[0][slots] = self.keys[request][:prefix]
            else:
                self.buffers[0][slots] = self.keys[request][:prefix]
                self.buffers[1][slots] = self.values[request][:prefix]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.dtype)

    def layer(self) -> RadixAttention:
        options = {"scaling": self.heads.head_dim**-0.5, **self.layer_options}
        return RadixAttention(
            num_heads=self.heads.query,
            head_dim=self.heads.head_dim,
            num_kv_heads=self.heads.kv,
            layer_id=0,
            v_head_dim=self.heads.value_dim,
            **options,
        )

    def runner(self) -> SimpleNamespace:
        return SimpleNamespace(
            device="cpu",
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool=self.pool,
            kv_index_translator=None,
            kv_cache_dtype=self.dtype,
        )

    def batch(self, spec_info: object | None = None) -> SimpleNamespace:
        """What the backend reads of a ForwardBatch; TARGET_VERIFY gets a chain when no spec_info is given."""
        in_prefix_and_window = [self._slots(i)[p:] for i, p in enumerate(self.prefix)]
        verify = self.mode.is_target_verify()
        if verify and spec_info is None:
            spec_info = SimpleNamespace(draft_token_num=self.new[0], custom_mask=None)
        return SimpleNamespace(
            forward_mode=self.mode,
            req_pool_indices=torch.tensor(self.rows),
            seq_lens=torch.tensor(self.prefix if verify else self.lengths),
            extend_prefix_lens=torch.tensor(self.prefix),
            extend_seq_lens=torch.tensor(self.new),
            out_cache_loc=torch.cat(in_prefix_and_window),
            out_cache_loc_is_physical=True,
            spec_info=spec_info,
        )

    def run(self, spec_info: object | None = None, **kwargs) -> torch.Tensor:
        """Plan and run one layer; ``[T, Hq, Dv]`` float64."""
        backend = create_ddtree_sm120_backend(self.runner())
        batch, layer = self.batch(spec_info), self.layer()
        backend.init_forward_metadata(batch)
        new_keys = torch.cat([k[p:] for k, p in zip(self.keys, self.prefix, strict=True)])
        new_values = torch.cat([v[p:] for v, p in zip(self.values, self.prefix, strict=True)])
        if self.heads.is_mla:
            latent = self.heads.value_dim
            out = backend.forward(
                self.q[..., :latent].contiguous(),
                new_values.contiguous(),
                new_values.contiguous(),
                layer,
                batch,
                q_rope=self.q[..., latent:],
                k_rope=new_keys[..., latent:],
                **kwargs,
            )
        else:
            out = backend.forward(self.q.flatten(1), new_keys, new_values, layer, batch, **kwargs)
        assert out.dtype == self.dtype
        return out.view(-1, self.heads.query, self.heads.value_dim).double()

    def expected(self, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """Dense attention in float64, one request at a time."""
        options, scaling = self.layer_options, self.layer().scaling
        group = self.heads.query // self.heads.kv
        outputs = [torch.empty(0, self.heads.query, self.heads.value_dim, dtype=torch.float64)]
        first = 0
        for request, new in enumerate(self.new):
            keys = self.keys[request].double().repeat_interleave(group, 1)
            values = self.values[request].double().repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", self.q[first : first + new].double(), keys) * scaling
            if cap := options.get("logit_cap"):
                scores = cap * torch.tanh(scores / cap)
            scores = scores.masked_fill(~self._visibility(request), -torch.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, new, 1)], dim=2)
            weights = scores.softmax(-1)[..., : keys.shape[0]]
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
            first += new
        return torch.cat(outputs)

    def _visibility(self, request: int) -> torch.Tensor:
        """``[n, prefix + n]`` bool, decided key by key."""
        prefix, new, window = self.prefix[request], self.new[request], self.layer_options.get("sliding_window_size", -1)
        bidirectional = self.layer_options.get("attn_type") == AttentionType.ENCODER_ONLY
        chain = [node - 1 for node in range(new)]
        paths = [_path(chain if self.parents is None else self.parents[request], node) for node in range(new)]
        positions = [*range(prefix), *(prefix + len(path) - 1 for path in paths)]
        visible = torch.zeros(new, prefix + new, dtype=torch.bool)
        for node in range(new):
            candidates = (
                range(prefix + new) if bidirectional else [*range(prefix), *(prefix + other for other in paths[node])]
            )
            visible[
                node, [key for key in candidates if window < 0 or positions[key] >= positions[prefix + node] - window]
            ] = True
        return visible


def _path(parents: list[int], node: int) -> list[int]:
    path = []
    while node != -1:
        path.append(node)
        node = parents[node]
    return path


def random_tree(rng: random.Random, num_nodes: int) -> list[int]:
    return [-1] + [rng.randrange(max(0, i - 6), i) for i in range(1, num_nodes)]


def mask_words(parents: list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """``[B, N, ceil(N / 32)]``, bit by bit."""
    num_nodes = len(parents[0])
    words = torch.zeros(len(parents), num_nodes, -(-num_nodes // 32), dtype=torch.int64)
    for b, tree in enumerate(parents):
        for node in range(num_nodes):
            for seen in _path(tree, node):
                words[b, node, seen // 32] |= 1 << (seen % 32)
    return (words - (words >> 31 << 32)).to(torch.int32).view(dtype)


def byte_mask(parents: list[list[int]], prefix: list[int] | None) -> torch.Tensor:
    """Flat bool: FULL_MASK with the given prefix lengths, QLEN_ONLY with None."""
    cells = []
    for b, tree in enumerate(parents):
        for node in range(len(tree)):
            cells += [True] * (prefix[b] if prefix is not None else 0)
            path = _path(tree, node)
            cells += [other in path for other in range(len(tree))]
    return torch.tensor(cells, dtype=torch.bool)
