// SPDX-License-Identifier: Apache-2.0
// What the binding hands to the CUDA launcher and to the CPU twin. The contract is in
// python/sgl_kernel_ddtree/tree_accept.py.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace ddtree {

inline constexpr int kAcceptMaxNodes = 257;
inline constexpr int kAcceptMaxColumns = 64;

// Everything is contiguous.
struct TreeAcceptParams {
  const int64_t* tokens;         // [batch, num_nodes]
  const int32_t* parents;        // [batch, num_nodes]
  const int64_t* target_tokens;  // [batch, num_nodes]
  const int64_t* prefix_lens;    // [batch]
  int32_t* path_nodes;           // [batch, columns]
  int32_t* commit_lens;          // [batch]
  int64_t* bonus;                // [batch]
  int64_t* path_tokens;          // [batch, columns]
  int64_t* new_seq_lens;         // [batch]

  int batch;
  int num_nodes;  // 1 to 257
  int columns;    // 1 to 64
};

// Enqueues on `stream` of the current device; allocates nothing, never synchronises, safe to capture.
void tree_accept_cuda(const TreeAcceptParams& params, CUstream_st* stream);

void tree_accept_cpu(const TreeAcceptParams& params);

}  // namespace ddtree
