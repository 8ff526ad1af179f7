# SPDX-License-Identifier: Apache-2.0
"""The pieces of a step that do not care who asks for it: the scheduler's batch or a turn's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.kernels.ops.ddtree.kv_commit import KVRows, kv_commit
from sglang.kernels.ops.ddtree.tree_build import tree_build
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.speculative.ddtree.step_buffers import StepBuffers, StepOutput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import draft_tp_context

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.ddtree.budget import TreeWidths


@dataclass(frozen=True)
class HostLens:
    """What the host knows of the lengths, in tokens.

    Attributes:
        committed: [bs]; None where only the device knows.
        reserved: [bs], an upper bound of committed tokens and window.
        reserved_sum: of ``reserved``.
    """

    committed: torch.Tensor | None
    reserved: torch.Tensor | None
    reserved_sum: int

    def keys(self, width: int) -> tuple[torch.Tensor, int]:
        """Upper bound of the key counts of a forward that adds ``width`` rows."""
        if self.committed is None:
            return self.reserved, self.reserved_sum
        lens = self.committed + width
        return lens, int(lens.sum())


@dataclass
class Step:
    """One decode step under way.

    Attributes:
        seq_lens: int64 [bs], committed tokens.
        req_pool_indices: int64 [bs].
        bonus: int64 [bs], the last token of each request, which has no KV row yet.
        host_lens: the lengths as the host knows them.
        buffers: of this batch size.
        output: the set of ``buffers.outputs`` whose turn it is.
        plan: the KV window that the step writes, as each pool indexes it.
    """

    seq_lens: torch.Tensor
    req_pool_indices: torch.Tensor
    bonus: torch.Tensor
    host_lens: HostLens
    buffers: StepBuffers
    output: StepOutput
    plan: KVLocPlan

    @property
    def size(self) -> int:
        return self.buffers.batch_size


class TreeSteps:
    """Pieces of a step, for a ``DFlashWorkerV2`` that has what is declared here."""

    widths: TreeWidths
    spine: bool
    model_runner: ModelRunner
    draft_model_runner: ModelRunner
    _kv_rows: KVRows | None
    _window_offsets: torch.Tensor
    _buffers: StepBuffers | None
    _views: dict[int, StepBuffers]

    def _allocate_step_buffers(self) -> None:
        # A request that runs holds a row of the table, so no batch has more.
        table = self.model_runner.req_to_token_pool.req_to_token
        self._window_offsets = torch.arange(self.widths.window, device=self.device)
        self._views = {}
        self._buffers = StepBuffers.allocate(
            self.widths,
            table.shape[0],
            mask_token_id=int(self._mask_token_id),
            table_dtype=table.dtype,
            device=self.device,
        )

    def _open_step(
        self,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        bonus: torch.Tensor,
        host_lens: HostLens,
        *,
        turn: int,
    ) -> Step:
        """Look up the slots after the committed tokens, reserved beforehand.

        Args:
            turn: which of the output sets to write.
        """
        size = len(seq_lens)
        buffers = self._views.get(size)
        if buffers is None:
            buffers = self._views[size] = self._buffers.views(size)
        buffers.place(
            self._window_offsets,
            seq_lens,
            req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token,
        )
        plan = self.target_worker.model_runner.kv_index_translator.plan(
            req_pool_indices=req_pool_indices,
            seq_lens=seq_lens,
            seq_lens_cpu=(
                host_lens.reserved if host_lens.committed is None else host_lens.committed
            ),
            write_virtual=buffers.window_slots.view(-1),
            read_extent=self.widths.window,
        )
        output = buffers.outputs[turn]
        return Step(seq_lens, req_pool_indices, bonus, host_lens, buffers, output, plan)

    def _block_batch(self, step: Step, *, can_run_graph: bool) -> ForwardBatch:
        """The draft's forward over a block behind the committed tokens."""
        ids = step.buffers.block_ids
        ids[:, 0].copy_(step.bonus)
        host_lens, host_sum = step.host_lens.keys(self.widths.block_size)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=step.size,
            input_ids=ids.view(-1),
            req_pool_indices=step.req_pool_indices,
            seq_lens=step.seq_lens,
            out_cache_loc=None,
            seq_lens_sum=host_sum,
            seq_lens_cpu=host_lens.to(torch.int32),
            positions=step.buffers.block_positions.view(-1),
            input_embeds=self._noise_embeddings(ids),
            # The draft runner is DFLASH's; its graphs and backends key on that.
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            num_token_non_padded=(
                torch.full((), ids.numel(), dtype=torch.int32, device=self.device)
                if enable_num_token_non_padded()
                else None
            ),
            global_num_token_non_padded_cpu=ids.numel(),
            can_run_decode_cuda_graph=can_run_graph,
        )
        step.plan.bind(
            forward_batch,
            self.draft_model_runner.kv_index_translator,
            cols=slice(0, self.widths.block_size),
        )
        return forward_batch

    def _run_draft(self, forward_batch: ForwardBatch) -> None:
        """Run the draft block; leaves candidates in their static buffers."""
        with torch.inference_mode(), draft_tp_context(self.draft_parallel_layout):
            out = self.draft_model_runner.forward(forward_batch)
            if not (out.can_run_graph and self._draft_sampler is not None):
                self._candidates(out.logits_output.hidden_states)

    def _noise_embeddings(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings [bs * B, hidden] of the committed token and the masks."""
        target_model = self.target_worker.model_runner.model
        # A Nemotron draft brings an embedding table of its own.
        source = (
            self.draft_model
            if getattr(self.draft_model, "is_nemotron_35_draft", False)
            else target_model
        )
        embeddings = unwrap_lora_layer(source.get_input_embeddings())(ids)
        if self._noise_embed_scale != 1.0:
            embeddings = embeddings * self._noise_embed_scale
        return embeddings.reshape(-1, embeddings.shape[-1])

    def _grow_tree(self, step: Step) -> None:
        """The same tree on every rank: rank 0's candidates decide."""
        ids = self._candidates.ids[: step.size]
        logprobs = self._candidates.logprobs[: step.size]
        self._tp_sync.sync(SpecTpSyncSite.DDTREE_CANDIDATES, ids)
        self._tp_sync.sync(SpecTpSyncSite.DDTREE_CANDIDATES, logprobs)
        tree_build(
            ids,
            logprobs,
            step.bonus,
            step.seq_lens,
            step.buffers.tree,
            spine=self.spine,
        )

    def _same_on_all_ranks(self, chosen: torch.Tensor) -> torch.Tensor:
        chosen = chosen.contiguous()
        self._tp_sync.sync(SpecTpSyncSite.DDTREE_CHOICE, chosen)
        return chosen

    def _commit(self, step: Step, hidden: torch.Tensor | None) -> None:
        """Move the path's KV rows to the front and feed its features to the draft.

        Both are on the forward stream, ahead of every later forward. The
        features must be consumed here: the next verify overwrites them.

        Args:
            hidden: features [bs * N, width] of the verified rows.
        """
        path, shape = step.output.path, step.buffers.window_slots.shape
        # The rows of a chain are where they belong.
        if self._kv_rows is not None:
            target_slots = step.plan.write_ids(self.model_runner.kv_index_translator)
            kv_commit(
                self._kv_rows, target_slots.view(shape), path.nodes, path.commit_lens
            )
        if hidden is None:
            raise RuntimeError("DDTREE needs the target's features, but got none.")
        block_shape = step.buffers.block_ids.shape
        draft_slots = step.plan.write_ids(
            self.draft_model_runner.kv_index_translator, cols=slice(0, block_shape[1])
        )
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden[step.output.rows.view(-1)],
            cache_loc=draft_slots,
            cache_loc_2d=draft_slots.view(block_shape),
            positions=step.buffers.block_positions.view(-1),
            commit_lens=path.commit_lens,
        )
