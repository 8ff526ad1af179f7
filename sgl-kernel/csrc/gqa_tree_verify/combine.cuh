// SPDX-License-Identifier: Apache-2.0
// Joins the parts of a row tile that several blocks shared, in the order of those blocks.
//
// Done by the blocks that share the tile, but for the first, when the last of them has written its part: each deals itself an
// equal number of items. An item is 256 values of successive rows, eight a lane; all warps take one together, or one each, as
// many as there are. The blocks wait for each other, so the kernel is launched cooperatively.
#pragma once

#include "gqa_tree_verify/output.cuh"

namespace ddtree::gqa {

__device__ __forceinline__ int load_acquire(const int* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}

template <class T>
struct Combine {
  static constexpr int kLanesPerRow = T::kHeadDim / 8;
  static constexpr int kItemRows = 32 / kLanesPerRow;

  // Laid over the rings when they are no longer used.
  struct Scratch {
    float weights[T::kWarps][kItemRows][kMaxBlocks];
    float sums[T::kWarps][8][32];
  };
  static_assert(sizeof(Scratch) <= kTileBytes);

  Scratch& scratch;
  const Work& work;
  const OutputArgs& args;
  const Plan& plan;

  // All warps that attend call it together when the block has written its parts. starts_cut: the last one only starts its tile.
  __device__ __forceinline__ void run(bool starts_cut) const {
    const bool ends_cut = plan.step > 0;
    if (!ends_cut && !starts_cut) return;
    sync();
    if (threadIdx.x == 0) {
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
    if (threadIdx.x == 0 && atomicAdd(args.departed + plan.cut_first, 1) == plan.cut_parts - 2) {
      args.departed[plan.cut_first] = 0;  // the last reader leaves them as the next launch wants them
      args.arrived[plan.cut_first] = 0;
    }
  }

 private:
  __device__ __forceinline__ static void sync() { ptx::named_barrier(1, T::kAttendThreads); }
  __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ int64_t slot(int i) const {
    return i == 0 ? plan.cut_first_slot : 2 * (plan.cut_first + i * work.side);
  }

  __device__ __forceinline__ void items() const {
    const int rows = min(T::kRows, work.rows - plan.tile % work.row_tiles * T::kRows);
    const int readers = plan.cut_parts - 1;
    const int items = (rows + kItemRows - 1) / kItemRows;
    const int mine = (items + readers - 1) / readers;
    int team = T::kWarps;  // warps an item
    while (team > 1 && team * mine > T::kWarps) team /= 2;
    const int teams = T::kWarps / team;
    const int first = (static_cast<int>(blockIdx.x) - plan.cut_first) / work.side - 1;
    for (int round = 0; round < mine; round += teams) {
      const int item = first + (round + warp() / team) * readers;
      const bool mine_too = item < items && round + warp() / team < mine;
      const int row = min(item * kItemRows + lane() / kLanesPerRow, rows - 1);
      float acc[8] = {};
      float2 sum_and_top = make_float2(0.f, 0.f);
      if (mine_too) {
        sum_and_top = weigh(row);
        add_up(acc, row, warp() % team, team);
      }
      if (team > 1) {
#pragma unroll
        for (int i = 0; i < 8; ++i) scratch.sums[warp()][i][lane()] = acc[i];
        sync();
        if (warp() % team == 0)
          for (int w = 1; w < team; ++w)
#pragma unroll
            for (int i = 0; i < 8; ++i) acc[i] += scratch.sums[warp() + w][i][lane()];
        sync();
      }
      if (mine_too && warp() % team == 0 && item * kItemRows + lane() / kLanesPerRow < rows) store(acc, sum_and_top, row);
    }
  }

  // exp(lse - max) of each part of this lane's row, into the warp's weights; returns their sum and the maximum.
  __device__ __forceinline__ float2 weigh(int row) const {
    float* const weights = scratch.weights[warp()][lane() / kLanesPerRow];
    constexpr int kBatch = 4;
    const int own = lane() % kLanesPerRow;
    float top = -INFINITY;
    for (int base = own; base < plan.cut_parts; base += kLanesPerRow * kBatch) {
      float lse[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        lse[j] = __ldcg(args.parts_lse + slot(min(base + kLanesPerRow * j, plan.cut_parts - 1)) * T::kRows + row);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (base + kLanesPerRow * j < plan.cut_parts) weights[base + kLanesPerRow * j] = lse[j];
        top = fmaxf(top, lse[j]);  // the last one again changes nothing
      }
    }
    __syncwarp();
    for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
    float sum = 0.f;
    for (int i = own; i < plan.cut_parts; i += kLanesPerRow) {
      const float w = top == -INFINITY ? 0.f : __expf(weights[i] - top);
      weights[i] = w;
      sum += w;
    }
    __syncwarp();
    for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    return make_float2(sum, top);
  }

  // Every `stride`-th part from `begin` on, for this lane's eight values of a row. Loads go ahead of the sums by a batch:
  // their latency is all there is to wait for.
  __device__ __forceinline__ void add_up(float (&acc)[8], int row, int begin, int stride) const {
    constexpr int kBatch = 9;
    const float* const weights = scratch.weights[warp()][lane() / kLanesPerRow];
    const __half* const from = args.parts + row * T::kHeadDim + lane() % kLanesPerRow * 8;
    for (int base = begin; base < plan.cut_parts; base += stride * kBatch) {
      uint4 x[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = min(base + j * stride, plan.cut_parts - 1);
        x[j] = __ldcg(reinterpret_cast<const uint4*>(from + slot(i) * (T::kRows * T::kHeadDim)));
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

  __device__ __forceinline__ void store(const float (&acc)[8], float2 sum_and_top, int row) const {
    const int head = plan.tile / work.row_tiles, global = plan.tile % work.row_tiles * T::kRows + row;
    const int node = global / work.group, query_head = head * work.group + global - node * work.group;
    const int64_t node_row = static_cast<int64_t>(plan.batch) * work.num_nodes + node;
    const float inv = sum_and_top.x > 0.f ? __fdividef(1.f, sum_and_top.x) : 0.f;
    const int block = lane() % kLanesPerRow / 2, quad = lane() % 2 * 2;  // of 16 columns; the first of two quads
    __nv_bfloat16* const to = args.out + node_row * args.out_row_stride + query_head * args.out_head_stride + block * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float four[4] = {acc[4 * i] * inv, acc[4 * i + 1] * inv, acc[4 * i + 2] * inv, acc[4 * i + 3] * inv};
      store_four<T>(to, quad + i, four);
    }
    if (args.lse != nullptr && lane() % kLanesPerRow == 0)
      args.lse[node_row * (work.kv_heads * work.group) + query_head] =
          sum_and_top.x > 0.f ? sum_and_top.y + __logf(sum_and_top.x) : -INFINITY;
  }
};

}  // namespace ddtree::gqa
