// SPDX-License-Identifier: Apache-2.0
// Argument checks shared by every operator's binding. All run on the host, read only shapes, strides and pointers, and
// raise a Python ValueError that names the argument. None looks at device memory, so they are safe under graph capture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>

#define DDTREE_CHECK(cond) \
  if (!(cond)) TVM_FFI_THROW(ValueError)

namespace ddtree {

using TensorView = tvm::ffi::TensorView;

inline bool is_dtype(const TensorView& t, DLDataTypeCode code, int bits) {
  return t.dtype().code == code && t.dtype().bits == bits && t.dtype().lanes == 1;
}
inline bool is_bf16(const TensorView& t) { return is_dtype(t, kDLBfloat, 16); }
inline bool is_f32(const TensorView& t) { return is_dtype(t, kDLFloat, 32); }
inline bool is_i32(const TensorView& t) { return is_dtype(t, kDLInt, 32); }
inline bool is_i64(const TensorView& t) { return is_dtype(t, kDLInt, 64); }
inline bool is_bool(const TensorView& t) { return is_dtype(t, kDLBool, 8); }
inline bool is_word32(const TensorView& t) { return is_i32(t) || is_dtype(t, kDLUInt, 32); }

inline void check_f32(const TensorView& t, const char* name) {
  DDTREE_CHECK(is_f32(t)) << name << " must be float32, got " << tvm::ffi::DLDataTypeToString(t.dtype());
}
inline void check_i32(const TensorView& t, const char* name) {
  DDTREE_CHECK(is_i32(t)) << name << " must be int32, got " << tvm::ffi::DLDataTypeToString(t.dtype());
}
inline void check_i64(const TensorView& t, const char* name) {
  DDTREE_CHECK(is_i64(t)) << name << " must be int64, got " << tvm::ffi::DLDataTypeToString(t.dtype());
}
// torch has few operations on uint32, so words may also arrive as int32 of the same bits.
inline void check_word32(const TensorView& t, const char* name) {
  DDTREE_CHECK(is_word32(t)) << name << " must be int32 or uint32 words, got "
                             << tvm::ffi::DLDataTypeToString(t.dtype());
}
inline void check_same_dtype(const TensorView& t, const char* name, const TensorView& ref, const char* ref_name) {
  DDTREE_CHECK(t.dtype() == ref.dtype())
      << name << " must have the dtype of " << ref_name << " (" << tvm::ffi::DLDataTypeToString(ref.dtype())
      << "), got " << tvm::ffi::DLDataTypeToString(t.dtype());
}
inline void check_same_device(const TensorView& t, const char* name, const TensorView& ref, const char* ref_name) {
  DDTREE_CHECK(t.device().device_type == ref.device().device_type && t.device().device_id == ref.device().device_id)
      << name << " must be on the device of " << ref_name;
}
inline void check_rank(const TensorView& t, const char* name, int rank) {
  DDTREE_CHECK(t.ndim() == rank) << name << " must have " << rank << " dimensions, got " << t.ndim();
}
inline void check_size(const TensorView& t, const char* name, int dim, int64_t size) {
  DDTREE_CHECK(t.size(dim) == size) << name << ".shape[" << dim << "] must be " << size << ", got " << t.size(dim);
}
inline void check_last_dim_contiguous(const TensorView& t, const char* name) {
  DDTREE_CHECK(t.numel() == 0 || t.size(-1) == 1 || t.stride(-1) == 1)
      << name << ": the last dimension must be contiguous, its stride is " << t.stride(-1);
}
inline void check_contiguous(const TensorView& t, const char* name) {
  DDTREE_CHECK(t.IsContiguous()) << name << " must be contiguous";
}

// What most arguments are: dense, of one exact shape, beside the operator's first argument.
inline void check_dense(const TensorView& t, const char* name, std::initializer_list<int64_t> shape,
                        const TensorView& ref, const char* ref_name) {
  check_same_device(t, name, ref, ref_name);
  check_rank(t, name, static_cast<int>(shape.size()));
  int dim = 0;
  for (const int64_t size : shape) check_size(t, name, dim++, size);
  check_contiguous(t, name);
}

inline char* raw_ptr(const TensorView& t) { return static_cast<char*>(t.data_ptr()) + t.byte_offset(); }
template <typename T>
inline T* ptr(const TensorView& t) {
  return reinterpret_cast<T*>(raw_ptr(t));
}

// Base pointer and every outer stride must be a multiple of `bytes`: a kernel then reads whole vectors anywhere.
inline void check_rows_aligned(const TensorView& t, const char* name, int bytes) {
  const int64_t item = t.dtype().bits / 8;
  DDTREE_CHECK(reinterpret_cast<uintptr_t>(raw_ptr(t)) % bytes == 0)
      << name << ": data must be " << bytes << "-byte aligned";
  for (int i = 0; i + 1 < t.ndim(); ++i) {
    DDTREE_CHECK(t.size(i) <= 1 || (t.stride(i) * item) % bytes == 0)
        << name << ": stride " << t.stride(i) << " of dimension " << i << " is not a multiple of " << bytes
        << " bytes";
  }
}

}  // namespace ddtree
