// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/kernel_facts.h"
#include "gqa_tree_verify/config.h"

namespace ddtree::gqa {

#define DDTREE_GQA_FACTS(dim, rows)                                                                            \
  {"tree_verify_kernel<" #dim ", " #rows ", false>", sizeof(Smem<Tile<dim, rows, false>>), true},              \
      {"tree_verify_kernel<" #dim ", " #rows ", true>", sizeof(Smem<Tile<dim, rows, true>>), true}

inline constexpr KernelFacts kKernelFacts[] = {
    DDTREE_GQA_FACTS(64, 16),  DDTREE_GQA_FACTS(64, 64),   DDTREE_GQA_FACTS(64, 128),  DDTREE_GQA_FACTS(128, 16),
    DDTREE_GQA_FACTS(128, 64), DDTREE_GQA_FACTS(128, 128), DDTREE_GQA_FACTS(256, 64), DDTREE_GQA_FACTS(256, 128),
};

#undef DDTREE_GQA_FACTS

}  // namespace ddtree::gqa

using ddtree::gqa::kKernelFacts;
