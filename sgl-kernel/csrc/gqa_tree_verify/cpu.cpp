// SPDX-License-Identifier: Apache-2.0
// CPU twin of gqa_tree_verify: the same contract, an online softmax over blocks of keys in fp32.
// Rows (node x query head) of one KV head share its keys, so a block is converted to fp32 once for kRowBlock of them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "common/cpu_types.h"
#include "common/parallel.h"
#include "gqa_tree_verify/launch.h"

namespace ddtree {
namespace {

constexpr int kRowBlock = 32;
constexpr int kKeyBlock = 32;
constexpr int kKeyGroup = 4;  // keys that share a load of q
constexpr int kLanes = 16;    // floats of a vector
constexpr int kStrip = 4;     // vectors of the output kept in registers
constexpr int kMaxDim = 256;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// Sixteen floats in whatever registers the clone has; the second name reads from any float address.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef Lanes UnalignedLanes __attribute__((aligned(sizeof(float))));

// One byte of an e4m3 pool: 4 bits of exponent (bias 7), 3 of mantissa, no infinity.
struct E4M3 {
  uint8_t bits;
};

const std::array<float, 256> kE4M3Values = [] {
  std::array<float, 256> values{};
  for (int i = 0; i < 256; ++i) {
    const int exponent = i >> 3 & 15, mantissa = i & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(1.f + static_cast<float>(mantissa) / 8, exponent - 7);
    if ((i & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
    values[i] = i & 128 ? -value : value;
  }
  return values;
}();

float to_float(E4M3 x) { return kE4M3Values[x.bits]; }
using ddtree::to_float;

// scores[k] = q . keys[k] for `count` keys, rounded up to kKeyGroup: the rows behind the last key hold old numbers.
DDTREE_VECTOR_CLONES void dot_rows(const float* q, const float* keys, int dim, int count, float* scores) {
  for (int k = 0; k < count; k += kKeyGroup) {
    Lanes sums[kKeyGroup] = {};
    for (int d = 0; d < dim; d += kLanes) {
      const Lanes query = *reinterpret_cast<const UnalignedLanes*>(q + d);
#pragma GCC unroll 4
      for (int g = 0; g < kKeyGroup; ++g) sums[g] += query * *reinterpret_cast<const UnalignedLanes*>(keys + (k + g) * dim + d);
    }
    for (int g = 0; g < kKeyGroup; ++g) {
      float sum = 0.f;
      for (int i = 0; i < kLanes; ++i) sum += sums[g][i];
      scores[k + g] = sum;
    }
  }
}

// acc = acc * factor + sum over n of weights[n] * values[rows[n]], a strip of columns at a time so that it stays in registers.
DDTREE_VECTOR_CLONES void add_weighted(float* acc, float factor, const float* values, int dim, const int* rows,
                                       const float* weights, int count) {
  for (int d = 0; d < dim; d += kStrip * kLanes) {
    Lanes strip[kStrip];
#pragma GCC unroll 4
    for (int i = 0; i < kStrip; ++i) strip[i] = factor * *reinterpret_cast<UnalignedLanes*>(acc + d + i * kLanes);
    for (int n = 0; n < count; ++n) {
      const float* value = values + rows[n] * dim + d;
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
  std::vector<float> q = std::vector<float>(kRowBlock * kMaxDim);
  std::vector<float> acc = std::vector<float>(kRowBlock * kMaxDim);
  std::vector<float> keys = std::vector<float>(kKeyBlock * kMaxDim);
  std::vector<float> values = std::vector<float>(kKeyBlock * kMaxDim);
  float row_max[kRowBlock];
  float row_sum[kRowBlock];
};

// Rows [first_row, first_row + row_count) of one KV head of one request; row = node * group + query head of the group.
template <typename T, typename Kv>
struct Attend {
  const GqaTreeVerifyParams& p;
  const int request, kv_head, first_row, row_count;
  RowBlock& s;
  const int dim = p.head_dim, group = p.num_heads / p.num_kv_heads;
  const int64_t prefix = p.prefix_lens[request];
  const int64_t base_row = static_cast<int64_t>(request) * p.num_nodes;

  int node(int r) const { return (first_row + r) / group; }
  int64_t head(int r) const { return kv_head * group + (first_row + r) % group; }
  // Distance from the root: with a mask how many nodes are seen besides itself, without one the index.
  int64_t depth(int64_t node) const {
    if (p.mask_words == nullptr) return node;
    const uint32_t* words = p.mask_words + (base_row + node) * p.words_per_row;
    int64_t seen = 0;
    for (int i = 0; i < p.words_per_row; ++i) seen += std::popcount(words[i]);
    return std::max<int64_t>(0, seen - 1);
  }

  bool sees(int r, int64_t key) const {
    const int64_t seen = key - prefix;
    if (seen >= 0 && p.mask_words != nullptr) {
      const uint32_t* words = p.mask_words + (base_row + node(r)) * p.words_per_row;
      if (!(words[seen >> 5] >> (seen & 31) & 1u)) return false;
    }
    if (p.window < 0) return true;
    return (seen < 0 ? key : prefix + depth(seen)) >= prefix + depth(node(r)) - p.window;
  }

  void load_keys(int64_t first_key, int count) const {
    const int32_t* pages = p.page_table + request * p.page_table_row_stride;
    for (int k = 0; k < count; ++k) {
      const int64_t token = first_key + k;
      const int64_t slot = static_cast<int64_t>(pages[token / p.page_size]) * p.page_size + token % p.page_size;
      load_row(s.keys.data() + k * dim, static_cast<const Kv*>(p.k_pool) + slot * p.k_row_stride + kv_head * p.k_head_stride,
               dim);
      load_row(s.values.data() + k * dim,
               static_cast<const Kv*>(p.v_pool) + slot * p.v_row_stride + kv_head * p.v_head_stride, dim);
    }
  }

  void add_keys(int r, int64_t first_key, int count) const {
    float scores[kKeyBlock], weights[kKeyBlock], block_max = kNegInf;
    int rows[kKeyBlock], seen = 0;
    dot_rows(s.q.data() + r * dim, s.keys.data(), dim, count, scores);
    for (int k = 0; k < count; ++k) {
      // A hidden key is left out, not weighted by zero: its row may hold anything.
      if (!sees(r, first_key + k)) continue;
      float score = scores[k] * p.sm_scale * p.k_scale;
      if (p.logit_cap > 0.f) score = p.logit_cap * std::tanh(score / p.logit_cap);
      rows[seen] = k;
      weights[seen++] = score;
      block_max = std::max(block_max, score);
    }
    if (seen == 0) return;
    const float new_max = std::max(s.row_max[r], block_max), factor = std::exp(s.row_max[r] - new_max);
    float sum = 0.f;
    for (int n = 0; n < seen; ++n) sum += weights[n] = std::exp(weights[n] - new_max);
    s.row_max[r] = new_max;
    s.row_sum[r] = s.row_sum[r] * factor + sum;
    add_weighted(s.acc.data() + r * dim, factor, s.values.data(), dim, rows, weights, seen);
  }

  void run() const {
    for (int r = 0; r < row_count; ++r) {
      load_row(s.q.data() + r * dim,
               static_cast<const T*>(p.q) + (base_row + node(r)) * p.q_row_stride + head(r) * p.q_head_stride, dim);
      s.row_max[r] = kNegInf;
      s.row_sum[r] = 0.f;
    }
    std::fill_n(s.acc.begin(), row_count * dim, 0.f);
    const int64_t end = prefix < 0 ? 0 : prefix + p.num_nodes;
    // The root, at the depth 0, reaches back furthest.
    int64_t first_key = p.window < 0 || prefix < 0 ? 0 : std::max<int64_t>(0, prefix - p.window);
    for (; first_key < end; first_key += kKeyBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kKeyBlock, end - first_key));
      load_keys(first_key, count);
      for (int r = 0; r < row_count; ++r) add_keys(r, first_key, count);
    }
    for (int r = 0; r < row_count; ++r) {
      const int64_t row = base_row + node(r);
      const bool empty = s.row_sum[r] == 0.f;
      const float factor = empty ? 0.f : p.v_scale / s.row_sum[r];
      T* out = static_cast<T*>(p.out) + row * p.out_row_stride + head(r) * p.out_head_stride;
      for (int d = 0; d < dim; ++d) store(out + d, s.acc[r * dim + d] * factor);
      if (p.lse != nullptr)
        p.lse[row * p.num_heads + head(r)] = empty ? kNegInf : s.row_max[r] + std::log(s.row_sum[r]);
    }
  }
};

template <typename T, typename Kv>
void run(const GqaTreeVerifyParams& p) {
  const int rows = p.num_nodes * (p.num_heads / p.num_kv_heads);
  const int blocks = (rows + kRowBlock - 1) / kRowBlock;
  parallel_for(static_cast<int64_t>(p.batch) * p.num_kv_heads * blocks, [&](int64_t item) {
    thread_local RowBlock scratch;
    const int first_row = static_cast<int>(item % blocks) * kRowBlock;
    const int kv_head = static_cast<int>(item / blocks % p.num_kv_heads);
    const int request = static_cast<int>(item / blocks / p.num_kv_heads);
    Attend<T, Kv>{p, request, kv_head, first_row, std::min(kRowBlock, rows - first_row), scratch}.run();
  });
}

}  // namespace

void gqa_tree_verify_cpu(const GqaTreeVerifyParams& params, bool is_bf16) {
  if (params.fp8)
    is_bf16 ? run<BFloat16, E4M3>(params) : run<float, E4M3>(params);
  else
    is_bf16 ? run<BFloat16, BFloat16>(params) : run<float, float>(params);
}

}  // namespace ddtree
