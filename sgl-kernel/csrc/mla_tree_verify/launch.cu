// SPDX-License-Identifier: Apache-2.0
// Host side of mla_tree_verify: two launches, shapes fixed by the arguments, everything else decided on the device.
#include <algorithm>

#include "common/cuda_utils.h"
#include "mla_tree_verify/combine.cuh"

namespace ddtree {
namespace {

using namespace mla;

// Attributes are asked for once: a call must cost little more than its two launches.
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

int64_t workspace_bytes(int blocks, int rows) {
  return int64_t{2} * blocks * rows * (kMlaLatentDim + 1) * sizeof(float);
}

template <int RowTiles>
void launch(const KernelArgs& args, const Card& card, cudaStream_t stream) {
  tree_verify_kernel<RowTiles><<<card.sms, kThreads, sizeof(Smem<RowTiles>), stream>>>(args);
  DDTREE_CUDA_CHECK(cudaGetLastError());

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(card.sms);
  config.blockDim = dim3(kCombineThreads);
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = card.major >= 9 ? 1 : 0;
  DDTREE_CUDA_CHECK(cudaLaunchKernelEx(&config, tree_combine_kernel<RowTiles>, args));
}

}  // namespace

int64_t mla_tree_verify_cuda_workspace_bytes(int /*max_batch*/, int max_num_nodes, int num_heads, int num_sms) {
  // Two parts a block, whatever the batch and the context. Smaller calls may take the smaller tile, never a larger one.
  const int rows = max_num_nodes * num_heads > Tile<1>::kRows ? Tile<2>::kRows : Tile<1>::kRows;
  return workspace_bytes(std::min(num_sms, kMaxBlocks), rows);
}

void mla_tree_verify_cuda(const MlaTreeVerifyParams& p, CUstream_st* stream) {
  const Card& card = current_card();
  const int rows = p.num_nodes * p.num_heads;
  const int row_tiles = pick_row_tiles(rows, card.major);
  const int tile_rows = rows_of_tile(row_tiles);
  const int64_t needed = workspace_bytes(card.sms, tile_rows);
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
  args.output.parts = static_cast<float*>(p.workspace);
  args.output.parts_lse = args.output.parts + int64_t{2} * card.sms * tile_rows * kMlaLatentDim;
  args.output.num_heads = p.num_heads;

  if (row_tiles == 2)
    launch<2>(args, card, stream);
  else
    launch<1>(args, card, stream);
}

}  // namespace ddtree
