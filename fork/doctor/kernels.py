# SPDX-License-Identifier: Apache-2.0
"""The kernel packages: upstream's and ours, and whether they have code for the cards here."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence

from fork.doctor.finding import Finding
from fork.doctor.machine import Gpu, fits

THEIRS = "sglang-kernel"
_THEIRS_BEFORE = "sgl-kernel"
OURS = "sgl_kernel_ddtree"


def examine(gpus: Sequence[Gpu]) -> list[Finding]:
    return [_theirs(gpus), *_ours(gpus)]


def _theirs(gpus: Sequence[Gpu]) -> Finding:
    there = _version(THEIRS)
    if there and _version(_THEIRS_BEFORE):
        said = f"both {THEIRS} and {_THEIRS_BEFORE} are installed, which share files; uninstall both, install {THEIRS}"
        return Finding("sgl_kernel", said, False)
    if there is None:
        if gpus:
            return Finding("sgl_kernel", f"{THEIRS} is not installed; run `make install FLAVOUR=cuda`", False)
        return Finding("sgl_kernel", "the CPU functions inside this wheel")
    from packaging.requirements import Requirement  # not before: without an installation there may be none

    needs = map(Requirement, importlib.metadata.requires("sglang") or [])
    needed = next((need for need in needs if need.name == THEIRS), None)
    if gpus and needed and not needed.specifier.contains(there, prereleases=True):
        said = f"{THEIRS} {there}, this release needs {needed.specifier}; run `make install FLAVOUR=cuda`"
        return Finding("sgl_kernel", said, False)
    return Finding("sgl_kernel", f"{THEIRS} {there}", True if gpus else None)


def _ours(gpus: Sequence[Gpu]) -> list[Finding]:
    device = "cuda" if gpus else "cpu"
    if importlib.util.find_spec(OURS) is None:
        return [
            Finding(OURS, "not installed; what needs it on a GPU refuses to start"),
            Finding("would run", f"on {device}, tree operators in torch"),
        ]
    try:
        libraries = importlib.import_module(OURS).build_info()
    except Exception as error:  # a library that does not load: say so, whatever it raises
        return [Finding(OURS, f"installed, but does not load: {error}", False)]
    targets = sorted({arch for info in libraries.values() for arch in info.archs})
    held = f"holds code for {', '.join(targets) or 'nothing'}"
    strangers = sorted({gpu.arch for gpu in gpus if not any(fits(target, gpu.capability) for target in targets)})
    if strangers:
        said = (
            f"{held}, none for {', '.join(strangers)}: it was built for another card, and SGLang's JIT would have to "
            "compile it; install the wheel for this card, or run `make kernel-install`"
        )
        return [Finding(OURS, said, False)]
    return [Finding(OURS, held, bool(targets)), Finding("would run", f"on {device}, tree operators from {OURS}")]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
