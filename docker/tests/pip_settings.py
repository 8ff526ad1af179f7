# SPDX-License-Identifier: Apache-2.0
"""This machine's pip settings (mirror, certificates, local folders) for the build stages, which know PyPI only."""

from __future__ import annotations

import ast
import configparser
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MOUNT = "/run/pip-settings"
# Without indexes in local folders: their links lead out of the folder that would be mounted.
_KEPT = ("cert", "client-cert", "find-links", "index-url", "proxy", "timeout", "default-timeout", "trusted-host")


@dataclass(frozen=True)
class PipSettings:
    """What a build gets of them.

    Attributes:
        conf: a pip.conf, for the secret ``pip_conf``.
        volumes: buildah's options that bring the folders which it names.
        torch: whether one of these folders has torch's CPU build, so that PyTorch's own index is not needed.
    """

    conf: Path
    volumes: list[str]
    torch: bool


def carry(folder: Path) -> PipSettings:
    """Write them to ``folder``. The certificates are copied: in the image, a package writes to their own place."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in _settings().items() if name in _KEPT}
    if certificates := kept.get("cert") or os.environ.get("SSL_CERT_FILE"):
        shutil.copy(certificates, folder / "ca.pem")
        kept["cert"] = f"{_MOUNT}/ca.pem"
    folders = [path for path in map(Path, kept.get("find-links", "").split()) if path.is_dir()]
    parser = configparser.RawConfigParser()
    parser["global"] = kept
    with (folder / "pip.conf").open("w") as file:
        parser.write(file)
    volumes = [f"--volume={path}:{path}:ro" for path in folders]
    return PipSettings(
        conf=folder / "pip.conf",
        volumes=[f"--volume={folder}:{_MOUNT}:ro", *volumes],
        torch=any(wheel for path in folders for wheel in path.glob("torch-*+cpu-*.whl")),
    )


def _settings() -> dict[str, str]:
    """pip's own, of its files and its environment variables; the latter win, as with pip."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    settings: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.strip().partition(".")
        if section in ("global", "install", ":env:"):
            settings[name] = str(ast.literal_eval(value))
    return settings
