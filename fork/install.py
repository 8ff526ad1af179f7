# SPDX-License-Identifier: Apache-2.0
"""Builds the fork and installs it into the running interpreter, unless what is there was made of the same inputs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fork.config import Config
from fork.errors import ForkError


def detect_flavour() -> str:
    """``cuda`` where the driver's own tool lists a GPU."""
    if shutil.which("nvidia-smi") is None:
        return "cpu"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "cuda" if listed.returncode == 0 and "GPU" in listed.stdout else "cpu"


def install(config: Config, flavour: str) -> None:
    """Does nothing when the stamp in this environment fits the inputs; keeps the dependencies when only code of
    ours changed."""
    stamp = Path(sysconfig.get_path("purelib")) / ".sglang-ddtree.json"
    wanted = {
        "flavour": flavour,
        "upstream": config.version,
        "requirements": _digest([config.root / "upstream.toml"]),
        "inputs": _digest(_inputs(config)),
    }
    present = json.loads(stamp.read_text()) if stamp.exists() else {}
    if present == wanted:
        print(f"the fork ({flavour}) is installed and up to date", file=sys.stderr)
        return
    from fork import upstream, wheel

    began = time.monotonic()
    source = upstream.fetch(config)
    tree = wheel.make_tree(config, source)
    path = wheel.build(config, source, tree, config.root / "dist")
    print(
        f"built {path.name} in {time.monotonic() - began:.0f} s: "
        f"{len(tree.outcomes)} patches, {len(tree.added)} added files",
        file=sys.stderr,
    )
    stamp.unlink(missing_ok=True)
    if {**wanted, "inputs": ""} == {**present, "inputs": ""}:
        _pip("install", "--no-compile", "--no-deps", "--force-reinstall", str(path))
    else:
        extra = "[cuda]" if flavour == "cuda" else ""
        pins = config.cpu_pins if flavour == "cpu" else ()
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join(pins))
            constraints.flush()
            if present:  # pip would keep it: its version does not move with every edit
                _pip("uninstall", "--yes", config.name)
            _pip(
                "install",
                "--no-compile",
                "--progress-bar",
                "off",
                "--constraint",
                constraints.name,
                f"{config.name}{extra} @ {path.as_uri()}",
            )
    _compile(sysconfig.get_path("purelib"))
    stamp.write_text(json.dumps(wanted))
    print(f"installed in {time.monotonic() - began:.0f} s", file=sys.stderr)


def check_dependencies(config: Config, flavour: str) -> None:
    """Lets pip resolve what the flavour needs, and installs nothing."""
    from fork import upstream, wheel

    source = upstream.fetch(config)
    path = wheel.build(config, source, wheel.make_tree(config, source), config.root / "dist")
    extra = "[cuda]" if flavour == "cuda" else ""
    _pip("install", "--dry-run", "--ignore-installed", f"{config.name}{extra} @ {path.as_uri()}")


def _inputs(config: Config) -> list[Path]:
    folders = [config.root / "fork", config.patches, *(tree.source for tree in config.trees)]
    files = [
        path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted([*files, config.root / "upstream.toml", *(config.root / name for name in ("NOTICE",))])


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in paths:
        digest.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _compile(folder: str) -> None:
    """Writes the bytecode below ``folder`` on all cores, also where PYTHONDONTWRITEBYTECODE is set: each process of a
    server would else compile some thousand modules for itself, which more than doubles its start."""
    # Some packages carry templates that are not valid Python: compileall goes past them, and nothing imports them.
    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", folder], check=False)


def _pip(*arguments: str) -> None:
    """Runs pip with its many lines made into a count, and shows them whole only if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    live = sys.stderr.isatty()
    said: list[str] = []
    packages = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            said.append(line)
            if line.startswith(("Collecting ", "Processing ")):
                packages += 1
                if live or packages % 20 == 0:
                    print(f"  pip: {packages} packages found", end="\r" if live else "\n", file=sys.stderr, flush=True)
            elif line.startswith("Installing collected"):
                print(f"  pip: installing {line.count(',') + 1} packages      ", file=sys.stderr, flush=True)
            elif line.startswith("Would install"):
                print(line, end="")
    if pip.returncode:
        raise ForkError(f"pip {arguments[0]} failed:\n{''.join(said[-25:])}")
