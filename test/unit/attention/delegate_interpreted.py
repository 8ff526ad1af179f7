# SPDX-License-Identifier: Apache-2.0
"""Upstream's Triton backend as the delegate, on CPU tensors, in a process whose Triton interprets."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace

import torch

LATENT, ROPE, HEADS = 512, 64, 2
CONTEXT, PAGE = 96, 16


def start() -> None:
    """Process initializer; must run before anything imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    import sglang  # noqa: F401  first, for the CPU engine


class Layer:
    """One MLA layer on SGLang's pools and runner stub; KV rows that no request owns are NaN."""

    def __init__(self, max_batch: int, num_nodes: int):
        from sglang.srt.layers.radix_attention import RadixAttention
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.test.kits.attention_unittest.attention_methods import mla_attention as kit

        self._ranks = get_parallel().override(attn_dcp_size=1, attn_dcp_rank=0)
        self._ranks.__enter__()
        case = kit.MLAAttentionCase(
            name="delegate",
            backend="triton",
            forward_mode=ForwardMode.TARGET_VERIFY,
            num_heads=HEADS,
            page_size=PAGE,
            prefix_lens=(1,) * max_batch,
            extend_lens=(num_nodes,) * max_batch,
        )
        config = kit.TinyMLAModelConfig(
            num_heads=HEADS, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, hidden_size=64, context_len=CONTEXT
        )
        self.runner = kit.MockMLAModelRunner(
            case=case,
            model_config=config,
            dtype=torch.float32,
            device="cpu",
            max_context_len=CONTEXT,
            kv_lora_rank=LATENT,
            qk_rope_head_dim=ROPE,
            disable_cuda_graph=False,
        )
        if num_nodes > 1:
            self.runner.spec_algorithm = SpeculativeAlgorithm.DFLASH
        self.pool = self.runner.token_to_kv_pool
        self.table = self.runner.req_to_token_pool.req_to_token
        scale = (LATENT + ROPE) ** -0.5
        self.attention = RadixAttention(
            num_heads=HEADS, head_dim=LATENT + ROPE, scaling=scale, num_kv_heads=1, layer_id=0, v_head_dim=LATENT
        )


class Requests:
    """Requests with ``prefix`` committed tokens and ``num_nodes`` new ones; all rows are in the pool."""

    def __init__(self, layer: Layer, prefix: list[int], num_nodes: int, seed: int):
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.layer, self.prefix, self.num_nodes = layer, prefix, num_nodes
        layer.pool.kv_buffer[0].fill_(float("nan"))
        # What padded requests are given: row 0 and slot 0.
        layer.pool.kv_buffer[0][:PAGE] = 0
        layer.table.fill_(0)
        pages = list(range(1, layer.pool.kv_buffer[0].shape[0] // PAGE))
        rng.shuffle(pages)
        self.rows = rng.sample(range(1, layer.table.shape[0]), len(prefix))
        self.q = torch.randn(len(prefix) * num_nodes, HEADS, LATENT + ROPE, generator=generator)
        self.keys, window = [], []
        for row, length in zip(self.rows, prefix, strict=True):
            position = torch.arange(length + num_nodes)
            own = torch.tensor([pages.pop() for _ in range(-(-len(position) // PAGE))])
            slots = own[position // PAGE] * PAGE + position % PAGE
            layer.table[row, : len(slots)] = slots.to(torch.int32)
            keys = torch.randn(len(slots), 1, LATENT + ROPE, generator=generator)
            layer.pool.kv_buffer[0][slots] = keys
            self.keys.append(keys)
            window.append(slots[length:])
        self.window = torch.cat(window)
        self.k = torch.cat([keys[length:] for keys, length in zip(self.keys, prefix, strict=True)])

    def expected(self, trees: list[list[int]] | None) -> torch.Tensor:
        outputs = []
        for request, prefix in enumerate(self.prefix):
            keys = self.keys[request].squeeze(1).double()
            seen = torch.ones(self.num_nodes, prefix + self.num_nodes, dtype=torch.bool)
            for node in range(self.num_nodes):
                path, ancestor = set(), node
                while ancestor != -1:
                    path.add(ancestor)
                    ancestor = ancestor - 1 if trees is None else trees[request][ancestor]
                seen[node, prefix:] = torch.tensor([other in path for other in range(self.num_nodes)])
            q = self.q[request * self.num_nodes : (request + 1) * self.num_nodes].double()
            scores = torch.einsum("nhd,kd->hnk", q, keys) * self.layer.attention.scaling
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hnk,kd->nhd", weights, keys[:, :LATENT]))
        return torch.cat(outputs)


def _step(layer: Layer, size: int, num_nodes: int, requests: Requests | None, words: torch.Tensor | None):
    """Metadata as ``write_step_metadata`` leaves it, by Python; without words a chain."""
    prefix = torch.full((size,), -1, dtype=torch.int32)
    mask = torch.full((size, num_nodes, -(-num_nodes // 32)), -1, dtype=torch.int32)
    if requests is not None:
        real = len(requests.prefix)
        prefix[:real] = torch.tensor(requests.prefix, dtype=torch.int32)
        for node in range(num_nodes):
            for word in range(mask.shape[2]):
                bits = min(max(node + 1 - 32 * word, 0), 32)
                mask[:real, node, word] = -1 if bits == 32 else (1 << bits) - 1
        if words is not None:
            mask[:real] = words
    return SimpleNamespace(num_nodes=num_nodes, prefix_lens=prefix, mask_words=mask)


def _batch(layer: Layer, size: int, num_nodes: int, requests: Requests | None) -> SimpleNamespace:
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    mode = ForwardMode.TARGET_VERIFY if num_nodes > 1 else ForwardMode.DECODE
    rows, lens = torch.zeros(size, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
    window = torch.zeros(size * num_nodes, dtype=torch.int64)
    if requests is not None:
        real = len(requests.prefix)
        rows[:real] = torch.tensor(requests.rows)
        lens[:real] = torch.tensor(requests.prefix) + (0 if num_nodes > 1 else 1)
        window[: real * num_nodes] = requests.window
    return SimpleNamespace(
        forward_mode=mode,
        batch_size=size,
        req_pool_indices=rows,
        seq_lens=lens,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        spec_info=SimpleNamespace(draft_token_num=num_nodes) if num_nodes > 1 else None,
        kv_loc_plan=None,
        out_cache_loc=window,
        out_cache_loc_is_physical=True,
        encoder_lens=None,
        mha_one_shot=False,
        extend_seq_lens_cpu=None,
    )


def _attend(delegate, layer: Layer, batch, q: torch.Tensor, k: torch.Tensor | None) -> torch.Tensor:
    latent, rope = (None, None) if k is None else (k[..., :LATENT], k[..., LATENT:])
    out = delegate.attend(q[..., :LATENT], latent, latent, layer.attention, batch, q[..., LATENT:], rope)
    return out.view(-1, HEADS, LATENT)


def eager(
    prefix: list[int], num_nodes: int, trees, words, seed: int, stored: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output of the delegate and what it should be."""
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.triton_delegate import TritonDelegate

    layer = Layer(len(prefix), num_nodes)
    requests = Requests(layer, prefix, num_nodes, seed)
    delegate = TritonDelegate(layer.runner)
    batch = _batch(layer, len(prefix), num_nodes, requests)
    delegate.prepare_eager(batch, _step(layer, len(prefix), num_nodes, requests, words))
    return _attend(delegate, layer, batch, requests.q, None if stored else requests.k), requests.expected(trees)


def replays(size: int, num_nodes: int, batches: list[tuple], seed: int) -> tuple[list, dict]:
    """The same for some batches one after the other, as replays of one captured graph: what was made at the capture is
    used again, and only the buffers are written anew. Then the shapes of two of them."""
    from sglang.srt.layers.attention import verify_mask
    from sglang.srt.layers.attention.ddtree_sm120.verify_mode.triton_delegate import TritonDelegate
    from sglang.srt.runtime_context import get_context, get_spec

    layer = Layer(size, num_nodes)
    if num_nodes > 1:
        get_context().override(source="test", speculative_num_draft_tokens=num_nodes)
        assert get_spec().speculative_num_draft_tokens == num_nodes
    # The layout on a GPU; on a CPU it is another.
    verify_mask.default_tree_mask_mode = lambda: verify_mask.TreeMaskMode.FULL_MASK
    delegate = TritonDelegate(layer.runner)
    delegate.init_cuda_graph_state(size)
    delegate.prepare_graph(_batch(layer, size, num_nodes, None), _step(layer, size, num_nodes, None, None), True)
    captured = delegate._backend.forward_metadata
    results = []
    for number, (prefix, trees, words) in enumerate(batches):
        requests = Requests(layer, prefix, num_nodes, seed + number)
        batch = _batch(layer, size, num_nodes, requests)
        delegate.prepare_graph(batch, _step(layer, size, num_nodes, requests, words), False)
        delegate._backend.forward_metadata = captured
        q, k = torch.zeros(size * num_nodes, HEADS, LATENT + ROPE), torch.zeros(size * num_nodes, 1, LATENT + ROPE)
        real = len(prefix) * num_nodes
        q[:real], k[:real] = requests.q, requests.k
        out = _attend(delegate, layer, batch, q, k)
        assert out.isfinite().all(), "padded requests"
        results.append((out[:real], requests.expected(trees)))
    buffers = ("kv_indices", "attn_logits")
    sizes = {name: tuple(getattr(delegate._backend, f"cuda_graph_{name}").shape) for name in buffers}
    return results, sizes
