// SPDX-License-Identifier: Apache-2.0
// K and V of a group's tiles, from the pool into the group's ring: K of a tile, V of the tile, K of the next one.
//
// Every warp of the group copies a run of rows of each half, 16 bytes a lane. A lane knows the slot of one of its warp's rows;
// slots are fetched one tile ahead. Rows lie unpadded; the 16-byte chunks of a row are permuted so that ldmatrix meets no bank
// conflict.
#pragma once

#include "common/ptx.cuh"
#include "gqa_tree_verify/plan.cuh"

namespace ddtree::gqa {

struct KvSource {
  const char *k_pool, *v_pool;
  uint32_t k_row_bytes, v_row_bytes;    // from slot to slot
  int64_t k_head_bytes, v_head_bytes;
  const int32_t* page_table;
  int64_t page_table_stride;
  int page_shift;  // log2 of the page size
};

// What the position of a chunk in row `row` is XORed with.
template <int RowBytes>
__device__ __forceinline__ constexpr unsigned swizzle(unsigned row) {
  return RowBytes == 64 ? row / 2 % 4 : row % 8;
}

template <class T>
struct Loader {
  static constexpr int kWarpRows = T::kKeys / T::kRowWarps;
  static constexpr int kLanesPerRow = T::kRowBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kLanesPerRow;
  static_assert(kWarpRows <= 32 && kWarpRows % kRowsAtOnce == 0);

  const KvSource& source;
  const int32_t* table;
  const char *k, *v;  // this lane's chunk of the head's columns
  uint32_t ring;      // shared address of the group's ring
  uint32_t offset;    // of this lane's first row and chunk in a half
  int first, last;    // keys that may be read
  int key;            // of this lane's row in the next tile to be looked up
  int slot, next_slot;
  int at = 0;         // half of the ring that is filled next
  int left;           // tiles whose K has not been asked for

  __device__ __forceinline__ Loader(const KvSource& source, const Work& work, const Piece& piece, unsigned char* tiles,
                                    int group, int row_warp)
      : source(source), table(source.page_table + piece.batch * source.page_table_stride),
        first(work.begin(piece.batch)), last(work.end(piece.batch) - 1), left(piece.count) {
    const int lane = threadIdx.x % 32, head = piece.tile / work.row_tiles;
    const unsigned row = row_warp * kWarpRows + lane / kLanesPerRow, chunk = lane % kLanesPerRow;
    ring = ptx::smem_addr(tiles) + group * (T::kRing * T::kHalfBytes);
    offset = row * T::kRowBytes + (chunk ^ swizzle<T::kRowBytes>(row)) * 16;
    k = source.k_pool + head * source.k_head_bytes + chunk * 16;
    v = source.v_pool + head * source.v_head_bytes + chunk * 16;
    key = first + piece.step * T::kStepKeys + group * T::kKeys + row_warp * kWarpRows + lane % kWarpRows;
    next_slot = look_up();
  }

  // Starts the copies of the next half, if there is one; counts as a group of copies in any case.
  template <bool IsValue>
  __device__ __forceinline__ void issue() {
    if constexpr (!IsValue) {
      slot = next_slot;
      next_slot = look_up();
    }
    if (IsValue ? left >= 0 : left-- > 0) {
      const int lane = threadIdx.x % 32;
      const char* const base = IsValue ? v : k;
      const uint32_t row_bytes = IsValue ? source.v_row_bytes : source.k_row_bytes;
      const uint32_t to = ring + at * T::kHalfBytes;
#pragma unroll
      for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
        const uint32_t row = __shfl_sync(~0u, slot, r + lane / kLanesPerRow);
        ptx::cp_async_16(to + (offset ^ swizzle<T::kRowBytes>(r) * 16) + r * T::kRowBytes,
                         base + static_cast<uint64_t>(row) * row_bytes);
      }
    }
    ptx::cp_async_commit();
    if (++at == T::kRing) at = 0;
  }

 private:
  // The slot of this lane's key, and on to the next tile. Keys past either end repeat the nearest one that the request owns.
  __device__ __forceinline__ int look_up() {
    const int token = min(key, last);
    key += T::kStepKeys;
    return (__ldg(table + (token >> source.page_shift)) << source.page_shift) + (token & ((1 << source.page_shift) - 1));
  }
};

}  // namespace ddtree::gqa
