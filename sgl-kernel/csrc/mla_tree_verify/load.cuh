// SPDX-License-Identifier: Apache-2.0
// The load warp: KV rows from the pool to a ring of kSlots steps of 16 rows, as slots become free.
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

template <int RowTiles>
struct LoadWarp {
#if DDTREE_HAS_BULK_COPY
  static constexpr int kArrivals = 1;  // on kv_full: the lane that announces the bytes
#else
  static constexpr int kArrivals = 32;
#endif

  Smem<RowTiles>& smem;
  const Shape& shape;
  const KvSource& source;

  __device__ __forceinline__ void run() const {
    const int lane = threadIdx.x % 32;
    Piece& piece = smem.piece_of[kScoreWarps];
    if (lane == 0) piece.done = piece.count = 0;
    __syncwarp();
    Cursor at;
    while (next_piece(piece, shape, smem.plan)) {
      const int32_t* table = source.page_table + piece.batch * source.page_table_stride;
      const int last = shape.keys(piece.batch) - 1;
      int key = piece.step * kBlockKeys + lane;  // of this lane, in the 32 keys of two steps
      // Page ids are there two pairs of steps ahead. Past the end they repeat the last key's, so that nothing is read that
      // the request does not own.
      int page = __ldg(table + (min(key, last) >> source.page_shift));
      int next_page = __ldg(table + (min(key + 32, last) >> source.page_shift));
      for (int left = piece.count; left > 0; left -= 2) {
        const int offset = min(key, last) & ((1 << source.page_shift) - 1);
        const int64_t token = (static_cast<int64_t>(page) << source.page_shift) + offset;
        const char* row = source.pool + token * source.row_bytes;
        page = next_page;
        key += 32;
        next_page = __ldg(table + (min(key + 32, last) >> source.page_shift));
        for (int half = 0; half < min(left, 2); ++half) {
          ptx::mbarrier_wait(&smem.kv_empty[at.slot()], at.slot_phase() ^ 1);  // a fresh ring is free
          copy(row, half, at.slot());
          at.advance();
        }
      }
    }
  }

 private:
  // Rows of lanes [16 half, 16 half + 16) into a slot.
  __device__ __forceinline__ void copy(const char* row, int half, int slot) const {
    const int lane = threadIdx.x % 32;
    const uint32_t to = ptx::smem_addr(smem.kv) + slot * kSlotBytes;
    uint64_t* const full = &smem.kv_full[slot];
#if DDTREE_HAS_BULK_COPY
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kBlockKeys * kRowBytes);
    __syncwarp();
    if (lane / kBlockKeys == half) ptx::bulk_copy(to + lane % kBlockKeys * kRowPitch, row, kRowBytes, full);
#else
    // A row is 72 chunks of 16 bytes: two whole warps and a quarter of one.
    const uint64_t mine = reinterpret_cast<uint64_t>(row);
    for (int r = 0; r < kBlockKeys; ++r) {
      const char* from = reinterpret_cast<const char*>(__shfl_sync(~0u, mine, half * kBlockKeys + r)) + lane * 16;
      ptx::cp_async_16(to + r * kRowPitch + lane * 16, from);
      ptx::cp_async_16(to + r * kRowPitch + lane * 16 + 512, from + 512);
    }
    for (int four = 0; four < kBlockKeys; four += 4) {
      const int r = four + lane / 8, at = 1024 + lane % 8 * 16;
      const char* from = reinterpret_cast<const char*>(__shfl_sync(~0u, mine, half * kBlockKeys + r)) + at;
      ptx::cp_async_16(to + r * kRowPitch + at, from);
    }
    ptx::cp_async_arrive(full);
#endif
  }
};

}  // namespace ddtree::mla
