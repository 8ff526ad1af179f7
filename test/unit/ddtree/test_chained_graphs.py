# SPDX-License-Identifier: Apache-2.0
"""A step that is captured once serves every step: replays take all they need from the device's memory.

A CUDA graph freezes everything but the contents of memory: addresses, shapes, numbers of Python. Here a capture is a
recording of the operators that a part of the step called, and a replay calls them again with the very same
arguments, results written to where the first ones lay. What a step got from Python would be the first step's for ever.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.chained import graphs, tree_parts
from sglang.srt.speculative.chained.graphs import GraphedSteps
from sglang.srt.speculative.chained.length import MOST_STEPS
from sglang.srt.speculative.chained.state import TurnLayout, TurnState
from sglang.srt.speculative.chained.tree_parts import TreeParts
from sglang.srt.speculative.ddtree import verify_input
from stand_in_worker import BLOCK, CANDIDATES, MAX_BATCH, STRIDE, VOCAB
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.parametrize("device", ["cpu"], indirect=True)


class Recording(TorchDispatchMode):
    """Stands for a captured CUDA graph."""

    def __init__(self, part, pool) -> None:
        super().__init__()
        self._calls = []
        with torch.no_grad(), self:
            part()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "a value was read while capturing"
        result = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, first in self._calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(first), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def choice(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The target's token behind each token at each position."""
    return (7 * tokens + 3 * positions + 1) % (VOCAB - 1)


def written(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What a token leaves in a KV row."""
    return (1000 * positions + tokens).float()


class Timer:
    """Stands for the timer of SGLang's metrics of the device's time."""

    def __init__(self, target: Runner) -> None:
        self._target, self.categories = target, []

    @contextmanager
    def wrap(self, metadata):
        before = self._target.replays
        yield
        assert self._target.replays == before + 1
        self.categories.append(metadata["category"])


class Runner:
    """A model runner whose graph reads static buffers only."""

    def __init__(self, forward) -> None:
        self._forward, self.backend, self.read_done, self.replays = forward, self, 0, 0
        self._ids, self._positions, self._slots = (torch.zeros(MAX_BATCH * 64, dtype=torch.int64) for _ in range(3))

    def load_batch(self, batch) -> None:
        self.raw_num_token = len(batch.input_ids)
        self._replay_graph_key = batch.batch_size
        for buffer, values in (
            (self._ids, batch.input_ids),
            (self._positions, batch.positions),
            (self._slots, batch.out_cache_loc),
        ):
            buffer[: self.raw_num_token].copy_(values)

    def replay(self, key, batch):
        assert batch is None and key == self._replay_graph_key
        self.replays += 1
        return self._forward(*(b[: self.raw_num_token] for b in (self._ids, self._positions, self._slots)))

    def _publish_read_done(self, *, in_graph: bool) -> None:
        self.read_done += 1


@pytest.fixture
def steps_of(worker, monkeypatch):
    """Steps of a batch size and their state, whose pieces are captured."""
    for module in (tree_parts, verify_input):
        monkeypatch.setattr(module, "tree_verify_input", tree_input, raising=False)
    monkeypatch.setattr(verify_input, "enable_num_token_non_padded", lambda: False)
    monkeypatch.setattr(graphs, "_captured", Recording)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    worker.model_runner.model_config = SimpleNamespace(context_len=STRIDE, model_is_mrope=False)
    worker.model_runner.spec_algorithm = None
    draft_pool = torch.zeros(MAX_BATCH * STRIDE)

    def draft(ids, positions, slots) -> None:
        size = len(ids) // BLOCK
        token, position = ids.view(size, BLOCK)[:, 0], positions.view(size, BLOCK)[:, 0]
        for depth in range(BLOCK - 1):
            token = choice(token, position + depth)
            # Now the best candidate is right, now another one, now none.
            rank = (token + position) % (CANDIDATES + 1)
            for k in range(CANDIDATES):
                offset = (k - rank) % (VOCAB - 1)
                worker._candidates.ids[:size, depth, k] = (token + offset) % (VOCAB - 1)
                worker._candidates.logprobs[:size, depth, k] = -float(k + 1)

    def verify(ids, positions, slots) -> LogitsProcessorOutput:
        worker.pool[slots, 0] = written(ids, positions)
        logits = torch.nn.functional.one_hot(choice(ids, positions), VOCAB).float()
        outputs.next_token_logits[: len(ids)].copy_(logits)
        outputs.hidden_states[: len(ids), 0].copy_(written(ids, positions))
        return outputs

    outputs = LogitsProcessorOutput(
        next_token_logits=torch.zeros(MAX_BATCH * 64, VOCAB), hidden_states=torch.zeros(MAX_BATCH * 64, 1)
    )

    def append(*, target_hidden, cache_loc_2d, commit_lens, **_) -> None:
        taken = torch.arange(BLOCK) < commit_lens.unsqueeze(1)
        present = draft_pool[cache_loc_2d]
        draft_pool[cache_loc_2d] = torch.where(taken, target_hidden.view(taken.shape), present)

    worker._append_target_hidden_to_draft_kv_by_loc = append
    worker.draft_pool = draft_pool
    draft_runner, target_runner = Runner(draft), Runner(verify)
    worker.target_graph = target_runner
    worker.target = SimpleNamespace(decode_cuda_graph_runner=target_runner, device_timer=None)

    def make(size: int) -> tuple[TurnState, GraphedSteps]:
        state = TurnState.allocate(TurnLayout(BLOCK, MOST_STEPS), MAX_BATCH, "cpu").views(size)
        with torch.no_grad():
            steps = GraphedSteps(
                state,
                TreeParts(worker, worker._chain_check),
                SimpleNamespace(decode_cuda_graph_runner=draft_runner),
                worker.target,
                torch.no_grad,
                list,
            )
        # What captures and warm-ups wrote belongs to nobody.
        worker.pool.zero_()
        draft_pool.zero_()
        return state, steps

    return make


def tree_input(runner, tree, prefix_lens, total_keys, plan):
    num_nodes = tree.tokens.shape[1]
    return SimpleNamespace(
        draft_token=tree.tokens.reshape(-1),
        positions=tree.positions.reshape(-1),
        kv_loc_plan=plan,
        kv_loc_cols=slice(0, num_nodes),
    )


@pytest.mark.parametrize("size", [1, 3])
def test_replayed_steps_follow_the_target(worker, steps_of, size):
    state, steps = steps_of(size)
    first = [5 + 4 * i for i in range(size)]
    rows = torch.tensor([MAX_BATCH - 1 - i for i in range(size)])
    said = [[3 + i] for i in range(size)]  # the prefill's token
    lens = torch.tensor(first)
    depths: set[int] = set()
    with torch.no_grad():
        for turn, count in enumerate((1, 4, 2, 4, 3)):
            state.begin(lens, torch.tensor([tokens[-1] for tokens in said]), rows)
            steps.run(count)
            end, layout = state.end(turn), state.layout
            out = end.rows
            for i in range(size):
                taken = out[i, layout.lens][:count]
                depths |= set((taken - 1).tolist())
                assert int(out[i, layout.total]) == int(taken.sum())
                said[i] += out[i, layout.tokens][: int(taken.sum())].tolist()
                assert int(end.bonus[i]) == said[i][-1]
            lens = end.seq_lens
    assert worker.target_graph.read_done == 5  # once a turn
    assert len(depths) >= 3  # or the steps were all alike

    table = worker.model_runner.req_to_token_pool.req_to_token
    for i in range(size):
        for k in range(len(said[i]) - 1):
            here = torch.tensor(said[i][k]), torch.tensor(first[i] + k)
            assert said[i][k + 1] == int(choice(*here))
            slot = int(table[rows[i], first[i] + k])
            assert worker.pool[slot, 0] == written(*here)
            assert worker.draft_pool[slot] == written(*here)
        assert int(lens[i]) == first[i] + len(said[i]) - 1
    counts = worker._chain_check.counts()
    assert counts["violations"] == 0


def test_the_time_of_the_target_is_taken_as_in_a_step_of_its_own(worker, steps_of):
    """Or SGLang's metrics would see a device that does nothing."""
    state, steps = steps_of(1)
    worker.target.device_timer = timer = Timer(worker.target_graph)
    with torch.no_grad():
        state.begin(torch.tensor([5]), torch.tensor([3]), torch.tensor([0]))
        steps.run(3)
    assert timer.categories == ["target_verify"] * 3
