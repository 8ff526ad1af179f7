# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel of gqa_tree_verify against the reference on the card, and everything a replayed graph may do to it.

One command: `pytest -q sgl-kernel/tests/test_gqa_tree_verify_gpu.py --receipt FILE`. Needs a card and the library built
for it. The reference runs on the same card in float32 with TF32 off; its own error is about 1e-6.
"""

from __future__ import annotations

import pytest
import torch
from gqa_cases import FP8, Errors, GqaInputs, GqaSpec, build, errors_of, fill_requests
from sgl_kernel_ddtree import gqa_tree_verify_workspace

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA card", allow_module_level=True)

DEVICE = torch.device("cuda")
LIMIT = 4e-3  # ||out - ref|| / ||ref||, bf16, and fp8 against the dequantised pool
ROW_LIMIT = 1e-2  # the same for one (row, head): a single wrong row cannot hide in the norm of the call
LSE_LIMIT = 4e-3
NODES = [1, 2, 3, 7, 8, 16, 17, 31, 32, 33, 64, 65, 128, 257]
GROUPS = [1, 2, 4, 5, 7, 8, 12, 16]
DIMS = [64, 128, 256]
PAGE_SIZES = [1, 2, 4, 8, 16, 32, 64]
both_pools = pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])


@pytest.fixture(autouse=True)
def no_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def compare(inputs: GqaInputs, record) -> Errors:
    errors = errors_of(inputs, torch.float32)
    record(str(inputs.spec), relative=errors.relative, worst_row=errors.worst_row, lse=errors.lse)
    assert errors.relative <= LIMIT, f"{inputs.spec}: {errors}"
    assert errors.worst_row <= ROW_LIMIT, f"{inputs.spec}: {errors}"
    assert errors.lse <= LSE_LIMIT, f"{inputs.spec}: {errors}"
    return errors


def check(spec: GqaSpec, record) -> GqaInputs:
    if spec.fp8:
        spec.k_scale, spec.v_scale = 0.7, 1.9
    inputs = build(spec, DEVICE)
    inputs.run()
    compare(inputs, record)
    return inputs


@both_pools
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("nodes", NODES)
def test_heads_and_nodes(nodes: int, dim: int, fp8: bool, record) -> None:
    first = NODES.index(nodes)
    for index in range(first % 2, len(GROUPS), 2):  # every second group, the others with the next number of nodes
        group, seed = GROUPS[index], index * len(NODES) + first
        lens = [(431 + 37 * seed) % 700, 0, -1, 1 + seed % 130]
        pad = 16 * (seed % 2)
        spec = GqaSpec(
            lens, nodes, group, 1 + seed % 3, dim, PAGE_SIZES[seed % 7], seed=seed, fp8=fp8, q_pad=pad // 2, kv_pad=pad
        )
        check(spec, record)


@pytest.mark.parametrize("first", range(0, 384, 64))
@pytest.mark.parametrize(("nodes", "group"), [(1, 8), (8, 8), (16, 8)])
def test_every_length(first: int, nodes: int, group: int, record) -> None:
    check(GqaSpec(list(range(first, first + 64)), nodes, group, 2, seed=first), record)


@both_pools
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_page_sizes(page_size: int, fp8: bool, record) -> None:
    lens = [page_size - 1, page_size, 5 * page_size + 1, 3000 + page_size, 0]
    check(GqaSpec(lens, 16, 4, 4, 128, page_size, seed=page_size, fp8=fp8), record)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 16, 31, 48, 64])
def test_ragged_batches(batch: int, record) -> None:
    lens = [(977 * r * r + 13 * r) % 2500 for r in range(batch)]
    if batch > 2:
        lens[1], lens[2] = 0, -1
    check(GqaSpec(lens, 8, 8, 2, page_size=PAGE_SIZES[batch % 7], seed=batch), record)


def test_one_long_request_among_short_ones(record) -> None:
    check(GqaSpec([5, 40000, -1, 0, 17, 1], 16, 4, 8, page_size=16, seed=3), record)


@both_pools
@pytest.mark.parametrize(
    ("length", "nodes", "group", "kv_heads", "dim"),
    [(5700, 8, 8, 8, 128), (23000, 64, 4, 8, 128), (91000, 8, 8, 1, 128), (91000, 16, 8, 1, 256), (131072, 1, 16, 1, 64)],
)
def test_long_contexts(length: int, nodes: int, group: int, kv_heads: int, dim: int, fp8: bool, record) -> None:
    check(GqaSpec([length], nodes, group, kv_heads, dim, 64 if length > 50000 else 1, seed=length, fp8=fp8), record)


@both_pools
@pytest.mark.parametrize("tree", ["random", "chain", "star", "forest", "bushy", "block"])
@pytest.mark.parametrize("window", [-1, 0, 5, 64, 1000])
def test_trees_and_windows(tree: str, window: int, fp8: bool, record) -> None:
    check(GqaSpec([100, 0, 3, 2000], 65, 4, 2, page_size=4, tree=tree, window=window, seed=1, fp8=fp8), record)


def test_window_reads_nothing_before_it(record) -> None:
    # Rows and page-table entries before the root's reach are poisoned by `build`: what a server has evicted.
    check(GqaSpec([30000, 4000, 100], 8, 8, 2, page_size=16, window=512, seed=4), record)


@both_pools
@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
@pytest.mark.parametrize("dim", DIMS)
def test_logit_cap(cap: float, dim: int, fp8: bool, record) -> None:
    check(GqaSpec([900, 31], 12, 4, 2, dim, logit_cap=cap, q_scale=8.0, fp8=fp8, seed=2), record)


@both_pools
@pytest.mark.parametrize("q_scale", [0.01, 8.0, 60.0])
def test_flat_and_peaked_scores(q_scale: float, fp8: bool, record) -> None:
    check(GqaSpec([900, 31], 12, 8, q_scale=q_scale, seed=5, fp8=fp8), record)


@pytest.mark.parametrize("nodes", [2, 8, 16])
def test_growing_scores(nodes: int, record) -> None:
    # The running maximum rises at every tile: rescaling of the accumulator is exercised, not skipped.
    inputs = build(GqaSpec([2000], nodes, 8, 1, tree="chain", seed=9), DEVICE)
    rows = inputs.page_table[0, : 2000 + nodes].long()
    ramp = torch.linspace(0.1, 6.0, len(rows), device=DEVICE)[:, None, None]
    inputs.k_pool[rows] = (torch.ones(1, 1, 128, device=DEVICE) * ramp).to(torch.bfloat16) + inputs.k_pool[rows] * 0.2
    inputs.q.abs_()
    inputs.run()
    compare(inputs, record)


def test_no_lse(record) -> None:
    check(GqaSpec([50, 700], 8, 8, with_lse=False), record)


def test_row_that_sees_nothing_is_zero(record) -> None:
    inputs = build(GqaSpec([0, 7], 4, window=0), DEVICE)
    inputs.mask_words[:, 2] = 0  # not even itself; the window hides the prefix
    inputs.run()
    compare(inputs, record)
    assert bool((inputs.out[[2, 6]] == 0).all()) and not bool((inputs.out[0] == 0).all())


def test_inputs_are_not_written() -> None:
    inputs = build(GqaSpec([300, 0, -1], 17, 8, page_size=4), DEVICE)
    names = ("q", "k_pool", "v_pool", "page_table", "prefix_lens", "mask_words")
    # As integers: the poisoned inputs hold NaN, which differs from itself.
    bits = {
        name: t.view(torch.int32 if t.element_size() == 4 else torch.int16)
        for name, t in ((n, getattr(inputs, n)) for n in names)
    }
    before = {name: value.clone() for name, value in bits.items()}
    inputs.run()
    for name, value in before.items():
        assert torch.equal(value, bits[name]), name


@both_pools
def test_same_inputs_same_bits(fp8: bool) -> None:
    for spec in (
        GqaSpec([23000], 1, 8, 8),
        GqaSpec([23000], 8, 8, 8),
        GqaSpec([23000], 64, 8, 1),
        GqaSpec([1500, 0, 40, 9000, -1, 333], 16, 4, 4, 256, 16),
        GqaSpec([700] * 64, 8, 8, 2, 64),
        GqaSpec([200, 5000], 257, 5, 2),
    ):
        spec.fp8 = fp8
        inputs = build(spec, DEVICE)
        inputs.run()
        first, first_lse = inputs.out.clone(), inputs.lse.clone()
        for _ in range(4):
            inputs.out.fill_(7.0)
            inputs.run()
            assert torch.equal(inputs.out, first) and torch.equal(inputs.lse, first_lse), str(spec)


def test_one_workspace_serves_calls_of_every_size(record) -> None:
    shared = gqa_tree_verify_workspace(DEVICE, max_num_nodes=64, num_heads=64, num_kv_heads=8, head_dim=128)
    for turn, (lens, nodes, group, fp8) in enumerate(
        [
            ([9000], 64, 8, False),
            ([40] * 16, 1, 8, False),
            ([5000, 0, 300], 17, 4, True),
            ([9000], 64, 8, False),
            ([1] * 16, 8, 8, False),
        ]
    ):
        inputs = build(GqaSpec(lens, nodes, group, 8, seed=turn, fp8=fp8), DEVICE, workspace=shared)
        inputs.run()
        compare(inputs, record)


def test_workspace_that_is_too_small_is_refused() -> None:
    inputs = build(GqaSpec([9000, 3], 16, 8), DEVICE)
    inputs.workspace = inputs.workspace[:16]
    with pytest.raises((ValueError, RuntimeError), match="workspace"):
        inputs.run()
    inputs.workspace = None
    with pytest.raises((ValueError, RuntimeError), match="workspace"):
        inputs.run()


@both_pools
@pytest.mark.parametrize(
    ("nodes", "group", "dim", "page_size", "window", "tree"),
    [
        (1, 8, 128, 1, -1, "mixed"),
        (8, 8, 128, 1, -1, "mixed"),
        (16, 4, 256, 16, 700, "mixed"),
        (33, 8, 64, 64, -1, "mixed"),
        (16, 8, 128, 16, -1, "block"),
    ],
)
def test_one_captured_graph_serves_every_batch(
    nodes: int, group: int, dim: int, page_size: int, window: int, tree: str, fp8: bool, record
) -> None:
    capture_lens = [3] * 7 + [6000]
    spec = GqaSpec(capture_lens, nodes, group, 2, dim, page_size, tree, window, fp8=fp8, extra_pages=24000 // page_size)
    inputs = build(spec, DEVICE)
    wide = -(-25000 // page_size)
    inputs.page_table = torch.zeros(8, wide, dtype=torch.int32, device=DEVICE)
    fill_requests(inputs, capture_lens, tree, 0)
    inputs.run()  # what a server does before it captures: lazy work happens here
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inputs.run()
    for seed, lens in enumerate(
        [
            [3] * 7 + [6000],
            [20000, -1, -1, -1, -1, -1, -1, -1],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [-1] * 8,
            [1, 2, 3, 4, 5, 63, 64, 65],
            [2500, -1, 2400, -1, 0, 2600, 31, 2222],
            [-1, -1, -1, -1, -1, -1, -1, 19000],
        ]
    ):
        fill_requests(inputs, lens, tree, seed + 1)
        gen = torch.Generator(DEVICE).manual_seed(seed)
        inputs.q.copy_(torch.randn(inputs.q.shape, generator=gen, device=DEVICE))
        inputs.out.fill_(7.0)
        inputs.lse.fill_(7.0)
        graph.replay()
        torch.cuda.synchronize()
        replayed = inputs.out.clone()
        compare(inputs, record)
        inputs.run()
        assert torch.equal(inputs.out, replayed), f"replay and direct call differ for {lens}"


@both_pools
def test_decode_and_verify_agree_on_the_root(fp8: bool) -> None:
    # Greedy decoding and verify must not differ by more than rounding: the root alone is what decode computes.
    tree = build(GqaSpec([3000, 700], 8, 8, 2, tree="chain", seed=6, fp8=fp8), DEVICE)
    tree.run()
    single = build(GqaSpec([3000, 700], 1, 8, 2, tree="chain", seed=6, fp8=fp8), DEVICE)
    single.k_pool, single.v_pool, single.page_table = tree.k_pool, tree.v_pool, tree.page_table
    single.q.copy_(tree.q[::8])
    single.run()
    difference = (single.out.float() - tree.out[::8].float()).norm() / single.out.float().norm()
    assert float(difference) <= LIMIT


def test_pool_beyond_32_bit_offsets(record) -> None:
    # 2.1 million slots of 4 KiB: byte offsets pass 2^32, element offsets 2^31. Only the rows in use are written.
    rows = 2_100_000
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.fail("needs 24 GiB of free device memory")
    inputs = build(GqaSpec([900, 300], 8, 8, 8, page_size=16, seed=2), DEVICE)
    old_pages = inputs.page_table.clone()
    shift = (rows - inputs.k_pool.shape[0]) // 16
    for name in ("k_pool", "v_pool"):
        small = getattr(inputs, name)
        big = torch.empty(rows, *small.shape[1:], dtype=torch.bfloat16, device=DEVICE)
        big[shift * 16 : shift * 16 + small.shape[0]] = small
        setattr(inputs, name, big)
    inputs.page_table.copy_(torch.where(old_pages < 2**29, old_pages + shift, old_pages))
    assert int(inputs.page_table[0, 0]) * 16 * 8 * 128 > 2**31
    inputs.run()
    compare(inputs, record)


def test_runs_on_the_current_stream() -> None:
    inputs = build(GqaSpec([3000], 8, 8), DEVICE)
    inputs.run()
    torch.cuda.synchronize()
    want = inputs.out.clone()
    side = torch.cuda.Stream()
    inputs.out.fill_(7.0)
    q = inputs.q.clone()
    inputs.q.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # a launch on another stream would read the zeros
        inputs.q.copy_(q)
        inputs.run()
    side.synchronize()
    assert torch.equal(inputs.out, want)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: {"k_pool": i.k_pool.cpu()},
        lambda i: {"q": i.q.float()},
        lambda i: {"prefix_lens": i.prefix_lens.long()},
        lambda i: {"v_pool": i.v_pool.to(FP8)},
    ],
    ids=["pool-on-cpu", "q-float32", "lens-int64", "pools-differ"],
)
def test_bad_arguments_are_refused(change) -> None:
    inputs = build(GqaSpec([4, 5], 3), DEVICE)
    for name, value in change(inputs).items():
        setattr(inputs, name, value)
    with pytest.raises(ValueError):
        inputs.run()
