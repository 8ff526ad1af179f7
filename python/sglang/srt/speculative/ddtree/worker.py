# SPDX-License-Identifier: Apache-2.0
"""DDTREE worker: DFLASH's drafter, a draft tree, one verify, one commit.

A decode step is six launches of work on the forward stream and never waits for
it. Notation: B is the draft block, N the tree's nodes, both root included.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import torch

from sglang.kernels.ops.ddtree.kv_commit import KVRows, kv_commit
from sglang.kernels.ops.ddtree.native import implementation, prepare_native
from sglang.kernels.ops.ddtree.tree_accept import tree_accept
from sglang.kernels.ops.ddtree.tree_build import tree_build
from sglang.srt.environ import envs
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.kv_loc_plan import KVLocPlan
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
    enable_num_token_non_padded,
)
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.ddtree.accept import choose_per_node
from sglang.srt.speculative.ddtree.budget import TreeWidths
from sglang.srt.speculative.ddtree.candidates import CandidateSampler
from sglang.srt.speculative.ddtree.chain_check import ChainCheck
from sglang.srt.speculative.ddtree.draft_heads import refusal_of
from sglang.srt.speculative.ddtree.hidden_states import (
    keep_last_layer,
    return_path_states,
    return_prefill_states,
)
from sglang.srt.speculative.ddtree.kv_rows import kv_rows_of
from sglang.srt.speculative.ddtree.self_test import (
    require_pass,
    run_self_test,
    verify_alone,
)
from sglang.srt.speculative.ddtree.step_buffers import StepBuffers, StepOutput
from sglang.srt.speculative.ddtree.verify_input import tree_verify_input
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_tp_sync import SpecTpSyncSite
from sglang.srt.speculative.spec_utils import (
    GrammarTree,
    build_grammar_vocab_mask,
    draft_tp_context,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)


@dataclass
class Step:
    """One decode step under way.

    Attributes:
        batch: the scheduler's.
        draft_input: what the step before left.
        buffers: of this batch size.
        output: the set of ``buffers.outputs`` whose turn it is.
        plan: the KV window that the step writes, as each pool indexes it.
    """

    batch: ScheduleBatch
    draft_input: DFlashDraftInputV2
    buffers: StepBuffers
    output: StepOutput
    plan: KVLocPlan

    @property
    def size(self) -> int:
        return self.buffers.batch_size

    def host_lens(self, width: int) -> tuple[torch.Tensor, int]:
        """Upper bound of the key counts of a forward that adds ``width`` rows."""
        if self.batch.seq_lens_cpu is None:
            return self.draft_input.nxt_kv_lens_cpu, int(self.draft_input.nxt_kv_lens_sum)
        lens = self.batch.seq_lens_cpu + width
        return lens, int(lens.sum())


class DDTreeWorker(DFlashWorkerV2):
    """Drafts a block, verifies its most probable tree, commits one path.

    Prefill is DFLASH's. So are the draft model, its KV pool and what it is fed.
    """

    def __init__(self, server_args, gpu_id, nccl_port, target_worker):
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._refuse_conditional_heads()
        spec = get_spec()
        self.widths = TreeWidths(
            block_size=int(self.block_size),
            budget=int(spec.speculative_ddtree_budget),
            candidates=int(spec.speculative_ddtree_topk),
        )
        prepare_native(self.device)
        keep_last_layer(self._target_logits_processor)
        self.spine = not spec.speculative_ddtree_no_spine
        self.speculative_num_draft_tokens = self.widths.num_nodes
        self._window_offsets = torch.arange(self.widths.window, device=self.device)
        self._buffers: Optional[StepBuffers] = None
        self._views: dict[int, StepBuffers] = {}
        self._turn = 0
        self._kv_rows: Optional[KVRows] = None
        self._chain_check = (
            ChainCheck(self.device) if envs.SGLANG_DDTREE_CHECK_CHAIN.get() else None
        )
        if get_parallel().tp_rank == 0:
            logger.info(
                "DDTREE: budget=%d (N=%d), topk=%d, draft block=%d, greedy chain %s",
                self.widths.budget,
                self.widths.num_nodes,
                self.widths.candidates,
                self.widths.block_size,
                "kept" if self.spine and self.widths.holds_greedy_chain else "not kept",
            )

    def _refuse_conditional_heads(self) -> None:
        """By what was loaded; the launch has checked what the draft declares."""
        heads = {
            "DFlash2 selector": self.selector is not None,
            "LiLiCorr": self.lilicorr is not None,
            "Domino": self._is_domino,
        }
        head = next((name for name, present in heads.items() if present), None)
        if head is not None:
            raise ValueError(refusal_of(head))

    # -- set-up ------------------------------------------------------------------

    def _validate_phase1_sampling_support(self, batch: ScheduleBatch) -> None:
        """Every device samples per node with the server's own sampler."""

    def prewarm_sampling(self):
        """DFLASH rehearses kernels of its own here; a tree draws with the target's
        sampler, which works in place on the verify's logits."""
        return self.model_runner.prewarm_sampling()

    def init_cuda_graphs(self) -> None:
        """Allocate what a step writes, then capture."""
        # A request that runs holds a row of the table, so no batch has more.
        table = self.model_runner.req_to_token_pool.req_to_token
        self._buffers = StepBuffers.allocate(
            self.widths,
            table.shape[0],
            mask_token_id=int(self._mask_token_id),
            table_dtype=table.dtype,
            device=self.device,
        )
        self._candidates = CandidateSampler(
            lm_head=unwrap_lora_layer(self.target_worker.model_runner.model.lm_head),
            block_size=self.widths.block_size,
            candidates=self.widths.candidates,
            max_bs=table.shape[0],
            device=self.device,
        )
        super().init_cuda_graphs()

    def _maybe_build_draft_sampler(self) -> CandidateSampler:
        """The candidates' top-k, to be captured as the tail of the draft graph."""
        return self._candidates

    def finish_setup(self) -> None:
        """Last step of the start-up: the pools have their final sizes and backing.

        Raises:
            ValueError: the target's KV pool has no rows that could be committed.
            RuntimeError: the target's verify does not apply a tree mask.
        """
        self._kv_rows = kv_rows_of(self.target_worker.model_runner.token_to_kv_pool)
        if self.widths.num_nodes < 3:
            return
        with torch.inference_mode():
            result = run_self_test(
                partial(verify_alone, self.model_runner),
                num_nodes=self.widths.num_nodes,
                vocab_size=self.model_runner.model_config.vocab_size,
                device=self.device,
            )
        require_pass(
            result,
            self.model_runner.decode_attention_backend_str,
            dummy_weights=self.server_args.load_format == "dummy",
        )

    def state(self) -> dict[str, Any]:
        """What runs, for ``/server_info``."""
        widths = self.widths
        return {
            "budget": widths.budget,
            "topk": widths.candidates,
            "num_nodes": widths.num_nodes,
            "block_size": widths.block_size,
            "keeps_greedy_chain": self.spine and widths.holds_greedy_chain,
            "operators": implementation("tree_build"),
            "chain_check": self._chain_check and self._chain_check.counts(),
        }

    # -- one step ----------------------------------------------------------------

    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish=None,
        grammar_barrier=None,
        pp_proxy_tensors=None,
    ) -> GenerationBatchResult:
        """One scheduler step; a decode step emits up to B tokens a request."""
        if (
            batch.forward_mode.is_extend()
            or batch.is_extend_in_batch
            or batch.forward_mode.is_idle()
        ):
            result = super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
            return_prefill_states(batch, result.logits_output)
            return result
        draft_input = batch.spec_info
        if not isinstance(draft_input, DFlashDraftInputV2):
            raise RuntimeError(
                f"DDTREE decode needs DFlashDraftInputV2, got {type(draft_input).__name__}."
            )
        if not batch.seq_lens.is_cpu:
            batch.seq_lens.record_stream(
                torch.get_device_module(self.device).current_stream()
            )

        step = self._open_step(batch, draft_input)
        self._draft(step)
        self._grow_tree(step)
        tree, path = step.buffers.tree, step.output.path
        grammar_tree = (
            GrammarTree.from_device(tree.first_child, tree.next_sibling, tree.tokens)
            if batch.has_grammar
            else None
        )
        target_out = self._verify(step)
        chosen = self._choose(step, target_out, grammar_tree, grammar_barrier)
        tree_accept(tree, chosen, batch.seq_lens, path)
        if on_publish is not None:
            on_publish(path.new_seq_lens)
        step.buffers.locate(step.output)
        self._commit(step, target_out.logits_output)
        if self._chain_check is not None:
            chain = self._candidates.ids[: step.size, :, 0]
            self._chain_check.observe(chain, tree, chosen, path)
        if batch.return_logprob:
            compute_spec_logprobs(
                batch,
                target_out.logits_output,
                chosen.reshape(-1),
                accept_index=step.output.rows,
            )
        return_path_states(batch, target_out.logits_output, step.output.rows.view(-1))

        return GenerationBatchResult(
            logits_output=target_out.logits_output,
            next_token_ids=path.tokens.view(-1),
            accept_lens=path.commit_lens,
            can_run_cuda_graph=target_out.can_run_cuda_graph,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=path.bonus, new_seq_lens=path.new_seq_lens
            ),
            speculative_num_draft_tokens=self.widths.num_nodes,
            speculative_output_stride=self.widths.block_size,
            new_seq_lens=path.new_seq_lens,
            cap_lens=step.output.num_nodes,
            routed_experts_output=target_out.routed_experts_output,
            indexer_topk_output=target_out.indexer_topk_output,
        )

    def _open_step(
        self, batch: ScheduleBatch, draft_input: DFlashDraftInputV2
    ) -> Step:
        """Look up the slots after the committed tokens, reserved beforehand."""
        size = len(batch.seq_lens)
        buffers = self._views.get(size)
        if buffers is None:
            buffers = self._views[size] = self._buffers.views(size)
        self._turn = 1 - self._turn
        buffers.place(
            self._window_offsets,
            batch.seq_lens,
            batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token,
        )
        plan = self.target_worker.model_runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=(
                draft_input.nxt_kv_lens_cpu
                if batch.seq_lens_cpu is None
                else batch.seq_lens_cpu
            ),
            write_virtual=buffers.window_slots.view(-1),
            read_extent=self.widths.window,
        )
        return Step(batch, draft_input, buffers, buffers.outputs[self._turn], plan)

    def _draft(self, step: Step) -> None:
        """Run the draft block; leaves candidates in their static buffers."""
        batch, ids = step.batch, step.buffers.block_ids
        ids[:, 0].copy_(step.draft_input.bonus_tokens)
        host_lens, host_sum = step.host_lens(self.widths.block_size)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=step.size,
            input_ids=ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
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
            can_run_decode_cuda_graph=batch.can_run_decode_cuda_graph,
        )
        step.plan.bind(
            forward_batch,
            self.draft_model_runner.kv_index_translator,
            cols=slice(0, self.widths.block_size),
        )
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
            step.draft_input.bonus_tokens,
            step.batch.seq_lens,
            step.buffers.tree,
            spine=self.spine,
        )

    def _verify(self, step: Step) -> GenerationBatchResult:
        """Target forward over the N nodes of each request."""
        batch, nodes = step.batch, self.widths.num_nodes
        batch.out_cache_loc = step.plan.virtual_write_ids(cols=slice(0, nodes))
        committed = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = step.host_lens(nodes)
        verify_input = tree_verify_input(
            self.model_runner,
            step.buffers.tree,
            batch.seq_lens,
            batch.seq_lens_sum,
            step.plan,
        )
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = committed
        return self.target_worker.forward_batch_generation(
            batch=None,
            forward_batch=forward_batch,
            is_verify=True,
            skip_attn_backend_init=True,
        )

    def _choose(
        self,
        step: Step,
        target_out: GenerationBatchResult,
        grammar_tree: Optional[GrammarTree],
        grammar_barrier,
    ) -> torch.Tensor:
        """The target's token after each node, int64 [bs, N]."""
        batch, tree = step.batch, step.buffers.tree
        output = target_out.logits_output
        sampling_info = batch.sampling_info
        processor = self._target_logits_processor
        if processor is not None and processor.is_deferred_shard(
            output.next_token_logits
        ):
            if self._can_skip_verify_logits(batch, sampling_info):
                chosen = processor.deferred_argmax(output.next_token_logits)
                output.next_token_logits = None
                return self._same_on_all_ranks(chosen.view_as(tree.tokens))
            output.next_token_logits = processor.finish_deferred_gather(
                output.next_token_logits
            )
        logits = output.next_token_logits
        grammar_mask = None
        if grammar_tree is not None:
            grammar_mask = build_grammar_vocab_mask(
                reqs=batch.reqs,
                tree=grammar_tree,
                sampling_info=sampling_info,
                device=logits.device,
                barrier=grammar_barrier,
            )
        if sampling_info is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits,
                sampling_info=sampling_info,
                draft_token_num=self.widths.num_nodes,
            )
        if grammar_mask is not None:
            grammar_mask.apply(logits)
        chosen = choose_per_node(
            logits,
            sampling_info,
            tree.positions.view(-1),
            self.widths.num_nodes,
            self.target_worker.model_runner.sampler,
            keep_logits=batch.return_logprob,
        )
        return self._same_on_all_ranks(chosen.view_as(tree.tokens))

    def _same_on_all_ranks(self, chosen: torch.Tensor) -> torch.Tensor:
        chosen = chosen.contiguous()
        self._tp_sync.sync(SpecTpSyncSite.DDTREE_CHOICE, chosen)
        return chosen

    def _commit(self, step: Step, logits_output) -> None:
        """Move the path's KV rows to the front and feed its features to the draft.

        Both are on the forward stream, ahead of every later forward. The
        features must be consumed here: the next verify overwrites them.
        """
        path, shape = step.output.path, step.buffers.window_slots.shape
        target_slots = step.plan.write_ids(self.model_runner.kv_index_translator)
        kv_commit(
            self._kv_rows, target_slots.view(shape), path.nodes, path.commit_lens
        )
        hidden = logits_output.hidden_states
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
