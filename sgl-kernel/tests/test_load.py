# SPDX-License-Identifier: Apache-2.0
"""Which library serves a device, and what happens when none does."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
from contextlib import nullcontext

import pytest
import sgl_kernel_ddtree
import torch
from sgl_kernel_ddtree import _load


@pytest.fixture(autouse=True)
def forget():
    for cached in (_load._prebuilt, _load._load):
        cached.cache_clear()
    yield
    for cached in (_load._prebuilt, _load._load):
        cached.cache_clear()


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch):
    """Pretends that a card of some compute capability is here; nothing is ever launched on it."""

    def pretend(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A card")
        monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())

    return pretend


def test_cpu_library_says_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        info = sgl_kernel_ddtree.ensure_loaded("cpu")
        sgl_kernel_ddtree.ensure_loaded("cpu")
    assert info.archs == ("cpu",) and info.cuda == 0
    assert sum("prebuilt library" in r.message for r in caplog.records) == 1


def test_missing_library_names_the_remedy(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "_LIB_DIR", tmp_path)
    with pytest.raises(RuntimeError, match="make kernel"):
        sgl_kernel_ddtree.ensure_loaded("cpu")
    assert sgl_kernel_ddtree.build_info() == {}


def test_other_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="meta"):
        sgl_kernel_ddtree.ensure_loaded("meta")


def test_card_that_the_kernels_do_not_know_is_refused(card) -> None:
    card((7, 5))
    with pytest.raises(RuntimeError, match=r"compute capability 7\.5"):
        sgl_kernel_ddtree.ensure_loaded("cuda:0")


def test_missing_target_without_sglang_names_the_target(card, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    card((12, 1))
    monkeypatch.setattr(_load, "_LIB_DIR", tmp_path)
    monkeypatch.setattr(_load.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="DDTREE_CUDA_ARCHS=121a"):
        sgl_kernel_ddtree.ensure_loaded("cuda:0")


def test_prebuilt_library_without_the_cards_target_is_not_used(card, monkeypatch: pytest.MonkeyPatch) -> None:
    held = _load.LoadedLibrary(None, _load.BuildInfo("lib", ("90a",), 13000), "prebuilt")
    asked = []

    def compile_for(index, capability, reason):
        asked.append((capability, reason))
        return _load.LoadedLibrary(None, _load.BuildInfo("jit", ("120a",), 13000), "jit")

    monkeypatch.setattr(_load, "_prebuilt", lambda name: held)
    monkeypatch.setattr(_load, "_compile_for", compile_for)
    card((12, 0))
    assert sgl_kernel_ddtree.ensure_loaded("cuda:0").archs == ("120a",)
    assert asked[0][0] == (12, 0) and "holds code for 90a" in asked[0][1]
    card((9, 0))
    assert sgl_kernel_ddtree.ensure_loaded("cuda:1").path == "lib"


def toolkit_root() -> str:
    """Where nvcc's toolkit is; nvcc on PATH may be a script that calls it, and SGLang then looks beside the script."""
    said = subprocess.run(["nvcc", "--dryrun", "-c", "x.cu"], capture_output=True, text=True, check=False).stderr
    return os.path.realpath(re.search(r"#\$ TOP=(.*)", said)[1])


def test_sglang_compiles_the_sources_for_a_missing_target(card, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real JIT, nvcc included, for a card that is not here: the result must load and say its target."""
    missing = [n for n, there in (("sglang", importlib.util.find_spec("sglang")), ("nvcc", shutil.which("nvcc"))) if not there]
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must try the JIT path, but {' and '.join(missing)} is missing")
        pytest.skip(f"the JIT path is NOT checked here: no {' and '.join(missing)}")
    if "CUDA_HOME" not in os.environ:
        monkeypatch.setenv("CUDA_HOME", toolkit_root())
    monkeypatch.setenv("SGLANG_JIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_load, "_LIB_DIR", tmp_path)
    card((12, 0))
    info = sgl_kernel_ddtree.ensure_loaded("cuda:0")
    assert info.archs == ("120a",) and info.cuda >= 13000
    module = _load.load(torch.device("cuda:0"))
    assert module.mla_tree_verify_workspace_bytes(1, 64, 8, 188) > 0
