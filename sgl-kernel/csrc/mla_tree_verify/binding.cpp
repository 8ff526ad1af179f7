// SPDX-License-Identifier: Apache-2.0
// tvm-ffi entry points of mla_tree_verify. Compiled once into each library: DDTREE_CUDA selects the launcher.
#include <tvm/ffi/function.h>

#include "common/ffi_check.h"
#include "mla_tree_verify/launch.h"

#ifdef DDTREE_CUDA
#include "common/cuda_utils.h"
#endif

namespace ddtree {
namespace {

constexpr int kRowAlignment = 16;

void check_matrix(const TensorView& t, const char* name, const TensorView& q, int64_t rows, int64_t heads, int64_t dim) {
  check_same_device(t, name, q, "q_nope");
  check_same_dtype(t, name, q, "q_nope");
  check_rank(t, name, 3);
  check_size(t, name, 0, rows);
  check_size(t, name, 1, heads);
  check_size(t, name, 2, dim);
  check_last_dim_contiguous(t, name);
  check_rows_aligned(t, name, kRowAlignment);
}

}  // namespace

void mla_tree_verify(TensorView out, tvm::ffi::Optional<TensorView> lse, TensorView q_nope, TensorView q_rope,
                     TensorView kv_pool, TensorView page_table, TensorView prefix_lens, TensorView mask_words,
                     tvm::ffi::Optional<TensorView> workspace, int64_t num_nodes, int64_t page_size, double sm_scale) {
  DDTREE_CHECK(num_nodes >= 1 && num_nodes <= kMlaMaxNodes)
      << "num_nodes must be 1 to " << kMlaMaxNodes << ", got " << num_nodes;
  DDTREE_CHECK(page_size >= 1 && page_size <= kMlaMaxPageSize && (page_size & (page_size - 1)) == 0)
      << "page_size must be a power of two, 1 to " << kMlaMaxPageSize << ", got " << page_size;
#ifdef DDTREE_CUDA
  DDTREE_CHECK(q_nope.device().device_type == kDLCUDA) << "q_nope must be a CUDA tensor";
  DDTREE_CHECK(is_bf16(q_nope)) << "q_nope must be bfloat16";
#else
  DDTREE_CHECK(q_nope.device().device_type == kDLCPU) << "q_nope must be a CPU tensor";
  DDTREE_CHECK(is_bf16(q_nope) || is_f32(q_nope)) << "q_nope must be bfloat16 or float32";
#endif

  check_rank(prefix_lens, "prefix_lens", 1);
  const int64_t batch = prefix_lens.size(0);
  const int64_t rows = batch * num_nodes;
  check_rank(q_nope, "q_nope", 3);
  const int64_t heads = q_nope.size(1);
  DDTREE_CHECK(heads >= 1 && heads <= kMlaMaxHeads)
      << "q_nope.shape[1] (heads) must be 1 to " << kMlaMaxHeads << ", got " << heads;
  check_matrix(q_nope, "q_nope", q_nope, rows, heads, kMlaLatentDim);
  check_matrix(q_rope, "q_rope", q_nope, rows, heads, kMlaRopeDim);
  check_matrix(out, "out", q_nope, rows, heads, kMlaLatentDim);

  check_same_device(kv_pool, "kv_pool", q_nope, "q_nope");
  check_same_dtype(kv_pool, "kv_pool", q_nope, "q_nope");
  DDTREE_CHECK(kv_pool.ndim() == 2 || (kv_pool.ndim() == 3 && kv_pool.size(1) == 1))
      << "kv_pool must be [slots, 576] or [slots, 1, 576]";
  check_size(kv_pool, "kv_pool", kv_pool.ndim() - 1, kMlaHeadDim);
  check_last_dim_contiguous(kv_pool, "kv_pool");
  check_rows_aligned(kv_pool, "kv_pool", kRowAlignment);

  check_same_device(page_table, "page_table", q_nope, "q_nope");
  check_i32(page_table, "page_table");
  check_rank(page_table, "page_table", 2);
  check_size(page_table, "page_table", 0, batch);
  check_last_dim_contiguous(page_table, "page_table");

  check_same_device(prefix_lens, "prefix_lens", q_nope, "q_nope");
  check_i32(prefix_lens, "prefix_lens");
  check_contiguous(prefix_lens, "prefix_lens");

  const int64_t words = (num_nodes + 31) / 32;
  check_same_device(mask_words, "mask_words", q_nope, "q_nope");
  check_word32(mask_words, "mask_words");
  check_rank(mask_words, "mask_words", 3);
  check_size(mask_words, "mask_words", 0, batch);
  check_size(mask_words, "mask_words", 1, num_nodes);
  check_size(mask_words, "mask_words", 2, words);
  check_contiguous(mask_words, "mask_words");

  MlaTreeVerifyParams p{};
  if (lse.has_value()) {
    const TensorView& t = lse.value();
    check_same_device(t, "lse", q_nope, "q_nope");
    check_f32(t, "lse");
    check_rank(t, "lse", 2);
    check_size(t, "lse", 0, rows);
    check_size(t, "lse", 1, heads);
    check_contiguous(t, "lse");
    p.lse = ptr<float>(t);
  }
  if (workspace.has_value()) {
    const TensorView& t = workspace.value();
    check_same_device(t, "workspace", q_nope, "q_nope");
    check_contiguous(t, "workspace");
    check_rows_aligned(t, "workspace", kRowAlignment);
    p.workspace = raw_ptr(t);
    p.workspace_bytes = t.numel() * (t.dtype().bits / 8);
  }

  p.out = raw_ptr(out);
  p.q_nope = raw_ptr(q_nope);
  p.q_rope = raw_ptr(q_rope);
  p.kv_pool = raw_ptr(kv_pool);
  p.page_table = ptr<const int32_t>(page_table);
  p.prefix_lens = ptr<const int32_t>(prefix_lens);
  p.mask_words = ptr<const uint32_t>(mask_words);
  p.out_row_stride = out.stride(0);
  p.out_head_stride = out.stride(1);
  p.q_nope_row_stride = q_nope.stride(0);
  p.q_nope_head_stride = q_nope.stride(1);
  p.q_rope_row_stride = q_rope.stride(0);
  p.q_rope_head_stride = q_rope.stride(1);
  p.kv_row_stride = kv_pool.stride(0);
  p.page_table_row_stride = page_table.stride(0);
  p.num_slots = kv_pool.size(0);
  p.batch = static_cast<int>(batch);
  p.num_nodes = static_cast<int>(num_nodes);
  p.num_heads = static_cast<int>(heads);
  p.page_size = static_cast<int>(page_size);
  p.max_pages = static_cast<int>(page_table.size(1));
  p.words_per_row = static_cast<int>(words);
  p.sm_scale = static_cast<float>(sm_scale);
  if (batch == 0) return;

#ifdef DDTREE_CUDA
  const DeviceGuard guard(q_nope.device());
  mla_tree_verify_cuda(p, current_stream(q_nope.device()));
#else
  mla_tree_verify_cpu(p, is_bf16(q_nope));
#endif
}

int64_t mla_tree_verify_workspace_bytes(int64_t max_batch, int64_t max_num_nodes, int64_t num_heads, int64_t num_sms) {
  DDTREE_CHECK(max_batch >= 1) << "max_batch must be at least 1, got " << max_batch;
  DDTREE_CHECK(max_num_nodes >= 1 && max_num_nodes <= kMlaMaxNodes)
      << "max_num_nodes must be 1 to " << kMlaMaxNodes << ", got " << max_num_nodes;
  DDTREE_CHECK(num_heads >= 1 && num_heads <= kMlaMaxHeads)
      << "num_heads must be 1 to " << kMlaMaxHeads << ", got " << num_heads;
#ifdef DDTREE_CUDA
  DDTREE_CHECK(num_sms >= 1) << "num_sms must be at least 1, got " << num_sms;
  return mla_tree_verify_cuda_workspace_bytes(static_cast<int>(max_batch), static_cast<int>(max_num_nodes),
                                              static_cast<int>(num_heads), static_cast<int>(num_sms));
#else
  return 0;
#endif
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(mla_tree_verify, mla_tree_verify);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(mla_tree_verify_workspace_bytes, mla_tree_verify_workspace_bytes);

}  // namespace ddtree
