# SPDX-License-Identifier: Apache-2.0
"""The target forward's view of a draft tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree.tree_build import DraftTree
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.speculative.ddtree.dense_mask import dense_mask_for
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

if TYPE_CHECKING:
    from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """A DFLASH verify input whose nodes form a tree.

    Attributes:
        draft_token: int64 [B * N], node tokens.
        positions: int64 [B * N], prefix length + depth.
        draft_token_num: N.
        mask_words: int32 [B, N, ceil(N / 32)], uint32 bits: node i sees node
            j. Read by ``ddtree_sm120``; None stands for a chain.
        custom_mask: the same tree in the layout of the ``triton`` backend.
    """

    mask_words: torch.Tensor | None = None


def capture_verify_input(
    model_runner: ModelRunner, num_nodes: int, custom_mask: torch.Tensor | None
) -> DDTreeVerifyInput:
    """What the target's CUDA graph is captured with.

    The mask must be there at capture: a graph captured without one would
    replay every tree as a chain. ``ddtree_sm120`` keeps its own mask words and
    so always has one; ``triton`` decides by ``custom_mask``.
    """
    return DDTreeVerifyInput(
        draft_token=None,
        positions=None,
        draft_token_num=num_nodes,
        custom_mask=(
            custom_mask if model_runner.decode_attention_backend_str == "triton" else None
        ),
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )


def tree_verify_input(
    model_runner: ModelRunner,
    tree: DraftTree,
    prefix_lens: torch.Tensor,
    total_keys: int,
    plan: KVLocPlan,
) -> DDTreeVerifyInput:
    """The input of the verify of ``tree`` on the runner's decode backend.

    Args:
        prefix_lens: int64 [B].
        total_keys: upper bound on the host of all requests' keys, nodes included.
        plan: of a window whose first N slots are the nodes'.
    """
    num_nodes = tree.tokens.shape[1]
    return DDTreeVerifyInput(
        draft_token=tree.tokens.reshape(-1),
        positions=tree.positions.reshape(-1),
        draft_token_num=num_nodes,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        kv_loc_plan=plan,
        kv_loc_cols=slice(0, num_nodes),
        mask_words=tree.mask_words,
        custom_mask=(
            dense_mask_for(model_runner.attn_backend, tree, prefix_lens, total_keys)
            if model_runner.decode_attention_backend_str == "triton"
            else None
        ),
    )


def verify_batch_of(
    runner: ModelRunner,
    verify_input: DDTreeVerifyInput,
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    host_lens: torch.Tensor,
    host_sum: int,
) -> ForwardBatch:
    """A verify that no scheduler batch asks for.

    Args:
        verify_input: with the plan of its window.
        req_pool_indices, prefix_lens: int64 [B].
        host_lens: [B] on the host, upper bounds of each request's keys.
        host_sum: of ``host_lens``.
    """
    positions = verify_input.positions
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        batch_size=len(req_pool_indices),
        input_ids=verify_input.draft_token,
        req_pool_indices=req_pool_indices,
        seq_lens=prefix_lens,
        out_cache_loc=None,
        seq_lens_sum=host_sum,
        seq_lens_cpu=host_lens,
        positions=positions,
        mrope_positions=(
            positions.repeat(3, 1) if runner.model_config.model_is_mrope else None
        ),
        spec_algorithm=runner.spec_algorithm,
        spec_info=verify_input,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        num_token_non_padded=(
            torch.full((), len(positions), dtype=torch.int32, device=positions.device)
            if enable_num_token_non_padded()
            else None
        ),
        global_num_token_non_padded_cpu=len(positions),
        can_run_decode_cuda_graph=True,
    )
    verify_input.kv_loc_plan.bind(
        forward_batch, runner.kv_index_translator, cols=verify_input.kv_loc_cols
    )
    return forward_batch
