// SPDX-License-Identifier: Apache-2.0
// What the binding hands to the CUDA launcher and to the CPU twin. Plain C++: no tensor library, no CUDA header.
// The contract (shapes, units, who owns what) is stated once, in python/sgl_kernel_ddtree/mla_tree_verify.py.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace ddtree {

inline constexpr int kMlaLatentDim = 512;  // first columns of a KV row; also the value
inline constexpr int kMlaRopeDim = 64;
inline constexpr int kMlaHeadDim = kMlaLatentDim + kMlaRopeDim;
inline constexpr int kMlaMaxNodes = 257;
inline constexpr int kMlaMaxHeads = 128;
inline constexpr int kMlaMaxPageSize = 64;

// All strides count elements. The last dimension of q, kv and out has stride 1.
// Bases and row strides of q, kv and out are multiples of 16 bytes.
struct MlaTreeVerifyParams {
  void* out;                     // [batch * num_nodes, num_heads, 512]
  float* lse;                    // [batch * num_nodes, num_heads] contiguous, natural log; may be null
  const void* q_nope;            // [batch * num_nodes, num_heads, 512]
  const void* q_rope;            // [batch * num_nodes, num_heads, 64]
  const void* kv_pool;           // [num_slots, 576]
  const int32_t* page_table;     // [batch, max_pages]
  const int32_t* prefix_lens;    // [batch]; negative: padded request
  const uint32_t* mask_words;    // [batch, num_nodes, words_per_row] contiguous
  void* workspace;               // 16-byte aligned; may be null when workspace_bytes is 0
  int64_t workspace_bytes;

  int64_t out_row_stride, out_head_stride;
  int64_t q_nope_row_stride, q_nope_head_stride;
  int64_t q_rope_row_stride, q_rope_head_stride;
  int64_t kv_row_stride;
  int64_t page_table_row_stride;
  int64_t num_slots;

  int batch;          // may be 0
  int num_nodes;      // 1 to 257
  int num_heads;      // 1 to 128
  int page_size;      // power of two, 1 to 64
  int max_pages;
  int words_per_row;  // ceil(num_nodes / 32)
  float sm_scale;     // multiplies q . k before the softmax
};

// Bytes that `mla_tree_verify_cuda` needs for any call of at most this size on a card with `num_sms` multiprocessors.
int64_t mla_tree_verify_cuda_workspace_bytes(int max_batch, int max_num_nodes, int num_heads, int num_sms);

// bf16 only. Enqueues on `stream` of the current device; allocates nothing, never synchronises, safe to capture.
void mla_tree_verify_cuda(const MlaTreeVerifyParams& params, CUstream_st* stream);

// bf16 or fp32 storage (out, q_nope, q_rope and kv_pool share it); fp32 arithmetic. Uses no workspace.
void mla_tree_verify_cpu(const MlaTreeVerifyParams& params, bool is_bf16);

}  // namespace ddtree
