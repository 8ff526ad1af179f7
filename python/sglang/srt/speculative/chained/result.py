# SPDX-License-Identifier: Apache-2.0
"""What a turn hands to the scheduler: one result of all its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.chained.state import TurnEnd, TurnLayout
from sglang.srt.utils.common import async_d2h

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.observability.metrics_collector import SchedulerMetricsCollector


@dataclass
class TurnResult(GenerationBatchResult):
    """The rows of a turn; they go to the host in one copy.

    ``next_token_ids`` are the rows as they are, ``speculative_output_stride``
    apart: a request's tokens stand at the front of its own.

    Attributes:
        layout: of the rows.
        rows: int64 [bs, width], on the device and then on the host.
        bonus: int64 [bs], the last token of each request; on the device.
        has_trees: whether the nodes are counted.
        kept_depths: of each request, those of ``depths`` that count; filled on the host by
            :func:`lens_within_limits`.
    """

    layout: TurnLayout | None = None
    has_trees: bool = True
    kept_depths: list[list[int]] = field(default_factory=list)
    rows: torch.Tensor | None = None
    bonus: torch.Tensor | None = None

    @classmethod
    def of(cls, layout: TurnLayout, end: TurnEnd, num_steps: int, **more) -> TurnResult:
        """The result of a turn of ``num_steps`` steps."""
        rows = end.rows
        return cls(
            logits_output=LogitsProcessorOutput(next_token_logits=None),
            next_token_ids=rows.view(-1),
            accept_lens=rows[:, layout.total],
            new_seq_lens=end.seq_lens,
            speculative_output_stride=layout.width,
            # Each step's bonus is a token that was not drafted.
            num_non_draft_tokens_per_req=num_steps,
            num_steps=num_steps,
            layout=layout,
            rows=rows,
            bonus=end.bonus,
            **more,
        )

    def copy_to_cpu(self, return_logprob: bool, return_hidden_states: bool = True) -> None:
        """Start the copy of the rows; ``copy_done`` tells when they are there."""
        self.rows = async_d2h(self.rows)
        self.next_token_ids = self.rows.view(-1)
        self.accept_lens = self.rows[:, self.layout.total]
        self.copy_done.record()

    def get_num_generated_tokens(self, batch_size: int) -> int:
        """Of the steps that count."""
        return sum(sum(kept) + len(kept) for kept in self.kept_depths)

    def depths(self) -> list[list[int]]:
        """Accepted drafts of each request at each step; on the host."""
        lens = self.rows[:, self.layout.lens][:, : self.num_steps]
        return (lens - 1).tolist()

    def nodes(self) -> list[int]:
        """Nodes verified for each request over all steps, roots included; on the host."""
        return self.rows[:, self.layout.nodes].tolist()


def depths_of(result: GenerationBatchResult) -> list[int]:
    """Accepted drafts of every request at every step of a result that counts."""
    if isinstance(result, TurnResult):
        return [depth for depths in result.kept_depths for depth in depths]
    return result.num_correct_drafts_per_req_cpu


def lens_within_limits(result: GenerationBatchResult, reqs: list[Req]) -> list[int]:
    """Tokens that each request takes of a result; of a turn, no step behind the one that reaches the request's limit.

    So a request ends for the reason, and with the tokens, that it would with steps one by one. Of a request that has
    ended or was retracted meanwhile one step counts, as SGLang counts the one that its end came too late for.
    """
    lens = result.accept_lens.tolist()
    if not isinstance(result, TurnResult):
        return lens
    for i, (req, depths) in enumerate(zip(reqs, result.depths(), strict=True)):
        gone = req.finished() or req.is_retracted
        left = 1 if gone else req.sampling_params.max_new_tokens - len(req.output_ids)
        kept = depths[: _steps_reaching(left, depths)]
        lens[i] = sum(kept) + len(kept)
        result.kept_depths.append(kept)
    return lens


def correct_drafts(result: GenerationBatchResult, lens: list[int]) -> list[int]:
    """Accepted drafts of each request, of the steps that count; ``lens`` are its tokens."""
    if isinstance(result, TurnResult):
        return [sum(kept) for kept in result.kept_depths]
    return [length - result.num_non_draft_tokens_per_req for length in lens]


def steps_that_count(result: GenerationBatchResult, batch_size: int) -> int:
    """Steps of all requests, as the accept length has them below its fraction."""
    return sum(map(len, result.kept_depths)) if isinstance(result, TurnResult) else batch_size


def count_nodes(result: GenerationBatchResult) -> None:
    """Enter the nodes of the steps that count into the result's sum, which SGLang has made of one step's."""
    if isinstance(result, TurnResult) and result.has_trees:
        result.num_cap_tokens = sum(_nodes_kept(result, i) for i in range(len(result.kept_depths)))


def _nodes_kept(result: TurnResult, index: int) -> int:
    return result.nodes()[index] * len(result.kept_depths[index]) // result.num_steps


def count_steps(result: GenerationBatchResult, req: Req, index: int) -> list[int]:
    """Accepted drafts of each step that a result stands for; all but the last are entered into ``req``'s histogram."""
    if not isinstance(result, TurnResult):
        return [result.num_correct_drafts_per_req_cpu[index]]
    depths = result.kept_depths[index]
    if result.has_trees:
        req.spec_num_cap_tokens += _nodes_kept(result, index)
    for depth in depths[:-1]:
        req.update_spec_correct_drafts_histogram(depth)
    return depths


def count_further_passes(collector: SchedulerMetricsCollector, result: GenerationBatchResult, by_graph: bool) -> None:
    """Count the steps of a turn beyond the one that the scheduler counts itself."""
    for _ in range(result.num_steps - 1):
        collector.increment_decode_cuda_graph_pass(value=by_graph)


def settle_steps(result: GenerationBatchResult, req: Req, index: int) -> None:
    """Take the steps behind a request's end out of its statistics, once the end is known."""
    if not isinstance(result, TurnResult) or req.finished_len is None:
        return
    depths = result.kept_depths[index]
    wanted = req.finished_len - (len(req.output_ids) - sum(depths) - len(depths))
    used = _steps_reaching(wanted, depths)
    for depth in depths[used:]:
        req.spec_verify_ct -= 1
        req.spec_num_correct_drafts -= depth
        req.spec_correct_drafts_histogram[depth] -= 1
    # It is as long as its deepest step.
    while req.spec_correct_drafts_histogram[-1] == 0:
        req.spec_correct_drafts_histogram.pop()
    if result.has_trees:
        req.spec_num_cap_tokens -= result.nodes()[index] * (len(depths) - used) // result.num_steps


def _steps_reaching(tokens: int, depths: list[int]) -> int:
    """How many steps of the given depths emit ``tokens`` tokens, at least one; all, if they emit fewer."""
    for steps, emitted in enumerate(accumulate(depth + 1 for depth in depths), start=1):
        if emitted >= tokens:
            return steps
    return len(depths)
