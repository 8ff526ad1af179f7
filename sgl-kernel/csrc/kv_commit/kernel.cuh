// SPDX-License-Identifier: Apache-2.0
// Moves the rows of an accepted path to the front of its window: one block a (buffer, request).
//
// Overlap is safe without a copy of the rows. A path's nodes increase, so node[j] >= j: the row that step j overwrites, j,
// is a source of steps up to j only. Each thread owns the same bytes of every row and takes the steps in order, a batch of
// loads before a batch of stores, so no thread waits for another.
#pragma once

#include <cstdint>

#include "kv_commit/launch.h"

namespace ddtree {

inline constexpr int kCommitThreads = 128;
inline constexpr int kCommitBatch = 8;

template <typename Chunk>
__device__ void move_rows(char* base, int64_t row_bytes, const int64_t* source, const int64_t* target, int steps) {
  const int64_t chunks = row_bytes / static_cast<int64_t>(sizeof(Chunk));
  for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kCommitThreads) {
    char* column = base + chunk * sizeof(Chunk);
    for (int first = 1; first < steps; first += kCommitBatch) {
      Chunk held[kCommitBatch];
#pragma unroll
      for (int i = 0; i < kCommitBatch; ++i) {
        if (first + i < steps) held[i] = *reinterpret_cast<const Chunk*>(column + source[first + i] * row_bytes);
      }
#pragma unroll
      for (int i = 0; i < kCommitBatch; ++i) {
        if (first + i < steps) *reinterpret_cast<Chunk*>(column + target[first + i] * row_bytes) = held[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kCommitThreads) kv_commit_kernel(const KvCommitParams p) {
  __shared__ int64_t source[kCommitMaxColumns];
  __shared__ int64_t target[kCommitMaxColumns];
  const int buffer = blockIdx.x;
  const int64_t request = blockIdx.y;
  const int steps = p.commit_lens[request];
  if (steps <= 1) return;
  const int64_t* slots = p.slots + request * p.slots_row_stride;
  const int32_t* nodes = p.path_nodes + request * p.columns;
  for (int step = threadIdx.x; step < steps; step += kCommitThreads) {
    source[step] = slots[nodes[step]];
    target[step] = slots[step];
  }
  __syncthreads();
  // The greedy chain is often the first nodes of the tree, which are in place already.
  if (nodes[steps - 1] == steps - 1) return;

  char* base = reinterpret_cast<char*>(p.addresses[buffer]);
  const int64_t row_bytes = p.row_bytes[buffer];
  if ((reinterpret_cast<uintptr_t>(base) | static_cast<uintptr_t>(row_bytes)) % sizeof(uint4) == 0) {
    move_rows<uint4>(base, row_bytes, source, target, steps);
  } else {
    move_rows<char>(base, row_bytes, source, target, steps);
  }
}

}  // namespace ddtree
