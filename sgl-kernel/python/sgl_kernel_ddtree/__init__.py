# SPDX-License-Identifier: Apache-2.0
"""Tree-verify kernels for sm_120 cards: CUDA operators, C++ CPU twins of the same names, and torch references.

Needs torch and apache-tvm-ffi; SGLang only where a card's code is missing from the wheel and must be compiled. One module
an operator; see each for its contract.
"""

from sgl_kernel_ddtree._load import build_info, ensure_loaded
from sgl_kernel_ddtree.gqa_tree_verify import gqa_tree_verify, gqa_tree_verify_workspace
from sgl_kernel_ddtree.kv_commit import kv_commit
from sgl_kernel_ddtree.mla_tree_verify import mla_tree_verify, mla_tree_verify_workspace
from sgl_kernel_ddtree.tree_accept import tree_accept
from sgl_kernel_ddtree.tree_build import tree_build

__all__ = [
    "build_info",
    "ensure_loaded",
    "gqa_tree_verify",
    "gqa_tree_verify_workspace",
    "kv_commit",
    "mla_tree_verify",
    "mla_tree_verify_workspace",
    "tree_accept",
    "tree_build",
]
