// SPDX-License-Identifier: Apache-2.0
// One block of mla_tree_verify: 4 score warps and 8 value warps over this block's share of the KV steps.
#pragma once

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

  ptx::launch_dependents();
  if (warp == 0) {
    Plan plan{};
    const Shares shares(total_steps(shape), gridDim.x);
    if (blockIdx.x < shares.count && shares.total > 0) {
      const int begin = shares.begin(blockIdx.x);
      const Location where = locate(shape, begin);
      plan.batch = where.batch, plan.tile = where.tile, plan.step = where.step;
      plan.total = shares.begin(blockIdx.x + 1) - begin;
      if (threadIdx.x == 0)
        smem.walk = IndexWalk{where.batch, where.tile, where.step, where.steps, shape.keys(where.batch)};
    }
    if (threadIdx.x == 0) smem.plan = plan;
  } else if (threadIdx.x == 32) {
#if DDTREE_HAS_BULK_COPY
    const int kv_arrivals = 1;  // the lane that announces the bytes
#else
    const int kv_arrivals = 32;
#endif
    for (int i = 0; i < kSlots; ++i) {
      ptx::mbarrier_init(&smem.kv_full[i], kv_arrivals);
      ptx::mbarrier_init(&smem.kv_empty[i], kValueWarps);
    }
    for (int i = 0; i < kIndexRing; ++i) ptx::mbarrier_init(&smem.index_full[i], 32);
    ptx::mbarrier_init(&smem.p_full, kScoreWarps);
    ptx::mbarrier_init(&smem.p_empty, kValueWarps);
#if DDTREE_HAS_BULK_COPY
    ptx::fence_barrier_init();
#endif
  }
  __syncthreads();

  if (warp < kScoreWarps) {
    if constexpr (RowTiles == 2) ptx::grow_registers<kScoreRegisters>();
    ScoreWarp<RowTiles>(smem, shape, args.score).run();
  } else {
    if constexpr (RowTiles == 2) ptx::shrink_registers<kValueRegisters>();
    const KvRing<RowTiles> ring{smem, shape, args.kv};
    if (warp == kScoreWarps) ring.start();
    ValueWarp<RowTiles>(smem, shape, args.output).run(ring);
  }
}

}  // namespace ddtree::mla
