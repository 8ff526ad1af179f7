# SPDX-License-Identifier: Apache-2.0
"""What `make` relies on: the flavour, the stamp, and that nothing is done twice."""

import json
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from fork import install
from fork.errors import ForkError


def fake_nvidia_smi(folder: Path, monkeypatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_flavour_follows_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    assert install.detect_flavour() == "cpu"
    monkeypatch.undo()
    fake_nvidia_smi(tmp_path, monkeypatch, "echo 'GPU 0: NVIDIA RTX PRO 6000 (UUID: GPU-x)'")
    assert install.detect_flavour() == "cuda"
    fake_nvidia_smi(tmp_path, monkeypatch, "echo 'No devices were found'; exit 6")
    assert install.detect_flavour() == "cpu"


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Records what pip would be told; the stamp goes to a folder of its own."""
    told = []

    def pip(*arguments):
        constraints = [
            Path(a).read_text() for a, b in zip(arguments[1:], arguments, strict=False) if b == "--constraint"
        ]
        told.append((arguments, constraints))

    monkeypatch.setattr(install, "_pip", pip)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return told


@pytest.fixture
def scratch(config, tmp_path):
    """The configuration with a patch folder that a test may change."""
    root = tmp_path / "root"
    (root / "patches").mkdir(parents=True)
    (root / "fork").symlink_to(config.root / "fork")
    for name in ("upstream.toml", "NOTICE"):
        (root / name).write_bytes((config.root / name).read_bytes())
    return replace(config, root=root, trees=())


PATCH = 'why = "w"\nneeds = "n"\nretire = "r"\n[[edit]]\nfile = "sglang/utils.py"\nat = "end"\nafter = "x = 1"\n'


def test_first_time_second_time_and_after_an_edit(calls, scratch, tmp_path, capsys):
    install.install(scratch, "cpu")
    ((arguments, constraints),) = calls
    assert arguments[-1].startswith("sglang @ file://") and arguments[-1].endswith(".whl")
    assert constraints == ["\n".join(scratch.cpu_pins)]
    calls.clear()

    capsys.readouterr()
    install.install(scratch, "cpu")
    assert calls == []
    assert capsys.readouterr().err == "the fork (cpu) is installed and up to date\n"

    (scratch.patches / "0001-x.toml").write_text(PATCH)
    install.install(scratch, "cpu")
    ((arguments, _),) = calls
    assert {"--no-deps", "--force-reinstall"} <= set(arguments), "code of ours changed: the dependencies stay"
    calls.clear()

    (scratch.root / "upstream.toml").write_text((scratch.root / "upstream.toml").read_text() + "\n# changed\n")
    install.install(scratch, "cpu")
    assert [arguments[0] for arguments, _ in calls] == ["uninstall", "install"], "the dependencies may have changed"


def test_cuda_flavour_takes_upstreams_list(calls, scratch):
    install.install(scratch, "cuda")
    ((arguments, constraints),) = calls
    assert arguments[-1].startswith("sglang[cuda] @ file://")
    assert constraints == [""]


def test_interrupted_installation_is_done_again(calls, scratch, tmp_path, monkeypatch):
    install.install(scratch, "cpu")
    (scratch.patches / "0001-x.toml").write_text(PATCH)

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(install, "_pip", fail)
        install.install(scratch, "cpu")
    assert not (tmp_path / ".sglang-ddtree.json").exists()
    install.install(scratch, "cpu")
    assert json.loads((tmp_path / ".sglang-ddtree.json").read_text())["flavour"] == "cpu"


def test_bytecode_is_there_after_an_installation(calls, scratch, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("x = 1\n")
    (tmp_path / "package" / "template.py").write_text("{{ not python }} =\n")
    install.install(scratch, "cpu")
    (compiled,) = (tmp_path / "package" / "__pycache__").iterdir()
    assert compiled.name.startswith("module.")


def test_pip_failure_shows_what_pip_said():
    with pytest.raises(ForkError, match=r"(?s)pip install failed:.*no-such-option"):
        install._pip("install", "--no-such-option")


def test_what_is_stamped_is_what_is_built(scratch):
    files = {
        str(path.relative_to(scratch.root)) for path in install._inputs(scratch) if path.is_relative_to(scratch.root)
    }
    tracked = subprocess.run(
        ["ls", str(scratch.root / "fork")], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {f"fork/{name}" for name in tracked if name.endswith(".py")} <= files
    assert "upstream.toml" in files and "NOTICE" in files
