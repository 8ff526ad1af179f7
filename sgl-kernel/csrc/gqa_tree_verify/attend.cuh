// SPDX-License-Identifier: Apache-2.0
// One warp's part of a piece: S = Q K^T, mask, online softmax and O += P V over the tiles of its group.
//
// With an fp8 pool K and V become fp16 on their way from shared memory to the tensor cores, which is exact, and so do Q and P.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gqa_tree_verify/load.cuh"

namespace ddtree::gqa {

struct ScoreArgs {
  const __nv_bfloat16* q;
  int64_t q_row_stride, q_head_stride;
  const uint32_t* mask_words;  // null: the whole window is visible
  int words_per_row;
  float cap_scale;   // with a logit cap: scale / cap, and scores are tanh(q k * cap_scale) * scale_log2; 0 without
  float scale_log2;  // the scores' factor times log2(e)
};

// e4m3 is exact in fp16. Bytes 0, 1 or 2, 3 of x.
__device__ __forceinline__ uint32_t half2_of_e4m3(uint32_t x, int pair) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(x >> 16 * pair), __NV_E4M3);
  return static_cast<uint32_t>(raw.y) << 16 | raw.x;
}

// Two bf16 as two fp16; what does not fit becomes the largest number.
__device__ __forceinline__ uint32_t half2_of_bf16(uint32_t x) {
  return ptx::pack_f16_saturated(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

template <class T>
struct AttendWarp {
  static constexpr int kM = T::kMTiles;
  static constexpr int kDimSteps = T::kHeadDim / 16;
  static constexpr int kKeyTiles = T::kKeys / 8;  // n8 tiles of S
  // Stands for "no key yet". Finite, so that a hidden key (-inf) minus it is -inf and its p is 0, not NaN.
  static constexpr float kNoMax = -1e30f;
  // P is scaled by 2^kPBias, which cancels: fp16 is finer near the middle of its range than near its lower end.
  static constexpr float kPBias = T::kFp8 ? 7.f : 0.f;

  using Accumulator = float[kM][T::kColumnTiles][4];
  using Scores = float[kM][kKeyTiles][4];
  using QRegisters = uint32_t[kM][T::kQRegisterSteps > 0 ? T::kQRegisterSteps : 1][4];

  // State of this thread's rows (m16 tile, half); units of log2. Each lane sums its own keys until the end.
  struct Rows {
    float max[kM][2];
    float sum[kM][2];
  };

  const Work& work;
  const ScoreArgs& args;
  const Piece& piece;
  Smem<T>& smem;
  const int group, row_warp;

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  // Row of the block's tile; h: upper or lower half of the m16 tile.
  __device__ __forceinline__ int row(int m, int h) const { return (row_warp * kM + m) * 16 + h * 8 + lane() / 4; }
  __device__ __forceinline__ int row_of_request(int m, int h) const {
    return min(piece.tile % work.row_tiles * T::kRows + row(m, h), work.rows - 1);
  }

  // k_at, v_at: where this warp is in the ring, which holds K and V in turn; v_at counts only where keys run ahead.
  __device__ __forceinline__ void run(Cursor<T::kRing>& k_at, Cursor<T::kRing>& v_at, Accumulator& acc, Rows& rows) const {
    QRegisters q;
    load_q(q);
    if constexpr (T::kQSharedSteps > 0) {
      share_q();
      ptx::named_barrier(1, T::kAttendThreads);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
      for (int h = 0; h < 2; ++h) rows.max[m][h] = kNoMax, rows.sum[m][h] = 0.f;

    if constexpr (T::kScoresAhead)
      tiles_ahead(q, k_at, v_at, acc, rows);
    else
      tiles_in_turn(q, k_at, acc, rows);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rows.sum[m][h] += __shfl_xor_sync(~0u, rows.sum[m][h], 1);
        rows.sum[m][h] += __shfl_xor_sync(~0u, rows.sum[m][h], 2);
      }
  }

 private:
  // Of a piece: whether any of this warp's rows exists, and the group's first key. The last step's tiles of the later groups
  // may be empty; they pass the ring all the same.
  __device__ __forceinline__ bool active() const {
    return piece.tile % work.row_tiles * T::kRows + row_warp * kM * 16 < work.rows;
  }
  __device__ __forceinline__ int first_key() const {
    return work.begin(piece.batch) + piece.step * T::kStepKeys + group * T::kKeys;
  }

  // A turn of the ring at a time, so that the places of its halves are constants.
  __device__ __forceinline__ void tiles_in_turn(const QRegisters& q, Cursor<T::kRing>& at, Accumulator& acc, Rows& rows) const {
    const int prefix = work.prefix(piece.batch), last = prefix + work.num_nodes;
    int key = first_key();
    const int end = active() ? min(last, key + piece.count * T::kStepKeys) : 0;
    const int plain_from = work.window < 0 ? 0 : last - work.window, plain_to = args.cap_scale > 0.f ? -1 : prefix - T::kKeys;
    uint32_t phase = at.phase();
    for (int left = piece.count; left > 0; left -= T::kTurn, phase ^= 1) {
#pragma unroll
      for (int i = 0; i < T::kRing; i += 2, key += T::kStepKeys) {
        uint32_t p[kM][kKeyTiles / 2][4];
        ptx::mbarrier_wait(&smem.full[group][i], phase);
        if (key < end) {
          Scores s = {};
          multiply_keys(s, q, ring(i));
          hand_back(i);
          if (key < plain_from || key > plain_to) adjust(s, key, prefix, last);
          softmax_and_max(s, p, rows, acc);
        } else {
          hand_back(i);
        }
        ptx::mbarrier_wait(&smem.full[group][i + 1], phase);
        if (key < end) multiply_values(acc, p, ring(i + 1));
        hand_back(i + 1);
      }
    }
    at.set_phase(phase);
  }

  // The scores of the next tile are multiplied while the softmax of this one runs: alone, each leaves the warp waiting most of
  // the time, for the tensor cores or for its own arithmetic.
  __device__ __forceinline__ void tiles_ahead(const QRegisters& q, Cursor<T::kRing>& k_at, Cursor<T::kRing>& v_at,
                                              Accumulator& acc, Rows& rows) const {
    const int prefix = work.prefix(piece.batch), end = active() ? prefix + work.num_nodes : 0;
    int key = first_key();
    Scores s = {};
    wait(k_at);
    if (key < end) multiply_keys(s, q, ring(k_at.slot()));
    release(k_at);
    for (int left = piece.count; left > 0; --left, key += T::kStepKeys) {
      Scores next = {};
      uint32_t p[kM][kKeyTiles / 2][4];
      if (key < end) {
        adjust(s, key, prefix, end);
        follow_max(s, rows, acc, kMaxSlack);
      }
      if (left > 1) wait(k_at);
      if (left > 1 && key + T::kStepKeys < end) {
        multiply_keys(next, q, ring(k_at.slot()));
        softmax(s, p, rows);
      } else if (key < end) {
        softmax(s, p, rows);
      }
      if (left > 1) release(k_at);
      wait(v_at);
      if (key < end) multiply_values(acc, p, ring(v_at.slot()));
      release(v_at);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][n][e] = next[m][n][e];
    }
  }

  // From products to what the softmax is taken of, but for the scale.
  __device__ __forceinline__ void adjust(Scores& s, int key, int prefix, int end) const {
    if (args.cap_scale > 0.f) cap(s);
    if (key + T::kKeys > prefix || (work.window >= 0 && key < prefix + work.num_nodes - work.window)) mask(s, key, prefix, end);
  }

  __device__ __forceinline__ uint32_t ring(int at) const {
    return ptx::smem_addr(smem.tiles) + (group * T::kRing + at) * T::kHalfBytes;
  }

  __device__ __forceinline__ void wait(const Cursor<T::kRing>& at) const {
    ptx::mbarrier_wait(&smem.full[group][at.slot()], at.phase());
  }
  // Hands the half back, and on to the next of its kind.
  __device__ __forceinline__ void release(Cursor<T::kRing>& at) const {
    hand_back(at.slot());
    at.advance();
    at.advance();
  }
  __device__ __forceinline__ void hand_back(int slot) const {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(&smem.empty[group][slot]);
  }

  __device__ __forceinline__ const __nv_bfloat16* q_row(int head, int row) const {
    const int node = row / work.group, member = row - node * work.group;
    return args.q + (static_cast<int64_t>(piece.batch) * work.num_nodes + node) * args.q_row_stride +
           (head * work.group + member) * args.q_head_stride;
  }

  // The upper k16 steps of Q to shared memory, by all warps that attend. Rows past the end repeat the last one: a row of A
  // only meets its own row of S, and what comes of it is not stored.
  __device__ __forceinline__ void share_q() const {
    constexpr int kChunks = 2 * T::kQSharedSteps, kEach = T::kRows * kChunks / T::kAttendThreads;
    static_assert(kEach * T::kAttendThreads == T::kRows * kChunks);
    const int head = piece.tile / work.row_tiles, first_row = piece.tile % work.row_tiles * T::kRows;
    uint4 data[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * T::kAttendThreads + threadIdx.x, row = min(first_row + at / kChunks, work.rows - 1);
      data[i] = __ldg(reinterpret_cast<const uint4*>(q_row(head, row) + T::kQRegisterSteps * 16 + at % kChunks * 8));
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int index = i * T::kAttendThreads + threadIdx.x, row = index / kChunks, chunk = index % kChunks;
      unsigned char* const at = smem.tiles + (kTileBytes - T::kQBytes) + row * T::kQRowBytes;
      if constexpr (T::kFp8) {
        // Four successive dimensions are what a lane meets of K in one register, but A wants them two and two, 8 apart.
        const uint32_t words[4] = {half2_of_bf16(data[i].x), half2_of_bf16(data[i].y), half2_of_bf16(data[i].z),
                                   half2_of_bf16(data[i].w)};
        const unsigned quad = chunk % 2 * 2;  // of the k16 step: this chunk has the dimensions of two lanes of a quad
        *reinterpret_cast<uint2*>(at + chunk / 2 * 32 + quad * 4) = make_uint2(words[0], words[2]);
        *reinterpret_cast<uint2*>(at + chunk / 2 * 32 + 16 + quad * 4) = make_uint2(words[1], words[3]);
      } else {
        *reinterpret_cast<uint4*>(at + chunk * 16) = data[i];
      }
    }
  }

  __device__ __forceinline__ void load_q(QRegisters& q) const {
    const int head = piece.tile / work.row_tiles;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const __nv_bfloat16* from = q_row(head, row_of_request(m, h));
#pragma unroll
        for (int k = 0; k < T::kQRegisterSteps; ++k) {
          if constexpr (T::kFp8) {
            const uint2 x = __ldg(reinterpret_cast<const uint2*>(from + k * 16) + lane() % 4);
            q[m][k][h] = half2_of_bf16(x.x), q[m][k][h + 2] = half2_of_bf16(x.y);
          } else {
            const uint32_t* words = reinterpret_cast<const uint32_t*>(from + k * 16) + lane() % 4;
            q[m][k][h] = __ldg(words), q[m][k][h + 2] = __ldg(words + 4);
          }
        }
      }
    }
  }

  __device__ __forceinline__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (T::kFp8)
      ptx::mma_f16(d, a, b0, b1);
    else
      ptx::mma_bf16(d, a, b0, b1);
  }

  __device__ __forceinline__ void multiply_keys(Scores& s, const QRegisters& q,
                                                uint32_t half) const {
    constexpr int kSteps = T::kRowBytes / 32;    // of 32 bytes of a row: one k16 step, two with fp8
    constexpr int kPairs = T::kKeys / 16;        // of n8 tiles
    const unsigned key = lane() % 8 + lane() / 16 * 8;
    const uint32_t k_addr = half + key * T::kRowBytes + ((lane() / 8 % 2) ^ swizzle<T::kRowBytes>(key)) * 16;
    uint32_t q_addr[kM];
    if constexpr (T::kQSharedSteps > 0) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const unsigned r = (row_warp * kM + m) * 16 + lane() % 16;
        q_addr[m] = ptx::smem_addr(smem.tiles) + (kTileBytes - T::kQBytes) + r * T::kQRowBytes +
                    lane() / 16 * 16;
      }
    }
    uint32_t b[2][4], a[2][kM][4];
    auto load_b = [&](int i) { ptx::ldmatrix_x4(b[i % 2], (k_addr ^ i / kPairs * 32) + i % kPairs * (16 * T::kRowBytes)); };
    auto load_a = [&](int k) {
      if constexpr (T::kQSharedSteps > 0) {
        if (k < T::kQRegisterSteps || k >= kDimSteps) return;
#pragma unroll
        for (int m = 0; m < kM; ++m) ptx::ldmatrix_x4(a[k % 2][m], q_addr[m] + (k - T::kQRegisterSteps) * 32);
      }
    };
    auto q_of = [&](int k, int m) -> const uint32_t(&)[4] {
      if (k < T::kQRegisterSteps) return q[m][T::kQRegisterSteps > 0 ? k : 0];
      return a[k % 2][m];
    };
    load_b(0);
    load_a(0);
    if constexpr (T::kFp8) load_a(1);
#pragma unroll
    for (int i = 0; i < kSteps * kPairs; ++i) {
      const int n = i % kPairs * 2, j = i / kPairs;
      if (i + 1 < kSteps * kPairs) load_b(i + 1);
      if constexpr (!T::kFp8) {
        if (i % kPairs == 0) load_a(j + 1);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(s[m][n], q_of(j, m), b[i % 2][0], b[i % 2][1]);
          mma(s[m][n + 1], q_of(j, m), b[i % 2][2], b[i % 2][3]);
        }
      } else {
        // Register r of b holds the n8 tile r / 2 of the k16 step r % 2.
#pragma unroll
        for (int k = 2 * j; k < 2 * j + 2; ++k) {
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            const uint32_t low = half2_of_e4m3(b[i % 2][t * 2 + k % 2], 0), high = half2_of_e4m3(b[i % 2][t * 2 + k % 2], 1);
#pragma unroll
            for (int m = 0; m < kM; ++m) mma(s[m][n + t], q_of(k, m), low, high);
          }
          if (i % kPairs == kPairs - 1) load_a(k + 2);  // this step's last use
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_values(Accumulator& acc, const uint32_t (&p)[kM][kKeyTiles / 2][4],
                                                  uint32_t half) const {
    constexpr int kSteps = T::kRowBytes / 32;
    const unsigned key = lane() % 16;
    const uint32_t v_addr = half + key * T::kRowBytes + ((lane() / 16) ^ swizzle<T::kRowBytes>(key)) * 16;
    uint32_t b[2][4];
    auto load_b = [&](int i) {
      ptx::ldmatrix_x4_trans(b[i % 2], (v_addr ^ i % kSteps * 32) + i / kSteps * (16 * T::kRowBytes));
    };
    load_b(0);
#pragma unroll
    for (int i = 0; i < kKeyTiles / 2 * kSteps; ++i) {
      const int k = i / kSteps, c = i % kSteps;
      if (i + 1 < kKeyTiles / 2 * kSteps) load_b(i + 1);
      const uint32_t(&v)[4] = b[i % 2];
      if constexpr (!T::kFp8) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma(acc[m][2 * c], p[m][k], v[0], v[1]);
          mma(acc[m][2 * c + 1], p[m][k], v[2], v[3]);
        }
      } else {
        // A register holds two columns of two keys. The n8 tile 2i of a 16-column block gets its even columns, 2i + 1 the odd.
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const uint32_t upper = __byte_perm(v[2 * t], 0, 0x3120), lower = __byte_perm(v[2 * t + 1], 0, 0x3120);
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const uint32_t b0 = half2_of_e4m3(upper, odd), b1 = half2_of_e4m3(lower, odd);
#pragma unroll
            for (int m = 0; m < kM; ++m) mma(acc[m][4 * c + 2 * t + odd], p[m][k], b0, b1);
          }
        }
      }
    }
  }

  // tanh by exp: tanh.approx is good to 2^-11 only, which a cap of 50 turns into an error of 0.02 of a score.
  __device__ __forceinline__ void cap(Scores& s) const {
    const float factor = args.cap_scale * (2.f * 1.4426950408889634f);
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[m][n][e] = 1.f - __fdividef(2.f, ptx::exp2_approx(fminf(s[m][n][e] * factor, 80.f)) + 1.f);
  }

  // The node's mask, or null.
  __device__ __forceinline__ const uint32_t* words_of(int node) const {
    if (args.mask_words == nullptr) return nullptr;
    return args.mask_words + (static_cast<int64_t>(piece.batch) * work.num_nodes + node) * args.words_per_row;
  }

  // Distance from the root: with a mask how many nodes are seen besides itself, without one the index.
  __device__ __forceinline__ int depth(int node) const {
    const uint32_t* words = words_of(node);
    if (words == nullptr) return node;
    int seen = 0;
    for (int i = 0; i < args.words_per_row; ++i) seen += __popc(__ldg(words + i));
    return max(0, seen - 1);
  }

  // Which of this lane's keys of a tile the node of row(m, h) sees, a bit each.
  __device__ __forceinline__ uint32_t visible_keys(int m, int h, int first_key, int prefix, int end) const {
    const int node = row_of_request(m, h) / work.group;
    const uint32_t* words = words_of(node);
    const int reach = work.window < 0 ? 0 : prefix + depth(node) - work.window;  // the first position it sees
    uint32_t visible = 0;
#pragma unroll 1
    for (int i = 0; i < kKeyTiles * 2; ++i) {
      const int key = first_key + i / 2 * 8 + lane() % 4 * 2 + i % 2, seen = key - prefix;
      bool sees = key < end && (seen >= 0 || key >= reach);
      if (sees && seen >= 0) {
        if (words != nullptr) sees = __ldg(words + seen / 32) >> (seen % 32) & 1;
        if (work.window >= 0) sees &= prefix + depth(seen) >= reach;
      }
      visible |= static_cast<uint32_t>(sees) << i;
    }
    return visible;
  }

  // Hides keys that a node may not see, and keys past the end.
  __device__ __forceinline__ void mask(Scores& s, int first_key, int prefix, int end) const {
    uint32_t visible[kM * 2];
#pragma unroll 1
    for (int i = 0; i < kM * 2; ++i) {  // a loop, to keep the code of this rare path short
      const uint32_t one = visible_keys(i / 2, i % 2, first_key, prefix, end);
#pragma unroll
      for (int j = 0; j < kM * 2; ++j)
        if (j == i) visible[j] = one;
    }
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kKeyTiles * 2; ++i)
          if (!(visible[m * 2 + h] >> i & 1)) s[m][i / 2][h * 2 + i % 2] = -INFINITY;
  }

  // Lets the maxima follow the scores where they are left behind by more than `slack`.
  __device__ __forceinline__ void follow_max(const Scores& s, Rows& rows, Accumulator& acc, float slack) const {
    float top[kM][2];
    bool left_behind = false;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[m][h] = fmaxf(s[m][0][h * 2], s[m][0][h * 2 + 1]);
#pragma unroll
        for (int n = 1; n < kKeyTiles; ++n) top[m][h] = fmaxf(top[m][h], fmaxf(s[m][n][h * 2], s[m][n][h * 2 + 1]));
        top[m][h] *= args.scale_log2;
        left_behind |= top[m][h] > rows.max[m][h] + slack;
      }
    }
    if (__any_sync(~0u, left_behind)) [[unlikely]]
      raise_max(top, rows, acc, slack);
  }

  // Numerators of the softmax as A fragments. No branch in it, so that the compiler can place it between products.
  __device__ __forceinline__ void softmax(const Scores& s, uint32_t (&p)[kM][kKeyTiles / 2][4], Rows& rows) const {
    float sum[kM][2];
    numerators(s, p, rows, sum);
    add_up(rows, sum);
  }

  // The same without looking for the maxima first: sums that are not small tell when they are left behind.
  __device__ __forceinline__ void softmax_and_max(const Scores& s, uint32_t (&p)[kM][kKeyTiles / 2][4], Rows& rows,
                                                  Accumulator& acc) const {
    constexpr float kLargest = 1 << static_cast<int>(kMaxSlack + kPBias);
    // Of at most 16 keys with that sum one is 2^4 or more above the maximum, so that it is raised and no tile repeats this.
    constexpr float kSlack = 3.f;
    static_assert(kKeyTiles * 2 <= 16);
    float sum[kM][2];
    numerators(s, p, rows, sum);
    float largest = fmaxf(sum[0][0], sum[0][1]);
    if constexpr (kM == 2) largest = fmaxf(largest, fmaxf(sum[1][0], sum[1][1]));
    if (__any_sync(~0u, largest > kLargest)) [[unlikely]] {
      follow_max(s, rows, acc, kSlack);
      numerators(s, p, rows, sum);
    }
    add_up(rows, sum);
  }

  __device__ __forceinline__ void numerators(const Scores& s, uint32_t (&p)[kM][kKeyTiles / 2][4], const Rows& rows,
                                             float (&sum)[kM][2]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float shift = kPBias - rows.max[m][h];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const float low = ptx::exp2_approx(fmaf(s[m][n][h * 2], args.scale_log2, shift));
          const float high = ptx::exp2_approx(fmaf(s[m][n][h * 2 + 1], args.scale_log2, shift));
          // A C fragment of S is an A fragment of P: no shuffle, no ldmatrix.
          uint32_t& packed = p[m][n / 2][n % 2 * 2 + h];
          packed = T::kFp8 ? ptx::pack_f16_saturated(low, high) : ptx::pack_bf16(low, high);
          sum[m][h] = n == 0 ? low + high : sum[m][h] + (low + high);
        }
      }
    }
  }

  __device__ __forceinline__ static void add_up(Rows& rows, const float (&sum)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) rows.sum[m][h] += sum[m][h];
  }

  // Rare after the first tiles.
  __device__ __forceinline__ void raise_max(float (&top)[kM][2], Rows& rows, Accumulator& acc, float slack) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& t = top[m][h];
        t = fmaxf(t, __shfl_xor_sync(~0u, t, 1));
        t = fmaxf(t, __shfl_xor_sync(~0u, t, 2));
        float alpha = 1.f;
        if (t > rows.max[m][h] + slack) {
          alpha = ptx::exp2_approx(rows.max[m][h] - t);
          rows.max[m][h] = t;
        }
        rows.sum[m][h] *= alpha;
#pragma unroll
        for (int n = 0; n < T::kColumnTiles; ++n) acc[m][n][h * 2] *= alpha, acc[m][n][h * 2 + 1] *= alpha;
      }
    }
  }
};

}  // namespace ddtree::gqa
