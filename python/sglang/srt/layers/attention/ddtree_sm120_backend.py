# SPDX-License-Identifier: Apache-2.0
"""The attention backend ``ddtree_sm120``: verifies draft trees for MLA and GQA models.

One name, one implementation a device:

* CUDA: decode and verify by the tree-verify kernel, prefill by a backend of SGLang's; ``ddtree_sm120/cuda_backend.py``.
* CPU: ``ddtree_sm120/cpu_backend.py``, which runs every mode the server has and is the reference for the CUDA one.

What TARGET_VERIFY reads from ``forward_batch.spec_info``, with ``N`` nodes a request, ``L`` committed tokens and ``B``
requests:

* ``draft_token_num`` (int): ``N``, the queries and new KV rows of every request.
* ``mask_words`` (optional, ``[>= B, N, ceil(N / 32)]`` int32 or uint32): bit ``j % 32`` of word ``j // 32`` in row
  ``i`` says that node ``i`` sees node ``j``. All of the prefix is seen. Comes before ``custom_mask``.
* ``custom_mask`` (flat bool or uint8, or None): read when there are no words.
* ``tree_mask_mode`` (optional ``TreeMaskMode``): layout of ``custom_mask``. ``FULL_MASK``: per request ``N`` rows of
  ``L + N``; ``QLEN_ONLY``: ``N`` rows of ``N``. When missing, what SGLang's own builders make on this device
  (``default_tree_mask_mode``), except that EAGLE's make what the backend's ``verify_mask`` says.

Without either mask the window is a chain: node ``i`` sees nodes ``0..i`` (DFLASH). ``seq_lens`` is ``L``, without the
window. Every node sees itself, and all of the committed tokens.

On a CPU a mask that does not fit its declared layout, or that hides committed tokens, is an error. Sliding-window
layers measure distance by depth in the tree, not by node number. Layers of type ENCODER_ONLY (the DFLASH drafter's)
see the whole window in both directions and refuse a tree mask. On a GPU masks are read where nothing can be checked
without waiting for the device: a byte mask's prefix is taken as seen and cells behind its end as unseen. MLA layers
are causal there, without windows or caps; a draft model is served for its block only, with GQA layers.
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
    if runner.device == "cuda":
        from sglang.srt.layers.attention.ddtree_sm120.cuda_backend import DDTreeSM120AttnBackend

        return DDTreeSM120AttnBackend(runner)
    raise RuntimeError(
        f"--attention-backend {BACKEND_NAME} runs on a CUDA GPU and on a CPU, not on device {runner.device!r}."
    )
