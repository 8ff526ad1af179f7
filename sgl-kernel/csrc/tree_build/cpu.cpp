// SPDX-License-Identifier: Apache-2.0
// CPU twin of tree_build: the paper's heap of next siblings and first children, as it is written there.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/parallel.h"
#include "tree_build/launch.h"

namespace ddtree {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

struct Entry {
  float score;
  int parent;
  int rank;
};

// std::push_heap keeps the greatest entry in front: the best score, then the smallest parent, then the best rank.
bool worse(const Entry& a, const Entry& b) {
  if (a.score != b.score) return a.score < b.score;
  if (a.parent != b.parent) return a.parent > b.parent;
  return a.rank > b.rank;
}

class Builder {
 public:
  Builder(const TreeBuildParams& p, int64_t request)
      : p_(p),
        row_(request * p.num_nodes),
        ids_(p.candidate_ids + request * p.max_depth * p.candidates),
        logprobs_(p.candidate_logprobs + request * p.max_depth * p.candidates),
        scores_(p.num_nodes, 0.f),
        last_child_(p.num_nodes, -1) {
    clear(p.root_tokens[request]);
    push(0, 0);
    int missing = chain_length();
    int tip = 0;
    int node = 1;
    for (; node < p.num_nodes && !heap_.empty(); ++node) {
      const bool forced = missing > 0 && missing == p.num_nodes - node;
      const Entry entry = forced ? take_child_of(tip) : take_best();
      add(node, entry);
      if (missing > 0 && entry.parent == tip && entry.rank == 0) {
        tip = node;
        --missing;
      }
      push(entry.parent, entry.rank + 1);
      push(node, 0);
    }
    p.used_nodes[request] = node;
    for (int i = 0; i < p.num_nodes; ++i) p.positions[row_ + i] = p.prefix_lens[request] + p.depths[row_ + i];
  }

 private:
  float logprob(int depth, int rank) const {
    if (depth >= p_.max_depth || rank >= p_.candidates) return kImpossible;
    const float value = logprobs_[depth * p_.candidates + rank];
    return std::isnan(value) ? kImpossible : std::min(value, 0.f);
  }

  int chain_length() const {
    if (!p_.spine) return 0;
    int length = 0;
    while (logprob(length, 0) != kImpossible) ++length;
    return length < p_.num_nodes ? length : 0;
  }

  void clear(int64_t root) {
    for (int i = 0; i < p_.num_nodes; ++i) {
      p_.tokens[row_ + i] = 0;
      p_.parents[row_ + i] = -1;
      p_.depths[row_ + i] = 0;
      p_.first_child[row_ + i] = -1;
      p_.next_sibling[row_ + i] = -1;
      uint32_t* sees = words(i);
      std::fill_n(sees, p_.words_per_row, 0u);
      sees[0] |= 1u;
      sees[i / 32] |= 1u << (i % 32);
    }
    p_.tokens[row_] = root;
  }

  uint32_t* words(int node) const { return p_.mask_words + (row_ + node) * p_.words_per_row; }

  void push(int parent, int rank) {
    const float score = scores_[parent] + logprob(p_.depths[row_ + parent], rank);
    if (score == kImpossible) return;
    heap_.push_back({score, parent, rank});
    std::push_heap(heap_.begin(), heap_.end(), worse);
  }

  Entry take_best() {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    const Entry entry = heap_.back();
    heap_.pop_back();
    return entry;
  }

  Entry take_child_of(int parent) {
    const auto found =
        std::find_if(heap_.begin(), heap_.end(), [&](const Entry& entry) { return entry.parent == parent; });
    const Entry entry = *found;
    heap_.erase(found);
    std::make_heap(heap_.begin(), heap_.end(), worse);
    return entry;
  }

  void add(int node, const Entry& entry) {
    const int depth = p_.depths[row_ + entry.parent];
    scores_[node] = entry.score;
    p_.tokens[row_ + node] = ids_[depth * p_.candidates + entry.rank];
    p_.parents[row_ + node] = entry.parent;
    p_.depths[row_ + node] = depth + 1;
    int& elder = last_child_[entry.parent];
    (elder < 0 ? p_.first_child[row_ + entry.parent] : p_.next_sibling[row_ + elder]) = node;
    elder = node;
    for (int w = 0; w < p_.words_per_row; ++w) words(node)[w] |= words(entry.parent)[w];
  }

  const TreeBuildParams& p_;
  const int64_t row_;
  const int64_t* ids_;
  const float* logprobs_;
  std::vector<float> scores_;
  std::vector<int> last_child_;
  std::vector<Entry> heap_;
};

}  // namespace

void tree_build_cpu(const TreeBuildParams& params) {
  parallel_for(params.batch, [&](int64_t request) { Builder(params, request); });
}

}  // namespace ddtree
