// SPDX-License-Identifier: Apache-2.0
// The end of a piece: the groups' outputs are joined and written, to the output or as a part to the workspace.
#pragma once

#include "gqa_tree_verify/attend.cuh"

namespace ddtree::gqa {

struct OutputArgs {
  __nv_bfloat16* out;
  int64_t out_row_stride, out_head_stride;
  float* lse;     // may be null
  float v_scale;  // of the output
  // Workspace, two parts a block. Parts are normalised, so fp16 holds them as well as bf16 holds the output; values beyond
  // 65504 are saturated. Within 16 columns a part keeps the order of the accumulators, so that a quad writes whole sectors.
  __half* parts;      // [2 * blocks, rows of a tile, head_dim]
  float* parts_lse;   // [2 * blocks, rows of a tile]
  int* arrived;       // [blocks]: parts of the tile cut after that block's share; zero between launches
  int* departed;      // [blocks]: blocks that have read them
};

// Where the four values that a lane has of each 16 columns belong: two pairs, 8 columns apart, or with fp8 four in a row.
template <class T>
__device__ __forceinline__ void store_four(__nv_bfloat16* row, int quad, const float (&x)[4]) {
  const uint32_t low = ptx::pack_bf16(x[0], x[1]), high = ptx::pack_bf16(x[2], x[3]);
  if constexpr (T::kFp8) {
    *reinterpret_cast<uint2*>(row + quad * 4) = make_uint2(low, high);
  } else {
    *reinterpret_cast<uint32_t*>(row + quad * 2) = low;
    *reinterpret_cast<uint32_t*>(row + quad * 2 + 8) = high;
  }
}

template <class T>
struct PieceOutput {
  using Warp = AttendWarp<T>;
  static constexpr int kM = T::kMTiles;
  static constexpr int kExchangeBytes = T::kColumnPairs * kM * T::kRowWarps * (T::kGroups - 1) * 32 * 32;
  static_assert(kExchangeBytes <= kTileBytes);

  const Warp& warp;
  const OutputArgs& args;
  Smem<T>& smem;

  // All threads of the block call it together, when the rings are no longer read.
  __device__ __forceinline__ void run(typename Warp::Accumulator& acc, const typename Warp::Rows& rows) const {
    const int lane = Warp::lane(), group = warp.group;
    if constexpr (T::kGroups > 1) {
      if (lane % 4 == 0)
        for (int m = 0; m < kM; ++m)
          for (int h = 0; h < 2; ++h) smem.stats[group][warp.row(m, h)] = RowStats{rows.max[m][h], rows.sum[m][h]};
#pragma unroll
      for (int pair = 0; pair < T::kColumnPairs; ++pair) {
        if (owner(pair) == group) continue;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          float4* const to = exchange(pair, m, group);
          to[lane] = as_float4(acc[m][2 * pair]);
          to[lane + 32] = as_float4(acc[m][2 * pair + 1]);
        }
      }
      ptx::named_barrier(1, T::kAttendThreads);
    }
    // Each m16 tile by itself, to keep few factors alive.
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      float factor[T::kGroups][2];
      int64_t offset[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) offset[h] = finish_row(m, h, rows, factor);
#pragma unroll
      for (int pair = 0; pair < T::kColumnPairs; ++pair) {
        if (T::kGroups > 1 && owner(pair) != group) continue;
        float sum[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] = acc[m][2 * pair + i / 4][i % 4] * own_factor(factor, i % 4 / 2);
#pragma unroll
        for (int g = 0; g < T::kGroups; ++g) {
          if (T::kGroups == 1 || g == group) continue;
          const float4* const from = exchange(pair, m, g);
          const float4 x = from[lane], y = from[lane + 32];
          const float values[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
          for (int i = 0; i < 8; ++i) sum[i] += values[i] * factor[g][i % 4 / 2];
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (offset[h] < 0) continue;
          // With fp8 the two n8 tiles hold even and odd columns.
          float four[4] = {sum[h * 2], sum[h * 2 + 1], sum[4 + h * 2], sum[4 + h * 2 + 1]};
          if constexpr (T::kFp8) four[1] = sum[4 + h * 2], four[2] = sum[h * 2 + 1];
          if (warp.piece.part >= 0)
            *reinterpret_cast<uint2*>(args.parts + offset[h] + pair * 16 + lane % 4 * 4) =
                make_uint2(ptx::pack_f16_saturated(four[0], four[1]), ptx::pack_f16_saturated(four[2], four[3]));
          else
            store_four<T>(args.out + offset[h] + pair * 16, lane % 4, four);
        }
      }
    }
  }

 private:
  // The group that joins and writes these 16 columns.
  __device__ __forceinline__ static constexpr int owner(int pair) { return pair * T::kGroups / T::kColumnPairs; }

  __device__ __forceinline__ static float4 as_float4(const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); }

  // Where `from` leaves its share of columns that another group owns.
  __device__ __forceinline__ float4* exchange(int pair, int m, int from) const {
    const int source = from - (from > owner(pair) ? 1 : 0);
    const int at = ((pair * kM + m) * T::kRowWarps + warp.row_warp) * (T::kGroups - 1) + source;
    return reinterpret_cast<float4*>(smem.tiles) + at * 64;
  }

  __device__ __forceinline__ float own_factor(const float (&factor)[T::kGroups][2], int h) const {
    float mine = factor[0][h];
#pragma unroll
    for (int g = 1; g < T::kGroups; ++g) mine = g == warp.group ? factor[g][h] : mine;
    return mine;
  }

  // The groups' factors of a row, its log-sum-exp, and where the row goes; -1: nowhere.
  __device__ __forceinline__ int64_t finish_row(int m, int h, const typename Warp::Rows& rows,
                                                float (&factor)[T::kGroups][2]) const {
    float top = rows.max[m][h], sum = rows.sum[m][h];
    const int row = warp.row(m, h);
    if constexpr (T::kGroups > 1) {
      RowStats stats[T::kGroups];
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
        stats[g] = smem.stats[g][row];
        top = fmaxf(top, stats[g].max);
      }
      sum = 0.f;
#pragma unroll
      for (int g = 0; g < T::kGroups; ++g) {
        factor[g][h] = ptx::exp2_approx(stats[g].max - top);
        sum += stats[g].sum * factor[g][h];
      }
    } else {
      factor[0][h] = 1.f;
    }
    const float inv = sum > 0.f ? __fdividef(args.v_scale, sum) : 0.f;
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g) factor[g][h] *= inv;

    const Work& work = warp.work;
    const Piece& piece = warp.piece;
    const int head = piece.tile / work.row_tiles, global = piece.tile % work.row_tiles * T::kRows + row;
    if (global >= work.rows) return -1;
    const bool writes_lse = warp.group == 0 && Warp::lane() % 4 == 0;
    const float ln2 = 0.693147180559945f;
    const float lse = sum > 0.f ? (top - Warp::kPBias) * ln2 + __logf(sum) : -INFINITY;
    if (piece.part >= 0) {
      const int64_t at = static_cast<int64_t>(piece.part) * T::kRows + row;
      if (writes_lse) args.parts_lse[at] = lse;
      return at * T::kHeadDim;
    }
    const int node = global / work.group, query_head = head * work.group + global - node * work.group;
    const int64_t node_row = static_cast<int64_t>(piece.batch) * work.num_nodes + node;
    if (args.lse != nullptr && writes_lse) args.lse[node_row * (work.kv_heads * work.group) + query_head] = lse;
    return node_row * args.out_row_stride + query_head * args.out_head_stride;
  }
};

}  // namespace ddtree::gqa
