// SPDX-License-Identifier: Apache-2.0
// Threads for the CPU twins. Plain std::thread that end with the call: torch already brings an OpenMP runtime of its
// own, two in one process oversubscribe or deadlock after fork, and a pool of ours would not survive a fork either.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

namespace ddtree {

// OMP_NUM_THREADS where it is set, as torch does, else every core.
inline int num_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    const int n = std::atoi(text);
    if (n > 0) return n;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

// Calls body(i) for every i in [0, count), in any order, each once. body must not throw.
template <typename Body>
void parallel_for(int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> helpers;
  const int64_t helper_count = std::min<int64_t>(num_threads(), count) - 1;
  for (int64_t t = 0; t < helper_count; ++t) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
}

}  // namespace ddtree
