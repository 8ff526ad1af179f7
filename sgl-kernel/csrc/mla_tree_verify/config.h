// SPDX-License-Identifier: Apache-2.0
// Sizes of one block (CTA) of mla_tree_verify. docs/kernel.md derives them.
#pragma once

#include <cstdint>

#include "mla_tree_verify/launch.h"

namespace ddtree::mla {

inline constexpr int kSmemLimit = 101376;  // what one block may have on sm_120

inline constexpr int kBlockKeys = 16;  // keys of one pipeline step: one k16 step of the P.V product
inline constexpr int kSlots = 4;       // KV steps in flight or in use
inline constexpr int kRowBytes = kMlaHeadDim * 2;
inline constexpr int kRowPitch = kRowBytes + 16;  // 73 chunks of 16 bytes: 8 successive rows hit 8 different bank groups
inline constexpr int kSlotBytes = kBlockKeys * kRowPitch;

inline constexpr int kScoreWarps = 4;  // Q.K and softmax
inline constexpr int kValueWarps = 8;  // P.V
inline constexpr int kLoadWarps = 4;   // KV rows from device memory
inline constexpr int kWarps = kScoreWarps + kValueWarps + kLoadWarps;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kBuffers = 2;            // of what score warps hand to value warps with each step

// A value warp covers one of two row groups and a quarter of the 512 columns.
inline constexpr int kRowGroups = 2;
inline constexpr int kColumnGroups = 4;
inline constexpr int kColumnsPerWarp = kMlaLatentDim / kColumnGroups;
inline constexpr int kColumnTiles = kColumnsPerWarp / 8;  // n8 tiles: 16

// Blocks of a launch at most, and so parts of one tile.
inline constexpr int kMaxBlocks = 256;

// The running maximum follows the true one only when it is left behind by this much (in powers of two), so that the
// accumulators are almost never rescaled; P then stays below 2^8, which bf16 and the fp32 sums hold without loss.
inline constexpr float kMaxSlack = 8.f;
inline constexpr int kExactSteps = 8;

// Registers a thread: 128 at entry (launch bounds), moved from the load warps to the others. The block cannot have more than
// it was launched with: a warp that asks for more waits forever.
inline constexpr int kEntryRegisters = 65536 / kThreads;
inline constexpr int kScoreRegisters = 184;
inline constexpr int kValueRegisters = 152;
inline constexpr int kLoadRegisters = 24;
static_assert(kScoreWarps * kScoreRegisters + kValueWarps * kValueRegisters + kLoadWarps * kLoadRegisters <=
              kWarps * kEntryRegisters);

// RowTiles: m16 tiles of a row group. 2: a block tile of 64 rows (node, head), one m16 tile a score warp. 1: of 32 rows; two
// score warps then share an m16 tile and take half of the 576 dimensions each, which halves the registers that Q takes.
template <int RowTiles>
struct Tile {
  static constexpr int kRowsPerGroup = 16 * RowTiles;
  static constexpr int kRows = kRowsPerGroup * kRowGroups;
  static constexpr int kHalves = 2 / RowTiles;
  static constexpr int kDimSteps = kMlaHeadDim / 16 / kHalves;  // k16 steps of a score warp: 36 or 18
  // Of the nine stages of Q two stay in shared memory, the fifth and the last: with all 36 fragments in registers the compiler
  // has none left to load K fragments ahead.
  static constexpr int kSharedStages = RowTiles == 2 ? 2 : 0;
  static constexpr bool in_shared(int k) { return RowTiles == 2 && (k / 4 == 4 || k / 4 == 8); }
  static constexpr int shared_stage(int k) { return k / 4 == 4 ? 0 : 1; }
  static constexpr int q_register(int k) { return RowTiles == 2 && k / 4 > 4 ? k - 4 : k; }
  static constexpr int kQInRegisters = kDimSteps - 4 * kSharedStages;
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
  // If it starts inside a tile (step > 0), that tile's parts: of blocks [cut_first, cut_first + cut_parts).
  int cut_first, cut_parts;
  int cut_first_slot;  // where the workspace holds the first of them
};

// What the score warps hand over with step i, in buffer i % kBuffers: P, and with a piece's last step its statistics.
template <int RowTiles>
struct Handover {
  static constexpr int kRows = Tile<RowTiles>::kRows;
  alignas(16) uint32_t p[kRows / 16][4 * 32];  // as A fragments
  alignas(16) int flags[kScoreWarps];          // of StepFlag
  float alpha[kRows];                          // where kRescale is set
  alignas(8) int64_t row_offset[kRows];        // where kLast is set: of the row in the output or the workspace, -1: none
  float row_inv_sum[kRows];
  Piece piece;
};

// 64 dimensions of 16 rows of Q; the 16-byte chunks of row r stand at chunk ^ (r % 8), so that ldmatrix meets no conflict.
inline constexpr int kQStageSteps = 4;
struct QStage {
  alignas(128) unsigned char rows[16][kQStageSteps * 32];
};

template <int RowTiles>
struct Smem {
  static constexpr int kRows = Tile<RowTiles>::kRows;
  alignas(128) unsigned char kv[kSlots * kSlotBytes];
  Handover<RowTiles> handover[kBuffers];
  alignas(16) float exchange[kBuffers][kScoreWarps][RowTiles == 1 ? 4 * 32 : 4];  // partial scores for the other half
  QStage q[kScoreWarps][Tile<RowTiles>::kSharedStages + (RowTiles == 1)];
  Plan plan;
  Piece piece_of[kScoreWarps + kLoadWarps];  // where each score warp and each load warp is
  alignas(8) uint64_t kv_full[kSlots];
  uint64_t kv_empty[kSlots];
  uint64_t step_full[kBuffers], step_empty[kBuffers];
};

static_assert(sizeof(Smem<2>) <= kSmemLimit && sizeof(Smem<1>) <= kSmemLimit);

}  // namespace ddtree::mla
