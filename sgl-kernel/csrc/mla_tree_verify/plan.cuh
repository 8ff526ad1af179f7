// SPDX-License-Identifier: Apache-2.0
// The split plan, computed on the device from the lengths alone.
//
// A request of L + N keys has ceil((L + N) / 16) steps for each of its row tiles; all steps of all tiles of all requests
// stand in one line, which is cut into equal shares, one a block. A share is a run of pieces: the rest of one tile, whole
// tiles, the start of another. A whole tile is written out directly; the parts of a cut tile go to the workspace and are
// combined in the order of the blocks, so the result does not depend on timing.
#pragma once

#include "mla_tree_verify/config.h"

namespace ddtree::mla {

// A share below this is not worth its own start-up and its part of the combine.
#ifndef DDTREE_MLA_MIN_STEPS
#define DDTREE_MLA_MIN_STEPS 4
#endif
inline constexpr int kMinSteps = DDTREE_MLA_MIN_STEPS;

struct Shape {
  const int32_t* prefix_lens;
  int batch, num_nodes, tiles;  // tiles: row tiles of one request

  __device__ __forceinline__ int keys(int b) const {
    const int prefix = __ldg(prefix_lens + b);
    return prefix < 0 ? 0 : prefix + num_nodes;
  }
  __device__ __forceinline__ int steps(int b) const { return (keys(b) + kBlockKeys - 1) / kBlockKeys; }
};

// Positions in the line are 32-bit: a 64-bit division is a call, and calls keep the compiler from moving registers between
// warps. 2^31 steps are 64 requests of 257 nodes, 128 heads and a million tokens each.
struct Shares {
  int total;  // steps in the line
  int count;  // blocks that get a share
  int size;   // of a share; the first `longer` of them have one step more
  int longer;

  __device__ __forceinline__ Shares(int total, int blocks) : total(total) {
    count = max(1, min((total + kMinSteps - 1) / kMinSteps, blocks));
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
__device__ __forceinline__ int total_steps(const Shape& shape) {
  int sum = 0;
  for (int b = threadIdx.x % 32; b < shape.batch; b += 32) sum += shape.steps(b);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum * shape.tiles;
}

// Where step `at` of the line lies. All lanes of a warp call it together and get the same answer.
struct Location {
  int batch, tile, step, steps;
  int tile_begin;  // line position of the tile's first step
};

__device__ __forceinline__ Location locate(const Shape& shape, int at) {
  const int lane = threadIdx.x % 32;
  int before = 0;
  for (int base = 0; base < shape.batch; base += 32) {
    const int b = base + lane;
    const int steps = b < shape.batch ? shape.steps(b) : 0;
    int sum = steps * shape.tiles;
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
      const int request_end = before + __shfl_sync(~0u, sum, hit);
      const int request_begin = request_end - where.steps * shape.tiles;
      where.tile = (at - request_begin) / where.steps;
      where.tile_begin = request_begin + where.tile * where.steps;
      where.step = at - where.tile_begin;
      return where;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return Location{shape.batch, 0, 0, 0, before};
}

// Where a warp is in the ring of slots and in the handover buffers, in one register.
struct Cursor {
  static_assert(kBuffers == 2);
  uint32_t state = 0;  // slot, its barrier's phase from bit 8, steps from bit 16

  __device__ __forceinline__ int slot() const { return state & 0xff; }
  __device__ __forceinline__ uint32_t slot_phase() const { return state >> 8 & 1; }
  __device__ __forceinline__ int buffer() const { return state >> 16 & 1; }
  __device__ __forceinline__ uint32_t buffer_phase() const { return state >> 17 & 1; }
  __device__ __forceinline__ void advance() {
    state += 0x10001;
    if (slot() == kSlots) state = (state & ~0xffu) ^ 0x100;
  }
};

// Moves a warp's piece on to the next one of the share; false when the share is used up. All lanes of the warp call it
// together. The piece lives in shared memory, one copy a warp: the score warps have no register to spare for it.
__device__ __forceinline__ bool next_piece(Piece& piece, const Shape& shape, const Plan& plan) {
  Piece now = piece;
  now.done += now.count;
  const int left = plan.total - now.done;
  if (left == 0) return false;
  if (now.done == 0) {
    now.batch = plan.batch, now.tile = plan.tile, now.step = plan.step;
  } else {
    now.step = 0;
    if (++now.tile == shape.tiles) {
      now.tile = 0;
      do ++now.batch;
      while (shape.steps(now.batch) == 0);
    }
  }
  const int steps = shape.steps(now.batch);
  now.count = min(left, steps - now.step);
  // Two pieces of a share at most are parts of a tile: the first, and one that only starts.
  now.part = now.count == steps ? -1 : 2 * static_cast<int>(blockIdx.x) + (now.done == 0 ? 0 : 1);
  __syncwarp();
  if (threadIdx.x % 32 == 0) piece = now;
  __syncwarp();
  return true;
}

}  // namespace ddtree::mla
