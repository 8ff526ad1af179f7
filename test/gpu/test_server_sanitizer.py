# SPDX-License-Identifier: Apache-2.0
"""Our kernels inside a server, graphs and all, under compute-sanitizer's memcheck."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from gpu_harness.config import GpuConfig
from gpu_harness.requests import Request, ask_together
from harness.config import LOGS, MODELS
from harness.process import Server
from harness.prompts import all_prompts, walk

from tools.tiny_models import ensure

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("config", [GpuConfig("cycle-mla", graph_sizes=(4,))], ids=str)
def test_memcheck_finds_nothing(config):
    report = LOGS / "memcheck-%p.txt"
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("memcheck-*.txt"):
        old.unlink()
    # Instrumented are our kernels only; all of a server's would take an hour.
    wrapper = [
        *(SANITIZER, "--tool", "memcheck", "--target-processes", "all", "--log-file", str(report)),
        *("--kernel-regex", "kns=tree_verify", "--kernel-regex", "kns=tree_build"),
        *("--kernel-regex", "kns=tree_accept", "--kernel-regex", "kns=kv_commit"),
    ]
    arguments = config.arguments(ensure(MODELS, config.pair))
    server = Server(arguments, LOGS / "memcheck.log", {**os.environ, "HF_HUB_OFFLINE": "1"}, wrapper=wrapper)
    try:
        server.wait_ready()
        requests = [Request(prompt.ids, 24) for prompt in all_prompts()]
        for request, answer in zip(requests, ask_together(server, requests, at_once=4), strict=True):
            assert answer.ids == walk(request.ids[-1], request.new_tokens)
    finally:
        server.stop()
    findings = "".join(path.read_text() for path in LOGS.glob("memcheck-*.txt"))
    assert "COMPUTE-SANITIZER" in findings, "the sanitizer wrote nothing"
    faults = re.findall(r"^=+ (?:Invalid|Misaligned|Program hit|Race|Out-of-range|Error).*$", findings, re.MULTILINE)
    assert not faults
