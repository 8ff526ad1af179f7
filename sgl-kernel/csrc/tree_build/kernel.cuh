// SPDX-License-Identifier: Apache-2.0
// Best-first tree, one block a request.
//
// A heap of (next sibling, first child) entries holds at most one entry a node: the node's best child that is not in the
// tree yet. So the heap is a row of N scores, kept in the registers of one warp (node n in lane n % 32), and a pop is two
// warp reductions: the greatest score, then the smallest node index that has it. That is also the tie rule, since an entry
// is ordered by (score, parent, rank) and a parent has one entry.
#pragma once

#include <cstdint>

#include "tree_build/launch.h"

namespace ddtree {

inline constexpr int kTreeBuildThreads = 128;
inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr float kImpossible = -__builtin_huge_valf();

// Shared memory of one request. `logprobs` holds max_depth rows of `candidates`.
struct TreeScratch {
  float* logprobs;
  int* parents;
  int* depths;
  int* choices;  // index into the request's candidates
  int* first_child;
  int* next_sibling;
  int* last_child;
  uint32_t* sees;

  static __host__ __device__ int bytes(const TreeBuildParams& p) {
    return 4 * (p.max_depth * p.candidates + p.num_nodes * (6 + p.words_per_row));
  }
  __device__ TreeScratch(const TreeBuildParams& p, char* memory) {
    logprobs = reinterpret_cast<float*>(memory);
    parents = reinterpret_cast<int*>(logprobs + p.max_depth * p.candidates);
    depths = parents + p.num_nodes;
    choices = depths + p.num_nodes;
    first_child = choices + p.num_nodes;
    next_sibling = first_child + p.num_nodes;
    last_child = next_sibling + p.num_nodes;
    sees = reinterpret_cast<uint32_t*>(last_child + p.num_nodes);
  }
};

// Unsigned order equals float order; there is no NaN and no -0 among the scores.
__device__ inline uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Runs on one warp; nodes 0 to the returned count - 1 are in the scratch. kSlots * 32 >= num_nodes.
template <int kSlots>
__device__ int grow(const TreeBuildParams& p, const TreeScratch& s, int lane) {
  float base[kSlots];      // score of node lane + 32 * slot
  float frontier[kSlots];  // score of its best child that is not in the tree
  int rank[kSlots];        // that child's rank
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    base[slot] = 0.f;
    frontier[slot] = kImpossible;
    rank[slot] = 0;
  }
  if (lane == 0) frontier[0] = s.logprobs[0];

  int missing = 0;  // links of the greedy chain that are not in the tree
  if (p.spine) {
    while (missing < p.max_depth && s.logprobs[missing * p.candidates] != kImpossible) ++missing;
    if (missing >= p.num_nodes) missing = 0;
  }
  int tip = 0;

  int node = 1;
  for (; node < p.num_nodes; ++node) {
    float best = frontier[0];
    int best_slot = 0;
#pragma unroll
    for (int slot = 1; slot < kSlots; ++slot) {
      if (frontier[slot] > best) {
        best = frontier[slot];
        best_slot = slot;
      }
    }
    const uint32_t order = order_of(best);
    const uint32_t greatest = __reduce_max_sync(kFullWarp, order);
    const uint32_t mine = order == greatest ? lane + 32 * best_slot : 0xffffffffu;
    int parent = static_cast<int>(__reduce_min_sync(kFullWarp, mine));
    if (missing > 0 && missing == p.num_nodes - node) {
      parent = tip;
    } else if (greatest == order_of(kImpossible)) {
      break;
    }

    // Selections, not indexing: an index into these arrays would put them in local memory.
    float score = 0.f, parent_score = 0.f;
    int child_rank = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool owns = lane + 32 * slot == parent;
      score = owns ? frontier[slot] : score;
      parent_score = owns ? base[slot] : parent_score;
      child_rank = owns ? rank[slot] : child_rank;
    }
    score = __shfl_sync(kFullWarp, score, parent & 31);
    parent_score = __shfl_sync(kFullWarp, parent_score, parent & 31);
    child_rank = __shfl_sync(kFullWarp, child_rank, parent & 31);
    const int depth = s.depths[parent];

    const int next_rank = child_rank + 1;
    const float sibling =
        next_rank < p.candidates ? parent_score + s.logprobs[depth * p.candidates + next_rank] : kImpossible;
    const float child = depth + 1 < p.max_depth ? score + s.logprobs[(depth + 1) * p.candidates] : kImpossible;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool is_parent = lane + 32 * slot == parent;
      const bool is_node = lane + 32 * slot == node;
      frontier[slot] = is_parent ? sibling : is_node ? child : frontier[slot];
      rank[slot] = is_parent ? next_rank : rank[slot];
      base[slot] = is_node ? score : base[slot];
    }
    if (lane < p.words_per_row) {
      const uint32_t self = lane == node >> 5 ? 1u << (node & 31) : 0u;
      s.sees[node * p.words_per_row + lane] = s.sees[parent * p.words_per_row + lane] | self;
    }
    if (lane == 0) {
      s.parents[node] = parent;
      s.depths[node] = depth + 1;
      s.choices[node] = depth * p.candidates + child_rank;
      if (child_rank == 0) {
        s.first_child[parent] = node;
      } else {
        s.next_sibling[s.last_child[parent]] = node;
      }
      s.last_child[parent] = node;
    }
    if (missing > 0 && parent == tip && child_rank == 0) {
      tip = node;
      --missing;
    }
    __syncwarp();
  }
  return node;
}

template <int kSlots>
__global__ void __launch_bounds__(kTreeBuildThreads) tree_build_kernel(const TreeBuildParams p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ int used_nodes;
  const TreeScratch s(p, memory);
  const int64_t request = blockIdx.x;
  const int per_request = p.max_depth * p.candidates;

  const float* logprobs = p.candidate_logprobs + request * per_request;
  for (int i = threadIdx.x; i < per_request; i += kTreeBuildThreads) {
    const float value = logprobs[i];
    s.logprobs[i] = value != value ? kImpossible : fminf(value, 0.f);
  }
  // Padding until a node takes the place: it sees the root and itself.
  for (int node = threadIdx.x; node < p.num_nodes; node += kTreeBuildThreads) {
    s.parents[node] = -1;
    s.depths[node] = 0;
    s.first_child[node] = -1;
    s.next_sibling[node] = -1;
    for (int word = 0; word < p.words_per_row; ++word) {
      const uint32_t self = word == node >> 5 ? 1u << (node & 31) : 0u;
      s.sees[node * p.words_per_row + word] = self | (word == 0 ? 1u : 0u);
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int used = grow<kSlots>(p, s, threadIdx.x);
    if (threadIdx.x == 0) used_nodes = used;
  }
  __syncthreads();

  const int64_t root = p.root_tokens[request];
  const int64_t prefix = p.prefix_lens[request];
  const int64_t row = request * p.num_nodes;
  const int64_t* ids = p.candidate_ids + request * per_request;
  for (int node = threadIdx.x; node < p.num_nodes; node += kTreeBuildThreads) {
    p.tokens[row + node] = node == 0 ? root : node < used_nodes ? ids[s.choices[node]] : 0;
    p.parents[row + node] = s.parents[node];
    p.depths[row + node] = s.depths[node];
    p.positions[row + node] = prefix + s.depths[node];
    p.first_child[row + node] = s.first_child[node];
    p.next_sibling[row + node] = s.next_sibling[node];
  }
  for (int i = threadIdx.x; i < p.num_nodes * p.words_per_row; i += kTreeBuildThreads) {
    p.mask_words[row * p.words_per_row + i] = s.sees[i];
  }
  if (threadIdx.x == 0) p.used_nodes[request] = used_nodes;
}

}  // namespace ddtree
