# SPDX-License-Identifier: Apache-2.0
"""The backend's Triton kernel on CPU tensors, run by Triton's interpreter in a process of its own.

The interpreter has to be chosen before Triton is imported, which the test process has done long ago.
"""

from __future__ import annotations

import os

import torch


def start() -> None:
    """Process initializer; must run before anything imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def step_metadata(max_batch: int, max_nodes: int, max_pages: int, batch: int, num_nodes: int, **arguments) -> dict:
    """Run ``write_step_metadata`` on buffers full of a marker; returns them whole, as the step sees them and behind."""
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


MARKER = -77
