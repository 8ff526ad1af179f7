// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

struct CUstream_st;

namespace ddtree {

inline constexpr int kMmaPeakThreads = 256;
inline constexpr int kMmaPeakProductsPerIteration = 16;           // mma instructions of a warp
inline constexpr int64_t kMmaPeakFlopPerProduct = 2 * 16 * 8 * 16;  // m16n8k16

// Writes kMmaPeakThreads floats a block to `out`, so that the products cannot be optimised away.
void bench_mma_peak_cuda(float* out, int blocks, int iterations, CUstream_st* stream);

}  // namespace ddtree
