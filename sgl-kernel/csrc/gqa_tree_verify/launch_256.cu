// SPDX-License-Identifier: Apache-2.0
#include "gqa_tree_verify/launch_dim.cuh"

namespace ddtree::gqa {
DDTREE_GQA_HEAD_DIM(, 256)
}  // namespace ddtree::gqa
