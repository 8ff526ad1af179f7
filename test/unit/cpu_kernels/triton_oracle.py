# SPDX-License-Identifier: Apache-2.0
"""SGLang's own Triton kernels on CPU tensors, run by Triton's interpreter in a process of its own.

The interpreter has to be chosen before Triton is imported, which the test process has done long ago. ``NAMES`` are the
kernels; each takes and returns plain tensors, so that a test compares the returned ones with its own in-place results.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch


def start() -> None:
    """Process initializer; must run before anything imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


def call(name: str, **arguments):
    """Run kernel ``name``; returns the tensors it wrote."""
    return _KERNELS[name](**arguments)


def _next_power_of_2(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _extend_cache_locs(req_pool_indices, req_to_token, start, end, out):
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs

    batch = req_pool_indices.numel()
    assign_extend_cache_locs[(batch,)](
        req_pool_indices, req_to_token, start, end, out, req_to_token.shape[1], _next_power_of_2(batch)
    )
    return out


def _draft_cache_locs(req_pool_indices, req_to_token, seq_lens, out, topk, steps):
    from sglang.kernels.ops.speculative.cache_locs import assign_draft_cache_locs_contiguous

    batch = req_pool_indices.numel()
    assign_draft_cache_locs_contiguous[(batch,)](
        req_pool_indices, req_to_token, seq_lens, out, req_to_token.shape[1], topk, steps
    )
    return out


def _req_to_token_pool(req_pool_indices, req_to_token, start, end, slots):
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool

    batch = req_pool_indices.numel()
    assign_req_to_token_pool[(batch,)](
        req_pool_indices, req_to_token, start, end, slots, req_to_token.shape[1], _next_power_of_2(batch)
    )
    return req_to_token


def _copy_kv(buffers, tgt, src):
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_tiled

    pointers = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.int64)
    strides = torch.tensor([b[0].nbytes for b in buffers], dtype=torch.int64)
    tile = 64
    tiles = -(-int(strides.max()) // tile)
    copy_all_layer_kv_cache_tiled[(len(buffers), tiles)](
        pointers, strides, tgt, src, tgt.numel(), _next_power_of_2(tgt.numel()), BYTES_PER_TILE=tile
    )
    return buffers


def _bonus_tokens(accept_tokens, accept_lens, out, stride):
    from sglang.kernels.ops.speculative.eagle import fill_bonus_tokens

    fill_bonus_tokens[(accept_lens.numel(),)](accept_tokens, accept_lens, out, stride)
    return out


def _accept_out_cache_loc(accept_index, out_cache_loc, out):
    from sglang.kernels.ops.speculative.eagle import fill_accept_out_cache_loc

    size = accept_index.numel()
    fill_accept_out_cache_loc[(size,)](accept_index, out_cache_loc, out, _next_power_of_2(size))
    return out


def _rotate(input_ids, start, lens, next_tokens, select):
    from sglang.kernels.ops.speculative.multi_layer_eagle import rotate_input_ids_kernel

    block = 4096 if select is not None else 8
    rotate_input_ids_kernel[(lens.numel(),)](input_ids, start, lens, next_tokens, select, BLOCK_SIZE=block)
    return input_ids


def _build_tree(parent_list, selected_index, seq_lens, outputs, topk, depth, num_nodes, mode):
    from sglang.srt.speculative.eagle_utils import TreeMaskMode

    try:
        from sglang.kernels.ops.speculative.spec_tree import sgl_build_tree_kernel_triton
    except ImportError:  # before 0.5.23
        from sglang.srt.speculative.eagle_utils import sgl_build_tree_kernel_triton

    sgl_build_tree_kernel_triton(
        parent_list, selected_index, seq_lens, *outputs, topk, depth, num_nodes, TreeMaskMode(mode)
    )
    return outputs


def _verify_greedy(predicts, accept_index, accept_num, candidates, links, target):
    try:
        from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton
    except ImportError:  # before 0.5.23
        from sglang.srt.speculative.eagle_utils import verify_tree_greedy_triton

    verify_tree_greedy_triton(predicts, accept_index, accept_num, candidates, *links, target)
    return predicts, accept_index, accept_num


def _reconstruct(mask, seq_lens, outputs, batch, num_nodes):
    from sglang.kernels.ops.speculative.reconstruct_tree import reconstruct_indices_from_tree_mask_triton

    reconstruct_indices_from_tree_mask_triton(mask, seq_lens, *outputs, batch, num_nodes)
    return outputs


_KERNELS: dict[str, Callable] = {
    "extend_cache_locs": _extend_cache_locs,
    "draft_cache_locs": _draft_cache_locs,
    "req_to_token_pool": _req_to_token_pool,
    "copy_kv": _copy_kv,
    "bonus_tokens": _bonus_tokens,
    "accept_out_cache_loc": _accept_out_cache_loc,
    "rotate": _rotate,
    "build_tree": _build_tree,
    "verify_greedy": _verify_greedy,
    "reconstruct": _reconstruct,
}
NAMES = tuple(_KERNELS)
