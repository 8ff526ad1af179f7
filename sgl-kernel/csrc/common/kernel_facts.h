// SPDX-License-Identifier: Apache-2.0
// What tools/report.py cannot read from a cubin. An operator lists its kernels in csrc/<operator>/report.h as
//   inline constexpr KernelFacts kKernelFacts[] = {{"kernel_name<1>", sizeof(Smem<1>), true}};
#pragma once

#include <cstddef>

namespace ddtree {

struct KernelFacts {
  const char* name;           // "kernel<2>" for one instantiation, "kernel" for all of a template
  size_t dynamic_smem_bytes;  // largest dynamic shared memory of a launch
  bool tensor_cores;          // must have ldmatrix, mma and an asynchronous copy in its SASS
};

}  // namespace ddtree
