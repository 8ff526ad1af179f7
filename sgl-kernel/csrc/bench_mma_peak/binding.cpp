// SPDX-License-Identifier: Apache-2.0
// Benchmark only: in libddtree_bench.so, never in the wheel.
#include <tvm/ffi/function.h>

#include "bench_mma_peak/launch.h"
#include "common/cuda_utils.h"
#include "common/ffi_check.h"

namespace ddtree {

// out: float32 [blocks * 256]. Returns the floating-point operations of the launch.
int64_t bench_mma_peak(TensorView out, int64_t iterations) {
  DDTREE_CHECK(out.device().device_type == kDLCUDA) << "out must be a CUDA tensor";
  check_f32(out, "out");
  check_contiguous(out, "out");
  DDTREE_CHECK(out.numel() > 0 && out.numel() % kMmaPeakThreads == 0)
      << "out must hold a multiple of " << kMmaPeakThreads << " values";
  const int64_t blocks = out.numel() / kMmaPeakThreads;
  const DeviceGuard guard(out.device());
  bench_mma_peak_cuda(ptr<float>(out), static_cast<int>(blocks), static_cast<int>(iterations),
                      current_stream(out.device()));
  return blocks * (kMmaPeakThreads / 32) * iterations * kMmaPeakProductsPerIteration * kMmaPeakFlopPerProduct;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(bench_mma_peak, bench_mma_peak);

}  // namespace ddtree
