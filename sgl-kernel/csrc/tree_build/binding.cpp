// SPDX-License-Identifier: Apache-2.0
// tvm-ffi entry point of tree_build. Compiled once into each library: DDTREE_CUDA selects the launcher.
#include <tvm/ffi/function.h>

#include "common/ffi_check.h"
#include "tree_build/launch.h"

#ifdef DDTREE_CUDA
#include "common/cuda_utils.h"
#endif

namespace ddtree {
void tree_build(TensorView candidate_ids, TensorView candidate_logprobs, TensorView root_tokens,
                TensorView prefix_lens, TensorView tokens, TensorView parents, TensorView depths, TensorView positions,
                TensorView mask_words, TensorView first_child, TensorView next_sibling, TensorView used_nodes,
                bool spine) {
#ifdef DDTREE_CUDA
  DDTREE_CHECK(candidate_ids.device().device_type == kDLCUDA) << "candidate_ids must be a CUDA tensor";
#else
  DDTREE_CHECK(candidate_ids.device().device_type == kDLCPU) << "candidate_ids must be a CPU tensor";
#endif
  check_i64(candidate_ids, "candidate_ids");
  check_rank(candidate_ids, "candidate_ids", 3);
  check_contiguous(candidate_ids, "candidate_ids");
  const int64_t batch = candidate_ids.size(0);
  const int64_t depth = candidate_ids.size(1);
  const int64_t width = candidate_ids.size(2);
  DDTREE_CHECK(depth >= 1 && depth <= kTreeMaxDepth)
      << "candidate_ids.shape[1] must be 1 to " << kTreeMaxDepth << ", got " << depth;
  DDTREE_CHECK(width >= 1 && width <= kTreeMaxCandidates)
      << "candidate_ids.shape[2] must be 1 to " << kTreeMaxCandidates << ", got " << width;

  const auto check = [&](const TensorView& t, const char* name, std::initializer_list<int64_t> shape) {
    check_dense(t, name, shape, candidate_ids, "candidate_ids");
  };
  check(candidate_logprobs, "candidate_logprobs", {batch, depth, width});
  check_f32(candidate_logprobs, "candidate_logprobs");
  check(root_tokens, "root_tokens", {batch});
  check_i64(root_tokens, "root_tokens");
  check(prefix_lens, "prefix_lens", {batch});
  check_i64(prefix_lens, "prefix_lens");

  check_rank(tokens, "tokens", 2);
  const int64_t nodes = tokens.size(1);
  DDTREE_CHECK(nodes >= 1 && nodes <= kTreeMaxNodes)
      << "tokens.shape[1] (nodes) must be 1 to " << kTreeMaxNodes << ", got " << nodes;
  const int64_t words = (nodes + 31) / 32;
  check(tokens, "tokens", {batch, nodes});
  check_i64(tokens, "tokens");
  check(parents, "parents", {batch, nodes});
  check_i32(parents, "parents");
  check(depths, "depths", {batch, nodes});
  check_i32(depths, "depths");
  check(positions, "positions", {batch, nodes});
  check_i64(positions, "positions");
  check(mask_words, "mask_words", {batch, nodes, words});
  check_word32(mask_words, "mask_words");
  check(first_child, "first_child", {batch, nodes});
  check_i32(first_child, "first_child");
  check(next_sibling, "next_sibling", {batch, nodes});
  check_i32(next_sibling, "next_sibling");
  check(used_nodes, "num_nodes", {batch});
  check_i32(used_nodes, "num_nodes");
  if (batch == 0) return;

  TreeBuildParams p{};
  p.candidate_ids = ptr<const int64_t>(candidate_ids);
  p.candidate_logprobs = ptr<const float>(candidate_logprobs);
  p.root_tokens = ptr<const int64_t>(root_tokens);
  p.prefix_lens = ptr<const int64_t>(prefix_lens);
  p.tokens = ptr<int64_t>(tokens);
  p.parents = ptr<int32_t>(parents);
  p.depths = ptr<int32_t>(depths);
  p.positions = ptr<int64_t>(positions);
  p.mask_words = ptr<uint32_t>(mask_words);
  p.first_child = ptr<int32_t>(first_child);
  p.next_sibling = ptr<int32_t>(next_sibling);
  p.used_nodes = ptr<int32_t>(used_nodes);
  p.batch = static_cast<int>(batch);
  p.num_nodes = static_cast<int>(nodes);
  p.max_depth = static_cast<int>(depth);
  p.candidates = static_cast<int>(width);
  p.words_per_row = static_cast<int>(words);
  p.spine = spine;

#ifdef DDTREE_CUDA
  const DeviceGuard guard(candidate_ids.device());
  tree_build_cuda(p, current_stream(candidate_ids.device()));
#else
  tree_build_cpu(p);
#endif
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tree_build, tree_build);

}  // namespace ddtree
