// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/kernel_facts.h"
#include "tree_build/kernel.cuh"

namespace ddtree {

inline size_t largest_scratch() {
  TreeBuildParams p{};
  p.num_nodes = kTreeMaxNodes;
  p.max_depth = kTreeMaxDepth;
  p.candidates = kTreeMaxCandidates;
  p.words_per_row = (kTreeMaxNodes + 31) / 32;
  return TreeScratch::bytes(p);
}

inline const KernelFacts kKernelFacts[] = {{"tree_build_kernel", largest_scratch(), false}};

}  // namespace ddtree

using ddtree::kKernelFacts;
