// SPDX-License-Identifier: Apache-2.0
// tvm-ffi entry points of gqa_tree_verify. Compiled once into each library: DDTREE_CUDA selects the launcher.
#include <tvm/ffi/function.h>

#include "common/ffi_check.h"
#include "gqa_tree_verify/launch.h"

#ifdef DDTREE_CUDA
#include "common/cuda_utils.h"
#endif

namespace ddtree {
namespace {

constexpr int kRowAlignment = 16;

// e4m3 arrives as its bytes: not every torch that we serve exports the type.
bool is_fp8(const TensorView& t) { return is_dtype(t, kDLUInt, 8); }

void check_matrix(const TensorView& t, const char* name, const TensorView& q, int64_t rows, int64_t heads, int64_t dim) {
  check_same_device(t, name, q, "q");
  check_rank(t, name, 3);
  if (rows >= 0) check_size(t, name, 0, rows);
  check_size(t, name, 1, heads);
  check_size(t, name, 2, dim);
  check_last_dim_contiguous(t, name);
  check_rows_aligned(t, name, kRowAlignment);
}

void check_pool(const TensorView& t, const char* name, const TensorView& q, int64_t heads, int64_t dim) {
  DDTREE_CHECK(t.dtype() == q.dtype() || is_fp8(t))
      << name << " must have the dtype of q (" << tvm::ffi::DLDataTypeToString(q.dtype())
      << ") or hold e4m3 as uint8, got " << tvm::ffi::DLDataTypeToString(t.dtype());
  check_matrix(t, name, q, -1, heads, dim);
  const int64_t row_bytes = t.stride(0) * (t.dtype().bits / 8);
  DDTREE_CHECK(row_bytes >= 0 && row_bytes < (int64_t{1} << 31))
      << name << ": a row of " << row_bytes << " bytes; it must be below 2^31";
}

}  // namespace

void gqa_tree_verify(TensorView out, tvm::ffi::Optional<TensorView> lse, TensorView q, TensorView k_pool, TensorView v_pool,
                     TensorView page_table, TensorView prefix_lens, tvm::ffi::Optional<TensorView> mask_words,
                     tvm::ffi::Optional<TensorView> workspace, int64_t num_nodes, int64_t page_size, double sm_scale,
                     int64_t window, double logit_cap, double k_scale, double v_scale) {
  DDTREE_CHECK(num_nodes >= 1 && num_nodes <= kGqaMaxNodes)
      << "num_nodes must be 1 to " << kGqaMaxNodes << ", got " << num_nodes;
  DDTREE_CHECK(page_size >= 1 && page_size <= kGqaMaxPageSize && (page_size & (page_size - 1)) == 0)
      << "page_size must be a power of two, 1 to " << kGqaMaxPageSize << ", got " << page_size;
  DDTREE_CHECK(sm_scale > 0) << "sm_scale must be positive, got " << sm_scale;
  DDTREE_CHECK(logit_cap >= 0) << "logit_cap must not be negative, got " << logit_cap;
  DDTREE_CHECK(k_scale > 0 && v_scale > 0) << "k_scale and v_scale must be positive, got " << k_scale << ", " << v_scale;
  DDTREE_CHECK(window < (int64_t{1} << 31)) << "window must be below 2^31, got " << window;
#ifdef DDTREE_CUDA
  DDTREE_CHECK(q.device().device_type == kDLCUDA) << "q must be a CUDA tensor";
  DDTREE_CHECK(is_bf16(q)) << "q must be bfloat16";
#else
  DDTREE_CHECK(q.device().device_type == kDLCPU) << "q must be a CPU tensor";
  DDTREE_CHECK(is_bf16(q) || is_f32(q)) << "q must be bfloat16 or float32";
#endif

  check_rank(prefix_lens, "prefix_lens", 1);
  const int64_t batch = prefix_lens.size(0);
  const int64_t rows = batch * num_nodes;
  check_rank(q, "q", 3);
  const int64_t heads = q.size(1), dim = q.size(2);
  DDTREE_CHECK(gqa_has_head_dim(dim)) << "q.shape[2] (head size) must be 64, 128 or 256, got " << dim;
  check_rank(k_pool, "k_pool", 3);
  const int64_t kv_heads = k_pool.size(1);
  DDTREE_CHECK(heads >= 1 && heads <= kGqaMaxHeads)
      << "q.shape[1] (query heads) must be 1 to " << kGqaMaxHeads << ", got " << heads;
  DDTREE_CHECK(kv_heads >= 1 && heads % kv_heads == 0 && heads / kv_heads <= kGqaMaxGroup)
      << "query heads must be 1 to " << kGqaMaxGroup << " times the KV heads (k_pool.shape[1]), got " << heads << " and "
      << kv_heads;
  check_matrix(q, "q", q, rows, heads, dim);
  check_same_dtype(out, "out", q, "q");
  check_matrix(out, "out", q, rows, heads, dim);
  check_pool(k_pool, "k_pool", q, kv_heads, dim);
  check_pool(v_pool, "v_pool", q, kv_heads, dim);
  check_same_dtype(v_pool, "v_pool", k_pool, "k_pool");
  check_size(v_pool, "v_pool", 0, k_pool.size(0));
  const bool fp8 = is_fp8(k_pool);
  DDTREE_CHECK(fp8 || (k_scale == 1 && v_scale == 1)) << "k_scale and v_scale belong to an fp8 pool, got " << k_scale << ", "
                                                      << v_scale << " with a pool in the dtype of q";

  check_same_device(page_table, "page_table", q, "q");
  check_i32(page_table, "page_table");
  check_rank(page_table, "page_table", 2);
  check_size(page_table, "page_table", 0, batch);
  check_last_dim_contiguous(page_table, "page_table");

  check_same_device(prefix_lens, "prefix_lens", q, "q");
  check_i32(prefix_lens, "prefix_lens");
  check_contiguous(prefix_lens, "prefix_lens");

  GqaTreeVerifyParams p{};
  const int64_t words = (num_nodes + 31) / 32;
  if (mask_words.has_value()) {
    const TensorView& t = mask_words.value();
    check_same_device(t, "mask_words", q, "q");
    check_word32(t, "mask_words");
    check_rank(t, "mask_words", 3);
    check_size(t, "mask_words", 0, batch);
    check_size(t, "mask_words", 1, num_nodes);
    check_size(t, "mask_words", 2, words);
    check_contiguous(t, "mask_words");
    p.mask_words = ptr<const uint32_t>(t);
  }
  if (lse.has_value()) {
    const TensorView& t = lse.value();
    check_same_device(t, "lse", q, "q");
    check_f32(t, "lse");
    check_rank(t, "lse", 2);
    check_size(t, "lse", 0, rows);
    check_size(t, "lse", 1, heads);
    check_contiguous(t, "lse");
    p.lse = ptr<float>(t);
  }
  if (workspace.has_value()) {
    const TensorView& t = workspace.value();
    check_same_device(t, "workspace", q, "q");
    check_contiguous(t, "workspace");
    check_rows_aligned(t, "workspace", kRowAlignment);
    p.workspace = raw_ptr(t);
    p.workspace_bytes = t.numel() * (t.dtype().bits / 8);
  }

  p.out = raw_ptr(out);
  p.q = raw_ptr(q);
  p.k_pool = raw_ptr(k_pool);
  p.v_pool = raw_ptr(v_pool);
  p.page_table = ptr<const int32_t>(page_table);
  p.prefix_lens = ptr<const int32_t>(prefix_lens);
  p.out_row_stride = out.stride(0);
  p.out_head_stride = out.stride(1);
  p.q_row_stride = q.stride(0);
  p.q_head_stride = q.stride(1);
  p.k_row_stride = k_pool.stride(0);
  p.k_head_stride = k_pool.stride(1);
  p.v_row_stride = v_pool.stride(0);
  p.v_head_stride = v_pool.stride(1);
  p.page_table_row_stride = page_table.stride(0);
  p.batch = static_cast<int>(batch);
  p.num_nodes = static_cast<int>(num_nodes);
  p.num_heads = static_cast<int>(heads);
  p.num_kv_heads = static_cast<int>(kv_heads);
  p.head_dim = static_cast<int>(dim);
  p.page_size = static_cast<int>(page_size);
  p.words_per_row = static_cast<int>(words);
  p.window = window < 0 ? -1 : static_cast<int>(window);
  p.sm_scale = static_cast<float>(sm_scale);
  p.logit_cap = static_cast<float>(logit_cap);
  p.k_scale = static_cast<float>(k_scale);
  p.v_scale = static_cast<float>(v_scale);
  p.fp8 = fp8;
  if (batch == 0) return;

#ifdef DDTREE_CUDA
  const DeviceGuard guard(q.device());
  gqa_tree_verify_cuda(p, current_stream(q.device()));
#else
  gqa_tree_verify_cpu(p, is_bf16(q));
#endif
}

int64_t gqa_tree_verify_workspace_bytes(int64_t max_num_nodes, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                        int64_t num_sms) {
  DDTREE_CHECK(max_num_nodes >= 1 && max_num_nodes <= kGqaMaxNodes)
      << "max_num_nodes must be 1 to " << kGqaMaxNodes << ", got " << max_num_nodes;
  DDTREE_CHECK(gqa_has_head_dim(head_dim)) << "head_dim must be 64, 128 or 256, got " << head_dim;
  DDTREE_CHECK(num_heads >= 1 && num_heads <= kGqaMaxHeads)
      << "num_heads must be 1 to " << kGqaMaxHeads << ", got " << num_heads;
  DDTREE_CHECK(num_kv_heads >= 1 && num_heads % num_kv_heads == 0 && num_heads / num_kv_heads <= kGqaMaxGroup)
      << "num_heads must be 1 to " << kGqaMaxGroup << " times num_kv_heads, got " << num_heads << " and " << num_kv_heads;
#ifdef DDTREE_CUDA
  DDTREE_CHECK(num_sms >= 1) << "num_sms must be at least 1, got " << num_sms;
  return gqa_tree_verify_cuda_workspace_bytes(static_cast<int>(max_num_nodes), static_cast<int>(num_heads),
                                              static_cast<int>(num_kv_heads), static_cast<int>(head_dim),
                                              static_cast<int>(num_sms));
#else
  return 0;
#endif
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gqa_tree_verify, gqa_tree_verify);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(gqa_tree_verify_workspace_bytes, gqa_tree_verify_workspace_bytes);

}  // namespace ddtree
