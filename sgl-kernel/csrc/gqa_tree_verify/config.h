// SPDX-License-Identifier: Apache-2.0
// Sizes of one block (CTA) of gqa_tree_verify. docs/kernel-gqa.md derives them.
#pragma once

#include <cstdint>

#include "gqa_tree_verify/launch.h"

namespace ddtree::gqa {

inline constexpr int kSmemLimit = 101376;        // what one block may have on sm_120
inline constexpr int kTileBytes = 96 * 1024;     // of it for Q and for the rings of KV tiles
inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kMaxBlocks = 256;           // of a launch, and so parts of one row tile

// The running maximum follows the true one only when it is left behind by this much (in powers of two), so that the
// accumulators are almost never rescaled; P then stays below 2^8, which bf16 and the fp32 sums hold without loss.
inline constexpr float kMaxSlack = 8.f;

// A block attends `Rows` rows (node, query head of one KV head) to keys of one request. Its eight warps are `kGroups` groups;
// each takes every kGroups-th tile of keys with a ring and a softmax of its own, and they join at the end. In a group each
// warp has kMTiles m16 tiles of rows.
template <int HeadDim, int Rows, bool Fp8>
struct Tile {
  static constexpr int kHeadDim = HeadDim;
  static constexpr int kRows = Rows;
  static constexpr bool kFp8 = Fp8;

  // Two m16 tiles halve what a warp reads from shared memory for a product. 256 dimensions leave registers for one.
  static constexpr int kMTiles = Rows == 128 && HeadDim <= 128 ? 2 : 1;
  static constexpr int kRowWarps = Rows / (16 * kMTiles);
  static constexpr int kGroups = kWarps / kRowWarps;

  // Keys of a group's tile. Their scores share the registers with the output.
  static constexpr int kKeys = Rows == 16 ? 2048 / HeadDim : HeadDim == 64 ? 64 : HeadDim == 256 ? 16 : Rows == 64 ? 64 : 32;
  static constexpr int kStepKeys = kKeys * kGroups;  // of a block's step
  static constexpr int kRowBytes = HeadDim * (Fp8 ? 1 : 2);
  static constexpr int kHalfBytes = kKeys * kRowBytes;  // K or V of a tile

  // Q is kept in registers, but where two m16 tiles of 128 dimensions would take 64 of them.
  static constexpr bool kQInShared = kMTiles == 2 && HeadDim == 128;
  static constexpr int kQRegisterSteps = kQInShared ? 1 : HeadDim / 16;  // k16 steps held in registers
  static constexpr int kQBytes = kQInShared ? Rows * HeadDim * 2 : 0;
  static constexpr int kRingRoom = (kTileBytes - kQBytes) / kGroups / kHalfBytes;
  static constexpr int kRing = kRingRoom < 8 ? kRingRoom : 8;  // halves of a group's ring
  static_assert(kRing >= 3);

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
  // If it starts inside a tile (step > 0), that tile's parts: of blocks [cut_first, cut_first + cut_parts).
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
};

}  // namespace ddtree::gqa
