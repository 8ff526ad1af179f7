// SPDX-License-Identifier: Apache-2.0
// Says what a library holds, so that the loader never has to find out by a failed launch.
#include <string>

#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#ifdef DDTREE_CUDA
#include <cuda_runtime_api.h>
#endif

#define DDTREE_STR_(x) #x
#define DDTREE_STR(x) DDTREE_STR_(x)

namespace ddtree {

// "archs=120a_90 cuda=13000": targets joined by '_' ("cpu" for the CPU twins) and the toolkit's version (0 without).
tvm::ffi::String build_info() {
  std::string info = "archs=" DDTREE_STR(DDTREE_ARCHS);
#ifdef DDTREE_CUDA
  info += " cuda=" + std::to_string(CUDART_VERSION);
#else
  info += " cuda=0";
#endif
  return info;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(build_info, build_info);

}  // namespace ddtree
