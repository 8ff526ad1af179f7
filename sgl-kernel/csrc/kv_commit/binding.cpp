// SPDX-License-Identifier: Apache-2.0
// tvm-ffi entry point of kv_commit. Compiled once into each library: DDTREE_CUDA selects the launcher.
#include <tvm/ffi/function.h>

#include "common/ffi_check.h"
#include "kv_commit/launch.h"

#ifdef DDTREE_CUDA
#include "common/cuda_utils.h"
#endif

namespace ddtree {

void kv_commit(TensorView addresses, TensorView row_bytes, TensorView slots, TensorView path_nodes,
               TensorView commit_lens) {
#ifdef DDTREE_CUDA
  DDTREE_CHECK(slots.device().device_type == kDLCUDA) << "slots must be a CUDA tensor";
#else
  DDTREE_CHECK(slots.device().device_type == kDLCPU) << "slots must be a CPU tensor";
#endif
  check_i64(slots, "slots");
  check_rank(slots, "slots", 2);
  check_last_dim_contiguous(slots, "slots");
  const int64_t batch = slots.size(0);

  const auto check = [&](const TensorView& t, const char* name, std::initializer_list<int64_t> shape) {
    check_dense(t, name, shape, slots, "slots");
  };
  check_rank(addresses, "addresses", 1);
  const int64_t buffers = addresses.size(0);
  check(addresses, "addresses", {buffers});
  check_i64(addresses, "addresses");
  check(row_bytes, "row_bytes", {buffers});
  check_i64(row_bytes, "row_bytes");

  check_rank(path_nodes, "path_nodes", 2);
  const int64_t columns = path_nodes.size(1);
  check(path_nodes, "path_nodes", {batch, columns});
  check_i32(path_nodes, "path_nodes");
  DDTREE_CHECK(columns >= 1 && columns <= kCommitMaxColumns)
      << "path_nodes.shape[1] must be 1 to " << kCommitMaxColumns << ", got " << columns;
  check(commit_lens, "commit_lens", {batch});
  check_i32(commit_lens, "commit_lens");
  if (batch == 0 || buffers == 0) return;

  KvCommitParams p{};
  p.addresses = ptr<const int64_t>(addresses);
  p.row_bytes = ptr<const int64_t>(row_bytes);
  p.slots = ptr<const int64_t>(slots);
  p.path_nodes = ptr<const int32_t>(path_nodes);
  p.commit_lens = ptr<const int32_t>(commit_lens);
  p.slots_row_stride = slots.stride(0);
  p.num_buffers = static_cast<int>(buffers);
  p.batch = static_cast<int>(batch);
  p.columns = static_cast<int>(columns);

#ifdef DDTREE_CUDA
  const DeviceGuard guard(slots.device());
  kv_commit_cuda(p, current_stream(slots.device()));
#else
  kv_commit_cpu(p);
#endif
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(kv_commit, kv_commit);

}  // namespace ddtree
