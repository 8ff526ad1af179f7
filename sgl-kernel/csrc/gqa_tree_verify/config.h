// SPDX-License-Identifier: Apache-2.0
// Sizes of one block (CTA) of gqa_tree_verify. docs/kernel-gqa.md derives them.
#pragma once

#include <cstdint>

#include "gqa_tree_verify/launch.h"

namespace ddtree::gqa {

inline constexpr int kSmemLimit = 101376;        // what one block may have on sm_120
inline constexpr int kTileBytes = 96 * 1024;     // of it for Q and for the rings of KV tiles
inline constexpr int kLoadWarps = 4;             // that copy keys and values from device memory
inline constexpr int kMaxBlocks = 256;           // of a launch, and so parts of one row tile

// Warps that attend. Before sm_90 registers cannot be moved between warps, and heads of 256 leave eight warps too few.
inline constexpr int attend_warps(int head_dim, int rows, bool moves_registers) {
  return head_dim == 256 && rows == 64 && !moves_registers ? 4 : 8;
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kMovesRegisters = false;
#else
inline constexpr bool kMovesRegisters = true;
#endif

// Registers a thread: 168 at entry (launch bounds), moved from the load warps to the others. The block cannot have more than
// it was launched with: a warp that asks for more waits forever.
inline constexpr int kEntryRegisters = 65536 / (32 * (8 + kLoadWarps)) / 8 * 8;
inline constexpr int kAttendRegisters = 232;
inline constexpr int kLoadRegisters = 40;
static_assert(8 * kAttendRegisters + kLoadWarps * kLoadRegisters <= (8 + kLoadWarps) * kEntryRegisters);

// The running maximum follows the true one only when it is left behind by this much (in powers of two), so that the
// accumulators are almost never rescaled; P then stays below 2^8, which bf16 and the fp32 sums hold without loss.
inline constexpr float kMaxSlack = 8.f;

// A block attends `Rows` rows (node, query head of one KV head) to keys of one request. Its warps that attend are
// `kGroups` groups; each takes every kGroups-th tile of keys from a ring of its own and has a softmax of its own, and they
// join at the end. In a group each warp has kMTiles m16 tiles of rows.
template <int HeadDim, int Rows, bool Fp8>
struct Tile {
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRows = Rows;
  static constexpr bool kFp8 = Fp8;
  static constexpr int kWarps = attend_warps(HeadDim, Rows, kMovesRegisters);
  static constexpr int kAttendThreads = 32 * kWarps;
  static constexpr int kThreads = kAttendThreads + 32 * kLoadWarps;

  // Two m16 tiles halve what a warp reads from shared memory for a product. 256 dimensions leave registers for one.
  static constexpr int kMTiles = Rows == 128 && HeadDim <= 128 ? 2 : 1;
  static constexpr int kRowWarps = Rows / (16 * kMTiles);
  static constexpr int kGroups = kWarps / kRowWarps;

  // Keys of a group's tile. Their scores share the registers with the output.
  static constexpr int kKeys = Rows == 16 ? 2048 / HeadDim : HeadDim == 64 ? 64 : HeadDim == 256 ? 16 : 32;
  // Whether the scores of the next tile are multiplied before the softmax of this one. It takes registers for both.
  static constexpr bool kScoresAhead = kMTiles == 1 && HeadDim <= 128 && (Rows == 16 || kMovesRegisters);
  static constexpr int kStepKeys = kKeys * kGroups;  // of a block's step
  static constexpr int kRowBytes = HeadDim * (Fp8 ? 1 : 2);
  static constexpr int kHalfBytes = kKeys * kRowBytes;  // K or V of a tile

  // The k16 steps of Q for which there is no register stay in shared memory.
  static constexpr int q_shared_steps() {
    if (HeadDim == 256) return kMovesRegisters ? 4 : 6;
    if (kMTiles == 2) return HeadDim == 64 ? 2 : Fp8 ? 8 : 7;
    return HeadDim == 128 && Rows == 64 && !kMovesRegisters ? 6 : 0;
  }
  static constexpr int kQSharedSteps = q_shared_steps();
  static constexpr int kQRegisterSteps = HeadDim / 16 - kQSharedSteps;
  static constexpr int kQRowBytes = 32 * kQSharedSteps + 16;  // an odd number of chunks: ldmatrix meets no bank conflict
  static constexpr int kQBytes = kQSharedSteps > 0 ? Rows * kQRowBytes : 0;
  static constexpr int kRingRoom = (kTileBytes - kQBytes) / kGroups / kHalfBytes;
  // Halves of a group's ring. Where tiles are taken in turn the code is written for a turn of it, and four are enough.
  static constexpr int kRingLimit = kScoresAhead ? 12 : 4;
  static constexpr int kRing = kRingRoom < kRingLimit ? kRingRoom : kRingLimit;
  static constexpr int kTurn = kScoresAhead ? 1 : kRing / 2;  // tiles that are taken at once
  static_assert(kScoresAhead || kRing % 2 == 0);
  static_assert(kRing >= 3);

  static constexpr int kLoadersPerGroup = kGroups < kLoadWarps ? kLoadWarps / kGroups : 1;
  static constexpr int kGroupsPerLoader = kGroups > kLoadWarps ? kGroups / kLoadWarps : 1;

  static constexpr int kColumnTiles = HeadDim / 8;    // n8 tiles of the output
  static constexpr int kColumnPairs = HeadDim / 16;   // what one warp joins and writes at a time
};

// A run of steps of one row tile.
struct Piece {
  int batch, tile;      // tile: kv_head * row_tiles + row tile
  int part;             // its place in the workspace; negative: a whole tile, written out directly
  int step, count;      // steps [step, step + count) of the tile
  int done;             // steps of the share before it
};

struct Plan {
  int batch, tile, step;  // where this block's share starts
  int total;              // steps in its share
  // If it starts inside a tile (step > 0), that tile's parts: of cut_parts blocks, the first of them cut_first.
  int cut_first, cut_parts;
  int cut_first_slot;  // where the workspace holds the first of them
};

struct RowStats {
  float max, sum;
};

template <class T>
struct Smem {
  alignas(1024) unsigned char tiles[kTileBytes];  // the groups' rings, then Q
  RowStats stats[T::kGroups][T::kRows];
  Plan plan;
  alignas(8) uint64_t full[T::kGroups][T::kRing];  // what the load warps have filled
  uint64_t empty[T::kGroups][T::kRing];            // what the group's warps have read
};

}  // namespace ddtree::gqa
