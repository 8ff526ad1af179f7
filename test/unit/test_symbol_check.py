# SPDX-License-Identifier: Apache-2.0
"""A server does not start over an upstream that is not the one that the fork was made for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import sglang
from sglang import launch_server
from sglang._fork import intact
from sglang.srt.launch_checks import LaunchError, check_symbols
from sglang.srt.launch_checks import symbols as module
from sglang.srt.server_args import ServerArgs

PACKAGE = Path(sglang.__file__).parent


@pytest.fixture(autouse=True)
def forget():
    check_symbols.cache_clear()
    yield
    check_symbols.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A copy of the files that the check reads, in place of those that are installed."""
    table = json.loads((PACKAGE / intact.TABLE).read_text())
    manifest = json.loads((PACKAGE / intact.MANIFEST).read_text())
    package = tmp_path / "sglang"
    files = [*table["files"], *manifest["edited"], f"sglang/{intact.TABLE}", f"sglang/{intact.MANIFEST}"]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE.parent / file, tmp_path / file)
    (package / "__init__.py").touch()
    monkeypatch.setattr(module.sglang, "__file__", str(package / "__init__.py"))
    return package


def test_what_is_installed_passes():
    check_symbols()


def test_a_launch_is_refused(installed):
    """By both places that ask, before anything else happens."""
    (installed / "srt/speculative/dflash_worker_v2.py").unlink()
    with pytest.raises(LaunchError, match="was upstream installed over it"):
        ServerArgs(model_path="none").resolve_once()

    class Arguments:
        smg_grpc_mode = grpc_mode = False

        def resolve_once(self):
            raise AssertionError("the launch went on")

    with pytest.raises(LaunchError, match="was upstream installed over it"):
        launch_server.run_server(Arguments())


def test_the_table_names_what_changed(installed):
    worker = installed / "srt/speculative/dflash_worker_v2.py"
    text = worker.read_text()
    assert text.count("def init_cuda_graphs(self") == 1
    worker.write_text(text.replace("def init_cuda_graphs(self", "def init_cuda_graphs(self, streams"))
    batch = installed / "srt/managers/schedule_batch.py"
    batch.write_text(batch.read_text().replace("sampling_info", "sampling_state"))
    with pytest.raises(LaunchError) as raised:
        check_symbols()
    told = str(raised.value)
    assert "sglang.srt.speculative.dflash_worker_v2.DFlashWorkerV2.init_cuda_graphs" in told
    assert "expected  (self)" in told and "found     (self, streams)" in told
    assert "sglang.srt.managers.schedule_batch.ScheduleBatch.sampling_info" in told
    assert "found     nothing of that name" in told


def test_an_edited_file_of_upstreams_own(installed):
    """It may have every symbol: the fork's edit in it is what is missing."""
    choices = installed / "srt/arg_groups/choices.py"
    choices.write_text("".join(choices.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(LaunchError, match="not edited: a file of upstream's was put over it"):
        check_symbols()


def test_a_change_that_takes_nothing_away_is_told_once(installed, caplog):
    worker = installed / "srt/speculative/dflash_worker_v2.py"
    worker.write_text(worker.read_text() + "\n# tried something here\n")
    with caplog.at_level("WARNING"):
        check_symbols()
        check_symbols()
    (record,) = [record for record in caplog.records if record.name == module.__name__]
    assert record.getMessage().endswith("have what it uses: sglang/srt/speculative/dflash_worker_v2.py.")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")], ids=["missing", "truncated"])
@pytest.mark.parametrize("name", [intact.TABLE, intact.MANIFEST])
def test_an_incomplete_installation(installed, name, damage):
    damage(installed / name)
    with pytest.raises(LaunchError, match=r"this sglang-ddtree is incomplete: .*Install it again"):
        check_symbols()


def test_a_file_that_is_no_python(installed):
    (installed / "srt/managers/schedule_batch.py").write_text("def (")
    with pytest.raises(LaunchError, match=r"schedule_batch\n +expected +\d+ symbols\n +found +line 1: invalid syntax"):
        check_symbols()
