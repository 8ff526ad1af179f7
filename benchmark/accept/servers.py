# SPDX-License-Identifier: Apache-2.0
"""Requests to real servers, one configuration at a time, batch 1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmark.accept.replay import Tree
from tools.serve.arguments import BACKEND
from tools.sglang_server import Server
from tools.tiny_models import ModelPair

BUILD = Path(__file__).parents[2] / "build"
_REQUEST_SECONDS = 300


@dataclass(frozen=True)
class Configuration:
    """A server: ``algorithm`` is None, ``"NGRAM"``, ``"DFLASH"`` or ``"DDTREE"``, the last with its tree."""

    algorithm: str | None
    tree: Tree | None = None

    def __str__(self) -> str:
        if self.tree is None:
            return self.algorithm or "none"
        return f"DDTREE budget {self.tree.budget}, K {self.tree.topk}"

    def arguments(self, pair: ModelPair) -> list[str]:
        """Arguments of ``sglang serve``; float32, in which a chain and a tree agree to the token."""
        common = [
            *("--model-path", str(pair.target), "--device", "cpu", "--dtype", "float32"),
            *("--attention-backend", BACKEND),
            *("--max-total-tokens", "8192", "--max-running-requests", "1"),
            "--disable-radix-cache",
        ]
        if self.algorithm is None:
            return common
        common += ["--speculative-algorithm", self.algorithm]
        if self.algorithm == "NGRAM":
            return [*common, "--speculative-num-draft-tokens", "16"]
        common += [
            *("--speculative-draft-model-path", str(pair.draft)),
            *("--speculative-draft-attention-backend", BACKEND),
        ]
        if self.tree is not None:
            common += [
                *("--speculative-ddtree-budget", str(self.tree.budget)),
                *("--speculative-ddtree-topk", str(self.tree.topk)),
            ]
        return common


@dataclass(frozen=True)
class Answer:
    """What a request got.

    Attributes:
        ids: the output.
        steps: verify steps; decode steps without speculation.
        histogram: entry d is how many steps accepted d drafts; empty without speculation.
    """

    ids: list[int]
    steps: int
    histogram: list[int]


class Client:
    """Generates on one server."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=_REQUEST_SECONDS)

    def generate(self, ids: list[int], tokens: int, temperature: float) -> Answer:
        """Exactly ``tokens`` tokens after ``ids``; end of text is a token like others."""
        sampling = {"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": True}
        reply = self._http.post("/generate", json={"input_ids": ids, "sampling_params": sampling})
        reply.raise_for_status()
        body: dict[str, Any] = reply.json()
        meta = body["meta_info"]
        return Answer(
            body["output_ids"], meta.get("spec_verify_ct", tokens - 1), meta.get("spec_correct_drafts_histogram", [])
        )


@contextmanager
def serve(configuration: Configuration, pair: ModelPair, threads: int) -> Iterator[Client]:
    """A server of so many threads for as long as the block lasts.

    Raises:
        ServerDied: it does not start; carries the end of its log.
    """
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "SGLANG_CACHE_DIR": str(BUILD / "sglang-cache")}
    environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    name = str(configuration).replace(" ", "-").replace(",", "")
    server = Server(configuration.arguments(pair), BUILD / "accept-logs" / f"{name}.log", environ)
    try:
        server.wait_ready()
        yield Client(server.url)
    finally:
        server.stop()
