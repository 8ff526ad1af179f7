// SPDX-License-Identifier: Apache-2.0
// Host-side CUDA helpers of the bindings and launchers.
#pragma once

#include <cuda_runtime.h>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#define DDTREE_CUDA_CHECK(expr)                                                              \
  do {                                                                                       \
    const cudaError_t ddtree_err = (expr);                                                   \
    if (ddtree_err != cudaSuccess)                                                           \
      TVM_FFI_THROW(RuntimeError) << #expr << " failed: " << cudaGetErrorString(ddtree_err); \
  } while (0)

namespace ddtree {

// The stream that the caller's framework has made current (torch.cuda.current_stream, also while it captures a graph).
inline cudaStream_t current_stream(DLDevice device) {
  return static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
}

// Launches go to the tensors' card even when another one is current.
class DeviceGuard {
 public:
  explicit DeviceGuard(DLDevice device) {
    DDTREE_CUDA_CHECK(cudaGetDevice(&previous_));
    changed_ = previous_ != device.device_id;
    if (changed_) DDTREE_CUDA_CHECK(cudaSetDevice(device.device_id));
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

}  // namespace ddtree
