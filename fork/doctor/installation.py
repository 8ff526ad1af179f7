# SPDX-License-Identifier: Apache-2.0
"""The installation: that it is the fork, whole, what upstream's it lies on, and the only one."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fork.carried import intact
from fork.doctor.finding import Finding
from fork.manifest import MANIFEST

_NAME = "sglang"
_MANY = 5


def examine() -> tuple[bool, list[Finding]]:
    """Whether there is a fork to examine further, and what was found."""
    findings = [Finding("python", f"{sys.version.split()[0]}, {sys.executable}")]
    installed = _installation(findings)
    findings += _others(installed[0] if installed else None)
    if installed is None:
        return False, findings
    package, manifest, distribution = installed
    _files(package, manifest, findings)
    _upstream_files(manifest, distribution, findings)
    findings.append(_symbols(package))
    return True, findings


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


def _symbols(package: Path) -> Finding:
    try:
        result = intact.examine(package / _NAME)
    except (OSError, ValueError, KeyError) as error:
        return Finding("symbols", f"the table of symbols cannot be read: {error}; run `make install`", False)
    if result.problems:
        said = "upstream lacks what the fork uses; was it installed over the fork? Run `make install`.\n"
        return Finding("symbols", said + intact.as_text(result.problems[:_MANY]), False)
    return Finding("symbols", "what the fork uses of upstream is there, with the signatures that it knows", True)


def _others(used: Path | None) -> Iterator[Finding]:
    """Other copies of the package, and other records of an installation."""
    records: dict[Path, list[str]] = {}
    for distribution in importlib.metadata.distributions(name=_NAME):
        folder = Path(str(distribution.locate_file("")))
        records.setdefault(folder, []).append(distribution.version)
    for folder, versions in records.items():
        if len(versions) > 1:
            said = f"{' and '.join(sorted(versions))} are both registered in {folder}: one was installed over the other"
            yield Finding("two at once", f"{said}; `pip uninstall {_NAME}` until none is left, then install", False)
    copies = [Path(entry) for entry in dict.fromkeys(sys.path) if entry and (Path(entry) / _NAME).is_dir()]
    found = importlib.util.find_spec(_NAME)
    imported = Path(found.origin).parent.parent if found and found.origin else None
    for folder in copies:
        if folder == imported:
            if used is None and any((other / MANIFEST).exists() for other in copies):
                said = f"{folder} comes first on the path and hides the fork; take it out of PYTHONPATH"
                yield Finding("another sglang", said, False)
        elif (folder / _NAME / "__init__.py").exists():
            yield Finding("another sglang", f"{folder} has one too, which is not used: {imported} comes first")
