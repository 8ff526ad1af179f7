// SPDX-License-Identifier: Apache-2.0
// CPU twin of tree_accept: a search for the chosen child at every step.
#include "tree_accept/launch.h"

namespace ddtree {
namespace {

// Children have greater indices than their parent.
int chosen_child(const TreeAcceptParams& p, int64_t row, int node) {
  for (int child = node + 1; child < p.num_nodes; ++child) {
    if (p.parents[row + child] == node && p.tokens[row + child] == p.target_tokens[row + node]) return child;
  }
  return -1;
}

void walk(const TreeAcceptParams& p, int64_t request) {
  const int64_t row = request * p.num_nodes;
  int32_t* nodes = p.path_nodes + request * p.columns;
  int64_t* tokens = p.path_tokens + request * p.columns;
  int length = 0;
  for (int node = 0; node >= 0 && length < p.columns; node = chosen_child(p, row, node)) {
    nodes[length] = node;
    tokens[length] = p.bonus[request] = p.target_tokens[row + node];
    ++length;
  }
  for (int step = length; step < p.columns; ++step) {
    nodes[step] = -1;
    tokens[step] = 0;
  }
  p.commit_lens[request] = length;
  p.new_seq_lens[request] = p.prefix_lens[request] + length;
}

}  // namespace

void tree_accept_cpu(const TreeAcceptParams& params) {
  // A walk is a few hundred comparisons: a thread would cost more than it saves.
  for (int64_t request = 0; request < params.batch; ++request) walk(params, request);
}

}  // namespace ddtree
