# SPDX-License-Identifier: Apache-2.0
"""What doctor says of machines and environments that are not at hand."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fork import doctor
from fork.doctor import backend, installation, kernels, machine
from fork.doctor.finding import Finding
from fork.doctor.machine import Gpu

BLACKWELL = Gpu("NVIDIA RTX PRO 6000", (12, 0))
HOPPER = Gpu("NVIDIA H200", (9, 0))


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi that lists the given cards."""

    def install(cards: str, cuda: str = "13.0", status: int = 0) -> None:
        script = tmp_path / "nvidia-smi"
        script.write_text(
            f"#!/bin/sh\n[ {status} = 0 ] || {{ echo 'NVIDIA-SMI has failed'; exit {status}; }}\n"
            f'case "$1" in --query*) printf "{cards}" ;; *) echo "| CUDA Version: {cuda} |" ;; esac\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return install


@pytest.fixture
def torch(monkeypatch):
    """A torch of a given build that sees given cards."""

    def install(built: str | None, *gpus: Gpu, archs: tuple[str, ...] = ("sm_90", "sm_120")) -> None:
        cuda = SimpleNamespace(
            is_available=lambda: bool(gpus),
            device_count=lambda: len(gpus),
            get_device_name=lambda index: gpus[index].name,
            get_device_capability=lambda index: gpus[index].capability,
            get_arch_list=lambda: list(archs),
        )
        fake = SimpleNamespace(__version__="2.14.1", version=SimpleNamespace(cuda=built), cuda=cuda)
        monkeypatch.setitem(sys.modules, "torch", fake)

    return install


CARD = "NVIDIA RTX PRO 6000, 12.0, 90000, 97887, 580.1\\n"


def found() -> dict[str, Finding]:
    return {finding.what: finding for finding in machine.examine()[1]}


def test_a_machine_without_a_gpu(monkeypatch, torch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    torch(None)
    gpus, findings = machine.examine()
    assert gpus == []
    assert [finding.ok for finding in findings] == [None] * 3
    assert "GiB free" in findings[0].said


def test_a_machine_with_gpus(smi, torch):
    smi(CARD * 2)
    torch("13.0", BLACKWELL, BLACKWELL)
    told = found()
    assert told["driver"].said == "580.1, runs CUDA up to 13.0"
    assert told["gpu 1"].said == "NVIDIA RTX PRO 6000, sm_120, 87.9 of 95.6 GiB of its memory free"
    assert (told["torch"].ok, told["torch"].said) == (True, "2.14.1, CUDA 13.0, sees 2 GPUs")
    assert machine.examine()[0] == [BLACKWELL, BLACKWELL]


@pytest.mark.parametrize(
    ("built", "cuda", "said"),
    [
        (None, "13.0", "is a CPU build beside a GPU; run `make install FLAVOUR=cuda`"),
        ("13.0", "12.4", "is for CUDA 13.0, the driver runs CUDA up to 12.4; install a newer driver"),
        ("13.0", "13.0", "sees no GPU; is CUDA_VISIBLE_DEVICES empty?"),
    ],
)
def test_a_torch_that_does_not_see_the_gpu(smi, torch, built, cuda, said):
    smi(CARD, cuda)
    torch(built)
    assert found()["torch"].ok is False
    assert said in found()["torch"].said


def test_a_torch_without_code_for_the_card(smi, torch):
    smi(CARD)
    torch("12.8", BLACKWELL, archs=("sm_80", "sm_90"))
    assert found()["torch"] == Finding(
        "torch", "2.14.1 has no code for sm_120; install a build of torch that has", False
    )


def test_a_driver_that_fails(smi, torch):
    smi(CARD, status=9)
    torch("13.0")
    assert found()["driver"] == Finding("driver", "nvidia-smi fails: NVIDIA-SMI has failed", False)


def test_a_broken_torch(monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert found()["torch"].ok is False


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("120a", (12, 0), True),
        ("120a", (12, 1), False),
        ("90a", (12, 0), False),
        ("90a", (9, 0), True),
        ("80", (8, 9), True),
        ("89", (8, 6), False),
        ("cpu", (12, 0), False),
    ],
)
def test_which_code_runs_where(target, capability, runs):
    assert machine.fits(target, capability) is runs


@pytest.fixture
def packages(monkeypatch):
    """Installed distributions, and the targets that our kernel package holds (None: it is not installed)."""

    def install(targets: tuple[str, ...] | None, **versions: str) -> None:
        monkeypatch.setattr(kernels, "_version", lambda name: versions.get(name.replace("-", "_")))
        monkeypatch.setattr(importlib.metadata, "requires", lambda name: ['sglang-kernel==0.4.10; extra == "cuda"'])
        spec = None if targets is None else object()
        monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: spec)
        module = SimpleNamespace(build_info=lambda: {"ddtree_cuda": SimpleNamespace(archs=targets)})
        monkeypatch.setitem(sys.modules, kernels.OURS, module)

    return install


def judged(*gpus: Gpu) -> dict[str, Finding]:
    return {finding.what: finding for finding in kernels.examine(gpus)}


def test_kernels_that_fit(packages):
    packages(("120a", "cpu"), sglang_kernel="0.4.10")
    told = judged(BLACKWELL)
    assert told["sgl_kernel"] == Finding("sgl_kernel", "sglang-kernel 0.4.10", True)
    assert told[kernels.OURS] == Finding(kernels.OURS, "holds code for 120a, cpu", True)
    assert told["would run"].said == "on cuda, tree operators from sgl_kernel_ddtree"


def test_a_kernel_that_was_built_for_another_card(packages):
    packages(("120a", "cpu"), sglang_kernel="0.4.10")
    told = judged(HOPPER)[kernels.OURS]
    assert told.ok is False
    assert told.said.startswith("holds code for 120a, cpu, none for sm_90: it was built for another card")


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "sglang-kernel is not installed; run `make install FLAVOUR=cuda`"),
        ({"sglang_kernel": "0.4.9"}, "sglang-kernel 0.4.9, this release needs ==0.4.10; run `make install"),
        ({"sglang_kernel": "0.4.10", "sgl_kernel": "0.3.0"}, "both sglang-kernel and sgl-kernel are installed"),
    ],
)
def test_upstreams_kernels(packages, versions, said):
    packages(None, **versions)
    told = judged(BLACKWELL)["sgl_kernel"]
    assert told.ok is False and told.said.startswith(said)


def test_without_kernels_on_a_cpu(packages):
    packages(None)
    assert [finding.ok for finding in kernels.examine([])] == [None, None, None]


# ---- environments


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Folders on the path with a package and, where wanted, records of installations."""

    def add(name: str, *versions: str, fork: bool = False) -> Path:
        folder = tmp_path / name
        (folder / "sglang").mkdir(parents=True)
        (folder / "sglang" / "__init__.py").touch()
        if fork:
            (folder / installation.MANIFEST).write_text("{}")
        for version in versions:
            info = folder / f"sglang-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n")
        return folder

    def use(*folders: Path) -> None:
        monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
        monkeypatch.delitem(sys.modules, "sglang", raising=False)

    return add, use


def others(used: Path | None) -> list[Finding]:
    return list(installation._others(used))


def test_one_installation(path):
    add, use = path
    fork = add("site", "0.5.23+ddtree.1", fork=True)
    use(fork)
    assert others(fork) == []


def test_upstream_installed_over_the_fork(path):
    add, use = path
    fork = add("site", "0.5.23+ddtree.1", "0.5.24", fork=True)
    use(fork)
    (told,) = others(fork)
    assert told.ok is False
    assert told.said.startswith(f"0.5.23+ddtree.1 and 0.5.24 are both registered in {fork}")


def test_an_upstream_that_hides_the_fork(path):
    add, use = path
    checkout, fork = add("checkout"), add("site", "0.5.23+ddtree.1", fork=True)
    use(checkout, fork)
    first, second = others(None)
    assert (first.ok, first.said.split(" comes first")[0]) == (False, str(checkout))
    assert second.ok is None


def test_an_upstream_behind_the_fork(path):
    add, use = path
    fork, behind = add("site", "0.5.23+ddtree.1", fork=True), add("behind")
    use(fork, behind)
    (told,) = others(fork)
    assert (told.ok, told.said) == (None, f"{behind} has one too, which is not used: {fork} comes first")


def test_symbols_that_upstream_lacks(tmp_path):
    assert installation._symbols(tmp_path).ok is False


# ---- the backend, and the report


def answers(monkeypatch, stdout: str, stderr: str = "") -> Finding:
    done = SimpleNamespace(stdout=stdout, stderr=stderr, returncode=0)
    monkeypatch.setattr(backend.subprocess, "run", lambda *a, **k: done)
    return backend.examine()


def test_the_backend_of_an_mla_model(monkeypatch):
    told = answers(monkeypatch, 'noise\n{"backend": "triton", "why": ["this card is sm_90"]}\n')
    assert told == Finding("MLA backend", "triton, where no flag names one\nthis card is sm_90")


@pytest.mark.parametrize("stdout", ["", "noise", "[]", '{"backend": "x"}'])
def test_a_package_that_cannot_tell(monkeypatch, stdout):
    told = answers(monkeypatch, stdout, "Traceback\nImportError: no torch")
    assert told == Finding("MLA backend", "SGLang cannot tell: ImportError: no torch", False)


def test_a_package_that_does_not_answer(monkeypatch):
    def late(*_, **__):
        raise subprocess.TimeoutExpired("python", 300)

    monkeypatch.setattr(backend.subprocess, "run", late)
    assert backend.examine().ok is False


FINDINGS = [Finding("a", "fine", True), Finding("long name", "bad\nbecause", False), Finding("c", "fact")]


def test_the_report(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda quick: FINDINGS)
    assert doctor.main(as_json=False, quick=False) == 1
    assert capsys.readouterr().out == (
        "ok     a          fine\nWRONG  long name  bad\n                  because\n-      c          fact\n"
    )
    assert doctor.main(as_json=True, quick=False) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["findings"][1]["said"] == "bad\nbecause"
    monkeypatch.setattr(doctor, "examine", lambda quick: FINDINGS[::2])
    assert doctor.main(as_json=True, quick=True) == 0
