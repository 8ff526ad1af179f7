// SPDX-License-Identifier: Apache-2.0
// What mma.sync bf16 reaches on a card when nothing else holds it back: operands and sums stay in registers.
// The roof that a kernel without wgmma or tcgen05 can be held to. Operands are random, since power depends on them.
#include <cuda_bf16.h>

#include "bench_mma_peak/launch.h"
#include "common/cuda_utils.h"

namespace ddtree {
namespace {

constexpr int kTiles = 4;  // 4 A tiles x 4 B tiles: 16 independent sums, enough to cover the latency of one

// Two bf16 values in about [-1, 1), from a hash of the seed.
__device__ uint32_t random_pair(uint32_t seed) {
  seed ^= seed >> 16;
  seed *= 0x7feb352du;
  seed ^= seed >> 15;
  seed *= 0x846ca68bu;
  seed ^= seed >> 16;
  const __nv_bfloat162 pair = __floats2bfloat162_rn(static_cast<int16_t>(seed & 0xffff) / 32768.f,
                                                    static_cast<int16_t>(seed >> 16) / 32768.f);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__global__ void __launch_bounds__(kMmaPeakThreads) mma_peak_kernel(float* out, int iterations) {
  const uint32_t thread = blockIdx.x * kMmaPeakThreads + threadIdx.x;
  uint32_t a[kTiles][4], b[kTiles][2];
  float sum[kTiles][kTiles][4] = {};
  for (int t = 0; t < kTiles; ++t) {
    for (int i = 0; i < 4; ++i) a[t][i] = random_pair(thread * 64 + t * 8 + i);
    for (int i = 0; i < 2; ++i) b[t][i] = random_pair(thread * 64 + t * 8 + 4 + i);
  }
  for (int n = 0; n < iterations; ++n) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) mma_bf16(sum[i][j], a[i], b[j]);
    }
  }
  float total = 0.f;
  for (int i = 0; i < kTiles; ++i) {
    for (int j = 0; j < kTiles; ++j) total += sum[i][j][0] + sum[i][j][1] + sum[i][j][2] + sum[i][j][3];
  }
  out[thread] = total;
}

}  // namespace

void bench_mma_peak_cuda(float* out, int blocks, int iterations, CUstream_st* stream) {
  static_assert(kTiles * kTiles == kMmaPeakProductsPerIteration);
  mma_peak_kernel<<<blocks, kMmaPeakThreads, 0, stream>>>(out, iterations);
  DDTREE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ddtree
