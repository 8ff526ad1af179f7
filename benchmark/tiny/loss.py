# SPDX-License-Identifier: Apache-2.0
"""What a drafter's block is judged by."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# An early error costs all that follows. The DFlash paper takes 7 for blocks of 16 and 4 for blocks of 8; small models
# accept about as much as those.
_DECAY = 4.0
# Weight of the second part of the loss: about as heavy as the first where a draft is likely to be accepted.
_REACH = 0.1


def block_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """Weighted cross entropy of a block's tokens, mean over blocks.

    A token at place j has the weight exp(-(j - 1) / 4), scaled to a sum of 1, and beside it
    a share of the expected number of drafts accepted from j on, sum over k >= j of
    p_1 ... p_k. That part's gradient is the gradient of the expected accept length: it
    does not spend the small model on places that no step reaches.

    Args:
        logits: [..., places, vocabulary].
        truth: int64 [..., places].
    """
    places = truth.shape[-1]
    losses = F.cross_entropy(logits.flatten(0, -2).float(), truth.flatten(), reduction="none").view(truth.shape)
    at = torch.arange(places, device=truth.device)
    decay = torch.exp(-at / _DECAY)
    # Sums by a product with a triangle: a running sum is not repeatable on a GPU.
    up_to = (at.unsqueeze(1) <= at).float()
    survive = torch.exp(-(losses.detach().unsqueeze(-1) * up_to).sum(-2))
    reach = (survive.unsqueeze(-2) * up_to).sum(-1)
    return (losses * (decay / decay.sum() + _REACH * reach)).sum(-1).mean()
