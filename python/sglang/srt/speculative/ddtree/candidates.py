# SPDX-License-Identifier: Apache-2.0
"""Top-K tokens and log-probabilities of each drafted position."""

from __future__ import annotations

import torch
from sglang.srt.models.dflash import candidate_topk
from sglang.srt.runtime_context import get_parallel


class CandidateSampler:
    """Scores the drafted positions with the target's LM head.

    Log-probabilities are under the whole vocabulary. With tensor parallelism
    each rank reduces its shard to K candidates first, so K values a rank are
    gathered and not the vocabulary.

    It writes to static buffers, so that it can be the tail of the draft's CUDA
    graph. A vocabulary smaller than K leaves log-probability -inf in the rest.

    Attributes:
        ids: int64 [max_bs, B - 1, K].
        logprobs: float32 [max_bs, B - 1, K], descending.
    """

    def __init__(
        self,
        *,
        lm_head: torch.nn.Module,
        block_size: int,
        candidates: int,
        max_bs: int,
        device: torch.device | str,
    ) -> None:
        self._lm_head = lm_head
        self._block_size = block_size
        self._usable = min(candidates, _smallest_shard(lm_head))
        shape = (max_bs, block_size - 1, candidates)
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.full(shape, float("-inf"), device=device)

    def __call__(self, hidden_states: torch.Tensor, input_ids=None) -> None:
        """Fill the first rows from the draft's hidden states [bs * B, hidden]."""
        batch = hidden_states.shape[0] // self._block_size
        # Column 0 is the committed token, which is not drafted.
        drafted = hidden_states.view(batch, self._block_size, -1)[:, 1:]
        ids, values, partition = candidate_topk(
            drafted.reshape(-1, drafted.shape[-1]),
            self._lm_head,
            self._usable,
            with_partition=True,
        )
        logprobs = values.float() - partition.unsqueeze(-1)
        shape = (batch, self._block_size - 1, self._usable)
        self.ids[:batch, :, : self._usable] = ids.view(shape)
        self.logprobs[:batch, :, : self._usable] = logprobs.view(shape)


def _smallest_shard(lm_head: torch.nn.Module) -> int:
    """Fewest vocabulary rows on any rank; each must name K candidates."""
    ranks = get_parallel().tp_size
    vocab = int(lm_head.org_vocab_size)
    if ranks == 1:
        return vocab
    padded_shard = int(lm_head.shard_indices.num_org_elements_padded)
    return max(1, vocab - padded_shard * (ranks - 1))
