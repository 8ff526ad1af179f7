// SPDX-License-Identifier: Apache-2.0
// CPU twin of kv_commit. Steps in order: a row is overwritten only after the last step that reads it (see kernel.cuh).
#include <cstring>

#include "kv_commit/launch.h"

namespace ddtree {

void kv_commit_cpu(const KvCommitParams& p) {
  for (int buffer = 0; buffer < p.num_buffers; ++buffer) {
    char* base = reinterpret_cast<char*>(p.addresses[buffer]);
    const int64_t row_bytes = p.row_bytes[buffer];
    for (int64_t request = 0; request < p.batch; ++request) {
      const int64_t* slots = p.slots + request * p.slots_row_stride;
      const int32_t* nodes = p.path_nodes + request * p.columns;
      for (int step = 1; step < p.commit_lens[request]; ++step) {
        if (nodes[step] == step) continue;
        std::memcpy(base + slots[step] * row_bytes, base + slots[nodes[step]] * row_bytes, row_bytes);
      }
    }
  }
}

}  // namespace ddtree
