# SPDX-License-Identifier: Apache-2.0
"""gqa_tree_verify against its floor, FlashInfer's paged prefill and SGLang's Triton verify, in one run on one card.

    python sgl-kernel/benchmark/bench_gqa_tree_verify.py [--quick] [--cases L=91000,N=64] [--fp8] [--out DIR]

Random trees, and for N = 8 and 16 also the block of a drafter, which sees itself both ways and needs no mask. Each reading is
a CUDA graph of one call a pool, the pools in turn and together at least three times the L2, so that every call finds it
cold. Each case is compared with the float32 reference before it is timed; a wrong one is marked and fails the run.

floor = max(bytes / copy rate, FLOP / mma.sync rate), both rates measured in the same run;
bytes = B (L + N) Hkv D (2 pools) (2 bytes, or 1 with --fp8), FLOP = 4 B N Hq (L + N) D.

A result of the receipt: batch, nodes, heads, kv_heads, dim, length, kind (tree or block), pool (bf16 or fp8), bytes, flop,
floor_us, error (of ours), and `kernels`: for each kernel median_us, readings_us, calls_per_reading, or `skipped` with the
reason.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent.parent / "benchmark")]

import gqa_rivals as rivals
from receipt import make_receipt, write_receipt
from roofs import copy_rate, mma_sync_rate, time_graph
from sgl_kernel_ddtree import ensure_loaded

LENGTHS = [5700, 23000, 91000]
NODES = [1, 8, 16, 32, 64]
HEADS = [(32, 8), (64, 8)]
BATCHES = [1, 4, 16]
DIM = 128
ERROR_LIMIT = 4e-3
KERNELS = ("ours", "flashinfer", "triton")
BLOCKS = (8, 16)  # sizes of a drafter's block


def parse_filter(text: str) -> dict[str, set[int]]:
    """L=23000,L=91000,N=8 becomes {"L": {23000, 91000}, "N": {8}}; several values of one letter are alternatives."""
    wanted: dict[str, set[int]] = {}
    for item in filter(None, text.split(",")):
        letter, _, value = item.partition("=")
        if letter not in ("L", "N", "H", "K", "B", "D") or not value.isdigit():
            raise SystemExit(f"--cases: {item!r} is not one of L=, N=, H=, K=, B=, D= with a number")
        wanted.setdefault(letter, set()).add(int(value))
    return wanted


def selected(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Cases in the order of their worth, so that a run that hits its budget has the important ones."""
    wanted = parse_filter(args.cases)
    axes = {"B": [1, 16] if args.quick else BATCHES, "L": LENGTHS, "N": NODES, "D": [DIM]}
    for letter in set(axes) & set(wanted):
        axes[letter] = sorted(wanted[letter])
    heads = [(h, k) for h, k in HEADS if h in wanted.get("H", {h}) and k in wanted.get("K", {k})]
    if not heads:
        heads = list(itertools.product(sorted(wanted.get("H", {64})), sorted(wanted.get("K", {8}))))
    cases = []
    for (h, k), *values in itertools.product(heads, *axes.values()):
        case = {"H": h, "K": k, **dict(zip(axes, values))}
        cases += [{**case, "kind": kind} for kind in ("tree", "block") if kind == "tree" or case["N"] in BLOCKS]
    return sorted(cases, key=lambda c: (c["kind"] == "block", c["B"] == 4, c["H"] != 64, c["B"]))


def random_tree(nodes: int) -> torch.Tensor:
    rng = random.Random(nodes)
    tree = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        tree[node] |= tree[rng.randrange(node)]
    return tree


def reference_error(p: rivals.GqaProblem) -> float:
    """||out - ref|| / ||ref|| of the first and the last request, in float32, a KV head at a time."""
    worst = 0.0
    group = p.heads // p.kv_heads
    for request in {0, p.batch - 1}:
        rows, slots = slice(request * p.nodes, (request + 1) * p.nodes), p.slots[request].long()
        difference = size = 0.0
        for head in range(p.kv_heads):
            keys, values = (pool[slots, head].float() for pool in p.pools[0])
            mine = slice(head * group, (head + 1) * group)
            scores = p.q[rows, mine].float() @ keys.T * p.sm_scale
            if p.tree is not None:
                scores[..., p.length :].masked_fill_(~p.tree[:, None, :], float("-inf"))
            ref = scores.softmax(-1) @ values
            difference += float((p.out[rows, mine].float() - ref).square().sum())
            size += float(ref.square().sum())
        worst = max(worst, (difference / size) ** 0.5)
    return worst


def make_problem(case: dict[str, Any], memory: torch.Tensor, args: argparse.Namespace) -> rivals.GqaProblem:
    """`memory`: [2, bytes] of finite numbers in the pool's type, from which the pools are cut."""
    device, page_size = memory.device, args.page_size
    tokens = case["L"] + case["N"]
    pages = -(-tokens // page_size)
    slots = case["B"] * pages * page_size
    shape = (slots, case["K"], case["D"])
    size = slots * case["K"] * case["D"]
    rotation = max(1, min(-(-3 * args.l2_bytes // (2 * size * memory.element_size())), 256, memory.shape[1] // size))
    order = torch.randperm(case["B"] * pages, device=device, dtype=torch.int32).view(case["B"], pages)
    offsets = torch.arange(page_size, device=device, dtype=torch.int32)
    q = torch.randn(case["B"] * case["N"], case["H"], case["D"], device=device, dtype=torch.bfloat16)
    return rivals.GqaProblem(
        batch=case["B"],
        nodes=case["N"],
        heads=case["H"],
        kv_heads=case["K"],
        dim=case["D"],
        length=case["L"],
        q=q,
        out=torch.empty_like(q),
        pools=[tuple(half[i * size : (i + 1) * size].view(shape) for half in memory) for i in range(rotation)],
        slots=(order[:, :, None] * page_size + offsets).reshape(case["B"], -1)[:, :tokens],
        tree=random_tree(case["N"]).to(device) if case["kind"] == "tree" else None,
        page_size=page_size,
    )


def run_case(case: dict[str, Any], memory: torch.Tensor, roofs: dict[str, float], args: argparse.Namespace) -> dict[str, Any]:
    p = make_problem(case, memory, args)
    total = p.batch * (p.length + p.nodes)
    size, flop = total * p.kv_heads * p.dim * 2 * memory.element_size(), 4 * total * p.nodes * p.heads * p.dim
    result: dict[str, Any] = {
        "batch": p.batch,
        "nodes": p.nodes,
        "heads": p.heads,
        "kv_heads": p.kv_heads,
        "dim": p.dim,
        "length": p.length,
        "kind": case["kind"],
        "pool": "fp8" if args.fp8 else "bf16",
        "bytes": size,
        "flop": flop,
        "floor_us": 1e6 * max(size / roofs["copy_bytes_per_s"], flop / roofs["mma_sync_flop_per_s"]),
        "kernels": {},
    }
    makers = {"ours": rivals.ours, "flashinfer": rivals.flashinfer, "triton": rivals.triton}
    for name in args.kernels:
        try:
            calls = makers[name](p)
            if isinstance(calls, str):
                result["kernels"][name] = {"skipped": calls}
                continue
            calls[0]()
            error = reference_error(p)
            if name == "ours":
                result["error"] = error
            result["kernels"][name] = {**vars(time_graph(calls)), "error": error}
        except Exception as reason:  # a rival that cannot do a case must not end the run
            if name == "ours":
                raise
            torch.cuda.synchronize()
            result["kernels"][name] = {"skipped": f"failed: {str(reason).splitlines()[0][:200]}"}
    return result


HEADER = "  B   Hq/Hkv   N  kind   context        us    GB/s  TFLOPS  xfloor  vs flashinfer  vs triton   (~ one reading)"


def line_of(result: dict[str, Any]) -> str:
    mine = result["kernels"]["ours"]["median_us"]
    cells = [f"{result['batch']:3d} {result['heads']:4d}/{result['kv_heads']:<3d} {result['nodes']:3d}  {result['kind']:5}"]
    cells.append(f"{result['length']:7d} {mine:9.1f} {1e-3 * result['bytes'] / mine:7.0f} {1e-6 * result['flop'] / mine:7.1f}")
    cells.append(f"{mine / result['floor_us']:6.2f}")
    for name in KERNELS[1:]:
        other = result["kernels"].get(name, {})
        if "median_us" in other:
            mark = "~" if len(other["readings_us"]) == 1 else " "
            cells.append(f"{mark}{other['median_us'] / mine:9.2f}x")
        else:
            cells.append("         - ")
    return "  ".join(cells) + ("  WRONG" if result["error"] > ERROR_LIMIT else "")


def pool_memory(cases: list[dict[str, Any]], args: argparse.Namespace, device: torch.device) -> torch.Tensor:
    item = 1 if args.fp8 else 2
    biggest = max(c["B"] * (c["L"] + c["N"] + args.page_size) * c["K"] * c["D"] for c in cases)
    memory = torch.empty(2, max(biggest, 4 * args.l2_bytes // (2 * item)), dtype=torch.bfloat16, device=device).normal_()
    return memory.to(torch.float8_e4m3fn) if args.fp8 else memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="batches 1 and 16 only")
    parser.add_argument("--cases", default="", help="only these, such as L=91000,N=8,N=16,B=1")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--fp8", action="store_true", help="an e4m3 pool; the rivals are then left out")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--budget-s", type=float, default=3600, help="start no case after this many seconds")
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "benchmark" / "results", help="folder of the receipt")
    args = parser.parse_args()
    cases = selected(args)

    start = time.monotonic()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    ensure_loaded(device)
    args.l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    memory = pool_memory(cases, args, device)
    roofs = {"copy_bytes_per_s": copy_rate(device), "mma_sync_flop_per_s": mma_sync_rate(device)}
    print(f"{torch.cuda.get_device_name(device)}: copy {roofs['copy_bytes_per_s'] / 1e12:.2f} TB/s, ", end="")
    print(f"mma.sync bf16 {roofs['mma_sync_flop_per_s'] / 1e12:.0f} TFLOP/s, page size {args.page_size}")
    print(HEADER)
    results, left_out = [], []
    for case in cases:
        if time.monotonic() - start > args.budget_s:
            left_out.append(case)
            continue
        results.append(run_case(case, memory, roofs, args))
        print(line_of(results[-1]), flush=True)
    print(f"{len(results)} cases in {time.monotonic() - start:.0f} s; left out by --budget-s: {len(left_out)}")
    for name in args.kernels:
        for reason in sorted({r["kernels"][name].get("skipped") for r in results} - {None}):
            print(f"{name} skipped: {reason}")

    operators = ("gqa_tree_verify", "common", "bench_mma_peak")
    sources = [p for op in operators for p in (HERE.parent / "csrc" / op).iterdir()]
    sources += [HERE / f"{name}.py" for name in (Path(__file__).stem, "gqa_rivals", "roofs", "triton_verify")]
    config = {**roofs, "page_size": args.page_size, "l2_bytes": args.l2_bytes, "left_out": left_out}
    receipt = make_receipt("bench_gqa_tree_verify", results, config=config, sources=sources)
    card = receipt["host"]["gpu"].replace(" ", "-")
    path = args.out / f"gqa_tree_verify-{card}-{receipt['created'][:19].replace(':', '')}.json"
    write_receipt(path, receipt)
    print(f"wrote {path}")
    if wrong := [r for r in results if r["error"] > ERROR_LIMIT]:
        raise SystemExit(f"{len(wrong)} cases of ours are wrong by more than {ERROR_LIMIT}")


if __name__ == "__main__":
    main()
