// SPDX-License-Identifier: Apache-2.0
// Joins the parts of row tiles that several blocks shared, in the order of those blocks, and fills padded requests.
//
// Block c looks at the cut between shares c - 1 and c. The cuts of one tile share its rows between them, so the work is
// spread as evenly as the parts are.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/kernel.cuh"

namespace ddtree::mla {

inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineWarps = kCombineThreads / 32;
inline constexpr int kCombineColumns = 256;  // one item: this many columns of one row
inline constexpr int kMaxBlocks = 512;       // parts of one tile at most

template <int Rows>
struct Combine {
  const KernelArgs& args;
  float* weights;              // [kMaxBlocks]
  float4 (*sums)[2][32];       // [kCombineWarps]
  float* scratch;              // [kCombineWarps]

  __device__ __forceinline__ float block_reduce(float x, bool is_max) const {
    for (int offset = 16; offset > 0; offset /= 2) {
      const float y = __shfl_xor_sync(~0u, x, offset);
      x = is_max ? fmaxf(x, y) : x + y;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = scratch[0];
    for (int i = 1; i < kCombineWarps; ++i) x = is_max ? fmaxf(x, scratch[i]) : x + scratch[i];
    return x;
  }

  // `row` of the tile, columns from `column`; parts of blocks [first, last], the first in slot first_part.
  __device__ __forceinline__ void item(int row, int column, int first, int last, int first_part, int batch, int tile) const {
    const OutputArgs& output = args.output;
    const int count = last - first + 1;
    auto slot = [&](int i) { return static_cast<int64_t>(i == 0 ? first_part : 2 * (first + i)) * Rows + row; };

    float top = -INFINITY;
    for (int i = threadIdx.x; i < count; i += kCombineThreads) {
      weights[i] = __ldcg(output.parts_lse + slot(i));
      top = fmaxf(top, weights[i]);
    }
    top = block_reduce(top, true);
    float sum = 0.f;
    for (int i = threadIdx.x; i < count; i += kCombineThreads) {
      weights[i] = weights[i] == -INFINITY ? 0.f : __expf(weights[i] - top);
      sum += weights[i];
    }
    sum = block_reduce(sum, false);
    const float inv = sum > 0.f ? 1.f / sum : 0.f;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float acc[2][4] = {};
#pragma unroll 4
    for (int i = warp; i < count; i += kCombineWarps) {
      const float4* from = reinterpret_cast<const float4*>(output.parts + slot(i) * kMlaLatentDim + column) + lane;
      const float w = weights[i];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 x = __ldcg(from + j * 32);
        acc[j][0] += w * x.x, acc[j][1] += w * x.y, acc[j][2] += w * x.z, acc[j][3] += w * x.w;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) sums[warp][j][lane] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    __syncthreads();

    const int global = tile * Rows + row;
    const int node = global / output.num_heads, head = global - node * output.num_heads;
    const int64_t node_row = static_cast<int64_t>(batch) * args.num_nodes + node;
    if (threadIdx.x < 64) {
      float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
      for (int w = 0; w < kCombineWarps; ++w) {
        const float4 y = sums[w][threadIdx.x / 32][lane];
        x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
      }
      const __nv_bfloat162 low = __floats2bfloat162_rn(x.x * inv, x.y * inv);
      const __nv_bfloat162 high = __floats2bfloat162_rn(x.z * inv, x.w * inv);
      __nv_bfloat16* to = output.out + node_row * output.out_row_stride + head * output.out_head_stride + column;
      reinterpret_cast<uint2*>(to)[threadIdx.x] =
          make_uint2(*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high));
    }
    if (output.lse != nullptr && column == 0 && threadIdx.x == 0)
      output.lse[node_row * output.num_heads + head] = sum > 0.f ? top + __logf(sum) : -INFINITY;
    __syncthreads();
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
  __shared__ float weights[kMaxBlocks];
  __shared__ float4 sums[kCombineWarps][2][32];
  __shared__ float scratch[kCombineWarps];
  constexpr int kRows = Tile<RowTiles>::kRows;
  const Combine<kRows> combine{args, weights, sums, scratch};
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
  if (!has_cut || where.step == 0) return;  // the cut falls between two tiles

  const int first = shares.owner(where.tile_begin);
  const int last = shares.owner(where.tile_begin + where.steps - 1);
  // A block that began before this tile left its part of it in its second slot.
  const int first_part = 2 * first + (shares.begin(first) < where.tile_begin ? 1 : 0);
  const int rows = min(kRows, args.num_nodes * args.output.num_heads - where.tile * kRows);
  const int items = rows * (kMlaLatentDim / kCombineColumns);
  for (int i = cut - first - 1; i < items; i += last - first)
    combine.item(i / 2, (i % 2) * kCombineColumns, first, last, first_part, where.batch, where.tile);
}

}  // namespace ddtree::mla
