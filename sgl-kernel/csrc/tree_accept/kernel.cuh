// SPDX-License-Identifier: Apache-2.0
// Accept walk, one block a request. All nodes ask at once whether their parent's choice is their token; at most one child
// of a parent answers yes, so the walk is a chain of table look-ups instead of a search among siblings at every step.
#pragma once

#include <cstdint>

#include "tree_accept/launch.h"

namespace ddtree {

inline constexpr int kAcceptThreads = 128;

__global__ void __launch_bounds__(kAcceptThreads) tree_accept_kernel(const TreeAcceptParams p) {
  __shared__ int follow[kAcceptMaxNodes];  // the child that a node's choice names, or -1
  __shared__ int path[kAcceptMaxColumns];
  __shared__ int length;
  const int64_t request = blockIdx.x;
  const int64_t row = request * p.num_nodes;
  const int64_t* tokens = p.tokens + row;
  const int32_t* parents = p.parents + row;
  const int64_t* target = p.target_tokens + row;

  for (int node = threadIdx.x; node < p.num_nodes; node += kAcceptThreads) follow[node] = -1;
  __syncthreads();
  for (int node = threadIdx.x; node < p.num_nodes; node += kAcceptThreads) {
    const int parent = parents[node];
    if (parent >= 0 && tokens[node] == target[parent]) follow[parent] = node;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int step = 0;
    for (int node = 0; node >= 0 && step < p.columns; node = follow[node]) path[step++] = node;
    length = step;
    const int64_t choice = target[path[step - 1]];
    p.bonus[request] = choice;
    p.commit_lens[request] = step;
    p.new_seq_lens[request] = p.prefix_lens[request] + step;
  }
  __syncthreads();
  for (int step = threadIdx.x; step < p.columns; step += kAcceptThreads) {
    const bool on_path = step < length;
    p.path_nodes[request * p.columns + step] = on_path ? path[step] : -1;
    // The choice at a node is the next node's token, and at the last node the bonus.
    p.path_tokens[request * p.columns + step] = on_path ? target[path[step]] : 0;
  }
}

}  // namespace ddtree
