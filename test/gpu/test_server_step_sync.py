# SPDX-License-Identifier: Apache-2.0
"""A decode step never waits for the device: not greedy, not sampled, not with log-probabilities."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from gpu_harness.config import GpuConfig
from harness.config import LOGS, MODELS
from harness.generate import REQUEST_SECONDS
from harness.process import Server
from harness.prompts import all_prompts

from tools.tiny_models import ensure

PLUGIN = Path(__file__).parent / "sync_plugin"
ENTRY_POINTS = "[sglang.srt.plugins]\nddtree-sync = ddtree_sync_plugin:register\n"
REQUESTS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "top_k": 20},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
}


@pytest.fixture(scope="module", params=["ddtree_sm120", "triton"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose decode steps fail when they wait."""
    path = tmp_path_factory.mktemp("plugins")
    info = path / "ddtree_sync-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree-sync\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    config = GpuConfig("random-mla", backend=request.param, graph_sizes=(1, 4, 8))
    search = [str(path), str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(search)}
    log = LOGS / f"step-sync-{os.getpid()}" / f"{config}.log"
    server = Server(config.arguments(ensure(MODELS, config.pair)), log, environ)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
    if not request.session.testsfailed:
        log.unlink()


def guarded_steps(server: Server) -> int:
    found = re.findall(r"ddtree-sync-plugin: (\d+) steps guarded", server.errors())
    return int(found[-1]) if found else 0


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("logprobs", [False, True], ids=["plain", "logprobs"])
def test_no_step_waits_for_the_device(guarded, name, logprobs):
    def ask(prompt) -> list[int]:
        body = {
            "input_ids": list(prompt.ids),
            "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, **REQUESTS[name]},
            "return_logprob": logprobs,
        }
        answer = httpx.post(f"{guarded.url}/generate", json=body, timeout=REQUEST_SECONDS)
        answer.raise_for_status()
        return answer.json()["output_ids"]

    before = guarded_steps(guarded)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, all_prompts()))
    assert all(len(ids) == 200 for ids in answers)
    assert guarded_steps(guarded) - before >= 64  # or nothing was guarded
