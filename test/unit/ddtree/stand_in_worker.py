# SPDX-License-Identifier: Apache-2.0
"""A DDTREE worker without a model: the draft and the target are stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.ddtree import kv_commit as kv_commit_module
from sglang.kernels.ops.ddtree import tree_accept as tree_accept_module
from sglang.kernels.ops.ddtree import tree_build as tree_build_module
from sglang.kernels.ops.ddtree.kv_commit import KVRows
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.ddtree import tree_steps
from sglang.srt.speculative.ddtree import worker as worker_module
from sglang.srt.speculative.ddtree.budget import TreeWidths
from sglang.srt.speculative.ddtree.chain_check import ChainCheck
from sglang.srt.speculative.ddtree.step_buffers import StepBuffers
from sglang.srt.speculative.ddtree.worker import DDTreeWorker

BLOCK, BUDGET, CANDIDATES, VOCAB, HIDDEN = 5, 12, 3, 40, 8
MASK_TOKEN, MAX_BATCH, CONTEXT, STRIDE = 39, 6, 64, 100
NODES, WINDOW = BUDGET + 1, max(BUDGET + 1, BLOCK)


class Plan:
    """A KVLocPlan of pools that share the scheduler's ids."""

    def __init__(self, write_virtual: torch.Tensor, rows: int):
        self.ids = write_virtual.view(rows, -1)

    def bind(self, forward_batch, translator, *, cols):
        forward_batch.out_cache_loc = self.write_ids(translator, cols=cols)

    def write_ids(self, translator, cols=slice(None)):
        return self.ids[:, cols].reshape(-1)

    def virtual_write_ids(self, *, cols):
        return self.write_ids(None, cols=cols)


class Candidates:
    """What the draft's head found: static buffers that a step's draft fills."""

    def __init__(self, device: str):
        shape = (MAX_BATCH, BLOCK - 1, CANDIDATES)
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)

    def __call__(self, hidden_states):
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(*self.ids.shape[:2], VOCAB, generator=generator)
        values, ids = logits.log_softmax(-1).topk(CANDIDATES)
        self.ids.copy_(ids.to(self.ids.device))
        self.logprobs.copy_(values.to(self.ids.device))


@pytest.fixture(params=["cpu", "meta"])
def device(request) -> str:
    return request.param


@pytest.fixture
def worker(monkeypatch, device) -> DDTreeWorker:
    """A worker whose draft and target are stand-ins; ``verified`` records each verify's tokens."""
    for module in (tree_build_module, tree_accept_module, kv_commit_module):
        monkeypatch.setattr(module, "native_op", lambda name: None)
    monkeypatch.setattr(tree_steps, "enable_num_token_non_padded", lambda: False)
    monkeypatch.setattr(tree_steps, "draft_tp_context", lambda layout: torch.no_grad())
    if device == "meta":
        stream = SimpleNamespace(current_stream=lambda: None)
        monkeypatch.setattr(torch, "get_device_module", lambda device: stream)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

    widths = TreeWidths(BLOCK, BUDGET, CANDIDATES)
    table = torch.arange(MAX_BATCH * STRIDE, dtype=torch.int32, device=device).view(MAX_BATCH, STRIDE)
    pool = torch.arange(MAX_BATCH * STRIDE, dtype=torch.float32, device=device).unsqueeze(1)
    made = DDTreeWorker.__new__(DDTreeWorker)
    made.device, made.widths, made.spine = device, widths, True
    made.pool, made.appended = pool, []
    made._buffers = StepBuffers.allocate(
        widths, MAX_BATCH, mask_token_id=MASK_TOKEN, table_dtype=table.dtype, device=device
    )
    made._views, made._turn, made._draft_sampler = {}, 0, None
    made._window_offsets = torch.arange(WINDOW, device=device)
    made._candidates = Candidates(device)
    made._kv_rows = KVRows((pool,), torch.empty(0), torch.empty(0))
    made._chain_check = ChainCheck(device)
    made._tp_sync = SimpleNamespace(sync=lambda site, values: values)
    made._target_logits_processor = None
    made._draft_block_spec_info = made.draft_parallel_layout = None
    made._noise_embed_scale = 2.0
    embedding = torch.nn.Embedding(VOCAB, HIDDEN, device=device)
    runner = SimpleNamespace(
        model=SimpleNamespace(get_input_embeddings=lambda: embedding),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        kv_index_translator=SimpleNamespace(
            plan=lambda write_virtual, req_pool_indices, **_: Plan(write_virtual, len(req_pool_indices))
        ),
        decode_attention_backend_str="ddtree_sm120",
        sampler=None,
    )
    made.model_runner = runner
    made.draft_model = SimpleNamespace()
    made.draft_forwards = []

    def draft_forward(forward_batch):
        made.draft_forwards.append(forward_batch)
        return SimpleNamespace(can_run_graph=False, logits_output=SimpleNamespace(hidden_states=None))

    made.draft_model_runner = SimpleNamespace(forward=draft_forward, kv_index_translator=None)
    made._target_worker = SimpleNamespace(model_runner=runner)

    def verify(batch, forward_batch, **_):
        tokens = made._views[made.size].tree.tokens
        generator = torch.Generator().manual_seed(made.size)
        logits = torch.randn(made.size * NODES, VOCAB, generator=generator).to(device)
        # The target mostly agrees with the draft's best.
        best = made._candidates.ids[: made.size, :, 0]
        depths = made._views[made.size].tree.depths.long().clamp(max=BLOCK - 2)
        logits.scatter_add_(1, best.gather(1, depths).view(-1, 1), torch.full((made.size * NODES, 1), 3.0).to(device))
        made.logits, made.tokens = logits.clone(), tokens.clone()
        features = torch.arange(made.size * NODES, device=device, dtype=torch.float32).unsqueeze(1)
        return SimpleNamespace(
            logits_output=LogitsProcessorOutput(
                next_token_logits=logits, hidden_states=features, last_hidden_states=features
            ),
            can_run_cuda_graph=False,
        )

    made._target_worker.forward_batch_generation = verify
    monkeypatch.setattr(
        worker_module,
        "tree_verify_input",
        lambda *_: SimpleNamespace(prepare_for_verify=lambda batch, target: (None, None)),
    )
    made._append_target_hidden_to_draft_kv_by_loc = lambda **given: made.appended.append(
        {name: value.clone() for name, value in given.items()}
    )
    return made
