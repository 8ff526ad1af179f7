// SPDX-License-Identifier: Apache-2.0
// Host side of gqa_tree_verify: one launch, its shape fixed by the card, everything else decided on the device.
#include <algorithm>

#include "gqa_tree_verify/launch_dim.cuh"

namespace ddtree {
namespace gqa {

DDTREE_GQA_HEAD_DIM(extern, 64)
DDTREE_GQA_HEAD_DIM(extern, 128)
DDTREE_GQA_HEAD_DIM(extern, 256)

namespace {

// Attributes are asked for once: a call must cost little more than its launch.
const Card& current_card() {
  constexpr int kMaxCards = 64;
  static Card cards[kMaxCards] = {};
  int device = 0;
  DDTREE_CUDA_CHECK(cudaGetDevice(&device));
  Card& card = cards[device % kMaxCards];
  if (card.blocks == 0) {
    int sms = 0, major = 0;
    DDTREE_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    DDTREE_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    prepare_dim<64>();
    prepare_dim<128>();
    prepare_dim<256>();
    card = {std::min(sms, kMaxBlocks), major >= 9};
  }
  return card;
}

int rows_of_tile(int rows, int head_dim, const Card& card) {
  if (rows <= 16 && head_dim <= 128) return 16;
  return rows <= 64 || !card.moves_registers ? 64 : 128;  // 128 rows need the registers
}

// As many as leave hardly a block idle.
int tiles_side_by_side(int row_tiles, int blocks) {
  for (int side = row_tiles; side > 1; --side)
    if (row_tiles % side == 0 && blocks % side * 32 <= blocks && side <= blocks) return side;
  return 1;
}

// Two parts a block, fp16 and their log-sum-exp, and two counters a block.
int64_t parts_bytes(int blocks, int rows, int head_dim) { return int64_t{2} * blocks * rows * head_dim * 2; }
int64_t lse_bytes(int blocks, int rows) { return int64_t{2} * blocks * rows * 4; }
int64_t counter_bytes(int blocks) { return int64_t{2} * blocks * 4; }

int64_t workspace_bytes(int blocks, int rows, int head_dim) {
  return (counter_bytes(blocks) + 15) / 16 * 16 + lse_bytes(blocks, rows) + parts_bytes(blocks, rows, head_dim);
}

}  // namespace
}  // namespace gqa

int64_t gqa_tree_verify_cuda_workspace_bytes(int max_num_nodes, int num_heads, int num_kv_heads, int head_dim, int num_sms) {
  // Whatever the batch and the context. Smaller calls may take a smaller tile, never a larger one.
  const int rows = gqa::rows_of_tile(max_num_nodes * (num_heads / num_kv_heads), head_dim, gqa::current_card());
  return gqa::workspace_bytes(std::min(num_sms, gqa::kMaxBlocks), rows, head_dim);
}

void gqa_tree_verify_cuda(const GqaTreeVerifyParams& p, CUstream_st* stream) {
  using namespace gqa;
  const Card& card = current_card();
  const int blocks = card.blocks;
  KernelArgs args;
  args.work.prefix_lens = p.prefix_lens;
  args.work.batch = p.batch;
  args.work.num_nodes = p.num_nodes;
  args.work.kv_heads = p.num_kv_heads;
  args.work.group = p.num_heads / p.num_kv_heads;
  args.work.rows = p.num_nodes * args.work.group;
  args.work.window = p.window;
  args.work.min_steps = 1;
  const int tile_rows = rows_of_tile(args.work.rows, p.head_dim, card);
  args.work.row_tiles = (args.work.rows + tile_rows - 1) / tile_rows;
  args.work.side = tiles_side_by_side(args.work.row_tiles, blocks);
  const int64_t needed = workspace_bytes(blocks, tile_rows, p.head_dim);
  if (p.workspace == nullptr || p.workspace_bytes < needed)
    TVM_FFI_THROW(ValueError) << "workspace holds " << p.workspace_bytes << " bytes, this call needs " << needed
                              << ": size it with gqa_tree_verify_workspace for the largest call";

  const float log2e = 1.4426950408889634f, scale = p.sm_scale * p.k_scale;
  args.score.q = static_cast<const __nv_bfloat16*>(p.q);
  args.score.q_row_stride = p.q_row_stride;
  args.score.q_head_stride = p.q_head_stride;
  args.score.mask_words = p.mask_words;
  args.score.words_per_row = p.words_per_row;
  args.score.cap_scale = p.logit_cap > 0.f ? scale / p.logit_cap : 0.f;
  args.score.scale_log2 = (p.logit_cap > 0.f ? p.logit_cap : scale) * log2e;

  const int64_t element = p.fp8 ? 1 : 2;
  args.kv.k_pool = static_cast<const char*>(p.k_pool);
  args.kv.v_pool = static_cast<const char*>(p.v_pool);
  args.kv.k_row_bytes = static_cast<uint32_t>(p.k_row_stride * element);
  args.kv.v_row_bytes = static_cast<uint32_t>(p.v_row_stride * element);
  args.kv.k_head_bytes = p.k_head_stride * element;
  args.kv.v_head_bytes = p.v_head_stride * element;
  args.kv.page_table = p.page_table;
  args.kv.page_table_stride = p.page_table_row_stride;
  args.kv.page_shift = 0;
  while ((1 << args.kv.page_shift) < p.page_size) ++args.kv.page_shift;

  args.output.out = static_cast<__nv_bfloat16*>(p.out);
  args.output.out_row_stride = p.out_row_stride;
  args.output.out_head_stride = p.out_head_stride;
  args.output.lse = p.lse;
  args.output.v_scale = p.v_scale;
  // Counters first: they must stay zero between calls, and calls of different sizes lay the rest out differently.
  char* const workspace = static_cast<char*>(p.workspace);
  char* const after_counters = workspace + (counter_bytes(blocks) + 15) / 16 * 16;
  args.output.arrived = reinterpret_cast<int*>(workspace);
  args.output.departed = args.output.arrived + blocks;
  args.output.parts_lse = reinterpret_cast<float*>(after_counters);
  args.output.parts = reinterpret_cast<__half*>(after_counters + lse_bytes(blocks, tile_rows));

  if (p.head_dim == 64)
    launch_dim<64>(tile_rows, p.fp8, args, card, stream);
  else if (p.head_dim == 128)
    launch_dim<128>(tile_rows, p.fp8, args, card, stream);
  else
    launch_dim<256>(tile_rows, p.fp8, args, card, stream);
}

}  // namespace ddtree
