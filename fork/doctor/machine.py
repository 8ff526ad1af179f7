# SPDX-License-Identifier: Apache-2.0
"""The machine: memory, driver, GPUs, and whether torch can use them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from fork.doctor.finding import Finding

_QUERY = ("name", "compute_cap", "memory.free", "memory.total", "driver_version")
_GIB = 2**30
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


def examine() -> tuple[list[Gpu], list[Finding]]:
    """The GPUs that torch can use, and what was found."""
    findings = [_memory()]
    listed, driver_cuda = _driver(findings)
    return _torch(listed, driver_cuda, findings), findings


def _memory() -> Finding:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free, total = (int(fields[name].split()[0]) * 1024 / _GIB for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return Finding("memory", "unknown")
    shared = shutil.disk_usage("/dev/shm").free / _GIB if Path("/dev/shm").is_dir() else 0
    return Finding("memory", f"{free:.1f} of {total:.1f} GiB free, {shared:.1f} GiB in /dev/shm")


def _driver(findings: list[Finding]) -> tuple[list[Gpu], tuple[int, int] | None]:
    """The GPUs that the driver lists, and the newest CUDA that it runs."""
    if shutil.which("nvidia-smi") is None:
        findings.append(Finding("driver", "no nvidia-smi: a machine without a GPU"))
        return [], None
    query = _run("nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits")
    if query is None:
        said = (_run("nvidia-smi", status=None) or "it says nothing").strip().splitlines()
        findings.append(Finding("driver", f"nvidia-smi fails: {said[0] if said else 'it says nothing'}", False))
        return [], None
    found = re.search(r"CUDA Version: (\d+)\.(\d+)", _run("nvidia-smi") or "")
    cuda = (int(found[1]), int(found[2])) if found else None
    gpus, driver = [], "?"
    lines = []
    for index, line in enumerate(query.strip().splitlines()):
        name, capability, free, total, driver = (field.strip() for field in line.split(","))
        major, _, minor = capability.partition(".")
        gpus.append(Gpu(name, (int(major), int(minor))))
        lines.append(
            Finding(f"gpu {index}", f"{name}, {gpus[-1].arch}, {_gib(free)} of {_gib(total)} GiB of its memory free")
        )
    newest = f", runs CUDA up to {cuda[0]}.{cuda[1]}" if cuda else ""
    findings += [Finding("driver", f"{driver}{newest}"), *lines]
    return gpus, cuda


def _gib(mib: str) -> str:
    return f"{int(mib) * _MIB / _GIB:.1f}" if mib.isdigit() else "?"


def _torch(listed: list[Gpu], driver_cuda: tuple[int, int] | None, findings: list[Finding]) -> list[Gpu]:
    try:
        import torch
    except Exception as error:  # a broken torch raises what it likes
        findings.append(Finding("torch", f"cannot be imported: {error}", False))
        return []
    built = torch.version.cuda
    if not torch.cuda.is_available():
        findings.append(_torch_without_gpu(torch.__version__, built, listed, driver_cuda))
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        gpus.append(Gpu(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)))
    lacking = sorted({gpu.arch for gpu in gpus if not _runs(gpu, torch.cuda.get_arch_list())})
    if lacking:
        said = f"{torch.__version__} has no code for {', '.join(lacking)}; install a build of torch that has"
        findings.append(Finding("torch", said, False))
    else:
        findings.append(Finding("torch", f"{torch.__version__}, CUDA {built}, sees {len(gpus)} GPUs", True))
    return gpus


def _torch_without_gpu(
    version: str, built: str | None, listed: list[Gpu], driver_cuda: tuple[int, int] | None
) -> Finding:
    if not listed:
        return Finding("torch", f"{version}, " + (f"for CUDA {built}, but there is no GPU" if built else "a CPU build"))
    if built is None:
        return Finding("torch", f"{version} is a CPU build beside a GPU; run `make install FLAVOUR=cuda`", False)
    major = int(built.partition(".")[0])
    if driver_cuda and driver_cuda[0] < major:
        newest = ".".join(map(str, driver_cuda))
        said = f"{version} is for CUDA {built}, the driver runs CUDA up to {newest}; install a newer driver"
        return Finding("torch", said, False)
    return Finding("torch", f"{version}, CUDA {built}, sees no GPU; is CUDA_VISIBLE_DEVICES empty?", False)


def _runs(gpu: Gpu, archs: list[str]) -> bool:
    """Whether code for one of ``archs`` (``sm_90a``, ``compute_90``) runs on the card."""
    return any(fits(arch.rpartition("_")[2], gpu.capability) or arch.startswith("compute") for arch in archs)


def fits(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for a target such as ``90a`` runs on a card: on its own kind, and plain code on later minors."""
    digits = re.match(r"\d+", target)
    if digits is None:
        return False
    major, minor = divmod(int(digits[0]), 10)
    if target[-1].isalpha():
        return (major, minor) == capability
    return major == capability[0] and minor <= capability[1]


def _run(*command: str, status: int | None = 0) -> str | None:
    """What a command says, or None if it does not end with ``status`` (None: any)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if status is None or done.returncode == status else None
