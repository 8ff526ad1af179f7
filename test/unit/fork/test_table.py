# SPDX-License-Identifier: Apache-2.0
"""The table of symbols that a wheel carries, and the comparison with it on another release."""

import json
import zipfile

import pytest

from fork import upstream
from fork.carried import intact
from fork.surface import table


@pytest.fixture(scope="module")
def made(config, pinned, tree):
    return json.loads(table.make(config, pinned, tree))


def test_what_ours_imports_calls_and_overrides_is_in_it(made, config):
    worker = made["files"]["sglang/srt/speculative/dflash_worker_v2.py"]["symbols"]
    assert worker["DFlashWorkerV2"] == "class"
    assert worker["DFlashWorkerV2.__init__"].startswith("(self, server_args")
    assert worker["DFlashWorkerV2.forward_batch_generation"].startswith("(self, batch")
    assert worker["DFlashWorkerV2.block_size"] == "attribute"
    sync = made["files"]["sglang/srt/speculative/spec_tp_sync.py"]["symbols"]
    assert sync["SpecTpSyncSite.DDTREE_CHOICE"] == "attribute", "what a patch adds is relied on too"
    assert sum(len(entry["symbols"]) for entry in made["files"].values()) > 150
    assert made["upstream"] == config.version


def test_it_is_found_out_once_and_kept(config, pinned, tree, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table, "_make", lambda *_: b"made")
    assert table.make(config, pinned, tree) == b"made"
    monkeypatch.setattr(table, "_make", lambda *_: b"made again")
    assert table.make(config, pinned, tree) == b"made"
    monkeypatch.setitem(tree.added, "sglang/new.py", b"")
    assert table.make(config, pinned, tree) == b"made again"
    (tmp_path / "sglang-ddtree").chmod(0o500)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert table.make(config, pinned, tree) == b"made again", "a cache that cannot be written is no reason to fail"


def test_another_release_over_the_fork(built, config, tmp_path):
    """What there is after upstream's next wheel was unpacked over the fork: its files, and those that we added."""
    with zipfile.ZipFile(built) as archive:
        listed = json.loads(archive.read(f"sglang/{intact.TABLE}"))["files"]
        edited = json.loads(archive.read(f"sglang/{intact.MANIFEST}"))["edited"]
        archive.extractall(tmp_path, [*listed, *edited, f"sglang/{intact.TABLE}", f"sglang/{intact.MANIFEST}"])
    assert intact.examine(tmp_path / "sglang") == intact.Result([], [])
    (other, *_) = (version for version in config.supported if version != config.version)
    theirs = upstream.fetch(config, other)
    for file in {*listed, *edited} & {*theirs}:
        (tmp_path / file).write_bytes(theirs[file])
    problems = {problem.what: problem for problem in intact.examine(tmp_path / "sglang").problems}
    assert {*edited} & {*theirs} <= set(problems)
    assert any(what.startswith("sglang.srt.") for what in problems)
    assert all(what in intact.as_text(list(problems.values())) for what in problems)
