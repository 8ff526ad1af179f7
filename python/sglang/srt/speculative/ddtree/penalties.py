# SPDX-License-Identifier: Apache-2.0
"""Penalties and ``min_new_tokens`` in the verifies of the DFLASH family.

SGLang's scheduler accumulates them before a forward; its DFLASH neither counts what
was emitted nor reads what was accumulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sglang.srt.sampling.penaltylib.frequency_penalty import BatchedFrequencyPenalizer
from sglang.srt.sampling.penaltylib.min_new_tokens import BatchedMinNewTokensPenalizer
from sglang.srt.sampling.penaltylib.presence_penalty import BatchedPresencePenalizer
from sglang.srt.sampling.penaltylib.repetition_penalty import (
    BatchedRepetitionPenalizer,
    apply_scaling_penalties,
)
from sglang.srt.utils.common import is_pin_memory_available

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def count_output_tokens(batch: ScheduleBatch) -> None:
    """Bring the penalizers of a decode batch up to the tokens that its requests have.

    A step emits several tokens a request, and SGLang's count takes one a turn. So they
    are counted anew, which is also right for a request that was retracted.

    Raises:
        NotImplementedError: a penalizer that is not known here.
    """
    orchestrator = batch.sampling_info.penalizer_orchestrator
    if not orchestrator.is_required:
        return
    lens = [len(req.output_ids) for req in batch.reqs]
    # Flat cells of [bs, V].
    cells = np.concatenate(
        [
            np.asarray(req.output_ids, dtype=np.int64) + row * orchestrator.vocab_size
            for row, req in enumerate(batch.reqs)
        ]
    )
    counts = torch.zeros(len(lens), orchestrator.vocab_size, device=batch.device)
    cells = _to_device(torch.from_numpy(cells), batch.device)
    counts.view(-1).scatter_add_(0, cells, torch.ones_like(cells, dtype=counts.dtype))
    for penalizer in orchestrator.penalizers.values():
        if not penalizer.is_prepared():
            continue
        # In place: a forward on another stream may still read the tensor.
        if isinstance(penalizer, BatchedFrequencyPenalizer):
            torch.mul(
                counts,
                penalizer.frequency_penalties,
                out=penalizer.cumulated_frequency_penalties,
            )
        elif isinstance(penalizer, BatchedPresencePenalizer):
            torch.mul(
                counts > 0,
                penalizer.presence_penalties,
                out=penalizer.cumulated_presence_penalties,
            )
        elif isinstance(penalizer, BatchedRepetitionPenalizer):
            penalizer.cumulated_repetition_penalties.copy_(
                torch.where(counts > 0, penalizer.repetition_penalties, 1.0)
            )
        elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
            emitted = torch.tensor(lens, dtype=torch.int32).unsqueeze(1)
            penalizer.len_output_tokens.copy_(_to_device(emitted, batch.device))
        else:
            raise NotImplementedError(
                f"speculative decoding with DFLASH or DDTREE does not know {type(penalizer).__name__}."
            )


def has_penalties(sampling_info: SamplingBatchInfo) -> bool:
    """Whether a forward's ``sampling_info`` brings accumulated penalties."""
    return (
        sampling_info.acc_additive_penalties is not None
        or sampling_info.acc_scaling_penalties is not None
    )


def apply_accumulated_penalties(
    logits: torch.Tensor, sampling_info: SamplingBatchInfo
) -> None:
    """Penalise all rows of a request alike, by the tokens before the step, as EAGLE does.

    Args:
        logits: float32 [B * N, V], request-major; changed in place.
        sampling_info: of B requests.
    """
    # With a mask of its own DFLASH takes the additive ones in together with it.
    if sampling_info.grammar_mask is not None or not has_penalties(sampling_info):
        return
    rows = logits.view(len(sampling_info), -1, logits.shape[-1])
    if sampling_info.acc_additive_penalties is not None:
        rows.add_(sampling_info.acc_additive_penalties.unsqueeze(1))
    if sampling_info.acc_scaling_penalties is not None:
        apply_scaling_penalties(rows, sampling_info.acc_scaling_penalties.unsqueeze(1))


def _to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Without waiting for the device."""
    if not is_pin_memory_available(device):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
