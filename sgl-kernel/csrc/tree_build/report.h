// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/kernel_facts.h"
#include "tree_build/kernel.cuh"

namespace ddtree {

inline size_t largest_scratch(int num_nodes) {
  TreeBuildParams p{};
  p.num_nodes = num_nodes;
  p.max_depth = kTreeMaxDepth;
  p.candidates = kTreeMaxCandidates;
  p.words_per_row = (num_nodes + 31) / 32;
  return TreeScratch::bytes(p);
}

inline const KernelFacts kKernelFacts[] = {
    {"tree_build_kernel<1>", largest_scratch(32), false},
    {"tree_build_kernel<3>", largest_scratch(96), false},
    {"tree_build_kernel<5>", largest_scratch(160), false},
    {"tree_build_kernel<9>", largest_scratch(kTreeMaxNodes), false},
};

}  // namespace ddtree

using ddtree::kKernelFacts;
