// SPDX-License-Identifier: Apache-2.0
// Storage types of the CPU twins and the one macro that lets a portable wheel use the machine's vector units.
#pragma once

#include <cstdint>
#include <cstring>

// GCC emits each marked function for several x86 levels and picks one when the library loads.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DDTREE_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDTREE_VECTOR_CLONES
#endif

namespace ddtree {

struct BFloat16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x) {
  const uint32_t word = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

inline void store(float* dst, float x) { *dst = x; }
// Round to nearest even, NaN stays NaN: what torch's conversion does.
inline void store(BFloat16* dst, float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof(word));
  const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
  dst->bits = is_nan ? 0x7fc0 : static_cast<uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
}

}  // namespace ddtree
