// SPDX-License-Identifier: Apache-2.0
// The score warps: S = Q K^T, mask, online softmax, P for the value warps.
//
// A warp keeps Q of its m16 tile in registers, and a row lives in the four lanes of a quad. With tiles of 32 rows two warps
// have half of the dimensions each; they swap what the other needs, and each ends with complete scores of half the rows.
#pragma once

#include "common/ptx.cuh"
#include "mla_tree_verify/combine.cuh"

namespace ddtree::mla {

struct ScoreArgs {
  const __nv_bfloat16* q_nope;
  const __nv_bfloat16* q_rope;
  int64_t q_nope_row_stride, q_nope_head_stride;
  int64_t q_rope_row_stride, q_rope_head_stride;
  const uint32_t* mask_words;
  int num_heads, words_per_row;
  float scale_log2;  // sm_scale * log2(e)
};

template <int RowTiles>
struct ScoreWarp {
  static constexpr int kHalves = Tile<RowTiles>::kHalves;
  static constexpr int kDimSteps = Tile<RowTiles>::kDimSteps;
  static constexpr int kQInRegisters = Tile<RowTiles>::kQInRegisters;
  static constexpr int kOwnRows = 2 / kHalves;  // rows that a thread finishes with its quad
  // Stands for "no key yet". Finite, so that a hidden key (-inf) minus it is -inf and its p is 0, not NaN.
  static constexpr float kNoMax = -1e30f;

  Smem<RowTiles>& smem;
  const Shape& shape;
  const ScoreArgs& args;
  const OutputArgs& output;
  unsigned thread;

  __device__ __forceinline__ ScoreWarp(Smem<RowTiles>& smem, const Shape& shape, const ScoreArgs& args,
                                       const OutputArgs& output)
      : smem(smem), shape(shape), args(args), output(output), thread(threadIdx.x) {
    // Kept in a register: the compiler would read the thread index anew in each step, which takes dozens of clocks.
    asm volatile("" : "+r"(thread));
    __builtin_assume(thread < 32 * kScoreWarps);
  }

  __device__ __forceinline__ unsigned warp() const { return thread / 32; }
  __device__ __forceinline__ unsigned lane() const { return thread % 32; }
  __device__ __forceinline__ int m_tile() const { return warp() / kHalves; }
  __device__ __forceinline__ int half() const { return warp() % kHalves; }
  __device__ __forceinline__ int quad_lane() const { return lane() % 4; }
  // Row of the block's tile that own row r of this thread is.
  __device__ __forceinline__ int own_row(int r) const { return m_tile() * 16 + lane() / 4 + (half() + r) * 8; }

  __device__ __forceinline__ void run() const {
    Piece& piece = smem.piece_of[warp()];
    if (lane() == 0) piece.done = piece.count = 0;
    __syncwarp();
    Cursor at;
    while (next_piece(piece, shape, smem.plan)) {
      if (piece.tile * Tile<RowTiles>::kRows + m_tile() * 16 < shape.num_nodes * args.num_heads)
        active_piece(piece, at);
      else
        idle_piece(piece, at);
    }
  }

 private:
  // The scores of step i + 1 are multiplied while the softmax of step i runs: alone, each leaves the warp waiting most of
  // the time, for the tensor cores or for its own arithmetic.
  __device__ __forceinline__ void active_piece(const Piece& piece, Cursor& at) const {
    uint32_t q[kQInRegisters][4];
    load_q(q, piece.batch, piece.tile);
    Rows rows;
    // The step's first key, counted from the start of the tree window.
    int first_node = piece.step * kBlockKeys - (shape.keys(piece.batch) - shape.num_nodes);

    Sums sums = {};
    ptx::mbarrier_wait(&smem.kv_full[at.slot()], at.slot_phase());
    multiply(sums, q, at.slot());
    for (int left = piece.count; left > 0; --left, first_node += kBlockKeys) {
      // The value warps have taken what this buffer held, statistics included. So the other half has read this buffer of the
      // exchange too: it handed its part over after that.
      const int buffer = at.buffer();
      ptx::mbarrier_wait(&smem.step_empty[buffer], at.buffer_phase() ^ 1);
      Handover<RowTiles>& to = smem.handover[buffer];
      float v[kOwnRows][4];
      complete(sums, v, buffer);
      if (first_node + kBlockKeys > 0) [[unlikely]]
        mask(v, first_node, piece.batch, piece.tile);
      int flags = left == 1 ? kActive | kLast : kActive;
      if (raise_max(v, rows, to, left > piece.count - kExactSteps ? 0.f : kMaxSlack)) flags |= kRescale;
      if (lane() == 0) to.flags[warp()] = flags;
      at.advance();
      if (left > 1) {
        ptx::mbarrier_wait(&smem.kv_full[at.slot()], at.slot_phase());
        sums = Sums{};
        multiply(sums, q, at.slot());
        softmax(v, rows, to);
      } else {
        softmax(v, rows, to);
        publish_stats(rows, to, piece);
        if (thread == 0) to.piece = piece;
      }
      hand_over(at);
    }
  }

  // No row of the request is in this warp's m16 tile. It still takes part in the handover.
  __device__ __forceinline__ void idle_piece(const Piece& piece, Cursor& at) const {
    for (int left = piece.count; left > 0; --left) {
      ptx::mbarrier_wait(&smem.step_empty[at.buffer()], at.buffer_phase() ^ 1);
      Handover<RowTiles>& to = smem.handover[at.buffer()];
      if (lane() == 0) to.flags[warp()] = left == 1 ? kLast : 0;
      if (left == 1) {
        if (quad_lane() == 0)
          for (int r = 0; r < kOwnRows; ++r) to.row_offset[own_row(r)] = -1;
        if (thread == 0) to.piece = piece;
      }
      at.advance();
      hand_over(at);
    }
  }

  // The buffer before the one that the cursor is at, that is.
  __device__ __forceinline__ void hand_over(const Cursor& at) const {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(&smem.step_full[at.buffer() ^ 1]);
  }

  // Two sets, for even and odd k16 steps: one warp alone must hide the latency of its products.
  struct Sums {
    float of[2][2][4];
  };

  // State of the own rows' softmax; units of log2. Each lane sums its own keys until the end.
  struct Rows {
    float max[kOwnRows];
    float sum[kOwnRows];  // of p as rounded to bf16: what the value warps multiply is what is divided by

    __device__ __forceinline__ Rows() {
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) max[r] = kNoMax, sum[r] = 0.f;
    }
  };

  // Q rows, coalesced, through shared memory into A fragments, 64 dimensions at a time. Rows past the end repeat the last one:
  // a row of A only meets its own row of S, and what comes of it is not stored.
  __device__ __forceinline__ void load_q(uint32_t (&q)[kQInRegisters][4], int batch, int tile) const {
    constexpr int kStages = kDimSteps / kQStageSteps + (kDimSteps % kQStageSteps != 0);
    constexpr int kAhead = 4;
    // Stages that end in registers pass through the last one in shared memory, which is filled for good after them.
    constexpr int kLastStage = RowTiles == 2 ? Tile<RowTiles>::kSharedStages - 1 : 0;
    // Lane: chunk lane % 8 of rows lane / 8 + {0, 4, 8, 12}.
    const __nv_bfloat16 *nope[4], *rope[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = min(tile * Tile<RowTiles>::kRows + m_tile() * 16 + static_cast<int>(lane()) / 8 + j * 4,
                          shape.num_nodes * args.num_heads - 1);
      const int node = row / args.num_heads, head = row - node * args.num_heads;
      const int64_t node_row = static_cast<int64_t>(batch) * shape.num_nodes + node;
      nope[j] = args.q_nope + node_row * args.q_nope_row_stride + head * args.q_nope_head_stride + lane() % 8 * 8;
      rope[j] = args.q_rope + node_row * args.q_rope_row_stride + head * args.q_rope_head_stride + lane() % 8 * 8;
    }
    uint4 chunks[kAhead][4];
    auto fetch = [&](int stage) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const __nv_bfloat16* from;
        if constexpr (kHalves == 1) {
          const int dim = stage * kQStageSteps * 16;
          from = dim < kMlaLatentDim ? nope[j] + dim : rope[j] + dim - kMlaLatentDim;
        } else {
          // A half ends inside a stage: the surplus is fetched and not used.
          const int own = lane() % 8 * 8;
          const int dim = min(half() * kDimSteps * 16 + stage * kQStageSteps * 16 + own, kMlaHeadDim - 8) - own;
          from = dim + own < kMlaLatentDim ? nope[j] + dim : rope[j] + dim - kMlaLatentDim;
        }
        chunks[stage % kAhead][j] = __ldg(reinterpret_cast<const uint4*>(from));
      }
    };
#pragma unroll
    for (int stage = 0; stage < kAhead; ++stage) fetch(stage);
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const int first = stage * kQStageSteps;  // k16 step
      QStage& to = smem.q[warp()][Tile<RowTiles>::in_shared(first) ? Tile<RowTiles>::shared_stage(first) : kLastStage];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = lane() / 8 + j * 4;
        *reinterpret_cast<uint4*>(&to.rows[row][(lane() % 8 ^ row % 8) * 16]) = chunks[stage % kAhead][j];
      }
      if (stage + kAhead < kStages) fetch(stage + kAhead);
      __syncwarp();
      if (Tile<RowTiles>::in_shared(first)) continue;
      const uint32_t address = q_address() + kLastStage * sizeof(QStage);
#pragma unroll
      for (int k = 0; k < kQStageSteps; ++k)
        if (first + k < kDimSteps) ptx::ldmatrix_x4(q[Tile<RowTiles>::q_register(first + k)], address ^ k * 32);
      __syncwarp();
    }
  }

  // ldmatrix address of the first fragment of a stage in shared memory: chunk lane / 16 of row lane % 16, swizzled. That of
  // fragment k is it ^ 32 k.
  __device__ __forceinline__ uint32_t q_address() const {
    unsigned l = lane();
    asm volatile("" : "+r"(l));  // worked out anew each step: cheaper than a register
    return ptx::smem_addr(smem.q[warp()][0].rows[l % 16]) + (l / 16 ^ l % 8) * 16;
  }

  __device__ __forceinline__ void multiply(Sums& sums, const uint32_t (&q)[kQInRegisters][4], int slot) const {
    unsigned l = lane();
    asm volatile("" : "+r"(l));
    const uint32_t k_addr = ptx::smem_addr(smem.kv) + slot * kSlotBytes + ((l % 8) + (l / 16) * 8) * kRowPitch +
                            ((l / 8) % 2) * 16 + half() * (kDimSteps * 32);
    const uint32_t q_addr = q_address();
    uint32_t b[2][4];
    ptx::ldmatrix_x4(b[0], k_addr);
    ptx::ldmatrix_x4(b[1], k_addr + 32);
#pragma unroll
    for (int k = 0; k < kDimSteps; ++k) {
      uint32_t a[4];
      if (Tile<RowTiles>::in_shared(k)) {
        ptx::ldmatrix_x4(a, (q_addr ^ k % kQStageSteps * 32) + Tile<RowTiles>::shared_stage(k) * sizeof(QStage));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = q[Tile<RowTiles>::q_register(k)][i];
      }
      ptx::mma_bf16(sums.of[k % 2][0], a, b[k % 2][0], b[k % 2][1]);
      ptx::mma_bf16(sums.of[k % 2][1], a, b[k % 2][2], b[k % 2][3]);
      if (k + 2 < kDimSteps) ptx::ldmatrix_x4(b[k % 2], k_addr + (k + 2) * 32);
      // Loads do not cross it: else the compiler does all even steps first, and the two sets no longer hide each other.
      if (k % 2 == 1) __syncwarp();
    }
  }

  // Scores of the own rows: v[r][n * 2 + e] is key n * 8 + quad_lane() * 2 + e of the step.
  __device__ __forceinline__ void complete(const Sums& sums, float (&v)[kOwnRows][4], int buffer) const {
    float s[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = sums.of[0][i / 4][i % 4] + sums.of[1][i / 4][i % 4];
    if constexpr (kHalves == 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i % 4 / 2][i / 4 * 2 + i % 2] = s[i / 4][i % 4];
    } else {
      float4 send;
      float* const give = &send.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float upper = s[i / 2][i % 2], lower = s[i / 2][2 + i % 2];
        give[i] = half() == 0 ? lower : upper;
        v[0][i] = half() == 0 ? upper : lower;
      }
      reinterpret_cast<float4*>(smem.exchange[buffer][warp()])[lane()] = send;
      ptx::named_barrier(1 + m_tile(), 64);
      const float4 got = reinterpret_cast<const float4*>(smem.exchange[buffer][warp() ^ 1])[lane()];
      v[0][0] += got.x, v[0][1] += got.y, v[0][2] += got.z, v[0][3] += got.w;
    }
  }

  // Hides keys of the tree window that a node may not see, and keys past the end. first_node: the step's first key, counted
  // from the window's start.
  __device__ __forceinline__ void mask(float (&v)[kOwnRows][4], int first_node, int batch, int tile) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      const int row = tile * Tile<RowTiles>::kRows + own_row(r);
      const int node = min(row / args.num_heads, shape.num_nodes - 1);
      const uint32_t* words =
          args.mask_words + (static_cast<int64_t>(batch) * shape.num_nodes + node) * args.words_per_row;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int seen = first_node + (i / 2) * 8 + quad_lane() * 2 + i % 2;  // negative: a key of the prefix
        if (seen < 0) continue;
        const bool visible = seen < shape.num_nodes && ((__ldg(words + seen / 32) >> (seen % 32)) & 1);
        if (!visible) v[r][i] = -INFINITY;
      }
    }
  }

  // Lets the maxima follow where they are left behind; true if so, and then the factors for the accumulators are written.
  // Rare after the first steps, so that the usual step has no shuffle in its way.
  __device__ __forceinline__ bool raise_max(const float (&v)[kOwnRows][4], Rows& rows, Handover<RowTiles>& to, float slack) const {
    float top[kOwnRows];
    bool left_behind = false;
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      top[r] = fmaxf(fmaxf(v[r][0], v[r][1]), fmaxf(v[r][2], v[r][3])) * args.scale_log2;
      left_behind |= top[r] > rows.max[r] + slack;
    }
    if (!__any_sync(~0u, left_behind)) [[likely]]
      return false;
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
      float alpha = 1.f;
      if (top[r] > rows.max[r] + slack) {
        alpha = ptx::exp2_approx(rows.max[r] - top[r]);
        rows.max[r] = top[r];
      }
      rows.sum[r] *= alpha;
      if (quad_lane() == 0) to.alpha[own_row(r)] = alpha;
    }
    return true;
  }

  // Writes P. No branch in it, so that the compiler can place it between the products of the next step.
  __device__ __forceinline__ void softmax(const float (&v)[kOwnRows][4], Rows& rows, Handover<RowTiles>& to) const {
    uint32_t packed[kOwnRows][2];
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        packed[r][n] = ptx::pack_bf16(ptx::exp2_approx(fmaf(v[r][n * 2], args.scale_log2, -rows.max[r])),
                                      ptx::exp2_approx(fmaf(v[r][n * 2 + 1], args.scale_log2, -rows.max[r])));
        rows.sum[r] += __uint_as_float(packed[r][n] << 16) + __uint_as_float(packed[r][n] & 0xffff0000u);
      }
    }
    // A C fragment of S is an A fragment of P: no shuffle, no ldmatrix.
    uint32_t* fragments = to.p[m_tile()];
    if constexpr (kHalves == 1) {
      reinterpret_cast<uint4*>(fragments)[lane()] = make_uint4(packed[0][0], packed[1][0], packed[0][1], packed[1][1]);
    } else {
      fragments[lane() * 4 + half()] = packed[0][0];
      fragments[lane() * 4 + 2 + half()] = packed[0][1];
    }
  }

  // With a piece's last step: what the value warps need to write it out. The log-sum-exps are written from here.
  __device__ __forceinline__ void publish_stats(const Rows& rows, Handover<RowTiles>& to, const Piece& piece) const {
#pragma unroll
    for (int r = 0; r < kOwnRows; ++r) {
      float sum = rows.sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (quad_lane() != 0) continue;
      const float ln2 = 0.693147180559945f;
      const float lse = sum > 0.f ? rows.max[r] * ln2 + __logf(sum) : -INFINITY;
      const int row = own_row(r), global = piece.tile * Tile<RowTiles>::kRows + row;
      int64_t offset = -1;
      if (global < shape.num_nodes * args.num_heads) {
        if (piece.part >= 0) {
          const int64_t at = static_cast<int64_t>(piece.part) * Tile<RowTiles>::kRows + row;
          offset = at * kMlaLatentDim;
          output.parts_lse[at] = lse;
        } else {
          const int node = global / args.num_heads, head = global - node * args.num_heads;
          const int64_t node_row = static_cast<int64_t>(piece.batch) * shape.num_nodes + node;
          offset = node_row * output.out_row_stride + head * output.out_head_stride;
          if (output.lse != nullptr) output.lse[node_row * args.num_heads + head] = lse;
        }
      }
      to.row_offset[row] = offset;
      to.row_inv_sum[row] = sum > 0.f ? __fdividef(1.f, sum) : 0.f;
    }
  }
};

}  // namespace ddtree::mla
