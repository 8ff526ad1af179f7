# SPDX-License-Identifier: Apache-2.0
"""buildah in the form that needs no namespaces, no cgroups and no overlay file system: root, chroot, vfs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pip_settings

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "image"
NAME = "localhost/sglang-ddtree-test"


@dataclass(frozen=True)
class Base:
    """A distribution, and debootstrap's script for it (its own releases may not know the newest suite by name)."""

    suite: str
    mirror: str
    script: str
    components: str


# Those of the Dockerfile's default bases: Debian 12, Ubuntu 24.04.
BASES = {
    "cpu": Base("bookworm", os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian"), "sid", "main"),
    "cuda": Base(
        "noble", os.environ.get("UBUNTU_MIRROR", "http://archive.ubuntu.com/ubuntu"), "gutsy", "main,universe"
    ),
}


class Buildah:
    """Images and containers in ``folder``, apart from the machine's own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._command = [
            *("buildah", "--storage-driver", "vfs"),
            *("--root", str(folder / "storage"), "--runroot", str(folder / "run")),
        ]

    def command(self, *arguments: str) -> list[str]:
        """The command line of a buildah call."""
        return [*self._command, *arguments]

    def __call__(self, *arguments: str) -> str:
        """Run buildah and return its output; its messages go through."""
        done = subprocess.run(self.command(*arguments), stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def _copy_of_the_tree(self) -> Path:
        """What git tracks or would track, so that nobody edits it while the image is built."""
        copy = self._folder / "context"
        shutil.rmtree(copy, ignore_errors=True)
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"):
            if name and (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, copy / name)
        return copy

    def has(self, image: str) -> bool:
        """Whether the storage holds an image of this name."""
        found = subprocess.run(self.command("inspect", "--type", "image", image), capture_output=True, check=False)
        return found.returncode == 0

    def base(self, flavour: str) -> str:
        """A minimal system made by debootstrap, once."""
        base = BASES[flavour]
        name = f"{NAME}-base:{base.suite}"
        if not self.has(name):
            tree = self._folder / f"base-{base.suite}"
            options = ("--variant=minbase", f"--components={base.components}")
            script = f"/usr/share/debootstrap/scripts/{base.script}"
            subprocess.run(
                ["debootstrap", *options, base.suite, str(tree), base.mirror, script], check=True, stdout=sys.stderr
            )
            container = self("from", "scratch")
            self("add", "--quiet", container, str(tree), "/")
            self("commit", "--rm", "--quiet", container, name)
        return name

    def build(self, flavour: str) -> str:
        """Build a target of the Dockerfile from a copy of the working tree, and return the image's name."""
        context = self._copy_of_the_tree()
        command = [sys.executable, "-m", "docker.build_args", flavour]
        arguments = subprocess.run(command, cwd=context, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        settings = pip_settings.carry(self._folder / "pip")
        if settings.torch:
            arguments.append("TORCH_CPU_INDEX=")
        name = f"{NAME}:{flavour}"
        command = self.command(
            *("build", "--isolation", "chroot", "--format", "docker", "--target", flavour),
            *("--build-arg", f"{flavour.upper()}_BASE={self.base(flavour)}", "--pull-never"),
            *(option for argument in arguments for option in ("--build-arg", argument)),
            *("--secret", f"id=pip_conf,src={settings.conf}", *settings.volumes),
            *("--file", str(context / "docker" / "Dockerfile"), "--tag", name, str(context)),
        )
        subprocess.run(command, stdout=sys.stderr, check=True)
        return name

    def config(self, image: str) -> dict[str, Any]:
        """The image's configuration, in Docker's form."""
        return json.loads(self("inspect", "--type", "image", image))["Docker"]["config"]


class Container:
    """A container of the image. Its commands run with what the image has set: user, environment, folder."""

    def __init__(self, buildah: Buildah, image: str) -> None:
        self._buildah = buildah
        self._name = buildah("from", "--pull-never", image)

    def command(self, *words: str, options: tuple[str, ...] = ()) -> list[str]:
        """The command line that runs ``words`` inside."""
        return self._buildah.command("run", "--isolation", "chroot", *options, self._name, "--", *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(self.command(*words), capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """Delete it."""
        self._buildah("rm", self._name)
