// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/kernel_facts.h"
#include "mla_tree_verify/config.h"

namespace ddtree::mla {

inline constexpr KernelFacts kKernelFacts[] = {
    {"tree_verify_kernel<1>", sizeof(Smem<1>), true},
    {"tree_verify_kernel<2>", sizeof(Smem<2>), true},
};

}  // namespace ddtree::mla

using ddtree::mla::kKernelFacts;
