// SPDX-License-Identifier: Apache-2.0
// Host side of mla_tree_verify: one launch, its shape fixed by the card, everything else decided on the device.
#include <algorithm>

#include "common/cuda_utils.h"
#include "mla_tree_verify/kernel.cuh"

namespace ddtree {
namespace {

using namespace mla;

// Attributes are asked for once: a call must cost little more than its launch.
struct Card {
  int sms;
  int major;
};

const Card& current_card() {
  constexpr int kMaxCards = 64;
  static Card cards[kMaxCards] = {};
  int device = 0;
  DDTREE_CUDA_CHECK(cudaGetDevice(&device));
  Card& card = cards[device % kMaxCards];
  if (card.sms == 0) {
    int sms = 0;
    DDTREE_CUDA_CHECK(cudaDeviceGetAttribute(&card.major, cudaDevAttrComputeCapabilityMajor, device));
    DDTREE_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    DDTREE_CUDA_CHECK(cudaFuncSetAttribute(tree_verify_kernel<1>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Smem<1>))));
    DDTREE_CUDA_CHECK(cudaFuncSetAttribute(tree_verify_kernel<2>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(sizeof(Smem<2>))));
    card.sms = std::min(sms, kMaxBlocks);
  }
  return card;
}

int rows_of_tile(int row_tiles) { return row_tiles == 2 ? Tile<2>::kRows : Tile<1>::kRows; }

// Row tiles of 64 need the register exchange between warps that sm_90 brought.
int pick_row_tiles(int rows, int major) { return major >= 9 && rows > Tile<1>::kRows ? 2 : 1; }

// Two parts a block, fp16 and their log-sum-exp, and two counters a block.
int64_t parts_bytes(int blocks, int rows) { return int64_t{2} * blocks * rows * kMlaLatentDim * sizeof(__half); }
int64_t lse_bytes(int blocks, int rows) { return int64_t{2} * blocks * rows * sizeof(float); }
int64_t counter_bytes(int blocks) { return int64_t{2} * blocks * sizeof(int); }

template <int RowTiles>
void launch(const KernelArgs& args, const Card& card, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(card.sms);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Smem<RowTiles>);
  config.stream = stream;
  // Blocks that share a row tile wait for each other: all must be resident at once.
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  DDTREE_CUDA_CHECK(cudaLaunchKernelEx(&config, tree_verify_kernel<RowTiles>, args));
}

}  // namespace

int64_t mla_tree_verify_cuda_workspace_bytes(int /*max_batch*/, int max_num_nodes, int num_heads, int num_sms) {
  // Two parts a block, whatever the batch and the context. Smaller calls may take the smaller tile, never a larger one.
  const int rows = max_num_nodes * num_heads > Tile<1>::kRows ? Tile<2>::kRows : Tile<1>::kRows;
  const int blocks = std::min(num_sms, kMaxBlocks);
  return counter_bytes(blocks) + lse_bytes(blocks, rows) + parts_bytes(blocks, rows);
}

void mla_tree_verify_cuda(const MlaTreeVerifyParams& p, CUstream_st* stream) {
  const Card& card = current_card();
  const int rows = p.num_nodes * p.num_heads;
  const int row_tiles = pick_row_tiles(rows, card.major);
  const int tile_rows = rows_of_tile(row_tiles);
  const int64_t needed =
      counter_bytes(card.sms) + lse_bytes(card.sms, tile_rows) + parts_bytes(card.sms, tile_rows);
  if (p.workspace == nullptr || p.workspace_bytes < needed)
    TVM_FFI_THROW(ValueError) << "workspace holds " << p.workspace_bytes << " bytes, this call needs " << needed
                              << ": size it with mla_tree_verify_workspace for the largest call";

  KernelArgs args;
  args.prefix_lens = p.prefix_lens;
  args.batch = p.batch;
  args.num_nodes = p.num_nodes;
  args.tiles = (rows + tile_rows - 1) / tile_rows;
  args.score.q_nope = static_cast<const __nv_bfloat16*>(p.q_nope);
  args.score.q_rope = static_cast<const __nv_bfloat16*>(p.q_rope);
  args.score.q_nope_row_stride = p.q_nope_row_stride;
  args.score.q_nope_head_stride = p.q_nope_head_stride;
  args.score.q_rope_row_stride = p.q_rope_row_stride;
  args.score.q_rope_head_stride = p.q_rope_head_stride;
  args.score.mask_words = p.mask_words;
  args.score.num_heads = p.num_heads;
  args.score.words_per_row = p.words_per_row;
  args.score.scale_log2 = p.sm_scale * 1.4426950408889634f;
  args.kv.pool = static_cast<const char*>(p.kv_pool);
  args.kv.row_bytes = p.kv_row_stride * static_cast<int64_t>(sizeof(__nv_bfloat16));
  args.kv.page_table = p.page_table;
  args.kv.page_table_stride = p.page_table_row_stride;
  args.kv.page_shift = 0;
  while ((1 << args.kv.page_shift) < p.page_size) ++args.kv.page_shift;
  args.output.out = static_cast<__nv_bfloat16*>(p.out);
  args.output.out_row_stride = p.out_row_stride;
  args.output.out_head_stride = p.out_head_stride;
  args.output.lse = p.lse;
  // Counters first: they must stay zero between calls, and calls of different sizes lay the rest out differently.
  char* const workspace = static_cast<char*>(p.workspace);
  args.output.arrived = reinterpret_cast<int*>(workspace);
  args.output.departed = args.output.arrived + card.sms;
  args.output.parts_lse = reinterpret_cast<float*>(workspace + counter_bytes(card.sms));
  args.output.parts =
      reinterpret_cast<__half*>(workspace + counter_bytes(card.sms) + lse_bytes(card.sms, tile_rows));
  args.output.num_heads = p.num_heads;

  if (row_tiles == 2)
    launch<2>(args, card, stream);
  else
    launch<1>(args, card, stream);
}

}  // namespace ddtree
