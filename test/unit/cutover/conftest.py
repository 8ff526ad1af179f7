# SPDX-License-Identifier: Apache-2.0
"""The tool against a fake service, in the test's own process unless it is to be killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_service import KEY, FakeService
from sglang_ddtree import progress
from sglang_ddtree.cli import main

Run = Callable[..., int]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FakeService]:
    """A healthy service in mode off."""
    fake = FakeService(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The records' folder."""
    return tmp_path / "state"


@pytest.fixture
def run(service: FakeService, state: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("cutover", "--to", "on", ...)`` with the fake service's address, small measurements, and no questions."""
    monkeypatch.delenv("SGLANG_DDTREE_ADMIN_KEY", raising=False)
    monkeypatch.delenv("SGLANG_DDTREE_API_KEY", raising=False)
    key = state.parent / "key"
    key.write_text(f"{KEY}\n")

    def call(command: str, *arguments: str, live: bool = True, restart: bool = True, small: bool = True) -> int:
        line = [command, "--url", service.url]
        if command in ("cutover", "status", "rollback"):
            line += ["--state-dir", str(state)]
        if live:
            line += ["--admin-key-file", str(key)]
        if command in ("cutover", "rollback"):
            line += ["--yes", "--poll", "0.01", "--settle", "0.2", "--health-timeout", "0.4"]
        if restart and command in ("cutover", "rollback"):
            line += ["--restart-command", service.restart_command]
        if restart and command == "cutover":
            line += ["--environment-file", str(service.environment)]
        if small and command == "cutover":
            line += ["--prompts", "2", "--tokens", "8", "--repeats", "1", "--min-speed-ratio", "0"]
        return main([*line, *arguments])

    return call


@pytest.fixture
def record(state: Path) -> Callable[[], dict[str, Any]]:
    """The newest record."""
    return lambda: json.loads(max(state.glob("*Z.json")).read_text())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress lines, and no waiting for the disk: these tests kill processes, not the machine."""
    monkeypatch.setattr(progress.Progress, "show", lambda self, text: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
