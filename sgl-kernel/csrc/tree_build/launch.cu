// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_utils.h"
#include "tree_build/kernel.cuh"

namespace ddtree {
namespace {

template <int kSlots>
void launch(const TreeBuildParams& p, cudaStream_t stream) {
  // At most 31.6 KB (N = 257, D = 63, K = 64), so the default limit of 48 KB is enough.
  tree_build_kernel<kSlots><<<p.batch, kTreeBuildThreads, TreeScratch::bytes(p), stream>>>(p);
  DDTREE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void tree_build_cuda(const TreeBuildParams& p, cudaStream_t stream) {
  // A pop costs a comparison for each node that a lane keeps.
  if (p.num_nodes <= 32) return launch<1>(p, stream);
  if (p.num_nodes <= 64) return launch<2>(p, stream);
  if (p.num_nodes <= 96) return launch<3>(p, stream);
  if (p.num_nodes <= 160) return launch<5>(p, stream);
  launch<9>(p, stream);
}

}  // namespace ddtree
