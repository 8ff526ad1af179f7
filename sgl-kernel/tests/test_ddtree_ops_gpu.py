# SPDX-License-Identifier: Apache-2.0
"""tree_build, tree_accept and kv_commit on the card against a plain heap, plain links and torch indexing.

One command: `pytest -q sgl-kernel/tests/test_ddtree_ops_gpu.py --receipt FILE`. The results are integers and bytes, so they
must be equal, not close; NaN and -inf among the inputs, canaries behind every output.
"""

from __future__ import annotations

import heapq
import math

import pytest
import torch
from sgl_kernel_ddtree import kv_commit, tree_accept, tree_build

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA card", allow_module_level=True)

DEVICE = torch.device("cuda")
BUDGETS = [1, 2, 30, 31, 32, 33, 63, 64, 95, 96, 128, 159, 160, 255, 256]
SHAPES = [(7, 8), (15, 4), (1, 8), (63, 64), (15, 1)]
CANARY = -77
TREE_FIELDS = (
    ("tokens", torch.int64),
    ("parents", torch.int32),
    ("depths", torch.int32),
    ("positions", torch.int64),
    ("mask_words", torch.int32),
    ("first_child", torch.int32),
    ("next_sibling", torch.int32),
    ("num_nodes", torch.int32),
)


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor full of canaries, and the canaries that lie behind it in the same allocation."""
    count = math.prod(shape)
    memory = torch.full((count + 64,), CANARY, dtype=dtype, device=DEVICE)
    return memory[:count].view(shape), memory[count:]


def tree_outputs(batch: int, nodes: int) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    words = -(-nodes // 32)
    shapes = {"mask_words": (batch, nodes, words), "num_nodes": (batch,)}
    made = {name: guarded(shapes.get(name, (batch, nodes)), dtype) for name, dtype in TREE_FIELDS}
    return {name: pair[0] for name, pair in made.items()}, [pair[1] for pair in made.values()]


def candidates(batch: int, depth: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Peaked, flat, tied, cut and impossible distributions, in turn."""
    generator = torch.Generator().manual_seed(seed)
    vocab = max(128, 2 * width)
    logits = torch.randn(batch, depth, vocab, generator=generator) * 3
    logits[1::6] *= 0.05
    values, ids = logits.log_softmax(-1).topk(width, dim=-1)
    values[2::6] = (values[2::6] * 2).round() / 2
    values[3::6, :, (width + 1) // 2 :] = -math.inf
    values[4::6, depth // 2 :] = math.nan
    values[5::6, 0] = -math.inf
    return ids, values


def grow_on_card(ids, logprobs, roots, prefix, nodes: int, *, spine: bool) -> dict[str, torch.Tensor]:
    out, guards = tree_outputs(ids.shape[0], nodes)
    tree_build(ids.to(DEVICE), logprobs.to(DEVICE), roots.to(DEVICE), prefix.to(DEVICE), *out.values(), spine)
    torch.cuda.synchronize()
    for guard in guards:
        assert bool((guard == CANARY).all()), "wrote past an output"
    return {name: tensor.cpu() for name, tensor in out.items()}


def heap_tree(logprobs: torch.Tensor, budget: int, *, spine: bool) -> list[tuple[int, int, int]]:
    """(parent, depth, rank) of each node, root first: pop the best, push its next sibling and its first child."""
    depth_limit, width = logprobs.shape
    table = [[min(v, 0.0) if not math.isnan(v) else -math.inf for v in row] for row in logprobs.tolist()]
    nodes = [(-1, 0, -1)]
    scores = [torch.zeros((), dtype=torch.float32)]
    heap: list[tuple[float, int, int]] = []

    def push(parent: int, rank: int) -> None:
        depth = nodes[parent][1]
        if depth < depth_limit and rank < width and table[depth][rank] != -math.inf:
            score = scores[parent] + torch.tensor(table[depth][rank], dtype=torch.float32)
            heapq.heappush(heap, (-float(score), parent, rank))

    push(0, 0)
    chain = 0
    while chain < depth_limit and table[chain][0] != -math.inf:
        chain += 1
    missing = chain if spine and chain <= budget else 0
    tip = 0
    while heap and len(nodes) <= budget:
        if missing and missing == budget + 1 - len(nodes):
            entry = next(item for item in heap if item[1:] == (tip, 0))
            heap.remove(entry)
            heapq.heapify(heap)
        else:
            entry = heapq.heappop(heap)
        negative, parent, rank = entry
        nodes.append((parent, nodes[parent][1] + 1, rank))
        scores.append(torch.tensor(-negative, dtype=torch.float32))
        if missing and parent == tip and rank == 0:
            tip, missing = len(nodes) - 1, missing - 1
        push(parent, rank + 1)
        push(len(nodes) - 1, 0)
    return nodes


def expected_tree(ids, logprobs, roots, prefix, nodes: int, *, spine: bool) -> dict[str, torch.Tensor]:
    batch = ids.shape[0]
    words = -(-nodes // 32)
    out = {name: torch.full((batch, nodes), -1, dtype=dtype) for name, dtype in TREE_FIELDS}
    out["tokens"].zero_()
    out["depths"].zero_()
    out["num_nodes"] = torch.zeros(batch, dtype=torch.int32)
    sees = torch.zeros(batch, nodes, words * 32, dtype=torch.bool)
    for b in range(batch):
        found = heap_tree(logprobs[b], nodes - 1, spine=spine)
        out["num_nodes"][b] = len(found)
        out["tokens"][b, 0] = roots[b]
        last: dict[int, int] = {}
        for i in range(nodes):
            sees[b, i, 0] = sees[b, i, i] = True
        for i, (parent, depth, rank) in enumerate(found[1:], 1):
            out["tokens"][b, i] = ids[b, depth - 1, rank]
            out["parents"][b, i] = parent
            out["depths"][b, i] = depth
            if parent in last:
                out["next_sibling"][b, last[parent]] = i
            else:
                out["first_child"][b, parent] = i
            last[parent] = i
            sees[b, i] |= sees[b, parent]
    out["positions"] = prefix[:, None] + out["depths"].long()
    bits = sees.view(batch, nodes, words, 32).long() << torch.arange(32)
    out["mask_words"] = bits.sum(-1).to(torch.uint32).view(torch.int32)
    return out


@pytest.mark.parametrize("spine", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_trees_equal_those_of_a_heap(budget: int, shape: tuple[int, int], spine: bool, record) -> None:
    batch = 7
    ids, logprobs = candidates(batch, *shape, seed=budget)
    roots, prefix = torch.arange(batch) + 5, torch.arange(batch) * 1000
    found = grow_on_card(ids, logprobs, roots, prefix, budget + 1, spine=spine)
    for name, tensor in expected_tree(ids, logprobs, roots, prefix, budget + 1, spine=spine).items():
        assert torch.equal(found[name], tensor), name
    record(f"budget={budget} shape={shape} spine={spine}", nodes=int(found["num_nodes"].sum()))


def test_a_batch_of_256_is_the_same_twice() -> None:
    ids, logprobs = candidates(256, 15, 8, seed=0)
    roots = prefix = torch.arange(256)
    first = grow_on_card(ids, logprobs, roots, prefix, 65, spine=True)
    second = grow_on_card(ids, logprobs, roots, prefix, 65, spine=True)
    for name in first:
        assert torch.equal(first[name], second[name]), name


def walk(tree: dict[str, torch.Tensor], b: int, target: torch.Tensor, columns: int) -> list[int]:
    path = [0]
    while len(path) < columns:
        child = int(tree["first_child"][b, path[-1]])
        while child >= 0 and int(tree["tokens"][b, child]) != int(target[b, path[-1]]):
            child = int(tree["next_sibling"][b, child])
        if child < 0:
            break
        path.append(child)
    return path


def agreeing_target(tree: dict[str, torch.Tensor], rate: float, seed: int) -> torch.Tensor:
    """Choices that name a child of a node with probability ``rate``."""
    generator = torch.Generator().manual_seed(seed)
    batch, nodes = tree["tokens"].shape
    target = torch.full((batch, nodes), -5, dtype=torch.int64)
    for b in range(batch):
        for child in range(1, int(tree["num_nodes"][b])):
            if float(torch.rand((), generator=generator)) < rate:
                target[b, int(tree["parents"][b, child])] = tree["tokens"][b, child]
    return target


def accept_outputs(batch: int, columns: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    shapes = (
        ((batch, columns), torch.int32),
        ((batch,), torch.int32),
        ((batch,), torch.int64),
        ((batch, columns), torch.int64),
        ((batch,), torch.int64),
    )
    made = [guarded(shape, dtype) for shape, dtype in shapes]
    return [pair[0] for pair in made], [pair[1] for pair in made]


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_walks_equal_those_over_links(budget: int, shape: tuple[int, int], rate: float) -> None:
    batch, columns = 13, shape[0] + 1
    ids, logprobs = candidates(batch, *shape, seed=budget)
    roots, prefix = torch.arange(batch), torch.arange(batch) * 11
    tree = grow_on_card(ids, logprobs, roots, prefix, budget + 1, spine=True)
    target = agreeing_target(tree, rate, seed=budget)
    outputs, guards = accept_outputs(batch, columns)
    tree_accept(
        tree["tokens"].to(DEVICE), tree["parents"].to(DEVICE), target.to(DEVICE), prefix.to(DEVICE), *outputs
    )
    torch.cuda.synchronize()
    assert all(bool((guard == CANARY).all()) for guard in guards), "wrote past an output"
    nodes, lens, bonus, tokens, seq_lens = (tensor.cpu() for tensor in outputs)
    for b in range(batch):
        path = walk(tree, b, target, columns)
        pad = columns - len(path)
        assert nodes[b].tolist() == path + [-1] * pad
        assert tokens[b].tolist() == [int(target[b, i]) for i in path] + [0] * pad
        assert int(bonus[b]) == int(target[b, path[-1]])
        assert int(lens[b]) == len(path)
        assert int(seq_lens[b]) == 11 * b + len(path)


def paths(batch: int, columns: int, nodes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    path = torch.full((batch, columns), -1, dtype=torch.int32)
    lens = torch.randint(1, min(columns, nodes) + 1, (batch,), generator=generator, dtype=torch.int32)
    lens[0], lens[-1] = min(columns, nodes), 1
    for b in range(batch):
        rest = torch.randperm(nodes - 1, generator=generator)[: int(lens[b]) - 1].sort().values + 1
        path[b, : int(lens[b])] = torch.cat([torch.zeros(1, dtype=torch.int64), rest]).int()
    if nodes > columns:
        path[0] = torch.arange(columns, dtype=torch.int32)
        path[0, 1:] += 1  # each row onto its predecessor: every source but one is a target
    return path, lens


@pytest.mark.parametrize("row_bytes", [1152, 16, 656, 2048, 1151, 6, 1])
@pytest.mark.parametrize("nodes,columns", [(2, 2), (9, 8), (33, 8), (65, 16), (257, 64)])
def test_rows_move_as_by_index(nodes: int, columns: int, row_bytes: int) -> None:
    batch, layers = 5, 3
    num_slots = batch * (nodes + 3) + 17
    generator = torch.Generator().manual_seed(nodes)
    buffers = [
        torch.randint(0, 256, (num_slots, row_bytes), generator=generator, dtype=torch.uint8).to(DEVICE)
        for _ in range(layers)
    ]
    slots = torch.randperm(num_slots, generator=generator)[: batch * (nodes + 3)].view(batch, nodes + 3)
    path, lens = paths(batch, columns, nodes, seed=nodes)
    expected = [buffer.clone() for buffer in buffers]
    for b in range(batch):
        length = int(lens[b])
        for buffer, before in zip(expected, buffers):
            buffer[slots[b, 1:length]] = before[slots[b, path[b, 1:length].long()]]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], device=DEVICE)
    sizes = torch.tensor([row_bytes] * layers, device=DEVICE)
    # A view with a row stride of its own, as the window of a wider draft block is.
    kv_commit(addresses, sizes, slots.to(DEVICE)[:, :nodes], path.to(DEVICE), lens.to(DEVICE))
    torch.cuda.synchronize()
    for buffer, wanted in zip(buffers, expected):
        assert torch.equal(buffer, wanted)


def test_one_captured_graph_serves_other_trees() -> None:
    """Build, accept and commit in one graph; replayed with other candidates, choices and lengths."""
    batch, nodes, depth, width, layers, row = 6, 33, 7, 8, 4, 1152
    ids, logprobs = (tensor.to(DEVICE) for tensor in candidates(batch, depth, width, seed=1))
    roots, prefix = torch.arange(batch, device=DEVICE), torch.arange(batch, device=DEVICE)
    tree, _ = tree_outputs(batch, nodes)
    target = torch.zeros(batch, nodes, dtype=torch.int64, device=DEVICE)
    accepted, _ = accept_outputs(batch, depth + 1)
    slots = torch.randperm(batch * nodes, device=DEVICE).view(batch, nodes)
    buffers = [torch.empty(batch * nodes, row, dtype=torch.uint8, device=DEVICE) for _ in range(layers)]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], device=DEVICE)
    sizes = torch.tensor([row] * layers, device=DEVICE)

    def step() -> None:
        tree_build(ids, logprobs, roots, prefix, *tree.values(), True)
        tree_accept(tree["tokens"], tree["parents"], target, prefix, *accepted)
        kv_commit(addresses, sizes, slots, accepted[0], accepted[1])

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    lengths = set()
    for seed in range(5):
        host_ids, host_logprobs = candidates(batch, depth, width, seed=10 + seed)
        ids.copy_(host_ids)
        logprobs.copy_(host_logprobs)
        prefix.add_(13)
        wanted = expected_tree(host_ids, host_logprobs, roots.cpu(), prefix.cpu(), nodes, spine=True)
        target.copy_(agreeing_target(wanted, 0.7, seed))
        before = []
        for buffer in buffers:
            buffer.random_(0, 256)
            before.append(buffer.clone())
        graph.replay()
        torch.cuda.synchronize()
        for name, tensor in wanted.items():
            assert torch.equal(tree[name].cpu(), tensor), name
        for b in range(batch):
            path = walk(wanted, b, target.cpu(), depth + 1)
            lengths.add(len(path))
            assert accepted[0][b, : len(path)].tolist() == path
            for buffer, old in zip(buffers, before):
                old[slots[b, : len(path)]] = old[slots[b, torch.tensor(path, device=DEVICE)]]
        for buffer, wanted_rows in zip(buffers, before):
            assert torch.equal(buffer, wanted_rows)
    assert len(lengths) > 2


@pytest.mark.parametrize("breakage", ["dtype", "device", "shape", "contiguous"])
def test_bad_arguments_are_refused(breakage: str) -> None:
    ids, logprobs = (tensor.to(DEVICE) for tensor in candidates(2, 3, 4, seed=0))
    roots = prefix = torch.arange(2, device=DEVICE)
    tree, _ = tree_outputs(2, 9)
    if breakage == "dtype":
        logprobs = logprobs.double()
    elif breakage == "device":
        logprobs = logprobs.cpu()
    elif breakage == "shape":
        logprobs = logprobs[:, :2].contiguous()
    else:
        logprobs = logprobs.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="candidate_logprobs"):
        tree_build(ids, logprobs, roots, prefix, *tree.values(), True)
