# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the server tests: real processes, shared by all tests of one configuration.

A test asks for a server by ``@pytest.mark.parametrize("server", [ServerConfig(...)],
indirect=True)``; pytest then runs all tests of one configuration together. Logs are
kept in ``build/test-logs`` when a test failed.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from harness.config import CACHE, LOGS, MODELS, ServerConfig
from harness.generate import REQUEST_SECONDS, Generation, flush, generate
from harness.pool import ServerPool
from harness.process import Server
from harness.prompts import all_prompts

from tools.tiny_models import PAIRS, ModelPair, ensure


def pytest_configure() -> None:
    """Let a terminated session stop its servers, as an interrupted one does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def models() -> dict[str, ModelPair]:
    """Every tiny model pair, by name."""
    return {pair: ensure(MODELS, pair) for pair in PAIRS}


@pytest.fixture(scope="session")
def environ() -> dict[str, str]:
    """Environment of the servers: no network, and no writes to the user's caches.

    The cache stays for the next session: it holds what SGLang compiles at run time.
    """
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "SGLANG_CACHE_DIR": str(CACHE),
        # A server that is stopped would otherwise sleep for five seconds before it looks at its processes.
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
        # Every step of a DDTREE server also walks the greedy chain; a test reads the counts.
        "SGLANG_DDTREE_CHECK_CHAIN": "1",
    }


@pytest.fixture(scope="session")
def logs(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Where the servers of this session log to; removed at the end unless a test failed."""
    logs = LOGS / time.strftime(f"%Y%m%d-%H%M%S-{os.getpid()}")
    yield logs
    if not request.session.testsfailed:
        shutil.rmtree(logs, ignore_errors=True)


@pytest.fixture(scope="session")
def pool(request: pytest.FixtureRequest, logs: Path, environ: dict[str, str]) -> Iterator[ServerPool]:
    """The servers of this session."""
    pool = ServerPool(MODELS, logs, environ)
    pool.expect(
        item.callspec.params["server"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and isinstance(item.callspec.params.get("server"), ServerConfig)
    )
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, pool: ServerPool) -> Server:
    """A healthy server of the configuration that the test is parametrised with."""
    return pool.get(request.param)


@pytest.fixture(scope="session")
def client(server: Server) -> openai.OpenAI:
    """The official client, without its retries: a test must see the first answer."""
    return openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=REQUEST_SECONDS,
    )


# As far as the log-probabilities of plain and of speculative decoding may lie apart.
NEAR_TIE = 1e-4


class PlainOutputs:
    """What the server says without speculation, one prompt at a time from a cold cache."""

    def __init__(self, pool: ServerPool) -> None:
        self._pool = pool
        self._known: dict[str, dict[str, Generation]] = {}

    def __call__(self, pair: str) -> dict[str, Generation]:
        """Greedy generations from ``all_prompts()``, by prompt name."""
        if pair not in self._known:
            plain = self._pool.get(ServerConfig(pair), ahead=False)
            outputs = {}
            for prompt in all_prompts():
                flush(plain)
                outputs[prompt.name] = generate(plain, prompt.ids, margin=True)
                # Another processor adds in another order; a near tie would go one way there and the other way here.
                assert outputs[prompt.name].margin > NEAR_TIE, f"{pair} cannot be compared on {prompt.name}"
            self._known[pair] = outputs
        return self._known[pair]


@pytest.fixture(scope="session")
def plain_outputs(pool: ServerPool) -> PlainOutputs:
    """The reference that speculative decoding is held against."""
    return PlainOutputs(pool)


@pytest.fixture
def expected(request: pytest.FixtureRequest, plain_outputs: PlainOutputs) -> dict[str, Generation]:
    """Plain outputs of the model pair that the test's ``server`` serves."""
    return plain_outputs(request.node.callspec.params["server"].pair)
