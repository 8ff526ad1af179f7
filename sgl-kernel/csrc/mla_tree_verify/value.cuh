// SPDX-License-Identifier: Apache-2.0
// The value warps: O += P V, and the output of each piece. Warp (group, quarter): the group's rows, 128 of 512 columns.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/combine.cuh"

namespace ddtree::mla {

template <int RowTiles>
struct ValueWarp {
  Smem<RowTiles>& smem;
  const Shape& shape;
  const OutputArgs& args;

  __device__ __forceinline__ static int lane(unsigned t = threadIdx.x) { return t % 32; }
  __device__ __forceinline__ static int group(unsigned t = threadIdx.x) { return t / (32 * kColumnGroups) - kScoreWarps / kColumnGroups; }
  __device__ __forceinline__ static int column(unsigned t = threadIdx.x) { return t / 32 % kColumnGroups * kColumnsPerWarp; }
  __device__ __forceinline__ static int quad_row(unsigned t = threadIdx.x) { return lane(t) / 4; }
  __device__ __forceinline__ static int quad_lane(unsigned t = threadIdx.x) { return lane(t) % 4; }

  __device__ __forceinline__ static int row(int m_tile, int h, unsigned t = threadIdx.x) {
    return group(t) * Tile<RowTiles>::kRowsPerGroup + m_tile * 16 + h * 8 + quad_row(t);
  }

  // The score warps say where pieces end and what they were; this side only counts steps, because its registers are full.
  __device__ __forceinline__ void run() const {
    for (int done = 0; done < smem.plan.total;) {
      float acc[RowTiles][kColumnTiles][4] = {};
      for (int last = 0; !last; ++done) {
        const int buffer = done % kBuffers, slot = done % kSlots;
        ptx::mbarrier_wait(&smem.step_full[buffer], (done / kBuffers) & 1);
        const Handover<RowTiles>& from = smem.handover[buffer];
        const int2 pair = reinterpret_cast<const int2*>(from.flags)[group()];
        const int flags = pair.x | pair.y;
        last = flags & kLast;
        uint32_t p[RowTiles][4];
        if (flags & kActive) {
#pragma unroll
          for (int t = 0; t < RowTiles; ++t) {
            const uint4 a = reinterpret_cast<const uint4*>(from.p[group() * RowTiles + t])[lane()];
            p[t][0] = a.x, p[t][1] = a.y, p[t][2] = a.z, p[t][3] = a.w;
          }
          if (flags & kRescale) rescale(acc, from, pair.x, pair.y);
        }
        if (!last) arrive(&smem.step_empty[buffer]);
        // Long since complete: the score warps waited for it. It is what orders the copy before these reads.
        ptx::mbarrier_wait(&smem.kv_full[slot], (done / kSlots) & 1);
        if (flags & kActive) multiply(acc, p, slot);
        arrive(&smem.kv_empty[slot]);
      }
      const int buffer = (done - 1) % kBuffers;
      const Handover<RowTiles>& from = smem.handover[buffer];
      if (from.piece.part < 0)
        write_out(acc, from);
      else
        write_part(acc, from);
      arrive(&smem.step_empty[buffer]);
    }
    if (smem.plan.total > 0) {
      static_assert(sizeof(CombineScratch) <= sizeof(smem.kv));
      const Piece& last = smem.handover[(smem.plan.total - 1) % kBuffers].piece;
      const Combine<Tile<RowTiles>::kRows> combine{reinterpret_cast<CombineScratch&>(smem.kv), shape, args, smem.plan};
      combine.run(last.part >= 0 && last.step == 0);
    }
    fill_padded();
  }

 private:
  __device__ __forceinline__ static void arrive(uint64_t* bar) {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(bar);
  }

  // Zeros for padded requests, which are in nobody's share.
  __device__ __forceinline__ void fill_padded() const {
    const unsigned thread = ptx::thread_index();
    const int rows = shape.num_nodes * args.num_heads;
    for (int b = blockIdx.x; b < shape.batch; b += gridDim.x) {
      if (shape.keys(b) > 0) continue;
      for (int row = thread / 32 - kScoreWarps; row < rows; row += kValueWarps) {
        const int node = row / args.num_heads, head = row - node * args.num_heads;
        const int64_t node_row = static_cast<int64_t>(b) * shape.num_nodes + node;
        uint4* to = reinterpret_cast<uint4*>(args.out + node_row * args.out_row_stride + head * args.out_head_stride);
        to[lane(thread)] = to[lane(thread) + 32] = make_uint4(0, 0, 0, 0);
        if (args.lse != nullptr) args.lse[node_row * args.num_heads + head] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void multiply(float (&acc)[RowTiles][kColumnTiles][4], const uint32_t (&p)[RowTiles][4],
                                           int slot) const {
    const uint32_t v_addr = ptx::smem_addr(smem.kv) + slot * kSlotBytes + (lane() % 16) * kRowPitch + (lane() / 16) * 16 +
                            column() * 2;
    uint32_t b[2][4];
    ptx::ldmatrix_x4_trans(b[0], v_addr);
#pragma unroll
    for (int n = 0; n < kColumnTiles / 2; ++n) {
      if (n + 1 < kColumnTiles / 2) ptx::ldmatrix_x4_trans(b[(n + 1) % 2], v_addr + (n + 1) * 32);
#pragma unroll
      for (int t = 0; t < RowTiles; ++t) {
        ptx::mma_bf16(acc[t][2 * n], p[t], b[n % 2][0], b[n % 2][1]);
        ptx::mma_bf16(acc[t][2 * n + 1], p[t], b[n % 2][2], b[n % 2][3]);
      }
    }
  }

  // Only the rows of score warps that say so: the other factors in shared memory are old.
  __device__ __forceinline__ void rescale(float (&acc)[RowTiles][kColumnTiles][4], const Handover<RowTiles>& from, int first_flags,
                                          int second_flags) const {
#pragma unroll
    for (int t = 0; t < RowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int flags = (RowTiles == 2 ? t : h) == 0 ? first_flags : second_flags;
        const float alpha = flags & kRescale ? from.alpha[row(t, h)] : 1.f;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) acc[t][n][h * 2] *= alpha, acc[t][n][h * 2 + 1] *= alpha;
      }
    }
  }

  // One row's addresses are live at a time: the thread index is read anew for each.
  template <typename Store>
  __device__ __forceinline__ void for_each_row(const Handover<RowTiles>& from, const Store& store) const {
#pragma unroll
    for (int t = 0; t < RowTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned thread = ptx::thread_index();
        const int r = row(t, h, thread);
        const int64_t offset = from.row_offset[r];
        if (offset >= 0) store(t, h, offset + column(thread), quad_lane(thread), from.row_inv_sum[r]);
      }
    }
  }

  __device__ __forceinline__ void write_out(const float (&acc)[RowTiles][kColumnTiles][4],
                                            const Handover<RowTiles>& from) const {
    for_each_row(from, [&](int t, int h, int64_t offset, int quad, float inv) {
      uint32_t* to = reinterpret_cast<uint32_t*>(args.out + offset) + quad;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n)
        to[n * 4] = ptx::pack_bf16(acc[t][n][h * 2] * inv, acc[t][n][h * 2 + 1] * inv);
    });
  }

  __device__ __forceinline__ void write_part(const float (&acc)[RowTiles][kColumnTiles][4],
                                             const Handover<RowTiles>& from) const {
    for_each_row(from, [&](int t, int h, int64_t offset, int quad, float inv) {
      uint2* to = reinterpret_cast<uint2*>(args.parts + offset) + quad;
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2)
        to[n * 2] = make_uint2(ptx::pack_f16_saturated(acc[t][n][h * 2] * inv, acc[t][n][h * 2 + 1] * inv),
                               ptx::pack_f16_saturated(acc[t][n + 1][h * 2] * inv, acc[t][n + 1][h * 2 + 1] * inv));
    });
  }
};

}  // namespace ddtree::mla
