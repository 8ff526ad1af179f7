# SPDX-License-Identifier: Apache-2.0
"""The attention backend ``ddtree_sm120``: verifies draft trees for MLA and GQA models.

One name, one implementation a device:

* CUDA (sm_120): the tree-verify kernel, in ``ddtree_sm120/cuda_backend.py``.
* CPU: ``ddtree_sm120/cpu_backend.py``, which runs every mode the server has and is the reference for the CUDA one.

What TARGET_VERIFY reads from ``forward_batch.spec_info`` (``N`` nodes a request, ``L`` committed tokens, ``B`` requests):

==================  ====================================  ============================================================
attribute           shape, dtype                          meaning
==================  ====================================  ============================================================
draft_token_num     int                                   ``N``; queries and new KV rows of every request
mask_words          ``[>= B, N, ceil(N / 32)]``,          bit ``j % 32`` of word ``j // 32`` in row ``i``: node ``i`` sees
                    int32 or uint32                       node ``j``. All of the prefix is seen. Used when present
custom_mask         flat bool or uint8                    used when there are no words; layout by ``tree_mask_mode``
tree_mask_mode      ``TreeMaskMode``, optional            ``FULL_MASK``: per request ``N`` rows of ``L + N``; ``QLEN_ONLY``:
                                                          ``N`` rows of ``N``. When missing, what SGLang's own builders
                                                          use on this device (``default_tree_mask_mode``)
==================  ====================================  ============================================================

Neither mask: the window is a chain, node ``i`` sees nodes ``0..i`` (DFLASH). ``seq_lens`` is ``L``, without the window. Every
node sees itself. A mask that does not fit its declared layout, or that hides committed tokens, is an error. Sliding-window
layers measure distance by depth in the tree, not by node number. Layers of type ENCODER_ONLY (the DFLASH drafter's) see
the whole window in both directions and refuse a tree mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.model_executor.model_runner import ModelRunner

BACKEND_NAME = "ddtree_sm120"


def create_ddtree_sm120_backend(runner: ModelRunner) -> AttentionBackend:
    """Build the backend for the runner's device.

    Raises:
        RuntimeError: on a device without an implementation.
        ValueError: the model or a server argument asks for something that the implementation lacks.
    """
    if runner.device == "cpu":
        from sglang.srt.layers.attention.ddtree_sm120.cpu_backend import DDTreeSM120CpuAttnBackend

        return DDTreeSM120CpuAttnBackend(runner)
    raise RuntimeError(
        f"--attention-backend {BACKEND_NAME} on device {runner.device!r}: CUDA kernel not built yet: this release runs the "
        "backend with --device cpu only. On a GPU choose --attention-backend triton."
    )
