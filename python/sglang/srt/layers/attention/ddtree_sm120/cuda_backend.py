# SPDX-License-Identifier: Apache-2.0
"""CUDA implementation of ``ddtree_sm120``. The contract is in ``ddtree_sm120_backend.py``.

DECODE and TARGET_VERIFY are one call of the tree-verify kernel a layer; decode is a tree of one node. Everything else
(EXTEND, MIXED) goes to a backend of SGLang's, held by composition.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, SharedReadEnds
from sglang.srt.layers.attention.ddtree_sm120.gqa_layers import GqaLayers
from sglang.srt.layers.attention.ddtree_sm120.mask_source import mask_source
from sglang.srt.layers.attention.ddtree_sm120.mla_layers import MlaLayers
from sglang.srt.layers.attention.ddtree_sm120.prefill_delegate import build_delegate, takes_split_queries
from sglang.srt.layers.attention.ddtree_sm120.requirements import Demands, unmet
from sglang.srt.layers.attention.ddtree_sm120.step_metadata import (
    MaskLayout,
    StepBuffers,
    StepMetadata,
    write_step_metadata,
)
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.mode import VerifyMode
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.switch import open_switch
from sglang.srt.layers.attention.ddtree_sm120.verify_mode.triton_delegate import TritonDelegate
from sglang.srt.layers.attention.ddtree_sm120_backend import BACKEND_NAME
from sglang.srt.layers.attention.verify_mask import VerifyMask, tree_mask_numel
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.eagle_utils import TreeMaskMode

if TYPE_CHECKING:
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)

# Where the models of the pinned release keep the scores of sinks.
_SINKS = ("sinks", "attention_sink_bias")
_OTHER_BACKEND = (
    "set --attention-backend triton (a draft: --speculative-draft-attention-backend triton) or another that has them"
)


def _of_prefill(name: str) -> property:
    """What the prefill delegate says; SGLang's default where there is none, as beside a draft."""
    return property(lambda self: getattr(self.prefill_backend or AttentionBackend, name))


class DDTreeSM120AttnBackend(AttentionBackend):
    """Absorbed MLA or GQA over a paged pool: trees, chains and decode from one captured graph each.

    Beside a DFLASH draft model it attends the draft's block, which sees itself in both directions.

    Raises:
        ValueError: the model or a server argument asks for something that the kernels lack.
        ImportError, RuntimeError: the kernels are not installed, or not for this card.
    """

    # Lengths are read on the device only. The prefill delegate gets a batch whose lengths the scheduler knows anyway.
    needs_cpu_seq_lens = False

    forward_metadata: StepMetadata | None
    # None when another backend was asked to do the prefill.
    prefill_backend_name: str | None
    prefill_backend: AttentionBackend | None

    def __init__(self, runner: ModelRunner):
        super().__init__()
        reason = unmet(_demands_of(runner))
        if reason is not None:
            raise ValueError(f"--attention-backend ddtree_sm120: {reason}.")
        self.device = runner.device
        self.page_size = runner.page_size
        self.max_context_len = runner.model_config.context_len
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.kv_index_translator = runner.kv_index_translator
        self.data_type = self.kv_cache_dtype = runner.kv_cache_dtype

        self._max_nodes = runner.decode_num_tokens_per_req()
        max_requests = self.req_to_token_pool.req_to_token.shape[0]
        # Here, not at the first forward: a missing kernel is compiled, which takes minutes.
        self._layers = self._make_layers(runner, max_requests)
        _check_model(runner, self._layers)
        self._graph_buffers: StepBuffers | None = None
        self._eager_buffers: StepBuffers | None = None
        self._verify_mask = self._make_verify_mask(runner, max_requests)
        self.forward_metadata = None

        self.prefill_backend_name, self.prefill_backend = None, None
        # A block drafter never prefills: the committed rows of its pool are projections of the target's hidden states.
        self._drafts = runner.is_draft_worker
        if runner.prefill_attention_backend_str == BACKEND_NAME and not self._drafts:
            self.prefill_backend_name, self.prefill_backend = build_delegate(runner)
            self.extend_dummy_seqs_capped_by_req_pool = self.prefill_backend.extend_dummy_seqs_capped_by_req_pool
        self._switch = open_switch(
            runner,
            # A draft attends by our kernel always: what it proposes is verified anyway.
            delegate=None if self._drafts else TritonDelegate.name,
            ours=f"{self._layers.kernel} (CUDA)",
            default=VerifyMode.ON,
        )
        self._delegate = TritonDelegate(runner) if self._switch.needs_delegate else None
        (served,) = (kernel for part, kernel in self.describe().items() if part != "prefill")
        logger.info(
            "ddtree_sm120: %s (up to %d tokens a request) on %s; %s: page size %d, %s KV, workspace %.1f MiB",
            "the draft's block runs" if self._drafts else "decode and verify run",
            self._max_nodes,
            served,
            self._layers.kernel,
            self.page_size,
            self.kv_cache_dtype,
            self._layers.workspace.numel() / 2**20,
        )

    def _make_layers(self, runner: ModelRunner, max_requests: int) -> MlaLayers | GqaLayers:
        heads = _heads_per_rank(runner)
        if runner.use_mla_backend:
            return MlaLayers(
                self.token_to_kv_pool,
                max_requests=max_requests,
                num_heads=heads,
                page_size=self.page_size,
                device=self.device,
            )
        return GqaLayers(
            self.token_to_kv_pool,
            num_heads=heads,
            num_kv_heads=_kv_heads_per_rank(runner),
            head_dim=runner.model_config.head_dim,
            page_size=self.page_size,
            device=self.device,
        )

    def _make_verify_mask(self, runner: ModelRunner, max_requests: int) -> VerifyMask | None:
        """Where EAGLE's builder writes its tree: N x N bytes a request instead of N x (context + N)."""
        algorithm = runner.spec_algorithm
        if not (algorithm.is_eagle() or algorithm.is_standalone()):
            return None
        cells = tree_mask_numel(TreeMaskMode.QLEN_ONLY, max_requests, self._max_nodes, self.max_context_len)
        return VerifyMask(
            buffer=torch.zeros(cells, dtype=torch.bool, device=self.device),
            mode=TreeMaskMode.QLEN_ONLY,
            max_bs=max_requests,
        )

    def describe(self) -> dict[str, object]:
        """What runs, for ``/server_info``."""
        kernels = self._switch.kernels
        served = kernels[VerifyMode.ON if self._switch.mode is VerifyMode.ON else VerifyMode.OFF]
        if self._drafts:
            return {"draft_block": served}
        described = {"decode_and_verify": served}
        return described if self.prefill_backend is None else described | {"prefill": self.prefill_backend_name}

    # -- metadata ----------------------------------------------------------------

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        nodes = max(self._max_nodes, -(-max_num_tokens // max_bs))
        self._graph_buffers = self._make_buffers(max_bs, nodes)
        if self._delegate is not None:
            self._delegate.init_cuda_graph_state(max_bs)
            self._switch.delegate_buffer_bytes = self._delegate.graph_buffer_bytes

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if not _is_ours(forward_batch.forward_mode):
            self.prefill_backend.init_forward_metadata(forward_batch)
            return
        buffers = self._buffers_for_eager(forward_batch.batch_size, _num_nodes(forward_batch))
        self._prepare(forward_batch, buffers, read_mask=True)
        if forward_batch.forward_mode.is_idle():
            return
        self._switch.begin_step(eager=True)
        if self._switch.running.runs_delegate:
            self._delegate.prepare_eager(forward_batch, self.forward_metadata)

    def init_forward_metadata_out_graph(self, forward_batch: ForwardBatch, in_capture: bool = False) -> None:
        if not _is_ours(forward_batch.forward_mode):
            self.prefill_backend.init_forward_metadata_out_graph(forward_batch, in_capture)
            return
        # What a capture is called with is a dummy; the words it leaves are overwritten before each replay.
        self._prepare(forward_batch, self._graph_buffers, read_mask=not in_capture)
        if not in_capture:
            self._switch.begin_step(eager=False)
        if self._switch.running.runs_delegate:
            self._delegate.prepare_graph(forward_batch, self.forward_metadata, in_capture)

    def init_forward_metadata_in_graph(self, forward_batch: ForwardBatch) -> None:
        if not _is_ours(forward_batch.forward_mode):
            self.prefill_backend.init_forward_metadata_in_graph(forward_batch)

    def _prepare(self, forward_batch: ForwardBatch, buffers: StepBuffers, *, read_mask: bool) -> None:
        batch = forward_batch.batch_size
        verifies = forward_batch.forward_mode.is_target_verify()
        spec_info = forward_batch.spec_info
        layout, mask = MaskLayout.CHAIN, None
        if verifies and read_mask:
            layout, mask = mask_source(spec_info, self._verify_mask)
        step = buffers.step(batch, _num_nodes(forward_batch), has_tree=layout is not MaskLayout.CHAIN)
        write_step_metadata(
            step,
            req_to_token=self.req_to_token_pool.req_to_token,
            req_pool_indices=forward_batch.req_pool_indices,
            seq_lens=forward_batch.seq_lens,
            lens_count_window=not verifies,
            page_size=self.page_size,
            layout=layout,
            mask=mask,
            # Only the view of a graph's replay has it.
            num_requests=batch - getattr(forward_batch, "num_padding", 0),
        )
        self.forward_metadata = step

    def _make_buffers(self, max_batch: int, max_nodes: int) -> StepBuffers:
        max_pages = -(-self.req_to_token_pool.req_to_token.shape[1] // self.page_size)
        buffers = StepBuffers(max_batch, max_nodes, max_pages, self.device)
        logger.info("ddtree_sm120: step buffers for %d requests, %.1f MiB", max_batch, buffers.num_bytes / 2**20)
        return buffers

    def _buffers_for_eager(self, batch: int, nodes: int) -> StepBuffers:
        for buffers in (self._graph_buffers, self._eager_buffers):
            if buffers is not None and buffers.holds(batch, nodes):
                return buffers
        self._eager_buffers = self._make_buffers(1 << max(0, batch - 1).bit_length(), max(nodes, self._max_nodes))
        return self._eager_buffers

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def shared_read_ends(self, fm: ForwardMode) -> SharedReadEnds:
        if fm.is_decode() or fm.is_target_verify():
            return SharedReadEnds.PRE_REPLAY
        return SharedReadEnds.UNKNOWN if self.prefill_backend is None else self.prefill_backend.shared_read_ends(fm)

    @property
    def verify_mask(self) -> VerifyMask | None:
        return self._verify_mask

    def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs: int | None) -> None:
        """Nothing to redo: the stream that prepares a verify waits for the draft first."""

    # -- forward -----------------------------------------------------------------

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs,
    ) -> torch.Tensor:
        """See :meth:`forward_extend`."""
        return self._verify_ours(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs,
    ) -> torch.Tensor:
        """Verify a window, or hand a prefill to the delegate.

        Args:
            q: GQA ``[T, Hq * D]``; MLA ``[T, H * 576]``, or with ``q_rope`` the latent part ``[T, H, 512]``.
            k, v: GQA ``[T, Hkv, D]``; MLA ``[T, 1, 576]`` and ``[T, 1, 512]``, or with ``k_rope`` both the latent part;
                None when they are stored already.
            q_rope, k_rope (keywords, MLA): ``[T, H, 64]``, ``[T, 1, 64]``.

        Returns:
            ``[T, Hq * D]`` or ``[T, H * 512]`` bfloat16; rows of padded requests are zero.
        """
        mode = forward_batch.forward_mode
        if mode.is_target_verify():
            return self._verify_ours(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        if self._drafts or mode.is_draft_extend_v2():
            raise NotImplementedError(
                f"ddtree_sm120 on a GPU attends a draft's block only, not {mode.name}; set "
                "--speculative-draft-attention-backend to flashinfer or triton"
            )
        return self._prefill(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def _verify_ours(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        **unsupported,
    ) -> torch.Tensor:
        """Store the window's KV rows, then attend."""
        given = sorted(name for name, value in unsupported.items() if value is not None)
        if given:
            raise NotImplementedError(f"ddtree_sm120 on a GPU does not implement {', '.join(given)}")
        self._layers.check(layer)
        if save_kv_cache and k is not None:
            self._layers.store(layer, KVWriteLoc.for_batch(forward_batch), k, v, k_rope)
        return self._switch.serve(
            layer,
            self.forward_metadata.prefix_lens,
            ours=lambda: self._layers.attend(self.forward_metadata, q, q_rope, layer),
            delegate=lambda: self._attend_by_delegate(q, k, v, layer, forward_batch, q_rope, k_rope),
        )

    def _attend_by_delegate(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        q_rope: torch.Tensor | None,
        k_rope: torch.Tensor | None,
    ) -> torch.Tensor:
        if self._switch.running.runs_ours:
            # It attends to the window as it is handed over, our kernel as it is stored: to be compared they need the
            # same numbers.
            k, v = self._layers.as_stored(layer, k, v)
        return self._delegate.attend(q, k, v, layer, forward_batch, q_rope, k_rope)

    # -- what belongs to the prefill delegate ------------------------------------

    def _prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
        q_rope: torch.Tensor | None = None,
        k_rope: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor:
        if q_rope is not None and takes_split_queries(self.prefill_backend_name):
            kwargs.update(q_rope=q_rope, k_rope=k_rope)
        elif q_rope is not None:
            q = torch.cat([q.view(q.shape[0], layer.tp_q_head_num, -1), q_rope], dim=-1)
            if k is not None:
                k = torch.cat([k.view(k.shape[0], 1, -1), k_rope.view(k.shape[0], 1, -1)], dim=-1)
        return self.prefill_backend.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def init_mha_chunk_metadata(self, forward_batch: ForwardBatch, disable_flashinfer_ragged: bool = False) -> None:
        init = getattr(self.prefill_backend, "init_mha_chunk_metadata", None)
        if init is not None:
            init(forward_batch, disable_flashinfer_ragged)

    def _snapshot_prefill_shared_reads(self, forward_batch: ForwardBatch, *, num_qo_tokens: int) -> SharedReadEnds:
        if self.prefill_backend is None:
            return super()._snapshot_prefill_shared_reads(forward_batch, num_qo_tokens=num_qo_tokens)
        return self.prefill_backend._snapshot_prefill_shared_reads(forward_batch, num_qo_tokens=num_qo_tokens)

    dllm_attention = _of_prefill("dllm_attention")
    supports_full_cuda_graph_chunked_prefix = _of_prefill("supports_full_cuda_graph_chunked_prefix")
    supports_prefill_cuda_graph_max_context_size = _of_prefill("supports_prefill_cuda_graph_max_context_size")
    prefill_cuda_graph_default_max_seq_len = _of_prefill("prefill_cuda_graph_default_max_seq_len")

    def prepare_full_cuda_graph_chunked_prefix(self, forward_batch: ForwardBatch, *, in_capture: bool) -> None:
        self.prefill_backend.prepare_full_cuda_graph_chunked_prefix(forward_batch, in_capture=in_capture)


def _is_ours(mode: ForwardMode) -> bool:
    return mode.is_decode_or_idle() or mode.is_target_verify()


def _num_nodes(forward_batch: ForwardBatch) -> int:
    return int(forward_batch.spec_info.draft_token_num) if forward_batch.forward_mode.is_target_verify() else 1


def _heads_per_rank(runner: ModelRunner) -> int:
    return runner.model_config.num_attention_heads // get_parallel().attn_tp_size


def _kv_heads_per_rank(runner: ModelRunner) -> int:
    return runner.model_config.get_num_kv_heads(get_parallel().attn_tp_size)


def _demands_of(runner: ModelRunner) -> Demands:
    config, algorithm = runner.model_config, runner.spec_algorithm
    return Demands(
        is_mla=runner.use_mla_backend,
        latent_dim=getattr(config, "kv_lora_rank", None),
        rope_dim=getattr(config, "qk_rope_head_dim", None),
        model_dtype=runner.dtype,
        kv_cache_dtype=runner.kv_cache_dtype,
        heads=_heads_per_rank(runner),
        kv_heads=None if runner.use_mla_backend else _kv_heads_per_rank(runner),
        head_dims=None if runner.use_mla_backend else (config.head_dim, config.v_head_dim),
        nodes=runner.decode_num_tokens_per_req(),
        page_size=runner.page_size,
        dcp_size=get_parallel().attn_dcp_size,
        unified_memory=runner.kv_index_translator is not None and runner.kv_index_translator.needs_read_translate,
        drafts=runner.is_draft_worker,
        drafts_blocks=algorithm.is_dflash() or algorithm.is_ddtree(),
    )


def _check_model(runner: ModelRunner, layers: MlaLayers | GqaLayers) -> None:
    """Look at the layers before the server is ready, where the model is there to be looked at.

    Raises:
        ValueError: a layer asks for something that the kernel lacks.
    """
    if isinstance(runner.token_to_kv_pool, BaseSWAKVPool):
        raise ValueError("--attention-backend ddtree_sm120 reads one KV pool; add --disable-hybrid-swa-memory.")
    model = getattr(runner, "model", None)
    if model is None:
        return
    # An MLA layer also has a multi-head form, on keys and values projected up from the latents. Only a prefill calls
    # it, which is the delegate's.
    unabsorbed = {id(getattr(module, "attn_mha", None)) for module in model.modules() if hasattr(module, "attn_mqa")}
    for module in model.modules():
        if any(getattr(module, name, None) is not None for name in _SINKS):
            raise ValueError(f"--attention-backend ddtree_sm120 has no attention sinks; {_OTHER_BACKEND}")
        if isinstance(module, RadixAttention) and id(module) not in unabsorbed:
            try:
                layers.check(module)
            except NotImplementedError as error:
                raise ValueError(f"--attention-backend ddtree_sm120: {error}; {_OTHER_BACKEND}") from error
