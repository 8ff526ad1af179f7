# SPDX-License-Identifier: Apache-2.0
"""One MLA layer of a target model on a GPU: SGLang's own pools, tables and runner stub, and dense float64 attention.

The reference shares no code with the backend. KV rows that no request owns are NaN and unused entries of
``req_to_token`` name a slot far behind the pool, so a stray read shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpecInputType
from sglang.test.kits.attention_unittest.attention_methods import mla_attention as kit

LATENT, ROPE = 512, 64
NO_SUCH_SLOT = 2**31 - 1
SCALE = (LATENT + ROPE) ** -0.5


def random_tree(rng: random.Random, num_nodes: int) -> list[int]:
    """Parents, -1 for the root; an ancestor has the smaller number."""
    return [-1] + [rng.randrange(max(0, i - 6), i) for i in range(1, num_nodes)]


def star(num_nodes: int) -> list[int]:
    return [-1] + [0] * (num_nodes - 1)


def chain(num_nodes: int) -> list[int]:
    return [node - 1 for node in range(num_nodes)]


def sees(parents: list[int]) -> torch.Tensor:
    """``[N, N]`` bool: which nodes a node sees."""
    matrix = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        ancestor = node
        while ancestor != -1:
            matrix[node, ancestor] = True
            ancestor = parents[ancestor]
    return matrix


def mask_words(trees: list[list[int]]) -> torch.Tensor:
    """``[B, N, ceil(N / 32)]`` int32 on the GPU."""
    matrix = torch.stack([sees(tree) for tree in trees]).long()
    num_nodes = matrix.shape[1]
    padded = torch.nn.functional.pad(matrix, (0, -num_nodes % 32)).unflatten(2, (-1, 32))
    words = (padded << torch.arange(32)).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32).cuda()


def full_mask(trees: list[list[int]], prefix: list[int]) -> torch.Tensor:
    """Flat bool on the GPU: per request N rows of prefix + N."""
    parts = [
        torch.cat([torch.ones(len(t), p, dtype=torch.bool), sees(t)], dim=1).flatten()
        for t, p in zip(trees, prefix, strict=True)
    ]
    return torch.cat(parts).cuda()


class Layer:
    """A runner stub with one MLA layer, and the backends built on it.

    Args:
        heads: query heads.
        page_size: tokens a page.
        max_batch: most requests.
        max_context: tokens a row of ``req_to_token`` holds.
    """

    def __init__(self, heads: int, page_size: int, max_batch: int, max_context: int):
        self.heads, self.page_size, self.max_batch, self.max_context = heads, page_size, max_batch, max_context
        case = kit.MLAAttentionCase(
            name="ddtree",
            backend="ddtree_sm120",
            forward_mode=ForwardMode.TARGET_VERIFY,
            num_heads=heads,
            page_size=page_size,
            prefix_lens=(1,) * max_batch,
            extend_lens=(8,) * max_batch,
        )
        config = kit.TinyMLAModelConfig(
            num_heads=heads, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, hidden_size=64, context_len=max_context
        )
        self.runner = kit.MockMLAModelRunner(
            case=case,
            model_config=config,
            dtype=torch.bfloat16,
            device="cuda",
            max_context_len=max_context,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=ROPE,
            disable_cuda_graph=False,
        )
        self.pool = self.runner.token_to_kv_pool
        self.table = self.runner.req_to_token_pool.req_to_token
        self.attention = RadixAttention(
            num_heads=heads, head_dim=LATENT + ROPE, scaling=SCALE, num_kv_heads=1, layer_id=0, v_head_dim=LATENT
        )

    def backend(self, name: str = "ddtree_sm120"):
        return ATTENTION_BACKENDS[name](self.runner)


@dataclass
class Requests:
    """Requests in a layer's pool: ``prefix`` committed tokens each and a window of ``num_nodes``.

    Committed KV rows are in the pool; those of the window are in ``k`` and have to be stored by the backend.

    Attributes:
        q: ``[B * N, H, 576]``.
        k: ``[B * N, 1, 576]``.
        out_cache_loc: ``[B * N]`` int64, slots of the window.
        rows: ``[B]`` int64, rows of ``req_to_token``.
        first_row: of the rows to choose from.
    """

    layer: Layer
    prefix: list[int]
    num_nodes: int
    seed: int = 0
    first_row: int = 0

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        generator = torch.Generator("cuda").manual_seed(self.seed)
        layer, page = self.layer, self.layer.page_size
        layer.pool.kv_buffer[0].fill_(float("nan"))
        layer.table.fill_(NO_SUCH_SLOT)
        num_pages = layer.pool.kv_buffer[0].shape[0] // page
        pages = rng.sample(range(1, num_pages), sum(-(-(p + self.num_nodes) // page) for p in self.prefix))
        rows = rng.sample(range(self.first_row, layer.table.shape[0]), len(self.prefix))
        self.rows = torch.tensor(rows, device="cuda")
        self.slots, window = [], []
        for row, prefix in zip(self.rows.tolist(), self.prefix, strict=True):
            position = torch.arange(prefix + self.num_nodes)
            own = torch.tensor([pages.pop() for _ in range(-(-len(position) // page))])
            slots = (own[position // page] * page + position % page).cuda()
            layer.table[row, : len(slots)] = slots.to(torch.int32)
            self.slots.append(slots)
            window.append(slots[prefix:])
        self.out_cache_loc = torch.cat(window)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

        total = len(self.prefix) * self.num_nodes
        self.q = normal(total, layer.heads, LATENT + ROPE)
        self.k = normal(total, 1, LATENT + ROPE)
        for slots, prefix in zip(self.slots, self.prefix, strict=True):
            layer.pool.kv_buffer[0][slots[:prefix]] = normal(prefix, 1, LATENT + ROPE)

    def spec_info(self, trees: list[list[int]] | None, kind: str = "words") -> SimpleNamespace:
        """What a verify brings: the trees as words, as a whole byte mask, or nothing (a chain)."""
        return SimpleNamespace(
            draft_token_num=self.num_nodes,
            spec_input_type=SpecInputType.NGRAM_VERIFY if kind == "full" else SpecInputType.DFLASH_VERIFY,
            mask_words=mask_words(trees) if trees is not None and kind == "words" else None,
            custom_mask=full_mask(trees, self.prefix) if trees is not None and kind == "full" else None,
            positions=None,
        )

    def batch(self, mode: ForwardMode, spec_info: object | None = None) -> SimpleNamespace:
        """What the backend reads of a ForwardBatch."""
        lens = torch.tensor(self.prefix, device="cuda")
        return SimpleNamespace(
            forward_mode=mode,
            batch_size=len(self.prefix),
            req_pool_indices=self.rows,
            seq_lens=lens if mode.is_target_verify() else lens + self.num_nodes,
            spec_info=spec_info,
            out_cache_loc=self.out_cache_loc,
            out_cache_loc_is_physical=True,
        )

    def run(self, backend, batch, q: torch.Tensor | None = None, k: torch.Tensor | None = None) -> torch.Tensor:
        """One forward as the model calls it, latent and rotary parts apart; ``[T, H, 512]``."""
        q, k = self.q if q is None else q, self.k if k is None else k
        out = backend.forward(
            q[..., :LATENT],
            k[..., :LATENT],
            k[..., :LATENT],
            self.layer.attention,
            batch,
            q_rope=q[..., LATENT:],
            k_rope=k[..., LATENT:],
        )
        return out.view(-1, self.layer.heads, LATENT)

    def expected(self, trees: list[list[int]] | None = None) -> torch.Tensor:
        """Dense attention in float64, one request at a time; a chain without trees."""
        outputs = []
        for request, prefix in enumerate(self.prefix):
            window = slice(request * self.num_nodes, (request + 1) * self.num_nodes)
            committed = self.layer.pool.kv_buffer[0][self.slots[request][:prefix]]
            keys = torch.cat([committed, self.k[window]]).squeeze(1).double()
            tree = chain(self.num_nodes) if trees is None else trees[request]
            seen = torch.cat([torch.ones(self.num_nodes, prefix, dtype=torch.bool), sees(tree)], dim=1).cuda()
            scores = torch.einsum("nhd,kd->hnk", self.q[window].double(), keys) * SCALE
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hnk,kd->nhd", weights, keys[:, :LATENT]))
        return torch.cat(outputs)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    assert torch.isfinite(actual).all()
    return float((actual.double() - expected).norm() / expected.norm())
