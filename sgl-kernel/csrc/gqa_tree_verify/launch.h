// SPDX-License-Identifier: Apache-2.0
// What the binding hands to the CUDA launcher and to the CPU twin. Plain C++: no tensor library, no CUDA header.
// The contract (shapes, units, who owns what) is stated once, in python/sgl_kernel_ddtree/gqa_tree_verify.py.
#pragma once

#include <cstdint>

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace ddtree {

inline constexpr int kGqaMaxNodes = 257;
inline constexpr int kGqaMaxHeads = 256;      // query heads of a rank
inline constexpr int kGqaMaxGroup = 16;       // query heads of one KV head
inline constexpr int kGqaMaxPageSize = 64;
inline constexpr bool gqa_has_head_dim(int64_t dim) { return dim == 64 || dim == 128 || dim == 256; }

// All strides count elements. The last dimension of q, k, v and out has stride 1.
// Bases and strides of q, k, v and out are multiples of 16 bytes.
struct GqaTreeVerifyParams {
  void* out;                   // [batch * num_nodes, num_heads, head_dim]
  float* lse;                  // [batch * num_nodes, num_heads] contiguous, natural log; may be null
  const void* q;               // [batch * num_nodes, num_heads, head_dim]
  const void* k_pool;          // [num_slots, num_kv_heads, head_dim]
  const void* v_pool;          // the same
  const int32_t* page_table;   // [batch, max_pages]
  const int32_t* prefix_lens;  // [batch]; negative: padded request
  const uint32_t* mask_words;  // [batch, num_nodes, words_per_row] contiguous; null: every node sees the whole window
  void* workspace;             // 16-byte aligned; may be null when workspace_bytes is 0
  int64_t workspace_bytes;

  int64_t out_row_stride, out_head_stride;
  int64_t q_row_stride, q_head_stride;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
  int64_t page_table_row_stride;

  int batch;         // may be 0
  int num_nodes;     // 1 to 257
  int num_heads;     // a multiple of num_kv_heads, at most 16 times as many
  int num_kv_heads;
  int head_dim;      // 64, 128 or 256
  int page_size;     // power of two, 1 to 64
  int words_per_row; // ceil(num_nodes / 32)
  int window;        // how far back a query sees in positions, itself not counted; negative: no limit. A node's position is
                     // its depth: how many nodes it sees besides itself, or its index without a mask
  float sm_scale;    // multiplies q . k before the softmax; positive
  float logit_cap;   // scores become cap * tanh(score / cap); 0: none
  float k_scale;     // of an fp8 pool: the key is this times what the pool holds; 1 otherwise
  float v_scale;
  bool fp8;          // k_pool and v_pool hold e4m3
};

// Bytes that `gqa_tree_verify_cuda` needs for any call of at most this size on a card with `num_sms` multiprocessors.
int64_t gqa_tree_verify_cuda_workspace_bytes(int max_num_nodes, int num_heads, int num_kv_heads, int head_dim, int num_sms);

// bf16 q and out. Enqueues on `stream` of the current device; allocates nothing, never synchronises, safe to capture.
void gqa_tree_verify_cuda(const GqaTreeVerifyParams& params, CUstream_st* stream);

// bf16 or fp32 storage of out, q and (without fp8) the pools; fp32 arithmetic. Uses no workspace.
void gqa_tree_verify_cpu(const GqaTreeVerifyParams& params, bool is_bf16);

}  // namespace ddtree
