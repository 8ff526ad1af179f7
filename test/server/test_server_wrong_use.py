# SPDX-License-Identifier: Apache-2.0
"""A launch that cannot work ends soon, with a clear error, and leaves nothing behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from harness.config import BACKEND, MODELS, ServerConfig
from harness.process import STOP_SECONDS, Server, wait_until

from tools.tiny_models import MISMATCHES, ensure_mismatched

# They end while importing, mostly: two launches at once, beside a server that starts, on two busy cores.
REFUSAL_SECONDS = 600
TARGET = ServerConfig("cycle-mla")

DFLASH = [
    *("--speculative-algorithm", "DFLASH"),
    *("--speculative-draft-attention-backend", BACKEND),
]
DDTREE = ["--speculative-algorithm", "DDTREE", *DFLASH[2:]]
DRAFT = "--speculative-draft-model-path"


@dataclass(frozen=True)
class Wrong:
    """Arguments added to a plain launch, and what the error must mention.

    A draft given by the name of a mismatch stands for that checkpoint's path.
    """

    arguments: list[str]
    mentions: list[str]
    environ: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """How a launch ended: exit status, standard error, processes of its group still alive."""

    status: int
    errors: str
    left: int


WRONG = {
    "unknown backend": Wrong(["--attention-backend", "nonsense"], ["--attention-backend", "'nonsense'", BACKEND]),
    "unknown algorithm": Wrong(["--speculative-algorithm", "NONSENSE"], ["--speculative-algorithm NONSENSE", "DFLASH"]),
    "draft missing": Wrong(DFLASH, [DRAFT, "DFLASH"]),
    "draft not there": Wrong([*DFLASH, DRAFT, "/nonexistent/draft"], [DRAFT, "/nonexistent/draft", "no such"]),
    "model not there": Wrong(["--model-path", "/nonexistent/model"], ["--model-path", "/nonexistent/model", "no such"]),
    "draft of another width": Wrong([*DFLASH, DRAFT, "hidden-size"], [DRAFT, "hidden_size is 256", "128"]),
    "draft of another vocabulary": Wrong([*DFLASH, DRAFT, "vocab-size"], [DRAFT, "vocab_size is 1024", "512"]),
    "draft of a deeper target": Wrong([*DFLASH, DRAFT, "layer-ids"], [DRAFT, "target_layer_ids", "layer 7", "0 to 2"]),
    "tree without a draft": Wrong(DDTREE, [DRAFT]),
    "tree budget out of range": Wrong(
        [*DDTREE, DRAFT, "fitting", "--speculative-ddtree-budget", "257"],
        ["--speculative-ddtree-budget", "1 and 256", "257"],
    ),
    "tree width set directly": Wrong(
        [*DDTREE, DRAFT, "fitting", "--speculative-num-draft-tokens", "16"],
        ["--speculative-num-draft-tokens", "--speculative-ddtree-budget"],
    ),
    "turns that nothing runs": Wrong(["--speculative-turn-ms", "3"], ["--speculative-turn-ms", "DFLASH and DDTREE"]),
    "turns of no length": Wrong(
        [*DFLASH, DRAFT, "fitting", "--speculative-turn-ms", "nan"], ["--speculative-turn-ms", "milliseconds", "nan"]
    ),
    "GPU backend on a CPU": Wrong(
        ["--attention-backend", "flashinfer"],
        ["--attention-backend flashinfer", "CPU", BACKEND],
    ),
    "GPU draft backend on a CPU": Wrong(
        [*DFLASH, "--speculative-draft-attention-backend", "fa3", DRAFT, "fitting"],
        ["--speculative-draft-attention-backend fa3", "CPU", BACKEND],
    ),
    "CUDA without a GPU": Wrong(
        ["--device", "cuda"],
        ["--device cuda", "--device cpu"],
        {"CUDA_VISIBLE_DEVICES": ""},
    ),
}


@pytest.fixture(scope="module")
def refusals(request, models, environ, logs) -> Iterator[dict[str, Future[Refusal]]]:
    """The selected wrong launches, two at a time: most of their time goes into imports."""
    drafts = {name: str(ensure_mismatched(MODELS, name)) for name in MISMATCHES}
    drafts["fitting"] = str(models[TARGET.pair].draft)

    selected = [
        item.callspec.params["name"]
        for item in request.session.items
        if getattr(item, "function", None) is test_refused_with_a_clear_error
    ]

    def launch(name: str, wrong: Wrong) -> Refusal:
        added = [drafts.get(argument, argument) for argument in wrong.arguments]
        server = Server(
            [*TARGET.arguments(models[TARGET.pair]), *added],
            logs / f"wrong-{name.replace(' ', '-')}.log",
            {**environ, **wrong.environ},
        )
        return end_of(server)

    with ThreadPoolExecutor(2) as threads:
        yield {name: threads.submit(launch, name, WRONG[name]) for name in selected}


def end_of(server: Server) -> Refusal:
    """Wait for a launch to fail; whatever happens, nothing of it is left afterwards."""
    try:
        # One that starts will not fail any more.
        wait_until(
            lambda: server.exit_status is not None or server.healthy(), REFUSAL_SECONDS, "end of a launch to refuse"
        )
        status = server.exit_status
        assert status is not None, "the launch was not refused"
        # Children may need a moment to see that their parent is gone.
        with suppress(TimeoutError):
            wait_until(lambda: not server.members(), STOP_SECONDS, "end of all processes")
        return Refusal(status, server.errors(), len(server.members()))
    finally:
        server.stop()


@pytest.mark.parametrize("name", WRONG)
def test_refused_with_a_clear_error(refusals, name):
    refusal = refusals[name].result()
    assert refusal.status > 0
    assert refusal.left == 0
    # The last line is what a user sees; a traceback above it would bury it.
    error = refusal.errors.strip().splitlines()[-1]
    for mention in WRONG[name].mentions:
        assert mention in error
    assert "Traceback" not in refusal.errors


@contextmanager
def listening() -> Iterator[int]:
    """A port of 127.0.0.1 on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_in_use(models, environ, logs):
    with listening() as port:
        arguments = TARGET.arguments(models[TARGET.pair])
        refusal = end_of(Server(arguments, logs / "wrong-port.log", environ, port))
    assert refusal.status > 0
    assert refusal.left == 0
    error = refusal.errors.strip().splitlines()[-1]
    assert f"--port {port}" in error
    assert "another process listens there" in error
    assert "Traceback" not in refusal.errors
