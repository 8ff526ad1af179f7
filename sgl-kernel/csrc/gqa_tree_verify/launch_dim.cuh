// SPDX-License-Identifier: Apache-2.0
// The instantiations for one head size. A source file each, so that they compile side by side.
#pragma once

#include "common/cuda_utils.h"
#include "gqa_tree_verify/kernel.cuh"

namespace ddtree::gqa {

struct Card {
  int blocks;            // that run at once
  bool moves_registers;  // between warps: from sm_90 on
};

template <int HeadDim, int Rows, bool Fp8>
void prepare_kernel() {
  DDTREE_CUDA_CHECK(cudaFuncSetAttribute(tree_verify_kernel<HeadDim, Rows, Fp8>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(sizeof(Smem<Tile<HeadDim, Rows, Fp8>>))));
}

template <int HeadDim, int Rows, bool Fp8>
void launch_kernel(const KernelArgs& args, Card card, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(card.blocks);
  config.blockDim = dim3(32 * (attend_warps(HeadDim, Rows, card.moves_registers) + kLoadWarps));
  config.dynamicSmemBytes = sizeof(Smem<Tile<HeadDim, Rows, Fp8>>);
  config.stream = stream;
  // Blocks that share a row tile wait for each other: all must be resident at once.
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  DDTREE_CUDA_CHECK(cudaLaunchKernelEx(&config, tree_verify_kernel<HeadDim, Rows, Fp8>, args));
}

// Once a card, before its first launch.
template <int HeadDim>
void prepare_dim() {
  if constexpr (HeadDim <= 128) prepare_kernel<HeadDim, 16, false>(), prepare_kernel<HeadDim, 16, true>();
  prepare_kernel<HeadDim, 64, false>(), prepare_kernel<HeadDim, 64, true>();
  prepare_kernel<HeadDim, 128, false>(), prepare_kernel<HeadDim, 128, true>();
}

template <int HeadDim, bool Fp8>
void launch_rows(int rows, const KernelArgs& args, Card card, cudaStream_t stream) {
  if constexpr (HeadDim <= 128)
    if (rows == 16) return launch_kernel<HeadDim, 16, Fp8>(args, card, stream);
  if (rows == 64) return launch_kernel<HeadDim, 64, Fp8>(args, card, stream);
  launch_kernel<HeadDim, 128, Fp8>(args, card, stream);
}

template <int HeadDim>
void launch_dim(int rows, bool fp8, const KernelArgs& args, Card card, cudaStream_t stream) {
  fp8 ? launch_rows<HeadDim, true>(rows, args, card, stream) : launch_rows<HeadDim, false>(rows, args, card, stream);
}

#define DDTREE_GQA_HEAD_DIM(linkage, dim)  \
  linkage template void prepare_dim<dim>(); \
  linkage template void launch_dim<dim>(int, bool, const KernelArgs&, Card, cudaStream_t);

}  // namespace ddtree::gqa
