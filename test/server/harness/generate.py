# SPDX-License-Identifier: Apache-2.0
"""SGLang's own HTTP endpoints, which say more than the OpenAI ones: token ids and acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from harness.process import STOP_SECONDS, Server, wait_until
from harness.prompts import NEW_TOKENS

# A long answer on two busy cores may take its time; a hang must still end the test.
REQUEST_SECONDS = 120


@dataclass(frozen=True)
class Generation:
    """Answer of ``/generate``.

    Attributes:
        ids: the generated token ids, end of text included.
        finish: ``"stop"`` or ``"length"``.
        cached: prompt tokens found in the radix cache.
        accepts: ``accepts[k]`` is how many verify steps accepted k drafts; empty
            without speculation.
        logprobs: log-probability of each generated token.
        margin: by how much the first choice led the second, in log-probability, where it led by least; infinite
            unless asked for.
    """

    ids: list[int]
    finish: str
    cached: int
    accepts: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    margin: float = math.inf


def generate(
    server: Server, ids: Sequence[int], new_tokens: int = NEW_TOKENS, *, margin: bool = False, **sampling: Any
) -> Generation:
    """Generate from token ids, greedily unless told otherwise."""
    body = {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0.0, **sampling},
        "return_logprob": True,
        "top_logprobs_num": 2 if margin else 0,
    }
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    reply = answer.json()
    meta = reply["meta_info"]
    return Generation(
        ids=reply["output_ids"],
        finish=meta["finish_reason"]["type"],
        cached=meta["cached_tokens"],
        accepts=meta.get("spec_correct_drafts_histogram", []),
        logprobs=[entry[0] for entry in meta["output_token_logprobs"]],
        margin=min(first[0] - second[0] for first, second in meta["output_top_logprobs"]) if margin else math.inf,
    )


def generate_together(
    server: Server, prompts: Sequence[Sequence[int]], at_once: int, **sampling: Any
) -> list[Generation]:
    """Generate from many prompts with ``at_once`` requests in flight; answers in order."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda ids: generate(server, ids, **sampling), prompts))


def hang_up(server: Server, ids: Sequence[int], lines: int) -> None:
    """Start a long answer as a stream and close the connection after so many lines of it."""
    body = {
        "input_ids": list(ids),
        "sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True},
        "stream": True,
    }
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=REQUEST_SECONDS) as stream:
        for seen, _ in enumerate(stream.iter_lines()):
            if seen >= lines:
                break


def load(server: Server) -> dict[str, Any]:
    """The scheduler's load: running and waiting requests, KV tokens in use."""
    answer = httpx.get(f"{server.url}/v1/loads", timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    return answer.json()["loads"][0]


def wait_idle(server: Server) -> None:
    """Return when the scheduler neither runs nor queues a request."""

    def idle() -> bool:
        now = load(server)
        return now["num_running_reqs"] == 0 and now["num_waiting_reqs"] == 0

    wait_until(idle, REQUEST_SECONDS, "idle scheduler")


def wait_freed(server: Server) -> None:
    """Return when every KV slot is free or in the radix cache.

    A slot that a request lost never is. To be asked before a flush, which counts all slots as free.

    Raises:
        TimeoutError: slots were lost.
    """
    wait_idle(server)
    wait_until(lambda: load(server)["num_used_tokens"] == 0, STOP_SECONDS, "KV slots freed")


def flush(server: Server, key: str | None = None) -> None:
    """Empty the radix cache of a server that is, or will soon be, idle; ``key`` is its admin key, if it has one."""
    wait_idle(server)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # The load is what the scheduler published last: a request that has just begun or ended may not be in it. With a
    # time-out, the scheduler itself waits until it is idle, and does not refuse.
    httpx.post(
        f"{server.url}/flush_cache", params={"timeout": STOP_SECONDS}, headers=headers, timeout=REQUEST_SECONDS
    ).raise_for_status()
