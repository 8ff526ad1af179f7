// SPDX-License-Identifier: Apache-2.0
// Sizes of one block (CTA) of mla_tree_verify. docs/kernel.md derives them.
#pragma once

#include <cstdint>

#include "mla_tree_verify/launch.h"

namespace ddtree::mla {

inline constexpr int kSmemLimit = 101376;  // what one block may have on sm_120

inline constexpr int kBlockKeys = 16;  // keys of one pipeline step: one k16 step of the P.V product
inline constexpr int kSlots = 5;       // KV steps in flight or in use
inline constexpr int kRowBytes = kMlaHeadDim * 2;
inline constexpr int kRowPitch = kRowBytes + 16;  // 73 chunks of 16 bytes: 8 successive rows hit 8 different bank groups
inline constexpr int kSlotBytes = kBlockKeys * kRowPitch;

inline constexpr int kScoreWarps = 4;  // Q.K and softmax
inline constexpr int kValueWarps = 8;  // P.V, and the KV loads
inline constexpr int kThreads = 32 * (kScoreWarps + kValueWarps);

// A value warp covers one of two row groups and a quarter of the 512 columns.
inline constexpr int kRowGroups = 2;
inline constexpr int kColumnGroups = 4;
inline constexpr int kColumnsPerWarp = kMlaLatentDim / kColumnGroups;
inline constexpr int kColumnTiles = kColumnsPerWarp / 8;  // n8 tiles: 16

// Page ids are fetched this many steps before the rows that they name.
inline constexpr int kIndexLead = 4;
inline constexpr int kIndexRing = 8;

// The running maximum follows the true one only when it is left behind by this much (in powers of two), so that the
// accumulators are almost never rescaled; P then stays below 2^8, which bf16 and the fp32 sums hold without loss.
inline constexpr float kMaxSlack = 8.f;

// Registers a thread: 168 at entry (launch bounds), moved from the value warps to the score warps. The block cannot have
// more than it was launched with: a score warp that asks for more waits forever.
inline constexpr int kEntryRegisters = 168;
inline constexpr int kScoreRegisters = 184;
inline constexpr int kValueRegisters = 160;
static_assert(kScoreWarps * kScoreRegisters + kValueWarps * kValueRegisters <= (kScoreWarps + kValueWarps) * kEntryRegisters);

// RowTiles: m16 tiles of a row group. 2: a block tile of 64 rows (node, head), one m16 tile a score warp. 1: of 32 rows; two
// score warps then share an m16 tile and take half of the 576 dimensions each, which halves the registers that Q takes.
template <int RowTiles>
struct Tile {
  static constexpr int kRowsPerGroup = 16 * RowTiles;
  static constexpr int kRows = kRowsPerGroup * kRowGroups;
  static constexpr int kHalves = 2 / RowTiles;
  static constexpr int kDimSteps = kMlaHeadDim / 16 / kHalves;  // k16 steps of a score warp: 36 or 18
};

// Where the walk over KV steps stands, for the warp that fetches page ids. Shared, because that warp changes.
struct IndexWalk {
  int batch, tile, step, steps, keys;
};

// What a score warp tells the value warps of its group with each step.
enum StepFlag : int { kActive = 1, kRescale = 2, kLast = 4 };

// A run of steps of one row tile.
struct Piece {
  int batch, tile;
  int part;         // its place in the workspace; negative: a whole tile, written out directly
  int step, count;  // steps [step, step + count) of the tile
  int done;         // steps of the share before it
};

struct Plan {
  int batch, tile, step;  // where this block's share starts
  int total;              // steps in its share
};

template <int RowTiles>
struct Smem {
  static constexpr int kRows = Tile<RowTiles>::kRows;
  alignas(128) unsigned char kv[kSlots * kSlotBytes];
  alignas(16) float exchange[kScoreWarps][RowTiles == 1 ? 4 * 32 : 4];  // partial scores for the other half
  alignas(16) uint32_t p[kRows / 16][4 * 32];                  // P as A fragments
  float row_max[kRows];  // of the piece so far; in units of log2
  float alpha[kRows];
  float row_lse[kRows];
  float row_inv_sum[kRows];
  int step_flags[kScoreWarps];
  int page_ids[kIndexRing][kBlockKeys];
  int first_key[kIndexRing];
  int last_key[kIndexRing];
  IndexWalk walk;
  Plan plan;
  Piece finished;  // the piece that the row statistics belong to
  Piece walk_of[kScoreWarps];
  alignas(8) uint64_t kv_full[kSlots];
  uint64_t kv_empty[kSlots];
  uint64_t index_full[kIndexRing];
  uint64_t p_full, p_empty;
};

static_assert(sizeof(Smem<2>) <= kSmemLimit && sizeof(Smem<1>) <= kSmemLimit);

}  // namespace ddtree::mla
