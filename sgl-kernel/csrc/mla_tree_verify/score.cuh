// SPDX-License-Identifier: Apache-2.0
// The score warps: S = Q K^T, mask, online softmax, P for the value warps.
//
// Warp (group, half): Q of the group's rows for half of the 576 dimensions stays in registers. The two halves swap what the
// other needs through shared memory, so that each ends with complete scores of its own rows: an m16 tile (RowTiles = 2) or
// one row of each thread's pair (RowTiles = 1). From there on a row lives in the four lanes of a quad.
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
  static constexpr int kOwnRows = RowTiles;  // rows that a thread finishes alone (with its quad)

  Smem<RowTiles>& smem;
  const Shape& shape;
  const ScoreArgs& args;
  const int warp, lane, group, half, quad_row, quad_lane;

  __device__ __forceinline__ ScoreWarp(Smem<RowTiles>& smem, const Shape& shape, const ScoreArgs& args)
      : smem(smem), shape(shape), args(args), warp(threadIdx.x / 32), lane(threadIdx.x % 32), group(warp / 2),
        half(warp % 2), quad_row(lane / 4), quad_lane(lane % 4) {}

  // Row of the tile that own row r of this thread is.
  __device__ __forceinline__ int own_row(int r) const {
    const int base = group * Tile<RowTiles>::kRowsPerGroup + quad_row;
    return RowTiles == 2 ? base + half * 16 + r * 8 : base + half * 8;
  }

  // A fragments straight from device memory. Rows past the end repeat the last one: a row of A only meets its own row of
  // S, and what comes of it is not stored.
  __device__ __forceinline__ void load_q(uint32_t (&q)[RowTiles][kDimSteps][4], int batch, int tile) const {
    constexpr int kNopeSteps = kMlaLatentDim / 16 - kDimSteps;  // of the second half, before the rope dimensions start
    const int first_row = tile * Tile<RowTiles>::kRows + group * Tile<RowTiles>::kRowsPerGroup + quad_row;
#pragma unroll
    for (int t = 0; t < RowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int row = min(first_row + t * 16 + h * 8, shape.num_nodes * args.num_heads - 1);
        asm volatile("" : "+r"(row));  // one row's addresses at a time: all four at once do not fit beside q
        const int node = row / args.num_heads;
        const int head = row - node * args.num_heads;
        const int64_t node_row = static_cast<int64_t>(batch) * shape.num_nodes + node;
        const __nv_bfloat16* nope = args.q_nope + node_row * args.q_nope_row_stride + head * args.q_nope_head_stride +
                                    half * (kDimSteps * 16) + quad_lane * 2;
        const __nv_bfloat16* rope = args.q_rope + node_row * args.q_rope_row_stride + head * args.q_rope_head_stride -
                                    kNopeSteps * 16 + quad_lane * 2;
        if (half == 0) rope = nope;
#pragma unroll
        for (int k = 0; k < kDimSteps; ++k) {
          const __nv_bfloat16* from = (k < kNopeSteps ? nope : rope) + k * 16;
          q[t][k][h] = __ldg(reinterpret_cast<const uint32_t*>(from));
          q[t][k][2 + h] = __ldg(reinterpret_cast<const uint32_t*>(from + 8));
        }
      }
    }
  }

  // Complete scores of the own rows: v[r][n * 2 + e] is key n * 8 + quad_lane * 2 + e of the step.
  __device__ __forceinline__ void exchange(const float (&s)[RowTiles][2][4], float (&v)[kOwnRows][4]) const {
    float send[RowTiles * 4];
    if constexpr (RowTiles == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float t0 = s[0][i / 4][i % 4], t1 = s[1][i / 4][i % 4];
        send[i] = half == 0 ? t1 : t0;
        v[(i % 4) / 2][(i / 4) * 2 + i % 2] = half == 0 ? t0 : t1;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float upper = s[0][i / 2][i % 2], lower = s[0][i / 2][2 + i % 2];
        send[i] = half == 0 ? lower : upper;
        v[0][i] = half == 0 ? upper : lower;
      }
    }
    float4* mine = reinterpret_cast<float4*>(smem.exchange[warp]);
    const float4* other = reinterpret_cast<const float4*>(smem.exchange[warp ^ 1]);
#pragma unroll
    for (int i = 0; i < RowTiles; ++i)
      mine[i * 32 + lane] = make_float4(send[i * 4], send[i * 4 + 1], send[i * 4 + 2], send[i * 4 + 3]);
    ptx::named_barrier(1 + group, 64);
#pragma unroll
    for (int i = 0; i < RowTiles; ++i) {
      const float4 got = other[i * 32 + lane];
      const float x[4] = {got.x, got.y, got.z, got.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (RowTiles == 2)
          v[j / 2][i * 2 + j % 2] += x[j];
        else
          v[0][j] += x[j];
      }
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

  __device__ __forceinline__ void run() const {
    const Piece& piece = smem.walk_of[warp];
    PieceWalk walk{smem.walk_of[warp]};
    while (walk.next(shape, smem.plan)) {
      const int prefix = shape.keys(piece.batch) - shape.num_nodes;
      uint32_t q[RowTiles][kDimSteps][4];
      load_q(q, piece.batch, piece.tile);
      float row_max[kOwnRows], row_sum[kOwnRows];
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) row_max[r] = -INFINITY, row_sum[r] = 0.f;

      for (; walk.step < walk.end; ++walk.step, ++walk.done) {
        const int slot = walk.done % kSlots;
        ptx::mbarrier_wait(&smem.kv_full[slot], (walk.done / kSlots) & 1);
        // Read anew each step: there is no register to keep it in.
        const bool active = piece.tile * Tile<RowTiles>::kRows + group * Tile<RowTiles>::kRowsPerGroup <
                            shape.num_nodes * args.num_heads;
        float s[RowTiles][2][4] = {};
        if (active) multiply(s, q, slot);

        // The value warps have taken the P before this one, so the other half has read the scores before these: it wrote its
        // part of that P after reading them. After the last step of a piece they have used the statistics too.
        ptx::mbarrier_wait(&smem.p_empty, (walk.done & 1) ^ 1);
        const bool last = walk.step + 1 == walk.end;
        int flags = last ? kLast : 0;
        if (active) {
          float v[kOwnRows][4];
          exchange(s, v);
#pragma unroll
          for (int r = 0; r < kOwnRows; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) v[r][i] *= args.scale_log2;
          if ((walk.step + 1) * kBlockKeys > prefix) mask(v, walk.step * kBlockKeys - prefix, piece.batch, piece.tile);
          flags |= kActive | (softmax(v, row_max, row_sum) ? kRescale : 0);
          if (last) publish_stats(row_max, row_sum);
        }
        if (lane == 0) {
          smem.step_flags[warp] = flags;
          if (last && warp == 0) smem.finished = piece;
        }
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(&smem.p_full);
      }
    }
  }

  __device__ __forceinline__ void multiply(float (&s)[RowTiles][2][4], const uint32_t (&q)[RowTiles][kDimSteps][4],
                                           int slot) const {
    const uint32_t k_addr = ptx::smem_addr(smem.kv) + slot * kSlotBytes + ((lane % 8) + (lane / 16) * 8) * kRowPitch +
                            ((lane / 8) % 2) * 16 + half * (kDimSteps * 32);
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, k_addr + k * 32);
#pragma unroll
      for (int t = 0; t < RowTiles; ++t) {
        ptx::mma_bf16(s[t][0], q[t][k], b[0], b[1]);
        ptx::mma_bf16(s[t][1], q[t][k], b[2], b[3]);
      }
    }
  }

  // Writes P and the rows' factors; true if the accumulators must be rescaled by them first.
  __device__ __forceinline__ bool softmax(float (&v)[kOwnRows][4], float (&row_max)[kOwnRows],
                                          float (&row_sum)[kOwnRows]) const {
    uint32_t packed[kOwnRows][2];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      float top = fmaxf(fmaxf(v[r][0], v[r][1]), fmaxf(v[r][2], v[r][3]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      float alpha = 1.f;
      if (top > row_max[r] + kMaxSlack) {
        alpha = ptx::exp2_approx(row_max[r] - top);
        row_max[r] = top;
        rescale = true;
      }
      const float base = row_max[r] == -INFINITY ? 0.f : row_max[r];  // no key seen yet: every p is 0, not NaN
      row_sum[r] *= alpha;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(ptx::exp2_approx(v[r][n * 2] - base),
                                                          ptx::exp2_approx(v[r][n * 2 + 1] - base));
        packed[r][n] = *reinterpret_cast<const uint32_t*>(&pair);
        // The sum takes the rounded values: what the value warps multiply is what is divided by.
        row_sum[r] += __low2float(pair) + __high2float(pair);
      }
      if (quad_lane == 0) smem.alpha[own_row(r)] = alpha;
    }
    // A C fragment of S is an A fragment of P: no shuffle, no ldmatrix.
    uint32_t* fragments = smem.p[group * RowTiles + (RowTiles == 2 ? half : 0)];
    if constexpr (RowTiles == 2) {
      reinterpret_cast<uint4*>(fragments)[lane] = make_uint4(packed[0][0], packed[1][0], packed[0][1], packed[1][1]);
    } else {
      fragments[lane * 4 + half] = packed[0][0];
      fragments[lane * 4 + 2 + half] = packed[0][1];
    }
    return __any_sync(~0u, rescale);
  }

  __device__ __forceinline__ void publish_stats(const float (&row_max)[kOwnRows], const float (&row_sum)[kOwnRows]) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      float sum = row_sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (quad_lane == 0) {
        const float ln2 = 0.693147180559945f;
        smem.row_inv_sum[own_row(r)] = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
        smem.row_lse[own_row(r)] = sum > 0.f ? row_max[r] * ln2 + __logf(sum) : -INFINITY;
      }
    }
  }
};

}  // namespace ddtree::mla
