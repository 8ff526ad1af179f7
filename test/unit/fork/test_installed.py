# SPDX-License-Identifier: Apache-2.0
"""The wheel and the development install in fresh environments, which see the dependencies of this one."""

import base64
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from fork import config as configuration

UPSTREAM = configuration.load().version
VERSION = configuration.load().fork_version
ROOT = Path(__file__).resolve().parents[3]


class Environment:
    def __init__(self, folder: Path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")

    def pip(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--no-deps", "--no-compile"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        self.see_dependencies()
        return done

    def see_dependencies(self) -> None:
        """After pip, which would take the fork that is installed here for the environment's own.

        The line comes after the environment's site-packages, so its own sglang is found first.
        """
        (self.site / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [str(self.python), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)

    def output(self, code: str) -> str:
        done = self.run("-c", code, cwd=self.site.parent)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().splitlines()[-1]

    def doctor(self) -> tuple[int, dict[str, dict], str]:
        done = self.run("-m", "fork", "doctor", "--json", "--quick", cwd=ROOT)
        report = json.loads(done.stdout)
        return done.returncode, {finding["what"]: finding for finding in report["findings"]}, done.stdout


@pytest.fixture(scope="module")
def fresh(built, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("installed") / "env")
    environment.pip(str(built))
    return environment


@pytest.fixture(scope="module")
def imported(fresh):
    """One process that imports SGLang and every edited or added module, which takes a while."""
    manifest = json.loads((fresh.site / "sglang" / "_ddtree_manifest.json").read_text())
    files = [*manifest["edited"], *manifest["added"]]
    # To import a __main__ is to run it.
    names = [file for file in files if file.endswith(".py") and not file.endswith("/__main__.py")]
    modules = sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names)
    # The CPU functions of sgl_kernel are not imported by this name, but as sgl_kernel.
    modules = [module for module in modules if not module.startswith("sglang._cpu.sgl_kernel")]
    code = f"""
import importlib, json, sglang, sglang.launch_server, sgl_kernel
for name in {modules!r}:
    importlib.import_module(name)
print(json.dumps([sglang.__version__, sglang.__file__, sgl_kernel.__file__, {len(modules)}]))
"""
    return json.loads(fresh.output(code))


def test_version_names_the_fork(fresh, imported):
    assert imported[0] == VERSION
    assert Path(imported[1]) == fresh.site / "sglang" / "__init__.py"


def test_edited_and_added_modules_import(imported):
    assert imported[3] > 20


def test_the_cpu_functions_of_sgl_kernel_come_with_the_wheel(fresh, imported):
    assert Path(imported[2]) == fresh.site / "sglang" / "_cpu" / "sgl_kernel" / "__init__.py"


def test_command_line_of_upstream_is_there(fresh):
    (distribution,) = importlib.metadata.distributions(name="sglang", path=[str(fresh.site)])
    commands = {entry.name for entry in distribution.entry_points if entry.group == "console_scripts"}
    assert "sglang" in commands
    assert all(os.access(fresh.python.parent / command, os.X_OK) for command in commands)


def test_installed_files_are_as_recorded(fresh):
    (distribution,) = importlib.metadata.distributions(name="sglang", path=[str(fresh.site)])
    assert distribution.version == VERSION
    hashed = [file for file in distribution.files if file.hash]
    assert len(hashed) > 5000
    for file in hashed:
        content = Path(file.locate()).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (file.hash.mode, file.hash.value, file.size) == ("sha256", digest, len(content)), file


def test_requirements_are_met_here():
    """The environment that runs the tests has the fork installed with its requirements, and they do not conflict."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert importlib.metadata.version("sglang") == VERSION


def test_doctor_finds_nothing_wrong(fresh):
    status, findings, text = fresh.doctor()
    assert status == 0, text
    assert f"{VERSION} on sglang {UPSTREAM}" in findings["installation"]["said"]
    assert [findings[what]["ok"] for what in ("installation", "edited files", "added files", "other files")] == [
        True
    ] * 4
    assert "torch" in findings and "would run" in findings


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_doctor_finds_a_damaged_file(fresh, damage):
    damaged = {
        "edited files": "sglang/version.py",
        "added files": "sglang/_cpu/__init__.py",
        "other files": "sglang/utils.py",
    }
    paths = {file: fresh.site / file for file in damaged.values()}
    kept = {file: path.read_bytes() for file, path in paths.items()}
    try:
        for file, path in paths.items():
            if damage == "missing":
                path.unlink()
            else:
                path.write_bytes(kept[file] + b"\n")
        status, findings, _ = fresh.doctor()
    finally:
        for file, path in paths.items():
            path.write_bytes(kept[file])
    assert status == 1
    for what, file in damaged.items():
        assert findings[what]["ok"] is False
        told = f"{file} {'is missing' if damage == 'missing' else 'was changed'}; run `make install`"
        assert told in findings[what]["said"]
        assert findings[what]["said"].startswith("1 of ")
    wrong = {name for name, finding in findings.items() if finding["ok"] is False}
    assert wrong - {"symbols"} == set(damaged), "an edited file that is missing is also a symbol that is"


def test_doctor_of_upstream_itself(pinned, tmp_path):
    environment = Environment(tmp_path / "env")
    environment.pip(str(pinned.path))
    status, findings, _ = environment.doctor()
    assert status == 1
    assert f"{UPSTREAM} at" in findings["installation"]["said"]
    assert findings["installation"]["said"].endswith("this is not the fork; run `make install`")


def test_doctor_without_any(tmp_path):
    environment = Environment(tmp_path / "env")
    done = environment.run("-m", "fork", "doctor", cwd=ROOT)
    assert done.returncode == 1
    assert "WRONG  installation  sglang is not installed here; run `make install`" in done.stdout


@pytest.fixture(scope="module")
def checkout(config, tmp_path_factory):
    """A copy of what an installation needs of this repository: a development install writes to it."""
    root = tmp_path_factory.mktemp("checkout")
    names = ["fork", "patches", "upstream.toml", "pyproject.toml", "LICENSE", "NOTICE"]
    for path in [*(config.root / name for name in names), *(tree.source for tree in config.trees)]:
        target = root / path.relative_to(config.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy(path, target)
    return root


def test_development_install(checkout, tmp_path):
    environment = Environment(tmp_path / "env")
    environment.see_dependencies()  # the build needs them
    environment.pip("--ignore-installed", "--no-build-isolation", "--editable", str(checkout))
    status, findings, text = environment.doctor()
    assert status == 0, text
    assert VERSION in findings["installation"]["said"]
    assert findings["added files"]["ok"] is True

    # One file of each kind: in a folder that two trees share, in a folder of ours, in the second tree; and a new one.
    edits = {
        "python/sglang/_cpu/__init__.py": "sglang._cpu",
        "python/sglang/srt/speculative/ddtree/__init__.py": "sglang.srt.speculative.ddtree",
        "sgl-kernel/cpu/sgl_kernel/__init__.py": "sgl_kernel",
        "python/sglang/srt/speculative/ddtree/just_made.py": "sglang.srt.speculative.ddtree.just_made",
    }
    for file in edits:
        with (checkout / file).open("a") as opened:
            opened.write("\nJUST_EDITED = 'seen at once'\n")
    code = f"import importlib, sglang\nfor m in {list(edits.values())}:\n"
    code += "    assert importlib.import_module(m).JUST_EDITED == 'seen at once'\nprint(sglang.__version__)"
    assert environment.output(code) == VERSION
    status, findings, text = environment.doctor()
    assert status == 0, text
    assert "3 of them changed in the checkout since the build" in findings["added files"]["said"]

    edited = checkout / "build" / "editable" / "sglang" / "version.py"
    edited.write_text(edited.read_text() + "\n")
    status, findings, _ = environment.doctor()
    assert (status, findings["edited files"]["ok"]) == (1, False)


def test_pip_builds_the_same_wheel(built, tmp_path):
    """``pip wheel .`` through the in-tree backend."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == built.name
    assert wheel.read_bytes() == built.read_bytes()


def test_source_distribution_builds_the_same_wheel(built, tmp_path):
    code = f"from fork import build_backend; print(build_backend.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    archive = tmp_path / done.stdout.strip().splitlines()[-1]
    assert archive.name == f"sglang-{VERSION}.tar.gz"
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    done = subprocess.run([*command, str(archive)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.read_bytes() == built.read_bytes()
