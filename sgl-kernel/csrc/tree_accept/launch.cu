// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_utils.h"
#include "tree_accept/kernel.cuh"

namespace ddtree {

void tree_accept_cuda(const TreeAcceptParams& p, cudaStream_t stream) {
  tree_accept_kernel<<<p.batch, kAcceptThreads, 0, stream>>>(p);
  DDTREE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ddtree
