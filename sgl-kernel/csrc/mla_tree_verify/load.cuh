// SPDX-License-Identifier: Apache-2.0
// The load warps: KV rows from the pool to a ring of kSlots steps of 16 rows, as slots become free.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/plan.cuh"

namespace ddtree::mla {

struct KvSource {
  const char* pool;
  int64_t row_bytes;
  const int32_t* page_table;
  int64_t page_table_stride;
  int page_shift;  // log2 of the page size
};

// Each of the four load warps copies four rows of every step: to start a bulk copy takes one lane at a time, and 16 in a row
// would take longer than the step is worked on.
template <int RowTiles>
struct LoadWarp {
  static constexpr int kRows = kBlockKeys / kLoadWarps;  // of a step
  static constexpr int kStepsAhead = 32 / kRows;         // whose page ids one load fetches: lane / kRows is the step
#if DDTREE_HAS_BULK_COPY
  static constexpr int kArrivals = kLoadWarps;  // on kv_full: the lanes that announce the bytes
#else
  static constexpr int kArrivals = 32 * kLoadWarps;
#endif

  Smem<RowTiles>& smem;
  const Shape& shape;
  const KvSource& source;
  const int warp;  // among the load warps

  __device__ __forceinline__ void run() const {
    const int lane = threadIdx.x % 32;
    Piece& piece = smem.piece_of[kScoreWarps + warp];
    if (lane == 0) piece.done = piece.count = 0;
    __syncwarp();
    Cursor at;
    while (next_piece(piece, shape, smem.plan)) {
      const int32_t* table = source.page_table + piece.batch * source.page_table_stride;
      const int last = shape.keys(piece.batch) - 1;
      int key = (piece.step + lane / kRows) * kBlockKeys + warp * kRows + lane % kRows;
      // Page ids are here one load ahead. Past the end they repeat the last key's, so that nothing is read that the request
      // does not own.
      int page = __ldg(table + (min(key, last) >> source.page_shift));
      for (int left = piece.count; left > 0; left -= kStepsAhead) {
        const char* row = row_of(page, min(key, last));
        key += kStepsAhead * kBlockKeys;
        page = __ldg(table + (min(key, last) >> source.page_shift));
        for (int step = 0; step < min(left, kStepsAhead); ++step) {
          ptx::mbarrier_wait(&smem.kv_empty[at.slot()], at.slot_phase() ^ 1);  // a fresh ring is free
          copy(row, step, at.slot());
          at.advance();
        }
      }
    }
  }

 private:
  __device__ __forceinline__ const char* row_of(int page, int key) const {
    const int offset = key & ((1 << source.page_shift) - 1);
    const int64_t token = (static_cast<int64_t>(page) << source.page_shift) + offset;
    return source.pool + token * source.row_bytes;
  }

  // The rows that the lanes of `step` know, into a slot.
  __device__ __forceinline__ void copy(const char* row, int step, int slot) const {
    const int lane = threadIdx.x % 32;
    const uint32_t to = ptx::smem_addr(smem.kv) + slot * kSlotBytes + warp * kRows * kRowPitch;
    uint64_t* const full = &smem.kv_full[slot];
#if DDTREE_HAS_BULK_COPY
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kRows * kRowBytes);
    __syncwarp();
    if (lane / kRows == step) ptx::bulk_copy(to + lane % kRows * kRowPitch, row, kRowBytes, full);
#else
    // A row is 72 chunks of 16 bytes: two whole warps and a quarter of one.
    const uint64_t mine = reinterpret_cast<uint64_t>(row);
    for (int r = 0; r < kRows; ++r) {
      const char* from = reinterpret_cast<const char*>(__shfl_sync(~0u, mine, step * kRows + r)) + lane * 16;
      ptx::cp_async_16(to + r * kRowPitch + lane * 16, from);
      ptx::cp_async_16(to + r * kRowPitch + lane * 16 + 512, from + 512);
    }
    const int r = lane / 8, chunk = 1024 + lane % 8 * 16;
    const char* from = reinterpret_cast<const char*>(__shfl_sync(~0u, mine, step * kRows + r)) + chunk;
    ptx::cp_async_16(to + r * kRowPitch + chunk, from);
    ptx::cp_async_arrive(full);
#endif
  }
};

}  // namespace ddtree::mla
