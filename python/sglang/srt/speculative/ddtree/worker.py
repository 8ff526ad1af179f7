# SPDX-License-Identifier: Apache-2.0
"""DDTREE worker: DFLASH's drafter, a draft tree, one verify, one commit.

A decode step is six launches of work on the forward stream and never waits for
it. Notation: B is the draft block, N the tree's nodes, both root included.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.ddtree.native import implementation, prepare_native
from sglang.kernels.ops.ddtree.tree_accept import tree_accept
from sglang.srt.environ import envs
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.chained.worker import ChainsTurns
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
from sglang.srt.speculative.ddtree.tree_steps import HostLens, Step, TreeSteps
from sglang.srt.speculative.ddtree.verify_input import tree_verify_input
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

logger = logging.getLogger(__name__)


class DDTreeWorker(ChainsTurns, TreeSteps, DFlashWorkerV2):
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
        self._turn = 0
        self._kv_rows = None
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
        self._allocate_step_buffers()
        self._candidates = CandidateSampler(
            lm_head=unwrap_lora_layer(self.target_worker.model_runner.model.lm_head),
            block_size=self.widths.block_size,
            candidates=self.widths.candidates,
            max_bs=self._buffers.batch_size,
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
        if self.widths.num_nodes >= 3:
            self._test_the_mask()
            self._forget_reads()
        self._prepare_turns()

    def _test_the_mask(self) -> None:
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
        most_steps = self._steps_of_turn(batch)
        if most_steps:
            return self._run_turn(batch, draft_input, most_steps, on_publish)

        self._keep_lens(batch)
        self._turn = 1 - self._turn
        step = self._open_step(
            batch.seq_lens,
            batch.req_pool_indices,
            draft_input.bonus_tokens,
            HostLens(
                batch.seq_lens_cpu,
                draft_input.nxt_kv_lens_cpu,
                int(draft_input.nxt_kv_lens_sum or 0),
            ),
            turn=self._turn,
        )
        self._run_draft(
            self._block_batch(step, can_run_graph=batch.can_run_decode_cuda_graph)
        )
        self._grow_tree(step)
        tree, path = step.buffers.tree, step.output.path
        grammar_tree = (
            GrammarTree.from_device(tree.first_child, tree.next_sibling, tree.tokens)
            if batch.has_grammar
            else None
        )
        target_out = self._verify(batch, step)
        chosen = self._choose(batch, step, target_out, grammar_tree, grammar_barrier)
        tree_accept(tree, chosen, batch.seq_lens, path)
        if on_publish is not None:
            on_publish(path.new_seq_lens)
        step.buffers.locate(step.output)
        self._commit(step, target_out.logits_output.hidden_states)
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
        )

    def _verify(self, batch: ScheduleBatch, step: Step) -> GenerationBatchResult:
        """Target forward over the N nodes of each request."""
        nodes = self.widths.num_nodes
        batch.out_cache_loc = step.plan.virtual_write_ids(cols=slice(0, nodes))
        committed = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = step.host_lens.keys(nodes)
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
        batch: ScheduleBatch,
        step: Step,
        target_out: GenerationBatchResult,
        grammar_tree: GrammarTree | None,
        grammar_barrier,
    ) -> torch.Tensor:
        """The target's token after each node, int64 [bs, N]."""
        tree = step.buffers.tree
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

