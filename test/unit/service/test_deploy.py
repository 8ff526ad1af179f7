# SPDX-License-Identifier: Apache-2.0
"""The unit, the environment and arguments that it reads, compose, the images' lists, the dashboard."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from sglang_ddtree import envfile

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


def systemd(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(command) is None:
        pytest.fail(f"{command} is missing: apt-get install systemd")
    return subprocess.run([command, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here."""
    program = tmp_path / "sglang"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "sglang-ddtree.service"
    copy.write_text(
        (DEPLOY / "sglang-ddtree.service").read_text().replace("/opt/sglang-ddtree/bin/sglang", str(program))
    )
    return copy


def test_the_unit_is_valid(unit):
    done = systemd("systemd-analyze", "verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_invalid_unit_would_be_seen(unit):
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=always"))
    done = systemd("systemd-analyze", "verify", "--man=no", str(unit))
    assert "protect system value" in done.stderr


def test_the_unit_is_hardened(unit):
    """The threshold is systemd's exposure level times ten; an unrestricted service has 96."""
    done = systemd("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=35", str(unit))
    assert done.returncode == 0, done.stdout[-300:]


def test_nothing_hides_the_cards(unit):
    """Each of these brings a list of allowed devices, or hides all of them."""
    settings = {line.partition("=")[0] for line in unit.read_text().splitlines()}
    assert not settings & {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute"}


def test_the_user_is_one_that_sysusers_takes():
    lines = [line for line in (DEPLOY / "sysusers.conf").read_text().splitlines() if not line.startswith("#")]
    assert lines == ['u sglang - "SGLang" /var/lib/sglang-ddtree', "m sglang render", "m sglang video"]
    done = systemd("systemd-sysusers", "--dry-run", "--inline", *lines)
    assert done.returncode == 0, done.stderr


def test_the_environment_is_one_that_a_cutover_can_change():
    text = (DEPLOY / "sglang.env").read_text()
    assert envfile.value(text) == "off" and not envfile.overriding_flag(text)
    for line in text.splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"[A-Z0-9_]+=\S*", line)
    for line in envfile.with_value(text, "on").splitlines():
        assert line in text.splitlines() or line == "SGLANG_DDTREE_VERIFY=on"


def test_compose_is_valid():
    tool = Path(sys.executable).with_name("check-jsonschema")
    command = [tool, "--builtin-schema", "vendor.compose-spec", ROOT / "docker" / "compose.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_restricts_the_container():
    service = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]["server"]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ports"] == ["127.0.0.1:${PORT:-30000}:30000"]
    assert not any("KEY" in name for name in service["environment"])


def test_the_dashboard_is_what_its_table_says():
    spec = importlib.util.spec_from_file_location("make_dashboard", DEPLOY / "grafana" / "make_dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.text(), "run deploy/grafana/make_dashboard.py"


def locked(flavour: str) -> dict[str, str]:
    """Version by name; each has a hash."""
    text = (ROOT / "docker" / "requirements" / f"{flavour}.txt").read_text()
    entries = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9]", text, re.M)), "a line without a hash"
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version, _ in entries}


def test_the_images_have_what_the_wheels_need():
    upstream = tomllib.loads((ROOT / "upstream.toml").read_text())["flavour"]
    kernels = tomllib.loads((ROOT / "sgl-kernel" / "pyproject.toml").read_text())
    # What compiles in the image, beside what the wheels declare.
    toolkit = ["nvidia-cuda-nvcc<13.1", "nvidia-cuda-cccl<13.1", "nvidia-curand", "nvidia-nvtx"]
    wanted = {
        "cpu": [*upstream["cpu"]["requires"], *upstream["cpu"]["pins"], *kernels["project"]["dependencies"]],
        "cuda": [upstream["cuda"]["kernel"], *kernels["project"]["dependencies"], *toolkit],
        "build": kernels["build-system"]["requires"],
    }
    for flavour, requirements in wanted.items():
        versions = locked(flavour)
        for requirement in map(Requirement, requirements):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            assert requirement.specifier.contains(versions[name], prereleases=True), f"{flavour}: {requirement}"


def test_the_kernels_are_built_with_what_loads_them():
    assert locked("build")["apache-tvm-ffi"] == locked("cuda")["apache-tvm-ffi"] == locked("cpu")["apache-tvm-ffi"]
