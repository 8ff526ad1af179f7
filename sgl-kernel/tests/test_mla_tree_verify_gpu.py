# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel against the reference on the card, and everything a replayed graph may do to it.

One command: `pytest -q sgl-kernel/tests/test_mla_tree_verify_gpu.py --receipt FILE`. Needs a card and the library built for
it. The reference runs on the same card in float32 with TF32 off; its own error is about 1e-6.
"""

from __future__ import annotations

import pytest
import torch
from cases import SM_SCALE, Errors, Inputs, Spec, build, errors_of, fill_requests
from sgl_kernel_ddtree.reference.mla_tree_verify import slots_of, unpack_mask
from triton_verify import MODULE, triton_call, triton_kernel

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA card", allow_module_level=True)

DEVICE = torch.device("cuda")
LIMIT = 4e-3  # ||out - ref|| / ||ref||, bf16
ROW_LIMIT = 1e-2  # the same for one (row, head): a single wrong row cannot hide in the norm of the call
LSE_LIMIT = 4e-3
HEADS = [1, 2, 4, 8, 16, 20, 32, 64, 128]
NODES = [1, 2, 3, 7, 8, 16, 17, 31, 32, 33, 64, 65, 128, 257]
PAGE_SIZES = [1, 2, 4, 8, 16, 32, 64]


@pytest.fixture(autouse=True)
def no_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def compare(inputs: Inputs, record) -> Errors:
    errors = errors_of(inputs, torch.float32)
    record(str(inputs.spec), relative=errors.relative, worst_row=errors.worst_row, lse=errors.lse)
    assert errors.relative <= LIMIT, f"{inputs.spec}: {errors}"
    assert errors.worst_row <= ROW_LIMIT, f"{inputs.spec}: {errors}"
    assert errors.lse <= LSE_LIMIT, f"{inputs.spec}: {errors}"
    return errors


def check(spec: Spec, record) -> Inputs:
    inputs = build(spec, DEVICE)
    inputs.run()
    compare(inputs, record)
    return inputs


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("heads", HEADS)
def test_heads_and_nodes(heads: int, nodes: int, record) -> None:
    index = HEADS.index(heads) * len(NODES) + NODES.index(nodes)
    lens = [(431 + 37 * index) % 700, 0, -1, 1 + index % 130]
    layout = ("joint", "split", "transposed", "strided")[index % 4]
    check(Spec(lens, nodes, heads, PAGE_SIZES[index % 7], layout=layout, seed=index), record)


@pytest.mark.parametrize("first", range(0, 384, 64))
@pytest.mark.parametrize("nodes", [1, 8])
def test_every_length(first: int, nodes: int, record) -> None:
    check(Spec(list(range(first, first + 64)), nodes, 8, 1, seed=first), record)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_page_sizes(page_size: int, record) -> None:
    lens = [page_size - 1, page_size, 5 * page_size + 1, 3000 + page_size, 0]
    check(Spec(lens, 16, 8, page_size, seed=page_size), record)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 16, 31, 48, 64])
def test_ragged_batches(batch: int, record) -> None:
    lens = [(977 * r * r + 13 * r) % 2500 for r in range(batch)]
    if batch > 2:
        lens[1], lens[2] = 0, -1
    check(Spec(lens, 8, 8, PAGE_SIZES[batch % 7], seed=batch), record)


def test_one_long_request_among_short_ones(record) -> None:
    check(Spec([5, 40000, -1, 0, 17, 1], 16, 8, 16, seed=3), record)


@pytest.mark.parametrize(
    ("length", "nodes", "heads"), [(5700, 8, 8), (23000, 64, 8), (91000, 8, 8), (91000, 64, 8), (131072, 16, 16)]
)
def test_long_contexts(length: int, nodes: int, heads: int, record) -> None:
    check(Spec([length], nodes, heads, 64 if length > 50000 else 1, seed=length), record)


@pytest.mark.parametrize("tree", ["random", "chain", "star", "forest", "bushy"])
def test_trees(tree: str, record) -> None:
    check(Spec([100, 0, 3], 65, 8, 4, tree=tree, seed=1), record)


@pytest.mark.parametrize("layout", ["joint", "split", "transposed", "strided"])
@pytest.mark.parametrize("kv_pad", [0, 8, 64])
def test_layouts(layout: str, kv_pad: int, record) -> None:
    check(Spec([77, 300], 9, 20, 8, layout=layout, kv_pad=kv_pad, kv_3d=kv_pad == 8, seed=kv_pad), record)


@pytest.mark.parametrize("q_scale", [0.01, 8.0, 60.0])
def test_flat_and_peaked_scores(q_scale: float, record) -> None:
    check(Spec([900, 31], 12, 8, 1, q_scale=q_scale, seed=5), record)


def test_growing_scores(record) -> None:
    # The running maximum rises at every tile: rescaling of the accumulator is exercised, not skipped.
    inputs = build(Spec([2000], 8, 8, 1, tree="chain", seed=9), DEVICE)
    rows = inputs.page_table[0, : 2000 + 8].long()
    ramp = torch.linspace(0.1, 6.0, len(rows), device=DEVICE)[:, None]
    inputs.kv_pool[rows] = (inputs.q_nope.new_ones(1, 576) * ramp).to(torch.bfloat16) + inputs.kv_pool[rows] * 0.2
    inputs.q_nope.abs_()
    inputs.q_rope.abs_()
    inputs.run()
    compare(inputs, record)


def test_no_lse(record) -> None:
    check(Spec([50, 700], 8, 8, with_lse=False), record)


def test_row_that_sees_nothing_is_zero(record) -> None:
    inputs = build(Spec([0, 7], 4, 8), DEVICE)
    inputs.mask_words[:, 2] = 0  # not even itself
    inputs.run()
    compare(inputs, record)
    assert bool((inputs.out[2] == 0).all()) and not bool((inputs.out[4 + 2] == 0).all())


def test_inputs_are_not_written() -> None:
    inputs = build(Spec([300, 0, -1], 17, 8, 4), DEVICE)
    names = ("q_nope", "q_rope", "kv_pool", "page_table", "prefix_lens", "mask_words")
    # As integers: the poisoned inputs hold NaN, which differs from itself.
    bits = {
        name: t.view(torch.int32 if t.element_size() == 4 else torch.int16)
        for name, t in ((n, getattr(inputs, n)) for n in names)
    }
    before = {name: value.clone() for name, value in bits.items()}
    inputs.run()
    for name, value in before.items():
        assert torch.equal(value, bits[name]), name


def test_same_inputs_same_bits() -> None:
    for spec in (
        Spec([23000], 8, 8),
        Spec([23000], 64, 8),
        Spec([1500, 0, 40, 9000, -1, 333], 16, 16, 16),
        Spec([700] * 64, 8, 8),
        Spec([200, 5000], 257, 20, 1),
    ):
        inputs = build(spec, DEVICE)
        inputs.run()
        first, first_lse = inputs.out.clone(), inputs.lse.clone()
        for _ in range(4):
            inputs.out.fill_(7.0)
            inputs.run()
            assert torch.equal(inputs.out, first) and torch.equal(inputs.lse, first_lse), str(spec)


def test_one_workspace_serves_calls_of_every_size(record) -> None:
    from sgl_kernel_ddtree import mla_tree_verify_workspace

    shared = mla_tree_verify_workspace(DEVICE, max_batch=16, max_num_nodes=64, num_heads=16)
    for turn, (lens, nodes, heads) in enumerate(
        [([9000], 64, 16), ([40] * 16, 1, 16), ([5000, 0, 300], 17, 8), ([9000], 64, 16), ([1] * 16, 64, 16)]
    ):
        inputs = build(Spec(lens, nodes, heads, seed=turn), DEVICE, workspace=shared)
        inputs.run()
        compare(inputs, record)


def test_workspace_that_is_too_small_is_refused() -> None:
    inputs = build(Spec([9000, 3], 16, 8), DEVICE)
    inputs.workspace = inputs.workspace[:16]
    with pytest.raises((ValueError, RuntimeError), match="workspace"):
        inputs.run()
    inputs.workspace = None
    with pytest.raises((ValueError, RuntimeError), match="workspace"):
        inputs.run()


@pytest.mark.parametrize(("nodes", "heads", "page_size"), [(8, 8, 1), (16, 8, 16), (64, 16, 64), (1, 8, 1)])
def test_one_captured_graph_serves_every_batch(nodes: int, heads: int, page_size: int, record) -> None:
    capture_lens = [3] * 7 + [6000]
    inputs = build(Spec(capture_lens, nodes, heads, page_size, extra_pages=24000 // page_size), DEVICE)
    wide = -(-25000 // page_size)
    inputs.page_table = torch.zeros(8, wide, dtype=torch.int32, device=DEVICE)
    fill_requests(inputs, capture_lens, "mixed", 0)
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
        fill_requests(inputs, lens, "mixed", seed + 1)
        gen = torch.Generator(DEVICE).manual_seed(seed)
        inputs.q_nope.copy_(torch.randn(inputs.q_nope.shape, generator=gen, device=DEVICE))
        inputs.out.fill_(7.0)
        inputs.lse.fill_(7.0)
        graph.replay()
        torch.cuda.synchronize()
        replayed = inputs.out.clone()
        compare(inputs, record)
        inputs.run()
        assert torch.equal(inputs.out, replayed), f"replay and direct call differ for {lens}"


def test_pool_beyond_32_bit_offsets(record) -> None:
    # 4.2 million rows: byte offsets pass 2^32, element offsets 2^31. Only the rows in use are written.
    rows = 4_200_000
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.fail("needs 12 GiB of free device memory")
    inputs = build(Spec([900, 300], 16, 8, 16, seed=2), DEVICE)
    old_pages = inputs.page_table.clone()
    big = torch.empty(rows, 576, dtype=torch.bfloat16, device=DEVICE)
    shift = (rows - inputs.kv_pool.shape[0]) // 16
    big[shift * 16 : shift * 16 + inputs.kv_pool.shape[0]] = inputs.kv_pool
    inputs.kv_pool = big
    inputs.page_table.copy_(torch.where(old_pages < 2**29, old_pages + shift, old_pages))
    assert int(inputs.page_table[0, 0]) * 16 * 576 > 2**31
    inputs.run()
    compare(inputs, record)


def test_runs_on_the_current_stream() -> None:
    inputs = build(Spec([3000], 8, 8), DEVICE)
    inputs.run()
    torch.cuda.synchronize()
    want = inputs.out.clone()
    side = torch.cuda.Stream()
    inputs.out.fill_(7.0)
    q = inputs.q_nope.clone()
    inputs.q_nope.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # a launch on another stream would read the zeros
        inputs.q_nope.copy_(q)
        inputs.run()
    side.synchronize()
    assert torch.equal(inputs.out, want)


@pytest.mark.parametrize(
    "change",
    [
        lambda i: {"kv_pool": i.kv_pool.cpu()},
        lambda i: {"q_nope": i.q_nope.float()},
        lambda i: {"prefix_lens": i.prefix_lens.long()},
        lambda i: {"kv_pool": torch.zeros(40 * 576 + 1, dtype=torch.bfloat16, device=DEVICE)[1:].view(40, 576)},
    ],
    ids=["pool-on-cpu", "q-float32", "lens-int64", "pool-misaligned"],
)
def test_bad_arguments_are_refused(change) -> None:
    inputs = build(Spec([4, 5], 3, 2), DEVICE)
    for name, value in change(inputs).items():
        setattr(inputs, name, value)
    with pytest.raises(ValueError):
        inputs.run()


def _ulps(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Error in bf16 units in the last place, taken at the larger of |ref| and its row's root mean square.

    Without the floor an element that happens to cancel to zero would count as thousands of units in any kernel.
    """
    floor = ref.norm(dim=-1, keepdim=True) / ref.shape[-1] ** 0.5
    _, exponent = torch.frexp(torch.maximum(ref.abs(), floor))
    return (out.float() - ref).abs() / torch.ldexp(torch.ones_like(ref), exponent - 8)


@pytest.mark.parametrize(
    ("lens", "nodes", "heads"),
    [([300, 0, 77], 8, 8), ([2000], 64, 8), ([900, 31], 17, 16), ([5700], 16, 8), ([64], 33, 32)],
)
def test_within_one_ulp_of_triton(lens: list[int], nodes: int, heads: int, record) -> None:
    kernel = triton_kernel()
    if kernel is None:
        pytest.skip(f"{MODULE} is not importable: install the pinned sglang to compare")
    inputs = build(Spec(lens, nodes, heads, seed=nodes), DEVICE)
    inputs.run()
    q, theirs = torch.cat([inputs.q_nope, inputs.q_rope], -1), torch.empty_like(inputs.out)
    tokens = [slots_of(inputs.page_table, r, n + nodes, 1) for r, n in enumerate(lens)]
    triton_call(kernel, q, inputs.kv_pool, tokens, unpack_mask(inputs.mask_words, nodes), SM_SCALE, theirs)()
    ref, _ = inputs.reference(torch.float32)
    # Triton must agree with the reference too, or its arguments here are wrong.
    assert float((theirs.float() - ref).norm() / ref.norm()) <= LIMIT
    ours_ulp, theirs_ulp = float(_ulps(inputs.out, ref).max()), float(_ulps(theirs, ref).max())
    record(str(inputs.spec), ulp=ours_ulp, triton_ulp=theirs_ulp)
    assert ours_ulp <= theirs_ulp + 1, (ours_ulp, theirs_ulp)
