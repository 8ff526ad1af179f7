# SPDX-License-Identifier: Apache-2.0
"""The GPU backend on CPU tensors, in a process of its own.

Its Triton kernel is run by Triton's interpreter, which has to be chosen before Triton is imported: the test process has
done that long ago. The attention kernel is the CPU twin.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import torch

MARKER = -77


def start() -> None:
    """Process initializer; must run before anything imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def step_metadata(max_batch: int, max_nodes: int, max_pages: int, batch: int, num_nodes: int, **arguments) -> dict:
    """Run ``write_step_metadata`` on buffers full of a marker; returns them whole, and the step's words."""
    from sglang.srt.layers.attention.ddtree_sm120.step_metadata import StepBuffers, write_step_metadata

    buffers = StepBuffers(max_batch, max_nodes, max_pages, "cpu")
    for storage in (buffers._page_table, buffers._prefix_lens, buffers._words):
        storage.fill_(MARKER)
    step = buffers.step(batch, num_nodes)
    write_step_metadata(step, **arguments)
    return {
        "page_table": buffers._page_table,
        "prefix_lens": buffers._prefix_lens,
        "mask_words": step.mask_words,
        "words": buffers._words,
    }


def backend_forward(scene_arguments: dict, spec_info: SimpleNamespace | None, graph_size: int | None) -> tuple:
    """One layer's forward by the GPU backend: its output and the scene's reference.

    Args:
        scene_arguments: of ``scene.Scene``.
        spec_info: of a verify.
        graph_size: None for the eager way; else requests of the graph that the batch is padded to.
    """
    import scene
    from gpu_stub import gpu_backend

    step = scene.Scene(**scene_arguments)
    backend = gpu_backend(step)
    batch = step.batch(spec_info)
    real, nodes = len(step.prefix), step.new[0]
    batch.batch_size, batch.spec_info = real, spec_info
    if graph_size is None:
        backend.init_forward_metadata(batch)
        return _forward(step, backend, batch), step.expected()

    backend.init_cuda_graph_state(graph_size, graph_size * nodes)
    fields = vars(batch) | {"batch_size": graph_size}
    for name, fill in (("seq_lens", 1), ("req_pool_indices", 0)):
        fields[name] = torch.full((graph_size,), fill)
    dummy = spec_info and SimpleNamespace(draft_token_num=nodes, custom_mask=torch.ones(graph_size * nodes**2))
    backend.init_forward_metadata_out_graph(SimpleNamespace(**fields | {"spec_info": dummy}), in_capture=True)
    captured = backend.forward_metadata
    for name in ("seq_lens", "req_pool_indices"):
        fields[name][:real] = getattr(batch, name)
    view = SimpleNamespace(**fields, num_padding=graph_size - real)
    backend.init_forward_metadata_out_graph(view)
    for name in ("page_table", "prefix_lens", "mask_words"):
        assert getattr(captured, name).data_ptr() == getattr(backend.forward_metadata, name).data_ptr()
    # A graph knows the addresses of its capture only, and nothing of the scheduler's tables may be read any more.
    step.table.fill_(scene.NO_SUCH_SLOT)
    backend.forward_metadata = captured
    padding = (graph_size - real) * nodes
    out = _forward(step, backend, view, padding)
    assert (out[real * nodes :] == 0).all()
    return out[: real * nodes], step.expected()


def _forward(step, backend, batch, padding: int = 0) -> torch.Tensor:
    def padded(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows, rows.new_zeros(padding, *rows.shape[1:])])

    def window(rows: list[torch.Tensor]) -> torch.Tensor:
        return padded(torch.cat([r[p:] for r, p in zip(rows, step.prefix, strict=True)]))

    keys, q, dim = window(step.keys), padded(step.q), step.heads.value_dim
    batch.out_cache_loc = padded(batch.out_cache_loc)
    if step.heads.is_mla:
        parts = {"q_rope": q[..., dim:], "k_rope": keys[..., dim:]}
        q, keys, values = q[..., :dim], keys[..., :dim], keys[..., :dim]
    else:
        parts, values = {}, window(step.values)
    out = backend.forward(q, keys, values, step.layer(), batch, **parts)
    return out.view(-1, step.heads.query, dim).double()


call: dict[str, Callable] = {"step_metadata": step_metadata, "backend_forward": backend_forward}
