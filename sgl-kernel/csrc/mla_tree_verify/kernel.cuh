// SPDX-License-Identifier: Apache-2.0
// One block of mla_tree_verify: score, value and load warps over this block's share of the KV steps.
#pragma once

#include "mla_tree_verify/load.cuh"
#include "mla_tree_verify/score.cuh"
#include "mla_tree_verify/value.cuh"

namespace ddtree::mla {

struct KernelArgs {
  const int32_t* prefix_lens;
  int batch, num_nodes, tiles;
  ScoreArgs score;
  KvSource kv;
  OutputArgs output;

  __device__ __forceinline__ Shape shape() const { return Shape{prefix_lens, batch, num_nodes, tiles}; }
};

template <int RowTiles>
__global__ void __launch_bounds__(kThreads, 1) tree_verify_kernel(const __grid_constant__ KernelArgs args) {
#if defined(__CUDA_ARCH__) && !DDTREE_HAS_SETMAXNREG
  if constexpr (RowTiles == 2) return;  // never launched there: without moved registers it could only spill
#endif
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  Smem<RowTiles>& smem = *reinterpret_cast<Smem<RowTiles>*>(smem_bytes);
  const Shape shape = args.shape();
  const int warp = threadIdx.x / 32;

  if (warp == 0) {
    Plan plan{};
    const Shares shares(total_steps(shape), gridDim.x);
    if (blockIdx.x < shares.count && shares.total > 0) {
      const int begin = shares.begin(blockIdx.x);
      const Location where = locate(shape, begin);
      plan = Plan{where.batch, where.tile, where.step, shares.begin(blockIdx.x + 1) - begin};
      if (where.step > 0) {
        const int first = shares.owner(where.tile_begin);
        plan.cut_first = first;
        plan.cut_parts = shares.owner(where.tile_begin + where.steps - 1) - first + 1;
        // A block that began before the tile left its part of it in its second slot.
        plan.cut_first_slot = 2 * first + (shares.begin(first) < where.tile_begin ? 1 : 0);
      }
    }
    if (threadIdx.x == 0) smem.plan = plan;
  } else if (threadIdx.x == 32) {
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(&smem.kv_full[i], LoadWarp<RowTiles>::kArrivals);
      ptx::mbarrier_init(&smem.kv_empty[i], kValueWarps);
    }
    for (int i = 0; i < kBuffers; ++i) {
      ptx::mbarrier_init(&smem.step_full[i], kScoreWarps);
      ptx::mbarrier_init(&smem.step_empty[i], kValueWarps);
    }
#if DDTREE_HAS_BULK_COPY
    ptx::fence_barrier_init();
#endif
  }
  __syncthreads();

  if (warp < kScoreWarps) {
    if constexpr (RowTiles == 2) ptx::grow_registers<kScoreRegisters>();
    ScoreWarp<RowTiles>(smem, shape, args.score, args.output).run();
  } else if (warp < kScoreWarps + kValueWarps) {
    if constexpr (RowTiles == 2) ptx::grow_registers<kValueRegisters>();
    ValueWarp<RowTiles>(smem, shape, args.output).run();
  } else {
    if constexpr (RowTiles == 2) ptx::shrink_registers<kLoadRegisters>();
    LoadWarp<RowTiles>{smem, shape, args.kv, warp - kScoreWarps - kValueWarps}.run();
  }
}

}  // namespace ddtree::mla
