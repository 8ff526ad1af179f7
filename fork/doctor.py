# SPDX-License-Identifier: Apache-2.0
"""Examines the fork that is installed in the running Python: its files, the machine, and what would run.

Needs nothing but the installed packages, and changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fork.manifest import MANIFEST

_NAME = "sglang"
_KERNELS = "sgl_kernel_ddtree"
_MANY = 5


@dataclass
class Finding:
    """One line of the report. ``ok`` is None for a fact that is neither good nor bad."""

    what: str
    said: str
    ok: bool | None = None


def main(*, as_json: bool) -> int:
    """Prints the report; 0 if nothing is wrong, else 1."""
    findings = examine()
    wrong = [finding for finding in findings if finding.ok is False]
    if as_json:
        print(json.dumps({"ok": not wrong, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        for finding in findings:
            mark = {True: "ok", False: "WRONG", None: "-"}[finding.ok]
            print(f"{mark:5}  {finding.what:13}  {finding.said}")
    return 1 if wrong else 0


def examine() -> list[Finding]:
    findings = [Finding("python", f"{sys.version.split()[0]}, {sys.executable}")]
    installed = _installation(findings)
    if installed is None:
        return findings
    package, manifest, distribution = installed
    _files(package, manifest, findings)
    _upstream_files(manifest, distribution, findings)
    device = _machine(findings)
    _kernels(device, findings)
    return findings


def _installation(findings: list[Finding]) -> tuple[Path, dict[str, Any], importlib.metadata.Distribution] | None:
    """The package's parent folder, the manifest and the distribution; None, with a finding, if there is no fork."""
    try:
        distribution = importlib.metadata.distribution(_NAME)
    except importlib.metadata.PackageNotFoundError:
        findings.append(Finding("installation", "sglang is not installed here; run `make install`", False))
        return None
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        findings.append(Finding("installation", f"{distribution.version} is registered but cannot be imported", False))
        return None
    package = Path(spec.origin).parent.parent
    path = package / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        upstream = manifest["upstream"]
    except (OSError, ValueError, KeyError) as error:
        problem = "this is not the fork" if not path.exists() else f"{path} is not readable: {error}"
        findings.append(
            Finding("installation", f"{distribution.version} at {package}: {problem}; run `make install`", False)
        )
        return None
    matches = manifest["version"] == distribution.version
    told = f"{manifest['version']} on {upstream['name']} {upstream['version']}, {len(manifest['patches'])} patches"
    if not matches:
        told += f"; but its metadata says {distribution.version}"
    findings.append(Finding("installation", f"{told}, at {package}", matches))
    return package, manifest, distribution


def _files(package: Path, manifest: dict[str, Any], findings: list[Finding]) -> None:
    expected = {file: entry["after"] for file, entry in manifest["edited"].items()}
    wrong = _differing(package, expected, _hex_digest)
    findings.append(
        Finding("edited files", _told(wrong, len(expected), "as the manifest says"), not wrong),
    )
    added: dict[str, str] = manifest["added"]
    wrong = _differing(package, added, _hex_digest)
    live = [problem for problem in wrong if _is_link(package, problem.partition(" ")[0])]
    if live and len(live) == len(wrong):
        told = f"{len(added)}, {len(live)} of them changed in the checkout since the build (an editable install)"
        findings.append(Finding("added files", told))
    else:
        findings.append(Finding("added files", _told(wrong, len(added), "as the manifest says"), not wrong))


def _upstream_files(
    manifest: dict[str, Any], distribution: importlib.metadata.Distribution, findings: list[Finding]
) -> None:
    ours = {*manifest["edited"], *manifest["added"]}
    recorded = {
        str(file): f"{file.hash.mode}={file.hash.value}"
        for file in distribution.files or []
        if file.hash and str(file) not in ours and not str(file).startswith("..")
    }
    root = Path(str(distribution.locate_file("")))
    wrong = _differing(root, recorded, _record_digest)
    findings.append(Finding("other files", _told(wrong, len(recorded), "as recorded when installed"), not wrong))


def _differing(root: Path, expected: dict[str, str], digest: Callable[[bytes], str]) -> list[str]:
    wrong = []
    for file, wanted in expected.items():
        try:
            if digest((root / file).read_bytes()) != wanted:
                wrong.append(f"{file} was changed")
        except OSError:
            wrong.append(f"{file} is missing")
    return wrong


def _hex_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _record_digest(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _told(wrong: list[str], count: int, fine: str) -> str:
    if not wrong:
        return f"{count}, all {fine}"
    rest = f" and {len(wrong) - _MANY} more" if len(wrong) > _MANY else ""
    return f"{len(wrong)} of {count} not {fine}: {'; '.join(wrong[:_MANY])}{rest}; run `make install`"


def _is_link(root: Path, file: str) -> bool:
    path = root / file
    return any(step.is_symlink() for step in (path, *path.parents) if root in step.parents)


def _machine(findings: list[Finding]) -> str:
    """``cuda`` or ``cpu``: what torch would use."""
    try:
        import torch
    except Exception as error:  # a broken torch raises what it likes
        findings.append(Finding("torch", f"cannot be imported: {error}", False))
        return "cpu"
    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = f"built for CUDA {built}, but finds no GPU or driver" if built else "a CPU build"
        findings.append(Finding("torch", f"{torch.__version__}, {why}"))
        return "cpu"
    findings.append(Finding("torch", f"{torch.__version__}, CUDA {torch.version.cuda}"))
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        findings.append(
            Finding(f"gpu {index}", f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}")
        )
    return "cuda"


def _kernels(device: str, findings: list[Finding]) -> None:
    theirs = _version("sglang-kernel")
    if theirs:
        findings.append(Finding("sgl_kernel", f"sglang-kernel {theirs}"))
    elif device == "cuda":
        findings.append(Finding("sgl_kernel", "sglang-kernel is not installed; FLAVOUR=cuda brings it", False))
    else:
        findings.append(Finding("sgl_kernel", "the CPU functions inside this wheel"))
    if importlib.util.find_spec(_KERNELS) is None:
        findings.append(Finding(_KERNELS, "not installed; what needs it on a GPU refuses to start"))
        findings.append(Finding("would run", f"on {device}, tree operators in torch"))
        return
    try:
        libraries = importlib.import_module(_KERNELS).build_info()
    except Exception as error:  # a library that does not load: say so, whatever it raises
        findings.append(Finding(_KERNELS, f"installed, but does not load: {error}", False))
        return
    targets = sorted({arch for info in libraries.values() for arch in info.archs})
    findings.append(Finding(_KERNELS, f"holds code for {', '.join(targets) or 'nothing'}", bool(targets)))
    findings.append(Finding("would run", f"on {device}, tree operators from {_KERNELS}"))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
