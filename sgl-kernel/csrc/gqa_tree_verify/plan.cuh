// SPDX-License-Identifier: Apache-2.0
// The split plan, computed on the device from the lengths alone.
//
// The keys that a request's nodes can see make ceil(keys / step) steps for each of its row tiles (KV heads x tiles of rows).
// All steps of all tiles of all requests stand in one line, which is cut into equal shares, one a block. A share is a run of
// pieces: the rest of one tile, whole tiles, the start of another. A whole tile is written out directly; the parts of a cut
// tile go to the workspace and are combined in the order of the blocks, so the result does not depend on timing.
//
// `side` row tiles of one KV head read the same keys. They do it side by side, in blocks of successive numbers, so that all
// but one of them find the keys in the L2: the line is then one of such teams of blocks.
#pragma once

#include "gqa_tree_verify/config.h"

namespace ddtree::gqa {

struct Work {
  const int32_t* prefix_lens;
  int batch, num_nodes;
  int rows, row_tiles;  // of one KV head of a request: nodes x query heads, and how many row tiles they make
  int kv_heads, group;  // group: query heads of a KV head
  int window;           // negative: no limit
  int side;             // row tiles that are attended side by side; divides row_tiles
  int min_steps;        // a share below this is not worth its own start-up and its part of the combine

  __device__ __forceinline__ int tiles() const { return kv_heads * row_tiles; }
  __device__ __forceinline__ int teams() const { return kv_heads * row_tiles / side; }  // of tiles, of a request
  __device__ __forceinline__ int prefix(int b) const { return __ldg(prefix_lens + b); }
  __device__ __forceinline__ int end(int b) const { return prefix(b) + num_nodes; }
  // The first key that any node sees: the root, at the depth 0, reaches back furthest.
  __device__ __forceinline__ int begin(int b) const { return window < 0 ? 0 : max(0, prefix(b) - window); }
  template <int StepKeys>
  __device__ __forceinline__ int steps(int b) const {
    return prefix(b) < 0 ? 0 : (end(b) - begin(b) + StepKeys - 1) / StepKeys;
  }
};

// Positions in the line are 32-bit: 2^31 steps are 64 requests with 32 tiles of more than 60 million tokens each.
struct Shares {
  int total;  // steps in the line
  int count;  // blocks that get a share
  int size;   // of a share; the first `longer` of them have one step more
  int longer;

  __device__ __forceinline__ Shares(int total, int blocks, int min_steps) : total(total) {
    count = max(1, min((total + min_steps - 1) / min_steps, blocks));
    size = total / count;
    longer = total - size * count;
  }
  __device__ __forceinline__ int begin(int block) const { return block * size + min(block, longer); }
  // The block whose share holds step `at` of the line.
  __device__ __forceinline__ int owner(int at) const {
    const int in_longer = longer * (size + 1);
    return at < in_longer ? at / (size + 1) : longer + (at - in_longer) / size;
  }
};

// Steps of the whole line. All lanes of a warp call it together.
template <int StepKeys>
__device__ __forceinline__ int total_steps(const Work& work) {
  int sum = 0;
  for (int b = threadIdx.x % 32; b < work.batch; b += 32) sum += work.steps<StepKeys>(b);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum * work.teams();
}

// Where step `at` of the line lies. All lanes of a warp call it together and get the same answer.
struct Location {
  int batch, tile, step, steps;
  int tile_begin;  // line position of the tile's first step
};

template <int StepKeys>
__device__ __forceinline__ Location locate(const Work& work, int at) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < work.batch; base += 32) {
    const int b = base + lane;
    const int steps = b < work.batch ? work.steps<StepKeys>(b) : 0;
    int sum = steps * work.teams();
    for (int offset = 1; offset < 32; offset *= 2) {
      const int left = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += left;
    }
    const unsigned past = __ballot_sync(~0u, before + sum > at);
    if (past != 0) {
      const int hit = __ffs(past) - 1;
      Location where;
      where.batch = base + hit;
      where.steps = __shfl_sync(~0u, steps, hit);
      const int request_begin = before + __shfl_sync(~0u, sum, hit) - where.steps * work.teams();
      where.tile = (at - request_begin) / where.steps;
      where.tile_begin = request_begin + where.tile * where.steps;
      where.step = at - where.tile_begin;
      return where;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return Location{work.batch, 0, 0, 0, before};
}

// This block's share. All lanes of a warp call it together.
template <int StepKeys>
__device__ __forceinline__ Plan make_plan(const Work& work) {
  Plan plan{};
  const Shares shares(total_steps<StepKeys>(work), gridDim.x / work.side, work.min_steps);
  const int team = blockIdx.x / work.side, member = blockIdx.x % work.side;
  if (team >= shares.count || shares.total == 0) return plan;
  const int begin = shares.begin(team);
  const Location where = locate<StepKeys>(work, begin);
  plan.batch = where.batch, plan.tile = where.tile * work.side + member, plan.step = where.step;
  plan.total = shares.begin(team + 1) - begin;
  if (where.step > 0) {
    const int first = shares.owner(where.tile_begin);
    plan.cut_first = first * work.side + member;
    plan.cut_parts = shares.owner(where.tile_begin + where.steps - 1) - first + 1;
    // A block that began before the tile left its part of it in its second slot.
    plan.cut_first_slot = 2 * plan.cut_first + (shares.begin(first) < where.tile_begin ? 1 : 0);
  }
  return plan;
}

// Moves on to the next piece of the share; false when it is used up.
template <int StepKeys>
__device__ __forceinline__ bool next_piece(Piece& piece, const Work& work, const Plan& plan) {
  piece.done += piece.count;
  const int left = plan.total - piece.done;
  if (left == 0) return false;
  if (piece.done == 0) {
    piece.batch = plan.batch, piece.tile = plan.tile, piece.step = plan.step;
  } else {
    piece.step = 0;
    piece.tile += work.side;
    if (piece.tile >= work.tiles()) {
      piece.tile -= work.tiles();
      do ++piece.batch;
      while (work.steps<StepKeys>(piece.batch) == 0);
    }
  }
  const int steps = work.steps<StepKeys>(piece.batch);
  piece.count = min(left, steps - piece.step);
  // Two pieces of a share at most are parts of a tile: the first, and one that only starts.
  piece.part = piece.count == steps ? -1 : 2 * static_cast<int>(blockIdx.x) + (piece.done == 0 ? 0 : 1);
  return true;
}

}  // namespace ddtree::gqa
