// SPDX-License-Identifier: Apache-2.0
// tvm-ffi entry point of tree_accept. Compiled once into each library: DDTREE_CUDA selects the launcher.
#include <tvm/ffi/function.h>

#include "common/ffi_check.h"
#include "tree_accept/launch.h"

#ifdef DDTREE_CUDA
#include "common/cuda_utils.h"
#endif

namespace ddtree {
void tree_accept(TensorView tokens, TensorView parents, TensorView target_tokens, TensorView prefix_lens,
                 TensorView path_nodes, TensorView commit_lens, TensorView bonus, TensorView path_tokens,
                 TensorView new_seq_lens) {
#ifdef DDTREE_CUDA
  DDTREE_CHECK(tokens.device().device_type == kDLCUDA) << "tokens must be a CUDA tensor";
#else
  DDTREE_CHECK(tokens.device().device_type == kDLCPU) << "tokens must be a CPU tensor";
#endif
  check_rank(tokens, "tokens", 2);
  const int64_t batch = tokens.size(0);
  const int64_t nodes = tokens.size(1);
  DDTREE_CHECK(nodes >= 1 && nodes <= kAcceptMaxNodes)
      << "tokens.shape[1] (nodes) must be 1 to " << kAcceptMaxNodes << ", got " << nodes;
  check_rank(path_nodes, "path_nodes", 2);
  const int64_t columns = path_nodes.size(1);
  DDTREE_CHECK(columns >= 1 && columns <= kAcceptMaxColumns)
      << "path_nodes.shape[1] must be 1 to " << kAcceptMaxColumns << ", got " << columns;

  const auto check = [&](const TensorView& t, const char* name, std::initializer_list<int64_t> shape) {
    check_dense(t, name, shape, tokens, "tokens");
  };
  check(tokens, "tokens", {batch, nodes});
  check_i64(tokens, "tokens");
  check(parents, "parents", {batch, nodes});
  check_i32(parents, "parents");
  check(target_tokens, "target_tokens", {batch, nodes});
  check_i64(target_tokens, "target_tokens");
  check(prefix_lens, "prefix_lens", {batch});
  check_i64(prefix_lens, "prefix_lens");
  check(path_nodes, "path_nodes", {batch, columns});
  check_i32(path_nodes, "path_nodes");
  check(path_tokens, "path_tokens", {batch, columns});
  check_i64(path_tokens, "path_tokens");
  check(commit_lens, "commit_lens", {batch});
  check_i32(commit_lens, "commit_lens");
  check(bonus, "bonus", {batch});
  check_i64(bonus, "bonus");
  check(new_seq_lens, "new_seq_lens", {batch});
  check_i64(new_seq_lens, "new_seq_lens");
  if (batch == 0) return;

  TreeAcceptParams p{};
  p.tokens = ptr<const int64_t>(tokens);
  p.parents = ptr<const int32_t>(parents);
  p.target_tokens = ptr<const int64_t>(target_tokens);
  p.prefix_lens = ptr<const int64_t>(prefix_lens);
  p.path_nodes = ptr<int32_t>(path_nodes);
  p.commit_lens = ptr<int32_t>(commit_lens);
  p.bonus = ptr<int64_t>(bonus);
  p.path_tokens = ptr<int64_t>(path_tokens);
  p.new_seq_lens = ptr<int64_t>(new_seq_lens);
  p.batch = static_cast<int>(batch);
  p.num_nodes = static_cast<int>(nodes);
  p.columns = static_cast<int>(columns);

#ifdef DDTREE_CUDA
  const DeviceGuard guard(tokens.device());
  tree_accept_cuda(p, current_stream(tokens.device()));
#else
  tree_accept_cpu(p);
#endif
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tree_accept, tree_accept);

}  // namespace ddtree
