# SPDX-License-Identifier: Apache-2.0
"""The worker's step without a model: what it writes, where, and that it reads nothing back.

The draft and the target are stand-ins. On the meta device every tensor has a shape and no
values, so a step that asked for one (``.item()``, a shape that depends on data) would fail.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.ddtree import worker as worker_module
from sglang.srt.speculative.ddtree.worker import DDTreeWorker
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from stand_in_worker import BLOCK, MASK_TOKEN, MAX_BATCH, NODES, STRIDE, WINDOW


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
