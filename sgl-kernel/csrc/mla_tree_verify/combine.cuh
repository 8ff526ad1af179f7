// SPDX-License-Identifier: Apache-2.0
// Joins the parts of a row tile that several blocks shared, in the order of those blocks.
//
// Done by the value warps of the blocks that share the tile, when the last of them has written its part: each deals itself
// an equal number of items. An item is 256 columns of one row; all eight warps take one together, or one each, as many as
// there are. The blocks wait for each other, so the kernel is launched cooperatively.
#pragma once

#include <cuda_fp16.h>

#include "common/ptx.cuh"
#include "mla_tree_verify/plan.cuh"

namespace ddtree::mla {

inline constexpr int kItemColumns = 256;  // eight a lane
inline constexpr int kItemsPerRow = kMlaLatentDim / kItemColumns;

struct OutputArgs {
  __nv_bfloat16* out;
  int64_t out_row_stride, out_head_stride;
  float* lse;  // may be null
  // Workspace, two parts a block. Parts are normalised, so fp16 holds them as well as bf16 holds the output; latents beyond
  // 65504 are saturated.
  // Within 16 columns a part keeps the order of the accumulators, so that a quad writes whole sectors: four values a lane,
  // two pairs of columns, 8 apart.
  __half* parts;      // [2 * blocks, rows of a tile, 512]
  float* parts_lse;   // [2 * blocks, rows of a tile]
  int* arrived;       // [blocks]: parts of the tile cut after that block's share; zero between launches
  int* departed;      // [blocks]: blocks that have read them
  int num_heads;
};

// Shared memory of the combine, laid over the KV ring when it is no longer used.
struct CombineScratch {
  float weights[kValueWarps][kMaxBlocks];
  float sums[kValueWarps][8][32];
};

__device__ __forceinline__ int load_acquire(const int* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}

template <int Rows>
struct Combine {
  static constexpr int kBarrier = 5;  // of the value warps

  CombineScratch& scratch;
  const Shape& shape;
  const OutputArgs& args;
  const Plan& plan;
  const unsigned warp, lane;  // warp: among the value warps

  __device__ __forceinline__ Combine(CombineScratch& scratch, const Shape& shape, const OutputArgs& args, const Plan& plan)
      : scratch(scratch), shape(shape), args(args), plan(plan), warp(ptx::thread_index() / 32 - kScoreWarps),
        lane(ptx::thread_index() % 32) {}

  __device__ __forceinline__ static void sync() { ptx::named_barrier(kBarrier, 32 * kValueWarps); }

  // The value warps of a block call it together when all its parts are written. starts_cut: the last of them only starts
  // its tile.
  __device__ __forceinline__ void run(bool starts_cut) const {
    const bool ends_cut = plan.step > 0;
    if (!ends_cut && !starts_cut) return;
    sync();
    if (warp == 0 && lane == 0) {
      __threadfence();
      if (ends_cut) atomicAdd(args.arrived + plan.cut_first, 1);
      if (starts_cut) atomicAdd(args.arrived + blockIdx.x, 1);
      if (ends_cut)
        while (load_acquire(args.arrived + plan.cut_first) < plan.cut_parts) {
        }
    }
    if (!ends_cut) return;
    sync();
    items();
    sync();
    if (warp == 0 && lane == 0 && atomicAdd(args.departed + plan.cut_first, 1) == plan.cut_parts - 2) {
      args.departed[plan.cut_first] = 0;  // the last reader leaves them as the next launch wants them
      args.arrived[plan.cut_first] = 0;
    }
  }

 private:
  __device__ __forceinline__ int64_t slot(int i) const {
    return i == 0 ? plan.cut_first_slot : 2 * (plan.cut_first + i);
  }

  __device__ __forceinline__ void items() const {
    const int rows = min(Rows, shape.num_nodes * args.num_heads - plan.tile * Rows);
    const int readers = plan.cut_parts - 1;
    const int items = rows * kItemsPerRow;
    const int mine = (items + readers - 1) / readers;
    int team = kValueWarps;  // warps an item
    while (team > 1 && team * mine > kValueWarps) team /= 2;
    const int teams = kValueWarps / team;
    const int first = blockIdx.x - plan.cut_first - 1;
    for (int round = 0; round < mine; round += teams) {
      const int item = first + (round + warp / team) * readers;
      const int row = item / kItemsPerRow, column = item % kItemsPerRow * kItemColumns;
      float acc[8] = {};
      float2 sum_and_top = make_float2(0.f, 0.f);
      if (item < items) {
        sum_and_top = weigh(row);
        add_up(acc, row, column, warp % team, team);
      }
      if (team > 1) {
#pragma unroll
        for (int i = 0; i < 8; ++i) scratch.sums[warp][i][lane] = acc[i];
        sync();
        if (warp % team == 0)
          for (int w = 1; w < team; ++w)
#pragma unroll
            for (int i = 0; i < 8; ++i) acc[i] += scratch.sums[warp + w][i][lane];
        sync();
      }
      if (item < items && warp % team == 0) store(acc, sum_and_top, row, column);
    }
  }

  // exp(lse - max) of each part of the row, into this warp's weights; returns their sum and the maximum.
  __device__ __forceinline__ float2 weigh(int row) const {
    float* const weights = scratch.weights[warp];
    constexpr int kBatch = 5;  // 160 parts: more than any tile has on most cards
    float top = -INFINITY;
    for (int base = lane; base < plan.cut_parts; base += 32 * kBatch) {
      float lse[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        lse[j] = __ldcg(args.parts_lse + slot(min(base + 32 * j, plan.cut_parts - 1)) * Rows + row);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (base + 32 * j < plan.cut_parts) weights[base + 32 * j] = lse[j];
        top = fmaxf(top, lse[j]);  // the last one again changes nothing
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
    float sum = 0.f;
    for (int i = lane; i < plan.cut_parts; i += 32) {
      const float w = top == -INFINITY ? 0.f : __expf(weights[i] - top);
      weights[i] = w;
      sum += w;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    __syncwarp();
    return make_float2(sum, top);
  }

  // Every `stride`-th part from `begin` on, for this lane's eight columns of a row. Loads go ahead of the sums by a batch:
  // their latency is all there is to wait for.
  __device__ __forceinline__ void add_up(float (&acc)[8], int row, int column, int begin, int stride) const {
    constexpr int kBatch = 9;
    const float* const weights = scratch.weights[warp];
    for (int base = begin; base < plan.cut_parts; base += stride * kBatch) {
      uint4 x[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = min(base + j * stride, plan.cut_parts - 1);
        x[j] = __ldcg(reinterpret_cast<const uint4*>(args.parts + (slot(i) * Rows + row) * kMlaLatentDim + column) + lane);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = base + j * stride;
        const float w = i < plan.cut_parts ? weights[i] : 0.f;
        const uint32_t pairs[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&pairs[n]));
          acc[2 * n] += w * pair.x, acc[2 * n + 1] += w * pair.y;
        }
      }
    }
  }

  __device__ __forceinline__ void store(const float (&acc)[8], float2 sum_and_top, int row, int column) const {
    const int global = plan.tile * Rows + row;
    const int node = global / args.num_heads, head = global - node * args.num_heads;
    const int64_t node_row = static_cast<int64_t>(plan.batch) * shape.num_nodes + node;
    const float inv = sum_and_top.x > 0.f ? __fdividef(1.f, sum_and_top.x) : 0.f;
    // The value warps write parts in the order of their fragments: pair n of this lane's eight is there.
    __nv_bfloat16* to = args.out + node_row * args.out_row_stride + head * args.out_head_stride + column + lane / 2 * 16 +
                        lane % 2 * 4;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      *reinterpret_cast<uint32_t*>(to + n % 2 * 8 + n / 2 * 2) = ptx::pack_bf16(acc[2 * n] * inv, acc[2 * n + 1] * inv);
    if (args.lse != nullptr && column == 0 && lane == 0)
      args.lse[node_row * args.num_heads + head] =
          sum_and_top.x > 0.f ? sum_and_top.y + __logf(sum_and_top.x) : -INFINITY;
  }
};

}  // namespace ddtree::mla
