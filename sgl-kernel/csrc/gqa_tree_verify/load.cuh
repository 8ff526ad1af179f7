// SPDX-License-Identifier: Apache-2.0
// The load warps: K and V of the groups' tiles, from the pool into the groups' rings as their slots become free: K of a tile,
// V of the tile, K of the next one.
//
// A load warp copies a run of rows of each half, 16 bytes a lane. A lane knows the slot of one of its warp's rows; slots are
// fetched one tile ahead. Rows lie unpadded; the 16-byte chunks of a row are permuted so that ldmatrix meets no bank conflict.
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

// Where a warp is in a ring, in one register.
template <int Ring>
struct Cursor {
  uint32_t state = 0;  // slot, its barrier's phase from bit 8

  __device__ __forceinline__ int slot() const { return state & 0xff; }
  __device__ __forceinline__ uint32_t phase() const { return state >> 8 & 1; }
  __device__ __forceinline__ void advance() {
    ++state;
    if (slot() == Ring) state = (state & ~0xffu) ^ 0x100;
  }
  __device__ __forceinline__ void set_phase(uint32_t phase) { state = (state & 0xff) | phase << 8; }
};

template <class T>
struct LoadWarp {
  static constexpr int kWarpRows = T::kKeys / T::kLoadersPerGroup;
  static constexpr int kLanesPerRow = T::kRowBytes / 16;
  static constexpr int kRowsAtOnce = 32 / kLanesPerRow;
  static constexpr int kRingBytes = T::kRing * T::kHalfBytes;
  static constexpr int kArrivals = 32 * T::kLoadersPerGroup;  // on a full barrier
  static_assert(kWarpRows <= 32 && kWarpRows % kRowsAtOnce == 0);

  Smem<T>& smem;
  const Work& work;
  const KvSource& source;
  const int warp;  // among the load warps
  Cursor<T::kRing> at;

  // The piece's halves, for all groups that this warp serves.
  __device__ __forceinline__ void run(const Piece& piece) {
    const unsigned lane = threadIdx.x % 32;
    const int group = T::kGroupsPerLoader > 1 ? warp * T::kGroupsPerLoader : warp / T::kLoadersPerGroup;
    const int part = warp % T::kLoadersPerGroup;
    const int head = piece.tile / work.row_tiles;
    const unsigned row = part * kWarpRows + lane / kLanesPerRow, chunk = lane % kLanesPerRow;
    const uint32_t offset = ptx::smem_addr(smem.tiles) + group * (T::kRing * T::kHalfBytes) + row * T::kRowBytes +
                            (chunk ^ swizzle<T::kRowBytes>(row)) * 16;
    const char* const k = source.k_pool + head * source.k_head_bytes + chunk * 16;
    const char* const v = source.v_pool + head * source.v_head_bytes + chunk * 16;
    const int32_t* const table = source.page_table + piece.batch * source.page_table_stride;
    const int last = work.end(piece.batch) - 1;
    int key = work.begin(piece.batch) + piece.step * T::kStepKeys + group * T::kKeys + part * kWarpRows + lane % kWarpRows;
    int next[T::kGroupsPerLoader];
#pragma unroll
    for (int g = 0; g < T::kGroupsPerLoader; ++g) next[g] = look_up(table, min(key + g * T::kKeys, last));
    // Where a group takes a turn of the ring at a time, the last one may end with empty halves.
    const int tiles = T::kTurn == 1 ? piece.count : (piece.count + T::kTurn - 1) / T::kTurn * T::kTurn;
    for (int i = 0; i < tiles; ++i) {
      int slots[T::kGroupsPerLoader];
      key += T::kStepKeys;
#pragma unroll
      for (int g = 0; g < T::kGroupsPerLoader; ++g) {
        slots[g] = next[g];
        next[g] = look_up(table, min(key + g * T::kKeys, last));
      }
#pragma unroll
      for (int g = 0; g < T::kGroupsPerLoader; ++g)
        copy(k, source.k_row_bytes, slots[g], group + g, offset + g * kRingBytes, i < piece.count);
      at.advance();
#pragma unroll
      for (int g = 0; g < T::kGroupsPerLoader; ++g)
        copy(v, source.v_row_bytes, slots[g], group + g, offset + g * kRingBytes, i < piece.count);
      at.advance();
    }
  }

 private:
  // The slot of a key. Keys past the end repeat the last one, so that nothing is read that the request does not own.
  __device__ __forceinline__ int look_up(const int32_t* table, int token) const {
    return (__ldg(table + (token >> source.page_shift)) << source.page_shift) + (token & ((1 << source.page_shift) - 1));
  }

  __device__ __forceinline__ void copy(const char* base, uint32_t row_bytes, int slot, int group, uint32_t offset,
                                       bool wanted) const {
    ptx::mbarrier_wait(&smem.empty[group][at.slot()], at.phase() ^ 1);  // a fresh ring is free
    const int lane = threadIdx.x % 32;
    offset += at.slot() * T::kHalfBytes;
    if (wanted) {
#pragma unroll
      for (int r = 0; r < kWarpRows; r += kRowsAtOnce) {
        const uint32_t row = __shfl_sync(~0u, slot, r + lane / kLanesPerRow);
        ptx::cp_async_16((offset ^ swizzle<T::kRowBytes>(r) * 16) + r * T::kRowBytes,
                         base + static_cast<uint64_t>(row) * row_bytes);
      }
    }
    ptx::cp_async_arrive(&smem.full[group][at.slot()]);
  }
};

}  // namespace ddtree::gqa
