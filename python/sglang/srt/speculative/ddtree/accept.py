# SPDX-License-Identifier: Apache-2.0
"""The target's choice after each node of a verified tree."""

from __future__ import annotations

import dataclasses

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def per_node(sampling_info: SamplingBatchInfo, num_nodes: int) -> SamplingBatchInfo:
    """``sampling_info`` of B requests as one of B * N rows, request-major.

    Logit processors, penalties, biases and grammar masks are dropped: they
    have been applied to the logits by then.
    """

    def spread(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.repeat_interleave(num_nodes, dim=0)

    return dataclasses.replace(
        sampling_info,
        temperatures=spread(sampling_info.temperatures),
        top_ps=spread(sampling_info.top_ps),
        top_ks=spread(sampling_info.top_ks),
        min_ps=spread(sampling_info.min_ps),
        sampling_seed=spread(sampling_info.sampling_seed),
        grammars=None,
        grammar_mask=None,
        penalizer_orchestrator=None,
        acc_additive_penalties=None,
        acc_scaling_penalties=None,
        logit_bias=None,
        has_custom_logit_processor=False,
        custom_params=None,
        custom_logit_processor=None,
        return_sampling_masks=None,
        return_sampling_support_logprobs=None,
        sampling_mask_batch_indices=None,
        sampling_support_logprobs_capture_indices=None,
        sampling_mask_top_ks=None,
    )


def choose_per_node(
    logits: torch.Tensor,
    sampling_info: SamplingBatchInfo | None,
    positions: torch.Tensor,
    num_nodes: int,
    sampler: torch.nn.Module,
    *,
    keep_logits: bool,
) -> torch.Tensor:
    """One token a node: the argmax, or one draw of the server's own sampler.

    A node's draw stands for what plain decoding would have drawn there: the
    seed is the request's and the position is the node's, so a seeded request
    even gets the same token. The walk uses the draws of visited nodes only,
    each once, which leaves the output's law that of plain sampling.

    Args:
        logits: float [B * N, V], adjusted and masked; overwritten by
            probabilities unless ``keep_logits``.
        positions: int64 [B * N].

    Returns:
        int64 [B * N].
    """
    if sampling_info is None or sampling_info.is_all_greedy:
        return logits.argmax(dim=-1)
    chosen = sampler(
        LogitsProcessorOutput(
            next_token_logits=logits.clone() if keep_logits else logits
        ),
        per_node(sampling_info, num_nodes),
        False,
        [],
        [],
        positions,
    )
    return chosen.to(torch.int64)
