# SPDX-License-Identifier: Apache-2.0
"""Which of a verify batch's masks rules, and in which layout. No tensor is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import MaskLayout, words_per_row
from sglang.srt.speculative.eagle_utils import TreeMaskMode, default_tree_mask_mode
from sglang.srt.speculative.spec_info import SpecInputType

if TYPE_CHECKING:
    from sglang.srt.layers.attention.verify_mask import VerifyMask
    from sglang.srt.speculative.spec_info import SpecInput

# Their builders take the layout from the backend's `verify_mask`; the others always build the whole mask.
_ASK_THE_BACKEND = (SpecInputType.EAGLE_VERIFY, SpecInputType.FROZEN_KV_MTP_VERIFY, SpecInputType.UNO_VERIFY)


def mask_source(spec_info: SpecInput, verify_mask: VerifyMask | None) -> tuple[MaskLayout, torch.Tensor | None]:
    """Layout and contiguous tensor of the mask; a chain when there is none.

    Args:
        spec_info: see ``ddtree_sm120_backend.py``.
        verify_mask: what the backend offers to builders.

    Raises:
        ValueError: ``mask_words`` have another shape or type than their layout.
        NotImplementedError: a declared layout that is not read, or requests with windows of different lengths.
    """
    if getattr(spec_info, "ragged_verify_layout", None) is not None:
        raise NotImplementedError("ddtree_sm120 verifies windows of one length; set SGLANG_RAGGED_VERIFY_MODE=static")
    words = getattr(spec_info, "mask_words", None)
    if words is not None:
        return MaskLayout.WORDS, _checked_words(words, int(spec_info.draft_token_num))
    mask = spec_info.custom_mask
    if mask is None or mask.numel() == 0:
        return MaskLayout.CHAIN, None
    declared = getattr(spec_info, "tree_mask_mode", None)
    if declared is None:
        asks = verify_mask is not None and spec_info.spec_input_type in _ASK_THE_BACKEND
        declared = verify_mask.mode if asks else default_tree_mask_mode()
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
