# SPDX-License-Identifier: Apache-2.0
"""Nothing that was started outlives what started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tools.processes import STOP_SECONDS, ProcessGroup, is_alive, wait_until


def test_stopping_ends_the_whole_group(tmp_path):
    group = ProcessGroup(["sh", "-c", "sleep 60 & sleep 60"], tmp_path / "log", os.environ)
    wait_until(lambda: len(group.members()) == 3, STOP_SECONDS, "three processes")
    members = group.members()
    group.stop()
    assert not [process for process in members if is_alive(process)]


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"], ids=["exit", "kill"])
def test_the_leader_ends_with_its_maker(tmp_path, end):
    code = f"""
import os
from pathlib import Path
from tools.processes import ProcessGroup
print(ProcessGroup(["sleep", "60"], Path({str(tmp_path)!r}) / "log", os.environ).pgid, flush=True)
{end}
"""
    maker = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    leader = int(maker.stdout)
    wait_until(lambda: not _runs(leader), STOP_SECONDS, "end of the leader")


def _runs(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False
