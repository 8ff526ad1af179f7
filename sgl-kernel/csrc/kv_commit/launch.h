// SPDX-License-Identifier: Apache-2.0
// What the binding hands to the CUDA launcher and to the CPU twin. The contract is in
// python/sgl_kernel_ddtree/kv_commit.py.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace ddtree {

inline constexpr int kCommitMaxColumns = 64;

struct KvCommitParams {
  const int64_t* addresses;    // [num_buffers], base pointers
  const int64_t* row_bytes;    // [num_buffers]
  const int64_t* slots;        // [batch, slots_row_stride], rows of the window
  const int32_t* path_nodes;   // [batch, columns]
  const int32_t* commit_lens;  // [batch]

  int64_t slots_row_stride;
  int num_buffers;
  int batch;
  int columns;  // 1 to 64
};

// Enqueues on `stream` of the current device; allocates nothing, never synchronises, safe to capture.
void kv_commit_cuda(const KvCommitParams& params, CUstream_st* stream);

void kv_commit_cpu(const KvCommitParams& params);

}  // namespace ddtree
