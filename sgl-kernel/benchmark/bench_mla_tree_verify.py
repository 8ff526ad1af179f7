# SPDX-License-Identifier: Apache-2.0
"""mla_tree_verify against its floor, SGLang's Triton verify and FlashInfer's MLA, in one run on one card.

    python sgl-kernel/benchmark/bench_mla_tree_verify.py [--quick] [--cases L=91000,N=64] [--out DIR]

A chain (causal) tree, since FlashInfer knows no other; the mask costs ours the same for any tree. Each reading is a CUDA
graph of one call a pool, the pools in turn and together at least three times the L2, so that every call finds it cold.
Each case is compared with the float32 reference before it is timed; a wrong one is marked and fails the run.

floor = max(bytes / copy rate, FLOP / mma.sync rate), both rates measured in the same run;
bytes = B (L + N) 1152, FLOP = 2 B N H (L + N) 1088.

A result of the receipt: batch, nodes, heads, length, bytes, flop, floor_us, error (of ours), and `kernels`: for each kernel
median_us, readings_us, calls_per_reading, or `skipped` with the reason.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent.parent / "benchmark")]

import rivals
from receipt import make_receipt, write_receipt
from roofs import copy_rate, mma_sync_rate, time_graph
from sgl_kernel_ddtree import ensure_loaded

LENGTHS = [1024, 5700, 23000, 91000, 131072]
NODES = [1, 8, 16, 32, 64]
HEADS = [8, 16, 128]
BATCHES = [1, 4, 16, 64]
ERROR_LIMIT = 4e-3
KERNELS = ("ours", "flashinfer_fa2", "flashinfer_fa3", "triton")


def parse_filter(text: str) -> dict[str, set[int]]:
    """L=23000,L=91000,N=8 becomes {"L": {23000, 91000}, "N": {8}}; several values of one letter are alternatives."""
    wanted: dict[str, set[int]] = {}
    for item in filter(None, text.split(",")):
        letter, _, value = item.partition("=")
        if letter not in ("L", "N", "H", "B") or not value.isdigit():
            raise SystemExit(f"--cases: {item!r} is not one of L=, N=, H=, B= with a number")
        wanted.setdefault(letter, set()).add(int(value))
    return wanted


def selected(args: argparse.Namespace) -> list[dict[str, int]]:
    """Cases in the order of their worth, so that a run that hits its budget has the important ones."""
    wanted = parse_filter(args.cases)
    axes = {"B": BATCHES, "H": HEADS, "L": LENGTHS, "N": NODES}
    if args.quick:
        axes = {"B": [1, 16], "H": [8], "L": [5700, 23000, 91000], "N": [1, 8, 16, 32, 64]}
    for letter, values in wanted.items():
        axes[letter] = sorted(values)
    cases = [dict(zip(axes, values)) for values in itertools.product(*axes.values())]
    return sorted(cases, key=lambda c: (c["H"] != 8, c["B"] not in (1, 16), c["H"], c["B"]))


def reference_error(p: rivals.Problem) -> float:
    """||out - ref|| / ||ref|| of the first and the last request, in float32, a few heads at a time."""
    worst = 0.0
    for request in {0, p.batch - 1}:
        rows = slice(request * p.nodes, (request + 1) * p.nodes)
        keys = p.pools[0][p.slots[request].long()].float()
        hidden = torch.ones(p.nodes, p.nodes, dtype=torch.bool, device=keys.device).triu(1)
        difference = size = 0.0
        for head in range(0, p.heads, 8):
            scores = p.q[rows, head : head + 8].float() @ keys.T * rivals.SM_SCALE
            scores[..., p.length :].masked_fill_(hidden[:, None, :], float("-inf"))
            ref = scores.softmax(-1) @ keys[:, : rivals.LATENT_DIM]
            difference += float((p.out[rows, head : head + 8].float() - ref).square().sum())
            size += float(ref.square().sum())
        worst = max(worst, (difference / size) ** 0.5)
    return worst


def make_problem(case: dict[str, int], pool: torch.Tensor, page_size: int, l2_bytes: int) -> rivals.Problem:
    device = pool.device
    tokens = case["L"] + case["N"]
    pages = -(-tokens // page_size)
    slots_needed = case["B"] * pages * page_size
    rotation = max(1, min(-(-3 * l2_bytes // (slots_needed * 1152)), 256, pool.shape[0] // slots_needed))
    order = torch.randperm(case["B"] * pages, device=device, dtype=torch.int32).view(case["B"], pages)
    offsets = torch.arange(page_size, device=device, dtype=torch.int32)
    rows = case["B"] * case["N"]
    return rivals.Problem(
        batch=case["B"],
        nodes=case["N"],
        heads=case["H"],
        length=case["L"],
        q=torch.randn(rows, case["H"], 576, device=device, dtype=torch.bfloat16),
        out=torch.empty(rows, case["H"], 512, device=device, dtype=torch.bfloat16),
        pools=[pool[i * slots_needed : (i + 1) * slots_needed] for i in range(rotation)],
        slots=(order[:, :, None] * page_size + offsets).reshape(case["B"], -1)[:, :tokens],
        page_size=page_size,
    )


def run_case(case: dict[str, int], pool: torch.Tensor, roofs: dict[str, float], args: argparse.Namespace) -> dict[str, Any]:
    p = make_problem(case, pool, args.page_size, args.l2_bytes)
    total = case["L"] + case["N"]
    size, flop = case["B"] * total * 1152, 2 * case["B"] * case["N"] * case["H"] * total * 1088
    result: dict[str, Any] = {
        "batch": case["B"],
        "nodes": case["N"],
        "heads": case["H"],
        "length": case["L"],
        "bytes": size,
        "flop": flop,
        "floor_us": 1e6 * max(size / roofs["copy_bytes_per_s"], flop / roofs["mma_sync_flop_per_s"]),
        "kernels": {},
    }
    makers = {
        "ours": lambda: rivals.ours(p),
        "flashinfer_fa2": lambda: rivals.flashinfer(p, "fa2"),
        "flashinfer_fa3": lambda: rivals.flashinfer(p, "fa3"),
        "triton": lambda: rivals.triton(p),
    }
    for name in args.kernels:
        try:
            calls = makers[name]()
            if isinstance(calls, str):
                result["kernels"][name] = {"skipped": calls}
                continue
            calls[0]()
            error = reference_error(p)
            if name == "ours":
                result["error"] = error
            timing = time_graph(calls)
            result["kernels"][name] = {**vars(timing), "error": error}
        except Exception as reason:  # a rival that cannot do a case must not end the run
            if name == "ours":
                raise
            torch.cuda.synchronize()
            result["kernels"][name] = {"skipped": f"failed: {str(reason).splitlines()[0][:200]}"}
    return result


def line_of(result: dict[str, Any]) -> str:
    mine = result["kernels"]["ours"]["median_us"]
    wrong = "  WRONG" if result["error"] > ERROR_LIMIT else ""
    cells = [f"{result['batch']:3d} {result['heads']:4d} {result['nodes']:3d} {result['length']:7d}"]
    cells.append(f"{mine:9.1f} {1e-3 * result['bytes'] / mine:7.0f} {1e-6 * result['flop'] / mine:7.1f}")
    cells.append(f"{100 * result['floor_us'] / mine:6.1f} {mine / result['floor_us']:6.2f}")
    for name in KERNELS[1:]:
        other = result["kernels"].get(name, {})
        if "median_us" in other:
            mark = "~" if len(other["readings_us"]) == 1 else " "
            cells.append(f"{mark}{other['median_us'] / mine:7.2f}x")
        else:
            cells.append("       - ")
    return "  ".join(cells) + wrong


HEADER = "  B    H   N  context        us    GB/s  TFLOPS  %floor  xfloor  vs fi-fa2  vs fi-fa3  vs triton   (~ one reading)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="H = 8, batch 1 and 16, three contexts")
    parser.add_argument("--cases", default="", help="filter, such as L=91000,N=8,N=64,H=8,B=1")
    parser.add_argument("--kernels", default=",".join(KERNELS), help="which to run, ours always first")
    parser.add_argument("--page-size", type=int, default=1, choices=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--budget-s", type=float, default=280, help="start no new case after this many seconds")
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "benchmark" / "results", help="folder of the receipt and the plot")
    parser.add_argument("--profile", action="store_true", help="run ours three times a case, for ncu; time nothing")
    args = parser.parse_args()
    args.kernels = ["ours", *(k for k in args.kernels.split(",") if k != "ours")]
    if unknown := set(args.kernels) - set(KERNELS):
        raise SystemExit(f"--kernels: unknown {sorted(unknown)}; choose from {KERNELS}")
    cases = selected(args)

    start = time.monotonic()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    ensure_loaded(device)
    args.l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    biggest = max(c["B"] * (c["L"] + c["N"] + args.page_size) for c in cases)
    pool = torch.empty(max(biggest, 4 * args.l2_bytes // 1152 + 1), 576, dtype=torch.bfloat16, device=device).normal_()

    if args.profile:
        for case in cases:
            p = make_problem(case, pool, args.page_size, args.l2_bytes)
            for call in (rivals.ours(p) * 3)[:3]:
                call()
        torch.cuda.synchronize()
        return

    roofs = {"copy_bytes_per_s": copy_rate(device), "mma_sync_flop_per_s": mma_sync_rate(device)}
    print(f"{torch.cuda.get_device_name(device)}: copy {roofs['copy_bytes_per_s'] / 1e12:.2f} TB/s, ", end="")
    print(f"mma.sync bf16 {roofs['mma_sync_flop_per_s'] / 1e12:.0f} TFLOP/s, page size {args.page_size}")
    print(HEADER)
    results, left_out = [], []
    for case in cases:
        if time.monotonic() - start > args.budget_s:
            left_out.append(case)
            continue
        results.append(run_case(case, pool, roofs, args))
        print(line_of(results[-1]), flush=True)
    print(f"{len(results)} cases in {time.monotonic() - start:.0f} s; left out by --budget-s: {len(left_out)}")
    for name in args.kernels:
        reasons = {r["kernels"][name].get("skipped") for r in results} - {None}
        for reason in sorted(reasons):
            print(f"{name} skipped: {reason}")

    operators = ("mla_tree_verify", "common", "bench_mma_peak")
    sources = [p for op in operators for p in (HERE.parent / "csrc" / op).iterdir()]
    sources += [HERE / f"{name}.py" for name in (Path(__file__).stem, "rivals", "roofs", "triton_verify")]
    config = {**roofs, "page_size": args.page_size, "l2_bytes": args.l2_bytes, "left_out": left_out}
    receipt = make_receipt("bench_mla_tree_verify", results, config=config, sources=sources)
    card = receipt["host"]["gpu"].replace(" ", "-")
    stem = f"mla_tree_verify-{card}-{receipt['created'][:19].replace(':', '')}"
    write_receipt(args.out / f"{stem}.json", receipt)
    from plot_roofline import plot

    plot(receipt, args.out / f"{stem}.png")
    print(f"wrote {args.out / stem}.json and .png")
    if wrong := [r for r in results if r["error"] > ERROR_LIMIT]:
        raise SystemExit(f"{len(wrong)} cases of ours are wrong by more than {ERROR_LIMIT}")


if __name__ == "__main__":
    main()
