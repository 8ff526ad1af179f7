# SPDX-License-Identifier: Apache-2.0
"""Compiles every kernel for each target and reports what one thread and one block of it take.

    python sgl-kernel/tools/report.py [--archs 120a,90a] [--json FILE]

Exit status 1 when a kernel does not compile, spills, may ask for more than 101,376 bytes of shared memory a block, or
lacks ldmatrix, mma or an asynchronous copy although its operator says that it uses the tensor cores; 2 when nvcc or
cuobjdump is missing. Registers, spills and static shared memory come from ptxas, instructions from the SASS, dynamic shared
memory from each operator's report.h.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
SMEM_LIMIT = 101_376  # what one block may have on sm_120
INSTRUCTIONS = ("LDSM", "HMMA", "LDGSTS", "UBLKCP")  # ldmatrix, mma.sync, cp.async, cp.async.bulk


class ToolMissing(RuntimeError):
    """nvcc or cuobjdump is not on this machine."""


@dataclass
class Kernel:
    """One instantiation for one target; sizes in bytes, instruction counts of the static SASS."""

    op: str
    arch: str
    name: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_smem: int
    dynamic_smem: int
    counts: dict[str, int]
    tensor_cores: bool

    def problems(self) -> list[str]:
        where = f"{self.op}, sm_{self.arch}, {self.name}"
        found = []
        if self.spill_stores or self.spill_loads:
            found.append(f"{where}: spills {self.spill_stores} bytes of stores, {self.spill_loads} of loads")
        if self.static_smem + self.dynamic_smem > SMEM_LIMIT:
            found.append(f"{where}: {self.static_smem + self.dynamic_smem} bytes of shared memory, limit {SMEM_LIMIT}")
        if self.tensor_cores:
            missing = [n for n in ("LDSM", "HMMA") if not self.counts[n]]
            if not self.counts["LDGSTS"] and not self.counts["UBLKCP"]:
                missing.append("LDGSTS or UBLKCP")
            if missing:
                found.append(f"{where}: no {', '.join(missing)} in the SASS")
        return found


def find_nvcc() -> str:
    for candidate in (os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if candidate and shutil.which(candidate):
            return candidate
    raise ToolMissing("nvcc is not on PATH: install the CUDA 13 toolkit or set CUDACXX")


def find_cuobjdump() -> str:
    spec = importlib.util.find_spec("triton")
    in_wheel = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump" if spec and spec.origin else None
    for candidate in (shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump", in_wheel and str(in_wheel)):
        if candidate and shutil.which(candidate):
            return candidate
    raise ToolMissing("cuobjdump is not on PATH and no triton wheel holds one: pip install triton")


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _includes() -> list[str]:
    from tvm_ffi import libinfo

    return [f"-I{CSRC}", f"-I{libinfo.find_include_path()}", f"-I{libinfo.find_dlpack_include_path()}"]


def operator_facts(op: Path, nvcc: str, scratch: Path) -> dict[str, tuple[int, bool]]:
    """{kernel name: (dynamic shared memory, uses tensor cores)} of report.h, by compiling it into a small program."""
    if not (op / "report.h").is_file():
        if any("extern __shared__" in p.read_text() for p in [*op.rglob("*.cuh"), *op.rglob("*.cu")]):
            raise RuntimeError(f"{op.name} uses dynamic shared memory but has no report.h, see common/kernel_facts.h")
        return {}
    program, binary = scratch / f"{op.name}.cu", scratch / op.name
    program.write_text(
        f'#include <cstdio>\n#include "{op.name}/report.h"\n'
        "int main() { for (const auto& k : kKernelFacts) "
        'std::printf("%s\\t%zu\\t%d\\n", k.name, k.dynamic_smem_bytes, int(k.tensor_cores)); }\n'
    )
    _run(nvcc, "-std=c++20", *_includes(), "-o", str(binary), str(program))
    rows = [line.split("\t") for line in _run(str(binary)).splitlines()]
    return {name: (int(smem), tensor == "1") for name, smem, tensor in rows}


def demangle(symbols: list[str]) -> list[str]:
    """Short names: `tree_verify_kernel<2>` of `void ddtree::mla::tree_verify_kernel<2>(...)`."""
    text = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    names = []
    for name in text.splitlines():
        name = name.replace("(anonymous namespace)", "anonymous")
        names.append(re.sub(r"^(void )?(\w+::)*", "", re.sub(r"\(.*\)$", "", name)))
    return names


def parse_ptxas(text: str) -> dict[str, dict[str, int]]:
    """{symbol: registers, stack, spills, static shared memory} of `ptxas -v`."""
    found: dict[str, dict[str, int]] = {}
    symbol = ""
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            symbol = match[1]
            found[symbol] = {"registers": 0, "stack": 0, "spill_stores": 0, "spill_loads": 0, "static_smem": 0}
        elif match := re.search(r"Function properties for (\S+)", line):
            symbol = match[1]
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if symbol in found:
                found[symbol] |= dict(zip(("stack", "spill_stores", "spill_loads"), map(int, match.groups())))
        elif (match := re.search(r"Used (\d+) registers", line)) and symbol in found:
            found[symbol]["registers"] = int(match[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                found[symbol]["static_smem"] = int(shared[1])
    return found


def count_instructions(sass: str) -> dict[str, dict[str, int]]:
    """{symbol: {mnemonic: how many}} of `cuobjdump -sass`."""
    found: dict[str, dict[str, int]] = {}
    for block in re.split(r"^\s*Function : ", sass, flags=re.MULTILINE)[1:]:
        symbol = block.split("\n", 1)[0].strip()
        found[symbol] = {name: len(re.findall(rf"\b{name}\b", block)) for name in INSTRUCTIONS}
    return found


def compile_unit(source: Path, arch: str, nvcc: str, cuobjdump: str, facts: dict, scratch: Path) -> list[Kernel]:
    op = source.relative_to(CSRC).parts[0]
    cubin = scratch / f"{op}-{source.stem}-{arch}.cubin"
    flags = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    usage = parse_ptxas(_run(nvcc, "-cubin", *flags, "-Xptxas=-v", *_includes(), "-o", str(cubin), str(source)))
    counts = count_instructions(_run(cuobjdump, "-sass", str(cubin)))
    kernels = []
    for (symbol, numbers), name in zip(usage.items(), demangle(list(usage))):
        # report.h names one instantiation, or a template for all of them.
        known = facts[op].get(name) or facts[op].get(name.split("<")[0])
        if facts[op] and known is None:
            raise RuntimeError(f"{op}: {name} is compiled but not listed in {op}/report.h")
        smem, tensor_cores = known or (0, False)
        kernels.append(Kernel(op, arch, name, dynamic_smem=smem, counts=counts[symbol], tensor_cores=tensor_cores, **numbers))
    return kernels


def collect(archs: list[str]) -> list[Kernel]:
    """Every kernel of every operator for each target, in the order of operators and targets."""
    nvcc, cuobjdump = find_nvcc(), find_cuobjdump()
    sources = [p for p in sorted(CSRC.rglob("*.cu")) if not p.relative_to(CSRC).parts[0].startswith("bench_")]
    if not sources:
        raise RuntimeError(f"no CUDA source under {CSRC}")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        scratch = Path(folder)
        ops = sorted({CSRC / p.relative_to(CSRC).parts[0] for p in sources})
        facts = dict(zip((o.name for o in ops), pool.map(lambda o: operator_facts(o, nvcc, scratch), ops)))
        jobs = [(source, arch) for source in sources for arch in archs]
        done = list(pool.map(lambda j: compile_unit(*j, nvcc, cuobjdump, facts, scratch), jobs))
    kernels = [kernel for unit in done for kernel in unit]
    for op, listed in facts.items():
        for name in listed:
            built = {k.arch for k in kernels if k.op == op and name in (k.name, k.name.split("<")[0])}
            if absent := [a for a in archs if a not in built]:
                raise RuntimeError(f"{op}: {name} is listed in report.h but not compiled for {', '.join(absent)}")
    return kernels


def table(kernels: list[Kernel]) -> str:
    width = max(len(k.name) for k in kernels)
    lines = [
        f"{'operator':16} {'target':7} {'kernel':{width}} {'regs':>5} {'stack':>6} {'spill st/ld':>12} {'static':>7} "
        f"{'dynamic':>8} {'smem':>7}  " + " ".join(f"{name:>6}" for name in INSTRUCTIONS)
    ]
    for k in kernels:
        lines.append(
            f"{k.op:16} {'sm_' + k.arch:7} {k.name:{width}} {k.registers:5} {k.stack:6} "
            f"{f'{k.spill_stores}/{k.spill_loads}':>12} {k.static_smem:7} {k.dynamic_smem:8} "
            f"{k.static_smem + k.dynamic_smem:7}  " + " ".join(f"{k.counts[name]:6}" for name in INSTRUCTIONS)
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", default="120a,90a", help="targets, as for DDTREE_CUDA_ARCHS")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    try:
        kernels = collect(args.archs.split(","))
    except ToolMissing as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(kernels))
    if args.json:
        args.json.write_text(json.dumps([asdict(k) for k in kernels], indent=1) + "\n")
    problems = [problem for kernel in kernels for problem in kernel.problems()]
    for problem in problems:
        print(f"FAIL {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
