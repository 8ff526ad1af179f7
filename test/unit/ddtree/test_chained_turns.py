# SPDX-License-Identifier: Apache-2.0
"""Several steps a turn: what they emit together, how many there are, and what the scheduler makes of it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.arg_groups.fields.spec import Spec
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache import allocation_sizing
from sglang.srt.speculative.chained import dflash_worker, eligible, reserve, turn_time
from sglang.srt.speculative.chained.length import MEASURE_EVERY, MOST_STEPS, TurnLength
from sglang.srt.speculative.chained.result import (
    TurnResult,
    count_nodes,
    count_steps,
    depths_of,
    lens_within_limits,
    settle_steps,
    steps_that_count,
)
from sglang.srt.speculative.chained.self_test import compare_steps
from sglang.srt.speculative.chained.state import TurnEnd, TurnLayout, TurnState
from sglang.srt.speculative.chained.turn import Turns
from sglang.srt.speculative.chained.turn_time import resolve_turn_ms
from sglang.srt.speculative.chained.worker import ChainsTurns
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

BLOCK, BATCH = 5, 3


class Steps:
    """Steps of random lengths; keeps what they emitted."""

    uses_graphs = False

    def __init__(self, state: TurnState) -> None:
        self.state, self.draw = state, random.Random(0)
        self.emitted: list[list[list[int]]] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            size = len(self.state.seq_lens)
            lens = [self.draw.randint(1, BLOCK) for _ in range(size)]
            tokens = torch.tensor([[self.draw.randint(100, 999) for _ in range(BLOCK)] for _ in lens])
            self.emitted.append([row[:n].tolist() for row, n in zip(tokens, lens, strict=True)])
            commit = torch.tensor(lens, dtype=torch.int32)
            bonus = tokens.gather(1, commit.long().unsqueeze(1) - 1).squeeze(1)
            nodes = torch.full((size,), 13, dtype=torch.int32)
            self.state.advance(tokens, commit, bonus, self.state.seq_lens + commit, nodes)


class Request:
    def __init__(self, max_new_tokens: int = 1000) -> None:
        self.sampling_params = SimpleNamespace(max_new_tokens=max_new_tokens)
        self.output_ids: list[int] = []
        self.spec_num_cap_tokens = 0
        self.histogram: list[int] = []
        self.is_retracted = self.ended = False

    def finished(self) -> bool:
        return self.ended

    def update_spec_correct_drafts_histogram(self, depth: int) -> None:
        self.histogram.append(depth)


def batch_of(size: int) -> SimpleNamespace:
    return SimpleNamespace(
        seq_lens=torch.arange(10, 10 + size), req_pool_indices=torch.arange(size).flip(0), reqs=[Request()] * size
    )


def turns_of(turn_ms: float) -> tuple[Turns, list[Steps]]:
    made: list[Steps] = []

    def make(state: TurnState) -> Steps:
        made.append(Steps(state))
        return made[-1]

    turns = Turns(block_size=BLOCK, max_batch=BATCH, turn_ms=turn_ms, make_steps=make, device="cpu")
    for size in range(1, BATCH + 1):
        turns.prepare(size)
    return turns, made


@pytest.mark.parametrize("size", range(1, BATCH + 1))
def test_a_turn_emits_what_its_steps_emitted(size):
    turns, made = turns_of(1e9)
    steps = made[size - 1]
    batch, bonus = batch_of(size), torch.arange(size)
    for most in (1, 4, 3, 4):
        steps.emitted.clear()
        result = turns.run(batch, bonus, most)
        result.copy_done = SimpleNamespace(record=lambda: None)
        result.copy_to_cpu(return_logprob=False)
        assert result.num_steps == len(steps.emitted) <= most
        ids, stride = result.next_token_ids.tolist(), result.speculative_output_stride
        for i in range(size):
            tokens = [token for step in steps.emitted for token in step[i]]
            assert ids[i * stride : i * stride + int(result.accept_lens[i])] == tokens
            assert result.depths()[i] == [len(step[i]) - 1 for step in steps.emitted]
            assert int(result.new_seq_lens[i]) == int(batch.seq_lens[i]) + len(tokens)
            assert int(result.bonus[i]) == tokens[-1]
        assert result.nodes() == [13 * result.num_steps] * size
        batch.seq_lens, bonus = result.new_seq_lens, result.bonus
        # A step of the worker's own hands them to kernels that take no strides.
        assert batch.seq_lens.is_contiguous() and bonus.is_contiguous()
    assert result.num_steps > 1  # or nothing was chained


def test_a_result_outlives_the_next_turn():
    turns, _ = turns_of(1e9)
    first = turns.run(batch_of(2), torch.arange(2), 4)
    kept = first.rows.clone()
    turns.run(batch_of(2), torch.arange(2), 4)
    assert torch.equal(first.rows, kept)


def test_columns_do_not_overlap():
    layout = TurnLayout(BLOCK, MOST_STEPS)
    columns = [*range(layout.width)[layout.tokens], *range(layout.width)[layout.lens]]
    columns += [layout.total, layout.nodes, layout.step]
    assert sorted(columns) == list(range(layout.width))


@pytest.mark.parametrize(("step_ms", "steps"), [(10.0, 1), (2.0, 1), (1.5, 2), (1.0, 3), (0.4, MOST_STEPS)])
def test_a_turn_is_as_long_as_its_time_allows(step_ms, steps):
    length = TurnLength(turn_ms=3.0)
    assert length.steps == 1
    assert length.wants_time()
    length.observe(step_ms)
    assert length.steps == steps
    assert [length.wants_time() for _ in range(MEASURE_EVERY)] == [False] * (MEASURE_EVERY - 1) + [True]


def test_the_flag_has_its_default():
    assert Spec().speculative_turn_ms is None


@pytest.mark.parametrize(
    ("asked", "backend", "device", "expected"),
    [
        (None, "ddtree_sm120", "cuda", 3.0),
        (None, "ddtree_sm120", "cpu", 0.0),
        (None, "triton", "cuda", 0.0),
        (0.0, "ddtree_sm120", "cuda", 0.0),
        (1e9, "ddtree_sm120", "cpu", 1e9),
    ],
)
def test_what_is_not_asked_for_goes_by_machine_and_backend(asked, backend, device, expected):
    assert resolve_turn_ms(asked, backend, device) == expected


@pytest.mark.parametrize("algorithm", ["DFLASH", "DDTREE"])
def test_a_turn_fits_in_what_is_reserved(monkeypatch, algorithm):
    nodes = 33 if algorithm == "DDTREE" else BLOCK
    spec = SimpleNamespace(
        speculative_algorithm=algorithm,
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        speculative_num_draft_tokens=nodes,
        speculative_dflash_block_size=BLOCK if algorithm == "DDTREE" else None,
        speculative_turn_ms=3.0,
    )
    kernel = SimpleNamespace(decode_attention_backend=None, attention_backend="ddtree_sm120")
    for module in (allocation_sizing, reserve):
        monkeypatch.setattr(module, "get_spec", lambda: spec)
    monkeypatch.setattr(turn_time, "get_exec", lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setattr(turn_time, "get_spec", lambda: spec)
    monkeypatch.setattr(turn_time, "get_device", lambda: SimpleNamespace(device="cuda"))
    monkeypatch.setattr(allocation_sizing, "max_speculative_num_draft_tokens", lambda: nodes)
    monkeypatch.setattr(allocation_sizing, "get_alloc_page_size", lambda: 1)
    # The turn before committed all it could, and so do all steps of this one but the last.
    needed = (2 * MOST_STEPS - 1) * BLOCK + nodes
    assert allocation_sizing.get_alloc_reserve_per_decode() >= needed
    assert allocation_sizing.get_req_to_token_extra_context_len() >= needed

    for field, value in (("attention_backend", "triton"), ("decode_attention_backend", "fa3")):
        monkeypatch.setattr(kernel, field, value)
        assert allocation_sizing.get_alloc_reserve_per_decode() == 2 * nodes
    kernel.decode_attention_backend = "ddtree_sm120"
    spec.speculative_turn_ms = None
    assert allocation_sizing.get_alloc_reserve_per_decode() >= needed
    spec.speculative_turn_ms = 0.0
    assert allocation_sizing.get_alloc_reserve_per_decode() == 2 * nodes


def result_of(*requests: list[int]) -> TurnResult:
    """A turn of trees of 33 nodes, from the accepted drafts of each request's steps."""
    layout, depths = TurnLayout(BLOCK, MOST_STEPS), torch.tensor(requests)
    steps = depths.shape[1]
    rows = torch.zeros(len(requests), layout.width, dtype=torch.int64)
    rows[:, layout.lens][:, :steps] = depths + 1
    rows[:, layout.nodes] = 33 * steps
    rows[:, layout.total] = depths.sum(1) + steps
    return TurnResult.of(layout, TurnEnd(rows, rows[:, 0], rows[:, 0]), steps)


def test_steps_are_counted_each_by_itself():
    request, result = Request(), result_of([2, 0, 4])
    assert lens_within_limits(result, [request]) == [9]
    assert count_steps(result, request, 0) == [2, 0, 4]
    assert request.histogram == [2, 0]  # the caller enters the last
    assert request.spec_num_cap_tokens == 99
    count_nodes(result)
    assert result.num_cap_tokens == 99
    chain, request = result_of([2, 0, 4]), Request()
    chain.has_trees = False
    lens_within_limits(chain, [request])
    assert count_steps(chain, request, 0) == [2, 0, 4] and request.spec_num_cap_tokens == 0
    count_nodes(chain)
    assert chain.num_cap_tokens == 0


LIMITS = [(3, 3, 1), (4, 4, 2), (5, 9, 3), (9, 9, 3), (99, 9, 3), (1, 3, 1)]


@pytest.mark.parametrize(("limit", "taken", "kept"), LIMITS)
def test_steps_behind_the_limit_are_not_taken(limit, taken, kept):
    request, result = Request(max_new_tokens=100 + limit), result_of([2, 0, 4])
    request.output_ids = [0] * 100
    assert lens_within_limits(result, [request]) == [taken]
    assert count_steps(result, request, 0) == [2, 0, 4][:kept]
    assert request.spec_num_cap_tokens == 33 * kept


@pytest.mark.parametrize(("finished_len", "left"), [(14, 1), (13, 1), (15, 2), (16, 3), (19, 3), (None, 3)])
def test_steps_behind_the_end_do_not_count(finished_len, left):
    """A request that had 10 tokens, then 4, 1 and 5 from a turn, and was found to end at some length."""
    request, result = Request(), result_of([3, 0, 4])
    lens_within_limits(result, [request])
    request.output_ids, request.finished_len = [0] * 20, finished_len
    request.spec_verify_ct, request.spec_num_correct_drafts = 2 + 3, 5 + 7
    request.spec_correct_drafts_histogram, request.spec_num_cap_tokens = [2, 1, 0, 1, 1], 5 * 33
    settle_steps(result, request, 0)
    gone = [3, 0, 4][left:]
    assert request.spec_verify_ct == 5 - len(gone)
    assert request.spec_num_correct_drafts == 12 - sum(gone)
    assert sum(request.spec_correct_drafts_histogram) == 5 - len(gone)
    assert request.spec_correct_drafts_histogram[-1] > 0  # as if the steps had not been
    assert request.spec_num_cap_tokens == 33 * (5 - len(gone))


def test_a_step_of_its_own_counts_as_ever():
    request = Request()
    assert count_steps(GenerationBatchResult(num_correct_drafts_per_req_cpu=[3, 1]), request, 1) == [1]
    assert not request.histogram


@pytest.fixture
def resolved():
    """The scheduler's way from a result to each request's tokens."""
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor

    processor = SimpleNamespace(
        metrics_reporter=SimpleNamespace(snapshot_spec_decode_metrics=lambda *_: None),
        model_worker=SimpleNamespace(on_verify_complete_cpu=lambda *_, **__: None),
        advance_grammar_fsm=lambda *_: None,
    )

    def resolve(result: GenerationBatchResult, requests: list[Request]) -> list[list[int]]:
        for request in requests:
            request.grammar = None
            request.kv = SimpleNamespace(kv_committed_len=100)
            request.spec_verify_ct = request.spec_num_correct_drafts = 0
        batch = SimpleNamespace(reqs=requests)
        return SchedulerBatchResultProcessor._resolve_spec_v2_tokens(processor, result, batch)

    return resolve


def test_the_scheduler_counts_every_step(resolved):
    request, result = Request(), result_of([2, 0, 4])
    (tokens,) = resolved(result, [request])
    assert len(tokens) == 9
    assert request.kv.kv_committed_len == 109
    assert (request.spec_verify_ct, request.spec_num_correct_drafts) == (3, 6)
    assert request.histogram == [2, 0, 4]
    assert request.spec_num_cap_tokens == 99
    assert result.get_num_generated_tokens(1) == 9


def test_what_a_server_counts_has_no_steps_that_nobody_takes(resolved):
    """Or its accept length would fall with every request that ends; of one that is gone SGLang counts one step."""
    ends, gone, retracted = Request(max_new_tokens=3), Request(), Request()
    gone.ended = retracted.is_retracted = True
    result = result_of([1, 0, 4], [3, 2, 2], [0, 4, 4], [4, 4, 4])
    resolved(result, [ends, gone, retracted, Request()])
    kept = [1, 0, 3, 0, 4, 4, 4]
    assert depths_of(result) == kept
    assert steps_that_count(result, 4) == len(kept)
    assert result.num_correct_drafts == sum(kept)
    assert result.get_num_generated_tokens(4) == sum(kept) + len(kept)
    assert result.num_cap_tokens == 33 * len(kept)


def test_a_server_counts_one_step_of_a_result_that_is_one(resolved):
    result = GenerationBatchResult(
        next_token_ids=torch.zeros(2 * BLOCK, dtype=torch.int64),
        accept_lens=torch.tensor([2, 5]),
        cap_lens=torch.tensor([7, 9]),
        speculative_output_stride=BLOCK,
    )
    gone = Request()
    gone.ended = True
    resolved(result, [gone, gone])
    assert depths_of(result) == [1, 4] and steps_that_count(result, 2) == 2
    assert result.num_correct_drafts == 5 and result.get_num_generated_tokens(2) == 7
    assert result.num_cap_tokens == 16


def test_dflash_gets_the_worker_that_chains(monkeypatch):
    from sglang.srt.speculative import spec_info
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    algorithm = SpeculativeAlgorithm.DFLASH
    monkeypatch.setattr(spec_info, "resolving_view", lambda arguments: arguments)
    chains = dflash_worker.ChainedDFlashWorker
    for turn_ms, backend, expected in (
        (3.0, "ddtree_sm120", chains),
        (None, "ddtree_sm120", chains),
        (None, "triton", DFlashWorkerV2),
        (0.0, "ddtree_sm120", DFlashWorkerV2),
    ):
        arguments = SimpleNamespace(
            speculative_turn_ms=turn_ms, decode_attention_backend=None, attention_backend=backend, device="cuda"
        )
        assert algorithm.create_worker(arguments) is expected


class Worker(ChainsTurns):
    """A worker whose turns are prepared, for what a batch must be like."""

    def __init__(self) -> None:
        self._turns = SimpleNamespace(holds=lambda size: size <= BATCH)
        self.model_runner = SimpleNamespace(model_config=SimpleNamespace(context_len=1000), device="cuda")
        self.greedy = True

    def _can_skip_verify_logits(self, batch, sampling_info) -> bool:
        return self.greedy


@pytest.fixture
def worker(monkeypatch) -> Worker:
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.get_alloc_reserve_per_decode", lambda: 50)
    return Worker()


def decode_batch(size: int, committed: int, **more) -> SimpleNamespace:
    sampling = SimpleNamespace(stop_strs=more.pop("stop_strs", []), stop_regex_strs=more.pop("stop_regex_strs", []))
    request = SimpleNamespace(kv=SimpleNamespace(kv_committed_len=committed), sampling_params=sampling)
    values = {"return_hidden_states": False, "sampling_info": None} | more
    return SimpleNamespace(seq_lens=torch.zeros(size), reqs=[request] * size, **values)


def test_which_batches_are_chained(worker):
    assert worker._steps_of_turn(decode_batch(2, 950)) == MOST_STEPS
    assert worker._steps_of_turn(decode_batch(2, 951)) == 1  # the last steps of the context
    assert worker._steps_of_turn(decode_batch(2, 10, stop_strs=["\n\n"])) == 1
    assert worker._steps_of_turn(decode_batch(2, 10, stop_regex_strs=["a+"])) == 1
    assert worker._steps_of_turn(decode_batch(BATCH + 1, 10)) == 0
    assert worker._steps_of_turn(decode_batch(1, 10, return_hidden_states=True)) == 0
    worker.greedy = False
    assert worker._steps_of_turn(decode_batch(1, 10)) == 0


def test_a_turn_starts_from_an_input_of_its_own(worker):
    """SGLang's buffers of lengths double each time that one input takes them over from another."""
    made = []
    worker._turns.run = lambda batch, bonus, most: result_of([1])
    worker.widths = SimpleNamespace(num_nodes=9)
    worker._make_next_draft_input_decode = lambda **given: made.append(given) or "fresh"
    batch = SimpleNamespace(reqs=[Request()], seq_lens=torch.zeros(1))
    for _ in range(3):
        result = worker._run_turn(batch, SimpleNamespace(bonus_tokens=torch.zeros(1)), 4, None)
        assert result.next_draft_input == "fresh"
    assert len(made) == 3


def test_a_switch_that_is_not_on_takes_the_step_back(worker, monkeypatch):
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.turn_ms_in_force", lambda: 3.0)
    worker.model_runner.verify_switch = SimpleNamespace(mode=eligible.VerifyMode.VALIDATE)
    assert worker._steps_of_turn(decode_batch(1, 10)) == 0
    assert worker.turns_state() == {"most": 1, "reason": "--ddtree-verify was switched to validate"}
    worker.model_runner.verify_switch.mode = eligible.VerifyMode.ON
    assert worker._steps_of_turn(decode_batch(1, 10)) == MOST_STEPS
    assert worker.turns_state() == {"most": MOST_STEPS, "turn_ms": 3.0}


def test_graphs_that_were_captured_anew_end_the_turns(worker, caplog):
    """SGLang can do so in a weight update; what the captures of a turn's parts point to is freed then."""
    target, draft = object(), object()
    worker.model_runner.decode_cuda_graph_runner = target
    worker.draft_model_runner = SimpleNamespace(decode_cuda_graph_runner=draft)
    worker._graph_runners = worker._present_graph_runners()
    assert worker._steps_of_turn(decode_batch(1, 10)) == MOST_STEPS
    worker.draft_model_runner.decode_cuda_graph_runner = object()
    assert worker._steps_of_turn(decode_batch(1, 10)) == 0
    assert worker.turns_state() == {"most": 1, "reason": "CUDA graphs were captured anew after the start"}
    assert "not chained any more" in caplog.text
    worker.draft_model_runner.decode_cuda_graph_runner = draft
    assert worker._steps_of_turn(decode_batch(1, 10)) == 0


@pytest.mark.parametrize(
    ("turn_ms", "in_force", "level"), [(3.0, 3.0, "WARNING"), (0.0, 0.0, "INFO"), (None, 3.0, "INFO")]
)
def test_a_server_that_cannot_chain_says_so(monkeypatch, caplog, worker, turn_ms, in_force, level):
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.why_not", lambda worker: "LoRA")
    spec = SimpleNamespace(speculative_turn_ms=turn_ms)
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.get_spec", lambda: spec)
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.turn_ms_in_force", lambda: in_force)
    given_up = []
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.stay_at_one_step", lambda: given_up.append(True))
    worker._turns = None
    with caplog.at_level("INFO"):
        worker._prepare_turns()
    (record,) = caplog.records
    assert record.levelname == level and "not chained: LoRA" in record.getMessage()
    assert given_up == [True] * (in_force > 0)  # nor are slots kept for it
    assert worker.turns_state() == {"most": 1, "reason": "LoRA"}


def test_server_info_says_how_many_steps(worker):
    from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController

    worker._turns, worker._why_no_turns = None, "LoRA"
    scheduler = SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.DFLASH, draft_worker=worker)
    controller = SimpleNamespace(_average_accept_length=lambda: None, scheduler=scheduler)
    state: dict = {}
    SchedulerInternalStateController._add_speculative(controller, state)
    assert state["speculative_turns"] == {"most": 1, "reason": "LoRA"}
    scheduler.draft_worker = SimpleNamespace()
    state.clear()
    SchedulerInternalStateController._add_speculative(controller, state)
    assert "speculative_turns" not in state


def test_a_server_whose_capture_fails_says_so(monkeypatch, caplog):
    worker = Worker()
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.why_not", lambda worker: None)
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.turn_ms_in_force", lambda: 3.0)

    def fail(state):
        raise RuntimeError("operation not permitted when stream is capturing")

    worker._turns, worker.device, worker._eager_steps = None, "cpu", fail
    worker._buffers = SimpleNamespace(batch_size=4)
    worker.widths = SimpleNamespace(block_size=BLOCK)
    given_up = []
    monkeypatch.setattr("sglang.srt.speculative.chained.worker.stay_at_one_step", lambda: given_up.append(True))
    worker._prepare_turns()
    assert worker._turns is None and given_up == [True]
    reason = "their capture failed: RuntimeError: operation not permitted when stream is capturing"
    assert worker.turns_state() == {"most": 1, "reason": reason}
    assert "not chained" in caplog.text
    assert worker.model_runner.shared_read_done_event is None
    assert worker._steps_of_turn(decode_batch(1, 10)) == 0


def test_captured_steps_are_compared_with_single_ones():
    state = TurnState.allocate(TurnLayout(BLOCK, MOST_STEPS), 1, "cpu")
    table = torch.zeros(2, 64, dtype=torch.int32)
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        token_to_kv_pool_allocator=SimpleNamespace(size=100, page_size=16),
        model_config=SimpleNamespace(vocab_size=1000),
    )

    class Looking(Steps):
        def run(self, count: int) -> None:
            self.slots = table[0].tolist()
            super().run(count)

    alike, other = (Looking(state), Looking(state)), Looking(state)
    compare_steps(runner, state, *alike, most_keys=33)
    assert all(steps.slots == [*range(80, 113), *[0] * 31] for steps in alike)
    assert not table.any()
    other.draw = random.Random(1)
    with pytest.raises(RuntimeError, match="captured steps emit"):
        compare_steps(runner, state, Looking(state), other, most_keys=33)
