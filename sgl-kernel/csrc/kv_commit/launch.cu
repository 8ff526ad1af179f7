// SPDX-License-Identifier: Apache-2.0
#include "common/cuda_utils.h"
#include "kv_commit/kernel.cuh"

namespace ddtree {

void kv_commit_cuda(const KvCommitParams& p, cudaStream_t stream) {
  const dim3 grid(p.num_buffers, p.batch);
  kv_commit_kernel<<<grid, kCommitThreads, 0, stream>>>(p);
  DDTREE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ddtree
