# SPDX-License-Identifier: Apache-2.0
"""Which of a verify batch's masks rules, and in which layout. No tensor is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import MaskLayout, words_per_row
from sglang.srt.speculative.spec_info import SpecInputType

if TYPE_CHECKING:
    from sglang.srt.speculative.spec_info import SpecInput

# EAGLE's builder takes the layout from the backend's `verify_mask`, which is QLEN_ONLY; the others build the whole mask.
_QLEN_BUILDERS = (SpecInputType.EAGLE_VERIFY, SpecInputType.FROZEN_KV_MTP_VERIFY, SpecInputType.UNO_VERIFY)


def mask_source(spec_info: SpecInput) -> tuple[MaskLayout, torch.Tensor | None]:
    """Layout and contiguous tensor of the mask; a chain when there is none.

    Raises:
        ValueError: ``mask_words`` have another shape or type than their layout.
        NotImplementedError: a declared layout that is not read.
    """
    words = getattr(spec_info, "mask_words", None)
    if words is not None:
        return MaskLayout.WORDS, _checked_words(words, int(spec_info.draft_token_num))
    mask = spec_info.custom_mask
    if mask is None or mask.numel() == 0:
        return MaskLayout.CHAIN, None
    declared = getattr(spec_info, "tree_mask_mode", None)
    if declared is None:
        is_qlen = getattr(spec_info, "spec_input_type", None) in _QLEN_BUILDERS
        declared = TreeMaskMode.QLEN_ONLY if is_qlen else TreeMaskMode.FULL_MASK
    declared = TreeMaskMode(declared)
    if declared == TreeMaskMode.QLEN_ONLY_BITPACKING:
        raise NotImplementedError("ddtree_sm120 does not read the tree mask layout QLEN_ONLY_BITPACKING")
    layout = MaskLayout.QLEN_ONLY if declared == TreeMaskMode.QLEN_ONLY else MaskLayout.FULL_MASK
    return layout, mask.contiguous()


def _checked_words(words: torch.Tensor, num_nodes: int) -> torch.Tensor:
    expected = (num_nodes, words_per_row(num_nodes))
    if words.dtype not in (torch.int32, torch.uint32) or words.dim() != 3 or tuple(words.shape[1:]) != expected:
        raise ValueError(
            f"mask_words must be int32 or uint32 of shape [batch, {expected[0]}, {expected[1]}], "
            f"got {words.dtype} {tuple(words.shape)}"
        )
    return words.contiguous()
