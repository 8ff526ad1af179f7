# SPDX-License-Identifier: Apache-2.0
"""The GPU backend built on CPU tensors, with a stub in place of the prefill delegate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from scene import MAX_CONTEXT, Scene
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.layers.attention.ddtree_sm120 import cuda_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


class Delegate(AttentionBackend):
    """Notes what it is asked; ``forward_extend`` returns its arguments."""

    extend_dummy_seqs_capped_by_req_pool = True

    def __init__(self):
        self.calls: list[str] = []

    def init_forward_metadata(self, forward_batch):
        self.calls.append("metadata")

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return {"q": q, "k": k, "v": v, "save_kv_cache": save_kv_cache, **kwargs}

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        raise AssertionError("the delegate's decode buffers were made")

    def shared_read_ends(self, fm: ForwardMode) -> SharedReadEnds:
        return SharedReadEnds.UNKNOWN


def gpu_runner(step: Scene, nodes: int, **changes) -> SimpleNamespace:
    runner = step.runner()
    fields: dict[str, Any] = {
        "page_size": step.page_size,
        "dtype": torch.bfloat16,
        "use_mla_backend": step.heads.is_mla,
        "is_draft_worker": False,
        "prefill_attention_backend_str": "ddtree_sm120",
        "decode_num_tokens_per_req": lambda: nodes,
        "model_config": SimpleNamespace(
            context_len=MAX_CONTEXT,
            num_attention_heads=step.heads.query,
            head_dim=step.heads.head_dim,
            v_head_dim=step.heads.value_dim,
            get_num_kv_heads=lambda ranks: step.heads.kv // ranks,
            kv_lora_rank=step.heads.value_dim,
            qk_rope_head_dim=step.heads.rope_dim,
        ),
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        **changes,
    }
    for name, value in fields.items():
        setattr(runner, name, value)
    return runner


def gpu_backend(step: Scene, delegate: str = "flashinfer", **changes) -> cuda_backend.DDTreeSM120AttnBackend:
    """The backend for a scene's pools; its ``prefill_backend`` is a :class:`Delegate` of the given name."""
    parallel = SimpleNamespace(attn_tp_size=1, attn_dcp_size=1)
    with (
        mock.patch.object(cuda_backend, "get_parallel", lambda: parallel),
        mock.patch.object(cuda_backend, "build_delegate", lambda runner: (delegate, Delegate())),
    ):
        return cuda_backend.DDTreeSM120AttnBackend(gpu_runner(step, max(step.new), **changes))
