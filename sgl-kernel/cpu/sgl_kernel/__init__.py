# SPDX-License-Identifier: Apache-2.0
"""The CPU functions of ``sgl_kernel`` that SGLang imports, in plain torch.

SGLang asks for these names when ``SGLANG_USE_CPU_ENGINE=1`` and no CPU build of ``sgl_kernel`` is published. The names and
argument orders are SGLang's; every function writes its results in place, as the native ones do, and takes contiguous CPU
tensors. ``torch.ops.sgl_kernel`` deliberately gets nothing but the hash of seeded sampling, which has no other path: SGLang
then keeps its own torch path for linear layers and norms.
"""

from sgl_kernel.cache_locs import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
)
from sgl_kernel.eagle import (
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from sgl_kernel.kv_cache import copy_all_layer_kv_cache_cpu
from sgl_kernel.murmur_hash import murmur_hash32_cpu
from sgl_kernel.sampling import (
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.4.10+cpu.ddtree"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "murmur_hash32_cpu",
    "rotate_input_ids_cpu",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy_cpu",
]
