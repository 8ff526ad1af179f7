// SPDX-License-Identifier: Apache-2.0
// What the binding hands to the CUDA launcher and to the CPU twin. Plain C++: no tensor library, no CUDA header.
// The contract is stated once, in python/sgl_kernel_ddtree/tree_build.py.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace ddtree {

inline constexpr int kTreeMaxNodes = 257;
inline constexpr int kTreeMaxDepth = 63;
inline constexpr int kTreeMaxCandidates = 64;

// Everything is contiguous.
struct TreeBuildParams {
  const int64_t* candidate_ids;     // [batch, max_depth, candidates]
  const float* candidate_logprobs;  // [batch, max_depth, candidates], descending in the last dimension
  const int64_t* root_tokens;       // [batch]
  const int64_t* prefix_lens;       // [batch]
  int64_t* tokens;                  // [batch, num_nodes]
  int32_t* parents;                 // [batch, num_nodes]
  int32_t* depths;                  // [batch, num_nodes]
  int64_t* positions;               // [batch, num_nodes]
  uint32_t* mask_words;             // [batch, num_nodes, words_per_row]
  int32_t* first_child;             // [batch, num_nodes]
  int32_t* next_sibling;            // [batch, num_nodes]
  int32_t* used_nodes;              // [batch]

  int batch;
  int num_nodes;      // 1 to 257
  int max_depth;      // 1 to 63
  int candidates;     // 1 to 64
  int words_per_row;  // ceil(num_nodes / 32)
  bool spine;
};

// Enqueues on `stream` of the current device; allocates nothing, never synchronises, safe to capture.
void tree_build_cuda(const TreeBuildParams& params, CUstream_st* stream);

void tree_build_cpu(const TreeBuildParams& params);

}  // namespace ddtree
