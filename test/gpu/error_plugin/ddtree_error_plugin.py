# SPDX-License-Identifier: Apache-2.0
"""SGLang plugin: in ``--ddtree-verify validate``, compare both kernels with a float64 reference.

``test_server_error.py`` puts this on a server's path. ``/server_info`` then has ``reference`` beside the other figures
of ``validation``, counted from the same step on. The reference takes slots, lengths and trees from the scheduler's own
tables, as they are when a step is prepared, and reads none of the metadata that are made for the kernels. It runs with
and without CUDA graphs; in a graph it is captured with the kernels. One rank, one target model a process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from ddtree_error_reference import read_words, tree_attention
from ddtree_error_totals import ErrorTotals
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

# Most keys of a request, its window among them; fixed, because a graph is. Longer ones are counted as left out.
MAX_KEYS = 768


class StepInputs:
    """What the layers of a verify attend to. Addresses never change.

    Args:
        max_requests: most of one step, padded ones included.
        num_nodes: of every request's window.
        max_keys: see ``MAX_KEYS``.
        device: of the scheduler's tables.
    """

    def __init__(self, max_requests: int, num_nodes: int, max_keys: int, device: torch.device | str):
        self.num_nodes = num_nodes
        self.slots = torch.zeros(max_requests, max_keys, dtype=torch.int64, device=device)
        self.prefix_lens = torch.full((max_requests,), -1, dtype=torch.int64, device=device)
        self.tree = torch.zeros(max_requests, num_nodes, num_nodes, dtype=torch.bool, device=device)
        self._chain = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=device).tril()

    def write(self, forward_batch, req_to_token: torch.Tensor, requests: int) -> None:
        """Copy the first ``requests`` of a batch; the others become padding. Waits for nothing."""
        info = forward_batch.spec_info
        if int(info.draft_token_num) != self.num_nodes:
            raise NotImplementedError(f"the window had {self.num_nodes} nodes, now it has {info.draft_token_num}")
        rows = forward_batch.req_pool_indices[:requests].long()
        self.slots[:requests] = req_to_token[:, : self.slots.shape[1]].index_select(0, rows)
        self.prefix_lens.fill_(-1)
        self.prefix_lens[:requests] = forward_batch.seq_lens[:requests]
        words = getattr(info, "mask_words", None)
        if words is not None:
            self.tree[:requests] = read_words(words[:requests].view(torch.int32), self.num_nodes)
        elif info.custom_mask is None:
            self.tree[:requests] = self._chain
        elif requests:
            raise NotImplementedError("the reference reads trees from mask_words only")


class Call(NamedTuple):
    """One layer's forward, as the model called it."""

    backend: object
    layer: object
    q: torch.Tensor
    q_rope: torch.Tensor | None


class Comparison:
    """The state of this process."""

    def __init__(self) -> None:
        self.inputs: StepInputs | None = None
        self.totals: ErrorTotals | None = None
        self.call: Call | None = None

    def prepare(self, backend, forward_batch, in_capture: bool) -> None:
        table = backend.req_to_token_pool.req_to_token
        if self.inputs is None:
            keys, nodes = min(MAX_KEYS, table.shape[1]), int(forward_batch.spec_info.draft_token_num)
            counted = backend._switch.totals
            # Tensors made in inference mode could not be written outside of it, and SGLang prepares steps in both.
            with torch.inference_mode(False):
                self.inputs = StepInputs(table.shape[0], nodes, keys, table.device)
                self.totals = ErrorTotals(counted.values.shape[0], counted.first_layer, table.device)
        padding = getattr(forward_batch, "num_padding", 0)  # only the view of a graph's replay has it
        # A capture is called with a dummy, of which nothing is to be counted.
        requests = 0 if in_capture else len(forward_batch.req_pool_indices) - padding
        self.inputs.write(forward_batch, table, requests)

    def compare(self, ours: torch.Tensor, served: torch.Tensor) -> None:
        backend, layer, q, q_rope = self.call
        inputs, heads = self.inputs, layer.tp_q_head_num
        q = q.reshape(-1, heads, q.numel() // ours.shape[0] // heads)
        if q_rope is not None:
            q = torch.cat([q, q_rope.reshape(len(q), heads, -1)], dim=-1)
        batch = len(q) // inputs.num_nodes
        prefix_lens = inputs.prefix_lens[:batch]
        reference = tree_attention(
            q.unflatten(0, (batch, inputs.num_nodes)),
            backend.token_to_kv_pool.get_key_buffer(layer.layer_id).squeeze(1),
            inputs.slots[:batch],
            prefix_lens,
            inputs.tree[:batch],
            layer.scaling,
            layer.v_head_dim,
        )
        self.totals.add(
            layer.layer_id,
            reference,
            ours=ours,
            delegate=served,
            real=prefix_lens >= 0,
            fits=prefix_lens + inputs.num_nodes <= inputs.slots.shape[1],
        )


comparison = Comparison()


def _validates(backend, forward_batch) -> bool:
    # The switch of a draft's backend is never in this mode.
    return forward_batch.forward_mode.is_target_verify() and backend._switch.running is VerifyMode.VALIDATE


def prepared(init: Callable, backend, forward_batch, in_capture: bool | None = None) -> None:
    """Around both ways of preparing a forward, of which one has ``in_capture``."""
    init(backend, forward_batch, *(() if in_capture is None else (in_capture,)))
    if _validates(backend, forward_batch):
        comparison.prepare(backend, forward_batch, bool(in_capture))


def attended(attend: Callable, backend, q, k, v, layer, forward_batch, *more, q_rope=None, **rest):
    """Around one layer's forward: keep what it was called with."""
    if _validates(backend, forward_batch):
        comparison.call = Call(backend, layer, q, q_rope)
    try:
        return attend(backend, q, k, v, layer, forward_batch, *more, q_rope=q_rope, **rest)
    finally:
        comparison.call = None


def compared(add: Callable, totals, layer_id, served, ours, prefix_lens) -> None:
    """Around the comparison of ``validate``, where both outputs are."""
    add(totals, layer_id, served, ours, prefix_lens)
    if comparison.call is not None:
        comparison.compare(ours, served)


def emptied(reset: Callable, totals) -> None:
    """Around what drops warm-up and captures before the first step that counts."""
    reset(totals)
    if comparison.totals is not None:
        comparison.totals.reset()


def reported(validation: Callable, control) -> dict | None:
    """Around the figures for ``/server_info``, which wait for the device."""
    figures = validation(control)
    if figures is not None and figures["steps"] > 0:
        figures["reference"] = comparison.totals.report()
    return figures


_PACKAGE = "sglang.srt.layers.attention.ddtree_sm120"
HOOKS = {
    f"{_PACKAGE}.cuda_backend.DDTreeSM120AttnBackend.init_forward_metadata": prepared,
    f"{_PACKAGE}.cuda_backend.DDTreeSM120AttnBackend.init_forward_metadata_out_graph": prepared,
    f"{_PACKAGE}.cuda_backend.DDTreeSM120AttnBackend._verify_ours": attended,
    f"{_PACKAGE}.cpu_backend.DDTreeSM120CpuAttnBackend.init_forward_metadata": prepared,
    f"{_PACKAGE}.cpu_backend.DDTreeSM120CpuAttnBackend.forward_extend": attended,
    f"{_PACKAGE}.verify_mode.ulp.UlpTotals.add": compared,
    f"{_PACKAGE}.verify_mode.ulp.UlpTotals.reset": emptied,
    f"{_PACKAGE}.verify_mode.control.VerifyControl._validation": reported,
}


def register() -> None:
    """Entry point, group ``sglang.srt.plugins``."""
    for target, hook in HOOKS.items():
        HookRegistry.register(target, hook, HookType.AROUND)
