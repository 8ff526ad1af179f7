// SPDX-License-Identifier: Apache-2.0
// The score warps: S = Q K^T, mask, online softmax, P for the value warps.
//
// A warp keeps Q of its m16 tile in registers, and a row lives in the four lanes of a quad. With tiles of 32 rows two warps
// have half of the dimensions each; they swap what the other needs, and each ends with complete scores of half the rows.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/plan.cuh"

namespace ddtree::mla {

struct ScoreArgs {
  const __nv_bfloat16* q_nope;
  const __nv_bfloat16* q_rope;
  int64_t q_nope_row_stride, q_nope_head_stride;
  int64_t q_rope_row_stride, q_rope_head_stride;
  const uint32_t* mask_words;
  int num_heads, words_per_row;
  float scale_log2;  // sm_scale * log2(e)
};

template <int RowTiles>
struct ScoreWarp {
  static constexpr int kHalves = Tile<RowTiles>::kHalves;
  static constexpr int kDimSteps = Tile<RowTiles>::kDimSteps;
  static constexpr int kOwnRows = 2 / kHalves;  // rows that a thread finishes with its quad
  // Stands for "no key yet". Finite, so that a hidden key (-inf) minus it is -inf and its p is 0, not NaN.
  static constexpr float kNoMax = -1e30f;

  Smem<RowTiles>& smem;
  const Shape& shape;
  const ScoreArgs& args;
  const int warp, lane, m_tile, half, quad_row, quad_lane;

  __device__ __forceinline__ ScoreWarp(Smem<RowTiles>& smem, const Shape& shape, const ScoreArgs& args)
      : smem(smem), shape(shape), args(args), warp(threadIdx.x / 32), lane(threadIdx.x % 32), m_tile(warp / kHalves),
        half(warp % kHalves), quad_row(lane / 4), quad_lane(lane % 4) {}

  // Row of the block's tile that own row r of this thread is.
  __device__ __forceinline__ int own_row(int r) const { return m_tile * 16 + quad_row + (kHalves == 1 ? r : half) * 8; }

  __device__ __forceinline__ void run() const {
    Piece& piece = smem.piece_of[warp];
    if (lane == 0) piece.done = piece.count = 0;
    __syncwarp();
    Cursor at;
    const uint32_t k_lane = lane_address();
    while (next_piece(piece, shape, smem.plan)) {
      if (piece.tile * Tile<RowTiles>::kRows + m_tile * 16 < shape.num_nodes * args.num_heads)
        active_piece(piece, at, k_lane);
      else
        idle_piece(piece, at);
    }
  }

 private:
  __device__ __forceinline__ void active_piece(const Piece& piece, Cursor& at, uint32_t k_lane) const {
    uint32_t q[kDimSteps][4];
    load_q(q, piece.batch, piece.tile);
    Rows rows;
    reset_max();
    // The step's first key, counted from the start of the tree window.
    int first_node = piece.step * kBlockKeys - (shape.keys(piece.batch) - shape.num_nodes);

    for (int left = piece.count; left > 0; --left, at.advance(), first_node += kBlockKeys) {
      ptx::mbarrier_wait(&smem.kv_full[at.slot()], at.slot_phase());
      float s[2][4];
      multiply(s, q, k_lane + at.slot() * kSlotBytes);

      // The value warps have taken what this buffer held, statistics included. So the other half has read this buffer of the
      // exchange too: it handed its part over after that.
      const int buffer = at.buffer();
      ptx::mbarrier_wait(&smem.step_empty[buffer], at.buffer_phase() ^ 1);
      Handover<RowTiles>& to = smem.handover[buffer];
      float v[kOwnRows][4];
      complete(s, v, buffer);
      if (first_node + kBlockKeys > 0) mask(v, first_node, piece.batch, piece.tile);
      int flags = left == 1 ? kActive | kLast : kActive;
      if (softmax(v, rows, to)) flags |= kRescale;
      if (left == 1) publish_stats(rows, to);
      hand_over(to, flags, piece);
    }
  }

  // No row of the request is in this warp's m16 tile. It still takes part in the handover.
  __device__ __forceinline__ void idle_piece(const Piece& piece, Cursor& at) const {
    for (int left = piece.count; left > 0; --left, at.advance()) {
      ptx::mbarrier_wait(&smem.step_empty[at.buffer()], at.buffer_phase() ^ 1);
      hand_over(smem.handover[at.buffer()], left == 1 ? kLast : 0, piece);
    }
  }

  __device__ __forceinline__ void hand_over(Handover<RowTiles>& to, int flags, const Piece& piece) const {
    if (lane == 0) {
      to.flags[warp] = flags;
      if (warp == 0 && (flags & kLast)) to.piece = piece;
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&smem.step_full[&to - smem.handover]);
  }

  // Sums of the own rows; each lane has those of its own keys until the end. The maxima are in shared memory.
  struct Rows {
    float sum[kOwnRows] = {};  // of p as rounded to bf16: what the value warps multiply is what is divided by
  };

  __device__ __forceinline__ void reset_max() const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r)
      if (quad_lane == 0) smem.row_max[own_row(r)] = kNoMax;
    __syncwarp();
  }

  // A fragments straight from device memory. Rows past the end repeat the last one: a row of A only meets its own row of
  // S, and what comes of it is not stored.
  __device__ __forceinline__ void load_q(uint32_t (&q)[kDimSteps][4], int batch, int tile) const {
    constexpr int kNopeSteps = kMlaLatentDim / 16 - (kHalves - 1) * kDimSteps;  // of the last half, before its rope steps
    const int first_row = tile * Tile<RowTiles>::kRows + m_tile * 16 + quad_row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = min(first_row + h * 8, shape.num_nodes * args.num_heads - 1);
      const int node = row / args.num_heads;
      const int head = row - node * args.num_heads;
      const int64_t node_row = static_cast<int64_t>(batch) * shape.num_nodes + node;
      const __nv_bfloat16* nope = args.q_nope + node_row * args.q_nope_row_stride + head * args.q_nope_head_stride +
                                  half * (kDimSteps * 16) + quad_lane * 2;
      const __nv_bfloat16* rope = args.q_rope + node_row * args.q_rope_row_stride + head * args.q_rope_head_stride -
                                  kNopeSteps * 16 + quad_lane * 2;
      if (half != kHalves - 1) rope = nope;
#pragma unroll
      for (int k = 0; k < kDimSteps; ++k) {
        const __nv_bfloat16* from = (k < kNopeSteps ? nope : rope) + k * 16;
        uint32_t* const to = Tile<RowTiles>::in_shared(k) ? reinterpret_cast<uint32_t*>(&smem.q[warp][k / 4][lane]) : q[k];
        to[h] = __ldg(reinterpret_cast<const uint32_t*>(from));
        to[2 + h] = __ldg(reinterpret_cast<const uint32_t*>(from + 8));
      }
    }
  }

  // What this lane's ldmatrix address is in slot 0. Kept in a register: working it out anew costs each step 60 clocks.
  __device__ __forceinline__ uint32_t lane_address() const {
    uint32_t address = ptx::smem_addr(smem.kv) + ((lane % 8) + (lane / 16) * 8) * kRowPitch + ((lane / 8) % 2) * 16 +
                       half * (kDimSteps * 32);
    asm volatile("" : "+r"(address));
    return address;
  }

  // K fragments are loaded two steps ahead, and two sets of sums alternate: one warp alone must hide both latencies.
  __device__ __forceinline__ void multiply(float (&s)[2][4], const uint32_t (&q)[kDimSteps][4], uint32_t k_addr) const {
    float sums[2][2][4] = {};
    uint32_t b[2][4];
    ptx::ldmatrix_x4(b[0], k_addr);
    ptx::ldmatrix_x4(b[1], k_addr + 32);
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k) {
      uint32_t a[4];
      if (Tile<RowTiles>::in_shared(k)) {
        const uint4 fragment = smem.q[warp][k / 4][lane];
        a[0] = fragment.x, a[1] = fragment.y, a[2] = fragment.z, a[3] = fragment.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[k][i];
      }
      ptx::mma_bf16(sums[k % 2][0], a, b[k % 2][0], b[k % 2][1]);
      ptx::mma_bf16(sums[k % 2][1], a, b[k % 2][2], b[k % 2][3]);
      if (k + 2 < kDimSteps) ptx::ldmatrix_x4(b[k % 2], k_addr + (k + 2) * 32);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = sums[0][i / 4][i % 4] + sums[1][i / 4][i % 4];
  }

  // Scores of the own rows: v[r][n * 2 + e] is key n * 8 + quad_lane * 2 + e of the step.
  __device__ __forceinline__ void complete(const float (&s)[2][4], float (&v)[kOwnRows][4], int buffer) const {
    if constexpr (kHalves == 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i % 4 / 2][i / 4 * 2 + i % 2] = s[i / 4][i % 4];
    } else {
      float4 send;
      float* const give = &send.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float upper = s[i / 2][i % 2], lower = s[i / 2][2 + i % 2];
        give[i] = half == 0 ? lower : upper;
        v[0][i] = half == 0 ? upper : lower;
      }
      reinterpret_cast<float4*>(smem.exchange[buffer][warp])[lane] = send;
      ptx::named_barrier(1 + m_tile, 64);
      const float4 got = reinterpret_cast<const float4*>(smem.exchange[buffer][warp ^ 1])[lane];
      v[0][0] += got.x, v[0][1] += got.y, v[0][2] += got.z, v[0][3] += got.w;
    }
  }

  // Hides keys of the tree window that a node may not see, and keys past the end. first_node: the step's first key, counted
  // from the window's start.
  __device__ __forceinline__ void mask(float (&v)[kOwnRows][4], int first_node, int batch, int tile) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      const int row = tile * Tile<RowTiles>::kRows + own_row(r);
      const int node = min(row / args.num_heads, shape.num_nodes - 1);
      const uint32_t* words =
          args.mask_words + (static_cast<int64_t>(batch) * shape.num_nodes + node) * args.words_per_row;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int seen = first_node + (i / 2) * 8 + quad_lane * 2 + i % 2;  // negative: a key of the prefix
        if (seen < 0) continue;
        const bool visible = seen < shape.num_nodes && ((__ldg(words + seen / 32) >> (seen % 32)) & 1);
        if (!visible) v[r][i] = -INFINITY;
      }
    }
  }

  // Writes P; true if the accumulators must be rescaled first, by the factors it then wrote too.
  __device__ __forceinline__ bool softmax(float (&v)[kOwnRows][4], Rows& rows, Handover<RowTiles>& to) const {
    float max[kOwnRows];
    bool left_behind = false;
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      max[r] = smem.row_max[own_row(r)];
      const float limit = max[r] + kMaxSlack;
      const float top = fmaxf(fmaxf(v[r][0], v[r][1]), fmaxf(v[r][2], v[r][3])) * args.scale_log2;
      left_behind |= top > limit;
    }
    // Rare after the first steps, so that the usual step has no shuffle in its way.
    left_behind = __any_sync(~0u, left_behind);
    if (left_behind) raise_max(v, max, rows, to);

    uint32_t packed[kOwnRows][2];
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float p0 = ptx::exp2_approx(fmaf(v[r][n * 2], args.scale_log2, -max[r]));
        const float p1 = ptx::exp2_approx(fmaf(v[r][n * 2 + 1], args.scale_log2, -max[r]));
        const __nv_bfloat162 pair = __floats2bfloat162_rn(p0, p1);
        packed[r][n] = *reinterpret_cast<const uint32_t*>(&pair);
        rows.sum[r] += __low2float(pair) + __high2float(pair);
      }
    }
    // A C fragment of S is an A fragment of P: no shuffle, no ldmatrix.
    uint32_t* fragments = to.p[m_tile];
    if constexpr (kHalves == 1) {
      reinterpret_cast<uint4*>(fragments)[lane] = make_uint4(packed[0][0], packed[1][0], packed[0][1], packed[1][1]);
    } else {
      fragments[lane * 4 + half] = packed[0][0];
      fragments[lane * 4 + 2 + half] = packed[0][1];
    }
    return left_behind;
  }

  __device__ __forceinline__ void raise_max(const float (&v)[kOwnRows][4], float (&max)[kOwnRows], Rows& rows,
                                            Handover<RowTiles>& to) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      float top = fmaxf(fmaxf(v[r][0], v[r][1]), fmaxf(v[r][2], v[r][3])) * args.scale_log2;
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      float alpha = 1.f;
      if (top > max[r] + kMaxSlack) {
        alpha = ptx::exp2_approx(max[r] - top);
        max[r] = top;
      }
      rows.sum[r] *= alpha;
      if (quad_lane == 0) {
        to.alpha[own_row(r)] = alpha;
        smem.row_max[own_row(r)] = max[r];
      }
    }
  }

  __device__ __forceinline__ void publish_stats(const Rows& rows, Handover<RowTiles>& to) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      float sum = rows.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (quad_lane == 0) {
        const float ln2 = 0.693147180559945f;
        to.row_inv_sum[own_row(r)] = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
        to.row_lse[own_row(r)] = sum > 0.f ? smem.row_max[own_row(r)] * ln2 + __logf(sum) : -INFINITY;
      }
    }
  }
};

}  // namespace ddtree::mla
