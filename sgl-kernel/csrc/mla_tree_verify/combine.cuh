// SPDX-License-Identifier: Apache-2.0
// Joins the parts of row tiles that several blocks shared, in the order of those blocks, and fills padded requests.
//
// Block c looks at the cut between shares c - 1 and c. The cuts of one tile deal its rows out between them, so the work is
// spread as evenly as the parts are. An item is 128 columns of one row: one warp for few parts, up to eight for many.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/kernel.cuh"

namespace ddtree::mla {

inline constexpr int kCombineWarps = 16;
inline constexpr int kCombineThreads = 32 * kCombineWarps;
inline constexpr int kItemColumns = 128;  // a float4 a lane
inline constexpr int kItemsPerRow = kMlaLatentDim / kItemColumns;
inline constexpr int kMaxBlocks = 512;    // parts of one tile at most

// Where the parts of one tile are: those of blocks [first, first + count).
struct Parts {
  int first, count, first_slot;

  __device__ __forceinline__ int slot(int i) const { return i == 0 ? first_slot : 2 * (first + i); }
};

__device__ __forceinline__ float4 operator*(float w, float4 x) { return make_float4(w * x.x, w * x.y, w * x.z, w * x.w); }
__device__ __forceinline__ void operator+=(float4& a, float4 b) { a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w; }

template <int Rows>
struct Combine {
  const KernelArgs& args;
  float (*weights)[kMaxBlocks];  // [kCombineWarps]
  float4 (*sums)[32];            // [kCombineWarps]

  // exp(lse - max) of each part of the row, into this warp's weights; returns their sum and the maximum.
  __device__ __forceinline__ float2 weigh(const Parts& parts, int row) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float top = -INFINITY;
    for (int i = lane; i < parts.count; i += 32) {
      const float lse = __ldcg(args.output.parts_lse + static_cast<int64_t>(parts.slot(i)) * Rows + row);
      weights[warp][i] = lse;
      top = fmaxf(top, lse);
    }
    for (int offset = 16; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
    float sum = 0.f;
    for (int i = lane; i < parts.count; i += 32) {
      const float w = top == -INFINITY ? 0.f : __expf(weights[warp][i] - top);
      weights[warp][i] = w;
      sum += w;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    __syncwarp();
    return make_float2(sum, top);
  }

  // Every `stride`-th part from `begin` on, for 128 columns of a row.
  __device__ __forceinline__ float4 add_up(const Parts& parts, int row, int column, int begin, int stride) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
    for (int i = begin; i < parts.count; i += stride) {
      const int64_t at = (static_cast<int64_t>(parts.slot(i)) * Rows + row) * kMlaLatentDim + column;
      acc += weights[warp][i] * __ldcg(reinterpret_cast<const float4*>(args.output.parts + at) + lane);
    }
    return acc;
  }

  __device__ __forceinline__ void store(float4 x, float2 sum_and_top, int row, int column, int batch, int tile) const {
    const OutputArgs& output = args.output;
    const int lane = threadIdx.x % 32;
    const int global = tile * Rows + row;
    const int node = global / output.num_heads, head = global - node * output.num_heads;
    const int64_t node_row = static_cast<int64_t>(batch) * args.num_nodes + node;
    const float inv = sum_and_top.x > 0.f ? 1.f / sum_and_top.x : 0.f;
    const __nv_bfloat162 low = __floats2bfloat162_rn(x.x * inv, x.y * inv);
    const __nv_bfloat162 high = __floats2bfloat162_rn(x.z * inv, x.w * inv);
    __nv_bfloat16* to = output.out + node_row * output.out_row_stride + head * output.out_head_stride + column;
    reinterpret_cast<uint2*>(to)[lane] =
        make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    if (output.lse != nullptr && column == 0 && lane == 0)
      output.lse[node_row * output.num_heads + head] =
          sum_and_top.x > 0.f ? sum_and_top.y + __logf(sum_and_top.x) : -INFINITY;
  }

  // Items first_item, first_item + item_stride, ... of a tile. The whole block calls it together.
  __device__ __forceinline__ void tile_items(const Parts& parts, int rows, int first_item, int item_stride, int batch,
                                             int tile) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int team = 1;  // warps an item
    while (team < 8 && team * 24 < parts.count) team *= 2;
    const int teams = kCombineWarps / team;
    const int items = rows * kItemsPerRow;
    for (int base = first_item; base < items; base += teams * item_stride) {
      const int item = base + warp / team * item_stride;
      const int row = item / kItemsPerRow, column = item % kItemsPerRow * kItemColumns;
      float4 acc = make_float4(0.f, 0.f, 0.f, 0.f);
      float2 sum_and_top = make_float2(0.f, 0.f);
      if (item < items) {
        sum_and_top = weigh(parts, row);
        acc = add_up(parts, row, column, warp % team, team);
      }
      if (team > 1) {
        sums[warp][lane] = acc;
        __syncthreads();
        if (warp % team == 0)
          for (int i = 1; i < team; ++i) acc += sums[warp + i][lane];
        __syncthreads();
      }
      if (item < items && warp % team == 0) store(acc, sum_and_top, row, column, batch, tile);
    }
  }

  __device__ __forceinline__ void fill_padded(int batch) const {
    const OutputArgs& output = args.output;
    const int rows = args.num_nodes * output.num_heads;
    for (int i = threadIdx.x; i < rows * (kMlaLatentDim / 8); i += kCombineThreads) {
      const int row = i / (kMlaLatentDim / 8), chunk = i % (kMlaLatentDim / 8);
      const int node = row / output.num_heads, head = row - node * output.num_heads;
      const int64_t node_row = static_cast<int64_t>(batch) * args.num_nodes + node;
      __nv_bfloat16* to = output.out + node_row * output.out_row_stride + head * output.out_head_stride;
      reinterpret_cast<uint4*>(to)[chunk] = make_uint4(0, 0, 0, 0);
      if (output.lse != nullptr && chunk == 0) output.lse[node_row * output.num_heads + head] = -INFINITY;
    }
  }
};

template <int RowTiles>
__global__ void __launch_bounds__(kCombineThreads) tree_combine_kernel(const __grid_constant__ KernelArgs args) {
  __shared__ float weights[kCombineWarps][kMaxBlocks];
  __shared__ float4 sums[kCombineWarps][32];
  constexpr int kRows = Tile<RowTiles>::kRows;
  const Combine<kRows> combine{args, weights, sums};
  const Shape shape = args.shape();

  // Lengths are not written by the kernel before this one, so the plan needs no wait.
  const Shares shares(total_steps(shape), gridDim.x);
  const int cut = blockIdx.x;
  const bool has_cut = cut > 0 && cut < shares.count;
  Location where{};
  if (has_cut) where = locate(shape, shares.begin(cut));
  ptx::wait_for_primary();

  for (int b = blockIdx.x; b < args.batch; b += gridDim.x)
    if (shape.keys(b) == 0) combine.fill_padded(b);
  if (!has_cut || where.step == 0) return;  // no tile is cut here

  const int first = shares.owner(where.tile_begin);
  const int cuts = shares.owner(where.tile_begin + where.steps - 1) - first;
  // A block that began before this tile left its part of it in its second slot.
  const Parts parts{first, cuts + 1, 2 * first + (shares.begin(first) < where.tile_begin ? 1 : 0)};
  const int rows = min(kRows, args.num_nodes * args.output.num_heads - where.tile * kRows);
  combine.tile_items(parts, rows, cut - first - 1, cuts, where.batch, where.tile);
}

}  // namespace ddtree::mla
