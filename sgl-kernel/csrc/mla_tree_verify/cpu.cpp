// SPDX-License-Identifier: Apache-2.0
// CPU twin of mla_tree_verify: the same contract, an online softmax over blocks of keys in fp32.
// Rows (node x head) of one request share every KV row, so a block is converted to fp32 once for kRowBlock of them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/cpu_types.h"
#include "common/parallel.h"
#include "mla_tree_verify/launch.h"

namespace ddtree {
namespace {

constexpr int kRowBlock = 16;
constexpr int kKeyBlock = 32;
constexpr int kKeyGroup = 4;  // keys that share a load of q
constexpr int kLanes = 16;    // floats of a vector
constexpr int kStrip = 4;     // vectors of the output kept in registers
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Sixteen floats in whatever registers the clone has; the second name reads from any float address.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef Lanes UnalignedLanes __attribute__((aligned(sizeof(float))));

// scores[k] = q . keys[k] for `count` keys, rounded up to kKeyGroup: the rows behind the last key hold old numbers.
DDTREE_VECTOR_CLONES void dot_rows(const float* q, const float* keys, int count, float* scores) {
  for (int k = 0; k < count; k += kKeyGroup) {
    Lanes sums[kKeyGroup] = {};
    for (int d = 0; d < kMlaHeadDim; d += kLanes) {
      const Lanes query = *reinterpret_cast<const UnalignedLanes*>(q + d);
#pragma GCC unroll 4
      for (int g = 0; g < kKeyGroup; ++g)
        sums[g] += query * *reinterpret_cast<const UnalignedLanes*>(keys + (k + g) * kMlaHeadDim + d);
    }
    for (int g = 0; g < kKeyGroup; ++g) {
      float sum = 0.f;
      for (int i = 0; i < kLanes; ++i) sum += sums[g][i];
      scores[k + g] = sum;
    }
  }
}

// acc = acc * factor + sum over n of weights[n] * keys[rows[n]], a strip of columns at a time so that it stays in registers.
DDTREE_VECTOR_CLONES void add_weighted(float* acc, float factor, const float* keys, const int* rows, const float* weights,
                                       int count) {
  for (int d = 0; d < kMlaLatentDim; d += kStrip * kLanes) {
    Lanes strip[kStrip];
#pragma GCC unroll 4
    for (int i = 0; i < kStrip; ++i) strip[i] = factor * *reinterpret_cast<UnalignedLanes*>(acc + d + i * kLanes);
    for (int n = 0; n < count; ++n) {
      const float* value = keys + rows[n] * kMlaHeadDim + d;
#pragma GCC unroll 4
      for (int i = 0; i < kStrip; ++i)
        strip[i] += weights[n] * *reinterpret_cast<const UnalignedLanes*>(value + i * kLanes);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kStrip; ++i) *reinterpret_cast<UnalignedLanes*>(acc + d + i * kLanes) = strip[i];
  }
}

template <typename T>
void load_row(float* dst, const T* src, int count) {
  for (int d = 0; d < count; ++d) dst[d] = to_float(src[d]);
}

// Scratch of one worker; the state of at most kRowBlock rows.
struct RowBlock {
  std::vector<float> q = std::vector<float>(kRowBlock * kMlaHeadDim);
  std::vector<float> acc = std::vector<float>(kRowBlock * kMlaLatentDim);
  std::vector<float> keys = std::vector<float>(kKeyBlock * kMlaHeadDim);
  float row_max[kRowBlock];
  float row_sum[kRowBlock];
};

bool sees(const uint32_t* mask_row, int64_t node) { return (mask_row[node >> 5] >> (node & 31)) & 1u; }

template <typename T>
void attend_block(const MlaTreeVerifyParams& p, int request, int first_row, int row_count, RowBlock& s) {
  const int64_t prefix = p.prefix_lens[request];
  const int64_t key_count = prefix < 0 ? 0 : prefix + p.num_nodes;
  const int32_t* pages = p.page_table + request * p.page_table_row_stride;
  const int64_t base_row = static_cast<int64_t>(request) * p.num_nodes;

  for (int r = 0; r < row_count; ++r) {
    const int64_t row = base_row + (first_row + r) / p.num_heads;
    const int64_t head = (first_row + r) % p.num_heads;
    float* q = s.q.data() + r * kMlaHeadDim;
    load_row(q, static_cast<const T*>(p.q_nope) + row * p.q_nope_row_stride + head * p.q_nope_head_stride,
             kMlaLatentDim);
    load_row(q + kMlaLatentDim,
             static_cast<const T*>(p.q_rope) + row * p.q_rope_row_stride + head * p.q_rope_head_stride, kMlaRopeDim);
    s.row_max[r] = kNegInf;
    s.row_sum[r] = 0.f;
  }
  std::fill_n(s.acc.begin(), row_count * kMlaLatentDim, 0.f);

  for (int64_t first_key = 0; first_key < key_count; first_key += kKeyBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kKeyBlock, key_count - first_key));
    for (int k = 0; k < count; ++k) {
      const int64_t token = first_key + k;
      const int64_t slot = static_cast<int64_t>(pages[token / p.page_size]) * p.page_size + token % p.page_size;
      load_row(s.keys.data() + k * kMlaHeadDim, static_cast<const T*>(p.kv_pool) + slot * p.kv_row_stride, kMlaHeadDim);
    }
    for (int r = 0; r < row_count; ++r) {
      const int node = (first_row + r) / p.num_heads;
      const uint32_t* mask_row = p.mask_words + (base_row + node) * p.words_per_row;
      float scores[kKeyBlock];
      dot_rows(s.q.data() + r * kMlaHeadDim, s.keys.data(), count, scores);
      float block_max = kNegInf;
      for (int k = 0; k < count; ++k) {
        const int64_t key_node = first_key + k - prefix;
        scores[k] = key_node < 0 || sees(mask_row, key_node) ? scores[k] * p.sm_scale : kNegInf;
        block_max = std::max(block_max, scores[k]);
      }
      if (block_max == kNegInf) continue;
      const float new_max = std::max(s.row_max[r], block_max);
      const float factor = std::exp(s.row_max[r] - new_max);
      float weights[kKeyBlock], sum = 0.f;
      int rows[kKeyBlock], seen = 0;
      for (int k = 0; k < count; ++k) {
        // A hidden key is left out, not weighted by zero: its row may hold anything.
        if (scores[k] == kNegInf) continue;
        rows[seen] = k;
        weights[seen] = std::exp(scores[k] - new_max);
        sum += weights[seen++];
      }
      s.row_max[r] = new_max;
      s.row_sum[r] = s.row_sum[r] * factor + sum;
      add_weighted(s.acc.data() + r * kMlaLatentDim, factor, s.keys.data(), rows, weights, seen);
    }
  }

  for (int r = 0; r < row_count; ++r) {
    const int64_t row = base_row + (first_row + r) / p.num_heads;
    const int64_t head = (first_row + r) % p.num_heads;
    const bool empty = s.row_sum[r] == 0.f;
    const float inverse = empty ? 0.f : 1.f / s.row_sum[r];
    T* out = static_cast<T*>(p.out) + row * p.out_row_stride + head * p.out_head_stride;
    for (int d = 0; d < kMlaLatentDim; ++d) store(out + d, s.acc[r * kMlaLatentDim + d] * inverse);
    if (p.lse != nullptr) {
      p.lse[row * p.num_heads + head] = empty ? kNegInf : s.row_max[r] + std::log(s.row_sum[r]);
    }
  }
}

template <typename T>
void run(const MlaTreeVerifyParams& p) {
  const int rows = p.num_nodes * p.num_heads;
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  parallel_for(static_cast<int64_t>(p.batch) * blocks, [&](int64_t item) {
    thread_local RowBlock scratch;
    const int first_row = static_cast<int>(item % blocks) * kRowBlock;
    attend_block<T>(p, static_cast<int>(item / blocks), first_row, std::min(kRowBlock, rows - first_row), scratch);
  });
}

}  // namespace

void mla_tree_verify_cpu(const MlaTreeVerifyParams& params, bool is_bf16) {
  is_bf16 ? run<BFloat16>(params) : run<float>(params);
}

}  // namespace ddtree
