# SPDX-License-Identifier: Apache-2.0
"""Requests by token ids that say how many verify steps they took."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from harness.generate import REQUEST_SECONDS
from harness.process import Server


@dataclass(frozen=True)
class Request:
    """What is asked: a prompt's token ids, at most so many new ones, and how they are drawn."""

    ids: tuple[int, ...]
    new_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True)
class Answer:
    """The generated ids, and the verify steps that they took (0 without speculation)."""

    ids: list[int]
    steps: int


def _body(request: Request) -> dict:
    return {
        "input_ids": list(request.ids),
        "sampling_params": {
            "max_new_tokens": request.new_tokens,
            "temperature": request.temperature,
            "ignore_eos": request.ignore_eos,
        },
    }


def ask(server: Server, request: Request) -> Answer:
    """One request, to its end."""
    answer = httpx.post(f"{server.url}/generate", json=_body(request), timeout=REQUEST_SECONDS)
    answer.raise_for_status()
    reply = answer.json()
    return Answer(reply["output_ids"], reply["meta_info"].get("spec_verify_ct", 0))


def ask_together(server: Server, requests: Sequence[Request], at_once: int) -> list[Answer]:
    """Many requests, ``at_once`` in flight; answers in order."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda request: ask(server, request), requests))


def abort_after(server: Server, request: Request, chunks: int) -> list[int]:
    """Stream a request, hang up after so many chunks, and return the ids that had come."""
    ids: list[int] = []
    with httpx.stream(
        "POST", f"{server.url}/generate", json=_body(request) | {"stream": True}, timeout=REQUEST_SECONDS
    ) as answer:
        answer.raise_for_status()
        for count, reply in enumerate(_replies(answer.iter_lines()), start=1):
            ids = reply["output_ids"]
            if count == chunks:
                break
    return ids


def _replies(lines: Iterable[str]) -> Iterable[dict]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
