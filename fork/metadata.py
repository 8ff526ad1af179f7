# SPDX-License-Identifier: Apache-2.0
"""Rewrites upstream's METADATA: our version, a base that runs on a CPU, and upstream's own list as the extra
``cuda``."""

from __future__ import annotations

import configparser
import io

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from fork.config import Config
from fork.errors import ForkError

CUDA = "cuda"
_COMMANDS = "console_scripts"


def rewrite(text: str, config: Config, license_files: tuple[str, ...] = ()) -> str:
    """``text`` with the version, requirements and licence files of the fork; every other line as it is."""
    headers, blank, description = text.partition("\n\n")
    fields = _fields(headers)
    base = [value for name, value in fields if name == "Requires-Dist" and not _is_extra(value)]
    theirs = {canonicalize_name(need.name): need for need in map(Requirement, base)}
    if canonicalize_name(config.kernel) not in theirs:
        raise ForkError(
            f"upstream.toml says that the extra {CUDA} holds {config.kernel}, but upstream does not require that"
        )
    if (CUDA) in [value for name, value in fields if name == "Provides-Extra"]:
        raise ForkError(f"upstream has an extra named {CUDA} of its own now")
    kept = [
        (name, config.fork_version if name == "Version" else value)
        for name, value in fields
        if name != "Requires-Dist" or _is_extra(value)
    ]
    last_license = max((i for i, (name, _) in enumerate(kept) if name == "License-File"), default=len(kept) - 1)
    kept[last_license + 1 : last_license + 1] = [("License-File", file) for file in license_files]
    first_extra = next((i for i, (name, _) in enumerate(kept) if name == "Provides-Extra"), len(kept))
    ours = [("Requires-Dist", _ranged(requirement, theirs)) for requirement in config.base_requires]
    cuda = [("Provides-Extra", CUDA), *(("Requires-Dist", _for_extra(value)) for value in base)]
    kept[first_extra:first_extra] = [*ours, *cuda]
    return "\n".join(f"{name}: {value}" for name, value in kept) + blank + description


def with_scripts(text: str, config: Config) -> str:
    """Upstream's entry points with our commands among them. Raises ForkError where upstream has one of that name."""
    points = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    points.optionxform = str  # type: ignore[assignment,method-assign]
    points.read_string(text)
    if not points.has_section(_COMMANDS):
        points.add_section(_COMMANDS)
    for name, target in config.scripts.items():
        if points.has_option(_COMMANDS, name):
            raise ForkError(f"upstream.toml brings the command {name}, but upstream has one of that name")
        points.set(_COMMANDS, name, target)
    out = io.StringIO()
    points.write(out)
    return out.getvalue()


def differences(old: str, new: str) -> list[str]:
    """The requirements, those of extras aside, that differ between two METADATA: ``old -> new``, a line each."""
    before, after = (
        {
            canonicalize_name(Requirement(value).name): value
            for name, value in _fields(text.partition("\n\n")[0])
            if name == "Requires-Dist" and not _is_extra(value)
        }
        for text in (old, new)
    )
    names = sorted({*before, *after})
    return [
        f"{before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _fields(headers: str) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for line in headers.split("\n"):
        if line[:1] in (" ", "\t"):
            name, value = fields[-1]
            fields[-1] = (name, f"{value}\n{line}")
        else:
            name, _, value = line.partition(": ")
            fields.append((name, value))
    return fields


def _is_extra(requirement: str) -> bool:
    return "extra ==" in requirement.partition(";")[2]


def _for_extra(requirement: str) -> str:
    base, _, marker = requirement.partition(";")
    condition = f'extra == "{CUDA}"'
    return f"{base.strip()}; ({marker.strip()}) and {condition}" if marker.strip() else f"{base.strip()}; {condition}"


def _ranged(requirement: str, theirs: dict[NormalizedName, Requirement]) -> str:
    """``requirement``, with upstream's range where it is a name alone."""
    try:
        ours = Requirement(requirement)
    except InvalidRequirement as error:
        raise ForkError(f"upstream.toml: {requirement!r} is not a requirement: {error}") from error
    need = theirs.get(canonicalize_name(ours.name))
    if requirement != ours.name or need is None:
        return requirement
    return f"{requirement}{need.specifier}"
