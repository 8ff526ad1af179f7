# SPDX-License-Identifier: Apache-2.0
"""Thousands of verify steps in ``validate``: our kernel is no further from a float64 reference than SGLang's Triton."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gpu_harness.config import MAX_RUNNING_REQUESTS, GpuConfig
from gpu_harness.counters import decode_steps
from gpu_harness.requests import Request, ask
from harness.config import CACHE, LOGS, MODELS
from harness.generate import REQUEST_SECONDS, wait_idle
from harness.process import Server
from tokenizers import Tokenizer

from benchmark.accept import prompts
from tools.tiny_models import ModelPair, ensure

STEPS = int(os.environ.get("GPU_TEST_ERROR_STEPS", "10000"))
SECONDS = 420
PLUGIN = Path(__file__).parent / "error_plugin"
ENTRY_POINTS = "[sglang.srt.plugins]\nddtree-error = ddtree_error_plugin:register\n"
CONFIG = GpuConfig("trained-mla", options=("--page-size", "1", "--ddtree-verify", "validate"))
# With the prompts, of up to 232 tokens, and the window this stays below the plugin's MAX_KEYS.
NEW_TOKENS = 400
# Of bf16 outputs and bf16 probabilities. Beyond it the inputs that both kernels share are wrong.
TOLERANCE = 6e-3


@pytest.fixture(scope="module")
def models() -> ModelPair:
    return ensure(MODELS, CONFIG.pair)


@pytest.fixture(scope="module")
def compared(
    request: pytest.FixtureRequest, models: ModelPair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that compares both kernels with the reference."""
    path = tmp_path_factory.mktemp("plugins")
    info = path / "ddtree_error-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree-error\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    search = [str(path), str(PLUGIN), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {"SGLANG_CACHE_DIR": str(CACHE), **os.environ, "HF_HUB_OFFLINE": "1"}
    log = LOGS / f"error-{os.getpid()}" / f"{CONFIG}.log"
    server = Server(CONFIG.arguments(models), log, environ | {"PYTHONPATH": os.pathsep.join(search)})
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
    if not request.session.testsfailed:
        log.unlink()


def test_no_further_from_the_reference_than_triton(compared, models, record):
    tokenizer = Tokenizer.from_file(str(models.target / "tokenizer.json"))
    texts = [tuple(tokenizer.encode(prompt.text).ids) for prompt in prompts.load()]
    before, began = decode_steps(compared), time.monotonic()
    _ask_until(compared, texts, lambda: _steps_since(before, compared) >= STEPS)
    seconds = time.monotonic() - began
    wait_idle(compared)
    steps = decode_steps(compared) - before
    seen = _validation(compared)
    found = seen.pop("reference", None)
    assert found is not None, "the plugin was not loaded"
    sources = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(PLUGIN.glob("*.py"))}
    record(
        steps=found["steps"],
        steps_replayed=steps.replayed,
        steps_eager=steps.eager,
        seconds=round(seconds, 1),
        reference=found,
        validation=seen,
        plugin_sha256=sources,
    )
    assert found["steps"] >= STEPS
    # Every step and row that the switch counted, none left out.
    assert (found["steps"], found["rows"]) == (seen["steps"], seen["rows"])
    assert (found["rows_left_out"], found["reference_rows_not_finite"]) == (0, 0)
    ours, triton = found["ours"], found["delegate"]
    assert (ours["rows_not_finite"], triton["rows_not_finite"]) == (0, 0)
    assert 0 < triton["error"] <= TOLERANCE
    # The least that any output in bf16 can have comes first.
    assert found["rounded"]["error"] <= ours["error"] <= triton["error"]


def _steps_since(before, server: Server) -> int:
    steps = decode_steps(server) - before
    return steps.replayed + steps.eager


def _validation(server: Server) -> dict:
    answer = httpx.get(f"{server.url}/server_info", timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()["internal_states"][0]["ddtree_verify"]["validation"]


def _ask_until(server: Server, texts: list[tuple[int, ...]], enough) -> None:
    """As many requests at once as the server takes."""
    stop, faults = threading.Event(), []
    threads = [
        threading.Thread(target=_keep_asking, args=(server, texts, seed, stop, faults))
        for seed in range(MAX_RUNNING_REQUESTS)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    try:
        while not faults and not enough():
            assert time.monotonic() < deadline, f"not enough steps in {SECONDS} s"
            time.sleep(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults


def _keep_asking(
    server: Server, texts: list[tuple[int, ...]], seed: int, stop: threading.Event, faults: list[BaseException]
) -> None:
    """Requests one after the other, of many lengths."""
    draw = random.Random(seed)
    try:
        while not stop.is_set():
            request = Request(draw.choice(texts), draw.randint(50, NEW_TOKENS), temperature=1.0, ignore_eos=True)
            assert len(ask(server, request).ids) == request.new_tokens
    except BaseException as fault:  # a thread's fault must fail the test
        faults.append(fault)
