// SPDX-License-Identifier: Apache-2.0
// KV rows on their way from the pool to shared memory: a ring of kSlots steps of 16 rows.
//
// A slot may be refilled when all value warps are done with it. The last of them to say so issues the refill, so nobody
// waits to load, and no warp is spent on loading. Page ids are fetched kIndexLead steps ahead, asynchronously too.
// Steps beyond the request's last key repeat that key, so nothing is read that the request does not own.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/plan.cuh"

namespace ddtree::mla {

struct KvSource {
  const char* pool;
  int64_t row_bytes;
  const int32_t* page_table;
  int64_t page_table_stride;
  int page_shift;  // log2 of the page size
};

template <int RowTiles>
struct KvRing {
  Smem<RowTiles>& smem;
  const Shape& shape;
  const KvSource& source;

  // Fetches the page ids of step i of the share, which is where smem.walk stands, and moves the walk on.
  __device__ __forceinline__ void fetch_index(int i) const {
    if (i >= smem.plan.total) return;
    const int lane = threadIdx.x % 32;
    IndexWalk walk = smem.walk;
    __syncwarp();
    const int first = walk.step * kBlockKeys;
    if (lane < kBlockKeys) {
      const int key = min(first + lane, walk.keys - 1);
      const int32_t* entry = source.page_table + walk.batch * source.page_table_stride + (key >> source.page_shift);
      ptx::cp_async_4(&smem.page_ids[i % kIndexRing][lane], entry);
    }
    ptx::cp_async_arrive(&smem.index_full[i % kIndexRing]);
    if (++walk.step == walk.steps) {
      walk.step = 0;
      if (++walk.tile == shape.tiles) {
        walk.tile = 0;
        int b = walk.batch + 1;
        while (b < shape.batch && shape.steps(b) == 0) ++b;
        if (b < shape.batch) {
          walk.keys = shape.keys(b);
          walk.steps = shape.steps(b);
        }
        walk.batch = b;
      }
    }
    if (lane == 0) {
      smem.first_key[i % kIndexRing] = first;
      smem.last_key[i % kIndexRing] = smem.walk.keys - 1;
      smem.walk = walk;
    }
    __syncwarp();
  }

  // Starts the copy of step i into its slot. All lanes of one warp call it together.
  __device__ __forceinline__ void load(int i) const {
    if (i >= smem.plan.total) return;
    const int lane = threadIdx.x % 32;
    const int entry = i % kIndexRing;
    const int slot = i % kSlots;
    ptx::mbarrier_wait(&smem.index_full[entry], (i / kIndexRing) & 1);
    const int row = lane % kBlockKeys;
    const int key = min(smem.first_key[entry] + row, smem.last_key[entry]);
    const int64_t page = smem.page_ids[entry][row];
    const int64_t token = (page << source.page_shift) + (key & ((1 << source.page_shift) - 1));
    const char* from = source.pool + token * source.row_bytes;
    const uint32_t to = ptx::smem_addr(smem.kv) + slot * kSlotBytes + row * kRowPitch;
#if DDTREE_HAS_BULK_COPY
    if (lane == 0) ptx::mbarrier_arrive_expect_tx(&smem.kv_full[slot], kBlockKeys * kRowBytes);
    __syncwarp();
    if (lane < kBlockKeys) ptx::bulk_copy(to, from, kRowBytes, &smem.kv_full[slot]);
#else
    // Two lanes a row, each every other 16 bytes.
    for (int chunk = lane / kBlockKeys; chunk < kRowBytes / 16; chunk += 2)
      ptx::cp_async_16(to + chunk * 16, from + chunk * 16);
    ptx::cp_async_arrive(&smem.kv_full[slot]);
#endif
    __syncwarp();
    fetch_index(i + kIndexLead);
  }

  // Fills the ring at the start of the kernel. One warp.
  __device__ __forceinline__ void start() const {
    for (int i = 0; i < kIndexLead; ++i) fetch_index(i);
    for (int i = 0; i < kSlots; ++i) load(i);
  }

  // This warp has read step i for the last time.
  __device__ __forceinline__ void release(int i) const {
    const int slot = i % kSlots;
    __syncwarp();
    int before_me = 0;
    if (threadIdx.x % 32 == 0) before_me = ptx::mbarrier_arrive_pending(&smem.kv_empty[slot]);
    if (__shfl_sync(~0u, before_me, 0) == 1) {
      ptx::mbarrier_wait(&smem.kv_empty[slot], (i / kSlots) & 1);  // already complete; it orders the others' reads
      load(i + kSlots);
    }
  }
};

}  // namespace ddtree::mla
