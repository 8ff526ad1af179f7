// SPDX-License-Identifier: Apache-2.0
// One block of gqa_tree_verify: warps that attend and warps that load, over the pieces of the block's share one after
// another, then the tiles that it shares with others.
#pragma once

#include "gqa_tree_verify/combine.cuh"

namespace ddtree::gqa {

struct KernelArgs {
  Work work;
  ScoreArgs score;
  KvSource kv;
  OutputArgs output;
};

// Zeros for padded requests, which are in nobody's share.
template <class T>
__device__ __forceinline__ void fill_padded(const Work& work, const OutputArgs& args) {
  const int heads = work.kv_heads * work.group, lane = threadIdx.x % 32;
  for (int b = blockIdx.x; b < work.batch; b += gridDim.x) {
    if (work.prefix(b) >= 0) continue;
    for (int row = threadIdx.x / 32; row < work.num_nodes * heads; row += T::kWarps) {
      const int node = row / heads, head = row - node * heads;
      const int64_t node_row = static_cast<int64_t>(b) * work.num_nodes + node;
      uint4* const to = reinterpret_cast<uint4*>(args.out + node_row * args.out_row_stride + head * args.out_head_stride);
      if (lane < T::kHeadDim / 8) to[lane] = make_uint4(0, 0, 0, 0);
      if (args.lse != nullptr && lane == 0) args.lse[node_row * heads + head] = -INFINITY;
    }
  }
}

template <int HeadDim, int Rows, bool Fp8>
__global__ void __launch_bounds__(Tile<HeadDim, Rows, Fp8>::kThreads, 1)
    tree_verify_kernel(const __grid_constant__ KernelArgs args) {
#if defined(__CUDA_ARCH__) && !DDTREE_HAS_SETMAXNREG
  if constexpr (Rows == 128) return;  // never launched there: without moved registers it could only spill
#endif
  using T = Tile<HeadDim, Rows, Fp8>;
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  Smem<T>& smem = *reinterpret_cast<Smem<T>*>(smem_bytes);
  // The shuffle tells the compiler that a warp agrees on it.
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

  if (warp == 0) {
    const Plan plan = make_plan<T::kStepKeys>(args.work);
    if (threadIdx.x == 0) smem.plan = plan;
  } else if (threadIdx.x == 32) {
    for (int g = 0; g < T::kGroups; ++g) {
      for (int i = 0; i < T::kRing; ++i) {
        ptx::mbarrier_init(&smem.full[g][i], LoadWarp<T>::kArrivals);
        ptx::mbarrier_init(&smem.empty[g][i], T::kRowWarps);
      }
    }
  }
  __syncthreads();

  Piece piece{};
  if (warp >= T::kWarps) {
    ptx::shrink_registers<kLoadRegisters>();
    LoadWarp<T> load{smem, args.work, args.kv, warp - T::kWarps};
    while (next_piece<T::kStepKeys>(piece, args.work, smem.plan)) {
      load.run(piece);
      ptx::named_barrier(2, T::kThreads);  // the rings' memory is used for the piece's output
    }
    return;
  }
  ptx::grow_registers<kAttendRegisters>();
  const int group = T::kGroups == 1 ? 0 : warp / T::kRowWarps, row_warp = warp % T::kRowWarps;
  Cursor<T::kRing> k_at, ahead;
  ahead.advance();
  Cursor<T::kRing>& v_at = T::kScoresAhead ? ahead : k_at;
  while (next_piece<T::kStepKeys>(piece, args.work, smem.plan)) {
    const AttendWarp<T> attend{args.work, args.score, piece, smem, group, row_warp};
    typename AttendWarp<T>::Accumulator acc = {};
    typename AttendWarp<T>::Rows rows;
    attend.run(k_at, v_at, acc, rows);
    ptx::named_barrier(1, T::kAttendThreads);
    PieceOutput<T>{attend, args.output, smem}.run(acc, rows);
    ptx::named_barrier(2, T::kThreads);
  }
  if (smem.plan.total > 0) {
    const Combine<T> combine{*reinterpret_cast<typename Combine<T>::Scratch*>(smem.tiles), args.work, args.output, smem.plan};
    combine.run(piece.part >= 0 && piece.step == 0);
  }
  fill_padded<T>(args.work, args.output);
}

}  // namespace ddtree::gqa
