# SPDX-License-Identifier: Apache-2.0
"""Writes ``docker/requirements/*.txt``: every package of an image at one version, with its hashes.

Run by ``make image-lock``, after a change of ``upstream.toml`` or of the kernels' requirements. The lists are for Linux
on x86_64 and the Python of the image's base.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

from fork import config, upstream, wheel

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docker" / "requirements"
PLATFORM = "x86_64-manylinux_2_34"
PYTHONS = {"cpu": "3.11", "cuda": "3.12"}

# The local version exists only on PyTorch's own index: the build of the same name on PyPI is the one for CUDA.
CPU_TORCH = "+cpu"
# The toolkit that compiles at run time (docker/install.sh), which must fit the CUDA runtime that torch brings.
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")
_LIBRARIES = ("nvidia-cuda-runtime", "nvidia-cuda-nvrtc", "nvidia-curand", "nvidia-nvtx")
CUDA_TOOLKIT = (*(f"{name}<13.1" for name in _COMPILER), *_LIBRARIES)


def requirements(flavour: str) -> list[str]:
    """What the two wheels of ours need in an image of this flavour, without markers."""
    conf = config.load()
    source = upstream.fetch(conf)
    metadata = wheel.dist_info_files(conf, source)[f"{wheel.dist_info(conf)}/METADATA"].decode()
    kernels = tomllib.loads((ROOT / "sgl-kernel" / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = [*(HeaderParser().parsestr(metadata).get_all("Requires-Dist") or ()), *kernels]
    environment = {
        "extra": "cuda" if flavour == "cuda" else "",
        "python_version": PYTHONS[flavour],
        "python_full_version": f"{PYTHONS[flavour]}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    found = []
    for text in declared:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            requirement.marker = None
            found.append(str(requirement))
    if flavour == "cuda":
        found += CUDA_TOOLKIT
    return sorted(set(found), key=str.lower)


def build_requirements() -> list[str]:
    """What the build stages use: the build backends of both wheels, and what those ask for."""
    backends = [
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["build-system"]["requires"]
        for folder in (".", "sgl-kernel")
    ]
    return [*backends[0], *backends[1], "cmake>=3.25", "ninja>=1.10"]


def pins(flavour: str) -> list[str]:
    """Versions that are chosen here, not by the resolver."""
    if flavour == "cuda":
        return []
    return [pin + CPU_TORCH if pin.startswith("torch==") else pin for pin in config.load().cpu_pins]


def lock(wanted: list[str], constraints: list[str], python: str, target: Path, options: list[str]) -> None:
    """Let uv resolve ``wanted`` and write the hashed list."""
    with tempfile.TemporaryDirectory() as folder:
        source, constraint = Path(folder) / "in.txt", Path(folder) / "constraints.txt"
        source.write_text("\n".join(wanted) + "\n")
        constraint.write_text("\n".join(constraints) + "\n")
        output = Path(folder) / "out.txt"
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"),
            *("--generate-hashes", "--python-version", python, "--python-platform", PLATFORM),
            # Upstream asks for some pre-releases by name.
            *("--prerelease", "if-necessary-or-explicit"),
            *("--constraint", str(constraint), "--output-file", str(output), str(source), *options),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        head = (
            "# SPDX-License-Identifier: Apache-2.0\n"
            f"# Made by `make image-lock` for Python {python} on Linux x86_64; do not edit.\n"
        )
        target.write_text(head + output.read_text())
    print(f"{target.relative_to(ROOT)}: {target.read_text().count('==')} packages")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docker.lock", description=__doc__)
    parser.add_argument("options", nargs="*", help="further options of uv, after --")
    options = parser.parse_args().options
    FOLDER.mkdir(exist_ok=True)
    for flavour, python in PYTHONS.items():
        lock(requirements(flavour), pins(flavour), python, FOLDER / f"{flavour}.txt", options)
    # The kernels are built with the headers of the tvm-ffi that will load them.
    ffi = re.search(r"^apache-tvm-ffi==\S+", (FOLDER / "cuda.txt").read_text(), re.MULTILINE)
    assert ffi is not None
    lock(build_requirements(), [ffi[0]], min(PYTHONS.values()), FOLDER / "build.txt", options)


if __name__ == "__main__":
    main()
