# SPDX-License-Identifier: Apache-2.0
"""Prints the build arguments that become an image's labels: ``NAME=VALUE`` lines."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import tempfile
from pathlib import Path

from packaging.utils import parse_wheel_filename

from fork import config, manifest, upstream, wheel

ROOT = Path(__file__).resolve().parents[1]
# Of the bases' distributions: Debian 12 and Ubuntu 24.04.
PYTHONS = {"cpu": "3.11", "cuda": "3.12"}


def manifest_sha256(python: str) -> str:
    """Hash of the manifest of the wheel for this Python on Linux x86_64; it names upstream's wheel, one a Python."""
    conf = config.load()
    tag = "cp" + python.replace(".", "")
    file = next(
        name
        for name in conf.hashes[conf.version]
        if any(t.interpreter == tag and t.platform.endswith("x86_64") for t in parse_wheel_filename(name)[3])
    )
    with tempfile.TemporaryDirectory() as folder:
        options = ("--python-version", python, "--implementation", "cp", "--platform", "manylinux_2_34_x86_64")
        upstream.run_pip(f"{conf.name}=={conf.version}", "download", "--no-cache-dir", "--dest", folder, *options)
        path = Path(folder) / file
        expected = conf.hashes[conf.version][file]
        if upstream.sha256_of(path) != expected:
            raise SystemExit(f"{file} is not the file that upstream.toml pins")
        source = upstream.UpstreamWheel(path, conf.version, expected)
        return hashlib.sha256(manifest.make(conf, source, wheel.make_tree(conf, source))).hexdigest()


def revision() -> str:
    """The commit, with ``-dirty`` where the tree differs from it."""
    return subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docker.build_args", description=__doc__)
    parser.add_argument("flavour", choices=tuple(PYTHONS))
    flavour = parser.parse_args().flavour
    conf = config.load()
    print(f"VERSION={conf.fork_version}")
    print(f"UPSTREAM_VERSION={conf.version}")
    print(f"REVISION={revision()}")
    print(f"MANIFEST_SHA256={manifest_sha256(PYTHONS[flavour])}")


if __name__ == "__main__":
    main()
