# SPDX-License-Identifier: Apache-2.0
"""The worker's step without a model: what it writes, where, and that it reads nothing back.

The draft and the target are stand-ins. On the meta device every tensor has a shape and no
values, so a step that asked for one (``.item()``, a shape that depends on data) would fail.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.kernels.ops.ddtree import kv_commit as kv_commit_module
from sglang.kernels.ops.ddtree import tree_accept as tree_accept_module
from sglang.kernels.ops.ddtree import tree_build as tree_build_module
from sglang.kernels.ops.ddtree.kv_commit import KVRows
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.ddtree import tree_steps
from sglang.srt.speculative.ddtree import worker as worker_module
from sglang.srt.speculative.ddtree.budget import TreeWidths
from sglang.srt.speculative.ddtree.chain_check import ChainCheck
from sglang.srt.speculative.ddtree.step_buffers import StepBuffers
from sglang.srt.speculative.ddtree.worker import DDTreeWorker
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2

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
            routed_experts_output=None,
            indexer_topk_output=None,
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


def batch_of(size: int, device: str) -> SimpleNamespace:
    lens = [7 + 3 * i for i in range(size)]
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        is_extend_in_batch=False,
        seq_lens=torch.tensor(lens, device=device),
        seq_lens_cpu=torch.tensor(lens),
        seq_lens_sum=sum(lens),
        # Rows of the table in another order than the batch's.
        req_pool_indices=torch.tensor([MAX_BATCH - 1 - i for i in range(size)], device=device),
        has_grammar=False,
        return_logprob=False,
        return_hidden_states=False,
        sampling_info=None,
        can_run_decode_cuda_graph=True,
        top_logprobs_nums=None,
        token_ids_logprobs=None,
    )
    empty = torch.empty(0, device=device)
    bonus = torch.arange(size, device=device)
    batch.spec_info = DFlashDraftInputV2(empty, empty, bonus, batch.seq_lens, empty)
    return batch


def run(worker: DDTreeWorker, batch: SimpleNamespace):
    worker.size = len(batch.seq_lens)
    published = []
    result = worker.forward_batch_generation(batch, on_publish=published.append)
    assert published[0] is result.new_seq_lens
    return result


@pytest.mark.parametrize("size", [1, 2, 6])
def test_shapes_and_nothing_read_back(worker, device, size, monkeypatch):
    batch = batch_of(size, device)
    batch.return_hidden_states = batch.return_logprob = True
    batch.sampling_info = SimpleNamespace(is_all_greedy=True)
    monkeypatch.setattr(worker_module, "apply_dflash_verify_logits_adjustments", lambda **_: None)
    result = run(worker, batch)
    assert result.next_token_ids.shape == (size * BLOCK,)
    assert result.speculative_output_stride == BLOCK
    assert result.speculative_num_draft_tokens == NODES
    assert result.accept_lens.shape == result.cap_lens.shape == (size,)
    assert result.logits_output.hidden_states.shape == (size * BLOCK, 1)
    assert result.logits_output.next_token_logprobs.shape == (size, BLOCK)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_a_step_drafts_verifies_and_commits_behind_the_committed_tokens(worker):
    batch = batch_of(3, "cpu")
    result = run(worker, batch)
    (draft,) = worker.draft_forwards
    ids = draft.input_ids.view(3, BLOCK)
    assert torch.equal(ids[:, 0], torch.arange(3)) and (ids[:, 1:] == MASK_TOKEN).all()
    chosen = worker.logits.argmax(-1).view(3, NODES)
    longest = 0
    for b in range(3):
        prefix, row = int(batch.seq_lens[b]), int(batch.req_pool_indices[b])
        slots = [row * STRIDE + prefix + i for i in range(WINDOW)]
        assert draft.positions.view(3, BLOCK)[b].tolist() == list(range(prefix, prefix + BLOCK))
        assert draft.out_cache_loc.view(3, BLOCK)[b].tolist() == slots[:BLOCK]
        assert batch.out_cache_loc.view(3, NODES)[b].tolist() == slots[:NODES]

        nodes = [n for n in worker._views[3].outputs[1].path.nodes[b].tolist() if n >= 0]
        taken = int(result.accept_lens[b])
        assert len(nodes) == taken and nodes[0] == 0
        longest = max(longest, taken)
        said = result.next_token_ids.view(3, BLOCK)[b].tolist()
        assert said[: taken - 1] == worker.tokens[b, nodes[1:]].tolist()
        assert said[:taken] == chosen[b, nodes].tolist()
        assert int(result.next_draft_input.bonus_tokens[b]) == said[taken - 1]
        assert int(result.new_seq_lens[b]) == prefix + taken
        # Each row held its own number.
        assert worker.pool[slots[:taken], 0].tolist() == [slots[n] for n in nodes]

        (appended,) = worker.appended
        features = appended["target_hidden"].view(3, BLOCK)[b].tolist()
        assert features[:taken] == [b * NODES + n for n in nodes]
        assert appended["cache_loc_2d"][b].tolist() == slots[:BLOCK]
    assert longest > 2  # or the moves were none
    counts = worker._chain_check.counts()
    assert counts["states"] == 3 and counts["violations"] == 0


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_results_outlive_the_next_step_and_use_the_same_memory(worker):
    def addresses(result) -> list[int]:
        fields = (result.next_token_ids, result.accept_lens, result.cap_lens, result.new_seq_lens)
        return [field.data_ptr() for field in (*fields, result.next_draft_input.bonus_tokens)]

    results = [run(worker, batch_of(size, "cpu")) for size in (4, 4, 2, 3)]
    first, second, third, fourth = map(addresses, results)
    assert not set(first) & set(second)
    assert (third, fourth) == (first, second)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_the_host_lengths_are_bounds_when_only_the_device_knows(worker):
    batch = batch_of(2, "cpu")
    batch.seq_lens_cpu = batch.seq_lens_sum = None
    batch.spec_info.nxt_kv_lens_cpu = torch.tensor([40, 50], dtype=torch.int32)
    batch.spec_info.nxt_kv_lens_sum = 90
    run(worker, batch)
    (draft,) = worker.draft_forwards
    assert draft.seq_lens_cpu.tolist() == [40, 50] and draft.seq_lens_sum == 90
    assert batch.seq_lens_cpu is None
