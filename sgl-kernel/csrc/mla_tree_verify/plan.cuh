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
inline constexpr int kMinSteps = 4;

struct Shape {
  const int32_t* prefix_lens;
  int batch, num_nodes, tiles;  // tiles: row tiles of one request

  __device__ __forceinline__ int keys(int b) const {
    const int prefix = __ldg(prefix_lens + b);
    return prefix < 0 ? 0 : prefix + num_nodes;
  }
  __device__ __forceinline__ int steps(int b) const { return (keys(b) + kBlockKeys - 1) / kBlockKeys; }
};

struct Shares {
  int64_t total;  // steps in the line
  int count;      // blocks that get a share

  __device__ __forceinline__ Shares(int64_t total, int blocks) : total(total) {
    const int64_t wanted = (total + kMinSteps - 1) / kMinSteps;
    count = static_cast<int>(wanted < blocks ? wanted : blocks);
  }
  __device__ __forceinline__ int64_t begin(int block) const { return total * block / count; }
  // The block whose share holds step `at` of the line.
  __device__ __forceinline__ int owner(int64_t at) const { return static_cast<int>(((at + 1) * count - 1) / total); }
};

// Steps of the whole line. All lanes of a warp call it together.
__device__ __forceinline__ int64_t total_steps(const Shape& shape) {
  int64_t sum = 0;
  for (int b = threadIdx.x % 32; b < shape.batch; b += 32) sum += shape.steps(b);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  return sum * shape.tiles;
}

// Where step `at` of the line lies. All lanes of a warp call it together and get the same answer.
struct Location {
  int batch, tile, step, steps;
  int64_t tile_begin;  // line position of the tile's first step
};

__device__ __forceinline__ Location locate(const Shape& shape, int64_t at) {
  const int lane = threadIdx.x % 32;
  int64_t before = 0;
  for (int base = 0; base < shape.batch; base += 32) {
    const int b = base + lane;
    const int steps = b < shape.batch ? shape.steps(b) : 0;
    int64_t sum = static_cast<int64_t>(steps) * shape.tiles;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int64_t left = __shfl_up_sync(~0u, sum, offset);
      if (lane >= offset) sum += left;
    }
    const unsigned past = __ballot_sync(~0u, before + sum > at);
    if (past != 0) {
      const int hit = __ffs(past) - 1;
      Location where;
      where.batch = base + hit;
      where.steps = __shfl_sync(~0u, steps, hit);
      const int64_t request_end = before + __shfl_sync(~0u, sum, hit);
      const int64_t request_begin = request_end - static_cast<int64_t>(where.steps) * shape.tiles;
      where.tile = static_cast<int>((at - request_begin) / where.steps);
      where.tile_begin = request_begin + static_cast<int64_t>(where.tile) * where.steps;
      where.step = static_cast<int>(at - where.tile_begin);
      return where;
    }
    before += __shfl_sync(~0u, sum, 31);
  }
  return Location{shape.batch, 0, 0, 0, before};
}

// The pieces of one share, in order. Every warp walks them by itself.
struct Pieces {
  const Shape& shape;
  int batch, tile, begin, end;  // steps [begin, end) of this tile
  int steps;                    // of the whole tile
  int left;                     // of the share, after this piece
  bool first = true;

  __device__ __forceinline__ Pieces(const Shape& shape, const Plan& plan) : shape(shape) {
    batch = plan.batch;
    tile = plan.tile;
    begin = plan.step;
    left = plan.total;
    if (left > 0) clip();
  }
  __device__ __forceinline__ bool whole() const { return begin == 0 && end == steps; }
  // Two parts at most leave one block: its first piece, and one that only starts. `first` tells them apart.
  __device__ __forceinline__ int part(int block) const { return 2 * block + (first ? 0 : 1); }
  // False when the share is used up.
  __device__ __forceinline__ bool next() {
    if (left == 0) return false;
    first = false;
    begin = 0;
    if (++tile == shape.tiles) {
      tile = 0;
      do ++batch;
      while (shape.steps(batch) == 0);
    }
    clip();
    return true;
  }

 private:
  __device__ __forceinline__ void clip() {
    steps = shape.steps(batch);
    end = begin + left < steps ? begin + left : steps;
    left -= end - begin;
  }
};

}  // namespace ddtree::mla
